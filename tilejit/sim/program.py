"""A function as a linear program: one closure per operation, jumps instead of nesting.

Each operation takes a cohort and returns the next program counter, or STOP after it has recorded
why it stops (it waits, it ended, it was split, or others should run). Lanes diverge by masks. Where
a branch or loop contains something that can wait, warps that disagree are split into cohorts of
their own; elsewhere both sides are executed under masks.

Not here: expressions (``expr``), tile steps (``machine``), choosing who runs (``schedule``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tilejit.errors import Span, Unsimulated, fault
from tilejit.ir import nodes
from tilejit.ir.walk import statements
from tilejit.sim import scalar
from tilejit.sim.barrier import Wait, arrive, check_whole
from tilejit.sim.cohort import NOT_A_SCOPE, STOP, Array, Cohort, IfFrame, LoopFrame
from tilejit.sim.convergent import check_aligned, check_converged
from tilejit.sim.expr import Evaluate, Expressions, dtype_of, unsimulated
from tilejit.sim.geometry import LANES, Bools, any_lane
from tilejit.sim.machine import Action, Steps, run_all
from tilejit.sim.mbarrier import Doubt, Suspension, hold_up, wait_for_phase
from tilejit.sim.register_budget import at_launch
from tilejit.sim.registers import Mask, RegisterFile
from tilejit.sim.spinning import begin_turn
from tilejit.sim.storage import TILE_CALLS, Checked
from tilejit.sim.unread import is_poll, unread_polls
from tilejit.sim.waits import (
    FULL_MASK,
    NO_EFFECT,
    Join,
    call_join,
    immediate,
    numbers,
    raw_join,
)
from tilejit.tile.family import FamilyIndex, Issue, Registers, Step

Operation: TypeAlias = Callable[[Cohort], int]

MBARRIER_WAITS = ("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster")
TURNS_PER_YIELD = 64
"""Turns of a ``while`` after which other cohorts run: a loop may poll what they write."""
YIELD_CHANCE = 1 / 2
"""That others go on before a warp that has ended a phase."""


@dataclass(slots=True)
class Label:
    pc: int = -1


@dataclass(slots=True)
class Program:
    """``slots``: number of variables. ``named``: does it order threads otherwise than all of a warp, a
    CTA or a cluster at once? ``grid_wide``: does it join the whole grid? ``loops``: where those without a
    count are, by the place of their top."""

    checked: Checked
    code: list[Operation]
    loops: dict[int, Span | None]
    slots: int
    named: bool
    grid_wide: bool


def compile_program(checked: Checked, expressions: Expressions, families: FamilyIndex) -> Program:
    """The function's body, ready to run."""
    compiler = _Compiler(checked, expressions, families)
    end = Label()
    compiler.block(checked.function.body, end, None)
    compiler.mark(end)
    compiler.emit(_end)
    slots = len(expressions.slots)
    return Program(
        checked, compiler.code, compiler.loops, slots, compiler.named, compiler.grid_wide
    )


def _end(c: Cohort) -> int:
    c.batch.exit(c)
    c.rows = c.rows[:0]
    return STOP


@dataclass(slots=True)
class _Loop:
    """The innermost loop around a statement: its frame's depth, and where ``continue`` goes."""

    depth: int


