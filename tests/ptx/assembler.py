"""Asks the assembler inside NVRTC which PTX statements it refuses. Run as a script, on purpose:
a wrong spelling can crash the assembler, and with it the process.

stdin: JSON ``{"target": "sm_90a", "statements": ["add.f32 f0, f1, f2;", …]}``
stdout: JSON ``{"3": "Illegal modifier …"}``, index of each refused statement.
"""

from __future__ import annotations

import json
import re
import sys

from cuda.bindings import nvrtc

REGISTERS = (
    ".reg .b8 c<40>; .reg .b16 h<40>; .reg .b32 r<140>, sa; .reg .f32 f<140>; "
    ".reg .b64 d<140>, da, dl; .reg .f64 e<40>; .reg .b128 q<9>; .reg .pred p<140>;"
)
CHUNK = 4000


def compile_log(statements: list[str], target: str) -> tuple[bool, str, int]:
    """Whether the statements assemble, the log, and the PTX line of the first statement."""
    body = "\\n".join(("{", REGISTERS, *statements, "}"))
    source = f'extern "C" __global__ void k() {{ asm volatile("{body}"); }}'
    options = [f"--gpu-architecture={target}", "--minimal", "--no-cache", "-Xptxas=-O0"]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    nvrtc.nvrtcDestroyProgram(program)
    lines = ptx.splitlines()
    first = next((i for i, line in enumerate(lines) if REGISTERS in line), -1) + 2
    return result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log, first


def _text(program, size_of, get) -> str:
    _, size = size_of(program)
    buffer = b" " * size
    get(program, buffer)
    return buffer.rstrip(b"\x00 ").decode()


def refused(statements: list[str], target: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for start in range(0, len(statements), CHUNK):
        pending = list(range(start, min(start + CHUNK, len(statements))))
        found.update(_refused_of(pending, statements, target))
    return found


def _refused_of(pending: list[int], statements: list[str], target: str) -> dict[int, str]:
    """A syntax error hides all later ones: what is left is tried again until it assembles."""
    found: dict[int, str] = {}
    while pending:
        ok, log, first = compile_log([statements[i] for i in pending], target)
        if ok:
            return found
        wrong = {
            pending[int(line) - first]: message.strip()
            for line, message in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", log)
            if 0 <= int(line) - first < len(pending)
        }
        if not wrong and len(pending) == 1:
            found[pending[0]] = log or "refused without a word"
            return found
        if not wrong:
            middle = len(pending) // 2
            for half in (pending[:middle], pending[middle:]):
                found.update(_refused_of(half, statements, target))
            return found
        found.update(wrong)
        pending = [i for i in pending if i not in wrong]
    return found


if __name__ == "__main__":
    job = json.load(sys.stdin)
    json.dump(refused(job["statements"], job["target"]), sys.stdout)
