"""Loops that spin: a cohort is back at the top of a loop as it was, without having waited for others, and
no memory has changed meanwhile.

It may have turned any loops in between, its outer and inner ones. Such a loop goes on as before until
somebody changes what it reads. Where nobody is left who could, it never ends; then what it read last tells
what it waits for.

Not here: who else may go on (``schedule``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilejit.sim.batch import Batch
from tilejit.sim.cohort import Cohort, IfFrame
from tilejit.sim.faults import Site, place
from tilejit.sim.memory import Read

MAX_READS = 4
MAX_WRITERS = 4

Note: TypeAlias = tuple[str, str]


@dataclass(slots=True, eq=False)
class Turn:
    """A cohort at the top of a loop. ``state``: its arrays, which are never changed in place; ``changes``:
    how many there were by then. ``stays``: how many later turns are compared with this one, of which
    ``left`` are to come; each such turn stays twice as long, so that a round of any length is found."""

    pc: int
    state: list[Any]
    changes: int
    stays: int = 1
    left: int = 1


def begin_turn(c: Cohort, pc: int) -> None:
    """The cohort is at the top of a loop; it spins if that is where, and as, it was before."""
    if still_spins(c):
        return
    turn, before = Turn(pc, _state(c), changes(c.batch)), c.turn
    if before is None or before.changes != turn.changes:
        c.turn, c.spins = turn, False
        return
    c.spins = before.pc == turn.pc and alike(before.state, turn.state)
    before.left -= 1
    if not c.spins and not before.left:
        turn.stays = turn.left = 2 * before.stays
        c.turn = turn


def still_spins(c: Cohort) -> bool:
    """Has nobody changed anything since the cohort was seen to spin?"""
    return c.spins and c.turn is not None and c.turn.changes == changes(c.batch)


def changes(batch: Batch) -> int:
    """How often memory or an mbarrier has changed, and threads have synchronised."""
    windows = [batch.shared.window, *batch.global_memory.windows.values()]
    written = sum(window.changes for window in windows)
    return written + batch.mbarriers.events + int(batch.clocks.tick.sum())


def standing(cohorts: list[Cohort]) -> list[Any]:
    """Who is where, and in which state."""
    state: list[Any] = []
    for c in sorted(cohorts, key=lambda c: int(c.rows[0])):
        state += [c.rows, np.array(c.pc), *_state(c)]
    return state


def alike(before: list[Any], now: list[Any]) -> bool:
    """Are those of two times the same?"""
    return len(before) == len(now) and all(a is b or _equal(a, b) for a, b in zip(before, now))


def _state(c: Cohort) -> list[Any]:
    state: list[Any] = [*c.values, *c.unset, c.mask]
    for file in c.files.values():
        state += [*file.data, *file.written]
    for frame in c.frames:
        state.append(frame.outer)
        if isinstance(frame, IfFrame):
            state.append(frame.orelse)
        else:
            state += [frame.live, frame.counter, frame.stop]
    return state


def _equal(a: Any, b: Any) -> bool:
    """Bit by bit: a number that is none equals itself."""
    if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return bool(np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes())


# --- words


def describe(batch: Batch, reads: list[Read]) -> list[Note]:
    """What a spinning cohort has read in a turn, and what could change it."""
    notes: list[Note] = []
    seen: dict[tuple[int, int], Read] = {(r.site.index, r.offset): r for r in reads}
    for read in list(seen.values())[:MAX_READS]:
        value = int.from_bytes(read.data, "little")
        notes.append(
            ("spins", f"{batch.geometry.describe_thread(read.thread)} reads {value} ({len(read.data)} bytes) "
             f"at {read.address}, by `{read.site.what}` at {place(read.site.span)}")
        )  # fmt: skip
    for owner in dict.fromkeys(read.owner for read in seen.values()):
        writers = batch.shared.watch.writers
        notes.append(("writes", _writers(owner, writers.get(owner, []) + writers.get(None, []))))
    return notes


def _writers(owner: str, sites: list[Site]) -> str:
    if not sites:
        return f"nothing in the kernel writes `{owner}`"
    places = dict.fromkeys(f"`{site.what}` at {place(site.span)}" for site in sites)
    shown = ", ".join(list(places)[:MAX_WRITERS])
    more = f" and {len(places) - MAX_WRITERS} more" if len(places) > MAX_WRITERS else ""
    return f"`{owner}` may be written by {shown}{more}, where no warp will come any more"
