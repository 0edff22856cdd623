"""What an expression of a kernel can evaluate to.

A *value* is either a compile-time Python value or a run-time one: a typed ``ir`` expression
(``Scalar``), a ``View`` or a ``Region``. Tuples, lists, slices and frozen dataclasses may mix
both. This module tells them apart and answers what is stable (may be evaluated later) and harmless
(may be evaluated although Python would not).

Not here: building expressions (``operators``, ``tensors``).
"""

from __future__ import annotations

import ast
import dataclasses
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from tilejit.dtypes import DType
from tilejit.ir import nodes as ir

if TYPE_CHECKING:
    from tilejit.frontend.kernel import Kernel
    from tilejit.frontend.state import Frame

SCALAR_NODES = (
    ir.Const, ir.Var, ir.HardwareId, ir.Unary, ir.Binary, ir.Select, ir.Cast, ir.Bitcast, ir.Load,
    ir.Address, ir.Call,
)  # fmt: skip
EXPR_NODES = (*SCALAR_NODES, ir.View, ir.Region, ir.Tuple, ir.Text, ir.Static)
_SCALARS = frozenset(SCALAR_NODES)
_EXPRESSIONS = frozenset(EXPR_NODES)
_LEAVES = _EXPRESSIONS | {bool, int, float, str, type(None)}


@dataclass(frozen=True)
class LocalFunction:
    """A ``lambda`` or ``def`` written inside a kernel: inlined in the scope it was written in."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame
    defaults: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "<lambda>"


@dataclass(frozen=True)
class Method:
    """A language method of a kernel value (``view.permute``), or a helper bound to ``self``."""

    receiver: Any
    name: str


@dataclass(frozen=True)
class Sub:
    """``view.sub``, waiting for its subscript."""

    view: ir.View


@dataclass(frozen=True)
class RangeLoop:
    """``range(...)`` whose bounds may be run-time values, or ``T.unroll(...)``."""

    start: Any
    stop: Any
    step: Any
    unroll: bool


def is_runtime(value: object) -> bool:
    """An ``ir`` expression itself (not a container holding one)."""
    return type(value) in _EXPRESSIONS


def is_scalar(value: object) -> bool:
    """A run-time scalar or pointer expression (typed constants count: they are ``ir.Const``)."""
    return type(value) in _SCALARS and isinstance(
        value.type,  # type: ignore[attr-defined]
        (ir.ScalarType, ir.PointerType),
    )


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """A compile-time number: an untyped literal as far as types go."""
    return isinstance(value, (bool, int, float))


def is_numeric(value: Any) -> bool:
    """A number at compile time or run time; addresses are none."""
    return is_number(value) or (is_scalar(value) and isinstance(value.type, ir.ScalarType))


def dtype_of(value: Any) -> DType:
    """The dtype of a run-time scalar; ``TypeError`` for pointers and the rest."""
    if isinstance(value, SCALAR_NODES) and isinstance(value.type, ir.ScalarType):
        return value.type.dtype
    raise TypeError(f"{describe(value)} is not a scalar")


def children(value: Any) -> tuple[Any, ...] | None:
    """The parts of a container value, None for leaves."""
    if type(value) in _LEAVES:
        return None
    if isinstance(value, (tuple, list)):
        return tuple(value)
    if isinstance(value, slice):
        return (value.start, value.stop, value.step)
    if is_record(value):
        return tuple(getattr(value, f.name) for f in dataclasses.fields(value))
    return None


def is_record(value: Any) -> bool:
    """An instance of a user's frozen dataclass (``ir`` and ``tilejit`` values are leaves)."""
    kind = type(value)
    return (
        dataclasses.is_dataclass(kind)
        and not kind.__module__.startswith("tilejit.")
        and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    )


def rebuild(value: Any, parts: tuple[Any, ...]) -> Any:
    """``value`` with its parts replaced; a record is copied without running its ``__init__``."""
    if isinstance(value, slice):
        return slice(*parts)
    if isinstance(value, list):
        return list(parts)
    if isinstance(value, tuple):
        make: Any = getattr(type(value), "_make", None)
        return make(parts) if make else tuple(parts)
    copy = object.__new__(type(value))
    for field, part in zip(dataclasses.fields(value), parts):
        object.__setattr__(copy, field.name, part)
    return copy


