"""Bugs for the kernels of ``planted_blackwell_kernels``: what goes wrong with tensor memory. Not a test module."""

from __future__ import annotations

from tests.sim.planted_bug import NUMBERS, Bug, bug

IN_FLIGHT, RACE, TMEM_RACE, DEADLOCK = "sim/in-flight", "sim/race", "sim/tmem-race", "sim/deadlock"
UNWRITTEN, DEALLOC = "sim/unwritten-read", "sim/tmem-dealloc"

BEFORE = '    T.ptx["tcgen05.fence::before_thread_sync"]()\n'
AFTER = '    T.ptx["tcgen05.fence::after_thread_sync"]()\n'
SYNC = "    T.cuda.cta_sync()\n"
PROXY = 'T.ptx["fence.proxy.async.shared::cta"]()\n'
WAIT_LD = 'T.ptx["tcgen05.wait::ld.sync.aligned"]()\n'
WAIT_ST = 'T.ptx["tcgen05.wait::st.sync.aligned"]()\n'
RELINQUISH = '        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()\n'
ALLOC = '        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(64))\n'
FREE = '        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(64))\n'
FREE_ALL = f"    if warp == 0:\n{FREE}"
COMMIT = 'T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))\n'


def indented(text: str, head: str = "    if t < 32:\n") -> str:
    """The lines under an ``if``."""
    return head + "".join(f"    {line}\n" for line in text.splitlines())


# --- tmem_tile

WAIT_TILE = "        T.cuda.mbarrier_wait(done.ptr_to([0]), n)\n"
FILLED = f"        {PROXY}    {SYNC}"
LD_TILE = WAIT_TILE + AFTER
END_TILE = BEFORE + SYNC + FREE_ALL
READ_TILE = "        D.view(4, 32, 32), scope"
MMA_TILE = """            T.cuda.tile.apply(
                T.ptx["tcgen05.mma.cta_group::1.kind::f16"], D.view(1, 1, 128, 32),
                a.view(1, 128, 4, 16).permute(0, 2, 1, 3), b.view(1, 32, 4, 16).permute(0, 2, 1, 3),
                instruction_shape=(128, 32, 16), accum=n > 0)
"""
PUBLISHED = BEFORE + SYNC + AFTER
STORED_TILE = "    for i in T.unroll(32):\n        C[t, i] = sums[i]\n"
LOAD_TILE = """    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
        sums.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
        D.view(4, 32, 32), scope="warpgroup")
"""

STORE_ZEROS = """    T.cuda.tile.apply(
        T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"], D.view(4, 32, 32),
        zero.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))), scope="warpgroup")
"""

