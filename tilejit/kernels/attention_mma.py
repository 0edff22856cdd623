"""Attention forward, softmax(scale · Q Kᵀ) V, on ``mma.sync``: FlashAttention-2's algorithm.

A CTA owns ``query_rows`` rows of one head, each warp an equal part of them. It walks the keys in
tiles of ``tile_keys``, the last tile first, so that the tiles that need a mask come first and the rest
runs in a loop without one. Keys and values arrive in shared memory by ``cp.async``, one tile ahead.
Scores, probabilities, results and each row's running maximum and sum stay in registers: the
accumulators of Q Kᵀ, converted in pairs, are the A operand of P V.

Numerics: products of 16-bit values summed in float32; exponentials are ``ex2.approx.ftz.f32``
relative to the running maximum, or to one at most ``slack_log2`` below it; probabilities are rounded
to the inputs' dtype for P V and summed unrounded. A row whose scores are all -inf, or with a NaN,
gives NaN as torch does. So may one with a finite score beyond 2**26: the exponents are rounded to
float32 before the maximum is taken off.

Not here: Hopper's ``wgmma``; dropout, biases, gradients; what the shapes cost (``benchmarks/notes.md``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilejit import T, jit
from tilejit.kernels import devices, operands
from tilejit.kernels.operands import Facts, facts_of
from tilejit.lib import packed, reduce

LOG2_E = math.log2(math.e)
FIRST_DEPTH = 1e30
"""Of a row without scores, see ``State``: finite, so that a score of -inf has probability 0."""

VECTOR_BYTES = 16
VECTOR_ELEMS = 8
"""What a copy moves, and a row of a matrix of ``ldmatrix``: eight 16-bit elements."""

PANEL_ELEMS = 64
"""Columns of a shared tile are kept in panels of 128 bytes a row, the width of the swizzle."""

MAX_LENGTH = 1 << 30
"""Rows and keys are counted in int32, with room for a tile beyond the last."""

SCALES = (2.0**-120, 2.0**120)
"""Least and greatest of the scores: a product with LOG2_E is a normal float32."""

MAX_VECTORS = 1 << 44
"""Of a tensor: more than any memory holds, and few enough for the checker to count their bits."""


@dataclass(frozen=True)
class AttentionPlan:
    """See the module's text. ``*_pitch``: vectors of 16 bytes from one row to the next.

    ``step_keys``: keys whose scores a warp holds at once, a part of the tile. ``min_blocks``: CTAs
    per SM that the register allocation leaves room for. ``heads_first``: consecutive CTAs take the
    same rows of all heads, then other rows. ``keep_queries``: a warp's queries stay in registers
    instead of being read from shared memory for every step. ``slack_log2``: results are rescaled
    only when a row's maximum has risen by more than this, so that probabilities, relative to an
    older maximum, reach 2 ** slack_log2; 0 rescales every step.
    """

    head_elems: int
    causal: bool
    query_pitch: int
    key_pitch: int
    value_pitch: int
    result_pitch: int
    query_rows: int = 128
    tile_keys: int = 64
    step_keys: int = 64
    warps: int = 4
    min_blocks: int = 2
    heads_first: bool = False
    keep_queries: bool = False
    slack_log2: float = 0.0

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def warp_rows(self) -> int:
        return self.query_rows // self.warps

    @property
    def row_blocks(self) -> int:
        """Blocks of 16 rows of a warp: M repeats of its products."""
        return self.warp_rows // 16

    @property
    def key_blocks(self) -> int:
        """Blocks of 8 keys of a step: N repeats of Q Kᵀ."""
        return self.step_keys // 8

    @property
    def chunks(self) -> int:
        """Vectors of a row; also blocks of 8 columns: N repeats of P V."""
        return self.head_elems // VECTOR_ELEMS

    @property
    def steps(self) -> int:
        """Steps of a tile."""
        return self.tile_keys // self.step_keys

    @property
    def panels(self) -> int:
        return self.head_elems // PANEL_ELEMS

    @property
    def copied_rows(self) -> int:
        """Rows that the CTA's threads copy together, one vector each."""
        return self.threads // self.chunks


