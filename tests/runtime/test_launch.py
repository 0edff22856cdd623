"""The launch path with a driver that records: what is launched, how often it compiles, what is refused."""

import gc
import struct
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit, resources
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.language import T
from tilejit.language.annotations import LaunchConfig

M64 = ir.INT64


def ceil_div(var: ir.Var, by: int) -> ir.Expr:
    total = ir.Binary("add", ir.Cast(var, M64), ir.Const(by - 1, M64), M64)
    return ir.Binary("floordiv", total, ir.Const(by, M64), M64)


def copy(
    X: T.Tensor(("M", "N")), Y: T.Tensor(("M", "N")), a: T.float32 = 1.0, W: T.constexpr = 4
): ...


def pair(**kw: Any) -> tuple[Any, Any]:
    return cuda_tensor(4, 8, address=0x1000, **kw), cuda_tensor(4, 8, address=0x2000, **kw)


def f32(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def low32(slot: int) -> int:
    return slot & 0xFFFFFFFF


# --- what is launched


def test_pointers_scalars_grid_block_and_stream() -> None:
    k = jit(copy, Steps(block=(32, 4)))
    with gpu() as g:
        k(*pair(), 2.5)
        k(*pair(), a=-1.0)
        k(*pair())
    assert [low32(launch.slots[2]) for launch in g.recorder.launches] == [f32(2.5), f32(-1), f32(1)]
    first = g.recorder.launches[0]
    assert first.slots[:2] == (0x1000, 0x2000)
    assert (first.grid, first.fixed.block, first.stream) == ((4, 1, 1), (32, 4, 1), 7)
    assert len(k.variants) == 1


def test_the_stream_is_asked_for_at_each_launch() -> None:
    k = jit(copy)
    with gpu() as g:
        x, y = pair()
        bound = k.bind(x, y)
        for stream in (7, 9, 7):
            g.stream = stream
            k(x, y)
            bound()
    assert [launch.stream for launch in g.recorder.launches] == [7, 7, 9, 9, 7, 7]


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("bool", True, 1), ("int8", -1, 0xFF), ("uint8", 200, 200), ("int16", -2, 0xFFFE),
        ("int32", -3, 0xFFFFFFFD), ("uint32", 2**32 - 1, 2**32 - 1), ("int64", -4, 2**64 - 4),
        ("uint64", 2**64 - 1, 2**64 - 1), ("float16", 1.5, 0x3E00), ("float64", 1.5, 0x3FF8 << 48),
        ("bfloat16", 1.5, 0x3FC0), ("bfloat16", 1.00390625, 0x3F80), ("bfloat16", 1.01171875, 0x3F82),
        ("float32", float("-inf"), 0xFF800000), ("bfloat16", float("inf"), 0x7F80),
    ],
)  # fmt: skip
def test_scalars_between_tensors(dtype: str, value: Any, bits: int) -> None:
    scalar = getattr(T, dtype if dtype != "bool" else "int32")
    if dtype == "bool":
        from tilejit.dtypes import bool_ as scalar

    def k(X: T.Tensor(("N",)), a: scalar, Y: T.Tensor(("N",)), b: T.int64): ...

    kernel = jit(k)
    with gpu() as g:
        kernel(cuda_tensor(8, address=0x100), value, cuda_tensor(8, address=0x200), -7)
    (launch,) = g.recorder.launches
    assert launch.slots == (0x100, bits, 0x200, 2**64 - 7)


def test_bfloat16_rounding_agrees_with_torch() -> None:
    from tilejit.runtime.plan import bfloat16_bits

    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 2**32, (20000,), generator=generator, dtype=torch.int64)
    floats = values.to(torch.uint32).view(torch.float32)
    expected = floats.to(torch.bfloat16).view(torch.uint16).tolist()
    for value, bits in zip(floats.tolist(), expected):
        if value == value:
            assert bfloat16_bits(value) == bits, value


def test_numpy_scalars_are_what_they_hold() -> None:
    def k(X: T.Tensor(("N",)), a: T.int32, n): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8)
        kernel(x, np.int64(3), np.array(4))
        kernel(x, np.int32(5), np.int64(6))
    assert [[low32(s) for s in launch.slots[1:]] for launch in g.recorder.launches] == [
        [3, 4],
        [5, 6],
    ]
    assert len(kernel.variants) == 1


