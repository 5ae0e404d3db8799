"""The script: its inputs are the recorded ones, to the bit and the stride; and it is plain PyTorch."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.repro.made_up import call, exhibit, finding, given, node
from torchsan.recording import Reader, Writer
from torchsan.records import Check, Exhibit, Given, Kind
from torchsan.repro.render import readme, render
from torchsan.repro.trials import Verdict
from torchsan.repro.values import Tensors, write_safetensors
from torchsan.store import Store


def kept(name: str, t: torch.Tensor, store: Store, **fields: Any) -> Given:
    store.put(name, t)
    dtype = str(t.dtype).removeprefix("torch.")
    return Given(name=name, dtype=dtype, size=tuple(t.shape), stride=t.stride(), stored=name, **fields)


def inputs_of(
    made: Exhibit, store: Store, folder: Path, function: str = "inputs", *, load: bool = False
) -> list[torch.Tensor]:
    """Run the script up to its end, and then the function that makes the inputs."""
    script = render(made, finding(), Tensors(store), store=load)
    write_safetensors(folder / "data.safetensors", script.data)
    head = script.text.partition("\nbackend = ")[0]
    names: dict[str, Any] = {"__file__": str(folder / "repro.py")}
    grad = torch.is_grad_enabled()
    try:
        exec(compile(head, "repro.py", "exec"), names)
    finally:
        torch.set_grad_enabled(grad)
    made_inputs: list[torch.Tensor] = names[function]()
    return made_inputs


SAMPLES = {
    "few": torch.tensor([0.1, -0.0, float("inf"), float("nan"), 3e-45]),
    "many": torch.linspace(-1, 1, 200).reshape(4, 50),
    "permuted": torch.linspace(-1, 1, 96).reshape(2, 3, 16).permute(2, 0, 1),
    "broadcast": torch.linspace(-1, 1, 50).expand(3, 50),
    "with gaps": torch.linspace(-1, 1, 100).reshape(10, 10)[:, ::3],
    "of one number": torch.full((4, 5), 7, dtype=torch.uint8),
    "half": torch.linspace(-1, 1, 100).half(),
    "of both zeros": torch.tensor([0.0, -0.0]),
    "whole": torch.arange(-50, 50),
    "true or false": torch.arange(100) % 3 == 0,
    "empty": torch.empty(0, 4),
    "a scalar": torch.tensor(2.5),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_inputs_are_as_recorded(sample: torch.Tensor, tmp_path: Path) -> None:
    with Store(tmp_path / "tensors") as store:
        made = exhibit(
            nodes=(call("out", "aten.clone.default", node("x")),), inputs=(kept("x", sample, store),), outputs=("out",)
        )
        (found,) = inputs_of(made, store, tmp_path)
    assert (found.dtype, found.shape) == (sample.dtype, sample.shape)
    assert found.stride() == sample.stride() or sample.numel() <= 1
    assert found.contiguous().numpy(force=True).tobytes() == sample.contiguous().numpy().tobytes()


def test_inputs_that_share_memory_share_it_again(tmp_path: Path) -> None:
    with Store(tmp_path / "tensors") as store:
        store.put("memory", torch.arange(100.0))
        shared = {"stored": "memory", "base": "memory0"}
        x = given("x", 4, **shared)
        y = given("y", 4, offset=2, **shared)
        made = exhibit(inputs=(x, y), earlier=((given("x", 4), given("y", 4)),))
        first, second = inputs_of(made, store, tmp_path)
        apart = inputs_of(made, store, tmp_path, "earlier")
    assert second.tolist() == [2, 3, 4, 5]
    first.zero_()
    assert second.tolist() == [0, 0, 4, 5]
    assert apart[0].untyped_storage().data_ptr() != apart[1].untyped_storage().data_ptr()


def test_a_smaller_input_is_the_first_part_of_what_was_recorded(tmp_path: Path) -> None:
    sample = SAMPLES["permuted"]
    with Store(tmp_path / "tensors") as store:
        small = dataclasses.replace(kept("x", sample, store), size=(8, 1, 3), stride=(3, 3, 1))
        made = exhibit(nodes=(call("out", "aten.clone.default", node("x")),), inputs=(small,), outputs=("out",))
        (found,) = inputs_of(made, store, tmp_path)
    assert torch.equal(found, sample[:8, :1, :3])


def test_with_a_store_the_script_loads_from_it(tmp_path: Path) -> None:
    with Store(tmp_path / "source") as source, Store(tmp_path / "tensors") as target:
        x = kept("x", SAMPLES["many"], source)
        made = exhibit(nodes=(call("out", "aten.clone.default", node("x")),), inputs=(x,), outputs=("out",))
        script = render(made, finding(), Tensors(source), store=True)
        target.put_many(script.data)
        (found,) = inputs_of(made, source, tmp_path, load=True)
    assert "torchsan.loading_from" in script.text
    assert torch.equal(found, SAMPLES["many"])


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("check", [Check.VALUES, Check.METADATA])
def test_every_kind_of_finding_has_a_script_without_torchsan(kind: Kind, check: Check, tmp_path: Path) -> None:
    with Store(tmp_path / "tensors") as store:
        made = exhibit(backward=True, grad=True, config={"epilogue_fusion": False}, dynamic=True)
        script = render(made, finding(kind=kind, check=check), Tensors(store), ("my_ops",))
    compile(script.text, "repro.py", "exec")
    assert "torchsan" not in script.text
    assert "import my_ops" in script.text
    assert len(script.text.splitlines()) <= 60


def test_names_that_python_or_the_script_needs_are_changed(tmp_path: Path) -> None:
    with Store(tmp_path / "tensors") as store:
        nodes = (call("lambda", "aten.sin.default", node("torch")), call("print", "aten.cos.default", node("lambda")))
        made = exhibit(nodes=nodes, inputs=(given("torch", 4),), outputs=("print",))
        script = render(made, finding(), Tensors(store))
    assert "lambda_ = aten.sin.default(torch_)" in script.text
    assert "print_ = aten.cos.default(lambda_)" in script.text


EVIL = (
    "# x\n<script>alert(1)</script> [a](http://x) ![b](http://y) `c` ```\n\n## Not ours\n___\n1. item\n- item\n"
    "_it_ ~~s~~ https://evil.example www.evil.example @root\n---\n\u202e\x1b[2J"
)


def test_what_a_recording_says_is_no_markup_in_the_readme(tmp_path: Path) -> None:
    found = finding(
        id="F1", message=EVIL, kernel=EVIL, ops=(EVIL,), evidence={"eager": EVIL, "compiled": EVIL, "text": [EVIL]}
    )
    writer = Writer.create(tmp_path / "run", command=[EVIL])
    writer.close()
    made = exhibit(notes=(EVIL,))
    text = readme(
        made, found, Reader(writer.path).manifest, Verdict(same=None, alone=True, eager=True, output=EVIL), EVIL, ()
    )
    outside = re.sub(r"^(`{3,})[a-z]*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#.*", outside, re.MULTILINE)
    assert headings[1:] == ["## What is wrong", "## How to run", "## Where it comes from"]
    spoken = re.sub(r"`[^`\n]*`", "", outside)
    for markup in ("<script", "[a](", "![b](", "\u202e", "\x1b", "_it_", "~~", "evil.example", "@root", "___"):
        assert markup not in spoken
    assert not re.search(r"^(- )?(1\.|- item|---)", spoken, re.MULTILINE)


def test_output_that_is_cut_begins_with_a_whole_line(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["x.py"])
    writer.close()
    output = "\n".join(f"line {n}" for n in range(1000))
    verdict = Verdict(same=finding(id="F1"), alone=True, eager=True, output=output)
    text = readme(exhibit(), finding(id="F1"), Reader(writer.path).manifest, verdict, "pass", ())
    first = re.search(r"What it prints:\n\n```text\n…\n(.*)\n", text)
    assert first is not None
    assert re.fullmatch(r"line \d+", first[1])
