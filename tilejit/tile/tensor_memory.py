"""Tensor memory operands laid out: the lane and the column of every coordinate.

A CTA has 128 lanes of 512 columns, cells of 32 bits. A layout places elements along ``TLane`` and
``TCol``, the latter counted in elements of its dtype, and states copies in other lanes as replicas.

Source: contract "TMEM loads and stores", "TMEM shape and replicas". Not here: which image an instruction
reads or writes (families), addresses as expressions (``tile.addresses``).
"""

from __future__ import annotations

import numpy as np

from tilejit.errors import Report
from tilejit.ir.tensor_memory import CELL_BITS, TENSOR_COLUMNS, TENSOR_LANES
from tilejit.tile import contracts
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.region import Walk

LANE_AXIS = "TLane"


def laid(
    call: TileCall,
    operand: TensorOperand,
    atom: tuple[int, ...],
    report: Report,
    *,
    collective: bool = False,
) -> Walk | None:
    """Lays the operand out as ``contracts.shaped`` does, copies included inside tensor memory."""
    if not contracts.in_space(call, operand, ("tmem",), report):
        return None
    found = contracts.shaped(call, operand, atom, report, collective=collective)
    if found is None or not _inside(call, found, report):
        return None
    return found


def lanes(walk: Walk) -> IntArray:
    """The lane of every coordinate's first copy: shape (threads or 1, repeats, elements)."""
    found = walk.owners.get(LANE_AXIS)
    return np.zeros((1, *walk.memory.shape[1:]), np.int64) if found is None else found


def column_bits(walk: Walk) -> IntArray:
    """Where in its lane every coordinate starts, without the walk's symbolic part: shape as ``lanes``."""
    bits: IntArray = walk.memory * walk.operand.dtype.bits
    return bits


def cell(walk: Walk, index: tuple[int, int, int]) -> tuple[int, int]:
    """(lane, bit of the lane) of one element, without the walk's symbolic part."""
    whole = np.broadcast_arrays(lanes(walk), column_bits(walk))
    return int(whole[0][index]), int(whole[1][index])


def misplaced(
    walk: Walk, lane: IntArray, bit: IntArray
) -> tuple[tuple[int, int, int], tuple[int, int], tuple[int, int]] | None:
    """The first element that does not lie ``lane`` lanes and ``bit`` bits of a lane, by element, after the
    first of its atom: its index in the walk, and (lane, bit) after that of where it lies and should."""
    found_lane, found_bit = (x - x[..., :1] for x in (lanes(walk), column_bits(walk)))
    wrong = (found_lane != lane) | (found_bit != bit)
    if not wrong.any():
        return None
    a, r, k = (int(i) for i in np.argwhere(wrong)[0])
    at = tuple(int(np.broadcast_to(x, wrong.shape)[a, r, k]) for x in (found_lane, found_bit))
    return (a, r, k), (at[0], at[1]), (int(lane[k]), int(bit[k]))


def replicas(operand: TensorOperand) -> tuple[tuple[int, int], ...]:
    """The copies that the layout states: (count, distance in lanes), without those of one."""
    return tuple((i.extent, i.stride) for i in operand.tile.replica if i.extent > 1)


def copied_to(operand: TensorOperand) -> tuple[int, ...] | None:
    """How many lanes after the first each copy lies; None where one is elsewhere than in other lanes."""
    along_lanes = all(i.axis == LANE_AXIS for i in operand.tile.replica if i.extent > 1)
    return distances(replicas(operand)) if along_lanes else None


def distances(copies: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """The same of copies of copies, (count, distance in lanes) each."""
    found = [0]
    for count, distance in copies:
        found = [lanes + i * distance for lanes in found for i in range(count)]
    return tuple(sorted(found))


def replicas_text(operand: TensorOperand) -> str:
    """In notation, as the layout has them."""
    shown = [f"R[{i.extent}:{i.stride}@{i.axis}]" for i in operand.tile.replica if i.extent > 1]
    return ", ".join(shown) or "no replica"


def starts_at_columns(call: TileCall, walk: Walk, columns: int, report: Report) -> bool:
    """Every repeat's first element starts at a multiple of so many columns."""
    required = columns * CELL_BITS
    mod, rem = call.context.congruence(walk.symbolic.scaled(walk.operand.dtype.bits))
    starts = column_bits(walk)[..., 0]
    if mod % required == 0:
        if not isinstance(rem, int):
            rem = rem[walk.group.threads].reshape(-1, 1)
        wrong = (starts + rem) % required != 0
        if not wrong.any():
            return True
        a, r = (int(i) for i in np.argwhere(wrong)[0])
        where: str | None = walk.where((a, r))
        left = int(np.broadcast_to((starts + rem) % required, wrong.shape)[a, r])
        message = f"starts {_columns_text(left)} after a multiple of {_columns_text(required)}"
    else:
        known = int(np.gcd(mod, required))
        where = None
        message = f"starts at a multiple of {_columns_text(known)} as far as is known"
    operand = walk.operand
    report.error(
        f"{call.family}/column",
        f"{operand.name} {message}, expected {_columns_text(required)}",
        span=operand.span,
        where=where,
        declared=operand.declared(),
        contract=call.contract,
        help="a column is one 32-bit cell; T.assume(n % … == 0) promises divisibility of a run-time value",
    )
    return False


def _columns_text(bits: int) -> str:
    if bits % CELL_BITS:
        return f"{bits} bits of a column" if bits < CELL_BITS else f"{bits / CELL_BITS:g} columns"
    return f"{bits // CELL_BITS} column{'' if bits == CELL_BITS else 's'}"


def _inside(call: TileCall, walk: Walk, report: Report) -> bool:
    """Copies in lanes 0 to 127; the declaration bounds the columns."""
    operand = walk.operand
    copies = [i for i in operand.tile.replica if i.axis == LANE_AXIS]
    reach = sum((i.extent - 1) * i.stride for i in copies)
    found = lanes(walk)
    least, most = int(found.min()), int(found.max()) + reach
    if least >= 0 and most < TENSOR_LANES:
        return True
    at = found + reach >= TENSOR_LANES if most >= TENSOR_LANES else found < 0
    index = tuple(int(i) for i in np.argwhere(at)[0])
    last = f", its last copy {reach} lanes further" if reach else ""
    report.error(
        "tile/bounds",
        f"{operand.name} needs lane {int(found[index])}{last}; tensor memory has {TENSOR_LANES} lanes "
        f"of {TENSOR_COLUMNS} columns",
        span=operand.span,
        where=walk.where(index),
        declared=operand.declared(),
        contract=call.contract,
    )
    return False
