"""Affine index expressions over axes. No tensors, no text generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Var = str | int
"""An axis name, or the id of the node whose value is an index (an indirect term)."""


class SplitNeeded(Exception):
    """Folding a view needs `axis` as two axes, the inner of size `inner`."""

    def __init__(self, axis: str, inner: int) -> None:
        super().__init__(f"axis {axis} must split by {inner}")
        self.axis = axis
        self.inner = inner


class NotAffine(Exception):
    """The index of a view is no affine expression of axes; the value must be materialised."""


@dataclass(frozen=True, slots=True)
class Index:
    """`const + sum(coefficient * var)`; terms are sorted, coefficients are not zero."""

    terms: tuple[tuple[Var, int], ...] = ()
    const: int = 0

    @staticmethod
    def of(var: Var, coefficient: int = 1) -> Index:
        return Index(((var, coefficient),))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        if not self.terms or not other.terms:
            return Index(self.terms or other.terms, self.const + other.const)
        return _collect((*self.terms, *other.terms), self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        terms = tuple((var, coefficient * factor) for var, coefficient in self.terms) if factor else ()
        return Index(terms, self.const * factor)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(var for var, _ in self.terms if isinstance(var, str))

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(var for var, _ in self.terms if isinstance(var, int))

    @property
    def axis(self) -> str | None:
        """The axis that this index is, exactly, if it is one."""
        if self.const == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            var = self.terms[0][0]
            return var if isinstance(var, str) else None
        return None

    def coefficient(self, var: Var) -> int:
        return next((coefficient for name, coefficient in self.terms if name == var), 0)

    def substitute(self, mapping: Mapping[Var, Index]) -> Index:
        result = Index(const=self.const)
        for var, coefficient in self.terms:
            result = result + mapping.get(var, Index.of(var)) * coefficient
        return result

    def bounds(self, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Least and greatest value, inclusive; None where an indirect term makes them unknown."""
        low = high = self.const
        for var, coefficient in self.terms:
            if isinstance(var, int):
                return None
            reach = coefficient * (sizes[var] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def divmod(self, divisor: int, sizes: Mapping[str, int]) -> tuple[Index, Index]:
        """Quotient and remainder by a constant, where both are affine.

        Raises SplitNeeded when splitting one axis would make them so, NotAffine when nothing would.
        """
        quotient = Index(const=self.const // divisor)
        remainder = Index(const=self.const % divisor)
        for var, coefficient in self.terms:
            if coefficient % divisor == 0:
                quotient = quotient + Index.of(var, coefficient // divisor)
            else:
                remainder = remainder + Index.of(var, coefficient)
        bounds = remainder.bounds(sizes)
        if bounds is not None and bounds[0] >= 0 and bounds[1] < divisor:
            return quotient, remainder
        for var, coefficient in remainder.terms:
            if isinstance(var, str) and coefficient > 0 and divisor % coefficient == 0:
                inner = divisor // coefficient
                if 1 < inner < sizes[var] and sizes[var] % inner == 0:
                    raise SplitNeeded(var, inner)
        raise NotAffine(f"({self}) divided by {divisor}")

    def __str__(self) -> str:
        parts = [f"{coefficient}*{var}" if coefficient != 1 else str(var) for var, coefficient in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def _collect(terms: Iterable[tuple[Var, int]], const: int) -> Index:
    sums: dict[Var, int] = {}
    for var, coefficient in terms:
        sums[var] = sums.get(var, 0) + coefficient
    kept = ((var, coefficient) for var, coefficient in sums.items() if coefficient)
    return Index(tuple(sorted(kept, key=lambda term: (isinstance(term[0], int), str(term[0])))), const)


def linearize(indices: tuple[Index, ...], strides: tuple[int, ...]) -> Index:
    """The element offset of a multi-dimensional index."""
    total = Index()
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total
