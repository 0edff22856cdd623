"""Barriers, convergence, deadlock: what opens, what never does, and what is said about it."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.sim.handmade import (
    CTA,
    LANE,
    TID,
    WARP,
    b,
    call,
    codes,
    do,
    dtypes,
    faults,
    i32,
    kernel,
    load,
    loop,
    n,
    notes,
    store,
    tensor,
    when,
)  # fmt: skip

OUT = tensor("OUT", (256,), dtypes.int32)


def out() -> dict[str, np.ndarray]:
    return {"OUT": np.zeros(256, np.int32)}


def named(number: int, threads: int, at: int = 0) -> n.Evaluate:
    return do("cuda.named_barrier_sync", i32(number), n.Static(threads), at=at)


def test_exited_warps_do_not_hold_the_barrier() -> None:
    body = (when(b.ge(WARP, i32(2)), n.Return()), do("cuda.cta_sync"), store(OUT, TID, i32(1)))
    arrays = out()
    assert codes(kernel((OUT,), body, block=128), arrays) == []
    assert arrays["OUT"].sum() == 64


def test_exited_lanes_do_not_hold_the_barrier() -> None:
    body = (when(b.ge(TID, i32(40)), n.Return()), do("cuda.cta_sync"), store(OUT, TID, i32(1)))
    arrays = out()
    assert codes(kernel((OUT,), body, block=64), arrays) == []
    assert arrays["OUT"].sum() == 40


def test_part_of_a_warp_at_a_barrier() -> None:
    def program(limit: int) -> n.Function:
        return kernel((), (when(b.lt(TID, i32(limit)), do("cuda.cta_sync", at=7)),), block=32)

    assert codes(program(32), {}) == []
    (found,) = faults(program(31), {})
    assert found.code == "sim/barrier-divergence" and found.span.line == 7
    assert "lanes 31 are not here" in found.message


def test_two_barriers_for_one_cta() -> None:
    sync = [do("cuda.cta_sync", at=line) for line in (4, 6)]
    body = (when(b.lt(WARP, i32(1)), sync[0], orelse=(sync[1],)),)
    (found,) = faults(kernel((), body, block=64), {})
    assert found.code == "sim/barrier-divergence"
    assert found.span.line == 4 and "k.py:6" in notes(found)["other"]


def test_deadlock_names_who_waits_where_and_who_left() -> None:
    body = (
        when(
            b.lt(WARP, i32(2)),
            named(1, 96, at=3),
            orelse=(when(b.eq(WARP, i32(2)), named(2, 64, at=5)),),
        ),
    )
    (found,) = faults(kernel((), body, block=128), {}, grid=2)
    assert found.code == "sim/deadlock"
    text = found.render()
    assert "warps 0-1 for named barrier 1 (96 threads) at k.py:3" in text
    assert "warp 2 for named barrier 2 (64 threads) at k.py:5" in text
    assert "warp 3 have exited" in text or "warp 3 " in text


def test_cta_barrier_that_one_warp_never_reaches_waits_for_it() -> None:
    """Warp 1 waits at a named barrier that nobody joins; warp 0 at the CTA barrier."""
    body = (when(b.eq(WARP, i32(1)), named(3, 64, at=2)), do("cuda.cta_sync", at=4))
    (found,) = faults(kernel((), body, block=64), {})
    assert found.code == "sim/deadlock"
    assert "the CTA barrier at k.py:4" in found.render() and "barrier 3" in found.render()


def test_named_barrier_with_too_many_threads() -> None:
    body = (named(1, 64, at=2),)
    assert codes(kernel((), body, block=64), {}) == []
    (found,) = faults(kernel((), body, block=96), {})
    assert found.code == "sim/barrier-count" and "96 threads" in found.message


def pairs(*between: n.Stmt, second: int = 1) -> n.Function:
    """Warps 0 and 1 meet at named barrier 1, warps 2 and 3 at barrier ``second``."""
    first = b.lt(WARP, i32(2))
    return kernel(
        (), (when(first, named(1, 64, at=2)), *between, when(b.not_(first), named(second, 64, at=5))),
        block=128,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_two_groups_at_one_named_barrier(seed: int) -> None:
    """Either pair could be counted with a warp of the other, whatever the schedule."""
    (found,) = faults(pairs(), {}, seed=seed)
    assert found.code == "sim/barrier-count" and "nothing orders it" in found.message
    assert codes(pairs(second=2), {}, seed=seed) == []
    assert codes(pairs(do("cuda.cta_sync")), {}, seed=seed) == []
    # Warps 1 and 2 meet between: that orders warp 2 behind the first round, but not warp 3.
    middle = b.and_(b.gt(WARP, i32(0)), b.lt(WARP, i32(3)))
    assert "sim/barrier-count" in codes(pairs(when(middle, named(2, 64))), {}, seed=seed)
    assert codes(pairs(when(b.gt(WARP, i32(0)), named(2, 96))), {}, seed=seed) == []


@pytest.mark.parametrize("seed", range(4))
def test_the_cta_barrier_is_barrier_0(seed: int) -> None:
    def program(number: int) -> n.Function:
        body = (when(b.eq(WARP, i32(0)), named(number, 32, at=2)), do("cuda.cta_sync", at=4))
        return kernel((), body, block=64)

    (found,) = faults(program(0), {}, seed=seed)
    assert found.code == "sim/barrier-count" and "k.py:2" in notes(found)["last"]
    assert codes(program(1), {}, seed=seed) == []


@pytest.mark.parametrize("seed", range(5))
def test_producer_and_consumers_take_turns(seed: int) -> None:
    """Warp 0 fills a slot, warps 1 and 2 read it, ten times, by two named barriers."""
    s = tensor("S", (32,), dtypes.int32, "shared")
    k, total = n.Var("k", n.INT32), n.Var("total", n.INT32)
    producer = loop(
        n.Var("p", n.INT32),
        i32(0),
        i32(10),
        store(s, LANE, n.Var("p", n.INT32), at=2),
        named(1, 96, at=3),
        named(2, 96, at=4),
    )
    consumer = loop(
        k,
        i32(0),
        i32(10),
        named(1, 96, at=6),
        n.Assign(total, b.add(total, load(s, LANE, at=7))),
        named(2, 96, at=8),
    )
    body = (
        n.AllocTensor(s),
        n.Declare(total, i32(0)),
        when(b.eq(WARP, i32(0)), producer, orelse=(consumer,)),
        do("cuda.cta_sync", at=9),
        store(OUT, b.add(b.mul(CTA, i32(96)), TID), total),
    )
    arrays = out()
    assert codes(kernel((OUT,), body, block=96), arrays, grid=2, seed=seed) == []
    assert arrays["OUT"][:96].tolist() == [0] * 32 + [45] * 64
    assert arrays["OUT"][96:192].tolist() == [0] * 32 + [45] * 64


def test_loops_with_barriers_and_other_trip_counts_per_warp() -> None:
    """Warp w turns w + 1 times around a barrier of its own."""
    k, v = n.Var("k", n.INT32), n.Var("v", n.INT32)
    ways = [when(b.eq(WARP, i32(w)), named(w + 1, 32)) for w in range(3)]
    body = (
        n.Declare(v, i32(0)),
        loop(k, i32(0), b.add(WARP, i32(1)), *ways, n.Assign(v, b.add(v, i32(1)))),
        do("cuda.cta_sync"),
        store(OUT, TID, v),
    )
    arrays = out()
    assert codes(kernel((OUT,), body, block=96), arrays) == []
    assert arrays["OUT"][:96].tolist() == [1] * 32 + [2] * 32 + [3] * 32


# --- convergence


def shuffled(op: str, amount: n.Expr, *before: n.Stmt, guard: n.Expr | None = None) -> n.Function:
    v = n.Var("v", n.INT32)
    take = (
        n.Declare(v, call(op, b.mul(LANE, i32(10)), amount, at=3, type=n.INT32)),
        store(OUT, TID, v),
    )
    return kernel((OUT,), (*before, *(take if guard is None else (when(guard, *take),))))


@pytest.mark.parametrize(
    ("op", "amount", "source"),
    [
        ("cuda.shfl_idx", 5, lambda lane: 5),
        ("cuda.shfl_xor", 3, lambda lane: lane ^ 3),
        ("cuda.shfl_up", 2, lambda lane: lane - 2 if lane >= 2 else lane),
        ("cuda.shfl_down", 2, lambda lane: lane + 2 if lane + 2 < 32 else lane),
    ],
)
def test_shuffles(op, amount, source) -> None:
    arrays = out()
    assert codes(shuffled(op, i32(amount)), arrays) == []
    assert arrays["OUT"][:32].tolist() == [10 * source(lane) for lane in range(32)]


def test_shuffle_without_all_lanes() -> None:
    assert codes(shuffled("cuda.shfl_xor", i32(1), guard=b.lt(LANE, i32(32))), out()) == []
    found = faults(shuffled("cuda.shfl_xor", i32(1), guard=b.lt(LANE, i32(30))), out())
    assert [d.code for d in found] == ["sim/inactive-lane"]
    assert "lanes 30-31 are not here" in found[0].message


def test_shuffle_from_an_exited_lane() -> None:
    gone = when(b.ge(LANE, i32(16)), n.Return())
    assert codes(shuffled("cuda.shfl_idx", i32(15), gone), out()) == []
    (found,) = faults(shuffled("cuda.shfl_idx", i32(16), gone), out())
    assert found.code == "sim/inactive-lane" and "reads lane 16" in found.message


def test_votes_and_election() -> None:
    flag = b.lt(LANE, i32(4))

    def value(e: n.Expr) -> n.Expr:
        return b.cast(e, dtypes.int32)

    body = (
        store(OUT, TID, value(call("cuda.ballot_sync", flag, type=n.UINT32))),
        store(OUT, b.add(TID, i32(32)), value(call("cuda.any_sync", flag, type=n.BOOL))),
        store(OUT, b.add(TID, i32(64)), value(call("cuda.all_sync", flag, type=n.BOOL))),
        when(call("cuda.elect_sync", type=n.BOOL), store(OUT, i32(100), LANE)),
    )
    for seed in (0, 7):
        arrays = out()
        assert codes(kernel((OUT,), body), arrays, seed=seed) == []
        assert set(arrays["OUT"][:32]) == {15} and set(arrays["OUT"][32:64]) == {1}
        assert set(arrays["OUT"][64:96]) == {0} and arrays["OUT"][100] == seed


def test_assertions_and_prints() -> None:
    body = (
        do("device_assert", b.lt(TID, i32(31)), n.Text("too far"), at=2),
        do("assume", b.lt(TID, i32(31)), at=3),
        when(b.lt(TID, i32(2)), do("print", n.Text("{} of {}"), TID, i32(2), at=4)),
    )
    text = io.StringIO()
    found = faults(kernel((), body), {}, output=text)
    assert [d.code for d in found] == ["sim/assert", "sim/assume"]
    assert "too far" in found[0].message and "lane 31" in notes(found[0])["where"]
    assert text.getvalue() == "0 of 2\n1 of 2\n"
