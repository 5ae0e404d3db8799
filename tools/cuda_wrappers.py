"""Writes wrappers that Inductor generates for CUDA to `tests/data/cuda-wrappers/<release>`; needs Triton and no GPU.

    python -m tools.cuda_wrappers [NAME…]

`tests/programs/test_cuda_wrappers.py` parses them, without PyTorch. PyTorch is told that there is an H100, and
compiles for it as far as the text of the program: nothing is run, and a kernel is compiled only if its binary is asked
for. Any build of PyTorch will do, also one without CUDA. Comments that name files of this machine are left out.
"""

from __future__ import annotations

import copy
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F
import torch.utils._pytree as pytree
import torch.utils._triton
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "cuda-wrappers"
CUDA = torch.device("cuda", 0)
_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, warp_size=32, total_memory=80 << 30,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block_optin=232448, shared_memory_per_block=49152, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20, gcnArchName="", is_integrated=0, is_multi_gpu_board=0,
)  # fmt: skip


Binaries = dict[str, Mapping[str, Any]]
"""What Triton makes of a kernel, `ptx` and `cubin` among it, by its name."""
_REMEMBERED = [f for f in vars(torch.utils._triton).values() if hasattr(f, "cache_clear")]
"""What PyTorch finds out about Triton and its devices once."""


class _Stream:
    cuda_stream, device_index, stream_id, device = 0, 0, 0, CUDA


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any, **__: Any) -> None:
    return None


_CUDA: dict[str, Any] = {
    "is_available": _yes, "device_count": lambda: 1, "current_device": _zero, "is_initialized": _yes,
    "get_device_properties": lambda d=None: _PROPERTIES, "get_device_capability": lambda d=None: (9, 0),
    "get_device_name": lambda d=None: _PROPERTIES.name, "is_bf16_supported": _yes, "_lazy_init": _nothing,
    "synchronize": _nothing, "set_device": _nothing, "mem_get_info": lambda d=None: (80 << 30, 80 << 30),
    "current_stream": lambda d=None: _Stream(), "_exchange_device": _zero, "_maybe_exchange_device": _zero,
    "memory_allocated": _zero, "get_rng_state": lambda d=None: torch.get_rng_state(), "set_rng_state": _nothing,
}  # fmt: skip


class _Driver(triton.backends.driver.DriverBase):  # type: ignore[misc]  # Triton leaves it without types
    """Names a target, and knows no more."""

    def __init__(self) -> None:
        """Not that of the base, which asks for a device."""
        shape = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}
        self.utils = types.SimpleNamespace(get_device_properties=lambda d: dict(shape))

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return (9, 0)

    get_current_device = set_current_device = get_current_stream = _zero
    map_python_to_cpp_type = get_device_interface = get_benchmarker = _nothing


def _capability(device: Any = None) -> int | str:
    return 90


def _fakes_of_random_numbers() -> list[tuple[Any, str, Any]]:
    """What Inductor's own operators give without a device to draw on."""
    import torch._inductor.inductor_prims  # registers them

    prims = torch.ops.prims
    return [
        (prims.inductor_lookup_seed.default, "prim_meta_impl", lambda seeds, index: seeds.new_empty(())),
        (prims.inductor_random.default, "prim_meta_impl", lambda size, seed, mode, **_: seed.new_empty(size).float()),
        (
            prims.inductor_seeds.default,
            "prim_meta_impl",
            lambda count, device: torch.empty([count], dtype=torch.int64, device=device),
        ),
    ]


def _interface() -> Any:
    """What Dynamo and Inductor ask of a device."""
    from torch._dynamo import device_interface

    class Interface(device_interface.CudaInterface):
        class Worker:
            set_device = staticmethod(_nothing)
            current_device = staticmethod(_zero)
            get_device_properties = staticmethod(_CUDA["get_device_properties"])

        get_raw_stream = staticmethod(_zero)
        get_compute_capability = staticmethod(_capability)
        is_triton_capable = staticmethod(_yes)
        raise_if_triton_unavailable = staticmethod(_nothing)
        current_device, set_device = staticmethod(_zero), staticmethod(_nothing)
        device_count, is_available = staticmethod(lambda: 1), staticmethod(_yes)
        get_device_properties = staticmethod(_CUDA["get_device_properties"])
        is_bf16_supported, synchronize = staticmethod(_yes), staticmethod(_nothing)

    return Interface


