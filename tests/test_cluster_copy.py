"""Clusters, distributed shared memory and raw barriers through decorated kernels, on the simulator and,
the same cases, on the GPU. The oracle is numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilejit as tile
from tilejit import T

pytestmark = pytest.mark.usefixtures("round_trips")

CLUSTERS = [1, 2, 4, 8]
TARGET = "sm_90a"


@pytest.fixture
def hopper(device: str) -> str:
    """``device``, where it has clusters."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need sm_90")
    return device


# --- the contract's example, with its imports and decorator changed


@tile.jit
def cluster_copy(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=1, cluster=2))
    rank = T.cuda.cluster_cta_id("x")
    src = T.alloc_shared((64,), "float32", layout="default", align=16)
    dst = T.alloc_shared((64,), "float32", layout="default", align=16)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    remote_addresses = T.alloc_local((2,), "uint64", layout="default")
    T.ptx.mbarrier.init.shared.b64(mbar.ptr_to([0]), T.uint32(1))
    T.ptx.fence.mbarrier_init.release.cluster()
    T.cuda.cluster_sync()
    if rank == 0:
        for i in range(64):
            src[i] = A[i]
        T.ptx.fence.proxy.async_.shared__cta()
        T.ptx.mapa.u64(remote_addresses[0], mbar.ptr_to([0]), T.uint32(1))
        T.ptx.mapa.u64(remote_addresses[1], dst.ptr_to([0]), T.uint32(1))
        T.ptx["cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"](
            T.cast(remote_addresses[1], ty="uint32"),
            src.ptr_to([0]), T.uint32(256),
            T.cast(remote_addresses[0], ty="uint32"),
        )  # fmt: skip
    else:
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(mbar.ptr_to([0]), T.uint32(256))
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
        for i in range(64):
            B[i] = dst[i]
    T.cuda.cluster_sync()


def test_the_contracts_cluster_copy(hopper: str) -> None:
    a = torch.arange(64, dtype=torch.float32, device=hopper)
    b = torch.empty_like(a)
    cluster_copy(a, b)
    torch.testing.assert_close(b, a)


# --- distributed shared memory


@tile.jit
def sum_over_cluster(X, Y, CTAS: T.constexpr, SPLIT: T.constexpr):
    """Every CTA reads the partial sums of all others. ``SPLIT``: the barrier in two halves."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=64, cluster=CTAS))
    t = T.cuda.thread_idx("x")
    b = T.cuda.block_idx("x")
    s = T.alloc_shared((64,), "float32")
    far = T.alloc_local((1,), "float32", layout="default")
    s[t] = X[b, t]
    if SPLIT:
        T.cuda.cluster_arrive()
        own = X[b, t] * 2.0
        T.cuda.cluster_wait()
    else:
        T.cuda.cluster_sync()
        own = X[b, t] * 2.0
    total = T.float32(0)
    for rank in range(CTAS):
        T.ptx["ld.shared::cluster.f32"](far[0], T.cuda.map_shared_rank(s.ptr_to([t]), rank))
        total = total + far[0]
    Y[b, t] = total + own
    T.cuda.cluster_sync()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("ctas", CLUSTERS)
def test_reads_of_distributed_shared_memory(hopper: str, ctas: int, split: bool) -> None:
    x = torch.arange(16 * 64, dtype=torch.float32).reshape(16, 64).to(hopper)
    y = torch.zeros_like(x)
    sum_over_cluster(x, y, ctas, split)
    sums = x.reshape(16 // ctas, ctas, 64).sum(1, keepdim=True).expand(-1, ctas, -1).reshape(16, 64)
    assert torch.equal(y, sums + 2 * x)


@tile.jit
def exchange(X, Y, CTAS: T.constexpr):
    """CTA ``r`` of a cluster sends row ``q`` of its block to CTA ``q``, which keeps it as its row ``r``."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=32 * CTAS, cluster=CTAS))
    t = T.cuda.thread_idx("x")
    b = T.cuda.block_idx("x")
    rank = T.cuda.cluster_cta_rank()
    peer = t // 32
    inbox = T.alloc_shared((CTAS, 32), "int32")
    address = T.alloc_local((1,), "uint32", layout="default")
    T.cuda.cluster_sync()
    T.ptx["mapa.shared::cluster.u32"](
        address[0], inbox.ptr_to([rank, t % 32]), T.cast(peer, "uint32")
    )
    T.ptx["st.shared::cluster.b32"](address[0], X[b, peer, t % 32])
    T.cuda.cluster_sync()
    Y[b, peer, t % 32] = inbox[peer, t % 32]


