"""tilejit: GPU kernels made of exact PTX tile instructions under checked contracts.

``jit`` makes a kernel of a Python function, ``T`` is the language it is written in. Everything here
is loaded when first used: ``import tilejit`` costs nothing and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit import testing
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
        TuneError,
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
    from tilejit.ops import custom_op
    from tilejit.pipeline import jit, simulation
    from tilejit.runtime.jit import JitFunction
    from tilejit.runtime.loaded import LoadedKernel, load
    from tilejit.runtime.tensor_maps import encode_tensor_map
    from tilejit.runtime.torch_glue import target_of
    from tilejit.tune import store as tuning
    from tilejit.tune.autotune import Autotuned, autotune, tune
    from tilejit.tune.config import Config, Space
    from tilejit.tune.report import Report
    from tilejit.tune.store import TuningWarning

__version__ = "0.1.0"

_MODULES: dict[str, str] = {
    "T": "tilejit.language.namespace",
    "testing": "tilejit.testing",
    "tune": "tilejit.tune",
    "tuning": "tilejit.tune.store",
}
_HOME: dict[str, str] = {
    "jit": "tilejit.pipeline",
    "simulation": "tilejit.pipeline",
    "custom_op": "tilejit.ops",
    "JitFunction": "tilejit.runtime.jit",
    "LoadedKernel": "tilejit.runtime.loaded",
    "load": "tilejit.runtime.loaded",
    "encode_tensor_map": "tilejit.runtime.tensor_maps",
    "target_of": "tilejit.runtime.torch_glue",
    "Autotuned": "tilejit.tune.autotune",
    "autotune": "tilejit.tune.autotune",
    "Config": "tilejit.tune.config",
    "Space": "tilejit.tune.config",
    "Report": "tilejit.tune.report",
    "TuningWarning": "tilejit.tune.store",
    **dict.fromkeys(
        (
            "CompileError", "ContractError", "Diagnostic", "InternalError", "LaunchError",
            "SimulationFault", "Span", "SyntaxUnsupported", "TargetError", "TileError",
            "TuneError", "Unsimulated",
        ),
        "tilejit.errors",
    ),
    **dict.fromkeys(
        ("ConstArg", "LaunchOverride", "ScalarArg", "Signature", "TensorArg"),
        "tilejit.ir.signature",
    ),
}  # fmt: skip

__all__ = [
    "Autotuned",
    "CompileError",
    "Config",
    "ConstArg",
    "ContractError",
    "Diagnostic",
    "InternalError",
    "JitFunction",
    "LaunchError",
    "LaunchOverride",
    "LoadedKernel",
    "Report",
    "ScalarArg",
    "Signature",
    "SimulationFault",
    "Space",
    "Span",
    "SyntaxUnsupported",
    "T",
    "TargetError",
    "TensorArg",
    "TileError",
    "TuneError",
    "TuningWarning",
    "Unsimulated",
    "__version__",
    "autotune",
    "custom_op",
    "encode_tensor_map",
    "jit",
    "load",
    "simulation",
    "target_of",
    "testing",
    "tune",
    "tuning",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tilejit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
