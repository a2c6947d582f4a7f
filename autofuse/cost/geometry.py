"""Candidates as columns: blocks, tile counts, trips and the shape of one wave, a number a candidate each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.device import Target
from autofuse.ir.index import Index
from autofuse.ir.program import Program
from autofuse.schedule.families import next_pow2

Array = NDArray[np.float64]
DEFAULTS = {
    "num_warps": 4, "num_stages": 2, "group": 1, "persistent": 0, "flatten": 0, "access": 0, "eviction": 0,
    "maxnreg": 0, "sweep": 0,
}  # fmt: skip
LATTICE = 256
"""Tiles along an axis, at most, of which those that a mask leaves are counted."""


class Geometry:
    """Of many schedules with the same role kinds. kinds: axis -> grid, loop, whole or split, in loop order."""

    def __init__(
        self, program: Program, kinds: Mapping[str, str], columns: Mapping[str, NDArray[np.generic]], target: Target
    ) -> None:
        self.program = program
        self.kinds = dict(kinds)
        self.target = target
        self.n = len(next(iter(columns.values()))) if columns else 1
        self.columns = columns
        self.one = np.ones(self.n)
        self.block: dict[str, Array] = {}
        self.parts: dict[str, Array] = {}
        for axis, size in program.sizes.items():
            whole = self.kinds[axis] == "whole"
            self.block[axis] = self.one * next_pow2(size) if whole else self.column(f"block.{axis}", 1)
            self.parts[axis] = self.column(f"parts.{axis}", 1) if self.kinds[axis] == "split" else self.one
        self.count = {a: np.ceil(max(size, 1) / self.block[a]) for a, size in program.sizes.items()}
        self.trips = {a: np.ceil(self.count[a] / self.parts[a]) for a in program.sizes}
        self.alive = dict.fromkeys(program.sizes, self.one)
        self.cut = dict.fromkeys(program.sizes, self.one)
        self.grid = tuple(a for a in self.kinds if self.kinds[a] == "grid" and a in self.block)
        self.split = tuple(a for a in self.kinds if self.kinds[a] == "split" and a in self.block)
        self.tiles = self.product(self.count[a] for a in self.grid) * self.product(self.parts[a] for a in self.split)
        self.threads = 32 * self.column("num_warps")
        self.stages = np.maximum(self.column("num_stages"), 1)

    def leave_out(self, axis: str, dead: Sequence[Index], cuts: Sequence[Index]) -> None:
        """Fewer trips along a looped axis, by the share of its tiles that do something (dead: looptree.Loop.dead);
        self.cut: of those, the share that is not free (cuts: looptree.Free.cuts). Of many tiles along an axis, LATTICE
        are looked at."""
        axes = sorted({a for index in (*dead, *cuts) for a in index.axes})
        if not axes:
            return
        blocks, which = np.unique(np.stack([self.block[a] for a in axes]), axis=1, return_inverse=True)
        columns = [dict(zip(axes, column, strict=True)) for column in blocks.T]
        shares = np.array([self._shares(axis, column, dead, cuts) for column in columns])[which.reshape(-1)]
        self.alive[axis], self.cut[axis] = shares.T
        self.trips[axis] = np.maximum(self.trips[axis] * self.alive[axis], 1.0)

    def _shares(
        self, axis: str, blocks: Mapping[str, float], dead: Sequence[Index], cuts: Sequence[Index]
    ) -> tuple[float, float]:
        """Of the tiles of these blocks, the share in which none of `dead` is positive all over; of these, the share in
        which some of `cuts` is positive somewhere, or that reaches beyond the end of the axis."""
        starts: dict[str, Array] = {}
        for number, (a, block) in enumerate(blocks.items()):
            tiles = int(np.ceil(self.program.sizes[a] / block))
            at = np.unique(np.linspace(0, tiles - 1, min(tiles, LATTICE)).round()) * block
            starts[a] = at.reshape([-1 if number == i else 1 for i in range(len(blocks))])

        def extreme(index: Index, corner: Callable[[int, int], int]) -> Array:
            terms = {a: index.coefficient(a) for a in index.axes}
            first = index.const + sum(corner(c, 0) * (blocks[a] - 1) for a, c in terms.items())
            return sum((starts[a] * c for a, c in terms.items()), start=np.asarray(first, np.float64))

        alive = np.ones([line.size for line in starts.values()], dtype=bool)
        for index in dead:
            alive &= extreme(index, min) <= 0
        cut = np.broadcast_to(starts[axis] + blocks[axis] > self.program.sizes[axis], alive.shape)
        for index in cuts:
            cut = cut | (extreme(index, max) > 0)
        return float(alive.mean()), float((alive & cut).sum() / max(alive.sum(), 1)) if cuts else 1.0

    def column(self, name: str, default: int | None = None) -> Array:
        found = self.columns.get(name)
        if found is None:
            return self.one * (DEFAULTS[name] if default is None else default)
        return np.asarray(found, dtype=np.float64)

    def product(self, factors: Iterable[Array | float]) -> Array:
        total = self.one
        for factor in factors:
            total = total * factor
        return total

    def elements(self, axes: Iterable[str]) -> Array:
        """Of a tile over these axes, padding included."""
        return self.product(self.block[a] for a in axes)

    def repeats(self, free: Iterable[str], opened: Iterable[str]) -> Array:
        """How often all programs together make an access that varies along `free`, inside the loops `opened`: once for
        each tile of every other axis."""
        held = set(free)
        found = [self.count[a] for a in self.grid if a not in held]
        found += [self.parts[a] for a in self.split if a not in held and a not in opened]
        found += [self.count[a] for a in opened if a not in held]
        found += [self.alive[a] for a in opened]
        return self.product(found)

    def wave(self, concurrent: Array) -> dict[str, Array]:
        """How many different tiles of each grid axis `concurrent` programs, consecutive in grid order, cover.

        The last grid axis moves fastest; with a group, that many tiles of the one before it move first.
        """
        left = concurrent
        extent = dict.fromkeys(self.grid, self.one)
        for axis in self.split:
            left = left / np.minimum(self.parts[axis], np.maximum(left, 1))
        order = list(reversed(self.grid))
        if len(order) >= 2:
            columns, rows = order[0], order[1]
            band = np.minimum(self.column("group"), self.count[rows])
            band = np.where(self.count[columns] > 1, band, 1.0)
            first = np.minimum(band, np.maximum(left, 1))
            left = left / first
            extent[columns] = np.minimum(self.count[columns], np.maximum(left, 1))
            left = left / extent[columns]
            more = np.minimum(self.count[rows] / first, np.maximum(left, 1))
            extent[rows] = first * more
            left = left / more
            order = order[2:]
        for axis in order:
            extent[axis] = np.minimum(self.count[axis], np.maximum(left, 1))
            left = left / extent[axis]
        return extent
