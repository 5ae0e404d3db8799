from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.torch_env import MATRIX

from torchsan.records import KernelKind
from torchsan.torch_internals.wrapper import Function, Launch, Program, parse
from torchsan.torch_internals.wrapper.kernels import mutated_arguments
from torchsan.torch_internals.wrapper.model import Alias, Allocate, Bind, Call, Free, Opaque, Return

DATA = Path(__file__).parent / "data"
CPU = sorted(p.name.removesuffix(".wrapper") for p in DATA.glob("cpu_*.wrapper"))


def read(name: str) -> Program:
    return parse((DATA / f"{name}.wrapper").read_text(), mutated_arguments)


def body(text: str, header: str = "") -> Function:
    """The function `call` with these statements."""
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    return parse(f"{header}\ndef call(args):\n    a, b = args\n{lines}", mutated_arguments).functions["call"]


def launch(function: Function | Program, kernel: str) -> Launch:
    (found,) = [x for x in function.launches() if x.kernel == kernel]
    return found


@pytest.mark.parametrize("name", CPU)
def test_every_statement_that_inductor_generates_for_the_cpu_is_understood(name: str) -> None:
    program = read(name)
    assert program.opaque() == ()
    assert "call" in program.functions
    assert [x.nth for x in program.launches()] == list(range(len(program.launches())))
    for kernel in program.kernels:
        assert any(x.kernel == kernel for x in program.launches()), kernel


_PARSE_ALL = """
import json, sys
from pathlib import Path
sys.modules["torch"] = None
from torchsan.torch_internals.wrapper import parse
found = {}
for file in sorted(Path(sys.argv[1]).rglob("*.wrapper")):
    program = parse(file.read_text(encoding="utf-8"))
    texts = [step.text for step in program.opaque()]
    found.setdefault(file.parent.name, {})[file.name] = [len(program.launches()), texts]
print(json.dumps(found))
"""


def test_what_each_release_generates_is_understood_without_pytorch() -> None:
    """`make goldens` writes them."""
    folder = Path(__file__).parents[2] / "data" / "wrappers"
    done = subprocess.run([sys.executable, "-c", _PARSE_ALL, str(folder)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found) == {version.rpartition(".")[0] for version in MATRIX}
    for release, files in found.items():
        assert len(files) > 8, release
        for name, (launches, opaque) in files.items():
            assert launches > 0, (release, name)
            assert opaque == [], (release, name)


def test_what_a_kernel_fills_itself_is_not_read() -> None:
    norm = launch(read("cpu_layer_norm"), "cpp_fused_native_layer_norm_relu_0")
    assert norm.reads == ("buf0", "primals_4", "primals_5")
    assert norm.writes == ("buf2", "buf4", "buf5")


def test_what_an_in_place_kernel_finds_under_the_new_name_is_read() -> None:
    names = [x.kernel for x in read("cpu_cnn").launches()]
    fused = read("cpu_cnn").launches()[next(i for i, n in enumerate(names) if n.endswith("threshold_backward_1"))]
    assert "buf10" in fused.reads
    assert "buf10" in fused.writes


def test_memory_handed_on_twice_is_still_read_in_place() -> None:
    header = "k = async_compile.cpp_pybinding(['float*'], '''extern \"C\" void kernel(float* in_out_ptr0) {}''')"
    function = body("c = a; del a  # reuse\nd = c; del c  # reuse\nk(d)", header)
    assert launch(function, "k").reads == ("d",)


def test_a_buffer_that_is_written_in_steps_is_read_by_the_later_ones() -> None:
    zeros, add, sin = read("cpu_scatter").launches()
    assert (zeros.kind, add.kind, sin.kind) == (KernelKind.FUSED, KernelKind.FALLBACK, KernelKind.FUSED)
    assert "buf0" not in zeros.reads
    assert "buf0" in add.reads
    assert add.writes == ("buf0",)


def test_several_results_and_parts_of_a_whole() -> None:
    function = read("cpu_sort_cat").functions["call"]
    items = [s for s in function.walk() if isinstance(s, Alias) and s.item is not None]
    assert [(s.name, s.source, s.item) for s in items] == [("buf1", "buf0", 0), ("buf2", "buf0", 1)]
    cat = launch(function, "cpp_fused__to_copy_mul_0")
    assert cat.writes == ("buf3", "buf4", "buf5")
    assert cat.reads == ("buf1", "buf2")


@pytest.mark.parametrize(
    ("name", "kernel", "text"),
    [("cpu_dynamic", "cpp_fused_mul_relu_sum_0", "s77"), ("cpu_item", "cpp_fused_add_new_zeros_1", "zuf0")],
)
def test_sizes_and_numbers_are_known_by_their_variables(name: str, kernel: str, text: str) -> None:
    found = launch(read(name), kernel)
    (number,) = [a for a in found.arguments if a.base is None]
    assert (number.text, number.variables) == (text, (text,))
    assert text in found.operands
    assert text not in (*found.reads, *found.writes)


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("cpu_cond", {"call", "true_graph_0", "false_graph_0"}),
        ("cpu_while_loop", {"call", "while_loop_cond_graph_0", "while_loop_body_graph_0"}),
    ],
)
def test_subgraphs_are_functions_that_are_called(name: str, functions: set[str]) -> None:
    program = read(name)
    assert set(program.functions) == functions
    called = {s.function for s in program.functions["call"].walk() if isinstance(s, Call)}
    assert called == functions - {"call"}


