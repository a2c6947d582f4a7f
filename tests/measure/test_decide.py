"""Who is dropped and who is a finalist."""

from __future__ import annotations

import random

from autofuse.measure.decide import Rounds, finalists, log_ratio, losers
from autofuse.measure.timing import rounds


def noisy(center: float, count: int, seed: int, spread: float = 0.05) -> list[float]:
    draw = random.Random(seed)
    return [center * draw.lognormvariate(0, spread) for _ in range(count)]


def test_clear_losers_go_and_doubtful_ones_stay():
    samples = {0: noisy(10, 8, 0), 1: noisy(20, 8, 1), 2: noisy(14, 8, 2), 3: noisy(15.5, 8, 3, spread=0.5)}
    assert losers(samples, 1.5) == (1,)


def test_one_round_drops_nobody():
    assert losers({0: [1.0], 1: [100.0]}, 1.5) == ()
    assert losers({}, 1.5) == ()


def test_drift_common_to_both_cancels():
    base = [10.0, 20.0, 40.0, 80.0]
    mean, half = log_ratio([2 * b for b in base], base)
    assert abs(mean - 0.6931) < 1e-3
    assert half < 1e-6


def test_finalists_are_near_the_best_and_few():
    samples = {index: [10.0 + index * 0.3] for index in range(10)}
    assert finalists(samples, Rounds(finalists=3)) == (0, 1, 2)
    assert finalists({0: [10.0], 1: [12.0]}, Rounds()) == (0,)
    assert finalists({}, Rounds()) == ()


class Counting:
    """A stopwatch that notes the order."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def prepare(self, work: object) -> object:
        return work

    def reference(self) -> object:
        return "reference"

    def sample(self, prepared: list[str]) -> list[float]:
        self.seen.append(list(prepared))
        return [float(len(name)) for name in prepared]


def test_rounds_interleave_in_changing_order():
    watch = Counting()
    samples, reference = rounds(watch, {3: "a", 7: "bb"}, "reference", 12, seed=1)
    assert samples == {3: [1.0] * 12, 7: [2.0] * 12}
    assert reference == [9.0] * 12
    assert all(sorted(order) == ["a", "bb", "reference"] for order in watch.seen)
    assert len({tuple(order) for order in watch.seen}) > 3
