"""From a finished search to a plan: whole plans timed end to end, the winner verified, its evidence and ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofuse.cost.device import Target
from autofuse.errors import NoValidPlan
from autofuse.fusion.cover import Cover
from autofuse.fusion.group import Group, kernel_name
from autofuse.fusion.library import implementations, with_ops
from autofuse.fusion.subgraph import index_ranges
from autofuse.ir.graph import Graph
from autofuse.measure.records import AtenStep, Candidate, Inputs, Step, Timed, TritonStep, Verified
from autofuse.measure.supervisor import Worker, eager
from autofuse.plans.plan import PlannedGroup
from autofuse.runtime.layout import group_kernel
from autofuse.search.graph import Outcome
from autofuse.search.group import GroupSearch, Trial

WHOLE_PLANS = 3
"""Covers that are timed end to end: what stays in L2 between kernels breaks the additivity of their costs."""


@dataclass(frozen=True)
class Chosen:
    """The winning cover with what is known of it as a whole. total_us, unfused_us: measured end to end, or sums."""

    cover: Cover
    trials: Mapping[Group, Trial]
    total_us: float
    unfused_us: float
    eager_us: float | None
    verified: Verified | None
    timed: Timed | None


def planned(group: Group, search: GroupSearch, trial: Trial, evidence: Mapping[str, Any] | None = None) -> PlannedGroup:
    """What a plan says of a group that runs a trial. A library call that stands for several ops (addmm) is named, so
    that the executor makes the same one."""
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
    whole = graph
    for group, trial in trials.items():
        search = outcome.searches[group]
        if trial.is_library or search.pool is None:
            call = implementations(graph, group)[trial.library]
            whole = with_ops(whole, call.ops)
            steps.append(AtenStep(tuple(op.name for op in call.ops)))
        else:
            found = planned(group, search, trial)
            steps.append(TritonStep(group_kernel(graph, found, kernel_name(group.ops), target.multiprocessors)))
    return Candidate(key, whole, tuple(steps))


def choose(outcome: Outcome, target: Target, worker: Worker | None, seed: int) -> Chosen:
    """The best plan; measured end to end against the unfused plan and eager where there is a GPU.

    A plan that is wrong as a whole is passed over. Raises NoValidPlan when none is left.
    """
    graph = outcome.graph
    if worker is None:
        cover = outcome.covers[0]
        unfused = sum(outcome.searches[group].settled_us() for group in outcome.unfused.groups)
        return Chosen(cover, trials_of(cover, outcome), cover.cost, unfused, None, None, None)
    covers = [cover for cover in outcome.covers if all(outcome.searches[g].is_measured for g in cover.groups)]
    if not covers:
        raise NoValidPlan("the budget ended before any whole plan was measured")
    inputs = Inputs(seed=seed, ranges=index_ranges(graph))
    tried = [(cover, trials_of(cover, outcome)) for cover in covers[:WHOLE_PLANS]]
    plans = [candidate_of_cover(graph, trials, outcome, target, f"cover{i}") for i, (_, trials) in enumerate(tried)]
    verdicts = [worker.verify(plan, inputs) for plan in plans]
    right = [item for item in zip(tried, plans, verdicts, strict=True) if item[2].ok]
    unfused = candidate_of_cover(graph, trials_of(outcome.unfused, outcome), outcome, target, "unfused")
    timed = worker.time_plans([*(plan for _, plan, _ in right), unfused, eager(graph)], inputs)
    unfused_us, eager_us = timed[-2].median_us, timed[-1].median_us
    best: Chosen | None = None
    for ((cover, trials), _, verified), time in zip(right, timed, strict=False):
        if time.ok and (best is None or time.median_us < best.total_us):
            best = Chosen(cover, trials, time.median_us, unfused_us, eager_us, verified, time)
    if best is None:
        raise NoValidPlan("no plan gave right results as a whole: " + "; ".join(
            f"{v.status} {v.detail}" for v in verdicts if not v.ok) or "timing failed")  # fmt: skip
    return best


def saved_bytes(graph: Graph, group: Group) -> int:
    """2 N s of every value that the group keeps on chip: read and written nowhere."""
    inside = {value for name in group.ops for value in graph.by_name[name].outputs} - set(group.outputs)
    return sum(2 * graph.types[value].nbytes for value in inside)
