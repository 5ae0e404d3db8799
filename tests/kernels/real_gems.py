"""Kernels that nobody here wrote: those of flag-gems and of flash-linear-attention, against PyTorch's operators.

Both ask for a GPU when they are imported and called; they get one in name only, and Triton's interpreter runs their
kernels.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

from tests.kernels.samples import Sample, normal
from torchsan.torch_internals.triton_interpreter import interpreting

_DEVICE = SimpleNamespace(multi_processor_count=4, name="none", major=8, minor=0, total_memory=1 << 30, warp_size=32)
_NAMES: dict[str, Any] = {
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "device": lambda *_: nullcontext(),
    "get_device_name": lambda *_: "none",
    "get_device_capability": lambda *_: (8, 0),
    "get_device_properties": lambda *_: _DEVICE,
}


@contextmanager
def _named_device() -> Iterator[None]:
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They miss other packages, and what a GPU would say of itself.
        for name, value in _NAMES.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        yield


@cache
def _imported(module: str) -> Any:
    # A contained kernel writes nowhere but to its scratch folder, so what it tunes stays in memory.
    environment = {
        "GEMS_VENDOR": "nvidia",
        "FLAGGEMS_CACHE_DIR": tempfile.gettempdir(),
        "FLAGGEMS_DB_URL": "sqlite://",
    }
    with _named_device(), interpreting(), patch.dict(os.environ, environment):
        found = import_module(module)
        if module.startswith("flag_gems"):
            # It keeps compiled kernels, and launches those; in an interpreter there are none.
            entry = import_module("flag_gems.utils.libentry").LibEntry
            entry.run = lambda self, *args, **kwargs: self.fn.run(*args, **kwargs)
            # It writes code, which a kernel that is refereed may do in its scratch folder only.
            code: Any = import_module("flag_gems.utils.code_cache")
            code.cache_dir_path = lambda: Path(tempfile.gettempdir())
            # Its stand-in for tensors has of their methods only those that a launch on a GPU needs.
            buffer = import_module("flag_gems.utils.tensor_wrapper").StridedBuffer
            buffer.untyped_storage = lambda self: self._base.untyped_storage()
            buffer.storage_offset = lambda self: self._base.storage_offset() + self.offset
            buffer.new_empty = lambda self, *args, **kwargs: self._base.new_empty(*args, **kwargs)
        return found


def _sample(name: str, kernel: Callable[..., Any], reference: Callable[..., Any], *example: Any) -> Sample:
    def called(*args: Any) -> Any:
        with _named_device():
            return kernel(*args)

    called.__name__ = name
    return Sample(name, called, reference, lambda: example)


def gems() -> list[Sample]:
    """Kernels of flag-gems. Importing it takes some seconds."""
    ops = _imported("flag_gems").ops
    x, y, w, b = normal(6, 40), normal(40, 12, seed=1), normal(40, seed=2), normal(40, seed=3)
    rows = torch.tensor([0, 3, 5, 2, 2])
    columns = torch.randint(0, 40, (6, 5), generator=torch.Generator().manual_seed(0))
    images = normal(2, 6, 5)

    def gems_sample(name: str, kernel: Callable[..., Any], reference: Callable[..., Any], *example: Any) -> Sample:
        return _sample(f"gems_{name}", kernel, reference, *example)

    return [
        gems_sample("softmax", lambda x: ops.softmax(x, -1), lambda x: torch.softmax(x, -1), x),
        gems_sample("log_softmax", lambda x: ops.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1), x),
        gems_sample("cumsum", lambda x: ops.cumsum(x, 1), lambda x: torch.cumsum(x, 1), x),
        gems_sample(
            "layer_norm",
            lambda x, w, b: ops.layer_norm(x, x.shape[-1:], w, b, 1e-5)[0],
            lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5),
            *(x, w, b),
        ),
        gems_sample(
            "rms_norm",
            lambda x, w: ops.rms_norm(x, x.shape[-1:], w, 1e-5),
            lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5),
            *(x, w),
        ),
        gems_sample(
            "group_norm",
            lambda x, w, b: ops.group_norm(x, w, b, x.shape[0], x.shape[1], x.shape[2], 2, 1e-5)[0],
            lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5),
            *(images, normal(6), normal(6, seed=1)),
        ),
        gems_sample("sum", lambda x: ops.sum(x), lambda x: x.sum(), x),
        gems_sample("sum_dim", lambda x: ops.sum_dim(x, [1]), lambda x: x.sum(1), x),
        gems_sample("mean", lambda x: ops.mean(x), lambda x: x.mean(), x),
        gems_sample("mean_dim", lambda x: ops.mean_dim(x, [1]), lambda x: x.mean(1), x),
        gems_sample("amax", lambda x: ops.amax(x, [1]), lambda x: x.amax(1), x),
        gems_sample("argmax", lambda x: ops.argmax(x, 1), lambda x: x.argmax(1), x),
        gems_sample("max_dim", lambda x: ops.max_dim(x, 1)[0], lambda x: x.max(1).values, x),
        gems_sample("prod_dim", lambda x: ops.prod_dim(x, 1), lambda x: x.prod(1), x),
        gems_sample("var_mean", lambda x: ops.var_mean(x, [1])[0], lambda x: x.var(1), x),
        gems_sample("vector_norm", lambda x: ops.vector_norm(x, 2, [1]), lambda x: x.norm(dim=1), x),
        gems_sample("mm", lambda x, y: ops.mm(x, y), lambda x, y: x @ y, x, y),
        gems_sample("bmm", lambda x, y: ops.bmm(x, y), torch.bmm, normal(2, 6, 20), normal(2, 20, 9, seed=1)),
        gems_sample("mv", lambda x, w: ops.mv(x, w), lambda x, w: x @ w, x, w),
        gems_sample("dot", lambda w, b: ops.dot(w, b), torch.dot, w, b),
        gems_sample("triu", lambda x: ops.triu(x, 0), torch.triu, x),
        gems_sample("index_select", lambda x, i: ops.index_select(x, 0, i), lambda x, i: x[i], x, rows),
        gems_sample("gather", lambda x, i: ops.gather(x, 1, i), lambda x, i: x.gather(1, i), x, columns),
        gems_sample("embedding", lambda x, i: ops.embedding(x, i), lambda x, i: F.embedding(i, x), x, rows),
        gems_sample("cummax", lambda x: ops.cummax(x, 1)[0], lambda x: x.cummax(1).values, x),
        gems_sample("relu", lambda x: ops.relu(x), torch.relu, x),
        gems_sample("gelu", lambda x: ops.gelu(x), F.gelu, x),
    ]


def linear_attention() -> list[Sample]:
    """Kernels of flash-linear-attention."""
    softmax, sums = _imported("fla.ops.utils.softmax"), _imported("fla.ops.utils.cumsum")
    logs, norm = _imported("fla.ops.utils.logsumexp"), _imported("fla.modules.l2norm")

    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    return [
        _sample("fla_softmax", softmax.softmax_fwd, lambda x: torch.softmax(x, -1), normal(6, 40)),
        _sample("fla_logsumexp", logs.logsumexp_fwd, lambda x: torch.logsumexp(x, -1), normal(6, 40)),
        _sample("fla_l2norm", lambda x: norm.l2norm_fwd(x)[0], normalised, normal(6, 40)),
        _sample("fla_cumsum", sums.chunk_global_cumsum_scalar, lambda x: x.cumsum(1), normal(2, 48, 3)),
        _sample("fla_cumsum_of_vectors", sums.chunk_global_cumsum_vector, lambda x: x.cumsum(1), normal(2, 40, 2, 8)),
    ]
