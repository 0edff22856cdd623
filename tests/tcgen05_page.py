"""``python -m tests.tcgen05_page``: the tables of shapes and formats in ``docs/contract/tcgen05_mma.md``,
from ``ptx.tcgen05_shapes``."""

from __future__ import annotations

from pathlib import Path

from tilejit.ptx.tcgen05_shapes import KINDS, Kind, Shape, ranges_text

PAGE = Path(__file__).parent.parent / "docs" / "contract" / "tcgen05_mma.md"
BEGIN, END = "<!-- shapes: make docs -->", "<!-- end of shapes -->"


def section() -> str:
    """Markdown between the markers."""
    families = "A target with `f` is a family: `sm_100f` stands for sm_100 and sm_103."
    return "\n".join([*_shapes(), "", families, "", *_formats()])


def page(text: str) -> str:
    """``text`` with the section between the markers renewed."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{section()}\n{END}{tail}"


def _shapes() -> list[str]:
    return [
        "| `.kind::` | CTA group | M | N | K | targets |",
        "|---|---|---|---|---|---|",
        *(_shape(kind, shape) for kind in KINDS.values() for shape in kind.shapes),
    ]


def _shape(kind: Kind, shape: Shape) -> str:
    group = f"{shape.cta_group}{', `.ws`' if shape.ws else ''}"
    targets = ", ".join(f"`{t}`" for t in kind.targets(shape).split("|"))
    return (
        f"| `{kind.name}` | {group} | {ranges_text(shape.m)} | {ranges_text(shape.n)} | {shape.k} "
        f"| {targets} |"
    )


def _formats() -> list[str]:
    return [
        "| `.kind::` | A, B | D | scale factors | MN-major | `neg_a`, `neg_b` | `sat_d` |",
        "|---|---|---|---|---|---|---|",
        *(_numbers(kind) for kind in KINDS.values()),
    ]


def _numbers(kind: Kind) -> str:
    inputs = ", ".join(
        f"`{f.name}`{f' (in `{f.stored}`)' if f.stored.bits > f.bits else ''}" for f in kind.formats
    )
    sums = "; ".join(
        f"`{a.dtype}`"
        + ("" if len(a.inputs) == len(kind.formats) else f" (of `{', '.join(a.inputs)}`)")
        for a in kind.accumulators
    )
    major = ", ".join(f"`{f.name}`" for f in kind.formats if kind.mn_major(f)) or "none"
    return (
        f"| `{kind.name}` | {inputs} | {sums} | {_scales(kind)} | {major} | {_yes(kind.negates)} "
        f"| {_yes(kind.saturates)} |"
    )


def _scales(kind: Kind) -> str:
    k = kind.shapes[0].k
    return "; ".join(
        f"{' or '.join(f'`.{q}`' for q in scale.qualifiers(k))}: "
        + ", ".join(f"`{f.dtype}`" for f in scale.formats)
        for scale in kind.scales
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print("wrote docs/contract/tcgen05_mma.md")
