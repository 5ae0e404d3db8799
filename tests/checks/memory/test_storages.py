"""The storages of a call."""

from __future__ import annotations

import torch

from torchsan.checks.memory.storages import stored_tensors


def test_zeros_without_memory_have_no_storage_and_empty_tensors_do() -> None:
    zeros, ones, none = torch._efficientzerotensor((2, 3)), torch.ones(2), torch.empty(0)
    found = list(stored_tensors([zeros, ones, none, torch.ones(1, device="meta")]))
    assert [t.data_ptr() for t in found] == [ones.data_ptr(), 0]
    assert found[1] is none
