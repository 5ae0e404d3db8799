"""Buffers that change between their last declared writer and a reader, and the launch that wrote over them."""

from __future__ import annotations

import ctypes
import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from torchsan.checks.memory.findings import CallFindings
from torchsan.checks.memory.patterns import span_bytes
from torchsan.checks.memory.plan import MemoryPlan, Name
from torchsan.checks.memory.storages import Block, Origin, StorageTable
from torchsan.records import Kind
from torchsan.torch_internals.operators import StorageRef
from torchsan.torch_internals.wrapper import Alias, Launch
from torchsan.watch.observer import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a variable held when it was last looked at. `pointer` is None where its elements do not lie together.

    `since` and `seen` count launches: when it was written, and when it last was as it should be.
    """

    digest: int
    storage: StorageRef
    pointer: int | None
    nbytes: int
    since: int
    seen: int

    def still(self) -> bool:
        """Whether the memory holds the same; only for elements that lie together in a storage that lives."""
        return self.pointer is None or self.storage.dead or _hash(self.pointer, self.nbytes) == self.digest


def read_content(tensor: torch.Tensor, storage: StorageRef, since: int, seen: int) -> Content | None:
    """Look at a tensor; None for one that is not plain memory of this machine."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    nbytes = tensor.numel() * tensor.element_size()
    together = span_bytes(tensor) == nbytes
    memory = tensor if together else tensor.contiguous()
    return Content(
        digest=_hash(memory.data_ptr(), nbytes),
        storage=storage,
        pointer=memory.data_ptr() if together else None,
        nbytes=nbytes,
        since=since,
        seen=seen,
    )


def _hash(pointer: int, nbytes: int) -> int:
    return xxhash.xxh3_64_intdigest((ctypes.c_char * nbytes).from_address(pointer))


_WATCHED_ALWAYS = 1 << 20
"""While no more bytes than this are followed, all of them are looked at after every launch."""