TILE: tuple[Bug, ...] = (
    # Allocation.
    bug("tmem_tile", "no allocation", UNWRITTEN, (ALLOC, "")),
    bug("tmem_tile", "no allocation, address assumed", "sim/tmem-unallocated",
        (ALLOC, ""), ("decl_tmem(slot[0]", "decl_tmem(T.uint32(0)"), (FREE_ALL, "")),
    bug("tmem_tile", "allocated, another address assumed", "sim/tmem-unallocated",
        ("decl_tmem(slot[0]", "decl_tmem(slot[0] ^ 64")),
    bug("tmem_tile", "half of the columns allocated", "sim/tmem-unallocated",
        (ALLOC, ALLOC.replace("64", "32")), (FREE, FREE.replace("64", "32")), ("D = both.view(128, 2, 32).sub[:, 0, :]", "D = both.view(128, 2, 32).sub[:, 1, :]")),
    bug("tmem_tile", "48 columns", "ptx/literal-range", (ALLOC, ALLOC.replace("64", "48"))),
    bug("tmem_tile", "96 columns, by a number known when it runs", "sim/tmem-alloc",
        (ALLOC, ALLOC.replace("T.uint32(64)", 'T.cast(warp + 96, ty="uint32")'))),
    bug("tmem_tile", "every warp allocates", RACE, (f"    if warp == 0:\n{ALLOC}", f"    if warp >= 0:\n{ALLOC}")),
    bug("tmem_tile", "half of a warp allocates", "sim/inactive-lane", (f"    if warp == 0:\n{ALLOC}", f"    if t < 16:\n{ALLOC}")),
    bug("tmem_tile", "address read before the barrier", RACE, (PUBLISHED, BEFORE + AFTER)),
    bug("tmem_tile", "allocates after relinquishing", "sim/tmem-alloc", (ALLOC + RELINQUISH, RELINQUISH + ALLOC)),
    bug("tmem_tile", "allocates more than there is", DEADLOCK, (ALLOC, ALLOC.replace("64", "512") * 2)),
    bug("tmem_tile", "allocates more than before", "sim/tmem-alloc", (ALLOC, ALLOC + ALLOC.replace("64", "128"))),
    bug("tmem_tile", "one of two allocations is not freed", "sim/tmem-leak", (ALLOC, ALLOC + ALLOC)),
    bug("tmem_tile", "never freed", "sim/tmem-leak", (FREE_ALL, "")),
    bug("tmem_tile", "freed twice", DEALLOC, (FREE, FREE + FREE)),
    bug("tmem_tile", "freed by two warps", DEALLOC, (FREE_ALL, FREE_ALL.replace("== 0", "< 2"))),
    bug("tmem_tile", "frees fewer columns", DEALLOC, (FREE, FREE.replace("64", "32"))),
    bug("tmem_tile", "frees from the second column on", DEALLOC, (FREE, FREE.replace("slot[0]", "slot[0] + 1"))),
    bug("tmem_tile", "freed for a pair", "sim/tmem-cta-group", (FREE, FREE.replace("::1", "::2"))),
    bug("tmem_tile", "freed before the loads", "sim/tmem-unallocated", (LD_TILE, LD_TILE + FREE_ALL), (END_TILE, "")),
    bug("tmem_tile", "freed while the product runs", DEALLOC,
        (WAIT_TILE, f"        if n == 1 and warp == 0:\n    {FREE}{WAIT_TILE}"), (END_TILE, "")),
    bug("tmem_tile", "no barrier before freeing", DEALLOC, (END_TILE, BEFORE + FREE_ALL)),
    # Products and what waits for them.
    bug("tmem_tile", "no commit", DEADLOCK, ("            " + COMMIT, "")),
    bug("tmem_tile", "commits before the product", IN_FLIGHT, (MMA_TILE + "            " + COMMIT, "            " + COMMIT + MMA_TILE)),
    bug("tmem_tile", "another thread commits", IN_FLIGHT, ("            " + COMMIT, "        if t == 32:\n            " + COMMIT)),
    bug("tmem_tile", "arrives instead of committing", IN_FLIGHT, (COMMIT, 'T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, done.ptr_to([0]))\n')),
    bug("tmem_tile", "commit for a pair", "sim/tmem-cta-group", (COMMIT, COMMIT.replace("::1", "::2"))),
    bug("tmem_tile", "the barrier counts two", DEADLOCK, ("T.uint32(1))", "T.uint32(2))")),
    bug("tmem_tile", "waits for the other parity", f"{IN_FLIGHT} or {DEADLOCK}", (WAIT_TILE, WAIT_TILE.replace(" n)", " n ^ 1)"))),
    bug("tmem_tile", "waits for the first product alone", TMEM_RACE, (WAIT_TILE, WAIT_TILE.replace(" n)", " 0)"))),
    bug("tmem_tile", "no wait before the refill", IN_FLIGHT, (WAIT_TILE, "    T.cuda.mbarrier_wait(done.ptr_to([0]), 1)\n")),
    bug("tmem_tile", "one warp waits for the product", IN_FLIGHT, (WAIT_TILE, indented(WAIT_TILE, "        if warp == 0:\n"))),
    bug("tmem_tile", "no after-fence ahead of the loads", TMEM_RACE, (LD_TILE, WAIT_TILE)),
    bug("tmem_tile", "after-fence in one warp", TMEM_RACE, (LD_TILE, WAIT_TILE + indented(AFTER))),
    bug("tmem_tile", "no proxy fence", "sim/proxy-fence", (FILLED, f"    {SYNC}")),
    bug("tmem_tile", "no barrier before the product", RACE, (FILLED, f"        {PROXY}")),
    bug("tmem_tile", "adds to what was there", UNWRITTEN, ("accum=n > 0", "accum=True")),
    bug("tmem_tile", "the first half is lost", NUMBERS, ("accum=n > 0", "accum=False")),
    bug("tmem_tile", "another thread goes on without an after-fence", TMEM_RACE, ("        if t == 0:\n            T.cuda.tile", "        if t == 32 * n:\n            T.cuda.tile")),
    bug("tmem_tile", "every thread multiplies", "tcgen05_mma/issuers", ("        if t == 0:\n            T.cuda.tile", "        if t >= 0:\n            T.cuda.tile")),
    # Loads.
    bug("tmem_tile", "no wait for the loads", IN_FLIGHT, ("    " + WAIT_LD, "")),
    bug("tmem_tile", "one warp waits for its loads", IN_FLIGHT, ("    " + WAIT_LD, indented("    " + WAIT_LD))),
    bug("tmem_tile", "wait behind the first use", IN_FLIGHT, ("    " + WAIT_LD + STORED_TILE, STORED_TILE + "    " + WAIT_LD)),
    bug("tmem_tile", "waits for stores, not for loads", IN_FLIGHT, (WAIT_LD, WAIT_ST)),
    bug("tmem_tile", "loaded twice into the same registers", IN_FLIGHT, (LOAD_TILE, LOAD_TILE + LOAD_TILE)),
    bug("tmem_tile", "cells stored again while they are loaded", TMEM_RACE,
        (LOAD_TILE, f'    zero = T.alloc_local((32,), "float32", layout="default")\n    for i in T.unroll(32):\n        zero[i] = 0.0\n{LOAD_TILE}{STORE_ZEROS}'),
        ("    " + WAIT_LD, "    " + WAIT_LD + "    " + WAIT_ST)),
    bug("tmem_tile", "loads the other columns", UNWRITTEN, (READ_TILE, READ_TILE.replace("D.", "both.view(128, 2, 32).sub[:, 1, :]."))),
    bug("tmem_tile", "rows for columns", "tcgen05_ld_st/image", (READ_TILE, READ_TILE.replace("D.view(4, 32, 32)", "D.view(4, 32, 32).permute(0, 2, 1)"))),
    bug("tmem_tile", "another warp's slab", "sim/tmem-address", (LOAD_TILE, LOAD_TILE + '    T.ptx["tcgen05.ld.sync.aligned.32x32b.x1.b32"](sums.view("uint32")[0], slot[0] + (T.cast(warp ^ 1, ty="uint32") << 21))\n')),
    bug("tmem_tile", "half of each warp loads", "scope/partial-warp", (LOAD_TILE, indented(LOAD_TILE, "    if t % 32 < 16:\n"))),
    # Contracts of the product.
    bug("tmem_tile", "an instruction of fewer columns", "tile/atom-shape", ("instruction_shape=(128, 32, 16)", "instruction_shape=(128, 16, 16)")),
    bug("tmem_tile", "an instruction of half the rows", "tile/atom-shape", ("instruction_shape=(128, 32, 16)", "instruction_shape=(64, 32, 16)")),
    bug("tmem_tile", "K of 32", "tcgen05_mma/instruction-shape", ("instruction_shape=(128, 32, 16)", "instruction_shape=(128, 32, 32)")),
    bug("tmem_tile", "sums in every other column", "tcgen05_mma/image", ('"(128,64):(1@TLane,1@TCol)"', '"(128,2,32):(1@TLane,1@TCol,2@TCol)"')),
    bug("tmem_tile", "A said to be MN-major", "tcgen05_mma/descriptor", ("accum=n > 0", 'accum=n > 0, a_major="mn"')),
    bug("tmem_tile", "A without a swizzle of the descriptor's kind", "tcgen05_mma/descriptor", ('a = T.alloc_shared((128, 64), "float16", layout=T.cuda.mma_shared_layout((128, 64), "float16")', 'a = T.alloc_shared((128, 64), "float16", layout="default"')),
    bug("tmem_tile", "declared alignment is too small", "tcgen05_mma/descriptor", ('a = T.alloc_shared((128, 64), "float16", layout=T.cuda.mma_shared_layout((128, 64), "float16"), align=1024)', 'a = T.alloc_shared((128, 64), "float16", layout=T.cuda.mma_shared_layout((128, 64), "float16"), align=128)')),
    bug("tmem_tile", "float16 said to be bfloat16", "tcgen05_mma/operand-type", ("accum=n > 0", 'accum=n > 0, a_format="bfloat16"')),
    bug("tmem_tile", "A and B exchanged", "tile/atom-shape", ("a.view(1, 128, 4, 16).permute(0, 2, 1, 3), b.view(1, 32, 4, 16).permute(0, 2, 1, 3)", "b.view(1, 32, 4, 16).permute(0, 2, 1, 3), a.view(1, 128, 4, 16).permute(0, 2, 1, 3)")),
    bug("tmem_tile", "float16 sums without gaps", "tcgen05_mma/image", ('(128, 64), "float32", layout', '(128, 64), "float16", layout')),
)  # fmt: skip

