# %% [markdown]
# # Debugging with the simulator
#
# CPU tensors run the same kernel in the simulator, which reports what a GPU would only turn into wrong
# numbers or a hang: races, unwritten reads, bounds, misalignment, divergent barriers, deadlock.

# %%
import torch

import tilejit as tile
from tilejit import T

# %% [markdown]
# ## A race, on purpose
# Each thread writes its element of shared memory and reads its neighbour's, with no barrier between.


# %%
@tile.jit
def shift(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32"), JOIN: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "float32", layout="default")
    s[t] = X[t]
    if JOIN:
        T.cuda.cta_sync()
    Y[t] = s[(t + 1) % 64]


x, y = torch.arange(64.0), torch.zeros(64)
try:
    shift(x, y, False)
except tile.SimulationFault as fault:
    print(fault)
    race = fault
else:
    raise AssertionError("the race was not found")

# %% [markdown]
# In a notebook the error object itself shows the lines around it.

# %%
race

# %% [markdown]
# Both accesses are named, with their threads and lines. With the barrier the run is clean.

# %%
shift(x, y, True)
assert torch.equal(y, torch.roll(x, -1))

# %% [markdown]
# ## A contract error, on purpose
# `ld.global.v4.b32` needs 16-byte alignment; a row of 6 floats starts every 24 bytes. No compiler and no
# GPU is needed to find it, and the message names the first coordinate that breaks the rule.


# %%
@tile.jit
def misaligned(X: T.Tensor((8, 6), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    r = T.alloc_local((8, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X[0:8, 0:4])


try:
    misaligned.check(torch.zeros(8, 6))
except tile.ContractError as error:
    print(error)
else:
    raise AssertionError("the misaligned rows were accepted")
