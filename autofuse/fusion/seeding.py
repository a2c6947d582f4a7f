"""seeded: a product that is only added to something starts from it, since b + sum over k of x_k * w_k is the sum that
begins at b. Its accumulator is then the only one alive in the loop: another product of the same tile (a low-rank
adapter) or a residual is in it before the loop begins, and needs no registers of its own. All of it is added in
float32, where eager rounds each product first.

Valid where nothing else reads the product, and where what it is added to does not depend on it; taken where that varies
along all the axes of the product, since a vector costs nothing to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autofuse.fusion.algebra import read, skip_identity, strip, with_indices
from autofuse.fusion.build import moved_node, rewritten
from autofuse.ir.graph import Apply, Arg, Expr
from autofuse.ir.program import ContractNode, MapNode, Node, Program, closure, operands


def seeded(program: Program) -> Program | None:
    seeds = _additions(program)
    if not seeds:
        return None
    gone = {node for product, addition in seeds.items() for node in (product, *addition.between)}
    summed = {addition.node: product for product, addition in seeds.items()}
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    origins: dict[int, str] = {}
    for position, node in enumerate(program.nodes):
        if position in gone:
            continue
        product = summed.get(position)
        if product is None:
            moved[position] = len(nodes)
            nodes.append(moved_node(node, moved, {}, {}))
        else:
            assert isinstance(node, MapNode)
            whole = program.nodes[product]
            assert isinstance(whole, ContractNode)
            rest = tuple(o for o in node.operands if skip_identity(program, o) != product)
            other = with_indices(
                seeds[product].other, {i: rest.index(o) for i, o in enumerate(node.operands) if o in rest}
            )
            nodes.append(MapNode(tuple(moved[o] for o in rest), other, "float32", "float32"))
            seed = len(nodes) - 1
            moved[product] = len(nodes)
            nodes.append(replace(moved_node(whole, moved, {}, {}), dtype="float32", start=seed))
            origins[moved[product]] = program.origins.get(product, "")
            moved[position] = len(nodes)
            nodes.append(MapNode((moved[product],), Arg(0), node.compute, node.dtype))
        origins[moved[position]] = program.origins.get(position, "")
    return rewritten(program, nodes, moved, origins)


@dataclass(frozen=True, slots=True)
class _Addition:
    """node: a map that adds a product and `other`, over the map's operands. between: conversions before it."""

    node: int
    other: Expr
    between: tuple[int, ...]


def _additions(program: Program) -> dict[int, _Addition]:
    """By product; one for each map."""
    found: dict[int, _Addition] = {}
    for position, node in enumerate(program.nodes):
        if not isinstance(node, MapNode):
            continue
        bare = strip(node.expr)
        if not isinstance(bare, Apply) or bare.fn != "add":
            continue
        for side, other in (bare.args, bare.args[::-1]):
            operand = strip(side)
            if not isinstance(operand, Arg):
                continue
            product = skip_identity(program, node.operands[operand.index])
            between = _only_way(program, product, position)
            if between is not None and product not in found and _apart(program, node, product, other):
                found[product] = _Addition(position, other, between)
                break
    return found


def _only_way(program: Program, product: int, addition: int) -> tuple[int, ...] | None:
    """What lies between a product and the addition, where nothing else reads it; None where it is no such product."""
    whole = program.nodes[product]
    if not isinstance(whole, ContractNode) or whole.running is not None:
        return None
    between: list[int] = []
    reader = product
    while reader != addition:
        if any(store.node == reader for store in program.stores):
            return None
        if reader != product:
            between.append(reader)
        readers = [n for n, node in enumerate(program.nodes) if reader in operands(node)]
        if len(readers) != 1:
            return None
        reader = readers[0]
    return tuple(between)


def _apart(program: Program, node: MapNode, product: int, other: Expr) -> bool:
    """Does the other summand not depend on the product, and vary along all of its axes?"""
    rest = [node.operands[i] for i in read(other)]
    if any(product in closure(program, operand) for operand in rest):
        return False
    return frozenset(axis for operand in rest for axis in program.free[operand]) == program.free[product]
