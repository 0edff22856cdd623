"""Registers that loads from tensor memory have not written yet: nobody touches them before the warp waits.

Loads give their values at once here; what is wrong is to use them before ``tcgen05.wait::ld``. Registers of
register tiles are looked at, not scalar variables. Not here: the cells (``tensor_memory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilejit.errors import Span
from tilejit.sim.faults import place
from tilejit.sim.geometry import LANES, Ints, any_lane
from tilejit.sim.tensor_order import WAITS

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort

NEVER = -1


class TensorLoads:
    """Those of one batch. ``waits``, by row: how often the warp has waited for its loads. ``loaded``, by
    register tile, unit and row: the same when a load took the unit, and that load's place in ``spans``."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.waits = np.zeros(batch.rows, np.int32)
        self.loaded: dict[str, tuple[Ints, Ints]] = {}
        self.spans: dict[Span | None, int] = {}

    def wait(self, rows: Ints) -> None:
        self.waits[rows] += 1

    def hold(self, c: Cohort, places: Sequence[tuple[str, int, int]], span: Span | None) -> None:
        """A load of the active warps takes registers: buffer, first unit, bytes."""
        rows = _rows(c)
        number = self.spans.setdefault(span, len(self.spans))
        for name, unit, nbytes in places:
            file = c.files[name]
            if name not in self.loaded:
                shape = len(file.data), self.batch.rows
                self.loaded[name] = np.full(shape, NEVER, np.int32), np.zeros(shape, np.int32)
            epochs, spans = self.loaded[name]
            for one in range(unit, unit + nbytes // file.unit_bytes):
                epochs[one, rows], spans[one, rows] = self.waits[rows], number

    def touch(
        self, c: Cohort, name: str, units: Ints | slice, wrote: bool, span: Span | None
    ) -> None:
        """An instruction of the active warps reads or writes registers."""
        if name not in self.loaded:
            return
        rows = _rows(c)
        epochs, spans = self.loaded[name]
        held = epochs[units][:, rows] == self.waits[rows]
        if not held.any():
            return
        index, column = (int(i) for i in np.argwhere(held)[0])
        unit = units.start + index if isinstance(units, slice) else int(units[index])
        number = int(spans[unit, rows[column]])
        other = next(span for span, at in self.spans.items() if at == number)
        warps = np.isin(c.rows, rows[held.any(axis=0)])
        self.batch.lane_fault(
            c,
            "sim/in-flight",
            f"register {unit} of `{name}` is {'written' if wrote else 'read'} while a tcgen05.ld that writes it "
            "may still be under way",
            span,
            np.repeat(warps[:, None], LANES, axis=1),
            name,
            load=place(other),
            help=f"{WAITS['loads']} before it",
        )  # fmt: skip


def _rows(c: Cohort) -> Ints:
    return c.rows if c.mask is None else c.rows[any_lane(c.mask)]
