"""What an experiment leaves behind: results.parquet, one line a figure, and the table in its README. A missed goal is
kept, with met = false. Nothing is measured here.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autofuse.errors import ResultsError
from autofuse.results.parquet import write as write_table
from autofuse.results.records import now
from autofuse.results.schema import FIGURES, canonical

BETTER = ("higher", "lower")
BEGIN, END = "<!-- results: made by the script, do not edit -->", "<!-- /results -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. goal: None where none was set, then `met` is None too. versions: canonical JSON."""

    row: str
    metric: str
    value: float
    unit: str
    goal: float | None
    better: str
    device: str
    versions: str
    git_sha: str
    when: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        place = f"figure {self.row!r} {self.metric!r}"
        if not self.row or not self.metric or not self.device:
            raise ResultsError(f"{place}: row, metric and device must be named")
        if self.better not in BETTER:
            raise ResultsError(f"{place}: better is {self.better!r}, expected higher or lower")
        if not math.isfinite(self.value) or (self.goal is not None and not math.isfinite(self.goal)):
            raise ResultsError(f"{place}: value {self.value} and goal {self.goal} must be finite")

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


@dataclass
class Experiment:
    """Collects figures of one device: `add` each, then `write`. device: what measured, e.g. "NVIDIA H200" or "cpu"."""

    device: str
    versions: str = field(default_factory=lambda: canonical(versions()))
    git_sha: str = field(default_factory=lambda: git_sha())  # noqa: PLW0108 - the field hides the function
    figures: list[Figure] = field(default_factory=list[Figure])

    def add(self, row: str, metric: str, value: float, unit: str, *, better: str, goal: float | None = None) -> Figure:
        """Raises ResultsError on a wrong figure and on a second one of the same row and metric."""
        if any((row, metric) == (old.row, old.metric) for old in self.figures):
            raise ResultsError(f"figure {row!r} {metric!r} is there already")
        figure = Figure(row, metric, float(value), unit, goal, better, self.device, self.versions, self.git_sha)
        self.figures.append(figure)
        return figure

    def write(self, folder: Path) -> Path:
        """folder/results.parquet, and the table in folder/README.md where that has the markers."""
        readme = folder / "README.md"
        if readme.is_file() and BEGIN in (text := readme.read_text()):
            readme.write_text(with_table(text, markdown(self.figures), str(readme)))
        return write(self.figures, folder / "results.parquet")


def write(figures: Iterable[Figure], path: Path) -> Path:
    found = list(figures)
    if not found:
        raise ResultsError(f"{path}: an experiment without figures")
    columns: dict[str, list[Any]] = {name: [getattr(figure, name) for figure in found] for name in FIGURES.names}
    return write_table(pa.table(columns, schema=FIGURES), path)


def read(path: Path) -> list[Figure]:
    """Raises ResultsError where the file is no results file, or says met of what is not."""
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise ResultsError(f"{path} cannot be read ({error})") from error
    if not table.schema.equals(FIGURES):
        raise ResultsError(f"{path}: columns {table.schema.names}, expected {FIGURES.names} with their types")
    names = [f.name for f in fields(Figure)]
    found: list[Figure] = []
    for row in table.to_pylist():
        figure = Figure(**{name: row[name] for name in names})
        if figure.met != row["met"]:
            what = f"{figure.row} {figure.metric}"
            raise ResultsError(f"{path}: {what}: met is {row['met']}, the numbers say {figure.met}")
        found.append(figure)
    return found


def markdown(figures: Sequence[Figure]) -> str:
    """A table with one line a row and one column a metric; a missed goal is marked with the goal beside it."""
    rows = list(dict.fromkeys(figure.row for figure in figures))
    metrics = list(dict.fromkeys((figure.metric, figure.unit) for figure in figures))
    cells = {(figure.row, (figure.metric, figure.unit)): _cell(figure) for figure in figures}
    head = ["", *(f"{metric} ({unit})" if unit else metric for metric, unit in metrics)]
    lines = [head, ["---", *("---:" for _ in metrics)]]
    lines += [[row, *(cells.get((row, metric), "") for metric in metrics)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def with_table(text: str, table: str, where: str = "README.md") -> str:
    """`text` with what stands between the markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{where}: put {BEGIN} and {END} where the table belongs")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def versions() -> dict[str, str]:
    """Of Python and of what decides times and numbers; a package that is not installed is left out."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("autofuse", "torch", "triton", "numpy", "scipy", "scikit-learn", "optuna"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_sha(folder: Path | None = None) -> str:
    """HEAD of the checkout, "-dirty" where files differ from it, "" outside of one."""
    try:
        sha = _git(folder, "rev-parse", "HEAD")
        return sha + ("-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path | None, *arguments: str) -> str:
    command = ["git", *(["-C", str(folder)] if folder else []), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def _cell(figure: Figure) -> str:
    text = f"{figure.value:.4g}"
    if figure.met is False:
        return f"{text} (missed: {'at least' if figure.better == 'higher' else 'at most'} {figure.goal:.4g})"
    return text
