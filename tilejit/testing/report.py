"""Several implementations of one thing at many sizes: checked, timed in turn, and told side by side.

    @tile.testing.perf_report(tile.testing.Benchmark(
        x_names=["N"], x_vals=[1024, 4096, 16384],
        peers={"torch": lambda x: torch.softmax(x, -1), "tilejit": softmax},
        unit="TB/s", bytes=lambda N: 2 * 4096 * N * 2, check="torch",
    ))
    def row_softmax(N):
        return (torch.randn(4096, N, device="cuda", dtype=torch.bfloat16),)

    results = row_softmax.run(save_path="results")

The decorated function makes the arguments of one size; every peer is called with them and returns its result.
A peer that fails its check is told with the reason and not timed; the others go on. Ratios come first: they
are what carries over to another card.

Not here: the clocks (``timing``), the machine's best (``ceilings``), what agrees (``agreement``).
"""

from __future__ import annotations

import csv
import datetime
import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from tilejit import markup
from tilejit.errors import TileError, fault
from tilejit.testing import timing
from tilejit.testing.agreement import difference
from tilejit.testing.ceilings import Ceiling, ceiling
from tilejit.testing.timing import TimeBy, Timing, wrong

Unit = Literal["TB/s", "TFLOP/s", "ms", "% of ceiling"]
UNITS: tuple[Unit, ...] = ("TB/s", "TFLOP/s", "ms", "% of ceiling")
Peer = Callable[..., Any]
Amount = Callable[..., float] | float | None
"""Of one size: a number, or a function of the values in ``x_names`` by name."""

_COLUMNS = ("peer", "median_s", "failed")
"""Of ``Results.records``, beside sizes, figures and ratios."""

Check = str | Callable[..., str | None] | None


@dataclass(frozen=True)
class Benchmark:
    """What is compared, and how it is told.

    ``x_vals``: one value, or a tuple of values, per size, for ``x_names``. ``peers``: what is timed, by name.
    ``bytes`` and ``flops``: what one call moves (read and written once) and computes. ``check``: the peer
    whose result is right, or ``check(result, *arguments)`` that says what is wrong with a result (None:
    nothing). ``tolerance``: see ``agreement.difference``. ``baseline``: the peer that ratios refer to; by
    default the one in ``check``, else the first. ``time_by``: how peers are timed; by default interleaved.
    """

    x_names: Sequence[str]
    x_vals: Sequence[Any]
    peers: Mapping[str, Peer]
    unit: Unit = "ms"
    bytes: Amount = None
    flops: Amount = None
    check: Check = None
    tolerance: float | None = None
    baseline: str | None = None
    time_by: TimeBy | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x_names, str):
            raise wrong("x_names", f"{self.x_names!r}", "a list of names")
        for name in ("x_names", "x_vals"):  # gone through more than once, which an iterator is not
            object.__setattr__(self, name, tuple(getattr(self, name)))
        taken = {*_COLUMNS, self.unit}
        if len(set(self.x_names)) < len(self.x_names) or taken & {*self.x_names}:
            raise wrong(
                "x_names",
                ", ".join(self.x_names),
                f"different names, none of them a column of the results: {', '.join(sorted(taken))}",
            )
        if not self.peers:
            raise wrong("peers", "empty", "functions by name")
        if self.unit not in UNITS:
            raise wrong("unit", f"{self.unit!r}", " or ".join(map(repr, UNITS)))
        if self.unit == "TB/s" and self.bytes is None:
            raise wrong("bytes", "missing", "the bytes that one call moves, for the unit TB/s")
        if self.unit == "TFLOP/s" and self.flops is None:
            raise wrong("flops", "missing", "the operations of one call, for the unit TFLOP/s")
        if self.unit == "% of ceiling" and self.bytes is None and self.flops is None:
            raise wrong("bytes and flops", "missing", "at least one, for the unit % of ceiling")
        for role, peer in (("check", self.check), ("baseline", self.baseline)):
            if isinstance(peer, str) and peer not in self.peers:
                raise wrong(role, f"{peer!r}", f"a peer: {', '.join(self.peers)}")

    @property
    def base(self) -> str:
        """The peer that ratios refer to."""
        if self.baseline is not None:
            return self.baseline
        return self.check if isinstance(self.check, str) else next(iter(self.peers))

    def sizes(self) -> list[dict[str, Any]]:
        """The values of each size by name."""
        found = []
        for value in self.x_vals:
            values = value if isinstance(value, tuple | list) else (value,)
            if len(values) != len(self.x_names):
                raise wrong(
                    "x_vals",
                    f"{value!r}",
                    f"{len(self.x_names)} values: {', '.join(self.x_names)}",
                )
            found.append(dict(zip(self.x_names, values)))
        return found


