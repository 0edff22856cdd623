"""What notebooks show of kernels, layouts and errors: right numbers, sound HTML, nothing from outside."""

from __future__ import annotations

import colorsys
import html.parser
import linecache
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tilejit import T, layout, markup, pictures
from tilejit.errors import Diagnostic, SimulationFault, Span
from tilejit.kernels import matmul
from tilejit.rendering import stages

VOID = {"br", "wbr", "meta", "input"}


class Page(html.parser.HTMLParser):
    """Reads a page; fails on elements that are not closed where they should be."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes {self.open[-1:]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.elements
            if name == tag and all(found.get(k.rstrip("_")) == v for k, v in attributes.items())
        ]


def page_of(shown: Any) -> Page:
    text = shown._repr_html_()
    page = Page(text)
    outside = [a for _, a in page.elements if {"src", "href", "onclick"} & a.keys()]
    assert not outside and "@import" not in text and "url(" not in text
    return page


# --- pieces


def test_text_is_escaped_and_markup_is_not() -> None:
    cell = markup.table(("a<b",), [("<script>",), (markup.tag("b", "x & y"),)], numeric=(0,))
    assert "&lt;script&gt;" in cell and "<b>x &amp; y</b>" in cell and "a&lt;b" in cell
    assert markup.details("<s>", "<t>").count("&lt;") == 2
    assert 'data-line="3"' in markup.code("a\nb", lines=[None, 3])
    with pytest.raises(IndexError):
        markup.code("a\nb", lines=[1])


def test_a_script_comes_only_with_what_it_links() -> None:
    assert "<script" not in markup.fragment(markup.code("a"))
    assert "<script" in markup.fragment(markup.code("a", lines=[1]))


def test_a_document_is_whole() -> None:
    page = Page(markup.document("a & b", markup.code("x = 1 < 2")))
    assert "a & b" in page.text and "x = 1 < 2" in page.text


# --- kernels


@tile.jit
def scaled(
    X: T.Tensor(("M", 128), "float32", align=16),
    Y: T.Tensor(("M", 128), "float32", align=16),
    factor: T.float32,
):
    """Y = factor X, by way of shared memory."""
    M, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32))
    row = T.cuda.block_idx("x")
    r = T.alloc_local((32, 4), "float32", layout=T.layout("(32,4):(1@laneid,1)"))
    s = T.alloc_shared((32, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub[row, :].view(32, 4), scope="warp")
    words = r.view(32, 4, 1)
    T.cuda.tile.apply(T.ptx["mul.rn.f32"], words, words, factor, scope="warp")
    T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], s, r, scope="warp")
    T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[row, :].view(32, 4), r, scope="warp")


@tile.jit
def misaligned(X: T.Tensor((8, 6), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    r = T.alloc_local((8, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X[0:8, 0:4])


def line_of(text: str) -> int:
    """The only line of this file that starts with ``text``."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = (n for n, line in enumerate(lines, 1) if line.strip().startswith(text))
    return found


LOAD = 'T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub'
STORE = 'T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub'


def test_a_kernel_before_its_first_variant() -> None:
    kernel = tile.jit(scaled.__wrapped__)
    page = page_of(kernel)
    assert "Y = factor X, by way of shared memory." in page.text
    assert "scaled.check(X, Y, factor)" in page.text
    assert 'T.Tensor(("M", 128), "float32", align=16)' in page.text
    assert not hasattr(kernel, "asm") and not hasattr(kernel, "stats")
    with pytest.raises(tile.LaunchError, match="has not been specialised yet"):
        kernel.asm


def test_a_checked_kernel_is_not_compiled_for_its_page() -> None:
    x = torch.zeros(3, 128)
    variant = tile.jit(scaled.__wrapped__).check(x, x.clone(), 2.0)
    page = page_of(variant)
    assert not variant.compiled
    assert "not compiled" in page.text and "not compiled" in repr(variant)
    assert "4 tile calls, all hold" in page.text
    assert "s: shared float32 (32, 4)" in page.text and "no bank conflicts" in page.text
    assert "ld.global.v4.b32 × 1" in page.text
    assert len(repr(variant)) < 200 and "X=float32[3, 128]" in repr(variant)


def test_a_compiled_kernel_links_every_stage() -> None:
    x = torch.zeros(3, 128)
    kernel = tile.jit(scaled.__wrapped__)
    variant = kernel.compile(x, x.clone(), 2.0, target="sm_90a")
    page = page_of(kernel)
    stats = variant.stats
    row = f"{stats.registers}0 B512 B32{stats.blocks_per_sm}{stats.occupancy:.0%}"
    assert row in page.text
    assert page.all("input", type="radio", value="SASS", name="stage")
    for start, opcodes in ((LOAD, ("ld.global.v4.b32", "LDG.E.128")), (STORE, ("STG.E.128",))):
        line = line_of(start)
        linked = linked_text(variant._repr_html_(), line)
        assert start in linked
        assert all(opcode in linked for opcode in opcodes), linked


