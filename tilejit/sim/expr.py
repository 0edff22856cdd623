"""Expressions to closures: each maps a cohort to an array of values, broadcastable to (warps, 32).

Compiling decides everything that does not depend on values: types, slots, static register numbers,
which buffer an address came from. Inactive lanes compute too; only what has an effect on memory or
can fault looks at the mask. Pointers are int64 arrays.

Not here: what operators do to values (``scalar``), statements (``program``), tile steps (``issue``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import InternalError, Span, Unsimulated, fault
from tilejit.ir import build, nodes, views
from tilejit.sim import access, convergent, scalar
from tilejit.sim.access import Accesses
from tilejit.sim.batch import hardware_id
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.geometry import OFFSET_MASK, RANK_SHIFT, SHARED_APERTURE
from tilejit.sim.memory import WORDS
from tilejit.sim.registers import Mask
from tilejit.sim.storage import Storage

Evaluate: TypeAlias = Callable[[Cohort], Array]


def dtype_of(kind: nodes.Type) -> DType:
    """The dtype of a scalar's values; pointers count as int64."""
    if isinstance(kind, nodes.PointerType):
        return dtypes.int64
    if not isinstance(kind, nodes.ScalarType):
        raise fault(InternalError, "sim/type", f"{kind} is not a scalar type")
    return kind.dtype


def unsimulated(what: str, span: Span | None) -> Unsimulated:
    """The exception for something the simulator does not model."""
    error = fault(Unsimulated, "sim/unsimulated", f"the simulator does not model {what}", span)
    assert isinstance(error, Unsimulated)
    return error