def perf_report(benchmark: Benchmark) -> Callable[[Callable[..., Any]], PerfReport]:
    """Decorates the function that makes the arguments of one size."""
    return lambda make: PerfReport(benchmark, make)


@dataclass(frozen=True)
class Row:
    """One peer at one size. ``ratio``: how many times as fast as the baseline. ``value``, ``low`` and ``high``
    are in the benchmark's unit: of the median and the quartiles, ascending."""

    x: Mapping[str, Any]
    peer: str
    timing: Timing | None = None
    ratio: float | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    failed: str | None = None


class PerfReport:
    """A benchmark that can be run. ``make``: the function that makes the arguments of one size."""

    def __init__(self, benchmark: Benchmark, make: Callable[..., Any]):
        self.benchmark, self.make = benchmark, make
        self.__name__ = getattr(make, "__name__", "benchmark")  # a partial function has no name
        self.__doc__ = make.__doc__

    def run(
        self,
        print_data: bool = True,
        show_plots: bool = False,
        save_path: str | Path | None = None,
    ) -> Results:
        """Checks and times every peer at every size. ``save_path``: a folder for JSON, CSV and plots."""
        rows: list[Row] = []
        device = torch.device("cpu")
        for x in self.benchmark.sizes():
            made = self.make(**x)
            arguments = tuple(made) if isinstance(made, tuple | list) else (made,)
            device = _device_of(arguments)
            rows += self._size(x, arguments, device)
        results = Results(self.__name__, self.benchmark, tuple(rows), device)
        if print_data:
            print(results.table())
        if save_path is not None:
            results.save(save_path)
        if show_plots:
            results.plot()
            _pyplot().show()
        return results

    def _size(
        self, x: Mapping[str, Any], arguments: tuple[Any, ...], device: torch.device
    ) -> list[Row]:
        failures = self._failures(arguments)
        good: timing.Contenders = {
            name: partial(peer, *arguments)
            for name, peer in self.benchmark.peers.items()
            if name not in failures
        }
        timings = self._timed(good, device, failures)
        base = timings.get(self.benchmark.base)
        return [
            Row(x, name, failed=failures[name])
            if name in failures
            else self._row(x, name, timings[name], base, device)
            for name in self.benchmark.peers
        ]

    def _timed(
        self, good: timing.Contenders, device: torch.device, failures: dict[str, str]
    ) -> dict[str, Timing]:
        """Where timing fails, none of the peers that were timed together has a figure."""
        time_by = self.benchmark.time_by or (
            timing.interleaved
            if device.type == "cuda"
            else partial(timing.interleaved, clock=timing.by_host_clock)
        )
        try:
            timed = time_by(good) if good else {}
            return {name: timed[name] for name in good}
        except Exception as error:
            reason = f"timing {', '.join(good)}: {type(error).__name__}: {error}"
            failures.update(dict.fromkeys(good, reason))
            return {}

    def _failures(self, arguments: tuple[Any, ...]) -> dict[str, str]:
        """Why peers are not timed. Every peer runs once, and is right."""
        check, failures = self.benchmark.check, dict[str, str]()
        expected: Any = None
        names = list(self.benchmark.peers)
        if isinstance(check, str):
            names.sort(key=lambda name: name != check)
        for name in names:
            try:
                result = self.benchmark.peers[name](*arguments)
                if isinstance(check, str):
                    if name == check:
                        expected = _copied(result)
                    problem = _differs(result, expected, self.benchmark.tolerance)
                else:
                    problem = None if check is None else _said(check(result, *arguments))
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                failures[name] = problem
        if isinstance(check, str) and check in failures:
            unknown = f"{check}, which it is compared with, failed"
            failures = {name: failures[name] if name == check else unknown for name in names}
        return failures

    def _row(
        self,
        x: Mapping[str, Any],
        name: str,
        timed: Timing,
        base: Timing | None,
        device: torch.device,
    ) -> Row:
        value, *ends = (
            self._in_unit(x, seconds, device) for seconds in (timed.median, timed.low, timed.high)
        )
        ratio = None if base is None else base.median / timed.median
        return Row(x, name, timed, ratio, value, min(ends), max(ends))

    def _in_unit(self, x: Mapping[str, Any], seconds: float, device: torch.device) -> float:
        benchmark = self.benchmark
        nbytes, flops = _amount(benchmark.bytes, x), _amount(benchmark.flops, x)
        match benchmark.unit:
            case "TB/s":
                return nbytes / seconds / 1e12
            case "TFLOP/s":
                return flops / seconds / 1e12
            case "ms":
                return seconds * 1e3
            case "% of ceiling":
                return 100 * ceiling(device).least_seconds(nbytes, flops) / seconds


