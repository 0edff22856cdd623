"""Which calls and raw instructions join threads, and how: the barrier, the half of it, its operands.

Not here: waiting itself (``barrier``), mbarriers (``mbarrier``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.sim.barrier import BarrierKind
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.expr import Evaluate, Expressions, unsimulated
from tilejit.sim.geometry import LANES
from tilejit.tile.family import Immediate, Issue, NativeOperand, Registers, Value

FULL_MASK = 0xFFFFFFFF
NO_EFFECT = frozenset({"membar", "nanosleep", "griddepcontrol"})
"""Mnemonics that change no value here: launches follow one another completely."""
NAMED_BARRIERS = 16


@dataclass(frozen=True, slots=True)
class Join:
    """A call that joins threads. ``action``: come and wait, come only, or wait only. ``number`` and
    ``threads``: the operands, None where the call has none. ``releases``: False for a relaxed arrival.
    ``aligned``: False where lanes of a warp may come one by one. ``vote`` and ``result``: operands of a
    barrier that reduces, ``reduction`` its operator."""

    kind: BarrierKind
    action: Literal["sync", "arrive", "wait"] = "sync"
    number: nodes.Expr | None = None
    threads: nodes.Expr | None = None
    releases: bool = True
    aligned: bool = True
    reduction: str = ""
    vote: nodes.Expr | None = None
    result: NativeOperand | None = None

    @property
    def waits(self) -> bool:
        return self.action != "arrive"


_CALLS = {
    "cuda.cta_sync": Join("cta"), "cuda.grid_sync": Join("grid"), "cuda.cluster_sync": Join("cluster"),
    "cuda.cluster_arrive": Join("cluster", "arrive"), "cuda.cluster_wait": Join("cluster", "wait"),
}  # fmt: skip


def call_join(call: nodes.Call) -> Join | None:
    """What an operation joins; None for everything else."""
    if call.op == "cuda.named_barrier_sync":
        return Join("named", "sync", call.args[0], call.args[1])
    if call.op == "cuda.named_barrier_arrive":
        return Join("named", "arrive", call.args[0], call.args[1])
    return _CALLS.get(call.op)


def raw_join(issue: Issue) -> Join | None:
    """What a raw instruction joins; None for everything else."""
    form = issue.form
    if form.mnemonic not in ("bar", "barrier") or form.spelling == "bar.warp.sync":
        return None
    if issue.pred is not None:
        raise unsimulated(f"`{form.spelling}` under a predicate", issue.span)
    words = set(form.modifiers)
    aligned = form.mnemonic == "bar" or "aligned" in words
    if "cluster" in words:
        action: Literal["arrive", "wait"] = "arrive" if "arrive" in words else "wait"
        return Join("cluster", action, releases="relaxed" not in words, aligned=aligned)
    reduces = "red" in words
    operands = issue.operands[1:-1] if reduces else issue.operands
    number = _value(operands[0], issue)
    threads = _value(operands[1], issue) if len(operands) > 1 else None
    kind: BarrierKind = "cta" if threads is None else "named"
    if not reduces:
        return Join(
            kind, "arrive" if "arrive" in words else "sync", number, threads, aligned=aligned
        )
    reduction = next(word for word in ("popc", "and", "or") if word in words)
    result, vote = issue.operands[0], issue.operands[-1]
    return Join(
        kind, "sync", number, threads, True, aligned, reduction, _value(vote, issue), result
    )


def _value(operand: NativeOperand, issue: Issue) -> nodes.Expr:
    if isinstance(operand, Immediate):
        return nodes.Const(operand.value, nodes.UINT32)
    if isinstance(operand, Registers) and isinstance(operand.items[0], Value):
        return operand.items[0].expr
    raise unsimulated(f"`{issue.form.spelling}` with such an operand", issue.span)


def immediate(operand: NativeOperand, issue: Issue) -> int:
    """The value of a compile-time operand of a barrier instruction."""
    if isinstance(operand, Immediate):
        return operand.value
    if isinstance(operand, Registers) and isinstance(operand.items[0], Value):
        expr = operand.items[0].expr
        if isinstance(expr, nodes.Const):
            return int(expr.value)
    raise unsimulated(f"`{issue.form.spelling}` with a run-time number", issue.span)


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """The number and count of a barrier call, for each warp of a cohort."""

    number: Evaluate | None
    threads: Evaluate | None
    span: Span | None

    def groups(self, c: Cohort) -> list[tuple[int, int, Array]]:
        """(number, threads, positions of the warps) of each barrier that the cohort comes to."""
        if self.number is None:
            return [(0, 0, np.arange(c.warps))]
        number = self._of_warps(c, self.number)
        threads = np.zeros_like(number) if self.threads is None else self._of_warps(c, self.threads)
        self._check(c, number, threads)
        pairs = sorted(set(zip(number.tolist(), threads.tolist())))
        return [(n, t, np.flatnonzero((number == n) & (threads == t))) for n, t in pairs]

    def _of_warps(self, c: Cohort, value: Evaluate) -> Array:
        values = value(c)
        if values.shape[1] == 1:
            return np.broadcast_to(values[:, 0], (c.warps,)).astype(np.int64)
        whole = np.broadcast_to(values, (c.warps, LANES)).astype(np.int64)
        mask = c.mask_array()
        first: Array = np.take_along_axis(whole, np.argmax(mask, axis=1)[:, None], axis=1)
        mixed = mask & (whole != first)
        if mixed.any():
            c.batch.lane_fault(
                c, "sim/barrier-divergence", "lanes of one warp name different barriers or counts",
                self.span, mixed,
            )  # fmt: skip
        return first[:, 0]

    def _check(self, c: Cohort, number: Array, threads: Array) -> None:
        outside = (number < 0) | (number >= NAMED_BARRIERS)
        if outside.any():
            c.batch.lane_fault(
                c, "sim/barrier-number",
                f"barrier {int(number[outside][0])} is none of the {NAMED_BARRIERS} that a CTA has",
                self.span, c.mask_array() & outside[:, None],
            )  # fmt: skip
            number[outside] = 0
        if self.threads is None:
            return
        parts = (threads <= 0) | (threads % LANES != 0)
        if parts.any():
            c.batch.lane_fault(
                c, "sim/barrier-count",
                f"a barrier counts {int(threads[parts][0])} threads, which is not a number of whole warps",
                self.span, c.mask_array() & parts[:, None],
            )  # fmt: skip


def numbers(join: Join, expressions: Expressions, span: Span | None) -> Numbers:
    """The call's operands, ready to be evaluated."""
    number = None if join.number is None else expressions.compile(join.number)
    threads = join.threads
    if isinstance(threads, nodes.Static):
        threads = nodes.Const(int(threads.value), nodes.INT32)
    return Numbers(number, None if threads is None else expressions.compile(threads), span)
