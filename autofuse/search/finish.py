"""From a finished search to a plan: whole plans timed end to end, the winner verified, its evidence and ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autofuse.cost.device import Target
from autofuse.errors import NoValidPlan, PlanError
from autofuse.fusion.cover import Cover, peak_bytes
from autofuse.fusion.folding import FOLDED, fold
from autofuse.fusion.group import Group, kernel_name
from autofuse.fusion.library import LibraryCall, eager_call, library_call, whole_group, with_ops
from autofuse.fusion.library import peak_bytes as call_bytes
from autofuse.fusion.subgraph import extract, index_ranges
from autofuse.ir.graph import Graph
from autofuse.measure.records import AtenStep, Candidate, InductorStep, Inputs, Step, Timed, TritonStep, Verified
from autofuse.measure.supervisor import Worker
from autofuse.plans.plan import PlannedGroup
from autofuse.results.explain import NOISE
from autofuse.runtime.layout import ONCE, group_kernel
from autofuse.search.graph import Outcome
from autofuse.search.group import GroupSearch, Trial

WHOLE_PLANS = 3
"""Covers that are timed end to end: what stays in L2 between kernels breaks the additivity of their costs."""
EAGER, INDUCTOR, UNFUSED = "eager", "inductor", "unfused"
RIVALS = (EAGER, INDUCTOR, UNFUSED)
"""Ways to run a whole graph that need no search; a plan becomes one of them where it would lose by more than NOISE."""


@dataclass(frozen=True)
class Chosen:
    """The winning cover with what is known of it as a whole. total_us, unfused_us: measured end to end, or sums.

    whole: the one group that the plan runs instead of the cover, where eager's calls or Inductor's result won; the
    cover is then the best that was searched, and searched_us its time. failures: why a runner of the last race has no
    time.
    """

    cover: Cover
    trials: Mapping[Group, Trial]
    total_us: float
    unfused_us: float
    eager_us: float | None
    verified: Verified | None
    timed: Timed | None
    inductor_us: float | None = None
    whole: PlannedGroup | None = None
    searched_us: float | None = None
    failures: Mapping[str, str] = field(default_factory=dict, hash=False)


def planned(group: Group, search: GroupSearch, trial: Trial, evidence: Mapping[str, Any] | None = None) -> PlannedGroup:
    """What a plan says of a group that runs a trial. A library call that stands for several ops (addmm) is named, so
    that the executor makes the same one."""
    if search.once:
        return PlannedGroup(group.ops, group.outputs, ONCE, evidence=evidence or {})
    if trial.is_library or search.pool is None:
        name = search.libraries[trial.library][0]
        return PlannedGroup(group.ops, group.outputs, "aten", None, (name,), evidence or {})
    schedule, rewrites = search.pool.schedule(trial.position), search.pool.rewrites(trial.position)
    return PlannedGroup(group.ops, group.outputs, "triton", schedule, rewrites, evidence or {})


def trials_of(cover: Cover, outcome: Outcome) -> dict[Group, Trial]:
    """What each group of a cover would run."""
    return {group: outcome.searches[group].runs() for group in cover.groups}


def candidate_of_cover(
    graph: Graph, trials: Mapping[Group, Trial], outcome: Outcome, target: Target, key: str
) -> Candidate:
    """A whole plan as steps over `graph`: the one that was searched, or one of the same ops at other sizes.

    trials: in executable order. Raises PlanError where a schedule does not fit the graph.
    """
    steps: list[Step] = []
    ahead: dict[str, None] = {}
    whole = graph
    for group, trial in trials.items():
        search = outcome.searches[group]
        if search.once:
            ahead |= dict.fromkeys(group.outputs)
        elif trial.is_library or search.pool is None:
            call = _call(graph, group, search.libraries[trial.library][0])
            whole = with_ops(whole, call.ops)
            steps.append(AtenStep(tuple(op.name for op in call.ops)))
        else:
            found = planned(group, search, trial)
            if FOLDED in found.rewrites:
                folding = fold(extract(graph, group.ops, group.outputs))
                whole, ahead = folding.onto(whole), ahead | dict.fromkeys(folding.values)
            steps.append(TritonStep(group_kernel(graph, found, kernel_name(group.ops), target.multiprocessors)))
    return Candidate(key, whole, tuple(steps), tuple(ahead))


def _call(graph: Graph, group: Group, name: str) -> LibraryCall:
    try:
        return library_call(graph, group, name)
    except KeyError:
        raise PlanError(f"there is no library call {name!r} for {', '.join(group.ops)[:80]}") from None


@dataclass(frozen=True)
class _Entry:
    """One runner of the last race. whole: the plan's only group, where it is not the cover that runs."""

    candidate: Candidate
    cover: Cover
    whole: PlannedGroup | None = None


