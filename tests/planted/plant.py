"""Plant a bug: change what Inductor generates, before it is written and run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
from torchsan.records import Finding, Severity

Edit = Callable[[str], str]


@contextmanager
def planted(edit: Edit, forward: bool = True) -> Iterator[list[str]]:
    """Apply `edit` to each wrapper of that direction; yield the sources that it changed."""
    from torch._inductor.graph import GraphLowering

    changed: list[str] = []
    original = GraphLowering.codegen

    def codegen(self: Any) -> Any:
        result = original(self)
        if self.is_backward is not forward:
            source = edit(result[0].value)
            if source != result[0].value:
                result[0].value = source
                changed.append(source)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GraphLowering, "codegen", codegen)
        yield changed


def run(
    program: Callable[..., Any],
    edit: Edit | None = None,
    *,
    forward: bool = True,
    out: Path | None = None,
    **options: Any,
) -> list[Finding]:
    """Compile and call `program` under the memory check, with a bug planted in it, and return the findings."""
    with torchsan.session(check="memory", out=out, **options) as session:
        if edit is None:
            program(torch.compile)
        else:
            with planted(edit, forward) as changed:
                program(torch.compile)
                assert changed, "the edit changed nothing"
    skipped = [s for s in session.coverage.skipped if "torchsan failed" in s.reason]
    assert not skipped
    return list(session.findings)


def errors(findings: list[Finding]) -> list[Finding]:
    """Those of severity error."""
    return [f for f in findings if f.severity is Severity.ERROR]


def in_kernel(kernel: str, code: str) -> Edit:
    """Run `code` at the end of the C++ kernel whose name begins so."""

    def edit(source: str) -> str:
        # PyTorch 2.12 ends a kernel without looking at divisions by zero.
        end = r"    inductor_cpu_integer_div_error_flag = nullptr;|\}\n"
        pattern = rf"({kernel}\w* = async_compile\.cpp_pybinding\(.*?\n)({end})"
        return re.sub(pattern, lambda m: f"{m[1]}    {code}\n{m[2]}", source, count=1, flags=re.DOTALL)

    return edit


def replaced(*pairs: tuple[str, str]) -> Edit:
    """Replace texts, each where it comes first."""

    def edit(source: str) -> str:
        for old, new in pairs:
            source = source.replace(old, new, 1)
        return source

    return edit


def in_loop(kernel: str, old: str, new: str) -> Edit:
    """Replace every `old` in the C++ of the kernel whose name begins so."""

    def edit(source: str) -> str:
        pattern = rf"{kernel}\w* = async_compile\.cpp_pybinding\(.*?'''\)"
        return re.sub(pattern, lambda m: m[0].replace(old, new), source, count=1, flags=re.DOTALL)

    return edit


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def edit(source: str) -> str:
        for each in edits:
            source = each(source)
        return source

    return edit


def swapped(*pairs: tuple[str, str]) -> Edit:
    """Replace texts that are each there exactly once."""

    def edit(source: str) -> str:
        for old, new in pairs:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        return source

    return edit


def lanes(dtype: torch.dtype) -> int:
    """How many elements a vector of this machine has."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return int(pick_vec_isa().bit_width()) // 8 // dtype.itemsize
