"""wgmma in the order of the program: registers that are certainly touched too early or without a fence.

Statements are followed from the function's start, and reports are of loops' first rounds; where several
ways meet, only what holds on all of them is kept. So a report is certain, and silence proves nothing: the
simulator follows every way. Register tiles count as a whole, and only where wgmma uses all of them.

Source: PTX ISA, "wgmma.fence", "wgmma.wait_group". Not here: one instruction's operands (``families``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilejit.errors import Report, Span
from tilejit.ir import nodes, walk
from tilejit.tile import raw

PAGE = "docs/contract/wgmma.md"
WARPGROUP_LANES = 128


@dataclass(frozen=True, slots=True)
class _State:
    """``fenced``: has a fence come? None: on some ways. ``touched``: tiles that other instructions
    accessed after it. ``groups``: tiles that each group in flight writes, the open one last; None: not
    known."""

    fenced: bool | None = False
    touched: frozenset[str] = frozenset()
    groups: tuple[frozenset[str], ...] | None = (frozenset(),)

    def joined(self, other: _State | None) -> _State:
        """What holds on both ways; None: there is no other."""
        if other is None:
            return self
        return _State(
            self.fenced if self.fenced == other.fenced else None,
            self.touched & other.touched,
            self.groups if self.groups == other.groups else None,
        )

    @property
    def in_flight(self) -> frozenset[str]:
        return frozenset().union(*(self.groups or ()))


def check(function: nodes.Function, calls: Iterable[nodes.Call], report: Report) -> None:
    """Reports ``wgmma/fence`` and ``wgmma/in-flight``. ``calls``: the function's instructions."""
    if any(call.op == "tile.apply" and _is_wgmma(call) for call in calls):
        _Order(report).block(function.body, _State())


def _is_wgmma(call: nodes.Call) -> bool:
    return raw.parse(call).name.startswith("wgmma.")


@dataclass(slots=True)
class _Ways:
    """The ways out of a round of a loop: to its next round, and behind the loop."""

    on: list[_State] = field(default_factory=list)
    out: list[_State] = field(default_factory=list)


