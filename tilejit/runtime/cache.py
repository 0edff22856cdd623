"""The disk cache of compiled kernels: one checksummed file per entry, published by one rename.

An entry is a header (JSON) and named payloads (cubin, ptx, cuda, log). Readers verify magic, key,
lengths and SHA-256; anything that does not fit is a miss and the file is removed. Writers stage in a
unique file beside the target and rename it, so a process that is killed leaves no partial entry, and
two writers of one key leave one complete entry. Trouble with the directory (full, read-only, busy)
is a warning: the caller keeps what it compiled. Least recently used entries go first when the cap is
passed.

``TILEJIT_CACHE_DIR``: the directory (default ``$XDG_CACHE_HOME/tilejit`` or ``~/.cache/tilejit``);
``TILEJIT_CACHE_SIZE_MB``: the cap in MiB (default 1024; 0 turns the cache off).
Not here: what the key is made of (``pipeline``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

MAGIC = b"tilejit-entry-1\n"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32
_SUFFIX = ".tile"
_STAGED_PREFIX = ".staged-"
_STAGED_MAX_AGE_S = 3600.0
"""A staged file this old belongs to a process that died."""
_TOUCH_AFTER_S = 60.0
"""A hit renews an entry's place in the LRU order at most this often."""
DEFAULT_SIZE_MB = 1024


class CacheWarning(UserWarning):
    """The disk cache could not be used; the result of the compilation still is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """``header``: JSON-able facts (kernel name, resources, parameters…). ``payloads``: bytes by name."""

    header: Mapping[str, Any]
    payloads: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry as ``ls`` shows it. ``used_s``: seconds since its last use."""

    key: str
    kernel: str
    target: str
    size_bytes: int
    used_s: float


def directory() -> Path:
    """Where entries live; read from the environment at each call."""
    named = os.environ.get("TILEJIT_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilejit"


def cap_bytes() -> int:
    """The size cap; an unreadable setting counts as the default and is warned about."""
    text = os.environ.get("TILEJIT_CACHE_SIZE_MB", "")
    try:
        megabytes = float(text) if text else float(DEFAULT_SIZE_MB)
        if not 0 <= megabytes < float("inf"):
            raise ValueError
    except ValueError:
        _warn(f"TILEJIT_CACHE_SIZE_MB={text!r} is not a number of MiB; using {DEFAULT_SIZE_MB}")
        megabytes = float(DEFAULT_SIZE_MB)
    return int(megabytes * (1 << 20))


def enabled() -> bool:
    return cap_bytes() > 0


# --- entries as bytes


def pack(key: str, entry: Entry) -> bytes:
    """Magic, header length, header, payloads in the header's order, SHA-256 of all before it."""
    sizes = [[name, len(data)] for name, data in entry.payloads.items()]
    header = json.dumps(
        {"key": key, "payloads": sizes, "facts": dict(entry.header)}, sort_keys=True
    ).encode()
    body = b"".join((MAGIC, _LENGTH.pack(len(header)), header, *entry.payloads.values()))
    return body + hashlib.sha256(body).digest()


class Damaged(ValueError):
    """Bytes that ``pack`` did not write, or not all of them: says which."""


def unpack(key: str, data: bytes) -> Entry | None:
    """The entry, or None when the bytes are not exactly what ``pack(key, …)`` wrote."""
    try:
        found, entry = read(data)
    except Damaged:
        return None
    return entry if found == key else None


def read(data: bytes) -> tuple[str, Entry]:
    """The key and the entry that ``pack`` made ``data`` of; ``Damaged`` for anything else."""
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC[: len(data)]):
        raise Damaged(f"begins with {data[: len(MAGIC)]!r}, expected {MAGIC!r}")
    if len(data) < start + _DIGEST_BYTES:
        raise Damaged(f"ends after {len(data)} bytes, before its checksum")
    body, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise Damaged("does not have the SHA-256 that it ends with: cut off or changed")
    header_end = start + _LENGTH.unpack_from(body, len(MAGIC))[0]
    header = json.loads(body[start:header_end])
    payloads: dict[str, bytes] = {}
    offset = header_end
    for name, size in header["payloads"]:
        payloads[name] = body[offset : offset + size]
        offset += size
    return header["key"], Entry(header["facts"], payloads)


# --- get and put


