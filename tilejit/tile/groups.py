"""Execution groups: which threads take part in a tile call, and at which group coordinates.

The active set at a call is exact per thread (``tile.affine.Context.mask``). A scope cuts the cluster
into units (a warp, a warpgroup, a CTA, the cluster); in each unit the active threads must be a full
rectangle of the group axes, and all units must have one shape. A coordinate is the rank among the
active values of its axis: lanes 8 to 15 have coordinates 0 to 7.

Source: contract "execution groups". Not here: facts, regions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tilejit.errors import Report, Span
from tilejit.ir.nodes import LaunchConfig, Scope
from tilejit.tile.affine import (
    CLUSTER,
    CTA,
    GRID,
    LEVEL_NAMES,
    THREAD,
    WARP,
    WARPGROUP,
    Context,
    IntArray,
)

CONTRACT = "docs/contract/groups.md"
SCOPE_LEVEL: dict[Scope, int] = {
    "thread": THREAD, "warp": WARP, "warpgroup": WARPGROUP, "cta": CTA, "cluster": CLUSTER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """One group axis: its name in messages and its extent."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The active threads of a call. ``threads``: their numbers in the cluster (CTA rank major).

    ``coords[i]``: coordinates of thread ``threads[i]`` along ``axes``; ``values[i]``: the lane, warp
    or CTA numbers they stand for. ``ids[i]``: the unit the thread belongs to. ``elected``: of each warp one unspecified lane executes; all candidates are listed.
    """

    scope: Scope
    axes: tuple[Axis, ...]
    threads: IntArray
    coords: IntArray
    values: IntArray
    ids: IntArray
    elected: bool
    per_cta: int
    _leaders: list[Group] = field(default_factory=list)
    _warpgroups: list[Group] = field(default_factory=list)

    @property
    def leaders(self) -> Group:
        """Lane 0 of every warp, for what all lanes of a warp have in common. Warps are whole."""
        if not self._leaders:
            first = self.threads % self.per_cta % 32 == 0
            self._leaders.append(
                replace(
                    self,
                    threads=self.threads[first],
                    coords=self.coords[first],
                    values=self.values[first],
                    ids=self.ids[first],
                    _leaders=[],
                )
            )
        return self._leaders[0]

    @property
    def warpgroups(self) -> Group:
        """Thread 0 of every warpgroup, for what its threads have in common; in CTA scope the only axis
        counts the warpgroups. Warpgroups are whole."""
        if not self._warpgroups:
            first = self.threads % self.per_cta % 128 == 0
            axes: tuple[Axis, ...] = ()
            coords, values = self.coords[first, :0], self.values[first, :0]
            if self.scope == "cta":
                axes = (Axis("warpgroup", self.axes[0].extent // 4),)
                coords, values = self.coords[first, :1] // 4, self.values[first, :1] // 4
            self._warpgroups.append(
                replace(
                    self, axes=axes, threads=self.threads[first], coords=coords, values=values,
                    ids=self.ids[first], _leaders=[], _warpgroups=[],
                )
            )  # fmt: skip
        return self._warpgroups[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the group prefix of a thread instruction's operands."""
        return tuple(axis.extent for axis in self.axes)

    def describe(self, index: int) -> str:
        """Active thread ``threads[index]`` in words."""
        thread = int(self.threads[index])
        cta, tid = divmod(thread, self.per_cta)
        text = f"thread {tid} (warp {tid // 32}, lane {tid % 32})"
        return f"CTA rank {cta}, {text}" if self._spans_ctas else text

    @property
    def _spans_ctas(self) -> bool:
        return self.threads.size > 0 and int(self.threads[-1]) >= self.per_cta

    # --- warp collectives


