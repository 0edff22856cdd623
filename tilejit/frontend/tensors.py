"""Views, regions, pointers: their attributes, methods, subscripts and element accesses.

``A[i, j]`` with integers only is an element; with a slice it is a region (an integer keeps an axis
of extent one); ``A.sub[i, a:b]`` is a view (an integer drops its axis). Storing converts the value
to the element type. Compile-time negative indices count from the end, as in Python.

Not here: how views compose (``ir.views``), contracts.
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NoReturn

from tilejit import dtypes
from tilejit.frontend import operators
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import Method, Sub, describe, dtype_of, is_number, is_scalar
from tilejit.ir import build, views
from tilejit.ir import nodes as ir
from tilejit.ir.dims import dimension_iters
from tilejit.ir.linear import exact_quotient
from tilejit.language.annotations import dtype_text, near_dtype
from tilejit.layout import MEMORY_AXIS, THREAD_AXES, ComposeLayout, Layout, TileLayout

INDEXABLE = (ir.View, ir.Region, Sub)

VIEW_ATTRIBUTES = (
    "shape", "strides", "dtype", "layout", "ndim", "size", "sub", "view", "permute", "ptr_to",
)  # fmt: skip


def attribute_names(value: Any) -> tuple[str, ...]:
    """What ``attribute`` knows of a run-time value: the answers of ``hasattr``."""
    if isinstance(value, ir.View):
        return VIEW_ATTRIBUTES
    if isinstance(value, ir.Region):
        return ("shape", "dtype")
    return ("dtype",) if is_scalar(value) and isinstance(value.type, ir.ScalarType) else ()


def attribute(lw: Lowering, value: Any, name: str) -> Any:
    """An attribute of a run-time value."""
    if isinstance(value, ir.View):
        return _view_attribute(lw, value, name)
    if isinstance(value, ir.Region):
        if name == "shape":
            return value.extents
        if name == "dtype":
            return value.view.dtype
        lw.refuse(
            "attribute", f"a region has no attribute {name!r}",
            help="regions are operands; A.sub[...] makes a view",
        )  # fmt: skip
    if is_scalar(value) and isinstance(value.type, ir.ScalarType) and name == "dtype":
        return value.type.dtype
    lw.refuse("attribute", f"{describe(value)} has no attribute {name!r}")


def _view_attribute(lw: Lowering, view: ir.View, name: str) -> Any:
    match name:
        case "shape":
            return view.shape
        case "dtype":
            return view.dtype
        case "strides":
            return tuple(_stride(lw, view, d) for d in range(len(view.shape)))
        case "layout":
            if view.dynamic_strides:
                lw.refuse(
                    "attribute", f"{describe(view)} has strides known at run time only, and no layout",
                    help=".strides gives them",
                )  # fmt: skip
            return view.layout
        case "ndim":
            return len(view.shape)
        case "size":
            return _product(lw, view.shape)
        case "sub":
            return Sub(view)
        case "view" | "permute" | "ptr_to":
            return Method(view, name)
    lw.refuse(
        "attribute", f"{describe(view)} has no attribute {name!r}",
        help=f"it has {', '.join(VIEW_ATTRIBUTES)}",
    )  # fmt: skip


def _stride(lw: Lowering, view: ir.View, dimension: int) -> Any:
    """Elements from one index of a dimension to the next: a number, or a run-time value."""
    for d, stride in view.dynamic_strides:
        if d == dimension:
            return stride
    layout = view.layout
    iters = dimension_iters(layout, view.shape)[dimension] if isinstance(layout, TileLayout) else []
    if len(iters) != 1 or iters[0].axis != MEMORY_AXIS:
        lw.refuse(
            "attribute", f"dimension {dimension} of {describe(view)} has no one stride",
            help=".layout says where its elements lie",
        )  # fmt: skip
    return iters[0].stride


def _product(lw: Lowering, shape: tuple[Any, ...]) -> Any:
    total: Any = 1
    for extent in shape:
        total = operators.binary(lw, "mul", total, extent)
    return total


# --- methods


def method(lw: Lowering, bound: Method, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A method call on a view."""
    function, signature, takes_any = _METHODS[bound.name]
    if kwargs or not takes_any:
        try:
            signature.bind(lw, bound.receiver, *args, **kwargs)
        except TypeError as error:
            lw.refuse("arguments", f".{bound.name}(): {error}")
    return function(lw, bound.receiver, *args, **kwargs)


