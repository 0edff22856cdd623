"""Product of matrices of 8-bit floats with scales, on Hopper's tensor cores: TMA, wgmma, persistent.

The roles are those of ``kernels.matmul``: one thread keeps the tensor memory accelerator filling a ring
of slices of A and B along K; ``consumers`` warpgroups share each tile of C, which leaves through shared
memory by TMA stores. Both operands' rows run along K: wgmma takes 8-bit elements in no other order.

Scales, float32, come in two forms. *Per row*: one of each row of A and of each column of B, which the
finished sums are multiplied with. *Per slice*: one of 128 elements of a row of A, and of a 128 x 128
block (or 128 elements of a column) of B; the sums of each slice are multiplied and *promoted*, that is
added to a second set of registers in float32. A slice's sums come in *units* of 64 rows and
``unit_n`` columns, one at a time per warpgroup: while one promotes, another multiplies.

Numerics: Hopper's tensor cores keep about 14 bits of a running sum of 8-bit products. Promotion every
128 elements of K bounds what that loses.

Not here: 16-bit elements (``kernels.matmul``); quantisation; GPUs without wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from tilejit import T, jit
from tilejit.kernels import devices, operands, products
from tilejit.kernels.operands import Facts, facts_of
from tilejit.kernels.products import View, passed
from tilejit.lib import epilogue, ring, roles, schedulers

TILE_K = 128
"""Elements of a slice along K: rows of 128 bytes, the widest swizzle. Scales per slice come as often."""
K_STEP = 32
"""Of one wgmma of 8-bit elements."""
PANEL_BYTES = 128
"""Of a row of C that one TMA store writes."""
SCALED_COLUMNS = 128
"""Of B in a block with one scale."""

_COUNTS = (
    "tile_m", "tile_n", "stages", "consumers", "group_m", "slabs", "slabs_at_once", "sms",
)  # fmt: skip
"""Fields of a plan of which there is at least one."""


@dataclass(frozen=True)
class Fp8Plan:
    """See the module's text. ``tile_m`` x ``tile_n`` elements of C per tile. ``in_flight``: wgmma groups
    that may be pending when the next slice's begin. ``group_m``: tile rows that follow each other.
    ``slabs_at_once``: 128-byte-wide parts of C between two barriers of the epilogue; ``slabs``: that a
    warpgroup's buffer holds. ``unit_n``: columns that are promoted at a time; 0: sums are not promoted.
    ``b_columns``: of B that share a scale per slice; 0: scales per row."""

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 3
    consumers: int = 2
    in_flight: int = 0
    group_m: int = 16
    snake: bool = False
    slabs: int = 4
    slabs_at_once: int = 4
    unit_n: int = 0
    b_columns: int = 0
    sms: int = 132

    def __post_init__(self) -> None:
        products.check_plan(self, _COUNTS)
        operands.check_flag("snake", self.snake)
        if (
            type(self.unit_n) is not int
            or self.unit_n < 0
            or self.unit_n % 8
            or (self.unit_n and self.tile_n % self.unit_n)
        ):
            raise ValueError(
                f"units of {self.unit_n!r} columns, expected a multiple of 8 that divides tile_n = {self.tile_n}"
            )
        if type(self.b_columns) is not int or self.b_columns not in (0, 1, SCALED_COLUMNS):
            raise ValueError(f"b_columns is {self.b_columns!r}, expected 0, 1 or {SCALED_COLUMNS}")
        if self.b_columns and not self.unit_n:
            raise ValueError(
                "unit_n is 0, expected columns: sums with scales per slice are promoted"
            )
        if self.unit_n and self.in_flight:
            raise ValueError("1 wgmma group in flight, expected 0: units wait for each other")

    @property
    def threads(self) -> int:
        return roles.threads(self.consumers)

    @property
    def own_rows(self) -> int:
        """Rows of the tile that a warpgroup computes."""
        return self.tile_m // self.consumers

    @property
    def blocks_m(self) -> int:
        """64-row parts of these."""
        return self.own_rows // 64

    @property
    def part_columns(self) -> int:
        """Columns of a unit that lie in one of B's scaled blocks wherever the tile begins."""
        return gcd(self.tile_n, self.unit_n, self.b_columns)

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * TILE_K


# --- the producer


