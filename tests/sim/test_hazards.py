"""Races: the nearest legal program and the nearest illegal one, for every way of ordering."""

from __future__ import annotations

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
    f32,
    faults,
    i32,
    kernel,
    load,
    loop,
    n,
    notes,
    store,
    tensor,
    views,
    when,
)  # fmt: skip

OUT = tensor("OUT", (256,))


def out() -> dict[str, np.ndarray]:
    return {"OUT": np.zeros(256, np.float32)}


def smem(elems: int = 64, dtype=dtypes.float32) -> n.Var:
    return tensor("S", (elems,), dtype, "shared")


def neighbour(threads: int = 64) -> n.Expr:
    return b.mod(b.add(TID, i32(1)), i32(threads))


def exchange(barrier: tuple[n.Stmt, ...], threads: int = 64, index: n.Expr | None = None):
    """Every thread writes its element, then reads its neighbour's."""
    s = smem(threads)
    return kernel(
        (OUT,),
        (
            n.AllocTensor(s),
            store(s, TID, b.cast(TID, dtypes.float32), at=1),
            *barrier,
            store(
                OUT, TID, load(s, index if index is not None else neighbour(threads), at=3), at=3
            ),
        ),
        block=threads,
    )


def test_cta_barrier_orders() -> None:
    arrays = out()
    assert codes(exchange((do("cuda.cta_sync", at=2),)), arrays) == []
    assert arrays["OUT"][:64].tolist() == [*range(1, 64), 0]


def test_without_barrier_both_lines_and_threads_are_named() -> None:
    (found,) = faults(exchange(()), out())
    assert found.code == "sim/race"
    assert found.span.line == 3
    text = notes(found)
    assert "reads here" in text["where"] and "thread (0, 0, 0)" in text["where"]
    assert "writes at k.py:1" in text["other"] and "thread (1, 0, 0)" in text["other"]
    assert "byte 4 (element 1 of type float32) of `S`" in text["address"]
    assert "64 accesses" in text["count"]


def test_warp_barrier_orders_lanes_of_one_warp_only() -> None:
    inside = b.add(b.mul(WARP, i32(32)), b.mod(b.add(LANE, i32(1)), i32(32)))
    assert codes(exchange((do("cuda.warp_sync"),), index=inside), out()) == []
    (found,) = faults(exchange((do("cuda.warp_sync"),)), out())
    assert "2 accesses" in notes(found)["count"]
    assert "sim/race" in codes(exchange((), index=inside), out())


def test_shuffle_orders_no_memory() -> None:
    value = n.Var("v", n.INT32)
    shuffle = n.Declare(value, call("cuda.shfl_xor", LANE, i32(1), type=n.INT32))
    assert codes(exchange((shuffle,), threads=32), out()) == ["sim/race"]


def test_fence_orders_nothing_by_itself() -> None:
    assert codes(exchange((do("cuda.fence_cta"),)), out()) == ["sim/race"]


def test_write_after_read() -> None:
    s = smem()

    def program(*barrier: n.Stmt) -> n.Function:
        return kernel(
            (OUT,),
            (
                n.AllocTensor(s),
                store(s, TID, f32(1), at=1),
                do("cuda.cta_sync", at=2),
                store(OUT, TID, load(s, neighbour(), at=3), at=3),
                *barrier,
                store(s, TID, f32(2), at=5),
            ),
            block=64,
        )

    assert codes(program(do("cuda.cta_sync", at=4)), out()) == []
    (found,) = faults(program(), out())
    assert found.span.line == 5
    assert "reads at k.py:3" in notes(found)["other"]


def test_write_after_many_readers() -> None:
    """All threads read one element; one of them overwrites it."""
    s = smem()

    def program(*barrier: n.Stmt) -> n.Function:
        return kernel(
            (OUT,),
            (
                n.AllocTensor(s),
                when(b.eq(TID, i32(0)), store(s, i32(0), f32(1), at=1)),
                do("cuda.cta_sync", at=2),
                store(OUT, TID, load(s, i32(0), at=3), at=3),
                *barrier,
                when(b.eq(TID, i32(5)), store(s, i32(0), f32(2), at=5)),
            ),
            block=64,
        )

    assert codes(program(do("cuda.cta_sync", at=4)), out()) == []
    (found,) = faults(program(), out())
    assert found.code == "sim/race"
    # 64 readers, one of them the writer itself.
    assert "63 accesses" in notes(found)["count"]
    # A warp barrier saves the readers of the writer's warp only.
    (found,) = faults(program(do("cuda.warp_sync", at=4)), out())
    assert "32 accesses" in notes(found)["count"]


