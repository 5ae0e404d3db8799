"""Lists of programs, and what tells one result from another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchsan.errors import UsageError
from torchsan.sweep.programs import Program, address, read_programs, setting_key


def test_a_list_names_scripts_beside_it_with_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("x = 2\n")
    (tmp_path / "list.txt").write_text("# all of them\na.py\n\nb.py --size 3  # larger\n")
    first, second = read_programs(tmp_path / "list.txt")
    assert (first.name, first.text, first.args, first.beside) == ("a.py", "x = 1\n", (), str(tmp_path))
    assert (second.name, second.args) == ("b.py --size 3", ("--size", "3"))
    assert [p.name for p in read_programs(tmp_path)] == ["a.py", "b.py"]
    assert [p.text for p in read_programs(tmp_path / "b.py")] == ["x = 2\n"]


def test_a_list_can_hold_the_programs_themselves(tmp_path: Path) -> None:
    file = tmp_path / "programs.jsonl"
    file.write_text("".join(json.dumps(p) + "\n" for p in ({"name": "one", "text": "1\n"}, {"text": "2\n"})))
    assert [(p.name, p.text) for p in read_programs(file)] == [("one", "1\n"), ("programs.jsonl:2", "2\n")]


@pytest.mark.parametrize(("name", "text"), [("x.jsonl", "{}"), ("x.txt", "missing.py"), ("x.txt", ""), ("x.txt", None)])
def test_what_is_no_list_is_refused(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        read_programs(tmp_path / name)
    assert error.value.slug == "no-program"


def test_an_address_is_of_the_program_what_it_imports_and_the_setting(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("x = 1")
    key = setting_key(["values"], ["helper"], [str(tmp_path)])
    program = Program(name="one", text="import helper", beside=str(tmp_path))
    first = address(program, key)
    assert first == address(Program(name="another", text=program.text, beside=program.beside), key)
    assert first != address(Program(name="one", text=program.text, args=("x",), beside=program.beside), key)
    assert key != setting_key(["memory"], ["helper"], [str(tmp_path)])
    (tmp_path / "helper.py").write_text("x = 2")
    assert key != setting_key(["values"], ["helper"], [str(tmp_path)])
    assert first != address(program, key)


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError):
        setting_key([], ["no_such_module_anywhere"])
