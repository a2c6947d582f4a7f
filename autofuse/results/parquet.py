"""From a run log to Parquet: FOLDER/{runs,candidates,samples}/RUN_ID.parquet, so that runs accumulate side by side and
a glob reads them all. Files appear whole or not at all. Reading them back is query.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autofuse.errors import ResultsError
from autofuse.results.log import State, read
from autofuse.results.records import Row, to_row
from autofuse.results.schema import TABLES


def compact(log: Path, folder: Path | None = None) -> dict[str, Path]:
    """Writes the three files of a log's run and returns them by table. Again is the same: they are replaced.

    folder: the log's own where None. Raises ResultsError where it cannot be written; the log is untouched.
    """
    state = read(log)
    folder = folder or log.parent
    return {
        name: write(_table(name, rows), folder / name / f"{state.run_id}.parquet")
        for name, rows in _rows(state).items()
    }


def write(table: pa.Table, path: Path) -> Path:
    """By way of a temporary file in the same folder, fsync'd, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                pq.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written ({error.strerror}); the run log is kept") from error
    return path


def _rows(state: State) -> dict[str, list[Row]]:
    return {
        "runs": [to_row(run) for run in state.runs],
        "candidates": [to_row(found) for found in state.measurements.values()],
        "samples": [row for samples in state.samples for row in samples.rows()],
    }


def _table(name: str, rows: list[Row]) -> pa.Table:
    schema = TABLES[name]
    columns: dict[str, list[Any]] = {column: [row[column] for row in rows] for column in schema.names}
    return pa.table(columns, schema=schema)
