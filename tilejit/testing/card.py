"""A GPU's clock and power while something runs on it, as nvidia-smi tells them.

Not here: how long things take (``timing``), what the GPU could do at best (``ceilings``).
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Sequence

import torch


class Card:
    """The card's clock and power while this is entered, as nvidia-smi tells them from time to time.
    Where it does not answer there are none."""

    PERIOD_MS = 50

    def __enter__(self) -> Card:
        self._samples: list[tuple[float, float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                ["nvidia-smi", *_this_card(), "--query-gpu=clocks.sm,power.draw.instant",
                 "--format=csv,noheader,nounits", f"--loop-ms={self.PERIOD_MS}"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        except OSError:
            return self
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                mhz, watts = map(float, line.split(","))
            except ValueError:
                continue  # an error message, or a figure that this card does not have
            self._samples.append((time.perf_counter(), mhz, watts))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def during(self, intervals: Sequence[tuple[float, float]]) -> dict[str, float]:
        """Median clock (``sm_mhz``) and power (``watts``) of the samples within ``intervals`` of the host's
        clock; nothing where there were none."""
        found = [
            (mhz, watts)
            for at, mhz, watts in self._samples
            if any(start <= at <= end for start, end in intervals)
        ]
        if not found:
            return {}
        mhz, watts = (statistics.median(column) for column in zip(*found))
        return {"sm_mhz": mhz, "watts": watts}


def _this_card() -> list[str]:
    """nvidia-smi's option for the current device; its own numbers know no CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    return [f"--id=GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"]