# --- tmem_ring


TMA_WAIT = "T.cuda.mbarrier_wait(empty.ptr_to([stage]), (k // 2 + 1) % 2)"
SLICE = "T.cuda.mbarrier_wait(full.ptr_to([stage]), k // 2 % 2)"
SUMS_FREE = (
    "                T.cuda.mbarrier_wait(emptied.ptr_to([tile % 2]), (tile // 2 + 1) % 2)\n"
)
MAY_MULTIPLY = f"{SUMS_FREE}            {AFTER}"
MULTIPLY = """                    T.cuda.tile.apply(
                        T.ptx["tcgen05.mma.cta_group::1.kind::f16"], sums.sub[:, tile % 2, :].view(1, 1, 128, 32),
                        a_ring.sub[stage].view(1, 128, 4, 16).permute(0, 2, 1, 3),
                        b_ring.sub[stage].view(1, 32, 4, 16).permute(0, 2, 1, 3),
                        instruction_shape=(128, 32, 16), accum=k > 0)
"""
OTHER_SHAPE = """                    T.cuda.tile.apply(
                        T.ptx["tcgen05.mma.cta_group::1.kind::f16"],
                        sums.view(128, 2, 2, 16).sub[:, tile % 2, 0, :].view(1, 1, 128, 16),
                        a_ring.sub[stage].view(1, 128, 4, 16).permute(0, 2, 1, 3),
                        b_ring.view(2, 2, 16, 64).sub[stage, 0].view(1, 16, 4, 16).permute(0, 2, 1, 3),
                        instruction_shape=(128, 16, 16), accum=True)
"""
SLOT_DONE = "                    commit(empty.ptr_to([stage]))\n"
SUMS_DONE = "                commit(finished.ptr_to([tile % 2]))\n"
SUMS_WAIT = "            T.cuda.mbarrier_wait(finished.ptr_to([tile % 2]), tile // 2)\n"
MAY_LOAD = f"{SUMS_WAIT}        {AFTER}"
LOAD_SUMS = """            T.cuda.tile.apply(
                T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"],
                row.view(4, 32, 32, layout=T.cuda.tcgen05_ld_layout("32x32b", 32, warps=(4,))),
                sums.sub[:, tile % 2, :].view(4, 32, 32), scope="warpgroup")
"""
LOADED = f"            {WAIT_LD}        {BEFORE}"
RELEASE = """            T.cuda.warp_sync()
            if lane == 0:
                T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, emptied.ptr_to([tile % 2]))
"""
STORE = '            T.cuda.tile.apply(T.ptx["st.global.v4.b32"], C.view(128, 4, 8, 4).sub[thread, tile], row.view(8, 4))\n'
END_RING = f"{BEFORE}{SYNC}{AFTER}    if warp == 2:\n{FREE}"
TARGET = "sums.sub[:, tile % 2, :].view(1, 1"
LOADS = "sums.sub[:, tile % 2, :].view(4"

