"""The IR as readable text, and back: ``parse_function(print_function(f)) == f`` (spans dropped).

The text is Python syntax, read with Python's own parser. Literals carry their type (``int32(4)``),
views and calls are spelled as calls, ``X[i, j]`` is an element of a whole buffer, ``ewise`` bodies
are functions printed before the kernel. Not here: reading it (``ir.scriptparser``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tilejit import layout
from tilejit.ir import nodes
from tilejit.ir.scriptparser import ScriptError, parse_function
from tilejit.ir.views import whole

__all__ = ["ScriptError", "parse_function", "print_expr", "print_function"]

_INFIX: dict[str, tuple[str, int]] = {
    "or": ("or", 1), "and": ("and", 2),
    "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4), "eq": ("==", 4), "ne": ("!=", 4),
    "bitor": ("|", 5), "bitxor": ("^", 6), "bitand": ("&", 7), "shl": ("<<", 8), "shr": (">>", 8),
    "add": ("+", 9), "sub": ("-", 9),
    "mul": ("*", 10), "truediv": ("/", 10), "floordiv": ("//", 10), "mod": ("%", 10),
}  # fmt: skip
"""Spelling and Python's precedence of every binary operation with an infix form."""

_PREFIX: dict[str, tuple[str, int]] = {"not": ("not ", 3), "neg": ("-", 11), "invert": ("~", 11)}
_COMPARISON = 4


def print_function(function: nodes.Function) -> str:
    """The whole kernel, ``ewise`` bodies first. Equal functions give equal text."""
    printer = _Printer()
    params = ", ".join(f"{p.name}: {_type(p.type)}" for p in function.params)
    body = printer.block(function.body, 1)
    launch = ", ".join(
        f"{field.name}={printer.data(getattr(function.launch, field.name))}"
        for field in dataclasses.fields(function.launch)
        if getattr(function.launch, field.name) != field.default
    )
    head = [f"@kernel(target={function.target!r})", f"@launch({launch})"]
    head.append(f"def {function.name}({params}):")
    return "\n".join([*printer.functions, *head, *body]) + "\n"


def print_expr(expr: nodes.Expr) -> str:
    """One expression, for messages."""
    return _Printer().expr(expr)


def _type(kind: nodes.Type) -> str:
    match kind:
        case nodes.ScalarType():
            return kind.dtype.name
        case nodes.PointerType():
            return f"ptr({kind.space!r})"
        case nodes.VoidType():
            return "void"
        case nodes.TupleType():
            return f"tuple({', '.join(_type(i) for i in kind.items)})"
        case nodes.TensorType():
            return (
                f"tensor({_shape(kind.shape)}, {kind.dtype.name!r}, {_layout(kind.layout)}, "
                f"{kind.space!r}, {kind.align_bytes}{', True' if kind.read_only else ''})"
            )


def _shape(shape: tuple[int | nodes.Var, ...]) -> str:
    return _tuple([str(d) if isinstance(d, int) else d.name for d in shape])


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _layout(value: layout.Layout | None) -> str:
    return "None" if value is None else f"layout({layout.render(value)!r})"


