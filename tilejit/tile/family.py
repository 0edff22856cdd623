"""The protocol of an instruction family, and what passes between its parts.

``check`` and ``bind`` speak tile coordinates (the contract's page). ``bind`` alone turns them into
native operands: a list of *steps*, mostly ``Issue``s. The emitter prints steps, the simulator
executes steps, so the two cannot disagree on addresses or order. ``execute`` speaks PTX: it sees a
form, registers, addresses and bits through ``Machine``, never a region.

Not here: how regions become addresses (``tile.region``, ``tile.walk``), who is active (``tile.groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.dtypes import DType
from tilejit.errors import Report, Span
from tilejit.ir.nodes import Expr, LambdaExpr, PointerType, ScalarType, Space, Var
from tilejit.ir.tensor_map import TensorMap, TensorMapSpec
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


@dataclass(frozen=True, slots=True)
class TensorBox:
    """``[map, {coordinates}]``: a tensor map and where in its tensor a box lies, innermost first (a
    gather or scatter: a column and four rows). ``map``: one that the launch encodes, or the address of
    one that the caller did."""

    map: TensorMapSpec | Expr
    coords: tuple[Expr, ...]


NativeOperand: TypeAlias = Registers | Memory | Immediate | TensorBox


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
    """Evaluates ``value`` once into the immutable ``var``, for the following steps. None: ``var`` is
    the result (a ``Variable``) of the instruction that follows."""

    var: Var
    value: Expr | None


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


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Equal pieces of memory that a transfer reads or writes, in one order on both sides.

    ``operand`` names the side in messages. ``addresses``, int64 of shape (n,): bytes in the space;
    shared ones are *cluster addresses*, the offset in the CTA's window plus the CTA's rank in its
    cluster times ``CTA_WINDOW_BYTES``."""

    operand: NativeOperand
    space: Literal["global", "shared"]
    addresses: npt.NDArray[np.int64]
    nbytes: int


CTA_WINDOW_BYTES = 1 << 24
"""Distance between the shared windows of neighbouring CTAs of a cluster in cluster addresses."""
NO_SOURCE = -1
"""A source address: the chunk becomes ``Transfer.fill``."""

Combine: TypeAlias = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]
"""(old bytes, new bytes) -> result, all of shape (n, nbytes)."""


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """One asynchronous copy by one thread to one CTA or to global memory.

    ``fill``: shape (nbytes,), what chunks without a source become. ``combine``: the reduction at the
    destination, one atomic step per chunk; None copies. ``barrier``: cluster address of the mbarrier
    whose transaction count goes down by ``tx_bytes`` when the bytes are there; None: the copy belongs
    to the thread's open bulk group. ``proxy``: whose accesses they are; ``generic`` ones need no
    proxy fence after ordinary writes. ``convert``: what is done to the bytes of chunks on their way."""

    dst: Chunks
    src: Chunks
    fill: npt.NDArray[np.uint8] | None
    combine: Combine | None
    barrier: int | None
    tx_bytes: int
    proxy: Literal["async", "generic"] = "async"
    convert: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WarpCells:
    """Cells that a warp's lanes load or store, relative to the instruction's address: ``lanes`` and
    ``columns``, shape (32, n). ``mask``: the bits of a cell that are loaded or stored."""

    lanes: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    mask: int = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class TensorCells:
    """Cells of the tensor memory of the CTA with rank ``cta`` in its cluster: ``lanes`` and ``columns``,
    absolute, both of shape (n,). ``mask``: which bits of each, one for all or shape (n,). ``operand``
    names them in messages."""

    operand: NativeOperand
    cta: int
    lanes: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    mask: int | npt.NDArray[np.uint32] = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class SharedBlocks:
    """16 bytes at each of ``addresses``, shape (n,), offsets in the shared window of the CTA with rank
    ``cta`` in its cluster. ``operand`` names them in messages."""

    operand: NativeOperand
    cta: int
    addresses: npt.NDArray[np.int64]


TensorSource: TypeAlias = TensorCells | SharedBlocks


