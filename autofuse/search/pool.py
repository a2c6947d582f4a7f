"""The candidates of one group, ranked by the cost model: every rewrite and role assignment, sampled where they are too
many to score. Candidates stay numbers until one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.kernel import Kernel
from autofuse.codegen.looptree import LoopTree, build_tree
from autofuse.codegen.triton import emit
from autofuse.cost.device import Target
from autofuse.cost.features import Features, featurize
from autofuse.cost.model import CostModel, Predictions
from autofuse.errors import InvalidSchedule
from autofuse.fusion.folding import FOLDED
from autofuse.fusion.rewrites import variants
from autofuse.ir.program import ContractNode, Program, ReduceNode
from autofuse.schedule.families import classify
from autofuse.schedule.sampling import Candidates
from autofuse.schedule.schedule import Schedule
from autofuse.schedule.space import Space, for_family


@dataclass(frozen=True)
class Subspace:
    """One rewrite of the program under one assignment of role kinds."""

    rewrites: tuple[str, ...]
    program: Program = field(hash=False)
    candidates: Candidates = field(hash=False)
    tree: LoopTree = field(hash=False)

    def indices(self, names: Iterable[tuple[tuple[str, ...], Schedule]]) -> list[int]:
        """Of the valid candidates among those so named."""
        found: list[int] = []
        for rewrites, schedule in names:
            try:
                index = self.candidates.index(schedule) if rewrites == self.rewrites else None
            except InvalidSchedule:
                continue
            if index is not None and self.candidates.valid([index])[0] and self.candidates.schedule(index) == schedule:
                found.append(index)
        return found

    def features(self, indices: NDArray[np.int64], target: Target) -> Features:
        return featurize(
            self.program, self.tree, model_columns(self.candidates, indices), target, self.candidates.kinds
        )


@dataclass
class Pool:
    """Scored candidates, best predicted first. position -> (subspace, index)."""

    subspaces: tuple[Subspace, ...]
    which: NDArray[np.int64]
    index: NDArray[np.int64]
    features: Features
    predictions: Predictions
    enumerated: int
    """Raw size of the whole space, the candidates that constraints remove included."""

    def __len__(self) -> int:
        return len(self.index)

    def schedule(self, position: int) -> Schedule:
        return self.subspaces[self.which[position]].candidates.schedule(int(self.index[position]))

    def rewrites(self, position: int) -> tuple[str, ...]:
        return self.subspaces[self.which[position]].rewrites

    def kernel(self, position: int, name: str, target: Target) -> Kernel:
        program = self.subspaces[self.which[position]].program
        return emit(program, self.schedule(position), name, target.multiprocessors)

    def neighbours(self, position: int) -> list[int]:
        """Positions of scored candidates that differ in one choice."""
        sub = int(self.which[position])
        near = set(self.subspaces[sub].candidates.neighbours(int(self.index[position])).tolist())
        inside = np.flatnonzero(self.which == sub)
        return [int(p) for p in inside if int(self.index[p]) in near]


DEFAULTS = 4
"""Subspaces, best roles first, whose default is looked for: near it nothing may be valid, so that it takes long."""


def subspaces(program: Program, target: Target, space: Space | None = None) -> tuple[Subspace, ...]:
    """Every rewrite and role assignment that the search space has; a rewrite only where it changes something."""
    families = {False: classify(program), True: classify(program.folded or program)}
    space = space or for_family(families[False].name, target.arch)
    found: list[Subspace] = []
    for names, variant in variants(program).items():
        family = families[FOLDED in names]
        for kinds in space.assignments(variant, family):
            if names and not _matters(variant, kinds):
                continue
            candidates = Candidates(space, variant, kinds, target, family)
            found.append(Subspace(names, variant, candidates, build_tree(variant, kinds, list(kinds))))
    return tuple(found)


def _matters(program: Program, kinds: Mapping[str, str]) -> bool:
    """Does a rewritten reduction run along a loop? Inside one tile there is nothing to merge; moments are merged along
    one loop only, and of programs that share a sum none may begin at what is added once."""
    for node in program.nodes:
        if isinstance(node, ContractNode) and node.start is not None:
            roles = {kinds[axis] for axis in node.axes}
            if "loop" not in roles or "split" in roles:
                return False
        if isinstance(node, ReduceNode | ContractNode) and node.running is not None:
            loops = sum(kinds[axis] in ("loop", "split") for axis in node.axes)
            if not loops or (node.correction == "shift" and loops > 1):
                return False
    return True


def score(
    program: Program, target: Target, model: CostModel, limit: int, rng: np.random.Generator,
    wanted: Sequence[tuple[tuple[str, ...], Schedule]] = (), defaults: int = DEFAULTS,
) -> Pool:  # fmt: skip
    """The pool of a program: about `limit` candidates, shared by its subspaces, all where there are no more.

    The default configurations of the first few subspaces (`defaults`) are always among them, and so is what is wanted
    by name (rewrites and schedule), where the space has it.
    """
    parts = subspaces(program, target)
    which: list[NDArray[np.int64]] = []
    index: list[NDArray[np.int64]] = []
    features: list[Features] = []
    each = max(limit // max(len(parts), 1), LEAST)
    for number, part in enumerate(parts):
        chosen = part.candidates.sample(each, rng)
        if not chosen.size:
            continue
        named = [*([part.candidates.default()] if number < defaults else []), *part.indices(wanted)]
        chosen = np.unique(np.append(chosen, named).astype(np.int64))
        which.append(np.full(chosen.shape, number, dtype=np.int64))
        index.append(chosen.astype(np.int64))
        features.append(part.features(chosen, target))
    enumerated = sum(part.candidates.size for part in parts)
    if not index:
        empty = np.zeros(0, dtype=np.int64)
        blank = Features.concat([part.features(empty, target) for part in parts[:1]])
        return Pool(parts, empty, empty, blank, model.predict(blank, target), enumerated)
    joined = Features.concat(features)
    predictions = model.predict(joined, target)
    order = np.argsort(predictions.time_us, kind="stable")
    return Pool(parts, np.concatenate(which)[order], np.concatenate(index)[order], joined.take(order),
                predictions.take(order), enumerated)  # fmt: skip


LEAST = 64
"""Candidates of a subspace that are scored at least."""
ACCESSES = ("pointer", "descriptor", "operands")
SWEEPS = ("forward", "reverse", "hold")
"""What the model calls them by: their places."""


def model_columns(candidates: Candidates, indices: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    """Columns of a search space under the names that the cost model has for them."""
    columns = candidates.columns(indices)
    found: dict[str, NDArray[np.generic]] = {}
    for name, values in columns.items():
        if name in candidates.kinds:
            found[f"block.{name}"] = values
        elif name.endswith(".parts"):
            found[f"parts.{name.removesuffix('.parts')}"] = values
        elif name == "access":
            found[name] = _places(ACCESSES, values)
        elif name == "eviction":
            found[name] = (values == "first").astype(np.int64)
        elif name == "sweep":
            found[name] = _places(SWEEPS, values)
        else:
            found[name] = values
    return found


def _places(names: Sequence[str], values: NDArray[np.generic]) -> NDArray[np.int64]:
    found = np.zeros(values.shape, dtype=np.int64)
    for place, name in enumerate(names):
        found[values == name] = place
    return found
