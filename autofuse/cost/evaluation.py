"""How well the model does on data it has not seen, as figures: every metric on every split, baselines beside each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.geometry import Array
from autofuse.cost.held_out import RANKERS, SPLITS, HeldOut, hold_out
from autofuse.cost.metrics import (
    auroc,
    coverage,
    geometric,
    kendall_tau,
    kept,
    random_regret,
    random_tried,
    recall,
    regret,
    tried,
)
from autofuse.cost.model import Predictions
from autofuse.cost.recording import read

if TYPE_CHECKING:
    import pyarrow as pa

LEVELS = (0.5, 0.8, 0.95)
"""Of prediction intervals."""
COLUMNS = (*RANKERS[:-1], "random", RANKERS[-1])


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the table. model: who predicted, one of COLUMNS. better: higher or lower. n: candidates, or tuning
    problems where candidates are ranked."""

    split: str
    metric: str
    model: str
    value: float
    unit: str
    better: str
    n: int


def evaluate(source: Sequence[Path] | pa.Table, seed: int = 0) -> tuple[Figure, ...]:
    """Every metric on every split; splits that the data cannot make (one family only) are left out."""
    recording = read(source)
    held = (hold_out(recording, split, seed) for split in SPLITS)
    return tuple(figure for found in held if found is not None for figure in figures(found))


def figures(held: HeldOut) -> Iterator[Figure]:
    """Of one split. Those of a ranker that ranks no problem, and of random and oracle without any, are left out."""
    for model, predictions in (("model", held.before), ("backbone", held.backbone)):
        yield from _resources(held, predictions, model)
    yield from _times(held)
    yield from _intervals(held)
    for ranker in RANKERS:
        yield from _ranking(held, ranker)
    yield from _random(held)


def _resources(held: HeldOut, found: Predictions, model: str) -> Iterator[Figure]:
    def figure(metric: str, value: float, unit: str = "share", better: str = "higher") -> Figure:
        return Figure(held.split, metric, model, value, unit, better, len(held.recording))

    labels = held.recording.labels
    error = np.abs(found.regs - labels["n_regs"])
    yield figure("registers_mean_error", float(error.mean()), "registers", "lower")
    yield figure("registers_within_16", float((error <= 16).mean()))
    spilled = np.nan_to_num(labels["spill_bytes"]) > 0
    yield figure("spill_auroc", auroc(found.spill_probability, spilled), "auroc")
    yield figure("smem_exact", float((found.smem == labels["smem_bytes"]).mean()))
    yield figure("smem_within_1k", float((np.abs(found.smem - labels["smem_bytes"]) <= 1024).mean()))
    yield figure("occupancy_exact", float((found.occupancy == held.after.occupancy).mean()))


def _times(held: HeldOut) -> Iterator[Figure]:
    timed = held.recording.timed
    for model in ("model", "compiled", "backbone"):
        error = np.abs(held.scores(model)[timed] / held.recording.labels["time_us"][timed] - 1)
        if len(error):
            yield Figure(held.split, "time_median_error", model, float(np.median(error)), "share", "lower", len(error))


def _intervals(held: HeldOut) -> Iterator[Figure]:
    """A time's interval is a factor either way, registers' a number of them."""
    for quantity, unit, error, fold in errors(held):
        for level in LEVELS if len(np.unique(fold)) > 1 else ():
            share, half = coverage(error, fold, level)
            name = f"{quantity}_{round(100 * level)}_percent_interval"
            width = float(np.expm1(half)) if quantity == "time" else half
            yield Figure(held.split, f"{name}_holds", "model", share, "share", "higher", len(error))
            yield Figure(held.split, f"{name}_half_width", "model", width, unit, "lower", len(error))


def errors(held: HeldOut) -> Iterator[tuple[str, str, Array, NDArray[np.int64]]]:
    """What intervals are made of: quantity, unit of a half-width, errors before compiling (of a time its logarithm's),
    folds."""
    timed, labels = held.recording.timed, held.recording.labels
    yield "time", "share", np.log(held.before.time_us[timed] / labels["time_us"][timed]), held.fold[timed]
    yield "registers", "registers", held.before.regs - labels["n_regs"], held.fold


_Judge = Callable[[Array, Array], float]
_Mean = Callable[[Sequence[float]], float]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _p95(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.95))


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


_RANKING: tuple[tuple[str, str, str, _Judge, _Mean], ...] = (
    ("regret_at_1", "share", "lower", partial(regret, k=1), geometric),
    ("regret_at_1_p95", "share", "lower", partial(regret, k=1), _p95),
    ("regret_at_8", "share", "lower", partial(regret, k=8), geometric),
    ("regret_at_16", "share", "lower", partial(regret, k=16), geometric),
    ("kept_at_5_percent", "share of best speed", "higher", partial(kept, share=0.05), _mean),
    ("recall_at_25_percent", "share", "higher", partial(recall, share=0.25), _mean),
    ("tried_to_5_percent", "candidates", "lower", tried, _median),
    ("kendall_tau", "tau", "higher", kendall_tau, _mean),
)
"""Metric, unit, better, of one problem, of all."""


def _ranking(held: HeldOut, ranker: str) -> Iterator[Figure]:
    problems = held.problems(ranker)
    for metric, unit, better, judge, joined in _RANKING if problems else ():
        values = [judge(score, time) for score, time in problems]
        yield Figure(held.split, metric, ranker, joined(values), unit, better, len(values))


_EXPECTED: dict[str, Callable[[Array], float]] = {
    "regret_at_1": partial(random_regret, k=1),
    "regret_at_8": partial(random_regret, k=8),
    "regret_at_16": partial(random_regret, k=16),
    "kept_at_5_percent": lambda time: 1 / (1 + random_regret(time, max(1, int(np.ceil(0.05 * len(time)))))),
    "recall_at_25_percent": lambda time: max(1, int(np.ceil(0.25 * len(time)))) / len(time),
    "tried_to_5_percent": random_tried,
    "kendall_tau": lambda _time: 0.0,
}


def _random(held: HeldOut) -> Iterator[Figure]:
    """What choosing without looking would give, in expectation."""
    times = [time for _, time in held.problems("oracle")]
    for metric, unit, better, _, joined in _RANKING if times else ():
        if metric in _EXPECTED:
            value = joined([_EXPECTED[metric](time) for time in times])
            yield Figure(held.split, metric, "random", value, unit, better, len(times))


def table(found: Sequence[Figure]) -> str:
    """Markdown: a line a metric and split, a column a predictor."""
    cells: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in found:
        cells.setdefault((figure.split, figure.metric), {})[figure.model] = figure
    lines = [f"| split | metric | {' | '.join(COLUMNS)} | better | n |", f"|---|---|{'---:|' * len(COLUMNS)}---|---:|"]
    for (split, metric), row in cells.items():
        first = next(iter(row.values()))
        values = [f"{row[name].value:.4g}" if name in row else "-" for name in COLUMNS]
        lines.append(f"| {split} | {metric} | {' | '.join(values)} | {first.better} | {first.n} |")
    return "\n".join(lines)
