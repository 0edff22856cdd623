# %% [markdown]
# # A matrix product, step by step
#
# C = A · Bᵀ on the tensor cores with `mma.sync`, from one warp that loads its operands word by word to a
# pipeline with everything in flight at once. The problem is the same throughout; every step says what it
# changes and what limits it, is checked against torch, and adds a line to the table at the end.
#
# A is (M, K), B is (N, K), C is (M, N), all float16, sums in float32. Both operands run along K in memory, as
# `mma.sync…row.col` wants them. Sizes are whole tiles; `tilejit.kernels.matmul_mma` is the kernel that takes
# any size and any operand order.

# %%
from dataclasses import dataclass

import torch

import tilejit as tile
from tilejit import T

device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 4096
"""M, N and K that the plans are for."""
RUN = SIZE if device == "cuda" else 128
"""M, N and K that run here: the simulator takes smaller plans of the same kernels."""


@dataclass(frozen=True)
class Plan:
    """A CTA computes m × n of C from slices of k; ``warps_m`` × ``warps_n`` warps share the tile.

    ``stages``: slices in shared memory at once. ``group_m``: rows of tiles that consecutive CTAs go down.
    """

    m: int
    n: int
    k: int
    warps_m: int = 1
    warps_n: int = 1
    stages: int = 1
    group_m: int = 1

    @property
    def threads(self):
        return 32 * self.warps_m * self.warps_n

    @property
    def k_steps(self):
        """mma steps along K of a slice."""
        return self.k // 16

    @property
    def a_blocks(self):
        """16-row blocks of A that each warp multiplies."""
        return self.m // self.warps_m // 16

    @property
    def b_blocks(self):
        """16-row blocks of B, each two mma wide, that each warp multiplies."""
        return self.n // self.warps_n // 16


# %% [markdown]
# ## What the steps share
#
# **Registers.** One m16n8k16 multiplies 16 rows of A by 8 rows of B over 16 elements of K. Every lane holds a
# fixed part of each operand, its *fragment*: 4 words of A, 2 words of B, 4 float32 of C. Which part is the
# instruction's business, and `T.cuda.mma_fragment_layout` knows it. The registers are allocated plainly and
# get that layout where the instruction sees them: a view moves nothing.


# %%
@tile.jit
def alloc_fragments(plan: T.constexpr):
    """Registers of one thread: words of A, words of B, and zeroed sums."""
    a = T.alloc_local((plan.a_blocks, 4), "uint32", layout="default")
    b = T.alloc_local((plan.b_blocks, 4), "uint32", layout="default")
    sums = T.alloc_local((plan.a_blocks, 2 * plan.b_blocks, 2, 2), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["mov.f32"], sums.view(sums.size, 1), 0.0)
    return a, b, sums


