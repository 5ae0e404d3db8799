"""What is watched, on a program that needs no compiler."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.watch.made_up import SOURCE, entry, program
from torchsan.cli.values import watched_values
from torchsan.options import Options, Watch, When
from torchsan.recording import Reader, Writer
from torchsan.records import Watched
from torchsan.records.tensor import value_key
from torchsan.watch.values import Watcher

Seen = tuple[str, str, str]

INPUTS: list[Seen] = [("(inputs)", "before", "arg0_1"), ("(inputs)", "before", "arg1_1")]
MM_BEFORE: list[Seen] = [("extern_kernels.mm", "before", "arg0_1")]
MM_AFTER: list[Seen] = [("extern_kernels.mm", "after", "buf0")]
# The output is not there before the launch: it is not written yet.
RELU_BEFORE: list[Seen] = [("cpp_fused_relu_0", "before", "buf0"), ("cpp_fused_relu_0", "before", "2 * s77")]
RELU_AFTER: list[Seen] = [("cpp_fused_relu_0", "after", "buf1")]
OUTPUTS: list[Seen] = [("(outputs)", "after", "output0")]

TABLE: dict[tuple[str, str], list[Seen]] = {
    ("", "before"): [*INPUTS, *MM_BEFORE, *RELU_BEFORE],
    ("", "after"): [*MM_AFTER, *RELU_AFTER, *OUTPUTS],
    ("", "both"): [*INPUTS, *MM_BEFORE, *MM_AFTER, *RELU_BEFORE, *RELU_AFTER, *OUTPUTS],
    ("cpp_*", "before"): RELU_BEFORE,
    ("cpp_*", "after"): RELU_AFTER,
    ("cpp_*", "both"): [*RELU_BEFORE, *RELU_AFTER],
    ("!cpp_*", "before"): [*INPUTS, *MM_BEFORE],
    ("!cpp_*", "after"): [*MM_AFTER, *OUTPUTS],
    ("!cpp_*", "both"): [*INPUTS, *MM_BEFORE, *MM_AFTER, *OUTPUTS],
    ("*,!extern_*,!(*", "both"): [*RELU_BEFORE, *RELU_AFTER],
    ("(inputs)", "both"): INPUTS,
    ("nothing", "both"): [],
}


def watch(folder: Path, source: str = SOURCE, calls: int = 1, **options: Any) -> tuple[list[Watched], Writer]:
    """Run the made-up program, watched; return what was seen."""
    writer = Writer.create(folder / "run", command=["x"])
    watcher = Watcher(writer, Options(**options))
    made_up = program(source)
    watcher.compiled(made_up)
    failures: list[tuple[str, str]] = []
    run = entry(made_up, [watcher], failures)
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    for _ in range(calls):
        (result,) = run([x, 5])
        assert torch.equal(result, (x @ x).relu())
    assert not failures
    watcher.close()
    writer.close()
    reader = Reader(folder / "run")
    return (watched_values(reader) if reader.events("watched") else []), writer


@pytest.mark.parametrize("level", ["print", "save"])
@pytest.mark.parametrize(("kernels", "when"), list(TABLE))
def test_level_kernels_and_when_do_not_depend_on_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], level: str, kernels: str, when: str
) -> None:
    globs = tuple(filter(None, kernels.split(",")))
    seen, _ = watch(tmp_path, watch=Watch(level), kernels=globs, when=When(when))
    assert [(w.kernel, w.phase, w.name) for w in seen] == TABLE[kernels, when]
    assert [w.stored is not None for w in seen] == [level == "save" and w.summary is not None for w in seen]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == (len(seen) if level == "print" else 0)


@pytest.mark.parametrize(("kernels", "when"), list(TABLE))
def test_names_are_one_line_a_launch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kernels: str, when: str
) -> None:
    globs = tuple(filter(None, kernels.split(",")))
    seen, _ = watch(tmp_path, watch=Watch.NAMES, kernels=globs, when=When(when))
    phase = "after" if when == "after" else "before"
    launched = dict.fromkeys(kernel for kernel, _, _ in TABLE[kernels, when] if not kernel.startswith("("))
    assert [(w.kernel, w.phase) for w in seen] == [(kernel, phase) for kernel in launched]
    assert [line.split()[-1] for line in capfd.readouterr().err.splitlines()] == list(launched)


def test_numbers_and_sizes_are_values(tmp_path: Path) -> None:
    seen, _ = watch(tmp_path, watch=Watch.PRINT)
    assert {w.name: w.value for w in seen if w.summary is None} == {"arg1_1": 5, "2 * s77": 10}


def test_calls_and_launches_are_counted(tmp_path: Path) -> None:
    seen, _ = watch(tmp_path, calls=3, watch=Watch.NAMES)
    assert [(w.call, w.launch, w.site) for w in seen] == [(c, n, n) for c in range(3) for n in range(2)]


def test_no_two_saved_values_share_a_name(tmp_path: Path) -> None:
    seen, _ = watch(tmp_path, calls=2, watch=Watch.SAVE)
    keys = [value_key(w) for w in seen if w.stored is not None]
    assert len(keys) == len(set(keys)) == 2 * 6


def test_a_launch_in_a_loop_is_seen_each_time(tmp_path: Path) -> None:
    loop = SOURCE.replace("    cpp_fused_relu_0(", "    for _ in range(3):\n        cpp_fused_relu_0(")
    seen, _ = watch(tmp_path, loop, watch=Watch.NAMES)
    assert [(w.launch, w.site) for w in seen] == [(0, 0), (1, 1), (2, 1), (3, 1)]


def test_what_is_not_understood_runs_as_it_is(tmp_path: Path) -> None:
    strange = SOURCE.replace("    del buf0", "    for x in [buf0]: print(end='')\n    lambda: buf0\n    del buf0")
    assert [s.text for s in program(strange).model.opaque()] == ["print(end='')", "lambda: buf0"]
    seen, _ = watch(tmp_path, strange, watch=Watch.NAMES)
    assert len(seen) == 2


def test_threads_have_calls_of_their_own(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["x"])
    watcher = Watcher(writer, Options(watch=Watch.SAVE))
    made_up = program()
    watcher.compiled(made_up)
    run = entry(made_up, [watcher], [])
    inputs = [torch.full((2, 2), float(i)) for i in range(4)]
    threads = [threading.Thread(target=lambda x=x: [run([x, 5]) for _ in range(5)]) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watcher.close()
    writer.close()
    seen = watched_values(Reader(tmp_path / "run"))
    assert {(w.call, w.launch) for w in seen if w.launch is not None} == set(itertools.product(range(20), range(2)))
    keys = [value_key(w) for w in seen if w.stored is not None]
    assert len(keys) == len(set(keys)) == 20 * 6
    # Within a call everything belongs to one input.
    for call in range(20):
        (given,) = [w.summary for w in seen if w.call == call and w.kernel == "(inputs)" and w.summary]
        (made,) = [w.summary for w in seen if w.call == call and w.kernel == "(outputs)" and w.summary]
        assert given.maximum is not None
        assert made.maximum == 2 * given.maximum**2


def test_a_watch_that_fails_never_stops_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer.create(tmp_path / "run", command=["x"])
    watcher = Watcher(writer, Options(watch=Watch.PRINT))
    made_up = program()
    watcher.compiled(made_up)
    failures: list[tuple[str, str]] = []
    run = entry(made_up, [watcher], failures)
    monkeypatch.setattr(watcher.sink, "value", lambda *args: 1 / 0)
    (result,) = run([torch.eye(2), 5])
    assert torch.equal(result, torch.eye(2))
    assert failures == [("watch", "division by zero")]
    writer.close()
