"""The check around a program: policy, threads, pools, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchsan
from tests.planted.plant import in_kernel, planted
from torchsan.errors import FindingsError
from torchsan.options import Options
from torchsan.records import Check
from torchsan.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script")

OVERFLOW = """
import torch
import torch.nn.functional as F


def padded_product(x):
    gelu = (x * 0.5) * (torch.erf(x * 0.7071067811865476) + 1)
    left = F.pad(gelu, (0, 0, 0, 0, 0, 58), value=0.5)
    right = F.pad(gelu.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
    return torch.matmul(left, right)


x = torch.randn(1, 8, 66, 66).contiguous(memory_format=torch.channels_last)
torch.compile(padded_product)(x)
print("survived")
"""


def program(x: Tensor) -> Tensor:
    return (x.sin() @ x.cos()).relu() + 1


def test_a_real_heap_overflow_is_reported_and_survived(tmp_path: Path) -> None:
    (tmp_path / "overflow.py").write_text(OVERFLOW)
    flags = ["--check", "memory", "--json", "out.json", "--verbose"]
    command = [sys.executable, "-m", "torchsan", "run", *flags, "overflow.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), timeout=300)
    assert done.returncode == 1, done.stderr
    assert "survived" in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["program"] == {"exit": 0, "signal": None}
    (finding,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert (finding["kind"], finding["stage"]) == ("out-of-bounds-write", "kernel")
    assert finding["kernel"].startswith("cpp_fused")
    assert "Memory of compiled calls" in done.stdout + done.stderr


def test_fail_fast_raises_in_the_call_and_the_next_call_is_well() -> None:
    with Session(Options(check=(Check.MEMORY,), fail_fast=True)) as run:
        with planted(in_kernel("cpp_fused", "out_ptr0[256] = 1;")):
            compiled = torch.compile(program)
            with pytest.raises(FindingsError, match="out-of-bounds-write"):
                compiled(torch.ones(16, 16))
        assert torch.equal(compiled(torch.ones(16, 16)), compiled(torch.ones(16, 16)))
    assert len(run.findings) == 1


def test_several_threads_at_once() -> None:
    results: list[Tensor] = []
    with torchsan.session(check="memory", calls="all") as run:
        compiled = torch.compile(program)
        compiled(torch.ones(16, 16))

        def work() -> None:
            results.extend(compiled(torch.ones(16, 16)) for _ in range(10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 40
    assert all(torch.equal(r, results[0]) for r in results)
    assert run.findings == ()


def test_buffers_in_a_pool() -> None:
    from torch._inductor import config

    with config.patch(memory_planning=True), torchsan.session(check="memory") as run:
        x = torch.randn(32, 32)
        compiled = torch.compile(lambda x: ((x.sin() @ x).relu() @ (x.cos() @ x).tanh()).sum())
        expected = ((x.sin() @ x).relu() @ (x.cos() @ x).tanh()).sum()
        assert torch.allclose(compiled(x), expected, rtol=1e-3)
    assert run.findings == ()
    assert not [s for s in run.coverage.skipped if "torchsan failed" in s.reason]


def test_in_inference_mode() -> None:
    with torchsan.session(check="memory") as run, torch.inference_mode():
        y = torch.compile(program)(torch.ones(8, 8))
    assert y.is_inference()
    assert run.findings == ()
