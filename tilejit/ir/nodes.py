"""The typed tile IR.

A ``Function`` is one kernel, specialised: shapes, strides, dtypes and constexprs are already
numbers, except sizes marked ``T.dynamic``, which are scalar parameters. It is a structured program:
expressions have a value and no effect, statements have an effect and no value.

* Every thread of the grid executes the body (SPMD). Guards are ordinary ``If`` statements.
* Scalars live in ``Var``s. A ``Var`` is mutable: ``Declare`` introduces it (once, in an enclosing
  block of every use), ``Assign`` overwrites it. Names are unique within a function, so equality of
  nodes is structural; ``span`` never takes part in equality.
* Memory and register tiles live in *buffers*: a ``Var`` whose type is a ``TensorType``. Parameters
  are buffers in ``global`` space; ``AllocTensor`` introduces ``shared`` and ``local`` ones, for the
  rest of the function; ``DeclTmem`` introduces one in ``tmem`` space, where an address that the program
  got at run time says, for the rest of its block.
* A ``View`` is the only way to look at a buffer: dtype, shape, a static layout, and a symbolic
  element offset. Views of views are composed by ``ir.views``, so a ``View``'s base is always a
  buffer. A ``Region`` is a rectangular part of a view: what tile instructions take.
* Integer ``//`` and ``%`` floor, as Python's. Integer arithmetic wraps at its type's width.
  Floating-point operations are IEEE and rounded to the type after each operation (16-bit floats
  compute in float32 and round), never contracted to fma.
* ``Binary("and"|"or")`` evaluates both sides; the frontend lowers Python's short-circuit to ``If``
  unless the right side is free of loads and calls.
* ``For`` evaluates start, stop and step once. ``step`` is a nonzero ``Const``. ``var`` is
  immutable and declared by the loop. ``While`` is ``while True``: leave it with ``Break``.

Not here: contracts (families), well-formedness (``ir.wellformed``), printing (``ir.script``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Span
from tilejit.layout import Layout
from tilejit.target import MAX_GRID

Space = Literal["global", "shared", "local", "tmem"]
Scope = Literal["thread", "warp", "warpgroup", "cta", "cluster"]


def _span() -> Any:
    """The field of a node's place in the source, which takes no part in equality."""
    return field(default=None, compare=False, repr=False, kw_only=True)


def _type() -> Any:
    """The field of an expression's type, which its hash leaves out: expressions are looked up by
    structure in their thousands, and few differ in nothing but types."""
    return field(hash=False)


# --- types


