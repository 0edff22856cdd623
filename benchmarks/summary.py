"""``python -m benchmarks.summary``: the README's table of results, from ``results/*.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: make docs -->", "<!-- end of results -->"
PEERS = ("tilejit", "triton", "torch.compile", "torch")


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def section() -> str:
    """Markdown between the markers."""
    lines: list[str] = []
    rows = load("rows")
    if rows is not None:
        facts = rows["environment"]
        lines += [
            f"{facts['gpu']}, {facts['date']}, driver {facts['driver']}, torch {facts['torch']}, "
            f"Triton {facts['triton']}. Every peer in the same run, interleaved, on random data, "
            "results checked first.", "",
            "Bytes moved per second, as a ratio to a device copy of the same run (bfloat16, 2^27 elements):",
            "", "| kernel | " + " | ".join(PEERS) + " | tilejit, TB/s |", "|---|" + "---|" * (len(PEERS) + 1),
        ]  # fmt: skip
        cases: dict[str, dict[str, Any]] = {}
        for row in rows["rows"]:
            cases.setdefault(row["case"], {})[row["contender"]] = row
        for case, found in cases.items():
            cells = [_ratio(found.get(peer)) for peer in PEERS]
            lines.append(f"| {case} | {' | '.join(cells)} | {found['tilejit']['tb_per_s']:.2f} |")
    launch = load("launch")
    if launch is not None:
        lines += [
            "",
            "Host time of a warm launch:",
            "",
            "| call | of a pre-built cuLaunchKernelEx | µs |",
            "|---|---|---|",
        ]
        lines += [
            f"| {r['contender']} | {r['of_prebuilt']:.2f} | {r['median_us']:.2f} |"
            for r in launch["rows"]
        ]
    compile_ = load("compile")
    if compile_ is not None:
        lines += ["", "From import to the first result in a fresh process, torch already imported:", "",
                  "| kernel | state | of Triton | tilejit, ms | Triton, ms |", "|---|---|---|---|---|"]  # fmt: skip
        for r in compile_["rows"]:
            if "of_triton" in r:
                lines.append(
                    f"| {r['kernel']} | {r['state']} | {r['of_triton']:.2f} | {r['tilejit_ms']:.0f} "
                    f"| {r['triton_ms']:.0f} |"
                )
            else:
                lines.append(f"| {r['kernel']} | {r['state']} | – | {r['ms']:.0f} | – |")
    simulator = load("simulator")
    if simulator is not None:
        lines += ["", "Simulator, all hazard checks on: " + ", ".join(
            f"{r['case']} in {r['seconds']:.2f} s" for r in simulator["rows"]
        ) + "."]  # fmt: skip
    return "\n".join(lines)


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return "failed" if "failed" in row else f"{row['of_copy']:.2f}"


def page(text: str) -> str:
    """``text`` with the section between the markers renewed."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{section()}\n{END}{tail}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(page(readme.read_text()))
    print("renewed README.md")
