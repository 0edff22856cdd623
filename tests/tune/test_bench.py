"""What is copied, restored, poisoned and timed, on a GPU whose memory is the host's; and on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cuda.bindings import driver as bindings

from tests.tune.fake_device import FakeDevice, FakeKernel
from tilejit.errors import LaunchError, TuneError, fault
from tilejit.runtime.torch_glue import byte_range
from tilejit.tune import bench as benches
from tilejit.tune.bench import ALIGN_BYTES, Bench, Span, aligned, count_sets
from tilejit.tune.device import CudaDevice
from tilejit.tune.search import ConfigFailed
from tilejit.tune.staging import Layout, Staging, joined, lay_out

NAMES = ("out", "x", "y", "n")


def layout_of(written: set[str], read: set[str], **values: Any) -> Layout:
    return lay_out(tuple(values), values, written, read)


# --- layout


def test_a_view_is_copied_without_what_lies_around_it() -> None:
    base = torch.arange(4096.0)
    layout = layout_of(set(), {"x"}, x=base[1000:1010])
    (home,) = layout.homes
    assert (home.address, home.span.nbytes) == (base.data_ptr() + 4000, 40)
    assert home.span.offset % ALIGN_BYTES == home.address % ALIGN_BYTES
    assert layout.arguments.values[0].offset == home.span.offset  # type: ignore[union-attr]


def test_aliases_and_overlapping_views_share_the_bytes_they_shared() -> None:
    base = torch.arange(64.0)
    layout = layout_of(
        {"b"}, {"a", "c"}, a=base[:32], b=base[16:48], c=base.view(torch.int32)[40:], d=base[:32]
    )
    assert len(layout.homes) == 1
    a, b, c, d = (value.offset for value in layout.arguments.values)  # type: ignore[union-attr]
    assert (b - a, c - a, d - a) == (64, 160, 0)
    assert layout.arguments.written == (Span(b, 128),)


def test_apart_in_memory_means_apart_in_the_copy_and_no_byte_twice() -> None:
    base = torch.arange(64.0)
    layout = layout_of(set(), {"a", "b"}, a=base[:8], b=base[32:40])
    spans = sorted((home.span for home in layout.homes), key=lambda span: span.offset)
    assert len(spans) == 2 and spans[0].end <= spans[1].offset


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t, lambda t: t.t(), lambda t: t[::2, 1::3], lambda t: t[3:4, 5:6],
        lambda t: t[0].expand(4, 16), lambda t: t.view(torch.int16)[:, 3:9],
    ],
)  # fmt: skip
def test_fresh_tensors_are_the_users(view: Any, tmp_path: Path) -> None:
    x = view(torch.arange(256.0).reshape(16, 16))
    layout = layout_of(set(), {"x"}, x=x)
    staging = Staging(FakeDevice(tmp_path), layout)
    fresh = staging.fresh()["x"]
    assert fresh.stride() == x.stride() and torch.equal(fresh, x)
    fresh.zero_()
    assert x.any()
    start, end = byte_range(x)
    storage = x.untyped_storage()
    assert storage.data_ptr() <= start < end <= storage.data_ptr() + storage.nbytes()


def test_what_is_written_and_not_read_is_poisoned_unless_it_shares_bytes_with_what_is_read() -> (
    None
):
    base, apart = torch.zeros(64), torch.zeros(8)
    alone = layout_of({"o"}, {"x"}, o=apart, x=base).arguments
    assert alone.poisoned == alone.written and not alone.restored
    both = layout_of({"o"}, {"o"}, o=apart).arguments
    assert not both.poisoned and both.restored == both.written
    alias = layout_of({"o"}, {"x"}, o=base[:16], x=base[8:]).arguments
    assert not alias.poisoned and len(alias.restored) == 1
    chained = layout_of({"o", "p"}, {"x"}, o=base[:16], p=base[8:24], x=base[16:32]).arguments
    assert not chained.poisoned


def test_scalars_none_and_values_of_other_kinds() -> None:
    import numpy as np

    values = {"a": 3, "b": 2.5, "c": True, "d": np.int32(7), "e": object(), "f": None, "g": "text"}
    layout = lay_out([*values, "absent"], values, (), ())
    assert layout.arguments.values == (3, 2.5, True, 7, None, None, None, None)
    assert layout.arguments.nbytes == 0 and layout.homes == ()


def test_a_tensor_without_elements_has_no_address() -> None:
    layout = layout_of({"x"}, set(), x=torch.empty(0, 4))
    (place,) = layout.arguments.values
    assert place.offset is None and place.shape == (0, 4)  # type: ignore[union-attr]
    assert layout.arguments.written == ()


def test_results_lie_behind_the_set_each_aligned() -> None:
    arguments = layout_of({"o", "p"}, set(), o=torch.zeros(3), p=torch.zeros(200)).arguments
    first, second = arguments.results
    assert first == arguments.set_bytes and second == first + aligned(arguments.written[0].nbytes)
    assert arguments.staging_bytes == second + aligned(arguments.written[1].nbytes)


def test_joined() -> None:
    assert joined([Span(8, 4), Span(0, 4), Span(2, 4), Span(4, 1), Span(6, 2)]) == (
        Span(0, 6), Span(6, 2), Span(8, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("set_bytes", "free_bytes", "expected"),
    [
        (1 << 20, 1 << 40, 101),  # beyond the cap, see below
        (30 << 20, 1 << 40, 4), (200 << 20, 1 << 40, 2), (200 << 20, 300 << 20, 1),
        (200 << 20, 200 << 20, 0), (0, 1 << 30, 64), (512, 1 << 30, 64),
    ],
)  # fmt: skip
def test_number_of_sets(set_bytes: int, free_bytes: int, expected: int) -> None:
    """Twice a cache of 50 MiB is exceeded; 2 to 64 sets; no more than fit into 4/5 of free memory."""
    assert count_sets(set_bytes, 50 << 20, free_bytes) == min(expected, benches.MAX_SETS)


# --- measuring


def prepared(folder: Path, written: set[str], read: set[str], **more: Any) -> Any:
    tensors = [torch.full((64,), v) for v in (5.0, 1.0, 2.0)]
    layout = lay_out(NAMES, dict(zip(NAMES, [*tensors, 64])), written, read)
    device = FakeDevice(folder, **more)
    staging = Staging(device, layout)
    return device, Bench(device, layout.arguments, staging.address), staging, tensors


def test_a_trial_leaves_its_results_in_staging_and_the_users_tensors_alone(tmp_path: Path) -> None:
    device, bench, staging, (out, *_) = prepared(tmp_path, {"out"}, {"x", "y"})
    bench.load(0, FakeKernel("add", 2e-3).packed(), None)
    assert bench.trial(0) == pytest.approx(2e-3)
    assert staging.results(["out"])["out"].eq(3.0).all() and out.eq(5.0).all()


def test_what_a_trial_does_not_write_is_poison_and_no_result_of_another(tmp_path: Path) -> None:
    _, bench, staging, _ = prepared(tmp_path, {"out"}, {"x", "y"})
    for candidate, does in enumerate(("add", "add_half")):
        bench.load(candidate, FakeKernel(does).packed(), None)
        bench.trial(candidate)
    result = staging.results(["out"])["out"]
    assert result[:32].eq(3.0).all() and result[32:].isnan().all()
    assert staging.fresh()["out"].isnan().all()


def test_a_kernel_that_reads_what_it_writes_is_applied_once_per_restoring(tmp_path: Path) -> None:
    device, bench, staging, _ = prepared(tmp_path, {"out"}, {"out", "x"})
    bench.load(0, FakeKernel("add_into", 1e-5).packed(), None)
    bench.trial(0)
    assert staging.results(["out"])["out"].eq(6.0).all()
    bench.sample([0], 3)
    replayed = [count for word, *(count,) in device.told if word == "replay"]
    assert set(replayed) == {bench.sets}, "no set is visited twice by a graph"
    bench.trial(0)
    assert staging.results(["out"])["out"].eq(6.0).all(), "nothing of the samples is left"
    for number in range(bench.sets):
        values = benches_floats(bench, number)
        assert set(values) <= {5.0, 6.0}, "each set was restored before each graph"


def benches_floats(bench: Bench, number: int) -> list[float]:
    from tests.tune.fake_device import floats

    place = bench._arguments.values[0]
    return list(floats(bench._at(number, place.offset), 64))  # type: ignore[union-attr]


def test_launches_go_round_the_sets_and_a_graph_takes_about_two_milliseconds(
    tmp_path: Path,
) -> None:
    device, bench, *_ = prepared(tmp_path, {"out"}, {"x", "y"})
    assert bench.sets == 2 * device.l2_bytes // bench._arguments.set_bytes + 1
    for candidate, (seconds, launches) in enumerate(
        [(1e-4, 20), (1e-7, benches.MAX_LAUNCHES), (1e-3, bench.sets), (1.0, 1)]
    ):
        bench.load(candidate, FakeKernel("add", seconds).packed(), None)
        bench.trial(candidate)
        device.told.clear()
        (samples,) = bench.sample([candidate], 1).values()
        assert samples == [pytest.approx(seconds)]
        at = device.told.index(("replay", launches))
        visited = [a for word, a in device.told[at:] if word == "run"]
        assert len(set(visited[: bench.sets])) == min(bench.sets, launches)


def test_samples_are_interleaved_in_rotating_order_and_told(tmp_path: Path) -> None:
    _, bench, *_ = prepared(tmp_path, {"out"}, {"x", "y"})
    for candidate in range(3):
        bench.load(candidate, FakeKernel("add", (candidate + 1) * 1e-3).packed(), None)
        bench.trial(candidate)
    turns: list[int] = []
    samples = bench.sample([0, 1, 2], 3, turns.append)
    assert turns == [0, 1, 2, 0] + [0, 1, 2, 1, 2, 0, 2, 0, 1]
    assert samples == {c: [pytest.approx((c + 1) * 1e-3)] * 3 for c in range(3)}


def test_the_card_is_warmed_before_the_first_sample_and_after_a_pause(tmp_path: Path) -> None:
    device, bench, *_ = prepared(tmp_path, {"out"}, {"x", "y"})
    bench.load(0, FakeKernel("add", 1e-3).packed(), None)
    bench.trial(0)

    def worked() -> float:
        start = device.elapsed
        bench.sample([0], 1)
        return device.elapsed - start

    one = bench.sets * 1e-3
    assert worked() >= benches.WARM_SECONDS + one
    assert worked() == pytest.approx(one)
    device.elapsed += benches.PAUSE_SECONDS
    assert worked() >= benches.WARM_SECONDS + one


def test_a_slow_kernel_is_not_run_twice_by_its_trial(tmp_path: Path) -> None:
    device, bench, *_ = prepared(tmp_path, {"out"}, {"x", "y"})
    for seconds, runs in ((0.2, 1), (0.05, 2)):
        bench.load(0, FakeKernel("add", seconds).packed(), None)
        device.told.clear()
        bench.trial(0)
        assert [word for word, *_ in device.told].count("run") == runs


def test_a_failing_launch_fails_its_candidate(tmp_path: Path) -> None:
    _, bench, *_ = prepared(tmp_path, {"out"}, {"x", "y"})
    bench.load(7, FakeKernel("refused").packed(), None)
    with pytest.raises(ConfigFailed, match="CUDA_ERROR_INVALID_VALUE") as failed:
        bench.trial(7)
    assert failed.value.candidate == 7


def test_too_little_memory_is_told_with_both_numbers(tmp_path: Path) -> None:
    x = torch.zeros(1 << 14)
    layout = lay_out(["x"], {"x": x}, (), ("x",))
    device = FakeDevice(tmp_path, free=150_000)
    staging = Staging(device, layout)
    with pytest.raises(TuneError, match=r"takes 6\d+ bytes of GPU memory; of 7\d+ free") as failed:
        Bench(device, layout.arguments, staging.address)
    assert failed.value.codes == ("tune/memory",)
    assert len(device._blocks) == 1, "nothing but staging is held"


def test_what_cannot_be_copied_leaves_nothing_behind(tmp_path: Path) -> None:
    device = FakeDevice(tmp_path)
    x = torch.zeros(16)
    layout = lay_out(["x"], {"x": x}, (), ("x",))
    staging = Staging(device, layout)
    held = set(device._blocks)

    def failing(target: int, source: int, nbytes: int) -> None:
        raise fault(LaunchError, "launch/driver", "cuMemcpyDtoDAsync failed")

    device.copy = failing  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="cuMemcpyDtoDAsync"):
        Bench(device, layout.arguments, staging.address)
    with pytest.raises(LaunchError, match="cuMemcpyDtoDAsync"):
        Staging(device, layout)
    assert set(device._blocks) == held


def test_everything_is_freed(tmp_path: Path) -> None:
    device, bench, staging, _ = prepared(tmp_path, {"out"}, {"x", "y"})
    bench.load(0, FakeKernel("add").packed(), None)
    bench.trial(0)
    bench.sample([0], 1)
    bench.close()
    staging.close()
    assert not device._blocks


def test_at_home_the_users_memory_is_used_and_put_back(tmp_path: Path) -> None:
    tensors = [torch.full((64,), v) for v in (5.0, 1.0, 2.0)]
    layout = lay_out(NAMES, dict(zip(NAMES, [*tensors, 64])), NAMES[:3], NAMES[:3])
    device = FakeDevice(tmp_path)
    staging = Staging(device, layout)
    bench = Bench(device, layout.arguments, staging.address, layout.homes)
    bench.load(0, FakeKernel("add_into").packed(), None)
    bench.trial(0)
    assert staging.results(["out"])["out"].eq(6.0).all()
    bench.sample([0], 2)
    assert bench.sets == 1 and tensors[0].eq(6.0).all()
    bench.close()
    assert tensors[0].eq(5.0).all() and tensors[1].eq(1.0).all()


def test_shapes_and_strides_go_to_parameters_that_take_them(tmp_path: Path) -> None:
    x = torch.zeros(4, 6)[:, :3]
    layout = lay_out(["x", "n", "y"], {"x": x, "n": 3, "y": x}, (), ("x",))
    device = FakeDevice(tmp_path)
    bench = Bench(device, layout.arguments, Staging(device, layout).address)
    kernel = device.kernel(FakeKernel("add", shaped=(True, False, False)).packed(), False)
    address, *rest = bench._values(kernel, 0)
    assert rest == [(4, 3), (6, 1), 3, address]


# --- the real driver's side, as far as it can be seen without one


class Answers:
    """The bindings, with answers in place of the driver's: what is given to it is of their own types."""

    def __init__(self, **answers: Any):
        self._answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(bindings, name)
        if not name.startswith("cu"):
            return found

        def ask(*arguments: Any) -> tuple[Any, ...]:
            self.asked.append((name, *arguments))
            return (0, *self._answers.get(name, ()))

        return ask


