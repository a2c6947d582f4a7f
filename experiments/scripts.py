"""What every script here shares: what is wrong with its input is said in one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from autofuse.errors import AutofuseError


def run(main: Callable[[], object]) -> None:
    """Raises SystemExit with the reason, where main cannot go on with what it was given."""
    try:
        main()
    except (AutofuseError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def positive(text: str) -> int:
    """A whole number from 1 on, as argparse takes a type."""
    number = int(text) if text.strip().isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number
