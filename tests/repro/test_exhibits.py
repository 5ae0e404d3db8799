"""A recording from a stranger: nothing in it is executed but known operators, whatever it says."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
from tests.repro.made_up import call, exhibit, finding, given, node
from torchsan.cli.main import main
from torchsan.errors import RecordingError, UsageError
from torchsan.graphs.rebuild import find_operator
from torchsan.recording import Reader, Writer, finalize
from torchsan.records import Exhibit, OperatorCall
from torchsan.repro.exhibits import Loads, choose_finding, read_exhibit, require_modules
from torchsan.repro.render import render
from torchsan.repro.values import Tensors
from torchsan.store import Store
from torchsan.torch_internals.inductor import is_settable


def recorded(folder: Path, made: Exhibit) -> Reader:
    writer = Writer.create(folder / "run", command=["script.py"])
    writer.finding(finding())
    writer.event("exhibit", {"exhibit": made})
    writer.close()
    finalize(writer.path, None)
    return Reader(writer.path)


def test_an_exhibit_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    recording = recorded(tmp_path, exhibit())
    found = read_exhibit(recording, choose_finding(recording, None))
    assert [n.op for n in found.nodes] == [n.op for n in exhibit().nodes]
    assert found.inputs == exhibit().inputs


EVIL: dict[str, OperatorCall] = {
    "a file": call("mul", "aten.from_file.default", "/etc/passwd"),
    "no operator": call("mul", "os.system('true') or aten.sin.default", node("x")),
    "too few parts": call("mul", "os.system", "true"),
    "a keyword that is code": OperatorCall(name="mul", op="aten.sin.default", kwargs={"x=exit()": 1}),
    "a name that is code": call("mul = exit()", "aten.sin.default", node("x")),
    "a dtype that is code": call("mul", "aten.sin.default", {"dtype": "exit()"}),
    "a device elsewhere": call("mul", "aten.sin.default", {"device": "cuda')+exit()"}),
    "an unknown mark": call("mul", "aten.sin.default", {"eval": "exit()"}),
    "a node that is not there": call("mul", "aten.sin.default", node("nobody")),
    "what every object has": call("mul", "aten.sin.__class__", node("x")),
    "what every object of others has": call("mul", "their_library.__init__.default", node("x")),
    "one of several results of nothing": call("mul", "getitem"),
    "one of several results by name": OperatorCall(name="mul", op="getitem", args=(node("x"),), kwargs={"index": 0}),
    "more than one mark": call("mul", "aten.sin.default", {"node": "x", "dtype": "float32"}),
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_what_no_check_writes_is_refused(evil: OperatorCall, tmp_path: Path) -> None:
    recording = recorded(tmp_path, exhibit(nodes=(evil,), outputs=(evil.name,)))
    with pytest.raises(RecordingError, match="malformed"):
        read_exhibit(recording, choose_finding(recording, None))


@pytest.mark.parametrize(
    "fields",
    [{"fill": "full exit()"}, {"dtype": "float32()"}, {"size": (-1, 8)}, {"base": "a b"}, {"stride": (1,)}],
    ids=str,
)
def test_an_input_that_no_check_writes_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    evil = dataclasses.replace(given("x", 4, 8), **fields)
    recording = recorded(tmp_path, exhibit(inputs=(evil, given("y", 4, 8))))
    with pytest.raises(RecordingError, match="malformed"):
        read_exhibit(recording, choose_finding(recording, None))


def test_a_setting_that_runs_a_program_is_refused(tmp_path: Path) -> None:
    recording = recorded(tmp_path, exhibit(config={"cpp.cxx": "evil"}))
    with pytest.raises(RecordingError, match="configuration"):
        read_exhibit(recording, choose_finding(recording, None))


def test_operators_that_only_torchscript_knows_are_not_called() -> None:
    assert find_operator("aten.sin.default") is torch.ops.aten.sin.default
    with pytest.raises(RecordingError, match="no operator"):
        find_operator("aten.save.default")


def test_operators_of_others_need_the_users_word(tmp_path: Path) -> None:
    made = exhibit(nodes=(call("mul", "their_library.run.default", node("x")),))
    recorded(tmp_path, made)
    with pytest.raises(UsageError, match=r"their_library\.run\.default.*--load"):
        require_modules(made, ())
    require_modules(made, ("their_module",))


def test_a_backend_of_others_needs_the_users_word(tmp_path: Path) -> None:
    made = dataclasses.replace(exhibit(), backend="tvm")
    with pytest.raises(UsageError, match=r"needs the backend tvm, which is not PyTorch's own.*\[unknown-operator\]"):
        require_modules(made, ())
    require_modules(made, ("their_module",))


def test_the_command_says_so_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, exhibit(nodes=(call("mul", "their_library.run.default", node("x")),)))
    assert main(["repro", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    assert "[unknown-operator]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_id_that_is_a_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, exhibit())
    with sqlite3.connect(tmp_path / "run" / "events.sqlite") as events:
        events.execute("""UPDATE events SET body = replace(body, '"F1"', '"F1/../../x"')""")
    assert main(["repro", str(tmp_path / "run"), "F1/../../x"]) == 2
    assert "malformed" in capsys.readouterr().err


def test_operators_must_be_registered_once_the_modules_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, exhibit(nodes=(call("mul", "their_library.run.default", node("x")),)))
    out = tmp_path / "out"
    assert main(["repro", str(tmp_path / "run"), "--out", str(out), "--load", "json", "--quiet"]) == 2
    message = capsys.readouterr().err
    assert "does not register their_library.run.default" in message
    assert "[unknown-operator]" in message
    assert not (out / "repro.py").exists()


def test_a_finding_that_is_not_there_and_one_without_an_exhibit(tmp_path: Path, capsys: Any) -> None:
    with torchsan.session(check="values", out=tmp_path / "clean"):
        pass
    assert main(["repro", str(tmp_path / "clean")]) == 2
    assert "[no-finding]" in capsys.readouterr().err
    writer = Writer.create(tmp_path / "run", command=["x"])
    made = writer.finding(finding())
    writer.event("no-exhibit", {"finding": made.id, "reason": "too large"})
    writer.close()
    assert main(["repro", str(tmp_path / "run"), "F1"]) == 2
    message = capsys.readouterr().err
    assert "too large" in message
    assert "[no-exhibit]" in message
    assert main(["repro", str(tmp_path / "run"), "F7"]) == 2
    assert "there are: F1" in capsys.readouterr().err


def test_a_message_cannot_leave_the_docstring(tmp_path: Path) -> None:
    with Store(tmp_path / "tensors") as store:
        evil = finding(ops=('"""\nimport os; os._exit(0)\n"""',))
        script = render(exhibit(), evil, Tensors(store))
    compile(script.text, "repro.py", "exec")
    assert script.text.count('"""') == 2


