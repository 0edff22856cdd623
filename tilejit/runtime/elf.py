"""Facts of a kernel read from its cubin (an ELF64 file) and the compiler's log.

Registers, stack frame, barriers and limits are in ``.nv.info`` records; shared memory and code sizes
are section sizes. Spill counts exist only in the log that ``-Xptxas -v`` makes.
``occupancy`` computes how many blocks an SM holds from the target's limits.

Not here: compiling (``nvrtc``), asking a driver.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tilejit.errors import InternalError, fault
from tilejit.target import Target

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REGISTER_COUNT, _FRAME_SIZE, _MAX_THREADS, _BARRIERS = 0x2F, 0x11, 0x05, 0x4C
_BYTE_VALUE, _HALF_VALUE, _SIZED_VALUE = 2, 3, 4
_RESERVED_SHARED_BYTES = 1024
"""From sm_90 on, a kernel with shared memory shows what the system keeps of it."""
_SPILLS = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"


@dataclass(frozen=True, slots=True)
class Resources:
    """``registers``: 32-bit, per thread. ``local_bytes``: stack frame per thread, spills included.
    ``static_shared_bytes``: per block, without dynamic shared memory. ``barriers``: named barriers
    in use. ``max_threads``: threads per block the kernel was compiled for, 0 if unbounded."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    local_bytes: int
    static_shared_bytes: int
    code_bytes: int
    barriers: int
    max_threads: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    raw = [_SECTION.unpack_from(data, table + i * entry_bytes) for i in range(count)]
    names_at = raw[names_index][4]
    return [
        _Section(_text(data, names_at + r[0]), r[1], r[4], r[5], r[6]) for r in raw
    ]  # fmt: skip


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of an ``.nv.info`` section."""
    at = 0
    while at + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == _SIZED_VALUE:
            yield attribute, data[at : at + value]
            at += value
        elif kind in (_BYTE_VALUE, _HALF_VALUE):
            yield attribute, struct.pack("<H", value)


def read(cubin: bytes, entry: str, log: str = "") -> Resources:
    """What the kernel ``entry`` uses. ``InternalError`` when the cubin has no such kernel."""
    if cubin[:4] != b"\x7fELF":
        raise fault(InternalError, "elf/format", "the compiler's output is not an ELF file")
    sections = {s.name: s for s in _sections(cubin)}
    code = sections.get(f".text.{entry}")
    if code is None:
        raise fault(InternalError, "elf/entry", f"the cubin has no kernel {entry}")
    whole = _of_symbol(cubin, sections, entry)
    own = sections.get(f".nv.info.{entry}")
    records = dict(_records(_bytes(cubin, own))) if own else {}
    threads = records.get(_MAX_THREADS)
    barriers = records.get(_BARRIERS, b"\0\0")[0]
    frame, stores, loads = _spills(log, entry)
    return Resources(
        registers=whole.get(_REGISTER_COUNT, 0),
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        local_bytes=whole.get(_FRAME_SIZE, frame),
        static_shared_bytes=_static_shared(cubin, sections, entry),
        code_bytes=code.size,
        barriers=barriers,
        max_threads=_product(threads) if threads else 0,
    )


def _product(threads: bytes) -> int:
    x, y, z = struct.unpack_from("<III", threads)
    return int(x * y * z)


def _bytes(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _of_symbol(data: bytes, sections: dict[str, _Section], entry: str) -> dict[int, int]:
    """Per-symbol values of the file-wide ``.nv.info`` for one kernel."""
    info, symbols, strings = (sections.get(n) for n in (".nv.info", ".symtab", ".strtab"))
    if info is None or symbols is None or strings is None:
        return {}
    names: dict[int, str] = {}
    for index in range(symbols.size // _SYMBOL.size):
        name_at = _SYMBOL.unpack_from(data, symbols.offset + index * _SYMBOL.size)[0]
        names[index] = _text(data, strings.offset + name_at)
    found: dict[int, int] = {}
    for attribute, value in _records(_bytes(data, info)):
        if attribute in (_REGISTER_COUNT, _FRAME_SIZE) and len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            if names.get(symbol) == entry:
                found[attribute] = number
    return found


def _static_shared(data: bytes, sections: dict[str, _Section], entry: str) -> int:
    section = sections.get(f".nv.shared.{entry}")
    if section is None:
        return 0
    reserved = _RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in sections else 0
    return max(0, section.size - reserved)


def _spills(log: str, entry: str) -> tuple[int, int, int]:
    """Frame, spill stores and spill loads in bytes."""
    at = log.find(f"Function properties for {entry}")
    found = re.search(_SPILLS, log[at:]) if at >= 0 else None
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


# --- occupancy


@dataclass(frozen=True, slots=True)
class Occupancy:
    """``blocks_per_sm`` blocks fit one SM; ``warps`` are ``fraction`` of the SM's warps;
    ``limited_by`` is what ran out first."""

    blocks_per_sm: int
    warps: int
    fraction: float
    limited_by: str


_REGISTER_UNIT = 256
"""Registers are given out to whole warps in this unit."""


def occupancy(
    resources: Resources, target: Target, threads: int, dynamic_shared_bytes: int
) -> Occupancy:
    """How many blocks of ``threads`` threads an SM of ``target`` holds at once."""
    limits = target.limits
    warps = -(-threads // 32)
    of_warp = -(-max(resources.registers, 1) * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    shared = resources.static_shared_bytes + dynamic_shared_bytes + limits.reserved_smem_bytes
    bounds = {
        "blocks": limits.blocks_per_sm,
        "threads": limits.threads_per_sm // (warps * 32),
        "registers": limits.registers_per_sm // of_warp // warps,
        "shared memory": limits.smem_per_sm_bytes // shared,
    }
    limiting = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limiting]
    return Occupancy(blocks, blocks * warps, blocks * warps * 32 / limits.threads_per_sm, limiting)
