"""Matrix descriptors against the hardware's address formulas, written here a second time: the bits of
every descriptor, decoded and walked, give the bytes where the layout has the elements."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tile.kit import apply, buffer, checked, codes, kernel, raw, region, text, var, whole
from tilejit import T, dtypes, layout
from tilejit.ir import build, nodes, views
from tilejit.tile.family import Issue, Let

BASES = {"a": 3 * 1024, "b": 64 * 1024, "s": 8 * 1024}
"""Shared addresses of the buffers, multiples of every period."""
ROW = (16, 128, 64, 32)
"""Bytes of a pattern's row, by the descriptor's bits 62 and 63."""


# --- the hardware, from the PTX ISA's formulas


def walk(bits: int, rows: int, depth: int, size: int, major: str) -> np.ndarray:
    """Byte addresses of a matrix's (M or N, K) elements."""
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert bits >> 14 & 3 == bits >> 30 & 3 == bits >> 46 & 0xFFFF == 0
    pitch = ROW[bits >> 62]
    mn, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if major == "k":
        along, across = k * size, mn
    else:
        along, across = mn * size, k
    if major == "mn" and pitch == 16:
        leading, stride = stride, leading
    address = (
        start + across // 8 * stride + across % 8 * pitch + along // pitch * leading + along % pitch
    )
    phase = {16: 0, 32: 1, 64: 3, 128: 7}[pitch]
    return address ^ (address >> 7 & phase) << 4


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "shr": operator.rshift,
    "shl": operator.lshift, "bitand": operator.and_, "bitor": operator.or_,
    "bitxor": operator.xor, "floordiv": operator.floordiv, "mod": operator.mod,
}  # fmt: skip


def evaluate(expr: Any, env: dict[str, int]) -> int:
    """An expression's value, for the few nodes that descriptors are made of."""
    match expr:
        case nodes.Const(value=value):
            return int(value)
        case nodes.Var(name=name) | nodes.HardwareId(name=name):
            return env[name]
        case nodes.Address(buffer=of, offset_bytes=offset):
            return BASES[of.name] + evaluate(offset, env)
        case nodes.Cast(operand=operand) | nodes.Bitcast(operand=operand):
            value = evaluate(operand, env)
            wide = expr.type.dtype.bits if isinstance(expr.type, nodes.ScalarType) else 32
            return value & (1 << wide) - 1 if expr.type != nodes.INT32 else value
        case nodes.Binary(op=name, lhs=lhs, rhs=rhs):
            a, b = evaluate(lhs, env), evaluate(rhs, env)
            value = OPERATIONS[name](a, b)
            bits = expr.type.dtype.bits
            return value & (1 << bits) - 1 if expr.type.dtype.kind == "uint" else value
    raise AssertionError(f"unexpected {expr}")


def descriptors(function: nodes.Function, position: int, **env: int) -> list[int]:
    """An operand's descriptor in every instruction of the kernel's only call."""
    *_, (_, steps) = checked(function).calls()
    known = dict(env)
    found = []
    for step in steps:
        if isinstance(step, Let):
            known[step.var.name] = evaluate(step.value, known)
        else:
            assert isinstance(step, Issue)
            (item,) = step.operands[position].items
            found.append(evaluate(item.expr, known))
    return found


# --- kernels

ALL = (None, None, None)


def fenced(*body: nodes.Stmt, **launch: Any) -> nodes.Function:
    return kernel(raw("wgmma.fence.sync.aligned"), *body, **launch)


def counted(number: nodes.Var, stop: int, statement: nodes.Stmt) -> nodes.For:
    """``statement`` for each ``number`` below ``stop``."""
    first, last, step = (build.const(v, dtypes.int32) for v in (0, stop, 1))
    return nodes.For(number, first, last, step, (statement,))


KINDS = {
    "f16": (dtypes.float16, 16),
    "tf32": (dtypes.float32, 8),
    "e4m3": (dtypes.float8_e4m3fn, 32),
}


def shared(name: str, shape: tuple[int, ...], dtype: Any, swizzle: int | None, align: int = 1024):
    laid = T.cuda.wgmma_shared_layout(shape, dtype, swizzle)
    kind = nodes.TensorType(shape, dtypes.dtype(dtype), laid, "shared", align)
    return whole(nodes.Var(name, kind))