@dataclass(slots=True)
class _Compiler:
    checked: Checked
    expressions: Expressions
    families: FamilyIndex
    code: list[Operation] = field(default_factory=list)
    named: bool = False
    grid_wide: bool = False
    depth: int = 0
    waiting: dict[int, bool] = field(default_factory=dict)
    loops: dict[int, Span | None] = field(default_factory=dict)
    unread: frozenset[int] | None = None
    tile_steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.tile_steps = Steps(self.expressions, self.families)

    def emit(self, operation: Operation) -> None:
        self.code.append(operation)

    def mark(self, label: Label) -> None:
        label.pc = len(self.code)

    def effect(self, action: Action) -> None:
        """An operation that always goes on to the next."""
        after = len(self.code) + 1

        def run(c: Cohort) -> int:
            action(c)
            return after

        self.emit(run)

    # --- what can wait

    def waits(self, block: nodes.Block) -> bool:
        return any(self._waits(statement) for statement in block)

    def _waits(self, s: nodes.Stmt) -> bool:
        found = self.waiting.get(id(s))
        if found is None:
            found = self.waiting[id(s)] = self._find_wait(s)
        return found

    def _find_wait(self, s: nodes.Stmt) -> bool:
        if isinstance(s, nodes.If):
            return self.waits(s.then) or self.waits(s.orelse)
        if isinstance(s, nodes.For):
            return self.waits(s.body)
        if isinstance(s, nodes.While):
            # It may poll memory that another warp writes.
            return True
        if not isinstance(s, nodes.Evaluate):
            return False
        join = call_join(s.call)
        if join is not None:
            return join.waits
        if s.call.op in MBARRIER_WAITS:
            return True
        if s.call.op in ("tile.apply", "ptx"):
            return any(_may_wait(step) for step in self.checked.steps(s.call))
        return False

    # --- statements

    def block(self, block: nodes.Block, skip: Label, loop: _Loop | None) -> None:
        """``skip``: where to go when no lane of the cohort is left in the block."""
        for statement in block:
            self.statement(statement, skip, loop)

    def statement(self, s: nodes.Stmt, skip: Label, loop: _Loop | None) -> None:
        """What is not modelled is an error only where a lane reaches it."""
        try:
            self._statement(s, skip, loop)
        except Unsimulated as error:
            gap = error
            self.effect(lambda c: _reach(c, gap))

    def _statement(self, s: nodes.Stmt, skip: Label, loop: _Loop | None) -> None:
        if isinstance(s, nodes.Declare):
            self._declare(s)
        elif isinstance(s, nodes.Assign):
            self._assign(s)
        elif isinstance(s, nodes.Store):
            self._store(s)
        elif isinstance(s, nodes.AllocTensor):
            self._alloc(s)
        elif isinstance(s, nodes.DeclTmem):
            self._decl_tmem(s)
        elif isinstance(s, nodes.If):
            self._if(s, skip, loop)
        elif isinstance(s, nodes.For):
            self._for(s, skip)
        elif isinstance(s, nodes.While):
            self._while(s, skip)
        elif isinstance(s, (nodes.Break, nodes.Continue, nodes.Return)):
            self._leave(s, skip, loop)
        else:
            self._call(s)

    def _declare(self, s: nodes.Declare) -> None:
        slot = self.expressions.slot(s.var)
        if s.value is None:
            self.effect(lambda c: c.declare(slot, None))
            return
        value = self.expressions.compile(s.value)
        self.effect(lambda c: c.declare(slot, value(c)))

    def _assign(self, s: nodes.Assign) -> None:
        slot, value = self.expressions.slot(s.var), self.expressions.compile(s.value)
        self.effect(lambda c: c.assign(slot, value(c)))

    def _store(self, s: nodes.Store) -> None:
        value = self.expressions.compile(s.value)
        store = self.expressions.store(s.view, s.indices, s.span)
        dtype = s.view.dtype
        self.effect(lambda c: store(c, scalar.to_bits(value(c), dtype)))

    def _alloc(self, s: nodes.AllocTensor) -> None:
        name = s.buffer.name
        storage = self.expressions.storage
        if name not in storage.unit_bytes:
            return
        unit, units = storage.unit_bytes[name], storage.units(name)

        def allocate(c: Cohort) -> None:
            # Registers live as long as the thread: a loop that allocates again finds its own.
            if name not in c.files:
                c.files[name] = RegisterFile(unit, units, c.warps)

        self.effect(allocate)

    def _decl_tmem(self, s: nodes.DeclTmem) -> None:
        slot, address = self.expressions.slot(s.buffer), self.expressions.compile(s.address)
        self.effect(lambda c: c.declare(slot, address(c).astype(np.int64)))

    # --- branches

    def _if(self, s: nodes.If, skip: Label, loop: _Loop | None) -> None:
        condition = self.expressions.compile(s.condition)
        orelse, end = Label(), Label()
        split = self._waits(s)
        then_pc = len(self.code) + 1
        after, beside = (id(s), False), (id(s), True)

        def enter(c: Cohort, yes: Mask, no: Mask, some_yes: bool, some_no: bool) -> int:
            if not some_yes and not some_no:
                return end.pc + 1
            other = no if some_yes and some_no else NOT_A_SCOPE
            c.frames.append(IfFrame(c.mask, other, beside))
            c.mask = yes if some_yes else no
            return then_pc if some_yes else orelse.pc + 1

        def branch(c: Cohort) -> int:
            yes, no, some_yes, some_no = c.narrow(condition(c))
            if split and some_yes and some_no and c.warps > 1:
                return _split_branch(c, yes, no, enter)
            return enter(c, yes, no, some_yes, some_no)

        self.emit(branch)
        self.depth += 1
        self.block(s.then, orelse, loop)
        self.mark(orelse)

        def turn(c: Cohort) -> int:
            frame = c.frames[-1]
            assert isinstance(frame, IfFrame)
            if frame.orelse is None or frame.orelse.any():
                c.mask, frame.orelse, frame.others = frame.orelse, NOT_A_SCOPE, after
                return orelse.pc + 1
            return end.pc

        self.emit(turn)
        self.block(s.orelse, end, loop)
        self.depth -= 1
        self.mark(end)
        leaves = _leaves(s)

        def leave(c: Cohort) -> int:
            c.mask = c.frames.pop().outer
            if leaves and not c.any_active():
                return skip.pc
            return end.pc + 1

        self.emit(leave)

    # --- loops

    def _for(self, s: nodes.For, skip: Label) -> None:
        start, stop = self.expressions.compile(s.start), self.expressions.compile(s.stop)
        step = int(s.step.value)
        slot = self.expressions.slot(s.var)
        kind = scalar.value_type(dtype_of(s.var.type))
        test, following, leave = Label(), Label(), Label()
        split, after = self._waits(s), (id(s), False)

        def begin(c: Cohort) -> int:
            counter, last = start(c).astype(np.int64), stop(c).astype(np.int64)
            c.frames.append(LoopFrame(c.mask, c.mask, after, counter, last))
            return test.pc

        self.emit(begin)
        self.mark(test)

        def turn(c: Cohort) -> int:
            frame = c.frames[-1]
            assert isinstance(frame, LoopFrame) and frame.counter is not None
            c.mask = frame.live
            going = frame.counter < frame.stop if step > 0 else frame.counter > frame.stop
            yes, _, some_yes, _ = c.narrow(going)
            if not some_yes:
                return leave.pc
            frame.live = c.mask = yes
            if split and yes is not None and c.warps > 1:
                staying = any_lane(yes)
                if not staying.all():
                    return _split_rows(c, [(~staying, leave.pc), (staying, test.pc)])
            c.declare(slot, frame.counter.astype(kind))
            return test.pc + 1

        self.emit(turn)
        self.depth += 1
        self.block(s.body, following, _Loop(self.depth - 1))
        self.depth -= 1
        self.mark(following)

        def advance(c: Cohort) -> int:
            frame = c.frames[-1]
            assert isinstance(frame, LoopFrame) and frame.counter is not None
            frame.counter = frame.counter + np.int64(step)
            _count_turn(c, s.span)
            return test.pc

        self.emit(advance)
        self.mark(leave)
        self._leave_loop(s, skip, leave)

    def _while(self, s: nodes.While, skip: Label) -> None:
        top, following, leave = Label(), Label(), Label()
        after = (id(s), False)

        def begin(c: Cohort) -> int:
            c.frames.append(LoopFrame(c.mask, c.mask, after))
            return top.pc

        self.emit(begin)
        self.mark(top)
        self.loops[top.pc] = s.span

        def turn(c: Cohort) -> int:
            frame = c.frames[-1]
            assert isinstance(frame, LoopFrame)
            c.mask = frame.live
            if not c.any_active():
                return leave.pc
            if c.mask is not None and c.warps > 1:
                staying = any_lane(c.mask)
                if not staying.all():
                    return _split_rows(c, [(~staying, leave.pc), (staying, top.pc)])
            return top.pc + 1

        self.emit(turn)
        self.depth += 1
        self.block(s.body, following, _Loop(self.depth - 1))
        self.depth -= 1
        self.mark(following)

        def again(c: Cohort) -> int:
            if c.polled is not None:
                # Whoever polls a phase comes back when something has happened.
                found, c.polled = c.polled, None
                c.suspension = Suspension(found.site, found.awaited, found.parity, top.pc)
                c.pc = top.pc
                return STOP
            _count_turn(c, s.span)
            if c.turns % TURNS_PER_YIELD:
                return top.pc
            begin_turn(c, top.pc)
            c.pc = top.pc
            return STOP

        self.emit(again)
        self.mark(leave)
        self._leave_loop(s, skip, leave)

    def _leave_loop(self, s: nodes.For | nodes.While, skip: Label, leave: Label) -> None:
        returns = any(isinstance(inner, nodes.Return) for inner in statements(s.body))

        def run(c: Cohort) -> int:
            c.mask = c.frames.pop().outer
            if returns and not c.any_active():
                return skip.pc
            return leave.pc + 1

        self.emit(run)

    def _leave(
        self, s: nodes.Break | nodes.Continue | nodes.Return, skip: Label, loop: _Loop | None
    ) -> None:
        if isinstance(s, nodes.Return):

            def end_lanes(c: Cohort) -> int:
                c.batch.exit(c)
                c.leave(0)
                return skip.pc

            self.emit(end_lanes)
            return
        assert loop is not None, "break outside a loop"
        depth, breaks = loop.depth, isinstance(s, nodes.Break)

        def leave(c: Cohort) -> int:
            frame = c.frames[depth]
            assert isinstance(frame, LoopFrame)
            if breaks:
                stay = ~c.mask_array()
                frame.live = stay if frame.live is None else frame.live & stay
            c.leave(depth + 1)
            return skip.pc

        self.emit(leave)

    # --- calls

    def _call(self, s: nodes.Evaluate) -> None:
        call = s.call
        span = call.span or s.span
        op = call.op
        if op in TILE_CALLS:
            self._tile_call(call, span)
        elif op in MBARRIER_WAITS:
            self._mbarrier_wait(call, span)
        elif (join := call_join(call)) is not None:
            self._join(join, span)
        elif op == "cuda.warp_sync":
            self.effect(lambda c: _warp_barrier(c, op, span))
        elif op in ("cuda.fence_cta", "cuda.fence_gpu"):
            self.expressions.accesses.fences = True
        elif op == "print":
            self._print(call, span)
        elif op in ("device_assert", "assume"):
            self._assertion(call, span)
        else:
            value = self.expressions.compile(call)
            self.effect(lambda c: _discard(value(c)))

    def _tile_call(self, call: nodes.Call, span: Span | None) -> None:
        actions: list[Action] = []
        met = False

        def flush() -> None:
            if actions:
                self.effect(run_all(actions.copy()))
                actions.clear()

        for step in self.checked.steps(call):
            join = raw_join(step) if isinstance(step, Issue) else None
            if join is not None:
                flush()
                self._join(join, span)
            elif isinstance(step, Issue) and _of_warpgroup(step) and not met:
                flush()
                self._meet_warpgroup(span)
                actions.append(self.tile_steps.compile(step, span))
                met = True
            elif isinstance(step, Issue) and _allocates(step):
                flush()
                self._allocate_columns(self.tile_steps.compile(step, span), span)
            elif isinstance(step, Issue) and _may_suspend(step):
                flush()
                self._attempt(self.tile_steps.compile(step, span, self._doubt(call)))
            elif is_poll(step):
                actions.append(self.tile_steps.compile(step, span, self._doubt(call)))
            elif isinstance(step, Issue) and _may_end_phase(step):
                actions.append(self.tile_steps.compile(step, span))
                flush()
                self._let_others_run()
            elif isinstance(step, Issue) and step.form.spelling == "bar.warp.sync":
                if immediate(step.operands[0], step) & FULL_MASK != FULL_MASK:
                    raise unsimulated("`bar.warp.sync` of part of a warp", span)
                actions.append(lambda c: _warp_barrier(c, "bar.warp.sync", span))
            elif isinstance(step, Issue) and step.form.mnemonic == "setmaxnreg":
                flush()
                self._set_registers(step, span)
            elif isinstance(step, Issue) and _orders_memory(step):
                self.expressions.accesses.fences = True
            elif isinstance(step, Issue) and step.form.mnemonic in NO_EFFECT:
                continue
            else:
                actions.append(self.tile_steps.compile(step, span))
        flush()

    def _doubt(self, call: nodes.Call) -> Doubt:
        """How often the call's polls say no where they might say yes."""
        if self.unread is None:
            self.unread = unread_polls(self.checked)
        return "always" if id(call) in self.unread else "once"

    def _mbarrier_wait(self, call: nodes.Call, span: Span | None) -> None:
        address, parity = (self.expressions.compile(arg) for arg in call.args)
        name = self.expressions.origin(call.args[0])
        accesses = self.expressions.accesses
        accesses.asynchronous = True
        site = accesses.site("waits for", "T." + call.op, span)
        here, after = len(self.code), len(self.code) + 1

        def run(c: Cohort) -> int:
            wait_for_phase(c, address(c), site, name, parity(c), True)
            return hold_up(c, here, after, None)

        self.emit(run)

    def _meet_warpgroup(self, span: Span | None) -> None:
        """The four warps that execute an instruction together come to it."""
        after = len(self.code) + 1

        def run(c: Cohort) -> int:
            elsewhere = _pass_by(c, after)
            if elsewhere is not None:
                return elsewhere
            if c.batch.warpgroups.whole(c):
                return after
            c.wait, c.pc = Wait("warpgroup", span), after
            return STOP

        self.emit(run)

    def _attempt(self, attempt: Action) -> None:
        """An instruction that may be held up, and goes on without success in the end."""
        here, after = len(self.code), len(self.code) + 1

        def run(c: Cohort) -> int:
            attempt(c)
            return hold_up(c, here, after, after)

        self.emit(run)

    def _allocate_columns(self, attempt: Action, span: Span | None) -> None:
        """``tcgen05.alloc``: warps that get no columns now wait, and come again when they have them."""
        here, after = len(self.code), len(self.code) + 1

        def run(c: Cohort) -> int:
            attempt(c)
            waits = c.batch.tensor_allocation.waits(c.rows)
            if not waits.any():
                return after
            if waits.all():
                c.wait, c.pc = Wait("tensor memory", span), here
                return STOP
            late = c.select(np.flatnonzero(waits))
            late.wait, late.pc = Wait("tensor memory", span), here
            c.batch.arrivals.append(late)
            return _split_rows(c, [(~waits, after)])

        self.emit(run)

    def _let_others_run(self) -> None:
        """Who has ended a phase may be slower than those who waited for it: the seed has it. Else a warp
        that never waits would do all its work before anybody sees any of it."""
        after = len(self.code) + 1

        def run(c: Cohort) -> int:
            if not c.batch.mbarriers.completed or c.batch.random.random() >= YIELD_CHANCE:
                return after
            c.pc = after
            return STOP

        self.emit(run)

    def _join(self, join: Join, span: Span | None) -> None:
        self.named |= join.kind == "named" or (join.kind == "cluster" and join.action != "sync")
        self.grid_wide |= join.kind == "grid"
        accesses = self.expressions.accesses
        # A relaxed arrival orders nothing by itself; with fences around it, it does.
        accesses.communicates |= not join.releases
        if join.vote is not None:
            vote = self.expressions.compile(join.vote)
            self.effect(lambda c: c.batch.barriers.bring(c, vote(c)))
        if join.action == "arrive":
            self.effect(self._arrival(join, span))
        else:
            self._wait(join, span)
        if join.result is not None:
            self._take_tally(join, span)

    def _arrival(self, join: Join, span: Span | None) -> Action:
        known = numbers(join, self.expressions, span)

        def run(c: Cohort) -> None:
            here = any_lane(c.mask_array())
            if not here.all():
                if not here.any():
                    return
                c = c.select(np.flatnonzero(here))
            barriers = c.batch.barriers
            if join.kind == "cluster":
                check_whole(c, Wait("cluster", span, aligned=join.aligned))
                barriers.arrive_cluster(c, span, releases=join.releases)
                return
            for number, threads, at in known.groups(c):
                wait = Wait("named", span, number, threads, aligned=join.aligned)
                barriers.arrive_named(c.select(at), wait)

        return run

    def _wait(self, join: Join, span: Span | None) -> None:
        known = numbers(join, self.expressions, span)
        after = len(self.code) + 1

        def run(c: Cohort) -> int:
            elsewhere = _pass_by(c, after)
            if elsewhere is not None:
                return elsewhere
            groups = known.groups(c)
            c.pc = after
            arrives = join.action == "sync"
            waits = [Wait(join.kind, span, n, t, arrives, join.aligned) for n, t, _ in groups]
            if len(groups) == 1:
                arrive(c, waits[0])
                return STOP
            for wait, (_, _, at) in zip(waits, groups):
                part = c.select(at)
                arrive(part, wait)
                c.batch.barriers.waiting.append(part)
            c.rows = c.rows[:0]
            return STOP

        self.emit(run)

    def _set_registers(self, issue: Issue, span: Span | None) -> None:
        wanted, grows = immediate(issue.operands[0], issue), "inc" in issue.form.modifiers
        start, spelling = at_launch(self.checked.function), issue.form.spelling
        after = len(self.code) + 1

        def run(c: Cohort) -> int:
            if not c.any_active():
                return after
            check_aligned(c, spelling, span)
            c.batch.barriers.change_registers(c, start, wanted, grows, span)
            c.pc = after
            return STOP if c.wait is not None else after

        self.emit(run)

    def _take_tally(self, join: Join, span: Span | None) -> None:
        assert isinstance(join.result, Registers)
        writer = self.tile_steps.writer(join.result.items[0], span)
        reduction = join.reduction

        def run(c: Cohort) -> None:
            barriers = c.batch.barriers
            true, of = barriers.tally[c.rows][:, None], barriers.voters[c.rows][:, None]
            found = {"popc": true, "and": true == of, "or": true > 0}[reduction]
            if writer is not None:
                writer(c, found)

        self.effect(run)

    def _print(self, call: nodes.Call, span: Span | None) -> None:
        text = call.args[0]
        assert isinstance(text, nodes.Text)
        template = text.value
        values = [self.expressions.compile(arg) for arg in call.args[1:]]
        self.effect(lambda c: _print(c, template, values))

    def _assertion(self, call: nodes.Call, span: Span | None) -> None:
        condition = self.expressions.compile(call.args[0])
        if call.op == "assume":
            code, message = "sim/assume", "an assumption does not hold"
        else:
            code, message = "sim/assert", "assertion failed"
        if len(call.args) > 1 and isinstance(call.args[1], nodes.Text) and call.args[1].value:
            message = f"{message}: {call.args[1].value}"

        def run(c: Cohort) -> None:
            holds = condition(c)
            if not holds.all():
                lanes = c.mask_array() & ~holds
                if lanes.any():
                    c.batch.lane_fault(c, code, message, span, lanes)

        self.effect(run)


