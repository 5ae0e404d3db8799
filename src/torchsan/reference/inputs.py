"""The inputs of one call: what they look like, and copies of them that overlap as they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from torchsan.reference.arithmetic import Unsupported, widened

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def unsupported(args: Iterable[Any]) -> str | None:
    """Why a call with these arguments cannot be run again; None if it can."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if type(arg) not in _PLAIN and not isinstance(arg, torch.nn.Buffer):
                return f"an input is a {type(arg).__name__}, a tensor subclass"
            if arg.layout is not torch.strided or arg.is_quantized or arg.device.type == "meta":
                return f"an input is {arg.layout} on {arg.device}"
        elif not isinstance(arg, int | float | bool | complex | str | None):
            return f"an input is a {type(arg).__name__}"
    return None


def fingerprint(args: Sequence[Any]) -> tuple[Any, ...]:
    """What a graph may have been specialised on without a guard: layouts, dtypes, and which inputs share memory."""
    found: list[Any] = []
    storages: dict[int, tuple[int, Any]] = {}
    for i, arg in enumerate(args):
        if type(arg) is torch.nn.Parameter or not isinstance(arg, torch.Tensor):
            continue
        found.append((arg.shape, arg.stride(), arg.dtype, arg.requires_grad))
        storage = arg.untyped_storage().data_ptr()
        if storage in storages:
            first, offset = storages[storage]
            found.append((first, i, arg.storage_offset() - offset))
        else:
            storages[storage] = (i, arg.storage_offset())
    return tuple(found)


