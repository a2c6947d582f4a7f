"""Scalar expressions as Triton text. Text only: what compiles for a GPU also runs in Triton's interpreter.

Values of half and quarter precision live in registers as float32, all others as themselves. No `libdevice`: the
interpreter has none, and `tl` covers what is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from autofuse.ir.functions import converted, lookup
from autofuse.ir.graph import Apply, Arg, Expr, Lit, Scalar

_NARROW = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_TRITON = {"bool": "tl.int1", "float8_e4m3fn": "tl.float8e4nv", "float8_e5m2": "tl.float8e5",
           "float8_e4m3fnuz": "tl.float8e4b8", "float8_e5m2fnuz": "tl.float8e5b16"}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">=", "and": "&", "or": "|", "xor": "^", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
          "shl": "<<", "shr": ">>"}  # fmt: skip
_LOGICAL = frozenset({"and", "or", "xor", "not"})
_PROPAGATE = ", propagate_nan=tl.PropagateNan.ALL"

LOG2_E = 1.4426950408889634


def _first(name: str, better: str) -> str:
    """Which of two is the better, with where it is; of equals the one that comes first, and NaN before all numbers."""
    return (
        f"def {name}(a, i, b, j):\n"
        f"    better = (a {better} b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))\n"
        "    return tl.where(better, a, b), tl.where(better, i, j)\n"
    )


HELPERS = {
    "nan_max": "def nan_max(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "nan_min": "def nan_min(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "first_max": _first("first_max", ">"),
    "first_min": _first("first_min", "<"),
    "multiply": "def multiply(a, b):\n    return a * b\n",
    # tl.exp keeps results below 1e-38, for which it takes three instructions more; exp2 makes them 0.
    "natural_exp": "def natural_exp(x):\n    return tl.exp2(x * 1.4426950408889634)\n",
    # The square of a reciprocal root: two instructions where a division takes eight, to the same two units in the last
    # place (1 + exp(-x) lies between 1 and inf).
    "sigmoid": "def sigmoid(x):\n    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))\n    return root * root\n",
    # Correctly rounded (Markstein 1990) where nothing over- or underflows; five instructions an element for nine.
    "quotient": (
        "def quotient(a, b):\n"
        "    inverse = tl.div_rn(1.0, b)\n"
        "    near = a * inverse\n"
        "    right = tl.fma(tl.fma(-near, b, a), inverse, near)\n"
        "    return tl.where(right == right, right, near)\n"
    ),
    # As torch: by the remainder, since a quotient may round up to a whole number.
    "floor_quotient": (
        "def floor_quotient(a, b):\n"
        "    rest = a % b\n"
        "    near = (a - rest) / b\n"
        "    near = tl.where((rest != 0) & ((b < 0) != (rest < 0)), near - 1.0, near)\n"
        "    low = tl.floor(near)\n"
        "    low = tl.where(near - low > 0.5, low + 1.0, low)\n"
        "    return tl.where(b == 0, a / b, low)\n"
    ),
    # Half to even: numbers from 2^23 on have no bits for what is behind the point.
    "nearest": (
        "def nearest(x):\n"
        "    near = (tl.abs(x) + 8388608.0) - 8388608.0\n"
        "    return tl.where(tl.abs(x) < 8388608.0, tl.where(x < 0, -near, near), x)\n"
    ),
    # fusion.precision says where. Fitted to erfc(x) exp(x^2) for x from 0 to 13: relative error 4e-5.
    "quick_erfc": (
        "def quick_erfc(x):\n"
        "    root = tl.rsqrt(1.0 + 0.54 * tl.abs(x))\n"
        "    t = root * root\n"
        "    tail = t * -0.1788069301 + 0.3685383109\n"
        "    tail = ((tail * t + 0.1905236274) * t + 0.3156641434) * t + 0.3040418497\n"
        "    tail = tail * t * tl.exp2(x * x * -1.4426950408889634)\n"
        "    return tl.where(x < 0, 2.0 - tail, tail)\n"
    ),
    # fusion.precision says where. Relative error 2^-11, in the interpreter too, which has no instruction for it.
    "quick_tanh": (
        "def quick_tanh(x):\n"
        "    if INTERPRETED:\n"
        "        return tl.where(tl.abs(x) < 0.03, x, 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0))\n"
        "    else:\n"
        "        return tl.inline_asm_elementwise(\n"
        '            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1\n'
        "        )\n"
    ),
}
"""Functions of generated sources, each there where it is called."""


def module(function: str) -> str:
    """Source of a module with one @triton.jit function and the helpers that it calls."""
    functions = [text for word, text in HELPERS.items() if re.search(rf"(?<![\w.]){word}\b", function)] + [function]
    constant = "\nINTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)\n"
    head = "import triton\nimport triton.language as tl\n" + (constant if "INTERPRETED" in "".join(functions) else "")
    return head + "".join(f"\n\n@triton.jit\n{text}" for text in functions)


def register_dtype(dtype: str) -> str:
    """The dtype that a value of `dtype` has in registers."""
    return "float32" if dtype in _NARROW else dtype


def triton_type(dtype: str) -> str:
    """Triton's name of a torch dtype."""
    return _TRITON.get(dtype, f"tl.{dtype}")


