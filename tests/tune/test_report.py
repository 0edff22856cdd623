"""What a report shows and keeps: labels, units, reasons; an estimate is called one wherever it is seen."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from tilejit.errors import TileError
from tilejit.tune.model import Estimate
from tilejit.tune.report import Report, Row, Uses
from tilejit.tune.search import Interval


def around(median: float, samples: int = 20) -> Interval:
    return Interval(median, 0.99 * median, 1.02 * median, samples)


MEASURED = Report(
    kernel="gemm",
    key={"device": {"name": "NVIDIA H200", "sm_count": 132}, "sizes": {"M": 4096}},
    device="NVIDIA H200",
    source="measured",
    rows=(
        Row("BLOCK=64", "measured", "", around(1.5e-4), Uses(96, 0, 65536, 0.5)),
        Row("BLOCK=128", "measured", "", around(1.1e-4, 60), Uses(168, 0, 131072, 0.25)),
        Row("BLOCK=192", "measured", "", around(1.105e-4, 60), Uses(232, 16, 196608, 0.125)),
        Row("BLOCK=256", "failed", "wrong output: C[0, 3] is 1.5 < 2"),
        Row("BLOCK=512", "pruned", "launch/shared: 393216 bytes"),
        Row("BLOCK=16", "dropped", "its first run took 12.0 times the best's"),
    ),
    chosen=1,
    tied=(2,),
    compile_seconds=3.25,
    measure_seconds=0.5,
    compiled=5,
    benchmarked=4,
    date="2026-12-01T02:00:00+00:00",
    notes=("measured in this process",),
)  # fmt: skip

ESTIMATED = Report(
    kernel="gemm", key={}, device="sm_90a", source="estimated by the model",
    rows=(
        Row("BLOCK=64", "estimated", estimate=Estimate(4e5, "tensor cores", 1.5, 0.5)),
        Row("BLOCK=128", "estimated", estimate=Estimate(2e5, "issue slots", 0.75, 0.25)),
        Row("BLOCK=512", "pruned", "too large"),
    ),
    chosen=1,
)  # fmt: skip


def row_of(table: str, config: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if f"{config} " in line and "±" not in line]
    return line.split()


def test_the_table_has_figures_units_and_reasons() -> None:
    table = MEASURED.table()
    assert str(MEASURED) == table
    assert table.startswith("gemm on NVIDIA H200: BLOCK=128, 110 µs ± 2.2 (95 %)")
    assert "6 configs, 5 compiled in 3.25 s, 4 benchmarked in 0.50 s" in table
    assert "median, µs" in table and "± 95 %, µs" in table
    assert row_of(table, "BLOCK=64") == [
        "BLOCK=64", "150", "3", "20", "1.364", "96", "0", "65536", "50%",
    ]  # fmt: skip
    lines = table.splitlines()
    order = [
        i for c in ("128", "192", "64") for i, line in enumerate(lines) if f"BLOCK={c} " in line
    ]
    assert order == sorted(order) and lines[order[0]].startswith("*")
    assert "failed   BLOCK=256: wrong output: C[0, 3] is 1.5 < 2" in table
    assert "dropped  BLOCK=16: its first run took 12.0 times" in table
    assert "as fast as the chosen one, as far as was measured: BLOCK=192" in table
    assert "note: measured in this process" in table


@pytest.mark.parametrize(
    ("scale", "unit", "shown"), [(1e-2, "µs", "1.1"), (1, "µs", "110"), (1e2, "ms", "11"), (1e4, "s", "1.1")]
)  # fmt: skip
def test_units_follow_the_times(scale: float, unit: str, shown: str) -> None:
    rows = [
        r if r.seconds is None else replace(r, seconds=around(r.seconds.median * scale))
        for r in MEASURED.rows
    ]
    report = replace(MEASURED, rows=tuple(rows))
    assert f"median, {unit}" in report.table()
    assert report.headline().startswith(f"gemm on NVIDIA H200: BLOCK=128, {shown} {unit} ±")


def test_a_time_that_nothing_bounds_is_told_so() -> None:
    row = Row("BLOCK=64", "measured", seconds=Interval(1e-4, 0.0, math.inf, 2))
    report = replace(MEASURED, rows=(row,), chosen=0, tied=())
    assert row_of(report.table(), "BLOCK=64 ")[:4] == ["*", "BLOCK=64", "100", "unknown"]
    kept = Report.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False)))
    assert kept.rows == report.rows


def test_an_estimate_says_so_everywhere() -> None:
    table = ESTIMATED.table()
    assert "ESTIMATED" in table and "not measured" in table and "(no time)" in table
    assert not re.search(r"\b(µs|ms|s)\b", table.replace("is no GPU here", ""))
    assert "ESTIMATED" in ESTIMATED._repr_html_()
    frame = ESTIMATED.frame()
    assert set(frame["source"]) == {"estimated by the model"}
    assert not [column for column in frame.columns if "seconds" in column]
    axes = ESTIMATED.plot()
    assert "estimated" in axes.get_xlabel() and "not measured" in axes.get_xlabel()


def test_an_estimate_is_never_written_down() -> None:
    with pytest.raises(TileError) as caught:
        ESTIMATED.to_json()
    assert caught.value.codes == ("tune/estimated",)
    data = MEASURED.to_json()
    data["configs"][0]["status"] = "estimated"
    with pytest.raises(ValueError, match="estimated"):
        Report.from_json(data)


# --- JSON


def test_json_keeps_everything() -> None:
    text = json.dumps(MEASURED.to_json(), allow_nan=False)
    found = Report.from_json(json.loads(text))
    assert found == replace(MEASURED, source="from disk")
    assert "read from disk, nothing compiled or benchmarked for it here" in found.table()
    assert found.to_json() == MEASURED.to_json()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("chosen"),
        lambda d: d.update(chosen=6),
        lambda d: d.update(chosen=-1),
        lambda d: d.update(tied=[9]),
        lambda d: d.update(configs=None),
        lambda d: d["configs"][0].pop("config"),
        lambda d: d["configs"][0]["seconds"].pop("median"),
        lambda d: d["configs"][0].update(status="wonderful"),
        lambda d: d["configs"][0].update(seconds=3),
    ],
)
def test_damaged_json_is_a_value_error(change: Any) -> None:
    data = MEASURED.to_json()
    change(data)
    with pytest.raises(ValueError):
        Report.from_json(data)


# --- frame, plot, HTML


def test_the_frame_has_seconds_and_all_configs() -> None:
    frame = MEASURED.frame()
    assert list(frame["config"])[:3] == ["BLOCK=128", "BLOCK=192", "BLOCK=64"]
    first = frame.iloc[0]
    assert first["chosen"] and first["median_seconds"] == 1.1e-4 and first["ratio"] == 1
    assert (first["low95_seconds"], first["high95_seconds"]) == (0.99 * 1.1e-4, 1.02 * 1.1e-4)
    failed = frame[frame["status"] == "failed"].iloc[0]
    assert failed["reason"].startswith("wrong output") and math.isnan(failed["median_seconds"])


def test_the_plot_has_error_bars_units_and_failures() -> None:
    axes = MEASURED.plot()
    assert [round(bar.get_width()) for bar in axes.patches] == [110, 110, 150]
    assert axes.get_xlabel() == "median time per call, µs; bars: 95 %"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["BLOCK=128", "BLOCK=192", "BLOCK=64"]
    (lines,) = [c for c in axes.collections]
    ends = [segment[:, 0] for segment in lines.get_segments()]
    assert ends[0] == pytest.approx([0.99 * 110, 1.02 * 110])
    (told,) = axes.texts
    assert "failed: BLOCK=256 – wrong output" in told.get_text()
    again = MEASURED.plot(axes)
    assert again is axes


@pytest.fixture(autouse=True)
def _no_windows() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


class Tags(HTMLParser):
    """Fails on tags that do not nest; collects the text."""

    def __init__(self, source: str):
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("wbr", "br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def test_html_has_what_the_table_has() -> None:
    source = MEASURED._repr_html_()
    text = Tags(source).text
    for wanted in ("110 µs ± 2.2 (95 %)", "BLOCK=192", "1.364", "232", "C[0, 3] is 1.5 < 2"):
        assert wanted in text
    assert "name: NVIDIA H200, sm_count: 132" in text
    assert "1.5 < 2" not in source  # it is escaped
    assert "<script" not in source


@pytest.mark.parametrize(("module", "use"), [("pandas", "frame"), ("matplotlib.pyplot", "plot")])
def test_what_is_not_installed_is_asked_for(
    module: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TileError, match=f"pip install {module.split('.')[0]}") as caught:
        getattr(MEASURED, use)()
    assert caught.value.codes == ("tune/needs",)
