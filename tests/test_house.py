"""The figures of `make house` count what they say, on made-up sources."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from tools import house, steps


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def graph_of(src: Path) -> dict[str, set[str]]:
    modules = house.load(src)
    return {name: house.imports(module, modules) for name, module in modules.items()}


def test_imports_inside_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "p/__init__.py": "",
            "p/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import c\n"
            "def f():\n    from p.b import g\n    return g()\n",
            "p/b.py": "import p.c\nfrom os import path\n",
            "p/c.py": "from p import d\nfrom p.d import x\n",
            "p/d.py": "from p import something\n",
        },
    )
    assert graph_of(tmp_path) == {"p": set(), "p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.d"}, "p.d": {"p"}}


def test_a_cycle_is_found_around_a_corner() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert house.cycles(graph) == [["a", "b", "c"], ["e", "f"]]
    assert house.cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("pass", 1),
        ("if a: pass\n    elif b: pass\n    else: pass", 3),
        ("for a in b: pass\n    else: pass", 3),
        ("try: pass\n    except A: pass\n    except B: pass\n    else: pass\n    finally: pass", 4),
        ("return a and b and c or d", 4),
        ("return [x for y in z if y for x in y]", 4),
        ("return a if b else lambda: c", 3),
        ("match a:\n        case 1: pass\n        case 2: pass\n        case _: pass", 3),
        ("def g():\n        if a: pass\n    return g", 3),
        ("assert a", 2),
    ],
)
def test_complexity_is_counted_as_radon_does(body: str, expected: int) -> None:
    (function,) = ast.parse(f"def f():\n    {body}\n").body
    assert house.complexity(function) == expected


def test_only_whole_lines_of_comment_count() -> None:
    assert house.comment_lines('# one\nx = 1  # no\ns = "# no"\n    # two\n') == 2


def test_a_test_stands_for_the_module_of_its_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        dict.fromkeys(
            [
                "src/torchsan/store/index.py",
                "src/torchsan/report/html/page.py",
                "tools/house.py",
                "tests/store/test_index.py",
                "tests/store/test_store.py",
                "tests/report/test_html.py",
                "tests/planted/test_anything.py",
                "tests/test_house.py",
                "tests/store/test_crashes.py",
                "tests/test_page.py",
            ],
            "",
        ),
    )
    assert house.without_namesake(tmp_path) == ["tests/store/test_crashes.py", "tests/test_page.py"]


def test_the_files_of_a_walk_are_those_it_names() -> None:
    text = (
        "## Add a check\n\n`src/a.py`\n\ntext `src/no.py`\n\n`src/b.py`, at the end:\n\n`src/a.py` again\n\n"
        "## Next\n\n`src/c.py`\n"
    )
    assert house.walk_files(text, "Add a check") == ["src/a.py", "src/b.py"]
    assert house.walk_files(text, "Absent") == []


def test_naming_looks_at_strings_members_and_imports(tmp_path: Path) -> None:
    modules = house.load(
        write(
            tmp_path,
            {
                "p/memory/x.py": "M = 'memory'\n",
                "p/a.py": "M = 'memory'\n",
                "p/b.py": "M = Check.MEMORY\n",
                "p/c.py": "from p.memory.x import M\n",
                "p/d.py": "'''Says memory in passing.'''\nmemory = 'in memory'\n",
            },
        )
    )
    assert house.naming(modules, "memory", "p.memory") == ["p.a", "p.b", "p.c"]


def test_changes_of_file_are_put_together_to_changes_of_room() -> None:
    changes = {("a/x.py", "a/y.py"): 3, ("a/x.py", "b/z.py"): 2, ("a/y.py", "b/z.py"): 1, ("b/z.py", "c.py"): 4}
    assert steps.by_room(Counter(changes)) == {("a", "b"): 3, ("b", "c"): 4}


def test_a_missed_goal_is_one_above_it() -> None:
    assert not house.Figure("lines", 10, 10).missed
    assert house.Figure("lines", 11, 10).missed
    assert not house.Figure("lines", 11).missed