class Contents:
    """Follows one call. The contents of graph inputs are not followed: others may write them at any time."""

    def __init__(self, table: StorageTable, plan: MemoryPlan, findings: CallFindings) -> None:
        self._table = table
        self._plan = plan
        self._findings = findings
        self._writes: dict[Block, list[tuple[int, Launch, str]]] = defaultdict(list)
        """When each storage was written, counted in launches, by which, and under which name."""
        self._known: dict[Name, Content] = {}
        self._launches: list[Launch] = []
        self._bytes = 0

    def before(self, function: str, launch: Launch, values: Values) -> None:
        """The launch reads these: they must hold what their writers left."""
        now = len(self._launches)
        for name in launch.reads:
            content = self._known.get((function, name))
            if content is not None and content.seen < now:
                self._compare((function, name), content, values.get(name), None, launch)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        """The launch has run: what it only reads is as before, what it writes is new, nothing else changed."""
        now = len(self._launches) + 1
        self._launches.append(launch)
        written = set(launch.writes)
        declared = {a.base for a in launch.arguments if a.written and a.base is not None}
        direct = {*declared, launch.result}
        touched: set[Block] = set()
        for name in launch.writes:
            for block in self._table.find(function, name):
                self._writes[block].append((now, launch, name))
                touched.add(block)
        for name in launch.reads:
            content = self._known.get((function, name))
            # Through another name it may well be declared: `out` and `in` of a kernel can be the same memory.
            if content is not None and name not in written and touched.isdisjoint(self._table.find(function, name)):
                self._compare((function, name), content, values.get(name), launch, launch)
        for name in declared:
            self._forget_views(function, name)
        for name in launch.writes:
            key = (function, name)
            # A whole that has a value of its own is no collection of parts: a write to a part of it is not its own.
            if name not in direct and key in self._known and self._has_own_value(key):
                continue
            self._forget(key)
            if key in self._plan.hashed.get(launch.nth, ()):
                self._learn(key, values.get(name), now)
        if self._bytes <= _WATCHED_ALWAYS:
            self._look_at_all(launch, touched, now)

    def aliased(self, function: str, step: Alias, value: Any) -> None:
        """A name for the same memory holds the same."""
        key, source = (function, step.name), self._known.get((function, step.source))
        self._forget(key)
        if source is not None and isinstance(value, torch.Tensor) and value.data_ptr() == source.pointer:
            if value.numel() * value.element_size() == source.nbytes:
                self._add(key, source)
        elif step.item is not None:
            self._learn(key, value, len(self._launches))

    def freed(self, function: str, names: tuple[str, ...]) -> None:
        """The variables are gone."""
        for name in names:
            self._forget((function, name))

    def returned(self, function: str, values: Values) -> None:
        """The caller reads these."""
        now = len(self._launches)
        for name, value in values.items():
            content = self._known.get((function, name))
            if content is not None and content.seen < now:
                self._compare((function, name), content, value, None, None)

    def forget_all(self) -> None:
        """Something ran that may have written anything."""
        self._known.clear()
        self._bytes = 0

    def _learn(self, key: Name, value: Any, now: int) -> None:
        blocks = self._table.find(*key)
        if not isinstance(value, torch.Tensor) or len(blocks) != 1 or key in self._plan.unfollowed:
            return
        if blocks[0].origin is Origin.GIVEN or blocks[0] in self._table.kept_elsewhere:
            return
        content = read_content(value, blocks[0].ref, now, now)
        if content is not None:
            self._add(key, content)

    def _add(self, key: Name, content: Content) -> None:
        self._known[key] = content
        self._bytes += content.nbytes

    def _forget(self, key: Name) -> None:
        content = self._known.pop(key, None)
        if content is not None:
            self._bytes -= content.nbytes

    def _forget_views(self, function: str, name: str) -> None:
        """A write to a view is one to what it is a view of, if an operator of the program made it."""
        first = self._plan.views.get((function, name))
        if first is not None:
            for key in [k for k in self._known if k[0] == function and self._plan.views.get(k) == first]:
                self._forget(key)

    def _has_own_value(self, key: Name) -> bool:
        return any(
            name == key[1] and name not in launch.bases
            for block in self._table.find(*key)
            for _, launch, name in self._writes[block]
        )

    def _look_at_all(self, launch: Launch, touched: set[Block], now: int) -> None:
        for key, content in list(self._known.items()):
            if content.seen == now or content.pointer is None or touched & set(self._table.find(*key)):
                continue
            if content.still():
                self._known[key] = dataclasses.replace(content, seen=now)
            elif self._written_since(key, content) is None:
                self._clobbered(key, launch, None, content)

    def _compare(self, key: Name, content: Content, value: Any, during: Launch | None, reader: Launch | None) -> None:
        """Report if a variable no longer holds what it did. `during` is the launch in which it changed, if known."""
        if not isinstance(value, torch.Tensor):
            return
        now = read_content(value, content.storage, content.since, len(self._launches))
        if now is None or now.digest == content.digest:
            if now is not None:
                self._known[key] = now
            return
        self._clobbered(key, during or self._culprit(key, content), reader, content)

    def _culprit(self, key: Name, content: Content) -> Launch | None:
        """The launch that wrote the same memory under another name since, or the only one that ran since."""
        since = self._launches[content.seen :]
        return self._written_since(key, content) or (since[0] if len(since) == 1 else None)

    def _written_since(self, key: Name, content: Content) -> Launch | None:
        """The launch that wrote the same memory under another name."""
        for block in self._table.find(*key):
            for when, launch, name in reversed(self._writes[block]):
                if when > content.since and name != key[1]:
                    return launch
        return None

    def _clobbered(self, key: Name, culprit: Launch | None, reader: Launch | None, content: Content) -> None:
        self._forget(key)
        name = key[1]
        candidates = [launch.kernel for launch in self._launches[content.seen :]]
        who = culprit.kernel if culprit is not None else f"one of {len(candidates)} launches"
        how = f" before {reader.kernel} reads it" if reader is not None else ", while it is still needed"
        if reader is not None and reader is culprit:
            how = ", which it only reads"
        writer = self._launches[content.since - 1].kernel if content.since else None
        self._findings.report(
            Kind.CLOBBERED_BUFFER,
            f"{who} writes over {name}{how}",
            buffer=name,
            launch=culprit,
            evidence={
                "bytes": content.nbytes,
                "written by": writer,
                "written over by": culprit.kernel if culprit is not None else candidates,
                "read by": reader.kernel if reader is not None else "the caller",
            },
        )
