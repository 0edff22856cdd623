"""How a kernel walks the rows of a matrix: the plan shared by softmax, RMSNorm and LayerNorm.

One row belongs to ``threads_per_row`` threads. A row is cut into *vectors* of ``vector_elems``
elements (one load instruction each); vector ``c * threads_per_row + t`` belongs to thread ``t`` in
chunk ``c``. Chunks live in registers as loaded (``register_chunks``), then in shared memory
(``shared_chunks``); what is left is read again from global memory (``streamed_chunks``).

Not here: the kernels; measuring (``benchmarks``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal

from tilejit import T, jit
from tilejit.kernels import operands
from tilejit.kernels.operands import Facts, facts_of
from tilejit.lib import packed

SHARED_BYTES_ONE_CTA = 200 * 1024
SHARED_BYTES_TWO_CTAS = 112 * 1024
"""Shared memory a CTA takes for its row, with one or more CTAs on an SM of 227 KiB."""

MAX_SHARED_CHUNKS = 32
"""Written out one by one: more of them cost registers, which only rows of odd alignment would want."""

LOAD = "ld.global.nc.L1::no_allocate."
STORE = "st.global.L1::no_allocate."
"""Rows are read and written once: L1 is left to the weights."""

Kernel = Literal["softmax", "rms_norm", "layer_norm"]

# Rows of (most vectors in a row, threads per row, vectors per thread in registers, CTAs per SM,
# loads in flight), measured on one H200 with 16-byte vectors of bfloat16: benchmarks/notes.md.
# Where the registers hold the whole row, fewer CTAs per SM only waste occupancy; where they do not,
# the rest goes to shared memory. LayerNorm keeps fewer values: its own state takes the registers.
_SHAPES: dict[Kernel, tuple[tuple[float, int, int, int, int], ...]] = {
    "softmax": (
        (16, 8, 2, 8, 4), (32, 16, 2, 8, 4), (64, 32, 2, 8, 4), (128, 64, 2, 10, 4),
        (512, 128, 4, 8, 4), (1024, 256, 4, 4, 4), (2048, 1024, 2, 2, 4), (4096, 512, 4, 2, 2),
        (8192, 512, 5, 2, 2), (inf, 1024, 3, 1, 2),
    ),
    "rms_norm": (
        (16, 8, 2, 8, 4), (32, 16, 2, 8, 4), (64, 32, 2, 8, 4), (128, 64, 2, 10, 4),
        (512, 256, 2, 4, 4), (1024, 256, 4, 3, 4), (2048, 512, 2, 2, 2), (4096, 512, 2, 2, 2),
        (8192, 1024, 2, 1, 2), (inf, 1024, 1, 1, 1),
    ),
    "layer_norm": (
        (16, 8, 2, 8, 4), (32, 8, 4, 6, 4), (64, 16, 4, 6, 4), (128, 32, 4, 6, 4),
        (512, 128, 4, 5, 4), (1024, 256, 4, 3, 4), (2048, 256, 6, 2, 2), (4096, 512, 2, 2, 2),
        (8192, 1024, 2, 1, 1), (inf, 512, 4, 1, 4),
    ),
}  # fmt: skip

# The softmax of float32 spills where that of bfloat16 just fits.
_SHAPES_OF_WORDS = _SHAPES | {
    "softmax": (*_SHAPES["softmax"][:-2], (8192, 1024, 2, 1, 2), _SHAPES["softmax"][-1])
}


@dataclass(frozen=True)
class RowPlan:
    """See the module's text. ``*_chunks`` count vectors per thread; the last chunk of a row may be
    owned by the first ``tail_threads`` threads only (0: every chunk is full). ``min_blocks`` is the
    number of CTAs per SM that the register allocation must leave room for; ``batch`` the loads in
    flight per thread for chunks that are not kept in registers."""

    elem_bytes: int
    vector_elems: int
    threads_per_row: int
    rows_per_cta: int
    full_chunks: int
    tail_threads: int
    register_chunks: int
    shared_chunks: int
    min_blocks: int = 1
    batch: int = 4

    @property
    def threads(self) -> int:
        return self.threads_per_row * self.rows_per_cta

    def grid(self, rows: int) -> int:
        """CTAs for a matrix of ``rows`` rows."""
        return rows if self.rows_per_cta == 1 else -(-rows // self.rows_per_cta)

    @property
    def chunks(self) -> int:
        return self.full_chunks + (self.tail_threads > 0)

    @property
    def resident_chunks(self) -> int:
        """Full chunks that are read from global memory once."""
        return min(self.full_chunks, self.register_chunks + self.shared_chunks)

    @property
    def streamed_chunks(self) -> int:
        """Full chunks that every pass reads from global memory again, in a loop of ``batch``."""
        return (self.full_chunks - self.resident_chunks) // self.batch * self.batch

    @property
    def first_odd_chunk(self) -> int:
        """The chunks from here on are left over by that loop, or not full."""
        return self.resident_chunks + self.streamed_chunks

    @property
    def whole(self) -> bool:
        """Every thread keeps its whole part of the row in registers, and all parts are alike."""
        return self.tail_threads == 0 and self.register_chunks == self.full_chunks

    @property
    def vector_bytes(self) -> int:
        return self.elem_bytes * self.vector_elems

    @property
    def vectors_per_row(self) -> int:
        return self.full_chunks * self.threads_per_row + self.tail_threads

    @property
    def word(self) -> str:
        """Container dtype that one load moves ``words`` of."""
        return {1: "uint8", 2: "uint16"}.get(self.vector_bytes, "uint32")

    @property
    def words(self) -> int:
        return max(1, self.vector_bytes // 4)

    @property
    def suffix(self) -> str:
        """Tail of the ld/st spelling: ``v4.b32``, ``b32``, ``b16``…"""
        bits = min(32, 8 * self.vector_bytes)
        return f"b{bits}" if self.words == 1 else f"v{self.words}.b{bits}"


def plan_rows(
    row_elems: int, elem_bytes: int, align_bytes: int = 16, kernel: Kernel = "softmax"
) -> RowPlan:
    """The plan of ``kernel`` for rows of ``row_elems`` elements whose base and row pitch are
    multiples of ``align_bytes``."""
    vector_elems = max(1, 16 // elem_bytes)
    while vector_elems > 1 and (
        row_elems % vector_elems or vector_elems * elem_bytes > align_bytes
    ):
        vector_elems //= 2
    vectors = row_elems // vector_elems
    vector_bytes = vector_elems * elem_bytes
    shapes = _SHAPES_OF_WORDS if elem_bytes == 4 else _SHAPES
    threads, register_chunks, min_blocks, batch = next(
        shape[1:] for shape in shapes[kernel] if vectors <= shape[0]
    )
    full, tail = divmod(vectors, threads)
    chunks = full + (tail > 0)
    register_chunks = min(chunks, register_chunks)
    rows_per_cta = max(1, 128 // threads)
    shared_bytes = SHARED_BYTES_TWO_CTAS if min_blocks > 1 else SHARED_BYTES_ONE_CTA
    shared_chunks = min(
        chunks - register_chunks,
        shared_bytes // (vector_bytes * threads * rows_per_cta),
        MAX_SHARED_CHUNKS,
    )
    return RowPlan(
        elem_bytes, vector_elems, threads, rows_per_cta, full, tail, register_chunks,
        shared_chunks, min_blocks, batch,
    )  # fmt: skip


# --- the kernel side: how a thread sees its part of a row


@jit
def to_float(value):
    return T.cast(value, "float32")


@jit
def to_bfloat(value):
    return T.cast(value, "bfloat16")


@jit
def to_half(value):
    return T.cast(value, "float16")


# Tiles of float32 values have shape (n, 1): n scalars, one register each, ready for ``apply``.


@jit
def widen(words, x):
    """x[i] = words[i] as float32."""
    T.cuda.tile.ewise(to_float, x.view(x.shape[0]), words)


@jit
def narrow(x, words):
    """words[i] = x[i] rounded to nearest even in the words' dtype, packed in pairs if it can be."""
    count = x.shape[0]
    if words.dtype == T.float32:
        T.cuda.tile.apply(T.ptx["mov.b32"], words.view(count, 1), x)
    elif count % 2 == 0:
        packed.round_pairs(words.view("uint32"), x, words.dtype)
    else:
        T.cuda.tile.ewise(to_bfloat if words.dtype == T.bfloat16 else to_half, words, x.view(count))


