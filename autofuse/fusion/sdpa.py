"""Attention written by hand, recognised so that SDPA's kernels compete: bmm(softmax(scale * bmm(q, kT), masked), v).

The softmax is found by its composite, the rest by forms. A mask is taken only where it is made of positions: of rows
that a mask hides altogether SDPA makes zeros where a softmax makes NaN, so a mask that comes from outside must not be
given to it. Causal masks of as many queries as keys hide no row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autofuse.fusion.algebra import strip, with_literals
from autofuse.ir.graph import Apply, Arg, AtenCall, Composite, Expr, Graph, Iota, Lit, Map, Op, Ref, Reshape, Strided

DTYPES = frozenset({"float16", "bfloat16", "float32"})
LOWER = {"gt": True, "le": False}
"""Of key > query: whether the test tells what is hidden."""


@dataclass
class _Match:
    """What has been taken so far, from the end. kept: values that the group must leave behind."""

    graph: Graph
    ops: Mapping[str, Op]
    kept: Collection[str]
    taken: dict[str, Op] = field(default_factory=dict)
    scale: float = 1.0
    causal: bool = False

    def take(self, value: str, also: Collection[str] = ()) -> Op | None:
        """The op that makes a value which nobody else reads."""
        op = self.ops.get(value)
        if op is None or op.name in self.taken:
            return op
        readers = {one.name for one in self.ops.values() if set(op.outputs) & set(one.inputs)}
        if set(op.outputs) & set(self.kept) or not readers <= {*self.taken, *also}:
            return None
        self.taken[op.name] = op
        return op


def recognise(
    graph: Graph, ops: Mapping[str, Op], kept: Collection[str], last: Op
) -> tuple[tuple[Op, ...], AtenCall] | None:
    """(ops replaced, the call) where `last`, a bmm, ends an attention. ops: value -> op, of the group alone."""
    if len(last.call.args) != 2 or not all(isinstance(argument, Ref) for argument in last.call.args):
        return None
    match = _Match(graph, ops, kept, {last.name: last})
    weights, value = (argument.name for argument in last.call.args if isinstance(argument, Ref))
    scores = _through_softmax(match, weights)
    product = _through_scores(match, scores, weights) if scores is not None else None
    if product is None:
        return None
    query, key = (argument.name for argument in product.call.args if isinstance(argument, Ref))
    dtypes = {graph.types[name].dtype for name in (query, key, value, last.outputs[0])}
    if len(dtypes) != 1 or not dtypes <= DTYPES:
        return None
    options = (("is_causal", match.causal), ("scale", match.scale))
    call = AtenCall("autofuse.attention.default", (Ref(query), Ref(key), Ref(value)), options)
    order = {op.name: i for i, op in enumerate(graph.ops)}
    return tuple(sorted(match.taken.values(), key=lambda op: order.get(op.name, 0))), call


def _through_softmax(match: _Match, value: str) -> str | None:
    """The softmax's operand, behind views and conversions of its result."""
    while (op := match.take(value)) is not None:
        found = next((c for c in match.graph.composites if _is_softmax(match, c, op)), None)
        if found is not None:
            inside = {name for name in found.ops if any(one.name == name for one in match.ops.values())}
            if inside != set(found.ops):
                return None
            for name in reversed(found.ops):
                if any(match.take(made, inside) is None for made in match.graph.by_name[name].outputs):
                    return None
            operand = found.op.call.args[0]
            return operand.name if isinstance(operand, Ref) else None
        if not _keeps_order(match.graph, op) and not _is_conversion(op):
            return None
        value = op.inputs[0]
    return None


def _is_softmax(match: _Match, composite: Composite, op: Op) -> bool:
    if composite.op.call.target != "aten._softmax.default" or op.name not in composite.ops:
        return False
    dim, rank = composite.op.call.args[1], len(match.graph.types[op.outputs[0]].shape)
    return dim in (-1, rank - 1)


