"""Why a kernel was compiled again: the differences between specialisations, in words.

Not here: the specialisations (``variant``).
"""

from __future__ import annotations

from collections.abc import Iterable

from tilejit.ir.signature import Arg, ConstArg, ScalarArg, Signature, TensorArg


def differences(old: Signature, new: Signature) -> list[str]:
    """One line per thing that differs, such as ``X: dtype float16 -> float32``."""
    lines: list[str] = []
    before = dict(old.args)
    for name, arg in new.args:
        if name in before and before[name] != arg:
            lines += [f"{name}: {text}" for text in _argument(before[name], arg)]
    if old.target != new.target:
        lines.append(f"target {old.target} -> {new.target}")
    for field in ("grid_bound", "block", "cluster"):
        a, b = getattr(old.launch, field), getattr(new.launch, field)
        if a != b:
            lines.append(f"launch {field} {a} -> {b}")
    return lines


def _argument(old: Arg, new: Arg) -> list[str]:
    if isinstance(old, TensorArg) and isinstance(new, TensorArg):
        fields = ("dtype", "shape", "strides", "align_bytes")
        pairs = ((f, getattr(old, f), getattr(new, f)) for f in fields)
        return [f"{f} {a} -> {b}" for f, a, b in pairs if a != b]
    return [f"{_describe(old)} -> {_describe(new)}"]


def _describe(arg: Arg) -> str:
    if isinstance(arg, TensorArg):
        return f"a tensor of {arg.dtype}"
    if isinstance(arg, ScalarArg):
        return f"a run-time {arg.dtype}"
    assert isinstance(arg, ConstArg)
    return f"the value {arg.value!r}"


def reason(new: Signature, earlier: Iterable[Signature], changed: str | None) -> str:
    """Why ``new`` could not use what was built before: against the nearest earlier signature.

    ``changed``: the outside value that changed since then, when that is the cause.
    """
    if changed is not None:
        return f"{changed} changed"
    candidates = [differences(old, new) for old in earlier]
    if not candidates:
        return "first call"
    nearest = min(candidates, key=len)
    return "; ".join(nearest) if nearest else "launch options changed"
