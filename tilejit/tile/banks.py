"""Bank conflicts of a checked function's shared-memory accesses, exact for every warp and repeat.

Shared memory has 32 banks of 4-byte words. A warp instruction is served in phases of 128 bytes: all
32 lanes with up to 4 bytes each, 16 lanes with 8, 8 lanes with 16; ldmatrix and stmatrix take one
matrix, 8 rows of 16 bytes, per phase. A phase takes as many wavefronts as its busiest bank has
different words; lanes on one word share it.

The buffer's own address and whatever moves all lanes of a warp by whole words only rotate the banks.
Run-time values that reach into a swizzle are tried out; where lanes differ by an unknown number there
is no answer, and the report says so. Lanes behind a run-time condition count as present.

Source: CUDA C++ programming guide, shared memory; Nsight Compute's ideal wavefronts. Not here: atomics
(equal words are not shared), bulk copies, global memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.layout import ComposeLayout
from tilejit.shared_banks import WORD_BYTES, busiest
from tilejit.tile import checker
from tilejit.tile.affine import WARP, BoolArray, IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.family import Family, FamilyIndex
from tilejit.tile.fragments import LANES
from tilejit.tile.groups import Group
from tilejit.tile.region import Walk


@dataclass(frozen=True, slots=True)
class Worst:
    """The warp instruction with the most wavefronts; ``warp`` is its number in the CTA."""

    warp: int
    repeat: tuple[int, ...]
    wavefronts: int


@dataclass(frozen=True, slots=True)
class BankReport:
    """One tile call's accesses to a shared buffer, executed once by every warp of the CTA (cluster).

    ``instructions``: warp instructions, one per warp and repeat. ``ideal``, ``actual``: their
    wavefronts without conflicts (one per phase) and as laid out. ``conflict_degree``: wavefronts of
    the worst phase, 1 without a conflict. Where run-time values matter, all are those of the worst
    values. ``unknown``: why the numbers are None.
    """

    spelling: str
    operand: str
    span: Span | None
    instructions: int
    ideal: int | None = None
    actual: int | None = None
    conflict_degree: int | None = None
    worst: Worst | None = None
    unknown: str = ""

    @property
    def conflicted(self) -> bool:
        """Known to take more wavefronts than the ideal."""
        return self.conflict_degree is not None and self.conflict_degree > 1

    def __str__(self) -> str:
        place = "" if self.span is None else f"{self.span.short}: "
        head = f"{place}{self.spelling} on {self.operand}"
        if self.worst is None:
            return f"{head}: bank conflicts not known: {self.unknown}"
        if not self.conflicted:
            return f"{head}: no bank conflicts, {self.actual} wavefronts"
        return (
            f"{head}: {self.conflict_degree}-way bank conflict, {self.actual} wavefronts, "
            f"{self.ideal} without; worst in warp {self.worst.warp}, repeat {self.worst.repeat}"
        )


def bank_report(function: nodes.Function, families: FamilyIndex) -> tuple[BankReport, ...]:
    """Every shared-memory access of the function's tile calls, in program order.

    Checks the function again, so it raises as ``checker.check`` does.
    """
    accesses = [
        (call, _access(call, families[call.family]))
        for call in checker.tile_calls(function, families)
    ]
    return tuple(_report(call, access) for call, access in accesses if access is not None)


# --- which bytes a lane asks for


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """A warp instruction on shared memory: lane l asks for ``nbytes`` at the walk's element
    ``elements[l]`` of the atom; lanes beyond ``elements`` ask for nothing."""

    laid: Walk
    elements: IntArray
    nbytes: int


def _access(call: TileCall, family: Family) -> _Access | None:
    """The call's access to shared memory, where it has one that banks serve lane by lane."""
    position = next(
        (p for p, laid in call.walks.items() if laid.operand.space == "shared"),
        None,
    )
    if position is None:
        return None
    laid, form = call.walk_of(position), call.forms[0]
    providers = family.providers(form)
    if providers is not None:
        return _Access(laid, providers.elements[: providers.lanes], providers.nbytes)
    if form.mnemonic in ("ld", "st") or form.spelling.startswith(("cp.async.ca.", "cp.async.cg.")):
        nbytes = math.prod(laid.atom) * laid.operand.dtype.bytes
        return _Access(laid, np.zeros(LANES, dtype=np.int64), nbytes)
    return None


# --- from addresses to wavefronts


def _report(call: TileCall, access: _Access) -> BankReport:
    laid = access.laid
    warps, lanes = _warps(call.group)
    name = laid.operand.view.buffer.name
    count = warps.size * laid.repeats
    unknown = _unknown(call, laid)
    if unknown:
        return BankReport(call.spelling, name, call.span, count, unknown=unknown)
    phases = _worst_values(call, access, lanes)
    wavefronts = phases.sum(axis=2)
    warp, repeat = (int(i) for i in np.unravel_index(wavefronts.argmax(), wavefronts.shape))
    return BankReport(
        call.spelling, name, call.span, count,
        ideal=int((phases > 0).sum()),
        actual=int(phases.sum()),
        conflict_degree=int(phases.max()),
        worst=Worst(
            int(warps[warp]), laid.repeat_coordinates()[repeat], int(wavefronts[warp, repeat])
        ),
    )  # fmt: skip


