"""Product of block-scaled matrices, mxfp8, mxfp4 and nvfp4, on Blackwell's tensor cores: TMA, tcgen05.mma.

Warps have the roles of ``kernels.matmul_tcgen05``. A stage of the ring is a slice of 128 bytes along K of A
and of B, and the scale factors of its blocks as *images*: 512 bytes with four factors of each of 128 rows.
The thread that multiplies first copies a slice's images to tensor memory (tcgen05.cp), each to the four
columns where the products read them, in one of ``scale_slots`` places. Products follow copies of the same
thread in order; a copy does not follow products so, and waits for those that read its slot before.

With ``ctas`` = 2 a cluster of two computes a tile of 256 rows: each CTA holds 128 rows of A with their
factors and half of B's columns, but the factors of all these columns.

Source: PTX ISA "tcgen05.mma", "tcgen05.cp", "Block scaling"; cuBLAS "1D block scaling factors layout". Run in
the simulator and assembled; no GPU of this architecture has run it. Not here: quantisation, nvfp4's second
scale of the whole tensor (multiply the result), scales per row or 128 elements (``kernels.matmul_fp8``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from tilejit import T, jit
from tilejit.kernels import devices, operands, products
from tilejit.kernels.operands import Facts, facts_of
from tilejit.kernels.products import View, passed
from tilejit.kernels.tcgen05_products import (
    EPILOGUE_GROUP,
    MULTIPLIER,
    PRODUCER,
    ROWS,
    THREADS,
    WIDTHS,
    TensorPlan,
    announced,
    begin,
    end,
    place_of,
    store_tiles,
    sums_at,
)
from tilejit.lib import accumulators, ring, schedulers, slices

SLICE_BYTES = 128
"""Of a row's slice along K: the widest swizzle."""
STEPS = 4
"""Instructions that multiply a slice, 32 bytes of each row at a time."""
IMAGE_FACTORS = 4
"""Of each row in an image."""
IMAGE_BYTES = ROWS * IMAGE_FACTORS
IMAGE_WORDS = IMAGE_BYTES // 4
IMAGE_COLUMNS = 4
"""Of tensor memory."""
HALF_IMAGE = 64
"""Rows: where tiles begin in images."""


class Format(NamedTuple):
    """``kind``: of the instruction, with the size of its blocks. ``block_elems``: along K that share a scale
    factor, which has the type ``factor``. ``stored``: elements in shared memory, None where A and B say so."""

    kind: str
    block_elems: int
    elem_bits: int
    factor: str
    stored: str | None

    @property
    def step_elems(self) -> int:
        """Along K, of one instruction."""
        return SLICE_BYTES * 8 // self.elem_bits // STEPS

    @property
    def factors(self) -> int:
        """Of each row in one instruction; also images of a slice of 128 rows."""
        return self.step_elems // self.block_elems


FORMATS = {
    "mxfp8": Format("mxf8f6f4.block_scale.block32", 32, 8, "float8_e8m0fnu", None),
    "mxfp4": Format("mxf4.block_scale.block32", 32, 4, "float8_e8m0fnu", "float4_e2m1fn"),
    "nvfp4": Format("mxf4nvf4.block_scale.block16", 16, 4, "float8_e4m3fn", "float4_e2m1fn"),
}


