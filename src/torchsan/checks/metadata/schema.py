"""What an operator's schema promises: which arguments it writes, and which results may alias which arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.checks.metadata.facts import tensors_in

__all__ = ["Input", "inputs", "may_alias", "return_sets"]

_ANYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor among the arguments. `name` is the argument's, with a position in it if that is a list.

    `sets` are the names by which the schema says what it may share memory with.
    """

    name: str
    tensor: torch.Tensor
    written: bool
    sets: frozenset[str]


def inputs(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Input]:
    """The tensors among the arguments, in the order in which a tree walk meets them."""
    arguments = list(overload._schema.arguments)
    by_name = {a.name: a for a in arguments}
    given = [(arguments[i], v) for i, v in enumerate(args) if i < len(arguments)]
    given += [(by_name[k], v) for k, v in kwargs.items() if k in by_name]
    for argument, value in given:
        info = argument.alias_info
        for i, tensor in enumerate(tensors_in(value)):
            yield Input(
                name=argument.name if isinstance(value, torch.Tensor) else f"{argument.name}[{i}]",
                tensor=tensor,
                written=info is not None and info.is_write,
                sets=_sets(info),
            )


def return_sets(overload: Any, path: str) -> frozenset[str]:
    """What the result at `path` (as `leaves` names it) may share memory with."""
    returns = overload._schema.returns
    if not returns:
        return frozenset()
    position = 0
    if len(returns) > 1 and path:
        position = int(path[1 : path.index("]")])
    return _sets(returns[position].alias_info) if position < len(returns) else frozenset()


def may_alias(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether the schema lets two tensors share memory. A set `*` may be anything."""
    return bool(one & other) or (_ANYTHING in one and bool(other)) or (_ANYTHING in other and bool(one))


def _sets(info: Any) -> frozenset[str]:
    if info is None:
        return frozenset()
    # A list of tensors has its names on its elements, where Python cannot see them: it may be any of them.
    return frozenset(s.rpartition("::")[2] for s in {*info.before_set, *info.after_set}) or frozenset({_ANYTHING})