def test_the_two_ways_of_a_condition_know_nothing_of_each_other() -> None:
    function = body(
        """
if flag:
    del a
    x = other(b)
else:
    torch.ops.aten.sin_.default(a)
"""
    )
    assert launch(function, "torch.ops.aten.sin_.default").reads == ("a",)


def test_steps_of_memory() -> None:
    function = body(
        """
buf0 = empty_strided_cpu((4,), (1,), torch.float32)
extern_kernels.mm(a, b, out=buf0)
buf1 = reinterpret_tensor(buf0, (2, 2), (2, 1), 0); del buf0  # reuse
pool = empty_strided_cpu((64,), (1,), torch.uint8)
buf2 = alloc_from_pool(pool, 0, torch.float32, (4,), (1,))
del a, b
return (buf1, buf2, 3, )
"""
    )
    steps = [s for s in function.walk() if not isinstance(s, Launch)]
    assert steps == [
        Allocate(name="buf0", line=4),
        Alias(name="buf1", source="buf0", line=6, reused=True),
        Free(names=("buf0",), line=6),
        Allocate(name="pool", line=7),
        Allocate(name="buf2", line=8, pool="pool"),
        Free(names=("a", "b"), line=9),
        Return(names=("buf1", "buf2"), line=10),
    ]


def test_constants_of_the_module_are_tensors() -> None:
    function = body("buf0 = torch.ops.aten.sin.default(constant0)\nreturn (buf0, )", "constant0 = None  # 1a2b")
    assert launch(function, "torch.ops.aten.sin.default").reads == ("constant0",)
    assert function.inputs == ("a", "b")


def test_mutated_arguments_come_from_the_schema_and_lists_from_the_call() -> None:
    function = body(
        """
torch.ops.aten.index_put_.default(a, [None, b], a, True)
buf0 = torch.ops.aten.cat.default([a, b], 1)
buf1 = torch.ops.aten.constant_pad_nd.default(a, [1, 2], 0.5)
"""
    )
    put, cat, pad = function.launches()
    assert put.writes == ("a",)
    assert cat.reads == ("a", "b")
    assert [x.text for x in pad.arguments if x.base is None] == ["[1, 2]", "0.5"]


def test_what_is_not_understood_is_opaque_and_counts_as_written() -> None:
    function = body("mystery(a)\nz = enigma(b)\nx, y = riddle()\nextern_kernels.mm(a, z, out=b)")
    assert [s.text for s in function.walk() if isinstance(s, Opaque)] == [
        "mystery(a)",
        "z = enigma(b)",
        "x, y = riddle()",
    ]
    assert function.launches()[0].reads == ("a", "z", "b")


def test_a_wrapper_that_is_not_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parse('#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel() {}')


def test_a_template_with_helper_kernels_is_read_by_its_entry() -> None:
    source = (
        "template <bool accum> inline void cpp_CppMicroGemm_kernel(const float* A, float* in_out_ptr9) {}\n"
        'extern "C"  void  kernel(const float* X, float* in_out_ptr0, float* Y) {}'
    )
    header = f"k = async_compile.cpp_pybinding(['const float*', 'float*', 'float*'], r'''{source}''')"
    program = parse(f"{header}\ndef call(args):\n    a, b = args\n    k(a, b, a)\n")
    assert program.kernels["k"].reads == (True, True, False)
    assert program.kernels["k"].writes == (False, True, True)


