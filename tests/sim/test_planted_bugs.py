"""Correct kernels with one bug planted: each is caught, and by what. Bugs of tensor memory: ``planted_blackwell``.

A bug is an edit of a kernel's text. What catches it is a broken contract (found without running), a
fault of the simulator, or, where an address is wrong and the synchronisation is right, the numbers.
Run as a module, prints the table: ``python -m tests.sim.test_planted_bugs``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sim import planted_blackwell, planted_blackwell_kernels, planted_kernels
from tests.sim.planted_bug import IN_FLIGHT_OR_RACE, NUMBERS, Bug, bug
from tests.sim.written import kernel, reports

SUBJECTS = planted_kernels.SUBJECTS | planted_blackwell_kernels.SUBJECTS
SEEDS = range(3)

WAIT = '        T.ptx["cp.async.wait_group"](1)\n'
SYNC = "        T.cuda.cta_sync()\n"
COMMIT = '        T.ptx["cp.async.commit_group"]()\n'
LAST = "    for i in T.unroll(4):\n        Y["
TAIL = f"{COMMIT}{LAST}"
"""The commit at the end of the ring's loop."""
READ = "total[i] += ring[n % 3, (3 - t // 16) * 4 + i, t % 16]"
REFILL = "to.sub[(n + 2) % 3, row, chunk, :]"
SOURCE = "tiles.sub[first + row, n + 2, chunk, :]"
FILL_A = "a_to.sub[(n + 2) % 3, row, chunk, :]"
FIRST = "tiles.sub[first + row, n, chunk, :]"
AHEAD = f"chunk_bytes=16, src_size=kept)\n{COMMIT}    total"
"""The end of the ring's copies ahead of its loop."""
FULL = "            T.cuda.named_barrier_sync(1 + n % 2, 128)\n    elif"
TAKE = "            T.cuda.named_barrier_sync(1 + n % 2, 128)\n            for i"
ROLE_WAIT = '            T.ptx["cp.async.wait_group"](0)\n'
TILE_SYNC = f"{SYNC}        for h in T.unroll(2):\n            for i"
TILE_END = "first // 4 + chunk, :], r)\n        T.cuda.cta_sync()\n"
ARRIVE_FULL = """                T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
                    T.ptx.SINK, full.ptr_to([stage]), T.uint32(512))
"""
ARRIVE_EMPTY = (
    '            T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, empty.ptr_to([stage]))\n'
)
WAIT_FULL = "            T.cuda.mbarrier_wait(full.ptr_to([stage]), n // 2 % 2)\n"
POLL_FULL = """            over = T.alloc_local((1,), "bool", layout="default")
            T.ptx["mbarrier.try_wait.parity.shared::cta.b64"](over[0], full.ptr_to([stage]), T.cast(n // 2 % 2, ty="uint32"))
"""
LOADED = "X.sub[n, :], chunk_bytes=512, mbar=full.ptr_to([stage]))\n"
END_FULL = """            for i in T.unroll(2):
                T.cuda.mbarrier_wait(full.ptr_to([i]), 1)
                T.ptx["mbarrier.inval.shared::cta.b64"](full.ptr_to([i]))
"""
WAIT_EMPTY = "                T.cuda.mbarrier_wait(empty.ptr_to([stage]), (n // 2 + 1) % 2)\n"
TAKEN = "            a, b = ring[stage, 127 - c], ring[stage, 63 - c]\n"
READ_FENCE = '            T.ptx["fence.proxy.async.shared::cta"]()\n'
WAIT_READ = '                T.ptx["cp.async.bulk.wait_group.read"](1)\n'
PROXY = '            T.ptx["fence.proxy.async.shared::cta"]()\n            T.cuda.named_barrier_sync(1, 64)\n            if c == 0:\n'
BULK_COMMIT = '                T.ptx["cp.async.bulk.commit_group"]()\n'
LAST_STORE = '        if c == 0:\n            T.ptx["cp.async.bulk.wait_group"](0)\n'
PUBLISH = '        T.ptx["fence.mbarrier_init.release.cluster"]()\n'
EXPECT = '        for i in T.unroll(2):\n            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](\n                T.ptx.SINK, bars.ptr_to([i]), T.uint32(256))\n'
MEET = "    T.cuda.cluster_sync()\n    if t == 0 and rank == 0:\n"
PART = "    Y[rank, t] = x[t] + got[t]\n    T.cuda.cluster_sync()\n"
MADE = '    T.ptx["fence.proxy.async.shared::cta"]()\n    T.cuda.cta_sync()\n'
WAIT_X = "    T.cuda.mbarrier_wait(bars.ptr_to([0]), 0)\n"
WAIT_GOT = "    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([1]), 0)\n"
WGMMA_FENCE = '                T.ptx["wgmma.fence.sync.aligned"]()\n'
WGMMA_COMMIT = '                T.ptx["wgmma.commit_group.sync.aligned"]()\n'
WGMMA_WAIT = '                T.ptx["wgmma.wait_group.sync.aligned"](0)\n'
FREE = """                if thread == 0:
                    T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, empty.ptr_to([stage]))
"""
SLICE_BYTES = "full.ptr_to([stage]), T.uint32(24576)"
SLICE = "T.cuda.mbarrier_wait(full.ptr_to([stage]), k // 2 % 2)"
SLOT = "T.cuda.mbarrier_wait(empty.ptr_to([stage]), (k // 2 + 1) % 2)"
OF_A = "a_ring.view(2, 2, 64, 4, 16).sub[stage, consumer]"
ADDEND = "            T.cuda.mbarrier_wait(added.ptr_to([0]), tile)\n"
ADDED = '            T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, added.ptr_to([1]))\n'
TAKE_BUFFER = (
    '            if thread == 0:\n                T.ptx["cp.async.bulk.wait_group.read"](0)\n'
)
MEET_1 = "            T.cuda.named_barrier_sync(1 + consumer, 128)\n"
GIVE_BUFFER = (
    READ_FENCE + MEET_1 + "            if thread == 0:\n                T.cuda.tile.apply("
)
STORED = '                T.ptx["cp.async.bulk.commit_group"]()\n'
FINISH = '        if thread == 0:\n            T.ptx["cp.async.bulk.wait_group"](0)\n'
INC = '        T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)\n'

