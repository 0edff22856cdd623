"""Who runs: grid, clusters, CTAs, warps, lanes, and the coordinates of each.

CTAs are numbered cluster by cluster (``cta`` below), so that a cluster's CTAs are neighbours and a
run of whole clusters is a contiguous range. A *row* is one warp of one CTA of the running batch:
row = (cta - first cta of the batch) * warps per CTA + warp. A *thread number* is unique in the
launch: cta * warps * 32 + tid.

Not here: what the warps do (``cohort``), which of them run together (``schedule``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[Any]
"""Integers of any width."""
Bools: TypeAlias = npt.NDArray[np.bool_]
Triple: TypeAlias = tuple[int, int, int]

LANES = 32
WARPS_PER_GROUP = 4
RANK_SHIFT = 24
"""Bit of a shared address at which the CTA's rank in its cluster begins; below is the offset in the
CTA's window. Without clusters the rank is 0."""
OFFSET_MASK = (1 << RANK_SHIFT) - 1
SHARED_APERTURE = 0x0FFF << 48
"""Generic address of shared address 0: above every global one."""


def triple(extents: tuple[int, ...]) -> Triple:
    """``extents`` padded with ones to x, y, z."""
    x, y, z = (*extents, 1, 1, 1)[:3]
    return int(x), int(y), int(z)


def any_lane(lanes: Bools) -> Bools:
    """Per warp: is one of its lanes true?"""
    return np.asarray(lanes.any(axis=1))


def split(linear: Ints, extents: Triple) -> tuple[Ints, Ints, Ints]:
    """x, y, z of a linear index, x fastest."""
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Extents of one launch, in CTAs (``grid``, ``cluster``) and threads (``block``)."""

    grid: Triple
    block: Triple
    cluster: Triple = (1, 1, 1)

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of one CTA; the last may be partly populated."""
        return -(-self.threads // LANES)

    @property
    def slots(self) -> int:
        """Thread numbers of one CTA: its warps times 32."""
        return self.warps * LANES

    @property
    def ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def cluster_grid(self) -> Triple:
        """Extents of the grid in clusters."""
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster))
        return x, y, z

    def cta_coordinates(self, cta: Ints) -> tuple[Ints, Ints, Ints]:
        """``ctaid`` of CTAs numbered cluster by cluster."""
        rank = split(cta % self.cluster_size, self.cluster)
        cluster = split(cta // self.cluster_size, self.cluster_grid)
        x, y, z = (c * e + r for c, e, r in zip(cluster, self.cluster, rank))
        return x, y, z

    def describe_cta(self, cta: int) -> str:
        x, y, z = (int(v[0]) for v in self.cta_coordinates(np.array([cta])))
        return f"CTA ({x}, {y}, {z})"

    def describe_thread(self, thread: int) -> str:
        """``thread (3, 0, 0) of CTA (1, 0, 0), warp 0 lane 3`` of a thread number."""
        tid = thread % self.slots
        x, y, z = (int(v[0]) for v in split(np.array([tid]), self.block))
        cta = self.describe_cta(thread // self.slots)
        return f"thread ({x}, {y}, {z}) of {cta}, warp {tid // LANES} lane {tid % LANES}"
