"""Correct kernels, as the texts in which ``test_planted_bugs`` plants bugs. Not a test module.

Each has its arguments by shape and what numpy says it computes. The numbers are small integers, so
every order of summing them is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Subject:
    """``inputs``: shape and dtype; the output comes behind them, ``scalars`` last. ``target``: None is the
    simulator's usual one."""

    text: str
    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    output: tuple[int, ...]
    oracle: Callable[..., Array]
    scalars: tuple[int, ...] = ()
    target: str | None = None

    def tensors(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        return [
            torch.randint(-4, 5, shape, generator=generator).to(dtype)
            for shape, dtype in self.inputs
        ]


# --- a ring of three stages, filled by cp.async, read by other threads than those that fill it

RING = '''
def k(X: T.Tensor((32, 96), "float32", align=16), Y: T.Tensor((32, 16), "float32"), rows: T.int32):
    """Y[i, j] = sum over tiles n of X[i, 16 n + j], and 0 for rows from ``rows`` on."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    t = T.cuda.thread_idx("x")
    first = T.cuda.block_idx("x") * 16
    row, chunk = t // 4, t % 4
    ring = T.alloc_shared((3, 16, 16), "float32",
                          layout="swizzle(2,2,2) o (3,16,16):(256,16,1)", align=128)
    to, tiles = ring.view(3, 16, 4, 4), X.view(32, 6, 4, 4)
    kept = T.if_then_else(first + row < rows, T.uint32(16), T.uint32(0))
    copy = T.ptx["cp.async.cg.shared.global"]
    for n in T.unroll(2):
        T.cuda.tile.apply(copy, to.sub[n, row, chunk, :], tiles.sub[first + row, n, chunk, :],
                          chunk_bytes=16, src_size=kept)
        T.ptx["cp.async.commit_group"]()
    total = T.alloc_local((4,), "float32", layout="default")
    for i in T.unroll(4):
        total[i] = 0.0
    for n in range(6):
        T.ptx["cp.async.wait_group"](1)
        T.cuda.cta_sync()
        for i in T.unroll(4):
            total[i] += ring[n % 3, (3 - t // 16) * 4 + i, t % 16]
        if n + 2 < 6:
            T.cuda.tile.apply(copy, to.sub[(n + 2) % 3, row, chunk, :],
                              tiles.sub[first + row, n + 2, chunk, :],
                              chunk_bytes=16, src_size=kept)
        T.ptx["cp.async.commit_group"]()
    for i in T.unroll(4):
        Y[first + (3 - t // 16) * 4 + i, t % 16] = total[i]
'''


def ring_oracle(x: Array, rows: int) -> Array:
    kept = np.where(np.arange(32)[:, None] < rows, x, 0)
    return np.asarray(kept.reshape(32, 6, 16).sum(axis=1))


# --- a transpose through shared memory, by ld and st

TRANSPOSE = '''
def k(X: T.Tensor((64, 64), "float32", align=16), Y: T.Tensor((64, 64), "float32", align=16)):
    """Y = X transposed, 32 x 32 elements at a time."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=128))
    t = T.cuda.thread_idx("x")
    first = T.cuda.block_idx("x") * 32
    row, chunk = t // 8, t % 8
    tile = T.alloc_shared((32, 32), "float32",
                          layout="swizzle(2,3,3) o (32,32):(32,1)", align=128)
    r = T.alloc_local((4,), "float32", layout="default")
    for n in range(2):
        for h in T.unroll(2):
            T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r,
                              X.view(64, 16, 4).sub[first + h * 16 + row, n * 8 + chunk, :])
            T.cuda.tile.apply(T.ptx["st.shared.v4.b32"],
                              tile.view(32, 8, 4).sub[h * 16 + row, chunk, :], r)
        T.cuda.cta_sync()
        for h in T.unroll(2):
            for i in T.unroll(4):
                r[i] = tile[chunk * 4 + i, h * 16 + row]
            T.cuda.tile.apply(T.ptx["st.global.v4.b32"],
                              Y.view(64, 16, 4).sub[n * 32 + h * 16 + row, first // 4 + chunk, :], r)
        T.cuda.cta_sync()
'''


def transpose_oracle(x: Array) -> Array:
    return x.T


# --- a matrix product: cp.async, ldmatrix, mma.sync

GEMM = '''
def k(A: T.Tensor((64, 128), "float16", align=16), B: T.Tensor((32, 128), "float16", align=16),
      C: T.Tensor((64, 32), "float32")):
    """C = A B^T, 32 rows of A per CTA, 32 columns of both per stage."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64))
    t, warp, lane = T.cuda.thread_idx("x"), T.cuda.warp_id(), T.cuda.lane_id()
    first = T.cuda.block_idx("x") * 32
    chunks = T.cuda.mma_shared_layout((3, 32, 32), "float16")
    As = T.alloc_shared((3, 32, 32), "float16", layout=chunks, align=128)
    Bs = T.alloc_shared((3, 32, 32), "float16", layout=chunks, align=128)
    a_to, b_to = As.view(3, 32, 4, 8), Bs.view(3, 32, 4, 8)
    a_from, b_from = A.view(64, 4, 4, 8), B.view(32, 4, 4, 8)
    a_words, b_words = As.view("uint32"), Bs.view("uint32")
    copy = T.ptx["cp.async.cg.shared.global"]
    load = T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]
    multiply = T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"]
    fragment = T.cuda.mma_fragment_layout
    a = T.alloc_local((8,), "uint32", layout="default")
    b = T.alloc_local((16,), "uint32", layout="default")
    total = T.alloc_local((16,), "float32", layout="default")
    D = total.view(1, 4, 16, 8, layout=fragment("m16n8k16", "D", (1, 4)))
    for i in T.unroll(16):
        total[i] = 0.0
    for n in T.unroll(2):
        for h in T.unroll(2):
            row, chunk = h * 16 + t // 4, t % 4
            T.cuda.tile.apply(copy, a_to.sub[n, row, chunk, :],
                              a_from.sub[first + row, n, chunk, :], chunk_bytes=16)
            T.cuda.tile.apply(copy, b_to.sub[n, row, chunk, :],
                              b_from.sub[row, n, chunk, :], chunk_bytes=16)
        T.ptx["cp.async.commit_group"]()
    for n in range(4):
        T.ptx["cp.async.wait_group"](1)
        T.cuda.cta_sync()
        a_tile = a_words.sub[n % 3, warp * 16 : warp * 16 + 16, :]
        a_tile = a_tile.view(2, 8, 4, 4).permute(2, 0, 1, 3)
        b_tile = b_words.sub[n % 3, :, :].view(4, 8, 4, 4).permute(0, 2, 1, 3)
        T.cuda.tile.apply(load, a.view(2, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (2,))),
                          a_tile.view(2, 4, 8, 4), scope="warp")
        T.cuda.tile.apply(load, b.view(4, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (4,))),
                          b_tile, scope="warp")
        T.cuda.tile.apply(multiply, D,
                          a.view(1, 2, 16, 8, layout=fragment("m16n8k16", "A", (1, 2))),
                          b.view(4, 2, 8, 8, layout=fragment("m16n8k16", "B", (4, 2))),
                          D, scope="warp")
        if n + 2 < 4:
            for h in T.unroll(2):
                row, chunk = h * 16 + t // 4, t % 4
                T.cuda.tile.apply(copy, a_to.sub[(n + 2) % 3, row, chunk, :],
                                  a_from.sub[first + row, n + 2, chunk, :], chunk_bytes=16)
                T.cuda.tile.apply(copy, b_to.sub[(n + 2) % 3, row, chunk, :],
                                  b_from.sub[row, n + 2, chunk, :], chunk_bytes=16)
        T.ptx["cp.async.commit_group"]()
    for i in T.unroll(16):
        column = i // 4 * 8 + 2 * (lane % 4) + i % 2
        C[first + warp * 16 + lane // 4 + 8 * (i % 4 // 2), column] = total[i]
'''


def gemm_oracle(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32).T


# --- warps that fill two slots and warps that add them up, joined by named barriers

ROLES = '''
def k(X: T.Tensor((8, 64, 4), "float32", align=16), Y: T.Tensor((64, 4), "float32", align=16)):
    """Y[i] = sum over n of X[n, 63 - i]. Warps 0 and 1 copy, warps 2 and 3 add, warp 4 does neither."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=160))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    slots = T.alloc_shared((2, 64, 4), "float32", layout="default", align=16)
    if warp < 2:
        for n in T.unroll(8):
            T.cuda.tile.apply(T.ptx["cp.async.ca.shared.global"],
                              slots.sub[n % 2, t, :], X.sub[n, t, :], chunk_bytes=16)
            T.ptx["cp.async.commit_group"]()
            T.ptx["cp.async.wait_group"](0)
            T.cuda.named_barrier_sync(1 + n % 2, 128)
    elif warp < 4:
        total = T.alloc_local((4,), "float32", layout="default")
        for i in T.unroll(4):
            total[i] = 0.0
        for n in T.unroll(8):
            T.cuda.named_barrier_sync(1 + n % 2, 128)
            for i in T.unroll(4):
                total[i] += slots[n % 2, 127 - t, i]
        T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[t - 64, :], total)
'''


def roles_oracle(x: Array) -> Array:
    return np.asarray(x.sum(axis=0)[::-1])


# --- a ring of two stages, filled by bulk copies and handed over through mbarriers; results leave by bulk stores

BULK = '''
def k(X: T.Tensor((8, 128), "float32", align=16), Y: T.Tensor((8, 128), "float32", align=16)):
    """Y[n, j] = 2 X[n, 127 - j]. Warp 0 loads, warps 1 and 2 compute and store."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    ring = T.alloc_shared((2, 128), "float32", layout="default", align=16)
    result = T.alloc_shared((2, 128), "float32", layout="default", align=16)
    full = T.alloc_shared((2,), "uint64", align=8)
    empty = T.alloc_shared((2,), "uint64", align=8)
    if t == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared.b64"](full.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([i]), T.uint32(64))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    if warp == 0:
        if t == 0:
            for n in range(8):
                stage = n % 2
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (n // 2 + 1) % 2)
                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
                    T.ptx.SINK, full.ptr_to([stage]), T.uint32(512))
                T.cuda.tile.apply(
                    T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"],
                    ring.sub[stage, :], X.sub[n, :], chunk_bytes=512, mbar=full.ptr_to([stage]))
    else:
        c = t - 32
        for n in range(8):
            stage = n % 2
            T.cuda.mbarrier_wait(full.ptr_to([stage]), n // 2 % 2)
            a, b = ring[stage, 127 - c], ring[stage, 63 - c]
            T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, empty.ptr_to([stage]))
            if c == 0:
                T.ptx["cp.async.bulk.wait_group.read"](1)
            T.cuda.named_barrier_sync(1, 64)
            result[stage, c] = 2.0 * a
            result[stage, c + 64] = 2.0 * b
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.named_barrier_sync(1, 64)
            if c == 0:
                T.cuda.tile.apply(T.ptx["cp.async.bulk.global.shared::cta.bulk_group"],
                                  Y.sub[n, :], result.sub[stage, :], chunk_bytes=512)
                T.ptx["cp.async.bulk.commit_group"]()
        if c == 0:
            T.ptx["cp.async.bulk.wait_group"](0)
'''


def bulk_oracle(x: Array) -> Array:
    return 2 * x[:, ::-1]


# --- two CTAs: one multicasts to both, each sends what it made of it to the other

CLUSTER = '''
def k(X: T.Tensor((64,), "float32", align=16), Y: T.Tensor((2, 64), "float32")):
    """Y[r, j] = X[j] + (2 - r) X[63 - j]."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=64, cluster=2))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    x = T.alloc_shared((64,), "float32", layout="default", align=16)
    made = T.alloc_shared((64,), "float32", layout="default", align=16)
    got = T.alloc_shared((64,), "float32", layout="default", align=16)
    bars = T.alloc_shared((2,), "uint64", align=8)
    if t == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared.b64"](bars.ptr_to([i]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        for i in T.unroll(2):
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
                T.ptx.SINK, bars.ptr_to([i]), T.uint32(256))
    T.cuda.cluster_sync()
    if t == 0 and rank == 0:
        T.cuda.tile.apply(
            T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"],
            x, X, chunk_bytes=256, mbar=bars.ptr_to([0]), cta_mask=T.uint16(3))
    T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)
    made[t] = x[63 - t] * T.cast(rank + 1, ty="float32")
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(
            T.ptx["cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"],
            got, made, chunk_bytes=256, mbar=bars.ptr_to([1]), remote_cta_id=1 - rank)
    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([1]), 0)
    Y[rank, t] = x[t] + got[t]
    T.cuda.cluster_sync()
'''


def cluster_oracle(x: Array) -> Array:
    return np.stack([x + factor * x[::-1] for factor in (2, 1)])


# --- CTAs one after another, each waiting for a flag in global memory that the one before it sets

FLAGS = '''
def k(X: T.Tensor((4, 64), "float32"), F: T.Tensor((4,), "int32"), Y: T.Tensor((4, 64), "float32")):
    """Y[c] = X[0] + ... + X[c]; F[c] is 99 when that is there."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=64))
    t, cta = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    before = T.float32(0.0)
    if cta > 0:
        if t == 0:
            seen = T.alloc_local((1,), "int32", layout="default")
            seen[0] = 0
            while seen[0] != 99:
                T.ptx["ld.acquire.gpu.global.b32"](seen[0], F.ptr_to([cta - 1]))
        T.cuda.cta_sync()
        before = Y[cta - 1, t]
    Y[cta, t] = before + X[cta, t]
    T.cuda.cta_sync()
    if t == 0:
        T.ptx["st.release.gpu.global.b32"](F.ptr_to([cta]), T.int32(99))
'''


def flags_oracle(x: Array, flags: Array) -> Array:
    del flags
    return np.asarray(x.cumsum(axis=0))


# --- a matrix product on Hopper: TMA loads, wgmma in two warpgroups, TMA stores

TMA_GEMM = '''
def k(A: T.Tensor((128, 256), "float16", align=16), B: T.Tensor((128, 256), "float16", align=16),
      D: T.Tensor((128, 128), "float32", align=16), C: T.Tensor((128, 128), "float32", align=16)):
    """C = A B^T + D, 64 columns after 64. Warpgroup 0 loads, 1 and 2 have 64 rows each."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=384))
    group, thread = T.cuda.warpgroup_id(), T.cuda.thread_in_warpgroup()
    swizzled = T.cuda.mma_shared_layout
    a_ring = T.alloc_shared((2, 128, 64), "float16", layout=swizzled((2, 128, 64), "float16"), align=1024)
    b_ring = T.alloc_shared((2, 64, 64), "float16", layout=swizzled((2, 64, 64), "float16"), align=1024)
    addend = T.alloc_shared((128, 64), "float32", layout="default", align=128)
    result = T.alloc_shared((2, 64, 64), "float32", layout="default", align=128)
    full = T.alloc_shared((2,), "uint64", align=8)
    empty = T.alloc_shared((2,), "uint64", align=8)
    added = T.alloc_shared((2,), "uint64", align=8)
    if T.cuda.linear_thread_id() == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared.b64"](full.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([i]), T.uint32(2))
        T.ptx["mbarrier.init.shared.b64"](added.ptr_to([0]), T.uint32(1))
        T.ptx["mbarrier.init.shared.b64"](added.ptr_to([1]), T.uint32(256))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    if group == 0:
        T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)
        if thread == 0:
            load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]
            announce = T.ptx["mbarrier.arrive.expect_tx.shared.b64"]
            for tile in range(2):
                T.cuda.mbarrier_wait(added.ptr_to([1]), (tile + 1) % 2)
                announce(T.ptx.SINK, added.ptr_to([0]), T.uint32(32768))
                T.cuda.tile.apply(load, addend, D, box=(128, 64), coords=(0, 64 * tile), mbar=added.ptr_to([0]))
                for k in range(4):
                    stage = k % 2
                    T.cuda.mbarrier_wait(empty.ptr_to([stage]), (k // 2 + 1) % 2)
                    announce(T.ptx.SINK, full.ptr_to([stage]), T.uint32(24576))
                    T.cuda.tile.apply(load, a_ring.sub[stage], A, box=(128, 64), coords=(0, 64 * k), swizzle=3,
                                      mbar=full.ptr_to([stage]))
                    T.cuda.tile.apply(load, b_ring.sub[stage], B, box=(64, 64), coords=(64 * tile, 64 * k), swizzle=3,
                                      mbar=full.ptr_to([stage]))
    else:
        T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)
        consumer = group - 1
        T.assume(0 <= consumer < 2)
        row, column = 16 * (thread // 32) + thread % 32 // 4, thread % 4 * 2
        sums = T.alloc_local((8, 2, 2), "float32", layout="default")
        for tile in range(2):
            for k in range(4):
                stage = k % 2
                T.cuda.mbarrier_wait(full.ptr_to([stage]), k // 2 % 2)
                T.ptx["wgmma.fence.sync.aligned"]()
                T.cuda.tile.apply(
                    T.ptx["wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"],
                    sums.view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64, (1, 1))),
                    a_ring.view(2, 2, 64, 4, 16).sub[stage, consumer].view(1, 64, 4, 16).permute(0, 2, 1, 3),
                    b_ring.sub[stage].view(1, 64, 4, 16).permute(0, 2, 1, 3),
                    accum=k > 0, scope="warpgroup")
                T.ptx["wgmma.commit_group.sync.aligned"]()
                T.ptx["wgmma.wait_group.sync.aligned"](0)
                if thread == 0:
                    T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, empty.ptr_to([stage]))
            T.cuda.mbarrier_wait(added.ptr_to([0]), tile)
            for i in T.unroll(8):
                for j in T.unroll(2):
                    for h in T.unroll(2):
                        sums[i, j, h] += addend[64 * consumer + row + 8 * j, 8 * i + column + h]
            T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, added.ptr_to([1]))
            if thread == 0:
                T.ptx["cp.async.bulk.wait_group.read"](0)
            T.cuda.named_barrier_sync(1 + consumer, 128)
            for i in T.unroll(8):
                for j in T.unroll(2):
                    for h in T.unroll(2):
                        result[consumer, row + 8 * j, 8 * i + column + h] = sums[i, j, h]
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.named_barrier_sync(1 + consumer, 128)
            if thread == 0:
                T.cuda.tile.apply(T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"],
                                  C, result.sub[consumer], box=(64, 64), coords=(64 * consumer, 64 * tile))
                T.ptx["cp.async.bulk.commit_group"]()
        if thread == 0:
            T.ptx["cp.async.bulk.wait_group"](0)
'''


def tma_gemm_oracle(a: Array, b: Array, d: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32).T + d


FLOAT, HALF = torch.float32, torch.float16
SUBJECTS: dict[str, Subject] = {
    "ring": Subject(RING, (((32, 96), FLOAT),), (32, 16), ring_oracle, (27,)),
    "transpose": Subject(TRANSPOSE, (((64, 64), FLOAT),), (64, 64), transpose_oracle),
    "gemm": Subject(GEMM, (((64, 128), HALF), ((32, 128), HALF)), (64, 32), gemm_oracle),
    "roles": Subject(ROLES, (((8, 64, 4), FLOAT),), (64, 4), roles_oracle),
    "bulk": Subject(BULK, (((8, 128), FLOAT),), (8, 128), bulk_oracle),
    "cluster": Subject(CLUSTER, (((64,), FLOAT),), (2, 64), cluster_oracle),
    "flags": Subject(FLAGS, (((4, 64), FLOAT), ((4,), torch.int32)), (4, 64), flags_oracle),
    "tma_gemm": Subject(
        TMA_GEMM,
        (((128, 256), HALF), ((128, 256), HALF), ((128, 128), FLOAT)),
        (128, 128),
        tma_gemm_oracle,
    ),
}
