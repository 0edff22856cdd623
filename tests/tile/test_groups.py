"""Which guards leave which groups: every row of the table of guards that must be recognised."""

from __future__ import annotations

import pytest

from tests.tile.kit import apply, buffer, codes, guard, hw, i32, kernel, op, text, var, whole
from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.tile.facts import analyse
from tilejit.tile.groups import find_group, full_warps

TID, WARP, LANE, WG, WIW = (
    hw(n) for n in ("tid", "warpid", "laneid", "warpgroupid", "warp_in_warpgroup")
)
ELECT = nodes.Call("cuda.elect_sync", (), nodes.BOOL)


def group_of(condition, scope="cta", block=(256,), cluster=None, params=()):
    """(shape or None, codes, full warps) of a call under a guard."""
    call = apply("mov.b32", scope=scope)
    body = guard(condition, call) if condition is not None else call
    function = kernel(body, block=block, cluster=cluster, params=params)
    facts = analyse(function)
    (site,) = facts.sites.values()
    report = Report()
    group = find_group(site.context, scope, function.launch, report, None)
    quiet = Report()
    full = group is not None and full_warps(group, site.context, quiet, None)
    return (group.shape if group else None), [d.code for d in report.diagnostics], full


@pytest.mark.parametrize(
    ("condition", "shape"),
    [
        (None, (8, 32)),
        (op("eq", WARP, 1), (1, 32)),
        (op("lt", WARP, 4), (4, 32)),
        (op("ge", WARP, 4), (4, 32)),
        (op("eq", WG, 1), (4, 32)),
        (op("lt", LANE, 16), (8, 16)),
        (op("eq", LANE, 0), (8, 1)),
        (op("and", op("eq", WARP, 1), op("eq", LANE, 0)), (1, 1)),
        (op("and", op("eq", WIW, 2), op("eq", WG, 1)), (1, 32)),
        (op("and", op("ge", TID, 64), op("lt", TID, 128)), (2, 32)),
        (op("ge", TID, 192), (2, 32)),
        (op("eq", TID, 0), (1, 1)),
        (op("lt", TID, 64), (2, 32)),
        (op("le", TID, 63), (2, 32)),
        (op("eq", WIW, 2), (2, 32)),
        (op("eq", op("floordiv", WARP, 4), 1), (4, 32)),
        (op("or", op("eq", WARP, 2), op("eq", WARP, 3)), (2, 32)),
        (op("eq", op("mod", TID, 32), 0), (8, 1)),
        (ELECT, (8, 1)),
        (op("and", op("eq", WARP, 3), ELECT), (1, 1)),
        (op("lt", TID, 16), (1, 16)),
    ],
    ids=str,
)
def test_guards_narrow_the_cta_group(condition, shape):
    assert group_of(condition)[:2] == (shape, [])


@pytest.mark.parametrize(
    ("condition", "block"),
    [
        (op("lt", TID, 48), (64,)),
        (op("and", op("ge", TID, 16), op("lt", TID, 48)), (64,)),
        (None, (48,)),
        (op("or", op("eq", WARP, 0), op("eq", LANE, 0)), (64,)),
    ],
    ids=["tid<48", "16<=tid<48", "block 48", "L shape"],
)
def test_what_is_no_rectangle_is_refused(condition, block):
    shape, faults, _ = group_of(condition, block=block)
    assert shape is None and faults == ["scope/not-a-rectangle"]


def test_partial_warps_are_no_warp_collective():
    assert group_of(op("lt", TID, 64), "warp")[2]
    for condition in (op("lt", TID, 16), ELECT, op("eq", LANE, 0)):
        shape, _, full = group_of(condition, "warp")
        assert shape is not None and not full


def test_warp_and_warpgroup_scopes():
    assert group_of(op("lt", TID, 64), "warp")[0] == (32,)
    assert group_of(None, "warpgroup")[0] == (4, 32)
    assert group_of(op("lt", WIW, 2), "warpgroup")[0] == (2, 32)
    assert group_of(op("lt", TID, 48), "warp", (64,))[1] == ["scope/uneven"]
    assert group_of(op("lt", TID, 200), "warpgroup", (256,))[1] == ["scope/uneven"]


def test_thread_scope_takes_any_threads():
    assert group_of(op("lt", TID, 17), "thread")[:2] == ((), [])


def test_cluster_axes_are_z_y_x():
    assert group_of(None, "cluster", (64,), (2,))[0] == (2, 2, 32)
    assert group_of(None, "cluster", (64,), (4, 2))[0] == (2, 4, 2, 32)
    assert group_of(op("eq", hw("cluster_ctarank"), 0), "cluster", (64,), (2,))[0] == (1, 2, 32)
    assert group_of(None, "cluster", (64,))[1] == ["scope/cluster"]


def test_run_time_guards_must_be_uniform_over_the_group():
    n = var("n")
    uniform, by_warp = op("lt", hw("ctaid.x"), n), op("lt", WARP, n)
    by_thread = op("lt", TID, n)
    assert group_of(uniform, params=(n,))[1] == []
    assert group_of(by_warp, params=(n,))[1] == ["scope/divergent"]
    assert group_of(by_warp, "warp", params=(n,))[1] == []
    assert group_of(by_thread, "warp", params=(n,))[1] == ["scope/divergent"]
    assert group_of(by_thread, "thread", params=(n,))[1] == []
    half_known = op("or", op("lt", TID, 32), uniform)
    assert group_of(half_known, params=(n,))[1] == ["scope/divergent"]


def test_early_return_narrows_what_follows():
    r = buffer("r", (2, 32, 1, 1), notation="(2,32,1,1):(1@warpid,1@laneid,1,1)")
    leave = guard(op("ge", TID, 64), nodes.Return())
    call = apply("mov.b32", whole(r), i32(0), scope="cta")
    assert codes(kernel(nodes.AllocTensor(r), leave, call)) == []
    assert codes(kernel(nodes.AllocTensor(r), call)) == ["tile/group-shape"]


def test_short_circuit_election_keeps_its_group():
    """``warp == 0 and elect_sync()`` as the frontend lowers it."""
    flag = var("flag", nodes.BOOL)
    call = apply("mov.b32", scope="cta")
    function = kernel(
        nodes.Declare(flag, op("eq", WARP, 0)),
        guard(flag, nodes.Assign(flag, ELECT)),
        guard(flag, call),
    )
    facts = analyse(function)
    (site,) = facts.sites.values()
    group = find_group(site.context, "cta", function.launch, Report(), None)
    assert group is not None and group.shape == (1, 1) and group.elected


def test_the_offending_thread_is_named():
    call = apply("mov.b32", scope="cta")
    shown = text(kernel(guard(op("lt", TID, 48), call), block=(64,)))
    assert "thread 48 (warp 1, lane 16) is not active" in shown
