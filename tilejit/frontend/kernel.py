"""``parse``: a Python function as a kernel or helper: its parameters and its source, read once.

Annotations are resolved here, postponed ones (strings) included, in the function's own closure and
globals. Not here: lowering.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tilejit.dtypes import DType
from tilejit.errors import Span, SyntaxUnsupported, fault
from tilejit.frontend.source import FunctionNode, Source, read
from tilejit.language.annotations import Tensor, constexpr

ParamKind = Literal["tensor", "scalar", "constexpr", "any"]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter. ``annotation``: a ``Tensor``, a ``DType``, ``T.constexpr`` or None.

    ``kind`` any: no annotation, decided by the argument (tensor, int/float/bool: run-time scalar).
    """

    name: str
    kind: ParamKind
    annotation: Any
    default: Any
    has_default: bool
    span: Span


@dataclass(frozen=True)
class Kernel:
    """A parsed function. ``jit`` helpers and kernels are the same thing; use decides."""

    name: str
    params: tuple[ParamSpec, ...]
    source: Source
    span: Span
    returns: DType | None = None

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def text(self) -> str:
        """The function's own source."""
        return self.source.text

    @property
    def node(self) -> FunctionNode:
        return self.source.node

    @property
    def function(self) -> types.FunctionType:
        return self.source.function


def parse(fn: Callable[..., Any], source: str | None = None, *, plain: bool = False) -> Kernel:
    """Read ``fn``'s source and parameters.

    ``source``: the text of a function that Python keeps no text of. ``plain``: an ordinary Python
    function that a kernel calls, whose annotations may be Python's own and then mean nothing here.
    Raises ``SyntaxUnsupported`` when the source cannot be found or a parameter list or annotation
    cannot be used.
    """
    # A function that functools.wraps dressed as another is still its own code.
    function = fn if isinstance(fn, types.FunctionType) else inspect.unwrap(fn)
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        raise fault(
            SyntaxUnsupported,
            "frontend/not-a-function",
            f"a kernel is a Python function (def or lambda), got {type(fn).__name__}",
        )
    text = read(function, source)
    returns = _returns(text, plain)
    return Kernel(function.__name__, _params(text, plain), text, text.head(), returns)


def _returns(source: Source, plain: bool) -> DType | None:
    """The return annotation; generators and coroutines are refused on the way."""
    code = source.function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise fault(
            SyntaxUnsupported,
            "frontend/generator",
            "a kernel cannot be a generator or a coroutine",
            source.head(),
        )
    node = source.node
    if isinstance(node, ast.FunctionDef) and node.returns is not None:
        returned = _plain(node.returns, source) if plain else _resolve(node.returns, source)
        if plain and not isinstance(returned, DType):
            return None
        if returned is not None and not isinstance(returned, DType):
            raise fault(
                SyntaxUnsupported,
                "frontend/return-annotation",
                f"a return annotation is None or a dtype such as T.float32, got {returned!r}",
                source.span(node.returns),
                help="kernels return nothing; drop the annotation",
            )
        return returned
    return None


def _params(source: Source, plain: bool) -> tuple[ParamSpec, ...]:
    arguments = source.node.args
    for star, what in ((arguments.vararg, "*args"), (arguments.kwarg, "**kwargs")):
        if star is not None:
            raise fault(
                SyntaxUnsupported,
                "frontend/star-parameters",
                f"{what} parameters are not supported: a kernel has a fixed parameter list",
                source.span(star),
                help="name every parameter; pass groups of values as one tuple",
            )
    nodes = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    defaults = _defaults(source)
    return tuple(_param(node, source, defaults, plain) for node in nodes)


def _defaults(source: Source) -> dict[str, Any]:
    signature = inspect.signature(source.function, follow_wrapped=False)
    empty = inspect.Parameter.empty
    return {n: p.default for n, p in signature.parameters.items() if p.default is not empty}


