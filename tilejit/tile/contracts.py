"""The contract conditions that families share, each a comparison of arrays.

A function reports every fault of its condition and returns what the next condition needs (None after
a fault). A report names what is, what was expected, with units, and the first failing coordinate.

Source: contract "operand coordinates and storage", "register instructions". Not here: conditions of
one family only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import numpy as np

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ir.dims import storage_axis
from tilejit.layout import ComposeLayout
from tilejit.tile import barriers
from tilejit.tile.affine import THREAD, Affine, IntArray, Number, Symbol, ends
from tilejit.tile.call import TileCall
from tilejit.tile.groups import thread_level
from tilejit.tile.region import NotSeparable, ScalarOperand, TensorOperand, Walk, dimensions, walk

PAGE = "docs/contract/operands.md"

MAX_REPEATS = 4096
"""Most instructions that one call may expand to in a thread: repeats are written out, as ``T.unroll``
does, and no kernel runs well with more."""


def shaped(
    call: TileCall,
    operand: TensorOperand,
    atom: tuple[int, ...],
    report: Report,
    *,
    collective: bool = False,
    warpgroups: bool = False,
) -> Walk | None:
    """Splits ``(*group, *repeat, *atom)``, checks extents, origin and bounds, and lays it out.

    ``collective``: whole warps execute the instruction, whose lanes the atom holds; ``warpgroups``:
    whole warpgroups."""
    prefix = call.group.shape[:-1] if collective and call.group.axes else call.group.shape
    if warpgroups:
        prefix = call.group.warpgroups.shape
    position = next(i for i, o in enumerate(call.operands) if o is operand)
    key = _memo_key(call, operand, atom, len(prefix))
    known = None if key is None else call.memo.get(key)
    if known is not None:
        call.walks[position] = replace(known, operand=operand)
        return call.walks[position]
    if not _static_extents(operand, report):
        return None
    extents, rank = operand.extents, len(operand.extents)
    if extents[max(0, rank - len(atom)) :] != atom:
        report.error(
            "tile/atom-shape",
            f"{operand.name} ends in {extents[max(0, rank - len(atom)) :]}, expected {atom} after "
            f"the {len(prefix)} group axes and the repeats: its shape is {extents}",
            span=operand.span,
            declared=operand.declared(),
            contract=call.contract,
            help=_atom_help(operand, prefix, atom),
        )
        return None
    leading = extents[: min(len(prefix), rank - len(atom))]
    if leading != prefix:
        known_axes = call.group.warpgroups.axes if warpgroups else call.group.axes
        axes = tuple(axis.name for axis in known_axes[: len(prefix)])
        report.error(
            "tile/group-shape",
            f"{operand.name} begins with {leading}, expected the group axes "
            f'{prefix} = {axes} of scope="{call.scope}"',
            span=operand.span,
            declared=operand.declared(),
            contract=f"{PAGE}: extents come from the active execution scope",
            help="the group axes count the warps and lanes that the block and the guards around the call leave",
        )
        return None
    repeats = math.prod(extents[len(prefix) : rank - len(atom)])
    if repeats > MAX_REPEATS:
        report.error(
            "tile/too-many-repeats",
            f"{operand.name} has {repeats} repeats, expected at most {MAX_REPEATS}: each is one "
            "instruction written out",
            span=operand.span,
            declared=operand.declared(),
            contract=f"{PAGE}: repeats are expanded",
            help="take a part of the tile per round of a `for` loop",
        )
        return None
    if not origin(call, operand, report) or not bounds(call, operand, report):
        return None
    try:
        group = call.group.leaders if collective else call.group
        if warpgroups:
            group = call.group.warpgroups
        laid = walk(operand, group, len(prefix), len(atom), call.evaluator)
    except NotSeparable as error:
        report.error(
            "tile/symbolic-start",
            f"{operand.name}: {error.args[0]}",
            span=operand.span,
            declared=operand.declared(),
            contract=f"{PAGE}: starts may be symbolic when their properties can be proved",
        )
        return None
    if not storage(call, laid, report):
        return None
    call.walks[position] = laid
    if key is not None:
        call.memo[key] = laid
    return laid


def _memo_key(
    call: TileCall, operand: TensorOperand, atom: tuple[int, ...], prefix: int
) -> tuple[object, ...] | None:
    """Identity of a register operand whose numbers are all known: it is laid out once."""
    starts = [v.constant for v in operand.start_values]
    view = operand.view
    if operand.space != "local" or operand.offset.constant is None or None in starts or view.picks:
        return None
    return (
        id(call.group), prefix, atom, view.buffer.name, view.dtype, view.shape, view.layout,
        operand.offset.constant, tuple(starts), operand.extents,
    )  # fmt: skip


def _static_extents(operand: TensorOperand, report: Report) -> bool:
    for d, extent in enumerate(operand.extents):
        if extent < 1:
            what = "is a run-time size" if extent == -1 else f"is {extent}"
            report.error(
                "tile/extent",
                f"{operand.name}: extent {d} {what}, expected a positive number known at compile time",
                span=operand.span,
                declared=operand.declared(),
                contract=f"{PAGE}: extents must be positive static integers",
                help="take a part of it: X[start : start + 4]",
            )
            return False
    if operand.view.layout is None:
        report.error(
            "tile/layout",
            f"{operand.name} has no layout, so its elements' places are not known",
            span=operand.span,
            declared=operand.declared(),
            contract=f"{PAGE}: physical coordinates come from applying the tensor layout",
            help='allocate it with layout="default" or a layout of your own',
        )
        return False
    return True


def _atom_help(
    operand: TensorOperand, prefix: tuple[int, ...], atom: tuple[int, ...]
) -> str | None:
    if len(prefix) == 1 and operand.extents == (prefix[0] * atom[0], *atom[1:]):
        split = ", ".join(map(str, (*prefix, *atom)))
        return f".view({split}) puts the group axis in front"
    if atom == (1,) and operand.extents[: len(prefix)] == prefix:
        shape = ", ".join(map(str, (*operand.extents, 1)))
        return f"a scalar instruction's operands end in 1: .view({shape})"
    if atom[0] == 1 and operand.extents[len(prefix) :] == atom[1:]:
        return f"an axis of extent 1 is missing: .view({', '.join(map(str, (*prefix, *atom)))})"
    if len(atom) == 1 and operand.extents and operand.extents[-1] % atom[0] == 0:
        head = "".join(f"{e}, " for e in operand.extents[:-1])
        return f".view({head}{operand.extents[-1] // atom[0]}, {atom[0]}) makes the rest repeats"
    return None


def repeats_agree(call: TileCall, walks: list[Walk], report: Report) -> bool:
    """Every operand has the first one's repeat extents."""
    for other in walks[1:]:
        if other.repeat != walks[0].repeat:
            report.error(
                "tile/repeats",
                f"{other.operand.name} repeats {other.repeat}, {walks[0].operand.name} repeats "
                f"{walks[0].repeat}",
                span=other.operand.span,
                declared=other.operand.declared(),
                contract=f"{PAGE}: group and repeat shapes agree across operands",
                help=_repeats_help(walks[0].repeat, other.repeat),
            )
            return False
    return True


