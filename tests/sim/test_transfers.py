"""Bulk transfers in the simulator: when bytes move, what tells that they are there, what is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.sim.written import codes, kernel, notes, reports

SEEDS = range(8)

HEAD = """
def k(X: T.Tensor((16, 64), "float32", align=16), Y: T.Tensor((16, 64), "float32", align=16), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid={grid}, block={block}{cluster}))
    t, lane, warp = T.cuda.thread_idx("x"), T.cuda.lane_id(), T.cuda.warp_id()
    s = T.alloc_shared((4, 64), "float32", layout="default", align=16)
    full = T.alloc_shared((4,), "uint64", align=8)
    empty = T.alloc_shared((4,), "uint64", align=8)
    init, arrive = T.ptx["mbarrier.init.shared::cta.b64"], T.ptx["mbarrier.arrive.shared::cta.b64"]
    inval = T.ptx["mbarrier.inval.shared::cta.b64"]
    announce = T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"]
    load = T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"]
    save = T.ptx["cp.async.bulk.global.shared::cta.bulk_group"]
    add = T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"]
    send = T.ptx["cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"]
    commit = T.ptx["cp.async.bulk.commit_group"]
    wait_group, wait_read = T.ptx["cp.async.bulk.wait_group"], T.ptx["cp.async.bulk.wait_group.read"]
    fence = T.ptx["fence.proxy.async.shared::cta"]
    fence_global = T.ptx["fence.proxy.async.global"]
    wait, SINK, apply = T.cuda.mbarrier_wait, T.ptx.SINK, T.cuda.tile.apply
    if t == 0:
        for i in T.unroll(4):
            init(full.ptr_to([i]), T.uint32({count}))
            init(empty.ptr_to([i]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    {meet}
{body}
"""


def program(
    body: str, block: int = 64, grid: int = 1, cluster: int = 1, count: int = 1, meet: str = ""
) -> Any:
    lines = body.strip("\n").splitlines()
    text = HEAD.format(
        body="\n".join(f"    {line}" for line in lines), block=block, grid=grid, count=count,
        cluster=f", cluster={cluster}" if cluster > 1 else "",
        meet=meet or ("T.cuda.cluster_sync()" if cluster > 1 else "T.cuda.cta_sync()"),
    )  # fmt: skip
    return kernel(text)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(1.0, 1025.0).view(16, 64), torch.zeros(16, 64)


def found(body: str, n: int = 8, **options: Any) -> list[Any]:
    shape = {
        key: options.pop(key)
        for key in ("block", "grid", "cluster", "count", "meet")
        if key in options
    }
    return reports(program(body, **shape), *tensors(), n, **options)


def of_every_seed(body: str, n: int = 8, **shape: Any) -> list[str]:
    """The codes, which are those of each seed."""
    k = program(body, **shape)
    seen = {tuple(codes(k, *tensors(), n, seed=seed)) for seed in SEEDS}
    assert len(seen) == 1, seen
    return list(seen.pop())


def clean(body: str, n: int = 8, **shape: Any) -> list[torch.Tensor]:
    """What each seed leaves in Y, with nothing to report."""
    k = program(body, **shape)
    results = []
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, n, seed=seed) == []
        results.append(y)
    return results


# --- loads

LOAD = "apply(load, s[{to}, :], X[{row}, :], chunk_bytes=256, mbar=full.ptr_to([{bar}]))"
"""256 bytes of a row of X."""


def load(row: object = 0, to: object = 0, bar: object = 0) -> str:
    return LOAD.format(row=row, to=to, bar=bar)


RING = f"""
if warp == 0:
    if lane == {{leader}}:
        for r in range(n):
            T.assume(0 <= r < 16)
            wait(empty.ptr_to([r % 4]), ((r // 4) & 1) ^ 1)
            announce(SINK, full.ptr_to([r % 4]), T.uint32(256))
            {load("r", "r % 4", "r % 4")}
else:
    for r in range(n):
        wait(full.ptr_to([r % 4]), (r // 4) & 1)
        Y[r, lane] = s[r % 4, lane + 32]
        Y[r, lane + 32] = s[r % 4, lane]
        fence()
        T.cuda.warp_sync()
        if lane == 0:
            arrive(SINK, empty.ptr_to([r % 4]))
"""


@pytest.mark.parametrize("leader", [0, 7])
def test_a_ring_of_loads_is_clean(leader: int) -> None:
    for y in clean(RING.format(leader=leader), 16):
        assert torch.equal(y, tensors()[0].roll(32, 1))


def test_bytes_arrive_at_once_or_late() -> None:
    """Nobody waits, nobody watches."""
    body = f"""
s[0, t] = -1.0
T.cuda.cta_sync()
if t == 0:
    announce(SINK, full.ptr_to([0]), T.uint32(256))
    {load()}
    Y[0, 0] = s[0, 0]
    Y[0, 1] = s[0, 63]
"""
    k = program(body)
    seen = set()
    for seed in range(24):
        x, y = tensors()
        with tile.simulation(seed=seed, hazards=False):
            k(x, y, 0)
        seen.add(tuple(y[0, :2].tolist()))
    assert seen == {(-1.0, -1.0), (1.0, 64.0)}


def test_the_same_seed_gives_the_same_run() -> None:
    body = f"if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(256))\n    {load()}\n    Y[0, 0] = s[0, 0]"
    k = program("s[0, t] = -1.0\nT.cuda.cta_sync()\n" + body)
    for seed in SEEDS:
        first, again = tensors(), tensors()
        with tile.simulation(seed=seed, hazards=False):
            k(*first, 0)
            k(*again, 0)
        assert torch.equal(first[1], again[1])


FETCH = f"if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(256))\n    {load()}\n"


def test_a_read_without_the_wait_is_in_flight() -> None:
    body = FETCH + "T.cuda.cta_sync()\nY[0, t] = s[0, t]\nwait(full.ptr_to([0]), 0)"
    assert of_every_seed(body) == ["sim/in-flight"]
    (one,) = found(body)
    assert "phase 0 of `full[0]` of CTA (0, 0, 0)" in notes(one)["state"]
    assert "T.cuda.mbarrier_wait(…, 0)" in notes(one)["help"]
    assert notes(one)["other"].startswith("issued at")


def test_one_waits_and_a_barrier_tells_the_others() -> None:
    for y in clean(
        FETCH + "if t == 40:\n    wait(full.ptr_to([0]), 0)\nT.cuda.cta_sync()\nY[0, t] = s[0, t]"
    ):
        assert torch.equal(y[0], tensors()[0][0])
    unknown = FETCH + "if t == 40:\n    wait(full.ptr_to([0]), 0)\nY[0, t] = s[0, t]"
    assert "sim/in-flight" in of_every_seed(unknown)


def test_two_loads_of_one_phase_to_the_same_place() -> None:
    body = f"""
if t == 0:
    announce(SINK, full.ptr_to([0]), T.uint32(512))
    {load(0)}
    {load(1)}
wait(full.ptr_to([0]), 0)
"""
    assert of_every_seed(body) == ["sim/in-flight"]


def test_a_stage_that_is_loaded_while_others_read_it() -> None:
    weak = RING.format(leader=0).replace("wait(empty.ptr_to([r % 4]), ((r // 4) & 1) ^ 1)", "pass")
    k = program(weak)
    for seed in SEEDS:
        got = codes(k, *tensors(), 16, seed=seed)
        assert got and set(got) <= {
            "sim/race", "sim/in-flight", "sim/mbarrier-arrivals", "sim/mbarrier-bytes", "sim/deadlock",
        }  # fmt: skip


# --- bytes of a phase


@pytest.mark.parametrize("announced", [128, 512])
def test_bytes_announced_and_bytes_that_come_differ(announced: int) -> None:
    body = FETCH.replace("256)", f"{announced})", 1) + "wait(full.ptr_to([0]), 0)"
    k = program(body)
    for seed in SEEDS:
        got = reports(k, *tensors(), 0, seed=seed)
        assert got[0].code == "sim/mbarrier-bytes"
        assert f"{announced} bytes" in str(got[0].notes) + got[0].message
        assert "256 bytes" in str(got[0].notes) + got[0].message


def test_a_phase_that_does_not_wait_for_its_bytes() -> None:
    """Nothing is announced: the phase is over at once, unless the bytes come first."""
    body = (
        f"if t == 0:\n    {load()}\n    arrive(SINK, full.ptr_to([0]))\nwait(full.ptr_to([0]), 0)"
    )
    k = program(body)
    for seed in SEEDS:
        assert "sim/mbarrier-bytes" in codes(k, *tensors(), 0, seed=seed)


def test_a_copy_after_an_arrival_that_announced_nothing() -> None:
    """The phase that it should complete in is over by then."""
    body = f"""
if t == 0:
    arrive(SINK, full.ptr_to([0]))
    {load()}
wait(full.ptr_to([0]), 0)
Y[0, t] = s[0, t]
"""
    for seed in SEEDS:
        one = found(body, seed=seed)[0]
        assert one.code == "sim/in-flight"
        assert "phase 1 of `full[0]`" in notes(one)["state"]
        assert "phase 0 was complete, without bytes of it" in notes(one)["state"]
        assert "expect_tx" in notes(one)["help"] and "mbarrier_wait" not in notes(one)["help"]


def test_bytes_may_come_before_they_are_announced() -> None:
    body = f"""
if t == 0:
    {load()}
    T.cuda.mbarrier_wait(empty.ptr_to([0]), 0)
if t == 32:
    announce(SINK, full.ptr_to([0]), T.uint32(256))
    arrive(SINK, empty.ptr_to([0]))
wait(full.ptr_to([0]), 0)
Y[0, t] = s[0, t]
"""
    for y in clean(body):
        assert torch.equal(y[0], tensors()[0][0])


def test_a_barrier_that_is_none() -> None:
    body = f"if t == 0:\n    inval(full.ptr_to([0]))\n    {load()}"
    assert of_every_seed(body) == ["sim/mbarrier-init"]


def test_inval_under_a_copy() -> None:
    body = FETCH + "    inval(full.ptr_to([0]))"
    k = program(body)
    seen = [set(codes(k, *tensors(), 0, seed=seed)) for seed in SEEDS]
    assert all(one & {"sim/mbarrier-bytes", "sim/mbarrier-inval"} for one in seen)
    assert any("sim/mbarrier-bytes" in one for one in seen)
    waited = FETCH + "    wait(full.ptr_to([0]), 0)\n    inval(full.ptr_to([0]))"
    assert of_every_seed(waited) == []


# --- the end of a CTA


def test_a_cta_may_not_end_before_its_loads() -> None:
    assert of_every_seed(FETCH) == ["sim/in-flight"]
    (one,) = found(FETCH)
    assert "CTA (0, 0, 0) ends while" in one.message
    assert of_every_seed(FETCH + "wait(full.ptr_to([0]), 0)") == []


def test_a_cta_may_not_end_before_its_stores_have_read() -> None:
    body = SAVE + "    {}"
    assert of_every_seed(body.format("pass")) == ["sim/in-flight"]
    assert of_every_seed(body.format("wait_read(0)")) == []
    assert of_every_seed(body.format("wait_group(0)")) == []


# --- stores and bulk groups

SAVE = """
s[0, t] = T.float32(t)
fence()
T.cuda.cta_sync()
if t == 0:
    apply(save, Y[0, :], s[0, :], chunk_bytes=256)
    commit()
"""


def test_a_store_after_a_fence_is_clean() -> None:
    for y in clean(SAVE + "    wait_read(0)"):
        assert torch.equal(y[0], torch.arange(64.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SAVE.replace("fence()\n", ""), ["sim/proxy-fence"]),
        (SAVE.replace("fence()\n", "fence_global()\n"), ["sim/proxy-fence"]),
        (SAVE.replace("fence()\nT.cuda.cta_sync()", "T.cuda.cta_sync()\nfence()"), []),
        (SAVE.replace("fence()", "fence()\ns[0, t] = 1.0"), ["sim/proxy-fence"]),
        (SAVE.replace("fence()", "if warp == 0:\n    fence()"), ["sim/proxy-fence"]),
        (SAVE.replace("fence()", 'T.ptx["fence.proxy.async"]()'), []),
    ],
    ids=["none", "of-the-other-space", "after-the-barrier", "before-the-write", "of-one-warp", "of-all"],
)  # fmt: skip
def test_the_fence_between_an_ordinary_write_and_a_store(text: str, expected: list[str]) -> None:
    assert of_every_seed(text + "    wait_group(0)") == expected


def test_the_fence_names_both_places() -> None:
    (one,) = found(SAVE.replace("fence()\n", "") + "    wait_group(0)")
    assert (
        "writes at" in notes(one)["other"] and "fence.proxy.async.shared::cta" in notes(one)["help"]
    )


def test_what_a_load_brought_needs_no_fence_to_be_stored() -> None:
    body = (
        FETCH
        + """    wait(full.ptr_to([0]), 0)
    apply(save, Y[1, :], s[0, :], chunk_bytes=256)
    commit()
    wait_group(0)
"""
    )
    for y in clean(body):
        assert torch.equal(y[1], tensors()[0][0])


REFILL = (
    FETCH
    + "wait(full.ptr_to([0]), 0)\nY[0, t] = s[0, t]\n{}"
    + FETCH.replace("X[0, :]", "X[1, :]")
    + "wait(full.ptr_to([0]), 1)\nY[1, t] = s[0, t]"
)
"""A load over bytes that every thread has read."""


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("fence()\nT.cuda.cta_sync()\n", []),
        ("T.cuda.cta_sync()\nfence()\n", []),
        ("T.cuda.cta_sync()\n", ["sim/proxy-fence"]),
        ("fence_global()\nT.cuda.cta_sync()\n", ["sim/proxy-fence"]),
        ("if warp == 0:\n    fence()\nT.cuda.cta_sync()\n", ["sim/proxy-fence"]),
        ("fence()\nX[2, t] = s[0, t]\nT.cuda.cta_sync()\n", ["sim/proxy-fence"]),
        ("fence()\n", ["sim/race"]),
        ("", ["sim/race", "sim/proxy-fence"]),
    ],
    ids=["fence", "after-the-barrier", "none", "of-global-memory", "of-one-warp", "before-the-last-read",
         "no-barrier", "neither"],
)  # fmt: skip
def test_the_fence_between_an_ordinary_read_and_a_load(between: str, expected: list[str]) -> None:
    """Loads by threads may be under way when they are ordered before the copy."""
    body = REFILL.format(between)
    assert of_every_seed(body) == expected
    for y in [] if expected else clean(body):
        assert torch.equal(y[:2], tensors()[0][:2])


def test_the_missing_fence_after_a_read_names_both_places() -> None:
    (one,) = found(REFILL.format("T.cuda.cta_sync()\n"))
    assert "no proxy fence follows the ordinary read before it" in one.message
    assert "of `s`" in one.message and "reads at" in notes(one)["other"]
    assert "in the threads that read, before they release" in notes(one)["help"]


def test_a_thread_needs_a_fence_after_its_own_reads() -> None:
    body = f"""
if t == 0:
    announce(SINK, full.ptr_to([0]), T.uint32(256))
    {load()}
    wait(full.ptr_to([0]), 0)
    Y[0, 0] = s[0, 0]
    {{}}
    announce(SINK, full.ptr_to([0]), T.uint32(256))
    {load(1)}
    wait(full.ptr_to([0]), 1)
"""
    assert of_every_seed(body.format("pass")) == ["sim/proxy-fence"]
    assert of_every_seed(body.format("fence()")) == []


def test_reads_by_copies_need_no_fence() -> None:
    body = (
        FETCH
        + """    wait(full.ptr_to([0]), 0)
    apply(save, Y[1, :], s[0, :], chunk_bytes=256)
    commit()
    wait_read(0)
    announce(SINK, full.ptr_to([0]), T.uint32(256))
"""
        + f"    {load(1)}\n    wait_group(0)\nwait(full.ptr_to([0]), 1)"
    )
    for y in clean(body):
        assert torch.equal(y[1], tensors()[0][0])


def test_a_copy_that_reads_after_a_thread_does_not_hide_its_read() -> None:
    body = (
        FETCH
        + """    wait(full.ptr_to([0]), 0)
    Y[0, 0] = s[0, 0]
    {}
    apply(save, Y[1, :], s[0, :], chunk_bytes=256)
    commit()
    wait_read(0)
    announce(SINK, full.ptr_to([0]), T.uint32(256))
"""
        + f"    {load(1)}\n    wait_group(0)\nwait(full.ptr_to([0]), 1)"
    )
    assert of_every_seed(body.format("pass")) == ["sim/proxy-fence"]
    assert of_every_seed(body.format("fence()")) == []


def test_a_store_over_what_threads_have_read_in_global_memory_needs_a_fence() -> None:
    body = SAVE.replace("s[0, t] =", "s[0, t] = Y[0, t] +") + "    wait_group(0)"
    assert of_every_seed(body) == ["sim/proxy-fence"]
    assert "fence.proxy.async.global" in notes(found(body)[0])["help"]
    assert of_every_seed(body.replace("fence()", "fence()\nfence_global()")) == []
    assert of_every_seed(body.replace("fence()", 'T.ptx["fence.proxy.async"]()')) == []


def test_a_load_over_what_threads_have_written_needs_a_fence() -> None:
    body = "s[0, t] = 1.0\n{}T.cuda.cta_sync()\n" + FETCH + "wait(full.ptr_to([0]), 0)"
    assert of_every_seed(body.format("")) == ["sim/proxy-fence"]
    assert of_every_seed(body.format("fence()\n")) == []


OVERWRITE = (
    SAVE
    + "    {}\nT.cuda.cta_sync()\ns[0, t] = 9.0\nT.cuda.cta_sync()\nif t == 0:\n    wait_group(0)"
)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [("pass", ["sim/in-flight"]), ("wait_read(1)", ["sim/in-flight"]), ("wait_read(0)", []), ("wait_group(0)", [])],
)  # fmt: skip
def test_a_source_may_be_overwritten_once_it_was_read(waiting: str, expected: list[str]) -> None:
    assert of_every_seed(OVERWRITE.format(waiting)) == expected
    if not expected:
        for y in clean(OVERWRITE.format(waiting)):
            assert torch.equal(y[0], torch.arange(64.0))
    else:
        (one,) = found(OVERWRITE.format(waiting))
        assert "wait_group.read" in notes(one)["help"]


def test_a_read_wait_does_not_tell_that_the_writes_are_there() -> None:
    body = SAVE + "    {}\nT.cuda.cta_sync()\ns[1, t] = Y[0, t]\nif t == 0:\n    wait_group(0)"
    assert of_every_seed(body.format("wait_read(0)")) == ["sim/in-flight"]
    assert of_every_seed(body.format("wait_group(0)")) == []


def test_a_group_that_was_not_committed() -> None:
    one, *_ = found(OVERWRITE.replace("    commit()\n", "").format("wait_group(0)"))
    assert "is not committed" in notes(one)["state"]


def test_groups_are_counted_from_the_latest() -> None:
    body = """
s[0, t] = T.float32(t)
s[1, t] = T.float32(t) + 64.0
fence()
T.cuda.cta_sync()
if t == 0:
    for i in T.unroll(2):
        apply(save, Y[i, :], s[i, :], chunk_bytes=256)
        commit()
    wait_read(1)
T.cuda.cta_sync()
s[{row}, t] = 9.0
if t == 0:
    wait_group(0)
"""
    assert of_every_seed(body.format(row=0)) == []
    assert of_every_seed(body.format(row=1)) == ["sim/in-flight"]


def test_reductions_of_several_ctas_do_not_race() -> None:
    body = SAVE.replace("apply(save", "apply(add") + "    wait_group(0)"
    for y in clean(body, grid=4):
        assert torch.equal(y[0], 4 * torch.arange(64.0))
    assert "sim/in-flight" in of_every_seed(SAVE + "    wait_group(0)", grid=4)


# --- clusters

SEND = """
rank = T.cuda.cluster_cta_id("x")
if rank == 0:
    s[0, t] = T.float32(t)
    fence()
    T.cuda.cta_sync()
    if t == 0:
        apply(send, s[1, :], s[0, :], chunk_bytes=256, mbar=full.ptr_to([0]), remote_cta_id=1)
else:
    if t == 0:
        announce(SINK, full.ptr_to([0]), T.uint32(256))
    wait(full.ptr_to([0]), 0)
    Y[0, t] = s[1, t]
"""


def test_a_copy_to_another_cta_is_clean() -> None:
    for y in clean(SEND + "T.cuda.cluster_sync()", grid=2, cluster=2):
        assert torch.equal(y[0], torch.arange(64.0))


RELAXED = 'T.ptx["barrier.cluster.arrive.relaxed.aligned"]()\n    T.cuda.cluster_wait()'


def test_a_fence_and_a_relaxed_arrival_order_the_initialisation() -> None:
    """Both are needed: the fence alone tells nobody that it was executed, nor that the others have started."""
    shape: dict[str, Any] = {"grid": 2, "cluster": 2}
    body = SEND + "T.cuda.cluster_sync()"
    clean(body, **shape, meet=RELAXED)
    assert set(of_every_seed(body, **shape, meet="T.cuda.cta_sync()")) == {
        "sim/cluster-not-started", "sim/mbarrier-init"
    }  # fmt: skip
    text = HEAD.replace('        T.ptx["fence.mbarrier_init.release.cluster"]()\n', "")
    bare = kernel(
        text.format(
            body="\n".join(f"    {line}" for line in body.splitlines()), block=64, grid=2,
            cluster=", cluster=2", count=1, meet=RELAXED,
        )
    )  # fmt: skip
    for seed in SEEDS:
        assert "sim/mbarrier-init" in codes(bare, *tensors(), 0, seed=seed)


def test_a_sender_may_not_end_before_its_source_was_read() -> None:
    assert "sim/in-flight" in of_every_seed(SEND, grid=2, cluster=2)


def test_a_receiver_may_not_end_before_the_bytes_are_there() -> None:
    body = SEND.replace("    wait(full.ptr_to([0]), 0)\n    Y[0, t] = s[1, t]\n", "")
    k = program(body, grid=2, cluster=2)
    for seed in SEEDS:
        assert {"sim/in-flight", "sim/cluster-exited"} & set(codes(k, *tensors(), 0, seed=seed))


def test_clusters_of_one_launch_have_objects_of_their_own() -> None:
    body = SEND.replace("Y[0, t]", "Y[T.cuda.block_idx('x') // 2, t]") + "T.cuda.cluster_sync()"
    k = program(body, grid=8, cluster=2)
    for batch_warps in (4, 8, 64):
        x, y = tensors()
        assert codes(k, x, y, 0, batch_warps=batch_warps) == []
        assert torch.equal(y[:4], torch.arange(64.0).expand(4, 64))


MULTICAST = """
rank = T.cuda.cluster_cta_id("x")
share = T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"]
far = T.ptx["mbarrier.arrive.shared::cluster.b64"]
if t < 4:
    inval(empty.ptr_to([t]))
    init(empty.ptr_to([t]), T.uint32(2))
T.ptx["fence.mbarrier_init.release.cluster"]()
T.cuda.cluster_sync()
if warp == 0:
    if lane == 0:
        for r in range(n):
            T.assume(0 <= r < 16)
            wait(empty.ptr_to([r % 4]), ((r // 4) & 1) ^ 1)
            announce(SINK, full.ptr_to([r % 4]), T.uint32({announced}))
            apply(share, s.view(4, 2, 32).sub[r % 4, rank, :], X.view(16, 2, 32).sub[r, rank, :],
                  chunk_bytes=128, mbar=full.ptr_to([r % 4]), cta_mask=T.uint16({mask}))
else:
    for r in range(n):
        wait(full.ptr_to([r % 4]), (r // 4) & 1)
        if rank == r % 2:
            Y[r, lane] = s[r % 4, lane + 32]
            Y[r, lane + 32] = s[r % 4, lane]
        fence()
        T.cuda.warp_sync()
        if lane < {released}:
            far(SINK, T.cuda.map_shared_rank(empty.ptr_to([r % 4]), lane))
T.cuda.cluster_sync()
"""
"""Each of two CTAs loads half a row for both; a stage is free when both have read it."""


def test_a_ring_that_two_ctas_fill_for_each_other_is_clean() -> None:
    body = MULTICAST.format(announced=256, mask=3, released=2)
    for y in clean(body, 16, grid=2, cluster=2):
        assert torch.equal(y, tensors()[0].roll(32, 1))


@pytest.mark.parametrize(
    ("part", "value"), [("mask", 1), ("announced", 128), ("released", 1)]
)  # fmt: skip
def test_a_ring_of_two_ctas_that_is_wrong(part: str, value: int) -> None:
    """A CTA that gets nothing, a phase that does not wait for the other's half, a stage that nobody
    frees for rank 1."""
    body = MULTICAST.format(**{"announced": 256, "mask": 3, "released": 2, part: value})
    k = program(body, grid=2, cluster=2)
    for seed in SEEDS:
        assert codes(k, *tensors(), 16, seed=seed)
