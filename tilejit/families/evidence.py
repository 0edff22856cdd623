"""What is known of each family beyond its contract: its forms, what simulates them, what ran on silicon.

``evidence.json`` beside this module is the record of the last run of the tests' GPU cases; ``make test-gpu``
renews it. The page ``docs/evidence.md`` and ``tilejit families`` say the same from here.

Not here: the families, running tests.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit.families import FAMILIES
from tilejit.ptx import spelling
from tilejit.ptx.forms import Form
from tilejit.target import Target

RECORD = Path(__file__).with_name("evidence.json")
FACTS = ("date", "gpu", "target", "driver", "torch", "python")
"""Of a record: where and when it was made."""


@dataclass(frozen=True, slots=True)
class Row:
    """``tile_forms``: those that ``apply`` takes. ``targets``: the forms' lowest targets and how many have
    each. ``ran``: passed cases of the family's own test module, or why there is no number."""

    family: str
    forms: int
    tile_forms: int
    targets: str
    simulated: str
    ran: str


def gpu_run() -> dict[str, Any] | None:
    """The last GPU run; None where none is recorded."""
    try:
        record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record


def place(record: dict[str, Any]) -> str:
    """Where a run was made, in words."""
    facts = ", ".join(f"{key} {record[key]}" for key in ("driver", "torch") if key in record)
    return f"{record.get('gpu', 'no GPU')} ({record.get('target', '?')}), {facts}, {record['date']}"


def rows(record: dict[str, Any] | None) -> list[Row]:
    """One per family, by name."""
    found = []
    for name, family in sorted(FAMILIES.items()):
        forms = spelling.forms_of_family(name)
        found.append(
            Row(
                name,
                len(forms),
                sum(form.tile for form in forms),
                lowest_targets(forms),
                family.simulated,
                ran(name, forms, record),
            )
        )
    return found


def lowest_targets(forms: tuple[Form, ...]) -> str:
    """``sm_90: 3, …``: the forms' lowest targets and how many have each."""
    targets = Counter(form.min_target for form in forms)
    listed = (f"{target.replace('|', ' or ')}: {n}" for target, n in sorted(targets.items()))
    return ", ".join(listed) or "–"


def ran(family: str, forms: tuple[Form, ...], record: dict[str, Any] | None) -> str:
    """How many cases of the family's tests passed on the GPU of a run."""
    if record is None or (forms and len(beyond(forms, record)) == len(forms)):
        return "no"
    passed = record["modules"].get(f"families/test_{family}", {}).get("passed", 0)
    return str(passed) if passed else "in other modules"


def beyond(forms: tuple[Form, ...], record: dict[str, Any]) -> tuple[Form, ...]:
    """Those that the GPU of a run does not have."""
    target = Target.parse(record["target"])
    return tuple(form for form in forms if not target.supports(form.min_target))
