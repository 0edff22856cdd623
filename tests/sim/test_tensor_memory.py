"""Tensor memory in the simulator: allocation, loads and stores, order between threads, operations, commits.

The operations are those of a make-believe family: ``mma`` adds up blocks of shared memory, ``cp`` copies one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.sim.written import codes, kernel, notes, reports
from tilejit import families
from tilejit.tile.family import (
    Issue,
    Machine,
    Memory,
    SharedBlocks,
    TensorCells,
    TensorOperation,
)

SEEDS = range(8)
START_BYTES = 1024
"""Where the first shared buffer lies."""


# --- make-believe tensor cores


def _grid(first: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    lanes, cols = np.meshgrid(np.arange(128), first + np.arange(columns), indexing="ij")
    return lanes.reshape(-1), cols.reshape(-1)


def _ranks(issue: Issue, machine: Machine, thread: tuple[int, int]) -> list[int]:
    own = int(machine.cluster_rank()[thread[0], 0])
    return [own & ~1, own | 1] if "cta_group::2" in issue.form.modifiers else [own]


def _number(machine: Machine, operand: Any, thread: tuple[int, int]) -> int:
    return int(np.broadcast_to(machine.read(operand)[0], machine.active().shape)[thread])


def mma(issue: Issue, machine: Machine) -> None:
    """D, of ``idesc`` columns, becomes the sum of ``b`` blocks from block ``a`` on, in each CTA its own; or
    of the cells at ``a``. The old D is added where the predicate says so."""
    d, a, b, idesc, old = issue.operands
    assert isinstance(d, Memory)
    for thread in machine.threads():
        address, columns = int(machine.address(d)[thread]), _number(machine, idesc, thread)
        ranks, adds = _ranks(issue, machine, thread), bool(_number(machine, old, thread))
        cells = [TensorCells(d, r, *_grid(address & 0xFFFF, columns)) for r in ranks]
        given: list[Any] = []
        for r in ranks:
            if isinstance(a, Memory):
                place = int(machine.address(a)[thread])
                given.append(TensorCells(a, r, *_grid(place & 0xFFFF, columns)))
            else:
                first, count = _number(machine, a, thread), _number(machine, b, thread)
                given.append(SharedBlocks(a, r, START_BYTES + 16 * (first + np.arange(count))))

        def run(found: list[Any], adds: bool = adds, n: int = len(ranks)) -> list[np.ndarray]:
            sums = [x if x.ndim == 1 else x.view(np.uint32).sum(dtype=np.uint32) for x in found[:n]]
            before = found[n:] if adds else [np.zeros(128 * columns, np.uint32)] * n
            return [(b + s).astype(np.uint32) for b, s in zip(before, sums)]

        machine.tensor_issue(
            thread,
            TensorOperation(
                "mma", len(ranks) == 2, (address, columns), tuple(given + (cells if adds else [])),
                tuple(cells), run,
            ),
        )  # fmt: skip


def cp(issue: Issue, machine: Machine) -> None:
    """The words of one block in four columns of every lane."""
    d, source = issue.operands
    assert isinstance(d, Memory)
    for thread in machine.threads():
        address, block = int(machine.address(d)[thread]), _number(machine, source, thread)
        ranks = _ranks(issue, machine, thread)
        machine.tensor_issue(
            thread,
            TensorOperation(
                "cp", len(ranks) == 2, issue.form.modifiers[2],
                tuple(SharedBlocks(source, r, np.array([START_BYTES + 16 * block])) for r in ranks),
                tuple(TensorCells(d, r, *_grid(address & 0xFFFF, 4)) for r in ranks),
                lambda found: [np.tile(x.view(np.uint32).reshape(-1), 128) for x in found],
            ),
        )  # fmt: skip


@pytest.fixture(autouse=True)
def _tensor_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, execute in (("tcgen05_mma", mma), ("tcgen05_cp", cp)):
        real = families.FAMILIES[name]
        monkeypatch.setitem(families.FAMILIES, name, replace(real, execute=execute))
    yield


# --- kernels

HEAD = """
def k(X: T.Tensor((256, 16), "uint32", align=16), Y: T.Tensor((256, 16), "uint32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid={cluster}, block={block}{clusters}))
    t, lane, warp = T.cuda.thread_idx("x"), T.cuda.lane_id(), T.cuda.warp_id()
    rank = T.cuda.block_idx("x")
    s = T.alloc_shared((64, 4), "uint32", layout="default", align=128)
    slot = T.alloc_shared((4,), "uint32", layout="default", align=16)
    bar = T.alloc_shared((4,), "uint64", align=8)
    init, arrive = T.ptx["mbarrier.init.shared::cta.b64"], T.ptx["mbarrier.arrive.shared::cta.b64"]
    relaxed = T.ptx["mbarrier.arrive.relaxed.cluster.shared::cta.b64"]
    alloc = T.ptx["tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32"]
    dealloc = T.ptx["tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32"]
    relinquish = T.ptx["tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned"]
    wait_ld, wait_st = T.ptx["tcgen05.wait::ld.sync.aligned"], T.ptx["tcgen05.wait::st.sync.aligned"]
    before, after = T.ptx["tcgen05.fence::before_thread_sync"], T.ptx["tcgen05.fence::after_thread_sync"]
    commit = T.ptx["tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster.b64"]
    multicast = T.ptx[
        "tcgen05.commit.cta_group::{ctas}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
    ]
    mma = T.ptx["tcgen05.mma.cta_group::{ctas}.kind::f16"]
    cp = T.ptx["tcgen05.cp.cta_group::{ctas}.128x128b"]
    ld, st = T.ptx["tcgen05.ld.sync.aligned.32x32b.x16.b32"], T.ptx["tcgen05.st.sync.aligned.32x32b.x16.b32"]
    proxy = T.ptx["fence.proxy.async.shared::cta"]
    wait, SINK, apply = T.cuda.mbarrier_wait, T.ptx.SINK, T.cuda.tile.apply
    r = T.alloc_local((16,), "uint32", layout="default")
    words = r.view({warps}, 32, 16, layout="({warps},32,16):(1@warpid,1@laneid,1)")
    one = r.view(32, 16, layout="(32,16):(1@laneid,1)")
    if t == 0:
        for i in T.unroll(4):
            init(bar.ptr_to([i]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    for i in T.unroll(64 * 4 // {block}):
        s[(t + i * {block}) // 4, t % 4] = T.cast(t + i * {block}, "uint32")
    proxy()
    {meet}
{body}
"""

DECLARED = """
if warp == 0:
    alloc(slot.ptr_to([0]), 64)
{meet}
at = slot[0]
D = T.cuda.decl_tmem(at, (128, 64), "uint32", layout="(128,64):(1@TLane,1@TCol)")
cells = D.view(4, 32, 64)
"""

FREED = """
{meet}
if warp == 0:
    dealloc(at, 64)
"""


def program(
    body: str,
    block: int = 128,
    cluster: int = 1,
    ctas: int = 1,
    declared: bool = True,
    freed: bool = True,
) -> Any:
    meet = "T.cuda.cluster_sync()" if cluster > 1 else "T.cuda.cta_sync()"
    text = (DECLARED if declared else "") + body.strip("\n") + "\n"
    text += FREED if declared and freed else ""
    lines = text.replace("{meet}", meet).splitlines()
    return kernel(
        HEAD.format(
            body="\n".join(f"    {line}" for line in lines), block=block, warps=min(4, block // 32),
            cluster=cluster, clusters=f", cluster={cluster}" if cluster > 1 else "", ctas=ctas, meet=meet,
        ),
        target="sm_100a",
    )  # fmt: skip


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(256 * 16, dtype=torch.int64).to(torch.uint32).view(256, 16)
    return x, torch.zeros(256, 16, dtype=torch.uint32)


def found(body: str, seed: int = 0, **shape: Any) -> list[Any]:
    return reports(program(body, **shape), *tensors(), seed=seed)


def of_every_seed(body: str, **shape: Any) -> list[str]:
    """The codes, which are those of each seed."""
    k = program(body, **shape)
    seen = {tuple(codes(k, *tensors(), seed=seed)) for seed in SEEDS}
    assert len(seen) == 1, seen
    return list(seen.pop())


def clean(body: str, **shape: Any) -> list[np.ndarray]:
    """What each seed leaves in Y, with nothing to report."""
    k = program(body, **shape)
    results = []
    for seed in SEEDS:
        x, y = tensors()
        assert [d.message for d in reports(k, x, y, seed=seed)] == []
        results.append(y.numpy())
    return results


def the_race(body: str, **shape: Any) -> Any:
    """The report of the one kind of fault that every seed finds."""
    assert of_every_seed(body, **shape) == ["sim/tmem-race"]
    (one,) = found(body, **shape)
    return one


# --- loads and stores

FILL = """
for i in T.unroll(16):
    r[i] = X[t, i]
apply(st, cells[:, :, 0:16], words, scope="cta")
"""
SHOW = """
apply(ld, words, cells[:, :, 0:16], scope="cta")
wait_ld()
for i in T.unroll(16):
    Y[t, i] = r[i]
"""


def test_what_is_stored_is_loaded() -> None:
    for y in clean(FILL + "wait_st()" + SHOW):
        assert (y[:128] == np.arange(128 * 16).reshape(128, 16)).all()


def test_a_load_before_the_store_is_waited_for() -> None:
    one = the_race(FILL + SHOW)
    assert "has not waited for its stores" in one.message
    assert "tcgen05.wait::st" in notes(one)["help"]
    assert "writes at" in notes(one)["other"] and "lane 0, column" in notes(one)["address"]


def test_a_store_over_another_that_is_not_waited_for() -> None:
    one = the_race(FILL + 'apply(st, cells[:, :, 8:24], words, scope="cta")\nwait_st()')
    assert "has not waited for its stores" in one.message
    again = (
        "for j in T.unroll(2):\n    "
        + 'apply(st, cells[:, :, 0:16], words, scope="cta")\nwait_st()'
    )
    assert the_race(FILL + "wait_st()\n" + again).code == "sim/tmem-race"


def test_a_store_over_cells_whose_load_is_not_waited_for() -> None:
    two = "q = T.alloc_local((16,), 'uint32', layout='default')\nfor i in T.unroll(16):\n    q[i] = X[t, i]\n"
    two += "other = q.view(4, 32, 16, layout='(4,32,16):(1@warpid,1@laneid,1)')\n"
    body = two + FILL + "wait_st()\n" + "apply(ld, words, cells[:, :, 0:16], scope='cta')\n"
    late = 'apply(st, cells[:, :, 0:16], other, scope="cta")\nwait_st()\nwait_ld()'
    assert "has not waited for its loads" in the_race(body + late).message
    clean(body + "wait_ld()\n" + late)


def test_registers_before_the_load_is_waited_for() -> None:
    body = FILL + "wait_st()" + SHOW.replace("wait_ld()", "") + "wait_ld()"
    assert of_every_seed(body) == ["sim/in-flight"]
    one = found(body)[0]
    assert "register 0 of `r` is read while a tcgen05.ld" in one.message
    assert "tcgen05.wait::ld" in notes(one)["help"]
    written = (
        FILL
        + 'wait_st()\napply(ld, words, cells[:, :, 0:16], scope="cta")\nr[3] = T.uint32(0)\nwait_ld()'
    )
    assert "register 3 of `r` is written" in found(written)[0].message


def test_cells_that_nobody_wrote() -> None:
    body = FILL + "wait_st()" + SHOW.replace("0:16", "8:24")
    assert of_every_seed(body) == ["sim/unwritten-read"]


# Warp 4 has the lanes of warp 0.
PAIR = """
if warp == 0:
    for i in T.unroll(16):
        r[i] = X[t, i]
    apply(st, D[0:32, 0:16], one, scope="warp")
    {wait}
    {before}
{sync}
if warp == 4:
    {after}
    apply(ld, one, D[0:32, 0:16], scope="warp")
    wait_ld()
    for i in T.unroll(16):
        Y[lane, i] = r[i]
"""
LINKS = {"wait": "wait_st()", "before": "before()", "sync": "T.cuda.cta_sync()", "after": "after()"}


def between(**changed: str) -> str:
    return PAIR.format(**{**LINKS, **changed})


def test_a_chain_between_two_warps() -> None:
    for y in clean(between(), block=256):
        assert (y[:32] == np.arange(32 * 16).reshape(32, 16)).all()
    clean(between(sync="T.cuda.named_barrier_sync(1, 256)"), block=256)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("wait", "warp 0 of CTA (0, 0, 0) has not waited for its stores"),
        ("before", "no tcgen05.fence::before_thread_sync of warp 0"),
        ("after", "no tcgen05.fence::after_thread_sync of warp 4"),
    ],
)
def test_a_chain_without_a_link(link: str, words: str) -> None:
    one = the_race(between(**{link: "pass"}), block=256)
    assert words in one.message
    assert notes(one)["help"].startswith("T.ptx[")


def test_a_fence_behind_the_barrier_does_not_help() -> None:
    late = between(before="pass", sync="T.cuda.cta_sync()\nbefore()")
    assert "no tcgen05.fence::before_thread_sync" in the_race(late, block=256).message
    early = between(sync="after()\nT.cuda.cta_sync()", after="pass")
    assert "no tcgen05.fence::after_thread_sync" in the_race(early, block=256).message


def test_a_chain_without_synchronisation() -> None:
    """Which of the two warps comes first is the seed's: the load may find nothing."""
    k = program(between(sync="pass"), block=256)
    for seed in SEEDS:
        got = reports(k, *tensors(), seed=seed)
        assert {d.code for d in got} <= {"sim/tmem-race", "sim/unwritten-read"} and got
        for one in got:
            if one.code == "sim/tmem-race" and "reads" in one.message.split("`")[2]:
                assert "nothing synchronises warp 0" in one.message
                assert (
                    'after T.ptx["tcgen05.wait::st.sync.aligned"](), then an arrival'
                    in notes(one)["help"]
                )


def test_relaxed_arrivals_and_waits_are_synchronisation_enough() -> None:
    sync = """
if warp == 0:
    T.cuda.warp_sync()
    if lane == 0:
        relaxed(SINK, bar.ptr_to([0]))
if warp == 4:
    over = T.alloc_local((1,), "bool", layout="default")
    over[0] = False
    while not over[0]:
        T.ptx["mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64"](
            over[0], bar.ptr_to([0]), T.uint32(0)
        )
"""
    clean(between(sync=sync), block=256)
    assert the_race(between(sync=sync, before="pass"), block=256)
    assert the_race(between(sync=sync, after="pass"), block=256)


def test_lanes_that_belong_to_another_warp() -> None:
    raw = """
if warp == 1:
    T.ptx["tcgen05.st.sync.aligned.32x32b.x1.b32"](at + {lane} * 65536, T.uint32(1))
    wait_st()
"""
    for lane in (0, 32):
        clean(raw.format(lane=lane))
    for lane in (64, 96):
        assert of_every_seed(raw.format(lane=lane)) == ["sim/tmem-address"]
    assert "reaches lanes 32..63 alone" in found(raw.format(lane=64))[0].message
    assert of_every_seed(raw.format(lane=8)) == ["sim/tmem-address"]
    mixed = raw.replace("{lane} * 65536", "T.cast(lane // 16, 'uint32')")
    assert "different addresses" in found(mixed)[0].message


def test_cells_outside() -> None:
    raw = 'if warp == 0:\n    T.ptx["tcgen05.st.sync.aligned.32x32b.x1.b32"]({}, T.uint32(1))\n    wait_st()'
    assert of_every_seed(raw.format("at + 64")) in (["sim/tmem-unallocated"], ["sim/out-of-bounds"])
    assert of_every_seed(raw.format("at - at + 512")) == ["sim/out-of-bounds"]


# --- allocation


def test_an_allocation_that_is_not_freed() -> None:
    assert of_every_seed("pass", freed=False) == ["sim/tmem-leak"]
    (one,) = found("pass", freed=False)
    assert one.message.startswith("64 columns")


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("if warp == 0:\n    dealloc(at, 32)", "sim/tmem-dealloc", "where 64 were allocated"),
        ("if warp == 0:\n    dealloc(at + 32, 64)", "sim/tmem-dealloc", "where no allocation begins"),
        (
            "if warp == 0:\n    dealloc(at, 64)\n    dealloc(at, 64)",
            "sim/tmem-dealloc", "where no allocation begins",
        ),
        (
            "if warp == 0:\n    relinquish()\n    alloc(slot.ptr_to([1]), 32)\n    dealloc(slot[1], 32)\n"
            "    dealloc(at, 64)",
            "sim/tmem-alloc", "given up the right",
        ),
        (
            "if warp == 0:\n    alloc(slot.ptr_to([1]), 128)\n    dealloc(slot[1], 128)\n    dealloc(at, 64)",
            "sim/tmem-alloc", "128 columns after one of 64",
        ),
    ],
)  # fmt: skip
def test_wrong_allocations(body: str, code: str, words: str) -> None:
    assert code in of_every_seed(body, freed=False)
    assert any(words in d.message for d in found(body, freed=False))


def test_numbers_of_columns() -> None:
    body = """
n = X[0, 0] + T.uint32(48)
if warp == 0:
    alloc(slot.ptr_to([0]), n)
    dealloc(slot[0], 64)
"""
    assert of_every_seed(body, declared=False) == ["sim/tmem-alloc"]
    assert "a power of two from 32 to 512" in found(body, declared=False)[0].message


WAITING = """
if warp == 0:
    alloc(slot.ptr_to([0]), 512)
    arrive(SINK, bar.ptr_to([0]))
    {rest}
    dealloc(slot[0], 512)
if warp == 1:
    wait(bar.ptr_to([0]), 0)
    alloc(slot.ptr_to([1]), 256)
    {then}
    dealloc(slot[1], 256)
"""


def test_an_allocation_waits_for_room() -> None:
    lone = WAITING.replace(
        "    arrive(SINK, bar.ptr_to([0]))",
        "    if lane == 0:\n        arrive(SINK, bar.ptr_to([0]))",
    )
    clean(lone.format(rest="pass", then="pass"), declared=False)
    stuck = lone.format(
        rest="wait(bar.ptr_to([1]), 0)",
        then="if lane == 0:\n        arrive(SINK, bar.ptr_to([1]))",
    )
    assert of_every_seed(stuck, declared=False) == ["sim/deadlock"]
    told = [text for label, text in found(stuck, declared=False)[0].notes if label == "waits"]
    assert any("it wants 256 columns, and the CTA holds columns 0..511" in text for text in told)


def test_one_cta_group() -> None:
    body = 'T.ptx["tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned"]()'
    assert of_every_seed(body, cluster=2)[0] == "sim/tmem-cta-group"


def test_columns_that_are_freed_while_in_use() -> None:
    body = FILL + "if warp == 0:\n    dealloc(at, 64)\nwait_st()"
    k = program(body, freed=False)
    for seed in SEEDS:
        got = codes(k, *tensors(), seed=seed)
        assert got and set(got) <= {"sim/tmem-dealloc", "sim/tmem-unallocated"}
    late = FILL + "T.cuda.cta_sync()\nif warp == 0:\n    dealloc(at, 64)\nwait_st()"
    assert of_every_seed(late, freed=False) == ["sim/tmem-dealloc"]
    (one,) = found(late, freed=False)
    assert "has not waited for its stores" in one.message
    clean(FILL + "wait_st()\nT.cuda.cta_sync()\nif warp == 0:\n    dealloc(at, 64)", freed=False)


# --- operations

ISSUE = """
if warp == 0:
    if lane == {leader}:
        {work}
        {commit}
"""
WORK = "mma(at, T.uint64(0), T.uint64(2), T.uint32(16), False)"
READ = "{wait}\n{after}" + SHOW


def operation(
    work: str = WORK,
    commit: str = "commit(bar.ptr_to([0]))",
    wait: str = "wait(bar.ptr_to([0]), 0)",
    after: str = "after()",
    leader: int = 0,
) -> str:
    work = work.replace("\n", "\n        ")
    body = ISSUE.format(work=work, commit=commit, leader=leader)
    return body + READ.format(wait=wait, after=after)


def test_a_result_is_waited_for() -> None:
    for y in clean(operation(leader=5)):
        assert (y[:128] == sum(range(8))).all()


def test_operations_of_one_pipe_run_in_order() -> None:
    work = WORK + "\nfor i in range(5):\n    mma(at, T.uint64(2), T.uint64(1), T.uint32(16), True)"
    for y in clean(operation(work)):
        assert (y[:128] == 28 + 5 * (8 + 9 + 10 + 11)).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"wait": "T.cuda.cta_sync()"}, "completes a phase of `bar[0]`"),
        ({"after": "pass"}, "no tcgen05.fence::after_thread_sync"),
        ({"wait": "after()\nwait(bar.ptr_to([0]), 0)", "after": "pass"}, "no tcgen05.fence::after"),
    ],
)
def test_a_result_without_a_link(changed: dict[str, str], words: str) -> None:
    body = operation(**changed)
    if "wait" in changed and "mbarrier" not in changed["wait"]:
        body += "\nwait(bar.ptr_to([0]), 0)"
    assert words in the_race(body).message


