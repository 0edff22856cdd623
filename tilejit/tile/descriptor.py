"""Shared matrix descriptors: from the walk of a shared operand to mode, byte strides and origins.

A descriptor says where a matrix starts and how its bytes go on from there: rows in groups, two byte
strides (LDO, SDO), and a swizzle of the sum. A *mode* is a swizzle and what a row and a group are in it:
in modes 0 to 3 groups of eight rows of ``16 << mode`` bytes, in mode 4 of four rows of 128.
``extract`` finds the mode whose walk is the operand's, for every group, repeat and element; it never
looks outside the atom and permutes no coordinate. The start that is encoded is the origin before the
swizzle, which the hardware applies once more. Rows of words that ``tcgen05.cp`` copies are walked as a
K-major matrix of them is.

Source: contract "shared matrix descriptors", "shared descriptors are byte-stride contracts", "shared
descriptor address walk"; PTX ISA, "matrix descriptor" and "shared memory descriptor". Not here: base
offsets and absolute LDO, which the contract leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
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
"""What strides and starts are counted in, and what a swizzle moves as a whole, but for mode 4's."""
CHUNK_BITS = 8 * CHUNK_BYTES
STRIDE_LIMIT_BYTES = 1 << 18
ADDRESS_MASK = STRIDE_LIMIT_BYTES - 1
UNUSED_LEADING_BYTES = CHUNK_BYTES
UNUSED_STRIDE_BYTES = 0

MODES = (0, 1, 2, 3)
"""No swizzle, and the swizzles of 32, 64 and 128 bytes."""
WIDE_ATOMS = 4
"""The mode of 128-byte rows whose swizzle moves 32 bytes as a whole: for 32-bit MN-major operands."""
WIDE_ATOM_BITS = 256
WIDE_ATOM_SWIZZLE = 2
"""Bits of the atom's number that the swizzle changes, with the two above them."""


def modes_of(bits: int, major: Major) -> tuple[int, ...]:
    """The modes of a tcgen05.mma operand with elements of so many bits."""
    return (WIDE_ATOMS,) if bits == 32 and major == "mn" else MODES


def row_bytes(mode: int) -> int:
    """One row of a mode's pattern."""
    return 128 if mode == WIDE_ATOMS else CHUNK_BYTES << mode


def group_rows(mode: int) -> int:
    """Rows that follow one another without a stride."""
    return 4 if mode == WIDE_ATOMS else 8


def period_bytes(mode: int) -> int:
    """What the backing storage must be aligned to."""
    return group_rows(mode) * row_bytes(mode) if mode else CHUNK_BYTES


def mode_text(mode: int) -> str:
    atoms = f" of {WIDE_ATOM_BITS // 8}-byte atoms" if mode == WIDE_ATOMS else ""
    return f"{row_bytes(mode)}-byte swizzle{atoms}" if mode else "no swizzle"


def swizzled(addresses: IntArray, mode: int) -> IntArray:
    """The swizzle of byte addresses; its own inverse."""
    if mode == WIDE_ATOMS:
        return addresses ^ ((addresses >> 2) & 96)
    mask = ((1 << mode) - 1) << 4
    return addresses ^ ((addresses >> 3) & mask)


def _swizzled_bits(addresses: IntArray, mode: int) -> IntArray:
    """The swizzle of bit addresses."""
    moved: IntArray = swizzled(addresses >> 3, mode) << 3 | addresses & 7
    return moved


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

MATRIX_ADVICE = (
    "T.cuda.wgmma_shared_layout(shape, dtype) lays a tile out so; a_major and b_major say whether its "
    "rows run along K or along M (N)"
)


def extract(
    call: TileCall,
    laid: Walk,
    major: Major,
    report: Report,
    modes: Sequence[int] = MODES,
    *,
    role: str | None = None,
    advice: str = MATRIX_ADVICE,
) -> Descriptor | None:
    """The descriptor of a laid out operand ``(*group, *repeat, M or N, K)``: the layout's own mode
    if that is one, else the first of ``modes`` whose walk is the operand's. ``role`` and ``advice``:
    what the operand is and how it is written, for the message."""
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
    if own is not None and operand.buffer_type.align_bytes % period_bytes(own):
        advice = contracts.align_help(operand, period_bytes(own))
    role = role or f"{'K' if major == 'k' else 'MN'}-major operand"
    report.error(
        f"{call.family}/descriptor",
        f"{operand.name}: no matrix descriptor walks this {role}",
        span=operand.span,
        where="; ".join(reasons),
        declared=operand.declared(),
        contract=f"{call.contract}: the full address walk is checked",
        help=advice,
    )
    return None


