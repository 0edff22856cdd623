"""Measuring in a process of its own: the user's side.

``Isolated`` offers what ``Bench`` does. Behind it is a worker process; when a candidate hangs or breaks
it, that candidate failed, the process is killed, and the next request starts another, which is given the
same arguments and candidates. A worker stays when a tuning is over and serves the next one.

Not here: the process itself (``worker``, ``child``), staging memory and comparing (``measuring``).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from tilejit.runtime.plan import Grid
from tilejit.tune import child
from tilejit.tune.child import Child
from tilejit.tune.search import ConfigFailed
from tilejit.tune.worker import (
    Close,
    Done,
    DoSample,
    DoTrial,
    Failed,
    Load,
    Open,
    Refused,
    Reply,
    Request,
    Running,
)

COMMAND = child.command("tilejit.tune.worker")
_START_SECONDS = 60.0
"""For the first answer: the process starts, makes a context, and copies the arguments."""


class MeasuringRefused(Exception):
    """Nothing can be measured in another process, for this reason."""


class WorkerLost(Exception):
    """The process is gone. ``candidate``: whose turn it was, if that is known."""

    def __init__(self, reason: str, candidate: int | None):
        super().__init__(reason)
        self.reason, self.candidate = reason, candidate


class WorkerProcess(Child):
    """A child that measures. ``waited``: it has served before, and may close for lack of work."""

    def __init__(self, command: Sequence[str]):
        super().__init__(command)
        self.waited = False

    def receive(self, timeout_s: float) -> Reply:
        """The reply. Each turn of a candidate may take ``timeout_s``; then, or if the process ends
        meanwhile, raises ``WorkerLost`` and it is no more."""
        candidate: int | None = None
        while True:
            try:
                if not self.connection.poll(timeout_s):
                    self.kill()
                    reason = f"it did not end within {timeout_s:g} s: it hangs, or is far too slow"
                    raise WorkerLost(reason, candidate)
                reply: Reply = self.connection.recv()
            except (EOFError, OSError):
                raise WorkerLost(f"the measuring process {self.ended()}", candidate) from None
            if not isinstance(reply, Running):
                return reply
            candidate = reply.candidate


# --- workers that wait for the next tuning

_waiting: dict[tuple[str, ...], list[WorkerProcess]] = {}
_lock = threading.Lock()


def take(command: Sequence[str]) -> WorkerProcess:
    """One that waits, or a new one."""
    with _lock:
        waiting = _waiting.get(tuple(command), [])
        while waiting:
            worker = waiting.pop()
            if worker.alive:
                return worker
            worker.kill()
    return WorkerProcess(command)


def give(command: Sequence[str], worker: WorkerProcess) -> None:
    worker.waited = True
    with _lock:
        _waiting.setdefault(tuple(command), []).append(worker)


@atexit.register
def close_waiting() -> None:
    with _lock:
        workers = [worker for waiting in _waiting.values() for worker in waiting]
        _waiting.clear()
    for worker in workers:
        worker.kill()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    for waiting in _waiting.values():
        for worker in waiting:
            worker.leave()
    _waiting.clear()


os.register_at_fork(after_in_child=_forget)


# --- a session


class Isolated:
    """Candidates measured by a worker process. ``opening``: what it is told first; ``timeout_s``: for one
    candidate's trial, and for its turn in a sample."""

    def __init__(self, opening: Open, timeout_s: float, command: Sequence[str] = COMMAND):
        self._opening, self._timeout_s, self._command = opening, timeout_s, command
        self._packed: dict[int, tuple[bytes, Grid | None]] = {}
        self._seconds: dict[int, float] = {}
        self._loaded: set[int] = set()
        self._opened = False
        self._worker: WorkerProcess | None = None
        self._start()  # what it takes to start passes while the first candidates compile

    def load(
        self, candidate: int, packed: bytes, grid: Grid | None, seconds: float | None = None
    ) -> None:
        """As ``Bench.load``; the worker gets it before the candidate's turn."""
        self._packed[candidate] = packed, grid
        if seconds is not None:
            self._seconds[candidate] = seconds

    def trial(self, candidate: int) -> float:
        self._seconds.pop(candidate, None)
        seconds = self._ask([candidate], DoTrial(candidate))
        self._seconds[candidate] = seconds
        return float(seconds)

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        samples: dict[int, list[float]] = self._ask(candidates, DoSample(tuple(candidates), rounds))
        return samples

    def close(self) -> None:
        """Lets the worker free everything; it then waits for the next tuning."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if not self._opened:
                worker.receive(_START_SECONDS)
            worker.send(Close())
            worker.receive(self._timeout_s)
        except WorkerLost:
            return
        except BaseException:  # an interrupt, or what a signal handler raises
            worker.kill()
            raise
        give(self._command, worker)

    def _start(self) -> WorkerProcess:
        try:
            self._worker = worker = take(self._command)
        except OSError as error:
            raise MeasuringRefused(f"no process can be started: {error}") from error
        self._opened = False
        self._loaded.clear()
        worker.send(self._opening)
        return worker

    def _ask(self, candidates: Sequence[int], request: Request) -> Any:
        """The result. Whatever happens to the worker is the fault of the candidate whose turn it was."""
        worker = self._open(self._worker or self._start())
        turn = candidates[0]
        try:
            for turn in candidates:
                self._load(worker, turn)
            turn = candidates[0]
            worker.send(request)
            reply = worker.receive(self._timeout_s)
        except WorkerLost as lost:
            self._worker = None
            candidate = turn if lost.candidate is None else lost.candidate
            raise ConfigFailed(lost.reason, candidate) from lost
        except ConfigFailed:
            raise
        except BaseException:  # an interrupt, or what a signal handler raises
            self._discard()  # its reply would be taken for the next one
            raise
        return self._result(reply)

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _open(self, worker: WorkerProcess) -> WorkerProcess:
        """The worker, or another where this one had just closed for lack of work, ready for requests."""
        if self._opened:
            return worker
        try:
            reply = worker.receive(max(_START_SECONDS, self._timeout_s))
        except WorkerLost as lost:
            self._worker = None
            if worker.waited:
                return self._open(self._start())
            raise MeasuringRefused(lost.reason) from lost
        if isinstance(reply, Refused):
            self._worker = None
            give(self._command, worker)
            raise MeasuringRefused(reply.reason)
        assert isinstance(reply, Done), reply
        self._opened = True
        return worker

    def _load(self, worker: WorkerProcess, candidate: int) -> None:
        if candidate in self._loaded:
            return
        packed, grid = self._packed[candidate]
        worker.send(Load(candidate, packed, grid, self._seconds.get(candidate)))
        self._result(worker.receive(self._timeout_s))
        self._loaded.add(candidate)

    def _result(self, reply: Reply) -> Any:
        if isinstance(reply, Failed):
            if not reply.alive:
                self._discard()
            raise ConfigFailed(reply.reason, reply.candidate)
        assert isinstance(reply, Done), reply
        return reply.result
