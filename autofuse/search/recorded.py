"""Recorded times in a search that has no GPU: which candidates of a group have one, and what that makes of its trials
and of a plan. A candidate that was timed on such a device beats any that is only predicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from autofuse.results.recordings import Recorded

if TYPE_CHECKING:
    from autofuse.search.group import GroupSearch, Trial
    from autofuse.search.pool import Pool

TAKEN = 8
"""Recorded candidates of a group that are taken up: the fastest, and others for where that one proves wrong here."""


def positions(pool: Pool, recorded: Iterable[Recorded]) -> dict[int, Recorded]:
    """Where a pool has the recorded candidates, the fastest first."""
    at = {
        (int(which), int(index)): place for place, (which, index) in enumerate(zip(pool.which, pool.index, strict=True))
    }
    found: dict[int, Recorded] = {}
    for one in recorded:
        for number, part in enumerate(pool.subspaces):
            place = next((at[number, index] for index in part.indices([one.name]) if (number, index) in at), None)
            if place is not None:
                found[place] = one
    return found


def adopt(search: GroupSearch, trial: Trial) -> None:
    """The recorded time of a trial that compiles, where there is one."""
    found = search.recorded_at.get(trial.position)
    if found is not None and not trial.is_library and trial.status in ("compiled", "duplicate"):
        trial.time_us, trial.recording = found.time_us, found.source


def timing_of(trials: Iterable[Trial]) -> str:
    """Of what they take together, where nothing was measured: recorded when each is."""
    given = list(trials)
    return "recorded" if given and all(trial.recording for trial in given) else "predicted"
