"""Asynchronous copies in the simulator: when bytes arrive, what is ordered, what is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.sim.written import codes, kernel, notes, reports

ONE = """
def k(X: T.Tensor((128, 4), "float32", align=16), Y: T.Tensor((128, 4), "float32"), a: T.int32, b: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid={grid}, block=64))
    t, lane, warp = T.cuda.thread_idx("x"), T.cuda.lane_id(), T.cuda.warp_id()
    s = T.alloc_shared((128, 4), "float32", layout="default", align=16)
    copy = T.ptx["cp.async.ca.shared.global"]
    commit, wait, wait_all = (T.ptx["cp.async.commit_group"], T.ptx["cp.async.wait_group"],
                              T.ptx["cp.async.wait_all"])
{body}
"""
SEEDS = range(8)


def program(body: str, grid: int = 1) -> Any:
    """A kernel of two warps; ``{row}`` copies the thread's row of X to its row of s."""
    row = "T.cuda.tile.apply(copy, s.sub[t, :], X.sub[t, :], chunk_bytes=16)"
    lines = body.replace("{row}", row).strip("\n").splitlines()
    return kernel(ONE.format(body="\n".join(f"    {line}" for line in lines), grid=grid))


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(1.0, 513.0).view(128, 4), torch.zeros(128, 4)


def found(body: str, a: int = 0, b: int = 0, **options: Any) -> list[Any]:
    return reports(program(body), *tensors(), a, b, **options)


def of_every_seed(body: str, a: int = 0, b: int = 0) -> list[str]:
    """The codes, which are those of each seed."""
    k = program(body)
    seen = {tuple(codes(k, *tensors(), a, b, seed=seed)) for seed in SEEDS}
    (one,) = seen
    return list(one)


# --- values


def test_bytes_arrive_at_once_or_at_the_wait_or_in_some_lanes() -> None:
    """Without the wait, and nobody watching: the old bytes, the new ones, or some of each."""
    k = program("s[t, 0] = -1.0\n{row}\ncommit()\nY[t, 0] = s[t, 0]")
    seen = set()
    for seed in range(24):
        x, y = tensors()
        with tile.simulation(seed=seed, hazards=False):
            k(x, y, 0, 0)
        arrived = (y[:64, 0] == x[:64, 0]).sum().item()
        assert arrived + (y[:64, 0] == -1).sum().item() == 64
        seen.add("all" if arrived == 64 else "none" if arrived == 0 else "some")
    assert seen == {"all", "none", "some"}


@pytest.mark.parametrize("hazards", [True, False])
@pytest.mark.parametrize("wait", ["commit()\nwait(0)", "wait_all()", "commit()\nwait_all()"])
def test_after_the_wait_all_bytes_are_there(wait: str, hazards: bool) -> None:
    k = program(
        "{row}\n" + wait + "\nT.cuda.cta_sync()\nfor i in range(4):\n    Y[t, i] = s[t ^ 33, i]"
    )
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 0, 0, seed=seed, hazards=hazards) == []
        assert torch.equal(y[:64], x[torch.arange(64) ^ 33])


@pytest.mark.parametrize("fill", ["src_size", "ignore_src"])
def test_zero_fill(fill: str) -> None:
    size = {
        "src_size": "T.if_then_else(t % 2 == 0, T.uint32(12), T.uint32(0))",
        "ignore_src": "t % 2 == 1",
    }
    k = program(
        f"T.cuda.tile.apply(copy, s.sub[t, :], X.sub[t, :], chunk_bytes=16, {fill}={size[fill]})\n"
        "wait_all()\nfor i in range(4):\n    Y[t, i] = s[t, i]"
    )
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 0, 0, seed=seed) == []
        expected = x[:64].clone()
        expected[1::2] = 0
        if fill == "src_size":
            expected[:, 3] = 0
        assert torch.equal(y[:64], expected)


def test_the_source_is_read_when_the_bytes_move() -> None:
    """Another buffer over the same memory: its change reaches the copy in some seeds only."""
    k = program("{row}\ncommit()\nY[t, 0] = -5.0\nwait(0)\nY[t, 1] = s[t, 0]")
    seen = set()
    for seed in range(24):
        x = torch.arange(512.0).view(128, 4)
        with tile.simulation(seed=seed, hazards=False):
            k(x, x, 0, 0)
        seen |= set(x[3:64, 1].sub(4 * torch.arange(3, 64)).abs().gt(0.5).tolist())
    assert seen == {True, False}


