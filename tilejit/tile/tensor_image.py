"""Operands whose elements an instruction wants in certain lanes and columns of tensor memory.

An *image* is that pattern: where every element lies after the first, in which lanes the first may, and
which copies the layout has to state.

Not here: which image an instruction has (families), laying operands out (``tile.tensor_memory``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilejit.errors import Report
from tilejit.ir.tensor_memory import CELL_BITS
from tilejit.tile import tensor_memory
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.faults import listed, operand_fault
from tilejit.tile.region import Walk


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """``lanes`` and ``bits`` of a lane, of every element of an atom after its first. ``copies``: of all
    of them, (count, lanes apart). ``whole``: the atom starts at a column, not inside one."""

    atom: tuple[int, ...]
    lanes: IntArray
    bits: IntArray
    first_lanes: tuple[int, ...] = (0,)
    copies: tuple[tuple[int, int], ...] = ()
    whole: bool = True


def lies_as(call: TileCall, laid: Walk, image: Image, report: Report) -> bool:
    """Every repeat of the operand is the image."""
    right = [_placed(call, laid, image, report), _copied(call, laid, image, report)]
    if image.whole:
        right.append(tensor_memory.starts_at_columns(call, laid, 1, report))
    return all(right)


def _placed(call: TileCall, laid: Walk, image: Image, report: Report) -> bool:
    wrong = tensor_memory.misplaced(laid, image.lanes.reshape(-1), image.bits.reshape(-1))
    first = tensor_memory.lanes(laid)[..., :1]
    outside = ~np.isin(first, image.first_lanes)
    index: tuple[int, ...]
    if wrong is not None:
        index = wrong[0]
        origin = tensor_memory.cell(laid, (*index[:2], 0))
        found, expected = (_cell_text(origin[0] + lane, origin[1] + bit) for lane, bit in wrong[1:])
        message = (
            f"lies in {found} of its buffer, expected {expected} after the atom's first element"
        )
    elif outside.any():
        index = _first(outside)
        message = f"begins in lane {int(first[index])}, expected {listed(image.first_lanes, 'or')}"
    elif bool((first != first[:1]).any()):
        index = _first(first != first[:1])
        message = "begins in another lane for other threads, expected one lane that is known"
    else:
        return True
    message = f"{laid.operand.name} {message}"
    operand_fault(call, laid.operand, "image", message, report, where=laid.where(index))
    return False


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _cell_text(lane: int, bits: int) -> str:
    column, bit = divmod(bits, CELL_BITS)
    return f"lane {lane}, column {column}" + (f", bit {bit}" if bit else "")


def _copied(call: TileCall, laid: Walk, image: Image, report: Report) -> bool:
    operand = laid.operand
    expected = tensor_memory.distances(image.copies)
    if tensor_memory.copied_to(operand) == expected:
        return True
    wanted = [f"R[{count}:{distance}@TLane]" for count, distance in image.copies]
    why = "the instruction knows one place of each element"
    if image.copies:
        count, distance = image.copies[0]
        why = f"the instruction reads {count} copies, {distance} lanes apart"
    operand_fault(
        call, operand, "replicas", f"{operand.name} states {tensor_memory.replicas_text(operand)}, expected "
        f"{', '.join(wanted) or 'none'}: {why}", report,
    )  # fmt: skip
    return False
