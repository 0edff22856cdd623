"""Random structured programs: the cohorts' masks against one thread after another in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.handmade import CTA, TID, b, do, i32, kernel, loop, n, run, store, tensor, when
from tilejit import dtypes

VARS = [n.Var(name, n.INT32) for name in ("a", "b", "c")]
THREADS, CTAS = 96, 2
OUT = tensor("OUT", (THREADS * CTAS, 3), dtypes.int32)


class Exit(Exception):
    pass


class Leave(Exception):
    pass


class Again(Exception):
    pass


# A program is a tree of tuples; ``lower`` gives IR, ``interpret`` runs one thread.

_values = st.one_of(
    st.integers(-3, 3).map(lambda v: ("const", v)),
    st.sampled_from([("var", 0), ("var", 1), ("var", 2), ("tid",), ("warp",)]),
)
_exprs = st.recursive(
    _values,
    lambda inner: st.tuples(st.sampled_from(["add", "sub", "mul", "bitxor"]), inner, inner),
    max_leaves=3,
)
_conditions = st.tuples(
    st.sampled_from(["lt", "eq", "ge"]),
    _exprs,
    st.tuples(st.just("mod"), _exprs, st.integers(2, 5)),
)


def _statements(in_loop: bool, depth: int) -> st.SearchStrategy[Any]:
    options = [
        st.tuples(st.just("assign"), st.integers(0, 2), _exprs),
        st.just(("warp_use",)),
    ]
    if depth:
        inner, looped = (_blocks(flag, depth - 1) for flag in (in_loop, True))
        options += [
            st.tuples(st.just("if"), _conditions, inner, inner),
            st.tuples(st.just("for"), _exprs, looped),
            st.tuples(st.just("while"), st.integers(1, 4), looped),
        ]
    options.append(
        st.tuples(
            st.just("leave"),
            st.sampled_from(["break", "continue", "return"] if in_loop else ["return"]),
            _conditions,
        )
    )
    return st.one_of(options)


def _blocks(in_loop: bool, depth: int) -> st.SearchStrategy[Any]:
    return st.lists(_statements(in_loop, depth), min_size=1, max_size=3).map(tuple)


class Lowering:
    def __init__(self) -> None:
        self.count = 0

    def fresh(self) -> n.Var:
        self.count += 1
        return n.Var(f"k{self.count}", n.INT32)

    def expr(self, e: Any) -> n.Expr:
        match e:
            case ("const", value):
                return i32(value)
            case ("var", index):
                return VARS[index]
            case ("tid",):
                return b.mod(TID, i32(7))
            case ("warp",):
                return n.HardwareId("warpid")
            case ("mod", inner, divisor):
                return b.mod(self.expr(inner), i32(divisor))
            case (op, left, right):
                return b.binary(op, self.expr(left), self.expr(right))
        raise AssertionError(e)

    def block(self, block: Any) -> tuple[n.Stmt, ...]:
        return tuple(s for item in block for s in self.statement(item))

    def statement(self, s: Any) -> tuple[n.Stmt, ...]:
        match s:
            case ("assign", index, value):
                return (n.Assign(VARS[index], self.expr(value)),)
            case ("warp_use",):
                return (n.Assign(VARS[0], b.add(VARS[0], i32(1))),)
            case ("if", condition, then, orelse):
                return (when(self.expr(condition), *self.block(then), orelse=self.block(orelse)),)
            case ("for", stop, body):
                limit = b.mod(self.expr(stop), i32(4))
                return (loop(self.fresh(), i32(0), limit, *self.block(body)),)
            case ("while", turns, body):
                k = self.fresh()
                count = n.Assign(k, b.add(k, i32(1)))
                leave = when(b.gt(k, i32(turns)), n.Break())
                return (n.Declare(k, i32(0)), n.While((count, leave, *self.block(body))))
            case ("leave", kind, condition):
                node = {"break": n.Break, "continue": n.Continue, "return": n.Return}[kind]()
                return (when(self.expr(condition), node),)
        raise AssertionError(s)


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def value_of(e: Any, state: list[int], tid: int) -> int:
    match e:
        case ("const", value):
            return value
        case ("var", index):
            return state[index]
        case ("tid",):
            return tid % 7
        case ("warp",):
            return tid // 32
        case ("mod", inner, divisor):
            return value_of(inner, state, tid) % divisor
    op, left, right = e[0], value_of(e[1], state, tid), value_of(e[2], state, tid)
    return {
        "add": wrap(left + right), "sub": wrap(left - right), "mul": wrap(left * right),
        "bitxor": left ^ right, "lt": left < right, "eq": left == right, "ge": left >= right,
    }[op]  # fmt: skip


def interpret(block: Any, state: list[int], tid: int) -> None:
    for s in block:
        match s:
            case ("assign", index, value):
                state[index] = value_of(value, state, tid)
            case ("warp_use",):
                state[0] = wrap(state[0] + 1)
            case ("if", condition, then, orelse):
                interpret(then if value_of(condition, state, tid) else orelse, state, tid)
            case ("for", stop, body):
                repeat(value_of(stop, state, tid) % 4, body, state, tid)
            case ("while", turns, body):
                repeat(turns, body, state, tid)
            case ("leave", kind, condition):
                if value_of(condition, state, tid):
                    raise {"break": Leave, "continue": Again, "return": Exit}[kind]


def repeat(turns: int, body: Any, state: list[int], tid: int) -> None:
    try:
        for _ in range(turns):
            try:
                interpret(body, state, tid)
            except Again:
                pass
    except Leave:
        pass


def expected(program: Any) -> np.ndarray:
    result = np.full((THREADS * CTAS, 3), -99, np.int32)
    for tid in range(THREADS):
        state = [tid, 1, 2]
        try:
            interpret(program, state, tid)
        except Exit:
            continue
        result[[tid + THREADS * cta for cta in range(CTAS)]] = state
    return result


@settings(max_examples=150, deadline=None)
@given(_blocks(False, 3), st.booleans(), st.integers(0, 3))
def test_masks_agree_with_one_thread_at_a_time(program: Any, barrier: bool, seed: int) -> None:
    """``barrier`` puts a CTA barrier at the end, where exited threads must not be missed."""
    place = b.add(b.mul(CTA, i32(THREADS)), TID)
    body = (
        *(n.Declare(var, value) for var, value in zip(VARS, (TID, i32(1), i32(2)))),
        *Lowering().block(program),
        *((do("cuda.cta_sync"),) if barrier else ()),
        *(store(OUT, (place, i32(i)), var) for i, var in enumerate(VARS)),
    )
    got = np.full((THREADS * CTAS, 3), -99, np.int32)
    run(kernel((OUT,), body, block=THREADS), {"OUT": got}, grid=CTAS, seed=seed)
    assert np.array_equal(got, expected(program))
