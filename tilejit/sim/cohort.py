"""A cohort: warps at one program counter, their variables, registers and lane masks.

State is arrays over (warps, 32); values equal in all lanes may have one column, values equal
everywhere one row and one column. Lanes diverge by masks kept in frames; warps that must go
separate ways (because one of them may wait) leave by ``split`` and return by ``merge``.

A mask of None means every lane of every warp. Arrays are never changed in place.

Not here: when cohorts split and merge (``program``, ``schedule``), what operations do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.geometry import LANES, Bools, Ints
from tilejit.sim.memory import Lanes
from tilejit.sim.registers import Mask, RegisterFile, pick, stack

if TYPE_CHECKING:
    from tilejit.sim.barrier import Wait
    from tilejit.sim.batch import Batch
    from tilejit.sim.mbarrier import Suspension
    from tilejit.sim.spinning import Turn

Array: TypeAlias = npt.NDArray[Any]

STOP = -1
"""What an operation returns for the next place when its cohort cannot go on now, or has ended."""
NOT_A_SCOPE: Bools = np.zeros((1, 1), np.bool_)
"""The scope mask of variables whose scope mask was lost in a merge."""

Others: TypeAlias = tuple[int, bool]
"""Where the lanes go on that are not in a branch or loop: behind the statement of that id, or (True) in its
other side."""


@dataclass(slots=True, eq=False)
class IfFrame:
    """``outer``: the lanes to continue with after the If; ``orelse``: those that go to its else;
    ``others``: where the lanes are that are not in the branch now."""

    outer: Mask
    orelse: Mask
    others: Others


@dataclass(slots=True, eq=False)
class LoopFrame:
    """``outer``: the lanes to continue with after the loop; ``live``: those still in it.
    ``others``: where those are that are not in it now.

    ``counter`` and ``stop`` (For only) are int64 arrays.
    """

    outer: Mask
    live: Mask
    others: Others
    counter: Array | None = None
    stop: Array | None = None


Frame: TypeAlias = IfFrame | LoopFrame


@dataclass(slots=True, eq=False)
class Cohort:
    """``rows``: the warps, as rows of the batch. Variables live in ``values`` by slot; ``unset``
    holds the lanes in which a variable has no value (None: nowhere); ``scopes`` the mask under
    which it was declared, so that an assignment by the same lanes needs no merging. ``held``: what
    the last wait for a phase failed for; ``polled``: the same of a test that never waits;
    ``suspension``: what holds the cohort up; ``turn`` and ``spins``: see ``spinning``."""

    batch: Batch
    rows: Ints
    pc: int
    values: list[Array | None]
    unset: list[Mask]
    scopes: list[Mask]
    files: dict[str, RegisterFile]
    mask: Mask = None
    frames: list[Frame] = field(default_factory=list)
    wait: Wait | None = None
    held: Suspension | None = None
    polled: Suspension | None = None
    suspension: Suspension | None = None
    ids: dict[str, Array] = field(default_factory=dict)
    turns: int = 0
    turn: Turn | None = None
    spins: bool = False
    lanes_for: tuple[Mask, int, Lanes] | None = None

    @property
    def warps(self) -> int:
        return int(self.rows.size)

    # --- masks

    def any_active(self) -> bool:
        return self.mask is None or bool(self.mask.any())

    def mask_array(self) -> Bools:
        """The active lanes as an array of (warps, 32)."""
        if self.mask is None:
            return _all_lanes(self.warps)
        shape = (self.warps, LANES)
        return self.mask if self.mask.shape == shape else np.broadcast_to(self.mask, shape)

    def flat(self, array: Array) -> Array:
        """The active lanes' elements of an array broadcastable to (warps, 32), in row order."""
        shape = (self.warps, LANES)
        whole = array if array.shape == shape else np.broadcast_to(array, shape)
        return whole.reshape(-1) if self.mask is None else whole[self.mask]

    def narrow(self, condition: Array) -> tuple[Mask, Mask, bool, bool]:
        """The active lanes where ``condition`` holds and where not, and whether each has any."""
        if condition.size <= self.warps:
            if condition.all():
                return self.mask, NOT_A_SCOPE, self.any_active(), False
            if not condition.any():
                return NOT_A_SCOPE, self.mask, False, self.any_active()
        shape = (self.warps, LANES)
        if self.mask is None:
            yes = np.broadcast_to(condition, shape)
            no = ~yes
        else:
            yes, no = self.mask & condition, self.mask & ~condition
        if not no.any():
            return self.mask, NOT_A_SCOPE, self.any_active(), False
        if not yes.any():
            return NOT_A_SCOPE, self.mask, False, True
        return yes, no, True, True

    def leave(self, depth: int) -> None:
        """The active lanes leave every frame from ``depth`` up, and are active no more."""
        leaving = self.mask_array()
        for frame in self.frames[depth:]:
            frame.outer = _without(frame.outer, leaving)
            if isinstance(frame, LoopFrame):
                frame.live = _without(frame.live, leaving)
        self.mask = np.zeros((self.warps, LANES), np.bool_)

    # --- variables

    def declare(self, slot: int, value: Array | None) -> None:
        self.scopes[slot] = self.mask
        self.values[slot] = value
        self.unset[slot] = None if value is not None else np.ones((1, 1), np.bool_)

    def assign(self, slot: int, value: Array) -> None:
        """``value`` in the active lanes, the old one elsewhere."""
        old, mask = self.values[slot], self.mask
        if mask is None or mask is self.scopes[slot]:
            self.values[slot], self.unset[slot] = value, None
            return
        unset = self.unset[slot]
        self.values[slot] = value if old is None else np.where(mask, value, old)
        if unset is not None:
            left = unset & ~mask
            self.unset[slot] = left if left.any() else None

    def is_unset(self, slot: int) -> Mask:
        """The active lanes in which the variable has no value; None: nowhere."""
        unset = self.unset[slot]
        if unset is None:
            return None
        lanes = unset & self.mask_array()
        return lanes if lanes.any() else None

    # --- who

    def lanes(self) -> Lanes:
        """The active lanes as memory sees them."""
        version = self.batch.clocks.version
        held = self.lanes_for
        if held is not None and held[0] is self.mask and held[1] == version:
            return held[2]
        batch = self.batch
        threads = self.flat(self.thread_numbers())
        tick = batch.clocks.tick[self.rows // batch.warps_per_cluster]
        stamp: Any = int(tick[0])
        if (tick != stamp).any():
            stamp = self.flat(tick[:, None])
        found = Lanes(threads, self.flat(self.cta()), stamp)
        self.lanes_for = (self.mask, version, found)
        return found

    def thread_numbers(self) -> Array:
        """Launch-wide thread number of every lane, shape (warps, 32)."""
        if "thread" not in self.ids:
            first = self.batch.first_row + self.rows
            numbers = first[:, None] * LANES + np.arange(LANES)
            self.ids["thread"] = numbers.astype(self.batch.thread_type)
        return self.ids["thread"]

    def cta(self) -> Array:
        """CTA of every warp, counted from the batch's first: shape (warps, 1)."""
        if "cta" not in self.ids:
            self.ids["cta"] = (self.rows // self.batch.geometry.warps)[:, None]
        return self.ids["cta"]

    # --- splitting and merging

    def select(self, rows: Ints) -> Cohort:
        """A cohort of some of this one's warps (positions in ``rows``), at the same place."""
        masks: dict[int, Mask] = {}

        def part(mask: Mask) -> Mask:
            if mask is None:
                return None
            if id(mask) not in masks:
                masks[id(mask)] = pick(mask, rows)
            return masks[id(mask)]

        return Cohort(
            self.batch,
            self.rows[rows],
            self.pc,
            [None if v is None else pick(v, rows) for v in self.values],
            [part(mask) for mask in self.unset],
            [part(mask) for mask in self.scopes],
            {name: file.select(rows) for name, file in self.files.items()},
            part(self.mask),
            [_map_frame(frame, part, lambda array: pick(array, rows)) for frame in self.frames],
            self.wait,
            turns=self.turns,
        )

    @staticmethod
    def merge(cohorts: Sequence[Cohort]) -> Cohort:
        """One cohort of several that are at one place. Rows end up in ascending order."""
        if len(cohorts) == 1:
            return cohorts[0]
        first = cohorts[0]
        warps = [cohort.warps for cohort in cohorts]
        rows = np.concatenate([cohort.rows for cohort in cohorts])
        merged = Cohort(
            first.batch,
            rows,
            first.pc,
            [_stack_values(column, warps) for column in zip(*(c.values for c in cohorts))],
            [
                _stack_unset(column, warps)
                for column in zip(*(zip(c.values, c.unset) for c in cohorts))
            ],
            [NOT_A_SCOPE] * len(first.scopes),
            _join_files(cohorts),
            _stack_masks([c.mask for c in cohorts], warps),
            [_stack_frames(column, warps) for column in zip(*(c.frames for c in cohorts))],
            turns=max(cohort.turns for cohort in cohorts),
        )
        order = np.argsort(rows, kind="stable")
        return merged.select(order) if (np.diff(rows) < 0).any() else merged


@lru_cache(maxsize=64)
def _all_lanes(warps: int) -> Bools:
    return np.broadcast_to(np.True_, (warps, LANES))


def _without(mask: Mask, leaving: Bools) -> Mask:
    return ~leaving if mask is None else mask & ~leaving


def _map_frame(frame: Frame, mask: Any, array: Any) -> Frame:
    if isinstance(frame, IfFrame):
        return IfFrame(mask(frame.outer), mask(frame.orelse), frame.others)
    return LoopFrame(
        mask(frame.outer),
        mask(frame.live),
        frame.others,
        None if frame.counter is None else array(frame.counter),
        None if frame.stop is None else array(frame.stop),
    )


def _stack_masks(masks: Sequence[Mask], warps: Sequence[int]) -> Mask:
    if all(mask is None for mask in masks):
        return None
    everyone = np.ones((1, 1), np.bool_)
    whole = stack([everyone if mask is None else mask for mask in masks], warps)
    return np.broadcast_to(whole, (sum(warps), LANES))


def _stack_values(column: Sequence[Array | None], warps: Sequence[int]) -> Array | None:
    present = [value for value in column if value is not None]
    if not present:
        return None
    filler = np.zeros((1, 1), present[0].dtype)
    return stack([filler if value is None else value for value in column], warps)


def _stack_unset(column: Sequence[tuple[Array | None, Mask]], warps: Sequence[int]) -> Mask:
    if all(unset is None and value is not None for value, unset in column):
        return None
    if all(value is None for value, _ in column):
        return np.ones((1, 1), np.bool_)
    everywhere, nowhere = np.ones((1, 1), np.bool_), np.zeros((1, 1), np.bool_)
    return stack(
        [everywhere if v is None else nowhere if unset is None else unset for v, unset in column],
        warps,
    )


def _join_files(cohorts: Sequence[Cohort]) -> dict[str, RegisterFile]:
    """A buffer that some cohorts have not allocated is out of scope where they meet."""
    common = set.intersection(*(set(c.files) for c in cohorts))
    return {
        name: RegisterFile.joined([c.files[name] for c in cohorts])
        for name in cohorts[0].files
        if name in common
    }


def _stack_frames(column: Sequence[Frame], warps: Sequence[int]) -> Frame:
    outer = _stack_masks([frame.outer for frame in column], warps)
    loops = [frame for frame in column if isinstance(frame, LoopFrame)]
    if len(loops) < len(column):
        branches = [frame for frame in column if isinstance(frame, IfFrame)]
        orelse = _stack_masks([frame.orelse for frame in branches], warps)
        return IfFrame(outer, orelse, branches[0].others)
    return LoopFrame(
        outer,
        _stack_masks([frame.live for frame in loops], warps),
        loops[0].others,
        _stack_values([frame.counter for frame in loops], warps),
        _stack_values([frame.stop for frame in loops], warps),
    )
