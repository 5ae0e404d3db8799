"""Statements that hurt compilers, each a template over the variables that there are. Importing it imports no torch.

A template is a line of Python in which `{t}` stands for a variable of floating point, `{u}` for another, `{i}` for one
of integers, `{b}` for one of truth values, `{x}` for any, `{n}` for a small number, `{d}` for a dimension and `{c}` for
a constant. A template that begins with `=` computes a new variable. Whether a line is valid for the variables that
were chosen is not known here: it is tried, on tensors without memory.
"""

from __future__ import annotations

PREAMBLE = """\
import torch
import torch.nn.functional as F


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp().clamp(max=4.0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.sigmoid()
"""

DTYPES = "float32 float32 float32 float64 bfloat16 float16 int64 int32 int8 uint8 bool".split()
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 67, 130)

POINTWISE = """
= {t} + {u}
= {t} * {u} - {c}
= {t} / ({u}.abs() + 1)
= torch.where({t} > {u}, {t}, {c})
= torch.maximum({t}, {u}).tanh()
= F.gelu({t})
= F.silu({t}) * {u}
= torch.clamp({t}, -1, {c})
= torch.copysign({t}, {u})
= torch.fmod({t}, {c})
= torch.remainder({t}, {u})
= torch.floor_divide({t}, {c})
= torch.round({t} * 8) / 8
= {t}.to(torch.bfloat16)
= {t}.to(torch.float16) * {c}
= ({t} * 20).to(torch.int8)
= ({t}.abs() * 20).to(torch.uint8)
= ({t} * 1000).to(torch.int64)
= {t}.double().sin().to({t}.dtype)
= torch.lerp({t}, {u}, 0.3)
= torch.addcmul({t}, {t}, {u}, value=0.5)
= torch.nan_to_num({t} / {u})
= torch.logaddexp({t}, {u})
= torch.hypot({t}, {u})
= torch.atan2({t}, {u})
= torch.sign({t}) * {t}.abs().sqrt()
= {t}.pow({n})
= {i} + {n}
= {i} * {i}
= {i} // {n}
= {i} % {n}
= {i} // -{n}
= {i} % -{n}
= {i} >> 1
= {i} << {n}
= {i} ^ {i}
= ~{i}
= -{i}
= {i}.abs()
= {i}.to(torch.float32) / {n}
= {i}.to(torch.uint8)
= {i}.to(torch.int8)
= {i}.bool()
= torch.where({b}, {x}, {x})
= {b} & ~{b}
= {b} + {i}
= {t} > {c}
= {i} == {n}
= torch.isfinite({t})
= {t}.masked_fill({t} > {c}, {c})
= {t} * torch.arange({t}.shape[-1])
""".strip().splitlines()

VIEWS = """
= {x}.transpose(0, -1)
= {x}.mT
= {x}.permute(tuple(reversed(range({x}.dim()))))
= {x}[1:]
= {x}[..., ::2]
= {x}[..., 1:-1]
= {x}[..., -1]
= {x}.unsqueeze({d})
= {x}.reshape(-1)
= {x}.flatten(0, 1)
= {x}.flip({d})
= {x}.roll(1, {d})
= {x}.unfold(-1, 2, 1)
= {x}.narrow({d}, 0, 1)
= {x}.diagonal(0, 0, -1)
= {x}.expand(2, *{x}.shape)
= {x}.unsqueeze(0).expand(3, *([-1] * {x}.dim())).reshape(-1, *{x}.shape[1:])
= {x}.contiguous().view(torch.int32)
= {x}.contiguous().view(torch.uint8)
= torch.as_strided({x}.contiguous(), ({x}.numel() // 2, 2), (1, 1))
= {x}.split(2, {d})[0]
= {x}.chunk(2, -1)[-1]
= torch.cat([{x}, {x}], {d})
= torch.stack([{t}, {u}], -1)
= F.pad({t}, (1, 2))
= F.pad({t}, (-1, 1), value=2.0)
= torch.tril({t})
= {x}.repeat(*([2] * {x}.dim()))
= {x}.repeat_interleave(2, {d})
""".strip().splitlines()

REDUCTIONS = """
= {t}.sum({d})
= {t}.mean(-1, keepdim=True)
= {t}.sum()
= {x}.amax({d})
= {x}.amin(-1)
= {i}.sum({d})
= {b}.any({d})
= {b}.all(-1, keepdim=True)
= {x}.argmax({d})
= {x}.argmin(-1)
= {t}.var({d}, correction=0)
= {t}.std(-1, keepdim=True)
= {t}.softmax({d})
= {t}.log_softmax(-1)
= {t}.logsumexp({d})
= {t}.cumsum({d})
= {i}.cumsum(-1)
= {t}.cumprod(-1)
= {t}.norm(dim={d})
= {t}.prod(-1)
= {i}.prod({d})
= {t}.sum(-1) + {u}.amax(-1)
= F.layer_norm({t}, {t}.shape[-1:])
= F.normalize({t}, dim={d})
= {x}.sort(-1).values
= {t}.topk(1, {d}).values
= {x}.count_nonzero({d})
= torch.cummax({t}, -1).values
""".strip().splitlines()

