"""Programs that are made up: valid, the same for the same seed, and guided by what they reach."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch

from torchsan.sweep.fuzz import Fuzzer, Genome, changed, fresh, grown
from torchsan.sweep.grammar import WEIGHTED
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Outcome, Result

_GENOME = Genome(
    inputs=("torch.randn(n, 3)",), lines=(), sizes=(2, 5), dynamic=None, gradients=False, setting=None, seed=1
)


def eagerly(program: Program) -> None:
    try:
        with torch.compiler.set_stance("force_eager"):
            exec(program.text, {})
    finally:
        torch.compiler.set_stance("default")


def first(number: int, seed: int = 3) -> list[Program]:
    return list(itertools.islice(Fuzzer(seed=seed).programs(), number))


def test_the_same_seed_makes_the_same_programs() -> None:
    assert first(5) == first(5)
    assert first(5) != first(5, seed=4)


@pytest.mark.filterwarnings("ignore")  # what PyTorch warns of is valid
def test_most_programs_run_eagerly() -> None:
    """Not all: what a write does to gradients, and to memory that overlaps, only real tensors show."""
    programs = first(30)
    failed = 0
    for program in programs:
        try:
            eagerly(program)
        except (RuntimeError, IndexError):
            failed += 1
    assert failed <= len(programs) // 4


def test_lines_that_are_not_valid_for_every_size_are_left_out() -> None:
    lines = ("v0 = x0 + 1", "v1 = x0[:5].view(15)", "v2 = x0.no_such_method()", "v3 = v0 @ v0.mT")
    kept = grown(replace(_GENOME, lines=lines), random.Random(0), 1).lines
    assert kept[:2] == ("v0 = x0 + 1", "v3 = v0 @ v0.mT")


def test_every_family_of_the_grammar_has_a_line_that_is_taken() -> None:
    taken = "\n".join(p.text for p in first(60))
    for family, _ in WEIGHTED:
        starts = {template.removeprefix("= ").partition("{")[0] for template in family} - {""}
        methods = {template.partition("}.")[2].partition("(")[0] for template in family} - {""}
        assert any(f".{m}(" in taken for m in methods) or any(s in taken for s in starts)


def test_what_reaches_something_new_is_kept_and_changed() -> None:
    fuzzer = Fuzzer(seed=0)
    program = next(fuzzer.programs())
    result = Result(address="a", program=program, outcome=Outcome.CLEAN, seconds=1.0, covers=("fused a b",))
    fuzzer.watch(result)
    fuzzer.watch(replace(result, address="b"))
    assert (len(fuzzer.corpus), fuzzer.reached) == (1, {"fused a b"})
    other = changed(fuzzer.corpus[0], random.Random(1), 8)
    assert other.inputs == fuzzer.corpus[0].inputs
    assert other.text() != program.text


def test_a_program_is_text_that_says_how_it_is_compiled() -> None:
    chance = random.Random(5)
    genome = replace(grown(fresh(chance), chance, 4), setting=("cpp.simdlen", 0), gradients=True, sizes=(3, 8))
    text = genome.text()
    assert "options={'cpp.simdlen': 0}" in text
    assert "for n in (3, 8,):" in text
    assert "torch.autograd.backward(" in text
    compile(text, "it", "exec")
