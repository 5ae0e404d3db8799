"""The shim that runs Triton without a GPU: it computes what eager does, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from tests import triton_on_cpu  # needs triton


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


def _source(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, str]:
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    result, sources = run_and_get_code(torch.compile(function), *args)
    return result, "\n".join(sources)


ROWS = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        pytest.param(lambda x: (x.erf() + 1).atan2(x.exp()), (ROWS,), id="libdevice"),
        pytest.param(lambda x: (x * 2).argmax(-1), (ROWS,), id="reduction"),
        pytest.param(lambda x: x.logcumsumexp(-1), (ROWS,), id="scan"),
        pytest.param(lambda x: x.bfloat16().neg(), (torch.arange(300),), id="integers_to_bfloat16"),
        pytest.param(
            lambda i: torch.zeros(16).index_put((i,), torch.tensor(1.0), accumulate=True),
            (torch.arange(40) % 16,),
            id="atomics_of_a_broadcast_scalar",
        ),
    ],
)
def test_the_interpreter_computes_what_eager_does(function: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    result, source = _source(function, *args)
    assert "async_compile.triton(" in source
    assert "cpp_pybinding" not in source
    torch.testing.assert_close(result, function(*args), rtol=1e-5, atol=1e-6)


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    numbers = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-9, 3.0e38, -1 - 2**-8, 1e-40])
    result, _ = _source(lambda x: x.bfloat16(), numbers)
    assert result.tolist() == numbers.bfloat16().tolist()


_STATE = """
import os, torch, triton, torch._inductor.config as config
from triton.runtime import JITFunction, interpreter as i
from triton.language.extra import libdevice
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from tests import triton_on_cpu

PARTS = JITFunction, i, i.InterpreterBuilder, i.ReduceOps, i.ScanOps, libdevice, CachingAutotuner
def state():
    settings = dict(os.environ), dict(triton.backends.backends), config.cpu_backend, triton.knobs.runtime.interpret
    return [dict(vars(p)) for p in PARTS], settings

torch.compile(torch.sin)(torch.ones(3))
before = state()
with triton_on_cpu.enabled():
    torch.compile(torch.tanh)(torch.ones(3))
after = state()
print("changed", [k for a, b in zip(before[0], after[0]) for k in b if a.get(k) is not b[k]], before[1] == after[1])
"""


def test_everything_is_as_before_afterwards() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _STATE]
    root = Path(__file__).parent.parent
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert "changed [] True" in found.stdout, found.stdout + found.stderr