def test_a_wrapper_for_cuda() -> None:
    program = read("triton_mlp")
    (mm, relu, multi) = program.functions["partition_0"].launches()
    assert (mm.kind, mm.reads, mm.writes) == (KernelKind.LIBRARY, ("arg0_1", "arg1_1"), ("buf0",))
    assert (relu.kind, relu.reads, relu.writes) == (KernelKind.FUSED, ("buf1", "arg1_1"), ("buf1",))
    # One of several kernels is picked at run time: everything it gets may be read and written.
    assert (multi.kernel, multi.writes) == ("multi_kernel_0", ("buf1", "buf2"))
    assert [(a.text, a.variables) for a in multi.arguments if a.variables] == [("4 * s27", ("s27",))]


def test_triton_kernels_tell_what_they_write() -> None:
    kernels = read("triton_mlp").kernels
    assert kernels["triton_poi_fused_addmm_relu_0"].writes == (True, False, None, None)
    assert kernels["triton_red_fused_sum_1"].writes == (False, True, None, None, None, None, None)
    assert kernels["triton_red_fused_sum_1"].reads[:2] == (True, False)
    assert kernels["triton_poi_fused_index_put_3"].writes == (False, False, True, None, None)


def test_atomic_adds_and_the_users_own_triton_kernels() -> None:
    call = read("triton_mlp").functions["call"]
    put = launch(call, "triton_poi_fused_index_put_3")
    assert put.reads == ("arg2_1", "buf1", "buf3")
    assert put.writes == ("buf3",)
    user = launch(call, "scale_kernel_0")
    assert user.reads == ("buf3", "buf4")  # Also what is not written yet: the memory check tells whether it does.
    assert user.writes == ("buf3", "buf4")
    assert [x.kernel for x in call.launches() if x.users_own] == ["scale_kernel_0"]
    assert [x.kernel for x in call.launches()][:2] == ["aten.zero_", "aten.zero_"]


_TEMPLATE = """
t = async_compile.triton('t', '''
@triton_heuristics.template(triton_meta={'signature': {'in_ptr0': '*fp32', 'arg_Q': '*fp32', 'arg_LSE': '*fp32',
    'out_ptr1': '*fp32', 'ks0': 'i32'}}, inductor_meta={'kernel_name': 't'})
@triton.jit
def t(in_ptr0, arg_Q, arg_LSE, out_ptr1, ks0):
    LSE = arg_LSE
    tl.store(LSE + 1, tl.load(arg_Q) + ks0)
    tl.store(out_ptr1, tl.load(in_ptr0))
''', device_str='cuda')
def call(args):
    a, b, c = args
    buf0 = empty_strided_cuda((4,), (1,), torch.float32)
    t.run(a, b, c, buf0, 5, 8, 1, 1, stream=stream0)
    return (buf0, )
"""


def test_templates_write_their_outputs_and_what_their_code_stores() -> None:
    found = launch(parse(_TEMPLATE), "t")
    assert not found.users_own
    assert found.reads == ("a", "b", "c")
    assert found.writes == ("c", "buf0")


def test_partitions_are_calls_and_devices_are_no_steps() -> None:
    program = read("triton_mlp")
    (called,) = [s for s in program.functions["call"].walk() if isinstance(s, Call)]
    assert (called.function, called.results) == ("partition_0", ("buf1", "buf2"))
    streams = [s.name for s in program.functions["partition_0"].walk() if isinstance(s, Bind)]
    assert streams == ["stream0", "stream0"]
    # The only statement that is not known: a kernel that nothing defines.
    assert [s.text.split("(")[0] for s in program.opaque()] == ["cuda_fused_gemm_4.cuda_fused_gemm_4"]


def test_what_newer_versions_assert_is_no_step() -> None:
    function = body("assert_tensor_metadata(a, (4,), (1,), torch.float32, 'cpu', 'input')\nreturn (a, )")
    assert function.walk() == (Return(names=("a",), line=5),)


def test_the_way_that_a_condition_takes_is_a_number() -> None:
    function = body(
        """
buf2_selector = int(a.item())
if buf2_selector == 0:
    torch.ops.aten.sin_.default(b)
else:
    torch.ops.aten.cos_.default(b)
buf3 = torch.ops.aten.full.default([buf2_selector], 1)
"""
    )
    steps = function.walk()
    assert steps[0] == Bind(name="buf2_selector", line=4)
    assert not [s for s in steps if isinstance(s, Opaque)]
    assert launch(function, "torch.ops.aten.full.default").operands == ("buf2_selector",)
