"""``T.device_entry`` and launch configurations: from what was written to ``ir.LaunchConfig``.

Not here: device limits (``target``), launching (runtime).
"""

from __future__ import annotations

import math
from typing import Any

from tilejit import dtypes
from tilejit.errors import Span, SyntaxUnsupported, fault
from tilejit.frontend import env, operators, tensors
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import describe, dtype_of, is_scalar, subexpressions
from tilejit.ir import nodes as ir
from tilejit.ir.signature import LaunchOverride
from tilejit.language.annotations import LaunchConfig
from tilejit.target import MAX_GRID, Target

LEAST = {"dynamic_smem_bytes": 0, "min_blocks_per_sm": 1, "max_registers_per_thread": 1}


def device_entry(lw: Lowering, *, launch: Any) -> None:
    """``T.device_entry(launch=T.cuda.LaunchConfig(...))``"""
    if not isinstance(launch, LaunchConfig):
        lw.refuse("launch", f"launch is a T.cuda.LaunchConfig, got {describe(launch)}")
    if lw.launch is not None:
        first = f"line {lw.launch_span.line}" if lw.launch_span else "an earlier line"
        lw.refuse("launch", "a kernel has one T.device_entry", where=f"the first is on {first}")
    if lw.depth or any(f.regions for f in lw.frames):
        lw.refuse("launch", "T.device_entry stands outside every branch and loop")
    lw.launch, lw.launch_span = config(lw, launch, lw.signature.launch), lw.here()
    env.end_host_part(lw)


def config(lw: Lowering, launch: LaunchConfig, override: LaunchOverride) -> ir.LaunchConfig:
    """The launch this specialisation is lowered for; what the caller gives wins."""
    cluster = override.cluster or _static(lw, launch.cluster, "cluster")
    block = override.block or _static(lw, launch.block, "block")
    if block is None:
        lw.refuse("launch", "the launch gives no block", help="LaunchConfig(grid=…, block=…)")
    _check_limits(lw, block, cluster)
    given = override.grid_bound is not None
    grid = None if given or launch.grid is None else _grid(lw, launch.grid)
    bound = override.grid_bound or _bound(lw, grid)
    dynamic = launch.dynamic_smem_bytes
    result = ir.LaunchConfig(
        grid,
        block,
        cluster,
        bound,
        None if dynamic is None else tensors.extent(lw, dynamic),
        bool(launch.cooperative),
        bool(launch.programmatic_stream_serialization),
        tensors.extent(lw, launch.min_blocks_per_sm),
        None
        if launch.max_registers_per_thread is None
        else tensors.extent(lw, launch.max_registers_per_thread),
    )
    check_counts(result, lw.here())
    return result


def check_counts(launch: ir.LaunchConfig, span: Span | None) -> None:
    """Refuses numbers of bytes, CTAs and registers that none can be."""
    for name, least in LEAST.items():
        value = getattr(launch, name)
        if value is not None and (not isinstance(value, int) or value < least):
            message = f"{name} is at least {least}, got {value!r}"
            raise fault(SyntaxUnsupported, "frontend/launch", message, span)


def _check_limits(lw: Lowering, block: tuple[int, ...], cluster: tuple[int, ...] | None) -> None:
    target = lw.signature.target
    limits = Target.parse(target).limits
    threads, ctas = math.prod(block), math.prod(cluster or (1,))
    if threads > limits.threads_per_block or any(n > m for n, m in zip(block, limits.block)):
        lw.refuse(
            "launch", f"a block of {target} has at most {limits.threads_per_block} threads and "
            f"{limits.block} along x, y, z; got {block}, which is {threads} threads",
        )  # fmt: skip
    if ctas > max(1, limits.max_cluster_ctas):
        most = limits.max_cluster_ctas
        lw.refuse(
            "launch", f"a cluster of {target} has at most {most} CTAs; got {cluster}, which is {ctas}"
            if most else f"{target} has no clusters; got {cluster}",
        )  # fmt: skip


def _entries(lw: Lowering, value: Any, what: str) -> list[Any]:
    entries = list(value) if isinstance(value, tuple | list) else [value]
    if not 1 <= len(entries) <= 3:
        lw.refuse("launch", f"{what} has 1 to 3 extents, got {len(entries)}")
    return entries


def _static(lw: Lowering, value: Any, what: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    extents = tuple(tensors.extent(lw, e) for e in _entries(lw, value, what))
    if any(e < 1 for e in extents):
        lw.refuse("launch", f"{what} extents are at least 1, got {extents}")
    return extents


def _grid(lw: Lowering, value: Any) -> tuple[Any, ...]:
    """Host expressions: constants, and arithmetic over parameters and dynamic sizes."""
    entries = []
    for entry in _entries(lw, value, "grid"):
        if isinstance(entry, int) and not isinstance(entry, bool):
            if entry < 0:
                lw.refuse("launch", f"a grid extent cannot be negative: {entry}")
            entries.append(operators.const(lw, entry, dtypes.int64))
            continue
        if not is_scalar(entry) or not dtype_of(entry).is_integer:
            lw.refuse(
                "launch", f"a grid extent is an integer, got {describe(entry)}",
                help="divide with //, or T.ceildiv to round up",
            )  # fmt: skip
        _check_host(lw, entry)
        entries.append(operators.cast(lw, entry, dtypes.int64))
    return tuple(entries)


def _check_host(lw: Lowering, expr: Any) -> None:
    names = {p.name for p in lw.params}
    for part in subexpressions(expr):
        bad = isinstance(part, ir.Load | ir.Call | ir.HardwareId | ir.Address)
        if bad or (isinstance(part, ir.Var) and part.name not in names):
            lw.refuse(
                "launch", "the grid is computed on the host: it may use sizes, scalar parameters "
                "and compile-time values only",
            )  # fmt: skip


def _bound(lw: Lowering, grid: tuple[Any, ...] | None) -> tuple[int, int, int]:
    if grid is None:
        return MAX_GRID
    extents = [e.value if isinstance(e, ir.Const) else MAX_GRID[i] for i, e in enumerate(grid)]
    extents += [1] * (3 - len(extents))
    return (int(extents[0]), int(extents[1]), int(extents[2]))


def known_extent(lw: Lowering, name: str, axis: int) -> int | None:
    """``block_dim`` and ``cluster_dim`` are compile-time facts once the launch is known."""
    if lw.launch is None:
        return None
    if name == "ntid":
        extents: tuple[int, ...] = lw.launch.block
    elif name == "cluster_nctaid":
        extents = lw.launch.cluster or (1,)
    else:
        return None
    return extents[axis] if axis < len(extents) else 1
