"""The machine a family's ``execute`` sees: registers and memory of one cohort's active lanes.

``Steps`` compiles what ``bind`` yielded (issues, lets, scalar applications) to closures; for each
operand it prepares readers and writers once. ``SimMachine`` is the ``tile.family.Machine``: during
an issue its operands are looked up by identity.

Not here: what an instruction computes (families), waiting (``barrier``), expressions (``expr``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.errors import InternalError, Span, fault
from tilejit.ir import nodes, tensor_map
from tilejit.ir.tensor_map import MAP_ALIGN_BYTES, MAP_BYTES, TensorMap, TensorMapSpec
from tilejit.sim import access, scalar
from tilejit.sim.access import Bytes
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.convergent import check_aligned
from tilejit.sim.expr import (
    Evaluate,
    Expressions,
    dtype_of,
    read_register,
    unsimulated,
)
from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, WARPS_PER_GROUP, Bools, any_lane
from tilejit.sim.inline import Inline
from tilejit.sim.mbarrier import Doubt, Suspension
from tilejit.sim.memory import WORDS
from tilejit.sim.transfers import Side
from tilejit.tile.family import (
    BitArray,
    Element,
    Elsewhere,
    FamilyIndex,
    Immediate,
    Issue,
    Let,
    Memory,
    NativeOperand,
    Register,
    ScalarApply,
    Step,
    TensorBox,
    TensorOperation,
    Transfer,
    Value,
    Variable,
    WarpCells,
    only,
)

Action: TypeAlias = Callable[[Cohort], None]
BitWriter: TypeAlias = Callable[[Cohort, Array], None]
Update: TypeAlias = Callable[[tuple[int, int], Bytes], Bytes]

ATOMIC = frozenset({"atom", "red"})
ORDERING = frozenset({"acquire", "release", "acq_rel", "sc"})
PROXY_SPACES = ("shared", "global")
TENSOR_FAMILIES = frozenset({"tcgen05", "tcgen05_ld_st", "tcgen05_cp", "tcgen05_mma"})
COMPLETED = TENSOR_FAMILIES | {
    "mbarrier", "cp_async_bulk", "cp_async_bulk_tensor", "st_async", "wgmma",
}  # fmt: skip
"""Families whose accesses, or waits, are those of agents (``hazards``)."""
STRONG = ORDERING | {"relaxed", "volatile", "mmio"}
"""Modifiers of accesses that may meet others without a race."""


@dataclass(slots=True, eq=False)
class PreparedRegisters:
    readers: list[Evaluate] = field(default_factory=list)
    writers: list[BitWriter | None] = field(default_factory=list)
    registers: list[tuple[str, int, int] | None] = field(default_factory=list)
    """(buffer, unit, bytes) of items that are registers, else None."""


@dataclass(slots=True, eq=False)
class PreparedMemory:
    address: Evaluate
    space: str
    name: str | None
    reads: Site
    writes: Site
    updates: Site


@dataclass(slots=True, eq=False)
class PreparedBox(PreparedMemory):
    """``address``: of the tensor's buffer, or of the map that the caller encoded. ``spec``: the map that
    a launch encodes, with what it computes in ``numbers``; None for the caller's."""

    coords: list[Evaluate]
    spec: TensorMapSpec | None
    numbers: dict[nodes.Expr, Evaluate]


@dataclass(slots=True, eq=False)
class PreparedImmediate:
    bits: Array


Prepared: TypeAlias = PreparedRegisters | PreparedMemory | PreparedImmediate


@dataclass(slots=True, eq=False)
class Call:
    """The issue in progress: its cohort, its prepared operands, the mask without ``pred``, the sites of what
    a transfer reads and writes, and what a poll answers (``mbarrier``)."""

    cohort: Cohort
    issue: Issue
    operands: dict[int, Prepared]
    unpredicated: Any
    span: Span | None
    transfer_sites: tuple[Site, Site] | None
    doubt: Doubt


