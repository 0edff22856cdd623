"""Raw bit, integer and predicate instructions: for ``T.ptx[...]`` calls, not tile operations.

Owned by the register family: registers in, registers out, no memory.
"""

from __future__ import annotations

from tilejit.ptx.rows import Row

FAMILY = "registers"

_BITS = ".b16|.b32|.b64"
_SIGNED_CMP = ".eq|.ne|.lt|.le|.gt|.ge"
_UNSIGNED_CMP = f"{_SIGNED_CMP}|.lo|.ls|.hi|.hs"
_FLOAT_CMP = f"{_SIGNED_CMP}|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan"
_COMPARE = "=p:pred a:$type b:$type"


def _raw(pattern: str, operands: str, min_target: str = "sm_75") -> Row:
    return Row(pattern, operands, min_target, tile=False)


_LOGIC = (
    *(_raw(f"{name}(type={_BITS})", "=d:$type a:$type b:$type") for name in ("and", "or", "xor")),
    *(_raw(f"{name}.pred", "=d:pred a:pred b:pred") for name in ("and", "or", "xor")),
    _raw(f"not(type={_BITS})", "=d:$type a:$type"),
    _raw("not.pred", "=d:pred a:pred"),
    _raw(f"cnot(type={_BITS})", "=d:$type a:$type"),
    _raw("lop3.b32", "=d:b32 a:b32 b:b32 c:b32 #lut:0..255"),
    _raw(f"shl(type={_BITS})", "=d:$type a:$type b:u32"),
    _raw(f"shr(type={_BITS}|.u16|.u32|.u64|.s16|.s32|.s64)", "=d:$type a:$type b:u32"),
    _raw("shf(side=.l|.r)(over=.clamp|.wrap).b32", "=d:b32 a:b32 b:b32 c:u32"),
)

_FIELDS = (
    _raw("prmt.b32[mode=.f4e|.b4e|.rc8|.ecl|.ecr|.rc16]", "=d:b32 a:b32 b:b32 c:b32"),
    _raw("popc(type=.b32|.b64)", "=d:u32 a:$type"),
    _raw("clz(type=.b32|.b64)", "=d:u32 a:$type"),
    _raw("brev(type=.b32|.b64)", "=d:$type a:$type"),
    _raw("bfind[.shiftamt](type=.u32|.u64|.s32|.s64)", "=d:u32 a:$type"),
    _raw("bfe(type=.u32|.u64|.s32|.s64)", "=d:$type a:$type start:u32 length:u32"),
    _raw("bfi(type=.b32|.b64)", "=f:$type a:$type b:$type start:u32 length:u32"),
    _raw("bmsk(over=.clamp|.wrap).b32", "=d:b32 start:u32 length:u32"),
    _raw("szext(over=.clamp|.wrap)(type=.u32|.s32)", "=d:$type a:$type b:u32"),
)

_ARITHMETIC = (
    _raw("sad(type=.u16|.u32|.u64|.s16|.s32|.s64)", "=d:$type a:$type b:$type c:$type"),
    _raw("dp4a(at=.u32)(bt=.u32)", "=d:u32 a:b32 b:b32 c:u32"),
    _raw("dp4a(at=.s32)(bt=.u32|.s32)", "=d:s32 a:b32 b:b32 c:s32"),
    _raw("dp4a(at=.u32)(bt=.s32)", "=d:s32 a:b32 b:b32 c:s32"),
    _raw("copysign(type=.f32|.f64)", "=d:$type a:$type b:$type"),
)

_PREDICATES = (
    _raw(
        "selp(type=.b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f32|.f64)",
        "=d:$type a:$type b:$type c:pred",
    ),
    _raw(f"setp(compare={_SIGNED_CMP})(type=.s16|.s32|.s64)", _COMPARE),
    _raw(f"setp(compare={_UNSIGNED_CMP})(type=.u16|.u32|.u64)", _COMPARE),
    _raw("setp(compare=.eq|.ne)(type=.b16|.b32|.b64)", _COMPARE),
    _raw(f"setp(compare={_FLOAT_CMP})[.ftz](type=.f32|.f16)", _COMPARE),
    _raw(f"setp(compare={_FLOAT_CMP})(type=.f64)", _COMPARE),
    _raw(f"setp(compare={_FLOAT_CMP})(type=.bf16)", _COMPARE, "sm_90"),
    _raw(f"setp(compare={_FLOAT_CMP})[.ftz](type=.f16x2)", "=p:pred~ =|q:pred~ a:$type b:$type"),
    _raw(
        f"setp(compare={_FLOAT_CMP})(type=.bf16x2)", "=p:pred~ =|q:pred~ a:$type b:$type", "sm_90"
    ),
    _raw(
        "testp(test=.finite|.infinite|.number|.notanumber|.normal|.subnormal)(type=.f32|.f64)",
        "=p:pred a:$type",
    ),
)

ROWS: tuple[Row, ...] = (*_LOGIC, *_FIELDS, *_ARITHMETIC, *_PREDICATES)
