"""Asks a GPU how the tensor cores round in ``wgmma``, and which numbers of ``numeric.mma``'s model it
agrees with.

    python -m tests.sim.wgmma_probe            on a machine with an sm_90a GPU; a few minutes
    python -m tests.sim.wgmma_probe --cpu      the simulator against itself, to try the script

As ``mma_probe``: every combination of types on codes spread over all exponents, near one another,
cancelling, subnormal, and with infinities and NaNs; first the model as it stands, bit by bit, then the
accumulators without a mismatch on finite inputs, or the closest. Not here: fragments and descriptors.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from tests.families.test_wgmma import TYPES, Shape, run_words
from tests.sim.mma_probe import Matrices, Probe, random, spread
from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BY_PTX_TYPE
from tilejit.sim.numeric.mma import Accumulator

CASES = 4
"""Instructions for each kind of input: 64 x 16 sums each."""
COLUMNS = 16


def probe(device: str, shape: Shape) -> Probe:
    d_kind, a_kind, b_kind = shape.kinds
    saturate = "satfinite" in shape.opcode

    def draw(what: str, seed: int) -> Matrices:
        rng = random(what, seed)
        if a_kind == "b1":
            a, b = (rng.integers(0, 1 << 32, (rows, 8), dtype=np.uint32) for rows in (64, shape.n))
        else:
            a, b = (
                spread(kind, what, (rows, shape.k), rng)
                for kind, rows in ((a_kind, 64), (b_kind, shape.n))
            )
        return [a, b, spread(d_kind, what, (64, shape.n), rng)]

    def asked(given: Matrices) -> np.ndarray:
        return run_words(device, shape.opcode, [x[None, None, None] for x in given])[0, 0, 0]

    def model(given: Matrices) -> np.ndarray:
        kinds = (d_kind, a_kind, b_kind)
        return mma.warpgroup_multiply_accumulate(kinds, *given, saturate=saturate)

    return Probe(shape.opcode, (*shape.kinds, d_kind), CASES, draw, asked, model)


def grid(shape: Shape) -> Iterator[Accumulator]:
    """Accumulators worth a try for a combination of types."""
    eight = BY_PTX_TYPE[shape.kinds[1]].bits == 8
    blocks = (8, 16, 32) if eight else (4, 8, 16)
    fractions = (11, 12, 13, 14, 22, 23, 24, 25) if eight else (23, 24, 25, 26, 27)
    kept = {"f16": (10,), "f32": (12, 13, 14, 21, 22, 23) if eight else (23,)}[shape.kinds[0]]
    leasts = (-133,) if eight else (-126, -129, -133, -137, -300)
    for block, bits, result, least, rounding in itertools.product(
        blocks, fractions, kept, leasts, ("rz", "rn")
    ):
        if block <= shape.k and (rounding == "rz" or result in (10, 23)):
            yield Accumulator(block, bits, rounding, result, least)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="ask the simulator")
    parser.add_argument("--types", default="", help="only combinations that contain this text")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    if device == "cuda":
        print(torch.cuda.get_device_name())
    shapes = [Shape(f"m64n{COLUMNS}{types}") for types in TYPES if options.types in types]
    for shape in shapes:
        probe(device, shape).compare()
    for shape in shapes:
        if shape.kinds[0] != "s32":
            probe(device, shape).search(grid(shape))


if __name__ == "__main__":
    main()
