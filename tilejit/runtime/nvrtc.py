"""CUDA C++ text to a cubin, in this process, through NVRTC.

``cuda.bindings.nvrtc`` is imported at the first use. Compiling releases the GIL and may run in many
threads. NVRTC's own disk cache is turned off: on a hit it returns an empty log, and the log is where
spills and serialised instructions are told. Failures become ``CompileError`` at the user's line: C++
messages carry it through ``#line``, assembler messages name a line of the PTX, where the instruction's
``// tilejit:op=N file:line`` comment says it.

Not here: the text (``cuda``), our cache (``cache``), loading a cubin (``driver``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilejit.errors import CompileError, Diagnostic, Span, TileError, fault
from tilejit.runtime import elf
from tilejit.runtime.elf import Resources

OPTIONS: tuple[str, ...] = (
    "--std=c++17",
    "--minimal",
    "--no-cache",
    "--fmad=false",
    "--generate-line-info",
    "--diag-suppress=177,550",
    "-Xptxas=-v",
)
"""Part of what generated text means: no contraction of multiply and add. Division, square root and
subnormals are IEEE by default. A result that nothing reads (177, 550) is the user's affair."""


_PROGRAM_NAME = b"/tilejit/kernel.cu"
"""Absolute, because a relative name would put the working directory into the cubin."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """``cubin``: for the exact target. ``ptx``: what it was assembled from. ``log``: the compiler's.
    ``warnings``: what costs speed and needs no change to be right (spills, serialised wgmma…)."""

    cubin: bytes
    ptx: str
    log: str
    resources: Resources
    warnings: tuple[Diagnostic, ...] = ()


@lru_cache(maxsize=1)
def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise _missing(f"cuda.bindings cannot be imported: {error}") from None
    return nvrtc


def _missing(what: str) -> TileError:
    return fault(
        CompileError, "nvrtc/missing", what,
        help="pip install 'cuda-bindings>=13.0,<14' 'nvidia-cuda-nvrtc>=13.0,<14'",
    )  # fmt: skip


def _call(name: str, *arguments: Any) -> tuple[Any, ...]:
    """One NVRTC function: (result code, values…). A missing library becomes ``nvrtc/missing``."""
    try:
        answer: tuple[Any, ...] = getattr(_bindings(), name)(*arguments)
    except RuntimeError as error:  # cuda.pathfinder's "library not found" is one
        raise _missing(f"NVRTC cannot be loaded: {error}") from None
    return answer


def _checked(name: str, *arguments: Any) -> Any:
    code, *values = _call(name, *arguments)
    if int(code):
        raise fault(CompileError, "nvrtc/api", f"{name} failed: {_code_name(code)}")
    return values[0] if values else None


def _code_name(code: Any) -> str:
    return str(getattr(code, "name", code))


@lru_cache(maxsize=1)
def version() -> tuple[int, int]:
    """NVRTC's (major, minor). ``CompileError`` (``nvrtc/missing``) when it is not installed."""
    code, major, minor = _call("nvrtcVersion")
    if int(code):
        raise fault(CompileError, "nvrtc/api", f"nvrtcVersion failed: {_code_name(code)}")
    return int(major), int(minor)


