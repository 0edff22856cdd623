"""Ranking configs without a GPU: a plain model of what was counted, never a time.

For one launch of G CTAs on S multiprocessors (SMs) that hold R of them each (``Stats.blocks_per_sm``):

    cost = floor(G / (S·R)) · wave(R)  +  wave(ceil(rest / S)),   rest = G mod (S·R), if there is any
    wave(r) = the largest of  r · amount / rate  of each resource  and  LATENCY · (waits + ceil(copied / shared)),
              and an eighth of the others: they overlap, but not wholly

``amount`` is what one CTA needs of a resource (``tile.work``): warp instructions, cycles of the path to shared
memory and the first-level cache, bytes of global memory, operations of products, results of arithmetic.
``rate`` is how much of it an SM has per cycle (``RATES``). ``waits`` counts the rounds in which a thread loads
from global memory; ``copied / shared`` how often asynchronous copies fill the CTA's shared memory. Spilled
registers are traffic of the first-level cache in each of the most frequent rounds.

So the model knows wide accesses from narrow ones, few waves from many, tiles that reuse much from those that
reuse little, spills, occupancy. It knows nothing of bank conflicts, of what caches keep, of the DRAM, of
instructions that the compiler adds, of work under run-time guards (counted in full). Loops whose rounds a
launch does not say count once, and the estimate lists them.

Not here: counting (``tile.work``), measuring (``bench``), what becomes of an estimate (``report``; it is not stored).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilejit.runtime.artifact import Stats
from tilejit.runtime.variant import Variant, Workload
from tilejit.target import Target

LATENCY_CYCLES = 600
"""A round number for a read of global memory that misses every cache."""
_L1_BYTES_PER_CYCLE = 128
_NOT_HIDDEN = 1 / 8
_MATRIX_CLASSES = {"16": 1.0, "tf32": 0.5, "8": 2.0, "4": 4.0, "1": 16.0}
"""Products of elements of so many bits, relative to those of 16."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one SM has per cycle, and how many SMs the largest product of its kind has.

    ``tensor16``: dense operations of 16-bit products; ``tensor64``: of float64. The others: results of ordinary
    instructions. From NVIDIA's white papers (peak rate / SMs / boost clock) and the CUDA programming guide's
    table of arithmetic throughput. ``l2_bytes``: of the second-level cache, all SMs reading; a round number."""

    sms: int
    tensor16: int
    tensor64: int = 4
    float32: int = 128
    float64: int = 2
    float16: int = 256
    integer: int = 64
    special: int = 16
    convert: int = 64
    issue: int = 4
    l1: int = 1
    l2_bytes: int = 32

    def of(self, resource: str) -> float:
        """Units of a resource of ``Workload.amounts`` per cycle."""
        kind = resource.removeprefix("tensor_")
        if kind == resource:
            return float(getattr(self, resource))
        return self.tensor64 if kind == "64" else self.tensor16 * _MATRIX_CLASSES[kind]


RATES: dict[int, Rates] = {
    80: Rates(108, 2048, tensor64=128, float32=64, float64=32, l2_bytes=40),
    86: Rates(84, 1024),
    87: Rates(16, 2048),
    88: Rates(16, 2048),
    89: Rates(142, 1024),
    90: Rates(132, 4096, tensor64=256, float64=64, l2_bytes=40),
    100: Rates(148, 8192, tensor64=128, float64=64, l2_bytes=40),
    103: Rates(148, 8192, l2_bytes=40),
    110: Rates(20, 8192),
    120: Rates(188, 1024),
    121: Rates(48, 1024),
}
"""By architecture: ``Target.sm``."""

RESOURCES = {
    "issue": "issue slots", "l1": "shared memory and L1", "l2_bytes": "bytes of global memory",
    "float32": "float32 arithmetic", "float64": "float64 arithmetic", "float16": "float16 arithmetic",
    "integer": "integer arithmetic", "special": "special functions", "convert": "conversions",
    "latency": "latency of global memory",
}  # fmt: skip
"""In words; ``tensor_…`` are the tensor cores."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model says of one config. ``cost`` compares configs of one launch, in cycles of the model's SM:
    it is no time, and there is no way to make it one. ``limit``: what the cost is due to. ``waves``: how
    often the GPU is filled with CTAs. ``assumed``: what the launch does not say and the model supposed."""

    cost: float
    limit: str
    waves: float
    occupancy: float
    assumed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"estimated cost {self.cost:.4g}, limited by {self.limit}, {self.waves:.3g} waves, "
            f"occupancy {self.occupancy:.0%}"
        )
        return f"{text}; assumed once: {', '.join(self.assumed)}" if self.assumed else text


def estimate(
    variant: Variant,
    scalars: Mapping[str, int | float | bool],
    grid: tuple[int, int, int],
    sms: int | None = None,
) -> Estimate:
    """The model's view of one launch of a variant, which it compiles. ``scalars``: the launch's numbers and
    sizes by name. ``sms``: of the GPU that is meant; None for the largest of its kind."""
    values = {name: int(v) for name, v in scalars.items() if not isinstance(v, float)}
    values |= {f"nctaid.{axis}": extent for axis, extent in zip("xyz", grid)}
    cluster = variant.function.launch.cluster or ()
    values |= {
        f"nclusterid.{axis}": extent // per
        for axis, extent, per in zip("xyz", grid, (*cluster, 1, 1, 1))
    }
    rates = RATES[Target.parse(variant.target).sm]
    return of_work(variant.work(values), variant.stats, math.prod(grid), rates, sms)


def of_work(
    work: Workload, stats: Stats, ctas: int, rates: Rates, sms: int | None = None
) -> Estimate:
    """The formula at the top of this module."""
    if not stats.blocks_per_sm:
        return Estimate(math.inf, "a CTA that does not fit", math.inf, 0.0, work.unknown)
    amounts = dict(work.amounts)
    spilled = stats.spill_bytes * stats.threads * work.rounds
    amounts["l1"] = amounts.get("l1", 0.0) + spilled / _L1_BYTES_PER_CYCLE
    cycles = {name: amount / rates.of(name) for name, amount in amounts.items()}
    latency = LATENCY_CYCLES * (
        work.waits + math.ceil(work.copied_bytes / max(1, stats.shared_bytes))
    )

    def wave(resident: int) -> float:
        parts = [latency, *(resident * c for c in cycles.values())]
        return max(parts) + (sum(parts) - max(parts)) * _NOT_HIDDEN

    resident, count = stats.blocks_per_sm, sms or rates.sms
    full, rest = divmod(ctas, count * resident)
    left = -(-rest // count)
    cost = full * wave(resident) + (wave(left) if rest else 0.0)
    most = resident if full else left
    parts = {"latency": latency, **{name: most * c for name, c in cycles.items()}}
    limit = max(parts, key=lambda name: parts[name])
    return Estimate(
        cost, RESOURCES.get(limit, "tensor cores"), ctas / (count * resident),
        stats.occupancy, work.unknown,
    )  # fmt: skip
