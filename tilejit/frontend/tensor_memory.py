"""Tensor memory in kernels: tensors declared at an address, and addresses.

Not here: views of them (``tensors``), what a layout there may be (``ir.tensor_memory``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

from typing import Any

from tilejit import dtypes
from tilejit.frontend import operators, tensors
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import describe, dtype_of, is_number, is_scalar
from tilejit.ir import build, tensor_memory, views
from tilejit.ir import nodes as ir

_ADDRESS = ir.PointerType("tmem")
_LAYOUT_HELP = (
    'T.cuda.decl_tmem(slot[0], (128, 64), "float32", layout="(128,64):(1@TLane,1@TCol)"): TLane counts lanes, '
    "TCol elements along a lane; a 32-bit column holds two float16"
)
_CELL_BYTES = tensor_memory.CELL_BITS // 8


def decl_tmem(lw: Lowering, address: Any, shape: Any, dtype: Any, layout: Any) -> ir.View:
    """``T.cuda.decl_tmem``"""
    if layout is None or layout == "default":
        lw.refuse(
            "layout", "a tensor in tensor memory says which lanes and columns it takes, got layout="
            f"{layout!r}", help=_LAYOUT_HELP,
        )  # fmt: skip
    dims, found = tensors.shape_and_layout(lw, shape, layout)
    kind = ir.TensorType(dims, tensors.as_dtype(lw, dtype), found, "tmem", _CELL_BYTES)
    wrong = tensor_memory.fault(kind)
    if wrong is not None:
        lw.refuse("tensor-memory", f"no tensor for tensor memory: {wrong}", help=_LAYOUT_HELP)
    word = _word(lw, address, "T.cuda.decl_tmem")
    buffer = lw.fresh(lw.hint or "tmem", kind)
    lw.emit(ir.DeclTmem(buffer, word, span=lw.here()))
    return views.whole(buffer)


def get_tmem_addr(lw: Lowering, base: Any, row: Any, col: Any) -> Any:
    """``T.cuda.get_tmem_addr``"""
    word = _word(lw, base, "T.cuda.get_tmem_addr")
    lanes = _count(lw, row, "row", tensor_memory.TENSOR_LANES)
    columns = _count(lw, col, "col", tensor_memory.TENSOR_COLUMNS)
    shift = build.const(tensor_memory.LANE_SHIFT, dtypes.uint32)
    moved = build.add(build.shl(lanes, shift, span=lw.here()), columns, span=lw.here())
    return build.add(word, moved, span=lw.here())


def _word(lw: Lowering, address: Any, name: str) -> Any:
    """An address in tensor memory as a uint32."""
    if type(address) is int and 0 <= address < 1 << 32:
        return operators.const(lw, address, dtypes.uint32)
    if is_scalar(address) and address.type == _ADDRESS:
        return operators.cast(lw, address, dtypes.uint32)
    if is_scalar(address) and address.type == ir.UINT32:
        return address
    lw.refuse(
        "type", f"{name} takes an address in tensor memory, a uint32, got {describe(address)}",
        help=_address_help(address),
    )  # fmt: skip


def _address_help(address: Any) -> str:
    if isinstance(address, ir.View | ir.Region):
        view = address.view if isinstance(address, ir.Region) else address
        zeros = ", ".join("0" for _ in view.shape) or "()"
        if view.space == "tmem":
            return f"the address of an element: {view.buffer.name}.ptr_to([{zeros}])"
        return f"the word that tcgen05.alloc wrote there: {view.buffer.name}[{zeros}]"
    if is_scalar(address) and address.type == ir.PointerType("shared"):
        return "tcgen05.alloc writes the address to shared memory: read the word, slot[0]"
    return 'slot = T.alloc_shared((1,), "uint32") for tcgen05.alloc, then slot[0]; T.uint32(x) converts'


def _count(lw: Lowering, value: Any, name: str, limit: int) -> Any:
    """Lanes or columns as a uint32, which wraps around for steps back."""
    known = value.value if isinstance(value, ir.Const) else value
    scalar = is_scalar(value) and isinstance(value.type, ir.ScalarType)
    if not (scalar and dtype_of(value).is_integer) and type(value) is not int:
        lw.refuse("type", f"T.cuda.get_tmem_addr takes an integer as {name}, got {describe(value)}")
    if isinstance(known, int) and not -limit < known < limit:
        lw.refuse(
            "bounds", f"T.cuda.get_tmem_addr steps {known} {'lanes' if name == 'row' else 'columns'}, and "
            f"there are {limit}", help="col counts columns of 32 bits, whatever the dtype",
        )  # fmt: skip
    if is_number(value):
        return build.const(int(value), dtypes.uint32, span=lw.here())
    return operators.cast(lw, value, dtypes.uint32)