def test_an_argument_that_is_no_value_of_its_kind_is_not_written(tmp_path: Path) -> None:
    made = exhibit(nodes=(call("mul", "aten.clone.default", node("x"), memory_format={"memory_format": "load"}),))
    with Store(tmp_path / "tensors") as store, pytest.raises(RecordingError, match="argument"):
        render(made, finding(), Tensors(store))


@pytest.mark.parametrize(
    ("name", "value", "settable"),
    [
        ("cpp.inject_relu_bug_TESTING_ONLY", "accuracy", True),
        ("epilogue_fusion", False, True),
        ("cpp.cxx", ["sh", "-c", "true"], False),
        ("cpp.cxx", "evil", False),
        ("cpp.simdlen", 0, True),
        ("cpu_backend", "triton", True),
        ("cpu_backend", "evil", False),
        ("epilogue_fusion", "triton", False),
        ("max_autotune_gemm", True, True),
        ("max_autotune_gemm_backends", "TRITON,ATEN", True),
        ("max_autotune_gemm_backends", "CUTLASS", False),
        ("max_autotune_report_choices_stats", "evil", False),
        ("trace.enabled", True, False),
        ("save_args", True, False),
        ("aot_inductor.dump_aoti_minifier", True, False),
        ("run_jit_post_compile_hook", True, False),
        ("x = exit()", 1, False),
    ],
)
def test_only_settings_that_change_what_is_generated_are_set(name: str, value: Any, settable: bool) -> None:
    assert is_settable(name, value) is settable


def test_a_link_in_the_place_of_a_copied_module_is_replaced_and_not_followed(tmp_path: Path) -> None:
    mine, module, folder = tmp_path / "mine.txt", tmp_path / "library.py", tmp_path / "out"
    mine.write_text("mine")
    module.write_text("import torch\n")
    folder.mkdir()
    (folder / "library.py").symlink_to(mine)
    for _ in range(2):
        Loads(files=(module,)).copy_to(folder)
    assert mine.read_text() == "mine"
    assert not (folder / "library.py").is_symlink()
    assert (folder / "library.py").read_text() == "import torch\n"
