"""What a scalar expression costs per element: plain float32 instructions and special-function ones."""

from __future__ import annotations

from autofuse.ir.graph import Apply, Expr

PLAIN = (1.0, 0.0)
COSTS: dict[str, tuple[float, float]] = {
    # (float32 instructions, special-function instructions). ex2, lg2, rcp, rsq, tanh run on the special-function unit.
    "exp": (2.0, 1.0), "exp2": (1.0, 1.0), "log": (4.0, 1.0), "log2": (3.0, 1.0), "log1p": (8.0, 1.0), "expm1": (8.0, 1.0),
    "sqrt": (3.0, 1.0), "rsqrt": (2.0, 1.0), "div": (8.0, 1.0), "reciprocal": (7.0, 1.0),
    "tanh": (12.0, 2.0), "sigmoid": (11.0, 2.0), "erf": (28.0, 1.0), "pow": (40.0, 2.0),
    "sin": (24.0, 0.0), "cos": (24.0, 0.0), "tan": (36.0, 1.0), "remainder": (14.0, 1.0), "fmod": (12.0, 1.0),
    "floordiv": (10.0, 1.0), "where": (1.0, 0.0), "neg": (0.5, 0.0), "abs": (0.5, 0.0),
}  # fmt: skip


def cost_of(fn: str) -> tuple[float, float]:
    """(plain, special) instructions of one call of a scalar function."""
    if fn.startswith("convert"):
        return PLAIN
    return COSTS.get(fn, PLAIN)


def expression_cost(expr: Expr) -> tuple[float, float]:
    """Summed over an expression tree."""
    if not isinstance(expr, Apply):
        return 0.0, 0.0
    plain, special = cost_of(expr.fn)
    for part in expr.args:
        inner = expression_cost(part)
        plain, special = plain + inner[0], special + inner[1]
    return plain, special
