"""Warp and CTA reductions, in the kernel language.

Order is fixed, so results do not depend on timing: butterfly over ``laneid`` bits from high to low
inside a warp, then the same butterfly over the warps' partial results. Every thread of the group
gets the result. All threads of each warp must call (the shuffles take part in full warps).

``combine`` is any function of two values: one of the names below, an ``operator`` or a ``@jit`` helper.
Not here: reductions across CTAs (``lib.cluster_reduce``); anything the compiler would choose for you.
"""

from __future__ import annotations

import operator

from tilejit import T, jit

add = operator.add
maximum = max
"""Ignores a NaN operand, as PTX ``max`` does."""
minimum = min
"""Ignores a NaN operand, as PTX ``min`` does."""


@jit
def lanes(value, combine, width=32):
    """Combine over aligned groups of ``width`` lanes (a power of two, 1..32)."""
    offset = width // 2
    for _ in T.unroll(width.bit_length() - 1):
        value = combine(value, T.cuda.shfl_xor(value, offset))
        offset = offset // 2
    return value


@jit
def threads(value, combine, scratch, width):
    """Combine over aligned groups of ``width`` threads of the CTA.

    ``width`` is a power of two. Up to 32 it is one butterfly and ``scratch`` may be None. Above,
    ``scratch`` is a shared buffer with one element of the value's type per warp of the CTA; every
    thread of the CTA must reach the call, which joins the CTA once. Give each call its own
    ``scratch``, or join the CTA before it is used again.
    """
    if width <= 32:
        return lanes(value, combine, width)
    warps = width // 32
    lane = T.cuda.lane_id()
    warp = T.cuda.warp_id()
    partial = lanes(value, combine, 32)
    if lane == 0:
        scratch[warp] = partial
    T.cuda.cta_sync()
    first = warp // warps * warps
    return lanes(scratch[first + lane % warps], combine, warps)
