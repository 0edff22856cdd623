# %% [markdown]
# # Clusters and distributed shared memory
#
# A cluster is a group of up to 8 CTAs that start together on neighbouring SMs and can reach into each other's shared
# memory. This page goes from a remote load to a reduction of long rows by eight CTAs, and says at each step what
# orders the accesses, and who must still be there.

# %%
import torch

import tilejit as tile
from tilejit import T
from tilejit.lib import cluster_reduce, reduce

has_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
device = "cuda" if has_hopper else "cpu"
TARGET = "sm_90a"
"""The kernels are made for it by name, so that they are simulated whatever GPU there is."""

# %% [markdown]
# ## Launch, ranks, remote loads
#
# `LaunchConfig(cluster=…)` makes clusters of neighbours in the grid. A CTA knows its `cluster_cta_rank()`. The
# address of a shared buffer is the same number in every CTA, its own; `T.cuda.map_shared_rank(pointer, rank)` (PTX
# `mapa`) makes of it the address of the same place in the CTA of that rank. Only instructions on `.shared::cluster`
# take it.
#
# `cluster_sync()` joins all threads of the cluster and orders their memory. It is needed twice:
#
# * before the first remote access, loads and stores alike: the other CTA has started, and what is read was written;
# * after them: **a CTA must not exit while others reach into its shared memory**. When it is gone, so is its memory.


# %%
@tile.jit(target=TARGET)
def rotate(X: T.Tensor(("BLOCKS", 64), "float32"), Y: T.Tensor(("BLOCKS", 64), "float32"),
           CTAS: T.constexpr, mistake: T.constexpr = None):
    """Every CTA's row of Y is the row of X of the next one in its cluster."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=64, cluster=CTAS))
    block, t = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
    row = T.alloc_shared((64,), "float32", layout="default")
    value = T.alloc_local((1,), "float32", layout="default")
    row[t] = X[block, t]
    if mistake == "no barrier before":
        T.cuda.cta_sync()
    else:
        T.cuda.cluster_sync()
    there = T.cuda.map_shared_rank(row.ptr_to([t]), (T.cuda.cluster_cta_rank() + 1) % CTAS)
    T.ptx["ld.shared::cluster.f32"](value[0], there)
    Y[block, t] = value[0]
    if mistake != "no barrier after":
        T.cuda.cluster_sync()


x = torch.arange(8.0 * 64, device=device).view(8, 64)
y = torch.empty_like(x)
rotate(x, y, 4)
assert torch.equal(y.view(2, 4, 64), x.view(2, 4, 64).roll(-1, dims=1))
print("rows came from the CTAs", (y[:, 0] / 64).int().tolist())

# %% [markdown]
# Without either barrier a GPU gives right numbers nearly always: CTAs of a cluster start and end at about the same
# time. The simulator reports what nothing orders: that the neighbour has started (`sim/cluster-not-started`) and has
# written what is read, and that it is still there.


# %%
def break_it(mistake, code):
    """Run ``rotate`` with the mistake and print what the simulator reports under ``code``."""
    small = torch.ones(4, 64)
    try:
        rotate(small, torch.empty_like(small), 4, mistake)
    except tile.SimulationFault as fault:
        print(f"{mistake}; reported: {', '.join(d.code for d in fault.diagnostics)}\n")
        print(next(d for d in fault.diagnostics if d.code == code).render(), "\n")
    else:
        raise AssertionError(f"{mistake} was not found")


break_it("no barrier before", "sim/race")
break_it("no barrier after", "sim/cluster-exited")

# %% [markdown]
# ## Pushing instead of pulling: `st.async`
#
# A remote load takes the way there and back, and a barrier of the whole cluster says more than needed: a CTA wants to
# know that *its* bytes have come. `st.async` stores to another CTA and completes the bytes on an mbarrier there, as a
# TMA copy does ([tutorial 09](09_tma_and_mbarriers.py)). The receiver announces them and waits on its own barrier; it
# never asks the sender.
#
# One `cluster_sync` remains, at the beginning: nobody may store before the receiver's barrier is initialised. At the
# end there is none. A CTA stays until its own inbox is full, and what it sends comes from registers: nobody reaches
# into a CTA that has all it waits for.


# %%
@tile.jit(target=TARGET)
def rotate_async(X: T.Tensor(("BLOCKS", 64), "float32"), Y: T.Tensor(("BLOCKS", 64), "float32"), CTAS: T.constexpr):
    """As ``rotate``: every CTA sends its row to the one before it."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=64, cluster=CTAS))
    block, t = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
    inbox = T.alloc_shared((64,), "float32", layout="default", align=16)
    arrived = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](arrived.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](T.ptx.SINK, arrived.ptr_to([0]), T.uint32(64 * 4))
    T.cuda.cluster_sync()
    to = (T.cuda.cluster_cta_rank() + CTAS - 1) % CTAS
    T.ptx["st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"](
        T.cuda.map_shared_rank(inbox.ptr_to([t]), to), X[block, t], T.cuda.map_shared_rank(arrived.ptr_to([0]), to)
    )
    T.cuda.mbarrier_wait(arrived.ptr_to([0]), 0)
    Y[block, t] = inbox[t]


