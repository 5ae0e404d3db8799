"""The evidence of a finding as pictures: only what is well formed becomes one, the rest is shown as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchsan.report.html.sources import Cutter, cut, number

_CELLS = 5000
_ROWS = 64
_DIFF_LINES = 400

Picture = dict[str, Any]


def evidence_model(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return `text` (lines to read), `pictures`, and `rest` (everything else, by name)."""
    pictures = [p for p in (_map(evidence), _errors(evidence), _samples(evidence), _bounds(evidence)) if p]
    pictures += [p for p in (_diff(evidence), _chain(evidence), _table(evidence)) if p]
    text = evidence.get("text")
    text = _without_diff(text, evidence.get("diff")) if isinstance(text, list) and _diff(evidence) else text
    shown = {"picture", "text", "launch", "follows", *(key for p in pictures for key in p.pop("keys"))}
    return {
        "text": [cut(str(line)) for line in text[:40]] if isinstance(text, list) else [],
        "pictures": pictures,
        "rest": Cutter()({k: v for k, v in evidence.items() if k not in shown}),
    }


def _without_diff(text: list[Any], diff: Any) -> list[Any]:
    """The lines to read without the diff that they end with, and its heading: it is one of the pictures."""
    lines = str(diff).splitlines()
    return text[: -len(lines) - 1] if text[-len(lines) :] == lines else text


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _drawn(evidence: Mapping[str, Any], name: str) -> Any:
    picture = evidence.get("picture")
    return picture.get(name) if isinstance(picture, dict) else None


def _map(evidence: Mapping[str, Any]) -> Picture | None:
    """Where the bad elements lie."""
    found = _drawn(evidence, "map")
    if not isinstance(found, dict) or not all(_natural(found.get(k)) for k in ("rows", "columns", "down", "across")):
        return None
    cells = found.get("cells")
    if not isinstance(cells, list) or len(cells) != found["down"] * found["across"] or len(cells) > _CELLS:
        return None
    if not cells or not all(_natural(c) for c in cells):
        return None
    place = {k: found[k] for k in ("rows", "columns", "down", "across", "cells")}
    shape = evidence.get("shape")
    sizes = [n for n in shape if _natural(n)][:16] if isinstance(shape, list) else []
    about = {k: evidence.get(k) for k in ("bad", "elements", "pattern")}
    return {"picture": "map", "keys": ["shape", *about], "shape": sizes, **place, **Cutter()(about)}


def _errors(evidence: Mapping[str, Any]) -> Picture | None:
    """How many elements are how many times as far off as rounding allows."""
    found = _drawn(evidence, "errors")
    if not isinstance(found, dict):
        return None
    decades, counts = found.get("decades"), found.get("counts")
    if not isinstance(decades, list) or not isinstance(counts, list) or len(counts) != len(decades) + 1:
        return None
    if len(counts) > _ROWS or not all(_natural(n) for n in counts) or not all(type(d) is int for d in decades):
        return None
    same = found.get("same")
    return {
        "picture": "errors",
        "keys": [],
        "decades": decades,
        "counts": counts,
        "same": same if _natural(same) else 0,
    }


_COLUMNS = ("compiled", "eager", "float64", "allowed")


def _samples(evidence: Mapping[str, Any]) -> Picture | None:
    """Some elements, side by side; of recordings without a picture, the first bad one."""
    found = _drawn(evidence, "samples")
    if not isinstance(found, list):
        found = [{"at": evidence.get("first_bad"), **{k: evidence.get(k) for k in _COLUMNS}}]
    names = {"compiled": "compiled", "eager": "eager"}
    if "second" in evidence and "first" in evidence:  # Nondeterministic: the same launch twice.
        names = {"compiled": "first launch", "eager": "second launch"}
    rows = [
        [_index(row.get("at")), *(number(row.get(k)) for k in _COLUMNS)]
        for row in found[:_ROWS]
        if isinstance(row, dict) and row.get("compiled") is not None
    ]
    keys = ["first_bad", *_COLUMNS]
    bad = evidence.get("bad")
    of = {"names": list(names.values()), "bad": bad if _natural(bad) else len(rows)}
    return {"picture": "samples", "keys": keys, "rows": rows, **of} if rows else None


def _index(value: Any) -> str:
    return ", ".join(str(n) for n in value[:16]) if isinstance(value, list) else ""


def _bounds(evidence: Mapping[str, Any]) -> Picture | None:
    """What a kernel wrote before and after a buffer."""
    before, after = (evidence.get(f"elements {side}", 0) for side in ("before the start", "after the end"))
    elements = evidence.get("elements")
    if not all(_natural(n) for n in (before, after, elements)) or not (before or after):
        return None
    keys = ["elements", "elements before the start", "elements after the end"]
    return {"picture": "bounds", "keys": keys, "before": before, "after": after, "elements": elements}


def _diff(evidence: Mapping[str, Any]) -> Picture | None:
    """What a pass did to the graph."""
    text = evidence.get("diff")
    if not isinstance(text, str) or not text:
        return None
    lines = cut(text, 200_000).splitlines()
    more = [f"… {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else []
    return {"picture": "diff", "keys": ["diff"], "lines": [cut(line, 500) for line in lines[:_DIFF_LINES]] + more}


def _chain(evidence: Mapping[str, Any]) -> Picture | None:
    """Who holds what leaks."""
    holders = evidence.get("held by")
    if not isinstance(holders, list) or not holders or not all(isinstance(h, str) for h in holders):
        return None
    return {"picture": "chain", "keys": ["held by"], "holders": [cut(h, 500) for h in holders[:_ROWS]]}


def _table(evidence: Mapping[str, Any]) -> Picture | None:
    """What an operator's metadata is said to be, and what it is."""
    rows = list(_differences(evidence.get("differences")))
    return {"picture": "table", "keys": ["differences"], "rows": rows} if rows else None


def _differences(found: Any) -> Iterator[list[str]]:
    for row in found[:_ROWS] if isinstance(found, list) else ():
        if isinstance(row, dict):
            yield [cut(str(row.get(k, "")), 300) for k in ("what", "field", "real", "believed", "against")]
