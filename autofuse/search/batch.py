"""One round of one search on its way through the compilers: what was taken up, what is out, what may be timed."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from autofuse.measure.records import Compiled
from autofuse.search.group import GroupSearch, Trial


@dataclass
class Batch:
    """waiting: by position, those that the compilers have. fit: those that compiled and may be timed.

    reserved, used: trials set aside in the budget when the round began, and those that it came to use.
    """

    search: GroupSearch
    trials: list[Trial] = field(default_factory=list)
    calls: list[Trial] = field(default_factory=list)
    """Library calls: of the first round on a GPU."""
    waiting: dict[int, Future[Compiled]] = field(default_factory=dict)
    fit: list[Trial] = field(default_factory=list)
    reserved: int = 0
    used: int = 0

    def chosen(self, room: int) -> list[Trial]:
        """The library calls, and of those that are fit at most `room`: the best by the second prediction, and the
        explorers. What is wrong keeps its place, so the choice does not depend on what was verified when."""
        fit = sorted(self.fit, key=lambda trial: (trial.predicted_us, trial.position))
        explorers = [trial for trial in fit if trial.propensity < 1.0]
        best = [trial for trial in fit if trial.propensity >= 1.0]
        return [*self.calls, *[*best[: max(room - len(explorers), 1)], *explorers][:room]]

    def unverified(self, room: int) -> Trial | None:
        """The next to verify, were the round to end with what has compiled so far."""
        return next((t for t in self.chosen(room) if t.verified is None and not t.recalled), None)

    def cancel(self, spared: int = 0) -> None:
        """Takes back what no compiler has begun, but for the first `spared`."""
        for position, future in list(self.waiting.items())[spared:]:
            if future.cancel():
                del self.waiting[position]

    def hurry(self) -> None:
        """No time is left: one is enough where nothing has compiled."""
        self.cancel(spared=all(trial.compiled is None for trial in self.trials))

    def forget(self) -> None:
        """Leaves nothing that a plan could take up uncompiled, or a resumed run could take for finished."""
        self.cancel()
        self.waiting = {}
        for trial in self.trials:
            if trial.status == "kept":
                self.search.trials.pop(trial.position, None)
            elif trial.status == "verified" and not trial.recalled:
                trial.status = "compiled"
