"""Binary floating-point formats as data: widths, bias, special codes.

Codes are unsigned integers: sign, exponent field, mantissa field from the top bit down. PTX names
and dtype names both lead here. NaN codes are the canonical ones that instructions produce: f32
0x7fffffff, f16 and bf16 0x7fff whatever the operands; f64 keeps an operand's payload and has
0xfff8000000000000 only for invalid operations (CUDART_NAN_F and CUDART_NAN; both seen on sm_90).

Not here: arithmetic (``arithmetic``), rounding to a format (``rounding``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
"""An array of unsigned integers."""
Values = npt.NDArray[Any]
"""An array of floating-point values."""

WORDS: dict[int, type[np.unsignedinteger[Any]]] = {
    8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64,
}  # fmt: skip
"""The numpy type of a register, by its width in bits."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """``bits`` is the width of a code; ``nan_code`` 0: the format has no NaN.

    ``max_code`` is the largest finite magnitude. ``signed`` False: scale factors (ue8m0, ue4m3).
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    nan_code: int
    max_code: int
    has_infinity: bool = False
    signed: bool = True

    @property
    def bias(self) -> int:
        return int((1 << (self.exponent_bits - 1)) - 1)

    @property
    def least_exponent(self) -> int:
        """Exponent of the least significant bit of a subnormal: the smallest value is 2 to it."""
        return 1 - self.bias - self.mantissa_bits

    @property
    def infinity_code(self) -> int:
        """Code of +infinity; the first code past ``max_code`` in formats that have one."""
        return self.max_code + 1

    @property
    def sign_code(self) -> int:
        """The sign bit of a code; 0 in unsigned formats."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def magnitude_code(self) -> int:
        """Mask of all bits but the sign."""
        return (1 << (self.bits - int(self.signed))) - 1

    @property
    def exponent_code(self) -> int:
        """Mask of the exponent field."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def one_code(self) -> int:
        """Code of 1.0."""
        return self.bias << self.mantissa_bits

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        """The numpy type of a code in a register: whole bytes."""
        return WORDS[max(self.bits, 8)]


F64 = FloatFormat("f64", 64, 11, 52, 0xFFF8_0000_0000_0000, 0x7FEF_FFFF_FFFF_FFFF, True)
F32 = FloatFormat("f32", 32, 8, 23, 0x7FFF_FFFF, 0x7F7F_FFFF, True)
F16 = FloatFormat("f16", 16, 5, 10, 0x7FFF, 0x7BFF, True)
BF16 = FloatFormat("bf16", 16, 8, 7, 0x7FFF, 0x7F7F, True)
E4M3 = FloatFormat("e4m3", 8, 4, 3, 0x7F, 0x7E)
E5M2 = FloatFormat("e5m2", 8, 5, 2, 0x7F, 0x7B, True)
E2M3 = FloatFormat("e2m3", 6, 2, 3, 0, 0x1F)
E3M2 = FloatFormat("e3m2", 6, 3, 2, 0, 0x1F)
E2M1 = FloatFormat("e2m1", 4, 2, 1, 0, 0x07)
UE8M0 = FloatFormat("ue8m0", 8, 8, 0, 0xFF, 0xFE, signed=False)
UE4M3 = FloatFormat("ue4m3", 7, 4, 3, 0x7F, 0x7E, signed=False)
"""e4m3 without its sign bit, which no reader looks at."""
TF32 = FloatFormat("tf32", 32, 8, 10, 0x7FFF_E000, 0x7F7F_E000, True)
"""tf32 sits in an f32 register with 13 low bits clear: ``convert`` rounds to it on its own."""

BY_PTX_TYPE: dict[str, FloatFormat] = {
    f.name: f for f in (F64, F32, F16, BF16, E4M3, E5M2, E2M3, E3M2, E2M1, UE8M0, UE4M3, TF32)
}
BY_DTYPE: dict[str, FloatFormat] = {
    "float64": F64, "float32": F32, "float16": F16, "bfloat16": BF16,
    "float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float8_e8m0fnu": UE8M0,
    "float6_e2m3fn": E2M3, "float6_e3m2fn": E3M2, "float4_e2m1fn": E2M1,
}  # fmt: skip


def is_nan(bits: Bits, fmt: FloatFormat) -> npt.NDArray[np.bool_]:
    """Where codes of an f16, bf16, f32 or f64 array are NaN."""
    word = fmt.word
    found: npt.NDArray[np.bool_] = (bits & word(fmt.magnitude_code)) > word(fmt.infinity_code)
    return found


def quiet_code(fmt: FloatFormat) -> Any:
    """The bit that makes a NaN quiet, as a code of ``fmt``."""
    return fmt.word(1 << (fmt.mantissa_bits - 1))


def flushed(bits: Bits, fmt: FloatFormat) -> Bits:
    """``.ftz``: subnormal codes become zero of the same sign."""
    word = fmt.word
    subnormal = (bits & word(fmt.exponent_code)) == 0
    if not subnormal.any():
        return bits
    return np.where(subnormal, bits & word(fmt.sign_code), bits)
