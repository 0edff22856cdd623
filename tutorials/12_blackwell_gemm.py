# %% [markdown]
# # A matrix product on Blackwell: tensor memory
#
# On Hopper the sums of `wgmma` lie in the registers of the warpgroup that issues it. On Blackwell *one thread* issues
# `tcgen05.mma`, and the sums lie in *tensor memory*, which belongs to nobody. So this page has more than products on
# it: who allocates that memory, who may touch which part of it, and what tells that something there is over. First the
# smallest kernel that is right, line by line; then what the simulator says where a line is missing; then a loop
# along K with a ring of stages; then two CTAs that multiply as one.
#
# **What this page shows, and what it does not.** The kernels are checked, assembled for sm_100a and run in the
# simulator. No GPU of this architecture has run them: we had none. Without one everything below runs in the
# simulator, whatever GPU there is.
#
# [Tutorial 09](09_tma_and_mbarriers.py) has TMA, mbarriers and the ring, [tutorial 10](10_wgmma_gemm.py) the same
# product on Hopper.

# %%
import torch

import tilejit as tile
from tilejit import T
from tilejit import layout as layouts
from tilejit.kernels import matmul
from tilejit.lib import accumulators, ring

has_blackwell = torch.cuda.is_available() and torch.cuda.get_device_capability() == (10, 0)
device = "cuda" if has_blackwell else "cpu"
TARGET = "sm_100a"
"""The kernels are made for it by name, so that they are simulated whatever GPU there is."""
ROWS = 128
"""Of a CTA's part of C, one for each lane of tensor memory."""
COLUMNS = 128
"""Of B, transposed, that a CTA loads."""
K = 64
"""Elements of a slice along K: rows of 128 bytes, the widest swizzle."""
K_STEP = 16
"""Elements along K of one tcgen05.mma."""
SLICE_BYTES = (ROWS + COLUMNS) * K * 2
TMA_LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"

# %% [markdown]
# ## Tensor memory
#
# An SM has 128 *lanes* of 512 *columns*, cells of 32 bits: 256 KiB, as much as its registers. An address is one
# number, `lane << 16 | column`. No ordinary load or store reaches it; this does:
#
# | who | instruction | touches |
# |---|---|---|
# | a warp | `tcgen05.ld`, `tcgen05.st` | registers and the 32 lanes from `32 * (warp % 4)` on, no others |
# | one thread | `tcgen05.cp` | from shared memory to lanes and columns |
# | one thread | `tcgen05.mma` | A and B from shared memory (A from tensor memory, too), sums in lanes and columns |
#
# A CTA gets columns, all 128 lanes of each: a power of two from 32 to 512. One warp asks (`tcgen05.alloc`), waits
# until they are there, and finds their address *in shared memory*. `T.cuda.decl_tmem` says what lies from there on:
# a layout over `TLane` and `TCol`, as those over `laneid` say whose registers an element is in. The sums of a product
# with M = 128 are the plainest there is, row `r` of C in lane `r`, column `c` in column `c`:

