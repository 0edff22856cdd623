"""The ``device`` fixture: every case that runs a kernel runs in the simulator, and the same case on
the GPU where there is one. ``--require-gpu`` turns the missing GPU into an error; ``--evidence``
writes what ran where."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import roundtrip

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail if there is no CUDA device")
    parser.addoption("--evidence", help="write the outcome of the gpu cases to this JSON file")


def pytest_collection_finish() -> None:
    """A third of the processor's time went into looking for garbage, over and over in what imports and
    collected cases hold for good, and after each 700 nodes of a program. Who counts on garbage collects it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def need_gpu(config: pytest.Config) -> None:
    """Skips the case where there is no CUDA device, or fails it with ``--require-gpu``."""
    import torch

    if torch.cuda.is_available():
        return
    if config.getoption("--require-gpu"):
        pytest.fail("no CUDA device")
    pytest.skip("no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tests never see the user's cubin cache."""
    previous = os.environ.get("TILEJIT_CACHE_DIR")
    os.environ["TILEJIT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if previous is None:
        del os.environ["TILEJIT_CACHE_DIR"]
    else:
        os.environ["TILEJIT_CACHE_DIR"] = previous


@pytest.fixture(scope="module")
def own_garbage() -> None:
    """What the modules before left in memory is not searched: the cases of this one collect garbage often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["simulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """``cpu`` (the simulator) or ``cuda``."""
    if request.param == "simulator":
        return "cpu"
    need_gpu(request.config)
    return "cuda"


@pytest.fixture
def round_trips() -> Iterator[None]:
    """Whatever a case lowers survives the IR's round trips."""
    with roundtrip.lowered_functions() as found:
        yield
    for function in found:
        roundtrip.check(function)


_outcomes: Counter[tuple[str, str]] = Counter()
_skips: Counter[tuple[str, str]] = Counter()
"""Module and reason of the gpu cases that were skipped."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "gpu" in report.keywords and (report.when == "call" or report.skipped or report.failed):
        module = report.nodeid.split("::")[0].removeprefix("tests/").removesuffix(".py")
        _outcomes[module, report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            _skips[module, report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--evidence")
    if not path or not _outcomes or hasattr(session.config, "workerinput"):
        return  # under xdist the controller has every worker's reports
    record = {**environment(), "modules": by_module(_outcomes), "skips": by_module(_skips)}
    (ROOT / path).write_text(json.dumps(record, indent=1) + "\n")


def by_module(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    modules: dict[str, dict[str, int]] = {}
    for (module, what), count in sorted(counts.items()):
        modules.setdefault(module, {})[what] = count
    return modules


def environment() -> dict[str, str]:
    """Date, GPU, its target, driver and versions of this run."""
    import datetime

    import numpy
    import torch

    from tilejit.target import Target

    facts = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["target"] = Target.of_capability(*torch.cuda.get_device_capability()).name
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.split()[0]
    return facts


sys.path.insert(0, str(ROOT))