def _view(
    lw: Lowering, view: ir.View, *shape: Any, dtype: Any = None, layout: Any = None
) -> ir.View:
    """``t.view(*shape)``, ``t.view(dtype)``, ``t.view(*shape, layout=…)``."""
    only = shape[0] if len(shape) == 1 else None
    if isinstance(only, tuple | list):
        shape = tuple(only)
    elif isinstance(only, str | dtypes.DType):
        shape, dtype = (), only
    result = view
    if dtype is not None:
        result = views.with_dtype(result, as_dtype(lw, dtype))
    extents = tuple(extent(lw, e) for e in shape)
    if layout is not None:
        wanted = as_layout(lw, layout, extents or static_shape(lw, result))
        if wanted is None:
            lw.refuse("view", "a view needs a layout; None is not one")
        return views.with_layout(result, extents or static_shape(lw, result), wanted)
    return views.reshape(result, extents) if shape or dtype is None else result


def _permute(lw: Lowering, view: ir.View, *dims: Any) -> ir.View:
    if len(dims) == 1 and isinstance(dims[0], tuple | list):
        dims = tuple(dims[0])
    return views.permute(view, tuple(extent(lw, d) for d in dims))


def _ptr_to(lw: Lowering, view: ir.View, indices: Any = ()) -> ir.Address:
    """The address of one element; ``ptr_to()`` and ``ptr_to([])`` of the first."""
    items = list(indices) if isinstance(indices, tuple | list) else [indices]
    if not items:
        items = [0] * len(view.shape)
    indices = index_exprs(lw, view, items)
    if view.space == "tmem":
        offset = views.cell_offset(view, indices)
    else:
        if view.dtype.bits % 8:
            view, indices = _as_bytes(lw, view, indices)
        scale = build.const(view.dtype.bytes, dtypes.int64)
        elements = build.cast(views.element_offset(view, indices), dtypes.int64)
        offset = build.mul(elements, scale, span=lw.here())
    return ir.Address(view.buffer, offset, ir.PointerType(view.space), span=lw.here())


def _as_bytes(
    lw: Lowering, view: ir.View, indices: tuple[Any, ...]
) -> tuple[ir.View, tuple[Any, ...]]:
    """The byte that an element of a packed type starts."""
    bytes_ = views.with_dtype(view, dtypes.uint8)
    per_byte = 8 // view.dtype.bits
    last = exact_quotient(indices[-1], per_byte)
    if last is None:
        lw.refuse(
            "element", f"{view.dtype} elements are packed, {per_byte} in a byte, and this one is not known to "
            "start one", help='view them as bytes: t.view("uint8")',
        )  # fmt: skip
    return bytes_, (*indices[:-1], last)


_METHODS: dict[str, tuple[Callable[..., Any], inspect.Signature, bool]] = {
    name: (function, inspect.signature(function), takes_any)
    for name, function, takes_any in (
        ("view", _view, True),
        ("permute", _permute, True),
        ("ptr_to", _ptr_to, False),
    )
}
"""What runs, its signature, and whether it takes any number of positional arguments."""


# --- subscripts


def subscript(lw: Lowering, receiver: Any, index: Any) -> Any:
    """``view[...]`` (element or region), ``region[...]`` (element), ``view.sub[...]``."""
    items = list(index) if isinstance(index, tuple) else [index]
    if isinstance(receiver, Sub):
        return views.sub(receiver.view, _items(lw, receiver.view.shape, items))
    if isinstance(receiver, ir.Region):
        receiver, items = _within(lw, receiver, items)
    full = _full(lw, receiver.shape, items)
    if any(isinstance(item, slice) for item in full):
        return views.region(receiver, _items(lw, receiver.shape, full))
    return load(lw, receiver, full)


