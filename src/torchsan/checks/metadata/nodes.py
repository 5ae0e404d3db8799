"""The nodes of a compiled graph, each run for real once, against what the compiler believed of them.

Of what Inductor fuses into a kernel no operator is ever called; here it is. A node is run on what the nodes before it
really gave. What is not run, or gave something else, is replaced by a tensor of zeros with the metadata that the graph
says: so each node is judged by itself, and nothing that follows from a mistake is reported beside it.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx

from torchsan.checks.metadata.compare import BELIEVED_FIELDS, compare_results
from torchsan.checks.metadata.eager import EagerJudge, enter_place, leave_place
from torchsan.checks.metadata.exhibit import render_call
from torchsan.checks.metadata.findings import Place, mismatch
from torchsan.checks.metadata.judge import inputs as tensor_arguments
from torchsan.errors import FindingsError, in_one_line
from torchsan.graphs.nodes import source_lines
from torchsan.records import Kind, Stage
from torchsan.reference.aside import aside
from torchsan.torch_internals.fakes import symbol_value
from torchsan.torch_internals.operators import (
    draws_random_numbers,
    has_storage,
    is_higher_order,
    is_own,
    map_tensors,
    overlaps_itself,
    random_kept,
    storage_key,
    tensors_in,
    undisturbed,
)
from torchsan.watch.observer import CompiledProgram
from torchsan.watch.operators import OperatorCall

log = logging.getLogger(__name__)


def private_copy(arguments: Any) -> Any:
    """The same arguments, each tensor among them with its elements, strides and offset in a storage of its own."""
    return map_tensors(_copy, arguments)


def _copy(t: torch.Tensor) -> torch.Tensor:
    if t.layout is not torch.strided:
        return t.detach().clone().requires_grad_(t.requires_grad)
    length = t.untyped_storage().nbytes() // t.element_size()
    base = torch.empty_strided((length,), (1,), dtype=t.dtype, device=t.device)
    twin = base.as_strided(t.shape, t.stride(), t.storage_offset())
    if overlaps_itself(t):  # Elements that share memory cannot be written each by itself.
        base.copy_(t.detach().as_strided((length,), (1,), 0))
    else:
        twin.copy_(t.detach())
    return twin.detach().requires_grad_(t.requires_grad)


_COMPUTE = frozenset({"aten", "prims", "mkldnn", "mkl", "onednn", "quantized", "quantized_decomposed"})
"""The namespaces of PyTorch's own whose operators only compute; others communicate, profile or manage memory."""

_MOST_BYTES = 1 << 28
"""What a fused kernel never makes in memory may be larger than memory."""

_MISSING: Any = object()


_NO_METADATA = "so that its metadata were not compared"


class _NotRunError(Exception):
    """The node is not run for real; the text says why, and is empty where nothing is left unchecked by it."""