def _keeps_order(graph: Graph, op: Op) -> bool:
    """A view with the same elements in the same order and the same last two dimensions."""
    before, after = graph.types[op.inputs[0]].shape if op.inputs else (), graph.types[op.outputs[0]].shape
    if isinstance(op.form, Strided):
        same = op.form.source == tuple(range(len(before))) and not any(op.form.starts)
        return same and before == after and all(step == 1 for step in op.form.steps)
    return isinstance(op.form, Reshape) and before[-2:] == after[-2:]


def _is_conversion(op: Op) -> bool:
    return isinstance(op.form, Map) and isinstance(strip(op.form.expr), Arg)


def _through_scores(match: _Match, value: str, weights: str) -> Op | None:
    """The product of queries and keys, behind views, conversions, a positive factor and a causal mask."""
    queries, keys = match.graph.types[weights].shape[-2:]
    while (op := match.take(value)) is not None:
        if match.graph.types[op.outputs[0]].shape[-2:] != (queries, keys):
            return None
        if op.call.target == "aten.bmm.default":
            return op
        if _keeps_order(match.graph, op):
            value = op.inputs[0]
            continue
        form = op.form
        if not isinstance(form, Map):
            return None
        match _expr(match.graph, form):
            case Arg(operand):
                pass
            case Apply("mul" | "div" as fn, (Arg(operand), Lit(factor))) if _positive(factor):
                match.scale *= factor if fn == "mul" else 1 / factor
            case Apply("where", (Arg(test), Lit(low), Arg(operand))) if low == float("-inf"):
                if not _is_causal(match, form.operands[test], queries, keys, hidden=True):
                    return None
            case Apply("where", (Arg(test), Arg(operand), Lit(low))) if low == float("-inf"):
                if not _is_causal(match, form.operands[test], queries, keys, hidden=False):
                    return None
            case _:
                return None
        for i, name in enumerate(form.operands):
            if i != operand and isinstance(_expr_of(match.graph, name), Lit):
                match.take(name)
        value = form.operands[operand]
    return None


def _expr(graph: Graph, form: Map) -> Expr:
    """Its constants as literals: torch.where makes a tensor of its scalar."""
    found = {i: _expr_of(graph, name) for i, name in enumerate(form.operands)}
    return with_literals(strip(form.expr), {i: expr for i, expr in found.items() if isinstance(expr, Lit)})


def _expr_of(graph: Graph, value: str) -> Expr | None:
    op = graph.producer.get(value)
    return op.form.expr if op is not None and isinstance(op.form, Map) else None


def _positive(factor: object) -> bool:
    return isinstance(factor, int | float) and not isinstance(factor, bool) and factor > 0


def _is_causal(match: _Match, test: str, queries: int, keys: int, *, hidden: bool) -> bool:
    """Does the test compare positions, so that key > query is hidden? Its ops are taken along, where they serve no
    other purpose."""
    op = match.graph.producer.get(match.graph.base(test))
    if op is None or not isinstance(op.form, Map) or queries != keys or match.causal:
        return False
    match op.form.expr:
        case Apply(fn, (Arg(a), Arg(b))):
            left, right = (_position(match.graph, op.form.operands[i], queries) for i in (a, b))
        case _:
            return False
    if (left, right) == ("query", "key"):
        fn = {"lt": "gt", "ge": "le"}.get(fn, "")
    elif (left, right) != ("key", "query"):
        return False
    if LOWER.get(fn) is not hidden:
        return False
    match.causal = True
    stack = [test]
    while stack:
        made = match.take(stack.pop())
        stack += made.inputs if made is not None else ()
    return True


def _position(graph: Graph, value: str, size: int) -> str:
    """Whether a value counts the queries (down) or the keys (across) from 0."""
    op = graph.producer.get(graph.base(value))
    shape = graph.types[value].shape
    if op is None or op.form != Iota(0, 1) or graph.types[graph.base(value)].shape != (size,):
        return ""
    if shape[-1:] == (size,) and all(n == 1 for n in shape[:-1]):
        return "key"
    return "query" if shape[-2:] == (size, 1) and all(n == 1 for n in shape[:-2]) else ""
