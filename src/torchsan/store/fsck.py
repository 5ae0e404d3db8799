"""Checks every record and every byte of a store. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.errors import StoreError
from torchsan.store.backend import Backend, Progress, blob_key, log_key, pack_key
from torchsan.store.index import Index
from torchsan.store.metadata import BlobRef, from_json
from torchsan.store.reading import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is damaged: a file of the store or the name of a tensor, and what is wrong with it."""

    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """What `fsck` found; truthy when nothing is damaged. `notes` are leftovers, which `gc` removes."""

    tensors: int
    blobs: int
    nbytes: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


def check(backend: Backend, index: Index, progress: Progress | None) -> FsckReport:
    """Check the store behind `index`, which must be fresh."""
    problems = [
        Problem(where=log_key(segment), what=f"{count} damaged record{'s' if count > 1 else ''}")
        for segment, count in index.damaged.items()
    ]
    used: dict[BlobRef, str] = {}
    names = sorted(index.names())
    for name in names:
        known = index.find(name)
        assert known is not None, "names lists what find finds"
        try:
            record = from_json(name, known.tensor)
        except StoreError as e:
            problems.append(Problem(where=name, what=str(e)))
            continue
        for blob in record.blobs:
            used.setdefault(blob, name)
    distinct = {blob.digest: blob.nbytes for blob in used}
    total, done = sum(blob.nbytes for blob in used), 0
    reader = Reader(backend, index.packed)
    for blob, name in used.items():
        try:
            reader.verify(name, blob)
        except StoreError as e:
            problems.append(Problem(where=name, what=str(e)))
        done += blob.nbytes
        if progress is not None:
            progress(done, total)
    return FsckReport(
        tensors=len(names),
        blobs=len(distinct),
        nbytes=sum(distinct.values()),
        problems=tuple(problems),
        notes=tuple(_leftovers(backend, index, used)),
    )


def _leftovers(backend: Backend, index: Index, used: dict[BlobRef, str]) -> list[str]:
    notes = [f"{log_key(segment)} ends inside a record: a put that did not finish" for segment in index.unfinished]
    wanted = {blob.digest for blob in used}
    unused = [(digest, size) for digest, size in backend.blobs() if digest not in wanted]
    if unused:
        size = sum(size for _, size in unused)
        notes.append(f"{len(unused)} blobs that no name refers to ({size} bytes), such as {blob_key(unused[0][0])}")
    packs = {blob.pack for blob in used}
    idle = [segment for segment in index.segments if segment not in packs and backend.size(pack_key(segment))]
    if idle:
        notes.append(f"{len(idle)} packs that no name refers to")
    temporary = [*backend.list("tmp"), *(name for name in backend.list("") if name.endswith(".tmp"))]
    notes += [
        f"{len(files)} files {what}"
        for files, what in (
            (temporary, "of puts that did not finish"),
            (backend.list("aside"), "of a collection that did not finish"),
            (backend.list("damaged"), "that were damaged and are kept in damaged/"),
        )
        if files
    ]
    return notes