def _param(node: ast.arg, source: Source, defaults: dict[str, Any], plain: bool) -> ParamSpec:
    annotation = None
    if node.annotation is not None:
        annotation = (_plain if plain else _resolve)(node.annotation, source)
    kind: ParamKind
    if annotation is None:
        kind = "any"
    elif isinstance(annotation, Tensor):
        kind = "tensor"
    elif isinstance(annotation, DType):
        kind = "scalar"
    elif annotation is constexpr:
        kind = "constexpr"
    elif annotation is Tensor:
        annotation, kind = Tensor(), "tensor"
    elif plain:
        annotation, kind = None, "any"
    else:
        assert node.annotation is not None
        raise fault(
            SyntaxUnsupported,
            "frontend/annotation",
            f"parameter {node.arg!r} is annotated with {annotation!r}, which means nothing to a "
            "kernel",
            source.span(node.annotation),
            help="use T.Tensor(...), a dtype such as T.float32, T.constexpr, or no annotation",
        )
    has_default = node.arg in defaults
    return ParamSpec(
        node.arg, kind, annotation, defaults.get(node.arg), has_default, source.span(node)
    )


def _plain(node: ast.expr, source: Source) -> Any:
    """An annotation of an ordinary function, None where it cannot be evaluated."""
    try:
        return _resolve(node, source)
    except SyntaxUnsupported:
        return None


def _resolve(node: ast.expr, source: Source) -> Any:
    """The value of an annotation, evaluated in the function's closure, globals and builtins.

    Evaluating the AST (never ``function.__annotations__``) treats postponed, string and ordinary
    annotations alike.
    """
    span = source.span(node)
    while isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError as error:
            raise _unresolved(span, str(error)) from None
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    scope = _Scope(source.function)
    try:
        return eval(compile(ast.Expression(node), source.file, "eval"), {}, scope)
    except Exception as error:
        by_name = _from_annotations(source, span)
        if by_name is not None:
            return by_name
        raise _unresolved(span, f"{type(error).__name__}: {error}") from None


def _from_annotations(source: Source, span: Span) -> Any:
    """Ordinary annotations may name what only their definition could see: Python kept the value."""
    for name, value in source.function.__annotations__.items():
        if isinstance(value, str):
            continue
        for node in [
            *source.node.args.posonlyargs,
            *source.node.args.args,
            *source.node.args.kwonlyargs,
        ]:
            if node.arg == name and node.annotation and source.span(node.annotation) == span:
                return value
    return None


def _unresolved(span: Span, why: str) -> Exception:
    return fault(
        SyntaxUnsupported,
        "frontend/annotation",
        f"this annotation cannot be evaluated ({why})",
        span,
        help="names in annotations must be visible to the function when the kernel is built",
    )


class _Scope(dict[str, Any]):
    """Names as the function sees them: closure cells, then globals, then builtins."""

    def __init__(self, function: types.FunctionType):
        super().__init__()
        self._function = function

    def __missing__(self, name: str) -> Any:
        function = self._function
        defining = _defining_frame(function)
        if name in function.__code__.co_freevars:
            cell = function.__closure__[function.__code__.co_freevars.index(name)]  # type: ignore[index]
            return cell.cell_contents
        if defining is not None and name in defining:
            return defining[name]
        if name in function.__globals__:
            return function.__globals__[name]
        builtins = function.__globals__.get("__builtins__", {})
        table = builtins if isinstance(builtins, dict) else vars(builtins)
        if name in table:
            return table[name]
        raise NameError(f"name {name!r} is not defined")


def _defining_frame(function: types.FunctionType) -> dict[str, Any] | None:
    """Local names of the function that is just now defining ``function``: postponed annotations may
    use names that the kernel's body never mentions, which Python therefore did not capture."""
    frame = sys._getframe()
    current: types.FrameType | None = frame
    while current is not None:
        if function.__code__ in current.f_code.co_consts and current.f_code.co_name != "<module>":
            return current.f_locals
        current = current.f_back
    return None
