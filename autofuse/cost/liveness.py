"""Registers that values need at the worst point of the loop tree, per thread, with symbolic tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.codegen.looptree import Accumulate, Compute, Finish, Join, Loop, LoopTree, Statement
from autofuse.cost.geometry import Array, Geometry
from autofuse.ir.graph import ITEMSIZE
from autofuse.ir.program import ContractNode, Load, Program, ReduceNode, operands, summed_by_tile


@dataclass(slots=True)
class Span:
    """Positions in the flattened tree between which a value is held."""

    first: int
    last: int
    accumulator: bool = False


class Liveness:
    """Spans of every value and accumulator of a tree; independent of block sizes, so made once a tree."""

    def __init__(self, program: Program, tree: LoopTree) -> None:
        self.program = program
        self.spans: dict[tuple[int, bool], Span] = {}
        self.position = 0
        self._walk(tree.body)

    def _walk(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.position += 1
            match statement:
                case Loop():
                    self._loop(statement)
                case Compute():
                    self._read(operands(self.program.nodes[statement.node]))
                    self.spans[statement.node, False] = Span(self.position, self.position)
                case Accumulate():
                    start = self._start(statement.node)
                    self._read([n for n in operands(self.program.nodes[statement.node]) if n != start])
                case Join():
                    self._read(statement.nodes)
                    self._walk(statement.body)
                case Finish():
                    self.spans[statement.node, True].last = self.position
                    self.spans[statement.node, False] = Span(self.position, self.position)
                case _:
                    store = self.program.stores[statement.store]
                    self._read((store.node, *(n for part in store.index for n in part.nodes)))

    def _loop(self, loop: Loop) -> None:
        start = self.position
        for node in loop.accumulators:
            self.spans.setdefault((node, True), Span(start, start, accumulator=True))
            if (seed := self._start(node)) is not None:
                self._read((seed,))
        self._walk(loop.body)
        self.position += 1
        for node in loop.accumulators:
            self.spans[node, True].last = self.position
        for span in self.spans.values():
            # Read inside the loop, made before it: needed again in the next turn.
            if span.first < start < span.last:
                span.last = max(span.last, self.position)

    def _start(self, node: int) -> int | None:
        """What the accumulator begins at: read once, before the loop."""
        return getattr(self.program.nodes[node], "start", None)

    def _read(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            span = self.spans.get((node, False)) or self.spans.get((node, True))
            if span is not None:
                span.last = max(span.last, self.position)

    def registers(self, geometry: Geometry) -> tuple[Array, Array]:
        """(32-bit registers a thread at the worst point, those of accumulators alone)."""
        starts: dict[int, list[tuple[int, bool]]] = {}
        ends: dict[int, list[tuple[int, bool]]] = {}
        cost = {key: self._cost(key, geometry) for key in self.spans}
        for key, span in self.spans.items():
            starts.setdefault(span.first, []).append(key)
            ends.setdefault(span.last, []).append(key)
        live = np.zeros(geometry.n)
        worst = np.zeros(geometry.n)
        for position in range(self.position + 2):
            # The compiler works element by element: what is read for the last time makes room for the result.
            for key in ends.get(position, ()):
                if self.spans[key].first < position:
                    live = live - cost[key]
            for key in starts.get(position, ()):
                live = live + cost[key]
            if position in starts:
                np.maximum(worst, live, out=worst)
            for key in ends.get(position, ()):
                if self.spans[key].first == position:
                    live = live - cost[key]
        sums = sum((cost[key] for key in self.spans if key[1]), start=np.zeros(geometry.n))
        return worst, sums

    def _cost(self, key: tuple[int, bool], geometry: Geometry) -> Array:
        node, accumulator = key
        found = self.program.nodes[node]
        axes = self.program.free[node]
        elements = geometry.elements(axes)
        if accumulator and isinstance(found, ReduceNode) and not summed_by_tile(self.program, node):
            every = geometry.elements(self.program.free[found.operand])
            elements = every if found.running is None else np.where(elements > 1, elements, every)
        words = _words(self.program, node, geometry)
        return np.where(elements > 1, np.maximum(elements / geometry.threads, 1.0), 0.5) * words


def _words(program: Program, node: int, geometry: Geometry) -> float:
    """32-bit registers an element. Operands of contracts stay in shared memory where tensor cores read them there."""
    found = program.nodes[node]
    if isinstance(found, Load) and feeds_only_contracts(program, node):
        return 0.0 if geometry.target.wgmma else 0.25
    if isinstance(found, Load):
        # Held as loaded: 16-bit values stay packed until an operation converts them, element by element.
        return max(ITEMSIZE.get(found.dtype, 4), 1) / 4
    dtype = getattr(found, "dtype", "int64")
    if isinstance(found, ContractNode):
        return 1.0
    return {"bool": 0.25, "int64": 2.0, "float64": 2.0}.get(dtype, max(ITEMSIZE.get(dtype, 4), 4) / 4)


def feeds_only_contracts(program: Program, node: int) -> bool:
    """Is a value read by contracts and by nothing else?"""
    users = [found for found in program.nodes if node in operands(found)]
    stored = any(store.node == node for store in program.stores)
    return bool(users) and not stored and all(isinstance(u, ContractNode) and node != u.start for u in users)
