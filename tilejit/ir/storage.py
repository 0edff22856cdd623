"""Bytes that buffers take, and where shared ones lie in a block's shared memory.

Not here: addresses of elements (``ir.views``), what a target has (``target``).
"""

from __future__ import annotations

import math

from tilejit.ir import nodes, walk
from tilejit.layout import MEMORY_AXIS

SHARED_ALIGN_BYTES = 1024
"""What the hardware aligns shared memory to, and the most a swizzled tile needs."""
_MIN_ALIGN_BYTES = 16


def storage_elems(type_: nodes.TensorType) -> int:
    """Elements of storage of a buffer of static shape, gaps of its layout included."""
    if type_.layout is not None:
        return type_.layout.span(MEMORY_AXIS)
    return math.prod(extent for extent in type_.shape if isinstance(extent, int))


def storage_bytes(type_: nodes.TensorType) -> int:
    """``storage_elems`` in bytes."""
    return -(-storage_elems(type_) * type_.dtype.bits // 8)


def shared_offset(end_bytes: int, type_: nodes.TensorType) -> int:
    """Where a shared buffer starts when those before it end at ``end_bytes``: at a multiple of 16
    bytes, and of its own alignment up to ``SHARED_ALIGN_BYTES``."""
    align = max(_MIN_ALIGN_BYTES, min(type_.align_bytes, SHARED_ALIGN_BYTES))
    return -(-end_bytes // align) * align


def shared_allocations(function: nodes.Function) -> list[nodes.AllocTensor]:
    """The function's shared buffers in program order, which is their order in memory."""
    return [
        statement
        for statement in walk.statements(function.body)
        if isinstance(statement, nodes.AllocTensor)
        and isinstance(statement.buffer.type, nodes.TensorType)
        and statement.buffer.type.space == "shared"
    ]
