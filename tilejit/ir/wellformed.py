"""Structure of a function: what every other room may rely on.

A violation is a defect of tilejit (``InternalError``): users meet the frontend's diagnostics first.
Checked: names declared once and before use, types of operations, loops around break and continue,
ranks and extents of views and regions, calls against ``ir.ops``. Legality of instructions is the
families'.
"""

from __future__ import annotations

import keyword
import math
from typing import NoReturn

from tilejit import dtypes
from tilejit.errors import InternalError, Span, fault
from tilejit.ir import nodes, tensor_memory
from tilejit.ir.build import COMPARISONS
from tilejit.ir.ops import OPS, STRUCTURAL, Op

_AXES = ("x", "y", "z")
_PER_AXIS = (
    "tid", "ntid", "ctaid", "nctaid", "cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid",
)  # fmt: skip
HARDWARE_IDS = frozenset(
    [f"{name}.{axis}" for name in _PER_AXIS for axis in _AXES]
    + ["tid", "laneid", "warpid", "warpgroupid", "warp_in_warpgroup", "tid_in_warpgroup"]
    + ["cluster_ctarank"]
)
"""Names that a ``HardwareId`` may have."""


def verify(function: nodes.Function) -> None:
    """Raises ``InternalError`` naming the first malformed node."""
    checker = _Checker(function.name, None)
    for param in function.params:
        checker.declare(param, param.span)
    for param in function.params:
        if isinstance(param.type, nodes.TensorType):
            checker.tensor_type(param.type, param.span)
            if param.type.space != "global":
                checker.fail(f"{param.name!r} is not global", param.span)
    checker.launch(function)
    checker.block(function.body, loops=0)


