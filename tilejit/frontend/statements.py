"""Statements: every ``ast.stmt`` is lowered with Python's meaning or refused by name.

``STATEMENTS`` holds the handlers, ``REFUSED`` the rest; together they cover ``ast.stmt``.

Not here: control flow (``control``), names (``env``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tilejit.dtypes import DType
from tilejit.errors import TileError
from tilejit.frontend import control, env, names, operators, tensors
from tilejit.frontend.expressions import (
    BINARY,
    evaluate,
    evaluate_all,
    iterate,
    local_function,
    place,
    settle_all,
    subscript,
)
from tilejit.frontend.expressions import refuse_node as refuse_expression
from tilejit.frontend.rewind import until_decided
from tilejit.frontend.state import FALLS, Flow, Lowering
from tilejit.frontend.values import (
    LocalFunction,
    Method,
    RangeLoop,
    any_runtime,
    describe,
    is_runtime,
)
from tilejit.ir import nodes as ir
from tilejit.language.annotations import constexpr
from tilejit.layout import LayoutError
from tilejit.ptx.instruction import Instruction
from tilejit.ptx.spelling import SpellingError


def run_statement(lw: Lowering, node: ast.stmt, rest: list[ast.stmt]) -> Flow:
    """Lower one statement; ``rest`` is what follows it in its block."""
    outer, lw.node = lw.node, node  # as `with lw.at(node)`, without its cost
    try:
        flow = _run(lw, node, rest)
    except (TileError, LayoutError, SpellingError) as error:
        place(lw, node, error)
    lw.node = outer
    return flow


def _run(lw: Lowering, node: ast.stmt, rest: list[ast.stmt]) -> Flow:
    if isinstance(node, ast.If):
        return control.run_if(lw, node, rest)
    handler = STATEMENTS.get(type(node))
    if handler is None:
        what, instead = REFUSED.get(type(node), (type(node).__name__, "write it otherwise"))
        lw.refuse("syntax", f"{what} is not part of the kernel language", node, help=instead)
    return handler(lw, node) or FALLS


# --- assignment


def _assign(lw: Lowering, node: ast.Assign) -> None:
    first = node.targets[0]
    if isinstance(node.value, ast.GeneratorExp):
        lw.refuse("iteration", "a generator expression with a name runs when Python asks it to",
                  node.value, help="use a list comprehension")  # fmt: skip
    lw.hint = first.id if isinstance(first, ast.Name) else None
    value = evaluate(lw, node.value)
    lw.hint = None
    if len(node.targets) > 1 or not isinstance(first, ast.Name):
        value = lw.keep(value, "value")
    for target in node.targets:
        assign_target(lw, target, value)


def assign_target(lw: Lowering, target: ast.expr, value: Any) -> None:
    """Bind ``value`` to a name, element or pattern of names."""
    with lw.at(target):
        if isinstance(target, ast.Name):
            env.bind(lw, target.id, value, target)
        elif isinstance(target, ast.Tuple | ast.List):
            _unpack(lw, target, value)
        elif isinstance(target, ast.Subscript):
            receiver, index = evaluate_all(lw, [target.value, target.slice])
            tensors.store(lw, receiver, index, value)
        elif isinstance(target, ast.Attribute):
            lw.refuse(
                "attribute-store", f"attributes cannot be assigned in a kernel ({target.attr!r})",
                target, help="keep the value in a local name; objects in kernels are constants",
            )  # fmt: skip
        else:
            refuse_expression(lw, target)


def _unpack(lw: Lowering, target: ast.Tuple | ast.List, value: Any) -> None:
    if is_runtime(value):
        lw.refuse("unpack", f"{describe(value)} cannot be unpacked", target)
    items = list(iterate(lw, value, target))
    stars = [i for i, t in enumerate(target.elts) if isinstance(t, ast.Starred)]
    wanted = len(target.elts)
    if len(stars) > 1:
        lw.refuse("unpack", "two starred targets", target)
    if (not stars and len(items) != wanted) or (stars and len(items) < wanted - 1):
        at_least = "at least " if stars else ""
        lw.refuse(
            "unpack", f"{len(items)} values for {at_least}{wanted - len(stars)} targets", target
        )
    items = list(lw.keep(tuple(items), "item"))
    if stars:
        first, after = stars[0], wanted - stars[0] - 1
        items[first : len(items) - after] = [list(items[first : len(items) - after])]
    for part, item in zip(target.elts, items):
        assign_target(lw, part.value if isinstance(part, ast.Starred) else part, item)


def assign_local(lw: Lowering, target: ast.expr, value: Any) -> None:
    """Bind a comprehension's variable: no region sees it."""
    if isinstance(target, ast.Name):
        from tilejit.frontend.state import Bound

        lw.frame.scope.env[target.id] = Bound(lw.keep(value, target.id), lw.span(target))
    elif isinstance(target, ast.Tuple | ast.List):
        items = iterate(lw, value, target)
        if len(items) != len(target.elts):
            lw.refuse("unpack", f"{len(items)} values for {len(target.elts)} targets", target)
        for part, item in zip(target.elts, items):
            assign_local(lw, part, item)
    else:
        refuse_expression(lw, target)


