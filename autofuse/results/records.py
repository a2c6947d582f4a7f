"""What the search records: one Measurement a candidate, its Samples, one Run a workload and shape. Data only.

A record and a row of its table (schema.py) are one thing in two forms: `to_row` and `from_row` are inverse.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from autofuse.errors import ResultsError
from autofuse.results.schema import STATUSES, TIMINGS, Statuses, canonical
from autofuse.schedule.schedule import Schedule

Key = tuple[str, str, str]
"""(graph_key, group_key, config_digest): what is measured once."""

Row = dict[str, Any]
KNOB_DEFAULTS = {f.name: f.default for f in fields(Schedule) if f.name != "roles"}


def now() -> datetime:
    return datetime.now(UTC)


def config_digest(implementation: str, config: Mapping[str, Any], rewrites: str = "") -> str:
    """Names a candidate inside its group: 16 hex digits over implementation, config and rewrites. The order of a
    schedule's roles is its loop order, so it counts; that of other keys does not. Knobs at their defaults are left out,
    so that a knob that is new changes no name that is old."""
    plain: Mapping[str, Any] = config
    if isinstance(config.get("roles"), dict):
        knobs = {name: value for name, value in config.items() if value != KNOB_DEFAULTS.get(name, ...)}
        plain = {**knobs, "roles": list(config["roles"].items())}
    return hashlib.sha256(canonical([implementation, plain, rewrites]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was done to one candidate and what came of it. The columns of schema.CANDIDATES, in other words:

    group_ops: names in graph order, comma separated. family: of the program, "" for a library call. implementation:
    triton | aten | library name | inductor. rewrites: names, comma separated. stage: the last that was entered
    (constraint, model, compile, resources, verify, time). digest: of a failure, so that equal failures count together.
    n_spills: 32-bit registers. occupancy: 0 to 1. time_us: median of the rounds; time_ratio: to the reference kernel.
    A later record of the same key replaces the earlier one. Raises ResultsError on an unknown status or timing.
    """

    run_id: str
    workload: str
    shape_json: str
    target: str
    graph_key: str
    group_key: str
    group_name: str
    group_ops: str
    implementation: str
    config_json: str
    config_digest: str
    status: str
    family: str = ""
    rewrites: str = ""
    stage: str = ""
    digest: str = ""
    detail: str = ""
    propensity: float = 1.0
    predicted_us: float | None = None
    predicted_regs: float | None = None
    predicted_spills: float | None = None
    predicted_smem: float | None = None
    predicted_dram_bytes: float | None = None
    n_regs: int | None = None
    n_spills: int | None = None
    smem_bytes: int | None = None
    occupancy: float | None = None
    binary_sha: str = ""
    duplicate_of: str = ""
    compile_seconds: float | None = None
    max_abs_err: float | None = None
    rms_err: float | None = None
    eager_err: float | None = None
    tolerance: float | None = None
    time_us: float | None = None
    time_ratio: float | None = None
    n_samples: int = 0
    timing: str = "predicted"
    sm_mhz: int | None = None
    power_w: float | None = None
    throttle: int | None = None
    when: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ResultsError(f"measurement status {self.status!r}: expected one of {', '.join(STATUSES)}")
        _check_timing(self.timing)

    @property
    def key(self) -> Key:
        return (self.graph_key, self.group_key, self.config_digest)

    @property
    def outcome(self) -> Statuses:
        return STATUSES[self.status]  # type: ignore[return-value]

    @property
    def settled(self) -> bool:
        """Nothing is left to do: it failed or was measured. What a prune left out may be wanted by the next run."""
        return self.outcome in ("failed", "done") or self.status in ("duplicate", "pruned_resources")


@dataclass(frozen=True, slots=True)
class Samples:
    """The rounds of one candidate in one race. series: "race" or "confirm"; reference_us as long as times_us."""

    run_id: str
    target: str
    graph_key: str
    group_key: str
    config_digest: str
    series: str
    times_us: tuple[float, ...]
    reference_us: tuple[float, ...] = ()
    when: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if self.reference_us and len(self.reference_us) != len(self.times_us):
            raise ResultsError(f"samples: {len(self.times_us)} times with {len(self.reference_us)} reference times")

    def rows(self) -> list[Row]:
        """As the samples table has it: one a round."""
        same = {name: getattr(self, name) for name in ("run_id", "target", "graph_key", "group_key", "config_digest")}
        references = self.reference_us or (None,) * len(self.times_us)
        return [
            {**same, "series": self.series, "round": at, "time_us": time, "reference_us": reference, "when": self.when}
            for at, (time, reference) in enumerate(zip(self.times_us, references, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Run:
    """One workload and shape of a run, when it is over. status: done | budget | interrupted | no_plan | failed."""

    run_id: str
    workload: str
    shape_json: str
    target: str
    status: str
    device: str = ""
    timing: str = "predicted"
    graph_key: str = ""
    plan_id: str = ""
    strategy: str = ""
    effort: str = ""
    seed: int = 0
    budget_seconds: float | None = None
    seconds: float = 0.0
    total_us: float | None = None
    unfused_us: float | None = None
    enumerated: int = 0
    kept: int = 0
    compiled: int = 0
    verified: int = 0
    timed: int = 0
    failed: int = 0
    max_abs_err: float | None = None
    tolerance: float | None = None
    host: str = ""
    git_sha: str = ""
    versions_json: str = "{}"
    config_json: str = "{}"
    when: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        _check_timing(self.timing)


Record = TypeVar("Record", Measurement, Samples, Run)


def to_row(record: Measurement | Samples | Run) -> Row:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def to_json(record: Measurement | Samples | Run) -> Row:
    """A row that JSON can hold: `when` as ISO text, NaN and infinities as text."""
    return {name: _plain(value) for name, value in to_row(record).items()}


def from_row(kind: type[Record], row: Mapping[str, Any]) -> Record:
    """From a table's row or a log's JSON. Columns that this version does not know are left out, so that a newer log
    can be read; a missing or ill-typed one raises ResultsError naming it."""
    made: Row = {}
    for column in fields(kind):
        if column.name in row:
            try:
                made[column.name] = _typed(str(column.type), row[column.name])
            except (TypeError, ValueError) as error:
                what = f"{kind.__name__.lower()}.{column.name}"
                raise ResultsError(f"{what}: {row[column.name]!r} is not {column.type}") from error
    try:
        return kind(**made)
    except TypeError as error:
        raise ResultsError(f"{kind.__name__.lower()}: {error}") from error


def _check_timing(timing: str) -> None:
    if timing not in TIMINGS:
        raise ResultsError(f"timing {timing!r}: expected one of {', '.join(TIMINGS)}")


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return str(value)
        case tuple():
            return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _typed(kind: str, value: Any) -> Any:
    """`value` as the annotation says; the annotations above are all there are."""
    if value is None:
        if kind.endswith("| None"):
            return None
        raise TypeError(kind)
    match kind.removesuffix(" | None"):
        case "float":
            return float(value)
        case "int":
            if int(value) != value:
                raise ValueError(value)
            return int(value)
        case "datetime":
            return value if isinstance(value, datetime) else datetime.fromisoformat(value)
        case "tuple[float, ...]":
            return tuple(float(item) for item in value)
        case _:
            if not isinstance(value, str):
                raise TypeError(kind)
            return value
