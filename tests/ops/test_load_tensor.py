from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchsan.ops  # registers the operator
from torchsan.errors import StoreError, UsageError
from torchsan.store import Store

load = torch.ops.torchsan.load_tensor
loading_from = torchsan.ops.loading_from

ARGS: tuple[str, list[int], list[int]] = ("x", [4, 3], [1, 4])
KWARGS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
# torch's own compiler uses what torch has deprecated.
compiles = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*is deprecated:DeprecationWarning", "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"
)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4).t()


@pytest.fixture
def store(tmp_path: Path, x: torch.Tensor) -> Store:
    made = Store(tmp_path / "store")
    made.put("x", x)
    return made


def load_twice_and_change_one(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = load(*ARGS, **KWARGS), load(*ARGS, **KWARGS)
    first.add_(y)
    return first, second


class Module(torch.nn.Module):
    def forward(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return load_twice_and_change_one(y)


def test_it_loads_what_was_put_into_a_fresh_storage_each_time(store: Store, x: torch.Tensor) -> None:
    with loading_from(store):
        held = [store.get("x"), *(load(*ARGS, **KWARGS) for _ in range(3))]
    assert all(torch.equal(t, x) and t.stride() == x.stride() for t in held)
    assert len({t.untyped_storage().data_ptr() for t in held}) == 4


def test_it_works_under_fake_tensor_mode() -> None:
    with FakeTensorMode():
        fake = load(*ARGS, **KWARGS)
    assert type(fake).__name__ == "FakeTensor"
    assert (fake.shape, fake.stride(), fake.dtype) == ((4, 3), (1, 4), torch.float32)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_it_is_traced_by_make_fx(store: Store, x: torch.Tensor, mode: Literal["real", "fake", "symbolic"]) -> None:
    with loading_from(store):
        traced = make_fx(load_twice_and_change_one, tracing_mode=mode)(torch.ones(4, 3))
        targets = [node.target for node in traced.graph.nodes]
        assert targets.count(load.default) == 2
        first, second = traced(torch.ones(4, 3))
    assert torch.equal(first, x + 1)
    assert torch.equal(second, x)


@compiles
def test_it_is_exported(store: Store, x: torch.Tensor) -> None:
    program = torch.export.export(Module(), (torch.ones(4, 3),))
    with loading_from(store):
        for module in (program.module(), program.run_decompositions().module()):
            first, second = module(torch.ones(4, 3))
            assert torch.equal(first, x + 1)
            assert torch.equal(second, x)


@compiles
def test_it_is_compiled_whole_and_reads_when_it_runs(store: Store, x: torch.Tensor) -> None:
    compiled = torch.compile(load_twice_and_change_one, fullgraph=True)
    with loading_from(store):
        first, second = compiled(torch.ones(4, 3))
        assert torch.equal(first, x + 1)
        assert torch.equal(second, x)
        store.put("x", x * 2)
        assert torch.equal(compiled(torch.ones(4, 3))[1], x * 2)


@compiles
def test_a_compiled_backward_uses_what_was_loaded(store: Store, x: torch.Tensor) -> None:
    def loss(w: torch.Tensor) -> torch.Tensor:
        loaded: torch.Tensor = load(*ARGS, **KWARGS)
        return (loaded * w).sum()

    w = torch.ones(4, 3, requires_grad=True)
    with loading_from(store):
        torch.compile(loss, fullgraph=True)(w).backward()  # type: ignore[no-untyped-call]  # torch's own
    assert w.grad is not None
    assert torch.equal(w.grad, x)


@compiles
def test_it_passes_opcheck(store: Store) -> None:
    with loading_from(store):
        torch.library.opcheck(load.default, ARGS, KWARGS)


@pytest.mark.parametrize(
    ("size", "stride", "dtype", "device", "what"),
    [
        ([3, 4], [1, 4], torch.float32, "cpu", "size"),
        ([4, 3], [3, 1], torch.float32, "cpu", "stride"),
        ([4, 3], [1, 4], torch.float64, "cpu", "dtype"),
        ([4, 3], [1, 4], torch.float32, "meta", "device"),
        ([4, 3], [3, 1], torch.int8, "cpu", "stride, dtype"),
    ],
)
def test_a_mismatch_shows_both_sides(
    store: Store, size: list[int], stride: list[int], dtype: torch.dtype, device: str, what: str
) -> None:
    with loading_from(store), pytest.raises(StoreError) as caught:
        load("x", size, stride, dtype=dtype, device=device)
    message = str(caught.value)
    kind = str(dtype).removeprefix("torch.")
    assert f"load_tensor('x'): {what} differ" in message
    assert f"asked for size {size}, stride {stride}, dtype {kind}, device {device};" in message
    assert "has size [4, 3], stride [1, 4], dtype float32, device cpu" in message
    assert caught.value.slug == "tensor-mismatch"


def test_a_sparse_tensor_is_no_match(store: Store) -> None:
    store.put("s", torch.eye(3).to_sparse())
    with loading_from(store), pytest.raises(StoreError, match=r"layout sparse_coo.*tensor-mismatch"):
        load("s", [3, 3], [], dtype=torch.float32, device="cpu")


def test_it_converts_dtypes_when_told_to(store: Store, x: torch.Tensor) -> None:
    row = torch.arange(3, dtype=torch.int64).expand(4, 3)
    store.put("row", row)
    with loading_from(store, convert_dtype=True):
        assert torch.equal(load(*ARGS, dtype=torch.float64, device="cpu"), x.double())
        loaded = load("row", [4, 3], [0, 1], dtype=torch.float32, device="cpu")
    assert loaded.stride() == (0, 1)
    assert torch.equal(loaded, row.float())


def test_lazy_bits_and_offsets_are_resolved(store: Store) -> None:
    base = torch.randn(6, dtype=torch.complex64)
    tensors = {"conj": base[2:].conj(), "neg": base.conj().imag[1:], "base": base}
    store.put_many(tensors)
    with loading_from(store):
        for name, tensor in tensors.items():
            size, stride = list(tensor.shape), list(tensor.stride())
            loaded = load(name, size, stride, dtype=tensor.dtype, device="cpu")
            assert torch.equal(loaded, tensor)
            assert (loaded.storage_offset(), loaded.is_conj(), loaded.is_neg()) == (0, False, False)
            assert loaded.stride() == tensor.stride()


def test_a_missing_tensor_is_an_error_or_random_data(store: Store) -> None:
    with loading_from(store), pytest.raises(StoreError, match="tensor-not-found"):
        load("y", [2], [1], **KWARGS)
    state = torch.get_rng_state()
    with loading_from(store, missing="random"):
        made = [load("y", [2, 3], [4, 1], **KWARGS) for _ in range(2)]
        other = load("z", [2, 3], [4, 1], **KWARGS)
        assert torch.equal(load(*ARGS, **KWARGS), store.get("x"))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], other)
    assert made[0].stride() == (4, 1)
    assert made[0].data_ptr() != made[1].data_ptr()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float8_e5m2, torch.complex64]
)
@pytest.mark.parametrize(("size", "stride"), [([2, 3], [3, 1]), ([], []), ([0, 2], [2, 1]), ([4, 3], [0, 1])])
def test_random_data_come_in_every_dtype_and_stride(dtype: torch.dtype, size: list[int], stride: list[int]) -> None:
    with loading_from(missing="random"):
        made = load("y", size, stride, dtype=dtype, device="cpu")
    assert (made.dtype, list(made.shape), list(made.stride())) == (dtype, size, stride)


def test_contexts_nest_and_clean_up(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.put("x", torch.zeros(4, 3).t().contiguous().t())
    with loading_from(store):
        with pytest.raises(RuntimeError, match="mine"), loading_from(other):
            assert load(*ARGS, **KWARGS).sum() == 0
            raise RuntimeError("mine")
        assert load(*ARGS, **KWARGS).sum() != 0
    with pytest.raises(StoreError, match="no-store"):
        load(*ARGS, **KWARGS)


def test_a_context_is_one_threads_own(store: Store) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            load(*ARGS, **KWARGS)
        except StoreError as e:
            caught.append(e)

    with loading_from(store):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "no-store" in str(caught[0])


def test_wrong_options_are_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="bad-option"), loading_from(store, missing="zeros"):  # type: ignore[arg-type]  # the mistake is the point
        pass
    with pytest.raises(UsageError, match="bad-option"), loading_from():
        pass
