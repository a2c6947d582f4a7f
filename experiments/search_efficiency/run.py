"""How many candidates must be timed until a good one is found? Replayed on recorded tuning problems, without a GPU.

python experiments/search_efficiency/run.py [--recordings DIR] [--out DIR] [--seeds 20] [--cells 8]
python experiments/search_efficiency/run.py --table        the results as Markdown

The strategies are autofuse's own, over the recorded candidates of a problem as a finite space. The cost model is
trained without the problem's workloads ("model"), or without its whole family ("family").
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not the one above

import offline
import scripts

from autofuse.cost.device import resolve
from autofuse.cost.metrics import geometric
from autofuse.cost.model import CostModel
from autofuse.cost.recording import Recording, read, read_table
from autofuse.cost.training import fit
from autofuse.results.experiment import Experiment
from autofuse.search.batch import Batch
from autofuse.search.effort import EFFORTS
from autofuse.search.group import Trial
from autofuse.search.pool import Pool, Subspace, subspaces
from autofuse.search.problems import name_of, places, pool_of, rebuilt
from autofuse.search.strategies import Outcome, Random, Strategy, make_strategy

HERE = Path(__file__).resolve().parent
OF_A_WORKLOAD = 2
"""Cells at most, so that one function is not the whole table."""
STRATEGIES = {
    "model": "model, workload out", "family": "model, family out", "gp": "Optuna GP", "tpe": "Optuna TPE",
    "forest": "random forest over the configuration", "random": "random",
}  # fmt: skip
GUIDED = ("model", "family")
ROUND = (EFFORTS["quick"].compiled // 4, EFFORTS["quick"].timed // 4)
"""Compiled and timed in one round of a model-guided search: those of a short `autofuse tune` (Effort.within). Rivals
compile and time one candidate after the other, which is to their advantage: they learn from each at once."""
LONGEST = 24
"""Candidates timed in a replay. The Gaussian process decides how long that takes: 1 to 6 s for each."""
LEAST_TIMED = 24
"""Of a cell."""
AT = (4, 8, 16)


COMPILED = ("n_regs", "spill_bytes", "smem_bytes")
COLUMNS = ("workload", "shape_json", "program_key", "target", "family", "config_json", "rewrites", "status", "time_us",
           *COMPILED)  # fmt: skip


# --- cells ---


@dataclass(frozen=True)
class Cell:
    """A tuning problem. One entry a recorded candidate that was timed, or whose fate after compiling is known; what was
    compiled and not chosen for timing is left out. time_us: NaN where there is none."""

    name: str
    key: str
    family: str
    workloads: frozenset[str]
    parts: tuple[Subspace, ...]
    at: tuple[tuple[int, int], ...]
    status: tuple[str, ...]
    time_us: NDArray[np.float64]
    compiled: NDArray[np.float64]
    """n_regs, spill_bytes, smem_bytes: three rows."""

    @property
    def timed(self) -> int:
        return int(np.isfinite(self.time_us).sum())

    @cached_property
    def best_us(self) -> float:
        return float(np.nanmin(self.time_us))


def cells(table: Any, count: int) -> list[Cell]:
    """The `count` problems with most timed candidates, at most OF_A_WORKLOAD of a workload."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.select(COLUMNS).to_pylist():
        rows.setdefault((row["program_key"], row["target"]), []).append(row)
    some = {problem: found for problem, found in rows.items() if sum(map(is_timed, found)) >= LEAST_TIMED}
    origins = {(row["workload"], row["shape_json"], row["program_key"]) for found in some.values() for row in found}
    programs = rebuilt(sorted(origins))
    made = [
        cell_of(found, subspaces(programs[key], resolve(target)))
        for (key, target), found in some.items() if key in programs
    ]  # fmt: skip
    chosen: list[Cell] = []
    for cell in sorted(made, key=lambda cell: (-cell.timed, cell.key)):
        if len(chosen) < count and sum(cell.workloads & other.workloads != set() for other in chosen) < OF_A_WORKLOAD:
            chosen.append(cell)
    return chosen


