"""Writes the wrappers that a PyTorch generates for some programs to `tests/data/wrappers/<release>` (`make goldens`).

`tests/torch_internals/wrapper/test_parse.py` parses those of every release, without PyTorch. Run it with the Python of
an environment of that release. Machine paths, and the kernels' C++ below their signatures, are left out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code  # what PyTorch's own tests look at wrappers with

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "wrappers"


def _training_step() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))
    torch.compile(model)(torch.randn(4, 8)).square().sum().backward()


def _convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    torch.compile(model)(torch.randn(2, 3, 12, 12)).sum().backward()


def _attention() -> None:
    q = torch.randn(2, 4, 16, 8)
    torch.compile(lambda q: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))(q)


def _cond() -> None:
    def either(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    torch.compile(either)(torch.ones(4, 4))


def _while_loop() -> None:
    def halve(x: Tensor) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda x: x.sum() > 1, lambda x: (x / 2,), (x,))  # type: ignore[no-untyped-call]  # as it is

    torch.compile(halve)(torch.ones(4, 4))


def _dynamic_sizes() -> None:
    torch.compile(lambda x: (x.exp() @ x.t()).softmax(-1), dynamic=True)(torch.randn(5, 7))


def _sizes_from_data() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        torch.compile(lambda x: (x.nonzero() * 2, torch.arange(8) + x.sum().int().item()))(torch.ones(4))


def _in_place() -> None:
    def update(table: Tensor, index: Tensor, x: Tensor) -> Tensor:
        table.index_put_((index,), x, accumulate=True)
        return torch.cat([table.sort(-1).values, x.cumsum(0)])

    torch.compile(update)(torch.zeros(4, 8), torch.tensor([0, 1]), torch.randn(2, 8))


def _random_numbers() -> None:
    torch.compile(lambda x: x + torch.rand_like(x) + torch.randn(4, 4))(torch.ones(4, 4))


PROGRAMS: dict[str, Callable[[], None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _training_step, _convolutions, _attention, _cond, _while_loop, _dynamic_sizes, _sizes_from_data, _in_place,
        _random_numbers,
    )
}  # fmt: skip


def cleaned(source: str) -> str:
    """Return a wrapper without what differs from one machine to the next, and without the bodies of kernels."""
    source = re.sub(r"^# (?:AOT ID|Topologically|Source node).*\n", "", source, flags=re.MULTILINE)
    source = re.sub(r"^\s*#   File .*\n", "", source, flags=re.MULTILINE)
    source = re.sub(r'(#include )[<"][^>"\n]*[>"]', r"\1<header>", source)
    return re.sub(r"(extern \"C\" .*?\))\n\{\n.*?\n\}\n('''\))", r"\1\n{\n}\n\2", source, flags=re.DOTALL)


def main() -> None:
    release = ".".join(torch.__version__.split(".")[:2])
    folder = FOLDER / release
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        torch._dynamo.reset()
        _, sources = run_and_get_code(program)
        for nth, source in enumerate(dict.fromkeys(sources)):
            (folder / f"{name}-{nth}.wrapper").write_text(cleaned(source), encoding="utf-8")
        print(release, name, len(sources), flush=True)


if __name__ == "__main__":
    main()
