"""What a scalar expression costs per element: float32 instructions and, of another unit, special-function ones."""

from __future__ import annotations

from autofuse.ir.functions import lookup
from autofuse.ir.graph import Apply, Expr, Lit

SPECIAL = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "log2": 1.0, "log1p": 1.0, "expm1": 1.0, "sqrt": 1.0, "rsqrt": 1.0, "div": 1.0,
    "reciprocal": 1.0, "tanh": 2.0, "quick_tanh": 1.0, "sigmoid": 2.0, "erf": 1.0, "erfc": 1.0, "quick_erfc": 2.0,
    "pow": 2.0, "tan": 1.0, "remainder": 1.0, "fmod": 1.0, "floordiv": 1.0, "truncdiv": 1.0,
}  # fmt: skip
"""Instructions of the special-function unit (ex2, lg2, rcp, rsq); the float32 ones beside them are in ir.functions."""


def cost_of(fn: str) -> tuple[float, float]:
    """(float32, special) instructions of one call of a scalar function; an unknown one counts as one instruction."""
    try:
        plain = lookup(fn).instructions
    except KeyError:
        plain = 1.0
    return plain, SPECIAL.get(fn, 0.0)


def expression_cost(expr: Expr) -> tuple[float, float]:
    """Summed over an expression tree."""
    if not isinstance(expr, Apply):
        return 0.0, 0.0
    # A division by a number is a product with its inverse, but before a floor or the like.
    plain, special = cost_of("mul" if expr.fn == "div" and isinstance(expr.args[1], Lit) else expr.fn)
    for part in expr.args:
        inner = expression_cost(part)
        plain, special = plain + inner[0], special + inner[1]
    return plain, special
