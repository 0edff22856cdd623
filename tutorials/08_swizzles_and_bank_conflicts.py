# %% [markdown]
# # Swizzles and bank conflicts
#
# Shared memory has 32 banks of 4 bytes: byte address `a` lies in bank `a // 4 % 32`. It serves a warp's access in
# *phases* of up to 128 bytes: with 16 bytes per lane, 8 lanes at a time; `ldmatrix` and `stmatrix`, one 8 × 8 matrix at a
# time. A phase whose words lie in 32 different banks takes one *wavefront*; if a bank has n different words of it,
# it takes n.
#
# A 16-byte chunk covers four neighbouring banks, a *bank group*; there are 8. So for everything on this page
# the question is: do the 8 chunks of a phase fall into 8 different groups?

# %%
import torch

import tilejit as tile
from tilejit import T
from tilejit import layout as layouts

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## One kernel, any layout
#
# A 64 × 64 tile of float16, 128 bytes a row, is copied in by `cp.async`, read by `ldmatrix`, written back by `stmatrix` and
# copied out in vectors. The layout of the tile is a parameter. All the kernel's views name coordinates (row,
# chunk, word); where these lie is the layout's business alone, so the result cannot depend on it.


# %%
@tile.jit
def through_shared(
    X: T.Tensor((64, 64), "float16", align=16), Y: T.Tensor((64, 64), "float16", align=16), layout: T.constexpr
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t, warp = T.cuda.thread_idx("x"), T.cuda.warp_id()
    tile_ = T.alloc_shared((64, 64), "float16", layout=layout, align=1024)
    # Copies: 8 threads side by side take the 8 chunks of a row.
    source = X.view(4, 16, 8, 8).sub[:, t // 8, t % 8, :]
    mine = tile_.view(4, 16, 8, 8).sub[:, t // 8, t % 8, :]
    T.cuda.tile.apply(T.ptx["cp.async.cg.shared.global"], mine, source, chunk_bytes=16)
    T.ptx["cp.async.commit_group"]()
    T.ptx["cp.async.wait_group"](0)
    T.cuda.cta_sync()
    # Matrices: 8 rows of one chunk each; a warp has 16 rows, two matrices high and 8 wide.
    r = T.alloc_local((4, 4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4, 4))
    matrices = tile_.view("uint32").view(4, 2, 8, 8, 4).sub[warp, :, :, :, :].permute(2, 0, 1, 3).view(4, 4, 8, 4)
    T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"], r, matrices, scope="warp")
    T.cuda.warp_sync()  # a lane's words lie in rows that other lanes are still reading
    T.cuda.tile.apply(T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"], matrices, r, scope="warp")
    T.cuda.cta_sync()
    words = T.alloc_local((4, 4), "uint32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], words, mine.view("uint32"))
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.view("uint32").view(4, 16, 8, 4).sub[:, t // 8, t % 8, :], words)


# %% [markdown]
# `picture` asks the layout itself for the address of every chunk and prints its bank group. Read a row for
# `cp.async` and vectors (8 chunks side by side), a column for a matrix (8 rows): a phase is free of conflicts when no
# digit repeats.


# %%
def picture(layout, columns=64, rows=8):
    elements = layout.positions((64, columns))["m"][:rows, ::8]  # of each chunk's first float16
    print("row   bank group of chunk 0 1 2 …")
    for row, groups in enumerate(elements * 2 // 16 % 8):
        print(f"{row:3d}   {' '.join(map(str, groups))}")


def try_layout(layout, expected):
    """Run the kernel, print the picture and the bank report; ``expected``: conflict degrees by mnemonic."""
    x = torch.randn(64, 64, device=device).to(torch.float16)
    y = torch.zeros_like(x)
    if device == "cpu" or torch.cuda.get_device_capability() >= (9, 0):  # stmatrix
        through_shared(x, y, layout)
        assert torch.equal(x, y)
    picture(layout)
    for report in through_shared.check(x, y, layout, target="sm_90a").banks:
        print(report)
        assert report.conflict_degree == expected[report.spelling.split(".")[0]], report


# %% [markdown]
# ## Row-major: 8 ways
#
# Rows of 128 bytes are as long as all the banks together, so a chunk's group is its column whatever the row.
# Copies along rows are perfect. A matrix is a column of the picture: 8 chunks in one group, 8 wavefronts where
# one would do.

# %%
row_major = T.layout("(64,64):(64,1)")
try_layout(row_major, {"cp": 1, "ldmatrix": 8, "stmatrix": 8, "ld": 1})

# %% [markdown]
# ## Padding
#
# Eight unused elements (16 bytes) behind each row move the next row by one group. Columns are diagonals now.
# It costs an eighth more memory, rows no longer start at multiples of 128 bytes, and tensor maps (TMA) and
# `wgmma` cannot address such a tile.

# %%
padded = T.layout("(64,64):(72,1)")
try_layout(padded, {"cp": 1, "ldmatrix": 1, "stmatrix": 1, "ld": 1})
print("bytes with padding", padded.span() * 2, "without", row_major.span() * 2)

# %% [markdown]
# ## The XOR swizzle
#
# The same memory, no padding: chunk c of row r is stored where chunk `c ^ (r % 8)` would be. XOR with a fixed row is a
# permutation of the chunks, so a row still has every group once. In a column c is fixed, and `c ^ r` takes every value
# once as r goes from 0 to 7, so a column has every group once, too.

# %%
swizzled = T.layout("swizzle(3,3,3) o (64,64):(64,1)")
try_layout(swizzled, {"cp": 1, "ldmatrix": 1, "stmatrix": 1, "ld": 1})
assert T.cuda.mma_shared_layout((64, 64), "float16") == swizzled

# %% [markdown]
# A notebook can draw it: every element with its address and its bank. Point at one to see the others of its bank.

# %%
swizzled.picture(64, 64)

# %% [markdown]
# ## Reading `swizzle(3,3,3) o (64,64):(64,1)`
#
# Right to left. `(64,64):(64,1)` gives the element's plain address in elements: `64*row + column`. Then
# `swizzle(per_element, swizzle_len, atom_len)` takes that number apart:
#
#     64*row + column  =  …  row row row | chunk chunk chunk | e e e
#                            bits 8 7 6  |   bits 5 4 3      | 2 1 0
#                            XORed into ──────────▲            stay
#
# * `per_element = 3`: the low 3 bits stay, 2³ elements of 2 bytes are one chunk;
# * `swizzle_len = 3`: 3 bits above them are changed, 8 chunks trade places;
# * `atom_len = 3`: they are XORed with the 3 bits that lie 3 further up, here the row modulo 8.
#
# In Python this is `ComposeLayout(3, 3, 3, tile)`, and `.tile` is the layout without the swizzle. By hand:

# %%
row, column = 5, 24
address = 64 * row + column
by_hand = address ^ ((address >> 6 & 7) << 3)
assert by_hand == swizzled.positions((64, 64))["m"][row, column]
print(f"element ({row}, {column}): chunk {column // 8} is stored as chunk {by_hand % 64 // 8}, {column // 8} ^ {row % 8}")

# %% [markdown]
# The pattern repeats every `2**(3+3+3)` elements, 8 rows. An offset of whole periods, such as a stage of a ring, may be
# added outside the XOR; that is why a stage chosen at run time costs one addition, and why the buffer wants an
# alignment of a period (`align=1024` bytes).
#
# ## Narrower rows
#
# A row of 64 bytes is half a bank line: two rows share it, and only the pair's number moves the banks. So two bits are
# changed (4 chunks per row), and they are XORed with the number of the line, not of the row: `swizzle(3,2,3)`.
# First the picture without it, 4 ways, then with it.

# %%
narrow = T.cuda.mma_shared_layout((64, 32), "float16")
assert narrow == T.layout("swizzle(3,2,3) o (64,32):(32,1)")
picture(T.layout("(64,32):(32,1)"), columns=32)
picture(narrow, columns=32)

# %% [markdown]
# The layout can be asked about all its columns at once. This is what `mma_shared_layout` promises for every width that
# it takes; rows of 16 bytes times an odd number need no swizzle, they are their own padding.

# %%
for columns in (16, 24, 32, 64, 96, 128, 256):
    layout = T.cuda.mma_shared_layout((64, columns), "float16")
    groups = layout.positions((64, columns))["m"][:, ::8] // 8 % 8
    for chunk in range(columns // 8):
        for first in range(0, 64, 8):
            assert len(set(groups[first : first + 8, chunk].tolist())) == 8
    print(f"rows of {2 * columns:3d} bytes: {layouts.render(layout)}")

# %% [markdown]
# ## A swizzle that is too narrow
#
# `swizzle=64` on rows of 128 bytes changes two bits only. Rows r and r + 4 meet: 2 ways. The picture shows it,
# and the report counts it.

# %%
too_narrow = T.cuda.mma_shared_layout((64, 64), "float16", swizzle=64)
print(layouts.render(too_narrow))
try_layout(too_narrow, {"cp": 1, "ldmatrix": 2, "stmatrix": 2, "ld": 1})

# %% [markdown]
# ## The other side: copies and stores
#
# Rows side by side are the easy direction of a row-major tile. If the threads of a phase go *down* the rows (because
# the source is transposed, say), copies meet the same 8 ways, and the same swizzle removes them: it treats both
# directions alike. It does not help global memory: 8 threads on 8 rows touch 8 lines there, so copies go along
# rows where they can.
#
# `stmatrix` matters in epilogues, where sums leave the fragments. Its phases are those of `ldmatrix`, so is
# its conflict, and so is the cure.


# %%
@tile.jit
def copy_down(X: T.Tensor((64, 64), "float16", align=16), layout: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    tile_ = T.alloc_shared((64, 64), "float16", layout=layout, align=1024)
    source = X.view(64, 4, 2, 8).sub[t % 64, :, t // 64, :]
    target = tile_.view(64, 4, 2, 8).sub[t % 64, :, t // 64, :]
    T.cuda.tile.apply(T.ptx["cp.async.cg.shared.global"], target, source, chunk_bytes=16)
    T.ptx["cp.async.commit_group"]()
    T.ptx["cp.async.wait_group"](0)


for layout, degree in ((row_major, 8), (padded, 1), (swizzled, 1)):
    (report,) = copy_down.check(torch.zeros(64, 64, dtype=torch.float16), layout).banks
    print(report)
    assert report.conflict_degree == degree

# %% [markdown]
# ## Where it pays
#
# An SM has one shared memory for all its warps. In step (d) of [tutorial 07](07_mma_gemm.py) every fragment meets
# a 4-way conflict, 6 wavefronts per mma; step (e) changes the layout of two buffers and needs 1.5.
# `print(kernel.stats)` lists every access with a conflict, so a kernel that should have none can assert it, as this
# page does.
