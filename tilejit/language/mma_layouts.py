"""Layouts that matrix instructions ask for: fragments in registers, swizzled tiles in shared memory.

Each function computes a layout from numbers and nothing else: it chooses no instruction and moves no
data, and gives the same value inside a kernel (at compile time) and outside. Registers per lane come
from the instruction table, so a layout fits every form that ``T.ptx`` knows.

Source: contract "warp matrix multiply-accumulate", "matrix loads and stores"; PTX ISA, fragments of
mma.m16n8k* and wgmma.m64nNk*, canonical layouts of matrix descriptors. How the layouts fit together:
docs/layouts.md. Not here: what the instructions require (families), tensor memory
(``tensor_memory_layouts``), other layouts (``T.layout``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from tilejit.dtypes import DType
from tilejit.dtypes import dtype as as_dtype
from tilejit.layout import ComposeLayout, Iter, Layout, LayoutError, TileLayout, row_major
from tilejit.ptx.instruction import Instruction, PtxPrefix, as_instruction

Extents = int | Sequence[int]
Operand = Literal["A", "B", "C", "D"]
Major = Literal["k", "mn"]
WarpAxis = Literal["warpid", "wid_in_wg"]

LANES = 32
MATRIX_ROWS = 8
"""Rows of the 8×8 matrices that all fragments are made of; a row is spread over four lanes."""
CHUNK_BYTES = 16
"""One row of such a matrix of 16-bit elements; what a swizzle moves as a whole."""
MAX_WARPS = {"warpid": 32, "wid_in_wg": 4}
OPERANDS = ("D", "A", "B", "C")
"""In the order of the instruction's operands."""
MAJORS = ("k", "mn")


# --- registers


def mma_fragment_layout(
    instruction: Instruction | PtxPrefix | str,
    operand: Operand,
    repeats: Extents = (1, 1),
    *,
    warps: Extents = (),
    warp_axis: WarpAxis = "warpid",
) -> TileLayout:
    """Registers of an ``mma.sync`` operand, for the shape ``(*warps, *repeats, *atom)``.

    ``instruction``: the opcode, or a shape such as ``"m16n8k16"`` alone for 16-bit inputs and float32
    accumulators. Atoms: D and C ``(m, n)`` (``(m, n/2)`` words of two 16-bit accumulators), A
    ``(m, words)``, B ``(n, words)`` with ``words`` the b32 (or float64) registers along k: k/2 for
    16-bit inputs, k/4 for 8-bit ones, k for tf32 and float64. ``repeats`` are
    ``(M, N)``, ``(M, K)`` or ``(N, K)``, batch axes in front. A lane's registers follow each other,
    repeat by repeat. ``warps``: axes over the warps of a CTA (of a warpgroup with
    ``warp_axis="wid_in_wg"``), row-major; at a wider scope than a warp the operand leads with one.
    """
    m, n, registers = _operand_registers(instruction, operand)
    rows = n if operand == "B" else m
    columns = registers * LANES // rows
    halves = rows // MATRIX_ROWS
    pairs = columns // 4
    if operand in ("A", "B"):
        atom = (
            Iter(halves, 1),
            Iter(MATRIX_ROWS, 4, "laneid"),
            Iter(pairs, halves),
            Iter(4, 1, "laneid"),
        )
    else:
        atom = (
            Iter(halves, pairs),
            Iter(MATRIX_ROWS, 4, "laneid"),
            Iter(4, 1, "laneid"),
            Iter(pairs, 1),
        )
    return over_warps_and_repeats(atom, registers, repeats, warps, warp_axis)


def ldmatrix_layout(
    count: int,
    repeats: Extents = (),
    *,
    warps: Extents = (),
    warp_axis: WarpAxis = "warpid",
) -> TileLayout:
    """Registers of ``ldmatrix`` and ``stmatrix`` .x``count``, for ``(*warps, *repeats, count, 8, 4)``.

    b32 words: word (matrix, row, word) is register ``matrix`` of lane 4·row + word. The registers of
    one repeat follow each other in matrix order.
    """
    if count not in (1, 2, 4):
        raise LayoutError(f"ldmatrix and stmatrix move 1, 2 or 4 matrices, not {count!r}")
    atom = (Iter(count, 1), Iter(MATRIX_ROWS, 4, "laneid"), Iter(4, 1, "laneid"))
    return over_warps_and_repeats(atom, count, repeats, warps, warp_axis)


