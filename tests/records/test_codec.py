from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import finding, graph
from torchsan.errors import RecordingError
from torchsan.records import (
    Comparison,
    Coverage,
    Finding,
    GraphRecord,
    Skipped,
    TensorMeta,
    TensorSummary,
    decode,
    encode,
)

SCALARS = st.booleans() | st.integers() | st.floats() | st.complex_numbers()


@pytest.mark.parametrize(
    "record",
    [
        finding(id="F1"),
        graph(),
        Coverage(graphs=1, skipped=(Skipped(what="a", reason="b"),)),
        TensorSummary(meta=TensorMeta(dtype="float32", shape=(2, None)), count=2, values=(1.0, -0.0)),
        Comparison(count=3, first_bad=(0, 1), actual_at=1 + 2j),
    ],
)
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert decode(type(record), json.loads(json.dumps(encode(record), allow_nan=False))) == record


@given(values=st.lists(SCALARS, max_size=5), minimum=st.none() | st.integers() | st.floats())
def test_every_number_survives_json(values: list[Any], minimum: Any) -> None:
    meta = TensorMeta(dtype="x", shape=())
    record = TensorSummary(meta=meta, count=1, values=tuple(values), minimum=minimum)
    text = json.dumps(encode(record), allow_nan=False)
    back = decode(TensorSummary, json.loads(text))
    assert repr(back.minimum) == repr(minimum)
    assert repr(back) == repr(record)


def test_pass_is_called_pass_in_json() -> None:
    assert encode(finding(pass_="fuse"))["pass"] == "fuse"
    assert "pass_" not in encode(finding())


@pytest.mark.parametrize(
    "changes",
    [
        {"severity": "fatal"},
        {"nodes": "relu"},
        {"nodes": [1]},
        {"message": None},
        {"graph": {"id": True, "direction": "forward"}},
        {"unknown": 1},
        {"source": [{"file": "a.py", "line": "12"}]},
    ],
)
def test_a_malformed_record_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordingError, match="malformed Finding"):
        decode(Finding, encode(finding()) | changes)


def test_numbers_beyond_float_are_refused() -> None:
    with pytest.raises(RecordingError):
        decode(GraphRecord, encode(graph()) | {"compile_seconds": 10**400})


def test_what_has_no_json_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no JSON for set"):
        encode({"x": {1}})


def test_infinities_are_words() -> None:
    assert encode([math.nan, math.inf, -math.inf]) == ["NaN", "Infinity", "-Infinity"]
