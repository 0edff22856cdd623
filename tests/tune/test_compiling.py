"""Variants compiled in threads and in processes: the same comes of it, and a process that ends ends one variant."""

import enum
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilejit as tile
from tests.runtime.fakes import jit
from tests.tune import fake_jobs
from tests.tune.test_prune import stage
from tilejit import T
from tilejit.errors import Diagnostic, Span
from tilejit.pipeline import Pipeline
from tilejit.runtime.jit import described
from tilejit.runtime.variant import Variant
from tilejit.tune import compiling
from tilejit.tune.compiling import ContractsBroken, NotCompiled, Processes, Threads


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def process() -> Iterator[Processes]:
    """One for all that leave it as it was."""
    made = Processes(1)
    yield made
    made.close()


def of(kernel: Any, **constants: Any) -> Variant:
    """The variant for a described tensor, not checked yet."""
    values = {"X": tile.TensorArg(T.float32, (1024,), (1,), 16), **constants}
    return described(kernel, values, "sm_90a")


def plain(function: Any = stage.__wrapped__) -> Any:
    """A kernel without variants."""
    return jit(function, Pipeline())  # type: ignore[arg-type]


def changed(change: Any) -> Any:
    """Another, whose jobs are what ``change`` makes of them."""
    return jit(stage.__wrapped__, fake_jobs.Steps(change))  # type: ignore[arg-type]


def error_of(future: Future[None]) -> Any:
    return future.exception(60)


# --- where


@pytest.mark.parametrize(
    ("configs", "processors", "kind", "workers"),
    [
        (24, 64, Processes, 16), (8, 16, Processes, 8), (8, 4, Processes, 4), (7, 16, Threads, 7),
        (24, 3, Threads, 3), (0, 16, Threads, 1),
    ],
)  # fmt: skip
def test_processes_are_for_many_configs_and_processors(
    configs: int, processors: int, kind: type, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(processors)))
    chosen = compiling.compiler(configs)
    assert type(chosen) is kind and chosen._executor._max_workers == workers
    assert not getattr(chosen, "_children", ()), "none before there is something to do"
    chosen.close()


# --- the same either way


class Width(enum.IntEnum):
    """As a user's module has it, and no other process."""

    NARROW = 32


def in_a_notebook() -> Any:
    """A kernel whose source is in no file."""
    import linecache

    source = (
        "@tile.jit\n"
        "def cell(X: T.Tensor(('N',), 'float32'), BLOCK: T.constexpr):\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=BLOCK))\n"
        "    X[T.cuda.thread_idx()] = factor * X[T.cuda.thread_idx()]\n"
    )
    file = "<ipython-input-7>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"tile": tile, "T": T, "factor": 2.5}
    exec(compile(source, file, "exec"), namespace)
    return namespace["cell"]


def in_a_closure() -> Any:
    factor = 0.5

    @tile.jit
    def closed(X: T.Tensor(("N",), "float32"), BLOCK: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=BLOCK))
        X[T.cuda.thread_idx()] = factor * X[T.cuda.thread_idx()]

    return closed


