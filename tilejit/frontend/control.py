"""Control flow: blocks, ``if``, ``for``, ``while``, ``break``, ``continue``, ``return``.

A condition known at compile time prunes: the other side is not visited. A jump that the IR has
(``break`` of an IR loop, ``return`` of the kernel) is emitted as such; any other (out of a
``T.unroll`` loop, out of an inlined helper) raises a flag that guards what follows.

Not here: names that differ between paths (``env``), conditions (``logic``).
"""

from __future__ import annotations

import ast
import functools
from typing import Any

from tilejit import dtypes
from tilejit.frontend import carry, env, operators
from tilejit.frontend.expressions import evaluate, iterate
from tilejit.frontend.logic import condition
from tilejit.frontend.shapes import Leaf, ShapeConflict, fits, refreshed, shape_of, unify
from tilejit.frontend.state import (
    FALLS,
    STOPS,
    Ambiguous,
    Bound,
    Env,
    Flow,
    Key,
    Loop,
    Lowering,
    Missing,
    Region,
    Target,
)
from tilejit.frontend.targets import assigned_names
from tilejit.frontend.values import (
    RangeLoop,
    any_runtime,
    describe,
    dtype_of,
    is_scalar,
    subexpressions,
)
from tilejit.frontend.values import children as parts_of
from tilejit.ir import build
from tilejit.ir import nodes as ir

MAX_UNROLL = 4096
FLAG = "$flag"


# --- blocks


def run_block(lw: Lowering, statements: list[ast.stmt]) -> Flow:
    """Lower statements in order; what follows a flagged jump is guarded by its flag."""
    from tilejit.frontend.statements import run_statement

    for index, statement in enumerate(statements):
        rest = statements[index + 1 :]
        flow = run_statement(lw, statement, rest)
        if not flow.falls or flow.consumed:
            return Flow(flow.falls, flow.pending)
        if flow.pending:
            return (
                guarded(lw, flow.pending, lambda rest=rest: run_block(lw, rest)) if rest else flow
            )
    return FALLS


def guarded(lw: Lowering, pending: frozenset[Target], run: Any) -> Flow:
    """Lower what ``run`` lowers where none of the flags of ``pending`` is up."""
    guard: Any = None
    for target in sorted(pending, key=lambda t: repr(t.key)):
        lowered = build.not_(flag_of(lw, target), span=lw.here())
        guard = lowered if guard is None else build.and_(guard, lowered, span=lw.here())
    with lw.nested() as block:
        flow: Flow = run()
    lw.emit(ir.If(guard, tuple(block), (), span=lw.here()))
    return Flow(flow.falls, pending | flow.pending)


def flag_of(lw: Lowering, target: Target) -> ir.Var:
    """The flag of a target; the first use decides that the target has one."""
    if target.flag is None:
        lw.decide((*target.key, FLAG), Leaf(ir.BOOL))
    return target.flag


def new_target(lw: Lowering, key: Key, native: bool) -> Target:
    """A target; its flag is declared here when an earlier pass needed it."""
    target = Target(key, native)
    if (*key, FLAG) in lw.decisions:
        target.flag = lw.fresh("left", ir.BOOL)
        lw.mutable.add(target.flag.name)
        lw.emit(ir.Declare(target.flag, operators.typed(lw, False), span=lw.here()))
    return target


def raise_flag(lw: Lowering, target: Target) -> None:
    if target.flag is not None:
        lw.emit(ir.Assign(target.flag, operators.typed(lw, True), span=lw.here()))


# --- if


