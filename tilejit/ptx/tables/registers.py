"""Register instructions, all but ``cvt``: mov, arithmetic, min/max, fma, ex2/lg2, abs/neg.

One row per syntax line of the PTX ISA; contract "register instructions". Not here: numeric
conversion (``conversions``), raw bit instructions (``integer``).
"""

from __future__ import annotations

from tilejit.ptx.rows import Row

FAMILY = "registers"

_INTS = ".u16|.u32|.u64|.s16|.s32|.s64"
_ROUND = ".rn|.rz|.rm|.rp"
_UNARY = "=d:$type a:$type"
_BINARY = "=d:$type a:$type b:$type"
_TERNARY = "=d:$type a:$type b:$type c:$type"

_MOV = (
    Row("mov(type=.b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f32|.f64)", _UNARY),
    Row("mov.pred", "=d:pred a:pred", tile=False),
    Row("mov.b16", "=d:b16 a:b8*2"),
    Row("mov.b32", "=d:b32 a:b8*4"),
    Row("mov.b16", "=d:b8*2~ a:b16"),
    Row("mov.b32", "=d:b8*4~ a:b32"),
    Row("mov.b32", "=d:b32 a:b16*2"),
    Row("mov.b64", "=d:b64 a:b32*2"),
    Row("mov.b64", "=d:b64 a:b16*4"),
    Row("mov.b32", "=d:b16*2~ a:b32"),
    Row("mov.b64", "=d:b32*2~ a:b64"),
    Row("mov.b64", "=d:b16*4~ a:b64"),
    Row("mov.b128", "=d:b128 a:b64*2", "sm_75", tile=False),
    Row("mov.b128", "=d:b64*2~ a:b128", "sm_75", tile=False),
)


def _sum(name: str) -> tuple[Row, ...]:
    """The float and packed forms that add, sub and mul share."""
    return (
        Row(f"{name}[{_ROUND}][.ftz][.sat](type=.f32)", _BINARY),
        Row(f"{name}[{_ROUND}](type=.f64)", _BINARY),
        Row(f"{name}[.rn][.ftz][.sat](type=.f16|.f16x2)", _BINARY),
        Row(f"{name}[.rn](type=.bf16|.bf16x2)", _BINARY, "sm_90"),
        Row(f"{name}[{_ROUND}][.ftz](type=.f32x2)", _BINARY, "sm_100"),
    )


_ADD_SUB_MUL = (
    *(row for name in ("add", "sub", "mul") for row in _sum(name)),
    *(
        row
        for name in ("add", "sub")
        for row in (
            Row(f"{name}(type={_INTS})", _BINARY),
            Row(f"{name}.sat(type=.s32)", _BINARY),
            Row(f"{name}[{_ROUND}][.sat].f32(type=.f16|.bf16)", "=d:f32 a:$type c:f32", "sm_100"),
        )
    ),
    Row("add(type=.u16x2|.s16x2)", _BINARY, "sm_90"),
    Row(f"mul(part=.lo|.hi)(type={_INTS})", _BINARY),
    Row("mul.wide(type=.u16)", "=d:u32 a:$type b:$type"),
    Row("mul.wide(type=.s16)", "=d:s32 a:$type b:$type"),
    Row("mul.wide(type=.u32)", "=d:u64 a:$type b:$type"),
    Row("mul.wide(type=.s32)", "=d:s64 a:$type b:$type"),
    Row(f"mad(part=.lo|.hi)(type={_INTS})", _TERNARY),
    Row("mad.hi.sat(type=.s32)", _TERNARY),
    Row("mad.wide(type=.u16)", "=d:u32 a:$type b:$type c:u32"),
    Row("mad.wide(type=.s16)", "=d:s32 a:$type b:$type c:s32"),
    Row("mad.wide(type=.u32)", "=d:u64 a:$type b:$type c:u64"),
    Row("mad.wide(type=.s32)", "=d:s64 a:$type b:$type c:s64"),
)

