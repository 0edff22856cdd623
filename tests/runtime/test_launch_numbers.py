"""Numbers of a launch configuration that none can have, written in the kernel or given by the caller."""

import pytest
import torch

from tilejit import SyntaxUnsupported, T, jit

X = torch.zeros(32)
DEFAULT = {"dynamic_smem_bytes": 0, "min_blocks_per_sm": 1, "max_registers_per_thread": None}


@jit
def written(
    X: T.Tensor((32,), "float32"),
    dynamic_smem_bytes: T.constexpr,
    min_blocks_per_sm: T.constexpr,
    max_registers_per_thread: T.constexpr,
):
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=1,
            block=32,
            dynamic_smem_bytes=dynamic_smem_bytes,
            min_blocks_per_sm=min_blocks_per_sm,
            max_registers_per_thread=max_registers_per_thread,
        )
    )
    X[T.cuda.thread_idx("x")] = 1.0


@jit
def given(X: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = 1.0


@pytest.mark.parametrize(
    ("name", "least", "number"),
    [
        ("dynamic_smem_bytes", 0, -5),
        ("dynamic_smem_bytes", 0, -1),
        ("min_blocks_per_sm", 1, 0),
        ("max_registers_per_thread", 1, 0),
        ("max_registers_per_thread", 1, -(2**40)),
    ],
)
def test_too_small(name, least, number):
    config = T.cuda.LaunchConfig(grid=1, block=32, **{name: number})
    for check in (
        lambda: written.check(X, **{**DEFAULT, name: number}),
        lambda: given[config].check(X),
    ):
        with pytest.raises(SyntaxUnsupported) as caught:
            check()
        (found,) = caught.value.diagnostics
        assert found.message == f"{name} is at least {least}, got {number}"
        assert found.code == "frontend/launch" and found.span.file == __file__


def test_what_is_no_number():
    with pytest.raises(SyntaxUnsupported, match="dynamic_smem_bytes is at least 0, got 1.5"):
        given[T.cuda.LaunchConfig(grid=1, block=32, dynamic_smem_bytes=1.5)].check(X)


@pytest.mark.parametrize("name", DEFAULT)
def test_the_least(name):
    least = int(name != "dynamic_smem_bytes")
    written.check(X, **{**DEFAULT, name: least})
    given[T.cuda.LaunchConfig(grid=1, block=32, **{name: least})].check(X)