# --- waits


def test_no_wait_is_reported_even_to_the_thread_that_copies() -> None:
    assert of_every_seed("{row}\nT.cuda.cta_sync()\nY[t, 0] = s[t, 0]") == ["sim/in-flight"]
    (open_,) = found("{row}\nY[t, 0] = s[t, 0]")
    assert notes(open_)["state"] == "its group is not committed, so no wait_group covers it"
    (closed,) = found("{row}\ncommit()\nY[t, 0] = s[t, 0]")
    assert notes(closed)["state"] == "no wait has followed its commit_group"
    assert 'T.ptx["cp.async.wait_group"](0)' in notes(closed)["help"]
    assert "cta_sync" not in notes(closed)["help"]


def test_a_weak_wait_names_the_number_that_covers() -> None:
    two = (
        "{row}\ncommit()\n"
        "T.cuda.tile.apply(copy, s.sub[t + 64, :], X.sub[t, :], chunk_bytes=16)\ncommit()\n"
    )
    assert of_every_seed(two + "wait(1)\nY[t, 0] = s[t, 0]") == []
    assert of_every_seed(two + "wait(0)\nY[t, 0] = s[t + 64, 0]") == []
    assert of_every_seed(two + "wait(2)\nY[t, 0] = s[t, 0]") == ["sim/in-flight"]
    (weak,) = found(two + "wait(2)\nY[t, 0] = s[t, 0]")
    assert "left up to 2 groups pending" in notes(weak)["state"]
    assert notes(weak)["state"].endswith("committed after it: 1")
    assert 'T.ptx["cp.async.wait_group"](1) in the thread that copies' in notes(weak)["help"]
    (newest,) = found(two + "wait(1)\nY[t, 0] = s[t + 64, 0]")
    assert 'T.ptx["cp.async.wait_group"](0)' in notes(newest)["help"]
    assert notes(newest)["copy"].endswith("chunk_bytes=16)")


def test_groups_are_counted_by_each_thread() -> None:
    """Lanes that commit an empty group more need a larger number less."""
    body = "{row}\ncommit()\nif lane % 2 == 0:\n    commit()\nwait(1)\nif lane % 2 == a:\n    Y[t, 0] = s[t, 0]"
    assert of_every_seed(body, a=0) == []
    assert of_every_seed(body, a=1) == ["sim/in-flight"]


def test_an_empty_commit_is_a_group() -> None:
    assert of_every_seed("{row}\ncommit()\ncommit()\nwait(1)\nY[t, 0] = s[t, 0]") == []
    assert of_every_seed("commit()\n{row}\ncommit()\nwait(1)\nY[t, 0] = s[t, 0]") == [
        "sim/in-flight"
    ]


def test_wait_group_leaves_the_open_group_and_wait_all_does_not() -> None:
    assert of_every_seed("{row}\nwait(0)\nY[t, 0] = s[t, 0]") == ["sim/in-flight"]
    assert of_every_seed("{row}\nwait_all()\nY[t, 0] = s[t, 0]") == []


def test_only_the_lanes_that_wait_have_waited() -> None:
    body = "{row}\ncommit()\nif lane < 16:\n    wait(0)\nY[t, 0] = s[t, 0]"
    (fault,) = found(body)
    assert fault.code == "sim/in-flight" and "32 accesses" in notes(fault)["count"]
    assert "lane 16 reads here" in notes(fault)["where"]


def test_a_skipped_copy_is_none() -> None:
    body = (
        "s[t, 0] = 1.0\n"
        "T.cuda.tile.apply(copy, s.sub[t, :], X.sub[t, :], chunk_bytes=16, pred=t < a)\n"
        "Y[t, 0] = s[t, 0]"
    )
    assert of_every_seed(body, a=0) == []
    # The plain store is ordered before the copy by program order, the read behind it by nothing.
    assert of_every_seed(body, a=1) == ["sim/in-flight"]


# --- other threads


