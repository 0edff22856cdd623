"""A ring of shared-memory stages between producers and consumers, in the kernel language.

Stage s has two mbarriers, in shared buffers ``full`` and ``empty`` of (stages,) uint64. ``full[s]``
completes when its producers have arrived and the bytes that they announced are there; ``empty[s]`` when
its consumers have arrived, who then read it no more. Both sides walk the ring at a *position*, a stage
and the parity of the round, which starts at (0, 0):

    producer: wait_empty, announce bytes, issue copies that complete on full[stage]
    consumer: wait_full, read the stage, release it when that is over

What ordinary loads have read (``ld.shared``, ``ldmatrix``, elements) needs ``end_reads`` before it is
released: loads that are under way do not hold up a copy by the asynchronous proxy, which may overtake them.
wgmma and copies from the stage read through that proxy; once they were waited for, ``release`` is enough.

In a cluster a copy may fill a stage of several CTAs (multicast): each of them announces the bytes that
come to its own, and a stage is empty when the consumers of all these CTAs have released it in each.

Every stage starts empty: in the first round a producer passes at once, because the barrier's phase
before the first counts as complete. Source: PTX ISA "mbarrier".

Not here: who produces and who consumes (``lib.roles``); the copies.
"""

from __future__ import annotations

from tilejit import T, jit


@jit
def create(
    full, empty, producers: T.constexpr, consumers: T.constexpr, in_cluster: T.constexpr = False
):
    """Initialise the barriers; all threads of the CTA call. ``producers`` and ``consumers``: arrivals
    that complete a phase. ``in_cluster``: they come from other CTAs, too; all threads of the cluster
    call."""
    T.static_assert(full.dtype == T.uint64 and empty.dtype == T.uint64, "mbarriers are uint64")
    if T.cuda.linear_thread_id() == 0:
        for stage in T.unroll(full.shape[0]):
            T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([stage]), T.uint32(producers))
            T.ptx["mbarrier.init.shared::cta.b64"](empty.ptr_to([stage]), T.uint32(consumers))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    if in_cluster:
        T.cuda.cluster_sync()
    else:
        T.cuda.cta_sync()


@jit
def following(stage, parity, stages: T.constexpr, count: T.constexpr = 1):
    """The position ``count`` stages after (stage, parity)."""
    further = stage + count % stages
    wraps = further >= stages
    stage = T.if_then_else(wraps, further - stages, further)
    rounds = count // stages % 2
    parity = T.if_then_else(wraps, parity ^ (rounds ^ 1), parity ^ rounds)
    T.assume(0 <= stage < stages)
    return stage, parity


@jit
def wait_empty(empty, stage, parity):
    """A producer waits until the stage may be written."""
    T.cuda.mbarrier_wait(empty.ptr_to([stage]), parity ^ 1)


@jit
def wait_full(full, stage, parity):
    """A consumer waits until the stage may be read."""
    T.cuda.mbarrier_wait(full.ptr_to([stage]), parity)


@jit
def announce(full, stage, nbytes):
    """The executing thread arrives as a producer whose copies will bring ``nbytes``."""
    T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
        T.ptx.SINK, full.ptr_to([stage]), T.uint32(nbytes)
    )


@jit
def end_reads():
    """All lanes of a warp, which have read a stage by ordinary loads: one of them may release it then."""
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.warp_sync()


@jit
def release_read(empty, stage):
    """A warp whose lanes have read the stage by ordinary loads arrives as one consumer; all lanes call."""
    end_reads()
    if T.cuda.lane_id() == 0:
        release(empty, stage)


@jit
def release(empty, stage):
    """The executing thread arrives as a consumer, in its own CTA; after ordinary loads, see ``end_reads``."""
    T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, empty.ptr_to([stage]))


@jit
def release_of_two(empty, stage, rank):
    """The same in both CTAs of a cluster. ``rank``: the executing thread's own."""
    # First its own: who has heard of the arrival in the other has then heard of both.
    release(empty, stage)
    # Without a written order: .release.cluster costs a fence of all memory (measured: a third).
    there = T.cuda.map_shared_rank(empty.ptr_to([stage]), rank ^ 1)
    T.ptx["mbarrier.arrive.shared::cluster.b64"](T.ptx.SINK, there)
