"""The ewise contract: typed bodies, matching shapes, one evaluation per element."""

from __future__ import annotations

from tests.tile.kit import buffer, checked, codes, i32, kernel, text, var, views, whole
from tilejit import layout
from tilejit.ir import nodes
from tilejit.tile.family import Register, ScalarApply, Value

F32 = nodes.FLOAT32
X, Y = nodes.Var("x", F32), nodes.Var("y", F32)


def times(a, b):
    return nodes.Binary("mul", a, b, F32)


def function(*body, params=(X,), result=F32):
    return nodes.LambdaExpr("f", params, tuple(body), result)


SQUARE = function(nodes.Return(times(X, X)))


def ewise(f, *operands, scope="thread", params=()):
    call = nodes.Call("tile.ewise", (f, nodes.Tuple(operands)), attrs=nodes.ScopeAttrs(scope))
    return kernel(nodes.Evaluate(call), params=params)


def regs(name, shape=(2, 3), dtype="float32", notation="default"):
    return whole(buffer(name, shape, dtype, "local", notation))


A, B = regs("a"), regs("b")


def steps(f):
    return [s for _, found in checked(f).calls() for s in found]


def test_one_evaluation_per_element():
    found = steps(ewise(SQUARE, A, B))
    assert [s.repeat for s in found] == [(r, c) for r in range(2) for c in range(3)]
    assert all(isinstance(s, ScalarApply) for s in found)
    assert [s.dst.slot for s in found] == list(range(6))
    assert all(isinstance(s.inputs[0], Register) for s in found)


def test_no_register_group_axis_and_one_element():
    assert len(steps(ewise(SQUARE, regs("c", (1,)), regs("d", (1,))))) == 1


def test_scalar_inputs_broadcast():
    f = function(nodes.Return(times(X, Y)), params=(X, Y))
    alpha = var("alpha", F32)
    found = steps(ewise(f, A, B, alpha, params=(alpha,)))
    assert all(s.inputs[1] == Value(alpha) for s in found)


def test_zero_stride_inputs_broadcast_destinations_do_not():
    line = views.with_layout(regs("l", (3,)), (2, 3), layout.parse("(2,3):(0,1)"))
    assert codes(ewise(SQUARE, A, line)) == []
    assert codes(ewise(SQUARE, line, A)) == ["ewise/overlap"]


def test_shapes_and_types_match_exactly():
    assert codes(ewise(SQUARE, A, regs("s", (2, 2)))) == ["tile/repeats"]
    assert codes(ewise(SQUARE, A, regs("h", dtype="float16"))) == ["ewise/type"]
    assert codes(ewise(SQUARE, regs("h", dtype="uint32"), A)) == ["ewise/type"]
    assert codes(ewise(SQUARE, A, i32(1))) == ["ewise/type"]
    assert codes(ewise(SQUARE, A)) == ["ewise/operand-count"]
    alpha = var("alpha", F32)
    assert codes(ewise(SQUARE, alpha, A, params=(alpha,))) == ["ewise/destination"]


def test_operands_are_registers_of_the_thread():
    shared = whole(buffer("s", (2, 3), space="shared"))
    assert codes(ewise(SQUARE, A, shared)) == ["ewise/space"]
    spread = regs("w", (4, 32, 2), notation="(4,32,2):(1@warpid,1@laneid,1)")
    assert codes(ewise(SQUARE, spread, spread, scope="cta")) == []
    swapped = regs("v", (4, 32, 2), notation="(4,32,2):(1@laneid,1@warpid,1)")
    assert codes(ewise(SQUARE, spread, swapped, scope="cta")) == ["ewise/owner"]


def test_body_has_bindings_branches_and_returns():
    positive = nodes.Binary("gt", X, nodes.Const(0.0, F32), nodes.BOOL)
    t = nodes.Var("t", F32)
    relu = function(
        nodes.Declare(t, times(X, X)),
        nodes.If(positive, (nodes.Return(t),), (nodes.Return(nodes.Const(0.0, F32)),)),
    )
    assert codes(ewise(relu, A, B)) == []
    partial = function(nodes.If(positive, (nodes.Return(X),), ()))
    assert codes(ewise(partial, A, B)) == ["ewise/return"]
    exp = function(nodes.Return(nodes.Call("math.exp", (X,), F32)))
    assert codes(ewise(exp, A, B)) == []


def test_body_touches_no_memory_and_no_other_thread():
    shared = whole(buffer("s", (4,), space="shared"))
    reads = function(nodes.Return(nodes.Load(shared, (i32(0),), F32)))
    assert codes(ewise(reads, A, B)) == ["ewise/body"]
    talks = function(nodes.Return(nodes.Call("cuda.shfl_xor", (X, i32(1)), F32)))
    assert codes(ewise(talks, A, B)) == ["ewise/body"]
    assert "cuda.shfl_xor" in text(ewise(talks, A, B))
    loop = nodes.For(var("i"), i32(0), i32(2), nodes.Const(1, nodes.INT32), ())
    assert codes(ewise(function(loop, nodes.Return(X)), A, B)) == ["ewise/body"]
    asks = function(nodes.Return(nodes.Cast(nodes.HardwareId("tid"), F32)))
    assert codes(ewise(asks, A, B)) == ["ewise/body"]