def spilling() -> Any:
    @tile.jit
    def many(X: T.Tensor(("N",), "float32"), BLOCK: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=BLOCK, max_registers_per_thread=24))
        held = T.alloc_local((64,), "float32")
        for i in T.unroll(64):
            held[i] = X[i]
        T.cuda.cta_sync()
        for i in T.unroll(64):
            X[i] = held[63 - i]

    return many


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (plain, {"BLOCK": 128}),
        (in_a_notebook, {"BLOCK": 64}),
        (in_a_closure, {"BLOCK": 64}),
        (in_a_closure, {"BLOCK": Width.NARROW}),
        (spilling, {"BLOCK": 64}),
    ],
    ids=["module", "notebook", "closure", "enum of the user's", "warnings"],
)
def test_a_process_makes_what_this_one_makes(
    process: Processes, kernel: Callable[[], Any], constants: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0")
    there, here = of(kernel(), **constants), of(kernel(), **constants)
    for compiler, variant in ((process, there), (Threads(1), here)):
        compiler.submit(variant).result(60)
    mine, its = (replace(v.artifact, log="") for v in (here, there))  # where times are told
    assert its == mine and its.keyed_on == mine.keyed_on and "registers" in there.log
    assert there.warnings == here.warnings and bool(here.warnings) == (kernel is spilling)
    assert there.origin.startswith("compiled by NVRTC") and there.seconds > 0
    assert (there.written, there.read) == (here.written, here.read) == ({"X"}, {"X"})
    assert there.follows_addresses == here.follows_addresses


def test_the_check_is_left_for_who_asks(process: Processes) -> None:
    variant = of(plain(), BLOCK=64)
    process.submit(variant).result(60)
    assert variant.compiled and variant.written == {"X"} and variant._checked is None
    assert variant.checked.function is variant.function


def test_what_the_disk_has_is_not_compiled_again(process: Processes) -> None:
    first = of(in_a_closure(), BLOCK=128)
    process.submit(first).result(60)
    again = of(in_a_closure(), BLOCK=128)
    process.submit(again).result(60)
    assert again.origin == "from the disk cache" and again.artifact == first.artifact
    assert again.written == {"X"} and again._checked is None


@pytest.mark.parametrize("where", ["threads", "process"])
def test_a_broken_contract_is_told_apart_with_its_places(where: str, process: Processes) -> None:
    compiler = process if where == "process" else Threads(1)
    error = error_of(compiler.submit(of(plain(), BLOCK=32, ROWS=4096)))
    assert isinstance(error, ContractsBroken)
    with pytest.raises(tile.ContractError) as found:
        _ = of(plain(), BLOCK=32, ROWS=4096).checked
    assert type(error.error) is type(found.value)
    assert error.error.diagnostics == found.value.diagnostics and error.error.diagnostics[0].span
    assert str(error.error) == str(found.value)


@pytest.mark.parametrize("kind", [tile.CompileError, tile.ContractError, tile.LaunchError])
def test_a_diagnosed_error_travels_whole(kind: type[tile.TileError]) -> None:
    place = Span("k.py", 3, 4, 3, 9, "k", Span("k.py", 8))
    error = kind([Diagnostic("a/b", "one", place, (("help", "less"),)), Diagnostic("a/c", "two")])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and copy.diagnostics == error.diagnostics and str(copy) == str(error)


# --- what goes wrong


def test_a_process_that_dies_takes_one_variant_with_it() -> None:
    kernel = changed(
        lambda job: (fake_jobs.Deadly if job.function.launch.block == (64,) else fake_jobs.Changed)(
            job
        )
    )
    made = Processes(2)
    futures = {b: made.submit(of(kernel, BLOCK=b)) for b in (32, 64, 96, 128)}
    errors = {b: error_of(future) for b, future in futures.items()}
    assert [b for b, error in errors.items() if error is not None] == [64]
    assert isinstance(errors[64], NotCompiled)
    assert str(errors[64]) == "the compiling process was ended by SIGSEGV"
    assert len(made._children) == 2, "another took its place"
    made.close()


def test_the_compilers_error_and_any_other_are_that_variants(process: Processes) -> None:
    refused = error_of(process.submit(of(changed(fake_jobs.Refused), BLOCK=32)))
    assert isinstance(refused, tile.CompileError) and refused.diagnostics[0].span == Span(
        "k.py", 3, 4
    )
    crashed = error_of(process.submit(of(changed(fake_jobs.Raising), BLOCK=32)))
    assert isinstance(crashed, NotCompiled)
    assert str(crashed) == "ZeroDivisionError: nothing to divide by"


def test_what_does_not_travel_is_done_here_and_leaves_the_process() -> None:
    made = Processes(1)
    try:
        futures = [made.submit(of(changed(fake_jobs.Rooted), BLOCK=b)) for b in (32, 64, 96)]
        assert [error_of(future) for future in futures] == [None] * 3
        made.submit(of(changed(fake_jobs.Changed), BLOCK=128)).result(60)
    finally:
        made.close()


def test_where_no_process_can_be_started_it_is_done_here() -> None:
    made = Processes(2, ("/nowhere/python",))
    variants = [of(plain(), BLOCK=b) for b in (32, 96)]
    for future in [made.submit(variant) for variant in variants]:
        future.result(60)
    assert all(v.compiled and v.written == {"X"} for v in variants)
    assert isinstance(error_of(made.submit(of(plain(), BLOCK=32, ROWS=4096))), ContractsBroken)
    made.close()


def test_closing_ends_what_is_compiling_and_drops_the_rest(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    kernel = changed(lambda job: fake_jobs.Endless(job, told))
    made = Processes(1)
    first, second = (made.submit(of(kernel, BLOCK=b)) for b in (32, 64))
    deadline = time.monotonic() + 60
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    made.close()
    assert isinstance(error_of(first), NotCompiled) and second.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_process_ends_when_its_parent_does() -> None:
    program = (
        "import os; from tilejit.tune import child, compiling\n"
        "process = child.Child(compiling.COMMAND)\n"
        "print(process.process.pid, flush=True)\n"
        "os._exit(0)"
    )
    root = Path(__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(int(told.stdout), 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("it is still there")
