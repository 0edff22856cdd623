"""The real worker process with a GPU that is none: ``python -m tests.tune.fake_worker FD``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.tune.fake_device import FakeDevice
from tilejit.errors import LaunchError, fault
from tilejit.tune import worker


def find(identity: bytes) -> FakeDevice | None:
    folder = Path(os.fsdecode(identity))
    if folder.name == "elsewhere":
        return None
    if folder.name == "no-ipc":
        device = FakeDevice(folder)
        device.open = refuse  # type: ignore[method-assign]
        return device
    return FakeDevice(folder)


def refuse(handle: bytes) -> int:
    raise fault(LaunchError, "launch/driver", "cuIpcOpenMemHandle failed with NOT_SUPPORTED")


if __name__ == "__main__":
    assert "torch" not in sys.modules
    worker.main(int(sys.argv[1]), find)