class SimMachine:
    """One issue on one cohort; see ``tile.family.Machine``."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def _prepared(self, operand: NativeOperand) -> Prepared:
        return self._call.operands[id(operand)]

    def read(self, operand: NativeOperand, warps: Bools | None = None) -> list[BitArray]:
        found = self._prepared(operand)
        if isinstance(found, PreparedImmediate):
            return [found.bits]
        if isinstance(found, PreparedRegisters):
            c, mask = self._call.cohort, self._call.cohort.mask
            if warps is not None:
                c.mask = c.mask_array() & warps[:, None]
            bits = [reader(c) for reader in found.readers]
            c.mask = mask
            return bits
        if isinstance(found, PreparedBox):
            return [coord(self._call.cohort) for coord in found.coords]
        raise self._misuse("read")

    def write(self, operand: NativeOperand, bits: list[BitArray]) -> None:
        found = self._prepared(operand)
        if not isinstance(found, PreparedRegisters):
            raise self._misuse("write")
        c = self._call.cohort
        for writer, value in zip(found.writers, bits):
            if writer is not None:
                writer(c, value)

    def forget_skipped(self) -> None:
        """Without preserve_dst the destinations are undefined where the predicate is false."""
        c, issue = self._call.cohort, self._call.issue
        if c.mask is self._call.unpredicated:
            return
        skipped = ~c.mask_array()
        if self._call.unpredicated is not None:
            skipped = self._call.unpredicated & skipped
        for spec, operand in zip(issue.form.operands, issue.operands):
            found = self._prepared(operand)
            if spec.direction == "w" and isinstance(found, PreparedRegisters):
                for register in found.registers:
                    if register is not None:
                        name, unit, nbytes = register
                        c.files[name].forget(unit, nbytes, skipped)

    def load(
        self,
        operand: NativeOperand,
        nbytes: int,
        lanes: Bools | None = None,
        at: Elsewhere | None = None,
    ) -> Bytes:
        found = self._memory(operand)
        c = self._call.cohort
        address = _moved(found.address(c), at)
        with self._only(lanes):
            return access.load(c, address, nbytes, found.reads, found.space, found.name)

    def store(
        self,
        operand: NativeOperand,
        data: Bytes,
        lanes: Bools | None = None,
        at: Elsewhere | None = None,
    ) -> None:
        found = self._memory(operand)
        c = self._call.cohort
        address = _moved(found.address(c), at)
        with self._only(lanes):
            access.store(c, address, data, found.writes, found.space, found.name)

    def check_aligned(self, operand: NativeOperand, nbytes: int, lanes: Bools) -> None:
        found = self._memory(operand)
        c = self._call.cohort
        with self._only(lanes):
            memory = access.memory_of(c, found.space)
            memory.misaligned(c.flat(found.address(c)), nbytes, c.lanes(), found.writes)

    @contextmanager
    def _only(self, lanes: Bools | None) -> Iterator[None]:
        """Narrows the active lanes to ``lanes``."""
        c = self._call.cohort
        outer = c.mask
        if lanes is not None:
            c.mask = c.mask_array() & lanes
        try:
            yield
        finally:
            c.mask = outer

    def active(self) -> Bools:
        return self._call.cohort.mask_array()

    def atomic(self, operand: NativeOperand, nbytes: int, update: Update) -> Bytes:
        found = self._memory(operand)
        c = self._call.cohort
        return access.update(
            c, found.address(c), nbytes, update, found.updates, found.space, found.name
        )

    def copy_async(
        self, dst: NativeOperand, src: NativeOperand, nbytes: int, kept: BitArray
    ) -> None:
        to, source = self._memory(dst), self._memory(src)
        c = self._call.cohort
        c.batch.copies.issue(
            c,
            (to.address(c), to.writes, to.name),
            (source.address(c), source.reads, source.name),
            nbytes,
            kept,
        )

    def commit_group(self) -> None:
        self._call.cohort.batch.copies.commit(self._call.cohort)

    def wait_group(self, pending: int | None) -> None:
        self._call.cohort.batch.copies.wait(self._call.cohort, pending)

    def threads(self) -> list[tuple[int, int]]:
        rows, lanes = np.nonzero(self._call.cohort.mask_array())
        return list(zip(rows.tolist(), lanes.tolist()))

    def address(self, operand: Memory) -> npt.NDArray[np.int64]:
        c = self._call.cohort
        where = self._memory(operand).address(c)
        whole: npt.NDArray[np.int64] = np.broadcast_to(where, (c.warps, LANES)).astype(np.int64)
        return whole

    def cluster_rank(self) -> npt.NDArray[np.int64]:
        c = self._call.cohort
        rank: npt.NDArray[np.int64] = (c.cta() % self.cluster_size).astype(np.int64)
        return rank

    @property
    def cluster_size(self) -> int:
        return self._call.cohort.batch.geometry.cluster_size

    def tensor_map(self, operand: TensorBox, thread: tuple[int, int]) -> TensorMap | None:
        found = self._prepared(operand)
        if not isinstance(found, PreparedBox):
            raise self._misuse("find a tensor map in")
        c = self._call.cohort

        def at(value: Evaluate) -> int:
            return int(np.broadcast_to(value(c), (c.warps, LANES))[thread])

        if found.spec is None:
            return self._callers_map(operand, thread)
        map_ = found.spec.evaluate(at(found.address), lambda e: at(found.numbers[e])).settled()
        tensor_map.refuse(map_, f"the tensor map of {found.spec.buffer}", found.spec.span)
        return map_

    def _callers_map(self, operand: TensorBox, thread: tuple[int, int]) -> TensorMap | None:
        """The map whose picture lies at the operand's address; None, with a fault, where none does."""
        self.check_aligned(operand, MAP_ALIGN_BYTES, np.arange(LANES) == thread[1])
        found = self._memory(operand)
        c = self._call.cohort
        parts = [
            access.load(
                c, found.address(c) + np.int64(start), 16, found.reads, "global", found.name
            )
            for start in range(0, MAP_BYTES, 16)
        ]
        map_ = tensor_map.pictured(b"".join(part[thread].tobytes() for part in parts))
        if map_ is None:
            message = "the address of a tensor map holds none that tile.encode_tensor_map made"
            self.fault("sim/tensor-map", message, only(self, thread))
        return map_

    def transfer(self, thread: tuple[int, int], transfer: Transfer) -> None:
        c = self._call.cohort
        dst = self._side(transfer.dst.operand, writes=True)
        src = self._side(transfer.src.operand, writes=False)
        c.batch.transfers.issue(c, *thread, transfer, dst, src)

    def _side(self, operand: NativeOperand, *, writes: bool) -> Side:
        """What messages call one side of a transfer. Its bounds are those of whatever buffer holds each
        chunk: the operand may be a tensor map."""
        found, sites = self._call.operands.get(id(operand)), self._call.transfer_sites
        assert sites is not None, "the issue's family has transfers"
        return Side(sites[int(writes)], found.name if isinstance(found, PreparedMemory) else None)

    def commit_bulk(self) -> None:
        self._call.cohort.batch.transfers.commit(self._call.cohort)

    def wait_bulk(self, pending: int, read: bool) -> None:
        self._call.cohort.batch.transfers.wait(self._call.cohort, pending, read)

    def proxy_fence(self, space: str) -> None:
        c = self._call.cohort
        clocks = c.batch.clocks
        if not c.batch.shared.watch.hazards:
            return
        spaces = PROXY_SPACES if space == "" else ("global" if space == "global" else "shared",)
        threads = c.lanes().threads
        local = threads // clocks.cluster_slots - clocks.first_cta // c.batch.geometry.cluster_size
        for cluster in np.unique(local).tolist():
            own = threads[local == cluster] % clocks.cluster_slots
            for one in spaces:
                clocks.proxy_fence(cluster, own, one)

    def publish_barriers(self) -> None:
        self._call.cohort.batch.mbarriers.publish(self._call.cohort)

    def mbarrier_init(self, operand: NativeOperand, count: BitArray) -> None:
        c, found = self._call.cohort, self._memory(operand)
        c.batch.mbarriers.initialise(c, found.address(c), found.updates, found.name, count)

    def mbarrier_inval(self, operand: NativeOperand) -> None:
        c, found = self._call.cohort, self._memory(operand)
        c.batch.mbarriers.invalidate(c, found.address(c), found.updates, found.name)

    def mbarrier_arrive(
        self,
        operand: NativeOperand,
        count: BitArray,
        expect_bytes: BitArray | None,
        *,
        drop: bool,
        release: bool,
    ) -> BitArray:
        c, found = self._call.cohort, self._memory(operand)
        return c.batch.mbarriers.arrive(
            c, found.address(c), found.updates, found.name, count, expect_bytes, drop, release
        )

    def mbarrier_transactions(self, operand: NativeOperand, nbytes: BitArray, expect: bool) -> None:
        c, found = self._call.cohort, self._memory(operand)
        c.batch.mbarriers.transactions(
            c, found.address(c), found.updates, found.name, nbytes, expect
        )

    def mbarrier_test(
        self, operand: NativeOperand, phase: BitArray, *, parity: bool, acquire: bool, suspend: bool
    ) -> BitArray:
        c, found = self._call.cohort, self._memory(operand)
        over, awaited = c.batch.mbarriers.test(
            c, found.address(c), found.updates, found.name, phase, parity, acquire, suspend,
            self._call.doubt,
        )  # fmt: skip
        failed = Suspension(found.updates, awaited, parity, None) if awaited else None
        if suspend:
            c.held = failed
        else:
            c.polled = failed
        return over

    def mbarrier_arrive_on_copies(self, operand: NativeOperand, counted: bool) -> None:
        c, found = self._call.cohort, self._memory(operand)
        c.batch.mbarriers.arrive_on_copies(c, found.address(c), found.updates, found.name, counted)

    def warpgroups(self) -> npt.NDArray[np.int64]:
        c = self._call.cohort
        positions = np.arange(c.rows.size)[any_lane(c.mask_array())]
        fours: npt.NDArray[np.int64] = positions.reshape(-1, WARPS_PER_GROUP)
        return fours

    def warpgroup_read(self, warp: int, addresses: npt.NDArray[np.int64]) -> Bytes:
        c, sites = self._call.cohort, self._call.transfer_sites
        assert sites is not None, "wgmma is among the families that complete later"
        return c.batch.warpgroups.read(c, int(c.rows[warp]), addresses, sites[0])

    def warpgroup_hold(self, operand: NativeOperand, columns: int) -> None:
        found, c = self._prepared(operand), self._call.cohort
        if not isinstance(found, PreparedRegisters):
            raise self._misuse("hold")
        places = [place for place in found.registers if place is not None]
        c.batch.warpgroups.hold(c, places, columns, self._call.span)

    def warpgroup_fence(self) -> None:
        self._call.cohort.batch.warpgroups.fence(self._call.cohort)

    def warpgroup_commit(self) -> None:
        self._call.cohort.batch.warpgroups.commit(self._call.cohort)

    def warpgroup_wait(self, pending: int) -> None:
        self._call.cohort.batch.warpgroups.wait(self._call.cohort, pending)

    def tensor_alloc(self, operand: Memory, columns: BitArray, pair: bool) -> None:
        c, found = self._call.cohort, self._memory(operand)
        allocation = c.batch.tensor_allocation
        allocation.allocate(c, found.address(c), columns, pair, found.writes, found.name)

    def tensor_dealloc(self, operand: NativeOperand, columns: BitArray, pair: bool) -> None:
        c, site = self._call.cohort, self._side(operand, writes=True).site
        c.batch.tensor_allocation.free(c, self.read(operand)[0], columns, pair, site)

    def tensor_relinquish(self, pair: bool) -> None:
        c, sites = self._call.cohort, self._call.transfer_sites
        assert sites is not None, "the family is one of tensor memory"
        c.batch.tensor_allocation.relinquish(c, pair, sites[1])

    def tensor_load(self, operand: Memory, cells: WarpCells) -> npt.NDArray[np.uint32]:
        c, found = self._call.cohort, self._memory(operand)
        memory = c.batch.tensor_memory
        return memory.load(c, found.address(c), cells, found.reads, found.name)

    def tensor_store(self, operand: Memory, cells: WarpCells, data: npt.NDArray[np.uint32]) -> None:
        c, found = self._call.cohort, self._memory(operand)
        memory = c.batch.tensor_memory
        memory.store(c, found.address(c), cells, data, found.writes, found.name)

    def tensor_hold(self, operand: NativeOperand) -> None:
        found, c = self._prepared(operand), self._call.cohort
        if not isinstance(found, PreparedRegisters):
            raise self._misuse("hold")
        places = [place for place in found.registers if place is not None]
        c.batch.tensor_loads.hold(c, places, self._call.span)

    def tensor_wait(self, loads: bool) -> None:
        c = self._call.cohort
        rows = c.rows[any_lane(c.mask_array())]
        c.batch.tensor_memory.order.wait(rows, loads)
        if loads:
            c.batch.tensor_loads.wait(rows)

    def tensor_fence(self, before: bool) -> None:
        c = self._call.cohort
        c.batch.tensor_memory.order.fence(c, before)

    def tensor_issue(self, thread: tuple[int, int], operation: TensorOperation) -> None:
        c = self._call.cohort
        reads = [self._side(source.operand, writes=False) for source in operation.sources]
        writes = [self._side(cells.operand, writes=True) for cells in operation.destinations]
        number = int(c.thread_numbers()[thread])
        c.batch.tensor_cores.issue(number, operation, reads, writes)

    def tensor_commit(self, thread: tuple[int, int], barriers: Sequence[int], pair: bool) -> None:
        c, sites = self._call.cohort, self._call.transfer_sites
        assert sites is not None, "the family is one of tensor memory"
        number = int(c.thread_numbers()[thread])
        c.batch.tensor_cores.commit(number, barriers, pair, sites[1])

    def fault(self, code: str, message: str, lanes: Array) -> None:
        c = self._call.cohort
        c.batch.lane_fault(c, code, message, self._call.span, lanes)

    def unsimulated(self, what: str) -> NoReturn:
        raise unsimulated(what, self._call.span)

    def _memory(self, operand: NativeOperand) -> PreparedMemory:
        found = self._prepared(operand)
        if not isinstance(found, PreparedMemory):
            raise self._misuse("access memory through")
        return found

    def _misuse(self, what: str) -> Exception:
        spelling = self._call.issue.form.spelling
        return fault(
            InternalError, "sim/operand", f"execute of `{spelling}` cannot {what} that operand"
        )


