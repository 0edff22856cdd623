"""Which calls and raw instructions make a warp wait, and for what.

Not here: waiting itself (``barrier``).
"""

from __future__ import annotations

from tilejit.ir import nodes
from tilejit.sim.barrier import Wait
from tilejit.sim.expr import unsimulated
from tilejit.tile.family import Immediate, Issue, Registers, Value

FULL_MASK = 0xFFFFFFFF
NO_EFFECT = frozenset({"fence", "membar", "nanosleep", "setmaxnreg", "griddepcontrol"})
"""Mnemonics that change no value here: a fence orders nothing by itself, launches follow one another
completely."""

WAITING_CALLS = ("cuda.cta_sync", "cuda.cluster_sync", "cuda.named_barrier_sync")


def static_int(arg: nodes.Expr) -> int:
    """The value of a compile-time argument of a barrier."""
    if isinstance(arg, (nodes.Const, nodes.Static)):
        return int(arg.value)
    raise unsimulated("a barrier whose number or count is a run-time value", arg.span)


def is_wait(issue: Issue) -> bool:
    """Is it a raw barrier instruction that makes warps wait for each other?"""
    return issue.form.mnemonic in ("bar", "barrier") and issue.form.spelling != "bar.warp.sync"


def raw_wait(issue: Issue) -> Wait | None:
    """The wait of a raw barrier instruction; None for everything else."""
    form = issue.form
    if not is_wait(issue):
        return None
    if form.modifiers[0] == "cluster":
        if form.modifiers[1] == "arrive":
            raise unsimulated(f"`{form.spelling}`", issue.span)
        return Wait("cluster", issue.span)
    if "sync" not in form.modifiers or issue.pred is not None:
        raise unsimulated(f"`{form.spelling}`", issue.span)
    numbers = [immediate(operand, issue) for operand in issue.operands]
    if len(numbers) < 2:
        return (
            Wait("cta", issue.span)
            if not numbers or numbers[0] == 0
            else Wait("cta", issue.span, numbers[0])
        )
    return Wait("named", issue.span, numbers[0], numbers[1])


def immediate(operand: object, issue: Issue) -> int:
    """The value of a compile-time operand of a barrier instruction."""
    if isinstance(operand, Immediate):
        return operand.value
    if isinstance(operand, Registers) and isinstance(operand.items[0], Value):
        expr = operand.items[0].expr
        if isinstance(expr, nodes.Const):
            return int(expr.value)
    raise unsimulated(f"`{issue.form.spelling}` with a run-time number", issue.span)
