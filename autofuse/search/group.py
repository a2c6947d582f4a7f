"""Everything known of one canonical group while a graph is searched: its candidates, what was compiled and timed, and
its best. Identical groups of a graph (equal program keys) share one of these."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.codegen.kernel import Kernel
from autofuse.fusion.group import Group
from autofuse.fusion.library import LibraryCall
from autofuse.ir.graph import Graph
from autofuse.ir.program import Program
from autofuse.measure.records import Compiled, Timed, Verified
from autofuse.results.recordings import Recorded
from autofuse.search.pool import Pool
from autofuse.search.strategies import Strategy

LIBRARY = -1


@dataclass
class Trial:
    """One candidate that was taken up: position in the pool (or LIBRARY with the number of the library call)."""

    position: int
    library: int = 0
    propensity: float = 1.0
    kernel: Kernel | None = None
    compiled: Compiled | None = None
    verified: Verified | None = None
    timed: Timed | None = None
    status: str = "kept"
    detail: str = ""
    predicted_us: float = 0.0
    dram_bytes: float | None = None
    binding: str = ""
    time_us: float | None = None
    duplicate_of: int | None = None
    occupancy: float | None = None
    recalled: bool = False
    recording: str = ""
    """Where time_us is from, if it was recorded in an earlier run and not measured in this search."""
    elsewhere: bool = False
    """Recalled from another graph of the run, where it is recorded."""
    written: str = ""
    """Status under which the log has it."""

    @property
    def is_library(self) -> bool:
        return self.position == LIBRARY


@dataclass
class GroupSearch:
    """key: of the canonical program; all groups of the graph that have it share this."""

    key: str
    graph: Graph
    """The group alone (fusion.subgraph)."""
    group: Group
    program: Program | None
    pool: Pool | None
    libraries: tuple[tuple[str, float], ...]
    """Library implementations: name and predicted time, us."""
    calls: tuple[LibraryCall, ...] = ()
    strategy: Strategy | None = None
    trials: dict[int, Trial] = field(default_factory=dict)
    library_trials: dict[int, Trial] = field(default_factory=dict)
    binaries: dict[str, int] = field(default_factory=dict)
    recorded: tuple[Recorded, ...] = ()
    """Candidates with a recorded time, the fastest first; recorded_at: those of them that the pool has, by position."""
    recorded_at: dict[int, Recorded] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    """Values of `graph` that the folded program reads and that are computed once, ahead."""
    rounds: int = 0
    exhausted: bool = False
    minor: bool = False
    """Too small a part of the plans that it is in for its choice to matter."""
    once: bool = False

    @staticmethod
    def of_settled(key: str, graph: Graph, group: Group, call: LibraryCall) -> GroupSearch:
        """Of a group that follows from frozen inputs alone: computed once, it costs a call nothing."""
        done = Trial(LIBRARY, status="timed", time_us=0.0)
        return GroupSearch(key, graph, group, None, None, ((call.name, 0.0),), (call,), library_trials={0: done},
                           exhausted=True, once=True)  # fmt: skip

    @property
    def family(self) -> str:
        return self.pool.subspaces[0].candidates.family.name if self.pool and self.pool.subspaces else "aten"

    def measured(self) -> list[Trial]:
        found = [*self.trials.values(), *self.library_trials.values()]
        return sorted((t for t in found if t.time_us is not None), key=lambda t: t.time_us or 0.0)

    def best(self) -> Trial | None:
        """The fastest measured trial, else the best predicted one that compiles (or has not been compiled yet)."""
        measured = self.measured()
        if measured:
            return measured[0]
        trials = (*self.trials.values(), *self.library_trials.values())
        alive = [t for t in trials if t.status in ("kept", "compiled", "verified")]
        return min(alive, key=lambda t: t.predicted_us, default=None)

    def library(self) -> Trial:
        """The library call with the best prediction, as a trial: always there, whether it was taken up or not."""
        number, (_, predicted) = min(enumerate(self.libraries), key=lambda call: call[1][1])
        return self.library_trials.get(number) or Trial(LIBRARY, number, predicted_us=predicted)

    def runs(self) -> Trial:
        """What a plan would run as it stands: the best trial, else a library call, which needs no compiling."""
        return self.best() or self.library()

    def settled_us(self) -> float:
        """What `runs` costs, measured or predicted."""
        trial = self.runs()
        return trial.predicted_us if trial.time_us is None else trial.time_us

    def measured_us(self) -> float:
        """Infinite where nothing was measured."""
        return next((trial.time_us for trial in self.measured() if trial.time_us is not None), float("inf"))

    def cost_us(self) -> float:
        """Measured where known, else predicted; infinite where nothing can run the group."""
        best = self.best()
        predicted = self.optimistic_us()
        if best is None:
            return self.recorded[0].time_us if self.recorded and not self.rounds else predicted
        if best.time_us is not None:
            return best.time_us
        return min(best.predicted_us, predicted) if not self.exhausted else best.predicted_us

    def optimistic_us(self) -> float:
        """The best prediction among candidates that were not tried."""
        options = [
            predicted for number, (_, predicted) in enumerate(self.libraries) if number not in self.library_trials
        ]
        if self.pool is not None and len(self.pool) and not self.exhausted:
            untried = next((p for p in range(len(self.pool)) if p not in self.trials), None)
            if untried is not None:
                options.append(float(self.pool.predictions.time_us[untried]))
        return min(options, default=float("inf"))

    @property
    def is_measured(self) -> bool:
        return any(t.time_us is not None for t in [*self.trials.values(), *self.library_trials.values()])

    def counts(self) -> dict[str, int]:
        trials = list(self.trials.values())
        return {
            "enumerated": self.pool.enumerated if self.pool else 0,
            "kept": len(trials),
            "compiled": sum(t.compiled is not None and t.compiled.ok for t in trials),
            "verified": sum(t.verified is not None and t.verified.ok for t in trials),
            "timed": sum(t.time_us is not None and not t.recording for t in trials),
            "failed": sum(
                t.status not in ("kept", "compiled", "verified", "timed", "duplicate", "pruned_resources")
                for t in trials
            ),
        }
