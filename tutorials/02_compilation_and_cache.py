# %% [markdown]
# # How compilation, specialisation and the cache work
#
# The first call with new argument types builds a *variant*: the function is lowered with shapes, strides,
# dtypes and constexprs as numbers, checked, printed as CUDA C++ and compiled to a cubin. Later calls only
# look the variant up.

# %%
import time

import torch

import tilejit as tile
from tilejit import T

device = "cuda" if torch.cuda.is_available() else "cpu"


# %%
@tile.jit
def add_one(X: T.Tensor(("N",), "float32"), STEP: T.constexpr = 1):
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N + 127) // 128, block=128))
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    if i < N:
        X[i] = X[i] + STEP


# %%
for size in (1000, 1000, 2000):
    x = torch.zeros(size, device=device)
    start = time.perf_counter()
    add_one(x)
    print(f"N={size}: {(time.perf_counter() - start) * 1e3:7.2f} ms, sum {x.sum().item():.0f}")
print(add_one.explain_recompile())

# %% [markdown]
# A size marked dynamic stays a run-time value: one variant serves every length.


# %%
@tile.jit
def add_one_any(X: T.Tensor((T.dynamic("N"),), "float32")):
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N + 127) // 128, block=128))
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    if i < N:
        X[i] = X[i] + 1


for size in (10, 1000, 4097):
    x = torch.zeros(size, device=device)
    add_one_any(x)
    assert x.sum().item() == size
print(add_one_any.explain_recompile())

# %% [markdown]
# Globals are captured by value and watched: change one and the next call uses the new value.

# %%
OFFSET = 5.0


@tile.jit
def add_offset(X: T.Tensor(("N",), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = OFFSET


x = torch.zeros(32, device=device)
add_offset(x)
assert x[0].item() == 5.0
OFFSET = 7.0
add_offset(x)
assert x[0].item() == 7.0

# %% [markdown]
# Cubins are kept on disk (`TILEJIT_CACHE_DIR`), keyed by everything the result depends on: sources,
# captured values, signature, options, target, compiler version and tilejit's own content. A second
# process finds them there.

# %%
first = add_one.compile(x, target="sm_90a", fresh=True)
second = add_one.compile(x, target="sm_90a", fresh=True)
print(first.origin, "then", second.origin)
