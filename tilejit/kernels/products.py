"""What the matrix products ask on the host: of their tensors, whatever instructions they run on, and of the
plans of those that ``lib.roles`` share out.

Not here: the plans themselves and launches (``kernels.matmul…``).
"""

from __future__ import annotations

from typing import Any

from tilejit.kernels import operands
from tilejit.kernels.operands import Facts
from tilejit.lib import activations, roles

MAX_EXTENT = 1 << 30
"""Of N and K, which are counted in int32, with room for a tile beyond the last. M has no such limit."""


def rows_of(what: str, matrix: Facts, k_axis: int) -> tuple[Facts, bool]:
    """(the matrix or its transpose, such that a row's elements lie side by side; whether its rows run
    along K)."""
    other = 1 - k_axis
    along_k, along_other = (
        matrix.strides[axis] == 1 or matrix.shape[axis] == 1 for axis in (k_axis, other)
    )
    if not (along_k or along_other):
        raise ValueError(
            f"neither the rows nor the columns of {what} lie side by side (strides "
            f"{tuple(matrix.strides)}); call .contiguous()"
        )
    k_major = along_k and not (along_other and matrix.shape[k_axis] == 1)
    if k_major != (k_axis == 1):
        matrix = matrix._replace(shape=matrix.shape[::-1], strides=matrix.strides[::-1])
    return matrix, k_major


def check(a: Facts, b: Facts, bias: Facts | None, out: Facts | None) -> None:
    """``ValueError`` for what the kernel cannot multiply."""
    for what, matrix in (("a", a), ("b", b)):
        if len(matrix.shape) != 2:
            raise ValueError(f"{what} is a matrix, got shape {tuple(matrix.shape)}")
    if str(a.dtype) not in ("torch.float16", "torch.bfloat16") or b.dtype != a.dtype:
        raise ValueError(
            f"expected a and b of one dtype, float16 or bfloat16, got {a.dtype} and {b.dtype}"
        )
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"expected a (M, K) and b (K, N) with one K, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if max(b.shape) > MAX_EXTENT:
        raise ValueError(f"b is {tuple(b.shape)}, expected at most {MAX_EXTENT} either way")
    operands.same_device(a=a, b=b, bias=bias, out=out)
    shape = (a.shape[0], b.shape[1])
    if bias is not None:
        if bias.shape != shape[1:] or (
            bias.dtype != a.dtype and str(bias.dtype) != "torch.float32"
        ):
            raise ValueError(
                f"bias is {bias.dtype} of shape {tuple(bias.shape)}, expected {a.dtype} or "
                f"torch.float32 of shape {shape[1:]}"
            )
    if out is None:
        return
    if out.shape != shape or out.dtype != a.dtype:
        raise ValueError(
            f"out is {out.dtype} of shape {tuple(out.shape)}, expected {a.dtype} of shape {shape}"
        )
    check_rows(out)


def check_rows(out: Facts) -> None:
    """``ValueError`` for a result whose rows are not adjacent elements, apart from each other."""
    (row_count, row_elems), (pitch, step) = out.shape, out.strides
    if row_elems > 1 and step != 1:
        raise ValueError(f"the elements of out's rows lie {step} apart, expected 1")
    if row_count > 1 and pitch < row_elems:
        raise ValueError(f"rows of out overlap: {row_elems} elements, {pitch} apart")


def check_shapes(a: Facts, b: Facts) -> None:
    """``ValueError`` for what are no two matrices to multiply."""
    for what, matrix in (("a", a), ("b", b)):
        if len(matrix.shape) != 2:
            raise ValueError(f"{what} is a matrix, got shape {tuple(matrix.shape)}")
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"expected a (M, K) and b (K, N) with one K, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if max(*a.shape, *b.shape) > MAX_EXTENT:
        raise ValueError(
            f"a is {tuple(a.shape)} and b {tuple(b.shape)}, expected at most {MAX_EXTENT} "
            "elements any way"
        )


RESULTS = ("torch.bfloat16", "torch.float16", "torch.float32")
"""Of a product of scaled operands."""


def result_dtype(out_dtype: Any) -> Any:
    """Of a new result of scaled operands."""
    import torch

    if out_dtype is None:
        return torch.bfloat16
    if str(out_dtype) not in RESULTS or not isinstance(out_dtype, torch.dtype):
        raise ValueError(f"out_dtype is {out_dtype!r}, expected {', '.join(RESULTS)}")
    return out_dtype


def check_result(m: int, n: int, out: Facts) -> None:
    """``ValueError`` for what is no result of scaled operands."""
    if tuple(out.shape) != (m, n):
        raise ValueError(f"out has shape {tuple(out.shape)}, expected {(m, n)}")
    if str(out.dtype) not in RESULTS:
        raise ValueError(f"out is {out.dtype}, expected {', '.join(RESULTS)}")
    check_rows(out)


