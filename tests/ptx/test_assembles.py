"""Every form of the table against a real assembler: taken at its least target, refused one below;
what the table refuses next to a legal spelling, the assembler refuses too."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tilejit.ptx import spelling
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.types import needs_byte_register, takes_float_register
from tilejit.target import Target

ASSEMBLER = Path(__file__).with_name("assembler.py")

BELOW = {
    "sm_80": "sm_75",
    "sm_86": "sm_80",
    "sm_89": "sm_86",
    "sm_90": "sm_89",
    "sm_90a": "sm_90",
    "sm_100": "sm_90a",
    "sm_100f": "sm_100",
    "sm_110f": "sm_110",
    "sm_120f": "sm_120",
    "sm_100a": "sm_100f",
    "sm_103a": "sm_103f",
    "sm_110a": "sm_110f",
}


IMMEDIATES = {"chunk_bytes": "16"}
"""Literals by operand name, where 128 will not do."""


def refused(statements: list[str], target: str) -> dict[int, str]:
    job = json.dumps({"target": target, "statements": statements})
    done = subprocess.run(
        [sys.executable, str(ASSEMBLER)], input=job, capture_output=True, text=True
    )
    assert done.returncode == 0, f"the assembler died: {done.stderr[-2000:]}"
    return {int(index): message for index, message in json.loads(done.stdout).items()}


def register(form: Form, spec: OperandSpec, number: int, *, floats: bool) -> str:
    """A register of the operand's kind: ``floats`` wherever a float register may stand, else bits."""
    letter = None
    if spec.type == "pred":
        letter = "p"
    elif needs_byte_register(form, spec):
        letter = "c"
    elif floats and takes_float_register(form, spec):
        letter = {32: "f", 64: "e"}[spec.bits]
    return f"{letter or {8: 'h', 16: 'h', 32: 'r', 64: 'd', 128: 'q'}[spec.bits]}{number}"


def statement(form: Form, *, floats: bool = True) -> str:
    """One instruction of this form on registers that ``assembler.REGISTERS`` declares."""
    texts: list[str] = []
    number = 0
    for spec in form.operands:
        if spec.kind == "imm":
            fits = spec.values is None or 128 in spec.values
            text = IMMEDIATES.get(spec.name, "128" if fits else str(spec.values[-1]))
        elif spec.kind == "map":
            names = [f"r{number + lane}" for lane in range(spec.lanes)]
            number += spec.lanes
            text = "[da, {" + ",".join(names) + "}]"
        elif spec.kind == "addr":
            text = {"global": "[da]", "local": "[dl]"}.get(spec.space, "[sa]")
        else:
            names = [
                register(form, spec, number + lane, floats=floats) for lane in range(spec.lanes)
            ]
            number += spec.lanes
            text = "{" + ",".join(names) + "}" if spec.braces else names[0]
            if spec.sink_only:
                text = "_"
        if spec.joined:
            texts[-1] += f"|{text}"
        else:
            texts.append(text)
    return f"{form.spelling} {', '.join(texts)};"


def by_target() -> dict[str, list[Form]]:
    groups: dict[str, list[Form]] = defaultdict(list)
    for form in spelling.FORMS:
        for target in form.min_target.split("|"):
            groups[target].append(form)
    return groups


GROUPS = by_target()


@pytest.mark.parametrize("target", sorted(GROUPS))
def test_every_form_assembles_for_its_least_target(target: str) -> None:
    """On bit registers, and on float registers wherever one may stand; most forms have no such place."""
    both = [statement(form, floats=floats) for floats in (False, True) for form in GROUPS[target]]
    statements = list(dict.fromkeys(both))
    wrong = refused(statements, target)
    assert not wrong, {statements[i]: message for i, message in list(wrong.items())[:5]}