# %%
for ctas in (1, 2):
    shape = (ROWS // ctas, COLUMNS)
    sums_layout = T.cuda.tmem_mma_operand_layout("D", shape, "float32", M=ROWS, cta_group=ctas)
    print(f"M = {ROWS} of {ctas} CTAs, the sums of one:", layouts.render(sums_layout))

# %% [markdown]
# The second line is for a product of 128 rows that two CTAs share: 64 rows each, and the lanes that this leaves take
# the upper half of the columns. Ask for the layout rather than write it down.
#
# ## What tells that something is over
#
# Everything here is asynchronous, and there are three ways to learn of an end. They do not replace each other.
#
# 1. **`tcgen05.wait::ld`** (and `wait::st`): the executing *warp's* own loads have written their registers. Before
#    it the registers hold anything, though the next instruction may name them.
# 2. **`tcgen05.commit`**: an arrival at an mbarrier, when all `mma`, `cp` and `shift` that the executing *thread* has
#    issued are over. Who waits for the phase knows. Without a commit nobody ever does.
# 3. **The two fences.** tcgen05 instructions do not queue behind barriers either. What one thread's instructions did
#    comes before another's only with `tcgen05.fence::before_thread_sync`, then a barrier or mbarrier, then
#    `tcgen05.fence::after_thread_sync`. A commit contains the first of the two.
#
# In one thread, products into the same sums need none of this: they run in the order in which they are issued.
#
# ## One tile, line by line
#
# C = A · Bᵀ, 128 × 128, with 64 elements along K: one slice, four instructions. The `mistake`s are for below.


# %%
@tile.jit
def load(slice_, source, row, k, mbar, qualifiers: T.constexpr = ""):
    """128 rows of A or B from ``row`` on, slice ``k``; the bytes complete on ``mbar``."""
    opcode = TMA_LOAD if qualifiers == "" else TMA_LOAD.replace("shared::cta", "shared::cluster") + qualifiers
    T.cuda.tile.apply(T.ptx[opcode], slice_, source, box=slice_.shape, coords=(row, k * K), swizzle=3, mbar=mbar)


@tile.jit
def multiply(sums, a, b, accumulate, ctas: T.constexpr = 1):
    """sums (+)= a · bᵀ of one slice: four instructions by the executing thread."""
    columns = sums.shape[1]
    T.cuda.tile.apply(
        T.ptx[f"tcgen05.mma.cta_group::{ctas}.kind::f16"],
        sums.view(1, 1, ROWS, columns),  # repeats along M and N, then what this CTA has of an instruction
        a.view(1, ROWS, K // K_STEP, K_STEP).permute(0, 2, 1, 3),  # repeats along M and K, rows, 16
        b.view(1, COLUMNS, K // K_STEP, K_STEP).permute(0, 2, 1, 3),  # repeats along N and K, columns, 16
        instruction_shape=(ROWS * ctas, columns, K_STEP), accum=accumulate,
    )


@tile.jit
def read_row(row, sums):
    """row (columns,) of each of 128 threads = its lane of ``sums``. The registers are not there yet."""
    columns = sums.shape[1]
    T.cuda.tile.apply(
        T.ptx[f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32"],
        row.view(4, 32, columns, layout=T.cuda.tcgen05_ld_layout("32x32b", columns, warps=4)),
        sums.view(4, 32, columns),  # four warps, the 32 lanes of each
        scope="warpgroup",
    )


@tile.jit(target=TARGET)
def one_tile(A: T.Tensor((ROWS, K), "float16", align=16), B: T.Tensor((COLUMNS, K), "float16", align=16),
             C: T.Tensor((ROWS, COLUMNS), "float32", align=16), mistake: T.constexpr = None):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    thread, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    a = T.alloc_shared((ROWS, K), A.dtype, layout=T.cuda.tcgen05_shared_layout((ROWS, K), A.dtype), align=1024)
    b = T.alloc_shared((COLUMNS, K), B.dtype, layout=T.cuda.tcgen05_shared_layout((COLUMNS, K), B.dtype), align=1024)
    slot = T.alloc_shared((1,), "uint32", align=16)
    loaded = T.alloc_shared((1,), "uint64", align=8)
    multiplied = T.alloc_shared((1,), "uint64", align=8)
    if thread == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](loaded.ptr_to([0]), T.uint32(1))
        T.ptx["mbarrier.init.shared::cta.b64"](multiplied.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    # (1) One warp, all its lanes, takes 128 columns. It will take no more: other CTAs of the SM may.
    if warp == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), T.uint32(COLUMNS))
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    # (2) The barriers are initialised, and the address is there to be read by all.
    T.cuda.cta_sync()
    layout = T.cuda.tmem_mma_operand_layout("D", (ROWS, COLUMNS), "float32", M=ROWS, cta_group=1)
    sums = T.cuda.decl_tmem(slot[0], (ROWS, COLUMNS), "float32", layout=layout)
    # (3) One thread loads, waits for the bytes, multiplies, and commits.
    if thread == 0:
        ring.announce(loaded, 0, SLICE_BYTES)
        load(a, A, 0, 0, loaded.ptr_to([0]))
        load(b, B, 0, 0, loaded.ptr_to([0]))
        T.cuda.mbarrier_wait(loaded.ptr_to([0]), 0)
        multiply(sums, a, b, mistake == "old sums")
        if mistake != "no commit":
            T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](multiplied.ptr_to([0]))
    # (4) All wait for the product, and none of their tcgen05 instructions runs ahead of that wait.
    T.cuda.mbarrier_wait(multiplied.ptr_to([0]), 0)
    if mistake != "no fence":
        T.ptx["tcgen05.fence::after_thread_sync"]()
    # (5) Thread t gets row t: warp w may read lanes 32 * w to 32 * w + 31, and reads just these.
    row = T.alloc_local((COLUMNS,), "float32", layout="default")
    read_row(row, sums)
    if mistake != "no wait for the load":
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], C.sub[thread].view(COLUMNS // 4, 4), row.view(COLUMNS // 4, 4))
    # (6) Nobody reads any more, and the warp gives the columns back. A CTA must, before it ends.
    if mistake != "no barrier":
        T.cuda.cta_sync()
    if warp == 0 and mistake != "no dealloc":
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], T.uint32(COLUMNS))


