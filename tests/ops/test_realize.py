from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, vmap

import torchsan
from torchsan.cli.values import watched_values
from torchsan.ops import probe, realize
from torchsan.recording import Reader
from torchsan.records import KernelKind, Watched
from torchsan.store import Store

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(2, 3),
    "transposed": lambda: torch.randn(3, 2).t(),
    "expanded": lambda: torch.randn(1, 3).expand(2, 3),
    "strided": lambda: torch.randn(4, 6)[::2, ::2],
    "empty": lambda: torch.randn(0, 3),
    "scalar": lambda: torch.randn(()),
    "integers": lambda: torch.arange(6).view(2, 3),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck of 2.15 asks for it
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_operators_keep_their_contract(layout: str) -> None:
    x = LAYOUTS[layout]()
    torch.library.opcheck(torch.ops.torchsan.realize.default, (x,))
    torch.library.opcheck(torch.ops.torchsan.probe.default, (x, "name"))
    if x.is_floating_point():
        torch.library.opcheck(torch.ops.torchsan.realize.default, (x.detach().requires_grad_(),))
        torch.library.opcheck(torch.ops.torchsan.probe.default, (x.detach().requires_grad_(), "name"))


def test_realize_is_one_copy_and_probe_nothing_at_all() -> None:
    x = torch.randn(3, requires_grad=True)
    y = realize(x)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()
    assert probe(x, "x") is x
    assert torchsan.realize is realize
    assert torchsan.probe is probe


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_without_data(where: str) -> None:
    if where == "meta":
        y = realize(torch.empty(2, 3, device="meta"))
        assert y.is_meta
    else:
        with FakeTensorMode():
            y = realize(torch.empty(2, 3))
        assert type(y).__name__ == "FakeTensor"
    assert y.shape == (2, 3)


@pytest.mark.parametrize("operator", [realize, lambda x: probe(x, "x")], ids=["realize", "probe"])
def test_transforms_see_through_it(
    operator: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    # The module; in the package its name stands for the function.
    monkeypatch.setattr(sys.modules["torchsan.ops.realize"], "_listener", lambda name, value: seen.append(name))

    def f(x: torch.Tensor) -> torch.Tensor:
        return operator(x.sin()).cos().sum()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().sum()

    x = torch.randn(4, 3)
    assert torch.equal(vmap(f)(x), vmap(plain)(x))
    assert torch.equal(vmap(f, in_dims=1)(x), vmap(plain, in_dims=1)(x))
    assert torch.equal(grad(f)(x), grad(plain)(x))
    assert torch.equal(vmap(grad(f))(x), vmap(grad(plain))(x))
    torch.testing.assert_close(jacrev(grad(f))(x), jacrev(grad(plain))(x))
    if operator is not realize:
        assert {"x", "x.grad"} <= set(seen)


def test_gradients_of_gradients() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: realize(x.sin()).cos(), (x,))
    assert torch.autograd.gradgradcheck(lambda x: realize(x.sin()).cos(), (x,))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both operators compiled, with sizes that change, forward and backward, under --watch save."""
    folder = tmp_path_factory.mktemp("ops") / "run"
    with torchsan.session(check="values", watch="save", out=folder) as run:
        f = torch.compile(lambda x: realize(x.sin()).cos())
        x = torch.randn(5, 3, requires_grad=True)
        torch.autograd.backward(f(x).sum())
        torch.testing.assert_close(x.grad, -x.sin().sin() * x.cos())

        g = torch.compile(lambda x: probe(x.exp(), "middle").neg(), dynamic=True)
        for n in (4, 6):
            y = torch.arange(float(n), requires_grad=True)
            torch.autograd.backward(g(y).sum())
            torch.testing.assert_close(y.grad, -y.exp())
    run.raise_if_findings()
    torch._dynamo.reset()
    return folder


def test_no_kernel_computes_across_it(recording: Path) -> None:
    forward, backward = Reader(recording).graphs()[:2]
    assert [k.kind for k in forward.kernels] == [KernelKind.FUSED, KernelKind.FALLBACK, KernelKind.FUSED]
    assert "sin" in forward.kernels[0].name
    assert "cos" in forward.kernels[2].name
    assert [k.kind for k in backward.kernels] == [KernelKind.FUSED, KernelKind.FALLBACK, KernelKind.FUSED]


def test_a_probe_is_found_by_its_name_with_its_gradient(recording: Path) -> None:
    reader = Reader(recording)
    probed: dict[tuple[str, int], Watched] = {
        (w.name, w.call): w for w in watched_values(reader) if w.kernel == "(probe)"
    }
    assert set(probed) == {("middle", 0), ("middle.grad", 0), ("middle", 1), ("middle.grad", 1)}
    with Store(reader.tensors) as store:
        for call, n in enumerate((4, 6)):
            value, gradient = (store.get(str(probed[name, call].stored)) for name in ("middle", "middle.grad"))
            torch.testing.assert_close(value, torch.arange(float(n)).exp())
            assert torch.equal(gradient, -torch.ones(n))


def test_outside_a_session_a_probe_compiles_to_nothing(recording: Path) -> None:
    # After `recording`: whatever the session left behind would show here.
    programs: list[str] = []
    f = torch.compile(lambda x: probe(x.sin(), "x").cos(), backend=lambda gm, _: programs.append(gm.code) or gm)  # type: ignore[func-returns-value]  # None, on purpose
    f(torch.randn(3))
    assert "probe" not in programs[0]
    torch._dynamo.reset()
