"""More healthy programs: architectures of `transformers`, optimizers, mixed precision, ill-conditioned linear algebra
and long reductions. Whatever torchsan calls an `error` or a `warning` in one is a false alarm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.models import SMALL

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}
GROUPED = SMALL | {"num_key_value_heads": 2, "pad_token_id": 0}
PICTURES = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {"image_size": 16, "patch_size": 4}
SEQUENCES: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma": ("ForCausalLM", GROUPED | {"head_dim": 8}),
    "Gemma2": ("ForCausalLM", GROUPED | {"head_dim": 8}),
    "Phi": ("ForCausalLM", SMALL),
    "Phi3": ("ForCausalLM", GROUPED),
    "Qwen3": ("ForCausalLM", GROUPED | {"head_dim": 8}),
    "StableLm": ("ForCausalLM", GROUPED),
    "Olmo": ("ForCausalLM", GROUPED),
    "Olmo2": ("ForCausalLM", GROUPED),
    "Cohere": ("ForCausalLM", GROUPED),
    "Starcoder2": ("ForCausalLM", GROUPED),
    "GPTNeoX": ("ForCausalLM", SMALL),
    "OPT": ("ForCausalLM", WIDTHS | {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 32}),
    "Bloom": ("ForCausalLM", {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}),
    "Roberta": ("ForMaskedLM", SMALL | {"max_position_embeddings": 32}),
    "Electra": ("ForMaskedLM", SMALL | {"embedding_size": 16}),
    "Albert": ("ForMaskedLM", SMALL | {"embedding_size": 16}),
    "DebertaV2": ("ForMaskedLM", SMALL),
    "ConvBert": ("ForMaskedLM", SMALL | {"embedding_size": 16}),
    "Bart": ("ForConditionalGeneration", SEQUENCES),
    "MBart": ("ForConditionalGeneration", SEQUENCES),
    "DeiT": ("ForImageClassification", PICTURES),
    "Dinov2": ("ForImageClassification", PICTURES),
    "Beit": ("ForImageClassification", PICTURES),
}
"""By the name of the architecture: the end of the model's name, and what makes its configuration small."""


def train_architecture(name: str) -> None:
    """Compile a small model of this architecture, and take its gradients once."""
    import transformers

    ending, small = ARCHITECTURES[name]
    config = getattr(transformers, f"{name}Config")(**small)
    model: Any = getattr(transformers, f"{name}{ending}")(config).train()
    if "image_size" in small:
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    else:
        tokens = torch.randint(3, 64, (2, 12))
        inputs = {"input_ids": tokens, "labels": tokens}
    torch.compile(model)(**inputs).loss.backward()


OPTIMIZERS = "SGD Adam AdamW Adagrad Adadelta Adamax NAdam RAdam RMSprop Rprop ASGD".split()


def step_optimizer(name: str) -> None:
    """Take two compiled steps."""
    parameters = [nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))]
    options: dict[str, Any] = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    optimizer = getattr(torch.optim, name)(parameters, lr=0.1, **options)
    step = torch.compile(optimizer.step)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step()


def _train(model: nn.Module, x: Tensor) -> None:
    torch.compile(model)(x).float().square().mean().backward()


def _autocast(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))

    @torch.compile
    def loss(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype):
            return model(x).log_softmax(-1).float().mean()

    loss(torch.randn(16, 32)).backward()


def _attention(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 16, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))(q, k, v).sum().backward()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.queries, self.keys, self.values = (nn.Linear(16, 16) for _ in range(3))
        self.after = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.queries, self.keys, self.values))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.after(x)


def train_checkpointed(backend: str = "inductor") -> None:
    """Dropout that is drawn in forward and again in backward, once in a checkpoint inside of another."""
    first, second = _Block(), _Block()

    def inner(x: Tensor) -> Any:
        return second(checkpoint(first, x, use_reentrant=False).sin())

    @torch.compile(backend=backend)
    def loss(x: Tensor) -> Any:
        return checkpoint(first, checkpoint(inner, x, use_reentrant=False), use_reentrant=False).square().mean()

    loss(torch.randn(2, 6, 16)).backward()


