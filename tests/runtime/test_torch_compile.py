"""``torch.compile`` over functions that call kernels: its graph breaks there, and nothing below is traced."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.runtime.fakes import Steps, gpu, jit
from tests.runtime.launchers import BOTH, launcher
from tests.runtime.test_launch import copy, pair

CHECKOUT = Path(__file__).parents[2]

KERNEL = """
import tilejit as tile
from tilejit import T

@tile.jit
def add_one(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    Y[t] = X[t] + T.float32(1)

@tile.jit
def fill(Y: T.Tensor((32,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(block=32))
    Y[T.cuda.thread_idx("x")] = T.float32(5)
"""
USE = '''
import torch
import torch._dynamo

def double_then_kernel(x):
    x = x * 2
    y = torch.empty_like(x)
    add_one(x, y)
    return y * 3

def given_grid(x):
    y = torch.empty_like(x)
    fill[1](y)
    return x + y

def bound(x):
    y = torch.empty_like(x)
    launch = add_one.bind(x, y)
    launch()
    return x + y

def looked_into():
    """Files of the framework that have code made by dynamo."""
    import gc, types
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    codes = [c for c in gc.get_objects() if type(c) is types.FunctionType]
    return sorted(
        f"{c.__module__}.{c.__qualname__}" for c in codes
        if "tilejit" in c.__code__.co_filename and _debug_get_cache_entry_list(c.__code__)
    )

x = torch.arange(32, dtype=torch.float32)
for function, expected in (
    (double_then_kernel, (x * 2 + 1) * 3), (given_grid, x + 5), (bound, x + x + 1)
):
    made = torch.compile(function, backend="eager")
    for _ in range(3):
        assert torch.equal(made(x), expected), function
'''


def run(tmp_path: Path, text: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script], cwd=CHECKOUT, capture_output=True, text=True,
        env={"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_result_is_right_and_no_frame_of_ours_is_compiled(tmp_path: Path) -> None:
    run(tmp_path, "import torch\n" + KERNEL + USE + "assert looked_into() == [], looked_into()\n")


def test_kernels_made_before_torch_is_imported(tmp_path: Path) -> None:
    """Only the first frames, met before torch was seen, may have been looked at."""
    first = "tilejit.runtime.jit._Entry."
    test = f"assert all(n.startswith({first!r}) for n in looked_into()), looked_into()\n"
    run(tmp_path, KERNEL + USE + test)


@pytest.mark.parametrize("which", BOTH)
def test_warm_launches(which: str) -> None:
    with launcher(which), gpu() as g:
        k = jit(copy, Steps())
        x, y = pair()

        def function(a: torch.Tensor) -> torch.Tensor:
            b = a + 1
            k(x, y, 2.0)
            return b * 2

        k(x, y, 2.0)
        k(x, y, 2.0)
        torch._dynamo.reset()
        made = torch.compile(function, backend="eager")
        ones = torch.ones(4)
        for _ in range(3):
            assert torch.equal(made(ones), ones * 4)
        assert len(g.recorder.launches) == 5
        assert len(k.variants) == 1


def test_fullgraph_names_the_kernel_as_what_is_no_graph() -> None:
    k = jit(copy, Steps())

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return k(x, y)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="a tilejit kernel is no graph"):
        torch.compile(function, backend="eager", fullgraph=True)(torch.ones(4, 8), torch.ones(4, 8))