def choose(outcome: Outcome, target: Target, worker: Worker | None, seed: int) -> Chosen:
    """The best plan; measured end to end against the unfused plan, eager and Inductor where there is a GPU.

    A plan that is wrong as a whole is passed over. Raises NoValidPlan when none is left.
    """
    if worker is None:
        cover = outcome.covers[0]
        return Chosen(cover, trials_of(cover, outcome), cover.cost, _settled(outcome), None, None, None)
    # None where the budget ended before: then the unfused plan, eager and Inductor race alone.
    covers = [cover for cover in outcome.covers if all(outcome.searches[g].is_measured for g in cover.groups)]
    inputs = Inputs(seed=seed, ranges=index_ranges(outcome.graph))
    entries = _entries(outcome, covers[:WHOLE_PLANS], target)
    verdicts = {name: worker.verify(entry.candidate, inputs) for name, entry in entries.items()}
    right = [name for name, verdict in verdicts.items() if verdict.ok]
    raced = worker.time_plans([entries[name].candidate for name in right], inputs) if right else []
    times = {name: time for name, time in zip(right, raced, strict=True) if time.ok}
    failures = {name: f"{v.status} {v.detail}".strip() for name, v in verdicts.items() if not v.ok}
    failures |= {t.key: f"{t.status} {t.detail}".strip() for t in raced if not t.ok}
    if not times:
        raise NoValidPlan("no plan gave right results as a whole: " + "; ".join(failures.values()))
    us = {name: time.median_us for name, time in times.items()}
    name = _winner(us)
    searched = sorted((us[n], n) for n in us if entries[n].whole is None)
    cover = (entries[name] if entries[name].whole is None or not searched else entries[searched[0][1]]).cover
    return Chosen(
        cover, trials_of(cover, outcome), us[name], us.get(UNFUSED, _settled(outcome)), us.get(EAGER),
        verdicts[name], times[name], us.get(INDUCTOR), entries[name].whole,
        searched[0][0] if searched else None, failures,
    )  # fmt: skip


def _winner(us: Mapping[str, float]) -> str:
    """The fastest cover that was searched, unless a rival is faster by more than the noise."""
    best = min(us, key=us.__getitem__)
    own = min((name for name in us if name not in RIVALS), key=us.__getitem__, default=best)
    return best if us[best] < us[own] * (1 - NOISE) else own


def _settled(outcome: Outcome) -> float:
    return sum(outcome.searches[group].settled_us() for group in outcome.unfused.groups)


def _entries(outcome: Outcome, covers: Sequence[Cover], target: Target) -> dict[str, _Entry]:
    """By name: the best covers, the unfused plan, eager's own calls, and what Inductor makes of these; those that keep
    within the limit of memory. What Inductor's takes is not known beforehand: under a limit it does not race."""
    found: dict[str, _Entry] = {}
    graph, limit = outcome.graph, float("inf") if outcome.memory_limit is None else outcome.memory_limit
    for name, cover in [*((f"cover{i}", cover) for i, cover in enumerate(covers)), (UNFUSED, outcome.unfused)]:
        if peak_bytes(graph, cover.groups) <= limit:
            candidate = candidate_of_cover(graph, trials_of(cover, outcome), outcome, target, name)
            found[name] = _Entry(candidate, cover)
    group = whole_group(graph)
    if not group.ops:
        return found
    call = eager_call(graph, group)
    whole, ops = with_ops(graph, call.ops), tuple(op.name for op in call.ops)
    plan = PlannedGroup(group.ops, group.outputs, "aten", None, (call.name,))
    if call_bytes(graph, group, call) <= limit:
        found[EAGER] = _Entry(Candidate(EAGER, whole, (AtenStep(ops),)), outcome.unfused, plan)
    if outcome.memory_limit is None:
        plan = replace(plan, implementation="inductor")
        found[INDUCTOR] = _Entry(Candidate(INDUCTOR, whole, (InductorStep(ops, group.outputs),)), outcome.unfused, plan)
    return found
