"""What is known at every tile call: an abstract run of the whole function, for all threads at once.

The block size is static, so a value that depends on thread ids only is an array with one entry per
thread of a cluster; everything else is affine in symbols (``tile.affine``). Guards narrow the thread
mask and add inequalities; early ``return``, ``break`` and ``continue`` are honoured; loops run to a
fixed point that recognises induction variables.

Not here: values of expressions (``tile.values``), what groups an active set forms (``tile.groups``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from tilejit import dtypes
from tilejit.errors import InternalError, fault
from tilejit.ir import nodes, walk
from tilejit.ir.dims import MAX_OFFSET_ELEMS
from tilejit.layout import TileLayout
from tilejit.tile.affine import (
    GRID,
    HUGE,
    THREAD,
    Affine,
    Cond,
    Context,
    Number,
    Symbol,
    Threads,
    enter,
    exactly,
    negation,
    of_symbol,
    settle,
    unknown_truth,
)
from tilejit.tile.barriers import is_barrier
from tilejit.tile.launch import launch_values
from tilejit.tile.raw import written_variables
from tilejit.tile.values import (
    MAX_EXTENT,
    Derived,
    Environment,
    Evaluator,
    Opaque,
    Value,
    common_congruence,
    hull,
    integer_bounds,
)

MAX_PASSES = 10
"""A loop's fixed point takes 2 to 6 passes; after this many every changing value is unknown."""
AIMS = 2
"""Guesses of a loop variable's range that numbers compared in the loop suggest."""
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclass(frozen=True, slots=True)
class Site:
    """One tile call or barrier: the context and variables it executes with. ``context.dead``: never
    reached."""

    call: nodes.Call
    context: Context
    env: Environment


@dataclass(slots=True)
class Facts:
    """The result: sites by identity of their call, in program order."""

    threads: Threads
    launch: nodes.LaunchConfig
    hardware: dict[str, Affine]
    derived: Derived
    sites: dict[int, Site] = field(default_factory=dict)

    def evaluator(self, site: Site) -> Evaluator:
        return Evaluator(site.context, site.env, self.derived, self.hardware, known={})


@dataclass(slots=True)
class _State:
    """``lost_*``: uniformity of the exits some threads may have taken before this point."""

    context: Context
    env: Environment
    lost_return: int = GRID
    lost_break: int = GRID
    lost_continue: int = GRID

    @property
    def lost(self) -> int:
        return min(self.lost_return, self.lost_break, self.lost_continue)

    def branch(self, context: Context) -> _State:
        return _State(
            context, dict(self.env), self.lost_return, self.lost_break, self.lost_continue
        )


@dataclass(slots=True)
class _Loop:
    mask: np.ndarray
    breaks: list[_State] = field(default_factory=list)
    continues: list[_State] = field(default_factory=list)


@dataclass(slots=True)
class _Guess:
    """What a variable assigned in a loop is at the top of an iteration.

    ``step``: it is ``init + step · iteration``. A value that changes otherwise is first ``grown`` to
    cover one more iteration, then ``aimed`` at what the loop ``compared`` values with, then ``widened``
    to its type's range, then narrowed once and ``fixed``.
    """

    init: Value
    type: nodes.Type
    value: Value
    compared: tuple[int, ...] = ()
    step: Number | None = None
    probe: bool = True
    grown: bool = False
    aimed: int = 0
    widened: bool = False
    fixed: bool = False


def analyse(function: nodes.Function) -> Facts:
    """Facts at every tile call of the function."""
    return _Interpreter(function).run()


