"""A kernel that tunes itself: what is launched, how often it tunes, threads, processes, captures, overrides.

The measurer is a fake (``fake_tuning``); everything else is real. ``test_tuned_on_gpu`` measures.
"""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.runtime import launchers
from tests.runtime.fakes import cuda_tensor, jit
from tests.runtime.launchers import BOTH, launcher
from tests.tune.fake_tuning import Machine, Steps, machine
from tilejit import T

ROOT = Path(__file__).parent.parent.parent
CONFIGS = [tile.Config(BLOCK=b) for b in (256, 64, 128)]
"""The fake's costs are the blocks: 64 is the fastest."""


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))


@pytest.fixture(params=BOTH)
def box(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with launcher(request.param), machine() as made:
        yield made


def copies(X: T.Tensor(("N",)), Y: T.Tensor(("N",)), BLOCK: T.constexpr, n=3): ...


def dynamic(X: T.Tensor((T.dynamic("M"),)), n: T.int32 = 1, BLOCK: T.constexpr = 64): ...


def optional(X: T.Tensor((T.dynamic("M"),)) | None, Y, BLOCK: T.constexpr): ...


def steps() -> Steps:
    return Steps(block=(32,))


def tuned(function: Any = copies, configs: Any = CONFIGS, **options: Any) -> Any:
    return tile.autotune(configs, **options)(jit(function, steps()))


def blocks(k: Any) -> list[int]:
    """The ``BLOCK`` of each variant that was compiled, in order."""
    return [dict(s.args)["BLOCK"].value for s in k.kernel._steps.compiled]


def of_launch(k: Any, launch: Any) -> int:
    """The ``BLOCK`` that was launched: the recorder's cubins are numbered as they were compiled."""
    return blocks(k)[int(launch.function[1].split()[1]) - 1]


def xy(n: int = 8) -> tuple[Any, Any]:
    return cuda_tensor(n, address=0x1000), cuda_tensor(n, address=0x2000)


# --- choosing and launching


def test_the_fastest_is_launched_and_tuned_for_once(box: Machine) -> None:
    k = tuned()
    for _ in range(5):
        assert k(*xy()) is None
    assert box.tunings == 1 and box.measurements[0].closed
    assert [of_launch(k, launch) for launch in box.launches] == [64] * 5
    assert {launch.slots[:2] for launch in box.launches} == {(0x1000, 0x2000)}
    assert k.best(*xy()) == tile.Config(BLOCK=64)
    (report,) = k.reports
    assert report.source == "measured" and report.compiled == 3 and report.benchmarked == 3
    assert [row.status for row in report.rows] == ["measured"] * 3


def test_tuned_launches_go_by_the_launcher_of_the_kernel() -> None:
    with launcher("c"), machine() as box:
        if launchers._launcher is None:
            pytest.skip("the C launcher is not built")
        k, recorder = tuned(), box.gpu.recorder
        for _ in range(4):
            k(*xy())
        before = recorder.through_c  # type: ignore[attr-defined]
        k(*xy())
        assert recorder.through_c == before + 1  # type: ignore[attr-defined]
        assert of_launch(k, box.launches[-1]) == 64


def test_another_dtype_shape_or_alignment_is_tuned_for_itself(box: Machine) -> None:
    k = tuned()
    k(*xy())
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    k(*xy(16))
    k(cuda_tensor(8, dtype=torch.int32), cuda_tensor(8))
    k(cuda_tensor(8, address=0x1004), cuda_tensor(8))
    k(*xy())
    assert box.tunings == 4
    assert [of_launch(k, launch) for launch in box.launches] == [64, 256, 256, 256, 64]


def test_each_device_is_tuned_for_itself(box: Machine) -> None:
    k = tuned()
    k(*xy())
    k(cuda_tensor(8, ordinal=1), cuda_tensor(8, ordinal=1))
    assert [m.arguments["device"] for m in box.measurements] == [0, 1]


def test_dynamic_sizes_share_a_result_by_powers_of_two(box: Machine) -> None:
    k = tuned(dynamic)
    for m in (65, 128, 100, 65):
        k(cuda_tensor(m))
    assert box.tunings == 1 and len(k.doors.buckets) == 1
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    for m in (129, 65, 256, 128):
        k(cuda_tensor(m))
    assert box.tunings == 2
    assert [of_launch(k, launch) for launch in box.launches] == [64] * 4 + [256, 64, 256, 64]


def test_dtypes_of_one_dynamic_size_do_not_push_each_other_out(box: Machine) -> None:
    k = tuned(dynamic)
    a, b = cuda_tensor(8), cuda_tensor(8, dtype=torch.int32)
    for _ in range(2):
        k(a), k(b)
    slow = []
    k.tuned._launch = lambda *call: slow.append(call)
    for _ in range(3):
        k(a), k(b)
    assert not slow and box.tunings == 2


def test_named_values_are_tuned_for_each(box: Machine) -> None:
    k = tuned(dynamic, key=["n"])
    x = cuda_tensor(8)
    for n in (1, 2, 1, 2):
        k(x, n)
    assert box.tunings == 2
    free = tuned(dynamic)
    for n in (1, 2):
        free(x, n)
    assert box.tunings == 3
    assert [launch.slots[1] & 0xFF for launch in box.launches] == [1, 2, 1, 2, 1, 2]


def test_none_where_there_was_a_tensor(box: Machine) -> None:
    k = tuned(optional)
    x = cuda_tensor(8)
    for first, second in ((x, x), (None, x), (x, None), (x, 4), (None, x), (x, x)):
        k(first, second)
    assert box.tunings == 4 and len(box.launches) == 6


def test_arguments_by_name_in_any_order(box: Machine) -> None:
    k = tuned()
    x, y = xy()
    k(Y=y, X=x)
    k(n=4, X=x, Y=y)
    k(x, Y=y)
    assert box.tunings == 1
    assert {launch.slots[:2] for launch in box.launches} == {(0x1000, 0x2000)}


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda k: k(), "launch/missing-argument"),
        (lambda k: k(*xy(), q=1), "launch/unknown-argument"),
        (lambda k: k(*xy(), 64, 3, 9), "launch/too-many-arguments"),
        (lambda k: k(cuda_tensor(8), 3.0), "launch/tensor"),
    ],
)
def test_a_wrong_call_says_what_a_kernel_says(box: Machine, call: Any, code: str) -> None:
    k = tuned()
    for _ in range(2):
        with pytest.raises(tile.LaunchError) as found:
            call(k)
        assert code in found.value.codes
        k(*xy())