y = torch.empty_like(x)
rotate_async(x, y, 4)
assert torch.equal(y.view(2, 4, 64), x.view(2, 4, 64).roll(-1, dims=1))
print("rows came from the CTAs", (y[:, 0] / 64).int().tolist())

# %% [markdown]
# ## Multicast: load once, for all
#
# If the CTAs of a cluster need the same tile, as those side by side in a matrix product do, each loads its share of
# it into the shared memory of all. L2 reads the tile once. In the mask bit `r` stands for the CTA of rank `r`; the
# bytes arrive at the same offset in each of them, and complete on the barrier at the same offset. So each CTA
# announces the *whole* tile on its own barrier, whoever loads it.
#
# The addresses are local ones throughout: `dst` and `mbar` name the place, the mask names the CTAs.


# %%
ROWS, COLUMNS = 64, 64
MULTICAST = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"


@tile.jit(target=TARGET)
def one_for_all(X: T.Tensor((ROWS, COLUMNS), "float32", align=16),
                Y: T.Tensor(("BLOCKS", ROWS, COLUMNS), "float32"), CTAS: T.constexpr):
    """Every CTA copies the tile X to its part of Y; each has loaded some of its rows for all."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=Y.shape[0], block=COLUMNS, cluster=CTAS))
    block, t, rank = T.cuda.block_idx("x"), T.cuda.thread_idx("x"), T.cuda.cluster_cta_rank()
    own = ROWS // CTAS
    shared = T.alloc_shared((CTAS, own, COLUMNS), "float32", layout="default", align=128)
    full = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](full.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](T.ptx.SINK, full.ptr_to([0]), T.uint32(ROWS * COLUMNS * 4))
    T.cuda.cluster_sync()  # every barrier is initialised before anyone's bytes complete on it
    if t == 0:
        T.cuda.tile.apply(
            T.ptx[MULTICAST], shared.sub[rank], X,
            box=(own, COLUMNS), coords=(rank * own, 0), mbar=full.ptr_to([0]), cta_mask=T.uint16((1 << CTAS) - 1),
        )
    T.cuda.mbarrier_wait(full.ptr_to([0]), 0)
    for row in range(ROWS):
        Y[block, row, t] = shared[row // own, row % own, t]
    T.cuda.cluster_sync()  # what this CTA copies for others has arrived, too


x = torch.randn(ROWS, COLUMNS, device=device)
y = torch.empty(8, ROWS, COLUMNS, device=device)
one_for_all(x, y, 4)
assert torch.equal(y, x.expand_as(y))
print("every CTA has the tile")

# %% [markdown]
# In a ring of stages the other direction needs the cluster, too: a stage is empty when the consumers of *all* CTAs
# that the copy fills have released it. `ring.create(…, in_cluster=True)` and `ring.release_of_two` are for that, and
# `kernels.matmul` uses them.
#
# ## A row that is too long for one CTA
#
# Each row divided by its norm. A kernel that reads a row once must hold it, and 65536 float32 are all the registers
# of an SM. A cluster of eight CTAs holds 32 of them in each thread of 256, and the sum of squares is what they must
# exchange.
#
# `cluster_reduce.reduce` does it in one round, without a leader: each warp reduces its lanes' values, then lane `r`
# sends the result by `st.async` to the warp's *slot* in CTA `r`. When all slots of a CTA have come, each of its warps
# adds them up, always in the same order: all threads of the cluster get the same bits.
#
# `cluster_arrive` and `cluster_wait` are the two halves of `cluster_sync`. The barriers' initialisation travels while
# the row is loaded.


# %%
@tile.jit(target=TARGET)
def normalize(X: T.Tensor(("ROWS", "COLUMNS"), "float32", align=16), Y: T.Tensor(("ROWS", "COLUMNS"), "float32", align=16),
              CTAS: T.constexpr, WARPS: T.constexpr):
    """Y = X, each row divided by its norm. A cluster has a row."""
    ROWS, COLUMNS = X.shape
    threads = 32 * WARPS
    vectors = COLUMNS // (CTAS * threads * 4)
    T.device_entry(launch=T.cuda.LaunchConfig(grid=ROWS * CTAS, block=threads, cluster=CTAS))
    row, rank, t = T.cuda.cluster_id("x"), T.cuda.cluster_cta_rank(), T.cuda.thread_idx("x")
    slots = T.alloc_shared((CTAS * WARPS, 1), "float32", layout="default", align=16)
    full = T.alloc_shared((1,), "uint64", align=8)
    empty = T.alloc_shared((CTAS,), "uint64", align=8)
    if t == 0:
        cluster_reduce.create(full, empty)
    T.cuda.cluster_arrive()
    values = T.alloc_local((vectors, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.f32"], values, X.view(ROWS, CTAS, vectors, threads, 4).sub[row, rank, :, t, :])
    squares = T.float32(0)
    for i in T.unroll(vectors):
        for j in T.unroll(4):
            squares += values[i, j] * values[i, j]
    T.cuda.cluster_wait()
    squares = cluster_reduce.reduce(squares, reduce.add, slots, full, empty, 0)
    scale = T.rsqrt(squares)
    T.cuda.tile.ewise(lambda v, by: v * by, values, values, scale)
    T.cuda.tile.apply(T.ptx["st.global.v4.f32"], Y.view(ROWS, CTAS, vectors, threads, 4).sub[row, rank, :, t, :], values)


def measure(ctas, warps):
    """Check against torch; on a GPU print the rate: every byte is read once and written once."""
    y = torch.full_like(x, float("nan"))
    normalize(x, y, ctas, warps)
    torch.testing.assert_close(y, torch.nn.functional.normalize(x), rtol=1e-5, atol=1e-7)
    if device == "cpu":
        print(f"{ctas} CTAs of {32 * warps} threads: right")
        return
    times = []
    for _ in range(20):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        normalize(x, y, ctas, warps)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    rate = 2 * x.numel() * x.element_size() / sorted(times)[10]
    print(f"{ctas} CTAs of {32 * warps} threads: right, {rate / 1e12:5.2f} TB/s")


x = torch.randn(*((2048, 65536) if device == "cuda" else (2, 8192)), device=device)
for ctas, warps in ((8, 8), (4, 16), (2, 16)):
    measure(ctas, warps)

# %% [markdown]
# The reduction ends without a barrier of the cluster, for the reason given with `rotate_async`: a CTA that has all
# its slots is one into which nobody reaches any more. With a second round that would not hold: a slot may be written
# again only after all warps of its CTA have read it. `cluster_reduce.release` says so to the senders, on `empty`.
#
# `kernels.softmax` and `kernels.norm` take long rows so, round after round: their clusters stay for the whole launch, load
# the next rows while they exchange, and draw the number of each row from a counter instead of taking every n-th, since
# SMs do not get equal shares of the memory's rate (`docs/adr/0012-rows-are-drawn.md`).