def tiles(view: nodes.View, rows: int, depth: int, major: str) -> nodes.View:
    """(row blocks, K steps, rows, depth) of a tile whose rows run along ``major``."""
    if major == "k":
        m, k = view.shape
        return views.permute(
            views.reshape(view, (m // rows, rows, k // depth, depth)), (0, 2, 1, 3)
        )
    k, m = view.shape
    return views.permute(views.reshape(view, (k // depth, depth, m // rows, rows)), (2, 0, 3, 1))


def call(
    kind: str, a: Any, b: nodes.View, *, n: int = 64, scope: str = "warpgroup", **keywords: str
):
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{KINDS[kind][1]}.f32.{kind}.{kind}"
    shape = a.extents if isinstance(a, nodes.Region) else a.shape
    repeats, groups = (shape[-4], b.shape[-4]), shape[:-4]
    flat = whole(buffer("d", (int(np.prod(repeats)) * n // 2,)))
    laid = T.cuda.wgmma_fragment_layout(n, repeats, warpgroups=groups)
    d = views.with_layout(flat, (*groups, *repeats, 64, n), laid)
    named = {name: nodes.Text(value) for name, value in keywords.items()}
    return apply(opcode, d, a, b, scope=scope, **named)


def expected(view: nodes.View, name: str) -> np.ndarray:
    """Byte addresses of a view's elements, from its layout."""
    (offset,) = (int(view.offset_elems.value),)
    laid = view.layout
    tile_ = laid.tile if isinstance(laid, layout.ComposeLayout) else laid
    places = tile_.positions(view.shape)["m"] + offset
    if isinstance(laid, layout.ComposeLayout):
        places = laid.swizzle(places)
    return BASES[name] + places * view.dtype.bytes


def agree(
    found: list[int], view: nodes.View, name: str, major: str, index: Callable[..., int]
) -> None:
    addresses = expected(view, name)
    *repeats, rows, depth = view.shape
    for at in np.ndindex(*repeats):
        walked = walk(found[index(*at)], rows, depth, view.dtype.bytes, major)
        assert np.array_equal(walked, addresses[at]), at


CASES = [
    (kind, swizzle, major)
    for kind in KINDS
    for swizzle in (0, 32, 64, 128)
    for major in ("k", "mn")
    if kind == "f16" or major == "k"
]


@pytest.mark.parametrize(("kind", "swizzle", "major"), CASES)
@pytest.mark.parametrize("n", [8, 64, 256])
def test_every_mode_walks_the_layout(kind: str, swizzle: int, major: str, n: int) -> None:
    dtype, depth = KINDS[kind]
    k = max(4 * depth, 128 // dtype.bytes)
    rows = 64 if n == 256 else 128  # what a thread can hold
    a_shape, b_shape = ((rows, k), (n, k)) if major == "k" else ((k, rows), (k, n))
    if major == "mn" and n * 2 < swizzle:
        pytest.skip("rows of B are narrower than the swizzle")
    a = tiles(shared("a", a_shape, dtype, swizzle), 64, depth, major)
    b = tiles(shared("b", b_shape, dtype, swizzle), n, depth, major)
    f = fenced(call(kind, a, b, n=n, a_major=major, b_major=major))
    steps = k // depth
    agree(descriptors(f, 1), a, "a", major, lambda m, s: m * steps + s)
    agree(descriptors(f, 2), b, "b", major, lambda _, s: s)


def test_the_worked_encodings() -> None:
    """bf16 as DeepGEMM and CUTLASS encode it: K-major, and B row-major as four boxes of 64 columns."""
    a = tiles(shared("a", (64, 64), "float16", 128), 64, 16, "k")
    b = tiles(shared("b", (64, 256), "float16", 128), 256, 16, "mn")
    f = fenced(call("f16", a, b, n=256, b_major="mn"))
    first, second, *_ = descriptors(f, 1)
    assert first == 1 << 62 | 64 << 32 | 1 << 16 | BASES["a"] >> 4
    assert second - first == 2
    first, second, *_ = descriptors(f, 2)
    assert first == 1 << 62 | 64 << 32 | 512 << 16 | BASES["b"] >> 4
    assert second - first == 128


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("row", "column"), [(8, 0), (64, 16), (3, 32), (0, 8)])
def test_origins_are_those_before_the_swizzle(swizzle: int, row: int, column: int) -> None:
    whole_tile = shared("a", (192, 64), "float16", swizzle)
    a = region(views.reshape(whole_tile, (1, 1, 192, 64)), (0, 0, row, column), (1, 1, 64, 16))
    b = tiles(shared("b", (64, 16), "float16", None), 64, 16, "k")
    f = fenced(call("f16", a, b))
    if swizzle and column * 2 % swizzle + 32 > swizzle:
        assert codes(f) == ["wgmma/descriptor"]
        return
    (found,) = descriptors(f, 1)
    addresses = expected(whole_tile, "a")[row : row + 64, column : column + 16]
    assert np.array_equal(walk(found, 64, 16, 2, "k"), addresses)


def staged(number: nodes.Expr) -> nodes.View:
    """One of four stages of a swizzled tile."""
    return views.sub(shared("a", (4, 64, 64), "float16", 128), (number, ALL, ALL))


def test_stages_chosen_at_run_time_move_the_start() -> None:
    stage = var("stage")
    a = tiles(staged(stage), 64, 16, "k")
    b = tiles(shared("b", (64, 64), "float16", 128), 64, 16, "k")
    f = fenced(counted(stage, 4, call("f16", a, b)))
    for number in range(4):
        found = descriptors(f, 1, stage=number)
        fixed = tiles(staged(nodes.Const(number, nodes.INT32)), 64, 16, "k")
        agree(found, fixed, "a", "k", lambda _, s: s)


def test_the_start_is_encoded_once() -> None:
    stage = var("stage")
    a = tiles(staged(stage), 64, 16, "k")
    b = tiles(shared("b", (64, 64), "float16", 128), 64, 16, "k")
    *_, (_, steps) = checked(fenced(counted(stage, 4, call("f16", a, b)))).calls()
    encodings = [s for s in steps if isinstance(s, Let) and s.var.type == nodes.UINT32]
    assert len(encodings) == 2
    issues = [s for s in steps if isinstance(s, Issue)]
    assert len(issues) == 4
    for number, issue in enumerate(issues):
        (item,) = issue.operands[1].items
        high, low = item.expr.rhs, item.expr.lhs.operand
        assert high == build.const(0x40000040 << 32, dtypes.uint64)
        assert low == build.add(encodings[0].var, build.const(2 * number, dtypes.uint32))


def test_warpgroups_have_starts_of_their_own() -> None:
    rows = tiles(shared("a", (128, 64), "float16", 128), 64, 16, "k")
    a = views.reshape(rows, (2, 1, 4, 64, 16))
    columns = tiles(shared("b", (64, 64), "float16", 128), 64, 16, "k")
    b = views.reshape(columns, (1, 1, 4, 64, 16))
    broadcast = views.with_layout(
        b, (2, 1, 4, 64, 16),
        layout.ComposeLayout(3, 3, 3, layout.TileLayout((layout.Iter(2, 0), *b.layout.tile.shard))),
    )  # fmt: skip
    b_of_one = views.sub(b, (0, ALL, ALL, ALL, ALL))
    f = fenced(call("f16", a, broadcast, scope="cta"), block=(256,))
    for group in range(2):
        found = descriptors(f, 1, warpgroupid=group)
        agree(found, views.sub(a, (group, ALL, ALL, ALL, ALL)), "a", "k", lambda _, s: s)
        found = descriptors(f, 2, warpgroupid=group)
        agree(found, b_of_one, "b", "k", lambda _, s: s)


def test_a_small_region_takes_the_first_mode_that_walks_it() -> None:
    """Eight rows of 16 elements, 16 bytes apart in two halves: no swizzle shows."""
    plain = "(1,1,8,2,8):(8,8,8,64,1)"
    flat = whole(buffer("b", (128,), "float16", "shared", align=1024))
    b = views.with_layout(flat, (1, 1, 8, 16), layout.parse(plain))
    a = tiles(shared("a", (64, 16), "float16", 32), 64, 16, "k")
    (found,) = descriptors(fenced(call("f16", a, b, n=8)), 2)
    assert found >> 62 == 0 and found >> 16 & 0x3FFF == 128 >> 4 and found >> 32 & 0x3FFF == 0


def refusal(
    notation: str, align: int = 1024, shape: tuple[int, ...] = (1, 1, 64, 16), **keywords: str
):
    span = layout.parse(notation).span()
    flat = whole(buffer("a", (span,), "float16", "shared", align=align))
    a = views.with_layout(flat, shape, layout.parse(notation))
    b = tiles(shared("b", (64, 16), "float16", 32), 64, 16, "k")
    return fenced(call("f16", a, b, **keywords))


def test_the_reason_of_every_mode_is_told() -> None:
    message = text(refusal("(1,1,64,16):(16,16,24,1)"))
    assert "no matrix descriptor walks this K-major operand" in message
    for mode in ("no swizzle", "32-byte swizzle", "64-byte swizzle", "128-byte swizzle"):
        assert mode in message
    assert "repeat (0, 0), element (1, 0) lies 48 bytes after the first, expected 16" in message


def test_the_backing_is_aligned_to_the_period() -> None:
    swizzled = "swizzle(3,3,3) o (1,1,64,16):(16,16,64,1)"
    assert codes(refusal(swizzled)) == []
    assert codes(refusal(swizzled, align=512)) == ["wgmma/descriptor"]
    assert "a is aligned to 512 bytes, expected 1024" in text(refusal(swizzled, align=512))
    assert codes(refusal("(1,1,8,8,2,8):(8,8,64,8,512,1)", align=16)) == []
    assert codes(refusal("(1,1,8,8,2,8):(8,8,64,8,512,1)", align=8)) == ["wgmma/alignment"]


@pytest.mark.parametrize("rows_apart", [1 << 17, 1 << 16])
def test_strides_have_fourteen_bits(rows_apart: int) -> None:
    # The second half of each row's chunks lies 2**18 bytes on, or 2**17.
    f = refusal(f"(1,1,8,8,2,8):(8,8,64,8,{rows_apart},1)")
    if rows_apart * 2 < 1 << 18:
        assert codes(f) == ["tile/shared-memory"] or codes(f) == []
    else:
        assert "LDO would be 262144 bytes" in text(f)


def test_a_start_is_a_multiple_of_sixteen_bytes() -> None:
    flat = whole(buffer("a", (2048,), "float16", "shared", align=1024))
    shifted = views.sub(flat, ((4, 1028, None),))
    a = views.with_layout(shifted, (1, 1, 64, 16), layout.parse("(1,1,8,8,2,8):(8,8,64,8,512,1)"))
    b = tiles(shared("b", (64, 16), "float16", 32), 64, 16, "k")
    f = fenced(call("f16", a, b))
    assert codes(f) == ["wgmma/alignment"]
    assert "8 bytes above a multiple of 16" in text(f)


def test_majors_are_not_guessed() -> None:
    a = tiles(shared("a", (16, 64), "float16", 128), 64, 16, "mn")
    b = tiles(shared("b", (64, 16), "float16", 32), 64, 16, "k")
    assert codes(fenced(call("f16", a, b, a_major="mn"))) == []
    f = fenced(call("f16", a, b))
    assert codes(f) == ["wgmma/descriptor"]
    assert "K-major" in text(f)


@pytest.mark.parametrize(("mode", "period"), [(1, 256), (2, 512), (3, 1024)])
def test_every_modes_period(mode: int, period: int) -> None:
    tile_ = f"swizzle(3,{mode},3) o (1,1,64,16):(16,16,{8 << mode},1)"
    assert codes(refusal(tile_, align=period)) == []
    assert codes(refusal(tile_, align=period // 2)) == ["wgmma/descriptor"]
    assert f"aligned to {period // 2} bytes, expected {period}" in text(
        refusal(tile_, align=period // 2)
    )


@pytest.mark.parametrize(
    ("groups", "reason"), [(-64, "SDO would be -128"), (68, "SDO would be 136")]
)
def test_strides_are_not_negative_and_whole_chunks(groups: int, reason: str) -> None:
    """Rows in groups of eight, ``groups`` elements from one to the next; the halves lie far away."""
    notation = f"(1,1,8,8,2,8):(8,8,{groups},8,1024,1)"
    flat = whole(buffer("a", (4096,), "float16", "shared", align=1024))
    start = 512 if groups < 0 else 0
    placed = views.sub(flat, ((start, 4096, None),))
    a = views.with_layout(placed, (1, 1, 64, 16), layout.parse(notation))
    b = tiles(shared("b", (64, 16), "float16", 32), 64, 16, "k")
    f = fenced(call("f16", a, b))
    assert codes(f) == ["wgmma/descriptor"]
    assert f"{reason} bytes, expected a multiple of 16 from 0 to 262128" in text(f)


def test_other_swizzles_have_no_mode() -> None:
    assert codes(refusal("swizzle(3,3,4) o (1,1,64,16):(16,16,128,1)")) == ["wgmma/descriptor"]
    assert codes(refusal("swizzle(2,3,3) o (1,1,64,16):(16,16,64,1)")) == ["wgmma/descriptor"]


def test_a_run_time_row_is_a_start_like_any_other() -> None:
    """In the layout's own swizzle the start is added before it: no period need be kept."""
    row = var("row")
    whole_tile = shared("a", (192, 16), "float16", 32)
    rows = region(views.reshape(whole_tile, (1, 1, 192, 16)), (0, 0, row, 0), (1, 1, 64, 16))
    b = tiles(shared("b", (64, 16), "float16", 32), 64, 16, "k")
    f = fenced(counted(row, 128, call("f16", rows, b)))
    for number in (0, 5, 8, 127):
        fixed = views.sub(whole_tile, ((number, number + 64, None), ALL))
        fixed = views.reshape(fixed, (1, 1, 64, 16))
        agree(descriptors(f, 1, row=number), fixed, "a", "k", lambda *_: 0)
