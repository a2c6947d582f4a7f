"""`autofuse tune`: options into a request, results out as a report or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autofuse.cli import options, output
from autofuse.cli.progress import ProgressView, shape_text, summary
from autofuse.errors import UsageError
from autofuse.search.events import EFFORTS, STRATEGIES, GroupResult, TuneRequest, TuneResult, combinations, exit_code

HELP = "Search the best plan of each workload and shape, and store it."


@output.command
def tune(
    workload: Annotated[list[str], typer.Argument(metavar="WORKLOAD...", help="A name, or file.py:function.")],
    shape: options.Shape = None,
    target: options.TargetName = "auto",
    effort: Annotated[str, typer.Option(metavar="|".join(EFFORTS), help="How long to look.")] = "quick",
    budget_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Search no longer than this; the last race with eager and torch.compile is extra."
        ),
    ] = None,
    budget_trials: Annotated[
        int | None, typer.Option(metavar="N", help="Time at most so many schedules in the whole run (no GPU: compile).")
    ] = None,
    memory_limit_mb: Annotated[
        float | None,
        typer.Option(metavar="MB", help="The values between kernels may take so much at any time (default: no limit)."),
    ] = None,
    strategy: Annotated[str, typer.Option(metavar="|".join(STRATEGIES), help="Who proposes candidates.")] = "model",
    seed: Annotated[int, typer.Option(metavar="N", help="Of every random choice.")] = 0,
    store: options.Store = None,
    results: Annotated[Path | None, typer.Option(metavar="DIR", help="Run logs and Parquet.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest broken-off run of this request.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Enumerate and predict; compile, time, store nothing.")
    ] = False,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Compile processes (default: one a core).")] = None,
    recordings: Annotated[
        Path | None,
        typer.Option(metavar="DIR|none", help="Recorded times, for a target that is not here (default: ours)."),
    ] = None,
    json: options.Json = False,
) -> None:
    folder = options.store_folder(store)
    shapes = combinations(options.parse_dims(shape))
    try:
        request = TuneRequest(
            workloads=tuple(workload),
            shapes=shapes,
            target=target,
            effort=effort,
            budget_seconds=budget_seconds,
            budget_trials=budget_trials,
            memory_limit_mb=memory_limit_mb,
            strategy=strategy,
            seed=seed,
            store=folder,
            results=results or folder / "results",
            resume=resume,
            dry_run=dry_run,
            workers=workers,
            recordings=recordings,
        )
    except UsageError as error:  # it begins with the field's name, which is the option's but for its hyphens
        name, _, fault = str(error).partition(" ")
        raise UsageError(f"--{name.replace('_', '-')} {fault}") from None
    with output.document(json) as emit:
        found, code = run(request)
        if json:
            emit(output.finite([result.to_dict() for result in found]))
        else:
            report(found)
    raise typer.Exit(code)


def run(request: TuneRequest) -> tuple[Sequence[TuneResult], int]:
    """The results and the exit code. A run that is interrupted gives what had finished."""
    from autofuse.search.driver import tune as search

    with ProgressView() as view:
        try:
            found: Sequence[TuneResult] = search(request, view)
        except KeyboardInterrupt:
            where = f" in {view.log}" if view.log else ""
            output.note(f"interrupted; everything measured is kept{where}; the same command with --resume goes on")
            return view.finished, output.INTERRUPTED
    for result in found:
        if result.status == "interrupted":
            output.note(f"interrupted: {summary(result)}")
        if result.status in ("no_plan", "failed"):
            output.error(summary(result))
    return found, exit_code(found)


def report(results: Sequence[TuneResult]) -> None:
    """Tables on stdout: what was looked at, the groups of the plan, the ledger."""
    from rich.console import Console

    from autofuse.results.explain import from_list, ledger_table

    console = Console(highlight=False)
    for result in results:
        counts, verified = result.candidates, result.verified
        console.rule(f"{result.workload}{shape_text(result.shape)} for {result.target}", align="left")
        console.print(
            f"candidates: {counts.enumerated} enumerated, {counts.kept} kept, {counts.compiled} compiled, "
            f"{counts.verified} verified, {counts.timed} timed, {counts.failed} failed"
        )
        if result.total_us is None:
            console.print(f"{result.status}: {result.detail}", markup=False)
            continue
        for line in group_lines(result.groups):
            console.print(line, markup=False, soft_wrap=True)
        if result.ledger:
            console.print(ledger_table(from_list(list(result.ledger))))
        if verified.max_abs_err is not None and verified.tolerance is not None:
            console.print(
                f"checked against {verified.reference}: max abs error {verified.max_abs_err:.3g}, "
                f"relative tolerance {verified.tolerance:.3g}"
            )
        for line in result.race:
            console.print(line, markup=False)
        console.print(summary(result), markup=False)
        if result.plan_id:
            console.print(f"plan {result.plan_id} in {result.store}", markup=False, soft_wrap=True)


def group_lines(groups: Sequence[GroupResult]) -> list[str]:
    """Two lines a group, readable at 80 columns: what runs, and what it costs."""
    from autofuse.results.explain import si_bytes

    found: list[str] = []
    for group in groups:
        facts = [
            ("regs", _shown(group.n_regs)),
            ("spills", _shown(group.n_spills)),
            ("smem", "" if group.smem_bytes is None else si_bytes(group.smem_bytes)),
            ("occupancy", _shown(group.occupancy, "{:.0%}")),
            ("DRAM", "" if group.dram_bytes is None else si_bytes(group.dram_bytes)),
            ("saves", si_bytes(group.saved_bytes)),
            ("predicted", _shown(group.predicted_us, "{:.1f} us")),
            ("measured", _shown(group.measured_us, "{:.1f} us")),
            ("recorded", _shown(group.recorded_us, "{:.1f} us") + (f" ({group.recording})" if group.recording else "")),
        ]
        found.append(f"{group.name}: {group.implementation} {config_text(group.config)}")
        found.append("    " + ", ".join(f"{name} {value}" for name, value in facts if value))
    return found


def config_text(config: object) -> str:
    found: dict[str, Any] = dict(config)  # type: ignore[call-overload]
    roles = found.pop("roles", {})
    return " ".join(
        [*(f"{axis}={role}" for axis, role in dict(roles).items()), *(f"{k}={v}" for k, v in found.items() if v)]
    )


def _shown(value: float | None, form: str = "{}") -> str:
    return "" if value is None else form.format(value)
