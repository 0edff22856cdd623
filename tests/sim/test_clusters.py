"""Clusters and barriers in the simulator: what is reported, and what must not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.sim import written
from tests.sim.handmade import WARP, b, codes, do, faults, i32, kernel, n, when
from tilejit import T
from tilejit.errors import SyntaxUnsupported, TileError

SEEDS = range(6)


def reported(k: Any, *args: Any, seed: int = 0) -> dict[str, str]:
    """Code and rendering of every fault of a run."""
    try:
        with tile.simulation(seed=seed):
            k(*args)
    except TileError as error:
        return {d.code: d.render() for d in error.diagnostics}
    return {}


def out(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


# --- distributed shared memory


@tile.jit
def read_neighbour(Y, WAIT: T.constexpr, LAST: T.constexpr, RANK: T.constexpr, OPCODE: T.constexpr):
    """Rank 0 reads rank ``RANK``'s memory, with or without a cluster barrier before and after."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64, cluster=2))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "int32")
    far = T.alloc_local((1,), "int32", layout="default")
    s[t] = t
    if WAIT:
        T.cuda.cluster_sync()
    if T.cuda.cluster_cta_rank() == 0:
        T.ptx[OPCODE](far[0], T.cuda.map_shared_rank(s.ptr_to([t]), RANK))
        Y[t] = far[0]
    if LAST:
        T.cuda.cluster_sync()


FAR = "ld.shared::cluster.b32"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_barriers_around_a_remote_read(seed: int) -> None:
    assert reported(read_neighbour, out(64), True, True, 1, FAR, seed=seed) == {}
    assert "sim/race" in reported(read_neighbour, out(64), False, True, 1, FAR, seed=seed) or (
        "sim/unwritten-read" in reported(read_neighbour, out(64), False, True, 1, FAR, seed=seed)
    )
    assert set(reported(read_neighbour, out(64), True, False, 1, FAR, seed=seed)) == {
        "sim/cluster-exited"
    }


def test_only_the_cluster_is_reached_and_only_by_its_instructions() -> None:
    text = reported(read_neighbour, out(64), True, True, 2, FAR)["sim/out-of-bounds"]
    assert "rank 2, but the cluster has 2 CTAs" in text
    text = reported(read_neighbour, out(64), True, True, 1, "ld.shared.b32")["sim/out-of-bounds"]
    assert "only an instruction on `.shared::cluster` reaches" in text
    assert reported(read_neighbour, out(64), True, True, 0, "ld.shared.b32") == {}


REMOTE = """
def k(X: T.Tensor((32,), "uint32", align=16), Y: T.Tensor((2, 32), "uint32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_rank()
    s = T.alloc_shared((32,), "uint32", layout="default", align=16)
    mine = T.alloc_shared((32,), "uint32", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    r = T.alloc_local((1,), "uint32", layout="default")
    far = T.cuda.map_shared_rank(s.ptr_to([t]), 1 - rank)
    far_bar = T.cuda.map_shared_rank(bar.ptr_to([0]), 1 - rank)
    s[t] = T.cast(t, ty="uint32")
    mine[t] = T.cast(t, ty="uint32")
    T.ptx["fence.proxy.async.shared::cta"]()
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32({arrivals}))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    if t == 0:
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, bar.ptr_to([0]), T.uint32({nbytes}))
    {first}
    {access}
    {last}
"""
"""Each of two CTAs reaches the other's ``s`` or ``bar``, between a first and a last way of joining it."""

COMPLETES = "mbarrier::complete_tx::bytes"
WAIT = "    T.cuda.mbarrier_wait_acquire_cluster(bar.ptr_to([0]), 0)"
ONE_COPIES = "if t == 0:\n        T.cuda.tile.apply("
REMOTE_ACCESSES: dict[str, tuple[str, int, int]] = {
    "load": ('T.ptx["ld.shared::cluster.b32"](r[0], far)', 1, 0),
    "store": ('T.ptx["st.shared::cluster.b32"](far, T.uint32(1))', 1, 0),
    "atom": ('T.ptx["atom.relaxed.cluster.shared::cluster.add.u32"](r[0], far, T.uint32(1))', 1, 0),
    "red": ('T.ptx["red.relaxed.cluster.shared::cluster.add.u32"](far, T.uint32(1))', 1, 0),
    "arrive": ('T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](T.ptx.SINK, far_bar)', 33, 0),
    "st.async": (f'T.ptx["st.async.shared::cluster.{COMPLETES}.b32"](far, T.uint32(1), far_bar)\n{WAIT}', 1, 128),
    "red.async": (f'T.ptx["red.async.relaxed.cluster.shared::cluster.{COMPLETES}.add.u32"](far, T.uint32(1), far_bar)\n{WAIT}', 1, 128),
    "copy": (f'{ONE_COPIES}T.ptx["cp.async.bulk.shared::cluster.shared::cta.{COMPLETES}"], s, mine, chunk_bytes=128, mbar=bar.ptr_to([0]), remote_cta_id=1 - rank)\n{WAIT}', 1, 128),
    "multicast": (f'{ONE_COPIES}T.ptx["cp.async.bulk.shared::cluster.global.{COMPLETES}.multicast::cluster"], s, X, chunk_bytes=128, mbar=bar.ptr_to([0]), cta_mask=T.uint16(2 - rank))\n{WAIT}', 1, 128),
}  # fmt: skip
"""The access of each thread, or of one, with the arrivals and the bytes of the phase it may belong to."""

