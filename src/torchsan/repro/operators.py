"""From the name of an operator in a recording to the operator: PyTorch's own, or one that the user has loaded."""

from __future__ import annotations

from typing import Any

from torchsan.errors import RecordingError, UsageError
from torchsan.records import Exhibit
from torchsan.repro.exhibits import foreign_operators
from torchsan.torch_internals.operators import overloads_named, registered_names

__all__ = ["find_operator", "require_operators"]


def find_operator(op: str) -> Any:
    """The overload of a name such as `aten.amin.default`; raise RecordingError if no dispatcher knows it."""
    library, name, overload = op.split(".")
    full = f"{library}::{name}" + ("" if overload == "default" else f".{overload}")
    # What TorchScript knows beyond the dispatcher (`aten::save` and the like) is not for reproducers.
    found = overloads_named([full]) if full in registered_names() else []
    if not found:
        raise RecordingError(f"this PyTorch has no operator {op}", slug="malformed-record")
    return found[0]


def require_operators(exhibit: Exhibit, loads: tuple[str, ...]) -> None:
    """Raise UsageError if operators of other libraries are called and no module is given that registers them."""
    foreign = foreign_operators(exhibit)
    if foreign and not loads:
        raise UsageError(
            f"{exhibit.finding} calls {', '.join(foreign)}, which is not PyTorch's own; nothing that a recording names "
            "is loaded by itself: give the module that registers it with --load MODULE",
            slug="unknown-operator",
        )
    for node in exhibit.nodes:
        if node.op != "getitem" and node.op not in foreign:
            find_operator(node.op)
