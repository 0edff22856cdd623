"""Both launchers with the driver that records: the C one reads the fakes' tensors and streams through C
callbacks, and launches into a recorder that decodes what the driver would be given."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.runtime import fakes
from tilejit.ir.tensor_map import FORMATS, TensorMap
from tilejit.runtime import native, torch_glue
from tilejit.runtime.driver import LaunchAttributes

try:
    from tilejit.runtime import _launcher
except ImportError:
    _launcher = None

needs_c = pytest.mark.skipif(_launcher is None, reason="the C launcher is not built")
BOTH = ["python", pytest.param("c", marks=needs_c)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
)
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
LIST64, LIST32 = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, LIST64, LIST64,
    LIST32, LIST32, *(ctypes.c_int,) * 4,
)  # fmt: skip
FORMAT_NAMES = {f.code: name for name, f in FORMATS.items()}
REAL = native.exchange()


def _read(tensor: Any, out: Any) -> int:
    assert REAL is not None
    result = READ(REAL.read_tensor)(tensor, out)
    view = out.contents
    view.data, view.byte_offset = tensor.address - 0x40, 0x40
    view.device_type, view.device = 2, tensor.ordinal
    return result


def _stream(device_type: int, device: int, out: Any) -> int:
    assert device_type == 2
    out[0] = torch_glue.raw_stream_function()(device)
    return 0


read, stream = READ(_read), STREAM(_stream)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


class Recorder(fakes.Recorder):
    """Also launched through C."""

    def __init__(self) -> None:
        super().__init__()
        self.through_c = 0

    def native(self, function: Any, grid: Any, fixed: LaunchAttributes) -> native.Native:
        x, y, z = fixed.block
        config = struct.pack("<7I4xQQI4x", *grid, x, y, z, fixed.dynamic_shared_bytes, 0, 0, 0)

        def launch(config: int, handle: int, address: int, extra: int | None) -> int:
            self.through_c += 1
            fields = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
            assert (fields[3:6], fields[6]) == (fixed.block, fixed.dynamic_shared_bytes)
            assert handle == id(function) and extra is None
            gx, gy, gz = fields[:3]
            read_back = SimpleNamespace(
                gridDimX=gx, gridDimY=gy, gridDimZ=gz, stream=fields[7], fixed=fixed
            )
            return int(self.launch(read_back, function, address, 0)[0])

        def encode(
            image: int, code: int, rank: int, address: int, sizes: Any, strides: Any, box: Any,
            steps: Any, *modes: int,
        ) -> int:  # fmt: skip
            assert image % 64 == 0
            interleave, swizzle, promotion, fill = modes
            map_ = TensorMap(
                address, FORMAT_NAMES[code], tuple(sizes[:rank]), tuple(strides[: rank - 1]),
                tuple(box[:rank]), tuple(steps[:rank]), interleave, swizzle, promotion, fill,
            )  # fmt: skip
            result, made = self.encode_tensor_map(map_)
            if not result:
                ctypes.memmove(image, made, 128)
            return result

        launched, encoded = LAUNCH(launch), ENCODE(encode)
        return native.Native(
            config, id(function), address_of(launched), address_of(encoded),
            (launched, encoded, function),
        )  # fmt: skip


@contextmanager
def launcher(which: str) -> Iterator[None]:
    if which == "python":
        with mock.patch.object(native, "_module", None):
            yield
        return
    fake = native.Exchange(
        (fakes.CudaTensor, torch.nn.Parameter), address_of(read), address_of(stream)
    )
    with mock.patch.object(native, "_module", _launcher):
        with mock.patch.object(native, "exchange", lambda: fake):
            with mock.patch.object(fakes, "Recorder", Recorder):
                yield
