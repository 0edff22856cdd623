"""A GPU that records launches and a measurer whose times are a function of the config: all of a tuning but the
measuring itself is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from tests.runtime import fakes
from tilejit.ir.signature import ConstArg
from tilejit.runtime.variant import Variant
from tilejit.tune import measuring
from tilejit.tune.search import ConfigFailed, Trial


class Steps(fakes.Steps):
    """Each signature is a program of its own."""

    def lower(self, kernel: Any, signature: Any, options: Any) -> Any:
        return replace(super().lower(kernel, signature, options), sources=(repr(signature),))

    def show(self, lowered: Any) -> str:
        return f"{lowered.function.launch} {lowered.sources}"


def constants(variant: Variant) -> dict[str, Any]:
    return {n: a.value for n, a in variant.signature.args if isinstance(a, ConstArg)}


@dataclass
class Measurement:
    """Noiseless. ``cost(constants)``: seconds, or the reason why the config fails. ``output``: what it computes."""

    cost: Callable[[dict[str, Any]], float | str]
    output: Callable[[dict[str, Any]], Any]
    arguments: dict[str, Any]
    during: Callable[[], None]
    added: dict[int, Variant] = field(default_factory=dict)
    grids: dict[int, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    closed: bool = False

    def add(self, candidate: int, variant: Variant, grid: Any = None) -> None:
        self.added[candidate], self.grids[candidate] = variant, grid

    def _seconds(self, candidate: int) -> float:
        found = self.cost(constants(self.added[candidate]))
        if isinstance(found, str):
            raise ConfigFailed(found, candidate)
        return found

    def trial(self, candidate: int) -> Trial:
        self.during()
        return Trial(self._seconds(candidate), candidate)

    def differs(self, candidate: int, other: int | None) -> str | None:
        mine = self.output(constants(self.added[candidate]))
        its = 0 if other is None else self.output(constants(self.added[other]))
        return None if mine == its else f"Y[0] is {mine}, expected {its}"

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        return {c: [self._seconds(c)] * rounds for c in candidates}

    def close(self) -> None:
        self.closed = True


@dataclass
class Machine:
    """What a test sees. ``cost``, ``output`` and ``during`` may be replaced."""

    gpu: fakes.Gpu
    cost: Callable[[dict[str, Any]], float | str] = lambda values: values.get("BLOCK", 0) * 1e-6
    output: Callable[[dict[str, Any]], Any] = lambda values: 0
    during: Callable[[], None] = lambda: None
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def launches(self) -> list[Any]:
        return self.gpu.recorder.launches

    @property
    def tunings(self) -> int:
        return len(self.measurements)

    def measure(self, parameters: Sequence[str], values: Any, **options: Any) -> Measurement:
        found = Measurement(
            lambda c: self.cost(c), lambda c: self.output(c), {**options, "values": dict(values)},
            lambda: self.during(),
        )  # fmt: skip
        self.measurements.append(found)
        return found


@contextmanager
def machine() -> Iterator[Machine]:
    with fakes.gpu(devices=2) as gpu:
        made = Machine(gpu)
        with mock.patch.object(measuring, "measure", made.measure):
            yield made
