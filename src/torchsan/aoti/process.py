"""What a model is called with and returns, between two processes: tensors in a store, the rest as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchsan.errors import UsageError
from torchsan.store import Store

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def write_leaves(folder: Path, name: str, leaves: Sequence[Any]) -> None:
    """Keep `leaves` under a name. Raise UsageError for what is neither a tensor nor a plain value."""
    plain: list[Any] = []
    with Store(folder / "tensors") as store:
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                store.put(f"{name}/{i}", leaf.detach())
                plain.append({"tensor": f"{name}/{i}"})
            elif leaf is None or isinstance(leaf, bool | int | float | str):
                plain.append({"value": leaf})
            else:
                raise UsageError(f"cannot pass on a {type(leaf).__name__}", slug="usage")
    (folder / f"{name}.json").write_text(json.dumps(plain))


def read_leaves(folder: Path, name: str) -> list[Any]:
    """What `write_leaves` kept."""
    with Store(folder / "tensors") as store:
        return [
            store.get(leaf["tensor"]) if "tensor" in leaf else leaf["value"]
            for leaf in json.loads((folder / f"{name}.json").read_text())
        ]


def constants_of(program: ExportedProgram) -> dict[str, Any]:
    """The parameters, buffers and constants of an exported program, by their names."""
    named = {**program.state_dict, **program.constants}
    return {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in named.items()}


def main() -> None:
    """Run the package that `request.json` in the folder of the argument names, on the inputs there."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())

    import importlib

    import torch

    from torchsan.torch_internals.inductor import load_package
    from torchsan.torch_internals.operators import flatten, unflatten_call

    for module in request["loads"]:
        importlib.import_module(module)
    program = torch.export.load(request["program"])
    args, kwargs = unflatten_call(program, read_leaves(folder, "inputs"))
    package = load_package(request["package"])
    write_leaves(folder, "outputs", flatten(package(*args, **kwargs)))


if __name__ == "__main__":
    main()