def test_own_accesses_never_race() -> None:
    s = smem()
    body = (
        n.AllocTensor(s),
        store(s, TID, f32(1)),
        store(s, TID, load(s, TID)),
        store(s, TID, f32(3)),
        store(OUT, TID, load(s, TID)),
    )
    assert codes(kernel((OUT,), body, block=64), out()) == []


def test_two_lanes_writing_one_element_race_even_with_equal_values() -> None:
    body = (store(OUT, b.floordiv(TID, i32(2)), f32(1), at=1),)
    (found,) = faults(kernel((OUT,), body, block=64), out())
    assert found.code == "sim/race" and "32 accesses" in notes(found)["count"]


def test_ctas_race_in_global_memory() -> None:
    index = b.add(b.mul(CTA, i32(32)), TID)
    assert codes(kernel((OUT,), (store(OUT, index, f32(1)),)), out(), grid=8) == []
    shifted = b.add(b.mul(CTA, i32(31)), TID)
    (found,) = faults(kernel((OUT,), (store(OUT, shifted, f32(1)),)), out(), grid=8)
    assert found.code == "sim/race" and "7 accesses" in notes(found)["count"]
    assert "different CTAs" in notes(found)["help"]


def test_ctas_of_different_batches_race_too() -> None:
    shifted = b.add(b.mul(CTA, i32(31)), TID)
    function = kernel((OUT,), (store(OUT, shifted, f32(1)),))
    (found,) = faults(function, out(), grid=8, batch_warps=2)
    assert "7 accesses" in notes(found)["count"]


def test_read_only_sharing_is_no_race() -> None:
    x = tensor("X", (4,))
    index = b.add(b.mul(CTA, i32(32)), TID)
    function = kernel((x, OUT), (store(OUT, index, load(x, i32(1))),))
    assert codes(function, {"X": np.ones(4, np.float32), **out()}, grid=8) == []


def test_reading_what_another_cta_overwrites_races() -> None:
    first = n.Var("first", n.FLOAT32)
    index = b.add(b.mul(CTA, i32(32)), TID)
    body = (n.Declare(first, load(OUT, i32(3), at=1)), store(OUT, index, first, at=2))
    found = faults(kernel((OUT,), body), out(), grid=4)
    assert {d.code for d in found} == {"sim/race"}
    assert codes(kernel((OUT,), body), out(), grid=4, hazards=False) == []


def test_read_many_ctas_then_written_later_batch() -> None:
    first = n.Var("first", n.FLOAT32)
    last = b.eq(CTA, i32(5))
    body = (
        n.Declare(first, load(OUT, i32(3), at=1)),
        when(b.and_(last, b.eq(TID, i32(0))), store(OUT, i32(3), first, at=2)),
    )
    for batch in (1, 2, 100):
        found = faults(kernel((OUT,), body), out(), grid=6, batch_warps=batch)
        assert [d.code for d in found] == ["sim/race"]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.uint8])
def test_neighbouring_small_elements_do_not_race(dtype) -> None:
    x = tensor("X", (256,), dtype)
    data = {"X": np.zeros(256, dtype.name)}
    function = kernel((x,), (store(x, TID, b.const(1, dtype)),), block=64)
    assert codes(function, data) == []


def test_granules_shrink_when_a_smaller_access_follows() -> None:
    """float32 stores by one warp's lanes, then byte stores into a second view of the buffer."""
    wide = tensor("OUT", (256,))
    narrow = views.with_dtype(views.whole(wide), dtypes.uint8)
    value = b.const(7, dtypes.uint8)

    def program(index: n.Expr) -> n.Function:
        body = (
            when(
                b.lt(TID, i32(32)),
                store(wide, TID, f32(1), at=1),
                orelse=(n.Store(narrow, (index,), value),),
            ),
        )
        return kernel((wide,), body, block=64)

    # Bytes 128.. are beyond the 32 floats; byte 127 belongs to float 31.
    assert codes(program(b.add(LANE, i32(128))), out()) == []
    (found,) = faults(program(b.add(LANE, i32(127))), out())
    assert found.code == "sim/race"


