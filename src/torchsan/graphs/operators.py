"""From the name of an operator in a recording to the operator: PyTorch's own, or one that the user has loaded."""

from __future__ import annotations

from typing import Any

from torchsan.errors import RecordingError
from torchsan.records import Exhibit
from torchsan.repro.exhibits import foreign_operators
from torchsan.torch_internals.operators import overloads_named, registered_names


def find_operator(op: str) -> Any:
    """The overload of a name such as `aten.amin.default`; raise RecordingError if no dispatcher knows it."""
    library, name, overload = op.split(".")
    full = f"{library}::{name}" + ("" if overload == "default" else f".{overload}")
    # What TorchScript knows beyond the dispatcher (`aten::save` and the like) is not for reproducers.
    found = overloads_named([full]) if full in registered_names() else []
    if not found:
        raise RecordingError(f"this PyTorch has no operator {op}", slug="malformed-record")
    return found[0]


def require_operators(exhibit: Exhibit) -> None:
    """Raise RecordingError for an operator of PyTorch's own that it does not have."""
    foreign = foreign_operators(exhibit)
    for node in exhibit.nodes:
        if node.op != "getitem" and node.op not in foreign:
            find_operator(node.op)