def test_others_need_a_barrier_after_the_wait() -> None:
    assert of_every_seed("{row}\nwait_all()\nT.cuda.cta_sync()\nY[t, 0] = s[t ^ 32, 0]") == []
    assert of_every_seed("{row}\nwait_all()\nT.cuda.warp_sync()\nY[t, 0] = s[t ^ 1, 0]") == []
    (fault,) = found("{row}\nwait_all()\nY[t, 0] = s[t ^ 1, 0]")
    assert fault.code == "sim/race" and "cta_sync() after the wait" in notes(fault)["help"]
    (early,) = found("{row}\nT.cuda.cta_sync()\nwait_all()\nY[t, 0] = s[t ^ 1, 0]")
    assert early.code == "sim/race"
    (none,) = found("{row}\ncommit()\nT.cuda.cta_sync()\nY[t, 0] = s[t ^ 1, 0]")
    assert none.code == "sim/in-flight"
    assert notes(none)["help"].endswith("in the thread that copies, then T.cuda.cta_sync()")


def test_waiting_for_another_threads_copy_does_nothing() -> None:
    body = "if warp == 0:\n    {row}\n    commit()\nif warp == a:\n    wait(0)\nT.cuda.cta_sync()\nY[t, 0] = s[lane, 0]"
    assert of_every_seed(body, a=0) == []
    assert of_every_seed(body, a=1) == ["sim/in-flight"]


def test_readers_of_a_stage_come_before_its_next_copy() -> None:
    body = "{row}\nwait_all()\nT.cuda.cta_sync()\nY[t, 0] = s[t ^ 32, 0]\n%s{row}\nwait_all()"
    assert of_every_seed(body % "T.cuda.cta_sync()\n") == []
    assert of_every_seed(body % "") == ["sim/race"]
    (fault,) = found(body % "")
    assert "put T.cuda.cta_sync() between" in notes(fault)["help"]


# --- writes in flight, sources in flight


def test_a_store_to_bytes_in_flight() -> None:
    assert of_every_seed("{row}\ns[t, 1] = 0.0\nwait_all()") == ["sim/in-flight"]
    assert of_every_seed("{row}\nwait_all()\ns[t, 1] = 0.0") == []


def test_two_copies_to_the_same_bytes() -> None:
    again = "T.cuda.tile.apply(copy, s.sub[t, :], X.sub[t + 64, :], chunk_bytes=16)\n"
    assert of_every_seed("{row}\n" + again + "wait_all()") == ["sim/in-flight"]
    assert of_every_seed("{row}\nwait_all()\n" + again + "wait_all()") == []
    narrow = "T.cuda.tile.apply(copy, s.sub[t, 2:4], X.sub[t, 0:2], chunk_bytes=8)\n"
    assert of_every_seed("{row}\n" + narrow + "wait_all()") == ["sim/in-flight"]
    (lanes,) = found("T.cuda.tile.apply(copy, s.sub[lane // 2, :], X.sub[t, :], chunk_bytes=16)")
    assert lanes.code == "sim/in-flight"


SOURCE = "T.cuda.tile.apply(copy, s.sub[t, :], Y.sub[%s, :], chunk_bytes=16)\n"


@pytest.mark.parametrize("row", ["t", "t % 2"])
def test_a_store_to_the_source_in_flight(row: str) -> None:
    """``t % 2``: each row has many readers, which are kept in the log."""
    copy, store = SOURCE % row, "if t < 2:\n    Y[t, 0] = 0.0"
    wide = ONE.replace('"float32"), a', '"float32", align=16), a')

    def run(body: str) -> list[str]:
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        k = kernel(wide.format(body=lines, grid=1))
        seen = {tuple(codes(k, *tensors(), 0, 0, seed=seed)) for seed in SEEDS}
        (one,) = seen
        return list(one)

    assert run(copy + "T.cuda.cta_sync()\n" + store) == ["sim/in-flight"]
    assert run(copy + "wait_all()\nT.cuda.cta_sync()\n" + store) == []
    if row == "t":
        assert run(copy + "wait_all()\n" + store) == []
        assert run(copy + "wait_all()\n" + copy + store + "\nwait_all()") == ["sim/in-flight"]
    else:
        assert run(copy + "wait_all()\n" + store) == ["sim/race"]
        # One of the readers of each row has not waited.
        late = "if t != 41:\n    wait_all()\nT.cuda.cta_sync()\n"
        assert run(copy + late + store) == ["sim/in-flight"]
    skipped = copy.replace("chunk_bytes=16", "chunk_bytes=16, src_size=0")
    assert run(skipped + store) == []


