"""Which launch computes a buffer is found without going through the whole program for each."""

from __future__ import annotations

import heapq

import pytest

from torchsan.torch_internals import Buffer
from torchsan.torch_internals.wrapper import parse
from torchsan.torch_internals.wrapper.kernels import mutated_arguments
from torchsan.watch.provenance import buffers_of_launches

STEPS = 300


def test_memory_that_is_used_again_and_again_costs_no_more_for_each_of_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "def call(args):",
        "    arg0_1, = args",
        "    args.clear()",
        "    buf0 = empty_strided_cpu((2, 2), (2, 1), torch.float32)",
        "    extern_kernels.mm(arg0_1, arg0_1, out=buf0)",
    ]
    for n in range(1, STEPS):
        lines.append(f"    buf{n} = buf{n - 1}; del buf{n - 1}  # reuse")
        lines.append(f"    extern_kernels.mm(arg0_1, arg0_1, out=buf{n})")
    function = parse("\n".join([*lines, f"    return (buf{STEPS - 1}, )"]), mutated_arguments).functions["call"]
    names = [f"buf{n}" for n in range(STEPS)]
    buffers = [Buffer(name=n, storage=n, node=None, origins=(), removed=False, extern=True) for n in names]
    followed = []

    def counted(steps: list[tuple[int, int, str]]) -> tuple[int, int, str]:
        followed.append(1)
        return heapq.heappop(steps)

    monkeypatch.setattr("torchsan.watch.provenance.heappop", counted)
    found = buffers_of_launches(buffers, function)
    assert [[b.name for b in found[launch.nth]] for launch in function.launches()] == [[n] for n in names]
    assert len(followed) < 2 * STEPS
