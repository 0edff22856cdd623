"""What the checker claims of random expressions holds for every thread and value that can occur."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.tile.kit import apply, guard, hw, i32, kernel, op, var
from tilejit.ir import nodes
from tilejit.tile.facts import analyse

THREADS, BLOCKS, LOW, HIGH = 64, 5, -7, 90
N, I = var("n"), var("i")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def random_expr(rng: random.Random, depth: int) -> nodes.Expr:
    if depth == 0:
        leaves = (hw("tid"), hw("warpid"), hw("ctaid.x"), N, I, i32(rng.randint(-9, 40)))
        return rng.choice(leaves)
    name = rng.choice(
        (
            "add",
            "sub",
            "mul",
            "floordiv",
            "mod",
            "min",
            "max",
            "select",
            "bitand",
            "shl",
            "shr",
            "bitxor",
        )
    )
    a = random_expr(rng, depth - 1)
    if name in ("floordiv", "mod"):
        return op(name, a, rng.choice((1, 2, 3, 4, 8, 32)))
    if name == "bitand":
        return op(name, a, rng.choice((1, 7, 31, 12, -1, -4, -7)))
    if name in ("shl", "shr"):
        return op(name, a, rng.randint(0, 4))
    b = random_expr(rng, depth - 1)
    if name == "select":
        return nodes.Select(random_condition(rng, depth - 1), a, b, nodes.INT32)
    return op(name, a, b)


def random_condition(rng: random.Random, depth: int) -> nodes.Expr:
    if depth > 0 and rng.random() < 0.4:
        sides = random_condition(rng, depth - 1), random_condition(rng, depth - 1)
        return op(rng.choice(("and", "or")), *sides)
    if rng.random() < 0.2:
        return nodes.Unary("not", random_condition(rng, 0), nodes.BOOL)
    return op(rng.choice(COMPARISONS), random_expr(rng, min(depth, 1)), random_expr(rng, 0))


def wrapped(value):
    return (value + 2**31) % 2**32 - 2**31


def concrete(expr: nodes.Expr, env: dict[str, np.ndarray]):
    match expr:
        case nodes.Const(value=value):
            return np.full(THREADS, value)
        case nodes.Var(name=name) | nodes.HardwareId(name=name):
            return env[name]
        case nodes.Unary(operand=a):
            return ~concrete(a, env)
        case nodes.Select(condition=c, if_true=a, if_false=b):
            return np.where(concrete(c, env), concrete(a, env), concrete(b, env))
        case nodes.Binary(op=name, lhs=a, rhs=b):
            x, y = concrete(a, env), concrete(b, env)
            functions = {
                "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y,
                "floordiv": lambda: x // y, "mod": lambda: x % y, "min": lambda: np.minimum(x, y),
                "max": lambda: np.maximum(x, y), "bitand": lambda: x & y, "bitxor": lambda: x ^ y,
                "shl": lambda: x << y, "shr": lambda: x >> y, "lt": lambda: x < y,
                "le": lambda: x <= y, "gt": lambda: x > y, "ge": lambda: x >= y,
                "eq": lambda: x == y, "ne": lambda: x != y, "and": lambda: x & y, "or": lambda: x | y,
            }  # fmt: skip
            result = functions[name]()
            return result if result.dtype == bool else wrapped(result)
    raise AssertionError(expr)


@pytest.mark.parametrize("seed", range(60))
def test_ranges_congruences_masks_and_levels_hold(seed: int) -> None:
    rng = random.Random(seed)
    expr, condition, x = random_expr(rng, 3), random_condition(rng, 2), var("x")
    promise = nodes.Evaluate(
        nodes.Call("assume", (op("and", op("ge", N, LOW), op("le", N, HIGH)),))
    )
    call = apply("mov.b32")
    body = guard(condition, nodes.Declare(x, expr), call)
    loop = nodes.For(I, i32(1), i32(9), nodes.Const(2, nodes.INT32), (body,))
    function = kernel(promise, loop, params=(N,), block=(THREADS,), grid=(BLOCKS,))
    (site,) = analyse(function).sites.values()
    value = site.env.get("x")
    tid = np.arange(THREADS)
    for _ in range(40):
        n, i, block = rng.randint(LOW, HIGH), rng.choice((1, 3, 5, 7)), rng.randrange(BLOCKS)
        env = {"tid": tid, "warpid": tid // 32, "ctaid.x": np.full(THREADS, block),
               "n": np.full(THREADS, n), "i": np.full(THREADS, i)}  # fmt: skip
        there = concrete(condition, env)
        assert not (there & ~site.context.mask).any()
        if not there.any():
            continue
        numbers = concrete(expr, env)[there]
        low, high = (
            np.broadcast_to(np.asarray(b), THREADS)[there] for b in site.context.bounds(value)
        )
        assert (low <= numbers).all() and (numbers <= high).all()
        mod, rem = site.context.congruence(value)
        rem = np.broadcast_to(np.asarray(rem), THREADS)[there]
        assert ((numbers - rem) % mod == 0).all() if mod else (numbers == rem).all()
        for bound in (0, 5, 31):
            if site.context.prove_nonnegative(value - bound):
                assert (numbers >= bound).all()
        if site.context.level >= 1:  # whole warps of the mask are there, or none
            for warp in (slice(0, 32), slice(32, 64)):
                inside = there[warp][site.context.mask[warp]]
                assert inside.all() or not inside.any()
        if site.context.uniformity(value) == 5:
            assert (numbers == numbers[0]).all()
