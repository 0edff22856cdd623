"""Correct kernels on tensor memory, in which ``planted_blackwell`` plants bugs. Not a test module.

As ``planted_kernels``; the target is sm_100a.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.sim.planted_kernels import Array, Subject

# --- one tile: shared memory is filled by ordinary stores, 64 of K at a time

TMEM_TILE = '''
def k(A: T.Tensor((128, 128), "float16"), B: T.Tensor((32, 128), "float16"), C: T.Tensor((128, 32), "float32")):
    """C = A B^T."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    a = T.alloc_shared((128, 64), "float16", layout=T.cuda.mma_shared_layout((128, 64), "float16"), align=1024)
    b = T.alloc_shared((32, 64), "float16", layout=T.cuda.mma_shared_layout((32, 64), "float16"), align=1024)
    slot = T.alloc_shared((1,), "uint32", align=16)
    done = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
    if warp == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(64))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    both = T.cuda.decl_tmem(slot[0], (128, 64), "float32", layout="(128,64):(1@TLane,1@TCol)")
    D = both.view(128, 2, 32).sub[:, 0, :]
    sums = T.alloc_local((32,), "float32", layout="default")
    for n in range(2):
        for i in range(64):
            a[t, i] = A[t, 64 * n + i]
        for i in range(16):
            b[t // 4, t % 4 * 16 + i] = B[t // 4, 64 * n + t % 4 * 16 + i]
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if t == 0:
            T.cuda.tile.apply(
                T.ptx["tcgen05.mma.cta_group::1.kind::f16"], D.view(1, 1, 128, 32),
                a.view(1, 128, 4, 16).permute(0, 2, 1, 3), b.view(1, 32, 4, 16).permute(0, 2, 1, 3),
                instruction_shape=(128, 32, 16), accum=n > 0)
            T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))
        T.cuda.mbarrier_wait(done.ptr_to([0]), n)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
        sums.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
        D.view(4, 32, 32), scope="warpgroup")
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for i in T.unroll(32):
        C[t, i] = sums[i]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(64))
