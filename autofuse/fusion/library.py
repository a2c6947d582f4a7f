"""Library implementations of a group: its ops' own ATen calls, and single calls that do the work of several of them.

A single call is offered only where it computes the same thing at the same shapes and dtypes. Each such peephole is a
`Peephole`: the ATen op that ends the pattern, and a function from that op (with all ops of the call) to its substitute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.fusion.group import Group
from autofuse.fusion.subgraph import extract
from autofuse.ir.graph import Argument, AtenCall, Graph, Map, Op, Ref, Scalar

MATMUL_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """ops: run in order by capture.aten, views between them included. Ops that the graph lacks were made here; they
    produce values of the graph. A name is unique among the calls of a group."""

    name: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a peephole may look at. private: values made and read inside the call only, by one op, once."""

    graph: Graph
    ops: Mapping[str, Op]
    private: frozenset[str]

    def maker(self, argument: Argument) -> Op | None:
        """The op of the call that makes a private value."""
        return self.ops.get(argument.name) if isinstance(argument, Ref) and argument.name in self.private else None


@dataclass(frozen=True, slots=True)
class _Substitute:
    """`call` instead of `replaced`, whose last op it stands in for."""

    replaced: tuple[Op, ...]
    call: AtenCall


@dataclass(frozen=True, slots=True)
class Peephole:
    name: str
    last: str
    """Target of the op that ends the pattern."""
    match: Callable[[_Scope, Op], _Substitute | None]


def implementations(graph: Graph, group: Group) -> tuple[LibraryCall, ...]:
    """The ops one by one first, then with each peephole that applies."""
    ops = extract(graph, group.ops, group.outputs).ops
    own = [op for op in ops if not op.is_view]
    plain = LibraryCall(own[0].call.target if len(own) == 1 else "aten", ops)
    return (plain, *fused_calls(graph, group, ops))


def fused_calls(graph: Graph, group: Group, ops: Sequence[Op] | None = None) -> tuple[LibraryCall, ...]:
    """The library calls of a group in which one call does the work of several ops."""
    ops = ops if ops is not None else extract(graph, group.ops, group.outputs).ops
    if len(ops) < 2:
        return ()
    found: list[LibraryCall] = []
    for peephole in PEEPHOLES:
        changed = _apply(graph, group, tuple(ops), peephole)
        if changed is not None:
            found.append(LibraryCall(peephole.name, changed))
    return tuple(found)


def library_call(graph: Graph, group: Group, name: str) -> LibraryCall:
    """The call of that name, as a plan stores it. Raises KeyError."""
    return {call.name: call for call in implementations(graph, group)}[name]


def with_ops(graph: Graph, ops: Sequence[Op]) -> Graph:
    """The graph with the ops of a library call that it lacks.

    Each comes right before the op that it stands in for, so that a run of the whole graph, as a reference, ends with
    the values of the graph's own ops.
    """
    fresh: dict[str, list[Op]] = {}
    for op in ops:
        if op.name not in graph.by_name:
            fresh.setdefault(graph.producer[op.outputs[0]].name, []).append(op)
    if not fresh:
        return graph
    placed = tuple(one for op in graph.ops for one in (*fresh.get(op.name, ()), op))
    return Graph(graph.inputs, placed, graph.outputs, graph.types)


def _apply(graph: Graph, group: Group, ops: tuple[Op, ...], peephole: Peephole) -> tuple[Op, ...] | None:
    scope = _Scope(graph, {value: op for op in ops for value in op.outputs}, _private(group, ops))
    gone: set[str] = set()
    instead: dict[str, Op] = {}
    for op in ops:
        found = peephole.match(scope, op) if op.call.target == peephole.last else None
        if found is None or gone.intersection(one.name for one in found.replaced):
            continue
        gone.update(one.name for one in found.replaced)
        name = f"{op.name}__{peephole.name.rpartition('.')[2]}"
        instead[op.name] = Op(name, found.call, None, op.outputs, op.origin)
    if not instead:
        return None
    return tuple(instead.get(op.name, op) for op in ops if op.name in instead or op.name not in gone)