_DIV_RCP_SQRT = (
    Row("div(.approx|.full)[.ftz](type=.f32)", _BINARY),
    Row(f"div({_ROUND})[.ftz](type=.f32)", _BINARY),
    Row(f"div({_ROUND})(type=.f64)", _BINARY),
    Row(f"div(type={_INTS})", _BINARY),
    Row(f"rem(type={_INTS})", _BINARY),
    *(
        row
        for name in ("rcp", "sqrt")
        for row in (
            Row(f"{name}.approx[.ftz](type=.f32)", _UNARY),
            Row(f"{name}({_ROUND})[.ftz](type=.f32)", _UNARY),
            Row(f"{name}({_ROUND})(type=.f64)", _UNARY),
        )
    ),
    Row("rcp.approx.ftz(type=.f64)", _UNARY),
    Row("rsqrt.approx[.ftz](type=.f32|.f64)", _UNARY),
)


def _extremum(name: str) -> tuple[Row, ...]:
    return (
        Row(f"{name}[.ftz](type=.f32)", _BINARY),
        Row(f"{name}[.ftz].NaN(type=.f32)", _BINARY, "sm_80"),
        Row(f"{name}[.ftz][.NaN].xorsign.abs(type=.f32)", _BINARY, "sm_86"),
        Row(f"{name}[.ftz][.NaN][.abs](type=.f32)", _TERNARY, "sm_100"),
        Row(f"{name}(type=.f64)", _BINARY),
        Row(f"{name}[.ftz][.NaN](type=.f16|.f16x2)", _BINARY, "sm_80"),
        Row(f"{name}[.ftz][.NaN].xorsign.abs(type=.f16|.f16x2)", _BINARY, "sm_86"),
        Row(f"{name}[.NaN](type=.bf16|.bf16x2)", _BINARY, "sm_80"),
        Row(f"{name}[.NaN].xorsign.abs(type=.bf16|.bf16x2)", _BINARY, "sm_86"),
        Row(f"{name}(type={_INTS})", _BINARY),
        Row(f"{name}(type=.u16x2|.s16x2)", _BINARY, "sm_90"),
        Row(f"{name}.relu(type=.s32|.s16x2)", _BINARY, "sm_90"),
    )


_FMA = (
    Row(f"fma({_ROUND})[.ftz][.sat](type=.f32)", _TERNARY),
    Row(f"fma({_ROUND})(type=.f64)", _TERNARY),
    Row("fma.rn[.ftz][.sat](type=.f16|.f16x2)", _TERNARY),
    Row("fma.rn[.ftz].relu(type=.f16|.f16x2)", _TERNARY, "sm_80"),
    Row("fma.rn[.relu](type=.bf16|.bf16x2)", _TERNARY, "sm_80"),
    Row("fma.rn.oob[.relu](type=.f16|.f16x2|.bf16|.bf16x2)", _TERNARY, "sm_90"),
    Row(f"fma({_ROUND})[.ftz](type=.f32x2)", _TERNARY, "sm_100"),
    Row(f"fma({_ROUND})[.sat].f32(type=.f16|.bf16)", "=d:f32 a:$type b:$type c:f32", "sm_100"),
)

_TRANSCENDENTAL = (
    Row("ex2.approx[.ftz](type=.f32)", _UNARY),
    Row("ex2.approx(type=.f16|.f16x2)", _UNARY),
    Row("ex2.approx.ftz(type=.bf16|.bf16x2)", _UNARY, "sm_90"),
    Row("lg2.approx[.ftz](type=.f32)", _UNARY),
    Row("tanh.approx(type=.f32|.f16|.f16x2)", _UNARY),
    Row("tanh.approx(type=.bf16|.bf16x2)", _UNARY, "sm_90"),
    Row("sin.approx[.ftz](type=.f32)", _UNARY),
    Row("cos.approx[.ftz](type=.f32)", _UNARY),
)

_ABS_NEG = tuple(
    row
    for name in ("abs", "neg")
    for row in (
        Row(f"{name}[.ftz](type=.f32|.f16|.f16x2)", _UNARY),
        Row(f"{name}(type=.f64|.s16|.s32|.s64)", _UNARY),
        Row(f"{name}(type=.bf16|.bf16x2)", _UNARY, "sm_80"),
    )
)

ROWS: tuple[Row, ...] = (
    *_MOV,
    *_ADD_SUB_MUL,
    *_DIV_RCP_SQRT,
    *_extremum("min"),
    *_extremum("max"),
    *_FMA,
    *_TRANSCENDENTAL,
    *_ABS_NEG,
)