class _Checker:
    """``result``: the type that ``Return`` gives, None in a kernel."""

    def __init__(self, kernel: str, result: nodes.ScalarType | None) -> None:
        self.kernel = kernel
        self.result = result
        self.scope: dict[str, nodes.Var] = {}
        self.every_name: set[str] = set()
        self.immutable: set[str] = set()

    def fail(self, message: str, span: Span | None) -> NoReturn:
        raise fault(InternalError, "ir/malformed", f"{self.kernel}: {message}", span)

    def declare(self, var: nodes.Var, span: Span | None) -> None:
        named = var.name.isidentifier() and not keyword.iskeyword(var.name)
        if not named:
            self.fail(f"{var.name!r} is not a name", span)
        if var.name in self.every_name:
            self.fail(f"{var.name!r} is declared twice", span)
        self.every_name.add(var.name)
        self.scope[var.name] = var

    def use(self, var: nodes.Var, span: Span | None) -> None:
        declared = self.scope.get(var.name)
        if declared is None:
            self.fail(f"{var.name!r} is used where it is not declared", span)
        same = declared is var or declared == var
        if not same:
            self.fail(f"{var.name!r} is used with type {var.type}", span)

    def launch(self, function: nodes.Function) -> None:
        config = function.launch
        for size in config.grid or ():
            self.integer(size, "a grid size")
        for what, sizes in (("block", config.block), ("cluster", config.cluster or (1,))):
            right = 1 <= len(sizes) <= 3 and all(size > 0 for size in sizes)
            if not right:
                self.fail(f"{what} {sizes} is not 1 to 3 positive sizes", function.span)

    # statements

    def block(self, block: nodes.Block, loops: int) -> None:
        outer = dict(self.scope)
        for statement in block:
            self.statement(statement, loops)
        # Scalars end with their block; what is allocated lives for the rest of the function.
        self.scope = {n: v for n, v in self.scope.items() if _is_allocated(v)} | outer

    def statement(self, s: nodes.Stmt, loops: int) -> None:
        match s:
            case nodes.Declare(var=var, value=value):
                if value is not None:
                    self.typed(value, var.type, s.span)
                holds = isinstance(var.type, nodes.ScalarType | nodes.PointerType)
                if not holds:
                    self.fail(f"{var.name!r} is declared with type {var.type}", s.span)
                self.declare(var, s.span)
            case nodes.Assign(var=var, value=value):
                self.use(var, s.span)
                if var.name in self.immutable:
                    self.fail(f"{var.name!r} is immutable", s.span)
                if isinstance(var.type, nodes.TensorType):
                    self.fail(f"buffer {var.name!r} is assigned", s.span)
                self.typed(value, var.type, s.span)
            case nodes.Store(view=view, indices=indices, value=value):
                self.element(view, indices, s.span)
                self.typed(value, nodes.ScalarType(view.dtype), s.span)
            case nodes.AllocTensor(buffer=buffer):
                self.alloc(buffer, s.span)
            case nodes.DeclTmem(buffer=buffer, address=address):
                self.typed(address, nodes.UINT32, s.span)
                self.decl_tmem(buffer, s.span)
            case nodes.If(condition=condition, then=then, orelse=orelse):
                self.typed(condition, nodes.BOOL, s.span)
                self.block(then, loops)
                self.block(orelse, loops)
            case nodes.For():
                self.for_(s, loops)
            case nodes.While(body=body):
                self.block(body, loops + 1)
            case nodes.Break() | nodes.Continue():
                if loops <= 0:
                    self.fail(f"{type(s).__name__} outside a loop", s.span)
            case nodes.Return(value=value):
                self.return_(value, s.span)
            case nodes.Evaluate(call=call):
                if not isinstance(call, nodes.Call):
                    self.fail("only calls are evaluated", s.span)
                self.expr(call)
            case _:
                self.fail(f"{type(s).__name__} is not a statement", None)

    def alloc(self, buffer: nodes.Var, span: Span | None) -> None:
        kind = buffer.type
        if not isinstance(kind, nodes.TensorType):
            self.fail(f"{buffer.name!r} is no tensor", span)
        if kind.space not in ("shared", "local"):
            self.fail(f"{buffer.name!r} is allocated in {kind.space} space", span)
        static = all(isinstance(d, int) for d in kind.shape)
        if not static:
            self.fail(f"{buffer.name!r} is allocated with a run-time shape", span)
        self.tensor_type(kind, span)
        self.declare(buffer, span)

    def decl_tmem(self, buffer: nodes.Var, span: Span | None) -> None:
        kind = buffer.type
        if not isinstance(kind, nodes.TensorType):
            self.fail(f"{buffer.name!r} is no tensor", span)
        if kind.space != "tmem":
            self.fail(f"{buffer.name!r} is declared in {kind.space} space", span)
        self.tensor_type(kind, span)
        wrong = tensor_memory.fault(kind)
        if wrong is not None:
            self.fail(f"{buffer.name!r} in tensor memory: {wrong}", span)
        self.declare(buffer, span)

    def for_(self, s: nodes.For, loops: int) -> None:
        self.integer(s.var, "a loop variable", declared=False)
        for bound in (s.start, s.stop, s.step):
            self.typed(bound, s.var.type, s.span)
        constant = isinstance(s.step, nodes.Const) and s.step.value != 0
        if not constant:
            self.fail("a loop's step is not a nonzero constant", s.span)
        outer = dict(self.scope)
        self.declare(s.var, s.span)
        self.immutable.add(s.var.name)
        self.block(s.body, loops + 1)
        del self.scope[s.var.name]
        self.scope |= outer

    def return_(self, value: nodes.Expr | None, span: Span | None) -> None:
        if self.result is None:
            if value is not None:
                self.fail("a kernel returns a value", span)
            return
        if value is None:
            self.fail("a scalar function returns nothing", span)
        self.typed(value, self.result, span)

    # expressions

    def typed(self, value: nodes.Expr, kind: nodes.Type, span: Span | None) -> None:
        self.expr(value)
        if value.type != kind:
            self.fail(f"expected {kind}, got {value.type}", value.span or span)

    def scalar(self, value: nodes.Expr, what: str) -> dtypes.DType:
        self.expr(value)
        kind = value.type
        if not isinstance(kind, nodes.ScalarType):
            self.fail(f"{what} is {kind}", value.span)
        return kind.dtype

    def integer(self, value: nodes.Expr, what: str, *, declared: bool = True) -> None:
        if declared:
            self.expr(value)
        kind = value.type
        right = isinstance(kind, nodes.ScalarType) and kind.dtype.is_integer
        if not right:
            self.fail(f"{what} is {kind}, not an integer", value.span)

    def element(self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None) -> None:
        if not isinstance(view, nodes.View):
            self.fail("an element of something not a view", span)
        self.expr(view)
        rank = len(view.shape)
        if len(indices) != rank:
            self.fail(f"{len(indices)} indices for {rank} axes", span)
        if view.space == "tmem":
            self.fail("tensor memory has no element access", span)
        for index in indices:
            self.integer(index, "an index")

    def expr(self, e: nodes.Expr) -> None:
        match e:
            case nodes.Text() | nodes.Static():
                pass
            case nodes.Const():
                self.const(e)
            case nodes.HardwareId(name=name):
                if name not in HARDWARE_IDS:
                    self.fail(f"no hardware id is called {name!r}", e.span)
            case nodes.Var():
                self.use(e, e.span)
            case nodes.Unary():
                self.unary(e)
            case nodes.Binary():
                self.binary(e)
            case nodes.Select():
                self.typed(e.condition, nodes.BOOL, e.span)
                self.typed(e.if_true, e.type, e.span)
                self.typed(e.if_false, e.type, e.span)
            case nodes.Cast(operand=operand):
                self.scalar(operand, "the operand of a cast")
            case nodes.Bitcast(operand=operand):
                self.expr(operand)
                old, new = _bits(operand.type), _bits(e.type)
                if old != new:
                    self.fail(f"a bitcast from {old} to {new} bits", e.span)
            case nodes.Load(view=view, indices=indices):
                self.element(view, indices, e.span)
                if e.type.dtype != view.dtype:
                    self.fail("a load has another type", e.span)
            case nodes.Address(buffer=buffer, offset_bytes=offset):
                self.integer(offset, "an offset")
                space = self.buffer(buffer, e.span).space
                if e.type.space != space:
                    self.fail(f"a {e.type} into {space} space", e.span)
            case _:
                self.structure(e)

    def structure(self, e: nodes.Expr) -> None:
        """Views, calls and what calls hold."""
        match e:
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

    def const(self, e: nodes.Const) -> None:
        dtype = e.type.dtype
        if dtype.is_float:
            right = isinstance(e.value, int | float) and not isinstance(e.value, bool)
        elif dtype.is_integer:
            low, high = dtypes.integer_range(dtype)
            right = type(e.value) is int and low <= e.value <= high
        else:
            right = e.value in (True, False)
        if not right:
            self.fail(f"{e.value!r} is no {dtype}", e.span)

    def unary(self, e: nodes.Unary) -> None:
        self.typed(e.operand, e.type, e.span)
        dtype = e.type.dtype
        if e.op == "not":
            right = dtype.kind == "bool"
        elif e.op == "invert":
            right = dtype.kind != "float"
        else:
            right = dtype.kind != "bool"
        if not right:
            self.fail(f"{e.op} of {dtype}", e.span)

    def binary(self, e: nodes.Binary) -> None:
        dtype = self.scalar(e.lhs, f"an operand of {e.op}")
        if e.op in ("shl", "shr"):
            self.integer(e.rhs, "a shift count")
        else:
            self.typed(e.rhs, e.lhs.type, e.span)
        if not _computes(e.op, dtype):
            self.fail(f"{e.op} of {dtype}", e.span)
        logic = e.op in COMPARISONS or e.op in ("and", "or")
        expected = nodes.BOOL if logic else e.lhs.type
        if e.type != expected:
            self.fail(f"{e.op} has type {e.type}, not {expected}", e.span)

    # tensors

    def tensor_type(self, kind: nodes.TensorType, span: Span | None) -> None:
        for extent in kind.shape:
            if isinstance(extent, nodes.Var):
                self.integer(extent, "an extent")
            else:
                if extent <= 0:
                    self.fail(f"a buffer has extent {extent}", span)
        align = kind.align_bytes
        if not (align > 0 and align & (align - 1) == 0):
            self.fail(f"an alignment of {align}", span)

    def buffer(self, var: nodes.Var, span: Span | None) -> nodes.TensorType:
        self.use(var, span)
        if not isinstance(var.type, nodes.TensorType):
            self.fail(f"{var.name!r} is no buffer", span)
        return var.type

    def view(self, e: nodes.View) -> None:
        self.buffer(e.buffer, e.span)
        self.integer(e.offset_elems, "an offset")
        for extent in e.shape:
            if isinstance(extent, nodes.Var):
                self.integer(extent, "an extent")
        if e.layout is not None:
            size = math.prod(d for d in e.shape if isinstance(d, int))
            if e.layout.size != size:
                self.fail(f"a view of {size} elements has a layout of {e.layout.size}", e.span)
        for axis, stride in e.dynamic_strides:
            if not (0 <= axis < len(e.shape)):
                self.fail(f"a stride of axis {axis}", e.span)
            self.integer(stride, "a stride")
        for pick in e.picks:
            self.pick(pick, e.span)

    def pick(self, p: nodes.Pick, span: Span | None) -> None:
        self.integer(p.index, "an index")
        if isinstance(p.extent, nodes.Var):
            self.integer(p.extent, "an extent")
        if p.count < 1 or p.axis < 0:
            self.fail(f"a view of {p.count} indices of axis {p.axis}", span)

    def region(self, e: nodes.Region) -> None:
        self.expr(e.view)
        rank = len(e.view.shape)
        ranks = (len(e.starts), len(e.extents))
        if ranks != (rank, rank):
            self.fail(
                f"a region of {ranks[0]} starts and {ranks[1]} extents in a view of {rank} axes",
                e.span,
            )
        for start in e.starts:
            self.integer(start, "a region's start")
        if not all(x > 0 for x in e.extents):
            self.fail("a region has an empty extent", e.span)

    # calls

    def call(self, e: nodes.Call) -> None:
        for arg in e.args:
            self.expr(arg)
        if e.op in STRUCTURAL:
            self.structural(e)
            return
        if e.op not in OPS:
            self.fail(f"no operation is called {e.op!r}", e.span)
        if e.attrs is not None:
            self.fail(f"{e.op} has a scope", e.span)
        row = OPS[e.op]
        more = row.args[-1:] == ("...",)
        words = row.args[:-1] if more else row.args
        given = len(e.args)
        enough = given >= len(words) if more else given == len(words)
        if not enough:
            self.fail(f"{e.op} takes {len(words)} arguments, got {given}", e.span)
        common = self.arguments(e, words)
        result = _result(row, common)
        if e.type != result:
            self.fail(f"{e.op} has type {e.type}, not {result}", e.span)

    def arguments(self, e: nodes.Call, words: tuple[str, ...]) -> nodes.Type:
        """Checks arguments against their words; the type T of those marked so."""
        common: nodes.Type = nodes.VOID
        for word, arg in zip(words, e.args):
            where = f"an argument of {e.op}"
            if word == "text":
                if not isinstance(arg, nodes.Text):
                    self.fail(f"{where} is no text", e.span)
            elif word == "static":
                fixed = isinstance(arg, nodes.Static | nodes.Const | nodes.Text)
                if not fixed:
                    self.fail(f"{where} is not static", e.span)
            elif word == "shared":
                if arg.type not in (nodes.PointerType("shared"), nodes.UINT32):
                    self.fail(f"{where} is {arg.type}, expected a shared address", e.span)
            elif word.startswith("T:"):
                dtype = self.scalar(arg, where)
                right = {"float": dtype.is_float, "int": dtype.is_integer, "any": True}[word[2:]]
                if not right:
                    self.fail(f"{where} is {dtype}, expected {word[2:]}", e.span)
                if common != nodes.VOID:
                    if arg.type != common:
                        self.fail(f"{where} is {dtype}, not {common}", e.span)
                common = arg.type
            elif word != "any":
                dtype = self.scalar(arg, where)
                if dtype.name != word:
                    self.fail(f"{where} is {dtype}, expected {word}", e.span)
        return common

    def structural(self, e: nodes.Call) -> None:
        """``tile.apply`` and ``ptx``: name, operands, keywords; ``tile.ewise``: body, operands."""
        kinds: tuple[type, ...] = (nodes.Text, nodes.Tuple, nodes.Tuple)
        if e.op == "tile.ewise":
            kinds = (nodes.LambdaExpr, nodes.Tuple)
        right = len(e.args) == len(kinds) and all(map(isinstance, e.args, kinds))
        if not right:
            self.fail(f"{e.op} and its arguments", e.span)
        if (e.attrs is None) != (e.op == "ptx"):
            self.fail(f"{e.op} and its scope", e.span)
        if e.type != nodes.VOID:
            self.fail(f"{e.op} has no value", e.span)
        for tuple_ in e.args[2:]:
            assert isinstance(tuple_, nodes.Tuple)
            named = all(isinstance(item, nodes.Keyword) for item in tuple_.items)
            if not named:
                self.fail(f"{e.op} has a parameter without a name", e.span)

    def function(self, e: nodes.LambdaExpr) -> None:
        inner = _Checker(f"{self.kernel}/{e.name}", e.type)
        for param in e.params:
            inner.declare(param, param.span)
        inner.pure(e.body)
        inner.block(e.body, loops=0)
        if not _returns(e.body):
            self.fail(f"{e.name} has a path without a return", e.span)

    def pure(self, block: nodes.Block) -> None:
        for s in block:
            allowed = nodes.Declare | nodes.Assign | nodes.If | nodes.Return
            if not isinstance(s, allowed):
                self.fail(f"{type(s).__name__} in a scalar function", s.span)
            if isinstance(s, nodes.If):
                self.pure(s.then)
                self.pure(s.orelse)


