"""The `autofuse` command: subcommands are put together here; each lives in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

import autofuse
from autofuse.cli import doctor, explain, model, plans, space, tune

app = typer.Typer(
    name="autofuse",
    help="Searches how to group and tile the operators of a PyTorch function, by measurement, and explains it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("tune", help=tune.HELP)(tune.tune)
app.command("explain", help=explain.HELP)(explain.explain)
app.add_typer(plans.app, name="plans")
app.add_typer(space.app, name="space")
app.add_typer(model.app, name="model")
app.command("doctor", help=doctor.HELP)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"autofuse {autofuse.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the subcommand."""


def run() -> None:
    app()


if __name__ == "__main__":
    run()
