"""Measures kernels on copies of a call's arguments. The same code measures in the user's process and in
a process of its own.

A *set* is one copy of everything the arguments reach. There are so many sets that together they exceed the
second-level cache twice; launches go round them, so that none finds its operands cached by the last one.
(Of small arguments 64 sets do not: such calls find their operands cached in real programs, too.)
A sample is a CUDA graph of such launches between two events, of about 2 ms. Before it the card is given
other work, which empties the cache and lets the host put the graph behind it: the graph never waits for
the host, and the clock never drops. Samples of several kernels are taken in turn.

What a kernel may write is restored from the pristine copy before its trial, and filled with 0xFF bytes
where no kernel reads it: what is not written is then seen. A kernel that reads what it writes would drift
(overflow, become denormal, leave a flag set) if it ran again on its own result. So its graph visits no set
twice, and the sets are restored between graphs, outside of what is timed. Copies within the graph
would be timed with the kernel, and would fill the cache with its operands just before it reads them.

A kernel that follows addresses it was given, to memory that no argument names, works on the very tensors
that it was prepared for and on no copy. It is measured at *home*: the user's memory is the one set, and is
as before when the measuring is over.

Imports no torch. Not here: whose memory is copied (``staging``), what agrees (``measuring``), who is
measured when (``search``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tilejit.errors import TileError, TuneError, fault
from tilejit.runtime.plan import Grid, GridExceeded
from tilejit.tune.device import Device, Graph, Kernel
from tilejit.tune.search import ConfigFailed

ALIGN_BYTES = 512
"""Places in a set lie as the arguments do, modulo this: their alignment classes stay."""

POISON = 0xFF
"""A NaN in every floating-point format, -1 in integers."""

MAX_SETS = 64
GRAPH_SECONDS = 2e-3
MAX_LAUNCHES = 512
"""In one graph. Recording a launch costs the host microseconds."""
WARM_SECONDS = 0.05
"""Work before the first sample, and before one that comes after a pause of ``PAUSE_SECONDS``."""
PAUSE_SECONDS = 0.25
_SLOW_SECONDS = 0.1
"""A kernel that takes this long is not run once more for a better first estimate."""
_FREE_SHARE = 0.8
"""Of free memory, what sets may take: the user's process goes on allocating."""
_LEADS = 2
"""Times that the memory for leading work is filled: about 0.1 ms in all."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a set."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a set; shape and strides in elements. ``offset`` None: it has no elements."""

    offset: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Value = Place | int | float | bool | None
"""What stands for one parameter: compile-time values are None."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's arguments as one set of ``nbytes``, in the order of the kernel's parameters.

    ``written``: what any of the kernels may write, apart and in order; ``poisoned``: those of them that
    none reads. Behind the pristine set the staging memory has room for what a trial writes: the spans of
    ``written`` one after another, each at a multiple of ``ALIGN_BYTES``.
    """

    values: tuple[Value, ...]
    nbytes: int
    written: tuple[Span, ...]
    poisoned: tuple[Span, ...]

    @property
    def restored(self) -> tuple[Span, ...]:
        return tuple(span for span in self.written if span not in self.poisoned)

    @property
    def set_bytes(self) -> int:
        """From one set to the next."""
        return aligned(self.nbytes)

    @property
    def results(self) -> tuple[int, ...]:
        """Where each span of ``written`` is kept, from the start of the staging memory."""
        places, at = [], self.set_bytes
        for span in self.written:
            places.append(at)
            at += aligned(span.nbytes)
        return tuple(places)

    @property
    def staging_bytes(self) -> int:
        return self.set_bytes + sum(aligned(span.nbytes) for span in self.written)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


