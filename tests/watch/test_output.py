"""Values on their way to the terminal, the log and the store; no compiler needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchsan.cli.values import watched_values
from torchsan.options import Options, Watch
from torchsan.recording import Reader, Writer, finalize
from torchsan.records import Direction, GraphId, Watched, decode
from torchsan.records.tensor import value_key
from torchsan.store import Store
from torchsan.watch.output import WatchOutput, Widths

Recording = Callable[..., Reader]


def at(name: str = "buf0", launch: int | None = 0, **changes: Any) -> Watched:
    values: dict[str, Any] = {"graph": GraphId(0), "direction": Direction.FORWARD, "call": 0, "kernel": "cpp_fused_0"}
    return Watched(phase="after", name=name, launch=launch, site=launch, **(values | changes))


@pytest.fixture
def record(tmp_path: Path) -> Recording:
    """Send values through a sink and return what was recorded."""

    def make(values: list[tuple[Watched, Any]], **options: Any) -> Reader:
        writer = Writer.create(tmp_path / f"run{len(os.listdir(tmp_path))}", command=["x"])
        sink = WatchOutput(writer, Options(**options))
        for watched, value in values:
            sink.value(watched, value)
        sink.close()
        writer.close()
        finalize(writer.path, None)
        return Reader(writer.path)

    return make


def test_a_printed_line_tells_everything(record: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    record([(at(node="relu"), torch.tensor([[0.0, 1.5], [float("nan"), -2.0]]))], watch=Watch.PRINT)
    line = capfd.readouterr().err
    assert line.startswith("torchsan: 0 forward call 0 #0")
    for part in ("after  cpp_fused_0", "buf0", "float32[2×2] cpu", "min -2 max 1.5", "NaN 1", "zeros 1", "= relu"):
        assert part in line
    assert "[0, 1.5, nan, -2]" in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.empty(0, 3), "float32[0×3] cpu"),
        (torch.tensor(1e300, dtype=torch.float64), "[1e+300]"),
        (torch.full((100,), 1e300, dtype=torch.float64), "min 1e+300 max 1e+300"),
        (torch.zeros(2, 3).t(), "float32[3×2] stride (1, 3) cpu"),
        (torch.zeros(3, device="meta"), "(a meta tensor has no elements)"),
        (torch.zeros(70), "mean 0 std 0"),
        (7, "7"),
        ((1, 2), "(1, 2)"),
        (True, "True"),
    ],
)
def test_every_kind_of_value_has_a_line(
    record: Recording, capfd: pytest.CaptureFixture[str], value: Any, shown: str
) -> None:
    record([(at(), value)], watch=Watch.PRINT)
    assert shown in capfd.readouterr().err


def test_lines_of_one_program_are_aligned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    writer = Writer.create(tmp_path / "run", command=["x"])
    sink = WatchOutput(writer, Options(watch=Watch.PRINT))
    for name, kernel in (("a", "cpp_fused_long_name_0"), ("a_long_one", "k")):
        sink.value(at(name, kernel=kernel), torch.zeros(2), Widths(kernel=21, name=10))
    writer.close()
    one, other = capfd.readouterr().err.splitlines()
    assert one.index("float32") == other.index("float32")


def test_what_is_no_value_is_left_out(record: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    reader = record([(at(), None), (at(), object())], watch=Watch.PRINT)
    assert reader.events("watched") == []
    assert capfd.readouterr().err == ""


def test_saved_values_have_keys_of_their_own_and_equal_contents_are_stored_once(record: Recording) -> None:
    x = torch.randn(1000)
    places = [at(launch=0), at(launch=1), at(launch=1, call=1), at(launch=1, call=1, kernel="k"), at("buf1")]
    reader = record([(place, x) for place in places], watch=Watch.SAVE)
    stored = [decode(Watched, body["watched"]).stored for body in reader.events("watched")]
    assert stored == ["graph0-forward/call0/0000-cpp_fused_0/after/buf0"] * len(places)
    assert len({value_key(place) for place in places}) == len(places)
    with Store(reader.tensors) as store:
        assert store.names() == stored[:1]
        assert torch.equal(store.get(str(stored[0])), x)


def test_other_strides_are_another_tensor(record: Recording) -> None:
    x = torch.randn(3, 3)
    reader = record([(at("a"), x), (at("b"), x.t().contiguous().t())], watch=Watch.SAVE)
    with Store(reader.tensors) as store:
        assert [store.get(name).stride() for name in store.names()] == [(3, 1), (1, 3)]


def test_the_bound_counts_contents_once_and_is_said(record: Recording, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = torch.zeros(100), torch.ones(100)
    values = [(at(f"buf{i}"), t) for i, t in enumerate([one, one, other, one, torch.tensor(1.0)])]
    reader = record(values, watch=Watch.SAVE, max_bytes=500)
    stored = [decode(Watched, body["watched"]).stored is not None for body in reader.events("watched")]
    assert stored == [True, True, False, True, False]
    assert [w.summary is not None for w in watched_values(reader)] == [True] * 5
    (skipped,) = reader.coverage().skipped
    assert skipped.what == "saving from 0 forward call 0 #0 cpp_fused_0 buf2 on"
    assert "--max-bytes 500 is reached" in skipped.reason
    assert capfd.readouterr().err.count("--max-bytes 500 is reached") == 1


def test_what_the_store_refuses_is_said(record: Recording) -> None:
    reader = record([(at(), torch.zeros(3, device="meta")), (at("../x"), torch.zeros(3))], watch=Watch.SAVE)
    assert [s.what.rsplit("/after/")[1] for s in reader.coverage().skipped] == ["buf0", "../x"]
    assert len(reader.events("watched")) == 2


def test_a_tensor_that_ctrl_c_kept_from_being_recorded_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer.create(tmp_path / "run", command=["x.py"])
    sink = WatchOutput(writer, Options(watch=Watch.SAVE))
    first, second = at(), at(call=1)
    sink.value(first, torch.ones(3))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sink, "_summary", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sink.value(second, torch.zeros(3))
    sink.close()
    with Store(str(tmp_path / "run" / "tensors")) as store:
        assert list(store.names()) == [value_key(first)]
    writer.close()


def test_a_summary_is_of_the_value_now_not_of_the_memory_before(record: Recording) -> None:
    x = torch.zeros(5000)
    writer_values: list[tuple[Watched, Any]] = [(at("a"), x.clone()), (at("b"), x + 1), (at("c"), x[::2])]
    summaries = [w.summary for w in watched_values(record(writer_values, watch=Watch.PRINT))]
    assert [s.maximum for s in summaries if s] == [0, 1, 0]
    assert [s.meta.stride for s in summaries if s] == [(1,), (1,), (2,)]
