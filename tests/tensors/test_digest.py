from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.tensors.tensors_of import element_bytes, from_bytes, tensors

from torchsan.errors import UsageError
from torchsan.tensors import digest


@settings(deadline=None, max_examples=200)
@given(tensors())
def test_a_copy_in_other_memory_has_the_same_digest(t: torch.Tensor) -> None:
    raw = b"".join(element_bytes(t)) or bytes(t.element_size())
    copy = from_bytes(raw, t.dtype)[: t.numel()].view(t.shape)
    assert digest(t) == digest(copy)


@settings(deadline=None, max_examples=200)
@given(tensors(), tensors())
def test_digests_are_equal_exactly_when_dtype_shape_and_bits_are(a: torch.Tensor, b: torch.Tensor) -> None:
    alike = a.dtype == b.dtype and a.shape == b.shape and element_bytes(a) == element_bytes(b)
    assert (digest(a) == digest(b)) is alike


def test_zeros_of_either_sign_differ() -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_nan_payloads_differ() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert digest(bits[:1]) != digest(bits[1:])


def test_shape_and_dtype_count() -> None:
    t = torch.zeros(6)
    assert len({digest(t), digest(t.view(2, 3)), digest(t.view(torch.int32)), digest(t.view(3, 2))}) == 4


def test_pieces_of_a_strided_tensor_join_without_a_seam() -> None:
    t = torch.arange(1_200_000, dtype=torch.int32).view(3, 400, 1000)
    for view in (t.permute(2, 1, 0), t.permute(1, 0, 2), t[:, ::3], t.transpose(0, 2)[::2]):
        assert digest(view) == digest(view.contiguous())


def test_dtypes_without_arithmetic_have_a_digest() -> None:
    raw = torch.arange(4, dtype=torch.uint8)
    for dtype in ("bits8", "float4_e2m1fn_x2", "int4", "uint3"):
        assert digest(raw.view(getattr(torch, dtype))) != digest(raw)


@pytest.mark.parametrize("t", [torch.empty(3, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"])
def test_a_tensor_without_readable_elements_has_no_digest(t: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="tensor-unreadable"):
        digest(t)
