"""Both launchers: no call may reach a plan that was made for other arguments, and the C one must be
exact, leak nothing, and leave to Python whatever it does not know."""

import ctypes
import gc
import os
import resource
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.runtime import launchers
from tests.runtime.fakes import Gpu, Steps, cuda_tensor, gpu, jit
from tests.runtime.launchers import BOTH, launcher, needs_c
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.language import T
from tilejit.runtime import native
from tilejit.runtime import plan as plans
from tilejit.runtime.dispatch import typed

M64 = ir.INT64

pytestmark = pytest.mark.usefixtures("own_garbage")


@pytest.fixture(params=BOTH)
def machine(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    with launcher(request.param), gpu(devices=2) as g:
        g.uses_c = request.param == "c"  # type: ignore[attr-defined]
        yield g


def through_c(g: Any) -> int:
    return getattr(g.recorder, "through_c", 0)


def warm(g: Any, k: Any, *args: Any, **keywords: Any) -> Any:
    """Calls three times; the last launch is C's where there is C. Gives the launch."""
    k(*args, **keywords)  # prepares, and installs the launcher when it is the kernel's first
    k(*args, **keywords)  # so that this one is learned at the latest
    before = through_c(g)
    k(*args, **keywords)
    assert through_c(g) == before + g.uses_c
    return g.recorder.launches[-1]


@dataclass(frozen=True)
class Tile:
    m: int


def everything(
    X: T.Tensor(("M", "N")),
    D: T.Tensor((T.dynamic("K"), "N")),
    n: T.int32,
    m,
    B: T.Tensor(("L",)) | None = None,
    W: T.constexpr = 4,
): ...


def usual(**changes: Any) -> dict[str, Any]:
    arguments = {
        "X": cuda_tensor(4, 8, address=0x1000),
        "D": cuda_tensor(6, 8, address=0x2000),
        "n": 1,
        "m": 2,
        "B": cuda_tensor(3, address=0x3000),
        "W": 4,
    }
    return {**arguments, **changes}


COLUMNS = torch.empty(8, 4).t()
CHANGES: dict[str, dict[str, Any]] = {
    "dtype": {"X": cuda_tensor(4, 8, dtype=torch.int32)},
    "dtype of a dynamic tensor": {"D": cuda_tensor(6, 8, dtype=torch.float16)},
    "shape": {"X": cuda_tensor(2, 8)},
    "rank": {"m": cuda_tensor(2, 8, 1)},
    "stride": {"X": cuda_tensor(like=COLUMNS)},
    "stride of a dynamic tensor": {"D": cuda_tensor(like=torch.empty(6, 16)[:, ::2])},
    "zero stride": {"X": cuda_tensor(like=torch.empty(1, 8).expand(4, 8))},
    "alignment": {"X": cuda_tensor(4, 8, address=0x1004)},
    "alignment of a dynamic tensor": {"D": cuda_tensor(6, 8, address=0x2008)},
    "open int64": {"m": 2**31},
    "open negative int64": {"m": -(2**31) - 1},
    "open uint64": {"m": 2**63},
    "open float": {"m": 2.0},
    "open bool": {"m": True},
    "open None": {"m": None},
    "open tensor": {"m": cuda_tensor(2)},
    "None for a tensor": {"B": None},
    "const": {"W": 5},
    "const type": {"W": 4.0},
    "const bool": {"W": True},
    "const string": {"W": "4"},
    "const tuple": {"W": (4, 1.0)},
    "const dataclass": {"W": Tile(4)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_reaches_its_own_plan(machine: Gpu, what: str) -> None:
    k = jit(everything)
    changed = usual(**CHANGES[what])
    first = warm(machine, k, **usual())
    other = warm(machine, k, **changed)
    assert len(k.variants) == 2
    assert first.function is not other.function
    for arguments, function in ((usual(), first.function), (changed, other.function)) * 2:
        k(**arguments)
        assert machine.recorder.launches[-1].function is function
    # Each call launched exactly what a kernel that has met nothing else launches.
    fresh = jit(everything)
    fresh(**changed)
    assert machine.recorder.launches[-1].slots == other.slots


@pytest.mark.parametrize(
    "same",
    [{"X": cuda_tensor(4, 8, address=0x7770)}, {"D": cuda_tensor(9, 8)}, {"n": 7}, {"m": -3}],
)
def test_what_is_left_out_of_the_key_is_passed(machine: Gpu, same: dict[str, Any]) -> None:
    k = jit(everything)
    warm(machine, k, **usual())
    k(**usual(**same))
    assert len(k.variants) == 1
    slots = machine.recorder.launches[-1].slots
    jit(everything)(**usual(**same))
    assert slots == machine.recorder.launches[-1].slots


def test_strides_of_size_one_dimensions_do_not_count(machine: Gpu) -> None:
    def k(X: T.Tensor(("M", "N"))): ...

    kernel = jit(k)
    base = torch.empty(64)
    warm(machine, kernel, cuda_tensor(1, 8))
    before = through_c(machine)
    kernel(cuda_tensor(like=base.as_strided((1, 8), (33, 1))))
    assert len(kernel.variants) == 1 and through_c(machine) == before + machine.uses_c
    kernel(cuda_tensor(like=base.as_strided((1, 8), (33, 2))))
    assert len(kernel.variants) == 2


def test_one_row_lends_its_stride_to_no_other(machine: Gpu) -> None:
    """A contiguous tensor's strides follow from its shape, whatever one row says of the next."""

    def k(X: T.Tensor((T.dynamic("m"), 8))): ...

    kernel = jit(k)
    base = torch.empty(64)
    one, three = (cuda_tensor(like=base.as_strided((m, 8), (12, 1))) for m in (1, 3))
    first = warm(machine, kernel, one)
    assert [v.signature.args[0][1].strides for v in kernel.variants] == [(8, 1)]
    other = warm(machine, kernel, three)
    assert [v.signature.args[0][1].strides for v in kernel.variants] == [(8, 1), (12, 1)]
    for x, function in ((one, first.function), (three, other.function)) * 2:
        kernel(x)
        assert machine.recorder.launches[-1].function is function


def test_one_expanded_row_is_not_several(machine: Gpu) -> None:
    def k(X: T.Tensor((T.dynamic("m"), T.dynamic("n")))): ...

    kernel = jit(k)
    base = torch.empty(64)
    one, three = (cuda_tensor(like=base.as_strided((m, 8), (0, 1))) for m in (1, 3))
    first, other = warm(machine, kernel, one), warm(machine, kernel, three)
    assert [v.signature.args[0][1].strides for v in kernel.variants] == [(None, 1), (0, 1)]
    assert first.function is not other.function


def test_a_size_shared_with_a_tensor_that_is_not_there(machine: Gpu) -> None:
    def k(
        A: T.Tensor((T.dynamic("m"),)) | None,
        B: T.Tensor((T.dynamic("m"),)) | None,
        C: T.Tensor((2, T.dynamic("m"))),
    ): ...

    kernel = jit(k)
    a, b = (cuda_tensor(5, address=address) for address in (0x1000, 0x2000))
    c = cuda_tensor(2, 5, address=0x3000)
    for call in ((None, None, c), (None, b, c), (a, None, c), (a, b, c)) * 2:
        warm(machine, kernel, *call)
        assert machine.recorder.launches[-1].slots[-1] == 5
    four, six = cuda_tensor(4, address=0x1000), cuda_tensor(2, 6, address=0x3000)
    for call in ((four, None, c), (None, four, c), (four, b, c), (a, four, c), (a, None, six)):
        with pytest.raises(LaunchError) as caught:
            kernel(*call)
        assert set(caught.value.codes) == {"launch/shape"}
    warm(machine, kernel, None, None, six)
    assert machine.recorder.launches[-1].slots[-1] == 6


def test_alignment_that_an_annotation_promises(machine: Gpu) -> None:
    def k(X: T.Tensor(("N",), align=128)): ...

    kernel = jit(k)
    warm(machine, kernel, cuda_tensor(8, address=0x1000))
    kernel(cuda_tensor(8, address=0x1080))
    for _ in range(2):
        with pytest.raises(LaunchError, match="expected a multiple of 128"):
            kernel(cuda_tensor(8, address=0x1040))
    assert len(machine.recorder.launches) == 4


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        ("int8", [-128, 127, True], [-129, 128]), ("uint8", [0, 255], [-1, 256]),
        ("int16", [-(2**15)], [2**15]), ("uint16", [2**16 - 1], [2**16]),
        ("int32", [-(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 2**80]),
        ("uint32", [2**32 - 1], [2**32, -1]), ("int64", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1]),
        ("uint64", [2**63, 2**64 - 1, 0], [2**64, -1]), ("float16", [1.5, 65504.0, 3], [65536.0]),
        ("float32", [1.5, 2**24 + 1, float("inf")], [1e39]), ("float64", [0.1, 2**53 + 1], [10**400]),
        ("bfloat16", [1.00390625, 3.38e38, 7, float("-inf")], [3.4e38, 1e300]),
    ],
)  # fmt: skip
def test_scalars_at_their_limits(
    machine: Gpu, dtype: str, inside: list[Any], outside: list[Any]
) -> None:
    def k(X: T.Tensor(("N",)), a: getattr(T, dtype)): ...

    kernel = jit(k)
    x = cuda_tensor(8)
    code = {"int": "q", "uint": "Q"}.get(dtype.rstrip("0123456789"), "")
    for value in inside:
        slot = warm(machine, kernel, x, value).slots[1]
        if code:
            size = int(dtype.removeprefix("u")[3:]) // 8
            assert slot == int.from_bytes(struct.pack("<" + code, value)[:size], "little")
        elif dtype == "bfloat16":
            assert slot == plans.bfloat16_bits(float(value))
        else:
            form = {"float16": "e", "float32": "f", "float64": "d"}[dtype]
            assert slot == int.from_bytes(struct.pack("<" + form, value), "little")
    launched = len(machine.recorder.launches)
    for value in outside:
        for _ in range(2):
            with pytest.raises(LaunchError, match="does not fit"):
                kernel(x, value)
    assert len(machine.recorder.launches) == launched


@needs_c
def test_bfloat16_in_c_is_bfloat16_in_python() -> None:
    def k(X: T.Tensor(("N",)), a: T.bfloat16): ...

    words = torch.randint(-(2**63), 2**63 - 1, (3000,), generator=torch.Generator().manual_seed(3))
    doubles = words.view(torch.float64).tolist()
    floats = words[:2000].to(torch.int32).view(torch.float32).tolist()
    with launcher("c"), gpu() as g:
        kernel, x = jit(k), cuda_tensor(8)
        kernel(x, 1.0)
        kernel(x, 1.0)
        for value in [*doubles, *floats, 0.0, -0.0, 2.0**-133, 2.0**-134, 2.0**-135]:
            if value == value and abs(value) > 3.38e38:
                continue
            kernel(x, value)
            assert g.recorder.launches[-1].slots[1] == plans.bfloat16_bits(value), value
        assert through_c(g) == len(g.recorder.launches) - 2


# --- the outside


THING = 1
HELD = SimpleNamespace(size=1)


def reads_global(X: T.Tensor(("N",))):
    return THING


def test_a_changed_global_never_meets_the_old_plan(machine: Gpu) -> None:
    steps = Steps()
    k = jit(reads_global, steps)
    x = cuda_tensor(8)
    old = warm(machine, k, x).function
    held = k.__call__  # the function made while THING was 1
    try:
        globals()["THING"] = 2
        new = warm(machine, k, x).function
        assert new is not old and len(steps.compiled) == 2
        held(x)
        assert machine.recorder.launches[-1].function is new
        globals()["THING"] = 1
        held(x)
        assert machine.recorder.launches[-1].function is not new
        k(x)
        assert machine.recorder.launches[-1].function is not new
    finally:
        globals()["THING"] = 1


def test_a_changed_cell_and_class_attribute(machine: Gpu) -> None:
    size = 1

    class Shapes:
        rows = 1

    def k(X: T.Tensor(("N",))):
        return size + Shapes.rows

    steps = Steps()
    kernel, x = jit(k, steps), cuda_tensor(8)
    warm(machine, kernel, x)
    size = 2
    warm(machine, kernel, x)
    Shapes.rows = 2
    warm(machine, kernel, x)
    del Shapes.rows
    kernel(x)
    assert len(steps.compiled) == 4


# --- grids


def test_grids_that_sizes_and_scalars_enter(machine: Gpu) -> None:
    def k(X: T.Tensor((T.dynamic("M"), 8)), s: T.int32, Y: T.Tensor((T.dynamic("M"),))): ...

    kernel = jit(k, Steps(grid=lambda v: (v["M"], v["s"])))
    warm(machine, kernel, cuda_tensor(5, 8), 3, cuda_tensor(5))
    for m, s in ((1, 1), (7, 2), (2**31 - 1, 65535)):
        kernel(
            cuda_tensor(like=torch.empty(1).expand(m, 8)),
            s,
            cuda_tensor(like=torch.empty(1).expand(m)),
        )
        kernel(
            cuda_tensor(like=torch.empty(1).expand(m, 8)),
            s,
            cuda_tensor(like=torch.empty(1).expand(m)),
        )
        assert machine.recorder.launches[-1].grid == (m, s, 1)
    launched = len(machine.recorder.launches)
    kernel(cuda_tensor(0, 8), 3, cuda_tensor(0))
    kernel(cuda_tensor(5, 8), 0, cuda_tensor(5))
    assert len(machine.recorder.launches) == launched
    for s in (-1, 65536):
        with pytest.raises(LaunchError, match="grid axis y"):
            kernel(cuda_tensor(5, 8), s, cuda_tensor(5))
    with pytest.raises(LaunchError, match="M is 5"):
        kernel(cuda_tensor(5, 8), 3, cuda_tensor(6))


def test_a_fixed_size_named_like_a_dynamic_one(machine: Gpu) -> None:
    def k(X: T.Tensor((T.dynamic("M"),)), Y: T.Tensor(("M",))): ...

    kernel = jit(k)
    warm(machine, kernel, cuda_tensor(5), cuda_tensor(5))
    with pytest.raises(LaunchError, match="M is 6"):
        kernel(cuda_tensor(6), cuda_tensor(5))


def test_given_grids_share_plans_but_not_grids(machine: Gpu) -> None:
    def k(X: T.Tensor(("N",)), W: T.constexpr = 3): ...

    kernel = jit(k, Steps(grid=lambda v: None))
    x = cuda_tensor(8)
    assert warm(machine, kernel[8, 8], x).grid == (8, 8, 1)
    assert warm(machine, kernel[2, 3], x).grid == (2, 3, 1)
    assert warm(machine, kernel[lambda m: m["W"]], x).grid == (3, 1, 1)
    assert len(kernel.variants) == 1
    assert warm(machine, kernel[9], x).grid == (9, 1, 1)  # over the bound
    assert len(kernel.variants) == 2
    launched = len(machine.recorder.launches)
    kernel[0](x)
    assert len(machine.recorder.launches) == launched
    with pytest.raises(LaunchError, match=r"launch it as k\[grid\]"):
        kernel(x)


def test_what_a_grid_function_raises_is_raised(machine: Gpu) -> None:
    kernel = jit(reads_global, Steps(grid=lambda v: None))
    grids: list[Any] = [2, 2]

    def grid(meta: Any) -> Any:
        return grids.pop()

    entry = kernel[grid]
    entry(cuda_tensor(8))
    entry(cuda_tensor(8))
    with pytest.raises(IndexError):
        entry(cuda_tensor(8))


# --- devices, errors, calls


def test_each_device_has_its_own_plan(machine: Gpu) -> None:
    k = jit(reads_global)
    here, there = cuda_tensor(8), cuda_tensor(8, ordinal=1)
    warm(machine, k, here)
    before = through_c(machine)
    for _ in range(3):
        k(there)
        assert machine.recorder.launches[-1].stream == 107 and machine.current == 0
    assert through_c(machine) == before  # another device than the current one is Python's
    machine.current = 1
    assert warm(machine, k, there).stream == 107
    k(here)
    assert machine.recorder.launches[-1].stream == 7


def test_driver_errors(machine: Gpu) -> None:
    k, x = jit(reads_global), cuda_tensor(8)
    warm(machine, k, x)
    machine.recorder.results = [201]
    k(x)
    for _ in range(2):
        machine.recorder.results = [701]
        with pytest.raises(LaunchError, match=r"CUDA_ERROR_701(.|\n)*grid \(4, 1, 1\), block"):
            k(x)
    k(x)
    assert len(machine.recorder.launches) == 5


def test_keywords_defaults_and_bad_calls(machine: Gpu) -> None:
    k = jit(everything)
    a = usual()
    warm(machine, k, *a.values())
    names = list(a)
    for positional in range(6):
        rest = dict(reversed([(n, a[n]) for n in names[positional:]]))
        warm(machine, k, *(a[n] for n in names[:positional]), **rest)
    warm(machine, k, a["X"], a["D"], 1, 2, a["B"])
    assert len(k.variants) == 1
    for args, keywords, code in [
        ((), {}, "missing"), (a.values(), {"W": 4}, "twice|multiple values"), (a.values(), {"Z": 4}, "unknown"),
        ((*a.values(), 1), {}, "too-many"), ((a["X"], None, 1, 2), {}, "none"),
        ((a["X"], 3, 1, 2), {}, "tensor"),
    ]:  # fmt: skip
        with pytest.raises((LaunchError, TypeError), match=code):
            k(*args, **keywords)


def test_tensors_elsewhere_are_python_s(machine: Gpu) -> None:
    k = jit(reads_global)
    warm(machine, k, cuda_tensor(8))
    assert k(torch.empty(8)) is not None  # simulated
    with pytest.raises(LaunchError):
        k(object())


def test_a_tensor_without_memory_meets_no_plan(machine: Gpu) -> None:
    """Its null address is aligned like any other: a storage that was taken away, a fake tensor."""

    def static(X: T.Tensor(("N",))): ...

    def dynamic(X: T.Tensor((T.dynamic("N"),))): ...

    for function in (static, dynamic):
        k = jit(function)
        warm(machine, k, cuda_tensor(8))
        launches = len(machine.recorder.launches)
        with pytest.raises(LaunchError, match="has no memory to read"):
            k(cuda_tensor(8, address=0))
        assert len(machine.recorder.launches) == launches


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_calls(machine: Gpu, seed: int) -> None:
    """The plan of each call is the one of its signature, whatever was called before."""
    k = jit(everything)
    random = Random(seed)
    pools: dict[str, list[Any]] = {name: [value] for name, value in usual().items()}
    for change in CHANGES.values():
        for name, value in change.items():
            pools[name].append(value)
    pools["n"] += [-5, True, 2**31 - 1]
    pools["D"] += [
        cuda_tensor(9, 8),
        cuda_tensor(1, 8),
        cuda_tensor(like=torch.empty(1, 8)[:, ::1]),
    ]
    pools["X"] += [cuda_tensor(4, 8, address=0x100C), cuda_tensor(1, 8), cuda_tensor(0, 8)]
    functions: dict[Any, Any] = {}
    for _ in range(1500):
        arguments = dict(usual())
        for name in random.sample(list(pools), random.randrange(4)):
            arguments[name] = random.choice(pools[name])
        launched = len(machine.recorder.launches)
        try:
            k(**arguments)
        except LaunchError:  # N differs: refused each time
            assert len(machine.recorder.launches) == launched
            continue
        launch = machine.recorder.launches[-1]
        variant = (k.signature(**arguments), typed(arguments["W"]), typed(arguments["m"] is None))
        assert functions.setdefault(variant, launch.function) is launch.function
        tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
        assert {t.data_ptr() for t in tensors} <= set(launch.slots)
        assert arguments["D"].shape[0] in launch.slots
    assert len({id(f) for f in functions.values()}) == len(functions) > 50
    if machine.uses_c:
        assert through_c(machine) > 500


def test_many_kinds_of_arguments_stay_right(machine: Gpu) -> None:
    """More kinds than there are records, round after round."""
    k = jit(everything)
    kinds = [usual(X=cuda_tensor(m, 8), W=w) for m in range(1, 26) for w in (1, 2, 3, 4)]
    functions = []
    for arguments in kinds:
        k(**arguments)
        functions.append(machine.recorder.launches[-1].function)
    assert len({id(f) for f in functions}) == 100
    for _ in range(3):
        for arguments, function in zip(kinds, functions):
            k(**arguments)
            assert machine.recorder.launches[-1].function is function
    if machine.uses_c:
        assert type(k).__call__.records <= 64


def test_fresh_compile_time_objects_do_not_pile_up(machine: Gpu) -> None:
    k = jit(everything)
    for _ in range(600):
        k(**usual(W=Tile(4)))
    assert len(k.variants) == 1
    if machine.uses_c:
        assert type(k).__call__.records <= 64
        k(**usual())
        for _ in range(100):  # learning costs what so many misses earn
            k(**usual())
        for _ in range(100):
            k(**usual(W=(4, (1.0, "a"))))
        assert warm(machine, k, **usual(W=(4, (1.0, "a"))))
        before = through_c(machine)
        k(**usual(W=(int("4"), (float("1"), "a"))))
        assert through_c(machine) == before + 1


def test_threads(machine: Gpu) -> None:
    def k(X: T.Tensor(("N",)), a: T.int64, b: T.int64, W: T.constexpr = 0): ...

    kernel, x = jit(k), cuda_tensor(8)

    def work(n: int) -> None:
        for i in range(300):
            kernel(x, n, n * 1000 + i, W=(n + i) % 3)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    seen = [launch.slots[1:] for launch in machine.recorder.launches]
    assert len(seen) == len(set(seen)) == 1200
    assert all(b // 1000 == a for a, b in seen)
    assert len(kernel.variants) == 3


# --- memory


@needs_c
def test_nothing_leaks() -> None:
    class Sink(list):  # type: ignore[type-arg]
        def append(self, item: Any) -> None:
            pass

    def k(X: T.Tensor((T.dynamic("M"), 8)), s: T.int64, W: T.constexpr): ...

    with launcher("c"), gpu() as g:
        g.recorder.launches = Sink()
        kernel = jit(k, Steps(grid=lambda v: (v["M"],)))
        x, const, big = cuda_tensor(4, 8), (1, "a"), 2**40
        plain, y = jit(reads_global), cuda_tensor(8)

        def round_(calls: int) -> None:
            for _ in range(calls):
                kernel(x, big, const)
                kernel(x, s=big, W=const)
                plain[2](y)

        round_(200)
        gc.collect()
        counts, nones = [sys.getrefcount(o) for o in (x, const, big)], sys.getrefcount(None)
        gc.collect()
        tracemalloc.start()
        round_(100)
        before, rss = tracemalloc.get_traced_memory()[0], _rss()
        round_(33_000)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert type(kernel).__call__.hits > 66_000
        assert counts == [sys.getrefcount(o) for o in (x, const, big)]
        assert sys.getrefcount(None) - nones < 20_000  # of 99,000 calls
    assert grown < 20_000, grown
    assert _rss() - rss < 20 << 20


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@needs_c
def test_learning_and_forgetting_leaks_nothing() -> None:
    def make() -> None:
        with launcher("c"), gpu():
            k = jit(everything)
            for change in CHANGES.values():
                k(**usual(**change))
                k(**usual(**change))
        del k
        gc.collect()

    make()
    make()
    tracemalloc.start()
    make()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        make()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000, grown


# --- what the C launcher is given


@needs_c
def test_launcher_refuses_what_does_not_fit() -> None:
    from tilejit.runtime._launcher import Launcher

    def make(params: Any = (), watched: Any = (), equals: bytes = b"") -> Any:
        return Launcher(print, print, {}, params, watched, equals, (int, int), 0, 0)

    row = ("a", False, False, 15, 0, False, None)
    make((row,) * 64)
    for arguments in (((row,) * 65,), (((1,),),), ((), ((1, None, 2),)), ((), (), b"\1\0\0\0")):
        with pytest.raises((ValueError, TypeError)):
            make(*arguments)


def test_the_bindings_configuration_is_the_driver_s_struct() -> None:
    """The bytes that C patches: every field where cuda.h has it, attributes included."""
    from cuda.bindings import driver as api

    from tilejit.runtime.driver import CudaDriver, LaunchAttributes

    driver = object.__new__(CudaDriver)
    driver._api = api
    config = driver.config((5, 6, 7), 0x1234, LaunchAttributes((8, 9, 10), 11, (2, 1, 1), True))
    fields = struct.unpack("<7I4xQQI4x", native.config_bytes(config))
    assert fields[:7] == (5, 6, 7, 8, 9, 10, 11) and fields[7] == 0x1234 and fields[9] == 2
    attribute = struct.unpack("<i4x3I", ctypes.string_at(fields[8], 20))
    assert attribute == (4, 2, 1, 1)  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


@needs_c
def test_torch_s_exchange_reads_what_torch_says() -> None:
    """The real one, on every dtype and on views; the structs' layout in C is the same as here."""
    from tilejit.runtime import torch_glue

    assert launchers.REAL is not None and native.which() in ("c", "python: TILEJIT_LAUNCHER=python")
    seen = set()
    for dtype in torch_glue.dtype_table():
        for x in (torch.empty(3, 4, dtype=dtype), torch.empty(4, 4, dtype=dtype)[1:, 2:].t()):
            view = launchers.DLTensor()
            assert launchers.READ(launchers.REAL.read_tensor)(x, view) == 0
            assert view.data + view.byte_offset == x.data_ptr() and view.ndim == 2
            assert struct.unpack("2q", ctypes.string_at(view.shape, 16)) == tuple(x.shape)
            assert struct.unpack("2q", ctypes.string_at(view.strides, 16)) == x.stride()
        seen.add((view.code, view.bits, view.lanes))
    assert len(seen) == len(torch_glue.dtype_table())  # no two types look alike
    needs_grad = torch.empty(3, requires_grad=True)
    assert launchers.READ(launchers.REAL.read_tensor)(needs_grad, launchers.DLTensor()) == 0


def test_the_python_launcher_can_be_asked_for() -> None:
    code = "from tilejit.runtime import native; print(native.LAUNCHER, native.which())"
    environment = {**os.environ, "TILEJIT_LAUNCHER": "python"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["python", "python:", "TILEJIT_LAUNCHER=python"]