JOIN, HALF, OTHER_HALF = "T.cuda.cluster_sync()", "T.cuda.cluster_arrive()", "T.cuda.cluster_wait()"
RELAXED = 'T.ptx["barrier.cluster.arrive.relaxed.aligned"]()\n    T.cuda.cluster_wait()'
NOT_STARTED = "sim/cluster-not-started"


def reached(kind: str, first: str, last: str, seed: int, wait: str = WAIT) -> set[str]:
    access, arrivals, nbytes = REMOTE_ACCESSES[kind]
    access = access.replace(WAIT, wait)
    text = REMOTE.format(access=access, arrivals=arrivals, nbytes=nbytes, first=first, last=last)
    x = torch.zeros(32, dtype=torch.uint32)
    return set(
        written.codes(written.kernel(text), x, torch.zeros(2, 32, dtype=torch.uint32), seed=seed)
    )


@pytest.mark.parametrize("kind", list(REMOTE_ACCESSES))
def test_a_cta_is_reached_between_its_start_and_its_end(kind: str) -> None:
    """Of what completes on its barrier, its own wait tells; without, it is in flight at the end."""
    for seed in SEEDS:
        assert reached(kind, JOIN, JOIN, seed) == set()
        assert NOT_STARTED in reached(kind, "", JOIN, seed)
        early = reached(kind, HALF, f"{OTHER_HALF}\n    {JOIN}", seed)
        assert NOT_STARTED in early, "an arrival is no wait"
        assert NOT_STARTED not in reached(kind, RELAXED, JOIN, seed), "it runs, whatever it wrote"
        if WAIT in REMOTE_ACCESSES[kind][0]:
            assert "sim/in-flight" in reached(kind, JOIN, "", seed, wait="")
        else:
            assert reached(kind, JOIN, "", seed) == {"sim/cluster-exited"}