def _repeats_help(first: tuple[int, ...], other: tuple[int, ...]) -> str | None:
    """Shapes that differ in axes of extent 1 only."""
    if [e for e in first if e != 1] != [e for e in other if e != 1]:
        return None
    return "X[i, :] keeps the axis of i with extent 1; X.sub[i, :] drops it"


# --- origin and bounds


def origin(call: TileCall, operand: TensorOperand, report: Report) -> bool:
    """In a group scope the region is one for the whole group; the group axes tell threads apart."""
    needed = thread_level(call.scope)
    if needed == THREAD:
        return True
    for d, value in enumerate((*operand.start_values, operand.offset)):
        if call.context.uniformity(value) >= needed:
            continue
        what = f"start {d}" if d < len(operand.start_values) else "the view's offset"
        report.error(
            "tile/origin",
            f'{operand.name}: {what} differs between the threads of scope="{call.scope}"',
            span=operand.span,
            where=_two_threads(call, value),
            declared=operand.declared(),
            contract=f"{PAGE}: physical coordinates are origin + group/repeat/atom coordinates",
            help='use the group axes for what differs by thread, or scope="thread"',
        )
        return False
    return True


def _two_threads(call: TileCall, value: Affine) -> str | None:
    if not value.exact or isinstance(value.const, int):
        return None
    group = call.group
    chosen = value.const[group.threads]
    for unit in np.unique(group.ids):
        inside = np.flatnonzero(group.ids == unit)
        differing = inside[chosen[inside] != chosen[inside[0]]]
        if differing.size:
            a, b = int(inside[0]), int(differing[0])
            return (
                f"{group.describe(a)} has {int(chosen[a])}, "
                f"{group.describe(b)} has {int(chosen[b])}"
            )
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """``count`` indices from ``first`` on, which belong to an axis of ``extent``. ``words``: the fault,
    of a value of ``first`` that a thread has, or of what may be (None); True: it is below the axis."""

    first: Affine
    count: int
    extent: int | nodes.Var
    name: str
    rule: str
    words: Callable[[int | None, bool], str]


