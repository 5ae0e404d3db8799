"""Runs a package once, in a process of its own: a kernel that crashes takes this one down, and no other."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """The folder is the argument: `request.json`, a store with the inputs, and room for the outputs."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())

    import importlib

    import torch

    from torchsan.packages.inputs import read_leaves, write_leaves
    from torchsan.torch_internals.aoti import load_package
    from torchsan.torch_internals.trees import flatten, unflatten_call

    for module in request["loads"]:
        importlib.import_module(module)
    program = torch.export.load(request["program"])
    args, kwargs = unflatten_call(program, read_leaves(folder, "inputs"))
    package = load_package(request["package"])
    write_leaves(folder, "outputs", flatten(package(*args, **kwargs)))


if __name__ == "__main__":
    main()
