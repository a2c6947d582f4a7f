"""Options that several subcommands share, and how their text becomes values. Every message names the option."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from autofuse.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; everything else on stderr.")]
Store = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="The plan store (default: $AUTOFUSE_STORE or yours).")
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=V,V", help="Values of one dimension; several options make all combinations."),
]
TargetName = Annotated[
    str, typer.Option("--target", metavar="auto|cuda:N|NAME", help="A live GPU, or one known by name (h200).")
]
LARGEST_DIM = 1 << 40


def store_folder(given: Path | None) -> Path:
    from autofuse.settings import settings

    return given or settings().store_dir


def parse_dims(given: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """`rows=1,4097` -> {"rows": (1, 4097)}. Raises UsageError on a name twice, no value, or what is no whole number."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given or ():
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise UsageError(f"--shape {text}: expected NAME=VALUE[,VALUE...], for example --shape rows=1,4097")
        if name in found:
            raise UsageError(f"--shape {text}: {name} was given before; list its values in one option: {name}=V,V")
        found[name] = tuple(dict.fromkeys(_dim(text, value) for value in values.split(",")))
    return found


def _dim(text: str, value: str) -> int:
    try:
        found = int(value.strip())
    except ValueError:
        raise UsageError(f"--shape {text}: {value.strip()!r} is not a whole number") from None
    if not 0 <= found <= LARGEST_DIM:
        raise UsageError(f"--shape {text}: {found} is not a size (0 to {LARGEST_DIM})")
    return found


def one_shape(given: Iterable[str] | None) -> dict[str, int]:
    """For subcommands that look at one shape only."""
    dims = parse_dims(given)
    for name, values in dims.items():
        if len(values) != 1:
            raise UsageError(f"--shape {name}: one value here, not {len(values)}")
    return {name: values[0] for name, values in dims.items()}