@tile.jit
def write_neighbour(Y, SLOTS: T.constexpr, OFFSET: T.constexpr):
    """Every CTA of four writes to rank 0: to a slot of its own, or all to one."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=4))
    t = T.cuda.thread_idx("x")
    rank = T.cuda.cluster_cta_rank()
    s = T.alloc_shared((4, 32), "int32")
    T.cuda.cluster_sync()
    far = T.cuda.map_shared_rank(s.ptr_to([rank if SLOTS else 0, t]), 0)
    T.ptx["st.shared::cluster.b32"](T.ptx.addr(far, OFFSET), rank)
    T.cuda.cluster_sync()
    if rank == 0:
        Y[t] = s[3 if SLOTS else 0, t]


def test_remote_writes_race() -> None:
    y = out(32)
    assert reported(write_neighbour, y, True, 0) == {}
    assert (y == 3).all()
    text = reported(write_neighbour, out(32), False, 0)["sim/race"]
    assert "4 bytes of `s`" in text and "of rank 0" in text
    assert "T.cuda.cluster_sync() orders all threads of a cluster" in text
    assert "sim/out-of-bounds" in reported(write_neighbour, out(32), True, 512)


# --- the cluster barrier in two halves


@tile.jit
def halves(Y, WORDS: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64, cluster=2))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "int32")
    far = T.alloc_local((1,), "int32", layout="default")
    s[t] = t
    for word in WORDS:
        if word == "arrive":
            T.cuda.cluster_arrive()
        elif word == "relaxed":
            T.ptx["barrier.cluster.arrive.relaxed.aligned"]()
        elif word == "wait":
            T.cuda.cluster_wait()
        elif word == "sync":
            T.cuda.cluster_sync()
        elif word == "late":
            s[t] = t + 1
        else:
            T.ptx["ld.shared::cluster.b32"](
                far[0], T.cuda.map_shared_rank(s.ptr_to([t]), T.cuda.cluster_cta_rank() ^ 1)
            )
            Y[T.cuda.block_idx("x"), t] = far[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("arrive wait read sync", set()),
        ("sync read arrive wait", set()),
        ("arrive wait arrive wait read arrive wait", set()),
        ("arrive late wait read sync", {"sim/race"}),
        ("relaxed wait read sync", {"sim/race"}),
        ("wait sync read sync", {"sim/cluster-barrier"}),
        ("arrive arrive wait read sync", {"sim/cluster-barrier"}),
    ],
)
def test_arrive_and_wait(words: str, expected: set[str], seed: int) -> None:
    assert set(reported(halves, out(4, 64), tuple(words.split()), seed=seed)) == expected


@tile.jit
def mixed(Y, SYNC: T.constexpr):
    """Ranks in ``SYNC`` join at once, the others in two halves; warp 1 of rank 0 has exited before."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64, cluster=2))
    t = T.cuda.thread_idx("x")
    rank = T.cuda.cluster_cta_rank()
    s = T.alloc_shared((64,), "int32")
    far = T.alloc_local((1,), "int32", layout="default")
    s[t] = t + rank
    if rank == 0 and T.cuda.warp_id() == 1:
        return
    for again in T.unroll(2):
        if rank in SYNC:
            T.cuda.cluster_sync()
        else:
            T.cuda.cluster_arrive()
            T.cuda.cluster_wait()
        if again == 0:
            T.ptx["ld.shared::cluster.b32"](far[0], T.cuda.map_shared_rank(s.ptr_to([t]), rank ^ 1))
    Y[rank, t] = far[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("joint", [(), (0,), (1,), (0, 1)])
def test_both_ways_to_join_meet(joint: tuple[int, ...], seed: int) -> None:
    y = out(2, 64)
    assert reported(mixed, y, joint, seed=seed) == {}
    assert y[1].tolist() == list(range(64)) and y[0, :32].tolist() == list(range(1, 33))


def test_a_cluster_barrier_that_a_cta_never_joins() -> None:
    """The other CTA waits for ever, unless the one that does not come has exited."""
    rank = n.HardwareId("cluster_ctarank")

    def program(*other: n.Stmt) -> n.Function:
        body = (when(b.eq(rank, i32(0)), do("cuda.cluster_sync", at=3), orelse=other),)
        return kernel((), body, block=64, cluster=(2,))  # fmt: skip

    assert codes(program(), {}, grid=2) == []
    stuck = do("cuda.named_barrier_sync", i32(1), n.Static(96), at=5)
    (found,) = faults(program(stuck), {}, grid=2)
    assert found.code == "sim/deadlock"
    # That CTA is shown, not the one that waits for it.
    assert "shown is CTA (1, 0, 0)" in found.message
    one = when(b.eq(WARP, i32(0)), stuck, orelse=(do("cuda.cluster_sync", at=4),))
    (found,) = faults(program(one), {}, grid=2)
    text = found.render()
    assert "the cluster barrier at k.py:4; warp 0 of CTA (1, 0, 0) has not arrived" in text
    assert "named barrier 1" in text


# --- named barriers


def arrive(number: int, threads: int, at: int = 0) -> n.Stmt:
    return do("cuda.named_barrier_arrive", i32(number), n.Static(threads), at=at)


def sync(number: int, threads: int, at: int = 0) -> n.Stmt:
    return do("cuda.named_barrier_sync", i32(number), n.Static(threads), at=at)


@pytest.mark.parametrize("seed", SEEDS)
def test_arrivals_are_counted(seed: int) -> None:
    def program(count: int, *first: n.Stmt) -> n.Function:
        body = (when(b.eq(WARP, i32(0)), *first, orelse=(sync(2, count, at=5),)),)
        return kernel((), body, block=96)

    assert codes(program(96, arrive(2, 96)), {}, seed=seed) == []
    assert codes(program(64), {}, seed=seed) == []
    assert codes(program(128, arrive(2, 128)), {}, seed=seed) == ["sim/deadlock"]
    assert codes(program(96, arrive(2, 64)), {}, seed=seed) == ["sim/barrier-count"]
    twice = codes(program(128, arrive(2, 128), arrive(2, 128, at=4)), {}, seed=seed)
    assert "sim/barrier-count" in twice


def test_who_arrives_does_not_learn_what_the_others_did() -> None:
    """The producer's data is there for who waits; the producer may not overwrite it yet."""
    text = reported(handover, out(32), False)
    assert text == {}
    assert set(reported(handover, out(32), True)) == {"sim/race"}


@tile.jit
def handover(Y, AGAIN: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((32,), "int32")
    if T.cuda.warp_id() == 0:
        s[t] = t
        T.cuda.named_barrier_arrive(1, 64)
        if AGAIN:
            s[t] = -t
    else:
        T.cuda.named_barrier_sync(1, 64)
        Y[t - 32] = s[t - 32]


@tile.jit
def numbered(Y, RANGE: T.constexpr, RAW: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    number = T.int32(1)
    for i in range(Y.shape[0]):
        number = 1 + Y[i] % RANGE
        if RAW:
            T.ptx["bar.sync"](number, 128)
        else:
            T.cuda.named_barrier_sync(number, 128)
    if t == 0:
        Y[0] = number


def test_run_time_barrier_numbers() -> None:
    assert reported(numbered, torch.arange(9, dtype=torch.int32), 15, False) == {}
    assert reported(numbered, torch.arange(9, dtype=torch.int32), 15, True) == {}
    text = reported(numbered, torch.arange(9, dtype=torch.int32), 16, False)["tile/barrier-number"]
    assert "1 to 16" in text and "0 to 15" in text
    far = torch.full((2,), 15, dtype=torch.int32)
    assert "sim/barrier-number" in reported(numbered, far, 16, True)


@tile.jit
def by_lane(Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    T.cuda.named_barrier_sync(T.cuda.thread_idx("x") % 4, 64)
    Y[0] = 1


@tile.jit
def number_16(Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    T.ptx["bar.sync"](16, 64)
    Y[0] = 1


def test_barrier_numbers_that_cannot_be() -> None:
    assert "may differ between the lanes" in reported(by_lane, out(1))["tile/barrier-number"]
    assert "barrier 16, expected 0 to 15" in reported(number_16, out(1))["ptx/barrier-number"]


# --- registers


@tile.jit
def registers(Y, n: T.int32, FIRST: T.constexpr, SECOND: T.constexpr):
    """The first warpgroup changes to each of ``FIRST``, the two others to each of ``SECOND``: in a loop, so
    that the check before the launch leaves it to the simulator."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=384))
    for _ in range(n):
        if T.cuda.warpgroup_id() == 0:
            for word, count in FIRST:
                T.ptx[f"setmaxnreg.{word}.sync.aligned.u32"](count)
        else:
            for word, count in SECOND:
                T.ptx[f"setmaxnreg.{word}.sync.aligned.u32"](count)
    Y[T.cuda.thread_idx("x")] = 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((("dec", 24),), (("inc", 240),), set()),
        ((("dec", 40),), (("inc", 232),), set()),
        ((("dec", 24), ("inc", 32)), (("inc", 232),), set()),
        ((("dec", 24),), (("inc", 248),), {"sim/deadlock"}),
        ((), (("inc", 176),), {"sim/deadlock"}),
        ((("dec", 176),), (), {"sim/register-budget"}),
        ((("inc", 160),), (), {"sim/register-budget"}),
    ],
)
def test_register_budget(first: Any, second: Any, expected: set[str], seed: int) -> None:
    """384 threads start with 168 registers each."""
    found = reported(registers, out(384), 1, first, second, seed=seed)
    assert set(found) == expected
    for text in found.values():
        assert "setmaxnreg" in text


@tile.jit
def half_a_warpgroup(Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    if T.cuda.warp_id() < 2:
        T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
    Y[0] = 1


def test_a_warpgroup_changes_its_registers_as_a_whole() -> None:
    assert set(reported(half_a_warpgroup, out(1))) == {"scope/partial-warpgroup"}


# --- the grid


@tile.jit
def alone(Y, COOPERATIVE: T.constexpr, ROUNDS: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=32, cooperative=COOPERATIVE))
    t = T.cuda.thread_idx("x")
    i = T.cuda.block_idx("x") * 32 + t
    Y[i] = i
    for _ in range(ROUNDS):
        T.cuda.grid_sync()
    Y[(i + 32) % 256] = i


def test_grid_barriers() -> None:
    assert reported(alone, out(256), True, 1) == {}
    assert set(reported(alone, out(256), True, 0)) == {"sim/race"}
    assert set(reported(alone, out(256), False, 1)) == {"tile/cooperative"}


# --- targets


@tile.jit
def joins_cluster(Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
    T.cuda.cluster_sync()
    Y[0] = 1


@tile.jit
def maps_address(Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32))
    s = T.alloc_shared((1,), "int32")
    Y[0] = T.cast(T.cuda.map_shared_rank(s.ptr_to([0]), 0), "int32")


def test_clusters_need_their_target() -> None:
    with pytest.raises(TileError, match="cuda.cluster_sync needs sm_90"):
        joins_cluster.check(out(1), target="sm_80")
    with pytest.raises(SyntaxUnsupported, match="map_shared_rank needs sm_90"):
        maps_address.check(out(1), target="sm_80")