@dataclass(slots=True)
class _Order:
    """A state is None where no way leads."""

    report: Report
    told: set[tuple[str, str]] = field(default_factory=set)
    loops: list[_Ways] = field(default_factory=list)
    later_rounds: int = 0

    def block(self, block: nodes.Block, state: _State | None) -> _State | None:
        for statement in block:
            if state is None:
                return None
            state = self._statement(statement, state)
        return state

    def _statement(self, s: nodes.Stmt, state: _State) -> _State | None:
        match s:
            case nodes.If(condition=condition, then=then, orelse=orelse):
                state = self._accesses((condition,), state, s.span)
                return _met((self.block(then, state), self.block(orelse, state)))
            case nodes.For(start=start, stop=stop, body=body):
                state = self._accesses((start, stop), state, s.span)
                return self._loop(body, state, may_end=True)
            case nodes.While(body=body):
                return self._loop(body, state, may_end=False)
            case nodes.Break():
                self.loops[-1].out.append(state)
                return None
            case nodes.Continue():
                self.loops[-1].on.append(state)
                return None
            case nodes.Return():
                return None
            case nodes.Evaluate(call=call) if call.op in ("tile.apply", "ptx") and _is_wgmma(call):
                return self._wgmma(call, state)
            case _:
                return self._accesses((s,), state, s.span)

    def _loop(self, body: nodes.Block, state: _State, *, may_end: bool) -> _State | None:
        """What holds behind a loop. ``may_end``: before any round, not at a ``break`` only."""
        ways = self._round(body, state)
        at_head = state.joined(_met(ways.on))
        self.later_rounds += 1
        while at_head != state:
            state = at_head
            ways = self._round(body, state)
            at_head = state.joined(_met(ways.on))
        self.later_rounds -= 1
        return _met((*ways.out, at_head if may_end else None))

    def _round(self, body: nodes.Block, state: _State) -> _Ways:
        self.loops.append(_Ways())
        end = self.block(body, state)
        ways = self.loops.pop()
        if end is not None:
            ways.on.append(end)
        return ways

    # --- wgmma

    def _wgmma(self, call: nodes.Call, state: _State) -> _State:
        parsed = raw.parse(call)
        action = parsed.name.split(".")[1]
        if action == "fence":
            return replace(state, fenced=True, touched=frozenset())
        if action == "commit_group":
            groups = None if state.groups is None else (*state.groups, frozenset())
            return replace(state, groups=groups)
        if action == "wait_group":
            return self._wait(parsed.operands[0], state)
        d = _whole_tile(parsed.operands[0])
        self._check_fence(call, d, state)
        if d is None or state.groups is None:
            return state
        *closed, open_ = state.groups
        return replace(state, groups=(*closed, open_ | {d}))

    def _wait(self, pending: nodes.Expr, state: _State) -> _State:
        if not isinstance(pending, nodes.Const) or state.groups is None:
            # After a wait for everything nothing is in flight, whatever was.
            done = isinstance(pending, nodes.Const) and pending.value == 0
            return replace(state, groups=(frozenset(),) if done else None)
        *closed, open_ = state.groups
        kept = closed[max(0, len(closed) - int(pending.value)) :]
        return replace(state, groups=(*kept, open_))

    def _check_fence(self, call: nodes.Call, d: str | None, state: _State) -> None:
        if state.fenced is False:
            message = "no wgmma.fence comes before the function's first wgmma"
        elif state.fenced and d in state.touched:
            message = f"other instructions touched {d} after the last wgmma.fence"
        else:
            return
        self._tell(
            "wgmma/fence", message, call.span, 'T.ptx["wgmma.fence.sync.aligned"]() before it'
        )

    # --- other instructions

    def _accesses(self, parts: tuple[object, ...], state: _State, span: Span | None) -> _State:
        touched = {
            node.view.buffer.name if not isinstance(node, nodes.View) else node.buffer.name
            for part in parts
            for node in walk.descend(part)
            if isinstance(node, (nodes.Load, nodes.Store, nodes.View)) and _local(node)
        }
        for name in sorted(touched & state.in_flight):
            self._tell(
                "wgmma/in-flight",
                f"{name} is touched while a wgmma that writes it is still under way",
                span,
                'T.ptx["wgmma.wait_group.sync.aligned"](0) after commit_group, before it',
            )
        return replace(state, touched=state.touched | touched)

    def _tell(self, code: str, message: str, span: Span | None, help_: str) -> None:
        if not self.later_rounds and (code, message) not in self.told:
            self.told.add((code, message))
            self.report.error(code, message, span=span, contract=PAGE, help=help_)


def _met(states: Iterable[_State | None]) -> _State | None:
    """What holds where ways meet."""
    met: _State | None = None
    for state in states:
        if state is not None:
            met = state.joined(met)
    return met


def _local(node: nodes.Load | nodes.Store | nodes.View) -> bool:
    view = node if isinstance(node, nodes.View) else node.view
    return view.space == "local"


def _whole_tile(operand: nodes.Expr) -> str | None:
    """The register tile that an operand of a warpgroup is all of."""
    view = operand.view if isinstance(operand, nodes.Region) else operand
    if not isinstance(view, nodes.View) or not isinstance(view.buffer.type, nodes.TensorType):
        return None
    extents = operand.extents if isinstance(operand, nodes.Region) else view.shape
    held = [e for e in extents if isinstance(e, int)]
    stored = [e for e in view.buffer.type.shape if isinstance(e, int)]
    bits = math.prod(held) * view.dtype.bits
    # Declared as a tile of the warpgroup, or as what one of its threads holds of it.
    declared = math.prod(stored) * view.buffer.type.dtype.bits
    return view.buffer.name if bits in (declared, declared * WARPGROUP_LANES) else None
