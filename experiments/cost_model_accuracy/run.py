"""How well does the cost model predict what it has not seen? From committed recordings, without a GPU.

python experiments/cost_model_accuracy/run.py [--recordings DIR] [--out DIR]
python experiments/cost_model_accuracy/run.py --table        the results as Markdown

The figures are those of `autofuse model evaluate datasets/recordings`; here they get goals and plots.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not the one above

import offline
import scripts

from autofuse.cost.backbone import NEVER
from autofuse.cost.evaluation import COLUMNS, errors, figures
from autofuse.cost.held_out import LEAST_GROUP, RANKERS, SPLITS, HeldOut, hold_out
from autofuse.cost.metrics import coverage, geometric, kendall_tau, random_regret, recall, regret
from autofuse.cost.recording import read, read_table
from autofuse.results.experiment import Experiment
from autofuse.search.problems import annotated

HERE = Path(__file__).resolve().parent
NEAR, FAR = ("random", "shapes_out"), ("workload_out", "family_out", "dtype_out", "kind_out")
GOALS: dict[str, dict[str, float]] = {
    "kept_at_5_percent": dict.fromkeys(NEAR, 0.995) | dict.fromkeys(FAR, 0.98),
    "regret_at_1": dict.fromkeys(SPLITS, 0.05),
    "regret_at_1_p95": dict.fromkeys(SPLITS, 0.15),
    "regret_at_8": dict.fromkeys(SPLITS, 0.01),
    "regret_at_16": dict.fromkeys(SPLITS, 0.005),
    "tried_to_5_percent": dict.fromkeys(SPLITS, 16),
    "kendall_tau": dict.fromkeys(NEAR, 0.85) | dict.fromkeys(FAR, 0.75),
    "registers_mean_error": dict.fromkeys(SPLITS, 8),
    "registers_within_16": dict.fromkeys(SPLITS, 0.9),
    "spill_auroc": dict.fromkeys(SPLITS, 0.98),
    "smem_exact": dict.fromkeys(SPLITS, 1.0),
    "occupancy_exact": dict.fromkeys(SPLITS, 0.99),
}
"""Of the model before compiling, by metric and split."""


def put(experiment: Experiment, held: Sequence[HeldOut]) -> None:
    """A row a metric and split, metrics with goals first; a column a predictor."""
    found = [figure for one in held for figure in figures(one)]
    places = list(dict.fromkeys([*GOALS, *(figure.metric for figure in found)]))
    for figure in sorted(found, key=lambda figure: (places.index(figure.metric), COLUMNS.index(figure.model) > 0)):
        goal = GOALS.get(figure.metric, {}).get(figure.split) if figure.model == "model" else None
        row = f"{figure.metric}, {figure.split} ({figure.unit})"
        experiment.add(row, figure.model, figure.value, "", better=figure.better, goal=goal)
        if figure.model == "model":
            experiment.add(row, "n", figure.n, "", better="higher")


def repeated(experiment: Experiment, table: Any) -> None:
    """How well the first time of a candidate that was recorded more than once predicts its last: what a perfect model
    of one run would reach on another."""
    times: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in table.select(("program_key", "config_json", "rewrites", "time_us")).to_pylist():
        if row["time_us"] is not None and np.isfinite(row["time_us"]):
            name = row["config_json"], row["rewrites"]
            times.setdefault(row["program_key"], {}).setdefault(name, []).append(row["time_us"])
    pairs = [
        np.array([(series[0], series[-1]) for series in problem.values() if len(series) > 1]).reshape(-1, 2)
        for problem in times.values()
    ]
    again = np.concatenate(pairs)
    error = float(np.median(np.abs(again[:, 0] / again[:, 1] - 1)))
    taus = [kendall_tau(*pair.T) for pair in pairs if len(pair) >= LEAST_GROUP]
    for row, value, n, better in (
        ("time_median_error, the same candidate in another run (share)", error, len(again), "lower"),
        ("kendall_tau, the same candidates in another run (tau)", float(np.mean(taus)), len(taus), "higher"),
    ):
        experiment.add(row, "another run", value, "", better=better)
        experiment.add(row, "n", n, "", better="higher")


# --- plots ---


def parity(held: Sequence[HeldOut], path: Path) -> None:
    with offline.panels(path, 2, len(held)) as axes:
        for above, below, one in zip(axes, axes[len(held) :], held, strict=False):
            labels, timed = one.recording.labels, one.recording.timed
            density(above, labels["n_regs"], one.before.regs, "registers a thread")
            runs = timed & (one.before.time_us < NEVER / 10)  # the learned factor is at most e^2
            density(below, np.log10(labels["time_us"][runs]), np.log10(one.before.time_us[runs]), "log10 of time in us")
            above.set_title(f"{one.split}, n {len(one.recording)}")
            below.set_title(f"{one.split}, n {runs.sum()}")
            below.text(
                0.05, 0.88, f"{(timed & ~runs).sum()} predicted not to run", transform=below.transAxes, fontsize=6
            )


def density(axis: Any, true: Any, predicted: Any, unit: str) -> None:
    low, high = float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))
    axis.hexbin(true, predicted, gridsize=28, bins="log", cmap="Blues", mincnt=1, linewidths=0.1)
    axis.plot([low, high], [low, high], color="#b03a3a", linewidth=0.7)
    axis.set(xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}", aspect="equal")


def ranking(held: Sequence[HeldOut], path: Path) -> None:
    """Regret at k above, recall of what is within 2 % of the best below."""
    counts, shares = np.arange(1, 25), np.linspace(0.02, 1, 50)
    with offline.panels(path, 2, len(held)) as axes:
        for above, below, one in zip(axes, axes[len(held) :], held, strict=False):
            for ranker in RANKERS:
                some = one.problems(ranker)
                if some:
                    regrets = [100 * geometric([regret(score, time, k) for score, time in some]) for k in counts]
                    recalls = [np.mean([recall(score, time, share) for score, time in some]) for share in shares]
                    above.plot(counts, regrets, color=offline.COLOURS[ranker], label=ranker)
                    below.plot(100 * shares, recalls, color=offline.COLOURS[ranker])
            times = [time for _, time in one.problems("oracle")]
            regrets = [100 * geometric([random_regret(time, k) for time in times]) for k in counts]
            above.plot(counts, regrets, color=offline.COLOURS["random"], label="random")
            below.plot([0, 100], [0, 1], color=offline.COLOURS["random"])
            above.set(title=f"{one.split}, {len(times)} problems", xlabel="k", ylabel="regret at k, %", ylim=(0, 20))
            below.set(xlabel="kept by the ranking, % of candidates", ylabel="of those within 2 %, share kept")
        axes[0].legend()


def calibration(held: Sequence[HeldOut], path: Path) -> None:
    levels = np.linspace(0.05, 0.95, 19)
    with offline.panels(path, 1, 2, (3.2, 2.9)) as axes:
        for one in held:
            for axis, (quantity, _, error, fold) in zip(axes, errors(one), strict=True):
                axis.plot(levels, [coverage(error, fold, level)[0] for level in levels], label=one.split)
                axis.set(title=f"intervals of {quantity}", xlabel="promised share", ylabel="share that they hold")
        for axis in axes:
            axis.plot([0, 1], [0, 1], color="#999999", linewidth=0.7, linestyle=":")
        axes[0].legend()


def main() -> None:
    options = offline.options(__doc__, HERE)
    table = read_table(sorted(options.recordings.glob("*.parquet")))
    recording = read(annotated(table))
    held = [found for split in SPLITS if (found := hold_out(recording, split)) is not None]
    experiment = Experiment("recorded on NVIDIA H200, evaluated on cpu")
    put(experiment, held)
    repeated(experiment, table)
    parity([one for one in held if one.split != "random"], options.out / "parity.png")
    ranking(held, options.out / "ranking.png")
    calibration(held, options.out / "calibration.png")
    print(experiment.write(options.out))


if __name__ == "__main__":
    scripts.run(main)
