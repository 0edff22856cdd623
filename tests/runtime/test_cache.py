"""The disk cache: exact, atomic, bounded, and harmless when the disk is not."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

import tilejit
from tilejit.errors import Diagnostic, Span
from tilejit.runtime import cache
from tilejit.runtime.artifact import Artifact
from tilejit.runtime.cache import CacheWarning, Entry
from tilejit.runtime.elf import Resources

KEY = "ab" + "0" * 62
ENTRY = Entry(
    {"kernel": "k", "target": "sm_90a"}, {"cubin": b"\x7fELF" + bytes(range(256)), "ptx": b""}
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEJIT_CACHE_SIZE_MB", raising=False)
    return tmp_path


def entry_file() -> Path:
    (path,) = cache.directory().rglob("*.tile")
    return path


def test_round_trip() -> None:
    assert cache.get(KEY) is None
    assert cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


def test_an_artifact_survives_the_cache() -> None:
    made = Artifact(
        "k", "k_entry", "sm_90a", b"cubin", "ptx", "cuda é", "log", ("X", "a"), 1024,
        Resources(40, 8, 4, 16, 2048, 512, 1, 128), KEY,
        (Diagnostic("nvrtc/spill", "spills"), Diagnostic("nvrtc/C7510", "serialised", Span("k.py", 3))),
        {"ir": "1"}, "compiled", 0.5,
    )  # fmt: skip
    cache.put(KEY, made.to_entry())
    entry = cache.get(KEY)
    assert entry is not None
    back = Artifact.from_entry(KEY, entry, "from the disk cache", 0.001)
    assert back == made and back is not None and back.origin == "from the disk cache"


def test_truncation_anywhere_is_a_miss_and_removes_the_file() -> None:
    data = cache.pack(KEY, ENTRY)
    for length in [
        0,
        1,
        len(cache.MAGIC),
        len(cache.MAGIC) + 4,
        40,
        len(data) // 2,
        len(data) - 33,
        len(data) - 1,
    ]:
        cache.put(KEY, ENTRY)
        entry_file().write_bytes(data[:length])
        assert cache.get(KEY) is None
        assert not list(cache.directory().rglob("*.tile"))


def test_a_flipped_bit_anywhere_is_a_miss() -> None:
    data = cache.pack(KEY, ENTRY)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << (position % 8)
        assert cache.unpack(KEY, bytes(broken)) is None, position


def test_bytes_after_the_end_are_a_miss() -> None:
    assert cache.unpack(KEY, cache.pack(KEY, ENTRY) + b"\0") is None


def test_an_entry_of_another_key_is_a_miss() -> None:
    assert cache.unpack("cd" + KEY[2:], cache.pack(KEY, ENTRY)) is None


@pytest.mark.parametrize("call", ["replace", "mkdir", "write"])
@pytest.mark.parametrize("code", [errno.EBUSY, errno.ENOSPC, errno.EACCES, errno.ENOENT])
def test_trouble_while_writing_is_only_a_warning(call: str, code: int) -> None:
    target = {
        "replace": "os.replace",
        "mkdir": "pathlib.Path.mkdir",
        "write": "pathlib.Path.write_bytes",
    }[call]
    with mock.patch(target, side_effect=OSError(code, os.strerror(code))):
        with pytest.warns(CacheWarning, match="not kept"):
            assert cache.put(KEY, ENTRY) is False
    assert not [p for p in cache.directory().rglob("*") if p.is_file()]


def test_trouble_while_reading_is_a_miss_with_a_warning() -> None:
    cache.put(KEY, ENTRY)
    with mock.patch("pathlib.Path.read_bytes", side_effect=OSError(errno.EBUSY, "busy")):
        with pytest.warns(CacheWarning, match="busy"):
            assert cache.get(KEY) is None


def test_trouble_while_evicting_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0.001")
    cache.put(KEY, ENTRY)
    with mock.patch("pathlib.Path.unlink", side_effect=OSError(errno.EBUSY, "busy")):
        assert cache.put("cd" + KEY[2:], ENTRY)


def test_a_directory_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(blocker / "inside"))
    with pytest.warns(CacheWarning):
        assert cache.put(KEY, ENTRY) is False


def test_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(cache.pack(KEY, ENTRY))
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", str(3.5 * size / (1 << 20)))
    keys = [f"{i:02x}" + KEY[2:] for i in range(4)]
    now = time.time()
    for age, key in zip((400, 300, 200), keys):
        cache.put(key, ENTRY)
        path = cache.directory() / "v1" / key[:2] / f"{key}.tile"
        os.utime(path, (now - age, now - age))
    assert cache.get(keys[0]) is not None  # renews it: now keys[1] is the oldest
    cache.put(keys[3], ENTRY)
    assert [cache.get(k) is not None for k in keys] == [True, False, True, True]


def test_an_entry_over_the_cap_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0.0001")
    with pytest.warns(CacheWarning, match="larger than the cap"):
        assert not cache.put(KEY, ENTRY)


def test_zero_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEY, ENTRY)
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0")
    assert cache.get(KEY) is None and not cache.put(KEY, ENTRY)


@pytest.mark.parametrize("text", ["nan", "inf", "many", "-1"])
def test_a_bad_cap_is_warned_about(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", text)
    with pytest.warns(CacheWarning, match="TILEJIT_CACHE_SIZE_MB"):
        assert cache.cap_bytes() == cache.DEFAULT_SIZE_MB << 20


def test_ls_why_clear() -> None:
    cache.put(KEY, ENTRY)
    cache.put("cd" + KEY[2:], Entry({"kernel": "other"}, {}))
    assert {(e.key, e.kernel) for e in cache.ls()} == {(KEY, "k"), ("cd" + KEY[2:], "other")}
    assert cache.why("ab0")["target"] == "sm_90a"
    with pytest.raises(KeyError, match="0 cache entries"):
        cache.why("ff")
    with pytest.raises(KeyError, match="2 cache entries"):
        cache.why("")
    assert cache.clear() == 2
    assert cache.ls() == []


WRITER = """
import sys
from tilejit.runtime import cache
from tilejit.runtime.cache import Entry
print("ready", flush=True)
i = 0
while True:
    i += 1
    key = f"{i % 5:02x}" + "0" * 62
    cache.put(key, Entry({"kernel": str(i % 5)}, {"cubin": bytes([i % 5]) * 400_000}))
    entry = cache.get(key)
    assert entry is None or entry.payloads["cubin"] == bytes([i % 5]) * 400_000
