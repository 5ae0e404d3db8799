from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from tests.cli.conftest import Run, command
from torchsan import __version__
from torchsan.recording import Program, Reader
from torchsan.report.json_report import report_schema


def script(text: str, name: str = "script.py") -> str:
    Path(name).write_text(text)
    return name


def the_run() -> Reader:
    (folder,) = Path("torchsan-runs").iterdir()
    return Reader(folder)


def test_a_program_that_compiles_nothing_is_incomplete(cli: Run) -> None:
    done = cli("run", script("print('hi')"))
    assert done.returncode == 4
    assert done.stdout == "hi\n"
    assert "nothing was compiled" in done.stderr
    assert the_run().program == Program(exit=0)
    assert the_run().closed
    again = cli("report", str(the_run().path))
    assert again.returncode == 4
    assert "nothing was compiled" in again.stdout


def test_the_json_is_what_the_schema_says(cli: Run) -> None:
    cli("run", "--json", "r.json", script("raise SystemExit(7)"), "a")
    report = json.loads(Path("r.json").read_text())
    jsonschema.validate(report, report_schema())
    assert report["command"] == ["script.py", "a"]
    assert report["status"] == "incomplete"
    assert report["program"] == {"exit": 7, "signal": None}
    assert sorted(p.name for p in Path().iterdir()) == ["r.json", "script.py", "torchsan-runs"]


def test_a_report_does_not_overwrite_the_program_nor_what_it_reports_on(cli: Run) -> None:
    text = "raise SystemExit(7)"
    Path("package").mkdir()
    for program, target in ((script(text), "./script.py"), ("package", script(text, "package/__main__.py"))):
        done = cli("run", "--out", "run", "--json", target, program)
        assert done.returncode == 2
        assert "would overwrite what it reports on; choose another file [bad-target]" in done.stderr
        assert Path(target).read_text() == text
        assert not Path("run").exists()
    assert cli("run", "--out", "run", script(text)).returncode == 7
    before = Path("run/manifest.json").read_bytes()
    assert cli("report", "--json", "run/manifest.json", "run").returncode == 2
    assert cli("diff", "--json", "run/manifest.json", "run", "run").returncode == 2
    assert Path("run/manifest.json").read_bytes() == before
    for part in ("-wal", "-shm", "-journal"):  # Of a killed run they hold the last events.
        Path(f"run/events.sqlite{part}").write_bytes(b"")
        assert cli("report", "--json", f"run/events.sqlite{part}", "run").returncode == 2
        Path(f"run/events.sqlite{part}").unlink()
    for _ in range(2):  # Beside what torchsan writes, also over itself.
        assert cli("report", "--json", "run/report.json", "run").returncode == 7


