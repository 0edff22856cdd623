"""``python -m benchmarks.summary``: the tables of results in the README and in the tutorials that climb a
ladder, from ``results/*.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: make docs -->", "<!-- end of results -->"
LADDER_BEGIN, LADDER_END = "# <!-- ladder: make docs -->", "# <!-- end of ladder -->"
LADDER_PAGES = {
    "ladder": ROOT / "tutorials" / "07_mma_gemm.py",
    "wgmma_ladder": ROOT / "tutorials" / "10_wgmma_gemm.py",
}
"""By the name of the benchmark."""
PEERS = ("tilejit", "triton", "torch.compile", "torch")


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def section() -> str:
    """Markdown between the markers."""
    lines: list[str] = []
    rows = load("rows")
    if rows is not None:
        lines += [
            f"{machine(rows)}. Every peer in the same run, interleaved, on random data, "
            "results checked first.", "",
            "Bytes moved per second, as a ratio to a device copy of the same run (bfloat16, 2^27 elements):",
        ]  # fmt: skip
        lines += copy_table(rows["rows"])
    transpose = load("transpose")
    if transpose is not None:
        lines += ["", "Transposes, likewise as a ratio to a device copy of the same bytes:"]
        lines += copy_table(transpose["rows"])
    lines += flops_table(
        "matmul",
        "Matrix products, bfloat16 with float32 accumulation, as a ratio to cuBLAS of the same run (NT: both "
        "operands contiguous along K). Sustained: each alone at the clock it settles at; interleaved: all at "
        "one clock.",
        "cublas",
        ("tilejit", "triton"),
    )
    lines += flops_table(
        "gemm",
        "Matrix products by TMA and wgmma, likewise. Target: the least that tilejit's ratio is meant to be. Graph: "
        "interleaved, launched from CUDA graphs. Host clock: sustained and with B row-major for Pallas, whose stream "
        "CUDA events of torch do not see.",
        "cublas",
        ("tilejit", "triton", "pallas"),
    )
    lines += flops_table(
        "attention",
        "Attention, bfloat16, 16384 tokens and 2048 channels, as a ratio to torch's flash attention of the same "
        "run:",
        "torch flash",
        ("tilejit", "triton", "torch cudnn"),
    )
    launch = load("launch")
    if launch is not None:
        lines += launch_table(launch["rows"])
    tuning = load("tune")
    if tuning is not None:
        lines += tuning_lines(tuning)
    compile_ = load("compile")
    if compile_ is not None:
        lines += ["", "From import to the first result in a fresh process, torch already imported:", "",
                  "| kernel | state | of Triton | tilejit, ms | Triton, ms |", "|---|---|---|---|---|"]  # fmt: skip
        for r in compile_["rows"]:
            if "failed" in r:
                lines.append(
                    f"| {r['kernel']} | {r.get('contender', 'tilejit')} failed | – | – | – |"
                )
                continue
            ratio = f"{r['of_triton']:.2f}" if "of_triton" in r else "–"
            ours = r["ms"] if "ms" in r else r.get("tilejit_ms")
            cells = [ratio, *("–" if v is None else f"{v:.0f}" for v in (ours, r.get("triton_ms")))]
            target = f" (target: at most {r['at_most_ms']})" if "at_most_ms" in r else ""
            lines.append(f"| {r['kernel']} | {r['state']}{target} | {' | '.join(cells)} |")
    simulator = load("simulator")
    if simulator is not None:
        lines += ["", "Simulator, all hazard checks on: " + ", ".join(
            f"{r['case']} failed" if "failed" in r else f"{r['case']} in {r['seconds']:.2f} s"
            for r in simulator["rows"]
        ) + "."]  # fmt: skip
    return "\n".join(lines)


def machine(data: dict[str, Any]) -> str:
    """Where and when a benchmark ran, and against which versions."""
    facts = data["environment"]
    jax = f", JAX {facts['jax']}" if facts.get("jax", "absent") != "absent" else ""
    return (
        f"{facts['gpu']}, {facts['date']}, driver {facts['driver']}, torch {facts['torch']}, "
        f"Triton {facts['triton']}{jax}"
    )


def tuning_lines(data: dict[str, Any]) -> list[str]:
    rows = {case: [r for r in data["rows"] if r.get("case") == case] for case in _TUNING}
    lines = ["", f"{machine(data)}. Tuning the TMA product at 4096 cubed over 24 configs, from empty caches:", "",
             "| what | target | tilejit | Triton |", "|---|---|---|---|"]  # fmt: skip
    for r in rows["wall medians"]:
        ours, theirs = r["seconds"], r["triton_seconds"]
        lines.append(f"| wall time, s | ≤ {r['target']} of Triton's | {ours:.2f} | {theirs:.2f} |")
        lines.append(f"| ratio | | {r['of_triton']:.2f} | 1 |")
    if rows["second process"]:
        again = rows["second process"][-1]
        lines.append(
            f"| second process: compiled, benchmarked | 0, 0 | {again['compiles']}, {again['benchmarks']} | – |"
        )
    if rows["pick"]:
        worst = max(r["of_best"] for r in rows["pick"])
        lines.append(
            f"| the pick's time by exhaustive search's best, worst of {len(rows['pick'])} | ≤ {rows['pick'][0]['target']} "
            f"| {worst:.3f} | – |"
        )
    compiled = ", ".join(f"{r['by']} {r['seconds']:.2f} s" for r in rows["compile"])
    return [*lines, "", f"The 24 alone compiled by {compiled}."] if compiled else lines


_TUNING = ("wall medians", "second process", "pick", "compile")


def launch_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["", "Host time of a warm launch:", "",
             "| call | of a pre-built cuLaunchKernelEx | µs |", "|---|---|---|"]  # fmt: skip
    for r in rows:
        if "failed" in r:
            lines.append(f"| {r['case']} | failed | – |")
        else:
            ratio = "–" if r["of_prebuilt"] is None else f"{r['of_prebuilt']:.2f}"
            lines.append(f"| {r['contender']} | {ratio} | {r['median_us']:.2f} |")
    beside = [r for r in rows if "of_pointers" in r]
    if beside:
        ratios = ", ".join(f"{r['of_pointers']:.2f} ({r['contender']})" for r in beside)
        lines += ["", f"TMA descriptors, as a ratio to pointers: {ratios}; target: at most {beside[0]['at_most']}."]  # fmt: skip
    return lines


def copy_table(rows: list[dict[str, Any]]) -> list[str]:
    """One line per case: each peer's bytes per second over the copy's."""
    peers = [p for p in PEERS if any(r["contender"] == p for r in rows)]
    lines = ["", f"| kernel | {' | '.join(peers)} | tilejit, TB/s |"]
    lines.append("|---" * (len(peers) + 2) + "|")
    cases: dict[str, dict[str, Any]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["contender"]] = row
    for case, found in cases.items():
        cells = [_ratio(found.get(peer)) for peer in peers]
        rate = found.get("tilejit", {}).get("tb_per_s")
        cells.append("–" if rate is None else f"{rate:.2f}")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def flops_table(name: str, about: str, baseline: str, peers: tuple[str, ...]) -> list[str]:
    """One line per case and protocol: ratios to ``baseline`` first, then TFLOP/s. Nothing without
    results. Where tilejit has targets they stand beside it, and ratios have the digit more that tells
    them apart."""
    data = load(name)
    if data is None:
        return []
    first = load("rows")
    if first is None or machine(first) != machine(data):
        about = f"{machine(data)}. {about}"
    rows = data["rows"]
    aims = any("target" in r for r in rows)
    head = ["case", "timing", *(["target"] if aims else []), *peers]
    head += ["tilejit, TFLOP/s", f"{baseline}, TFLOP/s"]
    lines = ["", about, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    failed = {(r["case"], r["contender"]) for r in rows if "failed" in r}
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if "protocol" in row:
            cases.setdefault((row["case"], row["protocol"]), {})[row["contender"]] = row
    for (case, protocol), found in cases.items():
        wanted = [(p, "of_baseline") for p in peers]
        wanted += [("tilejit", "tflop_per_s"), (baseline, "tflop_per_s")]
        cells = [
            _figure(found.get(p), key, (case, p) in failed, 3 if aims else 2) for p, key in wanted
        ]
        if aims:
            target = found.get("tilejit", {}).get("target")
            cells.insert(0, "–" if target is None else f"≥ {target}")
        lines.append(f"| {case} | {protocol} | {' | '.join(cells)} |")
    used = [r["uses"] for r in rows if "uses" in r]
    if used:
        registers, spilt = (max(u[key] for u in used) for key in ("registers", "spill_bytes"))
        lines += [
            "",
            f"Over tilejit's {len(used)} variants here: at most {registers} registers a thread, at "
            f"most {spilt} bytes spilt.",
        ]
    if "ended_by" in data:
        lines += ["", f"This run ended early: {data['ended_by']}"]
    return lines


def _figure(row: dict[str, Any] | None, key: str, failed: bool, digits: int) -> str:
    if failed:
        return "failed"
    if row is None or row[key] is None:
        return "–"
    return f"{row[key]:.{digits}f}" if key == "of_baseline" else f"{row[key]:.0f}"


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return "failed" if "failed" in row else f"{row['of_copy']:.2f}"


def page(text: str) -> str:
    """``text`` with the section between the markers renewed."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{section()}\n{END}{tail}"


