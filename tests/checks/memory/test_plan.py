"""What is known of a program before it runs: which arguments are all of a variable."""

from __future__ import annotations

import pytest

from torchsan.checks.memory.plan import is_whole


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("buf1", True),
        ("reinterpret_tensor(buf1, (1, 64), (0, 1), 0)", True),
        ("reinterpret_tensor(buf1, (8, 8), (1, 8), 0)", True),
        ("reinterpret_tensor(buf1, (8, 4), (8, 1), 0)", False),
        ("reinterpret_tensor(buf1, (2, 32), (0, 1), 0)", False),
        ("reinterpret_tensor(buf1, (64, ), (1, ), 8)", False),
        ("reinterpret_tensor(buf1, (s77, 8), (8, 1), 0)", False),
        ("reinterpret_tensor(buf2, (64, ), (1, ), 0)", False),
        ("buf1[:8]", False),
        ("not python", False),
    ],
)
def test_an_argument_is_whole(text: str, whole: bool) -> None:
    assert is_whole(text, "buf1", 64) is whole
