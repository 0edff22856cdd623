# %% [markdown]
# # Row softmax
#
# Softmax reads a row twice in spirit (maximum, then exponentials) but must read it once from memory. The
# ready kernel `tilejit.kernels.softmax` keeps the row in registers, and in shared memory where it is long.
# Here is the idea at its smallest: one warp per row of 128 columns.

# %%
import math

import torch

import tilejit as tile
from tilejit import T
from tilejit.kernels.softmax import softmax
from tilejit.lib import reduce

device = "cuda" if torch.cuda.is_available() else "cpu"


# %%
@tile.jit
def softmax_128(X: T.Tensor(("M", 128), "float32", align=16), Y: T.Tensor(("M", 128), "float32", align=16)):
    M, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32))
    row = T.cuda.block_idx("x")
    lane = T.cuda.lane_id()
    r = T.alloc_local((4,), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub[row, :].view(32, 4).sub[lane, :])

    top = max(max(r[0], r[1]), max(r[2], r[3]))
    top = reduce.lanes(top, reduce.maximum)

    scalars = r.view(4, 1)
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], scalars, scalars, top)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], scalars, scalars, math.log2(math.e))
    T.cuda.tile.apply(T.ptx["ex2.approx.ftz.f32"], scalars, scalars)

    total = reduce.lanes((r[0] + r[1]) + (r[2] + r[3]), reduce.add)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], scalars, scalars, 1.0 / total)
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[row, :].view(32, 4).sub[lane, :], r)


# %%
x = torch.randn(64, 128, device=device)
y = torch.empty_like(x)
softmax_128(x, y)
torch.testing.assert_close(y, torch.softmax(x, -1))

# %% [markdown]
# The ready kernel takes any row length up to 262144 and three dtypes.

# %%
for width in (1, 100, 4096):
    x = torch.randn(4, width, device=device, dtype=torch.bfloat16)
    error = (softmax(x).float() - torch.softmax(x.float(), -1)).abs().max().item()
    print(f"{width:6d} columns: largest error {error:.1e}")
    assert error < 4e-3
