"""Matrix product on Hopper's tensor cores: TMA, wgmma, warp-specialised and persistent.

One warpgroup produces: a single thread keeps the tensor memory accelerator filling a ring of ``stages``
slices of A and B along K. ``consumers`` warpgroups multiply the slices with wgmma, keep the sums in
registers, and write them out through shared memory by TMA stores, which the producer's next loads overlap.
They share each *tile* of C by its rows or, ``ping_pong``, take turns at whole tiles. A CTA takes tile
after tile.

What remains beyond the last whole wave of tiles may be ``parts`` pieces along K, whose sums meet in global
memory. Two neighbouring CTAs as a cluster may share the slices of the operand that they have in common,
each of them loading half of it for both (multicast).

An operand whose rows run along K is K-major: A as given, B transposed. Otherwise its rows run along M
(or N); slices are then *panels*, 64 elements of M (or N) wide. TMA fills what lies beyond a matrix with
zeros and does not store it.

What TMA cannot address is copied to where it can, where that pays; else ``kernels.matmul_mma`` computes, as
it does on other GPUs. On those of compute capability 10 and 11 the kernel is ``kernels.matmul_tcgen05``'s.

Not here: what the tile shapes cost (``benchmarks/notes.md``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tilejit import T, jit
from tilejit.kernels import devices, matmul_mma, operands, products, scratch
from tilejit.kernels.operands import Facts, facts_of
from tilejit.kernels.products import View, passed
from tilejit.lib import epilogue, packed, ring, roles, schedulers, slices, split_sums
from tilejit.lib.slices import K_STEP, PANEL, TILE_K

if TYPE_CHECKING:
    from tilejit.kernels.matmul_tcgen05 import TcgenPlan

_COUNTS = (
    "tile_m", "tile_n", "stages", "consumers", "group_m", "slabs", "slabs_at_once", "parts", "cluster_m",
    "cluster_n", "sms",
)  # fmt: skip
"""Fields of a plan of which there is at least one."""


@dataclass(frozen=True)
class TmaPlan:
    """See the module's text. ``tile_m`` x ``tile_n`` elements of C per tile. ``in_flight``: wgmma groups
    that may be pending when the next slice's begin. ``order``, ``group_m``: of tiles, by
    ``schedulers.place``. ``slabs_at_once``: 64-column parts of C between two barriers of the epilogue;
    ``slabs``: that a warpgroup's buffer holds. ``cluster_m``, ``cluster_n``: CTAs of a cluster, at
    most 2: one below the other (they share B) or side by side (A). ``sms``: CTAs that run at a time."""

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 3
    consumers: int = 2
    in_flight: int = 0
    group_m: int = 16
    order: str = "grouped"
    slabs: int = 4
    slabs_at_once: int = 4
    parts: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    ping_pong: bool = False
    a_k_major: bool = True
    b_k_major: bool = True
    sms: int = 132

    def __post_init__(self) -> None:
        products.check_plan(self, _COUNTS)
        for name in ("ping_pong", "a_k_major", "b_k_major"):
            operands.check_flag(name, getattr(self, name))
        if self.order not in schedulers.ORDERS:
            raise ValueError(f"order is {self.order!r}, expected {', '.join(schedulers.ORDERS)}")
        if self.ping_pong and self.consumers != 2:
            raise ValueError(f"{self.consumers} consumers take turns, expected 2")
        if self.cluster > 2:
            raise ValueError(
                f"{self.cluster_m} x {self.cluster_n} CTAs in a cluster, expected at most 2"
            )
        if self.order == "hilbert" and self.group_m & (self.group_m - 1):
            raise ValueError(f"Hilbert's curve over {self.group_m} rows, expected a power of two")
        if self.parts > self.workers:
            raise ValueError(
                f"{self.sms} SMs run {self.workers} clusters of {self.cluster} CTAs at a time, expected one "
                f"for each of {self.parts} parts"
            )
        for rows, ctas, k_major in (
            (self.tile_m, self.cluster_n, self.a_k_major),
            (self.tile_n, self.cluster_m, self.b_k_major),
        ):
            if rows % (ctas * (8 if k_major else PANEL)):
                raise ValueError(f"{ctas} CTAs cannot load equal parts of {rows} rows")

    @property
    def threads(self) -> int:
        return roles.threads(self.consumers)

    @property
    def sharers(self) -> int:
        """Warpgroups that compute one tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def own_rows(self) -> int:
        """Rows of the tile that a warpgroup computes."""
        return self.tile_m // self.sharers

    @property
    def blocks_m(self) -> int:
        """64-row parts of these."""
        return self.own_rows // 64

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * TILE_K * 2

    @property
    def a_shape(self) -> tuple[int, ...]:
        """One stage of A in shared memory."""
        return slices.shape(self.tile_m, self.a_k_major)

    @property
    def b_shape(self) -> tuple[int, ...]:
        return slices.shape(self.tile_n, self.b_k_major)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def workers(self) -> int:
        """Clusters that run at a time."""
        return self.sms // self.cluster

    @property
    def slots_shape(self) -> tuple[int, ...]:
        """Of the float32 sums of parts in global memory; ``split_sums`` says what a slot is."""
        slots = self.workers // self.parts * (self.parts - 1) * self.cluster
        vectors = self.own_rows * self.tile_n // (split_sums.THREADS * split_sums.LANE_ELEMS)
        return (slots, self.sharers, vectors, split_sums.THREADS, split_sums.LANE_ELEMS)

    def pieces(self, m: int, n: int) -> int:
        """How many pieces of work C is: tiles of a CTA, or those side by side of a cluster."""
        return -(-m // (self.tile_m * self.cluster_m)) * -(-n // (self.tile_n * self.cluster_n))

    def split(self, m: int, n: int) -> bool:
        """Are there tiles beyond the last whole wave, and does every worker get at most a part of one?"""
        rest = self.pieces(m, n) % self.workers
        return self.parts > 1 and 0 < rest * self.parts <= self.workers


# --- the consumers


@jit
def rows_of_a(stage, sharer, plan: T.constexpr):
    """(blocks, k-steps, 64, 16): a warpgroup's rows of a stage of A, as wgmma takes them."""
    if plan.a_k_major:
        own = stage.view(plan.sharers, plan.blocks_m, 64, TILE_K).sub[sharer]
        return own.view(plan.blocks_m, 64, TILE_K // K_STEP, K_STEP).permute(0, 2, 1, 3)
    own = stage.view(plan.sharers, plan.blocks_m, TILE_K, PANEL).sub[sharer]
    return own.view(plan.blocks_m, TILE_K // K_STEP, K_STEP, PANEL).permute(0, 1, 3, 2)


@jit
def multiply(sums, a, b, accumulate, plan: T.constexpr, dtype: T.constexpr):
    """sums (+)= a @ b of one slice, as one wgmma group."""
    kind = packed.ptx_type(dtype)
    n = plan.tile_n
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind}"],
        sums, a, b,
        instruction_shape=(64, n, 16), accum=accumulate, scope="warpgroup",
        a_major="k" if plan.a_k_major else "mn", b_major="k" if plan.b_k_major else "mn",
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()


# --- the kernel

EPILOGUE_BARRIER = 1
"""The first of the consumers' own named barriers."""
ORDER_BARRIER = 4
"""The first of two for consumers that take turns."""


@jit
def matmul_tma(
    A: T.Tensor((T.dynamic("A_ROWS"), "A_COLUMNS")),
    B: T.Tensor(("B_ROWS", "B_COLUMNS")),
    bias: T.Tensor(("N",)) | None,
    C: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
    activation: T.constexpr,
    partials: T.Tensor(("SLOTS", "SHARERS", "VECTORS", 128, 4), "float32") | None = None,
    flags: T.Tensor(("SLOTS", "SHARERS"), "int32") | None = None,
):
    """C = activation(A @ B + bias); see the module's text. ``partials`` and ``flags``: the ``workspace``
    of a plan of several parts."""
    M, N = C.shape
    K = B.shape[1] if plan.b_k_major else B.shape[0]
    k_tiles = T.ceildiv(K, TILE_K)
    parts = min(plan.parts, k_tiles)
    tiles_m = T.ceildiv(M, plan.tile_m * plan.cluster_m)
    tiles_n = T.ceildiv(N, plan.tile_n * plan.cluster_n)
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=min(tiles_m * tiles_n * parts, plan.workers) * plan.cluster, block=plan.threads,
            cluster=plan.cluster if plan.cluster > 1 else None,
        )
    )  # fmt: skip
    a_ring = T.alloc_shared(
        (plan.stages, *plan.a_shape), A.dtype, align=1024,
        layout=T.cuda.mma_shared_layout((plan.stages, *plan.a_shape), A.dtype),
    )  # fmt: skip
    b_ring = T.alloc_shared(
        (plan.stages, *plan.b_shape), B.dtype, align=1024,
        layout=T.cuda.mma_shared_layout((plan.stages, *plan.b_shape), B.dtype),
    )  # fmt: skip
    c_shape = (plan.consumers, plan.slabs, 64, PANEL)
    c_buffer = T.alloc_shared(
        c_shape, C.dtype, layout=T.cuda.mma_shared_layout(c_shape, C.dtype), align=1024
    )
    own_bias = None
    if bias is not None:
        biases = T.alloc_shared(
            (plan.consumers, plan.tile_n), "float32", layout="default", align=16
        )
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    ring.create(full, empty, 1, plan.sharers * plan.cluster, plan.cluster > 1)

    group = T.cuda.warpgroup_id()
    thread = T.cuda.thread_in_warpgroup()
    rank, worker, workers = 0, T.cuda.block_idx("x"), T.cuda.grid_dim("x")
    if plan.cluster > 1:
        rank = T.cuda.cluster_cta_rank()
        worker, workers = T.cuda.cluster_id("x"), T.cuda.num_clusters("x")
    T.assume(0 < workers <= plan.workers)
    rows_of_tiles = T.cast(tiles_m, "int32")
    tiles = rows_of_tiles * tiles_n
    items, whole = schedulers.items(tiles, workers, parts)
    if group == 0:
        roles.produce(plan.consumers)
        if thread == 0:
            stage, parity = 0, 0
            for item in range(worker, items, workers):
                tile, part, begin, end = schedulers.slices(item, tiles, whole, parts, k_tiles)
                row, column = schedulers.place(
                    tile, rows_of_tiles, tiles_n, plan.order, plan.group_m
                )
                first_m, first_n = corner(row, column, rank, plan)
                for k in range(begin, end):
                    ring.wait_empty(empty, stage, parity)
                    ring.announce(full, stage, plan.stage_bytes)
                    mbar = full.ptr_to([stage])
                    slices.load_shared(
                        a_ring.sub[stage], A, first_m, k * TILE_K, plan.a_k_major, mbar, rank,
                        plan.cluster_n,
                    )  # fmt: skip
                    slices.load_shared(
                        b_ring.sub[stage], B, first_n, k * TILE_K, plan.b_k_major, mbar, rank,
                        plan.cluster_m,
                    )  # fmt: skip
                    stage, parity = ring.following(stage, parity, plan.stages)
    else:
        consumer = roles.consume(plan.consumers)
        sharer = 0 if plan.ping_pong else consumer
        barrier = EPILOGUE_BARRIER + consumer
        if bias is not None:
            own_bias = biases.sub[consumer]
        sums = T.alloc_local((plan.blocks_m, plan.tile_n // 8, 2, 2), "float32", layout="default")
        tile_sums = sums.view(
            plan.blocks_m, 1, 64, plan.tile_n,
            layout=T.cuda.wgmma_fragment_layout(plan.tile_n, (plan.blocks_m, 1)),
        )  # fmt: skip
        stage, parity = T.int32(0), T.int32(0)
        first_item, step = worker, workers
        if plan.ping_pong:
            first_item, step = worker + consumer * workers, 2 * workers
            if consumer == 1:
                stage, parity = ring.following(stage, parity, plan.stages, k_tiles)
                if worker < items:
                    roles.pass_turn(consumer, ORDER_BARRIER)
        for turn in range(T.ceildiv(items - first_item, step)):
            item = first_item + turn * step
            tile, part, begin, end = schedulers.slices(item, tiles, whole, parts, k_tiles)
            row, column = schedulers.place(tile, rows_of_tiles, tiles_n, plan.order, plan.group_m)
            if plan.ping_pong:
                roles.take_turn(consumer, ORDER_BARRIER)
            previous = 0
            for k in range(begin, end):
                ring.wait_full(full, stage, parity)
                multiply(
                    tile_sums, rows_of_a(a_ring.sub[stage], sharer, plan),
                    slices.steps(b_ring.sub[stage], plan.b_k_major), k != begin, plan, A.dtype,
                )  # fmt: skip
                T.ptx["wgmma.wait_group.sync.aligned"](plan.in_flight)
                if plan.in_flight == 0:
                    release(empty, stage, thread, rank, plan.cluster)
                elif k > begin:
                    release(empty, previous, thread, rank, plan.cluster)
                previous = stage
                stage, parity = ring.following(stage, parity, plan.stages)
            if plan.in_flight:
                T.ptx["wgmma.wait_group.sync.aligned"](0)
                release(empty, previous, thread, rank, plan.cluster)
            if plan.ping_pong:
                if item + workers < items:
                    roles.pass_turn(consumer, ORDER_BARRIER)
                # Over the slices of the other consumer's tile.
                stage, parity = ring.following(stage, parity, plan.stages, k_tiles)
            owner = True
            if parts > 1:
                owner = part == parts - 1
                if not owner:
                    slot = slot_of(tile - whole, part, rank, parts, plan)
                    split_sums.put(
                        partials.sub[slot, sharer], flags.ptr_to([slot, sharer]), sums, barrier
                    )
                elif item >= whole:
                    for other in range(parts - 1):
                        slot = slot_of(tile - whole, other, rank, parts, plan)
                        split_sums.add(
                            partials.sub[slot, sharer], flags.ptr_to([slot, sharer]), sums, barrier
                        )
            if owner:
                first_m, first_n = corner(row, column, rank, plan)
                epilogue.store(
                    C, c_buffer.sub[consumer], sums, bias, own_bias, activation,
                    first_m + sharer * plan.own_rows, first_n, barrier, plan.slabs_at_once,
                )  # fmt: skip
        epilogue.finish()
    if plan.cluster > 1:
        # Shared memory that others of the cluster write stays until they are done.
        T.cuda.cluster_sync()


@jit
def corner(row, column, rank, plan: T.constexpr):
    """The first row and column of C of the CTA ``rank`` in a cluster's place."""
    row = row * plan.cluster_m + (rank if plan.cluster_m > 1 else 0)
    column = column * plan.cluster_n + (rank if plan.cluster_n > 1 else 0)
    return row * plan.tile_m, column * plan.tile_n


@jit
def slot_of(split_tile, part, rank, parts: T.constexpr, plan: T.constexpr):
    """Where a part of one of the tiles that are split has its sums."""
    slot = (split_tile * (parts - 1) + part) * plan.cluster + rank
    T.assume(0 <= slot < plan.slots_shape[0])
    return slot


@jit
def release(empty, stage, thread, rank, cluster: T.constexpr):
    """The warpgroup reads the stage no more: it tells every CTA that loads a part of it."""
    if thread == 0:
        if cluster == 1:
            ring.release(empty, stage)
        else:
            ring.release_of_two(empty, stage, rank)


# --- the host side


MAX_WORKSPACE_BYTES = 64 << 20


def workspace(plan: TmaPlan, device):
    """(partials, flags) for a launch of the plan on the current stream of ``device``: the flags are
    zero, and so they are left."""
    import torch

    if plan.parts == 1:
        return None, None
    shape = plan.slots_shape
    partials = scratch.empty(shape, torch.float32, device)
    return partials, scratch.zeros(shape[:2], torch.int32, device)


# --- which plan

_SHAPES = (
    (TmaPlan(), 1.0),
    (TmaPlan(tile_m=256, tile_n=192, slabs=3, slabs_at_once=3, group_m=8, in_flight=1), 1.0),
    (TmaPlan(tile_n=192, stages=4, slabs=3, slabs_at_once=3), 0.9),
    (TmaPlan(tile_n=128, stages=5, slabs=2, slabs_at_once=2), 0.95),
    (TmaPlan(tile_m=64, tile_n=128, consumers=1, stages=8, slabs=2, slabs_at_once=2, in_flight=1), 0.85),
    (TmaPlan(tile_n=64, stages=8, slabs=1, slabs_at_once=1, in_flight=1), 0.8),
    (TmaPlan(tile_m=64, tile_n=64, consumers=1, stages=12, slabs=1, slabs_at_once=1, in_flight=1), 0.6),
)  # fmt: skip
"""Tiles, and how much of the tensor cores' best rate each reaches."""

_SHARED = tuple((replace(shape, cluster_n=2), rate) for shape, rate in _SHAPES[:2])
"""What else is there where rows do not start with lines of L2, and cost more of its rate."""

PARTS = (1, 2, 3, 4)
MIN_SLICES = 8
"""Along K in a part."""

# What an H200 does in a clock, for comparing plans: neither its clock nor its power is in the model.
_PRODUCTS_PER_SM = 2048
"""Multiply-adds of 16-bit elements."""
_L2_BYTES, _L2_BYTES_PER_SM = 10000, 64
"""From L2 to all SMs together, and to one."""
_LINE_BYTES, _BROKEN_LINES = 128, 1.8
"""How many times as long L2 takes for rows of 128 bytes that lie in two lines."""
_DRAM_BYTES = 2700
_TILE_CLOCKS = 1000
"""Between two tiles, beside what grows with the tile."""
_PART_CLOCKS = 4000
"""For each of a tile's parts, beside what grows with the tile: until its sums and its flag are seen."""
_EPILOGUE_BYTES_PER_SM = 64
"""To or from L2 by ordinary accesses."""


def _slice_clocks(plan: TmaPlan, rate: float, busy_sms: int, whole_lines: bool) -> float:
    """Of one slice of a tile, while ``busy_sms`` compute."""
    multiplies = plan.tile_m * plan.tile_n * TILE_K / _PRODUCTS_PER_SM / rate
    own_rows = plan.tile_m / plan.cluster_n + plan.tile_n / plan.cluster_m
    from_l2 = own_rows * TILE_K * 2 * busy_sms / _L2_BYTES * (1 if whole_lines else _BROKEN_LINES)
    return max(multiplies, from_l2, plan.stage_bytes / _L2_BYTES_PER_SM)


def _clocks(plan: TmaPlan, rate: float, m: int, n: int, k: int, whole_lines: bool) -> float:
    """Of the product with this plan, as far as waves of tiles and bytes explain it."""
    slice_count = -(-k // TILE_K)
    waves, rest = divmod(plan.pieces(m, n), plan.workers)
    tile_elems = plan.tile_m * plan.tile_n
    tile_end = _TILE_CLOCKS + 2 * tile_elems / _EPILOGUE_BYTES_PER_SM
    main = waves * slice_count * _slice_clocks(plan, rate, plan.sms, whole_lines)
    ends = waves * tile_end
    if rest:
        own = -(-slice_count // plan.parts)
        busy_sms = rest * plan.parts * plan.cluster
        main += own * _slice_clocks(plan, rate, busy_sms, whole_lines)
        ends += tile_end
    if plan.parts > 1:
        # One writes while the others do, then the last reads them one after another.
        ends += plan.parts * (_PART_CLOCKS + 4 * tile_elems / _EPILOGUE_BYTES_PER_SM)
    least = 2 * (m * k + k * n + m * n) / _DRAM_BYTES
    return max(main, least) + ends


@lru_cache(operands.REMEMBERED)
def plan_matmul(
    m: int, n: int, k: int, a_k_major: bool, b_k_major: bool, sms: int, whole_lines: bool = True
) -> TmaPlan:
    """The plan that takes the fewest clocks by the model. ``whole_lines``: the rows of A and B lie
    multiples of 128 bytes apart."""
    slice_count = -(-k // TILE_K)
    candidates: list[tuple[float, TmaPlan]] = []
    for shape, rate in _SHAPES if whole_lines else _SHAPES + _SHARED:
        for parts in PARTS[: sms // shape.cluster]:
            plan = replace(shape, parts=parts, sms=sms, a_k_major=a_k_major, b_k_major=b_k_major)
            bytes_ = 4 * math.prod(plan.slots_shape)
            worth = plan.split(m, n) and slice_count >= MIN_SLICES * parts
            if parts == 1 or (worth and bytes_ <= MAX_WORKSPACE_BYTES):
                candidates.append((_clocks(plan, rate, m, n, k, whole_lines), plan))
    return min(candidates, key=lambda entry: entry[0])[1]


def _in_whole_lines(matrix: Facts) -> bool:
    """Are its rows multiples of a line apart?"""
    return products.pitch_bytes(matrix) % _LINE_BYTES == 0


def _addressable(matrix: Facts) -> bool:
    """May TMA read or write it? Rows start at multiples of 16 bytes."""
    return (matrix.address | products.pitch_bytes(matrix)) % 16 == 0


_MMA_RATE = {2: 37e12, 4: 100e12, 8: 115e12}
"""Multiply-adds a second of ``matmul_mma``, by the bytes that rows start at multiples of."""
_WGMMA_RATE = 300e12
_COPY_RATE = 1.5e12
"""Bytes a second, read and written, of a copy to other distances between rows."""
_COPY_SECONDS = 14e-6
"""Of a copy beside that, mostly the host's."""


def _copies_pay(m: int, n: int, k: int, copied: list[Facts]) -> bool:
    """Is it faster to copy these matrices to where TMA can address them, and C back, than to leave the
    product to ``matmul_mma``? All of them 16-bit."""
    addresses = 16
    for matrix in copied:
        addresses |= matrix.address | products.pitch_bytes(matrix)
    elems = sum(math.prod(matrix.shape) for matrix in copied)
    seconds = m * n * k / _WGMMA_RATE + 4 * elems / _COPY_RATE + len(copied) * _COPY_SECONDS
    return seconds < m * n * k / _MMA_RATE[addresses & -addresses]


class _Rows(NamedTuple):
    """How an operand's rows are passed: as ``view`` of it, or copied to rows ``pitch_elems`` apart."""

    view: View | None
    pitch_elems: int | None

    def of(self, tensor):
        """The rows that the kernel reads."""
        rows = passed(tensor, self.view)
        return rows if self.pitch_elems is None else self.room(tensor).copy_(rows)

    def room(self, tensor):
        """The rows that the kernel writes for ``tensor``."""
        rows = passed(tensor, self.view)
        if self.pitch_elems is None:
            return rows
        row_count, row_elems = rows.shape
        return rows.new_empty((row_count, self.pitch_elems))[:, :row_elems]


def _rows(tensor: Facts, matrix: Facts) -> _Rows:
    """Those of ``matrix``, which ``tensor`` is described as; copies start with lines of L2."""
    view = products.view_of(tensor, matrix)
    if _addressable(matrix):
        return _Rows(view, None)
    line_elems = _LINE_BYTES // matrix.dtype.itemsize
    return _Rows(view, -(-matrix.shape[1] // line_elems) * line_elems)


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with the same facts have in common. ``spans_bytes``: from the first to the last of a, b,
    bias and out."""

    a: _Rows
    b: _Rows
    c: _Rows
    plan: TmaPlan | TcgenPlan
    spans_bytes: tuple[int, int, int, int]


@lru_cache(operands.REMEMBERED)
def _prepared(
    a: Facts, b: Facts, bias: Facts | None, out: Facts | None, simulated: str | None
) -> _Call | None:
    """The checked call; None where it is ``matmul_mma``'s."""
    products.check(a, b, bias, out)
    (m, k), n = a.shape, b.shape[1]
    device = devices.device_of(a.device)
    known = device.has_wgmma or device.has_tcgen05
    if m * n * k == 0 or m > products.MAX_EXTENT or not known:
        return None
    if out is None:
        out = Facts((m, n), (n, 1), a.dtype, a.device, 0)
    a_rows, a_k_major = products.rows_of("a", a, 1)
    b_rows, b_k_major = products.rows_of("b", b, 0)
    copied = [rows for rows in (a_rows, b_rows, out) if not _addressable(rows)]
    if copied and not _copies_pay(m, n, k, copied):
        return None
    plan: TmaPlan | TcgenPlan
    if device.has_tcgen05:
        from tilejit.kernels import matmul_tcgen05

        plan = matmul_tcgen05.plan_matmul(m, n, a_k_major, b_k_major, device.sms)
    else:
        whole_lines = all(rows in copied or _in_whole_lines(rows) for rows in (a_rows, b_rows))
        plan = plan_matmul(m, n, k, a_k_major, b_k_major, device.sms, whole_lines)
    spans = (0 if t is None else t.span_elems * t.dtype.itemsize for t in (a, b, bias, out))
    return _Call(_rows(a, a_rows), _rows(b, b_rows), _rows(out, out), plan, tuple(spans))


def matmul(a, b, *, bias=None, activation=None, out=None):
    """``activation(a @ b + bias)`` for a (M, K) and b (K, N) in float16 or bfloat16, summed in float32.

    Each of ``a`` and ``b`` may be row- or column-major, with rows (columns) further apart than they are
    long; rows that start at multiples of 16 bytes go fastest: others are copied first where that is worth
    it. ``bias`` (N,) in float32 or the inputs'
    dtype. ``activation``: "relu", "gelu" (its tanh form), "silu", or a function of one float32 as
    ``T.cuda.tile.ewise`` takes it, each object of which is compiled for. ``out`` (M, N) has rows of
    adjacent elements and shares no memory with the inputs. Returns ``out``.

    Compiled anew for a new N or K, a new distance between rows, and a new M of a column-major ``a``. A
    new M of a row-major one at most needs another of the few tile shapes and numbers of parts.
    """
    import torch

    call = _prepared(
        facts_of("a", a),
        facts_of("b", b),
        None if bias is None else facts_of("bias", bias),
        None if out is None else facts_of("out", out),
        devices.simulated(a.device),
    )
    if call is None:
        return matmul_mma.matmul(a, b, bias=bias, activation=activation, out=out)
    activation = products.activation_of(activation)
    if out is None:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    else:
        operands.result_apart(("a", "b", "bias"), (a, b, bias), out, call.spans_bytes)
    c = call.c.room(out)
    plan = call.plan
    if isinstance(plan, TmaPlan):
        matmul_tma(
            call.a.of(a), call.b.of(b), bias, c, plan, activation, *workspace(plan, a.device)
        )
    else:
        from tilejit.kernels.matmul_tcgen05 import matmul_tcgen05

        matmul_tcgen05(call.a.of(a), call.b.of(b), bias, c, plan, activation)
    return out if call.c.pitch_elems is None else out.copy_(c)
