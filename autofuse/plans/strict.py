"""JSON from untrusted files: bounded in size, depth and magnitude, and field readers whose errors name the field.

Nothing here knows what a plan is. Every refusal is a PlanError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from autofuse.errors import PlanError

MAX_BYTES = 4 << 20
MAX_ITEMS = 20_000
"""Of one list or one object; a graph of 10,000 ops is far beyond what is tuned."""
MAX_TEXT = 20_000
MAX_NUMBER = 1 << 53
"""Integers beyond this lose their value in other JSON readers."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z", re.ASCII)
HEX = re.compile(r"[0-9a-f]{8,64}\Z", re.ASCII)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def parse(data: str | bytes, what: str) -> Json:
    """`what` names the source in errors."""
    if len(data) > MAX_BYTES:
        raise PlanError(f"{what}: {len(data)} bytes, more than the {MAX_BYTES} allowed")
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(
            text,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_refuse,
            object_pairs_hook=_object,
        )
    except PlanError as error:
        raise PlanError(f"{what}: {error}") from None
    except RecursionError:
        raise PlanError(f"{what}: nested too deeply") from None
    except ValueError as error:
        raise PlanError(f"{what}: not JSON ({error})") from None


def _integer(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > MAX_NUMBER:
        raise PlanError(f"number {text[:24]} is too large")
    return value


def _float(text: str) -> float:
    value = float(text) if len(text) <= 64 else math.inf
    if not math.isfinite(value):
        raise PlanError(f"number {text[:24]} is too large")
    return value


def _refuse(text: str) -> float:
    raise PlanError(f"{text} is not a number that JSON has")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise PlanError(f"field {twice[:80]!r} appears twice")
    return found


# --- readers of one field; `where` is its path ---


def text(value: object, where: str, limit: int = MAX_TEXT) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{where}: expected text, got {_shown(value)}")
    if len(value) > limit or not value.isprintable():
        raise PlanError(f"{where}: text too long or with control characters")
    return value


def name(value: object, where: str) -> str:
    if not isinstance(value, str) or not NAME.match(value):
        raise PlanError(f"{where}: {_shown(value)} is not an identifier")
    return value


def dotted(value: object, where: str) -> str:
    """A name, or several joined by dots: an operator's, which is looked up and never run as text."""
    if not isinstance(value, str) or len(value) > 200 or not all(NAME.match(part) for part in value.split(".")):
        raise PlanError(f"{where}: {_shown(value)} is not a dotted name")
    return value


def digest(value: object, where: str) -> str:
    if not isinstance(value, str) or not HEX.match(value):
        raise PlanError(f"{where}: {_shown(value)} is not a hexadecimal digest")
    return value


def choice(value: object, where: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise PlanError(f"{where}: {_shown(value)} is not one of {', '.join(allowed)}")
    return str(value)


def integer(value: object, where: str, low: int = 0, high: int = MAX_NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise PlanError(f"{where}: expected a whole number from {low} to {high}, got {_shown(value)}")
    return value


def number(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e15:
        raise PlanError(f"{where}: expected a number that is not negative, got {_shown(value)}")
    return float(value)


def items(value: object, where: str, read: Callable[[object, str], Any], least: int = 0) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not least <= len(value) <= MAX_ITEMS:
        raise PlanError(f"{where}: expected a list of {least} to {MAX_ITEMS} items, got {_shown(value)}")
    return tuple(read(item, f"{where}[{i}]") for i, item in enumerate(value))


def mapping(
    value: object, where: str, read: Callable[[object, str], Any], key: Callable[[object, str], str] = name
) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise PlanError(f"{where}: expected an object, got {_shown(value)}")
    return {key(k, f"{where} key"): read(v, f"{where}.{k}") for k, v in value.items()}


def record(value: object, where: str, readers: Mapping[str, Callable[[object, str], Any]]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict):
        raise PlanError(f"{where}: expected an object, got {_shown(value)}")
    unknown = sorted(str(k)[:80] for k in set(value) - set(readers))
    missing = sorted(set(readers) - set(value))
    if unknown or missing:
        faults = [f"unknown field {n!r}" for n in unknown[:5]] + [f"field {n!r} is missing" for n in missing[:5]]
        raise PlanError(f"{where}: {'; '.join(faults)}")
    return {field: read(value[field], f"{where}.{field}") for field, read in readers.items()}


def evidence(value: object, where: str, depth: int = 6) -> Json:
    """Free-form facts: numbers, text, booleans, lists and objects of them."""
    match value:
        case None | bool():
            return value
        case int() | float():
            if not math.isfinite(value) or abs(value) > (MAX_NUMBER if isinstance(value, int) else 1e300):
                raise PlanError(f"{where}: number {_shown(value)} is too large")
            return value
        case str():
            return _evidence_text(value, where)
        case list() | tuple() | dict() if depth == 0:
            raise PlanError(f"{where}: nested too deeply")
        case list() | tuple():
            return list(items(value, where, lambda item, at: evidence(item, at, depth - 1)))
        case dict():
            return mapping(value, where, lambda item, at: evidence(item, at, depth - 1), lambda k, at: text(k, at, 200))
        case _:
            raise PlanError(f"{where}: {_shown(value)} is not plain data")


def _evidence_text(value: str, where: str) -> str:
    if len(value) > MAX_TEXT:
        raise PlanError(f"{where}: text of {len(value)} characters, more than the {MAX_TEXT} allowed")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise PlanError(f"{where}: text with half a surrogate pair")
    return value


def _shown(value: object) -> str:
    # repr of a huge integer raises ValueError (Python's limit on digits); of a deep list it is long.
    if isinstance(value, list | dict | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_NUMBER:
        return "a huge integer"
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
