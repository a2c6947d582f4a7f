"""Pointwise ATen operators as scalar expressions. A table; `convert` finds operands and dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from autofuse.ir.graph import Apply, Arg, Expr, Lit


class Arguments(Protocol):
    """The arguments of one call, by schema name."""

    def __call__(self, name: str) -> Expr:
        """A tensor as an operand, a scalar as a literal."""
        ...

    def condition(self, name: str) -> Expr:
        """A tensor that keeps its own dtype."""
        ...

    def value(self, name: str) -> object:
        """As given, None where absent."""
        ...


Rule = Callable[[Arguments], Expr]


def fn(name: str, *args: Expr | float) -> Apply:
    return Apply(name, tuple(a if isinstance(a, Arg | Lit | Apply) else Lit(a) for a in args))


def _unary(name: str) -> Rule:
    return lambda c: fn(name, c("self"))


def _binary(name: str) -> Rule:
    return lambda c: fn(name, c("self"), c("other"))


def _scaled(c: Arguments, name: str, factor: str) -> Expr:
    alpha = c.value(factor)
    return c(name) if alpha in (None, 1) else fn("mul", c(name), c(factor))


def _div(c: Arguments) -> Expr:
    mode = c.value("rounding_mode")
    return fn({"floor": "floordiv", "trunc": "truncdiv"}.get(str(mode), "div"), c("self"), c("other"))


def _gelu(c: Arguments) -> Expr:
    """The tanh form is x * sigmoid(2u), as 1 + tanh(u) = 2 sigmoid(2u): one exp and one root an element."""
    x = c("self")
    if c.value("approximate") == "tanh":
        scale = 2.0 * math.sqrt(2.0 / math.pi)
        inner = fn("mul", fn("mul", x, scale), fn("add", fn("mul", fn("mul", x, x), 0.044715), 1.0))
        return fn("mul", x, fn("sigmoid", inner))
    return fn("mul", fn("mul", x, 0.5), fn("erfc", fn("mul", x, -math.sqrt(0.5))))


def _silu(c: Arguments) -> Expr:
    x = c("self")
    return fn("mul", x, fn("sigmoid", x))


def _clamp(c: Arguments) -> Expr:
    low, high = c.value("min"), c.value("max")
    result = c("self")
    if low is not None:
        result = fn("maximum", result, c("min"))
    return result if high is None else fn("minimum", result, c("max"))


_PRODUCTS = frozenset(range(3, 9))
"""Exponents for which multiplying is cheaper than a power, and exact for integers."""


def _product(x: Expr, count: int) -> Expr:
    """x to the power of count >= 1, by squaring."""
    if count == 1:
        return x
    rooted = _product(x, count // 2)
    squared = fn("mul", rooted, rooted)
    return fn("mul", squared, x) if count % 2 else squared


def _pow(c: Arguments) -> Expr:
    x, exponent = c("self"), c("exponent")
    if isinstance(x, Lit) and x.value > 0:
        return fn("exp2", exponent if x.value == 2 else fn("mul", exponent, math.log2(x.value)))
    match exponent:
        case Lit(2):
            return fn("mul", x, x)
        case Lit(1):
            return x
        case Lit(n) if n in _PRODUCTS:
            return _product(x, int(n))
        case Lit(0.5):
            return fn("sqrt", x)
        case Lit(-0.5):
            return fn("rsqrt", x)
        case Lit(-1):
            return fn("reciprocal", x)
        case _:
            return fn("pow", x, exponent)


def _elu(c: Arguments) -> Expr:
    x = c("self")
    low = fn("mul", fn("mul", fn("expm1", fn("mul", x, c("input_scale"))), c("alpha")), c("scale"))
    return fn("where", fn("gt", x, 0.0), fn("mul", x, c("scale")), low)


def _softplus(c: Arguments) -> Expr:
    x, beta = c("self"), c("beta")
    scaled = fn("mul", x, beta)
    return fn("where", fn("gt", scaled, c("threshold")), x, fn("div", fn("log1p", fn("exp", scaled)), beta))


def _mish(c: Arguments) -> Expr:
    x = c("self")
    soft = fn("where", fn("gt", x, 20.0), x, fn("log1p", fn("exp", x)))
    return fn("mul", x, fn("tanh", soft))


def _hard(c: Arguments) -> Expr:
    return fn("mul", fn("minimum", fn("maximum", fn("add", c("self"), 3.0), 0.0), 6.0), 1.0 / 6.0)


def _leaky(c: Arguments) -> Expr:
    x = c("self")
    return fn("where", fn("gt", x, 0.0), x, fn("mul", x, c("negative_slope")))


def _lerp(c: Arguments) -> Expr:
    """As torch: from the nearer end, so that weight 1 gives `end` exactly."""
    start, end, weight = c("self"), c("end"), c("weight")
    step = fn("sub", end, start)
    near = fn("add", start, fn("mul", weight, step))
    far = fn("sub", end, fn("mul", step, fn("sub", 1.0, weight)))
    return fn("where", fn("lt", fn("abs", weight), 0.5), near, far)


def _addc(name: str) -> Rule:
    def rule(c: Arguments) -> Expr:
        inner = fn(name, c("tensor1"), c("tensor2"))
        value = c.value("value")
        return fn("add", c("self"), inner if value in (None, 1) else fn("mul", inner, c("value")))

    return rule


def _threshold(c: Arguments) -> Expr:
    x = c("self")
    return fn("where", fn("le", x, c("threshold")), c("value"), x)


def _minmax(name: str, limit: str, inner: Rule | None = None) -> Rule:
    return lambda c: fn(name, inner(c) if inner else c("self"), c(limit))


def _logical(name: str) -> Rule:
    def rule(c: Arguments) -> Expr:
        return fn(name, c("self"), c("other"))

    return rule


POINTWISE: dict[str, Rule] = {
    **{name: _unary(name) for name in (
        "neg", "abs", "floor", "ceil", "trunc", "round", "sign", "exp", "exp2", "log", "log2", "log1p", "expm1",
        "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "erf", "sin", "cos", "tan", "relu", "square",
        "isnan", "isinf", "isfinite", "bitwise_not")},
    **{name: _binary(name) for name in (
        "mul", "maximum", "minimum", "fmax", "fmin", "fmod", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: _binary(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "logical_and": _logical("and"), "logical_or": _logical("or"), "logical_xor": _logical("xor"),
    "logical_not": _unary("not"),
    "bitwise_left_shift": _binary("shl"), "bitwise_right_shift": _binary("shr"),
    "__lshift__": _binary("shl"), "__rshift__": _binary("shr"),
    "add": lambda c: fn("add", c("self"), _scaled(c, "other", "alpha")),
    "sub": lambda c: fn("sub", c("self"), _scaled(c, "other", "alpha")),
    "rsub": lambda c: fn("sub", c("other"), _scaled(c, "self", "alpha")),
    "div": _div, "true_divide": _div, "floor_divide": _binary("floordiv"),
    "gelu": _gelu, "silu": _silu, "clamp": _clamp, "pow": _pow, "elu": _elu, "softplus": _softplus, "mish": _mish,
    "clamp_min": _minmax("maximum", "min"), "clamp_max": _minmax("minimum", "max"),
    "hardtanh": lambda c: fn("minimum", fn("maximum", c("self"), c("min_val")), c("max_val")),
    "relu6": lambda c: fn("minimum", fn("relu", c("self")), 6.0),
    "hardsigmoid": _hard, "hardswish": lambda c: fn("mul", c("self"), _hard(c)),
    "leaky_relu": _leaky, "lerp": _lerp, "addcmul": _addc("mul"), "addcdiv": _addc("div"), "threshold": _threshold,
    "where": lambda c: fn("where", c.condition("condition"), c("self"), c("other")),
    "masked_fill": lambda c: fn("where", c.condition("mask"), c("value"), c("self")),
    "log10": lambda c: fn("mul", fn("log2", c("self")), math.log10(2.0)),
    "deg2rad": lambda c: fn("mul", c("self"), math.pi / 180.0),
}  # fmt: skip
COMPARES = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or",
                      "logical_xor", "logical_not"})  # fmt: skip
COPIES = {"_to_copy": "self", "convert_element_type": "a", "clone": "self", "lift_fresh_copy": "self",
          "contiguous": "self", "copy": "src", "_to_dtype": "self"}  # fmt: skip
"""Operators that hand one operand on, by the name of that argument."""
FILLS = {"full": "fill_value", "full_like": "fill_value", "new_full": "fill_value", "scalar_tensor": "s",
         "zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}  # fmt: skip
