"""The finding that a cache holds other code than a fresh compile gives: which artifact, its age, how to clear it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchsan.checks.stages.findings import Difference, difference_finding
from torchsan.graphs.nodes import operator_name, source_lines
from torchsan.records import Check, Finding, Kind, Severity, Stage
from torchsan.torch_internals.caches import CachedCode, environment, running, vector_widths

_DIFF_LINES = 60


def stale(found: CachedCode, differences: Sequence[Difference], *, fresh_is_wrong: bool = False) -> Finding:
    """An error if the cached code gives wrong results, a note if it is only other code.

    `fresh_is_wrong`: it is the fresh code that gives wrong results, which the values check tells of.
    """
    nodes = [n for n in found.graph.graph.nodes if n.op.startswith("call_")]
    fields: dict[str, Any] = {
        "stage": Stage.CACHE,
        "nodes": tuple(n.name for n in nodes)[:50],
        "ops": tuple(dict.fromkeys(op for n in nodes if (op := operator_name(n)) is not None)),
        "source": source_lines(nodes),
    }
    artifact, age = _artifact(found.folder)
    evidence = {
        "cache": found.cache,
        "key": found.key,
        "artifact": artifact,
        "age": age,
        "direction": str(found.direction),
        "environment": environment(),
        "diff": _diff(found),
        "differs": _what_differs(found),
        "clear": f"rm -r {_root(found.folder)}, or TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 for one run",
    }
    evidence["text"] = [
        *(["the cached code and the fresh code:", *str(evidence["diff"]).splitlines()] if evidence["diff"] else []),
        f"what may be the reason: {', '.join(evidence['differs'])}",
        f"the entry: {artifact}",
        f"to clear it: {evidence['clear']}",
    ]
    where = f"the {found.cache} ({found.key[:12]}…, {age})"
    if not differences:
        results = "its results are the same"
        if fresh_is_wrong:
            results = "the program runs it, and it is right: what is wrong in this report is the fresh code"
        message = f"{where} holds other code than a fresh compile gives; {results}"
        return Finding(
            kind=Kind.STALE_CACHE,
            severity=Severity.NOTE,
            check=Check.CACHE,
            message=message,
            evidence=evidence,
            **fields,
        )
    what = f"{where} holds code that computes something else than a fresh compile"
    made = difference_finding(what, differences, severity=Severity.ERROR, **fields)
    text = [*made.evidence["text"], *evidence["text"]]
    return replace(made, kind=Kind.STALE_CACHE, check=Check.CACHE, evidence=made.evidence | evidence | {"text": text})


def _root(folder: Path) -> Path:
    """The folder of all caches: the graphs of one key may lie in several."""
    return next((p.parent for p in folder.parents if p.name in ("fxgraph", "aotautograd")), folder)


def _what_differs(found: CachedCode) -> list[str]:
    """What in the environment was another when the code was generated, as far as the code itself tells."""
    widths = [[f"{n} × {dtype}" for dtype, n in vector_widths(code).items()] for code in (found.code, found.fresh_code)]
    if widths[0] == widths[1]:
        return ["the compiler: its sources, a pass, or a setting that is not in the key; or the sizes it compiled for"]
    then, now = (", ".join(w) or "none" for w in widths)
    return [f"instruction set: vectors of {then} then, {now} now (see ATEN_CPU_CAPABILITY and the processor)"]


def _artifact(folder: Path) -> tuple[str, str]:
    """The newest file of an artifact, and its age in words."""
    try:
        newest = max((f for f in folder.iterdir() if f.is_file()), key=lambda f: f.stat().st_mtime)
        seconds = max(0.0, time.time() - newest.stat().st_mtime)
    except (OSError, ValueError):
        return str(folder), "of unknown age"
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            n = int(seconds // size)
            return str(newest), f"{n} {unit}{'s' if n > 1 else ''} old"
    return str(newest), f"{seconds:.0f} seconds old"


def _diff(found: CachedCode) -> str:
    lines = difflib.unified_diff(running(found.code), running(found.fresh_code), "cached", "fresh", n=1, lineterm="")
    changed = [line for line in lines if not line.startswith("@@")]
    more = len(changed) - _DIFF_LINES
    return "\n".join([*changed[:_DIFF_LINES], *([f"… {more} more lines"] if more > 0 else [])])
