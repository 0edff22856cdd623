"""From walks to native operands: registers' slots, and memory addresses as expressions.

A memory operand becomes one bound address per class of repeats that differ by a constant for all
threads; the constant is the instruction's immediate offset. Addresses count bytes, in tensor memory
columns, with the lane above them. Thread dependence is written in
``laneid``, ``warpid`` or ``tid`` from the layout's iters. Every address is evaluated again by the
checker's own arithmetic and compared with the walk: a difference is a defect of tilejit.

Not here: which positions are legal (``tile.contracts``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import InternalError, fault
from tilejit.ir import build, nodes
from tilejit.ir.dims import storage_axis
from tilejit.ir.linear import divisor, linear, total
from tilejit.ir.tensor_memory import CELL_BITS, LANE_SHIFT
from tilejit.layout import ComposeLayout, Iter
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.contracts import buffer_extent
from tilejit.tile.family import Let, Memory, Register, Registers
from tilejit.tile.groups import Group
from tilejit.tile.region import TensorOperand, Walk, dimensions

IMMEDIATE_LIMIT_BYTES = 1 << 31
"""PTX address immediates are 32-bit signed."""


@dataclass(frozen=True, slots=True, eq=False)
class Providers:
    """Which element of an atom each lane gives the address of, where that is not the first.

    ``elements``: positions in the row-major atom, by lane. ``index``: the same as an int32 expression
    of the executing thread, per dimension of the atom. The first ``lanes`` give all addresses, of
    ``nbytes`` each; the lanes beyond repeat them.
    """

    elements: IntArray
    index: tuple[nodes.Expr, ...]
    lanes: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Starts:
    """Where the addresses of a walk point: ``places`` and ``dynamic`` as in ``Walk``, of shape
    (active thread or 1, repeat). ``index``: that of ``Providers``."""

    laid: Walk
    places: IntArray
    dynamic: tuple[IntArray, ...]
    index: tuple[nodes.Expr, ...] | None

    @staticmethod
    def of(call: TileCall, laid: Walk, providers: Providers | None) -> _Starts:
        if providers is None:
            dynamic = tuple(index[..., 0] for _, index in laid.dynamic)
            return _Starts(laid, laid.places[..., 0], dynamic, None)
        threads = call.group.threads
        given = providers.elements[threads % call.group.per_cta % 32]
        rows = laid.rows(threads)

        def at(values: IntArray) -> IntArray:
            return values[rows if values.shape[0] > 1 else 0, :, given]

        dynamic = tuple(at(index) for _, index in laid.dynamic)
        return _Starts(laid, at(laid.places), dynamic, providers.index)


def registers(laid: Walk) -> list[Registers]:
    """The registers of every repeat, in the order of the atom."""
    found = laid.findings.registers
    if found is None:
        buffer, dtype = laid.operand.view.buffer, laid.operand.dtype
        found = laid.findings.registers = [
            Registers(tuple(Register(buffer, slot, dtype) for slot in slots))
            for slots in _slots(laid)
        ]
    return found


def single_registers(laid: Walk) -> list[Register]:
    """The register of every repeat, where an atom is one element."""
    buffer, dtype = laid.operand.view.buffer, laid.operand.dtype
    return [Register(buffer, slot, dtype) for (slot,) in _slots(laid)]


def _slots(laid: Walk) -> list[list[int]]:
    """The slots of every repeat, alike for all threads (``ownership.owned``)."""
    slots: list[list[int]] = laid.physical()[0].tolist()
    return slots


UNIT_BITS: dict[nodes.Space, int] = {"global": 8, "shared": 8, "local": 8, "tmem": CELL_BITS}
"""What an address counts: bytes, or columns of tensor memory."""


def memory_operands(
    call: TileCall,
    laid: Walk,
    providers: Providers | None = None,
    lanes: Sequence[int] | None = None,
) -> tuple[list[Let], list[Memory]]:
    """Address of the atom's first element (or of each lane's) for every repeat, and the steps that
    bind the bases. ``lanes``: of tensor memory, by repeat."""
    operand = laid.operand
    starts = _Starts.of(call, laid, providers)
    bits, unit = operand.dtype.bits, UNIT_BITS[operand.space]
    places = starts.places[0] * bits // unit
    lets: list[Let] = []
    memories: list[Memory] = []
    leaders: list[tuple[list[bool], int, nodes.Expr, int]] = []
    for repeat in range(laid.repeats):
        lane = 0 if lanes is None else lanes[repeat] << LANE_SHIFT
        for alike, first, base, base_offset in leaders:
            offset = base_offset + int(places[repeat] - places[first])
            if alike[repeat] and abs(offset) < IMMEDIATE_LIMIT_BYTES:
                memories.append(Memory(base, offset + lane, operand.space))
                break
        else:
            base, offset = _bind(call, starts, repeat, lets)
            leaders.append((_apart_by_constants(starts, repeat), repeat, base, offset))
            memories.append(Memory(base, offset + lane, operand.space))
    return lets, memories


def _apart_by_constants(starts: _Starts, first: int) -> list[bool]:
    """For every repeat: do all threads agree how far its addresses are from those of ``first``?"""
    laid = starts.laid
    apart = starts.places - starts.places[:, first : first + 1]
    alike = (apart == apart[:1]).all(axis=0)
    for index in starts.dynamic:
        alike &= (index == index[:, first : first + 1]).all(axis=0)
    layout = laid.operand.layout
    if not laid.period_multiple and isinstance(layout, ComposeLayout):
        alike &= apart[0] % layout.period_elems == 0
    agreed: list[bool] = alike.tolist()
    return agreed


def _bind(call: TileCall, starts: _Starts, repeat: int, lets: list[Let]) -> tuple[nodes.Expr, int]:
    """(base pointer, immediate) of a repeat; adds the step that computes the base. What is constant
    of the offset goes into the immediate, so that calls on parts of one buffer share a base."""
    operand = starts.laid.operand
    type_ = nodes.PointerType(operand.space)
    offset = _offset(call, starts, repeat)
    known = build.as_int(offset)
    if known is not None:
        zero = build.const(0, build.dtype_of(offset))
        return nodes.Address(operand.view.buffer, zero, type_, span=operand.span), known
    varying, immediate = _split(call, offset, operand.space)
    var = nodes.Var(call.names.fresh(operand.view.buffer.name), type_, span=operand.span)
    lets.append(Let(var, nodes.Address(operand.view.buffer, varying, type_, span=operand.span)))
    return var, immediate


def _split(call: TileCall, offset: nodes.Expr, space: nodes.Space) -> tuple[nodes.Expr, int]:
    """``offset`` as (expression, constant). Where an addition might wrap, ``offset`` and 0; likewise where
    a column would be negative: the base is an address in tensor memory, which borrows from its lane."""
    terms, constant = linear(offset)
    if abs(constant) >= IMMEDIATE_LIMIT_BYTES:
        return offset, 0
    varying = total(terms, 0, build.dtype_of(offset))
    value = call.evaluator.integer(varying)
    apart = call.evaluator.integer(offset) - value
    negative = space == "tmem" and min(constant, call.context.range(value)[0]) < 0
    return (varying, constant) if apart.constant == constant and not negative else (offset, 0)


def _offset(call: TileCall, starts: _Starts, repeat: int) -> nodes.Expr:
    """Bytes (columns) from the buffer's base to where a repeat's addresses point, as an expression."""
    operand = starts.laid.operand
    terms = _Terms(call, starts, repeat, _arithmetic_type(call, operand))
    elements = terms.elements()
    _verify(call, starts, repeat, elements)
    bits, unit = operand.dtype.bits, UNIT_BITS[operand.space]
    if bits >= unit:
        expr = build.mul(elements, build.const(bits // unit, terms.dtype))
    else:
        expr = _wholes(elements, unit // bits, terms.dtype)
    return build.cast(expr, dtypes.int64) if operand.space == "global" else expr


def _wholes(elements: nodes.Expr, of: int, dtype: DType) -> nodes.Expr:
    """``elements // of``, where the terms that vary are whole multiples, as the contracts prove."""
    terms, constant = linear(elements)
    if all(factor % of == 0 for factor in terms.values()):
        return total({t: f // of for t, f in terms.items()}, constant // of, dtype)
    return build.shr(elements, build.const(of.bit_length() - 1, dtype))


def _arithmetic_type(call: TileCall, operand: TensorOperand) -> DType:
    """int32 where the buffer is small enough that every offset in it fits; wrapping cancels out."""
    if operand.space != "global":
        return dtypes.int32
    extent = buffer_extent(call, operand)
    if extent is not None and extent[0].constant is not None:
        if extent[0].constant // 8 < IMMEDIATE_LIMIT_BYTES:
            return dtypes.int32
    return dtypes.int64


def _verify(call: TileCall, starts: _Starts, repeat: int, elements: nodes.Expr) -> None:
    laid = starts.laid
    if laid.dynamic or not laid.period_multiple:
        return
    numbers = starts.places[:, repeat]
    got = call.evaluator.integer(elements) - laid.symbolic
    if not got.exact:
        return
    const = np.asarray(got.const)
    # Lanes that give an address each are all in the walk; else one thread may stand for a warp.
    threads = (laid if starts.index is None else call).group.threads
    chosen = const[threads] if const.ndim else const
    if not bool((chosen == numbers).all()):
        raise fault(
            InternalError, "internal/address",
            f"the address built for {laid.operand.name} differs from the checked one", call.span,
        )  # fmt: skip


@dataclass(slots=True)
class _Terms:
    """Builds the element offset of one repeat as an expression of type ``dtype``."""

    call: TileCall
    starts: _Starts
    repeat: int
    dtype: DType

    @property
    def laid(self) -> Walk:
        return self.starts.laid

    def elements(self) -> nodes.Expr:
        operand = self.laid.operand
        offset = self._as(operand.view.offset_elems)
        layout = operand.layout
        if not isinstance(layout, ComposeLayout):
            return build.add(self._tile(), offset)
        return self._swizzled(build.add(self._tile(), offset), layout)

    def _tile(self) -> nodes.Expr:
        """What the layout's iters and constant offset give."""
        operand, prefix = self.laid.operand, self.laid.prefix
        constant = dict(operand.tile.offset).get(storage_axis(operand.space), 0)
        pieces = dimensions(operand.tile, operand.view.shape)
        if pieces is None:
            return build.add(self._straddling(), self._const(constant))
        total = self._const(0)
        done: set[int] = set()
        if prefix:
            total, done = self._whole_thread(pieces)
        for d, iters in enumerate(pieces):
            index = self._as(operand.starts[d]) if d in done else self._index(d)
            total = build.add(total, self._dimension(d, iters, index))
        return build.add(total, self._const(constant))

    def _index(self, d: int) -> nodes.Expr:
        """The index along a dimension: start, and group coordinate, repeat or place in the atom."""
        laid = self.laid
        start = self._as(laid.operand.starts[d])
        if d < laid.prefix:
            return build.add(start, self._as(coordinate(laid.group, d)))
        position = d - laid.prefix
        if position < len(laid.repeat):
            step = np.unravel_index(self.repeat, laid.repeat)[position]
            return build.add(start, self._const(int(step)))
        if self.starts.index is None:
            return start
        return build.add(start, self._as(self.starts.index[position - len(laid.repeat)]))

    def _straddling(self) -> nodes.Expr:
        """Where the layout's iters straddle dimensions: they split the row-major number."""
        operand = self.laid.operand
        number = self._const(0)
        for d, extent in enumerate(operand.view.shape):
            assert isinstance(extent, int)
            number = build.add(build.mul(number, self._const(extent)), self._index(d))
        return self._by_iters(operand.tile.shard, number)

    def _whole_thread(self, pieces: tuple[tuple[Iter, ...], ...]) -> tuple[nodes.Expr, set[int]]:
        """Warp and lane axes with strides 32·s and s are tid·s: one multiplication."""
        group, prefix = self.laid.group, self.laid.prefix
        nothing = self._const(0), set[int]()
        if (
            group.scope not in ("cta", "cluster")
            or prefix < len(group.axes)
            or not _identity(group)
            or self.laid.operand.space == "tmem"
        ):
            return nothing
        warp, lane = pieces[prefix - 2], pieces[prefix - 1]
        if len(lane) != 1 or len(warp) > 1 or lane[0].extent != 32:
            return nothing
        if warp and warp[0].stride != 32 * lane[0].stride:
            return nothing
        tid = self._as(nodes.HardwareId("tid"))
        return build.mul(tid, self._const(lane[0].stride)), {prefix - 2, prefix - 1}

    def _dimension(self, d: int, iters: tuple[Iter, ...], index: nodes.Expr) -> nodes.Expr:
        operand = self.laid.operand
        strides = dict(operand.view.dynamic_strides)
        if d in strides:
            return build.mul(index, self._as(strides[d]))
        if operand.space == "tmem":
            iters = tuple(i if i.axis == "TCol" else replace(i, stride=0) for i in iters)
        return self._by_iters(iters, index)

    def _by_iters(self, iters: tuple[Iter, ...], index: nodes.Expr) -> nodes.Expr:
        """Elements that an index gives which these iters split, the last one fastest."""
        inner = math.prod(iter_.extent for iter_ in iters)
        known = build.as_int(index)
        if known is not None:
            return self._const(_known_by_iters(iters, inner, known))
        total = self._const(0)
        for number, iter_ in enumerate(iters):
            inner //= max(1, iter_.extent)
            part = self._divide(index, inner)
            if number > 0:
                part = self._modulo(part, iter_.extent)
            total = build.add(total, build.mul(part, self._const(iter_.stride)))
        return total

    def _swizzled(self, address: nodes.Expr, layout: ComposeLayout) -> nodes.Expr:
        """``layout.swizzle`` as an expression. What moves whole periods is added behind the swizzle,
        so that a stage or a constant does not make the lanes' part anew."""
        terms, constant = linear(address)
        period = layout.period_elems
        whole = {t: f for t, f in terms.items() if f * divisor(t) % period == 0}
        inside = {t: f for t, f in terms.items() if t not in whole}
        rest = constant % period
        outside = total(whole, constant - rest, self.dtype)
        return build.add(self._flipped(total(inside, rest, self.dtype), layout), outside)

    def _flipped(self, address: nodes.Expr, layout: ComposeLayout) -> nodes.Expr:
        """The swizzle itself; a known address is swizzled here and now."""
        known = build.as_int(address)
        if known is not None:
            return self._const(int(layout.swizzle(np.asarray(known, dtype=np.int64))))
        mask = ((1 << layout.swizzle_len) - 1) << layout.per_element
        far = mask << layout.atom_len
        distance = self._const(layout.atom_len)
        if layout.swizzle_inner:
            flips = build.shr(build.bitand(address, self._const(far)), distance)
        else:
            flips = build.shl(build.bitand(address, self._const(mask)), distance)
        return build.bitxor(address, flips)

    def _divide(self, index: nodes.Expr, by: int) -> nodes.Expr:
        if by & (by - 1) == 0:
            return build.shr(index, self._const(by.bit_length() - 1))
        return build.floordiv(index, self._const(by))

    def _modulo(self, index: nodes.Expr, by: int) -> nodes.Expr:
        if by & (by - 1) == 0:
            return build.bitand(index, self._const(by - 1))
        return build.mod(index, self._const(by))

    def _const(self, value: int) -> nodes.Expr:
        return build.const(value, self.dtype)

    def _as(self, expr: nodes.Expr) -> nodes.Expr:
        """``expr`` in the type of the arithmetic. A narrowing goes to the terms, which is the same
        modulo 2**bits, so that the constants among them stay in sight."""
        if build.dtype_of(expr).bits > self.dtype.bits:
            return total(*linear(expr), self.dtype)
        return build.cast(expr, self.dtype)


def _known_by_iters(iters: tuple[Iter, ...], inner: int, index: int) -> int:
    """``_Terms._by_iters`` of a number; ``inner``: the product of the extents."""
    total = 0
    for number, iter_ in enumerate(iters):
        inner //= max(1, iter_.extent)
        part = index // inner
        total += (part % iter_.extent if number > 0 else part) * iter_.stride
    return total


def _identity(group: Group) -> bool:
    """Every lane takes part, and warps have their own numbers as coordinates."""
    if group.elected or group.axes[-1].extent != 32:
        return False
    warp = group.threads % group.per_cta // 32
    return bool((group.coords[:, -2] == warp).all())


def coordinate(group: Group, axis: int) -> nodes.Expr:
    """A group coordinate of the executing thread, as an int32 expression.

    The rank among the active values of the axis: (value - first) / step where they are evenly
    spaced, else the number of active values below the thread's own.
    """
    name = group.axes[axis].name
    if name == "lane" and group.elected:
        return build.const(0, dtypes.int32)
    hardware = {
        "lane": "laneid", "warp": "warpid", "warp_in_group": "warp_in_warpgroup",
        "warpgroup": "warpgroupid",
    }  # fmt: skip
    value = nodes.HardwareId(hardware.get(name, f"cluster_ctaid.{name[-1]}"))
    return _rank(value, group.values[:, axis], group.coords[:, axis])


def _rank(value: nodes.Expr, values: IntArray, ranks: IntArray) -> nodes.Expr:
    """``ranks`` as an expression of ``value``, whose numbers per thread are ``values``."""
    if not ranks.any():
        return build.const(0, dtypes.int32)
    if np.array_equal(values, ranks):
        return value
    first = int(values[np.argmin(ranks)])
    step = int(values[ranks == 1][0]) - first
    if np.array_equal(first + ranks * step, values):
        below = build.sub(value, build.const(first, dtypes.int32))
        return build.floordiv(below, build.const(step, dtypes.int32))
    present = 0
    for v in np.unique(values):
        present |= 1 << int(v)
    one = build.const(1, dtypes.uint32)
    below = build.sub(build.shl(one, value), one)
    mask = build.bitand(build.const(present, dtypes.uint32), below)
    return nodes.Call("bits.popc", (mask,), nodes.INT32)
