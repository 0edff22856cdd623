"""Measuring in another process: what it is told, what happens when it hangs, breaks or cannot; comparing.

The process is the real one, with a GPU whose memory is files. On a real GPU: kernels that really hang."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda.bindings import nvrtc

from tests.conftest import need_gpu
from tests.runtime.fakes import Steps, jit
from tests.tune.fake_device import FakeDevice, FakeKernel
from tilejit.errors import LaunchError, TuneError, fault
from tilejit.language import T
from tilejit.runtime import saved
from tilejit.tune import isolated, measuring, worker
from tilejit.tune.isolated import Isolated, MeasuringRefused, WorkerProcess
from tilejit.tune.measuring import Measurement
from tilejit.tune.search import ConfigFailed
from tilejit.tune.staging import lay_out

COMMAND = (sys.executable, "-P", "-m", "tests.tune.fake_worker")
N = 64
PACK = saved.pack


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A variant's saved form is here what the fake GPU loads. No process is left behind."""
    monkeypatch.setattr(saved, "pack", pickle.dumps)
    yield
    isolated.close_waiting()


def measured(
    folder: Path,
    written: tuple[str, ...] = ("out",),
    read: tuple[str, ...] = ("x", "y"),
    reference: Callable[..., Any] | None = None,
    timeout_s: float | None = 30.0,
    device: FakeDevice | None = None,
    compared: tuple[str, ...] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    **options: Any,
) -> Measurement:
    tensors = tensors or {
        n: torch.full((N,), v) for n, v in zip(("out", "x", "y"), (5.0, 1.0, 2.0))
    }
    layout = lay_out((*tensors, "n"), {**tensors, "n": N}, written, read)
    return Measurement(
        device or FakeDevice(folder), layout, compared or written, reference, None, timeout_s,
        scalars={"n": N}, command=COMMAND, **options,
    )  # fmt: skip


def add_all(measure: Measurement, *names: str, seconds: float = 1e-3) -> None:
    for candidate, does in enumerate(names):
        measure.add(candidate, FakeKernel(does, seconds * (candidate + 1)))


def process_of(measure: Measurement) -> WorkerProcess:
    backend = measure._backend
    assert isinstance(backend, Isolated) and backend._worker is not None
    return backend._worker


# --- what goes right


def test_the_real_process_answers() -> None:
    """What it unpickles and sends are the classes that we know, not those of its ``__main__``."""
    process = isolated.take(isolated.COMMAND)
    nothing: Any = None  # it is not reached
    process.send(worker.Open(b"no such GPU     ", b"", nothing))
    reply = process.receive(30.0)
    process.kill()
    assert isinstance(reply, worker.Refused) and reply.reason


def test_trials_and_samples_by_another_process(tmp_path: Path) -> None:
    measure = measured(tmp_path)
    add_all(measure, "add", "add")
    assert measure.trial(0).seconds == pytest.approx(1e-3)
    measure.trial(1)
    assert measure.differs(1, 0) is None
    samples = measure.sample([0, 1], 4)
    assert samples == {0: [pytest.approx(1e-3)] * 4, 1: [pytest.approx(2e-3)] * 4}
    assert measure.notes == () and process_of(measure).process.pid != os.getpid()
    measure.close()


