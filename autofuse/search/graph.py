"""The search of one graph: groups -> candidates -> measurements -> the best cover. The only loop of the project; what
it calls flows one way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.cost.device import Target
from autofuse.cost.library import calls_time
from autofuse.cost.model import CostModel
from autofuse.errors import NoValidPlan
from autofuse.fusion.build import NotFusible, build
from autofuse.fusion.cover import Cover, k_best, unfused_cover
from autofuse.fusion.enumerate import Enumeration, enumerate_groups
from autofuse.fusion.group import Group
from autofuse.fusion.library import implementations
from autofuse.fusion.subgraph import extract
from autofuse.ir.fingerprint import graph_key, program_key
from autofuse.ir.graph import Graph
from autofuse.ir.program import Program
from autofuse.measure.compile import CompilePool
from autofuse.measure.supervisor import Worker
from autofuse.search.effort import Budget, Effort
from autofuse.search.group import GroupSearch
from autofuse.search.journal import Journal
from autofuse.search.pool import score
from autofuse.search.rounds import GroupRounds

COVERS = 4
"""Covers whose groups are searched: the best few, since costs are predictions at first."""


@dataclass
class Outcome:
    """What a search of one graph ends with; `ended` is done, budget or interrupted."""

    graph: Graph
    key: str
    unfused: Cover
    searches: dict[Group, GroupSearch]
    enumeration: Enumeration
    ended: str
    seconds: float
    covers: list[Cover]
    """The best few, best first."""


@dataclass
class GraphTuner:
    """worker: None where there is no live GPU; then times are predictions."""

    graph: Graph
    target: Target
    model: CostModel
    effort: Effort
    budget: Budget
    journal: Journal
    compile_pool: CompilePool
    worker: Worker | None
    strategy: str
    seed: int = 0
    on_progress: Callable[[str, dict[str, object]], None] = lambda _kind, _facts: None

    def __post_init__(self) -> None:
        self.key = graph_key(self.graph)
        self.rng = np.random.default_rng(self.seed)
        self.programs: dict[Group, Program] = {}
        self.by_key: dict[str, GroupSearch] = {}
        self.searches: dict[Group, GroupSearch] = {}
        self.started = time.perf_counter()
        self.rounds = GroupRounds(self.target, self.model, self.effort, self.budget, self.journal, self.compile_pool,
                                  self.worker, self.strategy, self.seed, self.progress)  # fmt: skip

    # --- groups ---

    def legal(self, group: Group) -> str | None:
        try:
            self.programs[group] = build(self.graph, frozenset(group.ops), group.outputs)
        except NotFusible as reason:
            return str(reason)
        return None

    def enumerate(self) -> Enumeration:
        found = enumerate_groups(self.graph, self.legal, budget=self.effort.groups)
        for group in found.groups:
            self.searches[group] = self.search_of(group)
        singles = unfused_cover(self.graph, list(self.searches))
        candidates = sum(search.pool.enumerated for search in self.by_key.values() if search.pool is not None)
        self.progress("enumerated", groups=len(found.groups), truncated=found.truncated, candidates=candidates,
                      unfused_us=sum(self.searches[group].cost_us() for group in singles.groups))  # fmt: skip
        return found

    def search_of(self, group: Group) -> GroupSearch:
        """The shared search of the group's canonical form."""
        program = self.programs.get(group)
        alone = extract(self.graph, group.ops, group.outputs)
        key = program_key(program) if program is not None else graph_key(alone)
        found = self.by_key.get(key)
        if found is None:
            pool = None
            if program is not None:
                pool = score(program, self.target, self.model, self.effort.first_look, self.rng)
            calls = implementations(self.graph, group)
            libraries = tuple(
                (call.name, calls_time(call.ops, self.graph.types, self.target).time_us) for call in calls
            )
            found = self.by_key[key] = GroupSearch(key, alone, group, program, pool, libraries, calls)
        return found

    # --- the loop ---

    def run(self) -> Outcome:
        """Raises NoValidPlan when nothing produces every output."""
        enumeration = self.enumerate()
        groups = list(self.searches)
        ended = "done"
        try:
            while True:
                covers = self.covers(groups)
                wanted = self.wanted(covers)
                if not wanted:
                    break
                if self.budget.spent():
                    ended = "budget"
                    break
                for search in wanted:
                    if self.budget.spent():
                        break
                    self.rounds.advance(search)
                self.progress("round", best_us=self.covers(groups)[0].cost)
        except KeyboardInterrupt:
            ended = "interrupted"
        unfused = unfused_cover(self.graph, groups)
        covers = self.covers(groups, settled=self.worker is None)
        return Outcome(self.graph, self.key, unfused, self.searches, enumeration, ended,
                       time.perf_counter() - self.started, covers)  # fmt: skip

    def covers(self, groups: Sequence[Group], *, settled: bool = False) -> list[Cover]:
        """The best few. settled: of what can run as it stands, and not of what compiling more might find."""
        searches = [self.searches[group] for group in groups]
        costs = [search.settled_us() if settled else search.cost_us() for search in searches]
        found = k_best(self.graph, groups, costs, COVERS)
        if not found:
            raise NoValidPlan("no choice of groups produces every output: every candidate of some op failed")
        return found

    def wanted(self, covers: Iterable[Cover]) -> list[GroupSearch]:
        """Searches of the best covers that have rounds left, those of the best cover first.

        A cover that is worse than the best by more than the model's error is not worth compiling for.
        """
        found: dict[str, GroupSearch] = {}
        covers = list(covers)
        limit = covers[0].cost * (1 + self.model.relative_error)
        for cover in covers:
            if cover.cost > limit:
                continue
            for group in cover.groups:
                search = self.searches[group]
                if not search.exhausted:
                    found[search.key] = search
        return list(found.values())

    def progress(self, kind: str, **facts: object) -> None:
        self.on_progress(kind, facts)