def test_two_reports_do_not_go_into_one_file(cli: Run) -> None:
    done = cli("run", "--json", "r", "--html", "./r", script("print('mine')"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--json and --html both write ./r" in done.stderr or "--html and --json both write" in done.stderr


def test_json_can_go_to_stdout_after_the_program(cli: Run) -> None:
    done = cli("run", "--json", "-", "-m", "mod", cwd=Path(script("print('mine')", "mod.py")).parent)
    mine, _, text = done.stdout.partition("\n")
    assert mine == "mine"
    assert json.loads(text)["command"] == ["-m", "mod"]


def test_why_a_session_could_not_start_is_said(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "site" / "torch-1.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]]))
    done = cli("run", script("print('mine')"))
    assert done.returncode == 3
    assert done.stdout == ""
    assert "PyTorch 1.0 is too old for torchsan" in done.stderr
    assert "[torch-too-old]" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "no program"),
        (["run", "-m"], "-m needs"),
        (["run", "missing.py"], "no such script: missing.py"),
        (["run", "-m", "no_such_module"], "No module named no_such_module"),
        (["run", "-m", "json.nothing"], "No module named json.nothing"),
        (["run", "-m", "no.such"], "No module named 'no'"),
        (["run", "-m", "email"], "'email' is a package and cannot be directly executed"),
        (["run", "."], "can't find '__main__' module"),
        (["run", "--check", "value", "ok.py"], "did you mean 'values'"),
        (["run", "--chek", "values", "ok.py"], "did you mean --check"),
        (["run", "--out", "ok.py", "ok.py"], "is a file"),
        (["run", "--out", "/proc/nothing/here", "ok.py"], "cannot write a recording"),
        (["run", "--json", "no/such/folder.json", "ok.py"], "cannot write --json"),
        (["run", "--html", "missing/x.html", "ok.py"], "cannot write --html"),
        (["report", "ok.py"], "no recording at"),
        (["report", "missing"], "no recording at"),
        (["report"], "required: RECORDING"),
        (["nonsense"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_input_has_status_2_and_a_reason(cli: Run, words: list[str], message: str) -> None:
    script("print('ran')", "ok.py")
    done = cli(*words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("torchsan: error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert os.listdir() == ["ok.py"]


def test_bad_options_elsewhere_name_their_place(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSAN_OPTIONS", "watch=loud")
    assert "in TORCHSAN_OPTIONS" in cli("run", script("")).stderr
    monkeypatch.delenv("TORCHSAN_OPTIONS")
    Path("pyproject.toml").write_text("[tool.torchsan]\ncheck = 'valeus'")
    done = cli("run", "script.py")
    assert done.returncode == 2
    assert "pyproject.toml" in done.stderr


def test_a_package_that_fails_on_the_way_to_its_module_is_the_programs_failure(cli: Run) -> None:
    Path("pkg").mkdir()
    script("import nothing_like_this", "pkg/__init__.py")
    done = cli("run", "-m", "pkg.mod")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'nothing_like_this'" in done.stderr


def test_quiet_says_the_verdict_only(cli: Run) -> None:
    done = cli("run", "--quiet", script(""))
    assert [line for line in done.stderr.splitlines() if line] == [
        "torchsan: incomplete: 0 kernels in 0 graphs",
        "  nothing was compiled by Inductor, so nothing was observed",
    ]


def test_a_missing_compiler_is_said(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "needs a C++ compiler" in cli("run", script("")).stderr


COMPILING_THEN = """
import os, sys, torch
@torch.library.custom_op("mine::die_of_many", mutates_args=())
def die_of_many(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        os.kill(os.getpid(), 11)
    return x.clone()
die_of_many.register_fake(torch.empty_like)
@torch.compile
def f(x):
    y = torch.relu(x + 1) * 2
    return die_of_many(y) + 1
print(f(torch.zeros(8)).sum().item(), flush=True)
if sys.argv[1] == "crash":
    f(torch.full((8,), 100.0))
raise SystemExit("failed after all")
"""


@pytest.mark.parametrize(("how", "status"), [("crash", 139), ("exit", 1)])
def test_what_was_compiled_before_the_end_is_reported(cli: Run, how: str, status: int) -> None:
    # Other checks run the operator by themselves, and die of it there.
    done = cli("run", "--check", "memory", "--json", "r.json", script(COMPILING_THEN), how)
    assert done.stdout == "24.0\n"
    assert done.returncode == status, done.stderr
    assert "script.py:11" in done.stderr
    assert "y = torch.relu(x + 1) * 2" in done.stderr
    report = json.loads(Path("r.json").read_text())
    jsonschema.validate(report, report_schema())
    assert report["coverage"]["kernels"] >= 1
    assert report["findings"] == []
    assert report["status"] == "incomplete"
    died_in = [(x["kernel"], x["call"], x["checking"], x["source"][0]["line"]) for x in report["in_flight"]]
    assert died_in == ([("torch.ops.mine.die_of_many.default", 1, False, 12)] if how == "crash" else [])
    assert ("it was running torch.ops.mine.die_of_many.default" in done.stderr) == (how == "crash")


def test_leaving_by_os_exit_is_not_clean(cli: Run) -> None:
    done = cli("run", script("import os; os._exit(0)"))
    assert done.returncode == 4
    assert "os._exit" in done.stderr


def test_a_closed_stderr_does_not_cost_the_report_for_programs() -> None:
    name = script("raise SystemExit(7)")
    words = " ".join(command("run", "--json", "r.json", name))
    done = subprocess.run(["sh", "-c", f"({words}; echo $? > status) 2>&1 >&- | true; sleep 1"])
    assert done.returncode == 0
    while not Path("status").read_text():
        time.sleep(0.1)
    assert Path("status").read_text() == "7\n"
    assert json.loads(Path("r.json").read_text())["program"]["exit"] == 7


def test_a_child_that_fails_before_the_program_is_torchsans_failure(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}{os.pathsep}{os.environ['PYTHONPATH']}")
    script("import os, sys\nif any('_child' in w for w in sys.orig_argv): os._exit(5)", "sitecustomize.py")
    done = cli("run", script("print('ran')"))
    assert done.returncode == 3
    assert "not started" in done.stderr


def test_an_error_that_quotes_a_recording_cannot_control_the_terminal(cli: Run) -> None:
    Path("run").mkdir()
    Path("run", "manifest.json").write_text(json.dumps({"schema": 99, "torchsan": "\x1b[2J"}))
    done = cli("report", "run")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "upgrade torchsan" in done.stderr


def test_the_program_may_remove_the_recording(cli: Run) -> None:
    done = cli("run", script("import shutil; shutil.rmtree('torchsan-runs')"))
    assert done.returncode == 4  # It is nothing that torchsan could help.
    assert "torchsan: incomplete: the run could not be recorded: no recording at" in done.stderr


FORKING = """
import os, sys
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    sys.exit(0)  # Runs the exit handlers in the child, ours too.
os.waitpid(pid, 0)
"""


def test_a_forked_child_that_exits_reports_nothing(cli: Run) -> None:
    done = cli("run", script(FORKING))
    assert done.stderr.count("nothing was compiled") == 1
    assert the_run().closed


WAITING = """
import os, sys, time
try:
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {then}
"""


def start(then: str, **kwargs: object) -> tuple[subprocess.Popen[str], int]:
    process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]  # keywords as they come
        command("run", script(WAITING.format(then=then))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().split()[1])


def test_ctrl_c_sent_to_torchsan_reaches_the_program() -> None:
    process, _ = start("raise")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == "interrupted\n"
    assert "KeyboardInterrupt" in err
    assert "died of SIGINT" in err
    assert process.returncode == 130


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_are_passed_on_and_reported(name: str) -> None:
    number = signal.Signals[name]
    process, _ = start("raise")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert f"died of {name}" in err
    assert process.returncode == 128 + number


def test_a_killed_program_is_reported() -> None:
    process, child = start("raise")
    os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert "died of SIGKILL" in err
    assert process.returncode == 137
    assert the_run().program == Program(signal=9)


def test_a_killed_torchsan_leaves_a_recording(cli: Run) -> None:
    process, child = start("raise")
    process.kill()
    process.wait()
    assert the_run().program == Program()
    os.kill(child, signal.SIGKILL)
    process.communicate()
    done = cli("report", str(the_run().path))
    assert done.returncode == 4
    assert "killed, or is still going on" in done.stdout


def in_terminal(words: list[str], keys: bytes = b"", when: bytes = b"ready") -> tuple[str, int]:
    """Run a command in a terminal of its own, press keys when it says so, and return what was on the screen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    screen = b""
    deadline = time.monotonic() + 100  # It ends by itself; a busy machine takes long to start it.
    while time.monotonic() < deadline:
        try:
            got = os.read(terminal, 4096)
        except OSError:
            break
        if not got:
            break
        screen += got
        if keys and when in screen:
            os.write(terminal, keys[:1])
            keys = keys[1:]
            when = b"interrupted\r\n"
    os.close(terminal)
    return screen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_ctrl_c_in_a_terminal_arrives_once_and_twice_does_not_lose_the_report() -> None:
    name = script(WAITING.format(then="time.sleep(60)"))
    screen, status = in_terminal(command("run", name), keys=b"\x03\x03")
    assert screen.count("interrupted\r\n") == 1
    assert "died of SIGINT" in screen
    assert "recording:" in screen
    assert status == 130


COMPILING = """
import sys, time
from pathlib import Path
from torchsan.recording import Writer
from tests.samples import graph
writer = Writer(next(Path("torchsan-runs").iterdir()).absolute())
writer.graph(graph())
time.sleep(1.5)
print("program's own line")
"""


FINDING = """
import atexit, sys, time
from torchsan import session
from torchsan.records import Severity
from tests.samples import finding, graph
atexit.register(print, "at exit")
writer = session.__globals__["_active"]._recorder
writer.graph(graph())
print("before")
writer.finding(finding(Severity.WARNING))
print("between")
writer.finding(finding())
time.sleep(float(sys.argv[1]))
print("after")
"""


@pytest.mark.parametrize("flags", [(), ("--fail-fast",)])
def test_findings_set_the_status_and_can_end_the_program(
    cli: Run, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}")
    done = cli("run", *flags, "--json", "r.json", script(FINDING), "0")
    assert done.returncode == 1, done.stderr
    assert done.stdout == "before\nbetween\n" + ("" if flags else "after\nat exit\n")
    assert "F2: error: wrong-values" in done.stderr
    assert ("--fail-fast" in done.stderr) == bool(flags)
    report = json.loads(Path("r.json").read_text())
    assert report["status"] == "findings"
    assert [f["id"] for f in report["findings"]] == ["F1", "F2"]
    assert cli("report", str(the_run().path)).returncode == 1


def test_a_finding_is_shown_when_it_is_made_and_not_twice(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}")
    words = command("run", "--quiet", script(FINDING), "4")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        early = ""
        while "F2: error: wrong-values\n" not in early:
            line = program.stderr.readline()
            assert line, early
            early += line
        assert program.poll() is None
        rest = program.stderr.read()
    assert program.returncode == 1
    _, _, end = rest.partition("Shown above, when they were found:\n")
    assert end.startswith("F1: warning: wrong-values: the kernel computes other values than eager  (model.py:12)\nF2: ")
    assert "x = self.act(x)" not in end


def test_progress_and_colour_on_a_terminal_only(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}")
    name = script(COMPILING)
    screen, status = in_terminal(command("run", name))
    assert "torchsan: compiled 1 graph, 2 kernels so far\r\n" in screen
    assert "program's own line\r\n" in screen
    assert "\x1b[" in screen
    assert status == 4  # A graph is in the log, and nobody has called it.
    script("", "other.py")
    assert "\x1b[" not in cli("run", "other.py").stderr


def test_help_and_version(cli: Run) -> None:
    assert cli("--version").stdout == f"torchsan {__version__}\n"
    text = cli("--help").stdout
    assert "exit status" in text
    assert "examples:" in text
    for name in ("run", "report", "doctor"):
        done = cli(name, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith("usage: torchsan")


def test_a_reader_that_goes_away_is_no_failure_of_ours(cli: Run) -> None:
    cli("run", script(""))
    shell = f"{sys.executable} -m torchsan report --all {the_run().path} | true"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_parent_imports_no_torch_before_the_program_runs() -> None:
    code = "import sys, torchsan.cli.main; assert not {'torch', 'rich', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
