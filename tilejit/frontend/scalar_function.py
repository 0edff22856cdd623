"""``ewise``'s function as a ``LambdaExpr``: parameters typed, body lowered, nothing inlined around it.

The body is scalar bindings, ``if``/``else`` and returns. Not here: the tile walk (families).
"""

from __future__ import annotations

import ast
import types
from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.frontend import calls, control, intrinsics, operators
from tilejit.frontend.kernel import Kernel
from tilejit.frontend.shapes import Leaf
from tilejit.frontend.source import Source
from tilejit.frontend.state import Frame, Lowering, Result, Target
from tilejit.frontend.values import LocalFunction, describe, dtype_of, is_number, is_scalar
from tilejit.ir import nodes as ir
from tilejit.ir import walk


def lower(
    lw: Lowering, function: Any, dst: Any, inputs: list[Any]
) -> tuple[ir.LambdaExpr, list[Any]]:
    """The typed body, and the inputs with literals typed by the parameters they meet."""
    source, code, outer, annotated = _parts(lw, function, len(inputs))
    parameters = [*code.args.posonlyargs, *code.args.args]
    if code.args.kwonlyargs or len(parameters) != len(inputs):
        lw.refuse(
            "ewise", f"the function takes {len(parameters)} values, ewise passes {len(inputs)}"
        )
    names = [p.arg for p in parameters]
    types = [annotated.get(name) or _input_type(lw, value) for name, value in zip(names, inputs)]
    operands = [
        operators.const(lw, value, dtype) if is_number(value) else value
        for value, dtype in zip(inputs, types)
    ]
    returned = annotated.get("return") or _element(dst)
    variables = [lw.fresh(name, ir.ScalarType(dtype)) for name, dtype in zip(names, types)]
    body = _body(lw, source, code, outer, dict(zip(names, variables)), returned)
    name = code.name if isinstance(code, ast.FunctionDef) else "lambda"
    kind = ir.ScalarType(_return_type(body) or returned)
    return ir.LambdaExpr(name, tuple(variables), body, kind, span=lw.here()), operands


def _parts(
    lw: Lowering, function: Any, count: int
) -> tuple[Source, ast.FunctionDef | ast.Lambda, Frame | None, dict[str, DType]]:
    """Source, code, enclosing frame and annotated dtypes (``return`` included)."""
    if isinstance(function, LocalFunction):
        return function.frame.source, function.node, function.frame, _local_types(lw, function)
    kernel: Kernel | None = getattr(function, "__tilejit_kernel__", None)
    if kernel is None:
        builtin = isinstance(function, DType | type | types.BuiltinFunctionType)
        if builtin or intrinsics.find(function) is not None:
            return lw.frame.source, _calling(lw, function, count), None, {}
        if not hasattr(function, "__code__"):
            lw.refuse("ewise", f"ewise takes a scalar function first, got {describe(function)}")
        kernel = calls.parse_helper(lw, function)
    lw.captures.source(kernel.source)
    annotated = {p.name: p.annotation for p in kernel.params if p.kind == "scalar"}
    if kernel.returns is not None:
        annotated["return"] = kernel.returns
    return kernel.source, kernel.node, None, annotated


def _calling(lw: Lowering, function: Any, count: int) -> ast.Lambda:
    """``lambda x0, x1: function(x0, x1)``: what has no Python body of its own is called."""
    names = [f"x{i}" for i in range(count)]
    parameters = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    read: list[ast.expr] = [ast.Name(n, ast.Load()) for n in names]
    code = ast.Lambda(parameters, ast.Call(ast.Constant(function), read, []))
    assert isinstance(lw.node, ast.Call)
    written = lw.node.args[0] if lw.node.args else lw.node
    for part in ast.walk(code):
        ast.copy_location(part, written)
    return code


def _local_types(lw: Lowering, function: LocalFunction) -> dict[str, DType]:
    from tilejit.frontend.expressions import evaluate

    found: dict[str, DType] = {}
    a = function.node.args
    for parameter in [*a.posonlyargs, *a.args]:
        if parameter.annotation is not None:
            found[parameter.arg] = evaluate(lw, parameter.annotation)
    returns = getattr(function.node, "returns", None)
    if returns is not None:
        found["return"] = evaluate(lw, returns)
    return {name: value for name, value in found.items() if isinstance(value, DType)}


def _element(operand: Any) -> DType:
    return operand.type.dtype  # type: ignore[no-any-return]


def _input_type(lw: Lowering, value: Any) -> DType:
    if is_number(value):
        return dtypes.literal_type(value, None)
    if is_scalar(value):
        return dtype_of(value)
    return _element(value)


def _body(
    lw: Lowering,
    source: Source,
    code: ast.FunctionDef | ast.Lambda,
    outer: Frame | None,
    bound: dict[str, Any],
    returned: DType,
) -> ir.Block:
    node = lw.node
    assert node is not None
    path = lw.region_key(node, "ewise")
    frame = calls.new_frame(source, code, lw.here(), path, bound, outer, "lambda")
    shape = Leaf(ir.ScalarType(returned))
    frame.result = Result(path, Target(path, True), -1, shape=shape)
    lw.frames.append(frame)
    try:
        with lw.nested() as block:
            if isinstance(code, ast.Lambda):
                from tilejit.frontend.expressions import evaluate

                with lw.at(code.body):
                    control.give(lw, evaluate(lw, code.body))
            else:
                flow = control.run_block(lw, code.body)
                if flow.falls:
                    lw.refuse("ewise", "the function ends without returning a value", code.body[-1])
            _only_scalar(lw, tuple(block))
            _closed(lw, tuple(block), bound)
    finally:
        lw.frames.pop()
    return tuple(block)


def _only_scalar(lw: Lowering, block: ir.Block) -> None:
    """Refuse what the contract's scalar function cannot hold."""
    for statement in block:
        match statement:
            case ir.If():
                _only_scalar(lw, statement.then)
                _only_scalar(lw, statement.orelse)
            case ir.Declare() | ir.Assign() | ir.Return():
                pass
            case _:
                lw.refuse(
                    "ewise", "an ewise function holds scalar bindings, if/else and returns only",
                    span=statement.span,
                )  # fmt: skip


def _closed(lw: Lowering, block: ir.Block, bound: dict[str, Any]) -> None:
    """The function reads its parameters and constants only: no memory, no outer variables."""
    known = {v.name for v in bound.values()}
    nodes = list(walk.descend(block))
    known |= {n.var.name for n in nodes if isinstance(n, ir.Declare)}
    for node in nodes:
        if isinstance(node, ir.Load | ir.Address):
            lw.refuse("ewise", "an ewise function does not read memory", span=node.span)
        outer = isinstance(node, ir.Var) and node.name not in known
        if outer or isinstance(node, ir.HardwareId):
            lw.refuse(
                "ewise", "an ewise function takes a run-time value from outside",
                help="pass it as an input: scalars broadcast",
            )  # fmt: skip


def _return_type(block: ir.Block) -> DType | None:
    for statement in block:
        if isinstance(statement, ir.Return) and statement.value is not None:
            return dtype_of(statement.value)
        if isinstance(statement, ir.If):
            found = _return_type(statement.then) or _return_type(statement.orelse)
            if found is not None:
                return found
    return None
