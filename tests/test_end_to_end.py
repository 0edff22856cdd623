"""Instructions through real decorated kernels, on the simulator and, the same cases, on the GPU.

The oracle for register instructions is ``sim.numeric`` (itself tested against the PTX ISA and recorded
silicon): every bit of exact forms, a bound for approximate ones. Elsewhere it is numpy and torch.
Whatever is lowered here must also survive the IR's round trips.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tilejit import T, dtypes
from tilejit.ptx import spelling, tables
from tilejit.ptx.forms import Form
from tilejit.ptx.types import container_type, scalar_type
from tilejit.sim import numeric
from tilejit.target import Target

SM_80, SM_90 = Target.parse("sm_80"), Target.parse("sm_90")
WORD = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32, 64: torch.uint64}


pytestmark = pytest.mark.usefixtures("round_trips")


def on(device: str, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


# --- which spellings


def sampled(family: str, *picks: int) -> list[str]:
    """For each row of the table some of its spellings that sm_90 has, as tile instructions."""
    found: dict[str, None] = {}
    for owner, row in tables.rows():
        if owner != family or not row.tile:
            continue
        choices = list(row.choices())
        for pick in picks:
            form = row.form(choices[pick * (len(choices) - 1) // 100], family)
            if SM_90.supports(form.min_target):
                found[form.spelling] = None
    return list(found)


def on_this(device: str, form: Form) -> None:
    if device == "cuda":
        here = Target.of_capability(*torch.cuda.get_device_capability())
        if not here.supports(form.min_target):
            pytest.skip(f"{form.spelling} needs {form.min_target}")


# --- register instructions

THREADS, REPEATS = 64, 2


@tile.jit
def one_instruction(D, A, B, C, opcode: T.constexpr, types: T.constexpr):
    """``opcode`` on every thread's registers. Tensors are (threads, repeats, registers)."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    t = T.cuda.thread_idx("x")
    d = T.alloc_local(D.shape[1:], types[0], layout="default")
    a = T.alloc_local(A.shape[1:], types[1], layout="default")
    fill(a, A, t)
    if B is None:
        T.cuda.tile.apply(T.ptx[opcode], d, a)
    else:
        b = T.alloc_local(B.shape[1:], types[2], layout="default")
        fill(b, B, t)
        if C is None:
            T.cuda.tile.apply(T.ptx[opcode], d, a, b)
        else:
            c = T.alloc_local(C.shape[1:], types[3], layout="default")
            fill(c, C, t)
            T.cuda.tile.apply(T.ptx[opcode], d, a, b, c)
    bits = d.view(D.dtype)
    for i in T.unroll(D.shape[1]):
        for j in T.unroll(D.shape[2]):
            D[t, i, j] = bits[i, j]


@tile.jit
def fill(registers, X, t):
    bits = registers.view(X.dtype)
    for i in T.unroll(X.shape[1]):
        for j in T.unroll(X.shape[2]):
            bits[i, j] = X[t, i, j]


FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def special_bits(ptx_type: str, bits: int) -> list[int]:
    """Zeros, ones, extremes and, of floats, infinities, NaNs and subnormals of either sign."""
    ones = (1 << bits) - 1
    found = [0, 1, 2, ones, ones - 1, ones >> 1, (ones >> 1) + 1]
    part = ptx_type.removesuffix("x2")
    if part in FLOATS:
        width = FLOATS[part]
        mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[part]
        exponent = ((1 << (width - 1)) - 1) >> mantissa << mantissa
        one = (exponent >> 1) >> mantissa << mantissa
        each = [0, 1, one, one | 1, exponent, exponent | 1, exponent | 1 << (mantissa - 1), exponent - 1,
                1 << mantissa, (1 << mantissa) - 1]  # fmt: skip
        each += [v | 1 << (width - 1) for v in each]
        found = (
            each if bits == width else [v | w << width for v, w in zip(each, each[3:] + each[:3])]
        )
    return found