def test_open_integers_widen_when_they_must() -> None:
    def k(X: T.Tensor(("N",)), n): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8)
        for n in (1, 2**40, 2, 2**41, -1, 2**63):
            kernel(x, n)
    assert len(kernel.variants) == 3
    assert [launch.slots[1] for launch in g.recorder.launches][1::2] == [2**40, 2**41, 2**63]


def test_annotated_scalar_out_of_range_is_refused_at_every_call() -> None:
    def k(X: T.Tensor(("N",)), n: T.int32, f: T.float32): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8)
        kernel(x, 2**31 - 1, 1.0)
        for _ in range(2):
            for args in ((2**31, 1.0), (1, 1e39), (1.5, 1.0)):
                with pytest.raises(LaunchError):
                    kernel(x, *args)
        kernel(x, 5, 2)
    assert len(g.recorder.launches) == 2


# --- dynamic sizes


def rows(X: T.Tensor((T.dynamic("M"), T.dynamic("N"))), Y: T.Tensor((T.dynamic("M"), 8))): ...


def test_fifty_sizes_one_compilation() -> None:
    steps = Steps(grid=lambda v: (ceil_div(v["M"], 4),))
    k = jit(rows, steps)
    with gpu() as g:
        for m in range(1, 51):
            k(cuda_tensor(m, m + 3), cuda_tensor(m, 8))
    assert len(steps.compiled) == 1
    assert [launch.grid for launch in g.recorder.launches] == [
        ((m + 3) // 4, 1, 1) for m in range(1, 51)
    ]
    names = [p.name for p in k.latest.function.params]
    last = dict(zip(names, g.recorder.launches[-1].slots))
    assert (last["M"], last["N"], last["X_stride0"]) == (50, 53, 53)


def test_equal_dynamic_names_are_tested_at_every_launch() -> None:
    k = jit(rows)
    with gpu():
        k(cuda_tensor(4, 4), cuda_tensor(4, 8))
        for _ in range(2):
            with pytest.raises(LaunchError, match="M is 4 .* but 5"):
                k(cuda_tensor(4, 4), cuda_tensor(5, 8))


def test_empty_grid_does_nothing() -> None:
    steps = Steps(grid=lambda v: (ceil_div(v["M"], 4),))
    k = jit(rows, steps)
    with gpu() as g:
        k(cuda_tensor(0, 4), cuda_tensor(0, 8))
        k.bind(cuda_tensor(0, 4), cuda_tensor(0, 8))()
        jit(copy)[0](*pair())
        jit(copy)[(4, 0)](*pair())
    assert g.recorder.launches == []


# --- k[grid]


@pytest.mark.parametrize(
    ("grid", "expected"),
    [(3, (3, 1, 1)), ((3, 2), (3, 2, 1)), ([3, 2, 5], (3, 2, 5)), (np.int64(3), (3, 1, 1)),
     (lambda m: m["W"] * m["X"].shape[0], (16, 1, 1)), (lambda m: [2, m["W"]], (2, 4, 1)),
     (LaunchConfig(grid=(6,), block=64), (6, 1, 1))],
)  # fmt: skip
def test_given_grids(grid: Any, expected: tuple[int, int, int]) -> None:
    k = jit(copy)
    with gpu() as g:
        k[grid](*pair())
        k[grid](*pair())
        k[grid].bind(*pair())()
    assert [launch.grid for launch in g.recorder.launches] == [expected] * 3
    assert len(k.variants) == 1


@pytest.mark.parametrize(
    ("grid", "axis", "limit"),
    [
        ((1, 70000), "y", 65535),
        ((1, 1, 70000), "z", 65535),
        (2**31, "x", 2**31 - 1),
        (-1, "x", 2**31 - 1),
    ],
)
def test_grids_over_the_limits_name_axis_and_limit(grid: Any, axis: str, limit: int) -> None:
    k = jit(copy)
    with gpu() as g:
        with pytest.raises(LaunchError, match=rf"grid axis {axis} is .*expected 0 to {limit}"):
            k[grid](*pair())
        with pytest.raises(LaunchError, match=rf"grid axis {axis}"):
            k[lambda meta: grid](*pair())
    assert g.recorder.launches == []


@pytest.mark.parametrize("grid", [(65535, 65535, 65535), 2**31 - 1])
def test_grids_at_the_limits_launch(grid: Any) -> None:
    with gpu() as g:
        jit(copy)[grid](*pair())
    assert len(g.recorder.launches) == 1


@pytest.mark.parametrize("grid", [True, 1.5, "4", (), (1, 2, 3, 4), (None,)])
def test_what_is_no_grid(grid: Any) -> None:
    with pytest.raises(LaunchError, match="grid"):
        jit(copy)[grid]


def test_computed_grid_over_the_limit() -> None:
    k = jit(rows, Steps(grid=lambda v: (ir.Const(1, M64), v["M"])))
    with gpu():
        k(cuda_tensor(65535, 1), cuda_tensor(65535, 8))
        with pytest.raises(LaunchError, match="grid axis y is 65536"):
            k(cuda_tensor(65536, 1), cuda_tensor(65536, 8))


def test_growing_grids_settle() -> None:
    steps = Steps(grid=lambda v: None)
    k = jit(copy, steps)
    with gpu() as g:
        for grid in range(1, 200):
            k[grid](*pair())
    assert [launch.grid[0] for launch in g.recorder.launches] == list(range(1, 200))
    assert len(steps.compiled) <= 9  # two exact, then powers of two up to 256
    assert "grid_bound" in k.explain_recompile()


def test_no_grid_anywhere() -> None:
    with gpu():
        with pytest.raises(LaunchError, match=r"launch it as copy\[grid\]"):
            jit(copy, Steps(grid=lambda v: None))(*pair())


def test_given_block_and_cluster_and_options() -> None:
    k = jit(copy)
    with gpu() as g:
        k[LaunchConfig(grid=8, block=(64, 2), cluster=2, cooperative=True)](*pair())
        k[LaunchConfig(grid=8, block=(64, 2), cluster=2)](*pair())
    a, b = (launch.fixed for launch in g.recorder.launches)
    assert (a.block, a.cluster, a.cooperative) == ((64, 2, 1), (2, 1, 1), True)
    assert (b.block, b.cluster, b.cooperative) == ((64, 2, 1), (2, 1, 1), False)


@pytest.mark.parametrize("block", [0, -32, True, 1.0, (32, 0), (1, 1, 1, 1)])
def test_what_is_no_block(block: Any) -> None:
    with pytest.raises(LaunchError, match="block"):
        jit(copy)[LaunchConfig(grid=1, block=block)]


def test_more_threads_than_the_device_has() -> None:
    with gpu():
        jit(copy, Steps(block=(1024,)))(*pair())
        with pytest.raises(LaunchError, match="1056 threads"):
            jit(copy, Steps(block=(33, 32)))(*pair())


# --- specialisation


def test_what_makes_a_variant() -> None:
    k = jit(copy)
    with gpu():
        k(*pair())
        k(*pair(dtype=torch.float16))
        x, y = pair()
        k(cuda_tensor(4, 8, address=0x1004), y)
        k(cuda_tensor(4, 8, address=0x100C), y)  # the same class of alignment
        k(cuda_tensor(8, 4), cuda_tensor(8, 4))
        k(cuda_tensor(like=torch.empty(8, 4).t()), y)
        k(x, y, W=5)
        k(x, y, W=5.0)
        k(x, y, W=True)
        k(x, y, 3)
    reasons = k.explain_recompile().splitlines()
    assert len(reasons) == len(k.variants) == 8
    assert reasons[0] == "1. first call"
    assert "dtype float32 -> float16" in reasons[1]
    assert "X: align_bytes 16 -> 4" in reasons[2]
    assert "the value 4 -> the value 5" in reasons[5]


@pytest.mark.parametrize("values", [(0.0, -0.0), ((1, 2), (1.0, 2)), ((1,), (True,)), ("1", 1)])
def test_equal_compile_time_values_of_different_types(values: Any) -> None:
    def k(X: T.Tensor(("N",)), v: T.constexpr): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8)
        for _ in range(2):
            for value in values:
                kernel(x, value)
    assert len(kernel.variants) == 2
    functions = [launch.function for launch in g.recorder.launches]
    assert functions[0] != functions[1] and functions[:2] == functions[2:]