RING: tuple[Bug, ...] = (
    # The ring of slices.
    bug("tmem_ring", "no wait for the slice", IN_FLIGHT, (SLICE, "pass")),
    bug("tmem_ring", "waits for the slice with the wrong parity", f"{IN_FLIGHT} or {DEADLOCK}", (SLICE, SLICE.replace("k // 2", "(k // 2 + 1)"))),
    bug("tmem_ring", "multiplies the slice that is loaded", IN_FLIGHT, ("b_ring.sub[stage].view", "b_ring.sub[1 - stage].view")),
    bug("tmem_ring", "slot filled again before the commit's phase", IN_FLIGHT, (TMA_WAIT, "pass")),
    bug("tmem_ring", "slot freed by an arrival", IN_FLIGHT, (SLOT_DONE, '                    T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, empty.ptr_to([stage]))\n')),
    bug("tmem_ring", "slot committed before the products", IN_FLIGHT, (MULTIPLY + SLOT_DONE, SLOT_DONE + MULTIPLY)),
    bug("tmem_ring", "both slots are committed on one barrier", f"{DEADLOCK} or sim/mbarrier-arrivals", (SLOT_DONE, SLOT_DONE.replace("stage", "0"))),
    bug("tmem_ring", "slot is not committed", DEADLOCK, (SLOT_DONE, "")),
    bug("tmem_ring", "slots count two", DEADLOCK, ("empty.ptr_to([i]), T.uint32(1)", "empty.ptr_to([i]), T.uint32(2)")),
    bug("tmem_ring", "bytes of B not expected", "sim/mbarrier-bytes", ("T.uint32(20480)", "T.uint32(16384)")),
    bug("tmem_ring", "columns of B of the tile before", NUMBERS, ("coords=(32 * (k // 4), ", "coords=(32 * (k // 4) - 32 * (k // 12), ")),
    # Accumulators.
    bug("tmem_ring", "accumulator not waited for", TMEM_RACE, (SUMS_FREE, "")),
    bug("tmem_ring", "accumulator waited for with the wrong parity", DEADLOCK, (SUMS_FREE, SUMS_FREE.replace("(tile // 2 + 1)", "tile // 2"))),
    bug("tmem_ring", "the other accumulator waited for", "sim/mbarrier-arrivals", (SUMS_FREE, SUMS_FREE.replace("[tile % 2]", "[1 - tile % 2]"))),
    bug("tmem_ring", "one warp frees the accumulator", "sim/mbarrier-arrivals", ("emptied.ptr_to([i]), T.uint32(4)", "emptied.ptr_to([i]), T.uint32(1)")),
    bug("tmem_ring", "one warp does not free the accumulator", DEADLOCK, (RELEASE, RELEASE.replace("lane == 0", "lane == 0 and warp < 7"))),
    bug("tmem_ring", "every lane frees the accumulator", "sim/mbarrier-arrivals", (RELEASE, RELEASE.replace("lane == 0", "lane >= 0"))),
    bug("tmem_ring", "no after-fence before the products", TMEM_RACE, (MAY_MULTIPLY, SUMS_FREE)),
    bug("tmem_ring", "after-fence ahead of the wait", TMEM_RACE, (MAY_MULTIPLY, f"            {AFTER}{SUMS_FREE}")),
    bug("tmem_ring", "no before-fence ahead of the release", TMEM_RACE, (LOADED, f"            {WAIT_LD}")),
    bug("tmem_ring", "released before the loads are over", TMEM_RACE, (LOADED + RELEASE, f"        {BEFORE}{RELEASE}            {WAIT_LD}")),
    bug("tmem_ring", "before-fence ahead of the loads' wait", TMEM_RACE, (LOADED, f"        {BEFORE}            {WAIT_LD}")),
    bug("tmem_ring", "released before it is loaded", TMEM_RACE, (LOADED + RELEASE, f"            {WAIT_LD}"), (LOAD_SUMS, f"        {BEFORE}{RELEASE}{LOAD_SUMS}")),
    bug("tmem_ring", "sums used before the loads are over", IN_FLIGHT, (LOADED, f"        {BEFORE}")),
    bug("tmem_ring", "both accumulators are one", TMEM_RACE, (TARGET, TARGET.replace("tile % 2", "0")), (LOADS, LOADS.replace("tile % 2", "0"))),
    bug("tmem_ring", "accumulators overlap", TMEM_RACE, ("(1@TLane,32@TCol,1@TCol)", "(1@TLane,16@TCol,1@TCol)")),
    bug("tmem_ring", "loads the other accumulator", f"{TMEM_RACE} or {UNWRITTEN}", (LOADS, LOADS.replace("tile % 2", "1 - tile % 2"))),
    bug("tmem_ring", "sums are not waited for", f"{TMEM_RACE} or {UNWRITTEN}", (SUMS_WAIT, "")),
    bug("tmem_ring", "sums waited for with the wrong parity", f"{TMEM_RACE} or {UNWRITTEN} or {DEADLOCK}", (SUMS_WAIT, SUMS_WAIT.replace("tile // 2", "(tile // 2 + 1) % 2"))),
    bug("tmem_ring", "the slices' barrier tells that sums are done", TMEM_RACE, (SUMS_WAIT, SUMS_WAIT.replace("finished.ptr_to([tile % 2]), tile // 2", "empty.ptr_to([0]), 0")), (SUMS_DONE, "")),
    bug("tmem_ring", "no after-fence before the loads", TMEM_RACE, (MAY_LOAD, SUMS_WAIT)),
    bug("tmem_ring", "sums committed before the last products", f"{TMEM_RACE} or {UNWRITTEN}", (SUMS_DONE, ""), (MULTIPLY, f"                    if k == 3:\n        {SUMS_DONE}{MULTIPLY}")),
    bug("tmem_ring", "sums are not committed", DEADLOCK, (SUMS_DONE, "")),
    bug("tmem_ring", "a product of another shape adds to the sums", TMEM_RACE,
        (MULTIPLY, MULTIPLY + OTHER_SHAPE)),
    bug("tmem_ring", "sums are not set by the first product", UNWRITTEN, ("accum=k > 0", "accum=True")),
    bug("tmem_ring", "sums go on from the tile before the last", NUMBERS, ("accum=k > 0", "accum=(k > 0) | (tile > 1)")),
    bug("tmem_ring", "two lanes multiply", "tcgen05_mma/issuers", ("        if lane == 0:\n            for tile", "        if lane < 2:\n            for tile")),
    bug("tmem_ring", "warps of two warpgroups load", "scope/uneven", ("elif warp >= 4", "elif warp >= 3")),
    bug("tmem_ring", "freed by the multiplying warp when it is done", DEALLOC, (SUMS_DONE, SUMS_DONE + f"        if warp == 1:\n    {FREE}"), (END_RING, f"{BEFORE}{SYNC}{AFTER}")),
    bug("tmem_ring", "no barrier before the end", f"{DEALLOC} or sim/tmem-unallocated", (END_RING, f"{BEFORE}{AFTER}    if warp == 2:\n{FREE}")),
)  # fmt: skip

# --- tmem_pair

ALLOC_2, FREE_2 = ALLOC.replace("::1", "::2"), FREE.replace("::1", "::2")
MEET_2 = "    T.cuda.cluster_sync()\n"
PUBLISHED_2 = f"{BEFORE}{MEET_2}{AFTER}    sums ="
END_2 = f"{BEFORE}{MEET_2}{AFTER}    if warp == 2:\n{FREE_2}"
SLOT_DONE_2 = "commit(empty.ptr_to([stage]), T.uint16(3))"
SUMS_DONE_2 = "commit(finished.ptr_to([tile % 2]), T.uint16(3))"
COMMIT_2 = 'T.ptx["tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"]'
COMMIT_1 = 'T.ptx["tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64"]'
RELEASE_2 = """T.ptx["mbarrier.arrive.shared::cluster.b64"](
                    T.ptx.SINK, T.cuda.map_shared_rank(emptied.ptr_to([tile % 2]), 0))
"""
SUMS_LOOP = "for tile in range(4):\n            T.cuda.mbarrier_wait(finished"
RELEASE_IF = 'if lane == 0:\n                T.ptx["mbarrier.arrive.shared::cluster'
FIRST = "first = T.cuda.map_shared_rank(full.ptr_to([stage]), 0)"