def _augmented(lw: Lowering, node: ast.AugAssign) -> None:
    """``target op= value``: the target's parts are evaluated once."""
    op = BINARY[type(node.op)]
    if isinstance(node.target, ast.Name):
        old = names.resolve(lw, node.target.id, node.target)
        if isinstance(old, list):
            lw.refuse("constant", "a list does not change in a kernel", node, help="use a tuple")
        mark = len(lw.block)
        value = evaluate(lw, node.value)
        (old,) = settle_all(lw, [old], mark)
        env.bind(lw, node.target.id, operators.binary(lw, op, old, value), node.target)
    elif isinstance(node.target, ast.Subscript):
        receiver, index = evaluate_all(lw, [node.target.value, node.target.slice])
        receiver, index = lw.keep(receiver, "place"), lw.keep(index, "index")
        old = subscript(lw, receiver, index)
        mark = len(lw.block)
        value = evaluate(lw, node.value)
        (old,) = settle_all(lw, [old], mark)
        if isinstance(old, ir.Region):
            lw.refuse("store", "augmented assignment takes one element", node.target)
        tensors.store(lw, receiver, index, operators.binary(lw, op, old, value))
    else:
        assign_target(lw, node.target, None)


def _annotated(lw: Lowering, node: ast.AnnAssign) -> None:
    """``x: T.float32 = v`` converts; ``x: T.constexpr = v`` demands a compile-time value."""
    annotation = evaluate(lw, node.annotation)
    if isinstance(annotation, str):
        annotation = _written_annotation(lw, annotation, node.annotation)
    if node.value is None:
        lw.refuse(
            "annotation", "a declaration without a value does nothing", node,
            help="give it a value",
        )  # fmt: skip
    if not node.simple:
        lw.refuse("annotation", "only a plain name can be annotated", node.target)
    value = evaluate(lw, node.value)
    if annotation is constexpr:
        if any_runtime(value) and not isinstance(value, ir.Const):
            lw.refuse("static", f"a T.constexpr name is given {describe(value)}", node.value)
    elif is_dtype(annotation):
        value = operators.cast(lw, value, annotation)
    elif annotation not in (int, float, bool, str, tuple, None):
        lw.refuse(
            "annotation", f"{annotation!r} means nothing to a kernel", node.annotation,
            help="use a dtype such as T.float32, or T.constexpr",
        )  # fmt: skip
    assign_target(lw, node.target, value)


def _written_annotation(lw: Lowering, text: str, node: ast.expr) -> Any:
    """What an annotation that is given as a string names."""
    try:
        written = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        lw.refuse("annotation", f"the annotation {text!r} is not an expression: {error.msg}", node)
    for part in ast.walk(written):  # the parts' own places are columns of the string
        ast.copy_location(part, node)
    return evaluate(lw, written)


def is_dtype(value: Any) -> bool:
    from tilejit.dtypes import DType

    return isinstance(value, DType)


