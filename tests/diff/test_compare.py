from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diff.made_up import TEXT, Values, inputs, record, run
from torchsan.diff import Diff, Judged, Status, compare_recordings
from torchsan.diff.result import How, Role
from torchsan.errors import UsageError
from torchsan.options import Watch
from torchsan.recording import Program, Reader
from torchsan.store import Store

Compare = Callable[..., Diff]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def compare(a: list[Values], b: list[Values], mine: Any = None, other: Any = None, **kwargs: Any) -> Diff:
        first = record(tmp_path / "a", a, **(mine or {}))
        return compare_recordings(first, record(tmp_path / "b", b, **(other or {})), **kwargs)

    return compare


def nudged(t: torch.Tensor, ulps: int = 1) -> torch.Tensor:
    """The next number of each element but zeros."""
    moved = t.clone()
    for _ in range(ulps):
        moved = torch.where(t == 0, t, torch.nextafter(moved, torch.full_like(t, torch.inf)))
    return moved


def judged(diff: Diff) -> dict[str, Judged]:
    return {v.name: v.judged for v in diff.values}


def test_the_same_bits_are_the_same_and_no_data_is_read(compare: Compare) -> None:
    diff = compare([run(inputs())], [run(inputs())])
    assert (diff.status, diff.status.exit) == (Status.SAME, 0)
    assert diff.how == {"contents": 5}
    assert not (diff.values or diff.kernels or diff.memory or diff.metadata or diff.operators or diff.circumstances)


