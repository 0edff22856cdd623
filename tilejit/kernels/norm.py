"""RMSNorm and LayerNorm over the rows of a matrix: one read and one write for rows that fit an SM.

Numerics: everything is float32 until the final rounding. LayerNorm merges the (count, mean, sum of
squared differences from the mean) of vectors, threads and warps pairwise, as Chan, Golub and LeVeque
do: one pass, and never E[x²] - E[x]². The order is fixed: results do not depend on timing.
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.kernels import rows
from tilejit.lib import reduce


@jit
def load_parameter(p, parameter, c, words, t, plan: T.constexpr):
    """Chunk ``c`` of a (N,) weight or bias as float32; threads that own nothing keep ``p``."""
    index = c * plan.threads_per_row + t
    load = T.ptx["ld.global.nc." + plan.suffix]
    if c < plan.full_chunks:
        T.cuda.tile.apply(
            load, words.view(plan.word), rows.vectors(parameter, plan).sub[index, :]
        )
        rows.widen(words, p)
    else:
        if t < plan.tail_threads:
            T.cuda.tile.apply(
                load, words.view(plan.word), rows.vectors(parameter, plan).sub[index, :]
            )
            rows.widen(words, p)


@jit
def merge_vector(x, d, c, mean, m2):
    """(mean, sum of squared differences) of this thread after its vector ``c`` joins ``c`` others;
    ``d`` is scratch."""
    count = x.shape[0]
    vector_mean = rows.fold(T.ptx["add.rn.f32"], x, d) * (1.0 / count)
    rows.scalars(T.ptx["sub.rn.f32"], d, x, vector_mean)
    rows.scalars(T.ptx["mul.rn.f32"], d, d, d)
    vector_m2 = rows.fold(T.ptx["add.rn.f32"], d, d)
    delta = vector_mean - mean
    return mean + delta * (1.0 / (c + 1)), m2 + vector_m2 + delta * delta * (count * c / (c + 1))


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
    source = X.sub[min(row_index, M - 1), :]
    target = Y.sub[min(row_index, M - 1), :]

    warps = (plan.threads + 31) // 32
    sums = T.alloc_shared((warps,), "float32", layout="default")
    squares = T.alloc_shared((warps,), "float32", layout="default")
    staged = None
    if plan.shared_chunks > 0:
        staged = T.alloc_shared(
            (plan.shared_chunks, plan.threads, plan.words), plan.word, layout="default"
        )
    kept = T.alloc_local((plan.register_chunks, plan.vector_elems), X.dtype, layout="default")
    spare = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems,), "float32", layout="default")
    p = T.alloc_local((plan.vector_elems,), "float32", layout="default")

    rows.load_kept(kept, source, t, plan)
    mean = T.float32(0.0)
    square = T.float32(0.0)
    rows.fill(p, 0.0)
    for c in T.unroll(plan.chunks):
        if not centered:
            rows.fetch_or(0.0, x, c, kept, spare, staged, source, t, True, plan)
            rows.scalars(T.ptx["fma.rn.f32"], p, x, x, p)
        elif c < plan.full_chunks:
            rows.fetch(x, c, kept, spare, staged, source, t, True, plan)
            mean, square = merge_vector(x, p, c, mean, square)
        else:
            if t < plan.tail_threads:
                rows.fetch(x, c, kept, spare, staged, source, t, True, plan)
                mean, square = merge_vector(x, p, c, mean, square)
    if centered:
        mean, square = combine_moments(mean, square, t, N, sums, squares, plan)
    else:
        square = rows.fold(T.ptx["add.rn.f32"], p, p)
        square = reduce.threads(square, reduce.add, squares, plan.threads_per_row)
    scale = T.rsqrt(square * (1.0 / N) + eps)

    for c in T.unroll(plan.chunks):
        rows.fetch_or(0.0, x, c, kept, spare, staged, source, t, False, plan)
        if centered:
            rows.scalars(T.ptx["sub.rn.f32"], x, x, mean)
        rows.scalars(T.ptx["mul.rn.f32"], x, x, scale)
        if W is not None:
            rows.fill(p, 1.0)
            load_parameter(p, W, c, spare, t, plan)
            rows.scalars(T.ptx["mul.rn.f32"], x, x, p)
        if B is not None:
            rows.fill(p, 0.0)
            load_parameter(p, B, c, spare, t, plan)
            rows.scalars(T.ptx["add.rn.f32"], x, x, p)
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
