"""Raw warp communication: shuffles, votes, matches, reductions, election; addresses in a cluster;
fences of the asynchronous proxy and of mbarriers.

Barriers, other fences and launch control belong to the simulated machine itself (threads wait there);
asked to execute one here, it is reported as not modelled. Not here: spellings (``ptx.tables.sync``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tilejit.tile.family import BitArray, Issue, Machine
from tilejit.tile.raw_only import raw_family

LANES = 32
RANK_SHIFT = 24
RANK_MASK = 0xFF << RANK_SHIFT
"""Where a shared address holds the CTA's rank in its cluster (``Machine``)."""

Lanes = npt.NDArray[np.generic]


def execute(issue: Issue, machine: Machine) -> None:
    """Communication among the lanes of each warp; the rest is the machine's."""
    form = issue.form
    handlers: dict[str, Callable[[Issue, Machine], None]] = {
        "shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce, "elect": _elect,
        "activemask": _active_mask, "mapa": _map_address, "getctarank": _rank_of, "fence": _fence,
    }  # fmt: skip
    handler = handlers.get(form.mnemonic)
    if handler is None:
        machine.unsimulated(form.spelling)
    else:
        handler(issue, machine)


def _sources(issue: Issue, machine: Machine) -> list[Lanes]:
    """The registers that are read, as (warps, 32) arrays."""
    shape = machine.active().shape
    values: list[BitArray] = []
    for spec, operand in zip(issue.form.operands, issue.operands):
        if "r" in spec.direction:
            values.extend(machine.read(operand))
    return [np.broadcast_to(v, shape) for v in values]


def _write(issue: Issue, machine: Machine, *results: Lanes) -> None:
    """The destinations, in order."""
    targets = [o for s, o in zip(issue.form.operands, issue.operands) if "w" in s.direction]
    for target, result in zip(targets, results):
        machine.write(target, [result])


def _members(machine: Machine, mask: Lanes) -> npt.NDArray[np.bool_]:
    """The lanes that execute and are named by the mask."""
    lane = np.arange(LANES, dtype=np.uint32)
    named = (mask.astype(np.uint32) >> lane) & np.uint32(1)
    members: npt.NDArray[np.bool_] = machine.active() & (named != 0)
    return members


def _shuffle(issue: Issue, machine: Machine) -> None:
    """PTX shfl.sync: segment mask and clamp in the fourth operand."""
    value, select, clamp, mask = _sources(issue, machine)
    lane = np.broadcast_to(np.arange(LANES, dtype=np.int64), value.shape)
    b = select.astype(np.int64) & 31
    limit = clamp.astype(np.int64) & 31
    segment = (clamp.astype(np.int64) >> 8) & 31
    highest = (lane & segment) | (limit & ~segment & 31)
    lowest = lane & segment
    mode = issue.form.modifiers[1]
    if mode == "up":
        source = lane - b
        inside = source >= highest
    elif mode == "down":
        source = lane + b
        inside = source <= highest
    elif mode == "bfly":
        source = lane ^ b
        inside = source <= highest
    else:
        source = lowest | (b & ~segment & 31)
        inside = source <= highest
    source = np.where(inside, source, lane)
    members = _members(machine, mask)
    absent = ~np.take_along_axis(members, source, axis=1) & machine.active()
    if absent.any():
        machine.unsimulated(
            "shfl.sync reads a lane that does not take part: the value is undefined"
        )
    _write(issue, machine, np.take_along_axis(value, source, axis=1), inside)


def _vote(issue: Issue, machine: Machine) -> None:
    value, mask = _sources(issue, machine)
    members = _members(machine, mask)
    true = members & (value != 0)
    mode = issue.form.modifiers[1]
    if mode == "ballot":
        _write(issue, machine, _packed(true))
        return
    every = (true == members).all(axis=1, keepdims=True)
    some = true.any(axis=1, keepdims=True)
    result = {"all": every, "any": some, "uni": every | ~some}[mode]
    _write(issue, machine, np.broadcast_to(result, value.shape))


def _packed(bits: npt.NDArray[np.bool_]) -> Lanes:
    """One bit per lane, as uint32 in every lane."""
    weights = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
    total = np.where(bits, weights, np.uint32(0)).sum(axis=1, keepdims=True, dtype=np.uint32)
    return np.broadcast_to(total, bits.shape)


