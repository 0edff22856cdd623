"""A function with every node of the IR in it."""

from __future__ import annotations

import math

from tilejit import dtypes, layout
from tilejit.errors import Span
from tilejit.ir import build, nodes, views

SPAN = Span("kernel.py", 3, 4)


def scalar(name: str, dtype: dtypes.DType = dtypes.int32) -> nodes.Var:
    return nodes.Var(name, nodes.ScalarType(dtype))


def c(value: int | float | bool, dtype: dtypes.DType = dtypes.int32) -> nodes.Const:
    return build.const(value, dtype)


N, ALPHA, STRIDE = scalar("n"), scalar("alpha", dtypes.float32), scalar("stride", dtypes.int64)
X = nodes.Var(
    "X", nodes.TensorType((N, 64), dtypes.float16, layout.parse("(1,64):(0,1)"), "global", 16)
)
R = nodes.Var("r", nodes.TensorType((4, 8), dtypes.float32, layout.row_major((4, 8)), "local", 16))
S = nodes.Var(
    "smem",
    nodes.TensorType(
        (8, 64), dtypes.float16, layout.parse("swizzle(3,3,3) o (8,64):(64,1)"), "shared", 1024
    ),
)  # fmt: skip
TMEM = nodes.Var(
    "acc",
    nodes.TensorType(
        (64, 32), dtypes.float16, layout.parse("(64,32):(1@TLane,2@TCol) + R[2:64@TLane]"), "tmem", 4
    ),
)  # fmt: skip
BARE = nodes.Var("bare", nodes.TensorType((3,), dtypes.uint64, None, "local", 8))
TID = nodes.HardwareId("tid")


def load(view: nodes.View, *indices: nodes.Expr) -> nodes.Load:
    return nodes.Load(view, indices, nodes.ScalarType(view.dtype))


def scalar_function() -> nodes.LambdaExpr:
    a, b, t = scalar("a", dtypes.float32), scalar("b", dtypes.float32), scalar("t", dtypes.float32)
    body = (
        nodes.Declare(t, build.add(a, b)),
        nodes.If(build.lt(t, c(0.0, dtypes.float32)), (nodes.Return(build.neg(t)),), ()),
        nodes.Assign(t, nodes.Call("math.exp2", (t,), nodes.FLOAT32)),
        nodes.Return(t),
    )
    return nodes.LambdaExpr("soft", (a, b), body, nodes.FLOAT32)


def expressions() -> tuple[nodes.Stmt, ...]:
    x, p = scalar("x"), scalar("p", dtypes.bool_)
    q = nodes.Var("q", nodes.PointerType("shared"))
    u = scalar("u", dtypes.uint64)
    odd = build.sub(x, build.sub(TID, build.mul(x, x)))
    return (
        nodes.Declare(x, build.add(build.floordiv(TID, c(32)), N), span=SPAN),
        nodes.Declare(scalar("unwritten", dtypes.bfloat16), None),
        nodes.Declare(p, build.and_(build.lt(x, N), build.not_(build.eq(TID, x)))),
        nodes.Assign(p, build.or_(p, build.and_(p, nodes.Binary("or", p, p, nodes.BOOL)))),
        nodes.Assign(x, build.select(p, odd, build.maximum(x, build.absolute(x)))),
        nodes.Assign(x, build.bitxor(build.shl(x, c(3)), build.invert(build.neg(x)))),
        nodes.Assign(x, build.mod(build.bitor(build.shr(x, TID), c(-5)), build.minimum(x, c(7)))),
        nodes.Declare(scalar("h", dtypes.float16), build.cast(x, dtypes.float16)),
        nodes.Declare(
            scalar("f", dtypes.float32),
            build.truediv(build.bitcast(x, nodes.FLOAT32), c(math.inf, dtypes.float32)),
        ),
        nodes.Assign(scalar("f", dtypes.float32), c(-0.0, dtypes.float32)),
        nodes.Assign(scalar("f", dtypes.float32), c(math.nan, dtypes.float32)),
        nodes.Assign(scalar("f", dtypes.float32), c(-math.inf, dtypes.float32)),
        nodes.Declare(q, nodes.Address(S, build.index_mul(x, 2), nodes.PointerType("shared"))),
        nodes.Declare(u, build.cast(build.bitcast(q, nodes.UINT32), dtypes.uint64)),
        nodes.Store(views.whole(BARE), (x,), u),
        nodes.Assign(u, load(views.whole(BARE), c(0))),
    )


