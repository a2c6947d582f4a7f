"""The constraint language: what it says yes and no to, and that columns give what single numbers give."""

from __future__ import annotations

import numpy as np
import pytest

from autofuse.schedule.constraints import ConstraintError, parse

NAMES = {"a": "number", "b": "number", "access": "text", "flatten": "bool"}


def value(text: str, **env: object) -> list[bool]:
    return np.atleast_1d(parse(text, NAMES).evaluate(env)).tolist()  # type: ignore[arg-type]


def test_arithmetic_over_columns() -> None:
    a, b = np.array([1, 64, 100]), np.array([2, 64, 3])
    assert value("a * b <= 4096", a=a, b=b) == [True, True, True]
    assert value("a * b < 300 or not flatten", a=a, b=b, flatten=True) == [True, False, False]
    assert value("1 < a <= 64", a=a) == [False, True, False]
    assert value("ceil_div(a, b) == 34", a=a, b=b) == [False, False, True]
    assert value("next_pow2(a) == 128", a=a) == [False, False, True]
    assert value("next_pow2(a) == a", a=np.array([1, 2, 4096, 65536, 1 << 30])) == [True] * 5
    assert value("max(a, b, 50) == 50", a=a, b=b) == [True, False, False]
    assert value("a / b == 0.5  # half", a=a, b=b) == [True, False, False]
    assert value("a % 64 == 0 and -a // 64 == -1", a=a) == [False, True, False]


def test_text_and_truth() -> None:
    access = np.array(["pointer", "descriptor"])
    assert value("access == 'pointer' or flatten", access=access, flatten=False) == [True, False]
    assert value("flatten != (a > 1)", a=np.array([1, 2]), flatten=np.array([True, True])) == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os')", "no such function"),
        ("a.real > 1", "Attribute"),
        ("[x for x in a]", "ListComp"),
        ("(lambda: True)()", "no such function"),
        ("a ** 9 ** 9 > 1", "Pow"),
        ("a << 3 > 1", "LShift"),
        ("c > 1", "unknown name 'c'"),
        ("acess == 'pointer'", "did you mean 'access'"),
        ("a", "gives a number"),
        ("a and b > 1", "a number where a bool"),
        ("access > 'x'", "has no order"),
        ("access == 3", "a text compared with a number"),
        ("a / 0 > 1", "division by zero"),
        ("min(a) > 1", "takes 2 to 8"),
        ("min(a, b, key=a) > 1", "takes 2 to 8"),
        ("a > 99999999999999999999", "beyond 2**53"),
        ("a > 1 > access", "compared with a text"),
        ("a in (1, 2)", "Tuple"),
        ("a >", "not an expression"),
        ("(" * 300 + "a" + ")" * 300 + " > 1", "not an expression"),
        ("a > 1 " + " " * 1000, "longer than"),
        ("a > 1j", "not part of the language"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ConstraintError, match=said.replace("*", r"\*")):
        parse(text, NAMES)


def test_place_of_a_fault() -> None:
    with pytest.raises(ConstraintError) as caught:
        parse("a > 1 and c > 2", NAMES)
    assert (caught.value.line, caught.value.column) == (1, 11)
