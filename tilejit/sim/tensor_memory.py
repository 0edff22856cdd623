"""Tensor memory: the cells of each CTA, who accessed them, and what is wrong with an access.

A cell has 32 bits, a place (lane, column) the number ``lane * 512 + column``. An access is checked for
bounds, allocation, bits that nobody wrote, and order (``tensor_order``), whole cells at a time. Loads and
stores of warps happen at once here.

Not here: who allocates (``tensor_allocation``), operations of tensor cores (``tensor_cores``), registers
that a load has not written yet (``tensor_loads``).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.ir.tensor_memory import SLABS, TENSOR_COLUMNS, TENSOR_LANES, split_address
from tilejit.sim.faults import Site, place
from tilejit.sim.geometry import LANES, Bools, Ints
from tilejit.sim.memory import UNORDERED_NOTE
from tilejit.sim.tensor_order import Access, Kind, TensorOrder
from tilejit.tile.family import WarpCells

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Array, Cohort

Words: TypeAlias = npt.NDArray[np.uint32]
Note: TypeAlias = tuple[str, str]

CELLS = TENSOR_LANES * TENSOR_COLUMNS
CELL_BYTES_OF_CTA = 24 * CELLS
"""Of a CTA's tensor memory with its history, roughly."""
NOBODY = -1


@dataclass(slots=True, eq=False)
class Cells:
    """Those of a CTA, by place. ``written``: which bits somebody has written. ``writer``: number of the last
    access that wrote; ``readers``: that of the last one that read since, for each stream, and for
    operations each pipe. ``free``: columns that nobody holds."""

    data: Words
    written: Words = field(default_factory=lambda: np.zeros(CELLS, np.uint32))
    writer: npt.NDArray[np.int32] = field(default_factory=lambda: _nobody())
    readers: dict[Hashable, npt.NDArray[np.int32]] = field(default_factory=dict)
    free: Bools = field(default_factory=lambda: np.ones(TENSOR_COLUMNS, np.bool_))

    def forget(self, first: int, count: int) -> None:
        """The columns hold nothing, and nobody has touched them."""
        for array, value in [(self.written, 0), (self.writer, NOBODY)]:
            array.reshape(TENSOR_LANES, -1)[:, first : first + count] = value
        for readers in self.readers.values():
            readers.reshape(TENSOR_LANES, -1)[:, first : first + count] = NOBODY


def _nobody() -> npt.NDArray[np.int32]:
    return np.full(CELLS, NOBODY, np.int32)


