"""Library implementations of a group: its ops' own ATen calls, and single calls that do the work of several of them.

A single call is offered only where it computes the same thing at the same shapes and dtypes. There are two sources: the
composites that capture took apart (`Graph.composites`), put back where a group holds all of one; and peepholes, each a
`Peephole`: the ATen op that ends the pattern, and a function from that op (with all ops of the call) to its substitute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autofuse.fusion import sdpa
from autofuse.fusion.cover import live_ops
from autofuse.fusion.group import Group, peak_of_steps, reads, required
from autofuse.fusion.subgraph import extract
from autofuse.ir.graph import Argument, AtenCall, Composite, Graph, Map, Op, Ref, Reshape, Scalar

EAGER = "eager"
"""Name of a call with several composites in place: every op by the call that eager makes for it."""
MATMUL_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """ops: run in order by capture.aten, views between them included. Ops that the graph lacks were made here; they
    produce values of the graph. A name is unique among the calls of a group."""

    name: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a peephole may look at. private: values made and read inside the call only, by one op, once. kept: those
    that the group leaves behind."""

    graph: Graph
    ops: Mapping[str, Op]
    private: frozenset[str]
    kept: frozenset[str]

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
    """The ops one by one first, then with each peephole that applies, then with the composites in place."""
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
    packets, changed = _with_composites(graph, group, tuple(ops))
    if packets and not any(_same(changed, call.ops) for call in found):
        taken = len(packets) > 1 or any(call.name == packets[0] for call in found)
        found.append(LibraryCall(EAGER if taken else packets[0], changed))
    return tuple(found)


def peak_bytes(graph: Graph, group: Group, call: LibraryCall) -> int:
    """The most that values between its ops take at any time, beside what it leaves for other groups."""
    whole = with_ops(graph, call.ops)
    steps = [(reads(whole, op), set(op.outputs) - set(group.outputs)) for op in call.ops if not op.is_view]
    return peak_of_steps(whole, steps)


def whole_group(graph: Graph) -> Group:
    """Every op that the outputs need. Without ops where all outputs are, or look at, inputs."""
    needed = required(graph)
    outputs = tuple(value for op in graph.ops for value in op.outputs if value in needed)
    return Group(tuple(live_ops(graph)), outputs)


def eager_call(graph: Graph, group: Group) -> LibraryCall:
    """The implementation that makes eager's own calls: composites in place, other ops one by one."""
    calls = implementations(graph, group)
    _, ops = _with_composites(graph, group, calls[0].ops)
    return next(call for call in calls if _same(call.ops, ops))


def library_call(graph: Graph, group: Group, name: str) -> LibraryCall:
    """The call of that name, as a plan stores it. Raises KeyError."""
    return {call.name: call for call in implementations(graph, group)}[name]


def with_ops(graph: Graph, ops: Sequence[Op]) -> Graph:
    """The graph with the ops of a library call that it lacks.

    Each comes before the first op that it stands in for, so that a run of the whole graph, as a reference, ends with
    the values of the graph's own ops; and before those of the call that read its values.
    """
    position = {value: i for i, op in enumerate(graph.ops) for value in op.outputs}
    needed: dict[str, int] = {}
    fresh: dict[int, list[Op]] = {}
    for op in reversed(ops):
        if op.name in graph.by_name:
            continue
        known = [place[value] for value in op.outputs for place in (position, needed) if value in place]
        at = min(known, default=len(graph.ops))
        for value in op.inputs:
            needed[value] = min(at, needed.get(value, at))
        fresh.setdefault(at, []).insert(0, op)
    if not fresh:
        return graph
    placed = tuple(one for i, op in enumerate(graph.ops) for one in (*fresh.get(i, ()), op))
    return replace(graph, ops=(*placed, *fresh.get(len(graph.ops), ())), composites=())


