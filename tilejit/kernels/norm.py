"""RMSNorm and LayerNorm over the rows of a matrix: one read and one write for rows that fit an SM, or the
SMs of a cluster where there are clusters.

Numerics: everything is float32 until the final rounding. LayerNorm reads the row once: each thread
sums differences from the mean of its own first vector, and their squares. That vector is one of the
thread's ``n``, so its distance from the thread's mean is at most ``sqrt(n)`` standard deviations and
the subtraction of the two sums loses at most a factor ``n``, whatever the data. The lanes of a warp
and then the warps are merged likewise, relative to the first one's mean, which loses at most a factor
of how many they are. Where a thread's whole part is in registers, it takes its own mean first, and the
differences then. The order is fixed: results do not depend on timing.
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.kernels import row_clusters, rows
from tilejit.lib import cluster_reduce, reduce

INFINITY = float("inf")

PARAMETER_L1_BYTES = 128 * 1024
"""Every row of an SM reads the weight and the bias: as much of them as this is kept in L1."""


def parameter_load(chunk: int, plan: rows.RowPlan) -> str:
    """The opcode that loads chunk ``chunk`` of a weight or bias; those of a loop are not kept."""
    end_bytes = 2 * (chunk + 1) * plan.threads_per_row * plan.vector_bytes
    priority = "evict_last" if end_bytes <= PARAMETER_L1_BYTES else "no_allocate"
    return f"ld.global.nc.L1::{priority}.{plan.suffix}"


@jit
def request(words, parameter, c, t, opcode: T.constexpr, plan: T.constexpr):
    """Issue the load of the full chunk ``c`` of a (N,) weight or bias, if there is one."""
    if parameter is not None:
        T.cuda.tile.apply(
            T.ptx[opcode],
            words.view(plan.word),
            parameter.sub[c * plan.threads_per_row + t, :],
        )


@jit
def request_tail(words, parameter, t, plan: T.constexpr):
    if parameter is not None:
        rows.load_tail(words, parameter, t, plan)


@jit
def scale_and_shift(x, p, q, weight_words, bias_words, mean, scale, offset, weight, bias):
    """x = ((x - mean) * scale + offset) * weight + bias, with the parameters' words already
    requested; without ``mean``, ``offset``, ``weight`` or ``bias`` where None."""
    if mean is not None:
        T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, mean)
    if offset is None:
        T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, scale)
    else:
        T.cuda.tile.apply(T.ptx["fma.rn.f32"], x, x, scale, offset)
    if weight is not None:
        rows.widen(weight_words, p)
        if bias is None:
            T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, p)
    if bias is not None:
        rows.widen(bias_words, q)
        if weight is None:
            T.cuda.tile.apply(T.ptx["add.rn.f32"], x, x, q)
        else:
            T.cuda.tile.apply(T.ptx["fma.rn.f32"], x, x, p, q)


@jit
def accumulate(x, sums, squares, shift, centered: T.constexpr):
    """squares[i] += (x[i] - shift) ** 2, and where ``centered`` sums[i] += x[i] - shift."""
    if centered:
        T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, shift)
        T.cuda.tile.apply(T.ptx["add.rn.f32"], sums, sums, x)
    T.cuda.tile.apply(T.ptx["fma.rn.f32"], squares, x, x, squares)


@jit
def elements_of(first, width, plan: T.constexpr):
    """How many elements of a row the threads ``first`` to ``first + width - 1`` own, as float32."""
    tail = min(max(plan.tail_threads - first, 0), width)
    return T.cast((plan.full_chunks * width + tail) * plan.vector_elems, "float32")


@jit
def add_lanes(a, b, width: T.constexpr):
    """The sums of ``a`` and of ``b`` over aligned groups of ``width`` lanes, side by side."""
    offset = width // 2
    for _ in T.unroll(width.bit_length() - 1):
        a, b = a + T.cuda.shfl_xor(a, offset), b + T.cuda.shfl_xor(b, offset)
        offset = offset // 2
    return a, b


@jit
def merge(mean, m2, count, reference, total, width: T.constexpr):
    """(mean, sum of squared differences) of ``width`` lanes' ``total`` elements from every lane's
    own; ``reference`` is one of the means."""
    first, second = add_lanes(*about(mean, m2, count, reference), width)
    return settle(first, second, reference, total)


@jit
def about(mean, m2, count, reference):
    """The sums of the differences of ``count`` elements from ``reference``, and of their squares."""
    difference = mean - reference
    weighted = difference * count
    return weighted, m2 + difference * weighted


@jit
def settle(first, second, reference, total):
    """(mean, sum of squared differences from it) of ``total`` elements by their sums ``about``
    ``reference``."""
    drift = first / max(total, 1.0)
    return reference + drift, centred(second, first, drift)


@jit
def centred(squares, total, drift):
    """``squares`` less what ``total`` = n · ``drift`` adds to them. NaN stays NaN, and squares beyond
    float32 stay infinite."""
    return T.if_then_else(squares < INFINITY, max(squares - total * drift, 0.0), squares)


@jit
def combine_moments(mean, m2, t, means, squares, plan: T.constexpr):
    """(mean, sum of squared differences) of the row from every thread's own: one exchange."""
    width = min(32, plan.threads_per_row)
    lane = T.cuda.lane_id()
    leader = T.cuda.shfl_idx(mean, lane // width * width)
    start = t // width * width
    mean, m2 = merge(
        mean, m2, elements_of(t, 1, plan), leader, elements_of(start, width, plan), width
    )
    if plan.threads_per_row <= 32:
        return mean, m2
    warps = plan.threads_per_row // 32
    warp = T.cuda.warp_id()
    if lane == 0:
        means[warp] = mean
        squares[warp] = m2
    T.cuda.cta_sync()
    first = warp // warps * warps
    other = lane % warps
    return merge(
        means[first + other],
        squares[first + other],
        elements_of(other * 32, 32, plan),
        means[first],
        elements_of(0, plan.threads_per_row, plan),
        warps,
    )


@jit
def sum_of_squares(x, parts):
    """The sum of x[i]**2; ``parts`` is scratch of half as many, which halves the registers."""
    half = x.shape[0] // 2
    if half == 0:
        return x[0, 0] * x[0, 0]
    low, high = x.sub[0:half], x.sub[half : 2 * half]
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], parts, low, low)
    T.cuda.tile.apply(T.ptx["fma.rn.f32"], parts, high, high, parts)
    total = rows.fold(T.ptx["add.rn.f32"], parts, parts)
    if x.shape[0] % 2 == 1:
        last = x[x.shape[0] - 1, 0]
        total = T.fma(last, last, total)
    return total