def run_if(lw: Lowering, node: ast.If, rest: list[ast.stmt]) -> Flow:
    test = condition(lw, node.test)
    if isinstance(test, bool):
        return run_block(lw, node.body if test else node.orelse)
    if any_slots(lw, node) and not lw.is_stable(test):
        test = lw.declare("test", test)
    key = lw.region_key(node, "if")
    region = env.enter(lw, key, assigned_names([*node.body, *node.orelse]))
    frame = lw.frame
    with lw.nested() as then_block:
        then_flow = run_block(lw, node.body)
    then_env, frame.env = frame.env, dict(region.entry)
    with lw.nested() as else_block:
        else_flow = run_block(lw, node.orelse)
    else_env = frame.env
    flow, consumed = _continue_in_branch(
        lw, rest, (then_flow, then_block, then_env), (else_flow, else_block, else_env)
    )
    env.leave(lw, region)
    lw.emit(ir.If(test, tuple(then_block), tuple(else_block), span=lw.here()))
    if consumed:
        return Flow(flow.falls, flow.pending, consumed=True)
    line = node.lineno
    paths = []
    if then_flow.falls:
        paths.append((then_env, f"when the condition of line {line} is true"))
    if else_flow.falls:
        paths.append((else_env, f"when the condition of line {line} is false"))
    if paths:
        frame.env = env.merge(key, paths)
    return flow


def any_slots(lw: Lowering, node: ast.If) -> bool:
    """Whether declaring the branch's variables could come between the test and the branch."""
    return bool(assigned_names([*node.body, *node.orelse]))


def _continue_in_branch(
    lw: Lowering,
    rest: list[ast.stmt],
    then: tuple[Flow, list[ir.Stmt], Env],
    orelse: tuple[Flow, list[ir.Stmt], Env],
) -> tuple[Flow, bool]:
    """Where one branch always jumps by a flag, what follows belongs to the other: no flag needed."""
    (a, _, _), (b, _, _) = then, orelse
    both = Flow(a.falls or b.falls, a.pending | b.pending)
    for (jumps, _, _), (goes_on, block, branch_env) in ((then, orelse), (orelse, then)):
        if not jumps.falls and jumps.pending and goes_on.falls and not goes_on.pending and rest:
            lw.frame.env = branch_env
            outer, lw.block = lw.block, block
            lw.depth += 1
            try:
                flow = run_block(lw, rest)
            finally:
                lw.block = outer
                lw.depth -= 1
            return Flow(flow.falls, both.pending | flow.pending), True
    return both, False


# --- loops


def run_for(lw: Lowering, node: ast.For) -> Flow:
    source = evaluate(lw, node.iter)
    if isinstance(source, range):
        source = RangeLoop(source.start, source.stop, source.step, False)
    if isinstance(source, RangeLoop) and not source.unroll:
        return _rolled(lw, node, source)
    if isinstance(source, RangeLoop):
        items: tuple[Any, ...] = tuple(range(source.start, source.stop, source.step))
    elif any_runtime(source) and parts_of(source) is None:
        lw.refuse(
            "iteration", f"{describe(source)} cannot be iterated over", node.iter,
            help="loop over range(...) and index it",
        )  # fmt: skip
    else:
        items = iterate(lw, source, node.iter)
    if len(items) > MAX_UNROLL:
        lw.refuse("unroll", f"{len(items)} rounds written out; at most {MAX_UNROLL}", node.iter)
    return _unrolled(lw, node, items)


def _unrolled(lw: Lowering, node: ast.For, items: tuple[Any, ...]) -> Flow:
    """Every round is lowered by itself, its variable a compile-time value."""
    frame = lw.frame
    key = lw.region_key(node, "unroll")
    region = env.enter(lw, key, set())
    leave = new_target(lw, (*key, "break"), False)
    normal: list[Env] = []
    path = frame.path

    def rounds(index: int) -> Flow:
        if index == len(items):
            flow = run_block(lw, node.orelse)
            if flow.falls:
                normal.append(dict(frame.env))
            return flow
        frame.path = (*path, node.lineno, node.col_offset, index)
        flow = _one_round(lw, node, items[index], leave)
        frame.path = path
        if not flow.falls:
            return flow
        if flow.pending:
            return guarded(lw, flow.pending, lambda: rounds(index + 1))
        return rounds(index + 1)

    flow = rounds(0)
    frame.path = path
    env.leave(lw, region)
    paths = [(e, "after the loop") for e in normal] + [(e, "after `break`") for e in leave.envs]
    if paths:
        frame.env = env.merge(key, paths)
    return Flow(bool(paths), flow.pending - {leave})


