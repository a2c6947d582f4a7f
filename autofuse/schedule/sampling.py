"""The candidates of one program under one role assignment, as a mixed-radix index: they are numbers and columns of
numbers until one is asked for. Nothing here knows what is fast."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autofuse.errors import InvalidSchedule
from autofuse.ir.program import Program
from autofuse.schedule.facts import Environment, ProgramFacts, TargetFacts, whole_block
from autofuse.schedule.families import Family, classify, legal_kinds, loop_order, next_pow2
from autofuse.schedule.schedule import Role, Schedule
from autofuse.schedule.space import FACTS, TARGET_FACTS, Constraint, RoleSpec, Space

CHUNK = 1 << 16
"""Candidates evaluated together: columns stay within a few megabytes."""
TILES_LIMIT = 1 << 18
"""Tiles that are all looked at, some 0.1 s, before candidates are drawn."""

NEAR = 1 << 13
BATCH = 256
"""default() looks at so many candidates, so many at a time, before it looks at all."""
WEIGHTS = {"m": 2, "k": 2, "persistent": 4, "access": 4}
"""Of a step away from a default, by class or knob: what to hold on to where a default does not fit. A wide m and the
kind of grid matter more than n, warps or stages."""

Setting = int | bool | str


@dataclass(frozen=True, slots=True)
class Digit:
    """One choice: a column's name, its values (ordered where they are numbers), the position of its default."""

    name: str
    values: tuple[Setting, ...]
    default: int

    @property
    def ordered(self) -> bool:
        return not isinstance(self.values[0], bool | str)


