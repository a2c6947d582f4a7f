"""A group in named-axis form: maps, reduces and contracts over named axes, in SSA. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autofuse.ir.graph import Expr, Scalar, TensorType
from autofuse.ir.index import Index


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Load:
    """One element of an input value, indexed per dimension; outside the bounds it reads `other`."""

    value: str
    index: tuple[Index, ...]
    dtype: str
    other: Scalar = 0


@dataclass(frozen=True, slots=True)
class Position:
    """An index expression as a value (arange, bounds of a concatenation)."""

    index: Index
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class MapNode:
    """As graph.Map, its operands being nodes; free axes are the union of its operands'."""

    operands: tuple[int, ...]
    expr: Expr
    compute: str
    dtype: str


@dataclass(frozen=True, slots=True)
class ReduceNode:
    """fn over `axes` of a node.

    `running` names another reduce node over the same axes whose *running* value the operand may read inside the loop;
    `correction` says how the accumulator follows when that value moves:
    "rescale": acc *= exp(old - new), the operand being linear in exp(x - running) (online softmax);
    "shift": the operand is (x - mean)^2 and `running` is the node of the mean (Chan's combination of moments).
    """

    fn: str
    operand: int
    axes: tuple[str, ...]
    compute: str
    dtype: str
    running: int | None = None
    correction: str | None = None


@dataclass(frozen=True, slots=True)
class ContractNode:
    """Sum over `axes` of the product of two nodes, accumulated in float32; `running` as in ReduceNode. start: the node
    that the sum begins at, in place of 0."""

    left: int
    right: int
    axes: tuple[str, ...]
    dtype: str
    running: int | None = None
    correction: str | None = None
    start: int | None = None


Node = Load | Position | MapNode | ReduceNode | ContractNode


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a node to an output value, indexed per dimension (each a distinct axis expression)."""

    value: str
    index: tuple[Index, ...]
    node: int


@dataclass(frozen=True)
class Program:
    """A group ready to be scheduled. Nodes are topologically sorted; a node's id is its position."""

    axes: tuple[Axis, ...]
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]
    types: dict[str, TensorType] = field(hash=False)
    """Of every value loaded or stored."""
    origins: dict[int, str] = field(hash=False, compare=False, default_factory=dict[int, str])
    """Node id -> the op names that it came from, for comments in generated source."""
    folded: Program | None = None
    """The same results with factors moved onto frozen weights (fusion.folding), where there are any."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.axes}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Values loaded, in order of first use."""
        return tuple(dict.fromkeys(node.value for node in self.nodes if isinstance(node, Load)))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(store.value for store in self.stores))

    @cached_property
    def free(self) -> tuple[frozenset[str], ...]:
        """Free axes of each node: those that its value varies along."""
        found: list[frozenset[str]] = []
        for node in self.nodes:
            axes: set[str] = set()
            for index in node_indices(node):
                axes.update(index.axes)
            for operand in operands(node):
                axes |= found[operand]
            if isinstance(node, ReduceNode | ContractNode):
                axes -= set(node.axes)
            found.append(frozenset(axes))
        return tuple(found)

    @cached_property
    def reduced(self) -> frozenset[str]:
        """Axes that some node reduces."""
        return frozenset(a for n in self.nodes if isinstance(n, ReduceNode | ContractNode) for a in n.axes)

    @cached_property
    def stored(self) -> frozenset[str]:
        """Axes that some output varies along."""
        return frozenset(a for store in self.stores for index in store.index for a in index.axes)


def node_indices(node: Node) -> tuple[Index, ...]:
    match node:
        case Load():
            return node.index
        case Position():
            return (node.index,)
        case _:
            return ()


def operands(node: Node) -> tuple[int, ...]:
    """Ids of the nodes that a node reads: indirect index terms included, `running` not."""
    match node:
        case MapNode():
            return node.operands
        case ReduceNode():
            return (node.operand,)
        case ContractNode():
            return (node.left, node.right) if node.start is None else (node.left, node.right, node.start)
        case _:
            return tuple(n for index in node_indices(node) for n in index.nodes)


def summed_by_tile(program: Program, node: int) -> bool:
    """Is a looped reduce summed up over each tile at once, and not element by element until the loop ends? Where its
    running value is read in the loop, where places are kept, and where one that follows another shares the registers
    with the accumulator of a contraction."""
    found = program.nodes[node]
    assert isinstance(found, ReduceNode)
    if found.fn in ("argmax", "argmin") or found.correction == "shift":
        return True
    if any(getattr(other, "running", None) == node for other in program.nodes):
        return True
    return found.running is not None and any(isinstance(other, ContractNode) for other in program.nodes)


def closure(program: Program, *roots: int) -> set[int]:
    """The nodes named and everything that they are computed from."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        top = stack.pop()
        if top not in found:
            found.add(top)
            stack += operands(program.nodes[top])
    return found
