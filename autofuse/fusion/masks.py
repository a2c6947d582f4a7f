"""Where a mask makes a tile vanish, which stretch of a loop every sum inside it can leave out; and where it leaves a
tile as it is, so that nothing need be tested there.

A score that is masked is -inf. Then its maximum is not changed by it, and exp(score - maximum), which the sums and
products after it are linear in, is 0: an element that some mask covers adds nothing to any of them. (A value of inf or
NaN in the other factor of a product would make 0 * inf there, in eager; left out, it does not.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autofuse.fusion.algebra import skip_identity, strip
from autofuse.fusion.exponentials import linear_in, shifted_exponentials
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.index import Index
from autofuse.ir.program import ContractNode, MapNode, Position, Program, ReduceNode

NEGATED = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


def dead_where(program: Program, sums: Iterable[int]) -> tuple[Index, ...]:
    """Affine expressions of axes: where one of them is positive, an element adds nothing to any of the reductions."""
    found: set[int] | None = None
    exps = shifted_exponentials(program)
    for node in sums:
        masks = set(_masks(program, _score(program, node, exps)))
        found = masks if found is None else found & masks
    return tuple(dict.fromkeys(index for mask in sorted(found or ()) for index in _covered(program, mask)))


@dataclass(frozen=True, slots=True)
class Settled:
    """A choice between an operand and a number. Where none of `cuts` is positive it is the operand: `plain`."""

    cuts: tuple[Index, ...]
    plain: MapNode


def settled(program: Program, node: int) -> Settled | None:
    """Of a node where(test, number, y) or where(test, y, number) whose test compares affine expressions of axes."""
    value = program.nodes[node]
    if not isinstance(value, MapNode):
        return None
    match strip(value.expr):
        case Apply("where", (test, a, b)) if isinstance(a, Lit) != isinstance(b, Lit):
            rest = b if isinstance(a, Lit) else a
        case _:
            return None
    cuts = _true(program, value, test, wanted=isinstance(a, Lit))
    known = tuple(cut for cut in cuts if cut is not None)
    if len(known) < len(cuts) or not isinstance(rest, Arg):
        return None
    operand = value.operands[rest.index]
    if program.free[operand] != program.free[node]:
        return None
    return Settled(known, replace(value, operands=(operand,), expr=replace(rest, index=0)))


def _score(program: Program, node: int, exps: Mapping[int, int]) -> int | None:
    """The x of max(x), or of a sum or product that is linear in exp(x - max(x))."""
    found = program.nodes[node]
    if isinstance(found, ReduceNode) and found.fn == "max":
        return found.operand
    if isinstance(found, ReduceNode) and found.fn == "sum":
        factors = (found.operand,)
    elif isinstance(found, ContractNode):
        factors = (found.left, found.right)
    else:
        return None
    for factor in factors:
        leader = linear_in(program, factor, exps)
        top = program.nodes[leader] if leader is not None else None
        if isinstance(top, ReduceNode):
            return top.operand
    return None


def _masks(program: Program, node: int | None) -> list[int]:
    """Nodes where(test, -inf, y) or where(test, y, -inf) whose -inf the node keeps: through conversions, further masks,
    and products with positive numbers."""
    found: list[int] = []
    while node is not None:
        node = skip_identity(program, node)
        value = program.nodes[node]
        if not isinstance(value, MapNode):
            break
        match strip(value.expr):
            case Apply("where", (_, a, b)) if is_minus_inf(a) != is_minus_inf(b):
                found.append(node)
                rest = b if is_minus_inf(a) else a
                node = value.operands[rest.index] if isinstance(rest, Arg) else None
            case Apply("mul" | "div", (Arg(operand), Lit(factor))) if isinstance(factor, int | float) and factor > 0:
                node = value.operands[operand]
            case _:
                break
    return found


def is_minus_inf(expr: Expr) -> bool:
    return isinstance(expr, Lit) and expr.value == float("-inf")


def _covered(program: Program, mask: int) -> list[Index]:
    """Positive where the mask puts -inf."""
    node = program.nodes[mask]
    assert isinstance(node, MapNode)
    expr = strip(node.expr)
    assert isinstance(expr, Apply)
    found = _true(program, node, expr.args[0], wanted=is_minus_inf(expr.args[1]))
    return [index for index in found if index is not None]


def _true(program: Program, node: MapNode, expr: Expr, *, wanted: bool) -> list[Index | None]:
    """Expressions of which each, where positive, makes a test come out as wanted; it does so nowhere else, but for
    parts of the test that are not understood, each of which is a None."""
    match expr:
        case Arg(index):
            below = program.nodes[node.operands[index]]
            return _true(program, below, below.expr, wanted=wanted) if isinstance(below, MapNode) else [None]
        case Apply("not" | "bitwise_not", (a,)):
            return _true(program, node, a, wanted=not wanted)
        case Apply("or" | "bitwise_or", (a, b)) if wanted:
            return [*_true(program, node, a, wanted=True), *_true(program, node, b, wanted=True)]
        case Apply("and" | "bitwise_and", (a, b)) if not wanted:
            return [*_true(program, node, a, wanted=False), *_true(program, node, b, wanted=False)]
        case Apply(fn, (a, b)) if fn in NEGATED:
            left, right = _affine(program, node, a), _affine(program, node, b)
            if left is None or right is None:
                return [None]
            fn = fn if wanted else NEGATED[fn]
            larger = left + right * -1 if fn in ("gt", "ge") else right + left * -1
            return [larger + (fn in ("ge", "le")) * 1]
        case _:
            return [None]


def _affine(program: Program, node: MapNode, expr: Expr) -> Index | None:
    """An integer expression of positions as one over axes."""
    match expr:
        case Lit(value) if isinstance(value, int) and not isinstance(value, bool):
            return Index((), value)
        case Arg(index):
            below = program.nodes[node.operands[index]]
            if isinstance(below, Position):
                return below.index if not below.index.nodes else None
            return _affine(program, below, below.expr) if isinstance(below, MapNode) and "int" in below.dtype else None
        case Apply("add" | "sub" | "mul", (a, b)):
            left, right = _affine(program, node, a), _affine(program, node, b)
            if left is None or right is None:
                return None
            if expr.fn != "mul":
                return left + right * (1 if expr.fn == "add" else -1)
            if left.terms and right.terms:
                return None
            return left * right.const if not right.terms else right * left.const
        case _:
            return None
