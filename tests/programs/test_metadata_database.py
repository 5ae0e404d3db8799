"""PyTorch's operator database: every finding was looked at, and is one of those in docs/found-bugs.md."""

from __future__ import annotations

import pytest
import torch

from tests.programs.database import DTYPES, entries, look_at
from torchsan.records import Kind, Severity

MISMATCH, MUTATION, ALIAS = Kind.METADATA_MISMATCH, Kind.UNDECLARED_MUTATION, Kind.UNDECLARED_ALIAS

KNOWN = {
    ("aten.max_unpool2d.default", MISMATCH),
    ("aten._embedding_bag_forward_only.default", MISMATCH),
    ("aten.mkldnn_rnn_layer.default", MISMATCH),
    ("aten.native_batch_norm.default", MISMATCH),
    ("aten.unique_consecutive.default", MISMATCH),
}
"""The bugs of the releases that are tested; that of max_unpool2d was fixed in 2.14."""

_EVERY = 40
"""One entry of so many is looked at in the normal run, in float32."""


def unknown(entry: object, dtype: torch.dtype, most: int) -> list[str]:
    findings = look_at(entry, dtype, most)
    assert all(f.severity is not Severity.ERROR for f in findings)
    return [f"{f.message}: {f.evidence['call']}" for f in findings if (f.ops[0], f.kind) not in KNOWN]


def test_a_sample_of_the_database_has_no_unknown_finding() -> None:
    assert [u for entry in entries()[::_EVERY] for u in unknown(entry, torch.float32, 2)] == []


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        pytest.param("nn.functional.max_unpool2d", "aten.max_unpool2d.default", marks=pytest.mark.fixed_in("2.14")),
        ("nn.functional.embedding_bag", "aten._embedding_bag_forward_only.default"),
    ],
)
def test_the_bugs_that_are_known_are_found(name: str, operator: str) -> None:
    found = {f.ops[0] for entry in entries() if entry.name == name for f in look_at(entry, torch.float32, 60)}
    assert operator in found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_whole_database_has_no_unknown_finding(dtype: torch.dtype) -> None:
    assert [u for entry in entries() for u in unknown(entry, dtype, 60)] == []
