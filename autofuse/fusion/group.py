"""A group (a set of ops that could run as one kernel), and bitmasks over a graph's ops to find groups with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofuse.ir.graph import Graph, Op, operands


@dataclass(frozen=True, slots=True)
class Group:
    """ops in graph order, views left out: they fold into whoever reads through them. outputs: values materialised.

    A value of `ops` that is used elsewhere but is no output is computed again where it is used (recompute).
    """

    ops: tuple[str, ...]
    outputs: tuple[str, ...]


class GraphMasks:
    """Ops that are no views, numbered in graph order; a set of them is an int with those bits.

    An op depends on the base value behind each view that it reads. `parents` and `children` are direct, `ancestors`
    and `descendants` transitive, none of them includes the op itself.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: tuple[Op, ...] = tuple(op for op in graph.ops if not op.is_view)
        self.number = {op.name: i for i, op in enumerate(self.ops)}
        self.reads: tuple[tuple[str, ...], ...] = tuple(reads(graph, op) for op in self.ops)
        self.made_by = {value: i for i, op in enumerate(self.ops) for value in op.outputs}
        self.readers: dict[str, int] = {}
        """Base value -> the ops that read it, inputs of the graph included."""
        for i, values in enumerate(self.reads):
            for value in values:
                self.readers[value] = self.readers.get(value, 0) | 1 << i
        self.required = required(graph)
        count = len(self.ops)
        self.parents = [0] * count
        self.children = [0] * count
        self.ancestors = [0] * count
        self.descendants = [0] * count
        for i, values in enumerate(self.reads):
            for value in values:
                if value in self.made_by:
                    self.parents[i] |= 1 << self.made_by[value]
            for parent in bits(self.parents[i]):
                self.ancestors[i] |= self.ancestors[parent] | 1 << parent
                self.children[parent] |= 1 << i
        for i in reversed(range(count)):
            for child in bits(self.children[i]):
                self.descendants[i] |= self.descendants[child] | 1 << child

    def mask(self, names: Iterable[str]) -> int:
        found = 0
        for name in names:
            found |= 1 << self.number[name]
        return found

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(self.ops[i].name for i in bits(mask))

    def hull(self, mask: int) -> int:
        """The smallest convex set around `mask`: with the ops on every path that leaves it and comes back."""
        above = below = 0
        for i in bits(mask):
            above |= self.ancestors[i]
            below |= self.descendants[i]
        return mask | (above & below)

    def is_convex(self, mask: int) -> bool:
        return self.hull(mask) == mask

    def inputs(self, mask: int) -> tuple[str, ...]:
        """Base values that the set reads and does not make, in order of first use."""
        found: dict[str, None] = {}
        for i in bits(mask):
            for value in self.reads[i]:
                if value not in self.made_by or not mask >> self.made_by[value] & 1:
                    found[value] = None
        return tuple(found)

    def exposed(self, mask: int) -> tuple[str, ...]:
        """Values of the set that something outside it needs, in graph order; all of them where nothing does."""
        values = [value for i in bits(mask) for value in self.ops[i].outputs]
        used = [v for v in values if v in self.required or self.readers.get(v, 0) & ~mask]
        return tuple(used or values)


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def reads(graph: Graph, op: Op) -> tuple[str, ...]:
    """Distinct base values behind what the op reads."""
    found = dict.fromkeys(graph.base(value) for value in op.inputs)
    if op.form is not None:
        found |= dict.fromkeys(graph.base(value) for value in operands(op.form))
    return tuple(found)


def is_settled(graph: Graph, ops: Iterable[str]) -> bool:
    """Whether all that these ops make follows from frozen inputs alone: then it is computed once, from those inputs on,
    and needs no other group."""
    return bool(graph.settled) and all(graph.settled.issuperset(graph.by_name[name].outputs) for name in ops)


def required(graph: Graph) -> frozenset[str]:
    """Base values that must be materialised because an output of the graph is, or looks at, them."""
    bases = {graph.base(value) for value in graph.outputs if value is not None}
    return frozenset(bases - set(graph.inputs))


def peak_of_steps(graph: Graph, steps: Sequence[tuple[Collection[str], Collection[str]]]) -> int:
    """The most that intermediate values take at any time, where each of the steps (base values it reads, values it
    makes) frees what nothing after it reads. Inputs and outputs of the graph count nothing, nor what a library call
    returns beside what the graph has."""
    own = required(graph) | set(graph.inputs)
    last = {value: number for number, (needs, _) in enumerate(steps) for value in needs}
    held = peak = 0
    alive: dict[str, None] = {}
    for number, (_, makes) in enumerate(steps):
        made = [value for value in makes if value not in own and value in graph.types]
        held += sum(graph.types[value].nbytes for value in made)
        peak = max(peak, held)
        alive |= dict.fromkeys(made)
        gone = [value for value in alive if last.get(value, number) <= number]
        held -= sum(graph.types[value].nbytes for value in gone)
        alive = {value: None for value in alive if value not in gone}
    return peak


def kernel_name(ops: Sequence[str]) -> str:
    """Of a group's kernel, readable in profiles: the first and the last op."""
    ends = dict.fromkeys((ops[0], ops[-1]))
    return "fused_" + "_".join("".join(c if c.isalnum() else "_" for c in name) for name in ends)


def saved_bytes(graph: Graph, group: Group) -> int:
    """2 N s of every value that the group keeps on chip: read and written nowhere."""
    inside = {value for name in group.ops for value in graph.by_name[name].outputs} - set(group.outputs)
    return sum(2 * graph.types[value].nbytes for value in inside)
