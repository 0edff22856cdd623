"""Warpgroups with roles, on the simulator and the GPU: registers, and consumers that take turns."""

from __future__ import annotations

import pytest
import torch

from tests.lib.hopper import need_hopper
from tilejit import T, jit, simulation
from tilejit.errors import TileError
from tilejit.lib import roles

REGISTERS_PER_SM = 65536


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_registers_fit_the_sm(consumers: int) -> None:
    producer, consumer = roles.REGISTERS[consumers - 1]
    assert producer % 8 == consumer % 8 == 0
    assert 24 <= producer < consumer <= 256
    at_launch = REGISTERS_PER_SM // roles.threads(consumers) // 8 * 8
    assert producer <= at_launch <= consumer
    assert roles.THREADS * (producer + consumers * consumer) <= REGISTERS_PER_SM


@jit
def named(OUT: T.Tensor(("THREADS",), "int32"), consumers: T.constexpr):
    """Each thread writes which consumer it is; the producer's write -1."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=roles.threads(consumers)))
    t = T.cuda.thread_idx("x")
    if T.cuda.warpgroup_id() == 0:
        roles.produce(consumers)
        OUT[t] = -1
    else:
        OUT[t] = roles.consume(consumers)


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_every_warpgroup_has_its_role(device: str, consumers: int) -> None:
    need_hopper(device)
    out = torch.full((128 * (1 + consumers),), 9, dtype=torch.int32, device=device)
    named(out, consumers)
    assert out.view(-1, 128).tolist() == [[i] * 128 for i in range(-1, consumers)]


@pytest.mark.parametrize("consumers", [0, 4])
def test_there_are_registers_for_one_to_three_consumers(consumers: int) -> None:
    out = torch.zeros(128 * (1 + consumers), dtype=torch.int32)
    with pytest.raises(TileError, match="a producer has 1 to 3 consumers"):
        named.check(out, consumers)


@jit
def in_turn(LOG: T.Tensor(("TURNS",), "int32"), turns: T.int32):
    """LOG[i] = 10 * the entry before + 1 + the consumer whose turn it is: by a cell in shared memory that
    only turns protect."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=roles.threads(2)))
    cell = T.alloc_shared((1,), "int32", layout="default")
    if T.cuda.thread_idx("x") == 0:
        cell[0] = 0
    T.cuda.cta_sync()
    if T.cuda.warpgroup_id() == 0:
        roles.produce(2)
    else:
        consumer = roles.consume(2)
        if consumer == 1 and turns > 0:
            roles.pass_turn(consumer, 1)
        for i in range(consumer, turns, 2):
            roles.take_turn(consumer, 1)
            if T.cuda.thread_in_warpgroup() == 0:
                cell[0] = cell[0] * 10 % 1000 + 1 + consumer
                LOG[i] = cell[0]
            if i + 1 < turns:
                roles.pass_turn(consumer, 1)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 6])
def test_consumers_take_turns(device: str, turns: int) -> None:
    need_hopper(device)
    for seed in range(4):
        log = torch.zeros(6, dtype=torch.int32, device=device)
        with simulation(seed=seed):
            in_turn(log, turns)
        assert log.tolist() == ([1, 12, 121, 212, 121, 212][:turns] + [0] * 6)[:6]
