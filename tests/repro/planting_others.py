"""Plants one fault of another check for good: what `--load` imports in every trial. Which one says TORCHSAN_TEST_FAULT.

Each works on whatever is compiled, whatever its kernels are called, because a reproducer is another program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import torch
import torch._inductor.config

from tests.planted.plant import planted
from tests.planted.test_stages import edit, halve_constant, swap

kept: list[object] = []

_END = r"(    inductor_cpu_integer_div_error_flag = nullptr;)"
MEMORY: dict[str, Callable[[str], str]] = {
    "out-of-bounds-write": lambda source: re.sub(_END, r"    out_ptr0[-1] = 7;\n\1", source, count=1),
    "uninitialized-read": lambda source: re.sub(r"(<static_cast<int64_t>\(\d+L)\)", r"\1 - 8L)", source, count=1),
    "leaked-buffer": lambda source: re.sub(
        r"\n( +)(buf0 = empty_strided_cpu\(.*\))",
        rf"\n\1\2\n\1__import__('{__name__}', fromlist=['kept']).kept.append(buf0)",
        source,
        count=1,
    ),
}
STAGES = {
    "joint_custom_pre_pass": edit(torch.ops.aten.mul.Tensor, halve_constant),
    "joint_custom_post_pass": edit(torch.ops.aten.sub.Tensor, swap),
    "post_grad_custom_pre_pass": edit(torch.ops.aten.mul.Tensor, halve_constant),
    "post_grad_custom_post_pass": edit(torch.ops.aten.sub.Tensor, swap),
}
FAULT = os.environ["TORCHSAN_TEST_FAULT"]
if FAULT in MEMORY:
    _planted = planted(MEMORY[FAULT])
    _planted.__enter__()
else:
    setattr(torch._inductor.config, FAULT, STAGES[FAULT])


def program() -> None:
    """Two products and what is fused between them: what each fault shows in."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mm((x - y * 0.5).relu(), y).sin() * 2

    with torch.no_grad():
        torch.compile(f)(torch.linspace(-1, 1, 256).view(16, 16), torch.linspace(0, 3, 256).view(16, 16))