def _may_wait(step: Step) -> bool:
    """Is it a raw instruction that makes warps wait for others?"""
    if isinstance(step, Issue) and (_may_suspend(step) or _takes_registers(step)):
        return True
    if isinstance(step, Issue) and (_of_warpgroup(step) or _allocates(step)):
        return True
    if not isinstance(step, Issue) or step.form.mnemonic not in ("bar", "barrier"):
        return False
    return step.form.spelling != "bar.warp.sync" and "arrive" not in step.form.modifiers


def _takes_registers(issue: Issue) -> bool:
    return issue.form.mnemonic == "setmaxnreg" and "inc" in issue.form.modifiers


def _of_warpgroup(issue: Issue) -> bool:
    return issue.form.family == "wgmma" and issue.form.modifiers[0] == "mma_async"


def _allocates(issue: Issue) -> bool:
    return issue.form.family == "tcgen05" and issue.form.modifiers[0] == "alloc"


def _may_suspend(issue: Issue) -> bool:
    return issue.form.family == "mbarrier" and issue.form.modifiers[0] == "try_wait"


def _may_end_phase(issue: Issue) -> bool:
    return issue.form.family == "mbarrier" and issue.form.modifiers[0] in ("arrive", "arrive_drop")


def _orders_memory(issue: Issue) -> bool:
    """Is it a fence between generic accesses? Those of proxies and barriers are instructions."""
    form = issue.form
    if form.mnemonic != "fence":
        return form.mnemonic == "membar"
    return "alias" in form.modifiers or form.modifiers[0] not in ("proxy", "mbarrier_init")


