"""What of the benchmarks needs no GPU: their checks, the command line, the README's tables."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import (
    bench_attention,
    bench_compile,
    bench_gemm,
    bench_ladder,
    bench_launch,
    bench_matmul,
    harness,
    run,
    summary,
)
from tilejit.kernels import rows, softmax
from tilejit.runtime.variant import Variant
from tilejit.testing import card, timing

ENVIRONMENT = {"gpu": "G", "date": "D", "driver": "1", "torch": "2", "triton": "3"}


def fixed(seconds: dict[str, float]) -> timing.TimeBy:
    """A clock that says ``seconds`` of each contender it is given."""
    return lambda contenders: {n: timing.Timing(*[seconds[n]] * 3) for n in contenders}


# --- checks


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_matmul_check(layout: str) -> None:
    case = bench_matmul.case(layout, 64, 48, 32, device="cpu")
    assert case.flops == 2 * 64 * 48 * 32 and case.moved_bytes == 2 * (64 * 32 + 32 * 48 + 64 * 48)
    assert case.checks["cublas"]() is None
    check: Any = case.checks["cublas"]
    assert "nan" in check.func(lambda: None), "nothing written must not pass"


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_gemm_check_and_targets(layout: str) -> None:
    product = bench_gemm.Product(layout, 64, 48, 32, least=0.9)
    case = bench_gemm.case(product, device="cpu")
    assert case.name == f"{layout} 64 x 48 x 32" and case.flops == 2 * 64 * 48 * 32
    assert case.checks["cublas"]() is None
    check: Any = case.checks["cublas"]
    assert "nan" in check.func(lambda: None), "nothing written must not pass"
    assert "pallas" not in case.contenders, "no whole tiles"
    assert case.targets == {"interleaved": 0.9}


def test_protocols_of_the_products() -> None:
    by_name = {p.name: p for p in bench_gemm.LARGE + bench_gemm.SHORT + bench_gemm.OTHERS}
    chosen = {name: list(bench_gemm.protocols(p)) for name, p in by_name.items()}
    assert chosen["NT 4096 x 4096 x 4096"] == ["sustained", "interleaved", "host clock"]
    assert chosen["NT 1024 x 1024 x 1024"] == ["graph", "interleaved"]
    assert chosen["NT 4104 x 4088 x 4040"] == chosen["NT 4097 x 4095 x 4099"] == ["interleaved"]
    addressed = {name for name, p in by_name.items() if p.tma_addresses}
    assert set(by_name) - addressed == {"NT 4097 x 4095 x 4099"}
    least = {p.name: p.least for p in bench_gemm.LARGE if p.layout == "NT"}
    assert least == {
        "NT 4096 x 4096 x 4096": 1.015,
        "NT 8192 x 8192 x 8192": 1.04,
        "NT 8448 x 8448 x 8192": 1.035,
    }


@pytest.mark.parametrize(
    ("stem", "dtype"), [("07_mma_gemm", torch.float16), ("10_wgmma_gemm", torch.bfloat16)]
)
def test_ladder_check(stem: str, dtype: torch.dtype) -> None:
    module = bench_ladder.tutorial(stem)
    step, (kernel, plan) = next(iter(module.LADDER.items()))
    case = bench_ladder.case(step, kernel, plan, 128, dtype, device="cpu")
    assert harness.check_all(case) == {}
    check: Any = case.checks["tilejit"]
    assert "nan" in check.func(lambda: None), "nothing written must not pass"


def test_a_peer_that_is_absent_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "triton", None)
    # A module that another environment has imported already would hide it.
    for peers in ("pallas_peers", "triton_peers"):
        monkeypatch.delitem(sys.modules, f"benchmarks.{peers}", raising=False)
        monkeypatch.delattr(f"benchmarks.{peers}", raising=False)
    monkeypatch.setattr(bench_gemm.Product, "pallas_takes", True)
    case = bench_gemm.case(bench_gemm.Product("NT", 64, 48, 32), device="cpu")
    del case.contenders["tilejit"], case.checks["tilejit"]
    failures = harness.check_all(case)
    assert set(failures) == {"triton", "pallas"}
    assert all(f.startswith("ModuleNotFoundError") for f in failures.values())


def test_only_the_host_clock_sees_pallas_and_only_where_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[str]] = []

    def time_by(contenders: timing.Contenders) -> dict[str, timing.Timing]:
        seen.append(list(contenders))
        return {}

    monkeypatch.setattr(timing, "sustained_by_host", time_by)
    runs: timing.Contenders = dict.fromkeys(("cublas", "tilejit", "triton", "pallas"), int)
    bench_gemm.on_torchs_stream(time_by, runs)
    bench_gemm.beside_pallas(runs)
    assert seen == [["cublas", "tilejit", "triton"], ["cublas", "tilejit", "pallas"]]
    del runs["pallas"]
    assert bench_gemm.beside_pallas(runs) == {} and len(seen) == 2


def test_fp8_check() -> None:
    case = bench_gemm.fp8_case(bench_gemm.Product("NT", 64, 48, 32), device="cpu")
    assert case.checks["torch scaled_mm"]() is None
    check: Any = case.checks["tilejit"]
    assert "nan" in check.func(lambda: None, *check.args[1:]), "nothing written must not pass"


def test_fp8_blocks_check() -> None:
    """On the CPU torch has no such product: tilejit's stands for both."""
    case = bench_gemm.fp8_blocks_case(bench_gemm.Product("NT", 64, 128, 256), device="cpu")
    assert case.checks["tilejit"]() is None


