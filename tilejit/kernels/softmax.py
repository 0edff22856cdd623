"""Softmax over the rows of a matrix: one read and one write of global memory for rows that fit an SM.

Numerics: values are widened to float32, exponentials are ``ex2.approx.ftz.f32`` of
``(x - max) * log2(e)``, the sum is float32 in a fixed order. A row of only -inf, or with a NaN or
+inf, gives NaN as torch does.
"""

from __future__ import annotations

import math

from tilejit import T, jit
from tilejit.kernels import rows
from tilejit.lib import reduce

LOG2_E = math.log2(math.e)
LOWEST = -3.4028234663852886e38


@jit
def exp2_of_difference(x, top):
    """x[i] = 2 ** ((x[i] - top) * log2(e))."""
    native = x.view(x.shape[0], 1)
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], native, native, top)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], native, native, LOG2_E)
    T.cuda.tile.apply(T.ptx["ex2.approx.ftz.f32"], native, native)


@jit
def softmax_rows(
    X: T.Tensor(("M", "N")),
    Y: T.Tensor(("M", "N")),
    plan: T.constexpr,
):
    M, N = X.shape
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=(M + plan.rows_per_cta - 1) // plan.rows_per_cta, block=plan.threads
        )
    )
    t = T.cuda.thread_idx("x") % plan.threads_per_row
    row_index = T.cuda.block_idx("x") * plan.rows_per_cta
    row_index = row_index + T.cuda.thread_idx("x") // plan.threads_per_row
    valid = row_index < M
    source = X.sub[min(row_index, M - 1), :]
    target = Y.sub[min(row_index, M - 1), :]

    warps = (plan.threads + 31) // 32
    tops = T.alloc_shared((warps,), "float32", layout="default")
    sums = T.alloc_shared((warps,), "float32", layout="default")
    staged = None
    if plan.shared_chunks > 0:
        staged = T.alloc_shared(
            (plan.shared_chunks, plan.threads, plan.words), plan.word, layout="default"
        )
    kept = T.alloc_local((plan.register_chunks, plan.vector_elems), X.dtype, layout="default")
    spare = T.alloc_local((plan.vector_elems,), X.dtype, layout="default")
    x = T.alloc_local((plan.vector_elems,), "float32", layout="default")

    rows.load_kept(kept, source, t, plan)
    top = T.float32(LOWEST)
    for c in T.unroll(plan.chunks):
        rows.fetch_or(float("-inf"), x, c, kept, spare, staged, source, t, True, plan)
        for i in T.unroll(plan.vector_elems):
            top = max(top, x[i])
    top = reduce.threads(top, reduce.maximum, tops, plan.threads_per_row)

    total = T.float32(0.0)
    for c in T.unroll(plan.chunks):
        rows.fetch_or(float("-inf"), x, c, kept, spare, staged, source, t, False, plan)
        exp2_of_difference(x, top)
        for i in T.unroll(plan.vector_elems):
            total = total + x[i]
    total = reduce.threads(total, reduce.add, sums, plan.threads_per_row)

    scale = 1.0 / total
    for c in T.unroll(plan.chunks):
        rows.fetch_or(float("-inf"), x, c, kept, spare, staged, source, t, False, plan)
        exp2_of_difference(x, top)
        for i in T.unroll(plan.vector_elems):
            x[i] = x[i] * scale
        rows.put(x, c, spare, target, t, valid, plan)


def softmax(x, out=None):
    """Softmax over the last axis of a 2-D float32, float16 or bfloat16 tensor (M, N), N ≤ 262144.

    ``x`` needs a unit stride in a row; ``out`` may be ``x`` itself only where rows fit one read
    (it is read before it is written). Returns ``out``.
    """
    import torch

    if out is None:
        out = torch.empty_like(x)
    plan = rows.plan_for(x, out)
    if plan is not None:
        softmax_rows(x, out, plan)
    return out