class _Transformed(nn.Module):
    """A spatial transformer as it begins: it samples just where the pixels are, so that rounding chooses neighbours."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(968, 6)
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        self.where = nn.Sequential(nn.Conv2d(1, 8, 7), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), last)
        self.what = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Any:
        grid = F.affine_grid(self.where(x).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.what(F.grid_sample(x, grid, align_corners=False))


def _normalised(dtype: torch.dtype) -> None:
    x = torch.randn(8, 48, dtype=dtype, requires_grad=True)
    torch.compile(lambda x: F.rms_norm(F.gelu(F.layer_norm(x, (48,))), (48,)) * 3)(x).float().square().sum().backward()


def _hilbert(n: int = 10) -> Tensor:
    i = torch.arange(n, dtype=torch.float32)
    return 1 / (i[:, None] + i[None] + 1)


def _apply(function: Callable[..., Any], *inputs: Tensor) -> None:
    torch.compile(function)(*inputs)


def _with_gradient(function: Callable[..., Any], *inputs: Tensor) -> None:
    leaves = [i.requires_grad_() for i in inputs]
    torch.compile(function)(*leaves).sum().backward()


def _nearly_singular() -> Tensor:
    a = torch.randn(8, 3)
    return a @ a.T + 1e-4 * torch.eye(8)


def _cancelling(n: int = 100_000) -> Tensor:
    x = torch.randn(n)
    return torch.cat([x, -x + 1e-4])[torch.randperm(2 * n)]


L = torch.linalg
OTHERS: dict[str, Callable[[], None]] = {
    "autocast_to_bfloat16": lambda: _autocast(torch.bfloat16),
    "autocast_to_float16": lambda: _autocast(torch.float16),
    "attention_in_bfloat16": lambda: _attention(torch.bfloat16),
    "attention_in_float16": lambda: _attention(torch.float16),
    "norms_in_bfloat16": lambda: _normalised(torch.bfloat16),
    "norms_in_float16": lambda: _normalised(torch.float16),
    "dropout_in_checkpoints": train_checkpointed,
    "a_spatial_transformer": lambda: _train(_Transformed(), torch.rand(8, 1, 28, 28)),
    "convolution_in_bfloat16": lambda: _train(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).bfloat16(),
        torch.randn(2, 3, 12, 12, dtype=torch.bfloat16),
    ),
    "scaled_loss_in_float16": lambda: _with_gradient(
        lambda x, w: F.cross_entropy((x @ w).float(), torch.arange(8)) * 1024,
        torch.randn(8, 16).half(),
        torch.randn(16, 8).half(),
    ),
    "solving_a_hilbert_matrix": lambda: _apply(L.solve, _hilbert(), torch.ones(10)),
    "inverting_a_hilbert_matrix": lambda: _apply(lambda a: L.inv(a) @ a, _hilbert(7)),
    "cholesky_of_a_nearly_singular_matrix": lambda: _apply(
        lambda a: L.cholesky(a).diagonal().log(), _nearly_singular()
    ),
    "gradient_through_cholesky": lambda: _with_gradient(
        lambda a: L.cholesky(a @ a.mT + 1e-3 * torch.eye(6)), torch.randn(6, 6)
    ),
    "singular_values_of_a_hilbert_matrix": lambda: _apply(lambda a: L.svdvals(a) * 2, _hilbert()),
    "eigenvalues_that_coincide": lambda: _apply(lambda a: L.eigvalsh(a).exp(), torch.eye(6) + 1e-6 * torch.ones(6, 6)),
    "least_squares_without_full_rank": lambda: _apply(lambda a, b: L.pinv(a) @ b, torch.ones(6, 4), torch.randn(6, 2)),
    "determinant_near_zero": lambda: _apply(lambda a: L.slogdet(a).logabsdet + L.det(a), _hilbert(6)),
    "orthogonalisation": lambda: _apply(lambda a: L.qr(a).R.abs().sum(), torch.randn(12, 5)),
    "exponential_of_a_matrix": lambda: _apply(lambda a: L.matrix_exp(a) - torch.eye(5), 1e-3 * torch.randn(5, 5)),
    "gradient_through_an_inverse": lambda: _with_gradient(lambda a: L.inv(a + 4 * torch.eye(6)), torch.randn(6, 6)),
    "a_long_sum_that_cancels": lambda: _apply(lambda x: x.sum(), _cancelling()),
    "a_long_mean_that_cancels": lambda: _apply(lambda x: x.mean() * 1e6, _cancelling()),
    "a_variance_far_from_zero": lambda: _apply(lambda x: x.var(-1), torch.randn(4, 50_000) + 1e3),
    "a_long_softmax": lambda: _with_gradient(lambda x: x.softmax(-1).square(), 8 * torch.randn(2, 50_000)),
    "a_long_logsumexp": lambda: _with_gradient(lambda x: x.logsumexp(-1), 5 * torch.randn(4, 50_000)),
    "a_long_running_sum": lambda: _apply(lambda x: x.cumsum(0) / 3, torch.randn(50_000)),
    "a_long_norm": lambda: _with_gradient(lambda x: x / x.norm(), torch.randn(100_000)),
    "a_long_product": lambda: _apply(lambda x: x.prod(), 1 + 1e-5 * torch.randn(50_000)),
    "a_long_inner_product": lambda: _apply(
        lambda x, y: (x * y).sum() - x @ y, torch.randn(50_000), torch.randn(50_000)
    ),
    "a_large_vocabulary": lambda: _with_gradient(lambda x: F.cross_entropy(x, torch.arange(4)), torch.randn(4, 30_000)),
    "a_long_sum_in_bfloat16": lambda: _apply(lambda x: x.sum(-1) + x.mean(-1), torch.randn(3, 20_000).bfloat16()),
}


def _distances(x: Tensor) -> Tensor:
    """By the formula that leaves on the diagonal what rounding makes of zero, or no number at all in the gradient."""
    squares = x.square().sum(-1)
    return (squares[:, None] + squares[None] - 2 * x @ x.T).clamp_min(0).sqrt().add(1).log()


def _bodies(p: Tensor, v: Tensor) -> Tensor:
    for _ in range(3):
        d = p[:, None] - p[None]
        v = v - 0.01 * (d * (d.square().sum(-1) + 1e-3).rsqrt()[..., None] ** 3).sum(1)
        p = p + 0.01 * v
    return p


def _masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.full((16, 16), -torch.inf, dtype=q.dtype).triu(1)
    return (q @ k.mT / 8**0.5 + mask).softmax(-1) @ v


def _horner(x: Tensor) -> Tensor:
    """(x - 1)^7 multiplied out: near 1 all of it cancels."""
    result = torch.zeros_like(x)
    for coefficient in (1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0):
        result = result * x + coefficient
    return result


def _recurrent(x: Tensor) -> Tensor:
    cell = nn.LSTMCell(16, 16).bfloat16()
    h, c = x, x
    for _ in range(4):
        h, c = cell(x, (h, c))
    return h + c


MORE: dict[str, Callable[[], None]] = {
    "label_smoothing_in_bfloat16": lambda: _with_gradient(
        lambda x: F.cross_entropy(x, torch.arange(48), label_smoothing=0.1), 4 * torch.randn(48, 50).bfloat16()
    ),
    "group_norm_in_bfloat16": lambda: _train(
        nn.Sequential(nn.Conv2d(4, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.GroupNorm(8, 16)).bfloat16(),
        torch.randn(2, 4, 12, 12).bfloat16(),
    ),
    "running_sums_in_float16": lambda: _with_gradient(lambda x: x.cumsum(-1) * x.cumprod(0), torch.rand(8, 200).half()),
    "accumulating_into_rows": lambda: _with_gradient(
        lambda x, y: x.index_put((torch.arange(300) % 10,), y * 2, accumulate=True).sin(),
        torch.randn(10, 8),
        torch.randn(300, 8),
    ),
    "a_variance_in_float16": lambda: _with_gradient(
        lambda x: x.var(-1) + x.std(0).mean(), (torch.randn(64, 512) + 20).half()
    ),
    "a_mask_that_is_added": lambda: _with_gradient(
        _masked_attention, *(torch.randn(2, 4, 16, 8).bfloat16() for _ in range(3))
    ),
    "special_functions": lambda: _with_gradient(
        lambda x: torch.special.erfinv(x * 0.9) + torch.lgamma(x + 2) + torch.digamma(x + 3) + torch.erfc(x * 5),
        torch.rand(200) * 2 - 1,
    ),
    "distances_to_oneself": lambda: _with_gradient(_distances, torch.randn(40, 8)),
    "bodies_in_float64": lambda: _with_gradient(_bodies, torch.randn(20, 3).double(), torch.randn(20, 3).double()),
    "a_polynomial_that_cancels": lambda: _with_gradient(_horner, 1 + 0.01 * torch.randn(500)),
    "a_recurrent_cell_in_bfloat16": lambda: _with_gradient(_recurrent, torch.randn(4, 16).bfloat16()),
    "the_division_of_integers": lambda: _apply(
        lambda a, b: (a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), a / b),
        torch.arange(-250, 250),
        torch.tensor([3, -7]).repeat(250),
    ),
}

HEALTHY: dict[str, Callable[[], None]] = {
    **{f"architecture_{name}": partial(train_architecture, name) for name in ARCHITECTURES},
    **{f"optimizer_{name}": partial(step_optimizer, name) for name in OPTIMIZERS},
    **OTHERS,
    **MORE,
}
"""Programs by name; each compiles something and runs it."""