def bounds(call: TileCall, operand: TensorOperand, report: Report) -> bool:
    """0 ≤ first and first + count ≤ extent, for every active thread: of every axis that the view is a
    part of, then of the region's dimensions."""
    rule = "an index belongs to its axis, wherever the address lies"
    for pick in operand.view.picks:
        words = partial(_pick_words, operand, pick)
        index = call.evaluator.integer(pick.index)
        if not _inside(
            call, operand, _Part(index, pick.count, pick.extent, "index", rule, words), report
        ):
            return False
    rule = "region starts participate in bounds checks"
    for d, (start, extent) in enumerate(zip(operand.start_values, operand.extents)):
        words = partial(_start_words, operand, d)
        part = _Part(start, extent, operand.view.shape[d], f"start {d}", rule, words)
        if not _inside(call, operand, part, report):
            return False
    return True


def _pick_words(operand: TensorOperand, pick: nodes.Pick, value: int | None, below: bool) -> str:
    axis = f"axis {pick.axis} of {operand.view.buffer.name}, whose extent is {_size(pick.extent)}"
    if value is None:
        return f"an index of .sub may leave {axis}"
    taken = f"[{value}]" if pick.count == 1 else f"[{value} : {value + pick.count}]"
    return f".sub{taken} is outside {axis}"


def _start_words(operand: TensorOperand, d: int, value: int | None, below: bool) -> str:
    room = f"0..{_size(operand.view.shape[d])}"
    if value is None:
        return f"dimension {d} may leave {room}"
    is_ = f"starts at {value}" if below else f"ends at {value + operand.extents[d]}"
    return f"dimension {d} {is_}, outside {room}"


def _size(extent: int | nodes.Var) -> int | str:
    return extent if isinstance(extent, int) else extent.name


def _inside(call: TileCall, operand: TensorOperand, part: _Part, report: Report) -> bool:
    first = part.first
    if isinstance(part.extent, int):
        # As far as ranges tell, for all threads at once: mostly that is enough.
        low, high = call.context.enclosure(first)
        if low >= 0 and high + part.count <= part.extent:
            return True
        size = Affine(part.extent)
    else:
        size = call.evaluator.integer(part.extent)
    for slack, below in ((first, True), (size - first - part.count, False)):
        if not call.context.prove_nonnegative(slack):
            _report_outside(call, operand, part, slack, below, report)
            return False
    return True


def _report_outside(
    call: TileCall, operand: TensorOperand, part: _Part, slack: Affine, below: bool, report: Report
) -> None:
    first = part.first
    example = counter_example(call, slack, first)
    if example is not None:
        where, value = example
        message = part.words(value, below)
    else:
        where = f"{part.name} is {first}, ranging {_range_text(call, first)}"
        need = f"{first} ≥ 0" if below else f"{first} + {part.count} ≤ {_size(part.extent)}"
        message = f"{part.words(None, below)}; could not prove {need}"
    report.error(
        "tile/bounds",
        f"{operand.name}: {message}",
        span=operand.span,
        where=where,
        declared=operand.declared(),
        contract=f"{PAGE}: {part.rule}",
        help=_bounds_help(call, "this condition holds"),
    )


