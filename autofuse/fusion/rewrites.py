"""Algebra on programs that merges passes over a looped axis. Each rewrite marks nodes; the generator honours the mark.

online: softmax and log-sum-exp in one pass. With m the running maximum and m' the next, any sum over i of
exp(x_i - m) * w_i obeys S' = S * exp(m - m') + sum over the new tile of exp(x_i - m') * w_i, because
exp(x - m') = exp(x - m) * exp(m - m'). Valid where the summand is linear in exp(x - m): then one pass over x gives
both m and S, and w_i may be a tile of a contraction (flash attention). A factor of x goes to the exponent: scaling.py.

moments: variance in one pass. With n_a, mean_a, M_a of the elements so far and n_b, mean_b, M_b of a tile,
M = M_a + M_b + (mean_b - mean_a)^2 * n_a * n_b / (n_a + n_b)  (Chan, Golub, LeVeque 1979). Valid where the summand is
(x - s/n)^2 with s the plain sum of the same x over the same axes; no cancellation, unlike E[x^2] - E[x]^2.

Factors that leave a product: deferral.py; that move onto its frozen operand: folding.py. Terms that leave a sum:
terms.py. Products that begin at what they are added to: seeding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autofuse.fusion.algebra import skip_identity, strip
from autofuse.fusion.deferral import deferred
from autofuse.fusion.exponentials import difference, linear_in, shifted_exponentials
from autofuse.fusion.folding import FOLDED
from autofuse.fusion.scaling import unscaled
from autofuse.fusion.seeding import seeded
from autofuse.fusion.terms import apart
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.program import ContractNode, MapNode, Node, Program, ReduceNode, closure


def variants(program: Program) -> dict[tuple[str, ...], Program]:
    """The program as it is, and with each rewrite that applies, keyed by the rewrites' names."""
    found: dict[tuple[str, ...], Program] = {(): program}
    if program.folded is not None:
        found[FOLDED,] = program.folded
    for name, rewrite in _in_order().items():
        for names, earlier in list(found.items()):
            changed = rewrite(earlier)
            if changed is not None:
                found[(*names, name)] = changed
    return found


def _in_order() -> dict[str, Callable[[Program], Program | None]]:
    return {"deferred": deferred, "apart": apart, "seeded": seeded, "online": online, "moments": moments}


def apply(program: Program, names: tuple[str, ...]) -> Program:
    """The program with the named rewrites. Raises KeyError where one does not apply."""
    return variants(program)[names]


def online(program: Program) -> Program | None:
    program = unscaled(program)
    nodes = list(program.nodes)
    exps = shifted_exponentials(program)
    for position, node in enumerate(nodes):
        if isinstance(node, ReduceNode) and node.fn == "sum":
            roots = (node.operand,)
        elif isinstance(node, ContractNode):
            roots = (node.left, node.right)
        else:
            continue
        for leader in _leaders(program, roots, exps):
            target = program.nodes[leader]
            if isinstance(target, ReduceNode) and target.axes == node.axes and node.running is None:
                nodes[position] = replace(node, running=leader, correction="rescale")
    return replace(program, nodes=tuple(nodes)) if nodes != list(program.nodes) else None


def _leaders(program: Program, roots: tuple[int, ...], exps: Mapping[int, int]) -> set[int]:
    """Maxima m such that the product of the roots is linear in exp(x - m): one factor carries it, none else reads m."""
    found: set[int] = set()
    for position, root in enumerate(roots):
        others = [r for i, r in enumerate(roots) if i != position]
        leader = linear_in(program, root, exps)
        if leader is not None and not any(leader in closure(program, other) for other in others):
            found.add(leader)
    return found


def moments(program: Program) -> Program | None:
    nodes: list[Node] = list(program.nodes)
    for position, node in enumerate(nodes):
        if not isinstance(node, ReduceNode) or node.fn != "sum" or node.running is not None:
            continue
        leader = _centred_square(program, node)
        if leader is not None:
            nodes[position] = replace(node, running=leader, correction="shift")
    return replace(program, nodes=tuple(nodes)) if nodes != list(program.nodes) else None


def _centred_square(program: Program, node: ReduceNode) -> int | None:
    """The node of sum(x) where the reduce's operand is (x - sum(x) * (1/n))^2 over the same axes."""
    base = _squared(program, node.operand)
    if base is None:
        return None
    pair = difference(program, *base)
    if pair is None:
        return None
    x, mean = skip_identity(program, pair[0]), skip_identity(program, pair[1])
    below = program.nodes[mean]
    count = 1
    for axis in node.axes:
        count *= program.sizes[axis]
    if not isinstance(below, MapNode) or len(below.operands) != 1 or not _is_mean(strip(below.expr), count):
        return None
    leader = skip_identity(program, below.operands[0])
    total = program.nodes[leader]
    if not isinstance(total, ReduceNode):
        return None
    same = total.fn == "sum" and total.axes == node.axes and total.running is None
    return leader if same and skip_identity(program, total.operand) == x else None


def _is_mean(expr: Expr, count: int) -> bool:
    match expr:
        case Apply("div", (Arg(), Lit(n))):
            return n == count
        case Apply("mul", (Arg(), Lit(f))) | Apply("mul", (Lit(f), Arg())):
            return abs(f * count - 1.0) < 1e-12
        case _:
            return False


def _squared(program: Program, node: int) -> tuple[int, Expr] | None:
    """(map node, e) where the node is e * e or e^2."""
    node = skip_identity(program, node)
    found = program.nodes[node]
    if not isinstance(found, MapNode):
        return None
    match strip(found.expr):
        case Apply("mul", (Arg(a), Arg(b))) if found.operands[a] == found.operands[b]:
            return node, Arg(a)
        case Apply("mul", (a, b)) if a == b:
            return node, strip(a)
        case Apply("square", (a,)):
            return node, strip(a)
        case Apply("pow", (a, Lit(2) | Lit(2.0))):
            return node, strip(a)
        case _:
            return None
