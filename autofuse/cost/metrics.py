"""What predictions are judged by: regret, rank correlation, errors of physical quantities. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Iterator

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
