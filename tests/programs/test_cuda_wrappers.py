"""Wrappers that Inductor generates for CUDA parse, every statement of them, without PyTorch.

`python -m tools.cuda_wrappers` makes them, where there is no GPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchsan.torch_internals.wrapper import Program, parse
from torchsan.torch_internals.wrapper.model import Branch

FOLDER = Path(__file__).parents[1] / "data" / "cuda-wrappers"
WRAPPERS = sorted(FOLDER.glob("*/*.wrapper"))


def _parsed(name: str, release: str = "2.13") -> Program:
    return parse((FOLDER / release / f"{name}.wrapper").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_statement_is_understood(path: Path) -> None:
    program = parse(path.read_text(encoding="utf-8"))
    assert program.opaque() == ()
    if path.stem.startswith("cpp_wrapper"):
        # The session compiles the same kernels with a wrapper in Python instead.
        assert not program.functions
    else:
        assert program.launches()
        assert all(launch.writes for launch in program.launches())
        users = [launch.kernel for launch in program.launches() if launch.users_own]
        assert bool(users) == path.stem.startswith("users_")


def test_no_torch_is_needed() -> None:
    code = f"""
import sys
from pathlib import Path
from torchsan.torch_internals.wrapper.parse import parse
paths = Path({str(FOLDER)!r}).glob("*/*.wrapper")
print(sum(len(parse(p.read_text()).launches()) for p in paths), "torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    launches, imported = found.stdout.split()
    assert int(launches) > 50
    assert imported == "False"


def test_launches_inside_device_guards_and_streams_are_seen_with_what_they_write() -> None:
    launches = _parsed("two_streams-0").launches()
    assert [launch.writes for launch in launches] == [("buf0",), ("buf1",), ("buf2",), ("buf3",), ("buf4",)]
    assert launches[2].kernel == "triton_poi_fused_cos_2"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # what PyTorch says of an H100
def test_the_kernels_of_a_training_step_are_compiled_for_a_gpu_that_is_not_here() -> None:
    """By Triton's compiler and NVIDIA's assembler, down to the binary that a GPU loads."""
    nvidia = pytest.importorskip("triton.backends.nvidia", reason="needs Triton's back end for NVIDIA")
    if not (Path(nvidia.__path__[0]) / "bin" / "ptxas").exists():
        pytest.skip("this build of Triton comes without ptxas, NVIDIA's assembler")
    from tools import cuda_wrappers  # imports Triton

    binaries: cuda_wrappers.Binaries = {}
    cuda_wrappers.compile_for_cuda(cuda_wrappers.Model(), torch.randn(256, 64), train=True, binaries=binaries)
    assert len(binaries) >= 5
    assert all(".target sm_90a" in made["ptx"] for made in binaries.values())
    # An ELF file, for the machine that has the number of CUDA.
    assert {(made["cubin"][:4], int.from_bytes(made["cubin"][18:20], "little")) for made in binaries.values()} == {
        (b"\x7fELF", 190)
    }


def test_what_a_device_guard_holds_runs_once() -> None:
    """As a block that may run any number of times its contents would not be followed: that is all of the program."""
    steps = [
        s for path in WRAPPERS for f in parse(path.read_text(encoding="utf-8")).functions.values() for s in f.steps
    ]
    assert not [s for s in steps if isinstance(s, Branch)]


def test_partitions_are_functions_of_their_own() -> None:
    program = _parsed("partitions-0")
    assert {"call", "partition_0", "partition_1"} <= set(program.functions)
    assert [len(program.functions[f"partition_{i}"].launches()) for i in (0, 1)] == [2, 2]


@pytest.mark.parametrize("release", ["2.12", "2.13", "2.14", "2.15"])
def test_each_release_has_them_all(release: str) -> None:
    stems = {w.stem for w in WRAPPERS if w.parent.name == release}
    # 2.12 asks for compiled kernels before it writes the text of a C++ wrapper.
    assert {w.stem for w in WRAPPERS} - stems == ({"cpp_wrapper-0"} if release == "2.12" else set())
    assert "make_tensor_descriptor" in (FOLDER / release / "tma_template-0.wrapper").read_text(encoding="utf-8")
    # What a kernel is given through descriptors is known.
    (users,) = [x for x in _parsed("users_descriptors-0", release).launches() if x.users_own]
    assert [a.base for a in users.arguments[:3]] == ["buf1", "arg1_1", "buf0"]


def test_a_template_and_a_combo_kernel_say_what_they_write() -> None:
    (template,) = [x for x in _parsed("templates-0").launches() if x.kernel.startswith("triton_tem_")]
    assert len(template.writes) == 1
    combo, _ = _parsed("combo_kernels-0").launches()
    assert combo.writes == ("buf0", "buf1")
