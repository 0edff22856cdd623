"""Control flow means what it means in Python: every body here is run by Python and as a kernel."""

from __future__ import annotations

import pytest

from tests.frontend.kernels import same_as_python

BODIES = {
    "chained_false": """
        if 1 < 5 < 3:
            out[0] = 1
        else:
            out[0] = 2
    """,
    "chained_runtime": """
        if 1 < n < 3: out[0] = 1
        else: out[0] = 2
        if 0 < n <= 7 != 4: out[1] = 3
        out[2] = 1 if n < 10 > 3 else 5
    """,
    "for_and_while_agree": """
        i = n % 2
        while i < 512:
            out[i % 8] = out[i % 8] + i % 128
            i += 78
        for j in range(n % 2, 512, 78):
            out[j % 8] += j % 128 * 3 + j // 128
    """,
    "for_else": """
        a = n
        for i in range(n):
            a = a + 1
        else:
            a += 100
        out[0] = a
        for i in range(n):
            if i == 3:
                break
        else:
            out[1] = 7
        for i in range(n):
            if i == 300:
                out[2] = 1
                break
        else:
            out[3] = 9
    """,
    "for_else_left_by_a_helpers_return": """
        def find(a):
            for k in range(2):
                for i in range(3):
                    if i * 2 == a:
                        return i + 10
                    if i == a + 50:
                        break
                else:
                    out[3] += 1
            else:
                return -7
        out[0] = find(n)
        out[1] = find(n - n + 2)
        def count(a):
            i = 0
            while i < 5:
                if i == a:
                    return i * 10
                i += 1
            else:
                i = 77
                out[4] += 1
            return i + a
        out[2] = count(n) + count(n + 100)
    """,
    "nested_comprehensions": """
        out[0] = sum([i * j * n for i in range(4) for j in range(i)])
        out[1] = sum([i + j + k * n for (i, k) in ((1, n), (2, 3)) for j in (1, i, k)])
        out[2] = sum(i + j for i in (1, 2) for j in (1, i) if j > 1) * n
    """,
    "equality_of_parts": """
        out[0] = 1 if (n, 1) == (3, 1) else 2
        out[1] = 1 if (n, (1, n + 1)) != (3, (1, 4)) else 2
        out[2] = ((n, 1) in ((3, 1), (4, 1))) + (5 in (n, 5)) * 2 + (3 in [n, 1]) * 4
        out[3] = ((n, 1) == (n,)) + ((n,) == 3) * 2 + ((n,) == [n]) * 4 + ([n] == [3]) * 8
        out[4] = ((n, None) == (3, None)) + ((n, 'a') == (n, 'b')) * 2
    """,
    "while_else": """
        i = 0
        while i < n:
            i += 1
        else:
            out[0] = i
        i = 0
        while True:
            i += 1
            if i > n:
                break
        else:
            out[1] = 5
        while i < 100:
            i += 10
            if i == 3:
                break
        else:
            out[2] = i
    """,
    "condition_sampled_once": """
        f = n > 0
        x = 0
        if f:
            f = False
            x = 1
        if f:
            x = 2
        out[0] = x
        g = n > 2
        if g:
            g = not g
            out[1] = 4
            out[2] = g
    """,
    "unroll_step": """
        for i in T.unroll(0, 8, 2):
            if n > 2:
                out[i] = i + n
        for i in T.unroll(7, -1, -3):
            out[i] += 1
    """,
    "unrolled_break_continue": """
        for i in T.unroll(8):
            if i == n:
                continue
            if i > n + 2:
                break
            out[i] = i + 1
        else:
            out[7] = 99
        for i in T.unroll(3):
            if n == i:
                break
        else:
            out[0] = 50
    """,
    "swap": """
        a = n
        b = 1
        for i in range(5):
            a, b = b, a + b
        out[0] = a
        out[1] = b
    """,
    "tuple_carried": """
        t = (n, 1)
        for i in range(4):
            t = (t[1], t[0] + t[1])
        out[0], out[1] = t
    """,
    "negative_step": """
        for i in range(7, 0, -1):
            out[i] = i * n
        s = -2
        if n > 1000:
            s = -1
        k = 0
        for i in range(6, n - 6, s):
            out[k] += i
            k += 1
    """,
    "variable_step": """
        k = 0
        for i in range(1, 9, n):
            out[k] = i
            k += 1
    """,
    "index_survives": """
        i = 0
        for i in range(n):
            i = i + 100
        out[0] = i
        j = 55
        for j in range(n - n):
            pass
        out[1] = j
        for k in range(4):
            if k == n - 2:
                break
        out[2] = k
    """,
    "index_name_reused": """
        for i in range(4):
            out[i] = i
        i = 0
        while i < n:
            i += 1
        out[5] = i
    """,
    "carried_conditionally": """
        col = n - 3
        for i in range(5):
            if col > i:
                col -= i + 1
        out[0] = col
    """,
    "inner_loop_last_wins": """
        k = 0
        for i in range(n):
            k = i
            for j in range(6):
                if j % 2:
                    continue
                k = k + k
                if j > 3:
                    break
        out[0] = k
    """,
    "nested_break": """
        for i in range(5):
            for j in range(5):
                if j == n - 1:
                    break
                if i == j:
                    continue
                out[j] += i
            else:
                out[7] += 1
            if i == 3:
                break
    """,
    "both_branches": """
        if n > 2:
            x = n * 2
            y = 5
        else:
            x = n - 1
            y = 7
        out[0] = x
        out[1] = y
        if n > 3:
            z = 1
        elif n > 1:
            z = 2
        else:
            z = 3
        out[2] = z
    """,
    "short_circuit": """
        i = 20
        if i < 8 and out[i] > 0:
            out[0] = 1
        if i >= 8 or out[i] > 0:
            out[1] = 1
        z = n - n
        if z != 0 and 10 // z > 1:
            out[2] = 1
        out[3] = n and 7
        out[4] = z or 9
        out[5] = (n and z) or (n or 4)
        x = 1 if z else 10 // n
        out[6] = x
    """,
    "augmented_once": """
        i = 0
        out[(i := i + 1)] += 5
        out[0] = i
        out[2] += 3
        out[2] -= 1
        out[2] *= 7
        out[2] //= 2
        out[2] %= 5
        out[2] <<= 3
        out[2] >>= 1
        out[2] |= 3
        out[2] &= 6
        out[2] ^= 1
        v = n
        v -= 1
        v **= 2
        out[3] = v
    """,
    "lambda_and_def": """
        f = lambda k: k // 4 * 3 if n >= 3 else k // 2
        def g(a, b=2):
            if a > 3:
                return a * b
            return b
        out[0] = f(9)
        out[1] = g(n)
        out[2] = g(n, b=n)
        out[3] = g(1)
    """,
    "closure_by_reference": """
        a = 1
        f = lambda: a + n
        a = 10
        out[0] = f()
    """,
    "helper_returns_in_loops": """
        def find(limit):
            for i in range(10):
                for j in range(10):
                    if i * j > limit:
                        return i * 100 + j
                    if j == 7:
                        break
            return -1
        def after(limit):
            i = 0
            while True:
                i += 3
                if i > limit:
                    return i
        def early(x):
            if x > 100:
                return 1
            y = x * 2
            if y > 5:
                if y > 7:
                    return 2
                y = y + 1
            return y
        out[0] = find(n)
        out[1] = find(1000)
        out[2] = after(n)
        out[3] = early(n)
        out[4] = early(1)
        out[5] = early(3)
        for k in range(3):
            early(k)
    """,
    "return_in_unrolled": """
        def find(x):
            for i in T.unroll(6):
                if i * i >= x:
                    return i
            return 77
        out[0] = find(n)
        out[1] = find(n + 100)
    """,
    "while_walrus": """
        i = n
        k = 0
        while (i := i - 1) > 0:
            out[k] = i
            k += 1
            if k == 8:
                break
        out[7] = i
    """,
    "comprehension": """
        x = 3
        t = tuple(x * i for i in range(3) if i != 1)
        u = [i + n for i in (1, 2)]
        out[0] = sum(t) + x
        out[1] = u[0] * u[1]
        a, *b = (1, 2, 3)
        out[2] = b[1]
        for i, v in enumerate(u):
            out[3 + i] = v
    """,
    "early_kernel_return": """
        out[0] = 1
        if n > 3:
            out[1] = 2
            return
        else:
            x = n + 1
        out[2] = x
        for i in range(5):
            if i == n:
                return
            out[3] = i
    """,
    "membership": """
        if n in (1, 3, 5): out[0] = 1
        if n not in (2, 4): out[1] = 1
        out[2] = max(n, 3, 2) + min(n, 4)
        out[3] = abs(-n)
        q, r = divmod(-7, n)
        out[4] = q
        out[5] = r
        out[6] = all((n > 0, n < 5)) + any((n > 4, n > 5))
    """,
    "pass_and_del": """
        x = n
        del x
        x = 4
        if n: pass
        out[0] = x
        assert n > 0
        assert x == 4, "four"
    """,
    "unstable_values": """
        x = out[0] + 1
        out[0] = 9
        out[1] = x
        y = out[0]
        out[0] = 5
        out[2] = y
        k = 1
        view = (k, out[0])
        for i in range(3):
            k = k + i
            out[0] += 1
        out[3] = view[0] + view[1]
    """,
    "operand_order": """
        def bump():
            out[0] = out[0] + 1
            return out[0]
        out[1] = out[0] + bump() * 10 + out[0]
        t = (out[0], bump(), out[0])
        out[2] = t[0] * 100 + t[1] * 10 + t[2]
    """,
    "loop_bound_evaluated_once": """
        m = n
        for i in range(m):
            m = m + 1
            out[i] = m
    """,
    "branch_in_loop_keeps_old": """
        last = -1
        for i in range(6):
            if i % n == 1:
                last = i
            if i == 4:
                continue
            out[i] = last
        out[7] = last
    """,
    "literal_retyped_across_branches": """
        s = 1
        if n > 2:
            s = -1
        out[0] = s * n
        s = 3
        out[1] = s
    """,
}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", BODIES)
def test_as_python(name: str, n: int) -> None:
    same_as_python(BODIES[name], n=n)