def test_a_result_that_is_not_committed() -> None:
    body = operation(commit="pass", wait="T.cuda.cta_sync()")
    k = program(body)
    for seed in SEEDS:
        got = reports(k, *tensors(), seed=seed)
        assert [d.code for d in got] == ["sim/tmem-race"]
        assert "no tcgen05.commit of thread (0, 0, 0)" in got[0].message
    unread = ISSUE.format(work=WORK, commit="pass", leader=0)
    assert of_every_seed(unread) == ["sim/tmem-dealloc", "sim/in-flight"]
    told = found(unread)
    assert "no tcgen05.commit of thread (0, 0, 0)" in told[0].message
    assert "no tcgen05.commit of thread (0, 0, 0)" in notes(told[1])["state"]


def test_a_wait_for_a_phase_that_nobody_commits() -> None:
    body = operation(commit="pass")
    assert of_every_seed(body) == ["sim/deadlock"]
    assert "no tcgen05.commit follows it" in notes(found(body)[0])["uncommitted"]


SCALED = """
if t == 0:
    cp(at + 32, T.uint64(0))
    mma(at, at + 32, T.uint64(0), T.uint32(4), False)
    mma(at, at + 32, T.uint64(0), T.uint32(4), True)
    {then}
    cp(at + 32, T.uint64(1))
    commit(bar.ptr_to([1]))
wait(bar.ptr_to([1]), 0)
"""


