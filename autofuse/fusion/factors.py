"""A product with a number, of a product with a number, is one product: the scale of scores and what a soft cap divides
them by. It is rounded once where two are rounded twice, and does not overflow in between."""

from __future__ import annotations

import math
from dataclasses import replace

from autofuse.fusion.algebra import skip_identity, smooth
from autofuse.fusion.precision import SINGLE
from autofuse.ir.graph import Apply, Arg, Lit
from autofuse.ir.program import MapNode, Node, Program

RANGE = (1e-30, 1e30)
"""Of the size of what is multiplied by: beyond, one product may leave float32 where two do not."""


def combined(program: Program) -> Program:
    calm = smooth(program)
    nodes: list[Node] = list(program.nodes)
    for position, node in enumerate(program.nodes):
        outer = _factor(node)
        if outer is None or position not in calm:
            continue
        assert isinstance(node, MapNode)
        inside = nodes[skip_identity(program, node.operands[outer[0]])]
        inner = _factor(inside)
        if inner is not None and RANGE[0] < abs(factor := outer[1] * inner[1]) < RANGE[1]:
            assert isinstance(inside, MapNode)
            product = Apply("mul", (Arg(0), Lit(factor)))
            nodes[position] = replace(node, operands=(inside.operands[inner[0]],), expr=product)
    return replace(program, nodes=tuple(nodes))


def _factor(node: Node) -> tuple[int, float] | None:
    """(operand, f) of a map that is f times an operand, in float32."""
    if not isinstance(node, MapNode) or node.compute not in SINGLE or node.dtype not in SINGLE:
        return None
    match node.expr:
        case Apply("mul", (Arg(index), Lit(number))) | Apply("mul", (Lit(number), Arg(index))):
            return index, float(number)
        case Apply("div", (Arg(index), Lit(number))) if number and math.isfinite(number):
            return index, 1.0 / number
        case _:
            return None
