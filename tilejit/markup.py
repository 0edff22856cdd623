"""Small pieces of self-contained HTML: tables, code, details, pictures, whole pages.

Nothing is loaded from outside. Colours are the reader's own: text and lines inherit, tints are translucent,
so that one output reads in light and dark notebooks; only pictures fill areas, with dark text on them.
Text is escaped unless it is ``Html`` already. Without a style sheet (GitHub's view of a notebook) tables and
details still read.

Not here: what a page says (``rendering`` and every ``_repr_html_``).
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence


class Html(str):
    """Text that is markup already: never escaped again. A notebook shows it with its style."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return fragment(self)


# The class stands twice because the rules must outrank those of notebooks (Jupyter aligns cells to the right).
STYLE = """
.tilejit{font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:100%;text-align:left}
.tilejit.tilejit .scroll{overflow-x:auto;max-width:100%}
.tilejit.tilejit tbody tr{background:transparent}
.tilejit.tilejit table{border-collapse:collapse;margin:.4em 0;font-size:12px;border:0;width:auto}
.tilejit.tilejit th,.tilejit.tilejit td{padding:2px 9px;text-align:left;vertical-align:top;border:0;
border-bottom:1px solid rgba(128,128,128,.28);background:transparent;color:inherit;white-space:normal}
.tilejit.tilejit th{font-weight:600;border-bottom:1px solid rgba(128,128,128,.7)}
.tilejit.tilejit td.number,.tilejit.tilejit th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.tilejit.tilejit details{margin:.3em 0;border-left:2px solid rgba(128,128,128,.35);padding-left:.7em}
.tilejit.tilejit summary{cursor:pointer;font-weight:600}
.tilejit.tilejit td .line{white-space:nowrap}
.tilejit.tilejit .faint{opacity:.72;font-weight:400}
.tilejit.tilejit .bad{font-weight:600;background:rgba(230,60,40,.2);border-radius:3px;padding:0 3px}
.tilejit.tilejit .good{background:rgba(40,160,80,.2);border-radius:3px;padding:0 3px}
.tilejit.tilejit .message{white-space:pre-wrap;overflow-wrap:anywhere}
.tilejit.tilejit .diagnostic{border-left:3px solid rgba(230,60,40,.7);padding:2px 0 2px 10px;margin:6px 0}
.tilejit.tilejit .title{font-size:15px;font-weight:600;margin:.2em 0}
.tilejit.tilejit code,.tilejit.tilejit .code{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;color:inherit;
background:transparent}
.tilejit.tilejit .title code{font-size:14px;font-weight:600}
.tilejit.tilejit .code{overflow:auto;max-height:34em;border:1px solid rgba(128,128,128,.3);border-radius:4px;
padding:4px 0;white-space:pre;tab-size:4;position:relative}
.tilejit.tilejit .code>span{display:block;padding:0 8px 0 0;width:max-content;min-width:100%;box-sizing:border-box}
.tilejit.tilejit .code>span>i,.tilejit.tilejit .code>span>b{display:inline-block;width:3.4em;padding:0 .7em 0 .2em;text-align:right;
font-style:normal;font-weight:400;opacity:.7;user-select:none;box-sizing:border-box}
.tilejit.tilejit .code>span>:last-child{border-right:1px solid rgba(128,128,128,.3);margin-right:.7em}
.tilejit.tilejit .code>span>b{background:linear-gradient(to left,rgba(80,140,240,.35) var(--part),transparent var(--part))}
.tilejit.tilejit [data-line]{cursor:pointer}
.tilejit.tilejit .code>.over{background:rgba(255,190,40,.18)}
.tilejit.tilejit .code>.pinned{background:rgba(255,170,0,.34)}
.tilejit.tilejit svg .over>rect,.tilejit.tilejit svg .pinned>rect{stroke:currentColor;stroke-width:2.5}
.tilejit.tilejit svg{color:inherit}
.tilejit.tilejit svg text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
"""