# --- grids


def test_grids_may_depend_on_the_config(box: Machine) -> None:
    k = tuned(configs=[tile.Config(BLOCK=b) for b in (256, 64, 128)])
    for _ in range(3):
        k[lambda a: 1024 // a["BLOCK"]](*xy())
    assert {launch.grid for launch in box.launches} == {(16, 1, 1)} and box.tunings == 1
    assert box.measurements[0].grids == {0: (4, 1, 1), 1: (16, 1, 1), 2: (8, 1, 1)}
    k[(2, 3)](*xy())
    k[2, 3](*xy())
    k[[2, 3]](*xy())
    assert box.launches[-1].grid == (2, 3, 1) and box.tunings == 2
    assert k[2, 3].best(*xy()) == tile.Config(BLOCK=64)


def test_functions_written_in_place_are_one_grid_while_they_are_alike(box: Machine) -> None:
    k = tuned(dynamic)

    def call(m: int) -> None:
        k[lambda a: m // a["BLOCK"]](cuda_tensor(m))

    for m in (1024, 1024, 1000, 640):
        call(m)
    assert [launch.grid[0] for launch in box.launches] == [16, 16, 15, 10]
    assert len(k._entries) == 3 and box.tunings == 1


def test_one_grid_function_serves_several_configs(box: Machine) -> None:
    k, grid = tuned(), lambda a: 1024 // a["BLOCK"]
    x, y = xy(8), xy(16)
    k[grid](*x), k[grid](*x)
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    for _ in range(3):
        k[grid](*y), k[grid](*x)
    assert [launch.grid[0] for launch in box.launches] == [16, 16] + [4, 16] * 3
    slow = []
    k.tuned._launch = lambda *call: slow.append(call)
    k[grid](*x), k[grid](*y)
    assert not slow


def test_a_grid_that_grows(box: Machine) -> None:
    k = tuned(dynamic)
    grid = lambda a: a["X"].shape[0] // 8
    for m in (900, 1024, 1000, 600):
        k[grid](cuda_tensor(m))
    assert [launch.grid[0] for launch in box.launches] == [112, 128, 125, 75]
    assert box.tunings == 1


def test_the_launch_belongs_to_the_configs(box: Machine) -> None:
    with pytest.raises(tile.TuneError, match="part of its configs"):
        tuned()[T.cuda.LaunchConfig(grid=1, block=32)](*xy())
    k = tuned(configs=[tile.Config(BLOCK=64, block=96, cluster=2), tile.Config(BLOCK=128)])
    k(*xy())
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    k(*xy(16))
    assert [(x.fixed.block, x.fixed.cluster) for x in box.launches] == [
        ((96, 1, 1), (2, 1, 1)), ((32, 1, 1), None),
    ]  # fmt: skip


# --- what a caller gives


def test_a_tuned_value_in_the_call_narrows_the_choice(box: Machine) -> None:
    space = tile.Space(BLOCK=[64, 128], STAGES=[2, 3])

    def k(X: T.Tensor(("N",)), BLOCK: T.constexpr, STAGES: T.constexpr): ...

    box.cost = lambda values: (values["BLOCK"] + values["STAGES"]) * 1e-6
    k = tuned(k, space)
    x = cuda_tensor(8)
    for _ in range(2):
        k(x)
        k(x, BLOCK=128)
        k(x, BLOCK=128, STAGES=3)
        k(x, 64, 9)
    assert box.tunings == 2
    chosen = [dict(s.args) for s in k.kernel._steps.compiled]
    of = [chosen[int(x.function[1].split()[1]) - 1] for x in box.launches]
    values = [(c["BLOCK"].value, c["STAGES"].value) for c in of]
    assert values == [(64, 2), (128, 2), (128, 3), (64, 9)] * 2
    with pytest.raises(tile.TuneError, match="no config has BLOCK=32") as found:
        k(x, BLOCK=32)
    assert found.value.codes == ("tune/override",) and "STAGES" in str(found.value)


def test_heuristics_are_computed_for_every_call(box: Machine) -> None:
    def even(X: T.Tensor(("N",)), n: T.int32, BLOCK: T.constexpr, EVEN: T.constexpr): ...

    k = tuned(even, heuristics={"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
    x = cuda_tensor(8)
    for n in (64, 65, 64, 128, 256, 65):
        k(x, n)
    compiled = [dict(s.args) for s in k.kernel._steps.compiled]
    launched = [compiled[int(x.function[1].split()[1]) - 1] for x in box.launches]
    assert [c["EVEN"].value for c in launched] == [True, False, True, True, True, False]
    assert box.tunings == 4, "none, 64 alone, 64 and 128, and all three divide n"
    slow = []
    k.tuned._launch = lambda *call: slow.append(call)
    for n in (64, 65, 128):
        k(x, n)
    assert not slow


def test_configs_may_be_a_function_of_the_arguments(box: Machine) -> None:
    k = tuned(dynamic, lambda a: [tile.Config(BLOCK=b) for b in (32, 64) if b <= a["X"].numel()])
    k.kernel.params  # BLOCK has a default; the function gives it all the same
    k(cuda_tensor(100))
    k(cuda_tensor(40))
    assert [of_launch(k, launch) for launch in box.launches] == [32, 32]
    assert box.tunings == 1, "one config is left for 40 elements: there is nothing to measure"


# --- failures


def test_configs_that_fail_are_skipped_with_their_reasons(box: Machine) -> None:
    reasons = {64: "CUDA_ERROR_ILLEGAL_ADDRESS", 128: "took longer than 10 s"}
    box.cost = lambda values: reasons.get(values["BLOCK"], 1e-6)
    configs = [*CONFIGS, tile.Config(BLOCK=512, block=0)]
    k = tuned(configs=configs, prune=lambda c, a: "too large" if c["BLOCK"] > 256 else False)
    k(*xy())
    assert of_launch(k, box.launches[0]) == 256
    rows = k.reports[0].rows
    assert [(r.status, r.reason) for r in rows] == [
        ("measured", ""), ("failed", reasons[64]), ("failed", reasons[128]), ("pruned", "too large"),
    ]  # fmt: skip


def test_a_config_that_does_not_compile_is_skipped() -> None:
    class Broken(Steps):
        def compile(self, kernel: Any, lowered: Any, signature: Any, *rest: Any) -> Any:
            block = dict(signature.args)["BLOCK"].value
            if block == 64:
                raise tile.CompileError(tile.Diagnostic("nvrtc/error", "ptxas says no"))
            if block == 128:
                raise RuntimeError("out of threads")
            return super().compile(kernel, lowered, signature, *rest)

    with machine() as box:
        k = tile.autotune(CONFIGS)(jit(copies, Broken()))
        k(*xy())
    assert [r.reason for r in k.reports[0].rows] == [
        "", "nvrtc/error: ptxas says no", "RuntimeError: out of threads",
    ]  # fmt: skip


def test_none_left_is_an_error_with_all_reasons(box: Machine) -> None:
    box.cost = lambda values: f"reason {values['BLOCK']}"
    k = tuned(prune=lambda c, a: c["BLOCK"] == 128)
    for _ in range(2):
        with pytest.raises(tile.TuneError) as found:
            k(*xy())
        assert found.value.codes == ("tune/none-left",)
        for told in ("reason 256", "reason 64", "refused by prune", "BLOCK=128"):
            assert told in str(found.value)
    assert not box.launches and not k.reports
    box.cost = lambda values: 1e-6
    k(*xy())
    assert len(box.launches) == 1


def test_outputs_are_compared(box: Machine) -> None:
    box.output = lambda values: values["BLOCK"] == 64
    k = tuned()
    k(*xy())
    assert of_launch(k, box.launches[0]) == 128 and "Y[0] is True" in k.reports[0].rows[1].reason
    by_reference = tuned(reference=lambda X: X, store=False)
    box.output = lambda values: values["BLOCK"] != 256
    by_reference(*xy())
    assert of_launch(by_reference, box.launches[-1]) == 256
    assert box.measurements[-1].arguments["reference"] is not None


def test_an_interrupt_leaves_nothing_behind(box: Machine, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    box.during = interrupt
    k = tuned()
    with pytest.raises(KeyboardInterrupt):
        k(*xy())
    assert box.measurements[0].closed and not list(tmp_path.rglob("*.json"))
    assert not k.reports and not k._running
    box.during = lambda: None
    k(*xy())
    assert len(box.launches) == 1


def test_a_reference_that_calls_the_tuned_kernel_is_told_so(box: Machine) -> None:
    k = tuned()
    box.during = lambda: k(*xy())
    with pytest.raises(tile.TuneError, match="while it is tuned") as found:
        k(*xy())
    assert found.value.codes == ("tune/recursion",)


# --- once


def test_threads_tune_once(box: Machine) -> None:
    k, barrier, errors = tuned(), threading.Barrier(4), []
    box.during = lambda: time.sleep(0.02)

    def work() -> None:
        try:
            barrier.wait()
            for n in (8, 16):
                k(*xy(n))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and box.tunings == 2 and len(box.launches) == 8
    assert {of_launch(k, launch) for launch in box.launches} == {64}


def test_waiting_threads_go_on_when_the_one_that_tunes_is_interrupted(box: Machine) -> None:
    k, tuning, told = tuned(), threading.Event(), []

    def first_is_interrupted() -> None:
        if box.tunings == 1:
            tuning.set()
            time.sleep(0.05)
            raise KeyboardInterrupt

    box.during = first_is_interrupted

    def work() -> None:
        try:
            k(*xy())
        except KeyboardInterrupt:
            told.append("interrupted")

    first, second = threading.Thread(target=work), threading.Thread(target=work)
    first.start()
    tuning.wait()
    second.start()
    first.join(), second.join()
    assert told == ["interrupted"] and box.tunings == 2 and len(box.launches) == 1


PROGRAM = """
import sys, time; sys.path.insert(0, {root!r})
from tests.tune.test_autotune import *
with machine() as box:
    box.during = lambda: (print("tuning", flush=True), time.sleep({seconds}))
    k = tuned()
    k(*xy())
    print(box.tunings, of_launch(k, box.launches[0]), blocks(k), k.reports[0].source, flush=True)
"""


def process(directory: Path, seconds: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "TILEJIT_CACHE_DIR": str(directory)}
    command = [sys.executable, "-c", PROGRAM.format(root=str(ROOT), seconds=seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_tune_once_and_the_second_compiles_nothing_else(tmp_path: Path) -> None:
    with process(tmp_path, 600) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == "tuning\n"
        started = [process(tmp_path, 0.02) for _ in range(2)]
        killed.send_signal(signal.SIGKILL)
    told = sorted(p.communicate()[0].strip().splitlines()[-1] for p in started)
    assert told == ["0 64 [64] from disk", "1 64 [256, 64, 128] measured"]


def test_a_stored_result_is_for_one_device_and_these_configs(box: Machine) -> None:
    tuned()(*xy())
    again = tuned()
    again(*xy())
    assert box.tunings == 1 and again.reports[0].source == "from disk"
    assert again.reports[0].compiled == 3, "of the tuning itself"
    assert blocks(again) == [64]
    tuned(configs=CONFIGS[:2])(*xy())
    tuned(store=False)(*xy())
    assert box.tunings == 3


def test_tune_measures_anew_and_later_calls_follow(box: Machine) -> None:
    k = tuned()
    k(*xy()), k(*xy())
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    report = k.tune(*xy())
    assert report.best.config == "BLOCK=256" and len(box.launches) == 2
    k(*xy())
    assert of_launch(k, box.launches[-1]) == 256
    assert tuned().best(*xy()) == tile.Config(BLOCK=256), "stored"
    assert box.tunings == 2


# --- captures


def test_a_cold_call_in_a_capture_is_refused_before_cuda(box: Machine) -> None:
    k = tuned()
    box.gpu.capturing = True
    limits = box.gpu.recorder.limits
    box.gpu.recorder.limits = lambda device: pytest.fail("the driver was asked")  # type: ignore[method-assign, assignment]
    for entry in (k, k[4]):
        for call in (entry, entry.best, entry.bind, entry.tune):
            with pytest.raises(tile.TuneError) as found:
                call(*xy())
            assert found.value.codes == ("tune/capture",)
    assert box.tunings == 0 and not box.gpu.recorder.loaded and not box.launches
    box.gpu.recorder.limits = limits  # type: ignore[method-assign]
    box.gpu.capturing = False
    k(*xy())
    box.gpu.capturing = True
    k(*xy())
    with pytest.raises(tile.TuneError):
        k(*xy(16))
    assert len(box.launches) == 2 and box.tunings == 1


# --- outside values, copies, the rest of the interface

FACTOR = 1


def reads(X: T.Tensor(("N",)), BLOCK: T.constexpr):
    return FACTOR


def test_a_changed_global_is_another_tuning(box: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    k, x = tuned(reads), cuda_tensor(8)
    k(x), k(x)
    monkeypatch.setitem(globals(), "FACTOR", 2)
    box.cost = lambda values: 1e-3 - values["BLOCK"] * 1e-6
    k(x), k(x)
    assert box.tunings == 2
    assert [of_launch(k, launch) for launch in box.launches] == [64, 64, 256, 256]


def test_bind_and_check(box: Machine) -> None:
    k = tuned()
    bound = k.bind(*xy())
    bound(), bound()
    assert [of_launch(k, launch) for launch in box.launches] == [64, 64]
    variant = k.check(*xy())
    assert dict(variant.signature.args)["BLOCK"].value == 256, "the first that keeps its contracts"
    with pytest.raises(tile.TuneError) as found:
        tuned(configs=[tile.Config(BLOCK=1, block=0)]).check(*xy())
    assert found.value.codes == ("tune/none-left",)


@tile.autotune([tile.Config(BLOCK=32), tile.Config(BLOCK=64)])
@tile.jit
def module_level(X: T.Tensor(("N",), "float32"), BLOCK: T.constexpr):
    """X += 1."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=T.ceildiv(X.shape[0], BLOCK), block=BLOCK))
    i = T.cuda.block_idx() * BLOCK + T.cuda.thread_idx()
    if i < X.shape[0]:
        X[i] = X[i] + 1.0


def test_a_tuned_kernel_is_an_object_like_its_kernel() -> None:
    assert module_level.__doc__ == "X += 1." and module_level.__name__ == "module_level"
    assert copy.deepcopy(module_level) is module_level
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert "module_level" in repr(module_level) and module_level.kernel.params


def test_what_autotune_is_given() -> None:
    with pytest.raises(tile.TuneError, match="above @tile.jit"):
        tile.autotune(CONFIGS)(copies)  # type: ignore[arg-type]
    with pytest.raises(tile.TuneError, match="did you mean 'BLOCK'"):
        tuned(configs=[tile.Config(BLOC=64)])
    with pytest.raises(tile.TuneError, match="no configs"):
        tuned(configs=[])


def test_the_function_form(box: Machine) -> None:
    kernel = jit(copies, steps())
    report = tile.tune(kernel, *xy(), configs=CONFIGS, timeout_s=None, n=4)
    assert report.best.config == "BLOCK=64" and not box.launches
    assert box.measurements[0].arguments["timeout_s"] is None
    assert box.measurements[0].arguments["values"]["n"] == 4
    again = tile.tune(kernel, *xy(), configs=CONFIGS, n=4)
    assert again.source == "from disk" and box.tunings == 1
    tile.tune(kernel[lambda a: a["BLOCK"]], *xy(), configs=CONFIGS)
    tile.tune(kernel[8], *xy(), configs=CONFIGS)
    assert box.measurements[1].grids[0] == (256, 1, 1) and box.measurements[2].grids[0] == (8, 1, 1)
    with pytest.raises(tile.TuneError, match="part of its configs"):
        tile.tune(kernel[T.cuda.LaunchConfig(grid=1, block=32)], *xy(), configs=CONFIGS)

    def named(X: T.Tensor(("N",)), store: T.int32, BLOCK: T.constexpr): ...

    with pytest.raises(tile.TuneError, match="both a parameter of named"):
        tile.tune(jit(named, steps()), cuda_tensor(8), configs=CONFIGS, store=3)


def test_the_budget_and_progress_reach_the_search(
    box: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    tuned(progress=True)(*xy())
    shown = capsys.readouterr().err
    assert "tuning copies" in shown and "BLOCK=64" in shown
    k = tuned(budget_s=0.0, store=False)
    k(*xy(16))
    assert k.reports[0].best.status in ("not measured", "measured") and not capsys.readouterr().err


# --- without a GPU


def test_on_the_cpu_a_model_ranks_says_so_once_and_nothing_is_stored(tmp_path: Path) -> None:
    k = tile.autotune([tile.Config(BLOCK=32), tile.Config(BLOCK=64), tile.Config(BLOCK=4096)])(
        module_level.kernel
    )
    x = torch.zeros(100)
    with pytest.warns(tile.TuningWarning, match="without a GPU") as told:
        k(x)
    assert told[0].filename == __file__
    k(x)
    assert torch.equal(x, torch.full((100,), 2.0))
    k(torch.zeros(300))
    assert {r.source for r in k.reports} == {"estimated by the model"} and len(k.reports) == 2
    assert k.reports[0].rows[2].status == "pruned"
    assert not list(tmp_path.rglob("*.json"))


def test_described_arguments_are_ranked_by_the_model() -> None:
    with pytest.warns(tile.TuningWarning):
        described = tile.TensorArg(T.float32, (1 << 20,), (1,), 16)
        report = tile.tune(module_level.kernel, described, configs=tile.Space(BLOCK=[32, 1024]))
    assert report.estimated and report.best.config == "BLOCK=1024"


# --- ranks


def test_a_group_of_one_tunes_as_one_process(box: Machine) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        k = tuned(group=True)
        k(*xy()), k(*xy())
        again = tuned(group=True)
        again(*xy())
    finally:
        dist.destroy_process_group()
    assert box.tunings == 1 and again.reports[0].source == "from disk"
    assert [of_launch(k, launch) for launch in box.launches[:2]] == [64, 64]


def test_a_rank_tunes_its_share(box: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``ranks`` asks of a tuning: rows for all configs, a choice among the share, None where none works."""
    from tilejit.tune import ranks

    box.cost = lambda values: "breaks" if values["BLOCK"] == 64 else values["BLOCK"] * 1e-6
    seen = []

    def together(group: Any, identity: str, count: int, tune: Any, known: Any) -> Any:
        assert group == "the group" and len(identity) == 64 and known is None
        seen.extend((tune(range(0, count, 2)), tune(range(1, count, 2))))
        return seen[-2]

    monkeypatch.setattr(ranks, "tune_together", together)
    k = tuned(group="the group")
    k(*xy())
    even, odd = seen
    assert [row.status for row in even.rows] == ["measured", "not measured", "measured"]
    assert [row.status for row in odd.rows] == ["not measured", "failed", "not measured"]
    assert even.chosen == 2 and odd.chosen is None
    assert of_launch(k, box.launches[0]) == 128
    pruned = tuned(group="the group", prune=lambda c, a: True)
    with pytest.raises(tile.TuneError) as found:
        pruned(*xy(16))
    assert found.value.codes == ("tune/none-left",)


def test_decorating_a_kernel_does_not_bring_torch() -> None:
    program = (
        "import sys, tilejit as tile; from tilejit.kernels.add import add_vectors\n"
        "tile.autotune(tile.Space(opcode=['a', 'b']))(add_vectors)\n"
        "assert callable(tile.tune) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
