"""One tensor of every kind that the store keeps."""

from __future__ import annotations

import ctypes

import torch

from torchsan.store.metadata import DTYPES


def raw(dtype: torch.dtype, count: int = 12) -> torch.Tensor:
    """Return `count` elements of arbitrary bytes (of 0 and 1 for bools)."""
    high = 2 if dtype is torch.bool else 256
    data = torch.randint(0, high, (count * dtype.itemsize,), dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), 0, (count,), (1,))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are the same in every bit that the store keeps."""
    if (a.dtype, a.shape, a.layout, a.device, a.requires_grad) != (
        b.dtype,
        b.shape,
        b.layout,
        b.device,
        b.requires_grad,
    ):
        return False
    if a.layout is not torch.strided:
        dense = a.detach().to_dense(), b.detach().to_dense()
        coalesced = a.layout is not torch.sparse_coo or a.is_coalesced() == b.is_coalesced()
        return coalesced and torch.equal(*dense)
    if (a.stride(), a.is_conj(), a.is_neg()) != (b.stride(), b.is_conj(), b.is_neg()):
        return False
    return span(a) == span(b)


def span(tensor: torch.Tensor) -> bytes:
    """Return the bytes that a strided tensor covers."""
    if not tensor.numel():
        return b""
    size = tensor.element_size()
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    return ctypes.string_at(tensor.untyped_storage().data_ptr() + start, reach * size)


def kinds() -> dict[str, torch.Tensor]:
    """Return the tensors by what is special about them."""
    torch.manual_seed(0)
    base = torch.randn(6, 8)
    found = {f"dtype/{name}": raw(dtype) for name, dtype in DTYPES.items()}
    found |= {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty-strided": torch.empty(3, 0, 2).transpose(0, 2),
        "view": base[2:4, 1:3],
        "transposed": base.t(),
        "expanded": torch.randn(1, 4).expand(5, 4),
        "overlapping": torch.as_strided(torch.randn(20), (5, 4), (2, 1), 3),
        "gaps": torch.randn(40)[::7],
        "conj": torch.randn(5, dtype=torch.complex64).conj(),
        "neg": torch.randn(5, dtype=torch.complex64).conj().imag,
        "grad": torch.randn(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(3)).detach().requires_grad_(),
        "large": torch.randn(50_000),
        "large-view": torch.randn(300, 300)[10:290, 5:],
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "coo": torch.randn(4, 5).relu().to_sparse(),
        "coo-uncoalesced": torch.sparse_coo_tensor(
            torch.tensor([[0, 0, 2]]), torch.tensor([1.0, 2.0, 3.0]), (4,), check_invariants=True
        ),
        "coo-hybrid": torch.randn(4, 5, 3).to_sparse(2),
        "coo-grad": torch.eye(3).to_sparse().requires_grad_(),
        "csr": torch.randn(4, 6).relu().to_sparse_csr(),
        "csc": torch.randn(4, 6).relu().to_sparse_csc(),
        "bsr": torch.randn(4, 6).relu().to_sparse_bsr((2, 3)),
        "bsc": torch.randn(4, 6).relu().to_sparse_bsc((2, 3)),
    }
    return found
