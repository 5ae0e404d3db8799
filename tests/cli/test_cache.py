"""`torchsan cache`: entries are read as data, and code for wider vectors is named."""

from __future__ import annotations

import os
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from torchsan.cli.cache import fresh_codes
from torchsan.cli.main import main
from torchsan.torch_internals.caches import vector_elements

CODE = (
    "cpp_fused_0 = async_compile.cpp_pybinding(['float*'], r'''\n"
    "auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x0), "
    "static_cast<int64_t>({width}));\n"
    "''')\n"
)


class Evil:
    """Would leave a file if it were loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def entry(folder: Path, contents: bytes, key: str = "fabcdef") -> Path:
    place = folder / "fxgraph" / "ab" / key
    place.mkdir(parents=True)
    (place / "artifact").write_bytes(contents)
    return folder


@pytest.mark.parametrize(("factor", "status"), [(1, 0), (2, 1)])
def test_code_for_wider_vectors_is_named(
    factor: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    width = vector_elements("float")
    if width is None:
        pytest.skip("Inductor generates no vectors here")
    entry(tmp_path, pickle.dumps({"source_code": CODE.replace("{width}", str(width * factor))}))
    assert main(["cache", str(tmp_path), "--no-compile"]) == status
    said = capsys.readouterr().out
    assert "1 kernels" in said
    assert ("wider than here" in said) == bool(status)


def test_nothing_in_an_entry_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry(tmp_path, pickle.dumps([CODE, Evil(tmp_path / "harm")]))
    assert main(["cache", str(tmp_path)]) == 4
    assert not (tmp_path / "harm").exists()
    assert "1 entries, 0 as a fresh compile gives them, 0 stale, 0 not read" in capsys.readouterr().out


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry(tmp_path, b"no pickle")
    assert main(["cache", str(tmp_path)]) == 4
    assert "cannot be read" in capsys.readouterr().out


def test_a_folder_without_caches_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", str(tmp_path)]) == 2
    assert "no compile caches" in capsys.readouterr().err


SCRIPT = """
class Repro(torch.nn.Module):
    def forward(self, arg0_1):
        mul = torch.ops.{op}(arg0_1, 2);  arg0_1 = None
        return (mul,)

def load_args(reader):
    buf0 = reader.storage(None, 256)
    reader.tensor(buf0, (8, 8), is_leaf=True)  # arg0_1
"""
HEAD = "# AOT ID: ['0_inference']\n"


def test_the_code_of_a_graph_is_generated_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = SCRIPT.replace("{op}", "aten.mul.Tensor")
    fresh = next(fresh_codes(HEAD, script))
    (name,) = set(re.findall(r"cpp_fused_\w+", fresh))
    entry(tmp_path, pickle.dumps([HEAD + fresh.replace(name, "cpp_fused_mul_0"), script]), key="same")
    assert main(["cache", str(tmp_path)]) == 0
    assert "the same code as a fresh compile" in capsys.readouterr().out
    entry(tmp_path, pickle.dumps([HEAD + fresh.replace("2.0", "3.0"), script]), key="other")
    assert main(["cache", str(tmp_path)]) == 1
    assert "other code than a fresh compile gives" in capsys.readouterr().out


def test_a_graph_with_an_operator_of_somebody_else_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry(tmp_path, pickle.dumps([f"{HEAD}AsyncCompile()", SCRIPT.replace("{op}", "mine.run.default")]))
    assert main(["cache", str(tmp_path)]) == 4
    assert "not compared: it calls mine.run.default, which is not PyTorch's own" in capsys.readouterr().out


@pytest.mark.parametrize("opcode", [b"\x8e", b"\x8d", b"\x96"], ids=["bytes", "text", "bytearray"])
def test_an_entry_that_claims_to_be_huge_is_not_made_room_for(
    opcode: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry(tmp_path, b"\x80\x05" + opcode + struct.pack("<Q", 1 << 50) + b"x")
    assert main(["cache", str(tmp_path)]) == 4
    assert "cannot be read" in capsys.readouterr().out


def test_links_and_pipes_in_a_cache_are_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = entry(tmp_path / "cache", pickle.dumps([CODE]))
    (folder / "aotautograd").symlink_to("/")
    (folder / "fxgraph" / "ab" / "link").symlink_to(tmp_path)
    os.mkfifo(folder / "fxgraph" / "ab" / "pipe")
    (folder / "fxgraph" / "ab" / "file").symlink_to("/etc/passwd")
    assert main(["cache", str(folder), "--no-compile"]) == 0
    assert "3 entries, 0 as a fresh compile gives them, 0 stale, 2 not read" in capsys.readouterr().out