View = tuple[tuple[int, int], tuple[int, int]]
"""Shape and strides."""


def launched(matrix: Facts) -> View:
    """Shape and strides of rows of adjacent elements as a launch describes them: of a single row the
    pitch is its length, whatever torch says."""
    row_count, row_elems = matrix.shape
    pitch = matrix.strides[0] if row_count > 1 else row_elems
    return (row_count, row_elems), (pitch, 1)


def pitch_bytes(matrix: Facts) -> int:
    """From one row to the next, as a launch describes them."""
    _, (pitch, _) = launched(matrix)
    return int(pitch * matrix.dtype.itemsize)


def view_of(tensor: Facts, matrix: Facts) -> View | None:
    """How a tensor is passed as the rows of ``matrix``, by ``as_strided``; None as it is, which is faster."""
    view = launched(matrix)
    return None if view == (tensor.shape, tensor.strides) else view


ALIGN_BYTES = 16
"""Of rows that TMA addresses."""


def addressed(
    what: str, line: str, axis: str, tensor: Facts, matrix: Facts, packed: int = 1
) -> View | None:
    """How a tensor is passed as the rows of ``matrix``, which run along ``axis`` and which TMA can address.
    ``line``: what they are of the tensor; ``packed``: values in one of its elements."""
    (row_count, row_elems), step = matrix.shape, matrix.strides[1]
    elem_bytes = matrix.dtype.itemsize
    if row_elems > 1 and step != 1:
        raise ValueError(
            f"the elements of {what}'s {line}s lie {step} apart, expected 1: tensor cores take "
            "elements of 8 bits or fewer that lie side by side along K"
        )
    distance_bytes = pitch_bytes(matrix)
    if (distance_bytes | matrix.address) % ALIGN_BYTES:
        longer = f", or a view of a matrix with longer {line}s" if row_count > 1 else ""
        raise ValueError(
            f"{line}s of {what} start {matrix.address} bytes past a multiple of {ALIGN_BYTES} and lie "
            f"{distance_bytes} bytes apart, expected multiples of {ALIGN_BYTES} bytes, which are all "
            f"that TMA addresses: {axis} a multiple of {ALIGN_BYTES // elem_bytes * packed}{longer}"
        )
    return view_of(tensor, matrix)


def passed(tensor: Any, view: View | None) -> Any:
    return tensor if view is None else tensor.as_strided(*view)


MAX_WGMMA_COLUMNS = 256


def check_count(name: str, count: Any) -> None:
    """``ValueError`` for a field of a plan of which there is at least one."""
    if type(count) is not int or count < 1:
        raise ValueError(f"{name} is {count!r}, expected a positive integer")


def check_plan(plan: Any, counts: tuple[str, ...]) -> None:
    """``ValueError`` for a ``TmaPlan`` or ``Fp8Plan`` that would wait for ever, compute nothing or not fit
    the instructions. ``counts``: the fields of which there is at least one."""
    for name in counts:
        check_count(name, getattr(plan, name))
    if plan.consumers > len(roles.REGISTERS):
        raise ValueError(f"{plan.consumers} consumers, expected at most {len(roles.REGISTERS)}")
    if plan.own_rows % 64 or plan.tile_n % 64 or plan.tile_n > MAX_WGMMA_COLUMNS:
        raise ValueError(
            f"a warpgroup computes {plan.own_rows} x {plan.tile_n} elements, expected multiples of 64 "
            f"and at most {MAX_WGMMA_COLUMNS} columns"
        )
    if type(plan.in_flight) is not int or plan.in_flight not in (0, 1):
        raise ValueError(
            f"{plan.in_flight!r} wgmma groups in flight, expected 0 or 1: a slice is released one slice later"
        )
    if plan.in_flight >= plan.stages:
        raise ValueError(
            "1 stage and 1 wgmma group in flight, expected 2 stages: the next slice must be there before "
            "this one is released"
        )
    if plan.slabs % plan.slabs_at_once:
        raise ValueError(
            f"the buffer holds {plan.slabs} slabs, expected a multiple of slabs_at_once = "
            f"{plan.slabs_at_once}"
        )


def activation_of(activation: Any) -> Any:
    """The function of an epilogue by its name, or as it is given; ``ValueError`` for anything else."""
    if isinstance(activation, str):
        activation = activations.NAMED.get(activation, activation)
    if not (activation is None or callable(activation)):
        raise ValueError(
            f"activation is {activation!r}, expected {', '.join(map(repr, activations.NAMED))}, a "
            "function or None"
        )
    return activation