'''


def product_oracle(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32).T


# --- a ring of slices and two accumulators, in warps with roles

TMEM_RING = '''
def k(A: T.Tensor((128, 256), "float16", align=16), B: T.Tensor((128, 256), "float16", align=16),
      C: T.Tensor((128, 128), "float32", align=16)):
    """C = A B^T, 32 columns after 32. Warp 0 loads, 1 multiplies, 2 allocates, 4 to 7 store."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    warp, lane, thread = T.cuda.warp_id(), T.cuda.lane_id(), T.cuda.thread_in_warpgroup()
    swizzled = T.cuda.mma_shared_layout
    a_ring = T.alloc_shared((2, 128, 64), "float16", layout=swizzled((2, 128, 64), "float16"), align=1024)
    b_ring = T.alloc_shared((2, 32, 64), "float16", layout=swizzled((2, 32, 64), "float16"), align=1024)
    slot = T.alloc_shared((1,), "uint32", align=16)
    full, empty = T.alloc_shared((2,), "uint64", align=8), T.alloc_shared((2,), "uint64", align=8)
    finished, emptied = T.alloc_shared((2,), "uint64", align=8), T.alloc_shared((2,), "uint64", align=8)
    commit = T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"]
    if T.cuda.linear_thread_id() == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](finished.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](emptied.ptr_to([i]), T.uint32(4))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    if warp == 2:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(64))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    sums = T.cuda.decl_tmem(slot[0], (128, 2, 32), "float32", layout="(128,2,32):(1@TLane,32@TCol,1@TCol)")
    if warp == 0:
        if lane == 0:
            load = T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"]
            for k in range(16):
                stage = k % 2
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (k // 2 + 1) % 2)
                T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                    T.ptx.SINK, full.ptr_to([stage]), T.uint32(20480))
                T.cuda.tile.apply(load, a_ring.sub[stage], A, box=(128, 64), coords=(0, 64 * (k % 4)), swizzle=3,
                                  mbar=full.ptr_to([stage]))
                T.cuda.tile.apply(load, b_ring.sub[stage], B, box=(32, 64), coords=(32 * (k // 4), 64 * (k % 4)),
                                  swizzle=3, mbar=full.ptr_to([stage]))
    elif warp == 1:
        if lane == 0:
            for tile in range(4):
                T.cuda.mbarrier_wait(emptied.ptr_to([tile % 2]), (tile // 2 + 1) % 2)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for k in range(4):
                    stage = k % 2
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), k // 2 % 2)
                    T.cuda.tile.apply(
                        T.ptx["tcgen05.mma.cta_group::1.kind::f16"], sums.sub[:, tile % 2, :].view(1, 1, 128, 32),
                        a_ring.sub[stage].view(1, 128, 4, 16).permute(0, 2, 1, 3),
                        b_ring.sub[stage].view(1, 32, 4, 16).permute(0, 2, 1, 3),
                        instruction_shape=(128, 32, 16), accum=k > 0)
                    commit(empty.ptr_to([stage]))
                commit(finished.ptr_to([tile % 2]))
    elif warp >= 4:
        for tile in range(4):
            T.cuda.mbarrier_wait(finished.ptr_to([tile % 2]), tile // 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            row = T.alloc_local((32,), "float32", layout="default")
            T.cuda.tile.apply(
                T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
                row.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
                sums.sub[:, tile % 2, :].view(4, 32, 32), scope="warpgroup")
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, emptied.ptr_to([tile % 2]))
            T.cuda.tile.apply(T.ptx["st.global.v4.b32"], C.view(128, 4, 8, 4).sub[thread, tile], row.view(8, 4))
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp == 2:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(64))
'''

# --- the same by a pair of CTAs: each has its rows of A and C, and half of B's columns

TMEM_PAIR = '''
def k(A: T.Tensor((256, 256), "float16", align=16), B: T.Tensor((128, 256), "float16", align=16),
      C: T.Tensor((256, 128), "float32", align=16)):
    """C = A B^T, 32 columns after 32. Warp 0 loads, 1 of the first CTA multiplies, 2 allocates, 4 to 7 store."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=256, cluster=2))
    warp, lane, thread = T.cuda.warp_id(), T.cuda.lane_id(), T.cuda.thread_in_warpgroup()
    rank = T.cuda.cluster_cta_rank()
    swizzled = T.cuda.mma_shared_layout
    a_ring = T.alloc_shared((2, 128, 64), "float16", layout=swizzled((2, 128, 64), "float16"), align=1024)
    b_ring = T.alloc_shared((2, 16, 64), "float16", layout=swizzled((2, 16, 64), "float16"), align=1024)
    slot = T.alloc_shared((1,), "uint32", align=16)
    full, empty = T.alloc_shared((2,), "uint64", align=8), T.alloc_shared((2,), "uint64", align=8)
    finished, emptied = T.alloc_shared((2,), "uint64", align=8), T.alloc_shared((2,), "uint64", align=8)
    commit = T.ptx["tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"]
    if T.cuda.linear_thread_id() == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](finished.ptr_to([i]), T.uint32(1))
            T.ptx["mbarrier.init.shared::cta.b64"](emptied.ptr_to([i]), T.uint32(8))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    if warp == 2:
        T.ptx["tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(64))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cluster_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    sums = T.cuda.decl_tmem(slot[0], (128, 2, 32), "float32", layout="(128,2,32):(1@TLane,32@TCol,1@TCol)")
    if warp == 0:
        if lane == 0:
            load = T.ptx["cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2"]
            for k in range(16):
                stage = k % 2
                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (k // 2 + 1) % 2)
                if rank == 0:
                    T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                        T.ptx.SINK, full.ptr_to([stage]), T.uint32(36864))
                first = T.cuda.map_shared_rank(full.ptr_to([stage]), 0)
                T.cuda.tile.apply(load, a_ring.sub[stage], A, box=(128, 64), coords=(128 * rank, 64 * (k % 4)),
                                  swizzle=3, mbar=first)
                T.cuda.tile.apply(load, b_ring.sub[stage], B, box=(16, 64),
                                  coords=(32 * (k // 4) + 16 * rank, 64 * (k % 4)), swizzle=3, mbar=first)
    elif warp == 1:
        if rank == 0 and lane == 0:
            for tile in range(4):
                T.cuda.mbarrier_wait(emptied.ptr_to([tile % 2]), (tile // 2 + 1) % 2)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for k in range(4):
                    stage = k % 2
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), k // 2 % 2)
                    T.cuda.tile.apply(
                        T.ptx["tcgen05.mma.cta_group::2.kind::f16"], sums.sub[:, tile % 2, :].view(1, 1, 128, 32),
                        a_ring.sub[stage].view(1, 128, 4, 16).permute(0, 2, 1, 3),
                        b_ring.sub[stage].view(1, 16, 4, 16).permute(0, 2, 1, 3),
                        instruction_shape=(256, 32, 16), accum=k > 0)
                    commit(empty.ptr_to([stage]), T.uint16(3))
                commit(finished.ptr_to([tile % 2]), T.uint16(3))
    elif warp >= 4:
        for tile in range(4):
            T.cuda.mbarrier_wait(finished.ptr_to([tile % 2]), tile // 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            row = T.alloc_local((32,), "float32", layout="default")
            T.cuda.tile.apply(
                T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
                row.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
                sums.sub[:, tile % 2, :].view(4, 32, 32), scope="warpgroup")
            T.ptx["tcgen05.wait::ld.sync.aligned"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["mbarrier.arrive.shared::cluster.b64"](
                    T.ptx.SINK, T.cuda.map_shared_rank(emptied.ptr_to([tile % 2]), 0))
            T.cuda.tile.apply(T.ptx["st.global.v4.b32"],
                              C.view(2, 128, 4, 8, 4).sub[rank, thread, tile], row.view(8, 4))
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cluster_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp == 2:
        T.ptx["tcgen05.dealloc.cta_group::2.sync.aligned.b32"](slot[0], T.uint32(64))
'''

# --- stores that unpack, split loads that pack; other warps load than those that stored

TMEM_HALVES = '''
def k(X: T.Tensor((128, 16), "float16", align=16), Y: T.Tensor((128, 8), "float32")):
    """Y[i] = X[i, 0:8] in the upper half of each 32 rows, X[i, 8:16] in the lower. Warps 0 to 3 store, 4 to 7 load."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    warp, lane, thread = T.cuda.warp_id(), T.cuda.lane_id(), T.cuda.thread_in_warpgroup()
    slot = T.alloc_shared((1,), "uint32", align=16)
    if warp == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(32))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    # One 16-bit element in a cell: (row, word, half, 16 bits of 32).
    cells = T.cuda.decl_tmem(slot[0], (4, 32, 16, 2, 2), "float16",
                             layout="(4,32,16,2,2):(32@TLane,1@TLane,4@TCol,2@TCol,1@TCol)")
    low = cells.sub[:, :, :, :, 0]
    words = T.alloc_local((8,), "uint32", layout="default")
    if warp < 4:
        for i in T.unroll(8):
            words[i] = X.view("uint32")[thread, i]
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x8.unpack::16b.b32"], low[:, :, 0:8, :],
            words.view(4, 32, 8, layout=T.cuda.tcgen05_ld_layout("32x32b", 8, warps=(4,))), scope="warpgroup")
        T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp >= 4:
        found = T.alloc_local((4,), "uint32", layout="default")
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.16x32bx2.x4.pack::16b.b32"],
            found.view(4, 2, 16, 4, layout=T.cuda.tcgen05_ld_layout("16x32bx2", 4, warps=(4,))),
            low[:, 0:16, 0:4, :], low[:, 16:32, 4:8, :], imm_half_splitoff=(16 << 16) + 8, scope="warpgroup")
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        halves = found.view("float16")
        for i in T.unroll(8):
            Y[thread, i] = T.cast(halves[i], ty="float32")
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(32))
'''


def halves_oracle(x: Array) -> Array:
    upper = np.arange(128)[:, None] % 32 < 16
    return np.where(upper, x[:, :8], x[:, 8:]).astype(np.float32)


# --- scale factors, copied to tensor memory by tcgen05.cp, and a product that multiplies by them

TMEM_SCALES = '''
def k(A: T.Tensor((128, 256), "float8_e4m3fn"), B: T.Tensor((64, 256), "float8_e4m3fn"),
      SA: T.Tensor((2, 128, 4), "int32"), SB: T.Tensor((2, 64, 4), "int32"), C: T.Tensor((128, 64), "float32")):
    """C = (A scaled by 2^(SA % 2)) (B scaled by 2^(SB % 2))^T; a factor for 32 of K, 128 of K at a time."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t, warp, lane = T.cuda.thread_idx("x"), T.cuda.warp_id(), T.cuda.lane_id()
    a = T.alloc_shared((128, 128), "float8_e4m3fn", layout=T.cuda.tcgen05_shared_layout((128, 128), "float8_e4m3fn"),
                       align=1024)
    b = T.alloc_shared((64, 128), "float8_e4m3fn", layout=T.cuda.tcgen05_shared_layout((64, 128), "float8_e4m3fn"),
                       align=1024)
    # (row % 32, row // 32, factor)
    sa = T.alloc_shared((32, 4, 4), "uint8", layout="default", align=128)
    sb = T.alloc_shared((32, 4, 4), "uint8", layout="default", align=128)
    slot = T.alloc_shared((1,), "uint32", align=16)
    done = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
    if warp == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(128))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    laid = T.cuda.tmem_mma_operand_layout
    D = T.cuda.decl_tmem(slot[0], (128, 64), "float32", layout="(128,64):(1@TLane,1@TCol)")
    copied = "(32,4):(1@TLane,1@TCol) + R[4:32@TLane]"
    to_a = T.cuda.decl_tmem(slot[0] + 64, (32, 4), "uint32", layout=copied)
    to_b = T.cuda.decl_tmem(slot[0] + 68, (32, 4), "uint32", layout=copied)
    SFA = T.cuda.decl_tmem(slot[0] + 64, (1, 4, 128, 1), "float8_e8m0fnu",
                           layout=laid("SFA", (1, 4, 128, 1), "float8_e8m0fnu", M=128, cta_group=1))
    SFB = T.cuda.decl_tmem(slot[0] + 68, (1, 4, 64, 1), "float8_e8m0fnu",
                           layout=laid("SFB", (1, 4, 64, 1), "float8_e8m0fnu", M=128, cta_group=1))
    copy = T.ptx["tcgen05.cp.cta_group::1.32x128b.warpx4"]
    for n in range(2):
        for i in range(128):
            a[t, i] = A[t, 128 * n + i]
        for i in range(64):
            b[t // 2, t % 2 * 64 + i] = B[t // 2, 128 * n + t % 2 * 64 + i]
        for i in T.unroll(4):
            sa[lane, warp, i] = T.cast(127 + (SA[n, t, i] & 1), ty="uint8")
            sb[lane, warp, i] = T.cast(127 + (SB[n, t % 64, i] & 1), ty="uint8")
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if t == 0:
            T.cuda.tile.apply(copy, to_a, sa.view("uint32").view(32, 4))
            T.cuda.tile.apply(copy, to_b, sb.view("uint32").view(32, 4))
            T.cuda.tile.apply(
                T.ptx["tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32"], D.view(1, 1, 128, 64),
                a.view(1, 128, 4, 32).permute(0, 2, 1, 3), b.view(1, 64, 4, 32).permute(0, 2, 1, 3), SFA, SFB,
                instruction_shape=(128, 64, 32), accum=n > 0)
            T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))
        T.cuda.mbarrier_wait(done.ptr_to([0]), n)
        T.ptx["tcgen05.fence::after_thread_sync"]()
    sums = T.alloc_local((64,), "float32", layout="default")
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"],
        sums.view(4, 32, 64, layout=T.cuda.tcgen05_ld_layout("32x32b", 64, warps=(4,))),
        D.view(4, 32, 64), scope="warpgroup")
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for i in T.unroll(64):
        C[t, i] = sums[i]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if warp == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(128))
'''


def scales_oracle(a: Array, b: Array, sa: Array, sb: Array) -> Array:
    def scaled(values: Array, factors: Array) -> Array:
        exponents = np.repeat(factors.transpose(1, 0, 2).reshape(len(values), -1) & 1, 32, axis=1)
        return np.asarray(values * 2.0**exponents)

    return scaled(a, sa) @ scaled(b, sb).T


# --- A is stored to tensor memory, 32 of K at a time into two places in turn

TMEM_A = '''
def k(A: T.Tensor((128, 128), "float16"), B: T.Tensor((32, 128), "float16"), C: T.Tensor((128, 32), "float32")):
    """C = A B^T. Warps 0 to 3 store A and load the sums, a thread of warp 4 multiplies."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=160))
    t, warp, lane = T.cuda.thread_idx("x"), T.cuda.warp_id(), T.cuda.lane_id()
    b = T.alloc_shared((4, 32, 32), "float16", layout=T.cuda.tcgen05_shared_layout((4, 32, 32), "float16"), align=512)
    slot = T.alloc_shared((1,), "uint32", align=16)
    stored, read = T.alloc_shared((2,), "uint64", align=8), T.alloc_shared((2,), "uint64", align=8)
    done = T.alloc_shared((1,), "uint64", align=8)
    commit = T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"]
    if t == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared::cta.b64"](stored.ptr_to([i]), T.uint32(128))
            T.ptx["mbarrier.init.shared::cta.b64"](read.ptr_to([i]), T.uint32(1))
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
    if warp == 4:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(64))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    if t < 128:
        for i in range(32):
            b[t % 4, t // 4, i] = B[t // 4, t % 4 * 32 + i]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    D = T.cuda.decl_tmem(slot[0], (128, 32), "float32", layout="(128,32):(1@TLane,1@TCol)")
    parts = T.cuda.decl_tmem(slot[0] + 32, (128, 2, 32), "float16", layout="(128,2,32):(1@TLane,32@TCol,1@TCol)")
    if warp < 4:
        for n in range(4):
            words = T.alloc_local((16,), "uint32", layout="default")
            for i in T.unroll(16):
                words[i] = A.view("uint32")[t, 16 * n + i]
            T.cuda.mbarrier_wait(read.ptr_to([n % 2]), (n // 2 + 1) % 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.cuda.tile.apply(
                T.ptx["tcgen05.st.sync.aligned.32x32b.x16.b32"],
                parts.view("uint32").sub[:, n % 2, :].view(4, 32, 16),
                words.view(4, 32, 16, layout=T.cuda.tcgen05_ld_layout("32x32b", 16, warps=(4,))), scope="warpgroup")
            T.ptx["tcgen05.wait::st.sync.aligned"]()
            T.ptx["tcgen05.fence::before_thread_sync"]()
            T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, stored.ptr_to([n % 2]))
    elif lane == 0:
        for n in range(4):
            T.cuda.mbarrier_wait(stored.ptr_to([n % 2]), n // 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            T.cuda.tile.apply(
                T.ptx["tcgen05.mma.cta_group::1.kind::f16"], D.view(1, 1, 128, 32),
                parts.sub[:, n % 2, :].view(1, 128, 2, 16).permute(0, 2, 1, 3),
                b.sub[n].view(1, 32, 2, 16).permute(0, 2, 1, 3), instruction_shape=(128, 32, 16), accum=n > 0)
            commit(read.ptr_to([n % 2]))
        commit(done.ptr_to([0]))
    if warp < 4:
        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        sums = T.alloc_local((32,), "float32", layout="default")
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
            sums.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
            D.view(4, 32, 32), scope="warpgroup")
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for i in T.unroll(32):
            C[t, i] = sums[i]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if warp == 4:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(64))
'''

TARGET = "sm_100a"
HALF, FP8, INT = torch.float16, torch.float8_e4m3fn, torch.int32
SUBJECTS: dict[str, Subject] = {
    "tmem_tile": Subject(
        TMEM_TILE, (((128, 128), HALF), ((32, 128), HALF)), (128, 32), product_oracle, target=TARGET
    ),
    "tmem_ring": Subject(
        TMEM_RING,
        (((128, 256), HALF), ((128, 256), HALF)),
        (128, 128),
        product_oracle,
        target=TARGET,
    ),
    "tmem_pair": Subject(
        TMEM_PAIR,
        (((256, 256), HALF), ((128, 256), HALF)),
        (256, 128),
        product_oracle,
        target=TARGET,
    ),
    "tmem_halves": Subject(
        TMEM_HALVES, (((128, 16), HALF),), (128, 8), halves_oracle, target=TARGET
    ),
    "tmem_scales": Subject(
        TMEM_SCALES,
        (((128, 256), FP8), ((64, 256), FP8), ((2, 128, 4), INT), ((2, 64, 4), INT)),
        (128, 64),
        scales_oracle,
        target=TARGET,
    ),
    "tmem_a": Subject(
        TMEM_A, (((128, 128), HALF), ((32, 128), HALF)), (128, 32), product_oracle, target=TARGET
    ),
}
