"""Matrix instructions of warpgroups in flight: groups, the registers that they hold, what they read.

``wgmma`` computes at once here, but its registers count as held until a wait covers its group: nobody may
read or write the accumulators, nor write the words of A. Registers that other instructions touched need a
``wgmma.fence`` before the next ``wgmma`` uses them. Shared memory is read through the asynchronous proxy:
the warpgroup is an agent (``hazards``) whose tick is the group's number.

Not here: the products (``numeric.mma``), descriptors (``tile.descriptor``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilejit.errors import Span
from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, RANK_SHIFT, WARPS_PER_GROUP, Bools, Ints, any_lane
from tilejit.sim.hazards import Asynchronous
from tilejit.sim.memory import Bytes, Lanes, is_dense, taken

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort

CHUNK_BYTES = 16
NEVER = -1
AS_WORDS = 0
"""In place of an accumulator's columns: the register is A's."""

Places = Sequence[tuple[str, int, int]]
"""Registers: buffer, first unit, bytes."""

WAIT = 'T.ptx["wgmma.wait_group.sync.aligned"]({})'
FENCE = 'T.ptx["wgmma.fence.sync.aligned"]()'


@dataclass(slots=True, eq=False)
class _Uses:
    """Of a register tile, by unit and warp of the batch. ``group``: the last that used it, ``columns``
    of that instruction's accumulator; ``issued``, ``read``, ``wrote``: fences before the last use by
    wgmma, and before the last access by another instruction."""

    group: Ints
    columns: Ints
    issued: Ints
    read: Ints
    wrote: Ints

    @staticmethod
    def of(units: int, rows: int) -> _Uses:
        return _Uses(*(np.full((units, rows), NEVER, np.int32) for _ in range(5)))


class Warpgroups:
    """What the warps of a batch have issued, committed and waited for, by row."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.committed = np.zeros(batch.rows, np.int32)
        self.completed = np.zeros(batch.rows, np.int32)
        self.fences = np.zeros(batch.rows, np.int32)
        self.uses: dict[str, _Uses] = {}

    # --- who

    def whole(self, c: Cohort) -> bool:
        """Whether each of the cohort's warps has its whole warpgroup in the cohort."""
        if c.rows.size % WARPS_PER_GROUP:
            return False
        fours = c.rows.reshape(-1, WARPS_PER_GROUP)
        first = fours[:, :1] % self.batch.geometry.warps % WARPS_PER_GROUP
        return bool((first == 0).all() and (np.diff(fours, axis=1) == 1).all())

    def complete(self, waiting: Bools, alive: Bools) -> Bools | None:
        """Rows of the warpgroups all of whose warps wait."""
        warps = self.batch.geometry.warps
        group = (
            np.arange(waiting.size) // warps * warps
            + np.arange(waiting.size) % warps // WARPS_PER_GROUP
        )
        absent = np.zeros(int(group.max()) + 1, np.bool_)
        absent[group[alive & ~waiting]] = True
        rows: Bools = waiting & ~absent[group]
        return rows if rows.any() else None

    # --- groups

    def fence(self, c: Cohort) -> None:
        self.fences[self._rows(c)] += 1

    def commit(self, c: Cohort) -> None:
        self.committed[self._rows(c)] += 1

    def wait(self, c: Cohort, pending: int) -> None:
        """Each active warp goes on when all but its latest groups are over."""
        rows = self._rows(c)
        done = self.committed[rows] - pending
        self.completed[rows] = np.maximum(self.completed[rows], done)
        clocks = self.batch.clocks
        for row, below in zip(rows.tolist(), done.tolist()):
            agent = clocks.agents.get(self._key(row))
            if agent is not None and below > 0:
                first = row % self.batch.warps_per_cluster * LANES
                cluster = row // self.batch.warps_per_cluster
                clocks.learn(cluster, np.arange(first, first + LANES), agent, below)

    @staticmethod
    def _rows(c: Cohort) -> Ints:
        return c.rows if c.mask is None else c.rows[any_lane(c.mask)]

    def _key(self, row: int) -> tuple[int, tuple[str, int]]:
        """The agent of a row's warpgroup: cluster and name."""
        warps = self.batch.geometry.warps
        first = row - row % warps % WARPS_PER_GROUP
        return row // self.batch.warps_per_cluster, ("wgmma", first)

    def _agent(self, row: int) -> int:
        cluster, name = self._key(row)
        return self.batch.clocks.agent(cluster, name, lambda tick: self._explain(name[1], tick))

    def _explain(self, row: int, tick: int) -> tuple[str, str]:
        """How far a warpgroup's group ``tick`` is, and what would have waited for it."""
        who = f"the warpgroup of {self.batch.describe_row(row)}"
        done = int(self.committed[row])
        if tick >= done:
            return (
                f"the wgmma group of {who} is not committed, so that no wait_group covers it",
                f'T.ptx["wgmma.commit_group.sync.aligned"](), then {WAIT.format(0)}',
            )
        return (
            f"no wait of {who} that others know of covers its wgmma group",
            f"{WAIT.format(done - tick - 1)} in the warpgroup, then a barrier with the others",
        )

    # --- shared memory

    def read(self, c: Cohort, row: int, addresses: Ints, site: Site) -> Bytes:
        """16 bytes at each address in the CTA's window, for the warpgroup that begins at ``row``. Each
        of its warps must be ordered after who wrote them: every fourth chunk stands for one."""
        batch = self.batch
        shared, geometry = batch.shared, batch.geometry
        cta = row // geometry.warps
        first = (batch.first_row + row + np.arange(addresses.size) % WARPS_PER_GROUP) * LANES
        stamp = int(batch.clocks.tick[cta // geometry.cluster_size])
        lanes = Lanes(first.astype(batch.thread_type), np.full(addresses.size, cta), stamp)
        own = addresses | cta % geometry.cluster_size << RANK_SHIFT
        out = np.zeros((addresses.size, CHUNK_BYTES), np.uint8)
        at, offsets = shared.locate(own, CHUNK_BYTES, lanes, site, None)
        if not offsets.size:
            return out
        part = lanes if at is None else taken(lanes, at)
        window = shared.named(None)
        dense = is_dense(offsets, CHUNK_BYTES)
        shared.check_written(window, offsets, CHUNK_BYTES, part, site, dense)
        if shared.watch.hazards:
            report = shared.unfenced(window, site, "shared")
            access = Asynchronous(self._agent(row), int(self.committed[row]), "shared", report)
            shared.watch_read(window, offsets, CHUNK_BYTES, part, site, dense, access)
        out[slice(None) if at is None else at] = window.gather(offsets, CHUNK_BYTES, dense)
        return out

    # --- registers

    def touch(
        self, c: Cohort, name: str, units: Ints | slice, wrote: bool, span: Span | None
    ) -> None:
        """An ordinary instruction reads or writes registers that wgmma uses elsewhere."""
        use, rows = self._uses(c, name), self._rows(c)
        held = use.group[units][:, rows] >= self.completed[rows]
        if not wrote:
            held &= use.columns[units][:, rows] != AS_WORDS
        if held.any():
            self._in_flight(c, name, units, held, "written" if wrote else "read", span)
        epochs = use.wrote if wrote else use.read
        if isinstance(units, slice):
            units = np.arange(units.start, units.stop)
        epochs[np.ix_(units, rows)] = self.fences[rows]

    def hold(self, c: Cohort, places: Places, columns: int, span: Span | None) -> None:
        """wgmma uses the registers: accumulators of so many columns, or with ``AS_WORDS`` A's words."""
        rows = self._rows(c)
        for name in dict.fromkeys(place[0] for place in places):
            size = c.files[name].unit_bytes
            units = np.concatenate(
                [np.arange(u, u + nbytes // size) for n, u, nbytes in places if n == name]
            )
            self._hold(c, name, units, rows, columns, span)

    def _hold(
        self, c: Cohort, name: str, units: Ints, rows: Ints, columns: int, span: Span | None
    ) -> None:
        use, at, now = self._uses(c, name), np.ix_(units, rows), self.fences[rows]
        others = use.wrote[at] if columns == AS_WORDS else np.maximum(use.wrote[at], use.read[at])
        shaped = use.columns[at] != columns
        # Accumulators of one shape follow each other in order, all else does not.
        held = (use.group[at] >= self.completed[rows]) & shaped
        if columns == AS_WORDS:
            held &= use.columns[at] != NEVER
        if held.any():
            self._in_flight(c, name, units, held, "used by another wgmma", span)
        missing = (others >= now) | (now == 0)
        if columns != AS_WORDS:
            missing |= shaped & (use.issued[at] >= now)
        if missing.any():
            self._unfenced(c, name, units, missing, bool((now == 0).any()), span)
        use.group[at] = self.committed[rows]
        use.columns[at] = columns
        use.issued[at] = now

    def _uses(self, c: Cohort, name: str) -> _Uses:
        found = self.uses.get(name)
        if found is None:
            found = self.uses[name] = _Uses.of(len(c.files[name].data), self.batch.rows)
        return found

    def _in_flight(
        self, c: Cohort, name: str, units: Ints | slice, held: Bools, what: str, span: Span | None
    ) -> None:
        unit, lanes = self._example(c, units, held)
        self.batch.lane_fault(
            c,
            "sim/in-flight",
            f"register {unit} of `{name}` is {what} while a wgmma that uses it may still be under way",
            span,
            lanes,
            name,
            help=f"{WAIT.format(0)} (or with as many groups pending as came later) before it",
        )

    def _unfenced(
        self, c: Cohort, name: str, units: Ints, missing: Bools, first: bool, span: Span | None
    ) -> None:
        unit, lanes = self._example(c, units, missing)
        why = (
            "no wgmma.fence comes before the warp's first wgmma"
            if first
            else "no wgmma.fence follows the last access to it by another instruction"
        )
        self.batch.lane_fault(
            c,
            "sim/wgmma-fence",
            f"wgmma uses register {unit} of `{name}`, and {why}",
            span,
            lanes,
            name,
            help=f"{FENCE} after the accesses, before the wgmma",
        )

    def _example(self, c: Cohort, units: Ints | slice, wrong: Bools) -> tuple[int, Bools]:
        """The first unit at fault, and the lanes of the warps where some is."""
        index = int(np.argmax(wrong.any(axis=1)))
        unit = units.start + index if isinstance(units, slice) else int(units[index])
        warps = np.isin(c.rows, self._rows(c)[wrong.any(axis=0)])
        return unit, np.repeat(warps[:, None], LANES, axis=1)