def _one_round(lw: Lowering, node: ast.For, item: Any, leave: Target) -> Flow:
    from tilejit.frontend.statements import assign_target

    frame = lw.frame
    key = lw.region_key(node, "round")
    region = env.enter(lw, key, set())
    again = new_target(lw, (*key, "continue"), False)
    frame.loops.append(Loop(False, leave, again))
    assign_target(lw, node.target, item)
    flow = run_block(lw, node.body)
    frame.loops.pop()
    env.leave(lw, region)
    paths = [(e, "after `continue`") for e in again.envs]
    if flow.falls:
        paths.append((frame.env, "at the end of the round"))
    if paths:
        frame.env = env.merge(key, paths)
    return Flow(bool(paths), flow.pending - {again})


def _rolled(lw: Lowering, node: ast.For, source: RangeLoop) -> Flow:
    """An IR loop; bounds are evaluated once, the variable is bound anew in every round."""
    from tilejit.frontend.statements import assign_target

    start, stop, step, trips = _bounds(lw, source, node)
    if trips == 0:
        return run_block(lw, node.orelse)
    key = lw.region_key(node, "for")
    names = assigned_names([node.target, *node.body])
    region, loop = _enter_loop(lw, node, key, names)
    name = node.target.id if isinstance(node.target, ast.Name) else "i"
    var = lw.fresh(name, start.type)
    with lw.nested() as block:
        value: Any = var
        if not isinstance(step, ir.Const):
            offset = operators.binary(lw, "mul", var, step)
            value = operators.binary(lw, "add", start, offset)
        with lw.at(node.target):
            assign_target(lw, node.target, value)
        flow = run_block(lw, node.body)
    ends = _leave_loop(lw, region, loop, flow)
    if isinstance(step, ir.Const):
        head = (start, stop, step)
    else:
        zero = operators.const(lw, 0, dtype_of(start))
        count = _trip_count(lw, start, stop, step)
        head = (zero, count, operators.const(lw, 1, dtype_of(start)))
    lw.emit(ir.For(var, *head, tuple(block), span=lw.here()))
    paths = [(_scrub(e, var, key, node), why) for e, why in ends]
    breaks = [(_scrub(e, var, key, node), "after `break`") for e in loop.leave.envs]
    if trips is None:
        paths.insert(0, (dict(region.entry), f"when the loop of line {node.lineno} does not run"))
    return _after_loop(lw, node, key, loop, paths, breaks)


def _bounds(lw: Lowering, source: RangeLoop, node: ast.For) -> tuple[Any, Any, Any, int | None]:
    """Start, stop and step in one integer type, and the trip count when it is known."""
    raw = [
        part.value if isinstance(part, ir.Const) and not isinstance(part.value, float) else part
        for part in (source.start, source.stop, source.step)
    ]
    typed_parts = [p for p in (source.start, source.stop, source.step) if is_scalar(p)]
    dtype = dtypes.int32
    for part in typed_parts:
        if not dtype_of(part).is_integer and dtype_of(part).kind != "bool":
            lw.refuse("range", f"range takes integers, got {describe(part)}", node.iter)
        dtype = dtypes.promote(dtype, dtype_of(part))
    trips = None
    if all(isinstance(part, int) for part in raw):
        if raw[2] == 0:
            lw.refuse("range", "the step of a range cannot be 0", node.iter)
        count = range(*raw)
        trips = len(count)
        for part in raw:
            dtype = dtypes.promote(dtype, dtypes.literal_type(int(part), None))
    elif raw[2] == 0:
        lw.refuse("range", "the step of a range cannot be 0", node.iter)
    if dtype.kind == "uint" and not (isinstance(raw[2], int) and raw[2] > 0):
        dtype = dtypes.int64
    bounds = []
    for part in raw:
        if isinstance(part, int):
            low, high = dtypes.integer_range(dtype)
            if not low <= part <= high:
                dtype = dtypes.int64
    for name, part in zip(("start", "stop", "step"), raw):
        if isinstance(part, int):
            bounds.append(operators.const(lw, int(part), dtype))
        else:
            bounds.append(lw.keep(operators.cast(lw, part, dtype), name))
    return bounds[0], bounds[1], bounds[2], trips


