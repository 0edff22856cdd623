"""Numeric conversion: every ``cvt``.

Which rounding a pair of types needs, may have or must not have is the substance of this file:
narrowing floats and integers to floats name one of rn/rz/rm/rp, floats to integers one of
rni/rzi/rmi/rpi, exact conversions none. Packed results take the source of the high part first.
Owned by the register family; contract "numeric conversion".
"""

from __future__ import annotations

from tilejit.ptx.rows import Row

FAMILY = "registers"

_INTS = ".u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64"
_WIDER_INTS = ".u16|.u32|.u64|.s16|.s32|.s64"
_ROUND = ".rn|.rz|.rm|.rp"
_INTEGRAL = ".rni|.rzi|.rmi|.rpi"
_ONE = "=d:$to a:$from"
_PAIR = "=d:$to a:f32 b:f32"
_NARROW = "sm_100f|sm_110f|sm_120f"
"""Six- and four-bit floats and scale exponents."""
_STOCHASTIC = "sm_100a|sm_103a"


def _clamped() -> list[Row]:
    """``cvt.sat`` between integers exists only where the result could be out of range."""
    names = _INTS.split("|")
    rows: list[Row] = []
    for source in names:
        low, high = _range(source)
        narrow = [to for to in names if not (_range(to)[0] <= low and high <= _range(to)[1])]
        rows.append(Row(f"cvt.sat(to={'|'.join(narrow)})(from={source})", _ONE))
    return rows


def _range(modifier: str) -> tuple[int, int]:
    bits = int(modifier[2:])
    return (0, 2**bits - 1) if modifier[1] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_INTEGER = (
    Row(f"cvt(to={_INTS})(from={_INTS})", _ONE),
    *_clamped(),
    Row("cvt.pack.sat(to=.s16|.u16).s32", "=d:b32 a:s32 b:s32"),
    Row("cvt.pack.sat(to=.s8|.u8).s32.b32", "=d:b32 a:s32 b:s32 c:b32"),
)

_FLOAT_TO_INTEGER = (
    Row(f"cvt({_INTEGRAL})[.ftz][.sat](to={_INTS})(from=.f32)", _ONE),
    Row(f"cvt({_INTEGRAL})[.sat](to={_INTS})(from=.f16|.f64)", _ONE),
    Row(f"cvt({_INTEGRAL})(to={_WIDER_INTS})(from=.bf16)", _ONE, "sm_90"),
)

_INTEGER_TO_FLOAT = (
    Row(f"cvt({_ROUND})[.sat](to=.f16|.f32|.f64)(from={_INTS})", _ONE),
    Row(f"cvt({_ROUND})(to=.bf16)(from={_WIDER_INTS})", _ONE, "sm_90"),
)

_FLOAT = (
    Row("cvt[.ftz][.sat](to=.f32)(from=.f16)", _ONE),
    Row("cvt[.ftz][.sat](to=.f64)(from=.f32)", _ONE),
    Row("cvt[.sat](to=.f64)(from=.f16)", _ONE),
    Row(f"cvt({_ROUND})[.ftz][.sat](to=.f16)(from=.f32)", _ONE),
    Row(f"cvt({_ROUND})[.ftz][.sat](to=.f32)(from=.f64)", _ONE),
    Row(f"cvt({_ROUND})[.sat](to=.f16)(from=.f64)", _ONE),
    Row(f"cvt[{_INTEGRAL}][.ftz][.sat](to=.f32)(from=.f32)", _ONE),
    Row(f"cvt[{_INTEGRAL}][.sat](to=.f16)(from=.f16)", _ONE),
    Row(f"cvt[{_INTEGRAL}][.sat](to=.f64)(from=.f64)", _ONE),
    Row("cvt(.rn|.rz)[.relu][.satfinite](to=.bf16)(from=.f32)", _ONE, "sm_80"),
    Row("cvt(.rm|.rp)(to=.bf16)(from=.f32)", _ONE, "sm_80"),
    Row("cvt(.rn|.rz).relu[.satfinite](to=.f16)(from=.f32)", _ONE, "sm_80"),
    Row("cvt(.rn|.rz).satfinite(to=.f16)(from=.f32)", _ONE),
    Row("cvt(to=.f32)(from=.bf16)", _ONE, "sm_80"),
    Row("cvt.ftz(to=.f32)(from=.bf16)", _ONE, "sm_90"),
    Row("cvt(to=.f64)(from=.bf16)", _ONE, "sm_90"),
    Row(f"cvt({_ROUND})(to=.bf16)(from=.f16|.f64)", _ONE, "sm_90"),
    Row(f"cvt({_ROUND})(to=.f16)(from=.bf16)", _ONE, "sm_90"),
    Row(f"cvt[{_INTEGRAL}](to=.bf16)(from=.bf16)", _ONE, "sm_90"),
)

_TF32 = (
    Row("cvt.rna[.satfinite].tf32(from=.f32)", "=d:b32 a:f32", "sm_80"),
    Row("cvt(.rn|.rz)[.relu].tf32(from=.f32)", "=d:b32 a:f32", "sm_90"),
    Row("cvt(.rn|.rz)[.relu].satfinite.tf32(from=.f32)", "=d:b32 a:f32", "sm_100"),
)

_PACKED = (
    Row("cvt(.rn|.rz)[.relu][.satfinite](to=.f16x2|.bf16x2)(from=.f32)", _PAIR, "sm_80"),
    Row("cvt.rn.satfinite[.relu](to=.e4m3x2|.e5m2x2)(from=.f32)", _PAIR, "sm_89"),
    Row("cvt.rn.satfinite[.relu](to=.e4m3x2|.e5m2x2)(from=.f16x2)", _ONE, "sm_89"),
    Row("cvt.rn[.relu](to=.f16x2)(from=.e4m3x2|.e5m2x2)", _ONE, "sm_89"),
    Row("cvt.rn.satfinite[.relu](to=.e2m1x2|.e2m3x2|.e3m2x2)(from=.f32)", _PAIR, _NARROW),
    Row("cvt.rn[.relu](to=.f16x2)(from=.e2m1x2|.e2m3x2|.e3m2x2)", _ONE, _NARROW),
    Row("cvt(.rz|.rp)[.satfinite](to=.ue8m0x2)(from=.f32)", _PAIR, _NARROW),
    Row("cvt(.rz|.rp)[.satfinite](to=.ue8m0x2)(from=.bf16x2)", _ONE, _NARROW),
    Row("cvt.rn(to=.bf16x2)(from=.ue8m0x2)", _ONE, _NARROW),
)

_RANDOM = (
    Row(
        "cvt.rs[.relu][.satfinite](to=.f16x2|.bf16x2)(from=.f32)",
        f"{_PAIR} random:b32",
        _STOCHASTIC,
    ),
    Row(
        "cvt.rs[.relu].satfinite(.e4m3x4|.e5m2x4|.e2m3x4|.e3m2x4).f32",
        "=d:b32 a:f32*4 random:b32",
        _STOCHASTIC,
    ),
    Row("cvt.rs[.relu].satfinite.e2m1x4.f32", "=d:b16 a:f32*4 random:b32", _STOCHASTIC),
)

ROWS: tuple[Row, ...] = (
    *_INTEGER,
    *_FLOAT_TO_INTEGER,
    *_INTEGER_TO_FLOAT,
    *_FLOAT,
    *_TF32,
    *_PACKED,
    *_RANDOM,
)
