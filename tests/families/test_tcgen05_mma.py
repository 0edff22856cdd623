"""The contract of tcgen05.mma: products in tensor memory against numpy, on the simulator and on a GPU that
has them; what is emitted and assembles; refusals at the nearest illegal value.

The oracle is numpy and the contract's formulas: where elements lie in shared memory (rows of panels, swizzled)
and in tensor memory (lanes and columns of a datapath, bytes of scale factors), what codes mean. It imports
nothing from the family. Values are such that every sum is exact, however it is rounded on the way
(tests/sim/test_numeric_tcgen05.py is about rounding).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.families.case import Case
from tests.lib.blackwell import TARGETS
from tests.tile import kit
from tests.tile.kit import apply, codes, issues, text
from tilejit import T, dtypes, layout
from tilejit.errors import SimulationFault, TargetError
from tilejit.ir import build, nodes, reinterpret, views
from tilejit.target import Target

# --- the oracle: numbers


@dataclass(frozen=True)
class Number:
    """A format: its dtype in memory, bits, and the exponent and mantissa of a float (0, 0: an integer)."""

    stored: str
    bits: int
    exponent: int = 0
    mantissa: int = 0

    @property
    def stored_bits(self) -> int:
        return {"float4_e2m1fn": 4, "float32": 32, "float16": 16, "bfloat16": 16}.get(
            self.stored, 8
        )

    def values(self, codes: np.ndarray) -> np.ndarray:
        codes = codes.astype(np.int64)
        if self.exponent == 0:
            return codes.astype(np.int8 if self.stored == "int8" else np.uint8).astype(np.float64)
        if self.bits == 32:
            return codes.astype(np.uint32).view(np.float32).astype(np.float64)
        bias = (1 << self.exponent - 1) - 1
        power = codes >> self.mantissa & (1 << self.exponent) - 1
        fraction = (codes & (1 << self.mantissa) - 1) / (1 << self.mantissa)
        sign = np.where(codes >> self.exponent + self.mantissa & 1, -1.0, 1.0)
        scale = 2.0 ** (np.maximum(power, 1) - bias)
        return sign * scale * (fraction + (power > 0))


NUMBERS = {
    "float16": Number("float16", 16, 5, 10), "bfloat16": Number("bfloat16", 16, 8, 7),
    "tf32": Number("float32", 32, 8, 23),
    "float8_e4m3fn": Number("float8_e4m3fn", 8, 4, 3), "float8_e5m2": Number("float8_e5m2", 8, 5, 2),
    "float6_e2m3fn": Number("uint8", 6, 2, 3), "float6_e3m2fn": Number("uint8", 6, 3, 2),
    "float4_e2m1fn": Number("uint8", 4, 2, 1), "packed": Number("float4_e2m1fn", 4, 2, 1),
    "int8": Number("int8", 8), "uint8": Number("uint8", 8),
}  # fmt: skip
"""By format; ``packed`` is float4_e2m1fn where two lie in a byte."""


def codes_of(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random codes of small values."""
    number = NUMBERS[name]
    every = np.arange(1 << min(number.bits, 16))
    if number.bits == 32:
        return rng.integers(-3, 4, shape).astype(np.float32).view(np.uint32)
    values = number.values(every)
    small = every if number.exponent == 0 else every[(np.abs(values) <= 3) & (values * 4 % 2 == 0)]
    return rng.choice(small, shape).astype(np.uint32)


SCALES = {
    "float8_e8m0fnu": lambda codes: 2.0 ** (codes.astype(np.float64) - 127),
    "float8_e4m3fn": lambda codes: NUMBERS["float8_e4m3fn"].values(codes & 0x7F),
}
SCALE_CODES = {"float8_e8m0fnu": [126, 127, 128], "float8_e4m3fn": [0x30, 0x38, 0x40]}
DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


# --- the oracle: memory


def in_shared(codes: np.ndarray, number: Number, major: str, swizzle: int, rng: Any) -> np.ndarray:
    """The words of a tile (rows, K): panels of so many bytes, rows one after another, swizzled."""
    table = codes if major == "k" else codes.T
    rows = packed_rows(table, number, rng)
    height, width = rows.shape
    panel = max(swizzle, 16)
    row, byte = np.arange(height)[:, None], np.arange(width)
    at = byte // panel * (panel * height) + row * panel + byte % panel
    if major == "mn" and number.stored_bits == 32:
        at = at ^ (at >> 2 & 96)
    else:
        at = at ^ (at >> 3 & (panel - 16))
    found = np.zeros(rows.size, np.uint8)
    found[at] = rows
    return found.view(np.uint32)