def _delete(lw: Lowering, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            env.unbind(lw, target.id, target)
        else:
            lw.refuse("syntax", "`del` takes names", target)


# --- the rest


def _expression(lw: Lowering, node: ast.Expr) -> None:
    """A call made for its effect, or a docstring; a value that nobody takes is an error."""
    if isinstance(node.value, ast.Constant):
        if isinstance(node.value.value, str) or node.value.value is Ellipsis:
            return
        lw.refuse("no-effect", "this statement does nothing", node)
    value = evaluate(lw, node.value)
    if isinstance(node.value, ast.Call | ast.NamedExpr):
        # A helper's unused result is fine (Python drops it); a call of an instruction is done.
        if isinstance(value, ir.Call):
            lw.emit(ir.Evaluate(value, span=lw.here()))
        return
    named = isinstance(node.value, ast.Name | ast.Attribute) or isinstance(value, Instruction)
    lw.refuse(
        "no-effect", f"this statement computes {describe(value)} and drops it", node,
        help=f"call it: {ast.unparse(node.value)}()" if named and _is_function(value)
        else "assign it, or delete the line",
    )  # fmt: skip


def _is_function(value: Any) -> bool:
    called = callable(value) and not isinstance(value, DType)
    return called or isinstance(value, LocalFunction | Method | Instruction)


def _assert(lw: Lowering, node: ast.Assert) -> None:
    """Known at compile time: checked now. Otherwise ``T.device_assert``."""
    from tilejit.frontend.logic import condition

    test = condition(lw, node.test)
    message = evaluate(lw, node.msg) if node.msg is not None and test is not True else ""
    if not isinstance(message, str):
        lw.refuse("static", "an assertion message is a compile-time string", node.msg)
    if test is False:
        lw.refuse("assertion", message or "an assertion of the kernel is false", node)
    if test is not True:
        text = ir.Text(message or ast.unparse(node.test))
        lw.emit(ir.Evaluate(ir.Call("device_assert", (test, text), span=lw.here()), span=lw.here()))


def _raise(lw: Lowering, node: ast.Raise) -> Flow:
    """``raise`` that compilation reaches is the author's own compile-time check."""
    if lw.depth:
        lw.refuse(
            "raise", "`raise` under a run-time condition", node,
            help="use T.device_assert, or make the condition compile-time",
        )  # fmt: skip
    if node.cause is not None:
        lw.refuse("syntax", "`raise … from …` is not part of the kernel language", node.cause)
    if node.exc is None:
        lw.refuse("syntax", "a bare `raise` is not part of the kernel language", node)
    message = ast.unparse(node.exc)
    if isinstance(node.exc, ast.Call):
        message = ", ".join(str(v) for v in evaluate_all(lw, node.exc.args)) or message
    lw.refuse("raise", message, node)


def _pass(lw: Lowering, node: ast.Pass) -> None:
    del lw, node


def _for(lw: Lowering, node: ast.For) -> Flow:
    if node.type_comment is not None:
        lw.refuse("syntax", "a type comment means nothing to a kernel", node)
    return until_decided(lw, node, lambda: control.run_for(lw, node))


def _while(lw: Lowering, node: ast.While) -> Flow:
    return until_decided(lw, node, lambda: control.run_while(lw, node))


def _break(lw: Lowering, node: ast.Break) -> Flow:
    return control.run_break(lw, node)


def _continue(lw: Lowering, node: ast.Continue) -> Flow:
    return control.run_continue(lw, node)


def _return(lw: Lowering, node: ast.Return) -> Flow:
    return control.run_return(lw, node)


def _function(lw: Lowering, node: ast.FunctionDef) -> None:
    """A ``def`` in a kernel is a local helper, inlined where it is called."""
    if node.decorator_list:
        lw.refuse(
            "nested-kernel", f"{node.name!r} is decorated inside a kernel", node.decorator_list[0],
            help="check the indentation: kernels are defined at module level or in host functions",
        )  # fmt: skip
    if getattr(node, "type_params", None):
        lw.refuse("syntax", "type parameters mean nothing to a kernel", node)
    env.bind(lw, node.name, local_function(lw, node), node)


STATEMENTS: dict[type[ast.AST], Callable[[Lowering, Any], Flow | None]] = {
    ast.Assign: _assign,
    ast.AugAssign: _augmented,
    ast.AnnAssign: _annotated,
    ast.Delete: _delete,
    ast.Expr: _expression,
    ast.Assert: _assert,
    ast.Raise: _raise,
    ast.Pass: _pass,
    ast.For: _for,
    ast.While: _while,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Return: _return,
    ast.FunctionDef: _function,
}
"""``ast.If`` is beside this table: it may take the rest of its block with it."""

REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.AsyncFunctionDef: ("`async def`", "kernels wait on barriers: T.cuda.mbarrier_wait"),
    ast.AsyncFor: ("`async for`", "use for"),
    ast.AsyncWith: ("`async with`", "write the calls out"),
    ast.ClassDef: ("a class definition", "define classes outside the kernel"),
    ast.With: ("`with`", "write the calls out"),
    ast.Try: ("`try`", "nothing raises at run time on a GPU; test the condition"),
    ast.Import: ("`import`", "import at module level"),
    ast.ImportFrom: ("`import`", "import at module level"),
    ast.Global: ("`global`", "kernels do not change globals: return the value"),
    ast.Nonlocal: ("`nonlocal`", "local functions do not change outer names: return the value"),
    ast.Match: ("`match`", "use if / elif"),
}
for _name, _entry in {
    "TryStar": ("`except*`", "nothing raises at run time on a GPU; test the condition"),
    "TypeAlias": ("a type alias", "define it outside the kernel"),
}.items():
    if hasattr(ast, _name):
        REFUSED[getattr(ast, _name)] = _entry


def as_static_range(lw: Lowering, value: Any, node: ast.AST) -> Any:
    """A loop range with compile-time bounds as Python's ``range``."""
    if isinstance(value, RangeLoop):
        if any_runtime((value.start, value.stop, value.step)):
            lw.refuse("iteration", "a comprehension's range must be known at compile time", node)
        return range(value.start, value.stop, value.step)
    return value