BUGS: tuple[Bug, ...] = (
    # Waits and groups.
    bug("ring", "no wait", "sim/in-flight", (WAIT, "")),
    bug("ring", "wait one too weak", "sim/in-flight", (WAIT, WAIT.replace("(1)", "(2)"))),
    bug("ring", "no commit in the loop", "sim/in-flight", (TAIL, LAST)),
    bug("ring", "commit only where a copy was issued", "sim/in-flight", (TAIL, f"    {TAIL}")),
    bug("ring", "commit ahead of the copy", "sim/in-flight",
        ("        if n + 2 < 6:\n", f"{COMMIT}        if n + 2 < 6:\n"), (TAIL, LAST)),
    bug("ring", "only warp 0 waits", "sim/in-flight", (WAIT, f"        if t < 32:\n    {WAIT}")),
    bug("ring", "one tile too few ahead", "sim/in-flight", ("T.unroll(2)", "T.unroll(1)")),
    bug("ring", "wait behind the barrier", "sim/race", (WAIT + SYNC, SYNC + WAIT)),
    bug("gemm", "no wait", "sim/in-flight", (WAIT, "")),
    bug("gemm", "wait one too weak", "sim/in-flight", (WAIT, WAIT.replace("(1)", "(2)"))),
    bug("gemm", "wait behind the barrier", "sim/race", (WAIT + SYNC, SYNC + WAIT)),
    bug("roles", "no wait", "sim/in-flight", (ROLE_WAIT, "")),
    bug("roles", "the newest group stays pending", IN_FLIGHT_OR_RACE, ("wait_group\"](0)", "wait_group\"](1)")),
    bug("roles", "the adding warps wait, not the copying ones", "sim/in-flight",
        (ROLE_WAIT, ""), (TAKE, TAKE.replace("            for i", f"{ROLE_WAIT}            for i"))),
    bug("roles", "wait behind the barrier", IN_FLIGHT_OR_RACE,
        (ROLE_WAIT + FULL.removesuffix("    elif"), FULL.removesuffix("    elif") + ROLE_WAIT)),
    # Barriers.
    bug("ring", "no barrier", "sim/race", (SYNC, "")),
    bug("ring", "barrier of a warp only", "sim/race", (SYNC, SYNC.replace("cta", "warp"))),
    bug("ring", "barrier in half of each warp", "sim/barrier-divergence",
        (SYNC, f"        if t % 2 == 0:\n    {SYNC}")),
    bug("ring", "barrier in one warp", "sim/race", (SYNC, f"        if t < 32:\n    {SYNC}")),
    bug("ring", "stage refilled before the barrier", "sim/race",
        ("range(6):\n", "range(6):\n        early = (n + 2) % 3\n        if n + 2 < 6:\n"
         "            T.cuda.tile.apply(copy, to.sub[early, row, chunk, :], tiles.sub[first + row, n + 2,"
         " chunk, :],\n                              chunk_bytes=16, src_size=kept)\n" + COMMIT),
        ("        if n + 2 < 6:\n            T.cuda.tile.apply(copy, to.sub[(n", "        if n > 6:\n            T.cuda.tile.apply(copy, to.sub[(n"),
        (TAIL, LAST), (WAIT, WAIT.replace("(1)", "(2)"))),
    bug("transpose", "no barrier before reading", "sim/race", (TILE_SYNC, TILE_SYNC.removeprefix(SYNC))),
    bug("transpose", "no barrier before overwriting", "sim/race", (TILE_END, TILE_END.removesuffix(SYNC))),
    bug("transpose", "barrier of a warp before reading", "sim/race",
        (TILE_SYNC, TILE_SYNC.replace("cta_sync", "warp_sync"))),
    bug("transpose", "barrier in three of four warps", "sim/race",
        (TILE_SYNC, f"        if t < 96:\n    {TILE_SYNC}")),
    bug("gemm", "no barrier", "sim/race", (SYNC, "")),
    bug("gemm", "barrier of a warp only", "sim/race", (SYNC, SYNC.replace("cta", "warp"))),
    bug("roles", "no barrier when a slot is full", "sim/deadlock", (FULL, "    elif")),
    bug("roles", "the adding warps meet at the wrong barrier", "sim/deadlock",
        (TAKE, TAKE.replace("1 + n % 2", "2 - n % 2"))),
    bug("roles", "barrier counts half of the threads", "sim/race",
        (FULL, FULL.replace("128", "64")), (TAKE, TAKE.replace("128", "64"))),
    bug("roles", "barriers count differently on both sides", "sim/barrier-count", (TAKE, TAKE.replace("128", "96"))),
    # Stages.
    bug("ring", "refills the stage being read", "sim/race", (REFILL, REFILL.replace("n + 2", "n + 3"))),
    bug("ring", "refills the stage in flight", "sim/in-flight", (REFILL, REFILL.replace("n + 2", "n + 1"))),
    bug("ring", "reads the next stage", "sim/in-flight", (READ, READ.replace("n % 3", "(n + 1) % 3"))),
    bug("ring", "reads the stage before", "sim/unwritten-read", (READ, READ.replace("n % 3", "(n + 2) % 3"))),
    bug("ring", "two stages for a distance of two", "sim/race",
        (REFILL, REFILL.replace("% 3", "% 2")), (READ, READ.replace("% 3", "% 2"))),
    bug("ring", "stages overlap in the layout", "tile/read-only", ("(256,16,1)", "(128,16,1)")),
    bug("gemm", "refills the stage being read", "sim/race", (FILL_A, FILL_A.replace("n + 2", "n"))),
    bug("gemm", "multiplies stages of different tiles", "sim/in-flight",
        ("b_words.sub[n % 3", "b_words.sub[(n + 1) % 3")),
    bug("roles", "both slots are one", "sim/race", ("slots.sub[n % 2", "slots.sub[0"), ("slots[n % 2", "slots[0")),
    bug("roles", "adds the slot not yet full", "sim/race", ("slots[n % 2", "slots[1 - n % 2")),
    # Sources and zero fill.
    bug("ring", "source overwritten while it is copied", "sim/in-flight",
        (TAIL, f"            X[first + row, 16 * n + 32 + 4 * chunk] = 0.0\n{TAIL}")),
    bug("ring", "rows left out instead of zeroed", "sim/unwritten-read",
        (AHEAD, AHEAD.replace("src_size=kept", "pred=kept > 0"))),
    bug("ring", "rows past the end are not zeroed", NUMBERS,
        ("T.uint32(0))", "T.uint32(16))")),
    bug("ring", "part of a chunk is zeroed", NUMBERS, ("T.uint32(16), T", "T.uint32(12), T")),
    bug("ring", "copies more than a chunk", "sim/copy-size", ("T.uint32(16), T", "T.uint32(20), T")),
    bug("ring", "one thread does not copy", "sim/unwritten-read",
        (AHEAD, AHEAD.replace("kept)", "kept, pred=t != 63)"))),
    bug("gemm", "half of a tile is not copied", "sim/unwritten-read",
        ("a_from.sub[first + row, n, chunk, :], chunk_bytes=16)", "a_from.sub[first + row, n, chunk, :], chunk_bytes=16, pred=h == 0)")),
    bug("transpose", "half of a tile is not stored", "sim/unwritten-read",
        ("for h in T.unroll(2):\n            T.cuda", "for h in T.unroll(1):\n            T.cuda")),
    # Addresses.
    bug("ring", "source row off by one", "tile/bounds", (SOURCE, SOURCE.replace("first + row", "first + row + 1"))),
    bug("ring", "source tile off by one", "tile/bounds", (SOURCE, SOURCE.replace("n + 2", "n + 3"))),
    bug("ring", "next chunk of the row", NUMBERS, (FIRST, FIRST.replace("chunk", "(chunk + 1) % 4"))),
    bug("ring", "reads one row on", "sim/out-of-bounds", (READ, READ.replace("* 4 + i", "* 4 + i + 1"))),
    bug("ring", "reads without the swizzle", NUMBERS,
        ("    kept =", '    flat = ring.view(3, 16, 16, layout=T.layout("(3,16,16):(256,16,1)"))\n    kept ='),
        (READ, READ.replace("ring[", "flat["))),
    bug("ring", "declared alignment is too small", "cp_async/alignment", ("align=128", "align=8")),
    bug("ring", "operands the wrong way round", "cp_async/direction",
        ("to.sub[n, row, chunk, :], tiles.sub[first + row, n, chunk, :]", "tiles.sub[first + row, n, chunk, :], to.sub[n, row, chunk, :]")),
    bug("ring", "chunk of the wrong width", "cp_async/chunk-bytes",
        (AHEAD, AHEAD.replace("chunk_bytes=16", "chunk_bytes=8"))),
    bug("transpose", "reads without the swizzle", NUMBERS,
        ("    r =", '    flat = tile.view(32, 32, layout=T.layout("(32,32):(32,1)"))\n    r ='),
        ("r[i] = tile[", "r[i] = flat[")),
    bug("transpose", "column off by one", "sim/out-of-bounds", ("chunk * 4 + i,", "chunk * 4 + i + 1,")),
    bug("transpose", "output tile of the wrong CTA", NUMBERS, ("first // 4 + chunk", "8 - first // 4 + chunk")),
    bug("transpose", "reads rows, not columns", NUMBERS,
        ("tile[chunk * 4 + i, h * 16 + row]", "tile[h * 16 + row, chunk * 4 + i]")),
    bug("transpose", "pitch breaks the vector's alignment", "ld_st/alignment",
        ("swizzle(2,3,3) o (32,32):(32,1)", "(32,32):(33,1)")),
    bug("gemm", "ldmatrix in half of a warp", "scope/partial-warp",
        ("        T.cuda.tile.apply(load, b.view(4, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (4,))),\n                          b_tile, scope=\"warp\")",
         "        if lane < 16:\n            T.cuda.tile.apply(load, b.view(4, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (4,))),\n                          b_tile, scope=\"warp\")")),
    bug("gemm", "loads without the swizzle", NUMBERS,
        ("a_words, b_words = As.view(\"uint32\")", "a_words, b_words = As.view(3, 32, 32, layout=T.layout(\"(3,32,32):(1024,32,1)\")).view(\"uint32\")")),
    bug("gemm", "quadrants of A in the wrong order", NUMBERS,
        ("a_tile.view(2, 8, 4, 4).permute(2, 0, 1, 3)", "a_tile.view(2, 8, 2, 2, 4).permute(2, 0, 3, 1, 4)")),
    bug("gemm", "B transposed while loading", NUMBERS,
        ("    fragment =", '    turned = T.ptx["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"]\n    fragment ='),
        ("tile.apply(load, b", "tile.apply(turned, b")),
    bug("gemm", "both warps take the same rows", NUMBERS, ("a_words.sub[n % 3, warp * 16 : warp * 16 + 16, :]", "a_words.sub[n % 3, 0:16, :]")),
    bug("gemm", "accumulator starts unset", "sim/unwritten-read", ("        total[i] = 0.0", "        pass")),
    bug("gemm", "registers of A in B's order", NUMBERS, ('fragment("m16n8k16", "A", (1, 2))', 'fragment("m16n8k16", "B", (2, 2))')),
    bug("gemm", "A in the accumulator's layout", "mma_sync/owner", ('fragment("m16n8k16", "A", (1, 2))', 'fragment("m16n8k16", "D", (1, 2))')),
    bug("roles", "threads add their own bytes' neighbours", NUMBERS, ("127 - t", "(128 - t) % 64")),
    # Mbarriers, bulk copies and their groups.
    bug("bulk", "no bytes expected", "sim/mbarrier-bytes", (ARRIVE_FULL, ARRIVE_FULL.replace(".expect_tx", "").replace(", T.uint32(512)", ""))),
    bug("bulk", "too many bytes expected", "sim/mbarrier-bytes", (ARRIVE_FULL, ARRIVE_FULL.replace("512", "528"))),
    bug("bulk", "too few bytes expected", "sim/mbarrier-bytes", (ARRIVE_FULL, ARRIVE_FULL.replace("512", "256"))),
    bug("bulk", "bytes expected on the wrong barrier", "sim/deadlock", (ARRIVE_FULL, ARRIVE_FULL.replace("full.", "empty."))),
    bug("bulk", "half of a row is loaded", "sim/mbarrier-bytes", ("ring.sub[stage, :], X.sub[n, :], chunk_bytes=512", "ring.sub[stage, 0:64], X.sub[n, 0:64], chunk_bytes=256")),
    bug("bulk", "no wait for the row", "sim/in-flight", (WAIT_FULL, "")),
    bug("bulk", "waits for the row with the wrong parity", "sim/in-flight or sim/deadlock", (WAIT_FULL, WAIT_FULL.replace("n // 2 % 2", "(n // 2 + 1) % 2"))),
    bug("bulk", "parity never changes", "sim/deadlock or sim/in-flight", (WAIT_FULL, WAIT_FULL.replace("n // 2 % 2", "0"))),
    bug("bulk", "only one warp waits for the row", "sim/in-flight", (WAIT_FULL, f"            if warp == 1:\n    {WAIT_FULL}")),
    bug("bulk", "no wait for the slot", "sim/mbarrier-arrivals", (WAIT_EMPTY, "")),
    bug("bulk", "waits for the slot with the wrong parity", "sim/deadlock", (WAIT_EMPTY, WAIT_EMPTY.replace("(n // 2 + 1) % 2", "n // 2 % 2"))),
    bug("bulk", "no arrival when the slot is free", "sim/deadlock", (ARRIVE_EMPTY, "")),
    bug("bulk", "arrives twice", "sim/mbarrier-arrivals", (ARRIVE_EMPTY, ARRIVE_EMPTY * 2)),
    bug("bulk", "arrives before it has read", "sim/race", (TAKEN + READ_FENCE + ARRIVE_EMPTY, ARRIVE_EMPTY + TAKEN)),
    bug("bulk", "slot counts half of its readers", "sim/mbarrier-arrivals", ("T.uint32(64)", "T.uint32(32)")),
    bug("bulk", "slot counts more than its readers", "sim/deadlock", ("T.uint32(64)", "T.uint32(96)")),
    bug("bulk", "barriers used before they are initialised", "sim/mbarrier-init", ("    if t == 0:\n        for i in T.unroll(2):", "    if t == 95:\n        for i in T.unroll(2):"), (PUBLISH + "    T.cuda.cta_sync()\n", PUBLISH)),
    bug("bulk", "second barrier not initialised", "sim/mbarrier-init", ("        for i in T.unroll(2):\n            T.ptx", "        for i in T.unroll(1):\n            T.ptx")),
    bug("bulk", "polls once for the row", "sim/in-flight", (WAIT_FULL, POLL_FULL)),
    bug("bulk", "barriers end while others wait", "sim/mbarrier-inval or sim/mbarrier-init", (LOADED, LOADED + END_FULL)),
    bug("bulk", "no proxy fence", "sim/proxy-fence", (PROXY, PROXY.split("\n", 1)[1])),
    bug("bulk", "proxy fence of global memory", "sim/proxy-fence", (PROXY, PROXY.replace("shared::cta", "global"))),
    bug("bulk", "no proxy fence after reading a row", "sim/proxy-fence", (READ_FENCE + ARRIVE_EMPTY, ARRIVE_EMPTY)),
    bug("bulk", "proxy fence behind the arrival", "sim/proxy-fence", (READ_FENCE + ARRIVE_EMPTY, ARRIVE_EMPTY + READ_FENCE)),
    bug("bulk", "result overwritten while it is stored", "sim/in-flight", (WAIT_READ, "                pass\n")),
    bug("bulk", "wait for the store too weak", "sim/in-flight", (WAIT_READ, WAIT_READ.replace("(1)", "(2)"))),
    bug("bulk", "another thread waits for the store", "sim/in-flight", (f"            if c == 0:\n{WAIT_READ}", f"            if c == 1:\n{WAIT_READ}")),
    bug("bulk", "no commit", "sim/in-flight", (BULK_COMMIT, "")),
    bug("bulk", "waits with cp.async's groups", "sim/in-flight", (WAIT_READ, WAIT_READ.replace("bulk.wait_group.read", "wait_group"))),
    bug("bulk", "ends before the last store has read", "sim/in-flight", (LAST_STORE, "")),
    bug("bulk", "stored before both warps have written", "sim/race", (PROXY, PROXY.replace("            T.cuda.named_barrier_sync(1, 64)\n", ""))),
    bug("bulk", "row of another round", "sim/in-flight", ("Y.sub[n, :]", "Y.sub[n // 2 * 2, :]")),
    bug("cluster", "multicast leaves a CTA out", "sim/mbarrier-bytes", ("T.uint16(3)", "T.uint16(1)")),
    bug("cluster", "multicast beyond the cluster", "cp_async_bulk/cta-mask", ("T.uint16(3)", "T.uint16(7)")),
    bug("cluster", "sent to itself", NUMBERS, ("remote_cta_id=1 - rank", "remote_cta_id=rank")),
    bug("cluster", "sent past the cluster", "sim/out-of-bounds", ("remote_cta_id=1 - rank", "remote_cta_id=rank + 1")),
    bug("cluster", "barriers not initialised in the other CTA", "sim/mbarrier-init", (PUBLISH, ""), (MEET, MEET.replace("cluster_sync", "cta_sync"))),
    bug("cluster", "no cluster barrier after the fence of initialisation", "sim/mbarrier-init", (MEET, MEET.replace("cluster_sync", "cta_sync"))),
    bug("cluster", "barriers initialised by one CTA only", "sim/mbarrier-init", ("    if t == 0:\n        for i in T.unroll(2):\n            T.ptx[\"mbarrier.init", "    if t == 0 and rank == 0:\n        for i in T.unroll(2):\n            T.ptx[\"mbarrier.init")),
    bug("cluster", "bytes expected in one CTA only", "sim/mbarrier-bytes", (EXPECT, "        if rank == 0:\n" + "".join(f"    {line}\n" for line in EXPECT.splitlines()))),
    bug("cluster", "no wait for the multicast", "sim/in-flight", (WAIT_X, "")),
    bug("cluster", "no wait for what was sent", "sim/in-flight", (WAIT_GOT, "")),
    bug("cluster", "both copies on one barrier", "sim/mbarrier-bytes", ("mbar=bars.ptr_to([1])", "mbar=bars.ptr_to([0])")),
    bug("cluster", "no proxy fence before sending", "sim/proxy-fence", (MADE, "    T.cuda.cta_sync()\n")),
    bug("cluster", "no barrier before sending", "sim/race", (MADE, MADE.split("\n", 1)[0] + "\n")),
    bug("cluster", "ends while the other still sends", "sim/in-flight", (PART, PART.removesuffix("    T.cuda.cluster_sync()\n"))),
    bug("cluster", "loaded by both CTAs", "sim/mbarrier-bytes", ("if t == 0 and rank == 0", "if t == 0")),
    bug("cluster", "written over before it was sent", "sim/in-flight", ("    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([1])", "    made[t] = 0.0\n    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([1])")),
    bug("cluster", "multicast before the other CTA has started", "sim/cluster-not-started", (MEET, MEET.replace("cluster_sync", "cluster_arrive")), (WAIT_X, "    T.cuda.cluster_wait()\n" + WAIT_X)),
    # Flags in global memory.
    bug("flags", "nobody sets the flag", "sim/deadlock", ('        T.ptx["st.release.gpu.global.b32"](F.ptr_to([cta]), T.int32(99))', "        pass")),
    bug("flags", "waits for its own flag", "sim/deadlock", ("F.ptr_to([cta - 1])", "F.ptr_to([cta])")),
    bug("flags", "the flag is set to another value", "sim/deadlock", ("T.int32(99)", "T.int32(98)")),
    # TMA, wgmma, registers of warpgroups.
    bug("tma_gemm", "no wgmma.fence", "sim/wgmma-fence or wgmma/fence", (WGMMA_FENCE, "")),
    bug("tma_gemm", "wgmma.fence before the first slice only", "sim/wgmma-fence", (WGMMA_FENCE, ""), (INC, INC + WGMMA_FENCE[8:])),
    bug("tma_gemm", "no commit", "sim/in-flight", (WGMMA_COMMIT, "")),
    bug("tma_gemm", "no wait for the products", "sim/in-flight", (WGMMA_WAIT, "")),
    bug("tma_gemm", "wait leaves a group pending", "sim/in-flight", (WGMMA_WAIT, WGMMA_WAIT.replace("(0)", "(1)"))),
    bug("tma_gemm", "waits before it commits", "sim/in-flight", (WGMMA_COMMIT + WGMMA_WAIT, WGMMA_WAIT + WGMMA_COMMIT)),
    bug("tma_gemm", "slot freed before the wait", "sim/in-flight", (WGMMA_WAIT + FREE, FREE + WGMMA_WAIT)),
    bug("tma_gemm", "sums touched between product and wait", "wgmma/in-flight", (WGMMA_COMMIT, WGMMA_COMMIT + "                sums[0, 0, 0] += 0.0\n")),
    bug("tma_gemm", "sums are not set before the first product", "sim/unwritten-read", ("accum=k > 0", "accum=True")),
    bug("tma_gemm", "sums of every slice but the last are lost", NUMBERS, ("accum=k > 0", "accum=False")),
    bug("tma_gemm", "both warpgroups take the same rows of A", NUMBERS, (OF_A, OF_A.replace("consumer", "0"))),
    bug("tma_gemm", "multiplies the slice that is loaded", "sim/in-flight", (OF_A, OF_A.replace("stage", "1 - stage"))),
    bug("tma_gemm", "no wait for the slice", "sim/in-flight", (SLICE, "pass")),
    bug("tma_gemm", "waits for the slice with the wrong parity", "sim/in-flight or sim/deadlock", (SLICE, SLICE.replace("k // 2", "(k // 2 + 1)"))),
    bug("tma_gemm", "one warp of four waits for the slice", "sim/in-flight", (SLICE, f"if thread < 32:\n                    {SLICE}")),
    bug("tma_gemm", "no wait for the slot", "sim/mbarrier-arrivals or sim/race or sim/in-flight", (SLOT, "pass")),
    bug("tma_gemm", "waits for the slot with the wrong parity", "sim/deadlock", (SLOT, SLOT.replace("(k // 2 + 1)", "k // 2"))),
    bug("tma_gemm", "too many bytes expected", "sim/mbarrier-bytes", (SLICE_BYTES, SLICE_BYTES.replace("24576", "32768"))),
    bug("tma_gemm", "bytes of B not expected", "sim/mbarrier-bytes", (SLICE_BYTES, SLICE_BYTES.replace("24576", "16384"))),
    bug("tma_gemm", "no bytes expected", "sim/mbarrier-bytes", ("announce(T.ptx.SINK, " + SLICE_BYTES, 'T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, full.ptr_to([stage])')),
    bug("tma_gemm", "B completes on the other slot", "sim/in-flight", ("coords=(64 * tile, 64 * k), swizzle=3,\n                                      mbar=full.ptr_to([stage])", "coords=(64 * tile, 64 * k), swizzle=3,\n                                      mbar=full.ptr_to([1 - stage])")),
    bug("tma_gemm", "one warpgroup does not free the slot", "sim/deadlock", (FREE, FREE.replace("thread == 0", "thread == 0 and consumer == 0"))),
    bug("tma_gemm", "every thread frees the slot", "sim/mbarrier-arrivals", (FREE, FREE.replace("if thread == 0", "if thread >= 0"))),
    bug("tma_gemm", "slot counts one warpgroup", "sim/mbarrier-arrivals or sim/in-flight", ("T.uint32(2))", "T.uint32(1))")),
    bug("tma_gemm", "no wait for the addend", "sim/in-flight", (ADDEND, "")),
    bug("tma_gemm", "no proxy fence after reading the addend", "sim/proxy-fence", (READ_FENCE + ADDED, ADDED)),
    bug("tma_gemm", "addend freed before it is read", IN_FLIGHT_OR_RACE, (READ_FENCE + ADDED, READ_FENCE), (ADDEND, ADDEND + ADDED)),
    bug("tma_gemm", "no wait before the buffer is filled again", "sim/in-flight", (TAKE_BUFFER, "")),
    bug("tma_gemm", "another thread waits for the buffer", "sim/in-flight", (TAKE_BUFFER, TAKE_BUFFER.replace("thread == 0", "thread == 32"))),
    bug("tma_gemm", "buffer filled before the barrier", "sim/in-flight or sim/race", (TAKE_BUFFER + MEET_1, TAKE_BUFFER)),
    bug("tma_gemm", "no proxy fence before the store", "sim/proxy-fence", (GIVE_BUFFER, GIVE_BUFFER.removeprefix(READ_FENCE))),
    bug("tma_gemm", "stored before all have written", "sim/race", (GIVE_BUFFER, GIVE_BUFFER.replace(MEET_1, ""))),
    bug("tma_gemm", "store is not committed", "sim/in-flight", (STORED, "")),
    bug("tma_gemm", "ends before the last store has read", "sim/in-flight", (FINISH, "")),
    bug("tma_gemm", "both warpgroups on one named barrier", "sim/barrier-count or sim/race", (TAKE_BUFFER + MEET_1, TAKE_BUFFER + MEET_1.replace("1 + consumer", "1")), (GIVE_BUFFER, GIVE_BUFFER.replace("1 + consumer", "1"))),
    bug("tma_gemm", "both warpgroups store the same rows", "sim/in-flight", ("coords=(64 * consumer, 64 * tile)", "coords=(0, 64 * tile)")),
    bug("tma_gemm", "producer keeps too many registers", "tile/register-budget", ("aligned.u32\"](24)", "aligned.u32\"](40)")),
    bug("tma_gemm", "producer gives up no registers", "tile/register-budget", ("        T.ptx[\"setmaxnreg.dec.sync.aligned.u32\"](24)\n", "")),
    *planted_blackwell.BUGS,
)  # fmt: skip