def get(key: str) -> Entry | None:
    """The entry of ``key``, or None. A damaged one is removed."""
    if not enabled():
        return None
    path = _path(key)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"cannot read {path}: {error}")
        return None
    entry = unpack(key, data)
    if entry is None:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    _touch(path)
    return entry


def put(key: str, entry: Entry) -> bool:
    """Publishes an entry; False (after a warning) when the directory does not let us."""
    cap = cap_bytes()
    if cap == 0:
        return False
    path = _path(key)
    staged = path.parent / f"{_STAGED_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    data = pack(key, entry)
    if len(data) > cap:
        _warn(f"an entry of {len(data)} bytes is larger than the cap of {cap} bytes; not kept")
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(data)
        os.replace(staged, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        _warn(f"cannot write {path}: {error}; the compiled kernel is used but not kept")
        return False
    _evict(cap, keep=path)
    return True


def _path(key: str) -> Path:
    return directory() / "v1" / key[:2] / f"{key}{_SUFFIX}"


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _TOUCH_AFTER_S:
            os.utime(path)


def _warn(message: str) -> None:
    warnings.warn(f"tilejit cache: {message}", CacheWarning, stacklevel=3)


def _evict(cap: int, keep: Path) -> None:
    """Removes the least recently used entries until the cap holds, and what dead writers left."""
    entries: list[tuple[float, int, Path]] = []
    total = 0
    for path, status in _walk():
        if path.name.startswith(_STAGED_PREFIX):
            if time.time() - status.st_mtime > _STAGED_MAX_AGE_S:
                with contextlib.suppress(OSError):
                    path.unlink()
            continue
        total += status.st_size
        if path != keep:
            entries.append((status.st_mtime, status.st_size, path))
    for _, size, path in sorted(entries):
        if total <= cap:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _walk() -> Iterator[tuple[Path, os.stat_result]]:
    """Every file of the cache. Files that vanish meanwhile (another process evicts) are skipped."""
    root = directory() / "v1"
    try:
        folders = [Path(e.path) for e in os.scandir(root) if e.is_dir()]
    except OSError:
        return
    for folder in folders:
        try:
            files = list(os.scandir(folder))
        except OSError:
            continue
        for file in files:
            with contextlib.suppress(OSError):
                yield Path(file.path), file.stat()


# --- for people


def usage() -> tuple[int, int]:
    """How many entries there are, and their bytes."""
    sizes = [status.st_size for path, status in _walk() if path.suffix == _SUFFIX]
    return len(sizes), sum(sizes)


def ls() -> list[Listed]:
    """All entries, most recently used first."""
    now = time.time()
    found = []
    for path, status in _walk():
        if path.suffix != _SUFFIX:
            continue
        facts = _facts(path)
        found.append(
            Listed(
                path.stem,
                str(facts.get("kernel", "?")),
                str(facts.get("target", "?")),
                status.st_size,
                now - status.st_mtime,
            )
        )
    return sorted(found, key=lambda e: e.used_s)


def why(prefix: str) -> dict[str, Any]:
    """The facts of the one entry whose key starts with ``prefix``: what it was keyed on, and its
    resources. ``KeyError`` when none or several match."""
    matches = [p for p, _ in _walk() if p.suffix == _SUFFIX and p.stem.startswith(prefix)]
    if len(matches) != 1:
        raise KeyError(f"{len(matches)} cache entries start with {prefix!r}; expected one")
    return _facts(matches[0])


def _facts(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        entry = unpack(path.stem, path.read_bytes())
        if entry is not None:
            return dict(entry.header)
    return {}


def clear() -> int:
    """Removes every entry; the number removed."""
    removed = 0
    for path, _ in _walk():
        with contextlib.suppress(OSError):
            path.unlink()
            removed += path.suffix == _SUFFIX
    return removed


# --- what tilejit itself contributes to a key


@lru_cache(maxsize=1)
def package_digest() -> str:
    """SHA-256 over the paths and bytes of this package's files: never their times.

    Computed once per process, so editing tilejit while it runs does not mix two versions.
    """
    root = Path(__file__).resolve().parent.parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        name, data = path.relative_to(root).as_posix().encode(), path.read_bytes()
        total.update(b"%d:%s%d:" % (len(name), name, len(data)))
        total.update(data)
    return total.hexdigest()
