"""deferred: a factor that does not vary along the summed axes leaves a contraction, since
sum over k of (f_m * x_mk) * w_kn = f_m * sum over k of x_mk * w_kn. Valid where the operand is a product with the
factor or a quotient by it. Then a norm's row factor or a softmax's divisor no longer stands between a reduction and
the product that follows it: both run in one loop, and an operand that was only scaled is multiplied as it was loaded.
The factor meets the sum in float32 where eager rounds the scaled operand. What is left is rounded in its place; in
float16, which ends at 65504, it may then be too large where the scaled operand was not: there only what was float16
before, and what lies between 0 and 1, goes without its factor. An infinite factor gives inf times the sum, where eager
has a sum of infinities, which may be no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from autofuse.fusion.algebra import over_nodes, read, skip_identity, strip, with_indices
from autofuse.fusion.build import moved_node, rewritten
from autofuse.fusion.exponentials import shifted_exponentials
from autofuse.ir.graph import Apply, Arg, Expr
from autofuse.ir.program import ContractNode, MapNode, Node, Program


def deferred(program: Program) -> Program | None:
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    origins: dict[int, str] = {}
    changed = False
    for position, node in enumerate(program.nodes):
        split = _factored(program, node) if isinstance(node, ContractNode) else None
        if split is None or not isinstance(node, ContractNode):
            moved[position] = len(nodes)
            nodes.append(moved_node(node, moved, {}, {}))
        else:
            changed = True
            sides: list[int] = []
            for rest in split.rests:
                if isinstance(rest, int):
                    sides.append(moved[rest])
                else:
                    sides.append(len(nodes))
                    nodes.append(moved_node(rest, moved, {}, {}))
            product = len(nodes)
            origins[product] = program.origins.get(position, "")
            nodes.append(replace(node, left=sides[0], right=sides[1], dtype="float32"))
            moved[position] = len(nodes)
            others = tuple(moved[n] for n in split.operands)
            nodes.append(MapNode((product, *others), split.expr, "float32", node.dtype))
        origins[moved[position]] = program.origins.get(position, "")
    if not changed:
        return None
    return rewritten(program, nodes, moved, origins)


@dataclass(frozen=True, slots=True)
class _Factored:
    """A contraction without its factors. rests: its two operands, each a node as it is or a map to be made. expr: what
    becomes of the product, which is operand 0, with `operands` after it."""

    rests: tuple[int | MapNode, int | MapNode]
    operands: tuple[int, ...]
    expr: Expr


def _factored(program: Program, contract: ContractNode) -> _Factored | None:
    rests: list[int | MapNode] = []
    factors: list[tuple[str, Expr]] = []
    for side in (contract.left, contract.right):
        rest, found = _split_product(program, Arg(side), frozenset(contract.axes))
        factors += found
        stored = getattr(program.nodes[side], "dtype", "float32")
        if not found or rest is None:
            rests.append(side)
        elif isinstance(rest, Arg) and getattr(program.nodes[rest.index], "dtype", "") == stored:
            rests.append(rest.index)
        elif stored == "float16" and not (isinstance(rest, Arg) and rest.index in shifted_exponentials(program)):
            return None
        else:
            operands = read(rest)
            rests.append(MapNode(operands, _over(rest, operands), "float32", stored))
    if not factors or contract.running is not None:
        return None
    operands = tuple(dict.fromkeys(node for _, factor in factors for node in read(factor)))
    return _Factored((rests[0], rests[1]), operands, _scaled([(fn, _over(e, (-1, *operands))) for fn, e in factors]))


def _scaled(factors: Sequence[tuple[str, Expr]]) -> Expr:
    """Operand 0 times and over the factors. Those that multiply it are multiplied with each other first: they have less
    elements. (A row's factor and a scalar, one after the other on an accumulator of 128x256: 255 registers; their
    product: 156. Compiled for sm_90.)"""
    expr: Expr = Arg(0)
    times = [factor for fn, factor in factors if fn == "mul"]
    if times:
        expr = Apply("mul", (expr, reduce(lambda a, b: Apply("mul", (a, b)), times)))
    for divisor in (factor for fn, factor in factors if fn == "div"):
        expr = Apply("div", (expr, divisor))
    return expr


def _split_product(program: Program, expr: Expr, summed: frozenset[str]) -> tuple[Expr | None, list[tuple[str, Expr]]]:
    """(what varies along the summed axes, [(mul or div, a factor that does not), ...]), through maps and conversions.

    Here and in what comes back, the index of an Arg is a node of the program.
    """
    bare = strip(expr)
    if not any(program.free[node] & summed for node in read(bare)):
        return None, [("mul", bare)]
    match bare:
        case Arg():
            node = skip_identity(program, bare.index)
            found = program.nodes[node]
            if not isinstance(found, MapNode):
                return replace(bare, index=node), []
            rest, factors = _split_product(program, over_nodes(found), summed)
            return (rest, factors) if factors else (replace(bare, index=node), [])
        case Apply("mul", (a, b)):
            (left, first), (right, second) = (_split_product(program, part, summed) for part in (a, b))
            rest = left or right if left is None or right is None else Apply("mul", (left, right))
            return rest, [*first, *second]
        case Apply("div", (a, b)) if not any(program.free[node] & summed for node in read(strip(b))):
            rest, factors = _split_product(program, a, summed)
            return rest, [*factors, ("div", strip(b))]
        case _:
            return bare, []


def _over(expr: Expr, operands: tuple[int, ...]) -> Expr:
    """An expression over nodes of the program as one over these operands."""
    return with_indices(expr, {node: position for position, node in enumerate(operands)})
