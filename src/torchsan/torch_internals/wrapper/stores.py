"""Which parameters a Triton kernel stores through, read off its source. Never too few.

A pointer is followed through assignments (`out = LSE + offset`) to what is stored through it: `tl.store(out, x)`,
`tl.atomic_add(out, x)`, `descriptor.store([0, 0], x)`. What is loaded through a pointer is no pointer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def stored_parameters(function: ast.FunctionDef, module: ast.Module) -> frozenset[str]:
    """Return the parameters of `function` that it stores through, or that a helper in `module` may store through."""
    helpers = {n.name for n in module.body if isinstance(n, ast.FunctionDef) and n is not function and _stores(n)}
    flows = {a.arg: frozenset([a.arg]) for a in function.args.args}
    while True:
        # A loop carries pointers to statements above, so this goes on until nothing is new.
        before = dict(flows)
        for targets, value in _assignments(function):
            found = _followed(value, flows)
            for name in targets:
                flows[name] = flows.get(name, frozenset()) | found
        if flows == before:
            break
    return frozenset(p for place in _places(function, helpers) for p in _followed(place, flows))


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[list[str], ast.expr]]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield [n for t in targets for n in _names(t)], value
            case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                yield _names(target), value
            case ast.NamedExpr(target=target, value=value) | ast.For(target=target, iter=value):
                yield _names(target), value


def _followed(value: ast.AST, flows: dict[str, frozenset[str]]) -> frozenset[str]:
    """The parameters that the value may point into."""
    match value:
        case ast.Call(func=ast.Attribute(attr="load" | "load_tensor_descriptor")):
            return frozenset()
        case ast.Name(id=name):
            return flows.get(name, frozenset())
        case _:
            return frozenset().union(*(_followed(child, flows) for child in ast.iter_child_nodes(value)))


def _places(function: ast.FunctionDef, helpers: set[str]) -> Iterator[ast.expr]:
    """Whatever is stored through."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in helpers:
                yield from (*args, *(k.value for k in keywords))
            case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args, keywords=keywords):
                if _is_store(attr):
                    # `tl.store(pointer, …)`, and the methods of a descriptor.
                    yield from (owner, *args[:1], *(k.value for k in keywords if k.arg in ("pointer", "desc")))


def _is_store(attribute: str) -> bool:
    return "store" in attribute or attribute.startswith("atomic_") or attribute == "scatter"


def _stores(function: ast.FunctionDef) -> bool:
    calls = (n.func for n in ast.walk(function) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Attribute) and _is_store(f.attr) for f in calls)


def _names(target: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
