"""Does once what every first compile of a process does, so that a fork has it done already."""

from __future__ import annotations

__all__ = ["IMPORT_COMPILER", "warm_compiler"]

IMPORT_COMPILER = "import torch, torch._dynamo, torch._inductor.compile_fx"
"""For the text of a program that cannot import torchsan: what takes longest before its first compile."""


def warm_compiler() -> None:
    """Import Dynamo, AOTAutograd and Inductor, and compile a line, on this thread alone and leaving none behind.

    A forked child hangs in the first parallel loop if its parent has run one.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            torch.compile(lambda x: (x + 1).sum())(torch.ones(8))
    except Exception:  # noqa: BLE001  # no compiler here, or one that fails: the trials will say so
        return
    finally:
        torch._dynamo.reset()
        torch.set_num_threads(threads)