class Inputs:
    """The arguments as they are now; `copies` gives them anew, as often as one likes, also after they have changed.

    Parameters that the graph does not write are held, not copied. Two inputs that overlap still do.
    """

    def __init__(self, args: Sequence[Any], mutated: frozenset[int]) -> None:
        self._args = [self._held(a, i in mutated) for i, a in enumerate(args)]
        groups: dict[int, list[int]] = {}
        for i, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and arg.numel():
                groups.setdefault(arg.untyped_storage().data_ptr(), []).append(i)
        self._groups = [g for g in groups.values() if len(g) > 1 and not self._independent([args[i] for i in g])]
        self._leaf = [isinstance(a, torch.Tensor) and a.is_leaf for a in args]
        self._requires_grad = [isinstance(a, torch.Tensor) and a.requires_grad for a in args]
        self._mutated = mutated
        self._bases = {i: storage for g in self._groups for storage in [self._storage(args[g[0]])] for i in g}
        self._geometry = [
            (a.size(), a.stride(), a.storage_offset(), a._is_view()) if isinstance(a, torch.Tensor) else None
            for a in args
        ]
        self._versions = [a._version if self._shares(a, i) else None for i, a in enumerate(args)]

    @property
    def overlap(self) -> bool:
        """Whether inputs share memory."""
        return bool(self._groups)

    def stale(self) -> bool:
        """Whether an input that is held, not copied, was written since."""
        return any(v is not None and a._version != v for a, v in zip(self._args, self._versions, strict=True))

    def copies(self, *, wide: bool) -> tuple[list[Any], list[torch.Tensor | None]]:
        """New arguments, in float64 if `wide`, and for each the leaf that its gradient is taken of.

        Raise Unsupported if overlapping inputs have several dtypes.
        """
        result: list[Any] = list(self._args)
        leaves: list[torch.Tensor | None] = [None] * len(result)
        storages: dict[int, torch.Tensor] = {}
        for i, arg in enumerate(self._args):
            if not isinstance(arg, torch.Tensor):
                continue
            if i in self._bases:
                result[i] = leaf = self._view(i, arg, storages, wide)
            else:
                result[i], leaf = self._alone(i, arg, wide)
            leaves[i] = leaf if leaf.requires_grad and leaf.is_leaf else None
        return result, leaves

    def writable(self, i: int) -> bool:
        """Whether the copies of this input are its own."""
        return i in self._mutated or not isinstance(self._args[i], torch.nn.Parameter)

    def _held(self, arg: Any, mutated: bool) -> Any:
        if not isinstance(arg, torch.Tensor) or (isinstance(arg, torch.nn.Parameter) and not mutated):
            return arg
        return _clone(arg)

    def _shares(self, arg: Any, i: int) -> bool:
        return isinstance(arg, torch.nn.Parameter) and i not in self._mutated and not arg.is_inference()

    @staticmethod
    def _independent(group: list[torch.Tensor]) -> bool:
        """The same parameter twice, which nobody writes, is no overlap worth keeping."""
        return all(isinstance(t, torch.nn.Parameter) for t in group)

    @staticmethod
    def _storage(t: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.detach().untyped_storage())
        return whole.clone()

    def _view(self, i: int, arg: torch.Tensor, storages: dict[int, torch.Tensor], wide: bool) -> torch.Tensor:
        base = self._bases[i]
        if arg.dtype != base.dtype:
            raise Unsupported("inputs of several dtypes share memory")
        key = id(base)
        if key not in storages:
            fresh = base.clone()
            storages[key] = widened(fresh) if wide else fresh
        geometry = self._geometry[i]
        assert geometry is not None
        size, stride, offset, is_view = geometry
        if is_view:
            view = storages[key].as_strided(size, stride, offset)
        else:
            view = torch.empty(0, dtype=storages[key].dtype).set_(storages[key].untyped_storage(), offset, size, stride)
        return view.requires_grad_() if self._requires_grad[i] and view.is_leaf else view

    def _alone(self, i: int, arg: torch.Tensor, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        copy = arg.detach()
        if self.writable(i):
            copy = _clone(copy)
        if wide:
            copy = _wide_like(copy)
        if self._requires_grad[i]:
            leaf = copy.requires_grad_()
            # What the program changes in place, it could: it was no leaf.
            return (leaf.clone() if not self._leaf[i] and i in self._mutated else leaf), leaf
        return copy, copy


def _clone(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; with the same overlap inside, too."""
    t = t.detach()
    if t.numel() == 0:
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    if span == t.numel():
        return t.clone(memory_format=torch.preserve_format)
    return t.as_strided((span,), (1,)).clone().as_strided(t.size(), t.stride())


def _wide_like(t: torch.Tensor) -> torch.Tensor:
    dtype = widened(torch.empty(0, dtype=t.dtype)).dtype
    if dtype is t.dtype or t.numel() == 0:
        return t.to(dtype)
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((span,), (1,)).to(dtype).as_strided(t.size(), t.stride())


def maybe_mutated(graph: torch.fx.Graph) -> frozenset[int]:
    """The inputs, by position, that Dynamo's graph may write: never too few."""
    positions = {n: i for i, n in enumerate(m for m in graph.nodes if m.op == "placeholder")}
    found: set[int] = set()
    for node in graph.nodes:
        for written in _written(node):
            stack, seen = [written], set()
            while stack:
                parent = stack.pop()
                if parent not in seen:
                    seen.add(parent)
                    stack += parent.all_input_nodes
            found |= {positions[n] for n in seen if n in positions}
    return frozenset(found)


_PURE_MODULES = ("torch.nn.functional", "torch._C._nn", "torch", "_operator", "math", "builtins")
_PURE_TYPES = ("builtin_function_or_method", "method_descriptor", "wrapper_descriptor")
_IN_PLACE_FLAG = frozenset(
    """relu relu6 elu selu celu leaky_relu rrelu hardtanh hardswish hardsigmoid silu mish threshold dropout dropout1d
    dropout2d dropout3d alpha_dropout feature_alpha_dropout""".split()
)


def _written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a node may write."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return []
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return _declared(node, schema)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    first = [a for a in node.args[:1] if isinstance(a, torch.fx.Node)]
    if node.kwargs.get("out") is not None or node.op == "call_module":
        return node.all_input_nodes
    if name.endswith("_") and not name.endswith("__"):
        return first
    if name in ("setitem", "__setitem__"):
        return first
    if name in ("batch_norm", "instance_norm"):
        running = [*node.args[1:3], node.kwargs.get("running_mean"), node.kwargs.get("running_var")]
        return [n for n in running if isinstance(n, torch.fx.Node)]
    if name in ("embedding", "embedding_bag"):  # With `max_norm` they renormalise their weights.
        return node.all_input_nodes if len(node.args) > 3 and node.args[3] is not None else []
    if name in _IN_PLACE_FLAG:
        return first if node.kwargs.get("inplace") or (len(node.args) > 1 and node.args[-1] is True) else []
    if node.op == "call_method":
        return []
    module = getattr(target, "__module__", None) or ""
    augmented = module == "_operator" and name.startswith("i") and name not in ("invert", "index", "is_", "is_not")
    known = module in _PURE_MODULES or type(target).__name__ in _PURE_TYPES
    return first if augmented else [] if known else node.all_input_nodes


def _declared(node: torch.fx.Node, schema: Any) -> list[torch.fx.Node]:
    found: list[Any] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(node.args[i] if i < len(node.args) else node.kwargs.get(argument.name))
    nodes: list[torch.fx.Node] = []
    torch.fx.node.map_arg(found, nodes.append)
    return nodes
