"""Random programs of nested control flow: Python and the lowered kernel leave the same results."""

from __future__ import annotations

import random

import pytest

from tests.frontend.kernels import same_as_python

NAMES = ("a", "b", "c", "n", "t")


class Writer:
    """Writes one program. Every name is bound before it is read; loops end by construction."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.loops = 0
        self.budget = 20

    def expression(self, depth: int = 0) -> str:
        pick = self.random.random()
        if depth > 2 or pick < 0.4:
            return self.random.choice([*NAMES, str(self.random.randint(-3, 4))])
        left, right = self.expression(depth + 1), self.expression(depth + 1)
        if pick < 0.75:
            return f"({left} {self.random.choice('+-*')} {right}) % 11"
        if pick < 0.8:
            return f"f({left}, {right})"
        if pick < 0.9:
            return f"({left} if {self.condition()} else {right})"
        return f"max({left}, {right})"

    def condition(self) -> str:
        a, b = self.random.choice(NAMES), self.random.choice([*NAMES, "2", "0"])
        op = self.random.choice(["<", "==", ">=", "!="])
        text = f"{a} {op} {b}"
        if self.random.random() < 0.25:
            text += f" {self.random.choice(['and', 'or'])} {self.random.choice(NAMES)} > 1"
        return text

    def block(self, indent: str, in_loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 4)):
            lines += self.statement(indent, in_loop)
        return lines

    def statement(self, indent: str, in_loop: bool) -> list[str]:
        self.budget -= 1
        pick = self.random.random() if self.budget > 0 else 0.0
        inner = indent + "    "
        if pick < 0.45:
            name = self.random.choice(NAMES)
            op = self.random.choice(["=", "=", "=", "+=", "-="])
            return [f"{indent}{name} {op} {self.expression()}", f"{indent}{name} %= 97"]
        if pick < 0.52:
            return [f"{indent}a, b = b, {self.expression()}"]
        if pick < 0.75:
            lines = [f"{indent}if {self.condition()}:", *self.block(inner, in_loop)]
            if self.random.random() < 0.6:
                lines += [f"{indent}else:", *self.block(inner, in_loop)]
            return lines
        if pick < 0.83 and in_loop:
            word = self.random.choice(["break", "continue"])
            return [f"{indent}if {self.condition()}: {word}"]
        if indent.count("    ") > 3:
            return [f"{indent}out[0] = (out[0] + {self.random.choice(NAMES)}) % 1000"]
        self.loops += 1
        kind = self.random.random()
        if kind < 0.45:
            head = f"for i{self.loops} in range({self.random.choice(['n % 4', '3', 'a % 3'])}):"
        elif kind < 0.75:
            head = f"for i{self.loops} in T.unroll({self.random.randint(1, 3)}):"
        else:
            w = f"w{self.loops}"
            lines = [f"{indent}{w} = 0", f"{indent}while {w} < 3:", f"{inner}{w} += 1"]
            return lines + self.block(inner, True) + self.orelse(indent)
        body = [f"{inner}out[1] += i{self.loops}", *self.block(inner, True)]
        return [f"{indent}{head}", *body, *self.orelse(indent)]

    def orelse(self, indent: str) -> list[str]:
        if self.random.random() < 0.25:
            return [f"{indent}else:", *self.block(indent + "    ", False)]
        return []

    def helper(self) -> list[str]:
        """A local function with early returns in loops."""
        return [
            "def f(x, y):",
            "    for k in range(3):",
            f"        if x + k {self.random.choice(['>', '=='])} y: return x - k",
            "        x += 1",
            "        if k == 1: break",
            "    if x > 4:",
            "        return y",
            "    return x + y",
        ]

    def program(self) -> str:
        lines = ["a = 1", "b = n", "c = n * 2", "t = 0", *self.helper(), *self.block("", False)]
        lines += [f"out[{2 + i}] = {name} % 1000" for i, name in enumerate(NAMES)]
        return "\n".join(lines)


@pytest.mark.parametrize("seed", range(16))
def test_random_program(seed: int) -> None:
    body = Writer(seed).program()
    for n in (0, 3, 6):
        same_as_python(body, n=n)
