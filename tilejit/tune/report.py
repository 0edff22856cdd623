"""What a tuning found, for people and for the disk: every config with its time or with the reason it has none.

Times are seconds per call with the interval that holds the true median with at least 95 % confidence. What
the model ranked without a GPU has costs instead of times, says so wherever it is shown, and has no JSON.

Not here: finding it (``search``, ``model``), where results are kept (``store``).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tilejit import markup
from tilejit.errors import TuneError, fault
from tilejit.tune.model import Estimate
from tilejit.tune.search import Interval

Source: TypeAlias = Literal["measured", "from disk", "estimated by the model"]
Status: TypeAlias = Literal["measured", "estimated", "dropped", "failed", "pruned", "not measured"]
"""``dropped``: after its first run. ``pruned``: before it was compiled. ``failed``: when it was compiled or ran."""

_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
_ESTIMATED = (
    "ESTIMATED by the model of issue counts and occupancy, not measured: there is no GPU here"
)


@dataclass(frozen=True, slots=True)
class Uses:
    """What a config's kernel takes of an SM. ``occupancy``: from 0 to 1."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    occupancy: float


@dataclass(frozen=True, slots=True)
class Row:
    """One config. ``seconds`` of what was measured, ``estimate`` of what was not, ``reason`` of the others."""

    config: str
    status: Status
    reason: str = ""
    seconds: Interval | None = None
    uses: Uses | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One tuning. ``rows``: in the order of the configs; ``chosen``: the position of the one that is used, None
    on its way to the error ``tune/none-left``. ``tied``: positions of those that are as fast as far as was
    measured. ``key``: what the result holds for.

    ``compile_seconds``, ``measure_seconds``: by the clock on the wall, one beside the other. ``compiled``,
    ``benchmarked``: how many configs were. ``date``: when, as in ISO 8601. All of them are of the tuning itself,
    also in a report that was read from disk.
    """

    kernel: str
    key: Mapping[str, Any]
    device: str
    source: Source
    rows: tuple[Row, ...]
    chosen: int | None
    tied: tuple[int, ...] = ()
    compile_seconds: float = 0.0
    measure_seconds: float = 0.0
    compiled: int = 0
    benchmarked: int = 0
    date: str = ""
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Row:
        """The chosen config's row."""
        assert self.chosen is not None, "a tuning that no config came out of is an error"
        return self.rows[self.chosen]

    @property
    def estimated(self) -> bool:
        """Nothing in it was measured."""
        return self.source == "estimated by the model"

    def order(self) -> list[int]:
        """Positions of the rows, the chosen one first, then the fastest, then those without a figure."""

        def place(position: int) -> tuple[bool, bool, float, int]:
            figure = self.figure(self.rows[position])
            unknown = figure is None
            return (
                position != self.chosen,
                unknown,
                math.inf if figure is None else figure,
                position,
            )

        return sorted(range(len(self.rows)), key=place)

    def figure(self, row: Row) -> float | None:
        """What rows are compared by: seconds, or the model's cost; None where there is neither."""
        if self.estimated:
            return None if row.estimate is None else row.estimate.cost
        return None if row.seconds is None else row.seconds.median

    def ratio(self, row: Row) -> float | None:
        """Of the row's figure to that of the chosen one; above 1 is slower."""
        best = None if self.chosen is None else self.figure(self.best)
        mine = self.figure(row)
        return None if mine is None or not best else mine / best

    # --- text

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The report as text, aligned."""
        header, cells = (
            self._columns(),
            [self._cells(p) for p in self.order() if self._has_figure(p)],
        )
        widths = [max(map(len, column)) for column in zip(header, *cells)]
        lines = [self.headline(), *self._about(), ""]
        for row in (header, *cells):
            padded = (
                text.ljust(w) if i in _TEXT_COLUMNS else text.rjust(w)
                for i, (text, w) in enumerate(zip(row, widths))
            )  # fmt: skip
            lines.append("  ".join(padded).rstrip())
        others = self._others()
        width = max((len(status) for status, _, _ in others), default=0)
        lines += [""] if others else []
        lines += [f"{status.ljust(width)}  {config}: {reason}" for status, config, reason in others]
        return "\n".join(lines)

    def headline(self) -> str:
        """The kernel, the chosen config and its figure in one line."""
        text = f"{self.kernel} on {self.device}: {self.best.config}"
        found = self.best.seconds
        if self.estimated or found is None:
            return text
        unit, scale = _unit([found.median])
        bound = f" ± {_plus_minus(found, scale)} (95 %)" if math.isfinite(found.high) else ""
        return f"{text}, {_number(found.median * scale)} {unit}{bound}"

    def _about(self) -> list[str]:
        if self.estimated:
            lines = [_ESTIMATED]
        else:
            compiled = f"{self.compiled} compiled in {self.compile_seconds:.2f} s"
            ran = f"{self.benchmarked} benchmarked in {self.measure_seconds:.2f} s"
            when = f", {self.date}" if self.date else ""
            told = f"{len(self.rows)} configs, {compiled}, {ran}{when}"
            here = "read from disk, nothing compiled or benchmarked for it here; then: "
            lines = [here + told if self.source == "from disk" else f"measured: {told}"]
        if self.tied:
            names = ", ".join(self.rows[p].config for p in self.tied)
            lines.append(f"as fast as the chosen one, as far as was measured: {names}")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _has_figure(self, position: int) -> bool:
        return self.figure(self.rows[position]) is not None

    def _others(self) -> list[tuple[str, str, str]]:
        rows = [self.rows[p] for p in self.order() if not self._has_figure(p)]
        return [(row.status, row.config, row.reason) for row in rows]

    def _unit(self) -> tuple[str, float]:
        return _unit([r.seconds.median for r in self.rows if r.seconds is not None])

    def _columns(self) -> list[str]:
        figures = (
            ["estimated cost (no time)", "limited by", "waves"]
            if self.estimated
            else [f"median, {self._unit()[0]}", f"± 95 %, {self._unit()[0]}", "samples"]
        )
        uses = ["registers", "spilled, B", "shared, B", "occupancy"]
        return ["", "config", *figures, "ratio to chosen", *uses]

    def _cells(self, position: int) -> list[str]:
        row = self.rows[position]
        ratio, uses = self.ratio(row), row.uses
        figures = ["", "", ""]
        if row.estimate is not None:
            figures = [f"{row.estimate.cost:.4g}", row.estimate.limit, f"{row.estimate.waves:.3g}"]
        elif row.seconds is not None:
            scale = self._unit()[1]
            median = _number(row.seconds.median * scale)
            figures = [median, _plus_minus(row.seconds, scale), str(row.seconds.samples)]
        mark = "*" if position == self.chosen else "=" if position in self.tied else ""
        told = ["", "", "", ""]
        if uses is not None:
            told = [
                str(uses.registers), str(uses.spill_bytes), str(uses.shared_bytes), f"{uses.occupancy:.0%}",
            ]  # fmt: skip
        return [mark, row.config, *figures, "" if ratio is None else f"{ratio:.3f}", *told]

    # --- other forms

    def frame(self) -> Any:
        """A pandas data frame, one row per config in ``order``; times in seconds. Needs pandas."""
        pandas = _optional("pandas", "frame()")
        records = [self._record(p) for p in self.order()]
        return pandas.DataFrame.from_records(records)

    def _record(self, position: int) -> dict[str, Any]:
        row = self.rows[position]
        found, uses = row.seconds, row.uses
        figures: dict[str, Any] = {
            "median_seconds": None if found is None else found.median,
            "low95_seconds": None if found is None else found.low,
            "high95_seconds": None if found is None else found.high,
            "samples": 0 if found is None else found.samples,
        }
        if self.estimated:
            figures = {"estimated_cost": None if row.estimate is None else row.estimate.cost}
        return {
            "config": row.config, "status": row.status, "chosen": position == self.chosen,
            **figures, "ratio": self.ratio(row),
            "registers": None if uses is None else uses.registers,
            "spill_bytes": None if uses is None else uses.spill_bytes,
            "shared_bytes": None if uses is None else uses.shared_bytes,
            "occupancy": None if uses is None else uses.occupancy,
            "reason": row.reason, "source": self.source,
        }  # fmt: skip

    def plot(self, axes: Any = None) -> Any:
        """A bar for each config with its 95 % interval, those without a figure named below. The axes that it
        was drawn on: ``axes``, or new ones. Needs matplotlib."""
        pyplot = _optional("matplotlib.pyplot", "plot()")
        shown = [p for p in self.order() if self._has_figure(p)]
        others = self._others()
        if axes is None:
            height = 1.4 + 0.3 * len(shown) + 0.16 * len(others)
            _, axes = pyplot.subplots(figsize=(8, height), layout="constrained")
        unit, scale = ("", 1.0) if self.estimated else self._unit()
        figures = [(self.figure(self.rows[p]) or 0.0) * scale for p in shown]
        errors = None if self.estimated else self._errors(shown, scale)
        colours = ["tab:green" if p == self.chosen else "tab:blue" for p in shown]
        axes.barh(
            range(len(shown)), figures, xerr=errors, color=colours, capsize=3, ecolor="black",
            hatch="//" if self.estimated else None, edgecolor="white",
        )  # fmt: skip
        axes.set_yticks(range(len(shown)), [self.rows[p].config for p in shown])
        axes.invert_yaxis()
        what = "cost estimated by the model (not a time, not measured)"
        axes.set_xlabel(what if self.estimated else f"median time per call, {unit}; bars: 95 %")
        axes.set_title(f"{self.kernel} on {self.device}")
        if others:
            told = "\n".join(f"{status}: {config} – {_cut(why)}" for status, config, why in others)
            axes.annotate(
                told, (0, 0), (0, -34), xycoords="axes fraction", textcoords="offset points",
                va="top", fontsize=7,
            )  # fmt: skip
        return axes

    def _errors(self, shown: Sequence[int], scale: float) -> list[list[float]]:
        """Lengths of the error bars to the left and to the right; none where nothing bounds them."""
        below, above = [], []
        for position in shown:
            found = self.rows[position].seconds
            bounded = found is not None and math.isfinite(found.high)
            below.append((found.median - found.low) * scale if found and bounded else 0.0)
            above.append((found.high - found.median) * scale if found and bounded else 0.0)
        return [below, above]

    def _repr_html_(self) -> str:
        shown = [p for p in self.order() if self._has_figure(p)]
        about = self._about()
        if self.estimated:
            about[0] = markup.tag("span", about[0], class_="bad")
        parts = [
            markup.tag("div", self.headline(), class_="title"),
            *(
                markup.tag("div", line, class_="faint" if i else None)
                for i, line in enumerate(about)
            ),
            markup.table(
                self._columns(), map(self._cells, shown), numeric=_NUMBERS[self.estimated]
            ),
        ]
        others = self._others()
        if others:
            listed = markup.table(("", "config", "reason"), others)
            parts.append(markup.details(f"{len(others)} configs without a figure", listed))
        key = markup.table((), [(name, _told(value)) for name, value in self.key.items()])
        parts.append(markup.details("what this result holds for", key))
        return markup.fragment(markup.join(parts))

    # --- JSON

    def to_json(self) -> dict[str, Any]:
        """What the store keeps. ``TuneError`` for estimates: they are not kept."""
        if self.estimated:
            raise fault(
                TuneError,
                "tune/estimated",
                f"the report of {self.kernel} is an estimate; only what was measured is written down",
                help="tune where there is a GPU; table() and frame() show estimates",
            )
        return {
            "kernel": self.kernel,
            "key": dict(self.key),
            "device": self.device,
            "date": self.date,
            "chosen": self.chosen,
            "tied": list(self.tied),
            "compile_seconds": self.compile_seconds,
            "measure_seconds": self.measure_seconds,
            "compiled": self.compiled,
            "benchmarked": self.benchmarked,
            "notes": list(self.notes),
            "configs": [_row_to_json(row) for row in self.rows],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Report:
        """The report that ``to_json`` wrote, from disk. ``ValueError`` for anything else."""
        try:
            rows = tuple(map(_row_from_json, data["configs"]))
            chosen, tied = int(data["chosen"]), tuple(map(int, data["tied"]))
            if not all(0 <= p < len(rows) for p in (chosen, *tied)):
                raise ValueError(f"there are {len(rows)} configs, the chosen one is {chosen}")
            return Report(
                kernel=str(data["kernel"]), key=dict(data["key"]), device=str(data["device"]),
                source="from disk", rows=rows, chosen=chosen, tied=tied,
                compile_seconds=float(data["compile_seconds"]),
                measure_seconds=float(data["measure_seconds"]),
                compiled=int(data["compiled"]), benchmarked=int(data["benchmarked"]),
                date=str(data["date"]), notes=tuple(map(str, data["notes"])),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no report of a tuning: {error!r}") from None

    def noting(self, note: str) -> Report:
        """The same with a further note."""
        return replace(self, notes=(*self.notes, note))


_TEXT_COLUMNS = (0, 1)
_NUMBERS = {False: range(2, 10), True: (2, 4, 5, 6, 7, 8, 9)}
"""Columns of numbers, by whether they are estimates: these say in words what limits them."""
_STORED: tuple[Status, ...] = ("measured", "dropped", "failed", "pruned", "not measured")


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """The unit in which the least is at least 1, or µs."""
    least = min(seconds, default=0.0)
    return next(((u, s) for u, s in _UNITS if least * s >= 1), _UNITS[-1])


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _plus_minus(found: Interval, scale: float) -> str:
    if not math.isfinite(found.high):
        return "unknown"
    return f"{found.plus_minus * scale:.2g}"


def _cut(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:89]}…"


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_told(part)}" for name, part in value.items())
    return str(value)


def _row_to_json(row: Row) -> dict[str, Any]:
    data: dict[str, Any] = {"config": row.config, "status": row.status}
    if row.reason:
        data["reason"] = row.reason
    if row.seconds is not None:
        bounded = math.isfinite(row.seconds.high)
        data["seconds"] = {
            "median": row.seconds.median,
            "low95": row.seconds.low if bounded else None,
            "high95": row.seconds.high if bounded else None,
            "samples": row.seconds.samples,
        }
    if row.uses is not None:
        data["uses"] = {
            "registers": row.uses.registers,
            "spill_bytes": row.uses.spill_bytes,
            "shared_bytes": row.uses.shared_bytes,
            "occupancy": row.uses.occupancy,
        }
    return data


def _row_from_json(data: Mapping[str, Any]) -> Row:
    status = data["status"]
    if status not in _STORED:
        raise ValueError(f"{status!r} is no status of a config that was measured")
    seconds, uses = data.get("seconds"), data.get("uses")
    return Row(
        str(data["config"]), status, str(data.get("reason", "")),
        None if seconds is None else _interval(seconds),
        None if uses is None else Uses(
            int(uses["registers"]), int(uses["spill_bytes"]), int(uses["shared_bytes"]),
            float(uses["occupancy"]),
        ),
    )  # fmt: skip


def _interval(data: Mapping[str, Any]) -> Interval:
    low, high = data["low95"], data["high95"]
    return Interval(
        float(data["median"]),
        0.0 if low is None else float(low),
        math.inf if high is None else float(high),
        int(data["samples"]),
    )


def _optional(module: str, what: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise fault(
            TuneError,
            "tune/needs",
            f"{what} of a report needs {package}, which is not installed",
            help=f"pip install {package}; print(report) needs nothing",
        ) from None
