"""The protocol of an instruction family, and what passes between its parts.

``check`` and ``bind`` speak tile coordinates (the contract's page). ``bind`` alone turns them into
native operands: a list of *steps*, mostly ``Issue``s. The emitter prints steps, the simulator
executes steps, so the two cannot disagree on addresses or order. ``execute`` speaks PTX: it sees a
form, registers, addresses and bits through ``Machine``, never a region.

Not here: how regions become addresses (``tile.region``, ``tile.walk``), who is active (``tile.groups``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.dtypes import DType
from tilejit.errors import Report, Span
from tilejit.ir.nodes import Expr, LambdaExpr, PointerType, ScalarType, Space, Var
from tilejit.ptx.forms import Form

if TYPE_CHECKING:
    from tilejit.tile.addresses import Providers
    from tilejit.tile.call import TileCall

BitArray: TypeAlias = npt.NDArray[np.generic]
"""Unsigned integers, one per (warp row, lane): shape ``(warps, 32)`` or broadcastable to it."""


# --- steps: what bind yields


@dataclass(frozen=True, slots=True)
class Register:
    """Storage element ``slot`` (counted in elements of ``dtype``) of a ``local`` buffer.

    ``dtype`` may differ from the buffer's: then ``slot`` counts in that dtype's width, bits
    reinterpreted. The slot is one number for all threads: registers are named.
    """

    buffer: Var
    slot: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Value:
    """A read-only scalar input, evaluated by each thread."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class Variable:
    """A scalar variable as the destination of a raw instruction."""

    var: Var


@dataclass(frozen=True, slots=True)
class Element:
    """A runtime-indexed element of a buffer as the destination of a raw instruction."""

    load: Expr


@dataclass(frozen=True, slots=True)
class Registers:
    """The registers of one operand, in the instruction's order (one, or a brace group)."""

    items: tuple[Register | Value | Variable | Element | None, ...]
    """None is the sink ``_``."""


@dataclass(frozen=True, slots=True)
class Memory:
    """``[base + offset_bytes]``. ``base`` has PointerType: an ``Address``, a ``Var`` or a cast."""

    base: Expr
    offset_bytes: int
    space: Space


@dataclass(frozen=True, slots=True)
class Immediate:
    value: int


NativeOperand: TypeAlias = Registers | Memory | Immediate