def own_mode(laid: Walk) -> int | None:
    """The mode that the layout's own swizzle is."""
    layout = laid.operand.layout
    if not isinstance(layout, ComposeLayout) or layout.swizzle_len == 0:
        return 0
    if not layout.swizzle_inner:
        return None
    moved = (1 << layout.per_element) * laid.operand.dtype.bits
    if (moved, layout.atom_len) == (CHUNK_BITS, 3) and layout.swizzle_len <= 3:
        return layout.swizzle_len
    wide = (WIDE_ATOM_BITS, WIDE_ATOM_SWIZZLE, WIDE_ATOM_SWIZZLE)
    return WIDE_ATOMS if (moved, layout.atom_len, layout.swizzle_len) == wide else None


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
    bits = laid.operand.dtype.bits
    declared = laid.operand.buffer_type.align_bytes
    if declared % period_bytes(mode):
        return (
            f"{laid.operand.view.buffer.name} is aligned to {declared} bytes, expected "
            f"{period_bytes(mode)}: {group_rows(mode)} rows of {row_bytes(mode)} bytes"
        )
    starts = _unswizzled(laid) if mode == own else laid
    places = starts.places * bits
    if mode != own:
        moves = laid.symbolic.scaled(bits)
        if not laid.period_multiple or not call.context.divisible(moves, 8 * period_bytes(mode)):
            return f"the origin is not known to move by whole periods of {period_bytes(mode)} bytes"
        places = _swizzled_bits(places, mode)
    shape = (places.shape[0], places.shape[1], *laid.atom)
    walked = places.reshape(shape)
    strides = _stride_bits(walked[0, 0], major, mode, bits)
    wrong = _stride_fault(strides)
    if wrong is not None:
        return wrong
    fields = _Fields(strides[0] // 8, strides[1] // 8)
    expected = canonical_bits(laid.atom, bits, major, mode, *fields)
    fault = _first_difference(laid, walked - walked[..., :1, :1], expected)
    if fault is not None:
        return fault
    shifts = (walked[:, :, 0, 0] - starts.places[..., 0] * bits) // 8
    if bool((shifts != shifts[:1]).any()):
        return "the swizzle does not move the origins of all threads alike"
    return Descriptor(mode, *fields, starts, tuple(shifts[0].tolist()))


def _stride_bits(walked: IntArray, major: Major, mode: int, bits: int) -> tuple[int, int]:
    """LDO and SDO from canonical coordinates, never from outside the atom."""
    rows, depth = walked.shape

    def step(mn: int, k: int) -> int | None:
        return int(walked[mn, k] - walked[0, 0]) if mn < rows and k < depth else None

    chunk, group = CHUNK_BITS // bits, group_rows(mode)
    leading: int | None = None
    if major == "k":
        stride = step(group, 0)
        if mode == 0:
            leading = step(0, chunk)
    elif mode:
        stride, leading = step(0, group), step(8 * row_bytes(mode) // bits, 0)
    else:
        stride, leading = step(chunk, 0), step(0, group)
    return (
        8 * UNUSED_LEADING_BYTES if leading is None else leading,
        8 * UNUSED_STRIDE_BYTES if stride is None else stride,
    )


def _stride_fault(strides: tuple[int, int]) -> str | None:
    for name, bits in zip(("LDO", "SDO"), strides):
        if bits % CHUNK_BITS or not 0 <= bits < 8 * STRIDE_LIMIT_BYTES:
            return (
                f"{name} would be {_bytes_text(bits)} bytes, expected a multiple of {CHUNK_BYTES} from "
                f"0 to {STRIDE_LIMIT_BYTES - CHUNK_BYTES}"
            )
    return None


def canonical_bits(
    atom: tuple[int, ...], bits: int, major: Major, mode: int, leading: int, stride: int
) -> IntArray:
    """The bits from the start to every (M or N, K) coordinate, before the swizzle. ``leading`` and
    ``stride`` in bytes."""
    mn = np.arange(atom[0], dtype=np.int64).reshape(-1, 1)
    k = np.arange(atom[1], dtype=np.int64)
    row, along = (mn, k * bits) if major == "k" else (k, mn * bits)
    row_bits, group = 8 * row_bytes(mode), group_rows(mode)
    # Without a swizzle, MN-major, the two strides change places.
    swapped = major == "mn" and mode == 0
    by_group, by_block = (leading, stride) if swapped else (stride, leading)
    total: IntArray = (
        row // group * by_group * 8 + row % group * row_bits
        + along // row_bits * by_block * 8 + along % row_bits
    )  # fmt: skip
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
        f"{where} lies {_bytes_text(int(walked[a, repeat, mn, k]))} bytes after the "
        f"first, expected {_bytes_text(int(expected[mn, k]))}"
    )


def _bytes_text(bits: int) -> str:
    return f"{bits / 8:g}" if bits % 8 else str(bits // 8)


# --- the bits of a descriptor, and the walk that they describe


class Fields(NamedTuple):
    """What a descriptor's bits say."""

    start: int
    leading_bytes: int
    stride_bytes: int
    mode: int


def chunk_addresses(fields: Fields, atom: tuple[int, int], bits: int, major: Major) -> IntArray:
    """The shared address of every chunk of 16 bytes of a matrix (M or N, K) with elements of ``bits``:
    shape (M or N, chunks along K), or MN-major (K, chunks along M or N)."""
    walk = _chunk_offsets(atom, bits, major, fields.mode, fields.leading_bytes, fields.stride_bytes)
    return swizzled(fields.start + walk, fields.mode)


@cache
def _chunk_offsets(
    atom: tuple[int, int], bits: int, major: Major, mode: int, leading: int, stride: int
) -> IntArray:
    per_chunk = CHUNK_BITS // bits
    walk = canonical_bits(atom, bits, major, mode, leading, stride) // 8
    return walk[:, ::per_chunk] if major == "k" else walk[::per_chunk].T


_STRIDES_AND_START = 0x3FFF << 32 | 0x3FFF << 16 | 0x3FFF


def _strides_and_start(bits: int) -> tuple[int, int, int]:
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return start, leading, stride


_SM_90_SWIZZLE = (0, 3, 2, 1)
"""Bits 62 and 63, by mode."""
_SM_100_SWIZZLE = (0, 6, 4, 2, 1)
"""Bits 61 to 63, by mode."""
_SM_100_VERSION = 1 << 46


def sm_90_fields(bits: int) -> Fields | None:
    """The fields of a wgmma descriptor; None where bits are set that none has (a base offset, too)."""
    if bits & ~(_STRIDES_AND_START | 3 << 62):
        return None
    return Fields(*_strides_and_start(bits), _SM_90_SWIZZLE.index(bits >> 62))


def sm_100_fields(bits: int) -> Fields | None:
    """The fields of a tcgen05 descriptor; None where its constant bits are others, or there is a base
    offset or an absolute LDO."""
    if bits & ~(_STRIDES_AND_START | 7 << 61) != _SM_100_VERSION:
        return None
    if bits >> 61 not in _SM_100_SWIZZLE:
        return None
    return Fields(*_strides_and_start(bits), _SM_100_SWIZZLE.index(bits >> 61))


# --- encoding


def sm_90_descriptors(call: TileCall, found: Descriptor) -> tuple[list[Step], list[nodes.Expr]]:
    """The uint64 descriptors of wgmma, one for each repeat, and the steps ahead of them: LDO and SDO in
    bits 16 and 32 on, base offset 0, the swizzle on top."""
    return _descriptors(call, found, _SM_90_SWIZZLE[found.mode] << 62)


def sm_100_descriptors(call: TileCall, found: Descriptor) -> tuple[list[Step], list[nodes.Expr]]:
    """As ``sm_90_descriptors``, of tcgen05: a version in bit 46, a swizzle of three bits."""
    return _descriptors(call, found, _SM_100_VERSION | _SM_100_SWIZZLE[found.mode] << 61)


def _descriptors(
    call: TileCall, found: Descriptor, constant: int
) -> tuple[list[Step], list[nodes.Expr]]:
    steps, words = low_words(call, found)
    top = build.const(found.stride_bytes >> 4 << 32 | constant, dtypes.uint64)
    return steps, [build.bitor(build.cast(word, dtypes.uint64), top) for word in words]


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
