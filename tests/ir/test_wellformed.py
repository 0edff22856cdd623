"""Malformed functions are refused with the reason; their nearest right forms are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ir.samples import (
    ALPHA,
    TID,
    TMEM,
    N,
    R,
    S,
    X,
    c,
    function,
    load,
    scalar,
    scalar_function,
)
from tilejit import dtypes, layout
from tilejit.errors import InternalError
from tilejit.ir import build, nodes, views, wellformed

LAUNCH = nodes.LaunchConfig(None, (32,))
I64 = nodes.INT64


def verify(*body: nodes.Stmt, launch: nodes.LaunchConfig = LAUNCH) -> None:
    wellformed.verify(nodes.Function("k", (X, N, ALPHA), launch, body, "sm_90a"))


def refused(message: str, *body: nodes.Stmt, launch: nodes.LaunchConfig = LAUNCH) -> None:
    with pytest.raises(InternalError, match=message) as caught:
        verify(*body, launch=launch)
    assert caught.value.codes == ("ir/malformed",)


def let(value: nodes.Expr) -> nodes.Declare:
    return nodes.Declare(nodes.Var("x", value.type), value)


def ev(op: str, *args: nodes.Expr, type=nodes.VOID, attrs=None) -> nodes.Evaluate:
    return nodes.Evaluate(nodes.Call(op, args, type, attrs))


y = scalar("y")


def test_scopes() -> None:
    declare, use = nodes.Declare(y, c(1)), nodes.Assign(y, c(2))
    verify(declare, use)
    refused("'y' is used where it is not declared", use, declare)
    refused("'y' is declared twice", declare, declare)
    inside = nodes.If(build.lt(N, c(1)), (declare, use), ())
    verify(inside)
    refused("not declared", inside, use)
    refused("'n' is declared twice", nodes.Declare(N, c(1)))
    refused("'y' is used with type int64", declare, nodes.Assign(scalar("y", dtypes.int64), c(1, dtypes.int64)))  # fmt: skip
    refused("'a b' is not a name", nodes.Declare(scalar("a b"), c(1)))
    refused("'if' is not a name", nodes.Declare(scalar("if"), c(1)))
    refused("not declared", nodes.Declare(y, y))


def test_buffers_live_on_after_their_block() -> None:
    store = nodes.Store(views.whole(R), (c(0), c(0)), ALPHA)
    inside = nodes.If(build.lt(N, c(1)), (nodes.AllocTensor(R),), ())
    verify(inside, store)
    refused("not declared", store)
    refused("declared with type", nodes.Declare(R, None))
    refused("buffer 'r' is assigned", nodes.AllocTensor(R), nodes.Assign(R, R))


def test_loops() -> None:
    loop = nodes.For(y, c(0), N, c(1), (nodes.Break(),))
    verify(loop)
    verify(nodes.While((nodes.Continue(),)))
    refused("Break outside a loop", nodes.Break())
    refused("Continue outside a loop", nodes.If(build.lt(N, c(1)), (nodes.Continue(),), ()))
    refused("not a nonzero constant", nodes.For(y, c(0), N, c(0), ()))
    refused("not a nonzero constant", nodes.For(y, c(0), N, N, ()))
    refused("expected int32, got int64", nodes.For(y, c(0), c(4, dtypes.int64), c(1), ()))
    refused("'y' is immutable", nodes.For(y, c(0), N, c(1), (nodes.Assign(y, c(1)),)))
    refused("not declared", loop, nodes.Assign(y, c(1)))
    refused("not an integer", nodes.For(scalar("f", dtypes.float32), ALPHA, ALPHA, ALPHA, ()))


@pytest.mark.parametrize(
    "value, message",
    [
        (nodes.Binary("add", N, ALPHA, nodes.INT32), "expected int32, got float32"),
        (nodes.Binary("add", N, N, I64), "add has type int64, not int32"),
        (nodes.Binary("lt", N, N, nodes.INT32), "lt has type int32, not bool"),
        (nodes.Binary("truediv", N, N, nodes.INT32), "truediv of int32"),
        (nodes.Binary("bitand", ALPHA, ALPHA, nodes.FLOAT32), "bitand of float32"),
        (nodes.Binary("and", N, N, nodes.BOOL), "and of int32"),
        (nodes.Binary("add", c(True, dtypes.bool_), c(True, dtypes.bool_), nodes.BOOL), "add of bool"),
        (nodes.Binary("shl", ALPHA, N, nodes.FLOAT32), "shl of float32"),
        (nodes.Binary("shl", N, ALPHA, nodes.INT32), "a shift count is float32"),
        (nodes.Unary("not", N, nodes.INT32), "not of int32"),
        (nodes.Unary("invert", ALPHA, nodes.FLOAT32), "invert of float32"),
        (nodes.Unary("neg", N, I64), "expected int64, got int32"),
        (nodes.Select(N, N, N, nodes.INT32), "expected bool, got int32"),
        (nodes.Select(build.lt(N, TID), N, ALPHA, nodes.INT32), "expected int32, got float32"),
        (nodes.Bitcast(N, I64), "a bitcast from 32 to 64 bits"),
        (nodes.Const(1 << 31, nodes.INT32), "2147483648 is no int32"),
        (nodes.Const(True, nodes.INT32), "True is no int32"),
        (nodes.HardwareId("tid.w"), "no hardware id is called 'tid.w'"),
        (nodes.Address(X, ALPHA, nodes.PointerType("global")), "an offset is float32"),
        (nodes.Address(X, N, nodes.PointerType("shared")), r"ptr<shared> into global space"),
        (nodes.Address(N, N, nodes.PointerType("global")), "'n' is no buffer"),
        (nodes.Load(views.whole(X), (N,), nodes.ScalarType(dtypes.float16)), "1 indices for 2 axes"),
        (nodes.Load(views.whole(X), (N, N), nodes.FLOAT32), "a load has another type"),
        (nodes.Load(views.whole(X), (N, ALPHA), nodes.ScalarType(dtypes.float16)), "an index is float32"),
        (nodes.Call("math.exp", (N,), nodes.INT32), "is int32, expected float"),
        (nodes.Call("math.exp", (ALPHA,), nodes.INT32), "math.exp has type int32, not float32"),
        (nodes.Call("math.exp", (), nodes.FLOAT32), "takes 1 arguments, got 0"),
        (nodes.Call("math.exq", (ALPHA,), nodes.FLOAT32), "no operation is called 'math.exq'"),
        (nodes.Call("math.pow", (ALPHA, c(1.0, dtypes.float64)), nodes.FLOAT32), "is float64, not float32"),
        (nodes.Call("cuda.shfl_idx", (ALPHA, ALPHA), nodes.FLOAT32), "is float32, expected int32"),
        (nodes.Call("bits.popc", (ALPHA,), nodes.INT32), "is float32, expected int"),
    ],
)  # fmt: skip
def test_expression_types(value, message) -> None:
    refused(message, let(value))


def test_right_expressions() -> None:
    verify(
        let(nodes.Binary("shl", N, c(3, dtypes.uint32), nodes.INT32)),
        nodes.Evaluate(nodes.Call("math.pow", (ALPHA, ALPHA), nodes.FLOAT32)),
        nodes.Evaluate(nodes.Call("cuda.shfl_idx", (N, TID), nodes.INT32)),
        nodes.Declare(y, nodes.Bitcast(ALPHA, nodes.INT32)),
    )


def test_views_and_regions() -> None:
    alloc, whole = nodes.AllocTensor(R), views.whole(R)

    def use(e: nodes.Expr) -> nodes.Evaluate:
        return ev("tile.apply", nodes.Text("mov.b32"), nodes.Tuple((e,)), nodes.Tuple(()), attrs=nodes.ScopeAttrs())  # fmt: skip

    verify(alloc, use(whole), use(nodes.Region(whole, (N, N), (1, 1))))
    refused(
        "1 starts and 2 extents in a view of 2 axes", alloc, use(nodes.Region(whole, (N,), (1, 1)))
    )
    refused("empty extent", alloc, use(nodes.Region(whole, (N, N), (1, 0))))
    refused("start is float32", alloc, use(nodes.Region(whole, (N, ALPHA), (1, 1))))
    wrong = nodes.View(R, dtypes.float32, (5, 8), layout.row_major((4, 8)), c(0, dtypes.int64))
    refused("a view of 40 elements has a layout of 32", alloc, use(wrong))
    bad_stride = nodes.View(R, dtypes.float32, (4, 8), layout.row_major((4, 8)), c(0), ((2, N),))
    refused("a stride of axis 2", alloc, use(bad_stride))

    def picked(*pick) -> nodes.Evaluate:
        return use(replace(whole, picks=(nodes.Pick(*pick),)))

    verify(alloc, picked(N, 2, 4, 0), picked(N, 1, N, 0))
    refused("an index is float32", alloc, picked(ALPHA, 1, 4, 0))
    refused("an extent is float32", alloc, picked(N, 1, ALPHA, 0))
    refused("a view of 0 indices of axis 1", alloc, picked(N, 0, 4, 1))
    refused("a view of 1 indices of axis -1", alloc, picked(N, 1, 4, -1))
    refused("'y' is used where it is not declared", alloc, picked(y, 1, 4, 0))
    refused("expected float16", nodes.AllocTensor(S), nodes.Store(views.whole(S), (N, N), ALPHA))
    refused("allocated in global space", nodes.AllocTensor(nodes.Var("G", X.type)))


def in_tensor_memory(
    text: str | None,
    shape: tuple[int | nodes.Var, ...] = (128, 8),
    dtype: dtypes.DType = dtypes.uint32,
    space: nodes.Space = "tmem",
) -> nodes.DeclTmem:
    where = None if text is None else layout.parse(text)
    return nodes.DeclTmem(
        nodes.Var("T", nodes.TensorType(shape, dtype, where, space, 4)), c(0, dtypes.uint32)
    )


def test_tensor_memory_is_declared() -> None:
    zero = c(0, dtypes.uint32)
    declare, whole = nodes.DeclTmem(TMEM, zero), views.whole(TMEM)
    place = let(nodes.Address(TMEM, N, nodes.PointerType("tmem")))
    verify(declare, place)
    refused("'acc' is declared twice", declare, declare)
    refused(
        "'acc' is used where it is not declared", nodes.If(build.lt(N, N), (declare,), ()), place
    )
    refused("no element access", declare, let(load(whole, N, N)))
    refused("allocated in tmem space", nodes.AllocTensor(TMEM))
    refused("expected uint32, got int32", nodes.DeclTmem(TMEM, c(0)))
    refused("'r' is declared in local space", nodes.DeclTmem(R, zero))
    refused("'n' is no tensor", nodes.DeclTmem(scalar("n"), zero))
    refused(
        "a ptr<tmem> into shared space", nodes.AllocTensor(S), let(replace(place.value, buffer=S))
    )


@pytest.mark.parametrize(
    "declared, message",
    [
        (in_tensor_memory(None), "it has no layout"),
        (in_tensor_memory("swizzle(0,1,1) o (128,8):(1@TLane,1@TCol)"), "swizzled"),
        (in_tensor_memory("(128,8):(1@TLane,1)"), "runs over m, expected TLane and TCol"),
        (in_tensor_memory("(128,8):(1@laneid,1@TCol)"), "runs over laneid"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol) + 1@warpid"), "runs over warpid"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol) + 1@TLane"), "reaches TLane 128"),
        (in_tensor_memory("(128,8):(-1@TLane,1@TCol)"), "reaches TLane -127"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol) + R[2:1@TLane]"), "reaches TLane 128"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol) + 505@TCol"), "reaches TCol 512"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol) - 1@TCol"), "reaches TCol -1"),
        (in_tensor_memory("(128,8):(1@TLane,147@TCol)", dtype=dtypes.float16), "reaches TCol 1029; .* 1024 elements of 16 bits"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol)", dtype=dtypes.float64), "elements of float64 have 64 bits"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol)", dtype=dtypes.float6_e2m3fn), "elements of float6_e2m3fn have 6 bits"),
        (in_tensor_memory("(128,8):(1@TLane,1@TCol)", (128, N)), "known at run time only"),
    ],
)  # fmt: skip
def test_what_lies_in_tensor_memory_fits_it(declared: nodes.DeclTmem, message: str) -> None:
    refused(message, declared)


@pytest.mark.parametrize(
    "declared",
    [
        in_tensor_memory("(128,8):(1@TLane,1@TCol) + 504@TCol"),
        in_tensor_memory("(128,8):(-1@TLane,1@TCol) + 127@TLane"),
        in_tensor_memory("(128,8):(1@TLane,1@TCol) + 1016@TCol", dtype=dtypes.bfloat16),
        in_tensor_memory("(128,8):(1@TLane,1@TCol) + 4088@TCol", dtype=dtypes.float4_e2m1fn),
        in_tensor_memory("(64,8):(1@TLane,73@TCol) + R[2:64@TLane]", (64, 8)),
        in_tensor_memory("(128,8,1):(1@TLane,1@TCol,0)", (128, 8, 1)),
    ],
)
def test_what_just_fits(declared: nodes.DeclTmem) -> None:
    verify(declared)


def test_structural_calls() -> None:
    name, none = nodes.Text("mov.b32"), nodes.Tuple(())
    warp = nodes.ScopeAttrs("warp")
    verify(ev("ptx", name, none, none), ev("tile.apply", name, none, none, attrs=warp))
    refused("ptx and its scope", ev("ptx", name, none, none, attrs=warp))
    refused("tile.apply and its scope", ev("tile.apply", name, none, none))
    refused("tile.apply and its arguments", ev("tile.apply", name, none, attrs=warp))
    refused("without a name", ev("ptx", name, none, nodes.Tuple((N,))))
    refused("has a scope", ev("cuda.cta_sync", attrs=warp))
    refused("is no text", ev("print", N))
    verify(ev("print", nodes.Text("{} {}"), N, ALPHA))


def ewise(body: nodes.LambdaExpr) -> nodes.Evaluate:
    return ev("tile.ewise", body, nodes.Tuple(()), attrs=nodes.ScopeAttrs())


def test_scalar_functions() -> None:
    a = scalar("a", dtypes.float32)
    verify(ewise(scalar_function()))

    def body(*statements: nodes.Stmt) -> nodes.Evaluate:
        return ewise(nodes.LambdaExpr("f", (a,), statements, nodes.FLOAT32))

    verify(body(nodes.Return(a)))
    condition = build.lt(a, a)
    verify(body(nodes.If(condition, (nodes.Return(a),), (nodes.Return(a),))))
    refused("a path without a return", body(nodes.If(condition, (nodes.Return(a),), ())))
    refused("a path without a return", body())
    refused("returns nothing", body(nodes.Return()))
    refused("expected float32, got int32", body(nodes.Return(c(1))))
    refused("'alpha' is used where it is not declared", body(nodes.Return(ALPHA)))
    refused("While in a scalar function", body(nodes.While(()), nodes.Return(a)))
    refused("a kernel returns a value", nodes.Return(c(1)))


def test_launch() -> None:
    verify(launch=nodes.LaunchConfig((N, c(2)), (32, 4, 2), (2,)))
    refused("block", launch=nodes.LaunchConfig(None, (32, 0)))
    refused("cluster", launch=nodes.LaunchConfig(None, (32,), (1, 1, 1, 1)))
    refused("a grid size is float32", launch=nodes.LaunchConfig((ALPHA,), (32,)))
    refused("'y' is used", launch=nodes.LaunchConfig((y,), (32,)))


def test_parameters() -> None:
    other = nodes.Var("G", R.type)
    with pytest.raises(InternalError, match="'G' is not global"):
        wellformed.verify(nodes.Function("k", (other,), LAUNCH, (), "sm_90a"))
    with pytest.raises(InternalError, match="'n' is used where it is not declared"):
        wellformed.verify(nodes.Function("k", (X,), LAUNCH, (), "sm_90a"))
    wellformed.verify(function())
