# %% [markdown]
# # TMA and mbarriers
#
# On Hopper one thread moves a whole box of a matrix: it names a *tensor map* and coordinates, and the tensor memory
# accelerator does the rest. Who needs the bytes waits on an *mbarrier*, eight bytes in shared memory that count
# arrivals and bytes. This page takes the two apart, puts them together again as a ring of stages, and then breaks the
# ring in seven ways to see what the simulator says.

# %%
import torch

import tilejit as tile
from tilejit import T
from tilejit.lib import ring

has_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
device = "cuda" if has_hopper else "cpu"
TARGET = "sm_90a"
"""The kernels are made for it by name, so that they are simulated whatever GPU there is."""

# %% [markdown]
# ## Phases and parity
#
# An mbarrier is initialised with a number of arrivals. When they have come (and the bytes, below), its *phase* is
# over and the next begins by itself, with the same number of arrivals. A waiting thread does not name a phase by its
# number but by its parity: `wait(parity)` goes on when, of the current phase and the one before, that with this
# parity is over. Phases count from 0, so on a fresh barrier a wait for parity 0 blocks, and one for parity 1 passes
# at once: it is about the phase *before* the first. A producer's first round needs just that.
#
# `mbarrier.test_wait.parity` asks without waiting. `T.cuda.mbarrier_wait` is a loop around its patient relative
# `try_wait`.


# %%
@tile.jit(target=TARGET)
def phases(OVER: T.Tensor((3, 2), "int32")):
    """OVER[n, p]: after n arrivals, does a wait for parity p pass?"""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    bar = T.alloc_shared((1,), "uint64", align=8)
    over = T.alloc_local((1,), "bool", layout="default")
    T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), T.uint32(1))
    for n in T.unroll(3):
        for parity in T.unroll(2):
            T.ptx["mbarrier.test_wait.parity.shared::cta.b64"](over[0], bar.ptr_to([0]), T.uint32(parity))
            OVER[n, parity] = T.cast(over[0], "int32")
        T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, bar.ptr_to([0]))


over = torch.empty(3, 2, dtype=torch.int32, device=device)
phases(over)
for n, row in enumerate(over.tolist()):
    print(f"{n} arrivals:", *(f"parity {p} {'passes' if passes else 'blocks'}" for p, passes in enumerate(row)))
assert over.tolist() == [[0, 1], [1, 0], [0, 1]]

# %% [markdown]
# Two arrivals later the answers are those of the beginning. One bit cannot tell phase 0 from phase 2, so nobody may
# fall two phases behind. In a ring the other barrier sees to that.
#
# ## A box, and the bytes that it brings
#
# `mbarrier.arrive.expect_tx` is two things in one: an arrival, and a promise of bytes in the current phase. A phase
# is over when all arrivals are there *and* as many bytes have come as were promised. The copy completes its bytes on
# the barrier that it was given; it is no arrival. So the barrier below counts one arrival, that of the thread that
# announces and issues.
#
# The tensor operand is simply `X`. From it, `box` and `swizzle` the checker derives the tensor map; the launch
# encodes it and passes it as a parameter of the kernel. `coords` is where the box starts, outermost first. What lies
# outside the matrix arrives as zeros, and its bytes count: promise those of the whole box. The innermost coordinate
# must be a multiple of 16 bytes; of a `column` that comes with the call nobody knows, so `T.assume` promises it (and
# the simulator checks the promise).

# %%
TMA_LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
TMA_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
SIDE = 64
"""Rows and columns of a tile of float16: rows of 128 bytes, the widest swizzle."""
TILE_BYTES = SIDE * SIDE * 2


def tiles_layout(count):
    """Of so many swizzled tiles, one after the other."""
    return T.cuda.mma_shared_layout((count, SIDE, SIDE), "float16")


