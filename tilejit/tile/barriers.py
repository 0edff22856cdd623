"""What calls of barriers must show before the kernel runs: the target, the launch, barrier numbers,
counts, where objects in shared memory lie.

Not here: who meets at a barrier and when (the simulator).
"""

from __future__ import annotations

import math

import numpy as np

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ir.ops import OPS
from tilejit.ir.storage import storage_bytes
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.target import Target
from tilejit.tile import raw
from tilejit.tile.affine import WARP
from tilejit.tile.values import Evaluator

NUMBERED = ("cuda.named_barrier_sync", "cuda.named_barrier_arrive")
WAITS = ("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster")
RAW = ("bar", "barrier")
PAGE = "docs/contract/raw.md"

MBARRIER_BYTES = 8
"""Size and alignment of an mbarrier."""
MBARRIER_HELP = (
    'T.alloc_shared((stages,), "uint64", align=8) holds barriers, bar.ptr_to([stage]) is one'
)


def is_barrier(call: nodes.Call) -> bool:
    """Is it an operation that joins threads?"""
    row = OPS.get(call.op)
    return row is not None and row.effect == "barrier"


def check(
    call: nodes.Call,
    launch: nodes.LaunchConfig,
    evaluator: Evaluator,
    target: Target,
    report: Report,
) -> None:
    """Every fault of an operation that joins threads."""
    least = OPS[call.op].min_target
    if not target.supports(least):
        report.error(
            "target/unsupported", f"{call.op} needs {least}, this kernel is compiled for {target}",
            span=call.span,
        )  # fmt: skip
    if call.op == "cuda.grid_sync" and not launch.cooperative:
        report.error(
            "tile/cooperative", "T.cuda.grid_sync joins a whole grid, which only a cooperative launch "
            "keeps resident", span=call.span, help="T.cuda.LaunchConfig(…, cooperative=True)",
        )  # fmt: skip
    if call.op in WAITS:
        _check_place(call.args[0], evaluator, "tile/mbarrier", call, report)
    if call.op in NUMBERED:
        _check_number(call, evaluator, target.limits.named_barriers, report)


def _check_number(call: nodes.Call, evaluator: Evaluator, barriers: int, report: Report) -> None:
    """The number is within the CTA's barriers, and one for each warp."""
    number = evaluator.integer(call.args[0])
    low, high = evaluator.context.range(number)
    if low < 0 or high >= barriers:
        found = str(low) if low == high else f"{low} to {high} as far as can be shown"
        report.error(
            "tile/barrier-number", f"the barrier's number is {found}, expected 0 to {barriers - 1}",
            span=call.span, help="T.assume(…) states a range that holds",
        )  # fmt: skip
    elif evaluator.level(number) < WARP:
        report.error(
            "tile/barrier-number", "the barrier's number may differ between the lanes of a warp",
            span=call.span, help="compute it from T.cuda.warp_id() and values that warps share",
        )  # fmt: skip


def misplaced(mbar: nodes.Expr, evaluator: Evaluator) -> str | None:
    """What is wrong with where an mbarrier lies, if that is certain; only an address in a buffer of the
    kernel tells."""
    if not isinstance(mbar, nodes.Address):
        return None
    type_ = mbar.buffer.type
    assert isinstance(type_, nodes.TensorType)
    if type_.align_bytes % MBARRIER_BYTES:
        return (
            f"mbar points into {mbar.buffer.name}, which is only known to be aligned to "
            f"{type_.align_bytes} bytes, expected {MBARRIER_BYTES}"
        )
    offset = evaluator.integer(mbar.offset_bytes)
    narrow = ""
    if type_.dtype.bytes < MBARRIER_BYTES:
        narrow = f", whose elements are {type_.dtype} of {type_.dtype.bytes} bytes: a barrier is a uint64"
    modulus, rest = evaluator.context.congruence(offset)
    left = np.asarray(rest) % math.gcd(modulus, MBARRIER_BYTES)
    if (left != 0).all():
        return (
            f"mbar is {int(left.flat[0])} bytes above a multiple of {MBARRIER_BYTES} in "
            f"{mbar.buffer.name}{narrow or f', expected {MBARRIER_BYTES}-byte alignment'}"
        )
    size = storage_bytes(type_) if all(isinstance(e, int) for e in type_.shape) else None
    if size is not None and evaluator.context.range(offset)[0] + MBARRIER_BYTES > size:
        return (
            f"mbar takes {MBARRIER_BYTES} bytes and does not lie in {mbar.buffer.name} of {size} bytes"
            f"{narrow}"
        )
    return None


def _check_place(
    mbar: nodes.Expr, evaluator: Evaluator, code: str, call: nodes.Call, report: Report
) -> None:
    message = misplaced(mbar, evaluator)
    if message is not None:
        report.error(
            code, message, span=mbar.span or call.span, contract=f"{PAGE}: barriers in memory",
            help=MBARRIER_HELP,
        )  # fmt: skip


def check_raw(
    call: nodes.Call, form: Form, evaluator: Evaluator, target: Target, report: Report
) -> None:
    """What is certain of a raw instruction's operands: a named barrier's number, where an mbarrier lies,
    a count or parity that is not a literal."""
    parsed = raw.parse(call)
    groups = raw.group_operands(form, parsed.operands) or []
    for spec, (item, *_) in zip(form.operands, groups):
        if spec.name == "barrier" and form.mnemonic in RAW and isinstance(item, nodes.Const):
            _check_raw_number(call, form, item, target, report)
        elif spec.name in ("barrier", "mbar") and spec.kind == "addr":
            _check_place(item, evaluator, "ptx/mbarrier", call, report)
        elif spec.values and spec.kind == "reg" and "pred" not in parsed.keywords:
            _check_value(call, form, spec, item, evaluator, report)


def _check_raw_number(
    call: nodes.Call, form: Form, number: nodes.Const, target: Target, report: Report
) -> None:
    if not 0 <= number.value < target.limits.named_barriers:
        report.error(
            "ptx/barrier-number",
            f"{form.spelling} names barrier {number.value}, expected 0 to "
            f"{target.limits.named_barriers - 1}",
            span=number.span or call.span,
            contract=PAGE,
        )


def _check_value(
    call: nodes.Call,
    form: Form,
    spec: OperandSpec,
    item: nodes.Expr,
    evaluator: Evaluator,
    report: Report,
) -> None:
    """A run-time value of which some may be legal. Literals are looked at with the call's form."""
    scalar = isinstance(item.type, nodes.ScalarType) and item.type.dtype.is_integer
    if isinstance(item, nodes.Const) or not scalar or spec.values is None:
        return
    low, high = evaluator.context.range(evaluator.integer(item))
    if high >= min(spec.values) and low <= max(spec.values):
        return
    found = str(low) if low == high else f"{low} to {high}"
    report.error(
        "ptx/value-range",
        f"{spec.name} of {form.spelling} is {found} here, expected {types.values_text(spec.values)}",
        span=call.span,
        contract=PAGE,
    )
