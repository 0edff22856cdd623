"""``tilejit families``: the instruction families with their forms and the evidence there is for each.

Not here: the evidence (``families.evidence``).
"""

from __future__ import annotations

import argparse
import dataclasses

from tilejit.cli.output import OK, columns, print_json
from tilejit.families import evidence


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(options: argparse.Namespace) -> int:
    record = evidence.gpu_run()
    rows = evidence.rows(record)
    if options.json:
        facts = None if record is None else {k: record[k] for k in evidence.FACTS if k in record}
        print_json({"families": [dataclasses.asdict(row) for row in rows], "gpu_run": facts})
        return OK
    header = ("family", "forms", "tile", "ran", "simulated", "lowest targets")
    table = [
        (row.family, str(row.forms), str(row.tile_forms), row.ran, row.simulated, row.targets)
        for row in rows
    ]
    print(columns([header, *table]))
    if record is not None:
        print(f"\nran: cases of the family's tests that passed on {evidence.place(record)}")
    print("tile: forms that apply takes, checked against the family's contract; every form is assembled in the tests")  # fmt: skip
    return OK
