"""A program must not be able to tell, by what Python gives it, that torchsan runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import command

PROBE = '''
"""doc"""
import atexit, inspect, os, pickle, sys, threading

class Thing:
    pass

def show(name, value):
    print(f"{name}: {value!r}", flush=True)

if __name__ == "__main__":
    main = sys.modules["__main__"]
    show("argv", sys.argv)
    show("path", sys.path)
    show("orig_argv", [w for w in sys.orig_argv[1:] if w != "-B"])  # -B may have come from the environment
    show("flags", sys.flags)
    show("globals", sorted(k for k in globals()))
    for name in ("__name__", "__file__", "__package__", "__cached__", "__doc__"):
        show(name, getattr(main, name))
    show("spec", main.__spec__ and (main.__spec__.name, main.__spec__.origin))
    show("loader", type(main.__loader__).__name__)
    show("builtins", type(__builtins__).__name__)
    show("is main", main.show is show)
    show("pickle", type(pickle.loads(pickle.dumps(Thing()))) is Thing)
    show("source", len(inspect.getsource(Thing)))
    show("stdin", sys.stdin.read())
    show("environ", sorted(k for k in os.environ if k not in ("_", "SHLVL")))
    show("cwd", os.getcwd())
    show("threads", threading.active_count())
    show("fds", sorted(int(n) for n in os.listdir("/dev/fd"))[:3])
    atexit.register(print, "at exit")
    print("to stderr", file=sys.stderr)
'''


def both(*words: str, flags: Sequence[str] = (), env: dict[str, str] | None = None) -> tuple[str, str]:
    """Return the outputs of a program under python and under torchsan, once both ended with the same status."""
    environ = os.environ | (env or {})
    plain, ours = (
        subprocess.run(cmd, input="typed", capture_output=True, text=True, env=environ, timeout=60)
        for cmd in ([sys.executable, *flags, *words], command("run", "--out", "run", *words, flags=flags))
    )
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 4, ours.stderr
    assert ours.stderr.startswith(plain.stderr)
    return plain.stdout, ours.stdout


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    file = tmp_path / "scripts" / "probe.py"
    file.parent.mkdir()
    file.write_text(PROBE)
    return file


@pytest.mark.parametrize(
    "words",
    [
        ("scripts/probe.py",),
        ("./scripts/../scripts/probe.py", "--check", "x", "-m", "--", "-h", ""),
        ("link.py", "a b"),
    ],
)
def test_a_script(probe: Path, words: tuple[str, ...]) -> None:
    Path("link.py").symlink_to(probe)
    plain, ours = both(*words)
    assert ours == plain


@pytest.mark.parametrize("flags", [("-P",), ("-O", "-X", "dev"), ("-W", "ignore", "-b")])
def test_flags_of_the_interpreter(probe: Path, flags: tuple[str, ...]) -> None:
    plain, ours = both("scripts/probe.py", flags=flags)
    for name in ("orig_argv",):  # The flags come back in another spelling.
        plain, ours = (
            "\n".join(line for line in text.splitlines() if not line.startswith(name)) for text in (plain, ours)
        )
    assert ours == plain


def test_the_safe_path_variable(probe: Path) -> None:
    plain, ours = both("scripts/probe.py", env={"PYTHONSAFEPATH": "1"})
    assert [line for line in ours.splitlines() if "orig_argv" not in line] == [
        line for line in plain.splitlines() if "orig_argv" not in line
    ]


@pytest.mark.parametrize(
    "words", [("-m", "scripts.probe", "-m", "x"), ("-m", "scripts.package", "--check"), ("-m", "probe2")]
)
def test_a_module(probe: Path, words: tuple[str, ...]) -> None:
    package = probe.parent / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print('init', sys.argv, __name__)")
    (package / "__main__.py").write_text(PROBE)
    Path("probe2.py").write_text(PROBE)
    plain, ours = both(*words)
    assert ours == plain


def test_a_folder_and_a_zip(probe: Path) -> None:
    Path("app").mkdir()
    Path("app", "__main__.py").write_text(PROBE)
    with zipfile.ZipFile("app.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    for name in ("app", "app.zip"):
        plain, ours = both(name, "arg")
        assert ours == plain
        Path("run").rename(f"run-{name}")


MULTIPROCESSING = """
import multiprocessing, sys
class Point:
    def __init__(self, x): self.x = x
def double(p): return Point(p.x * 2)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, [p.x for p in pool.map(double, [Point(1), Point(2)])])
"""


@pytest.mark.parametrize("words", [("work.py",), ("-m", "work")])
def test_processes_of_the_program(words: tuple[str, ...]) -> None:
    Path("work.py").write_text(MULTIPROCESSING)
    plain, ours = both(*words)
    assert plain.count("[2, 4]") == 3
    assert ours == plain


FAILURES = {
    "raise": "def f():\n    raise KeyError('x')\ntry:\n    f()\nexcept KeyError as e:\n    raise ValueError from e\n",
    "hook": "import sys\ndef hook(k, v, tb):\n    print('HOOK', k, v, v.__traceback__ is tb, tb is not None)\n"
    "sys.excepthook = hook\n1 / 0\n",
    "syntax": "def f(:\n",
    "exit 7": "import sys\nsys.exit(7)\n",
    "exit text": "import sys\nsys.exit('bye')\n",
    "exit none": "raise SystemExit\n",
    "_exit": "import os\nprint('x', flush=True)\nos._exit(3)\n",
    "thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start()\nt.join()\nexit(5)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "segfault": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "abort": "import os\nos.abort()\n",
    "import": "import nonexistent_module\n",
    "later thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\n1/0\n",
}


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("how", ["script", "module"])
def test_how_it_fails(name: str, how: str) -> None:
    Path("fail.py").write_text(FAILURES[name])
    words = ["fail.py"] if how == "script" else ["-m", "fail"]
    plain = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    ours = subprocess.run(command("run", *words), capture_output=True, text=True)
    assert ours.stdout == plain.stdout
    expected = plain.stderr
    if how == "module":  # Python's own frames on the way to a module are no loss.
        expected = "\n".join(line for line in expected.split("\n") if "<frozen " not in line)
        if name == "syntax":
            expected = expected.removeprefix("Traceback (most recent call last):\n")
    assert ours.stderr.startswith(expected)
    status = plain.returncode if plain.returncode >= 0 else 128 - plain.returncode
    assert ours.returncode == (status or 4)
    assert "nothing was compiled" in ours.stderr


_LATE = """
import sys, threading, types
from torchsan.cli import program
sys.modules["torch._dynamo"] = types.SimpleNamespace(reset=lambda: print("waits for a thread that compiles"))
from torchsan.torch_internals.compiles import _forget_compiled

class Late:
    def close(self):
        thread = threading.Thread(target=lambda: 1 / 0, daemon=True)
        thread.start()
        thread.join()
        _forget_compiled()
        print("closed")

program._end(Late())
"""


def test_threads_that_outlive_the_program_are_neither_waited_for_nor_heard() -> None:
    done = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("closed\n", "")


_COMPILES_AT_THE_END = """
import threading, time, torch
function = torch.compile(lambda x: x.relu() + 1)
threading.Thread(target=lambda: function(torch.ones(8)), daemon=True).start()
time.sleep(0.2)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(5))
def test_a_program_may_end_while_a_thread_compiles(tmp_path: Path, turn: int) -> None:
    (tmp_path / "x.py").write_text(_COMPILES_AT_THE_END)
    done = subprocess.run(command("run", "x.py"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "done\n"), done.stderr
    assert "Traceback" not in done.stderr
