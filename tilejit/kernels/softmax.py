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
    tickets: T.Tensor((1,), "uint32"),
    plan: T.constexpr,
):
    """Long rows: see ``row_clusters``. Two exponentials per element, which registers do not hold as
    float32: one relative to what the thread has seen of the row, one to the row's maximum."""
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(M),
            block=plan.cta_threads,
            cluster=plan.ctas,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    feed = row_clusters.start(X, (), 4, plan)
    T.cuda.cluster_wait()

    kept = T.alloc_local((plan.chunks, plan.vector_elems), X.dtype, layout="default")
    words = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    x = T.alloc_local((plan.step_elems, 1), "float32", layout="default")
    parts = T.alloc_local((plan.step_elems // 2, 1), "float32", layout="default")
    turn, row, stage, parity = row_clusters.first_row(feed, plan)
    while row < feed.height:
        top, total = T.float32(LOWEST), T.float32(0.0)
        row_clusters.begin_row(tickets, feed, turn, plan)
        for step in T.unroll(plan.part_steps):
            stage, parity = row_clusters.take_step(kept, feed, stage, parity, turn, step, plan)
            chunks = plan.chunks_of(step)
            values = x.sub[0 : len(chunks) * plan.vector_elems]
            if chunks[0] < plan.full_chunks or row_clusters.owns_tail(feed, plan):
                own = kept.sub[chunks[0] : chunks[0] + len(chunks), :]
                rows.widen(own.view(len(chunks) * plan.vector_elems), values)
                top, total = take_in(values, parts, top, total)
        row_clusters.pass_turn(feed, turn, plan)
        top, total = combine_cluster(top, total, feed, turn, plan)
        row_clusters.end_exchange(feed, turn, stage, parity, plan)
        scale = 1.0 / total
        for c in T.unroll(plan.chunks):
            if c < plan.full_chunks or row_clusters.owns_tail(feed, plan):
                values = x.sub[0 : plan.vector_elems]
                row_clusters.widen_again(kept.sub[c, :], words, values, feed, plan)
                result_of(values, top, scale)
                row_clusters.put_chunk(values, c, words, Y, row, feed, plan)
        turn, row, stage, parity = row_clusters.next_row(feed, turn, stage, parity, plan)


@jit
def combine_cluster(top, total, feed, turn, plan: T.constexpr):
    """``combine`` over a cluster: one exchange of pairs (maximum, sum relative to it)."""
    words = T.alloc_local((4,), "float32", layout="default")
    words[0] = reduce.lanes(top, reduce.maximum)
    words[1] = reduce.lanes(rescale(total, top, words[0]), reduce.add)
    words[2] = 0.0
    row_clusters.exchange(words, feed, turn, plan)
    slots = feed.team.slots
    row_top = cluster_reduce.combined(slots, reduce.maximum)
    each, lanes = cluster_reduce.own_slots(slots)
    first = T.cuda.lane_id() % lanes
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
        softmax_clusters(x, out, row_clusters.tickets_for(x), clusters)
    return out
