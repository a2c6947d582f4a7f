from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autofuse.errors import ResultsError
from autofuse.results import parquet, query, schema
from autofuse.results.log import RunLog
from autofuse.results.records import Measurement, from_row
from tests.results.samples import measurement, run, samples


def log_of(folder: Path, run_id: str, *statuses: str) -> Path:
    with RunLog.create(folder, {}, run_id) as log:
        for number, status in enumerate(statuses):
            log.record(measurement(number, status, run_id=run_id, max_abs_err=0.25))
        log.record(samples())
        log.record(run(run_id=run_id))
        log.end("done")
    return log.path


def test_a_log_becomes_three_files_with_the_declared_columns(tmp_path: Path) -> None:
    files = parquet.compact(log_of(tmp_path, "a", "timed", "pruned_model", "crash"))
    assert set(files) == {"runs", "candidates", "samples"}
    for name, path in files.items():
        assert path == tmp_path / name / "a.parquet"
        file = pq.ParquetFile(path)
        assert file.schema_arrow.equals(schema.TABLES[name])
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    candidates = query.rows(tmp_path, "candidates")
    assert [row["status"] for row in candidates] == ["timed", "pruned_model", "crash"]
    again = from_row(Measurement, candidates[0])
    assert (again.key, again.max_abs_err) == (measurement(0).key, 0.25)
    assert [row["time_us"] for row in query.rows(tmp_path, "samples")] == [10.0, 11.5]


def test_runs_accumulate_and_compacting_again_changes_nothing(tmp_path: Path) -> None:
    first = log_of(tmp_path, "a", "timed")
    parquet.compact(first)
    parquet.compact(log_of(tmp_path, "b", "timed", "crash"))
    parquet.compact(first)
    assert [row["run_id"] for row in query.rows(tmp_path, "candidates")] == ["a", "b", "b"]
    assert len(query.rows(tmp_path, "candidates", "b")) == 2
    assert not list(tmp_path.rglob(".*")), "no temporary file stays"


def test_sql_over_all_runs(tmp_path: Path) -> None:
    parquet.compact(log_of(tmp_path, "a", "timed"))
    parquet.compact(log_of(tmp_path, "b", "timed", "crash"))
    database = query.connect(tmp_path)
    counted = database.sql("select status, count(*) from candidates group by all order by all").fetchall()
    assert counted == [("crash", 1), ("timed", 2)]
    with_glob = database.sql(f"select count(*) from '{tmp_path}/candidates/*.parquet'").fetchall()
    assert with_glob == [(3,)]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, "a", "timed")
    before = parquet.compact(log)["candidates"].read_bytes()

    def torn(table: pa.Table, file: object, **_: object) -> None:
        file.write(b"PAR1 half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", torn)
    with pytest.raises(ResultsError, match="No space left on device"):
        parquet.compact(log)
    assert (tmp_path / "candidates" / "a.parquet").read_bytes() == before
    assert not list(tmp_path.rglob(".*"))


def test_an_older_file_without_a_column_reads_as_null(tmp_path: Path) -> None:
    path = parquet.compact(log_of(tmp_path, "a", "timed"))["candidates"]
    old = pq.ParquetFile(path).read().drop_columns(["rms_err"])
    pq.write_table(old, path)
    assert query.rows(tmp_path, "candidates")[0]["rms_err"] is None


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = parquet.compact(log_of(tmp_path, "a", "timed"))["runs"]
    path.write_bytes(b"PAR1")
    with pytest.raises(ResultsError, match=r"a\.parquet cannot be read"):
        query.rows(tmp_path, "runs")
    with pytest.raises(ResultsError, match="no table 'plans'"):
        query.files(tmp_path, "plans")


def test_an_empty_folder_is_empty_tables(tmp_path: Path) -> None:
    assert query.table(tmp_path, "runs").schema.equals(schema.RUNS)