torch.manual_seed(0)
a, b = (torch.randn(128, K, device=device).to(torch.float16) for _ in range(2))
c = torch.full((ROWS, COLUMNS), float("nan"), device=device)
one_tile(a, b, c)
torch.testing.assert_close(c, a.float() @ b.float().T, atol=1e-4, rtol=1e-4)
print("one tile: right")

# %% [markdown]
# Some of these lines deserve a second look.
#
# * *(2)* `slot[0]` is an ordinary number of an ordinary load, so an ordinary barrier is enough.
# * *(3)* TMA wrote `a` and `b` and tcgen05.mma reads them, both through the asynchronous proxy: no proxy fence. Had
#   threads written them, each would need `fence.proxy.async.shared::cta` before the barrier, as in tutorial 09.
# * *(3)* `accum=False` leaves the old sums out at the first step along K and adds at the others. Nobody zeroes
#   tensor memory.
# * *(3)* Every thread that reaches `tcgen05.mma` issues it; hence `thread == 0`. The checker refuses a whole warp.
# * *(5)* The load is the warp's: `.sync.aligned`, all 32 lanes, the same address. The opcode alone says which register
#   of which lane gets what: `32x32b.x128` is lane `l`, columns 0 to 127.
# * *(6)* needs no fence: freeing asks only that the accesses are over, and `wait::ld` before the barrier says so.
#
# What is assembled, in order (the load has 128 registers):

# %%
compiled = one_tile.compile(*(torch.empty(x.shape, dtype=x.dtype) for x in (a, b, c)))
for line in compiled.asm["ptx"].splitlines():
    if "tcgen05." in line:
        print(line[line.index("tcgen05.") :].split(" //")[0][:100])

# %% [markdown]
# ## Mistakes
#
# On a GPU most of these are a wrong number now and then, or a launch that does not return. CPU tensors run in the
# simulator.


# %%
def break_it(kernel, mistake, code, *arguments):
    """Run a kernel with the mistake and print what the simulator reports under ``code``."""
    try:
        kernel(*(x.cpu().clone() if isinstance(x, torch.Tensor) else x for x in arguments), mistake)
    except tile.SimulationFault as fault:
        print(f"{mistake}; reported: {', '.join(d.code for d in fault.diagnostics)}\n")
        print(next(d for d in fault.diagnostics if d.code == code).render())
    else:
        raise AssertionError(f"{mistake} was not found")


# %% [markdown]
# **No commit.** Nothing arrives at `multiplied`, and all four warps wait for ever. The report has the product that
# nobody committed.

