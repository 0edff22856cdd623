"""Who holds which columns of tensor memory, and who waits for some.

An allocation is a power of two of columns, of one CTA or the same ones of both CTAs of a pair. Where there
is no room, or the pair's other CTA has not come yet, the warp waits. A CTA has all of its 512 columns here:
other CTAs on the same multiprocessor are not modelled. Which columns it gets is anybody's guess (the seed's).

Not here: what the cells hold (``tensor_memory``), cohorts that wait (``barrier``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilejit.ir.tensor_memory import TENSOR_COLUMNS, split_address
from tilejit.sim import access
from tilejit.sim.faults import Site, place
from tilejit.sim.geometry import LANES, Bools, Ints

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Array, Cohort
    from tilejit.sim.tensor_memory import TensorMemory

LEAST_COLUMNS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Columns that a CTA holds, allocated by a warp of the batch."""

    first: int
    columns: int
    pair: bool
    row: int
    site: Site


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What a warp waits for."""

    row: int
    columns: int
    pair: bool
    site: Site


class TensorAllocation:
    """The allocations of one batch. ``held`` and ``relinquished`` by CTA, ``requests`` and ``granted`` by row;
    ``latest``: columns of a CTA's last allocation. ``group``: whether the kernel works on pairs, and the
    first instruction that said so."""

    def __init__(self, batch: Batch, memory: TensorMemory) -> None:
        self.batch, self.memory = batch, memory
        self.faults, self.geometry = batch.faults, batch.geometry
        self.held: dict[int, list[Held]] = {}
        self.relinquished: dict[int, Site] = {}
        self.latest: dict[int, Held] = {}
        self.requests: dict[int, Request] = {}
        self.granted: dict[int, Held] = {}
        self.group: tuple[bool, Site] | None = None

    # --- one kernel, one .cta_group

    def check_group(self, pair: bool, site: Site) -> None:
        """All tcgen05 instructions of a kernel have the same ``.cta_group``."""
        if self.group is None:
            self.group = pair, site
        elif self.group[0] != pair:
            self._fault(
                "sim/tmem-cta-group",
                f"`{site.what}` in a kernel that has `{self.group[1].what}`, too: all of a kernel's tcgen05 "
                "instructions work on one CTA, or all on a pair",
                site,
                [("other", place(self.group[1].span)), ("help", "the same .cta_group everywhere")],
            )

    # --- alloc

    def allocate(
        self, c: Cohort, addresses: Array, columns: Array, pair: bool, site: Site, name: str | None
    ) -> None:
        """Each active warp allocates, or asks for, columns. Those that have them write the address."""
        self.check_group(pair, site)
        whole = np.broadcast_to(columns, (c.warps, LANES))
        active = c.mask_array()
        for position in np.flatnonzero(active.any(axis=1)).tolist():
            row = int(c.rows[position])
            if row not in self.granted and row not in self.requests:
                wanted = self._checked(row, whole[position][active[position]], site)
                self.requests[row] = Request(row, wanted, pair, site)
        self._grant()
        self._write(c, addresses, site, name)

    def waits(self, rows: Ints) -> Bools:
        """Per warp: has it not got yet what it has asked for?"""
        found: Bools = np.array([row in self.requests for row in rows.tolist()], np.bool_)
        return found

    def _checked(self, row: int, given: Array, site: Site) -> int:
        """How many columns the warp gets: what it wants, if that is sound."""
        cta, wanted = row // self.geometry.warps, int(given[0])
        notes = [("where", self.batch.describe_row(row))]
        if (given != wanted).any():
            self._fault("sim/tmem-alloc", f"the lanes of a warp ask `{site.what}` for different numbers of columns",
                        site, notes)  # fmt: skip
        legal = min(max(1 << (wanted - 1).bit_length(), LEAST_COLUMNS), TENSOR_COLUMNS)
        if wanted != legal:
            self._fault(
                "sim/tmem-alloc",
                f"`{site.what}` of {wanted} columns, expected a power of two from {LEAST_COLUMNS} to "
                f"{TENSOR_COLUMNS}", site, notes,
            )  # fmt: skip
        if cta in self.relinquished:
            earlier = self.relinquished[cta]
            self._fault(
                "sim/tmem-alloc",
                f"`{site.what}` in a CTA that has given up the right to allocate", site,
                [*notes, ("other", f"`{earlier.what}` at {place(earlier.span)}"),
                 ("help", "tcgen05.relinquish_alloc_permit comes after the CTA's last allocation")],
            )  # fmt: skip
        before = self.latest.get(cta)
        if before is not None and before.columns < legal:
            self._fault(
                "sim/tmem-alloc",
                f"`{site.what}` of {legal} columns after one of {before.columns}: an allocation has no more "
                "columns than those before it in the CTA", site,
                [*notes, ("other", place(before.site.span)), ("help", "allocate the largest first")],
            )  # fmt: skip
        return legal

    def _grant(self) -> None:
        """Whoever can get what it waits for does, first come, first served."""
        for request in list(self.requests.values()):
            if request.row not in self.requests:
                continue
            partners = self._partners(request)
            if partners is None:
                continue
            columns = max(r.columns for r in partners)
            ctas = [r.row // self.geometry.warps for r in partners]
            first = self._room(ctas, columns)
            if first is not None:
                for partner, cta in zip(partners, ctas):
                    self._hold(cta, Held(first, columns, partner.pair, partner.row, partner.site))

    def _partners(self, request: Request) -> list[Request] | None:
        """The request, and that of the pair's other CTA; None if that is still to come."""
        if not request.pair:
            return [request]
        peer = self._peer(request)
        if peer is None:
            return [request]
        for other in self.requests.values():
            if other.pair and other.row // self.geometry.warps == peer:
                self._check_partners(request, other)
                return [request, other]
        return None

    def _peer(self, request: Request) -> int | None:
        """The pair's other CTA; None, reported, where there is none that runs."""
        cta = request.row // self.geometry.warps
        peer = cta ^ 1 if self.geometry.cluster_size % 2 == 0 else None
        alive = self.batch.alive.reshape(self.batch.ctas, -1)
        if peer is not None and alive[peer].any():
            return peer
        what = (
            f"the cluster has {self.geometry.cluster_size} CTAs"
            if peer is None
            else f"{self._cta(peer)} has exited"
        )
        self._fault(
            "sim/tmem-alloc", f"`{request.site.what}` of a CTA without its pair's other one: {what}",
            request.site,
            [("where", self.batch.describe_row(request.row)),
             ("help", "clusters of pairs; T.cuda.cluster_sync() keeps the other CTA until it has come, too")],
        )  # fmt: skip
        return None

    def _check_partners(self, one: Request, other: Request) -> None:
        if one.columns != other.columns:
            self._fault(
                "sim/tmem-alloc",
                f"the CTAs of a pair allocate {one.columns} and {other.columns} columns together, expected the same",
                one.site,
                [("where", self.batch.describe_row(one.row)), ("other", place(other.site.span))],
            )  # fmt: skip

    def _room(self, ctas: list[int], columns: int) -> int | None:
        """The first of so many columns that are free in all of the CTAs, a multiple of their number: then
        no room is lost, as sizes do not grow."""
        free = np.ones(TENSOR_COLUMNS, np.bool_)
        for cta in ctas:
            free &= self.memory.cells(cta).free
        starts = np.flatnonzero(free.reshape(-1, columns).all(axis=1)) * columns
        if not starts.size:
            return None
        return int(starts[int(self.memory.random.integers(starts.size))])

    def _hold(self, cta: int, held: Held) -> None:
        del self.requests[held.row]
        self.granted[held.row] = self.latest[cta] = held
        self.held.setdefault(cta, []).append(held)
        cells = self.memory.cells(cta)
        cells.free[held.first : held.first + held.columns] = False
        cells.forget(held.first, held.columns)

    def _write(self, c: Cohort, addresses: Array, site: Site, name: str | None) -> None:
        """The warps that have got columns write their address, all lanes as one: what each lane did with
        that memory comes before, and what it does after."""
        active = c.mask_array()
        leaders, words = np.zeros_like(active), np.zeros((c.warps, 1), np.uint32)
        for position, row in enumerate(c.rows.tolist()):
            held = self.granted.pop(row, None)
            if held is not None:
                leaders[position, int(np.argmax(active[position]))] = True
                words[position] = held.first
        if not leaders.any():
            return
        rows, outer = c.rows[leaders.any(axis=1)], c.mask
        self.batch.clocks.warp_barrier(rows)
        c.mask = leaders
        access.store(c, addresses, access.as_bytes(words), site, "shared", name)
        c.mask = outer
        self.batch.clocks.warp_barrier(rows)

    # --- dealloc

    def free(self, c: Cohort, addresses: Array, columns: Array, pair: bool, site: Site) -> None:
        """Each active warp frees what was allocated at its address."""
        self.check_group(pair, site)
        shape = (c.warps, LANES)
        given, counts = np.broadcast_to(addresses, shape), np.broadcast_to(columns, shape)
        active = c.mask_array()
        for position in np.flatnonzero(active.any(axis=1)).tolist():
            lane = int(np.argmax(active[position]))
            row, address = int(c.rows[position]), int(given[position, lane])
            held = self._found(row, address, int(counts[position, lane]), pair, site)
            if held is not None:
                self._release(row, held, site)
        self._grant()

    def _found(self, row: int, address: int, columns: int, pair: bool, site: Site) -> Held | None:
        """What the CTA holds at the address; reported where that is not what is freed."""
        cta = row // self.geometry.warps
        for held in self.held.get(cta, []):
            if held.first == address:
                if (held.columns, held.pair) != (columns, pair):
                    self._differs(row, held, columns, site)
                return held
        lane, column = split_address(address)
        self._fault(
            "sim/tmem-dealloc",
            f"`{site.what}` of {columns} columns at lane {lane}, column {column}, where no allocation begins",
            site,
            [
                ("where", self.batch.describe_row(row)),
                ("held", self.describe(cta)),
                ("help", "the address that tcgen05.alloc wrote, once"),
            ],
        )
        return None

    def _differs(self, row: int, held: Held, columns: int, site: Site) -> None:
        self._fault(
            "sim/tmem-dealloc",
            f"`{site.what}` of {columns} columns, where {held.columns} were allocated by `{held.site.what}`",
            site,
            [
                ("where", self.batch.describe_row(row)),
                ("alloc", place(held.site.span)),
                ("help", "the columns and the .cta_group of the allocation"),
            ],
        )

    def _release(self, row: int, held: Held, site: Site) -> None:
        cta = row // self.geometry.warps
        self.memory.check_over(cta, held.first, held.columns, row, site)
        self.held[cta].remove(held)
        cells = self.memory.cells(cta)
        cells.free[held.first : held.first + held.columns] = True
        cells.forget(held.first, held.columns)

    def relinquish(self, c: Cohort, pair: bool, site: Site) -> None:
        """The CTAs of the active warps allocate no more."""
        self.check_group(pair, site)
        for row in c.rows[c.mask_array().any(axis=1)].tolist():
            self.relinquished.setdefault(row // self.geometry.warps, site)

    # --- the end

    def check_exit(self, cta: int) -> None:
        """All threads of the CTA have exited: it may hold nothing."""
        for held in self.held.pop(cta, []):
            self._fault(
                "sim/tmem-leak",
                f"{held.columns} columns of tensor memory that `{held.site.what}` allocates are not freed when "
                "the CTA ends",
                held.site,
                [
                    ("where", self.batch.describe_row(held.row)),
                    ("help", "tcgen05.dealloc with the same address, columns and .cta_group, after the last access"),
                ],
            )  # fmt: skip

    # --- words

    def describe(self, cta: int) -> str:
        """What the CTA holds."""
        parts = [
            f"columns {h.first}..{h.first + h.columns - 1} since {place(h.site.span)}"
            for h in self.held.get(cta, [])
        ]
        return "; ".join(parts) or "no columns"

    def missing(self, cta: int) -> str:
        """Why a warp of the CTA that waits gets nothing."""
        request = next(r for r in self.requests.values() if r.row // self.geometry.warps == cta)
        wanted = f"it wants {request.columns} columns"
        if request.pair and self._partners(request) is None:
            return f"{wanted}, and no warp of {self._cta(cta ^ 1)}, the pair's other CTA, has come to its alloc"
        peer = f"; {self._cta(cta ^ 1)} holds {self.describe(cta ^ 1)}" if request.pair else ""
        return f"{wanted}, and the CTA holds {self.describe(cta)}{peer}"

    def _cta(self, cta: int) -> str:
        return self.geometry.describe_cta(self.batch.first_cta + cta)

    def _fault(self, code: str, message: str, site: Site, notes: list[tuple[str, str]]) -> None:
        self.faults.add(code, message, site.span, tuple(notes), site.what)
