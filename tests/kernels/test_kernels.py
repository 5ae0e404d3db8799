"""The corpora: every wrong kernel is named with its class, and no right one has an error."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import torchsan
from tests.kernels import other_styles, right_torch, wrong_torch
from tests.kernels.samples import Sample, normal

pytest.importorskip("triton")
from tests.kernels import right_triton, wrong_triton  # needs triton

WRONG = [*wrong_triton.WRONG.samples, *wrong_torch.WRONG.samples, *other_styles.WRONG.samples]
CHEATS = wrong_torch.CHEATS.samples
RIGHT = [*right_triton.RIGHT.samples, *right_torch.RIGHT.samples, *other_styles.RIGHT.samples]
QUICK = {
    *("vector_add", "sum_under_a_lock", "custom_operator", "load_without_mask", "histogram_without_atomics"),
    *("softmax_without_max", "relu_in_place", "returns_a_view", "kept_by_pointer", "patches_the_reference"),
}
"""Those that the default tests referee: about one of each class."""


def marked(samples: list[Sample]) -> list[object]:
    return [pytest.param(s, id=s.name, marks=() if s.name in QUICK else pytest.mark.slow) for s in samples]


def errors(report: torchsan.KernelReport) -> set[str]:
    return {str(f.kind) for f in report.findings if f.severity == "error"}


@pytest.mark.parametrize("sample", marked([*WRONG, *CHEATS]))
def test_a_wrong_kernel_is_named_with_its_class(sample: Sample) -> None:
    report = torchsan.check_kernel(sample.kernel, sample.reference, sample.make())
    assert not report
    assert errors(report) & set(sample.kinds), str(report)


@pytest.mark.parametrize("sample", marked(RIGHT))
def test_a_right_kernel_has_no_error(sample: Sample) -> None:
    report = torchsan.check_kernel(sample.kernel, sample.reference, sample.make())
    assert report, str(report)
    assert len(report.tried["trials"]) >= 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("good_relu", set()),
        ("good_row_sum", set()),
        ("reads_past_the_end", {"out-of-bounds-read"}),
        ("writes_past_the_end", {"out-of-bounds-write"}),
        ("looks_past_the_end", {"out-of-bounds-read"}),
        ("crashes", {"out-of-bounds-read"}),
    ],
)
def test_native_kernels_are_guarded_and_fenced(name: str, kinds: set[str]) -> None:
    references = {"good_relu": "relu", "good_row_sum": "sum", "crashes": "plus one", "reads_past_the_end": "pairs"}
    kernel = getattr(right_torch.native(), name)
    report = torchsan.check_kernel(kernel, right_torch.REFERENCES[references.get(name, "twice")], (normal(12, 20),))
    assert kinds <= errors(report) if kinds else bool(report), str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), other_styles.NATIVE.items())
def test_extensions_in_c_are_judged_as_any_kernel(name: str, kind: str) -> None:
    # Strides can only be ignored where an example has some.
    example = normal(14, 9).t() if name == "ignores_strides" else normal(9, 13)
    report = torchsan.check_kernel(getattr(other_styles.native(), name), lambda x: 2 * x, (example,))
    assert kind in errors(report) if kind else bool(report), str(report)


@pytest.mark.slow
def test_kernels_of_liger_are_right_but_for_a_variance_that_cancels() -> None:
    pytest.importorskip("liger_kernel")
    from tests.kernels.real_kernels import LIGER

    reports = {s.name: torchsan.check_kernel(s.kernel, s.reference, s.make()) for s in LIGER.samples}
    assert {name: errors(r) for name, r in reports.items() if not r} == {"liger_group_norm": {"precision-loss"}}


@pytest.mark.slow
def test_kernels_of_flag_gems_are_right_but_for_two() -> None:
    if find_spec("flag_gems") is None:
        pytest.skip("flag-gems is not installed")
    from tests.kernels.real_gems import gems

    reports = {s.name: torchsan.check_kernel(s.kernel, s.reference, s.make()) for s in gems()}
    found = {name: errors(r) for name, r in reports.items() if not r}
    assert found.pop("gems_group_norm") == {"race", "wrong-values"}, str(reports["gems_group_norm"])
    assert found == {"gems_var_mean": {"precision-loss"}}, "\n".join(str(reports[name]) for name in found)


@pytest.mark.slow
def test_kernels_of_flash_linear_attention_are_right() -> None:
    if find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    from tests.kernels.real_gems import linear_attention

    reports = {s.name: torchsan.check_kernel(s.kernel, s.reference, s.make()) for s in linear_attention()}
    assert [str(r) for r in reports.values() if not r] == []


def test_there_are_enough_of_each() -> None:
    assert len(WRONG) + len(CHEATS) >= 50 and len(RIGHT) + 2 >= 44
    names = [s.name for s in [*WRONG, *CHEATS]]
    assert len(set(names)) == len(names)
