"""Random programs of mbarriers, bulk transfers and proxy fences, against reachability in a graph.

Events are nodes. Program order, and an arrival before every wait for its phase, are edges. A transfer is a
node after its issue; it is before the waits for its barrier or its bulk group. Two accesses to a cell, one
of them writing, need a path. From an ordinary one to a transfer it must lead over a proxy fence. The simulator reports something exactly where that fails. Nothing is shared with its clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
import torch

from tests.sim.written import codes, kernel
from tilejit.sim import hazards

THREADS, CELLS, BARRIERS, STEPS = 4, 4, 10, 16
SEEDS = range(4)

TEXT = """
def k(X: T.Tensor((8, 4), "float32", align=16), Y: T.Tensor(({rows}, 4), "float32", align=16),
      Z: T.Tensor((4,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 4), "float32", layout="default", align=16)
    bar = T.alloc_shared(({barriers},), "uint64", align=8)
    arrive = T.ptx["mbarrier.arrive.shared::cta.b64"]
    announce = T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"]
    load = T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"]
    save = T.ptx["cp.async.bulk.global.shared::cta.bulk_group"]
    commit, wait_read = T.ptx["cp.async.bulk.commit_group"], T.ptx["cp.async.bulk.wait_group.read"]
    wait, SINK = T.cuda.mbarrier_wait, T.ptx.SINK
    fence = T.ptx["fence.proxy.async.shared::cta"]
    if t < 32:
        s[t // 4, t % 4] = T.float32(t)
    fence()
    if t == 0:
        for i in T.unroll({barriers}):
            T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([i]), T.uint32(1))
    T.cuda.cta_sync()
{body}
"""


@dataclass
class Graph:
    """Events of one program, and what each is directly before."""

    before: list[list[int]] = field(default_factory=list)
    accesses: list[tuple[int, int, bool, bool]] = field(default_factory=list)
    """(event, cell, writes, asynchronous)."""
    fences: list[int] = field(default_factory=list)

    def event(self, *earlier: int) -> int:
        self.before.append([e for e in earlier if e >= 0])
        return len(self.before) - 1

    def reached(self) -> np.ndarray:
        """reached[a, b]: is there a path from a to b?"""
        count = len(self.before)
        paths = np.zeros((count, count), np.bool_)
        for b, earlier in enumerate(self.before):
            for a in earlier:
                paths[:, b] |= paths[:, a]
                paths[a, b] = True
        return paths

    def wrong(self) -> set[str]:
        """``order`` where two accesses have no path, ``fence`` where only a proxy fence is missing."""
        paths = self.reached()
        found: set[str] = set()
        for i, (a, cell, writes, asynchronous) in enumerate(self.accesses):
            for b, other, also_writes, also_asynchronous in self.accesses[i + 1 :]:
                if cell != other or not (writes or also_writes):
                    continue
                if not paths[a, b] and not paths[b, a]:
                    found.add("order")
                elif also_asynchronous and not asynchronous and paths[a, b]:
                    if not any(paths[a, f] and paths[f, b] for f in self.fences):
                        found.add("fence")
        return found


def generated(random: Random) -> tuple[str, Graph]:
    """A program that cannot deadlock: whoever waits, waits for an arrival written down before."""
    graph = Graph()
    lines: list[list[str]] = [[] for _ in range(THREADS)]
    last = [-1] * THREADS
    phases: dict[int, list[int]] = {}
    bulk: list[list[int]] = [[] for _ in range(THREADS)]
    loads: list[int] = []
    free = 0

    def step(thread: int, text: str, *earlier: int) -> int:
        lines[thread].append(text)
        last[thread] = graph.event(last[thread], *earlier)
        return last[thread]

    for row in range(STEPS):
        thread, cell = random.randrange(THREADS), random.randrange(CELLS)
        kinds = ["write", "read", "fence", "save", "read_wait"]
        kinds += ["arrive", "load"] if free < BARRIERS else []
        kinds += ["wait"] * 8 if phases else []
        match random.choice(kinds):
            case "write":
                graph.accesses.append((step(thread, f"s[{cell}, 0] = 1.0"), cell, True, False))
            case "read":
                graph.accesses.append(
                    (step(thread, f"Z[{thread}] = s[{cell}, 0]"), cell, False, False)
                )
            case "fence":
                graph.fences.append(step(thread, "fence()"))
            case "arrive":
                at = step(thread, f"arrive(SINK, bar.ptr_to([{free}]))")
                phases[free] = [at]
                free += 1
            case "load":
                at = step(thread, f"announce(SINK, bar.ptr_to([{free}]), T.uint32(16))")
                text = f"load(s.ptr_to([{cell}, 0]), X.ptr_to([{cell}, 0]), T.uint32(16), bar.ptr_to([{free}]))"
                transfer = graph.event(step(thread, text))
                graph.accesses.append((transfer, cell, True, True))
                phases[free] = [at, transfer]
                loads.append(free)
                free += 1
            case "save":
                step(thread, f"save(Y.ptr_to([{row}, 0]), s.ptr_to([{cell}, 0]), T.uint32(16))")
                transfer = graph.event(step(thread, "commit()"))
                graph.accesses.append((transfer, cell, False, True))
                bulk[thread].append(transfer)
            case "read_wait":
                step(thread, "wait_read(0)", *bulk[thread])
            case "wait":
                barrier = random.choice(list(phases))
                step(thread, f"wait(bar.ptr_to([{barrier}]), 0)", *phases[barrier])
    for thread in range(THREADS):
        lines[thread].append("wait_read(0)")
    lines[0] += [f"wait(bar.ptr_to([{b}]), 0)" for b in loads]
    body = "\n".join(
        f"    if t == {32 * thread}:\n" + "\n".join(f"        {line}" for line in lines[thread])
        for thread in range(THREADS)
    )
    return TEXT.format(body=body, rows=STEPS, barriers=BARRIERS), graph


@pytest.mark.parametrize("number", range(80))
def test_reported_exactly_where_the_graph_has_no_path(number: int) -> None:
    compare(number)


@pytest.mark.parametrize("number", range(80, 100))
def test_readers_that_are_dropped_tell_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hazards, "COMPACT_ENTRIES", 1)
    compare(number)


def compare(number: int) -> None:
    text, graph = generated(Random(number))
    wrong = graph.wrong()
    k = kernel(text)
    for seed in SEEDS:
        x, y, z = torch.ones(8, 4), torch.zeros(STEPS, 4), torch.zeros(4)
        got = set(codes(k, x, y, z, seed=seed))
        assert got <= {"sim/race", "sim/in-flight", "sim/proxy-fence"}
        assert bool(got) == bool(wrong), (text, got, wrong)
        if wrong == {"fence"}:
            assert got == {"sim/proxy-fence"}
        elif "fence" not in wrong:
            assert "sim/proxy-fence" not in got


def test_both_kinds_of_programs_are_generated() -> None:
    kinds = [frozenset(generated(Random(number))[1].wrong()) for number in range(80)]
    assert {frozenset(), frozenset({"fence"}), frozenset({"order"})} <= set(kinds)
