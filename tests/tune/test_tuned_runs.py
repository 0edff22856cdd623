"""Tuned kernels that really run: in the simulator, chosen by the model, and on the GPU, chosen by measuring.

What the user passed is as if the kernel had been called once, however often it was measured.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.conftest import need_gpu
from tilejit import T

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.filterwarnings("ignore::tilejit.tune.store.TuningWarning")


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))


@tile.autotune(tile.Space(BLOCK=[32, 64, 128]))
@tile.jit
def double(X: T.Tensor((T.dynamic("N"),), "float32"), BLOCK: T.constexpr):
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=T.ceildiv(N, BLOCK), block=BLOCK))
    i = T.cuda.block_idx() * BLOCK + T.cuda.thread_idx()
    if i < N:
        X[i] = X[i] * 2.0


@tile.autotune(tile.Space(BLOCK=[32, 64]))
@tile.jit
def shift(X: T.Tensor(("N",), "float32"), Y: T.Tensor(("N",), "float32"), BLOCK: T.constexpr):
    """Y = X + Y"""
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=T.ceildiv(N, BLOCK), block=BLOCK))
    i = T.cuda.block_idx() * BLOCK + T.cuda.thread_idx()
    if i < N:
        Y[i] = X[i] + Y[i]


def test_in_place_is_applied_once_per_call(device: str) -> None:
    x = torch.arange(300, dtype=torch.float32, device=device)
    expected = x.clone()
    for _ in range(3):
        double(x)
        expected *= 2
        assert torch.equal(x, expected)
    double.tune(x)
    assert torch.equal(x, expected)


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "the same tensor twice": lambda base: (base[:64], base[:64]),
    "neighbours in one storage": lambda base: (base[:64], base[64:128]),
    "not contiguous": lambda base: (base[0:256:4], base[1:256:4]),
    "expanded": lambda base: (base[200:201].expand(64), base[:64]),
    "backwards in memory": lambda base: (base[128:192], base[:64]),
}
"""Two arguments of Y = X + Y within one base."""


@pytest.mark.parametrize("name", VIEWS)
def test_aliases_and_views_stay_what_they_are(name: str, device: str) -> None:
    base, expected = (torch.arange(256, dtype=torch.float32, device=device) for _ in range(2))
    for _ in range(2):
        shift(*VIEWS[name](base))
        x, y = VIEWS[name](expected)
        y.copy_(x + y)
        assert torch.equal(base, expected)


@tile.jit
def waits(X: T.Tensor((128,), "float32"), FLAG: T.Tensor((1,), "int32"), UNTIL: T.constexpr):
    """X += 1 once the flag is ``UNTIL``; nobody changes it."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    i = T.cuda.thread_idx()
    while FLAG[0] != UNTIL:
        pass
    X[i] = X[i] + 1.0


@pytest.mark.gpu
def test_a_config_that_hangs_is_stopped_and_the_process_goes_on(
    request: pytest.FixtureRequest,
) -> None:
    need_gpu(request.config)
    tuned = tile.autotune(tile.Space(UNTIL=[1, 0]), timeout_s=2.0)(waits)
    x, flag = torch.zeros(128, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    tuned(x, flag)
    assert torch.equal(x, torch.ones_like(x)), "the context is healthy"
    first, second = tuned.reports[0].rows
    assert first.status == "failed" and "2 s" in first.reason
    assert second.status == "measured"


@pytest.mark.gpu
def test_a_capture_after_a_refused_call_is_valid(request: pytest.FixtureRequest) -> None:
    need_gpu(request.config)
    known, unknown = (torch.zeros(n, device="cuda") for n in (64, 640))
    double(known)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(tile.TuneError) as found:
            double(unknown)
        known += 1
        double(known)
    assert found.value.codes == ("tune/capture",)
    graph.replay()
    assert torch.equal(known, torch.full_like(known, 2.0))


PROGRAM = """
import sys; sys.path.insert(0, {root!r})
import torch
from tests.tune.test_tuned_runs import double
from tilejit import pipeline
x = torch.ones(1 << 16, device="cuda")
double(x)
torch.cuda.synchronize()
assert x.eq(2).all()
print(double.reports[0].source, "compile" in pipeline.timings, len(double.kernel.variants))
"""


@pytest.mark.gpu
def test_a_second_process_compiles_and_measures_nothing(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    need_gpu(request.config)
    environment: dict[str, Any] = {**os.environ, "TILEJIT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM.format(root=str(ROOT))]
    told = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert told == ["measured True 3\n", "from disk False 1\n"]
