"""How a script shows its finding with nothing but PyTorch: each kind of finding has its own last lines.

Importing it imports no torch.
"""

from __future__ import annotations

from string import Template
from textwrap import dedent

from torchsan.checks import REGISTRY, Reproduction
from torchsan.records import Exhibit, Finding, Kind

_SILENT = frozenset([Kind.LEAKED_BUFFER, Kind.EARLY_FREE, Kind.UNEXPECTED_ALLOCATION])

# In the texts, $backend stands for the line that reads the backend from the command line, $compiled for the function
# `f` compiled with it. Imports go to the head of the script.
_SILENT_CALL = """
    $backend
    $compiled(*inputs())
"""
_OUT_OF_BOUNDS = """
    import torch._dynamo
    buffers = []


    def padded(size, stride, dtype):  # what Inductor allocates with, and 64 elements on either side
        n = 1 + sum((a - 1) * b for a, b in zip(size, stride))
        whole = torch.full((n + 128,), 77, dtype=dtype)
        buffers.append(whole)
        return whole[64 : 64 + n].as_strided(size, stride)


    $backend
    torch._C._dynamo.guards._empty_strided_cpu = padded
    $compiled(*inputs())
    outside = sum(int((b[:64] != 77).sum() + (b[-64:] != 77).sum()) for b in buffers)
    print("elements written outside of their buffers:", outside)
    assert not outside
"""
_UNINITIALIZED = """
    import torch._dynamo
    $backend
    results = []
    for value in (0, 77):  # what fresh memory holds must not matter
        fill = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype).fill_(value)
        torch._C._dynamo.guards._empty_strided_cpu = fill
        torch._dynamo.reset()
        results.append($compiled(*inputs()))
        print(results[-1])
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
"""
_COMPILED_ALIAS = """
    def shared(fn):
        args = inputs()
        tensors = [*args, *torch.utils._pytree.tree_leaves(fn(*args))]
        places = [t.untyped_storage().data_ptr() for t in tensors]
        return [places.index(p) for p in places]  # the first that has the same memory


    $backend
    expected = shared(f)
    actual = shared($compiled)
    print("eager   ", expected)
    print("compiled", actual)
    assert actual == expected
"""
_COMPILED = {
    Kind.OUT_OF_BOUNDS_WRITE: _OUT_OF_BOUNDS,
    Kind.UNINITIALIZED_READ: _UNINITIALIZED,
    Kind.UNDECLARED_ALIAS: _COMPILED_ALIAS,
} | dict.fromkeys(_SILENT, _SILENT_CALL)

_OPERATOR = {
    Kind.UNDECLARED_MUTATION: """
        args = inputs()
        before = [a.clone() for a in args]
        f(*args)
        print("before", before)
        print("after ", args)
        for a, b in zip(before, args):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), "an argument was changed"
    """,
    Kind.UNDECLARED_ALIAS: """
        args = inputs()
        results = torch.utils._pytree.tree_leaves(f(*args))
        places = [t.untyped_storage().data_ptr() for t in [*args, *results]]
        print("memory of arguments and results:", places)
        assert len(set(places)) == len(places), "a result shares memory"
    """,
}
# $fake stands for what computes `fake`, $device for what a fact says of the device.
_METADATA = """
    def facts(args):
        results = torch.utils._pytree.tree_leaves(f(*args))
        given = [a.untyped_storage()._cdata for a in args]
        return [t if t is None else fact(t, given) for t in results]


    def fact(t, given):
        whole = (${device}t.dtype, t.layout, t.requires_grad, *map(int, t.shape))
        if t.layout is not torch.strided:
            return whole
        return (*whole, *map(int, t.stride()), int(t.storage_offset()), t.untyped_storage()._cdata in given)


    real = facts(inputs())
    $fake
    print("real", real)
    print("fake", fake)
    assert real == fake
"""
_FAKE = """
    from torch._subclasses.fake_tensor import FakeTensorMode
    mode = FakeTensorMode()
    args = [mode.from_tensor(x) for x in inputs()]
    with mode:
        fake = facts(args)
"""
_SYMBOLIC = """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv""" + _FAKE.replace(
    "Mode()", "Mode(shape_env=ShapeEnv(), static_shapes=False)"
)
_META = """
    fake = facts([x.to("meta") for x in inputs()])
"""


def shows_by_itself(finding: Finding) -> bool:
    """Whether PyTorch alone can tell; else the script has to be run under torchsan."""
    return finding.kind not in _SILENT


def assertions(exhibit: Exhibit, finding: Finding) -> tuple[list[str], list[str]]:
    """Return the last lines of the script for a finding, and the lines that import what they need of PyTorch."""
    # What the metadata check compared with: the meta kernel, or the fake one, of sizes or of symbols.
    against = str(finding.evidence.get("against"))
    if REGISTRY[finding.check].reproduction is Reproduction.COMPILED:
        text = _COMPILED[finding.kind] if finding.kind in _COMPILED else _comparison(exhibit)
    else:
        text = _OPERATOR.get(finding.kind, _METADATA)
    filled = Template(_plain(text)).substitute(
        backend=f'backend = sys.argv[1] if len(sys.argv) > 1 else "{exhibit.backend}"',
        compiled=f"torch.compile(f, backend=backend{', dynamic=True' if exhibit.dynamic else ''})",
        fake=_plain({"meta": _META, "symbolic": _SYMBOLIC}.get(against, _FAKE)),
        device="" if against == "meta" else "t.device, ",
    )
    lines = filled.splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    return [line for line in lines if line not in imports], sorted(imports)


def _plain(text: str) -> str:
    return dedent(text).strip("\n")


def _comparison(exhibit: Exhibit) -> str:
    """The results of `f`, its gradients and what it changes, eager and compiled."""
    mutates = any(n.op.split(".")[1].endswith("_") for n in exhibit.nodes if n.op != "getitem")
    lines = []
    call = "{}(*inputs())"
    if exhibit.backward or mutates:
        call = "run({})"
        lines += ["def run(fn):", "    args = inputs()", "    results = fn(*args)"]
        if exhibit.backward:
            lines += [
                "    outputs = [o for o in torch.utils._pytree.tree_leaves(results) if o.requires_grad]",
                "    leaves = [a for a in args if a.requires_grad]",
                "    loss = sum(o.square().sum() for o in outputs)",
                "    results = [results, torch.autograd.grad(loss, leaves, allow_unused=True)]",
            ]
        lines += ["    return [results, args]" if mutates else "    return results", "", ""]
    several = len(exhibit.earlier) > 1
    return "\n".join(
        [
            *lines,
            "$backend",
            "compiled = $compiled",
            *(f"compiled(*earlier{i if several else ''}())" for i in range(len(exhibit.earlier))),
            f"expected = {call.format('f')}",
            f"actual = {call.format('compiled')}",
            'print("eager   ", expected)',
            'print("compiled", actual)',
            "torch.testing.assert_close(actual, expected, equal_nan=True)",
        ]
    )
