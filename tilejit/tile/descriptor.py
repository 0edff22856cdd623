"""Shared matrix descriptors: from the walk of a shared operand to mode, byte strides and origins.

A descriptor says where a matrix starts and how its bytes go on from there: rows of ``16 << mode``
bytes in groups of eight, two byte strides (LDO, SDO), and a swizzle of the sum. ``extract`` finds the
mode whose walk is the operand's, for every group, repeat and element; it never looks outside the atom
and permutes no coordinate. The start that is encoded is the origin before the swizzle, which the
hardware applies once more.

Source: contract "shared matrix descriptors", "shared descriptors are byte-stride contracts"; PTX ISA,
"matrix descriptor". Not here: mode 4 (32-byte atoms of a 128-byte span), which sm_90 does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from tilejit import dtypes
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.layout import ComposeLayout
from tilejit.tile import contracts
from tilejit.tile.addresses import Providers, memory_operands
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.family import Let, Step
from tilejit.tile.region import Findings, Walk

Major = Literal["k", "mn"]

CHUNK_BYTES = 16
"""What a swizzle moves as a whole; starts and strides are counted in it."""
GROUP_ROWS = 8
STRIDE_LIMIT_BYTES = 1 << 18
ADDRESS_MASK = STRIDE_LIMIT_BYTES - 1
UNUSED_LEADING_BYTES = CHUNK_BYTES
UNUSED_STRIDE_BYTES = 0

MODES = (0, 1, 2, 3)
"""No swizzle, and the swizzles of 32, 64 and 128 bytes."""


def row_bytes(mode: int) -> int:
    """One row of a mode's pattern."""
    return CHUNK_BYTES << mode


def period_bytes(mode: int) -> int:
    """What the backing storage must be aligned to."""
    return GROUP_ROWS * row_bytes(mode) if mode else CHUNK_BYTES


def mode_text(mode: int) -> str:
    return f"{row_bytes(mode)}-byte swizzle" if mode else "no swizzle"


def swizzled(addresses: IntArray, mode: int) -> IntArray:
    """The swizzle of byte addresses; its own inverse."""
    mask = ((1 << mode) - 1) << 4
    return addresses ^ ((addresses >> 3) & mask)


@dataclass(frozen=True, slots=True, eq=False)
class Descriptor:
    """What the descriptors of an operand have in common, and where each repeat's matrix starts:
    ``shift_bytes`` of a repeat after the first element of ``starts``'s."""

    mode: int
    leading_bytes: int
    stride_bytes: int
    starts: Walk
    shift_bytes: tuple[int, ...]


class _Fields(NamedTuple):
    leading_bytes: int
    stride_bytes: int


# --- extraction


def extract(
    call: TileCall, laid: Walk, major: Major, report: Report, modes: Sequence[int] = MODES
) -> Descriptor | None:
    """The descriptor of a laid out operand ``(*group, *repeat, M or N, K)``: the layout's own mode
    if that is one, else the first of ``modes`` whose walk is the operand's."""
    if not contracts.aligned(call, _unswizzled(laid), CHUNK_BYTES, report):
        return None
    own = own_mode(laid)
    order = [m for m in (own, *(m for m in modes if m != own)) if m is not None and m in modes]
    reasons: list[str] = []
    for mode in order:
        found = _in_mode(call, laid, major, mode, own)
        if isinstance(found, Descriptor):
            laid.findings.descriptors[major] = found
            return found
        reasons.append(f"{mode_text(mode)}: {found}")
    operand = laid.operand
    help_ = (
        "T.cuda.wgmma_shared_layout(shape, dtype) lays a tile out so; a_major and b_major say "
        "whether its rows run along K or along M (N)"
    )
    if own is not None and operand.buffer_type.align_bytes % period_bytes(own):
        help_ = contracts.align_help(operand, period_bytes(own))
    report.error(
        f"{call.family}/descriptor",
        f"{operand.name}: no matrix descriptor walks this {'K' if major == 'k' else 'MN'}-major operand",
        span=operand.span,
        where="; ".join(reasons),
        declared=operand.declared(),
        contract=f"{call.contract}: the full address walk is checked",
        help=help_,
    )
    return None


