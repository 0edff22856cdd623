"""Tensor operands resolved: which storage position and owner every coordinate of every thread has.

A ``TensorOperand`` is a region with the values of its starts and offset at one call. ``walk`` lays
it out over active threads × repeats × atom as integer arrays plus one symbolic remainder, so that
every contract becomes a comparison of arrays.

Source: contract "regions and units". Not here: the contracts themselves (``tile.contracts`` and the
families), addresses as expressions (``tile.walk``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.ir.dims import dimension_iters
from tilejit.layout import (
    MEMORY_AXIS,
    ComposeLayout,
    Iter,
    Layout,
    LayoutError,
    TileLayout,
)
from tilejit.tile.affine import Affine, IntArray, Number, is_zero, settle
from tilejit.tile.groups import Group
from tilejit.tile.values import Evaluator, Value


@dataclass(frozen=True, slots=True, eq=False)
class TensorOperand:
    """The region ``[starts, starts + extents)`` of a view, with what is known of its numbers.

    ``offset``: the view's offset in elements. ``name`` is the operand's in messages.
    ``dynamic_strides``: by dimension, a stride that is a run-time value, in elements.
    """

    name: str
    view: nodes.View
    starts: tuple[nodes.Expr, ...]
    start_values: tuple[Affine, ...]
    extents: tuple[int, ...]
    offset: Affine
    dynamic_strides: dict[int, Affine]
    span: Span | None

    @property
    def dtype(self) -> DType:
        return self.view.dtype

    @property
    def space(self) -> nodes.Space:
        return self.view.space

    @property
    def buffer_type(self) -> nodes.TensorType:
        assert isinstance(self.view.buffer.type, nodes.TensorType)
        return self.view.buffer.type

    @property
    def layout(self) -> Layout:
        assert self.view.layout is not None
        return self.view.layout

    @property
    def tile(self) -> TileLayout:
        """The layout without its swizzle."""
        layout = self.layout
        return layout.tile if isinstance(layout, ComposeLayout) else layout

    def declared(self) -> str:
        """The buffer's declaration, for messages."""
        t = self.buffer_type
        shape = ", ".join(str(d) if isinstance(d, int) else d.name for d in t.shape)
        text = f"{self.view.buffer.name}: {t.space} {t.dtype} ({shape})"
        return text if t.space == "local" else f"{text}, aligned to {t.align_bytes} bytes"


@dataclass(frozen=True, slots=True, eq=False)
class ScalarOperand:
    """A scalar expression as an operand, with its abstract value."""

    name: str
    expr: nodes.Expr
    value: Value
    span: Span | None


Operand = TensorOperand | ScalarOperand


def resolve(name: str, expr: nodes.Expr, evaluator: Evaluator, span: Span | None) -> Operand:
    """An argument of a tile call as an operand."""
    if isinstance(expr, nodes.Region):
        view, starts, extents = expr.view, expr.starts, expr.extents
    elif isinstance(expr, nodes.View):
        view = expr
        zero = nodes.Const(0, nodes.INT32)
        starts = tuple(zero for _ in view.shape)
        extents = tuple(d if isinstance(d, int) else -1 for d in view.shape)
    else:
        return ScalarOperand(name, expr, evaluator.value(expr), expr.span or span)
    return TensorOperand(
        name,
        view,
        starts,
        tuple(evaluator.integer(s) for s in starts),
        extents,
        evaluator.integer(view.offset_elems),
        {d: evaluator.integer(stride) for d, stride in view.dynamic_strides},
        expr.span or span,
    )


# --- dimensions of a layout


@lru_cache(maxsize=4096)
def dimensions(
    layout: TileLayout, shape: tuple[int | nodes.Var, ...]
) -> tuple[tuple[Iter, ...], ...] | None:
    """``ir.dims.dimension_iters``; a dimension of extent 1 has none. None when some iter straddles
    dimensions without a common divisor."""
    try:
        found = dimension_iters(layout, shape)
    except LayoutError:
        return None
    return tuple(() if extent == 1 else tuple(iters) for extent, iters in zip(shape, found))


# --- walks