def compile_cubin(text: str, target: str, entry: str, options: Sequence[str] = ()) -> Compiled:
    """Compiles generated text for ``target`` (``sm_90a``) and reads the facts of kernel ``entry``.

    ``options`` follow ours. Raises ``CompileError`` with every message mapped to the user's source.
    """
    arguments = [f"--gpu-architecture={target}", *OPTIONS, *options]
    program = _checked("nvrtcCreateProgram", text.encode(), _PROGRAM_NAME, 0, [], [])
    try:
        encoded = [a.encode() for a in arguments]
        code = _call("nvrtcCompileProgram", program, len(encoded), encoded)[0]
        log = _fetch(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(
            errors="replace"
        )
        # The PTX exists even when assembling it failed.
        ptx = _fetch(program, "nvrtcGetPTXSize", "nvrtcGetPTX", optional=bool(int(code))).decode()
        if int(code):
            raise CompileError(_diagnostics(log, ptx, text, _code_name(code)))
        cubin = _fetch(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    finally:
        _call("nvrtcDestroyProgram", program)
    resources = elf.read(cubin, entry, log)
    return Compiled(cubin, ptx, log, resources, tuple(_warnings(log, ptx, resources)))


def _fetch(program: Any, size: str, get: str, *, optional: bool = False) -> bytes:
    code, *values = _call(size, program)
    if int(code):
        if optional:
            return b""
        raise fault(CompileError, "nvrtc/api", f"{size} failed: {_code_name(code)}")
    buffer = bytes(values[0])
    _checked(get, program, buffer)
    return buffer if get == "nvrtcGetCUBIN" else buffer.rstrip(b"\0")


# --- messages

# Compiled when first used: a kernel from the disk cache has no messages.
_CXX_MESSAGE = (
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<kind>catastrophic error|error)(?: #\S+)?: (?P<text>.+)$"
)
_PTX_MESSAGE = r"line (?P<line>\d+); (?P<kind>error|fatal)\s*: (?P<text>.+)$"
_OTHER_PTX_ERROR = r"^ptxas\s.*?(?:error|fatal)\s*: (?P<text>.+)$"
_OPERATION = r"// tilejit:op=\d+(?: (?P<file>.+):(?P<line>\d+))?$"
_LOCATION = r"^\s*\.loc\s+(\d+)\s+(\d+)"
_FILE = r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"'


def _diagnostics(log: str, ptx: str, text: str, code: str) -> list[Diagnostic]:
    """The compiler's errors; one that quotes the whole log when none is recognised."""
    found: list[Diagnostic] = []
    lines = ptx.splitlines()
    for message in log.splitlines():
        if (cxx := re.match(_CXX_MESSAGE, message)) is not None:
            span = Span(cxx["file"], int(cxx["line"]))
            notes = _quoted(text, span)
            found.append(Diagnostic("nvrtc/cxx", cxx["text"].strip(), span, notes))
        elif (assembly := re.search(_PTX_MESSAGE, message)) is not None:
            number = int(assembly["line"])
            instruction = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            plain = re.sub(_OPERATION, "", instruction).strip()
            found.append(
                Diagnostic(
                    "nvrtc/ptxas", assembly["text"].strip(), _span_at(lines, number),
                    (("where", f"PTX line {number}: {plain}"),),
                )
            )  # fmt: skip
        elif (
            re.match(_OTHER_PTX_ERROR, message) and (known := _numbered(message, lines)) is not None
        ):
            found.append(known)
        elif (other := re.match(_OTHER_PTX_ERROR, message)) is not None:
            if "Ptx assembly aborted" not in other["text"]:
                found.append(Diagnostic("nvrtc/ptxas", other["text"].strip()))
    if not found:
        found.append(Diagnostic("nvrtc/failed", f"{code}\n{log.strip()}"))
    return found


def _quoted(text: str, span: Span) -> tuple[tuple[str, str], ...]:
    """The generated line of a C++ message, which alone shows what the compiler means."""
    wanted = f'#line {span.line} "'
    lines = text.splitlines()
    for index, line in enumerate(lines[:-1]):
        if line.startswith(wanted) and span.file in line:
            return (("where", f"generated: {lines[index + 1].strip()}"),)
    return ()


def _span_at(lines: list[str], number: int) -> Span | None:
    """The user's line of PTX line ``number`` (1-based): by the operation's own comment, else by the
    nearest ``.loc`` above."""
    if not 0 < number <= len(lines):
        return None
    found = re.search(_OPERATION, lines[number - 1])
    if found is not None and found["file"]:
        return Span(found["file"], int(found["line"]))
    files = {m[1]: m[2] for line in lines if (m := re.match(_FILE, line)) is not None}
    for line in reversed(lines[:number]):
        if (at := re.match(_LOCATION, line)) is not None and at[1] in files:
            return Span(files[at[1]], int(at[2]))
    return None


@dataclass(frozen=True, slots=True)
class _Advice:
    """What a numbered message of the assembler means, and what to do."""

    meaning: str
    help: str


_SERIAL = "every wgmma waits for the one before it"
_BETWEEN = "between wgmma.fence and wait_group nothing else may touch what wgmma uses"
_ADVICE: dict[str, _Advice] = {
    "C7508": _Advice("setmaxnreg was ignored", "the launch bounds must fix the registers at entry"),
    "C7510": _Advice(
        f"{_SERIAL}: the pipeline crosses a function call",
        "take calls (print, device_assert) out of the kernel, also before the first fence and after the last "
        "wait; in the simulator they cost nothing",
    ),
    "C7511": _Advice(
        f"{_SERIAL}: too few registers for the accumulators in flight",
        "setmaxnreg.inc in the warpgroups that multiply, smaller tiles, or a wait_group on every path "
        "before the accumulators are touched",
    ),
    "C7512": _Advice(
        f"{_SERIAL}: too few registers for the function",
        "keep accumulators, A's words and about 24 more below the registers of a thread",
    ),
    "C7513": _Advice(
        f"{_SERIAL}: A's words are written while wgmma may read them",
        "wait_group before they are written again, or two sets of them",
    ),
    "C7514": _Advice(
        f"{_SERIAL}: accumulators are read while wgmma may write them",
        "wait_group on every path to the read",
    ),
    "C7515": _Advice(
        f"{_SERIAL}: accumulators are written while wgmma may use them",
        "accum=False instead of zeros; scale after wait_group",
    ),
    "C7516": _Advice(_SERIAL, _BETWEEN),
    "C7517": _Advice(
        "the assembler put in a wait for wgmma",
        "accumulators were touched without wait_group, or indexed by a run-time value",
    ),
    "C7518": _Advice(_SERIAL, _BETWEEN),
    "C7519": _Advice(
        "the assembler put in a wgmma.fence",
        "write one after the last other use of the registers; wgmma in a rolled loop: T.unroll the steps "
        "between fence and commit_group",
    ),
    "C7602": _Advice(
        "one instruction needs more registers than a thread may have",
        "fewer threads in the block, or a narrower N: setmaxnreg does not help",
    ),
}
_NUMBERED = r"\((C7[56]\d\d)\)\s*(.*)$"


def _numbered(message: str, lines: list[str]) -> Diagnostic | None:
    """A message whose number says what to do."""
    found = re.search(_NUMBERED, message)
    if found is None or found[1] not in _ADVICE:
        return None
    advice, text = _ADVICE[found[1]], found[2].strip()
    at = re.search(r"line (\d+)", text)
    return Diagnostic(
        f"nvrtc/{found[1]}",
        f"{advice.meaning} ({text}); {advice.help}",
        _span_at(lines, int(at[1])) if at else None,
    )


def _warnings(log: str, ptx: str, resources: Resources) -> Iterator[Diagnostic]:
    lines = ptx.splitlines()
    numbered = (_numbered(message, lines) for message in log.splitlines())
    yield from dict.fromkeys(found for found in numbered if found is not None)
    if resources.spill_store_bytes or resources.spill_load_bytes:
        yield Diagnostic(
            "nvrtc/spill",
            f"registers spill to local memory: {resources.spill_store_bytes} bytes stored, "
            f"{resources.spill_load_bytes} bytes loaded per thread, {resources.registers} registers",
        )
