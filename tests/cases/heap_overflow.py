"""pytorch#196681: a tiled C++ kernel stores a full vector in its tail and writes past the end of its buffer. May abort the process."""

import torch
import torch.nn.functional as F


def padded_product(x):
    gelu = (x * 0.5) * (torch.erf(x * 0.7071067811865476) + 1)
    left = F.pad(gelu, (0, 0, 0, 0, 0, 58), value=0.5)
    right = F.pad(gelu.permute(3, 2, 1, 0), (0, 0, 0, 58), value=0.5)
    return torch.matmul(left, right)


torch.manual_seed(0)
x = torch.randn(1, 8, 66, 66).contiguous(memory_format=torch.channels_last)
print("largest difference", (padded_product(x) - torch.compile(padded_product)(x)).abs().max().item())