def any_runtime(value: Any) -> bool:
    """Whether a run-time value is in it, at any depth."""
    if type(value) in _LEAVES:
        return type(value) in _EXPRESSIONS
    if isinstance(value, (LocalFunction, Sub, Method)):
        return True
    parts = children(value)
    return parts is not None and any(any_runtime(part) for part in parts)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with every leaf changed."""
    parts = children(value)
    if parts is None:
        return change(value)
    changed = tuple(map_leaves(part, change) for part in parts)
    if all(new is old for new, old in zip(changed, parts)):
        return value
    return rebuild(value, changed)


def same(a: Any, b: Any) -> bool:
    """Whether two values are interchangeable: equal, and of equal types at every depth."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    left, right = children(a), children(b)
    if left is not None and right is not None:
        return len(left) == len(right) and all(same(x, y) for x, y in zip(left, right))
    try:
        return bool(a == b)
    except Exception:
        return False


def subexpressions(expr: Any) -> Iterator[Any]:
    """``expr`` and every expression inside it, left to right, parents first."""
    pending = [expr]
    while pending:
        part = pending.pop()
        yield part
        parts_of = _PARTS.get(type(part))
        if parts_of is not None:
            pending += reversed(parts_of(part))


_PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    ir.Unary: lambda e: (e.operand,),
    ir.Cast: lambda e: (e.operand,),
    ir.Bitcast: lambda e: (e.operand,),
    ir.Binary: lambda e: (e.lhs, e.rhs),
    ir.Select: lambda e: (e.condition, e.if_true, e.if_false),
    ir.Load: lambda e: (e.view, *e.indices),
    ir.Address: lambda e: (e.offset_bytes,),
    ir.Call: lambda e: e.args,
    ir.View: lambda e: (
        e.offset_elems,
        *(stride for _, stride in e.dynamic_strides),
        *(pick.index for pick in e.picks),
    ),
    ir.Region: lambda e: (e.view, *e.starts),
    ir.Tuple: lambda e: e.items,
    ir.Keyword: lambda e: (e.value,),
}
"""The expressions that stand in one of each kind; the other kinds hold none."""


def harmless(expr: Any) -> bool:
    """May be evaluated where Python would skip it: no load, no call, no division by a variable."""
    for part in subexpressions(expr):
        if isinstance(part, ir.Load | ir.Call):
            return False
        if isinstance(part, ir.Binary) and part.op in ("floordiv", "mod"):
            divisor = part.rhs
            if not (isinstance(divisor, ir.Const) and divisor.value):
                return False
    return True


def kernel_of(value: Any) -> Kernel | None:
    """The parsed function of a ``@jit`` object."""
    if isinstance(value, type | types.ModuleType):
        return None
    return getattr(value, "__tilejit_kernel__", None)


def function_name(value: Any) -> str | None:
    """How messages call a function; None for any other value."""
    if isinstance(value, LocalFunction):
        name, line = value.name, value.node.lineno
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        name, code = value.__name__, getattr(value, "__code__", None)
        line = code.co_firstlineno if code else 0
    else:
        kernel = kernel_of(value)
        return None if kernel is None else f"the function {kernel.name}"
    return f"the lambda of line {line}" if name == "<lambda>" else f"the function {name}"


def unpacking(names: list[str]) -> str:
    """The target that messages write for the parts of a shape: ``M, N``, ``(N,)``."""
    return f"({names[0]},)" if len(names) == 1 else ", ".join(names)


def describe(value: Any) -> str:
    """How messages call a value."""
    if isinstance(value, ir.View | ir.Region):
        kind = "view" if isinstance(value, ir.View) else "region"
        shape = ", ".join(str(d) if isinstance(d, int) else d.name for d in value.type.shape)
        return f"a {value.type.space} {kind} ({shape}) of {value.type.dtype}"
    if is_scalar(value):
        return f"a run-time {value.type}"
    if isinstance(value, DType):
        return f"the dtype {value}"
    function = function_name(value)
    if function is not None:
        return function
    if isinstance(value, Method):
        return f"the method {value.name}"
    if isinstance(value, RangeLoop):
        return "a range" if not any_runtime(value.stop) else "a range with run-time bounds"
    if value is None or is_number(value) or isinstance(value, str):
        return f"the compile-time value {value!r}"
    return f"a compile-time {type(value).__name__}"