PAIR: tuple[Bug, ...] = (
    # Allocation.
    bug("tmem_pair", "one CTA allocates", DEADLOCK, (f"    if warp == 2:\n{ALLOC_2}", f"    if warp == 2 and rank == 0:\n{ALLOC_2}")),
    bug("tmem_pair", "the CTAs allocate different numbers", "sim/tmem-alloc", (ALLOC_2, ALLOC_2.replace("T.uint32(64)", 'T.cast(64 << rank, ty="uint32")'))),
    bug("tmem_pair", "allocated for one CTA", "sim/tmem-cta-group", (ALLOC_2, ALLOC)),
    bug("tmem_pair", "the other CTA does not free", "sim/tmem-leak", (END_2, END_2.replace("warp == 2", "warp == 2 and rank == 0"))),
    bug("tmem_pair", "freed for one CTA", "sim/tmem-cta-group", (FREE_2, FREE)),
    bug("tmem_pair", "no cluster barrier at the end", "sim/cluster-exited", (END_2, END_2.replace(MEET_2, SYNC))),
    bug("tmem_pair", "the other CTA ends before the last tile is over", IN_FLIGHT,
        (SUMS_LOOP, SUMS_LOOP.replace("4", "4 - rank")), (END_2, END_2.replace(MEET_2, SYNC)), (RELEASE_IF, RELEASE_IF.replace("== 0", "== 0 and tile < 2"))),
    # Products and commits.
    bug("tmem_pair", "commits tell one CTA", DEADLOCK, (COMMIT_2, COMMIT_1), (SLOT_DONE_2, "commit(empty.ptr_to([stage]))"), (SUMS_DONE_2, "commit(finished.ptr_to([tile % 2]))")),
    bug("tmem_pair", "the slots' commits tell the first CTA", DEADLOCK, (SLOT_DONE_2, SLOT_DONE_2.replace("3", "1"))),
    bug("tmem_pair", "the sums' commits tell the other CTA", DEADLOCK, (SUMS_DONE_2, SUMS_DONE_2.replace("3", "2"))),
    bug("tmem_pair", "commits tell CTAs outside of the cluster", "sim/cta-mask", (SUMS_DONE_2, SUMS_DONE_2.replace("3", "7"))),
    bug("tmem_pair", "commits of one CTA", "sim/tmem-cta-group", (COMMIT_2, COMMIT_2.replace("::2", "::1"))),
    bug("tmem_pair", "both CTAs multiply", "tcgen05_mma/issuers", ("rank == 0 and lane == 0", "lane == 0")),
    bug("tmem_pair", "the other CTA multiplies", DEADLOCK, ("rank == 0 and lane == 0", "rank == 1 and lane == 0")),
    bug("tmem_pair", "products of one CTA", "tcgen05_mma/instruction-shape", ("tcgen05.mma.cta_group::2", "tcgen05.mma.cta_group::1")),
    bug("tmem_pair", "an instruction of 128 rows", "tile/atom-shape", ("(256, 32, 16)", "(128, 32, 16)")),
    bug("tmem_pair", "each CTA has all columns of B", "tile/atom-shape", ("b_ring.sub[stage].view(1, 16, 4, 16)", "b_ring.view(1, 32, 4, 16)")),
    bug("tmem_pair", "no cluster", "tcgen05_mma/cta-pair", (", cluster=2)", ")")),
    # Barriers of the pair.
    bug("tmem_pair", "the sums are released in the own CTA", DEADLOCK, (RELEASE_2, 'T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, emptied.ptr_to([tile % 2]))\n')),
    bug("tmem_pair", "the warps of one CTA release the sums", "sim/mbarrier-arrivals", ("emptied.ptr_to([i]), T.uint32(8)", "emptied.ptr_to([i]), T.uint32(4)")),
    bug("tmem_pair", "the other CTA does not wait for the sums", f"{TMEM_RACE} or {UNWRITTEN}", (SUMS_WAIT, indented(SUMS_WAIT, "            if rank == 0:\n"))),
    bug("tmem_pair", "the other CTA fills its slots without a wait", IN_FLIGHT, (TMA_WAIT, f"if rank == 0:\n                    {TMA_WAIT}")),
    bug("tmem_pair", "slices complete in the own CTA", "sim/mbarrier-bytes", (FIRST, "first = full.ptr_to([stage])")),
    bug("tmem_pair", "bytes of one CTA expected", "sim/mbarrier-bytes", ("T.uint32(36864)", "T.uint32(18432)")),
    bug("tmem_pair", "loads of one CTA complete in the other", "sim/out-of-bounds", ("::complete_tx::bytes.cta_group::2", "::complete_tx::bytes")),
    bug("tmem_pair", "barriers not initialised in the other CTA", "sim/mbarrier-init", (PUBLISHED_2, PUBLISHED_2.replace(MEET_2, SYNC))),
    bug("tmem_pair", "no after-fence before the products", TMEM_RACE, (MAY_MULTIPLY, SUMS_FREE)),
    bug("tmem_pair", "no before-fence ahead of the release", TMEM_RACE, (LOADED, f"            {WAIT_LD}")),
    bug("tmem_pair", "no after-fence before the loads", TMEM_RACE, (MAY_LOAD, SUMS_WAIT)),
    bug("tmem_pair", "no before-fence ahead of the other CTA's release", TMEM_RACE, (LOADED, f"            {WAIT_LD}" + indented(f"        {BEFORE}", "            if rank == 0:\n"))),
    bug("tmem_pair", "no after-fence before the other CTA's loads", TMEM_RACE, (MAY_LOAD, SUMS_WAIT + indented(f"        {AFTER}", "            if rank == 0:\n"))),
    bug("tmem_pair", "released before the loads are over", TMEM_RACE, (LOADED, f"        {BEFORE}"), ("            T.cuda.tile.apply(T.ptx[\"st.global", f"            {WAIT_LD}            T.cuda.tile.apply(T.ptx[\"st.global")),
    # Addresses.
    bug("tmem_pair", "both CTAs have the same rows of A", NUMBERS, ("coords=(128 * rank, ", "coords=(0, ")),
    bug("tmem_pair", "halves of B exchanged", NUMBERS, ("16 * rank, 64", "16 * (1 - rank), 64")),
    bug("tmem_pair", "both CTAs store the same rows", RACE, ("sub[rank, thread, tile]", "sub[0, thread, tile]")),
)  # fmt: skip

