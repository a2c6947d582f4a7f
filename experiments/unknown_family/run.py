"""What does the cost model lose on a kind of fusion that it has never seen? From committed recordings, without a GPU.

python experiments/unknown_family/run.py [--recordings DIR] [--out DIR]
python experiments/unknown_family/run.py --table        the results as Markdown

A kind is a file of datasets/workloads. Each is left out of training in turn, and judged beside models that have seen
other workloads of it, or other parts of the same workloads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not the one above

import offline
import scripts

from autofuse.cost.evaluation import Figure, figures
from autofuse.cost.geometry import Array
from autofuse.cost.held_out import HeldOut, Learn, hold_out
from autofuse.cost.metrics import half_widths, kendall_tau, kept, regret
from autofuse.cost.model import CostModel
from autofuse.cost.recording import Recording, read, read_table
from autofuse.cost.training import fit
from autofuse.errors import ModelError
from autofuse.results.experiment import Experiment
from autofuse.search.problems import with_kinds

HERE = Path(__file__).resolve().parent


def unbounded(recording: Recording, seed: int) -> CostModel:
    """Knows no range of training, so that it believes all that it has learned everywhere."""
    return replace(fit(recording, seed), low=None, high=None, time_low=None, time_high=None)


UNSEEN, UNBOUNDED, SEEN, NEAREST = "kind unseen", "without the fallback", "workload unseen", "problem unseen"
MODELS: dict[str, tuple[str, Learn]] = {
    UNSEEN: ("kind_out", fit), UNBOUNDED: ("kind_out", unbounded),
    SEEN: ("workload_out", fit), NEAREST: ("shapes_out", fit),
}  # fmt: skip
"""Column -> what is held out of its training, and how it is trained."""
BASELINES = ("backbone", "random")
COLOURS = {UNSEEN: "model", SEEN: "family", NEAREST: "default", "backbone": "backbone", "random": "random"}
GOALS = {"regret_at_1": 0.05, "regret_at_8": 0.01, "kept_at_5_percent": 0.98, "kendall_tau": 0.75}
FACTOR = 1.1
"""What the fallback is to promise: no more than this times the backbone's regret, of each kind by itself."""
JUDGES: dict[str, Callable[[Array, Array], float]] = {
    "regret_at_1": lambda score, time: np.log1p(regret(score, time, 1)),
    "regret_at_8": lambda score, time: np.log1p(regret(score, time, 8)),
    "kept_at_5_percent": partial(kept, share=0.05),
    "kendall_tau": kendall_tau,
}
"""Of one problem, as what the figures are means of."""
LEVEL = 0.8
"""Of the intervals."""
OUTSIDE = "outside the range of training"
EVERY = "all kinds"


def held_out(recording: Recording) -> dict[str, HeldOut]:
    """By column. All in as many folds as there are kinds, so that the models have learned from as much. Raises
    ModelError where a split cannot be made."""
    folds, found = len(np.unique(recording.keys["kind"])), dict[str, HeldOut]()
    for name, (split, learn) in MODELS.items():
        one = hold_out(recording, split, folds=folds, learn=learn)
        if one is None:
            raise ModelError(f"recordings cannot be split by {split}: give some of workloads of several kinds, timed")
        found[name] = one
    return found


def judged(held: HeldOut) -> dict[tuple[str, str], Figure]:
    """By metric and model."""
    return {(figure.metric, figure.model): figure for figure in figures(held)}


def of_kind(held: HeldOut, kind: str) -> HeldOut:
    return held if kind == EVERY else held.take(np.flatnonzero(held.recording.keys["kind"] == kind))


def kinds(held: HeldOut) -> list[str]:
    """Those with problems to rank, and all together."""
    names = [str(kind) for kind in np.unique(held.recording.keys["kind"])]
    return [EVERY, *(kind for kind in names if of_kind(held, kind).problems("oracle"))]


def put(experiment: Experiment, held: Mapping[str, HeldOut]) -> None:
    """A row a metric and kind; a column a model by what it has not seen, then the baselines, then how much worse the
    kind unseen is than the workload unseen."""
    found = {kind: {name: judged(of_kind(one, kind)) for name, one in held.items()} for kind in kinds(held[UNSEEN])}
    for metric, limit in GOALS.items():
        for kind, columns in found.items():
            unseen, backbone = (columns[UNSEEN][metric, model] for model in ("model", "backbone"))
            bound = FACTOR * backbone.value if unseen.better == "lower" and kind != EVERY else limit
            add = partial(experiment.add, f"{metric}, {kind}", unit="")
            for name, values in columns.items():
                add(name, values[metric, "model"].value, better=unseen.better, goal=bound if name == UNSEEN else None)
            for baseline in BASELINES:
                add(baseline, columns[UNSEEN][metric, baseline].value, better=unseen.better)
            worse = unseen.value - columns[SEEN][metric, "model"].value
            add("lost", worse if unseen.better == "lower" else -worse, better="lower")
            add("n", unseen.n, better="higher")


