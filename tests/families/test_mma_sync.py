"""The mma.sync contract: fragments and order against numpy built from the contract's formulas alone, on
the simulator and on the GPU; refusals at the nearest illegal value; what assembles for which target."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.ptx.test_assembles import refused, statement
from tests.tile.kit import (
    apply,
    at,
    buffer,
    codes,
    guard,
    hw,
    issues,
    kernel,
    op,
    text,
    var,
    views,
    whole,
)  # fmt: skip
from tilejit import T, dtypes, layout
from tilejit.errors import TargetError
from tilejit.families import FAMILIES
from tilejit.ir import nodes
from tilejit.ptx.spelling import SpellingError, forms_of_family, lookup
from tilejit.target import Target
from tilejit.tile.checker import check

PREFIX = "mma.sync.aligned."
LANE = np.arange(32)

# --- the oracle: matrices, words and fragments in numpy

TORCH_FLOATS = {
    "f16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2, "tf32": torch.float32, "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip
INTEGERS = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}
LOCAL = {"f32": "float32", "tf32": "float32", "f64": "float64", "s32": "int32"}
"""The element type of a register tile; a packed type's is uint32."""


def as_words(values: np.ndarray, kind: str) -> np.ndarray:
    """Rows of values as rows of registers' words."""
    if kind in INTEGERS:
        raw = np.ascontiguousarray(values.astype(INTEGERS[kind]))
    else:
        cast = torch.from_numpy(np.ascontiguousarray(values)).to(TORCH_FLOATS[kind])
        raw = cast.contiguous().view(torch.uint8).numpy()
    return raw.view(np.uint64 if kind == "f64" else np.uint32)


def as_values(words: np.ndarray, kind: str) -> np.ndarray:
    raw = np.ascontiguousarray(words)
    if kind in INTEGERS:
        return raw.view(INTEGERS[kind]).astype(np.float64)
    return torch.from_numpy(raw.view(np.uint8)).view(TORCH_FLOATS[kind]).double().numpy()


