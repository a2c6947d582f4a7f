"""Fits the heads on a recording: physical heads on all that was compiled, the time head on all that was timed.

Deterministic for a seed and a recording. Reads feature columns only, so it needs no program, no GPU and no Triton.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.backbone import NEVER, estimate
from autofuse.cost.geometry import Array
from autofuse.cost.heads import physical_matrix, time_matrix
from autofuse.cost.model import CostModel
from autofuse.cost.recording import Recording, read
from autofuse.cost.resources import Resources, by_rule, with_values
from autofuse.cost.trees import MAX_LEAVES, Forest, from_sklearn
from autofuse.errors import ModelError

if TYPE_CHECKING:
    import pyarrow as pa

TREES = {"registers": 60, "spills": 30, "spill_size": 30, "smem": 30, "time": 60}
"""Chosen so that all heads together score 100,000 candidates in about half a second."""
FOLDS = 3
LEAST_ROWS = 20
"""Of a kind: with fewer a head is not trained and the rule stands."""


def train(source: Sequence[Path] | pa.Table, seed: int = 0, out: Path | None = None) -> CostModel:
    """The model trained on all rows; saved to the folder `out` if given. Raises ModelError on unusable data."""
    if out is not None and out.exists() and not out.is_dir():  # said now, not after the training
        raise ModelError(f"cost model {out} cannot be written (it is there and is no folder): name a folder")
    recording = read(source)
    model = fit(recording, seed)
    if out is not None:
        model.save(out)
    return model


def fit(recording: Recording, seed: int = 0) -> CostModel:
    if recording.compiled.sum() < LEAST_ROWS:
        raise ModelError(
            f"recording has {int(recording.compiled.sum())} compiled candidates; at least {LEAST_ROWS} are needed"
        )
    with _one_thread():
        rows = recording.take(recording.compiled)
        physical, rule = _matrix(rows)
        forests = _physical_heads(rows, physical, rule, seed)
        low, high = physical.min(axis=1), physical.max(axis=1)
        timed: tuple[NDArray[np.float32] | None, NDArray[np.float32] | None] = (None, None)
        if rows.timed.sum() >= LEAST_ROWS:
            forests["time"] = _time_head(rows, physical, rule, seed)
            timed = (physical[:, rows.timed].min(axis=1), physical[:, rows.timed].max(axis=1))
    return CostModel(forests, _card(recording, seed), low, high, *timed, "trained in this process")


def _matrix(rows: Recording) -> tuple[NDArray[np.float32], Resources]:
    """Physical inputs and rule of rows that may be of several targets."""
    order, parts, rules = [], [], []
    for name, target in rows.targets().items():
        here = np.flatnonzero(rows.keys["target"] == name)
        features = rows.features.take(here)
        rule = by_rule(features, target)
        order.append(here)
        rules.append(rule)
        parts.append(physical_matrix(features, target, rule))
    back = np.argsort(np.concatenate(order), kind="stable")
    names = ("registers", "spill_bytes", "smem_bytes", "resident")
    joined = {name: np.concatenate([getattr(rule, name) for rule in rules])[back] for name in names}
    return np.concatenate(parts, axis=1)[:, back], Resources(**joined)


def _physical_heads(rows: Recording, physical: NDArray[np.float32], rule: Resources, seed: int) -> dict[str, Forest]:
    spills = rows.labels["spill_bytes"]
    spilled = np.nan_to_num(spills) > 0
    found = {"registers": _regressor("registers", physical, rows.labels["n_regs"] - rule.registers, seed)}
    ratio = np.log2(np.maximum(rows.labels["smem_bytes"], 1.0) / np.maximum(rule.smem_bytes, 1.0))
    found["smem"] = _regressor("smem", physical, np.clip(np.nan_to_num(ratio), -8, 8), seed)
    if LEAST_ROWS <= spilled.sum() <= len(rows) - LEAST_ROWS:
        found["spills"] = _classifier("spills", physical, spilled, seed)
        size = np.log2(1 + spills[spilled])
        found["spill_size"] = _regressor("spill_size", physical[:, spilled], size, seed)
    return found


def _time_head(rows: Recording, physical: NDArray[np.float32], rule: Resources, seed: int) -> Forest:
    """On the compiler's numbers and, again, on out-of-fold predictions of them: it must serve at both checkpoints."""
    inputs, labels = [], []
    true = {"registers": "n_regs", "spill_bytes": "spill_bytes", "smem_bytes": "smem_bytes"}
    compiled = {name: np.nan_to_num(rows.labels[label]) for name, label in true.items()}
    for values in (compiled, _out_of_fold(rows, physical, rule, seed)):
        for name, target in rows.targets().items():
            here = np.flatnonzero((rows.keys["target"] == name) & rows.timed)
            features = rows.features.take(here)
            have = with_values(features, target, *(values[key][here] for key in true))
            found = estimate(features, target, have)
            runs = found.time_us < NEVER
            inputs.append(time_matrix(physical[:, here], found)[:, runs])
            labels.append(np.log(rows.labels["time_us"][here] / found.time_us)[runs])
    return _regressor("time", np.concatenate(inputs, axis=1), np.clip(np.concatenate(labels), -2.0, 2.0), seed)


