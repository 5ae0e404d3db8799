from __future__ import annotations

import importlib

import pytest

from tests.cli.conftest import Run
from torchsan.cli import doctor


def test_a_machine_that_has_everything_is_well(cli: Run) -> None:
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert "compiles and links OpenMP" in done.stdout
    assert "MISSING" not in done.stdout


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_it_says_what_to_install(
    compiler: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", compiler)
    examined = doctor._compiler()
    assert examined.needed
    assert examined.remedy is not None
    assert "install" in examined.remedy


def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/dev/null/cache")
    assert doctor._cache().needed


@pytest.mark.parametrize(
    ("version", "found", "remedy"),
    [
        ("3.7.1", "3.7.1: no GPU, so kernels run by its interpreter only", None),
        ("4.0.0", "4.0.0: no GPU", "tested with Triton 3.7"),
        (None, "not installed", "pip install 'torchsan[triton]'"),
    ],
)
def test_what_of_triton_is_here(
    version: str | None, found: str, remedy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if version else None)
    monkeypatch.setattr(doctor, "installed_version", lambda name: version)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.xpu.is_available", lambda: False)
    examined = doctor._triton()
    assert examined.found.startswith(found)
    assert (remedy or "") in (examined.remedy or "")
    assert (examined.remedy is None, examined.needed) == (remedy is None, False)


def test_a_check_that_this_pytorch_does_not_allow_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(one.remedy is None for one in doctor._seams())
    joint_graph = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    monkeypatch.delattr(joint_graph, "replace_random_passes")
    (stages,) = [one for one in doctor._seams() if one.remedy is not None]
    assert stages.what == "stages check"
    assert "has no torch._inductor.fx_passes.joint_graph.replace_random_passes" in str(stages.remedy)
