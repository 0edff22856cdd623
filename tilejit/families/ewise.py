"""Scalar function application: one typed function evaluated at every register element.

Contract: docs/contract/ewise.md. The one tile operation whose atom is no PTX instruction. Not here:
what the function's expressions mean (``ir.nodes``; emitter and simulator evaluate them).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilejit.errors import InternalError, Report, Span, fault
from tilejit.ir import nodes
from tilejit.ir.ops import OPS
from tilejit.tile import contracts, ownership
from tilejit.tile.addresses import single_registers
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import Family, Issue, Machine, Register, ScalarApply, Step, Value
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/ewise.md"

# --- parameters: none but the scope

# --- operands
#
# dst, then one input per parameter of the function. Tensors are (*group, *repeat), without a
# register-group axis; a scalar input is the same for every element.

# --- legality


def check(call: TileCall, report: Report) -> None:
    function = call.function
    assert function is not None
    _check_body(function, report, call.span)
    if len(call.operands) != 1 + len(function.params):
        report.error(
            "ewise/operand-count",
            f"{function.name} has {len(function.params)} parameters, so ewise takes dst and "
            f"{len(function.params)} inputs; it was given {len(call.operands)} operands",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
        return
    walks: list[Walk] = []
    wanted = (function.type, *(param.type for param in function.params))
    for position, (operand, type_) in enumerate(zip(call.operands, wanted)):
        laid = _check_operand(call, operand, type_, position, report)
        if laid is not None:
            walks.append(laid)
    if walks:
        contracts.repeats_agree(call, walks, report)


def _check_operand(
    call: TileCall,
    operand: TensorOperand | ScalarOperand,
    type_: nodes.Type,
    position: int,
    report: Report,
) -> Walk | None:
    if isinstance(operand, ScalarOperand):
        if position == 0:
            contracts.scalar_destination(call, operand, report)
        elif operand.expr.type != type_:
            _wrong_type(call, operand, str(operand.expr.type), type_, position, report)
        return None
    if not contracts.in_space(call, operand, ("local",), report):
        return None
    if nodes.ScalarType(operand.dtype) != type_:
        _wrong_type(call, operand, operand.dtype.name, type_, position, report)
        return None
    laid = contracts.shaped(call, operand, (), report)
    if laid is None or not ownership.owned(call, laid, report):
        return None
    if position == 0 and not ownership.distinct_slots(call, laid, report):
        return None
    return laid


def _wrong_type(
    call: TileCall,
    operand: TensorOperand | ScalarOperand,
    given: str,
    wanted: nodes.Type,
    position: int,
    report: Report,
) -> None:
    assert call.function is not None
    whose = (
        f"{call.function.name} returns {wanted}"
        if position == 0
        else f"parameter {call.function.params[position - 1].name} is {wanted}"
    )
    report.error(
        "ewise/type",
        f"{operand.name} is {given}, but {whose}",
        span=operand.span,
        declared=operand.declared() if isinstance(operand, TensorOperand) else None,
        contract=f"{CONTRACT}: types exactly match",
        help="cast inside the function",
    )


def _check_body(function: nodes.LambdaExpr, report: Report, span: Span | None) -> None:
    fault_ = _illegal(function.body)
    if fault_ is not None:
        what, where = fault_
        report.error(
            "ewise/body",
            f"{function.name}: a scalar function has bindings, if/else and returns; {what}",
            span=where or span,
            contract=CONTRACT,
        )
    if not _returns(function.body):
        report.error(
            "ewise/return",
            f"{function.name} does not return a value on every path",
            span=function.span or span,
            contract=f"{CONTRACT}: a scalar return on every path",
        )


def _illegal(block: nodes.Block) -> tuple[str, Span | None] | None:
    for statement in block:
        match statement:
            case nodes.Declare(value=value) | nodes.Return(value=value):
                found = _impure(value) if value is not None else None
            case nodes.Assign(value=value):
                found = _impure(value)
            case nodes.If(condition=condition, then=then, orelse=orelse):
                found = _impure(condition) or _illegal(then) or _illegal(orelse)
            case _:
                found = (f"this one has a {type(statement).__name__} statement", statement.span)
        if found is not None:
            return found
    return None


def _impure(expr: nodes.Expr) -> tuple[str, Span | None] | None:
    """The first part of an expression that touches memory, other threads or the launch."""
    match expr:
        case nodes.Const() | nodes.Var():
            return None
        case nodes.Unary(operand=a) | nodes.Cast(operand=a) | nodes.Bitcast(operand=a):
            return _impure(a)
        case nodes.Binary(lhs=a, rhs=b):
            return _impure(a) or _impure(b)
        case nodes.Select(condition=c, if_true=a, if_false=b):
            return _impure(c) or _impure(a) or _impure(b)
        case nodes.Call(op=op, args=args) if op in OPS and OPS[op].effect == "pure":
            return next((f for f in map(_impure, args) if f is not None), None)
        case nodes.Call(op=op):
            return f"this one calls {op}", expr.span
        case nodes.Load():
            return "this one reads memory", expr.span
    return f"this one uses a {type(expr).__name__}", expr.span


def _returns(block: nodes.Block) -> bool:
    for statement in block:
        if isinstance(statement, nodes.Return):
            return statement.value is not None
        if isinstance(statement, nodes.If):
            if _returns(statement.then) and _returns(statement.orelse):
                return True
    return False


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """One evaluation per coordinate, row-major."""
    assert call.function is not None
    first = call.walk_of(0)
    coordinates = first.repeat_coordinates()
    columns: list[Sequence[Register | Value]] = []
    for position, operand in enumerate(call.operands[1:], 1):
        walk = call.walks.get(position)
        if walk is not None:
            columns.append(single_registers(walk))
        else:
            assert isinstance(operand, ScalarOperand)
            columns.append([Value(operand.expr)] * len(coordinates))
    inputs = zip(*columns) if columns else [()] * len(coordinates)
    return [
        ScalarApply(call.function, dst, given, coordinate, call.span)
        for dst, given, coordinate in zip(single_registers(first), inputs, coordinates)
    ]


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Nothing: ``bind`` yields no instruction, and expressions are evaluated where they stand."""
    raise fault(InternalError, "internal/ewise", "ewise has no native instruction", issue.span)


FAMILY = Family(
    name="ewise", params=(), check=check, bind=bind, execute=execute, simulated="yes",
    contract=CONTRACT,
)  # fmt: skip
