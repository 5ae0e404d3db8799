"""Makes a candidate smaller while it still shows the finding: configuration, nodes, values, sizes, strides, dtypes.

Everything is a list of smaller candidates, the boldest first; the first that shows the finding is taken. Whether one
makes sense at all, a trial says.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchsan.records import Exhibit, Given, OperatorCall
from torchsan.repro.trials import elements, leave_out
from torchsan.repro.values import Tensors, contiguous_stride, is_uniform

_MOST_SINGLES = 8
_FEW_ELEMENTS = 65536
_LEAPS = (1, 32)
"""To one element, and to a few vectors of them: what is wrong in vectorised code only needs that many."""
_PLAIN_DTYPES = frozenset(["float32", "int64", "bool"])


def reduce(
    exhibit: Exhibit,
    values: Mapping[str, Given],
    tensors: Tensors,
    first: Callable[[Iterable[Exhibit]], Exhibit | None],
    best: Callable[[Exhibit], None],
) -> Exhibit | None:
    """Return the smallest candidate found that shows the finding, None if not even the whole exhibit does.

    `first` returns the first of several candidates that shows it, and may raise to end it all. `best` is told of each
    that is taken on the way. `values` are inputs that can stand in for nodes.
    """
    reducer = _Reducer(exhibit, values, tensors, first, best)
    if not reducer.configuration():
        return None
    reducer.leap()
    reducer.nodes()
    reducer.values()
    reducer.sizes()
    reducer.layout()
    reducer.remaining_values()
    reducer.dimensions()
    reducer.dtypes()
    return reducer.now


@dataclass(slots=True)
class _Reducer:
    now: Exhibit
    _values: Mapping[str, Given]
    _tensors: Tensors
    _first: Callable[[Iterable[Exhibit]], Exhibit | None]
    _best: Callable[[Exhibit], None]

    def _take(self, candidates: Iterable[Exhibit]) -> bool:
        # A cut that has to be given far more numbers than before is no reduction.
        most = max(8 * elements(self.now), _FEW_ELEMENTS)
        found = self._first(c for c in candidates if c != self.now and elements(c) <= most)
        if found is None:
            return False
        self.now = found
        self._best(found)
        return True

    def configuration(self) -> bool:
        """Without settings, gradients and earlier calls, where they are not needed. False if nothing shows at all."""
        whole = self.now
        plain = replace(whole, config={}, dynamic=False, backward=False, earlier=())
        # A call that changes its arguments was recorded with what it left of them.
        found = self._first([plain, whole, replace(plain, inputs=tuple(map(_made_up, plain.inputs)))])
        if found is None:
            return False
        self._best(found)
        self.now = found
        if found != whole:
            return True
        self._take([replace(self.now, config={})])
        for key in whole.config if self.now.config else ():
            self._take([replace(self.now, config={k: v for k, v in self.now.config.items() if k != key})])
        self._take([replace(self.now, dynamic=False)])
        self._take([replace(self.now, earlier=())])
        self._take([replace(self.now, backward=False), replace(self.now, backward=False, grad=False)])
        return True

    def leap(self) -> None:
        """All at once, which is often enough: the last of the blamed nodes alone, made-up values, short lengths."""
        names = [n.name for n in self.now.nodes]
        blamed = [n for n in names if n in self.now.suspects] or names
        alone = cut(self.now, set(blamed[-1:]), self._values) if len(names) > 1 else self.now
        self._take(shrunk(self._simplified(alone, constant=False), length) for length in _LEAPS)

    def nodes(self) -> None:
        """One node alone, if that is enough; else leave out what can be left out, in halves, quarters, ones."""
        suspects = set(self.now.suspects) & {n.name for n in self.now.nodes}
        if 0 < len(suspects) < len(self.now.nodes):
            # What the blamed ones are written for may matter too: it decides where they put their results.
            users = {n.name for n in self.now.nodes if suspects & set(references(n))}
            self._take(cut(self.now, some, self._values) for some in (suspects, suspects | users))
        if len(self.now.outputs) > 1:
            self._take(only_output(self.now, o) for o in self.now.outputs[:_MOST_SINGLES])
        names = [n.name for n in self.now.nodes]
        if len(names) > 1:
            # The blamed ones first; among those the last, which is what the others lead to.
            blamed = [n for n in reversed(names) if n in suspects]
            ordered = [*blamed, *(n for n in reversed(names) if n not in suspects)]
            if self._take(cut(self.now, {n}, self._values) for n in ordered[:_MOST_SINGLES]):
                return
        leave_out(
            lambda: [n.name for n in self.now.nodes],
            lambda rests: self._take(cut(self.now, set(rest), self._values) for rest in rests if rest),
        )

    def values(self) -> None:
        """Made-up values for all inputs at once."""
        self._take(self._simplified(self.now, constant=constant) for constant in (False, True))

    def remaining_values(self) -> None:
        """Made-up values for each input that still has recorded ones."""
        for given in self.now.inputs:
            if self._recorded(given):
                self._take(self._simplified(self.now, given.name, constant=constant) for constant in (False, True))

    def _recorded(self, given: Given) -> bool:
        memory = self._tensors.memory(given)
        return memory is not None and not is_uniform(memory)

    def _simplified(self, exhibit: Exhibit, name: str | None = None, *, constant: bool) -> Exhibit:
        """The candidate with one number, or random numbers of its range, for the values of an input, or of all."""
        inputs = (self._simple(g, constant) if name in (None, g.name) else g for g in exhibit.inputs)
        return replace(exhibit, inputs=tuple(inputs))

    def _simple(self, given: Given, constant: bool) -> Given:
        memory = self._tensors.memory(given)
        if memory is None or memory.numel() == 0 or given.base is not None or is_uniform(memory):
            return given
        if constant:
            return replace(given, fill=f"full {memory[0].item()!r}") if not memory.is_complex() else given
        if memory.is_floating_point() or memory.is_complex():
            return replace(given, fill="randn 0")
        wide = memory.long()
        return replace(given, fill=f"randint {int(wide.min())} {int(wide.max()) + 1} 0")

    def sizes(self) -> None:
        """Each length that dimensions have, made as short as it can be."""
        for length in sorted({n for g in self.now.inputs for n in g.size if n > 1}, reverse=True):
            shorter = [s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if s < length]
            if length // 2 not in shorter and length > 3:
                shorter.append(length // 2)
            self._take(resized(self.now, length, s) for s in sorted(shorter))

    def layout(self) -> None:
        """No gaps and no permutations in memory, no gradients that nobody takes."""
        plain = mapped(self.now, lambda g: g if g.base is not None else replace(g, stride=contiguous_stride(g.size)))
        self._take([replace(self.now, inputs=plain.inputs)])

    def dimensions(self) -> None:
        """No dimensions of length one in front."""
        count = leading_ones(self.now)
        if count:
            self._take(flattened(self.now, count, shift=shift) for shift in (False, True))

    def dtypes(self) -> None:
        """float32 and int64, where the values are made up anyway."""
        for dtype in sorted({g.dtype for g in self.now.inputs} - _PLAIN_DTYPES):
            if not any(self._recorded(g) for g in self.now.inputs if g.dtype == dtype):
                self._take([retyped(self.now, dtype, "int64" if "int" in dtype else "float32")])


def _made_up(given: Given) -> Given:
    """The input with random numbers for its values, if it is no index and shares no memory."""
    if given.base is not None or "float" not in given.dtype:
        return given
    return replace(given, fill="randn 0")


def cut(exhibit: Exhibit, keep: set[str], values: Mapping[str, Given]) -> Exhibit:
    """Return the exhibit with only the nodes of `keep`.

    What they need of others becomes an input with the value that the other has. Without that value the node stays.
    """
    nodes = {n.name: n for n in exhibit.nodes}
    kept = _closed(nodes, keep, values)
    used = {name for n in kept for name in references(nodes[n])}
    outputs = _outputs(exhibit, kept, used)
    inputs = [g for g in exhibit.inputs if g.name in used or g.name in outputs]
    inputs += [values[n] for n in nodes if n in used - kept]
    names = {g.name for g in inputs}
    # Nobody knows what the values of nodes were in earlier calls.
    earlier = exhibit.earlier if names <= {g.name for g in exhibit.inputs} else ()
    return replace(
        exhibit,
        nodes=tuple(n for n in exhibit.nodes if n.name in kept),
        outputs=outputs,
        inputs=tuple(inputs),
        suspects=tuple(s for s in exhibit.suspects if s in kept),
        earlier=tuple(tuple(g for g in call if g.name in names) for call in earlier),
    )


def _closed(nodes: Mapping[str, OperatorCall], keep: Iterable[str], known: Container[str]) -> set[str]:
    """The nodes of `keep` and all that they need of nodes that are not known."""
    kept: set[str] = set()
    stack = list(keep)
    while stack:
        name = stack.pop()
        if name not in kept:
            kept.add(name)
            stack += [n for n in references(nodes[name]) if n in nodes and n not in known]
    return kept


def _outputs(exhibit: Exhibit, kept: set[str], used: set[str]) -> tuple[str, ...]:
    """The outputs that are left; else what no node uses; else, if no node is left, the inputs that are returned."""
    left = tuple(o for o in exhibit.outputs if o in kept)
    unused = tuple(n.name for n in exhibit.nodes if n.name in kept - used)
    nodes = {n.name for n in exhibit.nodes}
    return left or unused or tuple(o for o in exhibit.outputs if o not in nodes)


def only_output(exhibit: Exhibit, output: str) -> Exhibit:
    """Return the exhibit with one output, and the nodes that it needs."""
    nodes = {n.name: n for n in exhibit.nodes}
    needed = _closed(nodes, [output] if output in nodes else [], ())
    return cut(replace(exhibit, outputs=(output,)), needed, {})


def references(node: OperatorCall) -> Iterator[str]:
    """The nodes and inputs that the arguments of a node name."""
    stack: list[Any] = [*node.args, *node.kwargs.values()]
    while stack:
        match stack.pop():
            case {"node": str(name), **rest} if not rest:
                yield name
            case dict() as value:
                stack += value.values()
            case list() | tuple() as value:
                stack += value


def mapped(
    exhibit: Exhibit, given: Callable[[Given], Given], argument: Callable[[Any], Any] = lambda value: value
) -> Exhibit:
    """The exhibit with each input, and each argument of a call, replaced by what a function makes of it."""
    return replace(
        exhibit,
        inputs=tuple(map(given, exhibit.inputs)),
        earlier=tuple(tuple(map(given, call)) for call in exhibit.earlier),
        nodes=tuple(
            replace(n, args=tuple(map(argument, n.args)), kwargs={k: argument(v) for k, v in n.kwargs.items()})
            for n in exhibit.nodes
        ),
    )


def resized(exhibit: Exhibit, old: int, new: int) -> Exhibit:
    """Return the exhibit with each dimension of length `old` made `new`; in lists of sizes among arguments, too."""

    def argument(value: Any, inside: bool = False) -> Any:
        if isinstance(value, list | tuple):
            return [argument(v, True) for v in value]
        return new if inside and type(value) is int and value == old else value

    def shorter(given: Given) -> Given:
        size = tuple(new if n == old else n for n in given.size)
        if size == given.size or given.base is not None:
            return given
        return replace(given, size=size, stride=_like(given, size))

    return mapped(exhibit, shorter, argument)


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

    return mapped(exhibit, lower, argument)


def retyped(exhibit: Exhibit, old: str, new: str) -> Exhibit:
    """Return the exhibit with one dtype for another, of inputs and where an operator is asked for it."""

    def argument(value: Any) -> Any:
        match value:
            case {"dtype": name} if name == old:
                return {"dtype": new}
            case list() | tuple():
                return [argument(v) for v in value]
        return value

    return mapped(exhibit, lambda g: replace(g, dtype=new) if g.dtype == old else g, argument)
