# %% [markdown]
# # A first kernel
#
# A kernel is a Python function. Its tile operations name exact PTX instructions; tilejit checks that the
# operands fit the instruction, compiles the function for your GPU, and launches it on torch's stream.
# Without a GPU the same call runs in the simulator.

# %%
import torch

import tilejit as tile
from tilejit import T

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# One CTA of 128 threads per row. The row is seen as 16-byte vectors: `view` reshapes without copying, and
# the axes `(warp, lane)` come first because `scope="cta"` puts the threads of the CTA there.
# `r` is a register tile: its layout says which warp and lane owns which element.


# %%
@tile.jit
def scale_rows(
    X: T.Tensor(("M", "N"), "float32", align=16),
    Y: T.Tensor(("M", "N"), "float32", align=16),
    alpha: T.float32,
    WARPS: T.constexpr = 4,
):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32 * WARPS))
    row = T.cuda.block_idx("x")
    r = T.alloc_local(
        (WARPS, 32, N // (128 * WARPS), 4),
        "float32",
        layout=T.layout("(WARPS,32,N//(128*WARPS),4):(1@warpid,1@laneid,4,1)"),
    )
    x = X.sub[row, :].view(N // (128 * WARPS), WARPS, 32, 4).permute(1, 2, 0, 3)
    y = Y.sub[row, :].view(N // (128 * WARPS), WARPS, 32, 4).permute(1, 2, 0, 3)
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, x, scope="cta")
    T.cuda.tile.apply(
        T.ptx["mul.rn.f32"], r.view(*r.shape, 1), r.view(*r.shape, 1), alpha, scope="cta"
    )
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], y, r, scope="cta")


# %%
x = torch.randn(256, 2048, device=device)
y = torch.empty_like(x)
scale_rows(x, y, 2.0)
assert torch.equal(y, x * 2.0)
print("scaled", tuple(x.shape), "on", device)

# %% [markdown]
# What was generated can be read at every stage. None of this needs a GPU.

# %%
compiled = scale_rows.compile(x, y, 2.0)
print(scale_rows.asm["ir"][:600])
print(scale_rows.asm["cuda"][:800])
print(compiled.stats)

# %% [markdown]
# In a notebook a kernel is a page: what it uses, which contracts hold, and its source beside CUDA C++, PTX and
# SASS. Point at a line of one to see its lines in the others.

# %%
compiled