def _private(group: Group, ops: tuple[Op, ...]) -> frozenset[str]:
    readers: dict[str, int] = {}
    for op in ops:
        for value in op.inputs:
            readers[value] = readers.get(value, 0) + 1
    made = {value for op in ops for value in op.outputs}
    return frozenset(v for v in made if readers.get(v) == 1 and v not in group.outputs)


# --- patterns ---


def _added(scope: _Scope, op: Op, target: str) -> tuple[Op, Argument, Scalar, Scalar] | None:
    """op = alpha * (a matmul by `target`) + beta * other: (the matmul, other, beta, alpha)."""
    if not isinstance(op.form, Map) or op.call.target != "aten.add.Tensor" or len(op.call.args) != 2:
        return None
    options = dict(op.call.kwargs)
    factor = options.pop("alpha", 1)
    if options or not isinstance(factor, int | float):
        return None
    first, second = op.call.args
    if first == second:
        return None
    for matmul, other, beta, alpha in ((first, second, factor, 1), (second, first, 1, factor)):
        maker = scope.maker(matmul)
        if maker is not None and maker.call.target == target and _same_contract(scope.graph, maker, op, other):
            return maker, other, beta, alpha
    return None


def _same_contract(graph: Graph, matmul: Op, add: Op, other: Argument) -> bool:
    """One dtype all through (the call rounds once, to it), and an addend that the library reads as it is."""
    if not isinstance(other, Ref) or len(matmul.call.args) != 2 or matmul.call.kwargs:
        return False
    out = graph.types[add.outputs[0]]
    values = (*matmul.inputs, *matmul.outputs, other.name)
    if out.dtype not in MATMUL_DTYPES or any(graph.types[value].dtype != out.dtype for value in values):
        return False
    shape = graph.types[other.name].shape
    whole = graph.types[matmul.outputs[0]].shape == out.shape
    return whole and out.numel > 0 and shape in (out.shape, out.shape[-1:])


def _biased(scope: _Scope, op: Op, matmul: str, target: str) -> _Substitute | None:
    found = _added(scope, op, matmul)
    if found is None:
        return None
    maker, other, beta, alpha = found
    factors: tuple[tuple[str, Argument], ...] = tuple(
        (name, value) for name, value in (("beta", beta), ("alpha", alpha)) if value != 1
    )
    return _Substitute((maker, op), AtenCall(target, (other, *maker.call.args), factors))


def _addmm(scope: _Scope, op: Op) -> _Substitute | None:
    return _biased(scope, op, "aten.mm.default", "aten.addmm.default")


def _baddbmm(scope: _Scope, op: Op) -> _Substitute | None:
    return _biased(scope, op, "aten.bmm.default", "aten.baddbmm.default")


def _relu(scope: _Scope, op: Op) -> _Substitute | None:
    """cuBLASLt's epilogue of a bias along columns and ReLU.

    Its GELU is left out: the same call is the exact GELU on a CPU and the tanh form on a GPU.
    """
    add = scope.maker(op.call.args[0]) if len(op.call.args) == 1 and not op.call.kwargs else None
    if add is None or scope.graph.types[op.outputs[0]] != scope.graph.types[add.outputs[0]]:
        return None
    found = _addmm(scope, add)
    if found is None or found.call.kwargs:
        return None
    bias = found.call.args[0]
    if not isinstance(bias, Ref) or len(scope.graph.types[bias.name].shape) != 1:
        return None
    return _Substitute((*found.replaced, op), AtenCall("aten._addmm_activation.default", found.call.args))


PEEPHOLES: tuple[Peephole, ...] = (
    Peephole("aten.addmm", "aten.add.Tensor", _addmm),
    Peephole("aten.baddbmm", "aten.add.Tensor", _baddbmm),
    Peephole("aten.addmm_relu", "aten.relu.default", _relu),
)
