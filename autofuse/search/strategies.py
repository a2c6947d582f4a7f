"""Which candidates of a group to try next: strategies behind one small interface, by position in the group's pool.

A strategy never gives a position twice, and gives fewer than asked only when the pool runs out. What it gave is its
caller's to measure; failures are told like times, and are not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import UsageError

if TYPE_CHECKING:
    from autofuse.search.pool import Pool

EXPLORED = 0.08
"""Part of a model-guided batch that is drawn uniformly, so that the model is also fitted on what it does not favour."""
NEAR = 0.25
"""Part of a batch that is taken from around the best measured candidates."""
CENTRES = 3
"""Best measured candidates whose neighbours are tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """time_us is None where the candidate failed, was pruned after compiling, or was not timed."""

    time_us: float | None
    status: str


class Strategy(Protocol):
    def ask(self, n: int) -> list[int]:
        """At most n positions that were not given before; fewer only when no more are left."""
        ...

    def tell(self, position: int, outcome: Outcome) -> None:
        """What came of a position, in any order; positions that were never asked for are welcome too."""
        ...

    def propensity(self, position: int) -> float:
        """Probability with which a position was given; 1 where it was certain. Below 1 for explorers only."""
        ...


class _Base:
    """Keeps account of what was given. Positions told without having been asked for count as given."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.fresh: NDArray[np.bool_] = np.ones(size, dtype=bool)
        self.left = size
        self.propensities: dict[int, float] = {}

    def give(self, position: int, propensity: float = 1.0) -> int:
        self.fresh[position] = False
        self.left -= 1
        if propensity < 1.0:
            self.propensities[position] = propensity
        return position

    def tell(self, position: int, outcome: Outcome) -> None:
        del outcome
        if self.fresh[position]:
            self.give(position)

    def propensity(self, position: int) -> float:
        return self.propensities.get(position, 1.0)


class Exhaustive(_Base):
    """In the pool's order: best predicted first."""

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__(size, seed)
        self.at = 0

    def ask(self, n: int) -> list[int]:
        found: list[int] = []
        while len(found) < n and self.at < self.size:
            if self.fresh[self.at]:
                found.append(self.give(self.at))
            self.at += 1
        return found


class Random(_Base):
    """Uniform without repetition."""

    def ask(self, n: int) -> list[int]:
        count = min(n, self.left)
        if count <= 0:
            return []
        odds = count / self.left
        chosen = self.rng.choice(np.flatnonzero(self.fresh), count, replace=False)
        return [self.give(int(position), odds) for position in chosen]


class ModelGuided(_Base):
    """The best predicted, some around the best measured, and a few drawn uniformly with their propensity kept.

    The order is not corrected by the times of a search. Replayed on both H200 recordings (30 problems, each left out of
    training, two rounds of 4 to 8), corrections of the log time by subspace, by ridge over knobs or by a Gaussian
    process left the median of candidates timed until within 5 % of the best at 1, and changed the regret of 5 problems
    at most, as often for the worse. They helped the backbone alone, which nobody searches with.

    neighbours: positions that differ from one in one choice. A prediction that is no number ranks last.
    """

    def __init__(
        self, predicted: NDArray[np.float64], neighbours: Callable[[int], Sequence[int]], seed: int = 0,
        explored: float = EXPLORED,
    ) -> None:  # fmt: skip
        super().__init__(len(predicted), seed)
        self.neighbours = neighbours
        self.explored = explored
        self.times: dict[int, float] = {}
        self.predicted = np.nan_to_num(np.asarray(predicted, dtype=np.float64), nan=np.inf, posinf=np.inf)
        self.order: NDArray[np.int64] = np.argsort(self.predicted, kind="stable").astype(np.int64)
        self.at = 0

    def tell(self, position: int, outcome: Outcome) -> None:
        super().tell(position, outcome)
        if outcome.time_us is not None:
            self.times[position] = outcome.time_us

    def ask(self, n: int) -> list[int]:
        n = min(n, self.left)
        if n <= 0:
            return []
        explorers = self._explorers(n)
        near = self._near(int(NEAR * n)) if self.times else []
        found = [self.give(position) for position in near[: max(n - explorers, 0)]]
        while len(found) < n - explorers:
            position = int(self.order[self.at])
            self.at += 1
            if self.fresh[position]:
                found.append(self.give(position))
        return found + self._explore(explorers, n)

    def _explorers(self, n: int) -> int:
        """A whole number whose mean is the wanted part of n, at least one candidate being the model's choice."""
        whole, rest = divmod(self.explored * n, 1.0)
        return min(int(whole) + int(self.rng.random() < rest), n - 1)

    def _explore(self, count: int, n: int) -> list[int]:
        if count <= 0:
            return []
        odds = min(max(self.explored * n, 1e-9) / self.left, 1.0 - 1e-9)
        chosen = self.rng.choice(np.flatnonzero(self.fresh), count, replace=False)
        return [self.give(int(position), odds) for position in chosen]

    def _near(self, count: int) -> list[int]:
        """Neighbours of the best measured that were not tried, best predicted first."""
        found: list[int] = []
        for centre in sorted(self.times, key=lambda position: (self.times[position], position))[:CENTRES]:
            if len(found) >= count:
                break
            around = [p for p in dict.fromkeys(self.neighbours(centre)) if self.fresh[p] and p not in found]
            found += sorted(around, key=lambda position: (self.predicted[position], position))
        return found[:count]


STRATEGIES = ("model", "gp", "tpe", "random", "exhaustive")


def make_strategy(name: str, pool: Pool, seed: int = 0) -> Strategy:
    """The strategy of that name over a pool. Raises UsageError for an unknown name."""
    match name:
        case "model":
            return ModelGuided(pool.predictions.time_us, pool.neighbours, seed)
        case "random":
            return Random(len(pool), seed)
        case "exhaustive":
            return Exhaustive(len(pool), seed)
        case "gp" | "tpe":
            from autofuse.search.strategy_optuna import OptunaStrategy

            return OptunaStrategy([part.candidates for part in pool.subspaces], pool.which, pool.index, name, seed)
        case _:
            raise UsageError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}")