LINKS = """
(function(){if(window.tilejitLinks)return;window.tilejitLinks=true;
function at(e){return e.target.closest?e.target.closest('.tilejit [data-line]'):null}
function alike(n){return n.closest('.tilejit').querySelectorAll('[data-line="'+n.dataset.line+'"]')}
function hover(e,on){var n=at(e);if(n)alike(n).forEach(function(m){m.classList.toggle('over',on)})}
document.addEventListener('mouseover',function(e){hover(e,true)});
document.addEventListener('mouseout',function(e){hover(e,false)});
document.addEventListener('click',function(e){var n=at(e);if(!n)return;
var root=n.closest('.tilejit'),was=n.classList.contains('pinned');
root.querySelectorAll('.pinned').forEach(function(m){m.classList.remove('pinned')});if(was)return;
alike(n).forEach(function(m){m.classList.add('pinned');
var d=m.closest('details');if(d)d.open=true});
root.querySelectorAll('.code').forEach(function(c){if(c.contains(n))return;
var m=c.querySelector('.pinned');if(m)c.scrollTop=m.offsetTop-c.clientHeight/3})})})();
"""
"""Things with one ``data-line`` in one output: pointing at one marks all, a click pins them and scrolls the
other listings to them."""


def escape(text: object) -> Html:
    """``text`` as markup; ``Html`` stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """The parts one after another, escaped where they are not markup."""
    return Html(separator.join(escape(part) for part in parts))


def opcode(spelling: str) -> Html:
    """An instruction's name, which may be broken after its dots."""
    return tag("code", Html(escape(spelling).replace(".", ".<wbr>")))


def tag(name: str, body: object = "", **attributes: object) -> Html:
    """One element. Attributes that are None are left out; ``class_`` is ``class``, ``a_b`` is ``a-b``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{escape(body)}</{name}>")


def table(
    header: Sequence[object], rows: Iterable[Sequence[object]], *, numeric: Collection[int] = ()
) -> Html:
    """A table. ``numeric``: positions of the columns that hold numbers, aligned to the right."""

    def row(name: str, cells: Sequence[object]) -> Html:
        kinds = ("number" if position in numeric else None for position in range(len(cells)))
        return tag("tr", join(tag(name, cell, class_=kind) for cell, kind in zip(cells, kinds)))

    head = tag("thead", row("th", header)) if header else ""
    body = tag("tbody", join(row("td", cells) for cells in rows))
    return tag("div", tag("table", join((head, body))), class_="scroll")


def details(summary: object, body: object, open: bool = False) -> Html:
    """A part that the reader opens; shown at once where ``open``."""
    opened = " open" if open else ""
    return Html(f"<details{opened}><summary>{escape(summary)}</summary>{escape(body)}</details>")


def code(
    text: str,
    *,
    lines: Sequence[int | str | None] | None = None,
    counts: Sequence[int | None] | None = None,
) -> Html:
    """A listing. ``lines``: for every line of ``text`` what its margin says, the line of the kernel's source
    that it belongs to; lines of all listings with one number are linked (``LINKS``). ``counts``: a second
    margin of numbers, each with a bar of its part of the largest."""
    most = max((count for count in counts or () if count), default=1)
    written: list[str] = []
    for index, line in enumerate(text.rstrip("\n").split("\n")):
        key = margin = ""
        if lines is not None:
            number = lines[index]
            key = "" if number is None else f' data-line="{escape(number)}"'
            margin = "<i></i>" if number is None else f"<i>{escape(number)}</i>"
        if counts is not None:
            count = counts[index]
            part = f"{100 * (count or 0) / most:.0f}%"
            margin += "<b></b>" if not count else f'<b style="--part:{part}">{count}</b>'
        written.append(f"<span{key}>{margin}{escape(line)}</span>")
    return Html(f'<div class="code">{"".join(written)}</div>')


_LEAST_SCALE = 0.7


def svg(width: float, height: float, body: object, label: str) -> Html:
    """A picture of ``width`` by ``height`` CSS pixels, smaller where there is less room, but legible. ``label``
    says what it shows to who cannot see."""
    return tag(
        "svg", join((tag("title", label), body)), viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}", height=f"{height:g}", role="img", xmlns="http://www.w3.org/2000/svg",
        style=f"max-width:100%;min-width:{_LEAST_SCALE * width:.0f}px;height:auto",
    )  # fmt: skip


def fragment(body: object) -> Html:
    """What a ``_repr_html_`` gives: the body with its style, and with ``LINKS`` where it needs them."""
    text = escape(body)
    script = f"<script>{LINKS}</script>" if "data-line=" in text else ""
    return Html(f'<div class="tilejit"><style>{STYLE}</style>{text}{script}</div>')


def document(title: str, body: object) -> Html:
    """A whole page, light or dark as the reader's system is."""
    return Html(
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        "<style>:root{color-scheme:light dark}body{margin:1.2em;background:Canvas;color:CanvasText}</style>"
        f"</head><body>{fragment(body)}</body></html>"
    )
