"""What each kind of finding means: for `torchsan explain`, for rules in SARIF, and for docs/reference/kinds.md.

Importing it imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.records import Kind


@dataclass(frozen=True, slots=True)
class Explanation:
    """A kind of finding in plain words."""

    meaning: str
    """What is wrong, in one sentence."""
    causes: tuple[str, ...]
    """What usually lies behind it, the most frequent first."""
    remedies: tuple[str, ...]
    """What to do next, in the order in which to try it."""


_REPRO = "`torchsan repro RECORDING ID` cuts it out as a script that runs by itself: attach it to a bug report."
_WORK_AROUND = (
    "Until it is mended: switch the pass off, if `pass` names one that is a setting; or else keep the operator out of "
    "the compiled code with `torch.compiler.disable`."
)
_OWN_OPERATOR = "If the operator is yours, mend its kernel or its registration; `torchsan ops MODULE` checks it alone."

_EXPLANATIONS: dict[str, Explanation] = {
    "wrong-values": Explanation(
        "Compiled code computes other numbers than the program does, by more than rounding explains.",
        (
            "a kernel that Inductor generated wrongly: a lowering, an index, a mask, a reduction",
            "a decomposition or graph pass that does not mean what it replaces; `stage` and `pass` name it",
            "a custom operator, pass or backend of your own",
            "stage `eager`: the operator itself is wrong in PyTorch, for instance for some strides",
        ),
        (
            "Read `stage`, `pass`, `kernel` and the source line: they say which step changed the values.",
            _REPRO,
            _WORK_AROUND,
        ),
    ),
    "precision-loss": Explanation(
        "The numbers are less precise than the dtype allows, as if computed in a narrower one; the evidence names it.",
        (
            "a kernel that keeps intermediate results in bfloat16, float16 or TF32",
            "a formula that cancels, such as a variance as E[x²] - E[x]²",
            "as a note: a difference that is too small to tell from rounding, or a choice that rounding decided",
        ),
        (
            "Decide whether the model can live with it: it is a warning, not an error, and a note needs nothing done.",
            "Look for what allows it: autocast, `torch.set_float32_matmul_precision`, `emulate_precision_casts`.",
        ),
    ),
    "non-finite": Explanation(
        "Compiled code gives NaN or infinity where the program does not, or the other way round.",
        ("an overflow in another order of operations", "a missing mask, or a maximum that is not subtracted"),
        ("See the first element and its inputs in the evidence.", _REPRO),
    ),
    "nondeterministic": Explanation(
        "The same launch on the same inputs gives other bits, where eager gives the same.",
        ("a race between threads", "atomic additions in varying order", "hardware that computes wrongly now and then"),
        (
            "A warning means that both results are right within rounding. Where the kernel adds atomically (the "
            "gradient of an embedding, `scatter_add`), threads add up in another order each time: that is a note, and "
            "nothing is wrong, unless you need the same bits in every run.",
            "Run again with one thread (`OMP_NUM_THREADS=1`): a race goes away, failing hardware does not.",
            "If it is always the same machine, have that machine tested.",
        ),
    ),
    "metadata-mismatch": Explanation(
        "The shape, dtype, strides or device of a result is not what the compiler was told.",
        (
            "a fake kernel (`register_fake`, a meta function) that does not describe what the real kernel returns",
            "a graph pass that changed an output",
        ),
        (_OWN_OPERATOR, "If `pass` names a pass, that pass changed it: report it, or mend it if it is yours."),
    ),
    "undeclared-mutation": Explanation(
        "An operator writes to an argument that its schema says it only reads.",
        ("`mutates_args` is incomplete", "the kernel works in place on what it was given"),
        ("Name the argument in `mutates_args`, or copy it first.", _OWN_OPERATOR),
    ),
    "undeclared-alias": Explanation(
        "A result shares memory with an argument, or with another result, and the schema does not say so.",
        ("the operator returns its argument or a view of it", "`contiguous()` or `to()` that had nothing to do"),
        ("Return a copy (`clone()`).", _OWN_OPERATOR),
    ),
    "out-of-bounds-write": Explanation(
        "A kernel writes outside of the buffer that it was given.",
        ("a missing or wrong mask at the end of a block", "an index that data decides", "wrong strides"),
        ("Do not trust anything the program computed after it.", _REPRO),
    ),
    "out-of-bounds-read": Explanation(
        "A kernel reads outside of a buffer: what it finds there is not part of its inputs.",
        ("a load without a mask", "wrong strides or sizes", "an index that data decides"),
        ("Add the mask or mend the index; the evidence has the first offset and the line of the load.",),
    ),
    "uninitialized-read": Explanation(
        "A result depends on memory that nothing has written to.",
        ("`empty` where `zeros` was meant", "an output that is not wholly written", "padding that takes part in a sum"),
        ("See which elements in the evidence, and which kernel should have written them.", _REPRO),
    ),
    "clobbered-buffer": Explanation(
        "A buffer was overwritten while something still needed its old contents.",
        ("memory reused too early", "a kernel that works in place on a buffer read again later"),
        ("The evidence names the writer and the reader.", _REPRO),
    ),
    "leaked-buffer": Explanation(
        "A buffer is kept alive although nothing can use it any more.",
        ("the wrapper does not release it", "something outside of the program holds a reference to it"),
        ("See which line allocated it, and what holds it.",),
    ),
    "early-free": Explanation(
        "A buffer was released, or handed out again, while it was still in use.",
        ("a wrong lifetime in the generated wrapper", "a view that outlives what it is a view of"),
        ("Do not trust what the program computed from it.", _REPRO),
    ),
    "unexpected-allocation": Explanation(
        "A compiled call allocates more memory than its plan says.",
        ("a library call with a workspace", "a fallback that copies its input because of its layout"),
        ("See the source line in the report, and `docs/how-to/my-compiled-model-uses-too-much-memory.md`.",),
    ),
    "reordered-effect": Explanation(
        "A read or write changed places with another one on the same memory, so that something sees other contents.",
        (
            "a pass that removed a copy, or made an operator work in place, too eagerly",
            "views with another dtype, or aliases that the compiler does not know of",
        ),
        ("The evidence names both statements and the pass.", "Add a `clone()` before the write to work around it."),
    ),
    "stale-cache": Explanation(
        "Compiled code that came from a cache computes something else than a fresh compile of the same program.",
        (
            "the cache was filled on another machine, with other CPU features, flags or versions",
            "a patched or damaged cache folder",
        ),
        (
            "Delete the entry that the evidence names, or the whole folder (`TORCHINDUCTOR_CACHE_DIR`).",
            "`torchsan cache PATH` looks at a whole folder.",
        ),
    ),
    "race": Explanation(
        "Two programs of a kernel touch the same element, one of them writes, and nothing orders them.",
        ("an addition that is not atomic", "blocks that overlap", "a write by all programs that one should do"),
        ("Use an atomic operation, or give each element to one program; the evidence names both accesses.",),
    ),
    "cheat": Explanation(
        "A kernel gives right results without doing the work, so that its results cannot be trusted elsewhere.",
        (
            "results kept from an earlier call",
            "an output that was left from before",
            "a constant, or only a part computed",
        ),
        ("See the evidence for what gave it away, and do not use the kernel.",),
    ),
}


def explanation(kind: str) -> Explanation | None:
    """Return what a kind of finding means, or None for a name that is no kind."""
    return _EXPLANATIONS.get(kind)


def explained_kinds() -> tuple[str, ...]:
    """Return the kinds that this torchsan reports, in the order of `records.Kind`."""
    return tuple(str(kind) for kind in Kind)


def plain_explanation(kind: str, found: Explanation) -> str:
    """Return an explanation as a terminal shows it, without the marks of Markdown."""
    return explanation_text(kind, found).removeprefix("## ").replace("`", "")


def explanation_text(kind: str, found: Explanation) -> str:
    """Return an explanation as Markdown."""
    causes = "\n".join(f"- {cause}" for cause in found.causes)
    remedies = "\n".join(f"{n}. {remedy}" for n, remedy in enumerate(found.remedies, start=1))
    return f"## `{kind}`\n\n{found.meaning}\n\nUsual causes:\n\n{causes}\n\nWhat to do:\n\n{remedies}\n"