def _computes(op: str, dtype: dtypes.DType) -> bool:
    """Whether a binary operation exists on a type."""
    if op in ("and", "or"):
        return dtype.kind == "bool"
    if op in ("bitand", "bitor", "bitxor"):
        return dtype.kind != "float"
    if op in ("shl", "shr"):
        return dtype.is_integer
    if op == "truediv":
        return dtype.is_float
    return op in COMPARISONS or dtype.kind != "bool"


def _is_allocated(var: nodes.Var) -> bool:
    return isinstance(var.type, nodes.TensorType) and var.type.space != "tmem"


def _bits(kind: nodes.Type) -> int | None:
    """Width of a scalar or pointer."""
    if isinstance(kind, nodes.ScalarType):
        return kind.dtype.bits
    if isinstance(kind, nodes.PointerType):
        return 32 if kind.space in ("shared", "tmem") else 64
    return None


def _result(row: Op, common: nodes.Type) -> nodes.Type:
    if row.result == "T":
        return common
    return nodes.VOID if row.result == "void" else nodes.ScalarType(dtypes.dtype(row.result))


def _returns(block: nodes.Block) -> bool:
    """Whether every path through a block ends in a return."""
    for s in block:
        if isinstance(s, nodes.Return):
            return True
        if isinstance(s, nodes.If) and _returns(s.then) and _returns(s.orelse):
            return True
    return False
