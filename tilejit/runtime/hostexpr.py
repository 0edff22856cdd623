"""Host expressions of the IR (a launch's grid) as Python source, compiled once per plan.

Sizes and scalars are Python ints here, so nothing overflows on the way; casts to narrow integers
wrap as they do in a kernel. Not here: limits of a grid (``plan``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilejit.errors import LaunchError, fault
from tilejit.ir.nodes import Binary, Call, Cast, Const, Expr, ScalarType, Select, Unary, Var
from tilejit.ir.walk import descend

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
}  # fmt: skip
_PREFIX = {"neg": "-", "not": "not ", "invert": "~"}


MAX_NESTING = 150
"""Python reads no source with more than 200 brackets around something."""


def wrap(value: int | float, bits: int, signed: bool) -> int:
    """``value`` truncated to an integer of ``bits`` bits, two's complement."""
    number = int(value) & ((1 << bits) - 1)
    return number - (1 << bits) if signed and number >> (bits - 1) else number


NAMESPACE: dict[str, Any] = {
    "wrap": wrap,
    **{
        f"math_{name}": getattr(math, name)
        for name in ("exp", "exp2", "log", "log2", "sqrt", "floor", "ceil", "trunc", "pow")
    },
}
"""What the generated source refers to, beside the names the caller maps variables to."""


def python_source(expr: Expr, names: Mapping[str, str]) -> str:
    """``expr`` as one parenthesised Python expression; ``names``: variable → source that reads it."""

    def written(e: Expr, depth: int) -> str:
        if depth > MAX_NESTING:
            raise fault(
                LaunchError, "launch/grid", "the grid's expression nests too deeply", expr.span
            )

        def go(part: Expr) -> str:
            return written(part, depth + 1)

        match e:
            case Const(value=value):
                return (
                    repr(value)
                    if value == value and abs(value) != math.inf
                    else f"float('{value}')"
                )
            case Var(name=name) if name in names:
                return names[name]
            case Unary(op="abs", operand=operand):
                return f"abs({go(operand)})"
            case Unary(op=op, operand=operand):
                return f"({_PREFIX[op]}{go(operand)})"
            case Binary(op="min" | "max" as op, lhs=lhs, rhs=rhs):
                return f"{op}({go(lhs)}, {go(rhs)})"
            case Binary(op=op, lhs=lhs, rhs=rhs):
                return f"({go(lhs)} {_INFIX[op]} {go(rhs)})"
            case Select(condition=condition, if_true=if_true, if_false=if_false):
                return f"({go(if_true)} if {go(condition)} else {go(if_false)})"
            case Cast(operand=operand, type=type_):
                return _cast(go(operand), type_)
            case Call(op=op, args=args) if op.replace(".", "_") in NAMESPACE:
                return f"{op.replace('.', '_')}({', '.join(go(a) for a in args)})"
        raise fault(
            LaunchError,
            "launch/grid",
            f"a grid may use sizes, scalars and arithmetic on them; this is a {type(e).__name__}",
            getattr(e, "span", None),
        )

    return written(expr, 0)


def _cast(source: str, type_: ScalarType) -> str:
    dtype = type_.dtype
    if dtype.kind == "bool":
        return f"bool({source})"
    if dtype.is_float:
        return f"float({source})"
    return f"wrap({source}, {dtype.bits}, {dtype.is_signed})"


def compile_function(expr: Expr, names: tuple[str, ...]) -> Callable[..., Any]:
    """``f(*values)`` for the variables ``names``, in that order."""
    parameters = [f"v{i}" for i in range(len(names))]
    body = python_source(expr, dict(zip(names, parameters)))
    function: Callable[..., Any] = eval(f"lambda {', '.join(parameters)}: {body}", dict(NAMESPACE))
    return function


def variables(expr: Expr) -> tuple[str, ...]:
    """The sizes and scalars that ``expr`` is computed from, in its order."""
    return tuple(node.name for node in descend(expr) if isinstance(node, Var))
