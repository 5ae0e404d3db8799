"""Real packages: what they record is what they compute, off they are as plain ones, and a wrong kernel is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor
import torch._inductor.config

import torchsan
from tests.aoti.models import exported
from torchsan.aoti.build import instrumented
from torchsan.aoti.launches import as_recording
from torchsan.cli.values import watched_values
from torchsan.errors import UsageError
from torchsan.options import Options, Watch, When
from torchsan.recording import Reader
from torchsan.records import Watched
from torchsan.torch_internals.wrapper.cpp import Wrapper, read_wrapper

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("packages")]
ROOT = Path(__file__).parents[2]
WRAPPER = (ROOT / "tests" / "data" / "packages" / "mlp.wrapper.txt").read_text()


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(torchsan.__file__).parents[1]), str(ROOT)])}
    line = [sys.executable, "-m", "torchsan", *words]
    return subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)


def recorded(package: str, x: torch.Tensor, out: Path) -> tuple[torch.Tensor, list[Watched]]:
    """Run a package here with the recorder on."""
    runner: Any = torch._inductor.aoti_load_package(package)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHSAN_OUT", str(out))
        result: torch.Tensor = runner(x)
    return result, watched_values(Reader(as_recording(out)))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A package in which every relu is wrong."""
    program, _ = exported("mlp")
    with torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        return torchsan.aot_compile(program, tmp_path_factory.mktemp("wrong") / "mlp.pt2")


def test_the_wrong_kernel_of_a_package_is_named(wrong: str, tmp_path: Path) -> None:
    done = command(tmp_path, "check-package", wrong, "--out", "run", "--json", "r.json")
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    assert [(f["kind"], f["ops"], f["stage"]) for f in errors] == [("wrong-values", ["aten.relu.default"], "kernel")]
    assert errors[0]["kernel"].startswith("cpp_fused_relu")
    assert errors[0]["source"][0]["code"].startswith("return self.down(self.up(x).relu())")
    assert report["coverage"]["buffers_checked"] == report["coverage"]["buffers"] > 0


def test_off_it_writes_nothing_and_on_it_gives_the_same(wrong: str, tmp_path: Path) -> None:
    _, x = exported("mlp")
    runner: Any = torch._inductor.aoti_load_package(wrong)
    off = runner(x)
    on, values = recorded(wrong, x, tmp_path / "out")
    assert torch.equal(off, on)
    assert [w.kernel for w in values if w.name == "output0"] == ["(outputs)"]
    assert {w.node for w in values} >= {"addmm", "relu", "addmm_1", "cumsum"}
    assert not list(tmp_path.glob("*.launches"))


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_does_not_stop_the_model(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = (
        "import torch, torch._inductor, sys\n"
        f"print(torch._inductor.aoti_load_package({wrong!r})(torch.zeros(4, 16)).shape)\n"
    )
    environ = os.environ | {"TORCHSAN_OUT": str(tmp_path / "file" / "below")}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=300)
    assert "torch.Size([4, 8])" in done.stdout
    assert "torchsan: cannot record launches" in done.stderr


