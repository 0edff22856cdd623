"""The IR as readable text, and back: ``parse_function(print_function(f)) == f`` (spans dropped).

The text is Python syntax, read with Python's own parser. Literals carry their type (``int32(4)``),
views and tile calls are spelled as calls, ``ewise`` bodies are functions printed before the kernel.
"""

from __future__ import annotations

from typing import Any

from tilejit import layout
from tilejit.ir import nodes
from tilejit.ir.scriptparser import parse_function

__all__ = ["print_expr", "print_function", "parse_function"]

INFIX: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%",
    "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "and", "or": "or",
}  # fmt: skip


def print_function(function: nodes.Function) -> str:
    printer = _Printer()
    params = ", ".join(f"{p.name}: {_type(p.type)}" for p in function.params)
    body = printer.block(function.body, 1)
    launch = ", ".join(
        f"{name}={printer.value(getattr(function.launch, name))}"
        for name in nodes.LaunchConfig.__dataclass_fields__
    )
    head = [f"@kernel(target={function.target!r})", f"@launch({launch})"]
    head.append(f"def {function.name}({params}):")
    return "\n".join([*printer.functions, *head, *body]) + "\n"


def print_expr(expr: nodes.Expr) -> str:
    """One expression, for messages."""
    return _Printer().expr(expr)


def _type(kind: nodes.Type) -> str:
    if isinstance(kind, nodes.ScalarType):
        return kind.dtype.name
    if isinstance(kind, nodes.PointerType):
        return f"ptr({kind.space!r})"
    if isinstance(kind, nodes.VoidType):
        return "void"
    if isinstance(kind, nodes.TupleType):
        return f"tuple({', '.join(_type(i) for i in kind.items)})"
    return (
        f"tensor({_shape(kind.shape)}, {kind.dtype.name!r}, {_layout(kind.layout)}, "
        f"{kind.space!r}, {kind.align_bytes})"
    )


def _shape(shape: tuple[int | nodes.Var, ...]) -> str:
    return _tuple([str(d) if isinstance(d, int) else f"{d.name}" for d in shape])


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _layout(value: layout.Layout | None) -> str:
    return "None" if value is None else f"layout({layout.render(value)!r})"


