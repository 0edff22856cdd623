"""The wgmma contract: products against numpy, fragments by the contract's formulas alone, on the simulator
and on the GPU (sm_90a); what must be waited for and fenced; refusals at the nearest illegal value; what
assembles for which target."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.families.test_mma_sync import as_values, as_words
from tests.ptx.test_assembles import refused, statement
from tests.tile.kit import apply, buffer, codes, guard, hw, issues, kernel, op, raw, text, whole
from tests.tile.test_descriptor import fenced, shared, tiles
from tilejit import T, dtypes, layout, pipeline
from tilejit.errors import SimulationFault, TargetError
from tilejit.families import FAMILIES, wgmma
from tilejit.ir import build, nodes, views
from tilejit.ptx.spelling import SpellingError, forms_of_family, lookup
from tilejit.runtime import nvrtc
from tilejit.target import Target
from tilejit.tile.checker import check

PREFIX = "wgmma.mma_async.sync.aligned."
THREAD = np.arange(128)
WARP, LANE = THREAD // 32, THREAD % 32

# --- the oracle

DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
CONTAINER = {"f16": "uint16", "bf16": "uint16", "tf32": "uint32", "b1": "uint32"}
"""Of elements in shared memory; the 8-bit types' is uint8."""


@dataclass(frozen=True)
class Shape:
    """An opcode's N, K and types, and its fragments by the contract's formulas."""

    opcode: str

    @property
    def kinds(self) -> list[str]:
        """Of D, A, B."""
        words = [m for m in self.opcode.split(".") if m not in ("and", "popc", "satfinite")]
        return words[1:]

    @property
    def n(self) -> int:
        return int(self.opcode.split("k")[0].removeprefix("m64n"))

    @property
    def k(self) -> int:
        return DEPTH[self.kinds[1]]

    @property
    def stored_k(self) -> int:
        return 8 if self.kinds[1] == "b1" else self.k

    @property
    def d_atom(self) -> tuple[int, int]:
        return 64, self.n // 2 if self.kinds[0] == "f16" else self.n

    def d_place(self, r: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and column (word, for f16) of D's register ``r`` in every thread."""
        if self.kinds[0] == "f16":
            return words_place(r)
        return 16 * WARP + LANE // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (LANE % 4) + r % 2


def words_place(r: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and word of A's register ``r`` in every thread."""
    return 16 * WARP + LANE // 4 + 8 * (r % 2), LANE % 4 + 4 * (r // 2)


def scattered(words: np.ndarray, place: Any, count: int) -> np.ndarray:
    """(warpgroups, *repeats, rows, words) to (threads, slots): repeats row-major, then registers."""
    columns = [np.moveaxis(words[(..., *place(r))], -1, 1) for r in range(count)]
    return np.stack(columns, axis=-1).reshape(words.shape[0] * 128, -1)


def gathered(slots: np.ndarray, shape: Shape, repeats: tuple[int, ...]) -> np.ndarray:
    count = shape.d_atom[1] // 2
    per_thread = slots.reshape(-1, 128, *repeats, count)
    found = np.zeros((per_thread.shape[0], *repeats, *shape.d_atom), slots.dtype)
    for r in range(count):
        found[(..., *shape.d_place(r))] = np.moveaxis(per_thread[..., r], 1, -1)
    return found


def stored(values: np.ndarray) -> np.ndarray:
    """One-bit matrices (…, rows, K) in words."""
    packed = np.packbits(values.astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)


# --- one kernel for every form


@tile.jit
def multiply(D, A, B, W, C, opcode: T.constexpr, block: T.constexpr, plan: T.constexpr):
    """One apply on one CTA. A and B are the tiles as they lie in memory, W the words of A in registers,
    C the old D; D, W and C by thread and register."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=block))
    t = T.cuda.thread_idx("x")
    b = staged(B, plan.swizzle_b, t, block)
    if plan.a_in_registers:
        a = T.alloc_local((W.shape[1],), "uint32", layout="default")
        for i in T.unroll(W.shape[1]):
            a[i] = W[t, i]
        a_operand = a.view(*plan.a_shape, layout=plan.a_layout)
    else:
        a = staged(A, plan.swizzle_a, t, block)
        a_operand = a.view(*plan.a_view).permute(*plan.a_order)
    b_operand = b.view(*plan.b_view).permute(*plan.b_order)
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    d = T.alloc_local((D.shape[1],), plan.d_type, layout="default")
    bits = d.view(D.dtype)
    if plan.accum:
        for i in T.unroll(D.shape[1]):
            bits[i] = C[t, i]
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[opcode], d.view(*plan.d_shape, layout=plan.d_layout), a_operand, b_operand,
        accum=plan.accum, a_major=plan.a_major, b_major=plan.b_major, neg_a=plan.neg_a,
        neg_b=plan.neg_b, scope=plan.scope,
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    for i in T.unroll(D.shape[1]):
        D[t, i] = bits[i]


@tile.jit
def staged(X, swizzle: T.constexpr, t, block: T.constexpr):
    """X in shared memory, as descriptors walk it."""
    x = T.alloc_shared(
        X.shape, X.dtype, align=1024, layout=T.cuda.wgmma_shared_layout(X.shape, X.dtype, swizzle)
    )
    rows, columns = X.shape
    for i in range(t, rows * columns, block):
        x[i // columns, i % columns] = X[i // columns, i % columns]
    return x


@dataclass(frozen=True)
class Plan:
    """What a case asks for, as compile-time values of the kernel."""

    a_view: tuple[int, ...]
    a_order: tuple[int, ...]
    a_shape: tuple[int, ...]
    a_layout: Any
    b_view: tuple[int, ...]
    b_order: tuple[int, ...]
    d_shape: tuple[int, ...]
    d_layout: Any
    d_type: str
    a_in_registers: bool
    a_major: str
    b_major: str
    swizzle_a: int | None
    swizzle_b: int | None
    accum: bool
    neg_a: bool
    neg_b: bool
    scope: str


def view_of(lead: tuple[int, ...], blocks: int, rows: int, steps: int, depth: int, major: str):
    """(view, order) of a tile (lead · blocks · rows, steps · depth), or of its transpose."""
    count = len(lead)
    front = tuple(range(count))
    if major == "k":
        shape, order = (*lead, blocks, rows, steps, depth), (0, 2, 1, 3)
    else:
        shape, order = (steps, depth, *lead, blocks, rows), None
        front = tuple(range(2, 2 + count))
        return shape, (*front, 2 + count, 0, 3 + count, 1)
    return shape, (*front, *(count + i for i in order))


def run(device: str, opcode: str, values: list[np.ndarray], **options: Any) -> np.ndarray:
    """As ``run_words``, in values."""
    kinds = Shape(opcode).kinds
    a, b, c = (as_words(x, kind) if kind != "b1" else stored(x)
               for x, kind in zip(values, (kinds[1], kinds[2], kinds[0])))  # fmt: skip
    found = run_words(device, opcode, [a, b, c], **options)
    return as_values(found, kinds[0])


def run_words(
    device: str,
    opcode: str,
    words: list[np.ndarray],
    *,
    scope: str = "warpgroup",
    a_in_registers: bool = False,
    majors: str = "kk",
    swizzles: tuple[int | None, int | None] = (None, None),
    accum: bool = True,
    neg: tuple[bool, bool] = (False, False),
) -> np.ndarray:
    """D's words from those of A (warpgroups, *batch, M, K, 64, k), B (warpgroups, *batch, N, K, n, k) and C."""
    majors_ = {"k": "k", "m": "mn"}
    a_major, b_major = (majors_[m] for m in majors)
    shape = Shape(opcode)
    d_kind, a_kind, b_kind = shape.kinds
    a, b, c = words
    groups, *lead = a.shape[:-4]
    # The warpgroup axis stands in front in "cta" scope; in "warpgroup" scope there is one of them.
    outer = (groups, *lead) if scope == "cta" else tuple(lead)
    m, steps = a.shape[-4:-2]
    n = b.shape[-4]
    as_tiles = []
    for x, kind, major in ((a, a_kind, a_major), (b, b_kind, b_major)):
        elements = np.ascontiguousarray(x).view(CONTAINER.get(kind, "uint8"))
        rows, depth = elements.shape[-2:]
        flat = np.moveaxis(elements, -3, -2).reshape(-1, elements.shape[-3] * depth)
        as_tiles.append(np.ascontiguousarray(flat if major == "k" else flat.T))
    a_view, a_order = view_of(outer, m, 64, steps, shape.stored_k, a_major)
    b_view, b_order = view_of(outer, n, shape.n, steps, shape.stored_k, b_major)
    warpgroups = (groups,) if scope == "cta" else ()
    laid = (
        T.cuda.wgmma_words_layout(shape.n // 2, (*lead, m, n), warpgroups=warpgroups)
        if d_kind == "f16"
        else T.cuda.wgmma_fragment_layout(shape.n, (*lead, m, n), warpgroups=warpgroups)
    )
    plan = Plan(
        a_view, a_order, (*outer, m, steps, 64, 8),
        T.cuda.wgmma_words_layout(8, (*lead, m, steps), warpgroups=warpgroups), b_view, b_order,
        (*outer, m, n, *shape.d_atom), laid, {"f32": "float32", "s32": "int32"}.get(d_kind, "uint32"),
        a_in_registers, a_major, b_major, *swizzles, accum, *neg, scope,
    )  # fmt: skip
    w = scattered(a, words_place, 4)
    old = scattered(c, shape.d_place, shape.d_atom[1] // 2)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (*as_tiles, w, old)]
    out = torch.zeros_like(tensors[3])
    multiply(out, *tensors, PREFIX + opcode, 128 * groups, plan)
    return gathered(out.cpu().numpy(), shape, c.shape[1:-2])


def small_integers(
    opcode: str,
    repeats: tuple[int, int, int] = (1, 1, 1),
    lead: tuple[int, ...] = (1,),
    seed: int = 0,
) -> list[np.ndarray]:
    """A, B and C: integers that every type has exactly, as are all sums."""
    rng = np.random.default_rng(seed)
    shape = Shape(opcode)
    m, n, k = repeats
    found = []
    for kind, tail in zip(
        (*shape.kinds[1:], "s32"),
        ((m, k, 64, shape.k), (n, k, shape.n, shape.k), (m, n, 64, shape.n)),
    ):
        low, high = {"u8": (0, 4), "b1": (0, 2)}.get(kind, (-3, 4))
        found.append(rng.integers(low, high, (*lead, *tail)).astype(np.float64))
    return found


def product(values: list[np.ndarray]) -> np.ndarray:
    a, b, c = values
    return c + np.einsum("...mkij,...nklj->...mnil", a, b)


def on_this(device: str) -> None:
    if device == "cuda":
        here = Target.of_capability(*torch.cuda.get_device_capability())
        if not here.supports("sm_90a"):
            pytest.skip("wgmma needs sm_90a")


FORMS = [form for form in forms_of_family("wgmma") if form.tile]
OPCODES = list(dict.fromkeys(form.spelling.removeprefix(PREFIX) for form in FORMS))
TYPES = sorted({re.sub(r"^m64n\d+", "", opcode) for opcode in OPCODES})
BF16 = "m64n64k16.f32.bf16.bf16"


def of_types(types: str, n: int) -> str:
    return f"m64n{n}{types}"


@pytest.mark.parametrize("a_in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("types", TYPES)
def test_every_combination_of_types(device: str, types: str, a_in_registers: bool) -> None:
    on_this(device)
    opcode = of_types(types, 24)
    values = small_integers(opcode, (2, 2, 2), seed=len(types))
    got = run(device, opcode, values, a_in_registers=a_in_registers)
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("n", [*range(8, 257, 8)])
def test_every_width(device: str, n: int) -> None:
    on_this(device)
    opcode = f"m64n{n}k16.f32.f16.f16"
    values = small_integers(opcode, seed=n)
    assert np.array_equal(run(device, opcode, values, accum=False), product(values) - values[2])


@pytest.mark.parametrize("n", [8, 16, 256])
@pytest.mark.parametrize("types", ["k32.f16.e4m3.e5m2", "k256.s32.b1.b1.and.popc"])
def test_the_ends_of_other_fragments(device: str, types: str, n: int) -> None:
    on_this(device)
    values = small_integers(of_types(types, n), seed=n)
    assert np.array_equal(run(device, of_types(types, n), values), product(values))


@pytest.mark.parametrize("majors", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_majors_and_swizzles(device: str, kind: str, swizzle: int, majors: str) -> None:
    on_this(device)
    opcode = f"m64n128k16.f32.{kind}.{kind}"
    values = small_integers(opcode, (2, 1, 4), seed=swizzle)
    got = run(device, opcode, values, majors=majors, swizzles=(swizzle, swizzle))
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("types", ["k8.f32.tf32.tf32", "k32.f32.e4m3.e4m3", "k32.s32.u8.s8"])
def test_k_major_swizzles_of_other_widths(device: str, types: str, swizzle: int) -> None:
    on_this(device)
    opcode = of_types(types, 32)
    values = small_integers(opcode, (1, 2, 4), seed=swizzle)
    got = run(device, opcode, values, swizzles=(swizzle, swizzle))
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("a_in_registers", [False, True])
@pytest.mark.parametrize("lead", [(1,), (1, 2), (1, 2, 2)])
def test_batches(device: str, lead: tuple[int, ...], a_in_registers: bool) -> None:
    on_this(device)
    values = small_integers("m64n16k16.f32.bf16.bf16", (2, 2, 2), lead, seed=3)
    got = run(device, "m64n16k16.f32.bf16.bf16", values, a_in_registers=a_in_registers)
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("a_in_registers", [False, True])
def test_a_cta_leads_with_its_warpgroups(device: str, a_in_registers: bool) -> None:
    on_this(device)
    values = small_integers(BF16, (1, 1, 2), (2,), seed=4)
    got = run(device, BF16, values, scope="cta", a_in_registers=a_in_registers)
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("a_in_registers", [False, True])
@pytest.mark.parametrize("neg", list(itertools.product((False, True), repeat=2)))
def test_negation(device: str, neg: tuple[bool, bool], a_in_registers: bool) -> None:
    on_this(device)
    values = small_integers(BF16, (1, 1, 2), seed=5)
    got = run(device, BF16, values, neg=neg, a_in_registers=a_in_registers)
    signed = [values[0] * (-1 if neg[0] else 1), values[1] * (-1 if neg[1] else 1), values[2]]
    assert np.array_equal(got, product(signed))


@pytest.mark.parametrize("saturate", ["", ".satfinite"])
def test_every_issue_saturates_on_its_own(device: str, saturate: str) -> None:
    """Up past the limit at the first K, down again at the second: only the order tells."""
    on_this(device)
    opcode = f"m64n8k32{saturate}.s32.s8.s8"
    a = np.full((1, 1, 2, 64, 32), 127.0)
    a[:, :, 1] = -100
    values = [a, np.full((1, 1, 2, 8, 32), 127.0), np.full((1, 1, 1, 64, 8), 2.0**31 - 10)]
    up, down = 32 * 127 * 127, -32 * 100 * 127
    wrapped = 2**31 - 10 + up + down
    expected = 2**31 - 1 + down if saturate else (wrapped + 2**31) % 2**32 - 2**31
    assert (run(device, opcode, values) == expected).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_random_values_within_the_rounding_of_f32(device: str, kind: str) -> None:
    on_this(device)
    opcode = f"m64n32k16.f32.{kind}.{kind}"
    rng = np.random.default_rng(3)
    values = [
        as_values(as_words(rng.standard_normal(s), k), k)
        for s, k in (
            ((1, 1, 4, 64, 16), kind),
            ((1, 1, 4, 32, 16), kind),
            ((1, 1, 1, 64, 32), "f32"),
        )
    ]
    bound = product([np.abs(v) for v in values]) * 2.0**-20
    assert (np.abs(run(device, opcode, values) - product(values)) <= bound).all()


# --- accumulators as operands of what follows


@tile.jit
def words_of(accumulator, words):
    """Adjacent float32 accumulators to bf16 words, in the order of the registers."""
    for i in T.unroll(words.shape[0]):
        low = T.cast(accumulator[2 * i], "bfloat16")
        high = T.cast(accumulator[2 * i + 1], "bfloat16")
        words[i] = T.cast(T.bitcast(low, "uint16"), "uint32") | (
            T.cast(T.bitcast(high, "uint16"), "uint32") << 16
        )


@tile.jit
def attend(Q, K, V, S, O, n: T.constexpr):
    """S = Q · Kᵀ through stmatrix, O = S · V with S's registers as A."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    q, k, v = staged(Q, 128, t, 128), staged(K, 128, t, 128), staged(V, 128, t, 128)
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    s = T.alloc_local((n // 2,), "float32", layout="default")
    o = T.alloc_local((32,), "float32", layout="default")
    words = T.alloc_local((n // 4,), "uint32", layout="default")
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16"],
        s.view(1, 1, 64, n, layout=T.cuda.wgmma_fragment_layout(n)),
        q.view(1, 64, 4, 16).permute(0, 2, 1, 3), k.view(1, n, 4, 16).permute(0, 2, 1, 3),
        scope="warpgroup",
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    words_of(s, words)
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"],
        o.view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64)),
        words.view(1, n // 16, 64, 8, layout=T.cuda.wgmma_words_layout(8, (1, n // 16))),
        v.view(n // 16, 16, 1, 64).permute(2, 0, 3, 1),
        b_major="mn", scope="warpgroup",
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    row = 16 * T.cuda.warp_in_warpgroup() + T.cuda.lane_id() // 4
    for j in T.unroll(8):
        for h in T.unroll(2):
            for i in T.unroll(2):
                O[row + 8 * h, 8 * j + 2 * (T.cuda.lane_id() % 4) + i] = o[4 * j + 2 * h + i]
    # Each warp stores its 16 rows, one x4 for every 16 columns.
    out = T.alloc_shared((64, n), "bfloat16", layout="default", align=16)
    rows = (
        out.view("uint32")
        .view(4, 2, 8, n // 16, 2, 4)
        .sub[T.cuda.warp_in_warpgroup(), :, :, :, :, :]
    )
    T.cuda.tile.apply(
        T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"],
        rows.permute(2, 3, 0, 1, 4).view(n // 16, 4, 8, 4),
        words.view(n // 16, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (n // 16,))),
        scope="warp",
    )  # fmt: skip
    T.cuda.cta_sync()
    for i in range(t, 64 * n, 128):
        S[i // n, i % n] = out[i // n, i % n]


@pytest.mark.parametrize("n", [64, 128])
def test_accumulators_chain_without_shuffles(device: str, n: int) -> None:
    on_this(device)
    generator = torch.Generator().manual_seed(n)
    q, k, v = (
        torch.randint(-1, 2, s, generator=generator).to(torch.bfloat16).to(device)
        for s in ((64, 64), (n, 64), (n, 64))
    )
    s, o = (torch.zeros(64, n, dtype=torch.bfloat16).to(device), torch.zeros(64, 64).to(device))
    attend(q, k, v, s, o, n)
    expected = q.float() @ k.float().t()
    assert torch.equal(s.float(), expected)
    assert torch.equal(o, expected @ v.float())


# --- steps and refusals, on kernels made by hand


def accumulators(
    repeats: tuple[int, ...] = (1, 1), n: int = 64, *, dtype: str = "float32", name: str = "d",
    size: int | None = None, offset: int = 0, notation: str | None = None,
) -> nodes.View:  # fmt: skip
    count = int(np.prod(repeats)) * n // 2
    flat = whole(buffer(name, (size or count,), dtype))
    part = views.sub(flat, ((offset, offset + count, None),))
    laid = layout.parse(notation) if notation else T.cuda.wgmma_fragment_layout(n, repeats)
    return views.with_layout(part, (*repeats, 64, n), laid)


def words(
    repeats: tuple[int, ...] = (1, 1), *, name: str = "a", dtype: str = "uint32",
    size: int | None = None, offset: int = 0,
) -> nodes.View:  # fmt: skip
    count = int(np.prod(repeats)) * 4
    flat = whole(buffer(name, (size or count,), dtype))
    part = views.sub(flat, ((offset, offset + count, None),))
    return views.with_layout(part, (*repeats, 64, 8), T.cuda.wgmma_words_layout(8, repeats))


def a_tile(rows: int = 64, k: int = 16, dtype: str = "bfloat16") -> nodes.View:
    return tiles(shared("a", (rows, k), dtype, None), 64, 16, "k")


def b_tile(rows: int = 64, k: int = 16, n: int = 64, dtype: str = "bfloat16") -> nodes.View:
    return tiles(shared("b", (rows, k), dtype, None), n, 16, "k")


def const(value: Any) -> nodes.Expr:
    if isinstance(value, str):
        return nodes.Text(value)
    if isinstance(value, tuple):
        return nodes.Static(value)
    return build.const(value, dtypes.bool_ if isinstance(value, bool) else dtypes.int32)


def fault(d=None, a=None, b=None, *, opcode: str = BF16, scope: str = "warpgroup", wrap=None,
          operands: Any = None, block: tuple[int, ...] = (128,), target: str = "sm_90a", **keywords: Any):  # fmt: skip
    """A kernel with one call whose operands are legal where not given."""
    d = accumulators() if d is None else d
    a = a_tile() if a is None else a
    b = b_tile() if b is None else b
    named = {k: v if isinstance(v, nodes.Expr) else const(v) for k, v in keywords.items()}
    call = apply(PREFIX + opcode, *(operands or (d, a, b)), scope=scope, **named)
    return fenced(wrap(call) if wrap else call, block=block, target=target)


def test_order_spelling_and_count() -> None:
    m, n, k = 2, 3, 4
    f = fault(accumulators((m, n)), a_tile(128, 64), b_tile(192, 64), neg_b=True)
    found = issues(f)[1:]
    assert len(found) == m * n * k
    assert {i.form.spelling for i in found} == {PREFIX + BF16}
    for issue, (i, j, l) in zip(found, itertools.product(range(m), range(n), range(k))):
        assert issue.repeat == (i, j, l)
        d, a, b, scale, *tail = issue.operands
        assert [r.slot for r in d.items] == [32 * (i * n + j) + r for r in range(32)]
        assert scale.items[0].expr == const(l != 0)
        assert [o.value for o in tail] == [1, -1, 0, 0]
        same_a = [x for x, other in zip(found, itertools.product(range(m), range(n), range(k)))
                  if other[0] == i and other[2] == l]  # fmt: skip
        assert all(x.operands[1] == a for x in same_a)


def test_words_of_a_take_the_other_form() -> None:
    f = fault(accumulators((2, 1)), words((2, 3)), b_tile(64, 48), b_major="k")
    found = issues(f)[1:]
    assert [len(i.operands) for i in found] == [7] * 6  # no literal for the order of A
    assert [r.slot for r in found[4].operands[1].items] == [16, 17, 18, 19]
    assert [r.slot for r in found[4].operands[0].items] == list(range(32, 64))


def test_accum_is_for_the_first_k() -> None:
    flag = nodes.Binary("eq", hw("warpgroupid"), build.const(0, dtypes.int32), nodes.BOOL)
    f = fault(accumulators(), a_tile(64, 32), b_tile(64, 32), accum=flag)
    assert [i.operands[3].items[0].expr for i in issues(f)[1:]] == [flag, const(True)]
    per_thread = nodes.Binary("eq", hw("laneid"), build.const(0, dtypes.int32), nodes.BOOL)
    assert codes(fault(accum=per_thread)) == ["wgmma/accum"]
    assert codes(fault(accum=1)) == ["wgmma/keyword-type"]


def test_whole_warpgroups_take_part() -> None:
    assert codes(fault()) == []
    for scope in ("thread", "warp"):
        assert codes(fault(scope=scope)) == ["scope/collective"]
    some = op("lt", hw("tid"), 96)
    assert codes(fault(wrap=lambda s: guard(some, s))) == ["scope/partial-warpgroup"]
    assert "has 96 active" in text(fault(wrap=lambda s: guard(some, s)))
    second = op("eq", hw("warpgroupid"), 1)
    assert codes(fault(wrap=lambda s: guard(second, s), block=(256,))) == []
    shifted = nodes.Binary("and", op("ge", hw("tid"), 64), op("lt", hw("tid"), 192), nodes.BOOL)
    assert codes(fault(wrap=lambda s: guard(shifted, s), block=(256,))) != []
    assert codes(fault(block=(160,))) != []


def test_extents_and_types_are_the_opcodes() -> None:
    assert codes(fault(accumulators(n=32))) == ["tile/atom-shape"]
    assert codes(fault(b=b_tile(32, 16, 32))) == ["tile/atom-shape"]
    assert codes(fault(a=a_tile(dtype="float16"))) == ["wgmma/operand-type"]
    assert "expected bfloat16 or uint16 elements" in text(fault(a=a_tile(dtype="float16")))
    assert codes(fault(a=a_tile(dtype="uint16"), b=b_tile(dtype="uint16"))) == []
    assert codes(fault(accumulators(dtype="int32"))) == ["wgmma/operand-type"]
    assert codes(fault(accumulators(dtype="uint32"))) == []
    assert codes(fault(a=words(dtype="float16"))) != []
    assert "adjacent K values in bf16" in text(fault(a=words(dtype="uint16", size=8)))


def test_spaces_and_counts() -> None:
    assert codes(fault(b=words(name="b"))) == ["wgmma/space"]
    assert codes(fault(a_tile())) != []
    assert codes(fault(operands=(accumulators(), a_tile(), b_tile(), accumulators(name="c")))) == [
        "wgmma/operand-count"
    ]
    zero = build.const(0, dtypes.int32)
    assert codes(fault(b=zero)) == ["wgmma/tensor-operand"]


def test_the_owner_is_the_fragments() -> None:
    swapped = "(1,1,4,2,8,8,4,2):(32,32,1@wid_in_wg,2,1@laneid,4,8@laneid,1)"
    assert codes(fault(accumulators(notation=swapped))) == ["wgmma/owner"]
    warps = "(1,1,2,2,2,8,8,4,2):(32,32,1@wid_in_wg,2@wid_in_wg,2,4@laneid,4,1@laneid,1)"
    f = fault(accumulators(notation=warps))
    assert codes(f) == ["wgmma/owner"]
    assert "thread 32 holds (16, 0)" in text(f)
    assert codes(fault(whole(buffer("d", (1, 1, 64, 64))))) == ["wgmma/owner"]


def test_repeats_agree() -> None:
    for wrong in (
        fault(accumulators((2, 1))),
        fault(a=a_tile(64, 32)),
        fault(accumulators((2, 1, 1))),
    ):
        assert set(codes(wrong)) == {"wgmma/repeats"}
    assert "A) has M_repeat 1, d (D) has 2" in text(fault(accumulators((2, 1))))
    assert codes(fault(accumulators((1,)))) == ["wgmma/repeat-axes"]


def test_registers_of_a_are_not_ds() -> None:
    d = accumulators(name="x", size=40, dtype="uint32")
    assert codes(fault(d, words(name="x", size=40, offset=32))) == []
    assert codes(fault(d, words(name="x", size=40, offset=30))) == ["wgmma/source-overlap"]
    folded = "(1,1,4,2,8,8,4,2):(32,32,1@wid_in_wg,0,4@laneid,4,1@laneid,1)"
    assert codes(fault(accumulators(notation=folded))) == ["wgmma/overlap"]


def test_majors() -> None:
    assert codes(fault(a=words(), a_major="mn")) == ["wgmma/major"]
    assert "whose words are rows along K" in text(fault(a=words(), a_major="mn"))
    assert codes(fault(a_major="row")) == ["wgmma/major"]
    s8 = "m64n64k32.s32.s8.s8"
    a = tiles(shared("a", (64, 32), "int8", None), 64, 32, "k")
    b = tiles(shared("b", (64, 32), "int8", None), 64, 32, "k")
    assert codes(fault(accumulators(dtype="int32"), a, b, opcode=s8)) == []
    assert codes(fault(accumulators(dtype="int32"), a, b, opcode=s8, b_major="mn")) == [
        "wgmma/major"
    ]
    assert codes(fault(accumulators(dtype="int32"), a, b, opcode=s8, neg_a=True)) == [
        "wgmma/negation"
    ]


@pytest.mark.parametrize("negated", [True, False, 1, 0, -1, "yes"])
def test_negation_is_true_or_false(negated: Any) -> None:
    for name in ("neg_a", "neg_b"):
        f = fault(**{name: negated})
        assert codes(f) == ([] if isinstance(negated, bool) else ["wgmma/negation"])
        assert isinstance(negated, bool) or f"{name} is {negated!r}, expected True" in text(f)


def test_keywords_that_repeat_the_opcode_agree_with_it() -> None:
    right = {"instruction_shape": (64, 64, 16), "a_format": "bf16", "b_format": "bf16"}
    assert codes(fault(**right)) == []
    assert codes(fault(**{**right, "instruction_shape": (64, 128, 16)})) == [
        "wgmma/instruction-shape"
    ]
    assert codes(fault(**{**right, "b_format": "f16"})) == ["wgmma/b-format"]
    assert codes(fault(pred=True)) == ["wgmma/unknown-keyword"]


# --- what the simulator finds


@tile.jit
def misuse(D, A, B, never: T.int32, what: T.constexpr):
    """A product of one group, with one step left out or one too many. ``never`` is 0, which the checker
    does not know: it takes for possible what never comes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    a, b = staged(A, 128, t, 128), staged(B, 128, t, 128)
    if what != "no proxy fence":
        T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    sums = T.alloc_local((32,), "float32", layout="default")
    words = T.alloc_local((16,), "uint32", layout="default")
    for i in T.unroll(16):
        words[i] = 0
    if what == "zeros":
        for i in T.unroll(32):
            sums[i] = 0.0
    if what != "no fence" or never > 0:
        T.ptx["wgmma.fence.sync.aligned"]()
    if what == "write after the fence":
        words[3] = 1
    d = sums.view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64))
    operand = b.view(1, 64, 4, 16).permute(0, 2, 1, 3)
    opcode = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
    registers = words.view(1, 4, 64, 8, layout=T.cuda.wgmma_words_layout(8, (1, 4)))
    T.cuda.tile.apply(
        T.ptx[opcode], d, registers, operand, scope="warpgroup", accum=what == "zeros"
    )
    T.cuda.tile.apply(
        T.ptx[opcode],
        d,
        a.view(1, 64, 4, 16).permute(0, 2, 1, 3),
        operand,
        scope="warpgroup",
        accum=True,
    )
    if never > 0:
        T.ptx["wgmma.commit_group.sync.aligned"]()
        T.ptx["wgmma.wait_group.sync.aligned"](0)
    if what == "accumulator scaled":
        sums[5] = sums[5] * 2.0
    if what == "words written":
        words[0] = 7
    if what == "words read":
        D[t, 0] = T.cast(words[0], "float32")
    if what != "no commit":
        T.ptx["wgmma.commit_group.sync.aligned"]()
    if what == "tile written" and t < 64:
        b[t, 0] = B[0, 0]
    if what == "another group" or what == "too many pending":
        other = T.alloc_local((4,), "float32", layout="default")
        T.cuda.tile.apply(
            T.ptx["wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"],
            other.view(1, 1, 64, 8, layout=T.cuda.wgmma_fragment_layout(8)),
            a.view(1, 64, 4, 16).permute(0, 2, 1, 3)[:, 0:1, :, :],
            b.view(8, 8, 4, 16).permute(0, 2, 1, 3)[0:1, 0:1, :, :], scope="warpgroup",
        )  # fmt: skip
        T.ptx["wgmma.commit_group.sync.aligned"]()
    if what == "another shape":
        T.cuda.tile.apply(
            T.ptx["wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"],
            sums.sub[0:4].view(1, 1, 64, 8, layout=T.cuda.wgmma_fragment_layout(8)),
            a.view(1, 64, 4, 16).permute(0, 2, 1, 3)[:, 0:1, :, :],
            b.view(8, 8, 4, 16).permute(0, 2, 1, 3)[0:1, 0:1, :, :], scope="warpgroup", accum=True,
        )  # fmt: skip
    if what == "another group":
        T.ptx["wgmma.wait_group.sync.aligned"](1)
    elif what == "too many pending":
        T.ptx["wgmma.wait_group.sync.aligned"](2)
    elif what != "no wait":
        T.ptx["wgmma.wait_group.sync.aligned"](0)
    if what == "tile written after the wait":
        T.cuda.cta_sync()
        if t < 64:
            b[t, 0] = B[0, 0]
    for i in T.unroll(32):
        D[t, i] = sums[i]


FINDS = {
    "no proxy fence": "sim/proxy-fence", "no fence": "sim/wgmma-fence",
    "write after the fence": "sim/wgmma-fence", "accumulator scaled": "sim/in-flight",
    "words written": "sim/in-flight", "no commit": "sim/in-flight", "no wait": "sim/in-flight",
    "tile written": "sim/in-flight", "too many pending": "sim/in-flight", "another shape": "sim/in-flight",
}  # fmt: skip


def misused(what: str) -> None:
    a, b = torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16)
    misuse(torch.zeros(128, 32), a, b, 0, what)


@pytest.mark.parametrize("what", FINDS)
def test_misuse_is_found(what: str) -> None:
    with pytest.raises(SimulationFault) as caught:
        misused(what)
    assert FINDS[what] in {d.code for d in caught.value.diagnostics}


@pytest.mark.parametrize(
    "what", ["nothing", "zeros", "words read", "another group", "tile written after the wait"]
)
def test_right_use_passes(what: str) -> None:
    misused(what)


# --- targets, spellings, the assembler


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100a", "sm_120a"])
def test_other_targets_are_refused_by_name(target: str) -> None:
    with pytest.raises(TargetError) as caught:
        check(fault(target=target), FAMILIES)
    assert f"needs sm_90a, this kernel is compiled for {target}" in str(caught.value)


def test_forms_assemble_for_sm_90a_alone() -> None:
    """A part of them; ``ptx.test_assembles`` has all."""
    written = [statement(form) for form in forms_of_family("wgmma")[::17]]
    wrong = refused(written, "sm_90a")
    assert not wrong, {written[i]: m for i, m in list(wrong.items())[:3]}
    for target in ("sm_90", "sm_100a"):
        assert len(refused(written, target)) == len(written)


@pytest.mark.parametrize(
    "opcode",
    ["m64n12k16.f32.bf16.bf16", "m64n264k16.f32.f16.f16", "m128n64k16.f32.f16.f16",
     "m64n64k16.f32.f16.bf16", "m64n64k16.bf16.bf16.bf16", "m64n40k32.s32.s8.s8", "m64n64k8.f32.bf16.bf16",
     "m64n64k32.f32.s8.s8"],
)  # fmt: skip
def test_what_is_no_form(opcode: str) -> None:
    with pytest.raises(SpellingError):
        lookup(PREFIX + opcode)


@tile.jit
def loop(A, D, n: T.constexpr, blocks: T.constexpr):
    """The main loop of a product, with its barriers left out."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=384))
    a = T.alloc_shared(
        (3, 64 * blocks * 2, 64), A.dtype, align=1024,
        layout=T.cuda.wgmma_shared_layout((3, 64 * blocks * 2, 64), A.dtype),
    )  # fmt: skip
    b = T.alloc_shared(
        (3, n, 64), A.dtype, align=1024, layout=T.cuda.wgmma_shared_layout((3, n, 64), A.dtype)
    )
    group = T.cuda.warpgroup_id()
    if group > 0:
        T.ptx["setmaxnreg.inc.sync.aligned.u32"](240)
        sums = T.alloc_local((blocks * n // 2,), "float32", layout="default")
        d = sums.view(blocks, 1, 64, n, layout=T.cuda.wgmma_fragment_layout(n, (blocks, 1)))
        stage = 0
        for k in range(A.shape[1] // 64):
            own = a.sub[stage, :, :].view(2, blocks, 64, 4, 16).sub[group - 1, :, :, :, :]
            T.ptx["wgmma.fence.sync.aligned"]()
            T.cuda.tile.apply(
                T.ptx[f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16"], d,
                own.permute(0, 2, 1, 3), b.sub[stage, :, :].view(1, n, 4, 16).permute(0, 2, 1, 3),
                accum=k != 0, scope="warpgroup",
            )  # fmt: skip
            T.ptx["wgmma.commit_group.sync.aligned"]()
            T.ptx["wgmma.wait_group.sync.aligned"](0)
            stage = 0 if stage == 2 else stage + 1
        for i in T.unroll(blocks * n // 2):
            D[T.cuda.linear_thread_id(), i] = sums[i]
    else:
        T.ptx["setmaxnreg.dec.sync.aligned.u32"](24)


@pytest.mark.parametrize(("n", "blocks"), [(256, 1), (192, 2), (64, 2)])
def test_a_main_loop_compiles_without_a_warning(n: int, blocks: int) -> None:
    """No spill, no serialised wgmma; CompilerWarnings are errors in tests."""
    a, d = torch.zeros(64, 512, dtype=torch.bfloat16), torch.zeros(384, blocks * n // 2)
    compiled = loop.compile(a, d, n, blocks, target="sm_90a")
    assert compiled.warnings == ()
    assert compiled.ptx.count("wgmma.mma_async") == 4 * blocks


@tile.jit
def rolled(A, D):
    """A loop inside a group, which the assembler cannot follow."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    a = T.alloc_shared(
        (4, 64, 16), A.dtype, align=1024,
        layout=T.cuda.wgmma_shared_layout((4, 64, 16), A.dtype),
    )  # fmt: skip
    sums = T.alloc_local((32,), "float32", layout="default")
    T.ptx["wgmma.fence.sync.aligned"]()
    for k in range(4):
        operand = a.sub[k, :, :].view(1, 1, 64, 16)
        T.cuda.tile.apply(
            T.ptx["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"],
            sums.view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64)), operand, operand,
            accum=k > 0, scope="warpgroup",
        )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    for i in T.unroll(32):
        D[T.cuda.thread_idx("x"), i] = sums[i]


