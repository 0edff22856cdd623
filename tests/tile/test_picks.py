"""A run-time index of ``.sub`` stays in its axis where an instruction uses the view, wherever the
address lies: the buffers here hold more than the axes that indices leave."""

from __future__ import annotations

import pytest

from tests.frontend.kernels import lower, tensor
from tilejit import dtypes
from tilejit.families import FAMILIES
from tilejit.ir import nodes, walk
from tilejit.ir.signature import ScalarArg, TensorArg
from tilejit.tile import checker

HEAD = """
def k(X: T.Tensor((64, 32), "float32", align=16), Y: T.Tensor((T.dynamic("M"), 32), "float32", align=16),
      Z: T.Tensor((64, T.dynamic("N")), "float32", align=16), n: T.int32):
    _, N = Z.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((4,), "float32", layout="default")
    S = T.alloc_shared((8, 64, 4), "float32", layout="default", align=128)
    ring = S.sub[0:4, :, :]
"""


def lowered(*lines: str) -> nodes.Function:
    source = HEAD + "".join(f"    {line}\n" for text in lines for line in text.split("\n"))
    args = {
        "X": tensor("float32", 64, 32),
        "Y": TensorArg(dtypes.float32, (None, 32), (32, 1), 16),
        "Z": TensorArg(dtypes.float32, (64, None), (None, 1), 16),
        "n": ScalarArg(dtypes.int32),
    }
    return lower(source, **args).function


def fault(*lines: str) -> str:
    """The one fault, rendered."""
    (found,) = checker.diagnose(lowered(*lines), FAMILIES)
    assert found.code == "tile/bounds"
    return found.render()


def right(*lines: str) -> None:
    assert checker.diagnose(lowered(*lines), FAMILIES) == []


def shared(view: str, registers: str = "r") -> str:
    return f'T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], {registers}, {view})'


def loaded(view: str, registers: str = "r") -> str:
    return f'T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], {registers}, {view})'


