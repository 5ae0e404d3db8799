"""What the store keeps about a tensor, as frozen records and as strictly checked JSON."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NewType, TypeAlias

import torch

from torchsan.errors import StoreError
from torchsan.records import TensorMeta

_NAMES = """
bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128
float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
bits8 bits16 bits1x8 bits2x4 bits4x2
uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7
""".split()

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
ITEMSIZE: dict[str, int] = {name: dtype.itemsize for name, dtype in DTYPES.items()}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

MAX_NAME = 1_000
"""Characters. Longer names are a mistake of the caller more often than a wish."""

_SEPARATORS = re.compile(r"[/\\]")
_FORBIDDEN = {"Cc": "a control character", "Cs": "a lone surrogate", "Zl": "a line break", "Zp": "a line break"}
_CONSIDERED = 20_000


def check_name(name: str) -> str:
    """Return `name` if a tensor may be called that, else raise StoreError.

    Names are text with `/` between the parts. The parts `.` and `..`, a leading separator and control characters are
    refused, because names are printed to terminals and used as paths when tensors are exported.
    """
    if not isinstance(name, str):
        raise StoreError(f"a tensor's name is a str, not {type(name).__name__}", slug="bad-name")
    if not name:
        raise StoreError("a tensor's name is empty; give it at least one character", slug="bad-name")
    if len(name) > MAX_NAME:
        raise StoreError(
            f"a tensor's name has {len(name)} characters and may have {MAX_NAME}: {name[:40]!r}…; shorten it",
            slug="bad-name",
        )
    if not name.isascii() or not name.isprintable():
        for char in name:
            if reason := _FORBIDDEN.get(unicodedata.category(char)):
                raise StoreError(f"the name {name[:80]!r} holds {reason}, {char!r}; leave it out", slug="bad-name")
    parts = _SEPARATORS.split(name)
    if ".." in parts or "." in parts or not parts[0]:
        raise StoreError(
            f"the name {name[:80]!r} reads as a path outside the store; leave out '..', '.' and a leading slash",
            slug="bad-name",
        )
    return name


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> list[str]:
    """Return up to `count` of `names` that look most like `name`, best first."""
    considered = [n for n, _ in zip(names, range(_CONSIDERED), strict=False)]
    return difflib.get_close_matches(name, considered, n=count, cutoff=0.5)


Digest = NewType("Digest", str)
"""BLAKE3 of a blob's bytes, 64 lowercase hex digits."""
SegmentId = NewType("SegmentId", str)
"""Names a log and the pack beside it."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SEGMENT = re.compile(r"[0-9a-z-]{1,64}")
_OWN_SEGMENT = re.compile(r"[0-9a-f]{16}-[0-9a-z]{6,12}")
_DEVICE = re.compile(r"[a-z_]{1,20}(:[0-9]{1,4})?")
_MAX_DIMS = 64
_MAX_INT = 2**63 - 1


def is_digest(name: str) -> bool:
    """Return whether this can be the name of a blob."""
    return _DIGEST.fullmatch(name) is not None


def is_segment(name: str) -> bool:
    """Return whether a writer can have given this name to its log."""
    return _OWN_SEGMENT.fullmatch(name) is not None


SPARSE_PARTS = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""The dense components of each sparse layout, in the order that torch's constructors take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Where bytes are: a file of their own, or (`pack`, `at`) in the pack of a segment; nowhere if there are none.

    `probe` is a hash of a few samples of a large blob. It only says whether hashing first is worth it.
    """

    digest: Digest
    nbytes: int
    probe: str | None = None
    pack: SegmentId | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRecord:
    """A strided view of a blob. `start` counts elements into the blob; `offset` is what the original tensor had."""

    layout: str = "strided"
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    offset: int
    device: str
    requires_grad: bool
    conj: bool
    neg: bool
    blob: BlobRef

    @property
    def meta(self) -> TensorMeta:
        """The metadata of the tensor that was put."""
        return TensorMeta(
            dtype=self.dtype,
            shape=self.shape,
            stride=self.stride,
            offset=self.offset,
            device=self.device,
            requires_grad=self.requires_grad,
            conj=self.conj,
            neg=self.neg,
        )

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """The blobs that hold the data."""
        return (self.blob,)

    @property
    def nbytes(self) -> int:
        """The size of all elements; they may share memory, and be much more than the blob."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    def placed(self, place: Callable[[BlobRef], BlobRef]) -> DenseRecord:
        """Return the record with what `place` returns for each of its blobs."""
        return replace(self, blob=place(self.blob))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRecord:
    """A sparse tensor: its dense components by name, in the order of `SPARSE_PARTS`."""

    layout: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool
    coalesced: bool
    parts: dict[str, DenseRecord]

    @property
    def meta(self) -> TensorMeta:
        """The metadata of the tensor that was put."""
        return TensorMeta(
            dtype=self.dtype,
            shape=self.shape,
            device=self.device,
            layout=self.layout,
            requires_grad=self.requires_grad,
            kind="sparse",
        )

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """The blobs that hold the data."""
        return tuple(part.blob for part in self.parts.values())

    @property
    def nbytes(self) -> int:
        """The size of what is in its parts."""
        return sum(part.nbytes for part in self.parts.values())

    def placed(self, place: Callable[[BlobRef], BlobRef]) -> SparseRecord:
        """Return the record with what `place` returns for each of its blobs."""
        return replace(self, parts={name: part.placed(place) for name, part in self.parts.items()})


TensorRecord: TypeAlias = DenseRecord | SparseRecord


def swollen(records: Iterable[TensorRecord]) -> int | None:
    """Return the bytes of all elements of these tensors if they are very many, and very many more than are stored.

    Elements can share memory, and tensors a blob: a store of a few bytes can describe more than any disk holds.
    """
    nbytes, blobs = 0, {}
    for record in records:
        nbytes += record.nbytes
        blobs.update({blob.digest: blob.nbytes for blob in record.blobs})
    return nbytes if nbytes > _MUCH and nbytes > _TIMES * sum(blobs.values()) else None


_MUCH, _TIMES = 256 << 20, 16


def to_json(value: TensorRecord | BlobRef) -> dict[str, Any]:
    """Return a record as JSON values; `from_json` reads them back."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    match value:
        case DenseRecord():
            fields["blob"] = to_json(value.blob)
        case SparseRecord():
            fields["parts"] = {name: to_json(part) for name, part in value.parts.items()}
        case BlobRef():
            pass
    return fields


