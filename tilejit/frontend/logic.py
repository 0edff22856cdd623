"""Short circuits: ``and``, ``or``, chained comparison, the conditional expression.

The right side is evaluated only where Python would: by a branch, or in place when it is harmless.

Not here: the operators themselves (``operators``).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from tilejit.frontend import carry, env, operators
from tilejit.frontend.expressions import evaluate
from tilejit.frontend.shapes import ShapeConflict, shape_of, unify
from tilejit.frontend.state import Lowering, Region
from tilejit.frontend.targets import assigned_names
from tilejit.frontend.values import (
    any_runtime,
    describe,
    harmless,
    is_number,
    is_numeric,
    is_scalar,
    same,
)
from tilejit.ir import build
from tilejit.ir import nodes as ir

COMPARE_OPS: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


def condition(lw: Lowering, node: ast.expr) -> Any:
    """The truth of ``node``: a Python bool when known at compile time, else a run-time bool."""
    with lw.at(node):
        if isinstance(node, ast.BoolOp):
            conjunction = isinstance(node.op, ast.And)
            terms: list[Callable[[], Any]]
            terms = [functools.partial(condition, lw, n) for n in node.values]
            return _chain(lw, terms, conjunction, node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = condition(lw, node.operand)
            return not inner if isinstance(inner, bool) else build.not_(inner, span=lw.here())
        return operators.truth(lw, evaluate(lw, node))


def _chain(lw: Lowering, terms: list[Callable[[], Any]], conjunction: bool, node: ast.AST) -> Any:
    """``a and b and …`` (or ``or``) of truths, left to right."""
    left = terms[0]()
    if isinstance(left, bool):
        if left != conjunction or len(terms) == 1:
            return left
        return _chain(lw, terms[1:], conjunction, node)
    if len(terms) == 1:
        return left
    region = env.enter(lw, (*lw.region_key(node, "maybe"), len(terms)), set())
    with lw.nested() as block:
        right = _chain(lw, terms[1:], conjunction, node)
    _leave_maybe(lw, region)
    if not block:
        if isinstance(right, bool):
            return left if right == conjunction else right
        if harmless(right):
            join = build.and_ if conjunction else build.or_
            return join(left, right, span=lw.here())
    result = lw.fresh("both" if conjunction else "either", ir.BOOL)
    lw.mutable.add(result.name)
    lw.emit(ir.Declare(result, left, span=lw.here()))
    block.append(ir.Assign(result, operators.typed(lw, right), span=lw.here()))
    guard = result if conjunction else build.not_(result, span=lw.here())
    lw.emit(ir.If(guard, tuple(block), (), span=lw.here()))
    # The variable is written only above, so from here on it is as good as immutable.
    lw.mutable.discard(result.name)
    return result


def _leave_maybe(lw: Lowering, region: Region) -> None:
    """End an operand that may not be evaluated: names it binds (``:=``) are bound on one path."""
    env.leave(lw, region)
    if region.assigned:
        skipped = "where the left side decides"
        paths = [(lw.frame.env, "otherwise"), (region.entry, skipped)]
        lw.frame.env = env.merge(region.key, paths)


def boolean(lw: Lowering, node: ast.BoolOp) -> Any:
    """``and`` / ``or`` as a value: Python gives one of the operands."""
    conjunction = isinstance(node.op, ast.And)
    return _operands(lw, node.values, conjunction, node)


def _operands(lw: Lowering, nodes: list[ast.expr], conjunction: bool, node: ast.BoolOp) -> Any:
    left = evaluate(lw, nodes[0])
    if len(nodes) == 1:
        return left
    truth = operators.truth(lw, left)
    if isinstance(truth, bool):
        return left if truth != conjunction else _operands(lw, nodes[1:], conjunction, node)
    left = left if lw.is_stable(left) else lw.declare("left", left)
    truth = operators.truth(lw, left)
    region = env.enter(lw, (*lw.region_key(node, "maybe"), len(nodes)), set())
    with lw.nested() as block:
        right = _operands(lw, nodes[1:], conjunction, node)
    _leave_maybe(lw, region)
    what = "`and`" if conjunction else "`or`"
    if not block and is_numeric(left) and is_numeric(right) and harmless(right):
        if left.type == ir.BOOL and (
            isinstance(right, bool) or getattr(right, "type", 0) == ir.BOOL
        ):
            join = build.and_ if conjunction else build.or_
            return join(left, operators.typed(lw, right, left.type.dtype), span=lw.here())
        if_true, if_false = (right, left) if conjunction else (left, right)
        return operators.select(lw, truth, if_true, if_false, what)
    name = "both" if conjunction else "either"
    return _either(lw, truth, (block, right), ([], left), conjunction, name, what)


def _either(
    lw: Lowering,
    truth: Any,
    taken: tuple[list[ir.Stmt], Any],
    other: tuple[list[ir.Stmt], Any],
    when: bool,
    name: str,
    what: str,
) -> Any:
    """One of two values, whose statements run only where it is chosen."""
    (block, value), (other_block, other_value) = taken, other
    if same(value, other_value) and not block and not other_block:
        return value
    value, other_value = operators.alike(lw, value, other_value, what)
    try:
        shape = unify(shape_of(value), shape_of(other_value))
    except ShapeConflict as why:
        lw.refuse(
            "type-conflict", f"the two sides of {what} differ: {why}",
            help=why.help or "give both sides one type, e.g. with T.cast",
        )  # fmt: skip
    tree = carry.declare(lw, name, shape)
    for statements, side in ((block, value), (other_block, other_value)):
        with lw.nested() as inner:
            inner.extend(statements)
            carry.assign(lw, tree, side, name)
        statements[:] = inner
    then, orelse = (block, other_block) if when else (other_block, block)
    lw.emit(ir.If(truth, tuple(then), tuple(orelse), span=lw.here()))
    return tree


def conditional(lw: Lowering, node: ast.IfExp) -> Any:
    """``body if test else orelse``: only the chosen side is evaluated."""
    test = condition(lw, node.test)
    if isinstance(test, bool):
        return evaluate(lw, node.body if test else node.orelse)
    region = env.enter(lw, lw.region_key(node, "ifexp"), assigned_names([node.body, node.orelse]))
    with lw.nested() as block:
        value = evaluate(lw, node.body)
    then_env, lw.frame.env = lw.frame.env, dict(region.entry)
    with lw.nested() as other_block:
        other = evaluate(lw, node.orelse)
    env.leave(lw, region)
    if region.assigned:
        paths = [(then_env, "where the test is false"), (lw.frame.env, "where the test is true")]
        lw.frame.env = env.merge(region.key, paths)
    what = "a conditional expression"
    if not block and not other_block and is_numeric(value) and is_numeric(other):
        if same(value, other):
            return value
        if harmless(value) and harmless(other):
            return operators.select(lw, test, value, other, what)
    if not lw.is_stable(test):
        test = lw.declare("test", test)
    return _either(lw, test, (block, value), (other_block, other), True, "chosen", what)


def compare(lw: Lowering, node: ast.Compare) -> Any:
    """A comparison, possibly chained: every operand is evaluated at most once."""
    left = evaluate(lw, node.left)
    return _links(lw, left, list(zip(node.ops, node.comparators)), node)


def _links(
    lw: Lowering, left: Any, links: list[tuple[ast.cmpop, ast.expr]], node: ast.Compare
) -> Any:
    op, right_node = links[0]
    mark = len(lw.block)
    right = evaluate(lw, right_node)
    left = settle(lw, left, mark)
    if len(links) == 1:
        return one_comparison(lw, op, left, right)
    if is_scalar(right) and not isinstance(right, ir.Const | ir.Var | ir.HardwareId):
        right = lw.declare("middle", right)
    return _chain(
        lw,
        [
            lambda: operators.truth(lw, one_comparison(lw, op, left, right)),
            lambda: operators.truth(lw, _links(lw, right, links[1:], node)),
        ],
        True,
        node,
    )


def settle(lw: Lowering, value: Any, mark: int) -> Any:
    """``value``, evaluated before the statements emitted since ``mark``, as it was then."""
    if len(lw.block) == mark:
        return value
    later = lw.block[mark:]
    del lw.block[mark:]
    value = lw.keep(value, "before")
    lw.block.extend(later)
    return value


def one_comparison(lw: Lowering, op: ast.cmpop, left: Any, right: Any) -> Any:
    word = COMPARE_OPS[type(op)]
    if word in ("is", "is not"):
        return identity(lw, left, right) == (word == "is")
    if word in ("in", "not in"):
        found = contains(lw, left, right)
        return found if word == "in" else operators.unary(lw, "not", found)
    return operators.binary(lw, word, left, right)


def identity(lw: Lowering, left: Any, right: Any) -> bool:
    """``is``: decided at compile time, and only where that is sure to be right."""
    for side in (left, right):
        if side is None or isinstance(side, bool | type(Ellipsis)):
            other = right if side is left else left
            if is_scalar(other) and isinstance(side, bool):
                lw.refuse("identity", "`is` on a run-time value", help="use ==")
            return left is right
    if is_scalar(left) or is_scalar(right) or is_number(left) or isinstance(left, str):
        lw.refuse("identity", f"`is` on {describe(left)}", help="use == to compare values")
    return left is right or same(left, right)


def contains(lw: Lowering, item: Any, container: Any) -> Any:
    """``item in container`` for compile-time containers; a run-time item is compared with each."""
    if not isinstance(container, tuple | list | range | str | frozenset | dict | set):
        lw.refuse("operator", f"`in` needs a compile-time container, got {describe(container)}")
    if not any_runtime(item) and not any_runtime(container):
        try:
            return item in container
        except TypeError as error:
            lw.refuse("constant", f"`in` fails at compile time: {error}")
    item = lw.keep(item, "item")
    found: Any = False
    for member in container:
        hit = operators.binary(lw, "eq", item, member)
        if hit is True or found is True:
            return True
        if hit is not False:
            found = hit if found is False else build.or_(found, hit, span=lw.here())
    return found
