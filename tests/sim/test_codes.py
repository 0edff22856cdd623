"""Every fault that the simulator reports is in the table of docs/simulator.md, and no other is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NO_FAULTS = {"sim/type", "sim/operand", "sim/unsimulated", "sim/step-limit"}
"""Defects and gaps of the simulator."""


def test_the_page_lists_every_code() -> None:
    sources = (ROOT / "tilejit").rglob("*.py")
    codes = {code for path in sources for code in re.findall(r'"(sim/[\w-]+)"', path.read_text())}
    page = (ROOT / "docs" / "simulator.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `sim/")]
    listed = {code for row in rows for code in re.findall(r"`(sim/[\w-]+)`", row.split("|")[1])}
    assert listed == codes - NO_FAULTS
