"""``do_bench`` and the statistics of timings. The protocols for comparing: ``tests/test_benchmarks.py``."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.conftest import need_gpu
from tilejit.errors import TileError
from tilejit.testing import timing
from tilejit.testing.timing import Timing, do_bench, do_bench_graph, summarise


def test_testing_is_a_public_room_and_imports_torch_only_when_asked() -> None:
    assert tile.testing.do_bench is do_bench and "testing" in dir(tile)
    assert set(tile.testing.__all__) == set(dir(tile.testing))
    assert all(getattr(tile.testing, name) is not None for name in tile.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'do_benchmark'"):
        tile.testing.do_benchmark
    script = "import sys, tilejit; tilejit.testing; print('torch' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "False"


@pytest.mark.parametrize("count", [4, 5, 8, 15])
def test_quartiles_are_those_of_the_standard_library(count: int) -> None:
    values = [((7 * i) % count + 1) ** 1.5 for i in range(count)]
    low, median, high = statistics.quantiles(values, n=4)
    told = summarise(values)
    assert (told.low, told.median, told.high) == pytest.approx((low, median, high))
    assert told.samples == tuple(values) and told.least == min(values)
    assert told.mean == pytest.approx(statistics.fmean(values))


def test_few_samples_have_no_quartiles_beyond_them() -> None:
    assert summarise([2.0]) == Timing(2.0, 2.0, 2.0)
    assert summarise([1.0, 3.0]) == Timing(2.0, 1.0, 3.0)
    ordered = summarise([float(n) for n in range(1, 100)], (0.05, 0.95))
    assert (ordered.low, ordered.high) == (5.0, 95.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s "), (2.5e-3, "2.5 ms "), (2.5e-6, "2.5 µs "), (2.5e-8, "0.025 µs ")],
)
def test_a_timing_says_its_unit_and_clock(seconds: float, text: str) -> None:
    told = str(Timing(seconds, seconds, seconds, clock="host clock"))
    assert told.startswith(text) and told.endswith("; host clock)")


def test_what_a_clock_cannot_resolve_is_timed_all_the_same() -> None:
    def coarse(run: Any, calls: int, blocks: int = 1) -> list[float]:
        return [0.0] * blocks

    contenders: timing.Contenders = {"nothing": lambda: None}
    assert timing.interleaved(contenders, 3, clock=coarse)["nothing"].median == 0
    assert timing._each_alone(contenders, 0.0, 0.1, coarse)["nothing"].median == 0


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"quantiles": (20, 80)}, r"quantiles is \(20, 80\), expected two numbers from 0 to 1"),
        ({"quantiles": (0.9, 0.1)}, "ascending"),
        ({"device": "gpu"}, "device is 'gpu', expected 'cuda', 'cpu' or None"),
        ({"device": torch.device("cuda")}, "expected 'cuda', 'cpu' or None"),
    ],
)
def test_what_do_bench_does_not_take(keywords: Any, message: str) -> None:
    with pytest.raises(TileError, match=message):
        timing.do_bench(lambda: None, 1.0, 1.0, **keywords)


def test_the_host_clock_counts_calls_and_drops_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes 10 ms of this clock."""
    now = [0.0]
    leaf = torch.ones(3, requires_grad=True)
    seen: list[Any] = []

    def call() -> None:
        seen.append(leaf.grad)
        leaf.grad = torch.ones(3)
        now[0] += 0.01

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    told = do_bench(call, warmup_ms=70, rep_ms=200, grad_to_none=[leaf], device="cpu")
    assert told.clock == "host clock" and told.median == pytest.approx(0.01)
    assert 18 <= len(told.samples) <= 20 and len(seen) >= 1 + 5 + 6 + 18
    assert set(map(type, seen)) == {type(None)}
    few = do_bench(call, warmup_ms=0, rep_ms=0, device="cpu")
    assert len(few.samples) == 5


class Event:
    """A CUDA event of a made up clock."""

    now = 0.0

    def __init__(self, enable_timing: bool):
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_the_cache_is_emptied_before_every_call_by_twice_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Milliseconds of the events: a call takes 1, emptying the cache takes 100 and does not count."""
    told: list[str] = []
    sizes: list[int] = []

    class Flushed:
        def zero_(self) -> None:
            Event.now += 100.0
            told.append("emptied")

    def empty(nbytes: int, **_: Any) -> Flushed:
        sizes.append(nbytes)
        return Flushed()

    def call() -> None:
        Event.now += 1.0
        told.append("called")

    properties = type("Properties", (), {"L2_cache_size": 1000})
    for name, stand_in in {
        "is_available": lambda: True, "current_device": lambda: 0, "synchronize": lambda: None,
        "get_device_properties": lambda device: properties, "Event": Event,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "empty", empty)
    timed = do_bench(call, warmup_ms=3, rep_ms=20)
    assert timed.median == pytest.approx(1e-3) and len(timed.samples) in (19, 20)
    assert timed.clock == "CUDA events" and set(sizes) == {2000}
    assert told[1:] == ["emptied", "called"] * (len(told) // 2), "the first call compiles"


def test_graphs_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call alone takes 1 ms; in a graph of two, 0.8 ms."""
    graphs: list[int] = []

    class Graph:
        def __init__(self, run: Any, calls: int):
            graphs.append(calls)
            self.replay = lambda: None

    monkeypatch.setattr(timing, "_graph", Graph)
    monkeypatch.setattr(timing, "do_bench", lambda fn, *_: Timing(4e-4, 4e-4, 4e-4))
    monkeypatch.setattr(timing, "by_events", lambda run, calls, blocks=1: [2e-3] * blocks)
    told = do_bench_graph(lambda: None, rep_ms=30)
    assert graphs == [5] and told.median == pytest.approx(4e-4) and len(told.samples) == 15


@pytest.mark.gpu
def test_a_copy_on_a_gpu(request: pytest.FixtureRequest) -> None:
    need_gpu(request.config)
    source, target = (torch.ones(1 << 26, device="cuda") for _ in range(2))
    held = torch.cuda.memory_allocated()
    alone = do_bench(lambda: target.copy_(source))
    assert torch.cuda.memory_allocated() == held, "the memory that empties the cache is given back"
    in_graph = do_bench_graph(lambda: target.copy_(source))
    for told in (alone, in_graph):
        assert 0 < told.low <= told.median <= told.high and told.clock == "CUDA events"
        assert 0 < 2 * source.nbytes / told.median < 20e12
