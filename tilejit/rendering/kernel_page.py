"""The page of a kernel: what it takes, what it uses, which contracts hold, and its code at every stage.

The source stands beside CUDA C++, PTX and SASS; pointing at a line marks what became of it. A page makes
nothing that was not there: without a cubin it says how to get one. Long listings are cut.

Not here: what the numbers mean (``runtime.artifact``), text of the stages (``runtime.variant``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilejit import markup
from tilejit.errors import Span, TileError
from tilejit.ir import nodes, storage
from tilejit.ir.signature import ConstArg, ScalarArg, TensorArg
from tilejit.markup import Html
from tilejit.rendering import contract_table, sources
from tilejit.rendering.sources import Listing, Sources, shown
from tilejit.rendering.stages import Line
from tilejit.runtime.specialise import Param
from tilejit.runtime.variant import Variant
from tilejit.tile.banks import BankReport
from tilejit.tile.call import TileCall
from tilejit.tile.issue_counts import IssueCount

MAX_LINES = 2000
"""Of one listing."""
MAX_CHARACTERS = 200_000
MAX_LINE_CHARACTERS = 400
MAX_ROWS = 200
"""Of one table."""

STYLE = """
.tilejit.tilejit .panes{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:10px;align-items:start}
@media (max-width:1000px){.tilejit.tilejit .panes{grid-template-columns:minmax(0,1fr)}}
.tilejit.tilejit .stages label{display:inline-block;padding:1px 9px;cursor:pointer;font-weight:600}
.tilejit.tilejit .stages label input{margin:0 .4em 0 0;vertical-align:-2px}
.tilejit.tilejit .heading{font-weight:600;padding:1px 0;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.tilejit.tilejit .functions{max-height:38em;overflow-y:auto}
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checker says of a variant: the calls of its table, what they issue, their banks."""

    calls: Sequence[TileCall]
    issues: Sequence[IssueCount]
    banks: Sequence[BankReport]


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of generated code, or why it cannot be shown."""

    name: str
    lines: tuple[Line, ...] = ()
    why_not: str = ""


def kernel_page(variant: Variant, facts: Facts, generated: Sequence[Stage]) -> str:
    """``generated``: empty where there is no cubin."""
    function = variant.function
    span = function.span
    keys = Sources(variant.source.file, 1 if span is None else span.line)
    places = [line.place for stage in generated for line in stage.lines]
    places += [(i.span.file, i.span.line) for i in facts.issues if i.span is not None]
    listings = keys.listings(places)
    parts = [
        Html(f"<style>{STYLE}</style>"),
        _title(variant),
        _summary(variant),
        markup.details("Arguments and launch", _launch(variant)),
        markup.details("Shared memory", _shared(function)) if _buffers(function) else "",
        _contracts(facts, keys),
        _instructions(facts, generated, keys, listings),
        _panes(variant, generated, keys, listings, facts),
    ]
    return markup.fragment(markup.join(parts))


def broken_page(variant: Variant, error: TileError) -> str:
    """Of a kernel that does not keep its contracts: what is wrong."""
    return markup.fragment(markup.join((_title(variant), error.html())))


def outline_page(name: str, params: Sequence[Param], doc: str | None) -> str:
    """Of a kernel that has not been specialised: its parameters, and how to go on."""
    rows = [
        (markup.tag("code", p.name), _annotation(p), repr(p.default) if p.has_default else "")
        for p in params
    ]
    arguments = ", ".join(p.name for p in params if not p.has_default)
    help_ = markup.join(
        (
            "Not specialised yet. Call it, or look at it without running it: ",
            markup.tag("code", f"{name}.check({arguments})"),
            " checks its contracts, ",
            markup.tag("code", f'{name}.compile({arguments}, target="sm_90a")'),
            " makes the code for a target, without a GPU.",
        )
    )
    parts = [
        markup.tag("div", markup.join(("kernel ", markup.tag("code", name))), class_="title"),
        markup.tag("div", doc.strip().splitlines()[0], class_="faint") if doc else "",
        markup.table(("parameter", "annotation", "default"), rows),
        markup.tag("div", help_),
    ]
    return markup.fragment(markup.join(parts))


def _annotation(param: Param) -> Html:
    """As it is written."""
    _, found, annotation = sources.text_of(param.span).partition(":")
    if not found:
        return markup.escape("any: a tensor, a run-time scalar or None")
    return markup.tag("code", " ".join(annotation.split()))


# --- head


def _title(variant: Variant) -> Html:
    name = markup.tag("code", variant.source.name)
    return markup.tag(
        "div",
        markup.join(("kernel ", name, f" for {variant.target}, {shown(variant.source.file)}")),
        class_="title",
    )


def _summary(variant: Variant) -> Html:
    if not variant.compiled:
        hint = (
            f"Checked, not compiled: {variant.source.name}.compile(…) with the same arguments adds registers, "
            "occupancy, CUDA C++, PTX and SASS; no GPU is needed."
        )
        return markup.tag("div", hint, class_="faint")
    stats = variant.stats
    spilled = markup.tag(
        "span", f"{stats.spill_bytes} B", class_="bad" if stats.spill_bytes else "good"
    )
    header = (
        "registers a thread", "spills", "shared memory a CTA", "threads a CTA", "CTAs an SM", "occupancy",
        "code",
    )  # fmt: skip
    row = (
        stats.registers, spilled, f"{stats.shared_bytes:,} B".replace(",", " "), stats.threads,
        stats.blocks_per_sm, f"{stats.occupancy:.0%}", f"{stats.code_bytes:,} B".replace(",", " "),
    )  # fmt: skip
    warnings = [
        markup.tag("div", markup.tag("span", w.message, class_="bad")) for w in variant.warnings
    ]
    return markup.join(
        (
            markup.table(header, [row], numeric=range(len(header))),
            *warnings,
            markup.tag(
                "div", f"{variant.origin} in {variant.seconds * 1e3:.0f} ms.", class_="faint"
            ),
        )
    )


def _launch(variant: Variant) -> Html:
    launch = variant.function.launch
    signature = variant.signature
    rows = [(markup.tag("code", name), *_argument(argument)) for name, argument in signature.args]
    block = " × ".join(map(str, launch.block))
    cluster = "" if launch.cluster is None else f", clusters of {' × '.join(map(str, launch.cluster))}"  # fmt: skip
    bound = " × ".join(map(str, launch.grid_bound))
    return markup.join(
        (
            markup.table(("argument", "specialised to", "strides in elements", "aligned to"), rows),
            markup.tag("div", f"Blocks of {block} threads{cluster}; a grid of at most {bound} CTAs."),
        )
    )  # fmt: skip


def _argument(argument: TensorArg | ScalarArg | ConstArg) -> tuple[str, str, str]:
    match argument:
        case TensorArg(dtype=dtype, shape=shape, strides=strides, align_bytes=align_bytes):
            return f"{dtype} ({_sizes(shape)})", f"({_sizes(strides)})", f"{align_bytes} bytes"
        case ScalarArg(dtype=dtype):
            return f"{dtype}, a run-time value", "", ""
        case ConstArg(value=value):
            return f"{value!r}, at compile time", "", ""


def _sizes(sizes: Iterable[int | None]) -> str:
    return ", ".join("any" if size is None else str(size) for size in sizes)


def _buffers(function: nodes.Function) -> list[tuple[str, nodes.TensorType]]:
    found = [(s.buffer.name, s.buffer.type) for s in storage.shared_allocations(function)]
    return [(name, type_) for name, type_ in found if isinstance(type_, nodes.TensorType)]


def _shared(function: nodes.Function) -> Html:
    """Every shared buffer and where it lies."""
    rows: list[tuple[object, ...]] = []
    end = 0
    for name, type_ in _buffers(function):
        start, size = storage.shared_offset(end, type_), storage.storage_bytes(type_)
        end = start + size
        shape = ", ".join(map(str, type_.shape))
        layout = "none" if type_.layout is None else markup.tag("code", _notation(type_))
        rows.append(
            (markup.tag("code", name), f"{type_.dtype} ({shape})", start, size, type_.align_bytes, layout)
        )  # fmt: skip
    rows.append(("all", "", "", end, "", ""))
    header = ("buffer", "type", "starts at, bytes", "size, bytes", "aligned to, bytes", "layout")
    return _long_table(header, rows, numeric=(2, 3, 4))


def _notation(type_: nodes.TensorType) -> str:
    from tilejit import layout

    assert type_.layout is not None
    return layout.render(type_.layout)


# --- tables


def _long_table(
    header: Sequence[object], rows: Sequence[Sequence[object]], numeric: Sequence[int]
) -> Html:
    table = markup.table(header, rows[:MAX_ROWS], numeric=numeric)
    if len(rows) <= MAX_ROWS:
        return table
    left = markup.tag("div", f"… and {len(rows) - MAX_ROWS} more", class_="faint")
    return markup.join((table, left))


def _contracts(facts: Facts, keys: Sources) -> Html:
    if not facts.calls:
        return Html("")

    def key(span: Span | None) -> str | None:
        return None if span is None else keys.key((span.file, span.line))

    conflicts = sum(b.conflicted for b in facts.banks)
    found = f", {conflicts} accesses with bank conflicts" if conflicts else ""
    title = f"Contracts: {len(facts.calls)} tile calls, all hold{found}"
    return markup.details(title, contract_table.table(facts.calls, facts.banks, key))


def _instructions(
    facts: Facts, generated: Sequence[Stage], keys: Sources, listings: Sequence[Listing]
) -> Html:
    """By source line: what the kernel issues, and instructions of PTX and SASS."""
    issued: dict[str, list[IssueCount]] = {}
    for issue in facts.issues:
        if issue.span is not None:
            key = keys.key((issue.span.file, issue.span.line))
            if key is not None:
                issued.setdefault(key, []).append(issue)
    made = {stage.name: _counts(stage, keys) for stage in generated if stage.lines}
    counted = [name for name in ("PTX", "SASS") if name in made]
    rows: list[tuple[object, ...]] = []
    for listing in listings:
        for key, text in zip(listing.keys, listing.text.splitlines()):
            counts = [made[name].get(key, 0) for name in counted]
            if key in issued or any(counts):
                issues = markup.join(map(_issue, issued.get(key, ())))
                code = markup.tag("code", text.strip()[:90])
                rows.append((key, code, issues, *(count or "" for count in counts)))
    if not rows:
        return Html("")
    header = ("line", "source", "issued by each thread, where not said otherwise", *counted)
    numeric = (0, *range(3, 3 + len(counted)))
    return markup.details("Instructions by line", _long_table(header, rows, numeric))


def _issue(issue: IssueCount) -> Html:
    who = "" if issue.unit == "thread" else f", each {issue.unit}"
    body = markup.join((markup.opcode(issue.spelling), f" × {issue}{who}"))
    return markup.tag("div", body)


def _counts(stage: Stage, keys: Sources) -> Mapping[str, int]:
    found = (keys.key(line.place) for line in stage.lines if line.instruction)
    return Counter(key for key in found if key is not None)


# --- listings


def _panes(
    variant: Variant,
    generated: Sequence[Stage],
    keys: Sources,
    listings: Sequence[Listing],
    facts: Facts,
) -> Html:
    last = _lowest(generated)
    counts = _counts(last, keys) if last is not None else _issue_counts(facts, keys)
    what = f"{last.name} instructions" if last is not None else "instructions issued"
    left = markup.tag("div", markup.join(_functions(listings, counts)), class_="functions")
    heading = markup.tag("div", f"Source: line, {what}", class_="heading")
    source = markup.tag("div", markup.join((heading, left)))
    if not generated:
        return source
    hint = "Point at a line to see what became of it; click to keep it and bring it into view."
    note = markup.tag("div", hint, class_="faint")
    panes = markup.join((source, _stages(generated, keys)))
    return markup.join((note, markup.tag("div", panes, class_="panes")))


def _lowest(generated: Sequence[Stage]) -> Stage | None:
    """The stage nearest to the hardware that there is."""
    return next((stage for stage in reversed(generated) if stage.lines), None)


def _issue_counts(facts: Facts, keys: Sources) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for issue in facts.issues:
        key = None if issue.span is None else keys.key((issue.span.file, issue.span.line))
        if key is not None:
            found[key] += issue.per_pass
    return found


def _functions(listings: Sequence[Listing], counts: Mapping[str, int]) -> Iterator[Html]:
    for number, listing in enumerate(listings):
        code = markup.code(
            listing.text, lines=listing.keys, counts=[counts.get(key) for key in listing.keys]
        )
        if number == 0:
            yield code
        else:
            yield markup.details(listing.title, code)


def _stages(generated: Sequence[Stage], keys: Sources) -> Html:
    """Tabs without a script: radio buttons of one form, and rules that show the chosen stage."""
    rules = "".join(
        f".tilejit.tilejit .stages:has(input[value={s.name}]:checked) .stage[data-stage={s.name}]{{display:block}}"
        for s in generated
    )
    style = (
        "@supports selector(:has(a)){.tilejit.tilejit .stage{display:none}.tilejit.tilejit .stage>.heading{display:none}"
        f"{rules}}}"
    )
    tabs = [
        Html(
            f'<label><input type="radio" name="stage" value="{s.name}"'
            f"{' checked' if s is _lowest(generated) else ''}>{s.name}</label>"
        )
        for s in generated
    ]
    listings = [
        markup.tag(
            "div",
            markup.join((markup.tag("div", s.name, class_="heading"), _listing(s, keys))),
            class_="stage",
            data_stage=s.name,
        )
        for s in generated
    ]
    body = markup.join((Html(f"<style>{style}</style>"), *tabs, *listings))
    return markup.tag("form", body, class_="stages")


def _listing(stage: Stage, keys: Sources) -> Html:
    if stage.why_not:
        return markup.tag("div", stage.why_not, class_="faint")
    kept: list[Line] = []
    size = 0
    for line in stage.lines[:MAX_LINES]:
        size += len(line.text)
        if size > MAX_CHARACTERS:
            break
        kept.append(line)
    texts = [_short(line.text) for line in kept]
    code = markup.code("\n".join(texts), lines=[keys.key(line.place) for line in kept])
    left = len(stage.lines) - len(kept)
    if not left:
        return code
    note = f"… and {left} more lines: print(variant.{stage.name.lower()})"
    return markup.join((code, markup.tag("div", note, class_="faint")))


def _short(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
