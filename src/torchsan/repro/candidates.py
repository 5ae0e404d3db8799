"""Candidates made from an exhibit: with fewer nodes, shorter dimensions, fewer of them, other dtypes.

Whether one makes sense, and still shows the finding, a trial says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torchsan.records import Exhibit, Given, OperatorCall


def cut(
    exhibit: Exhibit, keep: set[str] | None, values: Mapping[str, Given], outputs: tuple[str, ...] | None = None
) -> Exhibit:
    """Return the exhibit with only the nodes of `keep`, or those that `outputs` need.

    What they need of others becomes an input with the value that the other has. Without that value the node stays.
    """
    wanted = exhibit.outputs if outputs is None else outputs
    by_name = {n.name: n for n in exhibit.nodes}
    kept = set(by_name) if keep is None else set(keep)
    if keep is None:
        kept = _needed(by_name, wanted)
    while True:
        needed = {name for n in kept for name in references(by_name[n].args, by_name[n].kwargs)}
        missing = {n for n in needed - kept if n in by_name and n not in values}
        if not missing:
            break
        kept |= missing
    nodes = tuple(n for n in exhibit.nodes if n.name in kept)
    used = {name for n in nodes for name in references(n.args, n.kwargs)}
    results = tuple(o for o in wanted if o in kept) or tuple(n.name for n in nodes if n.name not in used)
    results = results or tuple(o for o in wanted if o not in by_name)
    inputs = [g for g in exhibit.inputs if g.name in used or g.name in results]
    inputs += [values[n.name] for n in exhibit.nodes if n.name in used - kept]
    names = {g.name for g in inputs}
    earlier = exhibit.earlier if names <= {g.name for g in exhibit.inputs} else ()
    return replace(
        exhibit,
        nodes=nodes,
        outputs=results,
        inputs=tuple(inputs),
        suspects=tuple(s for s in exhibit.suspects if s in kept),
        earlier=tuple(tuple(g for g in call if g.name in names) for call in earlier),
    )


def elements(exhibit: Exhibit) -> int:
    """How many numbers it is given."""
    return sum(math.prod(g.size) for g in exhibit.inputs)


def _needed(by_name: Mapping[str, OperatorCall], wanted: Iterable[str]) -> set[str]:
    found: set[str] = set()
    stack = [w for w in wanted if w in by_name]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += [r for r in references(by_name[name].args, by_name[name].kwargs) if r in by_name]
    return found


def references(*values: Any) -> Iterator[str]:
    """The nodes and inputs that arguments name."""
    for value in values:
        match value:
            case {"node": str(name)} if len(value) == 1:
                yield name
            case dict():
                yield from references(*value.values())
            case list() | tuple():
                yield from references(*value)


def resized(exhibit: Exhibit, old: int, new: int) -> Exhibit:
    """Return the exhibit with each dimension of length `old` made `new`; in lists of sizes among arguments, too."""

    def argument(value: Any, inside: bool = False) -> Any:
        if isinstance(value, list | tuple):
            return [argument(v, True) for v in value]
        return new if inside and type(value) is int and value == old else value

    def shorter(given: Given) -> Given:
        size = tuple(new if n == old else n for n in given.size)
        return (
            given
            if size == given.size or given.base is not None
            else replace(given, size=size, stride=_like(given, size))
        )

    return replace(
        exhibit,
        inputs=tuple(shorter(g) for g in exhibit.inputs),
        earlier=tuple(tuple(shorter(g) for g in call) for call in exhibit.earlier),
        nodes=tuple(replace(n, args=tuple(argument(a) for a in n.args)) for n in exhibit.nodes),
    )


def shrunk(exhibit: Exhibit, longest: int) -> Exhibit:
    """Return the exhibit with no dimension of an input longer than `longest`."""
    for length in sorted({n for g in exhibit.inputs for n in g.size if n > longest}):
        exhibit = resized(exhibit, length, longest)
    return exhibit


def _like(given: Given, size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps in the order in which the input's dimensions lie in memory; broadcast ones stay so."""
    strides, step = [0] * len(size), 1
    for i in sorted(range(len(size)), key=lambda i: (given.stride[i], -i)):
        if given.stride[i] == 0 and given.size[i] > 1:
            continue
        strides[i] = step
        step *= max(size[i], 1)
    return tuple(strides)


def leading_ones(exhibit: Exhibit) -> int:
    """How many dimensions of length one all inputs begin with that have the most dimensions."""
    rank = max((len(g.size) for g in exhibit.inputs), default=0)
    sizes = [g.size for g in exhibit.inputs if len(g.size) == rank]
    count = 0
    while count < rank and all(size[count] == 1 for size in sizes):
        count += 1
    return 0 if any(g.base is not None for g in exhibit.inputs) or exhibit.earlier else count


def flattened(exhibit: Exhibit, count: int, *, shift: bool) -> Exhibit:
    """Return the exhibit without the first `count` dimensions, each of length one, of inputs and lists of sizes.

    With `shift` other whole numbers among the arguments are taken to be dimensions, and counted from the new first.
    """
    rank = max(len(g.size) for g in exhibit.inputs)

    def argument(value: Any) -> Any:
        if isinstance(value, list | tuple):
            sizes = len(value) == rank and all(type(v) is int and v == 1 for v in value[:count])
            return list(value[count:]) if sizes else [argument(v) for v in value]
        return value - count if shift and type(value) is int and value >= count else value

    def lower(given: Given) -> Given:
        first = count if len(given.size) == rank else 0
        return replace(given, size=given.size[first:], stride=given.stride[first:])

    return replace(
        exhibit,
        inputs=tuple(lower(g) for g in exhibit.inputs),
        nodes=tuple(replace(n, args=tuple(argument(a) for a in n.args)) for n in exhibit.nodes),
    )


def retyped(exhibit: Exhibit, old: str, new: str) -> Exhibit:
    """Return the exhibit with one dtype for another, of inputs and where an operator is asked for it."""

    def argument(value: Any) -> Any:
        match value:
            case {"dtype": name} if name == old:
                return {"dtype": new}
            case list() | tuple():
                return [argument(v) for v in value]
        return value

    return replace(
        exhibit,
        inputs=tuple(replace(g, dtype=new) if g.dtype == old else g for g in exhibit.inputs),
        nodes=tuple(
            replace(n, args=tuple(map(argument, n.args)), kwargs={k: argument(v) for k, v in n.kwargs.items()})
            for n in exhibit.nodes
        ),
    )
