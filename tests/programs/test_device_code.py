"""Programs that were generated for CUDA, run on CPU tensors: the instruments on device guards, streams and buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import torchsan
from torchsan.recording import Reader

pytest.importorskip("triton")
from tools import cuda_wrappers

from tests import triton_on_cpu
from tests.planted.plant import planted

WRAPPERS = Path(__file__).parents[1] / "data" / "cuda-wrappers" / "2.13"


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


class _Context:
    """A device or a stream that counts how often it is entered, and waits for nothing unasked."""

    cuda_stream = 0

    def __init__(self, calls: Counter[str], name: str) -> None:
        self._calls, self._name = calls, name

    def __enter__(self) -> _Context:
        self._calls[self._name] += 1
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        self._calls["synchronize"] += 1


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what a program, or whoever looks at it, asks of a device; its memory is the CPU's."""
    calls: Counter[str] = Counter()

    def count(name: str, result: Any = None) -> Callable[..., Any]:
        def called(*_: Any, **__: Any) -> Any:
            calls[name] += 1
            return result

        return called

    def allocate(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        calls["allocate"] += 1
        return torch.empty_strided(size, stride, dtype=dtype)

    changes: list[tuple[Any, str, Any]] = [
        (torch._C._dynamo.guards, "_empty_strided_cuda", allocate),
        (torch.cuda, "_DeviceGuard", lambda index: _Context(calls, "guard")),
        (torch.cuda, "set_device", count("set_device")),
        (torch.cuda, "current_stream", count("current_stream", _Context(calls, "stream"))),
        (torch.cuda, "synchronize", count("synchronize")),
        (torch.cuda.Stream, "synchronize", count("synchronize")),
        (torch.cuda.Event, "synchronize", count("synchronize")),
        (torch._C, "_cuda_getCurrentRawStream", count("raw_stream", 0)),
    ]
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(patch.object(target, name, value, create=True))
        import torch._dynamo.graph_bytecode_inputs as inputs

        stack.enter_context(
            patch.object(inputs, "get_external_object_by_index", lambda i: _Context(calls, f"user {i}"))
        )
        yield calls


def _retargeted(name: str, change: tuple[str, str] = ("", "")) -> Callable[[str], str]:
    """In the place of what was generated for the CPU, what was generated for CUDA."""
    text = (WRAPPERS / f"{name}.wrapper").read_text(encoding="utf-8")
    if "import copy_if_misaligned" in text and not hasattr(torch._C._dynamo.guards, "copy_if_misaligned"):
        pytest.skip("the code is of a PyTorch that copies what is misaligned otherwise than this one")
    text = text.replace("device_str='cuda'", "device_str='cpu'").replace("set_driver_to_gpu", "set_driver_to_cpu")
    assert change[0] in text
    return lambda _source: text.replace(*change) if change[0] else text


def _seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _misaligned(*shape: int) -> Tensor:
    """One that does not begin where vectors may: device code copies it first."""
    return _seeded(torch.Size(shape).numel() + 1)[1:].view(shape)


def _two_streams(x: Tensor, y: Tensor) -> Tensor:
    return x.sin().sum(-1) + y.cos().sum(-1)


SQUARE = (_seeded(64, 64),)
TWO = ("two_streams-0", _two_streams, (_seeded(64, 64), _seeded(64, 64)))
PROGRAMS: list[tuple[str, Callable[..., Any], tuple[Tensor, ...]]] = [
    TWO,
    ("pointwise-0", lambda x, y: (x.sin() + y).relu() * 2, (_misaligned(64, 65), _misaligned(65))),
    ("reductions-0", lambda x: (x.var(-1), x.argmax(0), x.cumsum(1)), (_seeded(64, 4100) / 64,)),
    ("scatter-0", lambda x, i: x.index_add(0, i, x), (_seeded(64, 8), torch.arange(64) % 7)),
    ("dynamic-0", lambda x: (x @ x.T).exp().sum(-1), (_seeded(60, 64) / 8,)),
    ("templates-0", lambda x, w: (x @ w).relu(), (_seeded(256, 64), _seeded(64, 128))),
    ("tensor_descriptors-0", lambda x, y: x.exp() + y, (_seeded(256, 64), _seeded(256, 64))),
    ("combo_kernels-0", lambda x, y, z: (x.sin(), y.cos(), z.sum(-1)), (_seeded(64), _seeded(80), _seeded(8, 90))),
    ("cudagraphs-0", lambda x: x.sin() @ x.cos(), SQUARE),
    ("partitions-0", lambda x: torch.topk((x @ x).exp(), 64)[0].cos() @ x, (_seeded(64, 64) / 8,)),
    ("users_kernel-0", lambda x: (x.sin() * 2).cos(), SQUARE),
    ("users_descriptors-0", lambda x, y: (x.sin() + y).cos(), (_seeded(64, 64), _seeded(64, 64))),
]


def _run(
    rewrite: Callable[[str], str], function: Callable[..., Any], inputs: tuple[Tensor, ...], **options: Any
) -> tuple[Any, Counter[str], Any]:
    """The session (None without options), what was asked of the device, and the result."""
    torch._dynamo.reset()
    session: Any = torchsan.session(**options) if options else nullcontext()
    with counted() as calls, session as run, planted(rewrite):
        result = torch.compile(function)(*inputs)
    return run, calls, result


@pytest.mark.parametrize(
    ("name", "function", "inputs"),
    [pytest.param(*p, id=p[0], marks=() if p is TWO else pytest.mark.slow) for p in PROGRAMS],
)
def test_device_code_runs_watched_and_does_the_same(
    name: str, function: Callable[..., Any], inputs: tuple[Tensor, ...], tmp_path: Path
) -> None:
    _, plain, _ = _run(_retargeted(name), function, inputs)
    run, calls, result = _run(_retargeted(name), function, inputs, check="memory", watch="names", out=tmp_path / "run")
    torch.testing.assert_close(result, function(*inputs))
    assert not run.findings
    assert not run.coverage.skipped
    assert run.coverage.buffers_checked == run.coverage.buffers > 0
    # Each launch is named, and the device is asked for nothing more than without torchsan.
    assert calls == plain
    assert calls["guard"] == calls["set_device"] > 0
    assert calls["raw_stream"] > 0
    assert calls["allocate"] > 0
    assert calls["synchronize"] == 0
    assert len(list(Reader(tmp_path / "run").graphs())) == 1


def test_each_stream_of_the_program_is_entered() -> None:
    _, calls, _ = _run(_retargeted(TWO[0]), *TWO[1:])
    assert calls["user 0"] + calls["user 1"] == calls["raw_stream"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_streams-0", "pointwise-0", "cudagraphs-0"])
def test_naming_launches_waits_for_no_result(name: str) -> None:
    """Neither for the device nor for a value: a call that is not checked runs the program's operators and no others."""
    function, inputs = next(p[1:] for p in PROGRAMS if p[0] == name)

    def operators(**options: Any) -> Counter[str]:
        torch._dynamo.reset()
        session: Any = torchsan.session(**options) if options else nullcontext()
        with counted() as calls, session, planted(_retargeted(name)):
            compiled = torch.compile(function)
            compiled(*inputs)
            calls.clear()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                compiled(*inputs)
        ran = Counter({e.key: e.count for e in profile.key_averages() if e.key.startswith("aten::")})
        return ran + calls

    plain = operators()
    assert plain["raw_stream"] > 0
    assert operators(check="memory", calls=1, watch="names") == plain


@pytest.mark.slow
def test_a_training_step_is_followed_through_reused_buffers() -> None:
    torch.manual_seed(0)
    model = cuda_wrappers.Model()
    x = _seeded(256, 64)

    def rewritten(direction: str) -> Callable[[str], str]:
        return _retargeted(f"training_step-{int(direction == 'backward')}")

    torch._dynamo.reset()
    with (
        counted() as calls,
        torchsan.session(check="memory") as run,
        planted(rewritten("forward")),
        planted(rewritten("backward"), forward=False),
    ):
        torch.compile(model)(x).square().sum().backward()
    assert not run.findings
    assert not run.coverage.skipped
    assert run.coverage.buffers_checked == run.coverage.buffers > 10
    assert calls["guard"] == 2
    gradients = {n: p.grad for n, p in model.named_parameters()}
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients.values())


@pytest.mark.parametrize(
    ("name", "right", "wrong", "kind", "kernel"),
    [
        ("two_streams-0", "(x0), tmp2, xmask)", "(x0 + 2), tmp2, xmask)", "out-of-bounds-write",
         "triton_poi_fused_add_3"),
        ("two_streams-0", "tl.store(out_ptr0 + (x0), tmp4, xmask)", "pass", "uninitialized-read",
         "triton_poi_fused_add_3"),
        # The same memory while the second stream still reads it, as reuse that nobody ordered.
        ("two_streams-0", "buf3 = empty_strided_cuda((64, ), (1, ), torch.float32)", "buf3 = buf1",
         "clobbered-buffer", "triton_per_fused_sin_sum_1"),
        ("cudagraphs-0", "tl.store(out_ptr1 + (x0), tmp2, None)", "pass", "uninitialized-read", "extern_kernels.mm"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_faults_in_device_code_are_named(name: str, right: str, wrong: str, kind: str, kernel: str) -> None:
    function, inputs = next(p[1:] for p in PROGRAMS if p[0] == name)
    run, _, _ = _run(_retargeted(name, (right, wrong)), function, inputs, check="memory")
    assert (kind, kernel) in [(f.kind, f.kernel) for f in run.findings]
