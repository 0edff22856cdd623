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
from tests.sim.mma_probe import numbers, spread
from tests.sim.test_numeric_mma import KINDS
from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BY_PTX_TYPE
from tilejit.sim.numeric.mma import Accumulator

CASES = 4
"""Instructions for each kind of input: 64 x 16 sums each."""
COLUMNS = 16


def operands(shape: Shape, what: str, seed: int) -> list[np.ndarray]:
    """A, B and C of one instruction, in words. In ``near`` C is close to minus what the products add up
    to, in ``edge`` it is often zero."""
    rng = np.random.default_rng((KINDS.index(what) if what in KINDS else 9, seed))
    d_kind, a_kind, b_kind = shape.kinds
    if a_kind == "b1":
        a, b = (rng.integers(0, 1 << 32, (rows, 8), dtype=np.uint32) for rows in (64, shape.n))
    else:
        a, b = (
            spread(kind, what, (rows, shape.k), rng)
            for kind, rows in ((a_kind, 64), (b_kind, shape.n))
        )
    c = spread(d_kind, what, (64, shape.n), rng)
    if what == "near" and d_kind != "s32":
        products = model(shape, a, b, np.zeros_like(c))
        sign = {"f32": 0x8000_0000, "f16": 0x8000_8000}[d_kind]
        flips = rng.integers(0, 1 << 9, c.shape, dtype=np.uint32)
        c[::2] = (products ^ np.uint32(sign) ^ flips)[::2]
    if what == "edge":
        c[::2] = 0
    return [a, b, c]


def model(shape: Shape, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    d_kind, a_kind, b_kind = shape.kinds
    saturate = "satfinite" in shape.opcode
    return mma.warpgroup_multiply_accumulate((d_kind, a_kind, b_kind), a, b, c, saturate=saturate)


def asked(device: str, shape: Shape, given: list[np.ndarray]) -> np.ndarray:
    words = [x[None, None, None] for x in given]
    return run_words(device, shape.opcode, words)[0, 0, 0]


def first_mismatch(
    shape: Shape, given: list[np.ndarray], got: np.ndarray, expected: np.ndarray
) -> str:
    row, column = (int(i) for i in np.argwhere(got != expected)[0])
    listed = [" ".join(f"{int(w):08x}" for w in x) for x in (given[0][row], given[1][column])]
    c = numbers(given[2], shape.kinds[0])[row, column]
    return (
        f"    A {listed[0]}\n    B {listed[1]}\n    C {int(c):x}  got {int(got[row, column]):x}, the "
        f"model says {int(expected[row, column]):x}"
    )


def compare(device: str, shape: Shape) -> None:
    """The model as it stands, kind by kind."""
    kind = shape.kinds[0]
    for what in KINDS if kind != "s32" else ("any",):
        wrong, count, example = 0, 0, ""
        for case in range(CASES):
            given = operands(shape, what, case)
            got, expected = (
                numbers(x, kind) for x in (asked(device, shape, given), model(shape, *given))
            )
            wrong += int((got != expected).sum())
            count += got.size
            if wrong and not example:
                example = first_mismatch(shape, given, got, expected)
        print(f"{shape.opcode:40} {what:8} {wrong:6} of {count} differ")
        if example:
            print(example)


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


def search(device: str, shape: Shape) -> None:
    """Which accumulators give the machine's bits on all finite inputs."""
    d_kind, a_kind, b_kind = shape.kinds
    formats = BY_PTX_TYPE[a_kind], BY_PTX_TYPE[b_kind], BY_PTX_TYPE[d_kind]
    sets = []
    for what in KINDS[:-1]:
        for case in range(CASES):
            given = operands(shape, what, 100 + case)
            values = [mma.unpacked(words, fmt) for words, fmt in zip(given, formats)]
            sets.append((values, numbers(asked(device, shape, given), d_kind)))
    scores: list[tuple[int, Accumulator]] = []
    for accumulator in grid(shape):
        wrong = 0
        for values, got in sets:
            found = mma.packed(mma.accumulate(*values, formats, accumulator), formats[2])
            wrong += int((numbers(found, d_kind) != got).sum())
        scores.append((wrong, accumulator))
    scores.sort(key=lambda pair: pair[0])
    exact = [a for wrong, a in scores if wrong == 0]
    print(f"{shape.opcode}: {len(exact)} accumulators without a mismatch")
    for wrong, accumulator in scores[: max(3, len(exact))]:
        print(f"    {wrong:7} mismatches  {accumulator}")


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
        compare(device, shape)
    for shape in shapes:
        if shape.kinds[0] != "s32":
            search(device, shape)


if __name__ == "__main__":
    main()
