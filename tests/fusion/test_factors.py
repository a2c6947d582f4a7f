"""Numbers that one value is multiplied by after another are one number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autofuse.ir.graph import Apply, Lit
from autofuse.ir.program import MapNode
from tests.codegen.test_rewrites import close, program_of, run

Function = Callable[[torch.Tensor], torch.Tensor]


def products(fn: Function, x: torch.Tensor) -> list[float]:
    """What the maps of the program multiply by."""
    _, program = program_of(fn, (x,))
    maps = [node.expr for node in program.nodes if isinstance(node, MapNode)]
    return [e.args[1].value for e in maps if isinstance(e, Apply) and isinstance(e.args[-1], Lit)]


@pytest.mark.parametrize(
    ("fn", "factors"),
    [
        (lambda x: (x * 3.0) / 8.0, [0.375]),
        (lambda x: (x / 4.0).half().float() * 3.0 * -2.0, [-1.5]),
        (lambda x: (x * 3.0 + 1.0) * 2.0, [3.0, 1.0, 2.0]),
        (lambda x: torch.round(x * 3.0 * 0.1), [3.0, 0.1]),
        (lambda x: x * 1e25 * 1e-25, [1.0]),
        (lambda x: x * 1e-25 * 1e-25, [1e-25, 1e-25]),
        (lambda x: x * 0.0 * 2.0, [0.0, 2.0]),
    ],
    ids=["scale", "through conversions", "a sum between", "rounded", "to one", "too small", "zero"],
)
def test_one_product_of_two(fn: Function, factors: list[float]) -> None:
    x = torch.randn(3, 40)
    assert products(fn, x) == pytest.approx(factors)
    close(run(fn, (x,), ()), fn(x.double()))


def test_a_product_that_others_read_is_there_still() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        half = x * 0.5
        return half * 4.0 + torch.sin(half)

    x = torch.randn(3, 40)
    assert products(fn, x) == [0.5, 2.0]
    close(run(fn, (x,), ()), fn(x.double()))