def calls() -> tuple[nodes.Stmt, ...]:
    rows = views.whole(X, ((0, STRIDE),))
    row = views.sub(rows, (TID, (None, None, None)))
    words = views.with_dtype(views.sub(rows, (c(0), (None, None, None))), dtypes.uint32)
    part = views.region(views.whole(R), (build.mod(TID, c(4)), (0, 8, None)))
    few = views.sub(rows, ((N, build.add(N, c(5)), c(2)), (TID, build.add(TID, c(8)), None)))
    scale = nodes.Keyword("pred", build.lt(TID, N))
    static = nodes.Keyword("shape", nodes.Static((1, "two", None)))
    operands = nodes.Tuple((part, words, rows, few, ALPHA))
    empty = nodes.Tuple(())
    apply = nodes.Call(
        "tile.apply", (nodes.Text("ld.global.v4.b32"), operands, nodes.Tuple((scale, static))),
        nodes.VOID, nodes.ScopeAttrs("cta"),
    )  # fmt: skip
    ewise = nodes.Call(
        "tile.ewise", (scalar_function(), nodes.Tuple((part, part, part))), nodes.VOID,
        nodes.ScopeAttrs("warp"),
    )  # fmt: skip
    raw = nodes.Call(
        "ptx", (nodes.Text("add.f32"), nodes.Tuple((ALPHA, load(row, c(0)), ALPHA)), empty)
    )
    return (
        nodes.Evaluate(apply),
        nodes.Evaluate(ewise),
        nodes.Evaluate(raw),
        nodes.Evaluate(nodes.Call("cuda.cta_sync", ())),
        nodes.Evaluate(nodes.Call("print", (nodes.Text("{} it's\n"), TID, ALPHA))),
    )


def tensor_memory() -> nodes.Stmt:
    """A buffer that ends with its block."""
    k = scalar("k")
    part = views.sub(views.whole(TMEM), ((32, 64, None), (k, build.add(k, c(8)), None)))
    place = nodes.Address(TMEM, build.index_mul(k, 2), nodes.PointerType("tmem"))
    body = (
        nodes.DeclTmem(TMEM, build.cast(N, dtypes.uint32), span=SPAN),
        nodes.Declare(nodes.Var("place", place.type), place),
        nodes.Evaluate(nodes.Call("print", (nodes.Text("{}"), part))),
    )
    return nodes.For(k, c(0), N, c(1), body)


def function() -> nodes.Function:
    i, j = scalar("i"), scalar("j")
    loop = nodes.For(
        i, c(0), N, c(2),
        (
            nodes.If(build.lt(i, c(3)), (nodes.Continue(),), (nodes.Break(),)),
            nodes.Store(views.whole(S), (i, c(0)), load(views.whole(S), c(1), i)),
        ),
    )  # fmt: skip
    unrolled = nodes.For(j, c(4), c(0), c(-1), (), unroll=True)
    forever = nodes.While((nodes.If(build.lt(TID, N), (nodes.Return(),), ()), nodes.Break()))
    body = (
        nodes.AllocTensor(R), nodes.AllocTensor(S), nodes.AllocTensor(BARE), *expressions(), loop,
        unrolled, forever, *calls(), tensor_memory(), nodes.Return(),
    )  # fmt: skip
    launch = nodes.LaunchConfig(
        grid=(build.floordiv(build.add(N, c(63)), c(64)), c(2)), block=(128, 2), cluster=(2,),
        dynamic_smem_bytes=1024, cooperative=True,
    )  # fmt: skip
    return nodes.Function("k", (X, N, ALPHA, STRIDE), launch, body, "sm_90a", span=SPAN)


def type_samples() -> nodes.Function:
    """Types that no statement of ``function`` carries: a call that gives a tuple of every kind."""
    kinds = (nodes.FLOAT32, nodes.PointerType("local"), nodes.VOID, X.type, nodes.TupleType(()))
    call = nodes.Call("made.up", (N,), nodes.TupleType(kinds))
    launch = nodes.LaunchConfig(None, (32,))
    return nodes.Function("t", (X, N), launch, (nodes.Evaluate(call),), "sm_100a")