def count_sets(set_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """As many as exceed the second-level cache twice, 2 to 64, and no more than fit (0: none does)."""
    wanted = min(max(2 * l2_bytes // max(set_bytes, 1) + 1, 2), MAX_SETS)
    return min(wanted, int(free_bytes * _FREE_SHARE) // max(set_bytes, 1))


@dataclass(slots=True)
class _Candidate:
    kernel: Kernel
    grid: Grid | None
    seconds: float | None
    graph: Graph = None
    launches: int = 0


@dataclass(frozen=True, slots=True)
class Home:
    """Where bytes of a set lie in the user's memory."""

    span: Span
    address: int


class Bench:
    """Candidates measured on ``device``. ``pristine``: the address of the staging memory. ``homes``: where
    the arguments themselves lie, if they and no copies are to be used."""

    def __init__(
        self, device: Device, arguments: Arguments, pristine: int, homes: Sequence[Home] = ()
    ):
        self._device, self._arguments, self._pristine = device, arguments, pristine
        self._homes = tuple(homes)
        self._candidates: dict[int, _Candidate] = {}
        self._last_busy = -math.inf
        self._warmed = False
        lead_bytes = 2 * device.l2_bytes
        free = device.free_bytes() - lead_bytes
        copies = 0 if homes else count_sets(arguments.set_bytes, device.l2_bytes, free)
        if not homes and copies == 0:
            raise _out_of_memory(arguments.set_bytes, free)
        self.sets = max(copies, 1)
        self._lead = Span(device.allocate(lead_bytes), lead_bytes)
        with ExitStack() as undo:
            undo.callback(device.free, self._lead.offset)
            self._base = device.allocate(max(copies * arguments.set_bytes, 1))
            undo.callback(device.free, self._base)
            for number in range(copies):
                if arguments.nbytes:
                    device.copy(self._at(number, 0), pristine, arguments.nbytes)
            undo.pop_all()  # nothing went wrong

    def load(
        self, candidate: int, packed: bytes, grid: Grid | None, seconds: float | None = None
    ) -> None:
        """A candidate in its saved form. ``grid``: the caller's, None for the kernel's own;
        ``seconds``: of one launch, where it had its trial before."""
        with _failing(candidate):
            kernel = self._device.kernel(packed, grid is not None)
            self._candidates[candidate] = _Candidate(kernel, grid, seconds)

    def trial(self, candidate: int) -> float:
        """Runs a candidate once on restored arguments and keeps what it wrote in the staging memory.
        Seconds of one launch: of a second one, unless the first was slow."""
        device, arguments = self._device, self._arguments
        tried = self._candidates[candidate]
        with _failing(candidate):
            seconds = self._alone(tried, 0)
            for span, place in zip(arguments.written, arguments.results):
                device.copy(self._pristine + place, self._at(0, span.offset), span.nbytes)
            if seconds < _SLOW_SECONDS:
                seconds = self._alone(tried, self.sets - 1)
            device.synchronize()
        tried.seconds = seconds
        self._last_busy = device.now()
        return seconds

    def sample(
        self,
        candidates: Sequence[int],
        rounds: int,
        running: Callable[[int], None] = lambda candidate: None,
    ) -> dict[int, list[float]]:
        """Seconds per launch of each, in ``rounds`` rounds in rotating order. ``running`` is told whose
        turn it is."""
        for candidate in candidates:
            running(candidate)
            with _failing(candidate):
                self._record(self._candidates[candidate])
        running(candidates[0])
        with _failing(candidates[0]):
            self._warm(self._candidates[candidates[0]])
        samples: dict[int, list[float]] = {candidate: [] for candidate in candidates}
        for index in range(rounds):
            shift = index % len(candidates)
            for candidate in (*candidates[shift:], *candidates[:shift]):
                running(candidate)
                with _failing(candidate):
                    samples[candidate].append(self._sample(self._candidates[candidate]))
        return samples

    def close(self) -> None:
        """Frees what it holds, not the staging memory. The user's memory is as it was."""
        if self._homes:
            self._copy_back(0, self._arguments.written)
            self._device.synchronize()
        for candidate in self._candidates.values():
            if candidate.graph is not None:
                self._device.drop(candidate.graph)
        self._candidates.clear()
        self._device.free(self._base)
        self._device.free(self._lead.offset)

    # --- sets

    def _at(self, number: int, offset: int) -> int:
        """The address of a byte of a set."""
        for home in self._homes:
            if home.span.offset <= offset < home.span.end:
                return home.address + offset - home.span.offset
        return self._base + number * self._arguments.set_bytes + offset

    def _copy_back(self, number: int, spans: Iterable[Span]) -> None:
        for span in spans:
            source = self._pristine + span.offset
            self._device.copy(self._at(number, span.offset), source, span.nbytes)

    def _values(self, kernel: Kernel, number: int) -> list[object]:
        """The values that a plan's ``run`` takes behind the grid."""
        values: list[object] = []
        for value, shaped in zip(self._arguments.values, kernel.shaped):
            if isinstance(value, Place):
                values.append(0 if value.offset is None else self._at(number, value.offset))
                values += [value.shape, value.strides] if shaped else []
            else:
                values += [value, None, None] if shaped else [value]
        return values

    # --- timing

    def _alone(self, tried: _Candidate, number: int) -> float:
        """Seconds of one launch on a set as it was at first."""
        self._copy_back(number, self._arguments.restored)
        for span in self._arguments.poisoned:
            self._device.fill(self._at(number, span.offset), POISON, span.nbytes)
        values = self._values(tried.kernel, number)
        return self._device.timed(lambda: tried.kernel.run(tried.grid, *values))

    def _record(self, candidate: _Candidate) -> None:
        if candidate.graph is not None:
            return
        assert candidate.seconds is not None, "a sample comes after the trial"
        launches = self._launches(candidate.seconds)
        values = [self._values(candidate.kernel, n) for n in range(min(self.sets, launches))]

        def enqueue() -> None:
            for launch in range(launches):
                candidate.kernel.run(candidate.grid, *values[launch % self.sets])

        candidate.graph, candidate.launches = self._device.graph(enqueue), launches

    def _launches(self, seconds: float) -> int:
        """Of a graph. All sets are visited, unless that takes ten times as long as a graph should."""
        fitting = min(max(1, math.ceil(GRAPH_SECONDS / max(seconds, 1e-9))), MAX_LAUNCHES)
        if self._arguments.restored:
            return min(fitting, self.sets)
        return max(fitting, self.sets) if self.sets * seconds <= 10 * GRAPH_SECONDS else fitting

    def _sample(self, candidate: _Candidate) -> float:
        for number in range(min(self.sets, candidate.launches)):
            self._copy_back(number, self._arguments.restored)
        for _ in range(_LEADS):
            self._device.fill(self._lead.offset, 0, self._lead.nbytes)
        seconds = self._device.timed(lambda: self._device.replay(candidate.graph))
        self._last_busy = self._device.now()
        return seconds / candidate.launches

    def _warm(self, candidate: _Candidate) -> None:
        if self._device.now() - self._last_busy < PAUSE_SECONDS and self._warmed:
            return
        spent = 0.0
        while spent < WARM_SECONDS:
            spent += max(self._sample(candidate) * candidate.launches, 1e-6)
        self._warmed = True


class _failing:
    """Turns what goes wrong within into ``ConfigFailed`` of a candidate."""

    def __init__(self, candidate: int):
        self._candidate = candidate

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, TileError):
            raise ConfigFailed(error.diagnostics[0].message, self._candidate) from error
        if isinstance(error, GridExceeded):
            reason = f"the grid {error.grid} is larger than the kernel was checked for"
            raise ConfigFailed(reason, self._candidate) from error


def _out_of_memory(set_bytes: int, free_bytes: int) -> TileError:
    return fault(
        TuneError,
        "tune/memory",
        f"one copy of the arguments takes {set_bytes} bytes of GPU memory; of {max(free_bytes, 0)} free "
        f"bytes, {_FREE_SHARE:.0%} may be used",
        help="free memory (torch.cuda.empty_cache() returns what torch keeps), or tune on a smaller problem",
    )
