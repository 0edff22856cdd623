"""Every public case is proven in exactly one place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.pitfalls.cases import AUTOTUNER, CASES, COVERED, NOT_TESTS
from tests.pitfalls.test_frontend import MORE

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def functions(path: Path) -> set[str]:
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}


def written_here() -> set[str]:
    """The numbers in names of tests: ``test_l97_l99_rows…``, and of named bodies."""
    names = {n for path in HERE.glob("test_*.py") for n in functions(path)}
    found: set[str] = set()
    for name in (*names, *(f"test_{body.lower()}" for body in MORE)):
        numbers = re.match(r"test_((?:[lc]\d+[a-z]?_)+)", name)
        found |= set(numbers[1].strip("_").split("_")) if numbers else set()
    return {number[0].upper() + number[1:] for number in found}


def test_every_case_has_exactly_one_place() -> None:
    places = Counter([*written_here(), *COVERED, *AUTOTUNER, *NOT_TESTS])
    assert set(places) == set(CASES), set(places) ^ set(CASES)
    assert {case: n for case, n in places.items() if n > 1} == {}


@pytest.mark.parametrize("case", COVERED)
def test_what_covers_a_case_is_there(case: str) -> None:
    targets = COVERED[case]
    for target in (targets,) if isinstance(targets, str) else targets:
        path, _, name = target.partition("::")
        assert name in functions(ROOT / path), target


@pytest.mark.parametrize("case", NOT_TESTS)
def test_what_is_measured_has_a_benchmark(case: str) -> None:
    for path in re.findall(r"benchmarks/\w+\.py", NOT_TESTS[case]):
        assert (ROOT / path).exists(), path
