"""Regions of memory, and which version of one a read sees."""

from __future__ import annotations

import pytest
import torch

from torchsan.checks.stages.storages import Comparison, Place, Read, Region, Reordered, Storage, Value, geometry

BASE = torch.arange(24.0).view(4, 6)


def memory() -> Storage:
    storage = Storage(name="x", base=Value("input", "x"))
    storage.whole = Place(storage, geometry(BASE))
    return storage


def read(statement: str, storage: Storage, region: Region) -> Read:
    return Read(statement, Place(storage, region))


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (BASE[:2], BASE[2:], False),
        (BASE[:2], BASE[1:], True),
        (BASE[:, 0], BASE[:, 1], False),
        (BASE[:, :3], BASE[:, 3:], False),
        (BASE[:, :4], BASE[:, 3:], True),
        (BASE[::2], BASE[1::2], False),
        (BASE.t()[1], BASE[:, 1], True),
        (BASE.view(torch.int32)[0], BASE[0], True),
        (BASE[:0], BASE, False),
    ],
)
def test_two_views_overlap_if_they_share_an_element(one: torch.Tensor, other: torch.Tensor, meet: bool) -> None:
    assert geometry(one).overlaps(geometry(other)) is meet
    assert geometry(other).overlaps(geometry(one)) is meet


def test_however_it_is_shaped_a_tensor_is_the_same_region() -> None:
    assert geometry(BASE) == geometry(BASE.view(-1)) == geometry(BASE.t()) == geometry(BASE.view(torch.int32))
    assert geometry(BASE).covers(geometry(BASE[1:, 2:4]))
    assert not geometry(BASE[1:, 2:4]).covers(geometry(BASE))


def test_a_write_to_a_part_is_a_version_of_the_whole_and_not_of_the_rest() -> None:
    storage = memory()
    storage.write("write", geometry(BASE[:2]), Value("ones", "ones"))
    assert read("read", storage, geometry(BASE[:2])).value.name == "ones"
    assert read("read", storage, geometry(BASE)).value.what == "part"
    assert len(read("read", storage, geometry(BASE[2:])).versions()) == 1


def written() -> tuple[Storage, Read, Read]:
    storage = memory()
    early = read("early", storage, geometry(BASE))
    storage.write("write", geometry(BASE), Value("add", "add"))
    return storage, early, read("late", storage, geometry(BASE))


def test_a_read_that_comes_after_the_write_and_did_not_before_is_late() -> None:
    _, early, _ = written()
    _, _, late = written()
    found = Comparison().reads(early, late)
    assert isinstance(found, Reordered)
    assert (found.statement, found.write, found.late) == ("late", "write", True)
    found = Comparison().reads(late, early)
    assert isinstance(found, Reordered)
    assert (found.statement, found.late) == ("early", False)


def test_the_same_version_is_the_same_and_another_value_is_nothing_to_say() -> None:
    _, early, late = written()
    assert Comparison().reads(early, early) is True
    assert Comparison().reads(late, late) is True
    assert Comparison().reads(late, Read("other", Value("mul", "mul"))) is None


def test_a_part_replaced_by_what_it_held_is_no_new_version() -> None:
    storage = memory()
    same = read("read", storage, geometry(BASE[:2])).value
    storage.write("write", geometry(BASE[:2]), same)
    assert read("read", storage, geometry(BASE)).value.name == "x"