@dataclass(frozen=True, slots=True)
class ScalarType:
    dtype: DType

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True, slots=True)
class PointerType:
    """An address. ``global`` and ``local`` addresses are 64-bit, ``shared`` ones 32-bit offsets, ``tmem``
    ones 32-bit: ``lane << 16 | column``."""

    space: Space

    def __str__(self) -> str:
        return f"ptr<{self.space}>"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape in elements, dtype, layout (None: not usable as a tile operand), space, base alignment.

    A dimension is an int, or the ``Var`` of a dynamic size (parameters in global space only).
    ``align_bytes`` is what the base address is guaranteed to be a multiple of. A parameter two of whose
    elements share an address (a zero stride) is read-only: the checker refuses stores to it. The layout
    shows that where the shape is static; beside a run-time size ``read_only`` says so.
    """

    shape: tuple[int | Var, ...]
    dtype: DType
    layout: Layout | None
    space: Space
    align_bytes: int
    read_only: bool = False

    def __str__(self) -> str:
        shape = ",".join(str(d) if isinstance(d, int) else d.name for d in self.shape)
        return f"Tensor(({shape}),{self.dtype},{self.space})"


@dataclass(frozen=True, slots=True)
class VoidType:
    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True, slots=True)
class TupleType:
    items: tuple[Type, ...]


Type: TypeAlias = ScalarType | PointerType | TensorType | VoidType | TupleType

BOOL = ScalarType(dtypes.bool_)
INT32 = ScalarType(dtypes.int32)
INT64 = ScalarType(dtypes.int64)
UINT32 = ScalarType(dtypes.uint32)
UINT64 = ScalarType(dtypes.uint64)
FLOAT32 = ScalarType(dtypes.float32)
VOID = VoidType()


# --- expressions


@dataclass(frozen=True, slots=True)
class Const:
    """A typed literal: int, float or bool of ``type``. Python floats hold every narrower value."""

    value: int | float | bool
    type: ScalarType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Text:
    """A static string argument (an instruction name, a print format)."""

    value: str
    span: Span | None = _span()
    type: VoidType = field(default=VOID, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Static:
    """A static argument that is not a scalar: tuples of ints or strings, None."""

    value: Any
    span: Span | None = _span()
    type: VoidType = field(default=VOID, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Var:
    """A scalar variable, pointer variable or (``type`` a TensorType) a buffer."""

    name: str
    type: Type = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class HardwareId:
    """A per-thread or per-CTA coordinate, int32.

    Names: ``tid.x|y|z``, ``ntid.x|y|z``, ``ctaid.x|y|z``, ``nctaid.x|y|z``, ``tid`` (linear thread
    in CTA, x fastest), ``laneid`` (= tid % 32), ``warpid`` (= tid // 32), ``warpgroupid`` (= tid //
    128), ``warp_in_warpgroup``, ``tid_in_warpgroup``, ``cluster_ctaid.x|y|z``,
    ``cluster_nctaid.x|y|z``, ``cluster_ctarank``, ``clusterid.x|y|z``, ``nclusterid.x|y|z``.
    """

    name: str
    span: Span | None = _span()
    type: ScalarType = field(default=INT32, init=False, repr=False, hash=False)


UnaryOp = Literal["neg", "not", "invert", "abs"]
BinaryOp = Literal[
    "add", "sub", "mul", "truediv", "floordiv", "mod",
    "shl", "shr", "bitand", "bitor", "bitxor",
    "lt", "le", "gt", "ge", "eq", "ne",
    "and", "or", "min", "max",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unary:
    op: UnaryOp
    operand: Expr
    type: ScalarType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Binary:
    """Both operands have one type (shifts: any integer on the right); comparisons give bool.

    ``truediv`` is on floats only. ``min``/``max`` ignore a NaN operand, as PTX's do.
    """

    op: BinaryOp
    lhs: Expr
    rhs: Expr
    type: ScalarType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Select:
    """``if_true if condition else if_false`` where evaluating both sides is harmless."""

    condition: Expr
    if_true: Expr
    if_false: Expr
    type: Type = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Cast:
    """Numeric conversion. Float to integer truncates and saturates; to bool is ``!= 0``."""

    operand: Expr
    type: ScalarType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Bitcast:
    """The same bits as another type of the same width (also uint64/uint32 and pointers)."""

    operand: Expr
    type: ScalarType | PointerType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Load:
    """One element, by an ordinary scalar load (or register read in ``local`` space)."""

    view: View
    indices: tuple[Expr, ...]
    type: ScalarType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Address:
    """Address of byte ``offset_bytes`` of a buffer (an integer expression). In ``tmem`` space the offset
    counts lanes and columns as an address does, and is added to the buffer's."""

    buffer: Var
    offset_bytes: Expr
    type: PointerType = _type()
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Pick:
    """Which part of an axis a view is of: the indices ``[index, index + count)``, those that a step
    passes over included, of an ``axis`` of ``extent``.

    ``axis`` counts in the view that was narrowed. The view's offset holds what the index contributes
    and not the axis that it belongs to: another index may give the same offset.
    """

    index: Expr
    count: int
    extent: int | Var
    axis: int
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class View:
    """A buffer seen through a dtype, shape, layout and offset.

    ``offset_elems`` counts elements of ``dtype`` along the memory axis ``m`` (along ``TCol`` in
    ``tmem`` space) and is added to what ``layout`` gives for a coordinate, inside the swizzle when the
    layout is composed.
    ``dynamic_strides`` gives, for dimensions whose stride is a run-time value, that stride in
    elements of ``dtype``; the layout then holds stride 0 for that dimension. ``layout`` None: the
    buffer has no layout, so the view can be indexed by scalars in row-major order but not used as
    a tile operand.
    ``picks``: what must hold where an element is accessed through the view, of indices whose place in
    their axis is not known when compiling. A view that nothing uses may have picked anything.
    """

    buffer: Var
    dtype: DType
    shape: tuple[int | Var, ...]
    layout: Layout | None
    offset_elems: Expr
    dynamic_strides: tuple[tuple[int, Expr], ...] = ()
    picks: tuple[Pick, ...] = ()
    span: Span | None = _span()

    @property
    def space(self) -> Space:
        assert isinstance(self.buffer.type, TensorType)
        return self.buffer.type.space

    @property
    def type(self) -> TensorType:
        assert isinstance(self.buffer.type, TensorType)
        return TensorType(
            self.shape,
            self.dtype,
            self.layout,
            self.buffer.type.space,
            self.buffer.type.align_bytes,
        )


