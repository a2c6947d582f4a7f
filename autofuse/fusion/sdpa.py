"""Attention written by hand, recognised so that SDPA's kernels compete: bmm(softmax(f(bmm(q, kT))), v), where SDPA's
attn_mask can say what f does (sdpa_masks.py).

The softmax is found by its composite, the rest by forms. Declined: a soft cap or any other function of the scores that
is not linear, weights that are wanted too, products by mm (one head, no batch), dropout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from autofuse.fusion import sdpa_masks
from autofuse.fusion.algebra import strip, with_literals
from autofuse.fusion.sdpa_masks import LOWEST, Chain
from autofuse.ir.graph import Arg, AtenCall, Composite, Expr, Graph, Lit, Map, Op, Ref, Reshape, Strided

DTYPES = frozenset(LOWEST)


@dataclass
class _Match:
    """What has been taken so far, from the end. kept: values that the group must leave behind."""

    graph: Graph
    ops: Mapping[str, Op]
    kept: Collection[str]
    taken: dict[str, Op] = field(default_factory=dict)

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

    def shape(self, value: str) -> tuple[int, ...]:
        return self.graph.types[value].shape


def recognise(
    graph: Graph, ops: Mapping[str, Op], kept: Collection[str], last: Op
) -> tuple[tuple[Op, ...], AtenCall] | None:
    """(ops replaced, the call) where `last`, a bmm, ends an attention. ops: value -> op, of the group alone. The ops
    that make masks are not among those replaced; a causal mask leaves them without a reader."""
    if len(last.call.args) != 2 or not all(isinstance(argument, Ref) for argument in last.call.args):
        return None
    match = _Match(graph, ops, kept, {last.name: last})
    weights, value = (argument.name for argument in last.call.args if isinstance(argument, Ref))
    scores = _through_softmax(match, weights)
    if scores is None or graph.types[scores].numel == 0:
        return None
    heads = match.shape(scores)[:-2] or (1,)
    found = _through_scores(match, scores, Chain(), heads)
    if found is None:
        return None
    product, chain = found
    if any(op.name in match.taken for op in sdpa_masks.makers(ops, *chain.values)):
        return None
    query, key = (argument.name for argument in product.call.args if isinstance(argument, Ref))
    dtypes = {graph.types[name].dtype for name in (query, key, value, last.outputs[0])}
    if len(dtypes) != 1 or not dtypes <= DTYPES:
        return None
    queries, keys = match.shape(scores)[-2:]
    settled = sdpa_masks.settle(graph, ops, chain, heads, (queries, keys), *dtypes)
    if settled is None:
        return None
    terms, options = settled
    operands, transposed = _operands(match, query, key, value, heads)
    named = (*options, ("heads", heads), ("transposed", transposed), ("scale", chain.scale))
    call = AtenCall("autofuse.attention.default", (*map(Ref, operands), *terms), named)
    order = {op.name: i for i, op in enumerate(graph.ops)}
    return tuple(sorted(match.taken.values(), key=lambda op: order.get(op.name, 0))), call


# --- from the weights to the first product ---


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


def _through_scores(match: _Match, value: str, chain: Chain, heads: tuple[int, ...]) -> tuple[Op, Chain] | None:
    """(the product of queries and keys, what is done to it). Where a map may be read in several ways, as a sum of two
    may, each is tried."""
    op = match.take(value)
    if op is None:
        return None
    if op.call.target == "aten.bmm.default":
        return op, chain
    if _keeps_order(match.graph, op):
        return _through_scores(match, op.inputs[0], chain, heads)
    if not isinstance(op.form, Map):
        return None
    names = op.form.operands
    plain = chain == Chain()
    lowest = LOWEST.get(match.graph.types[value].dtype, float("-inf")) if plain else float("-inf")
    before = dict(match.taken)
    for index, done in sdpa_masks.readings(_expr(match.graph, op.form), names, lowest):
        inner, outer = match.shape(names[index]), match.shape(value)
        if (inner[-2:], prod(inner)) == (outer[-2:], prod(outer)) and all(
            _broadcasts(match, name, value, heads) for name in done.values
        ):
            found = _through_scores(match, names[index], chain.before(done), heads)
            if found is not None:
                return found
        match.taken = dict(before)
    return None


def _broadcasts(match: _Match, term: str, scores: str, heads: tuple[int, ...]) -> bool:
    """Does the term mean over [*heads, queries, keys] what it means over the scores that it meets?"""
    lead = match.shape(term)[:-2]
    return match.shape(scores)[:-2] == heads or prod(lead) in (1, prod(heads))


def _expr(graph: Graph, form: Map) -> Expr:
    """Its constants as literals: torch.where makes a tensor of its scalar."""
    makers = {i: graph.producer.get(name) for i, name in enumerate(form.operands)}
    found = {i: op.form.expr for i, op in makers.items() if op is not None and isinstance(op.form, Map)}
    return with_literals(strip(form.expr), {i: expr for i, expr in found.items() if isinstance(expr, Lit)})


# --- the operands ---


def _operands(
    match: _Match, query: str, key: str, value: str, heads: tuple[int, ...]
) -> tuple[tuple[str, str, str], bool]:
    """(queries, keys, values) from before they were made contiguous, and before keys and values were repeated where
    both were, as often; and whether the keys come transposed."""
    q, _, _ = _source(match, query, swaps=False, repeats=False)
    (k, transposed, times), (v, _, again) = (
        _source(match, key, swaps=True, repeats=True), _source(match, value, swaps=False, repeats=True)
    )  # fmt: skip
    if times != again or prod(heads[1:]) % times:
        (k, transposed, _), (v, _, _) = (
            _source(match, key, swaps=True, repeats=False), _source(match, value, swaps=False, repeats=False)
        )  # fmt: skip
    return (q, k, v), transposed


def _source(match: _Match, value: str, *, swaps: bool, repeats: bool) -> tuple[str, bool, int]:
    """(the furthest value of the same matrices, or of those that each came several times over; whether they are as
    given and not turned; how often each comes). swaps: turned ones will do."""
    as_given, times = True, 1
    rows, columns = match.shape(value)[-2:]
    while (op := match.ops.get(value)) is not None:
        if _keeps_order(match.graph, op) or _is_copy(match.graph, op):
            pass
        elif swaps and _is_turned(match.graph, op):
            as_given = not as_given
        elif repeats and times == 1 and (found := _repeats(match.graph, op, rows * columns)):
            times = found
        else:
            break
        value = op.inputs[0]
    return value, as_given, times


def _keeps_order(graph: Graph, op: Op) -> bool:
    """A view with the same elements in the same order and the same last two dimensions."""
    before, after = graph.types[op.inputs[0]].shape if op.inputs else (), graph.types[op.outputs[0]].shape
    if isinstance(op.form, Strided):
        return op.form.source == tuple(range(len(before))) and before == after and _is_whole(op.form)
    return isinstance(op.form, Reshape) and before[-2:] == after[-2:]


def _is_whole(view: Strided) -> bool:
    return not any(view.starts) and all(step == 1 for step in view.steps)


def _is_turned(graph: Graph, op: Op) -> bool:
    """The last two dimensions swapped."""
    rank = len(graph.types[op.outputs[0]].shape)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    return isinstance(op.form, Strided) and op.form.source == turned and _is_whole(op.form)


def _repeats(graph: Graph, op: Op, matrix: int) -> int:
    """How often an expansion repeats each matrix, of so many elements, before the next one comes; 0 for other ops."""
    if not isinstance(op.form, Strided) or any(op.form.starts):
        return 0
    before, after = graph.types[op.inputs[0]].shape, graph.types[op.outputs[0]].shape
    wider = [i for i, (n, m) in enumerate(zip(before, after, strict=False)) if n != m]
    if len(before) != len(after) or len(wider) != 1 or before[wider[0]] != 1:
        return 0
    (at,) = wider
    kept = all(op.form.source[i] == i and op.form.steps[i] == 1 for i in range(len(after)) if i != at)
    return after[at] if kept and prod(after[at + 1 :]) == matrix else 0


def _is_copy(graph: Graph, op: Op) -> bool:
    kinds = {graph.types[name].dtype for name in (*op.inputs, *op.outputs)}
    return isinstance(op.form, Map) and isinstance(op.form.expr, Arg) and len(op.inputs) == 1 and len(kinds) == 1 and (
        graph.types[op.inputs[0]].shape == graph.types[op.outputs[0]].shape
    )  # fmt: skip


def _is_conversion(op: Op) -> bool:
    return isinstance(op.form, Map) and isinstance(strip(op.form.expr), Arg)
