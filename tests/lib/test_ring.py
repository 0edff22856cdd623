"""Rings of stages: positions against arithmetic, and copies that pass through one, on the simulator and
the GPU."""

from __future__ import annotations

import pytest
import torch

from tests.lib.hopper import need_hopper
from tilejit import T, jit, simulation
from tilejit.lib import ring


@jit
def positions(OUT: T.Tensor(("ROUNDS", 2), "int32"), stages: T.constexpr, count: T.constexpr):
    ROUNDS, _ = OUT.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    stage, parity = 0, 0
    for i in range(ROUNDS):
        OUT[i, 0] = stage
        OUT[i, 1] = parity
        stage, parity = ring.following(stage, parity, stages, count)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_positions(device: str, stages: int, count: int) -> None:
    out = torch.full((40, 2), -1, dtype=torch.int32, device=device)
    positions(out, stages, count)
    passed = [i * count for i in range(40)]
    assert out.tolist() == [[n % stages, n // stages % 2] for n in passed]


ELEMS = 128


@jit
def doubled(
    X: T.Tensor(("ROUNDS", ELEMS), "float32", align=16), Y: T.Tensor(("ROUNDS", ELEMS), "float32"),
    stages: T.constexpr,
):  # fmt: skip
    """Y = 2 X, row by row through a ring; two warps consume, each half of every row."""
    ROUNDS, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    rows = T.alloc_shared((stages, ELEMS), "float32", layout="default", align=16)
    full = T.alloc_shared((stages,), "uint64", align=8)
    empty = T.alloc_shared((stages,), "uint64", align=8)
    ring.create(full, empty, 1, 2)
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    stage, parity = 0, 0
    if warp == 2:
        if lane == 0:
            for i in range(ROUNDS):
                ring.wait_empty(empty, stage, parity)
                ring.announce(full, stage, ELEMS * 4)
                T.cuda.tile.apply(
                    T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"],
                    rows.sub[stage], X.sub[i], chunk_bytes=ELEMS * 4, mbar=full.ptr_to([stage]),
                )  # fmt: skip
                stage, parity = ring.following(stage, parity, stages)
    else:
        for i in range(ROUNDS):
            ring.wait_full(full, stage, parity)
            for j in T.unroll(2):
                at = warp * 64 + j * 32 + lane
                Y[i, at] = rows[stage, at] * 2.0
            ring.release_read(empty, stage)
            stage, parity = ring.following(stage, parity, stages)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rows_through_a_ring(device: str, stages: int) -> None:
    need_hopper(device)
    x = torch.arange(7 * ELEMS, dtype=torch.float32).view(7, ELEMS).to(device)
    for seed in range(4):
        y = torch.full_like(x, float("nan"))
        with simulation(seed=seed):
            doubled(x, y, stages)
        assert torch.equal(y, 2 * x)


@jit
def exchanged(
    X: T.Tensor(("ROUNDS", ELEMS), "float32", align=16), Y: T.Tensor((2, "ROUNDS", ELEMS), "float32"),
    stages: T.constexpr,
):  # fmt: skip
    """Both CTAs of a cluster copy X to their part of Y; each loads half of every row for both."""
    ROUNDS, _ = X.shape
    half = ELEMS // 2
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64, cluster=2))
    rows = T.alloc_shared((stages, 2, half), "float32", layout="default", align=16)
    full = T.alloc_shared((stages,), "uint64", align=8)
    empty = T.alloc_shared((stages,), "uint64", align=8)
    ring.create(full, empty, 1, 2, in_cluster=True)
    warp, lane, rank = T.cuda.warp_id(), T.cuda.lane_id(), T.cuda.cluster_cta_rank()
    stage, parity = 0, 0
    if warp == 1:
        if lane == 0:
            for i in range(ROUNDS):
                ring.wait_empty(empty, stage, parity)
                ring.announce(full, stage, ELEMS * 4)
                T.cuda.tile.apply(
                    T.ptx[
                        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                        ".multicast::cluster"
                    ],
                    rows.sub[stage, rank], X.view(ROUNDS, 2, half).sub[i, rank],
                    chunk_bytes=half * 4, mbar=full.ptr_to([stage]), cta_mask=T.uint16(3),
                )  # fmt: skip
                stage, parity = ring.following(stage, parity, stages)
    else:
        for i in range(ROUNDS):
            ring.wait_full(full, stage, parity)
            for j in T.unroll(4):
                at = j * 32 + lane
                Y[rank, i, at] = rows[stage, at // half, at % half]
            ring.end_reads()
            if lane == 0:
                ring.release_of_two(empty, stage, rank)
            stage, parity = ring.following(stage, parity, stages)
    T.cuda.cluster_sync()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_ring_of_two_ctas(device: str, stages: int) -> None:
    need_hopper(device)
    x = torch.arange(7 * ELEMS, dtype=torch.float32).view(7, ELEMS).to(device)
    for seed in range(4):
        y = torch.full((2, 7, ELEMS), float("nan"), device=device)
        with simulation(seed=seed):
            exchanged(x, y, stages)
        assert torch.equal(y, x.expand(2, 7, ELEMS))
