"""Bounds, alignment, gaps and unwritten reads: the nearest legal access and the nearest illegal."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.handmade import (
    LANE,
    TID,
    Unchecked,
    b,
    codes,
    dtypes,
    f32,
    faults,
    i32,
    kernel,
    line,
    load,
    loop,
    n,
    notes,
    run,
    store,
    tensor,
    views,
    when,
)  # fmt: skip
from tilejit import sim
from tilejit.errors import SimulationFault, Unsimulated
from tilejit.layout import row_major

OUT = tensor("OUT", (64,))


def out(elems: int = 64) -> dict[str, np.ndarray]:
    return {"OUT": np.zeros(elems, np.float32)}


@pytest.mark.parametrize(("shift", "legal"), [(0, True), (32, True), (33, False), (-1, False)])
def test_global_bounds(shift: int, legal: bool) -> None:
    arrays = out()
    found = faults(kernel((OUT,), (store(OUT, b.add(TID, i32(shift)), f32(1), at=4),)), arrays)
    assert [d.code for d in found] == ([] if legal else ["sim/out-of-bounds"])
    # The lanes inside the buffer did their work.
    assert arrays["OUT"].sum() == (32 if legal else 31)
    if shift == 33:
        text = notes(found[0])
        assert "bytes [256, 260) of `OUT`, which has 256 bytes" in found[0].message
        assert "lane 31" in text["where"] and "element 64" in text["address"]
        assert found[0].span.line == 4


def test_shared_bounds_even_inside_the_neighbour() -> None:
    s, t = (tensor(x, (32,), dtypes.float32, "shared") for x in "ST")

    def program(index: n.Expr) -> n.Function:
        body = (n.AllocTensor(s), n.AllocTensor(t), store(s, index, f32(1)))
        return kernel((), body)

    assert codes(program(TID), {}) == []
    (found,) = faults(program(b.add(TID, i32(1))), {})
    assert found.code == "sim/out-of-bounds"
    assert "bytes [128, 132) of `S`, which has 128 bytes" in found.message


def test_register_tile_bounds() -> None:
    r = tensor("R", (4,), dtypes.float32, "local")

    def program(index: n.Expr) -> n.Function:
        body = (
            n.AllocTensor(r),
            *(store(r, i32(i), f32(i)) for i in range(4)),
            store(OUT, TID, load(r, index)),
        )
        return kernel((OUT,), body)

    arrays = out()
    assert codes(program(b.mod(TID, i32(4))), arrays) == []
    assert arrays["OUT"][:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    (found,) = faults(program(b.mod(TID, i32(5))), out())
    assert found.code == "sim/out-of-bounds" and "element 4 of register tile `R`" in found.message


@pytest.mark.parametrize("space", ["local", "shared"])
def test_unwritten_reads(space: str) -> None:
    s = tensor("S", (32,) if space == "shared" else (1,), dtypes.float32, space)
    where = TID if space == "shared" else i32(0)

    def program(limit: int) -> n.Function:
        body = (
            n.AllocTensor(s),
            when(b.lt(TID, i32(limit)), store(s, where, f32(1), at=1)),
            store(OUT, TID, load(s, where, at=2), at=2),
        )
        return kernel((OUT,), body)

    assert codes(program(32), out()) == []
    (found,) = faults(program(31), out())
    assert found.code == "sim/unwritten-read" and "lane 31" in notes(found)["where"]
    assert found.span.line == 2


def test_partly_written_register_is_unwritten() -> None:
    r = tensor("R", (2,), dtypes.float16, "local")
    wide = views.with_dtype(views.whole(r), dtypes.uint32)
    word = n.Load(wide, (i32(0),), n.UINT32, span=line(3))

    def program(*stores: n.Stmt) -> n.Function:
        value = n.Var("v", n.UINT32)
        return kernel(
            (OUT,),
            (
                n.AllocTensor(r),
                *stores,
                n.Declare(value, word),
                store(OUT, TID, b.cast(value, dtypes.float32)),
            ),
        )

    halves = [store(r, i32(i), b.const(1.0, dtypes.float16)) for i in range(2)]
    arrays = out()
    assert codes(program(*halves), arrays) == []
    assert arrays["OUT"][0] == float(0x3C003C00)
    assert codes(program(halves[0]), out()) == ["sim/unwritten-read"]


def test_uninitialised_output_tensor() -> None:
    def program(*first: n.Stmt) -> n.Function:
        return kernel((OUT,), (*first, store(OUT, TID, b.add(load(OUT, TID), f32(1)))))

    assert codes(program(store(OUT, TID, f32(1))), out(), initialised=False) == []
    assert codes(program(), out(), initialised=True) == []
    assert codes(program(), out(), initialised=False) == ["sim/unwritten-read"]


def test_unset_variable() -> None:
    v = n.Var("v", n.FLOAT32, span=line(9))

    def program(limit: int) -> n.Function:
        body = (
            n.Declare(v, None),
            when(b.lt(TID, i32(limit)), n.Assign(v, f32(2))),
            store(OUT, TID, v),
        )
        return kernel((OUT,), body)

    assert codes(program(32), out()) == []
    (found,) = faults(program(31), out())
    assert found.code == "sim/unwritten-read" and "`v`" in found.message


def test_gap_of_a_strided_tensor() -> None:
    """Four rows of six elements, eight apart: the two between belong to nobody."""
    data = np.zeros(32, np.float32)
    valid = np.zeros((4, 8, 4), np.bool_)
    valid[:, :6] = True
    x = n.Var("X", n.TensorType((30,), dtypes.float32, row_major((30,)), "global", 16))
    buffer = sim.GlobalBuffer(
        "X", data.view(np.uint8)[:120], 0x1000, valid.reshape(-1)[:120].copy()
    )

    def program(index: n.Expr, limit: int) -> Unchecked:
        return Unchecked(kernel((x,), (when(b.lt(TID, i32(limit)), store(x, index, f32(1))),)))

    index = b.add(b.mul(b.floordiv(TID, i32(6)), i32(8)), b.mod(TID, i32(6)))
    sim.run(program(index, 24), {"X": buffer}, {}, 1)
    assert data.sum() == 24
    with pytest.raises(SimulationFault) as error:
        sim.run(program(TID, 7), {"X": buffer}, {}, 1)
    assert error.value.codes == ("sim/out-of-bounds",) and "between the elements" in str(
        error.value
    )


def test_misaligned_window() -> None:
    x = tensor("X", (8,))
    data = np.zeros(40, np.uint8)
    body = (when(b.lt(TID, i32(8)), store(x, TID, f32(1))),)
    for base, expected in ((0x1000, ()), (0x1004, ()), (0x1002, ("sim/misaligned",))):
        buffer = sim.GlobalBuffer("X", data[:32], base)
        try:
            sim.run(Unchecked(kernel((x,), body)), {"X": buffer}, {}, 1)
            got = ()
        except SimulationFault as error:
            got = error.codes
            assert "2 bytes past a multiple of 4" in str(error)
        assert got == expected


def test_overlapping_tensors_share_history() -> None:
    """In place is fine; two overlapping windows with an offset are a race."""
    x, y = tensor("X", (32,)), tensor("Y", (32,))
    data = np.arange(64, dtype=np.float32)
    raw = data.view(np.uint8)
    body = (store(y, TID, b.add(load(x, TID, at=1), f32(1)), at=2),)
    function = Unchecked(kernel((x, y), body))

    def buffers(offset: int):
        return {
            "X": sim.GlobalBuffer("X", raw[:128], 0x1000),
            "Y": sim.GlobalBuffer("Y", raw[offset : offset + 128], 0x1000 + offset),
        }

    sim.run(function, buffers(0), {}, 1)
    assert data[:32].tolist() == list(range(1, 33))
    sim.run(function, buffers(128), {}, 1)
    with pytest.raises(SimulationFault) as error:
        sim.run(function, buffers(4), {}, 1)
    assert set(error.value.codes) == {"sim/race"}


def test_division_by_zero_only_where_active() -> None:
    x = tensor("X", (32,), dtypes.int32)
    divisor = b.sub(TID, i32(3))
    quotient = b.floordiv(i32(-7), divisor)
    guarded = when(b.ne(divisor, i32(0)), store(x, TID, quotient))
    data = np.zeros(32, np.int32)
    assert codes(kernel((x,), (guarded,)), {"X": data}) == []
    assert data.tolist() == [0 if d == 0 else -7 // d for d in range(-3, 29)]
    assert codes(kernel((x,), (store(x, TID, quotient),)), {"X": data}) == ["sim/division-by-zero"]


def test_faults_are_capped_and_all_shown() -> None:
    body = [store(OUT, b.add(TID, i32(100 + i)), f32(1), at=i + 1) for i in range(30)]
    found = faults(kernel((OUT,), body), out())
    assert len(found) == 20 and [d.span.line for d in found] == list(range(1, 21))
    assert len(faults(kernel((OUT,), body), out(), fault_limit=5)) == 5


def test_endless_loop_is_a_gap_of_the_simulator_not_a_fault() -> None:
    v = n.Var("v", n.INT32)
    body = (n.Declare(v, i32(0)), n.While((n.Assign(v, b.add(v, i32(1))),)))
    with pytest.raises(Unsimulated) as error:
        run(kernel((), body), {}, step_limit=1000)
    assert error.value.codes == ("sim/step-limit",)


def test_loop_runs_each_lane_its_own_number_of_turns() -> None:
    v, k = n.Var("v", n.INT32), n.Var("k", n.INT32)
    x = tensor("X", (64,), dtypes.int32)
    data = np.zeros(64, np.int32)
    body = (n.Declare(v, i32(0)), loop(k, i32(0), TID, n.Assign(v, b.add(v, k))), store(x, TID, v))
    run(kernel((x,), body, block=64), {"X": data})
    assert data.tolist() == [t * (t - 1) // 2 for t in range(64)]


def test_break_continue_return() -> None:
    """Odd k are skipped, lanes break at their number, lanes from 24 up have returned before."""
    v, k = n.Var("v", n.INT32), n.Var("k", n.INT32)
    x = tensor("X", (32,), dtypes.int32)
    data = np.full(32, -1, np.int32)
    body = (
        n.Declare(v, i32(0)),
        when(b.ge(TID, i32(24)), n.Return()),
        n.Declare(k, i32(-1)),
        n.While(
            (
                n.Assign(k, b.add(k, i32(1))),
                when(b.ge(k, TID), n.Break()),
                when(b.eq(b.mod(k, i32(2)), i32(1)), n.Continue()),
                when(b.eq(k, i32(10)), store(x, TID, i32(99)), n.Return()),
                n.Assign(v, b.add(v, k)),
            )
        ),
        store(x, TID, v),
    )
    run(kernel((x,), body), {"X": data})

    def expected(t: int) -> int:
        if t >= 24:
            return -1
        return 99 if t > 10 else sum(k for k in range(t) if k % 2 == 0)

    assert data.tolist() == [expected(t) for t in range(32)]


def test_partial_last_warp() -> None:
    x = tensor("X", (40,), dtypes.int32)
    data = np.zeros(40, np.int32)
    run(kernel((x,), (store(x, TID, b.add(LANE, i32(1))),), block=40), {"X": data})
    assert data.tolist() == [*range(1, 33), *range(1, 9)]
