"""What stands between the two products of an attention, as SDPA's attn_mask can say it: scale * score + bias, and
where(test, score, -inf). Which form that takes is settled here; capture/attention.py makes the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from autofuse.fusion.algebra import strip
from autofuse.ir.graph import Apply, Arg, Argument, Expr, Graph, Iota, Lit, Map, Op, Ref, Reshape, Scalar

LARGEST = 1 << 25
"""Elements of a mask that is still looked at: 0.5 s on two cores for the masks of a window, once a process."""
LOWEST = {"float16": -65504.0, "bfloat16": -(2.0**128 - 2.0**120), "float32": -(2.0**128 - 2.0**104)}
WIDER = {"float16": {"float16"}, "bfloat16": {"bfloat16"}, "float32": {"float16", "bfloat16", "float32"}}
"""Dtype of the queries -> dtypes of a bias that it holds exactly."""
LOWER = {"gt": False, "le": True}
"""Of key > query: whether a lower triangle of keys is where the test holds."""
FLIPPED = {"lt": "gt", "ge": "le"}
"""Of query < key, the same test of key and query."""


@dataclass(frozen=True, slots=True)
class Bias:
    """Added to the scores, `factor` times."""

    value: str
    factor: float


@dataclass(frozen=True, slots=True)
class Test:
    """A bool value. seen: whether it holds where a score stays; elsewhere the score becomes `low`."""

    value: str
    seen: bool
    low: float


@dataclass(frozen=True, slots=True)
class Chain:
    """From the softmax's operand up to some scores: scale * score + biases, where the tests leave it."""

    scale: float = 1.0
    biases: tuple[Bias, ...] = ()
    tests: tuple[Test, ...] = ()

    def before(self, inner: Chain) -> Chain:
        """This one of what `inner` makes."""
        biases = tuple(Bias(bias.value, self.scale * bias.factor) for bias in inner.biases)
        return Chain(self.scale * inner.scale, (*self.biases, *biases), (*self.tests, *inner.tests))

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(term.value for term in (*self.biases, *self.tests))


def readings(expr: Expr, names: tuple[str, ...], lowest: float) -> Iterator[tuple[int, Chain]]:
    """Every way to read the expression of a map as a chain of one of its operands: (index of it, chain).

    A test may put -inf in place of a score, or the lowest number of its dtype: that is the same but in rows that
    nothing else is left of. No other number is: a score may be less.
    """
    match strip(expr):
        case Arg(index):
            yield index, Chain()
        case Apply("mul" | "div" as fn, (inner, Lit(factor))) if _positive(factor):
            outer = Chain(factor if fn == "mul" else 1 / factor)
            yield from ((index, outer.before(chain)) for index, chain in readings(inner, names, lowest))
        case Apply("mul", (Lit(factor), inner)) if _positive(factor):
            yield from readings(Apply("mul", (inner, Lit(factor))), names, lowest)
        case Apply("add" | "sub" as fn, (left, right)):
            sides = ((left, right), (right, left)) if fn == "add" else ((left, right),)
            for inner, added in sides:
                bias = _bias(strip(added), names, -1.0 if fn == "sub" else 1.0)
                if bias is not None:
                    outer = Chain(biases=(bias,))
                    yield from ((index, outer.before(chain)) for index, chain in readings(inner, names, lowest))
        case Apply("where", (Arg(test), Lit(low), inner)) if low <= lowest:
            outer = Chain(tests=(Test(names[test], False, float(low)),))
            yield from ((index, outer.before(chain)) for index, chain in readings(inner, names, lowest))
        case Apply("where", (Arg(test), inner, Lit(low))) if low <= lowest:
            outer = Chain(tests=(Test(names[test], True, float(low)),))
            yield from ((index, outer.before(chain)) for index, chain in readings(inner, names, lowest))
        case _:
            return


def _bias(expr: Expr, names: tuple[str, ...], factor: float) -> Bias | None:
    match expr:
        case Arg(index):
            return Bias(names[index], factor)
        case Apply("mul", (Arg(index), Lit(times)) | (Lit(times), Arg(index))):
            return Bias(names[index], factor * times)
        case Apply("div", (Arg(index), Lit(divisor))) if divisor:
            return Bias(names[index], factor / divisor)
        case _:
            return None


def _positive(factor: Scalar) -> bool:
    return not isinstance(factor, bool) and 0 < factor < math.inf


# --- what SDPA is given ---

Options = tuple[tuple[str, Argument], ...]
Terms = tuple[tuple[Ref, ...], tuple[Ref, ...], tuple[Ref, ...]]


