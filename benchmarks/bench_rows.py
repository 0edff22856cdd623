"""Memory-bound row kernels and add against torch, torch.compile, Triton and a device copy.

Figures are TB/s of bytes read once plus written once, and their ratio to the copy of the same run.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import harness, triton_peers
from tilejit.kernels import add, norm, softmax
from tilejit.testing import timing

ELEMENTS = 1 << 27
WIDTHS = (1024, 4096, 16384, 65536, 262144)
EPS = 1e-5


def cases() -> list[harness.Case]:
    made = [_add()]
    for width in WIDTHS:
        made += [_softmax(width), _rms_norm(width), _layer_norm(width)]
    return made


def _inputs(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(ELEMENTS // width, width, device="cuda", dtype=torch.bfloat16)
    return x, torch.full_like(x, float("nan"))


def _case(
    name: str, x: torch.Tensor, out: torch.Tensor, expected: torch.Tensor, runs: Any
) -> harness.Case:
    """``runs``: contender name → function that fills ``out`` or returns the result."""

    def check(run: Any) -> str | None:
        return harness.close(harness.result_of(run, out), expected, 5e-3)

    contenders = {"copy": lambda: out.copy_(x), **runs}
    checks = {n: (lambda run=run: check(run)) for n, run in runs.items()}
    return harness.Case(name, 2 * x.numel() * x.element_size(), contenders, checks)


def _add() -> harness.Case:
    a = torch.randn(ELEMENTS, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)
    out = torch.empty_like(a)
    compiled = torch.compile(lambda a, b: a + b)
    case = _case(
        "add bf16", a, out, a + b,
        {
            "tilejit": lambda: add.add(a, b, out),
            "torch": lambda: torch.add(a, b, out=out),
            "torch.compile": lambda: compiled(a, b),
            "triton": lambda: triton_peers.add(a, b, out),
        },
    )  # fmt: skip
    case.moved_bytes = 3 * a.numel() * 2
    return case


def _softmax(width: int) -> harness.Case:
    x, out = _inputs(width)
    compiled = torch.compile(lambda x: torch.softmax(x, -1))
    runs = {
        "tilejit": lambda: softmax.softmax(x, out),
        "torch": lambda: torch.softmax(x, -1),
        "torch.compile": lambda: compiled(x),
        "triton": lambda: triton_peers.softmax(x, out),
    }
    return _case(f"softmax bf16 N={width}", x, out, torch.softmax(x, -1), runs)


def _rms_norm(width: int) -> harness.Case:
    x, out = _inputs(width)
    w = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    function = torch.nn.functional.rms_norm
    compiled = torch.compile(lambda x, w: function(x, (width,), w, EPS))
    runs = {
        "tilejit": lambda: norm.rms_norm(x, w, EPS, out),
        "torch": lambda: function(x, (width,), w, EPS),
        "torch.compile": lambda: compiled(x, w),
        "triton": lambda: triton_peers.rms_norm(x, w, out, EPS),
    }
    return _case(f"rms_norm bf16 N={width}", x, out, function(x, (width,), w, EPS), runs)


def _layer_norm(width: int) -> harness.Case:
    x, out = _inputs(width)
    w = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(w)
    function = torch.nn.functional.layer_norm
    compiled = torch.compile(lambda x, w, b: function(x, (width,), w, b, EPS))
    runs = {
        "tilejit": lambda: norm.layer_norm(x, w, b, EPS, out),
        "torch": lambda: function(x, (width,), w, b, EPS),
        "torch.compile": lambda: compiled(x, w, b),
        "triton": lambda: triton_peers.layer_norm(x, w, b, out, EPS),
    }
    return _case(f"layer_norm bf16 N={width}", x, out, function(x, (width,), w, b, EPS), runs)


def run() -> list[dict[str, Any]]:
    rows = []
    for case in cases():
        rows += against_copy(case, copied_bytes=2 * ELEMENTS * 2)
        del case
        torch.cuda.empty_cache()
    return rows


def against_copy(case: harness.Case, copied_bytes: int) -> list[dict[str, Any]]:
    """Check and time the contenders of ``case``; rates as a ratio to its contender ``copy``, which
    moves ``copied_bytes``."""
    rows = []
    failures = harness.check_all(case)
    good = {n: r for n, r in case.contenders.items() if n not in failures}
    timings = timing.interleaved(good)
    copy_rate = None
    for name, timed in timings.items():
        moved = copied_bytes if name == "copy" else case.moved_bytes
        rate = moved / timed.median / 1e12
        copy_rate = copy_rate or rate
        rows.append(
            {
                "case": case.name, "contender": name, "of_copy": round(rate / copy_rate, 4),
                "tb_per_s": round(rate, 3), "median_us": round(timed.median * 1e6, 2),
                "quartiles_us": [round(timed.low * 1e6, 2), round(timed.high * 1e6, 2)],
            }
        )  # fmt: skip
        print(f"{case.name:24s} {name:14s} {rate / copy_rate:6.3f} of copy {rate:6.3f} TB/s")
    rows.extend(
        {"case": case.name, "contender": name, "failed": problem}
        for name, problem in failures.items()
    )
    for name, problem in failures.items():
        print(f"{case.name:24s} {name:14s} FAILED {problem}")
    return rows