# --- run-time parts


def _split_branch(
    c: Cohort, yes: Mask, no: Mask, enter: Callable[[Cohort, Mask, Mask, bool, bool], int]
) -> int:
    """Warps all of whose lanes agree go their own ways; the others take both ways in turn."""
    assert yes is not None and no is not None
    some_yes, some_no = any_lane(yes), any_lane(no)
    parts = [
        (np.flatnonzero(some_yes & ~some_no), True, False),
        (np.flatnonzero(some_no & ~some_yes), False, True),
        (np.flatnonzero(some_yes & some_no), True, True),
        (np.flatnonzero(~some_yes & ~some_no), False, False),
    ]
    present = [part for part in parts if part[0].size]
    if len(present) == 1:
        return enter(c, yes, no, present[0][1], present[0][2])
    for rows, takes_yes, takes_no in present:
        part = c.select(rows)
        if takes_yes and not takes_no:
            part.pc = enter(part, part.mask, NOT_A_SCOPE, True, False)
        elif takes_no and not takes_yes:
            part.pc = enter(part, NOT_A_SCOPE, part.mask, False, True)
        else:
            part.pc = enter(part, yes[rows], no[rows], takes_yes, takes_no)
        c.batch.arrivals.append(part)
    c.rows = c.rows[:0]
    return STOP


