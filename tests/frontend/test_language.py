"""The language's functions become the IR they stand for; the contract's examples lower as written."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

import pytest

import tilejit
from tests.frontend.kernels import Jit, lower, make, results, signature, tensor
from tests.test_cluster_copy import cluster_copy
from tilejit import dtypes as d
from tilejit import frontend
from tilejit.errors import SyntaxUnsupported
from tilejit.ir import nodes as ir
from tilejit.ir import walk
from tilejit.ir.script import parse_function, print_function
from tilejit.ir.signature import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.language import OutsideKernel, T, core, cuda, scalar_math, tile


def scale_rows(
    X: T.Tensor(("M", "N"), "float32", align=16), Y: T.Tensor(("M", "N"), "float32", align=16),
    alpha: T.float32, WARPS: T.constexpr = 4,
):  # fmt: skip
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32 * WARPS))
    row = T.cuda.block_idx("x")
    r = T.alloc_local((WARPS, 32, N // (128 * WARPS), 4), "float32",
                      layout=T.layout("(WARPS,32,N//(128*WARPS),4):(1@warpid,1@laneid,4,1)"))  # fmt: skip
    x = X.sub[row, :].view(N // (128 * WARPS), WARPS, 32, 4).permute(1, 2, 0, 3)
    y = Y.sub[row, :].view(N // (128 * WARPS), WARPS, 32, 4).permute(1, 2, 0, 3)
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, x, scope="cta")
    T.cuda.tile.apply(
        T.ptx["mul.rn.f32"], r.view(*r.shape, 1), r.view(*r.shape, 1), alpha, scope="cta"
    )
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], y, r, scope="cta")


def calls(function: ir.Function, op: str) -> list[ir.Call]:
    return [n for n in walk.descend(function.body) if isinstance(n, ir.Call) and n.op == op]


def test_the_designs_example() -> None:
    matrix = tensor("float32", 8, 1024)
    function = lower(scale_rows, X=matrix, Y=matrix, alpha=ScalarArg(d.float32)).function
    assert [p.name for p in function.params] == ["X", "Y", "alpha"]
    assert function.launch.grid == (ir.Const(8, ir.INT64),) and function.launch.block == (128,)
    load, mul, store = calls(function, "tile.apply")
    assert [c.args[0].value for c in (load, mul, store)] == [
        "ld.global.v4.b32", "mul.rn.f32", "st.global.v4.b32"]  # fmt: skip
    assert load.args[1].items[0].shape == (4, 32, 2, 4) and load.attrs == ir.ScopeAttrs("cta")
    assert mul.args[1].items[2] == ir.Var("alpha", ir.FLOAT32)
    assert parse_function(print_function(function)) == function


BULK = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def test_the_contracts_cluster_example() -> None:
    row = tensor("float32", 64)
    function = lower(cluster_copy.__wrapped__, A=row, B=row).function
    names = [c.args[0].value for c in calls(function, "ptx")]
    assert names[0] == "mbarrier.init.shared.b64" and {"mapa.u64", BULK} <= set(names)
    (wait,) = calls(function, "cuda.mbarrier_wait")
    assert wait.args[1] == ir.Const(0, ir.UINT32)
    (arrive,) = [c for c in calls(function, "ptx") if "expect_tx" in c.args[0].value]
    assert arrive.args[1].items[0] == ir.Text("_")
    assert parse_function(print_function(function)) == function


def test_literal_operands_take_the_instructions_type() -> None:
    text = """
        def k(out, n):
            r = T.alloc_local((4, 1), "float32", layout="default")
            u = T.alloc_local((4, 1), "uint32", layout="default")
            T.cuda.tile.apply(T.ptx["mul.rn.f32"], r, r, 2)
            T.cuda.tile.apply(T.ptx["add.u32"], u, u, 7)
            T.cuda.tile.apply(T.ptx["mov.b32"], u, -1)
            T.cuda.tile.apply(T.ptx["mov.b32"], r, 1.5, scope="warp", pred=n > 0, preserve_dst=True)
    """
    mul, add, move, half = calls(
        lower(make(text), out=tensor("int32", 8), n=ScalarArg(d.int32)).function, "tile.apply"
    )
    assert mul.args[1].items[2] == ir.Const(2.0, ir.FLOAT32)
    assert add.args[1].items[2] == ir.Const(7, ir.UINT32)
    assert move.args[1].items[1] == ir.Const(2**32 - 1, ir.UINT32)
    assert half.args[1].items[1] == ir.Const(1.5, ir.FLOAT32)
    assert [k.name for k in half.args[2].items] == ["pred", "preserve_dst"]


def test_parameters_of_apply() -> None:
    text = """
        def k(out, n, policy):
            r = T.alloc_local((4, 2), "uint32", layout="default")
            T.cuda.tile.apply(
                T.ptx["ld.global.L2::cache_hint.v2.b32"], r, out.sub[0:8].view(4, 2),
                cache_policy=policy, pred=n > 0, preserve_dst=True)
            T.cuda.tile.apply(T.ptx["ld.global.L2::cache_hint.v2.b32"], r, out[0:2], cache_policy=7, pred=None)
    """
    dynamic, literal = calls(
        lower(make(text), out=tensor("int32", 8), n=ScalarArg(d.int32), policy=ScalarArg(d.uint64)).function,
        "tile.apply",
    )  # fmt: skip
    values = {k.name: k.value for k in dynamic.args[2].items}
    assert values["cache_policy"] == ir.Var("policy", ir.UINT64)
    assert isinstance(values["pred"], ir.Binary) and values["preserve_dst"].value is True
    assert isinstance(dynamic.args[1].items[1], ir.View)
    values = {k.name: k.value for k in literal.args[2].items}
    assert values["cache_policy"].value == 7
    assert values.get("pred", ir.Static(None)) == ir.Static(None)
    assert isinstance(literal.args[1].items[1], ir.Region)


@pytest.mark.parametrize("statement", ["out[0] = r[n, 0]", "r[n, 0] = 1.0", "x = r.ptr_to([n, 0])"])
def test_elements_of_other_threads_are_refused(statement: str) -> None:
    text = f"""
        def k(out, n):
            r = T.alloc_local((32, 4), "float32", layout="(32,4):(1@laneid,1)")
            {statement}
    """
    with pytest.raises(SyntaxUnsupported, match="runs over laneid") as caught:
        lower(make(text), out=tensor("float32", 8), n=ScalarArg(d.int32))
    assert "^" in str(caught.value)


EWISE = """
    def silu(x: T.float32) -> T.float32:
        if x > 0:
            y = x * 2
            return y
        return 0
    def k(out, a):
        r = T.alloc_local((4,), "float32", layout="default")
        i = T.alloc_local((4,), "int32", layout="default")
        T.cuda.tile.ewise(silu, r, r)
        T.cuda.tile.ewise(lambda x, y: x * y + 1, r, r, a)
        T.cuda.tile.ewise(lambda x: T.cast(x, "int32"), i, r, scope="warp")
        def local(x): return T.exp(x) / 2
        T.cuda.tile.ewise(local, r, r)
