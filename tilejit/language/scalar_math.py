"""Scalar mathematics of the kernel language. Operands and results have one floating-point type.

What each computes is written once, in ``ir.ops``; accuracy is CUDA's for the functions named there.
"""

from __future__ import annotations

from typing import Any

from tilejit.language.kernel_only import outside_kernel


def exp(x: Any) -> Any:
    """e**x"""
    outside_kernel("T.exp")


def exp2(x: Any) -> Any:
    """2**x"""
    outside_kernel("T.exp2")


def log(x: Any) -> Any:
    """Natural logarithm."""
    outside_kernel("T.log")


def log2(x: Any) -> Any:
    """Base-two logarithm."""
    outside_kernel("T.log2")


def sqrt(x: Any) -> Any:
    """IEEE square root, rounded to nearest even."""
    outside_kernel("T.sqrt")


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x), within 2 ulp."""
    outside_kernel("T.rsqrt")


def sin(x: Any) -> Any:
    """Sine of ``x`` radians."""
    outside_kernel("T.sin")


def cos(x: Any) -> Any:
    """Cosine of ``x`` radians."""
    outside_kernel("T.cos")


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    outside_kernel("T.tanh")


def erf(x: Any) -> Any:
    """Error function."""
    outside_kernel("T.erf")


def floor(x: Any) -> Any:
    """Largest integer not above ``x``, as a float."""
    outside_kernel("T.floor")


def ceil(x: Any) -> Any:
    """Smallest integer not below ``x``, as a float."""
    outside_kernel("T.ceil")


def trunc(x: Any) -> Any:
    """``x`` without its fraction, as a float."""
    outside_kernel("T.trunc")


def rint(x: Any) -> Any:
    """Nearest integer, ties to even, as a float."""
    outside_kernel("T.rint")


def fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c``, rounded once."""
    outside_kernel("T.fma")


def pow(a: Any, b: Any) -> Any:
    """``a ** b`` for floats."""
    outside_kernel("T.pow")


def isnan(x: Any) -> Any:
    """True for NaN."""
    outside_kernel("T.isnan")


def isinf(x: Any) -> Any:
    """True for either infinity."""
    outside_kernel("T.isinf")


def popc(x: Any) -> Any:
    """Number of one bits of an integer, int32."""
    outside_kernel("T.popc")


def clz(x: Any) -> Any:
    """Number of leading zero bits of an integer, int32."""
    outside_kernel("T.clz")


def brev(x: Any) -> Any:
    """The bits of an integer in reverse order."""
    outside_kernel("T.brev")
