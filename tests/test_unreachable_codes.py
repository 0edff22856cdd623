"""Codes that no right toolchain and no kernel of a user raises: each is raised here by itself.

Their pages in ``docs/errors`` name these tests. Not here: codes that a kernel raises (its page's own example).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.tile import kit
from tilejit import dtypes
from tilejit.cuda import scalars
from tilejit.errors import CompileError, InternalError, TuneError
from tilejit.families import ewise
from tilejit.ir import nodes, wellformed
from tilejit.runtime import elf, nvrtc, plan
from tilejit.runtime.elf import Resources
from tilejit.sim import expr, machine
from tilejit.tile import addresses, checker, facts, raw_only
from tilejit.tile.affine import Affine
from tilejit.tile.fragments import Fragment
from tilejit.tune import session

SYNC = nodes.Evaluate(nodes.Call("cuda.cta_sync", (), nodes.VOID))
TENSOR = nodes.TensorType((4,), dtypes.float32, None, "global", 16)


def function(*body: nodes.Stmt) -> nodes.Function:
    return nodes.Function("k", (), nodes.LaunchConfig(None, (32,)), body, "sm_90a")


def fragment() -> object:
    """Two registers of each lane that hold one element."""
    return Fragment.of((32, 2), 2, lambda lane, register: (lane, 0))


def two_places() -> None:
    facts._refuse_shared((SYNC, SYNC))


def unchecked() -> object:
    return checker.Checked(function(SYNC), {}).steps(SYNC.call)


def raw_alone() -> object:
    family = raw_only.raw_family("bar", "docs", lambda issue, machine: None, "yes")
    return family.bind(SimpleNamespace(span=None))  # type: ignore[arg-type]


def unknown_variable() -> object:
    """A scalar parameter that the call has no argument for."""
    return plan._launch_param(nodes.Var("n", nodes.INT32), {}, {})


def no_memory() -> object:
    """An instruction that takes a register for an address."""
    form = SimpleNamespace(spelling="ld.global.b32")
    fake = SimpleNamespace(_call=SimpleNamespace(issue=SimpleNamespace(form=form)))
    fake._prepared = lambda operand: None
    fake._misuse = lambda what: machine.SimMachine._misuse(fake, what)  # type: ignore[arg-type]
    return machine.SimMachine._memory(fake, None)  # type: ignore[arg-type]


def no_family() -> object:
    """A copy by an instruction whose family no module implements."""
    X = kit.whole(kit.buffer("x", (4,), "float32", "global"))
    R = kit.whole(kit.buffer("r", (4,)))
    return checker.check(kit.kernel(kit.apply("ld.global.b32", R, X)), {})


def another_address() -> None:
    """An address built from another expression than the one that was checked."""
    laid = SimpleNamespace(
        dynamic=False, period_multiple=1, symbolic=Affine(0), operand=SimpleNamespace(name="x"),
        group=SimpleNamespace(threads=np.arange(2)),
    )  # fmt: skip
    starts = SimpleNamespace(laid=laid, places=np.zeros((2, 1)), index=0)
    evaluator = SimpleNamespace(integer=lambda expression: Affine(4))
    call = SimpleNamespace(span=None, evaluator=evaluator, group=laid.group)
    addresses._verify(call, starts, 0, kit.i32(4))  # type: ignore[arg-type]


def no_scalar() -> object:
    return expr.dtype_of(TENSOR)


CASES: dict[str, Any] = {
    "internal/ewise": lambda: ewise.execute(SimpleNamespace(span=None), None),  # type: ignore[arg-type]
    "internal/fragment": fragment,
    "internal/raw-only": raw_alone,
    "internal/shared-call": two_places,
    "internal/unchecked": unchecked,
    "cuda/unsupported": lambda: (_ for _ in ()).throw(scalars.unsupported("a tensor as a number", None)),
    "elf/format": lambda: elf.read(b"nothing", "k"),
    "runtime/parameter": unknown_variable,
    "sim/type": no_scalar,
    "sim/operand": no_memory,
    "internal/family": no_family,
    "internal/address": another_address,
    "ir/malformed": lambda: wellformed.verify(function(SYNC, nodes.Break())),
}  # fmt: skip


@pytest.mark.parametrize("code", CASES)
def test_defects_say_that_they_are(code: str) -> None:
    with pytest.raises(InternalError) as caught:
        CASES[code]()
    assert caught.value.codes == (code,)


def test_a_cubin_without_the_kernel() -> None:
    cubin = nvrtc.compile_cubin('extern "C" __global__ void k() {}', "sm_90a", "k").cubin
    with pytest.raises(InternalError) as caught:
        elf.read(cubin, "other")
    assert caught.value.codes == ("elf/entry",)


@pytest.mark.parametrize(
    "code",
    ["nvrtc/C7511", "nvrtc/C7512", "nvrtc/C7513", "nvrtc/C7514", "nvrtc/C7515", "nvrtc/C7516",
     "nvrtc/C7517", "nvrtc/C7518", "nvrtc/C7519"],
)  # fmt: skip
def test_numbered_messages_of_the_assembler(code: str) -> None:
    """Each comes with what it means and what helps, at the line that it names."""
    number = code.partition("/")[2]
    log = f"ptxas info    : ({number}) Potential Performance Loss, around line 2 in function 'k'"
    ptx = "add;\nwgmma; // tilejit:op=1 /user/k.py:7"
    (warning,) = nvrtc._warnings(log, ptx, Resources(*[0] * 8))
    assert warning.code == code and "; " in warning.message
    assert warning.span is not None and warning.span.line == 7


def test_what_the_compiler_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log without a known message is shown whole: nvrtc/failed. A failed function: nvrtc/api."""
    (unknown,) = nvrtc._diagnostics("internal error 7", "", "", "NVRTC_ERROR_INTERNAL_ERROR")
    assert unknown.code == "nvrtc/failed" and "internal error 7" in unknown.message
    monkeypatch.setattr(nvrtc, "_call", lambda name, *arguments: (3, None))
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin("", "sm_90a", "k")
    assert caught.value.codes == ("nvrtc/api",)


def test_the_model_needs_the_whole_launch() -> None:
    """``tune/no-grid`` without a grid, ``tune/unknown-size`` where it depends on what nothing tells."""
    size = nodes.Var("m", nodes.INT64)
    for grid, code in ((None, "tune/no-grid"), ((size,), "tune/unknown-size")):
        launch = nodes.LaunchConfig(grid, (32,))
        variant = SimpleNamespace(function=nodes.Function("k", (), launch, (), "sm_90a"))
        kernel = SimpleNamespace(params=(), __name__="k")
        candidate = SimpleNamespace(variant=variant, grid=None)
        with pytest.raises(TuneError) as caught:
            session._launch(SimpleNamespace(kernel=kernel), candidate)  # type: ignore[arg-type]
        assert caught.value.codes == (code,)
