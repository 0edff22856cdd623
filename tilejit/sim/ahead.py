"""What lanes may do ahead of others of their warp, who wait in a branch or loop.

Lanes of a warp that skip a branch, or have left a loop, wait here for those inside; on the GPU they may go
on. That makes no difference unless they *help*, before the next operation that takes all lanes: they arrive
at an mbarrier, or start a copy that completes on one; or, where somebody polls memory, write some. Where
they may, a warp that waits for ever is no deadlock yet (``schedule``, which alone asks).

Not here: which lanes are where (``cohort``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilejit.ir import nodes
from tilejit.ir.walk import descend
from tilejit.sim.cohort import Others
from tilejit.sim.convergent import SHUFFLES, VOTES
from tilejit.sim.storage import TILE_CALLS, Checked
from tilejit.sim.waits import call_join, raw_join
from tilejit.tile.family import Issue, Step

WITH_ALL_LANES = frozenset({*SHUFFLES, *VOTES, "cuda.elect_sync", "cuda.warp_sync"})
NEVER_ARRIVES = frozenset({"init", "inval", "test_wait", "try_wait", "pending_count"})
"""First modifiers of ``mbarrier`` instructions that bring a phase no nearer to its end."""


@dataclass(slots=True)
class Ahead:
    """By branch or loop: may lanes help that go on behind it (``after``), or that take the other side of the
    branch (``beside``)? ``by_writes``: do writes of memory help?"""

    checked: Checked
    by_writes: bool
    after: dict[int, bool] = field(default_factory=dict)
    beside: dict[int, bool] = field(default_factory=dict)
    loops: list[tuple[bool, bool]] = field(default_factory=list)
    """Around the statement: may lanes help that break, or continue?"""

    def __post_init__(self) -> None:
        self._block(self.checked.function.body, False)

    def may(self, others: Others) -> bool:
        """May lanes help that are there?"""
        statement, beside = others
        return (self.beside if beside else self.after)[statement]

    def _block(self, block: nodes.Block, after: bool) -> bool:
        """May lanes help that begin the block? ``after``: those that have ended it."""
        for statement in reversed(block):
            after = self._statement(statement, after)
        return after

    def _statement(self, s: nodes.Stmt, after: bool) -> bool:
        if isinstance(s, nodes.If):
            orelse = self._block(s.orelse, after)
            self._note(s, after, orelse)
            then = self._block(s.then, after)
            return not _with_all_lanes(s.condition) and (then or orelse)
        if isinstance(s, (nodes.For, nodes.While)):
            return self._loop(s, after)
        if isinstance(s, (nodes.Break, nodes.Continue)):
            breaking, continuing = self.loops[-1]
            return breaking if isinstance(s, nodes.Break) else continuing
        if isinstance(s, nodes.Return):
            return False
        if isinstance(s, nodes.Evaluate):
            return self._call(s.call, after)
        helps = self.by_writes and isinstance(s, nodes.Store) and s.view.space != "local"
        return not _with_all_lanes(s) and (after or helps)

    def _loop(self, s: nodes.For | nodes.While, after: bool) -> bool:
        again = False
        # The second time round, the end of the body is known to lead to its beginning.
        for _ in range(2):
            self.loops.append((after, after or again))
            again = self._block(s.body, after or again)
            self.loops.pop()
        continues = any(isinstance(node, nodes.Continue) for node in descend(s.body))
        self._note(s, after or (continues and again), False)
        return after or again

    def _note(self, s: nodes.Stmt, after: bool, beside: bool) -> None:
        self.after[id(s)] = self.after.get(id(s), False) or after
        self.beside[id(s)] = self.beside.get(id(s), False) or beside

    def _call(self, call: nodes.Call, after: bool) -> bool:
        if call.op in TILE_CALLS:
            for step in reversed(self.checked.steps(call)):
                after = self._step(step, after)
            return after
        return call_join(call) is None and not _with_all_lanes(call) and after

    def _step(self, step: Step, after: bool) -> bool:
        if not isinstance(step, Issue):
            return after
        form, words = step.form, step.form.modifiers
        if "aligned" in words or form.spelling == "bar.warp.sync" or raw_join(step) is not None:
            return False
        if form.mnemonic == "mbarrier":
            return after or words[0] not in NEVER_ARRIVES
        arrives = any(word.split("::")[0] == "mbarrier" for word in words)
        return after or arrives or (self.by_writes and "writes_memory" in form.effects)


def _with_all_lanes(node: Any) -> bool:
    return any(isinstance(n, nodes.Call) and n.op in WITH_ALL_LANES for n in descend(node))