@pytest.mark.parametrize("ctas", CLUSTERS)
def test_all_to_all(hopper: str, ctas: int) -> None:
    x = torch.arange(8 * ctas * 32, dtype=torch.int32).reshape(8, ctas, 32).to(hopper)
    y = torch.zeros_like(x)
    exchange(x, y, ctas)
    blocks = x.reshape(8 // ctas, ctas, ctas, 32)
    assert torch.equal(y, blocks.transpose(1, 2).reshape(8, ctas, 32))


@tile.jit
def count_in_rank_0(X, OLD, CTAS: T.constexpr):
    """All threads of the cluster add to a counter in rank 0, by ``red`` and by ``atom``."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0] * CTAS, block=96, cluster=CTAS))
    t = T.cuda.thread_idx("x")
    rank = T.cuda.cluster_cta_rank()
    counters = T.alloc_shared((2,), "uint32")
    old = T.alloc_local((1,), "uint32", layout="default")
    if t < 2:
        counters[t] = T.uint32(0)
    T.cuda.cluster_sync()
    T.ptx["red.shared::cluster.add.u32"](
        T.cuda.map_shared_rank(counters.ptr_to([0]), 0), T.uint32(t + 1)
    )
    T.ptx["atom.shared::cluster.add.u32"](
        old[0], T.cuda.map_shared_rank(counters.ptr_to([1]), 0), T.uint32(1)
    )
    OLD[T.cuda.block_idx("x"), t] = old[0]
    T.cuda.cluster_sync()
    if rank == 0 and t < 2:
        X[T.cuda.cluster_id("x"), t] = counters[t]


@pytest.mark.parametrize("ctas", CLUSTERS)
def test_remote_atomics(hopper: str, ctas: int) -> None:
    x = torch.zeros(2, 2, dtype=torch.uint32, device=hopper)
    old = torch.zeros(2 * ctas, 96, dtype=torch.uint32, device=hopper)
    count_in_rank_0(x, old, ctas)
    assert x.cpu().numpy().tolist() == [[ctas * 96 * 97 // 2, ctas * 96]] * 2
    tickets = np.sort(old.cpu().numpy().reshape(2, ctas * 96), axis=1)
    assert (tickets == np.arange(ctas * 96)).all()


@tile.jit
def neighbours(Y):
    """In clusters of 2 × 4: coordinates, rank, and the rank that each address of a neighbour has."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(4, 8), block=32, cluster=(2, 4)))
    s = T.alloc_shared((4,), "int32")
    far = T.alloc_local((1,), "int32", layout="default")
    wide = T.alloc_local((2,), "uint64", layout="default")
    of = T.alloc_local((2,), "uint32", layout="default")
    x, y = T.cuda.cluster_cta_id("x"), T.cuda.cluster_cta_id("y")
    bx, by = T.cuda.block_idx("x"), T.cuda.block_idx("y")
    if T.cuda.thread_idx("x") < 4:
        s[T.cuda.thread_idx("x")] = bx * 100 + by
    T.cuda.cluster_sync()
    below = T.cast((y + 1) % 4 * 2 + x, "uint32")
    T.ptx.mapa.u64(wide[0], s.ptr_to([1]), below)
    T.ptx["ld.shared::cluster.b32"](far[0], T.cast(wide[0], ty="uint32"))
    T.ptx["getctarank.u64"](of[0], wide[0])
    T.ptx["mapa.shared::cluster.u64"](wide[1], s.ptr_to([2]), below)
    T.ptx["getctarank.shared::cluster.u64"](of[1], wide[1])
    if T.cuda.thread_idx("x") == 0:
        Y[by, bx, 0] = T.cuda.cluster_cta_rank()
        Y[by, bx, 1] = far[0]
        Y[by, bx, 2] = T.cast(of[0], "int32")
        Y[by, bx, 3] = T.cast(of[1], "int32")
    T.cuda.cluster_sync()


def test_two_dimensional_clusters(hopper: str) -> None:
    found = torch.zeros(8, 4, 4, dtype=torch.int32, device=hopper)
    neighbours(found)
    for by in range(8):
        for bx in range(4):
            rank, below = by % 4 * 2 + bx % 2, (by % 4 + 1) % 4
            expected = [
                rank,
                bx * 100 + by // 4 * 4 + below,
                below * 2 + bx % 2,
                below * 2 + bx % 2,
            ]
            assert found[by, bx].tolist() == expected


# --- barriers of parts of a CTA


@tile.jit
def ring(X, Y, STAGES: T.constexpr):
    """Warp 0 produces, warps 1 to 3 consume; ids of full and empty barriers depend on the stage."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    slots = T.alloc_shared((STAGES, 96), "int32")
    if T.cuda.warp_id() == 0:
        for i in range(X.shape[0]):
            if i >= STAGES:
                T.cuda.named_barrier_sync(1 + STAGES + i % STAGES, 128)
            for j in T.unroll(3):
                slots[i % STAGES, t * 3 + j] = X[i, t * 3 + j]
            T.cuda.named_barrier_arrive(1 + i % STAGES, 128)
    else:
        for i in range(X.shape[0]):
            T.cuda.named_barrier_sync(1 + i % STAGES, 128)
            Y[i, t - 32] = slots[i % STAGES, t - 32]
            if i + STAGES < X.shape[0]:
                T.cuda.named_barrier_arrive(1 + STAGES + i % STAGES, 128)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_named_barriers_of_producers_and_consumers(device: str, stages: int) -> None:
    x = torch.arange(7 * 96, dtype=torch.int32).reshape(7, 96).to(device)
    y = torch.zeros_like(x)
    ring(x, y, stages)
    assert torch.equal(x, y)


@tile.jit
def reduce_at_barrier(X, Y, THREADS: T.constexpr):
    """``bar.red`` over the CTA, and over the first two warps by a named barrier."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    t = T.cuda.thread_idx("x")
    count = T.alloc_local((2,), "uint32", layout="default")
    flags = T.alloc_local((2,), "bool", layout="default")
    condition = X[t] != 0
    T.ptx["barrier.red.popc.aligned.u32"](count[0], 0, condition)
    T.ptx["barrier.red.and.aligned.pred"](flags[0], 0, condition)
    T.ptx["barrier.red.or.aligned.pred"](flags[1], 0, condition)
    count[1] = T.uint32(0)
    if t < 64:
        T.ptx["bar.red.popc.u32"](count[1], 3, 64, condition)
    Y[t, 0] = count[0]
    Y[t, 1] = T.cast(flags[0], "uint32")
    Y[t, 2] = T.cast(flags[1], "uint32")
    Y[t, 3] = count[1]


@pytest.mark.parametrize("threads", [64, 96, 256])
@pytest.mark.parametrize("pattern", ["none", "one", "most", "all"])
def test_reductions_at_barriers(device: str, threads: int, pattern: str) -> None:
    flags = {
        "none": np.zeros(threads), "one": np.arange(threads) == 40,
        "most": np.arange(threads) % 5 != 0, "all": np.ones(threads),
    }[pattern].astype(np.int32)  # fmt: skip
    y = torch.zeros(threads, 4, dtype=torch.uint32, device=device)
    reduce_at_barrier(torch.from_numpy(flags).to(device), y, threads)
    expected = [flags.sum(), flags.all(), flags.any()]
    found = y.cpu().numpy()
    assert (found[:, :3] == np.array(expected, np.uint32)).all()
    assert (found[:64, 3] == flags[:64].sum()).all() and (found[64:, 3] == 0).all()


@tile.jit
def grid_rounds(X, ROUNDS: T.constexpr):
    """Each round every CTA reads what its right neighbour wrote in the round before."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[1], block=X.shape[2], cooperative=True))
    b, t = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
    for i in range(ROUNDS):
        T.cuda.grid_sync()
        X[i + 1, b, t] = X[i, (b + 1) % X.shape[1], t] + 1


@pytest.mark.parametrize("grid", [1, 3, 64])
def test_cooperative_launch(device: str, grid: int) -> None:
    x = torch.zeros(5, grid, 64, dtype=torch.int32)
    x[0] = torch.arange(grid * 64, dtype=torch.int32).reshape(grid, 64)
    y = x.to(device)
    grid_rounds(y, 4)
    for i in range(4):
        assert torch.equal(y[i + 1], torch.roll(y[i], -1, 0) + 1)


@tile.jit
def overlapping(X, Y):
    """Programmatic dependent launch: the memory of the launch before is there after the wait."""
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=4, block=64, programmatic_stream_serialization=True)
    )
    i = T.cuda.block_idx("x") * 64 + T.cuda.thread_idx("x")
    T.ptx.griddepcontrol.wait()
    Y[i] = X[i] + 1
    T.ptx.griddepcontrol.launch_dependents()


def test_programmatic_dependent_launch(hopper: str) -> None:
    buffers = [torch.zeros(256, dtype=torch.int32, device=hopper) for _ in range(5)]
    for source, target in zip(buffers, buffers[1:]):
        overlapping(source, target)
    assert buffers[-1].cpu().tolist() == [4] * 256


@tile.jit
def rebalanced(X, Y):
    """The producer's warpgroup gives registers up, the consumers' take them."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=384))
    t = T.cuda.thread_idx("x")
    if T.cuda.warpgroup_id() == 0:
        T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
    else:
        T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)
    Y[t] = X[t] * 2


