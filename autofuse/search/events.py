"""What goes into a tuning run, what comes out, and what it tells meanwhile. Data only; anyone may import this cheaply.

`tune(request, on_event)` returns one TuneResult for each workload and shape, in the request's order, and calls on_event
with the events below from its own thread. An exception that is an AutofuseError ends the whole run; what can be said of
one workload alone is a TuneResult with status "no_plan" or "failed".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autofuse.errors import UsageError

EFFORTS = ("quick", "full")
MOST = 1e12
"""Of seconds, trials, workers or MB."""
STRATEGIES = ("model", "gp", "tpe", "random", "exhaustive")
"""model: the cost model proposes (default). gp, tpe: Optuna's samplers."""

DONE, BUDGET, INTERRUPTED, NO_PLAN, FAILED = "done", "budget", "interrupted", "no_plan", "failed"
EXIT_CODES: Mapping[str, int] = {DONE: 0, BUDGET: 4, INTERRUPTED: 130, NO_PLAN: 3, FAILED: 2}
_WORST_FIRST = (INTERRUPTED, NO_PLAN, FAILED, BUDGET, DONE)


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """workloads: names or "file.py:function". shapes: dims of each plan wanted (one empty mapping: the defaults).
    budget_seconds: of the whole run, None for the effort's own. store, results: None for the user's own folders.
    recordings: folder of recorded times ("none" for none), None for those that come with autofuse.
    memory_limit_mb: what the values between kernels may take at any time, None for no limit.
    workers: compile processes, None for one a core. dry_run: enumerate, predict, and stop before compiling.

    Raises UsageError, which begins with the field's name, for a value that no search can use."""

    workloads: tuple[str, ...]
    shapes: tuple[Mapping[str, int], ...] = field(default=({},), hash=False)
    target: str = "auto"
    effort: str = "quick"
    budget_seconds: float | None = None
    budget_trials: int | None = None
    strategy: str = "model"
    seed: int = 0
    store: Path | None = None
    results: Path | None = None
    resume: bool = False
    dry_run: bool = False
    workers: int | None = None
    recordings: Path | None = None
    memory_limit_mb: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("effort", EFFORTS), ("strategy", STRATEGIES)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} {getattr(self, name)}: expected one of {', '.join(allowed)}")
        check_seed(self.seed)
        _check_amount("budget_seconds", self.budget_seconds, int | float)
        _check_amount("budget_trials", self.budget_trials, int)
        _check_amount("workers", self.workers, int)
        _check_amount("memory_limit_mb", self.memory_limit_mb, int | float)

    def identity(self) -> dict[str, Any]:
        """What a run log must have in common with a request to be resumed by it: folders and budgets are free."""
        free = ("store", "results", "resume", "dry_run", "workers", "budget_seconds", "budget_trials", "recordings")
        return {name: value for name, value in asdict(self).items() if name not in free} | {
            "workloads": list(self.workloads),
            "shapes": [dict(shape) for shape in self.shapes],
        }


def check_seed(seed: object) -> None:
    """Raises UsageError for what NumPy and scikit-learn take no seed from (they need 32 bits)."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise UsageError(f"seed {seed!r}: must be a whole number from 0 to {(1 << 32) - 1}")


def _check_amount(name: str, value: Any, kind: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind):
        raise UsageError(f"{name} {value!r}: must be a {'whole ' if kind is int else ''}number")
    if not 0 < value <= MOST:
        raise UsageError(f"{name} {value}: must be more than 0 and at most {MOST:g}")


def combinations(dims: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], ...]:
    """One shape for each combination of the values, the last name varying fastest."""
    return tuple(dict(zip(dims, values, strict=True)) for values in itertools.product(*dims.values()))


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One group of the chosen plan. n_regs, n_spills, smem_bytes: of the compiled kernel; None for a library call.
    saved_bytes: traffic that fusing avoids. occupancy: 0 to 1. measured_us: None unless timed on the target.
    recorded_us: of an earlier run on such a device, where there is none; recording: which run that was."""

    name: str
    ops: tuple[str, ...]
    implementation: str
    config: Mapping[str, Any] = field(hash=False)
    n_regs: int | None = None
    n_spills: int | None = None
    smem_bytes: int | None = None
    occupancy: float | None = None
    dram_bytes: float | None = None
    saved_bytes: int = 0
    predicted_us: float | None = None
    measured_us: float | None = None
    recorded_us: float | None = None
    recording: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Candidates, at each stage."""

    enumerated: int = 0
    kept: int = 0
    compiled: int = 0
    verified: int = 0
    timed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Verification:
    """Of the whole plan's outputs. reference: what against, "float64" unless said otherwise. None: not run."""

    max_abs_err: float | None = None
    tolerance: float | None = None
    reference: str = "float64"


@dataclass(frozen=True, slots=True)
class TuneResult:
    """One workload and shape: the JSON document's fields, in its order. status: done | budget | interrupted | no_plan |
    failed. detail: why not done, or why there is no plan. ledger: results.explain.LedgerEntry as dicts. unfused_timing:
    of unfused_us, "" where that is unknown. eager_us, inductor_us: of the last race, None where it was not run. race:
    its lines for a reader."""

    workload: str
    shape: Mapping[str, int] = field(hash=False)
    target: str
    timing: str
    plan_id: str | None
    total_us: float | None
    unfused_us: float | None
    groups: tuple[GroupResult, ...]
    candidates: Counts
    verified: Verification
    seconds: float
    store: str | None = None
    status: str = DONE
    detail: str = ""
    ledger: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    unfused_timing: str = ""
    eager_us: float | None = None
    inductor_us: float | None = None
    race: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `autofuse tune --json` prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """log: the run log, which --resume goes on with; None in a dry run. reused: measurements taken over from it."""

    run_id: str
    log: Path | None
    plans: int
    budget_seconds: float | None
    reused: int = 0


@dataclass(frozen=True, slots=True)
class WorkloadStarted:
    """number: 1 to RunStarted.plans."""

    number: int
    workload: str
    shape: Mapping[str, int] = field(hash=False)
    target: str = ""
    timing: str = "predicted"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the present workload stands. failures: status -> count. best_us, eager_us: of the same kind of time."""

    stage: str
    counts: Counts
    failures: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    best_us: float | None = None
    eager_us: float | None = None
    elapsed_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Note:
    """For the reader, once. level: "info" or "warning"."""

    text: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class WorkloadFinished:
    result: TuneResult


Event = RunStarted | WorkloadStarted | Progress | Note | WorkloadFinished
OnEvent = Callable[[Event], None]


def exit_code(results: Sequence[TuneResult]) -> int:
    """Of the command: the worst result's, in the order interrupted, no plan, failed, budget."""
    statuses = {result.status for result in results}
    return next((EXIT_CODES[status] for status in _WORST_FIRST if status in statuses), 0)
