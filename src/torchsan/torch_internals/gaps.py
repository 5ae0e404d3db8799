"""Where Dynamo did not compile the user's program, or compiled it once more, seen as it happens.

Importing it imports no torch.
"""

from __future__ import annotations

import linecache
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torchsan.records import Gap, GapKind
from torchsan.torch_internals.patches import Patches

log = logging.getLogger(__name__)


@contextmanager
def observe_gaps(seen: Callable[[Gap], None], failed: Callable[[Exception], None]) -> Iterator[None]:
    """Call `seen` with each graph break, recompile and fallback to eager while the context lasts."""

    functions: _Functions = {}

    def tell(make: Callable[[], Iterator[Gap]]) -> None:
        try:
            for gap in make():
                seen(gap)
        except Exception as e:  # the user's compile must not fail because of torchsan
            log.debug("could not look at a graph break", exc_info=True)
            failed(e)

    def broken(original: Callable[..., Any], reason: Any) -> Any:
        result = original(reason)
        tell(lambda: _graph_break(reason))
        return result

    def compiled(original: Any) -> Any:
        create: Callable[..., Any] = original.__func__

        def call(cls: Any, metrics: dict[str, Any]) -> Any:
            tell(lambda: _of_compile(metrics, functions))
            return create(cls, metrics)

        return classmethod(call)

    patches = Patches(failed)
    try:
        patches.wrap("torch._dynamo.output_graph", "GraphCompileReason.__post_init__", broken)
        patches.replace("torch._dynamo.utils", "CompilationMetrics.create", compiled)
        yield
    finally:
        patches.restore()


def _graph_break(reason: Any) -> Iterator[Gap]:
    if not reason.graph_break:
        return
    frame = reason.user_stack[-1] if reason.user_stack else None
    file, line = (frame.filename, frame.lineno or 0) if frame else ("", 0)
    yield Gap(
        kind=GapKind.GRAPH_BREAK,
        reason=_plain(reason.reason),
        function=frame.name if frame else "",
        file=file,
        line=line,
        code=linecache.getline(file, line).strip(),
    )


_Functions = dict[str, dict[str, Any]]
"""Where a function stands, by the number that Dynamo gave it."""


def _of_compile(metrics: Mapping[str, Any], functions: _Functions) -> Iterator[Gap]:
    """What Dynamo noted of one compile of a function."""
    number = str(metrics.get("compile_id")).split("/", maxsplit=1)[0]
    if metrics.get("co_name"):
        file, line = metrics["co_filename"], metrics["co_firstlineno"]
        code = linecache.getline(file, line).strip()
        functions[number] = {"function": metrics["co_name"], "file": file, "line": line, "code": code}
    where = functions.get(number)  # What gives up before it begins, at the limit of recompiles, names no function.
    if where is None or metrics.get("is_forward") is False:
        return
    if metrics.get("fail_type"):
        yield Gap(kind=GapKind.EAGER, reason=_plain(metrics.get("fail_reason") or metrics["fail_type"]), **where)
    elif metrics.get("recompile_reason"):
        yield Gap(kind=GapKind.RECOMPILE, reason=_plain(metrics["recompile_reason"]), **where)


def _plain(reason: str) -> str:
    """The reason in one line: without the number of a compile, and without advice and links."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    explained = next((line for line in lines if line.startswith("Explanation: ")), None)
    text = lines[0] if lines else ""
    if explained is not None:
        text = f"{text}: {explained.removeprefix('Explanation: ')}"
    return re.sub(r"^\d+/\d+: |\s+# .*$", "", text)[:300]