@dataclass(frozen=True, slots=True)
class Issue:
    """One native instruction. ``operands`` matches ``form.operands`` (optional ones may be absent
    only at the end). ``repeat`` is the repeat coordinate, for messages."""

    form: Form
    operands: tuple[NativeOperand, ...]
    pred: Expr | None = None
    preserve_dst: bool = False
    repeat: tuple[int, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Let:
    """Evaluates ``value`` once into the immutable ``var``, for the following steps."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class ScalarApply:
    """``dst = function(*inputs)`` on registers: one ``ewise`` element."""

    function: LambdaExpr
    dst: Register
    inputs: tuple[Register | Value, ...]
    repeat: tuple[int, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)


Step: TypeAlias = Issue | Let | ScalarApply


# --- what a family may ask of the simulated machine


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """Lanes that access memory at each other's addresses: lane ``l`` at the address that lane
    ``lanes[l]`` gives, ``offset_bytes[l]`` further. Shape (32,)."""

    lanes: npt.NDArray[np.int64]
    offset_bytes: npt.NDArray[np.int64]


class Machine(Protocol):
    """One instruction, a set of warps, 32 lanes each. Inactive lanes are handled by the machine:
    a family computes on whole arrays, writes and stores only take effect where active."""

    def read(self, operand: NativeOperand) -> list[BitArray]:
        """The bits of each register (unsigned container of its width), immediate or value."""

    def write(self, operand: NativeOperand, bits: list[BitArray]) -> None: ...

    def load(
        self,
        operand: NativeOperand,
        nbytes: int,
        lanes: npt.NDArray[np.bool_] | None = None,
        at: Elsewhere | None = None,
    ) -> npt.NDArray[np.uint8]:
        """``nbytes`` consecutive bytes per lane: shape (warps, 32, nbytes). Checks bounds, alignment
        to ``nbytes``, races and unwritten reads. ``lanes``, shape (32,): the only ones that access.
        ``at``: where each does, if not at its own address."""

    def store(
        self,
        operand: NativeOperand,
        data: npt.NDArray[np.uint8],
        lanes: npt.NDArray[np.bool_] | None = None,
        at: Elsewhere | None = None,
    ) -> None: ...

    def check_aligned(
        self, operand: NativeOperand, nbytes: int, lanes: npt.NDArray[np.bool_]
    ) -> None:
        """Checks that the addresses of ``lanes``, shape (32,), are multiples of ``nbytes``: for
        instructions whose accesses are narrower than the alignment they need."""

    def active(self) -> npt.NDArray[np.bool_]:
        """The lanes that execute the instruction: shape (warps, 32)."""

    def atomic(
        self,
        operand: NativeOperand,
        nbytes: int,
        update: Callable[[tuple[int, int], npt.NDArray[np.uint8]], npt.NDArray[np.uint8]],
    ) -> npt.NDArray[np.uint8]:
        """One atomic read-modify-write per active lane, one lane after another.

        ``update((warp, lane), old)`` gives the new bytes; both have shape (nbytes,). Returns the
        old bytes: shape (warps, 32, nbytes). Checks bounds and alignment to ``nbytes``."""

    def copy_async(
        self, dst: NativeOperand, src: NativeOperand, nbytes: int, kept: BitArray
    ) -> None:
        """One asynchronous copy per active lane, part of the lane's open group: the first ``kept``
        bytes of ``src``, then zeros, ``nbytes`` in all. The bytes move between now and the wait that
        covers the group; each lane's are checked as ``load`` and ``store`` check."""

    def commit_group(self) -> None:
        """The copies of each active lane's open group become its latest group."""

    def wait_group(self, pending: int | None) -> None:
        """Each active lane waits for all but its ``pending`` latest groups; None: for every copy,
        those in the open group too."""

    def unsimulated(self, what: str) -> Any:
        """Raises ``Unsimulated``: a gap of the simulator, not a fault of the program."""


# --- parameters and the family itself


@dataclass(frozen=True, slots=True)
class Param:
    """A keyword a family accepts. ``kind`` static: a compile-time value; runtime: an expression."""

    name: str
    kind: Literal["static", "runtime"]
    type: str
    default: Any
    doc: str
    required: bool = False


PRED = Param(
    "pred", "runtime", "bool", None, "Execute the instruction when true; None is unconditional."
)
PRESERVE_DST = Param(
    "preserve_dst", "static", "bool", False,
    "With pred: keep the initialised destination where pred is false.",
)  # fmt: skip


CACHE_POLICY = Param(
    "cache_policy", "runtime", "uint64", None,
    "The cache-policy operand of .L2::cache_hint forms, from createpolicy.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One instruction family. ``name`` is the stem of its module, table, tests and contract page."""

    name: str
    params: tuple[Param, ...]
    check: Callable[[TileCall, Report], None]
    """Legality: appends every fault. Called with well-formed operand lists only."""
    bind: Callable[[TileCall], list[Step]]
    """Native steps of a checked call."""
    execute: Callable[[Issue, Machine], None]
    """What the hardware does, from the PTX ISA."""
    simulated: str
    """What of ``execute`` is modelled, in words for the evidence page: ``yes``, ``no``, ``all but …``."""
    contract: str
    """Anchor of the contract page, e.g. ``docs/contract/ld_st.md``."""
    providers: Callable[[Form], Providers | None] = lambda form: None
    """Which lanes give an instruction's addresses; None: each lane its own."""


FamilyIndex: TypeAlias = dict[str, Family]

# Types a scalar operand may have, re-exported for families' signatures.
ScalarOperandType: TypeAlias = ScalarType | PointerType
