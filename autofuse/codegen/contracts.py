"""Products: tl.dot where tensor cores take them, else a product and a sum."""

from __future__ import annotations

from autofuse.codegen.emission import Emission, Tile
from autofuse.codegen.expressions import triton_type
from autofuse.errors import InvalidSchedule
from autofuse.ir.program import ContractNode, MapNode
from autofuse.schedule.facts import DOT_MIN


class Contracts(Emission):
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

    def beginning(self, found: ContractNode, dims: tuple[str, ...]) -> str | None:
        """What the sum begins at, as a tile; None for 0."""
        if found.start is None:
            return None
        if not self.is_dot(found):
            raise InvalidSchedule("a product that tensor cores do not take begins at 0")
        return self.filled(self.float32(found.start), dims)

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