def test_a_worker_serves_the_next_tuning_and_holds_nothing_meanwhile(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    first = measured(tmp_path, device=device)
    add_all(first, "add")
    first.trial(0)
    process = process_of(first).process
    first.close()
    assert not device._blocks
    second = measured(tmp_path, device=device)
    add_all(second, "add_half")
    second.trial(0)
    assert process_of(second).process is process
    second.close()


def test_two_tunings_at_once_have_a_process_each(tmp_path: Path) -> None:
    one, two = measured(tmp_path), measured(tmp_path)
    assert process_of(one).process.pid != process_of(two).process.pid
    one.close()
    two.close()


def test_without_a_time_limit_there_is_no_other_process(tmp_path: Path) -> None:
    measure = measured(tmp_path, timeout_s=None)
    add_all(measure, "add", "refused")
    measure.trial(0)
    assert measure.sample([0], 2) == {0: [pytest.approx(1e-3)] * 2}
    with pytest.raises(ConfigFailed, match="INVALID_VALUE"):
        measure.trial(1)
    assert not isinstance(measure._backend, Isolated) and measure.notes == ()
    measure.close()


def test_the_worker_imports_no_torch_and_no_frontend() -> None:
    script = (
        "import sys, tilejit.tune.worker; "
        "print([m for m in sys.modules if m == 'torch' or m.startswith('tilejit.frontend')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


# --- what goes wrong


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("hang", "did not end within 0.5 s"), ("die", "SIGKILL"), ("trap", "ILLEGAL_ADDRESS"),
        ("fall", "ZeroDivisionError: a defect"),
    ],
)  # fmt: skip
def test_a_candidate_that_takes_its_process_with_it_fails_alone(
    tmp_path: Path, does: str, reason: str
) -> None:
    measure = measured(tmp_path, timeout_s=0.5)
    add_all(measure, "add", does, "add")
    measure.trial(0)
    lost = process_of(measure).process
    with pytest.raises(ConfigFailed, match=reason) as failed:
        measure.trial(1)
    assert failed.value.candidate == 1
    assert lost.poll() is not None, "dead, and waited for"
    measure.trial(2)
    assert measure.differs(2, 0) is None
    assert set(measure.sample([0, 2], 1)) == {0, 2}, "what had its trial before is known anew"
    measure.close()


def test_a_failing_launch_costs_no_process(tmp_path: Path) -> None:
    measure = measured(tmp_path)
    add_all(measure, "refused", "add")
    with pytest.raises(ConfigFailed, match="CUDA_ERROR_INVALID_VALUE"):
        measure.trial(0)
    process = process_of(measure)
    measure.trial(1)
    assert process_of(measure) is process
    measure.close()


def test_whose_turn_it_was_in_a_sample_is_whose_fault_it_is(tmp_path: Path) -> None:
    measure = measured(tmp_path, timeout_s=0.5)
    add_all(measure, "add", "add", "hang")
    measure.trial(0)
    measure.trial(1)
    backend = measure._backend
    assert isinstance(backend, Isolated)
    backend._seconds[2] = 1e-3  # as if its trial had gone well
    with pytest.raises(ConfigFailed) as failed:
        measure.sample([0, 1, 2], 2)
    assert failed.value.candidate == 2
    measure.close()


def test_a_worker_that_waits_and_dies_is_replaced(tmp_path: Path) -> None:
    first = measured(tmp_path)
    add_all(first, "add")
    first.trial(0)
    process = process_of(first).process
    first.close()
    process.kill()
    process.wait()
    second = measured(tmp_path)
    add_all(second, "add")
    second.trial(0)
    second.close()


def test_a_worker_that_closes_just_when_it_is_taken_is_replaced(tmp_path: Path) -> None:
    first = measured(tmp_path)
    add_all(first, "add")
    first.trial(0)
    process = process_of(first).process
    os.kill(process.pid, signal.SIGSTOP)  # it does not read what comes next
    first._backend._worker, waiting = None, process_of(first)  # type: ignore[union-attr]
    first.close()
    isolated.give(COMMAND, waiting)
    second = measured(tmp_path)
    assert process_of(second) is waiting
    process.kill()
    add_all(second, "add")
    assert second.trial(0).seconds == pytest.approx(1e-3)
    assert second.notes == () and process_of(second) is not waiting
    second.close()


