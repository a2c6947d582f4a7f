"""How much a search may do: the effort profile (how wide) and the budget (how long)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from autofuse.errors import UsageError
from autofuse.measure.decide import Rounds

USUAL_OPS = 8
"""Of a graph that an effort's own seconds are meant for."""


@dataclass(frozen=True, slots=True)
class Effort:
    """groups: most groups enumerated. first_look: candidates scored of a group before it is searched; pool: when
    it is. compiled, timed: of one round of one group. rounds: of one group. seconds: of one plan, where no budget is
    given."""

    name: str
    groups: int
    first_look: int
    pool: int
    compiled: int
    timed: int
    rounds: int
    timing: Rounds
    seconds: float

    def within(self, seconds: float | None, ops: int = USUAL_OPS) -> Effort:
        """The same number of candidates in more and smaller rounds, where less than half of its time is there, or as
        little for each op of a large graph: so that several groups come to be timed before it ends, and not one group's
        whole batch."""
        enough = float("inf") if seconds is None else seconds * USUAL_OPS / max(ops, USUAL_OPS)
        if enough >= self.seconds / 2:
            return self
        by = 2 if enough >= self.seconds / 4 else 4
        return replace(self, compiled=self.compiled // by, timed=self.timed // by, rounds=self.rounds * by)

    def least(self) -> Effort:
        """One round of one candidate, and another where that one fails to compile: for groups that hardly matter."""
        return replace(self, compiled=2, timed=1, rounds=1)


EFFORTS = {
    # Chosen by judgement. On an H200 with 16 cores, quick took 7 to 26 s a workload (experiments/first_plans).
    "quick": Effort("quick", 400, 512, 8192, 24, 12, 2, Rounds(screen=4, rounds=12, confirm=12), 60.0),
    "full": Effort("full", 2000, 2048, 65536, 48, 24, 6, Rounds(screen=5, rounds=24, confirm=24), 600.0),
}


def effort_of(name: str) -> Effort:
    found = EFFORTS.get(name)
    if found is None:
        raise UsageError(f"unknown effort {name!r}; known: {', '.join(EFFORTS)}")
    return found


@dataclass
class Budget:
    """seconds, and trials: schedules timed, or compiled where nothing can be timed; None is no limit. Library calls and
    what is timed again for comparison are no trials."""

    seconds: float | None = None
    trials: int | None = None
    started: float = field(default_factory=time.perf_counter)
    used: int = 0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float | None:
        """Seconds."""
        return None if self.seconds is None else max(self.seconds - self.elapsed, 0.0)

    def late(self) -> bool:
        return self.left == 0.0

    def room(self, wanted: int) -> int:
        """So many trials, or what is left of them."""
        return wanted if self.trials is None else max(0, min(wanted, self.trials - self.used))

    def reserve(self, wanted: int) -> int:
        """Takes so many, or what is left: rounds that overlap must not count on the same ones. `spend` gives back."""
        found = self.room(wanted)
        self.used += found
        return found

    def spend(self, used: int, reserved: int = 0) -> None:
        self.used += used - reserved

    def part(self, parts: int, seconds: float) -> Budget:
        """The budget of one plan of `parts` that are still to come: an even share of the trials that are left, and all
        of the time that is left, `seconds` where there is no limit to it."""
        share = None if self.trials is None else -(-self.room(self.trials) // parts)
        return Budget(seconds if self.left is None else self.left, share)