@dataclass(frozen=True, kw_only=True)
class BlockScaledPlan(TensorPlan):
    """See the module's text. ``format``: one of ``FORMATS``."""

    format: str
    tile_n: int = 192
    scale_slots: int = 2

    COUNTS: ClassVar[tuple[str, ...]] = (*TensorPlan.COUNTS, "scale_slots")

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format is {self.format!r}, expected {', '.join(FORMATS)}")
        super().__post_init__()
        if self.scale_slots > self.stages:
            raise ValueError(
                f"{self.scale_slots} slots for scale factors, expected at most one for each of "
                f"{self.stages} stages"
            )
        if self.used_columns > accumulators.COLUMNS[-1]:
            raise ValueError(
                f"{self.accumulators} accumulators of {self.tile_n} columns and {self.scale_slots} slots of "
                f"{self.slot_columns} for scale factors, expected at most {accumulators.COLUMNS[-1]} columns of "
                "tensor memory"
            )

    @property
    def of_format(self) -> Format:
        return FORMATS[self.format]

    @property
    def b_images(self) -> int:
        """Across the columns of a tile, which may begin in the middle of one."""
        return -(-self.tile_n // ROWS)

    @property
    def slot_columns(self) -> int:
        """Of tensor memory, for the scale factors of a slice."""
        return IMAGE_COLUMNS * self.of_format.factors * (1 + self.b_images)

    @property
    def stage_bytes(self) -> int:
        """Of one CTA."""
        images = self.of_format.factors * (1 + self.b_images)
        return (ROWS + self.own_columns) * SLICE_BYTES + images * IMAGE_BYTES

    @property
    def used_columns(self) -> int:
        """Of tensor memory."""
        return self.accumulators * self.tile_n + self.scale_slots * self.slot_columns

    @property
    def columns(self) -> int:
        """Of tensor memory, that are allocated."""
        return accumulators.allocated(self.used_columns)


# --- tensor memory


@jit
def factors_at(address, operand: T.constexpr, plan: T.constexpr):
    """(slots, 1, STEPS, rows, factors): all slots of SFA, or SFB, as products read them."""
    rows = ROWS if operand == "SFA" else plan.b_images * ROWS
    shape = (plan.scale_slots, 1, STEPS, rows, plan.of_format.factors)
    return T.cuda.decl_tmem(
        address, shape, plan.of_format.factor,
        layout=T.cuda.tmem_mma_operand_layout(
            operand, shape, plan.of_format.factor, M=plan.tile_m, cta_group=plan.ctas
        ),
    )  # fmt: skip


@jit
def images_at(address, across: T.constexpr, plan: T.constexpr):
    """(slots, images along K, images across, 32, 4) words: the same cells as copies write them."""
    shape = (plan.scale_slots, plan.of_format.factors, across, 32, IMAGE_COLUMNS)
    count = plan.scale_slots * plan.of_format.factors * across
    return T.cuda.decl_tmem(
        address, shape, "uint32",
        layout=f"({count},32,{IMAGE_COLUMNS}):({IMAGE_COLUMNS}@TCol,1@TLane,1@TCol) + R[4:32@TLane]",
    )  # fmt: skip


# --- roles


@jit
def load_images(images, source, first, k, mbar, qualifiers: T.constexpr):
    """images (across, along K, words) = those of ``source`` from (first, k) on; beyond its last zeros, which
    are finite factors: what they scale is zeros, too."""
    space = "shared::cta" if qualifiers == "" else "shared::cluster"
    T.cuda.tile.apply(
        T.ptx[
            f"cp.async.bulk.tensor.3d.{space}.global.tile.mbarrier::complete_tx::bytes{qualifiers}"
        ],
        images, source, box=images.shape, coords=(first, k, 0), mbar=mbar,
    )  # fmt: skip


@jit
def produce(
    A, B, a_scale, b_scale, stages, full, empty, first_m, first_n, position, rank, plan: T.constexpr
):
    """One thread of each CTA: the slices of a tile, which begins at row ``first_m`` of the CTA and column
    ``first_n`` of both. Returns the next position in the ring."""
    stage, parity = position
    a_ring, b_ring, a_images, b_images = stages
    factors = plan.of_format.factors
    own_n = first_n + rank * plan.own_columns
    image_m, image_n = T.truncdiv(first_m, ROWS), T.truncdiv(first_n, ROWS)
    for k in range(T.ceildiv(A.shape[1], SLICE_BYTES)):
        ring.wait_empty(empty, stage, parity)
        mbar, qualifiers = announced(full, stage, rank, plan)
        load_images(a_images.sub[stage], a_scale, image_m, k * factors, mbar, qualifiers)
        load_images(b_images.sub[stage], b_scale, image_n, k * factors, mbar, qualifiers)
        slices.load(a_ring.sub[stage], A, first_m, k * SLICE_BYTES, True, mbar, qualifiers)
        slices.load(b_ring.sub[stage], B, own_n, k * SLICE_BYTES, True, mbar, qualifiers)
        stage, parity = ring.following(stage, parity, plan.stages)
    return stage, parity


@jit
def copy_images(there, images, ctas: T.constexpr):
    """``there`` (along K, across, 32, 4) in tensor memory = images (across, along K, words)."""
    across, along, _ = images.shape
    T.cuda.tile.apply(
        T.ptx[f"tcgen05.cp.cta_group::{ctas}.32x128b.warpx4"],
        there, images.view(across, along, 32, IMAGE_COLUMNS).permute(1, 0, 2, 3),
    )  # fmt: skip


@jit
def steps(slice_, plan: T.constexpr):
    """(1, STEPS, rows, elements): a slice, as products read it."""
    stored = plan.of_format.stored
    if stored is not None:
        slice_ = slice_.view(stored)
    elems = plan.of_format.step_elems
    return slice_.view(1, slice_.shape[0], STEPS, elems).permute(0, 2, 1, 3)


@jit
def factors_of_tile(sfb, skipped, plan: T.constexpr):
    """SFB of a tile's columns, of those that its images are for. ``skipped``: halves of an image before them,
    0 or 1."""
    _, _, rows, factors = sfb.shape
    halves = sfb.view(1, STEPS, rows // HALF_IMAGE, HALF_IMAGE, factors)
    halves = halves.sub[:, :, skipped : skipped + plan.tile_n // HALF_IMAGE, :, :]
    return halves.view(1, STEPS, plan.tile_n, factors)


@jit
def multiply(sums, scales, stages, full, empty, positions, k_tiles, skipped, plan: T.constexpr):
    """One thread of the first CTA: sums = A @ B of a tile. ``scales``: of all slots, for A and B as products
    read and as copies write them. ``skipped``: see ``factors_of_tile``. ``positions``: in the
    ring, of the slot, and in the ring of the slice that had the slot before; returns the next ones."""
    (stage, parity), slot, (earlier, earlier_parity) = positions
    a_ring, b_ring, a_images, b_images = stages
    sfa, sfb, sfa_images, sfb_images = scales
    for k in range(k_tiles):
        T.cuda.mbarrier_wait(empty.ptr_to([earlier]), earlier_parity)
        ring.wait_full(full, stage, parity)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        copy_images(sfa_images.sub[slot], a_images.sub[stage], plan.ctas)
        copy_images(sfb_images.sub[slot], b_images.sub[stage], plan.ctas)
        T.cuda.tile.apply(
            T.ptx[f"tcgen05.mma.cta_group::{plan.ctas}.kind::{plan.of_format.kind}"],
            sums.view(1, 1, ROWS, plan.tile_n),
            steps(a_ring.sub[stage], plan), steps(b_ring.sub[stage], plan),
            sfa.sub[slot], factors_of_tile(sfb.sub[slot], skipped, plan),
            instruction_shape=(plan.tile_m, plan.tile_n, plan.of_format.step_elems), accum=k != 0,
        )  # fmt: skip
        accumulators.commit(empty.ptr_to([stage]), plan.ctas)
        stage, parity = ring.following(stage, parity, plan.stages)
        earlier, earlier_parity = ring.following(earlier, earlier_parity, plan.stages)
        slot, _ = ring.following(slot, 0, plan.scale_slots)
    return (stage, parity), slot, (earlier, earlier_parity)


# --- the kernel


@jit
def matmul_scaled_blocks(
    A: T.Tensor((T.dynamic("M"), "ROW_BYTES")),
    B: T.Tensor(("N", "ROW_BYTES")),
    a_scale: T.Tensor((T.dynamic("A_IMAGES"), "IMAGES_ALONG", IMAGE_WORDS), "uint32"),
    b_scale: T.Tensor(("B_IMAGES", "IMAGES_ALONG", IMAGE_WORDS), "uint32"),
    C: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
):
    """C = A @ B.T with scales; see the module's text. 4-bit elements come as bytes, two in each."""
    M, N = C.shape
    k_tiles = T.ceildiv(A.shape[1], SLICE_BYTES)
    tiles_m, tiles_n = T.ceildiv(M, plan.tile_m), T.ceildiv(N, plan.tile_n)
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=min(tiles_m * tiles_n, plan.workers) * plan.ctas, block=THREADS,
            cluster=plan.ctas if plan.ctas > 1 else None,
        )
    )  # fmt: skip
    a_shape = (plan.stages, ROWS, SLICE_BYTES)
    b_shape = (plan.stages, plan.own_columns, SLICE_BYTES)
    a_ring = T.alloc_shared(
        a_shape, A.dtype, layout=T.cuda.mma_shared_layout(a_shape, A.dtype), align=1024
    )
    b_ring = T.alloc_shared(
        b_shape, B.dtype, layout=T.cuda.mma_shared_layout(b_shape, B.dtype), align=1024
    )
    c_shape = (plan.slabs, ROWS, SLICE_BYTES * 8 // C.dtype.bits)
    c_buffer = T.alloc_shared(
        c_shape, C.dtype, layout=T.cuda.mma_shared_layout(c_shape, C.dtype), align=1024
    )
    along = plan.of_format.factors
    a_images = T.alloc_shared(
        (plan.stages, 1, along, IMAGE_WORDS), "uint32", layout="default", align=128
    )
    b_images = T.alloc_shared(
        (plan.stages, plan.b_images, along, IMAGE_WORDS), "uint32", layout="default", align=128
    )
    stages = (a_ring, b_ring, a_images, b_images)
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    rank, worker, workers = place = place_of(plan)
    full, empty, finished, emptied, slot_address = begin(warp, plan)
    address = slot_address[0]
    sums = sums_at(address, plan)
    sfa_address = address + plan.accumulators * plan.tile_n
    sfb_address = sfa_address + plan.scale_slots * along * IMAGE_COLUMNS
    scales = (
        factors_at(sfa_address, "SFA", plan), factors_at(sfb_address, "SFB", plan),
        images_at(sfa_address, 1, plan), images_at(sfb_address, plan.b_images, plan),
    )  # fmt: skip

    rows_of_tiles = T.cast(tiles_m, "int32")
    tiles = rows_of_tiles * tiles_n
    if warp == PRODUCER:
        if lane == 0:
            stage, parity = 0, 0
            for tile in range(worker, tiles, workers):
                row, column = schedulers.place(
                    tile, rows_of_tiles, tiles_n, plan.order, plan.group_m
                )
                stage, parity = produce(
                    A, B, a_scale, b_scale, stages, full, empty, row * plan.tile_m + rank * ROWS,
                    column * plan.tile_n, (stage, parity), rank, plan,
                )  # fmt: skip
    elif warp == MULTIPLIER:
        if rank == 0 and lane == 0:
            position = (0, 0)
            slot = 0
            # The round before the first counts as over.
            earlier = (plan.stages - plan.scale_slots, 1)
            index, turn = 0, 0
            for tile in range(worker, tiles, workers):
                _, column = schedulers.place(tile, rows_of_tiles, tiles_n, plan.order, plan.group_m)
                skipped = 0
                if plan.tile_n % ROWS:
                    skipped = column & 1
                ring.wait_empty(emptied, index, turn)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                position, slot, earlier = multiply(
                    sums.sub[index], scales, stages, full, empty, (position, slot, earlier), k_tiles,
                    skipped, plan,
                )  # fmt: skip
                accumulators.commit(finished.ptr_to([index]), plan.ctas)
                index, turn = ring.following(index, turn, plan.accumulators)
    elif T.cuda.warpgroup_id() == EPILOGUE_GROUP:
        store_tiles(
            C, c_buffer, sums, None, None, None, finished, emptied, place, rows_of_tiles, tiles_n, plan
        )  # fmt: skip
    end(address, warp, plan)


# --- plans

_COLUMN_CLOCKS = 2
"""Of tensor cores, for 128 bytes of 128 rows and of a column: 8192 products of 8 bits or 16384 of 4 a clock."""
_LOADED_BYTES = 64
"""From L2 to an SM, a clock."""
_END_CLOCKS = 6
"""Of an epilogue, for each column. These are nominal rates or, as this, assumed: no GPU of this architecture
was at hand to measure them."""


@lru_cache(operands.REMEMBERED)
def plan_matmul(format: str, m: int, n: int, k: int, sms: int) -> BlockScaledPlan:
    """The plan that takes the fewest clocks by these: of a slice those of tensor cores or of loading it, the
    larger; of tiles the waves of them, with an epilogue after each or, where there are two accumulators,
    beside the next. Of equals pairs of CTAs, then wide tiles."""
    slice_count = -(-k * FORMATS[format].elem_bits // (8 * SLICE_BYTES))

    def clocks(plan: BlockScaledPlan) -> int:
        tiles = -(-m // plan.tile_m) * -(-n // plan.tile_n)
        waves = -(-tiles // plan.workers)
        load = plan.stage_bytes // _LOADED_BYTES
        main = slice_count * max(_COLUMN_CLOCKS * plan.tile_n, load)
        end = _END_CLOCKS * plan.tile_n
        return waves * max(main, end) + end if plan.accumulators > 1 else waves * (main + end)

    shapes = [shape for shape in _SHAPES[format] if shape.ctas <= sms]
    return min((replace(shape, sms=sms) for shape in shapes), key=clocks)


_STAGES_BYTES = 192 * 1024
"""Of shared memory, for stages."""
_MAX_SLOTS = 4
"""Slices whose products may wait for the tensor cores, about."""


def _shape(format: str, ctas: int, tile_n: int) -> BlockScaledPlan:
    plan = BlockScaledPlan(
        format=format, tile_n=tile_n, stages=1, accumulators=1, scale_slots=1, ctas=ctas
    )
    sums = 2 if 2 * tile_n + plan.slot_columns <= accumulators.COLUMNS[-1] else 1
    stages = min(8, _STAGES_BYTES // plan.stage_bytes)
    left = accumulators.COLUMNS[-1] - sums * tile_n
    slots = min(stages, _MAX_SLOTS, left // plan.slot_columns)
    return replace(plan, stages=stages, accumulators=sums, scale_slots=slots)


_SHAPES = {
    format: [_shape(format, ctas, tile_n) for ctas in (2, 1) for tile_n in reversed(WIDTHS)]
    for format in FORMATS
}

# --- the host side

_FP8, _FP4 = ("float8_e4m3fn", "float8_e5m2"), ("float4_e2m1fn_x2", "uint8")
_E8M0, _E4M3 = ("float8_e8m0fnu", "uint8"), ("float8_e4m3fn",)
_TYPES = {"mxfp8": (_FP8, _E8M0), "mxfp4": (_FP4, _E8M0), "nvfp4": (_FP4, _E4M3)}
"""Of operands and of scale factors."""


class _Product(NamedTuple):
    """``a``, ``b`` and ``c``: how the operands' rows are passed; ``a_images``, ``b_images``: shapes."""

    a: View | None
    b: View | None
    c: View | None
    a_images: tuple[int, int, int]
    b_images: tuple[int, int, int]
    plan: BlockScaledPlan


class _Call(NamedTuple):
    """What calls with the same facts have in common. ``product`` None: there is nothing to multiply.
    ``spans_bytes``: from the first to the last of the inputs and of out."""

    product: _Product | None
    spans_bytes: tuple[int, ...]


@lru_cache(operands.REMEMBERED)
def _prepared(
    a: Facts, b: Facts, a_scale: Facts, b_scale: Facts, out: Facts, simulated: str | None
) -> _Call:
    """The checked call. ``simulated``: see ``devices``."""
    operands.same_device(a=a, b=b, a_scale=a_scale, b_scale=b_scale, out=out)
    device = devices.device_of(a.device)
    if not device.has_tcgen05:
        on_cpu = ', on the CPU under tilejit.simulation(target="sm_100a")' if simulated else ""
        raise ValueError(
            f"{a.device} has {device}, expected 10.0, 10.3 or 11.0 with all that it adds: this product is "
            f"made of tcgen05 instructions{on_cpu}"
        )
    name = _format(a, b, a_scale, b_scale)
    packed = 8 // FORMATS[name].elem_bits
    (m, row_bytes), n = a.shape, b.shape[1]
    k = row_bytes * packed
    images = (
        _images("a_scale", "rows of a", m, k, FORMATS[name], a_scale),
        _images("b_scale", "columns of b", n, k, FORMATS[name], b_scale),
    )
    products.check_result(m, n, out)
    spans_bytes = tuple(t.span_bytes for t in (a, b, a_scale, b_scale, out))
    if m * n * k == 0:
        return _Call(None, spans_bytes)
    b_rows = b._replace(shape=(n, row_bytes), strides=b.strides[::-1])
    rows = (
        products.addressed("a", "row", "K", a, a, packed),
        products.addressed("b", "column", "K", b, b_rows, packed),
        products.addressed("out", "row", "N", out, out),
    )
    return _Call(_Product(*rows, *images, plan_matmul(name, m, n, k, device.sms)), spans_bytes)


def _format(a: Facts, b: Facts, a_scale: Facts, b_scale: Facts) -> str:
    """A key of ``FORMATS``, by the types."""
    found = [str(t.dtype).removeprefix("torch.") for t in (a, b, a_scale, b_scale)]
    for name, (elements, factors) in _TYPES.items():
        if {*found[:2]} <= {*elements} and {*found[2:]} <= {*factors}:
            return name
    expected = "; ".join(
        f"{name}: {' or '.join(elements)} with {' or '.join(factors)}"
        for name, (elements, factors) in _TYPES.items()
    )
    raise ValueError(
        f"a and b are {found[0]} and {found[1]}, a_scale and b_scale {found[2]} and {found[3]}, expected for "
        f"both operands {expected}"
    )


def _images(
    what: str, lines: str, count: int, k: int, format: Format, scale: Facts
) -> tuple[int, int, int]:
    """(images of ``count`` rows, images along K, words), where ``scale`` is that many images."""
    along = -(-k // (format.block_elems * IMAGE_FACTORS))
    shape = (-(-count // ROWS), along, IMAGE_WORDS)
    wanted, elems = shape[0] * shape[1] * IMAGE_BYTES, 1
    for extent in scale.shape:
        elems *= extent
    if elems != wanted:
        raise ValueError(
            f"{what} has shape {tuple(scale.shape)}, which is {elems} factors, expected {wanted}: for each "
            f"{ROWS} of {count} {lines}, and each {format.block_elems * IMAGE_FACTORS} of {k} elements along K, "
            f"{IMAGE_BYTES}, as scale_layout(factors) makes them of ({count}, {-(-k // format.block_elems)})"
        )
    if not _is_dense(scale) or (elems and scale.address):
        raise ValueError(
            f"{what} has strides {tuple(scale.strides)} and starts {scale.address} bytes past a multiple of "
            f"{operands.ALIGN_BYTES}, expected adjacent elements and 0"
        )
    return shape


def _is_dense(tensor: Facts) -> bool:
    """Its elements are adjacent, in order."""
    step = 1
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides)):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def scale_layout(scales):
    """Scale factors of rows (of A, or columns of B), (rows, K / block) of 8 bits, as ``matmul_block_scaled``
    takes them: one dimension, in the order of cuBLAS's layout of factors of one-dimensional blocks.

    For each 128 rows, and of these for each four factors along K, an image of 512 bytes follows, in which
    factor f of row r is at ``r % 32 * 16 + r // 32 * 4 + f``. Rows and factors beyond the last are zeros."""
    import torch

    facts = facts_of("scales", scales)
    types = (*_E8M0, *_E4M3)
    if len(facts.shape) != 2 or str(facts.dtype).removeprefix("torch.") not in types:
        raise ValueError(
            f"scales is {facts.dtype} of shape {tuple(facts.shape)}, expected (rows, K / block) of "
            f"{', '.join(types)}"
        )
    rows, count = facts.shape
    down, along = -(-rows // ROWS), -(-count // IMAGE_FACTORS)
    padded = torch.zeros(
        (down * ROWS, along * IMAGE_FACTORS), dtype=torch.uint8, device=scales.device
    )
    padded[:rows, :count] = scales.view(torch.uint8)
    images = padded.view(down, 4, 32, along, IMAGE_FACTORS).permute(0, 3, 2, 1, 4)
    return images.reshape(-1).view(scales.dtype)


def matmul_block_scaled(a, b, a_scale, b_scale, *, out=None, out_dtype=None):
    """``a @ b`` for a (M, K) and b (K, N) whose blocks along K have a scale factor each, summed in float32, on
    a GPU of compute capability 10.0, 10.3 or 11.0.

    * mxfp8: float8_e4m3fn or float8_e5m2 (also one of each), a float8_e8m0fnu factor for each 32;
    * mxfp4: float4_e2m1fn_x2, a float8_e8m0fnu factor for each 32;
    * nvfp4: float4_e2m1fn_x2, a float8_e4m3fn factor for each 16, whose sign is not looked at.

    Two 4-bit elements are one of torch's, that with the lower k in the lower bits: then ``a`` has the shape
    (M, K / 2) and ``b`` (K / 2, N). uint8 stands for float4_e2m1fn_x2 and float8_e8m0fnu.

    ``a`` has its rows, ``b`` its columns (it is the ``.t()`` of a row-major matrix) in adjacent elements, which
    start at multiples of 16 bytes; so do the rows of the result. ``a_scale`` and ``b_scale`` are what
    ``scale_layout`` makes of factors (M, K / block) and (N, K / block), counts rounded up: cuBLAS's layout, as
    torch._scaled_mm takes it, in any shape of adjacent elements that start at a multiple of 16 bytes. Factors
    beyond K, which scale zeros, are no NaN; those of rows beyond M or N are anything. ``out_dtype``: bfloat16
    unless ``out`` has another; float16 or float32. ``out`` (M, N) has rows of adjacent elements and shares no
    memory with the inputs. Returns ``out``.

    Compiled anew for a new N or K and a new distance between rows. A new M at most needs another of the
    few tile shapes.
    """
    import torch

    facts = [facts_of("a", a), facts_of("b", b)]
    products.check_shapes(*facts)
    facts += (facts_of("a_scale", a_scale), facts_of("b_scale", b_scale))
    given = out is not None
    if not given:
        dtype = products.result_dtype(out_dtype)
        out = torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)
    of_out = facts_of("out", out)
    if given and out_dtype not in (None, of_out.dtype):
        raise ValueError(f"out is {of_out.dtype}, and out_dtype {out_dtype}")
    call = _prepared(*facts, of_out, devices.simulated(a.device))
    if given:
        operands.result_apart(
            ("a", "b", "a_scale", "b_scale"), (a, b, a_scale, b_scale), out, call.spans_bytes
        )
    product = call.product
    if product is None:
        return out.zero_()
    matmul_scaled_blocks(
        _bytes_of(passed(a, product.a), product.plan), _bytes_of(passed(b, product.b), product.plan),
        a_scale.view(-1).view(torch.uint32).view(product.a_images),
        b_scale.view(-1).view(torch.uint32).view(product.b_images),
        passed(out, product.c), product.plan,
    )  # fmt: skip
    return out


def _bytes_of(rows: Any, plan: BlockScaledPlan) -> Any:
    """4-bit elements as the kernel takes them."""
    import torch

    return rows if plan.of_format.stored is None else rows.view(torch.uint8)
