"""How many candidates a program has in a space, and how many each constraint removes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autofuse.ir.program import Program
from autofuse.schedule.facts import TargetFacts
from autofuse.schedule.families import classify
from autofuse.schedule.sampling import CHUNK, Candidates
from autofuse.schedule.space import Space


@dataclass(frozen=True, slots=True)
class Row:
    """removed: of what the constraints before it left. alone: of all candidates, were it the only one."""

    constraint: str
    reason: str
    removed: int
    alone: int
    left: int


@dataclass(frozen=True, slots=True)
class Table:
    """assignments: (role kinds, raw candidates, candidates left), one a role assignment, the default first."""

    total: int
    rows: tuple[Row, ...]
    left: int
    assignments: tuple[tuple[dict[str, str], int, int], ...]


def count(space: Space, program: Program, target: TargetFacts | None = None) -> Table:
    """Over all role assignments; looks at every candidate, a chunk at a time."""
    family = classify(program)
    removed = [0] * len(space.constraints)
    alone = [0] * len(space.constraints)
    assignments: list[tuple[dict[str, str], int, int]] = []
    for kinds in space.assignments(program, family):
        candidates = Candidates(space, program, kinds, target, family)
        left = 0
        for start in range(0, candidates.size, CHUNK):
            at = np.arange(start, min(start + CHUNK, candidates.size), dtype=np.int64)
            env = candidates.environment(at)
            alive = np.ones(at.shape, dtype=bool)
            for number, constraint in enumerate(space.constraints):
                passed = np.broadcast_to(np.asarray(constraint.expression.evaluate(env), dtype=bool), at.shape)
                alone[number] += int(at.size - np.count_nonzero(passed))
                removed[number] += int(np.count_nonzero(alive & ~passed))
                alive &= passed
            left += int(np.count_nonzero(alive))
        assignments.append((kinds, candidates.size, left))
    total = sum(size for _, size, _ in assignments)
    rows: list[Row] = []
    still = total
    for constraint, gone, single in zip(space.constraints, removed, alone, strict=True):
        still -= gone
        rows.append(Row(constraint.name, constraint.reason, gone, single, still))
    return Table(total, tuple(rows), still, tuple(assignments))