@jit
def fold(instruction: T.constexpr, x, parts):
    """All elements of ``x`` combined pairwise by halves (an odd one joins the first); ``parts`` is
    scratch of at least half as many."""
    count = x.shape[0]
    source = x
    for _ in T.unroll(count.bit_length() - 1):
        half = count // 2
        T.cuda.tile.apply(
            instruction, parts.sub[0:half], source.sub[0:half], source.sub[half : 2 * half]
        )
        if count % 2 == 1:
            T.cuda.tile.apply(
                instruction, parts.sub[0:1], parts.sub[0:1], source.sub[count - 1 : count]
            )
        source = parts
        count = half
    return source[0, 0]


@jit
def fill(x, value):
    T.cuda.tile.apply(T.ptx["mov.f32"], x, value)


@jit
def vectors(row, plan: T.constexpr):
    """A row of N elements as (vectors_per_row, words) native words."""
    return row.view(plan.vectors_per_row, plan.vector_elems).view(plan.word)


@jit
def locate(X, Y, plan: T.constexpr):
    """(thread in its row, whether the row exists, its vectors in X, its vectors in Y).

    Threads beyond the last row work on it too, and must not store: whole warps take part in
    shuffles.
    """
    M, _ = X.shape
    thread = T.cuda.thread_idx("x")
    row = T.cuda.block_idx("x")
    exists = row < M  # always, of one row per CTA; but stores without a guard take more registers
    if plan.rows_per_cta > 1:
        wanted = T.cast(row, "int64") * plan.rows_per_cta + thread // plan.threads_per_row
        exists = wanted < M
        row = min(wanted, M - 1)
    source, target = vectors(X.sub[row, :], plan), vectors(Y.sub[row, :], plan)
    return thread % plan.threads_per_row, exists, source, target