def _trip_count(lw: Lowering, start: Any, stop: Any, step: Any) -> Any:
    """Rounds of a range whose step is a run-time value; a zero step fails an assertion."""
    if not _counts_ctas_or_threads(step):
        nonzero = operators.binary(lw, "ne", step, 0)
        check = ir.Call(
            "device_assert", (nonzero, ir.Text("the step of a range cannot be 0")), span=lw.here()
        )
        lw.emit(ir.Evaluate(check, span=lw.here()))
    distance = operators.binary(lw, "sub", stop, start)
    # Python's length of a range, for both signs of the step: -(-distance // step), at least 0.
    negated = operators.unary(lw, "neg", distance)
    count = operators.unary(lw, "neg", operators.binary(lw, "floordiv", negated, step))
    zero = operators.const(lw, 0, dtype_of(start))
    return lw.declare("rounds", build.maximum(count, zero, span=lw.here()))


def _counts_ctas_or_threads(value: Any) -> bool:
    """Is it an extent of the launch, which is never 0?"""
    name = value.name if isinstance(value, ir.HardwareId) else ""
    return name.partition(".")[0] in ("ntid", "nctaid", "cluster_nctaid", "nclusterid")


def run_while(lw: Lowering, node: ast.While) -> Flow:
    frame = lw.frame
    key = lw.region_key(node, "while")
    names = assigned_names([node.test, *node.body])
    region, loop = _enter_loop(lw, node, key, names)
    bound_by_test = assigned_names([node.test])
    with lw.nested() as block:
        test = condition(lw, node.test)
        after_test = dict(frame.env)
        if test is False:
            env.leave(lw, region)
            frame.loops.pop()
            skipped = True
        else:
            skipped = False
            if test is not True:
                leaves = build.not_(test, span=lw.here())
                lw.emit(ir.If(leaves, (ir.Break(span=lw.here()),), (), span=lw.here()))
            flow = run_block(lw, node.body)
    if skipped:
        lw.block.extend(block)
        return run_block(lw, node.orelse)
    ends = _leave_loop(lw, region, loop, flow)
    lw.emit(ir.While(tuple(block), span=lw.here()))
    breaks = [(e, "after `break`") for e in loop.leave.envs]
    paths = []
    if test is not True:
        paths = [(after_test, f"when the loop of line {node.lineno} does not run")]
        for end, why in ends:
            paths.append(({**end, **{n: after_test[n] for n in bound_by_test}}, why))
    return _after_loop(lw, node, key, loop, paths, breaks)


def _enter_loop(
    lw: Lowering, node: ast.For | ast.While, key: Key, names: set[str]
) -> tuple[Region, Loop]:
    region = env.enter(lw, key, names)
    loop = Loop(True, Target((*key, "break"), True), Target((*key, "continue"), True))
    if node.orelse and _breaks(node.body):
        loop.broke = lw.fresh("broke", ir.BOOL)
        lw.mutable.add(loop.broke.name)
        lw.emit(ir.Declare(loop.broke, operators.typed(lw, False), span=lw.here()))
    lw.frame.loops.append(loop)
    return region, loop


