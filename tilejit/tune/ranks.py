"""One tuning by all ranks of a ``torch.distributed`` group: configs are shared out, the result is the same on all.

Every rank takes each ``size``-th config and tunes among its own. The best of them meet once more on rank 0, since
two GPUs are never equally fast; what it finds is everybody's. Ranks meet in the same collectives whatever happens
to any of them, so that a failure on one is told to all and none waits for ever. It is told to who takes part:
all ranks of the group must make the same calls in the same order, as with any collective. With NCCL each
has set its CUDA device before.

Not here: the tuning of a share (``session``), the result on disk (``store``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tilejit.errors import TileError, TuneError, fault
from tilejit.tune.report import Report, Row

FINALISTS = 8
FINALISTS_PER_RANK = 2
WITHIN = 1.1
"""GPUs of one kind differ by less: a config that is slower than the best's time by more is no finalist."""

Tune: TypeAlias = Callable[[Sequence[int]], Report]
"""Tunes the configs at these positions. The report has rows for all, those of others "not measured"; its
``chosen`` is None where none works."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a rank says in place of its report."""

    message: str


class _Group:
    """The collectives that are used, of ``group`` (True: the default one)."""

    def __init__(self, group: Any):
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            raise fault(
                TuneError,
                "tune/no-group",
                "group= was given, but torch.distributed is not initialised",
                help="torch.distributed.init_process_group(…), as torchrun's scripts begin",
            )
        self._dist = dist
        self._group = dist.group.WORLD if group is True else group
        self.rank: int = dist.get_rank(self._group)
        self.size: int = dist.get_world_size(self._group)
        if self.rank < 0:
            raise fault(
                TuneError, "tune/no-group", "this rank does not belong to the group of group=",
                help="only the ranks of a group may tune by it",
            )  # fmt: skip

    def gather(self, mine: Any) -> list[Any]:
        """What each rank has, by rank."""
        found: list[Any] = [None] * self.size
        self._meet(lambda: self._dist.all_gather_object(found, mine, group=self._group))
        return found

    def from_first(self, mine: Any) -> Any:
        """What rank 0 has."""
        box = [mine]
        first = self._dist.get_global_rank(self._group, 0)
        self._meet(lambda: self._dist.broadcast_object_list(box, src=first, group=self._group))
        return box[0]

    def _meet(self, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:
            first_line = str(error).partition("\n")[0]
            raise fault(
                TuneError,
                "tune/rank-lost",
                f"rank {self.rank} of {self.size} could not reach the others: {first_line}",
                help="a rank has ended, or makes other calls than the rest",
            ) from error


def tune_together(
    group: Any, identity: str, count: int, tune: Tune, known: Report | None = None
) -> Report:
    """The report of all ranks' tuning of ``count`` configs, the same on every rank.

    ``identity``: a digest of what is tuned, the same on all (``tune/ranks-disagree``). ``known``: a result that this
    rank has already, from disk: if any has one, that of the lowest rank is everybody's and nothing is
    tuned. A failure of ``tune`` on one rank is raised there and, as ``tune/rank-failed``, on all others.
    """
    ranks = _Group(group)
    _agree(ranks, identity, count)
    found: Report | None = next((r for r in ranks.gather(known) if r is not None), None)
    if found is not None:
        return found
    shares = [range(rank, count, ranks.size) for rank in range(ranks.size)]
    reports = _everybodys(ranks, lambda: tune(shares[ranks.rank]))
    return _first_ones(ranks, lambda: _finals(reports, shares, tune))


def _agree(ranks: _Group, identity: str, count: int) -> None:
    told: list[tuple[str, int]] = ranks.gather((identity, count))
    if len(set(told)) == 1:
        return
    groups = {
        what: [r for r, other in enumerate(told) if other == what] for what in dict.fromkeys(told)
    }
    described = "; ".join(
        f"rank{'s' * (len(members) > 1)} {', '.join(map(str, members))}: {configs} configs, key {key[:12]}"
        for (key, configs), members in groups.items()
    )
    raise fault(
        TuneError,
        "tune/ranks-disagree",
        f"the ranks of the group are not about to tune the same: {described}",
        help="call with the same kernel, configs, shapes, dtypes and strides on GPUs of one kind; "
        "without group= each rank tunes for itself",
    )


def _everybodys(ranks: _Group, run: Callable[[], Report]) -> list[Report]:
    """Each rank's report; raises on every rank when one failed."""
    failure: BaseException | None = None
    mine: Report | _Failed
    try:
        mine = run()
    except BaseException as error:
        failure, mine = error, _Failed(_told(error))
    reports = ranks.gather(mine)
    if failure is not None:
        raise failure
    _raise_failures(reports)
    return reports


def _first_ones(ranks: _Group, run: Callable[[], Report]) -> Report:
    """Rank 0's report; raises on every rank when it failed."""
    failure: BaseException | None = None
    mine: Report | _Failed | None = None
    if ranks.rank == 0:
        try:
            mine = run()
        except BaseException as error:
            failure, mine = error, _Failed(_told(error))
    report: Report | _Failed = ranks.from_first(mine)
    if failure is not None:
        raise failure
    _raise_failures([report])
    assert isinstance(report, Report)
    return report


def _raise_failures(reports: Sequence[Report | _Failed]) -> None:
    failed = {rank: r.message for rank, r in enumerate(reports) if isinstance(r, _Failed)}
    if failed:
        told = "\n".join(f"rank {rank}: {message}" for rank, message in failed.items())
        raise fault(TuneError, "tune/rank-failed", f"tuning failed on another rank\n{told}")


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, TileError) else f"{type(error).__name__}: {error}"