@jit
def moments_of_registers(x, t, means, squares, centered: T.constexpr, plan: T.constexpr):
    """(what is to be subtracted from ``x`` for the differences from the mean, the sum of their
    squares) of a row whose values are all in ``x``; where ``centered``, each thread's own mean is
    subtracted already."""
    count = x.shape[0]
    parts = T.alloc_local((max(1, count // 2), 1), "float32", layout="default")
    if not centered:
        square = sum_of_squares(x, parts)
        return T.float32(0.0), reduce.threads(square, reduce.add, squares, plan.threads_per_row)
    own_mean = rows.fold(T.ptx["add.rn.f32"], x, parts) * (1.0 / count)
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, own_mean)
    square = sum_of_squares(x, parts)
    mean, square = combine_moments(own_mean, square, t, means, squares, plan)
    return mean - own_mean, square


@jit
def moments_in_chunks(
    kept,
    batch,
    staged,
    x,
    p,
    q,
    source,
    t,
    means,
    squares,
    centered: T.constexpr,
    plan: T.constexpr,
):
    """(mean, sum of squared differences) of a row read chunk by chunk, once."""
    rows.fill(p, 0.0)
    rows.fill(q, 0.0)
    shift = T.float32(0.0)
    for c in T.unroll(plan.resident_chunks):
        rows.fetch(x, c, kept, batch, staged, source, t, True, plan)
        if centered and c == 0:
            shift = first_mean(x, q)
        accumulate(x, p, q, shift, centered)
    for c in range(plan.resident_chunks, plan.first_odd_chunk, plan.batch):
        rows.load(batch, source, c, t, plan)
        for k in T.unroll(plan.batch):
            rows.widen(batch.sub[k, :], x)
            accumulate(x, p, q, shift, centered)
    for c in T.unroll(plan.first_odd_chunk, plan.chunks):
        if c < plan.full_chunks or t < plan.tail_threads:
            rows.fetch(x, c, kept, batch, staged, source, t, True, plan)
            if centered and c == 0:
                shift = first_mean(x, q)
            accumulate(x, p, q, shift, centered)
    square = rows.fold(T.ptx["add.rn.f32"], q, q)
    if not centered:
        return T.float32(0.0), reduce.threads(square, reduce.add, squares, plan.threads_per_row)
    total = rows.fold(T.ptx["add.rn.f32"], p, p)
    drift = total / max(elements_of(t, 1, plan), 1.0)
    return combine_moments(shift + drift, centred(square, total, drift), t, means, squares, plan)


@jit
def first_mean(x, q):
    """The mean of ``x``; ``q`` is zero before and after."""
    mean = rows.fold(T.ptx["add.rn.f32"], x, q) * (1.0 / x.shape[0])
    rows.fill(q, 0.0)
    return mean


@jit
def norm_rows(
    X: T.Tensor((T.dynamic("M"), "N")),
    Y: T.Tensor((T.dynamic("M"), "N")),
    W: T.Tensor(("N",)) | None,
    B: T.Tensor(("N",)) | None,
    eps: T.float32,
    centered: T.constexpr,
    plan: T.constexpr,
):
    """Y = (X - mean if centered) * rsqrt(mean square + eps) * W + B."""
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(M), block=plan.threads, min_blocks_per_sm=plan.min_blocks
        )
    )
    t, valid, source, target = rows.locate(X, Y, plan)
    weight = None if W is None else rows.vectors(W, plan)
    bias = None if B is None else rows.vectors(B, plan)

    warps = (plan.threads + 31) // 32
    means = T.alloc_shared((warps,), "float32", layout="default")
    squares = T.alloc_shared((warps,), "float32", layout="default")
    staged = None
    if plan.shared_chunks > 0:
        staged = T.alloc_shared(
            (plan.shared_chunks, plan.threads, plan.words), plan.word, layout="default"
        )
    kept = T.alloc_local((plan.register_chunks, plan.vector_elems), X.dtype, layout="default")
    batch = T.alloc_local((plan.batch, plan.vector_elems), X.dtype, layout="default")
    spare = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    p = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    q = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    weights = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")
    biases = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")

    rows.load_kept(kept, source, t, plan)
    if plan.resident_chunks > 0:
        request(weights.sub[0, :], weight, 0, t, parameter_load(0, plan), plan)
        request(biases.sub[0, :], bias, 0, t, parameter_load(0, plan), plan)
    if plan.whole:
        count = plan.register_chunks * plan.vector_elems
        wide = T.alloc_local((count, 1), "float32", layout="default")
        rows.widen(kept.view(count), wide)
        mean, square = moments_of_registers(wide, t, means, squares, centered, plan)
    else:
        mean, square = moments_in_chunks(
            kept, batch, staged, x, p, q, source, t, means, squares, centered, plan
        )
    scale = T.rsqrt(square * (1.0 / N) + eps)
    # A constant row gives zero: its mean is subtracted from values, never from products.
    offset = -(mean * scale) if centered and plan.whole else None
    shift = mean if centered and not plan.whole else None
    streamed = rows.LOAD + plan.suffix

    for c in T.unroll(plan.resident_chunks):
        now, after = c % 2, (c + 1) % 2
        if c + 1 < plan.resident_chunks:
            request(weights.sub[after, :], weight, c + 1, t, parameter_load(c + 1, plan), plan)
            request(biases.sub[after, :], bias, c + 1, t, parameter_load(c + 1, plan), plan)
        if plan.whole:
            x = wide.sub[c * plan.vector_elems : (c + 1) * plan.vector_elems]
        else:
            rows.fetch(x, c, kept, batch, staged, source, t, False, plan)
        scale_and_shift(
            x, p, q, weights.sub[now, :], biases.sub[now, :], shift, scale, offset, weight, bias
        )
        rows.put_full(x, c, spare, target, t, valid, plan)
    for c in range(plan.resident_chunks, plan.first_odd_chunk, plan.batch):
        rows.load(batch, source, c, t, plan)
        for k in T.unroll(plan.batch):
            request(weights.sub[0, :], weight, c + k, t, streamed, plan)
            request(biases.sub[0, :], bias, c + k, t, streamed, plan)
            rows.widen(batch.sub[k, :], x)
            scale_and_shift(
                x, p, q, weights.sub[0, :], biases.sub[0, :], shift, scale, offset, weight, bias
            )
            rows.put_full(x, c + k, spare, target, t, valid, plan)
    for c in T.unroll(plan.first_odd_chunk, plan.chunks):
        if c < plan.full_chunks or t < plan.tail_threads:
            if c < plan.full_chunks:
                request(weights.sub[0, :], weight, c, t, parameter_load(c, plan), plan)
                request(biases.sub[0, :], bias, c, t, parameter_load(c, plan), plan)
            else:
                request_tail(weights.sub[0, :], weight, t, plan)
                request_tail(biases.sub[0, :], bias, t, plan)
            rows.fetch(x, c, kept, batch, staged, source, t, False, plan)
            scale_and_shift(
                x, p, q, weights.sub[0, :], biases.sub[0, :], shift, scale, offset, weight, bias
            )
            rows.put_full(x, c, spare, target, t, valid, plan)


