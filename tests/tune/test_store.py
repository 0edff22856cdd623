"""Results on disk: what is read back, what is a miss, joining and parting, processes that are killed."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilejit as tile
from tilejit.tune import store
from tilejit.tune.key import Key
from tilejit.tune.report import Report, Row
from tilejit.tune.search import Interval

ROOT = Path(__file__).parent.parent.parent
H200 = {"name": "NVIDIA H200", "sm_count": 132, "target": "sm_90a", "driver": "580.1"}


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))


def key(digit: str = "a", device: dict[str, Any] = H200, kernel: str = "m.<locals>.k") -> Key:
    return Key("k", {"kernel": kernel, "device": device, "arguments": {"X": "f32"}}, digit * 64)


def report(of: Key, *, source: Any = "measured") -> Report:
    row = Row("BLOCK=64", "measured", seconds=Interval(1e-5, 9e-6, 1.1e-5, 12))
    out = Row("BLOCK=4096", "pruned", "frontend/launch: a block has at most 1024 threads")
    return Report(
        kernel="k", key=of.facts, device=of.device, source=source, rows=(row, out), chosen=0,
    )  # fmt: skip


def record(of: Key, date: str | None = None) -> store.Record:
    made = store.record(of, "chosen", report(of).to_json())
    return replace(made, date=date) if date else made


def test_a_result_is_read_back_and_readable_by_people() -> None:
    assert store.get(key()) is None
    made = record(key())
    assert store.put(made)
    found = store.get(key())
    assert found == made
    assert found is not None and Report.from_json(found.report).best.config == "BLOCK=64"
    path = store.path_of("m.<locals>.k", "a" * 64)
    assert path.parent.name == "m._locals_.k" and path.parent.parent == store.directory()
    text = path.read_text()
    assert json.loads(text)["key"] == key().facts and text.count("NVIDIA H200") == 2
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert store.get(key("b")) is None


DAMAGES = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no object": lambda text: "[]",
    "another schema": lambda text: text.replace('"schema": 1', '"schema": 99'),
    "no report": lambda text: text.replace('"report"', '"rapport"'),
    "report without rows": lambda text: text.replace('"configs"', '"confiks"'),
    "another key": lambda text: text.replace("a" * 64, "b" * 64),
    "date": lambda text: text.replace('"date": "2', '"date": "x'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss_and_is_said(damage: str) -> None:
    store.put(record(key()))
    path = store.path_of("m.<locals>.k", "a" * 64)
    path.write_text(DAMAGES[damage](path.read_text()))
    with pytest.warns(tile.TuningWarning, match="tuning again"):
        assert store.get(key()) is None
    store.put(record(key()))
    assert store.get(key()) is not None


def test_what_was_estimated_is_never_stored() -> None:
    with pytest.raises(tile.TuneError, match="estimate"):
        report(key(), source="estimated by the model").to_json()


def test_a_directory_that_takes_nothing_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("a file where the directory should be")
    with pytest.warns(tile.TuningWarning, match="cannot be kept"):
        assert not store.put(record(key()))
    with pytest.warns(tile.TuningWarning, match="cannot be locked"), store.locked(key()):
        pass


def test_without_a_disk_cache_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0")
    with store.locked(key()):
        assert not store.put(record(key()))
    assert store.get(key()) is None and not list(tmp_path.iterdir())


# --- many


def test_results_travel_in_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for digit in "abc":
        store.put(record(key(digit)))
    file = tmp_path / "all.json"
    assert tile.tuning.export(file) == 3
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "other"))
    assert tile.tuning.merge(file) == 3 and tile.tuning.merge(file) == 0
    assert store.get(key("b")) is not None
    again = tmp_path / "again.json"
    tile.tuning.export(again)
    assert again.read_text() == file.read_text()


def test_the_newer_of_two_results_stays(tmp_path: Path) -> None:
    old, new = "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+01:00"
    file = tmp_path / "one.json"
    file.write_text(json.dumps(record(key(), old).to_json()))
    store.put(record(key(), new))
    assert tile.tuning.merge(file) == 0 and store.get(key()).date == new  # type: ignore[union-attr]
    file.write_text(json.dumps(record(key(), "2027-01-01T00:00:00+00:00").to_json()))
    assert tile.tuning.merge(file) == 1
    both = {"schema": 1, "results": [record(key("d"), d).to_json() for d in (new, old)]}
    file.write_text(json.dumps(both))
    assert tile.tuning.merge(file) == 1 and store.get(key("d")).date == new  # type: ignore[union-attr]


def test_devices_are_never_mixed(tmp_path: Path) -> None:
    store.put(record(key()))
    file = tmp_path / "other.json"
    other = record(key(device={**H200, "name": "NVIDIA B200"}), "2030-01-01T00:00:00+00:00")
    both = [record(key("c")).to_json(), other.to_json()]
    file.write_text(json.dumps({"schema": 1, "results": both}))
    with pytest.raises(tile.TuneError, match="another device"):
        tile.tuning.merge(file)
    assert store.get(key()).device == H200 and store.get(key("c")) is None  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [None, "{", "3", '{"results": 4}', '{"results": [{}]}', "{}"])
def test_what_cannot_be_merged(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(tile.TuneError) as found:
        tile.tuning.merge(file)
    assert found.value.codes == ("tune/store",)


def test_a_path_in_a_digest_or_name_leads_nowhere_else(tmp_path: Path) -> None:
    bad = {**record(key()).to_json(), "digest": "../../x"}
    file = tmp_path / "x.json"
    file.write_text(json.dumps(bad))
    with pytest.raises(tile.TuneError, match="no digest"):
        tile.tuning.merge(file)
    for name in ("../../k", "..", ".", ""):
        assert store.path_of(name, "a" * 64).parent.parent == store.directory()
        assert store.path_of(name, "a" * 64).parent.name.strip(".")


# --- locks


def test_threads_hold_a_lock_one_after_another() -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with store.locked(key()):
                inside += 1
                time.sleep(0.0005)
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert most == 1


HOLDER = """
import sys, time; sys.path.insert(0, {root!r})
from tests.tune.test_store import key, store
with store.locked(key()):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    environment = {**os.environ, "TILEJIT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLDER.format(root=str(ROOT))]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        entered = threading.Event()

        def wait() -> None:
            with store.locked(key()):
                entered.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.2)
        holder.send_signal(signal.SIGKILL)
        waiting.join()
    assert entered.is_set()


def test_a_lock_is_given_back_although_a_forked_process_has_its_file_open() -> None:
    entered = threading.Event()
    with store.locked(key()):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)

    def enter() -> None:
        with store.locked(key()):
            entered.set()

    try:
        threading.Thread(target=enter, daemon=True).start()
        assert entered.wait(30)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_is_a_warning_at_the_line_that_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(store.TuningWarning, match="cannot be locked") as told:
        with store.locked(key()):
            pass
    assert told[0].filename == __file__
