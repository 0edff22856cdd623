"""Loops that poll memory: whoever waits for what nobody will write is reported at once, nobody else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.sim.written import codes, kernel, notes, reports
from tilejit.errors import Unsimulated

SEEDS = range(6)

POLL = """
def k(F: T.Tensor((8,), "int32"), Y: T.Tensor((64,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid={grid}, block=64))
    t, cta, warp = T.cuda.thread_idx("x"), T.cuda.block_idx("x"), T.cuda.warp_id()
    lane = T.cuda.lane_id()
    seen = T.alloc_local((1,), "int32", layout="default")
    load, store = T.ptx["ld.acquire.gpu.global.b32"], T.ptx["st.release.gpu.global.b32"]
    swap = T.ptx["atom.acquire.gpu.global.cas.b32"]
    full = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    seen[0] = 0
{body}
"""


def program(body: str, grid: int = 2) -> Any:
    lines = body.strip("\n").splitlines()
    return kernel(POLL.format(grid=grid, body="\n".join(f"    {line}" for line in lines)))


def found(body: str, grid: int = 2, **options: Any) -> list[Any]:
    zeros = torch.zeros(8, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    return reports(program(body, grid), *zeros, **options)


SPIN = "while seen[0] == 0:\n    load(seen[0], F.ptr_to([{}]))"


def spin(flag: int, under: str) -> str:
    lines = SPIN.format(flag).splitlines()
    return f"if {under}:\n" + "\n".join(f"    {line}" for line in lines)


def test_a_flag_that_nobody_sets() -> None:
    for seed in SEEDS:
        (one,) = found(spin(3, "cta == 0 and t == 0") + "\nT.cuda.cta_sync()", seed=seed)
        assert one.code == "sim/deadlock"
        text = one.render()
        assert "while seen[0] == 0" in text
        assert "reads 0 (4 bytes) at byte 12 (element 3 of type int32) of `F`" in text
        assert (
            "by `ld.acquire.gpu.global.b32`" in text and "nothing in the kernel writes `F`" in text
        )
        assert "waits: warp 1 for the CTA barrier" in text


def test_who_could_have_set_it_is_named() -> None:
    body = "if cta == 1 and Y[0] == 9:\n    store(F.ptr_to([0]), T.int32(1))\n" + spin(
        0, "cta == 0"
    )
    (one,) = found(body)
    assert "`F` may be written by `st.release.gpu.global.b32`" in notes(one)["writes"]


def test_two_ctas_that_wait_for_each_other() -> None:
    """Each would set its flag after the other's."""
    body = """
while seen[0] == 0:
    load(seen[0], F.ptr_to([1 - cta]))
store(F.ptr_to([cta]), T.int32(1))
"""
    assert [d.code for d in found(body)] == ["sim/deadlock"]


@pytest.mark.parametrize("inner", [1, 2, 3, 6, 31])
def test_a_loop_in_a_loop_that_spins(inner: int) -> None:
    """Turns of both make a round."""
    body = f"""
while seen[0] == 0:
    tries = 0
    while tries < {inner}:
        tries = tries + 1
        load(seen[0], F.ptr_to([tries % 4]))
"""
    for seed in SEEDS:
        assert [d.code for d in found(body, grid=1, seed=seed, step_limit=100_000)] == [
            "sim/deadlock"
        ]


def test_a_lock_that_is_never_given_back() -> None:
    """The loser's exchanges change nothing."""
    body = """
if t == 0:
    seen[0] = 1
    while seen[0] != 0:
        swap(seen[0], F.ptr_to([0]), T.int32(0), T.int32(1))
"""
    assert [d.code for d in found(body)] == ["sim/deadlock"]
    given = body + "    Y[cta] = 7\n    store(F.ptr_to([0]), T.int32(0))\n"
    for seed in SEEDS:
        assert [d.code for d in found(given, seed=seed)] == []


LEGAL = {
    "another CTA sets it late": f"""
if cta == 1:
    for i in range(500):
        Y[t] = i
    if t == 0:
        store(F.ptr_to([0]), T.int32(1))
{spin(0, "cta == 0")}
""",
    "a warp that polls a phase sets it": """
if warp == 1:
    seen[0] = 0
    over = T.alloc_local((1,), "bool", layout="default")
    over[0] = False
    while not over[0]:
        T.ptx["mbarrier.test_wait.parity.shared::cta.b64"](over[0], full.ptr_to([0]), T.uint32(0))
    if lane == 0:
        store(F.ptr_to([cta]), T.int32(1))
else:
    if lane == 0:
        T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, full.ptr_to([0]))
    while seen[0] == 0:
        load(seen[0], F.ptr_to([cta]))
""",
    "a chain": """
if t == 0:
    if cta > 0:
        while seen[0] == 0:
            load(seen[0], F.ptr_to([cta - 1]))
    store(F.ptr_to([cta]), T.int32(1))
""",
    "a barrier every turn": """
if warp == 0:
    while seen[0] == 0:
        T.cuda.named_barrier_sync(1, 64)
        load(seen[0], F.ptr_to([cta]))
        T.cuda.named_barrier_sync(1, 64)
else:
    for i in range(300):
        if i == 299 and lane == 0:
            store(F.ptr_to([cta]), T.int32(1))
        T.cuda.named_barrier_sync(1, 64)
        T.cuda.named_barrier_sync(1, 64)
""",
    "arrivals every turn": """
if warp == 0:
    while seen[0] == 0:
        T.cuda.named_barrier_arrive(1, 64)
        T.cuda.named_barrier_sync(2, 64)
        load(seen[0], F.ptr_to([cta]))
else:
    for i in range(300):
        T.cuda.named_barrier_sync(1, 64)
        if i == 299 and lane == 0:
            store(F.ptr_to([cta]), T.int32(1))
        T.cuda.warp_sync()
        T.cuda.named_barrier_arrive(2, 64)
""",
    "a ticket lock": """
if lane == 0:
    mine = T.alloc_local((1,), "int32", layout="default")
    add, tell = T.ptx["atom.relaxed.gpu.global.add.s32"], T.ptx["red.release.gpu.global.add.s32"]
    add(mine[0], F.ptr_to([0]), T.int32(1))
    seen[0] = -1
    while seen[0] != mine[0]:
        load(seen[0], F.ptr_to([1]))
    Y[0] = Y[0] + 1
    tell(F.ptr_to([1]), T.int32(1))
""",
    "a look back": """
if t == 0:
    store(F.ptr_to([cta]), T.int32(4 * cta + 1))
    look, total = cta - 1, cta
    while look >= 0:
        load(seen[0], F.ptr_to([look]))
        if seen[0] % 4 == 2:
            total += seen[0] // 4
            look = -1
        elif seen[0] % 4 == 1:
            total += seen[0] // 4
            look -= 1
    store(F.ptr_to([cta]), T.int32(4 * total + 2))
""",
    "a barrier of the grid by hand": """
add = T.ptx["atom.acq_rel.gpu.global.add.s32"]
for phase in range(3):
    T.cuda.cta_sync()
    if t == 0:
        add(seen[0], F.ptr_to([0]), T.int32(1))
        if seen[0] == 4 * phase + 3:
            store(F.ptr_to([1]), phase + 1)
        seen[0] = 0
        while seen[0] <= phase:
            load(seen[0], F.ptr_to([1]))
    T.cuda.cta_sync()
""",
    "looks before it takes the lock": """
if t == 0:
    held = True
    while held:
        seen[0] = 1
        while seen[0] != 0:
            load(seen[0], F.ptr_to([0]))
        swap(seen[0], F.ptr_to([0]), T.int32(0), T.int32(1))
        held = seen[0] != 0
    Y[0] = Y[0] + 1
    store(F.ptr_to([0]), T.int32(0))
""",
    "waits longer and longer": """
if t == 0 and cta > 0:
    duration_ns = T.uint32(8)
    while seen[0] == 0:
        load(seen[0], F.ptr_to([cta - 1]))
        T.ptx["nanosleep.u32"](duration_ns)
        duration_ns = min(duration_ns * 2, T.uint32(256))
if t == 0:
    store(F.ptr_to([cta]), T.int32(1))
""",
    "a poller counts": """
tries = 0
while seen[0] == 0 and tries < 1000:
    load(seen[0], F.ptr_to([0]))
    tries = tries + 1
""",
}


@pytest.mark.parametrize("name", list(LEGAL))
def test_polling_for_what_comes_is_no_deadlock(name: str) -> None:
    for seed in SEEDS:
        assert [d.code for d in found(LEGAL[name], grid=4, seed=seed)] == []


def test_a_flag_in_shared_memory_that_a_copy_brings() -> None:
    """It is under way while everybody spins."""
    k = kernel(
        """
def k(F: T.Tensor((4,), "int32", align=16), Y: T.Tensor((1,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((4,), "int32", layout="default", align=16)
    full = T.alloc_shared((1,), "uint64", align=8)
    seen = T.alloc_local((1,), "int32", layout="default")
    if t == 0:
        s[0] = 0
        T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([0]), T.uint32(1))
        T.ptx["fence.proxy.async.shared::cta"]()
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, full.ptr_to([0]), T.uint32(16))
        T.cuda.tile.apply(T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"],
                          s, F, chunk_bytes=16, mbar=full.ptr_to([0]))
        seen[0] = 0
        while seen[0] == 0:
            T.ptx["ld.volatile.shared::cta.b32"](seen[0], s.ptr_to([0]))
        T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
        Y[0] = seen[0]
"""
    )
    for seed in SEEDS:
        y = torch.zeros(1, dtype=torch.int32)
        codes_ = codes(k, torch.full((4,), 5, dtype=torch.int32), y, seed=seed)
        assert set(codes_) <= {"sim/in-flight"}, "reading it is at fault, waiting for it is not"


def test_lanes_of_the_same_warp_that_would_set_it_are_a_gap() -> None:
    beside = spin(0, "lane == 0") + "\nelif lane == 1:\n    store(F.ptr_to([0]), T.int32(1))"
    (one,) = found(beside)
    assert one.code == "sim/unsimulated"
    behind = spin(0, "lane == 0") + "\nstore(F.ptr_to([0]), T.int32(1))"
    assert [d.code for d in found(behind)] == ["sim/unsimulated"]
    after_all = spin(0, "lane == 0") + "\nT.cuda.warp_sync()\nstore(F.ptr_to([0]), T.int32(1))"
    assert [d.code for d in found(after_all)] == ["sim/deadlock"]


def test_a_flag_that_a_cta_of_a_later_batch_sets_is_a_gap() -> None:
    body = "if cta == 3 and t == 0:\n    store(F.ptr_to([0]), T.int32(1))\n" + spin(
        0, "cta == 0 and t == 0"
    )
    assert found(body, grid=4) == []
    zeros = torch.zeros(8, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with pytest.raises(Unsimulated, match="2 CTAs run later"), tile.simulation(batch_warps=4):
        program(body, grid=4)(*zeros)
