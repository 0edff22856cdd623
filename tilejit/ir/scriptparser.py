"""Reads the text that ``ir.script`` prints. See there."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar, cast

from tilejit import dtypes, layout
from tilejit.ir import nodes
from tilejit.ir.views import whole

_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "bitand", ast.BitOr: "bitor",
    ast.BitXor: "bitxor", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq",
    ast.NotEq: "ne", ast.And: "and", ast.Or: "or",
}  # fmt: skip
_UNARY: dict[type, str] = {ast.Not: "not", ast.USub: "neg", ast.Invert: "invert"}
_LOGIC = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or")


class ScriptError(ValueError):
    """Text that is not the IR's; the message has the line."""


def parse_function(text: str) -> nodes.Function:
    """The kernel in ``text``; ``ScriptError`` if there is none or something is unknown."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ScriptError(f"line {error.lineno}: {error.msg}") from None
    reader = _Reader()
    try:
        for item in module.body:
            kernel = reader.definition(item)
            if kernel is not None:
                return kernel
    except ScriptError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # The printer's calls have fixed shapes; whatever else fails on is not its text.
        raise ScriptError(f"line {reader.line}: not the printed IR: {error}") from error
    raise ScriptError("the text holds no kernel")


class _Reader:
    def __init__(self) -> None:
        self.variables: dict[str, nodes.Var] = {}
        self.functions: dict[str, nodes.LambdaExpr] = {}
        self.line = 0

    def fail(self, node: ast.AST, message: str) -> ScriptError:
        return ScriptError(f"line {getattr(node, 'lineno', self.line)}: {message}")

    def definition(self, item: ast.stmt) -> nodes.Function | None:
        """The kernel, or None after a scalar function."""
        if not isinstance(item, ast.FunctionDef):
            raise self.fail(item, "expected a function")
        calls = {_callee(d): d for d in item.decorator_list if isinstance(d, ast.Call)}
        outer = dict(self.variables)
        # Buffers' shapes name sizes, so the other parameters are read first.
        for arg in sorted(item.args.args, key=lambda a: _callee(a.annotation) == "tensor"):
            self.variables[arg.arg] = nodes.Var(arg.arg, self.type(arg.annotation))
        params = tuple(self.variables[arg.arg] for arg in item.args.args)
        body = self.block(item.body)
        if "scalar" in calls:
            name = ast.literal_eval(calls["scalar"].args[0])
            result = cast(nodes.ScalarType, self.type(item.returns))
            self.functions[item.name] = nodes.LambdaExpr(name, params, body, result)
            self.variables = outer
            return None
        target = ast.literal_eval(calls["kernel"].keywords[0].value)
        launch = {str(k.arg): self.data(k.value) for k in calls["launch"].keywords}
        return nodes.Function(item.name, params, nodes.LaunchConfig(**launch), body, target)

    def data(self, node: ast.expr) -> Any:
        """A launch field."""
        if isinstance(node, ast.Tuple):
            return tuple(self.data(e) for e in node.elts)
        return node.value if isinstance(node, ast.Constant) else self.expr(node)

    # types

    def type(self, node: ast.expr | None) -> nodes.Type:
        match node:
            case ast.Name(id="void"):
                return nodes.VOID
            case ast.Name(id=name):
                return nodes.ScalarType(dtypes.dtype(name))
            case ast.Call(func=ast.Name(id="ptr"), args=[space]):
                return nodes.PointerType(ast.literal_eval(space))
            case ast.Call(func=ast.Name(id="tuple"), args=items):
                return nodes.TupleType(tuple(self.type(i) for i in items))
            case ast.Call(
                func=ast.Name(id="tensor"), args=[shape, dtype, where, space, align, *more]
            ):
                return nodes.TensorType(
                    self.shape(shape), dtypes.dtype(ast.literal_eval(dtype)), self.layout(where),
                    ast.literal_eval(space), ast.literal_eval(align), bool(more),
                )  # fmt: skip
        raise self.fail(node or ast.Pass(), "expected a type")

    def shape(self, node: ast.expr) -> tuple[int | nodes.Var, ...]:
        return tuple(self.extent(e) for e in self.elements(node))

    def extent(self, node: ast.expr) -> int | nodes.Var:
        if isinstance(node, ast.Name):
            return self.variables[node.id]
        number: int = ast.literal_eval(node)
        return number

    def elements(self, node: ast.expr) -> list[ast.expr]:
        if not isinstance(node, ast.Tuple):
            raise self.fail(node, "expected a tuple")
        return node.elts

    def layout(self, node: ast.expr) -> layout.Layout | None:
        if isinstance(node, ast.Call):
            return layout.parse(ast.literal_eval(node.args[0]))
        return None

    # statements

    def block(self, items: list[ast.stmt]) -> nodes.Block:
        return tuple(self.statement(i) for i in items if not isinstance(i, ast.Pass))

    def declare(self, name: str, kind: nodes.Type) -> nodes.Var:
        self.variables[name] = nodes.Var(name, kind)
        return self.variables[name]

    def statement(self, s: ast.stmt) -> nodes.Stmt:
        self.line = s.lineno
        match s:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                made = None if value is None else self.expr(value)
                var = self.declare(name, self.type(annotation))
                if isinstance(var.type, nodes.TensorType):
                    return nodes.AllocTensor(var) if made is None else nodes.DeclTmem(var, made)
                return nodes.Declare(var, made)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return nodes.Assign(self.variables[name], self.expr(value))
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                return nodes.Store(*self.element(target), self.expr(value))
            case ast.If(test=test, body=body, orelse=orelse):
                return nodes.If(self.expr(test), self.block(body), self.block(orelse))
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as call, body=body):
                kind, *bounds = call.args
                start, stop, step = (self.expr(b) for b in bounds)
                var = self.declare(name, self.type(kind))
                unroll = _callee(call) == "unroll"
                return nodes.For(var, start, stop, step, self.block(body), unroll)
            case ast.While(body=body):
                return nodes.While(self.block(body))
            case ast.Break():
                return nodes.Break()
            case ast.Continue():
                return nodes.Continue()
            case ast.Return(value=value):
                return nodes.Return(None if value is None else self.expr(value))
            case ast.Expr(value=ast.Call() as call):
                return nodes.Evaluate(self.expr(call))
        raise self.fail(s, "unknown statement")

    # expressions

    def element(self, node: ast.Subscript) -> tuple[nodes.View, tuple[nodes.Expr, ...]]:
        """``view[indices]``; a buffer's name stands for the whole buffer."""
        if isinstance(node.value, ast.Name):
            view = whole(self.variables[node.value.id])
        else:
            view = self.view(node.value)
        return view, tuple(self.expr(e) for e in self.elements(node.slice))

    def view(self, node: ast.expr) -> nodes.View:
        made = self.expr(node)
        if not isinstance(made, nodes.View):
            raise self.fail(node, "expected a view")
        return made

    def expr(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                if name not in self.variables:
                    raise self.fail(node, f"{name!r} is not declared")
                return self.variables[name]
            case ast.Constant(value=str() as text):
                return nodes.Text(text)
            case ast.Tuple(elts=elts):
                return nodes.Tuple(tuple(self.expr(e) for e in elts))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(_BINARY[type(op)], self.expr(left), self.expr(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.binary(_BINARY[type(op)], self.expr(left), self.expr(right))
            case ast.BoolOp(op=op, values=values):
                word = _BINARY[type(op)]
                return reduce(lambda a, b: self.binary(word, a, b), map(self.expr, values))
            case ast.UnaryOp(op=op, operand=operand):
                return self.unary(_UNARY[type(op)], operand)
            case ast.Subscript():
                view, indices = self.element(node)
                return nodes.Load(view, indices, nodes.ScalarType(view.dtype))
            case ast.Call(func=ast.Name(id=name)) if name in dtypes.BY_NAME:
                return self.literal(name, node.args[0])
            case ast.Call(func=ast.Name(id=name)) if name in self.calls:
                return self.calls[name](self, node)
        raise self.fail(node, f"unknown expression {ast.unparse(node)!r}")

    def binary(self, op: Any, a: Any, b: Any) -> nodes.Binary:
        return nodes.Binary(op, a, b, nodes.BOOL if op in _LOGIC else a.type)

    def unary(self, op: Any, operand: ast.expr) -> nodes.Unary:
        inner = self.expr(operand)
        return nodes.Unary(op, inner, inner.type)

    def literal(self, name: str, node: ast.expr) -> nodes.Const:
        value = ast.literal_eval(node)
        if isinstance(value, str):
            value = math.nan if value == "nan" else float(value)
        return nodes.Const(value, nodes.ScalarType(dtypes.dtype(name)))

    # what is spelled as a call

    def _select(self, node: ast.Call) -> nodes.Select:
        condition, a, b = (self.expr(x) for x in node.args)
        return nodes.Select(condition, a, b, a.type)

    def _cast(self, node: ast.Call) -> nodes.Cast:
        return nodes.Cast(self.expr(node.args[0]), cast(nodes.ScalarType, self.type(node.args[1])))

    def _bitcast(self, node: ast.Call) -> nodes.Bitcast:
        kind = cast(nodes.ScalarType, self.type(node.args[1]))
        return nodes.Bitcast(self.expr(node.args[0]), kind)

    def _address(self, node: ast.Call) -> nodes.Address:
        buffer, offset, kind = node.args
        pointer = cast(nodes.PointerType, self.type(kind))
        return nodes.Address(self.expr(buffer), self.expr(offset), pointer)

    def _view(self, node: ast.Call) -> nodes.View:
        buffer, dtype, shape, where, offset, listed, *picks = node.args
        strides = []
        for pair in self.elements(listed):
            axis, stride = self.elements(pair)
            strides.append((ast.literal_eval(axis), self.expr(stride)))
        return nodes.View(
            self.expr(buffer), dtypes.dtype(ast.literal_eval(dtype)), self.shape(shape),
            self.layout(where), self.expr(offset), tuple(strides),
            tuple(self.pick(p) for p in picks),
        )  # fmt: skip

    def pick(self, node: ast.expr) -> nodes.Pick:
        match node:
            case ast.Call(func=ast.Name(id="pick"), args=[index, count, extent, axis]):
                return nodes.Pick(
                    self.expr(index), ast.literal_eval(count), self.extent(extent),
                    ast.literal_eval(axis),
                )  # fmt: skip
        raise self.fail(node, "expected a pick")

    def _region(self, node: ast.Call) -> nodes.Region:
        view, starts, extents = node.args
        listed = tuple(self.expr(e) for e in self.elements(starts))
        return nodes.Region(self.view(view), listed, ast.literal_eval(extents))

    def _call(self, node: ast.Call) -> nodes.Call:
        keywords = {k.arg: k.value for k in node.keywords}
        kind = self.type(keywords["type"]) if "type" in keywords else nodes.VOID
        scope = keywords.get("scope")
        attrs = None if scope is None else nodes.ScopeAttrs(ast.literal_eval(scope))
        op, *args = node.args
        return nodes.Call(ast.literal_eval(op), tuple(self.expr(a) for a in args), kind, attrs)

    def _scalar(self, node: ast.Call) -> nodes.LambdaExpr:
        return self.functions[cast(ast.Name, node.args[0]).id]

    calls: ClassVar[dict[str, Callable[[_Reader, ast.Call], Any]]] = {
        "abs": lambda self, n: self.unary("abs", n.args[0]),
        "min": lambda self, n: self.binary("min", *map(self.expr, n.args)),
        "max": lambda self, n: self.binary("max", *map(self.expr, n.args)),
        "static": lambda _, n: nodes.Static(ast.literal_eval(n.args[0])),
        "hw": lambda _, n: nodes.HardwareId(ast.literal_eval(n.args[0])),
        "whole": lambda self, n: whole(self.expr(n.args[0])),
        "keyword": lambda self, n: nodes.Keyword(
            ast.literal_eval(n.args[0]), self.expr(n.args[1])
        ),
        "select": _select, "cast": _cast, "bitcast": _bitcast, "address": _address, "view": _view,
        "region": _region, "call": _call, "scalar": _scalar,
    }  # fmt: skip


def _callee(node: ast.expr | None) -> str:
    """The name that ``node`` calls, if it is a call of a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return ""
