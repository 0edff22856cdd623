"""Watching what is lowered, and the round trips of the IR through its script and through JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tilejit.ir import nodes
from tilejit.ir.script import parse_function, print_function
from tilejit.ir.serial import from_json, to_json
from tilejit.pipeline import Pipeline


@contextmanager
def lowered_functions() -> Iterator[list[nodes.Function]]:
    """Every function that any kernel lowers to while the context lasts."""
    found: list[nodes.Function] = []
    lower = Pipeline.lower

    def recording(self: Pipeline, *args: object) -> object:
        result = lower(self, *args)  # type: ignore[arg-type]
        found.append(result.function)
        return result

    with mock.patch.object(Pipeline, "lower", recording):
        yield found


def check(function: nodes.Function) -> None:
    """Script and JSON give back the same function."""
    script = print_function(function)
    assert parse_function(script) == function, script
    assert from_json(to_json(function)) == function, script