class _Columns(Mapping[str, np.ndarray]):
    """Columns of a chunk, each made when it is asked for: the first constraints, which most candidates fail, ask for
    few."""

    def __init__(self, candidates: Candidates, at: np.ndarray) -> None:
        self._places = candidates.places
        self._at = at
        self._made: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._made:
            values, stride, radix = self._places[name]
            self._made[name] = values[self._at // stride % radix]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Candidates:
    """kinds: axis -> grid, loop, whole or split (families.role_assignments). Indices run over 0..size-1, the invalid
    included; columns are named by axis (its block, or padded size where whole), "AXIS.parts", and the knobs."""

    def __init__(
        self,
        space: Space,
        program: Program,
        kinds: Mapping[str, str],
        target: TargetFacts | None = None,
        family: Family | None = None,
    ) -> None:
        self.space = space
        self.program = program
        self.family = family or classify(program)
        if self.family.name != space.family:
            raise InvalidSchedule(f"space {space.name} is for {space.family} programs, not {self.family.name}")
        order = loop_order(program, self.family)
        if set(order) != set(kinds):
            raise InvalidSchedule(f"kinds name axes {sorted(kinds)}, the program has {sorted(order)}")
        self.kinds = {axis: kinds[axis] for axis in order}
        self.digits = self._digits()
        self.radices = tuple(len(digit.values) for digit in self.digits)
        self.size = int(np.prod(self.radices, dtype=object)) if self.radices else 1
        strides: list[int] = []
        step = 1
        for radix in reversed(self.radices):
            strides.append(step)
            step *= radix
        self.strides = tuple(reversed(strides))
        facts = {n: int(getattr(target, n)) for n in TARGET_FACTS} if target is not None else space.target
        self.facts = ProgramFacts(program, self.family, self.kinds, facts)

    def _digits(self) -> tuple[Digit, ...]:
        found: list[Digit] = []
        legal = legal_kinds(self.program)
        for axis, kind in self.kinds.items():
            spec = self.space.classes.get(self.family.classes[axis], {}).get(kind)
            if spec is None:
                raise InvalidSchedule(
                    f"space {self.space.name} has no {kind} role for class {self.family.classes[axis]} (axis {axis})"
                )
            size = self.program.sizes[axis]
            # A tile that covers the axis is the whole role's, wherever the axis may take that.
            also_whole = self.space.covers(self.family.classes[axis], size) and "whole" in legal[axis]
            found += axis_digits(axis, spec, size, next_pow2(size) >> also_whole)
        for knob in self.space.knobs:
            found.append(Digit(knob.name, knob.values, knob.values.index(knob.default)))
        return tuple(found)

    # --- columns ---

    @cached_property
    def _values(self) -> tuple[np.ndarray, ...]:
        return tuple(np.array(digit.values) for digit in self.digits)

    def columns(self, indices: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        return dict(_Columns(self, np.asarray(indices, dtype=np.int64)))

    @cached_property
    def places(self) -> dict[str, tuple[np.ndarray, int, int]]:
        """Column -> its values, and stride and radix of its digit in an index."""
        found = {
            axis: (np.array([whole_block(self.program.sizes[axis])], dtype=np.int64), 1, 1)
            for axis, kind in self.kinds.items()
            if kind == "whole"
        }
        digits = zip(self.digits, self._values, self.strides, self.radices, strict=True)
        return found | {digit.name: (values, stride, radix) for digit, values, stride, radix in digits}

    def environment(self, indices: Sequence[int] | np.ndarray) -> Environment:
        at = np.asarray(indices, dtype=np.int64)
        tiles = None if self._every_tile is None else (self._every_tile, at // self._settings)
        return Environment(self.facts, _Columns(self, at), tiles)

    @cached_property
    def _every_tile(self) -> Environment | None:
        """None where they are too many to look at."""
        count = self.size // self._settings
        if count > TILES_LIMIT:
            return None
        return Environment(self.facts, _Columns(self, np.arange(count, dtype=np.int64) * self._settings))

    def valid(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Truth value of each: does it satisfy every constraint?"""
        at = np.asarray(indices, dtype=np.int64)
        result = np.zeros(at.shape, dtype=bool)
        for start in range(0, at.size, CHUNK):
            result[start + self._survivors(at[start : start + CHUNK], self._cheapest_first)] = True
        return result

    @cached_property
    def _cheapest_first(self) -> list[Constraint]:
        """By how much must be worked out for a constraint: names of facts that each candidate has its own of."""
        dear = {name for name, kind in FACTS.items() if kind == "number"} - set(self.facts.constants)
        return sorted(self.space.constraints, key=lambda c: (len(c.expression.names & dear), len(c.expression.names)))

    def _survivors(self, at: np.ndarray, constraints: Sequence[Constraint]) -> np.ndarray:
        """Positions of those that satisfy every constraint. Once half are out, the rest go on alone: most of a space is
        cut away by its first few constraints."""
        left = np.arange(at.size)
        kept, env = np.ones(at.size, dtype=bool), self.environment(at)
        for constraint in constraints:
            kept &= np.asarray(constraint.expression.evaluate(env), dtype=bool)
            if 2 * np.count_nonzero(kept) < left.size:
                left = left[kept]
                kept, env = np.ones(left.size, dtype=bool), self.environment(at[left])
        return left[kept]

    # --- an index is tile * settings of the knobs + setting: most constraints look at one of the two alone ---

    @cached_property
    def _settings(self) -> int:
        """Of the knobs, which are an index's last digits."""
        return int(np.prod([len(knob.values) for knob in self.space.knobs], dtype=object))

    @cached_property
    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Tiles, and settings, that satisfy what looks at them alone; ascending. All tiles where they are too many."""
        knobs = {"threads", *(knob.name for knob in self.space.knobs)}
        looks = [(c, c.expression.names - self.facts.constants.keys()) for c in self._cheapest_first]
        tiles, settings = np.arange(self.size // self._settings, dtype=np.int64), np.arange(self._settings)
        if self._every_tile is not None:
            tiles = self._survivors(tiles * self._settings, [c for c, names in looks if not names & knobs])
        return tiles, self._survivors(settings, [c for c, names in looks if names <= knobs])

    @cached_property
    def _candidates(self) -> int:
        """How many are made of these halves."""
        return len(self._halves[0]) * len(self._halves[1])

    def _indices(self, places: np.ndarray) -> np.ndarray:
        """Indices of candidates that are counted among those made of these halves."""
        tiles, settings = self._halves
        return tiles[places // len(settings)] * self._settings + settings[places % len(settings)]

    def chunks(self) -> Iterator[np.ndarray]:
        """Valid indices, ascending, at most CHUNK at a time."""
        for start in range(0, self._candidates, CHUNK):
            at = self._indices(np.arange(start, min(start + CHUNK, self._candidates), dtype=np.int64))
            yield at[self.valid(at)]

    @cached_property
    def every(self) -> np.ndarray:
        """All valid indices, ascending."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *self.chunks()])

    # --- single candidates ---

    def settings(self, index: int) -> dict[str, Setting]:
        """Digit name -> value."""
        return {
            digit.name: digit.values[index // stride % radix]
            for digit, stride, radix in zip(self.digits, self.strides, self.radices, strict=True)
        }

    def schedule(self, index: int) -> Schedule:
        index = int(index)
        if not 0 <= index < self.size:
            raise InvalidSchedule(f"candidate {index} of {self.size}")
        settings = self.settings(index)
        roles: list[tuple[str, Role]] = []
        for axis, kind in self.kinds.items():
            block = int(settings.pop(axis, 0))
            roles.append((axis, Role(kind, block, int(settings.pop(f"{axis}.parts", 1)))))
        return Schedule(tuple(roles), **settings)  # type: ignore[arg-type]

    def index(self, schedule: Schedule) -> int:
        """The inverse of schedule(); raises InvalidSchedule where it is not in this space."""
        settings: dict[str, Setting] = {}
        for axis, kind in self.kinds.items():
            role = schedule.role(axis)
            if role.kind != kind:
                raise InvalidSchedule(f"axis {axis} is {role.kind}, these candidates have it {kind}")
            settings |= {axis: role.block, f"{axis}.parts": role.parts}
        for knob in self.space.knobs:
            settings[knob.name] = getattr(schedule, knob.name)
        return self.decode(settings)

    @property
    def encode(self) -> dict[str, tuple[Setting, ...]]:
        """Categorical parameters with their values, for Optuna; decode() takes one of each back to an index."""
        return {digit.name: digit.values for digit in self.digits}

    def decode(self, settings: Mapping[str, Setting]) -> int:
        total = 0
        for digit, stride in zip(self.digits, self.strides, strict=True):
            try:
                total += digit.values.index(settings[digit.name]) * stride
            except (KeyError, ValueError):
                got = settings.get(digit.name)
                raise InvalidSchedule(f"{digit.name}: {got!r} is none of {digit.values}") from None
        return total

    # --- moving about ---

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """At most n distinct valid indices, uniformly; all of them where there are no more."""
        size = self._candidates
        found: dict[int, None] = {}
        tried, wanted = 0, max(1024, 4 * n)
        while len(found) < n and 2 * tried < size:
            draw = self._indices(rng.integers(0, size, size=min(CHUNK, wanted)))
            tried += draw.size
            found |= dict.fromkeys(draw[self.valid(draw)].tolist())
            wanted = int(1.2 * (n - len(found)) * tried / (len(found) + 1)) + 256  # as many as the rest should take
            if tried >= 64 * CHUNK and len(found) * 4096 < tried:
                break  # so sparse that walking through all of it is quicker
        if len(found) < n:
            return rng.permutation(self.every)[:n]
        return np.array(list(found)[:n], dtype=np.int64)

    def neighbours(self, index: int) -> np.ndarray:
        """Valid indices that differ in one choice: to the next value either way, or any other if unordered."""
        found: list[int] = []
        for digit, stride, radix in zip(self.digits, self.strides, self.radices, strict=True):
            at = index // stride % radix
            steps = (at - 1, at + 1) if digit.ordered else range(radix)
            found += [index + (to - at) * stride for to in steps if to != at and 0 <= to < radix]
        moves = np.array(found, dtype=np.int64)
        return moves[self.valid(moves)]

    def default(self) -> int:
        """The file's default values, or the valid candidate nearest to them. InvalidSchedule if there is none."""
        found = self._nearest_valid() if self._candidates > NEAR else None
        if found is None:
            if not self.every.size:
                raise InvalidSchedule(f"no candidate of {self.size} satisfies the constraints of {self.space.name}")
            found = int(self.every[np.argmin(self.away(self.every))])
        return found

    @cached_property
    def _costs(self) -> tuple[np.ndarray, ...]:
        """Of each digit: how far each value is from the default."""
        found: list[np.ndarray] = []
        for digit in self.digits:
            steps = np.abs(np.arange(len(digit.values)) - digit.default)
            weight = WEIGHTS.get(self.family.classes.get(digit.name, digit.name), 1)
            found.append(weight * (steps if digit.ordered else np.minimum(steps, 1)))
        return tuple(found)

    def away(self, indices: np.ndarray) -> np.ndarray:
        """Steps from the file's default values, weighted by WEIGHTS."""
        away = np.zeros(indices.shape, dtype=np.int64)
        for costs, stride, radix in zip(self._costs, self.strides, self.radices, strict=True):
            away += costs[indices // stride % radix]
        return away

    def _nearest_valid(self) -> int | None:
        """Outwards from the default in order of distance (Dijkstra); None after NEAR candidates."""
        start = sum(digit.default * stride for digit, stride in zip(self.digits, self.strides, strict=True))
        heap, seen = [(0, start)], {start}
        for _ in range(NEAR // BATCH):
            batch: list[int] = []
            while heap and len(batch) < BATCH:
                cost, index = heapq.heappop(heap)
                batch.append(index)
                for costs, stride, radix in zip(self._costs, self.strides, self.radices, strict=True):
                    at = index // stride % radix
                    for to in (at - 1, at + 1):
                        there = index + (to - at) * stride
                        if 0 <= to < radix and costs[to] >= costs[at] and there not in seen:
                            seen.add(there)
                            heapq.heappush(heap, (cost + int(costs[to] - costs[at]), there))
            valid = self.valid(batch)
            if valid.any():
                return batch[int(np.argmax(valid))]
        return None


def axis_digits(axis: str, spec: RoleSpec, size: int, largest: int) -> list[Digit]:
    """Blocks beyond `largest` are left out (the smallest stays), and so are parts beyond the axis's tiles."""
    if spec.kind == "whole":
        return []
    blocks = _within(spec.blocks, largest)
    found = [Digit(axis, blocks, _nearest(blocks, spec.default))]
    if spec.kind == "split":
        parts = _within(spec.parts, next_pow2(-(-size // blocks[0])))
        found.append(Digit(f"{axis}.parts", parts, _nearest(parts, spec.default_parts)))
    return found


def _within(values: tuple[int, ...], limit: int) -> tuple[int, ...]:
    return tuple(value for value in values if value <= limit) or values[:1]


def _nearest(values: tuple[int, ...], wanted: int) -> int:
    return min(range(len(values)), key=lambda at: abs(values[at].bit_length() - wanted.bit_length()))
