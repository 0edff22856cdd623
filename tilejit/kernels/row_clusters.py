"""Long rows: a cluster of CTAs along each row, which stays in registers between its passes.

A cluster takes row after row. Of every row CTA ``r`` owns a contiguous part of ``full_chunks`` *vectors* of
16 bytes per thread, and an equal share of what is left (the *tail*). Its threads take a part from a ring of
shared-memory stages into registers as float32, one stage per *step*. One thread refills each stage at once
with the step that comes so many stages later, by a bulk copy: the next rows arrive while the cluster exchanges
partial results (``lib.cluster_reduce``) and stores this one.

Rows are hinted as the first to leave L2, as they are read and as they are written: each is wanted once.

Weights and biases belong to columns, so that a CTA needs the same part of them for all its rows: it is kept
in shared memory (*resident*), or comes from L2 through the ring once more for every row (*streamed*).

Not here: the kernels; rows that one CTA handles well or that bulk copies cannot address (``kernels.rows``);
measuring (``benchmarks``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilejit import T, jit
from tilejit.kernels import rows
from tilejit.lib import cluster_reduce, ring

VECTOR_BYTES = 16
MAX_ELEMS_PER_THREAD = 64
"""Held as float32, one register each."""
SHARED_BYTES_PER_SM = 228 * 1024
SHARED_BYTES_RESERVED = 1024
"""Of each CTA, by the system."""
MAX_STAGES = 32
FETCH = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
FETCH_ROW = f"{FETCH}.L2::cache_hint"
STORE_ROW = "st.global.L1::no_allocate.L2::cache_hint.v4.b32"

BARRIER_ID = 1
"""The named barrier of ``cluster_reduce.release``."""


@dataclass(frozen=True)
class ClusterPlan:
    """See the module's text. ``threads``: of a CTA; ``stage_chunks``: vectors of each of them in a stage;
    ``clusters``: most that run at one time; of weight and bias, in this order, the first ``resident`` stay in
    shared memory and the ``streamed`` others do not."""

    elem_bytes: int
    row_elems: int
    ctas: int
    threads: int
    stage_chunks: int
    stages: int
    clusters: int
    min_blocks: int = 1
    resident: int = 0
    streamed: int = 0

    word = "uint32"
    words = 4
    """As those of a ``rows.RowPlan``."""

    @property
    def vector_elems(self) -> int:
        return VECTOR_BYTES // self.elem_bytes

    @property
    def vectors_per_row(self) -> int:
        return self.row_elems // self.vector_elems

    @property
    def full_chunks(self) -> int:
        """Vectors that every thread owns."""
        return self.vectors_per_row // (self.ctas * self.threads)

    @property
    def part_vectors(self) -> int:
        """A CTA's part, without its share of the tail."""
        return self.full_chunks * self.threads

    @property
    def tail_vectors(self) -> int:
        """What is left of the row."""
        return self.vectors_per_row - self.ctas * self.part_vectors

    @property
    def tail_share(self) -> int:
        """Of one CTA; the last ones' may be smaller."""
        return -(-self.tail_vectors // self.ctas)

    @property
    def chunks(self) -> int:
        return self.full_chunks + (self.tail_vectors > 0)

    @property
    def part_steps(self) -> int:
        """Stages that a part fills; its tail has one of its own."""
        return -(-self.full_chunks // self.stage_chunks) + (self.tail_vectors > 0)

    @property
    def row_steps(self) -> int:
        """Stages from one row to the next: a part of the row, then step by step those of parameters."""
        return self.part_steps * (1 + self.streamed)

    def step_of_part(self, step: int) -> int:
        """Which step of its part the step ``step`` of a row is."""
        further = step - self.part_steps
        return step if further < 0 else further // self.streamed

    def chunks_of(self, step_of_part: int) -> range:
        first = step_of_part * self.stage_chunks
        if first >= self.full_chunks:
            return range(self.full_chunks, self.chunks)
        return range(first, min(first + self.stage_chunks, self.full_chunks))

    @property
    def elems_per_thread(self) -> int:
        return self.chunks * self.vector_elems

    @property
    def partial_sums(self) -> int:
        """Running sums per thread: enough to hide an addition's latency."""
        return math.gcd(self.elems_per_thread, 8)

    @property
    def warps(self) -> int:
        return self.threads // 32

    @property
    def slots(self) -> int:
        return self.ctas * self.warps

    @property
    def part_bytes(self) -> int:
        """Of a resident parameter."""
        return self.chunks * self.threads * VECTOR_BYTES

    @property
    def stage_bytes(self) -> int:
        return self.stage_chunks * self.threads * VECTOR_BYTES

    @property
    def shared_bytes(self) -> int:
        """At most: ring, resident parameters, slots of two words, barriers and alignment."""
        control_bytes = self.slots * 8 + MAX_STAGES * 16 + 512
        return self.stages * self.stage_bytes + self.resident * self.part_bytes + control_bytes

    def filled(self) -> ClusterPlan:
        """With as many stages as fit."""
        bare = replace(self, stages=0)
        free_bytes = SHARED_BYTES_PER_SM // self.min_blocks - SHARED_BYTES_RESERVED
        stages = (free_bytes - bare.shared_bytes) // self.stage_bytes
        return replace(self, stages=min(stages, MAX_STAGES))

    def grid(self, height):
        """CTAs for ``height`` rows: as few clusters as take the least rounds."""
        rounds = -(-height // self.clusters)
        return -(-height // rounds) * self.ctas


@dataclass(frozen=True)
class Shape:
    """What is chosen for rows of at most ``row_bytes``; the rest of a plan follows from it."""

    row_bytes: int
    ctas: int
    threads: int
    stage_chunks: int
    min_blocks: int
    resident: int


_KIB = 1 << 10

# By kernel and bytes of an element, measured at 65536 and 262144 columns: benchmarks/notes.md. Registers do not hold as many bytes of
# 16-bit elements. Shorter rows than ``_LEAST_BYTES`` are those of ``kernels.rows``.
_SHAPES: dict[tuple[rows.Kernel, int], tuple[Shape, ...]] = {
    ("softmax", 2): (Shape(512 * _KIB, 8, 512, 4, 1, 0),),
    ("softmax", 4): (Shape(1024 * _KIB, 8, 512, 2, 1, 0),),
    ("rms_norm", 2): (Shape(256 * _KIB, 4, 512, 2, 1, 1), Shape(512 * _KIB, 8, 512, 2, 1, 1)),
    ("rms_norm", 4): (Shape(256 * _KIB, 8, 256, 1, 3, 1), Shape(1024 * _KIB, 8, 512, 2, 1, 1)),
    ("layer_norm", 2): (Shape(256 * _KIB, 4, 512, 2, 1, 2), Shape(512 * _KIB, 8, 512, 2, 1, 2)),
    ("layer_norm", 4): (Shape(256 * _KIB, 8, 256, 1, 2, 2), Shape(1024 * _KIB, 8, 512, 1, 1, 1)),
}  # fmt: skip
_LEAST_BYTES: dict[rows.Kernel, int] = {
    "softmax": 256 * _KIB + 1, "rms_norm": 128 * _KIB + 1, "layer_norm": 128 * _KIB + 1,
}  # fmt: skip

# Clusters of so many CTAs, with so many CTAs per SM, that run at one time on the H200 that was measured:
# some SMs are in groups that a cluster does not leave.
_AT_ONCE = {
    (2, 1): 66, (2, 2): 132, (4, 1): 30, (4, 2): 62, (8, 1): 15, (8, 2): 30, (8, 3): 45, (16, 1): 7,
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """What a plan depends on. The default stands for the simulator."""

    sms: int = 132
    has_clusters: bool = True

    def clusters_at_once(self, ctas: int, min_blocks: int) -> int:
        known = _AT_ONCE.get((ctas, min_blocks)) if self.sms == 132 else None
        return known or max(1, (self.sms // 16 - 1) * 16 * min_blocks // ctas)


@cache
def device_of(index: int) -> Device:
    import torch

    found = torch.cuda.get_device_properties(index)
    return Device(found.multi_processor_count, found.major in (9, 10))


@cache
def plan_clusters(
    kernel: rows.Kernel, row_elems: int, elem_bytes: int, parameters: int, device: Device
) -> ClusterPlan | None:
    """The plan for rows at multiples of 16 bytes; None where ``kernels.rows`` does better. ``parameters``:
    how many of weight and bias there are."""
    row_bytes = row_elems * elem_bytes
    if not device.has_clusters or row_bytes % VECTOR_BYTES or row_bytes < _LEAST_BYTES[kernel]:
        return None
    for shape in _SHAPES[kernel, elem_bytes]:
        if row_bytes <= shape.row_bytes:
            resident = min(parameters, shape.resident)
            plan = ClusterPlan(
                elem_bytes, row_elems, shape.ctas, shape.threads, shape.stage_chunks, 0,
                device.clusters_at_once(shape.ctas, shape.min_blocks), shape.min_blocks, resident,
                parameters - resident,
            ).filled()  # fmt: skip
            if plan.elems_per_thread <= MAX_ELEMS_PER_THREAD:
                return plan
    return None


def plan_for(
    kernel: rows.Kernel, source, plan: rows.RowPlan, parameters: int
) -> ClusterPlan | None:
    """The plan for ``source`` (M, N) whose ``rows.plan_for`` is ``plan``; None where that does better."""
    if plan.vector_bytes != VECTOR_BYTES:
        return None
    device = device_of(source.device.index) if source.device.type == "cuda" else Device()
    return plan_clusters(kernel, source.shape[1], plan.elem_bytes, parameters, device)


# --- the kernel side


@jit
def allocate(plan: T.constexpr, slot_words: T.constexpr):
    """(stages, full, empty, slots, all slots are here, slots may be overwritten), initialised; all threads
    of the CTA call. ``T.cuda.cluster_wait`` must follow."""
    stages = T.alloc_shared(
        (plan.stages, plan.stage_chunks, plan.threads, plan.words),
        plan.word,
        layout="default",
        align=128,
    )
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    slots = T.alloc_shared((plan.slots, slot_words), "float32", layout="default", align=16)
    here = T.alloc_shared((1,), "uint64", align=8)
    free = T.alloc_shared((plan.ctas,), "uint64", align=8)
    if T.cuda.linear_thread_id() == 0:
        cluster_reduce.create(here, free)
    ring.create(full, empty, 1, plan.warps)
    T.cuda.cluster_arrive()
    return stages, full, empty, slots, here, free


@jit
def row_of(X, row, plan: T.constexpr):
    """The vectors of a row that exists."""
    T.assume(0 <= row < X.shape[0])
    return rows.vectors(X.sub[row, :], plan)


@jit
def full_parts(vectors, plan: T.constexpr):
    """A row but for its tail: (CTAs, chunks, threads, words)."""
    whole = vectors.sub[0 : plan.ctas * plan.part_vectors, :]
    return whole.view(plan.ctas, plan.full_chunks, plan.threads, plan.words)


@jit
def first_to_leave():
    """The L2 policy of rows."""
    policy = T.alloc_local((1,), "uint64", layout="default")
    T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
    return policy[0]


@jit
def fetch(to, vectors, first, count: T.constexpr, rank, mbar, policy, plan: T.constexpr):
    """Bulk copy of ``count`` chunks of this CTA's part, from chunk ``first`` on; ``to`` is flat. ``policy``:
    that of a row; None for a parameter."""
    size = count * plan.threads
    T.cuda.tile.apply(
        T.ptx[FETCH if policy is None else FETCH_ROW],
        to,
        full_parts(vectors, plan).sub[rank, first : first + count, :, :].view(size * plan.words),
        chunk_bytes=size * VECTOR_BYTES,
        mbar=mbar,
        cache_policy=policy,
    )


@jit
def tail_vectors(rank, plan: T.constexpr):
    """How many vectors of the tail this CTA has."""
    return min(max(plan.tail_vectors - rank * plan.tail_share, 0), plan.tail_share)


@jit
def fetch_tail(to, vectors, rank, mbar, policy, plan: T.constexpr):
    """Bulk copy of this CTA's share of the tail, if it has one; ``policy`` as in ``fetch``."""
    count = tail_vectors(rank, plan)
    if count > 0:
        begin = plan.ctas * plan.part_vectors + rank * plan.tail_share
        source, nbytes = vectors.ptr_to([begin, 0]), T.uint32(count * VECTOR_BYTES)
        if policy is None:
            T.ptx[FETCH](to.ptr_to([0, 0]), source, nbytes, mbar)
        else:
            T.ptx[FETCH_ROW](to.ptr_to([0, 0]), source, nbytes, mbar, policy)


@dataclass(frozen=True)
class Feed:
    """What the ring of a CTA brings: rows of ``X`` from the cluster's first one on, ``stride`` apart, and
    the vectors of the streamed ``parameters``. As ``allocate`` gives them: ``stages``, ``full``, ``empty``.
    ``policy``: of rows in L2, those read and those written."""

    X: Any
    parameters: tuple[Any, ...]
    stages: Any
    full: Any
    empty: Any
    rank: Any
    stride: Any
    policy: Any


@jit
def request_step(feed, stage, row, step: T.constexpr, plan: T.constexpr):
    """Bulk copy of step ``step`` of row ``row`` into a stage that is empty."""
    T.assume(0 <= stage < plan.stages)
    if step < plan.part_steps:
        source, policy = row_of(feed.X, row, plan), feed.policy
    else:
        source, policy = feed.parameters[(step - plan.part_steps) % plan.streamed], None
    chunks = plan.chunks_of(plan.step_of_part(step))
    here = feed.full.ptr_to([stage])
    if chunks[0] < plan.full_chunks:
        size = len(chunks) * plan.threads
        ring.announce(feed.full, stage, size * VECTOR_BYTES)
        to = feed.stages.sub[stage, 0 : len(chunks), :, :].view(size * plan.words)
        fetch(to, source, chunks[0], len(chunks), feed.rank, here, policy, plan)
    else:
        ring.announce(feed.full, stage, tail_vectors(feed.rank, plan) * VECTOR_BYTES)
        fetch_tail(feed.stages.sub[stage, 0, :, :], source, feed.rank, here, policy, plan)


@jit
def refills(plan: T.constexpr):
    """Is this the thread that keeps the ring filled?"""
    return T.cuda.linear_thread_id() == plan.threads - 32


@jit
def begin(feed, row, plan: T.constexpr):
    """Request what fills the ring first, for rows from ``row`` on."""
    for stage in T.unroll(plan.stages):
        wanted = row + stage // plan.row_steps * feed.stride
        if refills(plan) and wanted < feed.X.shape[0]:
            request_step(feed, stage, wanted, stage % plan.row_steps, plan)


@jit
def refill_before(feed, stage, parity, row, after: T.constexpr, plan: T.constexpr):
    """Request what comes next into the stage of the step before step ``after`` of row ``row``, once all
    warps have read it; (``stage``, ``parity``) is the position of ``after``."""
    later = after - 1 + plan.stages
    wanted = row + later // plan.row_steps * feed.stride
    if refills(plan) and wanted < feed.X.shape[0]:
        stage, parity = ring.following(stage, parity, plan.stages, plan.stages - 1)
        ring.wait_empty(feed.empty, stage, parity)
        request_step(feed, stage, wanted, later % plan.row_steps, plan)


@jit
def read_step(feed, words, t, stage, parity, step: T.constexpr, plan: T.constexpr):
    """words (vectors per thread in a stage, elements) = what this thread owns of step ``step`` of a row,
    which is next in the ring. Returns the position after it."""
    T.assume(0 <= stage < plan.stages)
    chunks = plan.chunks_of(plan.step_of_part(step))
    ring.wait_full(feed.full, stage, parity)
    if chunks[0] < plan.full_chunks or owns_tail(t, feed.rank, plan):
        T.cuda.tile.apply(
            T.ptx["ld.shared.v4.b32"],
            words.sub[0 : len(chunks), :].view(plan.word),
            feed.stages.sub[stage, 0 : len(chunks), t, :],
        )
    ring.release_read(feed.empty, stage)
    return ring.following(stage, parity, plan.stages)


@jit
def owns_tail(t, rank, plan: T.constexpr):
    """Does this thread own a vector of the tail?"""
    return t < plan.tail_share and rank * plan.tail_share + t < plan.tail_vectors


@jit
def take(x, feed, t, stage, parity, row, neutral, plan: T.constexpr):
    """x (elements per thread, 1) = this thread's values of row ``row``, which is next in the ring;
    ``neutral`` where it owns nothing. Returns the next position.

    Stages are refilled one step late, so that nobody waits long, and the last one's refill is left to
    the caller (``refill_before``).
    """
    words = T.alloc_local((plan.stage_chunks, plan.vector_elems), feed.X.dtype, layout="default")
    for step in T.unroll(plan.part_steps):
        before, parity_before = stage, parity
        stage, parity = read_step(feed, words, t, stage, parity, step, plan)
        chunks = plan.chunks_of(step)
        size = len(chunks) * plan.vector_elems
        start = chunks[0] * plan.vector_elems
        values = x.sub[start : start + size]
        if chunks[0] < plan.full_chunks or owns_tail(t, feed.rank, plan):
            rows.widen(words.sub[0 : len(chunks), :].view(size), values)
        else:
            rows.fill(values, neutral)
        if step > 0:
            refill_before(feed, before, parity_before, row, step, plan)
    return stage, parity


@jit
def partial(instruction: T.constexpr, x, sums):
    """sums[i] = x[i], x[i + n]… combined, where n is how many sums there are: few, to spare registers."""
    (width, _), (count, _) = sums.shape, x.shape
    if count == width:
        T.cuda.tile.apply(T.ptx["mov.f32"], sums, x)
    else:
        T.cuda.tile.apply(instruction, sums, x.sub[0:width], x.sub[width : 2 * width])
    for begin in T.unroll(2 * width, count, width):
        T.cuda.tile.apply(instruction, sums, sums, x.sub[begin : begin + width])


@jit
def mine(vectors, c: T.constexpr, t, rank, plan: T.constexpr):
    """The thread's chunk ``c`` of a row; only threads that own it ask for one of the tail."""
    if c < plan.full_chunks:
        return full_parts(vectors, plan).sub[rank, c, t, :]
    tail = vectors.sub[plan.ctas * plan.part_vectors : plan.vectors_per_row, :]
    return tail.sub[rank * plan.tail_share + t, :]


@jit
def put_step(x, step: T.constexpr, words, Y, row, t, feed, plan: T.constexpr):
    """Store step ``step`` of float32 ``x`` (elements per thread, 1), this thread's part of row ``row``;
    ``words`` is scratch."""
    target = row_of(Y, row, plan)
    chunks = plan.chunks_of(step)
    for j in T.unroll(len(chunks)):
        c = chunks[j]
        if c < plan.full_chunks or owns_tail(t, feed.rank, plan):
            rows.narrow(chunk_of(x, c, plan), words)
            T.cuda.tile.apply(
                T.ptx[STORE_ROW],
                mine(target, c, t, feed.rank, plan),
                words.view(plan.word),
                cache_policy=feed.policy,
            )


@jit
def put_part(x, words, Y, row, t, feed, plan: T.constexpr):
    """Store float32 ``x`` (elements per thread, 1) as this thread's part of row ``row``."""
    for step in T.unroll(plan.part_steps):
        put_step(x, step, words, Y, row, t, feed, plan)


@jit
def chunk_of(x, c: T.constexpr, plan: T.constexpr):
    return x.sub[c * plan.vector_elems : (c + 1) * plan.vector_elems]


# --- weight and bias


@jit
def allocate_resident(count: T.constexpr, plan: T.constexpr):
    """(parts of ``count`` parameters, their barrier), initialised; None without any. The barrier of
    ``allocate`` must follow."""
    if count == 0:
        return None, None
    parts = T.alloc_shared(
        (count, plan.chunks, plan.threads, plan.words), plan.word, layout="default", align=128
    )
    loaded = T.alloc_shared((1,), "uint64", align=8)
    if T.cuda.linear_thread_id() == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](loaded.ptr_to([0]), T.uint32(count))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    return parts, loaded


@jit
def fetch_resident(parts, loaded, index: T.constexpr, parameter, rank, plan: T.constexpr):
    """Request this CTA's part of a parameter's vectors, into ``parts[index]``."""
    size_bytes = (plan.part_vectors + tail_vectors(rank, plan)) * VECTOR_BYTES
    ring.announce(loaded, 0, size_bytes)
    to = parts.sub[index, 0 : plan.full_chunks, :, :].view(plan.part_vectors * plan.words)
    fetch(to, parameter, 0, plan.full_chunks, rank, loaded.ptr_to([0]), None, plan)
    if plan.tail_vectors > 0:
        last = parts.sub[index, plan.full_chunks, :, :]
        fetch_tail(last, parameter, rank, loaded.ptr_to([0]), None, plan)


@jit
def read_resident(words, c: T.constexpr, part, t, plan: T.constexpr):
    """The words of this thread's chunk ``c`` of a resident parameter; of the tail's, only threads that
    own it call."""
    T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], words.view(plan.word), part.sub[c, t, :])