class NodeWalk:
    """Runs the graph of one function of a compiled program once, from the inputs of a call, and judges its nodes.

    The inputs are only read; of other operators than PyTorch's own, copies are. `elsewhere` are the nodes that are
    looked at where the program calls their operator.
    """

    def __init__(
        self,
        judge: EagerJudge,
        program: CompiledProgram,
        function: str,
        symbols: Mapping[Any, Any],
        elsewhere: Iterable[torch.fx.Node],
    ) -> None:
        self._findings = judge.findings
        self._recorder = judge.findings.recorder
        self._judge = judge
        self._program = program
        self._function = function
        self._symbols = symbols
        self._elsewhere = frozenset(elsewhere)
        self._values: dict[torch.fx.Node, Any] = {}
        self._theirs: set[int] = set()
        """The storages of inputs and constants."""
        self._stale: set[int] = set()
        """Those of them that the program has written to by now, and this did not."""
        self._suspect: set[torch.fx.Node] = set()
        """The nodes that gave something else. What the graph says of the next may follow from either side."""
        self._reasons: dict[str, list[str]] = {}
        self._checked: set[str] = set()

    def run(self, inputs: Iterable[Any]) -> bool:
        """Walk the graph; return whether all is as the graph says. Raise FindingsError if a finding is to raise."""
        graph = self._program.graphs[self._function].module.graph
        given = tuple(inputs)
        if len(given) != sum(n.op == "placeholder" for n in graph.nodes):
            self._recorder.skipped(self._what(), "the graph has other inputs than its program; its nodes were not run")
            return True
        nodes = [n for n in graph.nodes if n.op != "output"]
        last = {parent: node for node in nodes for parent in (node, *node.all_input_nodes)}
        rest = iter(given)
        try:
            with warnings.catch_warnings(), undisturbed(), random_kept():
                warnings.simplefilter("ignore")  # The program's own operators have warned already, or never will.
                for node in nodes:
                    self._values[node] = (
                        self._value(node) if node.op != "placeholder" else self._input(node, next(rest))
                    )
                    for done in {node, *node.all_input_nodes}:
                        if last[done] is node:
                            del self._values[done]
        finally:
            self._values.clear()
            self._recorder.ops_checked(sorted(self._checked))
            for reason, names in self._reasons.items():
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                self._recorder.skipped(self._what(), f"{', '.join(names[:5])}{more}: {reason}")
        return not self._suspect

    def _what(self) -> str:
        where = "" if self._function == "call" else f", {self._function}"
        return f"nodes of graph {self._program.record.label}{where}"

    def _input(self, node: torch.fx.Node, value: Any) -> Any:
        """An input or constant. One that the graph was not compiled for is reported as that, not by what follows."""
        self._theirs |= _storages(tensors_in(value))
        believed = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not isinstance(believed, torch.Tensor):
            return value
        if not compare_results(value, believed, fields=BELIEVED_FIELDS, number=self._number):
            return value
        self._suspect.add(node)
        return self._stand_in(believed)

    def _value(self, node: torch.fx.Node) -> Any:
        """The value of a node, or its stand-in."""
        try:
            if node.op == "get_attr":
                return self._input(node, self._program.attribute(self._function, str(node.target)))
            return self._judged(node)
        except FindingsError:
            raise
        except _NotRunError as e:
            reason = str(e)
        except Exception as e:  # an operator that cannot run here ends the check of this node, no more
            log.debug("cannot run %s", node, exc_info=True)
            reason = f"failed: {in_one_line(e)}"
        if reason:
            self._reasons.setdefault(reason, []).append(node.name)
        return self._stand_in(node.meta.get("val"))

    def _judged(self, node: torch.fx.Node) -> Any:
        believed = node.meta.get("val")
        known = self._number(believed) if isinstance(believed, torch.SymInt | torch.SymFloat | torch.SymBool) else None
        if known is not None:
            return known
        if any(self._values[n] is _MISSING for n in node.all_input_nodes):
            raise _NotRunError("depends on what could not be run")
        args: Any = torch.fx.node.map_arg(node.args, self._values.__getitem__)
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, self._values.__getitem__)
        target: Any = node.target
        if not hasattr(target, "_schema"):
            if is_higher_order(target):
                raise _NotRunError(f"has subgraphs or effects, {_NO_METADATA}")
            if target is not operator.getitem and isinstance(believed, torch.Tensor):
                raise _NotRunError(f"is no operator, {_NO_METADATA}")
            return target(*args, **kwargs)
        result = self._run(node, target, tuple(args), dict(kwargs))
        if "val" not in node.meta:
            if result is None:
                return None
            raise _NotRunError("the graph says nothing of its result")
        self._checked.add(str(target))
        found = compare_results(result, believed, fields=BELIEVED_FIELDS, number=self._number)
        if not found:
            return result
        followed = not self._suspect.isdisjoint(node.all_input_nodes)
        self._suspect.add(node)
        if not followed:
            call = render_call(target, args, kwargs)
            self._findings.report(mismatch(target, self._place(node), "graph", found, call))
        return self._stand_in(believed)

    def _run(self, node: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = list(tensor_arguments(target, args, kwargs))
        written = [a.tensor for a in arguments if a.written]
        try:
            if node in self._elsewhere or self._findings.knows(str(target), Kind.METADATA_MISMATCH):
                raise _NotRunError("")
            if _storages(a.tensor for a in arguments) & self._stale:
                raise _NotRunError("reads an input that the program has written to by then")
            if written and (not is_own(target) or _storages(written) & self._theirs):
                # What an input is overwritten with in the end was looked at where it was made.
                raise _NotRunError("" if str(target) == "aten.copy_.default" else f"writes to an input, {_NO_METADATA}")
            if draws_random_numbers(target, args, kwargs):
                raise _NotRunError("draws random numbers")
            if is_own(target) and (target.namespace not in _COMPUTE or target._schema.name == "aten::_print"):
                raise _NotRunError("does more than compute")
            if self._bytes(node.meta.get("val")) > _MOST_BYTES:
                raise _NotRunError(f"its result would have more than {_MOST_BYTES >> 20} MiB")
            return target(*args, **kwargs) if is_own(target) else self._watched(node, target, args, kwargs)
        except _NotRunError:
            self._spoil(written)
            raise

    def _watched(self, node: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that Inductor has put code of its own in the place of, as eager code is looked at."""
        args, kwargs = private_copy((args, kwargs))
        call = OperatorCall(overload=target, args=args, kwargs=kwargs)
        enter_place(self._place(node))
        try:
            before = self._judge.before(call)
            result = aside(lambda: target(*args, **kwargs), written=tensors_in((args, kwargs)))
            self._judge.after(call, before, result)
        finally:
            leave_place()
        return result

    def _place(self, node: torch.fx.Node) -> Place:
        return Place(stage=_STAGE, graph=self._program.ref, nodes=(node.name,), source=source_lines([node]))

    def _spoil(self, written: Iterable[torch.Tensor]) -> None:
        """A write did not happen: what it would have left is unknown, or zeros where the memory is our own."""
        for tensor in written:
            if _storages([tensor]) & self._theirs:
                self._stale |= _storages([tensor])
            else:
                tensor.zero_()

    def _number(self, value: Any) -> Any:
        return symbol_value(value, self._symbols)

    def _bytes(self, believed: Any) -> int:
        """The size of the largest tensor of a result; 0 where it depends on data."""
        most = 0
        for t in tensors_in(believed):
            length = t.element_size()
            for n in t.shape:
                length *= self._number(n) or 0
            most = max(most, length)
        return most

    def _stand_in(self, believed: Any) -> Any:
        if isinstance(believed, list | tuple):
            return [self._stand_in(b) for b in believed]
        if not isinstance(believed, torch.Tensor):
            known = believed is None or isinstance(believed, int | float)
            return believed if known else _MISSING
        try:
            size = [self._number(n) for n in believed.shape]
            if self._bytes(believed) > _MOST_BYTES:
                return torch.zeros((), dtype=believed.dtype, device=believed.device).expand(size)
            stride = [self._number(n) for n in believed.stride()]
            length = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
            return torch.zeros(length, dtype=believed.dtype, device=believed.device).as_strided(size, stride)
        except Exception:  # noqa: BLE001  # sizes that depend on data, devices that are not there: none to be had
            return _MISSING


_STAGE = Stage.POST_GRAD_PASSES


def _storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {storage_key(t) for t in tensors if t.layout is torch.strided and has_storage(t)}
