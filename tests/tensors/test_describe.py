from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.tensors.tensors_of import tensors
from torch._subclasses.fake_tensor import FakeTensorMode  # a test of fake tensors needs one
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode

from torchsan.records.codec import decode, encode
from torchsan.records.tensor import TensorMeta
from torchsan.tensors import describe


@settings(deadline=None, max_examples=200)
@given(tensors())
def test_a_dense_tensor_is_described_as_torch_says(t: torch.Tensor) -> None:
    meta = describe(t)
    assert meta == TensorMeta(
        dtype=str(t.dtype).split(".")[1],
        shape=tuple(t.shape),
        stride=t.stride(),
        offset=int(t.storage_offset()),
        conj=t.is_conj(),
        neg=t.is_neg(),
    )
    assert decode(TensorMeta, encode(meta)) == meta


def test_requires_grad_is_told() -> None:
    assert describe(torch.ones(2, requires_grad=True)).requires_grad


def test_a_meta_tensor_is_told_from_a_dense_one() -> None:
    meta = describe(torch.empty(2, 3, device="meta"))
    assert (meta.kind, meta.device, meta.shape, meta.stride) == ("meta", "meta", (2, 3), (3, 1))


def test_a_fake_tensor_is_told_from_a_dense_one() -> None:
    with FakeTensorMode():
        fake = torch.empty(2, 3)
        assert describe(fake) == TensorMeta(dtype="float32", shape=(2, 3), stride=(3, 1), kind="fake")
    assert describe(fake).kind == "fake"


class ClaimsCpu(torch.Tensor):
    """What fake tensors made in C++ are like: of a class that says nothing, and on meta whatever they claim."""

    device = property(lambda self: torch.device("cpu"))


def test_a_fake_tensor_without_a_class_of_its_own_is_told_by_its_storage() -> None:
    assert describe(torch.empty(2, 3, device="meta").as_subclass(ClaimsCpu)).kind == "fake"
    assert describe(torch.empty(2, 3).as_subclass(ClaimsCpu)).kind == "dense"


def test_a_symbolic_size_is_none_and_adds_no_guard() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fake = mode.from_tensor(torch.empty(5, 7), static_shapes=False)
    before = len(env.guards)
    assert describe(fake).shape == (None, None)
    assert describe(fake).stride == (None, 1)
    assert len(env.guards) == before


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_sparse_layouts_have_no_strides(layout: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these layouts are in beta
        dense = torch.eye(4)
        blocks = (2, 2) if layout.startswith("bs") else None
        t = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=blocks)
    meta = describe(t)
    assert (meta.kind, meta.layout, meta.shape, meta.stride) == ("sparse", f"sparse_{layout}", (4, 4), ())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_has_no_size_where_it_is_ragged(layout: torch.layout) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that nested tensors are a prototype
        t = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    meta = describe(t)
    assert (meta.kind, meta.shape) == ("nested", (2, None, 3))


def test_a_quantized_tensor_is_told_from_a_dense_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these dtypes are deprecated
        t = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert (describe(t).kind, describe(t).dtype) == ("quantized", "qint8")


def test_the_layout_of_another_library_is_opaque() -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no type for it
        pytest.skip("torch was built without oneDNN")
    meta = describe(torch.ones(2, 3).to_mkldnn())
    assert (meta.kind, meta.shape, meta.stride) == ("opaque", (2, 3), ())


class Shouting(torch.Tensor):
    """Fails whenever torch asks it."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("asked")


class Eavesdropper(TorchFunctionMode):
    """Keeps what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(func)
        return func(*args, **(kwargs or {}))


def test_a_subclass_is_described_without_its_torch_function() -> None:
    t = torch.ones(2, 3).as_subclass(Shouting)
    assert describe(t).shape == (2, 3)


def test_a_function_mode_hears_nothing() -> None:
    t = torch.ones(2, 3)
    with Eavesdropper() as mode:
        assert describe(t).shape == (2, 3)
    assert mode.heard == []


def test_a_tensor_inside_vmap_is_described() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(describe(x))
        return x

    torch.vmap(look)(torch.ones(2, 3))
    assert seen[0].shape == (3,)