# %%
break_it(one_tile, "no commit", "sim/deadlock", a, b, c)

# %% [markdown]
# **No fence after the wait.** The thread knows that the product is over; its tensor memory instructions do not, and
# the load may run ahead. Every other line is right, and on most days so is the result.

# %%
break_it(one_tile, "no fence", "sim/tmem-race", a, b, c)

# %% [markdown]
# **No wait for the load.** The store takes registers that the load has not written yet. The second code is the
# freeing at the end, for which the load may not be over either.

# %%
break_it(one_tile, "no wait for the load", "sim/in-flight", a, b, c)

# %% [markdown]
# **Adding to nothing.** `accum=True` in the first step adds to what the last kernel left there.

# %%
break_it(one_tile, "old sums", "sim/unwritten-read", a, b, c)

# %% [markdown]
# **Freed too early, and not at all.** Without the barrier warp 0 gives columns back that others still read; without
# the freeing they stay taken, and the next CTA on the SM may wait for them in vain.

# %%
break_it(one_tile, "no barrier", "sim/tmem-dealloc", a, b, c)
break_it(one_tile, "no dealloc", "sim/tmem-leak", a, b, c)

# %% [markdown]
# **Another warp's lanes.** This one the checker sees, before anything runs: the warp's number and the lanes are both
# known.


