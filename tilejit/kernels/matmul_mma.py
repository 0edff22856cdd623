"""Matrix product on the tensor cores of sm_80 and later: cp.async, ldmatrix, mma.sync.

A CTA computes one *tile* of C. Slices of A and B along K travel through a ring of ``stages`` buffers
in shared memory; warps read 16 x 16 *fragments* of them into registers, one k-step ahead of the tensor
cores and across the ends of slices, and keep their part of C in registers until the end.

Operands are seen as rows of *vectors*, the longest runs of up to 16 bytes that are aligned and lie
wholly inside or outside the matrix. An operand whose rows run along K is K-major: A as given, B
transposed. Otherwise its rows run along M (or N) and ldmatrix transposes it.

Beyond the matrix, M and N repeat their last row or vector, whose results are not stored; along K the
shared memory is filled with zeros.

Not here: wgmma and TMA; splitting K over CTAs; what the tile shapes cost (``benchmarks/notes.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilejit import T, jit
from tilejit.kernels import devices, operands, products, rows
from tilejit.kernels.devices import H200, RESERVED_BYTES, Device
from tilejit.kernels.operands import Facts, facts_of
from tilejit.lib import packed

K_STEP = 16
"""Of one mma.m16n8k16."""


@dataclass(frozen=True)
class MatmulPlan:
    """See the module's text. ``tile_*`` count elements, ``warps_m`` x ``warps_n`` warps share the tile.

    ``group_m``: consecutive CTAs take this many tile rows before the next tile column, so that what
    is in flight shares operands in L2. ``min_blocks``: CTAs per SM that registers must leave room for.
    ``whole_m``: every tile lies inside M. ``copy_steps``: so many k-steps, from the first on, share
    issuing the copies of the slice to come.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    min_blocks: int = 1
    group_m: int = 8
    copy_steps: int = 1
    a_k_major: bool = True
    b_k_major: bool = True
    whole_m: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def k_steps(self) -> int:
        return self.tile_k // K_STEP

    @property
    def warp_rows(self) -> int:
        """16-row fragments of A that each warp multiplies."""
        return self.tile_m // self.warps_m // 16

    @property
    def warp_columns(self) -> int:
        """16-column fragments of B that each warp multiplies: two mma wide."""
        return self.tile_n // self.warps_n // 16

    @property
    def a_shape(self) -> tuple[int, int]:
        """One stage of A in shared memory."""
        return (self.tile_m, self.tile_k) if self.a_k_major else (self.tile_k, self.tile_m)

    @property
    def b_shape(self) -> tuple[int, int]:
        return (self.tile_n, self.tile_k) if self.b_k_major else (self.tile_k, self.tile_n)

    @property
    def a_elems(self) -> int:
        """All stages of A."""
        return self.stages * self.tile_m * self.tile_k

    @property
    def b_elems(self) -> int:
        return self.stages * self.tile_n * self.tile_k

    @property
    def shared_elems(self) -> int:
        """The stages, or the tile of C, which takes their place at the end."""
        return max(self.a_elems + self.b_elems, self.tile_m * self.result_pitch)

    @property
    def result_pitch(self) -> int:
        """Elements from row to row of C's tile in shared memory: 16 bytes more than a row, so that the
        eight rows that a warp writes at once lie in different banks."""
        return self.tile_n + 8


# --- global to shared memory


@jit
def copy_slice(
    stage, source, first_row, first_vector, k_major, whole_rows, live, part, plan: T.constexpr
):
    """Issue copies of one slice of an operand: the (rows, columns) of ``stage`` from ``source`` (rows,
    vectors, elements), where ``live``. ``whole_rows``: none lies beyond the matrix. ``part`` (i, n):
    the i-th of n parts of the slice."""
    height, width = stage.shape
    row_count, vector_count, elems = source.shape
    across = width // elems
    at_once = plan.threads // across
    passes = height // at_once
    T.static_assert(
        passes * at_once * across * elems == height * width, "threads share a slice evenly"
    )
    begin, end = part[0] * passes // part[1], (part[0] + 1) * passes // part[1]
    thread = T.cuda.thread_idx("x")
    row, vector = thread // across, first_vector + thread % across
    outside = None
    if vector_count % across != 0:
        if k_major:
            outside = vector >= vector_count
        vector = min(vector, vector_count - 1)
    targets = stage.view(passes, at_once, across, elems).sub[:, row, thread % across, :]
    if elems == 1:
        if live is None or live:
            copy_elements(
                targets.sub[begin:end, :], source, first_row + begin * at_once + row, vector,
                at_once, outside, k_major,
            )  # fmt: skip
    elif whole_rows:
        found = source.sub[first_row : first_row + height, :, :]
        found = found.view(passes, at_once, vector_count, elems).sub[begin:end, row, vector, :]
        copy_vectors(targets.sub[begin:end, :], found, outside, live)
    else:
        for i in T.unroll(begin, end):
            wanted = first_row + i * at_once + row
            beyond = outside if k_major else wanted >= row_count
            found = source.sub[min(wanted, row_count - 1), vector, :]
            copy_vectors(targets.sub[i, :], found, beyond, live)


