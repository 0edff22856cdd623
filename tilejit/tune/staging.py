"""A call's arguments as bytes: which of the user's memory is copied, and the copy that trials start from.

What the tensors of a call reach is cut into ranges that do not overlap. A range is copied as a whole and
lies in a set at the same place modulo ``ALIGN_BYTES``, so that views and aliases stay what they are: two
tensors share bytes of the copy exactly where they share bytes of the user's memory. Only metadata is read
to decide this; the user's tensors are read once, on torch's stream's terms, and never written.

Imports torch late. Not here: measuring on copies (``bench``), comparing results (``measuring``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tilejit.runtime import torch_glue
from tilejit.tune.bench import ALIGN_BYTES, POISON, Arguments, Home, Place, Span, Value
from tilejit.tune.device import Device


@dataclass(frozen=True, slots=True)
class Layout:
    """``arguments``: what measuring needs; ``homes``: where each range of a set comes from;
    ``tensors``: the dtype and place of each tensor, by the parameter's name."""

    arguments: Arguments
    homes: tuple[Home, ...]
    tensors: Mapping[str, tuple[Any, Place]]


def lay_out(
    parameters: Sequence[str],
    values: Mapping[str, Any],
    written: Collection[str],
    read: Collection[str],
) -> Layout:
    """``parameters``: of the kernel, in order; ``values``: the call's, by name. ``written``, ``read``: the
    tensors that some candidate may write, and read."""
    tensors = {name: t for name, t in values.items() if torch_glue.is_tensor(t)}
    reached = {name: torch_glue.byte_range(t) for name, t in tensors.items() if t.numel()}
    homes = _homes(reached.values())
    places = {
        name: Place(
            _offset(homes, reached[name][0]) if name in reached else None,
            tuple(map(int, t.shape)),
            tuple(map(int, t.stride())),
        )
        for name, t in tensors.items()
    }

    def spans(names: Iterable[str]) -> list[Span]:
        found = (reached[name] for name in names if name in reached)
        return [Span(_offset(homes, start), end - start) for start, end in found]

    seen = spans(name for name in reached if name in read)
    unseen = [
        span
        for span in spans(name for name in reached if name in written and name not in read)
        if not any(_overlap(span, other) for other in seen)
    ]
    changed = joined(spans(name for name in reached if name in written))
    # As a whole or not at all: what is joined with a span that is read is restored.
    poisoned = tuple(span for span in changed if span in joined(unseen))
    arguments = Arguments(
        tuple(places[n] if n in places else _scalar(values.get(n)) for n in parameters),
        max((home.span.end for home in homes), default=0),
        changed,
        poisoned,
    )
    described = {name: (t.dtype, places[name]) for name, t in tensors.items()}
    return Layout(arguments, homes, described)


def _homes(reached: Iterable[tuple[int, int]]) -> tuple[Home, ...]:
    """Ranges of the user's memory and their places in a set."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(reached):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    homes: list[Home] = []
    at = 0
    for start, end in ranges:
        at = -(-at // ALIGN_BYTES) * ALIGN_BYTES + start % ALIGN_BYTES
        homes.append(Home(Span(at, end - start), start))
        at += end - start
    return tuple(homes)


def _offset(homes: Sequence[Home], address: int) -> int:
    home = next(h for h in homes if h.address <= address < h.address + h.span.nbytes)
    return home.span.offset + address - home.address


def _overlap(a: Span, b: Span) -> bool:
    return a.offset < b.end and b.offset < a.end


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same bytes as spans that do not overlap, in order."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda s: s.offset):
        if result and span.offset < result[-1].end:
            first = result.pop()
            span = Span(first.offset, max(first.end, span.end) - first.offset)
        result.append(span)
    return tuple(result)


def _scalar(value: Any) -> Value:
    """A number as a plan takes it; a compile-time value of any other kind is None there."""
    if hasattr(value, "item") and hasattr(value, "dtype"):
        value = value.item()  # numpy's
    return value if isinstance(value, bool | int | float) else None


_MAX_ITEM_BYTES = 16


class Staging:
    """The pristine copy of a call's arguments, and room for what a trial writes, on ``device``."""

    def __init__(self, device: Device, layout: Layout):
        self._device, self._layout = device, layout
        self.arguments = layout.arguments
        self.address = device.allocate(max(layout.arguments.staging_bytes, 1))
        with ExitStack() as undo:
            undo.callback(self.close)
            for home in layout.homes:
                device.copy(self.address + home.span.offset, home.address, home.span.nbytes)
            device.synchronize()
            undo.pop_all()  # nothing went wrong

    def close(self) -> None:
        self._device.free(self.address)

    def fresh(self) -> dict[str, Any]:
        """Tensors of their own memory that hold what every trial starts from, by name."""
        nbytes = self.arguments.nbytes
        block = self._bytes(0, nbytes).clone() if nbytes else None
        for span in self.arguments.poisoned:
            assert block is not None
            block[span.offset : span.end] = POISON
        return {name: self._view(name, block, 0) for name in self._layout.tensors}

    def results(self, names: Collection[str]) -> dict[str, Any]:
        """What the last trial left in these tensors, in memory of their own."""
        found: dict[str, Any] = {}
        for name in names:
            _, place = self._layout.tensors[name]
            for span, kept in zip(self.arguments.written, self.arguments.results):
                if place.offset is not None and span.offset <= place.offset < span.end:
                    # At the same place modulo any dtype's size, so that views of it start where they may.
                    before = span.offset % _MAX_ITEM_BYTES
                    kept_bytes = self._bytes(kept, span.nbytes)
                    block = kept_bytes.new_empty(before + span.nbytes)
                    block[before:] = kept_bytes
                    found[name] = self._view(name, block, span.offset - before)
        return found

    def _bytes(self, offset: int, nbytes: int) -> Any:
        return self._device.bytes_at(self.address + offset, nbytes)

    def _view(self, name: str, block: Any, first: int) -> Any:
        """A tensor within ``block``, whose first byte is byte ``first`` of a set."""
        import torch

        dtype, place = self._layout.tensors[name]
        if place.offset is None:
            device = None if block is None else block.device
            return torch.empty(place.shape, dtype=dtype, device=device)
        # From the tensor's own first byte on, in whole elements.
        at = place.offset - first
        nbytes = (block.numel() - at) // dtype.itemsize * dtype.itemsize
        return block[at : at + nbytes].view(dtype).as_strided(place.shape, place.strides)
