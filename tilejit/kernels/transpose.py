"""Matrix transpose through shared memory: one read and one write of global memory.

A CTA moves one *tile* of the source. Threads load *blocks* of ``store_elems`` rows by ``load_elems``
columns, one vector per row, turn them in registers, and keep each block's columns in shared memory as
vectors along M. Threads then read these vectors back in the order of the result's rows. Both ways a
warp touches whole row segments in global memory and, by an XOR swizzle, every bank of shared memory
equally often.

Not here: permutations of more dimensions; what the tile shapes cost (``benchmarks/notes.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from tilejit import T, jit
from tilejit.kernels import operands, rows
from tilejit.kernels.operands import Facts, facts_of
from tilejit.lib import packed

BANKS_BYTES = 128
"""What shared memory moves at once, one word of each of its 32 banks."""


@dataclass(frozen=True)
class TilePlan:
    """See the module's text. Vectors, tile sides and threads are powers of two; a tile has a block for
    every thread, or several.

    ``order_rows``: consecutive CTAs take this many tile rows (all that are left, if fewer) before the
    next tile column. ``load`` and ``store``: the opcodes up to their vector suffix.
    """

    elem_bytes: int
    load_elems: int
    store_elems: int
    tile_rows: int
    tile_columns: int
    threads: int = 256
    min_blocks: int = 1
    order_rows: int = 4
    load: str = rows.LOAD
    store: str = rows.STORE

    @property
    def block_rows(self) -> int:
        """Blocks of a tile along M: also the vectors along M of one column in shared memory."""
        return self.tile_rows // self.store_elems

    @property
    def block_columns(self) -> int:
        return self.tile_columns // self.load_elems

    @property
    def loaded_blocks(self) -> int:
        """Blocks that each thread loads."""
        return self.block_rows * self.block_columns // self.threads

    @property
    def columns_at_once(self) -> int:
        """Columns of the tile that the CTA's threads store together, one vector each."""
        return self.threads // self.block_rows

    @property
    def stored_vectors(self) -> int:
        """Vectors that each thread stores."""
        return self.tile_columns // self.columns_at_once

    @property
    def bank_vectors(self) -> int:
        """Vectors side by side that together use every bank once."""
        return BANKS_BYTES // (self.store_elems * self.elem_bytes)

    def swizzle(self, block_column):
        """What is XORed into a vector's place in its column: lanes that write at once, of several
        block columns and, where these are few, of neighbouring block rows, then meet no bank twice."""
        step = self.bank_vectors // min(32, self.bank_vectors, self.block_columns)
        return block_column * step & min(self.bank_vectors, self.block_rows) - 1

    def grid(self, row_count, column_count):
        """CTAs: one for every tile."""
        return T.ceildiv(row_count, self.tile_rows) * T.ceildiv(column_count, self.tile_columns)


# --- the kernel


@jit
def word(elems: T.constexpr, plan: T.constexpr):
    """Container dtype that an access of ``elems`` elements moves one or more of."""
    return "uint16" if elems * plan.elem_bytes == 2 else "uint32"


@jit
def access(opcode: T.constexpr, elems: T.constexpr, plan: T.constexpr):
    """The ld or st of ``elems`` elements: ``opcode`` with ``v4.b32``, ``b32``, ``b16``…"""
    nbytes = elems * plan.elem_bytes
    return T.ptx[opcode + (f"v{nbytes // 4}.b32" if nbytes > 4 else f"b{8 * nbytes}")]


@jit
def move(opcode: T.constexpr, target, source, plan: T.constexpr):
    """One ld or st of vectors between registers and memory, whichever way ``opcode`` goes."""
    elems = target.shape[-1]
    container = word(elems, plan)
    T.cuda.tile.apply(access(opcode, elems, plan), target.view(container), source.view(container))


@jit
def tile_origin(row_count, column_count, plan: T.constexpr):
    """(first row, first column) of this CTA's tile."""
    cta = T.cast(T.cuda.block_idx("x"), "uint32")
    tile_rows = T.cast(T.ceildiv(row_count, plan.tile_rows), "uint32")
    tile_columns = T.cast(T.ceildiv(column_count, plan.tile_columns), "uint32")
    group_tiles = plan.order_rows * tile_columns
    group = cta // group_tiles
    first = group * plan.order_rows
    height = min(tile_rows - first, T.uint32(plan.order_rows))
    inside = cta - group * group_tiles
    tile_row, tile_column = first + inside % height, inside // height
    return (
        T.cast(tile_row, "int64") * plan.tile_rows,
        T.cast(tile_column, "int64") * plan.tile_columns,
    )


@jit
def loaded_block(b: T.constexpr, plan: T.constexpr):
    """(block row, block column) in the tile of the thread's block ``b``: lanes side by side along N."""
    block = T.cuda.thread_idx("x") + b * plan.threads
    return block // plan.block_columns, block % plan.block_columns


