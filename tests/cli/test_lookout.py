"""Looking at a recording while another process writes it."""

from __future__ import annotations

import io
from pathlib import Path

from torchsan.cli.lookout import Lookout
from torchsan.recording.log import connect


def test_it_acts_on_the_first_error_once_and_tells_of_graphs(tmp_path: Path) -> None:
    acts: list[int] = []
    stream = io.StringIO()
    lookout = Lookout(tmp_path, stream=stream, on_error=lambda: acts.append(1))
    lookout.look()  # There is no log yet.
    log = connect(tmp_path)

    def write(kind: str, body: str) -> None:
        with log:
            log.execute("INSERT INTO events (kind, body) VALUES (?, ?)", (kind, body))
        lookout.look()

    write("skipped", '{"severity": "error"}')
    write("graph", '{"kernels": [1, 2, 3]}')
    write("finding", '{"severity": "warning"}')
    assert acts == []
    for _ in range(2):
        write("finding", '{"severity": "error"}')
    lookout.close()
    log.close()
    assert acts == [1]
    assert stream.getvalue() == "torchsan: graph 1, 3 kernels so far\n"
