"""pytest with torchsan: `pytest --torchsan[=LIST]`, `@pytest.mark.torchsan(check=…)`, the fixture `torchsan_session`.

Loaded in every pytest run of an environment that has torchsan, so nothing is imported before a test asks for it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torchsan.kernel_report import KernelReport
    from torchsan.pytest_run import CheckedTest
    from torchsan.session import Session

FLAG, MARKER, FIXTURE = "--torchsan", "torchsan", "torchsan_session"
REPORT = "--torchsan-report"
_HELP = (
    "check what torch.compile makes in every test; LIST is any of values,stages,metadata,memory,cache,kernels, "
    "default all but kernels"
)
_MARKER_HELP = (
    "torchsan(check=…, **options): check what torch.compile makes in this test, and fail it if nothing is compiled. "
    "The options are those of torchsan.session()."
)
KERNEL_MARKER, KERNEL_FIXTURE = "torchsan_kernel", "torchsan_kernel"
_KERNEL_MARKER_HELP = (
    "torchsan_kernel(**options): options of torchsan.check_kernel(), such as seeds and time, for the kernels that this "
    "test referees with the fixture torchsan_kernel."
)
_CHECKED: pytest.StashKey[CheckedTest] = pytest.StashKey()
_RUN_NAME = pytest.StashKey[str]()
_WORKER_INPUT = "torchsan_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    group = parser.getgroup("torchsan", "torchsan, the sanitizer for compiled PyTorch")
    group.addoption(FLAG, nargs="?", const="", default=None, metavar="LIST", help=_HELP)
    group.addoption(REPORT, default=None, metavar="FILE", help="write a web page about all tests that were checked")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """In `--torchsan tests/` the folder is no list of checks: a list is given with `=`."""
    if FLAG in args:
        early = early_config.known_args_namespace
        if early.torchsan:
            early.file_or_dir.append(early.torchsan)
        args[:] = [f"{arg}=" if arg == FLAG else arg for arg in args]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and name this run: xdist's workers have the name of the process that started them."""
    config.addinivalue_line("markers", _MARKER_HELP)
    config.addinivalue_line("markers", _KERNEL_MARKER_HELP)
    name = f"pytest-{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}"
    config.stash[_RUN_NAME] = getattr(config, "workerinput", {}).get(_WORKER_INPUT, name)
    if config.getoption(FLAG) is not None or config.getoption(REPORT) is not None:
        from torchsan.pytest_run import PageExporter, resolve

        resolve(config, None)  # A wrong option is said now, not by every test.
        if config.getoption(REPORT) is not None:
            PageExporter().require(config.getoption(REPORT))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist which run it belongs to."""
    node.workerinput[_WORKER_INPUT] = node.config.stash[_RUN_NAME]


def _asked(item: pytest.Item) -> bool:
    return (
        item.config.getoption(FLAG) is not None
        or item.get_closest_marker(MARKER) is not None
        or FIXTURE in getattr(item, "fixturenames", ())
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Open the test's session before its fixtures are made, since they may compile."""
    if not _asked(item):
        return (yield)
    from torchsan.errors import TorchsanError
    from torchsan.pytest_run import CheckedTest

    checked = item.stash[_CHECKED] = CheckedTest(item, item.config.stash[_RUN_NAME], item.get_closest_marker(MARKER))
    try:
        checked.open()
    except TorchsanError as e:  # Such as a folder that cannot be written to.
        yield  # The setup of other plugins: their teardown relies on it.
        pytest.fail(f"torchsan: {e}", pytrace=False)
    try:
        return (yield)
    except BaseException:
        checked.failed("setup")
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test, close its session, and fail it for what was found; one that fails anyway shows that beside."""
    checked = item.stash.get(_CHECKED, None)
    if checked is None:
        return (yield)
    try:
        result = yield
    except BaseException:
        checked.failed("call")
        raise
    reason = checked.judge()
    if reason is not None:
        pytest.fail(reason, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the figures into the report that ends the test; plain values, which xdist carries to the summary."""
    report = yield
    checked = item.stash.get(_CHECKED, None)
    if checked is not None and checked.figures is not None:
        report.torchsan, checked.figures = checked.figures, None  # type: ignore[attr-defined]  # reports take extras
        if checked.to_blame:
            from torchsan.pytest_run import without_logs_of_torch

            # The finding says it all; what the compiler logged on the way would be pages below it.
            report.sections = [(name, text) for name, text in map(without_logs_of_torch, report.sections) if text]
    return report


@pytest.fixture
def torchsan_session(request: pytest.FixtureRequest) -> Session:
    """The session that watches this test: its `findings` and `coverage` so far, and the `path` of its recording.

    It is opened before the other fixtures are made and closed after the test function, which it fails for findings
    of severity `error`.
    """
    return request.node.stash[_CHECKED].session  # type: ignore[no-any-return]  # a node's stash is untyped


@pytest.fixture
def torchsan_kernel(request: pytest.FixtureRequest) -> Callable[..., KernelReport]:
    """Referees a kernel, as `torchsan.check_kernel(kernel, reference, inputs)` does, and fails the test if it is wrong.

    `@pytest.mark.torchsan_kernel(seeds=…, time=…)` gives its options.
    """
    marker = request.node.get_closest_marker(KERNEL_MARKER)
    options = dict(marker.kwargs) if marker is not None else {}

    def referee(kernel: Any, reference: Any, inputs: Any, **others: Any) -> KernelReport:
        from torchsan.kernel_report import check_kernel

        report = check_kernel(kernel, reference, inputs, **{**options, **others})
        if not report:
            from torchsan.report.findings import render_findings

            pytest.fail(f"{report.kernel}: {report.status}\n{render_findings(report.findings)}", pytrace=False)
        return report

    return referee


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was checked, and where the recordings are."""
    reports = [r for many in terminalreporter.stats.values() for r in many if hasattr(r, "torchsan")]
    if reports:
        from torchsan.pytest_run import summary_lines

        terminalreporter.section("torchsan")
        for line in summary_lines({r.nodeid: r.torchsan for r in reports}):
            terminalreporter.line(line)
    file = terminalreporter.config.getoption(REPORT)
    if file is not None:
        from torchsan.pytest_run import PageExporter

        PageExporter().put(PageExporter().render({r.nodeid: r.torchsan for r in reports}), file)
        terminalreporter.line(f"torchsan: wrote {file}")
