"""Tensor operands resolved: which storage position and owner every coordinate of every thread has.

A ``TensorOperand`` is a region with the values of its starts and offset at one call. ``walk`` lays
it out over active threads × repeats × atom as integer arrays plus one symbolic remainder, so that
every contract becomes a comparison of arrays.

Source: contract "regions and units". Not here: the contracts themselves (``tile.contracts`` and the
families), addresses as expressions (``tile.walk``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.ir.dims import dimension_iters, storage_axis
from tilejit.layout import (
    ComposeLayout,
    Iter,
    Layout,
    LayoutError,
    TileLayout,
)
from tilejit.tile.affine import Affine, IntArray, Number, settle
from tilejit.tile.family import Registers
from tilejit.tile.groups import Group
from tilejit.tile.values import Evaluator, Value

if TYPE_CHECKING:
    from tilejit.tile.descriptor import Descriptor


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
        start_values = tuple(evaluator.integer(s) for s in starts)
    elif isinstance(expr, nodes.View):
        view = expr
        starts = (_ZERO,) * len(view.shape)
        start_values = (Affine(),) * len(view.shape)
        extents = tuple(d if isinstance(d, int) else -1 for d in view.shape)
    else:
        return ScalarOperand(name, expr, evaluator.value(expr), expr.span or span)
    return TensorOperand(
        name,
        view,
        starts,
        start_values,
        extents,
        evaluator.integer(view.offset_elems),
        {d: evaluator.integer(stride) for d, stride in view.dynamic_strides},
        expr.span or span,
    )


_ZERO = nodes.Const(0, nodes.INT32)


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


@dataclass(slots=True)
class Findings:
    """What has been proved and made of a walk's numbers, once for all operands that share them."""

    owned: bool = False
    distinct: bool = False
    physical: IntArray | None = None
    registers: list[Registers] | None = None
    fragments: dict[object, list[Registers]] = field(default_factory=dict)
    """By ``tile.fragments.Fragment``: the registers of every repeat, once its map was proved."""
    descriptors: dict[str, Descriptor] = field(default_factory=dict)
    """By major order: how ``tile.descriptor`` describes the operand."""


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Positions of one operand over (active thread, repeat, atom element).

    ``group``: the threads along the first axis; one per warp in a warp collective, whose lanes the
    atom holds.
    ``memory``: elements, before any swizzle, without ``symbolic``; shape (A or 1, R, K), the first
    axis 1 when no thread differs; in tensor memory along ``TCol``. ``owners``: the same for every other
    axis of the layout: of threads, or ``TLane``.
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
    findings: Findings = field(default_factory=Findings)

    @property
    def repeats(self) -> int:
        return int(self.memory.shape[1])

    def repeat_coordinates(self) -> list[tuple[int, ...]]:
        """The coordinate of every repeat, row-major."""
        return list(product(*map(range, self.repeat)))

    @property
    def period_multiple(self) -> bool:
        """Whether ``symbolic`` moves whole swizzle periods (always, without a swizzle)."""
        layout = self.operand.layout
        if not isinstance(layout, ComposeLayout):
            return True
        if self.dynamic:
            return False
        return all(
            _is_multiple(c * max(s.mod, 1), layout.period_elems)
            and _is_multiple(c * s.rem, layout.period_elems)
            for s, c in self.symbolic.terms.items()
        )

    def physical(self) -> IntArray:
        """``memory`` with the swizzle applied; right where ``period_multiple``."""
        layout = self.operand.layout
        if not isinstance(layout, ComposeLayout):
            return self.memory
        if self.findings.physical is None:
            self.findings.physical = layout.swizzle(self.memory)
        return self.findings.physical

    def rows(self, threads: IntArray) -> IntArray:
        """Where along the first axis of the walk's arrays active threads of the call are."""
        if self.memory.shape[0] == 1:
            return np.zeros_like(threads)
        rows: IntArray = np.searchsorted(self.group.threads, threads, side="right") - 1
        return rows

    @property
    def places(self) -> IntArray:
        """The best known positions: with the swizzle where it can be applied."""
        return self.physical() if self.period_multiple else self.memory

    def coordinate(self, repeat: int, element: int) -> str:
        """Repeat and atom coordinate in words."""
        r = tuple(int(i) for i in np.unravel_index(repeat, self.repeat)) if self.repeat else ()
        k = tuple(int(i) for i in np.unravel_index(element, self.atom)) if self.atom else ()
        return f"repeat {r}, element {k}" if k else f"repeat {r}"

    def where(self, index: tuple[int, ...]) -> str:
        """A position of the walk's arrays in words: repeat, element and thread."""
        text = self.coordinate(index[1], index[2] if len(index) > 2 else 0)
        return f"{text}, {self.group.describe(index[0])}"


def _is_multiple(value: Number, of: int) -> bool:
    """For every thread."""
    return value % of == 0 if isinstance(value, int) else not bool((value % of).any())


