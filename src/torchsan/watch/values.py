"""`--watch`: names, prints or saves what every kernel reads (before it runs) and writes (after). It changes nothing."""

from __future__ import annotations

import ast
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.options import Options, Watch, When
from torchsan.recording import Writer
from torchsan.records import Watched
from torchsan.torch_internals.patches import Patches
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer, Values, not_checked
from torchsan.watch.output import WatchOutput, Widths
from torchsan.watch.provenance import settled_nodes

if TYPE_CHECKING:
    import torch

INPUTS, OUTPUTS, PROBE = "(inputs)", "(outputs)", "(probe)"
"""What stands for a kernel's name where no kernel is launched."""


class Watcher(Observer):
    """Watches every call of every compiled program, and every value that passes `torchsan.probe`."""

    name = "watch"

    def __init__(self, writer: Writer, options: Options) -> None:
        self._writer = writer
        self._calls: Counter[tuple[int, str]] = Counter()
        self._passed: Counter[str] = Counter()
        self._plans: dict[int, _Plan] = {}
        self._lock = threading.Lock()
        self.selects = options.selects
        self.names_only = options.watch is Watch.NAMES
        self.before = options.when is not When.AFTER
        # A name is one line a launch: before it, unless asked for after it, so that the last one names a crash.
        self.after = options.when is When.AFTER or (options.when is When.BOTH and not self.names_only)
        self.sink = WatchOutput(writer, options)

    def compiled(self, program: CompiledProgram) -> None:
        """Decide once a compile what is worth knowing at every launch."""
        self._plans[id(program)] = _plan(program, self.selects)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        """Watch this call, whichever it is: a value that is not looked at now is gone."""
        key = (program.record.id, program.record.direction)
        with self._lock:
            nth = self._calls[key]
            self._calls[key] += 1
        return _Call(self, self._plans[id(program)], nth)

    def probed(self, name: str, value: torch.Tensor) -> None:
        """A value passed `torchsan.probe`; its gradient comes as `name.grad`."""
        if not (self.selects(name) or self.selects(PROBE)):
            return
        with self._lock:
            nth = self._passed[name]
            self._passed[name] += 1
        watched = Watched(graph=None, direction=None, call=nth, launch=None, kernel=PROBE, phase="after", name=name)
        if self.names_only:
            self.sink.launch(watched)
        else:
            self.sink.value(watched, value)

    def failed(self, error: Exception) -> None:
        """What passes `torchsan.probe` cannot be seen."""
        not_checked(self._writer, "torchsan.probe", f"cannot be seen: {error}")

    def close(self) -> None:
        """Write what is still under way."""
        self.sink.close()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to show of a program. `numbers` are the arguments without a storage, as functions of the variables."""

    program: CompiledProgram
    selected: frozenset[int]
    numbers: Mapping[int, tuple[tuple[str, Callable[[Values], Any]], ...]]
    nodes: Mapping[int, Mapping[str, str]]
    widths: Widths


def _plan(program: CompiledProgram, selects: Callable[[str], bool]) -> _Plan:
    launches = [launch for launch in program.model.launches() if selects(launch.kernel)]
    nodes: dict[int, Mapping[str, str]] = {}
    for function in program.model.functions.values():
        nodes.update(settled_nodes(function, program.computes))
    names = [n for launch in launches for n in (*launch.reads, *launch.writes)]
    return _Plan(
        program=program,
        selected=frozenset(launch.nth for launch in launches),
        numbers={launch.nth: tuple(_numbers(launch, program.constants)) for launch in launches},
        nodes=nodes,
        widths=Widths(
            kernel=max((len(launch.kernel) for launch in launches), default=len(OUTPUTS)),
            name=max(map(len, names), default=10),
        ),
    )


def _numbers(launch: Launch, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Values], Any]]]:
    """The arguments of a launch that are no tensors: the name of each, and how to get its value."""
    for i, argument in enumerate(launch.arguments):
        if argument.base is None:
            name = argument.keyword or (argument.text if argument.variables else f"argument{i}")
            yield name, _evaluator(argument.text, bool(argument.variables), namespace)


def _evaluator(text: str, variable: bool, namespace: Mapping[str, Any]) -> Callable[[Values], Any]:
    if not variable:
        try:
            constant = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            constant = text
        return lambda _values: constant
    code = compile(text, "<argument>", "eval")

    def evaluate(values: Values) -> Any:
        return eval(code, dict(namespace), dict(values))  # noqa: S307  # an argument of the user's own program

    return evaluate


class _Call(CallWatch):
    def __init__(self, watcher: Watcher, plan: _Plan, call: int) -> None:
        self._watcher = watcher
        self._plan = plan
        self._ref = plan.program.ref
        self._call = call
        self._launch = -1

    def _show(self, kernel: str, phase: str, name: str, value: Any, launch: Launch | None = None) -> None:
        nodes = {} if launch is None else self._plan.nodes.get(launch.nth, {})
        watched = self._record(kernel, phase, name, launch, nodes.get(name) if phase == "after" else None)
        self._watcher.sink.value(watched, value, self._plan.widths)

    def _record(self, kernel: str, phase: str, name: str, launch: Launch | None, node: str | None = None) -> Watched:
        return Watched(
            graph=self._ref.id,
            direction=self._ref.direction,
            call=self._call,
            launch=None if launch is None else self._launch,
            site=None if launch is None else launch.nth,
            kernel=kernel,
            phase=phase,
            name=name,
            node=node,
        )

    def enter(self, function: str, inputs: Values) -> None:
        watcher = self._watcher
        if function == "call" and watcher.before and not watcher.names_only and watcher.selects(INPUTS):
            for name, value in inputs.items():
                self._show(INPUTS, "before", name, value)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        self._launch += 1
        if not self._watcher.before or launch.nth not in self._plan.selected:
            return
        if self._watcher.names_only:
            self._watcher.sink.launch(self._record(launch.kernel, "before", "", launch))
            return
        # What is not written yet is not worth a look.
        for name in launch.reads:
            for part, value in _parts(name, values[name]):
                self._show(launch.kernel, "before", part, value, launch)
        for name, evaluate in self._plan.numbers[launch.nth]:
            self._show(launch.kernel, "before", name, evaluate(values), launch)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        if not self._watcher.after or launch.nth not in self._plan.selected:
            return
        if self._watcher.names_only:
            self._watcher.sink.launch(self._record(launch.kernel, "after", "", launch))
            return
        for name in launch.writes:
            for part, value in _parts(name, values[name]):
                self._show(launch.kernel, "after", part, value, launch)

    def leave(self, function: str, outputs: Any) -> None:
        watcher = self._watcher
        if function == "call" and watcher.after and not watcher.names_only and watcher.selects(OUTPUTS):
            for i, value in enumerate(outputs):
                self._show(OUTPUTS, "after", f"output{i}", value)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value, or the parts of a result that is several."""
    if isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield f"{name}[{i}]", part
    else:
        yield name, value


@contextmanager
def passing_probe_to(watcher: Watcher) -> Iterator[None]:
    """Send what passes `torchsan.probe` to the watcher while the context lasts, if the program uses it at all."""

    def listen(module: Any) -> None:
        module._listener = watcher.probed
        patches.on_restore(lambda: setattr(module, "_listener", None))

    patches = Patches(watcher.failed)
    try:
        patches.when_imported("torchsan.ops.realize", listen)
        yield
    finally:
        patches.restore()
