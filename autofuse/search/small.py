"""Numbers without a GPU: the plan's kernels, regenerated for a small instance of the workload, run in Triton's
interpreter against float64. Same ops, same roles and blocks; only sizes differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.cost.device import Target
from autofuse.errors import AutofuseError
from autofuse.fusion.subgraph import index_ranges
from autofuse.ir.graph import AtenCall, Contract, Graph, Op, Symbol, TensorType
from autofuse.measure.records import Inputs
from autofuse.measure.supervisor import Worker
from autofuse.search.finish import Chosen, candidate_of_cover
from autofuse.search.graph import Outcome
from autofuse.search.rounds import VERIFY_STATUS

ELEMENTS = 400_000
"""Most elements of all values of the small graph together: with these two limits the shipped workloads that were tried
took seconds in the interpreter."""
FLOPS = 60_000_000
HALVINGS = 16


def check_small(
    spec: str, shape: Mapping[str, int], graph: Graph, chosen: Chosen, outcome: Outcome, target: Target, seed: int,
    note: Callable[[str], None],
) -> Chosen:  # fmt: skip
    """`chosen` with `verified` set, which may say that it is wrong; where no small instance can be had or run, a note
    says why and it stays None."""
    small = small_graph(spec, shape, graph)
    if isinstance(small, str):
        note(f"numbers not checked: {small}")
        return chosen
    try:
        candidate = candidate_of_cover(small, chosen.trials, outcome, target, "small")
    except AutofuseError as error:
        note(f"numbers not checked: the plan does not fit a small instance ({error})")
        return chosen
    with Worker("cpu") as worker:
        verified = worker.verify(candidate, Inputs(seed=seed, ranges=index_ranges(small)))
    if not verified.ok and verified.status not in VERIFY_STATUS:  # too slow, or beyond what the interpreter can do
        note(f"numbers not checked: the interpreter ended with {verified.status} {verified.detail}")
        return chosen
    return replace(chosen, verified=verified)


def small_graph(spec: str, shape: Mapping[str, int], graph: Graph) -> Graph | str:
    """The graph itself where it is small enough, else the same ops at halved dims, or why there is none."""
    if elements(graph) <= ELEMENTS and flops(graph) <= FLOPS:
        return in_float16(graph)
    reason = "the workload has no dims to make smaller"
    for halvings in range(1, HALVINGS):
        dims = {name: max(size >> halvings, min(size, 1)) for name, size in shape.items()}
        if not dims:
            return reason
        if not fits(graph, halvings):
            continue
        try:
            found = [c.graph for c in capture(*load(spec, dims, "cuda:0", fake=True))]
        except AutofuseError as error:
            reason = str(error)
            continue
        match = next((g for g in found if [op.name for op in g.ops] == [op.name for op in graph.ops]), None)
        if match is None:
            reason = "it is another graph at small sizes"
        elif elements(match) <= ELEMENTS and flops(match) <= FLOPS:
            return in_float16(match)
        else:
            reason = "its values stay too large for the interpreter"
    return reason


def fits(graph: Graph, halvings: int) -> bool:
    """Could it be small enough, if every dimension were halved so often? Saves captures that cannot help."""
    return elements(graph) >> (2 * halvings) <= 4 * ELEMENTS


def elements(graph: Graph) -> int:
    return sum(kind.numel for kind in graph.types.values())


def flops(graph: Graph) -> int:
    total = 0
    for op in graph.ops:
        if isinstance(op.form, Contract):
            sizes = dict(zip(op.form.left_dims, graph.types[op.form.left].shape, strict=True))
            sizes |= dict(zip(op.form.right_dims, graph.types[op.form.right].shape, strict=True))
            product = 2
            for size in sizes.values():
                product *= size
            total += product
    return total


def in_float16(graph: Graph) -> Graph:
    """The interpreter does no arithmetic in bfloat16."""
    types = {
        name: TensorType(k.shape, "float16" if k.dtype == "bfloat16" else k.dtype, k.strides)
        for name, k in graph.types.items()
    }
    composites = tuple(replace(c, op=_retyped(c.op)) for c in graph.composites)
    return replace(graph, ops=tuple(_retyped(op) for op in graph.ops), types=types, composites=composites)


def _retyped(op: Op) -> Op:
    def change(argument: object) -> object:
        if isinstance(argument, tuple):
            return tuple(change(item) for item in argument)
        return Symbol("dtype", "float16") if argument == Symbol("dtype", "bfloat16") else argument

    call = op.call
    kwargs = tuple((name, change(value)) for name, value in call.kwargs)
    form = op.form
    if form is not None and getattr(form, "compute", None) == "bfloat16":
        form = replace(form, compute="float16")  # type: ignore[call-arg]
    return replace(op, call=AtenCall(call.target, change(call.args), kwargs), form=form)  # type: ignore[arg-type]
