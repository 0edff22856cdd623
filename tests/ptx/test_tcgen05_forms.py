"""Every form of tensor memory against what the PTX ISA's syntax boxes derive, written down once more.

Operands are letters: ``t`` an address in tensor memory, ``s`` a shared one, ``r``, ``d`` and ``h`` a 32-,
64- and 16-bit register, ``p`` a predicate, ``i`` a literal; ``{r4}`` four registers in braces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.ptx.test_assembles import TENSOR_MEMORY, refused
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.spelling import SpellingError, forms_of_family, lookup
from tilejit.target import TARGETS

FAMILY = {"sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f"}
EXACT = {"sm_100a", "sm_103a", "sm_110a"}
INTEGERS = {"sm_100a", "sm_110a"}
SCALED = {"sm_100a", "sm_100f", "sm_103a", "sm_103f"}

Expected = tuple[str, str, frozenset[str], bool]
"""Spelling, operands, the targets that take it, whether it is a tile operation."""


def raw() -> Iterator[Expected]:
    for g in (1, 2):
        pair, family = f"cta_group::{g}", frozenset(FAMILY)
        yield f"tcgen05.alloc.{pair}.sync.aligned.shared::cta.b32", "s r", family, False
        yield f"tcgen05.dealloc.{pair}.sync.aligned.b32", "r r", family, False
        yield f"tcgen05.relinquish_alloc_permit.{pair}.sync.aligned", "", family, False
        yield f"tcgen05.shift.{pair}.down", "t", frozenset(EXACT), False
        commit = f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster"
        yield f"{commit}.b64", "s", family, False
        yield f"{commit}.multicast::cluster.b64", "s h", family, False
    for which in ("ld", "st"):
        yield f"tcgen05.wait::{which}.sync.aligned", "", frozenset(FAMILY), False
    for when in ("before", "after"):
        yield f"tcgen05.fence::{when}_thread_sync", "", frozenset(FAMILY), False


def loads_and_stores() -> Iterator[Expected]:
    for shape, bits in (("32x32b", 32), ("16x64b", 32), ("16x128b", 64), ("16x256b", 128)):
        for times in (2**i for i in range(8)):
            registers = bits // 32 * times
            if registers > 128:
                continue
            for pack in (".pack::16b", ""):
                yield (
                    f"tcgen05.ld.sync.aligned.{shape}.x{times}{pack}.b32",
                    f"{{r{registers}}} t", frozenset(FAMILY), True,
                )  # fmt: skip
                yield (
                    f"tcgen05.st.sync.aligned.{shape}.x{times}{pack.replace('pack', 'unpack')}.b32",
                    f"t {{r{registers}}}", frozenset(FAMILY), True,
                )  # fmt: skip
    for times, pack in product((2**i for i in range(8)), ("", "pack::16b.")):
        head = f"sync.aligned.16x32bx2.x{times}."
        yield f"tcgen05.ld.{head}{pack}b32", f"{{r{times}}} t i", frozenset(FAMILY), True
        unpack = f"un{pack}" if pack else ""
        yield f"tcgen05.st.{head}{unpack}b32", f"t i {{r{times}}}", frozenset(FAMILY), True


def copies() -> Iterator[Expected]:
    shapes = "128x256b 128x128b 4x256b 64x128b.warpx2::02_13 64x128b.warpx2::01_23 32x128b.warpx4"
    for g, shape in product((1, 2), shapes.split()):
        for expanded in ("", ".b8x16.b4x16_p64", ".b8x16.b6x16_p32"):
            spelling = f"tcgen05.cp.cta_group::{g}.{shape}{expanded}"
            yield spelling, "t d", frozenset(FAMILY), True


def dense() -> Iterator[Expected]:
    uses = ("", *(f".collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")))
    for kind, g, a, lanes, use, shift, scale in product(
        ("f16", "tf32", "f8f6f4", "i8"), (1, 2), "dt", (False, True), uses, (False, True), (False, True),
    ):  # fmt: skip
        if shift and (a == "d" or use.endswith(("fill", "::use"))):
            continue
        if scale and kind not in ("f16", "tf32"):
            continue
        mask = f" {{r{4 * g}}}" if lanes else ""
        targets = SCALED if scale else INTEGERS if kind == "i8" else FAMILY
        yield (
            f"tcgen05.mma.cta_group::{g}.kind::{kind}{'.ashift' * shift}{use}",
            f"t {a} d r{mask} p{' i' * scale}", frozenset(targets), not (shift or scale),
        )  # fmt: skip


def weight_stationary() -> Iterator[Expected]:
    buffers = product(range(4), ("fill", "use", "lastuse", "discard"))
    uses = ("", *(f".collector::b{buffer}::{use}" for buffer, use in buffers))
    for kind, a, use, mask in product(("f16", "tf32", "f8f6f4", "i8"), "dt", uses, ("", " d")):
        yield (
            f"tcgen05.mma.ws.cta_group::1.kind::{kind}{use}",
            f"t {a} d r p{mask}", frozenset(INTEGERS if kind == "i8" else FAMILY), True,
        )  # fmt: skip


SCALE_VECTORS = {
    "mxf8f6f4": ("", ".block32", ".scale_vec::1X"),
    "mxf4": ("", ".block32", ".scale_vec::2X"),
    "mxf4nvf4": (".block16", ".block32", ".scale_vec::2X", ".scale_vec::4X"),
}


def block_scaled() -> Iterator[Expected]:
    uses = ("", *(f".collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")))
    for kind, vectors in SCALE_VECTORS.items():
        for vector, g, a, use in product(vectors, (1, 2), "dt", uses):
            yield (
                f"tcgen05.mma.cta_group::{g}.kind::{kind}.block_scale{vector}{use}",
                f"t {a} d r t t p", frozenset(EXACT if "scale_vec" in vector else FAMILY), True,
            )  # fmt: skip


EXPECTED = {
    "tcgen05": raw,
    "tcgen05_ld_st": loads_and_stores,
    "tcgen05_cp": copies,
    "tcgen05_mma": lambda: (*dense(), *weight_stationary(), *block_scaled()),
}


def letter(spec: OperandSpec) -> str:
    if spec.kind == "addr":
        return "t" if spec.space == "tmem" else "s"
    if spec.kind == "imm":
        return "i"
    if spec.kind == "pred":
        return "p"
    one = {16: "h", 32: "r", 64: "d"}[spec.bits]
    return f"{{{one}{spec.lanes}}}" if spec.braces else one


def described(form: Form) -> Expected:
    targets = frozenset(name for name, t in TARGETS.items() if t.supports(form.min_target))
    return form.spelling, " ".join(map(letter, form.operands)), targets, form.tile


@pytest.mark.parametrize("family", TENSOR_MEMORY)
def test_the_table_has_these_forms_and_no_others(family: str) -> None:
    found = [described(form) for form in forms_of_family(family)]
    assert len(found) == len(set(found))
    assert set(found) == set(EXPECTED[family]())


@pytest.mark.parametrize("family", TENSOR_MEMORY)
def test_effects(family: str) -> None:
    """All are kept as they stand. What a warp does together needs its lanes together; whose end comes
    later is asynchronous."""
    for form in forms_of_family(family):
        first = form.modifiers[0]
        assert "volatile" in form.effects
        assert ("convergent" in form.effects) == ("aligned" in form.modifiers)
        later = first in ("ld", "st", "cp", "mma", "shift", "commit")
        assert ("async" in form.effects) == later
        assert first != "ld" or "writes_memory" not in form.effects
        assert first != "st" or "reads_memory" not in form.effects


REFUSED_BY_BOTH = (
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cta.b64 [sa];",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cta.multicast::cluster.b64 [sa],h0;",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared.b64 [sa];",
    "tcgen05.wait::ld;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared.b32 [sa],64;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cluster.b32 [sa],64;",
    "tcgen05.alloc.cta_group::1.shared::cta.b32 [sa],64;",
    "tcgen05.ld.sync.aligned.32x32b.b32 {r0},[sa];",
    "tcgen05.ld.sync.aligned.32x32b.x1.f32 {r0},[sa];",
    "tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {r0},[sa];",
    "tcgen05.cp.cta_group::1.64x128b [sa],d0;",
    "tcgen05.cp.cta_group::1.64x128b.warpx4 [sa],d0;",
    "tcgen05.cp.cta_group::1.32x128b [sa],d0;",
    "tcgen05.cp.cta_group::1.128x256b.warpx4 [sa],d0;",
    "tcgen05.cp.cta_group::1.128x256b.b4x16_p64 [sa],d0;",
    "tcgen05.cp.128x256b [sa],d0;",
    "tcgen05.mma.cta_group::1.kind::f16.collector::b0::use [sa],d0,d1,r0,p0;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift.collector::a::use [sa],[sa],d1,r0,p0;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift.collector::a::fill [sa],[sa],d1,r0,p0;",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4 [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block16 [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4 [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::1X [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::4X [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16 [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.ashift [sa],[sa],d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4 [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::1X [sa],d0,d1,r0,[sa],[sa],p0;",
    "tcgen05.mma.ws.cta_group::2.kind::f16 [sa],d0,d1,r0,p0;",
    "tcgen05.mma.ws.cta_group::1.kind::f16.ashift [sa],[sa],d1,r0,p0;",
    "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::use [sa],d0,d1,r0,p0;",
    "tcgen05.mma.ws.kind::f16 [sa],d0,d1,r0,p0;",
)
OPERANDS_REFUSED = (
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sa],24;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sa],96;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sa],1024;",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 [sa],32;",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 sa,33;",
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [sa],r0;",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 r0,[sa];",
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r0,_},[sa];",
    "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {r0},[sa];",
    "tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {r0,r1,r2,r3},[sa],r9;",
    "tcgen05.mma.cta_group::1.kind::f16 [sa],d0,d1,r0,p0,16;",
    "tcgen05.mma.cta_group::1.kind::f16 [sa],d0,d1,r0,p0,r1;",
    "tcgen05.mma.cta_group::2.kind::f16 [sa],d0,d1,r0,{r1,r2,r3,r4},p0;",
    "tcgen05.mma.cta_group::1.kind::f8f6f4 [sa],d0,d1,r0,p0,4;",
    "tcgen05.mma.cta_group::1.kind::f16.ashift [sa],d0,d1,r0,p0;",
    "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [sa],d0,d1,r0,{r1,r2,r3,r4},[sa],[sa],p0;",
)  # fmt: skip


def test_what_the_table_refuses_the_assembler_refuses() -> None:
    for text in REFUSED_BY_BOTH:
        with pytest.raises(SpellingError):
            lookup(text.split(" ")[0].rstrip(";"))
    for text in OPERANDS_REFUSED:
        assert lookup(text.split(" ")[0])
    wrong = refused([*REFUSED_BY_BOTH, *OPERANDS_REFUSED], "sm_100a")
    assert len(wrong) == len(REFUSED_BY_BOTH) + len(OPERANDS_REFUSED)


def test_an_address_takes_an_offset() -> None:
    """Columns, or lanes above 16 bits, are added to any address in tensor memory."""
    texts = [
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {r0}, [sa+1048584];",
        "tcgen05.st.sync.aligned.16x32bx2.x1.b32 [sa+16], 32, {r0};",
        "tcgen05.cp.cta_group::1.128x256b [sa+16], d0;",
        "tcgen05.shift.cta_group::1.down [sa+16];",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [sa+8], [sa+16], d1, r0, [sa+3], [sa+4], p0;",
    ]
    for target in ("sm_100a", "sm_103a"):
        assert not refused(texts, target)
