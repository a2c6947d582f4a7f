"""Times that candidates took on a real GPU in earlier runs, for a target that is not here: what stands in for a
measurement where nothing can be timed. Recordings are Parquet files (datasets/README.md); only reading is here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from autofuse.errors import InvalidSchedule, ResultsError, UsageError
from autofuse.schedule.schedule import Schedule
from autofuse.settings import settings

SHIPPED = (Path("_data/recordings"), Path("../datasets/recordings"))
"""Where recordings are looked for when none are named, beside the package: in a wheel, then in a checkout."""
NEEDED = ("target", "program_key", "config_json", "rewrites", "time_us")
ORIGIN = ("run_id", "when", "autofuse")
"""Columns that say which run a row is of; the first recordings lack them."""

Name = tuple[tuple[str, ...], Schedule]
"""What a candidate of a program is called here: its rewrites and its schedule. Not the config_digest of its row, which
the first recordings made of knobs at their defaults too."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """time_us: the median where a candidate was recorded more than once. source: file, run, day and version, as far as
    they are known."""

    rewrites: tuple[str, ...]
    schedule: Schedule
    time_us: float
    source: str

    @property
    def name(self) -> Name:
        return self.rewrites, self.schedule


class Recordings:
    """Of one target, in a folder (None: there are none). Read when first asked for.

    Raises ResultsError, naming the file, where one cannot be read or holds what no recording does.
    """

    def __init__(self, folder: Path | None, target: str) -> None:
        self.folder = folder
        self.target = target
        self._known: dict[str, tuple[Recorded, ...]] = {}

    def check(self) -> None:
        """Reads what there is, so that a file that cannot be read is named before anything else is done."""
        _ = self.rows

    def of(self, program_key: str) -> tuple[Recorded, ...]:
        """Candidates of the program with a recorded time, the fastest first."""
        found = self._known.get(program_key)
        if found is None:
            found = self._known[program_key] = _fastest_first(self.rows.get(program_key, ()))
        return found

    @cached_property
    def rows(self) -> Mapping[str, list[_Row]]:
        """By program_key. A recording has some thousand rows: all are read (a few ms), few are looked at closely."""
        found: dict[str, list[_Row]] = {}
        for path in sorted(self.folder.glob("*.parquet")) if self.folder is not None else ():
            for row in _read(path, self.target):
                found.setdefault(row["program_key"], []).append(_Row(path, row))
        return found


def folder(given: Path | None = None) -> Path | None:
    """The folder that was named, else $AUTOFUSE_RECORDINGS, else what comes with autofuse; "none" is none.

    Raises UsageError where a folder that was named has no recording in it.
    """
    wanted = given or settings().recordings
    if wanted is None:
        return shipped()
    if str(wanted) == "none":
        return None
    if not any(wanted.glob("*.parquet")):
        raise UsageError(f"--recordings {wanted}: no recording (*.parquet) there; name a folder that has one, or none")
    return wanted


def shipped() -> Path | None:
    """The folder that comes with autofuse, where there is one."""
    package = Path(__file__).resolve().parent.parent
    return next((found for place in SHIPPED if (found := (package / place).resolve()).is_dir()), None)


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    columns: Mapping[str, Any]

    @property
    def source(self) -> str:
        run, when, version = (str(self.columns.get(name) or "") for name in ORIGIN)
        facts = [run and f"run {run}", when[:10], version and f"autofuse {version}"]
        return ", ".join([self.path.name, *filter(None, facts)])

    def name(self) -> Name | None:
        """None for a schedule that this autofuse does not have."""
        text = self.columns["config_json"]
        try:
            config = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise _unreadable(self.path, f"config_json {str(text)[:60]!r} is not JSON") from error
        if not isinstance(config, dict) or not isinstance(config.get("roles"), dict):
            raise _unreadable(self.path, f"config_json {text[:60]!r} is not a schedule")
        try:
            schedule = Schedule.from_dict(config)
        except (InvalidSchedule, ValueError):
            return None
        return tuple(filter(None, (self.columns["rewrites"] or "").split(","))), schedule


def _fastest_first(rows: list[_Row] | tuple[()]) -> tuple[Recorded, ...]:
    same: dict[Name, list[_Row]] = {}
    for row in rows:
        name = row.name()
        if name is not None:
            same.setdefault(name, []).append(row)
    found = [
        Recorded(*name, median(row.columns["time_us"] for row in group), "; ".join(sorted({r.source for r in group})))
        for name, group in same.items()
    ]
    return tuple(sorted(found, key=lambda one: one.time_us))


def _read(path: Path, target: str) -> list[dict[str, Any]]:
    """Rows of the target that have a time."""
    try:
        file = pq.ParquetFile(path)
        there = file.schema_arrow.names
        missing = [name for name in NEEDED if name not in there]
        if missing:
            raise _unreadable(path, f"no column {', '.join(missing)}")
        table = file.read([name for name in (*NEEDED, *ORIGIN) if name in there])
        table = table.filter(pc.field("target") == target)
        times = table["time_us"].cast(pa.float64()).to_pylist()
        rows = table.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, str(error)) from error
    found = [row | {"time_us": time} for row, time in zip(rows, times, strict=True) if time is not None]
    timed = [row for row in found if not math.isnan(row["time_us"])]
    for row in timed:
        if not isinstance(row["program_key"], str) or not 0 < row["time_us"] < math.inf:
            raise _unreadable(path, f"program_key {row['program_key']!r} with time_us {row['time_us']}")
    return timed


def _unreadable(path: Path, why: str) -> ResultsError:
    return ResultsError(f"recording {path} cannot be read ({why}); restore or remove it, or use --recordings none")
