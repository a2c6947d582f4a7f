"""Predictions of recorded candidates by models that have not seen them, for each way of holding data out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.metrics import groups
from autofuse.cost.model import CostModel, Predictions
from autofuse.cost.recording import FROM_DEFAULT, Recording
from autofuse.cost.training import LEAST_ROWS, fit

SPLITS = {
    "random": None,
    "shapes_out": "program_key",
    "workload_out": "workload",
    "family_out": "family",
    "dtype_out": "dtype",
    "kind_out": "kind",
}
"""Name -> what is held out together. shapes_out leaves other parts of the same function in training; workload_out does
not."""
ALL = ("family", "dtype", "kind")
"""Of which there are few: each is held out by itself."""
FOLDS = 5
LEAST_GROUP = 8
"""Timed candidates of one tuning problem, for ranking it to mean something."""
COMPILED = ("n_regs", "spill_bytes", "smem_bytes")
RANKERS = ("model", "compiled", "backbone", "default", "oracle")
"""model: before compiling; compiled: with the compiler's registers, spills and shared memory; default: nearest to the
default configuration first; oracle: the times themselves."""

Learn = Callable[[Recording, int], CostModel]
"""Of candidates and a seed."""


@dataclass(frozen=True)
class HeldOut:
    """One entry a candidate that some fold held out. before, after: the model's, without and with what the compiler
    says; backbone: what it is to beat."""

    split: str
    recording: Recording
    fold: NDArray[np.int64]
    before: Predictions
    after: Predictions
    backbone: Predictions

    def scores(self, ranker: str) -> NDArray[np.float64]:
        """Lowest first; NaN where it has none."""
        match ranker:
            case "model":
                return self.before.time_us
            case "compiled":
                return self.after.time_us
            case "backbone":
                return self.backbone.time_us
            case "default":
                return self.recording.labels[FROM_DEFAULT]
            case "oracle":
                return self.recording.labels["time_us"]
            case _:
                raise KeyError(f"ranker {ranker!r}; known: {', '.join(RANKERS)}")

    def take(self, rows: NDArray[Any]) -> HeldOut:
        """What was predicted of some rows, by the same models."""
        predicted = (found.take(rows) for found in (self.before, self.after, self.backbone))
        return HeldOut(self.split, self.recording.take(rows), self.fold[rows], *predicted)

    def problems(self, ranker: str) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Scores and times of each tuning problem with LEAST_GROUP timed candidates that the ranker can rank. In an
        order of no meaning, so that equal scores are as good as drawn."""
        keys, score, time = self.recording.keys, self.scores(ranker), self.recording.labels["time_us"]
        rows = np.random.default_rng(0).permutation(np.flatnonzero(self.recording.timed & ~np.isnan(score)))
        names = np.char.add(np.char.add(keys["target"][rows], "/"), keys["program_key"][rows])
        return [(score[rows[some]], time[rows[some]]) for some in groups(names, LEAST_GROUP)]


def hold_out(recording: Recording, split: str, seed: int = 0, folds: int = FOLDS, learn: Learn = fit) -> HeldOut | None:
    """None where the recording cannot make the split. Candidates whose place in it is unknown are left out. folds: in
    how many parts all is held out, but for what is held out by itself. learn: makes each fold's model."""
    recording = recording.take(recording.compiled)
    key = SPLITS[split]
    if key is not None:
        recording = recording.take(recording.keys[key] != "")
    fold = fold_of(recording, split, seed, folds)
    if fold is None:
        return None
    before, after, backbone = (_blank(len(recording)) for _ in range(3))
    for number in np.unique(fold):
        held = np.flatnonzero(fold == number)
        inside = np.flatnonzero(_unseen(recording, fold == number) if key else fold != number)
        if len(inside) < LEAST_ROWS:
            continue
        model = learn(recording.take(inside), seed)
        _fill(before, after, recording, held, model)
        _fill(backbone, None, recording, held, CostModel())
    done = np.flatnonzero(np.isfinite(before.time_us))
    return HeldOut(split, recording, fold, before, after, backbone).take(done) if len(done) else None


def fold_of(recording: Recording, split: str, seed: int, folds: int) -> NDArray[np.int64] | None:
    """Which fold each row is held out in; None with fewer than two of what is to be held out."""
    generator, key = np.random.default_rng(seed), SPLITS[split]
    if key is None:
        return generator.integers(0, folds, len(recording))
    names, groups_of = np.unique(recording.keys[key], return_inverse=True)
    if len(names) < 2:
        return None
    count = len(names) if key in ALL else min(folds, len(names))
    return (generator.permutation(len(names)) % count)[groups_of]


def _unseen(recording: Recording, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What may be trained on: two functions may have a part in common, which is then one tuning problem."""
    programs = recording.keys["program_key"]
    return ~held & ~np.isin(programs, np.unique(programs[held]))


def _blank(n: int) -> Predictions:
    return Predictions(**{field.name: np.full(n, np.nan) for field in fields(Predictions)})


def _fill(
    before: Predictions, after: Predictions | None, recording: Recording, rows: NDArray[np.intp], model: CostModel
) -> None:
    for name, target in recording.targets().items():
        here = rows[recording.keys["target"][rows] == name]
        if not len(here):
            continue
        features = recording.features.take(here)
        _put(before, here, model.predict(features, target))
        if after is not None:
            compiled = (np.nan_to_num(recording.labels[label][here]) for label in COMPILED)
            _put(after, here, model.predict_compiled(features, target, *compiled))


def _put(into: Predictions, rows: NDArray[np.intp], found: Predictions) -> None:
    for field in fields(Predictions):
        getattr(into, field.name)[rows] = getattr(found, field.name)
