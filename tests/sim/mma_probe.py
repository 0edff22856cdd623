"""Asks a GPU how its tensor cores round, and which numbers of ``numeric.mma``'s model it agrees with.

    python -m tests.sim.mma_probe            on a machine with a GPU; under a minute
    python -m tests.sim.mma_probe --cpu      the simulator against itself, to try the script

Every form of ``mma.sync`` runs on codes spread over all exponents, near one another, cancelling,
subnormal, and with infinities and NaNs. First the model as it stands, bit by bit. Then, for each type of
input with finite codes, every combination of the parameters below; printed are those without a
mismatch, or the closest. Not here: a verdict for other architectures than the one it runs on.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
import torch

from tests.families.test_mma_sync import PREFIX, Shape, run
from tests.sim.test_numeric_mma import KINDS, codes
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import forms_of_family
from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BY_PTX_TYPE, TF32, FloatFormat
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


def operands(form: Form, what: str, rng: np.random.Generator) -> list[np.ndarray]:
    """A, B and C of many warps. In ``near`` C is close to minus what the products add up to, in
    ``edge`` it is often zero."""
    shape = Shape(form.spelling)
    m, n, k = shape.mnk
    kinds = shape.kinds
    a, b, c = (
        spread(kind, what, (CASES_PER_KIND, rows, columns), rng)
        for kind, rows, columns in zip(kinds[1:], (m, n, m), (k, k, n))
    )
    if what == "near" and kinds[0] in ("f32", "f16"):
        products = mma.multiply_accumulate(form, a, b, np.zeros_like(c))
        sign = {"f32": 0x8000_0000, "f16": 0x8000_8000}[kinds[0]]
        flips = rng.integers(0, 1 << 9, c.shape, dtype=np.uint32)
        c[::2] = (products ^ np.uint32(sign) ^ flips)[::2]
    if what == "edge":
        c[::2] = 0
    return [a, b, c]


# --- the machine and the model


def asked(device: str, form: Form, given: list[np.ndarray]) -> np.ndarray:
    words = [x[:, None, None] for x in given]
    return run(device, form.spelling.removeprefix(PREFIX), words)[:, 0, 0]


def numbers(words: np.ndarray, kind: str) -> np.ndarray:
    """One code per element of D."""
    return words.view({"f16": "<u2", "f64": "<u8"}.get(kind, "<u4"))


def first_mismatch(
    form: Form, given: list[np.ndarray], got: np.ndarray, expected: np.ndarray
) -> str:
    case, row, column = (int(i) for i in np.argwhere(got != expected)[0])
    kinds = Shape(form.spelling).kinds
    a, b = given[0][case, row], given[1][case, column]
    c = numbers(given[2], kinds[3])[case, row, column]
    listed = [" ".join(f"{int(w):08x}" for w in x) for x in (a, b)]
    return (
        f"    A {listed[0]}\n    B {listed[1]}\n    C {int(c):x}  "
        f"got {int(got[case, row, column]):x}, the model says {int(expected[case, row, column]):x}"
    )


def compare_form(device: str, form: Form) -> None:
    """The model as it stands, kind by kind."""
    kind = Shape(form.spelling).kinds[0]
    for what in KINDS if kind in ("f32", "f16", "f64") else ("any",):
        given = operands(form, what, np.random.default_rng(KINDS.index(what)))
        got = numbers(asked(device, form, given), kind)
        expected = numbers(mma.multiply_accumulate(form, *given), kind)
        wrong = int((got != expected).sum())
        print(f"{form.spelling.removeprefix(PREFIX):40} {what:8} {wrong:6} of {got.size} differ")
        if wrong:
            print(first_mismatch(form, given, got, expected))


def grid(kind: str) -> Iterator[Accumulator]:
    for block, bits, least, rounding in itertools.product(
        BLOCKS, FRACTION_BITS, LEAST_EXPONENTS, ROUNDINGS
    ):
        yield Accumulator(block, bits, rounding, {"f32": 23, "f16": 10}[kind], least)


def search_parameters(device: str, form: Form) -> None:
    """Which accumulators give the machine's bits on all finite inputs."""
    shape = Shape(form.spelling)
    formats: tuple[FloatFormat, ...] = tuple(BY_PTX_TYPE[kind] for kind in shape.kinds[1:])
    sets = []
    for what in KINDS[:-1]:
        given = operands(form, what, np.random.default_rng(100 + KINDS.index(what)))
        values = [mma.unpacked(words, fmt) for words, fmt in zip(given, formats)]
        sets.append((values, asked(device, form, given)))
    scores: list[tuple[int, Accumulator]] = []
    for model in grid(shape.kinds[0]):
        wrong = 0
        for values, got in sets:
            found = mma.packed(mma.accumulate(*values, formats, model), formats[2])
            wrong += int((numbers(found, shape.kinds[0]) != numbers(got, shape.kinds[0])).sum())
        scores.append((wrong, model))
    scores.sort(key=lambda pair: pair[0])
    exact = [model for wrong, model in scores if wrong == 0]
    print(f"{form.spelling.removeprefix(PREFIX)}: {len(exact)} accumulators without a mismatch")
    for wrong, model in scores[: max(3, len(exact))]:
        print(f"    {wrong:7} mismatches  {model}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="ask the simulator")
    device = "cpu" if parser.parse_args().cpu else "cuda"
    target = Target.parse("sm_90a")
    if device == "cuda":
        target = Target.of_capability(*torch.cuda.get_device_capability())
        print(torch.cuda.get_device_name())
    forms = [f for f in forms_of_family("mma_sync") if target.supports(f.min_target)]
    for form in forms:
        compare_form(device, form)
    for form in forms:
        if Shape(form.spelling).kinds[1] in ("f16", "bf16", "tf32"):
            search_parameters(device, form)


if __name__ == "__main__":
    main()
