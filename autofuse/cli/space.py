"""`autofuse space`: whether search-space files are right, and how many candidates their constraints leave."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autofuse.cli import options, output
from autofuse.errors import SpaceError, UsageError

if TYPE_CHECKING:
    from autofuse.ir.program import Program
    from autofuse.schedule.counting import Table

app = typer.Typer(name="space", help="Search-space files.", no_args_is_help=True)
Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE...]", help="TOML files, or folders of them; none means the shipped ones."),
]


@app.command()
@output.command
def check(file: Files = None, json: options.Json = False) -> None:
    """Names every error of every file with its place. Ends with exit code 2 when there is one."""
    from autofuse.schedule import space

    paths = [path for given in file or () for path in (sorted(given.glob("*.toml")) if given.is_dir() else [given])]
    paths = paths or list(space.shipped())
    faults: list[Any] = list(space.check(paths))
    if json:
        output.print_json([asdict(fault) for fault in faults])
    if faults:
        many = f"{len(faults)} fault{'s' * (len(faults) > 1)}"
        raise SpaceError(many if json else "\n".join([f"{many} in search-space files", *map(str, faults)]))
    if not json:
        output.note(f"{len(paths)} files are right")


@app.command()
@output.command
def count(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A name, or file.py:function.")],
    shape: options.Shape = None,
    space: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file instead of the shipped ones.")] = None,
    target: options.TargetName = "h200",
    json: options.Json = False,
) -> None:
    """How many candidates each constraint removes, for each group that the whole graph of a workload fuses to."""
    from autofuse.cost.device import resolve

    device = resolve(target)
    dims = options.one_shape(shape)
    with output.document(json) as emit:
        tables = [(name, used, counted) for name, program in programs(workload, dims)
                  for used, counted in [table_of(program, space, device)]]  # fmt: skip
        if json:
            emit([{"group": name, "space": used, **asdict(counted)} for name, used, counted in tables])
        else:
            for name, used, counted in tables:
                show(name, used, counted)


def programs(workload: str, dims: dict[str, int]) -> list[tuple[str, Program]]:
    """The whole graph as one program where it fuses, else one program an op that has one."""
    from autofuse.capture.trace import capture
    from autofuse.capture.workload import load
    from autofuse.fusion.build import NotFusible, build

    function, arguments = load(workload, dims, "cuda")
    found: list[tuple[str, Program]] = []
    for captured in capture(function, arguments):
        graph = captured.graph
        everything = frozenset(op.name for op in graph.ops)
        outputs = tuple(dict.fromkeys(name for name in graph.outputs if name and name not in graph.inputs))
        try:
            found.append(("whole graph", build(graph, everything, outputs)))
            continue
        except NotFusible as reason:
            output.note(f"the whole graph is no group ({reason}); one op at a time")
        for op in graph.ops:
            try:
                found.append((op.name, build(graph, frozenset((op.name,)), op.outputs)))
            except NotFusible:
                continue
    if not found:
        raise UsageError(f"{workload}: no op has a generated kernel, so there is no search space")
    return found


def table_of(program: Program, space: Path | None, device: Any) -> tuple[str, Table]:
    from autofuse.schedule import counting
    from autofuse.schedule.families import classify
    from autofuse.schedule.space import for_family, load

    family = classify(program)
    found = load(space) if space else for_family(family.name, device.arch)
    if found.family != family.name:
        raise SpaceError(f"space {found.name} is for {found.family}, this group is of family {family.name}")
    return found.name, counting.count(found, program, device)


def show(name: str, space: str, counted: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title=f"{name}, space {space}: {counted.total} candidates, {counted.left} left", title_justify="left")
    for column in ("constraint", "removed", "alone", "left", "because"):
        grid.add_column(column, justify="right" if column in ("removed", "alone", "left") else "left")
    for row in counted.rows:
        grid.add_row(row.constraint, str(row.removed), str(row.alone), str(row.left), row.reason)
    console = Console(highlight=False)
    console.print(grid)
    for kinds, raw, left in counted.assignments:
        console.print(f"  {' '.join(f'{axis}={kind}' for axis, kind in kinds.items())}: {raw} -> {left}", markup=False)
