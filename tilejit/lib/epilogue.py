"""The end of a matrix product: float32 sums of wgmma, through shared memory, to C by TMA stores.

A warpgroup holds ``blocks`` of 64 rows. What fills 128 bytes of each row is a *slab*: 64 columns of 16-bit
elements, which stmatrix writes free of bank conflicts, or 32 of float32. One TMA store takes it away,
clipped to C. A warpgroup's *buffer* holds several slabs; stores to C are under way while the next ones
are filled, and while whatever follows runs: before the CTA ends, ``finish``.

Not here: sums of several parts (``lib.split_sums``); the functions of one element (``lib.activations``).
"""

from __future__ import annotations

from tilejit import T, jit
from tilejit.lib import packed

SLAB_ROWS = 64
BIASED_COLUMNS = 64
"""Of a slab that a bias is added to."""
THREADS = 128
MAX_COORDINATE = (1 << 31) - 1024
"""Of where sums begin in C: they end within int32."""


@jit
def fetch_bias(own, bias, first_column):
    """own (float32, shared) = the bias of its columns; beyond the last, the last. A barrier must follow.

    By way of shared memory because addresses that are clamped one by one take more registers than there
    are."""
    columns = own.shape[0]
    thread = T.cuda.thread_in_warpgroup()
    for first in T.unroll(0, columns, THREADS):
        if first + thread < columns:
            column = min(first_column + first + thread, bias.shape[0] - 1)
            own[first + thread] = T.cast(bias[column], "float32")


@jit
def add_bias(sums, own):
    """sums (8, 2 rows, 2 columns of each thread) of a slab += the bias of its 64 columns."""
    pairs = T.alloc_local((8, 2), "float32", layout="default")
    T.cuda.tile.apply(
        T.ptx["ld.shared.v2.b32"], pairs, own.view(8, 4, 2).sub[:, T.cuda.lane_id() % 4, :]
    )
    spread = pairs.view(8, 2, 2, layout="(8,2,2):(2,0,1)")
    T.cuda.tile.apply(T.ptx["add.rn.f32"], sums.view(32, 1), sums.view(32, 1), spread.view(32, 1))


@jit
def fill(slabs, sums):
    """Slabs (n, 64, columns) of shared memory = a warpgroup's sums (n columns / 8, 2, 2), rounded."""
    count = slabs.shape[0]
    if slabs.dtype == T.float32:
        warp, lane = T.cuda.warp_in_warpgroup(), T.cuda.lane_id()
        pairs = slabs.view(count, 4, 2, 8, 4, 4, 2).sub[:, warp, :, lane // 4, :, lane % 4, :]
        T.cuda.tile.apply(
            T.ptx["st.shared.v2.b32"], pairs.permute(0, 2, 1, 3), sums.view(count, 4, 2, 2)
        )
        return
    words = T.alloc_local((4 * count, 4, 1), "uint32", layout="default")
    packed.round_pairs(words, sums, slabs.dtype)
    # A warp has 16 rows; 16 columns of them are one stmatrix of (columns 8, rows 8) matrices.
    rows = slabs.view("uint32").view(count, 4, 2, 8, 4, 2, 4)
    rows = rows.sub[:, T.cuda.warp_in_warpgroup()].permute(0, 3, 4, 1, 2, 5)
    T.cuda.tile.apply(
        T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"],
        rows.view(4 * count, 4, 8, 4),
        words.view(4 * count, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (4 * count,))),
        scope="warp",
    )  # fmt: skip


@jit
def store(
    C, buffer, sums, bias, own_bias, activation, first_row, first_column, barrier,
    at_once: T.constexpr, scale=None,
):  # fmt: skip
    """C from (first_row, first_column) on, the latter a multiple of 16 bytes, = activation(sums + bias);
    bias and activation may be None. Before either, ``scale(slab, block, first)``, if not None, multiplies
    the sums (columns / 8, 2, 2) of each slab, from column ``first`` of the block on.

    ``sums``: (blocks, columns / 8, 2, 2) of each thread. ``buffer``: (slabs, 64, columns) in C's dtype, and
    ``own_bias``: (columns,) in float32, or None without bias, in shared memory, this warpgroup's own.
    ``barrier``: a named barrier of this warpgroup. ``at_once``: slabs of a *batch*, between two waits;
    the buffer holds a whole number of batches."""
    slabs, _, width = buffer.shape
    blocks, eighths = sums.shape[0], width // 8
    count = sums.shape[1] // eighths
    T.assume(0 <= first_row < MAX_COORDINATE)
    T.assume(0 <= first_column < MAX_COORDINATE)
    leader = T.cuda.thread_in_warpgroup() == 0
    T.static_assert(
        at_once > 0 and slabs % at_once == 0, "the buffer holds a whole number of batches"
    )
    T.static_assert(bias is None or width == BIASED_COLUMNS, "a bias is for slabs of 64 columns")
    T.static_assert(bias is None or own_bias is not None, "a bias needs own_bias in shared memory")
    batches = blocks * T.ceildiv(count, at_once)
    # Stores of other batches may go on, if the buffer is gone round a whole number of times: the next
    # sums begin where these did.
    others = slabs // at_once - 1 if batches * at_once % slabs == 0 else 0
    if bias is not None:
        fetch_bias(own_bias, bias, first_column)
    batch = 0
    for block in T.unroll(blocks):
        for begin in T.unroll(0, count, at_once):
            size = min(at_once, count - begin)
            place = batch * at_once % slabs
            mine = sums.sub[block, begin * eighths : (begin + size) * eighths, :, :]
            parts = buffer.sub[place : place + size, :, :]
            # The slabs are free when the stores from them have been read.
            if leader:
                T.ptx["cp.async.bulk.wait_group.read"](others)
            T.cuda.named_barrier_sync(barrier, THREADS)
            for slab in T.unroll(size):
                part = mine.sub[slab * eighths : (slab + 1) * eighths, :, :]
                first = (begin + slab) * width
                if scale is not None:
                    scale(part, block, first)
                if bias is not None:
                    add_bias(part, own_bias.sub[first : first + width])
            if activation is not None:
                T.cuda.tile.ewise(activation, mine, mine)
            fill(parts, mine)
            T.ptx["fence.proxy.async.shared::cta"]()
            T.cuda.named_barrier_sync(barrier, THREADS)
            if leader:
                T.cuda.tile.apply(
                    T.ptx["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"],
                    C, parts, box=(SLAB_ROWS, width), swizzle=3,
                    coords=(first_row + block * SLAB_ROWS, first_column + begin * width),
                    coord_steps=((0, width),),
                )  # fmt: skip
                T.ptx["cp.async.bulk.commit_group"]()
            batch = batch + 1


@jit
def finish():
    """The warpgroup's stores are in C."""
    if T.cuda.thread_in_warpgroup() == 0:
        T.ptx["cp.async.bulk.wait_group"](0)