class Expressions:
    """Compiles expressions of one function. ``slots`` number its variables; ``origins`` names the
    buffer a pointer variable points into, if certain."""

    def __init__(self, accesses: Accesses, storage: Storage) -> None:
        self.accesses = accesses
        self.storage = storage
        self.slots: dict[str, int] = {}
        self.origins: dict[str, str | None] = {}

    def slot(self, var: nodes.Var) -> int:
        return self.slots.setdefault(var.name, len(self.slots))

    def origin(self, pointer: nodes.Expr) -> str | None:
        """The buffer that a pointer expression certainly points into."""
        if isinstance(pointer, nodes.Address):
            return pointer.buffer.name
        if isinstance(pointer, nodes.Var):
            return self.origins.get(pointer.name)
        return None

    # --- dispatch

    def compile(self, e: nodes.Expr) -> Evaluate:
        if isinstance(e, nodes.Const):
            return self._const(e)
        if isinstance(e, nodes.Var):
            return self._var(e)
        if isinstance(e, nodes.HardwareId):
            name = e.name
            return lambda c: hardware_id(c, name)
        if isinstance(e, nodes.Unary):
            operand = self.compile(e.operand)
            function = scalar.unary(e.op, dtype_of(e.operand.type))
            return lambda c: function(operand(c))
        if isinstance(e, nodes.Binary):
            return self._binary(e)
        if isinstance(e, nodes.Select):
            return self._select(e)
        if isinstance(e, nodes.Cast):
            operand = self.compile(e.operand)
            function = scalar.cast(dtype_of(e.operand.type), e.type.dtype)
            return lambda c: function(operand(c))
        if isinstance(e, nodes.Bitcast):
            return self._bitcast(e)
        if isinstance(e, nodes.Load):
            return self._load(e)
        if isinstance(e, nodes.Address):
            return self._address(e)
        if isinstance(e, nodes.Call):
            return self._call(e)
        raise unsimulated(f"{type(e).__name__} as a value", getattr(e, "span", None))

    def _const(self, e: nodes.Const) -> Evaluate:
        kind = scalar.value_type(e.type.dtype)
        value = np.full((1, 1), e.value).astype(kind)
        return lambda c: value

    def _var(self, e: nodes.Var) -> Evaluate:
        slot, name, span = self.slot(e), e.name, e.span

        def read(c: Cohort) -> Array:
            if c.unset[slot] is not None:
                lanes = c.is_unset(slot)
                if lanes is not None:
                    c.batch.lane_fault(
                        c, "sim/unwritten-read", f"`{name}` is read before it has a value", span, lanes
                    )  # fmt: skip
            value = c.values[slot]
            return np.zeros((1, 1), scalar.value_type(dtype_of(e.type))) if value is None else value

        return read

    def _binary(self, e: nodes.Binary) -> Evaluate:
        lhs, rhs = self.compile(e.lhs), self.compile(e.rhs)
        dtype = dtype_of(e.lhs.type)
        function = scalar.binary(e.op, dtype)
        if e.op not in ("floordiv", "mod") or dtype.is_float:
            return lambda c: function(lhs(c), rhs(c))
        if isinstance(e.rhs, nodes.Const) and e.rhs.value != 0:
            return lambda c: function(lhs(c), rhs(c))
        span, what = e.span, "//" if e.op == "floordiv" else "%"

        def divide(c: Cohort) -> Array:
            divisor = rhs(c)
            zero = divisor == 0
            if zero.any():
                lanes = c.mask_array() & zero
                if lanes.any():
                    c.batch.lane_fault(
                        c, "sim/division-by-zero", f"integer `{what}` by zero", span, lanes
                    )
            return function(lhs(c), divisor)

        return divide

    def _select(self, e: nodes.Select) -> Evaluate:
        condition, yes, no = (self.compile(x) for x in (e.condition, e.if_true, e.if_false))
        return lambda c: np.where(condition(c), yes(c), no(c))

    def _bitcast(self, e: nodes.Bitcast) -> Evaluate:
        operand = self.compile(e.operand)
        source, target = e.operand.type, e.type
        from_pointer = isinstance(source, nodes.PointerType)
        to_pointer = isinstance(target, nodes.PointerType)
        if from_pointer and to_pointer:
            return operand
        for kind_ in (source, target):
            if isinstance(kind_, nodes.PointerType) and kind_.space == "local":
                raise unsimulated("an address in local memory as a number", e.span)
        if to_pointer:
            return lambda c: operand(c).astype(np.int64)
        if from_pointer:
            kind = scalar.value_type(dtype_of(target))
            return lambda c: operand(c).astype(kind)
        function = scalar.bitcast(dtype_of(source), dtype_of(target))
        return lambda c: function(operand(c))

    # --- memory

    def _address(self, e: nodes.Address) -> Evaluate:
        kind = e.buffer.type
        assert isinstance(kind, nodes.TensorType)
        if kind.space == "tmem":
            return self._tensor_address(e)
        base = np.full((1, 1), self.accesses.base(e.buffer.name), np.int64)
        known = build.as_int(e.offset_bytes)
        offset = None if known is not None else self.compile(build.index(e.offset_bytes))
        start = base if known is None else base + known

        def address(c: Cohort) -> Array:
            return start if offset is None else start + offset(c)

        if kind.space != "shared":
            return address

        def in_cluster(c: Cohort) -> Array:
            inside = address(c)
            return inside if c.batch.geometry.cluster_size == 1 else inside + access.own_window(c)

        return in_cluster

    def _tensor_address(self, e: nodes.Address) -> Evaluate:
        """The buffer's address, which its variable holds, and so many lanes and columns more."""
        slot, offset = self.slot(e.buffer), self.compile(build.index(e.offset_bytes))

        def address(c: Cohort) -> Array:
            start = c.values[slot]
            assert start is not None
            return (start + offset(c)) & 0xFFFF_FFFF

        return address

    def element_address(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> Evaluate:
        """Address of one element of a view in global or shared space."""
        if view.dtype.bits % 8:
            raise unsimulated(f"scalar access to {view.dtype}, which is not whole bytes", view.span)
        offset = build.index_mul(views.element_offset(view, indices), view.dtype.bytes)
        kind = nodes.PointerType(view.space)
        return self._address(nodes.Address(view.buffer, offset, kind, span=view.span))

    def _load(self, e: nodes.Load) -> Evaluate:
        view = e.view
        dtype = view.dtype
        if view.space == "local":
            bits = self.register(view, e.indices, e.span)
            return lambda c: scalar.to_value(bits(c), dtype)
        address = self.element_address(view, e.indices)
        space, name, nbytes = view.space, view.buffer.name, dtype.bytes
        site = self.accesses.site("reads", f"load of {name}", e.span)
        word = WORDS[nbytes]
        check = self._axes(view, e.indices, e.span, *self._addresses(view))

        def read(c: Cohort) -> Array:
            places = address(c)
            check(c, places)
            data = access.load(c, places, nbytes, site, space, name)
            return scalar.to_value(access.words(data, word), dtype)

        return read

    def store(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None
    ) -> Callable[[Cohort, Array], None]:
        """A function that writes the bits of one element of a view."""
        if view.space == "local":
            return self._register_store(view, indices, span)
        address = self.element_address(view, indices)
        space, name = view.space, view.buffer.name
        site = self.accesses.site("writes", f"store to {name}", span)
        self.accesses.will_store(name, space, site)
        check = self._axes(view, indices, span, *self._addresses(view))

        def write(c: Cohort, bits: Array) -> None:
            places = address(c)
            check(c, places)
            access.store(c, places, access.as_bytes(bits), site, space, name)

        return write

    def _addresses(self, view: nodes.View) -> tuple[int, int]:
        """First and last address that an element of the view may have."""
        first, size = self.accesses.extent(view.buffer.name)
        return first, first + size - view.dtype.bytes

    def _axes(
        self,
        view: nodes.View,
        indices: tuple[nodes.Expr, ...],
        span: Span | None,
        first: int,
        last: int,
    ) -> Callable[[Cohort, Array], None]:
        """Reports an index outside its axis, the access's own or one that the view has picked, although
        the place is inside the buffer, ``first`` to ``last``: another element lies there. (Places
        outside are the memory's to report.)"""
        name = view.buffer.name
        shared = view.space == "shared"
        axes = [
            (pick, self.compile(build.index(pick.index)), self.compile(build.index(pick.extent)))
            for pick in (*view.picks, *_own_picks(view, indices))
        ]

        def check(c: Cohort, places: Array) -> None:
            for pick, index, extent in axes:
                at, end = index(c), extent(c)
                outside = (at < 0) | (at > end - pick.count)
                if not outside.any():
                    continue
                offsets = places & OFFSET_MASK if shared else places
                lanes = c.mask_array() & outside & (offsets >= first) & (offsets <= last)
                if lanes.any():
                    found = int(np.broadcast_to(at, lanes.shape)[lanes][0])
                    which = f"index {found}"
                    if pick.count > 1:
                        which = f"part {found} : {found + pick.count}"
                    c.batch.lane_fault(
                        c,
                        "sim/out-of-bounds",
                        f"{which} of axis {pick.axis} of `{name}`, whose extent is "
                        f"{int(end.flat[0])}: another element lies there",
                        span,
                        lanes,
                    )

        return check

    # --- registers

    def unit(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> int | Evaluate:
        """First unit of an element in its register file: a number, or one per lane."""
        if view.dtype.bits % 8:
            raise unsimulated(f"registers of {view.dtype}", view.span)
        per_element = view.dtype.bytes // self.storage.unit_bytes[view.buffer.name]
        offset = build.index_mul(views.element_offset(view, indices), per_element)
        known = build.as_int(offset)
        if known is not None and not view.picks:
            return known
        return self.compile(build.index(offset))

    def register(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None
    ) -> Evaluate:
        """Bits of one element of a register tile."""
        name, nbytes = view.buffer.name, view.dtype.bytes
        unit = self.unit(view, indices)
        if isinstance(unit, int):
            return self.register_reader(name, unit, nbytes, span)
        bounded = self._bounded(view, indices, unit, span)
        touch = self._touch(name)

        def gather(c: Cohort) -> Array:
            units, mask = bounded(c)
            if touch is not None:
                touch(c, np.unique(units), False, span)
            if units.size == 1 and mask is c.mask:
                return read_register(c, name, int(units[0, 0]), nbytes, span)
            bits, missing = c.files[name].gather(units, nbytes, mask)
            report_unwritten(c, name, missing, span)
            return bits

        return gather

    def _register_store(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None
    ) -> Callable[[Cohort, Array], None]:
        name = view.buffer.name
        unit = self.unit(view, indices)
        if isinstance(unit, int):
            return self.register_writer(name, unit, span)
        bounded = self._bounded(view, indices, unit, span)
        touch = self._touch(name)

        def scatter(c: Cohort, bits: Array) -> None:
            units, mask = bounded(c)
            if touch is not None:
                touch(c, np.unique(units), True, span)
            if units.size == 1:
                c.files[name].write(int(units[0, 0]), bits, mask)
            else:
                c.files[name].scatter(units, bits, mask)

        return scatter

    def _touch(
        self, name: str
    ) -> Callable[[Cohort, Array | slice, bool, Span | None], None] | None:
        """Looks whether units of a register tile are in flight when they are read (False) or written; None
        where they never are."""
        wgmma, loads = name in self.storage.of_warpgroups, name in self.storage.of_tensor_loads
        if not wgmma and not loads:
            return None

        def touch(c: Cohort, units: Array | slice, wrote: bool, span: Span | None) -> None:
            if wgmma:
                c.batch.warpgroups.touch(c, name, units, wrote, span)
            if loads:
                c.batch.tensor_loads.touch(c, name, units, wrote, span)

        return touch

    def register_reader(self, name: str, unit: int, nbytes: int, span: Span | None) -> Evaluate:
        """Bits of the register at a unit of a register tile."""
        touch = self._touch(name)
        if touch is None:
            return lambda c: read_register(c, name, unit, nbytes, span)
        units, check = slice(unit, unit + nbytes // self.storage.unit_bytes[name]), touch

        def read(c: Cohort) -> Array:
            check(c, units, False, span)
            return read_register(c, name, unit, nbytes, span)

        return read

    def register_writer(
        self, name: str, unit: int, span: Span | None
    ) -> Callable[[Cohort, Array], None]:
        """Stores bits of their own width at a unit of a register tile."""
        touch = self._touch(name)
        if touch is None:
            return lambda c, bits: c.files[name].write(unit, bits, c.mask)
        unit_bytes, check = self.storage.unit_bytes[name], touch

        def write(c: Cohort, bits: Array) -> None:
            units = slice(unit, unit + bits.dtype.itemsize // unit_bytes)
            check(c, units, True, span)
            c.files[name].write(unit, bits, c.mask)

        return write

    def _bounded(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], unit: Evaluate, span: Span | None
    ) -> Callable[[Cohort], tuple[Array, Mask]]:
        """Units and mask with the lanes outside the buffer reported and left out."""
        name = view.buffer.name
        per_element = view.dtype.bytes // self.storage.unit_bytes[name]
        last = self.storage.units(name) - per_element
        check = self._axes(view, indices, span, 0, last)

        def bounded(c: Cohort) -> tuple[Array, Mask]:
            units = unit(c)
            check(c, units)
            outside = (units < 0) | (units > last)
            if not outside.any():
                return units, c.mask
            lanes = c.mask_array() & outside
            if lanes.any():
                first = int(np.broadcast_to(units, lanes.shape)[lanes][0]) // per_element
                c.batch.lane_fault(
                    c,
                    "sim/out-of-bounds",
                    f"element {first} of register tile `{name}`, which has "
                    f"{last // per_element + 1} elements of type {view.dtype}",
                    span,
                    lanes,
                )
            return np.where(outside, 0, units), c.mask_array() & ~outside

        return bounded

    # --- calls

    def _call(self, e: nodes.Call) -> Evaluate:
        op, span = e.op, e.span
        if op in convergent.SHUFFLES:
            value, amount = (self.compile(arg) for arg in e.args)
            return lambda c: convergent.shuffle(c, op, value(c), amount(c), span)
        if op in convergent.VOTES:
            flag = self.compile(e.args[0])
            return lambda c: convergent.vote(c, op, flag(c), span)
        if op == "cuda.elect_sync":
            return lambda c: convergent.elect(c, span)
        if op == "cuda.generic_address":
            near = self.compile(e.args[0])
            return lambda c: (near(c).astype(np.int64) + SHARED_APERTURE).astype(np.uint64)
        if op == "cuda.map_shared_rank":
            near, rank = (self.compile(arg) for arg in e.args)
            return lambda c: _of_rank(near(c), rank(c))
        arguments = [self.compile(arg) for arg in e.args]
        function = scalar.named(op, dtype_of(e.args[0].type)) if e.args else None
        if function is None:
            raise unsimulated(f"`{op}`", span)
        known = function
        return lambda c: known(*(argument(c) for argument in arguments))


def _own_picks(view: nodes.View, indices: tuple[nodes.Expr, ...]) -> list[nodes.Pick]:
    """The indices of an element, where the frontend could not tell that they are in their axes."""
    return [
        nodes.Pick(index, 1, extent, axis)
        for axis, (index, extent) in enumerate(zip(indices, view.shape))
        if not (isinstance(index, nodes.Const) and isinstance(extent, int))
    ]


def _of_rank(address: Array, rank: Array) -> Array:
    """The shared address with another CTA's rank, uint32."""
    offset = address.astype(np.int64) & OFFSET_MASK
    return (offset | rank.astype(np.int64) << RANK_SHIFT).astype(np.uint32)


def read_register(c: Cohort, name: str, unit: int, nbytes: int, span: Span | None) -> Array:
    """Bits of a register; an unwritten one is reported."""
    bits, missing = c.files[name].read(unit, nbytes, c.mask)
    if missing is not None:
        report_unwritten(c, name, missing, span, unit // (nbytes // c.files[name].unit_bytes))
    return bits


def report_unwritten(
    c: Cohort, name: str, lanes: Mask, span: Span | None, element: int | None = None
) -> None:
    if lanes is None:
        return
    which = f"register {element} of" if element is not None else "a register of"
    c.batch.lane_fault(
        c, "sim/unwritten-read", f"{which} `{name}` is read before it is written", span, lanes, name
    )
