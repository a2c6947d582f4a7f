"""Program + schedule -> Triton text. Walks the loop tree statement by statement; decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autofuse.codegen.access import descriptor_of
from autofuse.codegen.expressions import module, register_dtype, render, triton_type
from autofuse.codegen.kernel import Kernel, Parameter
from autofuse.codegen.layout import Layout, Walk
from autofuse.codegen.looptree import Accumulate, Compute, Finish, Join, Loop, LoopTree, Statement, Write, build_tree
from autofuse.errors import InvalidSchedule
from autofuse.fusion.rewrites import normalisers, softmax_maxima
from autofuse.ir.graph import Apply, Arg, Expr
from autofuse.ir.index import Index, linearize
from autofuse.ir.program import ContractNode, Load, MapNode, Position, Program, ReduceNode
from autofuse.schedule.schedule import Schedule

INT32_LIMIT = 2**31 - 1
NEUTRAL = {"sum": 0, "prod": 1, "any": 0, "all": 1, "max": "-inf", "min": "inf", "argmax": "-inf", "argmin": "inf"}
MOST_PARTS = 1 << 17
"""Elements of all parts of a value that the last program reads and adds up itself, in a fixed order: 512 KiB, some 5 us
for one multiprocessor. Beyond, atomic adds share the work among all."""
DOT_MIN = 16
"""Smallest K of tl.dot; M and N below it are computed as a product and a sum, which is what a thin product is."""


def emit(program: Program, schedule: Schedule, name: str, multiprocessors: int = 132) -> Kernel:
    """Readable Triton source for one kernel, with the constants and the grid that the schedule gives it.

    multiprocessors: of the target, for persistent grids. Raises InvalidSchedule when the roles do not fit the program.
    """
    return _Emitter(program, schedule, name, multiprocessors).kernel()


@dataclass(frozen=True, slots=True)
class Tile:
    """A value in registers: its variable, its dtype there, and the axes that its dimensions are."""

    text: str
    dims: tuple[str, ...]
    dtype: str


class _Emitter:
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
        self.normalisers = normalisers(program)
        self.descriptors: dict[str, Parameter] = {}
        self.pointers: dict[str, Parameter] = {}
        self.followed = {
            n.running for n in program.nodes if isinstance(n, ReduceNode | ContractNode) and n.running is not None
        }
        self.direct = _dot_operands(program)
        self.visits = _visits(self.tree.body)
        self.held: dict[int, Tile] = {}

    # --- text ---

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def comment(self, node: int) -> None:
        origin = self.program.origins.get(node)
        if origin:
            self.line(f"# {origin}")

    def kernel(self) -> Kernel:
        layout = self.layout
        layout.emit_grid(self.line)
        if self.schedule.persistent:
            self.depth += 1
        layout.emit_axes(self.line)
        self.statements(self.tree.body)
        parameters = (*self.pointers.values(), *self.descriptors.values())
        constants = layout.constants()
        header = ", ".join([p.name for p in parameters] + [f"{c}: tl.constexpr" for c, _ in constants])
        body = "\n".join(self.lines)
        source = module(f"def {self.name}({header}):\n{body}\n")
        zeroed = tuple(dict.fromkeys(self.program.stores[w.store].value for w in _writes(self.tree.body) if w.atomic))
        return Kernel(self.name, source, parameters, constants, (layout.programs, 1, 1), self.schedule.num_warps,
                      self.schedule.num_stages, self.schedule.maxnreg, zeroed)  # fmt: skip

    def statements(self, body: Sequence[Statement]) -> None:
        walks = self.walks(body)
        for number, statement in enumerate(body):
            match statement:
                case Compute():
                    self.compute(statement.node)
                case Accumulate():
                    self.accumulate(statement.node)
                case Finish():
                    self.finish(statement.node)
                case Write():
                    self.write(statement)
                case Loop():
                    self.loop(statement, walks[number])
                case Join():
                    self.join(statement)

    def walks(self, body: Sequence[Statement]) -> dict[int, Walk]:
        """How each loop of a body walks its axis. One after another along the same axis alternate under a reversing
        sweep, but what depends on the order of the tiles goes forward; where two meet, the tile may be held."""
        found: dict[int, Walk] = {}
        last: dict[str, int] = {}
        for number, statement in enumerate(body):
            if not isinstance(statement, Loop):
                continue
            axis, before = statement.axis, last.get(statement.axis)
            last[axis] = number
            turns = before is not None and self.schedule.sweep != "forward" and self.layout.count(axis) > 1
            if before is None or not turns or self.layout.roles[axis].kind == "split":
                found[number] = Walk()
                continue
            backward = not found[before].backward
            if backward and self.in_order(statement):
                found[number] = Walk()
                continue
            hold = self.schedule.sweep == "hold"
            found[before] = replace(found[before], ends_held=hold)
            found[number] = Walk(backward, starts_held=hold)
        return found

    def in_order(self, loop: Loop) -> bool:
        """The first of equals and moments of what came before are told by the order of the tiles."""
        sums = [self.program.nodes[node] for node in loop.accumulators]
        return any(
            isinstance(n, ReduceNode) and (n.fn in ("argmax", "argmin") or n.correction == "shift") for n in sums
        )

    def loop(self, loop: Loop, walk: Walk) -> None:
        for node in loop.accumulators:
            if node not in self.accumulators:
                self.start(node)
        known, raw, visits = dict(self.tiles), dict(self.raw), self.visits.copy()
        if walk.starts_held:
            self.layout.emit_turn(loop.axis, not walk.backward, self.line)
            self.turn(loop)
            self.tiles, self.raw, self.visits = dict(known), dict(raw), visits.copy()
        self.held = {}
        self.layout.emit_loop(loop.axis, self.line, walk)
        self.depth += 1
        self.layout.emit_axis(loop.axis, self.line)
        self.statements(loop.body)
        self.close_running(loop)
        self.depth -= 1
        self.tiles, self.raw = dict(known), dict(raw)
        if walk.ends_held:
            self.visits = visits
            self.layout.emit_turn(loop.axis, walk.backward, self.line)
            self.turn(loop)
            loads = [s.node for s in loop.body if isinstance(s, Compute) and s.node in self.raw]
            self.held = {node: self.raw[node] for node in loads if loop.axis in self.program.free[node]}
            self.tiles, self.raw = known, raw

    def turn(self, loop: Loop) -> None:
        """The body once, outside the loop, for the tile at which two passes meet."""
        self.statements(loop.body)
        self.close_running(loop)

    # --- tiles and index expressions ---

    def dims(self, axes: frozenset[str] | set[str]) -> tuple[str, ...]:
        return tuple(a for a in self.tree.order if a in axes and not self.layout.scalar(a))

    def expand(self, tile: Tile, dims: tuple[str, ...]) -> str:
        if tile.dims == dims or not tile.dims:
            return tile.text
        picks = ", ".join(":" if d in tile.dims else "None" for d in dims)
        return f"{tile.text}[{picks}]"

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
            found = self.pointers[value] = Parameter(
                f"{_identifier(value)}_ptr", value, self.program.types[value].dtype
            )
        return found.name

    # --- nodes ---

    def compute(self, node: int) -> None:
        found = self.program.nodes[node]
        match found:
            case Load():
                self.load(node, found)
            case Position():
                dims = self.dims(self.program.free[node])
                text = self.index(found.index, dims)
                self.assign(
                    node, f"({text}).to(tl.int64)" if dims else f"tl.full([], 0, tl.int64) + ({text})", dims, "int64"
                )
            case MapNode():
                self.map(node, found)
            case ReduceNode():
                self.comment(node)
                tile = self.masked_operand(found)
                text = self.reduce_text(node, found, tile)
                dims = self.dims(self.program.free[node])
                self.assign(node, text, dims, "bool" if found.fn in ("any", "all") else register_dtype(found.compute))
            case ContractNode():
                self.comment(node)
                dims = self.dims(self.program.free[node])
                self.assign(node, self.product(found, dims, None), dims, "float32")

    def assign(self, node: int, text: str, dims: tuple[str, ...], dtype: str) -> None:
        self.tiles[node] = Tile(f"v{node}", dims, dtype)
        self.line(f"v{node} = {text}")

    def load(self, node: int, load: Load) -> None:
        self.comment(node)
        dims = self.dims(self.program.free[node])
        name = f"{_identifier(load.value)}_{node}"
        if node not in self.held:
            self.line(f"{name} = {self.load_text(node, load, dims)}")
        self.raw[node] = Tile(name, dims, load.dtype)
        kept = register_dtype(load.dtype)
        if kept != load.dtype and self.direct.get(node, False):
            self.tiles[node] = self.raw[node]
        elif kept != load.dtype:
            self.assign(node, f"{name}.to({triton_type(kept)})", dims, kept)
        else:
            self.tiles[node] = Tile(name, dims, "bool" if load.dtype == "bool" else load.dtype)
            if load.dtype == "bool":
                self.assign(node, f"{name} != 0", dims, "bool")

    def load_text(self, node: int, load: Load, dims: tuple[str, ...]) -> str:
        described = (
            descriptor_of(self.program, load.value, load.index, dims, self.layout)
            if self.use_descriptor(node)
            else None
        )
        if described is not None:
            return self.descriptor_load(described, dims)
        tests = self.masks(self.program.free[node], dims) + self.bounds(load.value, load.index, dims)
        mask = f", mask={' & '.join(tests)}, other=0" if tests else ""
        return f"tl.load({self.pointer(load.value, load.index, dims)}{mask}{self.eviction(node, dims)})"

    def use_descriptor(self, node: int) -> bool:
        return self.schedule.access in ("descriptor", "operands") and node in self.direct

    def descriptor_load(self, described: tuple[Parameter, str, tuple[str, ...]], dims: tuple[str, ...]) -> str:
        parameter, starts, held = described
        self.descriptors[parameter.name] = parameter
        text = f"{parameter.name}.load([{starts}])"
        if len(parameter.block) != len(held):
            text = f"{text}.reshape({', '.join(self.layout.block(d) for d in held)})"
        return text if held == dims else f"{text}.T"

    def eviction(self, node: int, dims: tuple[str, ...]) -> str:
        """Streamed inputs: a pass that another will follow keeps its lines in L2, the last one gives them up."""
        self.visits[node] -= 1
        if self.schedule.eviction != "first" or len(dims) != len(self.dims(set(self.program.sizes))):
            return ""
        policy = "evict_last" if self.visits[node] > 0 else "evict_first"
        return f', eviction_policy="{policy}"'

    def map(self, node: int, found: MapNode) -> None:
        self.comment(node)
        dims = self.dims(self.program.free[node])
        operands = [self.tile(o) for o in found.operands]
        expr = found.expr
        if node in self.normalisers:
            expr, operands = self.multiplied(expr, operands)
        names = [self.expand(tile, dims) for tile in operands]
        text = render(expr, names, [tile.dtype for tile in operands], found.compute, found.dtype)
        if not operands:
            text = f"tl.full([], {text}, {triton_type(register_dtype(found.dtype))})"
        self.assign(node, text, dims, register_dtype(found.dtype))

    def multiplied(self, quotient: Expr, operands: list[Tile]) -> tuple[Expr, list[Tile]]:
        """x * (1 / s) for x / s: one division a row, not one an element."""
        assert isinstance(quotient, Apply)
        divisor = quotient.args[1]
        assert isinstance(divisor, Arg)
        tile = operands[divisor.index]
        reciprocal = replace(tile, text=f"(1.0 / {tile.text})")
        changed = [reciprocal if i == divisor.index else t for i, t in enumerate(operands)]
        return Apply("mul", quotient.args), changed

    def tile(self, node: int) -> Tile:
        """The tile of a node; of a running reduce, its value so far."""
        if node in self.running and node not in self.tiles:
            accumulator = self.accumulators[node]
            return Tile(self.running[node], accumulator.dims, accumulator.dtype)
        return self.tiles[node]

    def masked_operand(self, found: ReduceNode) -> Tile:
        """The operand, holding the neutral element wherever a reduced axis is padded."""
        tile = self.tile(found.operand)
        kind = register_dtype(found.compute)
        text = tile.text
        if found.fn in ("any", "all"):
            text, kind = f"({text} != 0).to(tl.int32)", "int32"
        elif kind != tile.dtype:
            text = f"{text}.to({triton_type(kind)})"
        tests = self.masks(set(found.axes) & self.program.free[found.operand], tile.dims)
        if tests:
            text = f"tl.where({' & '.join(tests)}, {text}, {neutral(found.fn, kind)})"
        return Tile(text, tile.dims, kind)

    def reduce_text(self, node: int, found: ReduceNode, tile: Tile) -> str:
        """Sum (or the like) of a tile over the tile dimensions that the node reduces."""
        text = tile.text
        dims = list(tile.dims)
        for axis in [d for d in reversed(tile.dims) if d in found.axes]:
            text = self.reduce_dim(node, found, text, dims.index(axis), tile.dtype)
            dims.remove(axis)
        if found.fn in ("any", "all"):
            text = f"({text} != 0)"
        return text

    def reduce_dim(self, node: int, found: ReduceNode, text: str, dim: int, dtype: str) -> str:
        floating = dtype.startswith("float")
        match found.fn:
            case "sum":
                return f"tl.sum({text}, axis={dim})"
            case "prod":
                return f"tl.reduce({text}, {dim}, multiply)"
            case "argmax" | "argmin":
                return f"tl.{found.fn}({text}, axis={dim}).to(tl.int64)"
            case "max" | "any" if not floating or node in self.maxima:
                return f"tl.max({text}, axis={dim})"
            case "min" | "all" if not floating:
                return f"tl.min({text}, axis={dim})"
            case "max":
                return f"tl.reduce({text}, {dim}, nan_max)"
            case _:
                return f"tl.reduce({text}, {dim}, nan_min)"

    # --- accumulators ---

    def scalar_accumulator(self, node: int) -> bool:
        """Reduce each tile at once, not at the end: where the running value is read inside the loop."""
        found = self.program.nodes[node]
        assert isinstance(found, ReduceNode)
        return found.running is not None or node in self.followed or found.fn in ("argmax", "argmin")

    def start(self, node: int) -> None:
        found = self.program.nodes[node]
        dims = self.dims(self.program.free[node])
        if isinstance(found, ContractNode):
            wide = dims if self.is_dot(found) else self.product_dims(found)
            self.line(f"acc{node} = {self.full(wide, '0', 'float32')}")
            self.accumulators[node] = Tile(f"acc{node}", wide, "float32")
            return
        assert isinstance(found, ReduceNode)
        kind = "int32" if found.fn in ("any", "all") else register_dtype(found.compute)
        wide = dims if self.scalar_accumulator(node) else self.dims(self.program.free[found.operand])
        self.line(f"acc{node} = {self.full(wide, neutral(found.fn, kind), kind)}")
        if found.fn in ("argmax", "argmin"):
            self.line(f"at{node} = {self.full(wide, '0', 'int64')}")
        self.accumulators[node] = Tile(f"acc{node}", wide, kind)
        if node in self.followed:
            self.running[node] = f"new{node}"

    def full(self, dims: tuple[str, ...], value: str, dtype: str) -> str:
        kind = triton_type(dtype)
        if not dims:
            return f"tl.full([], {value}, {kind})"
        return f"tl.full([{', '.join(self.layout.block(d) for d in dims)}], {value}, {kind})"

    def accumulate(self, node: int) -> None:
        self.comment(node)
        found = self.program.nodes[node]
        if isinstance(found, ContractNode):
            self.rescale(node, found)
            accumulator = self.accumulators[node]
            self.line(f"acc{node} = {self.product(found, accumulator.dims, f'acc{node}')}")
            return
        assert isinstance(found, ReduceNode)
        tile = self.masked_operand(found)
        if not self.scalar_accumulator(node):
            self.line(f"acc{node} = {combine(found.fn, f'acc{node}', tile.text, tile.dtype, node in self.maxima)}")
        elif found.fn in ("argmax", "argmin"):
            self.accumulate_arg(node, found, tile)
        elif found.correction == "shift":
            self.accumulate_shifted(node, found, tile)
        else:
            self.rescale(node, found)
            self.line(f"part{node} = {self.reduce_text(node, found, tile)}")
            target = f"new{node}" if node in self.followed else f"acc{node}"
            self.line(f"{target} = {combine(found.fn, f'acc{node}', f'part{node}', tile.dtype, node in self.maxima)}")
            if node in self.followed:
                self.publish(node, found)

    def rescale(self, node: int, found: ReduceNode | ContractNode) -> None:
        if found.correction == "rescale":
            leader = self.accumulators[found.running or 0]
            scale = self.expand(Tile(f"scale{found.running}", leader.dims, "float32"), self.accumulators[node].dims)
            self.line(f"acc{node} = acc{node} * {scale}")

    def accumulate_arg(self, node: int, found: ReduceNode, tile: Tile) -> None:
        axis = found.axes[0]
        which = "max" if found.fn == "argmax" else "min"
        better = ">" if which == "max" else "<"
        if axis in tile.dims:
            dim = tile.dims.index(axis)
            self.line(f"best{node}, where{node} = tl.{which}({tile.text}, axis={dim}, return_indices=True)")
            self.line(f"where{node} = where{node} + {axis}_start")
        else:
            self.line(f"best{node} = {tile.text}")
            self.line(f"where{node} = {axis}_idx")
        self.line(f"at{node} = tl.where(best{node} {better} acc{node}, where{node}, at{node})")
        self.line(f"acc{node} = tl.where(best{node} {better} acc{node}, best{node}, acc{node})")

    def publish(self, node: int, found: ReduceNode) -> None:
        """The running value that followers read inside this turn of the loop."""
        if found.fn == "max":
            self.line(f"safe{node} = tl.where(new{node} == float('-inf'), 0.0, new{node})")
            self.line(f"scale{node} = tl.where(acc{node} == new{node}, 1.0, tl.exp(acc{node} - safe{node}))")
            self.running[node] = f"safe{node}"
            return
        axis, others = self.looped_axis(found)
        total = others * self.program.sizes[axis]
        self.line(
            f"taken{node} = tl.minimum({self.layout.block(axis)}, SIZE_{axis.upper()} - {axis}_start) * {others}.0"
        )
        self.line(f"tile{node} = part{node} * ({total}.0 / taken{node})")
        self.running[node] = f"tile{node}"

    def looped_axis(self, found: ReduceNode) -> tuple[str, int]:
        """The one looped axis of a reduce, and how many elements its other axes have."""
        looped = [a for a in found.axes if self.layout.roles[a].kind == "loop"]
        if len(looped) != 1:
            raise InvalidSchedule("moments in one pass need exactly one looped axis")
        others = 1
        for axis in found.axes:
            others *= 1 if axis == looped[0] else self.program.sizes[axis]
        return looped[0], others

    def accumulate_shifted(self, node: int, found: ReduceNode, tile: Tile) -> None:
        """Chan's combination: the tile's own centred moment, plus what the distance of the two means adds."""
        leader = found.running
        axis, others = self.looped_axis(found)
        self.line(f"before{node} = {axis}_start * {others}.0")
        self.line(f"delta{node} = part{leader} / taken{leader} - acc{leader} / tl.maximum(before{node}, 1.0)")
        self.line(f"weight{node} = before{node} * taken{leader} / (before{node} + taken{leader})")
        part = self.reduce_text(node, found, tile)
        self.line(f"acc{node} = acc{node} + {part} + delta{node} * delta{node} * weight{node}")

    def close_running(self, loop: Loop) -> None:
        here = {statement.node for statement in loop.body if isinstance(statement, Accumulate)}
        for node in loop.accumulators:
            if node in self.followed and node in here:
                self.line(f"acc{node} = new{node}")

    def finish(self, node: int) -> None:
        found = self.program.nodes[node]
        accumulator = self.accumulators.pop(node)
        self.running.pop(node, None)
        dims = self.dims(self.program.free[node])
        if isinstance(found, ContractNode):
            text = accumulator.text
            for axis in [d for d in reversed(accumulator.dims) if d not in dims]:
                text = f"tl.sum({text}, axis={accumulator.dims.index(axis)})"
            self.tiles[node] = Tile(text, dims, "float32")
            if text != accumulator.text:
                self.assign(node, text, dims, "float32")
            return
        assert isinstance(found, ReduceNode)
        if found.fn in ("argmax", "argmin"):
            self.tiles[node] = Tile(f"at{node}", dims, "int64")
        elif accumulator.dims != dims or found.fn in ("any", "all"):
            kind = "bool" if found.fn in ("any", "all") else accumulator.dtype
            self.assign(node, self.reduce_text(node, found, accumulator), dims, kind)
        else:
            self.tiles[node] = accumulator

    # --- parts of a split axis ---

    def join(self, join: Join) -> None:
        """Every program leaves its part and counts itself; the last one (acquire and release order both sides) reads
        the parts of all from L2, in order, and sets the count back for the next launch."""
        axis, parts = join.axis, self.layout.roles[join.axis].parts
        tiles = self.layout.tiles // parts
        arrivals = self.scratch("arrivals", "int32", tiles)
        self.line(f"# the program that comes last combines the parts of {axis}")
        places = {node: self.place(node, tiles * (1 if self.adds_up(node, parts) else parts)) for node in join.nodes}
        added = [node for node in places if self.adds_up(node, parts)]
        for node, place in places.items():
            if node in added:
                self.line(f'tl.atomic_add({place.format(f"rest_{axis}")}, {self.tiles[node].text}, sem="relaxed")')
            else:
                part = f"rest_{axis} * {parts} + {axis}_part"
                self.line(f"tl.store({place.format(part)}, {self.stored_part(node)})")
        self.line("tl.debug_barrier()")
        self.line(f'if tl.atomic_add({arrivals} + rest_{axis}, 1, sem="acq_rel") == {parts - 1}:')
        self.depth += 1
        self.line(f"tl.store({arrivals} + rest_{axis}, 0)")
        for node in sorted(join.nodes, key=lambda n: getattr(self.program.nodes[n], "running", None) is not None):
            if node in added:
                self.take_sum(node, places[node].format(f"rest_{axis}"))
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

    def scratch(self, name: str, dtype: str, elements: int) -> str:
        self.pointers[name] = Parameter(name, name, dtype, scratch=elements)
        return name

    def place(self, node: int, parts: int) -> str:
        """Pointers of a part of a node, with {} for which part."""
        tile = self.tiles[node]
        size = 1
        terms: list[str] = []
        for dim in reversed(tile.dims):
            index = self.expand(Tile(f"tl.arange(0, {self.layout.block(dim)})", (dim,), "int32"), tile.dims)
            terms.insert(0, index if size == 1 else f"{index} * {size}")
            size *= self.layout.size(dim)
        name = self.scratch(f"parts{node}", part_dtype(tile.dtype), parts * size)
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
            self.line(f"    scale = tl.where(part == {top.text}, 1.0, tl.exp(part - {top.text}))")
            text = f"{text} * {self.expand(Tile('scale', top.dims, 'float32'), tile.dims)}"
        self.line(f"    all{node} = {combine(fn, f'all{node}', text, kind, node in self.maxima)}")
        self.tiles[node] = replace(tile, text=f"all{node}", dtype=kind)
        if kind != tile.dtype:
            self.tiles[node] = replace(tile, text=f"(all{node} != 0)")

    # --- contracts ---

    def is_dot(self, found: ContractNode) -> bool:
        left, right = self.dims(self.program.free[found.left]), self.dims(self.program.free[found.right])
        summed = [d for d in left if d in found.axes]
        size = 1
        for axis in summed:
            size *= self.layout.size(axis)
        rows = [d for d in left if d not in found.axes]
        columns = [d for d in right if d not in found.axes]
        return bool(rows and columns and summed and size >= DOT_MIN and not set(rows) & set(columns))

    def product_dims(self, found: ContractNode) -> tuple[str, ...]:
        return self.dims(self.program.free[found.left] | self.program.free[found.right])

    def product(self, found: ContractNode, dims: tuple[str, ...], accumulator: str | None) -> str:
        if not self.is_dot(found):
            wide = self.product_dims(found)
            left, right = (self.expand(self.float32(n), wide) for n in (found.left, found.right))
            text = f"{left} * {right}"
            if accumulator is not None:
                return f"{accumulator} + {text}"
            kept = wide
            text = f"({text})"
            for axis in [d for d in reversed(wide) if d in found.axes]:
                text = f"tl.sum({text}, axis={kept.index(axis)})"
                kept = tuple(d for d in kept if d != axis)
            return text
        left, right = self.dot_operand(found, found.left), self.dot_operand(found, found.right)
        rows = tuple(d for d in left.dims if d not in found.axes)
        columns = tuple(d for d in right.dims if d not in found.axes)
        if set(rows) & set(columns):
            raise InvalidSchedule("a batch axis of a contract must have blocks of 1")
        summed = tuple(d for d in left.dims if d in found.axes)
        a, b = self.matrix(left, rows, summed), self.matrix(right, summed, columns)
        precision = ', input_precision="ieee"' if left.dtype == "float32" else ""
        plain = len(rows) == len(columns) == 1 and dims == (*rows, *columns)
        if plain:
            held = f", {accumulator}" if accumulator else ""
            return f"tl.dot({a}, {b}{held}{precision})"
        text = f"tl.dot({a}, {b}{precision}).reshape({', '.join(self.layout.block(d) for d in (*rows, *columns))})"
        if dims != (*rows, *columns):
            text = f"tl.permute({text}, ({', '.join(str((*rows, *columns).index(d)) for d in dims)}))"
        return f"{accumulator} + {text}" if accumulator else text

    def matrix(self, tile: Tile, first: tuple[str, ...], second: tuple[str, ...]) -> str:
        """The tile as a two-dimensional operand: dimensions of `first` as rows, of `second` as columns."""
        if tile.dims == (*first, *second):
            text = tile.text
        elif len(first) == len(second) == 1:
            return f"{tile.text}.T"
        else:
            text = f"tl.permute({tile.text}, ({', '.join(str(tile.dims.index(d)) for d in (*first, *second))}))"
        if len(first) == len(second) == 1:
            return text
        rows, columns = (" * ".join(map(self.layout.block, axes)) for axes in (first, second))
        return f"tl.reshape({text}, ({rows}, {columns}))"

    def dot_operand(self, found: ContractNode, node: int) -> Tile:
        """In its storage dtype, zero wherever a summed axis is padded (a map may have made something else of it)."""
        if node in self.raw and not isinstance(self.program.nodes[node], MapNode):
            return self.raw[node]
        tile = self.tile(node)
        stored = self.program.nodes[node].dtype  # type: ignore[union-attr]
        text = tile.text
        tests = self.masks(set(found.axes) & self.program.free[node], tile.dims)
        if tests:
            text = f"tl.where({' & '.join(tests)}, {text}, 0.0)"
        if stored != tile.dtype:
            text = f"{text}.to({triton_type(stored)})"
        name = f"op{node}"
        self.line(f"{name} = {text}")
        return Tile(name, tile.dims, stored)

    def float32(self, node: int) -> Tile:
        tile = self.tile(node)
        text = tile.text if tile.dtype == "float32" else f"{tile.text}.to(tl.float32)"
        return Tile(text, tile.dims, "float32")

    # --- stores ---

    def write(self, statement: Write) -> None:
        store = self.program.stores[statement.store]
        tile = self.tile(store.node)
        axes = {axis for part in store.index for axis in part.axes}
        dims = self.dims(axes | self.program.free[store.node])
        kind = self.program.types[store.value].dtype
        text = self.expand(tile, dims)
        if dims and tile.dims != dims:
            text = f"tl.broadcast_to({text}, [{', '.join(self.layout.block(d) for d in dims)}])"
        if kind not in (tile.dtype, "bool"):
            text = f"{text}.to({triton_type(kind)})"
        elif kind == "bool":
            text = f"{text}.to(tl.int1)"
        described = (
            descriptor_of(self.program, store.value, store.index, dims, self.layout)
            if self.describe_store(statement)
            else None
        )
        if described is not None and described[2] == dims and len(described[0].block) == len(dims):
            self.descriptors[described[0].name] = described[0]
            self.line(f"{described[0].name}.store([{described[1]}], {text})")
            return
        tests = self.masks(axes, dims)
        mask = f", mask={' & '.join(tests)}" if tests else ""
        call = "tl.atomic_add" if statement.atomic else "tl.store"
        order = ', sem="relaxed"' if statement.atomic else ""
        self.line(f"{call}({self.pointer(store.value, store.index, dims)}, {text}{mask}{order})")

    def describe_store(self, statement: Write) -> bool:
        return self.schedule.access == "descriptor" and not statement.atomic


def part_dtype(dtype: str) -> str:
    """In which a part of a value is left for the program that combines them."""
    return "int32" if dtype == "bool" else dtype


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
    others |= {store.node for store in program.stores}
    return {node: node not in others for node in found}


def _writes(body: Sequence[Statement]) -> list[Write]:
    found: list[Write] = []
    for statement in body:
        if isinstance(statement, Write):
            found.append(statement)
        elif isinstance(statement, Loop | Join):
            found += _writes(statement.body)
    return found


def _visits(body: Sequence[Statement]) -> Counter[int]:
    """How often each node is evaluated: once a pass that needs it."""
    found: Counter[int] = Counter()
    for statement in body:
        if isinstance(statement, Compute):
            found[statement.node] += 1
        elif isinstance(statement, Loop | Join):
            found += _visits(statement.body)
    return found


def _identifier(value: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in value)


def neutral(fn: str, dtype: str) -> str:
    """The element that changes nothing, as Triton text in a register dtype."""
    value = NEUTRAL[fn]
    if isinstance(value, int):
        return str(value) if not dtype.startswith("float") else f"{value}.0"
    if dtype.startswith("float"):
        return f"float('{value}')"
    bits = {"int8": 7, "uint8": 8, "int16": 15, "int32": 31, "int64": 63}[dtype]
    low = "0" if dtype.startswith("u") else str(-(2**bits))
    return low if value == "-inf" else str(2**bits - 1)


def combine(fn: str, accumulator: str, part: str, dtype: str, softmax: bool) -> str:
    match fn:
        case "sum":
            return f"{accumulator} + {part}"
        case "prod":
            return f"{accumulator} * {part}"
        case "max" | "any" | "min" | "all":
            which = "maximum" if fn in ("max", "any") else "minimum"
            nan = "" if softmax or not dtype.startswith("float") else ", propagate_nan=tl.PropagateNan.ALL"
            return f"tl.{which}({accumulator}, {part}{nan})"
        case _:
            raise ValueError(f"no combination for {fn}")
