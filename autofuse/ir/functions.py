"""The scalar vocabulary of map expressions: each function's arity, result kind and instruction class."""

from __future__ import annotations

from dataclasses import dataclass

CONVERT = "convert:"
"""`convert:float32` and the like are unary functions too; the part behind the colon is a dtype name."""


@dataclass(frozen=True, slots=True)
class Function:
    """`result` is "same" (the operands' dtype) or "bool"; `kind` is cheap, special (runs on the special-function unit)
    or expensive; `instructions` estimates float32 instructions an element on sm_90."""

    arity: int
    result: str = "same"
    kind: str = "cheap"
    instructions: float = 1.0


FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "fmax", "fmin"), Function(2)),
    **dict.fromkeys(("neg", "abs", "floor", "ceil", "square", "relu"), Function(1)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "shl", "shr"), Function(2)),
    "bitwise_not": Function(1),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), Function(2, "bool")),
    **dict.fromkeys(("not", "isnan", "isinf", "isfinite"), Function(1, "bool")),
    "where": Function(3),
    "fma": Function(3),
    "trunc": Function(1, instructions=3.0),
    "round": Function(1, instructions=6.0),
    "sign": Function(1, instructions=3.0),
    "exp": Function(1, kind="special", instructions=2.0),
    "exp2": Function(1, kind="special", instructions=1.0),
    "log": Function(1, kind="special", instructions=4.0),
    "log2": Function(1, kind="special", instructions=3.0),
    "sqrt": Function(1, kind="special", instructions=3.0),
    "rsqrt": Function(1, kind="special", instructions=2.0),
    "reciprocal": Function(1, kind="special", instructions=7.0),
    "div": Function(2, kind="special", instructions=8.0),
    "quotient": Function(2, instructions=5.0),
    "sigmoid": Function(1, kind="special", instructions=6.0),
    "tanh": Function(1, kind="special", instructions=14.0),
    "quick_tanh": Function(1, kind="special", instructions=1.0),
    "log1p": Function(1, kind="expensive", instructions=16.0),
    "expm1": Function(1, kind="expensive", instructions=20.0),
    "erf": Function(1, kind="expensive", instructions=28.0),
    "erfc": Function(1, kind="expensive", instructions=29.0),
    "quick_erfc": Function(1, kind="special", instructions=16.0),
    "sin": Function(1, kind="expensive", instructions=24.0),
    "cos": Function(1, kind="expensive", instructions=24.0),
    "tan": Function(1, kind="expensive", instructions=56.0),
    "pow": Function(2, kind="expensive", instructions=24.0),
    "remainder": Function(2, kind="expensive", instructions=18.0),
    "fmod": Function(2, kind="expensive", instructions=14.0),
    "floordiv": Function(2, kind="expensive", instructions=32.0),
    "truncdiv": Function(2, kind="expensive", instructions=10.0),
}


JUMPS = frozenset({
    "floor", "ceil", "trunc", "round", "sign", "floordiv", "truncdiv", "remainder", "fmod",
    "eq", "ne", "lt", "le", "gt", "ge",
})  # fmt: skip
"""At these a unit in the last place of an operand may decide over a whole step of the result."""


def lookup(name: str) -> Function:
    """The function, `convert:` forms included. Raises KeyError for an unknown name."""
    if name.startswith(CONVERT):
        return Function(1)
    return FUNCTIONS[name]


def converted(name: str) -> str | None:
    """The dtype that a `convert:` form gives, None for every other function."""
    return name.removeprefix(CONVERT) if name.startswith(CONVERT) else None