def _breaks(body: list[ast.stmt]) -> bool:
    """Whether a ``break`` of this very loop is in ``body``."""
    for statement in body:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.For | ast.While):
            if _breaks(statement.orelse):
                return True
        elif isinstance(statement, ast.If) and _breaks([*statement.body, *statement.orelse]):
            return True
    return False


def _leave_loop(lw: Lowering, region: Region, loop: Loop, flow: Flow) -> list[tuple[Env, str]]:
    """End the body: the paths on which the loop goes on, checked against its start."""
    lw.frame.loops.pop()
    env.leave(lw, region)
    ends = [(e, "after `continue`") for e in loop.again.envs]
    if flow.falls:
        ends.append((dict(lw.frame.env), "at the end of a round"))
    env.back_edge(lw, region, ends)
    return ends


def _scrub(bindings: Env, var: ir.Var, key: Key, node: ast.For) -> Env:
    """Bindings after the loop: its variable is no longer there, so what mentions it must be
    carried (scalars, when read) or is gone."""
    result: Env = {}
    for name, binding in bindings.items():
        if isinstance(binding, Bound) and _mentions(binding.value, var):
            if is_scalar(binding.value):
                binding = Ambiguous((*key, name), (binding, binding))
            else:
                why = f"it depends on the variable of the loop of line {node.lineno}"
                binding = Missing(why, binding.span)
        result[name] = binding
    return result


def _mentions(value: Any, var: ir.Var) -> bool:
    parts = parts_of(value)
    if parts is not None:
        return any(_mentions(part, var) for part in parts)
    return any(part is var or part == var for part in subexpressions(value))


def _after_loop(
    lw: Lowering,
    node: ast.For | ast.While,
    key: Key,
    loop: Loop,
    normal: list[tuple[Env, str]],
    breaks: list[tuple[Env, str]],
) -> Flow:
    """The ``else`` clause, the names after the loop, and jumps that leave it for farther targets."""
    frame = lw.frame
    flow = FALLS
    paths = normal + breaks
    # A jump that left the loop for a farther target skips the clause too.
    left = [] if loop.broke is None else [loop.broke]
    pending: set[Target] = set()
    outer = next((one for one in reversed(frame.loops) if one.native), None)
    for target in sorted(loop.escapes, key=lambda t: repr(t.key)):
        up = flag_of(lw, target)
        if outer is None:
            pending.add(target)
            left.append(up)
        else:
            outer.escapes.add(target)
            lw.emit(ir.If(up, (ir.Break(span=lw.here()),), (), span=lw.here()))
    if normal and node.orelse and left:
        flow, paths = _else_unless_left(lw, node, key, left, normal, breaks)
        key = (*key, "after")
    elif normal and node.orelse:
        frame.env = env.merge(key, normal)
        flow = run_block(lw, node.orelse)
        paths = [(frame.env, "after `else`")] if flow.falls else []
    if paths:
        frame.env = env.merge(key, paths)
    return Flow(bool(paths), frozenset(pending | flow.pending))


def _else_unless_left(
    lw: Lowering,
    node: ast.For | ast.While,
    key: Key,
    flags: list[ir.Var],
    normal: list[tuple[Env, str]],
    breaks: list[tuple[Env, str]],
) -> tuple[Flow, list[tuple[Env, str]]]:
    """``else`` of a loop that may be left by a jump: a branch on the jumps' flags.

    Variables that the clause assigns start as what the loop left; names that the clause only reads
    are what they are on the paths that lead into it.
    """
    frame = lw.frame
    frame.env = env.merge(key, normal + breaks)
    region = env.enter(lw, (*key, "after"), assigned_names(node.orelse))
    carried = {name: frame.env[name] for name in region.carried if name in frame.env}
    left = {**env.merge(key, breaks), **carried} if breaks else None
    frame.env = {**env.merge(key, normal), **carried}
    with lw.nested() as block:
        flow = run_block(lw, node.orelse)
    env.leave(lw, region)
    guards = [build.not_(flag, span=lw.here()) for flag in flags]
    guard = functools.reduce(lambda a, b: build.and_(a, b, span=lw.here()), guards)
    lw.emit(ir.If(guard, tuple(block), (), span=lw.here()))
    paths = [(frame.env, "after `else`")] if flow.falls else []
    if left is not None:
        paths.append((left, "after `break`"))
    return flow, paths