@jit
def load(tile, row, first, t, plan: T.constexpr):
    """Issue the loads of chunks ``first``, ``first + 1``… into the rows of ``tile``, back to back.
    Here and below, ``row`` is the row's ``vectors``."""
    count = tile.shape[0]
    mine = row.sub[first * plan.threads_per_row : (first + count) * plan.threads_per_row, :]
    mine = mine.view(count, plan.threads_per_row, plan.words).sub[:, t, :]
    T.cuda.tile.apply(T.ptx[LOAD + plan.suffix], tile.view(plan.word), mine)


@jit
def load_tail(words, row, t, plan: T.constexpr):
    """The load of the last chunk, by the threads that own a part of it."""
    index = plan.full_chunks * plan.threads_per_row + t
    T.cuda.tile.apply(
        T.ptx[LOAD + plan.suffix],
        words.view(plan.word),
        row.sub[index, :],
    )


@jit
def load_kept(kept, row, t, plan: T.constexpr):
    """Issue every load of the register chunks that all threads own."""
    full = min(plan.register_chunks, plan.full_chunks)
    if full > 0:
        load(kept.sub[0:full, :], row, 0, t, plan)


@jit
def fetch(x, c, kept, batch, staged, row, t, first: T.constexpr, plan: T.constexpr):
    """Chunk ``c`` of this thread as float32 in ``x``; only threads that own it may call.

    ``first``: nothing of this chunk has been read yet (full register chunks: ``load_kept`` has).
    Chunks on their way to shared memory are loaded in groups of ``batch``'s rows, so that several
    loads are in flight.
    """
    staged_end = plan.register_chunks + plan.shared_chunks
    if c < plan.register_chunks:
        words = kept.sub[c, :]
        if first and c == plan.full_chunks:
            load_tail(words, row, t, plan)
    else:
        place = (c - plan.register_chunks) % plan.batch
        words = batch.sub[place, :]
        slot = None
        if c < staged_end:
            slot = staged.sub[c - plan.register_chunks, T.cuda.thread_idx("x"), :]
        if slot is not None and not first:
            T.cuda.tile.apply(T.ptx["ld.shared." + plan.suffix], words.view(plan.word), slot)
        elif c == plan.full_chunks:
            load_tail(words, row, t, plan)
        elif slot is None:
            load(batch.sub[place : place + 1, :], row, c, t, plan)
        elif place == 0:
            group = min(plan.batch, plan.full_chunks - c, staged_end - c)
            load(batch.sub[0:group, :], row, c, t, plan)
        if slot is not None and first:
            T.cuda.tile.apply(T.ptx["st.shared." + plan.suffix], slot, words.view(plan.word))
    widen(words, x)


