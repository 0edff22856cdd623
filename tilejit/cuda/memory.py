"""Scalar accesses and addresses: global parameters, the shared arena, local buffers.

Global buffers are byte pointers; an address handed to inline assembly is its 64-bit integer. Shared
buffers lie at fixed offsets of one dynamically sized array; their addresses are 32-bit. A buffer in
tensor memory is a variable with its address. Local buffers are registers (``registers``) unless something
needs their address.

Not here: tile instructions' addresses (families make them of ``Address``).
"""

from __future__ import annotations

from tilejit.cuda import cxx, ranges
from tilejit.cuda.ranges import Interval
from tilejit.cuda.registers import Registers
from tilejit.cuda.scalars import Piece, Scalars, unsupported
from tilejit.errors import Span
from tilejit.ir import nodes, views
from tilejit.ir.storage import SHARED_ALIGN_BYTES, shared_offset, storage_bytes
from tilejit.tile.family import Register

ARENA = "tj_smem"
ARENA_ADDRESS = "tj_smem32"


class Memory:
    """Places of buffers."""

    def __init__(self, scalars: Scalars, registers: Registers):
        self.scalars = scalars
        self.registers = registers
        self.shared_bytes = 0
        self.arena_address_used = False
        self.written: set[str] = set()
        """Global buffers that something in the kernel writes."""
        self._offsets: dict[str, int] = {}

    def allocate_shared(self, buffer: nodes.Var) -> None:
        """Gives a shared buffer its place; the same buffer always the same one."""
        if buffer.name in self._offsets:
            return
        assert isinstance(buffer.type, nodes.TensorType)
        offset = shared_offset(self.shared_bytes, buffer.type)
        self._offsets[buffer.name] = offset
        self.shared_bytes = offset + storage_bytes(buffer.type)

    # --- addresses

    def address(self, e: nodes.Address) -> Piece:
        """An address in a buffer, as an integer of the space's width."""
        return Piece(self.address_text(e.buffer, e.offset_bytes))

    def address_text(self, buffer: nodes.Var, offset_bytes: nodes.Expr) -> str:
        offset = self.scalars.piece(offset_bytes)
        constant = None if offset.interval is None else offset.interval.value
        space = _space(buffer)
        if space == "shared":
            self.arena_address_used = True
            start = self._offsets[buffer.name]
            if constant is not None:
                return f"({ARENA_ADDRESS} + {start + constant}u)"
            moved = f" + {start}u" if start else ""
            return f"({ARENA_ADDRESS}{moved} + (u32){offset.text})"
        if space == "tmem":
            name = self.scalars.names[buffer.name]
            if constant is not None:
                return f"({name} + {constant & 0xFFFFFFFF}u)" if constant else name
            return f"({name} + (u32){offset.text})"
        if space == "global":
            base = f"(u64){self.scalars.names[buffer.name]}"
        else:
            base = f"(u64)__cvta_generic_to_local({self.registers.array(buffer)})"
        return base if constant == 0 else f"({base} + (u64){offset.text})"

    # --- single elements

    def register(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> Register | None:
        """The register of a local element, or None where it lies in memory."""
        if view.space != "local":
            return None
        position = self.registers.positions.constant(view, indices)
        if position is None:
            position = self.scalars.value(views.element_offset(view, indices))
        if position is None:
            self.registers.array(view.buffer)
            return None
        return Register(view.buffer, position, view.dtype)

    def load(self, e: nodes.Load) -> Piece:
        """One element's value."""
        dtype = e.view.dtype
        interval = None if dtype.is_float else ranges.full(dtype)
        register = self.register(e.view, e.indices)
        if register is not None:
            return Piece(self.registers.read(register), interval)
        place = self._place(e.view, e.indices, e.span, const=True)
        if dtype.kind == "bool":
            return Piece(f"({place} != 0)", Interval(0, 1))
        return Piece(place, interval)

    def store(
        self,
        view: nodes.View,
        indices: tuple[nodes.Expr, ...],
        value: str,
        span: Span | None = None,
    ) -> str:
        """A statement that stores ``value``, which has the view's type."""
        register = self.register(view, indices)
        if register is not None:
            return self.registers.write(register, value)
        self.written.add(view.buffer.name)
        return f"{self._place(view, indices, span, const=False)} = {value};"

    def _place(
        self, view: nodes.View, indices: tuple[nodes.Expr, ...], span: Span | None, const: bool
    ) -> str:
        if view.dtype.bits % 8:
            raise unsupported(f"a scalar access to packed {view.dtype}", span)
        offset = self._byte_offset(view, indices)
        name = cxx.ctype(view.dtype) if view.dtype.kind != "bool" else "u8"
        space = view.space
        if space == "global":
            base = self.scalars.names[view.buffer.name]
        elif space == "shared":
            base = f"{ARENA} + {self._offsets[view.buffer.name]}"
        elif space == "local":
            base = self.registers.array(view.buffer)
            const = False
        else:
            raise unsupported(f"a scalar access to {space} memory", span)
        qualifier = "const " if const else ""
        return f"(*({qualifier}{name}*)({base}{offset}))"

    def _byte_offset(self, view: nodes.View, indices: tuple[nodes.Expr, ...]) -> str:
        offset = self.scalars.piece(views.element_offset(view, indices))
        size = view.dtype.bytes
        if offset.interval is not None and offset.interval.value is not None:
            total = offset.interval.value * size
            return f" + {cxx.int_literal(total, 'i64')}" if total else ""
        return f" + {offset.text}" if size == 1 else f" + {offset.text} * {size}"

    def declare_arena(self) -> list[str]:
        """The file-level declaration of shared memory."""
        if not self.shared_bytes:
            return []
        return [f"extern __shared__ __align__({SHARED_ALIGN_BYTES}) u8 {ARENA}[];"]

    def arena_address(self) -> list[str]:
        """The kernel-level variable with the arena's 32-bit address."""
        if not self.arena_address_used:
            return []
        return [f"const u32 {ARENA_ADDRESS} = (u32)__cvta_generic_to_shared({ARENA});"]

    def note_written(self, expr: nodes.Expr) -> None:
        """Remembers the buffers that an address expression may point into."""
        if isinstance(expr, nodes.Address):
            self.written.add(expr.buffer.name)
        elif isinstance(expr, nodes.Select):
            self.note_written(expr.if_true)
            self.note_written(expr.if_false)
        elif isinstance(expr, (nodes.Bitcast, nodes.Cast)):
            self.note_written(expr.operand)


def _space(buffer: nodes.Var) -> str:
    assert isinstance(buffer.type, nodes.TensorType)
    return buffer.type.space