@jit
def copy_vectors(targets, found, outside, live):
    elems = targets.shape[-1]
    opcode = "cp.async.cg.shared.global.L2::128B" if elems == 8 else "cp.async.ca.shared.global"
    T.cuda.tile.apply(
        T.ptx[opcode], targets, found, chunk_bytes=2 * elems, ignore_src=outside, pred=live
    )


@jit
def copy_elements(targets, source, first_row, vector, at_once, outside, k_major):
    """The same for rows that no asynchronous copy is narrow enough for: through registers."""
    passes, _ = targets.shape
    row_count = source.shape[0]
    kept = T.alloc_local((passes,), source.dtype, layout="default")
    for i in T.unroll(passes):
        wanted = first_row + i * at_once
        kept[i] = source[min(wanted, row_count - 1), vector, 0]
        beyond = outside if k_major else wanted >= row_count
        if beyond is not None:
            kept[i] = T.if_then_else(beyond, T.cast(0, source.dtype), kept[i])
    for i in T.unroll(passes):
        targets[i, 0] = kept[i]


# --- shared memory to tensor cores


@jit
def load_a(fragments, stage, warp, step: T.constexpr, plan: T.constexpr):
    """fragments[i]: the i-th 16 rows of A of ``warp``'s by 16 along K at k-step ``step``, as matrices
    (m 0, k 0), (m 8, k 0), (m 0, k 8), (m 8, k 8): the order of mma's registers."""
    count, words = plan.warp_rows, stage.view("uint32")
    if plan.a_k_major:
        parts = words.view(plan.warps_m, count, 2, 8, plan.k_steps, 2, 4)
        matrices = parts.sub[warp, :, :, :, step, :, :].permute(0, 3, 1, 2, 4)
    else:
        parts = words.view(plan.k_steps, 2, 8, plan.warps_m, count, 2, 4)
        matrices = parts.sub[step, :, :, warp, :, :, :].permute(2, 0, 3, 1, 4)
    load_matrices(fragments, matrices.view(count, 4, 8, 4), plan.a_k_major)


@jit
def load_b(fragments, stage, warp, step: T.constexpr, plan: T.constexpr):
    """The same for 16 columns of B: (n 0, k 0), (n 0, k 8), (n 8, k 0), (n 8, k 8), two mma's registers."""
    count, words = plan.warp_columns, stage.view("uint32")
    if plan.b_k_major:
        parts = words.view(plan.warps_n, count, 2, 8, plan.k_steps, 2, 4)
        matrices = parts.sub[warp, :, :, :, step, :, :].permute(0, 1, 3, 2, 4)
    else:
        parts = words.view(plan.k_steps, 2, 8, plan.warps_n, count, 2, 4)
        matrices = parts.sub[step, :, :, warp, :, :, :].permute(2, 3, 0, 1, 4)
    load_matrices(fragments, matrices.view(count, 4, 8, 4), plan.b_k_major)


