"""Attention with softmax over dim -2 is rewritten to scaled_dot_product_attention, which is over -1 (pytorch#195320 family)."""

import torch


def attention(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)).div(2.8284)
    return torch.matmul(scores.softmax(-2), v)


torch.manual_seed(0)
q, k, v = (torch.randn(4, 4, 4, 8) for _ in range(3))
with torch.no_grad():
    eager = attention(q, k, v)
    compiled = torch.compile(attention)(q, k, v)
print("largest difference", (eager - compiled).abs().max().item())
