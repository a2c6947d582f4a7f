"""What predictions are judged by: regret, rank correlation, errors of physical quantities. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.geometry import Array


def regret(score: Array, time: Array, k: int) -> float:
    """Best time among the k lowest scores, over the best of all, less one."""
    first = np.argsort(score, kind="stable")[:k]
    return float(time[first].min() / time.min() - 1)


def random_regret(time: Array, k: int) -> float:
    """Expected regret of k drawn without looking: the i-th best leads with probability C(n-1-i, k-1) / C(n, k)."""
    ordered = np.sort(time)
    n, k = len(ordered), min(k, len(ordered))
    left, expected = 1.0, 0.0
    for i in range(n - k + 1):
        lead = left * k / (n - i)
        expected += lead * ordered[i]
        left -= lead
    return float(expected / ordered[0] - 1)


def geometric(regrets: Sequence[float]) -> float:
    """The regret whose slowdown is the geometric mean of theirs."""
    return float(np.expm1(np.log1p(np.asarray(regrets)).mean()))


def tried(score: Array, time: Array, near: float = 0.05) -> float:
    """How many of the lowest scores hold one within `near` of the best time."""
    close = time[np.argsort(score, kind="stable")] <= (1 + near) * time.min()
    return float(np.argmax(close) + 1)


def random_tried(time: Array, near: float = 0.05) -> float:
    """Expected number drawn without looking until the first of g within `near` of the best: (n + 1) / (g + 1)."""
    close = int((time <= (1 + near) * time.min()).sum())
    return (len(time) + 1) / (close + 1)


def recall(score: Array, time: Array, share: float, near: float = 0.02) -> float:
    """Of the candidates within `near` of the best time, the part that is among the lowest `share` of the scores."""
    first = np.argsort(score, kind="stable")[: max(1, int(np.ceil(share * len(score))))]
    close = time <= (1 + near) * time.min()
    return float(close[first].sum() / close.sum())


def half_widths(error: Array, fold: NDArray[np.int64], level: float) -> Array:
    """Of prediction intervals that are to hold a share `level` of what is measured, one entry an error. A fold's is the
    conformal quantile of the absolute errors of the other folds (Vovk's cross-conformal prediction): the
    ceil((n + 1) * level)-th smallest of n. NaN with a single fold.
    """
    size, half = np.abs(error), np.full(len(error), np.nan)
    for number in np.unique(fold):
        others = np.sort(size[fold != number])
        if len(others):
            half[fold == number] = others[min(int(np.ceil((len(others) + 1) * level)), len(others)) - 1]
    return half


def coverage(error: Array, fold: NDArray[np.int64], level: float) -> tuple[float, float]:
    """The share that such intervals do hold, and their mean half-width. NaN with a single fold."""
    half = half_widths(error, fold, level)
    if np.isnan(half).any():
        return float("nan"), float("nan")
    return float((np.abs(error) <= half).mean()), float(half.mean())


def kept(score: Array, time: Array, share: float) -> float:
    """Best time of all over the best time among the lowest `share` of the scores: 1 is nothing lost."""
    return 1 / (1 + regret(score, time, max(1, int(np.ceil(share * len(score))))))


def kendall_tau(score: Array, time: Array) -> float:
    from scipy.stats import kendalltau

    found = float(kendalltau(score, time).statistic)  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
    return found if np.isfinite(found) else 0.0


def auroc(score: Array, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive scores above a negative; NaN where one kind is absent."""
    from scipy.stats import rankdata

    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return float("nan")
    return float((rankdata(score)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def groups(keys: NDArray[np.str_], least: int) -> Iterator[NDArray[np.intp]]:
    """Rows of each tuning problem that has at least `least` of them."""
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        if len(rows) >= least:
            yield rows