@contextmanager
def pretended_gpu(binaries: Binaries | None = None) -> Iterator[list[str]]:
    """Compile for CUDA; the texts of the programs are added to what is given, and kernels to `binaries` if given."""
    from torch._dynamo import device_interface
    from torch._inductor import select_algorithm
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def times(choices: Any) -> dict[Any, float]:
        """The first template is the fastest, and one that moves its operands by TMA before all others."""
        slow = [0.5 if "tma" in c.name else 1.0 if type(c).__name__ == "TritonTemplateCaller" else 2.0 for c in choices]
        return {c: i + 1e6 * factor for i, (c, factor) in enumerate(zip(choices, slow, strict=True))}

    def compiled(self: Any, *_: Any, **__: Any) -> None:
        """As `CachingAutotuner.precompile` the first of the configurations, and without what would launch it."""
        if binaries is not None:
            binaries[self.fn.__name__] = self._precompile_config(self.configs[0]).kernel.asm

    sources: list[str] = []
    selector = select_algorithm.AlgorithmSelectorCache
    changes: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, value) for name, value in _CUDA.items()),
        (torch.version, "cuda", "13.0"),
        (triton.runtime.driver, "_active", _Driver()),
        *_fakes_of_random_numbers(),
        (device_interface, "get_cuda_stream", _zero),
        (device_interface, "_device_initialized", True),
        (CachingAutotuner, "precompile", compiled),
        (GraphLowering, "save_output_code", staticmethod(sources.append)),
        (selector, "benchmark_choices", classmethod(lambda cls, choices, *a, **k: times(choices))),
        (selector, "make_benchmark_fn", classmethod(lambda cls, choices, *a, **k: lambda *_, **__: times(choices))),
        (selector, "make_precompile_fn", lambda self, *a, **k: _nothing),
    ]
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(patch.object(target, name, value, create=True))
        for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice", "_cuda_getDeviceCount"):
            stack.enter_context(patch.object(torch._C, name, _zero, create=True))
        for name in ("cuda", "cuda:0"):
            stack.enter_context(patch.dict(device_interface.device_interfaces, {name: _interface()}))
        for found in _REMEMBERED:
            found.cache_clear()
            stack.callback(found.cache_clear)
        nvidia = triton.backends.Backend(triton.backends.backends["nvidia"].compiler, _Driver)
        stack.enter_context(patch.dict(triton.backends.backends, {"nvidia": nvidia}))
        settings = {"compile_threads": 1, "fx_graph_cache": False, "use_static_triton_launcher": False}
        stack.enter_context(inductor_config.patch(settings))
        yield sources


@contextmanager
def _kernels_in_graphs() -> Iterator[None]:
    """Have Dynamo take users' kernels and descriptors into graphs, for which it looks for a GPU."""
    with ExitStack() as stack:
        for name in ("has_triton", "has_triton_tensor_descriptor_host_tma"):
            stack.enter_context(patch.object(torch.utils._triton, name, _yes))
        stack.enter_context(patch.object(triton.runtime.driver, "_active", _Driver()))
        yield


def moved(module: torch.fx.GraphModule, change: Callable[[torch.fx.GraphModule], None] | None) -> tuple[Any, list[Any]]:
    """A graph that was traced on the CPU as it would be on CUDA, and its inputs."""
    module = copy.deepcopy(module)
    values = [n.meta.get("val") for n in module.graph.nodes]
    mode = next(v.fake_mode for v in values if hasattr(v, "fake_mode"))

    def other(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cpu":
            return CUDA
        if isinstance(value, Tensor):
            with mode:
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)
        return value

    inputs = []
    for node in module.graph.nodes:
        if not node.meta.get("stays"):
            node.args, node.kwargs = pytree.tree_map(other, (node.args, node.kwargs))
        node.meta.pop("tensor_meta", None)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(other, node.meta["val"])
            inputs += [node.meta["val"]] if node.op == "placeholder" else []
    if change is not None:
        change(module)
    return module, inputs


