"""A store and a dictionary, side by side through random histories of two writers."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.store.conftest import BACKENDS, Place
from tests.store.tensors import same
from torchsan.errors import StoreError

NAMES = st.sampled_from(["a", "A", "a/b", "w"])
SIZES = st.sampled_from([0, 1, 7, 20_000])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])


class Histories(RuleBasedStateMachine):
    """Two handles on one place; `model` says what must be there."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, torch.Tensor] = {}
        self.handles = [self.place.open(), self.place.open()]
        for name in self.handles[0].names():
            self.handles[0].delete(name)

    @rule(which=st.integers(0, 1), name=NAMES, size=SIZES, dtype=DTYPES, value=st.integers(0, 3), wait=st.booleans())
    def put(self, which: int, name: str, size: int, dtype: torch.dtype, value: int, wait: bool) -> None:
        tensor = torch.full((size,), value).to(dtype)[::2]
        self.handles[1 - which].flush()
        self.handles[which].put(name, tensor, wait=wait)
        self.handles[which].flush()
        self.model[name] = tensor

    @rule(which=st.integers(0, 1), size=SIZES, value=st.integers(0, 3))
    def put_views_of_one_base(self, which: int, size: int, value: int) -> None:
        base = torch.full((size + 4,), float(value))
        views = {"a": base[1:], "w": base[:2]}
        self.handles[which].put_many(views)
        self.model.update(views)
        read = self.handles[1 - which].get_many(views, fresh=True)
        assert read["a"].untyped_storage().data_ptr() == read["w"].untyped_storage().data_ptr()

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 1), data=st.data())
    def delete(self, which: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.handles[which].delete(name)
        del self.model[name]

    @rule(which=st.integers(0, 1))
    def collect(self, which: int) -> None:
        assert self.handles[which].gc().dropped == ()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.handles[which].close()
        self.handles[which] = self.place.open()

    @rule(which=st.integers(0, 1), name=NAMES)
    def scribble(self, which: int, name: str) -> None:
        if name in self.model:
            self.handles[which].get(name, fresh=True).zero_()
            gc.collect()

    @invariant()
    def both_handles_agree_with_the_model(self) -> None:
        for handle in self.handles:
            assert handle.names() == sorted(self.model)
            for name, tensor in handle.get_many(self.model).items():
                assert same(tensor, self.model[name])

    def teardown(self) -> None:
        report = self.handles[0].fsck()
        assert report, report
        for name in ("never-put", "a/"):
            try:
                self.handles[1].get(name)
            except StoreError as e:
                assert e.slug == "tensor-not-found"
        for handle in self.handles:
            handle.close()


@pytest.mark.parametrize("place", BACKENDS, indirect=True)
def test_a_store_behaves_like_a_dictionary(place: Place) -> None:
    examples = {"s3": 3, "me": 25}.get(place.url[:2], 25)
    machine = type("Machine", (Histories,), {"place": place})
    run_state_machine_as_test(machine, settings=_settings(examples))


@pytest.mark.slow
@pytest.mark.parametrize("place", BACKENDS, indirect=True)
def test_a_store_behaves_like_a_dictionary_for_long(place: Place) -> None:
    machine = type("Machine", (Histories,), {"place": place})
    run_state_machine_as_test(machine, settings=_settings(20 if place.url.startswith("s3") else 300))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
