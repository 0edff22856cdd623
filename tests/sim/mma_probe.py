"""Asks a GPU how its tensor cores round, and which numbers of ``numeric.mma``'s model it agrees with.

    python -m tests.sim.mma_probe            on a machine with a GPU; under a minute
    python -m tests.sim.mma_probe --cpu      the simulator against itself, to try the script

Every form of ``mma.sync`` runs on codes spread over all exponents, near one another, cancelling,
subnormal, and with infinities and NaNs. First the model as it stands, bit by bit. Then, for each type of
input with finite codes, every combination of the parameters below; printed are those without a
mismatch, or the closest. ``wgmma_probe`` asks by the same ``Probe``. Not here: a verdict for other
architectures than the one it runs on.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tests.families.test_mma_sync import PREFIX, Shape, run
from tests.sim.test_numeric_mma import KINDS, codes
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import forms_of_family
from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BY_PTX_TYPE, TF32
from tilejit.sim.numeric.mma import Accumulator
from tilejit.target import Target

CASES_PER_KIND = 40
BLOCKS = (4, 8, 16)
FRACTION_BITS = (23, 24, 25, 26, 27)
LEAST_EXPONENTS = (-126, -129, -133, -137, -300)
ROUNDINGS = ("rz", "rn")


# --- inputs


def spread(kind: str, what: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Words of a type's rows, drawn as ``what`` says."""
    if kind in ("s8", "u8", "s32"):
        width = {"s32": 4}.get(kind, 1)
        raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * width), dtype=np.uint8)
        return raw.view("<u4")
    fmt = BY_PTX_TYPE[kind]
    found = codes(fmt, shape, what, rng)
    if fmt is TF32:
        low = rng.integers(0, 1 << 13, shape, dtype=np.uint32)
        found = np.where(mma.unpacked(found, TF32) == 0, found, found | low)
    return found.view("<u8" if kind == "f64" else "<u4")


def numbers(words: np.ndarray, kind: str) -> np.ndarray:
    """One code per element of D."""
    return words.view({"f16": "<u2", "f64": "<u8"}.get(kind, "<u4"))


# --- what is asked, whatever the instruction

Matrices = list[np.ndarray]
"""A, B and C in words, (…, rows, words)."""


@dataclass(frozen=True)
class Probe:
    """One instruction. ``kinds``: of D, A, B, C. ``draw``: operands by kind of input and seed."""

    name: str
    kinds: tuple[str, ...]
    draws: int
    draw: Callable[[str, int], Matrices]
    asked: Callable[[Matrices], np.ndarray]
    model: Callable[[Matrices], np.ndarray]

    def operands(self, what: str, seed: int) -> Matrices:
        """In ``near`` C is close to minus what the products add up to, in ``edge`` it is often zero."""
        a, b, c = self.draw(what, seed)
        if what == "near" and self.kinds[0] in ("f32", "f16"):
            products = self.model([a, b, np.zeros_like(c)])
            sign = {"f32": 0x8000_0000, "f16": 0x8000_8000}[self.kinds[0]]
            flips = np.random.default_rng(seed).integers(0, 1 << 9, c.shape, dtype=np.uint32)
            c[::2] = (products ^ np.uint32(sign) ^ flips)[::2]
        if what == "edge":
            c[::2] = 0
        return [a, b, c]

    def first_mismatch(self, given: Matrices, got: np.ndarray, expected: np.ndarray) -> str:
        *lead, row, column = np.argwhere(got != expected)[0].tolist()
        sides = given[0][(*lead, row)], given[1][(*lead, column)]
        listed = [" ".join(f"{int(w):08x}" for w in x) for x in sides]
        at = (*lead, row, column)
        c = numbers(given[2], self.kinds[3])[at]
        return (
            f"    A {listed[0]}\n    B {listed[1]}\n    C {int(c):x}  got {int(got[at]):x}, the "
            f"model says {int(expected[at]):x}"
        )

    def compare(self) -> None:
        """The model as it stands, kind by kind."""
        kind = self.kinds[0]
        for what in KINDS if kind in ("f32", "f16", "f64") else ("any",):
            wrong, count, example = 0, 0, ""
            for seed in range(self.draws):
                given = self.operands(what, seed)
                got, expected = (numbers(f(given), kind) for f in (self.asked, self.model))
                wrong += int((got != expected).sum())
                count += got.size
                if wrong and not example:
                    example = self.first_mismatch(given, got, expected)
            print(f"{self.name:40} {what:8} {wrong:6} of {count} differ")
            if example:
                print(example)

    def search(self, grid: Iterable[Accumulator]) -> None:
        """Which accumulators give the machine's bits on all finite inputs."""
        kind = self.kinds[0]
        formats = tuple(BY_PTX_TYPE[k] for k in self.kinds[1:])
        sets = []
        for what, seed in itertools.product(KINDS[:-1], range(self.draws)):
            given = self.operands(what, 100 + seed)
            values = [mma.unpacked(words, fmt) for words, fmt in zip(given, formats)]
            sets.append((values, numbers(self.asked(given), kind)))
        scores: list[tuple[int, Accumulator]] = []
        for accumulator in grid:
            wrong = 0
            for values, got in sets:
                found = mma.packed(mma.accumulate(*values, formats, accumulator), formats[2])
                wrong += int((numbers(found, kind) != got).sum())
            scores.append((wrong, accumulator))
        scores.sort(key=lambda pair: pair[0])
        exact = [a for wrong, a in scores if wrong == 0]
        print(f"{self.name}: {len(exact)} accumulators without a mismatch")
        for wrong, accumulator in scores[: max(3, len(exact))]:
            print(f"    {wrong:7} mismatches  {accumulator}")


def random(what: str, seed: int) -> np.random.Generator:
    return np.random.default_rng((KINDS.index(what), seed))


# --- mma.sync


def probe(device: str, form: Form) -> Probe:
    """Many warps at once."""
    name = form.spelling.removeprefix(PREFIX)
    shape = Shape(form.spelling)
    m, n, k = shape.mnk

    def draw(what: str, seed: int) -> Matrices:
        rng = random(what, seed)
        sizes = zip(shape.kinds[1:], (m, n, m), (k, k, n))
        return [
            spread(kind, what, (CASES_PER_KIND, rows, columns), rng)
            for kind, rows, columns in sizes
        ]

    def asked(given: Matrices) -> np.ndarray:
        return run(device, name, [x[:, None, None] for x in given])[:, 0, 0]

    def model(given: Matrices) -> np.ndarray:
        return mma.multiply_accumulate(form, *given)

    return Probe(name, tuple(shape.kinds), 1, draw, asked, model)


def grid(kind: str) -> Iterator[Accumulator]:
    for block, bits, least, rounding in itertools.product(
        BLOCKS, FRACTION_BITS, LEAST_EXPONENTS, ROUNDINGS
    ):
        yield Accumulator(block, bits, rounding, {"f32": 23, "f16": 10}[kind], least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="ask the simulator")
    device = "cpu" if parser.parse_args().cpu else "cuda"
    target = Target.parse("sm_90a")
    if device == "cuda":
        target = Target.of_capability(*torch.cuda.get_device_capability())
        print(torch.cuda.get_device_name())
    forms = [f for f in forms_of_family("mma_sync") if target.supports(f.min_target)]
    probes = [probe(device, form) for form in forms]
    for one in probes:
        one.compare()
    for one in probes:
        if one.kinds[1] in ("f16", "bf16", "tf32"):
            one.search(grid(one.kinds[0]))


if __name__ == "__main__":
    main()