def test_no_process_can_be_started(tmp_path: Path) -> None:
    measure = Measurement(
        FakeDevice(tmp_path), lay_out((), {}, (), ()), (), None, None, 1.0, scalars={},
        command=[str(tmp_path / "absent")],
    )  # fmt: skip
    assert "no process can be started" in measure.notes[0]
    measure.close()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_request_leaves_no_reply_for_the_next_one(
    interruption: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the keyboard, or by what a signal handler of the user's raises."""
    measure = measured(tmp_path)
    add_all(measure, "add", "add")
    measure.trial(0)
    process = process_of(measure)

    def interrupted(timeout_s: float) -> Any:
        raise interruption

    monkeypatch.setattr(process, "receive", interrupted)
    with pytest.raises(interruption):
        measure.trial(1)
    assert process.process.poll() is not None
    assert measure.trial(1).seconds == pytest.approx(2e-3)
    measure.close()


def test_a_worker_ends_when_nobody_asks(tmp_path: Path) -> None:
    script = (
        "import sys; from multiprocessing.connection import Connection; "
        "from tilejit.tune.worker import Worker; "
        "Worker(Connection(int(sys.argv[1])), lambda identity: None).serve(idle_seconds=0.1)"
    )
    worker = WorkerProcess([sys.executable, "-c", script])
    assert worker.process.wait(30) == 0
    worker.kill()


def test_a_worker_ends_with_its_parent_even_while_a_kernel_hangs(tmp_path: Path) -> None:
    script = f"""
import os, pickle
from pathlib import Path
from tests.tune.test_isolated import measured, add_all, process_of, saved
saved.pack = pickle.dumps
measure = measured(Path({str(tmp_path)!r}))
add_all(measure, "add", "hang")
measure.trial(0)
pid = process_of(measure).process.pid
measure._backend._load(process_of(measure), 0)
measure._hand_over([1])
measure._backend._load(process_of(measure), 1)
from tilejit.tune.worker import DoTrial
process_of(measure).send(DoTrial(1))
if os.fork() == 0:  # holds the other end of the socket, as a loader's worker would
    import time
    os.close(1)
    os.close(2)
    time.sleep(5)
    os._exit(0)
print(pid, flush=True)
os._exit(0)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    pid = int(told.stdout)
    deadline = time.monotonic() + 4
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


# --- where no other process can measure


@pytest.mark.parametrize(
    ("folder", "reason"), [("elsewhere", "does not see that GPU"), ("no-ipc", "NOT_SUPPORTED")]
)
def test_a_process_that_cannot_is_done_without_and_the_report_says_so(
    tmp_path: Path, folder: str, reason: str
) -> None:
    (tmp_path / folder).mkdir()
    measure = measured(tmp_path / folder)
    add_all(measure, "add", "add")
    measure.trial(0)
    measure.trial(1)
    assert measure.differs(1, 0) is None and set(measure.sample([0, 1], 1)) == {0, 1}
    (note,) = measure.notes
    assert "in this process, without a time limit" in note and reason in note
    measure.close()


def test_a_process_that_does_not_start_is_done_without(tmp_path: Path) -> None:
    measure = measured(tmp_path)
    measure.close()
    isolated.close_waiting()
    opening = worker.Open(b"", b"", lay_out([], {}, (), ()).arguments)
    broken = Isolated(opening, 30.0, [sys.executable, "-c", "import sys; sys.exit('no such room')"])
    broken.load(0, b"", None)
    with pytest.raises(MeasuringRefused, match="ended with status 1: no such room"):
        broken.trial(0)
    broken.close()


def test_a_process_that_cannot_be_replaced_is_done_without_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had its trial there is sampled here."""
    measure = measured(tmp_path)
    add_all(measure, "add", "add", "die")
    assert [measure.trial(n).seconds for n in (0, 1)] == pytest.approx([1e-3, 2e-3])
    with pytest.raises(ConfigFailed):
        measure.trial(2)

    def none_left(command: Any) -> WorkerProcess:
        raise OSError("no process is left")

    monkeypatch.setattr(isolated, "take", none_left)
    assert set(measure.sample([0, 1], 1)) == {0, 1}
    (note,) = measure.notes
    assert "in this process" in note and "no process is left" in note
    measure.close()


def test_a_measurement_that_cannot_begin_holds_nothing(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    layout = lay_out(["x"], {"x": torch.zeros(4)}, (), ("x",))

    def failing(target: int, source: int, nbytes: int) -> None:
        raise fault(LaunchError, "launch/driver", "cuMemcpyDtoDAsync failed")

    device.copy = failing  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="cuMemcpyDtoDAsync"):
        Measurement(device, layout, (), None, None, None, scalars={})
    assert not device._blocks and device.told == [("released",)]


def test_memory_that_cannot_be_exported(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    device.exportable = False
    measure = measured(tmp_path, device=device)
    add_all(measure, "add")
    measure.trial(0)
    assert "cuIpcGetMemHandle failed" in measure.notes[0]
    measure.close()


def test_a_kernel_that_follows_addresses_runs_on_the_users_tensors_which_are_put_back(
    tmp_path: Path,
) -> None:
    tensors = {n: torch.full((N,), v) for n, v in zip(("out", "x", "y"), (5.0, 1.0, 2.0))}
    names = tuple(tensors)
    measure = measured(tmp_path, names, names, tensors=tensors, at_home=True)
    add_all(measure, "add_into")
    measure.trial(0)
    assert tensors["out"].eq(6.0).all()
    measure.close()
    assert tensors["out"].eq(5.0).all() and "follows addresses" in measure.notes[0]


# --- comparing


def test_outputs_are_compared_and_shared_where_they_are_the_same(tmp_path: Path) -> None:
    measure = measured(tmp_path, timeout_s=None)
    add_all(measure, "add", "add_half", "add_wrong", "add")
    for candidate in range(4):
        measure.trial(candidate)
    assert measure.differs(3, 0) is None and measure._outputs[3] is measure._outputs[0]
    assert measure.differs(1, 0) == (
        "out[32] is nan, expected 3.0; 32 of 64 elements differ by more than 0.0001 of magnitude and rms"
    )
    wrong = measure.differs(2, 0)
    assert wrong is not None and wrong.startswith("out[63] is 4.0, expected 3.0; 1 of 64")
    measure.close()


def test_outputs_go_to_the_host_where_the_gpu_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(tmp_path)
    measure = measured(tmp_path, timeout_s=None, device=device)
    moved: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor) or tensor)
    add_all(measure, "add", "add_wrong")
    measure.trial(0)
    assert not moved
    device._free = 0
    measure.trial(1)
    assert len(moved) == 1 and measure.differs(1, 0) is not None
    measure.close()


