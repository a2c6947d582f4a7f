"""Recordings as the model reads them: Parquet files or an Arrow table with feature columns and what was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.device import TARGETS, Target, resolve
from autofuse.cost.features import FEATURE_NAMES, PREFIX, Features
from autofuse.cost.geometry import Array
from autofuse.errors import ModelError

if TYPE_CHECKING:
    import pyarrow as pa

LABELS = ("n_regs", "spill_bytes", "smem_bytes", "time_us")
"""Numbers; empty or NaN where the candidate was not compiled, or not timed."""
KEYS = ("target", "family", "program_key")
"""Texts: target's name; fusion family; what was computed, with its shapes (one tuning problem)."""
ORIGINS = ("workload", "dtype", "kind")
"""Texts that only judging reads, "" where a recording lacks them: the function; dtype of what is largest in it; the
kind of fusion, which is the file that the function is shipped in."""
FROM_DEFAULT = "from_default"
"""A number that only judging reads, NaN where a recording lacks it: steps away from the default configuration."""


@dataclass(frozen=True)
class Recording:
    """One entry a candidate."""

    features: Features
    labels: dict[str, Array]
    keys: dict[str, NDArray[np.str_]]
    sha256: str

    def __len__(self) -> int:
        return len(self.features)

    @property
    def compiled(self) -> NDArray[np.bool_]:
        return np.isfinite(self.labels["n_regs"])

    @property
    def timed(self) -> NDArray[np.bool_]:
        return self.compiled & np.isfinite(self.labels["time_us"]) & (self.labels["time_us"] > 0)

    def take(self, rows: NDArray[Any]) -> Recording:
        labels = {name: column[rows] for name, column in self.labels.items()}
        keys = {name: column[rows] for name, column in self.keys.items()}
        return Recording(self.features.take(rows), labels, keys, self.sha256)

    def targets(self) -> dict[str, Target]:
        """Raises ModelError on a device that has no entry in TARGETS."""
        names = sorted({str(name) for name in self.keys["target"]})
        unknown = [name for name in names if name not in TARGETS]
        if unknown:
            raise ModelError(f"recording names unknown targets {', '.join(unknown)}; known: {', '.join(TARGETS)}")
        return {name: resolve(name) for name in names}


def read(source: Sequence[Path] | pa.Table) -> Recording:
    """Raises ModelError naming the file or column that is wrong. Rows in file order; paths in sorted order."""
    import pyarrow as pa

    return from_table(source if isinstance(source, pa.Table) else read_table(source))


def read_table(source: Sequence[Path]) -> pa.Table:
    """All columns of the files. Raises ModelError naming the file that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: list[pa.Table] = []
    for path in sorted(source):
        try:
            tables.append(pq.read_table(path))
        except (OSError, pa.ArrowException) as error:
            raise ModelError(f"recording {path} cannot be read ({error})") from error
    if not tables:
        raise ModelError("no recording given: name at least one Parquet file of candidates")
    return pa.concat_tables(tables, promote_options="permissive")


def from_table(table: pa.Table) -> Recording:
    wanted = [PREFIX + name for name in FEATURE_NAMES] + [*LABELS, *KEYS]
    there = set(table.column_names)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ModelError(f"recording lacks columns: {', '.join(missing)}")
    numbers = {name: _numbers(table, name) for name in wanted if name not in KEYS}
    keys = {name: _texts(table, name) for name in KEYS}
    features = Features.from_recording(numbers)
    for name in FEATURE_NAMES:
        if not np.isfinite(features[name]).all():
            raise ModelError(f"recording: column {PREFIX}{name} has values that are not finite")
    digest = hashlib.sha256()
    for name in sorted(numbers):
        digest.update(name.encode() + np.ascontiguousarray(numbers[name]).tobytes())
    for name in KEYS:
        digest.update("\0".join(keys[name].tolist()).encode())
    labels = {name: numbers[name] for name in LABELS}
    labels[FROM_DEFAULT] = _numbers(table, FROM_DEFAULT) if FROM_DEFAULT in there else np.full(len(table), np.nan)
    keys |= {name: _texts(table, name) if name in there else np.full(len(table), "") for name in ORIGINS}
    return Recording(features, labels, keys, digest.hexdigest())


def _texts(table: pa.Table, name: str) -> NDArray[np.str_]:
    return np.array([x or "" for x in table.column(name).to_pylist()], dtype=np.str_)


def _numbers(table: pa.Table, name: str) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        column = pc.cast(table.column(name), pa.float64())
    except pa.ArrowException as error:
        raise ModelError(f"recording: column {name} does not hold numbers ({error})") from error
    return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), dtype=np.float64)
