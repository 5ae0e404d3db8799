"""What the kernel referee finds, and how long it takes.

The wrong kernels of `tests/kernels` (transcription errors, races, memory, cheats), each refereed with only the kernel,
its reference and one example, beside `torch.allclose` on that example, `torch.library.opcheck` with the kernel as
an operator whose fake is the reference, and the sanitizer of triton-viz, if it is installed, on those in Triton.
Then the seconds for kernels of 10^4 elements, with at least 24 inputs each.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.row import Kind, Record, Row, Skipped
from benchmarks.timing import timed
from torchsan.kernel_report import check_kernel
from torchsan.kernels.contain import Channel, Child, Gone

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1
sys.path.insert(0, str(Path(__file__).parents[1]))


def measure(quick: bool) -> Iterator[Record]:
    """Referee the corpora, then time three kernels."""
    from tests.kernels import right_torch, right_triton, wrong_torch, wrong_triton

    groups = {
        "errors of Triton": wrong_triton.WRONG.samples,
        "errors of PyTorch": wrong_torch.WRONG.samples,
        "cheats": wrong_torch.CHEATS.samples,
    }
    peers = {"`allclose` on one shape": _allclose, "`opcheck`": _opcheck}
    has_viz = importlib.util.find_spec("triton_viz") is not None
    if not has_viz:
        yield Skipped(what="the sanitizer of triton-viz", why="triton-viz is not installed")
    for group, samples in groups.items():
        wrong = samples[::8] if quick else samples
        found = sum(not check_kernel(s.kernel, s.reference, s.make()) for s in wrong)
        others = {"the sanitizer of triton-viz": _triton_viz} if has_viz and "Triton" in group else {}
        for peer, finds in {**peers, **others}.items():
            theirs = sum(not _alone(finds, s) for s in wrong)
            what = f"{group} found, of {len(wrong)}"
            yield Row(what=what, kind=Kind.MORE, unit="kernels", ours=found, peer=peer, theirs=theirs, goal=len(wrong))
    right = [*right_triton.RIGHT.samples, *right_torch.RIGHT.samples][:: 8 if quick else 1]
    false = sum(not check_kernel(s.kernel, s.reference, s.make()) for s in right)
    what = f"right kernels called wrong, of {len(right)}"
    yield Row(what=what, kind=Kind.LESS, unit="kernels", ours=false, goal=0)
    named = {s.name: s for s in right_triton.RIGHT.samples}
    sizes: dict[str, tuple[Any, ...]] = {
        "vector_add": (torch.randn(10_000), torch.randn(10_000)),
        "softmax": (torch.randn(50, 200),),
        "layer_norm": (torch.randn(50, 200), torch.randn(200), torch.randn(200), 1e-5),
    }
    for name, example in sizes.items():
        sample, goal = named[name], 5 if name == "vector_add" else 15
        before = _processor_seconds()
        seconds = timed(lambda s=sample, e=example: check_kernel(s.kernel, s.reference, e))  # type: ignore[misc]  # bound now
        what = f"Triton `{name}` of 10^4 elements"
        yield Row(what=what, kind=Kind.LESS, unit="s", ours=seconds, goal=goal)
        spent = _processor_seconds() - before
        yield Row(what=f"{what}, time of a processor", kind=Kind.LESS, unit="s", ours=spent, goal=goal)


def _processor_seconds() -> float:
    """What this process and those that it started and waited for have used."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def _alone(finds: Callable[[Any], bool], sample: Any) -> bool:
    """Whether a peer calls a kernel right, in a process of its own: cheats change what they are judged with."""

    def work(channel: Channel) -> None:
        torch.set_num_threads(1)
        with ExitStack() as stack:
            if "triton" in sys.modules and finds is not _triton_viz:
                from torchsan.torch_internals.triton_interpreter import interpreting

                stack.enter_context(interpreting())
            channel.send({"right": finds(sample)})

    with Child(work, memory=4 << 30) as child:
        try:
            return bool(child.answer(seconds=60)[0]["right"])
        except Gone:
            return False


def _allclose(sample: Any) -> bool:
    example = sample.make()
    expected = sample.reference(*sample.make())
    actual = sample.kernel(*example)
    try:
        return all(
            torch.allclose(a, b, equal_nan=True) for a, b in zip(_tensors(actual), _tensors(expected), strict=True)
        )
    except (RuntimeError, ValueError):
        return False


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _opcheck(sample: Any) -> bool:
    example = sample.make()
    kinds = {torch.Tensor: "Tensor", float: "float", int: "int"}
    arguments = ", ".join(f"{kinds[type(a)]} a{i}" for i, a in enumerate(example))
    results = "Tensor" if isinstance(sample.reference(*sample.make()), torch.Tensor) else "(Tensor, Tensor)"
    library: Any = torch.library.Library("torchsan_benchmark", "DEF")  # type: ignore[no-untyped-call]  # torch's own
    library.define(f"op({arguments}) -> {results}")
    library.impl("op", sample.kernel, "CPU")
    torch.library.register_fake("torchsan_benchmark::op", sample.reference, lib=library)
    try:
        torch.library.opcheck(torch.ops.torchsan_benchmark.op.default, example)
    except Exception:  # noqa: BLE001  # that is how it says so
        return False
    return True


def _triton_viz(sample: Any) -> bool:
    """Whether triton-viz sees no access out of bounds on the example; it looks at Triton only."""
    import triton_viz
    from triton.runtime.interpreter import InterpretedFunction
    from triton_viz.clients import Sanitizer

    client = Sanitizer(abort_on_error=False)
    names = sys.modules[sample.kernel.__module__].__dict__
    for name, value in list(names.items()):
        if type(value).__name__ in ("JITFunction", "Autotuner"):
            function = value.fn if type(value).__name__ == "JITFunction" else value
            kernel = InterpretedFunction(function) if function is not value else value
            names[name] = triton_viz.trace(client=client)(kernel)
    sample.kernel(*sample.make())
    return not client.records
