"""Reductions of a tile, and what is carried through a loop: accumulators, running values, one-pass moments."""

from __future__ import annotations

import math

from autofuse.codegen.contracts import Contracts
from autofuse.codegen.emission import Tile
from autofuse.codegen.expressions import register_dtype, triton_type
from autofuse.codegen.looptree import Accumulate, Loop
from autofuse.errors import InvalidSchedule
from autofuse.ir.program import ContractNode, ReduceNode, summed_by_tile

FIRST = {"argmax": "first_max", "argmin": "first_min"}
"""Combinations of (value, place), by the function that they are of."""
FAR = 2.0**27
"""Of r * m (publish_maximum): rounding it makes up to 2^4 of an exponential that is 1, which float16 still holds."""

NEUTRAL = {"sum": 0, "prod": 1, "any": 0, "all": 1, "max": "-inf", "min": "inf", "argmax": "-inf", "argmin": "inf"}


class Reductions(Contracts):
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
            if found.fn in FIRST:
                text = f"{self.best_of(found, tile)}[1].to(tl.int64)"
            else:
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
            case "max" | "any" if not floating or node in self.maxima:
                return f"tl.max({text}, axis={dim})"
            case "min" | "all" if not floating:
                return f"tl.min({text}, axis={dim})"
            case "max":
                return f"tl.reduce({text}, {dim}, nan_max)"
            case _:
                return f"tl.reduce({text}, {dim}, nan_min)"

    def best_of(self, found: ReduceNode, tile: Tile) -> str:
        """(best value, its place along the axis) of a tile, for each of its other elements."""
        (axis,) = found.axes
        places = self.expand(Tile(f"{axis}_idx", (axis,), "int32"), tile.dims)
        wide = f"tl.broadcast_to({places}, {self.shape(tile.dims)})"
        return f"tl.reduce(({tile.text}, {wide}), {tile.dims.index(axis)}, {FIRST[found.fn]})"

    def by_tile(self, node: int, found: ReduceNode) -> bool:
        """summed_by_tile; what follows another also where a tile has several results, which warps sum up for
        themselves: then an accumulator of all elements costs more than it spares (a tenth of a cross entropy)."""
        several = found.running is not None and bool(self.dims(self.program.free[node]))
        return several or summed_by_tile(self.program, node)

    def start(self, node: int) -> None:
        found = self.program.nodes[node]
        dims = self.dims(self.program.free[node])
        if isinstance(found, ContractNode):
            wide = dims if self.is_dot(found) else self.product_dims(found)
            self.line(f"acc{node} = {self.beginning(found, wide) or self.full(wide, '0', 'float32')}")
            self.accumulators[node] = Tile(f"acc{node}", wide, "float32")
            return
        assert isinstance(found, ReduceNode)
        kind = "int32" if found.fn in ("any", "all") else register_dtype(found.compute)
        wide = dims if self.by_tile(node, found) else self.dims(self.program.free[found.operand])
        self.line(f"acc{node} = {self.full(wide, neutral(found.fn, kind), kind)}")
        if found.fn in FIRST:
            self.line(f"at{node} = {self.full(wide, '0', 'int32')}")
        self.accumulators[node] = Tile(f"acc{node}", wide, kind)
        if node in self.followed:
            self.running[node] = f"new{node}"

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
        if not self.by_tile(node, found):
            self.rescale(node, found)
            self.line(f"acc{node} = {combine(found.fn, f'acc{node}', tile.text, tile.dtype, node in self.maxima)}")
        elif found.fn in FIRST:
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
        (axis,) = found.axes
        if axis in tile.dims:
            self.line(f"best{node}, where{node} = {self.best_of(found, tile)}")
            text, place = f"best{node}", f"where{node}"
        else:
            text, place = tile.text, f"{axis}_idx"
        self.line(f"acc{node}, at{node} = {FIRST[found.fn]}(acc{node}, at{node}, {text}, {place})")

    def publish(self, node: int, found: ReduceNode) -> None:
        """The running value that followers read inside this turn of the loop."""
        if found.fn == "max":
            self.publish_maximum(node)
            return
        axis, others = self.looped_axis(found)
        total = others * self.program.sizes[axis]
        self.line(
            f"taken{node} = tl.minimum({self.layout.block(axis)}, SIZE_{axis.upper()} - {axis}_start) * {others}.0"
        )
        self.line(f"tile{node} = part{node} * ({total}.0 / taken{node})")
        self.running[node] = f"tile{node}"

    def publish_maximum(self, node: int) -> None:
        """The running value that followers read, and what brings their sums to it.

        With r = f * log2(e), exp(f * (x - m)) is exp2(r * x - r * m): one multiply-add and one exp2. r * m is rounded,
        which is as if the exponentials were shifted by a neighbour of m: the same for all of a row, and for the scale
        from one maximum to the next. Where that neighbour is far, r is a power of 2, with which nothing is rounded:
        scores are so large there that they differ by 4 (in r * x) or not at all."""
        rate = self.rates[node]
        new, acc, safe = (f"{name}{node}" for name in ("new", "acc", "safe"))
        self.line(f"{safe} = tl.where({new} == float('-inf'), 0.0, {new})")
        self.running[node] = safe
        if all(e.leader != node for e in self.quotients.values()):
            self.line(f"scale{node} = tl.where({acc} == {new}, 1.0, tl.exp2(({acc} - {safe}) * {rate!r}))")
            return
        near, exact = FAR / rate, 2.0 ** math.floor(math.log2(rate))
        self.line(f"rate{node} = tl.where(tl.abs({safe}) < {near!r}, {rate!r}, {exact!r})")
        self.line(f"shift{node} = {safe} * rate{node}")
        power = f"tl.minimum({acc} * rate{node}, shift{node}) - shift{node}"
        self.line(f"scale{node} = tl.where({acc} == {new}, 1.0, tl.exp2({power}))")

    def power(self, node: int, dims: tuple[str, ...]) -> str | None:
        """A node exp(f * (x - m)) by the multiply-add, where m is followed running."""
        found = self.quotients.get(node)
        if found is None or found.leader not in self.running:
            return None
        rows = self.accumulators[found.leader].dims
        rate, shift = (self.expand(Tile(f"{name}{found.leader}", rows, "float32"), dims) for name in ("rate", "shift"))
        return f"tl.exp2(tl.fma({self.expand(self.tile(found.x), dims)}, {rate}, -{shift}))"

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
        if found.fn in FIRST:
            self.tiles[node] = Tile(f"at{node}.to(tl.int64)", dims, "int64")
        elif accumulator.dims != dims or found.fn in ("any", "all"):
            kind = "bool" if found.fn in ("any", "all") else accumulator.dtype
            self.assign(node, self.reduce_text(node, found, accumulator), dims, kind)
        else:
            self.tiles[node] = accumulator


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