# --- tmem_halves

STORE_HALVES = """        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x8.unpack::16b.b32"], low[:, :, 0:8, :],
            words.view(4, 32, 8, layout=T.cuda.tcgen05_ld_layout("32x32b", 8, warps=(4,))), scope="warpgroup")
"""
STORED_HALVES = f"        {WAIT_ST}{BEFORE}{SYNC}{AFTER}"
SPLIT = "low[:, 0:16, 0:4, :], low[:, 16:32, 4:8, :], imm_half_splitoff=(16 << 16) + 8"

HALVES: tuple[Bug, ...] = (
    bug("tmem_halves", "no wait for the stores", TMEM_RACE, (f"        {WAIT_ST}", "")),
    bug("tmem_halves", "waits for loads, not for stores", TMEM_RACE, (WAIT_ST, WAIT_LD)),
    bug("tmem_halves", "waits for the stores behind the barrier", TMEM_RACE, (STORED_HALVES, f"{BEFORE}{SYNC}    if warp < 4:\n        {WAIT_ST}{AFTER}")),
    bug("tmem_halves", "no before-fence between the warps", TMEM_RACE, (STORED_HALVES, STORED_HALVES.replace(BEFORE, ""))),
    bug("tmem_halves", "no after-fence between the warps", TMEM_RACE, (STORED_HALVES, STORED_HALVES.replace(AFTER, ""))),
    bug("tmem_halves", "fences the wrong way round", TMEM_RACE, (STORED_HALVES, f"        {WAIT_ST}{AFTER}{SYNC}{BEFORE}")),
    bug("tmem_halves", "no barrier between the warps", f"{TMEM_RACE} or {UNWRITTEN}", (STORED_HALVES, STORED_HALVES.replace(SYNC, ""))),
    bug("tmem_halves", "barrier of a warp between the warps", f"{TMEM_RACE} or {UNWRITTEN}", (STORED_HALVES, STORED_HALVES.replace("cta_sync", "warp_sync"))),
    bug("tmem_halves", "stored twice without a wait", TMEM_RACE, (STORE_HALVES, STORE_HALVES + STORE_HALVES)),
    bug("tmem_halves", "no wait for the loads", IN_FLIGHT, (f"        {WAIT_LD}", "")),
    bug("tmem_halves", "register written while it is loaded", IN_FLIGHT, (f"        {WAIT_LD}", f"        found[3] = T.uint32(0)\n        {WAIT_LD}")),
    bug("tmem_halves", "no barrier before freeing", DEALLOC, (f"{BEFORE}{SYNC}    if warp == 0:\n        T.ptx[\"tcgen05.dealloc", f"{BEFORE}    if warp == 0:\n        T.ptx[\"tcgen05.dealloc")),
    bug("tmem_halves", "half of the columns stored", UNWRITTEN, (STORE_HALVES, STORE_HALVES.replace("x8", "x4").replace("0:8", "0:4").replace("words.view(4, 32, 8", "words.sub[0:4].view(4, 32, 4").replace('"32x32b", 8', '"32x32b", 4'))),
    bug("tmem_halves", "loads columns behind", UNWRITTEN, (SPLIT, SPLIT.replace("4:8", "8:12").replace("+ 8", "+ 16"))),
    bug("tmem_halves", "both halves from the upper rows", NUMBERS, (SPLIT, SPLIT.replace("16:32", "0:16").replace("(16 << 16) + 8", "8"))),
    bug("tmem_halves", "split immediate counts words", "tcgen05_ld_st/half-splitoff", (SPLIT, SPLIT.replace("+ 8", "+ 4"))),
    bug("tmem_halves", "split immediate without the rows", "tcgen05_ld_st/half-splitoff", (SPLIT, SPLIT.replace("(16 << 16) + 8", "8"))),
    bug("tmem_halves", "no split immediate", "tcgen05_ld_st/half-splitoff", (SPLIT, SPLIT.removesuffix(", imm_half_splitoff=(16 << 16) + 8"))),
    bug("tmem_halves", "half slab from the wrong row on", "tcgen05_ld_st/lanes", (SPLIT, SPLIT.replace("0:16", "8:24"))),
    bug("tmem_halves", "loads the cells' upper halves", "tcgen05_ld_st/column", ("    low = cells.sub[:, :, :, :, 0]\n", "    low, high = cells.sub[:, :, :, :, 0], cells.sub[:, :, :, :, 1]\n"), (SPLIT, SPLIT.replace("low", "high"))),
    bug("tmem_halves", "16-bit elements side by side", "tcgen05_ld_st/image", ("(32@TLane,1@TLane,4@TCol,2@TCol,1@TCol)", "(32@TLane,1@TLane,2@TCol,1@TCol,32@TCol)")),
    bug("tmem_halves", "loads without packing", "tcgen05_ld_st/operand-type", ("x4.pack::16b.b32", "x4.b32")),
    bug("tmem_halves", "stores without unpacking", "tcgen05_ld_st/operand-type", ("x8.unpack::16b.b32", "x8.b32")),
    bug("tmem_halves", "registers of another shape", "tcgen05_ld_st/owner", ('T.cuda.tcgen05_ld_layout("16x32bx2", 4', 'T.cuda.tcgen05_ld_layout("16x64b", 4')),
    bug("tmem_halves", "three warps store", "tile/group-shape", ("if warp < 4", "if warp < 3")),
)  # fmt: skip