# --- finals


def _finals(reports: Sequence[Report], shares: Sequence[Sequence[int]], tune: Tune) -> Report:
    """All shares in one report, its best decided on this rank. Estimates are the same on every GPU."""
    merged = _merged(reports, shares)
    left = _ordered(merged)
    if merged.estimated:
        return replace(merged, chosen=left[0] if left else None)
    while left and len(shares) > 1:
        finalists = _finalists(merged, left, len(shares))
        found = tune(finalists)
        merged = _with_finals(merged, found, finalists)
        if found.chosen is not None:
            return merged
        left = [p for p in left if p not in finalists]
    return merged if left else replace(merged, chosen=None, tied=())


def _ordered(report: Report) -> list[int]:
    """Positions of the configs that have a figure, the best first."""
    figures = {p: report.figure(row) for p, row in enumerate(report.rows)}
    known = {p: figure for p, figure in figures.items() if figure is not None}
    return sorted(known, key=lambda p: (known[p], p))


def _finalists(report: Report, ordered: Sequence[int], size: int) -> list[int]:
    """The best of each rank that are nearly as fast as the best of all."""
    chosen: list[int] = []
    per_rank = [0] * size
    for position in ordered:
        ratio = _ratio(report, position, ordered[0])
        if ratio > WITHIN or len(chosen) == FINALISTS:
            break
        if per_rank[position % size] < FINALISTS_PER_RANK:
            per_rank[position % size] += 1
            chosen.append(position)
    return sorted(chosen)


def _ratio(report: Report, position: int, to: int) -> float:
    mine, best = report.figure(report.rows[position]), report.figure(report.rows[to])
    assert mine is not None and best is not None
    return mine / best


def _merged(reports: Sequence[Report], shares: Sequence[Sequence[int]]) -> Report:
    """Each rank's rows of its own share. Chosen is what the first rank with a result chose, until the finals."""
    owner = {position: rank for rank, share in enumerate(shares) for position in share}
    rows: list[Row] = [reports[owner[p]].rows[p] for p in range(len(owner))]
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    if len(reports) > 1:
        notes[f"tuned by {len(reports)} ranks; the best of each met on rank 0"] = None
    return replace(
        reports[0],
        rows=tuple(rows),
        chosen=next((r.chosen for r in reports if r.chosen is not None), None),
        compile_seconds=max(r.compile_seconds for r in reports),
        measure_seconds=max(r.measure_seconds for r in reports),
        compiled=sum(r.compiled for r in reports),
        benchmarked=sum(r.benchmarked for r in reports),
        notes=tuple(notes),
    )


def _with_finals(merged: Report, found: Report, finalists: Sequence[int]) -> Report:
    rows = list(merged.rows)
    for position in finalists:
        rows[position] = found.rows[position]
    return replace(
        merged,
        rows=tuple(rows),
        chosen=found.chosen,
        tied=found.tied,
        compile_seconds=merged.compile_seconds + found.compile_seconds,
        measure_seconds=merged.measure_seconds + found.measure_seconds,
        compiled=merged.compiled + found.compiled,
        benchmarked=merged.benchmarked + found.benchmarked,
    )