def test_named_barrier_orders_its_participants_only() -> None:
    """Warps 0 and 1 exchange under barrier 1; warp 2 reads without taking part."""
    s = smem(96)

    def program(reader: int) -> n.Function:
        body = (
            n.AllocTensor(s),
            store(s, TID, f32(1), at=1),
            when(
                b.lt(WARP, i32(2)),
                do("cuda.named_barrier_sync", i32(1), n.Static(64), at=2),
            ),
            when(b.eq(WARP, i32(reader)), store(OUT, LANE, load(s, LANE, at=3), at=3)),
        )
        return kernel((OUT,), body, block=96)

    assert codes(program(1), out()) == []
    assert codes(program(2), out()) == ["sim/race"]


def test_named_barrier_knowledge_is_transitive() -> None:
    """0 → 1 by barrier 1, 1 → 2 by barrier 2: warp 2 may read what warp 0 wrote."""
    s = smem(32)

    def program(*second: n.Stmt) -> n.Function:
        body = (
            n.AllocTensor(s),
            when(b.eq(WARP, i32(0)), store(s, LANE, f32(1), at=1)),
            when(b.lt(WARP, i32(2)), do("cuda.named_barrier_sync", i32(1), n.Static(64))),
            *second,
            when(b.eq(WARP, i32(2)), store(OUT, LANE, load(s, LANE, at=3), at=3)),
        )
        return kernel((OUT,), body, block=96)

    chain = when(b.gt(WARP, i32(0)), do("cuda.named_barrier_sync", i32(2), n.Static(64)))
    for seed in range(4):
        assert codes(program(chain), out(), seed=seed) == []
    # Without the second barrier warp 2 races, or reads before anything is written.
    assert set(codes(program(), out())) <= {"sim/race", "sim/unwritten-read"}
    assert codes(program(), out())


def test_reader_crowd_and_named_barriers() -> None:
    """Three warps read; the writer has met only one of the others."""
    s = smem(32)

    def program(meet: int) -> n.Function:
        together = b.ge(WARP, i32(3 - meet))
        body = (
            n.AllocTensor(s),
            when(b.eq(WARP, i32(0)), store(s, LANE, f32(1), at=1)),
            do("cuda.cta_sync", at=2),
            store(OUT, TID, load(s, i32(0), at=3), at=3),
            when(together, do("cuda.named_barrier_sync", i32(1), n.Static(32 * meet), at=4)),
            when(b.eq(TID, i32(95)), store(s, i32(0), f32(2), at=5)),
        )
        return kernel((OUT,), body, block=96)

    assert codes(program(3), out()) == []
    (found,) = faults(program(2), out())
    assert "32 accesses" in notes(found)["count"]
    assert "warp 0" in notes(found)["other"]


def test_cluster_barrier_orders_ctas_of_a_cluster() -> None:
    other = b.bitxor(CTA, i32(1))
    mine, theirs = (b.add(b.mul(c, i32(32)), TID) for c in (CTA, other))

    def program(*barrier: n.Stmt) -> n.Function:
        value = n.Var("v", n.FLOAT32)
        body = (
            store(OUT, mine, f32(1), at=1),
            *barrier,
            n.Declare(value, load(OUT, theirs, at=3)),
        )
        return kernel((OUT,), body, cluster=(2,))

    assert codes(program(do("cuda.cluster_sync")), out(), grid=4) == []
    assert codes(program(do("cuda.cta_sync")), out(), grid=4) == ["sim/race"]


def test_double_buffered_loop() -> None:
    """A reduction over ping-pong halves needs one barrier per turn; none is a race."""
    s = smem(128)
    k, v = n.Var("k", n.INT32), n.Var("v", n.FLOAT32)

    def half(parity: n.Expr, index: n.Expr) -> n.Expr:
        return b.add(b.mul(b.mod(parity, i32(2)), i32(64)), index)

    def program(*barrier: n.Stmt) -> n.Function:
        body = (
            n.AllocTensor(s),
            n.Declare(v, f32(1)),
            loop(
                k,
                i32(0),
                i32(6),
                store(s, half(k, TID), v, at=1),
                *barrier,
                n.Assign(v, b.add(v, load(s, half(k, neighbour()), at=3))),
            ),
            store(OUT, TID, v),
        )
        return kernel((OUT,), body, block=64)

    arrays = out()
    assert codes(program(do("cuda.cta_sync", at=2)), arrays) == []
    assert (arrays["OUT"][:64] == 64).all()
    assert "sim/race" in codes(program(), out())


def test_deterministic_per_seed() -> None:
    texts = {
        tuple(d.render() for d in faults(exchange(()), out(), seed=seed)) for seed in (3, 3, 3)
    }
    assert len(texts) == 1
