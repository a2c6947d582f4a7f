"""Program + schedule -> Triton text. Walks the loop tree statement by statement; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofuse.codegen.access import descriptor_of
from autofuse.codegen.emission import Tile, identifier
from autofuse.codegen.expressions import module, register_dtype, render, triton_type, with_quotients
from autofuse.codegen.joining import Joining
from autofuse.codegen.kernel import Kernel, Parameter
from autofuse.codegen.layout import Span, Walk
from autofuse.codegen.looptree import Accumulate, Compute, Finish, Join, Loop, Statement, Write, statements_in
from autofuse.codegen.narrow import fit, range_of
from autofuse.codegen.reductions import FIRST
from autofuse.fusion.precision import SINGLE
from autofuse.ir.graph import Apply, Arg, Expr
from autofuse.ir.program import ContractNode, Load, MapNode, Position, Program, ReduceNode
from autofuse.schedule.schedule import Schedule


def emit(program: Program, schedule: Schedule, name: str, multiprocessors: int = 132) -> Kernel:
    """Readable Triton source for one kernel, with the constants and the grid that the schedule gives it.

    multiprocessors: of the target, for persistent grids. Raises InvalidSchedule when the roles do not fit the program.
    """
    return _Emitter(program, schedule, name, multiprocessors).kernel()


class _Emitter(Joining):
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
        writes = [found for found in statements_in(self.tree.body) if isinstance(found, Write) and found.atomic]
        zeroed = tuple(dict.fromkeys(self.program.stores[found.store].value for found in writes))
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
        return any(isinstance(n, ReduceNode) and (n.fn in FIRST or n.correction == "shift") for n in sums)

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
        dead, cuts = (loop.dead, loop.free.cuts if loop.free else ()) if walk == Walk() else ((), ())
        sums = not any(isinstance(self.program.nodes[s.node], ContractNode)
                       for s in statements_in((loop,)) if isinstance(s, Accumulate))  # fmt: skip
        for span in self.layout.emit_spans(loop.axis, self.line, walk, dead, cuts, ends=sums):
            self.visits = visits.copy()
            self.layout.emit_loop(loop.axis, self.line, walk, span)
            self.stretch(loop, span)
            self.tiles, self.raw = dict(known), dict(raw)
        if walk.ends_held:
            self.visits = visits
            self.layout.emit_turn(loop.axis, walk.backward, self.line)
            self.turn(loop)
            loads = [s.node for s in loop.body if isinstance(s, Compute) and s.node in self.raw]
            self.held = {node: self.raw[node] for node in loads if loop.axis in self.program.free[node]}
            self.tiles, self.raw = known, raw

    def stretch(self, loop: Loop, span: Span) -> None:
        """The body of a loop, for the tiles of one stretch of it."""
        outside = self.plain, self.idle, self.layout.full
        if span.free:
            self.layout.full |= {loop.axis}
        if span.free and loop.free is not None:
            self.plain, self.idle = {**self.plain, **loop.free.plain}, self.idle | loop.free.idle
        self.depth += 1
        self.layout.emit_axis(loop.axis, self.line)
        self.statements(loop.body)
        self.close_running(loop)
        self.depth -= 1
        self.plain, self.idle, self.layout.full = outside

    def turn(self, loop: Loop) -> None:
        """The body once, outside the loop, for the tile at which two passes meet."""
        self.statements(loop.body)
        self.close_running(loop)

    def compute(self, node: int) -> None:
        if node in self.idle:
            return
        found = self.plain.get(node, self.program.nodes[node])
        match found:
            case Load():
                self.load(node, found)
            case Position():
                self.position(node, found)
            case MapNode():
                self.map(node, found)
            case ReduceNode():
                self.comment(node)
                tile = self.masked_operand(found)
                text = self.reduce_text(node, found, tile)
                dims = self.dims(self.program.free[node])
                kind = "bool" if found.fn in ("any", "all") else "int64" if found.fn in FIRST else tile.dtype
                self.assign(node, text, dims, kind)
            case ContractNode():
                self.comment(node)
                dims = self.dims(self.program.free[node])
                self.assign(node, self.product(found, dims, self.beginning(found, dims)), dims, "float32")

    def position(self, node: int, found: Position) -> None:
        self.comment(node)
        dims = self.dims(self.program.free[node])
        text = self.index(found.index, dims)
        self.ranges[node] = reach = fit(found.index.bounds(self.program.sizes))
        dtype = "int64" if reach is None else "int32"
        if not dims:
            text = f"tl.full([], 0, tl.{dtype}) + ({text})"
        elif reach is None:
            text = f"({text}).to(tl.int64)"
        self.assign(node, text, dims, dtype)

    def load(self, node: int, load: Load) -> None:
        self.comment(node)
        dims = self.dims(self.program.free[node])
        name = f"{identifier(load.value)}_{node}"
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
        if (power := self.power(node, dims)) is not None:
            self.assign(node, power, dims, "float32")
            return
        operands = [self.tile(o) for o in found.operands]
        expr = found.expr
        if node in self.normalisers:
            expr, operands = self.multiplied(expr, operands)
        shared = frozenset(
            i for i, tile in enumerate(operands) if len(tile.dims) < len(dims) and tile.dtype == "float32"
        )
        if found.compute in SINGLE:
            expr = with_quotients(expr, shared)
        names = [self.expand(tile, dims) for tile in operands]
        compute, dtype = found.compute, register_dtype(found.dtype)
        reach = range_of(expr, [self.ranges.get(operand) for operand in found.operands]) if operands else None
        if reach is not None and compute == "int64" and dtype in ("int64", "bool"):
            compute, dtype = "int32", "int32" if dtype == "int64" else dtype
            self.ranges[node] = reach
        kinds = [tile.dtype for tile in operands]
        text = render(expr, names, kinds, compute, dtype, inverses=node in self.smooth)
        same = next((tile for tile in operands if tile == Tile(text, dims, dtype)), None)
        if same is not None:  # a conversion between dtypes that are one in registers
            self.tiles[node] = same
            return
        if not operands:
            text = f"tl.full([], {text}, {triton_type(dtype)})"
        self.assign(node, text, dims, dtype)

    def multiplied(self, quotient: Expr, operands: list[Tile]) -> tuple[Expr, list[Tile]]:
        """x * (1 / s) for x / s: one division a row, not one an element."""
        assert isinstance(quotient, Apply)
        divisor = quotient.args[1]
        assert isinstance(divisor, Arg)
        tile = operands[divisor.index]
        reciprocal = replace(tile, text=f"(1.0 / {tile.text})")
        changed = [reciprocal if i == divisor.index else t for i, t in enumerate(operands)]
        return Apply("mul", quotient.args), changed

    def write(self, statement: Write) -> None:
        store = self.program.stores[statement.store]
        tile = self.tile(store.node)
        axes = {axis for part in store.index for axis in part.axes}
        dims = self.dims(axes | self.program.free[store.node])
        kind = self.program.types[store.value].dtype
        text = self.filled(tile, dims)
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
