"""A session leaves torch as it found it, and sees what was compiled before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch._dynamo.utils import counters
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd import graph_compile
from torch._inductor import compile_fx
from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering

import torchsan


def state() -> dict[str, Any]:
    """What of torch a session touches, as it is now."""
    probe = sys.modules.get("torchsan.ops.realize")
    return {
        "lowering": vars(GraphLowering)["_compile_to_module"],
        "inner": compile_fx._compile_fx_inner,
        "caches": [
            {n: v for n, v in vars(m).items() if n.startswith("should_use_")} for m in (aot_autograd, graph_compile)
        ],
        "inductor": torch._inductor.config.save_config_portable(),
        "functorch": torch._functorch.config.save_config_portable(),
        "finders": list(sys.meta_path),
        "listener": getattr(probe, "_listener", None),
    }


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos() @ x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Caches of our own, to look into."""
    folder = tmp_path_factory.mktemp("inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        torch._dynamo.reset()
        yield folder
        torch._dynamo.reset()


def cached(folder: Path) -> set[str]:
    """The entries of the FX graph cache and of the AOTAutograd cache."""
    return {str(p.relative_to(folder)) for kind in ("fxgraph", "aotautograd") for p in folder.glob(f"{kind}/**/*")}


def calls() -> list[Callable[..., Any]]:
    return [m.call for m in PyCodeCache.modules if hasattr(m, "call")]


def test_a_session_changes_nothing_for_good(folder: Path, tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 16).view(4, 4)
    compiled = torch.compile(f)
    before = compiled(x)
    entries, attached, old = cached(folder), state(), calls()
    assert entries, "the caches are not used here, so this tests nothing"
    found = {k: counters["inductor"][k] for k in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
    with torchsan.session(check="values", watch="save", out=tmp_path / "run") as run:
        # Compiled before the session, compiled anew inside it, without the caches.
        inside = compiled(x)
        assert run.coverage.kernels == 2
        assert state()["lowering"] is not attached["lowering"]
    assert cached(folder) == entries
    assert {k: counters["inductor"][k] for k in found} == found
    assert torch.equal(before, inside)
    assert state() == attached
    assert calls()[: len(old)] == old
    assert not any("torchsan" in type(call).__module__ for call in calls())
    # Afterwards it is compiled once more, as it was, and nobody watches.
    assert torch.equal(compiled(x), before)
    assert run.coverage.kernels == 2
    assert cached(folder) == entries


def test_a_session_that_is_left_by_an_exception_detaches_too(folder: Path) -> None:
    attached = state()
    with pytest.raises(ZeroDivisionError), torchsan.session(watch="names"):
        torch.compile(f)(torch.ones(4, 4))
        _ = 1 / 0
    assert state() == attached
    assert not any("torchsan" in type(call).__module__ for call in calls())


def test_a_session_without_compiling_detaches_too() -> None:
    attached = state()
    with torchsan.session(watch="print"):
        assert state()["lowering"] is not attached["lowering"]
    assert state() == attached
