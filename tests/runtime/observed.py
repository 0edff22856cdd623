"""What the simulator sees a kernel read and write, beside what the kernel is said to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tilejit.pipeline import Pipeline
from tilejit.sim.global_memory import GlobalMemory


@dataclass
class Launch:
    """One simulated launch: names of the tensors accessed, and of those claimed to be."""

    kernel: str
    seen_read: set[str] = field(default_factory=set)
    seen_written: set[str] = field(default_factory=set)
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """The launches simulated in the block; each access of global memory counts by its site's verb."""
    found: list[Launch] = []
    simulate, in_buffer = Pipeline.simulate, GlobalMemory._in_buffer

    def watched(
        memory: Any, buffer: Any, addresses: Any, nbytes: int, lanes: Any, site: Any, at: Any
    ) -> Any:
        located = in_buffer(memory, buffer, addresses, nbytes, lanes, site, at)
        if located and found:
            if site.verb in ("reads", "updates"):
                found[-1].seen_read.add(buffer.name)
            if site.verb in ("writes", "updates"):
                found[-1].seen_written.add(buffer.name)
        return located

    def run(steps: Any, checked: Any, *rest: Any) -> Any:
        claimed = steps.accesses(checked)
        found.append(Launch(checked.function.name, read=claimed.read, written=claimed.written))
        return simulate(steps, checked, *rest)

    with (
        mock.patch.object(GlobalMemory, "_in_buffer", watched),
        mock.patch.object(Pipeline, "simulate", run),
    ):
        yield found
