"""`autofuse model`: training the cost model on recordings, judging it, and what a model is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from autofuse.cli import options, output
from autofuse.errors import UsageError

app = typer.Typer(name="model", help="The cost model.", no_args_is_help=True)
Recordings = Annotated[list[Path], typer.Argument(metavar="PARQUET...", help="Recorded candidates: files or folders.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of folds and of trees.")]


@app.command()
@output.command
def train(
    recording: Recordings,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model is written.")],
    seed: Seed = 0,
) -> None:
    """Trains a model on all recorded candidates and writes it."""
    from autofuse.cost import training

    _check_seed(seed)
    model = training.train(files(recording), seed, out)
    output.note(f"model with heads {', '.join(sorted(model.forests))} written to {out}")


@app.command()
@output.command
def evaluate(recording: Recordings, seed: Seed = 0, json: options.Json = False) -> None:
    """Trains and tests on held-out candidates, problems, workloads, families and dtypes; how good it is, as figures."""
    from autofuse.cost import evaluation
    from autofuse.cost.recording import read_table
    from autofuse.search.problems import annotated

    _check_seed(seed)
    with output.document(json) as emit:
        figures = evaluation.evaluate(annotated(read_table(files(recording))), seed)
        if json:
            emit(output.finite([asdict(figure) for figure in figures]))
        else:
            print(evaluation.table(figures))


@app.command()
@output.command
def show(
    model: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A model's folder; none means the shipped one.")
    ] = None,
    json: options.Json = False,
) -> None:
    """What a model was trained on, and its heads."""
    from autofuse.cost.model import CostModel

    found = CostModel.load(model)
    facts: dict[str, Any] = {**found.card, "trained": found.trained, "heads": sorted(found.forests)}
    if json:
        output.print_json(output.finite(facts))
        return
    for name, value in sorted(facts.items()):
        print(f"{name}: {value}")


def _check_seed(seed: int) -> None:
    from autofuse.search.events import check_seed

    try:
        check_seed(seed)
    except UsageError as error:
        raise UsageError(f"--{error}") from None


def files(given: list[Path]) -> list[Path]:
    """Folders give their Parquet files, at any depth. Raises UsageError where there is none."""
    found: list[Path] = []
    for path in given:
        inside = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise UsageError(f"{path}: no Parquet file there")
        found += inside
    return found
