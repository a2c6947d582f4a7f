"""folded: a factor along the summed axes moves onto the frozen operand of a product, since
sum over k of (a_mk * s_k) * w_kn = sum over k of (a_mk * c) * (s_k / c * w_kn), with c the largest |s_k|.
Valid where s and w follow from frozen inputs alone and s varies along summed axes only. Then s_k / c * w_kn is computed
once, and c, which varies along nothing, leaves the product as a norm's row factor does (fusion.deferral): an operand
that was only scaled is multiplied as it was loaded, and a norm's product reads the norm's own input.

The folded weight keeps the weight's dtype: its elements are rounded once more, where eager rounds a * s. Divided by c,
no factor is above 1: the folded weight stays in the range of float16 where the weight does, and what falls below it is
small beside what c multiplies. Deferral says which a are valid: where it does not take c out, nothing is folded. An
infinite s gives NaN where eager has infinities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autofuse.fusion.algebra import strip
from autofuse.fusion.build import NotFusible, build
from autofuse.fusion.deferral import deferred
from autofuse.fusion.subgraph import extract
from autofuse.ir.graph import (
    Apply,
    Arg,
    Argument,
    AtenCall,
    Contract,
    Expr,
    Graph,
    Map,
    Op,
    Ref,
    Reshape,
    Strided,
    Symbol,
    TensorType,
    contiguous_strides,
)
from autofuse.ir.program import ContractNode, Load, MapNode, Program

FOLDED = "folded"
FLOATS = frozenset({"float16", "bfloat16", "float32"})
LEAST = 2.0**-126
"""Of c, so that factors that are all 0 stay 0: the least normal float32."""


@dataclass(frozen=True)
class Folding:
    """graph: the same outputs, with folded weights and their c among its inputs. ops: ATen calls that make these of
    settled values of the original graph. pairs: (folded weight, its c)."""

    graph: Graph
    ops: tuple[Op, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """What the folded graph wants computed ahead."""
        return tuple(value for pair in self.pairs for value in pair)

    def onto(self, graph: Graph) -> Graph:
        """A graph that has the original one's ops, with `ops` as well. Groups that share a product share these."""
        fresh = tuple(op for op in self.ops if op.name not in graph.by_name)
        types = graph.types | {value: self.graph.types[value] for value in self.values}
        return replace(graph, ops=(*graph.ops, *fresh), types=types)


def program_of(graph: Graph, ops: Sequence[str], outputs: Sequence[str]) -> Program:
    """The program of a group, with its folded form where it has one. Raises NotFusible."""
    program = build(graph, frozenset(ops), outputs)
    if not graph.settled:
        return program
    folding = fold(extract(graph, ops, outputs))
    if not folding.pairs:
        return program
    try:
        found = build(folding.graph, frozenset(op.name for op in folding.graph.ops if not op.is_view), outputs)
    except NotFusible:  # its axes, which the factor no longer cuts, do not fit together
        return program
    folded = deferred(found)
    return program if folded is None or _scaled(folded, folding) else replace(program, folded=folded)


def fold(graph: Graph) -> Folding:
    """Every factor that can move, moved. Without any, the graph as it is."""
    found = Folding(graph)
    while graph.settled and (further := _fold_one(found)) is not None:
        found = further
    return found


# --- one factor ---


@dataclass(frozen=True, slots=True)
class _Factor:
    """path: (op, the operand of it that comes next), from the product down to the op that multiplies by `value`, whose
    dimensions are the product's `axes`, None where it does not vary."""

    path: tuple[tuple[Op, str], ...]
    value: str
    axes: tuple[str | None, ...]


def _fold_one(folding: Folding) -> Folding | None:
    graph = folding.graph
    for op in graph.ops:
        if not isinstance(op.form, Contract):
            continue
        form = op.form
        summed = {letter for letter in form.left_dims if letter not in form.out_dims}
        for scaled, letters, weight, weight_letters in (
            (form.left, form.left_dims, form.right, form.right_dims),
            (form.right, form.right_dims, form.left, form.left_dims),
        ):
            if weight not in graph.settled or scaled in graph.settled or not _may_fold(graph, weight):
                continue
            axes = tuple(letter if letter in summed else None for letter in letters)
            for factor in _factors(graph, scaled, axes):
                return _moved(folding, op, scaled, weight, weight_letters, factor)
    return None


def _may_fold(graph: Graph, weight: str) -> bool:
    """Not a weight that is broadcast: folded it would take more memory."""
    kind = graph.types[weight]
    return kind.dtype in FLOATS and kind.numel <= _reach(graph.types[graph.base(weight)])


