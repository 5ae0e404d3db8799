"""How grave a mismatch is, what to change, and which of PyTorch's own operators are known to bend the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchsan.checks.metadata.compare import Difference
from torchsan.records import Severity
from torchsan.torch_internals.operators import is_own

__all__ = ["BELIEVED", "advice", "excused", "looked_at", "severity_of"]

BELIEVED = frozenset({"size", "dtype", "device", "layout"})
"""What Inductor takes from a node. It lays out results anew, so strides are what the program asserts itself."""

_NOT_LOOKED_AT = frozenset(
    {
        # Metadata by definition: they return their argument, a view of it, or a number.
        "aten.lift_fresh.default",
        "aten.lift.default",
        "aten.detach.default",
        "aten.detach_.default",
        "aten._local_scalar_dense.default",
        "aten.is_same_size.default",
        "aten.equal.default",
        # They take storages, which no fake tensor can stand for.
        "aten.set_.source_Storage",
        "aten.set_.source_Storage_storage_offset",
        "aten.set_.source_Tensor",
        "aten.set_.source_Tensor_storage_offset",
        "aten.set_.default",
        "aten.record_stream.default",
        "aten.data.default",
        "aten._has_compatible_shallow_copy_type.default",
    }
)

_STATISTICS = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm",
    "instance_norm",
    "_batch_norm_impl_index",
)
"""Their schemas hide that they update running statistics. PyTorch takes that into account where it traces them."""

_MAY_ALIAS = ("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift_fresh", "_reshape_alias", "_unsafe_view")
"""Their results share memory by design: whoever calls them promises not to write to it."""


def looked_at(overload: Any) -> bool:
    """Whether calls of this operator are looked at at all."""
    return str(overload) not in _NOT_LOOKED_AT


def excused(overload: Any, what: str) -> bool:
    """Whether it is known, and taken into account by PyTorch, that this operator does `mutation` or `alias` unsaid."""
    if not is_own(overload):
        return False
    name = str(overload).split(".")[1]
    return name in (_STATISTICS if what == "mutation" else _MAY_ALIAS)


def severity_of(overload: Any, *, relied: bool = False, harmless: bool = False) -> Severity:
    """An error where the user can mend it, or a compiled program relies on it; else, for PyTorch's own, a warning.

    `harmless` mismatches are warnings anywhere.
    """
    if harmless or (is_own(overload) and not relied):
        return Severity.WARNING
    return Severity.ERROR


def advice(overload: Any, differences: Iterable[Difference], against: str) -> str:
    """What to change so that the accounts agree."""
    fields = {d.field for d in differences}
    if against == "graph" and is_own(overload):
        return (
            "look for the graph pass that made or changed this node, and let it set node.meta['val'] to what the node "
            "gives; if there is none of your own, it is a bug of PyTorch's"
        )
    if is_own(overload):
        return "a bug of PyTorch's: nothing to change here; do not rely on this field of the result in compiled code"
    if against == "decomposition":
        return f"make the decomposition of {overload} return what the operator returns"
    first = next(iter(differences))
    kernel = f"the fake kernel of {overload} (torch.library.register_fake)"
    if "structure" in fields:
        return f"let {kernel} return {first.real}, as the operator does"
    if "requires_grad" in fields:
        return (
            f"register the autograd formula of {overload} with torch.library.register_autograd; its kernel must not "
            "record one itself"
        )
    if "alias" in fields:
        return f"let {kernel} return views where the operator does, and new tensors where it does not"
    parts = [f"{d.field} {d.real} for {d.what}" for d in differences]
    return f"let {kernel} return {'; '.join(parts)}; or change the operator to return what the fake kernel says"
