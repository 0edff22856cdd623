"""How many instructions a checked kernel issues, where, by whom: counted, not measured.

Every native step, scalar memory access, operation on floats and named operation of the IR, with the loops
around it. How often a loop runs is an expression of the launch; ``trips`` makes it a number where that can be
known. Integer arithmetic, mostly of addresses, and all that the compiler decides have no place here.

Not here: what an instruction costs (``tile.work``, ``tune.model``), instructions of the cubin (``runtime.sass``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from tilejit.errors import Span
from tilejit.ir import build, nodes, script, walk
from tilejit.ir.ops import OPS, STRUCTURAL
from tilejit.ptx.forms import Form
from tilejit.tile.affine import Context
from tilejit.tile.checker import Checked
from tilejit.tile.facts import Facts, analyse
from tilejit.tile.family import Issue, Let, ScalarApply, Step

Unit: TypeAlias = Literal["thread", "warp", "warpgroup"]
"""Who issues one instruction together."""
UNIT_THREADS: dict[Unit, int] = {"thread": 1, "warp": 32, "warpgroup": 128}
Scalar: TypeAlias = nodes.Load | nodes.Store | nodes.Call | nodes.Binary | nodes.Unary | nodes.Cast
"""What the compiler spells: accesses to memory, operations with a name, operations on floats."""
_UNCOUNTED = frozenset({"assume", "device_assert", "print"})
"""Operations that a kernel which works does not spend time on."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """One loop around an instruction. ``rounds``: how often its body runs each time the loop is reached,
    over the launch's scalars, sizes and hardware ids, and variables that ``bound`` explains; None for
    ``while``. ``leaves``: a ``break`` or ``return`` in it may end it earlier."""

    rounds: nodes.Expr | None
    bound: Mapping[str, nodes.Expr] = field(repr=False)
    leaves: bool
    span: Span | None

    def __str__(self) -> str:
        place = "" if self.span is None else f" of line {self.span.line}"
        if self.rounds is None:
            return f"rounds of the while loop{place}"
        return f"({script.print_expr(self.rounds)})"


@dataclass(frozen=True, slots=True)
class IssueCount:
    """Instructions of one spelling that one place of the source issues.

    ``per_pass``: how many each issuing unit issues every time it gets there; an unrolled loop's copies
    are one place. ``loops``: outermost first. ``threads``: of a CTA (of a cluster, in a launch with clusters)
    get there, in ``warps`` warps. ``at_most``: a run-time guard, a predicate or an early end of a loop may
    keep some from it. ``form`` is None for what the C++ compiler spells: scalar accesses and operations.
    """

    span: Span | None
    spelling: str
    per_pass: int
    loops: tuple[Loop, ...]
    unit: Unit
    threads: int
    warps: int
    at_most: bool
    form: Form | None

    @property
    def per_thread_count(self) -> int | None:
        """In one launch, for each unit; None where a loop's rounds depend on the launch."""
        rounds = trips(self.loops, {})
        return None if rounds is None else self.per_pass * rounds

    @property
    def units(self) -> int:
        """How many threads, warps or warpgroups issue it."""
        return -(-self.threads // UNIT_THREADS[self.unit])

    def __str__(self) -> str:
        count, left = self.per_pass, []
        for loop in self.loops:
            rounds = loop_rounds(loop, {})
            if rounds is None:
                left.append(str(loop))
            else:
                count *= rounds
        text = " × ".join([str(count), *left])
        return f"at most {text}" if self.at_most else text


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A step (or a scalar access or operation of the IR) and where it stands; see ``IssueCount``."""

    what: Issue | ScalarApply | Scalar
    span: Span | None
    loops: tuple[Loop, ...]
    threads: int
    warps: int
    at_most: bool


def issue_counts(checked: Checked) -> tuple[IssueCount, ...]:
    """What the kernel issues, by place in the source and by spelling, in program order."""
    found: dict[tuple[Any, ...], tuple[Placed, int]] = {}
    for placed in placements(checked):
        loops = tuple(id(loop) for loop in placed.loops)
        key = (placed.span, spelled(placed), loops, placed.threads, placed.warps, placed.at_most)
        first, count = found.get(key, (placed, 0))
        found[key] = (first, count + 1)
    return tuple(_counted(placed, count) for placed, count in found.values())


def _counted(placed: Placed, count: int) -> IssueCount:
    form = placed.what.form if isinstance(placed.what, Issue) else None
    return IssueCount(
        placed.span, spelled(placed), count, placed.loops, unit_of(placed), placed.threads,
        placed.warps, placed.at_most, form,
    )  # fmt: skip


def spelled(placed: Placed) -> str:
    """The instruction's opcode, or for what the compiler spells what it is."""
    match placed.what:
        case Issue(form=form):
            return form.spelling
        case ScalarApply(function=function):
            return f"ewise {function.name}"
        case nodes.Load(view=view):
            return f"ld.{view.space}.b{view.dtype.bits}"
        case nodes.Store(view=view):
            return f"st.{view.space}.b{view.dtype.bits}"
        case nodes.Call(op=op):
            return op
        case nodes.Binary(op=op) | nodes.Unary(op=op):
            return f"{op}.{_float_type(placed.what)}"
        case nodes.Cast(operand=operand, type=type_):
            return f"cast.{type_}.{operand.type}"


def _float_type(node: nodes.Expr) -> str | None:
    """The floats that an operation is on; a comparison's are its operands'."""
    typed = node.lhs.type if isinstance(node, nodes.Binary) else node.type
    is_float = isinstance(typed, nodes.ScalarType) and typed.dtype.is_float
    return str(typed) if is_float else None


def unit_of(placed: Placed) -> Unit:
    if isinstance(placed.what, Issue):
        form = placed.what.form
        if form.mnemonic == "wgmma":
            return "warpgroup"
        return "warp" if "convergent" in form.effects else "thread"
    if isinstance(placed.what, nodes.Call) and OPS[placed.what.op].effect == "convergent":
        return "warp"
    return "thread"


def trips(loops: tuple[Loop, ...], values: Mapping[str, int]) -> int | None:
    """How often what stands in the loops is reached, given the launch's ``values``: scalars and sizes by
    name, hardware ids by theirs (``nctaid.x``). Coordinates that are not given are 0 and the variables of
    outer loops are at their first round: the counts are those of the launch's first thread, its first time
    round. None where that does not say it."""
    product = 1
    for loop in loops:
        rounds = loop_rounds(loop, values)
        if rounds is None:
            return None
        product *= rounds
    return product


def loop_rounds(loop: Loop, values: Mapping[str, int]) -> int | None:
    """Rounds of one loop each time it is reached, as ``trips`` says."""
    found = None if loop.rounds is None else evaluated(loop.rounds, values, loop.bound)
    return None if found is None else max(0, found)


def evaluated(
    expr: nodes.Expr, values: Mapping[str, int], bound: Mapping[str, nodes.Expr]
) -> int | None:
    """An integer expression as ``trips`` says; ``bound``: see ``bindings``."""
    return _Evaluation(values, bound).value(expr)


_FIRST = ("tid", "laneid", "warp", "ctaid", "cluster_ctaid", "cluster_ctarank", "clusterid")
"""What the names of coordinates begin with."""


@dataclass(slots=True)
class _Evaluation:
    """Integer expressions in numbers. Every variable is looked at once."""

    given: Mapping[str, int]
    bound: Mapping[str, nodes.Expr]
    known: dict[str, int | None] = field(default_factory=dict)

    def value(self, expr: nodes.Expr) -> int | None:
        return build.as_int(walk.rebuild(expr, self._number))

    def _number(self, node: Any) -> Any:
        match node:
            case nodes.Var(name=name, type=nodes.ScalarType(dtype=dtype)):
                value = self._variable(name)
                return node if value is None else build.const(value, dtype)
            case nodes.HardwareId(name=name):
                value = self.given.get(name, 0 if name.startswith(_FIRST) else None)
                return node if value is None else build.const(value, node.type.dtype)
        return _folded(node)

    def _variable(self, name: str) -> int | None:
        if name in self.given:
            return self.given[name]
        if name not in self.known:
            self.known[name] = None
            if name in self.bound:
                self.known[name] = self.value(self.bound[name])
        return self.known[name]


def _folded(node: Any) -> Any:
    """The node, or the constant that it is now that its operands are."""
    match node:
        case nodes.Binary(op=op, lhs=lhs, rhs=rhs):
            return build.binary(op, lhs, rhs)
        case nodes.Unary(op=op, operand=operand) if op in _UNARY:
            return _UNARY[op](operand)
        case nodes.Select(condition=condition, if_true=if_true, if_false=if_false):
            return build.select(condition, if_true, if_false)
        case nodes.Cast(operand=operand, type=type_):
            return build.cast(operand, type_.dtype)
    return node


_UNARY: dict[str, Callable[[nodes.Expr], nodes.Expr]] = {
    "neg": build.neg, "not": build.not_, "invert": build.invert, "abs": build.absolute,
}  # fmt: skip


# --- going through the function


def placements(checked: Checked) -> Iterator[Placed]:
    """Every instruction in program order, ``tile`` calls as their native steps."""
    function = checked.function
    yield from _Walk(checked, analyse(function), bindings(function)).block(function.body, (), False)


def bindings(function: nodes.Function) -> dict[str, nodes.Expr]:
    """What the variables that never change are, and a loop's variable in its first round."""
    changed = {s.var.name for s in walk.statements(function.body) if isinstance(s, nodes.Assign)}
    bound: dict[str, nodes.Expr] = {}
    for statement in walk.statements(function.body):
        match statement:
            case nodes.Declare(var=var, value=value) if value is not None:
                if var.name not in changed:
                    bound[var.name] = value
            case nodes.For(var=var, start=start):
                bound[var.name] = start
    return bound


@dataclass(slots=True)
class _Walk:
    checked: Checked
    facts: Facts
    bound: Mapping[str, nodes.Expr]
    everyone: Context = field(init=False)

    def __post_init__(self) -> None:
        threads = self.facts.threads
        self.everyone = Context(threads, np.ones(threads.total, dtype=np.bool_))

    def block(self, block: nodes.Block, loops: tuple[Loop, ...], guarded: bool) -> Iterator[Placed]:
        """``guarded``: not everyone who reaches the innermost loop's body gets here for sure."""
        for statement in block:
            yield from self._statement(statement, loops, guarded)

    def _statement(
        self, statement: nodes.Stmt, loops: tuple[Loop, ...], guarded: bool
    ) -> Iterator[Placed]:
        match statement:
            case nodes.If(condition=condition, then=then, orelse=orelse):
                yield from self._scalars(condition, statement.span, loops, guarded)
                yield from self.block(then, loops, True)
                yield from self.block(orelse, loops, True)
            case nodes.For(start=start, stop=stop, step=step, body=body):
                loop = Loop(_rounds(start, stop, step), self.bound, _leaves(body), statement.span)
                yield from self.block(body, (*loops, loop), guarded)
            case nodes.While(body=body):
                loop = Loop(None, self.bound, True, statement.span)
                yield from self.block(body, (*loops, loop), guarded)
            case nodes.Evaluate(call=call) if call.op in STRUCTURAL:
                yield from self._steps(call, loops)
            case nodes.Evaluate(call=call):
                yield from self._scalars(call, statement.span, loops, guarded)
            case nodes.Store(view=view):
                for part in walk.children(statement):  # its value, and what its indices load
                    yield from self._scalars(part, statement.span, loops, guarded)
                if view.space in ("global", "shared"):
                    yield self._scalar(statement, statement.span, loops, guarded)
            case nodes.Declare(value=value) | nodes.Assign(value=value) if value is not None:
                yield from self._scalars(value, statement.span, loops, guarded)

    def _steps(self, call: nodes.Call, loops: tuple[Loop, ...]) -> Iterator[Placed]:
        context = self.facts.sites[id(call)].context
        guarded = bool(context.guards) or any(loop.leaves for loop in loops)
        for step in self.checked.steps(call):
            if not isinstance(step, Let):
                yield self._placed(
                    step, step.span or call.span, loops, context, guarded or _predicated(step)
                )

    def _scalars(
        self, value: nodes.Expr, span: Span | None, loops: tuple[Loop, ...], guarded: bool
    ) -> Iterator[Placed]:
        """What an expression does, but for its integer arithmetic."""
        for node in walk.descend(value):
            if _counts(node):
                yield self._scalar(node, span, loops, guarded)

    def _scalar(
        self,
        node: Scalar,
        span: Span | None,
        loops: tuple[Loop, ...],
        guarded: bool,
    ) -> Placed:
        """Which threads take part is known of barriers only: of the rest, at most all do."""
        site = self.facts.sites.get(id(node))
        context = self.everyone if site is None else site.context
        unsure = guarded if site is None else bool(site.context.guards)
        early = any(loop.leaves for loop in loops)
        return self._placed(node, node.span or span, loops, context, unsure or early)

    def _placed(
        self,
        what: Issue | ScalarApply | Scalar,
        span: Span | None,
        loops: tuple[Loop, ...],
        context: Context,
        at_most: bool,
    ) -> Placed:
        per_cta = context.threads.per_cta
        here = np.flatnonzero(context.mask)
        warps = np.unique(here // per_cta * -(-per_cta // 32) + here % per_cta // 32).size
        threads = warps if context.elected else here.size
        return Placed(what, span, loops, int(threads), int(warps), at_most)


def _counts(node: Any) -> bool:
    match node:
        case nodes.Call(op=op):
            return op not in _UNCOUNTED
        case nodes.Load(view=view):
            return view.space in ("global", "shared")
        case nodes.Cast(operand=operand):
            return _float_type(node) is not None or _float_type(operand) is not None
        case nodes.Binary() | nodes.Unary():
            return _float_type(node) is not None
    return False


def _predicated(step: Step) -> bool:
    return isinstance(step, Issue) and step.pred is not None


def _rounds(start: nodes.Expr, stop: nodes.Expr, step: nodes.Const) -> nodes.Expr:
    """Rounds of a range, negative where it is empty by more than one."""
    size = int(step.value)
    first, last = (start, stop) if size > 0 else (stop, start)
    distance = build.index_add(last, build.neg(build.cast(first, nodes.INT64.dtype)))
    if abs(size) == 1:
        return distance
    return build.floordiv(
        build.index_add(distance, abs(size) - 1), build.const(abs(size), nodes.INT64.dtype)
    )


def _leaves(body: nodes.Block) -> bool:
    """May a round end the loop? A ``break`` of a loop inside does not."""
    return any(
        isinstance(s, (nodes.Break, nodes.Return))
        or (isinstance(s, nodes.If) and (_leaves(s.then) or _leaves(s.orelse)))
        or (isinstance(s, (nodes.For, nodes.While)) and _returns(s.body))
        for s in body
    )


def _returns(body: nodes.Block) -> bool:
    return any(isinstance(s, nodes.Return) for s in walk.statements(body))
