"""How a script shows its finding with nothing but PyTorch: each kind of finding has its own last lines."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.checks import REGISTRY, Reproduction
from torchsan.records import Exhibit, Finding, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The last lines of a script, and the lines that import what they need."""

    lines: list[str]
    froms: frozenset[str] = frozenset()


_SILENT = (Kind.LEAKED_BUFFER, Kind.EARLY_FREE, Kind.UNEXPECTED_ALLOCATION)


def shows_by_itself(finding: Finding) -> bool:
    """Whether PyTorch alone can tell; else the script has to be run under torchsan."""
    return finding.kind not in _SILENT


def ending(exhibit: Exhibit, finding: Finding) -> Ending:
    """Return the ending for a finding."""
    if REGISTRY[finding.check].reproduction is Reproduction.OPERATOR:
        match finding.kind:
            case Kind.UNDECLARED_MUTATION:
                return _mutation()
            case Kind.UNDECLARED_ALIAS:
                return _alias()
            case _:
                return _metadata(str(finding.evidence.get("against")))
    match finding.kind:
        case Kind.OUT_OF_BOUNDS_WRITE:
            return _out_of_bounds(exhibit)
        case Kind.UNINITIALIZED_READ:
            return _uninitialized(exhibit)
        case Kind.UNDECLARED_ALIAS:
            return _compiled_alias(exhibit)
        case kind if kind in _SILENT:
            return Ending(lines=[*_backend(exhibit), f"{_compiled(exhibit)}(*inputs())"])
        case _:
            return _comparison(exhibit)


def _backend(exhibit: Exhibit) -> list[str]:
    return [f'backend = sys.argv[1] if len(sys.argv) > 1 else "{exhibit.backend}"']


def _compiled(exhibit: Exhibit) -> str:
    return f"torch.compile(f, backend=backend{', dynamic=True' if exhibit.dynamic else ''})"


def _earlier(exhibit: Exhibit) -> list[str]:
    n = len(exhibit.earlier)
    return [f"compiled(*earlier{i if n > 1 else ''}())" for i in range(n)]


def _comparison(exhibit: Exhibit) -> Ending:
    lines = []
    mutates = any(n.op.split(".")[1].endswith("_") for n in exhibit.nodes if n.op != "getitem")
    function = "f"
    if exhibit.backward or mutates:
        lines += ["def run(fn):", "    args = inputs()", "    results = fn(*args)"]
        if exhibit.backward:
            lines += [
                "    outputs = [o for o in torch.utils._pytree.tree_leaves(results) if o.requires_grad]",
                "    leaves = [a for a in args if a.requires_grad]",
                "    loss = sum(o.square().sum() for o in outputs)",
                "    results = [results, torch.autograd.grad(loss, leaves, allow_unused=True)]",
            ]
        lines += ["    return [results, args]" if mutates else "    return results", "", ""]
        function = "run"
    lines += _backend(exhibit)
    lines.append(f"compiled = {_compiled(exhibit)}")
    lines += _earlier(exhibit)
    call = "run({})" if function == "run" else "{}(*inputs())"
    lines += [
        f"expected = {call.format('f')}",
        f"actual = {call.format('compiled')}",
        'print("eager   ", expected)',
        'print("compiled", actual)',
        "torch.testing.assert_close(actual, expected, equal_nan=True)",
    ]
    return Ending(lines=lines)


def _out_of_bounds(exhibit: Exhibit) -> Ending:
    return Ending(
        lines=[
            "buffers = []",
            "",
            "",
            "def padded(size, stride, dtype):  # what Inductor allocates with, and 64 elements on either side",
            "    n = 1 + sum((a - 1) * b for a, b in zip(size, stride))",
            "    whole = torch.full((n + 128,), 77, dtype=dtype)",
            "    buffers.append(whole)",
            "    return whole[64 : 64 + n].as_strided(size, stride)",
            "",
            "",
            *_backend(exhibit),
            "torch._C._dynamo.guards._empty_strided_cpu = padded",
            f"{_compiled(exhibit)}(*inputs())",
            "outside = sum(int((b[:64] != 77).sum() + (b[-64:] != 77).sum()) for b in buffers)",
            'print("elements written outside of their buffers:", outside)',
            "assert not outside",
        ],
        froms=frozenset(["import torch._dynamo"]),
    )