def _apply(graph: Graph, group: Group, ops: tuple[Op, ...], peephole: Peephole) -> tuple[Op, ...] | None:
    made = {value: op for op in ops for value in op.outputs}
    scope = _Scope(graph, made, _private(group, ops), frozenset(group.outputs))
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
    return _needed((instead.get(op.name, op) for op in ops if op.name in instead or op.name not in gone), group.outputs)


def _needed(ops: Iterable[Op], outputs: Collection[str]) -> tuple[Op, ...]:
    """Those that the outputs come from."""
    wanted = set(outputs)
    found: list[Op] = []
    for op in reversed(tuple(ops)):
        if wanted.intersection(op.outputs):
            found.append(op)
            wanted.update(op.inputs)
    return tuple(reversed(found))


def _private(group: Group, ops: tuple[Op, ...]) -> frozenset[str]:
    readers: dict[str, int] = {}
    for op in ops:
        for value in op.inputs:
            readers[value] = readers.get(value, 0) + 1
    made = {value for op in ops for value in op.outputs}
    return frozenset(v for v in made if readers.get(v) == 1 and v not in group.outputs)


# --- composites ---


def _with_composites(graph: Graph, group: Group, ops: tuple[Op, ...]) -> tuple[list[str], tuple[Op, ...]]:
    """Packets of the composites that could be put in place, and the ops with them."""
    packets: list[str] = []
    for composite in graph.composites:
        changed = _put_back(graph, group, ops, composite)
        if changed is not None:
            packets.append(composite.op.call.target.rpartition(".")[0])
            ops = changed
    return packets, ops


def _put_back(graph: Graph, group: Group, ops: tuple[Op, ...], composite: Composite) -> tuple[Op, ...] | None:
    """None where the group lacks one of the composite's ops or an argument of the call, or needs a value that the call
    does not give."""
    parts = set(composite.ops)
    inside = [op for op in ops if op.name in parts]
    if not {name for name in parts if not graph.by_name[name].is_view} <= {op.name for op in inside}:
        return None
    rest = [op for op in ops if op.name not in parts]
    there = {value for op in rest for value in op.outputs} | {value for op in ops for value in op.inputs}
    there -= {value for op in inside for value in op.outputs}
    if not there.issuperset(composite.op.inputs):
        return None
    wanted = {value for op in rest for value in op.inputs} | set(group.outputs)
    results: list[Op] = []
    for value in (value for op in inside for value in op.outputs if value in wanted):
        if value not in composite.op.outputs:
            source = next((v for v in composite.op.outputs if value in _reshapes(graph, v)), None)
            if source is None:
                return None
            call = AtenCall("aten.reshape.default", (Ref(source), graph.types[value].shape))
            results.append(Op(f"{value}__reshaped", call, Reshape(source), (value,), composite.op.origin))
    start = ops.index(inside[0])  # what the call reads was made before any part of it
    return (*ops[:start], composite.op, *results, *(op for op in ops[start:] if op.name not in parts))


def _reshapes(graph: Graph, value: str) -> list[str]:
    """The values that `value` is the same elements of, in the same order."""
    found: list[str] = []
    op = graph.producer.get(value)
    while op is not None and isinstance(op.form, Reshape):
        found.append(op.inputs[0])
        op = graph.producer.get(op.inputs[0])
    return found


def _same(first: Sequence[Op], second: Sequence[Op]) -> bool:
    return [(op.call, op.outputs) for op in first] == [(op.call, op.outputs) for op in second]


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


def _attention(scope: _Scope, op: Op) -> _Substitute | None:
    found = sdpa.recognise(scope.graph, scope.ops, scope.kept, op)
    return _Substitute(*found) if found is not None else None


PEEPHOLES: tuple[Peephole, ...] = (
    Peephole("autofuse.attention", "aten.bmm.default", _attention),
    Peephole("aten.addmm", "aten.add.Tensor", _addmm),
    Peephole("aten.baddbmm", "aten.add.Tensor", _baddbmm),
    Peephole("aten.addmm_relu", "aten.relu.default", _relu),
)
