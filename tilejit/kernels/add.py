"""Elementwise addition of two tensors of one shape: the smallest memory-bound kernel."""

from __future__ import annotations

from tilejit import T, jit
from tilejit.kernels import operands

THREADS = 128
VECTORS = 1
"""16-byte vectors per thread; enough CTAs are resident to keep the memory busy."""


@jit
def add_vectors(
    A: T.Tensor(("V", 4), "uint32", align=16),
    B: T.Tensor(("V", 4), "uint32", align=16),
    C: T.Tensor(("V", 4), "uint32", align=16),
    opcode: T.constexpr,
):
    """C = A + B on 16-byte vectors, by ``opcode`` on each 32-bit word."""
    V, _ = A.shape
    per_cta = THREADS * VECTORS
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(V + per_cta - 1) // per_cta, block=THREADS))
    first = T.cuda.block_idx("x") * per_cta + T.cuda.thread_idx("x")
    a = T.alloc_local((VECTORS, 4), "uint32", layout="default")
    b = T.alloc_local((VECTORS, 4), "uint32", layout="default")
    load = T.ptx["ld.global.v4.b32"]
    for i in T.unroll(VECTORS):
        index = first + i * THREADS
        if index < V:
            T.cuda.tile.apply(load, a.sub[i, :], A.sub[index, :])
            T.cuda.tile.apply(load, b.sub[i, :], B.sub[index, :])
    dtype = "float32" if opcode.endswith(".f32") else "uint32"
    for i in T.unroll(VECTORS):
        index = first + i * THREADS
        if index < V:
            x = a.sub[i, :].view(dtype).view(4, 1)
            T.cuda.tile.apply(T.ptx[opcode], x, x, b.sub[i, :].view(dtype).view(4, 1))
            T.cuda.tile.apply(T.ptx["st.global.cs.v4.b32"], C.sub[index, :], a.sub[i, :])


@jit
def add_scalars(A: T.Tensor(("N",)), B: T.Tensor(("N",)), C: T.Tensor(("N",))):
    """C = A + B, one element per thread: any stride, any alignment."""
    (N,) = A.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(N + THREADS - 1) // THREADS, block=THREADS))
    i = T.cuda.block_idx("x") * THREADS + T.cuda.thread_idx("x")
    if i < N:
        C[i] = A[i] + B[i]


_OPCODES = {
    "torch.float32": "add.rn.f32",
    "torch.float16": "add.rn.f16x2",
    "torch.bfloat16": "add.rn.bf16x2",
}


def add(a, b, out=None):
    """``a + b`` for vectors of one length and dtype; ``out`` may be ``a`` or ``b``."""
    import torch

    if out is None:
        out = torch.empty_like(a)
    for other in (b, out):
        if not isinstance(other, torch.Tensor):
            raise ValueError(f"expected tensors, got {other!r}")
        if a.ndim != 1 or other.shape != a.shape or other.dtype != a.dtype:
            raise ValueError(
                f"expected vectors of one dtype and length, got {a.dtype} {tuple(a.shape)} and "
                f"{other.dtype} {tuple(other.shape)}"
            )
    if a.numel() == 0:
        return out
    for operand in (a, b):
        if operand.data_ptr() != out.data_ptr() or operand.stride() != out.stride():
            operands.apart("an operand, unless it is the operand", operand, out)
    bytes_ = a.numel() * a.element_size()
    aligned = all(
        t.is_contiguous() and t.data_ptr() % 16 == 0 and not t.is_neg() for t in (a, b, out)
    )
    opcode = _OPCODES.get(str(a.dtype))
    if aligned and opcode and bytes_ % 16 == 0:
        words = [t.view(-1).view(torch.uint32).view(-1, 4) for t in (a, b, out)]
        add_vectors(*words, opcode)
    else:
        add_scalars(a, b, out)
    return out
