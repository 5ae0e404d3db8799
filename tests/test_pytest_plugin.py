from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Here, because a run inside this process forgets what it imported.
import torchsan.checks
import torchsan.pytest_run
import torchsan.watch
from tests.entry_points import write_entry_points
from torchsan.recording import Reader

CONFTEST = """
import contextlib
import pytest
import torchsan.watch
from tests.samples import finding, graph
from torchsan.records import Severity
from torchsan.session import active

current = []

@contextlib.contextmanager
def attach(writer, observers):
    current.append((writer, active().options))
    yield
    current.clear()

torchsan.watch.attach = attach

@pytest.fixture
def compiled():
    for writer, _ in current:
        writer.graph(graph())
        writer.skipped("buf7", "its node is random")

@pytest.fixture
def wrong():
    for writer, _ in current:
        writer.graph(graph())
        writer.finding(finding())

@pytest.fixture
def suspicious():
    for writer, _ in current:
        writer.finding(finding(Severity.WARNING))

@pytest.fixture
def options():
    return current[0][1] if current else None
"""
"""Stands in for the instruments: a test that takes `wrong` has a finding, and nobody waits for a compiler."""

Project = pytest.Pytester


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of a user who has torchsan installed."""
    installed = pytester.path / "installed"
    write_entry_points(installed)
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{root}:{root / 'src'}")
    monkeypatch.delenv("TORCHSAN_OPTIONS", raising=False)
    monkeypatch.setattr(torchsan.watch, "attach", torchsan.watch.attach)  # The conftest replaces it.
    pytester.makeconftest(CONFTEST)
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\naddopts = '--strict-markers -p no:hypothesispytest'\n")
    return pytester


def kept(project: Project) -> list[Path]:
    return sorted(p.parent for p in project.path.glob("**/manifest.json"))


def test_a_finding_fails_the_test_with_itself_as_the_report(project: Project) -> None:
    project.makepyfile("def test_right(compiled): pass\ndef test_wrong(wrong): pass\ndef test_python(): pass\n")
    result = project.runpytest_inprocess("--torchsan")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_wrong _*",
            "torchsan: 1 finding in this test: wrong-values",
            "F1: error: wrong-values",
            "    at model.py:12 in layers.0",
            "recording: torchsan-runs/pytest-*test_wrong",
            "*= torchsan =*",
            "3 tests checked: 2 graphs, 4 kernels, 0 operators; findings: 1 error",
            "1 test compiled nothing",
            "not checked: its node is random",
            "*::test_wrong: F1: error: wrong-values",
            "  recording: torchsan-runs/pytest-*test_wrong",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    (folder,) = kept(project)
    recording = Reader(folder)
    assert [f.kind.value for f in recording.findings()] == ["wrong-values"]
    assert recording.closed


def test_a_finding_is_not_followed_by_what_pytorch_logged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch also prints what it logs, where stderr was when it was imported; here that may be the inner test's.
    monkeypatch.setattr(logging.getLogger("torch"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("torch._dynamo"), "handlers", [])
    project.makepyfile(
        """
        import logging

        def test_wrong(wrong):
            logging.getLogger("torch._dynamo").warning("tracing\\nline after line")
            logging.getLogger("mine").warning("my own")

        def test_fails_by_itself():
            logging.getLogger("torch._dynamo").warning("shown")
            assert False
        """
    )
    result = project.runpytest_inprocess("--torchsan")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*Captured log call*", "WARNING  mine:*my own", "WARNING  torch._dynamo:* shown"])
    assert "line after line" not in result.stdout.str()
    assert "tracing" not in result.stdout.str()


def test_a_page_that_cannot_be_written_is_said_before_the_tests(project: Project) -> None:
    project.makepyfile("def test_it(): pass")
    result = project.runpytest_inprocess("--torchsan", "--torchsan-report", "missing/page.html")
    result.stderr.fnmatch_lines(["ERROR: cannot write --torchsan-report missing/page.html*"])


def test_a_recording_that_cannot_be_written_is_one_error_that_says_so(project: Project) -> None:
    project.makepyfile("def test_it(): pass")
    (project.path / "torchsan-runs").write_text("mine")
    result = project.runpytest("--torchsan")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["torchsan: cannot write a recording to *choose another folder with --out*"])


def test_without_the_flag_only_what_is_marked_or_takes_the_fixture_is_checked(project: Project) -> None:
    project.makepyfile(
        """
        import pytest

        def test_unasked(wrong): pass

        @pytest.mark.torchsan(check=["memory"], calls=5, no_guards=True)
        def test_marked(wrong, options):
            assert (options.check, options.calls, options.no_guards) == (("memory",), 5, True)

        @pytest.mark.torchsan("values", "stages")
        def test_checks_by_position(compiled, options):
            assert options.check == ("values", "stages")

        def test_fixture(torchsan_session, wrong):
            assert [f.id for f in torchsan_session.findings] == ["F1"]
            assert torchsan_session.path.exists()
        """
    )
    result = project.runpytest_inprocess()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["3 tests checked: *findings: 2 errors"])
    assert len(kept(project)) == 2


def test_a_test_that_compiles_nothing_fails_only_if_it_is_marked(project: Project) -> None:
    project.makepyfile(
        """
        import pytest

        def test_plain(): pass

        @pytest.mark.torchsan
        def test_marked(): pass

        @pytest.mark.torchsan(check="metadata")
        def test_of_operators():
            from conftest import current
            current[0][0].ops_checked(["aten.relu.default"])
        """
    )
    result = project.runpytest_inprocess("--torchsan")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["torchsan: nothing was compiled by Inductor in this test*"])
    assert not (project.path / "torchsan-runs").exists()


def test_a_test_that_fails_by_itself_shows_the_findings_beside(project: Project) -> None:
    project.makepyfile(
        """
        import pytest

        def test_own(wrong): assert 1 == 2

        @pytest.fixture
        def broken(wrong): raise ValueError("broken fixture")

        def test_setup(broken): pass

        def test_skipped(wrong): pytest.skip("not here")

        @pytest.mark.xfail(strict=True)
        def test_expected(wrong): pass
        """
    )
    result = project.runpytest_inprocess("--torchsan")
    result.assert_outcomes(failed=1, errors=1, skipped=1, xfailed=1)
    text = result.stdout.str()
    assert "assert 1 == 2" in text
    assert "broken fixture" in text
    assert text.count("F1: error: wrong-values\n    the kernel computes") == 2
    assert "4 tests checked" in text


def test_warnings_do_not_fail_a_test_but_are_kept_and_counted(project: Project) -> None:
    project.makepyfile("def test_it(compiled, suspicious): pass")
    result = project.runpytest_inprocess("--torchsan")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 test checked: *findings: 1 warning", "*test_it: F1: warning: wrong-values"])
    assert len(kept(project)) == 1


def test_a_path_after_the_flag_is_a_path(project: Project) -> None:
    tests = project.mkdir("checks")
    (tests / "test_a.py").write_text("def test_it(wrong): pass")
    (tests / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--own')")
    project.makepyfile("def test_elsewhere(): pass")
    result = project.runpytest_inprocess("--torchsan", "checks", "--own", "x")
    result.assert_outcomes(failed=1)


def test_options_come_from_the_flag_the_variable_and_pyproject(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyprojecttoml('[tool.torchsan]\ncheck = ["memory"]\ncalls = 7\nwatch = "names"\nout = "mine"\n')
    monkeypatch.setenv("TORCHSAN_OPTIONS", "calls=8")
    project.makepyfile(
        """
        import pytest

        @pytest.mark.torchsan(kernels="a*")
        def test_it(compiled, options):
            assert (options.check, options.calls, options.kernels) == (("stages",), 8, ("a*",))
        """
    )
    result = project.runpytest_inprocess("--torchsan=stages")
    result.assert_outcomes(passed=1)
    (folder,) = kept(project)  # A watched test's recording is kept: there are values in it.
    assert folder.relative_to(project.path).parts[0] == "mine"


@pytest.mark.parametrize(
    ("flag", "source", "said"),
    [
        ("--torchsan=value", "def test_it(): pass", "*did you mean 'values'*"),
        (
            "-q",
            "import pytest\n@pytest.mark.torchsan(chek='x')\ndef test_it(): pass",
            "*has no 'chek'; it takes check*",
        ),
    ],
)
def test_a_wrong_option_is_said(project: Project, flag: str, source: str, said: str) -> None:
    project.makepyfile(source)
    result = project.runpytest_inprocess(flag)
    assert result.ret != 0
    (result.stderr if flag != "-q" else result.stdout).fnmatch_lines([said])


def test_recordings_of_tests_are_local(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSAN_OPTIONS", "out=s3://bucket/run")
    project.makepyfile("def test_it(): pass")
    result = project.runpytest_inprocess("--torchsan")
    result.stderr.fnmatch_lines(["*tests record to a local folder, not to s3://bucket/run*"])


def test_workers_of_xdist_record_into_one_run_and_the_summary_counts_them_all(project: Project) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(4))
        def test_it(n, compiled, request):
            if n % 2:
                request.getfixturevalue("wrong")
        """
    )
    result = project.runpytest_subprocess("--torchsan", "-n", "2", "--torchsan-report", "page.html")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["4 tests checked: *findings: 2 errors", "*test_it?1?: F1: error: wrong-values"])
    result.stdout.fnmatch_lines(["torchsan: wrote page.html"])
    page = (project.path / "page.html").read_text()
    assert page.count("the kernel computes other values than eager") == 2
    assert all(f"test_it[{n}]" in page.replace("<wbr>", "") for n in range(4))
    folders = kept(project)
    assert len(folders) == 2
    assert len({folder.parent for folder in folders}) == 1