def cuda_device(api: Answers) -> CudaDevice:
    made = CudaDevice.__new__(CudaDevice)
    made._api, made._ordinal, made._device, made._stream = api, 0, 0, bindings.CUstream(7)
    made._events = [bindings.CUevent(1), bindings.CUevent(2)]
    return made


def test_an_exported_handle_is_opened_byte_by_byte() -> None:
    import ctypes

    handle = bindings.CUipcMemHandle()
    ctypes.memmove(int(handle.getPtr()), bytes(range(64)), 64)
    api = Answers(cuIpcGetMemHandle=(handle,), cuIpcOpenMemHandle=(4096,))
    exported = cuda_device(api).export(4096)
    assert exported == bytes(range(64)) and cuda_device(api).open(exported) == 4096
    _, opened, flags = api.asked[-1]
    assert ctypes.string_at(int(opened.getPtr()), 64) == exported and flags == 1


def test_memory_is_taken_in_whole_pages_and_events_are_milliseconds() -> None:
    api = Answers(cuMemAlloc=(1 << 21,), cuEventElapsedTime=(2.5,), cuGraphInstantiate=("exec",),
                  cuStreamEndCapture=("graph",))  # fmt: skip
    device = cuda_device(api)
    assert device.allocate(3) == 1 << 21 and api.asked == [("cuMemAlloc", 2 << 20)]
    api.asked.clear()
    assert device.timed(lambda: device.replay("exec")) == pytest.approx(2.5e-3)
    assert [name for name, *_ in api.asked] == [
        "cuEventRecord", "cuGraphLaunch", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime",
    ]  # fmt: skip
    api.asked.clear()
    assert device.graph(lambda: device.fill(1, 2, 3)) == "exec"
    assert [name for name, *_ in api.asked] == [
        "cuStreamBeginCapture", "cuMemsetD8Async", "cuStreamEndCapture", "cuGraphInstantiate",
        "cuGraphDestroy",
    ]  # fmt: skip


def test_a_capture_that_fails_is_ended() -> None:
    api = Answers(cuStreamEndCapture=("graph",))
    device = cuda_device(api)

    def enqueue() -> None:
        raise ConfigFailed("a launch was refused", 0)

    with pytest.raises(ConfigFailed):
        device.graph(enqueue)
    assert [name for name, *_ in api.asked][-2:] == ["cuStreamEndCapture", "cuGraphDestroy"]


def test_the_bindings_have_all_that_is_asked_of_them() -> None:
    import inspect
    import re

    from tilejit.tune import device

    names = set(re.findall(r"(?:_api|api|driver)\.(cu[A-Z]\w+|CU\w+)", inspect.getsource(device)))
    assert len(names) > 20 and [name for name in names if not hasattr(bindings, name)] == []