@dataclass(frozen=True)
class State:
    """A thread's registers, allocated in the kernel. Accumulators are (row blocks, column blocks,
    2 halves of 8 rows, 2 columns, 1), values of rows (row blocks, 2 halves, 1).

    ``scores``: one buffer or two, which become probabilities in place; ``chances``: these in pairs,
    in the inputs' dtype. ``depth``: minus the maximum that probabilities are relative to, times
    ``scale_log2``. ``total``: this thread's part of the sums. ``columns``: keys of a step as they are
    numbered in it; ``limits``: the last that a row sees. ``*_words``: operands from shared memory.
    """

    scores: object
    chances: object
    result: object
    depth: object
    total: object
    spare: object
    columns: object
    limits: object
    q_words: object
    k_words: object
    v_words: object


# --- global memory to shared memory


@jit
def own_vectors(tile, plan: T.constexpr):
    """What this thread copies of a shared tile (panels, rows, elements): (passes, elements)."""
    panels, rows, _ = tile.shape
    thread = T.cuda.thread_idx("x")
    row, chunk = thread // plan.chunks, thread % plan.chunks
    passes = tile.view(panels, rows // plan.copied_rows, plan.copied_rows, 8, VECTOR_ELEMS)
    return passes.sub[chunk // 8, :, row, chunk % 8, :]


@jit
def copy(target, source, outside=None):
    """Zeros instead, where ``outside``."""
    T.cuda.tile.apply(
        T.ptx["cp.async.cg.shared.global"],
        target,
        source,
        chunk_bytes=VECTOR_BYTES,
        ignore_src=outside,
    )


@jit
def arrived():
    """Every thread's copies are there for all to read, and all are done with what they read before."""
    T.ptx["cp.async.wait_group"](0)
    T.cuda.cta_sync()


@jit
def own_index(head, row, pitch: T.constexpr, plan: T.constexpr):
    """Where this thread finds its first vector of a tile that begins with ``row`` of a head that
    begins at vector ``head``."""
    thread = T.cuda.thread_idx("x")
    return head + T.cast(row + thread // plan.chunks, "int64") * pitch + thread % plan.chunks


@jit
def fetch(tile, flat, index, pitch: T.constexpr, plan: T.constexpr):
    """Request a tile all of whose rows exist; this thread's first vector is ``index``."""
    target = own_vectors(tile, plan)
    passes, step = target.shape[0], plan.copied_rows * pitch
    extent = (passes - 1) * step + 1
    T.assume(0 <= index <= MAX_VECTORS)
    T.assume((index + extent) * VECTOR_ELEMS <= flat.shape[0])
    source = flat.sub[index * VECTOR_ELEMS : (index + extent) * VECTOR_ELEMS]
    layout = T.layout("(passes,VECTOR_ELEMS):(step*VECTOR_ELEMS,1)")
    copy(target, source.view(passes, VECTOR_ELEMS, layout=layout))


@jit
def fetch_ragged(tile, flat, head, row, last_row, pitch: T.constexpr, plan: T.constexpr):
    """Request rows ``row``, ``row + 1``… of a head that begins at vector ``head``. Rows beyond
    ``last_row`` are zeros: a value there times a probability of 0 is 0."""
    target = own_vectors(tile, plan)
    thread = T.cuda.thread_idx("x")
    for i in T.unroll(target.shape[0]):
        wanted = row + i * plan.copied_rows + thread // plan.chunks
        index = head + T.cast(min(wanted, last_row), "int64") * pitch + thread % plan.chunks
        copy(
            target.sub[i : i + 1, :],
            packed.vector(flat, index, VECTOR_ELEMS).view(1, VECTOR_ELEMS),
            outside=wanted > last_row,
        )


# --- products


@jit
def product(dtype: T.constexpr):
    kind = packed.ptx_type(dtype)
    return T.ptx[f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"]


@jit
def fragment(words, operand: T.constexpr, outer: T.constexpr, inner: T.constexpr):
    """Registers as operand A, B or D of (outer, inner) repeats."""
    rows = 8 if operand == "B" else 16
    return words.view(
        outer, inner, rows, 8,
        layout=T.cuda.mma_fragment_layout("m16n8k16", operand, (outer, inner)),
    )  # fmt: skip


@jit
def load_queries(q_words, query_tile, warp, k: T.constexpr, plan: T.constexpr):
    """Operand A of Q Kᵀ: columns 16 k to 16 k + 15 of this warp's rows."""
    M = plan.row_blocks
    a = fragment(q_words.sub[k, :], "A", M, 1)
    queries = query_tile.view("uint32").view(plan.panels, plan.warps, M, 2, 8, 4, 2, 4)
    queries = queries.permute(1, 0, 5, 2, 6, 3, 4, 7).sub[warp, k // 4, k % 4]
    T.cuda.tile.apply(
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
        a.view(M, 2, 8, 2, 4).permute(0, 3, 1, 2, 4).view(M, 4, 8, 4),
        queries.view(M, 4, 8, 4),
        scope="warp",
    )


@jit
def scores_of(state, query_tile, warp, key_tile, s: T.constexpr, plan: T.constexpr):
    """scores = Q Kᵀ of this warp's rows and the keys of step ``s`` of ``key_tile``."""
    M, N = plan.row_blocks, plan.key_blocks
    keys = key_tile.sub[:, s * plan.step_keys : s * plan.step_keys + plan.step_keys, :]
    keys = keys.view("uint32").view(plan.panels, N // 2, 2, 8, 4, 2, 4)
    keys = keys.permute(0, 4, 1, 2, 5, 3, 6)
    scores = fragment(state.scores, "D", M, N)
    for k in T.unroll(plan.head_elems // 16):
        if not plan.keep_queries:
            load_queries(state.q_words, query_tile, warp, k, plan)
        a = fragment(state.q_words.sub[k, :], "A", M, 1)
        b = fragment(state.k_words.sub[k, :], "B", N, 1)
        T.cuda.tile.apply(
            T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
            b.view(N // 2, 2, 8, 2, 4).permute(0, 1, 3, 2, 4).view(N // 2, 4, 8, 4),
            keys.sub[k // 4, k % 4].view(N // 2, 4, 8, 4),
            scope="warp",
        )
        before = 0.0 if k == 0 else scores
        T.cuda.tile.apply(product(key_tile.dtype), scores, a, b, before, scope="warp")


@jit
def add_values(state, value_tile, s: T.constexpr, plan: T.constexpr):
    """result += P V of the values of step ``s`` of ``value_tile``."""
    M, N, K = plan.row_blocks, plan.chunks, plan.step_keys // 16
    values = value_tile.sub[:, s * plan.step_keys : s * plan.step_keys + plan.step_keys, :]
    values = values.view("uint32").view(plan.panels, K, 2, 8, 4, 2, 4)
    values = values.permute(1, 0, 4, 5, 2, 3, 6)
    chances = fragment(state.chances, "A", M, K)
    result = fragment(state.result, "D", M, N)
    for k in T.unroll(K):
        b = fragment(state.v_words.sub[k, :], "B", N, 1)
        T.cuda.tile.apply(
            T.ptx["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"],
            b.view(N // 2, 2, 8, 2, 4).permute(0, 1, 3, 2, 4).view(N // 2, 4, 8, 4),
            values.sub[k].view(N // 2, 4, 8, 4),
            scope="warp",
        )
        a = chances.sub[:, k : k + 1]
        T.cuda.tile.apply(product(value_tile.dtype), result, a, b, result, scope="warp")


# --- softmax


@jit
def per_row(values, blocks: T.constexpr):
    """One register per row of a thread, for every accumulator of ``blocks`` column blocks."""
    rows = values.size // 2
    return values.view(rows, blocks, 2, 2, 1, layout=T.layout("(rows,blocks,2,2,1):(2,0,1,0,1)"))


@jit
def fold(instruction: T.constexpr, folded, tile):
    """folded = each row's accumulators of this thread combined, with what ``folded`` has. One chain
    per row: a tree would take registers that hold results."""
    for n in T.unroll(tile.shape[1]):
        for column in T.unroll(2):
            T.cuda.tile.apply(instruction, folded, folded, tile.sub[:, n, :, column, :])


@jit
def keep_to(value, column, limit):
    return value if column <= limit else T.float32(float("-inf"))


@jit
def mask(state, row, key, keys, plan: T.constexpr):
    """-inf for keys that do not exist, and with ``causal`` for those behind the query's own.
    ``row``: this warp's first; ``key``: the step's first."""
    M, N = plan.row_blocks, plan.key_blocks
    lane = T.cuda.lane_id()
    for r in T.unroll(2 * M):
        limit = keys - 1
        if plan.causal:
            limit = min(limit, row + r * 8 + lane // 4)
        state.limits[r] = limit - key - lane % 4 * 2
    scores = state.scores.view(M, N, 2, 2)
    columns = state.columns.view(M, N, 2, 2, layout=T.layout("(M,N,2,2):(0,2,0,1)"))
    limits = per_row(state.limits, N).view(M, N, 2, 2)
    T.cuda.tile.ewise(keep_to, scores, scores, columns, limits)


@jit
def take_in(state, value_tile, s: T.constexpr, scale_log2, plan: T.constexpr):
    """The step's scores become probabilities relative to the maximum so far, and join the sums and
    the results."""
    scores = state.scores
    new_depth = state.spare.sub[0]
    T.cuda.tile.apply(T.ptx["mov.f32"], new_depth, float("-inf"))
    fold(T.ptx["max.f32"], new_depth, scores)
    for m in T.unroll(plan.row_blocks):
        for half in T.unroll(2):
            new_depth[m, half, 0] = reduce.lanes(new_depth[m, half, 0], reduce.maximum, 4)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], new_depth, new_depth, -scale_log2)
    T.cuda.tile.apply(T.ptx["min.f32"], new_depth, new_depth, state.depth)
    if plan.slack_log2 > 0:
        risen = False
        for m in T.unroll(plan.row_blocks):
            for half in T.unroll(2):
                rise = state.depth[m, half, 0] - new_depth[m, half, 0]
                risen = risen or rise > plan.slack_log2
        if T.cuda.any_sync(risen):
            rescale(state, new_depth, plan)
    else:
        rescale(state, new_depth, plan)
    depth = per_row(state.depth, plan.key_blocks)
    T.cuda.tile.apply(T.ptx["fma.rn.f32"], scores, scores, scale_log2, depth)
    T.cuda.tile.apply(T.ptx["ex2.approx.ftz.f32"], scores, scores)
    fold(T.ptx["add.rn.f32"], state.total, scores)
    packed.round_pairs(state.chances, scores, value_tile.dtype)
    add_values(state, value_tile, s, plan)


@jit
def rescale(state, new_depth, plan: T.constexpr):
    """Results and sums relative to the old maximum become relative to the new one."""
    shift = state.spare.sub[1]
    T.cuda.tile.apply(T.ptx["sub.rn.f32"], shift, new_depth, state.depth)
    T.cuda.tile.apply(T.ptx["mov.f32"], state.depth, new_depth)
    T.cuda.tile.apply(T.ptx["ex2.approx.ftz.f32"], shift, shift)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], state.total, state.total, shift)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], state.result, state.result, per_row(shift, plan.chunks))


# --- the kernel


@jit
def locate(rows, heads, batches, plan: T.constexpr):
    """(first row, head, batch) of this CTA. With ``causal`` the rows with most keys start first."""
    cta = T.cuda.block_idx("x")
    blocks = T.ceildiv(rows, plan.query_rows)
    if plan.heads_first:
        block, pair = T.truncdiv(cta, heads * batches), T.truncmod(cta, heads * batches)
    else:
        block, pair = T.truncmod(cta, blocks), T.truncdiv(cta, blocks)
    if plan.causal:
        block = blocks - 1 - block
    return block * plan.query_rows, T.truncmod(pair, heads), T.truncdiv(pair, heads)


@jit
def start_of(batch, head, batch_pitch, head_pitch):
    """Vector at which a head begins."""
    return T.cast(batch, "int64") * batch_pitch + head * head_pitch


@jit
def store_rows(Out, out_head, query_tile, result, total, row, rows, plan: T.constexpr):
    """Divide by the sums, gather whole rows in this warp's part of the queries' shared memory, and
    store those of the rows from ``row`` on that exist."""
    M, N, panels = plan.row_blocks, plan.chunks, plan.panels
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    for m in T.unroll(M):
        for half in T.unroll(2):
            total[m, half, 0] = reduce.lanes(total[m, half, 0], reduce.add, 4)
    T.cuda.tile.apply(T.ptx["rcp.approx.ftz.f32"], total, total)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], result, result, per_row(total, N))
    words = T.alloc_local((M, panels, 8, 2, 1), "uint32", layout="default")
    packed.round_pairs(words, result, Out.dtype)
    staged = query_tile.view("uint32").view(panels, plan.warps, M, 2, 8, 8, 4, 1)
    staged = staged.sub[:, warp, :, :, lane // 4, :, lane % 4, :].permute(1, 0, 3, 2, 4)
    T.cuda.warp_sync()
    T.cuda.tile.apply(T.ptx["st.shared.b32"], staged, words)
    T.cuda.warp_sync()

    at_once = 32 // plan.chunks
    passes = plan.warp_rows // at_once
    chunk = lane % plan.chunks
    vectors = T.alloc_local((passes, 4), "uint32", layout="default")
    staged = query_tile.view("uint32").view(panels, plan.warps, passes, at_once, 8, 4)
    staged = staged.sub[chunk // 8, warp, :, lane // plan.chunks, chunk % 8, :]
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], vectors, staged)
    for i in T.unroll(passes):
        own = row + i * at_once + lane // plan.chunks
        if own < rows:
            index = out_head + T.cast(own, "int64") * plan.result_pitch + chunk
            target = packed.vector(Out, index, VECTOR_ELEMS).view("uint32")
            T.cuda.tile.apply(T.ptx["st.global.v4.b32"], target, vectors.sub[i, :])


@jit
def attention_rows(
    Q: T.Tensor((T.dynamic("Q_ELEMS"),), align=16),
    K: T.Tensor((T.dynamic("K_ELEMS"),), align=16),
    V: T.Tensor((T.dynamic("V_ELEMS"),), align=16),
    Out: T.Tensor((T.dynamic("OUT_ELEMS"),), align=16),
    batches: T.int32,
    heads: T.int32,
    heads_per_key_head: T.int32,
    rows: T.int32,
    keys: T.int32,
    query_batch: T.int64,
    query_head: T.int64,
    key_batch: T.int64,
    key_head: T.int64,
    value_batch: T.int64,
    value_head: T.int64,
    result_batch: T.int64,
    result_head: T.int64,
    scale_log2: T.float32,
    plan: T.constexpr,
):
    """The tensors' storage, flat, and where in it things are: ``*_batch`` and ``*_head`` are vectors
    of 16 bytes from one batch or head to the next."""
    T.device_entry(
        launch=T.cuda.LaunchConfig(
            grid=T.ceildiv(rows, plan.query_rows) * heads * batches,
            block=plan.threads,
            min_blocks_per_sm=plan.min_blocks,
        )
    )
    T.assume(1 <= rows <= MAX_LENGTH and 1 <= keys <= MAX_LENGTH)
    T.assume(heads >= 1 and batches >= 1 and heads_per_key_head >= 1)
    dtype, tile_keys, step_keys = Q.dtype, plan.tile_keys, plan.step_keys
    query_shape = (plan.panels, plan.query_rows, PANEL_ELEMS)
    tile_shape = (2, 2, plan.panels, tile_keys, PANEL_ELEMS)
    query_tile = T.alloc_shared(
        query_shape, dtype, layout=T.cuda.mma_shared_layout(query_shape, dtype), align=1024
    )
    tiles = T.alloc_shared(  # two stages of keys and values
        tile_shape, dtype, layout=T.cuda.mma_shared_layout(tile_shape, dtype), align=1024
    )

    first_row, head, batch = locate(rows, heads, batches, plan)
    T.assume(0 <= first_row < rows)
    key_group = T.truncdiv(head, heads_per_key_head)
    q_head = start_of(batch, head, query_batch, query_head)
    k_head = start_of(batch, key_group, key_batch, key_head)
    v_head = start_of(batch, key_group, value_batch, value_head)
    out_head = start_of(batch, head, result_batch, result_head)
    # The shuffle tells the compiler that the number is one for the warp: no register of each lane.
    warp = T.cuda.shfl_idx(T.cuda.warp_id(), 0)
    T.assume(0 <= warp < plan.warps)
    row = first_row + warp * plan.warp_rows

    seen, unmasked = keys, keys
    if plan.causal:
        seen, unmasked = min(keys, first_row + plan.query_rows), min(keys, first_row + 1)
    tile_count = T.ceildiv(seen, tile_keys)
    masked_count = tile_count - unmasked // tile_keys
    T.assume(1 <= tile_count <= MAX_LENGTH // tile_keys and 0 <= masked_count <= tile_count)

    M, N, C = plan.row_blocks, plan.key_blocks, plan.chunks
    state = State(
        scores=T.alloc_local((M, N, 2, 2, 1), "float32", layout="default"),
        chances=T.alloc_local((M * N * 2,), "uint32", layout="default"),
        result=T.alloc_local((M, C, 2, 2, 1), "float32", layout="default"),
        depth=T.alloc_local((M, 2, 1), "float32", layout="default"),
        total=T.alloc_local((M, 2, 1), "float32", layout="default"),
        spare=T.alloc_local((2, M, 2, 1), "float32", layout="default"),
        columns=T.alloc_local((N, 2), "int32", layout="default"),
        limits=T.alloc_local((2 * M,), "int32", layout="default"),
        q_words=T.alloc_local((plan.head_elems // 16, M * 4), "uint32", layout="default"),
        k_words=T.alloc_local((plan.head_elems // 16, N * 2), "uint32", layout="default"),
        v_words=T.alloc_local((step_keys // 16, C * 2), "uint32", layout="default"),
    )
    T.cuda.tile.apply(T.ptx["mov.f32"], state.depth, FIRST_DEPTH)
    T.cuda.tile.apply(T.ptx["mov.f32"], state.total, 0.0)
    T.cuda.tile.apply(T.ptx["mov.f32"], state.result, 0.0)
    for n in T.unroll(N):
        state.columns[n, 0] = n * 8
        state.columns[n, 1] = n * 8 + 1

    last = tile_count - 1
    stage = tiles.sub[last % 2]
    fetch_ragged(query_tile, Q, q_head, first_row, rows - 1, plan.query_pitch, plan)
    fetch_ragged(stage.sub[0], K, k_head, last * tile_keys, keys - 1, plan.key_pitch, plan)
    fetch_ragged(stage.sub[1], V, v_head, last * tile_keys, keys - 1, plan.value_pitch, plan)
    T.ptx["cp.async.commit_group"]()
    if plan.keep_queries:
        arrived()
        for k in T.unroll(plan.head_elems // 16):
            load_queries(state.q_words, query_tile, warp, k, plan)

    k_index = own_index(k_head, (last - 1) * tile_keys, plan.key_pitch, plan)
    v_index = own_index(v_head, (last - 1) * tile_keys, plan.value_pitch, plan)
    k_step, v_step = tile_keys * plan.key_pitch, tile_keys * plan.value_pitch
    for masked in (True, False):
        begin, end = (0, masked_count) if masked else (masked_count, tile_count)
        for i in range(begin, end):
            tile = last - i
            stage, other = tiles.sub[tile % 2], tiles.sub[1 - tile % 2]
            arrived()
            if tile > 0:
                fetch(other.sub[0], K, k_index, plan.key_pitch, plan)
                fetch(other.sub[1], V, v_index, plan.value_pitch, plan)
                k_index -= k_step
                v_index -= v_step
            T.ptx["cp.async.commit_group"]()
            for s in T.unroll(plan.steps):
                scores_of(state, query_tile, warp, stage.sub[0], s, plan)
                if masked:
                    mask(state, row, tile * tile_keys + s * step_keys, keys, plan)
                take_in(state, stage.sub[1], s, scale_log2, plan)

    store_rows(Out, out_head, query_tile, state.result, state.total, row, rows, plan)


# --- the host side

TILE_KEYS = {64: 64, 128: 48}
"""Keys of a tile and of a step by the elements of a head: the most for which no register spills."""

FEWER_KEYS = {64: 64, 128: 32}
"""The same where the assembler needs more registers: beside sm_90, and for rows that are one row."""

SLACK_LOG2 = 8.0
"""Probabilities up to 256 lose nothing in either dtype, and few steps rescale the results."""


@lru_cache(operands.REMEMBERED)
def plan_attention(
    head_elems: int,
    causal: bool,
    query_pitch: int,
    key_pitch: int,
    value_pitch: int,
    result_pitch: int,
    major: int = 9,
) -> AttentionPlan:
    """The plan for heads of ``head_elems``; pitches in vectors. ``major``: of the GPU's compute
    capability."""
    pitches = (query_pitch, key_pitch, value_pitch, result_pitch)
    tile_keys = (TILE_KEYS if major == 9 and all(pitches) else FEWER_KEYS)[head_elems]
    return AttentionPlan(
        head_elems, causal, *pitches, tile_keys=tile_keys, step_keys=tile_keys,
        heads_first=causal, keep_queries=head_elems == 64, slack_log2=SLACK_LOG2,
    )  # fmt: skip


def attention(q, k, v, *, causal=False, scale=None, out=None):
    """Attention of queries (B, H, S, D) over keys and values (B, Hkv, Skv, D), as
    ``scaled_dot_product_attention`` without dropout: float16 or bfloat16, D 64 or 128, Hkv a divisor
    of H, key head ``h // (H / Hkv)`` serving query head ``h``.

    ``causal``: query i sees keys 0 to i, counted from the first key even where S and Skv differ.
    ``scale``: of the scores, positive, by default 1 / sqrt(D); scaled scores are within ±2**26. The elements of a row lie side by side,
    rows start at multiples of 16 bytes; all else may be strided. ``out`` is like ``q`` and may not
    share memory with the others. Returns ``out``.
    """
    import torch

    operands.check_flag("causal", causal)
    call = _prepared(
        facts_of("q", q),
        facts_of("k", k),
        facts_of("v", v),
        None if out is None else facts_of("out", out),
        causal,
        devices.simulated(q.device),
    )
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    if not SCALES[0] <= scale <= SCALES[1]:
        raise ValueError(
            f"scale is {scale}, expected a positive number, {SCALES[0]} to {SCALES[1]}"
        )
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif call is not None:
        operands.result_apart(("q", "k", "v"), (q, k, v), out, call.geometry.spans_bytes)
    if call is not None:
        _run((q, k, v, out), call.geometry, scale, call.plan)
    return out


def launch(q, k, v, out, scale, plan) -> None:
    """Run the kernel on checked tensors by ``plan``."""
    tensors = {"q": q, "k": k, "v": v, "out": out}
    geometry = _geometry(*(facts_of(name, tensor) for name, tensor in tensors.items()))
    _run(tensors.values(), geometry, scale, plan)


def _run(tensors, geometry, scale, plan) -> None:
    flat = [t.as_strided(shape, (1,)) for t, shape in zip(tensors, geometry.flat_shapes)]
    attention_rows(*flat, *geometry.sizes, scale * LOG2_E, plan)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Of q, k, v and out: the storage from the first to the last element, and the kernel's sizes and
    pitches."""

    flat_shapes: tuple[tuple[int], ...]
    spans_bytes: tuple[int, ...]
    sizes: tuple[int, ...]


def _geometry(q: Facts, k: Facts, v: Facts, out: Facts) -> _Geometry:
    tensors = (q, k, v, out)
    batches, heads, rows, _ = q.shape
    pitches = (_pitch(tensor, d) for tensor in tensors for d in (0, 1))
    return _Geometry(
        tuple((t.span_elems,) for t in tensors),
        tuple(t.span_bytes for t in tensors),
        (batches, heads, heads // k.shape[1], rows, k.shape[2], *pitches),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with the same facts have in common."""

    geometry: _Geometry
    plan: AttentionPlan


@lru_cache(operands.REMEMBERED)
def _prepared(
    q: Facts, k: Facts, v: Facts, out: Facts | None, causal: bool, simulated: str | None
) -> _Call | None:
    """The checked call; None for an empty result. Without an ``out``, for a new one."""
    _check_inputs(q, k, v)
    if out is None:
        _, heads, rows, head_elems = q.shape
        row_elems = rows * head_elems
        strides = (heads * row_elems, row_elems, head_elems, 1)
        out = q._replace(strides=strides, address=0)
    _check_alike("out", out, q, tuple(q.shape))
    if 0 in q.shape:
        return None
    _check_result(out)
    pitches = (_row_pitch(tensor) for tensor in (q, k, v, out))
    plan = plan_attention(q.shape[3], causal, *pitches, devices.device_of(q.device).sm // 10)
    return _Call(_geometry(q, k, v, out), plan)


def _pitch(tensor: Facts, dimension: int) -> int:
    """Vectors from one index of a dimension to the next; 0 where there is one index only."""
    return tensor.strides[dimension] // VECTOR_ELEMS if tensor.shape[dimension] > 1 else 0


def _row_pitch(tensor: Facts) -> int:
    """Vectors from one row to the next. One row alone says nothing: it shares others' variant."""
    return _pitch(tensor, 2) if tensor.shape[2] > 1 else tensor.shape[3] // VECTOR_ELEMS


def _check_inputs(q: Facts, k: Facts, v: Facts) -> None:
    """``ValueError`` for what the kernel cannot read."""
    import torch

    if len(q.shape) != 4 or len(k.shape) != 4:
        raise ValueError(
            f"expected queries (B, H, S, D) and keys (B, Hkv, Skv, D), got shapes "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    batches, heads, rows, head_elems = q.shape
    key_heads, keys = k.shape[1:3]
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"expected float16 or bfloat16, got {q.dtype}")
    if head_elems not in TILE_KEYS:
        raise ValueError(f"expected heads of 64 or 128 elements, got {head_elems}")
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(f"{heads} query heads do not share {key_heads} key heads evenly")
    if max(rows, keys) > MAX_LENGTH or (keys == 0 and 0 not in q.shape):
        raise ValueError(
            f"{rows} queries and {keys} keys, expected at most {MAX_LENGTH}, and a key at least"
        )
    for name, tensor in (("k", k), ("v", v)):
        _check_alike(name, tensor, q, (batches, key_heads, keys, head_elems))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_vectors(name, tensor)


def _check_result(out: Facts) -> None:
    """``ValueError`` for an ``out`` that the kernel cannot write."""
    _check_vectors("out", out)
    end = 0
    for stride, extent in sorted(zip(out.strides, out.shape)):
        if extent > 1:
            if stride <= end:
                raise ValueError(f"elements of out overlap: strides {tuple(out.strides)}")
            end += (extent - 1) * stride


def _check_alike(name: str, tensor: Facts, q: Facts, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape or tensor.dtype != q.dtype or tensor.device != q.device:
        raise ValueError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}, expected "
            f"{q.dtype} of shape {shape} on {q.device}"
        )


def _check_vectors(name: str, tensor: Facts) -> None:
    """Rows are whole vectors at whole multiples of a vector."""
    if tensor.strides[3] != 1:
        raise ValueError(
            f"the elements of a row of {name} lie {tensor.strides[3]} apart; call .contiguous()"
        )
    steps = [s for n, s in zip(tensor.shape[:3], tensor.strides) if n > 1]
    if tensor.address or any(s % VECTOR_ELEMS for s in steps):
        raise ValueError(
            f"rows of {name} must start at multiples of {VECTOR_BYTES} bytes: its address ends in "
            f"{tensor.address}, its strides are {tuple(tensor.strides)} elements; call .contiguous()"
        )
