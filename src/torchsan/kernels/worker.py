"""The process that runs the kernel: it gets inputs, calls the kernel in guarded memory, and says all that it saw.

It judges nothing, and nothing that it says is executed where it is judged.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torchsan.kernels.arena import Arena, Block
from torchsan.kernels.contain import Channel, Conduct
from torchsan.kernels.inputs import flatten
from torchsan.kernels.patched import Names
from torchsan.kernels.wire import Wire, pack, unpack_into
from torchsan.torch_internals.inductor import compile_in_process

_KEPT = 6
"""How many earlier results are held, so that a later call that returns or changes one of them is seen."""


class Worker:
    """Runs calls of one kernel, one after the other."""

    def __init__(self, load: Callable[[], Callable[..., Any]], example: tuple[Any, ...], scratch: Path) -> None:
        """`load` gives the kernel: it may import a file; `example` has the arguments that are no tensors."""
        torch.set_num_threads(1)
        compile_in_process()
        self._leaves, self._rebuild = flatten(example)
        self._names = Names()
        self._conduct = Conduct(scratch)
        self._triton: AbstractContextManager[None] | None = None
        self._inputs: list[tuple[torch.Tensor, Block | None]] = []
        self._args: list[Any] = []
        self._earlier: list[tuple[list[torch.Tensor], list[str]]] = []
        self._arenas: list[Arena] = []
        with self._conduct.watched():
            self._interpret_triton(soon=True)
            self._kernel = load()
        self._patched_at_import = self._names.patched()

    def about(self) -> dict[str, Any]:
        """What is known of the kernel before it is called."""
        kernel = self._kernel
        schema = schema_of(kernel)
        writes = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write] if schema else []
        shares = any(r.alias_info is not None for r in schema.returns) if schema else False
        code = getattr(inspect.unwrap(kernel), "__code__", None) if callable(kernel) else None
        parameters: list[str] = []
        try:
            parameters = list(inspect.signature(kernel).parameters)
        except (TypeError, ValueError):
            parameters = [a.name for a in schema.arguments] if schema else []
        try:
            source = inspect.getsource(inspect.unwrap(kernel))
        except (TypeError, OSError):
            source = ""
        return {
            "name": schema.name if schema else getattr(kernel, "__name__", None) or type(kernel).__name__,
            "file": code.co_filename if code else "",
            "line": code.co_firstlineno if code else 0,
            "digest": hashlib.sha256(source.encode()).hexdigest() if source else "",
            "operator": schema.name if schema else "",
            "writes": writes,
            "shares": shares,
            "parameters": parameters,
            "fixed": has_fixed_grid(kernel),
            "patched": self._patched_at_import,
            "deeds": self._conduct.deeds,
        }

    def serve(self, channel: Channel) -> None:
        """Answer requests until nobody asks any more."""
        channel.send(self.about())
        while (message := channel.receive()) is not None:
            values, blobs = message
            channel.send(*self._call(values, blobs))

    def _interpret_triton(self, *, soon: bool = False) -> bool:
        """Interpret Triton's kernels from now on, if Triton is used; True if that is new. `soon`: it may be."""
        import importlib.util

        if self._triton is not None or not ("triton" in sys.modules or (soon and self._wants_triton())):
            return False
        if importlib.util.find_spec("triton") is None:
            return False
        try:
            from torchsan.torch_internals.triton_interpreter import interpreting
        except ImportError:
            return False  # Another Triton than the one that is known; a launch will say so.
        self._triton = interpreting()
        self._triton.__enter__()
        return True

    def _wants_triton(self) -> bool:
        return os.environ.get("TORCHSAN_KERNEL_FILE_USES_TRITON") == "1"

    def _call(self, request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        answer = self._once(request, blobs)
        # A kernel that imports Triton only when it is called has now done so.
        if "raised" in answer[0] and self._interpret_triton():
            answer = self._once(request, blobs)
        return answer

    def _fill(self, arena: Arena, request: dict[str, Any], blobs: list[bytes]) -> None:
        """Put the inputs into memory: new memory, or that of the call before."""
        if request["reuse"] and len(self._inputs) == len(blobs):
            for (t, block), blob in zip(self._inputs, blobs, strict=True):
                unpack_into(t, block, blob)
        else:
            self._place(arena, [Wire(**w) if w is not None else None for w in request["leaves"]], blobs)

    def _changed(self, before: list[bytes | None]) -> list[int]:
        """The numbers of the inputs that hold something else than before the call."""
        return [
            i
            for i, ((_, block), old) in enumerate(zip(self._inputs, before, strict=True))
            if block is not None and block.bytes().tobytes() != old
        ]

    def _once(self, request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        arena = Arena(request["empty"], request["guards"], fence=request["fence"])
        self._fill(arena, request, blobs)
        before = [None if block is None else block.bytes().tobytes() for _, block in self._inputs]
        self._conduct.deeds.clear()
        watch = self._launch_watch(request, arena)
        threads = _threads()
        torch.manual_seed(request["seed"])
        answer: dict[str, Any] = {}
        result = None
        began = time.process_time()
        try:
            with self._conduct.watched(), watch.attached() if watch else nullcontext(), arena.allocating():
                result = self._kernel(*self._rebuild(self._args))
        except BaseException as e:  # noqa: BLE001  # it may raise what it likes, SystemExit too
            answer["raised"] = _described(e)
        answer["seconds"] = time.process_time() - began
        arena.open()
        outputs, _ = flatten(result)
        tensors = [(i, o) for i, o in enumerate(outputs) if isinstance(o, torch.Tensor)]
        packed: list[bytes] = []
        answer["outputs"] = [self._output(o, packed) for o in outputs] if "raised" not in answer else []
        if _threads() > threads or threading.active_count() > 1:
            time.sleep(0.05)
            late = [i for i, o in tensors if _digest(o) != answer["outputs"][i].get("digest")]
            answer["late"] = late
        answer["written"] = self._changed(before)
        self._after(answer, packed, arena, [o for _, o in tensors])
        if watch is not None:
            answer["events"] = [asdict(e) for e in watch.events.values()]
            answer["launches"], answer["synchronises"] = watch.launches[:50], watch.synchronises
        return answer, packed

    def _after(self, answer: dict[str, Any], packed: list[bytes], arena: Arena, tensors: list[torch.Tensor]) -> None:
        """What is to be said of memory after a call: inputs, guards, earlier results."""
        for i in answer["written"]:
            answer.setdefault("left", {})[str(i)] = self._output(self._inputs[i][0], packed)
        answer["damages"] = [
            [b.name, b.itemsize, b.size, first, last] for a in (arena, *self._arenas) for b, first, last in a.damages()
        ]
        shared = {t.untyped_storage().data_ptr(): i for i, (t, _) in enumerate(self._inputs) if t.numel()}
        answer["aliases"] = [
            [n, shared[t.untyped_storage().data_ptr()]]
            for n, t in enumerate(tensors)
            if t.numel() and t.untyped_storage().data_ptr() in shared
        ]
        old = {t.untyped_storage().data_ptr() for kept, _ in self._earlier for t in kept if t.numel()}
        answer["again"] = [n for n, t in enumerate(tensors) if t.numel() and t.untyped_storage().data_ptr() in old]
        answer["changed"] = any(
            _digest(t) != d for kept, digests in self._earlier for t, d in zip(kept, digests, strict=True)
        )
        self._earlier = [*self._earlier, (tensors, [_digest(t) for t in tensors])][-_KEPT:]
        self._arenas = [*self._arenas, arena][-_KEPT:]
        answer["patched"] = self._names.patched()
        answer["deeds"] = list(self._conduct.deeds)
        answer["operators"] = dict(arena.operators)

    def _launch_watch(self, request: dict[str, Any], arena: Arena) -> Any:
        self._interpret_triton()
        if self._triton is None:
            return None
        from torchsan.kernels.launches import LaunchWatch

        inputs = [block for _, block in self._inputs if block is not None]
        return LaunchWatch(request["order"], request["seed"], lambda: [*inputs, *arena.blocks])

    def _place(self, arena: Arena, wires: list[Wire | None], blobs: list[bytes]) -> None:
        """Put the tensors of the request into guarded memory, and the numbers among the arguments in their places."""
        self._inputs, self._args = [], list(self._leaves)
        rest = iter(blobs)
        for i, wire in enumerate(wires):
            if wire is None:
                continue
            if wire.number is not None:
                self._args[i] = wire.number[0]
            elif wire.same is not None:
                self._args[i] = self._args[wire.same]
            else:
                t, block = arena.place(
                    f"input {i}", tuple(wire.size), tuple(wire.stride), wire.torch_dtype, lead=wire.lead
                )
                unpack_into(t, block, next(rest))
                if block is not None:
                    block.initialised = True
                self._inputs.append((t, block))
                self._args[i] = t.requires_grad_() if wire.grad else t

    def _output(self, value: Any, packed: list[bytes]) -> dict[str, Any]:
        if not isinstance(value, torch.Tensor):
            plain = value if isinstance(value, bool | int | float | str | None) else None
            return {"type": type(value).__name__, "value": repr(plain) if isinstance(plain, float) else plain}
        kind = type(value)
        plain_type = kind in (torch.Tensor, torch.nn.Parameter)
        t = value.detach()
        try:
            wire = pack(t.contiguous() if t.layout is torch.strided else t.to_dense(), packed)
        except (RuntimeError, NotImplementedError, TypeError) as e:
            return {"type": kind.__name__, "value": None, "unreadable": str(e)[:200]}
        head = {"type": "tensor" if plain_type else f"{kind.__module__}.{kind.__qualname__}", "digest": _digest(value)}
        return {**head, "wire": asdict(wire), "stride": list(t.stride()), "device": str(t.device)}


def schema_of(kernel: Any) -> Any:
    """The schema of an operator of torch.library, however it is given; None for what is none."""
    schema = getattr(overload_of(kernel), "_schema", None)
    return schema if hasattr(schema, "arguments") else None


def overload_of(kernel: Any) -> Any:
    """The overload behind an operator of torch.library, however it is given; anything else as it is."""
    overload = getattr(kernel, "_opoverload", kernel)
    return getattr(overload, "default", overload) if hasattr(overload, "overloads") else overload


def has_fixed_grid(kernel: Any) -> bool:
    """Whether it launches a Triton kernel on a grid that does not follow the arguments, so that sizes are fixed."""
    if getattr(kernel, "__qualname__", "").startswith("KernelInterface.__getitem__"):  # That is `kernel[grid]`.
        grid = inspect.getclosurevars(kernel).nonlocals.get("grid")
    else:
        grid = getattr(kernel, "torchsan_grid", None)
    return grid is not None and not callable(grid)


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _digest(t: torch.Tensor) -> str:
    try:
        data = t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):
        return ""
    return hashlib.sha256(data).hexdigest()[:16]


def _described(error: BaseException) -> dict[str, Any]:
    """An exception as text, with the innermost line that is not PyTorch's, Triton's or ours."""
    where, line = "", 0
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if not any(part in name for part in ("/torch/", "/triton/", "/torchsan/", "<frozen")):
                where, line = name, trace.tb_lineno
            trace = trace.tb_next
        error, cause = cause, cause.__cause__
    lines = str(error).strip().splitlines()
    return {"type": type(error).__name__, "text": lines[0][:300] if lines else "", "file": where, "line": line}
