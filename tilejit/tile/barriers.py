"""What calls of barriers must show before the kernel runs: the target, the launch, barrier numbers.

Not here: who meets at a barrier and when (the simulator).
"""

from __future__ import annotations

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ir.ops import OPS
from tilejit.ptx.forms import Form
from tilejit.target import Target
from tilejit.tile import raw
from tilejit.tile.affine import WARP
from tilejit.tile.values import Evaluator

NUMBERED = ("cuda.named_barrier_sync", "cuda.named_barrier_arrive")
RAW = ("bar", "barrier")
PAGE = "docs/contract/raw.md"


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


def check_raw(call: nodes.Call, form: Form, target: Target, report: Report) -> None:
    """A raw barrier's number, where it is a literal, is one of the CTA's."""
    if form.mnemonic not in RAW:
        return
    groups = raw.group_operands(form, raw.parse(call).operands) or []
    for spec, items in zip(form.operands, groups):
        item = items[0]
        if spec.name != "barrier" or not isinstance(item, nodes.Const):
            continue
        if not 0 <= item.value < target.limits.named_barriers:
            report.error(
                "ptx/barrier-number",
                f"{form.spelling} names barrier {item.value}, expected 0 to "
                f"{target.limits.named_barriers - 1}",
                span=item.span or call.span,
                contract=PAGE,
            )