def linked_text(text: str, line: int) -> str:
    found = re.findall(rf'<span data-line="{line}">(.*?)</span>', text)
    return "\n".join(re.sub(r"<.*?>", "", f).replace("&quot;", '"') for f in found)


def test_a_page_of_a_kernel_whose_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "gone.py"
    file.write_text(
        "def gone(X):\n    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
    )
    names: dict[str, Any] = {"T": T}
    exec(compile(file.read_text(), str(file), "exec"), names)
    k = tile.jit(names["gone"])
    k.check(torch.empty(4))
    assert "def gone" in page_of(k).text
    file.unlink()
    linecache.checkcache(str(file))
    page = page_of(k)
    assert "gone" in page.text and "def gone" not in page.text


def test_no_disassembler_leaves_the_other_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilejit.runtime import sass

    x = torch.zeros(3, 128)
    variant = scaled.compile(x, x.clone(), 2.0, target="sm_90a")
    monkeypatch.setattr(sass, "_tools", lambda: iter(()))
    page = page_of(variant)
    assert "SASS needs nvdisasm or cuobjdump" in page.text
    assert "checked" in page.all("input", value="PTX")[0]


def test_a_broken_kernel_shows_its_faults() -> None:
    kernel = tile.jit(misaligned.__wrapped__)
    with pytest.raises(tile.ContractError) as caught:
        kernel.check(torch.zeros(8, 6))
    page, own = page_of(kernel), page_of(caught.value)
    assert "ld_st/alignment" in page.text and "ld_st/alignment" in own.text
    assert str(line_of('T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X[0:8')) in own.text


def test_a_large_kernel_has_a_page_of_moderate_size() -> None:
    plan = matmul.TmaPlan(tile_m=256, tile_n=192, slabs=3, slabs_at_once=3, cluster_m=2)
    a, b = (torch.empty(n, 1000, dtype=torch.bfloat16) for n in (1008, 1016))
    c = torch.empty(1008, 1016, dtype=torch.bfloat16)
    variant = matmul.matmul_tma.compile(a, b, None, c, plan, None, None, None, target="sm_90a")
    text = variant._repr_html_()
    assert 50_000 < len(text) < 1_000_000
    page = page_of(variant)
    assert "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16" in page.text
    assert "a_ring" in page.text and "b_ring" in page.text


def test_long_listings_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilejit.rendering import kernel_page

    x = torch.zeros(3, 128)
    variant = scaled.compile(x, x.clone(), 2.0, target="sm_90a")
    monkeypatch.setattr(kernel_page, "MAX_LINES", 5)
    total = len(list(stages.ptx(variant.ptx)))
    assert f"… and {total - 5} more lines: print(variant.ptx)" in page_of(variant).text


def test_places_of_generated_code() -> None:
    cuda = textwrap.dedent(
        """\
        // head
        #line 7 "/a b.py"
          x = 1;
          y = 2;
          }
        #line 9 "/a b.py"
          asm("add; // tilejit:op=3 /a b.py:9" : "=r"(x));
        """
    )
    lines = list(stages.cuda(cuda))
    assert [line.place for line in lines] == [
        None, ("/a b.py", 7), ("/a b.py", 8), None, ("/a b.py", 9),
    ]  # fmt: skip
    assert lines[-1].text == '  asm("add;" : "=r"(x));'
    ptx = '\t.loc\t1 4 2\n\tmov.u32 %r1, 0;\n\tadd; // tilejit:op=1 /b.py:6\n\t.file\t1 "/a.py"\n'
    assert [line.place for line in stages.ptx(ptx)] == [("/a.py", 4), ("/b.py", 6)]
    sass = '\t//## File "/a.py", line 3\n        /*0010*/                   MOV R1, R2 ;\n'
    assert list(stages.sass(sass)) == [stages.Line("0010  MOV R1, R2 ;", ("/a.py", 3), True)]


# --- layouts


def conflicts(page: Page) -> dict[str, str]:
    """By access: ``none``, or the conflict in words. Three cells make a row of the table."""
    words = page.words
    starts = [i for i, w in enumerate(words) if re.match(r"\d+ (lanes|rows) ", w)]
    names = [words[i].split(",")[0].split(" (")[0] for i in starts]
    costs = [re.search(r"\d+-way", words[i + 2]) for i in starts]
    return {name: "none" if cost is None else cost[0] for name, cost in zip(names, costs)}


