"""Tensor maps from an artifact to a launch: computed, checked, encoded, remembered, by both launchers;
the round trip through the disk cache; maps that a user encodes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.runtime.fakes import Gpu, Steps, cuda_tensor, gpu, jit
from tests.runtime.launchers import BOTH, launcher
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.ir import tensor_map
from tilejit.ir.tensor_map import TensorMap, TensorMapSpec
from tilejit.language import T
from tilejit.runtime import tensor_maps
from tilejit.runtime.artifact import Artifact
from tilejit.runtime.cache import Entry
from tilejit.runtime.elf import Resources

STATIC = TensorMapSpec("X", 64, "float32", (8, 4), (32,), (8, 4), (1, 1), swizzle=1)


@pytest.fixture(params=BOTH)
def machine(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    with launcher(request.param), gpu() as g:
        g.uses_c = request.param == "c"  # type: ignore[attr-defined]
        yield g


def warm(g: Any, k: Any, *args: Any) -> Any:
    """Calls until the C launcher, where it is used, makes the launch; gives the launch."""
    for _ in range(3):
        k(*args)
    before = getattr(g.recorder, "through_c", 0)
    k(*args)
    assert getattr(g.recorder, "through_c", 0) == before + g.uses_c
    return g.recorder.launches[-1]


def static_kernel(X: T.Tensor(("M", "N"))): ...


def moving(X: T.Tensor((T.dynamic("m"), T.dynamic("n")), align=16), first: T.int32): ...


def of_sizes(function: ir.Function) -> tuple[TensorMapSpec, ...]:
    """A map of rows ``first``… of X: offset, sizes and stride are all computed."""
    names = {p.name: p for p in function.params}
    m, n, stride, first = (names[name] for name in ("m", "n", "X_stride0", "first"))

    def op(name: Any, a: Any, b: Any) -> ir.Expr:
        return ir.Binary(name, a, b, ir.INT64)

    def const(value: int) -> ir.Const:
        return ir.Const(value, ir.INT64)

    row = op("mul", stride, const(4))
    begin = op("mul", ir.Cast(first, ir.INT64), const(64))
    rows = op("sub", m, const(1))
    return (TensorMapSpec("X", begin, "float32", (n, rows), (row,), (8, 4), (1, 1)),)


def rows(m: int, n: int, pitch: int, address: int = 0x1000) -> Any:
    return cuda_tensor(like=torch.empty(m, pitch)[:, :n], address=address)


def test_a_static_map_stands_behind_the_parameters(machine: Gpu) -> None:
    k = jit(static_kernel, Steps(tensor_maps=lambda _: (STATIC, replace(STATIC, swizzle=0))))
    x = cuda_tensor(4, 8, address=0x1000)
    launch = warm(machine, k, x)
    expected = TensorMap(0x1040, "float32", (8, 4), (32,), (8, 4), (1, 1), swizzle=1)
    assert launch.slots == (0x1000,)
    assert launch.maps == (expected, replace(expected, swizzle=0))


def test_a_map_follows_pointer_sizes_strides_and_scalars(machine: Gpu) -> None:
    k = jit(moving, Steps(tensor_maps=of_sizes))
    warm(machine, k, rows(8, 24, 32), 2)
    for m, n, pitch, address, first in (
        (8, 24, 32, 0x1000, 2), (9, 24, 32, 0x1000, 2), (8, 20, 32, 0x1000, 2), (8, 24, 64, 0x1000, 2),
        (8, 24, 32, 0x2000, 2), (8, 24, 32, 0x1000, 5), (2, 24, 32, 0x1000, 0),
    ):  # fmt: skip
        k(rows(m, n, pitch, address), first)
        launched = machine.recorder.launches[-1].maps
        stride = 16 if m == 2 else 4 * pitch  # one row: its stride is never taken
        assert launched == (
            TensorMap(address + 64 * first, "float32", (n, m - 1), (stride,), (8, 4), (1, 1)),
        )
    assert len(k.variants) == 1


def test_python_encodes_a_map_once_per_pointer_and_sizes() -> None:
    k = jit(moving, Steps(tensor_maps=of_sizes))
    with launcher("python"), gpu() as g:
        for _ in range(3):
            k(rows(8, 24, 32), 2)
            k(rows(8, 24, 32, 0x2000), 2)
        assert len(g.recorder.launches) == 6
        assert len(g.recorder.encoded) == 2


def test_bind_encodes_once() -> None:
    k = jit(moving, Steps(tensor_maps=of_sizes))
    with gpu() as g:
        go = k.bind(rows(8, 24, 32), 2)
        count = len(g.recorder.encoded)
        for _ in range(3):
            go()
        assert len(g.recorder.encoded) == count
        assert {launch.maps[0].address for launch in g.recorder.launches} == {0x1080}


@pytest.mark.parametrize(
    ("arguments", "code", "number"),
    [
        ((rows(8, 24, 30), 2), "tma/stride", "120 bytes"),
        ((rows(1, 24, 32), 2), "tma/extent", "0 elements"),
    ],
    ids=["stride", "extent"],
)
def test_a_launch_refuses_what_the_hardware_would(
    machine: Gpu, arguments: Any, code: str, number: str
) -> None:
    k = jit(moving, Steps(tensor_maps=of_sizes))
    warm(machine, k, rows(8, 24, 32), 2)
    launches = len(machine.recorder.launches)
    with pytest.raises(LaunchError) as caught:
        k(*arguments)
    assert caught.value.codes == (code,)
    assert number in str(caught.value)
    assert len(machine.recorder.launches) == launches


def test_a_misaligned_base_is_refused(machine: Gpu) -> None:
    odd = replace(STATIC, offset_bytes=8)
    k = jit(static_kernel, Steps(tensor_maps=lambda _: (odd,)))
    with pytest.raises(LaunchError, match="8 bytes above a multiple of 16") as caught:
        k(cuda_tensor(4, 8, address=0x1000))
    assert caught.value.codes == ("tma/base",)


def test_the_drivers_refusal_is_an_error_each_time(machine: Gpu) -> None:
    k = jit(static_kernel, Steps(tensor_maps=lambda _: (STATIC,)))
    machine.recorder.encode_results = [1, 1]
    for _ in range(2):
        with pytest.raises(LaunchError, match="CUDA_ERROR_1"):
            k(cuda_tensor(4, 8, address=0x1000))
    assert warm(machine, k, cuda_tensor(4, 8, address=0x1000)).maps


def test_a_thread_without_a_context_gets_one() -> None:
    k = jit(static_kernel, Steps(tensor_maps=lambda _: (STATIC,)))
    with launcher("python"), gpu() as g:
        g.recorder.encode_results = [201]
        k(cuda_tensor(4, 8, address=0x1000))
        assert g.recorder.contexts == [0]
        assert len(g.recorder.launches) == 1


# --- the disk cache


def test_specs_survive_the_disk_cache() -> None:
    names = ("m", "n", "X_stride0")
    params = tuple(ir.Var(name, ir.INT64) for name in names) + (ir.Var("first", ir.INT32),)
    function = ir.Function("k", params, ir.LaunchConfig(None, (32,)), (), "sm_90a")
    specs = (*of_sizes(function), STATIC)
    made = Artifact(
        kernel="k", entry="k", target="sm_90a", cubin=b"c", ptx="p", cuda="u", log="", params=("X",),
        dynamic_shared_bytes=0, resources=Resources(*[0] * 8), key="key", tensor_maps=specs,
    )  # fmt: skip
    entry = made.to_entry()
    found = Artifact.from_entry("key", Entry(entry.header, entry.payloads), "", 0.0)
    assert found is not None
    assert found.tensor_maps == specs


def test_what_c_cannot_compute_is_left_to_python() -> None:
    m = ir.Var("m", ir.INT64)
    half = ir.Binary("floordiv", m, ir.Const(2, ir.INT64), ir.INT64)
    assert tensor_maps.program(replace(STATIC, dims=(8, m)), {"X": 0, "m": 1}) is not None
    assert tensor_maps.program(replace(STATIC, dims=(8, half)), {"X": 0, "m": 1}) is None


# --- a user's own


def test_a_users_map_on_the_cpu_is_a_picture() -> None:
    x = torch.empty(16, 64, dtype=torch.float16)
    image = tile.encode_tensor_map(x, box=(8, 64), swizzle=3)
    assert (image.dtype, image.shape) == (torch.uint8, (128,))
    assert image.data_ptr() % 64 == 0
    assert tensor_map.pictured(image.numpy().tobytes()) == TensorMap(
        x.data_ptr(), "float16", (64, 16), (128,), (64, 8), (1, 1), swizzle=3
    )


@pytest.mark.parametrize(
    ("shape", "fields", "code"),
    [
        ((16, 64), {"box": (8, 65)}, "tma/box"),
        ((16, 64), {"box": (8, 72), "swizzle": 3}, "tma/box"),
        ((16, 64), {"box": (257, 64)}, "tma/box"),
        ((16, 64), {"box": (0, 64)}, "tma/box"),
        ((16, 64), {"box": (64,)}, "tma/box"),
        ((16, 60), {"box": (8, 8)}, "tma/stride"),
        ((16, 64), {"box": (8, 64), "element_strides": (9, 1)}, "tma/element-strides"),
        ((16, 64), {"box": (8, 64), "element_strides": (1, 2)}, "tma/element-strides"),
        ((16, 64, 8), {"box": (8, 64), "interleave": 1}, "tma/interleave"),
        ((16, 64), {"box": (8, 64), "swizzle": 4}, "tma/swizzle"),
        ((16, 64), {"box": (8, 64), "format": "tf32"}, "tma/format"),
    ],
)
def test_a_users_map_breaks_no_rule(
    shape: tuple[int, ...], fields: dict[str, Any], code: str
) -> None:
    x = torch.empty(shape, dtype=torch.float16)
    with pytest.raises(LaunchError) as caught:
        tile.encode_tensor_map(x, **fields)
    assert code in caught.value.codes


SLICES = torch.empty(2, 4, 11, 8, dtype=torch.float16)


@pytest.mark.parametrize(
    ("tensor", "fields", "code"),
    [
        *((None, {"box": box}, "tma/box") for box in
          (8, None, "ab", (8.0, 64), (True, 64), {8, 64}, ((8,), 64), (8,), ())),
        *((None, {name: value}, f"tma/{name.replace('_', '-')}")
          for name in ("swizzle", "interleave", "l2_promotion", "oob_fill")
          for value in (True, "128B", None, 3.0, -1, 4)),
        *((None, {"element_strides": steps}, "tma/element-strides")
          for steps in (1, "11", (1.0, 1), (1,))),
        *((None, {"format": name}, "tma/format") for name in ("", 6, torch.float16, "float32")),
        ([1, 2], {}, "launch/tensor"), ("X", {}, "launch/tensor"),
        (torch.empty(16, 64, device="meta"), {}, "launch/tensor"),
        (torch.empty(16, 64).to_sparse(), {}, "launch/tensor"),
        (torch.empty(16, 64, dtype=torch.complex64), {}, "launch/dtype"),
        (torch._neg_view(torch.empty(16, 64)), {}, "launch/dtype"),
        (torch.empty(64, 16, dtype=torch.float16).T, {}, "tma/stride"),
        (torch.empty(16, 1, dtype=torch.float16).expand(16, 64), {}, "tma/stride"),
        (torch.empty((), dtype=torch.float16), {}, "tma/rank"),
        (torch.empty((), dtype=torch.float16), {"interleave": 1}, "tma/rank"),
        (torch.empty(1, 1, 1, 1, 16, 64, dtype=torch.float16), {}, "tma/rank"),
        (torch.empty(0, 64, dtype=torch.float16), {}, "tma/extent"),
        (torch.empty(1, 64, dtype=torch.float16).expand(2**32 + 1, 64), {}, "tma/extent"),
        (torch.empty(16, 72, dtype=torch.float16)[:, 1:65], {}, "tma/base"),
        (torch.empty(2, 4, 11, 16, dtype=torch.float16), {"interleave": 1, "box": (1, 1, 8)}, "tma/interleave"),
        (torch.empty(2, 4, 22, 8, dtype=torch.float16)[:, :, ::2], {"interleave": 1, "box": (1, 1, 8)}, "tma/stride"),
        (SLICES, {"interleave": 2, "swizzle": 1, "box": (1, 1, 8)}, "tma/interleave"),
    ],
)  # fmt: skip
def test_what_is_no_map_is_refused_by_name(tensor: Any, fields: dict[str, Any], code: str) -> None:
    good = torch.empty(16, 64, dtype=torch.float16)
    with pytest.raises(LaunchError) as caught:
        tile.encode_tensor_map(good if tensor is None else tensor, **{"box": (8, 64), **fields})
    assert code in caught.value.codes


def test_the_nearest_legal_maps() -> None:
    x = torch.empty(16, 64, dtype=torch.float16)
    usual = tile.encode_tensor_map(x, box=(8, 64), swizzle=3)
    for box, swizzle, format_ in (
        ([8, 64], 3, "float16"), (np.array([8, 64]).tolist(), np.int64(3), None),
        (torch.Size((8, 64)), 3, T.float16), ((np.int32(8), np.uint8(64)), 3, None),
    ):  # fmt: skip
        made = tile.encode_tensor_map(x, box=box, swizzle=swizzle, format=format_)
        assert torch.equal(made, usual)
    interleaved = tile.encode_tensor_map(SLICES, box=(1, 1, 8), interleave=1)
    map_ = tensor_map.pictured(interleaved.numpy().tobytes())
    assert map_ is not None and map_.dims == (11, 4, 2) and map_.strides_bytes == (176, 704)


def test_bytes_without_nan_are_not_filled_with_it() -> None:
    x = torch.empty(16, 64, dtype=torch.uint8)
    with pytest.raises(LaunchError) as caught:
        tile.encode_tensor_map(x, box=(8, 64), oob_fill=1)
    assert caught.value.codes == ("tma/oob-fill",)


def test_every_field_has_its_own_rule() -> None:
    good = TensorMap(0x1000, "float16", (64, 16), (128,), (64, 8), (1, 1))
    assert not tensor_map.faults(good)
    for change, field in (
        ({"address": 0x1008}, "base"), ({"dims": (64, 0)}, "extent"), ({"dims": (64, 2**32 + 1)}, "extent"),
        ({"strides_bytes": (136,)}, "stride"), ({"strides_bytes": (2**40,)}, "stride"),
        ({"box": (64, 257)}, "box"), ({"box": (60, 8)}, "box"), ({"swizzle": 2}, "box"),
        ({"element_strides": (1, 0)}, "element-strides"), ({"interleave": 1}, "interleave"),
        ({"oob_fill": 2}, "oob-fill"), ({"l2_promotion": 4}, "l2-promotion"), ({"format": "bool"}, "format"),
    ):  # fmt: skip
        found = tensor_map.faults(replace(good, **change))
        assert [f.field for f in found] == [field], change
    edge = replace(good, dims=(2**32, 2**32), strides_bytes=(2**40 - 16,), box=(256, 256))
    assert not tensor_map.faults(edge)