@pytest.mark.parametrize(
    "reference",
    [
        lambda x, y: x + y,
        lambda x, y: {"out": (x + y).double()},
        lambda out, x, y: out.copy_(x + y) is None or None,
        lambda **named: [named["x"][: named["n"]] + named["y"]],
    ],
    ids=["returned", "by name", "in place", "scalars too"],
)  # fmt: skip
def test_a_reference_decides(tmp_path: Path, reference: Callable[..., Any]) -> None:
    measure = measured(tmp_path, timeout_s=None, reference=reference)
    add_all(measure, "add", "add_wrong")
    for candidate in range(2):
        measure.trial(candidate)
    assert measure.differs(0, None) is None
    assert "expected 3.0" in str(measure.differs(1, None))
    assert not measure._outputs, "nothing needs to be kept"
    measure.close()


def test_a_reference_starts_from_the_poison_that_trials_start_from(tmp_path: Path) -> None:
    def half(out: Any, x: Any, y: Any) -> None:
        out[:32] = (x + y)[:32]

    measure = measured(tmp_path, timeout_s=None, reference=half)
    add_all(measure, "add_half", "add")
    measure.trial(0)
    measure.trial(1)
    assert measure.differs(0, None) is None
    assert "out[32] is 3.0, expected nan" in str(measure.differs(1, None))
    measure.close()


def test_an_in_place_reference_is_applied_once_to_the_same_contents(tmp_path: Path) -> None:
    tensors = {n: torch.full((N,), v) for n, v in zip(("out", "x", "y"), (5.0, 1.0, 2.0))}
    measure = measured(
        tmp_path, ("out",), ("out", "x"), timeout_s=None, tensors=tensors,
        reference=lambda out, x: out + x,
    )  # fmt: skip
    add_all(measure, "add_into", "add_into")
    for candidate in range(2):
        measure.trial(candidate)
        assert measure.differs(candidate, None) is None
    assert tensors["out"].eq(5.0).all()
    measure.close()


def test_what_counts_can_be_named(tmp_path: Path) -> None:
    measure = measured(tmp_path, ("out", "y"), ("x", "y"), timeout_s=None, compared=("y",))
    add_all(measure, "add", "add_wrong")
    measure.trial(0)
    measure.trial(1)
    assert measure.differs(1, 0) is None
    measure.close()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda x, z: x, "takes z; the call has n, out, x, y"),
        (lambda x: (x, x), "expected 1 tensors: out"),
        (lambda x: 3, "returns 3, expected 1 tensors: out"),
        (lambda x: {"x": x}, "returns x, expected 1 tensors: out"),
    ],
)
def test_a_wrong_reference_is_no_fault_of_a_config(
    tmp_path: Path, reference: Callable[..., Any], message: str
) -> None:
    measure = measured(tmp_path, timeout_s=None, reference=reference)
    add_all(measure, "add")
    with pytest.raises(TuneError, match=message) as failed:
        measure.trial(0)
    assert failed.value.codes == ("tune/reference",)
    measure.close()


