"""Warp matrix multiply-accumulate on register fragments, D = A·B + C.

A and B are 32-bit words: two 16-bit values, four 8-bit values, or one tf32 value of adjacent k; f64
has registers of its own. A and B have one type, 8-bit types excepted. Not here: sparse and
block-scaled forms, 4-bit and 1-bit integers.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "mma_sync"

_EFFECTS: tuple[Effect, ...] = ("convergent",)

_F8 = "(a=.e4m3|.e5m2)(b=.e4m3|.e5m2)"
_I8 = "(a=.s8|.u8)(b=.s8|.u8)"

_F32, _F16, _S32 = "f32*4", "b32*2", "s32*4"
"""D and C of a warp's 16×8 tile. f16: two adjacent columns to a word."""


def _row(shape: str, types: str, accumulator: str, a: str, b: str, least: str) -> Row:
    operands = f"=d:{accumulator} a:{a} b:{b} c:{accumulator}"
    return Row(f"mma.sync.aligned.{shape}.row.col{types}", operands, least, _EFFECTS)


_SMALL = ("b32*2", "b32*{1}")
_LARGE = ("b32*4", "b32*2")
"""A and B of a warp with 16 and with 32 bytes of each row."""

ROWS: tuple[Row, ...] = (
    _row("m16n8k8", ".f32.f16.f16.f32", _F32, *_SMALL, "sm_75"),
    _row("m16n8k8", ".f32.bf16.bf16.f32", _F32, *_SMALL, "sm_80"),
    _row("m16n8k16", ".f32.f16.f16.f32", _F32, *_LARGE, "sm_80"),
    _row("m16n8k16", ".f32.bf16.bf16.f32", _F32, *_LARGE, "sm_80"),
    _row("m16n8k8", ".f16.f16.f16.f16", _F16, *_SMALL, "sm_75"),
    _row("m16n8k16", ".f16.f16.f16.f16", _F16, *_LARGE, "sm_80"),
    _row("m16n8k4", ".f32.tf32.tf32.f32", _F32, "tf32*2", "tf32*{1}", "sm_80"),
    _row("m16n8k8", ".f32.tf32.tf32.f32", _F32, "tf32*4", "tf32*2", "sm_80"),
    _row("m16n8k16", f".f32{_F8}.f32", _F32, *_SMALL, "sm_89"),
    _row("m16n8k32", f".f32{_F8}.f32", _F32, *_LARGE, "sm_89"),
    _row("m16n8k16", f".f16{_F8}.f16", _F16, *_SMALL, "sm_89"),
    _row("m16n8k32", f".f16{_F8}.f16", _F16, *_LARGE, "sm_89"),
    _row("m16n8k16", f"[.satfinite].s32{_I8}.s32", _S32, *_SMALL, "sm_80"),
    _row("m16n8k32", f"[.satfinite].s32{_I8}.s32", _S32, *_LARGE, "sm_80"),
    _row("m8n8k4", ".f64.f64.f64.f64", "f64*2", "f64*{1}", "f64*{1}", "sm_80"),
    _row("m16n8k4", ".f64.f64.f64.f64", "f64*4", "f64*2", "f64*{1}", "sm_90"),
    _row("m16n8k8", ".f64.f64.f64.f64", "f64*4", "f64*4", "f64*2", "sm_90"),
    _row("m16n8k16", ".f64.f64.f64.f64", "f64*4", "f64*8", "f64*4", "sm_90"),
)