def ladder(name: str, text: str) -> str:
    """The tutorial's ``text`` with its table of measured steps renewed from the benchmark ``name``."""
    head, rest = text.split(LADDER_BEGIN)
    _, tail = rest.split(LADDER_END)
    commented = "\n".join(f"# {line}".rstrip() for line in _steps(name))
    return f"{head}{LADDER_BEGIN}\n{commented}\n{LADDER_END}{tail}"


def _steps(name: str) -> list[str]:
    data = load(name)
    if data is None:
        return [f"Not measured yet: `python -m benchmarks.run {name}`."]
    rows = [r for r in data["rows"] if r["contender"] == "tilejit" and "tflop_per_s" in r]
    timing = ", ".join(sorted({r["protocol"] for r in rows}))
    return [
        f"{machine(data)}; all steps and torch.mm (cuBLAS) in one run, {timing}, results checked first.",
        "",
        "| step | TFLOP/s at 4096³ | of torch.mm |",
        "|---|---|---|",
        *(f"| {r['case']} | {r['tflop_per_s']:.0f} | {r['of_baseline']:.2f} |" for r in rows),
    ]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(page(readme.read_text()))
    for name, path in LADDER_PAGES.items():
        path.write_text(ladder(name, path.read_text()))
    print("renewed README.md,", *(path.name for path in LADDER_PAGES.values()))
