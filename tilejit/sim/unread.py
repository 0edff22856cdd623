"""Polls of mbarriers whose answer nobody reads: ``test_wait`` and ``try_wait`` that are no waits.

A backward walk: which variables and register tiles are read later, before they are written whole. It goes
by names, so that an answer in a tile of several elements counts as read where any of them is.

Not here: what the simulator answers to such a poll (``mbarrier``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilejit.ir import nodes
from tilejit.ir.storage import storage_bytes
from tilejit.ir.tensor_map import TensorMapSpec
from tilejit.ir.walk import variables
from tilejit.sim.storage import TILE_CALLS, Checked
from tilejit.tile.family import (
    Element,
    Issue,
    Let,
    Memory,
    NativeOperand,
    Register,
    Registers,
    ScalarApply,
    Step,
    TensorBox,
    Value,
    Variable,
)

Names: TypeAlias = frozenset[str]
Item: TypeAlias = Register | Value | Variable | Element | None
POLLS = frozenset({"test_wait", "try_wait"})


def is_poll(step: Step) -> bool:
    """Is it a test of a phase that may say no?"""
    return isinstance(step, Issue) and (
        step.form.family == "mbarrier" and step.form.modifiers[0] in POLLS
    )


def unread_polls(checked: Checked) -> frozenset[int]:
    """The calls, by id, all of whose polls have answers that nobody reads."""
    walk = _Reads(checked)
    walk.block(checked.function.body, frozenset())
    return frozenset(walk.polls - walk.read)


@dataclass(slots=True)
class _Reads:
    """``loops``, around the statement: what is read after a break, and after a continue."""

    checked: Checked
    polls: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    loops: list[tuple[Names, Names]] = field(default_factory=list)

    def block(self, block: nodes.Block, later: Names) -> Names:
        """What is read from the block's beginning on; ``later``: from its end on."""
        for statement in reversed(block):
            later = self._statement(statement, later)
        return later

    def _statement(self, s: nodes.Stmt, later: Names) -> Names:
        if isinstance(s, (nodes.Declare, nodes.Assign)):
            return (later - {s.var.name}) | _names(s.value)
        if isinstance(s, nodes.Store):
            inputs = _names(s.value) | _names(s.indices) | _names(s.view.offset_elems)
            return (later - _whole(s.view.buffer)) | inputs
        if isinstance(s, nodes.If):
            return _names(s.condition) | self.block(s.then, later) | self.block(s.orelse, later)
        if isinstance(s, (nodes.For, nodes.While)):
            return self._loop(s, later)
        if isinstance(s, (nodes.Break, nodes.Continue)):
            return self.loops[-1][int(isinstance(s, nodes.Continue))]
        if isinstance(s, nodes.Return):
            return frozenset()
        if isinstance(s, nodes.Evaluate) and s.call.op in TILE_CALLS:
            for step in reversed(self.checked.steps(s.call)):
                later = self._step(s.call, step, later)
            return later
        return later | _names(s)

    def _loop(self, s: nodes.For | nodes.While, later: Names) -> Names:
        counted = isinstance(s, nodes.For)
        again = later if counted else frozenset()
        while True:
            self.loops.append((later, again))
            begun = self.block(s.body, again) | (later if counted else again)
            self.loops.pop()
            if begun <= again:
                break
            again = again | begun
        return again | (_names((s.start, s.stop)) if isinstance(s, nodes.For) else frozenset())

    def _step(self, call: nodes.Call, step: Step, later: Names) -> Names:
        if isinstance(step, Let):
            return later | _names(step.value)
        if isinstance(step, ScalarApply):
            return (later - _whole(step.dst)) | _of_items(step.inputs)
        results = [
            item
            for spec, operand in zip(step.form.operands, step.operands)
            if spec.direction == "w" and isinstance(operand, Registers)
            for item in operand.items
        ]
        if is_poll(step):
            self.polls.add(id(call))
            if later & _of_items(results):
                self.read.add(id(call))
        if step.pred is None and not step.preserve_dst:
            later = later.difference(*map(_whole, results))
        inputs = [
            _of_operand(operand)
            for spec, operand in zip(step.form.operands, step.operands)
            if spec.direction != "w" or not isinstance(operand, Registers)
        ]
        return later.union(_names(step.pred), *inputs)


def _names(node: Any) -> Names:
    """Of what an expression, or several, mentions."""
    return frozenset() if node is None else frozenset(variables(node))


def _of_operand(operand: NativeOperand) -> Names:
    if isinstance(operand, Registers):
        return _of_items(operand.items)
    if isinstance(operand, Memory):
        return _names(operand.base)
    if isinstance(operand, TensorBox):
        return _names(operand.coords) | (
            frozenset() if isinstance(operand.map, TensorMapSpec) else _names(operand.map)
        )
    return frozenset()


def _of_items(items: Iterable[Item]) -> Names:
    found: set[str] = set()
    for item in items:
        if isinstance(item, Register):
            found.add(item.buffer.name)
        elif isinstance(item, Variable):
            found.add(item.var.name)
        elif item is not None:
            found |= variables(item.expr if isinstance(item, Value) else item.load)
    return frozenset(found)


def _whole(item: Item | nodes.Var) -> Names:
    """What is written whole when the item is: a variable, or a tile of one element."""
    if isinstance(item, Variable):
        return frozenset({item.var.name})
    if isinstance(item, Register):
        item = item.buffer
    elif isinstance(item, Element) and isinstance(item.load, nodes.Load):
        item = item.load.view.buffer
    if not isinstance(item, nodes.Var) or not isinstance(item.type, nodes.TensorType):
        return frozenset()
    one = item.type.space == "local" and storage_bytes(item.type) <= max(
        1, item.type.dtype.bits // 8
    )
    return frozenset({item.name}) if one else frozenset()