INDEXING = """
= {x}[torch.arange({x}.shape[0]).flip(0)]
= {x}.index_select({d}, torch.tensor([0, 0]))
= {x}.gather(-1, torch.zeros_like({x}, dtype=torch.int64))
= torch.zeros_like({t}).scatter(-1, torch.zeros_like({t}, dtype=torch.int64), {t})
= torch.zeros_like({t}).scatter_add(0, torch.arange({t}.numel()).view({t}.shape) % {t}.shape[0], {t})
= torch.zeros_like({t}).index_add(0, torch.arange({t}.shape[0]) // 2, {t})
= {t}.index_put((torch.tensor([0]),), torch.tensor({c}, dtype={t}.dtype))
= {t}.index_put((torch.tensor([0, 0]),), {t}[:1], accumulate=True)
= {t}.scatter_reduce(0, torch.zeros_like({t}, dtype=torch.int64), {u}, "amax")
= torch.slice_scatter({t}, {u}[:1], 0, 0, 1)
= torch.select_scatter({t}, {u}[0], 0, -1)
= torch.diagonal_scatter({t}, torch.ones_like({t}.diagonal()))
= torch.as_strided_scatter({t}, {u}.reshape(-1)[:1], (1,), (1,))
= {x}.take_along_dim({x}.argsort(-1), -1)
= torch.bucketize({t}, torch.tensor([-1.0, 0.0, 0.5]))
= F.embedding(torch.arange(5) % {t}.shape[0], {t})
= F.one_hot({b}.long(), 2)
""".strip().splitlines()

WRITES = """
{t}.add_({u})
{t}.mul_({c})
{x}[0] = {n}
{x}[..., ::2] = {x}[..., 1::2]
{x}[1:] = {x}[:-1].clone()
{x}[..., -1].zero_()
{x}.transpose(0, -1)[0] = {n}
{x}.view(-1)[::3] = {n}
{x}.unsqueeze(0)[0].add_({n})
{x}.diagonal().fill_({n})
{t}.copy_({u})
{t}.clamp_(min=0)
{t}[{b}] = {c}
{t}.masked_fill_({b}, {c})
{t}.scatter_(-1, torch.zeros_like({t}, dtype=torch.int64), {c})
{t}.index_add_(0, torch.zeros({t}.shape[0], dtype=torch.int64), {u})
{t}.index_put_((torch.tensor([0, 0]),), {t}[:1].clone(), accumulate=True)
{t}.add_({t}.flip(0))
{x}.swapaxes(0, -1).mul_(2)
{i}.bitwise_not_()
{x}.contiguous().view(torch.uint8).zero_()
{t}.div_({u}.abs().add(1))
{t}.sub_({t}.mean())
""".strip().splitlines()

OTHER = """
= {t} @ {u}
= {t} @ {u}.mT
= torch.einsum("...i,...i->...", {t}, {u})
= torch.outer({t}.reshape(-1), {u}.reshape(-1)[:3])
= F.scaled_dot_product_attention({t}, {u}, {t})
= torch.baddbmm({t}, {t}, {u})
= F.avg_pool1d({t}, 2)
= F.max_pool2d({t}, 2)
= F.interpolate({t}[None], scale_factor=2.0)
= F.conv1d({t}[None], torch.ones(2, {t}.shape[0], 3, dtype={t}.dtype), padding=1)
= F.linear({t}, torch.ones(3, {t}.shape[-1], dtype={t}.dtype))
= F.dropout({t}, 0.5)
= torch.rand_like({t}) + {t}
= torch.randint_like({i}, 0, 5)
= torch.randn({t}.shape[-1]) * {t}
= torch.bernoulli(torch.sigmoid({t}))
= Scaled.apply({t})
= torch.utils.checkpoint.checkpoint(lambda y: y.sin().exp(), {t}, use_reentrant=False)
= {t} if {t}.shape[0] > 6 else {t} * 2
= {t}.detach() * {u}
= torch.cond({t}.shape[0] > 4, lambda y: y.sin(), lambda y: y.cos(), ({t},))
= F.cross_entropy({t}.float(), torch.zeros({t}.shape[0], dtype=torch.int64))
= F.batch_norm({t}, torch.zeros({t}.shape[1]), torch.ones({t}.shape[1]), training=True)
= F.group_norm({t}, 1)
with torch.autocast("cpu", torch.bfloat16): {t} = {t} @ {t}.mT
for _ in range(3): {t} = {t} * 0.5 + {u}
torch._dynamo.graph_break()
with torch.no_grad(): {t} = {t} + {u}
""".strip().splitlines()

WEIGHTED = ((POINTWISE, 5), (VIEWS, 5), (REDUCTIONS, 4), (INDEXING, 3), (WRITES, 5), (OTHER, 3))
"""Families of templates, and how often one of each comes."""

SETTINGS: tuple[tuple[str, object], ...] = (
    ("max_fusion_size", 2),
    ("epilogue_fusion", False),
    ("realize_reads_threshold", 1),
    ("realize_opcount_threshold", 1),
    ("inplace_buffers", False),
    ("allow_buffer_reuse", False),
    ("pattern_matcher", False),
    ("permute_fusion", True),
    ("aggressive_fusion", True),
    ("cpp.simdlen", 0),
    ("cpp.simdlen", 256),
    ("cpp.threads", 1),
    ("cpp.min_chunk_size", 1),
    ("cpp.enable_loop_tail_vec", False),
    ("cpp.max_horizontal_fusion_size", 1),
    ("cpp.fallback_scatter_reduce_sum", False),
    ("split_reductions", False),
    ("max_autotune_gemm", True),
    ("emulate_precision_casts", True),
    ("reorder_for_locality", False),
)
"""Settings of Inductor, one of which is switched now and then."""
