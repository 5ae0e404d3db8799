"""Looking at a recording while another process writes it."""

from __future__ import annotations

import io
from pathlib import Path

from torchsan.cli.supervise import Progress
from torchsan.recording.log import connect


def test_it_tells_of_graphs_when_there_are_more(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = Progress(tmp_path, stream, lambda _finding: None, every=0)
    progress.show()  # There is no log yet.
    log = connect(tmp_path)
    for kind in ("graph", "skipped", "graph"):
        with log:
            log.execute("INSERT INTO events (kind, body) VALUES (?, ?)", (kind, '{"kernels": [1, 2, 3]}'))
        progress.show()
    progress.close()
    log.close()
    assert stream.getvalue().splitlines() == [
        "torchsan: graph 1, 3 kernels so far",
        "torchsan: graph 2, 6 kernels so far",
    ]
