from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator

import pytest
import torch  # noqa: F401  # before anything stands in the place of what it is imported with

from tests.cli.conftest import Run
from torchsan.cli import doctor
from torchsan.torch_internals.tried import Tried


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
    ("version", "problem", "found", "remedy"),
    [
        ("3.7.1", None, "3.7.1: a kernel runs; no GPU, so kernels run by its interpreter only", None),
        ("3.7.1", "exit status 1", "3.7.1: a kernel does not run: exit status 1", "reinstall triton"),
        ("3.9.0", None, "3.9.0: a kernel runs; no GPU, so kernels run by its interpreter only", None),
        ("4.0.0", None, "4.0.0: a kernel runs; no GPU", "tested with Triton 3.7 and 3.9"),
        (None, None, "not installed", "pip install 'torchsan[triton]'"),
    ],
)
def test_what_of_triton_is_here(
    version: str | None, problem: str | None, found: str, remedy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_problem", lambda command: problem)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if version else None)
    monkeypatch.setattr(doctor, "installed_version", lambda name: version)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.xpu.is_available", lambda: False)
    examined = doctor._triton()
    assert examined.found.startswith(found)
    assert (remedy or "") in (examined.remedy or "")
    assert (examined.remedy is None, examined.needed) == (remedy is None, False)


@pytest.mark.parametrize(("program", "said"), [("print(4.0)", "faster place"), ("print(400.0)", None), ("", "hangs")])
def test_a_slow_disk_is_said(program: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_DISK", program)
    monkeypatch.setattr(doctor, "_LOW_DISK", 0)
    remedy = doctor._disk().remedy
    assert (remedy is None) == (said is None)
    assert (said or "") in (remedy or "")


def test_a_check_that_this_pytorch_does_not_allow_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(one.remedy is None for one in doctor._seams())
    joint_graph = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    monkeypatch.delattr(joint_graph, "replace_random_passes")
    (stages,) = [one for one in doctor._seams() if one.remedy is not None]
    assert stages.what == "stages check"
    assert "has no torch._inductor.fx_passes.joint_graph.replace_random_passes" in str(stages.remedy)


@pytest.mark.parametrize(("name", "dies"), [("SIGILL", True), ("SIGSEGV", False), ("SIGCONT", False)])
def test_only_an_illegal_instruction_counts(name: str, dies: bool) -> None:
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    assert doctor.matmul_dies([sys.executable, "-c", code]) is dies


def test_a_machine_whose_matmul_dies_is_told_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "matmul_dies", lambda: True)
    (examined,) = doctor._matmul()
    assert "SIGILL" in examined.found
    assert "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in str(examined.remedy)


@pytest.mark.parametrize(
    ("tried", "status", "said"),
    [
        (None, 0, "not tried yet with this PyTorch"),
        (Tried(unfinished=1), 0, "torchsan doctor --canary"),
        (Tried(), 0, "canary values   finds its planted fault, and nothing in the clean twin"),
        (Tried(failures={"memory": "it misses"}), 4, "it misses. It is off, and runs that ask for it are incomplete"),
    ],
)
def test_what_came_of_trying_the_checks_is_said(
    tried: Tried | None,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: iter(()))
    monkeypatch.setattr(doctor, "last_try", lambda: tried)
    assert doctor.run(argparse.Namespace(canary=False)) == status
    assert said in " ".join(capsys.readouterr().out.split("\n"))


def test_the_canary_is_tried_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: iter(()))
    monkeypatch.setattr(doctor, "try_checks", lambda: Tried(failures={"values": "it misses"}))
    assert doctor.run(argparse.Namespace(canary=True)) == 4


def test_an_import_of_torch_that_dies_kills_a_child_and_not_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    tried = doctor._problem
    monkeypatch.setattr(doctor, "_problem", lambda _command: tried([sys.executable, "-c", code]))
    doctor._matmul_problem.cache_clear()
    examined = doctor._torch()
    assert examined.needed
    assert examined.found.endswith("cannot be imported: it dies of SIGSEGV")
    doctor._matmul_problem.cache_clear()


def test_what_is_known_is_said_while_the_rest_is_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []

    def slow() -> Iterator[doctor.Examined]:
        yield doctor.Examined(what="first", found="here")
        said.append(capsys.readouterr().out)

    monkeypatch.setattr(doctor, "examine", slow)
    monkeypatch.setattr(doctor, "last_try", lambda: None)
    doctor.run(argparse.Namespace(canary=False))
    assert said == ["ok      first           here\n"]
