"""Matrix product on Blackwell's tensor cores: TMA, tcgen05.mma, warp-specialised and persistent.

The warps of a CTA have roles. One thread of warp 0 keeps the tensor memory accelerator filling a ring of
``stages`` slices of A and B along K. One thread of warp 1 multiplies the slices with tcgen05.mma into one of
``accumulators`` in tensor memory, which warp 2 allocates and frees. Warps 4 to 7 bring a finished
accumulator to C through shared memory by TMA stores, while the next tile is computed in another one. A CTA
takes tile after tile.

With ``ctas`` = 2 a cluster of two computes a tile of 256 rows: each CTA holds 128 rows of A, half of B's
columns and its own rows' sums, and a thread of the first multiplies for both.

Run in the simulator and assembled; no GPU of this architecture has run it. ``kernels.matmul`` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilejit import T, jit
from tilejit.kernels import operands
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
from tilejit.lib.slices import K_STEP, TILE_K


@dataclass(frozen=True, kw_only=True)
class TcgenPlan(TensorPlan):
    """See the module's text."""

    a_k_major: bool = True
    b_k_major: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("a_k_major", "b_k_major"):
            operands.check_flag(name, getattr(self, name))
        if not self.b_k_major and self.own_columns % slices.PANEL:
            raise ValueError(
                f"a CTA loads {self.own_columns} columns of B, expected whole panels of {slices.PANEL}"
            )
        if self.accumulators * self.tile_n > accumulators.COLUMNS[-1]:
            raise ValueError(
                f"{self.accumulators} accumulators of {self.tile_n} columns, expected at most "
                f"{accumulators.COLUMNS[-1]} columns of tensor memory"
            )

    @property
    def stage_bytes(self) -> int:
        """Of one CTA."""
        return (ROWS + self.own_columns) * TILE_K * 2

    @property
    def columns(self) -> int:
        """Of tensor memory."""
        return accumulators.allocated(self.accumulators * self.tile_n)


# --- roles


@jit
def produce(A, B, a_ring, b_ring, full, empty, first_m, first_n, position, rank, plan: T.constexpr):
    """One thread of each CTA: the slices of a tile. Returns the next position in the ring."""
    stage, parity = position
    k_tiles = T.ceildiv(B.shape[1] if plan.b_k_major else B.shape[0], TILE_K)
    for k in range(k_tiles):
        ring.wait_empty(empty, stage, parity)
        mbar, qualifiers = announced(full, stage, rank, plan)
        slices.load(a_ring.sub[stage], A, first_m, k * TILE_K, plan.a_k_major, mbar, qualifiers)
        slices.load(b_ring.sub[stage], B, first_n, k * TILE_K, plan.b_k_major, mbar, qualifiers)
        stage, parity = ring.following(stage, parity, plan.stages)
    return stage, parity


@jit
def multiply(sums, a_ring, b_ring, full, empty, position, k_tiles, plan: T.constexpr):
    """One thread of the first CTA: sums = A @ B of a tile. Returns the next position in the ring."""
    stage, parity = position
    for k in range(k_tiles):
        ring.wait_full(full, stage, parity)
        T.cuda.tile.apply(
            T.ptx[f"tcgen05.mma.cta_group::{plan.ctas}.kind::f16"],
            sums.view(1, 1, ROWS, plan.tile_n),
            slices.steps(a_ring.sub[stage], plan.a_k_major),
            slices.steps(b_ring.sub[stage], plan.b_k_major),
            instruction_shape=(plan.tile_m, plan.tile_n, K_STEP), accum=k != 0,
            a_major="k" if plan.a_k_major else "mn", b_major="k" if plan.b_k_major else "mn",
        )  # fmt: skip
        accumulators.commit(empty.ptr_to([stage]), plan.ctas)
        stage, parity = ring.following(stage, parity, plan.stages)
    return stage, parity


# --- the kernel