@jit
def stored_column(k: T.constexpr, plan: T.constexpr):
    """(block row, column) in the tile of the thread's stored vector ``k``: lanes side by side along M."""
    thread = T.cuda.thread_idx("x")
    return thread % plan.block_rows, thread // plan.block_rows + k * plan.columns_at_once


@jit
def swizzled(staged, block_row, block_column, plan: T.constexpr):
    """The columns of one block column in shared memory, at the place of ``block_row``'s vectors."""
    return staged.sub[:, block_row ^ plan.swizzle(block_column), :]


@jit
def turn(block, columns):
    """columns[j, i] = block[i, j]: pairs of 16-bit elements are packed, words only change names."""
    width, height = columns.shape
    source = block.permute(1, 0)
    if columns.dtype.bits == 16 and height > 1:
        pairs = columns.view("uint32").view(width, height // 2, 1)
        T.cuda.tile.apply(T.ptx["mov.b32"], pairs, source.view(width, height // 2, 2))
    else:
        opcode = f"mov.b{columns.dtype.bits}"
        T.cuda.tile.apply(
            T.ptx[opcode], columns.view(width, height, 1), source.view(width, height, 1)
        )


@jit
def load_blocks(blocks, X, origin, sizes, pitch, plan: T.constexpr):
    """Issue the loads of all blocks of this thread back to back."""
    height, width = plan.store_elems, plan.load_elems
    for b in T.unroll(plan.loaded_blocks):
        block_row, block_column = loaded_block(b, plan)
        row, column = origin[0] + block_row * height, origin[1] + block_column * width
        if row < sizes[0] and column < sizes[1]:
            first = row * pitch + column // width
            for i in T.unroll(height):
                move(
                    plan.load, blocks.sub[b, i, :], packed.vector(X, first + i * pitch, width), plan
                )


@jit
def stage_blocks(staged, blocks, origin, sizes, plan: T.constexpr):
    """Turn the blocks and put their columns into shared memory."""
    height, width = plan.store_elems, plan.load_elems
    columns = T.alloc_local((width, height), blocks.dtype, layout="default")
    for b in T.unroll(plan.loaded_blocks):
        block_row, block_column = loaded_block(b, plan)
        row, column = origin[0] + block_row * height, origin[1] + block_column * width
        if row < sizes[0] and column < sizes[1]:
            turn(blocks.sub[b, :, :], columns)
            first = block_column * width
            places = swizzled(staged, block_row, block_column, plan).sub[first : first + width, :]
            move("st.shared.", places, columns, plan)


@jit
def store_columns(Y, staged, origin, sizes, pitch, plan: T.constexpr):
    """Read this thread's vectors from shared memory, then store them."""
    height, width = plan.store_elems, plan.load_elems
    vectors = T.alloc_local((plan.stored_vectors, height), Y.dtype, layout="default")
    for k in T.unroll(plan.stored_vectors):
        block_row, column = stored_column(k, plan)
        if origin[0] + block_row * height < sizes[0] and origin[1] + column < sizes[1]:
            place = swizzled(staged, block_row, column // width, plan).sub[column, :]
            move("ld.shared.", vectors.sub[k, :], place, plan)
    for k in T.unroll(plan.stored_vectors):
        block_row, column = stored_column(k, plan)
        row, column = origin[0] + block_row * height, origin[1] + column
        if row < sizes[0] and column < sizes[1]:
            target = packed.vector(Y, column * pitch + row // height, height)
            move(plan.store, target, vectors.sub[k, :], plan)


@jit
def transpose_tiles(
    X: T.Tensor((T.dynamic("SOURCE_ELEMS"),)),
    Y: T.Tensor((T.dynamic("RESULT_ELEMS"),)),
    row_count: T.int64,
    column_count: T.int64,
    source_pitch: T.int64,
    result_pitch: T.int64,
    plan: T.constexpr,
):
    """Y[n, m] = X[m, n] on the flat storage of both; a pitch counts vectors from row to row.

    The sizes are multiples of the vectors, so that a block is there whole or not at all.
    """
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=plan.grid(row_count, column_count),
            block=plan.threads,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    height, width = plan.store_elems, plan.load_elems
    staged = T.alloc_shared(
        (plan.tile_columns, plan.block_rows, height), X.dtype, layout="default", align=16
    )
    blocks = T.alloc_local((plan.loaded_blocks, height, width), X.dtype, layout="default")
    origin = tile_origin(row_count, column_count, plan)
    sizes = (row_count, column_count)
    load_blocks(blocks, X, origin, sizes, source_pitch, plan)
    stage_blocks(staged, blocks, origin, sizes, plan)
    T.cuda.cta_sync()
    store_columns(Y, staged, origin, sizes, result_pitch, plan)


# --- the host side


_WHOLE = {
    2: TilePlan(2, 8, 8, 128, 128, min_blocks=4, order_rows=128),
    4: TilePlan(4, 4, 4, 64, 64, min_blocks=6, order_rows=256),
}
"""By bytes of an element: the plans of 16-byte vectors both ways, 256 bytes of each row at a time."""


@cache
def plan_tiles(elem_bytes: int, load_elems: int, store_elems: int) -> TilePlan:
    """The plan for vectors of ``load_elems`` along the source's rows and ``store_elems`` along the
    result's."""
    if load_elems == store_elems == 16 // elem_bytes:
        return _WHOLE[elem_bytes]
    # Short vectors want many warps, each with few of them in registers.
    side = 128 if load_elems * store_elems >= 32 else 64
    threads = min(512, side * side // (load_elems * store_elems))
    return TilePlan(
        elem_bytes, load_elems, store_elems, side, side, threads, min_blocks=2, order_rows=256
    )


_DTYPES = frozenset(
    f"torch.{name}"
    for name in ("float16", "bfloat16", "int16", "uint16", "float32", "int32", "uint32")
)


def _vector_elems(matrix: Facts) -> int:
    """The longest vector, up to 16 bytes, of which the address, the row and the pitch are multiples."""
    elem_bytes = matrix.dtype.itemsize
    row_count, row_elems = matrix.shape
    together = 16 | matrix.address | row_elems * elem_bytes
    if row_count > 1:
        together |= matrix.strides[0] * elem_bytes
    return (together & -together) // elem_bytes


def _pitch_elems(matrix: Facts) -> int:
    row_count, row_elems = matrix.shape
    return matrix.strides[0] if row_count > 1 else row_elems


def _check_source(source: Facts) -> None:
    """``ValueError`` for what is no matrix that the kernel can read."""
    if len(source.shape) != 2:
        raise ValueError(f"expected a matrix (M, N), got shape {tuple(source.shape)}")
    if str(source.dtype) not in _DTYPES:
        raise ValueError(f"expected elements of 16 or 32 bits, got {source.dtype}")
    _check_rows("the input", source)


def _check_result(result: Facts, source: Facts) -> None:
    """``ValueError`` for what cannot hold the transpose of ``source``."""
    shape = (source.shape[1], source.shape[0])
    if result.dtype != source.dtype or result.shape != shape:
        raise ValueError(
            f"out is {result.dtype} of shape {tuple(result.shape)}, expected {source.dtype} of "
            f"shape {shape}"
        )
    _check_rows("out", result)
    if shape[0] > 1 and result.strides[0] < shape[1]:
        raise ValueError(f"rows of out overlap: {shape[1]} elements, {result.strides[0]} apart")
    operands.same_device(x=source, out=result)


def _check_rows(what: str, matrix: Facts) -> None:
    if matrix.shape[1] > 1 and matrix.strides[1] != 1:
        raise ValueError(
            f"the elements of a row of {what} lie {matrix.strides[1]} apart; call .contiguous()"
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with the same facts have in common. ``spans_*``: from the first to the last element of
    the source and of the result; ``pitches``: of both, in the plan's vectors."""

    spans_elems: tuple[int, int]
    spans_bytes: tuple[int, int]
    pitches: tuple[int, int]
    plan: TilePlan


@lru_cache(operands.REMEMBERED)
def _prepared(source: Facts, result: Facts | None) -> _Call | None:
    """The checked call; None for an empty matrix. Without a ``result``, for a new one."""
    _check_source(source)
    row_count, column_count = source.shape
    if result is None:
        shape, strides = (column_count, row_count), (row_count, 1)
        result = source._replace(shape=shape, strides=strides, address=0)
    _check_result(result, source)
    if row_count == 0 or column_count == 0:
        return None
    plan = plan_tiles(source.dtype.itemsize, _vector_elems(source), _vector_elems(result))
    return _Call(
        (source.span_elems, result.span_elems),
        (source.span_bytes, result.span_bytes),
        (_pitch_elems(source) // plan.load_elems, _pitch_elems(result) // plan.store_elems),
        plan,
    )


def transpose(x, out=None):
    """The transpose (N, M) of a matrix (M, N) of 16- or 32-bit elements, as a dense matrix.

    The elements of a row lie side by side, rows may be further apart. ``out`` may not share memory
    with ``x``. Rows that are multiples of 16 bytes, in ``x`` and in ``out``, go fastest. Returns ``out``.
    Compiled for the dtype, the vectors and the alignment of the addresses, not for any size or pitch.
    """
    import torch

    call = _prepared(facts_of("x", x), None if out is None else facts_of("out", out))
    row_count, column_count = x.shape
    if out is None:
        out = torch.empty((column_count, row_count), dtype=x.dtype, device=x.device)
    elif call is not None:
        operands.result_apart(("the input",), (x,), out, call.spans_bytes)
    if call is not None:
        source, result = call.spans_elems
        transpose_tiles(
            x.as_strided((source,), (1,)), out.as_strided((result,), (1,)), row_count, column_count,
            *call.pitches, call.plan,
        )  # fmt: skip
    return out