def test_a_copy_behind_an_operation_that_reads_its_target() -> None:
    body = SCALED.format(then="pass")
    assert of_every_seed(body) == ["sim/tmem-race", "sim/tmem-race"]
    first, second = (d.message for d in found(body))
    assert "a tcgen05.cp need not run after an earlier tcgen05.cp" in first
    assert "a tcgen05.cp need not run after an earlier tcgen05.mma" in second
    clean(SCALED.format(then="commit(bar.ptr_to([0]))\n    wait(bar.ptr_to([0]), 0)\n    after()"))


def test_shared_memory_without_a_proxy_fence() -> None:
    body = (
        "s[0, 0] = T.uint32(0)\nT.cuda.cta_sync()\n".replace("s[0", "if t == 0:\n    s[0")
        + operation()
    )
    assert of_every_seed(body) == ["sim/proxy-fence"]
    clean(body.replace("T.uint32(0)\n", "T.uint32(0)\n    proxy()\n"))


def test_shared_memory_that_is_overwritten_too_early() -> None:
    body = operation() + "\n"
    early = body.replace("wait(bar", "if t == 64:\n    s[1, 1] = T.uint32(7)\nwait(bar")
    k = program(early)
    for seed in SEEDS:
        assert set(codes(k, *tensors(), seed=seed)) <= {
            "sim/race",
            "sim/in-flight",
            "sim/proxy-fence",
        }
        assert codes(k, *tensors(), seed=seed)
    synced = early.replace("if t == 64", "T.cuda.cta_sync()\nif t == 64")
    assert of_every_seed(synced) == ["sim/in-flight"]
    assert "completes a phase of `bar[0]`" in notes(found(synced)[0])["state"]
    clean(body + "if t == 64:\n    s[1, 1] = T.uint32(7)")


