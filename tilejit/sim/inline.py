"""Scalar functions (``ewise`` bodies) run in place: Declare, Assign, If and Return on one cohort.

Not here: kernels' statements, which may wait and so run from a program counter (``program``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tilejit.ir import nodes
from tilejit.sim import scalar
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.expr import Expressions, unsimulated
from tilejit.sim.geometry import LANES
from tilejit.sim.registers import Mask

Function: TypeAlias = Callable[[Cohort, list[Array]], Array]
Result: TypeAlias = list[Array | None]
Statement: TypeAlias = Callable[[Cohort, Result], None]


class Inline:
    """Compiles each ``LambdaExpr`` once."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.functions: dict[int, tuple[nodes.LambdaExpr, Function]] = {}

    def function(self, body: nodes.LambdaExpr) -> Function:
        """Values of the arguments to the value returned; lanes that return nothing give zero."""
        found = self.functions.get(id(body))
        if found is None:
            found = self.functions[id(body)] = (body, self._compile(body))
        return found[1]

    def _compile(self, body: nodes.LambdaExpr) -> Function:
        slots = [self.expressions.slot(param) for param in body.params]
        statements = self._block(body.body)
        kind = scalar.value_type(body.type.dtype)

        def call(c: Cohort, arguments: list[Array]) -> Array:
            outer = c.mask
            for slot, argument in zip(slots, arguments):
                c.declare(slot, argument)
            result: Result = [None]
            statements(c, result)
            c.mask = outer
            value = result[0]
            return np.zeros((1, 1), kind) if value is None else value

        return call

    def _block(self, block: nodes.Block) -> Statement:
        statements = [self._statement(statement) for statement in block]

        def run(c: Cohort, result: Result) -> None:
            for statement in statements:
                if not c.any_active():
                    return
                statement(c, result)

        return run

    def _statement(self, s: nodes.Stmt) -> Statement:
        if isinstance(s, nodes.Return) and s.value is not None:
            return self._return(s.value)
        if isinstance(s, nodes.Declare):
            slot = self.expressions.slot(s.var)
            if s.value is None:
                return lambda c, result: c.declare(slot, None)
            value = self.expressions.compile(s.value)
            return lambda c, result: c.declare(slot, value(c))
        if isinstance(s, nodes.Assign):
            slot, value = self.expressions.slot(s.var), self.expressions.compile(s.value)
            return lambda c, result: c.assign(slot, value(c))
        if isinstance(s, nodes.If):
            return self._if(s)
        raise unsimulated(f"{type(s).__name__} in a scalar function", s.span)

    def _return(self, value: nodes.Expr) -> Statement:
        evaluate = self.expressions.compile(value)

        def run(c: Cohort, result: Result) -> None:
            found, old = evaluate(c), result[0]
            if c.mask is None:
                result[0] = found
            else:
                result[0] = found if old is None else np.where(c.mask, found, old)
            c.mask = np.zeros((c.warps, LANES), np.bool_)

        return run

    def _if(self, s: nodes.If) -> Statement:
        condition = self.expressions.compile(s.condition)
        then, orelse = self._block(s.then), self._block(s.orelse)

        def run(c: Cohort, result: Result) -> None:
            yes, no, some_yes, some_no = c.narrow(condition(c))
            left: list[Mask] = []
            for mask, some, block in ((yes, some_yes, then), (no, some_no, orelse)):
                if some:
                    c.mask = mask
                    block(c, result)
                    left.append(c.mask)
            c.mask = _union(left, c)

        return run


def _union(masks: Sequence[Mask], c: Cohort) -> Mask:
    """The lanes that come out of the branches."""
    if not masks:
        return np.zeros((c.warps, LANES), np.bool_)
    if len(masks) == 1:
        return masks[0]
    first, second = masks
    return None if first is None or second is None else first | second