def settle(
    graph: Graph, ops: Mapping[str, Op], chain: Chain, heads: tuple[int, ...], area: tuple[int, int], dtype: str
) -> tuple[Terms, Options] | None:
    """((biases, tests of the hidden, tests of the seen), options) of the operator; None for another function.

    ops: value -> op, of the group alone. area: (queries, keys). dtype: of the queries.

    A mask that is made of positions alone is evaluated, so that it is known to be causal, or to leave no row hidden;
    without either the operator sees to hidden rows itself. The lowest number in place of -inf needs the proof: of a
    hidden row it makes the mean of all values.

    A bias goes to SDPA in the queries' dtype, and is declined where that does not hold it exactly: a float32 one beside
    float16 or bfloat16 queries, as ALiBi makes it, one times a factor that is no power of two, a sum of two. It may
    hold differences that rounding loses and numbers beyond the range, whatever the draws of verification hold.
    """
    if any(not _holds(graph, bias, dtype) for bias in chain.biases) or (len(chain.biases) > 1 and dtype != "float32"):
        return None
    if any(graph.types[test.value].dtype != "bool" for test in chain.tests):
        return None
    if not chain.values:
        return ((), (), ()), ()
    biases = tuple(Ref(bias.value) for bias in chain.biases)
    hidden = tuple(Ref(test.value) for test in chain.tests if not test.seen)
    seen = tuple(Ref(test.value) for test in chain.tests if test.seen)
    factors = tuple(bias.factor for bias in chain.biases)
    found = (
        "causal"
        if _is_causal(graph, ops, chain, area)
        else _look(graph, ops, (biases, hidden, seen), factors, heads, area)
    )
    if found == "causal" and area[0] == area[1]:
        return ((), (), ()), (("is_causal", True),)
    all_seen = found in ("causal", "seen")
    finite = any(test.low > -math.inf for test in chain.tests)
    if finite and (chain.biases or not all_seen):  # a bias may leave the others lower still
        return None
    return (biases, hidden, seen), (("factors", factors), ("all_seen", all_seen))


def _holds(graph: Graph, bias: Bias, dtype: str) -> bool:
    exact = dtype == "float32" or (math.frexp(abs(bias.factor))[0] == 0.5 and abs(bias.factor) <= 1)
    return exact and graph.types[bias.value].dtype in WIDER[dtype]


def makers(ops: Mapping[str, Op], *values: str) -> tuple[Op, ...]:
    """The group's ops behind values, in order of `ops`."""
    found: set[str] = set()
    stack = list(values)
    while stack:
        op = ops.get(stack.pop())
        if op is not None and op.name not in found:
            found.add(op.name)
            stack += op.inputs
    return tuple({op.name: op for op in ops.values() if op.name in found}.values())


# --- masks made of positions ---


def _look(
    graph: Graph,
    ops: Mapping[str, Op],
    terms: Terms,
    factors: tuple[float, ...],
    heads: tuple[int, ...],
    area: tuple[int, int],
) -> str:
    """ "causal", "seen" (no row is hidden), "hides" (some are), or "" where that depends on inputs or is too much."""
    values = [ref.name for part in terms for ref in part]
    made = makers(ops, *values)
    inside = {value for op in made for value in op.outputs}
    known = inside.issuperset(values) and all(op.form is not None and inside.issuperset(op.inputs) for op in made)
    whole = (max(sizes) for sizes in zip_longest(*(graph.types[v].shape[::-1] for v in values), fillvalue=1))
    if not known or math.prod(whole) > LARGEST or any(graph.types[value].numel > LARGEST for value in inside):
        return ""
    return _evaluate(made, terms, factors, heads, area)


@lru_cache(maxsize=64)
def _evaluate(
    ops: tuple[Op, ...], terms: Terms, factors: tuple[float, ...], heads: tuple[int, ...], area: tuple[int, int]
) -> str:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    from autofuse.capture.aten import run
    from autofuse.capture.attention import best_of, hidden_rows, mask_of

    with unset_fake_temporarily():
        env = run(ops, {}, device="cpu")
        biases, hidden, seen = ([env[ref.name] for ref in part] for part in terms)
        mask = mask_of(biases, hidden, seen, factors, heads, torch.float32)
        if mask is None or bool(hidden_rows(best_of(mask)).any()):
            return "hides"
        triangle = torch.ones(area, dtype=torch.bool).tril()
        causal = mask.dtype == torch.bool and bool((mask == triangle).all())
        return "causal" if causal else "seen"


def _is_causal(graph: Graph, ops: Mapping[str, Op], chain: Chain, area: tuple[int, int]) -> bool:
    """Is the only term a comparison of positions that leaves key <= query, of as many keys as queries? Found by form,
    for masks of any size."""
    if chain.biases or len(chain.tests) != 1 or area[0] != area[1]:
        return False
    (test,) = chain.tests
    op = ops.get(_whole(ops, test.value))
    if op is None or not isinstance(op.form, Map) or graph.types[op.outputs[0]].shape[-2:] != area:
        return False
    match op.form.expr:
        case Apply(fn, (Arg(a), Arg(b))):
            sides = tuple(_position(graph, ops, op.form.operands[i], area[0]) for i in (a, b))
        case _:
            return False
    if sides == ("query", "key"):
        fn = FLIPPED.get(fn, "")
    elif sides != ("key", "query"):
        return False
    return LOWER.get(fn) is test.seen


def _position(graph: Graph, ops: Mapping[str, Op], value: str, size: int) -> str:
    """Whether a value counts the queries (down) or the keys (across) from 0."""
    op = ops.get(_whole(ops, value))
    shape = graph.types[value].shape
    if op is None or op.form != Iota(0, 1) or graph.types[op.outputs[0]].shape != (size,):
        return ""
    if shape[-1:] == (size,) and all(n == 1 for n in shape[:-1]):
        return "key"
    return "query" if shape[-2:] == (size, 1) and all(n == 1 for n in shape[:-2]) else ""


def _whole(ops: Mapping[str, Op], value: str) -> str:
    """What a value is the same elements of, in the same order."""
    while (op := ops.get(value)) is not None and isinstance(op.form, Reshape):
        value = op.inputs[0]
    return value
