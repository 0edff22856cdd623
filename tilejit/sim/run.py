"""The simulator's door: runs a checked kernel over numpy bytes and reports what is wrong with it.

Not here: torch tensors (``runtime``), contracts (families).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TextIO

import numpy as np

from tilejit.errors import LaunchError, fault
from tilejit.ir import nodes
from tilejit.sim import scalar
from tilejit.sim.access import Accesses
from tilejit.sim.batch import Batch
from tilejit.sim.cohort import NOT_A_SCOPE, Cohort
from tilejit.sim.copies import Copies
from tilejit.sim.expr import Expressions, dtype_of
from tilejit.sim.faults import FaultLog
from tilejit.sim.geometry import LANES, Geometry, triple
from tilejit.sim.global_memory import GlobalBuffer, GlobalMemory
from tilejit.sim.hazards import Clocks
from tilejit.sim.mbarrier import Mbarriers
from tilejit.sim.memory import Watch
from tilejit.sim.program import Program, compile_program
from tilejit.sim.schedule import Scheduler
from tilejit.sim.shared_memory import SharedMemory, place_shared
from tilejit.sim.storage import Checked, find_storage
from tilejit.sim.tensor_memory import CELL_BYTES_OF_CTA
from tilejit.sim.transfers import Transfers
from tilejit.tile.family import FamilyIndex

MAX_BATCH_WARPS = 4096
"""Arrays of one value per lane then take about a megabyte and stay in the cache."""
MAX_BATCH_BYTES = 512 << 20
MAX_THREADS_32 = 2**29
SHADOW_FACTOR = 10
"""Bytes of bookkeeping per byte of shared memory, roughly."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """``hazards``: look for races. ``seed``: order of warps, the elected lane, and when asynchronous
    copies' bytes arrive. ``fault_limit``: stop after so many distinct faults. ``step_limit``: turns of a cohort's loops. ``output``: where
    prints go (None: standard output). ``batch_warps``: the most warps simulated together."""

    hazards: bool = True
    seed: int = 0
    fault_limit: int = 20
    step_limit: int = 1_000_000
    output: TextIO | None = None
    batch_warps: int = MAX_BATCH_WARPS


@dataclass(frozen=True, slots=True)
class SimReport:
    """What was run. A report means that no fault was found; ``operations`` counts operations of
    the flattened program, each once per cohort. ``notes`` say what could not be judged."""

    ctas: int
    warps: int
    batches: int
    operations: int
    hazards: bool
    shared_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()


def run(
    checked: Checked,
    buffers: Mapping[str, GlobalBuffer],
    scalars: Mapping[str, int | float | bool],
    grid: int | Sequence[int],
    options: SimOptions | None = None,
    families: FamilyIndex | None = None,
) -> SimReport:
    """Executes the kernel on ``buffers`` in place.

    ``buffers`` and ``scalars`` by parameter name (dynamic sizes and strides are scalars); ``grid``
    in CTAs. Raises ``SimulationFault`` with every distinct fault found, ``Unsimulated`` for what is
    not modelled, ``LaunchError`` for a launch that cannot be.
    """
    started = time.perf_counter()
    options = options or SimOptions()
    function = checked.function
    geometry = _geometry(function, grid)
    _check_given(function, buffers, scalars)
    with np.errstate(all="ignore"):
        simulation = _Simulation(checked, buffers, scalars, geometry, options, families or {})
        batches = simulation.run()
    return SimReport(
        geometry.ctas,
        geometry.ctas * geometry.warps,
        batches,
        simulation.operations,
        options.hazards,
        simulation.shared_bytes,
        time.perf_counter() - started,
        tuple(sorted(simulation.notes)),
    )


def _geometry(function: nodes.Function, grid: int | Sequence[int]) -> Geometry:
    extents = triple((grid,) if isinstance(grid, int) else tuple(grid))
    cluster = triple(function.launch.cluster or (1,))
    if any(extent < 0 for extent in extents):
        raise fault(LaunchError, "launch/grid", f"grid {extents} has a negative extent")
    if any(g % c for g, c in zip(extents, cluster)):
        raise fault(
            LaunchError,
            "launch/cluster",
            f"grid {extents} is not whole clusters of {cluster} CTAs",
            function.span,
        )
    return Geometry(extents, triple(function.launch.block), cluster)


def _check_given(
    function: nodes.Function, buffers: Mapping[str, GlobalBuffer], scalars: Mapping[str, object]
) -> None:
    """Every parameter has a buffer or a value."""
    for param in function.params:
        is_tensor = isinstance(param.type, nodes.TensorType)
        if param.name not in (buffers if is_tensor else scalars):
            what = "buffer" if is_tensor else "value"
            raise fault(LaunchError, "launch/argument", f"no {what} for `{param.name}`")


class _Simulation:
    """One launch: compiled once, then batch after batch."""

    def __init__(
        self,
        checked: Checked,
        buffers: Mapping[str, GlobalBuffer],
        scalars: Mapping[str, int | float | bool],
        geometry: Geometry,
        options: SimOptions,
        families: FamilyIndex,
    ) -> None:
        self.geometry, self.options = geometry, options
        function = checked.function
        self.storage = find_storage(checked)
        self.accesses = Accesses(buffers, place_shared(self.storage.shared))
        self.expressions = Expressions(self.accesses, self.storage)
        self.program: Program = compile_program(checked, self.expressions, families)
        self.parameters = self._parameter_values(function, scalars)
        self.faults = FaultLog(options.fault_limit)
        self.operations = 0
        threads = geometry.ctas * geometry.slots
        # The numbers above the threads' are agents'.
        self.thread_type: Any = np.int32 if threads < MAX_THREADS_32 else np.int64
        self.has_agents = False
        self.notes: set[str] = set()
        self.watch = Watch(
            geometry,
            self.faults,
            self.notes,
            self.accesses.sites,
            np.array([site.strong for site in self.accesses.sites] or [False]),
            self.thread_type,
            self.accesses.writers,
            self.accesses.ordered_by_memory,
            options.hazards,
        )
        stored = self.accesses.stored
        self.global_memory = GlobalMemory(
            list(buffers.values()), None if stored is None else frozenset(stored), self.watch
        )
        self.random = Random(options.seed)
        self.arrivals = np.random.default_rng(options.seed)
        self.leader_lane = options.seed % LANES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the CTA's shared buffers, gaps left out."""
        return sum(buffer.nbytes for buffer in self.accesses.shared.values())

    def _parameter_values(
        self, function: nodes.Function, scalars: Mapping[str, int | float | bool]
    ) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for param in function.params:
            if isinstance(param.type, nodes.TensorType) or param.name not in self.expressions.slots:
                continue  # a scalar without a slot is one that only the grid reads
            value = np.full((1, 1), scalars[param.name])
            kind = scalar.value_type(dtype_of(param.type))
            values[self.expressions.slot(param)] = value.astype(kind)
        return values

    def run(self) -> int:
        """All batches; returns how many there were."""
        per_batch = self._ctas_per_batch()
        count = 0
        for first in range(0, self.geometry.ctas, per_batch):
            ctas = min(per_batch, self.geometry.ctas - first)
            scheduler = Scheduler(self.program, self._batch(first, ctas), self.random)
            scheduler.run(self._first_cohort(scheduler.batch))
            self.operations += scheduler.operations
            self.has_agents = scheduler.batch.clocks.has_agents
            for shadow in self.global_memory.shadows:
                shadow.forget_clusters()
            count += 1
        self.faults.raise_if_any()
        return count

    def _ctas_per_batch(self) -> int:
        geometry = self.geometry
        if self.program.grid_wide:
            return max(1, geometry.ctas)
        local = sum(self.storage.local_bytes.values()) * geometry.slots
        shared = sum(b.nbytes for b in self.accesses.shared.values()) * SHADOW_FACTOR
        # Named barriers and asynchronous accesses keep what each thread of a cluster knows of each other
        # one, the latter for the asynchronous proxy, too.
        pairs = geometry.slots**2 * geometry.cluster_size
        matrix = 4 * pairs * (3 if self.accesses.asynchronous else int(self.program.named))
        tensor = CELL_BYTES_OF_CTA if self.accesses.tensor_memory else 0
        by_memory = MAX_BATCH_BYTES // max(1, local + shared + matrix + tensor)
        by_warps = self.options.batch_warps // geometry.warps
        clusters = max(1, min(by_memory, by_warps) // geometry.cluster_size)
        return clusters * geometry.cluster_size

    def _batch(self, first: int, ctas: int) -> Batch:
        geometry = self.geometry
        clocks = Clocks(geometry, first, ctas, self.has_agents)
        shared = SharedMemory(dict(self.accesses.shared), ctas, self.watch)
        shared.clocks = self.global_memory.clocks = clocks
        first_row, rows = first * geometry.warps, ctas * geometry.warps
        copies = Copies(shared, self.global_memory, clocks, first_row, rows, self.arrivals)
        shared.copies = self.global_memory.copies = copies
        mbarriers = Mbarriers(shared, clocks, geometry, first, self.faults)
        transfers = Transfers(
            shared, self.global_memory, clocks, mbarriers, first_row, rows, self.arrivals
        )
        alive = np.arange(geometry.slots).reshape(geometry.warps, LANES) < geometry.threads
        return Batch(
            geometry,
            first,
            ctas,
            clocks,
            self.global_memory,
            shared,
            copies,
            mbarriers,
            transfers,
            self.faults,
            self.thread_type,
            self.leader_lane,
            self.random,
            self.options.output or sys.stdout,
            self.options.step_limit,
            np.tile(alive, (ctas, 1)),
        )

    def _first_cohort(self, batch: Batch) -> Cohort:
        slots = self.program.slots
        values: list[Any] = [None] * slots
        for slot, value in self.parameters.items():
            values[slot] = value
        unset = [None if value is not None else np.ones((1, 1), np.bool_) for value in values]
        partial = self.geometry.threads % LANES != 0
        mask = batch.alive.copy() if partial else None
        rows = np.arange(batch.rows)
        return Cohort(batch, rows, 0, values, list(unset), [NOT_A_SCOPE] * slots, {}, mask)
