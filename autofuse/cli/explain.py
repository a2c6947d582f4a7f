"""`autofuse explain`: the ledger of a stored plan, by plan id or by workload (its newest plan)."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autofuse.cli import options, output
from autofuse.errors import PlanError

if TYPE_CHECKING:
    from autofuse.plans.plan import Plan, PlannedGroup
    from autofuse.plans.store import PlanStore

HELP = "For each intermediate value of a plan: fused or not, what that saves and costs, and why."
_PLAN_ID = re.compile(r"[0-9a-f]{4,16}\Z")


@output.command
def explain(
    what: Annotated[
        str, typer.Argument(metavar="WORKLOAD|PLAN", help="A workload, or a plan's id (its start will do).")
    ],
    shape: options.Shape = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Only plans for this target.")] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    from autofuse.plans.store import PlanStore

    dims = options.one_shape(shape)
    with output.document(json) as emit:
        plan = find(PlanStore(options.store_folder(store)), what, dims, target)
        if json:
            emit(output.finite(described(plan)))
        else:
            show(plan)


def find(store: PlanStore, what: str, dims: dict[str, int] | None = None, target: str | None = None) -> Plan:
    """The plan of that id, else the newest of that workload (and shape, and target). Raises PlanError."""
    plans = [
        plan
        for plan in store.list()
        if plan.workload == what
        and target in (None, plan.target)
        and all(plan.shape.get(name) == size for name, size in (dims or {}).items())
    ]
    if plans:
        return max(plans, key=lambda plan: plan.created)
    if _PLAN_ID.match(what):
        return store.show(what)
    from autofuse.cli.progress import shape_text

    there = store.list()
    known = _listed(what, sorted({plan.workload for plan in there}))
    same = sorted({f"{what}{shape_text(plan.shape)} for {plan.target}" for plan in there if plan.workload == what})
    if same:
        known = "; ".join(same[:8])
    narrowed = " of that shape and target" if dims or target else ""
    raise PlanError(f"no plan{narrowed} for {what} in {store.path}, which has {known}; make one: autofuse tune {what}")


def _listed(what: str, workloads: list[str]) -> str:
    """All of a few; of many the similar ones, and how to see the rest."""
    if len(workloads) <= 5:
        return ", ".join(workloads) or "no plan at all"
    near = get_close_matches(what, workloads)
    return f"{', '.join(near) or f'{len(workloads)} workloads'} (all: autofuse plans list)"


def brief(plan: Plan) -> dict[str, Any]:
    """What every JSON document says of a plan first."""
    return {
        "plan_id": plan.plan_id,
        "workload": plan.workload,
        "shape": dict(plan.shape),
        "target": plan.target,
        "timing": plan.timing,
        "total_us": plan.total_us,
        "unfused_us": plan.unfused_us,
        "eager_us": plan.evidence.get("eager_us"),
        "inductor_us": plan.evidence.get("inductor_us"),
        "unfused_timing": plan.evidence.get("unfused_timing", plan.timing),
        "held_bytes": plan.evidence.get("held_bytes", 0),
        "peak_bytes": plan.evidence.get("peak_bytes"),
        "memory_limit_mb": plan.evidence.get("memory_limit_mb"),
    }


def described(plan: Plan) -> dict[str, Any]:
    """The plan's JSON with each ledger entry's sentence."""
    from autofuse.results.explain import from_list, to_list

    return {
        **brief(plan),
        "groups": [_group(group) for group in plan.groups],
        "ledger": to_list(from_list(plan.evidence.get("ledger", []))),
    }


def _group(group: PlannedGroup) -> dict[str, Any]:
    facts = {
        "ops": list(group.ops),
        "outputs": list(group.outputs),
        "implementation": group.implementation,
        "config": group.schedule.to_dict() if group.schedule else {},
        "rewrites": list(group.rewrites),
    }
    return facts | {name: value for name, value in group.evidence.items() if name not in facts}


def show(plan: Plan) -> None:
    from rich.console import Console

    from autofuse.cli.progress import shape_text
    from autofuse.results.explain import from_list, race, si_bytes

    ledger = from_list(plan.evidence.get("ledger", []))  # first, so that a malformed one prints nothing but its error
    console = Console(highlight=False)
    console.print(f"{plan.workload}{shape_text(plan.shape)} for {plan.target}, plan {plan.plan_id}", markup=False)
    unfused = plan.evidence.get("unfused_timing", plan.timing)
    console.print(
        f"{plan.total_us:.1f} us {plan.timing} against {plan.unfused_us:.1f} us unfused"
        f"{'' if unfused == plan.timing else f' ({unfused})'}, {len(plan.groups)} groups"
    )
    for line in race(plan.evidence, plan.total_us):
        console.print(line, markup=False, soft_wrap=True)
    if (limit := plan.evidence.get("memory_limit_mb")) is not None:
        console.print(f"made to keep at most {limit:g} MB between its kernels", markup=False)
    if held := plan.evidence.get("held_bytes"):
        console.print(f"computed once from frozen inputs, and kept: {si_bytes(held)}", markup=False)
    for group in plan.groups:
        how = f"{group.schedule} " if group.schedule else ""
        rewrites = f"({', '.join(group.rewrites)})" if group.rewrites else ""
        console.print(f"  {', '.join(group.ops)}: {group.implementation} {how}{rewrites}".rstrip(), markup=False)
        if group.evidence.get("library"):
            console.print(f"    {group.evidence['library']}", markup=False, soft_wrap=True)
        time, origin = group.evidence.get("recorded_us"), group.evidence.get("recording")
        if time is not None and origin is not None:  # Plan.from_json has seen to their types
            console.print(f"    {time:.1f} us recorded ({origin})", markup=False, soft_wrap=True)
    if not ledger:
        console.print("no intermediate values: nothing to fuse")
        return
    for entry in ledger:
        size = "x".join(map(str, entry.shape)) or "scalar"
        console.print(f"{entry.value}: {entry.reason()} ({entry.dtype} {size})", markup=False, soft_wrap=True)