@pytest.mark.parametrize(
    ("shown", "shape", "element_bytes", "expected"),
    [
        ("(32,32):(32,1)", (32, 32), 4, {"32 lanes along a row": "none", "32 lanes down a column": "32-way", "8 rows of 16 bytes": "8-way"}),
        ("(32,32):(33,1)", (32, 32), 4, {"32 lanes along a row": "none", "32 lanes down a column": "none"}),
        ("(64,64):(64,1)", (64, 64), 2, {"8 rows of 16 bytes": "8-way"}),
        ("swizzle(3,3,3) o (64,64):(64,1)", (64, 64), None, {"8 rows of 16 bytes": "none"}),
        ("(8,32):(1,8)", (8, 32), 4, {"32 lanes along a row": "8-way"}),
    ],
)  # fmt: skip
def test_bank_conflicts_of_a_picture(
    shown: str, shape: tuple[int, ...], element_bytes: int | None, expected: dict[str, str]
) -> None:
    page = Page(layout.parse(shown).picture(*shape, element_bytes=element_bytes))
    found = conflicts(page)
    assert {name: found[name] for name in expected} == expected


def test_owners_of_a_fragment() -> None:
    fragment = T.cuda.mma_fragment_layout("m16n8k16", "D", (1, 1)).picture(16, 8)
    page = Page(fragment)
    assert len(page.all("rect")) == 128
    # PTX ISA, mma.m16n8k16: row 9, column 5 is in lane 4 * (9 % 8) + 5 // 2, register 2 + 5 % 2
    assert "(9, 5): thread of the warp 6, register 3" in page.text
    colours = {g["data-line"] for g in page.all("g")}
    assert len(colours) == 32


def test_big_pictures_are_cut_and_say_so() -> None:
    page = page_of(layout.row_major((128, 256)))
    assert len(page.all("rect")) == pictures.MAX_ROWS * pictures.MAX_COLUMNS
    assert "of which the first 32 × 32 are drawn" in page.text


def test_huge_layouts_have_a_picture() -> None:
    page = page_of(layout.row_major((1 << 20, 1 << 20)))
    assert "1048576 × 1048576 elements" in page.text


@pytest.mark.parametrize("notation", ["(4,2,8):(2@laneid,1@warpid,1) + 3@warpid", "swizzle(1,2,3) o (8,8):(1,8)"])  # fmt: skip
def test_a_picture_agrees_with_the_layout(notation: str) -> None:
    shown = layout.parse(notation)
    positions = shown.positions((8, 8))
    corner = layout._corner(shown, (8, 8))
    assert positions.keys() == corner.keys()
    assert all((positions[axis] == corner[axis]).all() for axis in corner)


def test_a_picture_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(layout.LayoutError, match="has 64 elements, shape .* has 63"):
        layout.row_major((8, 8)).picture(7, 9)


@pytest.mark.parametrize("notation", ["(32,4):(1@laneid,1)", "(2,32,4):(1@warpid,1@laneid,1)", "(128,8):(1@TLane,1@TCol)", "(4):(0)", "(4,2):(1@laneid,1) + R[8:4@laneid]"])  # fmt: skip
def test_any_layout_has_a_picture(notation: str) -> None:
    page = page_of(layout.parse(notation))
    assert page.all("svg") and notation in page.text


def test_dark_text_is_readable_on_every_colour() -> None:
    for number in range(200):
        hue, saturation, light = map(float, re.findall(r"[\d.]+", pictures._colour(number)))
        red, green, blue = colorsys.hls_to_rgb(hue / 360, light / 100, saturation / 100)
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]  # fmt: skip
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        ink = 0x11 / 255 / 12.92
        assert (luminance + 0.05) / (ink + 0.05) > 4.5, number


# --- errors


def test_a_fault_of_the_simulator(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("def f():\n    x = 1 < 2\n    y = 2\n")
    inner = Span(str(file), 2, 4, 2, 13, "f")
    outer = Span(str(file), 3, 4, 3, 9, "g")
    notes = (("where", "thread 3"), ("help", "a <barrier>"))
    fault = SimulationFault(
        [Diagnostic("sim/race", "two threads", replace(inner, call_site=outer), notes)] * 3
    )
    page = page_of(fault)
    assert "SimulationFault: 3 errors" in page.text and "sim/race two threads" in page.text
    assert "x = 1 < 2" in page.text and "^^^^^^^^^" in page.text
    assert "inlined at" in page.text and "2 more in the unrolled copies" in page.text
    assert "a <barrier>" in page.text
