"""Verdicts on samples: which candidates have lost, which are finalists. Pure functions of lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many rounds, and when to stop early. screen: before the first drop and between drops. rounds: the most that
    any candidate gets. confirm: fresh rounds of the finalists alone (0: none)."""

    screen: int = 5
    rounds: int = 20
    confirm: int = 20
    finalists: int = 4
    drop_ratio: float = 1.5
    final_ratio: float = 1.1


Z = 2.6
"""Standard errors of a 99 % interval of the mean log ratio."""


def best(samples: Mapping[int, Sequence[float]]) -> int:
    return min(samples, key=lambda index: median(samples[index]))


def log_ratio(samples: Sequence[float], against: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of the interval of log(sample / against), round by round."""
    logs = [math.log(a / b) for a, b in zip(samples, against, strict=False)]
    if len(logs) < 2:
        return (logs[0] if logs else 0.0), math.inf
    return fmean(logs), Z * stdev(logs) / math.sqrt(len(logs))


def losers(samples: Mapping[int, Sequence[float]], drop_ratio: float) -> tuple[int, ...]:
    """Those whose median is over `drop_ratio` times the best's and whose interval lies wholly above it."""
    if not samples:
        return ()
    leader = best(samples)
    lost: list[int] = []
    for index, values in samples.items():
        mean, half = log_ratio(values, samples[leader])
        limit = math.log(drop_ratio)
        if index != leader and median(values) > drop_ratio * median(samples[leader]) and mean - half > limit:
            lost.append(index)
    return tuple(lost)


def finalists(samples: Mapping[int, Sequence[float]], rules: Rounds) -> tuple[int, ...]:
    """The best few within `final_ratio` of the best, best first."""
    ranked = sorted(samples, key=lambda index: median(samples[index]))
    if not ranked:
        return ()
    limit = rules.final_ratio * median(samples[ranked[0]])
    return tuple(index for index in ranked[: rules.finalists] if median(samples[index]) <= limit)
