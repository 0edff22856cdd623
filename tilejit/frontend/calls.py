"""Calls: language functions, dtypes, instructions, helpers (inlined), Python at compile time.

A helper that is ``@jit`` is inlined. A plain function is run by Python when every argument is a
compile-time value, else inlined. Not here: what language functions mean (``intrinsics``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

from tilejit.dtypes import DType
from tilejit.errors import Span, TileError
from tilejit.frontend import (
    carry,
    control,
    env,
    intrinsics,
    operators,
    python_builtins,
    raw,
    tensors,
)
from tilejit.frontend.captures import refusal
from tilejit.frontend.expressions import evaluate, evaluate_all, settle_all
from tilejit.frontend.kernel import Kernel, parse
from tilejit.frontend.reach import kernel_within
from tilejit.frontend.source import Source
from tilejit.frontend.state import Frame, Key, Lowering, Result, Target
from tilejit.frontend.targets import assigned_names
from tilejit.frontend.values import (
    LocalFunction,
    Method,
    any_runtime,
    describe,
    is_runtime,
    kernel_of,
)
from tilejit.ir import nodes as ir
from tilejit.language.kernel_only import OutsideKernel
from tilejit.ptx.instruction import Instruction, PtxPrefix, as_instruction

MAX_INLINE_DEPTH = 64
IMMUTABLE_METHODS = (bool, int, float, str, bytes, tuple, range, frozenset)


def call(lw: Lowering, node: ast.Call) -> Any:
    callee = evaluate(lw, node.func)
    hint, lw.hint = lw.hint, None
    if isinstance(callee, Instruction | PtxPrefix):
        raw.call(lw, as_instruction(callee), node)
        lw.hint = hint
        return None
    args, kwargs = _arguments(lw, node)
    lw.hint = hint
    with lw.at(node):
        return invoke(lw, callee, args, kwargs, node)


def _arguments(lw: Lowering, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
    """Positional, then keyword arguments, each as it was when Python would evaluate it."""
    args = evaluate_all(lw, node.args)
    names: list[str] = []
    values: list[Any] = list(args)
    for keyword in node.keywords:
        mark = len(lw.block)
        value = evaluate(lw, keyword.value)
        values = settle_all(lw, values, mark)
        if keyword.arg is None:
            lw.refuse("syntax", "`**` in a call is not part of the kernel language", keyword.value,
                      help="write the keywords out")  # fmt: skip
        names.append(keyword.arg)
        values.append(value)
    count = len(args)
    return values[:count], dict(zip(names, values[count:]))


def invoke(
    lw: Lowering, callee: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    """``callee(*args, **kwargs)``"""
    # These are in no table, and to look one up hashes all that it holds.
    if isinstance(callee, Method):
        return _method(lw, callee, args, kwargs, node)
    if isinstance(callee, LocalFunction):
        return _inline_local(lw, callee, args, kwargs, node)
    handler = intrinsics.find(callee)
    if handler is not None:
        return handler(lw, args, kwargs)
    builtin = python_builtins.find(callee)
    if builtin is not None:
        if kwargs:  # a key= that Python would call
            _refuse_kernel(lw, tuple(kwargs.values()), describe(callee), node)
        return builtin(lw, args, kwargs)
    if isinstance(callee, DType):
        return _convert(lw, callee, args, kwargs)
    if isinstance(callee, Instruction | PtxPrefix):
        return raw.issue(
            lw,
            as_instruction(callee),
            [raw.Operand(a) for a in args],
            {k: raw.Operand(v) for k, v in kwargs.items()},
        )
    kernel = kernel_of(callee)
    if kernel is not None:
        return inline(lw, kernel, args, kwargs, node)
    if isinstance(callee, functools.partial):
        return invoke(lw, callee.func, [*callee.args, *args], {**callee.keywords, **kwargs}, node)
    if isinstance(callee, type):
        return _construct(lw, callee, args, kwargs)
    if callable(callee) and not is_runtime(callee):
        return _python(lw, callee, args, kwargs, node)
    lw.refuse("call", f"{describe(callee)} cannot be called", node)


def _convert(lw: Lowering, dtype: DType, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        lw.refuse("arguments", f"T.{dtype}(x) takes one value, got {len(args) + len(kwargs)}")
    return operators.cast(lw, args[0], dtype)


def _method(
    lw: Lowering, bound: Method, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    if isinstance(bound.receiver, ir.View):
        return tensors.method(lw, bound, args, kwargs)
    lw.refuse("call", f"{describe(bound.receiver)}: {bound.name} cannot be called", node)


def _construct(lw: Lowering, kind: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Classes: enums by value, frozen dataclasses and named tuples, also with run-time fields."""
    if issubclass(kind, enum.Enum):
        return operators.python_call(lw, kind.__name__, kind, *args, **kwargs)
    runtime = any_runtime((tuple(args), tuple(kwargs.values())))
    named = issubclass(kind, tuple) and hasattr(kind, "_make")
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if runtime and not named and not (frozen and "__post_init__" not in vars(kind)):
        lw.refuse(
            "construct", f"{kind.__name__}(...) with run-time values",
            help="frozen dataclasses (without __post_init__) and named tuples may hold them",
        )  # fmt: skip
    if (
        not (named or frozen)
        and issubclass(kind, BaseException | object)
        and not _harmless_class(kind)
    ):
        lw.refuse(
            "construct", f"{kind.__name__} objects cannot be made in a kernel",
            help="make it outside, or use a frozen dataclass",
        )  # fmt: skip
    _refuse_kernel(lw, kind, kind.__name__, lw.node)
    made = operators.python_call(lw, kind.__name__, kind, *args, **kwargs)
    return lw.keep(made, kind.__name__.lower()) if runtime else made