"""


def test_ewise_bodies() -> None:
    function = lower(make(EWISE), out=tensor("int32", 8), a=ScalarArg(d.float32)).function
    bodies = [c.args[0] for c in calls(function, "tile.ewise")]
    assert [b.type for b in bodies] == [ir.FLOAT32, ir.FLOAT32, ir.INT32, ir.FLOAT32]
    assert isinstance(bodies[0].body[0], ir.If) and len(bodies[1].params) == 2
    assert parse_function(print_function(function)) == function


@pytest.mark.parametrize("body,message", [
    ("T.cuda.tile.ewise(lambda x, y: x, r, r)", "takes 2 values"),
    ("T.cuda.tile.ewise(lambda x: out[0], r, r)", "memory"),
    ("T.cuda.tile.ewise(lambda x: x * n, r, r)", "run-time value from outside"),
    ("T.cuda.tile.ewise(3, r, r)", "scalar function"),
])  # fmt: skip
def test_ewise_refusals(body: str, message: str) -> None:
    text = f"def k(out, n):\n    r = T.alloc_local((4,), 'float32')\n    {body}"
    with pytest.raises(SyntaxUnsupported, match=message):
        lower(make(text), out=tensor("float32", 8), n=ScalarArg(d.float32))


def test_convergent_calls_are_taken_once() -> None:
    text = "def k(out, x):\n    y = T.cuda.shfl_xor(x, 1)\n    out[0] = y + y\n    if T.cuda.elect_sync():\n        out[1] = 1"
    function = lower(make(text), out=tensor("int32", 8), x=ScalarArg(d.int32)).function
    assert len(calls(function, "cuda.shfl_xor")) == 1
    declared = [s for s in function.body if isinstance(s, ir.Declare)]
    assert declared[0].var.name == "y" and declared[1].value.op == "cuda.elect_sync"


def test_dynamic_dims_and_strides() -> None:
    def k(X: T.Tensor((T.dynamic("M"), "N")), out, Y: T.Tensor((T.dynamic("M"),)) | None):
        M, N = X.shape
        tiles = (M + 63) // 64
        T.device_entry(launch=T.cuda.LaunchConfig(grid=(tiles, 2), block=64))
        i = T.cuda.block_idx("x") * 64 + T.cuda.thread_idx("x")
        if i < M and Y is None:
            out[i] = X[i, N - 1]

    arg = TensorArg(d.float32, (None, 16), (None, 1), 16)
    kernel = frontend.parse(k)
    function = frontend.lower(
        kernel,
        Signature((("X", arg), ("out", tensor("float32", 8)), ("Y", ConstArg(None))), "sm_90a"),
    ).function
    assert [p.name for p in function.params] == ["X", "out", "M", "X_stride0"]
    assert function.launch.grid_bound == (2**31 - 1, 2, 1)
    assert function.params[0].type.shape == (function.params[2], 16)


@pytest.mark.parametrize("args,message", [
    ({"X": tensor("float16", 8, 64)}, "holds float16, expected float32"),
    ({"X": tensor("float32", 8, 64, align=4)}, "aligned to 4 bytes, expected 16"),
    ({"X": tensor("float32", 8)}, "1 axes, expected 2"),
    ({"Y": tensor("float32", 8, 65)}, "N is 65 on axis 1 of 'Y' but 64 on axis 1 of 'X'"),
    ({"X": ConstArg(None)}, "'X' is a tensor, got None"),
    ({"alpha": tensor("float32", 8, 64)}, "run-time float32, got a tensor"),
    ({"WARPS": ScalarArg(d.int32)}, "compile-time, got a run-time int32"),
])  # fmt: skip
def test_signature_faults(args: dict[str, object], message: str) -> None:
    matrix = tensor("float32", 8, 64)
    base = {"X": matrix, "Y": matrix, "alpha": ScalarArg(d.float32)}
    with pytest.raises(SyntaxUnsupported, match=message):
        lower(scale_rows, **{**base, **args})


# --- helpers


def test_errors_in_helpers_show_both_frames() -> None:
    text = "def helper(x):\n    return x.nothing\ndef k(out, n):\n    out[0] = helper(n)\n"
    with pytest.raises(SyntaxUnsupported) as caught:
        results(make(text), n=1)
    span = caught.value.diagnostics[0].span
    assert span is not None and span.function == "helper" and span.call_site is not None
    assert span.call_site.function == "k" and "inlined at" in str(caught.value)


def test_jit_helpers_and_methods() -> None:
    helper = Jit(lambda x, y=2: x * y)
    import dataclasses
    import enum

    @dataclasses.dataclass(frozen=True)
    class Plan:
        scale: int

        def apply(self, x):
            return x * self.scale

        @property
        def double(self):
            return self.scale * 2

    class Mode(enum.Enum):
        A = 1

    kernel = make(
        "def k(out, n, p: T.constexpr, mode: T.constexpr):\n    out[0] = helper(n) + p.apply(n) + p.double\n"
        "    if mode is Mode.A: out[1] = mode.value\n    q = Plan(n)\n    out[2] = q.scale + q.apply(3)\n",
        helper=helper, Plan=Plan, Mode=Mode,
    )  # fmt: skip
    got = results(kernel, n=5, p=ConstArg(Plan(7)), mode=ConstArg(Mode.A))
    assert got[:3] == [10 + 35 + 14, 1, 20]


def test_recursion_ends_or_is_refused() -> None:
    text = "def f(i, x):\n    if i == 0: return x\n    return f(i - 1, x * 2)\ndef k(out, n):\n    out[0] = f({}, n)"
    assert results(make(text.format(4)), n=3)[0] == 48
    with pytest.raises(SyntaxUnsupported, match="64 deep"):
        results(make(text.format("n")), n=3)


def test_language_functions_have_signatures_and_explain_themselves() -> None:
    for module in (core, scalar_math, cuda, tile):
        for name, function in vars(module).items():
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            assert function.__doc__, name
            if name in ("layout", "ceildiv"):
                continue
            needed = [
                p for p in inspect.signature(function).parameters.values() if p.default is p.empty
            ]
            count = len([p for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD])
            kwargs = {p.name: None for p in needed if p.kind is p.KEYWORD_ONLY}
            with pytest.raises(OutsideKernel, match="inside a kernel"):
                function(*[0] * count, **kwargs)
    with pytest.raises(TypeError, match="inside a kernel"):
        T.uint32(1)


# --- captures


GLOBAL_LIST = [1, 2]


def test_captured_values_are_recorded() -> None:
    kernel = make(
        "def helper(x):\n    return x + G\ndef k(out, n):\n    out[0] = helper(n) * H[1]\n",
        G=5,
        H=(1, 2),
    )
    lowered = frontend.lower(
        kernel, signature(kernel, out=tensor("int32", 8), n=ScalarArg(d.int32))
    )
    assert dict(lowered.captured) == {"made.G": 5, "made.H": (1, 2)}
    assert len(lowered.sources) == 2 and "return x + G" in lowered.sources[1]
    kernel.function.__globals__["G"] = 6
    assert {w.label: w.current() for w in lowered.watches}["made.G"] == 6


@pytest.mark.parametrize("value,message", [
    ([1], "a list, which can change"),
    ({1: 2}, "a dict, which can change"),
    (([1],), "it holds a list"),
])  # fmt: skip
def test_mutable_captures_are_refused(value: object, message: str) -> None:
    with pytest.raises(SyntaxUnsupported, match=message) as caught:
        results(make("def k(out, n):\n    x = G\n    out[0] = n\n", G=value), n=1)
    assert "G" in str(caught.value)


def test_arrays_are_refused() -> None:
    import numpy as np

    with pytest.raises(SyntaxUnsupported, match="pass it as a kernel argument"):
        results(make("def k(out, n):\n    x = G\n    out[0] = n\n", G=np.zeros(3)), n=1)


def test_closures_give_distinct_kernels() -> None:
    def build(N):
        def k(out):
            out[0] = N

        return k

    assert [results(build(n))[0] for n in (128, 256)] == [128, 256]


# --- source


def test_postponed_string_and_closure_annotations() -> None:
    # This very module postpones its annotations.
    alias = T.constexpr

    def k(out, n: "T.constexpr", m: alias, x: T.float32 = 1.0):
        out[0] = n + m

    kernel = frontend.parse(k)
    assert [p.kind for p in kernel.params] == ["any", "constexpr", "constexpr", "scalar"]
    assert kernel.params[3].has_default and kernel.params[3].default == 1.0


def test_exec_without_source_is_a_friendly_error() -> None:
    scope: dict[str, object] = {}
    exec("def k(out):\n    out[0] = 1\n", scope)
    with pytest.raises(SyntaxUnsupported) as caught:
        frontend.parse(scope["k"])  # type: ignore[arg-type]
    assert caught.value.codes == ("frontend/no-source",) and "source=" in str(caught.value)


def test_jit_takes_its_keywords_beside_the_function_and_before_it() -> None:
    text = "def k(out):\n    out[0] = 1\n"
    scope: dict[str, Any] = {}
    exec(text, scope)
    given: dict[str, Any] = {
        "source": text,
        "target": "sm_100a",
        "examples": [{"out": ("int32", (4,))}],
    }
    for kernel in (tilejit.jit(scope["k"], **given), tilejit.jit(**given)(scope["k"])):
        assert kernel.fixed_target and len(kernel.examples) == 1
        assert "out[0] = 1" in kernel.__tilejit_kernel__.text


def test_notebook_cells_and_repl_come_from_linecache() -> None:
    text = "def k(out):\n    out[0] = 42\n"
    file = "<ipython-input-3-abc>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, object] = {}
    exec(compile(text, file, "exec"), scope)
    kernel = frontend.parse(scope["k"])  # type: ignore[arg-type]
    assert kernel.file == file and results(kernel)[0] == 42


def test_lambdas_on_one_line_are_told_apart() -> None:
    pair = (lambda x: x + 1, lambda x: x + 2)
    kernel = make("def k(out, n):\n    out[0] = a(n)\n    out[1] = b(n)\n", a=pair[0], b=pair[1])
    assert results(kernel, n=1)[:2] == [2, 3]


def test_module_attributes_and_aliases() -> None:
    import math
    import types

    module = types.ModuleType("m")
    module.f = lambda x: x * 3
    module.SIZE = 4
    kernel = make("def k(out, n):\n    out[0] = m.f(n) + m.SIZE\n    out[1] = g(n)\n    out[2] = math.floor(2.5)\n",
                  m=module, g=module.f, math=math)  # fmt: skip
    assert results(kernel, n=2)[:3] == [10, 6, 2]


@pytest.mark.parametrize(
    ("target", "launch", "message"),
    [
        ("sm_90a", "block=1024", None),
        ("sm_90a", "block=1025", "at most 1024 threads"),
        ("sm_90a", "block=(1, 1, 65)", "which is 65 threads"),
        ("sm_90a", "block=32, cluster=16", None),
        ("sm_90a", "block=32, cluster=(16, 2)", "at most 16 CTAs"),
        ("sm_80", "block=32, cluster=2", "sm_80 has no clusters"),
    ],
)
def test_blocks_and_clusters_over_the_targets_limits(
    target: str, launch: str, message: str | None
) -> None:
    kernel = make(f"""
        def k(out):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=32, {launch}))
    """)
    args = Signature((("out", tensor("int32", 8)),), target)
    if message is None:
        frontend.lower(kernel, args)
        return
    with pytest.raises(SyntaxUnsupported) as caught:
        frontend.lower(kernel, args)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        ("named_barrier_sync(15, 1024)", None),
        ("named_barrier_sync(16, 64)", "barrier_id is 16, expected 0 to 15"),
        ("named_barrier_sync(-1, 64)", "barrier_id is -1"),
        ("named_barrier_sync(1, 0)", "counts 0 threads"),
        ("named_barrier_sync(1, 33)", "counts 33 threads, expected a multiple of 32"),
        ("warpgroup_sync(16)", "barrier_id is 16"),
    ],
)
def test_named_barriers_have_a_number_and_whole_warps(barrier: str, message: str | None) -> None:
    kernel = make(f"""
        def k(out):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1024))
            T.cuda.{barrier}
    """)
    args = Signature((("out", tensor("int32", 8)),), "sm_90a")
    if message is None:
        frontend.lower(kernel, args)
        return
    with pytest.raises(SyntaxUnsupported) as caught:
        frontend.lower(kernel, args)
    assert caught.value.codes == ("frontend/barrier",) and message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "layout", "fits"),
    [
        ("(1 << 17,)", '"default"', True),
        ("((1 << 17) + 1,)", '"default"', False),
        ("(1 << 17,)", "None", True),
        ("((1 << 17) + 1,)", "None", False),
        ("(32, 1 << 17)", 'T.layout("(32,131072):(1@laneid,1)")', True),
        ("(32, 1 << 17)", 'T.layout("(32,131072):(1@laneid,1) + 1")', False),
        ("(2, 4)", 'T.layout("(2,4):(131068,1)")', True),
        ("(2, 4)", 'T.layout("(2,4):(131069,1)")', False),
    ],
)
def test_a_local_tensor_fits_the_local_memory_of_a_thread(
    shape: str, layout: str, fits: bool
) -> None:
    kernel = make(f"""
        def k(X: T.Tensor((4,), "float32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            r = T.alloc_local({shape}, "float32", layout={layout})
    """)
    if fits:
        lower(kernel, X=tensor("float32", 4))
        return
    with pytest.raises(SyntaxUnsupported, match="at most 524288 bytes of local memory"):
        lower(kernel, X=tensor("float32", 4))


@pytest.mark.parametrize(
    "access",
    [
        "X[I, 0] = 1.0",
        "x = X[I, 0]",
        "X.sub[:, 0][I] = 1.0",
        "p = X.ptr_to([I, 3])",
        "v = X.sub[I, :]",
        "v = X.sub[I : I + 1, :]",
        "v = X[I : I + 1, :]",
    ],
)
def test_an_index_on_an_axis_without_bounds_never_wraps_around(access: str) -> None:
    """2**61 rows of 1024 elements are 0 modulo 2**64."""
    kernel = make(f"""
        def k(X: T.Tensor((T.dynamic("M"), 1024), "float32"), I: T.constexpr):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            {access}
    """)
    rows = TensorArg(d.float32, (None, 1024), (1024, 1), 16)
    lower(kernel, X=rows, I=ConstArg(1 << 38))
    for index in (1 << 49, 1 << 61, 1 << 63, 1 << 64):
        with pytest.raises(SyntaxUnsupported, match="no memory is as large|does not fit 64 bits"):
            lower(kernel, X=rows, I=ConstArg(index))


def test_annotations_of_a_plain_function_are_its_own() -> None:
    """A typed Python helper, a method of a record, names that exist only for the type checker."""
    kernel = make("""
        from typing import NamedTuple

        class Plan(NamedTuple):
            size: int

            def blocks(self, n: int) -> int:
                return -(-n // self.size)

        def double(x: float, times: "Mapping[str, int]" = 2) -> "Iterable[float]":
            return x * times

        def half(x: T.float32) -> "T.float32":
            return x / 2

        PLAN = Plan(4)

        def k(out: T.Tensor((T.dynamic("N"),), "float32")):
            (N,) = out.shape
            T.device_entry(launch=T.cuda.LaunchConfig(grid=PLAN.blocks(N), block=32))
            out[0] = double(out[1]) + half(out[2])
    """)
    text = print_function(lower(kernel, out=TensorArg(d.float32, (None,), (1,), 16)).function)
    assert "-N // int64(4)" in text and "x * float32(2.0) + x_1 / float32(2.0)" in text


def test_annotations_of_a_decorated_helper_mean_something() -> None:
    with pytest.raises(SyntaxUnsupported, match="means nothing to a kernel"):
        frontend.parse(lambda_with_int)


def lambda_with_int(x: int): ...