"""


def test_writers_killed_at_any_moment_leave_only_whole_entries() -> None:
    generator = random.Random(5)
    for _ in range(4):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, env=dict(os.environ)
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(generator.uniform(0.01, 0.12))
        for writer in writers:
            assert writer.poll() is None
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
    whole = 0
    for i in range(5):
        path = cache._path(f"{i:02x}" + "0" * 62)
        if path.exists():
            entry = cache.unpack(path.stem, path.read_bytes())
            assert entry is not None and entry.payloads["cubin"] == bytes([i]) * 400_000
            whole += 1
    assert whole


def test_what_dead_writers_left_is_swept() -> None:
    cache.put(KEY, ENTRY)
    folder = cache._path(KEY).parent
    old, new = folder / ".staged-1-aa", folder / ".staged-2-bb"
    for path, age in ((old, 7200), (new, 10)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    cache.put("cd" + KEY[2:], ENTRY)
    assert not old.exists() and new.exists()


def test_package_digest_counts_bytes_and_not_times(tmp_path: Path) -> None:
    package = Path(tilejit.__file__).parent
    copy = tmp_path / "site" / "tilejit"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def told() -> str:
        program = "from tilejit.runtime import cache; print(cache.package_digest())"
        return subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(copy.parent)},
            cwd=copy.parent, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    first = told()
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
    assert told() == first
    with (copy / "dtypes.py").open("a") as file:
        file.write("# changed\n")
    assert told() != first