def is_timed(row: dict[str, Any]) -> bool:
    return row["time_us"] is not None and row["time_us"] == row["time_us"]


def cell_of(rows: Sequence[dict[str, Any]], parts: tuple[Subspace, ...]) -> Cell:
    """Rows of the same candidate are one: the median of its times."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row, place in zip(rows, places(parts, [name_of(r["config_json"], r["rewrites"]) for r in rows]), strict=True):
        if place is not None and (is_timed(row) or row["status"] != "compiled"):
            found.setdefault(place, []).append(row)
    at = tuple(sorted(found))
    times = [[row["time_us"] for row in found[place] if is_timed(row)] for place in at]
    last = [next((row for row in reversed(found[place]) if is_timed(row)), found[place][-1]) for place in at]
    compiled = [[row[name] or 0 for row in last] for name in COMPILED]
    most = Counter((row["workload"], row["shape_json"]) for row in rows if is_timed(row)).most_common(1)
    workload, shape = most[0][0]
    dims = shape.strip("{}").replace('"', "").replace(":", " ").replace(",", ", ")
    return Cell(
        f"{workload} ({dims}) {rows[0]['program_key'][:6]}", rows[0]["program_key"], rows[0]["family"],
        frozenset(row["workload"] for row in rows), parts, at, tuple(row["status"] for row in last),
        np.array([median(time) if time else np.nan for time in times]), np.array(compiled, dtype=np.float64),
    )  # fmt: skip


def models(cell: Cell, recording: Recording, families: dict[str, CostModel]) -> dict[str, CostModel]:
    """Trained without the cell: without each workload that has it, and without its family."""
    keys = recording.keys
    other = ~np.isin(keys["workload"], list(cell.workloads)) & (keys["program_key"] != cell.key)
    if cell.family not in families:
        families[cell.family] = fit(recording.take(keys["family"] != cell.family))
    return {"model": fit(recording.take(other)), "family": families[cell.family]}


# --- replay ---


class ConfigForest(Random):
    """A random forest over the choices of a schedule alone: uniform at first, then the lowest of the trees' mean less
    their spread of log(time)."""

    FIRST, TREES = 6, 40

    def __init__(self, pool: Pool, seed: int) -> None:
        super().__init__(len(pool), seed)
        self.seed = seed
        self.columns = columns(pool)
        self.times: dict[int, float] = {}

    def tell(self, position: int, outcome: Outcome) -> None:
        super().tell(position, outcome)
        if outcome.time_us is not None:
            self.times[position] = outcome.time_us

    def ask(self, n: int) -> list[int]:
        from sklearn.ensemble import RandomForestRegressor

        if len(self.times) < self.FIRST or not self.left:
            return super().ask(n)
        known = list(self.times)
        forest = RandomForestRegressor(self.TREES, random_state=self.seed)
        forest.fit(self.columns[known], np.log([self.times[position] for position in known]))
        fresh = np.flatnonzero(self.fresh)
        each = np.stack([tree.predict(self.columns[fresh]) for tree in forest.estimators_])
        best = np.argsort(each.mean(axis=0) - each.std(axis=0), kind="stable")[:n]
        return [self.give(int(position)) for position in fresh[best]]


def columns(pool: Pool) -> NDArray[np.float64]:
    """A row a candidate: its subspace, and the position of each choice's value (-1 where it has no such choice)."""
    names = list(dict.fromkeys(digit.name for part in pool.subspaces for digit in part.candidates.digits))
    found = np.full((len(pool), 1 + len(names)), -1.0)
    found[:, 0] = pool.which
    for number, part in enumerate(pool.subspaces):
        here = np.flatnonzero(pool.which == number)
        space = part.candidates
        for digit, stride in zip(space.digits, space.strides, strict=True):
            found[here, 1 + names.index(digit.name)] = pool.index[here] // stride % len(digit.values)
    return found