@pytest.mark.slow
def test_what_is_no_package_or_does_not_fit_is_said(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "no.pt2").write_text("nothing")
    for words, message in (
        (("no.pt2",), "no AOTInductor package"),
        (("missing.pt2",), "no such package"),
        ((wrong, "--program", "no.pt2"), "no exported program"),
        ((wrong, "--inputs", "no.pt2"), "cannot read"),
    ):
        done = command(tmp_path, "check-package", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert message in done.stderr, (words, done.stderr)


def test_a_package_of_another_torch_is_refused(wrong: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wrong) as old, zipfile.ZipFile(tmp_path / "old.pt2", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(torch.__version__.encode(), b"2.0.0") if "about" in name else content)
    done = command(tmp_path, "check-package", "old.pt2")
    assert done.returncode == 2
    assert "built by torch 2.0.0" in done.stderr


def test_bad_arguments_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    program, x = exported("mlp")
    for level in ("all", "off"):
        with pytest.raises(UsageError):
            torchsan.aot_compile(program, tmp_path / "m.pt2", watch=level)
    with pytest.raises(UsageError):
        torchsan.aot_compile(program, tmp_path / "m.pt2", when="never")
    with pytest.raises(UsageError, match=r"torch\.export"):
        torchsan.aot_compile(x, tmp_path / "m.pt2")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(UsageError, match=r"\.pt2"):
        torchsan.aot_compile(program, tmp_path / "m")


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_every_launch_is_recorded_with_the_right_values(name: str, dynamic: bool, tmp_path: Path) -> None:
    program, x = exported(name, dynamic=dynamic)
    plain = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "plain.pt2"))
    package = torchsan.aot_compile(program, tmp_path / "watched.pt2")
    runner: Any = torch._inductor.aoti_load_package(plain)
    result, values = recorded(package, x, tmp_path / "out")
    assert torch.equal(result, runner(x))
    launches = {(w.launch, w.kernel) for w in values if w.launch is not None}
    assert sorted(kernel for _, kernel in launches) == sorted(called(Path(plain)))
    done = command(tmp_path, "check-package", str(package), "--out", "run", "--json", "r.json")
    report = json.loads((tmp_path / "r.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert report["findings"] == []
    assert report["coverage"]["buffers_checked"] == report["coverage"]["buffers"] > 0
    if dynamic:
        other = torch.cat([x, x])
        runner = torch._inductor.aoti_load_package(plain)
        assert torch.equal(recorded(package, other, tmp_path / "other")[0], runner(other))


def called(package: Path) -> list[str]:
    """The kernels that a plain package calls, by the text of its C++ alone."""
    with zipfile.ZipFile(package) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("wrapper.cpp")]
        text = archive.read(name).decode()
    body = text.split("void AOTInductorModel::run_impl(")[1].split("} // AOTInductorModel::run_impl")[0]
    return re.findall(r"^\s*(cpp_fused\w*)\(", body, re.MULTILINE) + re.findall(r"CHECK\((aoti_torch_cpu_\w+)\(", body)


@pytest.mark.slow
@pytest.mark.parametrize("watch", ["names", "print"])
def test_the_other_levels(watch: str, tmp_path: Path) -> None:
    program, x = exported("mlp")
    package = torchsan.aot_compile(program, tmp_path / "m.pt2", watch=watch, kernels="cpp_fused*")
    _, values = recorded(package, x, tmp_path / "out")
    assert {w.kernel.split("_")[1] for w in values} == {"fused"}
    assert all(w.stored is None for w in values)
    if watch == "names":
        assert all(w.phase == "before" and w.summary is None for w in values)
    else:
        relu = next(w.summary for w in values if w.node == "relu")
        assert relu is not None
        assert (relu.minimum, relu.zeros > 0, relu.mean is not None) == (0.0, True, True)
    done = command(tmp_path, "check-package", str(package), "--out", "run", "--json", "r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(
        "not tensors" in s["reason"] for s in json.loads((tmp_path / "r.json").read_text())["coverage"]["skipped"]
    )


class Kinds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        odd = torch.where(x > 2, torch.inf, torch.where(x < -2, torch.nan, x))
        whole = (x * 40).to(torch.int32)
        wide = [x.double() * 1e6, odd, odd.half(), odd.bfloat16()]
        integers = [whole, whole.to(torch.int64) << 40, whole.to(torch.int8), whole.to(torch.uint8), x > 0]
        return (*wide, *integers, (x + 1).t(), (x * 2)[::2, 1::3], (x - 1).relu())


@pytest.mark.slow
def test_statistics_are_those_of_the_elements(tmp_path: Path) -> None:
    x = torch.randn(300, 257, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    program = torch.export.export(Kinds(), (x,))
    package = torchsan.aot_compile(program, tmp_path / "m.pt2", watch="print", kernels="(outputs)")
    results, values = recorded(package, x, tmp_path / "out")
    assert len(values) == len(results) == 12
    for result, value in zip(results, values, strict=True):
        expected, found = torchsan.summarize(result), value.summary
        assert found is not None
        for name in ("minimum", "maximum", "nan", "posinf", "neginf", "zeros"):
            assert getattr(found, name) == getattr(expected, name), (value.name, name)
        assert (found.mean, found.std) == pytest.approx((expected.mean, expected.std), rel=1e-9)


@pytest.mark.slow
def test_the_kernel_that_kills_the_process_is_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.codegen_with_cpp_wrapper

    def crashing(self: Any) -> Any:
        wrapper, kernels = original(self)
        text = re.sub(r"(void\s+cpp_fused_relu\w*\([^)]*\)\s*\{)", r"\1 __builtin_trap();", kernels.value)
        assert text != kernels.value
        return wrapper, type(kernels)(text, kernels.line_map)

    monkeypatch.setattr(GraphLowering, "codegen_with_cpp_wrapper", crashing)
    program, _ = exported("mlp")
    package = torchsan.aot_compile(program, tmp_path / "m.pt2", watch="names")
    done = command(tmp_path, "check-package", str(package), "--out", "run")
    assert done.returncode == 128 + 4, done.stdout + done.stderr
    assert re.search(r"the package failed in cpp_fused_relu\w*: signal 4", done.stderr)


@pytest.mark.slow
def test_without_python_the_records_are_the_same(wrong: str, tmp_path: Path) -> None:
    root = Path(torch.__file__).parent
    (tmp_path / "main.cpp").write_text(
        """#include <ATen/ATen.h>
        #include <torch/csrc/inductor/aoti_package/model_package_loader.h>
        int main(int argc, char** argv) {
          torch::inductor::AOTIModelPackageLoader loader(argv[1]);
          std::vector<at::Tensor> inputs{at::ones({4, 16})};
          auto outputs = loader.run(inputs);
          return outputs.size() == 1 ? 0 : 1;
        }"""
    )
    abi = int(torch.compiled_with_cxx11_abi())
    build = ["g++", "-std=c++20", "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "main.cpp", "-o", "main"]
    build += [f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    build += [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=300)
    environ = os.environ | {"TORCHSAN_OUT": str(tmp_path / "alone")}
    subprocess.run([str(tmp_path / "main"), wrong], env=environ, check=True, timeout=120)
    _, here = recorded(wrong, torch.ones(4, 16), tmp_path / "here")
    alone = watched_values(Reader(as_recording(tmp_path / "alone")))
    assert [(w.kernel, w.phase, w.name, w.node, w.summary) for w in alone] == [
        (w.kernel, w.phase, w.name, w.node, w.summary) for w in here
    ]


@pytest.fixture
def wrapper() -> Wrapper:
    found = read_wrapper(WRAPPER)
    assert found is not None
    return found


def test_the_recorder_stands_around_each_launch(wrapper: Wrapper) -> None:
    lines = instrumented(WRAPPER, wrapper, {"a": ')torchsan"'}, Watch.SAVE, When.BOTH, lambda kernel: True).split("\n")
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("cpp_fused_relu_0("))
    assert 'torchsan_call.launch(1, torchsan_recorder::BEFORE, "cpp_fused_relu_0");' in lines[at - 1]
    assert '"buf1", buf1);' in lines[at - 1]
    assert "buf2" not in lines[at - 1], "what is not written yet is not looked at"
    assert '"buf2", buf2);' in lines[at + 1]
    assert all("if (torchsan_call.log != nullptr) {" in lines[i] for i in (at - 1, at + 1))
    end = next(i for i, line in enumerate(lines) if "output_handles[0] =" in line)
    assert '"output0", buf7);' in lines[end - 1], "before it is given away"
    recorder = next(i for i, line in enumerate(lines) if "namespace torchsan_recorder {" in line)
    assert recorder < next(i for i, line in enumerate(lines) if line.startswith("void AOTInductorModel::run_impl("))


def test_names_and_filters(wrapper: Wrapper) -> None:
    options = Options(kernels=("cpp_fused*",))
    text = instrumented(WRAPPER, wrapper, {}, Watch.NAMES, When.BOTH, options.selects)
    assert text.count("torchsan_call.launch(") == 2
    assert "torchsan_call.tensor(" not in text
    after = instrumented(WRAPPER, wrapper, {}, Watch.PRINT, When.AFTER, options.selects)
    assert "torchsan_recorder::PRINT" in after
    assert "torchsan_recorder::BEFORE" not in after.split("void AOTInductorModel::run_impl(")[1]
