"""What a fifth-generation tensor core computes: ``tcgen05.mma`` on codes of A, B, D and of scale factors.

Kind i8 is exact. The others follow the model of ``numeric.mma``, all of an instruction's k in one block.
Scale factors of kind mxf8f6f4 are powers of two: they move the exponents of the products. Kinds mxf4 and
mxf4nvf4 have one term for every 16 of k: their products, added exactly, times both scale factors; its
exponent is the sum of the scale factors' exponents, whatever the products are, unless the term is zero.

No Blackwell GPU was at hand: the numbers are published measurements (``adr/0013``). Not here: how codes
lie in memory (``numeric.packing``), lanes, masks and descriptors (the family), sparsity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BY_PTX_TYPE, F32, UE8M0, FloatFormat, Values
from tilejit.sim.numeric.mma import Accumulator, Exponents, Words

Kind: TypeAlias = Literal["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"]

_WHOLE = Accumulator(32, 25, "rz", 23)
_GROUPS = Accumulator(96, 35, "rz", 23)  # sm_103a has instructions with as many k

SM_100: dict[str, Accumulator] = {
    "f16": replace(_WHOLE, block_elems=16),
    "tf32": replace(_WHOLE, block_elems=8),
    "f8f6f4": _WHOLE,
    "mxf8f6f4": _WHOLE,
    "mxf4": _GROUPS,
    "mxf4nvf4": _GROUPS,
}
"""By kind, with an f32 accumulator."""

GROUP_ELEMS = 16
"""Products of one term of kinds mxf4 and mxf4nvf4."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockScales:
    """Scale factors as uint8 codes of ``type`` (ue8m0, ue4m3): ``a``, shape (M, blocks), and ``b``, shape
    (N, blocks); each is of K / blocks consecutive elements of a row."""

    type: str
    a: Words
    b: Words


def tensor_core_multiply_accumulate(
    kind: Kind,
    types: tuple[str, str, str],
    a: Words,
    b: Words,
    d: Words | None,
    *,
    saturate: bool = False,
    negate_a: bool = False,
    negate_b: bool = False,
    scales: BlockScales | None = None,
) -> Words:
    """D's cells after one instruction: uint32, shape (M, N).

    ``types``: PTX types of D, A and B. ``a`` (M, K) and ``b`` (N, K): one unsigned code per element.
    ``d``: D's cells before; None: D = A·B. An f16 of D is in the low half of its cell: the high half is
    not read, and 0 in the result, because the PTX ISA gives it no meaning. ``saturate``: s32 is clamped.
    """
    result, left, right = types
    if kind == "i8":
        before = np.zeros((len(a), len(b)), np.uint32) if d is None else d
        return mma.integers(_integers(a, left), _integers(b, right), before, saturate)
    formats = BY_PTX_TYPE[left], BY_PTX_TYPE[right], BY_PTX_TYPE[result]
    values = [mma.valued(codes, fmt) for codes, fmt in zip((a, b), formats)]
    signed = [-x if negate else x for x, negate in zip(values, (negate_a, negate_b))]
    addend = np.zeros((len(a), len(b))) if d is None else mma.valued(d, formats[2])
    total = _floats(kind, formats, (signed[0], signed[1], addend), scales)
    cells: Words = mma.coded(total, formats[2]).astype(np.uint32)
    return cells


_Matrices: TypeAlias = tuple[Values, Values, Values]
_Formats: TypeAlias = tuple[FloatFormat, FloatFormat, FloatFormat]


def _floats(kind: Kind, formats: _Formats, values: _Matrices, scales: BlockScales | None) -> Values:
    model = SM_100[kind]
    if formats[2] is not F32:
        model = replace(model, rounding="rn", result_bits=formats[2].mantissa_bits)
    if scales is None:
        return mma.accumulate(*values, formats, model)
    with np.errstate(all="ignore"):
        if kind == "mxf8f6f4":
            return _scaled_products(values, formats, scales, model)
        return _scaled_groups(values, scales, model)


def _integers(codes: Words, kind: str) -> Values:
    return np.ascontiguousarray(codes, np.uint8).view(np.int8 if kind == "s8" else np.uint8)


# --- block scales


def _scale_factors(codes: Words, type_: str, parts: int) -> tuple[Values, Exponents]:
    """Values and exponents of a row's scale factors, one for each of ``parts`` equal parts of K."""
    fmt = BY_PTX_TYPE[type_]
    each = np.repeat(codes, parts // codes.shape[-1], axis=-1)
    values = mma.valued(each, fmt)
    if fmt is UE8M0:  # no zero and no subnormals
        return values, each.astype(np.int16) - np.int16(fmt.bias)
    return values, mma.exponents(values, fmt)


def _scaled_products(
    values: _Matrices, formats: _Formats, scales: BlockScales, model: Accumulator
) -> Values:
    sides, parts = [], []
    for side, fmt, codes in zip(values, formats, (scales.a, scales.b)):
        factors, moved = _scale_factors(codes, scales.type, side.shape[-1])
        sides.append(side * factors)
        parts.append(mma.exponents(side, fmt) + moved)
    parts.append(mma.exponents(values[2], formats[2]))
    return mma.block_sum((sides[0], sides[1], values[2]), parts, formats[2], model)


def _scaled_groups(values: _Matrices, scales: BlockScales, model: Accumulator) -> Values:
    a, b, c = values
    groups = a.shape[-1] // GROUP_ELEMS
    left, right = (x.reshape(len(x), groups, GROUP_ELEMS).swapaxes(0, 1) for x in (a, b))
    (scale_a, part_a), (scale_b, part_b) = (
        _scale_factors(codes, scales.type, groups) for codes in (scales.a, scales.b)
    )
    # Exact: a group's sum has 12 bits, a scale factor 4.
    terms = np.matmul(left, right.swapaxes(1, 2)) * _outer(np.multiply, scale_a, scale_b)
    parts = np.where(terms == 0, mma.NO_EXPONENT, _outer(np.add, part_a, part_b))
    largest = np.maximum(parts.max(axis=0).astype(np.int16), mma.exponents(c, F32))
    return mma.rounded(mma.cut_sum(terms, c, largest, model), F32, model)


def _outer(combine: np.ufunc, a: Values, b: Values) -> Values:
    """Rows (M, groups) and (N, groups) combined to (groups, M, N)."""
    combined: Values = combine(a.T[:, :, None], b.T[:, None, :])
    return combined
