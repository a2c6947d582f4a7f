"""The columns of the three tables, once: Arrow schemas, and the values a status may have. No I/O, no machinery.

Every column is flat and typed; what has no fixed shape (a schedule, a request, versions) is canonical JSON in a text
column. Times are microseconds, sizes bytes, `when` is UTC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

TIMINGS = ("predicted", "recorded", "measured")
"""Where a time comes from; anything that prints a time prints this too."""

STATUSES: Mapping[str, str] = {
    # Never compiled.
    "pruned_constraint": "pruned",
    "pruned_model": "pruned",
    # Compiled, and then?
    "compiled": "open",
    "compile_error": "failed",
    "compile_timeout": "failed",
    "compile_crash": "failed",
    "pruned_resources": "pruned",
    "duplicate": "pruned",
    # Run.
    "verify_wrong": "failed",
    "verify_unwritten": "failed",
    "verify_out_of_bounds": "failed",
    "runtime_error": "failed",
    "timeout": "failed",
    "crash": "failed",
    "verified": "done",
    "dropped": "done",
    "timed": "done",
}
"""status -> class. duplicate: the binary of another candidate (`duplicate_of`), whose measurements hold for it too.
verified: right, and not timed (no GPU, or its time is of no interest). dropped: timed, given up early as a loser."""

Statuses = Literal["pruned", "open", "failed", "done"]

_TEXT, _REAL, _WHOLE, _FLAG = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_WHEN = pa.timestamp("us", tz="UTC")


def _schema(columns: Mapping[str, pa.DataType], version: int = 1) -> pa.Schema:
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"autofuse.schema": str(version)})


RUNS = _schema(
    {
        "run_id": _TEXT,
        "workload": _TEXT,
        "shape_json": _TEXT,
        "target": _TEXT,
        "device": _TEXT,
        "timing": _TEXT,
        "status": _TEXT,
        "graph_key": _TEXT,
        "plan_id": _TEXT,
        "strategy": _TEXT,
        "effort": _TEXT,
        "seed": _WHOLE,
        "budget_seconds": _REAL,
        "seconds": _REAL,
        "total_us": _REAL,
        "unfused_us": _REAL,
        "enumerated": _WHOLE,
        "kept": _WHOLE,
        "compiled": _WHOLE,
        "verified": _WHOLE,
        "timed": _WHOLE,
        "failed": _WHOLE,
        "max_abs_err": _REAL,
        "tolerance": _REAL,
        "host": _TEXT,
        "git_sha": _TEXT,
        "versions_json": _TEXT,
        "config_json": _TEXT,
        "when": _WHEN,
    }
)
"""One line for each workload and shape of a run. config_json: the request."""

CANDIDATES = _schema(
    {
        "run_id": _TEXT,
        "workload": _TEXT,
        "shape_json": _TEXT,
        "target": _TEXT,
        "graph_key": _TEXT,
        "group_key": _TEXT,
        "group_name": _TEXT,
        "group_ops": _TEXT,
        "family": _TEXT,
        "implementation": _TEXT,
        "config_json": _TEXT,
        "config_digest": _TEXT,
        "rewrites": _TEXT,
        "status": _TEXT,
        "stage": _TEXT,
        "digest": _TEXT,
        "detail": _TEXT,
        "propensity": _REAL,
        "predicted_us": _REAL,
        "predicted_regs": _REAL,
        "predicted_spills": _REAL,
        "predicted_smem": _REAL,
        "predicted_dram_bytes": _REAL,
        "n_regs": _WHOLE,
        "n_spills": _WHOLE,
        "smem_bytes": _WHOLE,
        "occupancy": _REAL,
        "binary_sha": _TEXT,
        "duplicate_of": _TEXT,
        "compile_seconds": _REAL,
        "max_abs_err": _REAL,
        "rms_err": _REAL,
        "eager_err": _REAL,
        "tolerance": _REAL,
        "time_us": _REAL,
        "time_ratio": _REAL,
        "n_samples": _WHOLE,
        "timing": _TEXT,
        "sm_mhz": _WHOLE,
        "power_w": _REAL,
        "throttle": _WHOLE,
        "when": _WHEN,
    }
)
"""One line for each candidate that was looked at, pruned and failed ones too. propensity: the probability with which
the search kept candidates like it (1 where it was certain), so that estimates can be weighted."""

SAMPLES = _schema(
    {
        "run_id": _TEXT,
        "target": _TEXT,
        "graph_key": _TEXT,
        "group_key": _TEXT,
        "config_digest": _TEXT,
        "series": _TEXT,
        "round": _WHOLE,
        "time_us": _REAL,
        "reference_us": _REAL,
        "when": _WHEN,
    }
)
"""One line for each timed round. series: "race" or "confirm". reference_us: the fixed kernel in the same round."""

FIGURES = _schema(
    {
        "row": _TEXT,
        "metric": _TEXT,
        "value": _REAL,
        "unit": _TEXT,
        "goal": _REAL,
        "better": _TEXT,
        "met": _FLAG,
        "device": _TEXT,
        "versions": _TEXT,
        "git_sha": _TEXT,
        "when": _WHEN,
    }
)
"""An experiment's results.parquet: one line a figure."""

TABLES: Mapping[str, pa.Schema] = {"runs": RUNS, "candidates": CANDIDATES, "samples": SAMPLES}


def canonical(value: Any) -> str:
    """JSON whose text is equal when the values are: sorted keys, no spaces. Raises ValueError on NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
