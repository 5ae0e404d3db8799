"""What kind of thing an FX node calls, and how to run operators without the user's modes seeing them."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.fx


def keep_in_order(operator: str) -> None:
    """Tell the compiler that the operator, named `namespace::name`, has an effect, in the order of its calls."""
    import torch
    from torch._library.effects import EffectType

    torch.library._register_effectful_op(operator, EffectType.ORDERED)


def with_gradient(operator: Any) -> Callable[..., Any]:
    """A function that computes the same as an operator, and that a gradient can be taken of where that has none."""
    if str(operator) == "prims.convert_element_type.default":
        return lambda value, dtype: value.to(dtype, copy=True)
    function: Callable[..., Any] = getattr(operator, "impl_aten", operator)
    return function


def storage_key(tensor: torch.Tensor) -> int:
    """What tells the tensor's storage from every other one that is alive, or that a StorageRef refers to."""
    return int(tensor.untyped_storage()._cdata)


class StorageRef:
    """Refers to a tensor's storage and does not keep its memory. No other storage gets its key while this exists."""

    __slots__ = ("_ref", "key")

    def __init__(self, tensor: torch.Tensor) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.key = storage_key(tensor)
        self._ref = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch leaves it without types

    @property
    def dead(self) -> bool:
        """Whether nothing holds the storage any more, in Python or in C++."""
        return bool(self._ref.expired())  # type: ignore[no-untyped-call]  # torch leaves it without types


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor has memory of its own to speak of; sparse and wrapped tensors have none."""
    import torch

    return bool(torch._C._has_storage(tensor))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements of the tensor share memory with each other."""
    import torch

    return bool(torch._debug_has_internal_overlap(tensor))


def transforms_active() -> bool:
    """Whether a function of `torch.func` is running."""
    import torch

    return bool(torch._C._are_functorch_transforms_active())


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same lists, tuples and dictionaries with `function(tensor)` in the place of each tensor."""
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, function, tree)


def flatten(tree: Any) -> list[Any]:
    """The leaves, in order."""
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(tree))


def unflatten_call(program: Any, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an exported program from their leaves, as it was exported with."""
    from torch.utils import _pytree

    args, kwargs = _pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)


def is_higher_order(target: Any) -> bool:
    """Whether `target` is an operator that takes functions, such as `cond`."""
    from torch._ops import HigherOrderOperator

    return isinstance(target, HigherOrderOperator)


def overload_of(target: Any) -> Any:
    """The overload that a node calls: Inductor's passes leave out which, where an operator has but one."""
    from torch._ops import OpOverloadPacket

    names = target.overloads() if isinstance(target, OpOverloadPacket) else []  # type: ignore[no-untyped-call]  # no types
    return getattr(target, names[0]) if len(names) == 1 else target


def is_users_kernel(target: Any) -> bool:
    """Whether `target` is the operator that a graph has in the place of a Triton kernel that the user wrote."""
    return is_higher_order(target) and str(target.name()).startswith("triton_kernel_wrapper")


def is_checkpoint(target: Any) -> bool:
    """Whether `target` is the operator that a graph has in the place of `torch.utils.checkpoint.checkpoint`."""
    return is_higher_order(target) and str(target.name()) == "tag_activation_checkpoint"


def without_token(target: Any, args: Sequence[Any]) -> Any:
    """The operator of PyTorch's own that `with_effects` calls in order, which changes nothing; None for all others.

    Such as `_linalg_check_errors`, which may raise. `args` are those of `with_effects`: a token, the operator, and its
    arguments.
    """
    if not is_higher_order(target) or str(target.name()) != "with_effects":
        return None
    overload = args[1]
    pure = getattr(overload, "namespace", None) == "aten" and not overload._schema.is_mutable
    return overload if pure else None


