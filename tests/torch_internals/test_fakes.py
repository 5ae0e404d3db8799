"""Operators on tensors without data, and what that leaves behind in the process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
import torch
from torchsan.torch_internals.fakes import run_fake

run_fake(torch.ops.aten.add.Tensor, (torch.ones(2), 1), {})
torch.ones(2, requires_grad=True).sum().backward()
child = os.fork()
if child == 0:
    torch.ones(2, requires_grad=True).sum().backward()
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_the_program_can_still_run_a_backward() -> None:
    """On a PyTorch for CUDA without a GPU it cannot once autograd has seen the devices that fake tensors pretend."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
