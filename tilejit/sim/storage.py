"""What a function allocates, found in one walk: shared buffers, register tiles and their widths.

Not here: where buffers are placed (``memory``), what they hold (``registers``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilejit.dtypes import DType, container
from tilejit.ir import nodes
from tilejit.ir.storage import storage_bytes
from tilejit.ir.walk import children, statements
from tilejit.tile.family import Issue, Let, Memory, Register, Registers, ScalarApply, Step

TILE_CALLS = ("tile.apply", "tile.ewise", "ptx")
WIDEST_UNIT_BYTES = 8


class Checked(Protocol):
    """What the simulator needs of ``tile.checker.Checked``."""

    @property
    def function(self) -> nodes.Function: ...

    def steps(self, call: nodes.Call) -> tuple[Step, ...]: ...


@dataclass(slots=True)
class Storage:
    """``shared``: (name, bytes, alignment in bytes, dtype) in program order. ``local_bytes`` and
    ``unit_bytes`` by register tile: its size and the narrowest width it is accessed in."""

    shared: list[tuple[str, int, int, DType]] = field(default_factory=list)
    local_bytes: dict[str, int] = field(default_factory=dict)
    unit_bytes: dict[str, int] = field(default_factory=dict)
    of_warpgroups: set[str] = field(default_factory=set)
    """Register tiles that wgmma uses."""
    of_tensor_loads: set[str] = field(default_factory=set)
    """Register tiles that loads from tensor memory write."""

    def accessed(self, name: str, dtype: DType) -> None:
        if name in self.unit_bytes:
            self.unit_bytes[name] = min(self.unit_bytes[name], max(1, dtype.bits // 8))

    def units(self, name: str) -> int:
        """Number of units of a register tile."""
        return -(-self.local_bytes[name] // self.unit_bytes[name])


def find_storage(checked: Checked) -> Storage:
    """All allocations of the function."""
    found = Storage()
    for s in statements(checked.function.body):
        if isinstance(s, nodes.AllocTensor):
            _add(found, s.buffer)
    for node in _distinct(checked.function.body):
        if isinstance(node, nodes.View):
            found.accessed(node.buffer.name, node.dtype)
        elif isinstance(node, nodes.Call) and node.op in TILE_CALLS:
            steps = checked.steps(node)
            for step in steps:
                warpgroups = isinstance(step, Issue) and step.form.family == "wgmma"
                loads = isinstance(step, Issue) and step.form.spelling.startswith("tcgen05.ld.")
                for register in _registers(step):
                    found.accessed(register.buffer.name, register.dtype)
                    if warpgroups:
                        found.of_warpgroups.add(register.buffer.name)
                    if loads:
                        found.of_tensor_loads.add(register.buffer.name)
            for name, dtype in _addressed(steps):
                found.accessed(name, dtype)
    return found


def _add(found: Storage, buffer: nodes.Var) -> None:
    kind = buffer.type
    assert isinstance(kind, nodes.TensorType)
    nbytes = storage_bytes(kind)
    if kind.space == "shared":
        if all(name != buffer.name for name, *_ in found.shared):
            found.shared.append((buffer.name, nbytes, kind.align_bytes, kind.dtype))
    elif kind.space == "local":
        found.local_bytes[buffer.name] = nbytes
        found.unit_bytes[buffer.name] = WIDEST_UNIT_BYTES
        found.accessed(buffer.name, kind.dtype)


def _distinct(block: nodes.Block) -> Iterator[Any]:
    """Every node once, however often it is shared."""
    seen: set[int] = set()
    stack: list[Any] = list(block)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if not isinstance(node, (nodes.Const, nodes.Var, nodes.HardwareId)):
            stack.extend(children(node))


def _registers(step: Step) -> list[Register]:
    items: list[Any] = []
    if isinstance(step, Issue):
        for operand in step.operands:
            if isinstance(operand, Registers):
                items += operand.items
    elif isinstance(step, ScalarApply):
        items = [step.dst, *step.inputs]
    return [item for item in items if isinstance(item, Register)]


def _addressed(steps: Sequence[Step]) -> Iterator[tuple[str, DType]]:
    """Buffers that the steps address as local memory, with the width of the access."""
    bases = {s.var.name: s.value for s in steps if isinstance(s, Let) and s.value is not None}
    for step in steps:
        if not isinstance(step, Issue):
            continue
        for spec, operand in zip(step.form.operands, step.operands):
            if not isinstance(operand, Memory) or operand.space != "local":
                continue
            base = operand.base
            if isinstance(base, nodes.Var):
                base = bases.get(base.name, base)
            if isinstance(base, nodes.Address) and spec.bits in (8, 16, 32, 64):
                yield base.buffer.name, container(spec.bits)
