"""Softmax over the rows of a matrix: one read and one write of global memory for rows that fit an SM, or
the SMs of a cluster where there are clusters.

Numerics: values are widened to float32, exponentials are ``ex2.approx.ftz.f32`` of
``(x - max) * log2(e)``, the sum is float32 in a fixed order. A row of only -inf, or with a NaN or
+inf, gives NaN as torch does.
"""

from __future__ import annotations

import math

from tilejit import T, jit
from tilejit.kernels import row_clusters, rows
from tilejit.lib import cluster_reduce, reduce

LOG2_E = math.log2(math.e)
LOWEST = -3.4028234663852886e38


@jit
def exp2_of_difference(x, top):
    """x[i] = 2 ** ((x[i] - top) * log2(e))."""
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, top)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, LOG2_E)
    T.cuda.tile.apply(T.ptx["ex2.approx.ftz.f32"], x, x)


@jit
def rescale(total, old_top, new_top):
    """A sum of exponentials relative to ``old_top``, made relative to ``new_top``."""
    return total * T.exp2((old_top - new_top) * LOG2_E)


@jit
def combine(top, total, tops, sums, plan: T.constexpr):
    """(maximum, sum relative to it) of the row from every thread's own: one exchange."""
    width = plan.threads_per_row
    lanes = min(32, width)
    warp_top = reduce.lanes(top, reduce.maximum, lanes)
    warp_total = reduce.lanes(rescale(total, top, warp_top), reduce.add, lanes)
    if width <= 32:
        return warp_top, warp_total
    warps = width // 32
    lane = T.cuda.lane_id()
    warp = T.cuda.warp_id()
    if lane == 0:
        tops[warp] = warp_top
        sums[warp] = warp_total
    T.cuda.cta_sync()
    mine = warp // warps * warps + lane % warps
    row_top = reduce.lanes(tops[mine], reduce.maximum, warps)
    row_total = reduce.lanes(rescale(sums[mine], tops[mine], row_top), reduce.add, warps)
    return row_top, row_total


@jit
def softmax_rows(
    X: T.Tensor((T.dynamic("M"), "N")),
    Y: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
):
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(M), block=plan.threads, min_blocks_per_sm=plan.min_blocks
        )
    )
    t, valid, source, target = rows.locate(X, Y, plan)

    warps = (plan.threads + 31) // 32
    tops = T.alloc_shared((warps,), "float32", layout="default")
    sums = T.alloc_shared((warps,), "float32", layout="default")
    kept = T.alloc_local((plan.register_chunks, plan.vector_elems), X.dtype, layout="default")
    rows.load_kept(kept, source, t, plan)
    if plan.whole:
        softmax_of_registers(kept, target, t, valid, tops, sums, plan)
    else:
        softmax_in_chunks(kept, source, target, t, valid, tops, sums, plan)


