"""Saved kernels: the round trip through a file, launches like those of the kernel itself by both
launchers, what differs from the signature, files that are none. On a GPU: the numbers."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.conftest import need_gpu
from tests.runtime.fakes import Gpu, Steps, cuda_tensor, gpu, jit
from tests.runtime.launchers import BOTH, launcher
from tests.runtime.test_tensor_maps import moving, of_sizes, rows
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.ir.signature import ConstArg, Signature
from tilejit.kernels import add, softmax
from tilejit.kernels import rows as row_plans
from tilejit.language import T
from tilejit.runtime import cache, saved
from tilejit.runtime.loaded import LoadedKernel
from tilejit.target import Target


@pytest.fixture(params=BOTH)
def machine(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    with launcher(request.param), gpu() as g:
        g.uses_c = request.param == "c"  # type: ignore[attr-defined]
        yield g


@dataclass(frozen=True)
class Plan:
    width: int


def scale(
    X: T.Tensor((T.dynamic("M"), "N"), "float32"),
    Y: T.Tensor((T.dynamic("M"), "N"), align=16) | None,
    a: T.float32,
    n,
    plan: T.constexpr = Plan(2),
    step: T.constexpr = 4,
): ...


def own(v: dict[str, ir.Var]) -> tuple[ir.Expr, ...]:
    """ceil(M / 2) CTAs."""
    raised = ir.Binary("add", v["M"], ir.Const(1, ir.INT64), ir.INT64)
    return (ir.Binary("floordiv", raised, ir.Const(2, ir.INT64), ir.INT64),)


def callers(v: dict[str, ir.Var]) -> None:
    return None


def through_a_file(variant: Any, folder: Path) -> LoadedKernel:
    return tile.load(variant.save(folder / "kernel.tile"))


def faults(k: Any, *args: Any, **keywords: Any) -> dict[str, str]:
    with pytest.raises(LaunchError) as caught:
        k(*args, **keywords)
    return {d.code: d.message for d in caught.value.diagnostics}


# --- the round trip


def compiled_softmax() -> Any:
    x, y = (torch.empty(6, 256, dtype=torch.bfloat16) for _ in range(2))
    return softmax.softmax_rows.compile(x, y, row_plans.plan_for("softmax", x, y), target="sm_90a")


def compiled_tma() -> Any:
    return jit(moving, Steps(tensor_maps=of_sizes)).compile(
        torch.empty(8, 32)[:, :24], 2, target="sm_100a"
    )


def compiled_with_options() -> Any:
    config = T.cuda.LaunchConfig(
        grid=(4, 2), block=(64, 2), cluster=(2, 1, 1), cooperative=True,
        programmatic_stream_serialization=True,
    )  # fmt: skip
    k = jit(scale, Steps(grid=callers, dynamic_shared_bytes=60_000))
    return k[config].compile(torch.empty(3, 8), None, 1.0, 1 << 40, Plan(3), target="sm_90a")


MADE = {"compiled": compiled_softmax, "maps": compiled_tma, "options": compiled_with_options}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_packed_is_unpacked(make: Any) -> None:
    variant = make()
    before = saved.of(variant)
    after = saved.unpack(saved.pack(variant))
    assert after.artifact == before.artifact and after.artifact.cubin == variant.cubin
    assert after.launch == before.launch and after.attributes == before.attributes
    assert after.launch_params == before.launch_params and after.shaped == before.shaped
    assert after.params == before.params
    for (name, kept), (wanted_name, wanted) in zip(
        after.signature.args, variant.signature.args, strict=True
    ):
        if isinstance(wanted, ConstArg) and isinstance(kept.value, saved.Opaque):
            assert (name, repr(kept.value)) == (wanted_name, repr(wanted.value))
        else:
            assert (name, kept) == (wanted_name, wanted)
    assert saved.to_bytes(after) == saved.to_bytes(before)


def test_the_header_reads_as_json(tmp_path: Path) -> None:
    path = compiled_softmax().save(str(tmp_path / "softmax.tile"))
    data = path.read_bytes()
    start = data.index(b"{")
    header, _ = json.JSONDecoder().raw_decode(data[start:].decode("utf-8", "ignore"))
    facts = header["facts"]
    assert facts["target"] == "sm_90a" and facts["kernel"] == "softmax_rows"
    assert facts["signature"][0] == {
        "name": "X", "kind": "tensor", "dtype": "bfloat16", "shape": [None, 256], "strides": [256, 1],
        "align_bytes": 16,
    }  # fmt: skip


def test_a_loaded_kernel_tells_what_it_is(tmp_path: Path) -> None:
    variant = compiled_softmax()
    k = through_a_file(variant, tmp_path)
    assert str(k.stats) == str(variant.stats)
    for stage in ("cuda", "ptx", "cubin"):
        assert k.asm[stage] == variant.asm[stage]
    assert list(k.asm) == ["cuda", "ptx", "sass", "cubin"] and k.target == "sm_90a"
    assert repr(k) == "<saved tile kernel softmax_rows for sm_90a>"
    with pytest.raises(KeyError, match="no stage 'ir'"):
        k.asm["ir"]
    unlooked = LoadedKernel(saved.unpack(saved.pack(variant)))
    assert unlooked.stats.bank_conflicts == ("bank conflicts: not kept when this kernel was saved",)


def test_a_child_unpacks_without_torch_or_frontend(tmp_path: Path) -> None:
    path = compiled_softmax().save(tmp_path / "softmax.tile")
    code = (
        "import sys\nfrom tilejit.runtime import saved\n"
        f"s = saved.read({str(path)!r})\nassert s.artifact.entry and s.params[0].annotation.shape\n"
        "for name in ('torch', 'tilejit.frontend', 'tilejit.tile', 'tilejit.pipeline'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- launches


def warm(g: Any, k: Any, *args: Any) -> Any:
    for _ in range(3):
        k(*args)
    before = getattr(g.recorder, "through_c", 0)
    k(*args)
    assert getattr(g.recorder, "through_c", 0) == before + g.uses_c
    return g.recorder.launches[-1]


def test_it_launches_as_the_kernel_itself(machine: Gpu, tmp_path: Path) -> None:
    k = jit(scale, Steps(grid=own, dynamic_shared_bytes=2048))
    x, y = cuda_tensor(7, 8), cuda_tensor(7, 8, address=0x20000)
    expected = warm(machine, k, x, y, 2.5, 3)
    loaded = through_a_file(k.latest, tmp_path)
    launch = warm(machine, loaded, x, y, 2.5, 3)
    assert launch == expected and launch.grid == (4, 1, 1)
    # Another size, a named argument, constants given and left out: no second load.
    count = len(machine.recorder.loaded)
    big, other = cuda_tensor(9, 8), cuda_tensor(9, 8, address=0x30000)
    loaded(big, other, 2.5, n=3, plan=Plan(2), step=4)
    assert machine.recorder.launches[-1].grid == (5, 1, 1)
    assert machine.recorder.launches[-1].slots[:2] == (0x10000, 0x30000)
    loaded.bind(big, other, 2.5, 3)()
    assert machine.recorder.launches[-1] == machine.recorder.launches[-2]
    assert len(machine.recorder.loaded) == count


def test_maps_are_encoded_for_each_launch(machine: Gpu, tmp_path: Path) -> None:
    k = jit(moving, Steps(tensor_maps=of_sizes))
    x = rows(8, 24, 32)
    warm(machine, k, x, 2)
    loaded = through_a_file(k.latest, tmp_path)
    warm(machine, loaded, x, 2)
    for args in ((rows(9, 24, 32, 0x2000), 5), (rows(8, 20, 64), 2)):
        k(*args)
        loaded(*args)
        mine, its = machine.recorder.launches[-2:]
        assert mine.maps == its.maps and mine.slots == its.slots


def test_the_callers_grid(machine: Gpu, tmp_path: Path) -> None:
    k = jit(scale, Steps(grid=callers))
    x = cuda_tensor(7, 8)
    loaded = through_a_file(
        k[(4, 3)].compile(torch.empty(7, 8), None, 1.0, 3, target="sm_90a"), tmp_path
    )
    for grid in ((4, 3), [2], lambda given: (given["X"].shape[0] // 2, given["step"] - 1)):
        loaded[grid](x, None, 1.0, 3)
        loaded[grid](x, None, 1.0, 3)
    grids = [launch.grid for launch in machine.recorder.launches]
    assert grids == [(4, 3, 1), (4, 3, 1), (2, 1, 1), (2, 1, 1), (3, 3, 1), (3, 3, 1)]
    before = len(machine.recorder.launches)
    loaded[0](x, None, 1.0, 3)
    loaded[0].bind(x, None, 1.0, 3)()
    assert len(machine.recorder.launches) == before
    for _ in range(2):
        assert faults(loaded[(5, 1)], x, None, 1.0, 3) == {
            "saved/grid": "scale was checked for grids up to (4, 3, 1) CTAs, this launch has (5, 1, 1)"
        }
    assert "launch/no-grid" in faults(loaded, x, None, 1.0, 3)


def test_an_empty_tensor_needs_an_empty_grid(machine: Gpu, tmp_path: Path) -> None:
    k = jit(scale, Steps(grid=own))
    loaded = through_a_file(k.compile(torch.empty(7, 8), None, 1.0, 3, target="sm_90a"), tmp_path)
    empty = cuda_tensor(0, 8)
    loaded(empty, None, 1.0, 3)
    assert machine.recorder.launches == []
    assert "launch/empty" in faults(loaded[2], empty, None, 1.0, 3)


# --- what differs

CASES: dict[str, tuple[Any, str, str]] = {
    "dtype": (lambda: dict(X=cuda_tensor(7, 8, dtype=torch.float16)), "launch/dtype", "'X' is float16, expected float32"),
    "size": (lambda: dict(Y=cuda_tensor(7, 9)), "launch/shape", "dimension 1 of 'Y' is 9, expected 8"),
    "rank": (lambda: dict(X=cuda_tensor(7)), "launch/rank", "'X' has 1 dimensions, expected 2"),
    "named size": (lambda: dict(Y=cuda_tensor(6, 8)), "launch/shape", "M is 7 in dimension 0 of 'X' but 6 in dimension 0 of 'Y'"),
    "address": (lambda: dict(X=cuda_tensor(7, 8, address=0x10004)), "launch/align", "starts at address 0x10004"),
    "strides": (lambda: dict(X=cuda_tensor(like=torch.empty(7, 16)[:, ::2])), "saved/stride", "the stride of dimension 1 of 'X' is 2 elements, the saved kernel was compiled for 1"),
    "scalar": (lambda: dict(a="2"), "launch/scalar", "a run-time argument is a number"),
    "wide": (lambda: dict(n=1 << 40), "launch/range", "does not fit int32"),
    "constant": (lambda: dict(step=5), "saved/constant", "'step' is 5, the saved kernel was compiled for 4"),
    "constant's type": (lambda: dict(step=4.0), "saved/constant", "'step' is 4.0"),
    "opaque constant": (lambda: dict(plan=Plan(3)), "saved/constant", "'plan' is Plan(width=3), the saved kernel was compiled for Plan(width=2)"),
    "None": (lambda: dict(Y=None), "launch/none", "'Y' cannot be None"),
    "missing": (lambda: dict(Y=..., a=...), "launch/missing-argument", "no argument for parameter"),
    "unknown": (lambda: dict(Z=3), "launch/unknown-argument", "no parameter 'Z'"),
    "host": (lambda: dict(X=torch.empty(7, 8), Y=torch.empty(7, 8)), "saved/simulate", "X, Y: on the CPU"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "code", "message"), CASES.values(), ids=CASES)
def test_an_argument_that_differs_is_named(
    machine: Gpu, tmp_path: Path, change: Any, code: str, message: str
) -> None:
    k = jit(scale, Steps(grid=own))
    good = dict(X=cuda_tensor(7, 8), Y=cuda_tensor(7, 8), a=2.0, n=3)
    k(**good)
    loaded = through_a_file(k.latest, tmp_path)
    loaded(**good)
    wrong = {name: v for name, v in {**good, **change()}.items() if v is not ...}
    for _ in range(2):
        found = faults(loaded, **wrong)
        assert message in found[code], found
    count = len(machine.recorder.launches)
    loaded(**good)
    assert len(machine.recorder.launches) == count + 1


def test_every_difference_is_told_at_once(machine: Gpu, tmp_path: Path) -> None:
    k = jit(scale, Steps(grid=own))
    k(cuda_tensor(7, 8), None, 2.0, 3)
    loaded = through_a_file(k.latest, tmp_path)
    x = cuda_tensor(like=torch.empty(7, 16)[:, ::2])
    found = faults(loaded, x, x, 2.0, 3, Plan(9), 5)
    assert set(found) == {"saved/stride", "saved/constant"}
    with pytest.raises(LaunchError) as caught:
        loaded(x, x, 2.0, 3, Plan(9), 5)
    assert [m.message.split("'")[1] for m in caught.value.diagnostics] == ["X", "X", "Y", "plan", "step"]  # fmt: skip


def test_better_aligned_and_single_elements_fit(machine: Gpu, tmp_path: Path) -> None:
    def open_(X, n: T.int32): ...

    k = jit(open_, Steps())
    k(cuda_tensor(1, 8, address=0x10008), 1)
    loaded = through_a_file(k.latest, tmp_path)
    loaded(cuda_tensor(1, 8, address=0x10010), 1)
    loaded(cuda_tensor(like=torch.empty(4, 16)[:1, :8], address=0x10008), 1)
    assert len(machine.recorder.launches) == 3
    assert "launch/align" in faults(loaded, cuda_tensor(1, 8, address=0x10004), 1)


def test_another_gpu_and_a_capture(machine: Gpu, tmp_path: Path) -> None:
    k = jit(scale, Steps(grid=own))
    x = torch.empty(7, 8)
    loaded = through_a_file(k.compile(x, None, 1.0, 3, target="sm_100a"), tmp_path)
    assert faults(loaded, cuda_tensor(7, 8), None, 1.0, 3) == {
        "launch/target": "scale is compiled for sm_100a; cuda:0 is sm_90a"
    }
    loaded = through_a_file(k.compile(x, None, 1.0, 3, target="sm_90"), tmp_path)
    machine.capturing = True
    assert faults(loaded, cuda_tensor(7, 8), None, 1.0, 3) == {
        "launch/capture": "scale would be loaded inside a CUDA graph capture"
    }
    machine.capturing = False
    loaded(cuda_tensor(7, 8), None, 1.0, 3)
    machine.capturing = True
    loaded(cuda_tensor(7, 8), None, 1.0, 3)
    assert len(machine.recorder.launches) == 2


@pytest.mark.parametrize(
    ("made", "runs", "refused"),
    [
        ("sm_90a", ["sm_90a"], ["sm_90", "sm_100a", "sm_89"]),
        ("sm_100a", ["sm_100a"], ["sm_103a", "sm_90a", "sm_120a"]),
        ("sm_100f", ["sm_100a", "sm_103a"], ["sm_110a", "sm_120a", "sm_90a"]),
        ("sm_103f", ["sm_103a"], ["sm_100a"]),
        ("sm_100", ["sm_100a", "sm_103a"], ["sm_90a", "sm_110a"]),
        ("sm_80", ["sm_80", "sm_86", "sm_89"], ["sm_90a"]),
        ("sm_86", ["sm_86", "sm_89"], ["sm_80", "sm_90a"]),
    ],
)
def test_machine_code_runs_on_its_own_gpus(made: str, runs: list[str], refused: list[str]) -> None:
    target = Target.parse(made)
    assert all(target.runs_on(Target.parse(name)) for name in runs)
    assert not any(target.runs_on(Target.parse(name)) for name in refused)


def test_constants_of_all_kinds_come_back(tmp_path: Path) -> None:
    values = (
        None, True, 3, -0.0, float("inf"), "text", tile.T.bfloat16, (1, ("a", 2.0)), frozenset({1, 2}),
        Plan(1), (Plan(1), 2), 3j,
    )  # fmt: skip

    def constant(X, value: T.constexpr): ...

    x = torch.empty(4)
    with gpu() as g:
        k = jit(constant, Steps())
        for value in values:
            loaded = through_a_file(k.compile(x, value, target="sm_90a"), tmp_path)
            loaded(cuda_tensor(4), value)
            loaded(cuda_tensor(4))
            assert "saved/constant" in faults(loaded, cuda_tensor(4), "other")
        assert len(g.recorder.launches) == 2 * len(values)
    kept = dict(loaded.signature.args)["value"]
    assert isinstance(loaded.signature, Signature) and repr(kept.value) == "3j"


# --- files


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = compiled_tma().save(tmp_path / "kernel.tile")
    data = path.read_bytes()
    generator = random.Random(1)
    damaged = [data[:n] for n in (0, 1, 20, len(data) // 2, len(data) - 1)]
    damaged += [data + b"\0", b"\x7fELF" + data[4:]]
    for _ in range(20):
        at = generator.randrange(len(data))
        damaged.append(
            data[:at] + bytes((data[at] ^ 1 << generator.randrange(8),)) + data[at + 1 :]
        )
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(LaunchError, match=r"saved/damaged") as caught:
            tile.load(path)
        assert str(path) in caught.value.diagnostics[0].message
        assert "save the kernel again" in str(caught.value)


def test_other_files_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = compiled_tma()
    path = tmp_path / "kernel.tile"
    path.write_bytes(cache.pack("key", variant.artifact.to_entry()))
    with pytest.raises(LaunchError, match=r"saved/kind.*is an entry of the disk cache"):
        tile.load(path)
    with pytest.raises(LaunchError, match=r"saved/read.*none\.tile cannot be read: No such file"):
        tile.load(tmp_path / "none.tile")
    with pytest.raises(LaunchError, match=r"saved/write.*cannot be written"):
        variant.save(tmp_path / "no folder" / "kernel.tile")
    for nowhere in ("", "/", tmp_path, "zero\0byte"):
        with pytest.raises(LaunchError, match=r"saved/write.*cannot be written"):
            variant.save(nowhere)
    with pytest.raises(LaunchError, match=r"saved/read.*cannot be read: embedded null byte"):
        tile.load("zero\0byte")
    with monkeypatch.context() as m:
        m.setattr(saved, "FORMAT", 2)
        variant.save(path)
    with pytest.raises(
        LaunchError, match=r"saved/format.*has format 2, this tilejit reads format 1"
    ):
        tile.load(path)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = compiled_tma().save(tmp_path / "kernel.tile")
    compiled_softmax().save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["kernel.tile"]
    assert tile.load(path).target == "sm_90a"


# --- on a GPU


@pytest.mark.gpu
def test_a_loaded_kernel_computes(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    need_gpu(request.config)
    target = tile.target_of(torch.device("cuda")).name
    x = torch.randn(37, 256, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    plan = row_plans.plan_for("softmax", x, y)
    loaded = through_a_file(softmax.softmax_rows.compile(x, y, plan, target=target), tmp_path)
    for _ in range(3):
        y.zero_()
        loaded(x, y, plan)
        torch.testing.assert_close(y, torch.softmax(x, -1))
    a, b, c = (torch.randn(1000, device="cuda") for _ in range(3))
    summed = through_a_file(add.add_scalars.compile(a, b, c, target=target), tmp_path)
    graph = torch.cuda.CUDAGraph()
    summed(a, b, c)
    with torch.cuda.graph(graph):
        summed(a, b, c)
    c.zero_()
    graph.replay()
    torch.testing.assert_close(c, a + b)
    assert "launch/shape" in faults(summed, a[:999], b[:999], c[:999])


def test_a_plan_of_a_saved_kernel_needs_only_a_driver() -> None:
    variant = jit(scale, Steps(grid=own)).compile(torch.empty(7, 8), None, 1.0, 3, target="sm_90a")
    unpacked = saved.unpack(saved.pack(variant))
    with gpu() as g:
        plan = unpacked.plan(g.recorder, 0, lambda device: 11)
        given = unpacked.plan(g.recorder, 0, lambda device: 11, caller_grid=True)
    shape, strides = (6, 8), (8, 1)
    plan.run(None, 0x1000, shape, strides, None, None, None, 1.0, 3, None, None)
    given.run((2, 1, 1), 0x1000, shape, strides, None, None, None, 1.0, 3, None, None)
    first, second = g.recorder.launches
    assert (first.grid, first.stream, second.grid) == ((3, 1, 1), 11, (2, 1, 1))
    assert first.slots == second.slots and first.slots[0] == 0x1000
    small = replace(unpacked, artifact=replace(unpacked.artifact, dynamic_shared_bytes=1 << 20))
    with pytest.raises(LaunchError, match="launch/shared-memory"):
        small.plan(g.recorder, 0, lambda device: 11)