@jit
def matmul_tcgen05(
    A: T.Tensor((T.dynamic("A_ROWS"), "A_COLUMNS")),
    B: T.Tensor(("B_ROWS", "B_COLUMNS")),
    bias: T.Tensor(("N",)) | None,
    C: T.Tensor((T.dynamic("M"), "N")),
    plan: T.constexpr,
    activation: T.constexpr,
):
    """C = activation(A @ B + bias); see the module's text."""
    M, N = C.shape
    K = B.shape[1] if plan.b_k_major else B.shape[0]
    k_tiles = T.ceildiv(K, TILE_K)
    tiles_m, tiles_n = T.ceildiv(M, plan.tile_m), T.ceildiv(N, plan.tile_n)
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=min(tiles_m * tiles_n, plan.workers) * plan.ctas, block=THREADS,
            cluster=plan.ctas if plan.ctas > 1 else None,
        )
    )  # fmt: skip
    a_shape = (plan.stages, *slices.shape(ROWS, plan.a_k_major))
    b_shape = (plan.stages, *slices.shape(plan.own_columns, plan.b_k_major))
    a_ring = T.alloc_shared(
        a_shape, A.dtype, layout=T.cuda.mma_shared_layout(a_shape, A.dtype), align=1024
    )
    b_ring = T.alloc_shared(
        b_shape, B.dtype, layout=T.cuda.mma_shared_layout(b_shape, B.dtype), align=1024
    )
    width = slices.PANEL
    c_shape = (plan.slabs, ROWS, width)
    c_buffer = T.alloc_shared(
        c_shape, C.dtype, layout=T.cuda.mma_shared_layout(c_shape, C.dtype), align=1024
    )
    own_bias = None
    if bias is not None:
        own_bias = T.alloc_shared((plan.tile_n,), "float32", layout="default", align=16)
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    rank, worker, workers = place = place_of(plan)
    full, empty, finished, emptied, slot = begin(warp, plan)
    sums = sums_at(slot[0], plan)

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
                    A, B, a_ring, b_ring, full, empty, row * plan.tile_m + rank * ROWS,
                    column * plan.tile_n + rank * plan.own_columns, (stage, parity), rank, plan,
                )  # fmt: skip
    elif warp == MULTIPLIER:
        if rank == 0 and lane == 0:
            stage, parity = 0, 0
            index, turn = 0, 0
            for _ in range(worker, tiles, workers):
                ring.wait_empty(emptied, index, turn)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                stage, parity = multiply(
                    sums.sub[index], a_ring, b_ring, full, empty, (stage, parity), k_tiles, plan
                )
                accumulators.commit(finished.ptr_to([index]), plan.ctas)
                index, turn = ring.following(index, turn, plan.accumulators)
    elif T.cuda.warpgroup_id() == EPILOGUE_GROUP:
        store_tiles(
            C, c_buffer, sums, bias, own_bias, activation, finished, emptied, place, rows_of_tiles,
            tiles_n, plan,
        )  # fmt: skip
    end(slot[0], warp, plan)


# --- plans


_WAVE_COST = {64: 0.34, 128: 0.56, 192: 0.78, 256: 1.0}
"""Of a tile of so many columns, in those of 256: narrower ones read more of A and B for each product.
Assumed: no GPU of this architecture was at hand to measure it."""


@lru_cache(operands.REMEMBERED)
def plan_matmul(m: int, n: int, a_k_major: bool, b_k_major: bool, sms: int) -> TcgenPlan:
    """The plan whose waves of tiles cost least by ``_WAVE_COST``; of those, pairs of CTAs, which load half
    of B each, then wide tiles."""

    def cost(plan: TcgenPlan) -> float:
        tiles = -(-m // plan.tile_m) * -(-n // plan.tile_n)
        return -(-tiles // plan.workers) * _WAVE_COST[plan.tile_n]

    plans = [
        replace(_SHAPES[ctas, tile_n], a_k_major=a_k_major, b_k_major=b_k_major, sms=sms)
        for ctas in (2, 1)
        for tile_n in reversed(WIDTHS)
        if ctas <= sms and (b_k_major or tile_n // ctas % slices.PANEL == 0)
    ]
    return min(plans, key=cost)


_STAGES_BYTES = 192 * 1024
"""Of shared memory, for stages."""


def _shape(ctas: int, tile_n: int) -> TcgenPlan:
    plan = TcgenPlan(tile_n=tile_n, ctas=ctas, accumulators=2, stages=1)
    return replace(plan, stages=min(8, _STAGES_BYTES // plan.stage_bytes))


_SHAPES = {(ctas, tile_n): _shape(ctas, tile_n) for ctas in (1, 2) for tile_n in WIDTHS}
