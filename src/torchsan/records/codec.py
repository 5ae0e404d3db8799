"""Records to JSON values and back. Strict both ways: a malformed record is an error, never a guess."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, Union, get_args, get_origin

from torchsan.errors import RecordingError

R = TypeVar("R")

_LEAST, _MOST = -(2**128), 2**128
"""No number of ours is as large, and every one between them is a float as well."""

_MOST_VALUES = 250_000
"""Parts of what has no type: more than any check writes of one thing, and few enough to show."""

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Return `value` (a record, or anything made of records and plain values) as JSON values.

    JSON has neither non-finite nor complex numbers: they become the string `NaN`, `Infinity` or `-Infinity`, and
    `{"re": …, "im": …}`.
    """
    match value:
        case None | bool() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case int():
            return value
        case float():
            return _encode_float(value)
        case complex():
            return {"re": _encode_float(value.real), "im": _encode_float(value.imag)}
        case dict():
            return {str(k): encode(v) for k, v in value.items()}
        case list() | tuple():
            return [encode(v) for v in value]
        case _ if dataclasses.is_dataclass(value):
            return {f.name.rstrip("_"): encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        case _:
            raise TypeError(f"no JSON for {type(value).__name__}")


def _encode_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def decode(record: type[R], value: Any) -> R:
    """Return the `record` that `encode` made `value` from. Raise RecordingError if it is not one."""
    try:
        return typing.cast("R", _decode(record, value))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RecordingError(
            f"malformed {record.__name__} in a recording: {e}; the recording is damaged or was not written by torchsan",
            slug="malformed-record",
        ) from e


def _decode(hint: Any, value: Any) -> Any:
    return _decoder(hint)(value)


Decode = Callable[[Any], Any]


def _decoder(hint: Any) -> Decode:
    """How to decode what has this type."""
    if hint is Any:
        return _decode_any
    if isinstance(hint, typing.NewType):
        return _decoder(hint.__supertype__)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return partial(_decode_union, get_args(hint), tuple(map(_decoder, get_args(hint))))
    if origin is tuple:
        return partial(_decode_tuple, hint, _decoder(get_args(hint)[0]))
    if origin is dict:
        return partial(_decode_dict, hint, *map(_decoder, get_args(hint)))
    if dataclasses.is_dataclass(hint):
        return _record_decoder(typing.cast("type", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return partial(_decode_plain, hint)


@cache
def _record_decoder(record: type) -> Decode:
    """Found out once, since a recording holds the same records many times."""
    hints = typing.get_type_hints(record)
    fields = {f.name.rstrip("_"): (f.name, _decoder(hints[f.name])) for f in dataclasses.fields(record)}

    def decode_record(value: Any) -> Any:
        _expect(isinstance(value, dict), record, value)
        arguments = {}
        for key, each in value.items():
            name, decode_field = fields[key]
            arguments[name] = decode_field(each)
        return record(**arguments)

    return decode_record


def _decode_any(value: Any) -> Any:
    """What is of no type is shown, and perhaps computed with: numbers and lists without end would break that."""
    values, seen = [value], 0
    while values:
        each = values.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise ValueError(f"a value of more than {_MOST_VALUES:,} parts")
        if type(each) is int:
            _expect_small(each)
        elif isinstance(each, list):
            values += each
        elif isinstance(each, dict):
            values += each.values()
    return value


def _decode_tuple(hint: Any, element: Decode, value: Any) -> Any:
    _expect(isinstance(value, list), hint, value)
    return tuple(map(element, value))


def _decode_dict(hint: Any, key: Decode, element: Decode, value: Any) -> Any:
    _expect(isinstance(value, dict), hint, value)
    return {key(k): element(v) for k, v in value.items()}


def _decode_union(hints: tuple[Any, ...], decoders: tuple[Decode, ...], value: Any) -> Any:
    if value is None and type(None) in hints:
        return None
    for decode_as in decoders:
        try:
            return decode_as(value)
        except (KeyError, TypeError, ValueError):
            continue
    raise ValueError(f"{value!r:.80} is none of {hints}")


def _decode_plain(hint: Any, value: Any) -> Any:
    if hint is type(None):
        _expect(value is None, hint, value)
    elif hint is float:
        if isinstance(value, str):
            return _NONFINITE[value]
        _expect(type(value) in (int, float), hint, value)
        return float(value)
    elif hint is complex:
        _expect(isinstance(value, dict) and set(value) == {"re", "im"}, hint, value)
        return complex(_decode_plain(float, value["re"]), _decode_plain(float, value["im"]))
    else:
        _expect(type(value) is hint, hint, value)
        if hint is int:
            _expect_small(value)
    return value


def _expect(fits: bool, hint: Any, value: Any) -> None:
    if not fits:
        raise TypeError(f"{value!r:.80} is not {hint}")


def _expect_small(value: int) -> None:
    if not _LEAST < value < _MOST:
        raise ValueError("a number with many digits")