def functionalized(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, int, list[torch.fx.Node]] | None:
    """The operator that `auto_functionalized` stands for, how many results come first, and the nodes that it writes.

    None if the target is something else.
    """
    if not is_higher_order(target) or not str(target.name()).startswith("auto_functionalized") or not args:
        return None
    overload = args[0]
    schema = getattr(overload, "_schema", None)
    if schema is None:
        return None
    results = max(1, len(schema.returns))
    bases = kwargs.get("_all_bases")
    if bases is not None:
        return overload, results, list(bases)
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return overload, results, [kwargs[name] for name in written if kwargs.get(name) is not None]


def run_users_kernel(call: Mapping[str, Any]) -> None:
    """Launch such a kernel as a graph does, whose operator takes these arguments. It overwrites its tensors."""
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    triton_kernel_wrapper_mutation(**call)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsersLaunch:
    """A launch of a Triton kernel that the user wrote, as a graph has it.

    `arguments` are by name, constants and those of the first configuration of an autotuned kernel among them;
    `descriptors` are the shapes of blocks, for the tensors that are passed as descriptors.
    """

    name: str
    site: tuple[int, int]
    """What tells the place where it is launched from others."""
    function: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    descriptors: Mapping[str, tuple[int, ...]]


def is_view(node: Any) -> bool:
    """Whether a node of a graph is part of the memory of one that it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and any(a.alias_info is not None for a in schema.arguments)


class OutsideOfTensors(Exception):
    """A kernel reads or writes (`access`) what is in none of its tensors; `where` says which, and of which."""

    def __init__(self, access: str, where: str) -> None:
        super().__init__(f"it {access} {where}")
        self.access, self.where = access, where


def users_launch(call: Mapping[str, Any]) -> UsersLaunch:
    """What the arguments of the operator mean. Raise NotImplementedError for a descriptor that is not understood."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(call["kernel_idx"])
    constants = kernel_side_table.get_constant_args(call["constant_args_idx"])
    configurations = getattr(kernel, "configs", None)
    function: Any = kernel
    while not hasattr(function, "params"):
        function = function.fn
    descriptors = {}
    for name, (kind, shape) in (call.get("tma_descriptor_metadata") or {}).items():
        if kind != "stable":
            raise NotImplementedError("an experimental descriptor")
        descriptors[name] = tuple(shape[0])
    chosen = configurations[0].kwargs if configurations else {}
    arguments = {**chosen, **constants, **call["kwargs"]}
    return UsersLaunch(
        name=function.__name__,
        site=(call["kernel_idx"], call["constant_args_idx"]),
        function=function,
        grid=tuple(int(n) for n in call["grid"][0]),
        arguments={p.name: arguments[p.name] for p in function.params if p.name in arguments},
        descriptors=descriptors,
    )