def test_operations_run_at_any_time() -> None:
    """Shared memory changes while the operation is in flight."""
    body = operation().replace(
        "wait(bar", "T.cuda.cta_sync()\nif t == 64:\n    s[1, 1] = T.uint32(105)\nwait(bar"
    )
    k = program(body)
    seen = set()
    for seed in range(24):
        x, y = tensors()
        with tile.simulation(seed=seed, hazards=False):
            k(x, y)
        seen.add(int(y[0, 0]))
    assert seen == {28, 128}


def test_a_pipeline_over_two_threads() -> None:
    """The copy need not be over: it is enough that it comes before the fence."""
    body = """
if t == 0:
    cp(at + 32, T.uint64(1))
    {before}
T.cuda.cta_sync()
if t == 40:
    {after}
    mma(at, at + 32, T.uint64(0), T.uint32(4), False)
    commit(bar.ptr_to([0]))
if t == 0:
    commit(bar.ptr_to([1]))
wait(bar.ptr_to([0]), 0)
wait(bar.ptr_to([1]), 0)
"""
    clean(body.format(before="before()", after="after()"))
    one = the_race(body.format(before="pass", after="after()"))
    assert "no tcgen05.fence::before_thread_sync of thread (0, 0, 0)" in one.message
    one = the_race(body.format(before="before()", after="pass"))
    assert "no tcgen05.fence::after_thread_sync of thread (40, 0, 0)" in one.message


