"""Random programs of accesses and barriers: a race is reported exactly when vector clocks say so.

The oracle keeps every access ever made and a full clock per thread; it knows nothing of shadows.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.handmade import LANE, WARP, b, codes, do, i32, kernel, n, tensor, when
from tilejit import dtypes
from tilejit.ir import views

WARPS, LANES_USED, BYTES = 3, 2, 16
S = tensor("S", (BYTES,), dtypes.uint8, "shared")
G = tensor("G", (BYTES,), dtypes.uint8)

_warp_sets = st.sets(st.integers(0, WARPS - 1), min_size=1).map(lambda s: tuple(sorted(s)))
_access = st.tuples(
    st.sampled_from(["read", "read", "write"]),
    st.sampled_from([1, 4]),
    st.integers(0, 3),
    st.integers(0, 15),
    _warp_sets,
    st.integers(1, LANES_USED),
)
_barrier = st.one_of(
    st.just(("cta",)),
    st.tuples(st.just("warp"), _warp_sets),
    st.tuples(st.just("named"), _warp_sets),
)
_programs = st.lists(st.one_of(_access, _barrier), min_size=2, max_size=9)


def chosen(warps: tuple[int, ...]) -> n.Expr:
    condition: n.Expr = b.const(False, dtypes.bool_)
    for warp in warps:
        condition = b.or_(condition, b.eq(WARP, i32(warp)))
    return condition


def place(width: int, factor: int, shift: int) -> Any:
    """Element index of thread (warp, lane): a function of both, in units of ``width`` bytes."""
    return lambda warp, lane: (factor * (warp * LANES_USED + lane) + shift) % (BYTES // width)


def lowered(program: list[Any], buffer: n.Var) -> n.Function:
    body: list[n.Stmt] = [n.AllocTensor(buffer)] if buffer is S else []
    for number, op in enumerate(program):
        match op:
            case ("cta",):
                body.append(do("cuda.cta_sync", at=number))
            case ("warp", warps):
                body.append(when(chosen(warps), do("cuda.warp_sync", at=number)))
            case ("named", warps):
                free = number + 1  # the CTA barrier is barrier 0
                sync = do("cuda.named_barrier_sync", i32(free), n.Static(32 * len(warps)))
                body.append(when(chosen(warps), sync))
            case (kind, width, factor, shift, warps, lanes):
                thread = b.add(b.mul(WARP, i32(LANES_USED)), LANE)
                index = b.mod(b.add(b.mul(thread, i32(factor)), i32(shift)), i32(BYTES // width))
                dtype = dtypes.uint8 if width == 1 else dtypes.uint32
                view = views.with_dtype(views.whole(buffer), dtype)
                if kind == "read":
                    value = n.Load(view, (index,), n.ScalarType(dtype))
                    action: n.Stmt = n.Declare(n.Var(f"v{number}", value.type), value)
                else:
                    action = n.Store(view, (index,), b.const(1, dtype))
                body.append(when(b.and_(chosen(warps), b.lt(LANE, i32(lanes))), action))
    return kernel((G,), body, block=32 * WARPS)


def races(program: list[Any]) -> bool:
    threads = list(product(range(WARPS), range(LANES_USED)))
    clock = {t: {u: int(t == u) for u in threads} for t in threads}
    history: list[tuple[Any, int, set[int], bool]] = []

    def meet(group: list[Any]) -> None:
        joined = {u: max(clock[t][u] for t in group) for u in threads}
        for t in group:
            clock[t] = dict(joined)
        for t in group:
            clock[t][t] += 1

    for op in program:
        match op:
            case ("cta",):
                meet(threads)
            case ("warp", warps):
                for warp in warps:
                    meet([t for t in threads if t[0] == warp])
            case ("named", warps):
                meet([t for t in threads if t[0] in warps])
            case (kind, width, factor, shift, warps, lanes):
                where = place(width, factor, shift)
                for t in threads:
                    if t[0] not in warps or t[1] >= lanes:
                        continue
                    touched = {where(*t) * width + i for i in range(width)}
                    for u, epoch, bytes_, wrote in history:
                        meets = touched & bytes_ and (wrote or kind == "write")
                        if meets and u != t and clock[t][u] < epoch:
                            return True
                    history.append((t, clock[t][t], touched, kind == "write"))
    return False


@settings(max_examples=300, deadline=None)
@given(_programs, st.integers(0, 3), st.booleans())
def test_shared_and_global_races_are_exactly_the_unordered_pairs(
    program: list[Any], seed: int, shared: bool
) -> None:
    function = lowered(program, S if shared else G)
    found = codes(function, {"G": np.zeros(BYTES, np.uint8)}, seed=seed)
    assert set(found) <= {"sim/race", "sim/unwritten-read"}
    assert ("sim/race" in found) == races(program)
