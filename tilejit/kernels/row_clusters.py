"""Long rows: a cluster of CTAs along each row, which stays in registers between its passes.

A cluster takes row after row: the first few by its number, then whichever no other has taken, because SMs do
not get equal shares of the memory's rate. It draws a *ticket* for each, far ahead of the row's turn, and the
number travels with a partial result. Of every row CTA ``r`` owns a contiguous part of ``full_chunks`` *vectors* of
16 bytes per thread, and an equal share of what is left (the *tail*). The threads take a part from a ring of
shared-memory stages into registers, as it came, one stage per *step*. One thread refills each stage at once
with the step that comes so many stages later, by a bulk copy: the next rows arrive while the cluster exchanges
partial results (``lib.cluster_reduce``) and stores this one.

The threads of a CTA may be several *teams* that take turns at the cluster's rows: while one exchanges and
stores, the other takes and computes. They share the ring and what is resident in shared memory.

Rows are hinted as the first to leave L2, as they are read and as they are written: each is wanted once.

Weights and biases belong to columns, so that a CTA needs the same part of them for all its rows: it is kept
in shared memory (*resident*), or comes from L2 through the ring once more for every row (*streamed*).

Not here: the kernels; rows that one CTA handles well or that bulk copies cannot address (``kernels.rows``);
measuring (``benchmarks``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilejit import T, jit
from tilejit.kernels import operands, rows, scratch
from tilejit.kernels.devices import Device, device_of
from tilejit.lib import cluster_reduce, ring

VECTOR_BYTES = 16
MAX_WORDS_PER_THREAD = 64
"""Of a row: one register each."""
SHARED_BYTES_PER_SM = 228 * 1024
SHARED_BYTES_RESERVED = 1024
"""Of each CTA, by the system."""
MAX_STAGES = 32
FETCH = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
FETCH_ROW = f"{FETCH}.L2::cache_hint"
STORE_ROW = "st.global.L1::no_allocate.L2::cache_hint.v4.b32"

EXCHANGE_BARRIER = 1
"""The first of the teams' named barriers for ``cluster_reduce.release``."""
TURN_BARRIER = 5
"""The first of the named barriers by which a team hears that it may take a row."""
MAX_TEAMS = TURN_BARRIER - EXCHANGE_BARRIER


