"""Fragments: a map given by (lane, register), proved against layouts and turned into registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tile.kit import apply, buffer, guard, hw, kernel, op, region, var, whole
from tilejit.errors import InternalError, Report
from tilejit.families import FAMILIES
from tilejit.ir import nodes
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.checker import diagnose
from tilejit.tile.family import Registers
from tilejit.tile.fragments import Fragment, collective, fragment_registers, laid_fragment

ROWS_OF_LANES = Fragment.of((2, 32), 2, lambda lane, register: (register, lane))
TURNED = Fragment.of((2, 32), 2, lambda lane, register: ((register + lane) % 2, lane))
"""Odd lanes have the two rows in the opposite registers."""


def checked(
    fragment: Fragment,
    operand: nodes.Expr,
    *,
    written: bool = True,
    scope: str = "warp",
    block: int = 32,
    under: nodes.Expr | None = None,
    params: tuple[nodes.Var, ...] = (),
) -> tuple[list[str], str, list[Registers]]:
    """Codes, text and registers of a call whose one operand is laid out as ``fragment``."""
    found: list[Registers] = []

    def check(call: TileCall, report: Report) -> None:
        (given,) = call.operands
        assert isinstance(given, TensorOperand)
        if collective(call, report):
            laid = laid_fragment(call, given, fragment, report, written=written)
            if laid is not None:
                found.extend(fragment_registers(laid, fragment))

    name = "ldmatrix_stmatrix"
    families = {**FAMILIES, name: replace(FAMILIES[name], check=check, bind=lambda call: [])}
    statement: nodes.Stmt = apply("ldmatrix.sync.aligned.m8n8.x1.shared.b16", operand, scope=scope)
    if under is not None:
        statement = guard(under, statement)
    function = kernel(statement, block=(block,), params=params)
    faults = diagnose(function, families)
    return [d.code for d in faults], "\n".join(d.render() for d in faults), found


def regs(shape: tuple[int, ...], notation: str, space: nodes.Space = "local") -> nodes.View:
    return whole(buffer("r", shape, "uint32", space, notation))


def slots(found: list[Registers]) -> list[list[int]]:
    return [[item.slot for item in registers.items] for registers in found]


def test_a_map_is_stored_both_ways() -> None:
    assert TURNED.count == 2 and TURNED.elements.shape == (32, 2)
    assert TURNED.elements[5].tolist() == [37, 5]
    assert TURNED.coordinate(5, 0) == (1, 5) and TURNED.coordinate(5, 1) == (0, 5)
    assert np.array_equal(TURNED.lanes, np.arange(64) % 32)
    for fragment in (ROWS_OF_LANES, TURNED):
        lane = np.arange(32).reshape(-1, 1)
        assert (fragment.lanes[fragment.elements] == lane).all()


def test_every_element_has_one_holder() -> None:
    with pytest.raises(InternalError, match="do not hold each element"):
        Fragment.of((2, 32), 2, lambda lane, register: (register, lane // 2))
    with pytest.raises(InternalError, match="do not hold each element"):
        Fragment.of((2, 32), 1, lambda lane, register: (register, lane))
    with pytest.raises(ValueError):
        Fragment.of((2, 32), 2, lambda lane, register: (register, lane + 1))


def test_registers_are_in_the_instructions_order() -> None:
    codes, _, found = checked(ROWS_OF_LANES, regs((3, 2, 32), "(3,2,32):(1,3,1@laneid)"))
    assert codes == [] and slots(found) == [[0, 3], [1, 4], [2, 5]]


def test_a_register_has_one_slot_in_all_lanes() -> None:
    layout = "(2,32):(1,1@laneid)"
    assert checked(ROWS_OF_LANES, regs((2, 32), layout))[0] == []
    codes, text, _ = checked(TURNED, regs((2, 32), layout))
    assert codes == ["ldmatrix_stmatrix/slot-per-lane"]
    assert "register 0 of the instruction is slot 0 in lane 0" in text
    assert "and slot 1 in lane 1 (repeat (), element (1, 1))" in text
    one = "(2,32):(0,1@laneid)"
    assert checked(TURNED, regs((2, 32), one), written=False)[0] == []


def test_owners_are_the_maps() -> None:
    codes, text, _ = checked(ROWS_OF_LANES, regs((2, 32), "(2,4,8):(1,1@laneid,4@laneid)"))
    assert codes == ["ldmatrix_stmatrix/owner"]
    assert "belongs to lane 4, expected lane 1" in text
    assert (
        "register 0 of lane 1 holds (0, 1)" in text and "register 1 of lane 0 holds (1, 0)" in text
    )


def test_written_registers_are_apart_and_read_ones_need_not_be() -> None:
    one = regs((2, 32), "(2,32):(0,1@laneid)")
    codes, text, _ = checked(ROWS_OF_LANES, one)
    assert codes == ["ldmatrix_stmatrix/overlap"]
    assert "element (0, 0) and repeat (), element (1, 0)" in text
    codes, _, found = checked(ROWS_OF_LANES, one, written=False)
    assert codes == [] and slots(found) == [[0, 0]]
    repeats = regs((2, 2, 32), "(2,2,32):(1,1,1@laneid)")
    assert checked(ROWS_OF_LANES, repeats)[0] == ["ldmatrix_stmatrix/overlap"]


def test_wider_scopes_add_a_warp_axis() -> None:
    group = "(4,2,32):({},1,1@laneid)"
    cta = regs((4, 2, 32), group.format("1@warpid"))
    codes, _, found = checked(ROWS_OF_LANES, cta, scope="cta", block=128)
    assert codes == [] and slots(found) == [[0, 1]]
    groups = regs((4, 2, 32), group.format("1@wid_in_wg"))
    assert checked(ROWS_OF_LANES, groups, scope="warpgroup", block=256)[0] == []
    assert checked(ROWS_OF_LANES, cta, scope="warpgroup", block=256)[0] == [
        "ldmatrix_stmatrix/owner"
    ]
    one = regs((1, 2, 32), "(1,2,32):(1@warpid,1,1@laneid) + 2@warpid")
    for warp, expected in ((2, []), (1, ["ldmatrix_stmatrix/owner"])):
        guarded = op("eq", hw("warpid"), warp)
        assert checked(ROWS_OF_LANES, one, scope="cta", block=128, under=guarded)[0] == expected


def test_whole_warps_execute() -> None:
    r = regs((2, 32), "(2,32):(1,1@laneid)")
    codes, text, _ = checked(ROWS_OF_LANES, r, scope="thread")
    assert codes == ["scope/collective"] and 'scope="warp" for one warp' in text
    assert checked(ROWS_OF_LANES, r, under=op("lt", hw("laneid"), 31))[0] == ["scope/partial-warp"]
    assert checked(ROWS_OF_LANES, r, under=op("lt", hw("laneid"), 32))[0] == []


def test_registers_are_local_and_their_slots_known() -> None:
    assert checked(ROWS_OF_LANES, regs((2, 32), "default", "shared"))[0] == [
        "ldmatrix_stmatrix/space"
    ]
    n = var("n")
    inside = op("and", op("ge", n, 0), op("le", n, 2))
    moving = region(regs((4, 32), "(4,32):(1,1@laneid)"), (n, 0), (2, 32))
    codes, _, _ = checked(ROWS_OF_LANES, moving, under=inside, params=(n,))
    assert codes == ["ldmatrix_stmatrix/register-index"]
    fixed = region(regs((4, 32), "(4,32):(1,1@laneid)"), (2, 0), (2, 32))
    assert slots(checked(ROWS_OF_LANES, fixed)[2]) == [[2, 3]]