@jit
def load_matrices(fragments, matrices, k_major: T.constexpr):
    trans = "" if k_major else ".trans"
    T.cuda.tile.apply(
        T.ptx[f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16"], fragments, matrices, scope="warp"
    )


@jit
def multiply(sums, a, b, dtype: T.constexpr):
    """sums += a @ b of one k-step; (M/16, N/8, 16, 8) and what ``load_a`` and ``load_b`` read."""
    height, width, _, _ = sums.shape
    kind = packed.ptx_type(dtype)
    T.cuda.tile.apply(
        T.ptx[f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"],
        sums,
        a.view(height, 2, 2, 8, 4).permute(0, 2, 3, 1, 4).view(height, 1, 16, 8),
        b.view(width, 2, 8, 4).permute(0, 2, 1, 3).view(width, 1, 8, 8),
        sums,
        scope="warp",
    )


# --- registers to the result


@jit
def add_bias(sums, bias, first_column, plan: T.constexpr):
    """sums (rows, columns of 8, 2, 2) += the bias of each thread's columns."""
    height, width, _, _ = sums.shape
    (count,) = bias.shape
    own = T.alloc_local((width, 2), "float32", layout="default")
    for j in T.unroll(width):
        for i in T.unroll(2):
            column = first_column + j * 8 + i
            if count % plan.tile_n != 0:
                column = min(column, count - 1)
            own[j, i] = T.cast(bias[column], "float32")
    spread = own.view(height, width, 2, 2, layout="(height, width, 2, 2):(0, 2, 0, 1)")
    count = height * width * 4
    T.cuda.tile.apply(
        T.ptx["add.rn.f32"], sums.view(count, 1), sums.view(count, 1), spread.view(count, 1)
    )


@jit
def stage_result(staged, sums, warp_m, warp_n, plan: T.constexpr):
    """Round the warp's part of the tile and put it into shared memory."""
    height, width, _, _ = sums.shape
    lane = T.cuda.lane_id()
    rounded = T.alloc_local((height, width, 2, 1), "uint32", layout="default")
    packed.round_pairs(rounded, sums, staged.dtype)
    words = staged.view("uint32").view(plan.warps_m, height, 2, 8, plan.warps_n, width, 4, 1)
    words = words.sub[warp_m, :, :, lane // 4, warp_n, :, lane % 4, :]
    T.cuda.tile.apply(T.ptx["st.shared.b32"], words, rounded.permute(0, 2, 1, 3))


STORES_AT_ONCE = 16
"""Vectors of a thread on their way from shared memory to C."""


@jit
def store_result(C, staged, first_row, first_vector, plan: T.constexpr):
    """C's tile from shared memory, in vectors along its rows."""
    row_count, vector_count, elems = C.shape
    across = plan.tile_n // elems
    at_once = plan.threads // across
    passes = plan.tile_m // at_once
    T.static_assert(passes * at_once == plan.tile_m, "threads share the tile of C evenly")
    thread = T.cuda.thread_idx("x")
    row, column = thread // across, thread % across
    vector = first_vector + column
    word = "uint16" if elems == 1 else "uint32"
    kind = "b16" if elems == 1 else "b32" if elems == 2 else f"v{elems // 2}.b32"
    mine = staged.view(passes, at_once, across, elems).sub[:, row, column, :].view(word)
    batch = min(passes, STORES_AT_ONCE)
    kept = T.alloc_local((batch, elems), C.dtype, layout="default").view(word)
    for first in range(0, passes, batch):
        T.cuda.tile.apply(T.ptx["ld.shared." + kind], kept, mine.sub[first : first + batch, :])
        if plan.whole_m:
            if vector < vector_count:
                start = first_row + first * at_once
                targets = C.sub[start : start + batch * at_once, vector, :].view(word)
                targets = targets.view(batch, at_once, targets.shape[1]).sub[:, row, :]
                T.cuda.tile.apply(T.ptx["st.global." + kind], targets, kept)
        else:
            for i in T.unroll(batch):
                target = first_row + row + (first + i) * at_once
                if target < row_count and vector < vector_count:
                    T.cuda.tile.apply(
                        T.ptx["st.global." + kind],
                        C.sub[target, vector, :].view(word),
                        kept.sub[i, :],
                    )


@jit
def finish(
    C, arena, sums, bias, activation, first_row, first_column, warp_m, warp_n, plan: T.constexpr
):
    """From the warps' sums to C: bias, activation, and full rows of the tile by way of shared memory."""
    if bias is not None:
        own_column = warp_n * (16 * plan.warp_columns) + T.cuda.lane_id() % 4 * 2
        add_bias(sums, bias, first_column + own_column, plan)
    if activation is not None:
        T.cuda.tile.ewise(activation, sums, sums)
    staged = arena.sub[0 : plan.tile_m * plan.result_pitch]
    staged = staged.view(plan.tile_m, plan.result_pitch).sub[:, 0 : plan.tile_n]
    T.cuda.cta_sync()  # the last slices have been read
    stage_result(staged, sums, warp_m, warp_n, plan)
    T.cuda.cta_sync()
    store_result(C, staged, first_row, first_column // C.shape[2], plan)


# --- the kernel


@jit
def tile_of_cta(tiles_m, tiles_n, plan: T.constexpr):
    """(row, column) of this CTA's tile: down ``group_m`` tile rows, then one tile to the right."""
    cta = T.cuda.block_idx("x")
    group = plan.group_m * tiles_n
    first = T.truncdiv(cta, group) * plan.group_m
    height = min(tiles_m - first, plan.group_m)
    inside = T.truncmod(cta, group)
    row, column = first + T.truncmod(inside, height), T.truncdiv(inside, height)
    T.assume(column < tiles_n)
    return row, column


@jit
def ring(part, shape: T.constexpr, plan: T.constexpr):
    """The stages of an operand in its part of the shared memory, swizzled."""
    return part.view(
        plan.stages,
        *shape,
        layout=T.cuda.mma_shared_layout((plan.stages, *shape), part.dtype),
    )


@jit
def matmul_tiles(
    A: T.Tensor((T.dynamic("A_ROWS"), "A_VECTORS", "A_ELEMS")),
    B: T.Tensor(("B_ROWS", "B_VECTORS", "B_ELEMS")),
    bias: T.Tensor(("N",)) | None,
    C: T.Tensor((T.dynamic("M"), "C_VECTORS", "C_ELEMS")),
    plan: T.constexpr,
    activation: T.constexpr,
):
    """C = activation(A @ B + bias); operands as rows of vectors (see the module's text)."""
    M, c_vectors, c_elems = C.shape
    _, a_vectors, a_elems = A.shape
    b_rows, b_vectors, b_elems = B.shape
    N = c_vectors * c_elems
    K = b_vectors * b_elems if plan.b_k_major else b_rows
    k_tiles = T.ceildiv(K, plan.tile_k)
    tiles_n = T.ceildiv(N, plan.tile_n)
    T.static_assert(2 <= plan.stages <= max(2, k_tiles), "every stage is used")
    T.static_assert(1 <= plan.copy_steps < plan.k_steps, "copies come before the wait for them")
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=T.ceildiv(M, plan.tile_m) * tiles_n,
            block=plan.threads,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    arena = T.alloc_shared((plan.shared_elems,), A.dtype, layout="default", align=1024)
    a_stages = ring(arena.sub[0 : plan.a_elems], plan.a_shape, plan)
    b_stages = ring(arena.sub[plan.a_elems : plan.a_elems + plan.b_elems], plan.b_shape, plan)
    tile_row, tile_column = tile_of_cta(T.cast(T.ceildiv(M, plan.tile_m), "int32"), tiles_n, plan)
    first_row = T.cast(tile_row, "int64") * plan.tile_m
    first_column = tile_column * plan.tile_n
    if plan.whole_m:
        T.assume(first_row + plan.tile_m <= M)
        T.assume(first_row + plan.tile_m <= (A.shape[0] if plan.a_k_major else a_vectors * a_elems))
    else:
        T.assume(first_row < M)
    if not plan.a_k_major:
        T.assume(A.shape[0] >= K)
    warp = T.cuda.warp_id()
    warp_m, warp_n = warp // plan.warps_n, warp % plan.warps_n
    whole_k = K % plan.tile_k == 0

    def copy(t, live, part):
        a_stage, b_stage = a_stages.sub[t % plan.stages, :, :], b_stages.sub[t % plan.stages, :, :]
        k = min(t, k_tiles - 1) * plan.tile_k
        if plan.a_k_major:
            copy_slice(a_stage, A, first_row, k // a_elems, True, plan.whole_m, live, part, plan)
        else:
            copy_slice(a_stage, A, k, first_row // a_elems, False, whole_k, live, part, plan)
        if plan.b_k_major:
            whole_n = N % plan.tile_n == 0
            copy_slice(b_stage, B, first_column, k // b_elems, True, whole_n, live, part, plan)
        else:
            copy_slice(b_stage, B, k, first_column // b_elems, False, whole_k, live, part, plan)
        if part[0] == part[1] - 1:
            T.ptx.cp.async_.commit_group()

    rows_, columns = plan.warp_rows, plan.warp_columns
    a = T.alloc_local((2, rows_, 4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4, (2, rows_)))
    b = T.alloc_local(
        (2, columns, 4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4, (2, columns))
    )
    sums = T.alloc_local((rows_, 2 * columns, 2, 2), "float32", layout="default")
    rows.fill(sums.view(sums.size, 1), 0.0)
    tile_sums = sums.view(
        rows_, 2 * columns, 16, 8,
        layout=T.cuda.mma_fragment_layout("m16n8k16", "D", (rows_, 2 * columns)),
    )  # fmt: skip

    def fetch(buffer, t, step):
        stage = t % plan.stages
        load_a(a.sub[buffer, :, :, :, :], a_stages.sub[stage, :, :], warp_m, step, plan)
        load_b(b.sub[buffer, :, :, :, :], b_stages.sub[stage, :, :], warp_n, step, plan)

    for t in T.unroll(plan.stages - 1):
        copy(t, None, (0, 1))
    T.ptx.cp.async_.wait_group(plan.stages - 2)
    T.cuda.cta_sync()
    fetch(0, 0, 0)
    for t in range(k_tiles):
        ahead = t + plan.stages - 1
        for step in T.unroll(plan.k_steps):
            if step == plan.k_steps - 1:
                # Slice t + 1 is there, and no warp will read slice t again: its buffer is free.
                T.ptx.cp.async_.wait_group(plan.stages - 2)
                T.cuda.cta_sync()
                if k_tiles > 1:
                    fetch((step + 1) % 2, t + 1, 0)
            else:
                fetch((step + 1) % 2, t, step + 1)
            if step < plan.copy_steps and k_tiles >= plan.stages:
                copy(ahead, ahead < k_tiles, (step, plan.copy_steps))
            multiply(tile_sums, a.sub[step % 2, :, :, :, :], b.sub[step % 2, :, :, :, :], A.dtype)
    finish(C, arena, sums, bias, activation, first_row, first_column, warp_m, warp_n, plan)


# --- the host side

_SHAPES = (
    (MatmulPlan(256, 128, 64, 4, 2, stages=4, group_m=4), 1.0),
    (MatmulPlan(128, 256, 64, 2, 4, stages=4), 0.99),
    (MatmulPlan(128, 128, 64, 2, 2, stages=3, min_blocks=2), 0.95),
    (MatmulPlan(128, 64, 64, 2, 2, stages=4, min_blocks=2), 0.75),
    (MatmulPlan(64, 128, 64, 2, 2, stages=4, min_blocks=2), 0.75),
    (MatmulPlan(64, 64, 64, 2, 2, stages=4, min_blocks=3), 0.55),
    (MatmulPlan(32, 64, 64, 1, 4, stages=4, min_blocks=4), 0.35),
)
"""Tiles for vectors of 16 bytes, and how much of the best rate each reaches when it fills the GPU."""

_SHAPES_OF_SHORT_VECTORS = (
    (MatmulPlan(128, 128, 32, 2, 4, stages=4), 0.8),
    (MatmulPlan(64, 64, 32, 2, 2, stages=4, min_blocks=2), 0.55),
)
"""More copies for the same tile: each has a row to remember."""

_SHAPES_OF_ELEMENTS = ((MatmulPlan(64, 64, 32, 2, 2, stages=2, min_blocks=2), 0.1),)


@lru_cache(operands.REMEMBERED)
def plan_matmul(
    m: int,
    n: int,
    k: int,
    vector_elems: int,
    a_k_major: bool,
    b_k_major: bool,
    device: Device = H200,
) -> MatmulPlan:
    """The plan that takes the least time by its count of waves. ``vector_elems``: the shorter of A's
    and B's vectors."""
    shapes = {8: _SHAPES, 1: _SHAPES_OF_ELEMENTS}.get(vector_elems, _SHAPES_OF_SHORT_VECTORS)
    best, least = shapes[-1][0], float("inf")
    for shape, rate in shapes:
        fitting = _fitted(shape, k, device)
        tiles = -(-m // shape.tile_m) * -(-n // shape.tile_n)
        waves = -(-tiles // (device.sms * shape.min_blocks))
        time = waves * shape.min_blocks * shape.tile_m * shape.tile_n / rate
        if fitting is not None and time < least:
            best, least = fitting, time
    return replace(best, a_k_major=a_k_major, b_k_major=b_k_major, whole_m=m % best.tile_m == 0)


def _fitted(shape: MatmulPlan, k: int, device: Device) -> MatmulPlan | None:
    """With no more stages than there are slices of K and the shared memory holds. Where it holds only
    two of long slices, four of short ones: two leave the registers of sm_80 too few."""
    stages = max(2, min(shape.stages, -(-k // shape.tile_k)))
    per_block = device.shared_bytes_per_sm // shape.min_blocks - RESERVED_BYTES
    for count in range(stages, 1, -1):
        plan = replace(shape, stages=count)
        if plan.shared_elems * 2 <= per_block:
            if count == 2 < stages and shape.tile_k == 64:
                return _fitted(replace(shape, tile_k=32, stages=4), k, device)
            return plan
    return None


def _vectors_of(matrix: Facts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of rows of elements as (rows, vectors, elements of a vector); the longest
    vectors up to 16 bytes of which the address, the row and the pitch are multiples."""
    row_count, row_elems = matrix.shape
    pitch = matrix.strides[0] if row_count > 1 else row_elems
    together = 16 | matrix.address | row_elems * 2 | pitch * 2
    elems = (together & -together) // 2
    return (row_count, row_elems // elems, elems), (pitch, elems, 1)


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with the same facts have in common. ``a``, ``b`` and ``c``: shape and strides of the
    operands' vectors; ``spans_bytes``: from the first to the last of a, b, bias and out."""

    a: tuple[tuple[int, ...], tuple[int, ...]]
    b: tuple[tuple[int, ...], tuple[int, ...]]
    c: tuple[tuple[int, ...], tuple[int, ...]]
    plan: MatmulPlan
    spans_bytes: tuple[int, int, int, int]


@lru_cache(operands.REMEMBERED)
def _prepared(
    a: Facts, b: Facts, bias: Facts | None, out: Facts | None, simulated: str | None
) -> _Call | None:
    """The checked call; None where there is nothing to multiply. Without an ``out``, for a new one."""
    products.check(a, b, bias, out)
    (m, k), n = a.shape, b.shape[1]
    if m * n * k == 0:
        return None
    if out is None:
        out = Facts((m, n), (n, 1), a.dtype, a.device, 0)
    a_rows, a_k_major = products.rows_of("a", a, 1)
    b_rows, b_k_major = products.rows_of("b", b, 0)
    views = a_view, b_view, _ = tuple(map(_vectors_of, (a_rows, b_rows, out)))
    device = devices.device_of(a.device)
    plan = plan_matmul(m, n, k, min(a_view[0][2], b_view[0][2]), a_k_major, b_k_major, device)
    spans = (0 if t is None else t.span_elems * t.dtype.itemsize for t in (a, b, bias, out))
    return _Call(*views, plan, tuple(spans))


def matmul(a, b, *, bias=None, activation=None, out=None):
    """``activation(a @ b + bias)`` for a (M, K) and b (K, N) in float16 or bfloat16, summed in float32.

    Each of ``a`` and ``b`` may be row- or column-major, with rows (columns) further apart than they are
    long; rows that start at multiples of 16 bytes go fastest. ``bias`` (N,) in float32 or the inputs'
    dtype. ``activation``: "relu", "gelu" (its tanh form), "silu", or a function of one float32 as
    ``T.cuda.tile.ewise`` takes it, each object of which is compiled for. ``out`` (M, N) has rows of adjacent elements and shares no memory with
    the inputs. Returns ``out``.

    Compiled anew for a new N or K, a new distance between rows, and a new M of a column-major ``a``. A
    new M of a row-major one at most needs another of the few tile shapes.
    """
    import torch

    call = _prepared(
        facts_of("a", a),
        facts_of("b", b),
        None if bias is None else facts_of("bias", bias),
        None if out is None else facts_of("out", out),
        devices.simulated(a.device),
    )
    activation = products.activation_of(activation)
    given, shape = out, (a.shape[0], b.shape[1])
    if out is None:
        out = torch.empty(shape, dtype=a.dtype, device=a.device)
    if call is None:
        if 0 in shape:
            return out
        # K is 0: the sums are those of zeros.
        a, b = a.new_zeros(1, 8).expand(shape[0], 8), a.new_zeros(8, 1).expand(8, shape[1])
        return matmul(a, b, bias=bias, activation=activation, out=out)
    if given is not None:
        operands.result_apart(("a", "b", "bias"), (a, b, bias), out, call.spans_bytes)
    matmul_tiles(
        a.as_strided(*call.a), b.as_strided(*call.b), bias, out.as_strided(*call.c), call.plan,
        activation,
    )  # fmt: skip
    return out
