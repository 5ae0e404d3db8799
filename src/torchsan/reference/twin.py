"""The user's own Python beside a compiled call: run in forked children from the same state, and asked what it did.

One child runs the call eagerly while the program runs it compiled, and stays for the backward. Another one waits, in
the state before the call, for the question what the call gives in another arithmetic.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsan.errors import in_one_line
from torchsan.reference.arithmetic import Arithmetic, Unavailable, widened
from torchsan.reference.autograd_region import Region
from torchsan.reference.calls import Computing, share_memory
from torchsan.reference.isolation import Refused, fork_isolated, in_grandchild, waiting
from torchsan.reference.reachable import Reachable, reachable, returned
from torchsan.reference.wire import NoAnswer, ask, receive, send
from torchsan.tensors import digest
from torchsan.torch_internals.compiled_calls import running_eagerly, unwrapped
from torchsan.torch_internals.operators import random_state

_SMALL = 1 << 16
"""Bytes up to which a tensor is sent unasked."""

Autocast = tuple[tuple[str, bool, torch.dtype], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of one tensor after a call; `tensor` is None if it was not sent."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    digest: str
    requires_grad: bool
    tensor: torch.Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What a call returned and left behind: `output …` is what it returned, every other name what it could reach.

    `aliases` are pairs of an output and something reachable before the call that share memory, `same` those that are
    one object. `random` stands for where all random numbers are afterwards; `drew` says whether any were drawn.
    """

    tensors: Mapping[str, Told]
    values: Mapping[str, Any]
    aliases: frozenset[tuple[str, str]]
    same: frozenset[tuple[str, str]]
    random: str
    drew: bool


class TwinFailed(Exception):
    """There is no answer; the message says why."""


class TwinRaised(TwinFailed):
    """The user's Python ended with an exception: `error`, in one line."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return f"it raises {self.error}"


class Call:
    """One call of the user's function, in the parent and in its children alike."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.before = reachable(fn, args, kwargs)
        self.start = random_state()
        self.region = Region(self.before.tensors) if torch.is_grad_enabled() else None

    def after(self, result: Any, wanted: Callable[[str, torch.Tensor], bool]) -> tuple[After, dict[str, torch.Tensor]]:
        """Describe what the call did; with the tensors that are `wanted`, and all tensors."""
        # Compiled code may return one tensor for two that Python makes of the same memory.
        outputs = returned(result, again=True)
        now = reachable(self.fn, self.args, self.kwargs)
        tensors = {n: t for n, t in (outputs.tensors | now.tensors).items() if unwrapped(t)}
        told = {
            name: Told(
                shape=tuple(t.shape),
                dtype=t.dtype,
                digest=digest(t),
                requires_grad=t.requires_grad,
                tensor=t.detach() if wanted(name, t) else None,
            )
            for name, t in tensors.items()
        }
        end = random_state()
        after = After(
            tensors=told,
            values=outputs.values | now.values,
            aliases=frozenset(_pairs(outputs, self.before, share_memory)),
            same=frozenset(_pairs(outputs, self.before, lambda a, b: a is b)),
            random=end,
            drew=end != self.start,
        )
        return after, tensors


def _pairs(outputs: Reachable, before: Reachable, related: Callable[[Any, Any], bool]) -> Any:
    given = {n: t for n, t in before.tensors.items() if unwrapped(t)}
    return {(n, m) for n, t in outputs.tensors.items() if unwrapped(t) for m, g in given.items() if related(t, g)}


