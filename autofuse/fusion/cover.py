"""Which groups to run: a choice that materialises every output at the least total cost, as a 0/1 program (HiGHS).

One variable a group. Every output's base value needs a chosen group that materialises it, and so does every value that
a chosen group reads. Groups that wait for each other are ruled out as they turn up (lazy cuts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.fusion.group import Group, is_settled, peak_of_steps, reads, required
from autofuse.ir.graph import Graph

MAX_CUTS = 200
"""Cycles cut off before a solve is given up; one or two is usual."""


@dataclass(frozen=True, slots=True)
class Cover:
    """groups in an order that can be run; cost is the sum of theirs (nan where none were given)."""

    groups: tuple[Group, ...]
    cost: float


def group_inputs(graph: Graph, group: Group) -> tuple[str, ...]:
    """Base values that the group reads and some other group must have materialised: inputs of the graph left out."""
    if is_settled(graph, group.ops):
        return ()
    inside = {value for name in group.ops for value in graph.by_name[name].outputs}
    found: dict[str, None] = {}
    for name in group.ops:
        for value in reads(graph, graph.by_name[name]):
            if value not in inside and value in graph.producer:
                found[value] = None
    return tuple(found)


def peak_bytes(graph: Graph, groups: Sequence[Group]) -> int:
    """The most that values between the groups take at any time, run in this order."""
    return peak_of_steps(graph, [(group_inputs(graph, group), group.outputs) for group in groups])


def live_ops(graph: Graph) -> list[str]:
    """Ops that are no views and that some output needs, in graph order: every cover runs each at least once."""
    found: set[str] = set()
    pending = list(required(graph))
    while pending:
        op = graph.producer.get(pending.pop())
        if op is not None and op.name not in found:
            found.add(op.name)
            pending += reads(graph, op)
    return [op.name for op in graph.ops if op.name in found]


def best_cover(graph: Graph, groups: Sequence[Group], costs: Sequence[float]) -> Cover | None:
    """The cheapest cover, or None where there is none."""
    found = k_best(graph, groups, costs, 1)
    return found[0] if found else None


def k_best(graph: Graph, groups: Sequence[Group], costs: Sequence[float], k: int) -> list[Cover]:
    """At most k covers, cheapest first, none contained in another. A group of infinite cost is not available."""
    usable = [i for i, cost in enumerate(costs) if math.isfinite(cost)]
    solver = _Solver(graph, [groups[i] for i in usable], np.array([costs[i] for i in usable], dtype=np.float64))
    found: list[Cover] = []
    while len(found) < k:
        chosen = solver.solve()
        if chosen is None:
            break
        ordered = solver.order(chosen)
        found.append(Cover(tuple(solver.groups[i] for i in ordered), float(solver.costs[chosen].sum())))
        if not chosen:
            break
        solver.cut(chosen, [])
    return sorted(found, key=lambda cover: cover.cost)


def unfused_cover(graph: Graph, groups: Iterable[Group], costs: Sequence[float] | None = None) -> Cover:
    """One group an op, of those that the outputs need. Raises KeyError where an op's own group is missing."""
    groups = list(groups)
    at = {group.ops[0]: i for i, group in enumerate(groups) if len(group.ops) == 1}
    needed: set[str] = set()
    pending = list(required(graph))
    while pending:
        name = graph.producer[pending.pop()].name
        if name not in needed:
            needed.add(name)
            pending += group_inputs(graph, groups[at[name]])
    chosen = [at[op.name] for op in graph.ops if op.name in needed]
    return Cover(tuple(groups[i] for i in chosen), math.nan if costs is None else math.fsum(costs[i] for i in chosen))


