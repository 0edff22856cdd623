"""``python -m tilejit.demo``: the main job on real input, narrated.

A row softmax over a few thousand rows: parsed, checked, compiled, launched on torch's stream where
there is a CUDA device; else run in the simulator, and still compiled for sm_90a.
"""

from __future__ import annotations

import time

import torch

from tilejit.kernels import rows, softmax

ROWS, SIMULATED_ROWS, COLUMNS = 4096, 2048, 1024


def main() -> None:
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    generator = torch.Generator(device=device).manual_seed(0)
    height = ROWS if gpu else SIMULATED_ROWS
    x = torch.randn(height, COLUMNS, device=device, dtype=torch.bfloat16, generator=generator)
    where = torch.cuda.get_device_name() if gpu else "the simulator (no CUDA device here)"
    print(f"row softmax, {height} x {COLUMNS} bfloat16, on {where}")

    start = time.perf_counter()
    y = softmax.softmax(x)
    if gpu:
        torch.cuda.synchronize()
    print(f"first run   {(time.perf_counter() - start) * 1e3:9.1f} ms")

    expected = torch.softmax(x.double(), -1)
    error = ((y.double() - expected).norm() / expected.norm()).item()
    torch_error = ((torch.softmax(x, -1).double() - expected).norm() / expected.norm()).item()
    print(f"error       {error:9.2e} relative to float64 (torch's own bfloat16: {torch_error:.2e})")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")

    plan = rows.plan_for("softmax", x, y)
    for attempt in ("compiled", "again"):
        kernel = softmax.softmax_rows.compile(x, y, plan, fresh=True)
        print(f"{attempt:11s} {kernel.seconds * 1e3:9.1f} ms for {kernel.target}: {kernel.origin}")
    stats = kernel.stats
    print(
        f"generated   {len(kernel.cuda):9,d} bytes of CUDA C++, {len(kernel.ptx):,d} bytes of PTX"
    )
    print(
        f"resources   {stats.registers:9d} registers, {stats.spill_bytes} bytes spilled, "
        f"{stats.shared_bytes} bytes of shared memory, occupancy {stats.occupancy:.0%}"
    )


if __name__ == "__main__":
    main()
