"""A finished search as a plan and as the command's answer. No search, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autofuse.cost.device import Target
from autofuse.fusion.cover import peak_bytes, unfused_cover
from autofuse.fusion.group import Group, kernel_name, saved_bytes
from autofuse.fusion.library import library_call
from autofuse.ir.graph import Graph
from autofuse.plans.plan import TIMINGS, Plan, PlannedGroup, make_plan
from autofuse.results.explain import library_only, race, to_list
from autofuse.search import events
from autofuse.search.events import Counts, GroupResult, TuneResult, Verification
from autofuse.search.finish import Chosen, planned
from autofuse.search.graph import GraphTuner, Outcome
from autofuse.search.group import GroupSearch, Trial
from autofuse.search.journal import identity
from autofuse.search.ledger import ledger
from autofuse.search.recorded import timing_of
from autofuse.search.rounds import ahead_of


def group_evidence(graph: Graph, group: Group, search: GroupSearch, trial: Trial) -> dict[str, Any]:
    """The numbers of one group of a plan; absent ones are left out."""
    held = held_bytes(search, trial)
    if search.once:
        return {"name": kernel_name(group.ops).removeprefix("fused_"), "saved_bytes": 0, "held_bytes": held}
    compiled = trial.compiled
    found: dict[str, Any] = {
        "name": kernel_name(group.ops).removeprefix("fused_"),
        "saved_bytes": kept_bytes(graph, group, search, trial),
        "held_bytes": held or None,
        "predicted_us": trial.predicted_us,
        "measured_us": None if trial.recording else trial.time_us,
        "recorded_us": trial.time_us if trial.recording else None,
        "recording": trial.recording or None,
        "occupancy": trial.occupancy,
        "dram_bytes": trial.dram_bytes,
        "binding": trial.binding or None,
        "library": library_only(graph, group.ops) or None,
        "candidates": search.counts(),
    }
    if compiled is not None:
        found |= {"n_regs": compiled.n_regs, "n_spills": compiled.n_spills, "smem_bytes": compiled.smem_bytes}
    found["rivals"] = rivals(search, trial)
    return {name: value for name, value in found.items() if value is not None}


def whole_evidence(graph: Graph, group: PlannedGroup, time_us: float) -> dict[str, Any]:
    """Of a plan's only group, which was not searched. What Inductor keeps on chip counts as nothing."""
    saved = 0
    if group.implementation == "aten":
        saved = library_bytes(graph, Group(group.ops, group.outputs), group.rewrites[0])
    name = kernel_name(group.ops).removeprefix("fused_")
    return {"name": name, "saved_bytes": saved, "measured_us": time_us}


def held_bytes(search: GroupSearch, trial: Trial) -> int:
    """Memory for as long as the frozen inputs live: of what the group computes once, or has computed for it."""
    graph = search.graph
    values = search.group.outputs if search.once else ahead_of(search, trial)
    return sum(graph.types[value].nbytes for value in values)


def kept_bytes(graph: Graph, group: Group, search: GroupSearch, trial: Trial) -> int:
    """What the group saves as it runs: library calls one after the other keep nothing on chip."""
    if not trial.is_library:
        return saved_bytes(graph, group)
    return library_bytes(graph, group, search.libraries[trial.library][0])


def library_bytes(graph: Graph, group: Group, name: str) -> int:
    """Of the values that a library call of several ops makes inside: written once, read once."""
    made = {value for op in library_call(graph, group, name).ops for value in op.outputs}
    hidden = {value for op in group.ops for value in graph.by_name[op].outputs} - made
    return sum(2 * graph.types[value].nbytes for value in hidden)


def rivals(search: GroupSearch, chosen: Trial) -> list[dict[str, Any]]:
    """The next best two ways to run the group, and its library calls, with what they cost."""
    measured = [t for t in search.measured() if t is not chosen][:2]
    calls = [t for t in search.library_trials.values() if t is not chosen and t not in measured]
    return [
        {
            "implementation": identity(search, t)[0],
            "recorded_us" if t.recording else "measured_us": t.time_us,
            "predicted_us": t.predicted_us,
            "status": t.status,
        }
        for t in (*measured, *calls)
    ]


def plan_of(
    outcome: Outcome,
    chosen: Chosen,
    workload: str,
    shape: Mapping[str, int],
    target: Target,
    environment: Mapping[str, str],
) -> Plan:
    groups = [
        planned(group, search, trial, group_evidence(outcome.graph, group, search, trial))
        for group, trial in chosen.trials.items()
        for search in (outcome.searches[group],)
    ]
    if chosen.whole is not None:
        groups = [replace(chosen.whole, evidence=whole_evidence(outcome.graph, chosen.whole, chosen.total_us))]
    timing = unfused = "measured"
    if chosen.timed is None:
        searches = outcome.searches
        timing = timing_of(trial for group, trial in chosen.trials.items() if not searches[group].once)
        unfused = timing_of(searches[group].runs() for group in outcome.unfused.groups if not searches[group].once)
    evidence: dict[str, Any] = {
        "ledger": to_list(ledger(outcome, chosen.cover)),
        "unfused_timing": unfused,
        "ended": outcome.ended,
        "held_bytes": sum(group.evidence.get("held_bytes", 0) for group in groups) or None,
        "eager_us": chosen.eager_us,
        "inductor_us": chosen.inductor_us,
        "searched_us": chosen.searched_us,
        "whole": chosen.timed.key if chosen.whole is not None and chosen.timed is not None else None,
        "failures": dict(chosen.failures) or None,
        "memory_limit_mb": None if outcome.memory_limit is None else outcome.memory_limit / 1e6,
        "peak_bytes": None if chosen.whole is not None else peak_bytes(outcome.graph, chosen.cover.groups),
        "groups_enumerated": len(outcome.searches),
        "enumeration_truncated": outcome.enumeration.truncated,
        "refused": dict(outcome.enumeration.refused),
    }
    if chosen.verified is not None:
        evidence["verified"] = {
            "max_abs_err": chosen.verified.max_abs_err, "tolerance": chosen.verified.tolerance,
            "rms_err": chosen.verified.rms_err, "eager_err": chosen.verified.eager_err, "reference": reference(chosen),
        }  # fmt: skip
    return make_plan(
        graph=outcome.graph, graph_key=outcome.key, workload=workload, shape=shape, target=target.name,
        environment=environment, groups=groups, timing=timing,
        total_us=chosen.total_us, unfused_us=chosen.unfused_us,
        evidence={name: value for name, value in evidence.items() if value is not None},
    )  # fmt: skip