@jit
def softmax_of_registers(kept, target, t, valid, tops, sums, plan: T.constexpr):
    """One exponential per element: relative to the thread's maximum, rescaled with the result."""
    count = plan.register_chunks * plan.vector_elems
    x = T.alloc_local((count, 1), "float32", layout="default")
    parts = T.alloc_local(((count + 1) // 2, 1), "float32", layout="default")
    rows.widen(kept.view(count), x)
    own_top = max(T.float32(LOWEST), rows.fold(T.ptx["max.f32"], x, parts))
    exp2_of_difference(x, own_top)
    total = rows.fold(T.ptx["add.rn.f32"], x, parts)
    top, total = combine(own_top, total, tops, sums, plan)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, rescale(1.0 / total, own_top, top))
    rows.narrow(x, kept.view(count))
    if valid:
        rows.put_kept(kept, target, t, plan)


@jit
def softmax_in_chunks(kept, source, target, t, valid, tops, sums, plan: T.constexpr):
    """Two passes over chunks of one vector per thread: maximum and sum, then the result."""
    staged = None
    if plan.shared_chunks > 0:
        staged = T.alloc_shared(
            (plan.shared_chunks, plan.threads, plan.words), plan.word, layout="default"
        )
    batch = T.alloc_local((plan.batch, plan.vector_elems), kept.dtype, layout="default")
    spare = T.alloc_local((plan.vector_elems,), kept.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    parts = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")

    top = T.float32(LOWEST)
    total = T.float32(0.0)
    for c in T.unroll(plan.resident_chunks):
        rows.fetch(x, c, kept, batch, staged, source, t, True, plan)
        top, total = take_in(x, parts, top, total)
    for c in range(plan.resident_chunks, plan.first_odd_chunk, plan.batch):
        rows.load(batch, source, c, t, plan)
        for k in T.unroll(plan.batch):
            rows.widen(batch.sub[k, :], x)
            top, total = take_in(x, parts, top, total)
    for c in T.unroll(plan.first_odd_chunk, plan.chunks):
        rows.fetch_or(float("-inf"), x, c, kept, batch, staged, source, t, True, plan)
        top, total = take_in(x, parts, top, total)
    top, total = combine(top, total, tops, sums, plan)

    scale = 1.0 / total
    for c in T.unroll(plan.resident_chunks):
        rows.fetch(x, c, kept, batch, staged, source, t, False, plan)
        result_of(x, top, scale)
        rows.put(x, c, spare, target, t, valid, plan)
    for c in range(plan.resident_chunks, plan.first_odd_chunk, plan.batch):
        rows.load(batch, source, c, t, plan)
        for k in T.unroll(plan.batch):
            rows.widen(batch.sub[k, :], x)
            result_of(x, top, scale)
            rows.put_full(x, c + k, spare, target, t, valid, plan)
    for c in T.unroll(plan.first_odd_chunk, plan.chunks):
        rows.fetch_or(float("-inf"), x, c, kept, batch, staged, source, t, False, plan)
        result_of(x, top, scale)
        rows.put(x, c, spare, target, t, valid, plan)


@jit
def take_in(x, parts, top, total):
    """(maximum, sum of exponentials relative to it) after the values ``x`` join."""
    new_top = max(top, rows.fold(T.ptx["max.f32"], x, parts))
    exp2_of_difference(x, new_top)
    return new_top, rescale(total, top, new_top) + rows.fold(T.ptx["add.rn.f32"], x, parts)


@jit
def result_of(x, top, scale):
    exp2_of_difference(x, top)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, scale)


@jit
def softmax_clusters(
    X: T.Tensor((T.dynamic("M"), "N")),
    Y: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
):
    """Long rows: see ``row_clusters``."""
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(M),
            block=plan.threads,
            cluster=plan.ctas,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    stages, full, empty, slots, here, free = row_clusters.allocate(plan, 2)
    rank = T.cuda.cluster_cta_rank()
    first_row, stride = T.cuda.cluster_id("x"), T.cuda.num_clusters("x")
    policy = row_clusters.first_to_leave()
    feed = row_clusters.Feed(X, (), stages, full, empty, rank, stride, policy)
    row_clusters.begin(feed, first_row, plan)
    T.cuda.cluster_wait()

    t, height = T.cuda.thread_idx("x"), T.cast(M, "int32")
    x = T.alloc_local((plan.elems_per_thread, 1), "float32", layout="default")
    parts = T.alloc_local((plan.partial_sums, 1), "float32", layout="default")
    words = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    stage, parity, turn = 0, 0, 0
    for row in range(first_row, height, stride):
        stage, parity = row_clusters.take(x, feed, t, stage, parity, row, float("-inf"), plan)
        row_clusters.partial(T.ptx["max.f32"], x, parts)
        own_top = max(T.float32(LOWEST), rows.fold(T.ptx["max.f32"], parts, parts))
        exp2_of_difference(x, own_top)
        row_clusters.partial(T.ptx["add.rn.f32"], x, parts)
        total = rows.fold(T.ptx["add.rn.f32"], parts, parts)
        top, total = combine_cluster(own_top, total, slots, here, free, turn)
        row_clusters.refill_before(feed, stage, parity, row, plan.part_steps, plan)
        if row + stride < height:
            cluster_reduce.release(free, row_clusters.BARRIER_ID, plan.threads)
        turn = turn ^ 1
        T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, rescale(1.0 / total, own_top, top))
        row_clusters.put_part(x, words, Y, row, t, feed, plan)


@jit
def combine_cluster(top, total, slots, here, free, turn):
    """``combine`` over a cluster: one exchange of pairs (maximum, sum relative to it)."""
    pair = T.alloc_local((2,), "float32", layout="default")
    pair[0] = reduce.lanes(top, reduce.maximum)
    pair[1] = reduce.lanes(rescale(total, top, pair[0]), reduce.add)
    cluster_reduce.publish(pair, slots, here, free, turn)
    cluster_reduce.wait(here, turn)
    each, lanes = cluster_reduce.own_slots(slots)
    first = T.cuda.lane_id() % lanes
    row_top = slots[first, 0]
    for j in T.unroll(1, each):
        row_top = max(row_top, slots[first + j * lanes, 0])
    row_top = reduce.lanes(row_top, reduce.maximum, lanes)
    row_total = T.float32(0.0)
    for j in T.unroll(each):
        slot = first + j * lanes
        row_total = row_total + rescale(slots[slot, 1], slots[slot, 0], row_top)
    return row_top, reduce.lanes(row_total, reduce.add, lanes)


def softmax(x, out=None):
    """Softmax over the last axis of a 2-D float32, float16 or bfloat16 tensor (M, N), N ≤ 262144.

    ``x`` needs a unit stride in a row; ``out`` may not share memory with it. Returns ``out``.
    """
    import torch

    if out is None:
        out = torch.empty_like(x)
    plan = rows.plan_for("softmax", x, out)
    if plan is None:
        return out
    clusters = row_clusters.plan_for("softmax", x, plan, 0)
    if clusters is None:
        softmax_rows(x, out, plan)
    else:
        softmax_clusters(x, out, clusters)
    return out
