"""Host time per launch, warm: tilejit's three launch forms, Triton, and a pre-built cuLaunchKernelEx.

The pre-built launch does no work per argument: it is the floor of any launch through Python.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import harness, triton_peers
from tilejit import T, jit

CALLS = 300


@jit
def nop(a, b, c, n: T.int32, x: T.float32, y: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))


@jit
def nop_grid(a, b, c, n: T.int32, x: T.float32, y: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(block=32))


@jit
def nop16(a0, a1, a2, a3, a4, a5, a6, a7, s0, s1, s2, s3, s4, s5, s6, s7):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))


def prebuilt() -> Any:
    """A zero-argument function: cuLaunchKernelEx with everything prepared, for the nop kernel."""
    import ctypes

    from cuda.bindings import driver

    compiled = nop.compile(*_arguments(torch)[0:6])
    error, library = driver.cuLibraryLoadData(compiled.cubin, [], [], 0, [], [], 0)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    error, kernel = driver.cuLibraryGetKernel(library, compiled.artifact.entry.encode())
    assert error == driver.CUresult.CUDA_SUCCESS, error
    error, function = driver.cuKernelGetFunction(kernel)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = torch.cuda.current_stream().cuda_stream
    storage = (ctypes.c_uint64 * 6)()
    pointers = (ctypes.c_void_p * 6)(*(ctypes.addressof(storage) + 8 * i for i in range(6)))
    address = ctypes.addressof(pointers)
    launch = driver.cuLaunchKernelEx

    def run(keep: Any = (storage, pointers, library)) -> None:
        launch(config, function, address, 0)

    return run


def _arguments(torch_module: Any) -> tuple[Any, ...]:
    tensors = tuple(torch_module.zeros(64, device="cuda") for _ in range(3))
    return (*tensors, 7, 1.5, 2.5)


def run() -> list[dict[str, Any]]:
    six = _arguments(torch)
    sixteen = (*(torch.zeros(64, device="cuda") for _ in range(8)), *range(8))
    bound = nop.bind(*six)
    contenders = {
        "cuLaunchKernelEx, pre-built": prebuilt(),
        "tilejit k(...) 6 arguments": lambda: nop(*six),
        "tilejit k[grid](...) 6 arguments": lambda: nop_grid[(1,)](*six),
        "tilejit k.bind(...)() 6 arguments": bound,
        "triton k[grid](...) 6 arguments": lambda: triton_peers.nop[(1,)](*six),
        "tilejit k(...) 16 arguments": lambda: nop16(*sixteen),
        "triton k[grid](...) 16 arguments": lambda: triton_peers.nop16[(1,)](*sixteen),
    }
    for launch in contenders.values():
        for _ in range(3):
            launch()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(25):
        for name, launch in contenders.items():
            samples[name].append(harness.wall(launch, CALLS, rounds=1).median)
    rows = []
    floor = None
    for name, values in samples.items():
        timing = harness.summarise(values)
        floor = floor or timing.median
        rows.append(
            {
                "contender": name, "median_us": round(timing.median * 1e6, 3),
                "quartiles_us": [round(timing.low * 1e6, 3), round(timing.high * 1e6, 3)],
                "of_prebuilt": round(timing.median / floor, 3),
            }
        )  # fmt: skip
        print(f"{name:36s} {timing.median * 1e6:7.2f} us  {timing.median / floor:5.2f} x pre-built")
    return rows