@dataclass(frozen=True, slots=True, eq=False)
class TensorOperation:
    """One tcgen05.mma, cp or shift by one thread.

    ``kind``, ``pair`` and ``pipe`` say which other operations of the thread it runs in order with
    (``sim.tensor_order``). ``pipe``: accumulator, shape and kind of an mma, the shape of a cp. ``run``
    gets what each source holds, cells as uint32 of shape (n,) and blocks as uint8 of shape (n, 16), and
    gives the uint32 cells of every destination."""

    kind: Literal["mma", "cp", "shift"]
    pair: bool
    pipe: Hashable
    sources: tuple[TensorSource, ...]
    destinations: tuple[TensorCells, ...]
    run: Callable[[list[npt.NDArray[Any]]], list[npt.NDArray[np.uint32]]]


class Machine(Protocol):
    """One instruction, a set of warps, 32 lanes each. Inactive lanes are handled by the machine:
    a family computes on whole arrays, writes and stores only take effect where active."""

    def read(
        self, operand: NativeOperand, warps: npt.NDArray[np.bool_] | None = None
    ) -> list[BitArray]:
        """The bits of each register (unsigned container of its width), immediate or value. ``warps``,
        shape (warps,): the only ones that read registers; what the others get is undefined."""

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

    # Who executes, and where operands point: for instructions that one thread issues for many bytes.

    def threads(self) -> list[tuple[int, int]]:
        """(warp row, lane) of every active lane, in order."""

    def address(self, operand: Memory) -> npt.NDArray[np.int64]:
        """The address of each lane, ``offset_bytes`` included: shape (warps, 32)."""

    def cluster_rank(self) -> npt.NDArray[np.int64]:
        """Rank of each warp's CTA in its cluster: shape (warps, 1)."""

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster; 1 in a launch without clusters."""

    def tensor_map(self, operand: TensorBox, thread: tuple[int, int]) -> TensorMap | None:
        """The tensor map that the operand means for ``thread``, in numbers; its coordinates are what
        ``read`` gives. None, with a fault reported, where there is none."""

    # Bulk copies and the asynchronous proxy.

    def transfer(self, thread: tuple[int, int], transfer: Transfer) -> None:
        """Issues the transfer for one of ``threads()``. Its bytes move some time between now and its
        completion; bounds, alignment to the largest power of two in ``nbytes`` (at most 16), races and
        proxy fences are checked now."""

    def commit_bulk(self) -> None:
        """The transfers of each active lane's open bulk group become its latest group."""

    def wait_bulk(self, pending: int, read: bool) -> None:
        """Each active lane waits for all but its ``pending`` latest bulk groups; ``read``: only until
        their sources have been read."""

    def proxy_fence(self, space: Literal["", "global", "shared::cta", "shared::cluster"]) -> None:
        """fence.proxy.async: what each active lane did or knows of in ``space`` ("": everywhere) is
        visible to the asynchronous proxy."""

    def publish_barriers(self) -> None:
        """fence.mbarrier_init: the mbarriers that the active lanes initialised are there for every
        thread of the cluster that synchronises with them in any way."""

    # Memory barrier objects, 8 bytes in shared memory at each lane's address.

    def mbarrier_init(self, operand: NativeOperand, count: BitArray) -> None:
        """``count`` arrivals complete a phase."""

    def mbarrier_inval(self, operand: NativeOperand) -> None:
        """The object is memory again."""

    def mbarrier_arrive(
        self,
        operand: NativeOperand,
        count: BitArray,
        expect_bytes: BitArray | None,
        *,
        drop: bool,
        release: bool,
    ) -> BitArray:
        """Per active lane: ``expect_bytes`` more transaction bytes, then ``count`` arrivals; ``drop``:
        fewer are expected in later phases, too. Returns the state before."""

    def mbarrier_transactions(self, operand: NativeOperand, nbytes: BitArray, expect: bool) -> None:
        """expect_tx, or complete_tx, of ``nbytes`` without an arrival."""

    def mbarrier_test(
        self, operand: NativeOperand, phase: BitArray, *, parity: bool, acquire: bool, suspend: bool
    ) -> BitArray:
        """Per active lane: is the phase over that ``phase`` (a state, or a parity) names?
        ``suspend``: a warp with a lane whose phase is not over may be held up before it goes on."""

    def mbarrier_arrive_on_copies(self, operand: NativeOperand, counted: bool) -> None:
        """An arrival as soon as the active lane's asynchronous copies so far are there. Not
        ``counted``: it comes on top of those the phase expects."""

    def fault(self, code: str, message: str, lanes: npt.NDArray[np.bool_]) -> None:
        """Reports a fault of the program in ``lanes``, shape (warps, 32)."""

    # Warpgroups: four warps that execute wgmma together, its groups and what it holds.

    def warpgroups(self) -> npt.NDArray[np.int64]:
        """The four warp rows of every warpgroup that executes: shape (n, 4)."""

    def warpgroup_read(self, warp: int, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """16 bytes at each address in the CTA's shared window, (n, 16), for the warpgroup whose first
        warp row is ``warp``: reads of the asynchronous proxy, over when its open group is."""

    def warpgroup_hold(self, operand: NativeOperand, columns: int) -> None:
        """The operand's registers are the open group's until a wait covers it: accumulators of so many
        columns, which nobody touches, or (0) words of A, which nobody writes."""

    def warpgroup_fence(self) -> None:
        """wgmma.fence: what each active warp did with registers comes before the wgmma that follow."""

    def warpgroup_commit(self) -> None:
        """The open group of each active warp's warpgroup is its latest group."""

    def warpgroup_wait(self, pending: int) -> None:
        """Each active warp waits for all but its warpgroup's ``pending`` latest groups."""

    # Tensor memory: 128 lanes by 512 columns of 32-bit cells in each CTA. An address is lane << 16 | column.

    def tensor_alloc(self, operand: Memory, columns: BitArray, pair: bool) -> None:
        """Each active warp: allocates columns, of both CTAs of the pair if ``pair``, and writes their
        address, a word, to the shared memory that the operand names."""

    def tensor_dealloc(self, operand: NativeOperand, columns: BitArray, pair: bool) -> None:
        """Each active warp frees what was allocated at the address in the operand's register."""

    def tensor_relinquish(self, pair: bool) -> None:
        """The CTAs of the active warps allocate no more."""

    def tensor_load(self, operand: Memory, cells: WarpCells) -> npt.NDArray[np.uint32]:
        """What the cells hold: shape (warps, 32, n). The warp's own slab of 32 lanes, or half of it."""

    def tensor_store(self, operand: Memory, cells: WarpCells, data: npt.NDArray[np.uint32]) -> None:
        """The reverse: shape (warps, 32, n)."""

    def tensor_hold(self, operand: NativeOperand) -> None:
        """A load's destination registers: nobody reads or writes them before the warp waits for loads."""

    def tensor_wait(self, loads: bool) -> None:
        """Each active warp waits for its loads from tensor memory, or for its stores."""

    def tensor_fence(self, before: bool) -> None:
        """tcgen05.fence::before_thread_sync or ::after_thread_sync of each active lane."""

    def tensor_issue(self, thread: tuple[int, int], operation: TensorOperation) -> None:
        """Issues the operation for one of ``threads()``. It runs some time between now and the phase of
        the commit that covers it; bounds, allocation, races, fences and proxy fences are checked now."""

    def tensor_commit(self, thread: tuple[int, int], barriers: Sequence[int], pair: bool) -> None:
        """One arrival on each mbarrier, at a cluster address, once every operation that the thread has
        issued so far with as many CTAs (``pair``: two) is over."""

    def unsimulated(self, what: str) -> Any:
        """Raises ``Unsimulated``: a gap of the simulator, not a fault of the program."""


# --- parameters and the family itself


def only(machine: Machine, thread: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The lanes of a fault of one thread."""
    lanes = np.zeros(machine.active().shape, np.bool_)
    lanes[thread] = True
    return lanes


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