class _Printer:
    def __init__(self) -> None:
        self.functions: list[str] = []

    def data(self, value: Any) -> str:
        """A launch field: expressions inside plain Python data."""
        if isinstance(value, tuple):
            return _tuple([self.data(v) for v in value])
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
        return [pad + self.simple(s)]

    def simple(self, s: nodes.Stmt) -> str:
        """A statement of one line."""
        match s:
            case nodes.Declare(var=var, value=value):
                declared = f"{var.name}: {_type(var.type)}"
                return declared if value is None else f"{declared} = {self.expr(value)}"
            case nodes.Assign(var=var, value=value):
                return f"{var.name} = {self.expr(value)}"
            case nodes.Store(view=view, indices=indices, value=value):
                return f"{self.element(view, indices)} = {self.expr(value)}"
            case nodes.AllocTensor(buffer=buffer):
                return f"{buffer.name}: {_type(buffer.type)}"
            case nodes.DeclTmem(buffer=buffer, address=address):
                return f"{buffer.name}: {_type(buffer.type)} = {self.expr(address)}"
            case nodes.Break():
                return "break"
            case nodes.Continue():
                return "continue"
            case nodes.Return(value=value):
                return "return" if value is None else f"return {self.expr(value)}"
            case nodes.Evaluate(call=call):
                return self.expr(call)
        raise TypeError(f"not a statement: {s!r}")

    def element(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> str:
        listed = ", ".join(self.expr(i) for i in indices)
        index = f"{listed}," if len(indices) == 1 else listed or "()"
        seen = view.buffer.name if view == whole(view.buffer) else self.expr(view)
        return f"{seen}[{index}]"

    # expressions

    def expr(self, e: nodes.Expr, above: int = 0) -> str:
        """``e`` as text that stands beside an operator of precedence ``above``."""
        match e:
            case nodes.Binary(op=op, lhs=lhs, rhs=rhs) if op in _INFIX:
                word, own = _INFIX[op]
                # Operators are left-associative; comparisons would chain.
                left = self.expr(lhs, own + 1 if own == _COMPARISON else own)
                return _enclosed(f"{left} {word} {self.expr(rhs, own + 1)}", own < above)
            case nodes.Unary(op=op, operand=operand) if op in _PREFIX:
                word, own = _PREFIX[op]
                return _enclosed(f"{word}{self.expr(operand, own)}", own < above)
        return self.atom(e)

    def atom(self, e: nodes.Expr) -> str:
        """An expression that needs no parentheses."""
        match e:
            case nodes.Const(value=value, type=kind):
                text = repr(value)
                return f"{kind.dtype.name}({repr(text) if text.strip('-') in ('inf', 'nan') else text})"
            case nodes.Text(value=value):
                return repr(value)
            case nodes.Static(value=value):
                return f"static({value!r})"
            case nodes.Var(name=name):
                return name
            case nodes.HardwareId(name=name):
                return f"hw({name!r})"
            case nodes.Unary(op=op, operand=operand):
                return f"{op}({self.expr(operand)})"
            case nodes.Binary(op=op, lhs=lhs, rhs=rhs):
                return f"{op}({self.expr(lhs)}, {self.expr(rhs)})"
            case nodes.Select():
                parts = (e.condition, e.if_true, e.if_false)
                return f"select({', '.join(self.expr(p) for p in parts)})"
            case nodes.Cast(operand=operand, type=kind):
                return f"cast({self.expr(operand)}, {_type(kind)})"
            case nodes.Bitcast(operand=operand, type=pointer_or_scalar):
                return f"bitcast({self.expr(operand)}, {_type(pointer_or_scalar)})"
            case nodes.Load(view=view, indices=indices):
                return self.element(view, indices)
            case nodes.Address(buffer=buffer, offset_bytes=offset, type=pointer):
                return f"address({buffer.name}, {self.expr(offset)}, {_type(pointer)})"
        return self.structure(e)

    def structure(self, e: nodes.Expr) -> str:
        """Views, calls and what calls hold."""
        match e:
            case nodes.View():
                return self.view(e)
            case nodes.Region(view=view, starts=starts, extents=extents):
                listed = _tuple([self.expr(s) for s in starts])
                return f"region({self.expr(view)}, {listed}, {extents!r})"
            case nodes.Tuple(items=items):
                return _tuple([self.expr(i) for i in items])
            case nodes.Keyword(name=name, value=value):
                return f"keyword({name!r}, {self.expr(value)})"
            case nodes.Call():
                parts = [repr(e.op), *(self.expr(a) for a in e.args)]
                parts += [f"type={_type(e.type)}"] if e.type != nodes.VOID else []
                parts += [f"scope={e.attrs.scope!r}"] if e.attrs is not None else []
                return f"call({', '.join(parts)})"
            case nodes.LambdaExpr():
                return f"scalar({self.function(e)})"
        raise TypeError(f"not an expression: {e!r}")

    def view(self, e: nodes.View) -> str:
        if e == whole(e.buffer):
            return f"whole({e.buffer.name})"
        strides = _tuple([f"({d}, {self.expr(s)})" for d, s in e.dynamic_strides])
        picks = "".join(f", {self.pick(p)}" for p in e.picks)
        return (
            f"view({e.buffer.name}, {e.dtype.name!r}, {_shape(e.shape)}, {_layout(e.layout)}, "
            f"{self.expr(e.offset_elems)}, {strides}{picks})"
        )

    def pick(self, p: nodes.Pick) -> str:
        extent = p.extent if isinstance(p.extent, int) else p.extent.name
        return f"pick({self.expr(p.index)}, {p.count}, {extent}, {p.axis})"

    def function(self, e: nodes.LambdaExpr) -> str:
        """Prints a scalar function before the kernel; its name there."""
        params = ", ".join(f"{p.name}: {_type(p.type)}" for p in e.params)
        body = "\n".join(self.block(e.body, 1))
        name = f"function_{len(self.functions)}"
        self.functions.append(
            f"@scalar({e.name!r})\ndef {name}({params}) -> {_type(e.type)}:\n{body}\n"
        )
        return name


def _enclosed(text: str, needed: bool) -> str:
    return f"({text})" if needed else text