def _harmless_class(kind: type) -> bool:
    return kind in IMMUTABLE_METHODS or kind.__module__.startswith("tilejit.")


def _computes_a_layout(function: Any) -> bool:
    """Is it one of ``T``'s helpers for layouts?"""
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    return str(module).startswith("tilejit.language.") and name.endswith("_layout")


def _python(
    lw: Lowering, function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    """A plain callable: run at compile time, or inlined when it is given run-time values."""
    receiver = getattr(function, "__self__", None)
    builtin = isinstance(function, types.BuiltinFunctionType | types.MethodWrapperType)
    runtime = any_runtime((tuple(args), tuple(kwargs.values()), receiver))
    if builtin and receiver is not None and not isinstance(receiver, types.ModuleType):
        if not isinstance(receiver, IMMUTABLE_METHODS) and not isinstance(receiver, type):
            lw.refuse("call", f"the method {function.__name__!r} of {describe(receiver)}",
                      help="objects in kernels are constants")  # fmt: skip
    if runtime and _computes_a_layout(function):
        given = next(v for v in (*args, *kwargs.values()) if any_runtime(v))
        lw.refuse("static", f"{function.__name__} computes a layout when compiling, and is given {describe(given)}",
                  node, help="a layout's extents and strides are compile-time integers")  # fmt: skip
    if runtime or kernel_within((function, args, kwargs)):
        return _inline_python(lw, function, args, kwargs, node)
    static = [_plain(a) for a in args]
    name = getattr(function, "__name__", "the call")
    try:
        result = function(*static, **{k: _plain(v) for k, v in kwargs.items()})
    except (OutsideKernel, TileError) as error:
        if isinstance(error, TileError) and "ptx/outside-kernel" not in error.codes:
            raise
        return _inline_python(lw, function, args, kwargs, node)
    except Exception as error:
        lw.refuse(
            "constant", f"{name} fails at compile time: {type(error).__name__}: {error}", node
        )
    lw.captures.python_function(function)
    reason = None if isinstance(result, list | dict) else refusal(result)
    if reason is not None:
        lw.refuse(
            "captured", f"{name} gives {reason}", node, help="compile-time values are immutable"
        )
    return result


def _refuse_kernel(lw: Lowering, value: Any, name: str, node: ast.AST | None) -> None:
    """Refuse to have Python run ``value`` where that could launch a kernel."""
    kernel = kernel_within(value)
    if kernel is not None:
        lw.refuse(
            "call", f"{name} would call the kernel {kernel} at compile time", node,
            help="call it from the kernel, or from a plain function that the kernel calls",
        )  # fmt: skip


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, ir.Const) else value


