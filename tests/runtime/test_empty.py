"""A dynamic size of 0: the checker took it to be at least 1, so no kernel runs on it."""

import pytest
import torch

from tests.runtime import launchers
from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tilejit import LaunchError, T
from tilejit import jit as real_jit


def rows(X: T.Tensor((T.dynamic("M"), T.dynamic("N"))), Y: T.Tensor((T.dynamic("M"), 8))): ...


def maybe(X: T.Tensor((T.dynamic("M"),)) | None, Y: T.Tensor((T.dynamic("N"),))): ...


FOLLOWS = Steps(grid=lambda v: (v["M"],))


@pytest.mark.parametrize("which", launchers.BOTH)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("grid", ["static", "follows", "given", "computed"])
@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
def test_a_launch_with_an_empty_tensor_runs_nothing(which, warm, grid, sizes):
    m, n = sizes
    with launchers.launcher(which), gpu() as g:
        k = jit(rows, Steps(grid=FOLLOWS.grid) if grid == "follows" else Steps())
        entry = {"given": lambda: k[7], "computed": lambda: k[lambda a: 7]}.get(grid, lambda: k)()
        for _ in range(3 * warm):
            entry(cuda_tensor(5, 6), cuda_tensor(5, 8))
        launched = len(g.recorder.launches)
        empty = cuda_tensor(m, n), cuda_tensor(m, 8)
        for call in (entry, lambda *a: entry.bind(*a)()):
            if grid == "follows" and m == 0:
                call(*empty)
            else:
                with pytest.raises(LaunchError, match="is empty: its dimension") as caught:
                    call(*empty)
                assert set(caught.value.codes) == {"launch/empty"}
                assert len(caught.value.codes) == 1 + (m == 0)
        assert len(g.recorder.launches) == launched
        entry(cuda_tensor(5, 6), cuda_tensor(5, 8))
        assert len(g.recorder.launches) == launched + 1


def test_nothing_is_compiled_for_it():
    with gpu():
        for steps in (Steps(), Steps(grid=FOLLOWS.grid)):
            k = jit(rows, steps)
            with pytest.raises(LaunchError):
                k[3](cuda_tensor(0, 4), cuda_tensor(0, 8))
            assert k[0](cuda_tensor(0, 4), cuda_tensor(0, 8)) is None
            assert steps.compiled == []


@pytest.mark.parametrize("x", [None, 3])
def test_beside_what_may_be_none(x):
    with gpu() as g:
        k = jit(maybe, Steps())
        for n in (4, 0, 4, 0):
            arguments = None if x is None else cuda_tensor(x), cuda_tensor(n)
            if n:
                k(*arguments)
            else:
                with pytest.raises(LaunchError, match="'Y' is empty"):
                    k(*arguments)
        assert len(g.recorder.launches) == 2


def test_without_a_grid_that_is_the_error():
    with gpu():
        with pytest.raises(LaunchError, match="does not say its grid"):
            jit(rows, Steps(grid=lambda _: None))(cuda_tensor(0, 4), cuda_tensor(0, 8))


# --- the simulator


@real_jit
def first(X: T.Tensor((T.dynamic("N"),), "float32"), Y: T.Tensor((1,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    Y[0] = X[0]


@real_jit
def each(X: T.Tensor((T.dynamic("N"),), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=1))
    X[T.cuda.block_idx("x")] = 1.0


def test_on_the_cpu():
    y = torch.full((1,), 7.0)
    first.check(torch.zeros(0), y)
    with pytest.raises(LaunchError) as caught:
        first(torch.zeros(0), y)
    assert caught.value.codes == ("launch/empty",) and y.item() == 7.0
    with pytest.raises(LaunchError):
        first[2](torch.zeros(0), y)
    assert first[0](torch.zeros(0), y) is None
    assert each(torch.zeros(0)) is None
    first(torch.ones(1), y)
    assert y.item() == 1.0
