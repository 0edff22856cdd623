"""``T``: everything a kernel author may write, one spelling each.

Dtypes are values (``dtype=T.float32``), annotations (``alpha: T.float32``) and, in kernels,
conversions (``T.uint32(1)``).
"""

from __future__ import annotations

from tilejit.dtypes import (
    bfloat16 as bfloat16,
    bool_ as bool_,
    float4_e2m1fn as float4_e2m1fn,
    float6_e2m3fn as float6_e2m3fn,
    float6_e3m2fn as float6_e3m2fn,
    float8_e4m3fn as float8_e4m3fn,
    float8_e5m2 as float8_e5m2,
    float8_e8m0fnu as float8_e8m0fnu,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from tilejit.language import cuda as cuda
from tilejit.language.annotations import Tensor as Tensor
from tilejit.language.annotations import constexpr as constexpr
from tilejit.language.annotations import dynamic as dynamic
from tilejit.language.core import (
    abs as abs,
    alloc_local as alloc_local,
    alloc_shared as alloc_shared,
    assume as assume,
    bitcast as bitcast,
    cast as cast,
    ceildiv as ceildiv,
    device_assert as device_assert,
    device_entry as device_entry,
    if_then_else as if_then_else,
    layout as layout,
    max as max,
    min as min,
    print as print,
    static_assert as static_assert,
    truncdiv as truncdiv,
    truncmod as truncmod,
    unroll as unroll,
)
from tilejit.language.scalar_math import (
    brev as brev,
    ceil as ceil,
    clz as clz,
    cos as cos,
    erf as erf,
    exp as exp,
    exp2 as exp2,
    floor as floor,
    fma as fma,
    isinf as isinf,
    isnan as isnan,
    log as log,
    log2 as log2,
    popc as popc,
    pow as pow,
    rint as rint,
    rsqrt as rsqrt,
    sin as sin,
    sqrt as sqrt,
    tanh as tanh,
    trunc as trunc,
)
from tilejit.layout import ComposeLayout as ComposeLayout
from tilejit.layout import TileLayout as TileLayout
from tilejit.ptx.instruction import ptx as ptx
