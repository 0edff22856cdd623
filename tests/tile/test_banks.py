"""Bank conflicts: wavefronts as plain Python counts them from the bytes that each lane asks for, known
answers, and what is said where addresses are not known.

The oracle knows addresses from the formulas written beside each kernel; it uses no layout of tilejit.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

import tilejit as tile
from tilejit import T
from tilejit.errors import ContractError
from tilejit.families import FAMILIES
from tilejit.layout import ComposeLayout, Layout, parse
from tilejit.tile import banks
from tilejit.tile.banks import BankReport, bank_report

# --- the oracle


def phases_of(addresses: Sequence[int | None], nbytes: int) -> list[int]:
    """Wavefronts of each phase of a warp instruction; None: the lane asks for nothing."""
    lanes = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[nbytes]
    found = []
    for first in range(0, 32, lanes):
        words_of_bank: dict[int, set[int]] = defaultdict(set)
        for address in addresses[first : first + lanes]:
            if address is not None:
                for byte in range(address, address + nbytes):
                    words_of_bank[byte // 4 % 32].add(byte // 4)
        if words_of_bank:
            found.append(max(len(words) for words in words_of_bank.values()))
    return found


def swizzled(address: int, bits: int) -> int:
    """The 32-, 64- or 128-byte swizzle (1, 2 or 3 ``bits``): 128-byte lines move 16-byte chunks."""
    return address ^ (address // 128 % (1 << bits) * 16)


def same(report: BankReport, phases: Sequence[Sequence[int]]) -> None:
    """``phases``: of every warp instruction of the call."""
    assert report.unknown == ""
    assert report.instructions == len(phases)
    assert report.ideal == sum(map(len, phases))
    assert report.actual == sum(map(sum, phases))
    assert report.conflict_degree == max(map(max, phases))
    assert report.worst is not None and report.worst.wavefronts == max(map(sum, phases))


# --- loads: lane l of warp w takes ``vector`` elements at row (32w+l) // across, column l % across


@tile.jit
def load(Y: T.Tensor((1,), "float32"), c: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    held = T.alloc_shared((c.rows, c.columns), c.dtype, layout=c.layout)
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((c.repeats, c.vector), c.dtype, layout="default")
    part = held.view(c.rows, c.repeats, c.columns // c.repeats)
    row, column = t // c.across, t % c.across * c.vector
    T.cuda.tile.apply(T.ptx[c.opcode], r, part.sub[row, :, column : column + c.vector])


@dataclass(frozen=True)
class Load:
    dtype: str
    size: int
    vector: int
    across: int
    columns: int
    pitch: int
    repeats: int = 1
    swizzle_bits: int = 0

    @property
    def rows(self) -> int:
        return 64 // self.across

    @property
    def opcode(self) -> str:
        return f"ld.shared.{f'v{self.vector}.' if self.vector > 1 else ''}b{8 * self.size}"

    @property
    def layout(self) -> Layout:
        plain = parse(f"({self.rows},{self.columns}):({self.pitch},1)")
        if not self.swizzle_bits:
            return plain
        per_chunk = (16 // self.size).bit_length() - 1
        return ComposeLayout(per_chunk, self.swizzle_bits, 3, plain)

    def address(self, t: int, repeat: int) -> int:
        column = t % self.across * self.vector + self.columns // self.repeats * repeat
        address = (t // self.across * self.pitch + column) * self.size
        return swizzled(address, self.swizzle_bits) if self.swizzle_bits else address

    def phases(self) -> list[list[int]]:
        return [
            phases_of(
                [self.address(32 * warp + lane, repeat) for lane in range(32)],
                self.size * self.vector,
            )
            for warp in range(2)
            for repeat in range(self.repeats)
        ]


def random_loads(count: int) -> list[Load]:
    chosen = random.Random(7)
    found = []
    for _ in range(count):
        size = chosen.choice((1, 2, 4, 8))
        vector = chosen.choice([v for v in (1, 2, 4) if v * size <= 16])
        across = chosen.choice((1, 2, 4, 8, 16, 32))
        repeats = chosen.choice((1, 2, 3))
        columns = across * vector * repeats
        if chosen.random() < 0.5:
            pitch = columns + vector * chosen.randrange(9)
            found.append(Load(WORDS[size], size, vector, across, columns, pitch, repeats))
        else:
            pitch = -(-columns * size // 128) * 128 // size
            bits = chosen.choice((1, 2, 3))
            found.append(Load(WORDS[size], size, vector, across, columns, pitch, repeats, bits))
    return found


WORDS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
Y = torch.zeros(1)


@pytest.mark.parametrize("case", random_loads(40), ids=str)
def test_loads_as_counted_from_addresses(case: Load) -> None:
    (report,) = load.check(Y, case).banks
    same(report, case.phases())


@pytest.mark.parametrize(
    ("case", "degree"),
    [
        (Load("float32", 4, 1, 32, 32, 32), 1),  # a row
        (Load("float32", 4, 1, 1, 32, 32), 32),  # a column of a (64, 32) tile
        (Load("float32", 4, 1, 1, 32, 33), 1),  # a column, rows padded by one word
        (Load("float32", 4, 1, 1, 32, 34), 2),
        (Load("float16", 2, 1, 1, 64, 64), 32),  # two halves of a word are one word
        (Load("float16", 2, 1, 32, 32, 64), 1),
        (Load("float32", 4, 4, 8, 32, 32), 1),
        (Load("float32", 4, 4, 1, 32, 32), 8),  # 16 bytes: 8 lanes at a time
        (Load("float32", 4, 4, 1, 32, 32, swizzle_bits=3), 1),
        (Load("float32", 4, 4, 1, 32, 32, swizzle_bits=2), 2),
        (Load("float32", 4, 2, 1, 32, 32), 16),
    ],
    ids=str,
)
def test_known_degrees(case: Load, degree: int) -> None:
    (report,) = load.check(Y, case).banks
    assert (report.conflict_degree, report.conflicted) == (degree, degree > 1)


# --- ldmatrix, stmatrix, cp.async


@tile.jit
def matrices(X: T.Tensor((64, "C"), "float16", align=16), c: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    rows, columns = X.shape
    held = T.alloc_shared((rows, columns), "float16", layout=c.layout, align=128)
    t = T.cuda.thread_idx("x")
    chunks = columns // 8
    for i in T.unroll(rows * chunks // 64):
        n = i * 64 + t
        at = (n // chunks, n % chunks)
        T.cuda.tile.apply(
            T.ptx["cp.async.cg.shared.global"],
            held.view(rows, chunks, 8).sub[at[0], at[1], :],
            X.view(rows, chunks, 8).sub[at[0], at[1], :],
            chunk_bytes=16,
        )
    T.ptx["cp.async.wait_all"]()
    T.cuda.cta_sync()
    count = c.count
    r = T.alloc_local(
        (2, 64 // 16 // count, chunks, count, 8, 4), "uint32",
        layout=T.cuda.ldmatrix_layout(count, (64 // 16 // count, chunks), warps=2),
    )  # fmt: skip
    words = held.view("uint32").view(2, 4 // count, count, 8, chunks, 4).permute(0, 1, 4, 2, 3, 5)
    T.cuda.tile.apply(
        T.ptx[f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16"], r, words, scope="cta"
    )
    T.cuda.tile.apply(
        T.ptx[f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16"], words, r, scope="cta"
    )


@dataclass(frozen=True)
class Tile:
    count: int
    layout: Layout


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    ("columns", "pitch", "degree"),
    [(64, 64, 8), (64, 72, 1), (128, 128, 8), (32, 32, 4), (32, 40, 1), (16, 16, 2), (8, 8, 1)],
)
def test_matrix_rows_without_a_swizzle(count: int, columns: int, pitch: int, degree: int) -> None:
    case = Tile(count, parse(f"(64,{columns}):({pitch},1)"))
    copies, loaded, stored = matrices_banks(case, columns)

    def row(matrix: int, row: int, column: int) -> int:
        return ((matrix * 8 + row) * pitch + column * 8) * 2

    expected = matrix_phases(count, columns // 8, row)
    for report in (loaded, stored):
        same(report, expected)
        assert report.conflict_degree == degree
    chunks = columns // 8
    for i, report in enumerate(copies):
        at = [divmod(i * 64 + t, chunks) for t in range(64)]
        where = [(row * pitch + chunk * 8) * 2 for row, chunk in at]
        same(report, [phases_of(where[:32], 16), phases_of(where[32:], 16)])


@pytest.mark.parametrize("columns", [8, 16, 24, 32, 48, 64, 96, 128, 192, 256])
def test_mma_shared_layout_has_no_conflicts(columns: int) -> None:
    layout = T.cuda.mma_shared_layout((64, columns), "float16")
    copies, loaded, stored = matrices_banks(Tile(4, layout), columns)
    for report in (*copies, loaded, stored):
        assert report.actual == report.ideal and report.conflict_degree == 1, str(report)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_swizzle_narrower_than_the_rows_leaves_conflicts(swizzle: int) -> None:
    layout = T.cuda.mma_shared_layout((64, 64), "float16", swizzle=swizzle)
    _, loaded, _ = matrices_banks(Tile(4, layout), 64)
    assert loaded.conflict_degree == 128 // swizzle
    bits = {32: 1, 64: 2, 128: 3}[swizzle]
    same(
        loaded,
        matrix_phases(4, 8, lambda m, r, c: swizzled((m * 8 + r) * 128 + c * 16, bits)),
    )


def matrices_banks(case: Tile, columns: int) -> tuple[list[BankReport], BankReport, BankReport]:
    x = torch.zeros(64, columns, dtype=torch.float16)
    *copies, loaded, stored = matrices.check(x, case, target="sm_90a").banks
    assert {c.spelling for c in copies} == {"cp.async.cg.shared.global"}
    return list(copies), loaded, stored


def matrix_phases(count: int, chunks: int, row: Callable[[int, int, int], int]) -> list[list[int]]:
    """``row(matrix, row, column)``: address of a matrix row; 8 matrices on top of each other."""
    return [
        [
            *(
                phases_of([row(first + m, r, column) for r in range(8)] + [None] * 24, 16)[0]
                for m in range(count)
            )
        ]
        for first in range(0, 8, count)
        for column in range(chunks)
    ]


# --- which lanes are there, which warp is worst


@tile.jit
def guarded(Y: T.Tensor((1,), "float32"), which: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    held = T.alloc_shared((64, 32), "float32", layout="default")
    r = T.alloc_local((1,), "float32", layout="default")
    t, lane = T.cuda.thread_idx("x"), T.cuda.lane_id()
    if which == "few":
        if lane < 5:
            T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held.sub[t, 0:1])
    elif which == "elected":
        if T.cuda.elect_sync():
            T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held.sub[t, 0:1])
    elif which == "one word":
        T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held.sub[3, 0:1])
    elif which == "second warp":
        step = T.if_then_else(T.cuda.warp_id() == 1, 32, 1)
        T.cuda.tile.apply(T.ptx["st.shared.b32"], held.view(2048, 1).sub[lane * step, :], r)
    elif which == "unrolled":
        for i in T.unroll(3):
            T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held.sub[t, i : i + 1])
    elif which == "no thread":
        if t < 0:
            T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held.sub[t, 0:1])


def test_only_lanes_that_are_there_conflict() -> None:
    same(guarded.check(Y, "few").banks[0], [[5], [5]])
    same(guarded.check(Y, "elected").banks[0], [[1], [1]])
    same(guarded.check(Y, "one word").banks[0], [[1], [1]])
    assert guarded.check(Y, "no thread").banks == ()


def test_the_worst_warp_is_named() -> None:
    (report,) = guarded.check(Y, "second warp").banks
    same(report, [[1], [32]])
    assert report.worst == banks.Worst(warp=1, repeat=(), wavefronts=32)
    assert str(report).endswith(
        "st.shared.b32 on held: 32-way bank conflict, 33 wavefronts, 2 without; worst in warp 1, "
        "repeat ()"
    )


@tile.jit
def cluster(Y: T.Tensor((1,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=40, cluster=2))
    held = T.alloc_shared((40, 32), "float32", layout="default")
    r = T.alloc_local((1,), "float32", layout="default")
    step = T.if_then_else(T.cuda.cluster_cta_rank() == 1, 32, 1)
    at = held.view(40 * 32, 1).sub[T.cuda.thread_idx("x") * step, :]
    T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, at)


def test_ctas_of_a_cluster_have_warps_of_their_own() -> None:
    (report,) = cluster.check(Y, target="sm_90a").banks
    same(report, [[1], [1], [32], [8]])
    assert report.worst is not None and report.worst.warp == 0


# --- run-time values


@tile.jit
def at_run_time(X: T.Tensor(("N",), "int32"), c: T.constexpr, n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    held = T.alloc_shared((8, 64, 32), "uint32", layout=c.layout)
    if c.what == "matrix":
        r = T.alloc_local((4, 8, 4), "uint32", layout=T.cuda.ldmatrix_layout(4))
        words = held.view(8, 2, 4, 8, 8, 4).permute(0, 1, 4, 2, 3, 5)
        for stage in range(8):
            for column in range(8):
                T.cuda.tile.apply(
                    T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
                    r, words.sub[stage, 1, column], scope="warp",
                )  # fmt: skip
    T.assume(n >= 0)
    T.assume(n < 8)
    if c.what == "halves":
        h = T.alloc_local((1,), "uint16", layout="default")
        flat = held.view("uint16").view(8 * 64 * 64, 1)
        if lane < 4:
            T.cuda.tile.apply(T.ptx["ld.shared.b16"], h, flat.sub[n + lane // 2 * 66 + lane % 2, :])
    one = T.alloc_local((1,), "uint32", layout="default")
    if c.what == "column":
        T.cuda.tile.apply(T.ptx["ld.shared.b32"], one, held.view(512, 32, 1).sub[lane, n, :])
    if c.what == "by lane":
        row = X[lane]
        T.assume(row >= 0)
        T.assume(row < 8)
        T.cuda.tile.apply(T.ptx["ld.shared.b32"], one, held.view(512, 32, 1).sub[row, n, :])


@dataclass(frozen=True)
class AtRunTime:
    what: str
    layout: Layout


PLAIN = parse("(8,64,32):(2048,32,1)")
SWIZZLED = ComposeLayout(2, 3, 3, PLAIN)


def at_run_time_banks(what: str, layout: Layout) -> BankReport:
    case = AtRunTime(what, layout)
    (report,) = at_run_time.check(torch.zeros(32, dtype=torch.int32), case, 3).banks
    return report


def test_loop_variables_may_reach_into_a_swizzle() -> None:
    same(at_run_time_banks("matrix", SWIZZLED), [[1, 1, 1, 1]])
    same(at_run_time_banks("matrix", PLAIN), [[8, 8, 8, 8]])


def test_the_worst_run_time_value_counts() -> None:
    """Halves 0, 1, 66, 67 are two words in two banks; 1, 2, 67, 68 four words in three."""
    assert phases_of([0, 2, 132, 134], 2) == [1] and phases_of([2, 4, 134, 136], 2) == [2]
    same(at_run_time_banks("halves", PLAIN), [[2]])


@tile.jit
def halves_by_warp(Y: T.Tensor((1,), "float32"), how: T.constexpr, n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=96))
    T.assume(n >= 0)
    T.assume(n < 8)
    flat = T.alloc_shared((256, 1), "uint16", layout="default")
    h = T.alloc_local((1,), "uint16", layout="default")
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    at = n + T.if_then_else(warp == 0, 1, 0)
    if how == "odd":
        T.assume(n % 2 == 1)
        at = n * (warp % 2)
    if lane < 4:
        T.cuda.tile.apply(T.ptx["ld.shared.b16"], h, flat.sub[at + lane // 2 * 66 + lane % 2, :])


def test_one_run_time_value_serves_all_warps() -> None:
    """An even n costs 2, 1, 1 wavefronts, an odd one 1, 2, 2."""
    same(halves_by_warp.check(Y, "any", 3).banks[0], [[1], [2], [2]])


def test_what_is_known_of_a_run_time_value_is_used_for_each_warp() -> None:
    same(halves_by_warp.check(Y, "odd", 3).banks[0], [[1], [2], [1]])


def test_a_column_chosen_at_run_time() -> None:
    same(at_run_time_banks("column", PLAIN), [[32]])
    worst = max(
        phases_of([swizzled(lane * 128 + n * 4, 3) for lane in range(32)], 4) for n in range(8)
    )
    same(at_run_time_banks("column", SWIZZLED), [worst])


def test_lanes_that_differ_by_an_unknown_number_are_not_judged() -> None:
    report = at_run_time_banks("by lane", PLAIN)
    assert (report.actual, report.conflict_degree, report.worst) == (None, None, None)
    assert not report.conflicted and "run-time value" in report.unknown
    assert "bank conflicts not known: the lanes of a warp differ by" in str(report)


@tile.jit
def loosely_aligned(Y: T.Tensor((1,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    held = T.alloc_shared((32,), "uint8", layout="default", align=1)
    r = T.alloc_local((1,), "uint8", layout="default")
    T.cuda.tile.apply(T.ptx["ld.shared.b8"], r, held.view(32, 1).sub[T.cuda.lane_id(), :])


def test_a_base_within_a_word_is_not_judged() -> None:
    assert "aligned to 1 bytes" in loosely_aligned.check(Y).banks[0].unknown


# --- where it is seen


COLUMN = Load("float32", 4, 1, 1, 32, 32)


def test_stats_list_conflicts_when_printed() -> None:
    clean = load.compile(Y, Load("float32", 4, 1, 32, 32, 32), target="sm_80").stats
    stats = load.compile(Y, COLUMN, target="sm_80").stats
    (line,) = stats.bank_conflicts
    assert line in str(stats).splitlines()
    assert "ld.shared.b32 on held: 32-way bank conflict, 64 wavefronts, 2 without" in line
    assert clean.bank_conflicts == () and "conflict" not in str(clean)


def test_rounds_of_an_unrolled_loop_have_one_line() -> None:
    variant = guarded.compile(Y, "unrolled", target="sm_80")
    assert [b.conflict_degree for b in variant.banks] == [32] * 3
    assert len(variant.stats.bank_conflicts) == 1


def test_compiling_does_not_look_for_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(banks, "bank_report", lambda *a: calls.append(a) or ())
    variant = load.compile(Y, COLUMN, target="sm_86", fresh=True)
    _ = repr(variant.stats)
    assert calls == []
    assert variant.banks == variant.banks == () and len(calls) == 1


def test_a_function_with_faults_has_no_report() -> None:
    @tile.jit
    def wrong(Y: T.Tensor((1,), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        held = T.alloc_shared((32,), "float32", layout="default")
        r = T.alloc_local((2,), "float32", layout="default")
        T.cuda.tile.apply(T.ptx["ld.shared.b32"], r, held[0:2])

    with pytest.raises(ContractError):
        wrong.check(Y)
    function = wrong.latest.function
    with pytest.raises(ContractError):
        bank_report(function, FAMILIES)
