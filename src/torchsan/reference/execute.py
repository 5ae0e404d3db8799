"""Runs a rung from the inputs of a call, under the call's own circumstances, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsan.reference.arithmetic import Computing, widened
from torchsan.reference.inputs import Inputs
from torchsan.reference.replay import Arithmetic
from torchsan.torch_internals.operators import outside_modes

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What else a call depends on: gradients on or off, autocast, and where the random numbers stand."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    random: torch.Tensor = field(repr=False)

    @classmethod
    def now(cls) -> Circumstances:
        """Those of the call that is being made."""
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            random=torch.get_rng_state(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Be as the call was, unseen by the program; afterwards be as before, also after an exception."""
        before = Circumstances.now()
        cache = torch.is_autocast_cache_enabled()
        try:
            with outside_modes(), torch.inference_mode(self.inference):
                self._apply()
                torch.set_autocast_cache_enabled(False)
                yield
        finally:
            before._apply()
            torch.set_autocast_cache_enabled(cache)

    def _apply(self) -> None:
        torch.set_grad_enabled(self.grad)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_rng_state(self.random)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """What a run gave: tensors by name (`output 0`, `input 2 after the call`, `gradient of input 1`), None for none.

    `aliases` are the pairs of an output and an input that share memory.
    """

    tensors: Mapping[str, torch.Tensor | None]
    others: Mapping[str, Any] = field(default_factory=dict)
    aliases: frozenset[tuple[str, str]] = frozenset()
    draws: int = 0


def named_outputs(outputs: Any) -> dict[str, Any]:
    """The outputs of Dynamo's graph by name."""
    items = outputs if isinstance(outputs, tuple | list) else [outputs]
    return {f"output {i}": o for i, o in enumerate(items)}


def results_of(outputs: Any, args: list[Any], names: list[str], inputs: Inputs) -> Results:
    """Describe what a call returned and left behind in its arguments. Tensors are not copied."""
    named = named_outputs(outputs)
    tensors: dict[str, torch.Tensor | None] = {}
    aliases = set()
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach()
            aliases |= {(name, names[i]) for i, a in enumerate(args) if _share(value, a)}
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and inputs.writable(i):
            tensors[f"{names[i]} after the call"] = arg.detach()
    others = {n: v for n, v in named.items() if not isinstance(v, torch.Tensor)}
    return Results(tensors=tensors, others=others, aliases=frozenset(aliases))


def differentiable(outputs: Any, args: list[Any], inputs: Inputs, names: list[str]) -> dict[str, torch.Tensor]:
    """The tensors that gradients may flow into: outputs, and inputs that were written."""
    found = {n: v for n, v in named_outputs(outputs).items() if isinstance(v, torch.Tensor) and v.grad_fn is not None}
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and inputs.writable(i) and arg.grad_fn is not None:
            found[f"{names[i]} after the call"] = arg
    return found


def execute(
    run: Callable[[list[Any]], Any],
    inputs: Inputs,
    names: list[str],
    circumstances: Circumstances,
    arithmetic: Arithmetic | None,
    *,
    seed: int = 0,
    loaded: bool = False,
    cotangents: Mapping[str, torch.Tensor] | None = None,
) -> Results:
    """Run on copies of the inputs; with `cotangents`, return the gradients of the inputs instead.

    `arithmetic` None is the program's own, with its own random numbers. Whatever `run` raises is raised.
    """
    wide = arithmetic is Arithmetic.EXACT
    with circumstances.restored(), ExitStack() as stack:
        args, leaves = inputs.copies(wide=wide)
        mode = None
        if arithmetic is not None:
            mode = stack.enter_context(Computing(arithmetic, seed, loaded=loaded))
        given = list(args)
        outputs = run(given)
        moved = not torch.equal(torch.get_rng_state(), circumstances.random)
        if cotangents is None:
            results = results_of(outputs, args, names, inputs)
            draws = mode.draws if mode is not None else int(moved)
            return Results(tensors=results.tensors, others=results.others, aliases=results.aliases, draws=draws)
        flowing = differentiable(outputs, args, inputs, names)
        tensors = _gradients(flowing, leaves, names, cotangents, wide=wide)
        return Results(tensors=tensors, draws=mode.draws if mode is not None else int(moved))


def _gradients(
    flowing: dict[str, torch.Tensor],
    leaves: list[torch.Tensor | None],
    names: list[str],
    cotangents: Mapping[str, torch.Tensor],
    *,
    wide: bool,
) -> dict[str, torch.Tensor | None]:
    wanted = {f"gradient of {names[i]}": leaf for i, leaf in enumerate(leaves) if leaf is not None}
    starts = [n for n in flowing if n in cotangents]
    if not starts or not wanted:
        return dict.fromkeys(wanted)
    vectors = [widened(cotangents[n]) if wide else cotangents[n] for n in starts]
    found = torch.autograd.grad([flowing[n] for n in starts], list(wanted.values()), vectors, allow_unused=True)
    return {n: g.detach() if g is not None else None for n, g in zip(wanted, found, strict=True)}


def _share(output: torch.Tensor, arg: Any) -> bool:
    if not isinstance(arg, torch.Tensor) or not output.numel() or not arg.numel():
        return False
    return output.untyped_storage().data_ptr() == arg.untyped_storage().data_ptr()
