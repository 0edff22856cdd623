"""Which regions of shared memory are images of a tensor map's boxes, before and after the map's swizzle.

Before the swizzle an image is row-major: rows lie ``tensor_map.row_pitch_bytes`` apart, without gaps but
where they are narrower than what the swizzle permutes. The hardware swizzles addresses: what lies at A
before the swizzle lands at ``tensor_map.swizzled(A)``. A region is the image of a box where its elements
lie so from an *origin* on, which the instruction takes.

Not here: the shape of an image (``families.cp_async_bulk_tensor``), matrices' descriptors
(``tile.descriptor``).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tilejit.ir import tensor_map
from tilejit.layout import ComposeLayout, Layout
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.map_spec import Fields
from tilejit.tile.region import Walk, walk


def period_bytes(swizzle: int) -> int:
    return 8 * tensor_map.SWIZZLE_BYTES[swizzle] if swizzle else 1


def _is_mode(layout: Layout, swizzle: int, size: int) -> bool:
    """Whether a layout's own swizzle is the hardware's, address by address."""
    if not isinstance(layout, ComposeLayout) or layout.swizzle_len == 0:
        return swizzle == 0
    granule = (1 << layout.per_element) * size
    return (
        layout.swizzle_len == swizzle
        and layout.atom_len == 3
        and layout.swizzle_inner
        and granule == tensor_map.CHUNK_BYTES
    )


def origin(call: TileCall, laid: Walk, fields: Fields) -> Walk | str:
    """The walk whose first elements are the boxes' unswizzled origins; a reason where the region is
    not the image of boxes under the fields' swizzle."""
    operand, swizzle = laid.operand, fields.swizzle
    size = operand.dtype.bytes
    plain = _unswizzled(call, laid)
    offsets = _offsets(laid, fields)
    if _is_mode(operand.layout, swizzle, size):
        # Both swizzle the same addresses: what is left is that the boxes are row-major before it.
        places, wanted = plain.memory * size, plain.memory[..., :1] * size + offsets
        return _mismatch(laid, places, wanted) or plain
    if not laid.period_multiple or not _whole_periods(laid, period_bytes(swizzle)):
        return "its offset is not known to be whole swizzle periods"
    places = laid.places * size
    first = tensor_map.swizzled(places[..., :1], swizzle)
    reason = _mismatch(laid, places, tensor_map.swizzled(first + offsets, swizzle))
    if reason is not None:
        return reason
    for candidate in (plain, laid):
        if np.array_equal(candidate.places[..., :1] * size, first):
            return candidate
    return "its origins have no address in the layout without its swizzle"


def _offsets(laid: Walk, fields: Fields) -> IntArray:
    """Bytes from a box's origin to each of its elements, before the swizzle."""
    size, width = laid.operand.dtype.bytes, laid.atom[-1]
    rows = np.arange(math.prod(laid.atom[:-1]), dtype=np.int64) * row_pitch_bytes(laid, fields)
    columns = np.arange(width, dtype=np.int64) * size
    return (rows[:, None] + columns).reshape(-1)


def row_pitch_bytes(laid: Walk, fields: Fields) -> int:
    """From row to row of a box in shared memory."""
    row_bytes = laid.atom[-1] * laid.operand.dtype.bytes
    return tensor_map.row_pitch_bytes(row_bytes, fields.swizzle, fields.interleave)


def _unswizzled(call: TileCall, laid: Walk) -> Walk:
    operand = laid.operand
    if not isinstance(operand.layout, ComposeLayout):
        return laid
    bare = replace(operand, view=replace(operand.view, layout=operand.tile))
    return walk(bare, laid.group, laid.prefix, len(laid.atom), call.evaluator)


def _whole_periods(laid: Walk, period_bytes: int) -> bool:
    size = laid.operand.dtype.bytes
    for symbol, factor in laid.symbolic.terms.items():
        for part in (max(symbol.mod, 1), symbol.rem):
            if bool(np.any(np.asarray(factor) * part * size % period_bytes)):
                return False
    return True


def _mismatch(laid: Walk, places: IntArray, expected: IntArray) -> str | None:
    """The first element that lies elsewhere, in words."""
    wrong = places != expected
    if not wrong.any():
        return None
    a, r, k = (int(i) for i in np.argwhere(wrong)[0])
    got, want, origin = (int(v) for v in (places[a, r, k], expected[a, r, k], expected[a, r, 0]))
    return (
        f"{laid.where((a, r, k))} lies {got - origin} bytes from the box's first element, expected "
        f"{want - origin}"
    )


def other_modes(call: TileCall, laid: Walk, fields: Fields) -> str:
    """What each other mode makes of the region."""
    parts = []
    for mode in range(len(tensor_map.SWIZZLE_BYTES)):
        if mode == fields.swizzle:
            continue
        found = origin(call, laid, replace(fields, swizzle=mode))
        parts.append(f"swizzle {mode}: {found if isinstance(found, str) else 'it is one'}")
    return "; ".join(parts)
