"""A reproducer of a finding in Triton compiles to Triton."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchsan
from tests.planted.faults import planted
from tests.repro.commands import command, verified
from torchsan.recording import Reader
from torchsan.repro.exhibits import read_exhibit

pytest.importorskip("triton")
from tests import triton_on_cpu
from tests.planted.triton_faults import FAULTS


def _recorded(name: str, folder: Path) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    torch._dynamo.reset()
    check = "memory" if fault.kind == "out-of-bounds-write" else "values"
    with triton_on_cpu.enabled(), torchsan.session(check=check, out=folder), planted(fault):
        fault.program()


def test_a_finding_keeps_the_backend(tmp_path: Path) -> None:
    _recorded("another_function", tmp_path / "run")
    reader = Reader(tmp_path / "run")
    (finding,) = reader.findings()
    assert read_exhibit(reader, finding).config["cpu_backend"] == "triton"


def test_a_finding_in_a_template_keeps_what_has_templates_generated(tmp_path: Path) -> None:
    _recorded("an_epilogue_turned", tmp_path / "run")
    reader = Reader(tmp_path / "run")
    settings = read_exhibit(reader, reader.findings()[0]).config
    assert settings["max_autotune_gemm"] is True
    assert settings["max_autotune_gemm_backends"] == "TRITON,ATEN"


@pytest.mark.parametrize("name", [pytest.param("another_function", marks=pytest.mark.slow), "a_mask_too_wide"])
def test_its_reproducer_is_verified(name: str, tmp_path: Path) -> None:
    _recorded(name, tmp_path / "run")
    words = ("repro", "run", "--out", "out", "--load", "tests.repro.planting_triton")
    text = verified(command(tmp_path, *words, fault=name), tmp_path / "out")
    assert "torch._inductor.config.cpu_backend = 'triton'" in text
