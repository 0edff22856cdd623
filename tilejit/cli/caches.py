"""``tilejit cache ls | why KEY | clear``: compiled kernels and tuning results on disk.

Not here: the files (``runtime.cache``, ``tune.store``).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from tilejit.cli.output import OK, WrongUse, age_text, columns, counted, print_json, size_text
from tilejit.runtime import cache
from tilejit.tune import store

_KEY_CHARS = 12


def add_to(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|why|clear")
    for name, text in (
        ("ls", "list the compiled kernels, most recently used first, and the tuning results"),
        ("why", "what one entry was made for: the parts of its key, and its resources"),
        ("clear", "remove the compiled kernels; tuning results stay without --tuning"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("--json", action="store_true", help="one JSON document")
        if name == "why":
            action.add_argument("key", metavar="KEY", help="its first digits, as ls shows them")
        if name == "clear":
            action.add_argument(
                "--tuning", action="store_true", help="remove the tuning results instead"
            )


def run(options: argparse.Namespace) -> int:
    return {"ls": _ls, "why": _why, "clear": _clear}[options.action](options)


def _ls(options: argparse.Namespace) -> int:
    entries, records = cache.ls(), store.stored()
    if options.json:
        print_json(
            {
                "directory": str(cache.directory()),
                "kernels": [
                    {
                        "key": e.key, "kernel": e.kernel, "target": e.target,
                        "size_bytes": e.size_bytes, "used_s": round(e.used_s, 1),
                    }
                    for e in entries
                ],
                "tuning": [_record_data(r) for r in records],
            }
        )  # fmt: skip
        return OK
    total = sum(e.size_bytes for e in entries)
    print(f"{cache.directory()}: {counted(len(entries), 'compiled kernel')}, {size_text(total)}")
    rows = [
        (e.key[:_KEY_CHARS], e.target, size_text(e.size_bytes), f"used {age_text(e.used_s)} ago", e.kernel)
        for e in entries
    ]  # fmt: skip
    print(columns(rows, "  ") or "  none")
    print(f"{store.directory()}: {counted(len(records), 'tuning result')}")
    tuned = [
        (r.digest[:_KEY_CHARS], f"tuned {age_text(time.time() - r.when.timestamp())} ago", r.kernel)
        for r in records
    ]
    print(columns(tuned, "  ") or "  none")
    return OK


def _record_data(record: store.Record) -> dict[str, Any]:
    return {"key": record.digest, "kernel": record.kernel, "date": record.date, "chosen": record.chosen}  # fmt: skip


def _why(options: argparse.Namespace) -> int:
    keys = [e.key for e in cache.ls() if e.key.startswith(options.key)]
    records = [r for r in store.stored() if r.digest.startswith(options.key)]
    if len(keys) + len(records) != 1:
        raise WrongUse(
            f"{len(keys) + len(records)} entries start with {options.key!r}, expected one; cache ls lists them"
        )
    facts = cache.why(keys[0]) if keys else dict(records[0].to_json())
    if not facts:
        raise WrongUse(f"{keys[0]} is damaged: the kernel is compiled again when it is next used")
    if options.json:
        print_json({"entry": keys[0] if keys else records[0].digest, **facts})
        return OK
    print(f"{keys[0] if keys else records[0].digest}")
    for row in _lines(facts, "  "):
        print(row)
    return OK


def _lines(facts: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines


def _clear(options: argparse.Namespace) -> int:
    removed = _clear_tuning() if options.tuning else cache.clear()
    what = "tuning result" if options.tuning else "compiled kernel"
    if options.json:
        print_json({"removed": removed, "what": what + "s"})
    else:
        print(f"removed {counted(removed, what)}")
    return OK


def _clear_tuning() -> int:
    records = store.stored()
    for record in records:
        store.path_of(record.kernel, record.digest).unlink(missing_ok=True)
    return len(records)
