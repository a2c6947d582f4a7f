"""The search of one graph: groups -> candidates -> measurements -> the best cover. The only loop of the project; what
it calls flows one way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autofuse.cost.library import calls_time
from autofuse.errors import NoValidPlan
from autofuse.fusion.build import NotFusible
from autofuse.fusion.cover import Cover, k_best, peak_bytes, unfused_cover
from autofuse.fusion.enumerate import Enumeration, enumerate_groups
from autofuse.fusion.folding import fold, program_of
from autofuse.fusion.group import Group, is_settled, saved_bytes
from autofuse.fusion.library import LibraryCall, implementations
from autofuse.fusion.library import peak_bytes as call_bytes
from autofuse.fusion.subgraph import extract
from autofuse.ir.fingerprint import graph_key, program_key
from autofuse.ir.graph import Contract, Graph
from autofuse.ir.program import Program
from autofuse.results.explain import NOISE
from autofuse.search.context import Context
from autofuse.search.group import GroupSearch
from autofuse.search.pool import score
from autofuse.search.rounds import GroupRounds

FIRST_LOOKS = 0.3
"""Share of the time left that first looks at groups may take."""
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
    memory_limit: int | None = None


@dataclass
class GraphTuner:
    graph: Graph
    context: Context

    def __post_init__(self) -> None:
        self.key = graph_key(self.graph)
        self.rng = np.random.default_rng(self.context.seed)
        self.programs: dict[Group, Program] = {}
        self.by_key: dict[str, GroupSearch] = {}
        self.searches: dict[Group, GroupSearch] = {}
        self.started = time.perf_counter()
        self.rounds = GroupRounds(self.context)

    # --- groups ---

    def legal(self, group: Group) -> str | None:
        try:
            self.programs[group] = program_of(self.graph, group.ops, group.outputs)
        except NotFusible as reason:
            return str(reason)
        return None

    def enumerate(self) -> Enumeration:
        """The groups, each with its first look, those that save most bytes first. Groups of no, one or more products
        share the time alike: looks at chains of products take ten times as long as others. Where the budget is short
        the last are left out; the ops one by one are always there, by their library calls if need be."""
        found = enumerate_groups(self.graph, self.legal, budget=self.context.effort.groups)
        singles = unfused_cover(self.graph, found.groups)
        budget = self.context.budget
        until = budget.elapsed + FIRST_LOOKS * (budget.seconds - budget.elapsed) if budget.seconds else float("inf")
        late = False
        for group in self.in_turns(found.groups):
            late = budget.elapsed > until
            if (not late and self.fits(group)) or group in singles.groups:
                self.searches[group] = self.search_of(group, look=not late)
        found = replace(found, truncated=found.truncated or late)
        candidates = sum(search.pool.enumerated for search in self.by_key.values() if search.pool is not None)
        unfused_us = sum(self.searches[group].cost_us() for group in singles.groups)
        self.context.progress("enumerated", groups=len(found.groups), truncated=found.truncated,
                              candidates=candidates, unfused_us=unfused_us)  # fmt: skip
        return found

    def in_turns(self, groups: Sequence[Group]) -> Iterator[Group]:
        """The next group is of the kind that has had the least time so far."""
        waiting: dict[int, deque[Group]] = {}
        for group in sorted(groups, key=lambda group: -saved_bytes(self.graph, group)):
            products = sum(isinstance(self.graph.by_name[name].form, Contract) for name in group.ops)
            waiting.setdefault(min(products, 2), deque()).append(group)
        spent = dict.fromkeys(waiting, 0.0)
        while waiting:
            kind = min(waiting, key=lambda kind: (spent[kind], kind))
            started = time.perf_counter()
            yield waiting[kind].popleft()
            spent[kind] += time.perf_counter() - started
            if not waiting[kind]:
                del waiting[kind]

    def search_of(self, group: Group, *, look: bool) -> GroupSearch:
        """The shared search of the group's canonical form. look: score some of its candidates now, not only if a round
        of it begins."""
        program = self.programs.get(group)
        alone = extract(self.graph, group.ops, group.outputs)
        key = program_key(program) if program is not None else graph_key(alone)
        calls = implementations(self.graph, group)
        if is_settled(self.graph, group.ops):
            return self.by_key.setdefault(f"once {key}", GroupSearch.of_settled(key, alone, group, calls[0]))
        # A softmax and one written out are one program, but not one library call: then they share no search.
        shared = " ".join((key, *(call.name for call in calls)))
        found = self.by_key.get(shared)
        if found is None:
            target, pool = self.context.target, None
            if program is not None and look:
                pool = score(program, target, self.context.model, self.context.effort.first_look, self.rng, defaults=0)
            libraries = tuple((call.name, self.call_us(group, call)) for call in calls)
            found = self.by_key[shared] = GroupSearch(key, alone, group, program, pool, libraries, calls)
            if program is not None and program.folded is not None:
                folding = fold(alone)
                found.graph, found.ahead = folding.onto(alone), folding.values
            if self.context.recordings is not None:
                found.recorded = self.context.recordings.of(key)
        return found

    def call_us(self, group: Group, call: LibraryCall) -> float:
        """Predicted; infinite where its own intermediates are too large."""
        if not self.context.fits(lambda: call_bytes(self.graph, group, call)):
            return float("inf")
        return calls_time(call.ops, self.graph.types, self.context.target).time_us

    def fits(self, group: Group) -> bool:
        """Within the limit of memory, by itself?"""
        return self.cover_fits([group])

    def cover_fits(self, groups: Sequence[Group]) -> bool:
        return self.context.fits(lambda: peak_bytes(self.graph, groups))

    # --- the loop ---

    def run(self) -> Outcome:
        """Raises NoValidPlan when nothing produces every output."""
        enumeration = self.enumerate()
        groups = list(self.searches)
        try:
            ended = self.search(groups)
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            self.rounds.break_off()
        return Outcome(self.graph, self.key, unfused_cover(self.graph, groups), self.searches, enumeration, ended,
                       time.perf_counter() - self.started, self.final_covers(groups),
                       self.context.memory_limit)  # fmt: skip

    def search(self, groups: Sequence[Group]) -> str:
        """Turns until the best covers want nothing more ("done") or the budget ends ("budget").

        Where the trials are used up on a GPU, the library calls of what the plan will run are timed all the same.
        """
        budget, ended = self.context.budget, "done"
        while True:
            wanted = self.wanted(self.covers(groups, self.hope))
            if budget.late() and (wanted or self.rounds.begun):
                return "budget"
            if not budget.room(1) and not self.rounds.begun and wanted:
                ended = "budget"
                if self.context.worker is None:
                    return ended
                wanted = self.wanted(self.covers(groups, GroupSearch.settled_us))
            if not wanted and not self.rounds.begun:
                return ended
            self.turn(wanted)
            self.context.progress("round", best_us=self.covers(groups, count=1)[0].cost)

    def hope(self, search: GroupSearch) -> float:
        """What a group may cost: where it can be timed and was not, less than predicted by the model's error. The model
        may be wrong about a whole kind of group, and only timing one tells."""
        cost = search.cost_us()
        unknown = self.context.worker is not None and not search.is_measured
        return cost / (1 + self.context.model.relative_error) if unknown else cost

    def turn(self, wanted: Sequence[GroupSearch]) -> None:
        """Begins a round of each search that is wanted, and ends those begun before, one after the other.

        On a GPU the last one begun is left for the next turn, which begins others first: so that the compilers have
        work while it is timed.
        """
        budget, rounds = self.context.budget, self.rounds
        no_trials = not budget.room(1) and not rounds.begun
        kept = 0
        for search in wanted:
            if budget.late() or not (no_trials or budget.room(1)):
                break
            rounds.begin(search)
            if self.context.worker is None:
                rounds.finish()
            else:
                kept = 1
        while len(rounds.begun) > kept and not budget.late():
            rounds.finish()

    def covers(
        self, groups: Sequence[Group], cost: Callable[[GroupSearch], float] = GroupSearch.cost_us, count: int = COVERS
    ) -> list[Cover]:
        """The best few. cost: settled_us is that of what can run as it stands, and not of what more might find."""
        found = self.choices(groups, cost, count)
        if not found and self.context.memory_limit is not None:
            limit, least = self.context.memory_limit / 1e6, self.least_bytes(groups) / 1e6
            raise NoValidPlan(
                f"no choice of groups keeps what is between its kernels within {limit:g} MB; {least:g} MB are enough"
            )
        if not found:
            raise NoValidPlan("no choice of groups produces every output: every candidate of some op failed")
        return found

    def least_bytes(self, groups: Sequence[Group]) -> int:
        """The least between kernels at any time, of the cover that materialises the least in all."""
        made = [float(sum(self.graph.types[value].nbytes for value in group.outputs)) for group in groups]
        found = k_best(self.graph, groups, made, 1)
        return peak_bytes(self.graph, found[0].groups) if found else 0

    def choices(self, groups: Sequence[Group], cost: Callable[[GroupSearch], float], count: int) -> list[Cover]:
        costs = [cost(self.searches[group]) if self.fits(group) else float("inf") for group in groups]
        found = k_best(self.graph, groups, costs, count)
        return [cover for cover in found if self.cover_fits(cover.groups)]

    def final_covers(self, groups: Sequence[Group]) -> list[Cover]:
        """On a GPU those that are measured all through, where there are any."""
        if self.context.worker is None:
            return self.covers(groups, GroupSearch.settled_us)
        return self.choices(groups, GroupSearch.measured_us, COVERS) or self.covers(groups)

    def wanted(self, covers: Iterable[Cover]) -> list[GroupSearch]:
        """Searches of the best covers that have rounds left and none begun, those of the best cover first.

        A cover that is worse than the best by more than the model's error is not worth compiling for. A group that
        costs less than the noise of its cover is a minor one: whatever runs it will do, and it comes last.
        """
        found: dict[str, GroupSearch] = {}
        covers = list(covers)
        begun = {batch.search.key for batch in self.rounds.begun}
        limit = covers[0].cost * (1 + self.context.model.relative_error)
        for cover in covers:
            if cover.cost > limit:
                continue
            searches = [self.searches[group] for group in cover.groups]
            for search in searches:
                search.minor = search.cost_us() < NOISE * cover.cost
            for search in sorted(searches, key=lambda search: search.minor):
                if not search.exhausted and search.key not in begun:
                    found.setdefault(search.key, search)
        return list(found.values())
