# %% [markdown]
# # The copy ladder
#
# Four ways to move a matrix, each with one more part of the machine: words, vectors, matrices through
# shared memory, and a pipeline of asynchronous copies. Nothing is chosen for you: a kernel names the
# instruction, and the shapes of its operands say how often it is repeated.

# %%
import torch

import tilejit as tile
from tilejit import T

device = "cuda" if torch.cuda.is_available() else "cpu"
rows, columns = (8192, 8192) if device == "cuda" else (128, 512)
x = torch.randn(rows, columns, device=device).to(torch.float16)


def measure(name, launch, y, expected):
    """Check one rung against torch; on a GPU print its rate: every byte is read once and written once."""
    launch()
    assert torch.equal(y, expected), name
    if device == "cpu":
        print(f"{name:28s} right")
        return
    times = []
    for _ in range(20):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    seconds = sorted(times)[len(times) // 2]
    print(f"{name:28s} right, {2 * x.numel() * x.element_size() / seconds / 1e12:5.2f} TB/s")


# %% [markdown]
# ## Rung 1: words
#
# One `ld.global.b32` and one `st.global.b32` per thread move two float16 elements. `view("uint32")` shows
# the same bytes as words; it converts nothing. An atom of `ld` has shape `(V,)`, with V the opcode's vector
# length, so the last axis here is 1. A warp's 32 words are neighbours: the accesses are coalesced, and still
# it takes four times as many instructions as the next rung for the same bytes.


# %%
@tile.jit
def copy_words(X: T.Tensor(("M", "N"), "float16", align=16), Y: T.Tensor(("M", "N"), "float16", align=16)):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // 64, M // 4), block=128))
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    word = T.alloc_local((1,), "uint32", layout="default")
    row = T.cuda.block_idx("y") * 4 + warp
    column = T.cuda.block_idx("x") * 32 + lane
    T.cuda.tile.apply(T.ptx["ld.global.b32"], word, X.view("uint32").sub[row, column : column + 1])
    T.cuda.tile.apply(T.ptx["st.global.b32"], Y.view("uint32").sub[row, column : column + 1], word)


y = torch.empty_like(x)
measure("1. words", lambda: copy_words(x, y), y, x)

# %% [markdown]
# ## Rung 2: vectors
#
# `ld.global.v4.b32` moves 16 bytes and needs a 16-byte aligned start. That is what `align=16` and row lengths
# in whole vectors promise; a start that breaks it is refused when the kernel is checked, not narrowed.
# Each thread has four vectors: the axis of extent 4 in front of the atom is a *repeat*. All four loads
# are issued before the first store needs a value, so more bytes are on their way.


# %%
@tile.jit
def copy_vectors(X: T.Tensor(("M", "N"), "float16", align=16), Y: T.Tensor(("M", "N"), "float16", align=16)):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // 64, M // 64), block=128))
    t = T.cuda.thread_idx("x")
    row, column = T.cuda.block_idx("y") * 64, T.cuda.block_idx("x") * 64
    r = T.alloc_local((4, 4), "uint32", layout="default")
    source = chunks_of_thread(X, row, column, t)
    target = chunks_of_thread(Y, row, column, t)
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, source)
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], target, r)