def test_none_and_tensor_are_two_variants() -> None:
    def k(X: T.Tensor(("N",)), B: T.Tensor(("N",)) | None = None): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8, address=0x100)
        for _ in range(2):
            kernel(x)
            kernel(x, cuda_tensor(8, address=0x200))
            kernel(x, B=None)
    assert len(kernel.variants) == 2
    assert [launch.slots for launch in g.recorder.launches] == [
        (0x100,),
        (0x100, 0x200),
        (0x100,),
    ] * 2


def test_unannotated_parameters_take_anything() -> None:
    def k(X, n, flag=None): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8, address=0x100)
        for _ in range(2):
            kernel(x, 1)
            kernel(x, 1.5, True)
            kernel(cuda_tensor(8, address=0x200), 2)
    assert len(kernel.variants) == 2
    assert len(g.recorder.launches) == 6


def test_names_that_generated_code_might_use() -> None:
    def k(
        v0: T.Tensor(("N",)), run: T.float32, self: T.int32, grid: T.constexpr, table, pool=1
    ): ...

    kernel = jit(k)
    with gpu() as g:
        x = cuda_tensor(8)
        kernel(x, 1.0, 2, (3,), x)
        kernel(v0=x, run=1.0, self=2, grid=(3,), table=x)
        kernel[2](x, run=1.0, self=2, grid=(3,), table=x)
    assert len(g.recorder.launches) == 3


