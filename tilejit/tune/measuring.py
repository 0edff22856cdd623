"""What the search measures with: candidates on copies of one call's arguments, in another process or here.

The user's tensors are copied once and are never written. Outputs of trials are compared here, with torch.
Measuring takes place in this process where no time limit is asked for, where the other process cannot open
our memory, and for kernels that follow addresses of this process; ``notes`` says so. Such kernels run on
the user's tensors themselves, which are put back; what their addresses lead to elsewhere is not.

Not here: how a candidate is timed (``bench``), the other process (``isolated``), the search (``search``).
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

from tilejit.errors import TileError, TuneError, fault
from tilejit.runtime import saved, torch_glue
from tilejit.runtime.plan import Grid
from tilejit.testing import agreement
from tilejit.tune import isolated
from tilejit.tune.bench import Bench
from tilejit.tune.device import CudaDevice, Device
from tilejit.tune.isolated import Isolated, MeasuringRefused
from tilejit.tune.search import Trial
from tilejit.tune.staging import Layout, Staging, lay_out
from tilejit.tune.worker import Open

_SPARE = 4
"""Outputs stay on the GPU while it has this many times their size free; else they go to the host."""


class _Backend(Protocol):
    def load(
        self, candidate: int, packed: bytes, grid: Grid | None, seconds: float | None = None
    ) -> None: ...
    def trial(self, candidate: int) -> float: ...
    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]: ...
    def close(self) -> None: ...


def measure(
    parameters: Sequence[str],
    values: Mapping[str, Any],
    *,
    device: int,
    written: Collection[str],
    read: Collection[str],
    follows_addresses: bool = False,
    compared: Collection[str] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    timeout_s: float | None = 10.0,
) -> Measurement:
    """``parameters``: of the kernel, in order; ``values``: the call's tensors and numbers, by name.
    ``device``: the tensors'. ``written``, ``read``, ``follows_addresses``: of any candidate (see
    ``Variant``).

    ``reference``: a function of arguments by those names that it takes. It is given tensors that hold
    what each trial starts from, and writes them as a kernel would or returns the results: a mapping by
    name, or as many tensors as are compared, in order. ``compared``: names of what must agree; by default
    all that is written. ``tolerance``: None for that of each dtype (``agreement.TOLERANCES``).
    ``timeout_s``: for one run of a candidate, None for no limit and no other process.
    """
    if follows_addresses:
        written = read = [n for n, value in values.items() if torch_glue.is_tensor(value)]
    layout = lay_out(parameters, values, written, read)
    names = [n for n in layout.tensors if n in (written if compared is None else compared)]
    with torch_glue.on_device(device):
        _settle(device)
        return Measurement(
            CudaDevice(device), layout, names, reference, tolerance, timeout_s,
            scalars={n: v for n, v in values.items() if n not in layout.tensors},
            at_home=follows_addresses, here=lambda: torch_glue.on_device(device),
            settle=lambda: _settle(device),
        )  # fmt: skip


def _settle(device: int) -> None:
    """Waits for what torch has put on its current stream: the tensors are as the caller left them."""
    import torch

    torch.cuda.current_stream(device).synchronize()


class Measurement:
    """A ``search.Measure``. ``notes``: what a report should say about how it was measured."""

    def __init__(
        self,
        device: Device,
        layout: Layout,
        compared: Sequence[str],
        reference: Callable[..., Any] | None,
        tolerance: float | None,
        timeout_s: float | None,
        *,
        scalars: Mapping[str, Any],
        at_home: bool = False,
        here: Callable[[], AbstractContextManager[None]] = nullcontext,
        settle: Callable[[], None] = lambda: None,
        command: Sequence[str] = isolated.COMMAND,
    ):
        self.notes: tuple[str, ...] = ()
        self._device, self._layout, self._compared = device, layout, tuple(compared)
        self._reference, self._tolerance, self._scalars = reference, tolerance, scalars
        self._here, self._settle = here, settle
        self._at_home = at_home
        self._lock = threading.Lock()
        self._packed: dict[int, tuple[bytes, Grid | None]] = {}
        self._handed: set[int] = set()
        self._seconds: dict[int, float] = {}
        """Of each trial: a backend that takes over in the middle samples what had its trial elsewhere."""
        self._right: dict[str, Any] | None = None
        self._verdicts: dict[int, str | None] = {}
        """With a reference: how each trial's outputs differ from its."""
        self._outputs: dict[int, dict[str, Any]] = {}
        """Without: the outputs. Candidates whose bits are the same share them."""
        with self._here(), ExitStack() as undo:
            undo.callback(device.release)
            self._staging = Staging(device, layout)
            undo.callback(self._staging.close)
            self._backend = self._start(timeout_s, command)
            undo.pop_all()  # nothing went wrong

    def _start(self, timeout_s: float | None, command: Sequence[str]) -> _Backend:
        if self._at_home:
            self._note(
                "the kernel follows addresses of this process: it was run on your tensors, without a time "
                "limit, and they were put back; what only an address leads to was not"
            )
        elif timeout_s is not None:
            try:
                handle = self._device.export(self._staging.address)
                opening = Open(self._device.identity, handle, self._layout.arguments)
                return Isolated(opening, timeout_s, command)
            except TileError as error:
                self._note(_unlimited(error.diagnostics[0].message))
            except MeasuringRefused as refused:
                self._note(_unlimited(str(refused)))
        return self._bench()

    def _bench(self) -> Bench:
        homes = self._layout.homes if self._at_home else ()
        return Bench(self._device, self._layout.arguments, self._staging.address, homes)

    def _note(self, text: str) -> None:
        self.notes = (*self.notes, text)

    # --- the protocol

    def add(self, candidate: int, variant: Any, grid: Grid | None = None) -> None:
        """``grid``: the caller's, in CTAs; None where the kernel has its own."""
        packed = saved.pack(variant)
        with self._lock:
            self._packed[candidate] = packed, grid

    def trial(self, candidate: int) -> Trial:
        with self._here():
            seconds = self._asked([candidate], lambda backend: backend.trial(candidate))
            outputs = self._staging.results(self._compared)
            self._settle()  # the next trial writes there
            self._seconds[candidate] = seconds
            self._keep(candidate, outputs)
        return Trial(seconds, candidate)

    def differs(self, candidate: int, other: int | None) -> str | None:
        if self._reference is not None:
            return self._verdicts[candidate]
        assert other is not None, "there is no reference"
        found, wanted = self._outputs[candidate], self._outputs[other]
        with self._here():
            return None if found is wanted else self._difference(found, wanted)

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        with self._here():
            samples: dict[int, list[float]] = self._asked(
                candidates, lambda backend: backend.sample(candidates, rounds)
            )
        return samples

    def close(self) -> None:
        self._outputs.clear()
        with self._here(), ExitStack() as last_first:
            last_first.callback(self._device.release)
            last_first.callback(self._staging.close)
            last_first.callback(self._backend.close)

    def _asked(self, candidates: Sequence[int], question: Callable[[_Backend], Any]) -> Any:
        try:
            self._hand_over(candidates)
            return question(self._backend)
        except MeasuringRefused as refused:
            self._note(_unlimited(str(refused)))
            self._backend.close()
            self._backend = self._bench()
            self._handed.clear()
            self._hand_over(candidates)
            return question(self._backend)

    def _hand_over(self, candidates: Sequence[int]) -> None:
        for candidate in candidates:
            if candidate not in self._handed:
                with self._lock:
                    packed, grid = self._packed[candidate]
                self._backend.load(candidate, packed, grid, self._seconds.get(candidate))
                self._handed.add(candidate)

    # --- outputs

    def _keep(self, candidate: int, outputs: dict[str, Any]) -> None:
        if self._reference is not None:
            if self._right is None:
                self._right = self._expected(self._reference)
            self._verdicts[candidate] = self._difference(outputs, self._right)
            return
        for kept in self._outputs.values():
            if all(agreement.same_bits(t, kept[n].to(t.device)) for n, t in outputs.items()):
                self._outputs[candidate] = kept
                return
        nbytes = sum(t.numel() * t.element_size() for t in outputs.values())
        if self._device.free_bytes() < _SPARE * nbytes:
            outputs = {name: tensor.cpu() for name, tensor in outputs.items()}
        self._outputs[candidate] = outputs

    def _difference(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
        for name, expected in wanted.items():
            problem = agreement.difference(name, found[name], expected, self._tolerance)
            if problem:
                return problem
        return None

    def _expected(self, reference: Callable[..., Any]) -> dict[str, Any]:
        """What the reference makes of what every trial starts from."""
        import torch

        arguments: dict[str, Any] = {**self._scalars, **self._staging.fresh()}
        taken = {n: v for n, v in arguments.items() if n in _names_taken(reference, arguments)}
        with torch.no_grad():
            returned = reference(**taken)
        if returned is None:
            return {name: arguments[name] for name in self._compared if name in arguments}
        if isinstance(returned, Mapping):
            unknown = [name for name in returned if name not in self._compared]
            if unknown:
                raise _wrong_reference(f"returns {', '.join(unknown)}", self._compared)
            return dict(returned)
        results = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        if len(results) != len(self._compared) or not all(map(torch_glue.is_tensor, results)):
            raise _wrong_reference(
                f"returns {', '.join(map(torch_glue.describe, results))}", self._compared
            )
        return dict(zip(self._compared, results))


def _names_taken(reference: Callable[..., Any], arguments: Mapping[str, Any]) -> set[str]:
    """The arguments that a reference takes, by its parameters' names."""
    parameters = inspect.signature(reference).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(arguments)
    missing = [p.name for p in parameters if p.name not in arguments and p.default is p.empty]
    if missing:
        raise fault(
            TuneError,
            "tune/reference",
            f"the reference takes {', '.join(missing)}; the call has {', '.join(arguments)}",
            help="name its parameters like the kernel's; it may leave out what it does not need",
        )
    return {p.name for p in parameters}


def _wrong_reference(what: str, compared: Sequence[str]) -> TuneError:
    error = fault(
        TuneError,
        "tune/reference",
        f"the reference {what}, expected {len(compared)} tensors: {', '.join(compared)}",
        help="return a mapping of some of these names to tensors, or write the arguments in place",
    )
    assert isinstance(error, TuneError)
    return error


def _unlimited(reason: str) -> str:
    return f"measured in this process, without a time limit: {reason}"
