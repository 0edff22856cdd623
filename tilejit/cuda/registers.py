"""Register tiles: ``local`` buffers as named C++ scalars.

All accesses of a buffer are seen before any text is kept (``Storage`` is filled by a first, recording
pass). A buffer accessed with numbered slots only becomes named scalars. The container of such a
scalar is as wide as the widest access; a narrower access extracts or inserts bits. When every access
has one type, that type is the container. A buffer that is indexed by a run-time value or whose
address is taken becomes an array in local memory.

Not here: which slots an instruction uses (families), global and shared memory (``memory``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tilejit.cuda import cxx
from tilejit.cuda.writer import Writer
from tilejit.dtypes import DType
from tilejit.ir import nodes, views
from tilejit.layout import MEMORY_AXIS, TileLayout, row_major


@dataclass(slots=True)
class Storage:
    """What is known of one local buffer. ``types``: C++ types it is accessed as."""

    types: set[str] = field(default_factory=set)
    spans: set[tuple[int, int]] = field(default_factory=set)
    """(first bit, bits) of every numbered access."""
    addressed: bool = False
    hoisted: bool = False
    """Used where its declaration is not visible: declared at the top of the kernel instead."""
    container: str = ""
    inserts: bool = False

    def decide(self) -> None:
        """Choose the container from the recorded accesses."""
        widest = max((cxx.bits_of(t) for t in self.types), default=32)
        self.container = next(iter(self.types)) if len(self.types) == 1 else cxx.unsigned(widest)
        bits = cxx.bits_of(self.container)
        self.inserts = any(width < bits for _, width in self.spans)

    def slots(self) -> list[int]:
        """Indices of the containers in use, ascending."""
        bits = cxx.bits_of(self.container)
        return sorted({first // bits for first, _ in self.spans})


def storage_elems(type_: nodes.TensorType) -> int:
    """Elements of storage one buffer needs, gaps of its layout included."""
    if type_.layout is not None:
        return type_.layout.span(MEMORY_AXIS)
    return math.prod(d for d in type_.shape if isinstance(d, int))


class Slot(NamedTuple):
    """``width`` bits from bit ``first`` of a buffer's registers, seen as ``ctype``."""

    buffer: nodes.Var
    first: int
    ctype: str
    width: int


_Axes = list[list[tuple[int, int]]]
"""Per dimension: (extent, stride in elements) of its iters, innermost first."""