class _Printer:
    def __init__(self) -> None:
        self.functions: list[str] = []

    def value(self, value: Any) -> str:
        """A launch field: expressions inside plain Python data."""
        if isinstance(value, tuple):
            return _tuple([self.value(v) for v in value])
        if isinstance(value, bool | int | str) or value is None:
            return repr(value)
        return self.expr(value)

    # statements

    def block(self, block: nodes.Block, depth: int) -> list[str]:
        lines = [line for statement in block for line in self.statement(statement, depth)]
        return lines or ["    " * depth + "pass"]

    def statement(self, s: nodes.Stmt, depth: int) -> list[str]:
        pad = "    " * depth
        match s:
            case nodes.Declare(var=var, value=None):
                return [f"{pad}{var.name}: {_type(var.type)}"]
            case nodes.Declare(var=var, value=value):
                assert value is not None
                return [f"{pad}{var.name}: {_type(var.type)} = {self.expr(value)}"]
            case nodes.Assign(var=var, value=value):
                return [f"{pad}{var.name} = {self.expr(value)}"]
            case nodes.Store(view=view, indices=indices, value=value):
                return [f"{pad}{self.expr(view)}[{self._index(indices)}] = {self.expr(value)}"]
            case nodes.AllocTensor(buffer=buffer):
                return [f"{pad}{buffer.name}: {_type(buffer.type)}"]
            case nodes.If(condition=condition, then=then, orelse=orelse):
                lines = [f"{pad}if {self.expr(condition)}:", *self.block(then, depth + 1)]
                if orelse:
                    lines += [f"{pad}else:", *self.block(orelse, depth + 1)]
                return lines
            case nodes.For():
                word = "unroll" if s.unroll else "rolled"
                bounds = ", ".join(self.expr(e) for e in (s.start, s.stop, s.step))
                head = f"{pad}for {s.var.name} in {word}({_type(s.var.type)}, {bounds}):"
                return [head, *self.block(s.body, depth + 1)]
            case nodes.While(body=body):
                return [f"{pad}while True:", *self.block(body, depth + 1)]
            case nodes.Break():
                return [f"{pad}break"]
            case nodes.Continue():
                return [f"{pad}continue"]
            case nodes.Return(value=value):
                return [f"{pad}return" if value is None else f"{pad}return {self.expr(value)}"]
            case nodes.Evaluate(call=call):
                return [f"{pad}{self.expr(call)}"]
        raise TypeError(f"not a statement: {s!r}")

    def _index(self, indices: tuple[nodes.Expr, ...]) -> str:
        return ", ".join(self.expr(i) for i in indices) + ("," if len(indices) == 1 else "") or "()"

    # expressions

    def expr(self, e: nodes.Expr) -> str:
        match e:
            case nodes.Const(value=value, type=kind):
                text = repr(value)
                if text in ("nan", "inf", "-inf"):
                    text = repr(text)
                return f"{kind.dtype.name}({text})"
            case nodes.Text(value=value):
                return repr(value)
            case nodes.Static(value=value):
                return f"static({value!r})"
            case nodes.Var(name=name):
                return name
            case nodes.HardwareId(name=name):
                return f"hw({name!r})"
            case nodes.Unary(op=op, operand=operand):
                return f"{op}_({self.expr(operand)})"
            case nodes.Binary(op=op, lhs=lhs, rhs=rhs):
                if op in INFIX:
                    return f"({self.expr(lhs)} {INFIX[op]} {self.expr(rhs)})"
                return f"{op}({self.expr(lhs)}, {self.expr(rhs)})"
            case nodes.Select():
                parts = (e.condition, e.if_true, e.if_false)
                return f"select({', '.join(self.expr(p) for p in parts)})"
            case nodes.Cast(operand=operand, type=kind):
                return f"cast({self.expr(operand)}, {_type(kind)})"
            case nodes.Bitcast(operand=operand, type=kind):
                return f"bitcast({self.expr(operand)}, {_type(kind)})"
            case nodes.Load(view=view, indices=indices):
                return f"{self.expr(view)}[{self._index(indices)}]"
            case nodes.Address(buffer=buffer, offset_bytes=offset, type=kind):
                return f"address({buffer.name}, {self.expr(offset)}, {_type(kind)})"
            case nodes.View():
                strides = _tuple([f"({d}, {self.expr(s)})" for d, s in e.dynamic_strides])
                return (
                    f"view({e.buffer.name}, {e.dtype.name!r}, {_shape(e.shape)}, {_layout(e.layout)}, "
                    f"{self.expr(e.offset_elems)}, {strides})"
                )
            case nodes.Region(view=view, starts=starts, extents=extents):
                listed = _tuple([self.expr(s) for s in starts])
                return f"region({self.expr(view)}, {listed}, {extents!r})"
            case nodes.Tuple(items=items):
                return _tuple([self.expr(i) for i in items])
            case nodes.Keyword(name=name, value=value):
                return f"keyword({name!r}, {self.expr(value)})"
            case nodes.Call():
                return self._call(e)
            case nodes.LambdaExpr():
                return self._function(e)
        raise TypeError(f"not an expression: {e!r}")

    def _call(self, e: nodes.Call) -> str:
        parts = [repr(e.op), *(self.expr(a) for a in e.args), f"type={_type(e.type)}"]
        if e.attrs is not None:
            parts.append(f"scope={e.attrs.scope!r}")
        return f"call({', '.join(parts)})"

    def _function(self, e: nodes.LambdaExpr) -> str:
        reference = f"function_{len(self.functions)}"
        params = ", ".join(f"{p.name}: {_type(p.type)}" for p in e.params)
        body = "\n".join(self.block(e.body, 1))
        head = f"def {reference}({params}) -> {_type(e.type)}:"
        self.functions.append(f"@scalar({e.name!r})\n{head}\n{body}\n")
        return reference