@jit
def load(stage, source, first, k, mbar):
    """One stage of an operand: its rows from ``first`` on, along K from ``k`` on."""
    opcode = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    T.cuda.tile.apply(
        T.ptx[opcode], stage, source, box=stage.shape, coords=(first, k), swizzle=3, l2_promotion=3,
        mbar=mbar,
    )  # fmt: skip


# --- the consumers: sums


@jit
def ptx_type(dtype: T.constexpr):
    """The word for an 8-bit float in an opcode."""
    return "e4m3" if dtype == T.float8_e4m3fn else "e5m2"


@jit
def multiply(sums, a, b, accumulate, a_dtype: T.constexpr, b_dtype: T.constexpr):
    """sums (blocks, columns / 8, 2, 2) (+)= a @ b of one slice, as one wgmma group. ``a``: the
    warpgroup's rows (blocks, 64, K), ``b``: (columns, K)."""
    blocks, _, _ = a.shape
    n, _ = b.shape
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.{ptx_type(a_dtype)}.{ptx_type(b_dtype)}"],
        sums.view(blocks, 1, 64, n, layout=T.cuda.wgmma_fragment_layout(n, (blocks, 1))),
        a.view(blocks, 64, TILE_K // K_STEP, K_STEP).permute(0, 2, 1, 3),
        b.view(1, n, TILE_K // K_STEP, K_STEP).permute(0, 2, 1, 3),
        instruction_shape=(64, n, 32), accum=accumulate, scope="warpgroup",
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()


@jit
def of_rows(factors, eighths: T.constexpr):
    """One factor for each of a thread's two rows, as the (eighths, 2, 2) sums that take it."""
    return factors.view(eighths, 2, 2, layout="(eighths, 2, 2):(0, 1, 0)").view(eighths * 4, 1)


@jit
def of_columns(factors):
    """One factor for each of a thread's columns (eighths, 2), as the sums that take it."""
    eighths, _ = factors.shape
    return factors.view(eighths, 2, 2, layout="(eighths, 2, 2):(2, 0, 1)").view(eighths * 4, 1)


@jit
def thread_row(i):
    """Of 64, that a thread's sums [:, i, :] belong to."""
    return T.cuda.warp_in_warpgroup() * 16 + T.cuda.lane_id() // 4 + i * 8


@jit
def add_unit(total, sums, rows, columns):
    """total (eighths, 2, 2) += sums times a factor of each row (2,) and of each ``columns`` (parts,) of
    equal width, or of each column (eighths, 2)."""
    eighths, _, _ = sums.shape
    if len(columns.shape) == 2:
        product, addend = sums.view(eighths * 4, 1), total.view(eighths * 4, 1)
        T.cuda.tile.apply(T.ptx["mul.rn.f32"], product, product, of_columns(columns))
        T.cuda.tile.apply(T.ptx["fma.rn.f32"], addend, product, of_rows(rows, eighths), addend)
    else:
        (parts,) = columns.shape
        width = eighths // parts
        both = T.alloc_local((2,), "float32", layout="default")
        for part in T.unroll(parts):
            for i in T.unroll(2):
                both[i] = rows[i] * columns[part]
            product = sums.sub[part * width : (part + 1) * width, :, :].view(width * 4, 1)
            addend = total.sub[part * width : (part + 1) * width, :, :].view(width * 4, 1)
            T.cuda.tile.apply(T.ptx["fma.rn.f32"], addend, product, of_rows(both, width), addend)


@jit
def read_scales(a_scale, b_scale, first_row, first_column, k, plan: T.constexpr):
    """(of a thread's two rows, of a unit's columns) at slice ``k``, as ``add_unit`` takes them; the
    last for what is beyond."""
    rows = T.alloc_local((2,), "float32", layout="default")
    for i in T.unroll(2):
        rows[i] = a_scale[k, min(first_row + thread_row(i), a_scale.shape[1] - 1)]
    last = b_scale.shape[1] - 1
    if plan.b_columns == 1:
        columns = T.alloc_local((plan.unit_n // 8, 2), "float32", layout="default")
        for j in T.unroll(plan.unit_n // 8):
            for i in T.unroll(2):
                column = first_column + j * 8 + T.cuda.lane_id() % 4 * 2 + i
                if b_scale.shape[1] % plan.tile_n != 0:
                    column = min(column, last)
                columns[j, i] = b_scale[k, column]
    else:
        columns = T.alloc_local((plan.unit_n // plan.part_columns,), "float32", layout="default")
        for part in T.unroll(plan.unit_n // plan.part_columns):
            block = T.truncdiv(first_column + part * plan.part_columns, plan.b_columns)
            columns[part] = b_scale[k, min(block, last)]
    return rows, columns


@jit
def add_slice(
    total, sums, a, b, a_scale, b_scale, first_row, first_column, k, empty, stage, plan: T.constexpr
):
    """total += a @ b of slice ``k``, unit by unit by way of ``sums``, with its scales where it has some.
    Releases the stage."""
    for block in T.unroll(plan.blocks_m):
        for begin in T.unroll(0, plan.tile_n, plan.unit_n):
            part = b.sub[begin : begin + plan.unit_n, :]
            multiply(sums, a.sub[block : block + 1, :, :], part, False, a.dtype, b.dtype)
            # Read while the tensor cores work: neither delays the other.
            if plan.b_columns:
                rows, columns = read_scales(
                    a_scale, b_scale, first_row + block * 64, first_column + begin, k, plan
                )
            T.ptx["wgmma.wait_group.sync.aligned"](0)
            if block == plan.blocks_m - 1 and begin + plan.unit_n == plan.tile_n:
                if T.cuda.thread_in_warpgroup() == 0:
                    ring.release(empty, stage)
            addend = total.sub[block, begin // 8 : (begin + plan.unit_n) // 8, :, :]
            if plan.b_columns:
                add_unit(addend, sums.sub[0], rows, columns)
            else:
                flat = addend.view(addend.size, 1)
                T.cuda.tile.apply(T.ptx["add.rn.f32"], flat, flat, sums.view(sums.size, 1))


# --- the consumers: results


@jit
def fetch_scales(kept, source, first):
    """Begin to copy scales ``first`` on of a vector to shared memory; the last for those beyond. By a
    warpgroup."""
    (count,) = kept.shape
    thread = T.cuda.thread_in_warpgroup()
    for i in T.unroll(T.ceildiv(count, 128)):
        place = i * 128 + thread
        if place < count:
            found = min(first + place, source.shape[0] - 1)
            T.assume(found >= 0)
            T.cuda.tile.apply(
                T.ptx["cp.async.ca.shared.global"],
                kept.sub[place : place + 1], source.sub[found : found + 1], chunk_bytes=4,
            )  # fmt: skip


@jit
def scale_slab(sums, row_scales, column_scales, block, first):
    """A thread's sums (eighths, 2, 2) of a ``block`` of 64 rows, from column ``first`` on, times the scales
    of the warpgroup's rows and of the tile's columns."""
    eighths, _, _ = sums.shape
    row_scales = row_scales.sub[block * 64 : block * 64 + 64]
    column_scales = column_scales.sub[first : first + eighths * 8]
    columns = T.alloc_local((eighths, 2), "float32", layout="default")
    T.cuda.tile.apply(
        T.ptx["ld.shared.v2.b32"], columns,
        column_scales.view(eighths, 4, 2).sub[:, T.cuda.lane_id() % 4, :],
    )  # fmt: skip
    rows = T.alloc_local((2,), "float32", layout="default")
    for i in T.unroll(2):
        rows[i] = row_scales[thread_row(i)]
    flat = sums.view(sums.size, 1)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], flat, flat, of_columns(columns))
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], flat, flat, of_rows(rows, eighths))


# --- the kernel

EPILOGUE_BARRIER = 1
"""The first of the consumers' own named barriers."""


@jit
def matmul_scaled(
    A: T.Tensor((T.dynamic("M"), "K")),
    B: T.Tensor(("N", "K")),
    a_scale: T.Tensor(("SLICES", T.dynamic("M")), "float32"),
    b_scale: T.Tensor(("SLICES", "COLUMNS"), "float32"),
    C: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
):
    """C = A @ B.T with scales; see the module's text."""
    M, N = C.shape
    k_tiles = T.ceildiv(A.shape[1], TILE_K)
    tiles_m = T.ceildiv(M, plan.tile_m)
    tiles_n = T.ceildiv(N, plan.tile_n)
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=min(tiles_m * tiles_n, plan.sms), block=plan.threads)
    )
    a_shape, b_shape = (plan.stages, plan.tile_m, TILE_K), (plan.stages, plan.tile_n, TILE_K)
    a_ring = T.alloc_shared(
        a_shape, A.dtype, layout=T.cuda.mma_shared_layout(a_shape, A.dtype), align=1024
    )
    b_ring = T.alloc_shared(
        b_shape, B.dtype, layout=T.cuda.mma_shared_layout(b_shape, B.dtype), align=1024
    )
    c_shape = (plan.consumers, plan.slabs, 64, PANEL_BYTES * 8 // C.dtype.bits)
    c_buffer = T.alloc_shared(
        c_shape, C.dtype, layout=T.cuda.mma_shared_layout(c_shape, C.dtype), align=1024
    )
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    ring.create(full, empty, 1, plan.consumers)

    group = T.cuda.warpgroup_id()
    rows_of_tiles = T.cast(tiles_m, "int32")
    tiles = rows_of_tiles * tiles_n
    if group == 0:
        roles.produce(plan.consumers)
        if T.cuda.thread_in_warpgroup() == 0:
            stage, parity = T.int32(0), T.int32(0)
            for tile in range(T.cuda.block_idx("x"), tiles, T.cuda.grid_dim("x")):
                row, column = schedulers.grouped(
                    tile, rows_of_tiles, tiles_n, plan.group_m, plan.snake
                )
                for k in range(k_tiles):
                    ring.wait_empty(empty, stage, parity)
                    ring.announce(full, stage, plan.stage_bytes)
                    mbar = full.ptr_to([stage])
                    load(a_ring.sub[stage], A, row * plan.tile_m, k * TILE_K, mbar)
                    load(b_ring.sub[stage], B, column * plan.tile_n, k * TILE_K, mbar)
                    stage, parity = ring.following(stage, parity, plan.stages)
    else:
        consumer = roles.consume(plan.consumers)
        leader = T.cuda.thread_in_warpgroup() == 0
        total = T.alloc_local((plan.blocks_m, plan.tile_n // 8, 2, 2), "float32", layout="default")
        if plan.unit_n:
            sums = T.alloc_local((1, plan.unit_n // 8, 2, 2), "float32", layout="default")
        scales, scale = None, None
        if plan.b_columns == 0:
            row_scales = T.alloc_shared((plan.consumers, plan.own_rows), "float32", align=16)
            column_scales = T.alloc_shared((plan.consumers, plan.tile_n), "float32", align=16)
            scales = (row_scales.sub[consumer], column_scales.sub[consumer])
            scale = lambda slab, block, first: scale_slab(slab, *scales, block, first)  # noqa: E731
        stage, parity = T.int32(0), T.int32(0)
        for tile in range(T.cuda.block_idx("x"), tiles, T.cuda.grid_dim("x")):
            row, column = schedulers.grouped(tile, rows_of_tiles, tiles_n, plan.group_m, plan.snake)
            first_row = row * plan.tile_m + consumer * plan.own_rows
            first_column = column * plan.tile_n
            T.assume(first_row >= 0)
            T.assume(first_column >= 0)
            if scales is not None:
                fetch_scales(scales[0], a_scale.sub[0, :], first_row)
                fetch_scales(scales[1], b_scale.sub[0, :], first_column)
            if plan.unit_n:
                T.cuda.tile.apply(T.ptx["mov.f32"], total.view(total.size, 1), 0.0)
            previous = 0
            for k in range(k_tiles):
                ring.wait_full(full, stage, parity)
                a = a_ring.sub[stage].view(plan.consumers, plan.blocks_m, 64, TILE_K).sub[consumer]
                b = b_ring.sub[stage]
                if plan.unit_n:
                    add_slice(
                        total, sums, a, b, a_scale, b_scale, first_row, first_column, k, empty, stage,
                        plan,
                    )  # fmt: skip
                else:
                    multiply(total, a, b, k != 0, A.dtype, B.dtype)
                    T.ptx["wgmma.wait_group.sync.aligned"](plan.in_flight)
                    if leader:
                        if plan.in_flight == 0:
                            ring.release(empty, stage)
                        elif k > 0:
                            ring.release(empty, previous)
                previous = stage
                stage, parity = ring.following(stage, parity, plan.stages)
            if plan.in_flight:
                T.ptx["wgmma.wait_group.sync.aligned"](0)
                if leader:
                    ring.release(empty, previous)
            if scales is not None:
                # The epilogue's first barrier shows each thread's part to the others.
                T.ptx["cp.async.wait_all"]()
            epilogue.store(
                C, c_buffer.sub[consumer], total, None, None, None, first_row, first_column,
                EPILOGUE_BARRIER + consumer, plan.slabs_at_once, scale,
            )  # fmt: skip
        epilogue.finish()


# --- the host side

_SHAPES = (
    (Fp8Plan(in_flight=1), 1.0),
    (Fp8Plan(tile_m=256, tile_n=192, slabs=3, slabs_at_once=3, group_m=8, in_flight=1), 0.93),
    (Fp8Plan(tile_n=192, stages=4, slabs=3, slabs_at_once=3, in_flight=1), 0.98),
    (Fp8Plan(tile_n=128, stages=5, slabs=2, slabs_at_once=2), 0.96),
    (Fp8Plan(tile_n=64, stages=6, slabs=1, slabs_at_once=1), 0.6),
    (Fp8Plan(tile_m=64, tile_n=128, consumers=1, stages=6, slabs=2, slabs_at_once=2), 0.63),
    (Fp8Plan(tile_m=64, tile_n=64, consumers=1, stages=8, slabs=1, slabs_at_once=1), 0.46),
)
"""Tiles, and how much of the best rate each reaches when it fills the GPU: measured at 8192 cubed on an
H200, as those below."""

_PROMOTING_SHAPES = (
    (Fp8Plan(unit_n=128, group_m=8), 1.0),
    (Fp8Plan(tile_n=192, unit_n=192, stages=4, slabs=3, slabs_at_once=3), 0.92),
    (Fp8Plan(tile_n=128, stages=5, slabs=2, slabs_at_once=2, unit_n=128, group_m=8), 0.9),
    (Fp8Plan(tile_n=64, stages=6, slabs=1, slabs_at_once=1, unit_n=64), 0.64),
    (Fp8Plan(tile_m=64, tile_n=128, consumers=1, stages=6, slabs=2, slabs_at_once=2, unit_n=128), 0.66),
    (Fp8Plan(tile_m=64, tile_n=64, consumers=1, stages=8, slabs=1, slabs_at_once=1, unit_n=64), 0.44),
)  # fmt: skip

_FLOATS = ("torch.float8_e4m3fn", "torch.float8_e5m2")


@lru_cache(operands.REMEMBERED)
def plan_matmul(m: int, n: int, promote: bool, b_columns: int, sms: int) -> Fp8Plan:
    """The plan that takes the least time by its count of waves. ``b_columns``: as in ``Fp8Plan``."""

    def time(shape: Fp8Plan, rate: float) -> float:
        tiles = -(-m // shape.tile_m) * -(-n // shape.tile_n)
        return -(-tiles // sms) * shape.tile_m * shape.tile_n / rate

    shapes = _PROMOTING_SHAPES if promote else _SHAPES
    if b_columns == 1:
        # The scales of a unit's columns are registers, too, which the widest tile leaves none for.
        shapes = tuple(entry for entry in shapes if entry[0].tile_n <= 128)
    best, _ = min(shapes, key=lambda entry: time(*entry))
    return replace(best, b_columns=b_columns, sms=sms)


class _Product(NamedTuple):
    """``a``, ``b`` and ``c``: how the operands' rows are passed."""

    a: View | None
    b: View | None
    c: View | None
    plan: Fp8Plan


class _Call(NamedTuple):
    """What calls with the same facts have in common. ``product`` None: there is nothing to multiply.
    ``spans_bytes``: from the first to the last of the inputs and of out."""

    product: _Product | None
    spans_bytes: tuple[int, ...]


@lru_cache(operands.REMEMBERED)
def _prepared(
    a: Facts, b: Facts, a_scale: Facts, b_scale: Facts, out: Facts, fast_accum: bool,
    simulated: str | None,
) -> _Call:  # fmt: skip
    """The checked call."""
    operands.same_device(a=a, b=b, a_scale=a_scale, b_scale=b_scale, out=out)
    device = devices.device_of(a.device)
    if not device.has_wgmma:
        raise ValueError(
            f"{a.device} has {device}, expected 9.0: this product is made of wgmma instructions"
        )
    (m, k), n = a.shape, b.shape[1]
    b_columns = _scale_columns(m, n, k, a_scale, b_scale)
    products.check_result(m, n, out)
    spans_bytes = tuple(t.span_bytes for t in (a, b, a_scale, b_scale, out))
    if m * n * k == 0:
        return _Call(None, spans_bytes)
    rows = (
        products.addressed("a", "row", "K", a, a),
        products.addressed(
            "b", "column", "K", b, b._replace(shape=(n, k), strides=b.strides[::-1])
        ),
        products.addressed("out", "row", "N", out, out),
    )
    plan = plan_matmul(m, n, not fast_accum or b_columns > 0, b_columns, device.sms)
    return _Call(_Product(*rows, plan), spans_bytes)


def _check_operands(a: Facts, b: Facts) -> None:
    products.check_shapes(a, b)
    for what, matrix in (("a", a), ("b", b)):
        if str(matrix.dtype) not in _FLOATS:
            raise ValueError(f"{what} is {matrix.dtype}, expected {' or '.join(_FLOATS)}")


def _scale_columns(m: int, n: int, k: int, a_scale: Facts, b_scale: Facts) -> int:
    """Columns of B that share a scale per slice; 0: scales per row."""
    for what, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        if str(scale.dtype) != "torch.float32":
            raise ValueError(f"{what} is {scale.dtype}, expected torch.float32")
    slices, blocks = -(-k // TILE_K), -(-n // SCALED_COLUMNS)
    found = tuple(a_scale.shape), tuple(b_scale.shape)
    if found == ((m, 1), (1, n)):
        return 0
    if found == ((m, slices), (slices, blocks)):
        return SCALED_COLUMNS
    if found == ((m, slices), (slices, n)):
        return 1
    raise ValueError(
        f"a_scale and b_scale have shapes {found[0]} and {found[1]}, expected {(m, 1)} and {(1, n)}: "
        f"per row of a and column of b; or {(m, slices)} and {(slices, blocks)} or {(slices, n)}: "
        f"per {TILE_K} elements of K, and of b per {SCALED_COLUMNS} columns or per column"
    )


def matmul_fp8(a, b, a_scale, b_scale, *, out=None, out_dtype=None, fast_accum=True):
    """``a @ b`` with scales, for a (M, K) and b (K, N) in float8_e4m3fn or float8_e5m2 (also one of
    each), summed in float32, on a GPU of compute capability 9.0.

    ``a`` has its rows, ``b`` its columns (it is the ``.t()`` of a row-major matrix) in adjacent
    elements, which start at multiples of 16 bytes; so do the rows of the result. Scales are float32:

    * per row: ``a_scale`` (M, 1), ``b_scale`` (1, N): ``(a @ b) * a_scale * b_scale``;
    * per 128 elements of K: ``a_scale`` (M, K / 128) and ``b_scale`` (K / 128, N / 128) or (K / 128, N),
      counts rounded up: each slice's product is multiplied with its scales before the slices are summed.

    ``fast_accum``: tensor cores sum all of K, of which they keep about 14 bits; False: 128 elements, which
    are then added in float32, as is always so with scales per 128 elements. ``out_dtype``: bfloat16 unless
    ``out`` has another; float16 or float32. ``out`` (M, N) has rows of adjacent elements and shares no
    memory with the inputs. Returns ``out``.

    Compiled anew for a new N or K and a new distance between rows. A new M at most needs another of the
    few tile shapes.
    """
    import torch

    operands.check_flag("fast_accum", fast_accum)
    facts = [facts_of("a", a), facts_of("b", b)]
    _check_operands(*facts)
    facts += (facts_of("a_scale", a_scale), facts_of("b_scale", b_scale))
    given = out is not None
    if not given:
        out = torch.empty(
            (a.shape[0], b.shape[1]), dtype=products.result_dtype(out_dtype), device=a.device
        )
    of_out = facts_of("out", out)
    if given and out_dtype not in (None, of_out.dtype):
        raise ValueError(f"out is {of_out.dtype}, and out_dtype {out_dtype}")
    call = _prepared(*facts, of_out, fast_accum, devices.simulated(a.device))
    if given:
        operands.result_apart(
            ("a", "b", "a_scale", "b_scale"), (a, b, a_scale, b_scale), out, call.spans_bytes
        )
    if call.product is None:
        return out.zero_()
    rows_a, rows_b, rows_out, plan = call.product
    matmul_scaled(
        passed(a, rows_a), passed(b, rows_b), a_scale.t(), b_scale, passed(out, rows_out), plan,
    )  # fmt: skip
    return out