def _pass_by(c: Cohort, after: int) -> int | None:
    """Warps without a lane at the operation before ``after`` go on behind it; None where there are none."""
    if c.mask is None:
        return None
    here = any_lane(c.mask)
    if here.all():
        return None
    if not here.any():
        return after
    return _split_rows(c, [(~here, after), (here, after - 1)])


def _split_rows(c: Cohort, parts: Sequence[tuple[Bools, int]]) -> int:
    """Cohorts of the chosen warps at the given places; the cohort itself ends."""
    for chosen, pc in parts:
        part = c.select(np.flatnonzero(chosen))
        part.pc = pc
        c.batch.arrivals.append(part)
    c.rows = c.rows[:0]
    return STOP


def _count_turn(c: Cohort, span: Span | None) -> None:
    c.turns += 1
    if c.turns > c.batch.step_limit:
        raise fault(
            Unsimulated,
            "sim/step-limit",
            f"a loop turned {c.batch.step_limit} times in the simulator; it may never end",
            span,
            help="tile.simulation(step_limit=…) allows more, if the loop is meant to be that long",
        )


def _warp_barrier(c: Cohort, op: str, span: Span | None) -> None:
    check_converged(c, op, span)
    if c.mask is None:
        c.batch.clocks.warp_barrier(c.rows)
    else:
        here = any_lane(c.mask)
        if here.any():
            c.batch.clocks.warp_barrier(c.rows[here])


def _print(c: Cohort, template: str, values: Sequence[Evaluate]) -> None:
    shape = (c.warps, LANES)
    columns = [np.broadcast_to(value(c), shape) for value in values]
    for row, lane in zip(*np.nonzero(c.mask_array())):
        items = (column[row, lane].item() for column in columns)
        c.batch.output.write(template.format(*items) + "\n")


def _reach(c: Cohort, gap: Unsimulated) -> None:
    if c.any_active():
        raise gap


def _discard(value: Array) -> None:
    """The value of a call made for its effect."""


def _leaves(s: nodes.If) -> bool:
    kinds = (nodes.Break, nodes.Continue, nodes.Return)
    return any(isinstance(inner, kinds) for inner in statements((s,)))
