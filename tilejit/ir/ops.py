"""The operations a ``Call`` may name, as data: one table for frontend, emitter, simulator and docs.

``tile.apply``, ``tile.ewise`` and ``ptx`` are structural and described in ``ir.nodes``.
Not here: PTX instruction forms (``ptx``), contracts (``families``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["pure", "convergent", "barrier", "effect"]


@dataclass(frozen=True, slots=True)
class Op:
    """``args`` name and constrain the operands; ``result`` is a dtype name, ``T`` (the type of
    the operands marked ``T``) or ``void``. Constraint words: ``T:float``, ``T:int``, ``T:any``
    (all the same type T), a dtype name, ``shared`` (a shared pointer, or a uint32 that is a shared
    address), ``text``, ``static``, ``any`` (any scalar), ``...`` (more). ``min_target`` as of forms.
    """

    name: str
    args: tuple[str, ...]
    result: str
    effect: Effect
    doc: str
    min_target: str = "sm_75"


def _math(name: str, doc: str, arity: int = 1) -> Op:
    return Op(f"math.{name}", ("T:float",) * arity, "T", "pure", doc)


_ROWS: tuple[Op, ...] = (
    _math("exp", "e**x"),
    _math("exp2", "2**x"),
    _math("log", "Natural logarithm."),
    _math("log2", "Base-two logarithm."),
    _math("sqrt", "IEEE square root, rounded to nearest even."),
    _math("rsqrt", "1 / sqrt(x), within 2 ulp."),
    _math("sin", "Sine, radians."),
    _math("cos", "Cosine, radians."),
    _math("tanh", "Hyperbolic tangent."),
    _math("erf", "Error function."),
    _math("floor", "Largest integer not above x, as a float."),
    _math("ceil", "Smallest integer not below x, as a float."),
    _math("trunc", "x without its fraction, as a float."),
    _math("rint", "Nearest integer, ties to even, as a float."),
    _math("fma", "a * b + c rounded once.", 3),
    _math("pow", "a ** b", 2),
    Op("math.isnan", ("T:float",), "bool", "pure", "True for NaN."),
    Op("math.isinf", ("T:float",), "bool", "pure", "True for either infinity."),
    Op("bits.popc", ("T:int",), "int32", "pure", "Number of one bits."),
    Op("bits.clz", ("T:int",), "int32", "pure", "Number of leading zero bits."),
    Op("bits.brev", ("T:int",), "T", "pure", "Bits in reverse order."),
    Op("cuda.shfl_idx", ("T:any", "int32"), "T", "convergent", "Value of the lane `b`."),
    Op("cuda.shfl_xor", ("T:any", "int32"), "T", "convergent", "Value of lane `laneid ^ b`."),
    Op("cuda.shfl_up", ("T:any", "int32"), "T", "convergent", "Value of lane `laneid - b`, own value below 0."),
    Op("cuda.shfl_down", ("T:any", "int32"), "T", "convergent", "Value of lane `laneid + b`, own value past 31."),
    Op("cuda.all_sync", ("bool",), "bool", "convergent", "True when true in all 32 lanes."),
    Op("cuda.any_sync", ("bool",), "bool", "convergent", "True when true in some lane."),
    Op("cuda.ballot_sync", ("bool",), "uint32", "convergent", "Bit i is lane i's value."),
    Op("cuda.elect_sync", (), "bool", "convergent", "True in exactly one lane of the warp."),
    Op("cuda.warp_sync", (), "void", "barrier", "Joins the 32 lanes of a warp and orders their memory."),
    Op("cuda.cta_sync", (), "void", "barrier", "Joins all threads of the CTA and orders their memory."),
    Op("cuda.named_barrier_sync", ("int32", "static"), "void", "barrier", "bar.sync id, threads."),
    Op("cuda.named_barrier_arrive", ("int32", "static"), "void", "barrier", "bar.arrive id, threads."),
    Op("cuda.cluster_sync", (), "void", "barrier", "Joins all threads of the cluster.", "sm_90"),
    Op("cuda.cluster_arrive", (), "void", "barrier", "The first half of cluster_sync: releases.", "sm_90"),
    Op("cuda.cluster_wait", (), "void", "barrier", "The second half of cluster_sync: acquires.", "sm_90"),
    Op("cuda.grid_sync", (), "void", "barrier", "Joins all threads of a cooperative launch."),
    Op("cuda.mbarrier_wait", ("shared", "uint32"), "void", "barrier", "Waits for the phase of parity `b`; acquires for the CTA.", "sm_80"),
    Op("cuda.mbarrier_wait_acquire_cluster", ("shared", "uint32"), "void", "barrier", "Waits for the phase of parity `b`; acquires for the cluster.", "sm_90"),
    Op("cuda.map_shared_rank", ("shared", "int32"), "uint32", "pure", "The address in the CTA of rank `b` that corresponds to a shared one.", "sm_90"),
    Op("cuda.generic_address", ("shared",), "uint64", "pure", "The generic address of a shared one."),
    Op("cuda.fence_cta", (), "void", "effect", "fence.acq_rel.cta"),
    Op("cuda.fence_gpu", (), "void", "effect", "fence.acq_rel.gpu"),
    Op("print", ("text", "..."), "void", "effect", "Prints from every executing thread, {} holes."),
    Op("device_assert", ("bool", "text"), "void", "effect", "Traps (GPU) or faults (simulator)."),
    Op("assume", ("bool",), "void", "effect", "Promises a fact to the checker; the simulator verifies it."),
)  # fmt: skip

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
STRUCTURAL: tuple[str, ...] = ("tile.apply", "tile.ewise", "ptx")
