"""What is done to Inductor from outside."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.decomposition import decompositions, select_decomp_table

from torchsan.torch_internals.inductor import warm_compiler

SILU = torch.ops.aten.silu.default


@pytest.mark.filterwarnings("ignore")
def test_a_warm_compiler_sees_what_is_taken_from_the_table_of_decompositions(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_compiler()
    monkeypatch.delitem(decompositions, SILU)
    assert SILU not in select_decomp_table()
    warm_compiler()
    monkeypatch.undo()
    assert SILU in select_decomp_table()
