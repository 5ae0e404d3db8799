"""Faults planted in generated Triton are found and named as those in C++ are; their clean twins have no error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torchsan
from tests.planted.faults import Fault, planted
from torchsan.records import Severity

pytest.importorskip("triton")
from tests import triton_on_cpu
from tests.planted.triton_faults import FAULTS


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


@pytest.mark.parametrize("fault", [pytest.param(f, id=f.name) for f in FAULTS])
def test_a_fault_planted_in_triton_is_found_and_its_clean_twin_is_clean(fault: Fault) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    check = "values" if fault.kind in ("wrong-values", "non-finite") else "memory"
    with torchsan.session(check=check) as run, planted(fault) as changed:
        fault.program()
    assert changed, "the fault was not planted: Inductor generates other code now"
    errors = [f for f in run.findings if f.severity is Severity.ERROR]
    assert errors, run.coverage
    for finding in errors:
        assert (finding.kind, finding.stage, finding.check) == (fault.kind, "kernel", check)
        assert finding.kernel
        assert finding.kernel.startswith("triton_") or fault.kind == "uninitialized-read"
        assert set(finding.ops) & fault.ops or fault.kind == "uninitialized-read", finding.ops

    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check=check) as run:
        fault.program()
    assert [f for f in run.findings if f.severity is Severity.ERROR] == []
    assert run.coverage.buffers_checked > 0