def test_a_plugin_that_is_off_imports_nothing_and_one_that_is_on_no_torch_of_its_own(project: Project) -> None:
    project.makeconftest(
        """
        import json, sys

        def pytest_sessionfinish():
            ours = sorted(m for m in sys.modules if m.split(".")[0] in ("torch", "torchsan", "numpy", "sqlite3"))
            print("\\nLOADED", json.dumps(ours))
        """
    )
    project.makepyfile("def test_it(): pass")

    def loaded(*flags: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-s", "-p", "no:hypothesispytest", *flags],
            capture_output=True,
            text=True,
            check=True,
        )
        names: list[str] = json.loads(re.findall(r"LOADED (.*)", done.stdout)[0])
        return names

    expected = ["torchsan", "torchsan._version", "torchsan.errors", "torchsan.pytest_plugin", "torchsan.session"]
    assert loaded() == expected
    assert "torchsan.checks" in (on := loaded("--torchsan"))
    assert "torch" not in on


def test_the_fixture_for_kernels_fails_a_test_with_the_finding(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch

        @pytest.mark.torchsan_kernel(seeds=4, time=20)
        def test_right(torchsan_kernel):
            assert torchsan_kernel(lambda x: x.clamp(min=0), torch.relu, (torch.randn(3, 4),))

        def test_wrong(torchsan_kernel):
            torchsan_kernel(torch.abs, torch.relu, (torch.randn(3, 4),))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*error: wrong-values*"])
