"""One tuning while it goes on: trials beside compiling and lowering, a candidate that accesses more, errors.

The measurer is a fake (``fake_tuning``).
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilejit as tile
from tests.runtime.fakes import cuda_tensor, jit
from tests.tune import fake_jobs
from tests.tune.fake_tuning import Machine, Steps, machine
from tilejit import T
from tilejit.pipeline import Pipeline
from tilejit.tune import compiling
from tilejit.tune.compiling import Processes, Threads

BLOCKS = (256, 64, 128)
CONFIGS = [tile.Config(BLOCK=b) for b in BLOCKS]
WAIT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))


def copies(X: T.Tensor(("N",)), Y: T.Tensor(("N",)), BLOCK: T.constexpr): ...


def block_of(signature: Any) -> int:
    return int(dict(signature.args)["BLOCK"].value)


def lowered_block(lowered: Any) -> int:
    return next(b for b in BLOCKS if f"value={b}" in lowered.sources[0])


class Watched(Steps):
    """``at(step, block)`` is called in each step of the variant with that block."""

    def __init__(self, at: Callable[[str, int], None]):
        super().__init__(block=(32,))
        self.at = at

    def lower(self, kernel: Any, signature: Any, options: Any) -> Any:
        self.at("lower", block_of(signature))
        return super().lower(kernel, signature, options)

    def check(self, lowered: Any) -> Any:
        self.at("check", lowered_block(lowered))
        return super().check(lowered)

    def compile(self, kernel: Any, lowered: Any, signature: Any, options: Any, check: Any) -> Any:
        self.at("compile", block_of(signature))
        return super().compile(kernel, lowered, signature, options, check)


def tuned(steps: Steps, box: Machine, **options: Any) -> Any:
    x, y = cuda_tensor(8, address=0x1000), cuda_tensor(8, address=0x2000)
    return tile.tune(jit(copies, steps), x, y, configs=CONFIGS, **options)


def statuses(report: Any) -> list[str]:
    return [row.status for row in report.rows]


# --- one beside the other


@pytest.mark.parametrize("step", ["lower", "check", "compile"])
def test_the_first_is_run_while_the_last_is_made(step: str) -> None:
    ran = threading.Event()

    def at(now: str, block: int) -> None:
        if (now, block) == (step, 128):
            assert ran.wait(WAIT_SECONDS), "nothing was run before all was made"

    with machine() as box:
        box.during = ran.set
        report = tuned(Watched(at), box)
    assert statuses(report) == ["measured"] * 3 and report.best.config == "BLOCK=64"
    assert box.tunings == 1 and box.measurements[0].closed


def test_what_measures_gets_ready_while_the_first_compiles() -> None:
    with machine() as box:

        def at(step: str, block: int) -> None:
            if (step, block) == ("compile", 256):
                assert opened.wait(WAIT_SECONDS), "it was compiled before"

        opened, measure = threading.Event(), box.measure

        def measured(*args: Any, **options: Any) -> Any:
            opened.set()
            return measure(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tilejit.tune.measuring.measure", measured)
            report = tuned(Watched(at), box)
    assert statuses(report) == ["measured"] * 3


def test_a_config_that_cannot_be_handed_over_fails_alone() -> None:
    with machine() as box:
        measure = box.measure

        def measured(*args: Any, **options: Any) -> Any:
            made = measure(*args, **options)
            add = made.add

            def refusing(candidate: int, *rest: Any) -> None:
                if candidate == 1:
                    raise OSError("no room to pack it")
                add(candidate, *rest)

            made.add = refusing
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tilejit.tune.measuring.measure", measured)
            report = tuned(Watched(lambda step, block: None), box)
    assert [row.status for row in report.rows].count("measured") == 2
    assert "no room to pack it" in report.rows[1].reason


# --- who accesses more


class Accessing(Watched):
    """``accesses_of(block)``: read, written, elsewhere."""

    def __init__(self, at: Callable[[str, int], None], accesses_of: Callable[[int], Any]):
        super().__init__(at)
        self.accesses_of = accesses_of

    def accesses(self, checked: Any) -> Any:
        read, written, elsewhere = self.accesses_of(lowered_block(checked))
        return SimpleNamespace(
            read=frozenset(read), written=frozenset(written), elsewhere=elsewhere
        )


@pytest.mark.parametrize(
    ("of_the_last", "union"),
    [
        (("X", "XY", False), ({"X"}, {"X", "Y"}, False)),
        (("XY", "Y", False), ({"X", "Y"}, {"Y"}, False)),
        (("X", "Y", True), ({"X"}, {"Y"}, True)),
    ],
)
def test_measuring_begins_anew_for_one_that_accesses_more(of_the_last: Any, union: Any) -> None:
    ran = threading.Event()

    def at(step: str, block: int) -> None:
        if (step, block) == ("compile", 128):
            assert ran.wait(WAIT_SECONDS)

    with machine() as box:
        box.during = ran.set
        usual = ("X", "Y", False)
        report = tuned(Accessing(at, lambda b: of_the_last if b == 128 else usual), box)
    first, second = box.measurements
    assert first.closed and second.closed
    assert (first.arguments["read"], first.arguments["written"]) == ({"X"}, {"Y"})
    assert not first.arguments["follows_addresses"] and 2 not in first.added
    found = (second.arguments[n] for n in ("read", "written", "follows_addresses"))
    assert tuple(found) == union and sorted(second.added) == [0, 1, 2]
    assert statuses(report) == ["measured"] * 3 and report.best.config == "BLOCK=64"
    assert report.benchmarked == 3 and report.compiled == 3


def test_one_that_accesses_less_is_measured_as_it_is() -> None:
    with machine() as box:
        accesses = {256: ("XY", "Y", False), 64: ("X", "Y", False), 128: ("XY", "", False)}
        report = tuned(Accessing(lambda step, block: None, accesses.__getitem__), box)
    assert box.tunings == 1 and statuses(report) == ["measured"] * 3


# --- errors


def test_what_is_no_fault_of_a_config_is_raised_and_leaves_nothing_behind() -> None:
    def at(step: str, block: int) -> None:
        if (step, block) == ("lower", 128):
            raise ZeroDivisionError("in the lowering")

    with machine() as box, pytest.raises(ZeroDivisionError, match="in the lowering"):
        tuned(Watched(at), box)
    assert all(m.closed for m in box.measurements)
    assert not [t for t in threading.enumerate() if t.name.startswith("tilejit-")]


@pytest.mark.parametrize("broken", [(256,), (64, 128), BLOCKS])
def test_configs_that_break_contracts_are_pruned_wherever_they_are_checked(broken: Any) -> None:
    def at(step: str, block: int) -> None:
        if step == "check" and block in broken:
            raise tile.ContractError(tile.Diagnostic("ld/align", f"{block} is odd"))

    with machine() as box:
        if broken == BLOCKS:
            with pytest.raises(tile.TuneError) as found:
                tuned(Watched(at), box)
            assert found.value.codes == ("tune/none-left",) and "64 is odd" in str(found.value)
            assert box.tunings == 0
            return
        report = tuned(Watched(at), box)
    wanted = ["pruned" if b in broken else "measured" for b in BLOCKS]
    assert statuses(report) == wanted
    assert {r.reason for r in report.rows if r.status == "pruned"} == {
        f"ld/align: {b} is odd" for b in broken
    }


def test_the_users_functions_are_asked_in_the_callers_thread() -> None:
    threads = set()

    def prune(config: Any, arguments: Any) -> bool:
        threads.add(threading.current_thread())
        return False

    with machine() as box:
        tuned(Watched(lambda step, block: None), box, prune=prune)
    assert threads == {threading.current_thread()}


# --- processes


def add_one(X: T.Tensor(("N",), "float32"), BLOCK: T.constexpr, ROWS: T.constexpr = 1):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=T.ceildiv(X.shape[0], BLOCK), block=BLOCK))
    shared = T.alloc_shared((ROWS, BLOCK), "float32")
    t = T.cuda.thread_idx()
    i = T.cuda.block_idx() * BLOCK + t
    if i < X.shape[0]:
        shared[0, t] = X[i]
        X[i] = shared[0, t] + 1.0


def test_a_tuning_is_the_same_in_threads_and_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [tile.Config(BLOCK=b, ROWS=r) for b in (64, 32, 2048) for r in (1, 4096)]
    described = tile.TensorArg(T.float32, (1 << 16,), (1,), 16)
    found = []
    for made in (Threads, Processes):
        monkeypatch.setattr(compiling, "compiler", lambda configs, made=made: made(2))
        kernel = jit(add_one, Pipeline())  # type: ignore[arg-type]
        with pytest.warns(tile.TuningWarning, match="without a GPU"):
            report = tile.tune(kernel, described, configs=configs)
        found.append([(r.status, r.reason, r.uses, r.estimate) for r in report.rows])
        assert report.compiled == 2
    assert found[0] == found[1]
    assert [row[0] for row in found[0]] == ["estimated", "pruned"] * 2 + ["pruned"] * 2


def test_a_compiler_that_dies_fails_its_config_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(job: Any) -> Any:
        dies = job.function.launch.block == (64,)
        return (fake_jobs.Deadly if dies else fake_jobs.Changed)(job)

    monkeypatch.setattr(compiling, "compiler", lambda configs: Processes(1))
    kernel = jit(add_one, fake_jobs.Steps(change))  # type: ignore[arg-type]
    described = tile.TensorArg(T.float32, (1 << 16,), (1,), 16)
    with pytest.warns(tile.TuningWarning, match="without a GPU"):
        report = tile.tune(kernel, described, configs=tile.Space(BLOCK=[64, 32]))
    assert [(r.status, r.reason) for r in report.rows] == [
        ("failed", "the compiling process was ended by SIGSEGV"), ("estimated", ""),
    ]  # fmt: skip