# --- jumps


def run_break(lw: Lowering, node: ast.Break) -> Flow:
    loop = _innermost(lw, "break", node)
    loop.leave.envs.append(dict(lw.frame.env))
    if loop.native:
        if loop.broke is not None:
            lw.emit(ir.Assign(loop.broke, operators.typed(lw, True), span=lw.here()))
        lw.emit(ir.Break(span=lw.here()))
        return STOPS
    raise_flag(lw, loop.leave)
    return Flow(False, frozenset({loop.leave}))


def run_continue(lw: Lowering, node: ast.Continue) -> Flow:
    loop = _innermost(lw, "continue", node)
    loop.again.envs.append(dict(lw.frame.env))
    if loop.native:
        lw.emit(ir.Continue(span=lw.here()))
        return STOPS
    raise_flag(lw, loop.again)
    return Flow(False, frozenset({loop.again}))


def _innermost(lw: Lowering, word: str, node: ast.stmt) -> Loop:
    if not lw.frame.loops:
        lw.refuse("syntax", f"`{word}` outside a loop", node)
    return lw.frame.loops[-1]


def run_return(lw: Lowering, node: ast.Return) -> Flow:
    frame = lw.frame
    value = evaluate(lw, node.value) if node.value is not None else None
    if frame.role == "kernel":
        if value is not None:
            lw.refuse(
                "return", "a kernel returns nothing", node,
                help="store results to a tensor parameter",
            )  # fmt: skip
        lw.emit(ir.Return(span=lw.here()))
        return STOPS
    return give(lw, value)


def give(lw: Lowering, value: Any) -> Flow:
    """``return value`` of an inlined function."""
    frame, result = lw.frame, lw.frame.result
    assert result is not None
    if frame.role == "lambda":
        lw.emit(ir.Return(operators.typed(lw, _lambda_value(lw, value)), span=lw.here()))
        result.given = True
        return STOPS
    if lw.depth == result.depth and not result.given:
        result.given, result.value = True, lw.keep(value, "result")
        return STOPS
    _carry_result(lw, value)
    raise_flag(lw, result.target)
    if any(loop.native for loop in frame.loops):
        next(loop for loop in reversed(frame.loops) if loop.native).escapes.add(result.target)
        lw.emit(ir.Break(span=lw.here()))
        return STOPS
    return Flow(False, frozenset({result.target}))


def _lambda_value(lw: Lowering, value: Any) -> Any:
    result = lw.frame.result
    assert result is not None
    wanted = result.shape
    if isinstance(wanted, Leaf) and isinstance(wanted.type, ir.ScalarType) and not is_scalar(value):
        return operators.cast(lw, value, wanted.type.dtype)
    return value


def _carry_result(lw: Lowering, value: Any) -> None:
    result = lw.frame.result
    assert result is not None
    key = (*result.key, "$result")
    decided = lw.decisions.get(key)
    if decided is None:
        lw.decide(key, shape_of(value))
    result.shape = refreshed(decided, shape_of(value)) if not result.given else result.shape
    assert result.shape is not None
    if not fits(result.shape, value):
        try:
            lw.decide(key, unify(result.shape, shape_of(value)))
        except ShapeConflict as why:
            carry.conflict(lw, "return value", why, [result.span, lw.here()])
    if not result.given:
        result.tree = carry.replace_fixed(result.tree, result.shape)
    result.given, result.span = True, lw.here()
    carry.assign(lw, result.tree, value, "result")
