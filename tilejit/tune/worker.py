"""The process that measures: ``python -m tilejit.tune.worker FD``.

It holds a CUDA context of its own, so that a kernel that hangs, traps or writes where it may not takes
this process and not the user's. It imports neither torch nor the frontend. Over the socket FD it gets
requests, each answered by one reply; during a sample it tells whose turn it is. It ends when its parent
does, or when nobody has asked for anything for a while.

Not here: the other end of the socket (``isolated``), measuring (``bench``).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from tilejit.errors import TileError
from tilejit.runtime.plan import Grid
from tilejit.tune.bench import Arguments, Bench
from tilejit.tune.child import end_with
from tilejit.tune.device import Device, device_of
from tilejit.tune.search import ConfigFailed

IDLE_SECONDS = 30.0


# --- what is said


@dataclass(frozen=True, slots=True)
class Open:
    """Measure on this GPU, from this staging memory. Answered by ``Done`` or ``Refused``."""

    device: bytes
    staging: bytes
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Load:
    """See ``Bench.load``. Answered by ``Done`` or ``Failed``, as is what follows."""

    candidate: int
    packed: bytes
    grid: Grid | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class DoTrial:
    candidate: int


@dataclass(frozen=True, slots=True)
class DoSample:
    candidates: tuple[int, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class Close:
    """Frees everything; the process stays for the next ``Open``."""


Request: TypeAlias = Open | Load | DoTrial | DoSample | Close


@dataclass(frozen=True, slots=True)
class Running:
    """No reply yet: this candidate's turn begins."""

    candidate: int


@dataclass(frozen=True, slots=True)
class Done:
    """``result``: a trial's seconds, or a sample's by candidate."""

    result: float | dict[int, list[float]] | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing can be measured in this process."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """``alive``: the context still works; otherwise the process ends after this."""

    candidate: int
    reason: str
    alive: bool


Reply: TypeAlias = Running | Done | Refused | Failed


# --- the process


class Worker:
    """Answers requests of one session after another."""

    def __init__(self, connection: Connection, find: Callable[[bytes], Device | None]):
        self._connection, self._find = connection, find
        self._device: Device | None = None
        self._staging = 0
        self._bench: Bench | None = None

    def serve(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Until the parent hangs up, is idle for too long, or the context breaks."""
        while True:
            if self._bench is None and not self._connection.poll(idle_seconds):
                return
            try:
                reply = self._answer(self._connection.recv())
                self._connection.send(reply)
            except (EOFError, OSError):
                return
            if isinstance(reply, Failed) and not reply.alive:
                return

    def _answer(self, request: Request) -> Reply:
        try:
            match request:
                case Open():
                    return self._open(request)
                case Load():
                    self._opened.load(
                        request.candidate, request.packed, request.grid, request.seconds
                    )
                    return Done()
                case DoTrial():
                    return Done(self._opened.trial(request.candidate))
                case DoSample():
                    return Done(
                        self._opened.sample(
                            request.candidates,
                            request.rounds,
                            lambda candidate: self._connection.send(Running(candidate)),
                        )
                    )
                case Close():
                    self._close()
                    return Done()
        except ConfigFailed as failure:
            return Failed(failure.candidate, failure.reason, self._works())

    @property
    def _opened(self) -> Bench:
        assert self._bench is not None, "nothing was opened"
        return self._bench

    def _open(self, request: Open) -> Reply:
        try:
            if self._device is None or self._device.identity != request.device:
                self._device = self._find(request.device)
            if self._device is None:
                return Refused("the measuring process does not see that GPU")
            self._staging = self._device.open(request.staging)
            self._bench = Bench(self._device, request.arguments, self._staging)
        except TileError as error:
            self._close()
            return Refused(error.diagnostics[0].message)
        return Done()

    def _close(self) -> None:
        if self._bench is not None:
            self._bench.close()
        if self._staging and self._device is not None:
            self._device.close(self._staging)
        self._bench, self._staging = None, 0

    def _works(self) -> bool:
        """Whether the context survived: after a fault of a kernel every call fails."""
        assert self._device is not None
        try:
            self._device.synchronize()
        except TileError:
            return False
        return True


def main(descriptor: int, find: Callable[[bytes], Device | None] = device_of) -> None:
    end_with(os.getppid())
    try:
        Worker(Connection(descriptor), find).serve()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Not through Python's own end: a broken context may not be left in order.
    os._exit(0)


if __name__ == "__main__":
    # What is said is pickled by the module's own name: not as this second copy, __main__.
    from tilejit.tune import worker

    worker.main(int(sys.argv[1]))
