"""Registers that warps of a CTA hand over to each other (``setmaxnreg``).

A CTA starts with the same number for each thread; who wants more waits until others have given up enough.

Not here: whether what a thread has is enough for its code (the assembler).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.sim.geometry import Bools, Ints
from tilejit.target import Target
from tilejit.tile import register_budget

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort


def at_launch(function: nodes.Function) -> int:
    """Registers of each thread when the kernel starts."""
    return register_budget.at_launch(function.launch, Target.parse(function.target))


@dataclass(slots=True, eq=False)
class RegisterBudget:
    """``held``: registers of each thread of a warp, by warp of the batch."""

    batch: Batch
    start: int
    held: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.held = np.full(self.batch.rows, self.start, np.int64)

    def change(self, c: Cohort, wanted: int, grows: bool, span: Span | None) -> None:
        """Checks the direction; giving up takes effect at once, taking in ``granted``."""
        held = self.held[c.rows]
        wrong = held > wanted if grows else held < wanted
        if wrong.any():
            row = int(c.rows[int(np.argmax(wrong))])
            word = "inc" if grows else "dec"
            self.batch.faults.add(
                "sim/register-budget",
                f"setmaxnreg.{word} to {wanted} registers, but the warp has {int(self.held[row])}",
                span,
                (
                    ("where", self.batch.describe_row(row)),
                    ("launch", f"a thread starts with {self.start} registers"),
                    ("help", "dec gives up registers, inc takes more"),
                ),
                None,
                int(wrong.sum()),
            )
        if not grows:
            self.held[c.rows] = np.minimum(held, wanted)

    def granted(self, waiting: Bools, wanted: int) -> Bools | None:
        """The waiting warps that get ``wanted`` registers now."""
        warps = self.batch.geometry.warps
        rows = np.flatnonzero(waiting)
        free = (self.start - self.held).reshape(-1, warps).sum(axis=1)
        result = np.zeros(self.batch.rows, np.bool_)
        for row in rows.tolist():
            more = max(0, wanted - int(self.held[row]))
            if more <= free[row // warps]:
                free[row // warps] -= more
                self.held[row] += more
                result[row] = True
        return result if result.any() else None
