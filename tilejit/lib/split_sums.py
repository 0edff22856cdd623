"""Sums of one tile that several warpgroups of the grid computed in parts, in the kernel language.

All parts but the last *put* their sums into slots of global memory and go on; the last *adds* them to its
own, in the order of the parts, so that equal runs give equal bits. A slot lies in the order of the
threads' registers, which every part has alike: 16 bytes of each thread side by side. A flag per slot says
that it is full; who adds it sets the flag back, so flags are zero before and after every launch.

The one that adds waits: whoever puts must not wait for it, and should have started before.

Source: PTX ISA "memory consistency model", release and acquire patterns. Not here: who computes which part
(``lib.schedulers``); the memory of the slots.
"""

from __future__ import annotations

from tilejit import T, jit

LANE_ELEMS = 4
"""Float32 numbers of a thread that lie side by side: 16 bytes."""
THREADS = 128
BATCH = 8
"""Vectors that a thread has on their way at a time; they take registers beside the sums."""


@jit
def put(slot, flag, sums, barrier):
    """The warpgroup's sums (a local buffer) to ``slot`` (vectors, 128, 4), then its flag (a pointer).
    ``barrier``: a named barrier of this warpgroup."""
    vectors = slot.shape[0]
    thread = T.cuda.thread_in_warpgroup()
    T.cuda.tile.apply(
        T.ptx["st.global.v4.b32"], slot.sub[:, thread, :], sums.view(vectors, LANE_ELEMS)
    )
    # The barrier orders the others' stores before this thread's release.
    T.cuda.named_barrier_sync(barrier, THREADS)
    if thread == 0:
        T.ptx["st.release.gpu.global.b32"](flag, T.int32(1))


@jit
def add(slot, flag, sums, barrier):
    """sums += those of the slot, once they are there; the flag is zero again."""
    vectors = slot.shape[0]
    thread = T.cuda.thread_in_warpgroup()
    if thread == 0:
        full = T.alloc_local((1,), "int32", layout="default")
        full[0] = 0
        while full[0] == 0:
            T.ptx["ld.acquire.gpu.global.b32"](full[0], flag)
        T.ptx["st.relaxed.gpu.global.b32"](flag, T.int32(0))
    T.cuda.named_barrier_sync(barrier, THREADS)
    mine = sums.view(vectors, LANE_ELEMS)
    for first in T.unroll(0, vectors, BATCH):
        count = min(BATCH, vectors - first)
        theirs = T.alloc_local((count, LANE_ELEMS), "float32", layout="default")
        T.cuda.tile.apply(
            T.ptx["ld.global.v4.b32"], theirs, slot.sub[first : first + count, thread, :]
        )
        part = mine.sub[first : first + count, :].view(count * LANE_ELEMS, 1)
        T.cuda.tile.apply(T.ptx["add.rn.f32"], part, part, theirs.view(count * LANE_ELEMS, 1))