class _Solver:
    def __init__(self, graph: Graph, groups: Sequence[Group], costs: np.ndarray) -> None:
        self.groups = groups
        self.costs = costs
        self.needs = [group_inputs(graph, group) for group in groups]
        self.required = sorted(required(graph))
        self.providers: dict[str, list[int]] = {}
        for i, group in enumerate(groups):
            for value in group.outputs:
                self.providers.setdefault(value, []).append(i)
        called = [name for name in live_ops(graph) if not is_settled(graph, (name,))]
        self.holders = [[i for i, group in enumerate(groups) if name in group.ops] for name in called]
        position = {op.name: i for i, op in enumerate(graph.ops)}
        self.rank = [tuple(position[name] for name in reversed(group.ops)) for group in groups]
        self.rows: list[tuple[dict[int, float], float]] = []
        """Coefficients by variable, and the least value of their sum."""
        self.fixed: set[int] = set()
        self.variables = len(groups)
        self._model()

    def _model(self) -> None:
        """Beside a variable a group: one a needed value, and one a (value, group that supplies it).

        The last two make the relaxation tight. With groups alone, two halves of groups that read the same value would
        pay for half of it.
        """
        values = list(dict.fromkeys([*self.required, *(value for needs in self.needs for value in needs)]))
        needed = {value: self._variable() for value in values}
        self.fixed = {needed[value] for value in self.required}
        for value in values:
            supplies = {i: self._variable() for i in self.providers.get(value, ())}
            self.rows.append(({**dict.fromkeys(supplies.values(), 1.0), needed[value]: -1.0}, 0.0))
            through: dict[str, list[int]] = {}
            for i, supply in supplies.items():
                self.rows.append(({i: 1.0, supply: -1.0}, 0.0))
                for need in self.needs[i]:
                    through.setdefault(need, []).append(supply)
            for need, suppliers in through.items():
                # One group supplies the value in the end, so these add up to one at most; at equality no more is lost.
                self.rows.append(({**dict.fromkeys(suppliers, -1.0), needed[need]: 1.0}, 0.0))
            # More supply than need would be a way round the row above.
            self.rows.append(({**dict.fromkeys(supplies.values(), -1.0), needed[value]: 1.0}, 0.0))
        for i, needs in enumerate(self.needs):
            for value in needs:
                self.rows.append(({needed[value]: 1.0, i: -1.0}, 0.0))

        for members in self.holders:
            self.rows.append((dict.fromkeys(members, 1.0), 1.0))

    def _variable(self) -> int:
        self.variables += 1
        return self.variables - 1

    def cut(self, chosen: Iterable[int], unless: Iterable[int]) -> None:
        """Not all of `chosen` together, unless one of `unless` is there too."""
        row = dict.fromkeys(unless, 1.0) | dict.fromkeys(chosen, -1.0)
        self.rows.append((row, 1.0 - sum(c < 0 for c in row.values())))

    def solve(self) -> list[int] | None:
        """The cheapest choice that can be run, without groups that nothing needs; ascending numbers."""
        for _ in range(MAX_CUTS):
            chosen = self._solve()
            if chosen is None:
                return None
            stuck = self._stuck(chosen)
            if not stuck:
                return self._needed(chosen)
            loop, values = stuck
            self.cut(loop, {i for value in values for i in self.providers[value]} - loop)
        return None

    def _solve(self) -> list[int] | None:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        if not self.required:
            return []
        if any(not self.providers.get(value) for value in self.required):
            return None
        where = [(r, i, c) for r, (row, _) in enumerate(self.rows) for i, c in row.items()]
        r, i, c = zip(*where, strict=True)
        matrix = csr_matrix((c, (r, i)), shape=(len(self.rows), self.variables))
        least = np.array([value for _, value in self.rows])
        count = len(self.groups)
        low = np.zeros(self.variables)
        low[list(self.fixed)] = 1.0
        result = milp(
            np.concatenate([self.costs, np.zeros(self.variables - count)]),
            constraints=LinearConstraint(matrix, least, np.inf),  # pyright: ignore[reportArgumentType]
            integrality=np.arange(self.variables) < count,
            bounds=Bounds(low, np.ones(self.variables)),  # pyright: ignore[reportArgumentType]  floats, say the stubs
            options={"mip_rel_gap": 0.0, "disp": False},
        )
        return None if result.x is None else [int(n) for n in np.flatnonzero(result.x[:count] > 0.5)]

    def order(self, chosen: Iterable[int]) -> list[int]:
        """An executable order, in graph order where there is a choice; those that can never run are left out."""
        have: set[str] = set()
        ordered: list[int] = []
        waiting = sorted(chosen, key=lambda i: self.rank[i])
        while True:
            ready = next((i for i in waiting if all(value in have for value in self.needs[i])), None)
            if ready is None:
                return ordered
            waiting.remove(ready)
            ordered.append(ready)
            have.update(self.groups[ready].outputs)

    def _stuck(self, chosen: Sequence[int]) -> tuple[set[int], set[str]] | None:
        """The smallest set of groups each of which waits for a value that only groups of the set make; those values."""
        ordered = self.order(chosen)
        have = {value for i in ordered for value in self.groups[i].outputs}
        late = set(chosen) - set(ordered)
        blocked = {i: next(value for value in self.needs[i] if value not in have) for i in late}
        best: set[int] = set()
        for start in late:
            loop, pending = {start}, [start]
            while pending:
                makers = late.intersection(self.providers[blocked[pending.pop()]]) - loop
                loop |= makers
                pending += makers
            if not best or len(loop) < len(best):
                best = loop
        return (best, {blocked[i] for i in best}) if best else None

    def _needed(self, chosen: Sequence[int]) -> list[int]:
        """A choice at no more cost may hold groups that cost nothing and do nothing."""
        kept = list(chosen)
        while True:
            for i in sorted(kept, key=lambda n: (-self.costs[n], self.rank[n])):
                rest = [n for n in kept if n != i]
                if self._runs(rest):
                    kept = rest
                    break
            else:
                return kept

    def _runs(self, chosen: Sequence[int]) -> bool:
        ordered = self.order(chosen)
        have = {value for n in ordered for value in self.groups[n].outputs}
        return len(ordered) == len(chosen) and have.issuperset(self.required)