def draws_random_numbers(target: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator does: attention, for one, does so only with a dropout above zero."""
    import torch

    name = target._schema.name
    if name.startswith(("prims::inductor_seed", "prims::inductor_rand")):
        return True
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = {a.name: value for a, value in zip(target._schema.arguments, args, strict=False)} | dict(kwargs)
    defaults = {a.name: a.default_value for a in target._schema.arguments}
    return bool((defaults | given).get("dropout_p") != 0.0)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run torchsan's own arithmetic unseen: no autograd, no autocast, no dispatch or function mode of the user's."""
    import torch

    with torch.no_grad(), outside_modes():
        enabled = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
        for device in enabled:
            torch.set_autocast_enabled(device, False)
        try:
            yield
        finally:
            for device in enabled:
                torch.set_autocast_enabled(device, True)


@contextmanager
def outside_modes() -> Iterator[None]:
    """Run a graph again unseen by the user's modes; autograd and autocast are left as they are."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


_autograd_started = False


def start_autograd() -> None:
    """Let autograd count the devices, which its first backward does: if it finds one, no child can run a backward.

    A build for CUDA pretends to have devices from the first FakeTensorMode on, also where there is none: so this comes
    before torchsan's own, and before the first compile.
    """
    global _autograd_started
    import torch

    if _autograd_started or torch._C._functorch.maybe_current_level() is not None:
        return
    _autograd_started = True
    if not torch.cuda.is_available():
        with outside_modes(), torch.inference_mode(False), torch.enable_grad():
            x = torch.ones((), requires_grad=True)
            torch.autograd.grad(x + x, x)


@contextmanager
def random_kept() -> Iterator[Callable[[], bool]]:
    """Leave the random numbers of torch, Python and NumPy where they stand; gives what tells whether any were drawn.

    An operator of the user's may draw from any of them.
    """
    import random

    import torch

    numpy: Any = sys.modules.get("numpy.random")
    with outside_modes():  # A mode of the program's, such as DebugMode, would be shown a `detach`.
        state = torch.get_rng_state()
    python, third = random.getstate(), numpy.get_state() if numpy is not None else None
    before = random_state()
    try:
        yield lambda: random_state() != before
    finally:
        with outside_modes():
            torch.set_rng_state(state)
        random.setstate(python)
        if third is not None:
            numpy.set_state(third)


def random_state() -> str:
    """A digest of where the random numbers of torch, Python and NumPy stand."""
    import random

    import torch

    with outside_modes():
        state = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=16)
    state.update(repr(random.getstate()).encode())
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        state.update(repr([x.tobytes() if hasattr(x, "tobytes") else x for x in numpy.get_state()]).encode())
    return state.hexdigest()


_OWN = frozenset(
    "_c10d_functional _c10d_functional_autograd _dtensor _inductor_test _native _nnapi _quantized _test aten autograd "
    "bucketing c10d c10d_functional cuda debug_mode_ops debugprims dist_inductor export flex_lib fsdp inductor "
    "inductor_prims mkl mkldnn mkldnn_prepacked nvprims onednn onnx onnx_symbolic prepacked prim prims profiler "
    "quantization quantized quantized_decomposed rngprims sparse static_runtime streams symm_mem torch_attn torchsan "
    "triton xnnpack".split()
)


def is_own(overload: Any) -> bool:
    """Whether an operator is PyTorch's own, and not a library's or the user's."""
    return overload.namespace in _OWN


def is_pytorchs(target: Any) -> bool:
    """Whether an operator or a function is PyTorch's own, or Python's."""
    name = getattr(target, "_qualified_op_name", None) or getattr(target, "_qualname", None)  # of all its overloads
    if name is not None or hasattr(target, "_schema"):
        return (target.namespace if name is None else str(name).partition("::")[0]) in _OWN
    owner = getattr(target, "__self__", None)
    method = owner if isinstance(owner, type) else target  # `apply` of a function with a backward of its own
    module = getattr(method, "__module__", None) or type(target).__module__
    return str(module).partition(".")[0] in _PYTHONS


_PYTHONS = frozenset("torch _operator operator builtins math itertools functools triton torchsan".split())


def is_composite(overload: Any) -> bool:
    """Whether an operator is nothing but calls of other operators, which autograd takes apart."""
    import torch

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"))


def loaded_overloads() -> list[Any]:
    """Every operator overload that this process has looked up through `torch.ops`."""
    from torch._dispatch.python import all_py_loaded_overloads

    return list(all_py_loaded_overloads())


def registered_names() -> set[str]:
    """The name, as `aten::add.Tensor`, of every overload that is registered, loaded or not."""
    import torch

    return set(torch._C._dispatch_get_all_op_names())


def load_inductor_operators() -> None:
    """Register the operators that Inductor puts into its graphs: `prims.fma`, `prims.inductor_random` and kin."""
    importlib.import_module("torch._inductor.inductor_prims")


def overloads_named(names: Iterable[str]) -> list[Any]:
    """The overloads of these names, in order; without those that Python cannot reach."""
    import torch

    found = []
    for name in sorted(names):
        namespace, _, rest = name.partition("::")
        operator, _, overload = rest.partition(".")
        try:
            found.append(getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default"))
        except (AttributeError, RuntimeError):
            continue  # Registered without a schema, or one that Python cannot parse.
    return found


def decomposition(overload: Any) -> Any:
    """The function that Inductor puts in the operator's place, or None."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table().get(overload)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a value: itself, or in its lists, tuples and dictionaries. Cheaper than a walk of the tree."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
