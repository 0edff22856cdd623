# %% [markdown]
# # A matrix product on Hopper, step by step
#
# C = A · Bᵀ with `wgmma`, from one warpgroup that loads, waits and multiplies in turn to a persistent kernel with
# roles. [Tutorial 07](07_mma_gemm.py) climbed the same ladder with `mma.sync`, and
# [tutorial 09](09_tma_and_mbarriers.py) has TMA, mbarriers and the ring that this one stands on.
#
# A is (M, K), B is (N, K), C is (M, N), all bfloat16, sums in float32, sizes in whole tiles.
# `tilejit.kernels.matmul`, the last line of the table, is the kernel that takes any size and any operand order.

# %%
from dataclasses import dataclass

import torch

import tilejit as tile
from tilejit import T
from tilejit.kernels import matmul
from tilejit.lib import epilogue, packed, ring, roles, schedulers

has_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
device = "cuda" if has_hopper else "cpu"
TARGET = "sm_90a"
"""The kernels are made for it by name, so that they are simulated whatever GPU there is."""
SIZE = 4096
"""M, N and K that the plans are for."""
RUN = SIZE if device == "cuda" else 256
"""M, N and K that run here: the simulator takes smaller plans of the same kernels."""
K = 64
"""Elements of a slice along K: rows of 128 bytes, the widest swizzle."""
K_STEP = 16
"""Elements along K of one wgmma."""


@dataclass(frozen=True)
class Plan:
    """A CTA computes m × n of C from slices of K; each of ``consumers`` warpgroups has 64 of the m rows.

    ``stages``: slices in shared memory at once. ``slabs``: 64-column parts of C that a warpgroup's output buffer holds,
    ``at_once`` of them between two barriers. ``group_m``: rows of tiles that consecutive CTAs go down. ``ctas``: of a
    persistent launch.
    """

    m: int
    n: int
    stages: int = 1
    slabs: int = 0
    at_once: int = 0
    group_m: int = 1
    ctas: int = 132

    @property
    def consumers(self):
        return self.m // 64

    @property
    def slice_bytes(self):
        return (self.m + self.n) * K * 2


# %% [markdown]
# ## What the steps share
#
# **Operands.** wgmma takes A and B from shared memory, whole slices of them; no fragments, no `ldmatrix`. What it
# needs to know of a slice is 64 bits, the *matrix descriptor*: start, strides, swizzle. It is derived from the layout
# of the operand, and refused where there is none that walks it. Operands are shown as (repeats, repeats along K,
# rows, 16).
#
# **Sums.** They lie in registers: of each 64 × n block a thread has n/2 float32, pairs of neighbouring columns in two
# rows 8 apart. Allocated plainly, they get the instruction's layout where the instruction sees them.
#
# **Order.** wgmma is asynchronous. `wgmma.fence` says that the registers are ready, `commit_group` closes a group,
# and `wait_group(n)` waits until at most n groups are pending. Until then nobody touches the sums or overwrites the
# slices.