def own_mode(laid: Walk) -> int | None:
    """The mode that the layout's own swizzle is."""
    layout = laid.operand.layout
    if not isinstance(layout, ComposeLayout) or layout.swizzle_len == 0:
        return 0
    chunk = (1 << layout.per_element) * laid.operand.dtype.bytes
    hardware = layout.swizzle_inner and layout.atom_len == 3 and layout.swizzle_len <= 3
    return layout.swizzle_len if hardware and chunk == CHUNK_BYTES else None


def _unswizzled(laid: Walk) -> Walk:
    """The walk before the layout's swizzle, if it has one of whole chunks."""
    operand, layout = laid.operand, laid.operand.layout
    if own_mode(laid) is None or not isinstance(layout, ComposeLayout):
        return laid
    plain = replace(operand, view=replace(operand.view, layout=layout.tile))
    return replace(laid, operand=plain, findings=Findings())


def _in_mode(
    call: TileCall, laid: Walk, major: Major, mode: int, own: int | None
) -> Descriptor | str:
    """The descriptor in a mode, or why there is none."""
    if laid.dynamic:
        return "a stride is known at run time only"
    size = laid.operand.dtype.bytes
    declared = laid.operand.buffer_type.align_bytes
    if declared % period_bytes(mode):
        return (
            f"{laid.operand.view.buffer.name} is aligned to {declared} bytes, expected "
            f"{period_bytes(mode)}: {GROUP_ROWS} rows of {row_bytes(mode)} bytes"
        )
    starts = _unswizzled(laid) if mode == own else laid
    places = starts.places * size
    if mode != own:
        moves = laid.symbolic.scaled(size)
        if not laid.period_multiple or not call.context.divisible(moves, period_bytes(mode)):
            return f"the origin is not known to move by whole periods of {period_bytes(mode)} bytes"
        places = swizzled(places, mode)
    shape = (places.shape[0], places.shape[1], *laid.atom)
    walked = places.reshape(shape)
    fields = _fields(walked[0, 0], major, mode, size)
    wrong = _stride_fault(fields)
    if wrong is not None:
        return wrong
    expected = canonical(laid.atom, size, major, mode, fields.leading_bytes, fields.stride_bytes)
    fault = _first_difference(laid, walked - walked[..., :1, :1], expected)
    if fault is not None:
        return fault
    shifts = walked[:, :, 0, 0] - starts.places[..., 0] * size
    if bool((shifts != shifts[:1]).any()):
        return "the swizzle moves the origins of the warpgroups differently"
    return Descriptor(mode, *fields, starts, tuple(shifts[0].tolist()))