class Positions:
    """Constant positions in views: ``views.element_offset`` for the common case, without building
    an expression. Kernels index register tiles by numbers thousands of times."""

    def __init__(self) -> None:
        self._views: dict[int, tuple[int, _Axes] | None] = {}
        self._kept: list[nodes.View] = []

    def constant(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> int | None:
        """The element's position when indices and view are constant; None when that takes more."""
        key = id(view)
        if key not in self._views:
            self._kept.append(view)  # so that no other view ever has this id
            self._views[key] = _linear(view)
        found = self._views[key]
        if found is None:
            return None
        total, axes = found
        for index, iters in zip(indices, axes):
            if not isinstance(index, nodes.Const):
                return None
            rest = int(index.value)
            for extent, stride in iters:
                rest, digit = divmod(rest, extent)
                total += digit * stride
        return total


def _linear(view: nodes.View) -> tuple[int, _Axes] | None:
    layout, shape = view.layout, view.shape
    if layout is None:
        layout = row_major(tuple(e for e in shape if isinstance(e, int)))
    if not isinstance(layout, TileLayout) or view.dynamic_strides:
        return None
    if not isinstance(view.offset_elems, nodes.Const):
        return None
    groups = views.dimension_iters(layout, shape)
    if any(i.axis != MEMORY_AXIS and i.extent > 1 for iters in groups for i in iters):
        return None
    start = int(view.offset_elems.value) + dict(layout.offset).get(MEMORY_AXIS, 0)
    axes = [
        [(i.extent, i.stride if i.axis == MEMORY_AXIS else 0) for i in reversed(iters)]
        for iters in groups
    ]
    return start, axes


class Registers:
    """The local buffers of a kernel. While ``recording``, accesses are noted; texts are void."""

    def __init__(self) -> None:
        self.recording = True
        self.storage: dict[str, Storage] = {}
        self.positions = Positions()
        self._visible: set[str] = set()
        self._scopes: list[list[str]] = [[]]
        """Buffers declared in each open block."""
        self._names: dict[str, str] = {}

    def decide(self) -> None:
        """End of the recording pass."""
        self.recording = False
        for storage in self.storage.values():
            storage.decide()

    # --- declarations

    def enter(self) -> None:
        """A block opens."""
        self._scopes.append([])

    def leave(self) -> None:
        """The innermost block closes, and what it declared is no longer visible."""
        self._visible.difference_update(self._scopes.pop())

    def name(self, buffer: nodes.Var, base: str) -> None:
        """Announces a buffer and the stem of its scalars' names (an identifier ending with ``_``)."""
        self._names[buffer.name] = base

    def declare(self, buffer: nodes.Var, writer: Writer) -> None:
        """The buffer's ``AllocTensor`` statement."""
        self._visible.add(buffer.name)
        self._scopes[-1].append(buffer.name)
        if self.recording:
            self.storage.setdefault(buffer.name, Storage())
        elif not self.storage[buffer.name].hoisted:
            self.write_declaration(buffer, writer)

    def write_declaration(self, buffer: nodes.Var, writer: Writer) -> None:
        """The scalars or the array of a buffer."""
        assert isinstance(buffer.type, nodes.TensorType)
        storage = self.storage[buffer.name]
        if storage.addressed:
            nbytes = -(-storage_elems(buffer.type) * buffer.type.dtype.bits // 8)
            align = max(16, buffer.type.align_bytes)
            writer.line(f"__align__({align}) u8 {self._names[buffer.name]}[{max(nbytes, 1)}];")
            return
        # Inserting keeps the other bits of the container, so these must be something.
        initial = " = 0" if storage.inserts else ""
        names = [f"{self._names[buffer.name]}{i}{initial}" for i in storage.slots()]
        if names:
            writer.line(f"{storage.container} {', '.join(names)};")

    def is_array(self, buffer: nodes.Var) -> bool:
        return self.storage[buffer.name].addressed

    def array(self, buffer: nodes.Var) -> str:
        """Notes that the buffer needs an address; the array's name."""
        self._note(buffer).addressed = True
        return self._names[buffer.name]

    # --- accesses

    def _note(self, buffer: nodes.Var) -> Storage:
        storage = self.storage.get(buffer.name)
        if storage is None:
            storage = self.storage[buffer.name] = Storage()
        if self.recording and buffer.name not in self._visible:
            storage.hoisted = True
        return storage

    def touch(self, slot: Slot) -> Storage:
        """The storage of a slot; in the recording pass the access is noted."""
        if not self.recording:
            return self.storage[slot.buffer.name]
        storage = self._note(slot.buffer)
        storage.types.add(slot.ctype)
        storage.spans.add((slot.first, slot.width))
        return storage

    def container(self, slot: Slot) -> tuple[str, str] | None:
        """Scalar and its type when the slot fills its container, whatever its type."""
        storage = self.touch(slot)
        if self.recording or storage.addressed or cxx.bits_of(storage.container) != slot.width:
            return None
        return self._scalar(slot, storage), storage.container

    def read(self, slot: Slot) -> str:
        """The slot's value."""
        storage = self.touch(slot)
        if self.recording:
            return "0"
        if storage.addressed:
            return self._memory(slot)
        scalar, bits = self._scalar(slot, storage), cxx.bits_of(storage.container)
        if bits == slot.width:
            return cxx.reinterpret(scalar, storage.container, slot.ctype)
        shift = slot.first % bits
        narrow = cxx.unsigned(slot.width)
        part = f"({narrow})({scalar} >> {shift})" if shift else f"({narrow}){scalar}"
        return cxx.reinterpret(part, narrow, slot.ctype)

    def write(self, slot: Slot, value: str) -> str:
        """A statement that stores ``value`` of the slot's type."""
        storage = self.touch(slot)
        if self.recording:
            return ""
        if storage.addressed:
            return f"{self._memory(slot)} = {value};"
        scalar, bits = self._scalar(slot, storage), cxx.bits_of(storage.container)
        if bits == slot.width:
            return f"{scalar} = {cxx.reinterpret(value, slot.ctype, storage.container)};"
        shift = slot.first % bits
        whole = (1 << bits) - 1
        keep = whole ^ (((1 << slot.width) - 1) << shift)
        narrow = cxx.reinterpret(value, slot.ctype, cxx.unsigned(slot.width))
        moved = f"({storage.container}){narrow}"
        if shift:
            moved = f"({moved} << {shift})"
        mask = cxx.int_literal(keep, storage.container)
        return f"{scalar} = ({storage.container})(({scalar} & {mask}) | {moved});"

    def _scalar(self, slot: Slot, storage: Storage) -> str:
        index = slot.first // cxx.bits_of(storage.container)
        return f"{self._names[slot.buffer.name]}{index}"

    def _memory(self, slot: Slot) -> str:
        offset = slot.first // 8
        return f"(*({slot.ctype}*)({self._names[slot.buffer.name]} + {offset}))"


def slot_of(buffer: nodes.Var, position: int, dtype: DType) -> Slot:
    """Element ``position``, counted in elements of ``dtype``."""
    name = cxx.ctype(dtype)
    return Slot(buffer, position * dtype.bits, name, cxx.bits_of(name))
