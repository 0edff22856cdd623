"""What a newcomer gets wrong first: the whole message, or what makes it repairable."""

from __future__ import annotations

import math
import operator
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import tilejit as tile
from tests.frontend.kernels import lower, make, tensor
from tilejit import T, dtypes
from tilejit.families import FAMILIES
from tilejit.ir.signature import ScalarArg, TensorArg
from tilejit.tile import checker

SPREAD = "(2,32,4):(1@warpid,1@laneid,1)"


@tile.jit
def without_scope(X: T.Tensor((2, 32, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    r = T.alloc_local((2, 32, 4), "float32", layout=T.layout(SPREAD))
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X)


def test_a_forgotten_scope_is_named_and_the_caret_is_on_the_operand() -> None:
    with pytest.raises(tile.ContractError) as caught:
        without_scope.check(torch.zeros(2, 32, 4))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "ld_st/owner"
    assert 'did you mean scope="cta"?' in dict(diagnostic.notes)["help"]
    assert diagnostic.span is not None
    source = Path(__file__).read_text().splitlines()[diagnostic.span.line - 1]
    assert source[diagnostic.span.col : diagnostic.span.end_col] == "r"
    text = diagnostic.render().splitlines()
    line = next(t for t in text if "T.cuda.tile.apply" in t)
    caret = next(t for t in text if t.strip().endswith("^"))
    assert line[caret.index("^")] == "r"


@tile.jit
def without_a_target():
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.ptx["tcgen05.fence::after_thread_sync"]()


def test_a_forgotten_target_is_named() -> None:
    with tile.simulation(target="sm_90a"), pytest.raises(tile.TargetError) as caught:
        without_a_target()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "target/unsupported"
    assert '@tile.jit(target="sm_100a")' in dict(diagnostic.notes)["help"]
    with tile.simulation(target="sm_100a"):
        without_a_target()


@tile.jit
def kept_axis(X: T.Tensor((8, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    for i in T.unroll(8):
        r = T.alloc_local((4,), "float32", layout="default")
        T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X[i, :])


def test_an_axis_of_extent_1_is_explained_and_unrolled_copies_are_shown_once() -> None:
    with pytest.raises(tile.ContractError) as caught:
        kept_axis.check(torch.zeros(8, 4))
    assert caught.value.codes == ("tile/repeats",) * 8
    text = str(caught.value)
    assert text.count("error[tile/repeats]") == 1
    assert "X.sub[i, :] drops it" in text
    assert "again: 7 more in the unrolled copies of this line" in text
    assert text.endswith("8 errors, 1 shown")


@tile.jit
def constant_destination(H: T.Tensor((8,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    old = T.int32(0)
    T.ptx["atom.global.add.s32"](old, H.ptr_to([0]), 1)


def test_a_constant_as_destination_says_what_to_write_instead() -> None:
    with pytest.raises(tile.ContractError) as caught:
        constant_destination.check(torch.zeros(8, dtype=torch.int32))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "ptx/destination"
    assert "r[0]" in dict(diagnostic.notes)["help"]


@tile.jit
def names_in_layouts(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((4, 32), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    R, S = 4, 1
    r = T.alloc_local((R, 32, 1), "float32", layout="(R,32,S):(S,1@laneid,R)")
    lanes = X.view(R, 32, S).permute(1, 0, 2)
    out = Y.view(R, 32, S).permute(1, 0, 2)
    T.cuda.tile.apply(T.ptx["ld.global.b32"], r.permute(1, 0, 2), lanes, scope="warp")
    T.cuda.tile.apply(T.ptx["st.global.b32"], out, r.permute(1, 0, 2), scope="warp")


def test_any_name_may_stand_in_a_layout(device: str) -> None:
    x = torch.arange(128.0, device=device).view(4, 32)
    y = torch.zeros_like(x)
    names_in_layouts(x, y)
    assert torch.equal(x, y)


@tile.jit
def folded(X: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "int32"), function: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    Y[t] = function(X[t], 3)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor"])
def test_functions_of_operator_are_the_operators(device: str, name: str) -> None:
    function = getattr(operator, name)
    x = torch.arange(-16, 16, dtype=torch.int32, device=device)
    y = torch.zeros_like(x)
    folded(x, y, function)
    assert y.tolist() == [function(v, 3) for v in x.tolist()]


@tile.jit
def many_repeats(count: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    r = T.alloc_local((count, 1), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["mov.f32"], r, 0.0)


def test_repeats_have_a_limit() -> None:
    many_repeats.check(4096)
    with pytest.raises(tile.ContractError) as caught:
        many_repeats.check(4097)
    assert caught.value.codes == ("tile/too-many-repeats",)


@tile.jit
def applied(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32"), function: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    r = T.alloc_local((1,), "float32", layout="default")
    t = T.cuda.thread_idx("x")
    r[0] = X[t]
    if T.constexpr(function in (max, T.max, operator.add)):
        T.cuda.tile.ewise(function, r, r, 0.5)
    else:
        T.cuda.tile.ewise(function, r, r)
    Y[t] = r[0]


@pytest.mark.parametrize("function,expected", [
    (T.tanh, torch.tanh),
    (T.exp, torch.exp),
    (T.abs, torch.abs),
    (abs, torch.abs),
    (T.max, lambda x: x.clamp(min=0.5)),
    (max, lambda x: x.clamp(min=0.5)),
    (operator.add, lambda x: x + 0.5),
    (operator.neg, torch.neg),
])  # fmt: skip
def test_ewise_takes_functions_of_the_language(device: str, function: Any, expected: Any) -> None:
    x = torch.linspace(-2, 2, 32, device=device)
    y = torch.zeros_like(x)
    applied(x, y, function)
    assert torch.allclose(y, expected(x), atol=1e-3)


MISTAKES = [
    ("T.cuda.cta_sync", "drops it", "call it: T.cuda.cta_sync()"),
    ("T.cuda.thread_idx('x') + 1", "drops it", "assign it, or delete the line"),
    ("if t < N: pass", "'N' is not defined", "(N,) = X.shape gives it"),
    ("if t < C: pass", "'C' is not defined", "R, C, _ = A.shape gives it"),
    ("A[t] = 1.0", "1 index for 3 axes", "A[i, j, :] is a row"),
    ("A[t, 0] = 1.0", "2 indices for 3 axes", "an element has 3 indices, A[i, j, k]"),
    ("X[t] = A[t]", "1 index for 3 axes: one element takes one scalar", "A[i, j, k]"),
    ("X[t] = A[t, 0, 0:2]", "[frontend/store]: one element takes one scalar", "A[i, j, k]"),
    ("X[t] = X", "one element takes one scalar, got a global view", "an element is X[i]"),
    ("if t < X.shape: pass", "`<` takes numbers", "unpack it: (N,) = X.shape"),
    ("s = T.alloc_shared((32,), torch.float32)", "got torch.float32", '"float32" or T.float32'),
    ("s = T.alloc_shared((32,), numpy.float16)", "got numpy.float16", '"float16" or T.float16'),
    ("s = T.alloc_shared((32,), INT8)", "got int8", '"int8" or T.int8'),
    ("s = T.alloc_shared((32,), torch.bool)", "got torch.bool", '"bool" or T.bool_'),
    ("s = T.alloc_shared((32,), float)", "got float", '"float32" or T.float32'),
    ("s = T.alloc_shared((32,), 'bf16')", "unknown dtype", '"bfloat16" or T.bfloat16'),
    ("T.cuda.tile.ewise(T.fma, r, r)", "missing a required argument", "T.fma(a"),
    ("T.cuda.tile.ewise(math.exp, r, r)", "exp cannot take run-time values", "T.exp"),
    ("if t < A.shape: pass", "`<` takes numbers", "unpack it: M, N, K0 = X.shape"),
    ("T.cta_sync()", "T has no 'cta_sync'", "did you mean T.cuda.cta_sync?"),
    ("T.LaunchConfig()", "T has no 'LaunchConfig'", "did you mean T.cuda.LaunchConfig?"),
    ("T.ewise()", "T has no 'ewise'", "did you mean T.cuda.tile.ewise?"),
    ("T.cuda.exp(t)", "T.cuda has no 'exp'", "did you mean T.exp?"),
    ("T.cuda.thread_id()", "T.cuda has no 'thread_id'", "T.cuda.thread_idx"),
    ("T.zeros((4,))", "T has no 'zeros'", "docs/language.md lists everything in T"),
    ("T.print('t=%d', t)", "0 holes for 1 values", "each {} in the text marks a value"),
]


@pytest.mark.parametrize("body,message,help_text", MISTAKES, ids=[m[0] for m in MISTAKES])
def test_what_to_write_instead(body: str, message: str, help_text: str) -> None:
    text = (
        "def k(X: T.Tensor(('N',)), A: T.Tensor(('R', 'C', 4))):\n"
        f"    t = T.cuda.thread_idx('x')\n    r = T.alloc_local((4,), 'float32')\n    {body}\n"
    )
    kernel = make(text, math=math, torch=torch, numpy=numpy, INT8=numpy.dtype("int8"))
    with pytest.raises(tile.SyntaxUnsupported, match=re.escape(message)) as caught:
        lower(kernel, X=tensor("float32", 32), A=tensor("float32", 32, 8, 4))
    (diagnostic,) = caught.value.diagnostics
    assert help_text in dict(diagnostic.notes)["help"]
    assert diagnostic.span is not None


@pytest.mark.parametrize("extent", ["N / 32", "n / 32"])
def test_a_grid_is_divided_with_two_slashes(extent: str) -> None:
    kernel = make(
        "def k(X: T.Tensor(('N',)), n: T.int32):\n    (N,) = X.shape\n"
        f"    T.device_entry(launch=T.cuda.LaunchConfig(grid={extent}, block=32))\n"
    )
    with pytest.raises(tile.SyntaxUnsupported, match="a grid extent is an integer.*") as caught:
        lower(kernel, X=tensor("float32", 64), n=ScalarArg(T.int32))
    assert "//" in dict(caught.value.diagnostics[0].notes)["help"]


@pytest.mark.parametrize("given,written", [
    (torch.float32, '"float32" or T.float32'), ("f32", '"float32" or T.float32'),
    ("half", '"float16" or T.float16'), (numpy.int64, '"int64" or T.int64'),
    ("s32", '"int32" or T.int32'), ("flot32", '"float32" or T.float32'),
])  # fmt: skip
def test_an_annotation_says_how_the_dtype_is_written(given: Any, written: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"write {written}")):
        T.Tensor(("N",), given)


def test_standard_input_is_not_sent_to_the_repl() -> None:
    helps = []
    for file in ("<stdin>", "<string>"):
        scope: dict[str, Any] = {}
        exec(compile("def k(): pass", file, "exec"), scope)
        with pytest.raises(tile.SyntaxUnsupported) as caught:
            tile.jit(scope["k"])
        assert caught.value.codes == ("frontend/no-source",)
        helps.append(dict(caught.value.diagnostics[0].notes)["help"])
    assert ["REPL" in text for text in helps] == [False, True]


@tile.jit
def run_time_rows(X: T.Tensor((32, T.dynamic("K")), "float16", align=16), Y: T.Tensor((32, 8), "float16", align=16),
                  STRIDES: T.constexpr):  # fmt: skip
    _, K = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.assume(K >= 8)
    if STRIDES:
        T.assume(X.strides[0] % 8 == 0)
    thread = T.cuda.thread_idx("x")
    staged = T.alloc_shared((32, 8), "float16", layout="default", align=16)
    T.static_assert(X.strides[1] == 1 and staged.strides == (8, 1), "what is known is a number")
    for k in range(K // 8):
        T.cuda.tile.apply(
            T.ptx["cp.async.cg.shared.global"],
            staged.sub[thread, :], X.sub[thread, 8 * k : 8 * k + 8], chunk_bytes=16,
        )  # fmt: skip
        T.ptx["cp.async.commit_group"]()
        T.ptx["cp.async.wait_group"](0)
    r = T.alloc_local((4,), "uint32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], r, staged.view("uint32").sub[thread, :])
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.view("uint32").sub[thread, :], r)


def test_run_time_strides_have_a_name(device: str) -> None:
    wide = torch.randn(32, 200, device=device).half()
    for x in (wide[:, :64].contiguous(), wide[:, :128]):
        y = torch.zeros(32, 8, dtype=x.dtype, device=device)
        run_time_rows(x, y, STRIDES=True)
        assert torch.equal(y, x[:, -8:])
    with pytest.raises(tile.ContractError) as caught:
        run_time_rows.check(x, y, STRIDES=False)
    assert caught.value.codes == ("cp_async/alignment",)


def mistake(body: str) -> str:
    """The message about a kernel of one thread whose last lines are ``body``."""
    source = (
        'def k(X: T.Tensor((64, T.dynamic("K")), "float16", align=16), n: T.int32):\n'
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
        '    S = T.alloc_shared((8, 8), "float16", layout="default", align=16)\n'
        '    copy = T.ptx["cp.async.cg.shared.global"]\n' + textwrap.indent(body, "    ")
    )
    x = TensorArg(dtypes.float16, (64, None), (None, 1), 16)
    with pytest.raises(tile.TileError) as caught:
        checker.check(lower(source, X=x, n=ScalarArg(dtypes.int32)).function, FAMILIES)
    return str(caught.value)


def test_what_newcomers_to_copies_got_wrong() -> None:
    dropped = mistake('T.ptx["cp.async.commit_group"]\n')
    assert "call it: T.ptx['cp.async.commit_group']()" in dropped
    counted = mistake('for k in range(n):\n    T.ptx["cp.async.wait_group"](k)\n')
    assert 'T.ptx["cp.async.wait_group"](k)' in counted and "T.unroll" in counted
    fill = "T.cuda.tile.apply(copy, S.sub[0, :], X.sub[0, 0:8], chunk_bytes=16, {})\n"
    assert "ignore_src" in mistake(fill.format("src_size=n < 2"))
    assert "clamp" in mistake(fill.format("src_size=T.int64(n)"))
    copies = "T.cuda.tile.apply(copy, S.sub[n, :], X.sub[0, 0:8], chunk_bytes=16, pred=n < 8)\n"
    assert "pred proves nothing" in mistake(copies)
    assert ".strides gives them" in mistake("T.static_assert(X.layout is None, 'x')\n")
    assert "range(…) makes a run-time loop" in mistake("for i in T.unroll(n):\n    pass\n")
