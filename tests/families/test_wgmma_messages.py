"""Faults of wgmma operands say how the operand is written, and what they say is right."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tilejit as tile
from tilejit import T
from tilejit.errors import ContractError


@tile.jit
def product(MAKE: T.constexpr, GROUPS: T.constexpr, KIND: T.constexpr):
    """64 x 32 by 16 k, with D, A and B as ``MAKE`` makes them."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128 * GROUPS))
    d, a, b = MAKE()
    T.ptx["wgmma.fence.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n32k16.{KIND}.f16.f16"], d, a, b,
        scope="warpgroup" if GROUPS == 1 else "cta",
    )  # fmt: skip


@tile.jit
def right_d():
    return T.alloc_local((1, 1, 64, 32), "float32", layout=T.cuda.wgmma_fragment_layout(32, (1, 1)))


@tile.jit
def right_a():
    tile_ = T.alloc_shared(
        (64, 16), "float16", layout=T.cuda.wgmma_shared_layout((64, 16), "float16"), align=1024
    )
    return tile_.view(1, 64, 1, 16).permute(0, 2, 1, 3)


@tile.jit
def right_b():
    tile_ = T.alloc_shared(
        (32, 16), "float16", layout=T.cuda.wgmma_shared_layout((32, 16), "float16"), align=1024
    )
    return tile_.view(1, 32, 1, 16).permute(0, 2, 1, 3)


@tile.jit
def all_right():
    return right_d(), right_a(), right_b()


@tile.jit
def plain_d():
    return T.alloc_local((1, 1, 64, 32), "float32", layout="default"), right_a(), right_b()


@tile.jit
def flat_d():
    d = T.alloc_local((64, 32), "float32", layout=T.cuda.wgmma_fragment_layout(32, (1, 1)))
    return d, right_a(), right_b()


@tile.jit
def transposed_d():
    return right_d().permute(0, 1, 3, 2), right_a(), right_b()


@tile.jit
def plain_words():
    return right_d(), T.alloc_local((1, 1, 64, 8), "uint32", layout="default"), right_b()


@tile.jit
def flat_a():
    a = T.alloc_shared((64, 16), "float16", layout=T.cuda.wgmma_shared_layout((64, 16), "float16"))
    return right_d(), a, right_b()


@tile.jit
def local_b():
    return right_d(), right_a(), T.alloc_local((1, 1, 32, 16), "float16", layout="default")


@tile.jit
def unaligned_a():
    layout = T.cuda.wgmma_shared_layout((64, 64), "float16")
    a = T.alloc_shared((64, 64), "float16", layout=layout, align=128)
    return right_d(), a.view(1, 64, 4, 16).permute(0, 2, 1, 3), right_b()


def report(make: Any, groups: int = 1, kind: str = "f32") -> str:
    try:
        product.check(make, groups, kind, target="sm_90a")
    except ContractError as error:
        return str(error)
    return ""


def test_the_right_operands_are_right() -> None:
    assert report(all_right) == ""


@pytest.mark.parametrize(
    ("make", "code", "recipe"),
    [
        (plain_d, "wgmma/owner", "layout=T.cuda.wgmma_fragment_layout(32, (M_repeat, N_repeat))"),
        (flat_d, "wgmma/repeat-axes", ".view(1, 1, 64, 32)"),
        (transposed_d, "tile/atom-shape", "T.alloc_local((M_repeat, N_repeat, 64, 32), \"float32\""),
        (plain_words, "wgmma/owner", "layout=T.cuda.wgmma_words_layout(8, (M_repeat, K_repeat))"),
        (flat_a, "wgmma/repeat-axes", ".view(M_repeat, 64, K_repeat, 16).permute(0, 2, 1, 3)"),
        (local_b, "wgmma/space", ".view(N_repeat, 32, K_repeat, 16).permute(0, 2, 1, 3)"),
        (unaligned_a, "wgmma/descriptor", "align=1024): its swizzle repeats every 1024 bytes (8 rows of 128 bytes)"),
    ],
)  # fmt: skip
def test_a_fault_says_how_the_operand_is_written(make: Any, code: str, recipe: str) -> None:
    text = report(make)
    assert code in text and recipe in text


def test_words_of_an_f16_accumulator() -> None:
    text = report(half_d, kind="f16")
    assert 'T.alloc_local((M_repeat, N_repeat, 64, 16), "uint32"' in text
    assert "T.cuda.wgmma_words_layout(16, (M_repeat, N_repeat))" in text


@tile.jit
def half_d():
    return T.alloc_local((1, 1, 64, 16), "uint32", layout="default"), right_a(), right_b()


def made(recipe: str, one: str = "1") -> Any:
    """The declaration that a help gives, written into a kernel with one repeat of each axis."""
    (call,) = re.findall(r"T\.alloc_local\(.*\)(?=; one tile)", recipe)
    return re.sub(r"[MNK]_repeat", one, call)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_declaration_is_one_that_is_accepted(groups: int) -> None:
    text = report(grouped_plain if groups == 2 else plain_d, groups)
    declaration = made(text)
    lead = "2, " if groups == 2 else ""
    more = ", warpgroups=(2,)" if groups == 2 else ""
    layout = f"layout=T.cuda.wgmma_fragment_layout(32, (1, 1){more})"
    assert declaration == f'T.alloc_local(({lead}1, 1, 64, 32), "float32", {layout})'
    assert report(grouped_right if groups == 2 else all_right, groups) == ""


@tile.jit
def grouped_a():
    tile_ = T.alloc_shared(
        (128, 16), "float16", layout=T.cuda.wgmma_shared_layout((128, 16), "float16"), align=1024
    )
    return tile_.view(2, 1, 64, 1, 16).permute(0, 1, 3, 2, 4)


@tile.jit
def grouped_b():
    tile_ = T.alloc_shared(
        (64, 16), "float16", layout=T.cuda.wgmma_shared_layout((64, 16), "float16"), align=1024
    )
    return tile_.view(2, 1, 32, 1, 16).permute(0, 1, 3, 2, 4)


@tile.jit
def grouped_plain():
    d = T.alloc_local((2, 1, 1, 64, 32), "float32", layout="default")
    return d, grouped_a(), grouped_b()


@tile.jit
def grouped_right():
    layout = T.cuda.wgmma_fragment_layout(32, (1, 1), warpgroups=(2,))
    return T.alloc_local((2, 1, 1, 64, 32), "float32", layout=layout), grouped_a(), grouped_b()
