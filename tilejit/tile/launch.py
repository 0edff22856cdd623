"""The hardware ids of a launch as values: exact per thread where static, symbols where not.

Not here: other expressions (``tile.values``).
"""

from __future__ import annotations

import numpy as np

from tilejit.ir import nodes
from tilejit.tile.affine import CLUSTER, GRID, Affine, Number, Symbol, Threads, of_symbol, settle


def launch_values(
    threads: Threads, launch: nodes.LaunchConfig, grid: tuple[Affine, ...]
) -> tuple[dict[str, Affine], tuple[Affine, ...]]:
    """The hardware ids of a launch, and the inequalities between them. ``grid`` x first."""
    block = tuple(launch.block) + (1,) * (3 - len(launch.block))
    cluster = tuple(launch.cluster or ()) + (1,) * (3 - len(launch.cluster or ()))
    thread = np.arange(threads.total, dtype=np.int64)
    rank, tid = settle(thread // threads.per_cta), thread % threads.per_cta
    ids: dict[str, Affine] = {}
    facts: list[Affine] = []

    def put(name: str, values: Number) -> None:
        ids[name] = Affine(settle(values))

    for name, extent in (
        (("tid", tid), ("laneid", tid % 32), ("warpid", tid // 32), ("warpgroupid", tid // 128),
         ("warp_in_warpgroup", tid // 32 % 4), ("tid_in_warpgroup", tid % 128),
         ("cluster_ctarank", rank))
    ):  # fmt: skip
        put(name, extent)
    inner_tid: Number = tid
    inner_rank = rank
    for position, axis in enumerate("xyz"):
        put(f"tid.{axis}", inner_tid % block[position])
        put(f"ntid.{axis}", block[position])
        put(f"cluster_ctaid.{axis}", inner_rank % cluster[position])
        put(f"cluster_nctaid.{axis}", cluster[position])
        inner_tid = settle(inner_tid // block[position])
        inner_rank = settle(inner_rank // cluster[position])
        count, known = _grid_axis(grid, launch, position)
        ids[f"nctaid.{axis}"] = count
        per = cluster[position]
        highest = known if known is not None else launch.grid_bound[position]
        clusters = max(1, highest // per)
        level = GRID if clusters == 1 and known is not None else CLUSTER
        symbol = Symbol(
            f"clusterid.{axis}" if per > 1 else f"ctaid.{axis}", 0, clusters - 1, level=level,
            attained=known is not None,
        )  # fmt: skip
        ids[f"clusterid.{axis}"] = of_symbol(symbol) if clusters > 1 else Affine()
        ids[f"ctaid.{axis}"] = ids[f"clusterid.{axis}"].scaled(per) + ids[f"cluster_ctaid.{axis}"]
        ids[f"nclusterid.{axis}"] = (
            Affine(clusters)
            if known is not None
            else of_symbol(Symbol(f"nclusterid.{axis}", 1, clusters, level=GRID))
        )
        if known is None:
            facts.append(count - ids[f"ctaid.{axis}"] - 1)
    return ids, tuple(facts)


def _grid_axis(
    grid: tuple[Affine, ...], launch: nodes.LaunchConfig, position: int
) -> tuple[Affine, int | None]:
    """Number of CTAs along an axis, and that number when it is static."""
    if launch.grid is None:
        bound = launch.grid_bound[position]
        return of_symbol(Symbol(f"nctaid.{'xyz'[position]}", 1, bound, level=GRID)), None
    if position >= len(grid):
        return Affine(1), 1
    return grid[position], grid[position].constant