def _range_text(call: TileCall, value: Affine) -> str:
    low, high = call.context.range(value)
    return f"{low}..{high}"


def counter_example(call: TileCall, slack: Affine, value: Affine) -> tuple[str, int] | None:
    """A thread (and symbols' values that do occur) where ``slack`` < 0, and ``value`` there."""
    context = call.context
    if any(
        not s.attained or context.of(s).hi != s.hi or context.of(s).lo != s.lo for s in slack.terms
    ):
        return None
    guarded = {s for fact in context.facts for s in fact.terms}
    if guarded & set(slack.terms):
        return None
    low = np.broadcast_to(np.asarray(context.bounds(slack)[0]), (context.threads.total,))
    failing = call.group.threads[low[call.group.threads] < 0]
    if failing.size == 0:
        return None
    thread = int(failing[0])
    at, shown = slack.at(thread), value.at(thread)
    assignment = {s: s.lo if c > 0 else s.hi for s, c in at.terms.items() if isinstance(c, int)}
    total = shown.const
    for symbol, coefficient in shown.terms.items():
        total = total + coefficient * assignment.get(symbol, symbol.lo)
    index = int(np.flatnonzero(call.group.threads == thread)[0])
    parts = [f"{s.name} = {v}" for s, v in assignment.items()]
    if not isinstance(slack.const, int):
        parts.append(call.group.describe(index))
    return ", ".join(parts) or "every thread", int(np.asarray(total))


def storage(call: TileCall, laid: Walk, report: Report) -> bool:
    """The walk stays inside the buffer: a view's offset and layout can leave it where starts do not."""
    operand = laid.operand
    extent = buffer_extent(call, operand)
    if extent is None or laid.dynamic:
        return True
    size, scale = extent
    bits = size.constant
    if bits is not None and _shape_is_stored(operand, bits):
        return True
    reach = 0 if laid.period_multiple else _flip_reach(operand, bits)
    if bits is not None:
        # As far as ranges tell, for all threads at once: mostly that is enough.
        lowest, highest = ends(laid.places)
        low, high = call.context.range(laid.symbolic)
        if low + lowest >= 0 and (high + highest + reach + 1) * scale <= bits:
            return True
    least, greatest = _extremes(call, laid)
    greatest = greatest + reach
    first = Affine(least, laid.symbolic.terms)
    last = size - Affine(greatest, laid.symbolic.terms).scaled(scale) - scale
    for slack, side in ((first, "before"), (last, "after")):
        if call.context.prove_nonnegative(slack):
            continue
        example = counter_example(call, slack, first if side == "before" else -last)
        allocated = f"{_in_elements(size, operand)} elements of {operand.dtype}"
        if example is None:
            where = f"element offset {first}, ranging {_range_text(call, first)}"
            message = (
                f"{operand.name} may reach {side} its buffer of {allocated}; could not prove that "
                "it does not"
            )
        else:
            where = f"{example[0]}: element offset {_offset_text(example[1], side, size, operand)}"
            message = f"{operand.name} reaches {side} its buffer of {allocated}"
        report.error(
            "tile/bounds",
            message,
            span=operand.span,
            where=where,
            declared=operand.declared(),
            contract=f"{PAGE}: an allocation must cover the layout's physical span",
            help=_bounds_help(call, "the offset stays inside"),
        )
        return False
    return True


