"""Faults of a launch that need another machine, or none of the public ways: raised with stand-ins."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch

import tilejit as tile
from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tilejit import T, frontend, pipeline, sim
from tilejit.errors import InternalError, LaunchError, SyntaxUnsupported
from tilejit.frontend import lowering
from tilejit.frontend.state import Lowering, Restart
from tilejit.ir.signature import Signature
from tilejit.runtime import driver as drivers


@tile.jit
def fill(X: T.Tensor((32,), "float32"), value: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.lane_id()] = value


def nothing(): ...


def test_tensors_on_two_devices() -> None:
    def add(X, Y): ...

    with gpu(), pytest.raises(LaunchError) as caught:
        jit(add, Steps())(cuda_tensor(8), torch.zeros(8))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "launch/device"
    assert dict(diagnostic.notes)["help"] == "move Y to cuda:0"


def test_a_driver_function_fails() -> None:
    driver = drivers.CudaDriver.__new__(drivers.CudaDriver)  # without cuInit
    bindings = pytest.importorskip("cuda.bindings.driver")
    text = mock.Mock(return_value=(0, b"an illegal memory access"))
    driver._api = mock.Mock(CUresult=bindings.CUresult, cuGetErrorString=text)
    error = driver.failure(700, "the launch of k")
    assert error.codes == ("launch/driver",)
    assert "the launch of k failed with CUDA_ERROR_ILLEGAL_ADDRESS" in str(error)


def test_no_bindings() -> None:
    with mock.patch.dict(sys.modules, {"cuda.bindings": None}):
        with pytest.raises(LaunchError, match="pip install") as caught:
            drivers._bindings()
    assert caught.value.codes == ("launch/no-bindings",)


@pytest.mark.parametrize("missing", ["buffer for `X`", "value for `value`"])
def test_the_simulator_needs_every_argument(missing: str) -> None:
    checked = fill.check(torch.zeros(32), 1.0).checked
    buffers = {"X": pipeline.global_buffer("X", torch.zeros(32))}
    given = ({}, {"value": 1.0}) if "buffer" in missing else (buffers, {})
    with pytest.raises(LaunchError, match=f"no {missing}") as caught:
        sim.run(checked, *given, 1)
    assert caught.value.codes == ("launch/argument",)


def test_a_decision_that_is_asked_for_again() -> None:
    again = mock.patch.object(lowering, "_one_pass", side_effect=Restart(("k", "loop")))
    with again, pytest.raises(InternalError) as caught:
        frontend.lower(frontend.parse(nothing, None), Signature((), "sm_90a"))
    assert caught.value.codes == ("frontend/no-progress",)


def test_types_that_do_not_settle() -> None:
    def undecided(lw: Lowering, kernel: object) -> None:
        lw.decisions[("k", len(lw.decisions))] = "another"
        raise Restart(("k", "loop"))

    with mock.patch.object(lowering, "_one_pass", undecided):
        with pytest.raises(SyntaxUnsupported, match="after 400 passes") as caught:
            frontend.lower(frontend.parse(nothing, None), Signature((), "sm_90a"))
    assert caught.value.codes == ("frontend/no-fixpoint",)
