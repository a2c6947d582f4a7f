"""From a finished search to a plan: whole plans timed end to end, the winner verified, its evidence and ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.codegen.kernel import Kernel
from autofuse.codegen.triton import emit
from autofuse.cost.device import Target
from autofuse.errors import NoValidPlan
from autofuse.fusion.build import build
from autofuse.fusion.cover import Cover
from autofuse.fusion.group import Group, kernel_name
from autofuse.fusion.library import implementations, with_ops
from autofuse.fusion.rewrites import apply
from autofuse.fusion.subgraph import index_ranges
from autofuse.ir.graph import Graph
from autofuse.measure.records import AtenStep, Candidate, Inputs, Step, Timed, TritonStep, Verified
from autofuse.measure.supervisor import Worker, eager
from autofuse.search.graph import Outcome
from autofuse.search.group import GroupSearch, Trial
from autofuse.search.pool import parse_config

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


def group_kernel(graph: Graph, group: Group, search: GroupSearch, trial: Trial, target: Target) -> Kernel:
    """The kernel of a trial for one group of its canonical form, in that group's own names."""
    assert search.pool is not None
    rewrites, schedule = parse_config(search.pool.config_json(trial.position))
    program = apply(build(graph, frozenset(group.ops), group.outputs), rewrites)
    return emit(program, schedule, kernel_name(group.ops), target.multiprocessors)


def candidate_of_cover(
    graph: Graph, cover: Cover, outcome: Outcome, target: Target, key: str
) -> tuple[Candidate, dict[Group, Trial]]:
    """A whole plan as steps over the whole graph, with the trial that each group runs."""
    steps: list[Step] = []
    trials: dict[Group, Trial] = {}
    whole = graph
    for group in cover.groups:
        search = outcome.searches[group]
        trial = search.best() or search.library()
        trials[group] = trial
        if trial.is_library:
            call = implementations(graph, group)[trial.library]
            whole = with_ops(whole, call.ops)
            steps.append(AtenStep(tuple(op.name for op in call.ops)))
        else:
            steps.append(TritonStep(group_kernel(graph, group, search, trial, target)))
    return Candidate(key, whole, tuple(steps)), trials


def choose(outcome: Outcome, target: Target, worker: Worker | None, seed: int) -> Chosen:
    """The best plan; measured end to end against the unfused plan and eager where there is a GPU.

    A plan that is wrong as a whole is passed over. Raises NoValidPlan when none is left.
    """
    graph = outcome.graph
    covers = [c for c in outcome.covers if all(outcome.searches[g].is_known(worker is not None) for g in c.groups)]
    if not covers:
        raise NoValidPlan("the budget ended before any whole plan was compiled" if worker is None else
                          "the budget ended before any whole plan was measured")  # fmt: skip
    plans = [
        candidate_of_cover(graph, cover, outcome, target, f"cover{i}") for i, cover in enumerate(covers[:WHOLE_PLANS])
    ]
    if worker is None:
        cover = covers[0]
        unfused = sum(outcome.searches[group].cost_us() for group in outcome.unfused.groups)
        return Chosen(cover, plans[0][1], cover.cost, unfused, None, None, None)
    inputs = Inputs(seed=seed, ranges=index_ranges(graph))
    verdicts = [worker.verify(plan[0], inputs) for plan in plans]
    right = [(i, plan, verdict) for i, (plan, verdict) in enumerate(zip(plans, verdicts, strict=True)) if verdict.ok]
    unfused, _ = candidate_of_cover(graph, outcome.unfused, outcome, target, "unfused")
    timed = worker.time_plans([*(plan[0] for _, plan, _ in right), unfused, eager(graph)], inputs)
    unfused_time, eager_time = timed[-2], timed[-1]
    best: Chosen | None = None
    for (i, (_, trials), verified), time in zip(right, timed, strict=False):
        if time.ok and (best is None or time.median_us < best.total_us):
            best = Chosen(
                covers[i], trials, time.median_us, unfused_time.median_us, eager_time.median_us, verified, time
            )
    if best is None:
        raise NoValidPlan("no plan gave right results as a whole: " + "; ".join(
            f"{v.status} {v.detail}" for v in verdicts if not v.ok) or "timing failed")  # fmt: skip
    return best


def saved_bytes(graph: Graph, group: Group) -> int:
    """2 N s of every value that the group keeps on chip: read and written nowhere."""
    inside = {value for name in group.ops for value in graph.by_name[name].outputs} - set(group.outputs)
    return sum(2 * graph.types[value].nbytes for value in inside)
