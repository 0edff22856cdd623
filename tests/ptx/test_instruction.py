"""``T.ptx``: text and attribute chains denote the same instruction."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from tilejit.errors import SyntaxUnsupported
from tilejit.ptx.instruction import (
    SINK,
    AddressOperand,
    Instruction,
    PredicateOperand,
    PtxPrefix,
    as_instruction,
    ptx,
)
from tilejit.ptx.spelling import SpellingError


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (ptx.ld.global_.v4.b32, "ld.global.v4.b32"),
        (ptx.st.shared__cta.b32, "st.shared::cta.b32"),
        (ptx.ld.global_.L2__cache_hint.L2__128B.f32, "ld.global.L2::cache_hint.L2::128B.f32"),
        (ptx.fence.acq_rel.gpu, "fence.acq_rel.gpu"),
        (ptx.and_.b32, "and.b32"),
        (ptx.max.NaN.f32, "max.NaN.f32"),
        (ptx.tcgen05.ld._32x32b, "tcgen05.ld.32x32b"),
    ],
)
def test_chains(chain: PtxPrefix, text: str) -> None:
    assert chain.text == text


def test_one_object_however_it_is_written() -> None:
    a, b = ptx["ld.v4.global.b32"], as_instruction(ptx.ld.global_.v4.b32)
    assert a == b == Instruction("ld.global.v4.b32")
    assert len({a, b}) == 1
    assert as_instruction(a) is a
    assert a.spelling == "ld.global.v4.b32"
    assert a.family == "ld_st"
    assert [form.spelling for form in a.forms] == ["ld.global.v4.b32"]
    assert copy.deepcopy(a) == pickle.loads(pickle.dumps(a)) == a
    assert pickle.loads(pickle.dumps(ptx.ld.global_)) == ptx.ld.global_


def test_wrong_text_is_refused_when_it_is_written() -> None:
    with pytest.raises(SpellingError):
        ptx["ld.global.v3.b32"]
    with pytest.raises(SpellingError, match="not fully specified"):
        as_instruction(ptx.ld.global_)
    with pytest.raises(TypeError):
        ptx[3]  # type: ignore[index]


def test_calls_outside_a_kernel_are_refused() -> None:
    with pytest.raises(SyntaxUnsupported) as caught:
        ptx["add.f32"](1, 2)
    assert caught.value.codes == ("ptx/outside-kernel",)
    with pytest.raises(SyntaxUnsupported):
        ptx.add.f32(1, 2)


def test_operand_markers() -> None:
    assert ptx.addr("p", 16) == AddressOperand("p", 16)
    assert ptx.pred(True) == PredicateOperand(True)
    assert ptx.SINK is SINK


def test_a_lookup_parses_the_rows_of_its_mnemonic_only() -> None:
    code = (
        "from tilejit.ptx import rows, spelling\n"
        "from tilejit.ptx.instruction import Instruction\n"
        "parsed = []\n"
        "derive = rows.Row.form\n"
        "rows.Row.form = lambda row, *rest: parsed.append(row.mnemonic) or derive(row, *rest)\n"
        "Instruction('ld.global.v4.b32').forms\n"
        "assert set(parsed) == {'ld'}, parsed\n"
        "assert 'FORMS' not in vars(spelling)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