def put_doubt(experiment: Experiment, held: Mapping[str, HeldOut]) -> None:
    """Of timed candidates: how many the model takes to be outside of what it was trained on, how many lie in intervals
    made of the other folds' errors, how far off the times are."""
    timed = {name: one.take(np.flatnonzero(one.recording.timed)) for name, one in held.items()}
    error = {name: np.log(one.before.time_us / one.recording.labels["time_us"]) for name, one in timed.items()}
    off = {name: np.expm1(np.abs(some)) for name, some in error.items()}
    outside = {name: one.before.outside > 0 for name, one in timed.items()}
    holds = {name: np.abs(some) <= half_widths(some, timed[name].fold, LEVEL) for name, some in error.items()}
    for metric, better, joined, values in (
        (OUTSIDE, "lower", np.mean, outside),
        (f"{LEVEL:.0%} intervals hold", "higher", np.mean, holds),
        ("median error of the time", "lower", np.median, off),
    ):
        for kind in kinds(held[UNSEEN]):
            for name, one in timed.items():
                here = (one.recording.keys["kind"] == kind) | (kind == EVERY)
                experiment.add(f"{metric}, {kind}", name, float(joined(values[name][here])), "", better=better)
    for name, far in outside.items():
        if far.any():
            row = "median error of the time, those outside"
            experiment.add(row, name, float(np.median(off[name][far])), "", better="lower")
        missed = far[~holds[name]].mean()
        experiment.add("outside, of those not in their intervals", name, float(missed), "", better="higher")


def put_certainty(experiment: Experiment, held: Mapping[str, HeldOut]) -> None:
    """Standard errors, over problems, of the differences that the kind unseen has to the workload unseen and to the
    backbone. Each problem is its own pair."""
    for metric, judge in JUDGES.items():
        for kind in kinds(held[UNSEEN]):
            unseen, seen = (of_kind(held[name], kind) for name in (UNSEEN, SEEN))
            mine, other, backbone = (
                np.array([judge(*problem) for problem in problems])
                for problems in (unseen.problems("model"), seen.problems("model"), unseen.problems("backbone"))
            )
            for column, difference in (("± lost", mine - other), ("± to the backbone", mine - backbone)):
                if len(difference) > 1:
                    error = difference.std(ddof=1) / np.sqrt(len(difference))
                    experiment.add(f"{metric}, {kind}", column, error, "", better="lower")


def plot(experiment: Experiment, path: Path) -> None:
    """A row a kind; regret at 1, best kept, and candidates outside."""
    value = {(figure.row, figure.metric): figure.value for figure in experiment.figures}
    names = [row.partition(", ")[2] for row, metric in value if row.startswith("regret_at_1,") and metric == UNSEEN]
    places = np.arange(len(names))[::-1]
    panels = {
        "regret_at_1": ("regret at 1, %", tuple(COLOURS)),
        "kept_at_5_percent": ("best speed kept at 5 %, %", tuple(COLOURS)),
        OUTSIDE: (f"{OUTSIDE}, %", (UNSEEN, SEEN, NEAREST)),
    }
    with offline.panels(path, 1, len(panels) + 1, (2.3, 2.6)) as axes:
        for axis, (metric, (title, columns)) in zip(axes, panels.items(), strict=False):
            for column in columns:
                values = [100 * value[f"{metric}, {name}", column] for name in names]
                axis.scatter(values, places, s=16, color=offline.COLOURS[COLOURS[column]], label=column)
            axis.set_yticks(places, names if axis is axes[0] else [])
            axis.set_xlabel(title)
        offline.legend_beside(axes[-1], axes[0])


def main() -> None:
    options = offline.options(__doc__, HERE)
    recording = read(with_kinds(read_table(sorted(options.recordings.glob("*.parquet")))))
    print(f"{int((recording.keys['kind'] == '').sum())} of {len(recording)} candidates are of no known kind")
    held = held_out(recording)
    experiment = Experiment("recorded on NVIDIA H200, evaluated on cpu")
    put(experiment, held)
    doubted = {name: one for name, one in held.items() if name != UNBOUNDED}
    put_doubt(experiment, doubted)
    put_certainty(experiment, held)
    plot(experiment, options.out / "kinds.png")
    print(experiment.write(options.out))


if __name__ == "__main__":
    scripts.run(main)