def packed_rows(codes: np.ndarray, number: Number, rng: Any) -> np.ndarray:
    """Rows of codes as bytes in shared memory."""
    height, width = codes.shape
    if number.bits >= 8:
        return np.ascontiguousarray(codes.astype(f"<u{number.bits // 8}")).view(np.uint8)
    bits = (codes[..., None] >> np.arange(number.bits) & 1).astype(np.uint8)
    if number.stored_bits == 4:
        return np.packbits(bits.reshape(height, -1), axis=-1, bitorder="little")
    blocks = rng.integers(0, 256, (height, width // 16, 16), np.uint8)  # padding is anything
    full = np.packbits(bits.reshape(height, width // 16, -1), axis=-1, bitorder="little")
    blocks[..., : full.shape[-1]] = full
    return blocks.reshape(height, -1)


def in_cells(codes: np.ndarray, number: Number) -> np.ndarray:
    """Rows of codes as 32-bit cells in tensor memory."""
    if number.bits < 8 and number.stored_bits == 8:
        codes = codes << (2 if number.bits == 4 else 0)
    if number.stored_bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
        return np.ascontiguousarray(codes.astype(np.uint8)).view(np.uint32)
    return np.ascontiguousarray(codes.astype(f"<u{number.stored_bits // 8}")).view(np.uint32)


def places(m: int, ctas: int, ws: bool, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Lanes and columns of D in a CTA, by the datapath of M."""
    r, c = np.meshgrid(np.arange(m // ctas), np.arange(n), indexing="ij")
    match m, ctas, ws:
        case (128, 2, _) | (64, 1, True):
            return r + 64 * (c // (n // 2)), c % (n // 2)
        case 64, 1, False:
            return 32 * (r // 16) + r % 16, c
        case 32, _, _:
            return r + 32 * (c // (n // 4)), c % (n // 4)
        case _:
            return r, c


# --- one case: a call with its data


@dataclass(frozen=True)
class Call:
    """One tile call. ``repeats``: of M, N, K."""

    kind: str
    m: int
    n: int
    a: str
    b: str
    d: str = "float32"
    ctas: int = 1
    ws: bool = False
    a_space: str = "shared"
    a_major: str = "k"
    b_major: str = "k"
    swizzles: tuple[int | None, int | None] = (None, None)
    """Of A and B; None is the widest that a row of the tile has."""
    repeats: tuple[int, int, int] = (1, 1, 1)
    scale: str = ""
    vector: str = ""
    factors: int = 0
    extra: tuple[tuple[str, Any], ...] = ()
    """Further keywords of the call."""

    def __repr__(self) -> str:
        parts = (
            self.kind, self.vector, "ws" * self.ws, f"{self.m}x{self.n}", f"cta{self.ctas}", self.a, self.b,
            self.d, self.a_space, self.a_major + self.b_major, *self.swizzles,
            *self.repeats, *(k for k, _ in self.extra),
        )  # fmt: skip
        return "-".join(str(p) for p in parts if p not in ("", None))

    @property
    def k(self) -> int:
        return DEPTH[self.kind]

    @property
    def opcode(self) -> str:
        qualifiers = ".block_scale" * bool(self.scale) + f".{self.vector}" * bool(self.vector)
        return f"tcgen05.mma{'.ws' * self.ws}.cta_group::{self.ctas}.kind::{self.kind}{qualifiers}"

    @property
    def rows(self) -> int:
        """Of M in a CTA."""
        return self.m // self.ctas

    @property
    def keywords(self) -> dict[str, Any]:
        return dict(self.extra)

    def number(self, side: str) -> Number:
        name = self.a if side == "a" else self.b
        return NUMBERS["packed" if self.kind in ("mxf4", "mxf4nvf4") else name]

    def tile(self, side: str) -> tuple[int, int, str, int]:
        """Rows of M or N, K, major order and swizzle of all repeats in a CTA's shared memory."""
        first = side == "a"
        rows = self.repeats[0] * self.rows if first else self.repeats[1] * self.n // self.ctas
        deep, major = self.repeats[2] * self.k, self.a_major if first else self.b_major
        swizzle = self.swizzles[0 if first else 1]
        row_bytes = (deep if major == "k" else rows) * self.number(side).stored_bits // 8
        widest = next(s for s in (128, 64, 32, 0) if s == 0 or row_bytes % s == 0)
        return rows, deep, major, widest if swizzle is None else swizzle

    @property
    def widths(self) -> dict[str, int]:
        """Columns of tensor memory of each operand there."""
        m, n, k = self.repeats
        parts = {(128, 2, False): 2, (64, 1, True): 2, (32, 1, True): 4}.get(
            (self.m, self.ctas, self.ws), 1
        )
        found = {"d": m * n * (self.n // parts)}
        if self.a_space == "tmem":
            found["a"] = m * k * (self.k * self.number("a").stored_bits // 32)
        if self.scale:
            found["sfa"] = m * k * -(-self.rows // 32)
            found["sfb"] = n * k * -(-self.n // parts // 32)
        return found

    @property
    def first(self) -> dict[str, int]:
        starts = np.cumsum([0, *self.widths.values()])
        return dict(zip(self.widths, starts.tolist()))

    @property
    def columns(self) -> int:
        """Allocated: a power of two."""
        return max(32, 1 << (sum(self.widths.values()) - 1).bit_length())


@dataclass
class Data:
    """What a call works on, by CTA: words in shared memory, cells before and after."""

    a: np.ndarray
    b: np.ndarray
    before: np.ndarray
    after: np.ndarray


def data_of(call: Call, seed: int = 5, b_order: np.ndarray | None = None) -> Data:
    """``b_order``: rows of B as they lie in shared memory, if not one after another."""
    rng = np.random.default_rng(seed)
    many_m, many_n, many_k = call.repeats
    banks = 2 if call.ws and call.m == 64 and call.a_space == "tmem" else 1
    a = codes_of(
        "packed" if call.number("a").stored_bits == 4 else call.a,
        (banks, many_m, call.ctas, call.rows, many_k * call.k),
        rng,
    )
    b = codes_of(
        "packed" if call.number("b").stored_bits == 4 else call.b,
        (many_n, call.n, many_k * call.k),
        rng,
    )
    before = rng.integers(0, 1 << 32, (call.ctas, 128, call.columns), np.uint32)
    sfa = sfb = None
    if call.scale:
        choices = SCALE_CODES[call.scale]
        sfa = rng.choice(choices, (many_m, call.ctas, call.rows, many_k, call.factors))
        sfb = rng.choice(choices, (many_n, call.n, many_k, call.factors))
    store_operands(call, before, a, sfa, sfb)
    after = before.copy()
    multiply(call, before, after, a, b, sfa, sfb, rng)
    per_cta_a = [a[0, :, cta].reshape(-1, many_k * call.k) for cta in range(call.ctas)]
    half, stored = call.n // call.ctas, b if b_order is None else b[:, b_order]
    per_cta_b = [
        stored[:, cta * half : (cta + 1) * half].reshape(-1, many_k * call.k)
        for cta in range(call.ctas)
    ]
    return Data(
        np.stack([in_shared(x, call.number("a"), *call.tile("a")[2:], rng) for x in per_cta_a]),
        np.stack([in_shared(x, call.number("b"), *call.tile("b")[2:], rng) for x in per_cta_b]),
        before, after,
    )  # fmt: skip


def store_operands(call: Call, cells: np.ndarray, a: Any, sfa: Any, sfb: Any) -> None:
    """A and the scale factors, where they are in tensor memory."""
    many_m, many_n, many_k = call.repeats
    if call.a_space == "tmem":
        width = call.k * call.number("a").stored_bits // 32
        lanes, _ = places(call.m, call.ctas, call.ws, call.n)
        for m, k, cta in itertools.product(range(many_m), range(many_k), range(call.ctas)):
            at = call.first["a"] + (m * many_k + k) * width
            for part, lane in enumerate(dict.fromkeys(map(tuple, lanes.T))):
                rows = a[min(part, len(a) - 1), m, cta, :, k * call.k : (k + 1) * call.k]
                cells[cta, np.array(lane), at : at + width] = in_cells(rows, call.number("a"))
    for name, factors in (("sfa", sfa), ("sfb", sfb)):
        if factors is None:
            continue
        # SFB of a pair's M=128: a half of the rows in lanes 0 to 63, the other in 64 to 127.
        parts = 2 if name == "sfb" and (call.m, call.ctas) == (128, 2) else 1
        height = factors.shape[-3] // parts
        slabs = -(-height // 32)
        for repeat, k, cta in itertools.product(
            range(len(factors)), range(many_k), range(call.ctas)
        ):
            group = factors[repeat, cta] if name == "sfa" else factors[repeat]
            together = share(call.factors, many_k)
            first = call.first[name] + (repeat * (many_k // together) + k // together) * slabs
            for row, each in enumerate(group[:, k]):
                for f, code in enumerate(each):
                    byte = k % together * call.factors + f
                    part, inside = divmod(row, height)
                    for copy in range(4 // parts):
                        lane = 128 // parts * part + copy * 32 + inside % 32
                        cell = cells[cta, lane : lane + 1, first + inside // 32]
                        cell[:] = cell & ~np.uint32(255 << 8 * byte) | np.uint32(
                            int(code) << 8 * byte
                        )


def share(factors: int, repeats: int) -> int:
    """Repeats of K whose scale factors are in one cell."""
    return int(np.gcd(4 // factors, repeats))


def multiply(
    call: Call, before: np.ndarray, after: np.ndarray, a: Any, b: Any, sfa: Any, sfb: Any, rng: Any
) -> None:
    many_m, many_n, many_k = call.repeats
    keywords = call.keywords
    lanes, columns = places(call.m, call.ctas, call.ws, call.n)
    width = int(columns.max()) + 1
    left, right = call.number("a").values(a), call.number("b").values(b)
    left = -left if keywords.get("neg_a") else left
    right = -right if keywords.get("neg_b") else right
    if sfa is not None:
        block = call.k // call.factors
        left = left * np.repeat(SCALES[call.scale](sfa).reshape(*sfa.shape[:3], -1), block, -1)
        right = right * np.repeat(SCALES[call.scale](sfb).reshape(*sfb.shape[:2], -1), block, -1)
    kept = np.zeros((call.ctas, 128), bool)
    if "disable_output_lane" in keywords:
        words = np.array(keywords["disable_output_lane"], np.uint32).reshape(call.ctas, 4)
        kept = (words[..., None] >> np.arange(32) & 1).astype(bool).reshape(call.ctas, 128)
    zeros = np.array(keywords.get("zeros", np.zeros(call.n)), bool)
    for m, n, cta in itertools.product(range(many_m), range(many_n), range(call.ctas)):
        at = columns + call.first["d"] + (m * many_n + n) * width
        old = rng.integers(-4, 5, lanes.shape)
        before[cta, lanes, at] = to_cells(old, call.d)
        part = (
            np.arange(call.n) // (call.n // len(left)) if len(left) > 1 else np.zeros(call.n, int)
        )
        total = np.einsum("nmk,nk->mn", left[part, m, cta], np.where(zeros[:, None], 0, right[n]))
        if keywords.get("accum"):
            total = total + old
        after[cta, lanes, at] = np.where(
            kept[cta][lanes], before[cta, lanes, at], to_cells(total, call.d)
        )


def to_cells(values: np.ndarray, d: str) -> np.ndarray:
    """D's cells; of a float16's the high half is what it was, 0 here."""
    if d == "int32":
        return values.astype(np.int64).astype(np.int32).view(np.uint32)
    if d == "float16":
        halves = values.astype(np.float16)
        assert np.array_equal(halves.astype(np.float64), values)
        return halves.view(np.uint16).astype(np.uint32)
    return (values + 0.0).astype(np.float32).view(np.uint32)


# --- one kernel for every call

CHUNK = 32
"""Columns that are stored and loaded at once."""


@tile.jit
def product(A, B, C, N, D, call: T.constexpr, plan: T.constexpr):
    """A and B (CTA, words) as they lie in shared memory; C and D (CTA, lane, column): all cells before and
    after. N: keywords that are known at run time only."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=A.shape[0], block=128, cluster=plan.cluster))
    t, rank = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    slot = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default")
    a = T.alloc_shared((A.shape[1],), "uint32", layout="default", align=1024)
    b = T.alloc_shared((B.shape[1],), "uint32", layout="default", align=1024)
    for i in range(t, A.shape[1], 128):
        a[i] = A[rank, i]
    for i in range(t, B.shape[1], 128):
        b[i] = B[rank, i]
    T.ptx["fence.proxy.async.shared::cta"]()
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.alloc.{plan.pair}.sync.aligned.shared::cta.b32"](
            slot.ptr_to([0]), plan.columns
        )
        T.ptx[f"tcgen05.relinquish_alloc_permit.{plan.pair}.sync.aligned"]()
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    cells = T.cuda.decl_tmem(slot[0], (4, 32, plan.columns), "uint32", layout=plan.slabs)
    found = T.alloc_local((4, 32, CHUNK), "uint32", layout=plan.registers)
    mine = found.view(CHUNK, layout="default")
    for c in T.unroll(plan.columns // CHUNK):
        for i in T.unroll(CHUNK):
            mine[i] = C[rank, t, c * CHUNK + i]
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"], cells[:, :, c * CHUNK : (c + 1) * CHUNK], found,
            scope="warpgroup",
        )  # fmt: skip
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    synchronise(plan.cluster)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if t == 0 and rank % call.ctas == 0:
        base = slot[0]
        operands = (tmem(base, plan.d), a_operand(base, a, call, plan), shared(b, plan.b))
        if call.scale != "":
            operands = (*operands, tmem(base, plan.sfa), tmem(base, plan.sfb))
        issue(call, plan, operands, N)
        commit(done, plan.pair, call.ctas)
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    for c in T.unroll(plan.columns // CHUNK):
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"], found, cells[:, :, c * CHUNK : (c + 1) * CHUNK],
            scope="warpgroup",
        )  # fmt: skip
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for i in T.unroll(CHUNK):
            D[rank, t, c * CHUNK + i] = mine[i]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    synchronise(plan.cluster)
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.dealloc.{plan.pair}.sync.aligned.b32"](slot[0], plan.columns)


@tile.jit
def issue(call: T.constexpr, plan: T.constexpr, operands, N):
    words = plan.keywords
    accum, lanes, mask = words.accum, words.disable_output_lane, words.zero_column_mask
    if words.run_time:
        accum = N[0] != 0
        if lanes is not None:
            lanes = (N[1], N[2], N[3], N[4])
        if mask is not None:
            mask = T.uint64(N[6]) << 32 | T.uint64(N[5])
    T.cuda.tile.apply(
        T.ptx[call.opcode], *operands, instruction_shape=(call.m, call.n, call.k), a_major=call.a_major,
        b_major=call.b_major, a_format=plan.a_format, b_format=plan.b_format, neg_a=words.neg_a,
        neg_b=words.neg_b, accum=accum, sat_d=words.sat_d, disable_output_lane=lanes,
        zero_column_mask=mask,
    )  # fmt: skip


@tile.jit
def tmem(base, operand: T.constexpr):
    return T.cuda.decl_tmem(
        base + T.uint32(operand.first), operand.shape, operand.dtype, layout=operand.layout
    )


@tile.jit
def shared(words, operand: T.constexpr):
    tiles = words.view(operand.dtype).view(*operand.tile, layout=operand.layout)
    return tiles.view(*operand.view).permute(*operand.order)


@tile.jit
def a_operand(base, words, call: T.constexpr, plan: T.constexpr):
    if call.a_space == "tmem":
        return tmem(base, plan.a)
    return shared(words, plan.a)


@tile.jit
def synchronise(cluster: T.constexpr):
    if cluster is None:
        T.cuda.cta_sync()
    else:
        T.cuda.cluster_sync()


@tile.jit
def commit(done, pair: T.constexpr, ctas: T.constexpr):
    """Arrives in both CTAs of a pair."""
    if ctas == 1:
        T.ptx[f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))
    else:
        T.ptx[
            f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        ](done.ptr_to([0]), T.uint16(3))


KEYWORDS = {
    "neg_a": False, "neg_b": False, "accum": False, "sat_d": False, "disable_output_lane": None,
    "zero_column_mask": None, "run_time": False,
}  # fmt: skip


def plan_of(call: Call) -> Case:
    many_m, many_n, many_k = call.repeats
    banks = (2,) if call.ws and call.m == 64 else ()
    make = T.cuda.tmem_mma_operand_layout
    given = {"M": call.m, "cta_group": call.ctas, "ws": call.ws}

    def in_tmem(name: str, shape: tuple[int, ...], dtype: str) -> Case:
        operand = {"d": "D", "a": "A"}.get(name, name.upper())
        if call.ws and call.m == 32:
            laid = T.cuda.tmem_datapath_layout("G", 32, call.n)
        else:
            laid = make(operand, shape, dtype, **given)
        return Case(first=call.first[name], shape=shape, dtype=dtype, layout=laid)

    def in_smem(side: str) -> Case:
        high, deep, major, swizzle = call.tile(side)
        many = many_m if side == "a" else many_n
        tile_, view, order = (high, deep), (many, high // many, many_k, call.k), (0, 2, 1, 3)
        if major == "mn":
            tile_, view, order = (deep, high), (many_k, call.k, many, high // many), (2, 0, 3, 1)
        stored = call.number(side).stored
        laid = T.cuda.tcgen05_shared_layout(tile_, stored, swizzle, major=major)
        return Case(tile=tile_, view=view, order=order, dtype=stored, layout=laid)

    a = call.number("a")
    plan = Case(
        pair=f"cta_group::{call.ctas}", columns=call.columns,
        cluster=None if call.ctas == 1 else (2, 1, 1),
        slabs=f"(4,32,{call.columns}):(32@TLane,1@TLane,1@TCol)",
        registers=T.cuda.tcgen05_ld_layout("32x32b", CHUNK, warps=(4,)),
        a_format=call.a, b_format=call.b,
        keywords=Case(**{k: call.keywords.get(k, v) for k, v in KEYWORDS.items()}),
        d=in_tmem("d", (many_m, many_n, call.rows, call.n), call.d),
        a=in_tmem("a", (many_m, many_k, *banks, call.rows, call.k), a.stored) if call.a_space == "tmem"
        else in_smem("a"),
        b=in_smem("b"),
        sfa=None, sfb=None,
    )  # fmt: skip
    if call.scale:
        plan.sfa = in_tmem("sfa", (many_m, many_k, call.rows, call.factors), call.scale)
        plan.sfb = in_tmem("sfb", (many_n, many_k, call.n, call.factors), call.scale)
    return plan


def run(device: str, call: Call) -> None:
    found, expected = multiplied(device, call, data_of(call)), data_of(call).after
    if call.d == "float16":
        # The high half of an accumulator's cell means nothing.
        lanes, columns = places(call.m, call.ctas, call.ws, call.n)
        width = int(columns.max()) + 1
        for repeat in range(call.repeats[0] * call.repeats[1]):
            at = columns + call.first["d"] + repeat * width
            found[:, lanes, at] &= 0xFFFF
            expected[:, lanes, at] &= 0xFFFF
    assert np.array_equal(found, expected)


def numbers_of(call: Call) -> np.ndarray:
    """The keywords that the kernel may read at run time."""
    words = call.keywords
    mask = words.get("zero_column_mask", 0)
    lanes = words.get("disable_output_lane", (0,) * 4)[:4]
    return np.array([words.get("accum", False), *lanes, mask & 0xFFFFFFFF, mask >> 32], np.uint32)


def multiplied(device: str, call: Call, data: Data) -> np.ndarray:
    """All cells afterwards."""
    d = torch.zeros(data.before.shape, dtype=torch.uint32, device=device)
    given = (data.a, data.b, data.before, numbers_of(call))
    tensors = [torch.from_numpy(x).to(device) for x in given]
    with tile.simulation(target="sm_100a"):
        product(*tensors, d, call, plan_of(call))
    return d.cpu().numpy()


def on_this(device: str, call: Call) -> None:
    if device == "cuda":
        here = Target.of_capability(*torch.cuda.get_device_capability())
        wanted = "sm_100a|sm_110a" if call.kind == "i8" else "sm_100a|sm_103a|sm_110a"
        if not here.supports(wanted):
            pytest.skip(f"{call.opcode} needs {wanted}")


# --- the cases

F16 = Call("f16", 128, 64, "float16", "float16")
BF16 = replace(F16, a="bfloat16", b="bfloat16")
TF32 = Call("tf32", 128, 32, "tf32", "tf32")
F8 = Call("f8f6f4", 128, 32, "float8_e4m3fn", "float8_e5m2")
I8 = Call("i8", 128, 32, "int8", "uint8", d="int32")
MXF8 = Call(
    "mxf8f6f4",
    128,
    64,
    "float8_e4m3fn",
    "float8_e5m2",
    scale="float8_e8m0fnu",
    vector="block32",
    factors=1,
)
MXF4 = replace(MXF8, kind="mxf4", a="float4_e2m1fn", b="float4_e2m1fn", factors=2)
NVF4 = replace(MXF4, kind="mxf4nvf4", vector="block16", scale="float8_e4m3fn", factors=4)

MASK = (1 << 39) | (1 << 40) | (2 << 48)
"""Three columns used, two zeros, and so on, in every part of the columns."""


def some(call: Call, **changes: Any) -> Call:
    return replace(call, **changes)


def masked(call: Call, bits: int, zeros: np.ndarray) -> Call:
    return some(call, extra=(("zero_column_mask", bits), ("zeros", tuple(zeros.tolist()))))


def at_run_time(call: Call) -> Call:
    return some(call, extra=(*call.extra, ("run_time", True)))


KINDS = [
    F16, BF16, some(F16, b="bfloat16"), some(F16, d="float16"), TF32, F8, some(F8, d="float16"), I8,
    *(some(F8, a=a, b=b) for a, b in itertools.product(
        ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"), ("float8_e4m3fn", "float4_e2m1fn"))),
    some(I8, a="uint8", b="int8"),
    MXF8, some(MXF8, a="float6_e3m2fn", b="float4_e2m1fn"), some(MXF8, vector=""),
    some(MXF8, vector="scale_vec::1X"),
    MXF4, some(MXF4, vector=""), some(MXF4, vector="scale_vec::2X"),
    NVF4, some(NVF4, scale="float8_e8m0fnu"), some(NVF4, vector="scale_vec::4X"),
    some(MXF4, kind="mxf4nvf4"), some(MXF4, kind="mxf4nvf4", vector="scale_vec::2X"),
]  # fmt: skip
SHAPES = [
    *(some(F16, m=m, n=n) for m, n in ((64, 8), (64, 24), (64, 256), (128, 16), (128, 48), (128, 256))),
    *(some(F16, ctas=2, m=m, n=n) for m, n in ((128, 16), (128, 64), (256, 16), (256, 256))),
    *(some(F16, ws=True, m=m, n=n) for m, n in itertools.product((32, 64, 128), (64, 128, 256))),
    *(some(I8, m=m, n=n) for m, n in ((64, 8), (64, 24), (128, 48))),
    some(I8, ctas=2, m=256, n=96), some(I8, ws=True, m=64, n=64),
    some(TF32, ctas=2, m=128), some(TF32, ws=True, m=32, n=64), some(F8, ws=True, m=64, n=64),
    some(F8, ctas=2, m=256), some(MXF8, n=24), some(MXF8, n=256),
    some(MXF8, ctas=2, m=256), some(MXF8, ctas=2, m=128), some(MXF8, ctas=2, m=128, n=32),
    some(NVF4, ctas=2, m=128, n=128, repeats=(1, 2, 2)), some(MXF4, ctas=2, m=256, n=128), some(NVF4, ctas=2, m=256, n=32),
    some(F16, d="float16", m=64), some(F16, d="float16", ctas=2, m=128),
]  # fmt: skip
MAJORS = [
    *(
        some(call, a_major=a, b_major=b)
        for call in (F16, TF32, some(F8, m=64), I8, MXF8)
        for a, b in (("mn", "k"), ("k", "mn"), ("mn", "mn"))
    ),
    *(
        some(F16, repeats=(1, 1, 4), swizzles=(a, b))
        for a, b in ((0, 32), (32, 64), (64, 128), (128, 0))
    ),
    *(
        some(call, a_major="mn", b_major="mn", swizzles=(a, b))
        for call in (F16, F8)
        for a, b in ((0, 32), (32, 0), (64, 32))
    ),
    some(F16, ctas=2, m=256, a_major="mn", b_major="mn"), some(F8, b_major="mn", n=16, swizzles=(None, 0)),
    some(F8, ctas=2, m=128, b_major="mn", n=64), some(NVF4, repeats=(1, 1, 4)),
]  # fmt: skip
IN_TMEM = [
    *(some(call, a_space="tmem") for call in (F16, TF32, F8, I8, MXF8, MXF4, NVF4)),
    *(
        some(F8, a_space="tmem", a=a)
        for a in ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
    ),
    *(some(F16, a_space="tmem", m=m, ctas=ctas) for m, ctas in ((64, 1), (128, 2), (256, 2))),
    *(some(call, a_space="tmem", ws=True, m=m, n=64) for call in (F16, F8) for m in (64, 128)),
    some(F16, a_space="tmem", ws=True, m=64, n=128, repeats=(2, 1, 2)),
    some(F16, a_space="tmem", repeats=(2, 2, 3)),
]  # fmt: skip
REPEATS = [
    some(F16, repeats=(2, 2, 4)), some(F16, m=64, n=32, repeats=(2, 3, 2)), some(TF32, repeats=(1, 2, 2)),
    some(F16, ctas=2, m=128, n=32, repeats=(2, 2, 2)), some(MXF8, repeats=(1, 2, 4)),
    some(MXF8, n=32, repeats=(2, 1, 3)), some(MXF4, n=32, repeats=(1, 1, 4)), some(NVF4, repeats=(2, 1, 2)),
    some(F16, ws=True, m=64, repeats=(2, 1, 2)),
]  # fmt: skip
KEYWORD_CASES = [
    some(F16, extra=(("accum", True),)), some(F16, d="float16", extra=(("accum", True),)),
    some(F16, repeats=(1, 2, 2), extra=(("accum", True),)), some(I8, extra=(("accum", True),)),
    some(MXF8, extra=(("accum", True),)), some(I8, extra=(("sat_d", True),)),
    some(F16, extra=(("neg_a", True),)), some(TF32, extra=(("neg_b", True),)),
    some(F8, extra=(("neg_a", True), ("neg_b", True))), some(NVF4, extra=(("neg_a", True),)),
    some(F16, extra=(("disable_output_lane", (1, 2, 0xFFFF0000, 0x80000001)),)),
    some(F16, m=64, extra=(("accum", True), ("disable_output_lane", (1, 2, 4, 8)))),
    some(
        F16, ctas=2, m=256,
        extra=(("disable_output_lane", (1, 2, 0, 0xF0, 0, 0xFFFFFFFF, 7, 0x80000000)),),
    ),
    masked(some(F16, ws=True), MASK, np.arange(64) % 5 >= 3),
    masked(some(F16, ws=True, m=64), MASK | 1 << 33 | 1 << 8, np.concatenate(
        [np.arange(32) % 5 >= 3, (np.arange(32) + 1) % 5 < 2])),
    masked(some(F16, ws=True, m=32), MASK | 2 << 16, np.concatenate(
        [(np.arange(16) + start) % 5 >= 3 for start in (0, 0, 2, 0)])),
    masked(some(I8, ws=True, n=64), 0, np.zeros(64, bool)),
    at_run_time(some(F16, extra=(("accum", True), ("disable_output_lane", (1, 2, 0xFFFF0000, 4))))),
    at_run_time(some(MXF8)),
    at_run_time(masked(some(F16, ws=True), MASK, np.arange(64) % 5 >= 3)),
]  # fmt: skip
CASES = [*KINDS, *SHAPES, *MAJORS, *IN_TMEM, *REPEATS, *KEYWORD_CASES]


def test_the_cases_are_different() -> None:
    assert len(set(CASES)) == len(CASES)


@pytest.mark.parametrize("call", CASES, ids=repr)
def test_products(device: str, call: Call) -> None:
    on_this(device, call)
    run(device, call)


def test_splitting_n_of_two_banks(device: str) -> None:
    """An M=64 .ws product of 128 columns has the first bank of A in columns 0 to 63. Two of 64 columns have
    it in 0 to 31 of each: B's rows are brought together that belong together, and D's columns are seen as
    (instruction, bank, 32). Columns one after another are not the same product."""
    whole = some(F16, ws=True, m=64, n=128, a_space="tmem")
    split = some(whole, n=64, repeats=(1, 2, 1))
    on_this(device, whole)
    order = np.arange(128).reshape(2, 2, 32).transpose(1, 0, 2).reshape(-1)
    wanted = multiplied(device, whole, data_of(whole))
    assert np.array_equal(wanted, data_of(whole).after)
    assert np.array_equal(multiplied(device, split, data_of(whole, b_order=order)), wanted)
    assert not np.array_equal(multiplied(device, split, data_of(whole)), wanted)


# --- what is emitted and assembles


def by_form(calls: list[Call]) -> list[Call]:
    """One call of each form, and one more with repeats."""
    found: dict[Any, Call] = {}
    for call in calls:
        masks = [
            k for k, _ in call.extra if k in ("disable_output_lane", "zero_column_mask", "run_time")
        ]
        found.setdefault((call.opcode, call.a_space, call.repeats == (1, 1, 1), *masks), call)
    return list(found.values())


def arguments(call: Call) -> list[torch.Tensor]:
    data = data_of(call)
    given = (data.a, data.b, data.before, numbers_of(call), data.before)
    return [torch.from_numpy(x) for x in given]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", by_form(CASES), ids=repr)
def test_assembles(call: Call, target: str) -> None:
    if call.kind == "i8" and target != "sm_100a":
        pytest.skip("kind::i8 is not in sm_103a")
    made = product.compile(*arguments(call), call, plan_of(call), target=target)
    assert made.ptx.count(f"{call.opcode} [") == np.prod(call.repeats)


# --- steps, of calls built by hand


def view_of(name: str, operand: Any, space: str) -> nodes.View:
    """An operand of a plan as a whole buffer, seen as the call takes it."""
    shape = operand.tile if space == "shared" else operand.shape
    laid = layout.parse(operand.layout) if isinstance(operand.layout, str) else operand.layout
    kind = nodes.TensorType(
        shape, dtypes.dtype(operand.dtype), laid, space, 1024 if space == "shared" else 4
    )
    view = kit.whole(nodes.Var(name, kind))
    return (
        view if space == "tmem" else views.permute(views.reshape(view, operand.view), operand.order)
    )


def operands_of(call: Call, **changes: Any) -> dict[str, Any]:
    plan = plan_of(call)
    spaces = {"d": "tmem", "a": call.a_space, "b": "shared", "sfa": "tmem", "sfb": "tmem"}
    names = ("d", "a", "b", *(("sfa", "sfb") if call.scale else ()))
    found = {name: view_of(name, getattr(plan, name), spaces[name]) for name in names}
    return {**found, **changes}


def literal(value: Any) -> nodes.Expr:
    """A keyword's value as the frontend hands it on."""
    if isinstance(value, nodes.Expr):
        return value
    if isinstance(value, bool):
        return build.const(value, dtypes.bool_)
    if isinstance(value, int):
        return build.const(value, dtypes.uint64 if value >> 31 else dtypes.int32)
    return nodes.Text(value) if isinstance(value, str) else nodes.Static(value)


ONE_THREAD = kit.op("eq", kit.hw("tid"), 0)


def program(
    call: Call, keywords: dict[str, Any] | None = None, guard: nodes.Expr | None = ONE_THREAD,
    cluster: Any = "as the call", scope: str = "thread", **operands: Any,
) -> nodes.Function:  # fmt: skip
    """The call alone, in a kernel that declares its operands. None leaves a keyword out."""
    given = {
        "instruction_shape": (call.m, call.n, call.k), "a_major": call.a_major, "b_major": call.b_major,
        "a_format": call.a, "b_format": call.b,
        **{k: v for k, v in call.extra if k not in ("zeros", "run_time")}, **(keywords or {}),
    }  # fmt: skip
    named = {k: literal(v) for k, v in given.items() if v is not None}
    seen = operands_of(call, **operands)
    buffers = {v.buffer.name: v.buffer for v in seen.values() if isinstance(v, nodes.View)}
    declared = [
        nodes.DeclTmem(b, nodes.Const(0, nodes.UINT32))
        for b in buffers.values()
        if b.type.space == "tmem"
    ]
    body = apply(call.opcode, *seen.values(), scope=scope, **named)
    if cluster == "as the call":
        cluster = None if call.ctas == 1 else (2,)
        if call.ctas == 2 and guard is ONE_THREAD:
            guard = kit.op("and", guard, kit.op("eq", kit.hw("cluster_ctarank"), 0))
    return kit.kernel(
        *declared,
        body if guard is None else kit.guard(guard, body),
        target="sm_100a",
        cluster=cluster,
    )


@pytest.mark.parametrize("call", CASES, ids=repr)
def test_the_cases_are_legal_by_hand_too(call: Call) -> None:
    assert codes(program(call)) == [], text(program(call))


def test_order_and_predicates() -> None:
    """Batch, M, N, K; D is added to at every K but the first, or there too."""
    call = some(F16, repeats=(2, 2, 3))
    found = issues(program(call, {"accum": True}))
    assert [i.repeat for i in found] == list(itertools.product(range(2), range(2), range(3)))
    for accum, first in ((True, True), (False, False), (None, False)):
        adds = [i.operands[-1].items[0].expr.value for i in issues(program(call, {"accum": accum}))]
        assert adds == [k > 0 or first for _ in range(4) for k in range(3)]
    columns = [i.operands[0].offset_bytes for i in found]
    assert columns == [64 * tile_ for tile_ in range(4) for _ in range(3)]
    assert {i.form.spelling for i in found} == {call.opcode}
    assert len({i.operands[3] for i in found}) == 1


def test_batches_come_first() -> None:
    call = some(F16, repeats=(2, 2, 2))
    seen = operands_of(some(call, repeats=(4, 2, 2)))
    d, a = (views.reshape(seen[name], (2, 2, *seen[name].shape[1:])) for name in ("d", "a"))
    b = operands_of(some(call, repeats=(2, 4, 2)))["b"]
    b = views.reshape(b, (2, 2, *b.shape[1:]))
    found = issues(program(call, d=d, a=a, b=b))
    assert [i.repeat for i in found] == list(itertools.product(range(2), repeat=4))
    assert [i.operands[0].offset_bytes for i in found] == [64 * (n // 2) for n in range(16)]


def test_scale_factors_say_their_byte() -> None:
    """Four repeats of K share a column: the descriptor says the byte, the address the column."""
    found = issues(program(some(MXF8, repeats=(1, 1, 4))))
    words = [i.operands[3].items[0].expr.value for i in found]
    assert [(w >> 29 & 3, w >> 4 & 3) for w in words] == [(k, k) for k in range(4)]
    assert {i.operands[4].offset_bytes for i in found} == {0}
    other = some(MXF4, repeats=(1, 1, 4))
    words = [i.operands[3].items[0].expr.value for i in issues(program(other))]
    assert [(w >> 29 & 3, w >> 4 & 3) for w in words] == [(0, 0), (2, 2), (0, 0), (2, 2)]


def test_masks_that_change_nothing_are_left_out() -> None:
    (plain,) = issues(program(some(F16, extra=(("disable_output_lane", (0, 0, 0, 0)),))))
    assert len(plain.operands) == 5
    (kept,) = issues(program(some(F16, extra=(("disable_output_lane", (0, 0, 0, 1)),))))
    assert [v.expr.value for v in kept.operands[4].items] == [0, 0, 0, 1]


def counted(start: int, statement: nodes.Stmt, number: nodes.Var) -> nodes.For:
    first, last, step = (kit.i32(v) for v in (0, start, 1))
    return nodes.For(number, first, last, step, (statement,))


def test_a_run_time_column() -> None:
    """D and the scale factors of a stage that a loop chooses: whole columns are added to the address."""
    stage = nodes.Var("stage", nodes.INT32)
    d = tmem_view((2, 1, 128, 64), "(2,128,64):(64@TCol,1@TLane,1@TCol)", "float32", "d")
    notation = "(4,4,32,1):({}@TCol,4@TCol,1@TLane,1@TCol) + R[4:32@TLane]"

    def program_(columns: int) -> nodes.Function:
        sfa = tmem_view((4, 1, 128, 1), notation.format(columns), MXF8.scale, "sfa")
        part, factors = (
            nodes.Region(v, (stage, *(kit.i32(0),) * 3), (1, *v.shape[1:])) for v in (d, sfa)
        )
        seen = operands_of(MXF8, d=part, sfa=factors)
        body = apply(
            MXF8.opcode, *seen.values(), instruction_shape=nodes.Static((128, 64, 32))
        )  # fmt: skip
        tensors = [v.buffer for v in (d, sfa, seen["sfb"])]
        declared = [nodes.DeclTmem(b, nodes.Const(0, nodes.UINT32)) for b in tensors]
        return kit.kernel(
            *declared, kit.guard(ONE_THREAD, counted(2, body, stage)), target="sm_100a"
        )

    assert codes(program_(16)) == [], text(program_(16))
    (found,) = issues(program_(16))
    assert found.operands[0].base != found.operands[4].base
    assert codes(program_(1)) == ["tcgen05_mma/scale-origin"]
    assert "T.unroll" in text(program_(1))


def test_the_predicate_is_the_instructions() -> None:
    flag = kit.op("lt", kit.hw("tid"), 1)
    found = issues(program(some(F16, repeats=(1, 1, 2)), {"pred": flag}, guard=None))
    assert [i.pred for i in found] == [flag, flag]


# --- refusals at the nearest illegal value


def refused(code: str, *words: str, call: Call = F16, **options: Any) -> None:
    f = program(call, **options)
    name = code if "/" in code else f"tcgen05_mma/{code}"
    assert codes(f) == [name], text(f)
    for word in words:
        assert word in text(f), text(f)


@pytest.mark.parametrize(
    ("call", "shape", "words"),
    [
        (F16, (128, 64, 32), "K is 32, kind::f16 with cta_group::1 has 16"),
        (F16, (96, 64, 16), "M is 96, kind::f16 with cta_group::1 has 64 or 128"),
        (F16, (256, 64, 16), "cta_group::2; in one CTA they are M_repeat=2"),
        (F16, (128, 24, 16), "the nearest is 16 or 32"),
        (some(F16, m=64), (64, 12, 16), "the nearest is 8 or 16"),
        (F16, (128, 264, 16), "the nearest is 256"),
        (some(F16, ctas=2, m=256), (64, 64, 16), "M counts both CTAs"),
        (some(F16, ctas=2, m=256), (256, 24, 16), "the nearest is 16 or 32"),
        (some(F16, ws=True), (128, 96, 16), "N is 96, kind::f16 with cta_group::1 and .ws, M=128 has 64, 128"),
        (some(F16, ws=True), (256, 64, 16), "M is 256"),
        (I8, (128, 40, 32), "the nearest is 32 or 48"),
        (MXF8, (64, 64, 32), "128 rows in a CTA"),
        (some(F8, b_major="mn", m=64, n=16), (64, 24, 32), "8-bit elements along N has 16 to 256 in steps of 16"),
        (some(MXF4, ctas=2, m=256), (256, 64, 96), "the contract does not say how"),
    ],
)  # fmt: skip
def test_shapes(call: Call, shape: tuple[int, int, int], words: str) -> None:
    refused("instruction-shape", words, call=call, keywords={"instruction_shape": shape})


@pytest.mark.parametrize("given", [(128, 64), (128, 64, True), 128, (128.0, 64, 16)])
def test_a_shape_is_three_integers(given: Any) -> None:
    refused(
        "instruction-shape", "expected (M, N, K) in integers", keywords={"instruction_shape": given}
    )


def test_the_shape_is_required() -> None:
    refused("missing-keyword", "instruction_shape", keywords={"instruction_shape": None})


@pytest.mark.parametrize(
    ("call", "keywords", "code", "words"),
    [
        (F16, {"a_format": "tf32"}, "format", "kind::tf32 multiplies tf32"),
        (F16, {"a_format": "float8_e4m3fn"}, "format", "kind::f8f6f4 and kind::mxf8f6f4 multiplies"),
        (TF32, {"a_format": None}, "format", 'a_format="tf32" says what its float32 elements are'),
        (some(F8, a="float6_e2m3fn"), {"a_format": None}, "format", 'a_format="float8_e4m3fn" or'),
        (F16, {"a_format": "bfloat16"}, "operand-type", "takes bfloat16 as bfloat16 or uint16"),
        (some(F16, d="float16"), {"b_format": "float16", "a_format": "bfloat16"}, "operand-type", "bfloat16"),
        (F8, {"a_format": "float4_e2m1fn"}, "operand-type", "4 bits in a container of 8"),
        (F16, {"a_major": "row"}, "major", 'expected "k" or "mn"'),
        (some(F8, a="float4_e2m1fn"), {"a_major": "mn"}, "major", "runs along K"),
        (MXF4, {"b_major": "mn"}, "major", "runs along K"),
        (some(F16, a_space="tmem"), {"a_major": "mn"}, "major", "A in tensor memory"),
        (I8, {"neg_a": True}, "negation", "kind::i8 cannot do that"),
        (F16, {"neg_a": 1}, "negation", "expected True or False"),
        (F16, {"sat_d": True}, "saturation", "kind::i8 can"),
        (MXF8, {"sat_d": True}, "saturation", "kind::i8 can"),
        (F16, {"disable_output_lane": (0, 0, 1)}, "disable-output-lane", "is 3, expected a tuple of 4"),
        (F16, {"disable_output_lane": 1}, "disable-output-lane", "is no tuple, expected a tuple of 4"),
        (F16, {"disable_output_lane": (0, 0, 0, 1 << 32)}, "disable-output-lane", "word 3 of disable_output_lane is 4294967296, expected"),
        (F16, {"disable_output_lane": (0, -1, 0, 0)}, "disable-output-lane", "word 1 of disable_output_lane is -1"),
        (F16, {"disable_output_lane": (True, 0, 0, 0)}, "disable-output-lane", "word 0 of disable_output_lane is True"),
        (some(F16, ctas=2), {"disable_output_lane": (1,) * 4}, "disable-output-lane", "a tuple of 8"),
        (MXF8, {"disable_output_lane": (1,) * 4}, "disable-output-lane", "dense opcodes without .block_scale"),
        (some(F16, ws=True), {"disable_output_lane": (1,) * 4}, "disable-output-lane", "without .ws"),
        (F16, {"zero_column_mask": 1 << 39}, "zero-column-mask", "tcgen05.mma.ws has"),
        (some(F16, ws=True), {"zero_column_mask": 1 << 36}, "zero-column-mask", "bits 36 to 38"),
        (some(F16, ws=True), {"zero_column_mask": 1 << 56}, "zero-column-mask", "by 1, expected 0"),
        (some(F16, ws=True), {"zero_column_mask": (1,)}, "zero-column-mask", "no integer"),
        (F16, {"accum": 1}, "keyword-type", "accum"),
        (F16, {"scale_d": True}, "unknown-keyword", "it takes"),
    ],
)  # fmt: skip
def test_keywords(call: Call, keywords: dict[str, Any], code: str, words: str) -> None:
    refused(code, words, call=call, keywords=keywords)


def test_types() -> None:
    wrong = operands_of(some(F16, d="float32"))["d"]
    refused(
        "operand-type",
        "kind::i8 accumulates in int32",
        call=I8,
        d=operands_of(some(I8, d="float32"))["d"],
    )
    refused("operand-type", "float16 or float32", d=reinterpret.with_dtype(wrong, dtypes.int32))
    half = operands_of(some(MXF8, scale="float8_e4m3fn"))
    refused("scale-format", "SFA is float8_e4m3fn", call=MXF8, sfa=half["sfa"], sfb=half["sfb"])
    mixed = operands_of(some(NVF4, scale="float8_e8m0fnu"))
    refused("scale-format", "one bit says what both are", call=NVF4, sfb=mixed["sfb"])


def test_packed_values_are_not_in_containers() -> None:
    packed = operands_of(some(MXF4, repeats=(1, 1, 1)))["a"]
    refused("operand-type", "takes float4_e2m1fn as uint8, 4 bits in a container of 8", "a_format=",
            call=some(F8, a="float4_e2m1fn"), a=packed)  # fmt: skip


def tmem_view(shape: tuple[int, ...], notation: str, dtype: str, name: str = "t") -> nodes.View:
    return view_of(name, Case(shape=shape, layout=notation, dtype=dtype), "tmem")


@pytest.mark.parametrize(
    ("call", "notation", "code", "words"),
    [
        (F16, "(128,64):(1@TLane,2@TCol)", "image", "column 2 of its buffer, expected lane 0, column 1"),
        (F16, "(128,64):(1@TLane,1@TCol) + R[2:64@TCol]", "replicas", "expected none"),
        (some(F16, m=64), "(64,64):(1@TLane,1@TCol)", "image", "lane 16, column 0 of its buffer, expected lane 32"),
        (some(F16, m=64), "(4,16,64):(32@TLane,1@TLane,1@TCol) + 8@TLane", "image", "expected 0 or 16"),
        (some(F16, ws=True, m=64), "(64,64):(1@TLane,1@TCol)", "image", "lane 0, column 32 of its buffer, expected lane 64"),
        (some(F16, ws=True, m=32), "(32,64):(1@TLane,1@TCol)", "image", "layout G"),
        (some(F16, ctas=2), "(64,64):(1@TLane,1@TCol)", "image", "expected lane 64, column 0"),
        (some(F16, d="float16"), "(128,64):(1@TLane,1@TCol)", "image", "column 0, bit 16"),
        (some(F16, d="float16"), "(128,64):(1@TLane,2@TCol) + 1@TCol", "column", "16 bits of a column"),
    ],
)  # fmt: skip
def test_images_of_d(call: Call, notation: str, code: str, words: str) -> None:
    d = views.reshape(
        tmem_view((call.rows, call.n), notation, call.d, "d"), (1, 1, call.rows, call.n)
    )
    refused(code, words, call=call, d=d)


@pytest.mark.parametrize(
    ("call", "shape", "notation", "code", "words"),
    [
        (F16, (128, 16), "(128,16):(1@TLane,2@TCol)", "image", "column 1 of its buffer"),
        (some(F16, ctas=2), (64, 16), "(64,16):(1@TLane,1@TCol)", "replicas", "expected R[2:64@TLane]"),
        (some(F16, ws=True, m=64), (64, 16), "(64,16):(1@TLane,1@TCol)", "tile/atom-shape", "(2, 64, 16)"),
        (some(F16, ws=True, m=64), (2, 64, 16), "(2,64,16):(32@TLane,1@TLane,1@TCol)", "image", "expected lane 64"),
        (some(F16, m=64), (64, 16), "(4,16,16):(32@TLane,1@TLane,1@TCol) + 16@TLane", "image", "D in lane 0"),
        (some(F16, ws=True, m=32), (32, 16), "(32,16):(1@TLane,1@TCol)", "space", "expected shared memory"),
    ],
)  # fmt: skip
def test_images_of_a(
    call: Call, shape: tuple[int, ...], notation: str, code: str, words: str
) -> None:
    a = views.reshape(tmem_view(shape, notation, "float16", "a"), (1, 1, *shape))
    refused(code, words, call=call, a=a)


@pytest.mark.parametrize(
    ("call", "notation", "code", "words"),
    [
        (MXF8, "(4,32,1):(4@TCol,1@TLane,1@TCol)", "replicas", "states no replica, expected R[4:32@TLane]"),
        (MXF8, "(4,32,1):(4@TCol,1@TLane,1@TCol) + R[2:64@TLane]", "replicas", "R[4:32@TLane]"),
        (MXF8, "(4,32,1):(1@TCol,1@TLane,1@TCol) + R[4:32@TLane]", "image", "bit 8"),
        (NVF4, "(4,32,4):(4@TCol,1@TLane,1@TCol) + R[4:32@TLane] + 2@TCol", "scale-origin",
         "starts in byte 2 of a column, expected 0: 4 factors of a row are aligned to their number"),
        (MXF4, "(4,32,2):(4@TCol,1@TLane,1@TCol) + R[4:32@TLane] + 1@TCol", "scale-origin", "expected 0 or 2"),
    ],
)  # fmt: skip
def test_images_of_scale_factors(call: Call, notation: str, code: str, words: str) -> None:
    shape = (128, call.factors)
    sfa = views.reshape(tmem_view(shape, notation, call.scale, "sfa"), (1, 1, *shape))
    refused(code, words, call=call, sfa=sfa)


def test_halves_of_sfb_lie_apart() -> None:
    """M=128 of two CTAs does not read four copies of all of N."""
    call, notation = some(MXF8, ctas=2), "(2,32,1):(4@TCol,1@TLane,1@TCol) + R[4:32@TLane]"
    sfb = views.reshape(tmem_view((64, 1), notation, call.scale, "sfb"), (1, 1, 64, 1))
    f = program(call, sfb=sfb)
    assert codes(f) == ["tcgen05_mma/image", "tcgen05_mma/replicas"]
    assert "expected lane 64, column 0" in text(f) and "expected R[2:32@TLane]" in text(f)


def test_equal_copies_are_equal_however_they_are_written() -> None:
    notation = "(4,32,1):(4@TCol,1@TLane,1@TCol) + R[(2,2):(32@TLane,64@TLane)]"
    sfa = views.reshape(tmem_view((128, 1), notation, MXF8.scale, "sfa"), (1, 1, 128, 1))
    assert codes(program(MXF8, sfa=sfa)) == []


def test_shared_operands() -> None:
    wide = view_of("a", Case(tile=(128, 32), view=(1, 128, 1, 32), order=(0, 2, 1, 3), dtype="float16",
                             layout="(128,32):(32,1)"), "shared")  # fmt: skip
    inside = kit.region(wide, (0, 0, 0, 4), (1, 1, 128, 16))
    refused("alignment", "8 bytes above a multiple of 16", a=inside)
    spread = view_of("a", Case(tile=(128, 16), view=(1, 128, 1, 16), order=(0, 2, 1, 3), dtype="float16",
                               layout="(128,16):(24,1)"), "shared")  # fmt: skip
    refused(
        "descriptor", "no matrix descriptor walks this K-major A", "tcgen05_shared_layout", a=spread
    )
    refused(
        "descriptor", "128-byte swizzle of 32-byte atoms", call=TF32, keywords={"a_major": "mn"},
        a=operands_of(TF32)["a"],
    )  # fmt: skip
    refused(
        "space", "is in tmem memory, expected shared", b=operands_of(some(F16, a_space="tmem"))["a"]
    )
    refused(
        "repeat-axes",
        "expected M_repeat and K_repeat",
        a=views.reshape(operands_of(F16)["a"], (128, 16)),
    )
    refused("repeats", "N_repeat", d=operands_of(some(F16, repeats=(1, 2, 1)))["d"])


def test_counts_of_operands() -> None:
    f = program(F16, extra=operands_of(MXF8)["sfa"])
    assert codes(f) == ["tcgen05_mma/operand-count"]
    assert "4 operands, it takes 3: D, A, B" in text(f)


def test_what_overlaps() -> None:
    call = some(F16, repeats=(1, 2, 1))
    close = tmem_view((1, 2, 128, 64), "(2,128,64):(32@TCol,1@TLane,1@TCol)", "float32", "d")
    refused("overlap", "64 columns wide, and two begin 32 columns apart", call=call, d=close)
    both = tmem_view((128, 64), "(128,64):(1@TLane,1@TCol)", "float32", "d")
    a = reinterpret.with_dtype(both, dtypes.float16)
    part = kit.region(views.reshape(a, (1, 1, 128, 128)), (0, 0, 0, 32), (1, 1, 128, 16))
    refused("source-overlap", "A shares columns with D", call=some(F16, a_space="tmem"), a=part,
            d=views.reshape(both, (1, 1, 128, 64)))  # fmt: skip


@pytest.mark.parametrize(
    ("ws", "repeats"), [(False, (1, 1, 2)), (False, (2, 1, 1)), (True, (1, 2, 1))]
)
@pytest.mark.parametrize("use", ["use", "lastuse", "fill", "discard"])
def test_the_collector_has_one_matrix(ws: bool, repeats: tuple[int, int, int], use: str) -> None:
    call = some(F16, ws=ws, vector=f"collector::{'b1' if ws else 'a'}::{use}", repeats=repeats)
    name, other = ("B", (2, 1, 1)) if ws else ("A", (1, 2, 1))
    if use in ("use", "lastuse"):
        refused("collector", f"2 repeats of {name}", "expected one repeat", call=call)
    else:
        assert codes(program(call)) == []
    assert codes(program(some(call, repeats=other))) == []


def test_factors_of_rows_that_no_strides_place() -> None:
    """40 rows are the first of 64, as the refusal of a layout for 40 says."""
    with pytest.raises(layout.LayoutError, match=r"use the first 40, the region \[:, :, :40, :\]"):
        plan_of(some(MXF8, n=40))
    sfb = kit.region(operands_of(MXF8)["sfb"], (0, 0, 0, 0), (1, 1, 40, 1))
    d = tmem_view((1, 1, 128, 40), "(128,40):(1@TLane,1@TCol)", "float32", "d")
    b = operands_of(some(F8, m=64, n=40))["b"]
    f = program(MXF8, {"instruction_shape": (128, 40, 32)}, d=d, b=b, sfb=sfb)
    assert codes(f) == [], text(f)


def test_one_thread_issues() -> None:
    refused("issuers", "128 threads issue", guard=None)
    refused("issuers", "32 threads issue", guard=kit.op("lt", kit.hw("tid"), 32))
    assert codes(program(F16, guard=kit.op("eq", kit.hw("laneid"), 3))) == []
    pair = some(F16, ctas=2)
    refused("issuers", "both CTAs of a pair issue", call=pair, cluster=(2,))
    refused("cta-pair", "LaunchConfig(cluster=(2, 1, 1))", call=pair, cluster=None)


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_other_targets_have_none(target: str) -> None:
    with pytest.raises(TargetError, match="needs sm_100f"):
        product.check(*arguments(F16), F16, plan_of(F16), target=target)


# --- what the hardware refuses, of raw instructions


@tile.jit
def raw_product(N, opcode: T.constexpr, form: T.constexpr):
    """One instruction from its numbers: added to D's and A's addresses, the instruction descriptor, matrix
    descriptors and the mask."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    slot = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default")
    tiles = T.alloc_shared((4096,), "uint32", layout="default", align=1024)
    for i in range(T.cuda.thread_idx("x"), 4096, 128):
        tiles[i] = T.uint32(0)
    T.ptx["fence.proxy.async.shared::cta"]()
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), 512)
    if T.cuda.thread_idx("x") == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if T.cuda.thread_idx("x") == 0:
        d, idesc = slot[0] + T.uint32(N[0]), T.uint32(N[1])
        start = T.cast(tiles.ptr_to([0]), "uint32") >> 4
        b = T.uint64(start) | T.uint64(N[2])
        if form == "shared":
            T.ptx[opcode](d, T.uint64(start) | T.uint64(N[3]), b, idesc, False)
        elif form == "mask":
            T.ptx[opcode](d, T.uint64(start) | T.uint64(N[3]), b, idesc, False, T.uint64(N[4]))
        T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
            done.ptr_to([0])
        )
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], 512)


PLAIN = 1 << 46 | 16 << 32 | 1 << 16
"""A matrix descriptor without a swizzle: eight rows are 128 bytes, and 256 further on are eight more."""
SAYS = 1 << 4 | 64 >> 3 << 17 | 128 >> 4 << 24
"""f16, accumulated in f32, M=128, N=64."""


def numbers(
    d: int = 0, idesc: int = SAYS, b: int = PLAIN, a: int = PLAIN, mask: int = 0
) -> torch.Tensor:
    return torch.from_numpy(np.array([d, idesc, b, a, mask], np.uint64).view(np.int64))


WS_OPCODE = some(F16, ws=True).opcode


@pytest.mark.parametrize(
    ("opcode", "form", "given", "code", "words"),
    [
        (F16.opcode, "shared", {"idesc": SAYS | 1 << 2}, "sim/instruction-descriptor", "says nothing"),
        (F16.opcode, "shared", {"idesc": SAYS ^ 24 << 24}, "sim/instruction-descriptor", "says M=256"),
        (F16.opcode, "shared", {"idesc": SAYS ^ 8 << 17}, "sim/instruction-descriptor", "N=0"),
        (F16.opcode, "shared", {"d": 16 << 16}, "sim/tmem-lane", "begins in lane 16, expected 0"),
        (TF32.opcode, "shared", {"idesc": SAYS | 2 << 7 | 2 << 10 | 1 << 15}, "sim/matrix-descriptor",
         "a is tf32 along mn, which a matrix descriptor with no swizzle does not walk"),
        (F16.opcode, "shared", {"a": PLAIN | 1 << 61, "idesc": SAYS | 1 << 15}, "sim/matrix-descriptor",
         "128-byte swizzle of 32-byte atoms"),
        (WS_OPCODE, "mask", {"mask": 1 << 37}, "sim/zero-column-mask", "reserved bits"),
        (WS_OPCODE, "mask", {"mask": 1 << 56}, "sim/zero-column-mask", "allows, by 0"),
        (F16.opcode.replace("f16", "i8"), "shared", {"idesc": SAYS + (1 << 4) | 1 << 13},
         "sim/instruction-descriptor", "negates A"),
    ],
)  # fmt: skip
def test_faults_of_raw_instructions(
    opcode: str, form: str, given: dict[str, int], code: str, words: str
) -> None:
    with tile.simulation(target="sm_100a"), pytest.raises(SimulationFault) as caught:
        raw_product(numbers(**given), opcode, form)
    assert code in caught.value.codes, str(caught.value)
    assert words in str(caught.value), str(caught.value)


def test_the_raw_instruction_is_right_otherwise() -> None:
    with tile.simulation(target="sm_100a"):
        raw_product(numbers(), F16.opcode, "shared")
        raw_product(numbers(mask=MASK), WS_OPCODE, "mask")
