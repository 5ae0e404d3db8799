"""The recordings of several ranks as one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import graph
from torchsan.recording import Program, Writer, finalize
from torchsan.report.ranks import open_ranks
from torchsan.report.verdict import Status


@pytest.mark.parametrize("rank", [3, 10**9 - 1])
def test_ranks_without_a_recording_are_named_and_the_rest_counted(tmp_path: Path, rank: int) -> None:
    folder = tmp_path / f"rank-{rank}"
    writer = Writer.create(folder, command=["train.py"])
    writer.graph(graph())
    writer.event("rank", {"rank": {"rank": rank, "world": rank + 1, "restart": 0}})
    writer.close()
    finalize(folder, Program(exit=0))
    outcome = open_ranks(tmp_path).verdict
    assert (outcome.status, outcome.exit) == (Status.INCOMPLETE, 4)
    if rank == 3:
        assert outcome.reasons == tuple(f"rank {n} left no recording" for n in range(3))
    else:
        assert outcome.reasons[63:] == ("rank 63 left no recording", f"{rank - 64} more ranks left no recording")
