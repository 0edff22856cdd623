"""Numbers and addresses that operations take, and addresses taken for buffers."""

from __future__ import annotations

import pytest

from tests.frontend.kernels import make, tensor
from tilejit import frontend
from tilejit.errors import SyntaxUnsupported
from tilejit.ir.signature import Signature

FLOATS = [
    "mbarrier_wait(bar.ptr_to([0]), 1.0)", "mbarrier_wait(bar.ptr_to([0]), f)",
    "mbarrier_wait_acquire_cluster(bar.ptr_to([0]), 0.0)", "mbarrier_wait(bar.ptr_to([0]), t / 2)",
    "mbarrier_wait(bar.ptr_to([0]), bar.ptr_to([0]))", "named_barrier_sync(1.0, 32)",
    "named_barrier_arrive(f, 32)", "warpgroup_sync(1.0)", "map_shared_rank(bar.ptr_to([0]), 1.0)",
    "map_shared_rank(bar.ptr_to([0]), f)", "shfl_idx(f, 3.0)", "shfl_xor(f, f)", "shfl_up(f, 1.0)",
    "shfl_down(f, f)",
]  # fmt: skip
INTEGERS = [
    "mbarrier_wait(bar.ptr_to([0]), 1)", "mbarrier_wait(bar.ptr_to([0]), True)",
    "mbarrier_wait(bar.ptr_to([0]), t % 2)", "mbarrier_wait(bar.ptr_to([0]), f > 0.0)",
    "mbarrier_wait(bar.ptr_to([0]), T.cast(t, 'int64'))", "map_shared_rank(bar.ptr_to([0]), t)",
    "shfl_idx(f, T.uint32(t))",
]  # fmt: skip


def refused(line: str) -> SyntaxUnsupported | None:
    kernel = make(f"""
        def k(out):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=128, cluster=2))
            bar = T.alloc_shared((1,), "uint64", align=8)
            s = T.alloc_shared((32,), "float32")
            t = T.cuda.thread_idx("x")
            f = out[t]
            {line}
    """)
    try:
        frontend.lower(kernel, Signature((("out", tensor("float32", 128)),), "sm_90a"))
    except SyntaxUnsupported as error:
        return error
    return None


@pytest.mark.parametrize("call", FLOATS)
def test_parities_lanes_ranks_and_barriers_are_integers(call: str) -> None:
    error = refused(f"T.cuda.{call}")
    assert error is not None and error.codes == ("frontend/type",)
    assert "takes an integer here" in str(error)


@pytest.mark.parametrize("call", INTEGERS)
def test_integers_of_any_width_and_bools_are(call: str) -> None:
    assert refused(f"T.cuda.{call}") is None


@pytest.mark.parametrize("phase", ["2", "-1", "T.uint32(7)"])
@pytest.mark.parametrize("wait", ["mbarrier_wait", "mbarrier_wait_acquire_cluster"])
def test_a_parity_is_0_or_1(wait: str, phase: str) -> None:
    error = refused(f"T.cuda.{wait}(bar.ptr_to([0]), {phase})")
    assert error is not None and error.codes == ("frontend/parity",)
    assert "expected 0 or 1" in str(error)


@pytest.mark.parametrize(
    ("line", "code", "texts"),
    [
        ("T.cuda.map_shared_rank(s.ptr_to([0]), 1)[0] = f", "store",
         ("another CTA's shared memory, not a buffer", "st.shared::cluster", "st.async")),
        ("out[t] = T.cuda.map_shared_rank(s.ptr_to([0]), 1)[0]", "subscript",
         ("another CTA's shared memory, not a buffer", "ld.shared::cluster")),
        ("p = T.bitcast(f, 'uint32'); p[0] += f", "subscript",
         ("a run-time uint32 has no elements", "if it is an address from T.cuda.map_shared_rank")),
        ("s.ptr_to([0])[0] = f", "store", ("a pointer to shared memory is an address, not a buffer",)),
        ("out[t] = s.ptr_to([0])[0]", "subscript", ("index the buffer that it points into",)),
        ("out[t] = f[0]", "subscript", ("a run-time float32 has no elements",)),
        ("f[0] = 1.0", "store", ("a run-time float32 has no elements",)),
    ],
)  # fmt: skip
def test_an_address_is_no_buffer(line: str, code: str, texts: tuple[str, ...]) -> None:
    error = refused(line)
    assert error is not None and error.codes == (f"frontend/{code}",)
    for text in texts:
        assert text in str(error)


def test_the_access_that_is_named_is_one() -> None:
    far = 'T.ptx["st.shared::cluster.b32"](T.cuda.map_shared_rank(s.ptr_to([0]), 1), f)'
    assert refused(far) is None


@pytest.mark.parametrize(
    "call", ["a >> 1", "1 << a", "T.uint64(a) >> a", "a ** 2", "abs(a)", "T.abs(a)"]
)
def test_an_address_is_no_number(call: str) -> None:
    error = refused(f"a = out.ptr_to([0]); b = {call}")
    assert error is not None and error.codes == ("frontend/pointer-arithmetic",)


def test_an_address_bounds_no_loop() -> None:
    error = refused("for i in range(out.ptr_to([0])): pass")
    assert error is not None and error.codes == ("frontend/range",)