def planted(bug: Bug) -> str:
    """The kernel's text with the bug in it."""
    text = SUBJECTS[bug.subject].text
    for old, new in bug.edits:
        assert text.count(old) == 1, f"{bug.name}: {old!r} is in the kernel {text.count(old)} times"
        text = text.replace(old, new)
    return text


def with_bug(bug: Bug) -> Any:
    """The kernel that has it."""
    return kernel(planted(bug), target=SUBJECTS[bug.subject].target)


def caught(subject_name: str, k: Any, seed: int) -> list[str]:
    """What a run of the kernel reports, the numbers included; nothing for a correct one."""
    subject = SUBJECTS[subject_name]
    tensors = subject.tensors()
    # numpy has no float8.
    known = (x.float() if x.dtype == torch.float8_e4m3fn else x for x in tensors)
    expected = subject.oracle(*(x.numpy() for x in known), *subject.scalars)
    out = torch.full(subject.output, -99.0)
    found = reports(k, *tensors, out, *subject.scalars, seed=seed)
    if found:
        return [diagnostic.code for diagnostic in found]
    return [] if np.array_equal(out.numpy(), expected) else [NUMBERS]


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("seed", range(6))
def test_correct_kernels_give_no_report(subject: str, seed: int) -> None:
    correct = kernel(SUBJECTS[subject].text, target=SUBJECTS[subject].target)
    assert caught(subject, correct, seed) == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.subject}: {b.name}")