def _inline_python(
    lw: Lowering, function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    receiver = getattr(function, "__self__", None)
    target = getattr(function, "__func__", function)
    if not isinstance(target, types.FunctionType):
        name = getattr(function, "__name__", repr(function))
        _refuse_kernel(lw, (function, args, kwargs), name, node)
        help_text = "the kernel language has its own functions: T.exp, T.min, …"
        lw.refuse("call", f"{name} cannot take run-time values", node, help=help_text)
    if isinstance(function, types.MethodType):
        args = [receiver, *args]
    return inline(lw, parse_helper(lw, target), args, kwargs, node)


def parse_helper(lw: Lowering, function: types.FunctionType) -> Kernel:
    """An undecorated helper; one that was ``exec``-ed with its caller is in the caller's text."""
    caller = lw.frame.source
    same_text = function.__code__.co_filename == caller.function.__code__.co_filename
    if caller.given is not None and same_text:
        return parse_cached(function, caller.given)
    return parse_cached(function, None)


@functools.lru_cache(maxsize=256)
def parse_cached(function: types.FunctionType, source: str | None) -> Kernel:
    return parse(function, source, plain=True)


# --- inlining


def inline(
    lw: Lowering, kernel: Kernel, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    """The body of a helper in place of its call."""
    lw.captures.source(kernel.source)
    defaults = {p.name: p.default for p in kernel.params if p.has_default}
    for name, default in defaults.items():
        label = f"{kernel.function.__module__}.{kernel.function.__qualname__}.<default>.{name}"
        now = functools.partial(_default_now, kernel.function, name)
        lw.captures.record(label, default, now)
    bound = bind_arguments(lw, kernel.name, kernel.node.args, defaults, args, kwargs, node)
    for spec in kernel.params:
        value = bound[spec.name]
        if spec.kind == "constexpr" and any_runtime(value) and not isinstance(value, ir.Const):
            lw.refuse(
                "static", f"{kernel.name}() needs a compile-time {spec.name!r}, got {describe(value)}",
                node,
            )  # fmt: skip
        if spec.kind == "scalar":
            bound[spec.name] = operators.cast(lw, value, spec.annotation)
        if spec.kind == "tensor" and not (value is None or isinstance(value, ir.View)):
            lw.refuse(
                "type", f"{kernel.name}() takes a tensor {spec.name!r}, got {describe(value)}", node
            )
    return _run_inlined(lw, kernel.source, kernel.node, bound, None, node)


def _default_now(function: Callable[..., Any], name: str) -> Any:
    import inspect

    return inspect.signature(function, follow_wrapped=False).parameters[name].default


def _inline_local(
    lw: Lowering, local: LocalFunction, args: list[Any], kwargs: dict[str, Any], node: ast.Call
) -> Any:
    bound = bind_arguments(
        lw, local.name, local.node.args, dict(local.defaults), args, kwargs, node
    )
    return _run_inlined(lw, local.frame.source, local.node, bound, local.frame, node)


def _run_inlined(
    lw: Lowering,
    source: Source,
    code: ast.FunctionDef | ast.Lambda,
    bound: dict[str, Any],
    outer: Frame | None,
    node: ast.Call,
) -> Any:
    if len(lw.frames) > MAX_INLINE_DEPTH:
        lw.refuse("recursion", f"helpers call each other more than {MAX_INLINE_DEPTH} deep", node,
                  help="recursion must end at compile time")  # fmt: skip
    call_site = lw.span(node)
    path = lw.region_key(node, "call")
    kept = {name: env.named(lw, value, name) if _needs_name(lw, value) else value
            for name, value in bound.items()}  # fmt: skip
    frame = new_frame(source, code, call_site, path, kept, outer, "helper")
    lw.frames.append(frame)
    hint, lw.hint = lw.hint, None
    try:
        return run_body(lw, code)
    finally:
        lw.frames.pop()
        lw.hint = hint


_COMPUTED = frozenset({ir.Binary, ir.Call, ir.Load, ir.Select, ir.Unary, ir.Cast})


def _needs_name(lw: Lowering, value: Any) -> bool:
    """Arguments are evaluated once, before the body: unstable ones become variables."""
    if type(value) in _COMPUTED:
        return True
    return not lw.is_stable(value) if is_runtime(value) else any_runtime(value)


def new_frame(
    source: Source,
    code: ast.FunctionDef | ast.Lambda,
    call_site: Span | None,
    path: Key,
    bound: dict[str, Any],
    outer: Frame | None,
    role: str,
) -> Frame:
    from tilejit.frontend.state import Bound

    body = code.body if isinstance(code, ast.FunctionDef) else []
    local_names = assigned_names(body) | set(bound)
    if isinstance(code, ast.Lambda):
        local_names |= assigned_names([code.body])
    frame = Frame(
        source, call_site, path, outer=outer, local_names=frozenset(local_names), role=role
    )
    span = source.span(code, call_site)
    frame.env = {name: Bound(value, span) for name, value in bound.items()}
    return frame


def run_body(lw: Lowering, code: ast.FunctionDef | ast.Lambda) -> Any:
    """Run the current frame's code; the value it returns."""
    if isinstance(code, ast.Lambda):
        return lw.keep(evaluate(lw, code.body), "result")
    frame = lw.frame
    frame.result = result = Result(frame.path, Target(frame.path, False), lw.depth)
    decided = lw.decisions.get((*frame.path, "$result"))
    if decided is not None:
        with lw.at(code):
            result.tree = carry.declare(lw, "result", decided)
        result.shape = decided
        result.depth = -1
    result.target = control.new_target(lw, frame.path, False)
    flow = control.run_block(lw, code.body)
    if decided is None:
        return result.value
    if flow.falls:
        end = code.body[-1]
        with lw.at(end):
            control.give(lw, None)
    assert result.shape is not None
    # Nothing writes the result any more.
    for var in _variables(result.tree):
        lw.mutable.discard(var.name)
    return result.tree


def _variables(tree: Any) -> list[ir.Var]:
    from tilejit.frontend.values import children

    if isinstance(tree, ir.Var):
        return [tree]
    parts = children(tree)
    return [] if parts is None else [v for part in parts for v in _variables(part)]


def bind_arguments(
    lw: Lowering,
    name: str,
    parameters: ast.arguments,
    defaults: dict[str, Any],
    args: list[Any],
    kwargs: dict[str, Any],
    node: ast.AST,
) -> dict[str, Any]:
    """Python's binding of arguments to parameters."""
    positional_only = [p.arg for p in parameters.posonlyargs]
    positional = positional_only + [p.arg for p in parameters.args]
    every = positional + [p.arg for p in parameters.kwonlyargs]
    if len(args) > len(positional):
        lw.refuse(
            "arguments",
            f"{name}() takes {len(positional)} positional arguments, got {len(args)}",
            node,
        )
    bound = dict(zip(positional, args))
    for key, value in kwargs.items():
        if key not in every or key in positional_only:
            lw.refuse("arguments", f"{name}() has no parameter {key!r}", node,
                      help=f"it takes {', '.join(every)}")  # fmt: skip
        if key in bound:
            lw.refuse("arguments", f"{name}() is given {key!r} twice", node)
        bound[key] = value
    missing = [p for p in every if p not in bound and p not in defaults]
    if missing:
        lw.refuse("arguments", f"{name}() misses {', '.join(missing)}", node)
    return {p: bound[p] if p in bound else defaults[p] for p in every}
