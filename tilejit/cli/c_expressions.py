"""Host expressions of the IR (a grid, the numbers of a tensor map) as C: integers are ``int64_t``.

Division rounds down and shifts go by 64 bits, as in the kernel's own host code.
Not here: the same in Python (``runtime.hostexpr``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilejit.errors import LaunchError, fault
from tilejit.ir.nodes import Binary, Call, Cast, Const, Expr, ScalarType, Select, Unary, Var

HELPERS = """\
#ifndef TILEJIT_HOST_ARITHMETIC
#define TILEJIT_HOST_ARITHMETIC
static inline int64_t tilejit_floordiv(int64_t a, int64_t b) { return a / b - (a % b && (a < 0) != (b < 0)); }
static inline int64_t tilejit_mod(int64_t a, int64_t b) { return a - b * tilejit_floordiv(a, b); }
static inline int64_t tilejit_shl(int64_t a, int64_t b) { return (int64_t)((uint64_t)a << b); }
static inline int64_t tilejit_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tilejit_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t tilejit_abs(int64_t a) { return a < 0 ? -a : a; }
#endif
"""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "shr": ">>", "bitand": "&", "bitor": "|",
    "bitxor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&&",
    "or": "||",
}  # fmt: skip
_FUNCTIONS = {name: f"tilejit_{name}" for name in ("floordiv", "mod", "shl", "min", "max", "abs")}
_FLOAT_FUNCTIONS = {"min": "fmin", "max": "fmax", "abs": "fabs"}
_PREFIX = {"neg": "-", "not": "!", "invert": "~"}
_MATH = ("exp", "exp2", "log", "log2", "sqrt", "floor", "ceil", "trunc", "pow")


def c_source(expr: Expr, names: Mapping[str, str]) -> str:
    """``expr`` as one C expression; ``names``: variable → C that reads it. ``LaunchError``,
    ``compile/expression``, for what C is not written for."""

    def go(e: Expr) -> str:
        return c_source(e, names)

    match expr:
        case Const(value=bool(value)):
            return str(int(value))
        case Const(value=int(value)):
            text = f"INT64_C({abs(value)})" if abs(value) >= 1 << 31 else str(abs(value))
            return text if value >= 0 else f"(-{text})"
        case Const(value=float(value)) if value == value and abs(value) != float("inf"):
            return f"({value!r})"
        case Var(name=name) if name in names:
            return names[name]
        case Unary(op="abs", operand=operand):
            return f"{_named('abs', expr.type)}({go(operand)})"
        case Unary(op=op, operand=operand):
            return f"({_PREFIX[op]}{go(operand)})"
        case Binary(op=op, lhs=lhs, rhs=rhs) if op in _INFIX:
            # Two literals of C would be computed as int.
            wide = "(int64_t)" if isinstance(lhs, Const) and isinstance(rhs, Const) else ""
            return f"({wide}{go(lhs)} {_INFIX[op]} {go(rhs)})"
        case Binary(op=op, lhs=lhs, rhs=rhs) if op in _FUNCTIONS:
            return f"{_named(op, expr.type)}({go(lhs)}, {go(rhs)})"
        case Select(condition=condition, if_true=if_true, if_false=if_false):
            return f"({go(condition)} ? {go(if_true)} : {go(if_false)})"
        case Cast(operand=operand, type=type_):
            return _cast(go(operand), type_)
        case Call(op=op, args=args) if op.startswith("math.") and op[5:] in _MATH:
            return f"{op[5:]}({', '.join(map(go, args))})"
    raise fault(
        LaunchError,
        "compile/expression",
        f"the C header cannot compute this {type(expr).__name__} of the launch",
        getattr(expr, "span", None),
        help="launch it from Python: tile.load of the .tile file",
    )


def _named(op: str, type_: ScalarType) -> str:
    if not type_.dtype.is_float:
        return _FUNCTIONS[op]
    if op not in _FLOAT_FUNCTIONS:
        raise fault(
            LaunchError, "compile/expression", f"the C header cannot compute {op} of floats in the launch",
            help="launch it from Python: tile.load of the .tile file",
        )  # fmt: skip
    return _FLOAT_FUNCTIONS[op]


def _cast(source: str, type_: ScalarType) -> str:
    dtype = type_.dtype
    if dtype.kind == "bool":
        return f"(({source}) != 0)"
    if dtype.is_float:
        return f"((double)({source}))"
    if dtype.bits == 64:
        return f"((int64_t)({source}))"
    return f"((int64_t)({'' if dtype.is_signed else 'u'}int{dtype.bits}_t)({source}))"
