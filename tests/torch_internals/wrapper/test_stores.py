"""Which parameters a Triton kernel stores through."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from torchsan.torch_internals.wrapper.stores import stored_parameters

_HELPERS = """
def put(pointer, value):
    tl.store(pointer, value)

def add(x, y):
    return x + y
"""


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        ("tl.store(out_ptr0 + i, tl.load(A + i), mask)", {"out_ptr0"}),
        ("p = LSE + i\nq = p + 1\ntl.store(q, tl.load(A + i))", {"LSE"}),
        ("tl.atomic_add(LSE + i, tl.load(A + tl.load(B)), mask)", {"LSE"}),
        ("d = tl.make_tensor_descriptor(A, shape=[1])\nd.store([0], tl.load(B))", {"A"}),
        ("x = tl.load(A)\ntl.store(B + x, x)", {"B"}),
        ("put(A, add(B, 1))", {"A", "B"}),
        ("x = add(A, B)\ntl.load(x)", set()),
        ("p = A\nfor _ in range(2):\n    tl.store(p, 1)\n    p = B", {"A", "B"}),
        ("A += 1\ntl.store(pointer=A, value=tl.load(B))", {"A"}),
    ],
)
def test_pointers_are_followed_to_what_is_stored_through_them(body: str, stored: set[str]) -> None:
    module = ast.parse(f"{_HELPERS}\ndef kernel(A, B, LSE, out_ptr0):\n{indent(body, '    ')}")
    kernel = module.body[-1]
    assert isinstance(kernel, ast.FunctionDef)
    assert stored_parameters(kernel, module) == stored
