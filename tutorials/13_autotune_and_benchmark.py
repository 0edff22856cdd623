# %% [markdown]
# # Tuning and benchmarking in a notebook
#
# A kernel is defined in a cell, looked at, defined again with parameters, tuned over them, and compared with torch in
# a table and a plot. On a GPU everything is measured; without one, configs are ranked by a model that says so,
# and times are those of the simulator: they show the form and mean nothing.

# %%
import warnings

import torch

import tilejit as tile
from tilejit import T
from tilejit.lib import reduce

device = "cuda" if torch.cuda.is_available() else "cpu"
rows, columns = (8192, 4096) if device == "cuda" else (4, 1024)
x = torch.randn(rows, columns, device=device)
y = torch.empty_like(x)
if device == "cpu":
    warnings.simplefilter("ignore", tile.TuningWarning)  # it says what stands above

# %% [markdown]
# ## A kernel in a cell
#
# Softmax of every row, one warp per row. Each thread takes vectors of four words, 32 vectors apart.


# %%
@tile.jit
def softmax_rows(X: T.Tensor(("M", "N"), "float32", align=16), Y: T.Tensor(("M", "N"), "float32", align=16)):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32))
    row, lane = T.cuda.block_idx("x"), T.cuda.lane_id()
    r = T.alloc_local((N // 128, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub[row, :].view(N // 128, 32, 4).sub[:, lane, :])
    top = r[0, 0]
    for i in T.unroll(N // 128):
        for j in T.unroll(4):
            top = max(top, r[i, j])
    top = reduce.lanes(top, reduce.maximum)
    total = T.float32(0)
    for i in T.unroll(N // 128):
        for j in T.unroll(4):
            r[i, j] = T.exp(r[i, j] - top)
            total = total + r[i, j]
    total = reduce.lanes(total, reduce.add)
    words = r.view(N // 128, 4, 1)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], words, words, 1.0 / total)
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[row, :].view(N // 128, 32, 4).sub[:, lane, :], r)


softmax_rows(x, y)
torch.testing.assert_close(y, torch.softmax(x, -1))

# %% [markdown]
# A long row is many registers for one warp: the page says how many. The bars beside the lines count the instructions
# that became of them; most are those of `T.exp`.

# %%
softmax_rows.compile(x, y, target="sm_90a")

# %% [markdown]
# ## Defined again, with something to choose
#
# `WARPS` of a CTA share a row, and a vector has `WORDS` words. The cell may be run as often as you like: a call uses the
# newest definition. What does not fit is no mistake: a config that breaks a contract drops out with its reason.


# %%
@tile.autotune(tile.Space(WARPS=[1, 2, 4, 8, 16], WORDS=[2, 4]))
@tile.jit
def softmax_rows(
    X: T.Tensor(("M", "N"), "float32", align=16),
    Y: T.Tensor(("M", "N"), "float32", align=16),
    WARPS: T.constexpr,
    WORDS: T.constexpr,
):
    M, N = X.shape
    threads = 32 * WARPS
    vectors = N // (threads * WORDS)
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=threads))
    row, t = T.cuda.block_idx("x"), T.cuda.thread_idx("x")
    r = T.alloc_local((vectors, WORDS), "float32", layout="default")
    T.cuda.tile.apply(
        T.ptx[f"ld.global.v{WORDS}.b32"], r, X.sub[row, :].view(vectors, threads, WORDS).sub[:, t, :]
    )
    top = r[0, 0]
    for i in T.unroll(vectors):
        for j in T.unroll(WORDS):
            top = max(top, r[i, j])
    top = reduce.lanes(top, reduce.maximum)
    shared = T.alloc_shared((2, WARPS), "float32", layout="default")
    if T.cuda.lane_id() == 0:
        shared[0, T.cuda.warp_id()] = top
    T.cuda.cta_sync()
    for warp in T.unroll(WARPS):
        top = max(top, shared[0, warp])
    total = T.float32(0)
    for i in T.unroll(vectors):
        for j in T.unroll(WORDS):
            r[i, j] = T.exp(r[i, j] - top)
            total = total + r[i, j]
    total = reduce.lanes(total, reduce.add)
    if T.cuda.lane_id() == 0:
        shared[1, T.cuda.warp_id()] = total
    T.cuda.cta_sync()
    total = T.float32(0)
    for warp in T.unroll(WARPS):
        total = total + shared[1, warp]
    words = r.view(vectors, WORDS, 1)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], words, words, 1.0 / total)
    T.cuda.tile.apply(
        T.ptx[f"st.global.v{WORDS}.b32"], Y.sub[row, :].view(vectors, threads, WORDS).sub[:, t, :], r
    )


softmax_rows(x, y)
torch.testing.assert_close(y, torch.softmax(x, -1))
print("chosen:", softmax_rows.best(x, y))

# %% [markdown]
# The first call tuned; `tune` does it again and gives the report: every config with its time and ±95 %, or why it is out.
# On a GPU the result is kept on disk, so that the next session tunes nothing.

# %%
report = softmax_rows.tune(x, y)
print(report.headline())
report

# %%
figure = report.plot()

# %% [markdown]
# ## Compared with torch
#
# Peers are checked, then timed in turn, so that a clock that drifts drifts for all of them.


# %%
def tilejit_softmax(x):
    out = torch.empty_like(x)
    softmax_rows(x, out)
    return out


@tile.testing.perf_report(
    tile.testing.Benchmark(
        x_names=["columns"],
        x_vals=[1024, 2048, 4096, 8192] if device == "cuda" else [512, 1024],
        peers={"torch": lambda x: torch.softmax(x, -1), "tilejit": tilejit_softmax},
        unit="TB/s",
        bytes=lambda columns: 2 * rows * columns * 4,
        check="torch",
    )
)
def softmax_speed(columns):
    return (torch.randn(rows, columns, device=device),)


results = softmax_speed.run(print_data=False)
assert not results.failures
results

# %%
figure = results.plot()

# %%
results.frame()
