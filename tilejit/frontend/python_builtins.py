"""Python's builtins in kernels: run at compile time, or given a run-time meaning.

Not here: the language's own functions (``intrinsics``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from tilejit import dtypes
from tilejit.frontend import operators
from tilejit.frontend.expressions import iterate
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import (
    RangeLoop,
    any_runtime,
    children,
    describe,
    dtype_of,
    is_numeric,
    is_scalar,
)
from tilejit.ir import build
from tilejit.ir import nodes as ir

Handler = Callable[[Lowering, list[Any], dict[str, Any]], Any]

COMPILE_TIME = (
    str, repr, bytes, ord, chr, bin, hex, oct, format, hash, id, callable, hasattr, getattr, type,
    dict, set, frozenset, object,
)  # fmt: skip
REFUSED = {
    "print": "use T.print",
    "open": "kernels have no files",
    "input": "kernels have no input",
    "eval": "write the expression out",
    "exec": "write the statements out",
    "setattr": "objects in kernels are constants",
    "delattr": "objects in kernels are constants",
    "globals": "name what you need",
    "locals": "name what you need",
    "vars": "name what you need",
    "iter": "loop over range(...) or T.unroll(...)",
    "next": "loop over range(...) or T.unroll(...)",
    "super": "call the helper by its name",
    "id": "compare values with ==",
    "hash": "hashes differ between runs",
    "__import__": "import at module level",
}


def find(callee: Any) -> Handler | None:
    """The handler of a builtin, found by identity."""
    known = _BY_IDENTITY.get(id(callee))
    if known is not None:
        return known
    name = getattr(callee, "__name__", None)
    if name in REFUSED and callee is getattr(builtins, name, None):
        return lambda lw, args, kwargs: lw.refuse(
            "builtin", f"{name}() is not part of the kernel language", help=REFUSED[name]
        )
    return None


def _range(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or not 1 <= len(args) <= 3:
        lw.refuse("arguments", f"range takes 1 to 3 positional arguments, got {len(args)}")
    for value in args:
        if not (
            isinstance(value, int)
            or (is_scalar(value) and is_numeric(value) and not dtype_of(value).is_float)
        ):
            lw.refuse("range", f"range takes integers, got {describe(value)}")
    start, stop = (0, args[0]) if len(args) == 1 else (args[0], args[1])
    step = args[2] if len(args) == 3 else 1
    if step == 0 or (isinstance(step, ir.Const) and step.value == 0):
        lw.refuse("range", "the step of a range cannot be 0")
    if any_runtime((start, stop, step)):
        return RangeLoop(start, stop, step, False)
    return range(start, stop, step)


def _extreme(op: str, python: Callable[..., Any]) -> Handler:
    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not any_runtime((tuple(args), tuple(kwargs.values()))):
            return operators.python_call(lw, f"{op}()", python, *args, **kwargs)
        if kwargs:
            lw.refuse("arguments", f"{op}() of run-time values takes no keywords")
        values = list(iterate(lw, args[0], lw.node)) if len(args) == 1 else args  # type: ignore[arg-type]
        if not values:
            lw.refuse("arguments", f"{op}() of nothing")
        result = values[0]
        for value in values[1:]:
            if not any_runtime((result, value)):
                result = python(result, value)
                continue
            a, b = operators.common(
                lw, operators.integer(lw, result), operators.integer(lw, value), f"{op}()"
            )
            make = build.minimum if op == "min" else build.maximum
            result = make(a, b, span=lw.here())
        return result

    return handler


def absolute(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``abs(x)``"""
    if len(args) != 1 or kwargs:
        lw.refuse("arguments", f"abs() takes one value, got {len(args)}")
    value = args[0]
    if not is_scalar(value):
        return operators.python_call(lw, "abs()", abs, value)
    operators.refuse_pointer(lw, value, "abs()")
    value = operators.integer(lw, value)
    return value if dtype_of(value).kind == "uint" else build.absolute(value, span=lw.here())


minimum = _extreme("min", min)
maximum = _extreme("max", max)


def _convert(python: type, dtype: dtypes.DType) -> Handler:
    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not any_runtime(tuple(args)):
            return operators.python_call(lw, f"{python.__name__}()", python, *args, **kwargs)
        if len(args) != 1 or kwargs:
            lw.refuse("arguments", f"{python.__name__}() of a run-time value takes one argument")
        value = args[0]
        if python is bool:
            return operators.truth(lw, value)
        if isinstance(value, ir.Const):
            return python(value.value)
        if is_scalar(value) and isinstance(value.type, ir.ScalarType):
            current = value.type.dtype
            if (python is int and current.is_integer) or (python is float and current.is_float):
                return value
        return operators.cast(lw, value, dtype)

    return handler


