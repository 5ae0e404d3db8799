"""Which launch of a compiled program a finding is about."""

from __future__ import annotations

from collections import defaultdict

from torchsan.records import Finding, GraphRecord, KernelRecord

_SAME_NAME = 100
"""Launches of one kernel that are looked through for the nodes of a finding; programs have a few."""


class Launches:
    """The launches of a graph, to be found by what findings say of them. A recording may have very many of both."""

    def __init__(self, graph: GraphRecord) -> None:
        self._numbers = {k.nth for k in graph.kernels}
        self._named: dict[str, list[KernelRecord]] = defaultdict(list)
        self._writers: dict[tuple[str, str], int] = {}
        for kernel in graph.kernels:
            self._named[kernel.name].append(kernel)
            for name in kernel.writes:
                self._writers.setdefault((kernel.name, name), kernel.nth)

    def blamed(self, finding: Finding) -> int | None:
        """Which launch a finding is about: as it says, or else by kernel and buffer, or kernel and nodes."""
        said = finding.evidence.get("launch")
        if type(said) is int and said in self._numbers:
            return said
        writer = self._writers.get((finding.kernel or "", finding.buffer or ""))
        if writer is not None:
            return writer
        same = self._named.get(finding.kernel or "", [])[:_SAME_NAME]
        by_nodes = (k for k in same if finding.nodes and set(finding.nodes) <= set(k.nodes))
        found = next(by_nodes, same[0] if same else None)
        return found.nth if found is not None else None
