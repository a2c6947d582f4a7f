"""Reading results: Arrow tables of all runs of a folder, or SQL over them with DuckDB (an extra)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from autofuse.errors import ResultsError
from autofuse.results.schema import TABLES

if TYPE_CHECKING:
    import duckdb


def files(folder: Path, name: str) -> list[Path]:
    """A table's files, the oldest run first."""
    if name not in TABLES:
        raise ResultsError(f"no table {name!r}: there are {', '.join(TABLES)}")
    return sorted((folder / name).glob("*.parquet"))


def table(folder: Path, name: str, run_id: str | None = None) -> pa.Table:
    """All runs' lines, or one run's, in today's schema: columns that an older file lacks are null.

    Raises ResultsError, naming the file, where one cannot be read.
    """
    schema = TABLES[name]
    parts = [_file(path, schema) for path in files(folder, name) if run_id in (None, path.stem)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def rows(folder: Path, name: str, run_id: str | None = None) -> list[dict[str, Any]]:
    return table(folder, name, run_id).to_pylist()


def connect(folder: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with the views runs, candidates and samples over all Parquet files of the folder."""
    try:
        import duckdb
    except ImportError as error:
        raise ResultsError("SQL over results needs DuckDB: pip install 'autofuse[report]'") from error
    database = duckdb.connect(config={"autoinstall_known_extensions": False})
    for name in TABLES:
        database.register(name, table(folder, name))
    return database


def _file(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        found = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        why = f"results file {path} cannot be read ({error}); remove it, or compact its run log again"
        raise ResultsError(why) from error
    columns = [
        found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(len(found), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
