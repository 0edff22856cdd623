"""Expressions to closures: each maps a cohort to an array of values, broadcastable to (warps, 32).

Compiling decides everything that does not depend on values: types, slots, static register numbers,
which buffer an address came from. Inactive lanes compute too; only what has an effect on memory or
can fault looks at the mask.

Not here: what operators do to values (``scalar``), statements (``program``), tile steps (``issue``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from tilejit import dtypes, ir
from tilejit.dtypes import DType
from tilejit.errors import InternalError, Span, Unsimulated, fault
from tilejit.ir import nodes, views
from tilejit.sim import convergent, scalar
from tilejit.sim.access import Accesses
from tilejit.sim.batch import hardware_id
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.faults import Site
from tilejit.sim.registers import RegisterFile

Evaluate: TypeAlias = Callable[[Cohort], Array]