def _amount(amount: Amount, x: Mapping[str, Any]) -> float:
    if amount is None:
        return 0.0
    return float(amount(**x) if callable(amount) else amount)


def _device_of(arguments: Sequence[Any]) -> torch.device:
    """The first tensor's; where there is none, the current GPU or the CPU."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _said(problem: object) -> str | None:
    """What a ``check`` function found. ``torch.allclose`` and its like say True where all is right."""
    if problem is None or isinstance(problem, str):
        return problem
    raise TypeError(f"check returned {problem!r}, expected None, or a text that says what is wrong")


def _copied(result: Any) -> Any:
    """A result that stays when the peers share their output."""
    if isinstance(result, tuple | list):
        return [_copied(part) for part in result]
    return result.clone() if isinstance(result, torch.Tensor) else result


def _differs(result: Any, expected: Any, tolerance: float | None) -> str | None:
    results, wanted = (
        list(value) if isinstance(value, tuple | list) else [value] for value in (result, expected)
    )
    if not all(isinstance(part, torch.Tensor) for part in (*results, *wanted)):
        kind = type(result).__name__
        return f"returned {kind}, expected a tensor: return the output, or give check= a function"
    if len(results) != len(wanted):
        return f"returned {len(results)} tensors, expected {len(wanted)}"
    for index, (found, right) in enumerate(zip(results, wanted)):
        name = "result" if len(wanted) == 1 else f"result {index}"
        problem = difference(name, found, right, tolerance)
        if problem:
            return problem
    return None


# --- what comes out


@dataclass(frozen=True)
class Results:
    """The rows of a run. Shows as a table; ``frame()`` is a pandas frame, ``plot()`` and ``roofline()`` are
    matplotlib figures, ``save(folder)`` writes all of it."""

    name: str
    benchmark: Benchmark
    rows: tuple[Row, ...]
    device: torch.device
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    @property
    def clock(self) -> str:
        clocks = dict.fromkeys(row.timing.clock for row in self.rows if row.timing is not None)
        return ", ".join(clocks)

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.failed is not None]

    # --- as text

    def _header(self) -> list[str]:
        base, peers = self.benchmark.base, list(self.benchmark.peers)
        ratios = [f"{peer} / {base}" for peer in peers if peer != base]
        return [*self.benchmark.x_names, *ratios, *(f"{p}, {self.benchmark.unit}" for p in peers)]

    def _cells(self) -> list[list[str]]:
        base, peers = self.benchmark.base, list(self.benchmark.peers)
        lines = []
        for x in self.benchmark.sizes():
            by_peer = {row.peer: row for row in self.rows if row.x == x}
            ratios = [_ratio_text(by_peer[peer]) for peer in peers if peer != base]
            values = [_value_text(by_peer[peer]) for peer in peers]
            lines.append([*map(str, x.values()), *ratios, *values])
        return lines

    def _notes(self) -> list[str]:
        spread = "quartiles in parentheses" if self.clock else "nothing was timed"
        more = "more is faster" if self.benchmark.unit != "ms" else "less is faster"
        notes = [
            f"{self.device_name}; {self.clock or 'no clock'}; {spread}; {self.benchmark.unit}: {more}"
        ]
        if self.benchmark.unit == "% of ceiling":
            notes.append(f"ceiling: {self.ceiling}")
        for row in self.failures:
            where = ", ".join(f"{name}={value}" for name, value in row.x.items())
            notes.append(f"{row.peer} at {where} failed: {row.failed}")
        return notes

    def table(self) -> str:
        """One line per size: ratios of speed to the baseline's, then figures in the unit."""
        lines = [self._header(), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines)]
        told = ["  ".join(f"{c:>{w}s}" for c, w in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([self.name, *told, *self._notes()])

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        numeric = range(len(self._header()))
        parts = [
            markup.tag("div", self.name, class_="title"),
            markup.table(self._header(), self._cells(), numeric=numeric),
            *(markup.tag("div", note, class_="faint") for note in self._notes()),
        ]
        return markup.fragment(markup.join(parts))

    # --- as data

    @property
    def ceiling(self) -> Ceiling:
        """The machine's, measured now where it was not before."""
        return ceiling(self.device)

    def records(self) -> list[dict[str, Any]]:
        """A mapping per row, ratios before figures."""
        unit, base = self.benchmark.unit, self.benchmark.base
        return [
            {
                **row.x,
                "peer": row.peer,
                f"ratio to {base}": row.ratio,
                unit: row.value,
                f"{unit}, low": row.low,
                f"{unit}, high": row.high,
                "median_s": None if row.timing is None else row.timing.median,
                "failed": row.failed,
            }
            for row in self.rows
        ]

    def frame(self) -> Any:
        """A pandas frame of ``records``."""
        return _optional("pandas").DataFrame(self.records())

    def to_json(self) -> str:
        content = {
            "name": self.name, "unit": self.benchmark.unit, "baseline": self.benchmark.base,
            "device": self.device_name, "clock": self.clock, "date": self.date,
            "torch": torch.__version__, "rows": self.records(),
        }  # fmt: skip
        if self.benchmark.unit == "% of ceiling":
            content["ceiling"] = vars(self.ceiling)
        return json.dumps(content, indent=1, default=str) + "\n"

    def to_csv(self) -> str:
        records = self.records()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def save(self, folder: str | Path) -> Path:
        """``<name>.json``, ``.csv`` and ``.png`` in ``folder``, and a roofline where bytes and operations are
        known."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.to_json(), encoding="utf-8")
        (folder / f"{self.name}.csv").write_text(self.to_csv(), encoding="utf-8")
        figures = {self.name: self.plot}
        if self.benchmark.bytes is not None and self.benchmark.flops is not None:
            figures[f"{self.name}_roofline"] = self.roofline
        for stem, draw in figures.items():
            figure = draw()
            figure.savefig(folder / f"{stem}.png", dpi=150, bbox_inches="tight")
            _pyplot().close(figure)
        return folder

    # --- as pictures

    def plot(self) -> Any:
        """A figure: the unit over the size, a line per peer, quartiles as error bars."""
        figure, axes = _pyplot().subplots(figsize=(7, 4.2))
        sizes = self.benchmark.sizes()
        single = len(self.benchmark.x_names) == 1
        numbers = [next(iter(x.values())) for x in sizes] if single else []
        on_scale = single and all(isinstance(n, int | float) for n in numbers)
        for peer in self.benchmark.peers:
            rows = [row for row in self.rows if row.peer == peer and row.value is not None]
            at = [
                row.x[self.benchmark.x_names[0]] if on_scale else sizes.index(dict(row.x))
                for row in rows
            ]
            _errorbar(axes, at, rows, peer)
        if on_scale and numbers and min(numbers) > 0 and max(numbers) >= 8 * min(numbers):
            axes.set_xscale("log", base=2)
        if not on_scale:
            labels = ["×".join(map(str, x.values())) for x in sizes]
            axes.set_xticks(range(len(sizes)), labels, rotation=30, ha="right")
        axes.set_xlabel(" × ".join(self.benchmark.x_names))
        axes.set_ylabel(self.benchmark.unit)
        axes.set_ylim(bottom=0)
        self._finish(axes)
        return figure

    def roofline(self) -> Any:
        """A figure: operations per second over operations per byte, below the measured ceiling."""
        if self.benchmark.bytes is None or self.benchmark.flops is None:
            raise wrong("bytes or flops", "missing", "both, for a roofline")
        figure, axes = _pyplot().subplots(figsize=(7, 4.2))
        roof = self.ceiling
        ridge = roof.flops_per_second / roof.bytes_per_second
        intensities = [ridge]
        for peer in self.benchmark.peers:
            points = []
            for row in self.rows:
                if row.peer == peer and row.timing is not None:
                    flops = _amount(self.benchmark.flops, row.x)
                    nbytes = _amount(self.benchmark.bytes, row.x)
                    if (
                        not flops or not nbytes
                    ):  # of an empty tensor: nowhere on a logarithmic scale
                        continue
                    intensity = flops / nbytes
                    points.append((intensity, flops / row.timing.median / 1e12))
                    intensities.append(intensity)
            if points:
                axes.plot(*zip(*points), "o", label=peer)
        ends = sorted((min(intensities) / 2, ridge, max(intensities) * 2))
        heights = [min(i * roof.bytes_per_second, roof.flops_per_second) / 1e12 for i in ends]
        axes.plot(ends, heights, "k-", lw=1, label="measured ceiling")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("operations per byte moved")
        axes.set_ylabel("TFLOP/s")
        self._finish(axes)
        return figure

    def _finish(self, axes: Any) -> None:
        axes.set_title(f"{self.name} ({self.device_name})")
        axes.grid(alpha=0.3)
        axes.legend()


def _ratio_text(row: Row) -> str:
    if row.failed is not None:
        return "failed"
    return "–" if row.ratio is None else f"{row.ratio:.3f}"


def _value_text(row: Row) -> str:
    if row.value is None or row.low is None or row.high is None:
        return "failed"
    return f"{row.value:.4g} ({row.low:.4g} to {row.high:.4g})"


def _errorbar(axes: Any, at: Sequence[Any], rows: Sequence[Row], label: str) -> None:
    values = [row.value or 0.0 for row in rows]
    below = [max(v - (row.low or 0.0), 0.0) for v, row in zip(values, rows)]
    above = [max((row.high or 0.0) - v, 0.0) for v, row in zip(values, rows)]
    axes.errorbar(at, values, yerr=(below, above), marker="o", ms=4, capsize=3, label=label)


def _pyplot() -> Any:
    return _optional("matplotlib.pyplot")


def _optional(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise fault(
            TileError,
            "testing/optional",
            f"{package} cannot be imported: {error}",
            help=f"pip install {package}, or 'tilejit[bench]' for all that benchmarks can use",
        ) from None