def reference(chosen: Chosen) -> str:
    return "float64" if chosen.timed is not None else "float64, in Triton's interpreter at a small size"


def counts(searches: Iterable[GroupSearch]) -> Counts:
    total: dict[str, int] = dict.fromkeys(("enumerated", "kept", "compiled", "verified", "timed", "failed"), 0)
    for search in searches:
        for name, value in search.counts().items():
            total[name] += value
    return Counts(**total)


def config(group: PlannedGroup) -> dict[str, Any]:
    """What the group runs, for a table: a schedule with its rewrites, or a library call."""
    if group.schedule is not None:
        return group.schedule.to_dict() | {"rewrites": list(group.rewrites)}
    return {"call": group.rewrites[0]} if group.rewrites else {}


def result_of(outcome: Outcome, chosen: Chosen, plan: Plan, store: str) -> TuneResult:
    groups = tuple(
        GroupResult(
            name=str(g.evidence.get("name", "")),
            ops=g.ops,
            implementation=g.implementation,
            config=config(g),
            n_regs=g.evidence.get("n_regs"),
            n_spills=g.evidence.get("n_spills"),
            smem_bytes=g.evidence.get("smem_bytes"),
            occupancy=g.evidence.get("occupancy"),
            dram_bytes=g.evidence.get("dram_bytes"),
            saved_bytes=int(g.evidence["saved_bytes"]),
            predicted_us=g.evidence.get("predicted_us"),
            measured_us=g.evidence.get("measured_us"),
            recorded_us=g.evidence.get("recorded_us"),
            recording=g.evidence.get("recording"),
        )
        for g in plan.groups
    )
    verified = Verification(reference=reference(chosen))
    if chosen.verified is not None:
        verified = Verification(chosen.verified.max_abs_err, chosen.verified.tolerance, reference(chosen))
    distinct = {search.key: search for search in outcome.searches.values()}
    return TuneResult(
        plan.workload, dict(plan.shape), plan.target, plan.timing, plan.plan_id, plan.total_us, plan.unfused_us, groups,
        counts(distinct.values()), verified, outcome.seconds, store, outcome.ended, "", tuple(plan.evidence["ledger"]),
        plan.evidence["unfused_timing"], chosen.eager_us, chosen.inductor_us, race(plan.evidence, plan.total_us),
    )  # fmt: skip


def dry_result(tuner: GraphTuner, workload: str, shape: Mapping[str, int], target: Target) -> TuneResult:
    """Enumerated and predicted, nothing compiled, nothing stored."""
    tuner.enumerate()
    groups = list(tuner.searches)
    cover = tuner.covers(groups)[0]
    unfused = sum(tuner.searches[g].cost_us() for g in unfused_cover(tuner.graph, groups).groups)
    found = tuple(
        GroupResult(
            kernel_name(g.ops).removeprefix("fused_"),
            g.ops,
            "predicted",
            {},
            saved_bytes=saved_bytes(tuner.graph, g),
            predicted_us=tuner.searches[g].cost_us(),
        )
        for g in cover.groups
    )
    return TuneResult(workload, dict(shape), target.name, "predicted", None, cover.cost, unfused, found,
                      counts(tuner.by_key.values()), Verification(reference="none: a dry run"), 0.0)  # fmt: skip


def merge(parts: Sequence[TuneResult]) -> TuneResult:
    """Graph breaks make several graphs of one workload: one answer, times added up."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    names = ("enumerated", "kept", "compiled", "verified", "timed", "failed")
    worst = max((p.verified for p in parts), key=lambda v: v.max_abs_err or 0.0)
    return TuneResult(
        first.workload,
        first.shape,
        first.target,
        min((p.timing for p in parts), key=TIMINGS.index),
        ",".join(p.plan_id or "" for p in parts),
        total([p.total_us for p in parts]),
        total([p.unfused_us for p in parts]),
        tuple(g for p in parts for g in p.groups),
        Counts(**{n: sum(getattr(p.candidates, n) for p in parts) for n in names}),
        worst,
        sum(p.seconds for p in parts),
        first.store,
        next((p.status for p in parts if p.status != events.DONE), events.DONE),
        "",
        tuple(entry for p in parts for entry in p.ledger),
        min((p.unfused_timing for p in parts), key=("", *TIMINGS).index),
        total([p.eager_us for p in parts]),
        total([p.inductor_us for p in parts]),
        tuple(line for p in parts for line in p.race),
    )


def total(times: Sequence[float | None]) -> float | None:
    """The sum, if all are known."""
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None
