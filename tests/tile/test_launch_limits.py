"""Shared memory of a block and whole clusters: the nearest legal and the nearest illegal launch."""

from __future__ import annotations

import pytest

from tests.tile.kit import buffer, checked, codes, guard, hw, i32, kernel, op, text, var
from tilejit import cuda
from tilejit.errors import Span
from tilejit.families import FAMILIES
from tilejit.ir import nodes
from tilejit.target import TARGETS
from tilejit.tile.checker import diagnose


def shared(name, elems, dtype="uint8", align=16, line=1, notation="default"):
    made = buffer(name, (elems,), dtype, "shared", notation=notation, align=align)
    return nodes.AllocTensor(made, span=Span("k.py", line))


# --- shared memory


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_one_buffer_may_take_all_of_a_block(target):
    limit = TARGETS[target].limits.smem_per_block_bytes
    assert codes(kernel(shared("s", limit), target=target)) == []
    assert codes(kernel(shared("s", limit + 1), target=target)) == ["tile/shared-memory"]


LIMIT = TARGETS["sm_90a"].limits.smem_per_block_bytes


@pytest.mark.parametrize(
    "parts",
    [
        # (elements, dtype, align): each starts at a multiple of 16, or of its own alignment
        [(3, "uint8", 1), (LIMIT - 16, "uint8", 1)],
        [(16, "uint8", 1), (LIMIT - 16, "uint8", 1)],
        [(17, "uint8", 1), (LIMIT - 32, "uint8", 1)],
        [(1, "uint8", 1), (LIMIT - 1024, "uint8", 1024)],
        [(1, "uint8", 1), (LIMIT - 1024, "uint8", 4096)],  # the arena itself has 1024
        [(1, "float64", 8), ((LIMIT - 16) // 4, "float32", 4)],
    ],
)
def test_the_sum_counts_with_its_gaps(parts):
    def program(more):
        *first, (elems, dtype, align) = parts
        last = (elems + more, dtype, align)
        return kernel(*(shared(f"s{n}", *p) for n, p in enumerate([*first, last])))

    assert cuda.emit(checked(program(0))).dynamic_smem_bytes == LIMIT  # as the emitter counts
    assert codes(program(1)) == ["tile/shared-memory"]


def test_a_layout_counts_with_its_gaps():
    assert codes(kernel(shared("s", 2, notation=f"(2):({LIMIT - 1})"))) == []
    assert codes(kernel(shared("s", 2, notation=f"(2):({LIMIT})"))) == ["tile/shared-memory"]


def test_the_first_buffer_over_the_limit_is_pointed_at():
    half = LIMIT // 2
    inner = guard(op("lt", hw("tid"), 1), shared("b", half // 4, "float32", line=2))
    function = kernel(shared("a", half, line=1), inner, shared("c", 1, line=3))
    (found,) = diagnose(function, FAMILIES)
    assert found.span == Span("k.py", 3)
    assert found.message == (
        f"shared buffers take {LIMIT + 1} bytes, sm_90a gives a block {LIMIT} bytes"
    )
    assert dict(found.notes)["where"] == (
        f"a: {half} bytes, uint8 ({half},); b: {half} bytes, float32 ({half // 4},); "
        "c: 1 bytes, uint8 (1,)"
    )


@pytest.mark.parametrize("notation", ["default", "swizzle(3,3,3) o (1099511627776):(1)"])
def test_the_size_of_any_buffer_is_told_at_once(notation):
    assert codes(kernel(shared("s", 1 << 40, notation=notation))) == ["tile/shared-memory"]


@pytest.mark.parametrize(
    ("declared", "elems", "message"),
    [
        (32, 32, None),
        (31, 32, "shared buffers take 32 bytes, the launch declares 31 bytes"),
        (LIMIT, 32, None),
        (LIMIT + 1, 32, f"the launch declares {LIMIT + 1} bytes of shared memory, sm_90a gives"),
        (LIMIT, LIMIT + 1, f"shared buffers take {LIMIT + 1} bytes, sm_90a gives a block"),
    ],
)
def test_the_launch_declares_enough_and_not_too_much(declared, elems, message):
    function = kernel(shared("s", elems), dynamic_smem_bytes=declared)
    found = [d.message for d in diagnose(function, FAMILIES)]
    assert [m.startswith(message) for m in found] == ([True] if message else [])


def test_registers_and_parameters_are_no_shared_memory():
    big = buffer("r", (LIMIT + 1,), "uint8")
    param = buffer("X", (LIMIT + 1,), "uint8", "global")
    assert codes(kernel(nodes.AllocTensor(big), params=(param,))) == []


# --- clusters


@pytest.mark.parametrize(
    ("grid", "cluster", "axes"),
    [
        ((4,), (2,), ""), ((5,), (2,), "x"), ((3,), (2,), "x"), ((2,), (4,), "x"), ((4,), (4,), ""),
        ((4, 3), (2, 1), ""), ((4, 3), (1, 2), "y"), ((4,), (1, 2), "y"), ((1, 1, 6), (1, 1, 3), ""),
        ((1, 1, 7), (1, 1, 3), "z"), ((5, 5), (2, 2), "xy"), ((5,), None, ""), ((5,), (1,), ""),
    ],
)  # fmt: skip
def test_a_known_grid_is_whole_clusters(grid, cluster, axes):
    function = kernel(grid=grid, cluster=cluster)
    found = diagnose(function, FAMILIES)
    assert [d.code for d in found] == ["tile/cluster-grid"] * len(axes)
    for diagnostic, axis in zip(found, axes):
        assert diagnostic.message.startswith(f"grid axis {axis} is ")


def test_the_grid_that_is_no_whole_clusters_is_pointed_at():
    extent = nodes.Const(5, nodes.INT32, span=Span("k.py", 7))
    function = kernel(grid=(4, extent), cluster=(2, 2))
    (found,) = diagnose(function, FAMILIES)
    assert found.span == Span("k.py", 7)
    assert found.message == "grid axis y is 5 CTAs, not a multiple of the cluster's 2"
    assert "launch 6 CTAs along y" in text(function)


def test_a_grid_that_is_computed_from_known_numbers_is_known():
    assert codes(kernel(grid=(op("mul", 2, 3),), cluster=(2,))) == []
    assert codes(kernel(grid=(op("add", 2, 3),), cluster=(2,))) == ["tile/cluster-grid"]


def test_a_grid_of_run_time_sizes_is_left_to_the_launch():
    m = var("M")
    assert codes(kernel(grid=(m, i32(4)), cluster=(2, 2), params=(m,))) == []
    assert codes(kernel(grid=None, cluster=(2,))) == []


# --- grids

X, Y = 2**31 - 1, 65535


@pytest.mark.parametrize(
    ("grid", "axes"),
    [
        ((X,), ""), ((X + 1,), "x"), ((1, Y), ""), ((1, Y + 1), "y"), ((1, 1, Y), ""),
        ((1, 1, Y + 1), "z"), ((X + 1, Y + 1, Y + 1), "xyz"), ((0,), ""), ((0, Y + 1), "y"),
        ((-1,), "x"),
    ],
)  # fmt: skip
def test_a_known_grid_is_one_that_the_hardware_has(grid, axes):
    extents = tuple(nodes.Const(g, nodes.INT64, span=Span("k.py", n)) for n, g in enumerate(grid))
    found = diagnose(kernel(grid=extents), FAMILIES)
    assert [d.code for d in found] == ["tile/grid"] * len(axes)
    for diagnostic, axis in zip(found, axes):
        n = "xyz".index(axis)
        limit = (X, Y, Y)[n]
        assert diagnostic.span == Span("k.py", n)
        assert diagnostic.message == f"grid axis {axis} is {grid[n]} CTAs, expected 0 to {limit}"


@pytest.mark.parametrize(
    ("ctas", "size", "advice"),
    [
        (Y - 1, 5, f"launch {Y} CTAs"),
        (Y - 1, 8, f"launch {Y - 7} CTAs"),
        (Y, 2, "launch 65534 CTAs"),
    ],
)
def test_the_advice_for_clusters_is_a_grid_that_the_hardware_has(ctas, size, advice):
    function = kernel(grid=(1, ctas), cluster=(1, size))
    assert codes(function) == ["tile/cluster-grid"]
    assert advice in text(function)


def test_a_grid_that_is_too_large_is_that_alone():
    assert codes(kernel(grid=(1, Y + 2), cluster=(1, 2))) == ["tile/grid"]
