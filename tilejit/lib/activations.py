"""Functions of one float32 for epilogues, in the kernel language: as ``T.cuda.tile.ewise`` takes them."""

from __future__ import annotations

from tilejit import T, jit


@jit
def relu(x):
    """As torch has it: NaN and -0.0 stay what they are."""
    return 0.0 if x < 0.0 else x


@jit
def gelu(x):
    """The tanh form."""
    return 0.5 * x * (1.0 + T.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@jit
def silu(x):
    return x / (1.0 + T.exp(-x))


NAMED = {"relu": relu, "gelu": gelu, "silu": silu}