def _unrun(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """In the place of a graph, which may hold kernels that cannot run here: results of the right kind, all zero."""
    (output,) = (n for n in module.graph.nodes if n.op == "output")

    def zeros(node: Any) -> Any:
        value = node.meta["val"] if isinstance(node, torch.fx.Node) else node
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()

    return lambda *_: pytree.tree_map(zeros, output.args[0])


def compile_for_cuda(
    function: Callable[..., Any],
    *inputs: Tensor,
    train: bool = False,
    change: Callable[[torch.fx.GraphModule], None] | None = None,
    binaries: Binaries | None = None,
    **settings: Any,
) -> None:
    """Compile a function of tensors as if they were on a GPU.

    `change` is given each graph before it is compiled; `binaries` are added to, if they are wanted.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    def partition(module: torch.fx.GraphModule, joint_inputs: Any, **more: Any) -> Any:
        mode = next(v.fake_mode for n in module.graph.nodes if hasattr(v := n.meta.get("val"), "fake_mode"))
        with V.set_fake_mode(mode):
            joint_graph_passes(module)
        return min_cut_rematerialization_partition(module, joint_inputs, **{**more, "compiler": "inductor"})

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_(module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
            if kind == "inference":
                joint_graph_passes(module)
            graph, given = moved(module, change)
            flags: dict[str, Any] = {"is_backward": kind == "backward", "is_inference": kind == "inference"}
            flags |= {"cpp_wrapper": True} if settings.get("cpp_wrapper") else {}
            changes = inductor_config.patch({k.replace("__", "."): v for k, v in settings.items()})
            with pretended_gpu(binaries) as sources, V.set_fake_mode(detect_fake_mode(given)), torch.no_grad(), changes:
                try:
                    compile_fx_inner(graph, given, **flags)
                except Exception:  # what comes after the text needs a device
                    if not sources:
                        raise
            _SOURCES.extend(sources)
            return make_boxed_func(_unrun(module))

        return compile_

    kinds = {f"{name}_compiler": compiler(kind) for name, kind in _COMPILERS.items()}
    backend = aot_autograd(decompositions=select_decomp_table(), partition_fn=partition, **kinds)
    torch._dynamo.reset()
    leaves = [i.requires_grad_(train and i.is_floating_point()) for i in inputs]
    with _kernels_in_graphs():
        result = torch.compile(function, backend=backend)(*leaves)
    if train:
        result.sum().backward()


_COMPILERS = {"fw": "forward", "bw": "backward", "inference": "inference"}
_SOURCES: list[str] = []


def _on_two_streams(module: torch.fx.GraphModule) -> None:
    """As `torch.cuda.stream` inside of a compiled function is noted."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    for i, node in enumerate(nodes):
        node.meta.setdefault("custom", {})["stream"] = i % 2


class Model(nn.Module):
    """A small network with dropout and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(F.dropout(F.gelu(self.first(x)), 0.1))).softmax(-1)  # type: ignore[no-any-return]


@triton.jit  # type: ignore[untyped-decorator]  # Triton leaves it without types
def _double(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2, i < n)


@triton.jit  # type: ignore[untyped-decorator]
def _add_blocks(x, y, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    out.store([row, column], x.load([row, column]) + y.load([row, column]))


def _doubled_by_a_user(x: Tensor) -> Tensor:
    x = x.sin()
    out = torch.empty_like(x)
    _double[(64,)](x, out, x.numel(), BLOCK=64)
    return out.cos()


def _added_through_descriptors(x: Tensor, y: Tensor) -> Tensor:
    x = x.sin()
    out = torch.empty_like(x)
    blocks = [TensorDescriptor.from_tensor(t, [32, 32]) for t in (x, y, out)]
    _add_blocks[(2, 2)](*blocks, BLOCK=32)
    return out.cos()


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape)


TEMPLATES: dict[str, Any] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    # Now, and before 2.15; to ask for what has another name now is to be warned.
    next(n for n in ("benchmark_template_fusion", "benchmark_epilogue_fusion") if hasattr(inductor_config, n)): False,
}
PROGRAMS: dict[str, Callable[[], None]] = {
    "pointwise": lambda: compile_for_cuda(lambda x, y: (x.sin() + y).relu() * 2, _x(64, 65), _x(65)),
    "reductions": lambda: compile_for_cuda(lambda x: (x.var(-1), x.argmax(0), x.cumsum(1)), _x(64, 4100)),
    "training_step": lambda: compile_for_cuda(Model(), _x(256, 64), train=True),
    "scatter": lambda: compile_for_cuda(lambda x, i: x.index_add(0, i, x), _x(64, 8), torch.arange(64) % 7),
    "dynamic": lambda: compile_for_cuda(lambda x: (x @ x.T).exp().sum(-1), _x(60, 64)),
    "templates": lambda: compile_for_cuda(lambda x, w: (x @ w).relu(), _x(256, 64), _x(64, 128), **TEMPLATES),
    "templates_trained": lambda: compile_for_cuda(Model(), _x(256, 64), train=True, **TEMPLATES),
    "tensor_descriptors": lambda: compile_for_cuda(
        lambda x, y: x.exp() + y, _x(256, 64), _x(256, 64), assume_aligned_inputs=True,
        triton__use_tensor_descriptor=True,
    ),
    "combo_kernels": lambda: compile_for_cuda(
        lambda x, y, z: (x.sin(), y.cos(), z.sum(-1)), _x(64), _x(80), _x(8, 90), combo_kernels=True
    ),
    "two_streams": lambda: compile_for_cuda(
        lambda x, y: x.sin().sum(-1) + y.cos().sum(-1), _x(64, 64), _x(64, 64), change=_on_two_streams
    ),
    "cudagraphs": lambda: compile_for_cuda(lambda x: x.sin() @ x.cos(), _x(64, 64), triton__cudagraphs=True),
    "partitions": lambda: compile_for_cuda(
        lambda x: torch.topk((x @ x).exp(), 64)[0].cos() @ x, _x(64, 64), triton__cudagraphs=True,
        graph_partition=True, custom_should_partition_ops=["aten::topk"],
    ),
    "cpp_wrapper": lambda: compile_for_cuda(lambda x: (x @ x).exp(), _x(64, 64), cpp_wrapper=True),
    "tma_template": lambda: compile_for_cuda(
        lambda x, w: (x @ w).relu(), _x(128, 64), _x(64, 256), triton__enable_persistent_tma_matmul=True,
        assume_aligned_inputs=True, **TEMPLATES,
    ),
    "users_kernel": lambda: compile_for_cuda(_doubled_by_a_user, _x(64, 64)),
    "users_descriptors": lambda: compile_for_cuda(_added_through_descriptors, _x(64, 64), _x(64, 64)),
}  # fmt: skip


def cleaned(source: str) -> str:
    """A wrapper without what is true of this machine only, and without what benchmarks it."""
    source = source.partition("\ndef get_args():")[0].partition("\ndef benchmark_compiled_module(")[0] + "\n"
    about = r"AOT ID|Topologically|Source node|kernel path|Original ATen|Original path"
    source = re.sub(rf"^ *# (?:{about}).*\n", "", source, flags=re.M)
    return re.sub(r"^ *#  .*\n", "", source, flags=re.M)


def main(names: Iterable[str]) -> None:
    """Write these, or all."""
    folder = FOLDER / ".".join(torch.__version__.split(".")[:2])
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PROGRAMS:
        program = PROGRAMS[name]
        for old in folder.glob(f"{name}-*.wrapper"):
            old.unlink()
        torch.manual_seed(0)
        _SOURCES.clear()
        try:
            program()
        except Exception as e:  # noqa: BLE001  # one that this release cannot compile so does not end the others
            print(name, "FAILED", f"{type(e).__name__}: {e}".splitlines()[0][:300])
        for nth, source in enumerate(_SOURCES):
            (folder / f"{name}-{nth}.wrapper").write_text(cleaned(source), encoding="utf-8")
        print(name, len(_SOURCES), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
