"""What the abstract run knows of variables at a call: ranges, congruences, uniformity."""

from __future__ import annotations

import pytest

from tests.tile.kit import apply, buffer, guard, hw, i32, kernel, op, var
from tilejit import dtypes
from tilejit.ir import nodes
from tilejit.tile.affine import CLUSTER, CTA, GRID, THREAD, WARP, Affine
from tilejit.tile.facts import analyse

TID = hw("tid")


def at_call(*body, params=(), **launch):
    """The site of the one tile call of a kernel."""
    facts = analyse(kernel(*body, params=params, **launch))
    return list(facts.sites.values())[-1]


CALL = lambda: apply("mov.b32")  # noqa: E731 - one fresh node each time


def known(site, name):
    value = site.env[name]
    assert isinstance(value, Affine)
    return site.context.range(value)


def test_thread_values_are_exact_and_merge_over_branches():
    x = var("x")
    site = at_call(
        nodes.Declare(x, i32(1)),
        guard(op("lt", TID, 32), nodes.Assign(x, op("mul", TID, 2))),
        CALL(),
    )
    values = site.env["x"].const
    assert list(values[:3]) == [0, 2, 4] and list(values[31:34]) == [62, 1, 1]


def test_guards_bound_run_time_values():
    n, x = var("n"), var("x")
    body = (
        nodes.Declare(x, op("add", op("mul", hw("ctaid.x"), 4), hw("warpid"))),
        guard(op("lt", x, n), CALL()),
    )
    site = at_call(*body, params=(n,))
    below = Affine(0, {**site.env["n"].terms}) - site.env["x"] - 1
    assert site.context.prove_nonnegative(below)
    assert site.context.level == WARP
    assert not site.context.prove_nonnegative(below - 1)


def test_counted_loops_give_induction_variables():
    i, k, stage, phase = (var(v) for v in ("i", "k", "stage", "phase"))
    site = at_call(
        nodes.Declare(k, i32(0)),
        nodes.Declare(stage, i32(0)),
        nodes.Declare(phase, i32(0)),
        nodes.For(
            i,
            i32(0),
            i32(10),
            nodes.Const(1, nodes.INT32),
            (
                CALL(),
                nodes.Assign(k, op("add", k, 64)),
                nodes.Assign(stage, op("mod", op("add", stage, 1), 3)),
                guard(op("eq", stage, 0), nodes.Assign(phase, op("bitxor", phase, 1))),
            ),
        ),
    )
    assert known(site, "i") == (0, 9)
    assert known(site, "k") == (0, 576)
    assert site.context.divisible(site.env["k"], 64)
    assert known(site, "stage") == (0, 2)
    assert known(site, "phase") == (0, 1)
    assert site.context.uniformity(site.env["stage"]) == GRID


def test_values_after_a_loop():
    i, k = var("i"), var("k")
    loop = nodes.For(
        i, i32(0), i32(10), nodes.Const(1, nodes.INT32), (nodes.Assign(k, op("add", k, 64)),)
    )
    site = at_call(nodes.Declare(k, i32(5)), loop, CALL())
    assert site.env["k"].constant == 645


def test_while_with_a_guard_is_bounded_and_reconverges():
    n, k = var("n"), var("k")
    loop = nodes.While(
        (
            guard(op("ge", k, n), nodes.Break()),
            CALL(),
            nodes.Assign(k, op("add", k, 128)),
        )
    )
    after = CALL()
    # Without the promise k + 128 could wrap around for an n near the end of int32.
    promise = nodes.Evaluate(nodes.Call("assume", (op("le", n, 10**6),)))
    function = kernel(promise, nodes.Declare(k, TID), loop, after, params=(n,))
    inside, outside = analyse(function).sites.values()
    assert known(inside, "k")[0] == 0
    assert inside.context.level == THREAD  # threads leave at different iterations
    assert outside.context.level == GRID


def test_threads_leaving_a_loop_early_are_not_uniform_later_in_it():
    i, n = var("i"), var("n")
    loop = nodes.For(
        i,
        i32(0),
        i32(4),
        nodes.Const(1, nodes.INT32),
        (
            CALL(),
            guard(op("gt", TID, n), nodes.Break()),
        ),
    )
    assert at_call(loop, params=(n,)).context.level == THREAD
    exact = nodes.For(
        i,
        i32(0),
        i32(4),
        nodes.Const(1, nodes.INT32),
        (
            CALL(),
            guard(op("ge", TID, 64), nodes.Break()),
        ),
    )
    assert at_call(exact).context.level == WARP


def test_int32_wrapping_is_not_assumed_away():
    n, x = var("n"), var("x")
    site = at_call(nodes.Declare(x, op("mul", n, 4)), CALL(), params=(n,))
    assert known(site, "x") == (-(2**31), 2**31 - 1)
    assert not site.context.divisible(site.env["x"], 8)


def test_a_mask_of_high_bits_rounds_down():
    n, x = var("n"), var("x")
    site = at_call(nodes.Declare(x, op("bitand", n, -8)), CALL(), params=(n,))
    assert site.context.divisible(site.env["x"], 8)
    assert not site.context.divisible(site.env["x"], 16)


