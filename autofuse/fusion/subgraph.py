"""A group as a graph of its own: what is verified, timed and run for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autofuse.ir.graph import Graph, Map, Op, Take


def extract(graph: Graph, ops: Sequence[str], outputs: Sequence[str]) -> Graph:
    """The graph that computes `outputs` with the ops named and the views that they read through, in graph order.

    Its inputs are materialised values, in order of first use; those that follow from frozen inputs alone are frozen. It
    knows no composites.
    """
    wanted = set(ops)
    kept: dict[str, Op] = {}
    inputs: dict[str, None] = {}

    def visit(value: str) -> None:
        op = graph.producer.get(value)
        if op is None or not (op.is_view or op.name in wanted):
            inputs[value] = None
            return
        if op.name in kept:
            return
        for name in op.inputs:
            visit(name)
        kept[op.name] = op

    for value in outputs:
        visit(value)
    inner = tuple(op for op in graph.ops if op.name in kept)
    names = [*inputs, *(value for op in inner for value in op.outputs)]
    types = {name: graph.types[name] for name in names}
    return Graph(tuple(inputs), inner, tuple(outputs), types, frozen=graph.settled & inputs.keys())


def producing(graph: Graph, values: Iterable[str]) -> tuple[Op, ...]:
    """The ops that make these values of the graph's inputs, views included, in graph order."""
    wanted: set[str] = set()
    pending = list(values)
    while pending:
        op = graph.producer.get(pending.pop())
        if op is not None and op.name not in wanted:
            wanted.add(op.name)
            pending += op.inputs
    return tuple(op for op in graph.ops if op.name in wanted)


def index_ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """[low, high) of integer inputs that are used as indices, so that random ones stay in bounds."""
    found: dict[str, tuple[int, int]] = {}

    def visit(value: str, size: int) -> None:
        if not graph.types[value].dtype.startswith(("int", "uint")):
            return
        op = graph.producer.get(value)
        if op is None:
            found[value] = (0, min(size, found.get(value, (0, size))[1]))
        elif isinstance(op.form, Map) or op.is_view:
            for name in op.inputs:
                visit(name, size)

    for op in graph.ops:
        if isinstance(op.form, Take):
            visit(op.form.indices, graph.types[op.form.operand].shape[op.form.dim])
    return found