def _moved(address: Array, at: Elsewhere | None) -> Array:
    """The lanes' own addresses, or those that ``at`` says."""
    if at is None:
        return address
    whole = np.broadcast_to(address, (address.shape[0], LANES))
    return whole[:, at.lanes] + at.offset_bytes


class Steps:
    """Compiles the steps of tile calls."""

    def __init__(self, expressions: Expressions, families: FamilyIndex) -> None:
        self.expressions = expressions
        self.families = families
        self.inline = Inline(expressions)
        self.kept_alive: list[Step] = []

    def compile(self, step: Step, span: Span | None, doubt: Doubt = "never") -> Action:
        """The effect of one step; ``span`` is the call's, for steps that have none."""
        self.kept_alive.append(step)
        if isinstance(step, Let):
            return self._let(step)
        if isinstance(step, ScalarApply):
            return self._scalar_apply(step, step.span or span)
        return self._issue(step, step.span or span, doubt)

    def _let(self, step: Let) -> Action:
        if step.value is None:
            result = self.expressions.slot(step.var)
            return lambda c: c.declare(result, None)
        value = self.expressions.compile(step.value)
        if isinstance(step.var.type, nodes.PointerType):
            self.expressions.origins[step.var.name] = self.expressions.origin(step.value)
        slot = self.expressions.slot(step.var)
        return lambda c: c.declare(slot, value(c))

    def _scalar_apply(self, step: ScalarApply, span: Span | None) -> Action:
        function = self.inline.function(step.function)
        inputs = [
            self._typed_input(item, param, span)
            for item, param in zip(step.inputs, step.function.params)
        ]
        writer = self._register_writer(step.dst, span)
        dtype = step.function.type.dtype

        def apply(c: Cohort) -> None:
            result = function(c, [value(c) for value in inputs])
            writer(c, scalar.to_bits(result, dtype))

        return apply

    def _typed_input(self, item: Register | Value, param: nodes.Var, span: Span | None) -> Evaluate:
        if isinstance(item, Value):
            return self.expressions.compile(item.expr)
        reader = self._register_reader(item, span)
        dtype = dtype_of(param.type)
        return lambda c: scalar.to_value(reader(c), dtype)

    # --- issues

    def _issue(self, issue: Issue, span: Span | None, doubt: Doubt) -> Action:
        operands = {
            id(operand): self._prepare(issue, position, operand, span)
            for position, operand in enumerate(issue.operands)
        }
        family = self.families.get(issue.form.family)
        if family is None:
            raise unsimulated(f"`{issue.form.spelling}` (family {issue.form.family})", span)
        execute = family.execute
        spelling, aligned = issue.form.spelling, "aligned" in issue.form.modifiers
        sites = self._transfer_sites(issue, span)
        if issue.pred is None:

            def run(c: Cohort) -> None:
                if c.any_active():
                    if aligned:
                        check_aligned(c, spelling, span)
                    execute(issue, SimMachine(Call(c, issue, operands, c.mask, span, sites, doubt)))

            return run
        pred = self.expressions.compile(issue.pred)

        def run_predicated(c: Cohort) -> None:
            outer = c.mask
            yes, _, some, _ = c.narrow(pred(c))
            c.mask = yes if some else np.zeros((c.warps, LANES), np.bool_)
            machine = SimMachine(Call(c, issue, operands, outer, span, sites, doubt))
            if some:
                if aligned:
                    check_aligned(c, spelling, span)
                execute(issue, machine)
            if not issue.preserve_dst:
                machine.forget_skipped()
            c.mask = outer

        return run_predicated

    def _transfer_sites(self, issue: Issue, span: Span | None) -> tuple[Site, Site] | None:
        """What the issue's transfers read and write, if it can have any. A reduction is atomic, and
        orders nothing."""
        accesses = self.expressions.accesses
        if issue.form.family not in COMPLETED:
            return None
        accesses.asynchronous = True
        accesses.tensor_memory |= issue.form.family in TENSOR_FAMILIES
        spelling, words = issue.form.spelling, issue.form.spelling.split(".")
        reduction = words[0] == "red" or "reduce" in words
        reads = Site(len(accesses.sites), "reads", spelling, span, False, True)
        writes = Site(reads.index + 1, "writes", spelling, span, reduction, True)
        accesses.sites += [reads, writes]
        return reads, writes

    def _prepare(
        self, issue: Issue, position: int, operand: NativeOperand, span: Span | None
    ) -> Prepared:
        if isinstance(operand, Immediate):
            value = operand.value
            word = np.uint32 if -(2**31) <= value < 2**32 else np.uint64
            mask = (1 << 8 * np.dtype(word).itemsize) - 1
            return PreparedImmediate(np.full((1, 1), value & mask, word))
        if isinstance(operand, Memory):
            return self._prepare_memory(issue, position, operand, span)
        if isinstance(operand, TensorBox):
            return self._prepare_box(issue, position, operand, span)
        found = PreparedRegisters()
        for item in operand.items:
            if isinstance(item, Register) and issue.form.family == "wgmma":
                self._add_held(found, item, span)
                continue
            found.readers.append(self._reader(item, span))
            found.writers.append(self.writer(item, span))
            found.registers.append(self._place(item) if isinstance(item, Register) else None)
        return found

    def _add_held(self, found: PreparedRegisters, item: Register, span: Span | None) -> None:
        """A register that wgmma itself reads and writes, which counts as no access of a thread."""
        name, unit, nbytes = self._place(item)
        word = WORDS[nbytes]
        found.readers.append(lambda c: read_register(c, name, unit, nbytes, span))
        found.writers.append(lambda c, bits: c.files[name].write(unit, bits.astype(word), c.mask))
        found.registers.append((name, unit, nbytes))

    def _prepare_memory(
        self, issue: Issue, position: int, operand: Memory, span: Span | None
    ) -> PreparedMemory:
        accesses = self.expressions.accesses
        name = self.expressions.origin(operand.base)
        if operand.space == "local":
            self._check_local(issue, position, name, span)
        base = self.expressions.compile(operand.base)
        offset = operand.offset_bytes
        address = _address_behind(base, offset, operand.space)
        spelling = issue.form.spelling
        words = set(issue.form.modifiers)
        # What completes on an mbarrier is modelled; its order words say nothing of other accesses. With
        # fences around it, a relaxed arrival or wait orders.
        modelled = issue.form.family in COMPLETED
        accesses.communicates |= issue.form.family == "mbarrier" and _may_order(issue)
        strong = not modelled and (bool(words & STRONG) or issue.form.mnemonic in ATOMIC)
        accesses.fences |= not modelled and bool(words & ORDERING)
        asynchronous = "async" in issue.form.effects

        def site(verb: str) -> Site:
            return accesses.site(verb, spelling, span, strong, asynchronous)

        reads, writes, updates = site("reads"), site("writes"), site("updates")
        if "w" in issue.form.operands[position].direction:
            accesses.will_store(name, operand.space, writes)
        return PreparedMemory(address, operand.space, name, reads, writes, updates)

    def _prepare_box(
        self, issue: Issue, position: int, operand: TensorBox, span: Span | None
    ) -> PreparedBox:
        accesses = self.expressions.accesses
        spec = operand.map if isinstance(operand.map, TensorMapSpec) else None
        numbers: dict[nodes.Expr, Evaluate] = {}
        if isinstance(operand.map, TensorMapSpec):
            name, base = operand.map.buffer, np.full((1, 1), accesses.base(operand.map.buffer))
            address: Evaluate = lambda c: base  # noqa: E731
            numbers = {
                n: self.expressions.compile(n)
                for n in operand.map.numbers()
                if not isinstance(n, int)
            }
        else:
            name, address = None, self.expressions.compile(operand.map)
        reads, writes, updates = (
            accesses.site(verb, issue.form.spelling, span, False, True)
            for verb in ("reads", "writes", "updates")
        )
        if "w" in issue.form.operands[position].direction:
            accesses.will_store(name, "global", writes)
        coords = [self.expressions.compile(coord) for coord in operand.coords]
        return PreparedBox(
            address, "global", name, reads, writes, updates, coords, spec, numbers
        )  # fmt: skip

    def _check_local(
        self, issue: Issue, position: int, name: str | None, span: Span | None
    ) -> None:
        """Local memory is modelled where the buffer is known, at widths its file is kept in."""
        spelling = issue.form.spelling
        if name is None or name not in self.expressions.storage.local_bytes:
            raise unsimulated(f"`{spelling}` at a local address whose buffer is not known", span)
        width = issue.form.operands[position].bits // 8
        if width < self.expressions.storage.unit_bytes[name]:
            raise unsimulated(f"`{spelling}` narrower than the elements of `{name}`", span)

    # --- registers

    def _place(self, register: Register) -> tuple[str, int, int]:
        if register.dtype.bits % 8:
            raise unsimulated(f"registers of {register.dtype}", None)
        nbytes = register.dtype.bytes
        name = register.buffer.name
        return name, register.slot * (nbytes // self.expressions.storage.unit_bytes[name]), nbytes

    def _register_reader(self, register: Register, span: Span | None) -> Evaluate:
        return self.expressions.register_reader(*self._place(register), span)

    def _register_writer(self, register: Register, span: Span | None) -> BitWriter:
        name, unit, nbytes = self._place(register)
        word, write = WORDS[nbytes], self.expressions.register_writer(name, unit, span)
        return lambda c, bits: write(c, bits.astype(word, copy=False))

    def _reader(
        self, item: Register | Value | Variable | Element | None, span: Span | None
    ) -> Evaluate:
        if isinstance(item, Register):
            return self._register_reader(item, span)
        if item is None:
            nothing = np.zeros((1, 1), np.uint32)
            return lambda c: nothing
        expr = (
            item.expr
            if isinstance(item, Value)
            else item.var
            if isinstance(item, Variable)
            else item.load
        )
        value = self.expressions.compile(expr)
        dtype = dtypes.uint64 if isinstance(expr.type, nodes.PointerType) else dtype_of(expr.type)
        if isinstance(expr.type, nodes.PointerType):
            return lambda c: value(c).view(np.uint64)
        return lambda c: scalar.to_bits(value(c), dtype)

    def writer(
        self, item: Register | Value | Variable | Element | None, span: Span | None
    ) -> BitWriter | None:
        if isinstance(item, Register):
            return self._register_writer(item, span)
        if isinstance(item, Variable):
            return self._variable_writer(item.var)
        if isinstance(item, Element):
            assert isinstance(item.load, nodes.Load)
            view = item.load.view
            store = self.expressions.store(view, item.load.indices, span)
            word = WORDS[view.dtype.bytes]
            return lambda c, bits: store(c, bits.astype(word, copy=False))
        return None

    def _variable_writer(self, var: nodes.Var) -> BitWriter:
        slot = self.expressions.slot(var)
        if isinstance(var.type, nodes.PointerType):
            return lambda c, bits: c.assign(slot, bits.astype(np.int64))
        dtype = dtype_of(var.type)
        word = WORDS[dtype.bytes]
        return lambda c, bits: c.assign(slot, scalar.to_value(bits.astype(word, copy=False), dtype))


def _address_behind(base: Evaluate, offset: int, space: nodes.Space) -> Evaluate:
    """So far behind a base. In tensor memory a sum of 32 bits: a base of negative columns, as
    ``D[:, 24 - 8 * j :]`` has one, borrows from its lane, and gives that back."""
    if offset == 0:
        return base
    if space == "tmem":
        return lambda c: (base(c) + np.int64(offset)) & 0xFFFF_FFFF
    return lambda c: base(c) + np.int64(offset)


def _may_order(issue: Issue) -> bool:
    """Is it a relaxed arrival or wait, which orders with fences?"""
    words = issue.form.modifiers
    return "relaxed" in words and words[0] not in ("expect_tx", "complete_tx")


def run_all(actions: Sequence[Action]) -> Action:
    """The actions, one after another."""
    if len(actions) == 1:
        return actions[0]
    listed = tuple(actions)

    def run(c: Cohort) -> None:
        for action in listed:
            action(c)

    return run