def load(lw: Lowering, view: ir.View, items: list[Any]) -> ir.Load:
    _refuse_storage_only(lw, view)
    indices = _element(lw, view, items)
    return ir.Load(view, indices, ir.ScalarType(view.dtype), span=lw.here())


def store(lw: Lowering, receiver: Any, index: Any, value: Any) -> None:
    """``view[index] = value``"""
    items = list(index) if isinstance(index, tuple) else [index]
    if isinstance(receiver, Sub):
        lw.refuse("store", "`.sub[...]` makes a view; store to an element with A[i, j] = x")
    if isinstance(receiver, ir.Region):
        receiver, items = _within(lw, receiver, items)
    if is_scalar(receiver):
        no_elements(lw, receiver, "store")
    if not isinstance(receiver, ir.View):
        lw.refuse(
            "store",
            f"{describe(receiver)} cannot be stored to",
            help="compile-time values do not change",
        )
    full = _full(lw, receiver.shape, items)
    if len(items) < len(full) and not any(i is Ellipsis or isinstance(i, slice) for i in items):
        lw.refuse("subscript", _counted(len(items), receiver), help=_row_or_element(receiver))
    if any(isinstance(item, slice) for item in full):
        lw.refuse(
            "store", "a region is stored to by tile instructions, one element at a time by A[i, j] = x",
            help='T.cuda.tile.apply(T.ptx["st…"], region, registers)',
        )  # fmt: skip
    _refuse_storage_only(lw, receiver)
    if isinstance(value, ir.View | ir.Region):
        view = value.view if isinstance(value, ir.Region) else value
        given = _indexed(value) if isinstance(value, ir.Region) else 0
        short = f"{_counted(given, view)}: " if 0 < given < len(view.shape) else ""
        lw.refuse(
            "store", f"{short}one element takes one scalar, got {describe(value)}",
            help=_row_or_element(view),
        )  # fmt: skip
    if not (is_scalar(value) or is_number(value)):
        lw.refuse("store", f"one element takes one scalar, got {describe(value)}")
    if is_scalar(value) and isinstance(value.type, ir.PointerType):
        value = operators.cast(lw, value, operators.pointer_dtype(value.type))
    converted = operators.cast(lw, value, receiver.dtype)
    lw.emit(ir.Store(receiver, _element(lw, receiver, full), converted, span=lw.here()))


def no_elements(lw: Lowering, scalar: ir.Expr, code: str) -> NoReturn:
    """Refuses a subscript of a number or an address."""
    message, help_ = f"{describe(scalar)} has no elements", "tensors and their views have"
    if isinstance(scalar.type, ir.PointerType):
        space = scalar.type.space
        message = f"a pointer to {space} memory is an address, not a buffer: it has no elements"
        help_ = "index the buffer that it points into, or give the address to a raw instruction: "
        help_ += f'T.ptx["ld.{space}.b32"](x, pointer)'
        if space == "tmem":
            help_ = (
                "T.cuda.decl_tmem(pointer, shape, dtype, layout=…) declares a tensor from there on"
            )
    elif isinstance(scalar, ir.Call) and scalar.op == "cuda.map_shared_rank":
        message = (
            "T.cuda.map_shared_rank gives an address in another CTA's shared memory, not a buffer: it "
            "has no elements"
        )
        help_ = _FAR_ACCESS
    elif scalar.type == ir.UINT32:
        help_ = f"if it is an address from T.cuda.map_shared_rank: {_FAR_ACCESS}"
    lw.refuse(code, message, help=help_)


_FAR_ACCESS = (
    'T.ptx["st.shared::cluster.b32"](address, value) and T.ptx["ld.shared::cluster.b32"](x, address); '
    "st.async also tells an mbarrier there (docs/contract/raw.md)"
)


def _indexed(region: ir.Region) -> int:
    """The leading axes that were given an index or a slice; whole axes follow."""
    count = len(region.extents)
    for start, part, whole in reversed([*zip(region.starts, region.extents, region.view.shape)]):
        if part != whole or not (isinstance(start, ir.Const) and start.value == 0):
            break
        count -= 1
    return count


