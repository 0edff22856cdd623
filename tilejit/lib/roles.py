"""Warpgroups with roles of their own: one produces, the others consume. In the kernel language.

Warpgroup 0 of a CTA brings data, with few registers; each of the *consumers* behind it computes, with
those that it gave up. All threads of a warpgroup take its role together, before anything that needs the
registers.

Not here: what passes between them (``lib.ring``).
"""

from __future__ import annotations

from tilejit import T, jit

THREADS = 128
"""Of a warpgroup."""

REGISTERS = ((56, 256), (24, 240), (32, 160))
"""Per thread of the producer and of a consumer, by the number of consumers, from one on: multiples of
8, no more than the SM's 65536 in all."""


@jit
def registers(consumers: T.constexpr):
    """Per thread of the producer and of a consumer."""
    T.static_assert(0 < consumers <= len(REGISTERS), "a producer has 1 to 3 consumers")
    return REGISTERS[consumers - 1]


def threads(consumers: int) -> int:
    """Of the CTA."""
    return THREADS * (1 + consumers)


@jit
def produce(consumers: T.constexpr):
    """The executing warpgroup, number 0, gives up registers."""
    T.ptx["setmaxnreg.dec.sync.aligned.u32"](registers(consumers)[0])


@jit
def consume(consumers: T.constexpr):
    """The executing warpgroup waits for its registers. Returns which consumer it is, from 0 on."""
    T.ptx["setmaxnreg.inc.sync.aligned.u32"](registers(consumers)[1])
    consumer = T.cuda.warpgroup_id() - 1
    T.assume(0 <= consumer < consumers)
    return consumer


@jit
def take_turn(consumer, order_barrier: T.constexpr):
    """Wait until the other of two consumers passes the turn: named barrier ``order_barrier`` +
    ``consumer``. Before the first turn of consumer 0, consumer 1 passes it."""
    T.cuda.named_barrier_sync(order_barrier + consumer, 2 * THREADS)


@jit
def pass_turn(consumer, order_barrier: T.constexpr):
    """It is the other consumer's turn. Every turn that is passed must be taken."""
    T.cuda.named_barrier_arrive(order_barrier + 1 - consumer, 2 * THREADS)
