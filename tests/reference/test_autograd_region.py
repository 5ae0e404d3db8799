"""What one call contributes to a backward."""

from __future__ import annotations

from typing import Any

import torch

from torchsan.reference.autograd_region import Region


def collected(inputs: dict[str, torch.Tensor], call: Any, backward: Any) -> tuple[Any, Any, Any]:
    region = Region(inputs)
    outputs = call()
    found: list[Any] = []
    assert region.follow(outputs, lambda *a: found.append(a)) is None
    region.forget()
    backward(outputs)
    (result,) = found
    return result  # type: ignore[no-any-return]  # three dictionaries and sets


def test_only_the_calls_own_part_of_a_gradient_is_collected() -> None:
    w = torch.ones(3, requires_grad=True)
    cotangents, gradients, partial = collected(
        {"w": w}, lambda: {"output 0": w * 2}, lambda o: (3 * o["output 0"].sum() + 5 * w.sum()).backward()
    )
    assert cotangents["output 0"].tolist() == [3, 3, 3]
    assert gradients["w"].tolist() == [6, 6, 6]
    assert not partial
    assert w.grad is not None
    assert w.grad.tolist() == [11, 11, 11]


def test_an_output_that_another_one_is_made_of_gets_what_came_from_outside() -> None:
    w = torch.ones(3, requires_grad=True)

    def call() -> dict[str, torch.Tensor]:
        hidden = w * 2
        return {"output 0": hidden, "output 1": hidden * 10}

    cotangents, gradients, _ = collected({"w": w}, call, lambda o: (o["output 0"] + o["output 1"]).sum().backward())
    assert cotangents["output 0"].tolist() == [1, 1, 1]
    assert gradients["w"].tolist() == [22, 22, 22]
    again = Region({"w": w}).differentiate(call(), cotangents)
    assert again["w"].tolist() == [22, 22, 22]


def test_an_input_of_which_a_path_was_not_differentiated_is_partial() -> None:
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    _, gradients, partial = collected(
        {"a": a, "b": b},
        lambda: {"output 0": (a * b).sin() + b.exp()},
        lambda o: torch.autograd.grad(o["output 0"].sum(), [a]),
    )
    assert (set(gradients), partial) == ({"a"}, {"b"})


def test_an_input_in_the_middle_of_a_graph_ends_the_region() -> None:
    w = torch.ones(3, requires_grad=True)
    hidden = w.exp()
    _, gradients, _ = collected(
        {"h": hidden}, lambda: {"output 0": hidden * 4}, lambda o: o["output 0"].sum().backward()
    )
    assert {n: g.tolist() for n, g in gradients.items()} == {"h": [4, 4, 4]}


def test_hooks_on_an_output_are_a_reason_not_to_look() -> None:
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    y.register_hook(lambda g: g)  # type: ignore[no-untyped-call]  # torch's own is untyped
    assert Region({"w": w}).follow({"output 0": y}, lambda *_: None) == "an output has a hook for its gradient"