TENSOR_MEMORY = ("tcgen05", "tcgen05_ld_st", "tcgen05_cp", "tcgen05_mma")


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_tensor_memory_forms_assemble_where_the_table_says_so(target: str) -> None:
    """``kind::i8`` is the only one that sm_100a has and sm_103a has not."""
    forms = [form for name in TENSOR_MEMORY for form in spelling.forms_of_family(name)]
    statements = [statement(form) for form in forms]
    wrong = refused(statements, target)
    expected = {
        i for i, form in enumerate(forms) if not Target.parse(target).supports(form.min_target)
    }
    assert set(wrong) == expected
    assert len(forms) > 900
    integers = {i for i, form in enumerate(forms) if "kind::i8" in form.modifiers}
    assert expected == (integers if target == "sm_103a" else set())


# Assemblers older than 13.5 take these on older targets too.
EARLIER = re.compile(r"fence\.(acquire|release)\.(cta|gpu|sys)")


@pytest.mark.parametrize("target", sorted(set(GROUPS) - {"sm_75"}))
def test_no_form_assembles_below_its_least_target(target: str) -> None:
    forms = [form for form in GROUPS[target] if not EARLIER.fullmatch(form.spelling)]
    # The largest groups repeat one fact per cache modifier: a fixed sample of them will do.
    forms = random.Random(7).sample(forms, min(len(forms), 2000))
    statements = [statement(form) for form in forms]
    wrong = refused(statements, BELOW[target])
    taken = [s for i, s in enumerate(statements) if i not in wrong]
    assert not taken, f"{BELOW[target]} takes {taken[:5]}"


# What this assembler takes beyond the PTX ISA's text, and we do not offer.
UNDOCUMENTED = re.compile(
    r"rcp(\.ftz|\.r[nzmp]|\.f64)+"  # .ftz on f64
    r"|fma\..*oob.*"  # .oob with .sat or directed rounding
    r"|cvt\..*ftz.*f32\.[su]\d+|cvt\.(b?f16\.b?f16|(sat\.|r[nzmp]\.|ftz\.)*f(32|64)\.bf16)"
    r"|(ld|st)\..*L2::evict.*"  # L2 priority beside a cache operator
    r"|(ld|st|atom|red|ldmatrix|stmatrix)\.(?!.*(global|shared|local)).*"  # generic addresses
    r"|(prefetch|discard|applypriority|createpolicy\.range)\.(?!global|local|.*\.global).*"
    r"|getctarank\.u(32|64)|fence\.(cta|cluster|gpu|sys)|testp\.f(32|64)"
    r"|cp\.async\.mbarrier\.arrive(\.noinc)?\.b64"  # a generic address
    r"|cp\.async\.c[ag]\..*L2::\d+B\.L2::cache_hint"  # the hint behind the prefetch size
    r"|st\.async(\..*)?\.(shared|shared::cta|cluster)\..*"  # one's own block, a scope without an order
    r"|red\.async\..*add\.s64"  # the same as .u64
    r"|tcgen05\.(ld|st)\.(?!.*\baligned\b).*|tcgen05\.(alloc|commit)\.(?!.*shared).*"
    r"|tcgen05\.(?!cp\.).*\bb(8x16|4x16_p64|6x16_p32)\b.*"  # source formats of tcgen05.cp
    r"|fence\.(?!proxy).*async.*"  # of NVRTC 13.5, newer than the PTX ISA of the table (9.0)
)


def mutated(count: int, seed: int) -> dict[str, str]:
    """Statements whose spelling differs by one modifier from a legal one and is not legal."""
    chance = random.Random(seed)
    by_mnemonic: dict[str, list[Form]] = defaultdict(list)
    for form in spelling.FORMS:
        by_mnemonic[form.mnemonic].append(form)
    vocabulary = {
        m: sorted({t for f in forms for t in f.modifiers}) for m, forms in by_mnemonic.items()
    }
    mnemonics = list(by_mnemonic)
    found: dict[str, str] = {}
    while len(found) < count:
        form = chance.choice(by_mnemonic[chance.choice(mnemonics)])
        tokens = list(form.modifiers)
        if not tokens:
            continue
        at = chance.randrange(len(tokens))
        other = chance.choice(vocabulary[form.mnemonic])
        match chance.choice(("insert", "replace", "delete")):
            case "insert":
                tokens.insert(at, other)
            case "replace":
                tokens[at] = other
            case _:
                del tokens[at]
        text = ".".join((form.mnemonic, *tokens))
        # An eight-element vector of narrow elements crashes the assembler.
        if len(set(tokens)) < len(tokens) or re.search(r"v8", text):
            continue
        if UNDOCUMENTED.fullmatch(text) or legal(text):
            continue
        found[text] = statement(dataclasses.replace(form, spelling=text))
    return found