class NotSeparable(Exception):
    """A start whose effect on the position cannot be told; ``args[0]`` says which and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Positions of one operand over (active thread, repeat, atom element).

    ``memory``: elements, before any swizzle, without ``symbolic``; shape (A or 1, R, K), the first
    axis 1 when no thread differs. ``owners``: the same for every thread axis of the layout.
    ``symbolic``: the part with unknowns (elements, constant 0), one for the whole walk.
    ``dynamic``: (run-time stride, coordinate array) still to be added to the position.
    """

    operand: TensorOperand
    group: Group
    prefix: int
    repeat: tuple[int, ...]
    atom: tuple[int, ...]
    memory: IntArray
    owners: dict[str, IntArray]
    symbolic: Affine
    dynamic: tuple[tuple[Affine, IntArray], ...]

    @property
    def repeats(self) -> int:
        return int(self.memory.shape[1])

    @property
    def period_multiple(self) -> bool:
        """Whether ``symbolic`` moves whole swizzle periods (always, without a swizzle)."""
        layout = self.operand.layout
        if not isinstance(layout, ComposeLayout):
            return True
        if self.dynamic:
            return False
        return all(
            is_zero(settle(np.asarray(c * max(s.mod, 1) % layout.period_elems)))
            and is_zero(settle(np.asarray(c * s.rem % layout.period_elems)))
            for s, c in self.symbolic.terms.items()
        )

    def physical(self) -> IntArray:
        """``memory`` with the swizzle applied; right where ``period_multiple``."""
        layout = self.operand.layout
        if isinstance(layout, ComposeLayout):
            return layout.swizzle(self.memory)
        return self.memory

    def coordinate(self, repeat: int, element: int) -> str:
        """Repeat and atom coordinate in words."""
        r = tuple(int(i) for i in np.unravel_index(repeat, self.repeat)) if self.repeat else ()
        k = tuple(int(i) for i in np.unravel_index(element, self.atom)) if self.atom else ()
        return f"repeat {r}, element {k}" if k else f"repeat {r}"

    def where(self, index: tuple[int, ...]) -> str:
        """A position of the walk's arrays in words: repeat, element and thread."""
        text = self.coordinate(index[1], index[2] if len(index) > 2 else 0)
        return f"{text}, {self.group.describe(index[0])}"


def walk(
    operand: TensorOperand, group: Group, prefix: int, atom_rank: int, evaluator: Evaluator
) -> Walk:
    """Lays out an operand whose first ``prefix`` dimensions are group axes and last ``atom_rank``
    the atom. ``NotSeparable`` when a symbolic start cannot be told from the coordinates."""
    rank = len(operand.extents)
    repeat = operand.extents[prefix : rank - atom_rank]
    atom = operand.extents[rank - atom_rank :]
    indices, symbolic_starts = _indices(operand, group, prefix)
    memory: IntArray = np.zeros((1,) * (1 + len(repeat) + len(atom)), dtype=np.int64)
    memory = memory + _per_thread(operand.offset.const, group, memory.ndim)
    owners: dict[str, IntArray] = {}
    symbolic = Affine(0, dict(operand.offset.terms))
    dynamic: list[tuple[Affine, IntArray]] = []
    pieces = dimensions(operand.tile, operand.view.shape)
    if pieces is None:
        memory, owners = _from_table(operand, indices, symbolic_starts, memory)
    else:
        for d, iters in enumerate(pieces):
            if d in operand.dynamic_strides:
                stride = operand.dynamic_strides[d]
                dynamic.append((stride, indices[d]))
                symbolic = symbolic + _product(evaluator, stride, symbolic_starts[d], operand, d)
                continue
            symbolic = symbolic + _add_dimension(
                operand, d, iters, indices[d], symbolic_starts[d], owners, evaluator
            )
            if MEMORY_AXIS in owners:
                memory = memory + owners.pop(MEMORY_AXIS)
    for axis, value in operand.tile.offset:
        if axis == MEMORY_AXIS:
            memory = memory + value
        else:
            owners[axis] = owners.get(axis, np.zeros((1,) * memory.ndim, np.int64)) + value
    shape = (-1, math.prod(repeat), math.prod(atom))
    full = (*repeat, *atom)

    def flat(values: IntArray) -> IntArray:
        return np.broadcast_to(values, (values.shape[0], *full)).reshape(shape)

    kept, still = [], symbolic
    for stride, index in dynamic:
        if stride.exact and isinstance(stride.const, int):
            memory = memory + stride.const * index
        elif index.size == 1:
            still = still + stride.scaled(int(index.flat[0]))
        else:
            kept.append((stride, flat(index)))
    return Walk(
        operand, group, prefix, repeat, atom, flat(memory),
        {axis: flat(v) for axis, v in owners.items()}, still, tuple(kept),
    )  # fmt: skip


