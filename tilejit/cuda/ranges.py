"""Integer intervals: the little that is known about a value while its text is written.

An interval is exact or too wide, never too narrow. Known intervals choose plain signed arithmetic
where nothing can overflow, unsigned 32-bit division, and tell that an index is one number.

Not here: facts for contracts (``tile.facts``), which know far more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir import nodes
from tilejit.target import TARGETS


class Interval(NamedTuple):
    """``low <= value <= high``."""

    low: int
    high: int

    @property
    def value(self) -> int | None:
        """The one value, if there is only one."""
        return self.low if self.low == self.high else None

    def within(self, low: int, high: int) -> bool:
        return low <= self.low and self.high <= high

    def fits(self, dtype: DType) -> bool:
        low, high = dtypes.integer_range(dtype)
        return low <= self.low and self.high <= high


_FULL = {d.name: Interval(*dtypes.integer_range(d)) for d in dtypes.ALL if not d.is_float}


def full(dtype: DType) -> Interval:
    """Everything an integer or bool type holds."""
    return _FULL[dtype.name]


def clip(interval: Interval, dtype: DType) -> Interval:
    """``interval`` if ``dtype`` holds all of it without wrapping, else all of ``dtype``."""
    return interval if interval.fits(dtype) else full(dtype)


def union(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.low, b.low), max(a.high, b.high))


def add(a: Interval, b: Interval) -> Interval:
    return Interval(a.low + b.low, a.high + b.high)


def sub(a: Interval, b: Interval) -> Interval:
    return Interval(a.low - b.high, a.high - b.low)


def mul(a: Interval, b: Interval) -> Interval:
    products = (a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
    return Interval(min(products), max(products))


def floordiv(a: Interval, b: Interval) -> Interval | None:
    """None where the divisor may be zero or negative."""
    if b.low < 1:
        return None
    quotients = (a.low // b.low, a.low // b.high, a.high // b.low, a.high // b.high)
    return Interval(min(quotients), max(quotients))


def mod(a: Interval, b: Interval) -> Interval | None:
    """None where the divisor may be zero or negative."""
    if b.low < 1:
        return None
    if a.low >= 0 and a.high < b.low:
        return a
    return Interval(0, b.high - 1)


def bitand(a: Interval, b: Interval) -> Interval | None:
    bounds = [i.high for i in (a, b) if i.low >= 0]
    return Interval(0, min(bounds)) if bounds else None


def bitor(a: Interval, b: Interval) -> Interval | None:
    if a.low < 0 or b.low < 0:
        return None
    return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1)


def shl(a: Interval, count: Interval) -> Interval | None:
    if not count.within(0, 63):
        return None
    return mul(a, Interval(1 << count.low, 1 << count.high))


def shr(a: Interval, count: Interval) -> Interval | None:
    if not count.within(0, 63):
        return None
    shifted = (a.low >> count.low, a.low >> count.high, a.high >> count.low, a.high >> count.high)
    return Interval(min(shifted), max(shifted))


@dataclass(slots=True)
class Known:
    """Intervals of hardware coordinates and of variables that never change."""

    launch: nodes.LaunchConfig
    target: str
    variables: dict[str, Interval] = field(default_factory=dict)
    _hardware: dict[str, Interval] = field(default_factory=dict)

    def hardware(self, name: str) -> Interval:
        """The interval of a ``HardwareId``."""
        found = self._hardware.get(name)
        if found is None:
            found = self._hardware[name] = self._by_launch(name)
        return found

    def _by_launch(self, name: str) -> Interval:
        threads = self.launch.threads
        head, _, axis = name.partition(".")
        fixed = {
            "tid": threads, "laneid": min(32, threads), "warpid": -(-threads // 32),
            "warpgroupid": -(-threads // 128), "warp_in_warpgroup": min(4, -(-threads // 32)),
            "tid_in_warpgroup": min(128, threads),
        }  # fmt: skip
        if not axis and head in fixed:
            return Interval(0, fixed[head] - 1)
        position = "xyz".find(axis) if axis else 0
        block = (*self.launch.block, 1, 1)[position]
        grid = self.launch.grid_bound[position]
        cluster = (*(self.launch.cluster or ()), 1, 1, 1)[position]
        if head == "tid":
            return Interval(0, block - 1)
        if head == "ntid":
            return Interval(block, block)
        if head in ("ctaid", "clusterid"):
            return Interval(0, max(0, grid - 1))
        if head in ("nctaid", "nclusterid"):
            return Interval(1, max(1, grid))
        if head == "cluster_ctaid":
            return Interval(0, cluster - 1)
        if head == "cluster_nctaid":
            return Interval(cluster, cluster)
        if head == "cluster_ctarank":
            return Interval(0, max(1, TARGETS[self.target].limits.max_cluster_ctas) - 1)
        return full(dtypes.int32)