@dataclass(frozen=True)
class Trace:
    """One entry a timed candidate: candidates compiled by then, regret of the best so far, GPU time spent on timing by
    then as a share of what timing all takes (each runs the same number of rounds)."""

    compiled: NDArray[np.int64]
    regret: NDArray[np.float64]
    spent: NDArray[np.float64]

    def first(self, most: float) -> int | None:
        """Where the regret is at most so much."""
        found = np.flatnonzero(self.regret <= most + 1e-12)
        return int(found[0]) if found.size else None


def replay(cell: Cell, pool: Pool, strategy: Strategy, order: NDArray[np.int64], model: CostModel | None) -> Trace:
    """order: the cell's entry of each position. model: of a guided search, which compiles more than it times."""
    compiled, timed = ROUND if model is not None else (1, 1)
    target, count = resolve("h200"), 0
    counts: list[int] = []
    times: list[float] = []
    while len(times) < LONGEST and (not times or min(times) > cell.best_us):
        asked = strategy.ask(compiled)
        if not asked:
            break
        count += len(asked)
        fit_ones: list[Trial] = []
        for position in asked:
            trial = Trial(position, propensity=strategy.propensity(position))
            if np.isfinite(cell.time_us[order[position]]):
                fit_ones.append(trial)
            elif cell.status[order[position]] != "duplicate":  # as search.rounds: a duplicate is not told
                strategy.tell(position, Outcome(None, cell.status[order[position]]))
        if model is not None and fit_ones:
            rows = np.array([trial.position for trial in fit_ones])
            again = model.predict_compiled(pool.features.take(rows), target, *cell.compiled[:, order[rows]])
            for trial, time in zip(fit_ones, again.time_us, strict=True):
                trial.predicted_us = float(time)
        for trial in Batch(None, fit=fit_ones).chosen(timed):  # type: ignore[arg-type]  # it asks its search nothing here
            time = float(cell.time_us[order[trial.position]])
            strategy.tell(trial.position, Outcome(time, "timed"))
            counts.append(count)
            times.append(time)
    best = np.minimum.accumulate(times)
    return Trace(np.array(counts), best / cell.best_us - 1, np.cumsum(times) / np.nansum(cell.time_us))


def traces(cell: Cell, name: str, model: CostModel, seeds: int) -> list[Trace]:
    import torch

    torch.set_num_threads(1)
    whole = pool_of(cell.parts, cell.at, resolve("h200"), model)
    found: list[Trace] = []
    for seed in range(seeds):
        # Rivals must not see the model's order, in which a search has its pool.
        predicted = np.argsort(whole.predictions.time_us, kind="stable")
        order = predicted if name in GUIDED else np.random.default_rng(seed).permutation(len(cell.at))
        pool = Pool(whole.subspaces, whole.which[order], whole.index[order], whole.features.take(order),
                    whole.predictions.take(order), whole.enumerated)  # fmt: skip
        kind = "model" if name in GUIDED else name
        strategy = ConfigForest(pool, seed) if kind == "forest" else make_strategy(kind, pool, seed)
        found.append(replay(cell, pool, strategy, order, model if name in GUIDED else None))
    return found


# --- figures ---


def put(experiment: Experiment, row: str, found: Sequence[Trace], goals: bool) -> None:
    """What was not reached counts as one more than the replay had, and as no saving of GPU time."""
    reached = [(trace, trace.first(0.05)) for trace in found]
    timed = [LONGEST + 1 if at is None else at + 1 for _, at in reached]
    compiled = [trace.compiled[-1] + 1 if at is None else trace.compiled[at] for trace, at in reached]
    experiment.add(row, "timed to 5 %", median(timed), "", better="lower", goal=16 if goals else None)
    for quartile in (25, 75):
        experiment.add(row, f"its quartile {quartile} %", np.percentile(timed, quartile), "", better="lower")
    experiment.add(row, "compiled to 5 %", median(compiled), "", better="lower", goal=48 if goals else None)
    for k in AT:
        values = [float(trace.regret[min(k, len(trace.regret)) - 1]) for trace in found]
        experiment.add(row, f"regret at {k}", 100 * geometric(values), "%", better="lower")
    cheaper = [1 / trace.spent[at] if (at := trace.first(0.01)) is not None else 1.0 for trace in found]
    goal = 20 if goals else None
    experiment.add(row, "GPU time of all over that to 1 %", median(cheaper), "x", better="higher", goal=goal)


