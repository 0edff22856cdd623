"""Device functions that generated text may call; only those in use are written out.

Each is small and inlined. Names begin with ``tj_``. Not here: when they are called.
"""

from __future__ import annotations

_HEAD = "__device__ __forceinline__"
_T = f"template <class T> {_HEAD} T"


def _to_integer(source: str, target: str) -> tuple[str, tuple[str, ...]]:
    """Truncation that saturates and makes a NaN zero (``cvt`` does so by itself only from f32 to 32
    bits); 8- and 16-bit results saturate again from 32 bits."""
    bits = int(target[1:])
    name = f"tj_{source}_{target}"
    if bits < 32:
        low, high = (
            (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target[0] == "i" else (0, 2**bits - 1)
        )
        wide = f"tj_{source}_i32"
        body = f"i32 d = {wide}(a); return ({target})(d < {low} ? {low} : d > {high} ? {high} : d);"
        return f"{_HEAD} {target} {name}({source} a) {{ {body} }}", (wide,)
    kind = "s" if target[0] == "i" else "u"
    result = "d" if source == "f32" and bits == 32 else "a == a ? d : 0"
    return (
        f'{_HEAD} {target} {name}({source} a) {{ {target} d; asm("cvt.rzi.{kind}{bits}.{source} '
        f'%0, %1;" : "={"r" if bits == 32 else "l"}"(d) : "{"f" if source == "f32" else "d"}"(a)); '
        f"return {result}; }}",
        (),
    )


# Integer division by zero gives zero, so that an expression evaluated for nothing does no harm.
_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tj_floordiv": (
        f"{_T} tj_floordiv(T a, T b) {{ if (b == 0) return 0; "
        "if (b == (T)-1) return (T)(0ull - (u64)a); "
        "T q = (T)(a / b), r = (T)(a % b); return (T)(q - (r != 0 && (r ^ b) < 0)); }",
        (),
    ),
    "tj_mod": (
        f"{_T} tj_mod(T a, T b) {{ if (b == 0 || b == (T)-1) return 0; "
        "T r = (T)(a % b); return (r != 0 && (r ^ b) < 0) ? (T)(r + b) : r; }",
        (),
    ),
    "tj_udiv": (f"{_T} tj_udiv(T a, T b) {{ return b == 0 ? (T)0 : (T)(a / b); }}", ()),
    "tj_umod": (f"{_T} tj_umod(T a, T b) {{ return b == 0 ? (T)0 : (T)(a % b); }}", ()),
    "tj_min": (f"{_T} tj_min(T a, T b) {{ return a < b ? a : b; }}", ()),
    "tj_max": (f"{_T} tj_max(T a, T b) {{ return a > b ? a : b; }}", ()),
    "tj_abs": (f"{_T} tj_abs(T a) {{ return a < 0 ? (T)(0ull - (u64)a) : a; }}", ()),
    # A count of the type's width or more (a negative one is that) shifts everything out.
    "tj_shl": (
        f"template <class T> {_HEAD} T tj_shl(T a, u64 n) "
        "{ return n >= 8 * sizeof(T) ? (T)0 : (T)((u64)a << n); }",
        (),
    ),
    "tj_shr": (
        f"template <class T> {_HEAD} T tj_shr(T a, u64 n) "
        "{ return n >= 8 * sizeof(T) ? (T)(a < 0 ? -1 : 0) : (T)(a >> n); }",
        (),
    ),
    "tj_ushr": (
        f"template <class T> {_HEAD} T tj_ushr(T a, u64 n) "
        "{ return n >= 8 * sizeof(T) ? (T)0 : (T)(a >> n); }",
        (),
    ),
    # Python's definition: the remainder has the divisor's sign, the quotient is its floor.
    "tj_fmod32": (
        f"{_HEAD} f32 tj_fmod32(f32 a, f32 b) {{ f32 r = fmodf(a, b); if (b == 0.0f) return r; "
        "if (r == 0.0f) return copysignf(0.0f, b); return ((r < 0.0f) != (b < 0.0f)) ? r + b : r; }",
        (),
    ),
    "tj_ffloordiv32": (
        f"{_HEAD} f32 tj_ffloordiv32(f32 a, f32 b) {{ if (b == 0.0f) return a / b; "
        "f32 r = fmodf(a, b), q = (a - r) / b; "
        "if (r != 0.0f && (r < 0.0f) != (b < 0.0f)) q -= 1.0f; "
        "if (q == 0.0f) return copysignf(0.0f, a / b); "
        "f32 f = floorf(q); return q - f > 0.5f ? f + 1.0f : f; }",
        (),
    ),
    "tj_fmod64": (
        f"{_HEAD} f64 tj_fmod64(f64 a, f64 b) {{ f64 r = fmod(a, b); if (b == 0.0) return r; "
        "if (r == 0.0) return copysign(0.0, b); return ((r < 0.0) != (b < 0.0)) ? r + b : r; }",
        (),
    ),
    "tj_ffloordiv64": (
        f"{_HEAD} f64 tj_ffloordiv64(f64 a, f64 b) {{ if (b == 0.0) return a / b; "
        "f64 r = fmod(a, b), q = (a - r) / b; "
        "if (r != 0.0 && (r < 0.0) != (b < 0.0)) q -= 1.0; "
        "if (q == 0.0) return copysign(0.0, a / b); "
        "f64 f = floor(q); return q - f > 0.5 ? f + 1.0 : f; }",
        (),
    ),
    # --- 16-bit floats
    "tj_f16_f32": (
        f'{_HEAD} f32 tj_f16_f32(f16 a) {{ f32 d; asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(a)); '
        "return d; }",
        (),
    ),
    "tj_bf16_f32": (
        f"{_HEAD} f32 tj_bf16_f32(bf16 a) {{ return __uint_as_float((u32)a << 16); }}",
        (),
    ),
    "tj_f32_f16": (
        f'{_HEAD} f16 tj_f32_f16(f32 a) {{ f16 d; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(a)); '
        "return d; }",
        (),
    ),
    "tj_f32_bf16": (
        f'{_HEAD} bf16 tj_f32_bf16(f32 a) {{ bf16 d; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : '
        '"f"(a)); return d; }',
        (),
    ),
    "tj_f64_f16": (
        f'{_HEAD} f16 tj_f64_f16(f64 a) {{ f16 d; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(d) : "d"(a)); '
        "return d; }",
        (),
    ),
    # Truncation that marks what it lost in the last bit ("round to odd") makes the second rounding
    # the only one that counts.
    "tj_f64_odd": (
        f"{_HEAD} f32 tj_f64_odd(f64 a) {{ f32 t = __double2float_rz(a); "
        "return (f64)t != a ? __uint_as_float(__float_as_uint(t) | 1u) : t; }",
        (),
    ),
    "tj_f64_bf16": (
        f"{_HEAD} bf16 tj_f64_bf16(f64 a) {{ return tj_f32_bf16(tj_f64_odd(a)); }}",
        ("tj_f64_odd", "tj_f32_bf16"),
    ),
    "tj_i64_bf16": (
        f"{_HEAD} bf16 tj_i64_bf16(i64 a) {{ f32 t = __ll2float_rz(a); u32 b = __float_as_uint(t); "
        "if ((i64)t != a) b |= 1u; return tj_f32_bf16(__uint_as_float(b)); }",
        ("tj_f32_bf16",),
    ),
    "tj_u64_bf16": (
        f"{_HEAD} bf16 tj_u64_bf16(u64 a) {{ f32 t = __ull2float_rz(a); u32 b = __float_as_uint(t); "
        "if ((u64)t != a) b |= 1u; return tj_f32_bf16(__uint_as_float(b)); }",
        ("tj_f32_bf16",),
    ),
    "tj_i64_f16": (
        f'{_HEAD} f16 tj_i64_f16(i64 a) {{ f16 d; asm("cvt.rn.f16.s64 %0, %1;" : "=h"(d) : "l"(a)); '
        "return d; }",
        (),
    ),
    "tj_u64_f16": (
        f'{_HEAD} f16 tj_u64_f16(u64 a) {{ f16 d; asm("cvt.rn.f16.u64 %0, %1;" : "=h"(d) : "l"(a)); '
        "return d; }",
        (),
    ),
    "tj_fma_f16": (
        f'{_HEAD} f16 tj_fma_f16(f16 a, f16 b, f16 c) {{ f16 d; asm("fma.rn.f16 %0, %1, %2, %3;" : '
        '"=h"(d) : "h"(a), "h"(b), "h"(c)); return d; }',
        (),
    ),
    "tj_fma_bf16": (
        f'{_HEAD} bf16 tj_fma_bf16(bf16 a, bf16 b, bf16 c) {{ bf16 d; asm("fma.rn.bf16 %0, %1, %2, %3;" '
        ': "=h"(d) : "h"(a), "h"(b), "h"(c)); return d; }',
        (),
    ),
    **{
        f"tj_{source}_{target}": _to_integer(source, target)
        for source in ("f32", "f64")
        for target in ("i32", "i8", "i16", "i64", "u8", "u16", "u32", "u64")
    },
    # --- bytes of 8-bit floats, in integer arithmetic: sm_80 has no instruction for them, and later
    # ones saturate. Below the normal range an addition rounds to the spacing of subnormals.
    "tj_e4m3_f32": (
        f"{_HEAD} f32 tj_e4m3_f32(u8 a) {{ if ((a & 0x7f) == 0x7f) return __uint_as_float(0x7fffffffu); "
        "return tj_f16_f32((f16)((a & 0x80) << 8 | (a & 0x7f) << 7)) * 256.0f; }",
        ("tj_f16_f32",),
    ),
    "tj_e5m2_f32": (
        f"{_HEAD} f32 tj_e5m2_f32(u8 a) {{ return tj_f16_f32((f16)((u32)a << 8)); }}",
        ("tj_f16_f32",),
    ),
    **{
        f"tj_f32_{name}": (
            f"{_HEAD} u8 tj_f32_{name}(f32 a) {{ if (a != a) return 0x7f; "
            f"f32 m = fabsf(a); u32 u = __float_as_uint(m), s = __float_as_uint(a) >> 31 << 7; "
            f"if (m {beyond}) return (u8)(s | {overflow}); "
            f"u32 d = m < {least} ? __float_as_uint(m + {magic}) - __float_as_uint({magic}) : "
            f"((u + {(1 << shift - 1) - 1}u + ((u >> {shift}) & 1)) >> {shift}) - {rebias}u; "
            "return (u8)(s | d); }",
            (),
        )
        for name, beyond, overflow, least, magic, shift, rebias in (
            ("e4m3", "> 464.0f", "0x7f", "0.015625f", "16384.0f", 20, (127 - 7) << 3),
            ("e5m2", ">= 61440.0f", "0x7c", "0.00006103515625f", "128.0f", 21, (127 - 15) << 2),
        )
    },
    # --- warp exchange of 32-bit values; narrower ones travel widened, wider ones in halves
    **{
        f"tj_shfl_{name}": (
            f"{_HEAD} u32 tj_shfl_{name}(u32 a, i32 b) {{ u32 d; "
            f'asm volatile("shfl.sync.{mode}.b32 %0, %1, %2, {clamp}, 0xffffffff;" : "=r"(d) : '
            '"r"(a), "r"(b)); return d; }',
            (),
        )
        for name, mode, clamp in (
            ("idx", "idx", 31), ("xor", "bfly", 31), ("up", "up", 0), ("down", "down", 31)
        )
    },
    **{
        f"tj_shfl_{name}_64": (
            f"{_HEAD} u64 tj_shfl_{name}_64(u64 a, i32 b) {{ "
            f"u32 lo = tj_shfl_{name}((u32)a, b), hi = tj_shfl_{name}((u32)(a >> 32), b); "
            "return (u64)hi << 32 | lo; }",
            (f"tj_shfl_{name}",),
        )
        for name in ("idx", "xor", "up", "down")
    },
    "tj_elect": (
        f"{_HEAD} bool tj_elect() {{ u32 d; asm volatile(\"{{.reg .pred p; elect.sync _|p, 0xffffffff; "
        'selp.b32 %0, 1, 0, p;}" : "=r"(d)); return d != 0; }',
        (),
    ),
    "tj_mapa": (
        f'{_HEAD} u32 tj_mapa(u32 a, u32 rank) {{ u32 d; asm("mapa.shared::cluster.u32 %0, %1, %2;" : '
        '"=r"(d) : "r"(a), "r"(rank)); return d; }',
        (),
    ),
    # The barrier word lies 4 bytes into what the driver gives a cooperative launch (environment
    # registers 1 and 2). One CTA adds what makes the sum of all CTAs flip the top bit.
    "tj_grid_sync": (
        f"{_HEAD} void tj_grid_sync() {{ __syncthreads(); "
        "if (threadIdx.x + threadIdx.y + threadIdx.z == 0) { u32 high, low, old, now; "
        'asm("mov.u32 %0, %%envreg1;" : "=r"(high)); asm("mov.u32 %0, %%envreg2;" : "=r"(low)); '
        "u64 word = ((u64)high << 32 | low) + 4; "
        "u32 step = blockIdx.x + blockIdx.y + blockIdx.z ? 1u : "
        "0x80000000u - (gridDim.x * gridDim.y * gridDim.z - 1); "
        'asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(step) : '
        '"memory"); '
        'do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory"); '
        "while (!((old ^ now) >> 31)); } __syncthreads(); }",
        (),
    ),
}  # fmt: skip


class Helpers:
    """The helpers in use."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def use(self, name: str) -> str:
        """``name``, remembered together with what it calls."""
        if name not in self._used:
            self._used.add(name)
            for other in _TEXTS[name][1]:
                self.use(other)
        return name

    def lines(self) -> list[str]:
        """Definitions, callees first, in the table's order."""
        return [text for name, (text, _) in _TEXTS.items() if name in self._used]


def names() -> tuple[str, ...]:
    """Every helper, for tests that compile them all."""
    return tuple(_TEXTS)
