"""The C++ wrapper of a package is read: what it launches, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsan.records import KernelKind
from torchsan.torch_internals.wrapper.cpp import Wrapper, read_wrapper
from torchsan.torch_internals.wrapper.model import Liveness

TEXT = (Path(__file__).parents[2] / "data" / "packages" / "mlp.wrapper.txt").read_text()


@pytest.fixture
def wrapper() -> Wrapper:
    found = read_wrapper(TEXT)
    assert found is not None
    return found


def test_launches_with_what_they_read_and_write(wrapper: Wrapper) -> None:
    launches = [s.launch for s in wrapper.sites]
    assert [(n.kernel, n.kind) for n in launches] == [
        ("aoti_torch_cpu_addmm_out", KernelKind.LIBRARY),
        ("cpp_fused_relu_0", KernelKind.FUSED),
        ("aoti_torch_cpu_addmm_out", KernelKind.LIBRARY),
        ("cpp_fused__softmax_1", KernelKind.FUSED),
    ]
    assert launches[0].reads == ("a_bias", "arg4_1", "a_weight")
    assert launches[0].writes == ("buf0",)
    assert (launches[1].reads, launches[1].writes) == (("buf1",), ("buf1", "buf2"))
    assert launches[3].writes == ("buf4", "buf6", "buf7")
    assert (wrapper.inputs, wrapper.constants) == (["arg4_1"], ["a_weight", "a_bias", "b_weight"])
    assert [(number, name) for _, number, name in wrapper.outputs] == [(0, "buf7")]
    assert not wrapper.unread


def test_what_nobody_reads_is_known(wrapper: Wrapper) -> None:
    live = Liveness(wrapper.function())
    last = wrapper.sites[3].launch
    assert [live.read_after(name, last.line) for name in last.writes] == [False, False, True]
    assert live.read_after("buf0", wrapper.sites[0].launch.line), "under the name that it is handed on to"


def test_the_text_that_is_kept_reads_the_same(wrapper: Wrapper) -> None:
    again = read_wrapper(wrapper.text)
    assert again is not None
    assert [s.launch.arguments for s in again.sites] == [s.launch.arguments for s in wrapper.sites]


def test_results_that_come_as_handles_are_recorded_when_they_have_a_name() -> None:
    statement = """    AtenTensorHandle buf9_handle;
    AtenTensorHandle buf10_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_sort(buf7, -1L, 0, &buf9_handle, &buf10_handle));
    RAIIAtenTensorHandle buf9(buf9_handle);
    RAIIAtenTensorHandle buf10(buf10_handle);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_scatter_(buf9, 0L, buf10,
        buf7));
    output_handles[0]"""
    found = read_wrapper(TEXT.replace("    output_handles[0]", statement))
    assert found is not None
    sort, scatter = found.sites[-2:]
    assert (sort.launch.kernel, sort.launch.reads, sort.launch.writes) == (
        "aoti_torch_cpu_sort",
        ("buf7",),
        ("buf9", "buf10"),
    )
    assert sort.ends == sort.begins + 2
    assert (scatter.launch.reads, scatter.launch.writes) == (("buf9", "buf10", "buf7"), ("buf9",))
    assert scatter.ends == scatter.begins + 1


def test_what_is_no_wrapper_is_left_alone() -> None:
    assert read_wrapper("int main() { return 0; }") is None
