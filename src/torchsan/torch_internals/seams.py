"""Which PyTorch this is, and the private names of it that torchsan needs, as one table.

A seam that is missing, or that takes other parameters, turns off the checks that need it, with its name as the reason:
`patches` asks the table. Importing this module imports no torch.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchsan.errors import UnsupportedTorchError

OLDEST = (2, 12)
TESTED = ((2, 12), (2, 13), (2, 14), (2, 15))
"""The releases that were tried: `make test-matrix` runs the tests on the newest of each, README says what passed."""


def torch_version() -> str | None:
    """Return the installed PyTorch's version, or None if there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version() -> str | None:
    """Raise UnsupportedTorchError if this PyTorch cannot be instrumented; return a caveat if it is untested."""
    version = torch_version()
    oldest, newest = (".".join(map(str, release)) for release in (OLDEST, TESTED[-1]))
    if version is None:
        raise UnsupportedTorchError(
            f"PyTorch is not installed in this environment; install torch>={oldest} beside torchsan", slug="no-torch"
        )
    match = re.match(r"(\d+)\.(\d+)", version)
    release = (int(match[1]), int(match[2])) if match else None
    if release is not None and release < OLDEST:
        raise UnsupportedTorchError(
            f"PyTorch {version} is too old for torchsan; it needs {oldest} or newer: pip install -U 'torch>={oldest}'",
            slug="torch-too-old",
        )
    if release in TESTED:
        return None
    return (
        f"torchsan is not tested with this version of PyTorch, {version}, but with {oldest} to {newest}; "
        "what it cannot observe is skipped, and `torchsan doctor --canary` tries every check"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One private name: `name` is its path inside `module`, `users` are the checks that need it `to` do something.

    `parameters` are those that torchsan relies on, None if it does not call it: all of them; the first ones, if `...`
    is the last; those that it passes by name, after a `*`.
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None
    users: frozenset[str]
    to: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


_PROGRAMS = "values memory metadata kernels watch"
_CHECKS = ("values", "stages", "metadata", "memory", "cache", "kernels")
_TABLE: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        _PROGRAMS,
        "see the programs that Inductor generates",
        {
            "torch._inductor.graph": "GraphLowering._compile_to_module(self); GraphLowering.name; "
            "GraphLowering.is_backward; GraphLowering.is_inference",
            "torch._guards": "TracingContext.try_get(); TracingContext.aot_graph_name",
        },
    ),
    (
        _PROGRAMS,
        "know which launch computes which node",
        {
            "torch._inductor.graph": "GraphLowering.module; GraphLowering.graph_inputs; GraphLowering.operations; "
            "GraphLowering.scheduler; GraphLowering.removed_buffers; GraphLowering.inplaced_to_remove",
            "torch._inductor.scheduler": "Scheduler.nodes; BaseSchedulerNode.node; BaseSchedulerNode.get_nodes(self); "
            "BaseSchedulerNode.get_outputs(self); BaseSchedulerNode.is_extern(self); SchedulerBuffer.node; "
            "SchedulerBuffer.get_name(self)",
            "torch._inductor.ir": "Buffer.get_origin_node(self); Operation.get_origins(self); Subgraph.name; "
            "Subgraph.graph",
        },
    ),
    (_PROGRAMS, "know which buffers share memory", {"torch._inductor.scheduler": "Scheduler.mutation_real_name"}),
    (
        _PROGRAMS,
        "have graphs compiled anew that are in a cache",
        {
            "torch._inductor.compile_fx": "_compile_fx_inner(...); config.patch(...); V",
            "torch._functorch.aot_autograd": "should_use_local_autograd_cache(); should_use_remote_autograd_cache()",
            "torch._functorch._aot_autograd.graph_compile": "should_use_remote_autograd_cache()",
            "torch._inductor.output_code": "CompiledFxGraph.after_deserialization(self, ...)",
            "torch._dynamo": "reset()",
        },
    ),
    (
        "cache",
        "compare what a cache holds with a fresh compile",
        {
            "torch._inductor.output_code": "CompiledFxGraph.after_deserialization(self, constants); "
            "CompiledFxGraph.current_callable; CompiledFxGraph.source_code; CompiledFxGraph.output_strides; "
            "CompiledFxGraph.fx_kwargs",
            "torch._functorch._aot_autograd.autograd_cache": "AOTAutogradCache.try_load(mod, args, aot_config, "
            "compiler_config_extra, ...); AOTAutogradCache._get_tmp_dir_for_key(...); "
            "autograd_cache_key(...)",
            "torch._functorch._aot_autograd.schemas": "AOTConfig.cache_info",
            "torch._inductor.codecache": "FxGraphCache._get_tmp_dir_for_key(key)",
            "torch._inductor.cpu_vec_isa": "pick_vec_isa()",
            "torch._inductor.compile_fx": "_compile_fx_inner(...); config.patch(...); V",
            "torch._guards": "TracingContext.try_get()",
        },
    ),
    (
        "stages",
        "keep the graph after each stage of a compile",
        {
            "torch._dynamo.output_graph": "OutputGraph._call_user_compiler(self, gm, example_inputs); "
            "OutputGraph.compiler_fn",
            "torch._functorch.aot_autograd": "aot_stage2_compile(aot_state, aot_graph_capture, partition_fn, "
            "fw_compiler, bw_compiler, inference_compiler)",
            "torch._functorch._aot_autograd.schemas": "AOTState.needs_autograd; AOTState.aot_config; "
            "AOTConfig.pre_dispatch; AOTGraphCapture.graph_module",
            "torch._dynamo": "reset()",
            "torch._functorch.partitioners": "default_partition(*, num_fwd_outputs)",
            "torch.fx._lazy_graph_module": "_LazyGraphModule.force_recompile(gm)",
        },
    ),
    (
        "stages",
        "tell which pass changed a graph",
        {
            "torch._inductor.compile_fx": "_recursive_pre_grad_passes(gm, ...); "
            "_recursive_joint_graph_passes(gm, ...); _recursive_post_grad_passes(gm, ...)",
            "torch.fx.passes.graph_transform_observer": "GraphTransformObserver.__enter__(self); "
            "GraphTransformObserver.__exit__(self, ...); GraphTransformObserver.passname",
            "torch._inductor.fx_passes.joint_graph": "replace_random_passes(gm)",
            "torch._inductor.pattern_matcher": "ReplacementPatternEntry.apply(self, ...); "
            "GraphPatternEntry.apply(self, ...); LoweringPatternEntry.apply(self, ...)",
        },
    ),
    (
        "stages",
        "run the user's own Python beside a compiled call",
        {
            "torch._dynamo.eval_frame": "OptimizeContext.__call__(self, fn)",
            "torch._guards": "TracingContext.try_get()",
            "torch._C._functorch": "maybe_current_level; is_functorch_wrapped_tensor",
            "torch._C": "_len_torch_dispatch_stack",
            "torch.utils._python_dispatch": "_push_mode(mode); _pop_mode(...)",
            "torch._C._dynamo.eval_frame": "_FrameAction; _FrameExecStrategy; set_code_exec_strategy",
        },
    ),
    ("stages", "know who runs the backward", {"torch._dynamo.compiled_autograd": "compiled_autograd_enabled"}),
    ("stages", "keep the operators that a finding needs", {"torch.fx.experimental.proxy_tensor": "make_fx(f, ...)"}),
    (
        "metadata kernels",
        "see the calls of operators",
        {
            "torch.utils._python_dispatch": "TorchDispatchMode.__torch_dispatch__(self, func, types, args, kwargs); "
            "TorchDispatchMode.ignore_compile_internals(); TorchDispatchMode._should_skip_dynamo(); "
            "_push_mode(mode); _pop_mode(...)",
            "torch._C": "_len_torch_dispatch_stack; _is_alias_of; _has_storage; _dispatch_has_kernel_for_dispatch_key; "
            "_current_graph_task_id; _dispatch_tls_local_exclude_set",
            "torch._C._functorch": "maybe_current_level",
            "torch._C._dynamo.eval_frame": "_FrameAction; _FrameExecStrategy; set_code_exec_strategy",
            "threading": "Thread._bootstrap_inner(self)",
        },
    ),
    (
        "kernels",
        "see what operators of libraries call",
        {"torch._ops": "OpOverload.redispatch(self, keyset, ...)", "torch._C": "DispatchKeySet; DispatchKey"},
    ),
    (
        "metadata kernels",
        "see the operators that torch.func.functionalize calls",
        {
            "torch._dispatch.python": "CROSSREF_FUNCTIONALIZE; make_crossref_functionalize(op, final_key); "
            "enable_python_dispatcher(); suspend_functionalization(); all_py_loaded_overloads()",
            "torch._functorch.eager_transforms": "_func_increment_nesting(reapply_views); _func_decrement_nesting()",
            "torch._ops": "OpOverload._uncache_dispatch(self, key); OpOverload._op_dk",
        },
    ),
    (
        "metadata kernels",
        "run operators without data",
        {
            "torch._subclasses.fake_tensor": "FakeTensorMode(*, shape_env, allow_fallback_kernels); "
            "FakeTensorMode.from_tensor(*, static_shapes, source, symbolic_context); FakeTensorMode.cache_enabled; "
            "FakeTensorMode.allow_scalar_outputs; DataDependentOutputException; DynamicOutputShapeException",
            "torch.fx.experimental.symbolic_shapes": "ShapeEnv; DimDynamic.DYNAMIC; "
            "StatelessSymbolicContext(*, dynamic_sizes)",
            "torch._dynamo.source": "ConstantSource(source_name)",
        },
    ),
    (
        f"{_PROGRAMS} stages",
        "run its own operators unseen by the program",
        {
            "torch.utils._python_dispatch": "_disable_current_modes()",
            "torch._C": "DisableTorchFunction",
            "torch._ops": "OpOverload; HigherOrderOperator",
        },
    ),
    (
        "packages",
        "put its recorder into a package",
        {
            "torch._inductor.graph": "GraphLowering.codegen_with_cpp_wrapper(self); GraphLowering.aot_mode",
            "torch._inductor": "aoti_compile_and_package(*, package_path, inductor_configs); aoti_load_package(...)",
        },
    ),
    (
        "caches",
        "generate the code of a cached graph anew",
        {
            "torch._inductor.compile_fx": "compile_fx_inner(gm, example_inputs, ...)",
            "torch._inductor.graph": "GraphLowering._compile_to_module(self); GraphLowering.codegen(self)",
            "torch._inductor.config": "get_config_copy()",
            "torch._guards": "TracingContext; tracing(...)",
            "torch._subclasses.fake_tensor": "FakeTensorMode",
        },
    ),
    ("repro", "compile with the program's settings", {"torch._inductor.config": "_config; _is_default(name)"}),
    (
        "canary",
        "plant faults that the checks must find",
        {"torch._inductor.graph": "GraphLowering.codegen(self)", "torch._inductor.config": "post_grad_custom_pre_pass"},
    ),
    (
        "gaps",
        "tell what was not compiled",
        {
            "torch._dynamo.output_graph": "GraphCompileReason.__post_init__(self)",
            "torch._dynamo.utils": "CompilationMetrics.create(metrics)",
        },
    ),
    (
        "names",
        "know what you call the inputs of a graph",
        {
            "torch._dynamo.output_graph": "OutputGraph._call_user_compiler(self, gm, example_inputs)",
            "torch._dynamo.variables.builder": "GraphArg.source",
            "torch._guards": "TracingContext.try_get()",
            "torch._functorch._aot_autograd.descriptors": "PlainAOTInput.idx; ParamAOTInput.target; "
            "TangentAOTInput.output",
        },
    ),
    (
        "cost",
        "tell how long compiling takes",
        {"torch._dynamo.callback": "CompilationCallbackHandler.install_callbacks(self, trigger, compile_id)"},
    ),
    ("ops", "compare an operator with its decomposition", {"torch._inductor.decomposition": "select_decomp_table()"}),
)
"""Who needs something, what for, and the names by module: functions with parameters, separated by semicolons."""


def _rows() -> Iterator[Seam]:
    for users, to, modules in _TABLE:
        for module, names in modules.items():
            for text in names.split("; "):
                name, call, parameters = text.removesuffix(")").partition("(")
                listed = tuple(p for p in parameters.split(", ") if p) if call else None
                yield Seam(module=module, name=name, parameters=listed, users=frozenset(users.split()), to=to)


SEAMS: tuple[Seam, ...] = tuple(_rows())
"""Everything that something needs. Whoever needs one more says so in the table."""

USERS = tuple(dict.fromkeys(user for users, _, _ in _TABLE for user in users.split()))


def called(user: str) -> str:
    """How reports call what needs a seam."""
    names = {"watch": "--watch", "gaps": "graph breaks and recompiles", "names": "names of inputs"}
    return names.get(user) or (f"the {user} check" if user in _CHECKS else user)