def test_planted_bug_is_caught(bug: Bug) -> None:
    k = with_bug(bug)
    for seed in SEEDS:
        assert set(bug.code.split(" or ")) & set(caught(bug.subject, k, seed))


def test_bugs_are_distinct_and_many() -> None:
    assert len({planted(b) for b in BUGS}) == len(BUGS) >= 30
    assert all(planted(b) != SUBJECTS[b.subject].text for b in BUGS)
    assert {b.subject for b in BUGS} == set(SUBJECTS)


def table() -> str:
    """What catches each bug, as a markdown table."""
    rows = ["| kernel | planted bug | caught by |", "|---|---|---|"]
    for b in BUGS:
        k = with_bug(b)
        codes = dict.fromkeys(c for seed in SEEDS for c in caught(b.subject, k, seed))
        rows.append(f"| {b.subject} | {b.name} | {', '.join(f'`{c}`' for c in codes)} |")
    return "\n".join(rows)


PAGE = Path(__file__).parents[2] / "docs" / "planted_bugs.md"
HEAD = """# Planted bugs

Generated by `make docs`; do not edit. Correct kernels (`tests/sim/planted_kernels.py`, `planted_blackwell_kernels.py`), each with one edit that plants a bug of
synchronisation or of addresses, and what catches it: a code of the checker or the simulator, or, where a wrong address is
legal, the numbers. Unedited they give no report. `ring`: a cp.async pipeline that sums columns; `transpose`: through shared
memory; `gemm`: cp.async, ldmatrix and mma.sync; `roles`: warps that copy and warps that add, on named barriers;
`bulk`: a ring of bulk copies on mbarriers, and bulk stores; `cluster`: a multicast, and bulk copies between two CTAs;
`flags`: CTAs that wait for each other by flags in global memory;
`tma_gemm`: TMA loads, wgmma in two warpgroups, TMA stores.

On sm_100a, with tensor memory: `tmem_tile`: one tile, from `tcgen05.alloc` to `dealloc`; `tmem_ring`: TMA loads,
tcgen05.mma into two accumulators, in warps with roles; `tmem_pair`: the same by two CTAs; `tmem_halves`: `tcgen05.st` that
unpacks, split `tcgen05.ld` that packs, in different warps; `tmem_scales`: scale factors by `tcgen05.cp`, a block-scaled product;
`tmem_a`: A in tensor memory.

"""


def test_page_lists_every_bug() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.endswith("` |")]
    assert [(r[0].removeprefix("| "), r[1]) for r in rows] == [(b.subject, b.name) for b in BUGS]
    for row, b in zip(rows, BUGS):
        assert set(re.findall("`([^`]+)`", row[2])) & set(b.code.split(" or ")), row


if __name__ == "__main__":
    PAGE.write_text(HEAD + table() + "\n")
    print(f"wrote docs/{PAGE.name}")
