"""All legal groups of a graph, within a visible budget.

Sets of atoms grow by one neighbour at a time (and what convexity then demands). A level is all sets of so many atoms;
where a level has more than its part of the budget, every region of the graph (the sets with one first atom) gets its
turns, the sets that save most memory traffic first. Sets that `legal` refuses do not grow.

Recompute is a choice here: a set is also offered without those of its outputs that are cheap to compute again, so that
another group can be the one that materialises them, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, count

from autofuse.fusion.coarsen import Atoms, Legal, as_group, coarsen
from autofuse.fusion.group import GraphMasks, Group, bits
from autofuse.fusion.library import fused_calls
from autofuse.ir.graph import Contract, Graph

LEVEL_SHARE = 6
"""A level may use one part in so many of the budget that is left."""
LOOKS = 3
"""Groups shown to `legal` at most, per group of the budget."""
MAX_DROPPED = 4
"""Outputs of one set that are dropped one at a time; with two, both together too, and always all together."""


@dataclass(frozen=True)
class Enumeration:
    """groups: every op's own group first, in graph order. truncated: the budget left sets unseen. considered: groups
    shown to `legal`. refused: reason -> how many."""

    groups: tuple[Group, ...]
    truncated: bool
    considered: int
    refused: Mapping[str, int] = field(hash=False)


def enumerate_groups(
    graph: Graph,
    legal: Legal,
    *,
    budget: int = 400,
    max_ops: int = 48,
    max_contracts: int = 3,
    horizontal: bool = False,
) -> Enumeration:
    """At most `budget` groups beside the single ops and the atoms. Each is shown to `legal` once.

    horizontal: sets that share no more than an input count as connected.
    """
    found = _Found(graph, legal)
    masks = GraphMasks(graph)
    atoms = coarsen(masks, found.check)
    found.mandatory(masks, atoms)
    _Growth(masks, atoms, found, budget, max_ops, max_contracts, horizontal).run()
    return Enumeration(tuple(found.groups), found.truncated, found.considered, dict(found.refused))


class _Found:
    def __init__(self, graph: Graph, legal: Legal) -> None:
        self.graph = graph
        self.legal = legal
        self.verdicts: dict[Group, str | None] = {}
        self.groups: dict[Group, None] = {}
        self.considered = 0
        self.truncated = False
        self.refused: Counter[str] = Counter()

    def check(self, group: Group) -> str | None:
        if group not in self.verdicts:
            self.considered += 1
            reason = self.verdicts[group] = self.legal(group)
            if reason is not None:
                self.refuse(reason)
        return self.verdicts[group]

    def refuse(self, reason: str) -> None:
        """Counted without the op that it names."""
        name, _, rest = reason.partition(": ")
        self.refused[rest if name in self.graph.by_name else reason] += 1

    def take(self, group: Group) -> bool:
        """Keep the group if it can be generated, or if one library call does all of it."""
        generated = self.check(group) is None
        if generated or fused_calls(self.graph, group):
            self.groups[group] = None
        return generated

    def mandatory(self, masks: GraphMasks, atoms: Atoms) -> None:
        """Every op alone, whatever can run it, and every atom."""
        for i, op in enumerate(masks.ops):
            alone = Group((op.name,), masks.exposed(1 << i))
            if op.form is not None:
                self.check(alone)
            self.groups[alone] = None
        for i in bits(~(atoms.opaque | atoms.free) & (1 << len(masks.ops)) - 1):
            if masks.parents[i] & atoms.free:
                self.take(as_group(masks, 1 << i, atoms.free))
        for mask in atoms.masks:
            if mask.bit_count() > 1:
                self.take(as_group(masks, mask, atoms.free))


@dataclass
class _Growth:
    masks: GraphMasks
    atoms: Atoms
    found: _Found
    budget: int
    max_ops: int
    max_contracts: int
    horizontal: bool

    def __post_init__(self) -> None:
        self.live = [mask for mask in self.atoms.masks if mask & self._live()]
        self.atom_of = {i: number for number, mask in enumerate(self.live) for i in bits(mask)}
        self.near = self._neighbours()
        self.contracts = sum(1 << i for i, op in enumerate(self.masks.ops) if isinstance(op.form, Contract))
        self.levels: dict[int, set[int]] = {}
        """Number of atoms -> sets of atoms that wait."""
        self.seen: set[int] = set()

    def _live(self) -> int:
        """Ops that some output needs."""
        found = 0
        for value in self.masks.required:
            maker = self.masks.made_by[value]
            found |= self.masks.ancestors[maker] | 1 << maker
        return found

    def _neighbours(self) -> list[int]:
        """Of each atom, the atoms that it exchanges a value with, or reads a widened input together with (horizontally,
        any value)."""
        near: list[int] = []
        for number, mask in enumerate(self.live):
            around = 0
            for i in bits(mask):
                around |= self.masks.parents[i] | self.masks.children[i]
                for parent in bits(self.masks.parents[i] & self.atoms.free):
                    around |= self.masks.children[parent] if self.masks.reads[parent] else 0
                if self.horizontal:
                    for value in self.masks.reads[i]:
                        around |= self.masks.readers[value]
            near.append(self._set(around) & ~(1 << number))
        return near

    def _set(self, ops: int) -> int:
        found = 0
        for i in bits(ops):
            if i in self.atom_of:
                found |= 1 << self.atom_of[i]
        return found

    def ops(self, atoms: int) -> int:
        found = 0
        for number in bits(atoms):
            found |= self.live[number]
        return found

    # --- levels ---

    def run(self) -> None:
        for number in range(len(self.live)):
            if self._is_generated(1 << number):
                self.grow(1 << number)
        limit = self.found.considered + LOOKS * self.budget
        left = self.budget
        for size in count(2):
            if not self.levels:
                break
            waiting = self.levels.pop(size, set())
            room = -(-left // LEVEL_SHARE)
            for atoms in self.in_turn(waiting):
                if room <= 0 or self.found.considered >= limit:
                    self.found.truncated = True
                    break
                kept = self.offer(atoms)
                room -= kept
                left -= kept

    def _is_generated(self, atoms: int) -> bool:
        return self.found.check(as_group(self.masks, self.ops(atoms), self.atoms.free)) is None

    def grow(self, atoms: int) -> None:
        """Put every set that is this one and a neighbour up for its level."""
        around = 0
        for number in bits(atoms):
            around |= self.near[number]
        for number in bits(around & ~atoms):
            bigger = self.closed(atoms | 1 << number)
            if bigger is None or bigger in self.seen:
                continue
            self.seen.add(bigger)
            ops = self.ops(bigger)
            if ops.bit_count() > self.max_ops:
                self.found.refuse(f"more than {self.max_ops} ops")
            elif (ops & self.contracts).bit_count() > self.max_contracts:
                self.found.refuse(f"more than {self.max_contracts} matmuls")
            else:
                self.levels.setdefault(bigger.bit_count(), set()).add(bigger)

    def closed(self, atoms: int) -> int | None:
        """The smallest convex set of whole atoms around; None where that has an op that is not generated."""
        while True:
            hull = self.masks.hull(self.ops(atoms))
            if any(i not in self.atom_of for i in bits(hull)):
                return None
            if self._set(hull) == atoms:
                return atoms
            atoms |= self._set(hull)

    def in_turn(self, waiting: Iterable[int]) -> list[int]:
        """Regions take turns; in a region, and in a turn, the set that saves most comes first."""
        regions: dict[int, list[tuple[int, int]]] = {}
        for atoms in waiting:
            regions.setdefault(atoms & -atoms, []).append((-self.saved(atoms), atoms))
        turns = [(turn, *entry) for region in regions.values() for turn, entry in enumerate(sorted(region))]
        return [atoms for _, _, atoms in sorted(turns)]

    def saved(self, atoms: int) -> int:
        """Bytes of values that need not be read again, or not be written at all."""
        ops = self.ops(atoms)
        total = 0
        for i in bits(ops):
            for value in self.masks.ops[i].outputs:
                readers = self.masks.readers.get(value, 0)
                if readers & ops:
                    hidden = value not in self.masks.required and not readers & ~ops
                    total += self.masks.graph.types[value].nbytes * (1 + hidden)
        return total

    # --- one set ---

    def offer(self, atoms: int) -> int:
        """Keep the set's legal groups, and let it grow if it is one itself. How many were kept."""
        before = len(self.found.groups)
        ops = self.ops(atoms)
        whole = as_group(self.masks, ops, self.atoms.free)
        if self.found.take(whole):
            for outputs in self.outputs_to_keep(ops, whole.outputs):
                self.found.take(Group(whole.ops, outputs))
            self.grow(atoms)
        return len(self.found.groups) - before

    def outputs_to_keep(self, ops: int, outputs: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The set's outputs with some left out that can be computed again at little cost where they are needed."""
        cheap = [value for value in outputs if self.can_drop(ops, value)]
        drops = [tuple(cheap)] if cheap else []
        if 1 < len(cheap) <= MAX_DROPPED:
            drops += combinations(cheap, 1)
        for dropped in drops:
            yield tuple(value for value in outputs if value not in dropped)

    def can_drop(self, ops: int, value: str) -> bool:
        """Read inside the set (else its op would be idle there), and made without a matmul."""
        maker = self.masks.made_by[value]
        cone = (self.masks.ancestors[maker] | 1 << maker) & ops
        return bool(self.masks.readers.get(value, 0) & ops) and not cone & self.contracts
