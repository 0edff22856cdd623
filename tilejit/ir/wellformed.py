"""Structure of a function: what every other room may rely on.

A violation is a defect of tilejit (``InternalError``): users meet the frontend's diagnostics first.
Checked: names declared once and before use, types of operations, loops around break and continue,
ranks of views and regions. Legality of instructions is the families'.
"""

from __future__ import annotations

from typing import Any

from tilejit.errors import InternalError, Span, fault
from tilejit.ir import nodes
from tilejit.ir.build import COMPARISONS
from tilejit.ir.ops import OPS, STRUCTURAL


def verify(function: nodes.Function) -> None:
    """Raises ``InternalError`` naming the first malformed node."""
    checker = _Checker(function.name)
    for param in function.params:
        checker.declare(param, param.span)
    for param in function.params:
        if isinstance(param.type, nodes.TensorType):
            for extent in param.type.shape:
                if isinstance(extent, nodes.Var):
                    checker.use(extent, param.span)
    checker.block(function.body, loops=0)


class _Checker:
    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.scope: dict[str, nodes.Var] = {}
        self.every_name: set[str] = set()

    def fail(self, message: str, span: Span | None) -> None:
        raise fault(InternalError, "ir/malformed", f"{self.kernel}: {message}", span)

    def require(self, condition: bool, message: str, span: Span | None) -> None:
        if not condition:
            self.fail(message, span)

    def declare(self, var: nodes.Var, span: Span | None) -> None:
        self.require(var.name not in self.every_name, f"{var.name!r} is declared twice", span)
        self.every_name.add(var.name)
        self.scope[var.name] = var

    def use(self, var: nodes.Var, span: Span | None) -> None:
        declared = self.scope.get(var.name)
        self.require(declared is not None, f"{var.name!r} is used where it is not declared", span)
        self.require(declared == var, f"{var.name!r} is used with type {var.type}", span)

    # statements

    def block(self, block: nodes.Block, loops: int) -> None:
        outer = dict(self.scope)
        for statement in block:
            self.statement(statement, loops)
        self.scope = outer

    def statement(self, s: nodes.Stmt, loops: int) -> None:
        match s:
            case nodes.Declare(var=var, value=value):
                if value is not None:
                    self.typed(value, var.type, s.span)
                self.declare(var, s.span)
            case nodes.Assign(var=var, value=value):
                self.use(var, s.span)
                self.typed(value, var.type, s.span)
            case nodes.Store(view=view, indices=indices, value=value):
                self.expr(view)
                self.element(view, indices, s.span)
                self.typed(value, nodes.ScalarType(view.dtype), s.span)
            case nodes.AllocTensor(buffer=buffer):
                self.declare(buffer, s.span)
            case nodes.If(condition=condition, then=then, orelse=orelse):
                self.typed(condition, nodes.BOOL, s.span)
                self.block(then, loops)
                self.block(orelse, loops)
            case nodes.For():
                for bound in (s.start, s.stop, s.step):
                    self.typed(bound, s.var.type, s.span)
                self.require(s.step.value != 0, "a loop's step is zero", s.span)
                outer = dict(self.scope)
                self.declare(s.var, s.span)
                self.block(s.body, loops + 1)
                self.scope = outer
            case nodes.While(body=body):
                self.block(body, loops + 1)
            case nodes.Break() | nodes.Continue():
                self.require(loops > 0, f"{type(s).__name__} outside a loop", s.span)
            case nodes.Return(value=value):
                if value is not None:
                    self.expr(value)
            case nodes.Evaluate(call=call):
                self.expr(call)
            case _:
                self.fail(f"{type(s).__name__} is not a statement", None)

    # expressions

    def typed(self, value: nodes.Expr, kind: nodes.Type, span: Span | None) -> None:
        self.expr(value)
        self.require(value.type == kind, f"expected {kind}, got {value.type}", value.span or span)

    def integer(self, value: nodes.Expr, what: str) -> None:
        self.expr(value)
        kind = value.type
        right = isinstance(kind, nodes.ScalarType) and kind.dtype.is_integer
        self.require(right, f"{what} is {kind}, not an integer", value.span)

    def element(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None
    ) -> None:
        self.require(
            len(indices) == len(view.shape),
            f"{len(indices)} indices for {len(view.shape)} axes", span,
        )  # fmt: skip
        for index in indices:
            self.integer(index, "an index")

    def expr(self, e: nodes.Expr) -> None:
        match e:
            case nodes.Const() | nodes.Text() | nodes.Static() | nodes.HardwareId():
                pass
            case nodes.Var():
                self.use(e, e.span)
            case nodes.Unary(operand=operand):
                self.typed(operand, e.type, e.span)
            case nodes.Binary():
                self.binary(e)
            case nodes.Select():
                self.typed(e.condition, nodes.BOOL, e.span)
                self.typed(e.if_true, e.type, e.span)
                self.typed(e.if_false, e.type, e.span)
            case nodes.Cast(operand=operand) | nodes.Bitcast(operand=operand):
                self.expr(operand)
            case nodes.Load(view=view, indices=indices):
                self.expr(view)
                self.element(view, indices, e.span)
                self.require(e.type.dtype == view.dtype, "a load has another type", e.span)
            case nodes.Address(buffer=buffer, offset_bytes=offset):
                self.use(buffer, e.span)
                self.integer(offset, "an offset")
            case nodes.View():
                self.view(e)
            case nodes.Region():
                self.region(e)
            case nodes.Tuple(items=items):
                for item in items:
                    self.expr(item)
            case nodes.Keyword(value=value):
                self.expr(value)
            case nodes.Call():
                self.call(e)
            case nodes.LambdaExpr():
                self.function(e)
            case _:
                self.fail(f"{type(e).__name__} is not an expression", None)

    def binary(self, e: nodes.Binary) -> None:
        self.expr(e.lhs)
        shift = e.op in ("shl", "shr")
        if shift:
            self.integer(e.rhs, "a shift count")
        else:
            self.typed(e.rhs, e.lhs.type, e.span)
        logic = e.op in COMPARISONS or e.op in ("and", "or")
        expected = nodes.BOOL if logic else e.lhs.type
        self.require(e.type == expected, f"{e.op} has type {e.type}, not {expected}", e.span)

    def view(self, e: nodes.View) -> None:
        self.use(e.buffer, e.span)
        self.integer(e.offset_elems, "an offset")
        if e.layout is not None and all(isinstance(d, int) for d in e.shape):
            total = 1
            for dimension, extent in enumerate(e.shape):
                dynamic = dimension in dict(e.dynamic_strides)
                total *= 1 if dynamic and e.layout.size == 1 else int(extent)  # type: ignore[arg-type]
            if not e.dynamic_strides:
                self.require(
                    e.layout.size == total,
                    f"a view of {total} elements has a layout of {e.layout.size}", e.span,
                )  # fmt: skip
        for _, stride in e.dynamic_strides:
            self.integer(stride, "a stride")

    def region(self, e: nodes.Region) -> None:
        self.expr(e.view)
        rank = len(e.view.shape)
        self.require(
            len(e.starts) == rank and len(e.extents) == rank, "a region has another rank", e.span
        )
        for start in e.starts:
            self.integer(start, "a region's start")
        self.require(all(x > 0 for x in e.extents), "a region has an empty extent", e.span)

    def call(self, e: nodes.Call) -> None:
        for arg in e.args:
            self.expr(arg)
        if e.op in STRUCTURAL:
            self.require((e.attrs is None) == (e.op == "ptx"), f"{e.op} and its scope", e.span)
            return
        self.require(e.op in OPS, f"no operation is called {e.op!r}", e.span)
        row = OPS[e.op]
        fixed = [a for a in row.args if a != "..."]
        enough = len(e.args) == len(fixed) or (len(fixed) < len(row.args) and len(e.args) >= len(fixed))
        self.require(enough, f"{e.op} takes {len(fixed)} arguments, got {len(e.args)}", e.span)
        if row.result == "void":
            self.require(e.type == nodes.VOID, f"{e.op} has no value", e.span)

    def function(self, e: nodes.LambdaExpr) -> None:
        inner = _Checker(f"{self.kernel}/{e.name}")
        for param in e.params:
            inner.declare(param, param.span)
        inner.block(e.body, loops=0)
        returns: list[Any] = [s for s in e.body if isinstance(s, nodes.Return | nodes.If)]
        self.require(bool(returns), f"{e.name} returns nothing", e.span)