def _fields(walked: IntArray, major: Major, mode: int, size: int) -> _Fields:
    """LDO and SDO from canonical coordinates, never from outside the atom."""
    rows, depth = walked.shape

    def step(mn: int, k: int) -> int | None:
        return int(walked[mn, k] - walked[0, 0]) if mn < rows and k < depth else None

    chunk = CHUNK_BYTES // size
    leading: int | None = None
    if major == "k":
        stride = step(GROUP_ROWS, 0)
        if mode == 0:
            leading = step(0, chunk)
    elif mode:
        stride, leading = step(0, GROUP_ROWS), step(row_bytes(mode) // size, 0)
    else:
        stride, leading = step(chunk, 0), step(0, GROUP_ROWS)
    return _Fields(
        UNUSED_LEADING_BYTES if leading is None else leading,
        UNUSED_STRIDE_BYTES if stride is None else stride,
    )


def _stride_fault(fields: _Fields) -> str | None:
    for name, value in (("LDO", fields.leading_bytes), ("SDO", fields.stride_bytes)):
        if value % CHUNK_BYTES or not 0 <= value < STRIDE_LIMIT_BYTES:
            return (
                f"{name} would be {value} bytes, expected a multiple of {CHUNK_BYTES} from 0 to "
                f"{STRIDE_LIMIT_BYTES - CHUNK_BYTES}"
            )
    return None


def canonical(
    atom: tuple[int, ...], size: int, major: Major, mode: int, leading: int, stride: int
) -> IntArray:
    """The bytes from the start to every (M or N, K) coordinate, before the swizzle."""
    mn = np.arange(atom[0], dtype=np.int64).reshape(-1, 1)
    k = np.arange(atom[1], dtype=np.int64)
    row, along = (mn, k * size) if major == "k" else (k, mn * size)
    group, pitch = row // GROUP_ROWS, row % GROUP_ROWS * row_bytes(mode)
    block, inner = along // row_bytes(mode), along % row_bytes(mode)
    # Without a swizzle, MN-major, the two strides change places.
    swapped = major == "mn" and mode == 0
    by_group, by_block = (leading, stride) if swapped else (stride, leading)
    total: IntArray = group * by_group + pitch + block * by_block + inner
    return total


def _first_difference(laid: Walk, walked: IntArray, expected: IntArray) -> str | None:
    wrong = walked != expected
    if not wrong.any():
        return None
    a, repeat, mn, k = (int(i) for i in np.argwhere(wrong)[0])
    element = mn * expected.shape[1] + k
    where = laid.coordinate(repeat, element)
    if walked.shape[0] > 1:
        where = laid.where((a, repeat, element))
    return (
        f"{where} lies {int(walked[a, repeat, mn, k])} bytes after the "
        f"first, expected {int(expected[mn, k])}"
    )


# --- encoding


def low_words(call: TileCall, found: Descriptor) -> tuple[list[Step], list[nodes.Expr]]:
    """Start address and LDO of every repeat, as uint32, and the steps that compute what they share.

    The address is encoded once for all repeats that differ by constants. It is that of a matrix, so
    that adding what another lies further on never carries out of its field."""
    steps: list[Step] = []
    rank = len(found.starts.atom)
    first = Providers(
        np.zeros(32, dtype=np.int64), (build.const(0, dtypes.int32),) * rank, 32, CHUNK_BYTES
    )
    lets, places = memory_operands(call, found.starts, first)
    steps.extend(lets)
    bases: list[tuple[nodes.Expr, int, nodes.Var]] = []
    words: list[nodes.Expr] = []
    for place, shift in zip(places, found.shift_bytes):
        offset = place.offset_bytes + shift
        known = next((b for b in bases if b[0] is place.base or b[0] == place.base), None)
        if known is None:
            var = nodes.Var(call.names.fresh("descriptor"), nodes.UINT32)
            steps.append(Let(var, _encoded(place.base, offset, found.leading_bytes)))
            known = (place.base, offset, var)
            bases.append(known)
        words.append(_further(known[2], offset - known[1]))
    return steps, words


def _encoded(base: nodes.Expr, offset: int, leading: int) -> nodes.Expr:
    address = build.bitcast(base, nodes.UINT32)
    moved = build.add(address, _u32(offset & 0xFFFF_FFFF))
    start = build.shr(build.bitand(moved, _u32(ADDRESS_MASK)), _u32(4))
    return build.bitor(start, _u32(leading >> 4 << 16))


def _further(word: nodes.Expr, offset_bytes: int) -> nodes.Expr:
    return build.add(word, _u32(offset_bytes // CHUNK_BYTES & 0xFFFF_FFFF))


def _u32(value: int) -> nodes.Const:
    return build.const(value, dtypes.uint32)


class Fields(NamedTuple):
    """What a descriptor's bits say."""

    start: int
    leading_bytes: int
    stride_bytes: int
    mode: int


def sm_90_fields(bits: int) -> Fields | None:
    """The fields of a wgmma descriptor; None where bits are set that none has (a base offset, too)."""
    if bits & ~_SM_90_FIELDS:
        return None
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return Fields(start, leading, stride, _SM_90_SWIZZLE.index(bits >> 62))


_SM_90_FIELDS = 3 << 62 | 0x3FFF << 32 | 0x3FFF << 16 | 0x3FFF
_SM_90_SWIZZLE = (0, 3, 2, 1)
"""Bits 62 and 63, by mode."""


def sm_90_descriptors(call: TileCall, found: Descriptor) -> tuple[list[Step], list[nodes.Expr]]:
    """The uint64 descriptors of wgmma, one for each repeat, and the steps ahead of them: LDO and SDO in
    bits 16 and 32 on, base offset 0, the swizzle on top."""
    steps, words = low_words(call, found)
    high = found.stride_bytes >> 4 | _SM_90_SWIZZLE[found.mode] << 30
    top = build.const(high << 32, dtypes.uint64)
    return steps, [build.bitor(build.cast(word, dtypes.uint64), top) for word in words]
