"""The names that constraints speak of, for one program under one role assignment: facts once, derived columns on
demand from the columns of a chunk of candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from autofuse.ir.graph import ITEMSIZE
from autofuse.ir.program import ContractNode, Load, MapNode, Program, ReduceNode, closure, operands
from autofuse.schedule.constraints import Value, ceil_div
from autofuse.schedule.families import CLASSES, Family, next_pow2, tile_axes
from autofuse.schedule.space import TARGET_FACTS

DOT_MIN = 16
"""Fewest summed elements of a tile that tensor cores take; below, a contract is a product and a sum."""


class TargetFacts(Protocol):
    """What of cost.device.Target is needed here (that layer lies above this one)."""

    @property
    def arch(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...
    @property
    def registers_per_mp(self) -> int: ...
    @property
    def smem_per_block(self) -> int: ...


@dataclass(frozen=True)
class ProgramFacts:
    """Of one program under one role assignment; kinds: axis -> kind."""

    program: Program
    family: Family
    kinds: dict[str, str]
    target: Mapping[str, int]

    @cached_property
    def main(self) -> dict[str, str]:
        """Class -> the axis that its names speak of: the biggest."""
        found: dict[str, str] = {}
        for axis, name in self.family.classes.items():
            if name not in found or self.program.sizes[axis] > self.program.sizes[found[name]]:
                found[name] = axis
        return found

    @cached_property
    def constants(self) -> dict[str, Value]:
        nodes = self.program.nodes
        found: dict[str, Value] = {name: self.target[name] for name in TARGET_FACTS}
        found |= {
            "has_loop": any(kind in ("loop", "split") for kind in self.kinds.values()),
            "has_split": "split" in self.kinds.values(),
            "passes": self.passes,
            "itemsize": self.itemsize,
            "n_loads": sum(isinstance(node, Load) for node in nodes),
            "n_stores": len(self.program.stores),
            "n_reduces": sum(isinstance(node, ReduceNode) for node in nodes),
            "n_contracts": sum(isinstance(node, ContractNode) for node in nodes),
            "aligned": self.aligned,
            "has_prologue": any(not isinstance(nodes[n], Load) for c in self.contracts for n in (c.left, c.right)),
        }
        for name in CLASSES[self.family.name]:
            axis = self.main.get(name)
            found[f"has_{name}"] = axis is not None
            found[f"size_{name}"] = self.program.sizes[axis] if axis else 1
            found[f"role_{name}"] = self.kinds[axis] if axis else ""
        return found

    @cached_property
    def passes(self) -> int:
        """Loops one after the other that the program makes along its looped axes: each waits for reductions of the one
        before it, save for those that it follows running."""
        nodes, free = self.program.nodes, self.program.free
        looped = {axis for axis, kind in self.kinds.items() if kind in ("loop", "split")}
        known: dict[tuple[int, int | None], int] = {}

        def summed(node: int) -> bool:
            found = nodes[node]
            return isinstance(found, ReduceNode | ContractNode) and bool(looped & set(found.axes))

        def level(node: int, running: int | None) -> int:
            """Which pass computes the node; an operand that is finished by an earlier one adds a pass."""
            if (node, running) not in known:
                inner = getattr(nodes[node], "running", None) if summed(node) else running
                known[node, running] = max(
                    (level(o, inner) + (summed(o) and o != inner) for o in operands(nodes[node])), default=0
                )
            return known[node, running]

        goals = [n for n in range(len(nodes)) if summed(n)]
        goals += [store.node for store in self.program.stores if looped & free[store.node]]
        return max((1 + level(goal, None) for goal in goals), default=0)

    @cached_property
    def contracts(self) -> tuple[ContractNode, ...]:
        return tuple(node for node in self.program.nodes if isinstance(node, ContractNode))

    @cached_property
    def phases(self) -> tuple[tuple[ContractNode, ...], ...]:
        """Contracts whose accumulators may live at the same time: what another contract begins at is done before."""
        seeds = [contract.start for contract in self.contracts if contract.start is not None]
        done = {self.program.nodes[node] for node in closure(self.program, *seeds)}
        before = tuple(contract for contract in self.contracts if contract in done)
        return before, tuple(contract for contract in self.contracts if contract not in done)

    @cached_property
    def operand_loads(self) -> tuple[Load, ...]:
        """Loads that contracts multiply, directly or through maps."""
        found: dict[Load, None] = {}
        stack = [n for contract in self.contracts for n in (contract.left, contract.right)]
        while stack:
            node = self.program.nodes[stack.pop()]
            if isinstance(node, Load):
                found[node] = None
            elif isinstance(node, MapNode):
                stack += operands(node)
        return tuple(found)

    @cached_property
    def itemsize(self) -> int:
        loads = self.operand_loads or tuple(n for n in self.program.nodes if isinstance(n, Load))
        if not loads:
            return ITEMSIZE[self.program.types[self.program.stores[0].value].dtype]
        return ITEMSIZE[max(loads, key=lambda load: self.program.types[load.value].nbytes).dtype]

    @cached_property
    def aligned(self) -> bool:
        direct = [n for c in self.contracts for n in (self.program.nodes[c.left], self.program.nodes[c.right])]
        loads = [node for node in direct if isinstance(node, Load)]
        return bool(loads) and all(self._describable(load) for load in loads)

    def _describable(self, load: Load) -> bool:
        kind = self.program.types[load.value]
        if not 2 <= len(kind.shape) <= 5 or kind.dtype == "bool" or kind.strides[-1] != 1:
            return False
        rows = all(stride > 0 and stride * ITEMSIZE[kind.dtype] % 16 == 0 for stride in kind.strides[:-1])
        return rows and all(not index.nodes for index in load.index)


OF_TILES = frozenset({"tile_elements", "acc_elements", "stage_bytes", "programs", "grid_axes", "loop_steps"})
"""Facts that many products go into and no knob does."""


class Environment(Mapping[str, Value]):
    """Names -> values over a chunk; derived ones are computed when asked for and kept.

    tiles: the environment of all tiles, and which of them each candidate has: what is OF_TILES is taken from there.
    """

    def __init__(
        self,
        facts: ProgramFacts,
        columns: Mapping[str, np.ndarray],
        tiles: tuple[Environment, np.ndarray] | None = None,
    ) -> None:
        self.facts = facts
        self.columns = columns
        self.tiles = tiles
        self.known: dict[str, Value] = dict(facts.constants)

    def __getitem__(self, name: str) -> Value:
        if name not in self.known:
            if self.tiles is not None and name in OF_TILES:
                every, which = self.tiles
                value = np.asarray(every[name])
                self.known[name] = value[which] if value.size > 1 else value
            else:
                self.known[name] = self.derive(name)
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def derive(self, name: str) -> Value:
        match name:
            case "threads":
                return 32 * self.columns["num_warps"]
            case "tile_elements":
                return self.tile_elements()
            case "acc_elements":
                return self.acc_elements()
            case "stage_bytes":
                return self.stage_bytes()
            case "programs":
                return self.programs()
            case "grid_axes":
                return sum((self.count(a) > 1).astype(np.int64) for a in self.axes("grid"))
            case "loop_steps":
                return self.product(ceil_div(self.count(a), self.parts(a)) for a in self.axes("loop", "split"))
            case _ if name.startswith(("block_", "parts_")):
                stem, _, family = name.partition("_")
                axis = self.facts.main.get(family)
                column = f"{axis}.parts" if stem == "parts" else axis
                return self.columns.get(column, np.int64(1)) if column else 1
            case _:
                return self.columns[name]

    # --- parts ---

    def axes(self, *kinds: str) -> list[str]:
        return [axis for axis, kind in self.facts.kinds.items() if kind in kinds]

    def count(self, axis: str) -> np.ndarray:
        return np.asarray(ceil_div(self.facts.program.sizes[axis], self.columns[axis]))

    def parts(self, axis: str) -> np.ndarray:
        return self.columns.get(f"{axis}.parts", np.ones(1, dtype=np.int64))

    def product(self, factors: Iterable[Value]) -> np.ndarray:
        """Saturating: a product beyond 2**62 is not told from one at it."""
        total = np.ones(1)
        for factor in factors:
            total = total * np.asarray(factor)
        return np.minimum(total, 2.0**62).astype(np.int64)

    def volume(self, axes: frozenset[str]) -> np.ndarray:
        return self.product(self.columns[axis] for axis in sorted(axes))

    def programs(self) -> np.ndarray:
        split = [self.parts(axis) for axis in self.axes("split")]
        return self.product([*(self.count(axis) for axis in self.axes("grid")), *split])

    def tile_elements(self) -> np.ndarray:
        largest = np.ones(1, dtype=np.int64)
        for axes in tile_axes(self.facts.program):
            largest = np.maximum(largest, self.volume(axes))
        for contract in self.facts.contracts:
            largest = np.maximum(largest, self.product_tile(contract))
        return largest

    def product_tile(self, contract: ContractNode) -> np.ndarray:
        """Elements of a contract's accumulator: its result's tile where tensor cores run it, else the whole product."""
        free = self.facts.program.free
        left, right, summed = free[contract.left], free[contract.right], frozenset(contract.axes)
        rows, columns = left - right - summed, right - left - summed
        dot = (self.volume(rows) > 1) & (self.volume(columns) > 1) & (self.volume(summed) >= DOT_MIN)
        return np.where(dot, self.volume((left | right) - summed), self.volume(left | right))

    def acc_elements(self) -> np.ndarray:
        most = np.zeros(1, dtype=np.int64)
        for phase in self.facts.phases:
            tiles = [self.product_tile(contract) for contract in phase]
            most = np.maximum(most, sum(tiles, start=np.zeros(1, dtype=np.int64)))
        return most

    def stage_bytes(self) -> np.ndarray:
        looped = frozenset(self.axes("loop", "split"))
        total = np.zeros(1, dtype=np.int64)
        for load in self.facts.operand_loads:
            axes = frozenset(axis for index in load.index for axis in index.axes)
            if axes & looped:
                total = total + self.volume(axes) * ITEMSIZE[load.dtype]
        return total


def whole_block(size: int) -> int:
    """A whole axis fills a tile padded to a power of two."""
    return next_pow2(size)
