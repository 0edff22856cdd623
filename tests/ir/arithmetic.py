"""An evaluator of integer expressions, written from ``ir.nodes``' prose, and random expressions."""

from __future__ import annotations

from hypothesis import strategies as st

from tilejit import dtypes
from tilejit.ir import build, nodes


def wrapped(value: int, dtype: dtypes.DType) -> int:
    low, high = dtypes.integer_range(dtype)
    return (value - low) % (high - low + 1) + low


def evaluate(e: nodes.Expr, values: dict[str, int]) -> int:
    """The value of an integer or bool expression."""
    match e:
        case nodes.Const(value=value):
            return value
        case nodes.Var(name=name) | nodes.HardwareId(name=name):
            return values[name]
        case nodes.Cast(operand=operand, type=kind):
            return wrapped(evaluate(operand, values), kind.dtype)
        case nodes.Unary(op=op, operand=operand, type=kind):
            a = evaluate(operand, values)
            if op == "not":
                return not a
            return wrapped({"neg": -a, "invert": ~a, "abs": abs(a)}[op], kind.dtype)
        case nodes.Select():
            return evaluate(e.if_true if evaluate(e.condition, values) else e.if_false, values)
        case nodes.Binary(op=op, type=kind):
            a, b = evaluate(e.lhs, values), evaluate(e.rhs, values)
            found = OPERATIONS[op](a, b)
            return found if kind == nodes.BOOL else wrapped(found, kind.dtype)
    raise AssertionError(e)


OPERATIONS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
    "bitand": lambda a, b: a & b, "bitor": lambda a, b: a | b, "bitxor": lambda a, b: a ^ b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "min": min, "max": max,
}  # fmt: skip

NAMES = ("i", "j", "k")
ARITHMETIC = ("add", "sub", "mul", "bitand", "bitor", "bitxor", "min", "max")


def expressions(dtype: dtypes.DType, bound: int) -> st.SearchStrategy[nodes.Expr]:
    """Integer expressions of one type, built by the folding constructors; divisors are positive."""
    literals = st.integers(max(-bound, dtypes.integer_range(dtype)[0]), bound)
    consts = literals.map(lambda v: build.const(v, dtype))
    positive = st.integers(1, bound).map(lambda v: build.const(v, dtype))
    leaves = st.sampled_from(NAMES).map(lambda n: nodes.Var(n, nodes.ScalarType(dtype))) | consts

    def larger(inner: st.SearchStrategy[nodes.Expr]) -> st.SearchStrategy[nodes.Expr]:
        return st.one_of(
            st.builds(build.binary, st.sampled_from(ARITHMETIC), inner, inner),
            st.builds(build.binary, st.sampled_from(("floordiv", "mod")), inner, positive),
        )

    return st.recursive(leaves, larger, max_leaves=8)