def _per_thread(value: Number, group: Group, ndim: int) -> IntArray:
    """A value of the cluster's threads as an array over active threads and walk axes."""
    if isinstance(value, int):
        return np.full((1,) * ndim, value, dtype=np.int64)
    chosen = settle(value[group.threads])
    if isinstance(chosen, int):
        return np.full((1,) * ndim, chosen, dtype=np.int64)
    return chosen.reshape((-1,) + (1,) * (ndim - 1))


def _indices(
    operand: TensorOperand, group: Group, prefix: int
) -> tuple[list[IntArray], list[Affine]]:
    """Per dimension: the numeric index array over the walk's axes, and the start's unknown part."""
    rank = len(operand.extents)
    ndim = 1 + rank - prefix
    indices: list[IntArray] = []
    symbolic: list[Affine] = []
    for d, (start, extent) in enumerate(zip(operand.start_values, operand.extents)):
        index = _per_thread(start.const, group, ndim)
        if d < prefix:
            index = index + group.coords[:, d].reshape((-1,) + (1,) * (ndim - 1))
        else:
            shape = [1] * ndim
            shape[1 + d - prefix] = extent
            index = index + np.arange(extent, dtype=np.int64).reshape(shape)
        indices.append(index)
        symbolic.append(Affine(0, dict(start.terms)))
    return indices, symbolic


def _add_dimension(
    operand: TensorOperand,
    d: int,
    iters: tuple[Iter, ...],
    index: IntArray,
    start: Affine,
    positions: dict[str, IntArray],
    evaluator: Evaluator,
) -> Affine:
    """Adds a dimension's contribution to ``positions``; returns the unknown part along ``m``."""
    inner = 1
    for iter_ in iters:
        inner *= iter_.extent
    symbolic = Affine()
    for number, iter_ in enumerate(iters):
        inner //= max(1, iter_.extent)
        part = index if inner == 1 else index // inner
        if number > 0:
            part = part % iter_.extent
        elif start.terms:
            symbolic = _outer_steps(operand, d, iter_, start, inner, evaluator)
        contribution = part * iter_.stride
        if iter_.axis in positions:
            contribution = contribution + positions[iter_.axis]
        positions[iter_.axis] = contribution
    return symbolic


def _outer_steps(
    operand: TensorOperand, d: int, outer: Iter, start: Affine, inner: int, evaluator: Evaluator
) -> Affine:
    """The unknown part of a start, as elements along ``m``: whole steps of the outermost iter."""
    if outer.axis != MEMORY_AXIS:
        raise NotSeparable(
            f"start {start} of dimension {d} chooses an owner ({outer.axis}) and is not known"
        )
    if inner == 1:
        return start.scaled(outer.stride)
    if not evaluator.context.divisible(start, inner):
        raise NotSeparable(
            f"start {start} of dimension {d} is not known to be a multiple of {inner}, where the "
            "layout's stride changes"
        )
    quotient, _ = evaluator.divided(start, Affine(inner))
    return quotient.scaled(outer.stride)


def _product(
    evaluator: Evaluator, stride: Affine, start: Affine, operand: TensorOperand, d: int
) -> Affine:
    if not start.terms:
        return Affine()
    if stride.exact:
        return start.scaled(stride.const)
    return evaluator.arithmetic("mul", stride, start, dtypes.int64)


def _from_table(
    operand: TensorOperand, indices: list[IntArray], starts: list[Affine], memory: IntArray
) -> tuple[IntArray, dict[str, IntArray]]:
    """Positions looked up in the layout's full table, where its iters straddle dimensions."""
    shape = operand.view.shape
    if any(s.terms for s in starts) or not all(isinstance(e, int) for e in shape):
        raise NotSeparable(
            "the layout's iters straddle dimensions, so starts must be known numbers"
        )
    if operand.space != "local" and any(i.shape[0] > 1 for i in indices):
        raise NotSeparable(
            "the layout's iters straddle dimensions, so threads' addresses have no formula; "
            "view it with a shape that follows the layout"
        )
    static = tuple(e for e in shape if isinstance(e, int))
    bare = TileLayout(operand.tile.shard)
    tables = bare.positions(static)
    clipped = [np.clip(i, 0, e - 1) for i, e in zip(indices, static)]
    owners = {axis: np.asarray(t[tuple(clipped)]) for axis, t in tables.items()}
    return memory + owners.pop(MEMORY_AXIS), owners