# %%
@tile.jit
def multiply(sums, a_slice, b_slice, accumulate, plan: T.constexpr):
    """sums (+)= a · bᵀ of one slice, for 64 rows of A and all of B: four instructions, one group."""
    a = a_slice.view(1, 64, K // K_STEP, K_STEP).permute(0, 2, 1, 3)
    b = b_slice.view(1, plan.n, K // K_STEP, K_STEP).permute(0, 2, 1, 3)
    d = sums.view(1, 1, 64, plan.n, layout=T.cuda.wgmma_fragment_layout(plan.n, (1, 1)))
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n{plan.n}k16.f32.bf16.bf16"],
        d, a, b, accum=accumulate, scope="warpgroup",
    )
    T.ptx["wgmma.commit_group.sync.aligned"]()


# %% [markdown]
# `accum` is false for the first slice: the old sums are not read, so they need not be zeroed.
#
# **Slices.** One thread announces the bytes of both boxes and issues their copies.


# %%
TMA_LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"


@tile.jit
def alloc_rings(A, B, plan: T.constexpr):
    """``stages`` slices of A and of B."""
    a_shape, b_shape = (plan.stages, plan.m, K), (plan.stages, plan.n, K)
    a_ring = T.alloc_shared(a_shape, A.dtype, layout=T.cuda.mma_shared_layout(a_shape, A.dtype), align=1024)
    b_ring = T.alloc_shared(b_shape, B.dtype, layout=T.cuda.mma_shared_layout(b_shape, B.dtype), align=1024)
    return a_ring, b_ring


@tile.jit
def load_slices(a_ring, b_ring, A, B, row, column, k, full, stage, plan: T.constexpr):
    """Slice ``k`` of A from ``row`` on and of B from ``column`` on, into a stage; the bytes complete on its barrier."""
    ring.announce(full, stage, plan.slice_bytes)
    mbar = full.ptr_to([stage])
    a_slice, b_slice = a_ring.sub[stage], b_ring.sub[stage]
    T.cuda.tile.apply(T.ptx[TMA_LOAD], a_slice, A, box=a_slice.shape, coords=(row, k * K), swizzle=3, mbar=mbar)
    T.cuda.tile.apply(T.ptx[TMA_LOAD], b_slice, B, box=b_slice.shape, coords=(column, k * K), swizzle=3, mbar=mbar)


# %% [markdown]
# **Results.** The first steps round pairs of sums into words and store these: 4 bytes a lane, four lanes side by
# side.


# %%
@tile.jit
def store_words(C, sums, row, column, plan: T.constexpr):
    """The warpgroup's 64 rows of C from (row, column) on."""
    warp, lane = T.cuda.warp_in_warpgroup(), T.cuda.lane_id()
    words = T.alloc_local((plan.n // 8, 2, 1), "uint32", layout="default")
    packed.round_pairs(words, sums, C.dtype)
    block = C.view("uint32").sub[row : row + 64, column // 2 : column // 2 + plan.n // 2]
    mine = block.view(4, 2, 8, plan.n // 8, 4, 1).sub[warp, :, lane // 4, :, lane % 4, :]
    T.cuda.tile.apply(T.ptx["st.global.b32"], mine, words.permute(1, 0, 2))


# %% [markdown]
# **Checking and counting.** `climb` runs a step, compares it with torch, and counts. The number that matters first on
# this ladder is *bytes per clock*: an SM's tensor cores multiply a slice, m × n × 64, in m·n·64/2048 clocks, and in
# that time L2 must bring the next one. It brings an SM about 64 bytes a clock, and all of them together less, about
# 57 each.

# %%
LADDER = {}
"""Step → (run, plan for ``SIZE``). benchmarks/bench_wgmma_ladder.py times these."""
TABLE = []
PRODUCTS_PER_CLOCK = 2048
"""Multiply-adds of 16-bit elements in the tensor cores of one SM."""


def operands(size):
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return a, b, torch.empty_like(a)


def seconds(run):
    """Median of 20 launches, each between two events, after one that is not counted."""
    times = []
    for _ in range(21):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    return sorted(times[1:])[10]


def climb(step, kernel, plan, small):
    """``plan`` is for ``SIZE``; ``small`` for the simulator."""
    LADDER[step] = (kernel, plan)
    if __name__ != "__main__":
        return  # imported for its kernels
    a, b, c = operands(RUN)
    c.fill_(float("nan"))
    kernel(a, b, c, plan if device == "cuda" else small)
    torch.testing.assert_close(c.float(), a.float() @ b.float().T, atol=2e-1, rtol=1e-2)
    # The counts and the compiled kernel for SIZE need no GPU, and only the shapes of the tensors.
    shape = a if device == "cuda" else torch.empty(SIZE, SIZE, dtype=torch.bfloat16)
    stats = kernel.compile(shape, shape, shape, plan).stats
    rate = plan.slice_bytes / (plan.m * plan.n * K / PRODUCTS_PER_CLOCK)
    line = (
        f"| {step} | {plan.m}×{plan.n} | {rate:.0f} | {stats.threads} | {stats.registers} "
        f"| {stats.shared_bytes >> 10} | {stats.blocks_per_sm} |"
    )
    if device == "cuda":
        took, torch_took = seconds(lambda: kernel(a, b, c, plan)), seconds(lambda: torch.mm(a, b.T, out=c))
        line += f" {2e-12 * RUN**3 / took:.0f} | {torch_took / took:.2f} |"
    TABLE.append(line)
    print(line)


# %% [markdown]
# ## (a) One stage, one warpgroup
#
# The least that works. Thread 0 loads a slice, everyone waits for it, the warpgroup multiplies, everyone waits for
# that. The phase of the k-th slice has parity k % 2. There is no CTA barrier in the loop: a group of wgmma is one of
# the whole warpgroup, so when `wait_group(0)` lets thread 0 go on, nobody reads the slice any more and the next may
# overwrite it. All four warps have passed the wait for phase k by then, for they issued the product together.
#
# *What limits it:* copies and products take turns; only the other CTAs of the SM fill the pauses. And a tile of
# 64 × 128 asks L2 for half as much again as it can give.


# %%
@tile.jit(target=TARGET)
def one_stage(
    A: T.Tensor(("M", "K"), "bfloat16", align=16), B: T.Tensor(("N", "K"), "bfloat16", align=16),
    C: T.Tensor(("M", "N"), "bfloat16", align=16), plan: T.constexpr,
):
    M, N = C.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // plan.n, M // plan.m), block=128))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    thread = T.cuda.thread_idx("x")
    a_ring, b_ring = alloc_rings(A, B, plan)  # of one stage
    full = T.alloc_shared((1,), "uint64", align=8)
    init_barriers(full)
    sums = T.alloc_local((plan.n // 8, 2, 2), "float32", layout="default")
    for k in range(A.shape[1] // K):
        if thread == 0:
            load_slices(a_ring, b_ring, A, B, row, column, k, full, 0, plan)
        T.cuda.mbarrier_wait(full.ptr_to([0]), k % 2)
        multiply(sums, a_ring.sub[0], b_ring.sub[0], k != 0, plan)
        T.ptx["wgmma.wait_group.sync.aligned"](0)
    store_words(C, sums, row, column, plan)


@tile.jit
def init_barriers(full):
    """One arrival each, that of the thread which announces."""
    if T.cuda.thread_idx("x") == 0:
        for stage in T.unroll(full.shape[0]):
            T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([stage]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()


climb("a: wgmma m64n128, TMA, one stage", one_stage, Plan(64, 128), Plan(64, 128))

# %% [markdown]
# ## (b) A ring of stages
#
# `stages` slices in shared memory, each with a barrier of its own: up to `stages` - 1 are on their way while one is
# multiplied. One group of wgmma stays pending, so the tensor cores have the next product before they have finished
# the last. After `wait_group(1)` slice k - 1 is done with, and its stage is the one to refill.
#
# *What limits it:* the same 96 bytes per clock. And the thread that multiplies is the thread that loads: the next
# copy is issued when the warpgroup gets to it, not when its stage is free.


# %%
@tile.jit(target=TARGET)
def many_stages(
    A: T.Tensor(("M", "K"), "bfloat16", align=16), B: T.Tensor(("N", "K"), "bfloat16", align=16),
    C: T.Tensor(("M", "N"), "bfloat16", align=16), plan: T.constexpr,
):
    M, N = C.shape
    slices = A.shape[1] // K
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // plan.n, M // plan.m), block=128))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    thread = T.cuda.thread_idx("x")
    a_ring, b_ring = alloc_rings(A, B, plan)
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    init_barriers(full)
    sums = T.alloc_local((plan.n // 8, 2, 2), "float32", layout="default")
    if thread == 0:
        for k in T.unroll(plan.stages - 1):
            load_slices(a_ring, b_ring, A, B, row, column, k, full, k, plan)
    stage, parity = 0, 0
    for k in range(slices):
        ring.wait_full(full, stage, parity)
        multiply(sums, a_ring.sub[stage], b_ring.sub[stage], k != 0, plan)
        T.ptx["wgmma.wait_group.sync.aligned"](1)
        ahead = k + plan.stages - 1
        if thread == 0 and ahead < slices:
            freed = ahead % plan.stages
            load_slices(a_ring, b_ring, A, B, row, column, ahead, full, freed, plan)
        stage, parity = ring.following(stage, parity, plan.stages)
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    store_words(C, sums, row, column, plan)


climb("b: a ring of stages", many_stages, Plan(64, 128, stages=4), Plan(64, 128, stages=3))

# %% [markdown]
# ## (c) A producer, two consumers, 128 × 256
#
# Now roles. Warpgroup 0 produces: one thread, walking the ring alone. Warpgroups 1 and 2 consume; each multiplies its
# 64 rows of A by the whole slice of B. A tile of 128 × 256 is loaded at 48 bytes per clock, within what L2 gives.
#
# Its price is registers: 128 sums in each consuming thread. The three warpgroups start with a third of the SM's each,
# 168 a thread; `setmaxnreg` moves what the producer does not need to those who do, 24 and 240 (`roles.produce`,
# `roles.consume`).
#
# Each side only waits for what it needs. `full[stage]` counts the producer, `empty[stage]` the two consumers; who is
# ahead runs ahead. The consumers drift apart by themselves, and then one multiplies while the other waits.
#
# *What limits it:* the end. All CTAs store at the same time, 4 bytes a lane, and no tensor core works meanwhile: the
# SM has registers for one CTA only.


# %%
@tile.jit
def produce_tile(a_ring, b_ring, A, B, row, column, full, empty, stage, parity, plan: T.constexpr):
    """Load all slices of a tile, from position (stage, parity) on. Returns the position behind the last."""
    for k in range(A.shape[1] // K):
        ring.wait_empty(empty, stage, parity)
        load_slices(a_ring, b_ring, A, B, row, column, k, full, stage, plan)
        stage, parity = ring.following(stage, parity, plan.stages)
    return stage, parity


@tile.jit
def consume_tile(sums, a_ring, b_ring, consumer, slices, full, empty, stage, parity, plan: T.constexpr):
    """sums = the products of all slices, of this consumer's 64 rows. Returns the position behind the last slice."""
    for k in range(slices):
        ring.wait_full(full, stage, parity)
        rows = a_ring.sub[stage].view(plan.consumers, 64, K).sub[consumer]
        multiply(sums, rows, b_ring.sub[stage], k != 0, plan)
        T.ptx["wgmma.wait_group.sync.aligned"](0)
        if T.cuda.thread_in_warpgroup() == 0:
            ring.release(empty, stage)
        stage, parity = ring.following(stage, parity, plan.stages)
    return stage, parity


@tile.jit(target=TARGET)
def with_roles(
    A: T.Tensor(("M", "K"), "bfloat16", align=16), B: T.Tensor(("N", "K"), "bfloat16", align=16),
    C: T.Tensor(("M", "N"), "bfloat16", align=16), plan: T.constexpr,
):
    M, N = C.shape
    block = roles.threads(plan.consumers)
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // plan.n, M // plan.m), block=block))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_ring, b_ring = alloc_rings(A, B, plan)
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    ring.create(full, empty, 1, plan.consumers)
    if T.cuda.warpgroup_id() == 0:
        roles.produce(plan.consumers)
        if T.cuda.thread_in_warpgroup() == 0:
            produce_tile(a_ring, b_ring, A, B, row, column, full, empty, 0, 0, plan)
    else:
        consumer = roles.consume(plan.consumers)
        sums = T.alloc_local((plan.n // 8, 2, 2), "float32", layout="default")
        consume_tile(sums, a_ring, b_ring, consumer, A.shape[1] // K, full, empty, 0, 0, plan)
        store_words(C, sums, row + consumer * 64, column, plan)


climb("c: producer and consumers, 128 × 256", with_roles, Plan(128, 256, stages=4), Plan(128, 64, stages=3))

# %% [markdown]
# ## (d) Results through shared memory, by TMA
#
# `lib.epilogue` takes 64 columns of a warpgroup's sums at a time, a *slab*. The rounded words of 16 columns are,
# register for register, what one `stmatrix.x4` stores; the slab is swizzled, so the eight rows of a matrix fall on
# different banks. A proxy fence, a barrier of the warpgroup, and one thread sends the slab away with a TMA store:
# whole rows of 128 bytes, which L2 takes better than words.
#
# The buffer here has two slabs: while the store of one reads its slab, the other is filled. `wait_group.read` guards
# the reuse.
#
# *What limits it:* each CTA still loads its first slices after it has started, and the SM still rests while it
# stores.


# %%
@tile.jit(target=TARGET)
def tma_epilogue(
    A: T.Tensor(("M", "K"), "bfloat16", align=16), B: T.Tensor(("N", "K"), "bfloat16", align=16),
    C: T.Tensor(("M", "N"), "bfloat16", align=16), plan: T.constexpr,
):
    M, N = C.shape
    block = roles.threads(plan.consumers)
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // plan.n, M // plan.m), block=block))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_ring, b_ring = alloc_rings(A, B, plan)
    slabs = alloc_slabs(C, plan)
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    ring.create(full, empty, 1, plan.consumers)
    if T.cuda.warpgroup_id() == 0:
        roles.produce(plan.consumers)
        if T.cuda.thread_in_warpgroup() == 0:
            produce_tile(a_ring, b_ring, A, B, row, column, full, empty, 0, 0, plan)
    else:
        consumer = roles.consume(plan.consumers)
        sums = T.alloc_local((plan.n // 8, 2, 2), "float32", layout="default")
        consume_tile(sums, a_ring, b_ring, consumer, A.shape[1] // K, full, empty, 0, 0, plan)
        store_slabs(C, slabs, sums, consumer, row, column, plan)
        epilogue.finish()


@tile.jit
def alloc_slabs(C, plan: T.constexpr):
    shape = (plan.consumers, plan.slabs, 64, 64)
    slabs = T.alloc_shared(shape, C.dtype, layout=T.cuda.mma_shared_layout(shape, C.dtype), align=1024)
    return slabs


@tile.jit
def store_slabs(C, slabs, sums, consumer, row, column, plan: T.constexpr):
    """This consumer's 64 rows of the tile of C at (row, column); the stores may still be under way."""
    epilogue.store(
        C, slabs.sub[consumer], sums.view(1, plan.n // 8, 2, 2), bias=None, own_bias=None, activation=None,
        first_row=row + consumer * 64, first_column=column, barrier=1 + consumer, at_once=plan.at_once,
    )


climb(
    "d: stmatrix and TMA stores", tma_epilogue,
    Plan(128, 256, stages=4, slabs=2, at_once=1), Plan(128, 64, stages=3, slabs=1, at_once=1),
)

# %% [markdown]
# ## (e) Persistent, tiles in groups, a buffer for all of C
#
# As many CTAs as SMs, and each takes tile after tile. The producer does not stop between tiles: while the consumers
# store one, the ring fills with the first slices of the next. The position in the ring is carried from tile to tile,
# on both sides.
#
# The output buffer holds the whole tile, 64 KiB, for one stage less: the consumers fill it at one go and return to
# multiplying; the stores leave while the next tile is computed.
#
# Which tile is next is `lib.schedulers`' business: tiles go down `group_m` rows before they move to the right, so
# that the 132 that are worked on at a time share rows of A and columns of B in L2.
#
# *What limits it:* power. A kernel that keeps the tensor cores busy runs at the clock that the card can afford, and
# so does cuBLAS.


# %%
@tile.jit(target=TARGET)
def persistent(
    A: T.Tensor(("M", "K"), "bfloat16", align=16), B: T.Tensor(("N", "K"), "bfloat16", align=16),
    C: T.Tensor(("M", "N"), "bfloat16", align=16), plan: T.constexpr,
):
    M, N = C.shape
    tiles_m, tiles_n = M // plan.m, N // plan.n
    tiles = tiles_m * tiles_n
    block = roles.threads(plan.consumers)
    T.device_entry(launch=T.cuda.LaunchConfig(grid=min(tiles, plan.ctas), block=block))
    a_ring, b_ring = alloc_rings(A, B, plan)
    slabs = alloc_slabs(C, plan)
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    ring.create(full, empty, 1, plan.consumers)
    first, step = T.cuda.block_idx("x"), T.cuda.grid_dim("x")
    stage, parity = 0, 0
    if T.cuda.warpgroup_id() == 0:
        roles.produce(plan.consumers)
        if T.cuda.thread_in_warpgroup() == 0:
            for number in range(first, tiles, step):
                row, column = corner(number, tiles_m, tiles_n, plan)
                stage, parity = produce_tile(a_ring, b_ring, A, B, row, column, full, empty, stage, parity, plan)
    else:
        consumer = roles.consume(plan.consumers)
        sums = T.alloc_local((plan.n // 8, 2, 2), "float32", layout="default")
        for number in range(first, tiles, step):
            row, column = corner(number, tiles_m, tiles_n, plan)
            stage, parity = consume_tile(
                sums, a_ring, b_ring, consumer, A.shape[1] // K, full, empty, stage, parity, plan
            )
            store_slabs(C, slabs, sums, consumer, row, column, plan)
        epilogue.finish()


@tile.jit
def corner(number, tiles_m: T.constexpr, tiles_n: T.constexpr, plan: T.constexpr):
    """The first row and column of a tile by its number."""
    row, column = schedulers.grouped(number, tiles_m, tiles_n, plan.group_m)
    return row * plan.m, column * plan.n


climb(
    "e: persistent, tiles in groups", persistent,
    Plan(128, 256, stages=3, slabs=4, at_once=4, group_m=16),
    Plan(128, 64, stages=3, slabs=1, at_once=1, group_m=2, ctas=3),
)

# %% [markdown]
# ## The library's kernel
#
# `kernels.matmul` is step (e) without its assumptions: any size (TMA clips the edges), rows or columns in either
# operand, float16, a bias and an activation in the epilogue. It chooses the shape of the tile by a small model, and
# cuts the tiles beyond the last whole wave along K. For 4096³ it chooses what (e) is.


# %%
class Library:
    """``kernels.matmul`` as a step: it has a plan of its own."""

    def __call__(self, a, b, c, plan):
        matmul.matmul(a, b.T, out=c)

    def compile(self, a, b, c, plan):
        return matmul.matmul_tma.compile(a, b, None, c, self.own_plan(), None)

    def own_plan(self):
        return matmul.plan_matmul(SIZE, SIZE, SIZE, a_k_major=True, b_k_major=True, sms=132)


library = Library()
own = library.own_plan()
climb("kernels.matmul", library, Plan(own.tile_m, own.tile_n, own.stages), None)

# %% [markdown]
# ## The ladder
#
# Without a GPU there are no times. The other columns come from the checked and compiled kernel, not from a run.

# %%
HEADER = "| step | tile m×n | bytes per clock | threads | registers | shared KiB | CTAs per SM |"
if __name__ == "__main__":
    header = HEADER + (" TFLOP/s | of torch.mm |" if device == "cuda" else "")
    print(f"\n{RUN}³ ran on {torch.cuda.get_device_name() if device == 'cuda' else 'the simulator'}; the table is for {SIZE}³\n")
    print("\n".join([header, "|---" * header.count(" |") + "|", *TABLE]))

# %% [markdown]
# <!-- ladder: make docs -->
# NVIDIA H200, 2026-11-30, driver 580.159.04, torch 2.11.0+cu130, Triton 3.6.0, JAX 0.11.2; all steps and torch.mm (cuBLAS) in one run, sustained, results checked first.
#
# | step | TFLOP/s at 4096³ | of torch.mm |
# |---|---|---|
# | a: wgmma m64n128, TMA, one stage | 400 | 0.60 |
# | b: a ring of stages | 414 | 0.63 |
# | c: producer and consumers, 128 × 256 | 582 | 0.87 |
# | d: stmatrix and TMA stores | 633 | 0.95 |
# | e: persistent, tiles in groups | 666 | 1.00 |
# | kernels.matmul | 664 | 1.01 |
# <!-- end of ladder -->
