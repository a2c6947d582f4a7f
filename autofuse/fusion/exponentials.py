"""Exponentials that are shifted by a maximum, exp(x - m): which nodes are, what is linear in them, what that allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.fusion.algebra import map_of, skip_identity, strip
from autofuse.ir.graph import Apply, Arg, Expr, Lit
from autofuse.ir.program import ContractNode, MapNode, Program, ReduceNode, closure, operands


def linear_in(program: Program, node: int, exps: Mapping[int, int]) -> int | None:
    """The maximum m that `node` is linear in exp(x - m) of, or None."""
    if node in exps:
        return exps[node]
    found = program.nodes[node]
    if not isinstance(found, MapNode):
        return None
    carriers = {o: leader for o in found.operands if (leader := linear_in(program, o, exps)) is not None}
    if len(set(carriers.values())) != 1:
        return None
    leader = next(iter(carriers.values()))
    if any(leader in closure(program, o) for o in found.operands if o not in carriers):
        return None
    linear = frozenset(i for i, o in enumerate(found.operands) if o in carriers)
    return leader if _is_linear(found.expr, linear) else None


def _is_linear(expr: Expr, carriers: frozenset[int]) -> bool:
    """Homogeneous of degree one in the carrying operands."""
    match expr:
        case Arg():
            return expr.index in carriers
        case Lit():
            return False
        case Apply("mul", (a, b)):
            return _is_linear(a, carriers) != _is_linear(b, carriers) and not (
                _reads(a, carriers) and _reads(b, carriers)
            )
        case Apply("div", (a, b)):
            return _is_linear(a, carriers) and not _reads(b, carriers)
        case Apply("add" | "sub", (a, b)):
            return _is_linear(a, carriers) and _is_linear(b, carriers)
        case Apply("where", (test, a, b)):
            branches = [branch for branch in (a, b) if branch != Lit(0) and branch != Lit(0.0)]
            return bool(branches) and not _reads(test, carriers) and all(_is_linear(x, carriers) for x in branches)
        case Apply(fn, (a,)) if fn.startswith("convert:float") or fn in ("convert:bfloat16", "neg"):
            return _is_linear(a, carriers)
        case _:
            return False


def _reads(expr: Expr, carriers: frozenset[int]) -> bool:
    match expr:
        case Arg():
            return expr.index in carriers
        case Apply():
            return any(_reads(a, carriers) for a in expr.args)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Exponent:
    """Of a node exp(factor * (x - m)): m is `leader`, the maximum of that same x over some axes, or a guard of it;
    factor is positive."""

    x: int
    leader: int
    factor: float
    guarded: bool


def shifted_exponentials(program: Program) -> dict[int, int]:
    """Nodes that are exp(f * (x - m)), with m the maximum of that same x over some axes: node -> node of m."""
    return {node: exponent.leader for node, exponent in exponents(program).items()}


def exponents(program: Program) -> dict[int, Exponent]:
    """Those of shifted_exponentials; of a maximum that shifts exponentials of several factors, none."""
    found: dict[int, Exponent] = {}
    factors: dict[int, set[float]] = {}
    for position in range(len(program.nodes)):
        exponent = _exponent(program, position)
        if exponent is not None:
            found[position] = exponent
            factors.setdefault(exponent.leader, set()).add(exponent.factor)
    return {position: exponent for position, exponent in found.items() if len(factors[exponent.leader]) == 1}


def _exponent(program: Program, node: int) -> Exponent | None:
    argument = _through(program, node, "exp")
    if argument is None:
        return None
    _, power = argument
    factor = 1.0
    match power:
        case Apply("mul", (inner, Lit(number))) if number > 0:
            power, factor = inner, float(number)
        case _:
            pass
    pair = difference(program, node, power)
    if pair is None:
        return None
    x, shift = pair
    leader = _skip_guard(program, skip_identity(program, shift))
    top = program.nodes[leader]
    if not isinstance(top, ReduceNode) or top.fn != "max":
        return None
    same = skip_identity(program, top.operand) == skip_identity(program, x)
    return Exponent(x, leader, factor, guarded=skip_identity(program, shift) != leader) if same else None


def quotients(program: Program) -> dict[int, Exponent]:
    """Those exponentials of which nothing is read but what follows their maximum running, and their maximum by nobody
    else: what comes of them are quotients, which stay as they are when a row is shifted by another number than m."""
    found = exponents(program)
    readers: dict[int, list[int]] = {}
    for position, node in enumerate(program.nodes):
        for operand in operands(node):
            readers.setdefault(operand, []).append(position)
    stored = {store.node for store in program.stores}

    def followed(node: int, leader: int) -> bool:
        if node in stored:
            return False
        if isinstance(program.nodes[node], ReduceNode | ContractNode):
            return getattr(program.nodes[node], "running", None) == leader
        return all(followed(reader, leader) for reader in readers.get(node, ()))

    private = {
        leader for leader in {e.leader for e in found.values()}
        if leader not in stored and all(r in found and followed(r, leader) for r in readers[leader])
    }  # fmt: skip
    return {node: e for node, e in found.items() if e.leader in private}


def _skip_guard(program: Program, node: int) -> int:
    """The node of m behind where(abs(m) == inf, 0, m), as torch.logsumexp shifts. It is a map of m alone, so that in a
    loop it guards the running value too; a sum that was shifted by 0 holds inf, or nothing, and stays so rescaled."""
    choice = map_of(program, node, Apply("where", (Arg(0, cast=False), Lit(0), Arg(1))))
    if choice is None:
        return node
    test, m = choice
    equal = map_of(program, test, Apply("eq", (Arg(0), Lit(float("inf")))))
    size = map_of(program, equal[0], Apply("abs", (Arg(0),))) if equal else None
    return skip_identity(program, m) if size == (m,) else node


def softmax_maxima(program: Program) -> frozenset[int]:
    """Maxima that only ever shift an exponential: a NaN in x reaches the sum by itself, so they need not carry it."""
    exps = shifted_exponentials(program)
    shifts = set(exps.values())
    for position, node in enumerate(program.nodes):
        if position not in exps:
            shifts -= {
                leader
                for leader in shifts
                if leader in operands(node) and not _only_exponentials(program, position, exps)
            }
    return frozenset(shifts - {store.node for store in program.stores})


def _only_exponentials(program: Program, node: int, exps: Mapping[int, int]) -> bool:
    users = [i for i, n in enumerate(program.nodes) if node in operands(n)]
    return bool(users) and node not in {s.node for s in program.stores} and all(u in exps for u in users)


def normalisers(program: Program) -> frozenset[int]:
    """Maps that divide by a sum of shifted exponentials. Such a sum lies between 1 and the number of its terms (or is 0
    or NaN, which a reciprocal keeps), so that multiplying by its reciprocal can neither overflow nor underflow."""
    exps = shifted_exponentials(program)
    found: set[int] = set()
    for position, node in enumerate(program.nodes):
        match node:
            case MapNode(operands=operands, expr=Apply("div", (Arg(), Arg(divisor)))):
                total = program.nodes[skip_identity(program, operands[divisor])]
                if (
                    isinstance(total, ReduceNode)
                    and total.fn == "sum"
                    and skip_identity(program, total.operand) in exps
                ):
                    found.add(position)
            case _:
                pass
    return frozenset(found)


def _through(program: Program, node: int, fn: str) -> tuple[int, Expr] | None:
    """(map node, inner expression) where the node is fn(inner), conversions of floating values skipped."""
    found = program.nodes[node]
    if not isinstance(found, MapNode):
        return None
    expr = strip(found.expr)
    if isinstance(expr, Apply) and expr.fn == fn and len(expr.args) == 1:
        return node, strip(expr.args[0])
    return None


def difference(program: Program, node: int, expr: Expr) -> tuple[int, int] | None:
    """(x, m) where the expression, over the operands of `node`, is x - m, here or in the map that it reads."""
    found = program.nodes[node]
    assert isinstance(found, MapNode)
    match expr:
        case Apply("sub", (Arg(a), Arg(b))):
            return found.operands[a], found.operands[b]
        case Arg(a):
            inner = found.operands[_index(a)]
            below = program.nodes[inner]
            return difference(program, inner, strip(below.expr)) if isinstance(below, MapNode) else None
        case _:
            return None


def _index(value: object) -> int:
    assert isinstance(value, int)
    return value