class TensorMemory:
    """That of the CTAs of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.faults, self.geometry = batch.faults, batch.geometry
        self.order = TensorOrder(batch)
        self.hazards = batch.shared.watch.hazards
        self.random = batch.transfers.random
        self.of_cta: dict[int, Cells] = {}
        self.accesses: list[Access] = []
        self.of_warps: dict[tuple[Kind, int, int, int], int] = {}
        """Numbers of the accesses of warps: kind, row, stamp and site."""
        self.blamed: set[int] = set()
        """Sites of accesses that were reported not to be over when others came: once is enough."""

    def cells(self, cta: int) -> Cells:
        """Those of a CTA of the batch. They begin as anything."""
        found = self.of_cta.get(cta)
        if found is None:
            data = self.random.integers(0, 1 << 32, CELLS, dtype=np.uint32)
            found = self.of_cta[cta] = Cells(data)
        return found

    # --- warps

    def load(
        self, c: Cohort, addresses: Array, cells: WarpCells, site: Site, name: str | None
    ) -> Words:
        """What the cells of each active warp hold: (warps, 32, n)."""
        out = np.zeros((c.warps, *cells.lanes.shape), np.uint32)
        for position in self._warps(c):
            at = self._places(c, position, addresses, cells, site, name)
            if at is None:
                continue
            cta, row = self._where(c, position)
            number = self._of_warp("loads", row, site)
            self.check_written(cta, at, cells.mask, number, name)
            self.note_read(cta, at, number, name)
            out[position] = self.cells(cta).data[at].reshape(cells.lanes.shape)
        return out

    def store(
        self,
        c: Cohort,
        addresses: Array,
        cells: WarpCells,
        data: Words,
        site: Site,
        name: str | None,
    ) -> None:
        """Writes (warps, 32, n) from the active warps."""
        for position in self._warps(c):
            at = self._places(c, position, addresses, cells, site, name)
            if at is None:
                continue
            cta, row = self._where(c, position)
            number = self._of_warp("stores", row, site)
            self.note_write(cta, at, cells.mask, number, name)
            self.put(cta, at, data[position].reshape(-1), cells.mask)

    @staticmethod
    def _warps(c: Cohort) -> list[int]:
        """Positions of the warps with an active lane."""
        found: list[int] = np.flatnonzero(c.mask_array().any(axis=1)).tolist()
        return found

    def _where(self, c: Cohort, position: int) -> tuple[int, int]:
        row = int(c.rows[position])
        return row // self.geometry.warps, row

    def _of_warp(self, kind: Kind, row: int, site: Site) -> int:
        """The number of a warp's accesses here between two waits."""
        stream = self.order.of_warp(kind, row)
        key = kind, row, stream.now, site.index
        number = self.of_warps.get(key)
        if number is None:
            number = self.of_warps[key] = self.number(Access(stream, stream.now, site))
        return number

    def number(self, access: Access) -> int:
        """The number of a new access."""
        self.accesses.append(access)
        return len(self.accesses) - 1

    def _places(
        self,
        c: Cohort,
        position: int,
        addresses: Array,
        cells: WarpCells,
        site: Site,
        name: str | None,
    ) -> Ints | None:
        """The places of a warp's cells, flat; None, reported, where they are not sound."""
        address = self._address(c, position, addresses, site)
        if address is None:
            return None
        cta, row = self._where(c, position)
        slab = row % self.geometry.warps % SLABS
        lane, column = split_address(address)
        own = range(slab * LANES, slab * LANES + LANES)
        if lane >= LANES and lane not in own:
            self._wrong_slab(row, lane, own, site)
            return None
        lanes, columns = own.start + lane % LANES + cells.lanes, column + cells.columns
        if lanes.min() < own.start or lanes.max() >= own.stop:
            outside = lanes[(lanes < own.start) | (lanes >= own.stop)]
            self._wrong_slab(row, int(outside[0]), own, site)
            return None
        return self.sound(
            cta, lanes.reshape(-1), columns.reshape(-1), self.batch.describe_row(row), site, name
        )

    def _address(self, c: Cohort, position: int, addresses: Array, site: Site) -> int | None:
        """The one address that all active lanes of a warp give."""
        lanes = c.mask_array()[position]
        given = np.broadcast_to(addresses, (c.warps, LANES))[position][lanes]
        if (given == given[0]).all():
            return int(given[0])
        other = int(given[np.argmax(given != given[0])])
        self._fault(
            "sim/tmem-address",
            f"the lanes of a warp give `{site.what}` different addresses, {_spelled(int(given[0]))} and "
            f"{_spelled(other)}: it takes one of the whole warp",
            site,
            [
                ("where", self.batch.describe_row(int(c.rows[position]))),
                ("help", "the address of the warp's first cell, the same in every lane"),
            ],
        )
        return None

    def _wrong_slab(self, row: int, lane: int, own: range, site: Site) -> None:
        warp = row % self.geometry.warps
        self._fault(
            "sim/tmem-address",
            f"`{site.what}` at lane {lane} by warp {warp}, which reaches lanes {own.start}..{own.stop - 1} "
            f"alone: those of its number modulo {SLABS}",
            site,
            [
                ("where", self.batch.describe_row(row)),
                ("help", f"the address has lane 0 or 16 of the warp's own {LANES}, or those counted from lane 0 "
                 "of the CTA"),
            ],
        )  # fmt: skip

    # --- any access

    def sound(
        self, cta: int, lanes: Ints, columns: Ints, who: str, site: Site, name: str | None
    ) -> Ints | None:
        """The places of cells, flat; None where one is outside, or nobody's: reported."""
        if not lanes.size:
            return lanes * TENSOR_COLUMNS + columns
        outside = (
            (lanes < 0) | (lanes >= TENSOR_LANES) | (columns < 0) | (columns >= TENSOR_COLUMNS)
        )
        if outside.any():
            at = int(np.argmax(outside))
            self._fault(
                "sim/out-of-bounds",
                f"`{site.what}` {site.verb} lane {int(lanes[at])}, column {int(columns[at])}; tensor memory has "
                f"{TENSOR_LANES} lanes of {TENSOR_COLUMNS} columns",
                site,
                [("where", who)],
                int(outside.sum()),
            )
            return None
        held = self.of_cta.get(cta)
        stray = np.ones(columns.shape, np.bool_) if held is None else held.free[columns]
        if stray.any():
            at = int(np.argmax(stray))
            self._fault(
                "sim/tmem-unallocated",
                f"`{site.what}` {site.verb} a cell of tensor memory that is not allocated",
                site,
                [
                    ("where", who),
                    ("address", self._cell(cta, int(lanes[at]) * TENSOR_COLUMNS + int(columns[at]), name)),
                    ("held", self.batch.tensor_allocation.describe(cta)),
                    ("help", "tcgen05.alloc more columns, or the address that it wrote; no access after "
                     "tcgen05.dealloc"),
                ],
                int(stray.sum()),
            )  # fmt: skip
            return None
        places: Ints = lanes * TENSOR_COLUMNS + columns
        return places

    def check_written(
        self, cta: int, at: Ints, mask: int | Words, number: int, name: str | None
    ) -> None:
        """Reports cells that are read where nobody has written all the bits."""
        wanted = np.uint32(mask) if isinstance(mask, int) else mask
        missing = (self.cells(cta).written[at] & wanted) != wanted
        if missing.any():
            access = self.accesses[number]
            self._fault(
                "sim/unwritten-read",
                f"`{access.site.what}` reads a cell of tensor memory that nobody has written",
                access.site,
                [
                    ("where", self.order.who(access.stream)),
                    ("address", self._cell(cta, int(at[np.argmax(missing)]), name)),
                    (
                        "help",
                        "tcgen05.st, cp and mma write cells; an mma with accum=False does not read D",
                    ),
                ],
                int(missing.sum()),
            )

    def note_read(self, cta: int, at: Ints, number: int, name: str | None) -> None:
        """An access reads cells; what it does not come after is reported."""
        if not self.hazards:
            return
        held, access = self.cells(cta), self.accesses[number]
        self._check(cta, held.writer[at], at, number, name)
        key: Hashable = access.stream.over
        if access.operation is not None:
            key = access.stream.over, access.operation.kind, access.operation.pipe
        readers = held.readers.get(key)
        if readers is None:
            readers = held.readers[key] = _nobody()
        readers[at] = number

    def note_write(
        self, cta: int, at: Ints, mask: int | Words, number: int, name: str | None
    ) -> None:
        """Likewise of a write, some time from now on: the bits count as written."""
        held = self.cells(cta)
        if self.hazards:
            self._check(cta, held.writer[at], at, number, name)
            for readers in held.readers.values():
                self._check(cta, readers[at], at, number, name)
                readers[at] = NOBODY
            held.writer[at] = number
        held.written[at] |= np.uint32(mask) if isinstance(mask, int) else mask

    def put(self, cta: int, at: Ints, data: Words, mask: int | Words) -> None:
        """The cells' masked bits become those of ``data``."""
        cells = self.cells(cta).data
        if isinstance(mask, int) and mask == 0xFFFF_FFFF:
            cells[at] = data
            return
        bits = np.uint32(mask) if isinstance(mask, int) else mask
        cells[at] = cells[at] & ~bits | data & bits

    # --- order

    def _check(self, cta: int, prior: Ints, at: Ints, number: int, name: str | None) -> None:
        """Reports earlier accesses of the cells that the new one need not come after."""
        later = self.accesses[number]
        for earlier in _distinct(prior):
            if earlier == NOBODY:
                continue
            access = self.accesses[earlier]
            if not (_of_one_operation(access, later) or self.order.comes_before(access, later)):
                same = prior == earlier
                self._race(cta, access, later, int(at[np.argmax(same)]), int(same.sum()), name)

    def _race(
        self, cta: int, earlier: Access, later: Access, at: int, times: int, name: str | None
    ) -> None:
        code, site, other = "sim/tmem-race", later.site, earlier.site
        if self.faults.known(code, site.span, (other.span, other.verb), times):
            return
        why = self.order.explain(earlier, later)
        if why is None:
            self.batch.shared.watch.notes.add(UNORDERED_NOTE)
            return
        self.blamed.add(other.index)
        queue = ""
        if earlier.stream is later.stream and earlier.operation and later.operation:
            kinds = later.operation.kind, earlier.operation.kind
            queue = " (a tcgen05.{} need not run after an earlier tcgen05.{})".format(*kinds)
        self._fault(
            code,
            f"`{site.what}` {site.verb} cells of tensor memory that `{other.what}` {other.verb}, and may come "
            f"before it{queue}: {why[0]}",
            site,
            [
                ("where", f"{self.order.who(later.stream)} {site.verb} here"),
                ("other", f"{self.order.who(earlier.stream)} {other.verb} at {place(other.span)}"),
                ("address", self._cell(cta, at, name)),
                ("help", why[1]),
            ],
            times,
            (other.span, other.verb),
        )

    def check_over(self, cta: int, first: int, count: int, row: int, site: Site) -> None:
        """Reports accesses of the columns that the warp ``row`` cannot know to be over."""
        if not self.hazards:
            return
        held = self.cells(cta)
        own = row % self.batch.warps_per_cluster * LANES + np.arange(LANES)
        for numbers in (held.writer, *held.readers.values()):
            columns = numbers.reshape(TENSOR_LANES, -1)[:, first : first + count]
            for number in _distinct(columns.reshape(-1)):
                if number == NOBODY:
                    continue
                access = self.accesses[number]
                known = access.site.index in self.blamed
                if not known and not self.order.is_over(access.stream, access.stamp, own):
                    self._still_used(access, own, row, first, count, site)

    def _still_used(
        self, access: Access, own: Ints, row: int, first: int, count: int, site: Site
    ) -> None:
        why = self.order.unfinished(access, own)
        if why is None:
            if self.batch.shared.watch.ordered_by_memory:
                self.batch.shared.watch.notes.add(UNORDERED_NOTE)
                return
            why = (
                f"nothing synchronises {self.order.who(access.stream)} with {self.batch.describe_row(row)}",
                "T.cuda.cta_sync() after the last access, before tcgen05.dealloc",
            )
        self._fault(
            "sim/tmem-dealloc",
            f"`{site.what}` frees columns {first}..{first + count - 1} of tensor memory, which "
            f"`{access.site.what}` may still access: {why[0]}",
            site,
            [
                ("where", self.batch.describe_row(row)),
                ("other", f"{self.order.who(access.stream)} {access.site.verb} at {place(access.site.span)}"),
                ("help", why[1]),
            ],
            1,
            access.site.span,
        )  # fmt: skip

    # --- words

    def _cell(self, cta: int, at: int, name: str | None) -> str:
        lane, column = divmod(at, TENSOR_COLUMNS)
        of = f" (`{name}`)" if name else ""
        where = self.geometry.describe_cta(self.batch.first_cta + cta)
        return f"lane {lane}, column {column} of the tensor memory of {where}{of}"

    def _fault(
        self,
        code: str,
        message: str,
        site: Site,
        notes: list[Note],
        times: int = 1,
        other: Any = None,
    ) -> None:
        self.faults.add(code, message, site.span, tuple(notes), other or site.what, times)


def _of_one_operation(one: Access, other: Access) -> bool:
    same = one.stream is other.stream and one.stamp == other.stamp
    return same and other.operation is not None


def _spelled(address: int) -> str:
    lane, column = split_address(address)
    return f"(lane {lane}, column {column})"


def _distinct(numbers: Ints) -> list[int]:
    """The different ones; most accesses find one or two."""
    if not numbers.size:
        return []
    first = int(numbers[0])
    if (numbers == first).all():
        return [first]
    found: list[int] = np.unique(numbers).tolist()
    return found