RING = """
if warp == 0:
    if lane == 0:
        for i in range(6):
            wait(bar.ptr_to([2 + i % 2]), ((i // 2) & 1) ^ 1)
            after()
            mma(at + T.cast(i % 2 * 16, "uint32"), T.cast(i, "uint64"), T.uint64(1), T.uint32(16), False)
            commit(bar.ptr_to([i % 2]))
if warp == 4:
    for i in range(6):
        wait(bar.ptr_to([i % 2]), (i // 2) & 1)
        after()
        p = i % 2
        T.assume(0 <= p)
        T.assume(p <= 1)
        apply(ld, one, D.view(128, 4, 16).sub[:, p, :][0:32, 0:16], scope="warp")
        wait_ld()
        {before}
        T.cuda.warp_sync()
        Y[lane, i] = r[0]
        if lane == 0:
            arrive(SINK, bar.ptr_to([2 + i % 2]))
"""


def test_a_ring_of_accumulators() -> None:
    for y in clean(RING.format(before="before()"), block=256):
        assert (y[:32, :6] == 16 * np.arange(6) + 6).all()
    one = the_race(RING.format(before="pass"), block=256)
    assert "no tcgen05.fence::before_thread_sync of warp 4" in one.message


# --- pairs of CTAs

TWO = """
if rank == 0:
    if warp == 0:
        if lane == 0:
            mma(at, T.uint64(0), T.uint64(2), T.uint32(16), False)
            {commit}
wait(bar.ptr_to([0]), 0)
after()
apply(ld, words, cells[:, :, 0:16], scope="cta")
wait_ld()
for i in T.unroll(16):
    Y[rank * 128 + t, i] = r[i] + at * T.uint32(1000)
"""