def find_group(
    context: Context, scope: Scope, launch: LaunchConfig, report: Report, span: Span | None
) -> Group | None:
    """The group of a call in ``scope``; None after reporting why there is none."""
    if scope == "cluster" and launch.cluster is None:
        report.error(
            "scope/cluster",
            'scope="cluster" in a kernel that is launched without a cluster',
            span=span,
            contract=f"{CONTRACT}: cluster scope requires an explicit launch cluster",
            help="give LaunchConfig(cluster=…)",
        )
        return None
    threads = np.flatnonzero(context.mask)
    per_cta = context.threads.per_cta
    ids = context.threads.unit_ids(SCOPE_LEVEL[scope])[threads]
    if scope == "thread":
        nothing = np.zeros((threads.size, 0), dtype=np.int64)
        return Group(scope, (), threads, nothing, nothing, ids, context.elected, per_cta)
    if not _uniform(context, scope, report, span):
        return None
    columns = _columns(scope, threads, per_cta, launch)
    if context.elected:
        columns[-1] = ("lane", np.zeros_like(threads))
    axes: list[Axis] = []
    values = np.column_stack([column for _, column in columns])
    coords = np.zeros((threads.size, len(columns)), dtype=np.int64)
    for position, (name, column) in enumerate(columns):
        extent, ranks = _ranks(column, ids)
        if extent is None:
            _report_uneven(scope, name, column, ids, report, span)
            return None
        axes.append(Axis(name, extent))
        coords[:, position] = ranks
    group = Group(scope, tuple(axes), threads, coords, values, ids, context.elected, per_cta)
    if not _rectangular(group, report, span):
        return None
    return group


def _uniform(context: Context, scope: Scope, report: Report, span: Span | None) -> bool:
    """A run-time guard must be alike for the whole unit."""
    if context.level >= SCOPE_LEVEL[scope]:
        return True
    known = LEVEL_NAMES[context.level]
    report.error(
        "scope/divergent",
        f'scope="{scope}" under a guard on a run-time value that can differ between the '
        f"{'threads' if context.level == THREAD else known + 's'} of a {scope}",
        span=span,
        contract=f"{CONTRACT}: a guard on a run-time value must be uniform over the group",
        help=f'use scope="{known}", or guard with a value that all threads of the {scope} share',
    )
    return False


def _columns(
    scope: Scope, threads: IntArray, per_cta: int, launch: LaunchConfig
) -> list[tuple[str, IntArray]]:
    """Name and value of every group axis, outermost first."""
    rank, tid = threads // per_cta, threads % per_cta
    warp, lane = tid // 32, tid % 32
    if scope == "warp":
        return [("lane", lane)]
    if scope == "warpgroup":
        return [("warp_in_group", warp % 4), ("lane", lane)]
    columns = [("warp", warp), ("lane", lane)]
    if scope == "cluster":
        inner = rank
        for axis, extent in zip("xyz", launch.cluster or ()):
            columns.insert(0, (f"cta_{axis}", inner % extent))
            inner = inner // extent
    return columns


def _ranks(values: IntArray, ids: IntArray) -> tuple[int | None, IntArray]:
    """Extent of an axis and every thread's rank on it; None when units differ in what is active."""
    base = int(values.max()) + 1
    pairs, inverse = np.unique(ids * base + values, return_inverse=True)
    unit = pairs // base
    starts = np.flatnonzero(np.diff(unit, prepend=unit[0] - 1))
    sizes = np.diff(starts, append=unit.size)
    ranks = np.arange(pairs.size) - np.repeat(starts, sizes)
    extent = int(sizes[0])
    if not bool((sizes == extent).all()):
        return None, ranks
    active = (pairs % base).reshape(-1, extent)
    return (extent if bool((active == active[:1]).all()) else None), ranks[inverse]


def _rectangular(group: Group, report: Report, span: Span | None) -> bool:
    """Every unit has exactly one active thread at every coordinate (an election leaves one lane)."""
    volume = int(np.prod(group.shape))
    sizes = np.unique(group.ids, return_counts=True)[1]
    if group.elected:
        distinct = np.unique(np.column_stack((group.ids, group.coords)), axis=0)
        sizes = np.unique(distinct[:, 0], return_counts=True)[1]
    if bool((sizes == volume).all()):
        return True
    missing = _first_missing(group)
    axes = " × ".join(f"{axis.extent} {axis.name}" for axis in group.axes)
    report.error(
        "scope/not-a-rectangle",
        f'the active threads of this scope="{group.scope}" call are not a full rectangle of its '
        f"axes: {axes} is {volume} threads, {int(sizes.min())} are active",
        span=span,
        where=missing,
        contract=f"{CONTRACT}: extents come from the active execution scope",
        help="guard on whole warps and equal lanes (warp < 2, lane < 16), or use a smaller scope",
    )
    return False


