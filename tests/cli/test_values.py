from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import Run
from torchsan.cli.main import main
from torchsan.cli.values import _file_name, _print, watched_values
from torchsan.options import Options, Watch
from torchsan.recording import Reader, Writer, finalize
from torchsan.records import Direction, GraphId, Watched
from torchsan.store import Store
from torchsan.watch.output import WatchOutput

VALUES: list[tuple[str, str, str, int | None, Any]] = [
    ("(inputs)", "before", "primals_1", None, torch.arange(3.0)),
    ("extern_kernels.mm", "before", "primals_1", 0, torch.arange(3.0)),
    ("extern_kernels.mm", "after", "buf0", 0, torch.full((2, 70), float("inf"))),
    ("cpp_fused_relu_0", "before", "s77", 1, 5),
    ("cpp_fused_relu_0", "after", "buf1", 1, torch.ones(2, dtype=torch.bfloat16)),
    ("(outputs)", "after", "output0", None, torch.tensor([0.0, 2.0]).to_sparse()),
]


@pytest.fixture
def recording(tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> str:
    watch = getattr(request, "param", Watch.SAVE)
    writer = Writer.create(tmp_path / "run", command=["x"])
    sink = WatchOutput(writer, Options(watch=watch))
    for kernel, phase, name, launch, value in VALUES if watch is not Watch.OFF else ():
        watched = Watched(
            graph=GraphId(0),
            direction=Direction.BACKWARD if kernel == "cpp_fused_relu_0" else Direction.FORWARD,
            call=0,
            launch=launch,
            kernel=kernel,
            phase=phase,
            name=name,
            node="mm" if name == "buf0" else None,
        )
        sink.value(watched, value)
    probe = Watched(
        graph=None, direction=None, call=0, launch=None, kernel="(probe)", phase="after", name="a/b\x1b[31m"
    )
    if watch is not Watch.OFF:
        sink.value(probe, torch.zeros(1))
    sink.close()
    writer.close()
    finalize(writer.path, None)
    capfd.readouterr()
    return str(writer.path)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `torchsan WORDS…` in this process: a table needs no other."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        status = main(words)
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, status, out, err)

    return run


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[1:]


def test_the_table_has_every_value_in_order(cli: Run, recording: str) -> None:
    done = cli("values", recording)
    assert done.stdout.splitlines()[0].split() == "graph call launch when kernel name node value".split()
    assert len(rows(done)) == len(VALUES) + 1
    assert "0 forward   0     #0      after   extern_kernels.mm" in done.stdout
    assert "float32[2×70] cpu  +Inf 140" in done.stdout
    assert "\x1b" not in done.stdout
    assert not any(line.endswith(" ") for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--kernels", "extern_*"], ["primals_1", "buf0"]),
        (["--kernels", "!extern_*,!(*"], ["s77", "buf1"]),
        (["--kernels", "cpp_*", "--when", "after"], ["buf1"]),
        (["--graph", "0:backward"], ["s77", "buf1"]),
        (["--graph", "0", "--when", "after"], ["buf0", "buf1", "output0"]),
        (["--name", "buf*"], ["buf0", "buf1"]),
        (["--name", "mm"], ["buf0"]),
        (["--non-finite"], ["buf0"]),
    ],
)
def test_filters(cli: Run, recording: str, flags: list[str], expected: list[str]) -> None:
    lines = rows(cli("values", *flags, recording))
    assert len(lines) == len(expected)
    assert all(name in line for name, line in zip(expected, lines, strict=True))


def test_each_saved_tensor_becomes_a_file(cli: Run, recording: str, tmp_path: Path) -> None:
    done = cli("values", "--save", "out", recording)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    files = {p.name: p for p in (tmp_path / "out").iterdir()}
    assert len(files) == 5
    assert all(name.isascii() and name.isprintable() and " " not in name for name in files)
    found = np.load(files["graph0-forward__call0__0000-extern_kernels.mm__before__primals_1.npy"])
    assert found.tolist() == [0, 1, 2]
    (half,) = [p for name, p in files.items() if name.endswith(".safetensors")]
    assert torch.equal(load_file(half)["tensor"], torch.ones(2, dtype=torch.bfloat16))
    (sparse,) = [p for name, p in files.items() if name.endswith(".pt")]
    assert torch.load(sparse).is_sparse


def test_files_of_many_times_what_is_stored_are_not_written(cli: Run, recording: str, tmp_path: Path) -> None:
    (stored,) = {w.stored for w in watched_values(Reader(recording)) if w.name == "buf0"}
    with Store(Path(recording, "tensors")) as store:
        store.put(str(stored), torch.ones(1).expand(2**34))
    done = cli("values", "--save", "out", recording)
    assert done.returncode == 2
    assert "are 64.0 GiB, many times what is stored of them; select some with --name" in done.stderr
    assert not Path("out").exists()
    assert cli("values", "--name", "buf1", "--save", "out", recording).returncode == 0


def test_a_filter_and_a_saved_file_go_together(cli: Run, recording: str, tmp_path: Path) -> None:
    assert cli("values", "--name", "buf0", "--save", "out", recording).returncode == 0
    assert len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize(
    ("recording", "flags", "message"),
    [
        (Watch.OFF, [], "record it with --watch print or --watch save [nothing-watched]"),
        (Watch.PRINT, ["--save", "out"], "record it with --watch save [tensor-not-recorded]"),
        (Watch.SAVE, ["--kernels", "nothing"], "kernels: (inputs), extern_kernels.mm, cpp_fused_relu_0"),
        (Watch.SAVE, ["--graph", "x"], "expected a number, or one with a direction"),
        (Watch.SAVE, ["--name", "s77", "--save", "out"], "[tensor-not-recorded]"),
    ],
    indirect=["recording"],
)
def test_what_cannot_be_shown_says_what_to_do(cli: Run, recording: str, flags: list[str], message: str) -> None:
    done = cli("values", *flags, recording)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_the_table_needs_no_torch(recording: str) -> None:
    code = (
        "import sys; from torchsan.cli.main import main; "
        f"assert main(['values', {recording!r}]) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_store_of_a_recording_can_be_looked_at(cli: Run, recording: str) -> None:
    done = cli("store", "ls", str(Path(recording) / "tensors"))
    assert done.returncode == 0
    assert "graph0-forward/call0/0000-extern_kernels.mm/after/buf0" in done.stdout


def test_very_many_values_are_printed_in_little_time() -> None:
    one = Watched(
        graph=GraphId(0), direction=Direction.FORWARD, call=0, launch=0, kernel="k", phase="after", name="buf0", value=1
    )
    out = io.StringIO()
    begun = time.process_time()
    _print([one] * 10_000, out)
    assert time.process_time() - begun < 3
    assert len(out.getvalue().splitlines()) == 10_001


def test_very_many_values_of_one_name_get_names_in_little_time() -> None:
    taken: dict[str, int] = {}
    begun = time.process_time()
    names = [_file_name(name, taken) for name in ["a/b", "a/B", "A__b-2", *["a/b"] * 20_000]]
    assert time.process_time() - begun < 3
    assert names[:5] == ["a__b", "a__B-2", "A__b-2-2", "a__b-3", "a__b-4"]
    assert len({name.lower() for name in names}) == len(names)