def legal(text: str) -> bool:
    try:
        spelling.lookup(text)
    except spelling.SpellingError:
        return False
    return True


def test_the_assembler_refuses_what_the_table_refuses() -> None:
    near_misses = mutated(3000, seed=11)
    statements = list(near_misses.values())
    wrong = refused(statements, "sm_100a")
    taken = [s for i, s in enumerate(statements) if i not in wrong]
    assert not taken, f"legal, but not in the table: {taken[:10]}"


REFERENCE_REFUSES = (
    "add.rn.sat.f32x2 d0,d1,d2;", "min.f32x2 d0,d1,d2;", "abs.f32x2 d0,d1;", "neg.f32x2 d0,d1;",
    "ex2.approx.ftz.f32x2 d0,d1;", "ex2.approx.bf16x2 r0,r1;", "rsqrt.rn.f32 f0,f1;",
    "fma.f32 f0,f1,f2,f3;", "cvt.f32x2.f16x2 d0,r0;", "ld.shared.v4.b64 {d0,d1,d2,d3},[sa];",
    "st.local.v8.b32 [dl],{r0,r1,r2,r3,r4,r5,r6,r7};",
    "ld.global.v8.b64 {d0,d1,d2,d3,d4,d5,d6,d7},[da];",
    "ld.global.L2::evict_last.v4.b32 {r0,r1,r2,r3},[da];",
    "st.global.L2::64B.v4.b32 [da],{r0,r1,r2,r3};", "st.global.relaxed.v4.b32 [da],{r0,r1,r2,r3};",
)  # fmt: skip


def test_the_known_bad_spellings_are_refused_by_both() -> None:
    wrong = refused(list(REFERENCE_REFUSES), "sm_100a")
    assert len(wrong) == len(REFERENCE_REFUSES)
    assert not [s for s in REFERENCE_REFUSES if legal(s.split(" ")[0])]


LIMITED = {
    (form.spelling, spec.name): (form, number, spec.values)
    for form in spelling.FORMS
    for number, spec in enumerate(form.operands)
    if spec.kind == "reg" and spec.values
}
"""Registers in whose place only some literals may stand. One spelling of each will do."""


def test_the_ends_of_what_a_literal_may_be_assemble() -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for form, number, values in LIMITED.values():
        parts = statement(form).rstrip(";").split(", ")
        if len(parts) != len(form.operands) or "cp_mask" in form.modifiers:
            continue  # a vector or a joined operand
        parts[number] = parts[number] if number else f"{form.spelling} "
        for value in (values[0], values[-1]):
            text = ", ".join([*parts[:number], str(value), *parts[number + 1 :]])
            groups[form.min_target.split("|")[0]].append(f"{text};")
    assert sum(map(len, groups.values())) > 100
    for target, statements in groups.items():
        wrong = refused(statements, target)
        assert not wrong, {statements[i]: message for i, message in list(wrong.items())[:5]}


def test_literals_beyond_are_refused() -> None:
    """All but what the assembler takes, or dies of: ``mbarrier.init`` with 0 arrivals."""
    beyond = (
        "mbarrier.arrive.shared::cta.b64 _, [sa], 0;",
        "mbarrier.test_wait.parity.shared::cta.b64 p0, [sa], 2;",
        "cp.async.bulk.prefetch.L2.global [da], 8;",
        "cp.async.bulk.prefetch.L2.global [da], 1048576;",
        "barrier.sync 1, 48;",
        "mbarrier.arrive.shared::cluster.b64 d0, [sa];",
    )
    assert len(refused(list(beyond), "sm_90")) == len(beyond)
