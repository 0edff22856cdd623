"""Slices of a matrix product's operands along K in shared memory, in the kernel language.

A slice holds ``TILE_K`` elements of 16 bits of every row of A (or column of B): rows of 128 bytes, the
widest swizzle. K-major ones are (rows, TILE_K); others *panels*, (rows / PANEL, TILE_K, PANEL), 64
elements of M or N wide.

Not here: the ring that they lie in (``lib.ring``), what multiplies them (kernels).
"""

from __future__ import annotations

from tilejit import T, jit

TILE_K = 64
K_STEP = 16
"""Of one instruction on 16-bit elements."""
PANEL = 64

L2_PROMOTION = 2
"""To lines of 128 bytes. 256 are no faster where rows start at multiples of them, and slower elsewhere."""


def shape(rows: int, k_major: bool) -> tuple[int, ...]:
    """Of a slice of so many rows of A, or columns of B."""
    return (rows, TILE_K) if k_major else (rows // PANEL, TILE_K, PANEL)


@jit
def load(
    slice_, source, first, k, k_major: T.constexpr, mbar, qualifiers: T.constexpr = "", mask=None
):
    """A slice = the rows (columns) of an operand from ``first`` on, along K from ``k`` on. Its bytes
    complete on ``mbar``. ``qualifiers``: more of the opcode; ``mask``: the CTAs that a multicast fills."""
    space = "shared::cta" if qualifiers == "" else "shared::cluster"
    opcode = f"cp.async.bulk.tensor.2d.{space}.global.tile.mbarrier::complete_tx::bytes{qualifiers}"
    if k_major:
        T.cuda.tile.apply(
            T.ptx[opcode], slice_, source, box=slice_.shape, coords=(first, k), swizzle=3,
            l2_promotion=L2_PROMOTION, mbar=mbar, cta_mask=mask,
        )  # fmt: skip
    else:
        T.cuda.tile.apply(
            T.ptx[opcode], slice_, source, box=slice_.shape[1:], coords=(k, first),
            coord_steps=((0, PANEL),), swizzle=3, l2_promotion=L2_PROMOTION, mbar=mbar,
            cta_mask=mask,
        )  # fmt: skip


@jit
def load_shared(slice_, source, first, k, k_major: T.constexpr, mbar, rank, sharing: T.constexpr):
    """The same by ``sharing`` CTAs together: number ``rank`` its part, into the same slice of all."""
    if sharing == 1:
        load(slice_, source, first, k, k_major, mbar)
        return
    part = slice_.view(sharing, slice_.shape[0] // sharing, *slice_.shape[1:]).sub[rank]
    first = first + rank * (slice_.size // TILE_K // sharing)
    mask = T.uint16((1 << sharing) - 1)
    load(part, source, first, k, k_major, mbar, ".multicast::cluster", mask)


@jit
def steps(slice_, k_major: T.constexpr):
    """(1, steps, rows, K_STEP): a slice, as matrix instructions take their shared operands."""
    if k_major:
        rows = slice_.shape[0]
        return slice_.view(1, rows, TILE_K // K_STEP, K_STEP).permute(0, 2, 1, 3)
    panels = slice_.shape[0]
    parts = slice_.view(panels, TILE_K // K_STEP, K_STEP, PANEL).permute(1, 0, 3, 2)
    return parts.view(1, TILE_K // K_STEP, panels * PANEL, K_STEP)
