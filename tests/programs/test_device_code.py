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
    """Count what a program, or whoever looks at it, asks of a device."""
    calls: Counter[str] = Counter()

    def count(name: str, result: Any = None) -> Callable[..., Any]:
        def called(*_: Any, **__: Any) -> Any:
            calls[name] += 1
            return result

        return called

    changes: list[tuple[Any, str, Any]] = [
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
    """In the place of what was generated for the CPU, what was generated for CUDA, with its memory on the CPU."""
    text = (WRAPPERS / f"{name}.wrapper").read_text(encoding="utf-8")
    text = text.replace("empty_strided_cuda(", "empty_strided_cpu(").replace("device_str='cuda'", "device_str='cpu'")
    text = text.replace("set_driver_to_gpu", "set_driver_to_cpu")
    assert change[0] in text
    return lambda _source: text.replace(*change) if change[0] else text


def _two_streams(x: Tensor, y: Tensor) -> Tensor:
    return x.sin().sum(-1) + y.cos().sum(-1)


X, Y = torch.randn(64, 64), torch.randn(64, 64)


def _run(rewrite: Callable[[str], str], **options: Any) -> tuple[Any, Counter[str], Tensor]:
    """The session (None without options), what was asked of the device, and the result."""
    torch._dynamo.reset()
    session: Any = torchsan.session(**options) if options else nullcontext()
    with counted() as calls, session as run, planted(rewrite):
        result = torch.compile(_two_streams)(X, Y)
    return run, calls, result


def test_device_code_runs_watched_and_does_the_same(tmp_path: Path) -> None:
    _, plain, _ = _run(_retargeted("two_streams-0"))
    run, calls, result = _run(_retargeted("two_streams-0"), check="memory", watch="names", out=tmp_path / "run")
    torch.testing.assert_close(result, _two_streams(X, Y))
    assert not run.findings
    assert not run.coverage.skipped
    assert run.coverage.buffers_checked == run.coverage.buffers > 0
    # Each launch is named, and the device is asked for nothing more than without torchsan.
    assert calls == plain
    assert calls["guard"] == calls["set_device"] == 1
    assert calls["raw_stream"] == 5
    assert calls["user 0"] + calls["user 1"] == 5
    assert calls["synchronize"] == 0
    assert len(list(Reader(tmp_path / "run").graphs())) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "kind", "kernel"),
    [
        ("(x0), tmp2, xmask)", "(x0 + 2), tmp2, xmask)", "out-of-bounds-write", "triton_poi_fused_add_3"),
        ("tl.store(out_ptr0 + (x0), tmp4, xmask)", "pass", "uninitialized-read", "triton_poi_fused_add_3"),
    ],
)
@pytest.mark.slow
def test_faults_in_device_code_are_named(right: str, wrong: str, kind: str, kernel: str) -> None:
    run, _, _ = _run(_retargeted("two_streams-0", (right, wrong)), check="memory")
    assert (kind, kernel) in [(f.kind, f.kernel) for f in run.findings]
