"""Benchmarks of several peers: what is checked, timed, computed and shown."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.conftest import need_gpu
from tilejit.errors import TileError
from tilejit.testing import ceilings, report, timing
from tilejit.testing.ceilings import Ceiling
from tilejit.testing.report import Benchmark, Results, perf_report

SECONDS = {"base": 4e-3, "fast": 2e-3, "slow": 8e-3}


@pytest.fixture(autouse=True)
def no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("agg")
    roof = Ceiling("machine", 2e12, 1e15, "bfloat16")
    monkeypatch.setattr(report, "ceiling", lambda device: roof)


def told_by(seconds: dict[str, float]) -> timing.TimeBy:
    return lambda contenders: {
        name: timing.Timing(seconds[name], 0.9 * seconds[name], 1.25 * seconds[name])
        for name in contenders
    }


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def broken(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such kernel")


def benchmark(**changes: Any) -> Benchmark:
    given: dict[str, Any] = {
        "x_names": ["M", "N"],
        "x_vals": [(2, 1000), (4, 1000)],
        "peers": {"base": doubled, "fast": doubled, "slow": doubled},
        "unit": "TB/s",
        "bytes": lambda M, N: 2e6 * M * N,
        "flops": 1e9,
        "check": "base",
        "time_by": told_by(SECONDS),
    }
    return Benchmark(**{**given, **changes})


def make(M: int, N: int) -> tuple[torch.Tensor]:
    return (torch.ones(M, N),)


def run(**changes: Any) -> Results:
    return perf_report(benchmark(**changes))(make).run(print_data=False)


def test_ratios_come_first_then_figures_with_their_spread() -> None:
    lines = run().table().splitlines()
    assert lines[0] == "make"
    assert lines[1].split("  ")[0].strip() == "M"
    assert [c.strip() for c in lines[1].split("  ") if c.strip()] == [
        "M", "N", "fast / base", "slow / base", "base, TB/s", "fast, TB/s", "slow, TB/s",
    ]  # fmt: skip
    assert [c.strip() for c in lines[2].split("  ") if c.strip()] == [
        "2", "1000", "2.000", "0.500", "1 (0.8 to 1.111)", "2 (1.6 to 2.222)", "0.5 (0.4 to 0.5556)",
    ]  # fmt: skip
    assert "CUDA events" in lines[4] and "TB/s: more is faster" in lines[4]


@pytest.mark.parametrize(
    ("unit", "value", "low", "high"),
    [
        ("TB/s", 1.0, 0.8, 1.111), ("TFLOP/s", 0.25, 0.2, 0.2778), ("ms", 4.0, 3.6, 5.0),
        # 4e9 bytes at 2e12 bytes/s take 2 ms, 1e9 operations at 1e15 take 1 µs.
        ("% of ceiling", 50.0, 40.0, 55.56),
    ],
)  # fmt: skip
def test_units(unit: Any, value: float, low: float, high: float) -> None:
    row = run(unit=unit).rows[0]
    assert (row.value, row.low, row.high) == pytest.approx((value, low, high), rel=1e-3)


def test_what_bounds_more_is_the_ceiling() -> None:
    row = run(unit="% of ceiling", flops=3e12).rows[0]
    assert row.value == pytest.approx(75.0)
    assert "copies 2 TB/s" in run(unit="% of ceiling").table()


def test_a_peer_that_is_wrong_or_raises_is_told_and_not_timed() -> None:
    timed: list[list[str]] = []

    def time_by(contenders: timing.Contenders) -> dict[str, timing.Timing]:
        timed.append(list(contenders))
        return told_by(SECONDS)(contenders)

    results = run(peers={"base": doubled, "fast": halved, "slow": broken}, time_by=time_by)
    assert timed == [["base"], ["base"]]
    assert [row.failed is None for row in results.rows] == [True, False, False] * 2
    text = results.table()
    assert "fast at M=2, N=1000 failed: result[0, 0] is 0.5, expected 2.0; 2000 of 2000" in text
    assert "slow at M=4, N=1000 failed: RuntimeError: no such kernel" in text
    assert text.splitlines()[2].count("failed") == 4


def test_when_the_peer_to_compare_with_fails_nothing_is_called_right() -> None:
    results = run(peers={"fast": doubled, "base": broken})
    fast, base = results.rows[:2]
    assert fast.failed == "base, which it is compared with, failed"
    assert base.failed == "RuntimeError: no such kernel"
    assert "nothing was timed" in results.table() and json.loads(results.to_json())["clock"] == ""


def test_without_the_baseline_there_are_figures_and_no_ratios() -> None:
    results = run(check=None, baseline="slow", peers={"fast": doubled, "slow": broken})
    assert results.rows[0].ratio is None and results.rows[0].value is not None
    assert " – " in results.table()


def test_a_check_of_ones_own() -> None:
    def check(result: torch.Tensor, x: torch.Tensor) -> str | None:
        return None if torch.equal(result, x * 2) else "not doubled"

    results = run(check=check, peers={"fast": halved, "base": doubled}, baseline="base")
    assert [row.failed for row in results.rows[:2]] == ["not doubled", None]


def test_a_check_that_says_true_or_false_says_nothing() -> None:
    """``torch.allclose`` has it the other way round: False would have passed for right."""
    results = run(check=lambda result, x: torch.equal(result, x), baseline="base")
    assert {row.failed for row in results.rows} == {
        "TypeError: check returned False, expected None, or a text that says what is wrong"
    }


def test_sizes_may_come_from_an_iterator() -> None:
    results = run(x_vals=((m, 1000) for m in (2, 4)))
    assert [line.split()[:2] for line in results.table().splitlines()[2:4]] == [
        ["2", "1000"], ["4", "1000"]
    ]  # fmt: skip


def test_who_has_no_timing_has_no_figure() -> None:
    results = run(time_by=lambda contenders: {})
    assert {row.failed for row in results.rows} == {"timing base, fast, slow: KeyError: 'base'"}


def test_peers_may_share_their_output_and_return_several() -> None:
    out = torch.empty(4, 1000)

    def into(x: torch.Tensor) -> list[torch.Tensor]:
        torch.mul(x, 2, out=out[: len(x)])
        return [out[: len(x)], x.sum()]

    def wrong_into(x: torch.Tensor) -> list[torch.Tensor]:
        out.zero_()
        return [out[: len(x)], x.sum()]

    results = run(peers={"fast": wrong_into, "base": into, "slow": doubled})
    fast, base, slow = results.rows[:3]
    assert base.failed is None and str(fast.failed).startswith("result 0[0, 0] is 0.0")
    assert slow.failed == "returned 1 tensors, expected 2"


def test_a_peer_that_returns_nothing_cannot_be_compared() -> None:
    results = run(peers={"base": doubled, "fast": lambda x: None})
    assert "returned NoneType, expected a tensor" in str(results.rows[1].failed)


def test_when_timing_fails_the_report_says_so() -> None:
    def time_by(contenders: timing.Contenders) -> dict[str, timing.Timing]:
        raise MemoryError("no room")

    assert all(
        row.failed == "timing base, fast, slow: MemoryError: no room"
        for row in run(time_by=time_by).rows
    )


def test_data_forms_hold_the_same_rows(tmp_path: Path) -> None:
    results = run(peers={"base": doubled, "fast": doubled, "slow": broken})
    frame = results.frame()
    assert list(frame.columns) == [
        "M", "N", "peer", "ratio to base", "TB/s", "TB/s, low", "TB/s, high", "median_s", "failed",
    ]  # fmt: skip
    assert frame["ratio to base"][1] == 2.0 and frame["failed"][2].startswith("RuntimeError")
    content = json.loads(results.to_json())
    assert content["rows"] == results.records() and content["device"] == "CPU"
    assert "ceiling" not in content and "ceiling" in run(unit="% of ceiling").to_json()
    read = list(csv.DictReader(io.StringIO(results.to_csv())))
    assert [row["peer"] for row in read] == ["base", "fast", "slow"] * 2
    assert float(read[1]["TB/s"]) == 2.0 and read[2]["TB/s"] == ""


def test_run_prints_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = perf_report(benchmark())(make)
    results = kept.run(save_path=tmp_path / "new")
    assert capsys.readouterr().out == results.table() + "\n"
    assert {p.name for p in (tmp_path / "new").iterdir()} == {
        "make.json", "make.csv", "make.png", "make_roofline.png",
    }  # fmt: skip
    assert kept.__name__ == "make"


def lines_of(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_plots_show_the_unit_against_the_size_with_error_bars() -> None:
    two = run().plot().axes[0]
    assert two.get_ylabel() == "TB/s" and two.get_xlabel() == "M × N"
    assert [t.get_text() for t in two.get_xticklabels()] == ["2×1000", "4×1000"]
    assert len(two.containers) == 3 and all(c.has_yerr for c in two.containers)
    one = perf_report(
        benchmark(x_names=["N"], x_vals=[1, 64, 4096], bytes=lambda N: N, peers={"base": doubled})
    )(lambda N: torch.ones(N)).run(print_data=False)
    axes = one.plot().axes[0]
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] == 0
    (container,) = axes.containers
    assert list(container.lines[0].get_xdata()) == [1, 64, 4096]


def test_a_failed_peer_has_no_point_in_a_plot() -> None:
    axes = run(peers={"base": doubled, "fast": broken}).plot().axes[0]
    assert [len(c.lines[0].get_xdata()) for c in axes.containers] == [2, 0]


def test_the_roofline_lies_over_every_point() -> None:
    results = run(unit="TFLOP/s", flops=lambda M, N: 1e12)
    axes = results.roofline().axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    roof = lines["measured ceiling"]
    assert max(roof.get_ydata()) == pytest.approx(1000.0) and axes.get_yscale() == "log"
    (x, _), (y, _) = lines["base"].get_data()
    assert (x, y) == pytest.approx((1e12 / 4e9, 1e12 / 4e-3 / 1e12))
    with pytest.raises(TileError, match="for a roofline"):
        run(flops=None).roofline()
    empty = run(x_vals=[(0, 1000), (2, 1000)]).roofline().axes[0].get_lines()
    assert [len(line.get_xdata()) for line in empty if line.get_label() == "base"] == [1]


def test_a_notebook_shows_the_table_escaped() -> None:
    html = run(
        peers={"base": doubled, "<fast>": doubled}, time_by=told_by({**SECONDS, "<fast>": 1e-3})
    )
    text = html._repr_html_()
    assert "&lt;fast&gt; / base" in text and "<fast>" not in text and "4.000" in text


@pytest.mark.parametrize("module", ["pandas", "matplotlib.pyplot"])
def test_what_is_not_installed_is_told_with_the_command(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    results = run()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TileError, match="pip install") as failed:
        results.frame() if module == "pandas" else results.plot()
    assert failed.value.codes == ("testing/optional",)
    assert f"pip install {module.partition('.')[0]}, or 'tilejit[bench]'" in str(failed.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_names": "N"}, "x_names is 'N', expected a list of names"),
        ({"x_vals": [3]}, "x_vals is 3, expected 2 values: M, N"),
        ({"peers": {}}, "peers is empty"),
        ({"unit": "GB/s"}, "unit is 'GB/s', expected 'TB/s' or 'TFLOP/s'"),
        ({"bytes": None}, "bytes is missing, expected the bytes that one call moves"),
        ({"unit": "TFLOP/s", "flops": None}, "flops is missing"),
        ({"unit": "% of ceiling", "flops": None, "bytes": None}, "at least one"),
        ({"check": "nobody"}, "check is 'nobody', expected a peer: base, fast, slow"),
        ({"baseline": "nobody"}, "baseline is 'nobody'"),
        ({"x_names": ["M", "M"]}, "x_names is M, M, expected different names"),
        (
            {"x_names": ["M", "peer"]},
            "none of them a column of the results: TB/s, failed, median_s, peer",
        ),
    ],
)
def test_what_is_wrong_with_a_benchmark(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TileError, match=message) as failed:
        run(**changes)
    assert failed.value.codes == ("testing/benchmark",)


def test_a_cpu_is_timed_by_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[Any] = []

    def interleaved(contenders: timing.Contenders, clock: Any) -> dict[str, timing.Timing]:
        clocks.append(clock)
        return told_by(SECONDS)(contenders)

    monkeypatch.setattr(timing, "interleaved", interleaved)
    run(time_by=None)
    assert clocks == [timing.by_host_clock] * 2


# --- ceilings


def test_ceilings_are_measured_once_and_count_what_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1000)
    monkeypatch.setitem(ceilings._PRODUCT_SIZE, "cpu", 10)
    calls: list[dict[str, Callable[[], Any]]] = []

    def interleaved(contenders: timing.Contenders, **_: Any) -> dict[str, timing.Timing]:
        calls.append(contenders)
        for call in contenders.values():
            call()
        return {"copy": timing.Timing(2.0, 2.0, 2.0), "product": timing.Timing(4.0, 4.0, 4.0)}

    monkeypatch.setattr(timing, "interleaved", interleaved)
    ceilings._measured.cache_clear()
    try:
        told = tile.testing.ceiling("cpu")
        assert tile.testing.ceiling("cpu") is told and len(calls) == 1
        assert told == Ceiling("CPU", 2 * 1000 / 2.0, 2 * 10**3 / 4.0, "float32")
        assert told.least_seconds(1000, 1000) == 2.0
        assert tile.testing.ceiling("cpu", torch.float64).dtype == "float64" and len(calls) == 2
    finally:
        ceilings._measured.cache_clear()


@pytest.mark.gpu
def test_a_benchmark_on_a_gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need_gpu(request.config)
    monkeypatch.setattr(report, "ceiling", ceilings.ceiling)

    def arguments(N: int) -> torch.Tensor:
        return torch.rand(N, device="cuda")

    results = perf_report(
        Benchmark(["N"], [1 << 20, 1 << 24], {"a": doubled, "b": lambda x: x + x, "c": halved},
                  unit="% of ceiling", bytes=lambda N: 8 * N, flops=lambda N: N, check="a")
    )(arguments).run(print_data=False, save_path=tmp_path)  # fmt: skip
    assert [row.failed is None for row in results.rows] == [True, True, False] * 2
    assert results.clock == "CUDA events" and results.ceiling.bytes_per_second > 1e11
    assert all(row.value > 0 for row in results.rows if row.value is not None)
    assert len(list(tmp_path.iterdir())) == 4