class _Interpreter:
    def __init__(self, function: nodes.Function) -> None:
        self.function = function
        launch = function.launch
        ctas = 1
        for extent in launch.cluster or ():
            ctas *= extent
        self.threads = Threads(ctas, launch.threads)
        self.loops: list[_Loop] = []
        self.types: dict[str, nodes.Type] = {}

    def run(self) -> Facts:
        state = _State(Context(self.threads, np.ones(self.threads.total, dtype=np.bool_)), {})
        self._parameters(state)
        derived = Derived()
        host = Evaluator(state.context, state.env, derived, {}, wraps=False)
        launch = self.function.launch
        grid = tuple(host.integer(extent) for extent in launch.grid or ())
        hardware, facts = launch_values(self.threads, launch, _bounded(grid, launch, host))
        state.context = host.context.assuming(facts)
        self.facts = Facts(self.threads, launch, hardware, derived)
        _refuse_shared(self.function.body)
        self._block(self.function.body, state)
        return self.facts

    def _parameters(self, state: _State) -> None:
        dynamic = _dynamic_sizes(self.function)
        for param in self.function.params:
            self.types[param.name] = param.type
            if not isinstance(param.type, nodes.ScalarType):
                continue
            dtype = param.type.dtype
            if dtype.is_integer:
                low, high = integer_bounds(dtype)
                if param.name in dynamic:
                    low, high = 1, min(high, dynamic[param.name])
                symbol = Symbol(param.name, low, high, level=GRID)
                state.env[param.name] = of_symbol(symbol)
            else:
                state.env[param.name] = (
                    unknown_truth(GRID) if dtype.kind == "bool" else Opaque(GRID)
                )

    # --- statements

    def _evaluator(self, state: _State) -> Evaluator:
        return Evaluator(state.context, state.env, self.facts.derived, self.facts.hardware)

    def _value(self, expr: nodes.Expr, state: _State) -> Value:
        evaluator = self._evaluator(state)
        value = evaluator.value(expr)
        state.context = evaluator.context
        return value

    def _block(self, block: nodes.Block, state: _State) -> None:
        for statement in block:
            self._statement(statement, state)

    def _statement(self, statement: nodes.Stmt, state: _State) -> None:
        match statement:
            case nodes.Declare(var=var, value=value):
                self.types[var.name] = var.type
                if value is None:
                    state.env[var.name] = self._evaluator(state).unknown(var.type, var.name, THREAD)
                else:
                    state.env[var.name] = self._value(value, state)
            case nodes.Assign(var=var, value=value):
                state.env[var.name] = self._value(value, state)
            case nodes.DeclTmem(buffer=buffer, address=address):
                self.types[buffer.name] = nodes.UINT32
                state.env[buffer.name] = self._value(address, state)
            case nodes.Evaluate(call=call):
                self._evaluate(call, state)
            case nodes.If():
                self._if(statement, state)
            case nodes.For():
                self._for(statement, state)
            case nodes.While():
                self._while(statement, state)
            case nodes.Break():
                self._leave(state, self.loops[-1].breaks, "lost_break")
            case nodes.Continue():
                self._leave(state, self.loops[-1].continues, "lost_continue")
            case nodes.Return():
                self._leave(state, [], "lost_return")

    def _leave(self, state: _State, exits: list[_State], lost: str) -> None:
        """Threads of the context go elsewhere; the rest of the block is dead."""
        if state.context.dead:
            return
        level = state.context.level
        if state.context.elected:
            level = THREAD
        if self.loops and lost != "lost_continue":
            # In a later iteration these threads are gone, though the loop's mask still has them.
            inside = self.loops[-1].mask
            level = min(level, self.threads.array_level(state.context.mask, inside))
        setattr(state, lost, min(getattr(state, lost), level))
        exits.append(state.branch(state.context))
        state.context = state.context.narrowed(False)

    def _evaluate(self, call: nodes.Call, state: _State) -> None:
        if call.op in ("assume", "device_assert"):
            evaluator = self._evaluator(state)
            cond = evaluator.truth(call.args[0])
            context = evaluator.context.assuming(cond.when_true)
            for value, mod, rem in cond.congruent_true:
                context = context.congruent(value, mod, rem)
            state.context = context
        elif call.op in ("tile.apply", "tile.ewise", "ptx") or is_barrier(call):
            self.facts.sites[id(call)] = Site(call, state.context, dict(state.env))
            if call.op == "ptx":
                for var in written_variables(call):
                    evaluator = self._evaluator(state)
                    state.env[var.name] = evaluator.unknown(var.type, var.name, THREAD)

    # --- branches

    def _if(self, statement: nodes.If, state: _State) -> None:
        evaluator = self._evaluator(state)
        cond = evaluator.truth(statement.condition)
        before = state.context = evaluator.context
        then = state.branch(enter(before, cond, statement.condition.span or statement.span))
        orelse = state.branch(enter(before, negation(cond), statement.condition.span))
        if isinstance(statement.condition, nodes.Var):
            # The variable that was tested is known on each side.
            then.env[statement.condition.name] = exactly(True)
            orelse.env[statement.condition.name] = exactly(False)
        self._block(statement.then, then)
        self._block(statement.orelse, orelse)
        self._merge(state, before, cond, then, orelse)

    def _merge(
        self, state: _State, before: Context, cond: Cond, then: _State, orelse: _State
    ) -> None:
        for lost in ("lost_return", "lost_break", "lost_continue"):
            setattr(state, lost, min(getattr(then, lost), getattr(orelse, lost)))
        if then.context.dead or orelse.context.dead:
            alive = orelse if then.context.dead else then
            state.context = alive.context
            state.env = alive.env
            return
        state.context = replace(
            before,
            mask=then.context.mask | orelse.context.mask,
            level=min(before.level, state.lost),
        )
        evaluator = self._evaluator(state)
        merged = {}
        for name in state.env.keys() & then.env.keys() & orelse.env.keys():
            merged[name] = evaluator.join(
                cond,
                (then.context, then.env[name]),
                (orelse.context, orelse.env[name]),
                self.types[name],
                name,
            )
        state.env = merged

    # --- loops

    def _for(self, loop: nodes.For, state: _State) -> None:
        evaluator = self._evaluator(state)
        start, stop = evaluator.integer(loop.start), evaluator.integer(loop.stop)
        state.context = evaluator.context
        step = int(loop.step.value)
        span = stop - start if step > 0 else start - stop
        size = abs(step)
        self.types[loop.var.name] = loop.var.type
        trips: Number | None = None
        inside = state.context
        if span.exact:
            trips = settle(np.maximum(-(-np.asarray(span.const) // size), 0))
            inside = inside.narrowed(np.asarray(trips) > 0)
            highest = -inside.least(-trips) if not inside.dead else 0
            level = GRID if isinstance(trips, int) else self.threads.array_level(trips, inside.mask)
        else:
            highest = max(0, -(-inside.range(span)[1] // size))
            level = inside.uniformity(span)
            inside = inside.assuming((span - 1,))
        if highest <= 0:
            inside = inside.narrowed(False)
        counter = Symbol(
            loop.var.name, 0, max(0, min(highest - 1, HUGE)), level=level,
            attained=isinstance(trips, int),
        )  # fmt: skip
        iteration = of_symbol(counter) if highest > 1 else Affine()
        if not isinstance(trips, int):
            inside = inside.assuming((span - iteration.scaled(size) - 1,))
        inside = replace(inside, level=min(inside.level, level))
        body = state.branch(inside)
        body.env[loop.var.name] = start + iteration.scaled(step)
        certain = isinstance(trips, int) and trips > 0
        self._repeat(loop.body, state, body, iteration, trips, certain, level)

    def _while(self, loop: nodes.While, state: _State) -> None:
        self._repeat(loop.body, state, state.branch(state.context), None, None, True, GRID)

    def _repeat(
        self,
        block: nodes.Block,
        state: _State,
        top: _State,
        iteration: Affine | None,
        trips: Number | None,
        certain: bool,
        level: int,
    ) -> None:
        """Runs a loop body to its fixed point and leaves ``state`` after the loop.

        ``iteration`` counts from 0 (None: unbounded), ``trips`` is the exact count where known,
        ``certain``: at least one iteration runs. ``level``: uniformity of the iteration count.
        """
        serial = Symbol("", 0, 0).serial
        names = sorted(_assigned(block) & state.env.keys())
        outside = _State(top.context, dict(top.env), state.lost_return)
        compared = _compared(block, names)
        guesses = {n: self._first_guess(state, n, compared) for n in names}
        for attempt in range(MAX_PASSES + 1):
            last = attempt == MAX_PASSES
            if last:
                for name, guess in guesses.items():
                    guess.value, guess.fixed, guess.step = self._anything(guess, name), True, None
            run = outside.branch(
                replace(outside.context, level=min(outside.context.level, outside.lost))
            )
            for name, guess in guesses.items():
                run.env[name] = self._at_top(guess, name, iteration)
            start_values = {n: run.env[n] for n in names}
            frame = _Loop(run.context.mask)
            self.loops.append(frame)
            self._block(block, run)
            self.loops.pop()
            ends = [s for s in (run, *frame.continues) if not s.context.dead]
            lost_break = min([outside.lost_break, *(s.lost_break for s in (run, *frame.continues))])
            lost_return = min(
                [outside.lost_return, *(s.lost_return for s in (run, *frame.continues))]
            )
            settled = (lost_break, lost_return) == (outside.lost_break, outside.lost_return)
            outside.lost_break, outside.lost_return = lost_break, lost_return
            for name, guess in guesses.items():
                values = [(s.context, s.env[name]) for s in ends]
                if not self._settle(guess, name, start_values[name], values, iteration):
                    settled = False
            if settled or last:
                break
        self._after_loop(
            state, outside, guesses, ends, frame, iteration, trips, certain, level, serial
        )

    def _after_loop(
        self,
        state: _State,
        outside: _State,
        guesses: dict[str, _Guess],
        ends: list[_State],
        frame: _Loop,
        iteration: Affine | None,
        trips: Number | None,
        certain: bool,
        level: int,
        serial: int,
    ) -> None:
        state.lost_return = outside.lost_return
        before = state.context
        state.context = replace(before, level=min(before.level, outside.lost_return))
        exits = [s for s in frame.breaks if not s.context.dead]
        if iteration is None and not exits:
            state.context = before.narrowed(False)
            return
        level = min(level, outside.lost_break)
        evaluator = self._evaluator(state)
        for name, guess in guesses.items():
            if guess.step is not None and trips is not None and not exits:
                assert isinstance(guess.init, Affine)
                state.env[name] = guess.init + Affine(trips).scaled(guess.step)
                continue
            leaving = exits if iteration is None else exits + ends
            values = [(s.context, s.env[name]) for s in leaving]
            if not certain:
                values.append((before, guess.init))
            state.env[name] = self._joined(evaluator, values, guess, name, level, serial)

    def _joined(
        self,
        evaluator: Evaluator,
        values: list[tuple[Context, Value]],
        guess: _Guess,
        name: str,
        level: int,
        serial: int,
    ) -> Value:
        """The value after a loop: one of ``values``, which may vary with the iteration."""
        first = values[0][1] if values else guess.init
        if all(v is first for _, v in values):
            if not isinstance(first, Affine) or all(s.serial < serial for s in first.terms):
                return first
        affine = [(c, v) for c, v in values if isinstance(v, Affine)]
        if affine and len(affine) == len(values):
            same = all(v.key() == affine[0][1].key() for _, v in affine)
            if same and all(s.serial < serial for s in affine[0][1].terms):
                return affine[0][1]
            low = min([level, *(c.uniformity(v) for c, v in affine)])
            return hull(affine, name, low)
        low = min([level, *(evaluator.level(v) for _, v in values)])
        return evaluator.unknown(guess.type, name, low)

    # --- guesses

    def _first_guess(self, state: _State, name: str, compared: tuple[int, ...]) -> _Guess:
        init = state.env[name]
        value: Value = init
        if isinstance(init, Affine):
            level = state.context.uniformity(init)
            value = hull([(state.context, init)], name, level)
        elif isinstance(init, Cond):
            value = unknown_truth(self._evaluator(state).level(init))
        return _Guess(init, self.types[name], value, compared)

    def _anything(self, guess: _Guess, name: str) -> Value:
        low, high = _type_bounds(guess.type)
        if isinstance(guess.init, Affine):
            return of_symbol(Symbol(name, low, high, level=THREAD))
        return unknown_truth(THREAD) if isinstance(guess.init, Cond) else Opaque(THREAD)

    def _at_top(self, guess: _Guess, name: str, iteration: Affine | None) -> Value:
        if guess.step is not None and iteration is not None:
            assert isinstance(guess.init, Affine)
            return guess.init + iteration.scaled(guess.step)
        return guess.value

    def _settle(
        self,
        guess: _Guess,
        name: str,
        top: Value,
        ends: list[tuple[Context, Value]],
        iteration: Affine | None,
    ) -> bool:
        """Does the guess hold at the end of the iteration? Improves it and says False if not."""
        if not ends:
            return True
        if not isinstance(top, Affine):
            levels = [_level_of(c, v) for c, v in ends]
            now = _level_of(ends[0][0], top)
            lowest = min([now, *levels])
            if lowest < now:
                guess.value = unknown_truth(lowest) if isinstance(top, Cond) else Opaque(lowest)
                return False
            return True
        values = [(c, v) for c, v in ends if isinstance(v, Affine)]
        if len(values) != len(ends):
            guess.value, guess.fixed, guess.step = self._anything(guess, name), True, None
            return False
        differences = [v - top for _, v in values]
        steady = all(d.exact for d in differences) and (len({d.key() for d in differences}) == 1)
        change = differences[0].const
        if guess.step is not None:
            if steady and np.array_equal(np.asarray(change), np.asarray(guess.step)):
                return True
            # What the steps led to says little: start again with the first iteration.
            guess.step = None
            return False
        if guess.probe:
            guess.probe = False
            if steady and isinstance(change, int) and change == 0:
                return True
            if steady and iteration is not None:
                guess.step = change
                return False
            return self._widen(guess, name, values)
        return self._holds(guess, name, top, values)

    def _holds(
        self, guess: _Guess, name: str, top: Affine, values: list[tuple[Context, Affine]]
    ) -> bool:
        (symbol,) = top.terms or (Symbol(name, int(np.min(top.const)), int(np.max(top.const))),)
        ranges = [c.range(v) for c, v in values]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        level = min(c.uniformity(v) for c, v in values)
        whole = Context(self.threads, np.ones(self.threads.total, dtype=np.bool_))
        mod, _ = common_congruence([*values, (whole, top)])
        fits = (symbol.lo <= low and high <= symbol.hi) or all(
            # What a guard says of two unknowns only the prover sees.
            c.prove_nonnegative(v - symbol.lo) and c.prove_nonnegative(-v + symbol.hi)
            for c, v in values
        )
        congruent = symbol.mod == mod
        if not fits or not congruent or level < symbol.level:
            if guess.fixed and not fits:
                guess.value = self._anything(guess, name)
                return False
            return self._widen(guess, name, values)
        assert isinstance(guess.init, Affine)
        init_low, init_high = whole.range(guess.init)
        low, high = min(low, init_low), max(high, init_high)
        if guess.widened and not guess.fixed and (low > symbol.lo or high < symbol.hi):
            guess.fixed = True
            guess.value = of_symbol(
                Symbol(name, low, high, mod=symbol.mod, rem=symbol.rem, level=symbol.level)
            )
            return False
        return True

    def _widen(self, guess: _Guess, name: str, values: list[tuple[Context, Affine]]) -> bool:
        """A guess that covers the values and what further iterations may make of them."""
        assert isinstance(guess.init, Affine)
        whole = Context(self.threads, np.ones(self.threads.total, dtype=np.bool_))
        everything = [(whole, guess.init), *values]
        if isinstance(guess.value, Affine) and guess.widened:
            everything.append((whole, guess.value))
        ranges = [c.range(v) for c, v in everything]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        aim = None
        if guess.grown:
            init_low, init_high = whole.range(guess.init)
            sinks, rises = low < init_low, high > init_high
            aim = self._aim(guess, low if sinks else None, high if rises else None)
            least, greatest = aim or _type_bounds(guess.type)
            low = least if sinks else init_low
            high = greatest if rises else init_high
        level = min(c.uniformity(v) for c, v in everything)
        mod, rem = common_congruence(everything)
        guess.step, guess.widened, guess.grown = None, guess.grown and aim is None, True
        guess.value = of_symbol(Symbol(name, low, high, mod=mod, rem=rem, level=level))
        return False

    def _aim(self, guess: _Guess, low: int | None, high: int | None) -> tuple[int, int] | None:
        """Bounds for a variable that is reset where it reaches c: first short of c, then up to it.
        ``low``, ``high``: what it sinks or rises to; None where it does neither."""
        least, greatest = _type_bounds(guess.type)
        while guess.aimed < AIMS:
            guess.aimed += 1
            short = AIMS - guess.aimed
            below = [c + short for c in guess.compared if low is not None and c + short <= low]
            above = [c - short for c in guess.compared if high is not None and c - short >= high]
            if below or above:
                return max(below, default=least), min(above, default=greatest)
        return None


# --- helpers


def _compared(block: nodes.Block, names: Collection[str]) -> tuple[int, ...]:
    """The numbers that the block compares with, in conditions and in what it assigns to ``names``."""
    found: set[int] = set()
    for statement in walk.statements(block):
        match statement:
            case nodes.If(condition=expr):
                found |= _constants_compared(expr)
            case nodes.Declare(value=expr) if expr is not None and expr.type == nodes.BOOL:
                found |= _constants_compared(expr)
            case nodes.Assign(var=var, value=expr) if var.name in names:
                found |= _constants_compared(expr)
    return tuple(sorted(found))


def _constants_compared(expr: nodes.Expr) -> set[int]:
    return {
        side.value
        for node in walk.descend(expr)
        if isinstance(node, nodes.Binary) and node.op in COMPARISONS
        for side in (node.lhs, node.rhs)
        if isinstance(side, nodes.Const) and type(side.value) is int
    }


def _type_bounds(type_: nodes.Type) -> tuple[int, int]:
    if isinstance(type_, nodes.ScalarType) and not type_.dtype.is_float:
        return integer_bounds(type_.dtype)
    return integer_bounds(dtypes.int64)


def _level_of(context: Context, value: Value) -> int:
    return Evaluator(context, {}, Derived(), {}).level(value)


def _assigned(block: nodes.Block) -> set[str]:
    """Names that some statement of the block, nested ones included, overwrites."""
    names: set[str] = set()
    for statement in block:
        match statement:
            case nodes.Assign(var=var) | nodes.Declare(var=var) | nodes.DeclTmem(buffer=var):
                names.add(var.name)
            case nodes.If(then=then, orelse=orelse):
                names |= _assigned(then) | _assigned(orelse)
            case nodes.For(body=body, var=var):
                names |= _assigned(body) | {var.name}
            case nodes.While(body=body):
                names |= _assigned(body)
            case nodes.Evaluate(call=call) if call.op == "ptx":
                names |= {var.name for var in written_variables(call)}
    return names


def _refuse_shared(block: nodes.Block) -> None:
    """Facts are kept by a call's identity, so one call object stands at one place."""
    seen: set[int] = set()
    for statement in walk.statements(block):
        if isinstance(statement, nodes.Evaluate):
            call = statement.call
            if id(call) in seen:
                raise fault(
                    InternalError, "internal/shared-call", "one call stands at two places",
                    call.span,
                )  # fmt: skip
            seen.add(id(call))


def _dynamic_sizes(function: nodes.Function) -> dict[str, int]:
    """Scalar parameters that are sizes of tensor parameters, and the most that each can be: elements
    with a fixed stride between them lie in one address space."""
    most: dict[str, int] = {}
    for param in function.params:
        if not isinstance(param.type, nodes.TensorType):
            continue
        for extent, stride in zip(param.type.shape, _strides(param.type)):
            if isinstance(extent, nodes.Var):
                limit = min(MAX_EXTENT, MAX_OFFSET_ELEMS // max(1, stride) + 1)
                most[extent.name] = min(limit, most.get(extent.name, limit))
    return most


def _strides(tensor: nodes.TensorType) -> tuple[int, ...]:
    """By dimension; 0 where it is a run-time number or not plain."""
    shard = tensor.layout.shard if isinstance(tensor.layout, TileLayout) else ()
    if len(shard) != len(tensor.shape):
        return (0,) * len(tensor.shape)
    return tuple(iter_.stride for iter_ in shard)


def _bounded(
    grid: tuple[Affine, ...], launch: nodes.LaunchConfig, host: Evaluator
) -> tuple[Affine, ...]:
    """The grid's extents; a launch exists, so each is at least 1 and at most its bound."""
    for extent, bound in zip(grid, launch.grid_bound):
        if not extent.exact:
            host.context = host.context.assuming((extent - 1, -extent + bound))
    return grid