WORDS = 'T.cuda.tile.apply(T.ptx["ld.global.b32"], r.view(4, 1), {})'
USES = [
    (shared("ring.sub[n, t, :]"), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[n : n + 1, t, :]", "r.view(1, 4)"), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[n : n + 3, t, :].sub[2, :]"), 2, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[:, t, :].sub[n, :]"), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.permute(1, 0, 2).sub[t, n, :]"), 4, "axis 1 of S, whose extent is 4"),
    (shared("ring.view(2, 2, 64, 4).sub[n, 0, t, :]"), 2, "axis 0 of S, whose extent is 2"),
    (shared("ring.view(2, 2, 64, 4).sub[0, n, t, :]"), 2, "axis 1 of S, whose extent is 2"),
    (shared("ring.sub[n, :, :].permute(1, 0).sub[:, t]"), 4, "axis 0 of S, whose extent is 4"),
    (shared('ring.sub[n, :, :].view("uint8").view("uint32").sub[t, :]'), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[n, :, :].view(32, 8).sub[t // 2, t % 2 * 4 : t % 2 * 4 + 4]"), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[n, :, :].view(64, 4, layout='(64,4):(4,1)').sub[t, :]"), 4, "axis 0 of S, whose extent is 4"),
    (shared("ring.sub[n, :, :][t, :]", "r.view(1, 4)"), 4, "axis 0 of S, whose extent is 4"),
    (loaded("X.sub[:, 0:16].sub[t, 4 * n : 4 * n + 4]"), 4, "axis 1 of X, whose extent is 16"),
    (loaded("Y.sub[0, 0:16].sub[4 * n : 4 * n + 4]"), 4, "axis 0 of Y, whose extent is 16"),
    (WORDS.format("X.sub[0:32, n : n + 13 : 4].view(32, 4, 1).sub[t % 32, :, :]"), 20, "axis 1 of X, whose extent is 32"),
    (WORDS.format("X.sub[0:32, n::8].view(32, 4, 1).sub[t % 32, :, :]"), 8, "axis 1 of X, whose extent is 32"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "count", "axis"), USES)
def test_the_nearest_index_outside_is_refused(use: str, count: int, axis: str) -> None:
    right(f"T.assume(0 <= n and n < {count})", use)
    text = fault(f"T.assume(0 <= n and n <= {count})", use)
    assert f"an index of .sub may leave {axis}" in text and "T.assume" in text
    assert "≥ 0" in fault(f"T.assume(-1 <= n and n < {count})", use)


def test_the_buffer_has_more_than_the_axis() -> None:
    """What the tests above rely on: the same addresses are right where the axis is long enough."""
    right("T.assume(0 <= n and n <= 4)", shared("S.sub[n, t, :]"))


def test_a_compile_time_index_of_a_run_time_axis() -> None:
    words = WORDS.format("Z.sub[t, 0:8].view(8, 1).sub[0:4, :]")
    right("T.assume(N >= 8)", words)
    assert "could not prove 0 + 8 ≤ N" in fault("T.assume(N >= 7)", words)
    right(WORDS.format("Z.sub[t, 0:1].view(1, 1)").replace("r.view(4, 1)", "r.sub[0:1].view(1, 1)"))
    right("T.assume(n >= 0 and n < N - 3)", WORDS.format("Z.sub[t, n : n + 4].view(4, 1)"))
    fault("T.assume(n >= 0 and n < N - 2)", WORDS.format("Z.sub[t, n : n + 4].view(4, 1)"))


def test_a_certain_fault_names_a_thread_and_its_index() -> None:
    text = fault(shared("ring.sub[t // 15, t, :]"))
    assert ".sub[4] is outside axis 0 of S, whose extent is 4" in text
    assert "thread 60 (warp 1, lane 28)" in text
    part = shared("ring.sub[t // 16 : t // 16 + 2, t, :].sub[0, :]")
    assert ".sub[3 : 5] is outside axis 0 of S" in fault(part)
    assert ".sub[-1] is outside" in fault(shared("S.sub[4:8, :, :].sub[t - 1, t, :]"))


def test_what_a_loop_and_a_guard_say_is_enough() -> None:
    right("for i in range(4):", "    " + shared("ring.sub[i, t, :]"))
    text = fault("for i in range(5):", "    " + shared("ring.sub[i, t, :]"))
    assert "i = 4" in text and ".sub[4]" in text
    right("if 0 <= n and n < 4:", "    " + shared("ring.sub[n, t, :]"))
    right("if t < 60:", "    " + shared("ring.sub[t // 15, t, :]"))


def test_a_view_is_no_access() -> None:
    bad = "beyond = ring.sub[n, t, :]"
    right(bad, "r[0] = 1.0")
    right(bad, "if 0 <= n and n < 4:", "    " + shared("beyond"))
    fault(bad, shared("beyond"))
    right("if t > 64:", "    " + shared("ring.sub[4 + t, t, :]"))


def test_every_operand_is_looked_at() -> None:
    """A pick of ewise's input; of registers laid out before at the same place."""
    local = 'L = T.alloc_local((8, 4), "float32", layout="default")'
    add = "T.cuda.tile.ewise(lambda a: a, r, L.sub[0:{}, :].sub[i, :])"
    first = "T.cuda.tile.ewise(lambda a: a, r, L.sub[4, :])"
    loop = "for i in range(4, 5):"
    right(local, loop, f"    {first}", "    " + add.format(5))
    text = fault(local, loop, f"    {first}", "    " + add.format(4))
    assert ".sub[4] is outside axis 0 of L, whose extent is 4" in text


def test_the_tensor_of_a_map() -> None:
    boxed = (
        'full = T.alloc_shared((1,), "uint64", align=8)\n'
        "if t == 0:\n"
        '    T.cuda.tile.apply(T.ptx["cp.async.bulk.tensor.2d.shared::cta.global.tile'
        '.mbarrier::complete_tx::bytes"], S.sub[0].view(8, 32), X.view(4, 16, 32).sub[n], '
        "box=(8, 32), coords=(0, 0), mbar=full.ptr_to([0]))"
    )
    right("T.assume(0 <= n and n < 4)", boxed)
    assert "axis 0 of X, whose extent is 4" in fault("T.assume(0 <= n and n <= 4)", boxed)


def test_a_view_keeps_the_index_of_its_time_once() -> None:
    """The offset and the pick read one variable: nothing more is computed than without picks."""
    function = lowered(
        "stage = n", "for _ in range(n):", "    place = ring.sub[stage, t, :]", "    stage += 1",
        "    if stage <= 4 and stage >= 1:", "        " + shared("place"),
    )  # fmt: skip
    assert checker.diagnose(function, FAMILIES) != []  # of the index of that time nothing is known
    (view,) = (v for v in walk.descend(function.body) if isinstance(v, nodes.View) and v.picks)
    index, _ = view.picks
    kept = walk.variables(index.index)
    assert kept and kept < walk.variables(view.offset_elems) | {"tid"} and "stage" not in kept
    declared = [s.var.name for s in walk.statements(function.body) if isinstance(s, nodes.Declare)]
    assert len([name for name in declared if name.startswith("place")]) == 1
