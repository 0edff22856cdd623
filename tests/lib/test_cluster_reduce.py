"""Reductions over a cluster against torch, on the simulator and the GPU."""

from __future__ import annotations

import pytest
import torch

import tilejit as tile
from tilejit import T, jit
from tilejit.lib import cluster_reduce, reduce

COMBINE = {"add": reduce.add, "maximum": reduce.maximum, "minimum": reduce.minimum}
TORCH = {"add": torch.sum, "maximum": torch.amax, "minimum": torch.amin}


@pytest.fixture
def hopper(device: str) -> str:
    """``device``, where it has clusters."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need sm_90")
    return device


@jit
def reduce_rounds(
    X, Y, combine: T.constexpr, ctas: T.constexpr, warps: T.constexpr, idle_warps: T.constexpr
):
    """Y[i, b, t] = the combination of X[i] over the cluster that holds CTA b; X (rounds, CTAs, threads)."""
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=X.shape[1], block=32 * (warps + idle_warps), cluster=ctas)
    )
    slots = T.alloc_shared((ctas * warps, 1), X.dtype, layout="default", align=16)
    full = T.alloc_shared((1,), "uint64", align=8)
    empty = T.alloc_shared((ctas,), "uint64", align=8)
    t, b = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    if t == 0:
        cluster_reduce.create(full, empty)
    T.cuda.cluster_sync()
    if T.cuda.warp_id() < warps:
        rounds = X.shape[0]
        parity = 0
        for i in range(rounds):
            Y[i, b, t] = cluster_reduce.reduce(X[i, b, t], combine, slots, full, empty, parity)
            if i + 1 < rounds:
                cluster_reduce.release(empty, 1, 32 * warps)
            parity = parity ^ 1


def numbers(rounds: int, blocks: int, threads: int, dtype: torch.dtype) -> torch.Tensor:
    count = rounds * blocks * threads
    return (
        torch.arange(count).mul(37).remainder(101).sub(50).to(dtype).view(rounds, blocks, threads)
    )


def check(x: torch.Tensor, y: torch.Tensor, combine: str, ctas: int) -> None:
    rounds, blocks, threads = x.shape
    grouped = x.cpu().view(rounds, blocks // ctas, ctas * threads)
    expected = TORCH[combine](grouped, 2).to(x.dtype)
    assert torch.equal(y.cpu().view(grouped.shape), expected[..., None].expand_as(grouped))


@pytest.mark.parametrize("combine", sorted(COMBINE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_combinations(hopper: str, dtype: torch.dtype, combine: str) -> None:
    x = numbers(3, 8, 64, dtype).to(hopper)
    y = torch.zeros_like(x)
    reduce_rounds(x, y, COMBINE[combine], 4, 2, 1)
    check(x, y, combine, 4)


@pytest.mark.parametrize(
    ("ctas", "warps", "idle_warps"),
    [(1, 1, 0), (1, 4, 1), (2, 2, 0), (4, 1, 1), (8, 8, 1), (8, 2, 0)],
)
def test_rounds_of_clusters(hopper: str, ctas: int, warps: int, idle_warps: int) -> None:
    x = numbers(5, 2 * ctas, 32 * warps, torch.float32).to(hopper)
    y = torch.zeros_like(x)
    reduce_rounds(x, y, reduce.add, ctas, warps, idle_warps)
    check(x, y, "add", ctas)


@jit
def gather_words(X, Y):
    """Y[b, s] = the words of slot s, as CTA b has them; X (CTAs, warps, words)."""
    ctas, warps, count = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=ctas, block=32 * warps, cluster=ctas))
    slots = T.alloc_shared((ctas * warps, count), X.dtype, layout="default", align=16)
    full = T.alloc_shared((1,), "uint64", align=8)
    empty = T.alloc_shared((ctas,), "uint64", align=8)
    words = T.alloc_local((count,), X.dtype, layout="default")
    t, b = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    if t == 0:
        cluster_reduce.create(full, empty)
    T.cuda.cluster_sync()
    for i in T.unroll(count):
        words[i] = X[b, T.cuda.warp_id(), i]
    cluster_reduce.publish(words, slots, full, empty, 0)
    cluster_reduce.wait(full, 0)
    for i in T.unroll(count):
        if t < ctas * warps:
            Y[b, t, i] = slots[t, i]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_words_of_a_slot(hopper: str, count: int) -> None:
    x = torch.arange(4 * 2 * count, dtype=torch.int32).view(4, 2, count).to(hopper)
    y = torch.zeros(4, 8, count, dtype=torch.int32, device=hopper)
    gather_words(x, y)
    assert torch.equal(y.cpu(), x.cpu().view(1, 8, count).expand(4, 8, count))


@pytest.mark.parametrize("seed", range(1, 13))
def test_any_order_gives_the_same(seed: int) -> None:
    """The simulator chooses who goes first and when words arrive, by the seed."""
    x = numbers(4, 8, 64, torch.float32)
    y = torch.zeros_like(x)
    with tile.simulation(seed=seed):
        reduce_rounds(x, y, reduce.add, 4, 2, 1)
    check(x, y, "add", 4)


@jit
def unreleased_rounds(X, Y, ctas: T.constexpr):
    """As ``reduce_rounds``, and releases from a CTA whose warps may still be reading."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[1], block=64, cluster=ctas))
    slots = T.alloc_shared((ctas * 2, 1), X.dtype, layout="default", align=16)
    full = T.alloc_shared((1,), "uint64", align=8)
    empty = T.alloc_shared((ctas,), "uint64", align=8)
    t, b = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    if t == 0:
        cluster_reduce.create(full, empty)
    T.cuda.cluster_sync()
    for i in range(2):
        Y[i, b, t] = cluster_reduce.reduce(X[i, b, t], reduce.add, slots, full, empty, i % 2)
        if i == 0 and t < ctas:
            there = T.cuda.map_shared_rank(empty.ptr_to([T.cuda.cluster_cta_rank()]), t)
            T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](T.ptx.SINK, there)


def test_slots_that_are_no_power_of_two_are_refused() -> None:
    """Of 40 slots, 32 lanes would each combine one."""
    x = numbers(1, 8, 160, torch.float32)
    with pytest.raises(tile.SyntaxUnsupported, match="the number of slots is a power of two"):
        reduce_rounds(x, torch.empty_like(x), COMBINE["add"], 8, 5, 0)


def test_a_release_needs_all_readers() -> None:
    """What ``release`` joins its threads for: without that, words of the next round may overtake."""
    x = numbers(2, 2, 64, torch.float32)
    with pytest.raises(tile.SimulationFault) as caught:
        unreleased_rounds(x, torch.zeros_like(x), 2)
    assert {d.code for d in caught.value.diagnostics} == {"sim/race"}