# --- on a GPU

TEXTS = {
    "twice": "X[i] *= 2.0f;",
    "thrice": "X[i] *= 3.0f;",
    "hang": "while (((volatile float*)FLAG)[i] == 0.0f) {}",
    "illegal": "((volatile float*)8)[i] = 1.0f;",
    "trap": "__trap();",
}


def scale(X: Any, FLAG: Any) -> None: ...


# Not as strings, which the fake steps do not evaluate.
scale.__annotations__ = dict.fromkeys(("X", "FLAG"), T.Tensor((64,), "float32"))


class Compiled(Steps):
    """The runtime tests' steps, with a real cubin of CUDA text: what no contract would let through."""

    text = ""

    def compile(self, kernel: Any, lowered: Any, signature: Any, options: Any, check: Any) -> Any:
        made = super().compile(kernel, lowered, signature, options, check)
        source = (
            'extern "C" __global__ void scale(float* X, float* FLAG) '
            "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < 64) { %s } }" % self.text
        )
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"scale.cu", 0, [], [])
        arch = f"-arch={signature.target}".encode()
        assert not nvrtc.nvrtcCompileProgram(program, 1, [arch])[0]
        cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return replace(made, cubin=cubin)


def variant_of(name: str, *tensors: torch.Tensor, target: str | None = None) -> Any:
    steps = Compiled()
    steps.text = TEXTS[name]
    return jit(scale, steps).compile(*tensors, target=target)


def test_the_kernels_for_a_gpu_are_compiled_and_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "pack", PACK)
    variant = variant_of("hang", torch.zeros(64), torch.zeros(64), target="sm_90a")
    assert saved.unpack(saved.pack(variant)).artifact.entry == "scale"


@pytest.mark.gpu
@pytest.mark.parametrize("bad", ["hang", "illegal", "trap"])
def test_kernels_that_hang_or_fault_on_a_gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    need_gpu(request.config)
    monkeypatch.setattr(saved, "pack", PACK)
    base = torch.arange(128.0, device="cuda")
    x, flag = base[32:96], torch.zeros(64, device="cuda")
    before = base.clone()
    measure = measuring.measure(
        ("X", "FLAG"), {"X": x, "FLAG": flag}, device=0, written={"X"}, read={"X", "FLAG"},
        reference=lambda X: X * 2, timeout_s=5.0,
    )  # fmt: skip
    for candidate, name in enumerate(("twice", bad, "thrice", "twice")):
        measure.add(candidate, variant_of(name, x, flag))
    reason = {"hang": "did not end within 5 s", "illegal": "ILLEGAL_ADDRESS", "trap": "CUDA_ERROR"}
    assert 0 < measure.trial(0).seconds < 1
    with pytest.raises(ConfigFailed, match=reason[bad]) as failed:
        measure.trial(1)
    assert failed.value.candidate == 1
    measure.trial(2)
    measure.trial(3)
    assert measure.notes == ()
    assert measure.differs(0, None) is None and measure.differs(3, None) is None
    assert measure.differs(2, None) is not None
    samples = measure.sample([0, 3], 5)
    assert all(0 < seconds < 1e-3 for taken in samples.values() for seconds in taken)
    assert torch.equal(base, before) and not flag.any()
    measure.close()


@pytest.mark.gpu
def test_the_same_in_this_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_gpu(request.config)
    monkeypatch.setattr(saved, "pack", PACK)
    x, flag = torch.rand(64, device="cuda"), torch.zeros(64, device="cuda")
    before = x.clone()
    measure = measuring.measure(
        ("X", "FLAG"), {"X": x, "FLAG": flag}, device=0, written={"X"}, read={"X", "FLAG"},
        timeout_s=None,
    )  # fmt: skip
    for candidate, name in enumerate(("twice", "thrice", "twice")):
        measure.add(candidate, variant_of(name, x, flag))
        measure.trial(candidate)
    assert measure.differs(2, 0) is None and "X[0]" in str(measure.differs(1, 0))
    assert set(measure.sample([0, 2], 3)) == {0, 2}
    assert torch.equal(x, before)
    measure.close()