def wgmma_fragment_layout(
    n: int, repeats: Extents = (1, 1), *, warpgroups: Extents = ()
) -> TileLayout:
    """Registers of a ``wgmma`` accumulator in float32 or int32, for ``(*warpgroups, *repeats, 64, n)``.

    A thread's registers follow each other, repeat by repeat, as (n/8, 2 rows 8 apart, 2 adjacent
    columns). ``repeats`` are (M, N), batch axes in front. ``warpgroups``: the axis that scope="cta"
    leads with, from the CTA's first warpgroup on; none for scope="warpgroup".
    """
    if isinstance(n, bool) or not isinstance(n, int) or n % 8 or not 8 <= n <= 256:
        raise LayoutError(f"wgmma has 8 to 256 columns in steps of 8, got {n!r}")
    return _of_warpgroup(
        (Iter(2, 2), Iter(MATRIX_ROWS, 4, "laneid"), Iter(n // 8, 4), Iter(4, 1, "laneid"), Iter(2, 1)),
        n // 2, repeats, warpgroups,
    )  # fmt: skip


def wgmma_words_layout(
    words: int = 8, repeats: Extents = (1, 1), *, warpgroups: Extents = ()
) -> TileLayout:
    """Registers of 32-bit words in rows of a ``wgmma`` operand, for ``(*warpgroups, *repeats, 64, words)``.

    A in registers has 8 words in a row whatever its type (``repeats`` (M, K)); an f16 accumulator of
    n columns has n/2 (``repeats`` (M, N)). A thread's registers follow each other, as (words/4, 2 rows 8
    apart).
    """
    if isinstance(words, bool) or not isinstance(words, int) or words % 4 or not 4 <= words <= 128:
        raise LayoutError(f"a row of wgmma has 4 to 128 words in steps of 4, got {words!r}")
    return _of_warpgroup(
        (Iter(2, 1), Iter(MATRIX_ROWS, 4, "laneid"), Iter(words // 4, 2), Iter(4, 1, "laneid")),
        words // 2, repeats, warpgroups,
    )  # fmt: skip


def _of_warpgroup(
    atom: tuple[Iter, ...], registers: int, repeats: Extents, warpgroups: Extents
) -> TileLayout:
    """``atom`` of 16 rows in each of a warpgroup's four warps."""
    owners = row_major(_extents("warpgroups", warpgroups))
    if owners.size > MAX_WARPS["warpid"] // 4:
        raise LayoutError(f"{owners.size} warpgroups, expected at most {MAX_WARPS['warpid'] // 4}")
    outer = row_major(_extents("repeats", repeats))
    iters = (
        *(Iter(i.extent, i.stride, "wgid") for i in owners.shard),
        *(Iter(i.extent, i.stride * registers) for i in outer.shard),
        Iter(4, 1, "wid_in_wg"),
        *atom,
    )
    return TileLayout(tuple(i for i in iters if i.extent > 1))


def _operand_registers(
    instruction: Instruction | PtxPrefix | str, operand: str
) -> tuple[int, int, int]:
    """m, n, and the registers of a lane that ``operand`` takes."""
    if operand not in OPERANDS:
        raise LayoutError(f"an operand of mma is 'A', 'B', 'C' or 'D', got {operand!r}")
    opcode = _opcode(instruction)
    shape = re.search(r"\.m(\d+)n(\d+)k\d+\.", opcode.spelling)
    if opcode.family != "mma_sync" or shape is None:
        raise LayoutError(f"{opcode} is no mma.sync instruction")
    return int(shape[1]), int(shape[2]), opcode.forms[0].operands[OPERANDS.index(operand)].lanes


def _opcode(instruction: Instruction | PtxPrefix | str) -> Instruction:
    if not isinstance(instruction, str):
        return as_instruction(instruction)
    if not re.fullmatch(r"m\d+n\d+k\d+", instruction):
        return Instruction(instruction)
    if instruction not in ("m16n8k8", "m16n8k16"):
        raise LayoutError(
            f"{instruction!r} alone names no fragment: 16-bit inputs with float32 accumulators come "
            'as "m16n8k8" and "m16n8k16"; for other types give the whole opcode, '
            'such as "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"'
        )
    return Instruction(f"mma.sync.aligned.{instruction}.row.col.f32.f16.f16.f32")


def over_warps_and_repeats(
    atom: tuple[Iter, ...], registers: int, repeats: Extents, warps: Extents, warp_axis: WarpAxis
) -> TileLayout:
    """``atom`` for every warp and repeat, each repeat in ``registers`` registers of its own."""
    if warp_axis not in MAX_WARPS:
        raise LayoutError(f"warp_axis is 'warpid' or 'wid_in_wg', got {warp_axis!r}")
    owners = row_major(_extents("warps", warps))
    if owners.size > MAX_WARPS[warp_axis]:
        raise LayoutError(
            f"{owners.size} warps along {warp_axis}, expected at most {MAX_WARPS[warp_axis]}"
        )
    outer = row_major(_extents("repeats", repeats))
    iters = (
        *(Iter(i.extent, i.stride, warp_axis) for i in owners.shard),
        *(Iter(i.extent, i.stride * registers) for i in outer.shard),
        *atom,
    )
    return TileLayout(tuple(i for i in iters if i.extent > 1))


def _extents(name: str, value: Extents) -> tuple[int, ...]:
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if any(not isinstance(e, int) or isinstance(e, bool) or e < 1 for e in found):
        raise LayoutError(f"{name} are positive integers, got {value!r}")
    return found


# --- shared memory


def mma_shared_layout(
    shape: Sequence[int], dtype: DType | str, swizzle: int | None = None
) -> Layout:
    """A row-major shared tile ``(*stages, rows, columns)`` whose 16-byte chunks are swizzled.

    8 rows of one column of chunks (ldmatrix, stmatrix) and 8 consecutive chunks (cp.async,
    vectors of 16 bytes) each lie in 32 different banks. ``swizzle``: bytes that one
    row's chunks are permuted within; None takes what makes that so: 128 where the bytes of a row are a
    multiple of 128, else 64, 32 or (16 bytes times an odd number) 0, none. A width of your own, 0, 32, 64 or
    128, can leave conflicts: ask ``k.check(...).banks``. Rows of 32, 64 and 128 bytes with the swizzle of
    that width are the tensor map's patterns.
    """
    extents = _extents("extents of a shared tile", shape)
    chunks, per_element = _row_chunks(extents, dtype)
    width = (
        chunks & -chunks
    ).bit_length() - 1  # of a row: its largest power of two, as a logarithm
    length = min(width, 3) if swizzle is None else _swizzle_length(swizzle, chunks)
    if length == 0:
        return row_major(extents)
    # The bits that count 128-byte lines, or rows where those are longer: 8 rows have 8 of them.
    return ComposeLayout(per_element, length, max(3, width), row_major(extents))


def wgmma_shared_layout(
    shape: Sequence[int], dtype: DType | str, swizzle: int | None = None
) -> Layout:
    """A shared tile ``(*stages, rows, columns)`` that matrix descriptors can walk.

    Columns are cut into panels of ``swizzle`` bytes (of 16 for 0, none), which lie one after another,
    each with its rows one after another: what tensor-map copies of such boxes write. Rows along K are
    K-major, rows along M or N MN-major (16-bit elements). None takes the widest of 128, 64, 32 and 0 that
    divides a row.
    """
    extents = _extents("extents of a shared tile", shape)
    chunks, per_element = _row_chunks(extents, dtype)
    return _panels(extents, per_element, _panel_length(swizzle, chunks), 3)


def tcgen05_shared_layout(
    shape: Sequence[int], dtype: DType | str, swizzle: int | None = None, *, major: Major = "k"
) -> Layout:
    """A shared tile ``(*stages, rows, columns)`` that the matrix descriptors of ``tcgen05`` can walk.

    As ``wgmma_shared_layout``: panels of ``swizzle`` bytes (of 16 for 0, none), rows one after another in
    each; None takes the widest of 128, 64, 32 and 0 that divides a row. ``major``: what the columns run
    along. Four-bit elements lie two to a byte and are K-major; those of 6 bits, and of 4 bits in kinds
    f8f6f4 and mxf8f6f4, lie in uint8 containers. 32-bit elements that are MN-major have panels of 128
    bytes in which 32 bytes at a time are permuted within 4 rows, and no other pattern.
    """
    if major not in MAJORS:
        raise LayoutError(f"major is 'k' or 'mn', got {major!r}")
    bits = as_dtype(dtype).bits
    if bits not in (4, 8, 16, 32):
        raise LayoutError(
            f"operands of tcgen05 have elements of 4, 8, 16 or 32 bits, got {dtype} with {bits}"
            + (": they lie in containers, uint8" if bits == 6 else "")
        )
    if major == "mn" and bits == 4:
        raise LayoutError(f"{dtype} is K-major only: 8, 16 and 32 bits come MN-major")
    extents = _extents("extents of a shared tile", shape)
    chunks, per_element = _row_chunks(extents, dtype)
    if major == "k" or bits != 32:
        return _panels(extents, per_element, _panel_length(swizzle, chunks), 3)
    if swizzle not in (None, 128):
        raise LayoutError(
            f"MN-major {dtype} is swizzled within 128 bytes, 32 bytes at a time, got {swizzle!r}"
        )
    return _panels(extents, per_element + 1, _swizzle_length(128, chunks) - 1, 2)


def _panel_length(swizzle: int | None, chunks: int) -> int:
    """Address bits that the swizzle changes, the widest that divides a row for None."""
    if swizzle is None:
        return min((chunks & -chunks).bit_length() - 1, 3)
    return _swizzle_length(swizzle, chunks)


def _panels(extents: tuple[int, ...], per_element: int, length: int, atom: int) -> Layout:
    """Panels whose row is 2^``length`` units of 2^``per_element`` elements, swizzled by the bits from
    ``atom`` on of the unit's number."""
    *stages, rows, columns = extents
    panel = 1 << length + per_element
    outer = row_major(tuple(stages))
    iters = (
        *(Iter(i.extent, i.stride * rows * columns) for i in (outer.shard if stages else ())),
        Iter(rows, panel),
        Iter(columns // panel, rows * panel),
        Iter(panel, 1),
    )
    tile = TileLayout(tuple(i for i in iters if i.extent > 1))
    return ComposeLayout(per_element, length, atom, tile) if length else tile


def _row_chunks(shape: tuple[int, ...], element: DType | str) -> tuple[int, int]:
    """16-byte chunks of a row, and the logarithm of a chunk's elements."""
    bits = as_dtype(element).bits
    per_chunk, left = divmod(CHUNK_BYTES * 8, bits)
    if left:
        raise LayoutError(f"{element} has {bits} bits, which do not fill {CHUNK_BYTES} bytes")
    if len(shape) < 2:
        raise LayoutError(f"a shared tile has rows and columns, got the shape {shape}")
    rows, columns = shape[-2:]
    if columns % per_chunk:
        raise LayoutError(
            f"a row of {columns} {element} has {columns * bits / 8:g} bytes, expected a multiple of "
            f"{CHUNK_BYTES} ({per_chunk} {element}): no chunk may straddle rows"
        )
    if rows % MATRIX_ROWS:
        raise LayoutError(
            f"the tile has {rows} rows, expected a multiple of {MATRIX_ROWS}: the swizzle repeats "
            f"every {MATRIX_ROWS} rows, as the matrices do"
        )
    return columns // per_chunk, per_chunk.bit_length() - 1


def _swizzle_length(swizzle: int, chunks: int) -> int:
    """Address bits that the swizzle of so many bytes changes."""
    lengths = {0: 0, 32: 1, 64: 2, 128: 3}
    if isinstance(swizzle, bool) or swizzle not in lengths:
        raise LayoutError(f"a swizzle is 0, 32, 64 or 128 bytes wide, got {swizzle!r}")
    if swizzle and chunks * CHUNK_BYTES % swizzle:
        raise LayoutError(
            f"a row has {chunks * CHUNK_BYTES} bytes, expected a multiple of {swizzle} for a swizzle "
            f"of {swizzle} bytes: chunks stay in their row"
        )
    return lengths[swizzle]
