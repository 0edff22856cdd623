"""Register tiles: ``local`` buffers as named C++ scalars.

All accesses of a buffer are seen before any text is kept (``Storage`` is filled by a first, recording
pass). A buffer accessed with numbered slots only becomes named scalars. The container of such a
scalar is as wide as the widest access; a narrower access extracts or inserts bits. When every access
has one type, that type is the container. A buffer that is indexed by a run-time value or whose
address is taken becomes an array in local memory.

Not here: which slots an instruction uses (families), global and shared memory (``memory``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tilejit import dtypes
from tilejit.cuda import cxx
from tilejit.cuda.writer import Writer
from tilejit.dtypes import DType
from tilejit.ir import nodes, views
from tilejit.ir.storage import storage_bytes
from tilejit.layout import MEMORY_AXIS, TileLayout, row_major
from tilejit.tile.family import Register


@dataclass(slots=True)
class Storage:
    """What is known of one local buffer."""

    accesses: set[tuple[int, str]] = field(default_factory=set)
    """(position, dtype whose elements it counts) of every numbered access."""
    addressed: bool = False
    hoisted: bool = False
    """Used where its declaration is not visible: declared at the top of the kernel instead."""
    container: str = ""
    bits: int = 0
    """Width of the container."""
    operand_bits: int = 0
    """Width of the accesses for which an instruction takes the container itself; 0: of none."""
    inserts: bool = False

    def decide(self) -> None:
        """Choose the container from the recorded accesses."""
        types = {cxx.ctype(dtypes.BY_NAME[name]) for _, name in self.accesses}
        widths = {cxx.bits_of(t) for t in types}
        self.container = types.pop() if len(types) == 1 else cxx.unsigned(max(widths, default=32))
        self.bits = cxx.bits_of(self.container)
        self.inserts = any(width < self.bits for width in widths)
        if not self.addressed and self.container in cxx.CONSTRAINT:
            self.operand_bits = self.bits

    def slots(self) -> list[int]:
        """Indices of the containers in use, ascending."""
        return sorted({at * dtypes.BY_NAME[name].bits // self.bits for at, name in self.accesses})


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
        self.storage: defaultdict[str, Storage] = defaultdict(Storage)
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
        if not self.storage[buffer.name].hoisted and not self.recording:
            self.write_declaration(buffer, writer)

    def write_declaration(self, buffer: nodes.Var, writer: Writer) -> None:
        """The scalars or the array of a buffer."""
        assert isinstance(buffer.type, nodes.TensorType)
        storage = self.storage[buffer.name]
        if storage.addressed:
            nbytes = storage_bytes(buffer.type)
            align = max(16, buffer.type.align_bytes)
            writer.line(f"__align__({align}) u8 {self._names[buffer.name]}[{max(nbytes, 1)}];")
            return
        # Inserting keeps the other bits of the container, so these must be something.
        initial = " = 0" if storage.inserts else ""
        names = [f"{self._names[buffer.name]}{i}{initial}" for i in storage.slots()]
        if names:
            writer.line(f"{storage.container} {', '.join(names)};")

    def array(self, buffer: nodes.Var) -> str:
        """Notes that the buffer needs an address; the array's name."""
        storage = self.storage[buffer.name]
        storage.addressed = True
        if self.recording and buffer.name not in self._visible:
            storage.hoisted = True
        return self._names[buffer.name]

    # --- accesses

    def note(self, register: Register) -> None:
        """The recording pass saw an access."""
        name = register.buffer.name
        storage = self.storage[name]
        storage.accesses.add((register.slot, register.dtype.name))
        if name not in self._visible:
            storage.hoisted = True

    def scalars(self, buffer: nodes.Var, dtype: DType) -> tuple[str, str] | None:
        """What the names of a buffer's scalars begin with, and their type, where an instruction can
        take the scalars themselves as registers of ``dtype``: the slot's number ends the name."""
        storage = self.storage[buffer.name]
        if storage.operand_bits != dtype.bits:
            return None
        return self._names[buffer.name], storage.container

    def read(self, register: Register) -> str:
        """The register's value."""
        if self.recording:
            self.note(register)
            return "0"
        storage, ctype = self.storage[register.buffer.name], cxx.ctype(register.dtype)
        if storage.addressed:
            return self._memory(register)
        scalar, shift = self._scalar(register, storage)
        width = cxx.bits_of(ctype)
        if storage.bits == width:
            return cxx.reinterpret(scalar, storage.container, ctype)
        narrow = cxx.unsigned(width)
        part = f"({narrow})({scalar} >> {shift})" if shift else f"({narrow}){scalar}"
        return cxx.reinterpret(part, narrow, ctype)

    def write(self, register: Register, value: str) -> str:
        """A statement that stores ``value`` of the register's type."""
        if self.recording:
            self.note(register)
            return ""
        storage, ctype = self.storage[register.buffer.name], cxx.ctype(register.dtype)
        if storage.addressed:
            return f"{self._memory(register)} = {value};"
        scalar, shift = self._scalar(register, storage)
        width = cxx.bits_of(ctype)
        if storage.bits == width:
            return f"{scalar} = {cxx.reinterpret(value, ctype, storage.container)};"
        whole = (1 << storage.bits) - 1
        keep = whole ^ (((1 << width) - 1) << shift)
        narrow = cxx.reinterpret(value, ctype, cxx.unsigned(width))
        moved = f"({storage.container}){narrow}"
        if shift:
            moved = f"({moved} << {shift})"
        mask = cxx.int_literal(keep, storage.container)
        return f"{scalar} = ({storage.container})(({scalar} & {mask}) | {moved});"

    def _scalar(self, register: Register, storage: Storage) -> tuple[str, int]:
        """The scalar that a register lies in, and its first bit there."""
        index, shift = divmod(register.slot * register.dtype.bits, storage.bits)
        return f"{self._names[register.buffer.name]}{index}", shift

    def _memory(self, register: Register) -> str:
        offset = register.slot * register.dtype.bits // 8
        name = self._names[register.buffer.name]
        return f"(*({cxx.ctype(register.dtype)}*)({name} + {offset}))"
