"""Tuning results on disk: one readable JSON file per key, and many joined into one to carry about.

``<cache directory>/tuning/<kernel>/<digest>.json`` holds the key spelled out, the chosen config and what every
config measured. Files are published by one rename; a damaged one is a miss and is said. Whoever tunes holds
a lock of the key that the system releases when the process ends, so that a second process waits and reads.
Only what was measured is stored. Public as ``tile.tuning``: ``export``, ``merge``.
Not here: what a key is (``key``), what a report says (``report``).
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import secrets
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit.errors import TuneError, fault
from tilejit.runtime import cache
from tilejit.tune.key import Key
from tilejit.tune.report import Report

SCHEMA = 1
"""Raised when a reader of older files would misread newer ones; files of another schema are misses."""
_FIELDS = {
    "schema": int, "digest": str, "key": dict, "chosen": str, "date": str, "report": dict,
}  # fmt: skip


class TuningWarning(UserWarning):
    """A tuning result that is not measured, could not be kept, or could not be read."""


@dataclass(frozen=True, slots=True)
class Record:
    """One stored result. ``chosen``: the config's digest; ``report``: what was measured, as JSON."""

    digest: str
    key: Mapping[str, Any]
    chosen: str
    report: Mapping[str, Any]
    date: str

    @property
    def device(self) -> Any:
        return self.key.get("device")

    @property
    def kernel(self) -> str:
        return str(self.key.get("kernel", "unknown"))

    @property
    def when(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.date)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "digest": self.digest,
            "date": self.date,
            "key": dict(self.key),
            "chosen": self.chosen,
            "report": {n: v for n, v in self.report.items() if n != "key"},
        }

    @staticmethod
    def from_json(data: Any) -> Record:
        """``ValueError`` with the reason for what ``to_json`` did not write."""
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {type(data).__name__}")
        for name, kind in _FIELDS.items():
            if not isinstance(data.get(name), kind):
                raise ValueError(f"{name!r} is missing or no {kind.__name__}")
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
        report = {**data["report"], "key": data["key"]}
        record = Record(data["digest"], data["key"], data["chosen"], report, data["date"])
        Report.from_json(report)  # readable, too
        if record.when.tzinfo is None:
            raise ValueError(f"the date {record.date!r} has no time zone")
        if not re.fullmatch("[0-9a-f]{64}", record.digest):
            raise ValueError(f"{record.digest!r} is no digest")
        return record


def record(key: Key, chosen: str, report: Mapping[str, Any]) -> Record:
    """A result found now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return Record(key.digest, key.facts, chosen, report, now)


def directory() -> Path:
    return cache.directory() / "tuning"


def path_of(kernel: str, digest: str) -> Path:
    """The file of a key. ``kernel``: its qualified name."""
    folder = re.sub(r"[^\w.-]+", "_", kernel).lstrip(".")
    return directory() / (folder or "_") / f"{digest}.json"


# --- one result


def get(key: Key) -> Record | None:
    """The stored result of ``key``; None where there is none, or (after a warning) none to be read."""
    if not cache.enabled():
        return None
    path = path_of(key.facts["kernel"], key.digest)
    try:
        found = Record.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{path} cannot be used ({error}); tuning again")
        return None
    if found.digest != key.digest:
        warn(f"{path} holds the result of another key; tuning again")
        return None
    return found


def put(found: Record) -> bool:
    """Publishes a result; False (after a warning) where the directory does not let us."""
    if not cache.enabled():
        return False
    try:
        _publish(path_of(found.kernel, found.digest), found.to_json())
    except OSError as error:
        warn(f"the result cannot be kept: {error}")
        return False
    return True


def _publish(path: Path, data: Mapping[str, Any]) -> None:
    """Readers see the whole file or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.parent / f".staged-{secrets.token_hex(8)}"
    try:
        staged.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(key: Key) -> Iterator[None]:
    """Holds the key's lock among processes and threads; waits for whoever has it. Where there is nothing
    to lock, nothing is held."""
    handle = _acquired(path_of(key.facts["kernel"], key.digest).with_suffix(".lock"))
    try:
        yield
    finally:
        if handle is not None:
            # Said aloud: a process that was forked meanwhile has the file open, too, and closing it here
            # alone would leave the lock with it.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _acquired(path: Path) -> int | None:
    if not cache.enabled():
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        _warn_unlocked(path, error)
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # a file system without locks
        os.close(handle)
        _warn_unlocked(path, error)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _warn_unlocked(path: Path, error: OSError) -> None:
    warn(f"{path} cannot be locked ({error}); another process may tune the same")


def warn(message: str) -> None:
    """A ``TuningWarning`` at the line of the user's that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, TuningWarning, stacklevel=level)


def _is_ours(frame: types.FrameType) -> bool:
    generated = frame.f_code.co_filename.startswith("<tilejit")
    module = str(frame.f_globals.get("__name__"))
    return generated or module == "contextlib" or module.startswith("tilejit.")


# --- many results


def stored() -> list[Record]:
    """Every readable result, by kernel and digest."""
    found = []
    for path in sorted(directory().glob("*/*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(Record.from_json(json.loads(path.read_bytes())))
    return found


def export(path: str | os.PathLike[str]) -> int:
    """Writes all stored results into one JSON file, for another machine; how many there are."""
    found = stored()
    data = {"schema": SCHEMA, "results": [r.to_json() for r in found]}
    _publish(Path(path).absolute(), data)
    return len(found)


def merge(path: str | os.PathLike[str]) -> int:
    """Takes over the results of a file that ``export`` wrote, or of a single stored one; how many were new.

    Of two results for one key the newer stays. Results of other devices are kept beside each other and are
    used there only. ``TuneError`` for a file that is neither; then nothing is taken over."""
    newer: dict[Path, Record] = {}
    for found in _read_many(Path(path)):
        place = path_of(found.kernel, found.digest)
        known = newer.get(place) or _known(place)
        if known is not None and known.device != found.device:
            raise _unreadable(path, f"{found.digest[:12]} is stored here for another device")
        if known is None or known.when < found.when:
            newer[place] = found
    for place, found in newer.items():
        _publish(place, found.to_json())
    return len(newer)


def _known(path: Path) -> Record | None:
    try:
        return Record.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _read_many(path: Path) -> list[Record]:
    try:
        data = json.loads(path.read_bytes())
        many = data["results"] if isinstance(data, dict) and "results" in data else [data]
        return [Record.from_json(one) for one in many]
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Any, why: str) -> Exception:
    return fault(
        TuneError,
        "tune/store",
        f"{path} cannot be merged: {why}",
        help="merge takes a file that tile.tuning.export wrote",
    )
