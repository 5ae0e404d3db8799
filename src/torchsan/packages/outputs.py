"""What a package returned, judged by the exported program's own graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchsan.checks.values.evidence import pattern_of
from torchsan.checks.values.replay import Arithmetic, replay
from torchsan.checks.values.settle import settle
from torchsan.instruments.provenance import operator_name, source_lines
from torchsan.packages.inputs import constants_of
from torchsan.recording import Writer
from torchsan.records import Check, Finding, Kind, Severity, Stage
from torchsan.tensors.judge import Outcome, agrees
from torchsan.torch_internals.symbols import bind_symbols, symbol_value

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["Outputs"]

log = logging.getLogger(__name__)


class Outputs:
    """Judges the outputs of one call."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[Any], writer: Writer) -> None:
        self._writer = writer
        self._graph = program.graph
        self._specs = program.graph_signature.output_specs
        placeholders = [n for n in self._graph.nodes if n.op == "placeholder"]
        values = list(_placeholder_values(program, inputs))
        self._known = dict(zip(placeholders, values, strict=True))
        self._symbols = bind_symbols(self._graph, values)

    def check(self, actual: Sequence[Any], *, blamed: bool) -> None:
        """Record a finding for each output that is not what it should be; a note if its kernel is known already."""
        results = next(n for n in self._graph.nodes if n.op == "output").args[0]
        nodes = [n for n, spec in zip(results, self._specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if len(nodes) != len(actual):
            self._writer.skipped("the outputs", f"the package returns {len(actual)} values, the program {len(nodes)}")
            return
        for i, (node, value) in enumerate(zip(nodes, actual, strict=True)):
            if isinstance(node, torch.fx.Node) and isinstance(value, torch.Tensor):
                self._output(i, node, value, blamed)

    def _output(self, i: int, node: torch.fx.Node, actual: torch.Tensor, blamed: bool) -> None:
        def run(arithmetic: Arithmetic, *, seed: int = 0) -> torch.Tensor:
            found = replay(
                [node],
                self._known,
                arithmetic,
                attributes=_no_attribute,
                symbol=lambda s: symbol_value(s, self._symbols),
                seed=seed,
            )
            return torch.as_tensor(found[node])

        try:
            eager = run(Arithmetic.EAGER)
            if eager.shape != actual.shape or eager.dtype != actual.dtype:
                message = f"output {i} is {_kind(actual)} in the package and {_kind(eager)} in eager"
                self._report(node, Kind.METADATA_MISMATCH, message, {}, blamed)
            elif not agrees(actual, eager):
                judgement = settle(run, actual, eager)
                if judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE) and judgement.bad is not None:
                    at = tuple(judgement.bad.nonzero()[0].tolist())
                    count, total = int(judgement.bad.sum()), actual.numel()
                    evidence = {
                        "elements": total,
                        "bad": count,
                        "pattern": pattern_of(judgement.bad),
                        "first_bad": list(at),
                        "compiled": actual[at].item(),
                        "eager": eager[at].item(),
                    }
                    evidence["text"] = [f"at {list(at)}: package {evidence['compiled']}, eager {evidence['eager']}"]
                    message = f"output {i} of the package has wrong values in {count} of {total} elements"
                    self._report(node, Kind.WRONG_VALUES, message, evidence, blamed)
        except Exception as e:  # an operator that cannot run here ends the check of this output, no more
            log.debug("cannot judge output %s", i, exc_info=True)
            self._writer.skipped(f"output {i}", f"cannot be computed again: {type(e).__name__}: {e!s:.200}")

    def _report(self, node: torch.fx.Node, kind: Kind, message: str, evidence: dict[str, Any], blamed: bool) -> None:
        name = operator_name(node)
        self._writer.finding(
            Finding(
                kind=kind,
                # What follows from a kernel that was named is no error of its own.
                severity=Severity.NOTE if blamed else Severity.ERROR,
                check=Check.VALUES,
                stage=Stage.KERNEL,
                nodes=(node.name,),
                ops=(name,) if name else (),
                source=source_lines([node]),
                message=message,
                evidence=evidence,
            )
        )


def _placeholder_values(program: ExportedProgram, inputs: Sequence[Any]) -> Iterator[Any]:
    """What each placeholder of the exported graph stands for."""
    given = iter(inputs)
    named = constants_of(program)
    for spec in program.graph_signature.input_specs:
        yield next(given) if spec.kind.name == "USER_INPUT" else named.get(str(spec.target))


def _no_attribute(name: str) -> Any:
    raise RuntimeError(f"the exported graph has a constant of its own, {name}")


def _kind(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
