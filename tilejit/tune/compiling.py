"""Compiling many variants at once, and handing each on as it is ready.

Threads suffice: NVRTC runs without the interpreter's lock. What holds the lock (lowering, checking) was done
before. Not here: which variants (``prune``), the steps of a compilation (``pipeline``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from tilejit.errors import TileError
from tilejit.runtime.artifact import ANNOUNCED
from tilejit.runtime.variant import Variant
from tilejit.tune.prune import reason_of

MAX_THREADS = 16


def threads() -> ThreadPoolExecutor:
    """As many as this process has processors, 16 at most."""
    processors = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(min(MAX_THREADS, processors), thread_name_prefix="tilejit-compile")


def build(variant: Variant) -> None:
    """Gets a variant's cubin, from disk or compiled. What the compiler warns about waits in it: it is said
    of the chosen config only."""
    token = ANNOUNCED.set(False)
    try:
        _ = variant.artifact
    finally:
        ANNOUNCED.reset(token)


def compile_all(
    variants: Iterable[tuple[int, Variant]],
    executor: Executor,
    *,
    ready: Callable[[int, Variant], None],
    failed: Callable[[int, str], None],
    build: Callable[[Variant], None] = build,
) -> None:
    """Submits each variant as the iterable gives it; returns when all were submitted.

    ``ready`` and ``failed`` are called with its number, from any thread. ``build`` runs in the executor."""

    def done(number: int, variant: Variant) -> Callable[[Future[Any]], None]:
        def tell(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                ready(number, variant)
            elif isinstance(error, TileError):
                failed(number, reason_of(error))
            else:
                failed(number, f"{type(error).__name__}: {error}")

        return tell

    for number, variant in variants:
        executor.submit(build, variant).add_done_callback(done(number, variant))