def _reach(kind: TensorType) -> int:
    """Elements of memory from the first to the last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(kind.shape, kind.strides, strict=True))


def _factors(graph: Graph, value: str, axes: tuple[str | None, ...]) -> Iterator[_Factor]:
    """Frozen factors of a value whose dimensions are these axes; None is a dimension that they may not vary along."""
    op = graph.producer.get(value)
    if op is None or graph.types[value].dtype not in FLOATS:
        return
    below: list[tuple[str, tuple[str | None, ...]]] = []
    match op.form:
        case Reshape(operand):
            below.append((operand, _reshaped(graph.types[value].shape, graph.types[operand].shape, axes)))
        case Strided(operand):
            below.append((operand, _strided(op.form, graph.types[value].shape, graph.types[operand].shape, axes)))
        case Map(operands, expr):
            for operand in (operands[i] for i in _multiplied(expr)):
                rank = len(graph.types[operand].shape)
                below.append((operand, axes[len(axes) - rank :]))
        case _:
            return
    for operand, along in below:
        shape = graph.types[operand].shape
        varies = [axis for axis, size in zip(along, shape, strict=True) if size > 1]
        if operand in graph.settled and varies and None not in varies and graph.types[operand].dtype in FLOATS:
            one = tuple(axis if size > 1 else None for axis, size in zip(along, shape, strict=True))
            yield _Factor(((op, operand),), operand, one)
    for operand, along in below:
        for found in _factors(graph, operand, along) if operand not in graph.settled else ():
            yield replace(found, path=((op, operand), *found.path))


def _multiplied(expr: Expr) -> tuple[int, ...]:
    """Operands that the expression is linear in, as a product of them over whatever else."""
    match strip(expr):
        case Arg(index):
            return (index,)
        case Apply("mul", (a, b)):
            found = (*_multiplied(a), *_multiplied(b))
            return tuple(i for i in found if found.count(i) == 1)
        case Apply("div", (a, _)):
            return _multiplied(a)
        case _:
            return ()


def _reshaped(shape: tuple[int, ...], below: tuple[int, ...], axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Axes of the operand of a reshape: those of dimensions that come through whole."""
    outer = {(size, stride): axis for size, stride, axis in zip(shape, contiguous_strides(shape), axes, strict=True)}
    return tuple(outer.get(dim) for dim in zip(below, contiguous_strides(below), strict=True))


def _strided(
    form: Strided, shape: tuple[int, ...], below: tuple[int, ...], axes: tuple[str | None, ...]
) -> tuple[str | None, ...]:
    found: list[str | None] = []
    for dim, size in enumerate(below):
        sources = [i for i, source in enumerate(form.source) if source == dim]
        whole = len(sources) == 1 and shape[sources[0]] == size
        same = whole and form.starts[dim] == 0 and form.steps[sources[0]] == 1
        found.append(axes[sources[0]] if same else None)
    return tuple(found)


# --- moving it ---


def _moved(folding: Folding, contract: Op, scaled: str, weight: str, letters: str, factor: _Factor) -> Folding:
    graph = folding.graph
    stem = f"{contract.name}__{factor.path[-1][0].name}"
    least, folded = f"{stem}_scale", f"{stem}_weight"
    view, stored, kind = _operand(graph.types[weight], folded, f"{stem}_operand")
    names, copies = {factor.value: least}, [view]
    types = graph.types | {least: TensorType((), "float32", ()), folded: stored, view.name: kind}
    for op, operand in reversed(factor.path):
        # The last op that is copied reads c, the others the copy before them; what else reads the originals keeps them.
        value = op.outputs[0]
        copy = f"{value}__{stem}"
        copies.append(_reading(op, {operand: names[operand]}, copy))
        types[copy] = graph.types[value]
        names[value] = copy
    product = _reading(contract, {scaled: names[scaled], weight: view.name}, contract.outputs[0])
    product = replace(product, name=contract.name)
    at = graph.ops.index(contract)
    changed = replace(
        graph, inputs=(*graph.inputs, folded, least), ops=(*graph.ops[:at], *copies, product, *graph.ops[at + 1 :]),
        types=types, frozen=graph.frozen | {folded, least}, composites=(),
    )  # fmt: skip
    ops = (*_calls(graph, stem, weight, letters, factor), replace(view, form=None))  # a further factor begins there
    return Folding(changed, (*folding.ops, *ops), (*folding.pairs, (folded, least)))