@dataclass(frozen=True, slots=True)
class Region:
    """The rectangle ``[start, start + extent)`` of a view. Extents are positive static ints."""

    view: View
    starts: tuple[Expr, ...]
    extents: tuple[int, ...]
    span: Span | None = _span()

    @property
    def type(self) -> TensorType:
        whole = self.view.type
        return TensorType(self.extents, whole.dtype, whole.layout, whole.space, whole.align_bytes)


@dataclass(frozen=True, slots=True)
class Tuple:
    items: tuple[Expr, ...]
    span: Span | None = _span()

    @property
    def type(self) -> TupleType:
        return TupleType(tuple(item.type for item in self.items))


@dataclass(frozen=True, slots=True)
class Keyword:
    """A named parameter of a tile call. Static values are Const, Text or Static."""

    name: str
    value: Expr
    span: Span | None = _span()

    @property
    def type(self) -> Type:
        return self.value.type


@dataclass(frozen=True, slots=True)
class ScopeAttrs:
    """Execution scope of a tile call."""

    scope: Scope = "thread"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a named operation; ``ir.ops`` lists them.

    ``tile.apply``: args ``(Text name, Tuple operands, Tuple of Keyword)``, attrs ScopeAttrs.
    ``tile.ewise``: args ``(LambdaExpr, Tuple (dst, *inputs))``, attrs ScopeAttrs.
    ``ptx``: args ``(Text name, Tuple operands, Tuple of Keyword)``: one raw instruction. Its
    destinations are ``Var`` or ``Load`` nodes, written instead of read.
    """

    op: str
    args: tuple[Expr, ...]
    type: Type = VOID
    attrs: ScopeAttrs | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class LambdaExpr:
    """The typed scalar body of ``ewise``: Declare, Assign, If and Return only."""

    name: str
    params: tuple[Var, ...]
    body: Block
    type: ScalarType = _type()
    span: Span | None = _span()


Expr: TypeAlias = (
    Const | Text | Static | Var | HardwareId | Unary | Binary | Select | Cast | Bitcast | Load
    | Address | View | Region | Tuple | Keyword | Call | LambdaExpr
)  # fmt: skip


# --- statements


@dataclass(frozen=True, slots=True)
class Declare:
    """Introduces a scalar or pointer variable; without ``value`` it is unwritten."""

    var: Var
    value: Expr | None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Assign:
    var: Var
    value: Expr
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Store:
    """One element, by an ordinary scalar store (or register write in ``local`` space)."""

    view: View
    indices: tuple[Expr, ...]
    value: Expr
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class AllocTensor:
    """Introduces a ``shared`` or ``local`` buffer for the rest of the function."""

    buffer: Var
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class DeclTmem:
    """Introduces a ``tmem`` buffer at ``address``, a uint32 that is evaluated once. Nothing is allocated."""

    buffer: Var
    address: Expr
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class If:
    condition: Expr
    then: Block
    orelse: Block
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class For:
    """``for var in range(start, stop, step)``, rolled unless ``unroll``."""

    var: Var
    start: Expr
    stop: Expr
    step: Const
    body: Block
    unroll: bool = False
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class While:
    """``while True``."""

    body: Block
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Break:
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Continue:
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Return:
    """Ends the thread (in a kernel) or gives the value (in a LambdaExpr)."""

    value: Expr | None = None
    span: Span | None = _span()


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A call made for its effect."""

    call: Call
    span: Span | None = _span()


Stmt: TypeAlias = (
    Declare | Assign | Store | AllocTensor | DeclTmem | If | For | While | Break | Continue | Return
    | Evaluate
)  # fmt: skip
Block: TypeAlias = tuple[Stmt, ...]


# --- functions


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How the kernel is launched. ``grid`` counts CTAs; its entries are host expressions over the
    parameters' dynamic sizes and scalars, or None where the caller gives the grid (``k[grid]``).
    ``grid_bound`` is the largest grid this specialisation was checked for. ``block`` and
    ``cluster`` are static, x first; ``cluster`` None: no cluster launch.
    """

    grid: tuple[Expr, ...] | None
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None = None
    grid_bound: tuple[int, int, int] = MAX_GRID
    dynamic_smem_bytes: int | None = None
    cooperative: bool = False
    programmatic_stream_serialization: bool = False
    min_blocks_per_sm: int = 1
    max_registers_per_thread: int | None = None

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster; 1 where there are none."""
        return math.prod(self.cluster or ())


@dataclass(frozen=True, slots=True)
class Function:
    """One specialised kernel. ``params`` in launch order: buffers, run-time scalars, and the
    dynamic sizes and strides that buffers refer to."""

    name: str
    params: tuple[Var, ...]
    launch: LaunchConfig
    body: Block
    target: str
    span: Span | None = _span()