@tile.jit
def calling(A, D):
    """A call inside a group: what prints is a function."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    a = T.alloc_shared(
        (64, 64), A.dtype, align=1024, layout=T.cuda.wgmma_shared_layout((64, 64), A.dtype)
    )
    operand = a.view(1, 64, 4, 16).permute(0, 2, 1, 3)
    sums = T.alloc_local((32,), "float32", layout="default")
    for k in range(A.shape[0]):
        T.ptx["wgmma.fence.sync.aligned"]()
        T.cuda.tile.apply(
            T.ptx["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"],
            sums.view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64)), operand, operand,
            accum=k > 0, scope="warpgroup",
        )  # fmt: skip
        T.ptx["wgmma.commit_group.sync.aligned"]()
        T.print("{}", k)
        T.ptx["wgmma.wait_group.sync.aligned"](0)
    for i in T.unroll(32):
        D[T.cuda.thread_idx("x"), i] = sums[i]


def test_the_assemblers_remarks_are_warnings_with_a_repair() -> None:
    a, d = torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(128, 32)
    with pytest.warns(pipeline.CompilerWarning, match="crosses a function call"):
        compiled = calling.compile(a, d, target="sm_90a")
    assert [w.code for w in compiled.warnings] == ["nvrtc/C7510"]


@pytest.mark.filterwarnings("ignore::tilejit.pipeline.CompilerWarning")
def test_a_rolled_group() -> None:
    """The assembler of NVRTC 13.0 puts fences into it, that of 13.5 follows it."""
    a, d = torch.zeros(64, 64, dtype=torch.bfloat16), torch.zeros(128, 32)
    compiled = rolled.compile(a, d, target="sm_90a")
    follows = nvrtc.version() >= (13, 5)
    assert {w.code for w in compiled.warnings} == (set() if follows else {"nvrtc/C7519"})
    assert all(w.span is not None for w in compiled.warnings)


# --- order, where it is certain

FENCE = "wgmma.fence.sync.aligned"


def ordered(*body: Any) -> list[str]:
    """Codes of a kernel of these statements: texts are raw instructions, a number waits for all but so
    many groups, "D" touches the accumulators."""
    d = accumulators()
    touched = whole(d.buffer)
    zero = build.const(0, dtypes.int32)
    made: list[nodes.Stmt] = []
    for item in body:
        if item == "mma":
            made.append(apply(PREFIX + BF16, d, a_tile(), b_tile(), scope="warpgroup"))
        elif item == "D":
            made.append(nodes.Store(touched, (zero,), build.const(0.0, dtypes.float32)))
        elif isinstance(item, int):
            made.append(raw("wgmma.wait_group.sync.aligned", build.const(item, dtypes.int32)))
        elif isinstance(item, str):
            made.append(raw(f"wgmma.{item}.sync.aligned"))
        else:
            made.append(item)
    return codes(kernel(*made))


def test_a_missing_fence_is_found() -> None:
    assert ordered("fence", "mma", "commit_group", 0, "D") == []
    assert ordered("mma", "commit_group", 0, "D") == ["wgmma/fence"]
    assert ordered("fence", "D", "mma", "commit_group", 0) == ["wgmma/fence"]
    assert ordered("D", "fence", "mma", "mma", "commit_group", 0) == []
    assert ordered("fence", "mma", "commit_group", 0, "D", "mma") == ["wgmma/fence"]


def test_touching_accumulators_in_flight_is_found() -> None:
    assert ordered("fence", "mma", "commit_group", "D") == ["wgmma/in-flight"]
    assert ordered("fence", "mma", "D", "commit_group", 0) == ["wgmma/in-flight"]
    assert ordered("fence", "mma", "commit_group", 1, "D") == ["wgmma/in-flight"]
    assert ordered("fence", "mma", "commit_group", "commit_group", 1, "D") == []
    assert ordered("fence", "mma", "commit_group", "commit_group", 3, "D") == ["wgmma/in-flight"]


def test_what_only_some_ways_hold_is_left_to_the_simulator() -> None:
    wait = raw("wgmma.wait_group.sync.aligned", build.const(0, dtypes.int32))
    maybe = guard(op("lt", hw("ctaid.x"), 2), wait)
    assert ordered("fence", "mma", "commit_group", maybe, "D") == []
    assert ordered(guard(op("lt", hw("ctaid.x"), 2), raw(FENCE)), "mma", "commit_group", 0) == []


MMA = apply(PREFIX + BF16, accumulators(), a_tile(), b_tile(), scope="warpgroup")
COMMIT = raw("wgmma.commit_group.sync.aligned")
WAIT = raw("wgmma.wait_group.sync.aligned", build.const(0, dtypes.int32))
TOUCH = nodes.Store(
    whole(accumulators().buffer), (build.const(0, dtypes.int32),), build.const(0.0, dtypes.float32)
)
SOME = op("lt", hw("ctaid.x"), 2)


def rounds(*body: nodes.Stmt) -> nodes.For:
    first, step = build.const(0, dtypes.int32), build.const(1, dtypes.int32)
    return nodes.For(nodes.Var("i", nodes.INT32), first, build.const(4, dtypes.int32), step, body)


def test_a_loop_is_left_where_it_is_broken_off() -> None:
    """The product that a round begins is waited for at the start of the next one, where the loop may end."""
    body = (WAIT, guard(SOME, nodes.Break()), raw(FENCE), MMA, COMMIT)
    before = ("fence", "mma", "commit_group")
    assert ordered(*before, nodes.While(body), "D") == []
    assert ordered(*before, rounds(*body), "D") == []
    breaking = nodes.While((guard(SOME, nodes.Break()), WAIT, raw(FENCE), MMA, COMMIT))
    assert ordered(*before, breaking, "D") == ["wgmma/in-flight"]


def test_only_the_ways_that_go_on_are_kept() -> None:
    before = ("fence", "mma", "commit_group")
    for leaves in (nodes.Return(), nodes.Break(), nodes.Continue()):
        one = guard(SOME, WAIT, leaves)
        assert ordered(*before, rounds(one, TOUCH)) == ["wgmma/in-flight"]
    assert ordered(*before, rounds(guard(SOME, WAIT, nodes.Continue())), "D") == []
    assert ordered(*before, rounds(WAIT, TOUCH, nodes.Continue())) == []


def test_reports_are_of_first_rounds() -> None:
    assert ordered("fence", rounds(TOUCH, raw(FENCE), MMA, COMMIT)) == []
    assert ordered("fence", rounds(rounds(MMA, COMMIT, TOUCH, WAIT))) == ["wgmma/in-flight"]


def test_one_instruction_fits_the_threads_registers() -> None:
    wide = "m64n256k16.f32.bf16.bf16"
    b = tiles(shared("b", (256, 16), "bfloat16", None), 256, 16, "k")
    d = accumulators(n=256)
    group = op("lt", hw("tid"), 128)
    for threads, expected in ((384, []), (512, ["wgmma/registers"])):
        f = fault(d, b=b, opcode=wide, block=(threads,), wrap=lambda s: guard(group, s))
        assert codes(f) == expected
    assert "128 accumulators and about 24 other registers; the 512 threads" in text(f)


def test_all_accumulators_fit_a_thread() -> None:
    for n, expected in ((208, []), (256, ["wgmma/registers"])):
        b = tiles(shared("b", (n, 16), "bfloat16", None), n, 16, "k")
        opcode = f"m64n{n}k16.f32.bf16.bf16"
        assert codes(fault(accumulators((2, 1), n), a_tile(128), b, opcode=opcode)) == expected
    many = fault(accumulators((1, 1), 256), words((1, 30)), tiles(shared("b", (256, 480), "bfloat16", None), 256, 16, "k"),
                 opcode="m64n256k16.f32.bf16.bf16")  # fmt: skip
    assert "128 accumulators, 120 words of A" in text(many)


# --- warps that come one by one, and tiles that are used again


@tile.jit
def ring(A, B, D, spread: T.constexpr, what: T.constexpr):
    """One warpgroup fills two stages in turn, one multiplies; a single thread says that a stage is free."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    rounds = A.shape[0]
    a = T.alloc_shared(
        (2, 64, 16), A.dtype, align=1024, layout=T.cuda.wgmma_shared_layout((2, 64, 16), A.dtype)
    )
    b = T.alloc_shared(
        (2, 16, 16), B.dtype, align=1024, layout=T.cuda.wgmma_shared_layout((2, 16, 16), B.dtype)
    )
    full = T.alloc_shared((2,), "uint64", align=8)
    empty = T.alloc_shared((2,), "uint64", align=8)
    if T.cuda.linear_thread_id() == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared.b64"](full.ptr_to([i]), 128)
            T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([i]), 1)
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cta_sync()
    t = T.cuda.thread_in_warpgroup()
    stage, parity = 0, 0
    if T.cuda.warpgroup_id() == 0:
        for k in range(rounds):
            T.cuda.mbarrier_wait(empty.ptr_to([stage]), parity ^ 1)
            for i in range(t, 64 * 16, 128):
                a[stage, i // 16, i % 16] = A[k, i // 16, i % 16]
            for i in range(t, 16 * 16, 128):
                b[stage, i // 16, i % 16] = B[k, i // 16, i % 16]
            if what != "no proxy fence":
                T.ptx["fence.proxy.async.shared::cta"]()
            T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, full.ptr_to([stage]))
            stage += 1
            if stage == 2:
                stage = 0
                parity = parity ^ 1
    else:
        sums = T.alloc_local((8,), "float32", layout="default")
        for k in range(rounds):
            T.cuda.mbarrier_wait(full.ptr_to([stage]), parity)
            if spread:
                # Two warps at a time meet somewhere else first.
                T.cuda.named_barrier_sync(1 + T.cuda.warp_in_warpgroup() // 2, 64)
            T.ptx["wgmma.fence.sync.aligned"]()
            T.cuda.tile.apply(
                T.ptx["wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"],
                sums.view(1, 1, 64, 16, layout=T.cuda.wgmma_fragment_layout(16)),
                a.sub[stage, :, :].view(1, 1, 64, 16), b.sub[stage, :, :].view(1, 1, 16, 16),
                accum=k != 0, scope="warpgroup",
            )  # fmt: skip
            T.ptx["wgmma.commit_group.sync.aligned"]()
            if what != "released too early":
                T.ptx["wgmma.wait_group.sync.aligned"](0)
            if t == 0:
                T.ptx["mbarrier.arrive.shared.b64"](T.ptx.SINK, empty.ptr_to([stage]))
            T.ptx["wgmma.wait_group.sync.aligned"](0)
            stage += 1
            if stage == 2:
                stage = 0
                parity = parity ^ 1
        for i in T.unroll(8):
            D[t, i] = sums[i]


def turns(device: str, spread: bool, what: str = "") -> tuple[np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-2, 3, (5, 64, 16), generator=generator).to(torch.bfloat16)
    b = torch.randint(-2, 3, (5, 16, 16), generator=generator).to(torch.bfloat16)
    out = torch.zeros(128, 8).to(device)
    ring(a.to(device), b.to(device), out, spread, what)
    found = gathered(out.cpu().numpy(), Shape("m64n16k16.f32.bf16.bf16"), ())
    return found[0], torch.einsum("kij,klj->il", a.float(), b.float()).numpy()


@pytest.mark.parametrize("spread", [False, True])
def test_one_thread_may_release_what_its_warpgroup_read(device: str, spread: bool) -> None:
    """The four warps multiply together, whenever each comes."""
    on_this(device)
    got, expected = turns(device, spread)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("what", "code"),
    [("released too early", "sim/in-flight"), ("no proxy fence", "sim/proxy-fence")],
)
def test_stages_are_watched_across_warpgroups(what: str, code: str) -> None:
    with pytest.raises(SimulationFault) as caught:
        turns("cpu", True, what)
    assert code in {d.code for d in caught.value.diagnostics}


def test_layouts_have_the_instructions_extents() -> None:
    for wrong in (12, 264, 0, True):
        with pytest.raises(layout.LayoutError, match="8 to 256 columns"):
            T.cuda.wgmma_fragment_layout(wrong)
    for wrong in (6, 132):
        with pytest.raises(layout.LayoutError, match="4 to 128 words"):
            T.cuda.wgmma_words_layout(wrong)
    with pytest.raises(layout.LayoutError, match="9 warpgroups"):
        T.cuda.wgmma_fragment_layout(8, warpgroups=9)
    with pytest.raises(layout.LayoutError, match="multiple of 128"):
        T.cuda.wgmma_shared_layout((64, 32), "float16", 128)


# --- raw calls


@tile.jit
def by_hand(A, B, D, uneven: T.constexpr, base_offset: T.constexpr = 0):
    """One instruction with descriptors that the author packed: K-major, no swizzle."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    a, b = staged(A, 0, t, 128), staged(B, 0, t, 128)
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    d = T.alloc_local((4,), "float32", layout="default")
    low_a = T.bitcast(a.ptr_to([0, 0]), "uint32") >> 4 | (64 * 16 // 16 << 16)
    low_b = T.bitcast(b.ptr_to([0, 0]), "uint32") >> 4 | (8 * 16 // 16 << 16)
    high = T.uint64(128 // 16 | base_offset << 17) << 32
    if uneven:
        low_b += T.cast(t % 2, "uint32")
    T.ptx["wgmma.fence.sync.aligned"]()
    T.ptx["wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"](
        (d[0], d[1], d[2], d[3]), T.cast(low_a, "uint64") | high, T.cast(low_b, "uint64") | high,
        T.ptx.pred(False), 1, -1, 0, 0,
    )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    for i in T.unroll(4):
        D[t, i] = d[i]


def test_raw_calls_take_descriptors(device: str) -> None:
    on_this(device)
    generator = torch.Generator().manual_seed(2)
    a, b = (
        torch.randint(-3, 4, (rows, 16), generator=generator).to(torch.bfloat16).to(device)
        for rows in (64, 8)
    )
    out = torch.zeros(128, 4).to(device)
    by_hand(a, b, out, False)
    found = gathered(out.cpu().numpy(), Shape("m64n8k16.f32.bf16.bf16"), ())[0]
    assert np.array_equal(found, -(a.float() @ b.float().t()).cpu().numpy())


def test_operands_of_a_warpgroup_are_uniform() -> None:
    ones = torch.ones(64, 16, dtype=torch.bfloat16)
    with pytest.raises(SimulationFault) as caught:
        by_hand(ones, ones[:8].clone(), torch.zeros(128, 4), True)
    assert "sim/wgmma-operand" in {d.code for d in caught.value.diagnostics}


def test_base_offsets_are_outside_the_simulator() -> None:
    ones = torch.ones(64, 16, dtype=torch.bfloat16)
    with pytest.raises(tile.errors.Unsimulated, match="with a base offset"):
        by_hand(ones, ones[:8].clone(), torch.zeros(128, 4), False, 1)


@tile.jit
def raw_in_part(Y: T.Tensor((128,), "float32"), whole: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    if T.cuda.thread_idx("x") < (128 if whole else 32):
        T.ptx["wgmma.commit_group.sync.aligned"]()


def test_raw_instructions_need_whole_warpgroups() -> None:
    y = torch.zeros(128)
    raw_in_part.check(y, True, target="sm_90a")
    with pytest.raises(tile.ContractError, match="scope/partial-warpgroup"):
        raw_in_part.check(y, False, target="sm_90a")


def test_a_fragment_made_twice_is_one() -> None:
    """Threads that check at a time may each make the map of an instruction; a walk finds either."""
    again = wgmma.accumulator.__wrapped__(64)
    assert again is not wgmma.accumulator(64)
    assert again == wgmma.accumulator(64) and hash(again) == hash(wgmma.accumulator(64))
    assert again != wgmma.accumulator(128) and again != wgmma.packed_words(64)