# --- tmem_scales

COPY_B = '            T.cuda.tile.apply(copy, to_b, sb.view("uint32").view(32, 4))\n'
COPIES = '            T.cuda.tile.apply(copy, to_a, sa.view("uint32").view(32, 4))\n' + COPY_B
SCALED = """            T.cuda.tile.apply(
                T.ptx["tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32"], D.view(1, 1, 128, 64),
                a.view(1, 128, 4, 32).permute(0, 2, 1, 3), b.view(1, 64, 4, 32).permute(0, 2, 1, 3), SFA, SFB,
                instruction_shape=(128, 64, 32), accum=n > 0)
"""
SCALED_END = WAIT_TILE + "    " + AFTER
COPIED = '    copied = "(32,4):(1@TLane,1@TCol) + R[4:32@TLane]"\n'
LAID_A = 'laid("SFA", (1, 4, 128, 1), "float8_e8m0fnu"'

SCALES: tuple[Bug, ...] = (
    bug("tmem_scales", "factors copied behind the products", UNWRITTEN, (COPIES + SCALED, SCALED + COPIES)),
    bug("tmem_scales", "factors of B not copied", UNWRITTEN, (COPY_B, "")),
    bug("tmem_scales", "next factors copied behind the products", TMEM_RACE, (SCALED, SCALED + COPY_B)),
    bug("tmem_scales", "next factors copied when the own commit is on its way", TMEM_RACE, ("            " + COMMIT, "            " + COMMIT + COPY_B)),
    bug("tmem_scales", "another thread copies, without a fence", TMEM_RACE, (COPIES, ""), ("        if t == 0:\n            T.cuda.tile", "        if t == 64:\n" + COPIES + SYNC.replace("    ", "        ") + "        if t == 0:\n            T.cuda.tile")),
    bug("tmem_scales", "no wait before the next round", f"{IN_FLIGHT}", (WAIT_TILE, "        if n == 1:\n    " + WAIT_TILE)),
    bug("tmem_scales", "factors written again before the commit's phase", IN_FLIGHT, (SCALED_END, "        sa[lane, warp, 0] = T.cast(127, ty=\"uint8\")\n" + SCALED_END)),
    bug("tmem_scales", "no proxy fence", "sim/proxy-fence", (FILLED, f"    {SYNC}")),
    bug("tmem_scales", "no barrier before the copies", RACE, (FILLED, f"        {PROXY}")),
    bug("tmem_scales", "no after-fence before the loads", TMEM_RACE, (SCALED_END, WAIT_TILE)),
    bug("tmem_scales", "one factor too far", NUMBERS, ("SFA = T.cuda.decl_tmem(slot[0] + 64", "SFA = T.cuda.decl_tmem(slot[0] + 65")),
    bug("tmem_scales", "factors where nothing is copied", UNWRITTEN, ("SFB = T.cuda.decl_tmem(slot[0] + 68", "SFB = T.cuda.decl_tmem(slot[0] + 72")),
    bug("tmem_scales", "factors of A over those of B", f"{TMEM_RACE}", ("to_b = T.cuda.decl_tmem(slot[0] + 68", "to_b = T.cuda.decl_tmem(slot[0] + 64")),
    bug("tmem_scales", "rows one after another in shared memory", NUMBERS, ("sa[lane, warp, i] =", "sa[t // 4, t % 4, i] =")),
    bug("tmem_scales", "factors in one slab alone", "tcgen05_cp/replicas", (COPIED, COPIED.replace(" + R[4:32@TLane]", ""))),
    bug("tmem_scales", "two copies of four", "tcgen05_cp/replicas", (COPIED, COPIED.replace("R[4:", "R[2:"))),
    bug("tmem_scales", "copy of 64 rows", "tile/atom-shape", ("32x128b.warpx4", "64x128b.warpx2::02_13")),
    bug("tmem_scales", "copy not from 128 bits on", "sim/tmem-alignment", ("to_a = T.cuda.decl_tmem(slot[0] + 64", "to_a = T.cuda.decl_tmem(slot[0] + 62")),
    bug("tmem_scales", "copy the wrong way round", "tcgen05_cp/direction", (COPY_B, COPY_B.replace('to_b, sb.view("uint32").view(32, 4)', 'sb.view("uint32").view(32, 4), to_b'))),
    bug("tmem_scales", "copies for a pair", "tcgen05_cp/cta-pair", ("tcgen05.cp.cta_group::1", "tcgen05.cp.cta_group::2")),
    bug("tmem_scales", "every thread copies", TMEM_RACE, (COPIES, ""), ("        if t == 0:\n            T.cuda.tile", COPIES.replace("            T.", "        T.") + "        if t == 0:\n            T.cuda.tile")),
    bug("tmem_scales", "factors aligned too little", "tcgen05_cp/alignment", ('sa = T.alloc_shared((32, 4, 4), "uint8", layout="default", align=128)', 'sa = T.alloc_shared((32, 4, 4), "uint8", layout="default", align=8)')),
    bug("tmem_scales", "factors exchanged", "tile/atom-shape", ("SFA, SFB,\n", "SFB, SFA,\n")),
    bug("tmem_scales", "factors of another format", "tcgen05_mma/scale-format", ('SFA = T.cuda.decl_tmem(slot[0] + 64, (1, 4, 128, 1), "float8_e8m0fnu"', 'SFA = T.cuda.decl_tmem(slot[0] + 64, (1, 4, 128, 1), "float8_e4m3fn"')),
    bug("tmem_scales", "a kind of other elements", "tcgen05_mma/format", ("mxf8f6f4.block_scale.block32", "mxf4.block_scale.block32")),
    bug("tmem_scales", "a product without factors", "tcgen05_mma/operand-count", ("3), SFA, SFB,\n", "3),\n")),
    bug("tmem_scales", "sums over the factors", "sim/tmem-overlap", ('D = T.cuda.decl_tmem(slot[0], (128', 'D = T.cuda.decl_tmem(slot[0] + 32, (128')),
)  # fmt: skip

