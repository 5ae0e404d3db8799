"""Records to JSON values and back. Strict both ways: a malformed record is an error, never a guess."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from torchsan.errors import RecordingError

R = TypeVar("R")

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


@cache
def _hints(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _decode(hint: Any, value: Any) -> Any:
    if hint is Any:
        return value
    if isinstance(hint, typing.NewType):
        return _decode(hint.__supertype__, value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), value)
    if origin is tuple:
        _expect(isinstance(value, list), hint, value)
        return tuple(_decode(get_args(hint)[0], v) for v in value)
    if origin is dict:
        _expect(isinstance(value, dict), hint, value)
        return {_decode(get_args(hint)[0], k): _decode(get_args(hint)[1], v) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        _expect(isinstance(value, dict), hint, value)
        names = {f.name.rstrip("_"): f.name for f in dataclasses.fields(hint)}
        hints = _hints(typing.cast("type", hint))
        return hint(**{names[k]: _decode(hints[names[k]], v) for k, v in value.items()})  # type: ignore[operator]  # a dataclass type is callable
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _decode_plain(hint, value)


def _decode_union(hints: tuple[Any, ...], value: Any) -> Any:
    for hint in hints:
        try:
            return _decode(hint, value)
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
    return value


def _expect(fits: bool, hint: Any, value: Any) -> None:
    if not fits:
        raise TypeError(f"{value!r:.80} is not {hint}")