def inputs_of(form: Form, rng: np.random.Generator) -> list[np.ndarray]:
    """One array (threads, repeats, registers) per source: random and special bits, crossed."""
    result = []
    approximate = is_approximate(form)
    for number, spec in enumerate(s for s in form.operands if "r" in s.direction):
        word = np.dtype(f"u{max(spec.bits, 8) // 8}")
        count = THREADS * REPEATS * spec.lanes
        part = spec.type.removesuffix("x2")
        if approximate:
            values = rng.uniform(0.25, 4, count * (spec.bits // FLOATS[part]))
            dtype = dtypes.dtype(
                {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}[part]
            )
            flat = np.asarray(numeric.to_bits(values, dtype)).view(word)
        else:
            flat = rng.integers(0, 1 << spec.bits, count, dtype=np.uint64).astype(word)
            special = np.array(special_bits(spec.type, spec.bits), np.uint64).astype(word)
            crossed = (
                np.repeat(special, len(special)) if number % 2 else np.tile(special, len(special))
            )
            room = min(len(crossed), count * 3 // 4)
            flat[:room] = rng.permutation(crossed)[:room] if number > 1 else crossed[:room]
        if form.mnemonic in ("div", "rem") and part not in FLOATS and number == 1:
            flat = np.where(
                (flat == 0) | (flat == word.type(-1 % (1 << spec.bits))), word.type(3), flat
            )
        result.append(flat.reshape(THREADS, REPEATS, spec.lanes))
    return result


def is_approximate(form: Form) -> bool:
    return not {"approx", "full"}.isdisjoint(form.modifiers)


def operand_types(form: Form, typed: bool) -> tuple[str, ...]:
    """The scalar type where there is one, or the bit container."""
    found = []
    for spec in form.operands:
        chosen = scalar_type(spec.type) if typed else None
        found.append((chosen or container_type(spec.type)).name)
    return tuple(found)


REGISTER_FORMS = sampled("registers", 0, 100) + [
    "add.rz.ftz.sat.f32", "mul.rm.f32", "sub.rp.f64", "fma.rz.ftz.f32", "fma.rm.f64", "div.rn.f32",
    "div.rz.f64", "sqrt.rp.f32", "rcp.rm.f64", "cvt.rni.s32.f32", "cvt.rzi.u8.f16", "cvt.rn.f16.s64",
    "cvt.rn.bf16x2.f32", "cvt.rz.relu.f16x2.f32", "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.f16x2.e5m2x2",
    "cvt.sat.s8.s32", "min.NaN.f16x2", "max.xorsign.abs.bf16x2", "mad.hi.s64", "abs.s64", "neg.bf16",
]  # fmt: skip
CASES = [
    pytest.param(name, position, id=f"{name}-{position}")
    for name in dict.fromkeys(REGISTER_FORMS)
    for position, form in enumerate(spelling.lookup(name))
    if form.tile and SM_90.supports(form.min_target)
]


@pytest.mark.parametrize(("name", "position"), CASES)
def test_register_instruction(device: str, name: str, position: int) -> None:
    form = spelling.lookup(name)[position]
    on_this(device, form)
    rng = np.random.default_rng(len(name) + position)
    sources = inputs_of(form, rng)
    flat = [np.ascontiguousarray(s[..., i]) for s in sources for i in range(s.shape[-1])]
    expected = np.stack(numeric.compute(form, flat), axis=-1)
    written = form.operands[0]
    out = torch.zeros(expected.shape, dtype=WORD[max(written.bits, 8)], device=device)
    given: list[Any] = [on(device, s) for s in sources]
    given += [None] * (3 - len(given))
    typed = (len(name) + position) % 3 != 0
    one_instruction(out, *given, name, operand_types(form, typed))
    got = host(out)
    if is_approximate(form):
        assert_close(form, got, expected.astype(got.dtype))
        return
    wrong = np.argwhere(got != expected)
    assert not len(wrong), [
        ([hex(int(s[*at[:2], i])) for s in sources for i in range(s.shape[-1])],
         hex(int(got[*at])), hex(int(expected[*at])))
        for at in wrong[:5]
    ]  # fmt: skip


def assert_close(form: Form, got: np.ndarray, expected: np.ndarray) -> None:
    part = form.operands[0].type.removesuffix("x2")
    word = np.dtype(f"u{FLOATS[part] // 8}")
    dtype = dtypes.dtype(
        {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}[part]
    )
    a, b = (np.asarray(numeric.to_value(x.view(word), dtype), np.float64) for x in (got, expected))
    loose = {"f16": 2**-9, "bf16": 2**-6, "f32": 2**-20, "f64": 2**-18}[part]
    if part == "f32":  # PTX ISA: bounds on the absolute error, sin and cos beyond pi
        loose = {"tanh": 2**-10, "sin": 2**-14, "cos": 2**-14}.get(form.mnemonic, loose)
    assert np.allclose(a, b, rtol=loose, atol=loose, equal_nan=True), np.abs(a - b).max()


def test_every_mnemonic_of_the_family_is_among_the_cases() -> None:
    all_of_them = {f.mnemonic for f in spelling.forms_of_family("registers") if f.tile}
    assert {str(c.values[0]).split(".")[0] for c in CASES} == all_of_them


# --- predicates


@tile.jit
def predicated(X: T.Tensor((64, 4), "uint32", align=16), Y: T.Tensor((64, 4), "uint32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((4,), "uint32", layout="default")
    for i in T.unroll(4):
        r[i] = 7 + i
    odd = t % 2 == 1
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub[t, :], pred=odd, preserve_dst=True)
    s = r.view(4, 1)
    T.cuda.tile.apply(T.ptx["add.u32"], s, s, 100, pred=t % 3 == 0, preserve_dst=True)
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[t, :], r, pred=t < 60)


def test_predicates_and_preserved_destinations(device: str) -> None:
    x = np.arange(256, dtype=np.uint32).reshape(64, 4) * 5
    out = torch.full((64, 4), 9, dtype=torch.uint32, device=device)
    predicated(on(device, x), out)
    t = np.arange(64)[:, None]
    expected = np.where(t % 2 == 1, x, 7 + np.arange(4)) + np.where(t % 3 == 0, 100, 0)
    assert (host(out) == np.where(t < 60, expected, 9)).all()


# --- loads and stores


@tile.jit
def load_words(
    X, Y, opcode: T.constexpr, space: T.constexpr, hint: T.constexpr, dtype: T.constexpr
):
    """Every thread's words by ``opcode`` from ``space`` to registers, and out element by element."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    _, n, v = X.shape
    r = T.alloc_local((n, v), dtype, layout="default")
    if space == "global":
        source = X.sub[t, :, :]
    elif space == "shared":
        s = T.alloc_shared(X.shape, X.dtype, layout="default", align=16)
        for i in T.unroll(n):
            for j in T.unroll(v):
                s[t, i, j] = X[t, i, j]
        T.cuda.cta_sync()
        source = s.sub[t, :, :]
    else:
        m = T.alloc_local((n, v), X.dtype, layout="default", align=16)
        for i in T.unroll(n):
            for j in T.unroll(v):
                m[i, j] = X[t, i, j]
        source = m
    if hint:
        policy = T.alloc_local((1,), "uint64", layout="default")
        T.ptx["createpolicy.fractional.L2::evict_last.b64"](policy[0])
        T.cuda.tile.apply(T.ptx[opcode], r, source, cache_policy=policy[0])
    else:
        T.cuda.tile.apply(T.ptx[opcode], r, source)
    bits = r.view(X.dtype)
    for i in T.unroll(n):
        for j in T.unroll(v):
            Y[t, i, j] = bits[i, j]


@tile.jit
def store_words(
    X, Y, opcode: T.constexpr, space: T.constexpr, hint: T.constexpr, dtype: T.constexpr
):
    """The mirror image: registers to ``space`` by ``opcode``."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    _, n, v = X.shape
    r = T.alloc_local((n, v), dtype, layout="default")
    bits = r.view(X.dtype)
    for i in T.unroll(n):
        for j in T.unroll(v):
            bits[i, j] = X[t, i, j]
    if space == "global":
        if hint:
            policy = T.alloc_local((1,), "uint64", layout="default")
            T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
            T.cuda.tile.apply(T.ptx[opcode], Y.sub[t, :, :], r, cache_policy=policy[0])
        else:
            T.cuda.tile.apply(T.ptx[opcode], Y.sub[t, :, :], r)
        return
    if space == "shared":
        s = T.alloc_shared(X.shape, X.dtype, layout="default", align=16)
        T.cuda.tile.apply(T.ptx[opcode], s.sub[t, :, :], r)
        T.cuda.cta_sync()
        for i in T.unroll(n):
            for j in T.unroll(v):
                Y[t, i, j] = s[t, i, j]
    else:
        m = T.alloc_local((n, v), X.dtype, layout="default", align=16)
        T.cuda.tile.apply(T.ptx[opcode], m, r)
        for i in T.unroll(n):
            for j in T.unroll(v):
                Y[t, i, j] = m[i, j]


SHAPES = [(bits, lanes) for bits in (8, 16, 32, 64) for lanes in (1, 2, 4) if bits * lanes <= 128]
MEMORY_FORMS = [
    f"{mnemonic}.{space}{f'.v{lanes}' if lanes > 1 else ''}.b{bits}"
    for mnemonic in ("ld", "st")
    for space in ("global", "shared", "shared::cta", "local")
    for bits, lanes in SHAPES
]
MEMORY_FORMS = list(dict.fromkeys(MEMORY_FORMS + sampled("ld_st", 0, 35, 100)))


@pytest.mark.parametrize("name", MEMORY_FORMS)
def test_load_or_store(device: str, name: str) -> None:
    (form,) = spelling.lookup(name)
    on_this(device, form)
    spec = next(s for s in form.operands if s.kind == "reg")
    space = next(s.space for s in form.operands if s.kind == "addr").split("::")[0]
    hint = any(s.name == "cache_policy" for s in form.operands)
    rng = np.random.default_rng(len(name))
    x = rng.integers(0, 1 << spec.bits, (32, 2, spec.lanes), dtype=np.uint64).astype(
        f"u{spec.bits // 8}"
    )
    out = torch.zeros(x.shape, dtype=WORD[spec.bits], device=device)
    run = load_words if form.mnemonic == "ld" else store_words
    named = scalar_type(form.modifiers[-1])
    dtype = named if named is not None and len(name) % 2 else container_type(f"b{spec.bits}")
    run(on(device, x), out, name, space, hint, dtype.name)
    assert (host(out) == x).all()


# --- scopes and guards


@tile.jit
def scoped(X: T.Tensor((256, 4), "float32", align=16), Y: T.Tensor((256, 4), "float32", align=16),
           alpha: T.float32, scope: T.constexpr, guard: T.constexpr):  # fmt: skip
    """Y = alpha * X for the threads that the guard lets through, one row a thread."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=256))
    warp = T.cuda.warp_id()
    if guard == "return":
        if warp >= 4:
            return
        scale(X.sub[0:128, :], Y.sub[0:128, :], alpha, scope, 4, 32, 0)
    elif guard == "first":
        if T.cuda.thread_idx("x") < 128:
            scale(X.sub[0:128, :], Y.sub[0:128, :], alpha, scope, 4, 32, 0)
    elif guard == "second":
        if warp // 4 == 1:
            scale(X.sub[128:256, :], Y.sub[128:256, :], alpha, scope, 4, 32, 4)
    elif guard == "lanes":
        if T.cuda.lane_id() % 4 == 0:
            x = X.view(8, 8, 4, 4).sub[:, :, 0, :]
            y = Y.view(8, 8, 4, 4).sub[:, :, 0, :]
            scale(x.view(64, 4), y.view(64, 4), alpha, scope, 8, 8, 0)
    else:
        scale(X, Y, alpha, scope, 8, 32, 0)


@tile.jit
def scale(
    x, y, alpha, scope: T.constexpr, warps: T.constexpr, lanes: T.constexpr, first: T.constexpr
):
    """One call for the active warps × lanes; narrower scopes take their part of the rows."""
    warp = T.cuda.warp_id() - first
    lane = T.cuda.lane_id() // (32 // lanes)
    step = 32 // lanes
    if scope == "thread":
        r = T.alloc_local((4,), "float32", layout="default")
        row = warp * lanes + lane
        xs, ys, one = x.sub[row, :], y.sub[row, :], r.view(4, 1)
    elif scope == "warp":
        r = T.alloc_local((lanes, 4), "float32", layout=T.layout("(lanes,4):(step@laneid,1)"))
        row = warp * lanes
        xs, ys, one = x.sub[row : row + lanes, :], y.sub[row : row + lanes, :], r.view(lanes, 4, 1)
    elif scope == "warpgroup":
        r = T.alloc_local(
            (4, lanes, 4), "float32", layout=T.layout("(4,lanes,4):(1@wid_in_wg,step@laneid,1)")
        )
        row = warp // 4 * (4 * lanes)
        xs = x.sub[row : row + 4 * lanes, :].view(4, lanes, 4)
        ys = y.sub[row : row + 4 * lanes, :].view(4, lanes, 4)
        one = r.view(4, lanes, 4, 1)
    else:
        r = T.alloc_local((first + warps, lanes, 4), "float32",
                          layout=T.layout("(first+warps,lanes,4):(1@warpid,step@laneid,1)"))  # fmt: skip
        r = r.sub[first : first + warps, :, :]
        xs, ys, one = x.view(warps, lanes, 4), y.view(warps, lanes, 4), r.view(warps, lanes, 4, 1)
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, xs, scope=scope)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], one, one, alpha, scope=scope)
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], ys, r, scope=scope)


@pytest.mark.parametrize("guard", ["none", "first", "second", "return", "lanes"])
@pytest.mark.parametrize("scope", ["thread", "warp", "warpgroup", "cta"])
def test_scopes_under_guards(device: str, scope: str, guard: str) -> None:
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(1)).to(device)
    out = torch.full_like(x, 9.0)
    scoped(x, out, 1.5, scope, guard)
    row = torch.arange(256, device=device)[:, None]
    active = {"none": row >= 0, "first": row < 128, "second": row >= 128, "return": row < 128,
              "lanes": row % 4 == 0}[guard]  # fmt: skip
    assert torch.equal(out, torch.where(active, x * 1.5, 9.0))


# --- ewise


@tile.jit
def ewise_rows(X: T.Tensor((64, 4), "float32"), Y: T.Tensor((64, 4), "float32"), low: T.float32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((4,), "float32", layout="default")
    for i in T.unroll(4):
        r[i] = X[t, i]
    T.cuda.tile.ewise(pieces, r, r, low)
    T.cuda.tile.ewise(lambda a: -a * 2, r, r)
    for i in T.unroll(4):
        Y[t, i] = r[i]


def pieces(x: T.float32, low: T.float32) -> T.float32:
    if x < low:
        return low
    if x > 1:
        y = x * x
    else:
        y = x + 1
    return y


def test_ewise_with_branches(device: str) -> None:
    x = np.random.default_rng(0).normal(0, 2, (64, 4)).astype(np.float32)
    out = torch.zeros(64, 4, device=device)
    ewise_rows(on(device, x), out, -0.5)
    branch = np.where(x > 1, x * x, x + np.float32(1))
    assert (host(out) == -np.where(x < -0.5, np.float32(-0.5), branch) * np.float32(2)).all()


# --- control flow, dynamic sizes, scalars


@tile.jit
def collatz(
    X: T.Tensor((T.dynamic("N"),), "int32"), Y: T.Tensor((T.dynamic("N"),), "int32"), limit: T.int32
):
    """Steps to 1, at most ``limit``; an odd ``while True`` with break, continue and early return."""
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N + 63) // 64, block=64))
    i = T.cuda.block_idx("x") * 64 + T.cuda.thread_idx("x")
    if i >= N:
        return
    x = X[i]
    if x < 1:
        Y[i] = -1
        return
    steps = 0
    while True:
        if x == 1:
            break
        steps += 1
        if steps >= limit:
            break
        if x % 2 == 0:
            x = x // 2
            continue
        x = 3 * x + 1
    Y[i] = steps


def steps_to_one(x: int, limit: int) -> int:
    steps = 0
    while x > 1 and steps < limit:
        x, steps = (x // 2 if x % 2 == 0 else 3 * x + 1), steps + 1
    return steps if x >= 1 else -1


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_while_break_continue_return_on_dynamic_sizes(device: str, count: int) -> None:
    x = np.arange(-2, count - 2, dtype=np.int32)
    out = torch.full((count,), 77, dtype=torch.int32, device=device)
    collatz(on(device, x), out, 50)
    assert host(out).tolist() == [steps_to_one(int(v), 50) for v in x]


def test_dynamic_sizes_share_one_variant() -> None:
    collatz(torch.ones(70, dtype=torch.int32), torch.zeros(70, dtype=torch.int32), 3)
    before = len(collatz.variants)
    collatz(torch.ones(71, dtype=torch.int32), torch.zeros(71, dtype=torch.int32), 3)
    assert len(collatz.variants) <= before + 1


@tile.jit
def scalars(Y: T.Tensor((8,), "float64"), a: T.float32, b: T.float64, n: T.int64, flag: T.bool_):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if T.cuda.thread_idx("x") == 0:
        Y[0] = a
        Y[1] = b
        Y[2] = n // 3
        Y[3] = n % 3
        Y[4] = 1.0 if flag else 2.0
        total = 0.0
        for k in range(n % 7):
            if k == 4:
                break
            total += a * k
        else:
            total = -1.0
        Y[5] = total
        Y[6] = T.cast(a, "int32")
        Y[7] = max(b, 1.0)


@tile.jit
def own_elements(Y: T.Tensor((8,), "float32")):
    """Scalar operands and a predicate that read the tile they change."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    r = T.alloc_local((2, 1), "float32", layout="default")
    r[0, 0], r[1, 0] = 2.0, 6.0
    T.cuda.tile.apply(T.ptx["div.rn.f32"], r, r, r[0, 0])
    Y[0], Y[1] = r[0, 0], r[1, 0]
    r[0, 0], r[1, 0] = 2.0, 6.0
    T.cuda.tile.apply(T.ptx["neg.f32"], r, r, pred=r[0, 0] > 0.5, preserve_dst=True)
    Y[2], Y[3] = r[0, 0], r[1, 0]
    T.cuda.tile.apply(T.ptx["fma.rn.f32"], r, r, r[0, 0] * 2.0, r[1, 0])
    Y[4], Y[5] = r[0, 0], r[1, 0]
    T.cuda.tile.ewise(lambda a, b: a + b, r.view(2), r.view(2), r[0, 0])
    Y[6], Y[7] = r[0, 0], r[1, 0]


def test_a_scalar_operand_is_the_same_for_every_repeat(device: str) -> None:
    out = torch.zeros(8, device=device)
    own_elements(out)
    assert host(out).tolist() == [1, 3, -2, -6, 2, 18, 4, 20]


@pytest.mark.parametrize(
    ("a", "b", "n", "flag"), [(1.5, 2.25, 2**40 + 5, True), (-2.75, math.pi, -11, False)]
)
def test_scalars(device: str, a: float, b: float, n: int, flag: bool) -> None:
    out = torch.zeros(8, dtype=torch.float64, device=device)
    scalars(out, a, b, n, flag)
    total = sum(a * k for k in range(4)) if n % 7 > 4 else -1.0
    assert host(out).tolist() == [
        a,
        b,
        n // 3,
        n % 3,
        1.0 if flag else 2.0,
        total,
        int(a),
        max(b, 1.0),
    ]


@tile.jit
def around(X: T.Tensor((64,), "float32"), Y: T.Tensor((2, 32), "float32"), i: T.int32, j: T.int32):
    """Offsets with constants in them: lane + 32, and a sum that wraps around to a place in X."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    r = T.alloc_local((1,), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.b32"], r, X.sub[lane + 32 : lane + 33])
    Y[0, lane] = r[0]
    k = i + j + 2
    if 0 <= k and k < 64:
        T.cuda.tile.apply(T.ptx["ld.global.b32"], r, X.sub[k : k + 1])
    Y[1, lane] = r[0]


@pytest.mark.parametrize(("i", "j"), [(2**31 - 1, 2**31 - 1), (5, -3), (-(2**31), -(2**31))])
def test_a_constant_leaves_an_offset_only_where_nothing_wraps(device: str, i: int, j: int) -> None:
    x = torch.arange(64, dtype=torch.float32, device=device)
    y = torch.zeros(2, 32, device=device)
    around(x, y, i, j)
    assert host(y)[0].tolist() == list(range(32, 64))
    assert set(host(y)[1].tolist()) == {float((i + j + 2) % 2**32)}
    loads = [
        line
        for line in around.compile(x.cpu(), y.cpu(), i, j, target="sm_90a").asm["cuda"].splitlines()
        if "ld.global.b32" in line
    ]
    assert [("+128]" in line, "+8]" in line) for line in loads] == [(True, False), (False, False)]