@jit
def elements_of_warp(rank, warp, plan: T.constexpr):
    """How many elements of a row a warp of CTA ``rank`` of the cluster owns, as float32."""
    if plan.tail_vectors == 0:
        return T.float32(plan.full_chunks * 32 * plan.vector_elems)
    tail = min(max(row_clusters.tail_vectors(rank, plan) - warp * 32, 0), 32)
    return T.cast((plan.full_chunks * 32 + tail) * plan.vector_elems, "float32")


@jit
def take_moments(
    kept, x, p, q, feed, stage, parity, turn, centered: T.constexpr, plan: T.constexpr
):
    """(this thread's mean, its sum of squared differences, the next position in the ring) of the cluster's
    row ``turn``, which is next there and goes to ``kept``; the mean is 0 unless ``centered``."""
    rows.fill(p, 0.0)
    rows.fill(q, 0.0)
    shift = T.float32(0.0)
    for step in T.unroll(plan.part_steps):
        stage, parity = row_clusters.take_step(kept, feed, stage, parity, turn, step, plan)
        chunks = plan.chunks_of(step)
        for j in T.unroll(len(chunks)):
            c = chunks[j]
            if c < plan.full_chunks or row_clusters.owns_tail(feed, plan):
                rows.widen(kept.sub[c, :], x)
                if centered and c == 0:
                    shift = first_mean(x, q)
                accumulate(x, p, q, shift, centered)
    square = rows.fold(T.ptx["add.rn.f32"], q, q)
    if not centered:
        return T.float32(0.0), square, stage, parity
    total = rows.fold(T.ptx["add.rn.f32"], p, p)
    drift = total / elements_of_thread(feed, plan)
    return shift + drift, centred(square, total, drift), stage, parity