def test_norm_misses_a_wrong_tile_and_elements_do_not() -> None:
    expected = torch.randn(2048, 2048)
    actual = expected.bfloat16()
    assert harness.close(actual, expected, bench_matmul.TOLERANCE) is None
    assert harness.close_elements(actual, expected) is None
    actual[8:16, 8:10] = 0
    assert harness.close(actual, expected, bench_matmul.TOLERANCE) is None
    assert harness.close_elements(actual, expected) is not None
    assert harness.close_elements(torch.full((2,), float("nan")), torch.ones(2)) is not None


@pytest.mark.parametrize("causal", [False, True])
def test_attention_check(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    monkeypatch.setattr(bench_attention, "BATCH_TOKENS", 256)
    monkeypatch.setattr(bench_attention, "TOKENS", 128)
    monkeypatch.setattr(bench_attention, "CHANNELS", 128)
    tensors: list[torch.Tensor] = []
    original = bench_attention.contenders

    def with_wrong(q: Any, k: Any, v: Any, out: Any, causal: bool) -> timing.Contenders:
        tensors.extend((q, k, v))
        flash = bench_attention.SDPBackend.FLASH_ATTENTION
        return {
            "torch flash": original(q, k, v, out, causal)["torch flash"],
            "other mask": partial(bench_attention.backend, flash, not causal, q, k, v),
            "nothing written": lambda: None,
        }

    monkeypatch.setattr(bench_attention, "contenders", with_wrong)
    case = bench_attention.case(64, causal, device="cpu")
    assert tensors[0].shape == (2, 2, 128, 64)
    assert case.flops == 4 * 2 * 2 * 128 * 128 * 64 // (2 if causal else 1)
    assert set(harness.check_all(case)) == {"other mask", "nothing written"}


# --- timing


def test_failing_contender_is_a_row_and_the_rest_is_timed() -> None:
    def fail() -> None:
        raise ImportError("no triton")

    runs: timing.Contenders = {"base": int, "ours": int, "triton": fail}
    checks: dict[str, Any] = {"base": lambda: None, "ours": lambda: None, "triton": fail}
    case = harness.Case("c", 0, runs, checks, flops=4 * 10**12)
    seconds = fixed({"base": 2.0, "ours": 4.0})
    told = harness.compare_flops(case, "base", {"sustained": seconds, "interleaved": seconds})
    ours = [r for r in told if r["contender"] == "ours"]
    assert [(r["protocol"], r["of_baseline"], r["tflop_per_s"]) for r in ours] == [
        ("sustained", 0.5, 1.0),
        ("interleaved", 0.5, 1.0),
    ]
    assert told[-1] == {"case": "c", "contender": "triton", "failed": "ImportError: no triton"}


def test_a_target_stands_in_tilejits_row_of_its_protocol() -> None:
    runs: timing.Contenders = {"base": int, "tilejit": int}
    case = harness.Case("c", 0, runs, flops=1, targets={"sustained": 0.9})
    seconds = fixed({"base": 2.0, "tilejit": 2.0})
    told = harness.compare_flops(case, "base", {"sustained": seconds, "interleaved": seconds})
    targets = {(r["protocol"], r["contender"]): r.get("target") for r in told}
    assert targets.pop(("sustained", "tilejit")) == 0.9
    assert len(targets) == 3 and set(targets.values()) == {None}


def test_the_host_clock_waits_for_the_last_result_of_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("synchronised"))
    told: list[str] = []

    class Later:
        def block_until_ready(self) -> None:
            told.append("waited")

    def call() -> Later:
        told.append("called")
        return Later()

    assert len(timing.by_host_clock(call, 2, 2)) == 2
    assert told == ["called", "called", "waited", "synchronised"] * 2