def walk(
    operand: TensorOperand, group: Group, prefix: int, atom_rank: int, evaluator: Evaluator
) -> Walk:
    """Lays out an operand whose first ``prefix`` dimensions are group axes and last ``atom_rank``
    the atom. ``NotSeparable`` when a symbolic start cannot be told from the coordinates."""
    rank = len(operand.extents)
    repeat = operand.extents[prefix : rank - atom_rank]
    atom = operand.extents[rank - atom_rank :]
    indices = _indices(operand, group, prefix)
    along = storage_axis(operand.space)
    positions: dict[str, Number] = {
        along: _per_thread(operand.offset.const, group, 1 + len(repeat) + len(atom))
    }
    symbolic = Affine(0, dict(operand.offset.terms))
    dynamic: list[tuple[Affine, Number]] = []
    pieces = dimensions(operand.tile, operand.view.shape)
    if pieces is None:
        _add_from_table(operand, indices, positions)
    else:
        for d, (iters, index) in enumerate(zip(pieces, indices)):
            terms = operand.start_values[d].terms
            stride = operand.dynamic_strides.get(d)
            if stride is not None:
                dynamic.append((stride, index))
                if terms:
                    symbolic = symbolic + _product(evaluator, stride, Affine(0, terms))
                continue
            _add_dimension(iters, index, positions)
            if terms and iters:
                symbolic = symbolic + _outer_steps(operand, d, iters, Affine(0, terms), evaluator)
    for axis, value in operand.tile.offset:
        positions[axis] = positions.get(axis, 0) + value
    shape = (math.prod(repeat), math.prod(atom))
    full = (*repeat, *atom)

    def flat(values: Number) -> IntArray:
        if isinstance(values, int):
            return np.full((1, *shape), values, dtype=np.int64)
        if values.shape[1:] != full:
            values = np.broadcast_to(values, (values.shape[0], *full))
        return values.reshape(-1, *shape)

    kept: list[tuple[Affine, IntArray]] = []
    for stride, index in dynamic:
        if stride.constant is not None:
            positions[along] = positions[along] + stride.constant * index
        elif isinstance(index, int):
            symbolic = symbolic + stride.scaled(index)
        else:
            kept.append((stride, flat(index)))
    memory = flat(positions.pop(along))
    owners = {axis: flat(values) for axis, values in positions.items()}
    return Walk(operand, group, prefix, repeat, atom, memory, owners, symbolic, tuple(kept))


# Numbers of a walk are ints where they are one for all threads, repeats and elements, else arrays
# over the walk's axes: (threads or 1, *repeat, *atom), each extent possibly 1.


def _per_thread(value: Number, group: Group, ndim: int) -> Number:
    """A value of the cluster's threads as a number of a walk."""
    chosen = value if isinstance(value, int) else settle(value[group.threads])
    return chosen if isinstance(chosen, int) else _along_threads(chosen, ndim)


def _along_threads(values: IntArray, ndim: int) -> Number:
    """Values of the active threads as a number of a walk."""
    return int(values[0]) if values.size == 1 else values.reshape((-1,) + (1,) * (ndim - 1))


def _indices(operand: TensorOperand, group: Group, prefix: int) -> list[Number]:
    """The known part of each dimension's index."""
    ndim = 1 + len(operand.extents) - prefix
    indices: list[Number] = []
    for d, (start, extent) in enumerate(zip(operand.start_values, operand.extents)):
        index = _per_thread(start.const, group, ndim)
        if d < prefix:
            index = index + _along_threads(group.coords[:, d], ndim)
        elif extent > 1:
            shape = [1] * ndim
            shape[1 + d - prefix] = extent
            index = index + np.arange(extent, dtype=np.int64).reshape(shape)
        indices.append(index)
    return indices


def _add_dimension(iters: tuple[Iter, ...], index: Number, positions: dict[str, Number]) -> None:
    """Adds what a dimension's index contributes to the position along each axis."""
    inner = math.prod(i.extent for i in iters)
    for number, iter_ in enumerate(iters):
        inner //= iter_.extent
        part = index if inner == 1 else index // inner
        if number > 0:
            part = part % iter_.extent
        positions[iter_.axis] = positions.get(iter_.axis, 0) + part * iter_.stride


def _outer_steps(
    operand: TensorOperand,
    d: int,
    iters: tuple[Iter, ...],
    start: Affine,
    evaluator: Evaluator,
) -> Affine:
    """The unknown part of a start, as elements of storage: whole steps of the outermost iter."""
    outer = iters[0]
    inner = math.prod(i.extent for i in iters[1:])
    if outer.axis != storage_axis(operand.space):
        chosen = "a lane" if operand.space == "tmem" else "an owner"
        raise NotSeparable(
            f"start {start} of dimension {d} chooses {chosen} ({outer.axis}) and is not known"
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


def _product(evaluator: Evaluator, stride: Affine, start: Affine) -> Affine:
    if stride.exact:
        return start.scaled(stride.const)
    return evaluator.arithmetic("mul", stride, start, dtypes.int64)


def _add_from_table(
    operand: TensorOperand, indices: list[Number], positions: dict[str, Number]
) -> None:
    """Adds positions looked up in the layout's full table, where its iters straddle dimensions."""
    shape = operand.view.shape
    if any(s.terms for s in operand.start_values) or not all(isinstance(e, int) for e in shape):
        raise NotSeparable(
            "the layout's iters straddle dimensions, so starts must be known numbers"
        )
    if operand.space != "local" and any(not isinstance(i, int) and i.shape[0] > 1 for i in indices):
        raise NotSeparable(
            "the layout's iters straddle dimensions, so threads' addresses have no formula; "
            "view it with a shape that follows the layout"
        )
    static = tuple(e for e in shape if isinstance(e, int))
    bare = TileLayout(operand.tile.shard)
    tables = bare.positions(static)
    clipped = tuple(np.clip(i, 0, e - 1) for i, e in zip(indices, static))
    for axis, table in tables.items():
        found = table[clipped]
        positions[axis] = positions.get(axis, 0) + (found if found.ndim else int(found))