def _counted(count: int, view: ir.View) -> str:
    indices = "1 index" if count == 1 else f"{count} indices"
    return f"{indices} for {len(view.shape)} axes"


def _row_or_element(view: ir.View) -> str:
    """How both are written, for who gave fewer indices than axes."""
    name, axes = view.buffer.name, [*"ijklmnpq"[: len(view.shape)]]
    element = f"{name}[{', '.join(axes) or '()'}]"
    if len(axes) < 2:
        return f"an element is {element}"
    row = f"{name}[{', '.join([*axes[:-1], ':'])}]"
    return f"{row} is a row for tile instructions; an element has {len(axes)} indices, {element}"


def _element(lw: Lowering, view: ir.View, items: list[Any]) -> tuple[Any, ...]:
    """The indices of one element. Where threads share out the elements, they must be known, and on an
    axis without bounds they must not be absurd: ``views`` says so with a LayoutError."""
    indices = index_exprs(lw, view, items)
    shared_out = view.layout is not None and not view.layout.axes.isdisjoint(THREAD_AXES)
    if shared_out or not all(isinstance(extent, int) for extent in view.shape):
        views.element_offset(view, indices)
    return indices


def _refuse_storage_only(lw: Lowering, view: ir.View) -> None:
    if view.space == "tmem":
        lw.refuse(
            "element", "tensor memory is read and written by tcgen05.ld and tcgen05.st only, a warp at once",
            help='T.cuda.tile.apply(T.ptx["tcgen05.ld.sync.aligned.32x32b.x64.b32"], registers, '
            f'{view.buffer.name}.view(4, 32, 64), scope="warpgroup") brings 64 columns to registers of that shape with '
            'layout=T.cuda.tcgen05_ld_layout("32x32b", 64, warps=4), then T.ptx["tcgen05.wait::ld.sync.aligned"]()',
        )  # fmt: skip
    if view.dtype.bits % 8:
        lw.refuse(
            "element", f"{view.dtype} elements are packed and have no address",
            help='view them as bytes: t.view("uint8")',
        )  # fmt: skip


def _full(lw: Lowering, shape: tuple[Any, ...], items: list[Any]) -> list[Any]:
    """One item per axis: an ellipsis and missing trailing axes are full slices."""
    holes = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(holes) > 1:
        lw.refuse("subscript", "a subscript has at most one `...`")
    given = len(items) - len(holes)
    if given > len(shape):
        lw.refuse("subscript", f"{given} indices for {len(shape)} axes")
    missing = [slice(None)] * (len(shape) - given)
    if holes:
        return items[: holes[0]] + missing + items[holes[0] + 1 :]
    return items + missing


