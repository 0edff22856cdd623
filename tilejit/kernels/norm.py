"""RMSNorm and LayerNorm over the rows of a matrix: one read and one write for rows that fit an SM.

Numerics: everything is float32 until the final rounding. LayerNorm's variance is the mean of the
squared differences from the mean (two passes over the kept row), never E[x²] - E[x]². Sums run in a
fixed order: results do not depend on timing.
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
            rows.vectors(parameter, plan).sub[index, :],
        )


@jit
def parameter_chunk(p, words, parameter, c, t, plan: T.constexpr):
    """Chunk ``c`` of a weight or bias as float32; threads that own nothing keep ``p``."""
    if c < plan.full_chunks:
        rows.widen(words, p)
    else:
        if t < plan.tail_threads:
            rows.load_tail(words, parameter, t, plan)
            rows.widen(words, p)


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
    batch = T.alloc_local((plan.batch, plan.vector_elems), X.dtype, layout="default")
    spare = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems,), "float32", layout="default")
    p = T.alloc_local((plan.vector_elems,), "float32", layout="default")
    weights = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")
    biases = T.alloc_local((2, plan.vector_elems), X.dtype, layout="default")

    rows.load_kept(kept, source, t, plan)
    rows.fill(p, 0.0)
    mean = T.float32(0.0)
    if centered:
        for c in T.unroll(plan.chunks):
            rows.fetch_or(0.0, x, c, kept, batch, staged, source, t, True, plan)
            rows.scalars(T.ptx["add.rn.f32"], p, p, x)
        mean = rows.fold(T.ptx["add.rn.f32"], p, p)
        mean = reduce.threads(mean, reduce.add, sums, plan.threads_per_row) * (1.0 / N)
        rows.fill(p, 0.0)
    for c in T.unroll(plan.chunks):
        rows.fetch_or(mean, x, c, kept, batch, staged, source, t, not centered, plan)
        if centered:
            rows.scalars(T.ptx["sub.rn.f32"], x, x, mean)
        rows.scalars(T.ptx["fma.rn.f32"], p, x, x, p)
    square = rows.fold(T.ptx["add.rn.f32"], p, p)
    if W is not None:
        prefetch(weights.sub[0, :], W, 0, t, plan)
    if B is not None:
        prefetch(biases.sub[0, :], B, 0, t, plan)
    square = reduce.threads(square, reduce.add, squares, plan.threads_per_row)
    scale = T.rsqrt(square * (1.0 / N) + eps)

    for c in T.unroll(plan.chunks):
        if W is not None:
            prefetch(weights.sub[(c + 1) % 2, :], W, c + 1, t, plan)
        if B is not None:
            prefetch(biases.sub[(c + 1) % 2, :], B, c + 1, t, plan)
        rows.fetch_or(0.0, x, c, kept, batch, staged, source, t, False, plan)
        if centered:
            rows.scalars(T.ptx["sub.rn.f32"], x, x, mean)
        rows.scalars(T.ptx["mul.rn.f32"], x, x, scale)
        if W is not None:
            rows.fill(p, 1.0)
            parameter_chunk(p, weights.sub[c % 2, :], W, c, t, plan)
            rows.scalars(T.ptx["mul.rn.f32"], x, x, p)
        if B is not None:
            rows.fill(p, 0.0)
            parameter_chunk(p, biases.sub[c % 2, :], B, c, t, plan)
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