@tile.jit
def chunks_of_thread(words, t):
    """(4 repeats, 4 words): the 16-byte chunks of a tile, given as words, that thread ``t`` of 128 has."""
    return words.view(4, 16, 8, 4).sub[:, t // 8, t % 8, :]


@tile.jit(target=TARGET)
def load_box(X: T.Tensor(("M", "N"), "float16", align=16), Y: T.Tensor((SIDE, SIDE), "float16", align=16),
             STORED: T.Tensor((SIDE, SIDE), "float16", align=16), row: T.int32, column: T.int32):
    """Y = the tile of X at (row, column); STORED = the same bytes in the order in which they lie in shared memory."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    T.assume(column % 8 == 0)
    t = T.cuda.thread_idx("x")
    box = T.alloc_shared((SIDE, SIDE), X.dtype, layout=tiles_layout(1), align=1024)
    bar = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()  # the copy, too, must find the barrier initialised
    T.cuda.cta_sync()  # and so must everyone who waits on it
    if t == 0:
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](T.ptx.SINK, bar.ptr_to([0]), T.uint32(TILE_BYTES))
        T.cuda.tile.apply(
            T.ptx[TMA_LOAD], box, X,
            box=(SIDE, SIDE), coords=(row, column), swizzle=3, mbar=bar.ptr_to([0]),
        )
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)  # 128 threads wait; none of them needs a fence to read
    words = T.alloc_local((4, 4), "uint32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], words, chunks_of_thread(box.view("uint32"), t))
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], chunks_of_thread(Y.view("uint32"), t), words)
    stored = box.view("uint32").view(SIDE, SIDE // 2, layout=f"({SIDE},{SIDE // 2}):({SIDE // 2},1)")
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], words, chunks_of_thread(stored, t))
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], chunks_of_thread(STORED.view("uint32"), t), words)


x = (torch.arange(96) // 8).expand(96, 96).to(device, torch.float16).contiguous()  # each element: its chunk of eight
y, stored = (torch.empty(SIDE, SIDE, device=device, dtype=torch.float16) for _ in range(2))
load_box(x, y, stored, 48, 64)
assert torch.equal(y[:48, :32], x[48:, 64:]) and not y[48:].any() and not y[:, 32:].any()
print("at the corner of the matrix the box ends in zeros:")
print(y[44:52, ::8].int())

# %% [markdown]
# ## The swizzle and its origin
#
# `Y` came out right although the bytes do not lie in rows: with `swizzle=3` TMA permutes the eight 16-byte chunks of
# each 128-byte row by an XOR with the row's number, and the layout from `mma_shared_layout` says the same to everyone
# who reads ([tutorial 08](08_swizzles_and_bank_conflicts.py) shows what for). `STORED` shows the bytes as they lie.

# %%
load_box(x, y, stored, 0, 0)
print("chunks of the first rows, as they lie in shared memory:")
print(stored[:9, ::8].int())
expected = torch.arange(8)[None, :] ^ torch.arange(SIDE)[:, None] % 8
assert torch.equal(stored[:, ::8].cpu().int(), expected.int())

# %% [markdown]
# The hardware knows no rows. It flips bits 4 to 6 of the shared *address* with bits 7 to 9; that this is the number
# of the row in its tile is true where the tile starts at a multiple of 1024 bytes, eight rows. Hence `align=1024`,
# and hence a copy into rows 3 to 10 of a tile lands right, too: its origin is given before the swizzle, and the
# pattern goes on.
#
# Whether layout and `swizzle` fit is checked before anything runs. A tile that lies in plain rows, or an alignment
# that leaves the pattern's origin open, is refused:


# %%
@tile.jit(target=TARGET)
def load_into(X: T.Tensor((96, 96), "float16", align=16), layout: T.constexpr, align_bytes: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    box = T.alloc_shared((SIDE, SIDE), X.dtype, layout=layout, align=align_bytes)
    bar = T.alloc_shared((1,), "uint64", align=8)
    T.cuda.tile.apply(T.ptx[TMA_LOAD], box, X, box=(SIDE, SIDE), coords=(0, 0), swizzle=3, mbar=bar.ptr_to([0]))


for layout, align_bytes in (("default", 1024), (tiles_layout(1), 128)):
    try:
        load_into.check(x, layout, align_bytes)
    except tile.ContractError as error:
        print(error, "\n")
    else:
        raise AssertionError("the tile was accepted")

# %% [markdown]
# ## A ring with a producer and consumers
#
# `relu` below streams a strip of tiles through three stages. One thread of warp 4 produces; warps 0 to 3 consume:
# read a stage, compute, and send the result back by a TMA store. Each stage has two mbarriers, and `tilejit.lib.ring`
# spells them out:
#
# | barrier | arrivals of a phase | bytes | who waits |
# |---|---|---|---|
# | `full[stage]` | 1: the producer, `ring.announce` | the tile's | consumers, `ring.wait_full` |
# | `empty[stage]` | 4: one of each consuming warp, `ring.release_read` | none | the producer, `ring.wait_empty` |
#
# Both sides walk at a position (stage, parity) that starts at (0, 0); the parity flips whenever the stage wraps
# around (`ring.following`). `wait_full` waits for that parity, `wait_empty` for the other one: in the first round
# that is the phase before the first, so the producer passes at once. No side counts phases, no side knows the other's
# position.
#
# ## Two ways to memory: the proxy fence
#
# TMA reaches shared memory through the *async proxy*, another way than that of ordinary loads and stores, and the two
# do not queue behind each other. What has come by TMA may be read as soon as its barrier says so. In the other
# direction a fence is needed, `fence.proxy.async.shared::cta`, in two places:
#
# * *after reading a stage, before releasing it.* Loads that were issued may still be under way when another thread
#   already knows that their warp has arrived; the next copy into the stage does not wait for them, and they get the
#   next tile's bytes. (On an H200 a ring of bulk copies gave wrong numbers in every launch without the fence.)
#   `ring.release_read` is the fence in each lane, `warp_sync`, and an arrival by one lane.
# * *after writing what a TMA store will read*, as follows.
#
# ## The way back: bulk groups
#
# Four things make a TMA store right:
#
# 1. The threads that wrote execute `fence.proxy.async.shared::cta`: their writes are now visible to the other proxy.
# 2. A barrier: the issuing thread knows that all of them did. Fence first, barrier second.
# 3. There is no mbarrier on the way out. The issuing thread closes a *bulk group* with `commit_group`, and
#    `wait_group.read(1)` waits until all but its latest group have *read* their source: before a buffer is written again.
# 4. `wait_group(0)` at the end: everything is written. Shared memory must outlive the copies that read it.
#
# Groups belong to a thread, so the thread that stores is the one that waits, and a barrier tells the others.


# %%
@tile.jit
def produce(tiles, X, row, column, full, empty, TILES: T.constexpr, mistake: T.constexpr):
    stage, parity = 0, 0
    for n in range(TILES):
        ring.wait_empty(empty, stage, parity)
        if mistake == "no bytes announced":
            T.ptx["mbarrier.arrive.shared::cta.b64"](T.ptx.SINK, full.ptr_to([stage]))
        elif mistake == "too many bytes":
            ring.announce(full, stage, 2 * TILE_BYTES)
        elif mistake == "too few bytes":
            ring.announce(full, stage, TILE_BYTES // 2)
        else:
            ring.announce(full, stage, TILE_BYTES)
        T.cuda.tile.apply(
            T.ptx[TMA_LOAD], tiles.sub[stage], X,
            box=(SIDE, SIDE), coords=(row, column + n * SIDE), swizzle=3, mbar=full.ptr_to([stage]),
        )
        stage, parity = ring.following(stage, parity, tiles.shape[0])


@tile.jit
def consume(Y, tiles, results, row, column, full, empty, TILES: T.constexpr, mistake: T.constexpr):
    t = T.cuda.thread_idx("x")
    words = T.alloc_local((4, 4), "uint32", layout="default")
    values = words.view("float16")
    stage, parity = 0, 0
    for n in range(TILES):
        ring.wait_full(full, stage, parity ^ 1 if mistake == "wrong parity" else parity)
        T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], words, chunks_of_thread(tiles.view("uint32").sub[stage], t))
        if mistake == "no fence after reading":
            T.cuda.warp_sync()
            if T.cuda.lane_id() == 0:
                ring.release(empty, stage)
        elif mistake != "no release":
            ring.release_read(empty, stage)
        T.cuda.tile.ewise(lambda v: max(v, 0.0), values, values)
        if t == 0:
            T.ptx["cp.async.bulk.wait_group.read"](1)  # the store of tile n - 2 has read this buffer
        T.cuda.named_barrier_sync(1, 128)
        T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], chunks_of_thread(results.view("uint32").sub[n % 2], t), words)
        if mistake != "no proxy fence":
            T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.named_barrier_sync(1, 128)
        if t == 0:
            T.cuda.tile.apply(
                T.ptx[TMA_STORE], Y, results.sub[n % 2], box=(SIDE, SIDE), coords=(row, column + n * SIDE), swizzle=3
            )
            T.ptx["cp.async.bulk.commit_group"]()
        stage, parity = ring.following(stage, parity, tiles.shape[0])
    if t == 0:
        T.ptx["cp.async.bulk.wait_group"](0)


@tile.jit(target=TARGET)
def relu(X: T.Tensor(("M", "N"), "float16", align=16), Y: T.Tensor(("M", "N"), "float16", align=16),
         STAGES: T.constexpr, TILES: T.constexpr, mistake: T.constexpr = None):
    """Y = max(X, 0); each CTA takes ``TILES`` tiles of a strip. ``mistake`` is for below."""
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // (SIDE * TILES), M // SIDE), block=160))
    row, column = T.cuda.block_idx("y") * SIDE, T.cuda.block_idx("x") * (SIDE * TILES)
    tiles = T.alloc_shared((STAGES, SIDE, SIDE), X.dtype, layout=tiles_layout(STAGES), align=1024)
    results = T.alloc_shared((2, SIDE, SIDE), Y.dtype, layout=tiles_layout(2), align=1024)
    full = T.alloc_shared((STAGES,), "uint64", align=8)
    empty = T.alloc_shared((STAGES,), "uint64", align=8)
    ring.create(full, empty, 1, 4)
    if T.cuda.warp_id() == 4:
        if T.cuda.elect_sync():
            produce(tiles, X, row, column, full, empty, TILES, mistake)
    else:
        consume(Y, tiles, results, row, column, full, empty, TILES, mistake)


rows, columns = (8192, 8192) if device == "cuda" else (128, 512)
x = torch.randn(rows, columns, device=device).to(torch.float16)


def measure(stages):
    """Check against torch; on a GPU print the rate: every byte is read once and written once."""
    y = torch.full_like(x, float("nan"))
    relu(x, y, stages, 8)
    assert torch.equal(y, x.relu())
    if device == "cpu":
        print(f"{stages} stages: right")
        return
    times = []
    for _ in range(20):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        relu(x, y, stages, 8)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    print(f"{stages} stages: right, {2 * x.numel() * x.element_size() / sorted(times)[10] / 1e12:5.2f} TB/s")


for stages in (1, 2, 3):
    measure(stages)

# %% [markdown]
# ## Seven mistakes
#
# On a GPU half of these hang without a word and the others give right numbers on most days. CPU tensors run in the
# simulator. It knows what each thread waits for, and it lets the bytes of a copy arrive at any time between its issue
# and its completion.

# %%
small = torch.randn(64, 512).to(torch.float16)


def break_it(mistake, code):
    """Run ``relu`` with the mistake and print what the simulator reports under ``code``."""
    try:
        relu(small, torch.zeros_like(small), 3, 8, mistake)
    except tile.SimulationFault as fault:
        print(f"{mistake}; reported: {', '.join(d.code for d in fault.diagnostics)}\n")
        print(next(d for d in fault.diagnostics if d.code == code).render())
    else:
        raise AssertionError(f"{mistake} was not found")


# %% [markdown]
# **An arrival without bytes.** `mbarrier.arrive` instead of `arrive.expect_tx`: the arrival alone ends the phase, and
# the consumers read while the tile is on its way. Its bytes then come in a phase that did not promise them.

# %%
break_it("no bytes announced", "sim/mbarrier-bytes")

# %% [markdown]
# **Too many bytes.** The phase waits for bytes that nobody brings. The usual causes: one of two copies is issued
# under a condition, or the count is of elements, or of another tile size. The report has both sides of the account.

# %%
break_it("too many bytes", "sim/mbarrier-bytes")

# %% [markdown]
# **Too few bytes.** If the first half of the tile arrives by itself, the phase ends there and the consumers read the
# other half too early; if both halves come at once, the count may step over its end and the phase never end. The
# simulator reports the account that does not balance.

# %%
break_it("too few bytes", "sim/mbarrier-bytes")

# %% [markdown]
# **The wrong parity.** The consumers wait for the phase before the first, which is over: they read what nobody has
# written. Later they wait for a phase that the producer cannot begin, and the run ends in a deadlock, too. Repair
# from the top.

# %%
break_it("wrong parity", "sim/unwritten-read")

# %% [markdown]
# **A missing arrival.** Three tiles pass, one for each stage; then everyone waits. Read the two `waits` together: the
# consumers want the bytes of the next round of `full[0]`, the producer wants `empty[0]`, of which *4 of 4 arrivals
# are missing*. Nobody who should have arrived there ever did.

# %%
break_it("no release", "sim/deadlock")

# %% [markdown]
# **No proxy fence.** Threads, barrier and groups are all in order, and still the copy may read what lay there before.
# This is the mistake that no test on a GPU finds reliably.

# %%
break_it("no proxy fence", "sim/proxy-fence")

# %% [markdown]
# **No proxy fence after reading.** `warp_sync` and an arrival tell the producer that the warp's loads were issued in
# time, and the next tile may still overtake them.

# %%
break_it("no fence after reading", "sim/proxy-fence")

# %% [markdown]
# [Tutorial 10](10_wgmma_gemm.py) puts a matrix product on this ring.
