"""The script that a compile cache keeps beside its code is read as data."""

from __future__ import annotations

import pytest

from torchsan.graphs.data import Unrepresentable
from torchsan.graphs.runnable import read_runnable

SCRIPT = """
import os
os.environ['PATH'] = '/elsewhere'
import torch
torch._inductor.config.deterministic = False
torch._inductor.config.triton.store_cubin = True
torch._inductor.config.cpp.cxx = ('evil',)
torch._functorch.config.functionalize_rng_ops = False

class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, arg0_1, arg1_1):
        permute = torch.ops.aten.permute.default(arg0_1, [1, 0]);  arg0_1 = None
        var_mean = torch.ops.aten.var_mean.correction(permute, [0], correction = 0);  permute = None
        getitem = var_mean[0];  var_mean = None
        add = torch.ops.aten.add.Tensor(getitem, arg1_1);  getitem = arg1_1 = None
        return (add,)

def load_args(reader):
    buf0 = reader.storage(None, 256)
    reader.tensor(buf0, (4, 8), (1, 4), storage_offset=2, is_leaf=True)  # arg0_1
    buf1 = reader.storage(None, 16, dtype_hint=torch.bfloat16)
    reader.tensor(buf1, (4,), dtype=torch.bfloat16, is_leaf=True)  # arg1_1
load_args._version = 0
"""


def test_the_graph_its_inputs_and_its_settings_are_read() -> None:
    found = read_runnable(SCRIPT)
    assert [call.op for call in found.graph.calls] == [
        "aten.permute.default",
        "aten.var_mean.correction",
        "getitem",
        "aten.add.Tensor",
    ]
    assert [(g.name, g.dtype, g.size, g.stride, g.offset) for g in found.inputs] == [
        ("arg0_1", "float32", (4, 8), (1, 4), 2),
        ("arg1_1", "bfloat16", (4,), (1,), 0),
    ]
    assert found.settings == {"deterministic": False, "triton.store_cubin": True, "cpp.cxx": ("evil",)}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("buf0 = reader.storage(None, 256)", "reader.symint(16, expr='s6')", "an? .*symint"),
        ("None, 256", "None, 256, device=device(type='cuda', index=0)", "another device"),
        ("(4, 8), (1, 4)", "(s0, 8), (1, 4)", "no number"),
        ("torch.ops.aten.permute.default(arg0_1, [1, 0])", "self._tensor_constant0", "tensors of its own"),
        ("aten.permute.default", "mine.permute.default", "not PyTorch's own"),
        ("[1, 0]", "open('/etc/passwd')", "no plain value"),
        ("def load_args(reader)", "def other(reader)", "not known"),
        ("class Repro(", "class Repro((", "cannot be read"),
    ],
)
def test_what_is_more_than_a_graph_on_known_sizes_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(Unrepresentable, match=why):
        read_runnable(SCRIPT.replace(old, new))
