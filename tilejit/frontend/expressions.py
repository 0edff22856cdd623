"""Expressions: every ``ast.expr`` is evaluated with Python's meaning or refused by name.

``EXPRESSIONS`` holds the handlers, ``REFUSED`` the rest with what to write instead; together they
cover ``ast.expr`` (a test walks the module).

Not here: operators (``operators``), short circuits (``logic``), calls (``calls``), tensors
(``tensors``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
import enum
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn

from tilejit.errors import TileError, attach_span
from tilejit.frontend import env, names, operators, tensors
from tilejit.frontend.reach import kernel_within
from tilejit.frontend.state import Frame, Lowering
from tilejit.frontend.targets import assigned_names, walrus_names
from tilejit.frontend.values import (
    LocalFunction,
    any_runtime,
    children,
    describe,
    is_record,
    is_runtime,
    is_scalar,
)
from tilejit.ir import nodes as ir
from tilejit.layout import LayoutError
from tilejit.ptx.instruction import PtxNamespace, PtxPrefix
from tilejit.ptx.spelling import SpellingError

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "bitand",
    ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.MatMult: "matmul",
}  # fmt: skip
UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not",
}  # fmt: skip

MAX_COMPREHENSION = 65536


def evaluate(lw: Lowering, node: ast.expr) -> Any:
    """The value of ``node``; statements it needs are emitted first."""
    handler = EXPRESSIONS.get(type(node))
    if handler is None:
        refuse_node(lw, node)
    outer, lw.node = lw.node, node  # as `with lw.at(node)`, without its cost
    try:
        value = handler(lw, node)
    except (TileError, LayoutError, SpellingError) as error:
        place(lw, node, error)
    lw.node = outer
    return value


def place(lw: Lowering, node: ast.AST, error: TileError | LayoutError | SpellingError) -> NoReturn:
    """Raises ``error`` as a diagnostic at ``node``, unless it has a place already. Called while the
    error is being handled."""
    if isinstance(error, LayoutError):
        lw.refuse("view", str(error), node)
    if isinstance(error, SpellingError):
        lw.refuse("spelling", error.message, node, help=error.help)
    if all(d.span for d in error.diagnostics):
        raise error
    raise attach_span(error, lw.span(node)) from None


def refuse_node(lw: Lowering, node: ast.AST) -> NoReturn:
    """Refuse a node the kernel language does not have, by its Python name."""
    what, instead = REFUSED.get(type(node), (type(node).__name__, "write it in another way"))
    lw.refuse("syntax", f"{what} is not part of the kernel language", node, help=instead)


def evaluate_all(lw: Lowering, nodes: list[ast.expr]) -> list[Any]:
    """Values of several expressions, left to right; an earlier value is as it was when evaluated
    even if a later one emits statements. ``*star`` items are spread."""
    values: list[Any] = []
    for node in nodes:
        mark = len(lw.block)
        if isinstance(node, ast.Starred):
            spread = evaluate(lw, node.value)
            parts = iterate(lw, spread, node)
            values = settle_all(lw, values, mark)
            values.extend(parts)
        else:
            value = evaluate(lw, node)
            if len(lw.block) != mark:
                values = settle_all(lw, values, mark)
            values.append(value)
    return values


def settle_all(lw: Lowering, values: list[Any], mark: int) -> list[Any]:
    """``values``, evaluated before the statements emitted since ``mark``, as they were then."""
    if len(lw.block) == mark:
        return values
    later = lw.block[mark:]
    del lw.block[mark:]
    values = [lw.keep(value, "before") for value in values]
    lw.block.extend(later)
    return values


def iterate(lw: Lowering, value: Any, node: ast.AST) -> tuple[Any, ...]:
    """The items of a compile-time iterable."""
    parts = children(value) if not is_record(value) and not isinstance(value, slice) else None
    if parts is not None:
        return parts
    if isinstance(
        value, str | range | frozenset | dict | types.GeneratorType | zip | enumerate | map
    ):
        if isinstance(value, frozenset):
            lw.refuse("iteration", "the order of a set is not defined", node, help="use a tuple")
        return tuple(value)
    if isinstance(value, enum.EnumMeta):
        members: tuple[Any, ...] = tuple(value)
        return members
    lw.refuse("iteration", f"{describe(value)} cannot be iterated over at compile time", node)


# --- leaves


def _constant(lw: Lowering, node: ast.Constant) -> Any:
    if isinstance(node.value, complex):
        lw.refuse("syntax", "complex numbers are not part of the kernel language", node)
    return node.value


def _name(lw: Lowering, node: ast.Name) -> Any:
    return names.resolve(lw, node.id, node)


def _tuple(lw: Lowering, node: ast.Tuple) -> Any:
    return tuple(evaluate_all(lw, node.elts))


def _list(lw: Lowering, node: ast.List) -> Any:
    return evaluate_all(lw, node.elts)


def _starred(lw: Lowering, node: ast.Starred) -> Any:
    lw.refuse("syntax", "`*` stands only in calls, tuples and assignment targets", node)


# --- operators


def _binary(lw: Lowering, node: ast.BinOp) -> Any:
    left = evaluate(lw, node.left)
    mark = len(lw.block)
    right = evaluate(lw, node.right)
    (left,) = settle_all(lw, [left], mark)
    return operators.binary(lw, BINARY[type(node.op)], left, right)


def _unary(lw: Lowering, node: ast.UnaryOp) -> Any:
    if isinstance(node.op, ast.Not):
        from tilejit.frontend.logic import condition

        return condition(lw, node)
    return operators.unary(lw, UNARY[type(node.op)], evaluate(lw, node.operand))


def _boolean(lw: Lowering, node: ast.BoolOp) -> Any:
    from tilejit.frontend.logic import boolean

    return boolean(lw, node)


def _compare(lw: Lowering, node: ast.Compare) -> Any:
    from tilejit.frontend.logic import compare

    return compare(lw, node)


def _conditional(lw: Lowering, node: ast.IfExp) -> Any:
    from tilejit.frontend.logic import conditional

    return conditional(lw, node)


def _named(lw: Lowering, node: ast.NamedExpr) -> Any:
    value = evaluate(lw, node.value)
    env.bind(lw, node.target.id, value, node.target)
    return names.resolve(lw, node.target.id, node.target)


# --- access


def _attribute(lw: Lowering, node: ast.Attribute) -> Any:
    receiver = evaluate(lw, node.value)
    return attribute(lw, receiver, node.attr, node)


def attribute(lw: Lowering, receiver: Any, name: str, node: ast.AST) -> Any:
    """``receiver.name``"""
    if is_runtime(receiver):
        return tensors.attribute(lw, receiver, name)
    if isinstance(receiver, (PtxNamespace, PtxPrefix)):
        return getattr(receiver, name)
    if isinstance(receiver, types.ModuleType):
        return names.module_attribute(lw, receiver, name, node)
    if name.startswith("_") and not isinstance(receiver, type):
        lw.refuse("attribute", f"private attribute {name!r} of {describe(receiver)}", node)
    if not isinstance(receiver, LocalFunction):
        static = getattr(type(receiver), name, None)
        computed = isinstance(static, (property, functools.cached_property))
        if any_runtime(receiver) or (computed and kernel_within(static)):
            if isinstance(static, property) and isinstance(static.fget, types.FunctionType):
                from tilejit.frontend import calls

                read: Any = node  # an attribute stands for the call
                return calls.inline(lw, calls.parse_helper(lw, static.fget), [receiver], {}, read)
            static = inspect.getattr_static(type(receiver), name, None)
            if type(static).__module__ not in ("builtins", "_collections"):
                lw.refuse("attribute", f"{name!r} of {describe(receiver)} is a "
                          f"{type(static).__name__}, which Python would run at compile time", node,
                          help="make it a property")  # fmt: skip
    try:
        value = getattr(receiver, name)
    except Exception as error:
        known = inspect.getattr_static(type(receiver), name, None) is not None
        if known or not isinstance(error, AttributeError):
            lw.refuse("constant", f"{describe(receiver)}: {name!r} fails at compile time: "
                      f"{type(error).__name__}: {error}", node)  # fmt: skip
        lw.refuse(
            "attribute", f"{describe(receiver)} has no attribute {name!r}", node,
            help=_nearest(receiver, name),
        )  # fmt: skip
    if isinstance(receiver, type):
        names.check_captured(lw, f"{receiver.__qualname__}.{name}", value, node)
    return value


def _nearest(receiver: Any, name: str) -> str:
    import difflib

    public = [n for n in dir(receiver) if not n.startswith("_")]
    close = difflib.get_close_matches(name, public, n=3)
    return f"did you mean {', '.join(close)}?" if close else f"it has {', '.join(public[:12])}"


def _subscript(lw: Lowering, node: ast.Subscript) -> Any:
    receiver, index = evaluate_all(lw, [node.value, node.slice])
    return subscript(lw, receiver, index)


def subscript(lw: Lowering, receiver: Any, index: Any) -> Any:
    """``receiver[index]``"""
    if isinstance(receiver, PtxNamespace):
        if not isinstance(index, str):
            lw.refuse("spelling", f"T.ptx[...] takes an opcode as text, got {describe(index)}")
        return receiver[index]
    if isinstance(receiver, tensors.INDEXABLE):
        return tensors.subscript(lw, receiver, index)
    if is_scalar(receiver):
        tensors.no_elements(lw, receiver, "subscript")
    index = static_index(index)
    if any_runtime(index):
        lw.refuse(
            "subscript", f"{describe(receiver)} is indexed by a run-time value",
            help="index it in a T.unroll loop, or keep the values in a tensor",
        )  # fmt: skip
    return operators.python_call(lw, "the subscript", lambda: receiver[index])


def static_index(index: Any) -> Any:
    """Typed constants index as the integers they are."""
    if isinstance(index, ir.Const) and isinstance(index.value, int):
        return index.value
    if isinstance(index, slice):
        return slice(*(static_index(part) for part in (index.start, index.stop, index.step)))
    return index


def _slice(lw: Lowering, node: ast.Slice) -> Any:
    present = [n for n in (node.lower, node.upper, node.step) if n is not None]
    values = iter(evaluate_all(lw, present))
    lower, upper, step = (
        next(values) if n is not None else None for n in (node.lower, node.upper, node.step)
    )
    return slice(lower, upper, step)


# --- calls, functions, comprehensions


def _call(lw: Lowering, node: ast.Call) -> Any:
    from tilejit.frontend.calls import call

    return call(lw, node)


def _lambda(lw: Lowering, node: ast.Lambda) -> Any:
    return local_function(lw, node)


def local_function(lw: Lowering, node: ast.FunctionDef | ast.Lambda) -> LocalFunction:
    """A function written in the kernel; its defaults are evaluated now, as Python does."""
    a = node.args
    for star in (a.vararg, a.kwarg):
        if star is not None:
            lw.refuse("star-parameters", "*args and **kwargs are not supported", star)
    positional = [*a.posonlyargs, *a.args]
    values = evaluate_all(lw, list(a.defaults))
    pairs = list(zip([p.arg for p in positional[len(positional) - len(values) :]], values))
    for parameter, default in zip(a.kwonlyargs, a.kw_defaults):
        if default is not None:
            pairs.append((parameter.arg, evaluate(lw, default)))
    return LocalFunction(node, lw.frame.scope, tuple((n, lw.keep(v, n)) for n, v in pairs))


def _list_comprehension(lw: Lowering, node: ast.ListComp) -> Any:
    items, _ = _comprehend(lw, node)
    return items


def _generator(lw: Lowering, node: ast.GeneratorExp) -> Any:
    """A generator is written out at once; what that could change is refused."""
    if walrus_names([node.elt, *(test for g in node.generators for test in g.ifs)]):
        lw.refuse("iteration", "`:=` in a generator expression, which Python may leave early", node,
                  help="use a list comprehension")  # fmt: skip
    items, scope = _comprehend(lw, node)
    if any(_made_in(scope, item) for item in items):
        lw.refuse("iteration", "a generator expression gives functions that it makes", node,
                  help="use a list comprehension")  # fmt: skip
    return tuple(items)


def _made_in(scope: Frame, value: Any) -> bool:
    """Whether a function that can read the variables of ``scope`` is in ``value``."""
    frame = value.frame if isinstance(value, LocalFunction) else None
    while frame is not None and frame is not scope:
        frame = frame.outer
    return frame is scope or any(_made_in(scope, part) for part in children(value) or ())


def _comprehend(lw: Lowering, node: ast.ListComp | ast.GeneratorExp) -> tuple[list[Any], Frame]:
    """The items of a comprehension over compile-time iterables, and the scope of its variables.

    The scope outlives it: functions made there see the variables as they were last.
    """
    from tilejit.frontend.statements import as_static_range, assign_local

    results: list[Any] = []
    generators, frame = node.generators, lw.frame
    variables = assigned_names([g.target for g in generators])
    scope = Frame(
        frame.source, frame.call_site, frame.path, outer=frame.scope,
        local_names=frozenset(variables),
    )  # fmt: skip

    def level(depth: int, source: Any) -> None:
        generator, path = generators[depth], frame.path
        if generator.is_async:
            lw.refuse("syntax", "an asynchronous comprehension is not supported", node)
        source = as_static_range(lw, source, generator.iter)
        for index, item in enumerate(iterate(lw, source, generator.iter)):
            frame.path = (*path, index)
            assign_local(lw, generator.target, item)
            if not all(_known(lw, test, node) for test in generator.ifs):
                continue
            if depth + 1 < len(generators):
                level(depth + 1, evaluate(lw, generators[depth + 1].iter))
                continue
            results.append(lw.keep(evaluate(lw, node.elt), "item"))
            if len(results) > MAX_COMPREHENSION:
                lw.refuse("iteration", f"more than {MAX_COMPREHENSION} items", node)
        frame.path = path

    first = evaluate(lw, generators[0].iter)  # the one part that the enclosing scope evaluates
    outer, path = frame.inner, frame.path
    frame.inner, frame.path = scope, lw.region_key(node, "items")
    level(0, first)
    frame.inner, frame.path = outer, path
    return results, scope


def _known(lw: Lowering, test: ast.expr, node: ast.AST) -> bool:
    from tilejit.frontend.logic import condition

    keep = condition(lw, test)
    if not isinstance(keep, bool):
        lw.refuse("iteration", "a comprehension's `if` must be known at compile time", node)
    return keep


# --- strings


def _joined(lw: Lowering, node: ast.JoinedStr) -> Any:
    return "".join(str(evaluate(lw, part)) for part in node.values)


def _formatted(lw: Lowering, node: ast.FormattedValue) -> Any:
    value = evaluate(lw, node.value)
    if any_runtime(value):
        lw.refuse(
            "format", f"an f-string cannot hold {describe(value)}", node,
            help='print run-time values with T.print("x = {}", x)',
        )  # fmt: skip
    if node.conversion != -1:
        as_text: dict[int, Callable[[object], str]] = {115: str, 114: repr, 97: ascii}
        value = as_text[node.conversion](value)
    spec = evaluate(lw, node.format_spec) if node.format_spec is not None else ""
    return operators.python_call(lw, "the f-string", lambda: format(value, spec))


EXPRESSIONS: dict[type[ast.AST], Callable[[Lowering, Any], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.List: _list,
    ast.Starred: _starred,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: _conditional,
    ast.NamedExpr: _named,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.Call: _call,
    ast.Lambda: _lambda,
    ast.ListComp: _list_comprehension,
    ast.GeneratorExp: _generator,
    ast.JoinedStr: _joined,
    ast.FormattedValue: _formatted,
}

REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Dict: ("a dict display", "use a frozen dataclass or separate names"),
    ast.Set: ("a set display", "use a tuple"),
    ast.SetComp: ("a set comprehension", "use a tuple"),
    ast.DictComp: ("a dict comprehension", "use a tuple"),
    ast.Await: ("`await`", "kernels wait on barriers: T.cuda.mbarrier_wait"),
    ast.Yield: ("`yield`", "write a loop"),
    ast.YieldFrom: ("`yield from`", "write a loop"),
}
for _newer in ("TemplateStr", "Interpolation"):  # Python 3.14
    if hasattr(ast, _newer):
        REFUSED[getattr(ast, _newer)] = ("a template string", "use an f-string")
