"""Disassembly of a cubin with whichever NVIDIA tool is at hand.

Looked for in the pip wheels, on PATH, and in Triton's wheel; nothing is installed or required
otherwise. Not here: reading resource counts (``elf``).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tilejit.errors import LaunchError, fault

TOOLS: dict[str, tuple[str, ...]] = {"nvdisasm": ("-c",), "cuobjdump": ("-sass",)}
"""Tools in order of preference, with their arguments."""
_WITH_LINES: dict[str, tuple[str, ...]] = {"nvdisasm": ("-g",)}
"""What makes a tool print the cubin's line table, too."""
_INSTALL = "pip install 'nvidia-cuda-nvdisasm>=13.2,<14'"


def disassemble(cubin: bytes, *, lines: bool = False) -> str:
    """SASS of every kernel of ``cubin``; ``lines``: with ``//## File "…", line …`` where the user's line
    changes, if the tool can. ``LaunchError`` (``sass/no-tool``) when no tool is found, ``sass/failed``
    when all that are found fail."""
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tilejit-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        for tool, executable in _tools():
            done = subprocess.run(
                [executable, *TOOLS[tool], *(_WITH_LINES.get(tool, ()) if lines else ()), str(path)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout
            failures.append(f"{executable}: {(done.stderr or done.stdout).strip()[:200]}")
    if failures:
        raise fault(
            LaunchError,
            "sass/failed",
            "no disassembler took the cubin: " + "; ".join(failures),
            help=_INSTALL,
        )
    raise fault(
        LaunchError,
        "sass/no-tool",
        "SASS needs nvdisasm or cuobjdump, and neither was found",
        help=_INSTALL,
    )


def _tools() -> Iterator[tuple[str, str]]:
    for tool in TOOLS:
        seen: set[str] = set()
        for found in (_from_wheels(tool), shutil.which(tool), _from_triton(tool)):
            if found and found not in seen:
                seen.add(found)
                yield tool, found


def _from_wheels(tool: str) -> str | None:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    found = find_nvidia_binary_utility(tool)
    return str(found) if found else None


def _from_triton(tool: str) -> str | None:
    spec = find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "backends" / "nvidia" / "bin" / tool
    return str(path) if path.exists() else None