class Twin:
    """The children of one call, seen from the program. `close` ends them; so does the end of this object."""

    def __init__(self, call: Call) -> None:
        """Fork them, in the state before the call. Raise OSError if that cannot be done."""
        self._live, self._spare = fork_isolated(lambda end: _live(call, end), lambda end: _spare(call, end))

    def after(self) -> After:
        """What the user's Python did. Raise TwinFailed if it did not come to an end."""
        answer: After = _ask(self._live, None)
        return answer

    def tensors(self, names: list[str]) -> dict[str, torch.Tensor]:
        """What the user's Python left in these, or returned as these."""
        answer: dict[str, torch.Tensor] = _ask(self._live, ("tensors", names))
        return answer

    def gradients(self, cotangents: Mapping[str, torch.Tensor], autocast: Autocast) -> dict[str, torch.Tensor]:
        """What the user's backward gives from these cotangents, to be asked once."""
        answer: dict[str, torch.Tensor] = _ask(self._live, ("gradients", dict(cotangents), autocast))
        return answer

    def again(
        self,
        arithmetic: Arithmetic,
        seed: int,
        gradients: tuple[Mapping[str, torch.Tensor], Autocast] | None,
        wanted: frozenset[str],
    ) -> dict[str, Any]:
        """Tensors and plain values after the call in another arithmetic, or gradients from these cotangents, by name.

        Raise Unavailable if it has none, TwinFailed if it did not come to an end.
        """
        answer: dict[str, Any] = _ask(self._spare, (arithmetic, seed, gradients, wanted))
        return answer

    def close(self) -> None:
        """Let the children end."""
        self._live.close()
        self._spare.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


def _live(call: Call, end: socket.socket) -> None:
    """In the first child: run the call, and answer what is asked about it."""
    with ExitStack() as stack:
        stack.enter_context(running_eagerly())
        try:
            result = call.fn(*call.args, **call.kwargs)
            outputs = returned(result)
            after, tensors = call.after(
                result, lambda name, t: name in outputs.tensors or t.numel() * t.element_size() <= _SMALL
            )
        except (Exception, Refused) as e:  # noqa: BLE001  # the parent says that and why there is no answer
            send(end, _failure(e))
            return
        send(end, after)
        while True:
            with waiting():
                question = receive(end)
            if question is None:
                return
            try:
                send(end, _answer(call, question, result, tensors))
            except (Exception, Refused) as e:  # noqa: BLE001  # as above
                send(end, _failure(e))


def _answer(call: Call, question: tuple[Any, ...], result: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if question[0] == "tensors":
        return {name: tensors[name].detach() for name in question[1] if name in tensors}
    return _gradients(call, result, *question[1:])


def _gradients(call: Call, result: Any, cotangents: dict[str, torch.Tensor], autocast: Autocast) -> Any:
    assert call.region is not None
    for device, enabled, dtype in autocast:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    return call.region.differentiate(returned(result).tensors, cotangents)


def _spare(call: Call, end: socket.socket) -> None:
    """In the second child: for each question, fork a child that runs the call once more."""
    while True:
        with waiting():
            question = receive(end)
        if question is None:
            return
        in_grandchild(lambda question=question: _once_more(call, end, *question))  # type: ignore[misc]  # bound now


def _once_more(
    call: Call, end: socket.socket, arithmetic: Arithmetic, seed: int, gradients: Any, wanted: frozenset[str]
) -> None:
    try:
        with ExitStack() as stack:
            stack.enter_context(running_eagerly())
            if arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH) and call.region is not None:
                for leaf in call.region.leaves.values():  # Of this process alone. Gradients have their leaf's dtype.
                    leaf.data = widened(leaf.data)
            mode = Computing(arithmetic, seed) if arithmetic is not Arithmetic.EAGER else None
            if mode is not None:
                stack.enter_context(mode)
            result = call.fn(*call.args, **call.kwargs)
            answer = _gradients(call, result, *gradients) if gradients is not None else None
        if answer is None:
            after, tensors = call.after(result, lambda _name, _t: False)
            answer = {**after.values, **{name: t.detach() for name, t in tensors.items()}}
        answer = {name: value for name, value in answer.items() if name in wanted}
    except (Exception, Refused) as e:  # noqa: BLE001  # as above
        # A function that asks for dtypes may have no meaning in float64.
        answer = Unavailable(str(e)) if arithmetic is not Arithmetic.EAGER else _failure(e)
    send(end, answer)


def _failure(error: BaseException) -> TwinFailed:
    if isinstance(error, Refused):
        return TwinFailed(str(error).strip().partition("\n")[0][:200])
    return TwinRaised(in_one_line(error))


def _ask(end: socket.socket, question: Any) -> Any:
    try:
        return ask(end, question)
    except NoAnswer as e:
        raise TwinFailed(str(e)) from e
