"""Configs that cannot work are found, each with its reason, the same whoever checks the contracts."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.runtime.fakes import cuda_tensor, gpu, jit
from tests.tune.fake_tuning import Steps
from tilejit import T
from tilejit.pipeline import Pipeline
from tilejit.runtime import torch_glue
from tilejit.tune.compiling import ContractsBroken, Processes, Threads
from tilejit.tune.prune import Call, Pruning


@tile.jit
def stage(
    X: T.Tensor(("N",), "float32"),
    BLOCK: T.constexpr,
    ROWS: T.constexpr = 1,
    WIDTH: T.constexpr = 4,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0] // BLOCK, block=BLOCK))
    shared = T.alloc_shared((ROWS, BLOCK), "float32")
    i = T.cuda.thread_idx()
    shared[0, i] = X[T.cuda.block_idx() * BLOCK + i]
    T.cuda.cta_sync()
    if WIDTH == 4:
        X[T.cuda.block_idx() * BLOCK + i] = shared[0, i]
    else:
        T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], shared.sub[0, 0:3], shared.sub[0, 0:3])


def pruned(
    kernel: Any,
    configs: list[tile.Config],
    grid: Any = None,
    prune: Any = None,
    compiler: Threads | None = None,
    **values: Any,
) -> Any:
    """``compiler``: checks the contracts; None: they are checked here, and nothing is compiled."""
    call = Call(kernel, grid, values, torch_glue.CPU, "sm_90a")
    pruning = Pruning(call, tuple(configs), {}, prune)
    if compiler is None:
        return [c.number for c in pruning.candidates()], pruning
    started = [(c.number, compiler.submit(c.variant)) for c in pruning.programs()]
    left = []
    for number, future in started:
        error = future.exception(60)
        if isinstance(error, ContractsBroken):
            pruning.rule_out(number, error.error)
        else:
            assert error is None
            left.append(number)
    return left, pruning


@pytest.fixture(params=[None, Threads, Processes], ids=["here", "threads", "processes"])
def compiler(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Iterator[Threads | None]:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    made = None if request.param is None else request.param(1)
    yield made
    if made is not None:
        made.close()


def test_each_config_that_cannot_work_has_its_reason(compiler: Threads | None) -> None:
    kernel = jit(stage.__wrapped__, Pipeline())  # type: ignore[arg-type]
    configs = [
        tile.Config(BLOCK=128),
        tile.Config(BLOCK=2048),
        tile.Config(BLOCK=128, ROWS=1024),
        tile.Config(BLOCK=128, WIDTH=3),
        tile.Config(BLOCK=128, cluster=32),
        tile.Config(BLOCK=128, block=0),
        tile.Config(BLOCK=128, max_registers_per_thread=0),
        tile.Config(BLOCK=128, ROWS=1, WIDTH=4),
        tile.Config(BLOCK=96),
        tile.Config(BLOCK=256),
    ]  # fmt: skip
    left, found = pruned(
        kernel, configs, X=torch.zeros(1024), compiler=compiler,
        prune=lambda config, args: "96 is odd" if config["BLOCK"] == 96 else args["X"].numel() < 9,
    )  # fmt: skip
    assert left == [0, 9]
    reasons = found.reasons
    assert sorted(reasons) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "1024 threads" in reasons[1]
    assert reasons[2].startswith("tile/shared-memory") and "524288" in reasons[2]
    assert "ld" in reasons[3] and ": " in reasons[3]
    assert "cluster" in reasons[4] and "launch/block" in reasons[5]
    assert "max_registers_per_thread" in reasons[6]
    assert reasons[7] == "the same program as #0 (BLOCK=128)"
    assert reasons[8] == "96 is odd"
    assert [v.compiled for v in kernel.variants].count(True) == (0 if compiler is None else 2)


@pytest.mark.parametrize("where", [None, Threads, Processes])
def test_a_grid_that_is_no_multiple_of_the_cluster(where: Any) -> None:
    def k(X: T.Tensor(("N",)), BLOCK: T.constexpr): ...

    with gpu():
        kernel = jit(k, Steps())
        configs = [
            tile.Config(BLOCK=1, cluster=2),
            tile.Config(BLOCK=1, cluster=4),
            tile.Config(BLOCK=2),
        ]
        compiler = None if where is None else where(1)
        left, found = pruned(
            kernel, configs, grid=lambda a: 6 * a["BLOCK"], compiler=compiler, X=cuda_tensor(8)
        )
    assert left == [0, 2] and "no multiple of the cluster" in found.reasons[1]


def test_launch_options_of_one_config_stay_its_own() -> None:
    """L89: a cluster of one config is not the next one's."""

    def k(X: T.Tensor(("N",)), BLOCK: T.constexpr): ...

    with gpu():
        kernel = jit(k, Steps())
        configs = [
            tile.Config(BLOCK=1, cluster=2, cooperative=True),
            tile.Config(BLOCK=1),
            tile.Config(BLOCK=1, block=64),
        ]
        call = Call(kernel, 8, {"X": cuda_tensor(8)}, 0, "sm_90a")
        found = list(Pruning(call, tuple(configs), {}, None).candidates())
    launches = [c.variant.function.launch for c in found]
    assert [x.cluster for x in launches] == [(2,), None, None]
    assert [x.cooperative for x in launches] == [True, False, False]
    assert [x.block for x in launches] == [(128,), (128,), (64,)]


def test_true_from_prune_is_out_and_its_errors_pass() -> None:
    left, found = pruned(stage, [tile.Config(BLOCK=32)], X=torch.zeros(64), prune=lambda c, a: True)
    assert left == [] and found.reasons == {0: "refused by prune"}
    with pytest.raises(KeyError):
        pruned(stage, [tile.Config(BLOCK=32)], X=torch.zeros(64), prune=lambda c, a: a["missing"])


def test_the_grid_is_told_before_the_contracts(compiler: Threads | None) -> None:
    """So that the reason does not depend on where contracts are checked."""
    configs = [tile.Config(BLOCK=128, ROWS=1024, cluster=3), tile.Config(BLOCK=128, ROWS=1024)]
    left, found = pruned(stage, configs, grid=8, compiler=compiler, X=torch.zeros(1024))
    assert left == [] and "no multiple of the cluster" in found.reasons[0]
    assert found.reasons[1].startswith("tile/shared-memory")
