# %% [markdown]
# # Layouts and groups
#
# A layout maps the coordinates of a tile to *owners* (which warp, which lane) and *positions* (which
# register, which memory element). It is written as `(extents):(strides@axis)`; a stride without an axis
# is a position.

# %%
import torch

import tilejit as tile
from tilejit import T
from tilejit import layout as layouts

device = "cuda" if torch.cuda.is_available() else "cpu"

fragment = layouts.parse("(2,32,4):(1@warpid,1@laneid,1)")
where = fragment.positions((2, 32, 4))
print("element (1, 5, 2) is in warp", where["warpid"][1, 5, 2], "lane", where["laneid"][1, 5, 2],
      "register", where["m"][1, 5, 2])
assert layouts.render(fragment) == "(2,32,4):(1@warpid,1@laneid,1)"

# %% [markdown]
# In a notebook a layout is a picture: one colour is one thread's. `picture` takes the shape to draw; here are
# the sums of `mma.sync` that the lanes of a warp hold.

# %%
T.cuda.mma_fragment_layout("m16n8k16", "D", (1, 1)).picture(16, 8)

# %% [markdown]
# A layout that puts two elements in one place is found, with both coordinates.

# %%
print(layouts.find_collision(layouts.parse("(4,4):(4,2)"), (4, 4)))

# %% [markdown]
# `scope` names the group of threads that work on one tile. A thread instruction has no group axes at
# `"thread"`, `(lane,)` at `"warp"`, and `(warp, lane)` at `"cta"`. Guards narrow the group: below, the two
# upper warps move a tile of 2 × 32 × 4 words, and the tile's warp axis has extent 2.


# %%
@tile.jit
def upper_half(X: T.Tensor((2, 32, 4), "float32", align=16), Y: T.Tensor((2, 32, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    tid = T.cuda.thread_idx("x")
    r = T.alloc_local((2, 32, 4), "float32", layout=T.layout("(2,32,4):(1@warpid,1@laneid,1) + 2@warpid"))
    if tid >= 64:
        T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X, scope="cta")
        T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y, r, scope="cta")


x = torch.randn(2, 32, 4, device=device)
y = torch.zeros_like(x)
upper_half(x, y)
assert torch.equal(x, y)

# %% [markdown]
# A guard that leaves a ragged set of threads cannot be a group, and says so.


# %%
@tile.jit
def ragged(X: T.Tensor((2, 32, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    r = T.alloc_local((2, 32, 4), "float32", layout=T.layout("(2,32,4):(1@warpid,1@laneid,1)"))
    if T.cuda.thread_idx("x") < 48:
        T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X, scope="cta")


try:
    ragged.check(x)
except tile.ContractError as error:
    print(error)
else:
    raise AssertionError("a ragged group was accepted")