def test_graphs_are_timed_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def __init__(self, run: Callable[[], Any], calls: int):
            self.replay = run

    monkeypatch.setattr(timing, "_graph", Graph)
    monkeypatch.setattr(timing, "interleaved", fixed({"a": 8.0}))
    assert timing.graphed({"a": int}, calls=4)["a"] == timing.Timing(2.0, 2.0, 2.0)


def test_clock_and_power_are_those_sampled_meanwhile() -> None:
    sampled = card.Card()
    sampled._samples = [
        (0.0, 300.0, 90.0),
        (1.0, 1500.0, 690.0),
        (2.0, 1510.0, 700.0),
        (4.0, 1.0, 1.0),
    ]
    assert sampled.during([(0.5, 1.5), (1.9, 3.0)]) == {"sm_mhz": 1505.0, "watts": 695.0}
    assert sampled.during([(2.5, 3.0)]) == {}


@pytest.mark.parametrize(
    ("script", "seen"),
    [("echo '1500, 690.5'; exec sleep 60", {(1500.0, 690.5)}), ("echo '[N/A], oops'", set())],
)
def test_what_nvidia_smi_says_is_read_and_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, seen: set[tuple[float, float]]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(card, "_this_card", list)
    stand_in = tmp_path / "nvidia-smi"
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    with card.Card() as sampled:
        while seen and not sampled._samples:
            time.sleep(0.01)
    assert {(mhz, watts) for _, mhz, watts in sampled._samples} == seen
    assert sampled._process is not None and sampled._process.poll() is not None


def test_without_nvidia_smi_there_are_no_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with card.Card() as sampled:
        pass
    assert sampled.during([(0.0, 1e30)]) == {}


