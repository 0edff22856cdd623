"""Tuning 24 configurations of the Hopper product: how long it takes beside Triton's autotuner with as many,
how good the pick is beside an exhaustive search, and what a second process does.

``wall``: one process per figure, empty caches, from the call to the result: tilejit's tuning of
``kernels.matmul.matmul_tma`` (check, compile, outputs compared, measure in a child process) and Triton's of its
persistent TMA product (compile, measure). Imports, data and the CUDA context are there before the clock starts.
``second process``: the same call after one such run, with its caches: nothing is compiled or measured.
``pick``: five tunings of the same configurations; each pick is looked up in an exhaustive search, all 24 sampled
60 times in interleaved rounds.
``compile``: the 24 alone, in threads of one process and over spawned processes.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

import tilejit as tile
from tilejit import pipeline
from tilejit.kernels.matmul import TmaPlan, matmul_tma

SIZE = 4096
PEERS = ("tilejit", "triton")
WALL_REPEATS = 3
PICK_REPEATS = 5


def configs() -> list[tile.Config]:
    """24: four tile shapes, two numbers of stages, three heights of a group of tiles."""
    shapes = (
        (128, 256, (3, 4), 2), (256, 128, (3, 4), 2), (128, 192, (3, 4), 3), (128, 128, (4, 5), 2),
    )  # fmt: skip
    return [
        tile.Config(
            name=f"{m}x{n}, {stages} stages, groups of {group}",
            plan=TmaPlan(
                tile_m=m, tile_n=n, stages=stages, group_m=group, slabs=slabs, slabs_at_once=slabs,
                sms=_sms(),
            )
        )
        for m, n, numbers, slabs in shapes
        for stages in numbers
        for group in (4, 8, 16)
    ]  # fmt: skip


def label(config: tile.Config) -> str:
    assert config.name is not None
    return config.name


def _sms() -> int:
    present = torch.cuda.is_available()
    return torch.cuda.get_device_properties(0).multi_processor_count if present else 132


def operands(size: int = SIZE) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)
    a, b = (
        torch.randn(size, size, device="cuda", dtype=torch.bfloat16, generator=generator)
        for _ in "ab"
    )
    return a, b, torch.empty_like(a)


def tune(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **options: Any) -> Any:
    return tile.tune(
        matmul_tma, a, b, None, out, activation=None, configs=configs(), progress=False, **options
    )


# --- one process, one tuning


def _tilejit_alone() -> dict[str, Any]:
    a, b, out = operands()
    torch.cuda.synchronize()
    start = time.perf_counter()
    report = tune(a, b, out, store=True)
    seconds = time.perf_counter() - start
    from_disk = report.source == "from disk"
    return {
        "seconds": seconds,
        "picked": label(configs()[report.chosen]),
        "source": report.source,
        "benchmarks": 0 if from_disk else report.benchmarked,
        "compiles": 0 if "compile" not in pipeline.timings else report.compiled,
        "compile_s": round(report.compile_seconds, 3),
        "measure_s": round(report.measure_seconds, 3),
        "notes": list(report.notes),
    }


def _triton_alone() -> dict[str, Any]:
    from benchmarks import triton_peers

    a, b, out = operands()
    torch.cuda.synchronize()
    start = time.perf_counter()
    triton_peers.matmul_tma_24(a, b, out)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    tuned = triton_peers.matmul_tma_24_tuned
    return {
        "seconds": seconds,
        "picked": str(tuned.best_config),
        "benchmarks": len(tuned.configs_timings),
        "compile_s": None,
    }


def _in_process(peer: str, folder: str) -> dict[str, Any]:
    caches = {"TILEJIT_CACHE_DIR": f"{folder}/tilejit", "TRITON_CACHE_DIR": f"{folder}/triton"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_tune", peer],
        env={**os.environ, **caches}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{peer}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- rows


def run() -> Iterator[dict[str, Any]]:
    yield from _walls()
    yield from _picks()
    yield from _compiles()


def _walls() -> Iterator[dict[str, Any]]:
    seconds: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for _ in range(WALL_REPEATS):
        for peer in PEERS:
            with tempfile.TemporaryDirectory() as folder:
                found = _in_process(peer, folder)
                seconds[peer].append(found["seconds"])
                yield {"case": "wall", "contender": peer, **found}
                if peer == "tilejit":
                    again = _in_process(peer, folder)
                    yield {"case": "second process", "contender": peer, **again}
                    print(
                        f"second process: {again['source']}, {again['compiles']} compiled, "
                        f"{again['benchmarks']} benchmarks, {again['seconds']:.2f} s",
                        flush=True,
                    )
            print(
                f"tuning 24 of {peer:8s} {found['seconds']:7.2f} s  {found['picked']}", flush=True
            )
    ours, theirs = (sorted(seconds[peer])[WALL_REPEATS // 2] for peer in PEERS)
    print(f"medians: {ours / theirs:.3f} of Triton's wall time ({ours:.2f} s, {theirs:.2f} s)")
    yield {
        "case": "wall medians",
        "contender": "tilejit",
        "seconds": round(ours, 3),
        "triton_seconds": round(theirs, 3),
        "of_triton": round(ours / theirs, 4),
        "target": 0.4,
    }


def _picks() -> Iterator[dict[str, Any]]:
    a, b, out = operands()
    names = [label(config) for config in configs()]
    picked = [names[tune(a, b, out, store=False).chosen] for _ in range(PICK_REPEATS)]
    exhaustive = tune(a, b, out, store=False, exhaustive=True)
    times = {name: row.seconds for name, row in zip(names, exhaustive.rows)}
    order = sorted(names, key=lambda name: times[name].median)
    for name in order:
        t = times[name]
        yield {
            "case": "exhaustive", "contender": name, "median_us": round(t.median * 1e6, 2),
            "interval_us": [round(t.low * 1e6, 2), round(t.high * 1e6, 2)], "samples": t.samples,
        }  # fmt: skip
    best = times[order[0]].median
    for repeat, name in enumerate(picked):
        over = times[name].median / best
        print(f"pick {repeat + 1}: {over:.4f} of the best's time, place {order.index(name) + 1}")
        yield {
            "case": "pick", "contender": "tilejit", "repeat": repeat, "picked": name,
            "of_best": round(over, 4), "place": order.index(name) + 1, "target": 1.02,
        }  # fmt: skip


def _compile_one(plan: TmaPlan) -> None:
    matmul_tma.compile(*_described(), plan, None, target="sm_90a", fresh=True)


def _described() -> tuple[Any, ...]:
    from tilejit.dtypes import BY_NAME

    row = tile.TensorArg(BY_NAME["bfloat16"], (SIZE, SIZE), (SIZE, 1), 16)
    tall = tile.TensorArg(BY_NAME["bfloat16"], (None, SIZE), (None, 1), 16)
    return tall, row, None, tall


def _compiles() -> Iterator[dict[str, Any]]:
    """The disk cache is off; texts differ in every turn, so that none is found in memory."""
    kept = os.environ.get("TILEJIT_CACHE_SIZE_MB")
    os.environ["TILEJIT_CACHE_SIZE_MB"] = "0"
    try:
        turn = 0
        for workers in (1, 4, 16):
            turn += 1
            with concurrent.futures.ThreadPoolExecutor(workers) as pool:
                yield _compiled(pool, f"{workers} threads", turn)
        spawn = multiprocessing.get_context("spawn")
        start = time.perf_counter()
        with concurrent.futures.ProcessPoolExecutor(16, mp_context=spawn) as pool:
            list(pool.map(_compile_one, _plans(turn + 1)))
            seconds = time.perf_counter() - start
            yield _compile_row("16 processes, started", seconds)
            yield _compiled(pool, "16 processes, warm", turn + 2)
    finally:
        if kept is None:
            del os.environ["TILEJIT_CACHE_SIZE_MB"]
        else:
            os.environ["TILEJIT_CACHE_SIZE_MB"] = kept


def _plans(turn: int) -> list[TmaPlan]:
    from dataclasses import replace

    return [replace(c["plan"], group_m=c["plan"].group_m + 32 * turn) for c in configs()]


def _compiled(pool: concurrent.futures.Executor, name: str, turn: int) -> dict[str, Any]:
    start = time.perf_counter()
    list(pool.map(_compile_one, _plans(turn)))
    return _compile_row(name, time.perf_counter() - start)


def _compile_row(name: str, seconds: float) -> dict[str, Any]:
    print(f"24 compiled by {name:22s} {seconds:6.2f} s", flush=True)
    return {"case": "compile", "contender": "tilejit", "by": name, "seconds": round(seconds, 3)}


if __name__ == "__main__":
    print(json.dumps({"tilejit": _tilejit_alone, "triton": _triton_alone}[sys.argv[1]]()))
