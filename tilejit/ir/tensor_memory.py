"""Tensor memory as the IR knows it: cells of 32 bits in lanes and columns, addressed by ``lane << 16 | column``.

A layout in it places elements along ``TLane`` and ``TCol``, the latter counted in elements. Not here:
allocation (raw ``tcgen05.alloc``), addresses of elements (``ir.views``), which image an instruction reads
or writes (families).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilejit.dtypes import DType
from tilejit.layout import TMEM_AXES, TileLayout, render

if TYPE_CHECKING:
    from tilejit.ir import nodes

TENSOR_LANES = 128
TENSOR_COLUMNS = 512
"""Tensor memory of a CTA: lanes, and columns of cells."""
CELL_BITS = 32
SLABS, SLAB_LANES = 4, 32
"""Lanes that one warp of four loads and stores, and that multiply among themselves."""
HALF_SLAB_LANES = SLAB_LANES // 2
LANE_SHIFT = 16
"""An address has its lane above its column."""


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of an address, 32 bits."""
    return address >> LANE_SHIFT, address & (1 << LANE_SHIFT) - 1


def fault(type_: nodes.TensorType) -> str | None:
    """Why a tensor cannot lie in tensor memory as its type says; None where it can."""
    layout = type_.layout
    strange = dtype_fault(type_.dtype)
    if strange is not None:
        return strange
    if not all(isinstance(extent, int) for extent in type_.shape):
        return "its shape is known at run time only"
    if not isinstance(layout, TileLayout):
        return "it has no layout" if layout is None else f"its layout {render(layout)} is swizzled"
    return axes_fault(layout) or _outside(type_.dtype.bits, layout)


def dtype_fault(dtype: DType) -> str | None:
    """Why a cell does not hold whole elements; None where it does."""
    if CELL_BITS % dtype.bits == 0:
        return None
    return f"elements of {dtype} have {dtype.bits} bits, and a cell of {CELL_BITS} bits holds whole elements"


def axes_fault(layout: TileLayout) -> str | None:
    """What a layout runs over that is neither lane nor column; None where there is nothing."""
    used = {i.axis for i in layout.shard + layout.replica if i.extent > 1 and i.stride}
    strange = sorted((used | {axis for axis, _ in layout.offset}).difference(TMEM_AXES))
    if not strange:
        return None
    return f"its layout {render(layout)} runs over {', '.join(strange)}, expected {' and '.join(TMEM_AXES)}"


def _outside(bits: int, layout: TileLayout) -> str | None:
    columns = TENSOR_COLUMNS * CELL_BITS // bits
    for axis, limit in (("TLane", TENSOR_LANES), ("TCol", columns)):
        back = [
            (i.extent - 1) * min(0, i.stride)
            for i in layout.shard + layout.replica
            if i.axis == axis
        ]
        first = dict(layout.offset).get(axis, 0) + sum(back)
        if first < 0 or layout.span(axis) > limit:
            found = first if first < 0 else layout.span(axis) - 1
            return (
                f"its layout {render(layout)} reaches {axis} {found}; tensor memory has {TENSOR_LANES} lanes "
                f"of {columns} elements of {bits} bits ({TENSOR_COLUMNS} columns)"
            )
    return None
