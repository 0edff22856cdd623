"""Operations in which the lanes of a warp take part together: shuffles, votes, election; and which
lanes an ``.aligned`` instruction finds.

The operations name all 32 lanes, so every lane that has not exited must take part; a value read from
a lane that does not is undefined. Both are faults.

Not here: barriers (``barrier``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilejit.errors import Span
from tilejit.sim.geometry import LANES, any_lane

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort

SHUFFLES = ("cuda.shfl_idx", "cuda.shfl_xor", "cuda.shfl_up", "cuda.shfl_down")
VOTES = ("cuda.all_sync", "cuda.any_sync", "cuda.ballot_sync")


def lane_list(lanes: Array) -> str:
    """``3, 5-7`` of a boolean array over the 32 lanes."""
    numbers = np.flatnonzero(lanes).tolist()
    parts: list[str] = []
    while numbers:
        first = last = numbers.pop(0)
        while numbers and numbers[0] == last + 1:
            last = numbers.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(parts)


def check_converged(c: Cohort, op: str, span: Span | None) -> None:
    """Faults where a warp executes ``op`` without one of its lanes."""
    if c.mask is not None:
        _require(c, op, c.batch.alive[c.rows], span)


def check_aligned(c: Cohort, op: str, span: Span | None) -> None:
    """Faults where a warp executes an ``.aligned`` instruction without one of its 32 lanes: it has
    no member mask, so that lanes that have exited are missing too."""
    if c.mask is not None:
        _require(c, op, np.ones_like(c.mask), span)


def _require(c: Cohort, op: str, wanted: Array, span: Span | None) -> None:
    """Faults where a warp executes ``op`` without one of the ``wanted`` lanes."""
    mask = c.mask_array()
    missing = wanted & ~mask & any_lane(mask)[:, None]
    if not missing.any():
        return
    without = any_lane(missing)
    row = int(np.argmax(without))
    elsewhere = missing[row] & c.batch.alive[c.rows[row]]
    lanes = elsewhere if elsewhere.any() else missing[row]
    why = "they took another branch" if elsewhere.any() else "they have exited, or never were"
    c.batch.lane_fault(
        c,
        "sim/inactive-lane",
        f"`{op}` needs all 32 lanes of the warp, but lanes {lane_list(lanes)} are not here: {why}",
        span,
        mask & without[:, None],
        warp=c.batch.describe_row(int(c.rows[row])),
        help="move it out of the branch, or make the branch the same for the whole warp"
        if elsewhere.any()
        else "whole warps execute it: launch a multiple of 32 threads, and let none return before it",
    )


def shuffle(c: Cohort, op: str, value: Array, amount: Array, span: Span | None) -> Array:
    """``value`` of another lane of the same warp."""
    check_converged(c, op, span)
    lane = np.arange(LANES)[None, :]
    if op == "cuda.shfl_idx":
        source = amount & 31
    elif op == "cuda.shfl_xor":
        source = lane ^ (amount & 31)
    elif op == "cuda.shfl_up":
        source = np.where(lane - amount < 0, lane, lane - amount)
    else:
        source = np.where(lane + amount >= LANES, lane, lane + amount)
    source = np.broadcast_to(source, (source.shape[0], LANES)).astype(np.int64)
    source &= 31
    _check_sources(c, op, source, span)
    if value.shape[1] == 1:
        return value
    if source.shape[0] == 1:
        return value[:, source[0]]
    return np.take_along_axis(np.broadcast_to(value, source.shape), source, axis=1)


def _check_sources(c: Cohort, op: str, source: Array, span: Span | None) -> None:
    if c.mask is None:
        return
    shape = (c.warps, LANES)
    absent = c.mask & ~np.take_along_axis(c.mask, np.broadcast_to(source, shape), axis=1)
    if not absent.any():
        return
    first = int(np.argmax(absent))
    lane = int(np.broadcast_to(source, shape).reshape(-1)[first])
    c.batch.lane_fault(
        c,
        "sim/inactive-lane",
        f"`{op}` reads lane {lane}, which has exited or is not here: the value is undefined",
        span,
        absent,
        "source",
    )


def vote(c: Cohort, op: str, value: Array, span: Span | None) -> Array:
    """all, any or ballot over the warp's active lanes: shape (warps, 1)."""
    check_converged(c, op, span)
    whole = np.broadcast_to(value, (c.warps, LANES))
    if op == "cuda.all_sync":
        taking = whole if c.mask is None else whole | ~c.mask
        return ~any_lane(~taking)[:, None]
    taking = whole if c.mask is None else whole & c.mask
    if op == "cuda.any_sync":
        return any_lane(taking)[:, None]
    packed = np.packbits(np.ascontiguousarray(taking), axis=1, bitorder="little")
    ballot: Array = packed.view(np.uint32)
    return ballot


def elect(c: Cohort, span: Span | None) -> Array:
    """True in one lane of each warp: always the same lane, but the program may not know which."""
    check_converged(c, "cuda.elect_sync", span)
    lane = np.arange(LANES)[None, :]
    wanted = c.batch.leader_lane
    if c.mask is None:
        return np.asarray(lane == wanted)
    order = (lane - wanted) % LANES
    leader = np.where(c.mask, order, LANES).min(axis=1, keepdims=True)
    elected: Array = (order == leader) & c.mask
    return elected
