"""What a compiled program shows to whoever wants to look: the protocol between `watch` and the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchsan.options import NEVER
from torchsan.records import GraphRecord, GraphRef
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.wrapper import Alias, Allocate, Free, Launch, Program, Return

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.torch_internals.caches import CachedCode

Values = Mapping[str, Any]
"""The variables of the generated program by name: tensors, and now and then a number or a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """One compiled graph: what Inductor was given, what it generated, and how the two belong together."""

    record: GraphRecord
    model: Program
    graphs: Mapping[str, LoweredGraph]
    """The FX graph behind each function of the program."""
    computes: Mapping[int, tuple[Buffer, ...]]
    """The buffers that each launch computes, by the launch's number."""
    constants: Mapping[str, Any] = field(repr=False)
    """The generated module's namespace, which holds the graph's constants."""
    results: int | None = None
    """How many of the returned values the user gets; the rest are saved for backward. None if that is not known."""
    called: Mapping[str, str] = field(default_factory=dict)
    """What the user calls the inputs, by their names in the graph, where that is known."""

    @property
    def ref(self) -> GraphRef:
        """How findings name this graph."""
        return GraphRef(id=self.record.id, direction=self.record.direction)

    def configuration(self, launch: Launch) -> dict[str, str]:
        """As evidence: the configuration that an autotuned kernel, or any in Triton, ran with; empty for others."""
        from torchsan.torch_internals.inductor import configuration

        text = configuration(self.constants.get(launch.kernel)) if self.model.is_triton(launch) else None
        return {"configuration": text} if text is not None else {}

    def attribute(self, function: str, name: str) -> Any:
        """What a `get_attr` node in the graph of `function` refers to, as the generated program holds it."""
        import torch

        if isinstance(self.constants.get(name), torch.Tensor):
            return self.constants[name]
        value: Any = self.graphs[function].module
        for part in name.split("."):
            value = getattr(value, part)
        return value


class CallWatch:
    """Looks at one call of one compiled program, on the thread that runs it. Each method may be left as it is.

    The tensors passed in are the program's own: look, copy, never keep or change. `function` is `call` or the subgraph
    that runs.
    """

    only: frozenset[int] | None = None
    """The launches that it wants to see; None for all."""

    def enter(self, function: str, inputs: Values) -> None:
        """The function was called with these inputs."""

    def allocated(self, function: str, step: Allocate, value: Any) -> Any:
        """The function allocated `value`, not yet written. What is returned takes its place: itself, or its twin."""
        return value

    def aliased(self, function: str, step: Alias, value: Any) -> None:
        """A variable got another name; if its memory changes hands, the old name is freed next."""

    def freed(self, function: str, step: Free) -> None:
        """The variables of `step` were deleted."""

    def before(self, function: str, launch: Launch, values: Values) -> None:
        """`launch` is about to run; `values` are its operands, outputs not yet written among them."""

    def timed(self, function: str, launch: Launch, seconds: float) -> None:
        """`launch` has run, and took so long. Comes before `repeatable`."""

    def repeatable(self, function: str, launch: Launch, again: Callable[..., Any]) -> None:
        """`launch` has run; until the next statement `again` runs it once more. Comes before `after`.

        It runs on the same operands, or on those given by name, which must be laid out in the same way.
        """

    def after(self, function: str, launch: Launch, values: Values) -> None:
        """`launch` has run; `values` are its operands and results."""

    def returning(self, function: str, step: Return, values: Values) -> None:
        """The function is about to return, and these are the variables that what it returns is made of."""

    def leave(self, function: str, outputs: Any) -> None:
        """The function is about to return `outputs`."""

    def close(self, error: BaseException | None) -> None:
        """The call is over, by `error` if there is one. Always the last."""


class Observer:
    """Looks at compiled programs. One object for a whole session, used from any thread."""

    name = "observer"
    by_sizes: bool = True
    """Whether it wants to see calls of each set of sizes, and not just calls."""

    def attached(self) -> AbstractContextManager[None]:
        """What else it needs to see: entered when the session opens, left when it closes."""
        return nullcontext()

    def compiled(self, program: CompiledProgram) -> None:
        """A program was compiled."""

    def cached(self, found: CachedCode) -> None:
        """A cache gave code for a graph that was compiled anew as well; `found.watch` may be set."""

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        """The program is called for the `call`-th time, from 0, with its sizes. None lets it run at full speed."""
        return None

    def quiet(self, program: CompiledProgram, call: int) -> int:
        """For how many calls, from the `call`-th on, `watch` would surely return None: they are not shown to it."""
        return NEVER if type(self).watch is Observer.watch else 0

    def asked(self) -> None:
        """The user asks for a check of the next call of every program: each is shown as if it were the first.

        Called in a handler of a signal, too.
        """

    def called(self, program: CompiledProgram, calls: int) -> None:
        """The program was called so many times more, whoever was shown it; told now and then."""

    def replaced(self, program: CompiledProgram, calls: int) -> None:
        """So many calls ran other code in place of the program, from a compile cache; told when the session ends."""

    def close(self) -> None:
        """The session is over. Always the last."""


def not_checked(recorder: Recorder, what: str, reason: str) -> None:
    """Record that something which was asked for could not be checked: the run is incomplete, and never clean."""
    recorder.skipped(what, reason)
    recorder.event("incomplete", {"what": what, "reason": reason})