@dataclass(frozen=True)
class Shape:
    """An opcode's shape and types, and its fragments by the contract's formulas."""

    opcode: str

    @property
    def kinds(self) -> list[str]:
        """Of D, A, B, C."""
        return self.opcode.split(".")[-4:]

    @property
    def mnk(self) -> tuple[int, int, int]:
        m, rest = self.opcode.split(".")[3][1:].split("n")
        n, k = rest.split("k")
        return int(m), int(n), int(k)

    def per_word(self, position: int) -> int:
        kind = self.kinds[position]
        return {"f16": 2, "bf16": 2, "e4m3": 4, "e5m2": 4, "s8": 4, "u8": 4}.get(kind, 1)

    def atom(self, position: int) -> tuple[int, int]:
        m, n, k = self.mnk
        rows = n if position == 2 else m
        columns = k if position in (1, 2) else n
        return rows, columns // self.per_word(position)

    def count(self, position: int) -> int:
        rows, columns = self.atom(position)
        return rows * columns // 32

    def coordinate(self, position: int, r: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and word of register ``r`` in every lane."""
        l = LANE
        if position == 1:
            return l // 4 + 8 * (r % 2), l % 4 + 4 * (r // 2)
        if position == 2:
            return l // 4, l % 4 + 4 * r
        if self.kinds[0] == "f16":
            return l // 4 + 8 * r, l % 4
        return l // 4 + 8 * (r // 2), 2 * (l % 4) + r % 2

    def scattered(self, position: int, words: np.ndarray) -> np.ndarray:
        """(warps, *repeats, rows, words) to (threads, slots): repeats row-major, then registers."""
        columns = [
            np.moveaxis(words[(..., *self.coordinate(position, r))], -1, 1)
            for r in range(self.count(position))
        ]
        return np.stack(columns, axis=-1).reshape(words.shape[0] * 32, -1)

    def gathered(self, slots: np.ndarray, repeats: tuple[int, ...]) -> np.ndarray:
        """D's slots back to (warps, *repeats, rows, words)."""
        count = self.count(0)
        per_lane = slots.reshape(-1, 32, *repeats, count)
        found = np.zeros((per_lane.shape[0], *repeats, *self.atom(0)), slots.dtype)
        for r in range(count):
            found[(..., *self.coordinate(0, r))] = np.moveaxis(per_lane[..., r], 1, -1)
        return found

    def notation(
        self, position: int, repeats: tuple[int, ...], stride: int = 1, warps: str = ""
    ) -> str:
        """Slots in the order of ``scattered``, ``stride`` apart, as a layout."""
        count = self.count(position) * stride
        pieces: list[tuple[int, str]] = []
        for axis, extent in enumerate(repeats):
            inner = int(np.prod(repeats[axis + 1 :], dtype=int))
            pieces.append((extent, str(inner * count)))
        rows, columns = self.atom(position)
        if position in (1, 2):
            halves = rows // 8
            pieces += [(halves, str(stride)), (8, "4@laneid")]
            pieces += [(columns // 4, str(halves * stride)), (4, "1@laneid")]
        else:
            pairs = columns // 4
            pieces += [(rows // 8, str(pairs * stride)), (8, "4@laneid")]
            pieces += [(4, "1@laneid"), (pairs, str(stride))]
        if warps:
            extent, axis_ = warps.split("@")
            pieces.insert(0, (int(extent), f"1@{axis_}"))
        extents = ",".join(str(e) for e, _ in pieces)
        return f"({extents}):({','.join(s for _, s in pieces)})"


# --- one kernel for every form


@tile.jit
def multiply(D, A, B, C, opcode: T.constexpr, scope: T.constexpr, block: T.constexpr, types: T.constexpr,
             shapes: T.constexpr, layouts: T.constexpr, stride: T.constexpr, addend: T.constexpr):  # fmt: skip
    """One apply; X[thread, slot] are the words of every thread's registers, ``stride`` apart."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=D.shape[0] // block, block=block))
    t = T.cuda.block_idx("x") * block + T.cuda.thread_idx("x")
    d = T.alloc_local((D.shape[1] * stride,), types[0], layout="default")
    a = T.alloc_local((A.shape[1] * stride,), types[1], layout="default")
    b = T.alloc_local((B.shape[1] * stride,), types[2], layout="default")
    c = T.alloc_local((D.shape[1] * stride,), types[3], layout="default")
    fill(a, A, t, stride)
    fill(b, B, t, stride)
    fill(c, C, t, stride)
    df = d.view(*shapes[0], layout=T.layout(layouts[0]))
    af = a.view(*shapes[1], layout=T.layout(layouts[1]))
    bf = b.view(*shapes[2], layout=T.layout(layouts[2]))
    cf = c.view(*shapes[3], layout=T.layout(layouts[3]))
    if addend == "tensor":
        T.cuda.tile.apply(T.ptx[opcode], df, af, bf, cf, scope=scope)
    elif addend == "in place":
        fill(d, C, t, stride)
        T.cuda.tile.apply(T.ptx[opcode], df, af, bf, df, scope=scope)
    elif addend == "run-time scalar":
        T.cuda.tile.apply(T.ptx[opcode], df, af, bf, c[0], scope=scope)
    else:
        T.cuda.tile.apply(T.ptx[opcode], df, af, bf, addend, scope=scope)
    bits = d.view(D.dtype)
    for i in T.unroll(D.shape[1]):
        D[t, i] = bits[i * stride]


@tile.jit
def fill(registers, X, t, stride: T.constexpr):
    bits = registers.view(X.dtype)
    for i in T.unroll(X.shape[1]):
        bits[i * stride] = X[t, i]


def run(
    device: str,
    opcode: str,
    operands: list[np.ndarray],
    *,
    addend: Any = "tensor",
    scope: str = "warp",
    stride: int = 1,
) -> np.ndarray:
    """D's words from the words of A, B and C: (warps, *batch, M, K, m, words) and so on.

    In ``warp`` scope a block has two warps, or one where they do not pair off.
    """
    shape = Shape(PREFIX + opcode)
    a, b, c = operands
    warps = a.shape[0]
    block = 32 * (warps if scope != "warp" else 2 - warps % 2)
    axis = {"warpgroup": "4@wid_in_wg", "cta": f"{warps}@warpid"}.get(scope, "")
    lead = (int(axis.split("@")[0]),) if axis else ()
    repeats = [x.shape[1:-2] for x in (c, a, b, c)]
    types = tuple(LOCAL.get(kind, "uint32") for kind in shape.kinds)
    shapes = tuple((*lead, *r, *shape.atom(p)) for p, r in enumerate(repeats))
    layouts = tuple(shape.notation(p, r, stride, axis) for p, r in enumerate(repeats))
    given = [shape.scattered(p + 1, x) for p, x in enumerate(operands)]
    tensors = [torch.from_numpy(x).to(device) for x in given]
    out = torch.zeros_like(tensors[2])
    multiply(out, *tensors, shape.opcode, scope, block, types, shapes, layouts, stride, addend)
    return shape.gathered(out.cpu().numpy(), repeats[0])


def on_this(device: str, opcode: str) -> None:
    if device == "cuda":
        here = Target.of_capability(*torch.cuda.get_device_capability())
        (form,) = lookup(PREFIX + opcode)
        if not here.supports(form.min_target):
            pytest.skip(f"{opcode} needs {form.min_target}")


def small_integers(
    opcode: str, warps: int, batch: tuple[int, ...], repeats: tuple[int, int, int], seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Words of A, B, C, and their values: integers that every type has exactly, as are all sums."""
    rng = np.random.default_rng(seed)
    shape = Shape(PREFIX + opcode)
    m, n, k = shape.mnk
    rows, columns, depth = repeats
    words, values = [], []
    for position, tail in ((1, (rows, depth, m, k)), (2, (columns, depth, n, k)), (3, (rows, columns, m, n))):  # fmt: skip
        kind = shape.kinds[position]
        low, high = (0, 4) if kind == "u8" else (-3, 4)
        chosen = rng.integers(low, high, (warps, *batch, *tail)).astype(np.float64)
        words.append(as_words(chosen, kind))
        values.append(chosen)
    return words, values


def product(values: list[np.ndarray]) -> np.ndarray:
    """C plus the sum over K repeats of A times B transposed."""
    a, b, c = values
    return c + np.einsum("w...mkij,w...nklj->w...mnil", a, b)


OPCODES = [form.spelling.removeprefix(PREFIX) for form in forms_of_family("mma_sync")]
HALF = "m16n8k16.row.col.f32.f16.f16.f32"


@pytest.mark.parametrize("opcode", OPCODES)
def test_every_form(device: str, opcode: str) -> None:
    on_this(device, opcode)
    words, values = small_integers(opcode, 2, (), (2, 2, 2), seed=len(opcode))
    got = run(device, opcode, words)
    kind = Shape(opcode).kinds[0]
    assert np.array_equal(as_values(got, kind), product(values))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_random_values_within_the_rounding_of_f32(device: str, kind: str) -> None:
    opcode = f"m16n8k16.row.col.f32.{kind}.{kind}.f32"
    rng = np.random.default_rng(3)
    words = [
        as_words(rng.standard_normal(shape), kind_)
        for shape, kind_ in (((1, 1, 4, 16, 16), kind), ((1, 2, 4, 8, 16), kind), ((1, 1, 2, 16, 8), "f32"))
    ]  # fmt: skip
    values = [as_values(w, k) for w, k in zip(words, (kind, kind, "f32"))]
    got = as_values(run(device, opcode, words), "f32")
    bound = product([np.abs(v) for v in values]) * 2.0**-20
    assert (np.abs(got - product(values)) <= bound).all()


@pytest.mark.parametrize("addend", ["tensor", "in place", "run-time scalar", 2.0])
@pytest.mark.parametrize("batch", [(), (2,), (2, 1, 2)])
def test_addends_and_batches(device: str, addend: Any, batch: tuple[int, ...]) -> None:
    words, values = small_integers(HALF, 1, batch, (2, 3, 2), seed=5)
    if addend == 2.0:
        values[2] = np.full_like(values[2], 2)
    elif addend == "run-time scalar":
        words[2][...] = as_words(np.full(values[2].shape, 3.0), "f32")
        values[2] = np.full_like(values[2], 3)
    got = as_values(run(device, HALF, words, addend=addend), "f32")
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize(
    ("opcode", "addend", "value"),
    [("m16n8k8.row.col.f16.f16.f16.f16", 0, 0), ("m16n8k32.row.col.s32.u8.s8.s32", -7, -7),
     ("m16n8k16.row.col.f64.f64.f64.f64", 0.5, 0.5), ("m16n8k4.row.col.f32.tf32.tf32.f32", 1, 1)],
)  # fmt: skip
def test_a_literal_addend_has_the_accumulators_type(
    device: str, opcode: str, addend: Any, value: float
) -> None:
    on_this(device, opcode)
    words, values = small_integers(opcode, 1, (), (1, 1, 1))
    values[2] = np.full_like(values[2], value)
    got = as_values(run(device, opcode, words, addend=addend), Shape(opcode).kinds[0])
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("addend", ["tensor", "in place"])
@pytest.mark.parametrize("opcode", [HALF, "m16n8k8.row.col.f64.f64.f64.f64"])
def test_slots_may_be_strided(device: str, opcode: str, addend: str) -> None:
    on_this(device, opcode)
    words, values = small_integers(opcode, 1, (), (2, 1, 2))
    got = run(device, opcode, words, stride=3, addend=addend)
    assert np.array_equal(as_values(got, Shape(opcode).kinds[0]), product(values))


@pytest.mark.parametrize(("scope", "warps"), [("warpgroup", 4), ("warpgroup", 8), ("cta", 3)])
def test_wider_scopes_add_a_warp_axis(device: str, scope: str, warps: int) -> None:
    words, values = small_integers(HALF, warps, (2,), (1, 2, 2), seed=warps)
    got = as_values(run(device, HALF, words, scope=scope), "f32")
    assert np.array_equal(got, product(values))


@pytest.mark.parametrize("saturate", ["", "satfinite."])
def test_every_issue_saturates_on_its_own(device: str, saturate: str) -> None:
    """Up past the limit at the first K, down again at the second: only the order tells."""
    opcode = f"m16n8k16.row.col.{saturate}s32.s8.s8.s32"
    a = np.full((1, 1, 2, 16, 16), 127)
    a[:, :, 1] = -100
    words = [as_words(a, "s8"), as_words(np.full((1, 1, 2, 8, 16), 127), "s8"),
             as_words(np.full((1, 1, 1, 16, 8), 2**31 - 10), "s32")]  # fmt: skip
    up, down = 16 * 127 * 127, -16 * 100 * 127
    expected = 2**31 - 1 + down if saturate else 2**31 - 10 + up + down - 2**32
    got = as_values(run(device, opcode, words), "s32")
    expected = expected if saturate or expected >= -(2**31) else expected + 2**32
    assert (got == expected).all()


# --- steps and refusals, on kernels made by hand


def registers(
    name: str,
    position: int,
    repeats: tuple[int, ...] = (1, 1),
    *,
    opcode: str = HALF,
    stride: int = 1,
    dtype: str | None = None,
    buffer_name: str | None = None,
    offset: int = 0,
    size: int | None = None,
    notation: str | None = None,
) -> nodes.View:
    """A register tile with the fragment's owners, in a buffer of its own unless one is named."""
    shape = Shape(PREFIX + opcode)
    kind = dtype or LOCAL.get(shape.kinds[position], "uint32")
    slots = int(np.prod(repeats)) * shape.count(position) * stride
    flat = whole(buffer(buffer_name or name, (size or slots + offset,), kind))
    part = at(flat, (offset, offset + slots, None)) if offset or size else flat
    return views.with_layout(
        part,
        (*repeats, *shape.atom(position)),
        layout.parse(notation or shape.notation(position, repeats, stride)),
    )


def fault(d=None, a=None, b=None, c=None, *, opcode: str = HALF, scope: str = "warp", wrap=None,
          keywords: dict[str, Any] | None = None, **launch: Any):  # fmt: skip
    """A kernel with one call whose operands are legal where not given."""
    d = registers("d", 0, opcode=opcode) if d is None else d
    a = registers("a", 1, opcode=opcode) if a is None else a
    b = registers("b", 2, opcode=opcode) if b is None else b
    c = registers("c", 3, opcode=opcode) if c is None else c
    call = apply(PREFIX + opcode, d, a, b, c, scope=scope, **(keywords or {}))
    return kernel(wrap(call) if wrap else call, block=(64,), **launch)


def slots_of(operand: Any) -> list[int]:
    return [register.slot for register in operand.items]


def test_order_spelling_and_count() -> None:
    m, n, k, batch = 2, 3, 4, 2
    f = fault(
        registers("d", 0, (batch, m, n)), registers("a", 1, (batch, m, k)),
        registers("b", 2, (batch, n, k)), registers("c", 3, (batch, m, n)),
    )  # fmt: skip
    found = issues(f)
    assert len(found) == batch * m * n * k
    assert {i.form.spelling for i in found} == {PREFIX + HALF}
    for issue, at_ in zip(found, itertools.product(range(batch), range(m), range(n), range(k))):
        z, i, j, l = at_
        assert issue.repeat == at_
        d, a, b, c = issue.operands
        tile_ = (z * m + i) * n + j
        assert slots_of(d) == [4 * tile_ + r for r in range(4)]
        assert slots_of(a) == [4 * ((z * m + i) * k + l) + r for r in range(4)]
        assert slots_of(b) == [2 * ((z * n + j) * k + l) + r for r in range(2)]
        assert slots_of(c) == slots_of(d)
        assert {r.buffer.name for r in c.items} == {"c" if l == 0 else "d"}


def test_a_scalar_addend_is_read_once_per_tile() -> None:
    zero = nodes.Const(0.0, nodes.FLOAT32)
    f = fault(registers("d", 0), registers("a", 1, (1, 3)), registers("b", 2, (1, 3)), zero)
    sources = [issue.operands[3].items for issue in issues(f)]
    assert [getattr(s[0], "expr", None) == zero for s in sources] == [True, False, False]
    assert len(sources[0]) == 4


def test_accumulating_in_place_reads_and_writes_the_same_registers() -> None:
    d = registers("d", 0, (2, 2))
    f = fault(d, registers("a", 1, (2, 1)), registers("b", 2, (2, 1)), d)
    assert all(issue.operands[0] == issue.operands[3] for issue in issues(f))


def test_whole_warps_take_part() -> None:
    assert codes(fault(scope="warp")) == []
    assert codes(fault(scope="thread")) == ["scope/collective"]
    some = op("lt", op("mod", hw("tid"), 32), 31)
    assert codes(fault(wrap=lambda s: guard(some, s))) == ["scope/partial-warp"]
    one_warp = op("lt", hw("tid"), 32)
    assert codes(fault(wrap=lambda s: guard(one_warp, s))) == []
    assert codes(fault(wrap=lambda s: guard(op("lt", hw("tid"), 33), s))) != []


def test_the_owner_is_the_fragments() -> None:
    transposed = "(1,1,2,8,2,4):(4,4,1,1@laneid,2,8@laneid)"
    f = fault(a=registers("a", 1, notation=transposed))
    assert codes(f) == ["mma_sync/owner"]
    assert "lane 8, expected lane 1" in text(f)
    plain = whole(buffer("a", (1, 1, 16, 8), "uint32"))
    assert codes(fault(a=plain)) == ["mma_sync/owner"]


def test_slots_differ_between_lanes_only_where_owners_are_wrong() -> None:
    # Rows 4..7 and 12..15 of D four slots on, instead of in the upper 16 lanes.
    uneven = "(1,1,2,2,4,4,2):(8,8,2,4,4@laneid,1@laneid,1)"
    flat = whole(buffer("d", (8,), "float32"))
    f = fault(views.with_layout(flat, (1, 1, 16, 8), layout.parse(uneven)))
    assert codes(f) == ["mma_sync/owner"]
    assert "lane 0, expected lane 16" in text(f)


def test_extents_are_the_opcodes() -> None:
    k8 = registers("a", 1, opcode=HALF.replace("k16", "k8"))
    assert codes(fault(a=k8)) == ["tile/atom-shape"]
    assert codes(fault(b=registers("b", 2, opcode=HALF.replace("k16", "k8")))) == [
        "tile/atom-shape"
    ]


def test_repeats_agree() -> None:
    assert codes(fault(registers("d", 0, (2, 1)), c=registers("c", 3, (2, 1)))) == [
        "mma_sync/repeats"
    ]
    assert codes(fault(a=registers("a", 1, (1, 2)))) == ["mma_sync/repeats"]
    assert codes(fault(c=registers("c", 3, (1, 2)))) == ["mma_sync/repeats"]
    f = fault(a=registers("a", 1, (2, 1, 1)))
    assert codes(f) == ["mma_sync/repeats"]
    assert "batch axes (2,)" in text(f)


@pytest.mark.parametrize("repeats", [(), (1,)])
def test_missing_repeat_axes_are_named(repeats: tuple[int, ...]) -> None:
    f = fault(registers("d", 0, repeats))
    assert codes(f) == ["mma_sync/repeat-axes"]
    message = text(f)
    assert "M_repeat and N_repeat" in message
    assert ".view(1, 1, 16, 8)" in message


def test_containers() -> None:
    halves = whole(buffer("a", (1, 1, 16, 16), "float16"))
    assert codes(fault(a=halves)) == ["mma_sync/operand-type"]
    assert "2 adjacent K values in f16" in text(fault(a=halves))
    assert codes(fault(a=registers("a", 1, dtype="int32"))) == []
    assert codes(fault(registers("d", 0, dtype="uint32"))) == []
    assert codes(fault(registers("d", 0, dtype="int32"))) == ["mma_sync/operand-type"]
    tf32 = "m16n8k8.row.col.f32.tf32.tf32.f32"
    for dtype, expected in (("float32", []), ("uint32", []), ("int32", ["mma_sync/operand-type"])):
        assert codes(fault(a=registers("a", 1, opcode=tf32, dtype=dtype), opcode=tf32)) == expected
    s8 = "m16n8k32.row.col.s32.s8.s8.s32"
    assert codes(fault(registers("d", 0, opcode=s8, dtype="float32"), opcode=s8)) == [
        "mma_sync/operand-type"
    ]


def test_written_slots_are_distinct() -> None:
    folded = "(1,1,2,8,4,2):(2,2,0,4@laneid,1@laneid,1)"
    assert codes(fault(registers("d", 0, notation=folded))) == ["mma_sync/overlap"]
    read = "(1,1,2,8,2,4):(4,4,0,4@laneid,1,1@laneid)"
    assert codes(fault(a=registers("a", 1, notation=read))) == []


def test_sources_do_not_lie_in_d() -> None:
    def shared(position: int, offset: int, **more: Any) -> nodes.View:
        return registers("x", position, buffer_name="pool", offset=offset, size=16, **more)

    assert codes(fault(shared(0, 0), c=shared(3, 4))) == []
    assert codes(fault(shared(0, 0), c=shared(3, 0))) == []
    # The same registers under the other of their two types.
    bits = views.with_dtype(shared(0, 0), dtypes.uint32)
    assert codes(fault(bits, c=shared(3, 0))) == []
    assert codes(fault(bits, c=shared(3, 2))) == ["mma_sync/source-overlap"]
    f = fault(shared(0, 0), c=shared(3, 2))
    assert codes(f) == ["mma_sync/source-overlap"]
    assert "share 2 of pool's 32-bit registers" in text(f)
    d = shared(0, 0, dtype="uint32")
    assert codes(fault(d, a=shared(1, 4))) == []
    assert codes(fault(d, a=shared(1, 3))) == ["mma_sync/source-overlap"]
    assert codes(fault(d, b=shared(2, 3))) == ["mma_sync/source-overlap"]
    swapped = "(1,1,2,8,4,2):(4,4,1,4@laneid,1@laneid,2)"
    assert codes(fault(shared(0, 0), c=shared(3, 0, notation=swapped))) == [
        "mma_sync/source-overlap"
    ]


def test_operands_are_registers() -> None:
    a = whole(buffer("s", (1, 1, 16, 8), "uint32", "shared"))
    assert codes(fault(a=a)) == ["mma_sync/space"]
    zero = nodes.Const(0, nodes.INT32)
    assert codes(fault(a=zero)) == ["mma_sync/tensor-operand"]
    assert codes(fault(var("x", nodes.FLOAT32))) == ["mma_sync/destination"]
    assert codes(fault(c=nodes.Const(1.5, nodes.FLOAT32))) == []
    f16 = "m16n8k16.row.col.f16.f16.f16.f16"
    half = fault(c=nodes.Const(1.5, nodes.FLOAT32), opcode=f16)
    assert codes(half) == ["mma_sync/ambiguous-literal"]
    assert "a uint32 of two f16 values" in text(half)
    call = apply(
        PREFIX + HALF, registers("d", 0), registers("a", 1), registers("b", 2), scope="warp"
    )
    assert codes(kernel(call)) == ["mma_sync/operand-count"]


def test_no_keyword_but_the_scope() -> None:
    true = nodes.Const(True, nodes.BOOL)
    for name in ("pred", "preserve_dst", "alpha"):
        assert codes(fault(keywords={name: true})) == ["mma_sync/unknown-keyword"]


# --- targets and spellings


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
def test_what_a_target_has_assembles_for_it(target: str) -> None:
    forms = forms_of_family("mma_sync")
    has = [Target.parse(target).supports(form.min_target) for form in forms]
    wrong = refused([statement(form) for form in forms], target)
    assert [i not in wrong for i in range(len(forms))] == has


@pytest.mark.parametrize(
    ("opcode", "below", "least"),
    [("m16n8k32.row.col.f32.e4m3.e5m2.f32", "sm_86", "sm_89"),
     ("m16n8k8.row.col.f64.f64.f64.f64", "sm_89", "sm_90")],
)  # fmt: skip
def test_a_form_needs_its_target(opcode: str, below: str, least: str) -> None:
    assert codes(fault(opcode=opcode, target=least)) == []
    with pytest.raises(TargetError):
        check(fault(opcode=opcode, target=below), FAMILIES)


@pytest.mark.parametrize(
    ("opcode", "repair"),
    [("m16n8k16.row.col.f32.f16.bf16.f32", "A and B have one type"),
     ("m16n8k16.row.col.f16.bf16.bf16.f16", "bf16 accumulates in f32"),
     ("m16n8k16.row.col.f16.f16.f16.f32", "C and D have one type")],
)  # fmt: skip
def test_near_misses_say_what_is_right(opcode: str, repair: str) -> None:
    with pytest.raises(SpellingError, match=repair):
        lookup(PREFIX + opcode)


def test_types_of_a_and_b_never_change_places() -> None:
    for a, b in (("e4m3", "e5m2"), ("e5m2", "e4m3")):
        (form,) = lookup(f"{PREFIX}m16n8k32.row.col.f32.{a}.{b}.f32")
        assert form.modifiers[-3:-1] == (a, b)
