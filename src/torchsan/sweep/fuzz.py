"""Makes programs that are valid by construction and written to hurt, and keeps what reaches something new.

Lines of the grammar are tried on tensors without memory, for every size that the program is to be called with; those
that raise are left out. Importing it imports no torch.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchsan.sweep.grammar import DTYPES, PREAMBLE, SETTINGS, SIZES, WEIGHTED
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Result

if TYPE_CHECKING:
    import torch

_CONSTANTS = ("0.5", "-1.5", "2.0", "3.0", "0.0")
_MOST_ELEMENTS = 200_000
_MOST_DIMS = 5
_TRIES = 40
_HOLES = re.compile(r"\{([a-z])\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Genome:
    """A program before it is written: what its inputs are made from, its lines, and how it is compiled and called.

    `inputs` are expressions in `n`, which takes each of `sizes`. `gradients`: they are taken of what it returns.
    """

    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    sizes: tuple[int, ...]
    dynamic: bool | None
    gradients: bool
    setting: tuple[str, object] | None
    seed: int

    def text(self) -> str:
        """Return the program."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        returned = ", ".join(dict.fromkeys([*_computed(self.lines)[-3:], names[0]]))
        options = f", options={dict([self.setting])!r}" if self.setting is not None else ""
        sizes = f"({', '.join(map(str, self.sizes))},)"
        parts = [
            PREAMBLE if any("Scaled" in line for line in self.lines) else PREAMBLE.partition("\n\nclass")[0],
            "",
            f"def f({', '.join(names)}):",
            *(f"    {line}" for line in self.lines),
            f"    return {returned},",
            "",
            "",
            f"torch.manual_seed({self.seed})",
            f"compiled = torch.compile(f, dynamic={self.dynamic}{options})",
            f"for n in {sizes}:",
            f"    outs = compiled({', '.join(self.inputs)})",
        ]
        if self.gradients:
            parts.append("    grown = [o for o in outs if o.requires_grad]")
            parts.append("    torch.autograd.backward(grown, [torch.randn_like(o) for o in grown])")
        return "\n".join(parts) + "\n"


def _computed(lines: tuple[str, ...]) -> list[str]:
    return [line.partition(" = ")[0] for line in lines if re.match(r"v\d+ = ", line)]


@dataclass(kw_only=True)
class Fuzzer:
    """Yields programs for as long as it is asked; what `watch` is told of decides which come next."""

    seed: int
    size: int = 8
    reached: set[str] = field(default_factory=set)
    corpus: list[Genome] = field(default_factory=list)
    _made: dict[str, Genome] = field(default_factory=dict)

    def programs(self, start: int = 0) -> Iterator[Program]:
        """Yield programs, from number `start` on: the same for the same seed, number and corpus."""
        number = start
        while True:
            chance = random.Random(f"{self.seed}/{number}")
            genome = self._next(chance)
            if genome.lines:
                text = genome.text()
                self._made[text] = genome
                yield Program(name=f"fuzz/{self.seed}/{number}", text=text)
            number += 1

    def watch(self, result: Result) -> None:
        """Keep a program that reached something new, to make others from it."""
        genome = self._made.pop(result.program.text, None)
        new = set(result.covers) - self.reached
        self.reached |= new
        if new and genome is not None:
            self.corpus.append(genome)

    def _next(self, chance: random.Random) -> Genome:
        if self.corpus and chance.random() < 0.6:
            return changed(chance.choice(self.corpus[-200:]), chance, self.size)
        return grown(fresh(chance), chance, self.size)


def fresh(chance: random.Random) -> Genome:
    """Return a program without lines: inputs of odd shapes, strides and dtypes, and how to compile and call it."""
    several = chance.random() < 0.4
    sizes = tuple(dict.fromkeys(chance.choice(SIZES) for _ in range(3 if several else 1)))
    gradients = chance.random() < 0.4
    shared = [str(chance.choice(SIZES)) for _ in range(2)]
    inputs: list[str] = []
    for _ in range(chance.randint(1, 3)):
        dtype = chance.choice(DTYPES) if inputs else "float32"
        inputs.append(_input(chance, dtype, ["n", *shared][: chance.randint(1, 3)], gradients=gradients))
    return Genome(
        inputs=tuple(inputs),
        lines=(),
        sizes=sizes,
        dynamic=chance.choice([None, True]) if len(sizes) > 1 else chance.choice([False, None]),
        gradients=gradients,
        setting=chance.choice(SETTINGS) if chance.random() < 0.25 else None,
        seed=chance.randint(0, 10**6),
    )