@tile.jit
def chunks_of_thread(matrix, row, column, t):
    """(4 repeats, 4 words): the 16-byte chunks that thread ``t`` of 128 moves of the 64 × 64 tile at (row,
    column). Eight threads side by side cover a row of 128 bytes, all of them 16 rows at a time."""
    words = matrix.view("uint32").sub[row : row + 64, column // 2 : column // 2 + 32]
    return words.view(4, 16, 8, 4).sub[:, t // 8, t % 8, :]


y = torch.empty_like(x)
measure("2. vectors", lambda: copy_vectors(x, y), y, x)

# %% [markdown]
# ## Rung 3: matrices through shared memory
#
# A copy that only copies should stop at rung 2. Shared memory is for data that must change hands. Here the
# result is the transpose, and two warp instructions do it:
#
# * `ldmatrix.x4` reads four 8 × 8 matrices of 16-bit elements. Lane `8*m + r` gives the address of row `r`
#   of matrix `m`; lane `4*r + w` receives word `w` of row `r` of every matrix. With `.trans` each matrix is
#   transposed on the way.
# * `stmatrix.x4` is the way back (sm_90 and later).
#
# Their operands are `(*repeat, 4 matrices, 8 rows, 4 words)`, and all 32 lanes take part, so `scope="warp"`.
# Which matrices go together is said by views alone. A warp takes two of the tile's eight rows of matrices;
# matrix (i, j) is loaded transposed and stored at (j, i).


# %%
@tile.jit
def load_transposed(r, tile_, warp):
    """``r``: this warp's 16 × 64 elements of ``tile_``, 2 × 8 matrices (i, j), each transposed. One
    instruction takes both i of two neighbouring j."""
    matrices = tile_.view("uint32").view(4, 2, 8, 8, 4).sub[warp, :, :, :, :]  # (i, row, j, word)
    matrices = matrices.permute(2, 0, 1, 3).view(4, 4, 8, 4)
    T.cuda.tile.apply(
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"], r, matrices, scope="warp"
    )


@tile.jit
def store_matrices(tile_, r, warp):
    """Matrix (i, j) goes to (j, i)."""
    matrices = tile_.view("uint32").view(8, 8, 4, 2, 4).sub[:, :, warp, :, :]  # (j, row, i, word)
    matrices = matrices.permute(0, 2, 1, 3).view(4, 4, 8, 4)
    T.cuda.tile.apply(T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"], matrices, r, scope="warp")


@tile.jit
def transpose_tiles(X: T.Tensor(("M", "N"), "float16", align=16), Y: T.Tensor(("N", "M"), "float16", align=16)):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // 64, M // 64), block=128))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    row, column = T.cuda.block_idx("y") * 64, T.cuda.block_idx("x") * 64
    staged = T.alloc_shared((64, 64), "float16", layout=T.cuda.mma_shared_layout((64, 64), "float16"), align=128)
    vectors = T.alloc_local((4, 4), "uint32", layout="default")
    matrices = T.alloc_local((4, 4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4, 4))

    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], vectors, chunks_of_thread(X, row, column, t))
    T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], chunks_of_thread(staged, 0, 0, t), vectors)
    T.cuda.cta_sync()  # the rows of a matrix were written by other threads
    load_transposed(matrices, staged, warp)
    T.cuda.cta_sync()  # everyone has read before anyone overwrites
    store_matrices(staged, matrices, warp)
    T.cuda.cta_sync()
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], vectors, chunks_of_thread(staged, 0, 0, t))
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], chunks_of_thread(Y, column, row, t), vectors)


# stmatrix needs sm_90. Where there is a GPU, a kernel on CPU tensors is checked for that GPU, too.
has_stmatrix = device == "cpu" or torch.cuda.get_device_capability() >= (9, 0)
y = torch.empty(columns, rows, device=device, dtype=x.dtype)
if has_stmatrix:
    measure("3. matrices", lambda: transpose_tiles(x, y), y, x.t())

# %% [markdown]
# `mma_shared_layout` permutes the 16-byte chunks of each row so that none of these accesses has a bank
# conflict; [tutorial 08](08_swizzles_and_bank_conflicts.py) shows why and how.

# %%
for report in transpose_tiles.check(x, y, target="sm_90a").banks:
    print(report)
    assert not report.conflicted

# %% [markdown]
# ## Rung 4: a pipeline of asynchronous copies
#
# So far the loads of a tile, its transposition and its stores take turns. `cp.async` copies 16 bytes from
# global to shared memory without passing through registers, and returns at once. A CTA that walks over
# `TILES` tiles of a row keeps the next ones on their way: a ring of `STAGES` buffers. Three things order it, and
# each does something that the others do not:
#
# | | orders |
# |---|---|
# | `commit_group` | closes the thread's copies since its last commit into one group. Groups are counted, copies are not: an empty group at the end of the row keeps the count right |
# | `wait_group(n)` | this thread goes on when all but its `n` newest groups have landed. It says nothing about other threads' copies |
# | `cta_sync` | everyone's landed copies are visible to everyone, and everyone has finished with the buffer that is refilled next |
#
# So the wait comes *before* the barrier. One barrier per tile is enough for the ring: the buffer that round
# `n` refills was read in round `n - 1`, before this round's barrier.
#
# `mistake` is here to be caught below.


