"""Compiling many variants at once: in threads, or in processes where that pays.

Checking and emitting hold the interpreter's lock, NVRTC does not. With 16 processors the 24 configs of
``benchmarks.bench_tune`` (check and emission 60 ms, NVRTC 180 ms each) take 6.7 s in one thread, 3.8 s in
four, and 3.4 s in sixteen, which wait for the lock; in processes that are there already 0.8 s. Such a process is
there after 0.5 s, in which the first variants are lowered. So there are processes for ``WORTH_CONFIGS`` or
more, and ``WORTH_PROCESSORS``: with fewer of either what they save is what they cost. They are started with
the first variant that is not compiled already, and end with the tuning.
Not here: which variants (``prune``), the steps of a compilation (``pipeline``), the process (``compiler``).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tilejit.errors import TileError
from tilejit.runtime.artifact import ANNOUNCED
from tilejit.runtime.variant import Job, Made, Variant
from tilejit.tune import child
from tilejit.tune.child import Child
from tilejit.tune.compiler import (
    Broken,
    Compile,
    Compiled,
    Crashed,
    Failed,
    Prepare,
    Reply,
    Result,
    Unreadable,
    compiled,
)

MAX_WORKERS = 16
WORTH_CONFIGS = 8
WORTH_PROCESSORS = 4
COMMAND = child.command("tilejit.tune.compiler")


class ContractsBroken(Exception):
    """The variant is none that can be compiled. ``error`` says all that is wrong with it."""

    def __init__(self, error: TileError):
        super().__init__(str(error))
        self.error = error


class NotCompiled(Exception):
    """The variant keeps its contracts, and compiling it went wrong in a way that no diagnostic tells."""


def compiler(configs: int) -> Threads:
    """What compiles best that many configs, or fewer, on this machine. To be closed."""
    processors = len(os.sched_getaffinity(0))
    workers = max(1, min(MAX_WORKERS, processors, configs))
    if configs >= WORTH_CONFIGS and processors >= WORTH_PROCESSORS:
        return Processes(workers)
    return Threads(workers)


class Threads:
    """Compiles in threads of this process."""

    def __init__(self, workers: int):
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="tilejit-compile")
        self._checking = threading.Lock()

    def submit(self, variant: Variant) -> Future[None]:
        """Has it checked and compiled. The future raises ``ContractsBroken``, the compiler's ``TileError``, or
        whatever else went wrong."""
        return self._executor.submit(self._quietly, variant)

    def close(self) -> None:
        """Drops what has not begun, and waits for the rest."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _quietly(self, variant: Variant) -> None:
        """What the compiler warns about waits in the artifact: it is said of the chosen config only."""
        token = ANNOUNCED.set(False)
        try:
            self._build(variant)
        finally:
            ANNOUNCED.reset(token)

    def _build(self, variant: Variant) -> None:
        with self._checking:  # several would but take turns at the interpreter's lock
            try:
                _ = variant.checked
            except TileError as error:
                raise ContractsBroken(error) from error
            _ = variant.written
        _ = variant.artifact


class Processes(Threads):
    """Compiles in processes; each thread here waits for one of them. ``command``: what starts one."""

    def __init__(self, workers: int, command: Sequence[str] = COMMAND):
        super().__init__(workers)
        self._workers, self._command = workers, command
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._idle: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        self._started = self._closed = False

    def close(self) -> None:
        """Ends the processes whatever they do."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            for process in self._children:
                process.end()
        super().close()
        for process in self._children:
            process.kill()

    def _build(self, variant: Variant) -> None:
        variant.compile_elsewhere(self._run)

    def _run(self, job: Job) -> Made:
        process = self._take(job)
        if process is None:
            self._idle.put(None)
            result = compiled(job)
        else:
            try:
                result = _asked(process, job)
            except (EOFError, OSError):
                raise NotCompiled(f"the compiling process {self._lost(process, job)}") from None
            except BaseException:
                self._idle.put(process)  # nobody may wait for it for ever
                raise
            self._idle.put(process)
        match result:
            case Compiled(made=made):
                return made
            case Broken(error=error):
                raise ContractsBroken(error)
            case Failed(error=error):
                raise error
            case Crashed(reason=reason):
                raise NotCompiled(reason)

    def _take(self, job: Job) -> Child | None:
        """An idle process; None where one could not be started. The first call starts all of them."""
        with self._lock:
            if self._closed:
                raise NotCompiled("the tuning was over before")
            if not self._started:
                self._started = True
                for _ in range(self._workers):
                    self._start(job)
        return self._idle.get()

    def _start(self, job: Job) -> None:
        if self._closed:
            return
        try:
            process = Child(self._command)
        except OSError:
            self._idle.put(None)
            return
        process.send(Prepare(job.prepare))
        self._children.add(process)
        self._idle.put(process)

    def _lost(self, process: Child, job: Job) -> str:
        """How it ended. Another takes its place."""
        told = process.ended()
        with self._lock:
            self._children.discard(process)
            self._start(job)
        return told


def _asked(process: Child, job: Job) -> Result:
    """What the process made of it; what this one did, where something of the user's program is in the job that
    cannot travel."""
    try:
        process.connection.send(Compile(job))
    except OSError:
        raise
    except Exception:  # whatever the user's objects raise when asked to travel
        return compiled(job)
    reply: Reply = process.connection.recv()
    return compiled(job) if isinstance(reply, Unreadable) else reply