# %%
@tile.jit(target=TARGET)
def reads_lanes_of_warp_1(C: T.Tensor((32, 32), "float32", align=16), address: T.uint32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    sums = T.cuda.decl_tmem(address, (ROWS, 32), "float32", layout=f"({ROWS},32):(1@TLane,1@TCol)")
    if T.cuda.warp_id() == 0:
        row = T.alloc_local((32, 32), "float32", layout=T.cuda.tcgen05_ld_layout("32x32b", 32))
        T.cuda.tile.apply(T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"], row, sums.sub[32:64], scope="warp")
        T.ptx["tcgen05.wait::ld.sync.aligned"]()


try:
    reads_lanes_of_warp_1.check(torch.empty(32, 32), 0)
except tile.ContractError as error:
    print(error)
else:
    raise AssertionError("the lanes were accepted")

# %% [markdown]
# ## A loop along K, a ring, and roles
#
# One thread that loads, waits and multiplies in turn leaves the tensor cores idle most of the time. As in tutorial
# 10 the work is cut into roles around a ring of `stages` slices; here they are small, because a product takes one
# thread:
#
# | warps | role | waits for | arrives at |
# |---|---|---|---|
# | 0 to 3 | sums to C | `finished` | `emptied`, once a warp |
# | 4, one thread | loads slices | `empty[stage]` | `full[stage]`, with bytes |
# | 5, one thread | multiplies | `full[stage]`, `emptied` | `empty[stage]` and `finished`, by commits |
#
# Warps 0 to 3 are those that reach lanes 0 to 127, in order. No warp gives registers to another (tutorial 10's
# `setmaxnreg`): the sums are not in registers.
#
# The multiplying thread never waits for a product. It issues the four instructions of a slice, and a commit to
# `empty[stage]`: when they are over, the slice has been read and may be overwritten. All slices are added to the same
# sums in the order of issue. After the last slice one more commit, to `finished`, tells the other warps.
#
# Each CTA computes `tiles` tiles of C, one below the other, in the same sums, so these go back and forth. `finished`
# and `emptied` are a ring of one stage. Here both fences are needed:
#
# * sums to the warps: commit (with its `before_thread_sync`), wait, `after_thread_sync`, load;
# * the warps to the next sums: `wait::ld`, `before_thread_sync`, arrival; wait, `after_thread_sync`, product.
#
# `lib.accumulators` spells out allocation, the fences around a barrier, and this arrival. `release` is
# `before_thread_sync`, `warp_sync`, and one lane's arrival.


# %%
@tile.jit
def alloc_slices(source, stages: T.constexpr):
    """``stages`` slices of 128 rows of A or B."""
    shape = (stages, ROWS, K)
    slices = T.alloc_shared(shape, source.dtype, layout=T.cuda.tcgen05_shared_layout(shape, source.dtype), align=1024)
    return slices


@tile.jit
def store_rows(C, sums, first_row, first_column):
    """C from (first_row, first_column) on = 128 rows of sums, 64 columns at a time; the loads are over."""
    thread = T.cuda.thread_idx("x")
    for part in T.unroll(sums.shape[1] // 64):
        row = T.alloc_local((64,), "float32", layout="default")
        read_row(row, sums.sub[:, part * 64 : (part + 1) * 64])
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        first = first_column + part * 64
        place = C.sub[first_row + thread, first : first + 64]
        T.cuda.tile.apply(T.ptx["st.global.v4.b32"], place.view(16, 4), row.view(16, 4))


@tile.jit(target=TARGET)
def ring_of_slices(A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
                   C: T.Tensor(("M", "N"), "float32", align=16), stages: T.constexpr, tiles: T.constexpr,
                   mistake: T.constexpr = None):
    M, N = C.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N // COLUMNS, M // (ROWS * tiles)), block=192))
    warp, lane = T.cuda.warp_id(), T.cuda.lane_id()
    first_row, column = T.cuda.block_idx("y") * (ROWS * tiles), T.cuda.block_idx("x") * COLUMNS
    a, b = alloc_slices(A, stages), alloc_slices(B, stages)
    slot = T.alloc_shared((1,), "uint32", align=16)
    full = T.alloc_shared((stages,), "uint64", align=8)
    empty = T.alloc_shared((stages,), "uint64", align=8)
    finished = T.alloc_shared((1,), "uint64", align=8)
    emptied = T.alloc_shared((1,), "uint64", align=8)
    ring.create(full, empty, 1, 1)
    ring.create(finished, emptied, 1, 4)
    if warp == 5:
        accumulators.allocate(slot, COLUMNS, 1)
    accumulators.publish(1)
    layout = T.cuda.tmem_mma_operand_layout("D", (ROWS, COLUMNS), "float32", M=ROWS, cta_group=1)
    sums = T.cuda.decl_tmem(slot[0], (ROWS, COLUMNS), "float32", layout=layout)
    slices = A.shape[1] // K
    if warp == 4:
        if lane == 0:
            stage, parity = 0, 0
            for number in range(tiles):
                for k in range(slices):
                    ring.wait_empty(empty, stage, parity)
                    ring.announce(full, stage, SLICE_BYTES)
                    load(a.sub[stage], A, first_row + number * ROWS, k, full.ptr_to([stage]))
                    load(b.sub[stage], B, column, k, full.ptr_to([stage]))
                    stage, parity = ring.following(stage, parity, stages)
    elif warp == 5:
        if lane == 0:
            stage, parity = 0, 0
            for number in range(tiles):
                ring.wait_empty(emptied, 0, number % 2)
                T.ptx["tcgen05.fence::after_thread_sync"]()
                for k in range(slices):
                    ring.wait_full(full, stage, parity)
                    multiply(sums, a.sub[stage], b.sub[stage], k != 0)
                    if mistake == "an arrival for a commit":
                        ring.release(empty, stage)
                    else:
                        accumulators.commit(empty.ptr_to([stage]), 1)
                    stage, parity = ring.following(stage, parity, stages)
                accumulators.commit(finished.ptr_to([0]), 1)
    else:
        for number in range(tiles):
            ring.wait_full(finished, 0, number % 2)
            T.ptx["tcgen05.fence::after_thread_sync"]()
            store_rows(C, sums, first_row + number * ROWS, column)
            if mistake == "no fence before":
                T.cuda.warp_sync()
                if lane == 0:
                    ring.release(emptied, 0)
            else:
                accumulators.release(emptied.ptr_to([0]), 1)
    accumulators.publish(1)
    if warp == 5:
        accumulators.free(slot[0], COLUMNS, 1)


def operands(m, n, k):
    a, b = (torch.randn(rows, k, device=device).to(torch.float16) for rows in (m, n))
    return a, b, torch.full((m, n), float("nan"), device=device)


a, b, c = operands(512, 256, 320)
ring_of_slices(a, b, c, 3, 2)
torch.testing.assert_close(c, a.float() @ b.float().T, atol=1e-3, rtol=1e-3)
print("a ring of 3 stages, 2 tiles a CTA: right")

# %% [markdown]
# **An arrival for a commit.** The thread that multiplies has issued the products when it arrives itself; they may not
# have begun. The next slice overwrites what they read.

# %%
break_it(ring_of_slices, "an arrival for a commit", "sim/in-flight", a, b, c, 3, 2)

# %% [markdown]
# **No fence before the arrival.** The warps have waited for their loads and tell so, and still the next tile's
# products may come before them.

# %%
break_it(ring_of_slices, "no fence before", "sim/tmem-race", a, b, c, 3, 2)

# %% [markdown]
# ## Two CTAs in a pair
#
# With `.cta_group::2` one thread multiplies for two SMs. The *pair* are two CTAs of a cluster whose ranks differ in the
# last bit. Each holds 128 rows of A, *half of B's columns*, and the sums of its own rows and all columns: a CTA loads
# what it loaded above, and its part of C is 128 × 256, twice as many products for the same bytes.
#
# |  | first CTA | second CTA |
# |---|---|---|
# | A | rows 0 to 127 | rows 128 to 255 |
# | B | columns 0 to 127 | columns 128 to 255 |
# | sums | rows 0 to 127, 256 columns | rows 128 to 255, 256 columns |
# | loads | its own slices | its own slices |
# | multiplies | for both | nothing |
#
# What changes, line by line:
#
# * Every tcgen05 instruction of the kernel says `.cta_group::2`. Both CTAs allocate, together, and get the same columns;
#   both free.
# * `T.cuda.decl_tmem` declares the executing CTA's own part: 128 rows, which is what `tmem_mma_operand_layout` with
#   `M=256, cta_group=2` is for. So are the slices. `instruction_shape` counts both CTAs.
# * The first CTA waits for the slices of both, on one barrier: `full` of the first expects the bytes of both, and the
#   loads of the second complete there. `map_shared_rank(…, 0)` is its address; TMA takes the other CTA's barrier only
#   with `.cta_group::2`.
# * The commit arrives in both, by a multicast with the mask 3: both want to know that their stage is empty, and that
#   their sums are finished.
# * Barriers are the cluster's: the other CTA must have initialised its mbarriers before the first commit arrives there,
#   and must still be there when the last product reads its shared memory.


# %%
@tile.jit(target=TARGET)
def pair_of_ctas(A: T.Tensor(("M", "K"), "float16", align=16), B: T.Tensor(("N", "K"), "float16", align=16),
                 C: T.Tensor(("M", "N"), "float32", align=16), stages: T.constexpr, mistake: T.constexpr = None):
    M, N = C.shape
    grid = (2 * (N // (2 * COLUMNS)), M // (2 * ROWS))
    T.device_entry(launch=T.cuda.LaunchConfig(grid=grid, block=192, cluster=2))
    warp, lane, rank = T.cuda.warp_id(), T.cuda.lane_id(), T.cuda.cluster_cta_rank()
    row = T.cuda.block_idx("y") * (2 * ROWS) + rank * ROWS
    column = T.cuda.cluster_id("x") * (2 * COLUMNS)
    a, b = alloc_slices(A, stages), alloc_slices(B, stages)
    slot = T.alloc_shared((1,), "uint32", align=16)
    full = T.alloc_shared((stages,), "uint64", align=8)
    empty = T.alloc_shared((stages,), "uint64", align=8)
    finished = T.alloc_shared((1,), "uint64", align=8)
    unused = T.alloc_shared((1,), "uint64", align=8)
    ring.create(full, empty, 1, 1, True)
    ring.create(finished, unused, 1, 1, True)
    if warp == 5:
        accumulators.allocate(slot, 2 * COLUMNS, 2)
    accumulators.publish(2)
    layout = T.cuda.tmem_mma_operand_layout("D", (ROWS, 2 * COLUMNS), "float32", M=2 * ROWS, cta_group=2)
    sums = T.cuda.decl_tmem(slot[0], (ROWS, 2 * COLUMNS), "float32", layout=layout)
    slices = A.shape[1] // K
    if warp == 4:
        if lane == 0:
            stage, parity = 0, 0
            for k in range(slices):
                ring.wait_empty(empty, stage, parity)
                if rank == 0:
                    ring.announce(full, stage, 2 * SLICE_BYTES)
                mbar = T.cuda.map_shared_rank(full.ptr_to([stage]), 0)
                load(a.sub[stage], A, row, k, mbar, ".cta_group::2")
                load(b.sub[stage], B, column + rank * COLUMNS, k, mbar, ".cta_group::2")
                stage, parity = ring.following(stage, parity, stages)
    elif warp == 5:
        if rank == 0 and lane == 0:
            stage, parity = 0, 0
            for k in range(slices):
                ring.wait_full(full, stage, parity)
                multiply(sums, a.sub[stage], b.sub[stage], k != 0, 2)
                if mistake == "no multicast":
                    T.ptx["tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64"](
                        empty.ptr_to([stage])
                    )
                else:
                    accumulators.commit(empty.ptr_to([stage]), 2)
                stage, parity = ring.following(stage, parity, stages)
            accumulators.commit(finished.ptr_to([0]), 2)
    else:
        ring.wait_full(finished, 0, 0)
        T.ptx["tcgen05.fence::after_thread_sync"]()
        store_rows(C, sums, row, column)
    accumulators.publish(2)
    if warp == 5:
        accumulators.free(slot[0], 2 * COLUMNS, 2)


a, b, c = operands(512, 256, 320)
pair_of_ctas(a, b, c, 3)
torch.testing.assert_close(c, a.float() @ b.float().T, atol=1e-3, rtol=1e-3)
print("pairs of CTAs: right")
break_it(pair_of_ctas, "no multicast", "sim/deadlock", a, b, c, 3)

# %% [markdown]
# Three slices pass, then the second CTA waits for `empty[0]`: *1 of 1 arrivals are missing*, because the commit told
# the first alone. The first waits for the bytes that the second would have loaded.
#
# ## The library's kernel
#
# `kernels.matmul` is this with the assumptions taken away: any size (TMA clips the edges), rows or columns in either
# operand, bfloat16, a bias and an activation, results through shared memory by TMA stores, several sums in tensor memory
# so that one is stored while another is computed, and CTAs that take tile after tile. It asks which target it runs on.
# Calls on CPU tensors run as on a GPU of `tile.simulation`'s target:

# %%
a, b = torch.randn(200, 136).bfloat16(), torch.randn(136, 264).bfloat16()
with tile.simulation(target=TARGET):
    print("a call on the CPU is one on", tile.target_of(a.device))
    c = matmul.matmul(a, b)
torch.testing.assert_close(c.float(), a.float() @ b.float(), atol=2e-1, rtol=1e-2)
print("kernels.matmul: right")

# %% [markdown]
# ## What is left to a GPU
#
# The simulator says nothing about time: no plan here, nor in the library, has been measured, and the library's choice of
# tiles is a guess. The contract pages ([mma](../docs/contract/tcgen05_mma.md),
# [ld and st](../docs/contract/tcgen05_ld_st.md), [cp](../docs/contract/tcgen05_cp.md),
# [the rest](../docs/contract/tcgen05.md)) and [evidence.md](../docs/evidence.md) say of each instruction what was
# checked, assembled and simulated. The first run on a B200 should be `make test-gpu`.
