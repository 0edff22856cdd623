"""Steps of tile calls on the simulated machine: registers, memory, predicates, atomics, waits.

The family here is a stand-in that loads, stores, adds and swaps; real ones have their own tests.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.sim.handmade import (
    CTA,
    TID,
    b,
    codes,
    dtypes,
    f32,
    faults,
    i32,
    kernel,
    line,
    load,
    n,
    notes,
    run,
    store,
    tensor,
    when,
)  # fmt: skip
from tilejit.errors import Unsimulated
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile.family import (
    Immediate,
    Issue,
    Let,
    Memory,
    Register,
    Registers,
    ScalarApply,
    Value,
    Variable,
)  # fmt: skip


def spec(name: str, direction: str, kind: str = "reg", lanes: int = 1) -> OperandSpec:
    return OperandSpec(name, direction, kind, lanes=lanes)


LOAD = Form("ld.global.v4.b32", "stand_in", (spec("d", "w", lanes=4), spec("a", "r", "addr")))
STORE = Form("st.global.v4.b32", "stand_in", (spec("a", "w", "addr"), spec("b", "r", lanes=4)))
ADD = Form("add.u32", "stand_in", (spec("d", "w"), spec("a", "r"), spec("b", "r")))
ATOMIC = Form("atom.global.add.u32", "stand_in", (spec("d", "w"), spec("a", "rw", "addr")))
BARRIER = Form(
    "bar.sync", "sync", (spec("a", "r", "imm"), spec("b", "r", "imm")), effects=("barrier",)
)
GAP = Form("wgmma.fence.sync.aligned", "absent", ())


def execute(issue: Issue, machine) -> None:
    operands = issue.operands
    if issue.form is LOAD:
        words = np.ascontiguousarray(machine.load(operands[1], 16)).view(np.uint32)
        machine.write(operands[0], [words[..., i] for i in range(4)])
    elif issue.form is STORE:
        shape = machine.active().shape
        words = np.stack([np.broadcast_to(w, shape) for w in machine.read(operands[1])], axis=-1)
        machine.store(operands[0], np.ascontiguousarray(words).view(np.uint8))
    elif issue.form is ADD:
        machine.write(operands[0], [machine.read(operands[1])[0] + machine.read(operands[2])[0]])
    else:

        def bump(where: tuple[int, int], old: np.ndarray) -> np.ndarray:
            return (old.view(np.uint32) + np.uint32(1)).view(np.uint8)

        old = machine.atomic(operands[1], 4, bump)
        machine.write(operands[0], [np.ascontiguousarray(old).view(np.uint32)[..., 0]])


FAMILIES = {"stand_in": SimpleNamespace(execute=execute)}
X, Y = tensor("X", (256,), dtypes.uint32), tensor("Y", (256,), dtypes.uint32)
R = tensor("R", (8,), dtypes.uint32, "local")
GLOBAL = n.PointerType("global")


class Calls:
    """Statements that stand for tile calls with given steps."""

    def __init__(self) -> None:
        self.steps: dict[int, list] = {}
        self.calls: list[n.Call] = []

    def __call__(self, *steps, at: int = 0) -> n.Evaluate:
        call = n.Call("tile.apply", (), span=line(at))
        self.calls.append(call)
        self.steps[id(call)] = list(steps)
        return n.Evaluate(call)


def regs(first: int, count: int = 1) -> Registers:
    return Registers(tuple(Register(R, first + i, dtypes.uint32) for i in range(count)))


def address(buffer: n.Var, elements: n.Expr) -> Memory:
    return Memory(n.Address(buffer, b.index_mul(elements, 4), GLOBAL), 0, "global")


def data() -> dict[str, np.ndarray]:
    return {"X": np.arange(256, dtype=np.uint32), "Y": np.zeros(256, np.uint32)}


def test_vector_copy_and_its_bounds() -> None:
    def program(shift: int):
        calls = Calls()
        place = b.add(b.mul(TID, i32(4)), i32(shift))
        body = (
            n.AllocTensor(R),
            calls(Issue(LOAD, (regs(0, 4), address(X, place))), at=3),
            calls(Issue(STORE, (address(Y, b.mul(TID, i32(4))), regs(0, 4))), at=4),
        )
        return kernel((X, Y), body, block=64), calls

    function, calls = program(0)
    arrays = data()
    run(function, arrays, steps=calls.steps, families=FAMILIES)
    assert np.array_equal(arrays["X"], arrays["Y"])
    function, calls = program(2)
    (found,) = faults(function, data(), steps=calls.steps, families=FAMILIES)
    assert found.code == "sim/misaligned" and "8 bytes past a multiple of 16" in found.message
    assert "`ld.global.v4.b32`" in found.message and found.span.line == 3
    function, calls = program(4)
    assert codes(function, data(), steps=calls.steps, families=FAMILIES) == ["sim/out-of-bounds"]


@pytest.mark.parametrize("preserve", [True, False])
def test_predicate_keeps_or_loses_the_destination(preserve: bool) -> None:
    calls = Calls()
    one = Registers((Value(b.const(1, dtypes.uint32)),))
    add = Issue(ADD, (regs(0), regs(0), one), pred=b.lt(TID, i32(16)), preserve_dst=preserve)
    body = (
        n.AllocTensor(R),
        store(R, i32(0), b.const(5, dtypes.uint32)),
        calls(add),
        store(Y, TID, load(R, i32(0), at=8)),
    )
    arrays = data()
    found = faults(kernel((Y,), body), arrays, steps=calls.steps, families=FAMILIES)
    if preserve:
        assert found == [] and arrays["Y"][:32].tolist() == [6] * 16 + [5] * 16
    else:
        assert [d.code for d in found] == ["sim/unwritten-read"]
        assert "lane 16" in notes(found[0])["where"] and "16 accesses" in notes(found[0])["count"]


def test_let_and_variable_and_origin() -> None:
    """A let-bound pointer keeps its buffer: leaving the buffer is found."""
    calls = Calls()
    pointer, got = n.Var("p", GLOBAL), n.Var("got", n.UINT32)
    let = Let(pointer, n.Address(X, b.index_mul(TID, 16), GLOBAL))
    memory = Memory(pointer, 0, "global")
    targets = Registers((Variable(got), *regs(1, 3).items))
    body = (
        n.AllocTensor(R),
        n.Declare(got, None),
        calls(let, Issue(LOAD, (targets, memory))),
        store(Y, TID, got),
    )
    arrays = data()
    assert codes(kernel((X, Y), body, block=64), arrays, steps=calls.steps, families=FAMILIES) == []
    assert arrays["Y"][:64].tolist() == list(range(0, 256, 4))
    (found,) = faults(kernel((X, Y), body, block=96), arrays, steps=calls.steps, families=FAMILIES)
    assert found.code == "sim/out-of-bounds" and "`X`" in found.message


def test_pointer_of_unknown_origin_finds_its_buffer() -> None:
    raw = n.Var("raw", n.UINT64)
    pointer = b.bitcast(raw, GLOBAL)

    def program(offset: int):
        calls = Calls()
        body = (
            n.AllocTensor(R),
            calls(Issue(LOAD, (regs(0, 4), Memory(pointer, offset, "global")))),
            calls(Issue(STORE, (address(Y, b.mul(TID, i32(4))), regs(0, 4)))),
        )
        return kernel((raw, X, Y), body), calls

    base = 0x7F00_0000_0000
    function, calls = program(16)
    arrays = data()
    run(function, arrays, scalars={"raw": base}, steps=calls.steps, families=FAMILIES)
    assert arrays["Y"][:8].tolist() == [4, 5, 6, 7] * 2
    for value in (0, base - 16 - 16):
        (found,) = faults(
            function, data(), scalars={"raw": value}, steps=calls.steps, families=FAMILIES
        )
        assert found.code == "sim/out-of-bounds" and "no tensor holds" in found.message


def test_atomics_add_up_and_do_not_race_with_each_other() -> None:
    def program(*more: n.Stmt):
        calls = Calls()
        body = (
            n.AllocTensor(R),
            calls(Issue(ATOMIC, (regs(0), address(Y, i32(3)))), at=2),
            *more,
        )
        return kernel((Y,), body, block=64), calls

    function, calls = program()
    arrays = data()
    assert codes(function, arrays, grid=3, steps=calls.steps, families=FAMILIES) == []
    assert arrays["Y"][3] == 192
    plain = when(b.eq(TID, i32(0)), store(Y, i32(3), b.const(0, dtypes.uint32), at=5))
    function, calls = program(plain)
    assert codes(function, data(), grid=3, steps=calls.steps, families=FAMILIES)[0] == "sim/race"


def test_scalar_apply_with_branches() -> None:
    """f(x) = -x if x < 3, else x * x, on float registers."""
    r = tensor("F", (2,), dtypes.float32, "local")
    out = tensor("Y", (32,))
    x, y = n.Var("x", n.FLOAT32), n.Var("y", n.FLOAT32)
    body = (
        n.Declare(y, b.mul(x, x)),
        when(b.lt(x, f32(3)), n.Assign(y, b.neg(x)), n.Return(y)),
        n.Return(y),
    )
    function = n.LambdaExpr("f", (x,), body, n.FLOAT32)
    calls = Calls()
    apply = ScalarApply(function, Register(r, 1, dtypes.float32), (Register(r, 0, dtypes.float32),))
    statements = (
        n.AllocTensor(r),
        store(r, i32(0), b.cast(TID, dtypes.float32)),
        calls(apply),
        store(out, TID, load(r, i32(1))),
    )
    arrays = {"Y": np.zeros(32, np.float32)}
    assert codes(kernel((out,), statements), arrays, steps=calls.steps) == []
    assert arrays["Y"].tolist() == [-t if t < 3 else t * t for t in range(32)]


def test_raw_barrier_waits_and_orders() -> None:
    s = tensor("S", (64,), dtypes.uint32, "shared")
    neighbour = b.mod(b.add(TID, i32(32)), i32(64))

    def program(*operands: Immediate):
        calls = Calls()
        sync = (calls(Issue(BARRIER, operands), at=4),) if operands else ()
        body = (
            n.AllocTensor(s),
            store(s, TID, b.cast(TID, dtypes.uint32)),
            *sync,
            store(Y, TID, load(s, neighbour)),
        )
        return kernel((Y,), body, block=64), calls

    for operands in ((Immediate(0),), (Immediate(2), Immediate(64))):
        function, calls = program(*operands)
        assert codes(function, data(), steps=calls.steps, families=FAMILIES) == []
    function, calls = program()
    assert codes(function, data(), steps=calls.steps, families=FAMILIES) == ["sim/race"]


def test_a_gap_matters_only_where_it_is_reached() -> None:
    calls = Calls()
    body = (
        when(b.lt(TID, i32(0)), calls(Issue(GAP, ()), at=2)),
        store(Y, TID, b.const(1, dtypes.uint32)),
    )
    assert codes(kernel((Y,), body), data(), steps=calls.steps, families=FAMILIES) == []
    calls = Calls()
    with pytest.raises(Unsimulated) as error:
        run(
            kernel((Y,), (calls(Issue(GAP, ()), at=2),)),
            data(),
            steps=calls.steps,
            families=FAMILIES,
        )
    assert "wgmma.fence" in str(error.value)


def strong(kind: str, spelling: str) -> Form:
    a, r = (
        spec("a", "r" if kind == "ld" else "w", "addr"),
        spec("d", "w" if kind == "ld" else "r", lanes=4),
    )
    return Form(spelling, "words", (r, a) if kind == "ld" else (a, r))


def words(issue: Issue, machine) -> None:
    if issue.form.mnemonic == "ld":
        found = np.ascontiguousarray(machine.load(issue.operands[1], 16)).view(np.uint32)
        machine.write(issue.operands[0], [found[..., i] for i in range(4)])
    else:
        shape = machine.active().shape
        found = np.stack(
            [np.broadcast_to(w, shape) for w in machine.read(issue.operands[1])], axis=-1
        )
        machine.store(issue.operands[0], np.ascontiguousarray(found).view(np.uint8))


@pytest.mark.parametrize(
    ("order", "expected", "noted"), [("relaxed", ["sim/race"], False), ("acquire", [], True)]
)
def test_ordering_through_memory_is_left_open_not_judged(
    order: str, expected: list, noted: bool
) -> None:
    """CTA 0 writes data, then a flag; CTA 1 reads the flag, then the data."""
    release = "release" if order == "acquire" else order
    put = strong("st", f"st.{release}.gpu.global.v4.b32")
    get = strong("ld", f"ld.{order}.gpu.global.v4.b32")
    calls = Calls()
    flag = address(X, i32(0))
    value = n.Var("value", n.UINT32)
    body = (
        n.AllocTensor(R),
        *(store(R, i32(i), b.const(1, dtypes.uint32)) for i in range(4)),
        when(
            b.eq(TID, i32(0)),
            when(
                b.eq(CTA, i32(0)),
                store(Y, i32(7), b.const(3, dtypes.uint32), at=3),
                calls(Issue(put, (flag, regs(0, 4))), at=4),
                orelse=(
                    calls(Issue(get, (regs(4, 4), flag)), at=6),
                    n.Declare(value, load(Y, i32(7), at=7)),
                ),
            ),
        ),
    )
    families = {"words": SimpleNamespace(execute=words)}
    function = kernel((X, Y), body)
    found = faults(function, data(), grid=2, steps=calls.steps, families=families)
    assert [d.code for d in found] == expected
    if found:
        # The flag itself is no race, the data is.
        assert "`Y`" in found[0].message
    else:
        report = run(function, data(), grid=2, steps=calls.steps, families=families)
        assert bool(report.notes) == noted and "fences" in report.notes[0]