def _match(issue: Issue, machine: Machine) -> None:
    value, mask = _sources(issue, machine)
    members = _members(machine, mask)
    equal = (value[:, :, None] == value[:, None, :]) & members[:, None, :]
    weights = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
    same = np.where(equal, weights, np.uint32(0)).sum(axis=2, dtype=np.uint32)
    if issue.form.modifiers[0] == "any":
        _write(issue, machine, same)
        return
    named = _packed(members)
    everyone = same == named
    _write(issue, machine, np.where(everyone, named, np.uint32(0)), everyone)


def _reduce(issue: Issue, machine: Machine) -> None:
    value, mask = _sources(issue, machine)
    members = _members(machine, mask)
    _, operation, *rest = issue.form.modifiers
    type_ = rest[-1]
    if type_ == "f32":
        _write(issue, machine, _reduce_floats(value, members, operation, rest))
        return
    numbers = value.astype(np.uint32).view(np.int32) if type_ == "s32" else value.astype(np.uint32)
    functions = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    function = functions[operation]
    rows = [
        function.reduce(row[chosen]) if chosen.any() else numbers.dtype.type(0)
        for row, chosen in zip(numbers, members)
    ]
    column = np.array(rows).astype(numbers.dtype).reshape(-1, 1).view(np.uint32)
    _write(issue, machine, np.broadcast_to(column, value.shape))


def _reduce_floats(
    value: Lanes, members: npt.NDArray[np.bool_], operation: str, rest: list[str]
) -> Lanes:
    """min/max of f32, NaN ignored unless ``.NaN``, magnitudes with ``.abs``."""
    numbers = np.ascontiguousarray(value.astype(np.uint32)).view(np.float32)
    if "abs" in rest:
        numbers = np.abs(numbers)
    quiet = np.fmin if operation == "min" else np.fmax
    loud = np.minimum if operation == "min" else np.maximum
    function = loud if "NaN" in rest else quiet
    rows = [
        function.reduce(row[chosen]) if chosen.any() else np.float32(0)
        for row, chosen in zip(numbers, members)
    ]
    column = np.array(rows, dtype=np.float32).reshape(-1, 1).view(np.uint32)
    canonical = np.where(np.isnan(column.view(np.float32)), np.uint32(0x7FFFFFFF), column)
    return np.broadcast_to(canonical, value.shape)


def _elect(issue: Issue, machine: Machine) -> None:
    """The leader is the lowest member; which lane it is, a program may not rely on."""
    (mask,) = _sources(issue, machine)
    members = _members(machine, mask)
    leader = np.argmax(members, axis=1).reshape(-1, 1)
    lane = np.arange(LANES).reshape(1, -1)
    chosen = (lane == leader) & members
    _write(issue, machine, np.broadcast_to(leader.astype(np.uint32), mask.shape), chosen)


def _map_address(issue: Issue, machine: Machine) -> None:
    """The same offset in the window of another CTA; a generic address stays one."""
    address, rank = _sources(issue, machine)
    within = address.astype(np.uint64) & ~np.uint64(RANK_MASK)
    mapped = within | rank.astype(np.uint64) << np.uint64(RANK_SHIFT)
    _write(issue, machine, mapped.astype(address.dtype))


def _rank_of(issue: Issue, machine: Machine) -> None:
    (address,) = _sources(issue, machine)
    rank = (address.astype(np.uint64) & np.uint64(RANK_MASK)) >> np.uint64(RANK_SHIFT)
    _write(issue, machine, rank.astype(np.uint32))


def _fence(issue: Issue, machine: Machine) -> None:
    """``fence.proxy.async`` in a space, ``fence.mbarrier_init``."""
    match issue.form.modifiers:
        case ("mbarrier_init", *_):
            machine.publish_barriers()
        case ("proxy", "async"):
            machine.proxy_fence("")
        case ("proxy", "async", ("global" | "shared::cta" | "shared::cluster") as space):
            machine.proxy_fence(space)
        case _:
            machine.unsimulated(issue.form.spelling)


def _active_mask(issue: Issue, machine: Machine) -> None:
    _write(issue, machine, _packed(machine.active()))


FAMILY = raw_family(
    "sync", "docs/contract/raw.md", execute, "all but barriers that lanes of a warp join one by one"
)