def test_two_reads_of_a_source_in_flight_by_one_thread() -> None:
    """The first copy's wait does not cover the second."""
    wide = ONE.replace('"float32"), a', '"float32", align=16), a')
    copy = SOURCE % "t"
    more = copy.replace("s.sub[t, :]", "s.sub[t + 64, :]")
    for waited, expected in (("1", ["sim/in-flight"]), ("0", [])):
        body = f"{copy}commit()\n{more}commit()\nwait({waited})\nY[t, 0] = 0.0"
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        assert codes(kernel(wide.format(body=lines, grid=1)), *tensors(), 0, 0) == expected


# --- addresses and sizes


def raw(arguments: str) -> str:
    return f"copy({arguments})\nwait_all()"


def test_bounds_and_alignment() -> None:
    destination, source = "s.ptr_to([t, 0])", "X.ptr_to([t, 0])"
    assert of_every_seed(raw(f"{destination}, {source}, 16")) == []
    assert of_every_seed(raw(f"{destination}, X.ptr_to([t + a, 0]), 16"), a=65) == [
        "sim/out-of-bounds"
    ]
    assert of_every_seed(raw(f"s.ptr_to([t + a, 0]), {source}, 16"), a=65) == ["sim/out-of-bounds"]
    assert of_every_seed(raw(f"{destination}, X.ptr_to([t, a]), 16"), a=1) == ["sim/misaligned"]
    assert of_every_seed(raw(f"s.ptr_to([t, a]), {source}, 16"), a=2) == ["sim/misaligned"]
    assert of_every_seed(raw("s.ptr_to([t, a]), X.ptr_to([t, 0]), 8"), a=2) == []


def test_a_source_of_no_bytes_is_not_read() -> None:
    body = raw("s.ptr_to([t, 0]), X.ptr_to([t + a, 0]), 16, T.cast(b, 'uint32')")
    assert of_every_seed(body, a=1000, b=0) == []
    assert of_every_seed(body, a=64, b=4) == []
    assert of_every_seed(body, a=65, b=4) == ["sim/out-of-bounds"]


def test_more_bytes_than_a_chunk() -> None:
    body = (
        "T.cuda.tile.apply(copy, s.sub[t, :], X.sub[t, :], chunk_bytes=16, src_size=a)\nwait_all()"
    )
    assert of_every_seed(body, a=16) == []
    assert of_every_seed(body, a=17) == ["sim/copy-size"]
    (negative,) = found(body, a=-1)
    assert negative.code == "sim/copy-size" and "4294967295 bytes" in negative.message


def test_bytes_in_flight_are_not_also_unwritten() -> None:
    assert of_every_seed("{row}\nY[t, 0] = s[t, 0]") == ["sim/in-flight"]
    assert of_every_seed("{row}\nwait_all()\nY[t, 0] = s[t + 64, 0]") == ["sim/unwritten-read"]


def test_ctas_and_batches_have_groups_of_their_own() -> None:
    body = "{row}\ncommit()\n{more}\ncommit()\nwait(a)\nT.cuda.cta_sync()\nY[t, 0] = s[t ^ 32, 0]"
    more = "T.cuda.tile.apply(copy, s.sub[t + 64, :], X.sub[t, :], chunk_bytes=16)"
    text = body.replace("{more}", more).replace("wait(a)", "wait(1)").replace("Y[t, 0] =", "c =")
    for batch_warps in (2, 4, 64):
        k = program(text, grid=7)
        assert codes(k, *tensors(), 0, 0, batch_warps=batch_warps) == []
    weak = program(text.replace("wait(1)", "wait(2)"), grid=7)
    assert codes(weak, *tensors(), 0, 0, batch_warps=2) == ["sim/in-flight"]


def test_options_of_a_call_end_with_their_block() -> None:
    spin = kernel(
        "def k(X: T.Tensor((1,), 'int32')):\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
        "    for i in range(50):\n"
        "        T.cuda.warp_sync()\n"
    )
    x = torch.zeros(1, dtype=torch.int32)
    with tile.simulation(step_limit=10), pytest.raises(tile.Unsimulated):
        spin(x)
    spin(x)
    with pytest.raises(TypeError, match="speed"), tile.simulation(speed=1):
        pass