@jit
def elements_of_thread(feed, plan: T.constexpr):
    """How many elements of a row a thread of a cluster owns, as float32."""
    full = T.float32(plan.full_chunks * plan.vector_elems)
    if plan.tail_vectors == 0:
        return full
    return T.if_then_else(row_clusters.owns_tail(feed, plan), full + plan.vector_elems, full)


@jit
def moments_of_cluster(mean, square, feed, turn, centered: T.constexpr, plan: T.constexpr):
    """(mean, sum of squared differences) of the row from every thread's own: one exchange."""
    if not centered:
        words = T.alloc_local((2,), "float32", layout="default")
        words[0] = reduce.lanes(square, reduce.add)
        row_clusters.exchange(words, feed, turn, plan)
        return T.float32(0.0), cluster_reduce.combined(feed.team.slots, reduce.add)
    words = T.alloc_local((4,), "float32", layout="default")
    warp = T.cuda.warp_id() - feed.team.first_warp
    warp_elems = elements_of_warp(feed.rank, warp, plan)
    leader = T.cuda.shfl_idx(mean, 0)
    own_elems = elements_of_thread(feed, plan)
    words[0], words[1] = merge(mean, square, own_elems, leader, warp_elems, 32)
    words[2] = 0.0
    row_clusters.exchange(words, feed, turn, plan)
    return merge_slots(feed.team.slots, plan)