def from_json(name: str, value: Any) -> TensorRecord:
    """Return the record that `value` describes. Raise StoreError unless every field is in bounds.

    What passes can be read without leaving its blob: the last element that shape, stride and start reach lies inside
    the `nbytes` of the blob. Nothing is allocated here.
    """
    try:
        return _record(value)
    except (KeyError, TypeError, ValueError) as e:
        reason = f"no field {e}" if isinstance(e, KeyError) else str(e)
        raise StoreError(
            f"the metadata of tensor {name!r} are malformed: {reason}; `torchsan store fsck` lists the damage, "
            "and putting the tensor again mends it",
            slug="malformed-metadata",
        ) from e


def _record(value: Any) -> TensorRecord:
    _require(isinstance(value, dict), "not an object")
    layout = value["layout"]
    if layout == "strided":
        return _dense(value)
    _require(isinstance(layout, str) and layout in SPARSE_PARTS, f"layout {layout!r:.40} is unknown")
    parts = value["parts"]
    _require(isinstance(parts, dict), "parts is not an object")
    _require(set(parts) == set(SPARSE_PARTS[layout]), f"the parts of {layout} are not {sorted(parts)!r:.80}")
    shape = _ints(value, "shape")
    _require(math.prod(shape) <= _MAX_INT, f"shape {list(shape)!r:.80} has more elements than memory can")
    return SparseRecord(
        layout=layout,
        dtype=_dtype(value),
        shape=shape,
        device=_text(value, "device", _DEVICE),
        requires_grad=_bool(value, "requires_grad"),
        coalesced=_bool(value, "coalesced"),
        parts={part: _dense(parts[part]) for part in SPARSE_PARTS[layout]},
    )


def _dense(value: Any) -> DenseRecord:
    _require(isinstance(value, dict) and value["layout"] == "strided", "a part is not strided")
    record = DenseRecord(
        dtype=_dtype(value),
        shape=_ints(value, "shape"),
        stride=_ints(value, "stride"),
        start=_int(value["start"], "start"),
        offset=_int(value["offset"], "offset"),
        device=_text(value, "device", _DEVICE),
        requires_grad=_bool(value, "requires_grad"),
        conj=_bool(value, "conj"),
        neg=_bool(value, "neg"),
        blob=blob_from_json(value["blob"]),
    )
    _require(len(record.shape) == len(record.stride), "shape and stride differ in length")
    _require(not record.conj or "complex" in record.dtype, f"conj is set on {record.dtype}")
    elements = math.prod(record.shape)
    _require(elements <= _MAX_INT, f"shape {list(record.shape)!r:.80} has more elements than memory can")
    reach = 0
    if elements:
        reach = 1 + sum((size - 1) * stride for size, stride in zip(record.shape, record.stride, strict=True))
    end = (record.start + reach) * ITEMSIZE[record.dtype]
    _require(
        end <= record.blob.nbytes,
        f"shape, stride and start reach byte {end} of a blob of {record.blob.nbytes}",
    )
    return record


def blob_from_json(value: Any) -> BlobRef:
    """Return the blob that `value` refers to, or raise KeyError, TypeError or ValueError."""
    _require(isinstance(value, dict), "blob is not an object")
    pack, probe = value["pack"], value["probe"]
    return BlobRef(
        digest=Digest(_text(value, "digest", _DIGEST)),
        nbytes=_int(value["nbytes"], "nbytes"),
        probe=None if probe is None else _text(value, "probe", _SEGMENT),
        pack=None if pack is None else SegmentId(_text(value, "pack", _SEGMENT)),
        at=_int(value["at"], "at"),
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _int(value: Any, what: str) -> int:
    _require(type(value) is int and 0 <= value <= _MAX_INT, f"{what} is {value!r:.40}, not a size")
    return int(value)


def _ints(value: dict[str, Any], key: str) -> tuple[int, ...]:
    items = value[key]
    _require(isinstance(items, list) and len(items) <= _MAX_DIMS, f"{key} is no list of up to {_MAX_DIMS} sizes")
    return tuple(_int(item, key) for item in items)


def _bool(value: dict[str, Any], key: str) -> bool:
    _require(type(value[key]) is bool, f"{key} is {value[key]!r:.40}, not a bool")
    return bool(value[key])


def _text(value: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    text = value[key]
    _require(isinstance(text, str) and pattern.fullmatch(text) is not None, f"{key} is {text!r:.80}")
    return str(text)


def _dtype(value: dict[str, Any]) -> str:
    dtype = value["dtype"]
    _require(isinstance(dtype, str) and dtype in ITEMSIZE, f"dtype is {dtype!r:.40}")
    return str(dtype)