def _unknown(call: TileCall, laid: Walk) -> str:
    """Why the banks cannot be told; empty where they can."""
    align_bytes = laid.operand.buffer_type.align_bytes
    if align_bytes < WORD_BYTES:
        return f"the buffer is aligned to {align_bytes} bytes, less than a bank's {WORD_BYTES}"
    if laid.dynamic:
        return f"its stride {laid.dynamic[0][0]} is a run-time value"
    if call.context.uniformity(laid.symbolic) < WARP:
        return f"the lanes of a warp differ by {laid.symbolic} elements, a run-time value"
    return ""


def _warps(group: Group) -> tuple[IntArray, IntArray]:
    """Number in its CTA of every warp, and [warp, lane] → position among the active threads, -1
    where the lane is not there. Of an election's candidates one is."""
    per_cta = -(-group.per_cta // LANES)
    rank, tid = group.threads // group.per_cta, group.threads % group.per_cta
    keys, rows = np.unique(rank * per_cta + tid // LANES, return_inverse=True)
    lanes = np.full((keys.size, LANES), -1, dtype=np.int64)
    lanes[rows, tid % LANES] = np.arange(tid.size)
    if group.elected:
        first = (lanes >= 0).argmax(axis=1)
        lanes[np.arange(LANES) != first[:, np.newaxis]] = -1
    return keys % per_cta, lanes


def _worst_values(call: TileCall, access: _Access, lanes: IntArray) -> IntArray:
    """Wavefronts by (warp, repeat, phase), of the run-time values that need the most in all."""
    laid = access.laid
    period = _period_elems(laid)
    mod, rem = call.context.congruence(laid.symbolic)
    starts, present = _starts(call, access, lanes)
    if not isinstance(rem, int):
        threads = call.group.threads[np.maximum(lanes, 0)]
        starts = starts + np.where(lanes >= 0, rem[threads], 0)[:, np.newaxis, : starts.shape[2]]
        rem = 0
    rows, inverse = _distinct(starts + rem, present, period)
    times = np.bincount(inverse)
    worst: IntArray | None = None
    most = -1
    for moved in range(0, period, math.gcd(mod, period)):
        phases = _wavefronts(access, rows[0] + moved, rows[1])
        needed = int(phases.sum(axis=1) @ times)
        if needed > most:
            worst, most = phases, needed
    assert worst is not None
    return worst[inverse].reshape(starts.shape[0], starts.shape[1], -1)


def _period_elems(laid: Walk) -> int:
    """Moving all lanes by so many elements changes nothing but which bank is which."""
    words = max(1, WORD_BYTES // laid.operand.dtype.bytes)
    layout = laid.operand.layout
    return max(words, layout.period_elems) if isinstance(layout, ComposeLayout) else words


def _starts(call: TileCall, access: _Access, lanes: IntArray) -> tuple[IntArray, BoolArray]:
    """Element that each lane's access starts at, before any swizzle, and whether the lane is there;
    by (warp, repeat, lane)."""
    memory = access.laid.memory
    lanes = lanes[:, : access.elements.size]
    row = access.laid.rows(call.group.threads[np.maximum(lanes, 0)])
    repeat = np.arange(memory.shape[1])[:, np.newaxis]
    starts = memory[row[:, np.newaxis], repeat, access.elements]
    return starts, np.broadcast_to((lanes >= 0)[:, np.newaxis], starts.shape)


def _distinct(
    starts: IntArray, present: BoolArray, period: int
) -> tuple[tuple[IntArray, BoolArray], IntArray]:
    """The different warp instructions, up to a move of all lanes, and which one each is."""
    lanes = starts.shape[2]
    flat, there = starts.reshape(-1, lanes), present.reshape(-1, lanes)
    first = flat[np.arange(flat.shape[0]), there.argmax(axis=1)]
    flat = np.where(there, flat - (first // period * period)[:, np.newaxis], 0)
    both = np.concatenate((flat, there.astype(np.int64)), axis=1)
    rows, inverse = np.unique(both, axis=0, return_inverse=True)
    return (rows[:, :lanes], rows[:, lanes:] != 0), inverse.reshape(-1)


def _wavefronts(access: _Access, starts: IntArray, present: BoolArray) -> IntArray:
    """Wavefronts by (instruction, phase)."""
    layout, size = access.laid.operand.layout, access.laid.operand.dtype.bytes
    places = layout.swizzle(starts) if isinstance(layout, ComposeLayout) else starts
    count = -(-access.nbytes // WORD_BYTES)
    words = (places * size // WORD_BYTES)[..., np.newaxis] + np.arange(count)
    lanes = min(starts.shape[1], LANES // count)
    wanted = np.broadcast_to(present[..., np.newaxis], words.shape).reshape(-1, lanes * count)
    return busiest(words.reshape(wanted.shape), wanted).reshape(starts.shape[0], -1)