def _out_of_fold(rows: Recording, physical: NDArray[np.float32], rule: Resources, seed: int) -> dict[str, Array]:
    """Resources of each row by heads that have not seen its tuning problem."""
    groups = np.unique(rows.keys["program_key"], return_inverse=True)[1]
    fold = np.random.default_rng(seed).permutation(groups.max() + 1)[groups] % FOLDS
    if groups.max() + 1 < FOLDS:
        fold = np.random.default_rng(seed).integers(0, FOLDS, len(rows))
    found = {name: getattr(rule, name).copy() for name in ("registers", "spill_bytes", "smem_bytes")}
    for number in range(FOLDS):
        inside, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(inside) < LEAST_ROWS or not len(held):
            continue
        some = Resources(
            *(getattr(rule, name)[inside] for name in ("registers", "spill_bytes", "smem_bytes", "resident"))
        )
        model = CostModel(_physical_heads(rows.take(inside), physical[:, inside], some, seed))
        for name, target in rows.targets().items():
            here = held[rows.keys["target"][held] == name]
            if len(here):
                predicted = model.predict(rows.features.take(here), target)
                found["registers"][here], found["spill_bytes"][here] = predicted.regs, predicted.spill_bytes
                found["smem_bytes"][here] = predicted.smem
    return found


def _regressor(name: str, columns: NDArray[np.float32], label: Array, seed: int) -> Forest:
    from sklearn.ensemble import HistGradientBoostingRegressor

    loss = "absolute_error" if name in ("registers", "smem") else "squared_error"
    model = HistGradientBoostingRegressor(loss=loss, **_settings(name, columns, seed))
    return _exported(model.fit(columns.T, label), columns, model.predict)


def _classifier(name: str, columns: NDArray[np.float32], label: NDArray[np.bool_], seed: int) -> Forest:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(**_settings(name, columns, seed))
    return _exported(model.fit(columns.T, label), columns, model.decision_function)


def _settings(name: str, columns: NDArray[np.float32], seed: int) -> dict[str, Any]:
    least = max(3, min(20, columns.shape[1] // 40))
    return {
        "max_iter": TREES[name], "max_leaf_nodes": MAX_LEAVES, "learning_rate": 0.15, "min_samples_leaf": least,
        "l2_regularization": 1.0, "early_stopping": False, "random_state": seed,
    }  # fmt: skip


def _exported(model: Any, columns: NDArray[np.float32], predict: Any) -> Forest:
    """The arrays, checked against scikit-learn's own answer: its nodes are no public interface."""
    forest = from_sklearn(model)
    some = np.ascontiguousarray(columns[:, :2000])
    worst = float(np.abs(forest.predict(some) - predict(some.T)).max())
    if worst > 1e-3:
        raise RuntimeError(f"exported trees differ from scikit-learn's by {worst}: its node layout has changed")
    return forest


def _card(recording: Recording, seed: int) -> dict[str, Any]:
    names = ("numpy", "scikit-learn")
    return {
        "data_sha256": recording.sha256, "rows": len(recording), "compiled": int(recording.compiled.sum()),
        "timed": int(recording.timed.sum()), "seed": seed, "targets": sorted(recording.targets()),
        "families": sorted({str(x) for x in recording.keys["family"]}),
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
        "trees": TREES, "metrics": {},
    }  # fmt: skip


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small data sets lose more to waiting threads than they gain: 9,769 candidates took 2.0 s with one; with two 1.9 s
    on an idle machine of two cores, 12 s on a busy one."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="openmp"):
        yield
