"""A positive number that scores are multiplied by leaves their maximum and the exponentials that it shifts, since
max(f * y) = f * max(y): exp(f * y - max(f * y)) = exp(f * (y - max(y))). Through masks too, f * -inf being -inf.

Where the maximum is followed running, that is one multiply-add and one exp2 a score (codegen.reductions.publish), which
the scores need not be multiplied for. Other readers of the maximum get f * max(y); other readers of f * y, f * y.
"""

from __future__ import annotations

from dataclasses import replace

from autofuse.fusion.algebra import read, skip_identity, strip
from autofuse.fusion.build import moved_node, rewritten
from autofuse.fusion.exponentials import exponents
from autofuse.fusion.masks import is_minus_inf
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.program import MapNode, Node, Program, ReduceNode

FACTORS = (1e-3, 1e3)
"""Of f. Beyond, f * y may leave float32 where y does not, or the other way round."""


def unscaled(program: Program) -> Program:
    """The program with every exponential of a difference to a maximum in one map, and its factors there."""
    return _Unscaling(program).program()


class _Unscaling:
    def __init__(self, program: Program) -> None:
        self.old = program
        found = exponents(program)
        # What is shifted by a guarded maximum, as torch.logsumexp does, stays as it is.
        guarded = {e.leader for e in found.values() if e.guarded}
        self.exponents = {node: e for node, e in found.items() if e.leader not in guarded}
        self.leaders = {e.leader for e in self.exponents.values()}
        self.nodes: list[Node] = []
        self.origins: dict[int, str] = {}
        self.moved: dict[int, int] = {}
        self.tops: dict[int, tuple[int, int, float]] = {}
        """Of each maximum: the node of max(y), that of y, and f."""

    def program(self) -> Program:
        for position, node in enumerate(self.old.nodes):
            self.moved[position] = self.add(position, node)
        return rewritten(self.old, self.nodes, self.moved, self.origins)

    def append(self, position: int, node: Node) -> int:
        """The new node, which is made of the old one at `position`."""
        self.nodes.append(node)
        self.origins[len(self.nodes) - 1] = self.old.origins.get(position, "")
        return len(self.nodes) - 1

    def add(self, position: int, node: Node) -> int:
        if position in self.leaders and isinstance(node, ReduceNode):
            y, factor = self.without(node.operand)
            top = self.append(position, ReduceNode(node.fn, y, node.axes, node.compute, node.dtype))
            self.tops[position] = (top, y, factor)
            if factor == 1:
                return top
            return self.append(position, MapNode((top,), Apply("mul", (Arg(0), Lit(factor))), node.compute, node.dtype))
        found = self.exponents.get(position)
        if found is not None and isinstance(node, MapNode):
            top, y, factor = self.tops[found.leader]
            power: Expr = Apply("sub", (Arg(0), Arg(1)))
            if factor * found.factor != 1:
                power = Apply("mul", (power, Lit(factor * found.factor)))
            return self.append(position, MapNode((y, top), Apply("exp", (power,)), node.compute, node.dtype))
        return self.append(position, moved_node(node, self.moved, {}, {}))

    def without(self, node: int) -> tuple[int, float]:
        """(new node of y, f) of an old node f * y."""
        node = skip_identity(self.old, node)
        value = self.old.nodes[node]
        if isinstance(value, MapNode):
            match strip(value.expr):
                case Apply("mul" | "div" as fn, (Arg(index), Lit(number))) if number > 0:
                    y, inner = self.without(value.operands[index])
                    factor = inner * (number if fn == "mul" else 1 / number)
                    if FACTORS[0] < factor < FACTORS[1]:
                        return y, factor
                case Apply("where", (test, a, b)) if is_minus_inf(a) != is_minus_inf(b):
                    rest = b if is_minus_inf(a) else a
                    if isinstance(rest, Arg) and rest.index not in read(test):
                        y, factor = self.without(value.operands[rest.index])
                        if factor != 1:
                            operands = [y if i == rest.index else self.moved[o] for i, o in enumerate(value.operands)]
                            return self.append(node, replace(value, operands=tuple(operands))), factor
                case _:
                    pass
        return self.moved[node], 1.0