def _items(lw: Lowering, shape: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    full = _full(lw, shape, items)
    return tuple(_item(lw, dim, item, axis) for axis, (dim, item) in enumerate(zip(shape, full)))


def _item(lw: Lowering, dim: Any, item: Any, axis: int) -> Any:
    """What ``ir.views`` takes for one axis: an Expr, or a (start, stop, step) triple."""
    if not isinstance(item, slice):
        return _index(lw, dim, item, axis)
    if item.start is None and item.stop is None and item.step is None:
        return (None, None, None)
    parts = []
    for part in (item.start, item.stop, item.step):
        part = part.value if isinstance(part, ir.Const) else part
        if isinstance(part, bool) or not (part is None or isinstance(part, int) or is_scalar(part)):
            lw.refuse("subscript", f"a slice bound is an integer, got {describe(part)}")
        if is_scalar(part) and not dtype_of(part).is_integer:
            lw.refuse("subscript", f"a slice bound is an integer, got {describe(part)}")
        parts.append(part)
    start, stop, step = parts
    if isinstance(dim, int):
        start = start + dim if isinstance(start, int) and start < 0 else start
        stop = stop + dim if isinstance(stop, int) and stop < 0 else stop
    return (start, stop, step)


def _index(lw: Lowering, dim: Any, item: Any, axis: int) -> Any:
    """One integer index as an expression; compile-time ones are checked against the extent."""
    if isinstance(item, ir.Const) and not isinstance(item.value, float):
        item = int(item.value)
    if isinstance(item, bool):
        item = int(item)
    if isinstance(item, int):
        if isinstance(dim, int):
            if not -dim <= item < dim:
                lw.refuse("bounds", f"index {item} is outside axis {axis} of extent {dim}")
            item = item + dim if item < 0 else item
        elif item < 0:
            lw.refuse("bounds", f"index {item} counts from the end of a dynamic axis")
        return operators.typed(lw, item)
    if is_scalar(item) and isinstance(item.type, ir.ScalarType):
        if item.type.dtype.is_integer:
            return item
        if item.type == ir.BOOL:
            return operators.cast(lw, item, dtypes.int32)
    lw.refuse("subscript", f"an index is an integer, got {describe(item)}")


def index_exprs(lw: Lowering, view: ir.View, items: list[Any]) -> tuple[Any, ...]:
    """Element indices, one per axis."""
    if len(items) != len(view.shape):
        lw.refuse("subscript", f"{len(items)} indices for {len(view.shape)} axes")
    return tuple(_index(lw, d, item, axis) for axis, (d, item) in enumerate(zip(view.shape, items)))


def _within(lw: Lowering, region: ir.Region, items: list[Any]) -> tuple[ir.View, list[Any]]:
    """Element indices of a region as element indices of its view."""
    full = _full(lw, region.extents, items)
    if any(isinstance(item, slice) for item in full):
        lw.refuse("subscript", "a region of a region", help="take a view first: A.sub[...]")
    moved = [
        operators.binary(lw, "add", start, _index(lw, extent_, item, axis))
        for axis, (start, extent_, item) in enumerate(zip(region.starts, region.extents, full))
    ]
    return region.view, moved


# --- static arguments


def extent(lw: Lowering, value: Any) -> int:
    """A compile-time integer (typed constants count)."""
    if isinstance(value, ir.Const):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, int):
        lw.refuse(
            "static", f"a compile-time integer is needed, got {describe(value)}",
            help="sizes of tiles and T.unroll's counts are compile-time; range(…) makes a run-time loop",
        )  # fmt: skip
    return value


def shape_and_layout(
    lw: Lowering, shape: Any, layout: Any
) -> tuple[tuple[int, ...], Layout | None]:
    """What a buffer is declared with."""
    extents = shape if isinstance(shape, tuple | list) else (shape,)
    dims = tuple(extent(lw, e) for e in extents)
    if any(dim < 1 for dim in dims):
        lw.refuse("shape", f"extents are at least 1, got {dims}")
    found = as_layout(lw, layout, dims)
    if found is not None and found.size != math.prod(dims):
        lw.refuse(
            "layout", f"the layout has {found.size} coordinates, the shape {dims} has "
            f"{math.prod(dims)}", help="a layout's extents multiply to the buffer's size",
        )  # fmt: skip
    return dims, found


def static_shape(lw: Lowering, view: ir.View) -> tuple[int, ...]:
    return tuple(extent(lw, e) for e in view.shape)


def as_dtype(lw: Lowering, value: Any) -> dtypes.DType:
    if not isinstance(value, str | dtypes.DType):
        near = near_dtype(value)
        got = describe(value) if near is None else dtype_text(value)
        lw.refuse("static", f"a dtype or its name is needed, got {got}", help=_write(near))
    try:
        return dtypes.dtype(value)
    except ValueError as error:
        lw.refuse("dtype", str(error), help=_write(near_dtype(value)))


def _write(near: str | None) -> str:
    return f"write {near or 'a dtype such as T.float32'}"


def as_layout(lw: Lowering, value: Any, shape: tuple[int, ...]) -> Layout | None:
    """``"default"``, a notation string, a Layout, or None."""
    from tilejit.frontend import notation
    from tilejit.layout import row_major

    if value is None or isinstance(value, TileLayout | ComposeLayout):
        layout = value
    elif value == "default":
        layout = row_major(shape)
    elif isinstance(value, str):
        layout = notation.layout(lw, value)
    else:
        lw.refuse("layout", f"a layout is T.layout(...), 'default' or None, got {describe(value)}")
    return layout
