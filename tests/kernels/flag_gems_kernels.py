"""Kernels that nobody here wrote: those of flag-gems, against PyTorch's operators, where there is no GPU."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from tests.kernels.samples import Collection, Sample, normal
from torchsan.torch_internals.triton_interpreter import interpreting

_GPU = SimpleNamespace(
    name="none",
    multi_processor_count=16,
    total_memory=8 << 30,
    major=9,
    minor=0,
    L2_cache_size=1 << 22,
    shared_memory_per_block_optin=1 << 17,
)
_ASKED: dict[str, Any] = {
    "get_device_name": lambda *_: "none",
    "get_device_properties": lambda *_: _GPU,
    "get_device_capability": lambda *_: (9, 0),
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "device": lambda *_: nullcontext(),
}
"""What the library asks of a GPU when it is imported, and around every launch."""


def gems() -> Any:
    """Import flag-gems as if there were a GPU, whose kernels are then interpreted."""
    os.environ.setdefault("GEMS_VENDOR", "nvidia")
    for name, answer in _ASKED.items():
        setattr(torch.cuda, name, answer)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"GEMS_VENDOR": "nvidia"}))
        stack.enter_context(interpreting())
        import flag_gems
        from flag_gems.utils.tensor_wrapper import StridedBuffer

    # Its tensors in the place of tensors lack what the interpreter asks for.
    StridedBuffer.new_empty = lambda self, *_, **__: copy.copy(self)
    StridedBuffer.set_ = lambda self, *_: self
    StridedBuffer.untyped_storage = lambda self: self._base.untyped_storage()
    StridedBuffer.storage_offset = lambda self: 0
    StridedBuffer.base = property(lambda self: self._base)
    return flag_gems


def _first(function: Any) -> Any:
    return lambda *args: function(*args)[0]


def _x() -> tuple[Any, ...]:
    return (normal(6, 40),)


def _xy() -> tuple[Any, ...]:
    return normal(6, 40), normal(6, 40, seed=1)


_OPERATORS: dict[str, tuple[Any, Any]] = {
    "relu": (torch.relu, _x),
    "exp": (torch.exp, _x),
    "sigmoid": (torch.sigmoid, _x),
    "tanh": (torch.tanh, _x),
    "gelu": (F.gelu, _x),
    "silu": (F.silu, _x),
    "abs": (torch.abs, _x),
    "neg": (torch.neg, _x),
    "rsqrt": (torch.rsqrt, lambda: (normal(6, 40).abs() + 0.1,)),
    "reciprocal": (torch.reciprocal, lambda: (normal(6, 40).abs() + 0.1,)),
    "sin": (torch.sin, _x),
    "cos": (torch.cos, _x),
    "erf": (torch.erf, _x),
    "add": (torch.add, _xy),
    "mul": (torch.mul, _xy),
    "sub": (torch.sub, _xy),
    "div_mode": (torch.div, _xy),
    "maximum": (torch.maximum, _xy),
    "minimum": (torch.minimum, _xy),
    "softmax": (lambda x, d: torch.softmax(x, d), lambda: (normal(6, 40), -1)),
    "log_softmax": (lambda x, d: torch.log_softmax(x, d), lambda: (normal(6, 40), -1)),
    "sum": (torch.sum, _x),
    "mean": (torch.mean, _x),
    "cumsum": (torch.cumsum, lambda: (normal(6, 40), -1)),
    "mm": (torch.mm, lambda: (normal(20, 24), normal(24, 12, seed=1))),
    "bmm": (torch.bmm, lambda: (normal(2, 10, 12), normal(2, 12, 9, seed=1))),
    "mv": (torch.mv, lambda: (normal(10, 12), normal(12, seed=1))),
    "dot": (torch.dot, lambda: (normal(40), normal(40, seed=1))),
    "outer": (torch.outer, lambda: (normal(10), normal(12, seed=1))),
    "triu": (torch.triu, _x),
    "flip": (torch.flip, lambda: (normal(6, 40), [0])),
    "prod": (torch.prod, lambda: (normal(3, 10),)),
    "max": (torch.max, _x),
    "min": (torch.min, _x),
    "all": (torch.all, lambda: (normal(6, 40) > 0,)),
    "any": (torch.any, lambda: (normal(6, 40) > 0,)),
    "argmax": (torch.argmax, lambda: (normal(6, 40), -1)),
    "amax": (torch.amax, lambda: (normal(6, 40), [-1])),
    "rms_norm": (lambda x, s, w: F.rms_norm(x, s, w, 1e-5), lambda: (normal(6, 40), [40], normal(40, seed=1))),
    "vector_norm": (torch.linalg.vector_norm, _x),
    "var_mean": (_first(torch.var_mean), _x),
    "mse_loss": (F.mse_loss, _xy),
}


def collected() -> list[Sample]:
    """The kernels by the names of the operators that they implement."""
    library, found = gems(), Collection()
    for name, (reference, make) in _OPERATORS.items():
        function = getattr(library, name, None)
        if function is not None:
            taken = _first(function) if name == "var_mean" else function
            found.samples.append(Sample(f"gems_{name}", taken, reference, make))
    return found.samples
