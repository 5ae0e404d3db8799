"""Which part of a variable an argument of a launch is, from its text in the generated program."""

from __future__ import annotations

import ast
import math

__all__ = ["is_whole"]


def is_whole(text: str, name: str, numel: int) -> bool:
    """Whether an argument is all of `name`, a variable of `numel` elements: itself, or reinterpreted with no gaps.

    A view whose sizes are not plain numbers is not known to be.
    """
    if text == name:
        return True
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    match call:
        case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[ast.Name(id=base), *rest]) if base == name:
            try:
                size, strides, offset = (ast.literal_eval(node) for node in rest)
            except ValueError:
                return False
        case _:
            return False
    span = 1 + sum((s - 1) * d for s, d in zip(size, strides, strict=True))
    return bool(offset == 0 and math.prod(size) == numel == span)
