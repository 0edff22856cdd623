"""What loads, stores and warp communication do, on a machine of plain arrays."""

from __future__ import annotations

import numpy as np

from tilejit import dtypes
from tilejit.families import FAMILIES, ld_st, sync
from tilejit.ir import nodes
from tilejit.ptx import spelling
from tilejit.ptx.spelling import lookup
from tilejit.tile.family import Issue, Memory, Registers, Value

LANE = np.arange(32, dtype=np.uint32).reshape(1, 32)


class Arrays:
    """Register operands are keys of ``values``; memory is one array of bytes per lane."""

    def __init__(self, values, memory=None, active=None):
        self.values, self.memory = values, memory
        self.lanes = np.ones((1, 32), bool) if active is None else active

    def read(self, operand):
        return self.values[id(operand)]

    def write(self, operand, bits):
        self.values[id(operand)] = bits

    def load(self, operand, nbytes):
        return self.memory[..., :nbytes]

    def store(self, operand, data):
        self.memory = data

    def active(self):
        return self.lanes

    def unsimulated(self, what):
        raise NotImplementedError(what)


def registers(count=1):
    zero = Value(nodes.Const(0, nodes.ScalarType(dtypes.uint32)))
    return Registers((zero,) * count)


MEMORY = Memory(nodes.Var("p", nodes.PointerType("global")), 0, "global")


def test_loads_are_little_endian_words():
    form = lookup("ld.global.v2.b32")[0]
    d = registers(2)
    data = np.broadcast_to(np.arange(8, dtype=np.uint8), (1, 32, 8))
    machine = Arrays({}, data)
    ld_st.execute(Issue(form, (d, MEMORY)), machine)
    low, high = machine.values[id(d)]
    assert low[0, 0] == 0x03020100 and high[0, 31] == 0x07060504 and low.shape == (1, 32)


def test_stores_put_words_one_after_another():
    form = lookup("st.global.v4.b16")[0]
    d = registers(4)
    machine = Arrays({id(d): [np.full((1, 32), 0x0100 + k, np.uint16) for k in range(4)]})
    ld_st.execute(Issue(form, (MEMORY, d)), machine)
    assert machine.memory.shape == (1, 32, 8)
    assert list(machine.memory[0, 5]) == [0, 1, 1, 1, 2, 1, 3, 1]


def shuffle(mode, select, clamp, active=None):
    form = lookup(f"shfl.sync.{mode}.b32")[1]
    d, p, a, b, c, m = (registers() for _ in range(6))
    full = np.full((1, 32), 0xFFFFFFFF, np.uint32)
    values = {id(a): [LANE * 10], id(b): [np.broadcast_to(np.uint32(select), (1, 32))],
              id(c): [np.full((1, 32), clamp, np.uint32)], id(m): [full]}  # fmt: skip
    machine = Arrays(values, active=active)
    sync.execute(Issue(form, (d, p, a, b, c, m)), machine)
    return machine.values[id(d)][0][0] // 10, machine.values[id(p)][0][0]


def test_shuffles():
    lane = np.arange(32)
    source, inside = shuffle("bfly", 4, 31)
    assert np.array_equal(source, lane ^ 4) and inside.all()
    source, inside = shuffle("up", 3, 0)
    assert np.array_equal(source, np.where(lane >= 3, lane - 3, lane))
    assert np.array_equal(inside, lane >= 3)
    source, inside = shuffle("down", 3, 31)
    assert np.array_equal(source, np.where(lane + 3 < 32, lane + 3, lane))
    source, inside = shuffle("idx", 5, 31)
    assert (source == 5).all()
    # Segments of 8 lanes: the clamp's bits 8 to 12 hold the segment mask.
    source, inside = shuffle("down", 3, (24 << 8) | 31)
    assert np.array_equal(source, np.where(lane % 8 + 3 < 8, lane + 3, lane))


def test_votes_and_election():
    form = lookup("vote.sync.ballot.b32")[0]
    d, a, m = (registers() for _ in range(3))
    full = [np.full((1, 32), 0xFFFFFFFF, np.uint32)]
    machine = Arrays({id(a): [LANE % 2 == 1], id(m): full})
    sync.execute(Issue(form, (d, a, m)), machine)
    assert (machine.values[id(d)][0] == 0xAAAAAAAA).all()
    form = lookup("elect.sync")[0]
    d, p, m = (registers() for _ in range(3))
    machine = Arrays({id(m): full})
    sync.execute(Issue(form, (d, p, m)), machine)
    assert machine.values[id(p)][0].sum() == 1


def test_reductions():
    form = lookup("redux.sync.min.s32")[0]
    d, a, m = (registers() for _ in range(3))
    numbers = (np.arange(32, dtype=np.int32) - 9).view(np.uint32).reshape(1, 32)
    full = [np.full((1, 32), 0xFFFFFFFF, np.uint32)]
    machine = Arrays({id(a): [numbers], id(m): full})
    sync.execute(Issue(form, (d, a, m)), machine)
    assert (machine.values[id(d)][0].view(np.int32) == -9).all()


def test_every_form_has_a_family():
    assert {form.family for form in spelling.FORMS} <= set(FAMILIES)
