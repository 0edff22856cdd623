"""``python -m benchmarks.run [name …]``: run the benchmarks, print tables, keep JSON results."""

from __future__ import annotations

import importlib
import sys

import torch

from benchmarks import harness

GPU = ("rows", "launch", "compile")
CPU = ("simulator",)


def main(names: list[str]) -> int:
    names = names or [*GPU, *CPU]
    if not torch.cuda.is_available():
        print("no CUDA device: the GPU benchmarks are left out", file=sys.stderr)
        names = [n for n in names if n in CPU]
    for name in names:
        print(f"--- {name}")
        rows = importlib.import_module(f"benchmarks.bench_{name}").run()
        if torch.cuda.is_available():
            print("kept in", harness.save(name, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
