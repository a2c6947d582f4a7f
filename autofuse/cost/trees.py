"""Boosted trees as plain arrays, evaluated by numpy: no pickle on disk, no scikit-learn to predict.

Each tree has at most 16 leaves. A row starts with all leaves possible; every test that sends it right rules out the
leaves to the test's left; the lowest leaf that remains is its own (Lucchese et al., QuickScorer, SIGIR 2015). So a tree
is 15 compares over a column at a time instead of a walk per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import ModelError

MAX_LEAVES = 16
CHUNK = 16384
FEW = 1024
"""Rows up to which all tests are made at once: 3 times as fast at 512 rows, no faster at 1024, slower at 2048."""
_LOWEST = np.zeros(1 << MAX_LEAVES, dtype=np.uint8)
for _leaf in reversed(range(MAX_LEAVES)):
    _LOWEST[(np.arange(1 << MAX_LEAVES) & ((1 << (_leaf + 1)) - 1)) == (1 << _leaf)] = _leaf


@dataclass(frozen=True)
class Forest:
    """prediction = baseline + sum over trees of the value of the row's leaf.

    feature, threshold, mask: one row a tree, one column a test (feature -1 where there is none): a row goes right when
    its feature is above the threshold, and then keeps only the leaves of the mask. values: one row a tree, by leaf.
    """

    baseline: float
    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    mask: NDArray[np.uint16]
    values: NDArray[np.float32]

    def predict(self, columns: NDArray[np.float32]) -> NDArray[np.float64]:
        """columns: one row a feature, C-contiguous, so that each test reads along memory."""
        total = np.full(columns.shape[1], self.baseline)
        for start in range(0, columns.shape[1], CHUNK):
            part = np.ascontiguousarray(columns[:, start : start + CHUNK])
            self._add(part, total[start : start + CHUNK])
        return total

    def _add(self, columns: NDArray[np.float32], total: NDArray[np.float64]) -> None:
        """Candidates of one program agree in most features, so most tests come out one way and are not made by row."""
        low, high = columns.min(axis=1), columns.max(axis=1)
        there = self.feature >= 0
        right = there & (low[self.feature] > self.threshold)
        open_ = there & ~right & ~(high[self.feature] <= self.threshold)  # so that NaN leaves a test open
        known = np.bitwise_or.reduce(np.where(right, ~self.mask, np.uint16(0)), axis=1)
        if columns.shape[1] <= FEW:
            self._add_few(columns, total, open_, known)
        else:
            self._add_many(columns, total, open_, known)

    def _add_many(
        self, columns: NDArray[np.float32], total: NDArray[np.float64], open_: NDArray[np.bool_],
        known: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        """A test at a time, so that what is worked on stays in the cache. known: leaves that no row of a tree has."""
        gone = ~self.mask
        above, lost = np.empty(columns.shape[1], dtype=bool), np.empty(columns.shape[1], dtype=np.uint16)
        dead = np.empty_like(lost)
        for tree, values in enumerate(self.values):
            tests = np.flatnonzero(open_[tree])
            if not tests.size:
                total += values[_LOWEST[0xFFFF ^ int(known[tree])]]
                continue
            dead[:] = known[tree]
            for test in tests.tolist():
                np.greater(columns[self.feature[tree, test]], self.threshold[tree, test], out=above)
                np.multiply(above, gone[tree, test], out=lost)
                np.bitwise_or(dead, lost, out=dead)
            total += values[_LOWEST[~dead]]

    def _add_few(
        self, columns: NDArray[np.float32], total: NDArray[np.float64], open_: NDArray[np.bool_],
        known: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        """All open tests at once: of few rows, a call of numpy costs more than its work. The same sums."""
        tree, test = np.nonzero(open_)
        trees, starts = np.unique(tree, return_index=True)
        leaves = np.empty((len(known), columns.shape[1]), dtype=np.float32)
        leaves[:] = self.values[np.arange(len(known)), _LOWEST[~known]][:, None]
        if tree.size:
            above = columns[self.feature[tree, test]] > self.threshold[tree, test][:, None]
            lost = above * ~self.mask[tree, test][:, None]
            dead = np.bitwise_or.reduceat(lost, starts, axis=0) | known[trees][:, None]
            leaves[trees] = self.values[trees[:, None], _LOWEST[~dead]]
        for row in leaves:  # one after the other, as _add_many does: a sum of another order rounds otherwise
            total += row

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        return {
            f"{prefix}.baseline": np.array([self.baseline]), f"{prefix}.feature": self.feature,
            f"{prefix}.threshold": self.threshold, f"{prefix}.mask": self.mask, f"{prefix}.values": self.values,
        }  # fmt: skip

    @staticmethod
    def from_arrays(prefix: str, arrays: dict[str, NDArray[Any]], features: int) -> Forest:
        """Raises ModelError on shapes, kinds or values that no forest of ours has."""
        try:
            baseline, feature, threshold, mask, values = (
                arrays[f"{prefix}.{name}"] for name in ("baseline", "feature", "threshold", "mask", "values")
            )
        except KeyError as error:
            raise ModelError(f"head {prefix}: array {error} is missing") from error
        tests = (len(feature), MAX_LEAVES - 1)
        shapes = {feature.shape, threshold.shape, mask.shape} == {tests}
        kinds = (feature.dtype, threshold.dtype, mask.dtype, values.dtype) == (
            np.int16,
            np.float32,
            np.uint16,
            np.float32,
        )
        if not shapes or not kinds or values.shape != (len(feature), MAX_LEAVES) or baseline.shape != (1,):
            raise ModelError(f"head {prefix}: arrays do not have the shapes and types of a forest")
        finite = np.isfinite(values).all() and np.isfinite(threshold).all() and np.isfinite(baseline).all()
        if not finite or (len(feature) and (feature.min() < -1 or feature.max() >= features)):
            raise ModelError(f"head {prefix}: values out of range")
        return Forest(float(baseline[0]), feature, threshold, mask, values)


def from_sklearn(model: Any) -> Forest:
    """A fitted HistGradientBoostingRegressor or binary Classifier (its raw score) as arrays."""
    stages = [stage[0] for stage in model._predictors]  # the public API has no way to the nodes
    feature = np.full((len(stages), MAX_LEAVES - 1), -1, dtype=np.int16)
    threshold = np.zeros((len(stages), MAX_LEAVES - 1), dtype=np.float32)
    mask = np.full((len(stages), MAX_LEAVES - 1), 0xFFFF, dtype=np.uint16)
    values = np.zeros((len(stages), MAX_LEAVES), dtype=np.float32)
    for row, stage in enumerate(stages):
        tests, leaves = _flatten(stage.nodes)
        values[row, : len(leaves)] = leaves
        for column, (f, t, m) in enumerate(tests):
            feature[row, column], threshold[row, column], mask[row, column] = f, _round_down(t), m
    return Forest(float(np.ravel(model._baseline_prediction)[0]), feature, threshold, mask, values)


def _round_down(threshold: float) -> np.float32:
    """The greatest float32 not above it: the same float32 columns pass the test."""
    near = np.float32(threshold)
    return near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))


def _flatten(nodes: NDArray[Any]) -> tuple[list[tuple[int, float, int]], list[float]]:
    """Tests as (feature, threshold, leaves that remain when the row goes right), and leaf values left to right."""
    tests: list[tuple[int, float, int]] = []
    leaves: list[float] = []

    def visit(index: int) -> None:
        node = nodes[index]
        if node["is_leaf"]:
            leaves.append(float(node["value"]))
            return
        first = len(leaves)
        visit(int(node["left"]))
        gone = ((1 << len(leaves)) - 1) ^ ((1 << first) - 1)
        tests.append((int(node["feature_idx"]), float(node["num_threshold"]), 0xFFFF ^ gone))
        visit(int(node["right"]))

    visit(0)
    if len(leaves) > MAX_LEAVES:
        raise ModelError(f"a tree has {len(leaves)} leaves; at most {MAX_LEAVES} fit")
    return tests, leaves
