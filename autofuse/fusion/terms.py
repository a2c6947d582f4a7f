"""apart: what a softmax subtracts leaves a sum over K elements, since
sum over k of (x_k - m - log S) = (sum over k of x_k) - K m - K log S.
A sum of log-softmax (label smoothing) then waits for neither the maximum nor the sum of exponentials, and all three
come out of one pass over x.

Valid where all that is subtracted is the maximum m of the same x, or the logarithm of a sum S of exp(x - m), over the
axes of the sum: none is less than x, so the difference keeps its sign and nothing cancels but what all x have in
common. That is lost to float32 (relative to the sum of |x|), so that x has to come from half precision, whose own
rounding is a thousand times more.
"""

from __future__ import annotations

from dataclasses import replace

from autofuse.fusion.algebra import over_nodes, skip_identity, strip
from autofuse.fusion.build import moved_node, rewritten
from autofuse.fusion.exponentials import shifted_exponentials
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.program import Load, MapNode, Node, Program, ReduceNode


def apart(program: Program) -> Program | None:
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    origins: dict[int, str] = {}
    changed = False
    for position, node in enumerate(program.nodes):
        found = _shifted(program, node) if isinstance(node, ReduceNode) and node.fn == "sum" else None
        moved[position] = len(nodes)
        if found is None or not isinstance(node, ReduceNode):
            nodes.append(moved_node(node, moved, {}, {}))
        else:
            changed = True
            x, shifts = found
            count = 1
            for axis in node.axes:
                count *= program.sizes[axis]
            nodes.append(replace(node, operand=moved[x]))
            total: Expr = Arg(0)
            for number in range(len(shifts)):
                total = Apply("sub", (total, Apply("mul", (Arg(1 + number), Lit(float(count))))))
            origins[moved[position]] = program.origins.get(position, "")
            operands = (moved[position], *(moved[shift] for shift in shifts))
            moved[position] = len(nodes)
            nodes.append(MapNode(operands, total, "float32", node.dtype))
        origins[moved[position]] = program.origins.get(position, "")
    if not changed:
        return None
    return rewritten(program, nodes, moved, origins)


def _shifted(program: Program, total: ReduceNode) -> tuple[int, tuple[int, ...]] | None:
    """(x, what is subtracted from it), nodes, where the sum is of such a difference."""
    x, shifts = _difference(program, Arg(total.operand))
    if x is None or not shifts or not isinstance(load := program.nodes[x], Load):
        return None
    if load.dtype not in ("float16", "bfloat16"):
        return None
    exps = shifted_exponentials(program)
    if all(_is_shift(program, shift, x, total.axes, exps) for shift in shifts):
        return x, tuple(shifts)
    return None


def _difference(program: Program, expr: Expr) -> tuple[int | None, list[int]]:
    """(x, what is subtracted from it) of a difference, through maps and conversions. Here the index of an Arg is a node
    of the program."""
    shifts: list[int] = []
    while True:
        bare = strip(expr)
        match bare:
            case Arg(index):
                node = skip_identity(program, index)
                found = program.nodes[node]
                if not isinstance(found, MapNode):
                    return node, shifts
                expr = over_nodes(found)
                if strip(expr) == bare:
                    return None, []
            case Apply("sub", (a, b)):
                taken = _summands(program, b)
                if taken is None:
                    return None, []
                shifts += taken
                expr = a
            case _:
                return None, []


def _summands(program: Program, expr: Expr) -> list[int] | None:
    """Nodes whose sum an expression over nodes is."""
    match strip(expr):
        case Arg(index):
            node = skip_identity(program, index)
            found = program.nodes[node]
            inner = strip(over_nodes(found)) if isinstance(found, MapNode) else None
            return _summands(program, inner) if isinstance(inner, Apply) and inner.fn == "add" else [node]
        case Apply("add", (a, b)):
            left, right = _summands(program, a), _summands(program, b)
            return None if left is None or right is None else left + right
        case _:
            return None


def _is_shift(program: Program, node: int, x: int, axes: tuple[str, ...], exps: dict[int, int]) -> bool:
    """Is it the maximum of x, or the logarithm of the sum of exp(x - maximum)?"""
    found = program.nodes[node]
    if isinstance(found, ReduceNode):
        return found.fn == "max" and found.axes == axes and skip_identity(program, found.operand) == x
    match found:
        case MapNode(operands=(operand,), expr=expr) if strip(expr) == Apply("log", (Arg(0),)):
            total = program.nodes[skip_identity(program, operand)]
            if not isinstance(total, ReduceNode) or total.fn != "sum" or total.axes != axes:
                return False
            leader = exps.get(skip_identity(program, total.operand))
            return leader is not None and _is_shift(program, leader, x, axes, exps)
        case _:
            return False