def _len(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        lw.refuse("arguments", f"len() takes one value, got {len(args)}")
    value = args[0]
    if isinstance(value, ir.View | ir.Region):
        if not value.type.shape:
            lw.refuse("arguments", "len() of a tensor without axes")
        return value.type.shape[0]
    return operators.python_call(lw, "len()", len, value)


def _container(python: type) -> Handler:
    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not args:
            return python()
        return python(iterate(lw, args[0], lw.node))  # type: ignore[arg-type]

    return handler


def _spread(python: Callable[..., Any]) -> Handler:
    """``zip``, ``enumerate``, ``reversed``, ``sorted`` over compile-time containers."""

    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if python is sorted and any_runtime(tuple(args)):
            lw.refuse("builtin", "sorted() of run-time values", help="write a sorting network")
        if python is enumerate:
            items = [iterate(lw, args[0], lw.node), *args[1:]]  # type: ignore[arg-type]
        elif python is reversed and args and isinstance(args[0], range):
            return args[0][::-1]
        else:
            items = [iterate(lw, a, lw.node) for a in args]  # type: ignore[arg-type]
        return operators.python_call(lw, python.__name__, lambda: tuple(python(*items, **kwargs)))

    return handler


def _sum(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) + len(kwargs) <= 2:
        lw.refuse("arguments", "sum() takes an iterable and a start")
    total = kwargs.get("start", args[1] if len(args) > 1 else 0)
    for item in iterate(lw, args[0], lw.node):  # type: ignore[arg-type]
        total = operators.binary(lw, "add", total, item)
    return total


def _every(conjunction: bool) -> Handler:
    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result: Any = conjunction
        for item in iterate(lw, args[0], lw.node):  # type: ignore[arg-type]
            truth = operators.truth(lw, item)
            if isinstance(truth, bool):
                if truth != conjunction:
                    return truth
            elif isinstance(result, bool):
                result = truth
            else:
                join = build.and_ if conjunction else build.or_
                result = join(result, truth, span=lw.here())
        return result

    return handler


def _operator(op: str, arity: int) -> Handler:
    """``operator.add`` and its like: the operator as a function, to hand to a helper."""

    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != arity or kwargs:
            lw.refuse("arguments", f"operator.{op} takes {arity} values, got {len(args)}")
        return operators.binary(lw, op, *args) if arity == 2 else operators.unary(lw, op, *args)

    return handler


def _divmod(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs:
        lw.refuse("arguments", f"divmod() takes two values, got {len(args)}")
    return (
        operators.binary(lw, "floordiv", *args),
        operators.binary(lw, "mod", *args),
    )


def _pow(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs:
        return operators.binary(lw, "pow", *args)
    if any_runtime(tuple(args)):
        lw.refuse("arguments", "pow() of run-time values takes two arguments")
    return operators.python_call(lw, "pow()", pow, *args, **kwargs)


def _round(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not any_runtime(tuple(args)):
        return operators.python_call(lw, "round()", round, *args, **kwargs)
    lw.refuse(
        "builtin", "round() of a run-time value", help="use T.rint(x), and T.cast to an integer"
    )


def _isinstance(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and children(args[0]) is None and any_runtime(args[0]):
        lw.refuse("builtin", "isinstance() of a run-time value", help="compare x.dtype instead")
    return operators.python_call(lw, "isinstance()", isinstance, *args, **kwargs)


def _compile_time(python: Callable[..., Any]) -> Handler:
    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if python is getattr and args and isinstance(args[0], ir.View):
            from tilejit.frontend import tensors

            return tensors.attribute(lw, args[0], args[1])
        if python is hasattr and len(args) == 2 and isinstance(args[1], str) and not kwargs:
            from tilejit.frontend import tensors

            if any_runtime(args[0]) and children(args[0]) is None:
                return args[1] in tensors.attribute_names(args[0])
        if any_runtime((tuple(args), tuple(kwargs.values()))):
            lw.refuse("builtin", f"{python.__name__}() of a run-time value")
        return operators.python_call(lw, f"{python.__name__}()", python, *args, **kwargs)

    return handler


_HANDLERS: list[tuple[Any, Handler]] = [
    (range, _range), (min, minimum), (max, maximum), (abs, absolute), (len, _len),
    (int, _convert(int, dtypes.int32)), (float, _convert(float, dtypes.float32)),
    (bool, _convert(bool, dtypes.bool_)), (tuple, _container(tuple)), (list, _container(list)),
    (zip, _spread(zip)), (enumerate, _spread(enumerate)), (reversed, _spread(reversed)),
    (sorted, _spread(sorted)), (sum, _sum), (all, _every(True)), (any, _every(False)),
    (divmod, _divmod), (pow, _pow), (round, _round), (isinstance, _isinstance),
    *((f, _compile_time(f)) for f in COMPILE_TIME if f.__name__ not in REFUSED),
    *((python, _operator(op, 2)) for op, python in operators.PYTHON.items()),
    *((python, _operator(op, 1)) for op, python in operators.PYTHON_UNARY.items()),
]  # fmt: skip

# The keys are identities of objects that the list keeps alive.
_BY_IDENTITY: dict[int, Handler] = {id(function): handler for function, handler in _HANDLERS}