@dataclass(frozen=True)
class ClusterPlan:
    """See the module's text. ``threads``: of a team; ``stage_chunks``: vectors of each of them in a stage;
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
    teams: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.teams <= MAX_TEAMS:
            raise ValueError(f"{self.teams} teams, expected 1 to {MAX_TEAMS}")
        if self.teams > 1 and self.streamed:
            raise ValueError(
                f"{self.streamed} streamed parameters of {self.teams} teams, expected one team: the next one "
                "would wait for stages that the ring has yet to fill once before"
            )

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
    def step_elems(self) -> int:
        """Of a thread in a stage."""
        return self.stage_chunks * self.vector_elems

    @property
    def words_per_thread(self) -> int:
        return self.chunks * self.words

    @property
    def cta_threads(self) -> int:
        return self.threads * self.teams

    @property
    def rows_in_ring(self) -> int:
        """How many rows after a step's own the ring may reach."""
        return (self.row_steps - 1 + self.stages) // self.row_steps

    @property
    def lookahead(self) -> int:
        """How many rows before its turn a row is drawn, a multiple of the teams, so that a team draws for
        itself. What it learns in the exchange of its row ``t`` all its threads know once its next row,
        ``t + teams``, has begun, and the other teams once that row was taken and the turn passed on: the ring
        may want what was drawn from row ``t + teams`` on, and no earlier."""
        return -(-self.rows_in_ring // self.teams) * self.teams + self.teams

    @property
    def known_rows(self) -> int:
        """Row numbers that a CTA keeps: a team's present one and those ahead."""
        return self.lookahead + self.teams

    @property
    def warps(self) -> int:
        """Of a team."""
        return self.threads // 32

    @property
    def slots(self) -> int:
        """Of a team's exchange."""
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
        """At most: ring, resident parameters, slots of four words, barriers and alignment."""
        control_bytes = self.teams * (self.slots * 16 + self.ctas * 8) + MAX_STAGES * 16 + 1024
        return self.stages * self.stage_bytes + self.resident * self.part_bytes + control_bytes

    def filled(self, most: int = MAX_STAGES) -> ClusterPlan:
        """With as many stages as fit, ``most`` at the most."""
        bare = replace(self, stages=0)
        free_bytes = SHARED_BYTES_PER_SM // self.min_blocks - SHARED_BYTES_RESERVED
        stages = (free_bytes - bare.shared_bytes) // self.stage_bytes
        return replace(self, stages=min(stages, most))

    def grid(self, height):
        """CTAs for ``height`` rows."""
        return min(height, self.clusters) * self.ctas


@dataclass(frozen=True)
class Shape:
    """What is chosen for rows of at most ``row_bytes``; the rest of a plan follows from it."""

    row_bytes: int
    ctas: int
    threads: int
    stage_chunks: int
    min_blocks: int
    resident: int
    teams: int = 1
    stages: int = MAX_STAGES


_KIB = 1 << 10

# By kernel and bytes of an element, measured at 65536 (float32), 131072 (bfloat16) and 262144 columns:
# benchmarks/notes.md. Shorter rows than ``_LEAST_BYTES`` are those of ``kernels.rows``.
_SHAPES: dict[tuple[rows.Kernel, int], tuple[Shape, ...]] = {
    ("softmax", 2): (
        Shape(256 * _KIB, 4, 256, 4, 1, 0, teams=2, stages=5),
        Shape(512 * _KIB, 8, 256, 2, 1, 0, teams=2, stages=10),
    ),
    ("softmax", 4): (
        Shape(256 * _KIB, 4, 512, 2, 1, 0, stages=8),
        Shape(1024 * _KIB, 8, 512, 2, 1, 0, stages=8),
    ),
    ("rms_norm", 2): (
        Shape(256 * _KIB, 4, 512, 4, 1, 1, stages=4),
        Shape(512 * _KIB, 8, 512, 4, 1, 1, stages=4),
    ),
    ("rms_norm", 4): (
        Shape(256 * _KIB, 8, 256, 1, 2, 1),
        Shape(512 * _KIB, 8, 512, 2, 1, 1, stages=8),
        Shape(1024 * _KIB, 8, 512, 1, 1, 1),
    ),
    ("layer_norm", 2): (
        Shape(256 * _KIB, 4, 512, 4, 1, 2, stages=4),
        Shape(512 * _KIB, 8, 256, 4, 1, 2, teams=2, stages=5),
    ),
    ("layer_norm", 4): (
        Shape(256 * _KIB, 4, 512, 2, 1, 2, stages=8),
        Shape(512 * _KIB, 8, 512, 2, 1, 2, stages=8),
        Shape(1024 * _KIB, 8, 512, 4, 1, 0, stages=8),
    ),
}  # fmt: skip
_LEAST_BYTES = 128 * _KIB + 1

# Clusters of so many CTAs, with so many CTAs per SM, that run at one time on the H200 that was measured:
# some SMs are in groups that a cluster does not leave.
_AT_ONCE = {
    (2, 1): 66, (2, 2): 132, (4, 1): 30, (4, 2): 62, (8, 1): 15, (8, 2): 30, (8, 3): 45, (16, 1): 7,
}  # fmt: skip


def clusters_at_once(device: Device, ctas: int, min_blocks: int) -> int:
    """As measured, or what surely runs at a time."""
    known = _AT_ONCE.get((ctas, min_blocks)) if device.sms == 132 else None
    return known or max(1, (device.sms // 16 - 1) * 16 * min_blocks // ctas)


@lru_cache(operands.REMEMBERED)
def plan_clusters(
    kernel: rows.Kernel, row_elems: int, elem_bytes: int, parameters: int, device: Device
) -> ClusterPlan | None:
    """The plan for rows at multiples of 16 bytes; None where ``kernels.rows`` does better. ``parameters``:
    how many of weight and bias there are."""
    row_bytes = row_elems * elem_bytes
    if not device.has_big_clusters or row_bytes % VECTOR_BYTES or row_bytes < _LEAST_BYTES:
        return None
    for shape in _SHAPES[kernel, elem_bytes]:
        if row_bytes <= shape.row_bytes:
            resident = min(parameters, shape.resident)
            plan = ClusterPlan(
                elem_bytes, row_elems, shape.ctas, shape.threads, shape.stage_chunks, 0,
                clusters_at_once(device, shape.ctas, shape.min_blocks), shape.min_blocks, resident,
                parameters - resident, shape.teams,
            ).filled(shape.stages)  # fmt: skip
            if plan.words_per_thread <= MAX_WORDS_PER_THREAD:
                return plan
    return None


def plan_for(
    kernel: rows.Kernel, source, plan: rows.RowPlan, parameters: int
) -> ClusterPlan | None:
    """The plan for ``source`` (M, N) whose ``rows.plan_for`` is ``plan``; None where that does better."""
    if plan.vector_bytes != VECTOR_BYTES:
        return None
    device = device_of(source.device)
    return plan_clusters(kernel, source.shape[1], plan.elem_bytes, parameters, device)


def tickets_for(source):
    """The counter that a launch on ``source`` needs, on its device's current stream."""
    import torch

    return scratch.zeros((1,), torch.uint32, source.device)


# --- the kernel side


@dataclass(frozen=True)
class Team:
    """Who a thread works with: the team's number, the thread's in it, the first warp, and what the team
    exchanges by: ``slots``, ``here`` (all of a round are here), ``free`` (they may be overwritten). ``ticket``:
    the last one that its first thread in the cluster's first CTA drew, a register."""

    number: Any
    thread: Any
    first_warp: Any
    slots: Any
    here: Any
    free: Any
    ticket: Any


@dataclass(frozen=True)
class Feed:
    """What the ring of a CTA, ``stages`` with their barriers, brings to the executing thread's ``team``: the
    cluster's rows of ``X``, whose numbers are ``ahead``, and the vectors of the streamed ``parameters``.
    ``policy``: of rows in L2, those read and those written. ``order``: that of the bytes of a word, in shared
    memory."""

    X: Any
    height: Any
    parameters: tuple[Any, ...]
    stages: Any
    full: Any
    empty: Any
    ahead: Any
    order: Any
    rank: Any
    policy: Any
    team: Team


@jit
def start(X, parameters, slot_words: T.constexpr, plan: T.constexpr):
    """The feed, initialised, its first stages requested; all threads of the CTA call.
    ``T.cuda.cluster_wait`` must follow. ``parameters``: those that are streamed."""
    stages = T.alloc_shared(
        (plan.stages, plan.stage_chunks, plan.threads, plan.words),
        plan.word,
        layout="default",
        align=128,
    )
    full = T.alloc_shared((plan.stages,), "uint64", align=8)
    empty = T.alloc_shared((plan.stages,), "uint64", align=8)
    slots = T.alloc_shared(
        (plan.teams, plan.slots, slot_words), "float32", layout="default", align=16
    )
    here = T.alloc_shared((plan.teams, 1), "uint64", layout="default", align=8)
    free = T.alloc_shared((plan.teams, plan.ctas), "uint64", layout="default", align=8)
    order = T.alloc_shared((1,), "uint32", layout="default")
    ahead = T.alloc_shared((plan.known_rows,), "int32", layout="default")
    if T.cuda.linear_thread_id() == 0:
        for team in T.unroll(plan.teams):
            cluster_reduce.create(here.sub[team, :], free.sub[team, :])
        order[0] = T.uint32(0x3210)
        for i in T.unroll(plan.lookahead):
            ahead[i] = first_number(i)
    ring.create(full, empty, 1, plan.warps)
    T.cuda.cluster_arrive()
    rank, policy, height = T.cuda.cluster_cta_rank(), first_to_leave(), T.cast(X.shape[0], "int32")
    team = team_of(slots, here, free, plan)
    feed = Feed(X, height, parameters, stages, full, empty, ahead, order, rank, policy, team)
    fill_ring(feed, plan)
    return feed


@jit
def team_of(slots, here, free, plan: T.constexpr):
    """The executing thread's; ``slots``, ``here`` and ``free`` are those of all teams."""
    number, first_warp, thread = 0, 0, T.cuda.thread_idx("x")
    if plan.teams > 1:
        number = T.cuda.warp_id() // plan.warps
        first_warp = number * plan.warps
        thread = thread - number * plan.threads
    T.assume(0 <= number < plan.teams)
    T.assume(0 <= thread < plan.threads)
    ticket = T.alloc_local((1,), "uint32", layout="default")
    ticket[0] = T.uint32(0)
    return Team(
        number, thread, first_warp, slots.sub[number, :, :], here.sub[number, :],
        free.sub[number, :], ticket,
    )  # fmt: skip


# --- a row, from the team's point of view


@jit
def first_row(feed, plan: T.constexpr):
    """(its turn among the cluster's rows, its number, its position in the ring: stage and parity)."""
    stage, parity = T.int32(0), T.int32(0)
    for before in T.unroll(plan.teams - 1):
        if feed.team.number > before:
            stage, parity = ring.following(stage, parity, plan.stages, plan.row_steps)
    turn = T.cast(feed.team.number, "int32")
    return turn, number_of(turn, feed, plan), stage, parity


@jit
def next_row(feed, turn, stage, parity, plan: T.constexpr):
    """The same of the team's next row, from the turn of the last one and the position after it."""
    if plan.teams > 1:
        stage, parity = ring.following(
            stage, parity, plan.stages, (plan.teams - 1) * plan.row_steps
        )
    turn = turn + plan.teams
    return turn, number_of(turn, feed, plan), stage, parity


@jit
def begin_row(tickets, feed, turn, plan: T.constexpr):
    """Wait until the cluster's row before this one has been taken: a parity tells apart only two rounds of
    a stage. And draw a row that comes later."""
    if plan.teams > 1:
        if turn > 0:
            T.cuda.named_barrier_sync(TURN_BARRIER + feed.team.number, 2 * plan.threads)
    draw(tickets, feed, turn, plan)


@jit
def pass_turn(feed, turn, plan: T.constexpr):
    """The team has taken its row, and the next one may be."""
    number = feed.team.number
    if plan.teams > 1:
        if number_of(turn + 1, feed, plan) < feed.height:
            after = T.if_then_else(number == plan.teams - 1, 0, number + 1)
            T.cuda.named_barrier_arrive(TURN_BARRIER + after, 2 * plan.threads)


@jit
def exchange(words, feed, turn, plan: T.constexpr):
    """All slots of the team's round are here: ``words`` of every warp, the last of which is for the number of
    the row that comes so many after row ``turn`` of the cluster."""
    team, last = feed.team, words.shape[0] - 1
    parity = turn // plan.teams % 2
    words[last] = drawn(feed, plan)
    cluster_reduce.publish(words, team.slots, team.here, team.free, parity, team.first_warp)
    cluster_reduce.wait(team.here, parity)
    if team.thread == 0:
        place = (turn + plan.lookahead) % plan.known_rows
        feed.ahead[place] = T.cast(team.slots[0, last], "int32")


@jit
def end_exchange(feed, turn, stage, parity, plan: T.constexpr):
    """The team has read its slots: those of its next row may come, if there is one. And the refill that
    ``take_step`` left."""
    team = feed.team
    refill_before(feed, stage, parity, turn, plan.part_steps, plan)
    if number_of(turn + plan.teams, feed, plan) < feed.height:
        cluster_reduce.release(
            team.free, EXCHANGE_BARRIER + team.number, plan.threads, team.first_warp
        )


# --- rows that are drawn


@jit
def first_number(i: T.constexpr):
    """Of the cluster's row ``i``, where no ticket says it: beyond the last if there is none."""
    return T.cuda.cluster_id("x") + i * T.cuda.num_clusters("x")


@jit
def by_ticket(height, plan: T.constexpr):
    """How many rows are left to tickets."""
    return max(height - plan.lookahead * T.cuda.num_clusters("x"), 0)


@jit
def draw(tickets, feed, turn, plan: T.constexpr):
    """Ask for a row, by one thread of the cluster, once it is the turn of the team's row ``turn``: so teams draw
    in the order of their rows, and no row comes after one that is not there.

    Each team draws until there is no row, once in vain. So the number of draws is known, and the counter
    ``tickets`` comes round to zero with the last."""
    rest = by_ticket(feed.height, plan)
    teams = min(feed.height, plan.teams * T.cuda.num_clusters("x"))
    ticket = feed.team.ticket
    if feed.rank == 0 and feed.team.thread == 0:
        if turn < plan.teams or ticket[0] < T.cast(rest, "uint32"):
            T.ptx["atom.relaxed.gpu.global.inc.u32"](
                ticket[0], tickets.ptr_to([0]), T.cast(rest + teams - 1, "uint32")
            )


@jit
def drawn(feed, plan: T.constexpr):
    """The number of the row that was drawn, as float32, which is exact for as many rows as a GPU holds."""
    rest = by_ticket(feed.height, plan)
    ticket = T.cuda.shfl_idx(feed.team.ticket[0], 0)
    number = T.cast(ticket, "int32") + plan.lookahead * T.cuda.num_clusters("x")
    there = ticket < T.cast(rest, "uint32")
    return T.cast(T.if_then_else(there, number, feed.height), "float32")


@jit
def number_of(turn, feed, plan: T.constexpr):
    """Of the row that is the cluster's ``turn``-th: beyond the last one if there is none."""
    return feed.ahead[turn % plan.known_rows]


# --- the ring


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
def refills(feed, plan: T.constexpr):
    """Is this the thread of its team that keeps the ring filled?"""
    return feed.team.thread == plan.threads - 32


@jit
def fill_ring(feed, plan: T.constexpr):
    """Request what fills the ring first."""
    for stage in T.unroll(plan.stages):
        wanted = first_number(stage // plan.row_steps)
        if fills_first(plan) and wanted < feed.height:
            request_step(feed, stage, wanted, stage % plan.row_steps, plan)


@jit
def fills_first(plan: T.constexpr):
    """Is this the thread of the CTA that fills the ring at first?"""
    return T.cuda.linear_thread_id() == plan.threads - 32


@jit
def refill_before(feed, stage, parity, turn, after: T.constexpr, plan: T.constexpr):
    """Request what comes next into the stage of the step before step ``after`` of the cluster's row ``turn``,
    once all warps have read it; (``stage``, ``parity``) is the position of ``after``."""
    later = after - 1 + plan.stages
    if refills(feed, plan):
        wanted = number_of(turn + later // plan.row_steps, feed, plan)
        if wanted < feed.height:
            stage, parity = ring.following(stage, parity, plan.stages, plan.stages - 1)
            ring.wait_empty(feed.empty, stage, parity)
            request_step(feed, stage, wanted, later % plan.row_steps, plan)


@jit
def read_step(feed, words, stage, parity, step: T.constexpr, plan: T.constexpr):
    """words (chunks of the step, elements) = what this thread owns of step ``step`` of a row, which is
    next in the ring. Returns the position after it."""
    T.assume(0 <= stage < plan.stages)
    chunks = plan.chunks_of(plan.step_of_part(step))
    ring.wait_full(feed.full, stage, parity)
    if chunks[0] < plan.full_chunks or owns_tail(feed, plan):
        T.cuda.tile.apply(
            T.ptx["ld.shared.v4.b32"],
            words.view(plan.word),
            feed.stages.sub[stage, 0 : len(chunks), feed.team.thread, :],
        )
    ring.release_read(feed.empty, stage)
    return ring.following(stage, parity, plan.stages)


@jit
def owns_tail(feed, plan: T.constexpr):
    """Does this thread own a vector of the tail?"""
    own = feed.team.thread < plan.tail_share
    return own and feed.rank * plan.tail_share + feed.team.thread < plan.tail_vectors


@jit
def take_step(kept, feed, stage, parity, turn, step: T.constexpr, plan: T.constexpr):
    """Chunks of step ``step`` of ``kept`` (chunks, elements) = this thread's of the cluster's row ``turn``,
    which is next in the ring. Returns the next position.

    Stages are refilled one step late, so that nobody waits long, and the last one's refill is left to
    the caller (``refill_before``).
    """
    chunks = plan.chunks_of(step)
    own = kept.sub[chunks[0] : chunks[0] + len(chunks), :]
    after, parity_after = read_step(feed, own, stage, parity, step, plan)
    if step > 0:
        refill_before(feed, stage, parity, turn, step, plan)
    return after, parity_after


@jit
def widen_again(kept, words, x, feed, plan: T.constexpr):
    """x = a chunk of ``kept`` as float32, for a second time; ``words`` is scratch.

    The bytes change places by an order that compilers do not know. Else they would keep the float32 values of
    the first time, in twice as many registers as there are for 16-bit elements."""
    if plan.elem_bytes == 4:
        rows.widen(kept, x)
    else:
        source, target = kept.view(plan.word), words.view(plan.word)
        for i in T.unroll(plan.words):
            T.ptx["prmt.b32"](target[i], source[i], source[i], feed.order[0])
        rows.widen(words, x)


@jit
def mine(vectors, c: T.constexpr, feed, plan: T.constexpr):
    """The thread's chunk ``c`` of a row; only threads that own it ask for one of the tail."""
    if c < plan.full_chunks:
        return full_parts(vectors, plan).sub[feed.rank, c, feed.team.thread, :]
    tail = vectors.sub[plan.ctas * plan.part_vectors : plan.vectors_per_row, :]
    return tail.sub[feed.rank * plan.tail_share + feed.team.thread, :]


@jit
def put_chunk(x, c: T.constexpr, words, Y, row, feed, plan: T.constexpr):
    """Store float32 ``x`` (elements, 1) as this thread's chunk ``c`` of row ``row``; ``words`` is scratch.
    Only threads that own it may call."""
    rows.narrow(x, words)
    T.cuda.tile.apply(
        T.ptx[STORE_ROW],
        mine(row_of(Y, row, plan), c, feed, plan),
        words.view(plan.word),
        cache_policy=feed.policy,
    )


# --- weight and bias


@jit
def allocate_resident(count: T.constexpr, plan: T.constexpr):
    """(parts of ``count`` parameters, their barrier), initialised; None without any. The barrier of
    ``start`` must follow."""
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