def _calls(graph: Graph, stem: str, weight: str, letters: str, factor: _Factor) -> tuple[Op, ...]:
    """c and the folded weight, both computed in float32."""
    sizes = {axis: size for axis, size in zip(factor.axes, graph.types[factor.value].shape, strict=True) if axis}
    order = [letter for letter in letters if letter in sizes]
    turn = tuple(list(sizes).index(letter) for letter in order)
    wide, share = f"{stem}_wide", f"{stem}_share"
    float32, stored = Symbol("dtype", "float32"), Symbol("dtype", graph.types[weight].dtype)
    calls: tuple[tuple[str, str, tuple[Argument, ...], Symbol | None], ...] = (
        (wide, "aten._to_copy.default", (Ref(factor.value),), float32),
        (f"{stem}_abs", "aten.abs.default", (Ref(wide),), None),
        (f"{stem}_most", "aten.amax.default", (Ref(f"{stem}_abs"),), None),
        (f"{stem}_scale", "aten.clamp_min.default", (Ref(f"{stem}_most"), LEAST), None),
        (share, "aten.div.Tensor", (Ref(wide), Ref(f"{stem}_scale")), None),
        (f"{stem}_axes", "aten.reshape.default", (Ref(share), tuple(sizes.values())), None),
        (f"{stem}_turned", "aten.permute.default", (Ref(f"{stem}_axes"), turn), None),
        (f"{stem}_along", "aten.reshape.default",
         (Ref(f"{stem}_turned"), tuple(sizes.get(letter, 1) for letter in letters)), None),
        (f"{stem}_product", "aten.mul.Tensor", (Ref(weight), Ref(f"{stem}_along")), None),
        (f"{stem}_stored", "aten._to_copy.default", (Ref(f"{stem}_product"),), stored),
        (f"{stem}_weight", "aten.permute.default", (Ref(f"{stem}_stored"), _in_memory(graph.types[weight])), None),
    )  # fmt: skip
    return tuple(
        Op(name, AtenCall(target, args, (("dtype", dtype),) if dtype else ()), None, (name,))
        for name, target, args, dtype in calls
    )


def _in_memory(kind: TensorType) -> tuple[int, ...]:
    """Dimensions, the one with the largest stride first."""
    return tuple(sorted(range(len(kind.shape)), key=lambda dim: -kind.strides[dim]))


def _operand(weight: TensorType, folded: str, name: str) -> tuple[Op, TensorType, TensorType]:
    """(the folded weight seen as the weight was, its own type, the view's): contiguous in the weight's order of memory,
    for a descriptor loads nothing else."""
    order = _in_memory(weight)
    back = tuple(order.index(dim) for dim in range(len(order)))
    shape = tuple(weight.shape[dim] for dim in order)
    form = Strided(folded, back, (0,) * len(order), (1,) * len(order))
    op = Op(name, AtenCall("aten.permute.default", (Ref(folded), back)), form, (name,))
    strides = contiguous_strides(shape)
    seen = replace(weight, strides=tuple(strides[dim] for dim in back))
    return op, TensorType(shape, weight.dtype, strides), seen


def _reading(op: Op, names: Mapping[str, str], result: str) -> Op:
    """The op with operands exchanged, under the name of its result."""

    def argument(found: Argument) -> Argument:
        match found:
            case Ref(name):
                return Ref(names.get(name, name))
            case tuple():
                return tuple(argument(item) for item in found)
            case _:
                return found

    call = AtenCall(op.call.target, tuple(argument(a) for a in op.call.args),
                    tuple((name, argument(a)) for name, a in op.call.kwargs))  # fmt: skip
    match op.form:
        case Map() as form:
            changed = replace(form, operands=tuple(names.get(v, v) for v in form.operands))
        case Contract() as form:
            changed = replace(form, left=names.get(form.left, form.left), right=names.get(form.right, form.right))
        case Reshape() | Strided() as form:
            changed = replace(form, operand=names.get(form.operand, form.operand))
        case form:
            changed = form
    return replace(op, name=result, call=call, form=changed, outputs=(result,))


def _scaled(program: Program, folding: Folding) -> bool:
    """Has a product with a folded weight an operand that is still multiplied by its c?"""
    scales = dict(folding.pairs)
    for node in program.nodes:
        if isinstance(node, ContractNode):
            loads = [_loads(program, side) for side in (node.left, node.right)]
            both = loads[0] | loads[1]
            if any(weight in both and scale in both for weight, scale in scales.items()):
                return True
    return False


def _loads(program: Program, root: int) -> set[str]:
    """Values that a node reads through maps."""
    found: set[str] = set()
    stack = [root]
    while stack:
        node = program.nodes[stack.pop()]
        if isinstance(node, Load):
            found.add(node.value)
        elif isinstance(node, MapNode):
            stack += node.operands
    return found
