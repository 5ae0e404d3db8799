"""Programs that do what daemons, launchers and sandboxes do. Each is run with and without torchsan.

`record()` makes torchsan write to its log at that moment, and does nothing without it.
"""

from __future__ import annotations

PROLOGUE = """
import os, resource, signal, subprocess, sys, threading, time
from pathlib import Path

def record(n=20):
    session = sys.modules.get("torchsan.session")
    active = session.active() if session is not None else None
    for i in range(n if active is not None else 0):
        active._recorder.skipped(f"thing {i} at {time.monotonic()}", "x" * 500)

def own_files(n=30):
    files = [open(f"own-{i}.txt", "w") for i in range(n)]
    record()
    for i, file in enumerate(files):
        file.write(f"own {i}\\n" * 100)
        file.flush()
    record()
    return files

record()
"""

PROGRAMS = {
    "closes descriptors": "os.closerange(3, 4096); own_files(); print('done')",
    "closes descriptors twice": "for _ in range(2): os.closerange(3, 4096); files = own_files()\nprint('done')",
    "closes descriptors in a thread": """
thread = threading.Thread(target=lambda: os.closerange(3, 4096)); thread.start(); thread.join()
own_files(); sys.exit(5)
""",
    "takes over descriptors": """
target = os.open("own.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for number in range(3, 40) if 'torchsan.session' not in sys.modules else (*range(3, 40), *range(880, 910)):
    if number != target: os.dup2(target, number)
record(); os.write(target, b"mine\\n"); record(); print("done")
""",
    "reads through every descriptor": """
os.closerange(3, 64)
Path("own.txt").write_text("mine"); numbers = [os.open("own.txt", os.O_RDWR) for _ in range(20)]
record(); print([os.pread(n, 10, 0) for n in numbers])
""",
    "closes standard output": "print('said', flush=True); os.close(1); record(); sys.exit(7)",
    "closes all of its streams": "os.close(0); os.close(1); os.close(2); files = own_files(); os._exit(8)",
    "opens files in the place of its streams": """
for number in (0, 1, 2): os.close(number)
for name in ("a.txt", "b.txt", "c.txt"): os.open(name, os.O_CREAT | os.O_RDWR)
record(); os.write(1, b"mine"); os._exit(3)
""",
    "leaves without a word": "print('said', flush=True); record(); os._exit(6)",
    "kills itself": "print('said', flush=True); record(); os.kill(os.getpid(), signal.SIGKILL)",
    "aborts": "print('said', flush=True); record(); os.abort()",
    "dies of a signal": "signal.signal(signal.SIGTERM, signal.SIG_DFL); record(); os.kill(os.getpid(), signal.SIGTERM)",
    "handles a signal": """
signal.signal(signal.SIGUSR1, lambda *_: print("handled")); record(); os.kill(os.getpid(), signal.SIGUSR1); sys.exit(2)
""",
    "exits with a text": "record(); sys.exit('no')",
    "exits with a large status": "record(); sys.exit(300)",
    "forks": """
children = []
for n in range(4):
    pid = os.fork()
    if pid == 0:
        record(); Path(f"child-{n}.txt").write_text("child"); os._exit(n)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]); record()
""",
    "forks a child that ends as programs do": """
pid = os.fork()
if pid == 0:
    record(); sys.exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True); record(); sys.exit(4)
""",
    "leaves the rest to its child": """
if os.fork() > 0:
    os._exit(11)
record(); Path("child.txt").write_text("child")
""",
    "becomes a daemon": """
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0: os._exit(0)
    for number in range(3, 256):
        if number != write:
            try: os.close(number)
            except OSError: pass
    files = own_files(5); Path("daemon.txt").write_text("here"); os.write(write, b"1"); os._exit(0)
os.close(write); os.read(read, 1); record(); print("started")
""",
    "becomes a daemon with other streams": """
read, write = os.pipe()
if os.fork() == 0:
    os.setsid(); os.chdir("."); os.umask(0)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2): os.dup2(null, number)
    record(); Path("daemon.txt").write_text("here"); os.write(write, b"1"); os._exit(0)
os.read(read, 1); sys.exit(12)
""",
    "becomes another program": """
record()
os.execv(sys.executable, [sys.executable, '-c', 'print(1); raise SystemExit(9)'])
""",
    "becomes itself": """
if "again" in sys.argv: print("again"); sys.exit(13)
record(); os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
""",
    "starts programs": """
print(subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True, close_fds=False).stdout); record()
""",
    "spawns workers": """
import multiprocessing
def work(n): return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(work, range(5)))
    record()
""",
    "spawns fresh workers": """
import multiprocessing
def work(n): return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(work, range(3)))
    record()
""",
    "drops its privileges": """
os.chmod(".", 0o777); os.setgroups([]); os.setgid(65534); os.setuid(65534)
record(); Path("nobody.txt").write_text("mine"); print(os.getuid()); sys.exit(3)
""",
    "changes its root": """
os.mkdir("root"); os.chroot("root"); os.chdir("/")
record(); Path("/inside.txt").write_text("mine"); print(sorted(os.listdir("/"))); sys.exit(3)
""",
    "changes its folder": "os.mkdir('there'); os.chdir('there'); record(); Path('own.txt').write_text('mine')",
    "removes its folder": "os.mkdir('there'); os.chdir('there'); os.rmdir('../there'); record(); print('done')",
    "masks all rights": "os.umask(0o777); record(); Path('own.txt').write_text('mine'); print('done')",
    "may open few files": """
resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10)); record()
try:
    files = [open("/dev/null") for _ in range(20)]
except OSError as e: print(e.strerror)
record(); sys.exit(3)
""",
    "may open no files": "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); record(); print('done'); sys.exit(3)",
    "may write small files": """
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); record(200)
try: Path("own.txt").write_bytes(bytes(5000))
except OSError as e: print(e.strerror)
record(); sys.exit(3)
""",
    "may write no files": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); record(200); print('done')",
    "may have no other processes": """
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
record(); print('done'); sys.exit(1)
""",
    "may have no more memory files": "resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)); record(); print('done')",
    "moves the recording": """
for folder in Path("torchsan-runs").glob("*"): folder.rename(str(folder) + "-moved")
record(); print("done"); sys.exit(3)
""",
    "removes the recording": """
import shutil; shutil.rmtree("torchsan-runs", ignore_errors=True); record(); print("done")
""",
    "may open one file": """
resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
file = open("own.txt", "w"); record(); file.write(f"mine {file.fileno()}"); sys.exit(3)
""",
    "locks its files": """
import fcntl
file = open("own.txt", "w"); fcntl.lockf(file, fcntl.LOCK_EX); record(); file.write("mine"); print("done")
""",
    "ignores every signal": """
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ): signal.signal(number, signal.SIG_IGN)
record(); print("done"); sys.exit(3)
""",
    "raises in a thread": """
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join(); record(); print("done")
""",
    "replaces sys.stdout": """
import io; sys.stdout = io.StringIO(); print('x')
record(); sys.stdout = sys.__stdout__; print('y')
""",
    "ends while a daemon thread computes": """
# Python up to 3.13 ends such a thread by unwinding C++, which aborts: with torchsan as without.
import torch
torch.set_num_threads(1); x = torch.ones(600, 600)
def compute():
    while True: torch.mm(x, x)
threading.Thread(target=compute, daemon=True).start(); time.sleep(0.3); record(); print("done", flush=True)
""",
    "may open no files once torch is there": """
import torch
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
x = torch.ones(3) + 1; print((torch.relu(x) @ x).item()); sys.exit(7)
""",
    "changes its root once torch is there": """
import torch
os.mkdir("there"); os.chroot("there"); os.chdir("/"); x = torch.ones(3) + 1; print((torch.relu(x) @ x).item())
""",
    "refuses to open once torch is there": """
import torch
def hook(event, args):
    if event == "open": raise RuntimeError("no more files")
sys.addaudithook(hook); x = torch.ones(3) + 1; print((torch.relu(x) @ x).item(), flush=True); os._exit(7)
""",
    "imports nothing once torch is there": """
import torch
sys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()
x = torch.ones(3) + 1; print((torch.relu(x) @ x).item(), flush=True); os._exit(7)
""",
    "has no streams in Python": "sys.stdout = sys.stderr = None; record(); sys.exit(3)",
}
"""By what they do."""

AS_ROOT = ("drops its privileges", "changes its root", "changes its root once torch is there")