def _input(chance: random.Random, dtype: str, dims: list[str], *, gradients: bool) -> str:
    """An expression in n for a tensor of these dimensions, contiguous or not."""
    # What shares memory with itself cannot be written in place; a leaf that has gradients is not.
    strides = chance.choice(["plain", "plain", "transposed", "gaps", "offset", *(["expanded"] if gradients else [])])
    shape = list(dims)
    if strides == "transposed":
        shape.reverse()
    elif strides == "gaps":
        shape[-1] = f"2 * {shape[-1]}"
    elif strides == "offset":
        shape[0] = f"{shape[0]} + 1"
    elif strides == "expanded":
        shape[0] = "1"
    sizes = ", ".join(shape)
    made = {
        "bool": f"torch.rand({sizes}) > 0.5",
        "uint8": f"torch.randint(0, 256, ({sizes},), dtype=torch.uint8)",
    }.get(dtype)
    if made is None:
        whole = dtype.startswith("int")
        made = f"torch.randint(-100, 100, ({sizes},), dtype=torch.{dtype})" if whole else f"torch.randn({sizes})"
        if not whole and dtype != "float32":
            made = f"torch.randn({sizes}, dtype=torch.{dtype})"
    made = f"({made})" if dtype == "bool" else made
    ends = {
        "plain": "",
        "transposed": f".permute({', '.join(str(d) for d in range(len(dims) - 1, -1, -1))})",
        "gaps": "[..., ::2]",
        "offset": "[1:]",
        "expanded": f".expand({', '.join(dims)})",
    }
    leaf = ".requires_grad_()" if gradients and dtype.startswith(("float", "bfloat")) else ""
    return f"{made}{ends[strides]}{'.detach()' if leaf and ends[strides] else ''}{leaf}"


def changed(genome: Genome, chance: random.Random, size: int) -> Genome:
    """Return a program made from another: some lines are left out, others come, or it is called otherwise."""
    lines = tuple(line for line in genome.lines if chance.random() < 0.75)
    genome = replace(genome, lines=lines, seed=chance.randint(0, 10**6))
    if chance.random() < 0.3:
        genome = replace(genome, setting=chance.choice(SETTINGS))
    if chance.random() < 0.3:
        other = fresh(chance)
        genome = replace(genome, sizes=other.sizes, dynamic=other.dynamic)
    return grown(genome, chance, size)


def grown(genome: Genome, chance: random.Random, size: int) -> Genome:
    """Return the program with those of its lines that are valid, and others up to about `size`."""
    worlds = _worlds(genome)
    if worlds is None:
        return replace(genome, lines=())
    lines = [line for line in genome.lines if worlds.take(line)]
    most = max(len(lines) + 1, chance.randint(2, max(2, size)))
    families = [family for family, weight in WEIGHTED for _ in range(weight)]
    number = 1 + max((int(name[1:]) for name in _computed(tuple(lines))), default=-1)
    for _ in range(_TRIES):
        if len(lines) >= most:
            break
        line = worlds.filled(chance.choice(chance.choice(families)), chance)
        if line is None:
            continue
        if line.startswith("= "):
            line = f"v{number} {line}"
        if worlds.take(line):
            lines.append(line)
            number += 1
    return replace(genome, lines=tuple(lines))


@dataclass(frozen=True, slots=True)
class _Worlds:
    """The variables of a program, for each size that it is called with, as tensors without memory."""

    variables: tuple[dict[str, Any], ...]

    def take(self, line: str) -> bool:
        """Run a line in all worlds; whether it is valid in each. One that is not may have left traces: none count."""
        import torch

        after = []
        for variables in self.variables:
            tried = dict(variables)
            try:
                with torch.device("meta"):
                    exec(line.replace("torch._dynamo.graph_break()", "pass"), tried)  # noqa: S102  # our own grammar
            except Exception:  # noqa: BLE001  # what an operator does not take, it may refuse as it likes
                return False
            if not all(_small(value) for name, value in tried.items() if re.fullmatch(r"[vx]\d+", name)):
                return False
            after.append(tried)
        for variables, tried in zip(self.variables, after, strict=True):
            variables.update(tried)
        return True

    def filled(self, template: str, chance: random.Random) -> str | None:
        """A template with variables that fit it; None if there are none."""
        tensors = {name: v for name, v in self.variables[0].items() if re.fullmatch(r"[vx]\d+", name)}
        recent = sorted(tensors, key=lambda name: (name[0] == "v", int(name[1:])))
        words = {"n": str(chance.randint(1, 7)), "d": chance.choice(["0", "-1", "1"]), "c": chance.choice(_CONSTANTS)}
        for hole in dict.fromkeys(_HOLES.findall(template)):
            if hole in words:
                continue
            fitting = [name for name in recent if _fits(tensors[name], hole)]
            if not fitting:
                return None
            # What was computed last is the likeliest: chains grow long.
            words[hole] = chance.choice(fitting[-3:] if chance.random() < 0.7 else fitting)
        return _HOLES.sub(lambda found: words[found[1]], template)


def _fits(tensor: torch.Tensor, hole: str) -> bool:
    import torch

    if hole == "x":
        return True
    if hole in "tu":
        return tensor.dtype.is_floating_point
    if hole == "b":
        return tensor.dtype is torch.bool
    return not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool


def _small(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and 0 < value.numel() <= _MOST_ELEMENTS and value.dim() <= _MOST_DIMS


def _worlds(genome: Genome) -> _Worlds | None:
    """The inputs of a program for each size; None if they cannot be made."""
    import torch

    worlds = []
    for n in genome.sizes:
        variables: dict[str, Any] = {"n": n}
        try:
            exec(PREAMBLE, variables)  # noqa: S102  # our own grammar
            with torch.device("meta"):
                for i, made in enumerate(genome.inputs):
                    exec(f"x{i} = {made}", variables)  # noqa: S102  # our own grammar
        except Exception:  # noqa: BLE001  # what an operator does not take, it may refuse as it likes
            return None
        if not all(_small(variables[f"x{i}"]) for i in range(len(genome.inputs))):
            return None
        worlds.append(variables)
    return _Worlds(tuple(worlds))
