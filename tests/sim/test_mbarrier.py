"""mbarriers in the simulator: phases, what they order, what is reported, deadlocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.sim.written import codes, kernel, notes, reports
from tilejit import T
from tilejit.sim import schedule

SEEDS = range(8)

HEAD = """
def k(X: T.Tensor((256,), "float32", align=16), Y: T.Tensor((256,), "float32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid={grid}, block={block}))
    t, lane, warp = T.cuda.thread_idx("x"), T.cuda.lane_id(), T.cuda.warp_id()
    s = T.alloc_shared((4, 32), "float32", layout="default", align=16)
    full = T.alloc_shared((2,), "uint64", align=8)
    empty = T.alloc_shared((2,), "uint64", align=8)
    state = T.alloc_local((1,), "uint64", layout="default")
    over = T.alloc_local((1,), "bool", layout="default")
    cta = T.cuda.block_idx("x")
    init, arrive = T.ptx["mbarrier.init.shared::cta.b64"], T.ptx["mbarrier.arrive.shared::cta.b64"]
    inval, drop = T.ptx["mbarrier.inval.shared::cta.b64"], T.ptx["mbarrier.arrive_drop.shared::cta.b64"]
    several = T.ptx["mbarrier.arrive.noComplete.shared::cta.b64"]
    announce = T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"]
    expect = T.ptx["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"]
    complete = T.ptx["mbarrier.complete_tx.relaxed.cta.shared::cta.b64"]
    arrive_relaxed = T.ptx["mbarrier.arrive.relaxed.cta.shared::cta.b64"]
    try_wait = T.ptx["mbarrier.try_wait.parity.shared::cta.b64"]
    test_wait = T.ptx["mbarrier.test_wait.parity.shared::cta.b64"]
    test_state = T.ptx["mbarrier.test_wait.shared::cta.b64"]
    wait, SINK = T.cuda.mbarrier_wait, T.ptx.SINK
{body}
"""
"""Prefixes of what follows; ``full`` and ``empty`` have two objects each."""


def program(body: str, block: int = 64, grid: int = 1) -> Any:
    lines = body.strip("\n").splitlines()
    text = HEAD.format(body="\n".join(f"    {line}" for line in lines), block=block, grid=grid)
    return kernel(text)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(1.0, 257.0), torch.zeros(256)


def found(body: str, n: int = 8, block: int = 64, **options: Any) -> list[Any]:
    return reports(program(body, block), *tensors(), n, **options)


def of_every_seed(body: str, n: int = 8, block: int = 64) -> list[str]:
    """The codes, which are those of each seed."""
    k = program(body, block)
    seen = {tuple(codes(k, *tensors(), n, seed=seed)) for seed in SEEDS}
    assert len(seen) == 1, seen
    return list(seen.pop())


def ready(count: object = 1, more: str = "") -> str:
    """Both objects of ``full`` and of ``empty`` initialised for everybody."""
    return f"""
if t == 0:
    for i in T.unroll(2):
        init(full.ptr_to([i]), T.uint32({count}))
        init(empty.ptr_to([i]), T.uint32({count}))
    {more}
T.cuda.cta_sync()
"""


# --- a ring that is right

PRODUCER = """
if warp == 0:
    for r in range(n):
        {wait_empty}
        s[r % 2, lane] = X[(cta * n + r) * 32 + lane]
        {full}
else:
    for r in range(n):
        {wait_full}
        Y[(cta * n + r) * 32 + lane] = s[r % 2, 31 - lane]
        {empty}
"""
WAITS = {
    "wait_empty": "wait(empty.ptr_to([r % 2]), ((r // 2) & 1) ^ 1)",
    "wait_full": "wait(full.ptr_to([r % 2]), (r // 2) & 1)",
}
EACH = {
    "full": "arrive(SINK, full.ptr_to([r % 2]))",
    "empty": "arrive(SINK, empty.ptr_to([r % 2]))",
}
ELECTED = {
    side: f"T.cuda.warp_sync()\n        if lane == 5:\n            {text}"
    for side, text in EACH.items()
}


def polled(kind: str) -> dict[str, str]:
    """The waits as loops over an attempt."""
    return {
        "wait_empty": "over[0] = False\n        while not over[0]:\n            "
        f"{kind}(over[0], empty.ptr_to([r % 2]), T.uint32(((r // 2) & 1) ^ 1))",
        "wait_full": "over[0] = False\n        while not over[0]:\n            "
        f"{kind}(over[0], full.ptr_to([r % 2]), T.uint32((r // 2) & 1))",
    }


@pytest.mark.parametrize("arrivals", ["each", "elected"])
@pytest.mark.parametrize("waits", ["wait", "try_wait", "test_wait"])
def test_a_ring_of_two_stages_is_clean(waits: str, arrivals: str) -> None:
    parts = (WAITS if waits == "wait" else polled(waits)) | (
        EACH if arrivals == "each" else ELECTED
    )
    k = program(ready(32 if arrivals == "each" else 1) + PRODUCER.format(**parts), grid=2)
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 4, seed=seed) == []
        assert torch.equal(y.view(8, 32), x.view(8, 32).flip(1))


def test_the_same_seed_gives_the_same_run() -> None:
    k = program(ready(32) + PRODUCER.format(**WAITS, **EACH))
    for seed in SEEDS:
        with tile.simulation(seed=seed, hazards=False):
            first, again = tensors(), tensors()
            k(*first, 8)
            k(*again, 8)
        assert torch.equal(first[1], again[1])


WRONG = {
    "no wait for empty": (
        WAITS | EACH | {"wait_empty": "pass"},
        {"sim/race", "sim/mbarrier-arrivals", "sim/deadlock"},
    ),
    "wrong parity": (
        WAITS | EACH | {"wait_full": "wait(full.ptr_to([r % 2]), ((r // 2) & 1) ^ 1)"},
        {"sim/race", "sim/unwritten-read", "sim/deadlock"},
    ),
    "relaxed arrival": (
        WAITS | EACH | {"empty": "arrive_relaxed(SINK, empty.ptr_to([r % 2]))"},
        {"sim/race"},
    ),
    "elected without warp_sync": (
        WAITS | ELECTED | {"full": ELECTED["full"].replace("T.cuda.warp_sync()", "pass")},
        {"sim/race"},
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_ring_that_is_wrong_is_reported_by_every_seed(name: str) -> None:
    parts, expected = WRONG[name]
    k = program(
        ready(1 if parts["full"].startswith(("T.cuda", "pass")) else 32) + PRODUCER.format(**parts)
    )
    for seed in SEEDS:
        got = codes(k, *tensors(), 8, seed=seed)
        assert got and set(got) <= expected


# --- values


def test_states_parities_and_counts() -> None:
    body = (
        ready(2)
        + """
if t == 0:
    left = T.alloc_local((1,), "uint32", layout="default")
    arrive(state[0], full.ptr_to([0]))
    T.ptx["mbarrier.pending_count.b64"](left[0], state[0])
    test_state(over[0], full.ptr_to([0]), state[0])
    Y[0] = T.float32(left[0])
    Y[1] = T.if_then_else(over[0], 1.0, 0.0)
    arrive(state[0], full.ptr_to([0]))
    T.ptx["mbarrier.pending_count.b64"](left[0], state[0])
    test_state(over[0], full.ptr_to([0]), state[0])
    Y[2] = T.float32(left[0])
    Y[3] = T.if_then_else(over[0], 1.0, 0.0)
    test_wait(over[0], full.ptr_to([0]), T.uint32(0))
    Y[4] = T.if_then_else(over[0], 1.0, 0.0)
    test_wait(over[0], full.ptr_to([0]), T.uint32(1))
    Y[5] = T.if_then_else(over[0], 1.0, 0.0)
    test_wait(over[0], full.ptr_to([1]), T.uint32(1))
    Y[6] = T.if_then_else(over[0], 1.0, 0.0)
"""
    )
    x, y = tensors()
    assert codes(program(body), x, y, 0) == []
    assert y[:7].tolist() == [2, 0, 1, 1, 1, 0, 1]


def test_counted_and_dropped_arrivals() -> None:
    """Three arrivals in the first phase, one of them dropping out: two in the second."""
    body = (
        ready(3)
        + """
if t == 0:
    several(state[0], full.ptr_to([0]), T.uint32(2))
    drop(SINK, full.ptr_to([0]))
    test_wait(over[0], full.ptr_to([0]), T.uint32(0))
    Y[0] = T.if_then_else(over[0], 1.0, 0.0)
    arrive(SINK, full.ptr_to([0]))
    test_wait(over[0], full.ptr_to([0]), T.uint32(1))
    Y[1] = T.if_then_else(over[0], 1.0, 0.0)
    arrive(SINK, full.ptr_to([0]))
    test_wait(over[0], full.ptr_to([0]), T.uint32(1))
    Y[2] = T.if_then_else(over[0], 1.0, 0.0)
"""
    )
    x, y = tensors()
    assert codes(program(body), x, y, 0) == []
    assert y[:3].tolist() == [1, 0, 1]


def test_transaction_bytes_hold_the_phase() -> None:
    body = (
        ready(1)
        + """
if t == 0:
    announce(SINK, full.ptr_to([0]), T.uint32(64))
    test_wait(over[0], full.ptr_to([0]), T.uint32(0))
    Y[0] = T.if_then_else(over[0], 1.0, 0.0)
    complete(full.ptr_to([0]), T.uint32(48))
    expect(full.ptr_to([0]), T.uint32(16))
    complete(full.ptr_to([0]), T.uint32(32))
    test_wait(over[0], full.ptr_to([0]), T.uint32(0))
    Y[1] = T.if_then_else(over[0], 1.0, 0.0)
"""
    )
    x, y = tensors()
    assert codes(program(body), x, y, 0) == []
    assert y[:2].tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["", ".noinc"])
@pytest.mark.parametrize("hazards", [True, False])
def test_short_copies_arrive_on_a_barrier(suffix: str, hazards: bool) -> None:
    """Without .noinc the arrival comes on top of those expected: somebody else completes the phase."""
    body = (
        ready(64 if suffix else 1)
        + f"""
copy = T.ptx["cp.async.ca.shared.global"]
T.cuda.tile.apply(copy, s.view(128).sub[t : t + 1], X.sub[t : t + 1], chunk_bytes=4)
T.ptx["cp.async.mbarrier.arrive{suffix}.shared::cta.b64"](full.ptr_to([0]))
"""
        + ("" if suffix else "T.cuda.cta_sync()\nif t == 0:\n    arrive(SINK, full.ptr_to([0]))\n")
        + "wait(full.ptr_to([0]), 0)\nY[t] = s[(t ^ 32) // 32, t % 32]"
    )
    k = program(body)
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 0, seed=seed, hazards=hazards) == []
        assert torch.equal(y[:64], x[torch.arange(64) ^ 32])


COPIES = """
copy = T.ptx["cp.async.ca.shared.global"]
for i in T.unroll(2):
    if warp == 0:
        T.cuda.tile.apply(copy, s.sub[i, lane : lane + 1], X.sub[i * 32 + lane : i * 32 + lane + 1], chunk_bytes=4)
        T.ptx["cp.async.mbarrier.arrive.noinc.shared::cta.b64"](full.ptr_to([i]))
"""
"""Two copies of each lane of warp 0, and an arrival behind each."""


@pytest.mark.parametrize("read", [(0, 0), (1, 0), (1, 1)])
def test_an_arrival_waits_for_all_short_copies_before_it(read: tuple[int, int]) -> None:
    """Who waits for the first barrier knows of the first copy alone, for the second of both."""
    barrier, stage = read
    wait = f"wait(full.ptr_to([{barrier}]), 0)\n"
    k = program(f"{ready(32)}{COPIES}if warp == 1:\n    {wait}    Y[lane] = s[{stage}, 31 - lane]")
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 0, seed=seed) == []
        assert torch.equal(y[:32], x[32 * stage : 32 * stage + 32].flip(0))


def test_an_arrival_does_not_wait_for_later_short_copies() -> None:
    body = (
        f"{ready(32)}{COPIES}if warp == 1:\n    wait(full.ptr_to([0]), 0)\n    Y[lane] = s[1, lane]"
    )
    assert of_every_seed(body) == ["sim/in-flight"]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_ring_of_short_copies_is_clean(stages: int) -> None:
    """Filled by ``cp.async``, whose arrivals may come in any order between threads."""
    k = program(
        ready(32)
        + f"""
copy = T.ptx["cp.async.ca.shared.global"]
for r in range(n):
    T.assume(0 <= r < 8)
    i = r % {stages}
    if warp == 0:
        wait(empty.ptr_to([i]), ((r // {stages}) & 1) ^ 1)
        T.cuda.tile.apply(copy, s.sub[i, lane : lane + 1], X.sub[r * 32 + lane : r * 32 + lane + 1], chunk_bytes=4)
        T.ptx["cp.async.mbarrier.arrive.noinc.shared::cta.b64"](full.ptr_to([i]))
    else:
        wait(full.ptr_to([i]), (r // {stages}) & 1)
        Y[r * 32 + lane] = s[i, 31 - lane]
        arrive(SINK, empty.ptr_to([i]))
"""
    )
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 8, seed=seed) == []
        assert torch.equal(y, x.view(8, 32).flip(1).flatten())


def test_others_run_between_the_phases_that_a_warp_ends() -> None:
    """A producer that waits for nobody laps its consumers in some order of execution, not in all."""
    k = program(
        ready(1)
        + """
for r in range(n):
    if warp == 0:
        if lane == 0:
            s[r % 2, 0] = T.cast(r, "float32")
            arrive(SINK, full.ptr_to([r % 2]))
    else:
        wait(full.ptr_to([r % 2]), (r // 2) & 1)
        Y[r * 32 + lane] = s[r % 2, 0]
"""
    )
    found = {tuple(codes(k, *tensors(), 5, seed=seed)) for seed in SEEDS}
    assert any("sim/race" in each for each in found)


# --- faults of objects


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("if t == 0:\n    arrive(SINK, full.ptr_to([0]))", "sim/mbarrier-init"),
        (ready() + "if t == 0:\n    inval(full.ptr_to([0]))\n    arrive(SINK, full.ptr_to([0]))", "sim/mbarrier-init"),
        (ready() + "if t == 0:\n    init(full.ptr_to([0]), T.uint32(1))", "sim/mbarrier-init"),
        (ready(2) + "if t == 0:\n    arrive(SINK, full.ptr_to([0]))\n    init(full.ptr_to([0]), T.uint32(1))", "sim/mbarrier-init"),
        ("init(full.ptr_to([0]), T.uint32(1))", "sim/mbarrier-init"),
        ("if t == 0:\n    init(full.ptr_to([0]), T.cast(n - 8, 'uint32'))", "sim/mbarrier-init"),
        ("if t == 0:\n    init(s.ptr_to([0, n - 7]), T.uint32(1))", "sim/misaligned"),
        (ready() + "if t == 0:\n    full[0] = T.uint64(0)", "sim/mbarrier-object"),
        (ready() + "if t == 0:\n    Y[0] = T.float32(full[1])", "sim/mbarrier-object"),
        (ready() + "if t == 0:\n    wait(full.ptr_to([0]), n - 6)", "sim/mbarrier-parity"),
    ],
    ids=["before-init", "after-inval", "init-twice", "init-in-a-phase", "init-by-all", "no-arrivals",
         "misaligned", "stored-to", "loaded", "parity"],
)  # fmt: skip
def test_misuse_of_an_object(body: str, code: str) -> None:
    got = of_every_seed(body)
    assert code in got


def test_an_object_is_memory_again_after_inval() -> None:
    body = (
        ready()
        + "if t == 0:\n    inval(full.ptr_to([0]))\n    full[0] = T.uint64(7)\n    Y[0] = T.float32(full[0])"
    )
    x, y = tensors()
    assert codes(program(body), x, y, 0) == []
    assert y[0] == 7


def test_nothing_orders_the_initialisation() -> None:
    body = "if t == 0:\n    init(full.ptr_to([0]), T.uint32(1))\nif t == 32:\n    arrive(SINK, full.ptr_to([0]))"
    assert of_every_seed(body) == ["sim/mbarrier-init"]


# --- faults of arrivals and bytes


def test_all_lanes_arrive_where_one_is_expected() -> None:
    """On every seed, although all phases complete."""
    body = ready(1) + "if warp == 0:\n    arrive(SINK, full.ptr_to([0]))"
    (one,) = found(body)
    assert one.code == "sim/mbarrier-arrivals"
    assert "the 1 expected" in one.message
    assert {"where", "other", "init", "help"} <= set(notes(one))
    assert of_every_seed(body) == ["sim/mbarrier-arrivals"]


def test_an_arrival_while_bytes_are_missing() -> None:
    body = (
        ready(1)
        + "if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(16))\n    arrive(SINK, full.ptr_to([0]))\n    complete(full.ptr_to([0]), T.uint32(16))"
    )
    (one,) = found(body)
    assert one.code == "sim/mbarrier-arrivals"
    assert "beyond the 1 that its phase 0 expects" in one.message


def test_one_thread_may_complete_phase_after_phase() -> None:
    body = ready(1) + "if t == 0:\n    for i in range(5):\n        arrive(SINK, full.ptr_to([0]))"
    assert of_every_seed(body) == []


def test_bytes_that_never_come_and_who_announced_them() -> None:
    body = (
        ready(1)
        + "if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(64))\n    complete(full.ptr_to([0]), T.uint32(48))"
    )
    (one,) = found(body)
    assert one.code == "sim/mbarrier-bytes"
    assert "64 bytes were announced, 48 have arrived" in one.message
    assert "64 bytes by thread (0, 0, 0)" in str(one.notes)


def test_more_bytes_than_an_object_counts() -> None:
    body = (
        ready(2)
        + "if t == 0:\n    announce(SINK, full.ptr_to([0]), T.cast(n + 1048568, 'uint32'))\n    complete(full.ptr_to([0]), T.cast(n + 1048568, 'uint32'))"
    )
    assert [d.code for d in found(body)] == ["sim/mbarrier-bytes"]


# --- what phases order


def test_an_arrival_orders_what_came_before_it_only() -> None:
    right = (
        ready(1)
        + """
if t == 0:
    s[0, 0] = 3.0
    arrive(SINK, full.ptr_to([0]))
if warp == 1:
    wait(full.ptr_to([0]), 0)
    Y[lane] = s[0, 0]
"""
    )
    assert of_every_seed(right) == []
    after = right.replace(
        "    s[0, 0] = 3.0\n    arrive(SINK, full.ptr_to([0]))",
        "    arrive(SINK, full.ptr_to([0]))\n    s[0, 0] = 3.0",
    )
    for seed in SEEDS:
        assert set(codes(program(after), *tensors(), 0, seed=seed)) & {
            "sim/race",
            "sim/unwritten-read",
        }


def test_knowledge_goes_on_from_waiter_to_waiter() -> None:
    body = (
        ready(1)
        + """
if t == 0:
    s[0, 0] = 3.0
    arrive(SINK, full.ptr_to([0]))
if t == 32:
    wait(full.ptr_to([0]), 0)
    arrive(SINK, full.ptr_to([1]))
if t == 64:
    wait(full.ptr_to([1]), 0)
    Y[0] = s[0, 0]
"""
    )
    assert of_every_seed(body, block=96) == []


def test_lanes_of_a_warp_wait_for_different_objects() -> None:
    body = (
        ready(1)
        + """
if warp == 0:
    wait(full.ptr_to([lane % 2]), 0)
    Y[lane] = s[0, lane % 2]
if t == 32:
    s[0, 0] = 1.0
    arrive(SINK, full.ptr_to([0]))
if t == 64:
    s[0, 1] = 2.0
    arrive(SINK, full.ptr_to([1]))
"""
    )
    k = program(body, block=96)
    for seed in SEEDS:
        x, y = tensors()
        assert codes(k, x, y, 0, seed=seed) == []
        assert y[:4].tolist() == [1, 2, 1, 2]


# --- deadlocks


def test_a_deadlock_names_object_phase_and_what_is_missing() -> None:
    body = (
        ready(2)
        + "if t == 0:\n    arrive(SINK, full.ptr_to([1]))\nif warp == 1:\n    wait(full.ptr_to([1]), 0)"
    )
    (one,) = found(body)
    assert one.code == "sim/deadlock"
    waits = notes(one)["waits"]
    assert "warp 1 for parity 0 of `full[1]` of CTA (0, 0, 0)" in waits
    assert "running phase is 0" in waits and "1 of 2 arrivals are missing" in waits
    assert "wait(full.ptr_to([1]), 0)" in waits
    assert "1 by thread (0, 0, 0)" in notes(one)["arrived"]
    assert "have exited" in notes(one)["ended"]


def test_a_deadlock_of_a_phase_and_a_cta_barrier() -> None:
    body = ready(1) + "if warp == 1:\n    wait(full.ptr_to([0]), 0)\nT.cuda.cta_sync()"
    (one,) = found(body)
    text = str(one.notes)
    assert "the CTA barrier" in text and "`full[0]`" in text


def test_a_phase_without_its_bytes_is_said_with_the_deadlock() -> None:
    body = (
        ready(1)
        + "if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(64))\n    wait(full.ptr_to([0]), 0)"
    )
    assert [d.code for d in found(body)] == ["sim/mbarrier-bytes", "sim/deadlock"]


ARRIVE = "arrive(SINK, full.ptr_to([0]))"
AFTER_ONE = f"if lane == 1:\n    {ARRIVE}"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("", "sim/deadlock"),
        (f"\nelse:\n    {ARRIVE}", "sim/unsimulated"),
        (f"\nelse:\n    T.cuda.warp_sync()\n    {ARRIVE}", "sim/deadlock"),
        (f"\n{AFTER_ONE}", "sim/unsimulated"),
        (f"\nT.cuda.warp_sync()\n{AFTER_ONE}", "sim/deadlock"),
        (f"\nY[lane] = T.cuda.shfl_idx(X[lane], 0)\n{AFTER_ONE}", "sim/deadlock"),
        (f"\nif T.cuda.elect_sync():\n    {ARRIVE}", "sim/deadlock"),
        ("\nwait(empty.ptr_to([0]), 0)\nY[lane] = 1.0", "sim/deadlock"),
    ],
    ids=["nothing", "else", "else-of-all-lanes", "after", "after-the-warp", "after-a-shuffle",
         "elected", "no-arrival"],
)  # fmt: skip
def test_a_lane_that_waits_for_ever_is_a_deadlock_unless_others_of_its_warp_may_help(
    more: str, code: str
) -> None:
    body = ready(1) + "if lane == 0:\n    wait(full.ptr_to([0]), 0)" + more
    for seed in range(3):
        got = codes(program(body, block=32), *tensors(), 0, seed=seed)
        assert code in got and not {"sim/deadlock", "sim/unsimulated"} - {code} & set(got)


@pytest.mark.parametrize(
    ("loop", "code"),
    [
        ("for i in range(1 + lane % 2):\n    wait(full.ptr_to([i]), 0)\n{arrive}", "sim/unsimulated"),
        ("for i in range(1 + lane % 2):\n    wait(full.ptr_to([i]), 0)", "sim/deadlock"),
        ("for i in range(2):\n    if lane == 0:\n        wait(full.ptr_to([1]), 0)\n    {arrive}", "sim/unsimulated"),
        ("for i in range(2):\n    {arrive}\n    T.cuda.warp_sync()\n    if lane == 0:\n        wait(full.ptr_to([1]), 0)", "sim/unsimulated"),
        ("for i in range(2):\n    T.cuda.warp_sync()\n    {arrive}\n    if lane == 0:\n        wait(full.ptr_to([1]), 0)", "sim/deadlock"),
        ("for i in range(2):\n    if lane > 0 and i == 1:\n        break\n    wait(full.ptr_to([i]), 0)\n{arrive}", "sim/unsimulated"),
        ("for i in range(2):\n    if lane > 0 and i == 0:\n        continue\n    wait(full.ptr_to([1]), 0)", "sim/deadlock"),
    ],
    ids=["left", "left-nothing-after", "rest-of-the-turn", "next-turn", "next-turn-of-the-warp", "break",
         "continue"],
)  # fmt: skip
def test_a_lane_that_waits_in_a_loop_others_have_left(loop: str, code: str) -> None:
    """``full[0]`` is complete, ``full[1]`` is what nobody arrives at before lane 0 goes on."""
    arrive = "if lane == 1 and n > 0:\n{}    arrive(SINK, full.ptr_to([1]))"
    indent = "    " if "    {arrive}" in loop else ""
    body = ready(1) + f"if t == 0:\n    {ARRIVE}\nT.cuda.warp_sync()\n"
    k = program(body + loop.format(arrive=arrive.format(indent)), block=32)
    assert codes(k, *tensors(), 0) == [code]


def test_only_a_deadlock_asks_what_lanes_may_do_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Ahead(schedule.Ahead):
        def __post_init__(self) -> None:
            asked.append(self.by_writes)
            super().__post_init__()

    monkeypatch.setattr(schedule, "Ahead", Ahead)
    waits = "if warp == 1:\n    wait(full.ptr_to([0]), 0)"
    assert found(f"{ready()}if t == 0:\n    {ARRIVE}\n{waits}") == [] and asked == []
    assert [d.code for d in found(ready() + waits)] == ["sim/deadlock"] and asked == [False]


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_polling_for_what_never_happens_is_a_deadlock(kind: str) -> None:
    body = (
        ready(1)
        + f"if warp == 0:\n    over[0] = False\n    while not over[0]:\n        {kind}(over[0], full.ptr_to([0]), T.uint32(0))"
    )
    (one,) = found(body)
    assert one.code == "sim/deadlock" and "`full[0]`" in str(one.notes)


def test_a_poller_may_give_up() -> None:
    """An attempt fails at last, whatever the others do."""
    body = (
        ready(1)
        + """
if warp == 0:
    over[0] = False
    tries = 0
    while not over[0] and tries < 200:
        try_wait(over[0], full.ptr_to([0]), T.uint32(0))
        tries = tries + 1
    Y[lane] = T.float32(tries)
"""
    )
    for seed in SEEDS:
        x, y = tensors()
        assert codes(program(body), x, y, 0, seed=seed) == []
        assert y[0] == 200


COUNTS = """
if warp == 0:
    over[0] = False
    tries, side = 0, 0
    while not over[0] and tries < {most}:
        {kind}(over[0], full.ptr_to([side]), T.uint32(0))
        {turn}
    Y[lane] = T.float32(tries)
    if lane == 0:
        arrive(SINK, full.ptr_to([1]))
elif lane == 0:
    wait(full.ptr_to([1]), 0)
"""


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
@pytest.mark.parametrize(
    ("turn", "most", "code"),
    [("tries += 1", 300, ""), ("tries += 1", 10**9, "sim/step-limit"), ("side = 1 - side", 300, "sim/deadlock")],
    ids=["gives-up", "counts", "toggles"],
)  # fmt: skip
def test_a_poller_whose_turns_differ_is_no_deadlock(
    kind: str, turn: str, most: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may give up after more turns than those after which others are taken for stuck."""
    monkeypatch.setattr(schedule, "MAX_IDLE_ROUNDS", 64)
    body = ready() + COUNTS.format(kind=kind, turn=turn, most=most)
    for seed in SEEDS:
        x, y = tensors()
        got = reports(program(body), x, y, 0, seed=seed, step_limit=10_000)
        assert [d.code for d in got] == ([code] if code else [])
        assert code != "sim/step-limit" or "`full[0]`" in got[0].message
        assert code or y[0] == most


def test_polling_does_not_use_up_the_step_limit() -> None:
    body = (
        ready(1)
        + """
if warp == 0:
    over[0] = False
    while not over[0]:
        test_wait(over[0], full.ptr_to([0]), T.uint32(0))
    Y[lane] = s[0, lane]
else:
    for i in range(400):
        s[0, lane] = T.float32(i)
    T.cuda.warp_sync()
    if lane == 0:
        arrive(SINK, full.ptr_to([0]))
"""
    )
    for seed in SEEDS:
        x, y = tensors()
        assert codes(program(body), x, y, 0, seed=seed, step_limit=500) == []
        assert y[0] == 399


@tile.jit
def invalidated(Y: T.Tensor((32,), "int32"), lanes: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    bar = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), T.uint32(1))
    T.cuda.cta_sync()
    if t < lanes:
        T.ptx["mbarrier.inval.shared::cta.b64"](bar.ptr_to([0]))


def test_one_thread_invalidates() -> None:
    y = torch.zeros(32, dtype=torch.int32)
    invalidated(y, 1)
    with pytest.raises(tile.SimulationFault, match="sim/race"):
        invalidated(y, 2)


ONE_POLL = """
if warp == 0:
    s[0, lane] = 3.0
    T.cuda.warp_sync()
    if lane == 0:
        arrive(SINK, full.ptr_to([0]))
else:
    over[0] = False
    {polls}
    Y[lane] = s[0, lane]
"""
A_POLL = "{kind}(over[0], full.ptr_to([0]), T.uint32(0))"
WRONG_POLLS = {
    "answer never read": A_POLL,
    "if for while": f"if not over[0]:\n        {A_POLL}",
    "a number of times": f"for i in range(3):\n        {A_POLL}",
    "read before only": f"Y[lane + 32] = T.if_then_else(over[0], 1.0, 0.0)\n    {A_POLL}",
}
RIGHT_POLLS = {
    "loop": f"while not over[0]:\n        {A_POLL}",
    "wait where the poll fails": f"{A_POLL}\n    if not over[0]:\n        wait(full.ptr_to([0]), 0)",
    "known already": f"wait(full.ptr_to([0]), 0)\n    {A_POLL}",
}


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_a_poll_is_no_wait(kind: str) -> None:
    """Whatever the seed: its answer may always be no, unless the thread knows better."""
    for name, polls in (WRONG_POLLS | RIGHT_POLLS).items():
        seen = of_every_seed(ready() + ONE_POLL.format(polls=polls.format(kind=kind)))
        assert seen == ([] if name in RIGHT_POLLS else ["sim/race"]), name


def test_a_poll_says_yes_where_nothing_is_missing() -> None:
    """Of a phase that the thread has completed itself, or has heard of."""
    own = "if t == 0:\n    arrive(SINK, full.ptr_to([0]))\n    test_wait(over[0], full.ptr_to([0]), T.uint32(0))"
    both = f"{ready()}{own}\n    s[0, 0] = 1.0\nT.cuda.cta_sync()\nif t == 33:\n    test_wait(over[0], full.ptr_to([0]), T.uint32(0))"
    shown = "\nif t == 0 or t == 33:\n    Y[t] = T.if_then_else(over[0], 1.0, 2.0)"
    for seed in SEEDS:
        x, y = tensors()
        assert codes(program(both + shown), x, y, 0, seed=seed) == []
        assert (y[0], y[33]) == (1.0, 1.0)


def test_a_poll_that_is_read_may_say_yes_or_no() -> None:
    body = ready() + ONE_POLL.format(
        polls="for i in range(n):\n        Y[32 + lane] = 0.0\n    "
        + A_POLL.format(kind="test_wait")
        + "\n    Y[64 + lane] = T.if_then_else(over[0], 1.0, 2.0)\n    wait(full.ptr_to([0]), 0)"
    )
    answers = set()
    for seed in range(24):
        x, y = tensors()
        assert codes(program(body), x, y, 8, seed=seed) == []
        answers.add(y[64].item())
    assert answers == {1.0, 2.0}


INVAL = "if t == 0:\n    inval(full.ptr_to([0]))"
LAST_USES = {
    "other lanes wait": ("if warp == 0:\n    if lane == 0:\n        arrive(SINK, full.ptr_to([0]))\n    wait(full.ptr_to([0]), 0)", "warp"),
    "another warp waits": ("if t == 0:\n    arrive(SINK, full.ptr_to([0]))\nif warp == 1:\n    wait(full.ptr_to([0]), 0)", "cta"),
    "another warp polls": ("if t == 0:\n    arrive(SINK, full.ptr_to([0]))\nif warp == 1:\n    over[0] = False\n    while not over[0]:\n        try_wait(over[0], full.ptr_to([0]), T.uint32(0))", "cta"),
    "another warp arrives": ("if t == 32:\n    arrive(SINK, full.ptr_to([0]))", "cta"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LAST_USES))
def test_inval_comes_after_every_use(name: str) -> None:
    """A barrier that the other user joins before makes it right; without, every seed has a report."""
    use, scope = LAST_USES[name]
    assert of_every_seed(f"{ready()}{use}\nT.cuda.{scope}_sync()\n{INVAL}") == []
    for seed in SEEDS:
        reported = found(f"{ready()}{use}\n{INVAL}", seed=seed)
        assert {"sim/mbarrier-inval", "sim/mbarrier-init"} & {d.code for d in reported}, reported


def test_the_end_of_a_phase_tells_of_its_arrivals() -> None:
    """Relaxed ones, too: who waits may invalidate."""
    for kind in ("arrive", "arrive_relaxed"):
        use = f"if t == 32:\n    {kind}(SINK, full.ptr_to([0]))\nif t == 0:\n    wait(full.ptr_to([0]), 0)"
        assert of_every_seed(f"{ready()}{use}\n{INVAL}") == []


def test_inval_while_bytes_are_missing() -> None:
    (one,) = found(
        ready() + f"if t == 0:\n    announce(SINK, full.ptr_to([0]), T.uint32(64))\n{INVAL}"
    )
    assert one.code == "sim/mbarrier-inval" and "64 bytes are missing" in one.message


def test_inval_names_the_other_use() -> None:
    use, _ = LAST_USES["other lanes wait"]
    (one,) = found(f"{ready()}{use}\n{INVAL}")
    assert "`T.cuda.mbarrier_wait` of thread (1, 0, 0)" in notes(one)["other"]


@pytest.mark.parametrize("waits", [True, False])
def test_inval_after_short_copies(waits: bool) -> None:
    wait = "    wait(full.ptr_to([0]), 0)\n" if waits else ""
    body = f"""
if t == 0:
    T.ptx["cp.async.ca.shared.global"](s.ptr_to([0, 0]), X.ptr_to([0]), 16)
    T.ptx["cp.async.mbarrier.arrive.noinc.shared::cta.b64"](full.ptr_to([0]))
{wait}    inval(full.ptr_to([0]))
"""
    for seed in SEEDS:
        expected = [] if waits else ["sim/mbarrier-inval"]
        assert [d.code for d in found(ready() + body, seed=seed)] == expected
