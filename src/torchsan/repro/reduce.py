"""Makes a candidate smaller while it still shows the finding: configuration, nodes, values, sizes, strides, dtypes.

Everything is a list of smaller candidates, the boldest first; the first that shows the finding is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torchsan.records import Exhibit, Given
from torchsan.repro.candidates import cut, elements, flattened, leading_ones, references, resized, retyped, shrunk
from torchsan.repro.trials import Trials
from torchsan.repro.values import Tensors, contiguous_stride, is_uniform

_MOST_SINGLES = 8
_FEW_ELEMENTS = 65536
_LEAPS = (1, 32)
"""To one element, and to a few vectors of them: what is wrong in vectorised code only needs that many."""
_PLAIN_DTYPES = frozenset(["float32", "int64", "bool"])


def reduce(
    exhibit: Exhibit, values: Mapping[str, Given], tensors: Tensors, trials: Trials, best: Callable[[Exhibit], None]
) -> Exhibit | None:
    """Return the smallest candidate found that shows the finding, None if not even the whole exhibit does.

    `best` is told of each on the way. `values` are inputs that can stand in for nodes. Raise Stopped when time is up.
    """
    reducer = _Reducer(exhibit, values, tensors, trials, best)
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


class _Reducer:
    def __init__(
        self,
        exhibit: Exhibit,
        values: Mapping[str, Given],
        tensors: Tensors,
        trials: Trials,
        best: Callable[[Exhibit], None],
    ) -> None:
        self.now = exhibit
        self._whole = exhibit
        self._values = values
        self._tensors = tensors
        self._trials = trials
        self._best = best

    def _take(self, candidates: Iterable[Exhibit]) -> bool:
        # A cut that has to be given far more numbers than before is no reduction.
        most = max(8 * elements(self.now), _FEW_ELEMENTS)
        found = self._trials.first(c for c in candidates if c != self.now and elements(c) <= most)
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
        found = self._trials.first([plain, whole, replace(plain, inputs=tuple(map(_made_up, plain.inputs)))])
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
        made_up = replace(alone, inputs=tuple(self._simple(g, 0) for g in alone.inputs))
        self._take(shrunk(made_up, length) for length in _LEAPS)

    def nodes(self) -> None:
        """One node alone, if that is enough; else leave out what can be left out, in halves, quarters, ones."""
        suspects = set(self.now.suspects) & {n.name for n in self.now.nodes}
        if 0 < len(suspects) < len(self.now.nodes):
            # What the blamed ones are written for may matter too: it decides where they put their results.
            users = {n.name for n in self.now.nodes if suspects & set(references(n.args, n.kwargs))}
            self._take(cut(self.now, some, self._values) for some in (suspects, suspects | users))
        if len(self.now.outputs) > 1:
            self._take(cut(self.now, None, self._values, outputs=(o,)) for o in self.now.outputs[:_MOST_SINGLES])
        names = [n.name for n in self.now.nodes]
        if len(names) > 1:
            # The blamed ones first; among those the last, which is what the others lead to.
            blamed = [n for n in reversed(names) if n in suspects]
            ordered = [*blamed, *(n for n in reversed(names) if n not in suspects)]
            if self._take(self._alone(n) for n in ordered[:_MOST_SINGLES]):
                return
        self._leave_out()

    def _alone(self, name: str) -> Exhibit:
        return cut(self.now, {name}, self._values)

    def _leave_out(self) -> None:
        size = max(1, len(self.now.nodes) // 2)
        while True:
            names = [n.name for n in self.now.nodes]
            chunks = [names[i : i + size] for i in range(0, len(names), size)]
            smaller = [cut(self.now, set(names) - set(c), self._values) for c in chunks if len(c) < len(names)]
            if not self._take(c for c in smaller if c.nodes):
                if size == 1:
                    return
                size = max(1, size // 2)

    def values(self) -> None:
        """Made-up values for all inputs at once."""
        self._take(replace(self.now, inputs=tuple(self._simple(g, how) for g in self.now.inputs)) for how in (0, 1))

    def remaining_values(self) -> None:
        """Made-up values for each input that still has recorded ones."""
        for given in self.now.inputs:
            if self._recorded(given):
                self._take(self._with(given.name, self._simple(given, how)) for how in (0, 1))

    def _recorded(self, given: Given) -> bool:
        memory = self._tensors.memory(given)
        return memory is not None and not is_uniform(memory)

    def _simple(self, given: Given, how: int) -> Given:
        """The input filled with random numbers of its range, or with one number."""
        memory = self._tensors.memory(given)
        if memory is None or memory.numel() == 0 or given.base is not None or not self._recorded(given):
            return given
        if how == 1:
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
        if any(g.stride != contiguous_stride(g.size) for g in self.now.inputs if g.base is None):
            plain = tuple(
                replace(g, stride=contiguous_stride(g.size)) if g.base is None else g for g in self.now.inputs
            )
            self._take([replace(self.now, inputs=plain)])

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

    def _with(self, name: str, given: Given) -> Exhibit:
        return replace(self.now, inputs=tuple(given if g.name == name else g for g in self.now.inputs))


def _made_up(given: Given) -> Given:
    """The input with random numbers for its values, if it is no index and shares no memory."""
    if given.base is not None or "float" not in given.dtype:
        return given
    return replace(given, fill="randn 0")