@tile.jit
def multiply(sums, a, b, plan: T.constexpr):
    """sums += a · bᵀ for one step of 16 along K: a_blocks × 2 b_blocks instructions."""
    rows, columns = plan.a_blocks, 2 * plan.b_blocks
    c = sums.view(rows, columns, 16, 8, layout=T.cuda.mma_fragment_layout("m16n8k16", "D", (rows, columns)))
    a = a.view(rows, 1, 16, 8, layout=T.cuda.mma_fragment_layout("m16n8k16", "A", (rows, 1)))
    b = b.view(columns, 1, 8, 8, layout=T.cuda.mma_fragment_layout("m16n8k16", "B", (columns, 1)))
    T.cuda.tile.apply(T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"], c, a, b, c, scope="warp")


# %% [markdown]
# **Matrices.** Fragments of A and B are made of 8 × 8 matrices of 16-bit elements, 8 rows of 4 words. A block of 16
# rows by 16 along K is four of them, and four registers of each lane: lane `l` holds word `l % 4` of row
# `l // 4` of each. Only their order differs. A wants (rows, K) = (0, 0), (8, 0), (0, 8), (8, 8); a block of
# B is two operands of 8 rows, each with its K in order: (0, 0), (0, 8), (8, 0), (8, 8).


# %%
@tile.jit
def a_matrices(slice_, step, plan: T.constexpr):
    """The matrices of this warp's blocks of A at ``step`` along K: (a_blocks, 4, 8 rows, 4 words)."""
    warp_m = T.cuda.warp_id() // plan.warps_n
    words = slice_.view("uint32").view(plan.warps_m, plan.a_blocks, 2, 8, plan.k_steps, 2, 4)
    blocks = words.sub[warp_m, :, :, :, step, :, :]  # (block, row half, row, K half, word)
    return blocks.permute(0, 3, 1, 2, 4).view(plan.a_blocks, 4, 8, 4)


@tile.jit
def b_matrices(slice_, step, plan: T.constexpr):
    """The same of B: the row half comes before the half of K."""
    warp_n = T.cuda.warp_id() % plan.warps_n
    words = slice_.view("uint32").view(plan.warps_n, plan.b_blocks, 2, 8, plan.k_steps, 2, 4)
    blocks = words.sub[warp_n, :, :, :, step, :, :]
    return blocks.permute(0, 1, 3, 2, 4).view(plan.b_blocks, 4, 8, 4)


# %% [markdown]
# **Results.** A lane's sums of one mma are two pairs of neighbouring columns, 8 rows apart. Each pair is rounded
# into one word and stored.


# %%
@tile.jit
def store(C, sums, row, column, plan: T.constexpr):
    rows, columns = plan.a_blocks, 2 * plan.b_blocks
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    row += warp // plan.warps_n * (16 * rows)
    column = column // 2 + warp % plan.warps_n * (4 * columns)
    words = C.view("uint32").sub[row : row + 16 * rows, column : column + 4 * columns]
    mine = words.view(rows, 2, 8, columns, 4, 1).sub[:, :, lane // 4, :, lane % 4, :]
    packed = T.alloc_local((rows, columns, 2, 1), "uint32", layout="default")
    # cvt puts its first input into the upper half of the word.
    T.cuda.tile.apply(T.ptx["cvt.rn.f16x2.f32"], packed, sums.sub[:, :, :, 1:2], sums.sub[:, :, :, 0:1])
    T.cuda.tile.apply(T.ptx["st.global.b32"], mine, packed.permute(0, 2, 1, 3))


# %% [markdown]
# **Checking and counting.** `climb` runs a step, compares it with torch, and counts. `k.check(…).banks` says what every
# access to shared memory costs, without a run; from it follows the number that matters first on this ladder:
# *wavefronts of shared memory per mma*. An SM serves one wavefront (up to 128 bytes) per clock. Its four tensor cores
# together take a new m16n8k16 every 2 clocks on A100, and sooner on H100: with more wavefronts per mma than
# that, shared memory sets the pace.

# %%
LADDER = {}
"""Step → (kernel, plan for ``SIZE``). benchmarks/bench_ladder.py times these."""
TABLE = []


def operands(size):
    torch.manual_seed(0)
    a = torch.randn(size, size, device=device, dtype=torch.float16)
    b = torch.randn(size, size, device=device, dtype=torch.float16)
    return a, b, torch.empty(size, size, device=device, dtype=torch.float16)


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


def fragment_reads(variant, plan):
    """Instructions and wavefronts per mma that bring fragments from shared memory, and the worst
    conflict. Each k-step has one report for A and one for B."""
    reads = [r for r in variant.banks if r.spelling.startswith(("ldmatrix", "ld."))]
    mma = len(reads) // 2 * (plan.m // 16) * (plan.n // 8)
    return (
        sum(r.instructions for r in reads) / mma,
        sum(r.actual for r in reads) / mma,
        max(r.conflict_degree for r in reads),
    )


def climb(step, kernel, plan, small):
    """``plan`` is for ``SIZE``; ``small`` for the simulator."""
    LADDER[step] = (kernel, plan)
    if __name__ != "__main__":
        return  # imported for its kernels
    a, b, c = operands(RUN)
    used = plan if device == "cuda" else small
    kernel(a, b, c, used)
    torch.testing.assert_close(c.float(), a.float() @ b.float().T, atol=2e-2, rtol=2e-3)
    # The counts and the compiled kernel for SIZE need no GPU, and only the shapes of the tensors.
    shape = torch.empty(SIZE, SIZE, dtype=torch.float16) if device == "cpu" else a
    variant = kernel.compile(shape, shape, shape, plan)
    instructions, wavefronts, degree = fragment_reads(variant, plan)
    stats = variant.stats
    line = (
        f"| {step} | {plan.m}×{plan.n}×{plan.k} | {stats.threads} | {instructions:.2f} | {wavefronts:.2f} "
        f"| {degree}-way | {stats.registers} | {stats.shared_bytes >> 10} | {stats.blocks_per_sm} |"
    )
    if device == "cuda":
        took, torch_took = seconds(lambda: kernel(a, b, c, plan)), seconds(lambda: torch.mm(a, b.T, out=c))
        line += f" {2e-12 * RUN**3 / took:.0f} | {torch_took / took:.2f} |"
    TABLE.append(line)
    print(line)


# %% [markdown]
# ## (a) One warp, fragments by plain loads
#
# The least that works. A CTA is one warp with a 32 × 32 tile. It copies slices of A and B through registers,
# 16 bytes per thread and instruction, then every lane loads the words of its fragments one `ld.shared.b32` at a
# time: of each matrix, the word at `(lane // 4, lane % 4)`.
#
# *What limits it:* everything. Two loads and 8 wavefronts per mma (rows of 64 bytes put lanes of different rows on the
# same banks), a warp that waits for each copy before it multiplies, and small tiles: every element of A is read
# from global memory N/32 times, every element of B M/32 times.


# %%
@tile.jit
def load_slice(slice_, source, row, column, plan: T.constexpr):
    """Rows ``row``… by columns ``column``… of ``source`` to shared memory, through registers."""
    targets, found = chunks(slice_, source, row, column, plan)
    r = T.alloc_local((targets.shape[0], 4), "uint32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, found)
    T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], targets, r)


@tile.jit
def chunks(slice_, source, row, column, plan: T.constexpr):
    """(passes, 4 words) of both: the 16-byte chunks that this thread copies. Threads cover rows side by side."""
    height, width = slice_.shape[0], slice_.shape[1] // 2
    across = width // 4
    at_once = plan.threads // across
    t = T.cuda.thread_idx("x")
    words = source.view("uint32").sub[row : row + height, column // 2 : column // 2 + width]
    split = (height // at_once, at_once, across, 4)
    targets = slice_.view("uint32").view(*split).sub[:, t // across, t % across, :]
    return targets, words.view(*split).sub[:, t // across, t % across, :]


@tile.jit
def read_words(fragments, matrices):
    """One word per lane and instruction."""
    lane = T.cuda.lane_id()
    words = matrices.sub[:, :, lane // 4, lane % 4 : lane % 4 + 1]
    T.cuda.tile.apply(T.ptx["ld.shared.b32"], fragments.view(*words.shape), words)


@tile.jit
def one_warp(
    A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
    C: T.Tensor(("M", "N"), "float16", align=16), plan: T.constexpr,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(C.shape[1] // plan.n, C.shape[0] // plan.m), block=plan.threads))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_slice = T.alloc_shared((plan.m, plan.k), A.dtype, layout="default", align=128)
    b_slice = T.alloc_shared((plan.n, plan.k), B.dtype, layout="default", align=128)
    a, b, sums = alloc_fragments(plan)
    for k in range(A.shape[1] // plan.k):
        load_slice(a_slice, A, row, k * plan.k, plan)
        load_slice(b_slice, B, column, k * plan.k, plan)
        T.cuda.cta_sync()
        for step in T.unroll(plan.k_steps):
            read_words(a, a_matrices(a_slice, step, plan))
            read_words(b, b_matrices(b_slice, step, plan))
            multiply(sums, a, b, plan)
        T.cuda.cta_sync()  # the slices are overwritten next
    store(C, sums, row, column, plan)


climb("a: one warp, ld.shared", one_warp, Plan(32, 32, 32), Plan(32, 32, 32))

# %% [markdown]
# ## (b) `ldmatrix`
#
# One instruction brings all four matrices of a block. The matrices are the same view as before; now the warp
# takes them whole, and each lane gives the address of one row instead of four words.
#
# *What limits it:* the wavefronts stay. The 8 rows of a matrix start 64 bytes apart, so their 16-byte
# chunks fall on two groups of four banks: 4 wavefronts where one would do.


# %%
@tile.jit
def read_matrices(fragments, matrices):
    """Four words per lane and instruction."""
    count = matrices.shape[0]
    words = fragments.view(count, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, count))
    T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"], words, matrices, scope="warp")


@tile.jit
def one_buffer(
    A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
    C: T.Tensor(("M", "N"), "float16", align=16), plan: T.constexpr,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(C.shape[1] // plan.n, C.shape[0] // plan.m), block=plan.threads))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_slice = T.alloc_shared((plan.m, plan.k), A.dtype, layout="default", align=128)
    b_slice = T.alloc_shared((plan.n, plan.k), B.dtype, layout="default", align=128)
    a, b, sums = alloc_fragments(plan)
    for k in range(A.shape[1] // plan.k):
        load_slice(a_slice, A, row, k * plan.k, plan)
        load_slice(b_slice, B, column, k * plan.k, plan)
        T.cuda.cta_sync()
        multiply_slice(sums, a, b, a_slice, b_slice, plan)
        T.cuda.cta_sync()
    store(C, sums, row, column, plan)


@tile.jit
def multiply_slice(sums, a, b, a_slice, b_slice, plan: T.constexpr):
    """All k-steps of a slice, one after the other."""
    for step in T.unroll(plan.k_steps):
        read_matrices(a, a_matrices(a_slice, step, plan))
        read_matrices(b, b_matrices(b_slice, step, plan))
        multiply(sums, a, b, plan)


climb("b: ldmatrix", one_buffer, Plan(32, 32, 32), Plan(32, 32, 32))

# %% [markdown]
# ## (c) More warps and bigger tiles
#
# The kernel is that of (b); only the plan changes. A warp that multiplies i blocks of A by j blocks of B reads
# i + j blocks for 2·i·j mma: bigger warp tiles need fewer wavefronts per mma. A bigger CTA tile reads
# global memory less often, and more warps hide each other's latency.
#
# *What limits it:* copies and products take turns. While a slice is on its way, nobody multiplies, but for the
# other CTAs of the SM.

# %%
climb("c: more warps, bigger tiles", one_buffer, Plan(128, 128, 32, 2, 4), Plan(64, 64, 32, 2, 2))

# %% [markdown]
# ## (d) `cp.async` and two buffers
#
# `cp.async` copies 16 bytes from global to shared memory without registers in between, and goes on at once.
# With two buffers the next slice is on its way while this one is multiplied. Per slice: issue the next copies, commit
# them as one group, wait until only that group is pending, and let the barrier show everyone's copies to everyone.
# The last round commits an empty group, so the count stays right.
#
# *What limits it:* the products of one slice take a few hundred clocks, a load from global memory often takes more.
# Two barriers per slice keep the warps in step. The bank conflicts are still there.


# %%
@tile.jit
def copy_slice(slice_, source, row, column, plan: T.constexpr):
    """Issue the copies of a slice."""
    targets, found = chunks(slice_, source, row, column, plan)
    T.cuda.tile.apply(T.ptx["cp.async.cg.shared.global"], targets, found, chunk_bytes=16)


@tile.jit
def copy_slices(a_ring, b_ring, A, B, row, column, k, plan: T.constexpr):
    """Issue and commit slice ``k`` of both operands into its stage; an empty group past the last slice."""
    if k < A.shape[1] // plan.k:
        stage = k % plan.stages
        copy_slice(a_ring.sub[stage, :, :], A, row, k * plan.k, plan)
        copy_slice(b_ring.sub[stage, :, :], B, column, k * plan.k, plan)
    T.ptx["cp.async.commit_group"]()


@tile.jit
def two_buffers(
    A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
    C: T.Tensor(("M", "N"), "float16", align=16), plan: T.constexpr,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(C.shape[1] // plan.n, C.shape[0] // plan.m), block=plan.threads))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_ring = T.alloc_shared((2, plan.m, plan.k), A.dtype, layout="default", align=128)
    b_ring = T.alloc_shared((2, plan.n, plan.k), B.dtype, layout="default", align=128)
    a, b, sums = alloc_fragments(plan)
    copy_slices(a_ring, b_ring, A, B, row, column, 0, plan)
    for k in range(A.shape[1] // plan.k):
        copy_slices(a_ring, b_ring, A, B, row, column, k + 1, plan)
        T.ptx["cp.async.wait_group"](1)
        T.cuda.cta_sync()
        multiply_slice(sums, a, b, a_ring.sub[k % 2, :, :], b_ring.sub[k % 2, :, :], plan)
        T.cuda.cta_sync()  # this buffer is refilled next
    store(C, sums, row, column, plan)


climb(
    "d: cp.async, two buffers", two_buffers,
    Plan(128, 128, 32, 2, 4, stages=2), Plan(64, 64, 32, 2, 2, stages=2),
)

# %% [markdown]
# ## (e) More stages, and a swizzle
#
# `stages` buffers keep `stages - 1` slices on their way: enough for the latency of global memory. One barrier
# per slice now does both jobs. Behind it everyone's copies of slice k are visible, and everyone is done with slice
# k - 1, whose buffer is the one to refill.
#
# The layout of the rings is swizzled: `mma_shared_layout` permutes the 16-byte chunks of a row by an XOR with the
# row's number ([tutorial 08](08_swizzles_and_bank_conflicts.py)). No line of the kernel knows: views name
# coordinates, the layout says where they lie. The table says 1-way from here on.
#
# *What limits it:* a warp's mma waits for the ldmatrix just before it, and then the shared memory waits for the mma.


# %%
@tile.jit
def alloc_ring(rows, dtype, plan: T.constexpr):
    shape = (plan.stages, rows, plan.k)
    return T.alloc_shared(shape, dtype, layout=T.cuda.mma_shared_layout(shape, dtype), align=1024)


@tile.jit
def many_stages(
    A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
    C: T.Tensor(("M", "N"), "float16", align=16), plan: T.constexpr,
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(C.shape[1] // plan.n, C.shape[0] // plan.m), block=plan.threads))
    row, column = T.cuda.block_idx("y") * plan.m, T.cuda.block_idx("x") * plan.n
    a_ring, b_ring = alloc_ring(plan.m, A.dtype, plan), alloc_ring(plan.n, B.dtype, plan)
    a, b, sums = alloc_fragments(plan)
    for k in T.unroll(plan.stages - 1):
        copy_slices(a_ring, b_ring, A, B, row, column, k, plan)
    for k in range(A.shape[1] // plan.k):
        T.ptx["cp.async.wait_group"](plan.stages - 2)
        T.cuda.cta_sync()
        copy_slices(a_ring, b_ring, A, B, row, column, k + plan.stages - 1, plan)
        stage = k % plan.stages
        multiply_slice(sums, a, b, a_ring.sub[stage, :, :], b_ring.sub[stage, :, :], plan)
    store(C, sums, row, column, plan)


climb(
    "e: more stages, swizzle", many_stages,
    Plan(128, 128, 32, 2, 4, stages=4), Plan(64, 64, 32, 2, 2, stages=3),
)

# %% [markdown]
# ## (f) Fragments one step ahead, and CTAs in groups
#
# Two sets of fragments: while the tensor cores work on one, the next k-step's `ldmatrix` fill the other,
# across the ends of slices too. The wait and the barrier for the next slice therefore come at the *last*
# k-step of this one. The refill of the oldest buffer comes after them, for the same reason as before.
#
# The warp tile grows to 64 × 64: a third fewer wavefronts per mma again, for twice the sums. One CTA then fills
# the SM's registers, and the hiding of latency is the pipeline's job alone.
#
# CTAs that run at the same time share operands through L2 if their tiles lie close together: consecutive
# CTAs go down `group_m` rows of tiles before they move one column to the right.
#
# *What limits it:* `mma.sync` itself. On Hopper only `wgmma` reaches the full rate of the tensor cores; on
# Ampere and Ada this is the road to the top.


# %%
@tile.jit
def grouped_tile(tiles_m, tiles_n, plan: T.constexpr):
    """(tile row, tile column) of this CTA."""
    cta = T.cuda.block_idx("x")
    first = cta // (plan.group_m * tiles_n) * plan.group_m
    height = min(tiles_m - first, plan.group_m)
    inside = cta % (plan.group_m * tiles_n)
    return first + inside % height, inside // height


@tile.jit
def fragments_ahead(
    A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
    C: T.Tensor(("M", "N"), "float16", align=16), plan: T.constexpr,
):
    T.static_assert(plan.k_steps % 2 == 0, "the two sets of fragments take turns across slices")
    tiles_m, tiles_n, slices = C.shape[0] // plan.m, C.shape[1] // plan.n, A.shape[1] // plan.k
    T.device_entry(launch=T.cuda.LaunchConfig(grid=tiles_m * tiles_n, block=plan.threads))
    tile_m, tile_n = grouped_tile(tiles_m, tiles_n, plan)
    T.assume(0 <= tile_m and tile_m < tiles_m and 0 <= tile_n and tile_n < tiles_n)
    row, column = tile_m * plan.m, tile_n * plan.n
    a_ring, b_ring = alloc_ring(plan.m, A.dtype, plan), alloc_ring(plan.n, B.dtype, plan)
    a, b, sums = alloc_fragments(plan)
    a_next, b_next = T.alloc_local(a.shape, a.dtype, layout="default"), T.alloc_local(b.shape, b.dtype, layout="default")
    sets = ((a, b), (a_next, b_next))

    def fetch(k, step, into):
        stage = k % plan.stages
        read_matrices(into[0], a_matrices(a_ring.sub[stage, :, :], step, plan))
        read_matrices(into[1], b_matrices(b_ring.sub[stage, :, :], step, plan))

    for k in T.unroll(plan.stages - 1):
        copy_slices(a_ring, b_ring, A, B, row, column, k, plan)
    T.ptx["cp.async.wait_group"](plan.stages - 2)
    T.cuda.cta_sync()
    fetch(0, 0, sets[0])
    for k in range(slices):
        for step in T.unroll(plan.k_steps):
            following = sets[(step + 1) % 2]
            if step == 0:
                copy_slices(a_ring, b_ring, A, B, row, column, k + plan.stages - 1, plan)
            if step + 1 < plan.k_steps:
                fetch(k, step + 1, following)
            else:
                T.ptx["cp.async.wait_group"](plan.stages - 2)
                T.cuda.cta_sync()
                if k + 1 < slices:
                    fetch(k + 1, 0, following)
            multiply(sums, *sets[step % 2], plan)
    store(C, sums, row, column, plan)


climb(
    "f: fragments ahead, CTAs in groups", fragments_ahead,
    Plan(128, 256, 32, 2, 4, stages=4, group_m=8), Plan(64, 64, 32, 2, 2, stages=3, group_m=2),
)

# %% [markdown]
# ## The ladder
#
# Without a GPU there are no times. The other columns come from the checked and compiled kernel, not from a run.

# %%
HEADER = "| step | tile m×n×k | threads | reads per mma | wavefronts per mma | worst conflict | registers | shared KiB | CTAs per SM |"
if __name__ == "__main__":
    header = HEADER + (" TFLOP/s | of torch.mm |" if device == "cuda" else "")
    print(f"\n{RUN}³ ran on {torch.cuda.get_device_name() if device == 'cuda' else 'the simulator'}; the table is for {SIZE}³\n")
    print("\n".join([header, "|---" * header.count(" |") + "|", *TABLE]))

# %% [markdown]
# <!-- ladder: make docs -->
# NVIDIA H200, 2026-11-30, driver 580.159.04, torch 2.11.0+cu130, Triton 3.6.0; all steps and torch.mm (cuBLAS) in one run, interleaved, results checked first.
#
# | step | TFLOP/s at 4096³ | of torch.mm |
# |---|---|---|
# | a: one warp, ld.shared | 55 | 0.07 |
# | b: ldmatrix | 59 | 0.08 |
# | c: more warps, bigger tiles | 111 | 0.15 |
# | d: cp.async, two buffers | 124 | 0.17 |
# | e: more stages, swizzle | 286 | 0.39 |
# | f: fragments ahead, CTAs in groups | 360 | 0.51 |
# <!-- end of ladder -->
