"""The first code in the process of a user's program: `python _child.py RECORDING PAGE SCRIPT|-m MODULE [ARGS…]`.

It is run as a file, so that nothing of the user's can stand in its way, and finds the torchsan it belongs to by its
own place rather than through `sys.path`, which belongs to the program.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # This file's folder, which Python put there; before any import could look into it.


def _main() -> None:
    import importlib.util
    import os

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # pathlib is not loaded yet
    init = os.path.join(package, "__init__.py")  # noqa: PTH118  # as above
    spec = importlib.util.spec_from_file_location("torchsan", init, submodule_search_locations=[package])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torchsan"] = module
    spec.loader.exec_module(module)

    from torchsan.cli.program import run_program

    run_program(sys.argv[1], int(sys.argv[2]), sys.argv[3:])


if __name__ == "__main__":
    _main()