# %%
@tile.jit
def copy_ahead(ring, X, row, column, n, t, TILES: T.constexpr):
    """Issue and commit the copies of this CTA's tile ``n``; an empty group beyond the last one."""
    if n < TILES:
        target = chunks_of_thread(ring.sub[n % ring.shape[0], :, :], 0, 0, t)
        source = chunks_of_thread(X, row, column + n * 64, t)
        T.cuda.tile.apply(T.ptx["cp.async.cg.shared.global"], target, source, chunk_bytes=16)
    T.ptx["cp.async.commit_group"]()


@tile.jit
def transpose_pipeline(
    X: T.Tensor(("M", "N"), "float16", align=16),
    Y: T.Tensor(("N", "M"), "float16", align=16),
    STAGES: T.constexpr,
    TILES: T.constexpr,
    mistake: T.constexpr = None,
):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // (64 * TILES), M // 64), block=128))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    row, column = T.cuda.block_idx("y") * 64, T.cuda.block_idx("x") * (64 * TILES)
    ring_shape = (STAGES, 64, 64)
    ring = T.alloc_shared(ring_shape, "float16", layout=T.cuda.mma_shared_layout(ring_shape, "float16"), align=128)
    out = T.alloc_shared((64, 64), "float16", layout=T.cuda.mma_shared_layout((64, 64), "float16"), align=128)
    vectors = T.alloc_local((4, 4), "uint32", layout="default")
    matrices = T.alloc_local((4, 4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4, 4))

    for n in T.unroll(STAGES - 1):
        copy_ahead(ring, X, row, column, n, t, TILES)
    for n in range(TILES):
        # STAGES - 1 groups are under way; the oldest holds tile n.
        T.ptx["cp.async.wait_group"](STAGES - 1 if mistake == "weak wait" else STAGES - 2)
        if mistake != "no barrier":
            T.cuda.cta_sync()
        load_transposed(matrices, ring.sub[n % STAGES, :, :], warp)
        copy_ahead(ring, X, row, column, n + STAGES - 1, t, TILES)
        store_matrices(out, matrices, warp)
        T.cuda.cta_sync()  # the rows of `out` come from all warps
        T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], vectors, chunks_of_thread(out, 0, 0, t))
        T.cuda.tile.apply(T.ptx["st.global.v4.b32"], chunks_of_thread(Y, column + n * 64, row, t), vectors)


if has_stmatrix:
    for stages in (2, 3, 4):
        y = torch.empty(columns, rows, device=device, dtype=x.dtype)
        measure(f"4. pipeline of {stages} stages", lambda: transpose_pipeline(x, y, stages, 8), y, x.t())

# %% [markdown]
# ## Two mistakes, and what the simulator says
#
# On a GPU either mistake may give the right answer most of the time. CPU tensors run in the simulator: there the bytes of
# a copy arrive at a moment of its own choosing, and every access is compared with what orders it.

# %%
small = torch.randn(64, 512).to(torch.float16)
mistakes = (("weak wait", "sim/in-flight"), ("no barrier", "sim/race")) if has_stmatrix else ()
for mistake, code in mistakes:
    print(f"--- {mistake}")
    try:
        transpose_pipeline(small, torch.empty(512, 64, dtype=torch.float16), 3, 8, mistake)
    except tile.SimulationFault as fault:
        print(fault.diagnostics[0].render())
        assert code in [d.code for d in fault.diagnostics]
    else:
        raise AssertionError(f"{mistake} was not found")

# %% [markdown]
# The first report says which copy is still in flight and where it was issued: wait for one group more. The
# second names the two lines that touch the same bytes: a thread waited for its own copies, then read what
# others copied.
