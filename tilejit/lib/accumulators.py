"""Accumulators in tensor memory: allocation, and the way of their float32 sums to C. In the kernel language.

A warp allocates columns for its CTA (with two CTAs, a warp in each) and frees them before the end. A
warpgroup brings an accumulator of 128 rows to C: each thread one row, a *slab* at a time, whose rows take
128 bytes, through shared memory by TMA stores, clipped to C.

Source: PTX ISA "tcgen05.alloc", "tcgen05.ld". Not here: what computes the sums (kernels).
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.lib import epilogue, packed

ROWS = 128
CHUNK_BYTES = 16
"""Of a row, that one store writes."""
COLUMNS = (32, 64, 128, 256, 512)
"""What can be allocated."""


def allocated(columns: int) -> int:
    """How many columns to allocate for so many."""
    return next(count for count in COLUMNS if count >= columns)


@jit
def allocate(slot, columns: T.constexpr, ctas: T.constexpr):
    """slot (1,), uint32 in shared memory, = the address of so many columns. All lanes of one warp of each
    of the ``ctas`` (1 or 2) call; then ``publish``."""
    T.ptx[f"tcgen05.alloc.cta_group::{ctas}.sync.aligned.shared::cta.b32"](
        slot.ptr_to([0]), T.uint32(columns)
    )
    T.ptx[f"tcgen05.relinquish_alloc_permit.cta_group::{ctas}.sync.aligned"]()


@jit
def publish(ctas: T.constexpr):
    """All threads of the CTA, or of the pair, know what was done to tensor memory before."""
    T.ptx["tcgen05.fence::before_thread_sync"]()
    if ctas == 1:
        T.cuda.cta_sync()
    else:
        T.cuda.cluster_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()


@jit
def free(address, columns: T.constexpr, ctas: T.constexpr):
    """All lanes of one warp of each CTA call, once everybody is done (``publish``)."""
    T.ptx[f"tcgen05.dealloc.cta_group::{ctas}.sync.aligned.b32"](address, T.uint32(columns))


@jit
def release(emptied, ctas: T.constexpr):
    """The executing warp has read its rows of an accumulator: it arrives at ``emptied``, an mbarrier of
    the first CTA of the ``ctas``; all lanes call."""
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.warp_sync()
    if T.cuda.lane_id() == 0:
        if ctas == 1:
            T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, emptied)
        else:
            first = T.cuda.map_shared_rank(emptied, 0)
            T.ptx["mbarrier.arrive.shared::cluster.b64"](T.ptx.SINK, first)


@jit
def commit(barrier, ctas: T.constexpr):
    """The mma, cp and shift instructions of the executing thread so far arrive at ``barrier`` when they are
    over; with two ``ctas`` at that of each CTA."""
    if ctas == 1:
        T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](barrier)
    else:
        T.ptx[
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        ](barrier, T.uint16(3))


@jit
def read(sums, part):
    """sums (n,) float32 of each thread = its row of ``part`` (128, n) in tensor memory."""
    count = sums.size
    T.cuda.tile.apply(
        T.ptx[f"tcgen05.ld.sync.aligned.32x32b.x{count}.b32"],
        sums.view(4, 32, count, layout=T.cuda.tcgen05_ld_layout("32x32b", count, warps=(4,))),
        part.view(4, 32, count),
        scope="warpgroup",
    )  # fmt: skip
    T.ptx["tcgen05.wait::ld.sync.aligned"]()


@jit
def add_bias(sums, own):
    """sums (n,) += the bias of its columns, float32 in shared memory."""
    count = sums.size
    values = T.alloc_local((count,), "float32", layout="default")
    T.cuda.tile.apply(
        T.ptx["ld.shared.v4.b32"], values.view(count // 4, 4), own.view(count // 4, 4)
    )
    T.cuda.tile.apply(
        T.ptx["add.rn.f32"], sums.view(count, 1), sums.view(count, 1), values.view(count, 1)
    )


@jit
def write(slab, sums):
    """The thread's row of ``slab`` (128, n), in shared memory, = sums (n,), rounded."""
    row = slab.sub[T.cuda.thread_in_warpgroup()]
    if slab.dtype == T.float32:
        T.cuda.tile.apply(
            T.ptx["st.shared.v4.b32"], row.view(sums.size // 4, 4), sums.view(sums.size // 4, 4)
        )
        return
    words = T.alloc_local((sums.size // 2,), "uint32", layout="default")
    packed.round_pairs(words, sums, slab.dtype)
    chunks = words.size // 4
    T.cuda.tile.apply(
        T.ptx["st.shared.v4.b32"], row.view("uint32").view(chunks, 4), words.view(chunks, 4)
    )


@jit
def store(
    C, buffer, accumulator, bias, own_bias, activation, first_row, first_column, barrier, emptied,
    ctas: T.constexpr,
):  # fmt: skip
    """C from (first_row, first_column) on, the latter a multiple of 16 bytes, = activation(sums + bias);
    bias and activation may be None.

    ``accumulator``: (128, columns) float32 in tensor memory. ``emptied``, ``ctas``: each warp's ``release``
    once it has read the sums. ``buffer``: (slabs, 128, width) in C's dtype, and ``own_bias``:
    (columns,) in float32, or None without bias, in shared memory, the warpgroup's own. ``barrier``: a named
    barrier of the warpgroup. Before the CTA ends: ``epilogue.finish``."""
    slabs, _, width = buffer.shape
    count = accumulator.shape[1] // width
    T.assume(0 <= first_row < epilogue.MAX_COORDINATE)
    T.assume(0 <= first_column < epilogue.MAX_COORDINATE)
    T.static_assert(bias is None or own_bias is not None, "a bias needs own_bias in shared memory")
    leader = T.cuda.thread_in_warpgroup() == 0
    # The next sums begin where these did: stores of other slabs may go on if the buffer is gone round a
    # whole number of times.
    others = slabs - 1 if count % slabs == 0 else 0
    if bias is not None:
        epilogue.fetch_bias(own_bias, bias, first_column)
    parts = accumulator.view(ROWS, count, width)
    for part in range(count):
        sums = T.alloc_local((width,), "float32", layout="default")
        read(sums, parts.sub[:, part, :])
        if part == count - 1:
            release(emptied, ctas)
        slab = buffer.sub[part % slabs]
        # The slab is free when the store from it has been read.
        if leader:
            T.ptx["cp.async.bulk.wait_group.read"](others)
        T.cuda.named_barrier_sync(barrier, epilogue.THREADS)
        if bias is not None:
            add_bias(sums, own_bias.view(count, width).sub[part])
        if activation is not None:
            T.cuda.tile.ewise(activation, sums, sums)
        write(slab, sums)
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.named_barrier_sync(barrier, epilogue.THREADS)
        if leader:
            T.cuda.tile.apply(
                T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"],
                C, slab, box=(ROWS, width), swizzle=3,
                coords=(first_row, first_column + part * width),
            )  # fmt: skip
            T.ptx["cp.async.bulk.commit_group"]()