def figures(found: dict[tuple[str, str], list[Trace]], chosen: Sequence[Cell], experiment: Experiment) -> None:
    for name, title in STRATEGIES.items():
        every = [trace for cell in chosen for trace in found[cell.key, name]]
        put(experiment, f"all {len(chosen)} cells: {title}", every, name in GUIDED)
    for cell in chosen:
        title = f"{cell.name}, {cell.timed} timed of {len(cell.at)}"
        for name in STRATEGIES:
            put(experiment, f"{title}: {name}", found[cell.key, name], name in GUIDED)


def plot(found: dict[tuple[str, str], list[Trace]], chosen: Sequence[Cell], out: Path) -> None:
    columns = 3
    rows = -(-(len(chosen) + 1) // columns)
    with offline.panels(out / "regret.png", rows, columns, (2.5, 2.0)) as axes:
        for axis, cell in zip(axes, chosen, strict=False):
            for name, title in STRATEGIES.items():
                curves = 100 * np.stack([curve(trace) for trace in found[cell.key, name]])
                low, middle, high = np.percentile(curves, (25, 50, 75), axis=0)
                place = np.arange(1, LONGEST + 1)
                axis.step(place, middle, where="post", color=offline.COLOURS[name], label=title)
                axis.fill_between(place, low, high, step="post", color=offline.COLOURS[name], alpha=0.12, linewidth=0)
            axis.axhline(5, color="#999999", linewidth=0.7, linestyle=":")
            title = f"{cell.name.partition(' ')[0]}, {cell.timed} timed"
            axis.set(xscale="log", ylim=(0, 30), xlim=(1, LONGEST), title=title)
            axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"], minor=False)
            axis.minorticks_off()
            axis.set(xlabel="candidates timed", ylabel="best so far, % off")
        for axis in axes[len(chosen) + 1 :]:
            axis.axis("off")
        offline.legend_beside(axes[len(chosen)], axes[0])


def curve(trace: Trace) -> NDArray[np.float64]:
    """Regret after 1, 2, ... LONGEST timed candidates; the last one stays."""
    return trace.regret[np.minimum(np.arange(LONGEST), len(trace.regret) - 1)]


def run(chosen: Sequence[Cell], recording: Recording, seeds: int) -> dict[tuple[str, str], list[Trace]]:
    families: dict[str, CostModel] = {}
    context = multiprocessing.get_context("spawn")
    jobs: dict[tuple[str, str], Any] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), context) as workers:
        for cell in chosen:
            trained = models(cell, recording, families)
            for name in STRATEGIES:
                jobs[cell.key, name] = workers.submit(traces, cell, name, trained.get(name, CostModel()), seeds)
        found = {}
        for (key, name), job in jobs.items():
            found[key, name] = job.result()
            print(key[:6], name, flush=True)
    return found


def main() -> None:
    options = offline.options(__doc__, HERE, seeds=20, cells=8)
    table = read_table(sorted(options.recordings.glob("*.parquet")))
    recording = read(table)
    chosen = cells(table, options.cells)
    found = run(chosen, recording.take(recording.compiled), options.seeds)
    experiment = Experiment("recorded on NVIDIA H200, replayed on cpu")
    figures(found, chosen, experiment)
    plot(found, chosen, options.out)
    print(experiment.write(options.out))


if __name__ == "__main__":
    scripts.run(main)
