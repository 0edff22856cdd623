"""Descriptors, addresses and data paths of tcgen05, written from the ISA's text and nothing else.

Plain Python, without a line of tilejit: a second reading of the same pages, so that one wrong bit, lane or
column in tilejit has to be made twice to go unseen (tests/tile/test_tcgen05_packers.py compares).

Sources. "PTX": PTX ISA 9.0, section 9.7.16, by the number of the table. Its figures are images; where the
text alone does not say who holds what, the reading is CUTLASS's: "desc" is cute/arch/mma_sm100_desc.hpp,
"traits" cute/atom/mma_traits_sm100.hpp, "frag" cute/atom/mma_traits_sm100_frag.hpp, "copy"
cute/atom/copy_traits_sm100.hpp.

Not here: what may be multiplied with what beyond the rows of table 39, numerics, ``tcgen05.cp``, sparsity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

# --- bits


class Bits(NamedTuple):
    """A field: its lowest bit and how many it has."""

    low: int
    count: int


def packed(layout: Mapping[str, Bits], values: Mapping[str, int]) -> int:
    """The word with these fields; every bit that no value names is zero."""
    word = 0
    for name, value in values.items():
        low, count = layout[name]
        if not 0 <= value < 1 << count:
            raise ValueError(f"{name} has {count} bits, {value} does not fit")
        word |= value << low
    return word


def unpacked(layout: Mapping[str, Bits], word: int) -> dict[str, int]:
    """The fields of a word. Bits in no field must be zero: the tables reserve them."""
    values = {name: word >> low & (1 << count) - 1 for name, (low, count) in layout.items()}
    if packed(layout, values) != word:
        raise ValueError(f"0x{word:x} has reserved bits")
    return values


# --- instruction descriptors: PTX tables 42, 43, 44; desc InstrDescriptor, InstrDescriptorBlockScaled

UNSCALED = {
    "sparsity_selector": Bits(0, 2),
    "sparse": Bits(2, 1),
    "saturate": Bits(3, 1),
    "d_type": Bits(4, 2),
    "a_type": Bits(7, 3),
    "b_type": Bits(10, 3),
    "negate_a": Bits(13, 1),
    "negate_b": Bits(14, 1),
    "transpose_a": Bits(15, 1),
    "transpose_b": Bits(16, 1),
    "n_over_8": Bits(17, 6),
    "m_over_16": Bits(24, 5),
    "max_shift": Bits(30, 2),
}
"""Table 42: kinds tf32, f16, f8f6f4 and i8."""

MXF8F6F4 = {
    "sparse": Bits(2, 1),
    "scale_b_id": Bits(4, 2),
    "a_type": Bits(7, 3),
    "b_type": Bits(10, 3),
    "negate_a": Bits(13, 1),
    "negate_b": Bits(14, 1),
    "transpose_a": Bits(15, 1),
    "transpose_b": Bits(16, 1),
    "n_over_8": Bits(17, 6),
    "scale_type": Bits(23, 1),
    "m_over_128": Bits(27, 2),
    "scale_a_id": Bits(29, 2),
}
"""Table 43: kind mxf8f6f4."""

MXF4 = {
    "sparse": Bits(2, 1),
    "scale_b_id": Bits(4, 2),
    "a_type": Bits(7, 3),
    "b_type": Bits(10, 2),
    "negate_a": Bits(13, 1),
    "negate_b": Bits(14, 1),
    "transpose_a": Bits(15, 1),
    "transpose_b": Bits(16, 1),
    "n_over_8": Bits(17, 6),
    "scale_type": Bits(23, 1),
    "m_over_128": Bits(27, 2),
    "scale_a_id": Bits(29, 2),
    "dense_k96": Bits(31, 1),
}
"""Table 44: kinds mxf4 and mxf4nvf4. K is there for this kind only: 0 is 64 (128 sparse), 1 is 96."""

FIELDS = {
    **dict.fromkeys(("tf32", "f16", "f8f6f4", "i8"), UNSCALED),
    "mxf8f6f4": MXF8F6F4,
    **dict.fromkeys(("mxf4", "mxf4nvf4"), MXF4),
}

_F8F6F4_TYPES = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
INPUT_TYPES = {
    "tf32": {"tf32": 2},
    "f16": {"f16": 0, "bf16": 1},
    "f8f6f4": _F8F6F4_TYPES,
    "i8": {"u8": 0, "s8": 1},
    "mxf8f6f4": _F8F6F4_TYPES,
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
D_TYPES = {
    "tf32": {"f32": 1},
    "f16": {"f16": 0, "f32": 1},
    "f8f6f4": {"f16": 0, "f32": 1},
    "i8": {"s32": 2},
}
"""The scaled kinds have no such field: their D is f32."""
SCALE_TYPES = {
    "mxf8f6f4": {"ue8m0": 1},
    "mxf4": {"ue8m0": 1},
    "mxf4nvf4": {"ue4m3": 0, "ue8m0": 1},
}
"""Table 44 of PTX 9.0 leaves the second of mxf4nvf4 out; table 55, later editions and desc have it."""


def instruction_descriptor(
    kind: str, *, a: str, b: str, d: str = "f32", scale: str = "", m: int, n: int, k: int = 0,
    scale_a_id: int = 0, scale_b_id: int = 0, **flags: bool,
) -> int:  # fmt: skip
    """``idesc`` of a dense product. ``flags``: negate_a, negate_b, transpose_a, transpose_b, saturate."""
    values = {name: 1 for name, flag in flags.items() if flag}
    values |= {"a_type": INPUT_TYPES[kind][a], "b_type": INPUT_TYPES[kind][b], "n_over_8": n // 8}
    if FIELDS[kind] is UNSCALED:
        values |= {"d_type": D_TYPES[kind][d], "m_over_16": m // 16}
    else:
        values |= {"scale_type": SCALE_TYPES[kind][scale], "m_over_128": m // 128}
        values |= {"scale_a_id": scale_a_id, "scale_b_id": scale_b_id}
    if FIELDS[kind] is MXF4:
        values["dense_k96"] = int(k == 96)
    return packed(FIELDS[kind], values)


class ShapeRow(NamedTuple):
    """A dense row of PTX table 39: ``m`` and ``n`` are totals of the CTA group."""

    cta_group: int
    ws: bool
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: int


def _up_to_256(step: int) -> tuple[int, ...]:
    return tuple(range(step, 257, step))


def _unscaled_rows(k: int) -> list[ShapeRow]:
    """Of floats: the table has steps of 8 with M=128 of one CTA, too; CUTLASS asks for 16 there, and so does
    this project."""
    return [
        ShapeRow(1, False, (64,), _up_to_256(8), k),
        ShapeRow(1, False, (128,), _up_to_256(16), k),
        ShapeRow(2, False, (128, 256), _up_to_256(16), k),
        ShapeRow(1, True, (32, 64, 128), (64, 128, 256), k),
    ]


def _scaled_rows(k: int) -> list[ShapeRow]:
    return [
        ShapeRow(1, False, (128,), _up_to_256(8), k),
        ShapeRow(2, False, (128, 256), _up_to_256(16), k),
    ]


_K96 = ShapeRow(2, False, (256,), _up_to_256(16), 96)
SHAPES = {
    "f16": _unscaled_rows(16),
    "tf32": _unscaled_rows(8),
    "f8f6f4": _unscaled_rows(32),
    "i8": [
        ShapeRow(1, False, (64, 128), (8, 16, 24, 32, *range(48, 257, 16)), 32),
        ShapeRow(2, False, (128, 256), _up_to_256(32), 32),
        ShapeRow(1, True, (32, 64, 128), (64, 128, 256), 32),
    ],
    "mxf8f6f4": _scaled_rows(32),
    "mxf4": [*_scaled_rows(64), _K96],
    "mxf4nvf4": [*_scaled_rows(64), _K96],
}

TRANSPOSES = {kind: kind not in ("mxf4", "mxf4nvf4") for kind in FIELDS}
"""PTX table 49; elements of 4 and 6 bits never (table 52)."""
NEGATES = {kind: kind != "i8" for kind in FIELDS}
"""PTX table 49."""


# --- the shared memory descriptor: PTX tables 40 and 41; desc SmemDescriptor

SHARED = {
    "start": Bits(0, 14),
    "leading": Bits(16, 14),
    "stride": Bits(32, 14),
    "version": Bits(46, 3),
    "base_offset": Bits(49, 3),
    "absolute": Bits(52, 1),
    "swizzle": Bits(61, 3),
}
"""Bits 46 to 48 are the constant 0b001. The text's "0xb00000000" of bits 53 to 60 is eight binary zeros:
desc leaves them zero."""

SWIZZLES = {"none": 0, "32B": 6, "64B": 4, "128B": 2, "128B, 32B atoms": 1}


def shared_descriptor(start_bytes: int, leading_bytes: int, stride_bytes: int, swizzle: str) -> int:
    """Base offset 0, relative leading offset. ``matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4``."""
    return packed(
        SHARED,
        {
            "start": (start_bytes & 0x3FFFF) >> 4,
            "leading": (leading_bytes & 0x3FFFF) >> 4,
            "stride": (stride_bytes & 0x3FFFF) >> 4,
            "version": 0b001,
            "swizzle": SWIZZLES[swizzle],
        },
    )


class Canonical(NamedTuple):
    """A canonical layout of traits' make_umma_desc in units of 16 bytes. ``chunks``, ``lines``: 16-byte
    chunks along the major order and lines across it that one swizzle atom has. The swizzle is
    ``Swizzle<bits, base, shift>``."""

    chunks: int
    lines: int
    bits: int
    base: int
    shift: int


CANONICAL = {
    "none": Canonical(1, 8, 0, 4, 3),
    "32B": Canonical(2, 8, 1, 4, 3),
    "64B": Canonical(4, 8, 2, 4, 3),
    "128B": Canonical(8, 8, 3, 4, 3),
    "128B, 32B atoms": Canonical(8, 4, 2, 5, 2),
}


def shared_byte(descriptor: int, major: str, bits: int, mn: int, k: int) -> int:
    """The byte in shared memory where the matrix's element (mn, k) starts, ``bits`` wide in memory."""
    fields = unpacked(SHARED, descriptor)
    canonical = CANONICAL[{code: name for name, code in SWIZZLES.items()}[fields["swizzle"]]]
    along, across = (k, mn) if major == "k" else (mn, k)
    chunk, in_chunk = divmod(along * bits // 8, 16)
    leading, stride = fields["leading"], fields["stride"]
    if canonical.chunks == 1:  # "interleave": every chunk of a line by itself
        chunk_pitch, line_group = (leading, stride) if major == "k" else (stride, leading)
        units = chunk * chunk_pitch
    else:
        line_group = stride
        units = chunk // canonical.chunks * leading + chunk % canonical.chunks
        if major == "k" and chunk >= canonical.chunks:
            raise ValueError("K-major: an instruction's K is within one swizzle atom")
    group, line = divmod(across, canonical.lines)
    units += group * line_group + line * canonical.chunks
    return swizzled(16 * (fields["start"] + units) + in_chunk, canonical)


def swizzled(byte: int, canonical: Canonical) -> int:
    """Cute's ``Swizzle``: the bits from ``base`` on, xor those ``shift`` above them."""
    mask = (1 << canonical.bits) - 1 << canonical.base
    return byte ^ (byte >> canonical.shift & mask)


# --- the zero-column mask: PTX table 45 and its four examples; desc MaskAndShiftB

ZERO_COLUMNS = {
    **{f"start_{i}": Bits(8 * i, 8) for i in range(4)},
    **{f"first_{i}": Bits(32 + i, 1) for i in range(4)},
    "nonzero": Bits(39, 1),
    "skip": Bits(40, 8),
    "use": Bits(48, 8),
    "shift": Bits(56, 6),
}


class ZeroColumns(NamedTuple):
    """The fields as the ISA counts them: ``skip`` and ``use`` are spans less one."""

    start: tuple[int, int, int, int] = (0, 0, 0, 0)
    first: tuple[int, int, int, int] = (0, 0, 0, 0)
    nonzero: int = 1
    skip: int = 0
    use: int = 0
    shift: int = 0

    def packed(self) -> int:
        spans = {"nonzero": self.nonzero, "skip": self.skip, "use": self.use, "shift": self.shift}
        starts = {f"start_{i}": value for i, value in enumerate(self.start)}
        firsts = {f"first_{i}": value for i, value in enumerate(self.first)}
        return packed(ZERO_COLUMNS, {**starts, **firsts, **spans})

    def zeros(self, m: int, n: int) -> list[bool]:
        """For every column of B whether zeros stand for it.

        The table's words and its examples exchange the two spans. In the examples (skip 2, use 3) three
        ones, then four zeros follow each other and a 1 is a column of zeros: a skipped span has zeros.
        desc says so in as many words, so this does.
        """
        banks = {128: 1, 64: 2, 32: 4}[m]
        return [zero for bank in range(banks) for zero in self._bank(bank, n // banks)]

    def _bank(self, bank: int, columns: int) -> list[bool]:
        if not self.nonzero:
            return [False] * columns
        mask: list[bool] = []
        zero = bool(self.first[bank])
        while len(mask) < self.start[bank] + columns:
            mask += [zero] * ((self.skip if zero else self.use) + 1)
            zero = not zero
        return mask[self.start[bank] : self.start[bank] + columns]


# --- tensor memory: PTX 9.7.16.1.1

LANES = 128
COLUMNS = 512


class Cell(NamedTuple):
    """32 bits of a CTA's tensor memory."""

    lane: int
    column: int


def tensor_memory_address(cell: Cell) -> int:
    """Lane in bits 16 to 31, column in bits 0 to 15."""
    return cell.lane << 16 | cell.column


# --- registers of tcgen05.ld and st: PTX table 49 and "Packing and Unpacking"; copy SM100_TMEM_LOAD_*

REGISTERS_OF_X1 = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
"""Registers at ``.x1``. The greatest ``.num`` is the one with 128 registers."""
COLUMNS_OF_X1 = {"32x32b": 1, "16x64b": 2, "16x32bx2": 1, "16x128b": 4, "16x256b": 8}
LANES_OF = {"32x32b": 32, "16x64b": 16, "16x32bx2": 16, "16x128b": 16, "16x256b": 16}


def register_cell(shape: str, thread: int, register: int, half_split: int = 0) -> Cell:
    """The cell of a warp's thread and register, from the first lane and column of the access.

    Read off copy's DstLayout, (thread, bit) -> bit + lane: 16dp256b has threads (4, 8) at (64 bits, 1 lane)
    and bits (64, 2, num) at (1 bit, 8 lanes, 256 bits); the others likewise.
    """
    if shape == "32x32b":
        return Cell(thread, register)
    if shape == "16x32bx2":
        half, lane = divmod(thread, 16)
        return Cell(lane, half * half_split + register)
    if shape == "16x64b":
        lower, middle, upper = thread % 2, thread // 2 % 2, thread // 4
        return Cell(upper + 8 * lower, 2 * register + middle)
    group, in_group = divmod(thread, 4)
    if shape == "16x128b":
        repeat, half = divmod(register, 2)
        return Cell(group + 8 * half, 4 * repeat + in_group)
    repeat, rest = divmod(register, 4)
    half, word = divmod(rest, 2)
    return Cell(group + 8 * half, 8 * repeat + 2 * in_group + word)


def packed_columns(column: int) -> tuple[int, int]:
    """With ``.pack::16b`` / ``.unpack::16b``: the cells whose low halves are the low and the high half of
    the register that has ``column`` without it (copy, ``_16b``: bits (16, ..) at (1, 32))."""
    return 2 * column, 2 * column + 1


# --- data paths: PTX 9.7.16.10.5; frag tmem_frg, tmem_frg_ws


def data_path(m: int, cta_group: int, ws: bool) -> str:
    """The ISA's letter, dense A."""
    return {
        (32, 1, True): "G",
        (64, 1, True): "E",
        (64, 1, False): "F",
        (128, 1, False): "D",
        (128, 1, True): "D",
        (128, 2, False): "B",
        (256, 2, False): "A",
    }[m, cta_group, ws]


class Banks(NamedTuple):
    """``rows``: of D in one CTA. ``banks``: side by side in the lanes, each with its share of N."""

    rows: int
    banks: int
    half: bool = False


PATHS = {
    "A": Banks(128, 1),
    "B": Banks(64, 2),
    "D": Banks(128, 1),
    "E": Banks(64, 2),
    "F": Banks(64, 1, half=True),
    "G": Banks(32, 4),
}
"""E is called "2x3" in the text; frag has 2x2. F uses half the lanes: 16 of every 32, from 0 or 16 on.
Sparse A has C besides."""


def lane_of_row(path: Banks, row: int) -> int:
    """The lane of a CTA's row in the first bank."""
    return row % 16 + 32 * (row // 16) if path.half else row


def accumulator_cell(letter: str, n: int, row: int, column: int) -> tuple[int, Cell]:
    """CTA of the group and cell, from the first lane and column of D, of D's element (row, column)."""
    path = PATHS[letter]
    cta, local = divmod(row, path.rows)
    bank, within = divmod(column, n // path.banks)
    return cta, Cell(lane_of_row(path, local) + LANES // path.banks * bank, within)


def a_cells(letter: str, bits: int, row: int, k: int) -> tuple[int, list[Cell], int]:
    """CTA, cells and lowest bit within them of A's element (row, k), ``bits`` wide in memory.

    Every bank reads A in its own lanes (frag, TmemAllocMode::Duplicated), elements packed along columns.
    """
    path = PATHS[letter]
    cta, local = divmod(row, path.rows)
    column, bit = divmod(k * bits, 32)
    lanes = (lane_of_row(path, local) + LANES // path.banks * b for b in range(path.banks))
    return cta, [Cell(lane, column) for lane in lanes], bit


# --- scale factors: PTX 9.7.16.10.7; frag tmem_sf_frg

SUBPARTITION_LANES = 32


def scale_a_cells(row: int, factor: int, id_: int) -> tuple[list[Cell], int]:
    """Cells and byte of a CTA's row of scale A: the same in every 32 lanes."""
    byte = id_ + factor
    lane, column = row % SUBPARTITION_LANES, row // SUBPARTITION_LANES
    return [Cell(lane + start, column) for start in _subpartitions(range(4))], byte


def scale_b_cells(
    letter: str, n: int, column: int, factor: int, id_: int
) -> tuple[list[Cell], int]:
    """Cells and byte of a column of scale B, all of them in each CTA.

    Path B has two banks of columns and each reads the factors of its own in its 64 lanes
    (ScaleFactorDuplicated2by2); the others read the same in every 32 lanes (ScaleFactorDuplicated4by1).
    """
    if PATHS[letter].banks == 1:
        return scale_a_cells(column, factor, id_)
    bank, within = divmod(column, n // 2)
    lane, word = within % SUBPARTITION_LANES, within // SUBPARTITION_LANES
    return [
        Cell(lane + start, word) for start in _subpartitions((2 * bank, 2 * bank + 1))
    ], id_ + factor


def _subpartitions(which: Iterable[int]) -> list[int]:
    return [SUBPARTITION_LANES * i for i in which]
