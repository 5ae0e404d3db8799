"""Prints how the code is laid out, figure by figure beside its goal; exits with 1 if a goal is missed (`make house`).

How each figure is counted:

lines, modules
: All `.py` files under `src/`, blank lines and comments included.

cycles
: Modules that import each other, directly or around a corner. Imports inside functions count; those under
  `if TYPE_CHECKING` do not. `from package import name` counts as an import of `package.name` if that is a module, and
  of `package` otherwise.

complexity
: Cyclomatic, as radon counts it: one for a function, and one more for each `if`, loop, `except`, `case`, `else` of a
  loop or `try`, conditional expression, `and` or `or`, `assert`, lambda, `for` and `if` of a comprehension. A nested
  function counts in the one around it. ruff's C901 leaves out what stands inside expressions, so it is lower.

steps
: `torchsan run --check values` of a small program that PyTorch compiles wrongly, both processes. A step is a call of a
  function of torchsan while the function of torchsan called last lies in another file. Bodies of modules and classes
  do not count. Steps between rooms (the folders and modules directly under `src/torchsan`) are printed as well.

files that a new check or exporter touches
: The files that the walks in CONTRIBUTING.md name. `tests/docs/test_walks.py` follows the walks, so the lists are
  complete. Beside them: the existing files that name a check or an exporter of today, outside its own folder.

tests without a namesake
: `tests/a/test_b.py` stands for `src/torchsan/a/b.py` or the package `a/b`; `tests/a/test_a.py` for the package `a`.
  Those directly under `tests/` may stand for another part of the repository; those of whole programs need no namesake.
"""

from __future__ import annotations

import ast
import io
import math
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.steps import by_room, count_steps, pairs

ROOT = Path(__file__).parents[1]
WRONG_PROGRAM = "tests/cases/uint8_amin.py"
WHOLE_PROGRAMS = {"planted", "programs", "cases", "docs", "data"}
"""Folders under `tests/` whose tests need no namesake."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Figure:
    """One line of the table; without a goal it is only shown."""

    name: str
    value: float
    goal: float | None = None
    details: tuple[str, ...] = ()
    unit: str = ""

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.value > self.goal


@dataclass(frozen=True)
class Module:
    """A source file, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def load(src: Path) -> dict[str, Module]:
    """Return the modules under `src` by their dotted names."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def imports(module: Module, known: Iterable[str]) -> set[str]:
    """Return which of the `known` modules a module imports, inside functions too; there are no relative imports."""
    known = set(known)
    found: set[str] = set()
    for node in _run_time_nodes(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= known else {*names, str(node.module)}
    return (found & known) - {module.name}


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield child
            yield from _run_time_nodes(child)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in graph if a in reached[a]}
    return sorted(list(group) for group in groups)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    stack = [*graph[start]]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(graph[name])
    return found


def complexity(function: ast.AST) -> int:
    """Return the cyclomatic complexity of a function, as radon counts it."""
    return 1 + sum(_branches(node) for node in ast.walk(function) if node is not function)


def _branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.Assert() | ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return 1
        case ast.For() | ast.While() | ast.AsyncFor():
            return 1 + bool(node.orelse)
        case ast.Try() | ast.TryStar():
            return len(node.handlers) + bool(node.orelse)
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.Match():
            wildcard = any(isinstance(c.pattern, ast.MatchAs) and c.pattern.pattern is None for c in node.cases)
            return len(node.cases) - wildcard
    return 0


def complexities(modules: Mapping[str, Module]) -> list[tuple[int, str]]:
    """Return (complexity, where) of all functions, the worst first."""
    found = [
        (complexity(node), f"{module.name}.{node.name}")
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, _FUNCTIONS)
    ]
    return sorted(found, reverse=True)


def comment_lines(text: str) -> int:
    """Return how many lines of a source are a comment and nothing else."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type == tokenize.COMMENT and t.line.lstrip().startswith("#") for t in tokens)


def without_namesake(root: Path) -> list[str]:
    """Return the test files that no module, package or part of the repository is the namesake of."""
    package, tests = root / "src" / "torchsan", root / "tests"
    lonely = []
    for path in sorted(tests.rglob("test_*.py")):
        folder = path.parent.relative_to(tests)
        name = path.stem.removeprefix("test_")
        candidates = [package / folder / f"{name}.py", package / folder / name]
        if folder.name == name:
            candidates.append(package / folder)
        if folder == Path():
            candidates += [tests / name, tests / f"{name}.py", root / name, root / "tools" / f"{name}.py"]
        if not (WHOLE_PROGRAMS & set(folder.parts)) and not any(c.exists() for c in candidates):
            lonely.append(str(path.relative_to(root)))
    return lonely


