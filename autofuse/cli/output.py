"""The one way out of every subcommand: what goes to stdout and to stderr, and which exit code an error has."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from autofuse.errors import AutofuseError

INTERRUPTED = 130
P = ParamSpec("P")
R = TypeVar("R")


def error(text: str) -> None:
    """One line, whatever the message; lists of faults keep their lines."""
    print(f"error: {text}", file=sys.stderr)


def note(text: str) -> None:
    print(text, file=sys.stderr)


def command(body: Callable[P, R]) -> Callable[P, R]:
    """AutofuseError -> its line and its exit code; Ctrl-C -> 130; anything else is a bug: traceback, log file, 1."""

    @wraps(body)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except AutofuseError as found:
            error(str(found))
            raise typer.Exit(found.exit_code) from found
        except KeyboardInterrupt as found:
            note("interrupted; everything that was measured is kept, --resume goes on from there")
            raise typer.Exit(INTERRUPTED) from found
        except BrokenPipeError as found:  # `autofuse plans list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from found
        except typer.Exit:
            raise
        except Exception as found:
            report_bug(found)
            raise typer.Exit(1) from found

    return guarded


def report_bug(found: BaseException) -> None:
    text = "".join(traceback.format_exception(found))
    sys.stderr.write(text)
    try:
        path = crash_folder() / f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{' '.join(sys.argv)}\n{text}")
        error(f"this is a bug in autofuse ({type(found).__name__}: {found}); the log is {path}")
    except OSError as why:
        error(f"this is a bug in autofuse ({type(found).__name__}: {found}); no log could be written ({why})")


def crash_folder() -> Path:
    from platformdirs import user_log_path

    return user_log_path("autofuse")


@contextmanager
def document(as_json: bool) -> Iterator[Callable[[Any], None]]:
    """Yields what prints the JSON document. Within, with as_json, everything else that is printed to stdout goes to
    stderr, from C++ too: torch and triton print there at times."""
    if not as_json:
        yield print_json
        return
    made: list[Any] = []
    with _stdout_to_stderr():
        yield made.append
    for data in made:
        print_json(data)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, allow_nan=False, default=_plain))


def _plain(value: object) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    try:
        sys.stdout.flush()
        number = sys.stdout.fileno()
    except (UnsupportedOperation, ValueError, AttributeError):  # captured by a test: no descriptor to move
        with redirect_stdout(sys.stderr):
            yield
        return
    saved = os.dup(number)
    try:
        os.dup2(2, number)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, number)
        os.close(saved)


def finite(value: Any) -> Any:
    """JSON has no infinities: they, and NaN, become null."""
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124
            return None
        case dict():
            return {str(key): finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
