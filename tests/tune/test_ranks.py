"""Ranks of a process group tune together: by gloo on the CPU with a measurer whose times are invented, and by
NCCL where there are two GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, need_gpu
from tests.tune.ranks_process import COSTS
from tilejit.errors import TileError
from tilejit.tune.ranks import tune_together

COUNT = len(COSTS)
Told = dict[str, list[dict[str, Any]]]
"""What came of each scenario, by rank."""


def play(backend: str, size: int, folder: Path) -> Told:
    meeting = str(folder / "rendezvous")
    command = [sys.executable, "-m", "tests.tune.ranks_process", backend]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), meeting],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    told: Told = {}
    for out, err in outputs:
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert lines, err
        for line in lines:
            told.setdefault(line["scenario"], []).append(line)
    return told


@pytest.fixture(scope="module", params=[2, 3, pytest.param("nccl", marks=pytest.mark.gpu)], ids=str)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("ranks")
    if request.param != "nccl":
        return play("gloo", request.param, folder)
    need_gpu(request.config)
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, there is {torch.cuda.device_count()}")
    return play("nccl", 2, folder)


def alike(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What every rank was told, which must be the same."""
    same = [{k: v for k, v in r.items() if k != "asked"} for r in results]
    assert same and all(r == same[0] for r in same)
    return same[0]


def test_configs_are_shared_out_and_the_best_meet_on_rank_0(told: Told) -> None:
    results = told["all"]
    size = len(results)
    found = alike(results)
    assert found["chosen"] == 3 and set(found["statuses"]) == {"measured"}
    shares = [r["asked"][0] for r in results]
    assert shares == [list(range(rank, COUNT, size)) for rank in range(size)]
    finals = results[0]["asked"][1:]
    assert all(len(r["asked"]) == 1 for r in results[1:])
    assert len(finals) == 1 and 3 in finals[0] and 4 not in finals[0]
    assert found["compiled"] == COUNT + len(finals[0])
    assert f"tuned by {size} ranks; the best of each met on rank 0" in found["notes"]


def test_a_share_without_a_result_leaves_the_others(told: Told) -> None:
    found = alike(told["one share is broken"])
    size = len(told["one share is broken"])
    failed = [p for p, status in enumerate(found["statuses"]) if status == "failed"]
    assert failed == list(range(1, COUNT, size))
    assert found["chosen"] == min(set(range(COUNT)) - set(failed), key=lambda p: COSTS[p])


def test_none_left_on_any_rank(told: Told) -> None:
    found = alike(told["all are broken"])
    assert found["chosen"] is None and set(found["statuses"]) == {"failed"}


def test_finalists_that_fail_on_rank_0_make_room(told: Told) -> None:
    found = alike(told["finalists fail"])
    assert found["chosen"] == 6
    assert [p for p, s in enumerate(found["statuses"]) if s == "failed"] == [2, 3, 5]


def test_estimates_need_no_finals(told: Told) -> None:
    found = alike(told["by the model"])
    assert found["chosen"] == 3 and found["source"] == "estimated by the model"


def test_what_one_rank_knows_from_disk_is_everybodys(told: Told) -> None:
    assert alike(told["known by the last"])["chosen"] == 3
    assert [r["asked"] for r in told["known by the last"]] == [[]] * len(told["known by the last"])


def test_ranks_about_to_tune_something_else_are_told(told: Told) -> None:
    found = alike(told["another key"])
    assert found["codes"] == ["tune/ranks-disagree"]
    assert "rank 0: 7 configs, key other" in found["error"]
    assert [r["asked"] for r in told["another key"]] == [[]] * len(told["another key"])


def test_a_failure_on_one_rank_is_told_to_all(told: Told) -> None:
    *others, last = told["one fails"]
    assert last["own"] == "no such luck"
    for result in others:
        assert result["codes"] == ["tune/rank-failed"]
        assert f"rank {len(others)}: ZeroDivisionError: no such luck" in result["error"]


def test_a_group_of_some_ranks(told: Told) -> None:
    """Rank 0 of a group need not be rank 0 of all; who does not belong to it is told."""
    *others, first, second = told["the last two"]
    assert alike([first, second])["chosen"] == 3
    assert (len(first["asked"]), len(second["asked"])) == (2, 1)
    assert all(r["codes"] == ["tune/no-group"] for r in others)


def test_the_end_of_a_rank_hangs_nobody(told: Told) -> None:
    if "one dies" not in told:
        pytest.skip("NCCL ends the processes of a group that lost a rank")
    for result in told["one dies"]:
        assert result["codes"] == ["tune/rank-lost"]
    assert len(told["one dies"]) == len(told["all"]) - 1


def test_without_a_process_group() -> None:
    with pytest.raises(TileError, match="init_process_group") as caught:
        tune_together(True, "key", 1, lambda positions: pytest.fail("tuned"))
    assert caught.value.codes == ("tune/no-group",)
