"""``tilejit show FILE:KERNEL --stage …``: a stage of a kernel's compilation, or what it uses of a GPU.

Not here: how stages are made (``runtime.variant``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tilejit.cli import arguments, modules
from tilejit.cli.modules import Wanted
from tilejit.cli.output import OK, WrongUse, print_json
from tilejit.runtime.variant import Variant

STAGES = ("ir", "cuda", "ptx", "sass", "stats")


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE:KERNEL", help="a Python file and one of its kernels")
    parser.add_argument(
        "--stage", choices=STAGES, default="stats", help="what to print (default: stats)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments.add_to(parser)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    found = list(variants(options.file, arguments.flags_of(options)))
    shown = [
        (name, label, variant, _stage(variant, options.stage)) for name, label, variant in found
    ]
    if options.json:
        print_json(
            [
                {"kernel": name, "case": label, "target": variant.target, options.stage: stage}
                for name, label, variant, stage in shown
            ]
        )
        return OK
    for name, label, variant, stage in shown:
        if len(shown) > 1:
            print(f"--- {name}, {label}, for {variant.target}")
        print(_text(stage))
    return OK


def variants(text: str, flags: arguments.Flags) -> Iterator[tuple[str, str, Variant]]:
    """Name, case and variant of what ``FILE:KERNEL`` and flags mean; ``WrongUse`` says what is missing."""
    wanted = Wanted.parse(text)
    chosen = list(modules.each(wanted))
    if wanted.kernel is None:
        names = ", ".join(name for _, name, _ in chosen) or "none"
        raise WrongUse(f"name one kernel, as {wanted.path}:NAME; its kernels: {names}")
    arguments.refuse_unknown([kernel for _, _, kernel in chosen], flags)
    for imported, name, kernel in chosen:
        with modules.errors_of(imported.path):
            found = arguments.cases_of(kernel, imported.module, flags)
        if not found.cases:
            raise WrongUse(f"{name} needs {', '.join(found.missing)}")
        for case in found.cases:
            with modules.errors_of(imported.path):
                variant = case.make()
            yield name, case.label, variant


def stats_data(variant: Variant) -> dict[str, Any]:
    stats = variant.stats
    numbers = {f.name: getattr(stats, f.name) for f in fields(stats) if f.repr}
    return {**numbers, "bank_conflicts": list(stats.bank_conflicts)}


def _stage(variant: Variant, stage: str) -> Any:
    return stats_data(variant) if stage == "stats" else variant.asm[stage]


def _text(stage: Any) -> str:
    if isinstance(stage, str):
        return stage.rstrip("\n")
    numbers = {name: value for name, value in stage.items() if name != "bank_conflicts"}
    width = max(map(len, numbers))
    lines = [f"{name:{width}s} {round(value, 3):9}" for name, value in numbers.items()]
    return "\n".join([*lines, *stage["bank_conflicts"]])