def render(
    expr: Expr, names: Sequence[str], dtypes: Sequence[str], compute: str, out: str, *, inverses: bool = False
) -> str:
    """One Triton expression for `expr`, of dtype register_dtype(out), but a bare literal stays one.

    names[i] is the register of operand i and dtypes[i] its dtype. inverses: a division by a number may be a product
    with its inverse also where that is not exact. Raises KeyError for an unknown function.
    """
    if isinstance(expr, Lit):
        return literal(expr.value, out)
    text, kind = _Renderer(names, dtypes, register_dtype(compute), inverses=inverses).typed(expr)
    return cast(text, kind, register_dtype(out))


def literal(value: Scalar, dtype: str) -> str:
    """A Python literal of `value` as `dtype` takes it."""
    if dtype == "bool":
        return str(bool(value))
    if "float" not in dtype:
        return str(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def cast(text: str, kind: str, wanted: str) -> str:
    """`text` of dtype `kind` in dtype `wanted`; to bool by comparison with zero, as torch."""
    if kind == wanted:
        return text
    if wanted == "bool":
        return f"({text} != 0)"
    if wanted == "uint8" and "float" in kind:
        return f"{text}.to(tl.int32).to(tl.uint8)"  # as torch: negative values wrap instead of saturating
    return f"{text}.to({triton_type(wanted)})"


def with_quotients(expr: Expr, shared: frozenset[int]) -> Expr:
    """The expression with divisions by a value that a whole row of elements shares (operands of these indices) as
    products with its inverse and one step of Newton's method after them."""
    if not isinstance(expr, Apply):
        return expr
    args = tuple(with_quotients(part, shared) for part in expr.args)
    match expr:
        case Apply("div", (_, Arg(index))) if index in shared:
            return Apply("quotient", args)
        case _:
            return replace(expr, args=args)


class _Renderer:
    def __init__(self, names: Sequence[str], dtypes: Sequence[str], compute: str, *, inverses: bool) -> None:
        self.inverses = inverses
        self.names = names
        self.dtypes = tuple(dtypes)
        self.compute = compute
        self.known: dict[Apply, tuple[str, str]] = {}
        """Each operation is asked for several times, so without it deep expressions would take exponential time."""

    def typed(self, expr: Expr, literals: str | None = None) -> tuple[str, str]:
        """(text, register dtype); a literal becomes a scalar tensor of dtype `literals`."""
        match expr:
            case Arg(index, convert):
                kind = register_dtype(self.dtypes[index])
                name = cast(self.names[index], self.dtypes[index], kind)
                return (cast(name, kind, self.compute), self.compute) if convert else (name, kind)
            case Lit(value):
                kind = literals or ("bool" if isinstance(value, bool) else self.compute)
                return f"tl.full([], {literal(value, kind)}, {triton_type(kind)})", kind
            case Apply():
                found = self.known.get(expr)
                if found is None:
                    found = self.known[expr] = self.apply(expr)
                return found

    def apply(self, expr: Apply) -> tuple[str, str]:
        fn, function = expr.fn, lookup(expr.fn)
        if len(expr.args) != function.arity:
            raise ValueError(f"{fn} takes {function.arity} operands, not {len(expr.args)}")
        wanted = converted(fn)
        if wanted is not None:
            text, kind = self.typed(expr.args[0])
            return cast(text, kind, register_dtype(wanted)), register_dtype(wanted)
        if fn == "where":
            return self.where(expr)
        parts = self.unified(expr.args, logical=fn in _LOGICAL)
        kind = parts[0][1]
        if fn == "pow" and isinstance(expr.args[1], Lit) and expr.args[1].value and math.isfinite(expr.args[1].value):
            return _fixed_pow(parts[0][0], float(expr.args[1].value)), kind
        text = self.infix(fn, expr, kind) if fn in _INFIX else _call(fn, [text for text, _ in parts], kind)
        return text, "bool" if function.result == "bool" else kind

    def infix(self, fn: str, expr: Apply, kind: str) -> str:
        """Literals stay bare next to a tensor, which reads better and folds into immediates."""
        bare = fn not in _LOGICAL and not all(isinstance(part, Lit) for part in expr.args)
        args = expr.args
        if fn == "div" and bare and (inverse := _inverse(args[1], kind, exact=not self.inverses)) is not None:
            fn, args = "mul", (args[0], inverse)
        texts = [
            _signed(literal(part.value, kind)) if bare and isinstance(part, Lit) else text
            for part, (text, _) in zip(args, self.unified(args, logical=fn in _LOGICAL), strict=True)
        ]
        return f"({texts[0]} {_INFIX[fn]} {texts[1]})"

    def where(self, expr: Apply) -> tuple[str, str]:
        test, kind = self.typed(expr.args[0])
        parts = self.unified(expr.args[1:])
        result = parts[0][1]
        bare = result == "float32" and not all(isinstance(part, Lit) for part in expr.args[1:])
        yes, no = (
            literal(part.value, result) if bare and isinstance(part, Lit) else text
            for part, (text, _) in zip(expr.args[1:], parts, strict=True)
        )
        return f"tl.where({cast(test, kind, 'bool')}, {yes}, {no})", result

    def unified(self, args: Sequence[Expr], *, logical: bool = False) -> list[tuple[str, str]]:
        """Operands in one dtype: their own where they agree, else the compute dtype."""
        known = {self.typed(arg)[1] for arg in args if not isinstance(arg, Lit)}
        kind = "bool" if logical else known.pop() if len(known) == 1 else self.compute
        return [(cast(*self.typed(arg, kind), kind), kind) for arg in args]


def _signed(number: str) -> str:
    return f"({number})" if number.startswith("-") else number


def _inverse(divisor: Expr, kind: str, *, exact: bool) -> Lit | None:
    """What to multiply by in place of a division by a number, in float32: an eighth of the instructions, as torch does
    on a GPU; a unit in the last place more of error, but for powers of two."""
    if not isinstance(divisor, Lit) or kind != "float32" or not divisor.value or not math.isfinite(divisor.value):
        return None
    inverse = 1.0 / float(divisor.value)
    same = math.frexp(abs(inverse))[0] == 0.5
    return Lit(inverse) if 1e-37 < abs(inverse) < 1e37 and (same or not exact) else None


def _call(fn: str, args: list[str], kind: str) -> str:
    floating = "float" in kind
    special = _FLOAT.get(fn) if floating else _INTEGER.get(fn)
    if special is None:
        special = _FLOAT[fn] if fn in _FLOAT else _INTEGER[fn]
    if fn == "tanh":
        return _tanh(args[0], kind)
    if fn == "round" and kind == "float64":
        return _round(args[0])
    if fn == "exp" and kind == "float64":
        return f"tl.exp({args[0]})"
    if fn == "sigmoid" and kind == "float64":
        return f"(1.0 / (1.0 + tl.exp(-{args[0]})))"
    return special(*args)


def _tanh(x: str, kind: str) -> str:
    """1 - 2 / (exp(2x) + 1) cannot overflow to NaN, but cancels near 0, where the Taylor series takes over."""
    small = 0.25 if kind == "float32" else 0.01  # relative error below 5e-7 in float32, 1e-13 in float64
    q = f"({x} * {x})"
    series = (
        f"{x} * (1.0 + {q} * (-0.3333333333333333 + {q} * (0.13333333333333333 + {q} * "
        f"(-0.05396825396825397 + {q} * 0.021869488536155203))))"
    )
    rest = f"1.0 - 2.0 * sigmoid(-2.0 * {x})" if kind == "float32" else f"1.0 - 2.0 / (tl.exp(2.0 * {x}) + 1.0)"
    return f"tl.where(tl.abs({x}) < {small}, {series}, {rest})"


def _round(x: str) -> str:
    """Half to even."""
    low = f"tl.floor({x})"
    odd = f"(tl.floor({low} * 0.5) * 2.0 != {low})"
    return f"tl.where((({x} - {low}) > 0.5) | ((({x} - {low}) == 0.5) & {odd}), {low} + 1.0, {low})"


def _trunc(x: str) -> str:
    return f"tl.where({x} < 0, tl.ceil({x}), tl.floor({x}))"


def _log1p(x: str) -> str:
    """Kahan: log(u) * x / (u - 1) with u = 1 + x undoes the rounding of u."""
    u = f"(1.0 + {x})"
    return f"tl.where(({u} == 1.0) | ({u} == float('inf')), {x}, tl.log({u}) * ({x} / ({u} - 1.0)))"


def _expm1(x: str) -> str:
    """A series near 0, where exp(x) - 1 cancels. (The approximate exp and log are too rough for Kahan's quotient.)"""
    terms = "1.0"
    for n in range(9, 1, -1):
        terms = f"(1.0 + {x} * {terms} * {1.0 / n!r})"
    return f"tl.where(tl.abs({x}) < 0.35, {x} * {terms}, tl.exp({x}) - 1.0)"


def _pow(x: str, y: str) -> str:
    """exp2(y log2|x|) with the sign of odd exponents, NaN for a negative base with a fraction, and x^0 = 1 = 1^y."""
    size = f"tl.exp2({y} * tl.log2(tl.abs({x})))"
    whole, odd = f"(tl.floor({y}) == {y})", f"(tl.floor({y} * 0.5) * 2.0 != {y})"
    infinite = f"(tl.abs({y}) == float('inf'))"
    real = f"({whole} | ({x} == -float('inf')))"
    below = f"tl.where({whole} & {odd} & ({infinite} == 0), -{size}, tl.where({real}, {size}, float('nan')))"
    value = f"tl.where({x} < 0, {below}, {size})"
    one = f"(({y} == 0) | ({x} == 1.0) | (({x} == -1.0) & {infinite}))"
    return f"tl.where({one}, 1.0, {value})"


def _fixed_pow(x: str, y: float) -> str:
    """_pow where the exponent is known, finite and not 0."""
    size = f"tl.exp2({y!r} * tl.log2(tl.abs({x})))"
    if not y.is_integer():
        return f"tl.where(({x} < 0) & ({x} != -float('inf')), float('nan'), {size})"
    return f"tl.where({x} < 0, -{size}, {size})" if y % 2 else size


def _integer_remainder(a: str, b: str) -> str:
    """The sign of the divisor, as Python; Triton's % takes that of the dividend."""
    rest = f"({a} % {b})"
    return f"tl.where(({rest} != 0) & (({rest} < 0) != ({b} < 0)), {rest} + {b}, {rest})"


def _integer_floordiv(a: str, b: str) -> str:
    return f"tl.where((({a} % {b}) != 0) & (({a} < 0) != ({b} < 0)), ({a} // {b}) - 1, {a} // {b})"


def _sign(x: str) -> str:
    return f"tl.where({x} > 0, 1, tl.where({x} < 0, -1, 0)).to({x}.dtype)"


_Text = Callable[..., str]
_FLOAT: dict[str, _Text] = {
    "neg": lambda x: f"(-{x})",
    "abs": lambda x: f"tl.abs({x})",
    "square": lambda x: f"({x} * {x})",
    "relu": lambda x: f"tl.maximum({x}, 0.0{_PROPAGATE})",
    "maximum": lambda x, y: f"tl.maximum({x}, {y}{_PROPAGATE})",
    "minimum": lambda x, y: f"tl.minimum({x}, {y}{_PROPAGATE})",
    "fmax": lambda x, y: f"tl.where(({x} > {y}) | ({y} != {y}), {x}, {y})",
    "fmin": lambda x, y: f"tl.where(({x} < {y}) | ({y} != {y}), {x}, {y})",
    "fma": lambda x, y, z: f"tl.fma({x}, {y}, {z})",
    "floor": lambda x: f"tl.floor({x})",
    "ceil": lambda x: f"tl.ceil({x})",
    "trunc": _trunc,
    "round": lambda x: f"nearest({x})",
    "sign": _sign,
    "exp": lambda x: f"natural_exp({x})",
    "exp2": lambda x: f"tl.exp2({x})",
    "log": lambda x: f"tl.log({x})",
    "log2": lambda x: f"tl.log2({x})",
    "log1p": _log1p,
    "expm1": _expm1,
    "sqrt": lambda x: f"tl.sqrt({x})",
    "rsqrt": lambda x: f"tl.rsqrt({x})",
    "reciprocal": lambda x: f"(1.0 / {x})",
    "sigmoid": lambda x: f"sigmoid({x})",
    "tanh": lambda x: _tanh(x, "float32"),
    "quick_tanh": lambda x: f"quick_tanh({x})",
    "quotient": lambda a, b: f"quotient({a}, {b})",
    "erf": lambda x: f"tl.erf({x})",
    "erfc": lambda x: f"(1.0 - tl.erf({x}))",
    "quick_erfc": lambda x: f"quick_erfc({x})",
    "sin": lambda x: f"tl.sin({x})",
    "cos": lambda x: f"tl.cos({x})",
    "tan": lambda x: f"(tl.sin({x}) / tl.cos({x}))",
    "pow": _pow,
    "fmod": lambda x, y: f"({x} % {y})",
    "remainder": _integer_remainder,
    "floordiv": lambda x, y: f"floor_quotient({x}, {y})",
    "truncdiv": lambda x, y: _trunc(f"({x} / {y})"),
    "isnan": lambda x: f"({x} != {x})",
    "isinf": lambda x: f'(tl.abs({x}) == float("inf"))',
    "isfinite": lambda x: f'(tl.abs({x}) < float("inf"))',
}
_INTEGER: dict[str, _Text] = {
    "not": lambda x: f"({x} == 0)",
    "bitwise_not": lambda x: f"(~{x})",
    "relu": lambda x: f"tl.maximum({x}, 0)",
    **dict.fromkeys(("maximum", "fmax"), lambda x, y: f"tl.maximum({x}, {y})"),
    **dict.fromkeys(("minimum", "fmin"), lambda x, y: f"tl.minimum({x}, {y})"),
    "fma": lambda x, y, z: f"({x} * {y} + {z})",
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), lambda x: x),
    "remainder": _integer_remainder,
    "fmod": lambda x, y: f"({x} % {y})",
    "floordiv": _integer_floordiv,
    "truncdiv": lambda x, y: f"({x} // {y})",
    "isnan": lambda x: f"({x} != {x})",
    "isinf": lambda x: f"({x} != {x})",
    "isfinite": lambda x: f"({x} == {x})",
}