def test_registers_move_between_warpgroups(hopper: str) -> None:
    x = torch.arange(384, dtype=torch.int32, device=hopper)
    y = torch.zeros_like(x)
    rebalanced(x, y)
    assert torch.equal(y, x * 2)


# --- code


def example_calls() -> list[tuple[object, tuple[object, ...]]]:
    """Every kernel of this page with arguments."""
    f, i, u = (torch.zeros(1, dtype=d) for d in (torch.float32, torch.int32, torch.uint32))
    return [
        (cluster_copy, (f.expand(64).clone(), f.expand(64).clone())),
        (sum_over_cluster, (f.new_zeros(4, 64), f.new_zeros(4, 64), 4, True)),
        (exchange, (i.new_zeros(4, 4, 32), i.new_zeros(4, 4, 32), 4)),
        (count_in_rank_0, (u.new_zeros(2, 2), u.new_zeros(4, 96), 2)),
        (neighbours, (i.new_zeros(8, 4, 4),)),
        (ring, (i.new_zeros(7, 96), i.new_zeros(7, 96), 2)),
        (reduce_at_barrier, (i.new_zeros(96), u.new_zeros(96, 4), 96)),
        (grid_rounds, (i.new_zeros(5, 3, 64), 4)),
        (overlapping, (i.new_zeros(256), i.new_zeros(256))),
        (rebalanced, (i.new_zeros(384), i.new_zeros(384))),
    ]


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("position", range(10))
def test_the_kernels_compile(position: int, target: str) -> None:
    kernel, arguments = example_calls()[position]
    variant = kernel.compile(*arguments, target=target)  # type: ignore[attr-defined]
    assert not variant.warnings


@tile.jit
def waits_for_phases(Y, N: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    bars = T.alloc_shared((4,), "uint64")
    t = T.cuda.thread_idx("x")
    if T.cuda.elect_sync():
        T.ptx["mbarrier.init.shared.b64"](bars.ptr_to([0]), T.uint32(1))
    T.cuda.warp_sync()
    for i in range(N):
        T.cuda.mbarrier_wait(bars.ptr_to([i % 4]), (i // 4) & 1)
        T.cuda.mbarrier_wait(bars.ptr_to([1]), T.uint32(1))
        T.cuda.mbarrier_wait(bars.ptr_to([2]), Y[t] != 0)


@pytest.mark.parametrize(("target", "word"), [("sm_80", "test_wait"), ("sm_90a", "try_wait")])
def test_a_wait_is_a_loop_of_two_instructions(target: str, word: str) -> None:
    variant = waits_for_phases.compile(torch.zeros(32, dtype=torch.int32), 9, target=target)
    assert variant.cuda.count(f"WAIT: mbarrier.{word}.parity") == 3
    assert variant.cuda.count("@!p bra WAIT;") == 3
