"""Where a program's tiles lie: blocks, grid decomposition, loop ranges and masks, as text and as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofuse.errors import InvalidSchedule
from autofuse.ir.index import Index
from autofuse.ir.program import Program
from autofuse.schedule.families import next_pow2
from autofuse.schedule.schedule import Schedule

ENOUGH_TILES = 4
"""Of a loop whose last tile is done apart, so that the others need no test of their bounds."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How a loop goes along its axis. starts_held, ends_held: the tile at that end is done outside the loop, since the
    pass before or after it meets it there."""

    backward: bool = False
    starts_held: bool = False
    ends_held: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Tiles that a loop takes, from `low` to before `high`, as text. free: they lie where looptree.Free holds."""

    low: str
    high: str
    free: bool = False


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Layout:
    """Blocks and ranges of each axis under one schedule. Raises InvalidSchedule on blocks Triton has no tile for."""

    def __init__(self, program: Program, schedule: Schedule, order: Sequence[str], multiprocessors: int) -> None:
        self.program = program
        self.schedule = schedule
        self.order = tuple(order)
        self.roles = {axis.name: schedule.role(axis.name) for axis in program.axes}
        self.blocks = {a: next_pow2(program.sizes[a]) if r.kind == "whole" else r.block for a, r in self.roles.items()}
        for axis, block in self.blocks.items():
            if block < 1 or block & (block - 1):
                raise InvalidSchedule(f"axis {axis}: block {block} is not a power of two")
        named = [axis for axis, _ in schedule.roles if axis in self.roles]
        self.grid_axes = tuple(a for a in named if self.roles[a].kind == "grid")
        self.split_axes = tuple(a for a in named if self.roles[a].kind == "split")
        self.tiles = 1
        for axis in self.grid_axes:
            self.tiles *= self.count(axis)
        for axis in self.split_axes:
            self.tiles *= self.roles[axis].parts
        self.full: frozenset[str] = frozenset()
        """Looped axes whose present tile is known to end before the axis does."""
        self.programs = min(self.tiles, schedule.persistent * multiprocessors) if schedule.persistent else self.tiles

    def size(self, axis: str) -> int:
        return self.blocks[axis]

    def count(self, axis: str) -> int:
        return ceil_div(self.program.sizes[axis], self.blocks[axis])

    def scalar(self, axis: str) -> bool:
        return self.blocks[axis] == 1

    def part(self, axis: str) -> int:
        """Elements of a split axis that one program takes: whole tiles."""
        return ceil_div(self.count(axis), self.roles[axis].parts) * self.blocks[axis]

    def masked(self, axis: str) -> bool:
        return self.program.sizes[axis] % self.blocks[axis] != 0 and axis not in self.full

    def turns(self, axis: str) -> int:
        """Tiles of a loop along the axis, at most."""
        role = self.roles[axis]
        return self.part(axis) // self.blocks[axis] if role.kind == "split" else self.count(axis)

    def block(self, axis: str) -> str:
        return f"BLOCK_{axis.upper()}"

    def constants(self) -> tuple[tuple[str, int], ...]:
        found = [(f"SIZE_{a.name.upper()}", a.size) for a in self.program.axes]
        found += [(self.block(axis), block) for axis, block in self.blocks.items()]
        found += [(f"PART_{axis.upper()}", self.part(axis)) for axis in self.split_axes]
        found += [("NUM_STAGES", self.schedule.num_stages)]
        if self.schedule.persistent:
            found += [("TILES", self.tiles), ("PROGRAMS", self.programs)]
        return tuple(found)

    def emit_grid(self, line: Callable[[str], None]) -> None:
        """`tile`: which tile of the grid this program (or this turn of a persistent program) works on."""
        if self.schedule.persistent:
            looped = any(role.kind in ("loop", "split") for role in self.roles.values())
            option = ", flatten=True" if self.schedule.flatten else "" if looped else ", num_stages=NUM_STAGES"
            line(f"for tile in tl.range(tl.program_id(0), TILES, PROGRAMS{option}):")
        else:
            line("tile = tl.program_id(0)")

    def emit_axes(self, line: Callable[[str], None]) -> None:
        """Starts and indices of every axis but the looped ones, from `tile`; the last grid axis moves fastest."""
        self._emit_grid_order(line)
        for axis, role in self.roles.items():
            if role.kind == "whole":
                line(f"{axis}_start = 0")
            elif role.kind == "grid":
                line(f"{axis}_start = {axis}_tile * {self.block(axis)}")
            if role.kind in ("whole", "grid"):
                self.emit_axis(axis, line)

    def _emit_grid_order(self, line: Callable[[str], None]) -> None:
        rest = "tile"
        for axis in self.split_axes:
            parts = self.roles[axis].parts
            line(f"{axis}_part = {rest} % {parts}")
            line(f"rest_{axis} = {rest} // {parts}")
            rest = f"rest_{axis}"
        tiled = [axis for axis in self.grid_axes if self.count(axis) > 1]
        for axis in self.grid_axes:
            if axis not in tiled:
                line(f"{axis}_tile = 0")
        if self.schedule.group > 1 and len(tiled) >= 2:
            rows, columns = tiled[-2:]
            rest = self._emit_outer(tiled[:-2], self.count(rows) * self.count(columns), rest, line)
            self._emit_grouped(rows, columns, rest, line)
            return
        for position, axis in enumerate(reversed(tiled)):
            last = position == len(tiled) - 1
            line(f"{axis}_tile = {rest}" if last else f"{axis}_tile = {rest} % {self.count(axis)}")
            if not last:
                line(f"rest_{axis} = {rest} // {self.count(axis)}")
                rest = f"rest_{axis}"

    def _emit_outer(self, axes: Sequence[str], inner: int, rest: str, line: Callable[[str], None]) -> str:
        if not axes:
            return rest
        line(f"outer = {rest} // {inner}")
        line(f"within = {rest} % {inner}")
        for position, axis in enumerate(reversed(axes)):
            last = position == len(axes) - 1
            line(f"{axis}_tile = outer" if last else f"{axis}_tile = outer % {self.count(axis)}")
            if not last:
                line(f"outer = outer // {self.count(axis)}")
        return "within"

    def _emit_grouped(self, rows: str, columns: str, rest: str, line: Callable[[str], None]) -> None:
        """Walk `group` tile rows together, so that a wave reuses few panels of both operands in L2."""
        group = self.schedule.group
        line(f"band = {rest} // {group * self.count(columns)}")
        line(f"band_rows = tl.minimum({self.count(rows)} - band * {group}, {group})")
        line(f"{rows}_tile = band * {group} + ({rest} % {group * self.count(columns)}) % band_rows")
        line(f"{columns}_tile = ({rest} % {group * self.count(columns)}) // band_rows")

    def emit_turn(self, axis: str, first: bool, line: Callable[[str], None]) -> None:
        """The first or the last tile of an axis, outside of any loop. A tensor: the loop around it assigns one too."""
        start = 0 if first else (self.count(axis) - 1) * self.blocks[axis]
        line(f"{axis}_start = tl.full([], {start}, tl.int32)")
        self.emit_axis(axis, line)

    def emit_spans(
        self, axis: str, line: Callable[[str], None], walk: Walk, dead: Sequence[Index], cuts: Sequence[Index],
        ends: bool,
    ) -> tuple[Span, ...]:  # fmt: skip
        """What a loop takes, one stretch after the other. dead: where one of these is positive, its body does nothing;
        tiles that lie there are left out. cuts: where one of these is positive, a tile is not free; such tiles come
        before and after the free ones. ends: a last tile that is not whole is worth a stretch of its own, where there
        are enough others. A flattened kernel goes without: the compiler flattens around one loop only.
        """
        low, high = self._bounds(axis, walk, dead)
        ends = ends and self.masked(axis) and self.turns(axis) >= ENOUGH_TILES
        if not (cuts or ends) or walk != Walk() or self.schedule.flatten:
            return (Span(low, high),)
        block = self.block(axis)
        rising = [self._edge(axis, cut, max) for cut in cuts if cut.coefficient(axis) > 0]
        falling = [self._edge(axis, cut, max, self.blocks[axis] - 1) for cut in cuts if cut.coefficient(axis) < 0]
        whole = [f"SIZE_{axis.upper()} // {block} * {block}"] if self.masked(axis) else []
        line(f"{axis}_high = {high}")
        spans: list[Span] = []
        if falling:
            line(f"{axis}_low = {low}")
            free = _nested("maximum", [f"{axis}_low", *(f"({edge}) // {block} * {block}" for edge in falling)])
            line(f"{axis}_free = tl.minimum({axis}_high, {free})")
            spans.append(Span(f"{axis}_low", f"{axis}_free"))
            low = f"{axis}_free"
        if not (rising or whole):
            return (*spans, Span(low, f"{axis}_high", free=True))
        cut = _nested("minimum", [f"{axis}_high", *whole, *(f"({edge}) // {block} * {block}" for edge in rising)])
        line(f"{axis}_cut = tl.maximum({low}, {cut})")
        return (*spans, Span(low, f"{axis}_cut", free=True), Span(f"{axis}_cut", f"{axis}_high"))

    def emit_loop(self, axis: str, line: Callable[[str], None], walk: Walk, span: Span) -> None:
        """In a flattened kernel the compiler's own option sets the stages: an attribute here would bar flattening."""
        stages = "" if self.schedule.flatten else ", num_stages=NUM_STAGES"
        name = f"{axis}_turn" if walk.backward else f"{axis}_start"
        line(f"for {name} in tl.range({span.low}, {span.high}, {self.block(axis)}{stages}):")
        if walk.backward:
            line(f"    {axis}_start = {int(span.low) + int(span.high) - self.blocks[axis]} - {name}")

    def _bounds(self, axis: str, walk: Walk, dead: Sequence[Index]) -> tuple[str, str]:
        low, high = "0", f"SIZE_{axis.upper()}"
        if walk != Walk():
            block = self.blocks[axis]
            first, last = (walk.ends_held, walk.starts_held) if walk.backward else (walk.starts_held, walk.ends_held)
            low, high = str(block * first), str(block * (self.count(axis) - last))
        if self.roles[axis].kind == "split":
            low = f"{axis}_part * PART_{axis.upper()}"
            high = f"tl.minimum({low} + PART_{axis.upper()}, SIZE_{axis.upper()})"
        for index in dead if self.roles[axis].kind == "loop" else ():
            low, high = self._without(axis, index, low, high)
        return low, high

    def _without(self, axis: str, dead: Index, low: str, high: str) -> tuple[str, str]:
        """Bounds of a loop without the tiles in which `dead` is positive all over. Steps of 1 along the axis, and tiles
        of the other axes that are known before the loop."""
        step = dead.coefficient(axis)
        if abs(step) != 1 or any(self.roles[a].kind not in ("grid", "whole") for a in dead.axes if a != axis):
            return low, high
        edge = self._edge(axis, dead, min)
        if step > 0:
            return low, f"tl.minimum({high}, tl.maximum({low}, {edge}))"
        return f"tl.maximum({low}, ({edge}) // {self.block(axis)} * {self.block(axis)})", high

    def _edge(self, axis: str, index: Index, corner: Callable[[int, int], int], more: int = 0) -> str:
        """From where (step 1) or before where (step -1) along the axis `index` is positive, plus `more`: if the tiles
        of the other axes make the least (corner: min) or the most (max) of it."""
        step, rest = index.coefficient(axis), [(a, index.coefficient(a)) for a in index.axes if a != axis]
        extreme = index.const + sum(corner(c, 0) * (self.blocks[a] - 1) for a, c in rest)
        starts = "".join(
            f" {'-' if c * step > 0 else '+'} {f'{abs(c)} * ' if abs(c) > 1 else ''}{a}_start" for a, c in rest
        )
        return f"{(1 - extreme if step > 0 else extreme) + more}{starts}"

    def emit_axis(self, axis: str, line: Callable[[str], None]) -> None:
        if self.scalar(axis):
            line(f"{axis}_idx = {axis}_start")
        else:
            line(f"{axis}_idx = {axis}_start + tl.arange(0, {self.block(axis)})")
        if self.masked(axis):
            line(f"{axis}_mask = {axis}_idx < SIZE_{axis.upper()}")


def _nested(fn: str, parts: Sequence[str]) -> str:
    """tl.maximum or tl.minimum of one or more."""
    *rest, last = parts
    return f"tl.{fn}({_nested(fn, rest)}, {last})" if rest else last
