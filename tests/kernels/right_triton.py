"""Triton kernels that are right: those of the tutorials written anew, and the usual ones beside them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tests.kernels.samples import Collection, normal

RIGHT = Collection()
add = RIGHT.add


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@add(torch.add, lambda: (normal(1000), normal(1000, seed=1)))
def vector_add(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=256)
    return out


@add(torch.add, lambda: (normal(30, 50), normal(30, 50, seed=1)))
def matrix_add(x, y):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(out.numel(), 128),)](x, y, out, out.numel(), 128)
    return out


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(in_ptr + row * in_stride + cols, mask=cols < n_cols, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    tl.store(out_ptr + row * out_stride + cols, e / tl.sum(e, axis=0), mask=cols < n_cols)


def _softmax(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](y, x, x.stride(0), y.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
    return y


@add(lambda x: torch.softmax(x, -1), lambda: (normal(37, 100),))
def softmax(x):
    return _softmax(x)


@add(lambda x: torch.softmax(x, -1), lambda: (normal(16, 64, dtype=torch.float16),))
def softmax_half(x):
    rows, cols = x.shape
    y = torch.empty_like(x)
    softmax_in_float_kernel[(rows,)](y, x, x.stride(0), y.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
    return y


@triton.jit
def softmax_in_float_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(in_ptr + row * in_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + cols, (e / tl.sum(e, axis=0)).to(tl.float16), mask=cols < n_cols)


@triton.jit
def online_softmax_kernel(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    m = tl.full((), -float("inf"), tl.float32)
    s = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < n, other=-float("inf"))
        new = tl.maximum(m, tl.max(x, axis=0))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(x - new), axis=0)
        m = new
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < n)
        tl.store(y_ptr + row * stride + cols, tl.exp(x - m) / s, mask=cols < n)


@add(lambda x: torch.softmax(x, -1), lambda: (normal(9, 200),))
def online_softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    online_softmax_kernel[(x.shape[0],)](x, y, x.shape[1], x.stride(0), BLOCK=64)
    return y


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    pids_m, pids_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * pids_n
    first = (pid // in_group) * GROUP
    size = min(pids_m - first, GROUP)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    rm = (pid_m * BM + tl.arange(0, BM)) % M
    rn = (pid_n * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    a_ptrs = a_ptr + rm[:, None] * sam + rk[None, :] * sak
    b_ptrs = b_ptr + rk[:, None] * sbk + rn[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=rk[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    om = pid_m * BM + tl.arange(0, BM)
    on = pid_n * BN + tl.arange(0, BN)
    mask = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c_ptr + om[:, None] * scm + on[None, :] * scn, acc.to(c_ptr.dtype.element_ty), mask=mask)


def _matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)
    matmul_kernel[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=16, GROUP=4)
    return c


@add(torch.matmul, lambda: (normal(70, 50), normal(50, 40, seed=1)))
def matmul(a, b):
    return _matmul(a, b)


@add(torch.matmul, lambda: (normal(64, 48, dtype=torch.float16), normal(48, 32, dtype=torch.float16, seed=1)))
def matmul_half(a, b):
    return _matmul(a, b)


@add(torch.matmul, lambda: (normal(40, 48, dtype=torch.bfloat16), normal(48, 32, dtype=torch.bfloat16, seed=1)))
def matmul_bfloat16(a, b):
    return _matmul(a, b)


@triton.jit
def layer_norm_kernel(X, Y, W, B, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        acc += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(acc, axis=0) / N
    var = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        var += x * x
    rstd = 1 / tl.sqrt(tl.sum(var, axis=0) / N + eps)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + cols, (x - mean) * rstd * w + b, mask=mask)


def _layer_norm_reference(x, w, b, eps):
    return F.layer_norm(x, (x.shape[-1],), w, b, eps)


@add(_layer_norm_reference, lambda: (normal(20, 96), torch.ones(96), torch.zeros(96), 1e-5))
def layer_norm(x, w, b, eps):
    y = torch.empty_like(x)
    layer_norm_kernel[(x.shape[0],)](x, y, w, b, x.stride(0), x.shape[1], eps, BLOCK=64)
    return y


@add(
    _layer_norm_reference,
    lambda: (
        normal(20, 96, dtype=torch.float16),
        normal(96, dtype=torch.float16),
        normal(96, dtype=torch.float16),
        1e-5,
    ),
)
def layer_norm_half(x, w, b, eps):
    y = torch.empty_like(x)
    layer_norm_kernel[(x.shape[0],)](x, y, w, b, x.stride(0), x.shape[1], eps, BLOCK=128)
    return y


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    rrms = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    tl.store(y_ptr + row * n + cols, (x * rrms * w).to(y_ptr.dtype.element_ty), mask=mask)


def _rms_norm_reference(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


def _rms_norm(x, w):
    x = x.contiguous()
    y = torch.empty_like(x)
    rms_norm_kernel[(x.shape[0],)](x, w, y, x.shape[1], 1e-6, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@add(_rms_norm_reference, lambda: (normal(12, 80), normal(80, seed=3)))
def rms_norm(x, w):
    return _rms_norm(x, w)


@add(_rms_norm_reference, lambda: (normal(12, 80, dtype=torch.bfloat16), normal(80, seed=3, dtype=torch.bfloat16)))
def rms_norm_bfloat16(x, w):
    return _rms_norm(x, w)


@triton.jit
def dropout_kernel(x_ptr, keep_ptr, out_ptr, n, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.load(keep_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@add(lambda x, keep, p: torch.where(keep, x / (1 - p), 0.0), lambda: (normal(500), normal(500) > 0, 0.5))
def dropout_with_mask(x, keep, p):
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), 128),)](x, keep, out, x.numel(), p, BLOCK=128)
    return out


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.atomic_add(out_ptr + x, 1, mask=mask)


@add(lambda x: torch.bincount(x, minlength=16).to(torch.int32), lambda: (torch.arange(300) * 7 % 16,))
def histogram(x):
    out = torch.zeros(16, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def atomic_sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@add(torch.sum, lambda: (normal(2000),))
def atomic_sum(x):
    out = torch.zeros((), dtype=x.dtype)
    atomic_sum_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@triton.jit
def attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start, head = tl.program_id(0), tl.program_id(1)
    rows = start * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    base = head * n * D
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    m = tl.full([BM], -float("inf"), tl.float32)
    s = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for first in range(0, n, BN):
        cols = first + tl.arange(0, BN)
        k = tl.load(k_ptr + base + cols[:, None] * D + d[None, :], mask=cols[:, None] < n, other=0.0)
        v = tl.load(v_ptr + base + cols[:, None] * D + d[None, :], mask=cols[:, None] < n, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(cols[None, :] < n, scores, -float("inf"))
        new = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp(scores - new[:, None])
        alpha = tl.exp(m - new)
        s = s * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = new
    out = acc / s[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + d[None, :], out.to(o_ptr.dtype.element_ty), mask=rows[:, None] < n)


def _attention(q, k, v):
    heads, n, d = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o = torch.empty_like(q)
    attention_kernel[(triton.cdiv(n, 32), heads)](q, k, v, o, n, d**-0.5, D=d, BM=32, BN=32)
    return o


@add(F.scaled_dot_product_attention, lambda: (normal(2, 70, 16), normal(2, 70, 16, seed=1), normal(2, 70, 16, seed=2)))
def flash_attention(q, k, v):
    return _attention(q, k, v)


@add(
    F.scaled_dot_product_attention,
    lambda: tuple(normal(2, 50, 16, seed=s, dtype=torch.float16) for s in range(3)),
)
def flash_attention_half(q, k, v):
    return _attention(q, k, v)


@triton.jit
def cross_entropy_kernel(x_ptr, y_ptr, loss_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    label = tl.load(y_ptr + row)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    m = tl.max(x, axis=0)
    lse = m + tl.log(tl.sum(tl.exp(x - m), axis=0))
    tl.store(loss_ptr + row, lse - tl.load(x_ptr + row * n + label))


@add(lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda: (normal(24, 40), torch.arange(24) * 5 % 40))
def cross_entropy(x, y):
    x = x.contiguous()
    loss = torch.empty(x.shape[0])
    cross_entropy_kernel[(x.shape[0],)](x, y, loss, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return loss


@triton.jit
def transpose_kernel(x_ptr, y_ptr, m, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    mask = (i[:, None] < m) & (j[None, :] < n)
    x = tl.load(x_ptr + i[:, None] * n + j[None, :], mask=mask)
    tl.store(y_ptr + j[None, :] * m + i[:, None], x, mask=mask)


@add(lambda x: x.t().contiguous(), lambda: (normal(33, 50),))
def transpose(x):
    x = x.contiguous()
    y = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype)
    transpose_kernel[(triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))](x, y, *x.shape, B=16)
    return y


@triton.jit
def cumsum_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.store(y_ptr + row * n + cols, tl.cumsum(x, axis=0), mask=cols < n)


@add(lambda x: torch.cumsum(x, -1), lambda: (normal(7, 60),))
def cumsum(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cumsum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def argmax_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    tl.store(y_ptr + row, tl.argmax(x, axis=0))


@add(lambda x: torch.argmax(x, -1), lambda: (normal(11, 45),))
def argmax(x):
    x = x.contiguous()
    y = torch.empty(x.shape[0], dtype=torch.int64)
    argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


@triton.jit
def embedding_kernel(index_ptr, table_ptr, out_ptr, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + row)
    x = tl.load(table_ptr + index * d + cols, mask=cols < d)
    tl.store(out_ptr + row * d + cols, x, mask=cols < d)


@add(lambda i, t: F.embedding(i, t), lambda: (torch.arange(25) * 3 % 30, normal(30, 24)))
def embedding(index, table):
    table = table.contiguous()
    out = torch.empty(index.shape[0], table.shape[1], dtype=table.dtype)
    embedding_kernel[(index.shape[0],)](index, table, out, table.shape[1], BLOCK=triton.next_power_of_2(table.shape[1]))
    return out


@triton.jit
def swiglu_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    a = tl.load(a_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, (a * tl.sigmoid(a) * b).to(out_ptr.dtype.element_ty), mask=mask)


@add(lambda a, b: F.silu(a) * b, lambda: (normal(20, 30), normal(20, 30, seed=1)))
def swiglu(a, b):
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    swiglu_kernel[(triton.cdiv(a.numel(), 64),)](a, b, out, a.numel(), BLOCK=64)
    return out


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, 0.5 * x * (1 + tl.erf(x * 0.7071067811865476)), mask=mask)


@add(F.gelu, lambda: (normal(12, 40),))
def gelu(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


@triton.jit
def lock_sum_kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + offsets, mask=offsets < n, other=0.0), axis=0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr) + part)
    tl.atomic_xchg(lock_ptr, 0)


@add(torch.sum, lambda: (normal(700),))
def sum_under_a_lock(x):
    out, lock = torch.zeros((), dtype=x.dtype), torch.zeros((), dtype=torch.int32)
    lock_sum_kernel[(triton.cdiv(x.numel(), 128),)](x, out, lock, x.numel(), BLOCK=128)
    return out


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x * alpha, mask=offsets < n)


@add(lambda x, alpha: x * alpha, lambda: (normal(300), 0.3))
def autotuned_scale(x, alpha):
    x = x.contiguous()
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), alpha)
    return y


@triton.jit
def add_in_place_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@add(lambda x, y: x.add_(y), lambda: (normal(200), normal(200, seed=1)))
def add_in_place(x, y):
    add_in_place_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return x


@add(lambda x: torch.softmax(x, -1), lambda: (normal(8, 64),))
def picky_softmax(x):
    if x.shape[-1] & (x.shape[-1] - 1) or not x.is_contiguous() or not x.numel():
        raise ValueError("the number of columns has to be a power of two")
    return _softmax(x)