def test_last_bits_are_rounding_and_what_is_computed_from_them_too(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["mm"] = nudged(b["mm"], 2)
    b["relu"] = torch.relu(b["mm"] * 0.5)
    b["sum_1"] = b["relu"].sum(-1)
    diff = compare([a], [b])
    assert (diff.status, diff.status.exit) == (Status.ROUNDING, 0)
    assert diff.first is None
    assert set(judged(diff).values()) == {Judged.ROUNDING}


def test_a_kernel_that_is_wrong_in_one_run_is_named_and_what_follows_is_not(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["relu"] = b["relu"].clone()
    b["relu"][2, 3] += 1
    b["sum_1"] = b["relu"].sum(-1)
    diff = compare([a], [b])
    assert (diff.status, diff.status.exit) == (Status.DIFFERENT, 1)
    assert judged(diff) == {"relu": Judged.DIFFERENT, "sum_1": Judged.FOLLOWS}
    assert diff.first is not None
    assert (diff.first.name, diff.first.how, diff.first.a.op) == ("relu", How.REPLAY, "aten.relu.default")
    assert [(s.file, s.line) for s in diff.first.source] == [("/home/user/model.py", 8)]
    assert any(line.startswith("B is not what A's operators give") for line in diff.first.text)


def test_the_run_that_is_off_is_named(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    a["mm"] = a["mm"] * 1.01
    diff = compare([a], [b])
    assert diff.first is not None
    assert diff.first.name == "mm"
    assert any(line.startswith("A is not what") for line in diff.first.text)


def test_a_changed_number_in_one_operator_is_found_where_it_is(compare: Compare) -> None:
    other = TEXT.replace("(mm, 0.5)", "(mm, 0.25)")
    diff = compare([run(inputs())], [run(inputs(), 0.25)], None, {"text": other})
    assert diff.first is not None
    assert diff.first.name == "relu"
    assert [s.line for s in diff.first.source] == [7]
    assert judged(diff) == {"relu": Judged.DIFFERENT, "sum_1": Judged.FOLLOWS}
    (operators,) = diff.operators
    assert operators.a == ("mul = aten.mul.Tensor(mm, 0.5)",)
    assert operators.b == ("mul = aten.mul.Tensor(mm, 0.25)",)


RENUMBERED = (
    TEXT.replace("relu:", "relu_5:")
    .replace("relu,", "relu_5,")
    .replace("mul:", "mul_3:")
    .replace("mul)", "mul_3)")
    .replace("/home/user/model.py:8", "/home/user/model.py:80")
)


def test_nodes_are_aligned_by_what_they_compute_and_not_by_their_names(compare: Compare) -> None:
    values = run(inputs())
    renamed = {("relu_5" if k == "relu" else k): v for k, v in values.items()}
    diff = compare([values], [renamed], None, {"text": RENUMBERED})
    assert diff.status is Status.SAME
    assert diff.compared["same"] == 5


def test_another_decomposition_of_the_same_is_the_same_up_to_rounding(compare: Compare) -> None:
    scaled = TEXT.replace("torch.ops.aten.mul.Tensor(mm, 0.5)", "torch.ops.aten.div.Tensor(mm, 2.0000000001)")
    b = run(inputs(), 1 / 2.0000000001)
    b["relu"] = nudged(b["relu"])
    diff = compare([run(inputs())], [b], None, {"text": scaled})
    assert diff.status is Status.ROUNDING
    assert len(diff.operators) == 1


def test_other_inputs_are_said_to_be_that(compare: Compare) -> None:
    diff = compare([run(inputs())], [run(inputs(1))])
    assert diff.first is not None
    assert (diff.first.name, diff.first.role) == ("arg0_1", Role.INPUT)
    assert judged(diff)["sum_1"] is Judged.FOLLOWS
    inputs_ = {v.name: v.judged for v in diff.values if v.role is Role.INPUT}
    assert set(inputs_.values()) == {Judged.DIFFERENT}
    assert len(inputs_) == 2


def test_calls_that_only_one_run_made_are_a_gap(compare: Compare) -> None:
    diff = compare([run(inputs()), run(inputs(1))], [run(inputs())])
    assert (diff.status, diff.status.exit) == (Status.INCOMPLETE, 4)
    assert diff.reasons == ("graph 0 inference was called 2 times in A and 1 times in B",)


@pytest.mark.parametrize(
    ("b", "kwargs", "reason"),
    [
        ([run(inputs())], {"watch": Watch.OFF}, "no values were recorded in B: record it with --watch save"),
        ([inputs()], {}, "nothing but inputs could be compared"),
        ([], {}, "it compiled nothing, and eager code is watched at torchsan.probe only"),
        ([run(inputs())], {"closed": False, "program": Program()}, "the recording of B ends before its program did"),
        ([run(inputs())], {"program": Program(signal=11)}, "the program of B died of SIGSEGV"),
        ([run(inputs())], {"program": Program(exit=3)}, "the program of B failed with exit status 3"),
    ],
)
def test_silence_is_not_success(compare: Compare, b: list[Values], kwargs: Any, reason: str) -> None:
    diff = compare([run(inputs())], b, None, kwargs)
    assert diff.status is Status.INCOMPLETE
    assert reason in "\n".join(diff.reasons)


def test_recordings_of_other_programs_do_not_belong_together(compare: Compare) -> None:
    other = (
        'class G(torch.nn.Module):\n    def forward(self, arg0_1: "f32[3]"):\n'
        "        # File: /x.py:1 in f, code: return x.sin().cos().exp()\n"
        '        sin: "f32[3]" = torch.ops.aten.sin.default(arg0_1)\n'
        '        cos: "f32[3]" = torch.ops.aten.cos.default(sin)\n        return (cos,)\n'
    )
    x = torch.ones(3)
    with pytest.raises(UsageError, match=r"do not belong together.*unrelated-recordings"):
        compare([run(inputs())], [{"arg0_1": x, "sin": x.sin(), "cos": x.cos()}], None, {"text": other})


def test_what_is_no_number_in_both_runs_is_the_same_and_in_one_is_not(compare: Compare, tmp_path: Path) -> None:
    given = inputs()
    given["arg0_1"][1, 1] = torch.nan
    a, b = run(given), run(given)
    b["mm"] = b["mm"].clone()
    b["mm"].view(torch.int32)[1] ^= 1  # The payloads of NaNs.
    assert compare([a], [b]).status is Status.SAME
    lost = run(given, act=lambda t: torch.relu(torch.nan_to_num(t)))
    diff = compare_recordings(record(tmp_path / "c", [a]), record(tmp_path / "d", [lost]))
    assert diff.first is not None
    assert diff.first.name == "relu"


def test_without_a_graph_a_difference_is_measured_beside_those_before_it(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["mm"] = nudged(b["mm"], 20)
    b["relu"] = b["relu"] * 1.5
    diff = compare([a], [b], {"text": None}, {"text": None})
    assert judged(diff) == {"mm": Judged.ROUNDING, "relu": Judged.DIFFERENT}
    assert {v.how for v in diff.values} == {How.PROPORTION}


def test_no_time_for_replays_is_said(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["relu"] = b["relu"] * 1.5
    diff = compare([a], [b], seconds=0.0)
    assert judged(diff)["relu"] is Judged.DIFFERENT
    assert any("were over" in s.reason for s in diff.not_compared)


def large(seed: int = 0) -> Values:
    generator = torch.Generator().manual_seed(seed)
    return {"arg0_1": torch.randn(40, 8, generator=generator), "arg1_1": torch.randn(8, 8, generator=generator)}


def test_summaries_alone_tell_something_and_the_result_says_so(compare: Compare) -> None:
    a, b = run(large()), run(large())
    b["relu"] = b["relu"] * 1.01
    printed = {"watch": Watch.PRINT}
    diff = compare([a], [b], printed, printed)
    assert judged(diff) == {"relu": Judged.DIFFERENT}
    assert diff.how["summaries"] == 3  # The others are small: their elements are in the summary.


def test_small_values_need_not_be_saved(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["relu"] = b["relu"] + 0.25
    printed = {"watch": Watch.PRINT}
    diff = compare([a], [b], printed, printed)
    assert diff.first is not None
    assert (diff.first.name, diff.first.how) == ("relu", How.REPLAY)


def test_eager_and_compiled_are_compared_at_probes(compare: Compare) -> None:
    x = torch.linspace(1, 2, 100)
    probes = {"hidden": x, "logits": x.exp(), "loss": x.exp().sum()}
    near = {k: v * (1 + 2e-7) for k, v in probes.items()}
    assert compare([], [], {"probes": probes}, {"probes": near}).status is Status.ROUNDING


def test_the_first_probe_out_of_proportion_is_named(compare: Compare) -> None:
    x = torch.linspace(1, 2, 100)
    diff = compare(
        [], [run(inputs())], {"probes": {"h": x, "l": x, "z": x}}, {"probes": {"h": x, "l": x * 1.1, "z": x + 1}}
    )
    assert diff.first is not None
    assert (diff.first.name, diff.first.role) == ("l", Role.PROBE)
    assert judged(diff) == {"l": Judged.DIFFERENT, "z": Judged.FOLLOWS}


def test_another_dtype_or_shape_is_a_difference_of_metadata(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["sum_1"] = b["sum_1"].double()
    diff = compare([a], [b])
    assert diff.first is not None
    assert (diff.first.how, diff.first.text) == (How.METADATA, ("dtype float32 against float64",))
    assert [(m.what, m.a, m.b) for m in diff.metadata] == [("dtype", "float32", "float64")]


def test_strides_and_memory_are_shown_and_change_no_verdict(compare: Compare) -> None:
    a, b = run(inputs()), run(inputs())
    b["relu"] = b["relu"].t().contiguous().t()
    diff = compare([a], [b], None, {"memory": 2048})
    assert diff.status is Status.SAME
    assert [(m.name, m.what) for m in diff.metadata] == [("relu", "stride")]
    assert {(m.what, m.a, m.b) for m in diff.memory} >= {("peak", 1024, 2048)}


@pytest.mark.parametrize(
    "dtype",
    [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float64, torch.bool, torch.int64],
    ids=str,
)
@pytest.mark.parametrize("watch", [Watch.SAVE, Watch.PRINT])
def test_every_kind_of_number_is_compared(tmp_path: Path, dtype: torch.dtype, watch: Watch) -> None:
    one, two = torch.tensor([0, 1, 2, 3]).to(dtype), torch.tensor([1, 1, 0, 3]).to(dtype)
    a, b, c = (record(tmp_path / n, [], probes={"p": t}, watch=watch) for n, t in (("a", one), ("b", one), ("c", two)))
    assert compare_recordings(a, b).status is Status.SAME
    diff = compare_recordings(a, c)
    assert diff.first is not None
    assert diff.first.comparison is not None
    assert diff.first.comparison.mismatches == 2


def test_more_memory_than_there_can_be_is_not_compared(compare: Compare) -> None:
    assert not compare([run(inputs())], [run(inputs())], None, {"memory": 10**400}).memory


@pytest.mark.parametrize("value", [torch.empty(0, 3), torch.tensor(1.0)], ids=["empty", "scalar"])
@pytest.mark.parametrize("watch", [Watch.SAVE, Watch.PRINT])
def test_a_tensor_of_any_size_is_the_same_as_itself(compare: Compare, value: torch.Tensor, watch: Watch) -> None:
    given = {"probes": {"p": value}, "watch": watch}
    assert compare([], [], given, given).status is Status.SAME


def test_a_sparse_tensor_is_the_same_by_its_contents_or_not_compared(compare: Compare, tmp_path: Path) -> None:
    x = torch.tensor([0.0, 2.0]).to_sparse()
    assert compare([], [], {"probes": {"p": x}}, {"probes": {"p": x}}).status is Status.SAME
    y = torch.tensor([0.0, 3.0]).to_sparse()
    diff = compare_recordings(record(tmp_path / "c", [], probes={"p": x}), record(tmp_path / "d", [], probes={"p": y}))
    assert diff.status is Status.INCOMPLETE
    assert [s.what for s in diff.not_compared] == ["p"]


def test_a_few_flipped_truth_values_after_rounding_are_explained(compare: Compare) -> None:
    text = TEXT.replace("torch.ops.aten.relu.default(mul)", "torch.ops.aten.gt.Scalar(mul, 2.0)").replace("relu", "gt")
    given = inputs()
    at_the_threshold = torch.full((4, 8), 4.0)
    one, two = ({**given, "mm": mm, "gt": mm * 0.5 > 2} for mm in (at_the_threshold, nudged(at_the_threshold)))
    diff = compare([one], [two], {"text": text}, {"text": text})
    assert not bool((one["gt"] == two["gt"]).all())
    assert judged(diff)["gt"] is Judged.ROUNDING


def test_nodes_of_subgraphs_stand_for_each_other_by_name(compare: Compare) -> None:
    inside = "\n    class true_graph_0(torch.nn.Module):\n        def forward(self, arg0_1):\n"
    text = TEXT + inside + '            sin: "f32[4]" = torch.ops.aten.sin.default(arg0_1)\n            return (sin,)\n'
    a, b = run(inputs()) | {"sin": torch.ones(4)}, run(inputs()) | {"sin": torch.zeros(4)}
    diff = compare([a], [b], {"text": text}, {"text": text})
    assert not diff.kernels
    assert judged(diff) == {"sin": Judged.DIFFERENT}


def test_kernels_that_are_fused_otherwise_are_shown(tmp_path: Path) -> None:
    values = run(inputs())
    fused = {k: v for k, v in values.items() if k != "mm"}
    diff = compare_recordings(record(tmp_path / "a", [values]), record(tmp_path / "b", [fused]))
    assert diff.status is Status.SAME
    assert [(k.a, k.b) for k in diff.kernels] == [(("cpp_fused_mm_0",), ())]
    assert [s.what for s in diff.not_compared] == ["1 values of A"]


def test_damaged_tensors_are_a_gap(compare: Compare, tmp_path: Path) -> None:
    a, b = run(large()), run(large())
    b["relu"] = b["relu"] * 2
    first, second = record(tmp_path / "c", [a]), record(tmp_path / "d", [b])
    for pack in (tmp_path / "d" / "tensors").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[:] = bytes(len(data))
        pack.write_bytes(bytes(data))
    diff = compare_recordings(first, second)
    assert any("tensors of B cannot be read" in reason for reason in diff.reasons)
    assert diff.status in (Status.INCOMPLETE, Status.DIFFERENT)


def test_elements_that_share_memory_are_not_all_looked_at(tmp_path: Path) -> None:
    values = run(inputs())
    for name, number in (("a", 1.0), ("b", 2.0)):
        reader = record(tmp_path / name, [values])
        with Store(reader.tensors) as store:
            for stored in list(store.names()):
                store.put(stored, torch.full((1,), number).expand(2**40))
    diff = compare_recordings(Reader(tmp_path / "a"), Reader(tmp_path / "b"))
    assert diff.status is Status.INCOMPLETE
    assert any("has many more elements than are stored" in reason for reason in diff.reasons)


def test_an_input_has_the_name_that_the_user_gave_it(compare: Compare) -> None:
    called = {"called": {"arg1_1": "fc.weight"}}
    diff = compare([run(inputs())], [run(inputs(1))], called, called)
    assert [v.name for v in diff.values if v.role is Role.INPUT] == ["arg0_1", "fc.weight"]
    assert [v.a.node for v in diff.values if v.role is Role.INPUT] == ["arg0_1", "arg1_1"]
