"""Host time per launch, warm: tilejit's three launch forms, Triton, and a pre-built cuLaunchKernelEx.

The pre-built launch does no work per argument: it is the floor of any launch through Python. Three
tensors are passed as pointers and as TMA descriptors, which k(...) encodes for every launch and
k.bind(...) once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilejit import T, jit
from tilejit.testing import timing

CALLS = 300

DESCRIPTORS_AT_MOST = 1.15
"""Meant to be the most that a launch with descriptors takes, as a ratio to the one with pointers."""


@jit
def nop(a, b, c, n: T.int32, x: T.float32, y: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))


@jit
def nop_grid(a, b, c, n: T.int32, x: T.float32, y: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(block=32))


@jit
def nop16(a0, a1, a2, a3, a4, a5, a6, a7, s0, s1, s2, s3, s4, s5, s6, s7):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))


BOX = (64, 64)


@jit
def three_pointers(a, b, c, never: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))


@jit
def three_descriptors(a, b, c, never: T.int32):
    """Does nothing where ``never`` is 0, but the compiler cannot know that."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    stage = T.alloc_shared(BOX, a.dtype, layout="default", align=128)
    full = T.alloc_shared((1,), "uint64", align=8)
    if never == T.cuda.linear_thread_id() + 1:
        for source in (a, b, c):
            T.cuda.tile.apply(
                T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"],
                stage, source, box=BOX, coords=(0, 0), mbar=full.ptr_to([0]),
            )  # fmt: skip


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


Launch = Callable[[], Any]

PREBUILT = "cuLaunchKernelEx, pre-built"


def descriptors_beside_pointers() -> dict[str, str]:
    """The launch that each launch with descriptors is compared with."""
    forms = ("tilejit k(...)", "tilejit k.bind(...)()")
    return {f"{form} 3 TMA descriptors": f"{form} 3 pointers" for form in forms}


def makers() -> dict[str, Callable[[], Launch]]:
    """By name, what prepares each launch."""
    six = _arguments(torch)
    sixteen = (*(torch.zeros(64, device="cuda") for _ in range(8)), *range(8))
    three = (*(torch.zeros(BOX, device="cuda") for _ in range(3)), 0)

    def triton(name: str, *arguments: Any) -> Launch:
        from benchmarks import triton_peers

        kernel = getattr(triton_peers, name)
        return lambda: kernel[(1,)](*arguments)

    return {
        PREBUILT: prebuilt,
        "tilejit k(...) 6 arguments": lambda: lambda: nop(*six),
        "tilejit k[grid](...) 6 arguments": lambda: lambda: nop_grid[(1,)](*six),
        "tilejit k.bind(...)() 6 arguments": lambda: nop.bind(*six),
        "triton k[grid](...) 6 arguments": partial(triton, "nop", *six),
        "tilejit k(...) 16 arguments": lambda: lambda: nop16(*sixteen),
        "triton k[grid](...) 16 arguments": partial(triton, "nop16", *sixteen),
        "tilejit k(...) 3 pointers": lambda: lambda: three_pointers(*three),
        "tilejit k(...) 3 TMA descriptors": lambda: lambda: three_descriptors(*three),
        "tilejit k.bind(...)() 3 pointers": lambda: three_pointers.bind(*three),
        "tilejit k.bind(...)() 3 TMA descriptors": lambda: three_descriptors.bind(*three),
    }


def run() -> list[dict[str, Any]]:
    launches, failures = prepared(makers())
    samples: dict[str, list[float]] = {name: [] for name in launches}
    for _ in range(25):
        for name, launch in launches.items():
            samples[name].append(timing.wall(launch, CALLS, rounds=1).median)
    return rows_of({name: timing.summarise(values) for name, values in samples.items()}) + failures


def prepared(
    by_name: dict[str, Callable[[], Launch]],
) -> tuple[dict[str, Launch], list[dict[str, Any]]]:
    """The launches that work, warm, and rows of those that do not."""
    launches: dict[str, Launch] = {}
    failures: list[dict[str, Any]] = []
    for name, make in by_name.items():
        try:
            launch = make()
            for _ in range(3):
                launch()
            launches[name] = launch
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            contender = "tilejit" if name.startswith("tilejit") else name
            failures.append({"case": name, "contender": contender, "failed": problem})
            print(f"{name:40s} FAILED {problem.splitlines()[0]}", flush=True)
    return launches, failures


def rows_of(timings: dict[str, timing.Timing]) -> list[dict[str, Any]]:
    rows = []
    compared = descriptors_beside_pointers()
    floor = timings.get(PREBUILT)
    for name, timed in timings.items():
        row: dict[str, Any] = {
            "contender": name, "median_us": round(timed.median * 1e6, 3),
            "quartiles_us": [round(timed.low * 1e6, 3), round(timed.high * 1e6, 3)],
            "of_prebuilt": None if floor is None else round(timed.median / floor.median, 3),
        }  # fmt: skip
        pointers = timings.get(compared.get(name, ""))
        if pointers is not None:
            row["of_pointers"] = round(timed.median / pointers.median, 3)
            row["at_most"] = DESCRIPTORS_AT_MOST
        rows.append(row)
        ratios = "".join(
            f"  {row[key]:5.2f} x {what}"
            for key, what in (("of_prebuilt", "pre-built"), ("of_pointers", "pointers"))
            if row.get(key) is not None
        )
        print(f"{name:40s} {row['median_us']:7.2f} us{ratios}", flush=True)
    return rows