def _in_elements(size_bits: Affine, operand: TensorOperand) -> str:
    bits = operand.dtype.bits
    if size_bits.constant is not None:
        return str(size_bits.constant // bits)
    parts = (size_bits.const, *size_bits.terms.values())
    if all(isinstance(part, int) and part % bits == 0 for part in parts):
        terms: dict[Symbol, Number] = {
            s: c // bits for s, c in size_bits.terms.items() if isinstance(c, int)
        }
        return str(Affine(size_bits.const // bits, terms))
    return f"({size_bits}) / {bits}"


def _bounds_help(call: TileCall, what: str) -> str:
    if call.pred is not None:
        return (
            f"pred proves nothing: an address must be right even where it is not used. Clamp it, or "
            f"put the call under an if, so that {what}"
        )
    return f"guard the call so that {what}, or promise it with T.assume(…)"


def _shape_is_stored(operand: TensorOperand, bits: int) -> bool:
    """Whether the whole swizzled view lies in a buffer of ``bits``, wherever in it the region starts."""
    layout, offset, shape = operand.layout, operand.offset.constant, operand.view.shape
    if not isinstance(layout, ComposeLayout) or offset is None or offset % layout.period_elems:
        return False
    if not all(isinstance(e, int) for e in shape) or any(i.stride < 0 for i in layout.tile.shard):
        return False
    return offset >= 0 and (offset + layout.span()) * operand.dtype.bits <= bits


def _flip_reach(operand: TensorOperand, bits: int | None) -> int:
    """How far the swizzle may move an element towards and past the end of a buffer of ``bits``, in
    elements: it stays in aligned blocks, so not at all where the buffer is whole blocks."""
    layout = operand.layout
    if not isinstance(layout, ComposeLayout):
        return 0
    low = layout.per_element + (0 if layout.swizzle_inner else layout.atom_len)
    block = 1 << (low + layout.swizzle_len)
    return 0 if bits and bits % (block * operand.dtype.bits) == 0 else block - (1 << low)


def _offset_text(value: int, side: str, size: Affine, operand: TensorOperand) -> str:
    if side == "before":
        return str(value)
    bits = (size.constant or 0) + value
    return str(bits // operand.dtype.bits)


def _extremes(call: TileCall, laid: Walk) -> tuple[Number, Number]:
    """The least and the greatest position of each thread, as numbers of the cluster's threads."""
    places = laid.places
    if places.shape[0] == 1:
        return int(places.min()), int(places.max())
    threads = call.group.threads
    rows = laid.rows(threads)
    least = np.zeros(call.context.threads.total, dtype=np.int64)
    greatest = np.zeros_like(least)
    least[threads] = places.min(axis=(1, 2))[rows]
    greatest[threads] = places.max(axis=(1, 2))[rows]
    return least, greatest


def buffer_extent(call: TileCall, operand: TensorOperand) -> tuple[Affine, int] | None:
    """(buffer's bits, bits of one of the view's elements); None where strides are run-time values."""
    buffer = operand.buffer_type
    bits = buffer.dtype.bits
    layout = buffer.layout
    if all(isinstance(e, int) for e in buffer.shape):
        if layout is not None:
            return Affine(layout.span(storage_axis(buffer.space)) * bits), operand.dtype.bits
        count = int(np.prod([e for e in buffer.shape if isinstance(e, int)], dtype=np.int64))
        return Affine(count * bits), operand.dtype.bits
    if layout is None or isinstance(layout, ComposeLayout) or operand.dynamic_strides:
        return None
    pieces = dimensions(layout, buffer.shape)
    if pieces is None:
        return None
    last = Affine(1)
    for extent, iters in zip(buffer.shape, pieces):
        if isinstance(extent, int):
            if extent > 1 and not buffer.read_only and all(i.stride == 0 for i in iters):
                return None  # a run-time stride, of which views of one row say nothing
            last = last + sum((i.extent - 1) * max(0, i.stride) for i in iters)
        elif iters[0].stride == 0:
            return None  # a run-time stride, or a broadcast: the caller's tensor decides
        else:
            last = last + (call.evaluator.integer(extent) - 1).scaled(iters[0].stride)
    return last.scaled(bits), operand.dtype.bits


# --- operands and keywords


def is_tensor(
    operand: TensorOperand | ScalarOperand, call: TileCall, report: Report
) -> TypeGuard[TensorOperand]:
    if isinstance(operand, TensorOperand):
        return True
    report.error(
        f"{call.family}/tensor-operand",
        f"{operand.name} of {call.spelling} must be a tensor, not a scalar expression",
        span=operand.span,
        contract=call.contract,
    )
    return False


def cache_policy(call: TileCall, report: Report) -> None:
    """``cache_policy`` is given exactly where the opcode has an operand for it."""
    wanted = "L2::cache_hint" in call.forms[0].modifiers
    if (call.params["cache_policy"] is not None) == wanted:
        return
    report.error(
        f"{call.family}/cache-policy",
        f"{call.spelling} needs cache_policy=, a uint64 from createpolicy"
        if wanted
        else f"{call.spelling} has no cache-policy operand",
        span=call.span,
        contract=call.contract,
        help="cache_policy goes with .L2::cache_hint in the opcode",
    )


# --- memory


def barrier_aligned(call: TileCall, mbar: nodes.Expr, report: Report) -> None:
    """An mbarrier whose place in a buffer is known lies where one can be."""
    message = barriers.misplaced(mbar, call.evaluator)
    if message is not None:
        report.error(
            f"{call.family}/mbar-alignment",
            message,
            span=mbar.span or call.span,
            contract=call.contract,
            help=barriers.MBARRIER_HELP,
        )


def cta_mask(call: TileCall, mask: nodes.Expr, report: Report) -> None:
    """A mask whose value is known names CTAs of the cluster."""
    size = call.launch.cluster_ctas
    low, high = call.context.range(call.evaluator.integer(mask))
    if high > 0 and low < 1 << size:
        return
    found = f"{low:#b}" if low == high else f"{low} to {high}"
    report.error(
        f"{call.family}/cta-mask",
        f"cta_mask is {found}, expected bits of the {size} CTAs of the cluster",
        span=mask.span or call.span,
        contract=call.contract,
        help="bit r stands for the CTA of rank r: T.uint16(0b11) means ranks 0 and 1; launch with "
        "cluster=…",
    )


def in_space(
    call: TileCall, operand: TensorOperand, spaces: tuple[nodes.Space, ...], report: Report
) -> bool:
    if operand.space in spaces:
        return True
    places = {"local": "registers"}
    wanted = " or ".join(places.get(space, f"{space} memory") for space in spaces)
    report.error(
        f"{call.family}/space",
        f"{operand.name} is in {operand.space} memory, expected {' or '.join(spaces)}",
        span=operand.span,
        declared=operand.declared(),
        contract=call.contract,
        help=f"an opcode says where its operands are: copy the values to {wanted} first, or use one for "
        f"{places.get(operand.space, f'{operand.space} memory')}",
    )
    return False


def chunks(
    call: TileCall, laid: Walk, nbytes: int, report: Report, *, row: int | None = None
) -> bool:
    """Every atom (or run of ``row`` elements) is ``nbytes`` consecutive bytes from a multiple of them."""
    right = contiguous(call, laid, report, row=row)
    return aligned(call, laid, nbytes, report, row=row) and right


def contiguous(call: TileCall, laid: Walk, report: Report, *, row: int | None = None) -> bool:
    """The elements of an atom (or of each run of ``row`` of them) are consecutive."""
    places = laid.places
    length = row or places.shape[2]
    runs = places.reshape(places.shape[0], places.shape[1], -1, length)
    if _consecutive(places, length) and not any(
        bool((index != index[..., :1]).any()) for _, index in laid.dynamic
    ):
        return True
    wrong = runs != runs[..., :1] + np.arange(length)
    operand = laid.operand
    what = "an atom" if row is None else "a row"
    where, message = None, f"{operand.name}: the {length} elements of {what} are not consecutive"
    if wrong.any():
        a, r, run, k = (int(i) for i in np.argwhere(wrong)[0])
        element = run * length + k
        where = laid.where((a, r, element))
        message += (
            f": element {k} lies {int(runs[a, r, run, k] - runs[a, r, run, 0])} elements after the "
            f"first, expected {k}"
        )
    report.error(
        f"{call.family}/contiguity",
        message,
        span=operand.span,
        where=where,
        declared=operand.declared(),
        contract=call.contract,
    )
    return False


def _consecutive(places: IntArray, length: int) -> bool:
    """Whether every run of ``length`` positions rises by one."""
    rises = np.diff(places.reshape(-1)) == 1
    rises[length - 1 :: length] = True  # from one run to the next
    return bool(rises.all())


def aligned(
    call: TileCall, laid: Walk, required_bytes: int, report: Report, *, row: int | None = None
) -> bool:
    """Every atom (or run of ``row`` elements) starts at a multiple of ``required_bytes``."""
    operand = laid.operand
    declared = operand.buffer_type.align_bytes
    if declared % required_bytes:
        report.error(
            f"{call.family}/alignment",
            f"{operand.name} needs {required_bytes}-byte alignment, but {operand.view.buffer.name} "
            f"is only known to be aligned to {declared} bytes",
            span=operand.span,
            declared=operand.declared(),
            contract=call.contract,
            help=align_help(operand, required_bytes),
        )
        return False
    size, required = operand.dtype.bits, required_bytes * 8
    layout = operand.layout
    places = laid.places
    if isinstance(layout, ComposeLayout) and not laid.period_multiple:
        granule = (1 << layout.per_element) * size // 8
        if required_bytes > granule:
            report.error(
                f"{call.family}/alignment",
                f"{operand.name} needs {required_bytes}-byte alignment, but its swizzle moves "
                f"{granule}-byte pieces and its offset is not known to be whole swizzle periods",
                span=operand.span,
                declared=operand.declared(),
                contract=call.contract,
                help=f"parts of the buffer start at multiples of {_period_text(operand, layout)}",
            )
            return False
    starts = places[..., :: row or places.shape[2]] * size
    mod, rem = call.context.congruence(laid.symbolic.scaled(size))
    for stride, index in laid.dynamic:
        part_mod, part_rem = call.context.congruence(stride.scaled(size))
        mod = int(np.gcd(mod, part_mod))
        starts = starts + index[..., :1] * part_rem
    if mod % required == 0:
        if not isinstance(rem, int):
            rem = rem[laid.group.threads].reshape(-1, 1, 1)
        wrong = (starts + rem) % required != 0
        if not wrong.any():
            return True
        a, r, run = (int(i) for i in np.argwhere(wrong)[0])
        left = int(((starts + rem) % required)[a, r, run])
        message = (
            f"{operand.name}: the address is {_bytes_text(left)} above a multiple of {required_bytes}, "
            f"expected {required_bytes}-byte alignment"
        )
        where: str | None = laid.where((a, r, run * (row or 1)))
        uneven = bool((starts % required != starts[..., :1] % required).any())
        help_ = (
            f"every row starts at a multiple of {required_bytes} bytes: pad the row pitch to one"
            if uneven
            else None
        )
    else:
        known = int(np.gcd(mod, required)) // 8
        message = (
            f"{operand.name} needs {required_bytes}-byte alignment; its offset of "
            f"{laid.symbolic} elements is only known to be a multiple of {known} bytes"
        )
        where = None
        help_ = "T.assume(n % … == 0) promises divisibility of a run-time value"
    report.error(
        f"{call.family}/alignment",
        message,
        span=operand.span,
        where=where,
        declared=operand.declared(),
        contract=call.contract,
        help=help_,
    )
    return False


def _bytes_text(bits: int) -> str:
    return f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits"


def align_help(operand: TensorOperand, required_bytes: int) -> str:
    """What to declare, so that a buffer starts at a multiple of ``required_bytes``."""
    if operand.space != "shared":
        return f"declare align={required_bytes}, and pass tensors that are"
    layout = operand.layout
    if not isinstance(layout, ComposeLayout):
        return f"declare it with T.alloc_shared(…, align={required_bytes})"
    period = layout.period_elems * operand.dtype.bits // 8
    return (
        f"declare it with T.alloc_shared(…, align={max(period, required_bytes)}): its swizzle repeats "
        f"every {_period_text(operand, layout)}"
    )


def _period_text(operand: TensorOperand, layout: ComposeLayout) -> str:
    """``1024 bytes (8 rows of 128 bytes)``."""
    period = layout.period_elems * operand.dtype.bits // 8
    row = (operand.dtype.bits << layout.per_element << layout.swizzle_len) // 8
    return f"{period} bytes ({period // row} rows of {row} bytes)"


def scalar_destination(
    call: TileCall, operand: ScalarOperand, report: Report, what: str = "a register tensor"
) -> None:
    report.error(
        f"{call.family}/destination",
        f"{operand.name} is written, so it must be {what}, not a scalar expression",
        span=operand.span,
        contract=call.contract,
    )