def _uninitialized(exhibit: Exhibit) -> Ending:
    return Ending(
        lines=[
            *_backend(exhibit),
            "results = []",
            "for value in (0, 77):  # what fresh memory holds must not matter",
            "    fill = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype).fill_(value)",
            "    torch._C._dynamo.guards._empty_strided_cpu = fill",
            "    torch._dynamo.reset()",
            f"    results.append({_compiled(exhibit)}(*inputs()))",
            "    print(results[-1])",
            "torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)",
        ],
        froms=frozenset(["import torch._dynamo"]),
    )


def _metadata(against: str) -> Ending:
    """`against` is what the metadata check compared with: the meta kernel, or the fake one, of sizes or of symbols."""
    froms = {"from torch._subclasses.fake_tensor import FakeTensorMode"}
    mode = "FakeTensorMode()"
    if against == "symbolic":
        froms.add("from torch.fx.experimental.symbolic_shapes import ShapeEnv")
        mode = "FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)"
    believed = [
        f"mode = {mode}",
        "args = [mode.from_tensor(x) for x in inputs()]",
        "with mode:",
        "    fake = facts(args)",
    ]
    if against == "meta":
        froms, believed = set(), ['fake = facts([x.to("meta") for x in inputs()])']
    device = "" if against == "meta" else "t.device, "
    return Ending(
        lines=[
            "def facts(args):",
            "    results = torch.utils._pytree.tree_leaves(f(*args))",
            "    given = [a.untyped_storage()._cdata for a in args]",
            "    return [t if t is None else fact(t, given) for t in results]",
            "",
            "",
            "def fact(t, given):",
            f"    whole = ({device}t.dtype, t.layout, t.requires_grad, *map(int, t.shape))",
            "    if t.layout is not torch.strided:",
            "        return whole",
            "    return (*whole, *map(int, t.stride()), int(t.storage_offset()), t.untyped_storage()._cdata in given)",
            "",
            "",
            "real = facts(inputs())",
            *believed,
            'print("real", real)',
            'print("fake", fake)',
            "assert real == fake",
        ],
        froms=frozenset(froms),
    )


def _mutation() -> Ending:
    return Ending(
        lines=[
            "args = inputs()",
            "before = [a.clone() for a in args]",
            "f(*args)",
            'print("before", before)',
            'print("after ", args)',
            "for a, b in zip(before, args):",
            '    assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), "an argument was changed"',
        ]
    )


def _alias() -> Ending:
    return Ending(
        lines=[
            "args = inputs()",
            "results = torch.utils._pytree.tree_leaves(f(*args))",
            "places = [t.untyped_storage().data_ptr() for t in [*args, *results]]",
            'print("memory of arguments and results:", places)',
            'assert len(set(places)) == len(places), "a result shares memory"',
        ]
    )


def _compiled_alias(exhibit: Exhibit) -> Ending:
    return Ending(
        lines=[
            "def shared(fn):",
            "    args = inputs()",
            "    tensors = [*args, *torch.utils._pytree.tree_leaves(fn(*args))]",
            "    places = [t.untyped_storage().data_ptr() for t in tensors]",
            "    return [places.index(p) for p in places]  # the first that has the same memory",
            "",
            "",
            *_backend(exhibit),
            "expected = shared(f)",
            f"actual = shared({_compiled(exhibit)})",
            'print("eager   ", expected)',
            'print("compiled", actual)',
            "assert actual == expected",
        ]
    )
