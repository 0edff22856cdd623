"""Reads the text that ``ir.script`` prints. See there."""

from __future__ import annotations

import ast
from typing import Any

from tilejit import dtypes, layout
from tilejit.ir import nodes

_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "bitand", ast.BitOr: "bitor",
    ast.BitXor: "bitxor", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq",
    ast.NotEq: "ne", ast.And: "and", ast.Or: "or",
}  # fmt: skip
_LOGIC = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or")


class ScriptError(ValueError):
    """Text that is not the IR's; the message has the line."""


def parse_function(text: str) -> nodes.Function:
    """The kernel in ``text``; ``ScriptError`` if there is none or something is unknown."""
    reader = _Reader()
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ScriptError(f"line {error.lineno}: {error.msg}") from None
    for item in module.body:
        if not isinstance(item, ast.FunctionDef):
            raise ScriptError(f"line {item.lineno}: expected a function")
        kernel = reader.definition(item)
        if kernel is not None:
            return kernel
    raise ScriptError("the text holds no kernel")


class _Reader:
    def __init__(self) -> None:
        self.variables: dict[str, nodes.Var] = {}
        self.functions: dict[str, nodes.LambdaExpr] = {}

    def definition(self, item: ast.FunctionDef) -> nodes.Function | None:
        decorators = {self.callee(d): d for d in item.decorator_list}
        outer = dict(self.variables)
        params = []
        # Sizes follow the buffers that use them, so scalars are read first.
        scalar_first = sorted(item.args.args, key=lambda a: _calls(a.annotation, "tensor"))
        for arg in scalar_first:
            self.variables[arg.arg] = nodes.Var(arg.arg, self.type(arg.annotation))
        params = [self.variables[arg.arg] for arg in item.args.args]
        body = self.block(item.body)
        if "scalar" in decorators:
            name = ast.literal_eval(decorators["scalar"].args[0])
            result = self.type(item.returns)
            assert isinstance(result, nodes.ScalarType)
            self.functions[item.name] = nodes.LambdaExpr(name, tuple(params), body, result)
            self.variables = outer
            return None
        target = ast.literal_eval(decorators["kernel"].keywords[0].value)
        launch = {k.arg: self.data(k.value) for k in decorators["launch"].keywords}
        return nodes.Function(item.name, tuple(params), nodes.LaunchConfig(**launch), body, target)

    def callee(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id
        return ""

    def data(self, node: ast.expr) -> Any:
        """A launch field."""
        if isinstance(node, ast.Tuple):
            return tuple(self.data(e) for e in node.elts)
        if isinstance(node, ast.Constant):
            return node.value
        return self.expr(node)

    # types

    def type(self, node: ast.expr | None) -> nodes.Type:
        if isinstance(node, ast.Name):
            return nodes.VOID if node.id == "void" else nodes.ScalarType(dtypes.dtype(node.id))
        name = self.callee(node) if node is not None else ""
        assert isinstance(node, ast.Call)
        if name == "ptr":
            return nodes.PointerType(ast.literal_eval(node.args[0]))
        if name == "tuple":
            return nodes.TupleType(tuple(self.type(a) for a in node.args))
        if name == "tensor":
            shape, dtype, where, space, align = node.args
            return nodes.TensorType(
                self.shape(shape), dtypes.dtype(ast.literal_eval(dtype)), self.layout(where),
                ast.literal_eval(space), ast.literal_eval(align),
            )  # fmt: skip
        raise ScriptError(f"line {node.lineno}: unknown type {name!r}")

    def shape(self, node: ast.expr) -> tuple[int | nodes.Var, ...]:
        assert isinstance(node, ast.Tuple)
        return tuple(
            self.variables[e.id] if isinstance(e, ast.Name) else ast.literal_eval(e)
            for e in node.elts
        )

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
        match s:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                made = None if value is None else self.expr(value)
                var = self.declare(name, self.type(annotation))
                if isinstance(var.type, nodes.TensorType):
                    return nodes.AllocTensor(var)
                return nodes.Declare(var, made)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return nodes.Assign(self.variables[name], self.expr(value))
            case ast.Assign(targets=[ast.Subscript(value=view, slice=index)], value=value):
                return nodes.Store(self.view(view), self.indices(index), self.expr(value))
            case ast.If(test=test, body=body, orelse=orelse):
                return nodes.If(self.expr(test), self.block(body), self.block(orelse))
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as call, body=body):
                kind, *bounds = call.args
                start, stop, step = (self.expr(b) for b in bounds)
                var = self.declare(name, self.type(kind))
                assert isinstance(step, nodes.Const)
                unroll = self.callee(call) == "unroll"
                return nodes.For(var, start, stop, step, self.block(body), unroll)
            case ast.While(body=body):
                return nodes.While(self.block(body))
            case ast.Break():
                return nodes.Break()
            case ast.Continue():
                return nodes.Continue()
            case ast.Return(value=value):
                return nodes.Return(None if value is None else self.expr(value))
            case ast.Expr(value=value):
                call_expr = self.expr(value)
                assert isinstance(call_expr, nodes.Call)
                return nodes.Evaluate(call_expr)
        raise ScriptError(f"line {s.lineno}: unknown statement")

    # expressions

    def indices(self, node: ast.expr) -> tuple[nodes.Expr, ...]:
        if isinstance(node, ast.Tuple):
            return tuple(self.expr(e) for e in node.elts)
        return (self.expr(node),)

    def view(self, node: ast.expr) -> nodes.View:
        made = self.expr(node)
        assert isinstance(made, nodes.View)
        return made

    def expr(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                if name in self.functions:
                    return self.functions[name]
                if name in self.variables:
                    return self.variables[name]
                raise ScriptError(f"line {node.lineno}: {name!r} is not declared")
            case ast.Constant(value=str() as text):
                return nodes.Text(text)
            case ast.Tuple(elts=elts):
                return nodes.Tuple(tuple(self.expr(e) for e in elts))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(_BINARY[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.binary(_BINARY[type(op)], left, right)
            case ast.BoolOp(op=op, values=[left, right]):
                return self.binary(_BINARY[type(op)], left, right)
            case ast.Subscript(value=view, slice=index):
                found = self.view(view)
                return nodes.Load(found, self.indices(index), nodes.ScalarType(found.dtype))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(name, args, node)
        raise ScriptError(f"line {node.lineno}: unknown expression {ast.unparse(node)!r}")

    def binary(self, op: Any, left: ast.expr, right: ast.expr) -> nodes.Binary:
        a, b = self.expr(left), self.expr(right)
        return nodes.Binary(op, a, b, nodes.BOOL if op in _LOGIC else a.type)

    def call(self, name: str, args: list[ast.expr], node: ast.Call) -> Any:
        if name in dtypes.BY_NAME or name == "bool":
            return self.literal(name, args[0])
        if name.endswith("_"):
            operand = self.expr(args[0])
            return nodes.Unary(name[:-1], operand, operand.type)  # type: ignore[arg-type]
        match name:
            case "min" | "max":
                return self.binary(name, *args)
            case "static":
                return nodes.Static(ast.literal_eval(args[0]))
            case "hw":
                return nodes.HardwareId(ast.literal_eval(args[0]))
            case "select":
                condition, a, b = (self.expr(x) for x in args)
                return nodes.Select(condition, a, b, a.type)
            case "cast":
                return nodes.Cast(self.expr(args[0]), self.type(args[1]))  # type: ignore[arg-type]
            case "bitcast":
                return nodes.Bitcast(self.expr(args[0]), self.type(args[1]))  # type: ignore[arg-type]
            case "address":
                buffer, offset = (self.expr(x) for x in args[:2])
                return nodes.Address(buffer, offset, self.type(args[2]))  # type: ignore[arg-type]
            case "view":
                return self.view_call(args)
            case "region":
                starts = self.indices(args[1])
                return nodes.Region(self.view(args[0]), starts, ast.literal_eval(args[2]))
            case "keyword":
                return nodes.Keyword(ast.literal_eval(args[0]), self.expr(args[1]))
            case "call":
                keywords = {k.arg: k.value for k in node.keywords}
                scope = keywords.get("scope")
                attrs = None if scope is None else nodes.ScopeAttrs(ast.literal_eval(scope))
                rest = tuple(self.expr(a) for a in args[1:])
                return nodes.Call(ast.literal_eval(args[0]), rest, self.type(keywords["type"]), attrs)
        raise ScriptError(f"line {node.lineno}: unknown function {name!r}")

    def view_call(self, args: list[ast.expr]) -> nodes.View:
        strides = []
        assert isinstance(args[5], ast.Tuple)
        for pair in args[5].elts:
            assert isinstance(pair, ast.Tuple)
            strides.append((ast.literal_eval(pair.elts[0]), self.expr(pair.elts[1])))
        return nodes.View(
            self.expr(args[0]), dtypes.dtype(ast.literal_eval(args[1])), self.shape(args[2]),
            self.layout(args[3]), self.expr(args[4]), tuple(strides),
        )  # fmt: skip

    def literal(self, name: str, node: ast.expr) -> nodes.Const:
        kind = nodes.ScalarType(dtypes.dtype(name))
        value = ast.literal_eval(node)
        return nodes.Const(float(value) if isinstance(value, str) else value, kind)


def _calls(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
