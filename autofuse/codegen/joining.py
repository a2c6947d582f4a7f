"""Programs that share a split axis meet: each leaves its part, the one that comes last combines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autofuse.codegen.emission import Tile
from autofuse.codegen.expressions import register_dtype, triton_type
from autofuse.codegen.looptree import Join, Statement
from autofuse.codegen.narrow import INT32_LIMIT
from autofuse.codegen.reductions import FIRST, Reductions, combine, neutral
from autofuse.ir.program import ContractNode, ReduceNode

MOST_PARTS = 1 << 17
"""Elements of all parts of a value that the last program reads and adds up itself, in a fixed order: 512 KiB, some 5 us
for one multiprocessor. Beyond, atomic adds share the work among all."""


class Joining(Reductions):
    def statements(self, body: Sequence[Statement]) -> None:
        """What the last program goes on with; codegen.triton has it."""
        raise NotImplementedError

    def join(self, join: Join) -> None:
        """Every program leaves its part and counts itself; the last one (acquire and release order both sides) reads
        the parts of all from L2, in order, and sets the count back for the next launch."""
        axis, parts = join.axis, self.layout.roles[join.axis].parts
        tiles = self.layout.tiles // parts
        arrivals = self.scratch("arrivals", "int32", tiles)
        self.line(f"# the program that comes last combines the parts of {axis}")
        places = {node: self.place(node, tiles * (1 if self.adds_up(node, parts) else parts)) for node in join.nodes}
        bests = {
            node: self.place(node, tiles * parts, "values", kind) for node, kind in self.placed(join.nodes).items()
        }
        added = [node for node in places if self.adds_up(node, parts)]
        for node, place in places.items():
            if node in added:
                self.line(f'tl.atomic_add({place.format(f"rest_{axis}")}, {self.tiles[node].text}, sem="relaxed")')
            else:
                part = f"rest_{axis} * {parts} + {axis}_part"
                self.line(f"tl.store({place.format(part)}, {self.stored_part(node)})")
                if node in bests:
                    self.line(f"tl.store({bests[node].format(part)}, acc{node})")
        self.line("tl.debug_barrier()")
        self.line(f'if tl.atomic_add({arrivals} + rest_{axis}, 1, sem="acq_rel") == {parts - 1}:')
        self.depth += 1
        self.line(f"tl.store({arrivals} + rest_{axis}, 0)")
        for node in sorted(join.nodes, key=lambda n: getattr(self.program.nodes[n], "running", None) is not None):
            if node in added:
                self.take_sum(node, places[node].format(f"rest_{axis}"))
            elif node in bests:
                self.first_of_parts(node, bests[node], places[node], f"rest_{axis} * {parts}", parts)
            else:
                self.combine_parts(node, places, f"rest_{axis} * {parts}", parts)
        self.statements(join.body)
        self.depth -= 1

    def adds_up(self, node: int, parts: int) -> bool:
        """Sums of which one program could not read all parts in good time are added up by atomics, in any order."""
        found, tile = self.program.nodes[node], self.tiles[node]
        plain = isinstance(found, ContractNode) or getattr(found, "fn", "") == "sum"
        followed = found.running is not None or node in self.followed  # type: ignore[union-attr]
        size = parts
        for dim in tile.dims:
            size *= self.layout.size(dim)
        return plain and not followed and tile.dtype == "float32" and size > MOST_PARTS

    def take_sum(self, node: int, place: str) -> None:
        """The sum that atomics have made, left at zero for the next launch: by whichever thread, once all have read."""
        tile = self.tiles[node]
        self.line(f'all{node} = tl.load({place}, cache_modifier=".cg")')
        self.line("tl.debug_barrier()")
        self.line(f"tl.store({place}, {self.full(tile.dims, '0', 'float32')})")
        self.tiles[node] = replace(tile, text=f"all{node}")

    def placed(self, nodes: Iterable[int]) -> dict[int, str]:
        """Those that say where along the axis the best is, with the dtype of what is best."""
        found = ((node, self.program.nodes[node]) for node in nodes)
        return {n: register_dtype(one.compute) for n, one in found if isinstance(one, ReduceNode) and one.fn in FIRST}

    def place(self, node: int, parts: int, name: str = "parts", dtype: str = "") -> str:
        """Pointers of a part of a node, with {} for which part. name, dtype: of what is left there."""
        tile = self.tiles[node]
        size = 1
        terms: list[str] = []
        for dim in reversed(tile.dims):
            index = self.expand(Tile(f"tl.arange(0, {self.layout.block(dim)})", (dim,), "int32"), tile.dims)
            terms.insert(0, index if size == 1 else f"{index} * {size}")
            size *= self.layout.size(dim)
        name = self.scratch(f"{name}{node}", dtype or part_dtype(tile.dtype), parts * size)
        wide = ".to(tl.int64)" if parts * size > INT32_LIMIT else ""
        return " + ".join([f"{name} + ({{}}){wide} * {size}", *terms])

    def stored_part(self, node: int) -> str:
        tile = self.tiles[node]
        kind = part_dtype(tile.dtype)
        return tile.text if kind == tile.dtype else f"{tile.text}.to({triton_type(kind)})"

    def combine_parts(self, node: int, places: Mapping[int, str], first: str, parts: int) -> None:
        """`all{node}`: the value over the whole axis. A part that followed a running maximum is brought to the common
        one first."""
        found, tile = self.program.nodes[node], self.tiles[node]
        kind = part_dtype(tile.dtype)
        fn = found.fn if isinstance(found, ReduceNode) else "sum"
        leader = getattr(found, "running", None)
        self.line(f"all{node} = {self.full(tile.dims, neutral(fn, kind), kind)}")
        self.line(f"for other in tl.range(0, {parts}):")
        load = 'tl.load({}, cache_modifier=".cg")'
        text = load.format(places[node].format(f"{first} + other"))
        if leader is not None:
            top = self.tiles[leader]
            self.line(f"    part = {load.format(places[leader].format(f'{first} + other'))}")
            self.line(
                f"    scale = tl.where(part == {top.text}, 1.0, tl.exp2((part - {top.text}) * {self.rates[leader]!r}))"
            )
            text = f"{text} * {self.expand(Tile('scale', top.dims, 'float32'), tile.dims)}"
        self.line(f"    all{node} = {combine(fn, f'all{node}', text, kind, node in self.maxima)}")
        self.tiles[node] = replace(tile, text=f"all{node}", dtype=kind)
        if kind != tile.dtype:
            self.tiles[node] = replace(tile, text=f"(all{node} != 0)")

    def first_of_parts(self, node: int, best: str, place: str, first: str, parts: int) -> None:
        """Where the best of all parts is."""
        found, tile = self.program.nodes[node], self.tiles[node]
        assert isinstance(found, ReduceNode)
        kind = register_dtype(found.compute)
        self.line(f"top{node} = {self.full(tile.dims, neutral(found.fn, kind), kind)}")
        self.line(f"all{node} = {self.full(tile.dims, '0', 'int64')}")
        self.line(f"for other in tl.range(0, {parts}):")
        load = 'tl.load({}, cache_modifier=".cg")'
        read = [load.format(pointers.format(f"{first} + other")) for pointers in (best, place)]
        self.line(f"    top{node}, all{node} = {FIRST[found.fn]}(top{node}, all{node}, {read[0]}, {read[1]})")
        self.tiles[node] = replace(tile, text=f"all{node}")


def part_dtype(dtype: str) -> str:
    """In which a part of a value is left for the program that combines them."""
    return "int32" if dtype == "bool" else dtype
