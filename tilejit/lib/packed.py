"""Values that travel several to an access or to a register, in the kernel language.

Not here: which accesses a kernel makes; pairs of one type that an instruction computes with.
"""

from __future__ import annotations

from tilejit import T, jit


@jit
def vector(flat, index, elems: T.constexpr):
    """Elements ``elems * index`` on, ``elems`` of them, of a tensor's flat storage. The guards around
    the call say that they exist."""
    T.assume(0 <= index < flat.shape[0] // elems)
    return flat.sub[index * elems : index * elems + elems]


@jit
def ptx_type(dtype: T.constexpr):
    """The word for float16 or bfloat16 in an opcode."""
    return "bf16" if dtype == T.bfloat16 else "f16"


@jit
def round_pairs(words, x, dtype: T.constexpr):
    """words[i] (uint32) = x[2 i] and x[2 i + 1], float32, rounded to nearest even in ``dtype``."""
    count = words.size
    pairs = x.view(count, 2)
    T.cuda.tile.apply(
        T.ptx[f"cvt.rn.{ptx_type(dtype)}x2.f32"],
        words.view(count, 1), pairs.sub[:, 1:2], pairs.sub[:, 0:1],
    )  # fmt: skip
