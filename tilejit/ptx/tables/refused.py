"""Spellings that one would expect, that no assembler takes, and what to write instead.

They are no forms: this file only makes their error say what is right. A spelling here is also
refused because no table row derives it.
"""

from __future__ import annotations

from tilejit.ptx.tables import Refused

_SPACE = r"(global|shared(::cta)?|local)"

REFUSED: tuple[Refused, ...] = (
    Refused(
        r"(ld|st)\..*\bv8\.[bus]16",
        "a vector of eight 16-bit elements is no PTX form (an assembler given it crashes)",
        "'.v4.b32', which moves the same 16 bytes",
    ),
    Refused(
        r"(ld|st)\..*\bv8\.[busf]64",
        "64 bytes are too wide for one instruction",
        "'.v4.b64' (32 bytes, global memory, sm_100)",
    ),
    Refused(
        r"(ld|st)\.(?=.*\.cluster\b).*\b(v8\.[busf]32|v4\.[busf]64)",
        "a 32-byte access at cluster scope crashes the assembler",
        "'.v4.b32' (16 bytes), or '.gpu' scope",
    ),
    Refused(
        r"(ld|st)\.(?!.*\bglobal\b).*\bv8\..*",
        "32-byte accesses exist in global memory only",
        "'.v4.b32' (16 bytes)",
    ),
    Refused(
        r"(ld|st)\.(?!.*\bglobal\b).*\bv4\.[busf]64",
        "32-byte accesses exist in global memory only",
        "'.v2.b64' (16 bytes)",
    ),
    Refused(
        r"(ld|st)\..*L2::evict_(first|last|normal)\b(?!.*(v8\.[busf]32|v4\.[busf]64)).*",
        "an L2 eviction priority needs a 32-byte access ('.v8.b32' or '.v4.b64', sm_100)",
        "'.L2::cache_hint' with a policy made by 'createpolicy.fractional…'",
    ),
    Refused(r"st\..*L2::(64|128|256)B.*", "stores have no prefetch size", "it on the load, or leave it out"),
    Refused(
        r"(ld|st)(\.weak)?(\.v[248])?\.[busf]\d+",
        "an address space is needed",
        "'.global', '.shared', '.shared::cta' or '.local'",
    ),
    Refused(
        r"(ld|st)\.(?=.*\b(relaxed|acquire|release)\b)(?!.*\.(cta|cluster|gpu|sys)\b).*",
        "an ordered access needs a scope",
        "'.relaxed.gpu', with one of '.cta', '.cluster', '.gpu', '.sys'",
    ),
    Refused(r"(ld|st)\..*\bv3\..*", "vectors have 2, 4 or 8 elements", "'.v2' or '.v4'"),
    Refused(r"cvt\..*f32x2\.b?f16x2", "there is no packed widening", "two 'cvt.f32.f16' on a uint16 view"),
    Refused(r"fma(\.ftz)?(\.sat)?\.(f32|f64|b?f16(x2)?|f32x2)", "the rounding must be written", "'fma.rn…'"),
    Refused(r"ex2\.approx\.bf16(x2)?", "'.ftz' is mandatory for bf16", "'ex2.approx.ftz.bf16' or '.bf16x2'"),
    Refused(r"(add|sub|mul)\..*sat.*f32x2", "packed f32x2 has no '.sat'", "scalar f32 with '.sat'"),
    Refused(r"(min|max|abs|neg|ex2|lg2)\..*f32x2", "there is no f32x2 form", "two scalar f32 instructions"),
    Refused(r"rsqrt\.(rn|rz|rm|rp)(\.ftz)?\.f(32|64)", "rsqrt is approximate only", "'rsqrt.approx.f32', or sqrt and rcp"),
    Refused(r"div(\.ftz)?\.f32", "the accuracy must be written", "'div.rn.f32', 'div.full.f32' or 'div.approx.f32'"),
    Refused(r"(rcp|sqrt)(\.ftz)?\.f32", "the accuracy must be written", "'.rn' (IEEE) or '.approx'"),
    Refused(r"(ex2|lg2|sin|cos|tanh|rsqrt)(\.ftz)?\.\w+", "the approximation must be written", "'.approx'"),
    Refused(r"mul\.[us](16|32|64)", "an integer product needs its part", "'mul.lo', 'mul.hi' or 'mul.wide'"),
    Refused(r"(shfl|vote|match|redux|elect)(?!.*\bsync\b)\..*", "the form without '.sync' is gone", "'.sync' and a member mask"),
    Refused(r"cvt\.(f16|bf16)\.f(32|64)", "a narrowing conversion needs its rounding", "'cvt.rn…'"),
    Refused(r"cvt\.f(16|32|64)\.[us]\d+", "an integer to float conversion needs its rounding", "'cvt.rn…'"),
    Refused(r"cvt\.[us]\d+\.b?f(16|32|64)", "a float to integer conversion needs its rounding", "'cvt.rzi…' (truncate) or '.rni'"),
    Refused(r"cvt\.r[nzmp]\.[us]\d+\.b?f(16|32|64)", "to an integer the rounding is integral", "'.rni', '.rzi', '.rmi' or '.rpi'"),
    Refused(r"mma\.sync\..*f32\.(f16\.bf16|bf16\.f16)\.f32", "A and B have one type", "'.f16.f16' or '.bf16.bf16'"),
    Refused(r"mma\.sync\..*\.f16\.bf16\.bf16\.f16", "bf16 accumulates in f32", "'.f32.bf16.bf16.f32'"),
    Refused(r"mma\.sync\..*\.(f16\.\w+\.\w+\.f32|f32\.\w+\.\w+\.f16)", "C and D have one type", "'.f32…f32' or '.f16…f16'"),
    Refused(r"cp\.async(?!\.(bulk|c[ag]|commit_group|wait_group|wait_all|mbarrier)).*", "a cache level is needed", "'cp.async.ca…' or '.cg'"),
    Refused(r"cp\.async\.c[ag]\.global\.shared.*", "it copies from global to shared memory only", "'cp.async.ca.shared.global', or 'st.global'"),
    Refused(r"tcgen05\.wait::(ld|st)(\.sync)?", "'.sync.aligned' is mandatory", "'tcgen05.wait::ld.sync.aligned'"),
    Refused(r"tcgen05\.commit\..*shared(::cta)?\..*", "the barrier's space is written '.shared::cluster'", "that, with the local shared address"),
    Refused(r"tcgen05\.mma\.ws\.cta_group::2.*", "'.ws' works in one block only", "'.cta_group::1'"),
    Refused(r"tcgen05\.mma\.ws\..*collector::a::.*", "the collector of '.ws' holds B, in one of four buffers", "'.collector::b0::fill', '.collector::b0::use' and so on"),
    Refused(r"tcgen05\.mma\.(?!ws).*collector::b[0-3]::.*", "the collector holds A where '.ws' is not written", "'.collector::a::fill', '.collector::a::use' and so on"),
    Refused(r"tcgen05\.mma\..*ashift.*collector::a::(fill|use)", "a shifted A is not kept in the collector", "'.collector::a::lastuse' or '.collector::a::discard', or no '.ashift'"),
    Refused(r"cp\.async\.bulk\..*shared::cta\.global.*multicast::cluster.*", "a multicast goes to '.shared::cluster'", "'.shared::cluster.global'"),
    Refused(r"tcgen05\.mma\..*kind::mxf8f6f4\..*(scale_vec::[24]X|block16).*", "mxf8f6f4 has one scale per 32", "'.scale_vec::1X' or '.block32'"),
    Refused(r"tcgen05\.mma\..*kind::mxf4\..*(scale_vec::[14]X|block16).*", "mxf4 has two scales per row", "'.scale_vec::2X' or '.block32'"),
    Refused(r"tcgen05\.mma\..*kind::mxf4nvf4\..*scale_vec::1X.*", "mxf4nvf4 has two or four scales per row", "'.scale_vec::2X' or '.scale_vec::4X'"),
    Refused(r"tcgen05\.mma\..*kind::(f16|tf32|f8f6f4|i8)\b.*block_scale.*", "no block of this kind has a scale", "'.kind::mxf8f6f4', '.kind::mxf4' or '.kind::mxf4nvf4', or no '.block_scale'"),
    Refused(r"tcgen05\.cp\.(?!.*warpx2::).*64x128b\b.*", "two pairs of warps get a copy each, which a modifier names", "'.64x128b.warpx2::02_13' or '.64x128b.warpx2::01_23'"),
    Refused(r"tcgen05\.cp\.(?!.*warpx4).*32x128b\b.*", "the lanes of four warps get a copy each", "'.32x128b.warpx4'"),
    Refused(r"tcgen05\.cp\.(?!.*b8x16).*b[46]x16_p\d+.*", "what the packed values become must be written", "'.b8x16.b4x16_p64' or '.b8x16.b6x16_p32'"),
    Refused(r"tcgen05\.(ld|st)\..*16x128b\.x128\b.*", "these are more than 128 registers", "'.x64' at most, several times"),
    Refused(r"tcgen05\.(ld|st)\..*16x256b\.x(64|128)\b.*", "these are more than 128 registers", "'.x32' at most, several times"),
    Refused(r"tcgen05\.ld\..*\.unpack::16b.*", "a load packs, a store unpacks", "'.pack::16b'"),
    Refused(r"tcgen05\.st\..*\.pack::16b.*", "a load packs, a store unpacks", "'.unpack::16b'"),
    Refused(r"ldmatrix\..*shared::cluster.*", "ldmatrix reads its own block's memory", "'.shared' or '.shared::cta'"),
)  # fmt: skip
