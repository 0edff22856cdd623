"""A piece of kernel text run by one thread of one CTA, through every step, on the simulator or the GPU."""

from __future__ import annotations

import textwrap
from typing import Any

import torch

from tilejit import T, jit
from tilejit.runtime.jit import JitFunction

ENTRY = "T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))"


def kernel(body: str, parameters: str = "out, n", **names: Any) -> JitFunction:
    """``def k(parameters): body``; ``names`` are its globals."""
    text = f"def k({parameters}):\n    {ENTRY}\n" + textwrap.indent(
        textwrap.dedent(body).strip("\n") + "\n", "    "
    )
    space = {"T": T, "jit": jit, "__name__": "made", **names}
    exec(text, space)
    made: JitFunction = jit(source=text)(space["k"])
    return made


def results(
    device: str,
    body: str,
    *,
    dtype: torch.dtype = torch.int32,
    size: int = 8,
    names: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **arguments: Any,
) -> list[Any]:
    """What the body leaves in ``out``, which begins as zeros. ``annotations``: of parameters."""
    parts = [
        f"{n}: {(annotations or {}).get(n)}" if n in (annotations or {}) else n for n in arguments
    ]
    made = kernel(body, ", ".join(["out", *parts]), **(names or {}))
    out = torch.zeros(size, dtype=dtype, device=device)
    moved = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    made(out, **moved)
    found: list[Any] = out.cpu().tolist()
    return found
