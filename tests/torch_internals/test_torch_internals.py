"""Private names of PyTorch stay in `torch_internals`: import-linter does not see modules of other packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchsan

SOURCE = Path(torchsan.__file__).parent
OUTSIDE = sorted(p for p in SOURCE.rglob("*.py") if not p.is_relative_to(SOURCE / "torch_internals"))


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression that is that; empty of any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def is_private(name: str) -> bool:
    """Whether it is a private module or attribute of torch; operators may have names with an underscore."""
    parts = name.split(".")
    return parts[0] == "torch" and parts[1:2] != ["ops"] and any(p.startswith("_") for p in parts if p[:2] != "__")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, name) for name in names if is_private(name))
        elif isinstance(node, ast.Attribute) and is_private(name := dotted(node)):
            yield node.lineno, name


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_private_names_of_torch_stay_in_torch_internals(path: Path) -> None:
    found = [f"{path.name}:{line} {name}" for line, name in private_names(ast.parse(path.read_text()))]
    assert not found, "give torch_internals a function for it, and the table of seams a row"


def test_the_wall_sees_every_way_to_name_one() -> None:
    text = """
import torch._inductor.config
from torch.utils import _pytree
from torch._dynamo import reset
torch._C._has_storage(t)
torch.ops.aten._neg_view.default(t)
torch.Tensor.__torch_function__
"""
    assert [line for line, _ in private_names(ast.parse(text))] == [2, 3, 4, 5, 5]
