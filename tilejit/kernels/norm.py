"""RMSNorm and LayerNorm over the rows of a matrix: one read and one write for rows that fit an SM.

Numerics: everything is float32 until the final rounding. LayerNorm reads the row once: each thread
sums differences from the mean of its own first vector, and their squares. That vector is one of the
thread's ``n``, so its distance from the thread's mean is at most ``sqrt(n)`` standard deviations and
the subtraction of the two sums loses at most a factor ``n``, whatever the data. Threads and warps
are merged pairwise (Chan, Golub, LeVeque). The order is fixed: results do not depend on timing.
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.kernels import rows
from tilejit.lib import reduce


@jit
def prefetch(words, parameter, c, t, plan: T.constexpr):
    """Issue the load of chunk ``c`` of a (N,) weight or bias, where all threads own it."""
    if c < plan.full_chunks:
        index = c * plan.threads_per_row + t
        T.cuda.tile.apply(
            T.ptx["ld.global.nc." + plan.suffix],
            words.view(plan.word),
            parameter.sub[index, :],
        )


@jit
def parameter_chunk(p, words, parameter, c, t, plan: T.constexpr):
    """Chunk ``c`` of a weight or bias as float32; only threads that own it may call."""
    if c >= plan.full_chunks:
        rows.load_tail(words, parameter, t, plan)
    rows.widen(words, p)


@jit
def accumulate(x, sums, squares, shift):
    """sums[i] += x[i] - shift, squares[i] += (x[i] - shift) ** 2."""
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, shift)
    T.cuda.tile.apply(T.ptx["add.rn.f32"], sums, sums, x)
    T.cuda.tile.apply(T.ptx["fma.rn.f32"], squares, x, x, squares)


@jit
def elements_of(first, width, plan: T.constexpr):
    """How many elements of a row the threads ``first`` to ``first + width - 1`` own, as float32."""
    tail = min(max(plan.tail_threads - first, 0), width)
    return T.cast((plan.full_chunks * width + tail) * plan.vector_elems, "float32")


@jit
def combine_moments(mean, m2, t, N, sums, squares, plan: T.constexpr):
    """(mean, sum of squared differences) of the row from every thread's own: one exchange."""
    width = min(32, plan.threads_per_row)
    count = elements_of(t, 1, plan)
    warp_count = elements_of(t // width * width, width, plan)
    warp_sum = reduce.lanes(mean * count, reduce.add, width)
    difference = mean - warp_sum / max(warp_count, 1.0)
    warp_m2 = reduce.lanes(m2 + difference * difference * count, reduce.add, width)
    if plan.threads_per_row <= 32:
        return warp_sum * (1.0 / N), warp_m2
    warps = plan.threads_per_row // 32
    lane = T.cuda.lane_id()
    warp = T.cuda.warp_id()
    if lane == 0:
        sums[warp] = warp_sum
        squares[warp] = warp_m2
    T.cuda.cta_sync()
    other = lane % warps
    mine = warp // warps * warps + other
    other_sum = sums[mine]
    other_count = elements_of(other * 32, 32, plan)
    row_mean = reduce.lanes(other_sum, reduce.add, warps) * (1.0 / N)
    difference = other_sum / max(other_count, 1.0) - row_mean
    row_m2 = squares[mine] + difference * difference * other_count
    return row_mean, reduce.lanes(row_m2, reduce.add, warps)


@jit
def norm_rows(
    X: T.Tensor(("M", "N")),
    Y: T.Tensor(("M", "N")),
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
            grid=(M + plan.rows_per_cta - 1) // plan.rows_per_cta,
            block=plan.threads,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    t = T.cuda.thread_idx("x") % plan.threads_per_row
    row_index = T.cuda.block_idx("x") * plan.rows_per_cta
    row_index = row_index + T.cuda.thread_idx("x") // plan.threads_per_row
    valid = row_index < M
    source = rows.vectors(X.sub[min(row_index, M - 1), :], plan)
    target = rows.vectors(Y.sub[min(row_index, M - 1), :], plan)
    weight = None if W is None else rows.vectors(W, plan)
    bias = None if B is None else rows.vectors(B, plan)

    warps = (plan.threads + 31) // 32
    sums = T.alloc_shared((warps,), "float32", layout="default")
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
    weights = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")
    biases = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")

    rows.load_kept(kept, source, t, plan)
    rows.fill(p, 0.0)
    mean = T.float32(0.0)
    if centered:
        q = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
        rows.fill(q, 0.0)
        shift = T.float32(0.0)
        for c in T.unroll(plan.chunks):
            if c < plan.full_chunks:
                rows.fetch(x, c, kept, batch, staged, source, t, True, plan)
                if c == 0:
                    shift = rows.fold(T.ptx["add.rn.f32"], x, q) * (1.0 / plan.vector_elems)
                    rows.fill(q, 0.0)
                accumulate(x, p, q, shift)
            else:
                if t < plan.tail_threads:
                    rows.fetch(x, c, kept, batch, staged, source, t, True, plan)
                    if c == 0:
                        shift = rows.fold(T.ptx["add.rn.f32"], x, q) * (1.0 / plan.vector_elems)
                        rows.fill(q, 0.0)
                    accumulate(x, p, q, shift)
        total = rows.fold(T.ptx["add.rn.f32"], p, p)
        square = rows.fold(T.ptx["add.rn.f32"], q, q)
        drift = total / max(elements_of(t, 1, plan), 1.0)
        mean = shift + drift
        square = max(square - total * drift, 0.0)
        if W is not None:
            prefetch(weights.sub[0, :], weight, 0, t, plan)
        if B is not None:
            prefetch(biases.sub[0, :], bias, 0, t, plan)
        mean, square = combine_moments(mean, square, t, N, sums, squares, plan)
    else:
        for c in T.unroll(plan.chunks):
            rows.fetch_or(0.0, x, c, kept, batch, staged, source, t, True, plan)
            T.cuda.tile.apply(T.ptx["fma.rn.f32"], p, x, x, p)
        square = rows.fold(T.ptx["add.rn.f32"], p, p)
        if W is not None:
            prefetch(weights.sub[0, :], weight, 0, t, plan)
        if B is not None:
            prefetch(biases.sub[0, :], bias, 0, t, plan)
        square = reduce.threads(square, reduce.add, squares, plan.threads_per_row)
    scale = T.rsqrt(square * (1.0 / N) + eps)

    for c in T.unroll(plan.chunks):
        if W is not None:
            prefetch(weights.sub[(c + 1) % 2, :], weight, c + 1, t, plan)
        if B is not None:
            prefetch(biases.sub[(c + 1) % 2, :], bias, c + 1, t, plan)
        rows.fetch_or(0.0, x, c, kept, batch, staged, source, t, False, plan)
        if centered:
            T.cuda.tile.apply(T.ptx["sub.rn.f32"], x, x, mean)
        rows.fill(p, scale)
        if W is not None:
            if c < plan.full_chunks or t < plan.tail_threads:
                parameter_chunk(p, weights.sub[c % 2, :], weight, c, t, plan)
                T.cuda.tile.apply(T.ptx["mul.rn.f32"], p, p, scale)
        if B is None:
            T.cuda.tile.apply(T.ptx["mul.rn.f32"], x, x, p)
        else:
            q = T.alloc_local((plan.vector_elems, 1), "float32", layout="default")
            rows.fill(q, 0.0)
            if c < plan.full_chunks or t < plan.tail_threads:
                parameter_chunk(q, biases.sub[c % 2, :], bias, c, t, plan)
            T.cuda.tile.apply(T.ptx["fma.rn.f32"], x, x, p, q)
        rows.put(x, c, spare, target, t, valid, plan)


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
    parameters = [p.view(1, -1) for p in (weight, bias) if p is not None]
    plan = rows.plan_for(x, out, *parameters)
    if plan is not None:
        norm_rows(x, out, weight, bias, eps, centered, plan)
    return out