def test_sustained_measures_each_alone_forwards_then_backwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Event:
        """One call takes a millisecond of this clock."""

        def __init__(self, enable_timing: bool):
            self.at = 0

        def record(self) -> None:
            self.at = len(calls)

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Event) -> float:
            return float(other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    runs: timing.Contenders = {n: partial(calls.append, n) for n in ("a", "b")}
    timings = timing.sustained(runs, settle_seconds=0.0, measure_seconds=0.08)
    assert timings["a"].median == timings["b"].median == pytest.approx(1e-3)
    order = [n for i, n in enumerate(calls) if i == 0 or calls[i - 1] != n]
    assert order == ["a", "b", "a"]
    assert calls.count("a") == calls.count("b") >= 2 * 80


@pytest.mark.parametrize(
    "make", bench_compile.FRONT_HALVES.values(), ids=bench_compile.FRONT_HALVES
)
def test_front_half(make: Callable[[], Variant]) -> None:
    row = bench_compile.front_half(make())
    assert row["ms"] > 0 and all(row[f"{s}_ms"] > 0 for s in bench_compile.STEPS)


def test_resources_tell_each_compiled_variant_once() -> None:
    name = "tilejit.kernels.softmax"
    resources = harness.Resources(name)
    list(resources.rows("what was compiled before"))
    x = torch.empty(4, 640, dtype=torch.bfloat16)
    plan = rows.plan_for("softmax", x, y := torch.empty_like(x))
    variant = softmax.softmax_rows.compile(x, y, plan, target="sm_90a")
    (row,) = resources.rows("640")
    assert (row["case"], row["contender"], row["warnings"]) == ("640", "tilejit", [])
    assert row["uses"]["kernel"] == "softmax_rows"
    assert row["uses"]["registers"] == variant.stats.registers > 0
    json.dumps(row)
    assert list(resources.rows("again")) == []


def test_the_forked_process_reports_a_failure_and_goes_on(tmp_path: Path) -> None:
    """Without a device every measurement fails, at its first tensor; the process must answer each."""
    forker = bench_compile.Forker({"CUDA_VISIBLE_DEVICES": ""})
    for peer in bench_compile.PEERS:
        with pytest.raises(AssertionError, match=f"{peer} add: "):
            forker.seconds(peer, "add", tmp_path)
    forker.process.communicate("", timeout=60)


def test_compile_time_of_a_failing_peer_does_not_hide_the_other() -> None:
    class Forker:
        def seconds(self, peer: str, what: str, cache: Path) -> float:
            if peer == "triton":
                raise AssertionError("triton matmul: absent")
            return 0.5

    told = list(bench_compile.against_triton(Forker(), "matmul"))  # type: ignore[arg-type]
    assert told == [
        {"kernel": "matmul", "state": "cold", "tilejit_ms": 500.0},
        {"kernel": "matmul", "state": "disk cache", "tilejit_ms": 500.0},
        {"kernel": "matmul", "contender": "triton", "failed": "triton matmul: absent"},
    ]


@pytest.mark.parametrize(
    ("kernel", "maps"), [(bench_launch.three_pointers, 0), (bench_launch.three_descriptors, 3)]
)
def test_the_kernels_of_launch_times_have_their_parameters(kernel: Any, maps: int) -> None:
    tensors = [torch.zeros(bench_launch.BOX) for _ in range(3)]
    kernel.check(*tensors, 0, target="sm_90a")
    assert kernel.asm["cuda"].count("__grid_constant__") == maps


def test_a_launch_that_fails_is_a_row_and_the_rest_is_compared() -> None:
    def fail() -> Any:
        raise ImportError("no triton")

    launches, failures = bench_launch.prepared(
        {"tilejit k(...)": lambda: fail, "triton": fail, "other": lambda: int}
    )
    assert list(launches) == ["other"]
    assert failures == [
        {"case": "tilejit k(...)", "contender": "tilejit", "failed": "ImportError: no triton"},
        {"case": "triton", "contender": "triton", "failed": "ImportError: no triton"},
    ]
    ((descriptors, pointers), *_) = bench_launch.descriptors_beside_pointers().items()
    timings = {
        bench_launch.PREBUILT: timing.Timing(1e-6, 1e-6, 1e-6),
        pointers: timing.Timing(2e-6, 2e-6, 2e-6),
        descriptors: timing.Timing(3e-6, 3e-6, 3e-6),
    }
    told = {r["contender"]: r for r in bench_launch.rows_of(timings)}
    assert told[descriptors]["of_pointers"] == 1.5 and told[descriptors]["of_prebuilt"] == 3.0
    assert "of_pointers" not in told[pointers]
    del timings[bench_launch.PREBUILT]
    assert {r["of_prebuilt"] for r in bench_launch.rows_of(timings)} == {None}


# --- the command line


def test_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["matmul", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_a_benchmark_that_raises_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        yield {"case": "first"}
        raise RuntimeError("device lost")

    kept: list[Any] = []
    monkeypatch.setattr(bench_matmul, "run", broken)
    monkeypatch.setattr(harness, "save", lambda *a: kept.append(a))
    assert run.one("matmul", keep=True) is False
    assert kept == [("matmul", [{"case": "first"}], "RuntimeError: device lost")]


@pytest.mark.parametrize(("contender", "well"), [("triton", True), ("tilejit", False)])
def test_only_tilejits_own_failure_fails(
    monkeypatch: pytest.MonkeyPatch, contender: str, well: bool
) -> None:
    monkeypatch.setattr(bench_matmul, "run", lambda: [{"contender": contender, "failed": "x"}])
    assert run.one("matmul", keep=False) is well


# --- the README's tables


def write(folder: Path, name: str, figures: list[dict[str, Any]], **more: Any) -> None:
    content = {"environment": ENVIRONMENT, "rows": figures, **more}
    (folder / f"{name}.json").write_text(json.dumps(content))


def timed(case: str, contender: str, ratio: float | None, rate: float) -> dict[str, Any]:
    return {
        "case": case, "protocol": "sustained", "contender": contender,
        "of_baseline": ratio, "tflop_per_s": rate,
    }  # fmt: skip


def test_tables_of_products_and_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    assert summary.section() == ""
    write(tmp_path, "rows", [])
    uses = {"kernel": "k", "registers": 168, "spill_bytes": 0}
    write(
        tmp_path, "matmul",
        [
            timed("NT 8", "cublas", 1.0, 660.0), timed("NT 8", "tilejit", 0.9, 594.0),
            {"case": "NT 8", "contender": "triton", "failed": "no triton"},
            {"case": "NT 8", "contender": "tilejit", "uses": uses, "warnings": []},
        ],
    )  # fmt: skip
    write(
        tmp_path, "attention",
        [
            timed("D=64", "tilejit", None, 300.0), timed("D=64", "torch cudnn", None, 600.0),
            {"case": "D=64", "contender": "torch flash", "failed": "x"},
        ],
        ended_by="RuntimeError: device lost",
    )  # fmt: skip
    lines = summary.section().splitlines()
    assert "| NT 8 | sustained | 0.90 | failed | 594 | 660 |" in lines
    assert "| D=64 | sustained | – | – | – | 300 | failed |" in lines
    assert (
        "Over tilejit's 1 variants here: at most 168 registers a thread, at most 0 bytes spilt."
        in lines
    )
    assert "This run ended early: RuntimeError: device lost" in lines
    assert sum(line.startswith("G, D, driver 1, torch 2, Triton 3. ") for line in lines) == 1
    monkeypatch.setitem(ENVIRONMENT, "date", "E")
    write(tmp_path, "rows", [])
    lines = summary.section().splitlines()
    assert sum(line.startswith("G, D, driver 1, torch 2, Triton 3. ") for line in lines) == 2
    assert {
        line.count("|") for line in lines if line.startswith("| NT") or "cublas, T" in line
    } == {7}


def test_failures_show_in_the_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    write(
        tmp_path, "transpose",
        [
            {"case": "bf16", "contender": "copy", "of_copy": 1.0, "tb_per_s": 4.0},
            {"case": "bf16", "contender": "tilejit", "failed": "x"},
            {"case": "bf16", "contender": "torch", "of_copy": 0.15, "tb_per_s": 0.6},
        ],
    )  # fmt: skip
    write(
        tmp_path, "compile",
        [
            {"kernel": "matmul", "contender": "triton", "failed": "x"},
            {"kernel": "matmul", "state": "cold", "tilejit_ms": 700.0},
            {"kernel": "matmul", "state": "front", "ms": 40.2, "lower_ms": 20.0},
        ],
    )  # fmt: skip
    write(tmp_path, "simulator", [{"case": "a", "failed": "x"}, {"case": "b", "seconds": 1.0}])
    lines = summary.section().splitlines()
    assert "| kernel | tilejit | torch | tilejit, TB/s |" in lines
    assert "| bf16 | failed | 0.15 | – |" in lines
    assert "| matmul | triton failed | – | – | – |" in lines
    assert "| matmul | cold | – | 700 | – |" in lines
    assert "| matmul | front | – | 40 | – |" in lines
    assert "Simulator, all hazard checks on: a failed, b in 1.00 s." in lines


def test_targets_stand_beside_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    host = {"protocol": "host clock"}
    write(
        tmp_path, "gemm",
        [
            timed("NT 8", "cublas", 1.0, 660.0), {**timed("NT 8", "tilejit", 1.0412, 687.0), "target": 1.04},
            {**timed("NT 8", "cublas", 1.0, 655.0), **host}, {**timed("NT 8", "tilejit", 1.04, 681.0), **host},
            {**timed("NT 8", "pallas", 0.97, 640.0), **host},
        ],
    )  # fmt: skip
    write(
        tmp_path, "launch",
        [
            {"contender": "pointers", "of_prebuilt": None, "median_us": 5.0},
            {"contender": "descriptors", "of_prebuilt": 1.2, "median_us": 6.0, "of_pointers": 1.1, "at_most": 1.15},
            {"case": "triton", "contender": "triton", "failed": "x"},
        ],
    )  # fmt: skip
    write(
        tmp_path, "compile",
        [{"kernel": "matmul_tma", "state": "front", "ms": 108.1, "at_most_ms": 150}],
    )  # fmt: skip
    monkeypatch.setitem(ENVIRONMENT, "jax", "0.11")
    write(tmp_path, "rows", [])
    lines = summary.section().splitlines()
    assert any(
        line.startswith("G, D, driver 1, torch 2, Triton 3, JAX 0.11. Every") for line in lines
    )
    assert "| NT 8 | sustained | ≥ 1.04 | 1.041 | – | – | 687 | 660 |" in lines
    assert "| NT 8 | host clock | – | 1.040 | – | 0.970 | 681 | 655 |" in lines
    assert "| pointers | – | 5.00 |" in lines
    assert "| triton | failed | – |" in lines
    assert (
        "TMA descriptors, as a ratio to pointers: 1.10 (descriptors); target: at most 1.15."
        in lines
    )
    assert "| matmul_tma | front (target: at most 150) | – | 108 | – |" in lines
