"""Registers of a CTA's threads: what a launch gives them, what ``setmaxnreg`` certainly makes of it, and
whether a wgmma's tile fits into that.

A warp's changes are followed in the order of the program where all of the kernel's are outside loops and
run-time guards: then each warp executes exactly those whose mask it is in.

Source: PTX ISA, "setmaxnreg". Not here: who waits for whose registers (``sim.register_budget``), what fits
whatever ``setmaxnreg`` does (``families.wgmma``), legal numbers (``ptx.tables.sync``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilejit.errors import Report
from tilejit.ir import nodes, walk
from tilejit.target import Target
from tilejit.tile import raw
from tilejit.tile.affine import BoolArray, IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.facts import Site
from tilejit.tile.fragments import LANES

PAGE = "docs/contract/raw.md"
CODE = "tile/register-budget"
UNIT_REGISTERS = 8
MOST_REGISTERS = 256
SM_PARTS = 4
"""Of an SM, each with a quarter of the registers and every fourth warp."""
OTHER_REGISTERS = 24
"""About as many a thread needs beside what wgmma, or a load of tensor memory, holds: addresses, counters,
descriptors."""


def at_launch(launch: nodes.LaunchConfig, target: Target) -> int:
    """Registers of each thread when the kernel starts: what the launch declares, or all that its
    bounds leave to a thread."""
    if launch.max_registers_per_thread is not None:
        return launch.max_registers_per_thread // UNIT_REGISTERS * UNIT_REGISTERS
    warps = -(-launch.threads // (LANES * SM_PARTS)) * SM_PARTS
    fair = target.limits.registers_per_sm // (warps * LANES * launch.min_blocks_per_sm)
    return min(fair // UNIT_REGISTERS * UNIT_REGISTERS, MOST_REGISTERS)


def check(
    function: nodes.Function,
    target: Target,
    sites: Iterable[Site],
    tiles: Mapping[int, TileCall],
    report: Report,
) -> None:
    """Reports ``tile/register-budget``. ``sites``: in program order; ``tiles``: the checked tile calls by
    the identity of their call."""
    reached = [site for site in sites if not site.context.dead]
    changes = {id(site.call) for site in reached if _change(site.call) is not None}
    if not changes or function.launch.threads % LANES:
        return
    repeated = {id(call) for call in _in_loops(function.body)}
    if any(
        id(s.call) in changes and (id(s.call) in repeated or s.context.guards or s.context.elected)
        for s in reached
    ):
        return
    budget = _Budget(function.launch, at_launch(function.launch, target), report)
    for site in reached:
        if id(site.call) in changes:
            budget.change(site)
        elif id(site.call) in tiles:
            budget.product(site, tiles[id(site.call)])
    budget.check_sum()


def _change(call: nodes.Call) -> tuple[bool, int] | None:
    """(does it grow, to how many registers) of a ``setmaxnreg`` of a legal number."""
    if call.op != "ptx":
        return None
    parsed = raw.parse(call)
    if not parsed.name.startswith("setmaxnreg.") or len(parsed.operands) != 1:
        return None
    (count,) = parsed.operands
    return (".inc." in parsed.name, int(count.value)) if isinstance(count, nodes.Const) else None


def _in_loops(body: nodes.Block) -> Iterable[nodes.Call]:
    loops = (s for s in walk.descend(body) if isinstance(s, (nodes.For, nodes.While)))
    for loop in loops:
        yield from (n for n in walk.descend(loop.body) if isinstance(n, nodes.Call))


@dataclass(slots=True)
class _Budget:
    """``held``: registers of a thread of each warp of the cluster."""

    launch: nodes.LaunchConfig
    start: int
    report: Report
    held: IntArray = field(init=False)
    last: nodes.Call | None = None
    """The latest that took more."""
    told: bool = False

    def __post_init__(self) -> None:
        threads = self.launch.cluster_ctas * self.launch.threads
        self.held = np.full(threads // LANES, self.start, np.int64)

    def _rows(self, site: Site) -> BoolArray:
        rows: BoolArray = np.any(site.context.mask.reshape(-1, LANES), axis=1)
        return rows

    def change(self, site: Site) -> None:
        change = _change(site.call)
        assert change is not None
        grows, wanted = change
        rows = self._rows(site)
        held = self.held[rows]
        wrong = held > wanted if grows else held < wanted
        if wrong.any():
            word, row = ("inc", "more") if grows else ("dec", "fewer")
            warp = int(np.flatnonzero(rows)[int(np.argmax(wrong))])
            self._tell(
                f"setmaxnreg.{word} to {wanted} registers, but a thread of {self._warp(warp)} has "
                f"{int(self.held[warp])}",
                site.call,
                f"{word} is for {row} registers than a thread has: {self.start} at the start",
            )
        self.held[rows] = wanted
        if grows:
            self.last = site.call

    def product(self, site: Site, call: TileCall) -> None:
        """What a wgmma holds fits into a thread of each warp that executes it."""
        if not call.spelling.startswith("wgmma.") or 0 not in call.walks:
            return
        form = call.forms[0]
        accumulators, words = call.walk_of(0).repeats * form.operands[0].lanes, 0
        a = call.operands[1]
        if isinstance(a, TensorOperand) and a.space == "local" and 1 in call.walks:
            lanes = next(f.operands[1].lanes for f in call.forms if f.operands[1].bits == 32)
            words = call.walk_of(1).repeats * lanes
        rows = self._rows(site)
        held = int(self.held[rows].min())
        if accumulators + words + OTHER_REGISTERS <= held:
            return
        warp = int(np.flatnonzero(rows)[int(np.argmin(self.held[rows]))])
        of_a = f", {words} words of A" if words else ""
        self._tell(
            f"{call.spelling} holds {accumulators} accumulators{of_a} and about {OTHER_REGISTERS} other "
            f"registers; a thread of {self._warp(warp)} has {held} here",
            site.call,
            "setmaxnreg.inc to more in the warpgroups that multiply, or a smaller tile for each",
        )

    def check_sum(self) -> None:
        """What all threads have in the end comes out of what they started with."""
        warps = self.launch.threads // LANES
        wanted = self.held.reshape(-1, warps).sum(axis=1) * LANES
        pool = self.start * self.launch.threads
        if self.told or self.last is None or int(wanted.max()) <= pool:
            return
        cta = self.held.reshape(-1, warps)[int(np.argmax(wanted))]
        groups = ", ".join(str(int(registers)) for registers in cta[::4])
        self._tell(
            f"setmaxnreg waits for ever: the warpgroups are to have {groups} registers for each thread, "
            f"{int(wanted.max())} in all; the CTA has {pool}, {self.start} for each of "
            f"{self.launch.threads} threads",
            self.last,
            "setmaxnreg.dec in a warpgroup that needs few gives registers up, 24 is the least",
        )

    def _warp(self, row: int) -> str:
        cta, warp = divmod(row, self.launch.threads // LANES)
        return f"warp {warp}" if self.launch.cluster is None else f"CTA rank {cta}, warp {warp}"

    def _tell(self, message: str, call: nodes.Call, help_: str) -> None:
        self.told = True
        self.report.error(CODE, message, span=call.span, contract=PAGE, help=help_)
