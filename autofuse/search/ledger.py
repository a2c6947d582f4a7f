"""For every intermediate value of a graph: what the plan does with it, what the other way would cost, and why."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.fusion.cover import Cover, k_best
from autofuse.ir.graph import Graph
from autofuse.results.explain import LedgerEntry, Side, library_only
from autofuse.search.graph import Outcome


def ledger(outcome: Outcome, cover: Cover) -> tuple[LedgerEntry, ...]:
    """One entry a value that is neither an input nor an output of the graph."""
    graph = outcome.graph
    outputs = {graph.base(value) for value in graph.outputs if value is not None}
    entries: list[LedgerEntry] = []
    for op in graph.ops:
        if op.is_view:
            continue
        inner = [value for value in op.outputs if value not in outputs and readers(graph, value)]
        entries += [entry(outcome, cover, value) for value in inner]
    return tuple(entries)


def readers(graph: Graph, value: str) -> tuple[str, ...]:
    """Ops that read the value, through views or not."""
    return tuple(op.name for op in graph.ops if not op.is_view and any(graph.base(name) == value for name in op.inputs))


def entry(outcome: Outcome, cover: Cover, value: str) -> LedgerEntry:
    graph = outcome.graph
    op = graph.producer[value]
    consumers = readers(graph, value)
    stored = any(value in group.outputs for group in cover.groups)
    makers = [group for group in cover.groups if op.name in group.ops]
    verdict = "materialised" if stored else "fused" if len(makers) == 1 else "recomputed"
    other = alternative(outcome, value, stored=not stored)
    chosen = side(outcome, cover, value, consumers)
    rival = side(outcome, other, value, consumers) if other is not None else Side()
    obstacle = ""
    if other is None:
        obstacle = (
            refusal(outcome, op.name, consumers) if stored else "no plan materialises it: a consumer exists only fused"
        )
    fused, apart = (rival, chosen) if stored else (chosen, rival)
    kind = graph.types[value]
    timed = fused.time_us is not None and apart.time_us is not None
    runs = [outcome.searches[group].best() for one in (cover, other) if one is not None for group in one.groups]
    real = "recorded" if any(trial is not None and trial.recording for trial in runs) else "measured"
    return LedgerEntry(value, kind.dtype, kind.shape, op.name, consumers, verdict, 2 * kind.nbytes,
                       real if timed else "predicted", fused, apart, obstacle)  # fmt: skip


def alternative(outcome: Outcome, value: str, *, stored: bool) -> Cover | None:
    """The best cover that does the other thing with the value, under the costs as they are known."""
    op = outcome.graph.producer[value].name
    groups = list(outcome.searches)
    costs = [outcome.searches[group].cost_us() for group in groups]
    if stored:
        costs = [
            float("inf") if op in g.ops and value not in g.outputs else c for g, c in zip(groups, costs, strict=True)
        ]
    else:
        costs = [float("inf") if value in g.outputs else c for g, c in zip(groups, costs, strict=True)]
    found = k_best(outcome.graph, groups, costs, 1)
    return found[0] if found else None


def side(outcome: Outcome, cover: Cover, value: str, consumers: Sequence[str]) -> Side:
    """Times of the whole cover; registers and occupancy of the kernels that make or read the value."""
    producer = outcome.graph.producer[value].name
    involved = [g for g in cover.groups if producer in g.ops or set(consumers) & set(g.ops)]
    best = {group: outcome.searches[group].best() for group in cover.groups}
    compiled = [t.compiled for g in involved if (t := best[g]) is not None and t.compiled is not None]
    occupancies = [t.occupancy for g in involved if (t := best[g]) is not None and t.occupancy is not None]
    times = [t.time_us if t is not None else None for t in best.values()]
    known = [time for time in times if time is not None]
    return Side(
        time_us=sum(known) if len(known) == len(times) else None,
        predicted_us=sum(t.predicted_us if t is not None else outcome.searches[g].cost_us() for g, t in best.items()),
        n_regs=max((c.n_regs for c in compiled), default=None),
        n_spills=max((c.n_spills for c in compiled), default=None),
        occupancy=min(occupancies, default=None),
    )


def refusal(outcome: Outcome, producer: str, consumers: Sequence[str]) -> str:
    """Why no group holds the producer with a consumer."""
    opaque = library_only(outcome.graph, (*consumers, producer))
    return opaque or "no legal group holds its producer with all its consumers"
