"""Looking through maps: what rewrites match on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autofuse.ir.functions import JUMPS
from autofuse.ir.graph import Apply, Arg, Expr
from autofuse.ir.program import Load, MapNode, Node, Program, ReduceNode, operands


def with_literals(expr: Expr, literals: Mapping[int, Expr]) -> Expr:
    """The expression with operands that are constants as literals. literals: index of an operand -> its literal."""
    match expr:
        case Arg(index):
            return literals.get(index, expr)
        case Apply():
            return replace(expr, args=tuple(with_literals(a, literals) for a in expr.args))
        case _:
            return expr


def strip(expr: Expr) -> Expr:
    """Without conversions between floating dtypes: they do nothing to a value in registers."""
    while isinstance(expr, Apply) and expr.fn in ("convert:float32", "convert:bfloat16", "convert:float16"):
        expr = expr.args[0]
    return expr


def skip_identity(program: Program, node: int) -> int:
    """The node behind maps that hand on one floating operand unchanged."""
    found = program.nodes[node]
    while (
        isinstance(found, MapNode)
        and len(found.operands) == 1
        and isinstance(strip(found.expr), Arg)
        and "float" in found.dtype
    ):
        node = found.operands[0]
        found = program.nodes[node]
    return node


def map_of(program: Program, node: int, expr: Expr) -> tuple[int, ...] | None:
    """The operands of a map with just this expression."""
    found = program.nodes[node]
    return found.operands if isinstance(found, MapNode) and found.expr == expr else None


def read(expr: Expr) -> tuple[int, ...]:
    """Indices of an expression's operands, each once."""
    match expr:
        case Arg(index):
            return (index,)
        case Apply():
            return tuple(dict.fromkeys(index for part in expr.args for index in read(part)))
        case _:
            return ()


def over_nodes(node: MapNode) -> Expr:
    """A map's expression with nodes of the program as operands."""
    return with_indices(node.expr, dict(enumerate(node.operands)))


def with_indices(expr: Expr, indices: Mapping[int, int]) -> Expr:
    """The expression with its operands numbered anew."""
    match expr:
        case Arg():
            return replace(expr, index=indices[expr.index])
        case Apply():
            return replace(expr, args=tuple(with_indices(a, indices) for a in expr.args))
        case _:
            return expr


def smooth(program: Program) -> frozenset[int]:
    """Maps whose last place decides over nothing: neither they nor what is made of them rounds, compares, counts in
    integers or looks something up."""
    jumpy: set[int] = {
        node for load in program.nodes if isinstance(load, Load) for index in load.index for node in index.nodes
    }
    for position in reversed(range(len(program.nodes))):
        node = program.nodes[position]
        if position in jumpy or _jumps(node):
            jumpy |= {position, *operands(node)}
    return frozenset(i for i, node in enumerate(program.nodes) if isinstance(node, MapNode) and i not in jumpy)


def _jumps(node: Node) -> bool:
    match node:
        case MapNode(expr=expr, dtype=dtype):
            return "float" not in dtype or _jumps_in(expr)
        case ReduceNode(fn=fn):
            return fn in ("argmax", "argmin", "any", "all")
        case _:
            return False


def _jumps_in(expr: Expr) -> bool:
    if not isinstance(expr, Apply):
        return False
    to_integer = expr.fn.startswith("convert:") and "float" not in expr.fn
    return expr.fn in JUMPS or to_integer or any(_jumps_in(part) for part in expr.args)
