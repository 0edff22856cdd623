"""tilejit: GPU kernels made of exact PTX tile instructions under checked contracts.

``jit`` makes a kernel of a Python function, ``T`` is the language it is written in. Everything here
is loaded when first used: ``import tilejit`` costs nothing and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.errors import (
        CompileError,
        ContractError,
        Diagnostic,
        InternalError,
        LaunchError,
        SimulationFault,
        Span,
        SyntaxUnsupported,
        TargetError,
        TileError,
        Unsimulated,
    )
    from tilejit.ir.signature import (
        ConstArg,
        LaunchOverride,
        ScalarArg,
        Signature,
        TensorArg,
    )
    from tilejit.language import namespace as T
    from tilejit.pipeline import jit, simulation
    from tilejit.runtime.jit import JitFunction
    from tilejit.runtime.tensor_maps import encode_tensor_map
    from tilejit.runtime.torch_glue import target_of

__version__ = "0.1.0"

_HOME: dict[str, str] = {
    "jit": "tilejit.pipeline",
    "simulation": "tilejit.pipeline",
    "JitFunction": "tilejit.runtime.jit",
    "encode_tensor_map": "tilejit.runtime.tensor_maps",
    "target_of": "tilejit.runtime.torch_glue",
    **dict.fromkeys(
        (
            "CompileError", "ContractError", "Diagnostic", "InternalError", "LaunchError",
            "SimulationFault", "Span", "SyntaxUnsupported", "TargetError", "TileError",
            "Unsimulated",
        ),
        "tilejit.errors",
    ),
    **dict.fromkeys(
        ("ConstArg", "LaunchOverride", "ScalarArg", "Signature", "TensorArg"),
        "tilejit.ir.signature",
    ),
}  # fmt: skip

__all__ = [
    "CompileError",
    "ConstArg",
    "ContractError",
    "Diagnostic",
    "InternalError",
    "JitFunction",
    "LaunchError",
    "LaunchOverride",
    "ScalarArg",
    "Signature",
    "SimulationFault",
    "Span",
    "SyntaxUnsupported",
    "T",
    "TargetError",
    "TensorArg",
    "TileError",
    "Unsimulated",
    "__version__",
    "encode_tensor_map",
    "jit",
    "simulation",
    "target_of",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "T":
        value = importlib.import_module("tilejit.language.namespace")
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tilejit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