@jit
def merge_slots(slots, plan: T.constexpr):
    """(mean, sum of squared differences) of the row from those of every warp of the cluster."""
    each, lanes = cluster_reduce.own_slots(slots)
    reference = slots[0, 0]
    first, second = T.float32(0.0), T.float32(0.0)
    for j in T.unroll(each):
        slot = T.cuda.lane_id() % lanes + j * lanes
        warp_elems = elements_of_warp(slot // plan.warps, slot % plan.warps, plan)
        a, b = about(slots[slot, 0], slots[slot, 1], warp_elems, reference)
        first, second = first + a, second + b
    first, second = add_lanes(first, second, lanes)
    return settle(first, second, reference, T.float32(plan.row_elems))


@jit
def finish_part(
    kept,
    x,
    p,
    q,
    mean,
    scale,
    weighted: T.constexpr,
    resident,
    feed,
    Y,
    row,
    turn,
    stage,
    parity,
    plan: T.constexpr,
):
    """Store (row - mean) * scale * weight + bias, this thread's part of row ``row`` in ``kept``, the
    cluster's ``turn``-th; ``weighted``: the first parameter is the weight. Returns the next position in the ring."""
    count = plan.resident + plan.streamed
    words = T.alloc_local(
        (max(1, count), plan.stage_chunks, plan.vector_elems), feed.X.dtype, layout="default"
    )
    result = T.alloc_local((plan.vector_elems,), feed.X.dtype, layout="default")
    for part_step in T.unroll(plan.part_steps):
        chunks = plan.chunks_of(part_step)
        for i in T.unroll(plan.streamed):
            step = plan.part_steps + part_step * plan.streamed + i
            if step > plan.part_steps:
                row_clusters.refill_before(feed, stage, parity, turn, step, plan)
            own = words.sub[plan.resident + i, 0 : len(chunks), :]
            stage, parity = row_clusters.read_step(feed, own, stage, parity, step, plan)
        for j in T.unroll(len(chunks)):
            c = chunks[j]
            if c < plan.full_chunks or row_clusters.owns_tail(feed, plan):
                for i in T.unroll(plan.resident):
                    row_clusters.read_resident(
                        words.sub[i, j, :], c, resident.sub[i, :, :, :], feed.team.thread, plan
                    )
                weight_words = words.sub[0, j, :] if weighted else None
                bias_words = words.sub[count - 1, j, :] if count > int(weighted) else None
                row_clusters.widen_again(kept.sub[c, :], result, x, feed, plan)
                scale_and_shift(
                    x, p, q, weight_words, bias_words, mean, scale, None, weight_words, bias_words
                )
                row_clusters.put_chunk(x, c, result, Y, row, feed, plan)
    if plan.streamed > 0:
        row_clusters.refill_before(feed, stage, parity, turn, plan.row_steps, plan)
    return stage, parity


@jit
def norm_clusters(
    X: T.Tensor((T.dynamic("M"), "N")),
    Y: T.Tensor((T.dynamic("M"), "N")),
    W: T.Tensor(("N",)) | None,
    B: T.Tensor(("N",)) | None,
    tickets: T.Tensor((1,), "uint32"),
    eps: T.float32,
    centered: T.constexpr,
    plan: T.constexpr,
):
    """``norm_rows`` of long rows: see ``row_clusters``."""
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(M),
            block=plan.cta_threads,
            cluster=plan.ctas,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    parameters = tuple(rows.vectors(p, plan) for p in (W, B) if p is not None)
    resident, loaded = row_clusters.allocate_resident(plan.resident, plan)
    feed = row_clusters.start(X, parameters[plan.resident :], 4 if centered else 2, plan)
    # After the first rows, which are wanted before them.
    for i in T.unroll(plan.resident):
        if row_clusters.fills_first(plan):
            row_clusters.fetch_resident(resident, loaded, i, parameters[i], feed.rank, plan)
    T.cuda.cluster_wait()

    kept = T.alloc_local((plan.chunks, plan.vector_elems), X.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    p = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    q = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
    turn, row, stage, parity = row_clusters.first_row(feed, plan)
    while row < feed.height:
        row_clusters.begin_row(tickets, feed, turn, plan)
        mean, square, stage, parity = take_moments(
            kept, x, p, q, feed, stage, parity, turn, centered, plan
        )
        row_clusters.pass_turn(feed, turn, plan)
        mean, square = moments_of_cluster(mean, square, feed, turn, centered, plan)
        row_clusters.end_exchange(feed, turn, stage, parity, plan)
        scale = T.rsqrt(square * (1.0 / plan.row_elems) + eps)
        if plan.resident > 0:
            T.cuda.mbarrier_wait(loaded.ptr_to([0]), 0)
        stage, parity = finish_part(
            kept, x, p, q, mean if centered else None, scale, W is not None, resident, feed, Y, row,
            turn, stage, parity, plan,
        )  # fmt: skip
        turn, row, stage, parity = row_clusters.next_row(feed, turn, stage, parity, plan)


def rms_norm(x, weight=None, eps=1e-6, out=None):
    """``x * rsqrt(mean(x², last axis) + eps) * weight`` for (M, N) float32, float16 or bfloat16;
    ``weight`` is (N,) of the same dtype or None. Returns ``out``."""
    return _norm(x, weight, None, eps, out, centered=False)


def layer_norm(x, weight=None, bias=None, eps=1e-5, out=None):
    """``(x - mean) * rsqrt(var + eps) * weight + bias`` over the last axis, as torch's."""
    return _norm(x, weight, bias, eps, out, centered=True)


def _norm(x, weight, bias, eps, out, *, centered):
    import torch

    if out is None:
        out = torch.empty_like(x)
    kernel = "layer_norm" if centered else "rms_norm"
    plan = rows.plan_for(kernel, x, out, weight, bias)
    if plan is None:
        return out
    clusters = row_clusters.plan_for(kernel, x, plan, (weight is not None) + (bias is not None))
    if clusters is None:
        norm_rows(x, out, weight, bias, eps, centered, plan)
    else:
        tickets = row_clusters.tickets_for(x)
        norm_clusters(x, out, weight, bias, tickets, eps, centered, clusters)
    return out
