"""torchsan in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.errors import UsageError
from torchsan.notebook import parse_line
from torchsan.recording import Recorder
from torchsan.session import Session
from torchsan.session import session as make_session

CELLS = [
    "import torch, torchsan\n%load_ext torchsan",
    "%%torchsan --check values\ny = torch.compile(lambda x: x.sin() + 1)(torch.ones(8))",
    "_, y.shape",
    "%%torchsan\nx = 1\nraise ValueError('mine')",
    "torchsan.session(check='memory')",
]


def test_options_stand_beside_the_magic() -> None:
    assert parse_line("--check values,memory --calls 3 --no-guards") == {
        "check": "values,memory",
        "calls": "3",
        "no_guards": True,
    }
    assert parse_line("") == {}
    with pytest.raises(UsageError, match="unrecognized arguments: --json"):
        parse_line("--json x")


def test_a_session_and_its_findings_show_themselves_and_nothing_in_them_is_markup() -> None:
    recorder = Recorder()
    run = Session(make_session(check="memory").options, recorder=recorder)
    assert "nothing yet" in repr(run)
    run._recorder = recorder
    recorder.graph(graph())
    recorder.skipped("buf1", "too <large>")
    (found,) = [recorder.finding(finding(message="is <script>alert(1)</script> wrong"))]
    shown = run._repr_html_()
    assert found._repr_html_() in shown
    assert "F1: error: wrong-values" in shown
    assert "model.py:12  x = self.act(x)" in shown
    assert "too &lt;large&gt;" in shown
    assert "<script" not in shown
    follows = finding(id="F2", evidence={"follows": "F1"})
    assert "F2 follows from F1: error: wrong-values" in follows._repr_html_()
    assert "1 error; 2 kernels in 1 graph, 0 of 2 buffers checked" in repr(run)


@pytest.mark.slow
def test_a_notebook_runs_with_the_magic(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=240, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [[output["data"] for output in cell["outputs"] if "data" in output] for cell in notebook["cells"]]
    raised = [[output["ename"] for output in cell["outputs"] if "ename" in output] for cell in notebook["cells"]]
    assert raised == [[], [], [], ["ValueError"], []]
    assert "no findings; " in shown[1][0]["text/html"]
    assert "1 of 1 buffer checked" in shown[1][0]["text/html"]
    assert "torch.Size([8])" in shown[2][0]["text/plain"]
    assert "nothing yet" in shown[3][0]["text/html"]
    assert "nothing yet" in shown[4][0]["text/html"]
