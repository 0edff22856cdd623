"""tilejit as a compiler service: light to import, many threads, many variants, many processes."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.runtime.fakes import Steps, cuda_tensor, gpu
from tilejit import T, dtypes, jit, pipeline
from tilejit.ir import nodes as ir
from tilejit.ir.signature import ConstArg, ScalarArg, TensorArg
from tilejit.runtime import cache, driver, kept
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.kept import SpecialisationWarning

ROOT = Path(__file__).parent.parent.parent
THREADS = 8

pytestmark = pytest.mark.usefixtures("own_garbage")


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TILEJIT_CACHE_DIR": str(folder / "cache"),
        "TILEJIT_TARGET": "sm_90a",
        **more,
    }


# --- what is imported

FILL = """
from tilejit import T, dtypes, jit
from tilejit.ir.signature import TensorArg

@jit
def fill(X: T.Tensor(("N",), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = 7
"""
FIRST_CALL = f"""{FILL}
print(fill.compile(TensorArg(dtypes.int32, (32,), (1,), 16)).origin)
"""
LOADED = """
import sys
wrong = sorted(m for m in sys.modules if any(m == f or m.startswith(f + ".") for f in {forbidden}))
print("wrong", *wrong)
"""
HEAVY = ("torch", "numpy", "tilejit.sim", "tilejit.tile", "tilejit.families", "tilejit.cuda")
"""What neither a decorated kernel nor one from the disk cache needs."""
NOT_FOR_DECORATING = (
    *HEAVY, "cuda", "subprocess", "tempfile", "tilejit.frontend.lowering", "tilejit.kernels",
    "tilejit.tune", "tilejit.testing", "tilejit.ir.script", "tilejit.runtime.sass",
)  # fmt: skip


def run(program: str, folder: Path, **more: str) -> str:
    """What a fresh interpreter prints for a program in a file (kernels need one)."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, path],
        env=environment(folder, **more),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    "program", ["import tilejit\ntilejit.jit\nfrom tilejit import T", FILL], ids=["import", "jit"]
)
def test_a_decorated_kernel_loads_no_compiler(program: str, tmp_path: Path) -> None:
    assert run(program + LOADED.format(forbidden=NOT_FOR_DECORATING), tmp_path) == "wrong\n"


def test_a_kernel_from_the_disk_cache_loads_no_checker_and_no_numpy(tmp_path: Path) -> None:
    program = FIRST_CALL + LOADED.format(forbidden=HEAVY)
    compiled, loaded = run(program, tmp_path).splitlines()
    assert compiled.startswith("compiled by NVRTC") and "tilejit.families" in loaded
    assert run(program, tmp_path) == "from the disk cache\nwrong\n"


# --- threads


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """``work(0)`` … in as many threads, which start at one moment."""
    barrier = threading.Barrier(count)

    def one(index: int) -> Any:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@contextmanager
def switching_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@jit
def scale(X: T.Tensor(("N",), "float32"), Y: T.Tensor(("N",), "float32"), F: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(X.shape[0] + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < X.shape[0]:
        Y[i] = X[i] * F


@jit
def shift(X: T.Tensor(("N",), "float32"), Y: T.Tensor(("N",), "float32"), F: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(X.shape[0] + 31) // 32, block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < X.shape[0]:
        Y[i] = X[i] + F


def test_threads_simulate_the_same_and_different_variants() -> None:
    x = torch.arange(40.0)
    lowered = pipeline.Pipeline.lower
    seen: list[Any] = []

    def counted(steps: Any, kernel: Any, signature: Any, options: Any) -> Any:
        seen.append((kernel.name, signature))
        return lowered(steps, kernel, signature, options)

    def work(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        y, z = torch.zeros(40), torch.zeros(40)
        scale(x, y, index % 2 + 2)
        shift(x, z, index % 4)
        return y, z

    with switching_often(), mock.patch.object(pipeline.Pipeline, "lower", counted):
        results = together(work)
    for index, (y, z) in enumerate(results):
        assert torch.equal(y, x * (index % 2 + 2)) and torch.equal(z, x + index % 4)
    assert len(seen) == len(set(seen)) == 6


def test_threads_compile_one_cubin_per_variant(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEJIT_TARGET", "sm_90a")
    vector = TensorArg(dtypes.float32, (96,), (1,), 16)
    compile_cubin = pipeline.nvrtc.compile_cubin
    count = mock.Mock(side_effect=compile_cubin)
    with switching_often(), mock.patch.object(pipeline.nvrtc, "compile_cubin", count):
        made = together(lambda i: scale.compile(vector, vector, ConstArg(5 + i % 2)))
    assert count.call_count == 2 and len(set(made)) == 2
    assert all(v.cubin.startswith(b"\x7fELF") for v in made)


def tail(X: T.Tensor((T.dynamic("M"), "N"), "float32"), a: T.float32, W: T.constexpr = 4): ...


def by_rows() -> Steps:
    return Steps(grid=lambda names: (names["M"],) if "M" in names else (ir.Const(4, ir.INT64),))


def test_threads_launch_each_with_its_own_arguments() -> None:
    k = JitFunction(tail, by_rows())

    def work(index: int) -> None:
        for turn in range(200):
            k(cuda_tensor(index + 1, 8, address=0x1000 * (index + 1)), float(turn), index % 3)

    with gpu() as g, switching_often():
        together(work)
    assert len(k._steps.compiled) == 3
    assert len(g.recorder.launches) == THREADS * 200
    for launched in g.recorder.launches:
        rows = launched.grid[0]
        assert launched.slots[0] == 0x1000 * rows


def test_launches_go_on_while_something_else_compiles() -> None:
    """Another kernel, and another variant of the same one."""
    compiling, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        if holding:
            compiling.set()
            assert may_end.wait(60)

    holding: list[bool] = []
    steps = [by_rows(), by_rows()]
    for s in steps:
        s.before_compile = hold
    k, other = (JitFunction(tail, s) for s in steps)
    with gpu() as g, ThreadPoolExecutor(2) as pool:
        k(cuda_tensor(1, 8), 1.0)
        k[3](cuda_tensor(1, 8), 1.0)
        held = k.bind(cuda_tensor(1, 8), 1.0)
        try:
            for stuck in (
                lambda: k(cuda_tensor(2, 8), 1.0, 5),
                lambda: other(cuda_tensor(2, 8), 1.0),
            ):
                holding.append(True)
                compiling.clear(), may_end.clear()
                done = pool.submit(stuck)
                assert compiling.wait(60)
                before = len(g.recorder.launches)
                holding.clear()
                for launch in (
                    lambda: k(cuda_tensor(7, 8), 2.0),  # warm
                    lambda: k[3](cuda_tensor(7, 8), 2.0),
                    held,
                    lambda: k(cuda_tensor(2, 8), 1.0, 6),  # cold, and not to wait for the other
                ):
                    pool.submit(launch).result(60)
                assert len(g.recorder.launches) == before + 4 and not done.done()
                may_end.set()
                done.result(60)
        finally:
            may_end.set()


# --- many variants


class Dropped(list[Any]):
    """What the stand-ins would record, not kept."""

    def append(self, item: Any) -> None:
        del item


@contextmanager
def small_bounds() -> Iterator[None]:
    with (
        mock.patch.multiple(
            kept, MAX_VARIANTS=8, MAX_FIRST_PLANS=16, MAX_LATER_PLANS=8, MAX_REASONS=20
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", SpecialisationWarning)
        yield


def test_memory_does_not_grow_with_the_number_of_variants() -> None:
    """Once the bounds are reached, four hundred variants need no more bytes than the hundred before."""
    with (
        small_bounds(),
        gpu() as g,
        mock.patch.multiple("tilejit.runtime.jit", _MAX_PREPARED=32, _MAX_BOUNDED=32),
        mock.patch("tilejit.runtime.dispatch._MAX_REMEMBERED", 32),
    ):
        k = JitFunction(tail, by_rows())
        k._steps.lowered = k._steps.compiled = Dropped()
        g.recorder.launches = g.recorder.loaded = g.recorder.released = Dropped()
        x = cuda_tensor(3, 8)

        def bytes_after(start: int, count: int) -> int:
            for width in range(start, start + count):
                k(x, 1.0, width)
                k[width % 5 + 1](x, 1.0, width + 0.5)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        bytes_after(0, 100)
        tracemalloc.start()
        try:
            first = bytes_after(1000, 50)
            second = bytes_after(2000, 200)
        finally:
            tracemalloc.stop()
        assert second - first < 100_000, "bytes kept of 400 variants"
        assert len(k.variants) <= 8 and len(list(k._plans.values())) <= 24


def test_ten_thousand_specialisations() -> None:
    k = JitFunction(tail, by_rows())
    k._steps.lowered = Dropped()
    x = TensorArg(dtypes.float32, (None, 8), (8, 1), 16)
    first = k.check(x, ScalarArg(dtypes.float32), ConstArg(0))
    for width in range(1, 10_000):
        k.check(x, ScalarArg(dtypes.float32), ConstArg(width))
    assert len(k.variants) == kept.MAX_VARIANTS + 1, "the first is held here"
    assert k.check(x, ScalarArg(dtypes.float32), ConstArg(0)) is first
    lines = k.explain_recompile().splitlines()
    assert lines[0] == f"1. to {10_000 - kept.MAX_REASONS}. are not kept"
    assert lines[-1] == "10000. W: the value 9998 -> the value 9999"


def test_what_made_room_is_unloaded_and_loaded_again() -> None:
    with small_bounds(), gpu() as g:
        k = JitFunction(tail, by_rows())
        x = cuda_tensor(3, 8)
        for width in range(16):
            k(x, 1.0, width)
        later = [k(x, 1.0, 100 + width) for width in range(9)]
        assert len(later) == 9
        gc.collect()
        assert [cubin for _, cubin in g.recorder.released] == [g.recorder.loaded[16][0]]
        loaded = len(g.recorder.loaded)
        k(x, 1.0, 0)  # one of the first stays
        k(x, 1.0, 108)
        assert len(g.recorder.loaded) == loaded
        k(x, 1.0, 100)
        assert len(g.recorder.loaded) == loaded + 1 and g.recorder.launches[-1].grid == (3, 1, 1)


def test_least_recently_launched_makes_room() -> None:
    with small_bounds(), gpu() as g:
        k = JitFunction(tail, by_rows())
        x = cuda_tensor(3, 8)
        for width in range(16 + 8):
            k(x, 1.0, width)
        oldest = g.recorder.loaded[16][0]
        for width in range(100, 107):
            k(x, 1.0, 16)
            k(x, 1.0, width)
        gc.collect()
        assert oldest not in {cubin for _, cubin in g.recorder.released}
        assert len(g.recorder.released) == 7


@pytest.mark.parametrize(
    "held_by",
    [
        "a launcher",
        "a graph",
        "a graph of a launcher",
        "a graph of a kernel that is gone",
        "nobody",
    ],
)
def test_what_somebody_may_launch_stays_loaded(held_by: str) -> None:
    with small_bounds(), gpu() as g:
        k = JitFunction(tail, by_rows())
        x = cuda_tensor(3, 8)
        for width in range(16):
            k(x, 1.0, width)
        k(x, 1.0, 100)
        launcher = k.bind(x, 1.0, 100) if "launcher" in held_by else None
        if "graph" in held_by:
            g.capturing = True
            k(x, 1.0, 100) if launcher is None else launcher()
            g.capturing = False
        if held_by != "a launcher":
            launcher = None
        if held_by == "a graph of a kernel that is gone":
            del k
            gc.collect()
            assert not g.recorder.released
            return
        cubin = g.recorder.loaded[16][0]
        for width in range(200, 220):
            k(x, 1.0, width)
        gc.collect()
        released = cubin in {c for _, c in g.recorder.released}
        assert released == (held_by == "nobody")
        assert launcher is None or launcher() is None


def test_a_change_outside_unloads_nothing_that_a_graph_may_hold() -> None:
    space = {"T": T, "WIDTH": 1}
    exec("def reads(X: T.Tensor(('N',), 'float32')): WIDTH", space)
    with small_bounds(), gpu() as g:
        k = JitFunction(space["reads"], Steps())
        for value in range(16):
            space["WIDTH"] = value
            k(cuda_tensor(8))
        gc.collect()
        assert len(g.recorder.loaded) == 16 and not g.recorder.released
        for value in range(100, 103):
            space["WIDTH"] = value
            k(cuda_tensor(8))
        gc.collect()
        assert len(g.recorder.released) == 2


def test_many_loaded_kernels_are_warned_about() -> None:
    with mock.patch.object(kept, "MAX_FIRST_PLANS", 3), gpu():
        k = JitFunction(tail, by_rows())
        k(cuda_tensor(3, 8), 1.0, 0), k(cuda_tensor(3, 8), 1.0, 1)
        with pytest.warns(SpecialisationWarning, match=r"tail has been .* 3 kinds .*T\.dynamic"):
            k(cuda_tensor(3, 8), 1.0, 2)


def test_a_variant_that_made_room_is_not_counted_twice() -> None:
    with small_bounds(), gpu():
        k = JitFunction(tail, by_rows())
        for width in range(12):
            k(cuda_tensor(3, 8), 1.0, width)
        gc.collect()
        assert len(k.variants) == 8 and k.latest.signature.args[-1][1] == ConstArg(11)
        again = k.compile(cuda_tensor(3, 8), 1.0, 0)  # made anew, from the same arguments
        assert k.latest is again and len(k.explain_recompile().splitlines()) == 12


class Api:
    """As much of ``cuda.bindings.driver`` as loading and unloading ask for."""

    def __init__(self) -> None:
        self.unloaded: list[Any] = []
        self.calls: list[str] = []
        self.loaded = 0

    def cuLibraryLoadData(self, *_arguments: Any) -> tuple[int, Any]:
        self.loaded += 1
        return 0, self.loaded

    def cuLibraryGetKernel(self, library: int, name: bytes) -> tuple[int, int]:
        return 0, library

    def cuKernelGetFunction(self, kernel: int) -> tuple[int, int]:
        return 0, 1000 + kernel

    def cuLibraryUnload(self, library: int) -> tuple[int]:
        assert self.calls[-4:] == [
            "cuCtxPushCurrent", "cuCtxSynchronize", "cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"
        ]  # fmt: skip
        self.unloaded.append(library)
        return (0,)

    def __getattr__(self, name: str) -> Any:
        def call(*_arguments: Any) -> tuple[int, int]:
            self.calls.append(name)
            return 0, 0

        return call


def test_the_driver_unloads_what_nobody_uses_after_waiting() -> None:
    api = Api()
    with mock.patch.object(driver, "_bindings", lambda: api):
        cuda = driver.CudaDriver()
    many = [cuda.load_function(b"cubin %d" % i, "k", 0) for i in range(driver._UNLOADED_TOGETHER)]
    assert cuda.load_function(b"cubin 0", "k", 0) == many[0] and api.loaded == len(many)
    for function in many:
        cuda.release(function)
    assert not api.unloaded
    cuda.load_function(b"another", "k", 0)
    assert sorted(api.unloaded) == list(range(2, len(many) + 1)), "the first is still used once"
    assert cuda.load_function(b"cubin 1", "k", 0) != many[1]


# --- processes


WORKER = """
import os, random, sys, time
from tilejit import T, dtypes, jit
from tilejit.ir.signature import TensorArg
from tilejit.runtime import cache

@jit
def fill(X: T.Tensor(("N",), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = 7

def small(key):
    return cache.Entry({"kernel": key}, {"cubin": key.encode() * 400})

def main(seed, seconds):
    choice, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        if choice.random() < 0.1:
            fill.compile(TensorArg(dtypes.int32, (32 * choice.randint(1, 4),), (1,), 16), fresh=True)
        key = f"{choice.randint(0, 30):064x}"
        found = cache.get(key)
        if found is None:
            cache.put(key, small(key))
        elif found != small(key):
            sys.exit("a foreign entry")

if sys.argv[1] == "stall":
    os.replace = lambda *_: (print("staged", flush=True), time.sleep(600))
    cache.put("f" * 64, small("f"))
elif sys.argv[1] == "compile":
    print(*(fill.compile(TensorArg(dtypes.int32, (32 * n,), (1,), 16)).origin for n in (1, 2)), sep="|")
else:
    main(int(sys.argv[1]), float(sys.argv[2]))
"""


def test_the_cache_survives_killed_processes(tmp_path: Path, monkeypatch: Any) -> None:
    """Eight processes write, read and evict; most are killed in the middle of it."""
    path, env = tmp_path / "worker.py", environment(tmp_path, TILEJIT_CACHE_SIZE_MB="0.4")
    path.write_text(WORKER)

    def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", str(path), *arguments]
        return subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE, **more)

    workers = [start(str(seed), "1.5") for seed in range(8)]
    stalled = start("stall", stdout=subprocess.PIPE)
    assert stalled.stdout is not None and stalled.stdout.readline() == "staged\n"
    choice = random.Random(0)
    for victim in choice.sample(workers, 5):
        time.sleep(choice.uniform(0.05, 0.3))
        victim.send_signal(signal.SIGKILL)
    stalled.kill()
    ends = [(w.communicate()[1], w.returncode) for w in workers]
    assert {code for _, code in ends} <= {0, -signal.SIGKILL}, ends
    stalled.communicate()

    monkeypatch.setenv("TILEJIT_CACHE_DIR", env["TILEJIT_CACHE_DIR"])
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    entries = [p for p in files if p.suffix == ".tile"]
    assert entries and all(cache.unpack(p.stem, p.read_bytes()) is not None for p in entries)
    staged = [p for p in files if p not in entries]
    assert staged and all(p.name.startswith(".staged-") for p in staged)
    cache.put("e" * 64, cache.Entry({}, {}))
    assert all(p.exists() for p in staged), "they may belong to a process that is alive"
    for p in staged:
        os.utime(p, (1, 1))
    cache.put("d" * 64, cache.Entry({}, {}))
    assert not any(p.exists() for p in staged)

    for _ in range(2):
        out, _ = start("compile", stdout=subprocess.PIPE).communicate()
    assert out.strip() == "from the disk cache|from the disk cache"


KEYS = """
import enum
from dataclasses import dataclass
from tilejit import T, dtypes, jit
from tilejit.ir.signature import ConstArg, TensorArg

WORDS = frozenset({"alpha", "beta", "gamma", "delta"})
PAIRS = frozenset({("a", 1), ("b", 2), ("c", 3)})

class Mode(enum.Enum):
    FAST = "fast"

@dataclass(frozen=True)
class Plan:
    names: frozenset
    mode: Mode

def one_of(words):
    return len(words)

@jit
def fill(X: T.Tensor(("N",), "float32"), PLAN: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.thread_idx("x")
    if PLAN.mode == Mode.FAST and "alpha" in WORDS and ("a", 1) in PAIRS:
        X[lane] = X[lane] * one_of(PLAN.names) + one_of(WORDS)

plan = Plan(frozenset({"x", "y", "zed", "w"}), Mode.FAST)
vector = TensorArg(dtypes.float32, (32,), (1,), 16)
print(fill.compile(vector, ConstArg(plan)).artifact.key)
"""


def test_one_key_in_twenty_processes_with_random_hash_seeds(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(KEYS)
    env = environment(tmp_path, PYTHONHASHSEED="random")
    keys: set[str] = set()
    for _ in range(10):
        pair = [
            subprocess.Popen([sys.executable, path], env=env, text=True, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        keys |= {p.communicate()[0] for p in pair}
    assert len(keys) == 1 and len(keys.pop().strip()) == 64
