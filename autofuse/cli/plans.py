"""`autofuse plans`: what is stored, whether it still holds, and carrying it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autofuse.cli import options, output
from autofuse.cli.explain import brief
from autofuse.errors import AutofuseError, PlanError

if TYPE_CHECKING:
    from autofuse.plans.plan import Plan
    from autofuse.plans.store import PlanStore

app = typer.Typer(name="plans", help="The plan store.", no_args_is_help=True)
Ids = Annotated[list[str] | None, typer.Argument(metavar="[PLAN...]", help="Ids, or their starts; none means all.")]
Archive = Annotated[Path, typer.Argument(metavar="FILE", help="A zip of plans: data, never code.")]


@app.command("list")
@output.command
def list_(store: options.Store = None, json: options.Json = False) -> None:
    """What is stored."""
    held = opened(store)
    plans, faults = held.list(), held.faults()
    for fault in faults:
        output.note(f"warning: {fault}")
    if json:
        output.print_json([head(plan) for plan in plans])
        return
    if not plans:
        output.note(f"no plans in {held.path}; make one: autofuse tune WORKLOAD")
        return
    from rich.console import Console
    from rich.table import Table

    from autofuse.cli.progress import shape_text

    table = Table()
    for column in ("plan", "workload", "target", "us", "of unfused", "timing", "groups", "created"):
        table.add_column(
            column, justify="right" if column in ("us", "of unfused", "groups") else "left", overflow="fold"
        )
    for plan in plans:
        name = f"{plan.workload}{shape_text(plan.shape)}"
        table.add_row(plan.plan_id, name, plan.target, f"{plan.total_us:.1f}", f"{plan.ratio:.2f}", plan.timing,
                      str(len(plan.groups)), plan.created)  # fmt: skip
    Console(highlight=False).print(table)


@app.command()
@output.command
def show(plan: Annotated[str, typer.Argument(metavar="PLAN")], store: options.Store = None) -> None:
    """One plan, whole, as JSON."""
    output.print_json(opened(store).show(plan).to_dict())


@app.command()
@output.command
def verify(
    plan: Ids = None,
    store: options.Store = None,
    run_workloads: Annotated[
        bool, typer.Option("--run-workloads", help="Also run the files that plans name (file.py:function).")
    ] = False,
    json: options.Json = False,
) -> None:
    """Checks plans: well formed, of this environment, of the workload as it is now, kernels can be made again.

    Of a plan whose workload is file.py:function only the first two, since an imported plan may name any file; see
    --run-workloads. Ends with exit code 2 when one does not hold.
    """
    held = opened(store)
    with output.document(json) as emit:
        plans = chosen(held, plan)
        found: list[dict[str, Any]] = []
        for one in plans:
            run = run_workloads or ":" not in one.workload
            found.append({"plan_id": one.plan_id, "workload": one.workload, "fault": fault(one, run), "run": run})
        if not plan:
            found += [{"plan_id": "", "workload": "", "fault": str(error), "run": False} for error in held.faults()]
        if json:
            emit(found)
    if not json:
        for row in found:
            fine = "ok" if row["run"] else "well formed, of this environment; the file was not run (--run-workloads)"
            print(f"{row['plan_id']} {row['workload']}: {row['fault'] or fine}")
    bad = sum(bool(row["fault"]) for row in found)
    if bad:
        raise PlanError(f"{bad} of {len(found)} plans do not hold: tune their workloads again, or remove them")


@app.command()
@output.command
def export(file: Archive, plan: Ids = None, store: options.Store = None) -> None:
    """Writes plans to one file."""
    from autofuse.plans.archive import export_plans

    held = opened(store)
    plans = chosen(held, plan)
    if not plans:
        raise PlanError(f"no plans in {held.path} to export")
    output.note(f"{export_plans(plans, file)} plans written to {file}")


@app.command("import")
@output.command
def import_(file: Archive, store: options.Store = None) -> None:
    """Takes plans from a file, all or none; a better one that is stored already stays."""
    from autofuse.plans.archive import import_plans

    given, kept = import_plans(file, opened(store))
    output.note(f"{given} plans in {file}, {kept} kept")


@app.command()
@output.command
def remove(plan: Annotated[list[str], typer.Argument(metavar="PLAN...")], store: options.Store = None) -> None:
    """Removes plans by id."""
    held = opened(store)
    for plan_id in dict.fromkeys([held.full_id(prefix) for prefix in plan]):  # a wrong one leaves all of them
        output.note(f"removed {held.remove(plan_id)}")


def opened(folder: Path | None) -> PlanStore:
    from autofuse.plans.store import PlanStore

    return PlanStore(options.store_folder(folder))


def chosen(store: PlanStore, prefixes: list[str] | None) -> list[Plan]:
    return [store.show(prefix) for prefix in prefixes] if prefixes else store.list()


def head(plan: Plan) -> dict[str, Any]:
    return {
        **brief(plan),
        "groups": len(plan.groups),
        "graph_key": plan.graph_key,
        "created": plan.created,
    }


def fault(plan: Plan, run: bool = True) -> str:
    """Why the plan does not hold here and now; "" where it does. run: its workload too, which is code."""
    from autofuse.plans.environment import compared, current_environment

    made, here = compared(plan.environment), compared(current_environment())
    stale = [f"made with {name} {made[name]}, here {here[name]}" for name in here if made[name] != here[name]]
    if stale:
        return "; ".join(stale)
    try:
        return _fault_of_kernels(plan) if run else ""
    except AutofuseError as error:
        return str(error)


def _fault_of_kernels(plan: Plan) -> str:
    from autofuse.capture.trace import capture
    from autofuse.capture.workload import load
    from autofuse.cost.device import resolve
    from autofuse.ir.fingerprint import graph_key
    from autofuse.runtime.layout import arrange

    function, arguments = load(plan.workload, dict(plan.shape), "cuda")
    graphs = [captured.graph for captured in capture(function, arguments)]
    graph = next((graph for graph in graphs if graph_key(graph) == plan.graph_key), None)
    if graph is None:
        return "the workload is another function now"
    arrange(graph, plan.bind(graph), resolve(plan.target).multiprocessors)
    return ""
