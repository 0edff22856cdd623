"""What a newcomer gets wrong first: the whole message, or what makes it repairable."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch

import tilejit as tile
from tilejit import T

SPREAD = "(2,32,4):(1@warpid,1@laneid,1)"


@tile.jit
def without_scope(X: T.Tensor((2, 32, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    r = T.alloc_local((2, 32, 4), "float32", layout=T.layout(SPREAD))
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X)


def test_a_forgotten_scope_is_named_and_the_caret_is_on_the_operand() -> None:
    with pytest.raises(tile.ContractError) as caught:
        without_scope.check(torch.zeros(2, 32, 4))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "ld_st/owner"
    assert 'did you mean scope="cta"?' in dict(diagnostic.notes)["help"]
    assert diagnostic.span is not None
    source = Path(__file__).read_text().splitlines()[diagnostic.span.line - 1]
    assert source[diagnostic.span.col : diagnostic.span.end_col] == "r"
    text = diagnostic.render().splitlines()
    line = next(t for t in text if "T.cuda.tile.apply" in t)
    caret = next(t for t in text if t.strip().endswith("^"))
    assert line[caret.index("^")] == "r"


@tile.jit
def constant_destination(H: T.Tensor((8,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    old = T.int32(0)
    T.ptx["atom.global.add.s32"](old, H.ptr_to([0]), 1)


def test_a_constant_as_destination_says_what_to_write_instead() -> None:
    with pytest.raises(tile.ContractError) as caught:
        constant_destination.check(torch.zeros(8, dtype=torch.int32))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "ptx/destination"
    assert "r[0]" in dict(diagnostic.notes)["help"]


@tile.jit
def names_in_layouts(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((4, 32), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    R, S = 4, 1
    r = T.alloc_local((R, 32, 1), "float32", layout="(R,32,S):(S,1@laneid,R)")
    lanes = X.view(R, 32, S).permute(1, 0, 2)
    out = Y.view(R, 32, S).permute(1, 0, 2)
    T.cuda.tile.apply(T.ptx["ld.global.b32"], r.permute(1, 0, 2), lanes, scope="warp")
    T.cuda.tile.apply(T.ptx["st.global.b32"], out, r.permute(1, 0, 2), scope="warp")


def test_any_name_may_stand_in_a_layout(device: str) -> None:
    x = torch.arange(128.0, device=device).view(4, 32)
    y = torch.zeros_like(x)
    names_in_layouts(x, y)
    assert torch.equal(x, y)


@tile.jit
def folded(X: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "int32"), function: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    Y[t] = function(X[t], 3)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor"])
def test_functions_of_operator_are_the_operators(device: str, name: str) -> None:
    function = getattr(operator, name)
    x = torch.arange(-16, 16, dtype=torch.int32, device=device)
    y = torch.zeros_like(x)
    folded(x, y, function)
    assert y.tolist() == [function(v, 3) for v in x.tolist()]


@tile.jit
def many_repeats(count: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    r = T.alloc_local((count, 1), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["mov.f32"], r, 0.0)


def test_repeats_have_a_limit() -> None:
    many_repeats.check(4096)
    with pytest.raises(tile.ContractError) as caught:
        many_repeats.check(4097)
    assert caught.value.codes == ("tile/too-many-repeats",)
