"""Healthy programs, each a function that compiles something and runs it. Whatever torchsan calls an `error` in one is
a false alarm. They are chosen for what makes false alarms: noise, ties, infinities, randomness, mutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CLEAN: dict[str, Callable[[], Any]] = {}


def clean(program: Callable[[], Any]) -> Callable[[], Any]:
    CLEAN[program.__name__] = program
    return program


def train(model: nn.Module, *inputs: Tensor, steps: int = 2) -> None:
    compiled = torch.compile(model)
    for _ in range(steps):
        compiled(*inputs).square().mean().backward()


@clean
def layer_norm_whose_gradient_is_noise() -> None:
    # The gradient of a sum through LayerNorm is zero: everything that comes back is rounding.
    norm = torch.compile(nn.LayerNorm(64))
    x = torch.randn(32, 64, requires_grad=True)
    norm(x).sum().backward()


@clean
def softmax_with_minus_infinity() -> None:
    @torch.compile
    def masked(x: Tensor) -> Tensor:
        hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
        return x.masked_fill(hidden, float("-inf")).softmax(-1)

    masked(torch.randn(4, 16, 16))


@clean
def softmax_of_rows_that_are_all_hidden() -> None:
    @torch.compile
    def masked(x: Tensor) -> Tensor:
        return x.masked_fill(torch.arange(8)[:, None] < 2, float("-inf")).softmax(-1)

    masked(torch.randn(8, 8))


@clean
def dropout_in_training() -> None:
    train(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4)), torch.randn(8, 16))


@clean
def random_numbers_of_every_kind() -> None:
    @torch.compile
    def draw(x: Tensor) -> Tensor:
        return torch.rand_like(x) + torch.randn(x.shape) * torch.randint(0, 10, x.shape) + torch.bernoulli(x.sigmoid())

    draw(torch.randn(64, 64))


@clean
def batch_norm_in_training() -> None:
    train(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(4, 3, 8, 8))


@clean
def batch_norm_in_inference() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU()).eval()
    with torch.no_grad():
        torch.compile(model)(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))


@clean
def autocast_to_bfloat16() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(16, 32)).float().square().mean()
    loss.backward()


@clean
def bfloat16_through_and_through() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, 8)).bfloat16()
    train(model, torch.randn(16, 32).bfloat16())


@clean
def float16_near_its_limit() -> None:
    torch.compile(lambda x: (x * 1000).exp().log() + x.square())(torch.linspace(-300, 300, 256).half())


@clean
def ties_in_sorting_and_maxima() -> None:
    @torch.compile
    def ties(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(-1), x.argmin(0), *x.max(-1), *x.sort(dim=-1, stable=True), *x.topk(3, -1)

    ties(torch.randint(0, 3, (16, 32)).float())


@clean
def floor_and_round_at_the_edge() -> None:
    torch.compile(lambda x: (x * 10 / 3 * 0.3).floor() + (x * 0.1 * 10).round())(torch.arange(1000).float())


@clean
def masks_that_hang_on_the_last_bit() -> None:
    @torch.compile
    def mask(x: Tensor) -> Tensor:
        y = (x / 3) * 3
        return torch.where(y == x, y, -y) + (y > x).float()

    mask(torch.randn(4096))


@clean
def casts_of_floats_out_of_range() -> None:
    x = torch.tensor([1e20, -1e20, float("nan"), float("inf"), -1.5, 300.0, 3.99] * 8)
    torch.compile(lambda x: (x.to(torch.int32), x.to(torch.uint8), x.to(torch.int64)))(x)


@clean
def an_ill_conditioned_solve() -> None:
    hilbert = 1 / (torch.arange(8)[:, None] + torch.arange(8)[None, :] + 1).float()
    torch.compile(lambda a, b: torch.linalg.solve(a * 1.0, b) + 1)(hilbert, torch.ones(8))


@clean
def the_condition_of_a_singular_matrix() -> None:
    torch.compile(lambda a: torch.linalg.cond(a * 2))(torch.ones(4, 4))


@clean
def eigenvalues_and_singular_values() -> None:
    @torch.compile
    def decompose(a: Tensor) -> tuple[Tensor, ...]:
        return torch.linalg.eigvalsh(a @ a.T), torch.linalg.svdvals(a), torch.linalg.det(a)

    decompose(torch.randn(6, 6))


@clean
def three_steps_of_adam() -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        step()


@clean
def sgd_with_momentum_and_clipping() -> None:
    model = nn.Linear(16, 16)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(torch.randn(4, 16)).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@clean
def activation_checkpointing() -> None:
    layer = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

    @torch.compile
    def run(x: Tensor) -> Any:
        return checkpoint(layer, x, use_reentrant=False)

    run(torch.randn(8, 16, requires_grad=True)).sum().backward()


@clean
def fourier_transform() -> None:
    torch.compile(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2) + x)(torch.randn(4, 64))


@clean
def complex_arithmetic() -> None:
    z = torch.randn(64, dtype=torch.complex64)
    torch.compile(lambda z: (z * z.conj() + z.exp() / 3).abs() + z.real)(z)


@clean
def vmapped_function() -> None:
    @torch.compile
    def run(x: Tensor, w: Tensor) -> Any:
        return torch.vmap(lambda row: (w @ row).tanh().sum())(x)

    run(torch.randn(8, 4), torch.randn(3, 4))


@clean
def per_sample_gradients() -> None:
    w = torch.randn(4)

    @torch.compile
    def run(x: Tensor) -> Any:
        return torch.vmap(torch.func.grad(lambda row: (w * row).sin().sum()))(x)

    run(torch.randn(8, 4))


@clean
def inputs_mutated_in_place() -> None:
    @torch.compile
    def update(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y)
        y[1:3] = x[1:3]
        return x + y

    update(torch.randn(8), torch.randn(8))


@clean
def scatter_with_duplicates() -> None:
    @torch.compile
    def scatter(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        zeros = torch.zeros(8, 4)
        return (
            zeros.index_add(0, i, x),
            zeros.scatter_reduce(0, i[:, None].expand(-1, 4), x, "amax"),
            zeros.index_put((i,), x),
        )

    scatter(torch.randn(32, 4), torch.arange(32) % 8)


@clean
def embedding_and_cross_entropy() -> None:
    embedding = nn.Embedding(50, 16)
    head = nn.Linear(16, 50)

    @torch.compile
    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(head(embedding(tokens)).flatten(0, 1), tokens.flatten(), ignore_index=3)

    loss(torch.randint(0, 50, (4, 12))).backward()


@clean
def recurrent_network() -> None:
    cell = nn.LSTMCell(8, 16)

    @torch.compile
    def run(steps: Tensor) -> Tensor:
        h = c = torch.zeros(2, 16)
        for x in steps:
            h, c = cell(x, (h, c))
        return h

    run(torch.randn(5, 2, 8)).sum().backward()


@clean
def attention() -> None:
    @torch.compile
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    attend(q, k, v).sum().backward()


@clean
def attention_by_hand() -> None:
    @torch.compile
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v

    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    attend(q, k, v).square().sum().backward()


@clean
def long_sums() -> None:
    @torch.compile
    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.mean(), x.var(), x.std(0), x.norm(), x.cumsum(-1), x.logsumexp(-1), x.square().sum(0)

    sums(torch.randn(64, 4096) + 1)
    sums(torch.linspace(-1, 1, 64 * 4096).view(64, 4096))


@clean
def products_and_powers() -> None:
    torch.compile(lambda x: (x.prod(-1), x.cumprod(-1), x.pow(7), x.abs().pow(0.3), 2.0**x))(torch.rand(16, 20) + 0.5)


@clean
def cancellation() -> None:
    torch.compile(lambda x: ((x + 1e6) - 1e6, (1 - x.cos()) / x.square(), (x + 1).log() - x))(torch.rand(1000) * 1e-3)


@clean
def special_functions() -> None:
    @torch.compile
    def special(x: Tensor) -> tuple[Tensor, ...]:
        return x.erf(), x.lgamma(), x.digamma(), x.expm1(), x.log1p(), x.erfinv(), torch.special.i0(x), torch.sinc(x)

    special(torch.rand(512) * 0.98 + 0.01)


@clean
def division_by_zero_and_nan() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf")] * 6)
    torch.compile(lambda x: (1 / x, x / x, x.sqrt(), x.log(), x.nan_to_num(), x.relu(), x.clamp(-1, 1), x.sign()))(x)


@clean
def integers_of_all_widths() -> None:
    @torch.compile
    def mix(x: Tensor) -> tuple[Tensor, ...]:
        return x * 3 + 1, x // 3, x % 5, x.sum(-1), x.amax(-1), x.float().mean(-1), x & 3, x.cumsum(-1)

    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        mix(torch.randint(0, 100, (8, 40)).to(dtype))


@clean
def booleans() -> None:
    torch.compile(lambda x, y: ((x & y) | ~x, x.any(-1), y.all(0), (x ^ y).sum(-1)))(
        torch.rand(8, 9) > 0.5, torch.rand(8, 9) > 0.5
    )


@clean
def empty_and_zero_dimensional() -> None:
    @torch.compile
    def edge(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return x.sin() + 1, x.sum(0), s * 2, torch.cat([x, x + 1]), s.expand(3) + 1

    edge(torch.empty(0, 4), torch.tensor(3.0))


@clean
def strides_of_every_kind() -> None:
    @torch.compile
    def strided(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x.t().contiguous() * 2, x.flip(0).cos(), x[::2, 1::2].sin()

    strided(torch.randn(16, 12).t())
    strided(torch.randn(1, 12).expand(16, 12))
    strided(torch.randn(40).as_strided((8, 6), (4, 2)))


@clean
def dynamic_shapes() -> None:
    compiled = torch.compile(lambda x: F.pad(x.softmax(-1), (1, 2)).sum(0) * x.shape[0], dynamic=True)
    for n in (3, 7, 16):
        compiled(torch.randn(n, n + 1))


@clean
def jagged_tensors() -> None:
    rows = [torch.randn(n, 8) for n in (3, 5, 2)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    layer = nn.Linear(8, 8)

    def run(x: Tensor) -> Tensor:
        return torch.relu(layer(x) * 2)

    torch.compile(run)(x).values().sum().backward()


@clean
def graph_breaks() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x.sin()
        print(end="")
        return (y * 2 if y.sum().item() > 0 else y - 1).cos()

    torch.compile(broken)(torch.randn(16))


@clean
def gradients_through_two_graphs() -> None:
    # The first graph returns the scale twice, as it is and broadcast: one gradient comes back for both.
    weight, scale = torch.randn(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)

    @torch.compile
    def loss(x: Tensor, action: Tensor) -> Any:
        policy = torch.distributions.Normal(x @ weight, scale.expand(len(x), 1).exp())
        likelihood = policy.log_prob(action).sum()
        torch._dynamo.graph_break()
        return likelihood - 0.5 * policy.entropy().mean()

    loss(torch.randn(8, 4), torch.randn(8, 1)).backward()


@clean
def control_flow() -> None:
    @torch.compile
    def run(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,)) + 1

    run(torch.ones(8))
    run(-torch.ones(8))


@clean
def pooling_and_interpolation() -> None:
    @torch.compile
    def shrink(x: Tensor) -> tuple[Tensor, ...]:
        up = F.interpolate(x, scale_factor=1.5, mode="bilinear"), F.interpolate(x, size=(11, 7), mode="nearest")
        return F.max_pool2d(x, 2), F.avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, 3), *up, F.pixel_shuffle(x, 2)

    shrink(torch.randn(2, 4, 12, 12))


@clean
def convolutions() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ConvTranspose1d(8, 4, 4, stride=2), nn.Conv1d(4, 4, 3, groups=4))
    train(model, torch.randn(2, 4, 20))


@clean
def gather_and_index() -> None:
    @torch.compile
    def pick(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (
            x[i],
            x.gather(1, i[:, None]),
            x.index_select(0, i),
            x.take_along_dim(i[:, None].expand(-1, 8), 0),
            x[:, None][..., i],
        )

    pick(torch.randn(8, 8), torch.tensor([0, -1 % 8, 3, 3, 7]))


@clean
def several_norms() -> None:
    model = nn.Sequential(nn.GroupNorm(2, 8), nn.InstanceNorm1d(8), nn.RMSNorm(16))
    train(model, torch.randn(4, 8, 16))


@clean
def losses() -> None:
    @torch.compile
    def total(x: Tensor, y: Tensor) -> Tensor:
        return (
            F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, y.sigmoid())
            + F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")
            + F.cosine_similarity(x, y).sum() + F.huber_loss(x, y)
        )  # fmt: skip

    total(torch.randn(8, 16, requires_grad=True), torch.randn(8, 16)).backward()


@clean
def double_precision() -> None:
    train(nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1)).double(), torch.randn(4, 8).double())


@clean
def large_and_small_magnitudes() -> None:
    x = torch.logspace(-38, 38, 256)
    torch.compile(lambda x: (x * 3, x.square().sqrt(), x / 7, x.log(), x * 1e-3 + 1e-40))(x)


@clean
def frozen_weights() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4)).eval()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        torch.compile(model)(torch.randn(8, 16))
