"""What no launch of a function can have: too much shared memory, too large a grid, parts of clusters.

Only what is known at compile time is looked at: a grid that the caller gives, or one of run-time sizes,
is the runtime's business. Not here: the sizes of blocks and clusters (``frontend.launch``), the
hardware ids as values (``tile.launch``).
"""

from __future__ import annotations

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ir.storage import shared_allocations, shared_offset, storage_bytes
from tilejit.target import Target
from tilejit.tile.facts import Facts


def check(function: nodes.Function, target: Target, facts: Facts, report: Report) -> None:
    """Reports ``tile/shared-memory``, ``tile/grid`` and ``tile/cluster-grid``."""
    _check_shared(function, target, report)
    _check_grid(function, target, facts, report)


def _check_shared(function: nodes.Function, target: Target, report: Report) -> None:
    """All shared buffers, one after another in program order, fit what the target gives a block and
    what the launch declares."""
    limit = target.limits.smem_per_block_bytes
    declared = function.launch.dynamic_smem_bytes
    if declared is not None and declared > limit:
        report.error(
            "tile/shared-memory",
            f"the launch declares {declared} bytes of shared memory, {target} gives a block {limit} bytes",
            span=function.span,
        )
        return
    end = 0
    over = None
    table: list[str] = []
    for allocation in shared_allocations(function):
        name, type_ = allocation.buffer.name, allocation.buffer.type
        assert isinstance(type_, nodes.TensorType)
        size = storage_bytes(type_)
        end = shared_offset(end, type_) + size
        table.append(f"{name}: {size} bytes, {type_.dtype} {type_.shape}")
        if over is None and end > (limit if declared is None else declared):
            over = allocation.span or function.span
    if end > limit:
        bound = f"{target} gives a block {limit} bytes"
        advice = "make a buffer smaller, or use one for what is not needed at the same time"
    elif declared is not None and end > declared:
        bound = f"the launch declares {declared} bytes"
        advice = "leave dynamic_smem_bytes out: it is counted for you"
    else:
        return
    report.error(
        "tile/shared-memory",
        f"shared buffers take {end} bytes, {bound}",
        span=over,
        where="; ".join(table),
        help=advice,
    )


def _check_grid(function: nodes.Function, target: Target, facts: Facts, report: Report) -> None:
    """A grid that is known is one the target has, and whole clusters along every axis."""
    given = function.launch.grid or ()
    cluster = function.launch.cluster or ()
    for position, (axis, limit) in enumerate(zip("xyz", target.limits.grid)):
        ctas = facts.hardware[f"nctaid.{axis}"].constant
        if ctas is None:
            continue
        span = (given[position].span if position < len(given) else None) or function.span
        size = cluster[position] if position < len(cluster) else 1
        whole = -(-ctas // size) * size
        if not 0 <= ctas <= limit:
            report.error(
                "tile/grid", f"grid axis {axis} is {ctas} CTAs, expected 0 to {limit}", span=span
            )
        elif ctas != whole:
            report.error(
                "tile/cluster-grid",
                f"grid axis {axis} is {ctas} CTAs, not a multiple of the cluster's {size}",
                span=span,
                help=f"launch {whole} CTAs along {axis} and guard what the last ones do"
                if whole <= limit
                else f"launch {whole - size} CTAs along {axis}, each for more of the work",
            )
