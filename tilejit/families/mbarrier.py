"""Raw mbarrier instructions: what each asks of the object in shared memory.

Not here: the object and who waits for it (``sim.mbarrier``), spellings (``ptx.tables.mbarrier``).
"""

from __future__ import annotations

import numpy as np

from tilejit.tile.family import BitArray, Issue, Machine, NativeOperand
from tilejit.tile.raw_only import raw_family

PENDING_MASK = (1 << 20) - 1
"""Bits of a state that hold the arrivals still expected."""


def execute(issue: Issue, machine: Machine) -> None:
    """Orders without a word are ``.release.cta`` and ``.acquire.cta``; ``.relaxed`` orders nothing."""
    words = issue.form.modifiers
    operands = {spec.name: o for spec, o in zip(issue.form.operands, issue.operands)}
    action = words[0]
    if action == "init":
        machine.mbarrier_init(operands["barrier"], _number(machine, operands["count"]))
    elif action == "inval":
        machine.mbarrier_inval(operands["barrier"])
    elif action in ("arrive", "arrive_drop"):
        _arrive(issue, machine, operands)
    elif action in ("expect_tx", "complete_tx"):
        nbytes = _number(machine, operands["bytes"])
        machine.mbarrier_transactions(operands["barrier"], nbytes, action == "expect_tx")
    elif action in ("test_wait", "try_wait"):
        _test(issue, machine, operands)
    else:
        state = machine.read(operands["state"])[0].astype(np.uint64)
        machine.write(operands["count"], [(state & np.uint64(PENDING_MASK)).astype(np.uint32)])


def _number(machine: Machine, operand: NativeOperand) -> BitArray:
    return machine.read(operand)[0]


def _arrive(issue: Issue, machine: Machine, operands: dict[str, NativeOperand]) -> None:
    words = issue.form.modifiers
    count: BitArray = np.ones((1, 1), np.uint32)
    if "count" in operands:
        count = _number(machine, operands["count"])
    nbytes = _number(machine, operands["bytes"]) if "bytes" in operands else None
    state = machine.mbarrier_arrive(
        operands["barrier"], count, nbytes,
        drop=words[0] == "arrive_drop", release="relaxed" not in words,
    )  # fmt: skip
    machine.write(operands["state"], [state])


def _test(issue: Issue, machine: Machine, operands: dict[str, NativeOperand]) -> None:
    words = issue.form.modifiers
    parity = "parity" in words
    over = machine.mbarrier_test(
        operands["barrier"], _number(machine, operands["parity" if parity else "state"]),
        parity=parity, acquire="relaxed" not in words, suspend=words[0] == "try_wait",
    )  # fmt: skip
    machine.write(operands["done"], [over])


FAMILY = raw_family("mbarrier", "docs/contract/raw.md", execute, "yes")
