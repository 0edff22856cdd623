"""JitFunction beyond launching: the simulator, inspection, identity as a Python function."""

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tilejit import dtypes, simulation, target_of
from tilejit.errors import LaunchError, TargetError
from tilejit.ir import nodes as ir
from tilejit.ir.signature import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.language import T


def scale(X: T.Tensor((T.dynamic("M"), "N"), "float32"), a: T.float32, W: T.constexpr = 4):
    """Doc of scale."""


GRID = Steps(grid=lambda v: (v["M"],) if "M" in v else (ir.Const(4, ir.INT64),))


def steps() -> Steps:
    return Steps(grid=GRID.grid)


def test_cpu_tensors_go_to_the_simulator() -> None:
    k = jit(scale, steps())
    x = torch.empty(3, 8)
    report = k(x, 2.0)
    assert report.grid == (3, 1, 1)
    ((tensors, scalars, grid),) = k._steps.simulated
    assert tensors["X"] is x and scalars == {"a": 2.0, "M": 3} and grid == (3, 1, 1)
    k.bind(x, 2.0)()
    assert len(k._steps.simulated) == 2 and k._steps.compiled == []


def test_given_grid_in_the_simulator() -> None:
    k = jit(scale, Steps(grid=lambda v: None))
    assert k[(2, 3)](torch.empty(3, 8), 2.0).grid == (2, 3, 1)
    assert k[lambda m: m["W"]](torch.empty(3, 8), 2.0).grid == (4, 1, 1)
    assert k[0](torch.empty(3, 8), 2.0) is None
    with pytest.raises(LaunchError, match="does not say its grid"):
        k(torch.empty(3, 8), 2.0)


def test_empty_own_grid_in_the_simulator() -> None:
    k = jit(scale, steps())
    assert k(torch.empty(0, 8), 2.0) is None


def test_check_compiles_nothing() -> None:
    k = jit(scale, steps())
    variant = k.check(torch.empty(3, 8), 2.0)
    assert variant.function.name == "scale" and not variant.compiled


def test_check_and_compile_take_descriptions_and_signatures() -> None:
    k = jit(scale, steps())
    x = TensorArg(dtypes.float32, (None, 8), (8, 1), 16)
    by_description = k.check(x, dtypes.float32, W=ConstArg(5), target="sm_100a")
    signature = Signature(
        (("X", x), ("a", ScalarArg(dtypes.float32)), ("W", ConstArg(5))), "sm_100a"
    )
    assert by_description.signature == signature == k.signature(x, 1.0, 5, target="sm_100a")
    assert k.compile(signature) is by_description
    assert by_description.target == "sm_100a"
    assert k.compile(signature, target="sm_90a").target == "sm_90a"


def test_default_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEJIT_TARGET", raising=False)
    x = torch.empty(3, 8)
    assert jit(scale).signature(x, 1.0).target == "sm_90a"
    assert jit(scale, target="sm_103a").signature(x, 1.0).target == "sm_103a"
    monkeypatch.setenv("TILEJIT_TARGET", "sm_100a")
    assert jit(scale).signature(x, 1.0).target == "sm_100a"
    monkeypatch.setenv("TILEJIT_TARGET", "sm_999")
    with pytest.raises(TargetError):
        jit(scale).signature(x, 1.0)
    with simulation(target="sm_90"):
        assert jit(scale).signature(x, 1.0).target == target_of(x.device).name == "sm_90"
        with simulation(seed=1):
            assert target_of(x.device).name == "sm_90"
    monkeypatch.delenv("TILEJIT_TARGET")
    assert target_of(x.device).name == "sm_90a"
    with pytest.raises(TargetError), simulation(target="sm_91"):
        pass
    with pytest.raises(TargetError):
        jit(scale, target="sm_91")
    with pytest.raises(TargetError):
        jit(scale).compile(x, 1.0, target="sm_1")


def test_compile_fresh_is_a_new_variant() -> None:
    k = jit(scale, steps())
    first = k.compile(torch.empty(3, 8), 2.0)
    assert k.compile(torch.empty(5, 8), 2.0) is first
    second = k.compile(torch.empty(5, 8), 2.0, fresh=True)
    assert second is not first and len(k._steps.compiled) == 2


def test_asm_and_stats() -> None:
    k = jit(scale, steps())
    for view in (lambda: k.asm, lambda: k.stats):
        with pytest.raises(LaunchError, match="not been specialised"):
            view()
    variant = k.compile(torch.empty(3, 8), 2.0)
    assert set(k.asm) == {"ast", "ir", "cuda", "ptx", "sass", "cubin"}
    assert k.asm["ptx"] == variant.ptx == "ptx" and k.asm["cubin"].startswith(b"cubin")
    with pytest.raises(KeyError, match="no stage 'llvm'; there are ast, ir"):
        k.asm["llvm"]
    assert (k.stats.registers, k.stats.threads, k.stats.occupancy) == (32, 128, 1.0)


def test_it_still_is_the_python_function() -> None:
    k = jit(scale)
    assert (k.__name__, k.__doc__, k.__module__) == ("scale", "Doc of scale.", __name__)
    assert k.__wrapped__ is scale
    assert inspect.getsource(k) == inspect.getsource(scale)
    assert list(inspect.signature(k).parameters) == ["X", "a", "W"]
    assert k.__tilejit_kernel__.name == "scale"


kernel_by_name = jit(scale)
kernel_by_name.__qualname__ = "kernel_by_name"


def test_copies_and_pickles_are_the_kernel_itself() -> None:
    k = kernel_by_name
    assert copy.copy(k) is k and copy.deepcopy({"k": [k]})["k"][0] is k
    assert pickle.loads(pickle.dumps(k)) is k


def test_a_failing_step_fails_again_and_then_recovers() -> None:
    trouble = [True]

    def maybe() -> None:
        if trouble:
            raise RuntimeError("compiler is busy")

    k = jit(scale, Steps(grid=GRID.grid, before_compile=maybe))
    with gpu() as g:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="busy"):
                k(cuda_tensor(3, 8), 1.0)
        trouble.clear()
        k(cuda_tensor(3, 8), 1.0)
    assert len(g.recorder.launches) == 1


def test_import_is_light() -> None:
    program = (
        "import sys, tilejit\n"
        "from tilejit import LaunchError, Signature, __version__\n"
        "assert 'torch' not in sys.modules and 'cuda' not in sys.modules\n"
        "import tilejit.runtime.jit\n"
        "assert 'torch' not in sys.modules and 'cuda' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names() -> None:
    import tilejit

    assert "jit" in dir(tilejit) and tilejit.LaunchError is LaunchError
    assert tilejit.T.Tensor is T.Tensor
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tilejit.nothing


def test_call_forms_that_are_python_errors() -> None:
    k = jit(scale, steps())
    with pytest.raises(TypeError, match="multiple values"):
        with gpu():
            k(cuda_tensor(3, 8), 1.0)
            k(cuda_tensor(3, 8), 1.0, X=cuda_tensor(3, 8))


def describe(value: Any) -> str:
    return repr(value)