def test_a_pair() -> None:
    body = TWO.format(commit="multicast(bar.ptr_to([0]), T.uint16(3))")
    addresses = set()
    for y in clean(body, cluster=2, ctas=2):
        assert (y == y[0, 0]).all()
        addresses.add(int(y[0, 0]) // 1000)
        assert int(y[0, 0]) % 1000 == 28
    assert len(addresses) > 1, "where columns lie is anybody's guess"


def test_a_pair_of_which_one_is_not_told() -> None:
    body = TWO.format(commit="commit(bar.ptr_to([0]))")
    assert of_every_seed(body, cluster=2, ctas=2) == ["sim/deadlock"]
    unknown = body.replace("wait(bar", "if rank == 0:\n    wait(bar")
    one = the_race(unknown, cluster=2, ctas=2)
    assert "CTA (1, 0, 0)" in notes(one)["where"]


def test_a_pair_allocates_together() -> None:
    body = """
if rank == 0:
    if warp == 0:
        alloc(slot.ptr_to([0]), 64)
        dealloc(slot[0], 64)
T.cuda.cluster_sync()
"""
    assert of_every_seed(body, cluster=2, ctas=2, declared=False) == ["sim/deadlock"]
    told = [
        text
        for label, text in found(body, cluster=2, ctas=2, declared=False)[0].notes
        if label == "waits"
    ]
    assert any("no warp of CTA (1, 0, 0), the pair's other CTA" in text for text in told)


def test_a_pair_frees_and_allocates_again() -> None:
    body = """
for i in range(3):
    if warp == 0:
        alloc(slot.ptr_to([0]), 512)
        dealloc(slot[0], 512)
T.cuda.cluster_sync()
"""
    clean(body, cluster=2, ctas=2, declared=False)


TOLD = """
if rank == 0:
    if t == 0:
        mma(at, T.uint64(0), T.uint64(2), T.uint32(16), False)
        multicast(bar.ptr_to([0]), T.uint16(3))
    wait(bar.ptr_to([0]), 0)
T.cuda.cta_sync()
if warp == 0:
    dealloc(at, 64)
"""


def test_a_cta_outlives_the_commits_that_arrive_there() -> None:
    body = TOLD + "if rank == 1:\n    wait(bar.ptr_to([0]), 0)"
    clean(body, cluster=2, freed=False)
    clean(TOLD + "T.cuda.cluster_sync()", cluster=2, freed=False)
    k = program(TOLD, cluster=2, freed=False)
    for seed in SEEDS:
        got = codes(k, *tensors(), seed=seed)
        assert got and set(got) <= {"sim/in-flight", "sim/cluster-exited"}


def test_a_commit_to_a_cta_that_is_not_there() -> None:
    body = operation(commit="multicast(bar.ptr_to([0]), T.uint16(5))")
    assert of_every_seed(body)[0] == "sim/cta-mask"


def test_rows_are_shifted() -> None:
    shift = 'T.ptx["tcgen05.shift.cta_group::1.down"]({})'
    body = FILL + "wait_st()\nbefore()\nT.cuda.cta_sync()\n"
    body += operation("after()\n" + shift.format("at + 32 * 65536"))
    for y in clean(body):
        wanted = np.arange(128 * 16).reshape(128, 16)
        wanted[33:64, :8] = wanted[32:63, :8].copy()
        assert (y[:128] == wanted).all()
    assert of_every_seed(body.replace("32 * 65536", "16 * 65536")) == ["sim/tmem-alignment"]


def test_a_commit_covers_all_operations_before_it() -> None:
    work = WORK + "\ncommit(bar.ptr_to([1]))\n" + "cp(at + 32, T.uint64(0))"
    for y in clean(operation(work)):
        assert (y[:128] == 28).all()


def test_without_hazards_the_results_are_the_same() -> None:
    k = program(operation())
    for seed in SEEDS:
        x, y = tensors()
        with tile.simulation(seed=seed, hazards=False):
            k(x, y)
        assert (y.numpy()[:128] == 28).all()