def _first_missing(group: Group) -> str:
    """The first coordinate, as a thread, that is not active."""
    active = set(group.threads.tolist())
    per_cta = group.per_cta
    for unit in np.unique(group.ids):
        chosen = group.threads[group.ids == unit]
        rank, tid = chosen // per_cta, chosen % per_cta
        for cta in np.unique(rank):
            for warp in np.unique(tid // 32):
                for lane in np.unique(tid % 32):
                    if int(cta * per_cta + warp * 32 + lane) not in active:
                        return f"thread {warp * 32 + lane} (warp {warp}, lane {lane}) is not active"
    return "an inactive thread lies inside the rectangle"


def _report_uneven(
    scope: Scope, name: str, values: IntArray, ids: IntArray, report: Report, span: Span | None
) -> None:
    sets = {int(u): np.unique(values[ids == u]).tolist() for u in np.unique(ids)}
    first = next(iter(sets.items()))
    other = next(item for item in sets.items() if item[1] != first[1])
    report.error(
        "scope/uneven",
        f'the active {scope}s of this scope="{scope}" call differ along {name}: '
        f"{scope} {first[0]} has {_listed(first[1])}, {scope} {other[0]} has {_listed(other[1])}",
        span=span,
        contract=f"{CONTRACT}: group shapes agree",
        help="guard so that every one that executes has the same lanes and warps",
    )


def _listed(values: list[int]) -> str:
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return ", ".join(map(str, values))


def full_warps(group: Group, context: Context, report: Report, span: Span | None) -> bool:
    """Whether all 32 lanes of every active warp take part, as a warp collective requires."""
    help_ = "guard whole warps: with T.cuda.warp_id(), or a value that a warp's lanes share"
    if group.elected or context.level < WARP:
        why = "elect_sync leaves one lane" if group.elected else "a guard differs between its lanes"
        report.error(
            "scope/partial-warp",
            f"this instruction needs all 32 lanes of a warp, and {why}",
            span=span,
            contract=f"{CONTRACT}: all 32 lanes must participate",
            help=help_,
        )
        return False
    warps, counts = np.unique(
        group.threads // group.per_cta * (1 << 20) + group.threads % group.per_cta // 32,
        return_counts=True,
    )
    if bool((counts == 32).all()):
        return True
    worst = int(np.flatnonzero(counts != 32)[0])
    report.error(
        "scope/partial-warp",
        f"this instruction needs all 32 lanes of a warp; warp {int(warps[worst]) % (1 << 20)} has "
        f"{int(counts[worst])} active",
        span=span,
        contract=f"{CONTRACT}: all 32 lanes must participate",
        help=help_,
    )
    return False


def full_warpgroups(group: Group, context: Context, report: Report, span: Span | None) -> bool:
    """Whether all 128 threads of every active warpgroup take part, as a warpgroup collective requires."""
    help_ = "guard whole warpgroups: with T.cuda.warpgroup_id(), or a value that its threads share"
    why = None
    if group.elected or context.level < WARPGROUP:
        why = (
            "elect_sync leaves one lane" if group.elected else "a guard differs between its threads"
        )
    else:
        numbers = group.threads // group.per_cta * (1 << 20) + group.threads % group.per_cta // 128
        warpgroups, counts = np.unique(numbers, return_counts=True)
        if bool((counts == 128).all()):
            return True
        worst = int(np.flatnonzero(counts != 128)[0])
        number = int(warpgroups[worst]) % (1 << 20)
        why = f"warpgroup {number} (warps {4 * number} to {4 * number + 3}) has {int(counts[worst])} active"
    report.error(
        "scope/partial-warpgroup",
        f"this instruction needs all 128 threads of a warpgroup, four warps from a multiple of four on; "
        f"{why}",
        span=span,
        contract=f"{CONTRACT}: all 128 threads must participate",
        help=help_,
    )
    return False


def thread_level(scope: Scope) -> int:
    """The uniformity an operand's origin needs in this scope."""
    return SCOPE_LEVEL[scope] if scope != "thread" else THREAD


__all__ = [
    "CONTRACT", "GRID", "Axis", "Group", "find_group", "full_warpgroups", "full_warps", "thread_level",
]  # fmt: skip
