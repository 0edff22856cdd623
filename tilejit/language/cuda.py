"""``T.cuda``: the GPU's execution model as a kernel author sees it.

Coordinates are int32. Not here: meaning (``frontend.intrinsics``, ``ir.ops``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tilejit.dtypes import DType
from tilejit.language import tile as tile
from tilejit.language.annotations import LaunchConfig as LaunchConfig
from tilejit.language.kernel_only import outside_kernel
from tilejit.language.mma_layouts import ldmatrix_layout as ldmatrix_layout
from tilejit.language.mma_layouts import mma_fragment_layout as mma_fragment_layout
from tilejit.language.mma_layouts import mma_shared_layout as mma_shared_layout
from tilejit.language.mma_layouts import tcgen05_shared_layout as tcgen05_shared_layout
from tilejit.language.mma_layouts import wgmma_fragment_layout as wgmma_fragment_layout
from tilejit.language.mma_layouts import wgmma_shared_layout as wgmma_shared_layout
from tilejit.language.mma_layouts import wgmma_words_layout as wgmma_words_layout
from tilejit.language.tensor_memory_layouts import tmem_datapath_layout as tmem_datapath_layout
from tilejit.language.tensor_memory_layouts import (
    tmem_mma_operand_layout as tmem_mma_operand_layout,
)
from tilejit.language.tmem_register_layouts import tcgen05_ld_layout as tcgen05_ld_layout
from tilejit.layout import Layout

Axis = Literal["x", "y", "z"]


def thread_idx(axis: Axis = "x") -> Any:
    """Thread coordinate in the CTA."""
    outside_kernel("T.cuda.thread_idx")


def block_idx(axis: Axis = "x") -> Any:
    """CTA coordinate in the grid."""
    outside_kernel("T.cuda.block_idx")


def block_dim(axis: Axis = "x") -> Any:
    """Threads of the CTA along ``axis``."""
    outside_kernel("T.cuda.block_dim")


def grid_dim(axis: Axis = "x") -> Any:
    """CTAs of the grid along ``axis``."""
    outside_kernel("T.cuda.grid_dim")


def cluster_cta_id(axis: Axis = "x") -> Any:
    """CTA coordinate in its cluster."""
    outside_kernel("T.cuda.cluster_cta_id")


def cluster_cta_rank() -> Any:
    """Linear rank of the CTA in its cluster, x fastest."""
    outside_kernel("T.cuda.cluster_cta_rank")


def cluster_dim(axis: Axis = "x") -> Any:
    """CTAs of the cluster along ``axis``."""
    outside_kernel("T.cuda.cluster_dim")


def cluster_id(axis: Axis = "x") -> Any:
    """Cluster coordinate in the grid."""
    outside_kernel("T.cuda.cluster_id")


def num_clusters(axis: Axis = "x") -> Any:
    """Clusters of the grid along ``axis``."""
    outside_kernel("T.cuda.num_clusters")


def linear_thread_id() -> Any:
    """Linear thread id in the CTA, x fastest."""
    outside_kernel("T.cuda.linear_thread_id")


def lane_id() -> Any:
    """Thread in its warp, 0 to 31."""
    outside_kernel("T.cuda.lane_id")


def warp_id() -> Any:
    """Warp in the CTA."""
    outside_kernel("T.cuda.warp_id")


def warpgroup_id() -> Any:
    """Warpgroup (four warps) in the CTA."""
    outside_kernel("T.cuda.warpgroup_id")


def warp_in_warpgroup() -> Any:
    """Warp in its warpgroup, 0 to 3."""
    outside_kernel("T.cuda.warp_in_warpgroup")


def thread_in_warpgroup() -> Any:
    """Thread in its warpgroup, 0 to 127."""
    outside_kernel("T.cuda.thread_in_warpgroup")


def cta_sync() -> None:
    """Join all threads of the CTA and order their memory."""
    outside_kernel("T.cuda.cta_sync")


def warp_sync() -> None:
    """Join the 32 lanes of a warp and order their memory."""
    outside_kernel("T.cuda.warp_sync")


def warpgroup_sync(barrier_id: int) -> None:
    """Join the 128 threads of a warpgroup on named barrier ``barrier_id`` (1 to 15)."""
    outside_kernel("T.cuda.warpgroup_sync")


def cluster_sync() -> None:
    """Join all threads of the cluster and order their memory."""
    outside_kernel("T.cuda.cluster_sync")


def cluster_arrive() -> None:
    """The first half of ``cluster_sync``: this thread has arrived, its memory is released.

    What stands between ``cluster_arrive`` and ``cluster_wait`` runs while the others arrive.
    """
    outside_kernel("T.cuda.cluster_arrive")


def cluster_wait() -> None:
    """The second half of ``cluster_sync``: wait until all threads of the cluster have arrived."""
    outside_kernel("T.cuda.cluster_wait")


def grid_sync() -> None:
    """Join all threads of the grid and order their memory; needs ``LaunchConfig(cooperative=True)``."""
    outside_kernel("T.cuda.grid_sync")


def named_barrier_sync(barrier_id: Any, threads: int) -> None:
    """``bar.sync barrier_id, threads``: ids 0 to 15, threads a multiple of 32.

    The id may be a run-time value that is the same in a warp and provably in range.
    """
    outside_kernel("T.cuda.named_barrier_sync")


def named_barrier_arrive(barrier_id: Any, threads: int) -> None:
    """``bar.arrive barrier_id, threads``: count as arrived without waiting.

    ``threads`` counts those who arrive and those who wait (``named_barrier_sync``) together.
    """
    outside_kernel("T.cuda.named_barrier_arrive")


def fence_cta() -> None:
    """``fence.acq_rel.cta``"""
    outside_kernel("T.cuda.fence_cta")


def fence_gpu() -> None:
    """``fence.acq_rel.gpu``"""
    outside_kernel("T.cuda.fence_gpu")


def mbarrier_wait(mbar: Any, phase: Any) -> None:
    """Wait until the phase of parity ``phase`` (0 or 1) of ``mbar`` completes.

    ``mbar`` is a shared pointer (``bar.ptr_to([0])``), of this CTA. A loop around
    ``mbarrier.try_wait.parity``; acquires at CTA scope, which also covers the bytes that
    asynchronous copies have written.
    """
    outside_kernel("T.cuda.mbarrier_wait")


def mbarrier_wait_acquire_cluster(mbar: Any, phase: Any) -> None:
    """``mbarrier_wait`` that acquires at cluster scope: what threads of other CTAs wrote before they
    arrived is visible."""
    outside_kernel("T.cuda.mbarrier_wait_acquire_cluster")


def map_shared_rank(pointer: Any, rank: Any) -> Any:
    """The address of the CTA of rank ``rank`` in the cluster that corresponds to ``pointer`` here.

    A uint32, for raw instructions on ``.shared::cluster`` memory (``mapa``).
    """
    outside_kernel("T.cuda.map_shared_rank")


def decl_tmem(
    address: Any, shape: Sequence[int], dtype: DType | str, *, layout: Layout | str
) -> Any:
    """A tensor in tensor memory from ``address`` on: the uint32 that ``tcgen05.alloc`` wrote, or a later one.

    ``layout`` runs over ``TLane``, lanes from 0 to 127, and ``TCol``, columns of 32 bits counted in
    elements of ``dtype``: ``"(128,64):(1@TLane,1@TCol)"``; copies in other lanes are replicas. Nothing is
    allocated, and nothing read or written but by tcgen05 instructions.
    """
    outside_kernel("T.cuda.decl_tmem")


def get_tmem_addr(base: Any, row: Any, col: Any) -> Any:
    """The tensor memory address ``row`` lanes and ``col`` columns after ``base``, a uint32."""
    outside_kernel("T.cuda.get_tmem_addr")


def shfl_idx(x: Any, lane: Any) -> Any:
    """``x`` of lane ``lane``; all 32 lanes take part."""
    outside_kernel("T.cuda.shfl_idx")


def shfl_xor(x: Any, mask: Any) -> Any:
    """``x`` of lane ``lane_id ^ mask``; all 32 lanes take part."""
    outside_kernel("T.cuda.shfl_xor")


def shfl_up(x: Any, delta: Any) -> Any:
    """``x`` of lane ``lane_id - delta``, the own ``x`` below lane 0; all 32 lanes take part."""
    outside_kernel("T.cuda.shfl_up")


def shfl_down(x: Any, delta: Any) -> Any:
    """``x`` of lane ``lane_id + delta``, the own ``x`` past lane 31; all 32 lanes take part."""
    outside_kernel("T.cuda.shfl_down")


def all_sync(condition: Any) -> Any:
    """True when ``condition`` holds in all 32 lanes."""
    outside_kernel("T.cuda.all_sync")


def any_sync(condition: Any) -> Any:
    """True when ``condition`` holds in some lane."""
    outside_kernel("T.cuda.any_sync")


def ballot_sync(condition: Any) -> Any:
    """uint32 whose bit i is lane i's ``condition``."""
    outside_kernel("T.cuda.ballot_sync")


def elect_sync() -> Any:
    """True in exactly one lane of the (full) warp."""
    outside_kernel("T.cuda.elect_sync")
