"""A compiled program without a compiler: a wrapper's source, and what it needs to run."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from torchsan.records import Direction, GraphId, GraphRecord
from torchsan.torch_internals.wrapper import parse
from torchsan.torch_internals.wrapper.kernels import mutated_arguments
from torchsan.torch_internals.wrapper.rewrite import probed_functions
from torchsan.watch.calls import ProbedProgram
from torchsan.watch.observer import CompiledProgram, Observer

SOURCE = """
cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*', 'float*', 'const int64_t'], r'''
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0,
                       const int64_t ks0)
{}
''')

def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    s77 = arg1_1
    buf0 = empty_strided_cpu((2, 2), (2, 1), torch.float32)
    extern_kernels.mm(arg0_1, arg0_1, out=buf0)
    buf1 = empty_strided_cpu((2, 2), (2, 1), torch.float32)
    cpp_fused_relu_0(buf0, buf1, 2*s77)
    del buf0
    return (buf1, )
"""


def program(source: str = SOURCE) -> CompiledProgram:
    """The program that `source` is, ready to run."""
    namespace: dict[str, Any] = {
        "torch": torch,
        "empty_strided_cpu": lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype),
        "extern_kernels": SimpleNamespace(mm=lambda a, b, out: torch.mm(a, b, out=out)),
        "async_compile": SimpleNamespace(cpp_pybinding=lambda types, source: lambda x, out, n: out.copy_(x.relu())),
    }
    exec(source, namespace)
    record = GraphRecord(id=GraphId(0), direction=Direction.INFERENCE, artifacts={})
    model = parse(source, mutated_arguments)
    return CompiledProgram(record=record, model=model, graphs={}, computes={}, constants=namespace)


def entry(program: CompiledProgram, observers: Iterable[Observer], failures: list[tuple[str, str]]) -> ProbedProgram:
    """What stands in for the program's `call`, with everything that fails written down."""
    namespace = dict(program.constants)
    probed = probed_functions(program.model, namespace, "made_up.py")
    return ProbedProgram(
        program, namespace["call"], probed, observers, lambda _p, who, e: failures.append((who, str(e)))
    )
