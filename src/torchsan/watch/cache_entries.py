"""What a compile cache has for a graph, as a text of the recording."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from torchsan.records import ArtifactKind, ArtifactRecord

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.records import GraphRef

log = logging.getLogger(__name__)

_LARGEST = 64 * 2**20
"""Bytes of an entry that is read for its digest."""


def keep_cache_entry(
    recorder: Recorder,
    graph: GraphRef | None,
    *,
    cache: str,
    key: str,
    folder: Path,
    read: bool = False,
    code: str = "",
) -> None:
    """Record the entry of a cache for this graph: `read` by this compile, or written by it. Raise nothing.

    `code` is the generated code that is in it, if that is other code than a fresh compile gives.
    """
    if graph is None or not recorder.keeps_artifacts:
        return
    try:
        how = "read by this compile" if read else "written by this compile"
        facts = {"cache": cache, "key": key, "how": how, **_file(folder)}
        if read:
            facts["code"] = "other code than a fresh compile gives" if code else "that of a fresh compile"
        text = "\n".join([*(f"# {name}: {value}" for name, value in facts.items()), "", code]).rstrip() + "\n"
        name = recorder.artifact(f"graph{graph.id}-{graph.direction}.cache.py", text)
        record = ArtifactRecord(
            kind=ArtifactKind.CACHE_ENTRY, name=name, graph=graph.id, direction=graph.direction, facts=facts
        )
        recorder.event("artifact", {"artifact": record})
    except Exception:  # what is only shown must not end the user's compile
        log.debug("the entry of a cache was not kept", exc_info=True)


def _file(folder: Path) -> dict[str, str]:
    """The newest file of an entry, which is read and never unpickled; nothing if there is none."""
    files = [f for f in folder.iterdir() if f.is_file()] if folder.is_dir() else []
    if not files:
        return {}
    newest = max(files, key=lambda f: f.stat().st_mtime)
    size = newest.stat().st_size
    digest = {"entry sha256": hashlib.sha256(newest.read_bytes()).hexdigest()} if size <= _LARGEST else {}
    return {"entry": str(newest), "entry bytes": str(size), **digest}
