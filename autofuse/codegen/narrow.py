"""Integers that are known to fit 32 bits: positions, and what is made of them. torch counts in int64, which takes two
instructions for each comparison where int32 takes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autofuse.ir.functions import lookup
from autofuse.ir.graph import Apply, Arg, Expr, Lit

Range = tuple[int, int]
"""Least and greatest value."""

INT32_LIMIT = 2**31 - 1
TRUTH: Range = (0, 1)

_CORNERS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "minimum": min, "maximum": max,
}  # fmt: skip
"""Functions whose extremes lie where their operands' do."""


def range_of(expr: Expr, operands: Sequence[Range | None]) -> Range | None:
    """Of an expression over integers with these ranges, TRUTH for a truth value; None where it, or any part of it, is
    not known to fit 32 bits."""
    match expr:
        case Arg(index):
            return operands[index]
        case Lit(value) if isinstance(value, int):
            return fit((int(value), int(value)))
        case Apply(fn, args):
            parts = [range_of(part, operands) for part in args]
            known = [part for part in parts if part is not None]
            return _apply(fn, known) if len(known) == len(parts) else None
        case _:
            return None


def _apply(fn: str, parts: Sequence[Range]) -> Range | None:
    if lookup(fn).result == "bool":
        return TRUTH
    if fn == "where":
        return min(parts[1][0], parts[2][0]), max(parts[1][1], parts[2][1])
    if fn == "neg":
        return fit((-parts[0][1], -parts[0][0]))
    combine = _CORNERS.get(fn)
    if combine is None:
        return None
    corners = [combine(a, b) for a in parts[0] for b in parts[1]]
    return fit((min(corners), max(corners)))


def fit(reach: Range | None) -> Range | None:
    """None for what does not fit 32 bits."""
    return reach if reach is not None and reach[0] >= -INT32_LIMIT - 1 and reach[1] <= INT32_LIMIT else None
