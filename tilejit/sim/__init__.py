"""The simulator: a checked kernel on numpy bytes, with every hazard reported.

``run`` is the door. Not here: torch, contracts, code generation.
"""

from tilejit.sim.global_memory import GlobalBuffer
from tilejit.sim.run import SimOptions, SimReport, run

__all__ = ["GlobalBuffer", "SimOptions", "SimReport", "run"]