@jit
def fetch_or(neutral, x, c, kept, batch, staged, row, t, first: T.constexpr, plan: T.constexpr):
    """``fetch``; threads that own nothing of the last chunk get ``neutral``."""
    if c < plan.full_chunks:
        fetch(x, c, kept, batch, staged, row, t, first, plan)
    else:
        if t < plan.tail_threads:
            fetch(x, c, kept, batch, staged, row, t, first, plan)
        else:
            fill(x, neutral)


@jit
def put_kept(kept, row, t, plan: T.constexpr):
    """Store a ``whole`` part of the row, back to back."""
    mine = row.view(plan.full_chunks, plan.threads_per_row, plan.words).sub[:, t, :]
    T.cuda.tile.apply(T.ptx[STORE + plan.suffix], mine, kept.view(plan.word))


@jit
def put_full(x, c, words, row, t, valid, plan: T.constexpr):
    """Store float32 ``x`` as the full chunk ``c`` where ``valid``; ``words`` is scratch."""
    narrow(x, words)
    if valid:
        T.cuda.tile.apply(
            T.ptx[STORE + plan.suffix],
            row.sub[c * plan.threads_per_row + t, :],
            words.view(plan.word),
        )


@jit
def put(x, c: T.constexpr, words, row, t, valid, plan: T.constexpr):
    """``put_full``, or the same for the last chunk by the threads that own a part of it."""
    put_full(x, c, words, row, t, valid and (c < plan.full_chunks or t < plan.tail_threads), plan)


# --- the host side


def plan_for(kernel: Kernel, source, target, *parameters) -> RowPlan | None:
    """The plan that suits all the tensors: the weakest alignment decides the vector width.

    ``source`` and ``target`` are (M, N), ``parameters`` (N,) or None. None when there is nothing to
    do (an empty tensor). ``ValueError`` for other shapes and dtypes, and when ``target`` shares memory
    with another: all are read through the read-only path.
    """
    given = [p for p in parameters if p is not None]
    facts = tuple(facts_of(PARAMETER, p) for p in given)
    source_facts, target_facts = facts_of("the input", source), facts_of("out", target)
    plan, spans_bytes = _prepared(kernel, source_facts, target_facts, facts)
    names = ("the input", *(PARAMETER for _ in given))
    operands.result_apart(names, (source, *given), target, spans_bytes)
    return plan


PARAMETER = "the weight or bias"


@lru_cache(operands.REMEMBERED)
def _prepared(
    kernel: Kernel, source: Facts, target: Facts, parameters: tuple[Facts, ...]
) -> tuple[RowPlan | None, tuple[int, ...]]:
    """What calls with the same facts have in common: the plan, and the spans of source, parameters and
    target in bytes."""
    if len(source.shape) != 2:
        raise ValueError(f"expected a matrix (M, N), got shape {tuple(source.shape)}")
    rows, row_elems = source.shape
    elem_bytes = source.dtype.itemsize
    if not source.dtype.is_floating_point or elem_bytes not in (2, 4):
        raise ValueError(f"expected float32, float16 or bfloat16, got {source.dtype}")
    _dense_rows(source)
    _alike("out", target, source, (rows, row_elems))
    addresses = 16 | source.address | target.address
    if rows > 1:
        if target.strides[0] < row_elems:
            raise ValueError(
                f"rows of out overlap: {row_elems} elements, {target.strides[0]} apart"
            )
        addresses |= (source.strides[0] | target.strides[0]) * elem_bytes
    for parameter in parameters:
        _alike(PARAMETER, parameter, source, (row_elems,))
        addresses |= parameter.address
    spans_bytes = tuple(facts.span_bytes for facts in (source, *parameters, target))
    if rows == 0 or row_elems == 0:
        return None, spans_bytes
    return plan_rows(row_elems, elem_bytes, addresses & -addresses, kernel), spans_bytes


def _alike(what: str, tensor: Facts, source: Facts, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that does not go with ``source``."""
    if tensor.shape != shape or tensor.dtype != source.dtype:
        raise ValueError(
            f"{what} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected {source.dtype} of "
            f"shape {shape}"
        )
    _dense_rows(tensor)


def _dense_rows(tensor: Facts) -> None:
    if tensor.shape[-1] > 1 and tensor.strides[-1] != 1:
        raise ValueError(
            f"the elements of a row lie {tensor.strides[-1]} apart; call .contiguous()"
        )
