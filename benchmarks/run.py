"""``python -m benchmarks.run [name …]``: run the benchmarks, print tables, keep JSON results.

A benchmark that raises is reported and does not stop the others. The exit status is 1 if one did or
if tilejit failed a check; that of a peer is reported only.
"""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from typing import Any

import torch

from benchmarks import harness

GPU = (
    "rows",
    "transpose",
    "matmul",
    "gemm",
    "attention",
    "ladder",
    "wgmma_ladder",
    "launch",
    "compile",
    "tune",
)
CPU = ("simulator",)


def main(names: list[str]) -> int:
    unknown = [n for n in names if n not in (*GPU, *CPU)]
    if unknown:
        print(
            f"no benchmark {', '.join(unknown)}; there are {', '.join((*GPU, *CPU))}",
            file=sys.stderr,
        )
        return 2
    names = names or [*GPU, *CPU]
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        print("no CUDA device: the GPU benchmarks are left out", file=sys.stderr)
        names = [n for n in names if n in CPU]
    bad = [n for n in names if not one(n, keep=on_gpu)]
    if bad:
        print(f"ended early or failed: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def one(name: str, keep: bool) -> bool:
    """Run one benchmark and, if ``keep``, save what it measured; whether all of it went well."""
    print(f"--- {name}", flush=True)
    rows: list[dict[str, Any]] = []
    ended_by: str | None = None
    try:
        for row in importlib.import_module(f"benchmarks.bench_{name}").run():
            rows.append(row)
    except Exception as error:
        traceback.print_exc()
        ended_by = f"{type(error).__name__}: {error}"
    except BaseException as error:
        ended_by = type(error).__name__
        raise
    finally:
        if keep and rows:
            print("kept in", harness.save(name, rows, ended_by), flush=True)
    return ended_by is None and not any(
        "failed" in row and row.get("contender", "tilejit") == "tilejit" for row in rows
    )


if __name__ == "__main__":
    # Whoever ends a benchmark early still gets what it measured.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    sys.exit(main(sys.argv[1:]))
