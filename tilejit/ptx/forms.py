"""What a row of the PTX table is, and how operands are described.

A *form* is one exact opcode spelling with one operand list. One spelling may have several forms
(``max.f32`` with two or three inputs); the operand count selects among them. The checker, the
emitter, the simulator, the docs and the tests read the same rows; no opcode that is not here ever
reaches the assembler.

Not here: the rows (``ptx.tables``), looking spellings up (``ptx.spelling``), contracts (families).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["r", "w", "rw"]
OperandKind = Literal["reg", "addr", "imm", "pred", "map"]
"""``reg``: ``lanes`` registers, in braces when ``braces``. ``addr``: ``[address+imm]`` in
``space``. ``imm``: an integer literal. ``pred``: a predicate register (a bool value). ``map``:
``[address, {registers}]``, a tensor map and ``lanes`` coordinates, the innermost first."""

Effect = Literal[
    "reads_memory", "writes_memory", "barrier", "convergent", "async", "volatile"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """``type`` is the PTX type after the dot: ``b32``, ``f32``, ``s64``, ``f16x2``, ``pred``….

    ``.bN`` accepts any dtype of that width; concrete types exactly one dtype; f16x2 and bf16x2 are
    uint32, f32x2 uint64, f16 and bf16 uint16 containers (the matching float dtype is accepted for
    f16/bf16); sub-word b8/u8/s8 use 8-bit storage in a 16-bit register. ``sinkable``: ``_`` may
    stand for a register; ``sink_only``: it must. ``joined``: written ``before|this`` with the operand
    before it. ``values``: what an immediate, or a literal in place of a register, may be; None: any
    integer.
    """

    name: str
    direction: Direction
    kind: OperandKind
    type: str = "b32"
    lanes: int = 1
    braces: bool = False
    space: str = ""
    optional: bool = False
    sinkable: bool = False
    sink_only: bool = False
    joined: bool = False
    values: range | tuple[int, ...] | None = None

    @property
    def bits(self) -> int:
        """Width of one register or memory element."""
        return TYPE_BITS[self.type]


TYPE_BITS: dict[str, int] = {
    **{f"{k}{n}": n for k in "bsu" for n in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "tf32": 32,
    "f16x2": 32, "bf16x2": 32, "f32x2": 64, "u16x2": 32, "s16x2": 32,
    "e4m3x2": 16, "e5m2x2": 16, "e2m3x2": 16, "e3m2x2": 16, "ue8m0x2": 16, "e2m1x2": 8,
    "pred": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """One assembled instruction form.

    ``spelling`` is the exact opcode; ``family`` the module in ``families`` that owns it;
    ``operands`` in PTX order (destinations first); ``min_target`` such as ``sm_80``, ``sm_90a`` or
    ``sm_100f`` ('a': that target only; 'f': that family), alternatives separated by ``|``;
    ``tile`` False: a raw ``T.ptx`` call only, no ``apply``.
    """

    spelling: str
    family: str
    operands: tuple[OperandSpec, ...]
    min_target: str = "sm_75"
    effects: tuple[Effect, ...] = ()
    tile: bool = True

    @property
    def mnemonic(self) -> str:
        return self.spelling.split(".", 1)[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.spelling.split(".")[1:])
