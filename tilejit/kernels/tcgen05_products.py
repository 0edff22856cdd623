"""What the products on Blackwell's tensor cores share: roles of warps, tiles, the way from sums to C.

The warps of a CTA have roles: warp 0 produces, warp 1 multiplies, warp 2 allocates tensor memory and frees
it, warps 4 to 7 bring finished accumulators to C. One CTA computes a tile of 128 rows, or two CTAs, a
cluster, one of 256, where the first multiplies for both.

Not here: slices and what multiplies them (``kernels.matmul_tcgen05``, ``kernels.matmul_block_scaled``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilejit import T, jit
from tilejit.kernels import products
from tilejit.lib import accumulators, epilogue, ring, schedulers

ROWS = accumulators.ROWS
"""Of a tile in each CTA."""
WIDTHS = (64, 128, 192, 256)
THREADS = 256
PRODUCER, MULTIPLIER, ALLOCATOR = 0, 1, 2
"""Warps."""
EPILOGUE_GROUP = 1
"""The warpgroup of warps 4 to 7."""
EPILOGUE_WARPS = 4
EPILOGUE_BARRIER = 1


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """``tile_n``: columns of a tile. ``ctas``: that compute it. ``order``, ``group_m``: of tiles, by
    ``schedulers.place``. ``slabs``: 128-byte-wide parts of C that are on their way at a time. ``sms``: CTAs
    that run at a time. A product's plan has ``stage_bytes`` of a CTA, and ``columns`` of tensor memory to
    allocate."""

    tile_n: int = 256
    stages: int = 4
    accumulators: int = 2
    ctas: int = 1
    group_m: int = 16
    order: str = "grouped"
    slabs: int = 2
    sms: int = 148

    COUNTS: ClassVar[tuple[str, ...]] = (
        "tile_n", "stages", "accumulators", "ctas", "group_m", "slabs", "sms",
    )  # fmt: skip
    """Fields of which there is at least one."""

    def __post_init__(self) -> None:
        for name in self.COUNTS:
            products.check_count(name, getattr(self, name))
        if self.order not in schedulers.ORDERS:
            raise ValueError(f"order is {self.order!r}, expected {', '.join(schedulers.ORDERS)}")
        if self.ctas > 2:
            raise ValueError(f"{self.ctas} CTAs compute a tile, expected 1 or 2")
        if self.sms < self.ctas:
            raise ValueError(f"{self.sms} SMs run no pair of CTAs at a time, expected at least 2")
        if self.order == "hilbert" and self.group_m & (self.group_m - 1):
            raise ValueError(f"Hilbert's curve over {self.group_m} rows, expected a power of two")
        if self.tile_n not in WIDTHS:
            raise ValueError(f"a tile has {self.tile_n} columns, expected one of {WIDTHS}")

    @property
    def tile_m(self) -> int:
        """Rows of a tile, of all its CTAs."""
        return ROWS * self.ctas

    @property
    def own_columns(self) -> int:
        """Columns of B that a CTA loads."""
        return self.tile_n // self.ctas

    @property
    def workers(self) -> int:
        """Tiles that are computed at a time."""
        return self.sms // self.ctas


@jit
def place_of(plan: T.constexpr):
    """(rank of the CTA in its tile, number of the worker, workers): a worker computes tile after tile."""
    rank, worker, workers = 0, T.cuda.block_idx("x"), T.cuda.grid_dim("x")
    if plan.ctas == 2:
        rank = T.cuda.cluster_cta_rank()
        worker, workers = T.cuda.cluster_id("x"), T.cuda.num_clusters("x")
    T.assume(0 < workers <= plan.workers)
    return rank, worker, workers


@jit
def begin(warp, plan: T.constexpr):
    """All threads: (full, empty, finished, emptied, slot). The barriers of the ring of stages and of that of
    accumulators, which are ``finished`` when they hold a tile's sums; the word with the address of the
    plan's columns of tensor memory."""
    slot = T.alloc_shared((1,), "uint32", align=16)
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    finished = T.alloc_shared((plan.accumulators,), "uint64", align=8)
    emptied = T.alloc_shared((plan.accumulators,), "uint64", align=8)
    ring.create(full, empty, 1, 1, plan.ctas == 2)
    ring.create(finished, emptied, 1, EPILOGUE_WARPS * plan.ctas, plan.ctas == 2)
    if warp == ALLOCATOR:
        accumulators.allocate(slot, plan.columns, plan.ctas)
    accumulators.publish(plan.ctas)
    return full, empty, finished, emptied, slot


@jit
def sums_at(address, plan: T.constexpr):
    """(accumulators, rows of the CTA, columns) of tensor memory from ``address`` on."""
    shape = (plan.accumulators, ROWS, plan.tile_n)
    return T.cuda.decl_tmem(
        address, shape, "float32",
        layout=T.cuda.tmem_mma_operand_layout(
            "D", shape, "float32", M=plan.tile_m, cta_group=plan.ctas
        ),
    )  # fmt: skip


@jit
def announced(full, stage, rank, plan: T.constexpr):
    """A producer announces a stage's bytes to the tile's first CTA, whose ``full`` counts those of both.
    Returns the barrier that they complete on, and what the opcode of their copies says of it."""
    if rank == 0:
        ring.announce(full, stage, plan.stage_bytes * plan.ctas)
    if plan.ctas == 2:
        return T.cuda.map_shared_rank(full.ptr_to([stage]), 0), ".cta_group::2"
    return full.ptr_to([stage]), ""


@jit
def store_tiles(
    C, buffer, sums, bias, own_bias, activation, finished, emptied, place, tiles_m, tiles_n,
    plan: T.constexpr,
):  # fmt: skip
    """The epilogue's warpgroup: every tile of the worker goes to C; see ``accumulators.store``. ``place``:
    ``place_of``'s."""
    rank, worker, workers = place
    index, turn = 0, 0
    for tile in range(worker, tiles_m * tiles_n, workers):
        row, column = schedulers.place(tile, tiles_m, tiles_n, plan.order, plan.group_m)
        ring.wait_full(finished, index, turn)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        accumulators.store(
            C, buffer, sums.sub[index], bias, own_bias, activation, row * plan.tile_m + rank * ROWS,
            column * plan.tile_n, EPILOGUE_BARRIER, emptied.ptr_to([index]), plan.ctas,
        )  # fmt: skip
        index, turn = ring.following(index, turn, plan.accumulators)
    epilogue.finish()


@jit
def end(address, warp, plan: T.constexpr):
    """All threads: everybody is done, and the plan's columns are free."""
    accumulators.publish(plan.ctas)
    if warp == ALLOCATOR:
        accumulators.free(address, plan.columns, plan.ctas)
