"""Register operands of collectives: values spread over a warp or a warpgroup by a fixed map.

A fragment says which lane holds each element of an atom, and in which of the instruction's registers.
The group prefix of such an operand has no lane axis: the lanes are inside the atom. A warpgroup's
128 threads are lanes 0 to 127 here.

Source: contract "execution groups", "matrix loads and stores", "warp matrix multiply-accumulate".
Not here: the maps themselves (families), operands of thread instructions (``tile.ownership``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilejit.errors import InternalError, Report, fault
from tilejit.tile import contracts, ownership
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.family import Register, Registers
from tilejit.tile.groups import full_warpgroups, full_warps
from tilejit.tile.region import Walk

LANES = 32
WARPGROUP_LANES = 128


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """``elements[lane, register]``: position in the row-major atom. ``lanes``: holder by position.
    Every element has one holder.

    Equal when their maps are: two threads that check at a time may each make an instruction's."""

    atom: tuple[int, ...]
    elements: IntArray
    lanes: IntArray
    identity: tuple[tuple[int, ...], bytes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fragment) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def count(self) -> int:
        """Registers of each lane."""
        return int(self.elements.shape[1])

    @property
    def of_warpgroup(self) -> bool:
        return bool(self.elements.shape[0] == WARPGROUP_LANES)

    def described(self) -> str:
        """Some of the map in words: what a layout has to say."""
        some = dict.fromkeys(((0, 0), (1, 0), (4, 0), (0, self.count - 1)))
        who = "lane"
        if self.of_warpgroup:
            some, who = dict.fromkeys((*some, (32, 0))), "thread"
        return "; ".join(
            f"register {register} of {who} {lane} holds {self.coordinate(lane, register)}"
            for lane, register in some
        )

    def coordinate(self, lane: int, register: int) -> tuple[int, ...]:
        """The coordinate in the atom of a lane's register."""
        found = np.unravel_index(int(self.elements[lane, register]), self.atom)
        return tuple(int(i) for i in found)

    @staticmethod
    def of(
        atom: tuple[int, ...],
        count: int,
        coordinate: Callable[[int, int], tuple[int, ...]],
        threads: int = LANES,
    ) -> Fragment:
        """From the instruction's own map: ``coordinate(lane, register)`` in the atom."""
        elements = np.empty((threads, count), dtype=np.int64)
        for lane in range(threads):
            for register in range(count):
                elements[lane, register] = np.ravel_multi_index(coordinate(lane, register), atom)
        if not np.array_equal(np.sort(elements, axis=None), np.arange(math.prod(atom))):
            raise fault(
                InternalError, "internal/fragment",
                f"{count} registers of {threads} lanes do not hold each element of {atom} once", None,
            )  # fmt: skip
        lanes = np.empty(elements.size, dtype=np.int64)
        lanes[elements] = np.arange(threads).reshape(-1, 1)
        return Fragment(atom, elements, lanes, (atom, elements.tobytes()))


def collective(call: TileCall, report: Report) -> bool:
    """The call is made by whole warps, in a scope whose group axes are warps."""
    if call.scope == "thread":
        report.error(
            "scope/collective",
            f'{call.spelling} is executed by whole warps, and scope="thread", the default, names none',
            span=call.span,
            contract=call.contract,
            help='scope="warp" for one warp\'s tile; "warpgroup" or "cta" add a warp axis in front',
        )
        return False
    return full_warps(call.group, call.context, report, call.span)


def warpgroup_collective(call: TileCall, report: Report) -> bool:
    """The call is made by whole warpgroups, in a scope whose group axes are warpgroups."""
    if call.scope not in ("warpgroup", "cta"):
        report.error(
            "scope/collective",
            f'{call.spelling} is executed by whole warpgroups, and scope="{call.scope}" names none',
            span=call.span,
            contract=call.contract,
            help='scope="warpgroup" for one warpgroup\'s tile; "cta" adds a warpgroup axis in front',
        )
        return False
    return full_warpgroups(call.group, call.context, report, call.span)


def laid_fragment(
    call: TileCall, operand: TensorOperand, fragment: Fragment, report: Report, *, written: bool
) -> Walk | None:
    """Lays out a register operand that ends in the fragment's atom, and proves its map.

    ``written``: the instruction writes it, so that a lane's registers have slots of their own.
    """
    if not contracts.in_space(call, operand, ("local",), report):
        return None
    whole = fragment.of_warpgroup
    laid = contracts.shaped(
        call, operand, fragment.atom, report, collective=not whole, warpgroups=whole
    )
    if laid is None:
        return None
    if fragment not in laid.findings.fragments:
        if not _held(call, laid, fragment, report):
            return None
        laid.findings.fragments[fragment] = _registers(laid, fragment)
    if written and not ownership.distinct_slots(call, laid, report, fragment.elements[0]):
        return None
    return laid


def fragment_registers(laid: Walk, fragment: Fragment) -> list[Registers]:
    """The registers of every repeat, in the instruction's order."""
    return laid.findings.fragments[fragment]


def _held(call: TileCall, laid: Walk, fragment: Fragment, report: Report) -> bool:
    if not ownership.slots_static(call, laid, report):
        return False
    first = (laid.group.threads % laid.group.per_cta).reshape(-1, 1, 1)
    holders = first + fragment.lanes
    return (
        ownership.owners_match(call, laid, holders, report, fragment.described())
        and ownership.ctas_match(call, laid, report)
        and _one_slot(call, laid, fragment, report)
    )


def _one_slot(call: TileCall, laid: Walk, fragment: Fragment, report: Report) -> bool:
    """A register of the instruction has one slot, the same in all lanes."""
    slots = laid.physical()[0][:, fragment.elements]
    wrong = slots != slots[:, :1]
    if not wrong.any():
        return True
    repeat, lane, register = (int(i) for i in np.argwhere(wrong)[0])
    first = laid.coordinate(repeat, int(fragment.elements[0, register]))
    other = laid.coordinate(repeat, int(fragment.elements[lane, register]))
    report.error(
        f"{call.family}/slot-per-lane",
        f"{laid.operand.name}: register {register} of the instruction is slot "
        f"{int(slots[repeat, 0, register])} in lane 0 ({first}) and slot "
        f"{int(slots[repeat, lane, register])} in lane {lane} ({other})",
        span=laid.operand.span,
        declared=laid.operand.declared(),
        contract=call.contract,
        help="lanes differ along the axes with @laneid only; the axes along m count a lane's registers",
    )
    return False


def _registers(laid: Walk, fragment: Fragment) -> list[Registers]:
    buffer, dtype = laid.operand.view.buffer, laid.operand.dtype
    slots = laid.physical()[0][:, fragment.elements[0]]
    return [Registers(tuple(Register(buffer, int(s), dtype) for s in row)) for row in slots]