@pytest.mark.parametrize(
    ("args", "keywords", "code"),
    [((), {}, "missing"), ((1, 2, 3, 4, 5), {}, "too-many"), ((), {"Z": 1}, "unknown")],
)
def test_argument_lists_are_diagnosed_warm_and_cold(args: Any, keywords: Any, code: str) -> None:
    k = jit(copy)
    with gpu():
        for _ in range(2):
            with pytest.raises(LaunchError, match=code):
                k(*args, **keywords)
            k(*pair())


# --- devices, contexts, captures


def test_runs_on_the_tensors_device() -> None:
    k = jit(copy)
    with gpu(devices=2) as g:
        for _ in range(2):
            k(*pair(ordinal=1))
            k.bind(*pair(ordinal=1))()
            k(*pair(ordinal=0))
    assert {launch.stream for launch in g.recorder.launches} == {107, 7}
    assert [d for _, _, d in g.recorder.loaded] == [1, 0]
    assert g.switched.count(1) >= 5 and g.current == 0
    assert {v.target for v in k.variants} == {"sm_90a", "sm_80"}


def test_mixed_devices_are_refused_warm_too() -> None:
    k = jit(copy)
    with gpu(devices=2) as g:
        k(*pair())
        with pytest.raises(LaunchError, match=r"X: cuda:0, Y: cuda:1"):
            k(cuda_tensor(4, 8), cuda_tensor(4, 8, ordinal=1))
        with pytest.raises(LaunchError, match=r"X: cuda:0, Y: cpu"):
            k(cuda_tensor(4, 8), torch.empty(4, 8))
    assert len(g.recorder.launches) == 1


def test_a_kernel_made_for_another_target() -> None:
    k = jit(copy, target="sm_100a")
    with gpu() as g:
        with pytest.raises(LaunchError, match="compiled for sm_100a; cuda:0 is sm_90a"):
            k(*pair())
        jit(copy, target="sm_90")(*pair())
        jit(copy, target="sm_90a")(*pair())
    assert len(g.recorder.launches) == 2


def test_cold_in_a_capture_is_refused_before_the_driver() -> None:
    k = jit(copy)
    with gpu() as g:
        g.capturing = True
        for call in (k, k.bind, k[4]):
            with pytest.raises(LaunchError, match="launch/capture"):
                call(*pair())
        assert g.recorder.loaded == [] and g.recorder.launches == []
        g.capturing = False
        k(*pair())
        g.capturing = True
        k(*pair())
        k.bind(*pair())()
    assert len(g.recorder.launches) == 3


def test_a_thread_without_a_context_gets_one() -> None:
    k = jit(copy)
    with gpu() as g:
        k(*pair())
        g.recorder.results = [201]
        k(*pair())
        assert g.recorder.contexts == [0] and len(g.recorder.launches) == 2


