"""Reductions over the CTAs of a cluster by distributed shared memory, in the kernel language.

Every participating warp stores the partial result of its lanes into one *slot* of every CTA, and every CTA
then combines all slots itself: one exchange, no leader, no barrier of the whole cluster. A round is

    publish       lane r of every warp stores the warp's words to CTA r, where ``full`` counts their bytes
    wait          until all slots of this round are here; read them
    release       tell every CTA that its next words may come

Rounds alternate in *parity*, starting at 0. The participants are as many warps in a row of each CTA as there
are slots per CTA, from warp ``first_warp`` on; other warps may do anything else meanwhile, and rounds of their
own with slots and barriers of their own. Order is fixed: results do not depend on timing, and are the same
bits in all threads.

Shared memory of a CTA, for ``ctas`` CTAs of ``warps`` warps:

    slots   (ctas * warps, words)   float32, int32 or uint32; a power of two of them; words 1, 2 or 4
    full    (1,)    uint64          completes when the bytes of all slots are here
    empty   (ctas,) uint64          [r] completes when CTA r has read this CTA's words

Source: PTX ISA "st.async", "mbarrier". Not here: reductions inside a CTA (``lib.reduce``).
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.lib import reduce as groups


@jit
def create(full, empty):
    """Initialise the barriers, by one thread. A barrier of the whole cluster must follow before the first
    ``publish`` (``cluster_arrive`` here, ``cluster_wait`` there)."""
    T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([0]), T.uint32(1))
    for rank in T.unroll(empty.shape[0]):
        T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([rank]), T.uint32(1))
    T.ptx["fence.mbarrier_init.release.cluster"]()


@jit
def publish(words, slots, full, empty, parity, first_warp=0):
    """Store this warp's ``words`` (a local tile, the same in all lanes) into its slot of every CTA."""
    count, ctas = slots.shape[1], empty.shape[0]
    warps = slots.shape[0] // ctas
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id() - first_warp
    if lane == 0 and warp == 0:
        nbytes = slots.size * slots.dtype.bytes
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
            T.ptx.SINK, full.ptr_to([0]), T.uint32(nbytes)
        )
    if lane < ctas:
        # Only what this lane overwrites must have been read: its CTA's slots of the round before.
        T.cuda.mbarrier_wait(empty.ptr_to([lane]), parity ^ 1)
        slot = T.cuda.cluster_cta_rank() * warps + warp
        to = T.cuda.map_shared_rank(slots.ptr_to([slot, 0]), lane)
        there = T.cuda.map_shared_rank(full.ptr_to([0]), lane)
        opcode = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
        if count == 4:
            T.ptx[f"{opcode}.v4.b32"](to, (words[0], words[1], words[2], words[3]), there)
        elif count == 2:
            T.ptx[f"{opcode}.v2.b32"](to, (words[0], words[1]), there)
        else:
            T.ptx[f"{opcode}.b32"](to, words[0], there)


@jit
def wait(full, parity):
    """Until the slots of this round may be read."""
    T.cuda.mbarrier_wait(full.ptr_to([0]), parity)


@jit
def release(empty, barrier_id, threads: T.constexpr, first_warp=0):
    """All participants have read the slots; joins them on the named barrier, ``threads`` in number. Not
    after the last round: a CTA may have ended by then."""
    T.cuda.named_barrier_sync(barrier_id, threads)
    rank = T.cuda.linear_thread_id() - 32 * first_warp
    if rank < empty.shape[0]:
        there = T.cuda.map_shared_rank(empty.ptr_to([T.cuda.cluster_cta_rank()]), rank)
        # The scope of the cluster would wait for all stores to global memory, and its acquire drop L1:
        # here only reads of shared memory must be over.
        T.ptx["mbarrier.arrive.shared::cluster.b64"](T.ptx.SINK, there)


@jit
def own_slots(slots):
    """(slots that each lane combines, lanes that differ): lane ``l`` takes slots ``l``, ``l + 32``…"""
    T.static_assert(
        slots.shape[0] & (slots.shape[0] - 1) == 0, "the number of slots is a power of two"
    )
    lanes = min(32, slots.shape[0])
    return slots.shape[0] // lanes, lanes


@jit
def reduce(value, combine, slots, full, empty, parity):
    """Combine over all participants of the cluster: a whole round but for ``release``.

    ``combine`` as in ``lib.reduce``; ``slots`` has one word, of the value's type.
    """
    word = T.alloc_local((1,), slots.dtype, layout="default")
    word[0] = groups.lanes(value, combine)
    publish(word, slots, full, empty, parity)
    wait(full, parity)
    return combined(slots, combine)


@jit
def combined(slots, combine):
    """The first words of all slots, combined, once they are here."""
    each, lanes = own_slots(slots)
    first = T.cuda.lane_id() % lanes
    value = slots[first, 0]
    for j in T.unroll(1, each):
        value = combine(value, slots[first + j * lanes, 0])
    return groups.lanes(value, combine, lanes)