# --- tmem_a

PLACE_WAIT = "            T.cuda.mbarrier_wait(read.ptr_to([n % 2]), (n // 2 + 1) % 2)\n"
MAY_STORE = f"{PLACE_WAIT}        {AFTER}"
A_STORED = f"            {WAIT_ST}        {BEFORE}"
A_ARRIVE = (
    '            T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, stored.ptr_to([n % 2]))\n'
)
A_WAIT = "            T.cuda.mbarrier_wait(stored.ptr_to([n % 2]), n // 2)\n"
MAY_READ = f"{A_WAIT}        {AFTER}"
TO_A = 'parts.view("uint32").sub[:, n % 2, :]'
OF_A = "parts.sub[:, n % 2, :].view(1, 128, 2, 16)"
DONE_WAIT = "        T.cuda.mbarrier_wait(done.ptr_to([0]), 0)\n"

A: tuple[Bug, ...] = (
    bug("tmem_a", "no wait for the stores", TMEM_RACE, (f"            {WAIT_ST}", "")),
    bug("tmem_a", "arrives before the stores are over", TMEM_RACE, (A_STORED + A_ARRIVE, f"        {BEFORE}{A_ARRIVE}            {WAIT_ST}")),
    bug("tmem_a", "no before-fence ahead of the arrival", TMEM_RACE, (A_STORED, f"            {WAIT_ST}")),
    bug("tmem_a", "no after-fence before the products", TMEM_RACE, (MAY_READ, A_WAIT)),
    bug("tmem_a", "no after-fence before the next stores", TMEM_RACE, (MAY_STORE, PLACE_WAIT)),
    bug("tmem_a", "no wait for the stored part", f"{TMEM_RACE} or {UNWRITTEN}", (A_WAIT, "")),
    bug("tmem_a", "waits for the part with the wrong parity", f"{TMEM_RACE} or {UNWRITTEN} or {DEADLOCK}", (A_WAIT, A_WAIT.replace("n // 2", "(n // 2 + 1) % 2"))),
    bug("tmem_a", "stored again before the commit's phase", f"{TMEM_RACE} or sim/mbarrier-arrivals", (PLACE_WAIT, "")),
    bug("tmem_a", "the place is not committed", DEADLOCK, ("            commit(read.ptr_to([n % 2]))\n", "")),
    bug("tmem_a", "both places are committed on one barrier", f"{DEADLOCK} or sim/mbarrier-arrivals", ("commit(read.ptr_to([n % 2]))", "commit(read.ptr_to([0]))")),
    bug("tmem_a", "the barrier counts warps", f"{TMEM_RACE} or {UNWRITTEN} or sim/mbarrier-arrivals", ("T.uint32(128))", "T.uint32(4))")),
    bug("tmem_a", "one thread arrives for all", f"{TMEM_RACE} or {UNWRITTEN}", ("T.uint32(128))", "T.uint32(1))"), (A_ARRIVE, indented(A_ARRIVE, "            if t == 0:\n"))),
    bug("tmem_a", "both places are one", TMEM_RACE, (TO_A, TO_A.replace("n % 2", "0")), (OF_A, OF_A.replace("n % 2", "0"))),
    bug("tmem_a", "multiplies the other place", f"{TMEM_RACE} or {UNWRITTEN}", (OF_A, OF_A.replace("n % 2", "1 - n % 2"))),
    bug("tmem_a", "A over the sums", "sim/tmem-overlap", ("decl_tmem(slot[0] + 32", "decl_tmem(slot[0] + 16")),
    bug("tmem_a", "A behind the allocation", "sim/tmem-unallocated", ("decl_tmem(slot[0] + 32", "decl_tmem(slot[0] + 48")),
    bug("tmem_a", "half of a row is not stored", UNWRITTEN, (TO_A + ".view(4, 32, 16),\n                words.view(4, 32, 16", TO_A + ".view(4, 32, 2, 8).sub[:, :, 0],\n                words.sub[0:8].view(4, 32, 8"), ('"tcgen05.st.sync.aligned.32x32b.x16.b32"', '"tcgen05.st.sync.aligned.32x32b.x8.b32"'), ('tcgen05_ld_layout("32x32b", 16', 'tcgen05_ld_layout("32x32b", 8')),
    bug("tmem_a", "words of A in the wrong order", NUMBERS, ("words[i] =", "words[15 - i] =")),
    bug("tmem_a", "one element of A in each cell", "tcgen05_mma/image",
        (OF_A, 'T.cuda.decl_tmem(slot[0] + 32, (128, 2, 32), "float16", layout="(128,2,32):(1@TLane,64@TCol,2@TCol)").sub[:, n % 2, :].view(1, 128, 2, 16)')),
    bug("tmem_a", "A said to be MN-major", "tcgen05_mma/major", ("accum=n > 0", 'accum=n > 0, a_major="mn"')),
    bug("tmem_a", "sums are not waited for", f"{TMEM_RACE} or {UNWRITTEN}", (DONE_WAIT, "")),
    bug("tmem_a", "no after-fence before the loads", TMEM_RACE, (DONE_WAIT + "    " + AFTER, DONE_WAIT)),
    bug("tmem_a", "sums committed with the first part", TMEM_RACE, ("        commit(done.ptr_to([0]))\n", ""), ("            commit(read.ptr_to([n % 2]))\n", "            commit(read.ptr_to([n % 2]))\n            if n == 0:\n                commit(done.ptr_to([0]))\n")),
    bug("tmem_a", "no proxy fence for B", "sim/proxy-fence", (f"    {PROXY}", "")),
    bug("tmem_a", "not freed", "sim/tmem-leak", (f"    if warp == 4:\n{FREE}", "")),
)  # fmt: skip

BUGS = TILE + RING + PAIR + HALVES + SCALES + A
