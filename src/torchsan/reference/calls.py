"""Runs a call again from its inputs, under its own circumstances, in any arithmetic, and leaves no trace.

Operator by operator in a dispatch mode, because Dynamo's graph holds functions and methods where AOTAutograd's holds
operators, and because the backward of the eager graph has no nodes at all: all of them end in operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from torchsan.reference import users_kernels
from torchsan.reference.arithmetic import Arguments, Arithmetic, Operators, Unavailable, wide_dtype, widened
from torchsan.reference.aside import aside
from torchsan.reference.nudge import looks_at_bits, tensors_in
from torchsan.reference.random import SharedNumbers
from torchsan.torch_internals.dispatch import QuietMode
from torchsan.torch_internals.operators import is_higher_order, is_users_kernel, outside_modes, random_kept

_DEVICES = ("cpu", "cuda")
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


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
        with outside_modes():  # A mode of the program's, such as DebugMode, would be shown a `detach`.
            random = torch.get_rng_state()
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            random=random,
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Be as the call was, unseen by the program; afterwards be as before, also after an exception."""
        before = Circumstances.now()
        cache = torch.is_autocast_cache_enabled()
        try:
            with random_kept(), outside_modes(), torch.inference_mode(self.inference):
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


def unsupported(args: Iterable[Any]) -> str | None:
    """Why a call with these arguments cannot be run again; None if it can."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if type(arg) not in _PLAIN and not isinstance(arg, torch.nn.Buffer):
                return f"an input is a {type(arg).__name__}, a tensor subclass"
            if arg.layout is not torch.strided or arg.is_quantized or arg.device.type == "meta":
                return f"an input is {arg.layout} on {arg.device}"
        elif not isinstance(arg, int | float | bool | complex | str | None):
            return f"an input is a {type(arg).__name__}"
    return None


def fingerprint(args: Sequence[Any]) -> tuple[Any, ...]:
    """What a graph may have been specialised on without a guard: layouts, dtypes, and which inputs share memory."""
    found: list[Any] = []
    storages: dict[int, tuple[int, Any]] = {}
    for i, arg in enumerate(args):
        if type(arg) is torch.nn.Parameter or not isinstance(arg, torch.Tensor):
            continue
        found.append((arg.shape, arg.stride(), arg.dtype, arg.requires_grad))
        storage = arg.untyped_storage().data_ptr()
        if storage in storages:
            first, offset = storages[storage]
            found.append((first, i, arg.storage_offset() - offset))
        else:
            storages[storage] = (i, arg.storage_offset())
    return tuple(found)


def _overlapping(tensors: Mapping[int, torch.Tensor]) -> list[list[int]]:
    """The groups of tensors that share a storage."""
    groups: dict[int, list[int]] = {}
    for i, t in tensors.items():
        if t.numel():
            groups.setdefault(t.untyped_storage().data_ptr(), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


class Inputs:
    """The arguments as they are now; `copies` gives them anew, as often as one likes, also after they have changed.

    Parameters that the graph does not write are held, not copied. Two inputs that overlap still do.
    """

    def __init__(self, args: Sequence[Any], mutated: frozenset[int]) -> None:
        self._mutated = mutated
        tensors = {i: a for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
        parameters = {i for i, t in tensors.items() if isinstance(t, torch.nn.Parameter)}
        self._owned = {i for i in tensors if i in mutated or i not in parameters}
        self._args = [_copy(a, a.dtype) if i in self._owned else a for i, a in enumerate(args)]
        # The same parameter twice, which nobody writes, is no overlap worth keeping.
        shared = [g for g in _overlapping(tensors) if not parameters.issuperset(g)]
        self._leaf = {i for i, t in tensors.items() if t.is_leaf}
        self._requires_grad = {i for i, t in tensors.items() if t.requires_grad}
        self._bases: dict[int, torch.Tensor] = {}
        for group in shared:
            self._bases |= dict.fromkeys(group, _whole_storage(args[group[0]]))
        self._geometry = {i: (t.size(), t.stride(), t.storage_offset(), t._is_view()) for i, t in tensors.items()}
        held = tensors.keys() - self._owned
        self._versions = {i: tensors[i]._version for i in held if not tensors[i].is_inference()}

    def stale(self) -> bool:
        """Whether an input that is held, not copied, was written since."""
        return any(self._args[i]._version != version for i, version in self._versions.items())

    def copies(self, *, wide: bool) -> tuple[list[Any], list[torch.Tensor | None]]:
        """New arguments, in float64 if `wide`, and for each the leaf that its gradient is taken of.

        Raise Unavailable if overlapping inputs have several dtypes.
        """
        result: list[Any] = list(self._args)
        leaves: list[torch.Tensor | None] = [None] * len(result)
        storages: dict[int, torch.Tensor] = {}
        for i, arg in enumerate(self._args):
            if not isinstance(arg, torch.Tensor):
                continue
            if i in self._bases:
                result[i] = leaf = self._view(i, arg, storages, wide)
            else:
                result[i], leaf = self._alone(i, arg, wide)
            leaves[i] = leaf if leaf.requires_grad and leaf.is_leaf else None
        return result, leaves

    def writable(self, i: int) -> bool:
        """Whether the copies of this input are its own."""
        return i in self._owned

    def held(self, i: int) -> torch.Tensor | None:
        """The program's own tensor, where it is held, not copied."""
        arg = self._args[i]
        return arg if i not in self._owned and isinstance(arg, torch.Tensor) else None

    def _view(self, i: int, arg: torch.Tensor, storages: dict[int, torch.Tensor], wide: bool) -> torch.Tensor:
        base = self._bases[i]
        if arg.dtype != base.dtype:
            raise Unavailable("inputs of several dtypes share memory")
        key = id(base)
        if key not in storages:
            storages[key] = base.to(wide_dtype(base.dtype) if wide else base.dtype, copy=True)
        size, stride, offset, is_view = self._geometry[i]
        if is_view:
            view = storages[key].as_strided(size, stride, offset)
        else:
            view = torch.empty(0, dtype=storages[key].dtype).set_(storages[key].untyped_storage(), offset, size, stride)
        return view.requires_grad_() if i in self._requires_grad and view.is_leaf else view

    def _alone(self, i: int, arg: torch.Tensor, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = wide_dtype(arg.dtype) if wide else arg.dtype
        copy = _copy(arg, dtype) if self.writable(i) or dtype is not arg.dtype else arg.detach()
        if i in self._requires_grad:
            leaf = copy.requires_grad_()
            # What the program changes in place, it could: it was no leaf.
            return (leaf.clone() if i not in self._leaf and i in self._mutated else leaf), leaf
        return copy, copy


def _whole_storage(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.detach().untyped_storage()).clone()


def share_memory(a: torch.Tensor, b: Any) -> bool:
    """Whether two tensors that are not empty lie in one storage; False if `b` is none."""
    if not isinstance(b, torch.Tensor) or not a.numel() or not b.numel():
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _copy(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy with the same strides; with the same overlap inside, too."""
    t = t.detach()
    if t.numel() == 0:
        return torch.empty_strided(t.size(), t.stride(), dtype=dtype, device=t.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    if span == t.numel():
        return t.to(dtype, copy=True, memory_format=torch.preserve_format)
    return t.as_strided((span,), (1,)).to(dtype, copy=True).as_strided(t.size(), t.stride())


class Computing(QuietMode):
    """Runs every operator in one arithmetic, and random ones with numbers that all graphs of a compile share."""

    supports_higher_order_operators = True

    def __init__(self, arithmetic: Arithmetic, seed: int = 0, *, constant: bool = False) -> None:
        """`constant` makes all random numbers equal."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate its modes
        self.numbers = SharedNumbers(constant=constant)
        self._operators = Operators(arithmetic, seed, self.numbers)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_higher_order(func):
            if is_users_kernel(func):
                return self._operators.users_kernel(kwargs)
            raise NotImplementedError(f"{func} takes functions, which are not run operator by operator")
        return self._operators.call(func, args, kwargs, partial(_own_dtypes, func, args, kwargs))


class LastOperator(QuietMode):
    """Runs everything as it is, and knows the operator that was called last: the one that raises, if one does."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.called: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.called = func
        return func(*args, **(kwargs or {}))


class _GuardedKernels(QuietMode):
    """Runs everything as it is, but the user's Triton kernels on guarded memory."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return users_kernels.guarded(kwargs) if is_users_kernel(func) else func(*args, **kwargs)


def _own_dtypes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments, if they are in the program's dtypes as they are: after they were widened these are not known."""
    if looks_at_bits(func):
        raise Unavailable(f"{func} looks at the bits of a number")
    if any(t.dtype in (torch.float64, torch.complex128) for t in tensors_in((args, kwargs))):
        raise Unavailable(f"{func} may not take float64")
    return args, kwargs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """What a run gave: tensors by name (`output 0`, `input 2 after the call`, `gradient of input 1`), None for none.

    `aliases` are the pairs of an output and an input that share memory; `draws` is not 0 if random numbers were drawn.
    """

    tensors: Mapping[str, torch.Tensor | None]
    others: Mapping[str, Any] = field(default_factory=dict)
    aliases: frozenset[tuple[str, str]] = frozenset()
    draws: int = 0


class RepeatableCall:
    """One call that can be made again, as often as one likes, also after its arguments have changed."""

    def __init__(
        self,
        args: Sequence[Any],
        names: list[str],
        mutated: frozenset[int],
        number: int = 0,
        *,
        users_kernels: bool = False,
        users_code: bool = False,
    ) -> None:
        """`names` are those of the arguments, `mutated` the positions of those that may be written.

        `number` says which call it is, from 0. `users_kernels` tells that Triton kernels of the user's own are
        launched, which may write anywhere; `users_code` that code is called that is not PyTorch's own, which may do
        anything, and is therefore run in a child.
        """
        self.number = number
        self.users_code = users_code
        self._own = _GuardedKernels if users_kernels else nullcontext
        self.circumstances = Circumstances.now()
        with self.circumstances.restored(), torch.no_grad():
            self.inputs = Inputs(args, mutated)
            self.looks = fingerprint(args)
        self.names = names

    def run(
        self,
        function: Callable[[list[Any]], Any],
        arithmetic: Arithmetic | None,
        *,
        seed: int = 0,
        constant: bool = False,
        cotangents: Mapping[str, torch.Tensor] | None = None,
        inside: AbstractContextManager[Any] | None = None,
    ) -> Results:
        """Run on copies of the inputs; with `cotangents`, return the gradients of the inputs instead.

        `arithmetic` None is the program's own, with its own random numbers; `constant` makes all random numbers equal.
        It runs `inside` of that, its backward too.
        Whatever `function` raises is raised; Unavailable if a child is needed and there can be none.
        """
        run = partial(self._run, function, arithmetic, seed, constant, cotangents, inside or nullcontext())
        return aside(run) if self.users_code else run()

    def _run(
        self,
        function: Callable[[list[Any]], Any],
        arithmetic: Arithmetic | None,
        seed: int,
        constant: bool,
        cotangents: Mapping[str, torch.Tensor] | None,
        inside: AbstractContextManager[Any],
    ) -> Results:
        wide = arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH)
        mode = Computing(arithmetic, seed, constant=constant) if arithmetic is not None else None
        running: AbstractContextManager[Any] = mode if mode is not None else self._own()
        with self.circumstances.restored():
            args, leaves = self.inputs.copies(wide=wide)
            with running, inside:
                outputs = function(list(args))
                moved = not torch.equal(torch.get_rng_state(), self.circumstances.random)
                if cotangents is None:
                    results = self.results(outputs, args)
                else:
                    flowing = self.differentiable(outputs, args)
                    results = Results(tensors=self._gradients(flowing, leaves, cotangents, wide=wide))
        return replace(results, draws=mode.numbers.draws if mode is not None else int(moved))

    def results(self, outputs: Any, args: Sequence[Any]) -> Results:
        """Describe what a call returned and left behind in its arguments. Tensors are not copied."""
        named = named_outputs(outputs)
        tensors: dict[str, torch.Tensor | None] = {}
        aliases = set()
        for name, value in named.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value.detach()
                aliases |= {(name, n) for n, a in zip(self.names, args, strict=False) if share_memory(value, a)}
        tensors |= {name: arg.detach() for name, arg in self._left_behind(args)}
        others = {n: v for n, v in named.items() if not isinstance(v, torch.Tensor)}
        return Results(tensors=tensors, others=others, aliases=frozenset(aliases))

    def held_gradients(self, results: Results) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The parameters that are held, not copied, and their gradients among the results of a run."""
        for i, name in enumerate(self.names):
            held, gradient = self.inputs.held(i), results.tensors.get(f"gradient of {name}")
            if held is not None and gradient is not None:
                yield held, gradient

    def differentiable(self, outputs: Any, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The tensors that gradients may flow into: outputs, and inputs that were written."""
        named = {**named_outputs(outputs), **dict(self._left_behind(args))}
        return {n: v for n, v in named.items() if isinstance(v, torch.Tensor) and v.grad_fn is not None}

    def _left_behind(self, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for i, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and self.inputs.writable(i):
                yield f"{self.names[i]} after the call", arg

    def _gradients(
        self,
        flowing: dict[str, torch.Tensor],
        leaves: list[torch.Tensor | None],
        cotangents: Mapping[str, torch.Tensor],
        *,
        wide: bool,
    ) -> dict[str, torch.Tensor | None]:
        wanted = {f"gradient of {self.names[i]}": leaf for i, leaf in enumerate(leaves) if leaf is not None}
        starts = [n for n in flowing if n in cotangents]
        if not starts or not wanted:
            return dict.fromkeys(wanted)
        vectors = [widened(cotangents[n]) if wide else cotangents[n] for n in starts]
        found = torch.autograd.grad([flowing[n] for n in starts], list(wanted.values()), vectors, allow_unused=True)
        return {n: g.detach() if g is not None else None for n, g in zip(wanted, found, strict=True)}


def named_outputs(outputs: Any) -> dict[str, Any]:
    """The outputs of Dynamo's graph by name."""
    items = outputs if isinstance(outputs, tuple | list) else [outputs]
    return {f"output {i}": o for i, o in enumerate(items)}
