"""What an H200 (sm_90) answered, instruction by instruction, against what ``numeric`` computes.

``data/numeric_sm90.json.gz`` maps a spelling (with the operands' types where it has several forms)
to twelve cases: the registers read and the registers written, in hexadecimal. Seven are edge values
(zeros, subnormals, ends of ranges, infinities, NaNs with payloads), five are drawn at random. Every
register form that sm_90 has is there, but those with 8-bit or 128-bit registers.

Exact instructions must agree in every bit; approximate ones within their bound in the PTX ISA.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.sim.numeric_oracle import SPECS, decode
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import lookup
from tilejit.sim import numeric

WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
RECORDED: dict[str, list[list[list[str]]]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data" / "numeric_sm90.json.gz").read_bytes())
)

RELATIVE = {
    "div": 2.0**-20, "rcp": 2.0**-20, "sqrt": 2.0**-22, "rsqrt": 2.0**-19, "ex2": 2.0**-21,
    "tanh": 2.0**-10.9,
}  # fmt: skip
"""Largest relative difference of f32 and f64 results: twice the bound, both sides being off."""
ABSOLUTE = {"lg2": 2.0**-16, "sin": 2.0**-20, "cos": 2.0**-20}
"""Largest absolute difference; sin and cos within a turn or two, lg2 anywhere."""
COARSE = {"f16": 2.0**-8.9, "bf16": 2.0**-6}


def described(form: Form) -> str:
    operands = " ".join(f"{o.type}*{o.lanes}" for o in form.operands)
    return f"{form.spelling} {operands}"


def form_of(key: str) -> Form:
    found = lookup(key.split()[0])
    return found[0] if " " not in key else next(f for f in found if described(f) == key)


def cases(key: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    form = form_of(key)
    read = [s for s in form.operands if "r" in s.direction for _ in range(s.lanes)]
    written = [s for s in form.operands if "w" in s.direction for _ in range(s.lanes)]

    def arrays(which: int, specs: list) -> list[np.ndarray]:
        columns = zip(*(case[which] for case in RECORDED[key]))
        return [
            np.array([int(x, 16) for x in column], np.uint64).astype(WORDS[max(spec.bits, 8)])
            for spec, column in zip(specs, columns)
        ]

    return arrays(0, read), arrays(1, written)


APPROXIMATE = [k for k in RECORDED if ".approx" in k or ".full" in k]
EXACT = [k for k in RECORDED if k not in APPROXIMATE]


def test_exact_instructions_agree_in_every_bit() -> None:
    wrong = []
    for key in EXACT:
        inputs, expected = cases(key)
        for got, hardware in zip(numeric.compute(form_of(key), inputs), expected):
            for at in np.flatnonzero(got != hardware):
                given = ", ".join(hex(int(x[at])) for x in inputs)
                wrong.append(f"{key}({given}) = {int(got[at]):#x}, sm_90 {int(hardware[at]):#x}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("key", APPROXIMATE)
def test_approximate_instructions_agree_within_their_bound(key: str) -> None:
    form = form_of(key)
    inputs, (hardware,) = cases(key)
    (got,) = numeric.compute(form, inputs)
    kind = form.operands[0].type.removesuffix("x2")
    width = SPECS[kind].bits
    for at in range(len(got)):
        for part in range(8 * got.dtype.itemsize // width):
            mine, theirs = (int(x[at]) >> part * width & (1 << width) - 1 for x in (got, hardware))
            operand = decode(int(inputs[0][at]) >> part * width & (1 << width) - 1, SPECS[kind])
            if mine != theirs:
                assert close(form.mnemonic, kind, mine, theirs, operand), (hex(mine), hex(theirs))


def close(name: str, kind: str, mine: int, theirs: int, operand: object) -> bool:
    x, y = decode(mine, SPECS[kind]), decode(theirs, SPECS[kind])
    if "nan" in (x, y):
        return x == y
    if name in ("sin", "cos") and (isinstance(operand, str) or abs(float(operand)) > 6.2):  # type: ignore[arg-type]
        return True
    a, b = float(x), float(y)
    if name in ABSOLUTE:
        return abs(a - b) <= ABSOLUTE[name]
    bound = COARSE.get(kind, RELATIVE[name])
    # Subnormal results have fewer bits than the bound asks for.
    return abs(a - b) <= max(
        bound * abs(a), 2 * 2.0 ** (1 - SPECS[kind].bias - SPECS[kind].mantissa)
    )
