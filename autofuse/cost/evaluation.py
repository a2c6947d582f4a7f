"""How well the model does on data it has not seen: three ways of holding data out, baselines beside each figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.geometry import Array
from autofuse.cost.metrics import auroc, groups, kendall_tau, kept, random_regret, regret
from autofuse.cost.model import CostModel, Predictions
from autofuse.cost.recording import Recording, read
from autofuse.cost.training import LEAST_ROWS, fit

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("random", "shapes_out", "family_out")
FOLDS = 5
LEAST_GROUP = 8
"""Timed candidates of one tuning problem, for ranking it to mean something."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the table. model: who predicted: model, backbone or random. better: higher or lower."""

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
    recording = recording.take(recording.compiled)
    return tuple(figure for split in SPLITS for figure in _split_figures(recording, split, seed))


def _split_figures(recording: Recording, split: str, seed: int) -> Iterator[Figure]:
    folds = fold_of(recording, split, seed)
    if folds is None:
        return
    empty = _blank(len(recording))
    learned, plain = empty, _blank(len(recording))
    for number in np.unique(folds):
        inside, held = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        if len(inside) < LEAST_ROWS:
            continue
        _fill(learned, recording, held, fit(recording.take(inside), seed))
        _fill(plain, recording, held, CostModel())
    done = np.flatnonzero(np.isfinite(learned.time_us))
    if not len(done):
        return
    for name, predictions in (("model", learned), ("backbone", plain)):
        yield from _figures(recording.take(done), _rows(predictions, done), split, name)
    yield from _random_figures(recording.take(done), split)


def fold_of(recording: Recording, split: str, seed: int) -> NDArray[np.int64] | None:
    """Which fold each row is held out in. "shapes_out" keeps a tuning problem together, "family_out" a family."""
    generator = np.random.default_rng(seed)
    if split == "random":
        return generator.integers(0, FOLDS, len(recording))
    names, groups_of = np.unique(
        recording.keys["program_key" if split == "shapes_out" else "family"], return_inverse=True
    )
    if len(names) < 2:
        return None
    count = len(names) if split == "family_out" else min(FOLDS, len(names))
    return (generator.permutation(len(names)) % count)[groups_of]


_FIELDS = (
    "regs",
    "spill_bytes",
    "smem",
    "occupancy",
    "dram_bytes",
    "time_us",
    "binding",
    "spill_probability",
    "outside",
)


def _blank(n: int) -> Predictions:
    return Predictions(*(np.full(n, np.nan) for _ in _FIELDS))  # type: ignore[arg-type]


def _fill(into: Predictions, recording: Recording, rows: NDArray[np.intp], model: CostModel) -> None:
    for name, target in recording.targets().items():
        here = rows[recording.keys["target"][rows] == name]
        if len(here):
            found = model.predict(recording.features.take(here), target)
            for field in _FIELDS:
                getattr(into, field)[here] = getattr(found, field)


def _rows(predictions: Predictions, rows: NDArray[np.intp]) -> Predictions:
    return replace(predictions, **{field: getattr(predictions, field)[rows] for field in _FIELDS})


def _figures(recording: Recording, found: Predictions, split: str, model: str) -> Iterator[Figure]:
    def figure(metric: str, value: float, unit: str, better: str, n: int) -> Figure:
        return Figure(split, metric, model, value, unit, better, n)

    n = len(recording)
    error = np.abs(found.regs - recording.labels["n_regs"])
    yield figure("registers_mean_error", float(error.mean()), "registers", "lower", n)
    yield figure("registers_within_16", float((error <= 16).mean()), "share", "higher", n)
    spilled = np.nan_to_num(recording.labels["spill_bytes"]) > 0
    yield figure("spill_auroc", auroc(found.spill_probability, spilled), "auroc", "higher", n)
    yield figure("smem_exact", float((found.smem == recording.labels["smem_bytes"]).mean()), "share", "higher", n)
    near = np.abs(found.smem - recording.labels["smem_bytes"]) <= 1024
    yield figure("smem_within_1k", float(near.mean()), "share", "higher", n)
    ranked = list(_problems(recording))
    if not ranked:
        return
    for metric, unit, better, judge in _RANKING:
        values = [judge(found.time_us[rows], recording.labels["time_us"][rows]) for rows in ranked]
        yield figure(metric, float(np.mean(values)), unit, better, len(values))
    firsts = [regret(found.time_us[rows], recording.labels["time_us"][rows], 1) for rows in ranked]
    yield figure("regret_at_1_p95", float(np.quantile(firsts, 0.95)), "share", "lower", len(firsts))


_Judge = Callable[[Array, Array], float]
_RANKING: tuple[tuple[str, str, str, _Judge], ...] = (
    ("regret_at_1", "share", "lower", lambda score, time: regret(score, time, 1)),
    ("regret_at_8", "share", "lower", lambda score, time: regret(score, time, 8)),
    ("regret_at_16", "share", "lower", lambda score, time: regret(score, time, 16)),
    ("kept_at_5_percent", "share of best speed", "higher", lambda score, time: kept(score, time, 0.05)),
    ("kendall_tau", "tau", "higher", kendall_tau),
)


def _problems(recording: Recording) -> Iterator[NDArray[np.intp]]:
    timed = np.flatnonzero(recording.timed)
    keys = np.char.add(np.char.add(recording.keys["target"][timed], "/"), recording.keys["program_key"][timed])
    for rows in groups(keys, LEAST_GROUP):
        yield timed[rows]


def _random_figures(recording: Recording, split: str) -> Iterator[Figure]:
    """What choosing without looking would give, in expectation."""
    times = [recording.labels["time_us"][rows] for rows in _problems(recording)]
    if not times:
        return
    for k in (1, 8, 16):
        value = float(np.mean([random_regret(time, k) for time in times]))
        yield Figure(split, f"regret_at_{k}", "random", value, "share", "lower", len(times))
    value = float(np.mean([1 / (1 + random_regret(time, max(1, int(np.ceil(0.05 * len(time)))))) for time in times]))
    yield Figure(split, "kept_at_5_percent", "random", value, "share of best speed", "higher", len(times))
    yield Figure(split, "kendall_tau", "random", 0.0, "tau", "higher", len(times))


def table(figures: Sequence[Figure]) -> str:
    """Markdown: a line a metric and split, a column a predictor."""
    cells: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in figures:
        cells.setdefault((figure.split, figure.metric), {})[figure.model] = figure
    lines = ["| split | metric | model | backbone | random | better | n |", "|---|---|---|---|---|---|---|"]
    for (split, metric), row in cells.items():
        any_figure = next(iter(row.values()))
        values = [f"{row[name].value:.4g}" if name in row else "-" for name in ("model", "backbone", "random")]
        lines.append(f"| {split} | {metric} | {' | '.join(values)} | {any_figure.better} | {any_figure.n} |")
    return "\n".join(lines)