def test_assume_gives_divisibility():
    n, x = var("n"), var("x")
    promise = nodes.Evaluate(nodes.Call("assume", (op("eq", op("mod", n, 64), 0),)))
    site = at_call(promise, nodes.Declare(x, n), CALL(), params=(n,))
    assert site.context.divisible(site.env["x"], 64)
    assert not site.context.divisible(site.env["x"], 128)


def test_grid_expression_bounds_the_block_index():
    m = var("m")
    grid = (op("floordiv", op("add", m, 7), 8),)
    x = var("x")
    site = at_call(nodes.Declare(x, op("mul", hw("ctaid.x"), 8)), CALL(), params=(m,), grid=grid)
    assert site.context.prove_nonnegative(site.env["m"] - site.env["x"] - 1)
    assert site.context.uniformity(site.env["x"]) >= CTA


def test_quotient_by_a_run_time_count_stays_below_its_factor():
    """pid // n < m when pid < m * n: the raster of tiles."""
    m, n = var("m"), var("n")
    q = var("q")
    sizes = [
        guard(
            op("and", op("ge", m, 1), op("ge", n, 1)),
            guard(
                op("and", op("le", m, 1000), op("le", n, 1000)),
                guard(
                    op("lt", hw("ctaid.x"), op("mul", m, n)),
                    nodes.Declare(q, op("floordiv", hw("ctaid.x"), n)),
                    CALL(),
                ),
            ),
        ),
    ]
    site = at_call(*sizes, params=(m, n))
    assert site.context.prove_nonnegative(site.env["m"] - site.env["q"] - 1)


def test_unreached_calls_are_dead():
    assert at_call(guard(op("ge", TID, 128), CALL())).context.dead


@pytest.mark.parametrize("type_", [nodes.INT32, nodes.INT64], ids=str)
@pytest.mark.parametrize("name", ["mul", "add", "neg", "abs"])
def test_arithmetic_of_unbounded_integers_may_wrap(type_, name):
    x, y = nodes.Var("x", type_), nodes.Var("y", type_)
    two, zero = nodes.Const(2, type_), nodes.Const(0, type_)
    made = (
        nodes.Binary(name, x, two, type_) if name in ("mul", "add") else nodes.Unary(name, x, type_)
    )
    sign = {"neg": "le"}.get(name, "ge")
    body = [nodes.Declare(y, made), CALL()]
    if name != "abs":
        body = [guard(nodes.Binary(sign, x, zero, nodes.BOOL), *body)]
    low, _ = known(at_call(*body, params=(x,)), "y")
    assert low < 0


@pytest.mark.parametrize("type_", [nodes.INT64, nodes.ScalarType(dtypes.uint64)], ids=str)
def test_guards_near_the_ends_of_64_bit_types_are_reached(type_):
    x = nodes.Var("x", type_)
    large = nodes.Const(1 << 62, type_)
    site = at_call(guard(nodes.Binary("ge", x, large, nodes.BOOL), CALL()), params=(x,))
    assert not site.context.dead


def test_either_side_of_an_or_bounds_a_value():
    n = var("n")
    site = at_call(guard(op("or", op("eq", n, 3), op("eq", n, 30)), CALL()), params=(n,))
    assert known(site, "n") == (3, 30)
    m = var("m")
    site = at_call(guard(op("or", op("eq", n, 3), op("eq", m, 30)), CALL()), params=(n, m))
    assert known(site, "n") == (-(1 << 31), (1 << 31) - 1)


def test_a_wrapped_product_keeps_its_low_bits():
    n, x = var("n"), var("x")
    site = at_call(nodes.Declare(x, op("mul", n, 12)), CALL(), params=(n,))
    assert site.context.divisible(site.env["x"], 4) and not site.context.divisible(site.env["x"], 3)


def test_shifts_by_the_thread_index_up_to_63():
    x = nodes.Var("x", nodes.INT64)
    wide = nodes.Cast(TID, nodes.INT64)
    site = at_call(
        nodes.Declare(x, nodes.Binary("shr", nodes.Const(5, nodes.INT64), wide, nodes.INT64)),
        CALL(),
        block=(64,),
    )
    low, high = known(site, "x")
    assert low <= 0 and high >= 5


@pytest.mark.parametrize(
    "address, level",
    [(i32(64), GRID), (hw("ctaid.x"), CLUSTER), (hw("warpid"), WARP), (TID, THREAD)],
)
def test_who_agrees_on_an_address_in_tensor_memory(address, level):
    """Those who agree on where the buffer is, in a loop and behind a branch, too."""
    i = var("i")
    d = buffer("d", (128, 8), space="tmem", notation="(128,8):(1@TLane,1@TCol)")
    body = nodes.For(
        i,
        i32(0),
        i32(4),
        i32(1),
        (
            nodes.DeclTmem(d, nodes.Cast(address, nodes.UINT32)),
            guard(op("lt", i, 3), nodes.Declare(var("x"), i32(0))),
            CALL(),
        ),
    )
    facts = analyse(kernel(body))
    (site,) = facts.sites.values()
    evaluator = facts.evaluator(site)
    place = nodes.Address(d, i32(2), nodes.PointerType("tmem"))
    assert evaluator.level(evaluator.value(place)) == level
