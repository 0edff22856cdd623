"""``tilejit doctor``: what of tilejit works on this machine, and what to do about the rest.

Simulating, compiling and launching are tried, not guessed. A machine without a GPU is all right; what is
broken is a fault. Nothing of this may fail because something is missing: every question is asked by itself.

Not here: what the answers are used for.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilejit import __version__
from tilejit.cli.output import FAULTS, OK, columns, counted, print_json, size_text
from tilejit.errors import TileError

_PROBE = 'extern "C" __global__ void probe(float *x) { x[threadIdx.x] = 1.0f; }\n'
_PROBE_TARGET = "sm_90a"
_NEWEST_BINDINGS = "cuda-python>=13.0,<14"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


@dataclass(slots=True)
class Finding:
    """One answer. ``state``: ``ok``, ``none`` (not there, and that is all right) or ``fault``; ``advice``:
    what to do about it."""

    name: str
    state: str
    text: str
    advice: str = ""


def run(options: argparse.Namespace) -> int:
    facts = [_asked(name, ask) for name, ask in FACTS]
    facts += _devices()
    works = [_asked(name, ask) for name, ask in WORKS]
    faulty = any(f.state == "fault" for f in (*facts, *works))
    if options.json:
        print_json(
            {"facts": list(map(asdict, facts)), "works": list(map(asdict, works)), "ok": not faulty}
        )
        return FAULTS if faulty else OK
    print(columns([(_mark(f), f.name, f.text) for f in facts]))
    print("\nwhat works")
    print(columns([(_mark(f), f.name, f.text) for f in works]))
    advice = [f for f in (*facts, *works) if f.advice]
    if advice:
        print("\nwhat to do")
        for line in dict.fromkeys(f"  {f.advice}" for f in advice):
            print(line)
    return FAULTS if faulty else OK


def _mark(finding: Finding) -> str:
    return {"ok": "  ok   ", "none": "  -    ", "fault": "  FAULT"}[finding.state]


class Absent(Exception):
    """Something that may be missing is not there."""


class Broken(Exception):
    """Something does not work; ``advice`` is what to do."""

    def __init__(self, text: str, advice: str = ""):
        super().__init__(text)
        self.advice = advice


def _asked(name: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "ok", ask())
    except Absent as absent:
        return Finding(name, "none", str(absent))
    except Broken as broken:
        return Finding(name, "fault", str(broken), broken.advice)
    except TileError as error:
        first = error.diagnostics[0]
        return Finding(name, "fault", first.message, dict(first.notes).get("help", ""))
    except BaseException as error:  # a broken install raises what it likes, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        return Finding(name, "fault", f"{type(error).__name__}: {error}".split("\n")[0])


def _imported(module: str, advice: str) -> Any:
    try:
        return importlib.import_module(module)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Broken(f"cannot be imported: {error}".split("\n")[0], advice) from None


# --- facts


def _python() -> str:
    return f"{platform.python_version()}, {sys.executable}"


def _system() -> str:
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def _numpy() -> str:
    return str(_imported("numpy", "pip install 'numpy>=2'").__version__)


def _torch() -> str:
    torch = _imported("torch", "pip install 'torch>=2.6'")
    cuda = torch.version.cuda
    usable = f"CUDA {cuda}" if cuda else "built without CUDA"
    return f"{torch.__version__}, {usable}"


def _launcher() -> str:
    native = _imported("tilejit.runtime.native", "pip install tilejit again")
    return str(native.which())


def _bindings() -> str:
    module = _imported("cuda.bindings", f"pip install '{_NEWEST_BINDINGS}'")
    return str(getattr(module, "__version__", "of unknown version"))


def _nvrtc() -> str:
    from tilejit.runtime import nvrtc

    return ".".join(map(str, nvrtc.version()))


def _driver_version() -> tuple[int, int]:
    """The CUDA version that the driver has; ``Absent`` where there is no driver."""
    driver = _imported("cuda.bindings.driver", f"pip install '{_NEWEST_BINDINGS}'")
    try:
        result, version = driver.cuDriverGetVersion()
    except RuntimeError:
        raise Absent("none on this machine") from None
    if int(result):
        raise Broken(
            f"cuDriverGetVersion failed: {getattr(result, 'name', result)}",
            "install NVIDIA's driver again",
        )
    return version // 1000, version % 1000 // 10  # fmt: skip


def _driver() -> str:
    from tilejit.runtime import nvrtc

    have = _driver_version()
    text = f"CUDA {have[0]}.{have[1]}"
    kernel = Path("/proc/driver/nvidia/version")
    if kernel.exists():
        words = kernel.read_text().splitlines()[0].split()
        text += "".join(f", {w}" for w in words if w[0].isdigit() and "." in w)[:20]
    made = nvrtc.version()
    if made[0] > have[0]:
        raise Broken(
            f"{text}; NVRTC {made[0]}.{made[1]} makes code that it may not load",
            f"update NVIDIA's driver to one of CUDA {made[0]} or newer",
        )
    return text


def _disassembler() -> str:
    from tilejit.runtime import sass

    for _, place in sass._tools():
        return str(place)
    raise Absent("neither nvdisasm nor cuobjdump: no SASS (pip install 'nvidia-cuda-nvdisasm>=13.2,<14')")  # fmt: skip


def _cache() -> str:
    from tilejit.runtime import cache

    place = cache.directory()
    if not cache.enabled():
        raise Absent(f"{place}: turned off by TILEJIT_CACHE_SIZE_MB")
    existing = place
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise Broken(
            f"{place} cannot be written: {error.strerror or error}",
            "name another directory with TILEJIT_CACHE_DIR; until then kernels are compiled in every process",
        ) from None
    count, total = cache.usage()
    return (
        f"{place}: {counted(count, 'kernel')}, {size_text(total)} of {size_text(cache.cap_bytes())}"
    )


FACTS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("tilejit", lambda: f"{__version__}, {Path(__file__).parent.parent}"),
    ("python", _python),
    ("system", _system),
    ("numpy", _numpy),
    ("torch", _torch),
    ("launcher", _launcher),
    ("cuda-python", _bindings),
    ("NVRTC", _nvrtc),
    ("driver", _driver),
    ("disassembler", _disassembler),
    ("cache", _cache),
)


def _cards() -> Iterator[tuple[int, Any]]:
    """Ordinal and limits of each device that the driver names."""
    from tilejit.runtime import driver as drivers

    api = _imported("cuda.bindings.driver", f"pip install '{_NEWEST_BINDINGS}'")
    result = api.cuInit(0)[0]
    if int(result) == _NO_DEVICE:
        return
    if int(result):
        raise Broken(
            f"cuInit failed with {getattr(result, 'name', result)}",
            "see what nvidia-smi says; a container needs its GPUs handed in",
        )
    for ordinal in range(int(api.cuDeviceGetCount()[1])):
        yield ordinal, drivers.current().limits(ordinal)


def _devices() -> list[Finding]:
    try:
        _driver_version()
        cards = list(_cards())
    except Absent:
        return [Finding("devices", "none", "no GPU: kernels are simulated on CPU tensors")]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        advice = error.advice if isinstance(error, Broken) else ""
        return [Finding("devices", "fault", f"cannot be asked: {error}".split("\n")[0], advice)]
    if not cards:
        return [
            Finding("devices", "none", "the driver names no GPU (is CUDA_VISIBLE_DEVICES set?)")
        ]
    return [
        _asked(f"device {ordinal}", partial(_card, ordinal, limits)) for ordinal, limits in cards
    ]


def _card(ordinal: int, limits: Any) -> str:
    from tilejit.target import Target

    target = Target.of_capability(*limits.capability)  # refuses what is too old
    memory = ""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        memory = f", {size_text(torch.cuda.get_device_properties(ordinal).total_memory)}"
    return f"{limits.name}, {target.name}, {limits.sm_count} SMs{memory}"


# --- what works


def _simulates() -> str:
    torch = _imported("torch", "pip install 'torch>=2.6'")
    from tilejit.kernels import add

    a, b = torch.arange(4.0), torch.ones(4)
    if add.add(a, b).tolist() != [1.0, 2.0, 3.0, 4.0]:
        raise Broken("the simulator computes a wrong sum", "please report this")
    return "a kernel ran on CPU tensors"


def _targets() -> list[str]:
    """What to compile for: each device's target, and Hopper's."""
    from tilejit.target import Target

    found = [_PROBE_TARGET]
    try:
        _driver_version()
        found += [Target.of_capability(*limits.capability).name for _, limits in _cards()]
    except Exception:
        pass  # told among the facts
    return list(dict.fromkeys(found))


def _compiles() -> str:
    from tilejit.runtime import nvrtc

    for target in _targets():
        nvrtc.compile_cubin(_PROBE, target, "probe")
    return f"NVRTC compiled and assembled a kernel for {', '.join(_targets())}"


def _launches() -> str:
    try:
        _driver_version()
    except Absent:
        raise Absent("no GPU") from None
    if not list(_cards()):
        raise Absent("no GPU")
    torch = _imported("torch", "pip install 'torch>=2.6'")
    if not torch.cuda.is_available():
        raise Broken(
            f"torch {torch.__version__} does not see the GPU",
            "install a torch with CUDA: https://pytorch.org/get-started/locally",
        )
    from tilejit.kernels import add

    a, b = torch.arange(4.0, device="cuda"), torch.ones(4, device="cuda")
    if add.add(a, b).tolist() != [1.0, 2.0, 3.0, 4.0]:
        raise Broken("the GPU computes a wrong sum", "please report this")
    return f"a kernel ran on {torch.cuda.get_device_name()}"


WORKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("simulate", _simulates),
    ("compile", _compiles),
    ("launch", _launches),
)