def walk_files(text: str, heading: str) -> list[str]:
    """Return the source files that the walk under a heading of CONTRIBUTING.md creates or edits."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    files = re.findall(r"^`(src/[^`]+)`", section[1], re.M) if section else []
    return sorted(set(files))


def naming(modules: Mapping[str, Module], name: str, own: str) -> list[str]:
    """Return the modules outside the module or package `own` that name a check or exporter: its name as a string,
    as the member of an enum, or `own` in an import."""
    return [m.name for m in modules.values() if not f"{m.name}.".startswith(f"{own}.") and _names(m, name, own)]


def _names(module: Module, name: str, own: str) -> bool:
    for node in ast.walk(module.tree):
        match node:
            case ast.Constant(value=value) if value == name:
                return True
            case ast.Attribute(attr=attr) if attr == name.upper():
                return True
            case ast.ImportFrom(module=str(base)) if f"{base}.".startswith(f"{own}."):
                return True
    return False


def figures(root: Path) -> Iterator[Figure]:
    """Measure a checkout."""
    modules = load(root / "src")
    yield from _sizes(modules)
    yield from _imports(modules)
    functions = complexities(modules)
    near = tuple(f"{count} {where}" for count, where in functions if count >= 15)
    yield Figure("functions above complexity 20", sum(count > 20 for count, _ in functions), 0, near)
    lonely = without_namesake(root)
    yield Figure("tests without a namesake", len(lonely), 0, tuple(lonely))
    yield from _touched(modules, (root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    changes, passed = count_steps(root / "src", root / WRONG_PROGRAM)
    rooms = by_room(changes)
    yield Figure("changes of file for one finding", changes.total(), 250, pairs(changes, 15))
    yield Figure("  of these, changes of room", rooms.total(), details=pairs(rooms, 10))
    yield Figure("files passed for one finding", len(passed))


def _sizes(modules: Mapping[str, Module]) -> Iterator[Figure]:
    lines = sum(m.lines for m in modules.values())
    yield Figure("lines under src", lines, 27_500)
    yield Figure("modules under src", len(modules), 180)
    small = [f"{m.lines} {m.name}" for m in modules.values() if m.lines < 40 and m.path.name != "__init__.py"]
    yield Figure("modules under 40 lines, packages' own left out", len(small), details=tuple(small))
    large = [f"{m.lines} {m.name}" for m in modules.values() if m.lines > 500]
    yield Figure("modules above 500 lines", len(large), 0, tuple(large))
    comments = sum(comment_lines(m.text) for m in modules.values())
    yield Figure("lines that are a comment", round(100 * comments / max(lines, 1), 1), unit=" %")


def _imports(modules: Mapping[str, Module]) -> Iterator[Figure]:
    graph = {name: imports(module, modules) for name, module in modules.items()}
    found = cycles(graph)
    yield Figure("cycles of modules", len(found), 0, tuple(" ".join(group) for group in found))
    importers = Counter(imported for names in graph.values() for imported in names)
    single = tuple(name for name in modules if importers[name] == 1)
    yield Figure("modules with one importer", len(single), details=single)


def _touched(modules: Mapping[str, Module], text: str) -> Iterator[Figure]:
    for heading, goal, name, own in (
        ("Add a check", 10, "memory", "torchsan.checks.memory"),
        ("Add an exporter", 3, "perfetto", "torchsan.report.perfetto"),
    ):
        touched = tuple(walk_files(text, heading))
        # A walk that is not there meets no goal.
        yield Figure(f"source files of the walk “{heading}”", len(touched) or math.inf, goal, touched)
        namers = tuple(naming(modules, name, own))
        yield Figure(f"  modules elsewhere that name “{name}”", len(namers), details=namers)


def main(arguments: list[str]) -> int:
    """Print the figures of this checkout, or of the one named; with `-v` also what they are made of.

    What a missed goal is made of is always printed.
    """
    missed = False
    others = [Path(a).resolve() for a in arguments if a != "-v"]
    for figure in figures(*others or [ROOT]):
        goal = "" if figure.goal is None else f"goal ≤ {figure.goal:g}"
        mark = "MISSED" if figure.missed else ""
        print(f"{figure.name:<52}{figure.value:>8g}{figure.unit:<3} {goal:<14} {mark}".rstrip())
        if figure.missed or "-v" in arguments:
            print("".join(f"        {line}\n" for line in figure.details), end="")
        missed |= figure.missed
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
