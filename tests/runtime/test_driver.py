"""What the driver would read: the memory of a launch configuration, without a driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tilejit.errors import LaunchError
from tilejit.runtime import driver as drivers
from tilejit.runtime.driver import CudaDriver, LaunchAttributes

bindings = pytest.importorskip("cuda.bindings.driver")

CLUSTER, COOPERATIVE, PROGRAMMATIC = 4, 2, 6
ATTRIBUTE_WORDS = 18
"""CUlaunchAttribute: an id, four bytes of padding, a union of 64 bytes."""


def driver() -> CudaDriver:
    made = CudaDriver.__new__(CudaDriver)  # without cuInit
    made._api = bindings
    return made


def words(config: Any) -> list[int]:
    return list((ctypes.c_uint32 * 14).from_address(config.getPtr()))


def attributes(config: Any) -> list[tuple[int, list[int]]]:
    """(id, the union's first three words) of each attribute."""
    address = ctypes.c_uint64.from_address(config.getPtr() + 40).value
    count = ctypes.c_uint32.from_address(config.getPtr() + 48).value
    raw = (ctypes.c_uint32 * (ATTRIBUTE_WORDS * count)).from_address(address) if count else []
    rows = [list(raw[i * ATTRIBUTE_WORDS : (i + 1) * ATTRIBUTE_WORDS]) for i in range(count)]
    return [(row[0], row[2:5]) for row in rows]


def test_grid_block_shared_memory_and_stream() -> None:
    config = driver().config((3, 2, 1), 0x1234, LaunchAttributes((32, 4, 1), 4096))
    assert words(config)[:7] == [3, 2, 1, 32, 4, 1, 4096]
    assert words(config)[8:10] == [0x1234, 0]
    assert attributes(config) == []
    config.gridDimX = 9
    assert words(config)[0] == 9


def test_attributes() -> None:
    config = driver().config((8, 1, 1), 0, LaunchAttributes((32, 1, 1), 0, (2, 4, 1), True, True))
    (cluster, cooperative, programmatic) = attributes(config)
    assert cluster == (CLUSTER, [2, 4, 1])
    assert (cooperative[0], cooperative[1][0]) == (COOPERATIVE, 1)
    assert (programmatic[0], programmatic[1][0]) == (PROGRAMMATIC, 1)


def test_error_names() -> None:
    assert driver().error_name(1) == "CUDA_ERROR_INVALID_VALUE"
    assert driver().error_name(123456) == "CUresult 123456"


def test_no_driver_says_what_works_without() -> None:
    try:
        bindings.cuDriverGetVersion()
    except RuntimeError:
        with pytest.raises(LaunchError, match="no CUDA driver(.|\n)*simulator") as caught:
            drivers.CudaDriver()
        assert caught.value.codes == ("launch/no-driver",)
    else:
        pytest.skip("there is a driver here")
