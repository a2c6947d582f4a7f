"""What a kernel's text is made of while it is written: lines, tiles in registers, index expressions, masks, pointers.
No statement of the loop tree is known here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autofuse.codegen.expressions import LOG2_E, triton_type
from autofuse.codegen.kernel import Parameter
from autofuse.codegen.layout import Layout
from autofuse.codegen.looptree import Compute, LoopTree, Statement, build_tree, statements_in
from autofuse.codegen.narrow import INT32_LIMIT, Range
from autofuse.fusion.algebra import smooth
from autofuse.fusion.exponentials import exponents, normalisers, quotients, softmax_maxima
from autofuse.ir.index import Index, linearize
from autofuse.ir.program import ContractNode, Load, MapNode, Program, ReduceNode
from autofuse.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Tile:
    """A value in registers: its variable, its dtype there, and the axes that its dimensions are."""

    text: str
    dims: tuple[str, ...]
    dtype: str


class Emission:
    """The state of one kernel that is being written."""

    def __init__(self, program: Program, schedule: Schedule, name: str, multiprocessors: int) -> None:
        self.program = program
        self.schedule = schedule
        self.name = name
        kinds = {axis.name: schedule.role(axis.name).kind for axis in program.axes}
        self.tree: LoopTree = build_tree(program, kinds, [axis for axis, _ in schedule.roles])
        self.layout = Layout(program, schedule, self.tree.order, multiprocessors)
        self.lines: list[str] = []
        self.depth = 1
        self.tiles: dict[int, Tile] = {}
        self.raw: dict[int, Tile] = {}
        self.accumulators: dict[int, Tile] = {}
        self.running: dict[int, str] = {}
        self.maxima = softmax_maxima(program)
        self.rates = {e.leader: e.factor * LOG2_E for e in exponents(program).values()}
        self.quotients = quotients(program)
        self.normalisers = normalisers(program)
        self.descriptors: dict[str, Parameter] = {}
        self.pointers: dict[str, Parameter] = {}
        self.followed = {
            n.running for n in program.nodes if isinstance(n, ReduceNode | ContractNode) and n.running is not None
        }
        self.smooth = smooth(program)
        self.direct = _dot_operands(program)
        self.visits = _visits(self.tree.body)
        self.held: dict[int, Tile] = {}
        self.plain: dict[int, MapNode] = {}
        self.idle: frozenset[int] = frozenset()
        """looptree.Free of the stretch that is being written."""
        self.ranges: dict[int, Range | None] = {}
        """Least and greatest value of nodes that are integers known to fit 32 bits."""

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def comment(self, node: int) -> None:
        origin = self.program.origins.get(node)
        if origin:
            self.line(f"# {origin}")

    def dims(self, axes: frozenset[str] | set[str]) -> tuple[str, ...]:
        return tuple(a for a in self.tree.order if a in axes and not self.layout.scalar(a))

    def expand(self, tile: Tile, dims: tuple[str, ...]) -> str:
        if tile.dims == dims or not tile.dims:
            return tile.text
        picks = ", ".join(":" if d in tile.dims else "None" for d in dims)
        return f"{tile.text}[{picks}]"

    def filled(self, tile: Tile, dims: tuple[str, ...]) -> str:
        """The tile over all of these dimensions."""
        text = self.expand(tile, dims)
        if not dims or tile.dims == dims:
            return text
        return f"tl.broadcast_to({text}, {self.shape(dims)})"

    def index(self, index: Index, dims: tuple[str, ...], wide: bool = False) -> str:
        parts: list[str] = []
        for var, coefficient in index.terms:
            if isinstance(var, str):
                text = self.expand(Tile(f"{var}_idx", self.dims({var}), "int32"), dims)
            else:
                text = self.expand(self.tiles[var], dims)
            if wide:
                text = f"{text}.to(tl.int64)"
            parts.append(text if coefficient == 1 else f"{text} * {coefficient}")
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts).replace("+ -", "- ")

    def masks(self, axes: frozenset[str] | set[str], dims: tuple[str, ...]) -> list[str]:
        masked = [a for a in self.tree.order if a in axes and self.layout.masked(a)]
        return [self.expand(Tile(f"{a}_mask", self.dims({a}), "bool"), dims) for a in masked]

    def bounds(self, value: str, index: tuple[Index, ...], dims: tuple[str, ...]) -> list[str]:
        """Tests that an access needs beyond its axes' own: shifted indices of concatenations and pads."""
        tests: list[str] = []
        for part, size in zip(index, self.program.types[value].shape, strict=True):
            reach = part.bounds(self.program.sizes)
            if reach is None:
                continue
            if reach[0] < 0:
                tests.append(f"({self.index(part, dims)} >= 0)")
            if reach[1] >= size:
                tests.append(f"({self.index(part, dims)} < {size})")
        return tests

    def pointer(self, value: str, index: tuple[Index, ...], dims: tuple[str, ...]) -> str:
        kind = self.program.types[value]
        extent = sum(abs(stride) * max(size - 1, 0) for size, stride in zip(kind.shape, kind.strides, strict=True))
        offset = self.index(linearize(index, kind.strides), dims, extent > INT32_LIMIT)
        return f"{self.pointer_parameter(value)} + ({offset})"

    def pointer_parameter(self, value: str) -> str:
        found = self.pointers.get(value)
        if found is None:
            found = self.pointers[value] = Parameter(f"{identifier(value)}_ptr", value, self.program.types[value].dtype)
        return found.name

    def scratch(self, name: str, dtype: str, elements: int) -> str:
        self.pointers[name] = Parameter(name, name, dtype, scratch=elements)
        return name

    def assign(self, node: int, text: str, dims: tuple[str, ...], dtype: str) -> None:
        self.tiles[node] = Tile(f"v{node}", dims, dtype)
        self.line(f"v{node} = {text}")

    def tile(self, node: int) -> Tile:
        """The tile of a node; of a running reduce, its value so far."""
        if node in self.running and node not in self.tiles:
            accumulator = self.accumulators[node]
            return Tile(self.running[node], accumulator.dims, accumulator.dtype)
        return self.tiles[node]

    def full(self, dims: tuple[str, ...], value: str, dtype: str) -> str:
        kind = triton_type(dtype)
        return f"tl.full({self.shape(dims)}, {value}, {kind})"

    def shape(self, dims: tuple[str, ...]) -> str:
        return f"[{', '.join(self.layout.block(d) for d in dims)}]"

    def float32(self, node: int) -> Tile:
        tile = self.tile(node)
        text = tile.text if tile.dtype == "float32" else f"{tile.text}.to(tl.float32)"
        return Tile(text, tile.dims, "float32")


def _dot_operands(program: Program) -> dict[int, bool]:
    """Loads that feed a contract as they are: node -> is that their only use?"""
    found: dict[int, bool] = {}
    for node in program.nodes:
        if isinstance(node, ContractNode):
            for operand in (node.left, node.right):
                if isinstance(program.nodes[operand], Load):
                    found[operand] = True
    others = {o for n in program.nodes if isinstance(n, MapNode) for o in n.operands}
    others |= {n.operand for n in program.nodes if isinstance(n, ReduceNode)}
    others |= {n.start for n in program.nodes if isinstance(n, ContractNode) and n.start is not None}
    others |= {store.node for store in program.stores}
    return {node: node not in others for node in found}


def _visits(body: Sequence[Statement]) -> Counter[int]:
    """How often each node is evaluated: once a pass that needs it."""
    return Counter(found.node for found in statements_in(body) if isinstance(found, Compute))


def identifier(value: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in value)