def test_driver_errors_are_raised_every_time_with_their_name() -> None:
    k = jit(copy)
    with gpu() as g:
        k(*pair())
        bound = k.bind(*pair())
        for call in (lambda: k(*pair()), bound, lambda: k(*pair())):
            g.recorder.results = [701]
            with pytest.raises(LaunchError, match=r"CUDA_ERROR_701(.|\n)*grid \(4, 1, 1\), block"):
                call()
        k(*pair())
    assert len(g.recorder.launches) == 2


def test_too_much_shared_memory_is_refused_at_every_call() -> None:
    limit = 232448
    k = jit(copy, Steps(dynamic_shared_bytes=limit + 1))
    with gpu() as g:
        for _ in range(3):
            with pytest.raises(LaunchError, match=f"{limit + 1} bytes .* allows {limit}"):
                k(*pair())
        jit(copy, Steps(dynamic_shared_bytes=limit))(*pair())
        assert g.recorder.shared == [limit]
        over = Steps(dynamic_shared_bytes=limit, resources=resources(static_shared_bytes=1))
        with pytest.raises(LaunchError, match="launch/shared-memory"):
            jit(copy, over)(*pair())


def test_an_uneven_cluster_is_explained() -> None:
    k = jit(copy)
    with gpu() as g:
        g.recorder.results = [1]
        with pytest.raises(
            LaunchError, match="grid axis x is 5 CTAs, not a multiple of the cluster's 2"
        ):
            k[LaunchConfig(grid=5, block=32, cluster=2)](*pair())


# --- threads and lifetimes


def test_two_threads_compile_once() -> None:
    steps = Steps(before_compile=lambda: time.sleep(0.05))
    k = jit(copy, steps)
    with gpu() as g:
        threads = [threading.Thread(target=k, args=pair()) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (
        len(steps.compiled) == 1 and len(g.recorder.launches) == 8 and len(g.recorder.loaded) == 1
    )


def test_threads_never_share_an_argument_block() -> None:
    def k(X: T.Tensor(("N",)), a: T.int64, b: T.int64, c: T.int64): ...

    kernel = jit(k)
    seen: list[tuple[int, ...]] = []
    with gpu() as g:
        record = g.recorder.launch

        def slow_launch(config: Any, function: Any, address: int, extra: int) -> tuple[int]:
            time.sleep(0)
            return record(config, function, address, extra)

        g.recorder.launch = slow_launch
        x = cuda_tensor(8)
        kernel(x, 0, 0, 0)

        def work(n: int) -> None:
            for i in range(200):
                kernel(x, n, n * 1000 + i, n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = [launch.slots[1:] for launch in g.recorder.launches[1:]]
    assert len(seen) == 800
    assert all(a == c and b // 1000 == a for a, b, c in seen)
    assert len(set(seen)) == 800


def test_kernels_and_tensors_are_not_kept_alive() -> None:
    k = jit(copy)
    with gpu():
        x, y = pair()
        k(x, y)
        k[4](x, y)
        kernel, tensor = weakref.ref(k), weakref.ref(x)
        del k, x, y
        gc.collect()
    assert tensor() is None
    assert kernel() is None


def test_a_bound_launcher_keeps_its_tensors() -> None:
    k = jit(copy)
    with gpu() as g:
        x, y = pair()
        bound = k.bind(x, y)
        tensor = weakref.ref(x)
        del x, y
        gc.collect()
        assert tensor() is not None
        bound()
    assert g.recorder.launches[0].slots[0] == 0x1000


def test_two_kernels_of_one_name_launch_their_own() -> None:
    def make(n: int) -> Any:
        def main(X: T.Tensor(("N",))): ...

        return jit(main, Steps(block=(n,)))

    first, second = make(32), make(64)
    with gpu() as g:
        for k in (first, second, first):
            k(cuda_tensor(8))
    assert [launch.fixed.block[0] for launch in g.recorder.launches] == [32, 64, 32]


def test_errors_come_without_the_dispatch_s_own() -> None:
    k = jit(copy)
    with gpu():
        k(*pair())
        with pytest.raises(LaunchError) as caught:
            k(pair()[0])
    assert caught.value.__context__ is None and caught.value.__cause__ is None
