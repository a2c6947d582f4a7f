"""For every intermediate value of a graph: what the plan does with it, what the other way would cost, and why."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.fusion.cover import Cover, k_best, peak_bytes
from autofuse.fusion.group import Group
from autofuse.fusion.library import library_call
from autofuse.ir.graph import Graph
from autofuse.results.explain import LedgerEntry, Side, library_only, si_bytes
from autofuse.search.graph import Outcome
from autofuse.search.group import Trial


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
    stored = any(value in group.outputs or writes(outcome, group, value) for group in cover.groups)
    makers = [group for group in cover.groups if op.name in group.ops]
    if any(outcome.searches[group].once and value in group.outputs for group in cover.groups):
        kind = graph.types[value]
        why = f"it follows from frozen inputs alone and keeps {si_bytes(kind.nbytes)}"
        return LedgerEntry(value, kind.dtype, kind.shape, op.name, consumers, "once", 2 * kind.nbytes, obstacle=why)
    verdict = "materialised" if stored else "fused" if len(makers) == 1 else "recomputed"
    other = alternative(outcome, value, stored=not stored)
    chosen = side(outcome, cover, value, consumers, stored=stored)
    rival = side(outcome, other, value, consumers, stored=not stored) if other is not None else Side()
    obstacle = ""
    if other is None:
        obstacle = (
            refusal(outcome, op.name, consumers) if stored else "no plan materialises it: a consumer exists only fused"
        )
    fused, apart = (rival, chosen) if stored else (chosen, rival)
    kind = graph.types[value]
    timed = fused.time_us is not None and apart.time_us is not None
    ways = ((cover, stored), (other, not stored))
    runs = [run(outcome, g, value, stored=way) for one, way in ways if one is not None for g in one.groups]
    real = "recorded" if any(trial is not None and trial.recording for trial in runs) else "measured"
    limit = outcome.memory_limit
    too_large = other is not None and limit is not None and peak_bytes(graph, other.groups) > limit
    return LedgerEntry(value, kind.dtype, kind.shape, op.name, consumers, verdict, 2 * kind.nbytes,
                       real if timed else "predicted", fused, apart, obstacle,
                       "the limit of memory" if too_large else "time")  # fmt: skip


def writes(outcome: Outcome, group: Group, value: str) -> bool:
    """Does the group, as it would run, leave a value of its own in memory? Library calls that are made one after the
    other do, though for the plan they are one group."""
    return _written(outcome, group, outcome.searches[group].runs(), value)


def _written(outcome: Outcome, group: Group, trial: Trial, value: str) -> bool:
    inner = outcome.graph.producer[value].name in group.ops and value not in group.outputs
    if not inner or not trial.is_library:
        return False
    name = outcome.searches[group].libraries[trial.library][0]
    return any(value in op.outputs for op in library_call(outcome.graph, group, name).ops)


def run(outcome: Outcome, group: Group, value: str, *, stored: bool) -> Trial | None:
    """The group's best trial, None where it has none; where the value is not to be stored, of those that do not."""
    search = outcome.searches[group]
    best = search.best()
    if stored or best is None or not _written(outcome, group, best, value):
        return best
    return next((t for t in search.measured() if not _written(outcome, group, t, value)), None)


def alternative(outcome: Outcome, value: str, *, stored: bool) -> Cover | None:
    """The best cover that does the other thing with the value, under the costs as they are known."""
    op = outcome.graph.producer[value].name
    groups = list(outcome.searches)

    def cost_us(group: Group) -> float:
        search = outcome.searches[group]
        if stored:
            return float("inf") if op in group.ops and value not in group.outputs else search.cost_us()
        if value in group.outputs:
            return float("inf")
        best = search.best()
        if best is None or not _written(outcome, group, best, value):
            return search.cost_us()
        trial = run(outcome, group, value, stored=False)
        return float("inf") if trial is None or trial.time_us is None else trial.time_us

    found = k_best(outcome.graph, groups, [cost_us(group) for group in groups], 1)
    return found[0] if found else None


def side(outcome: Outcome, cover: Cover, value: str, consumers: Sequence[str], *, stored: bool) -> Side:
    """Times of the whole cover; registers and occupancy of the kernels that make or read the value."""
    producer = outcome.graph.producer[value].name
    involved = [g for g in cover.groups if producer in g.ops or set(consumers) & set(g.ops)]
    best = {group: run(outcome, group, value, stored=stored) for group in cover.groups}
    compiled = [t.compiled for g in involved if (t := best[g]) is not None and t.compiled is not None]
    occupancies = [t.occupancy for g in involved if (t := best[g]) is not None and t.occupancy is not None]
    times = [t.time_us if t is not None else None for t in best.values()]
    known = [time for time in times if time is not None]
    guessed = [
        t.predicted_us if t is not None else untried_us(outcome, g, value, stored=stored) for g, t in best.items()
    ]
    return Side(
        time_us=sum(known) if len(known) == len(times) else None,
        predicted_us=sum(guessed),
        n_regs=max((c.n_regs for c in compiled), default=None),
        n_spills=max((c.n_spills for c in compiled), default=None),
        occupancy=min(occupancies, default=None),
    )


def untried_us(outcome: Outcome, group: Group, value: str, *, stored: bool) -> float:
    """What a group without a trial is expected to take: the library's where that is what stores the value."""
    search = outcome.searches[group]
    return search.settled_us() if stored and writes(outcome, group, value) else search.cost_us()


def refusal(outcome: Outcome, producer: str, consumers: Sequence[str]) -> str:
    """Why no group holds the producer with a consumer."""
    opaque = library_only(outcome.graph, (*consumers, producer))
    return opaque or "no legal group holds its producer with all its consumers"
