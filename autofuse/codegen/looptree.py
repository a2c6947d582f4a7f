"""Program + axis roles -> loop tree: which statement runs at which depth, and how many passes each loop axis takes.

Depends on the kinds of the roles only, not on block sizes, so one tree serves every schedule of a role assignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autofuse.errors import InvalidSchedule
from autofuse.fusion.masks import dead_where, settled
from autofuse.ir.index import Index
from autofuse.ir.program import ContractNode, MapNode, Node, Position, Program, ReduceNode, operands
from autofuse.schedule.families import added_by_atomics


@dataclass(frozen=True, slots=True)
class Compute:
    """Evaluate a node here: a load, a map, a position, or a reduce or contract whose axes are all in the tile."""

    node: int


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Inside a loop: fold the present tile of the operand(s) of a reduce or contract into its accumulator."""

    node: int


@dataclass(frozen=True, slots=True)
class Finish:
    """After the loop: the accumulator of a reduce or contract becomes its value."""

    node: int


@dataclass(frozen=True, slots=True)
class Write:
    """Store number `store` of the program; `atomic` where programs of a split axis combine."""

    store: int
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """The tiles of a loop in which none of `cuts` is positive anywhere. There each node of `plain` is this instead, and
    nobody reads those of `idle`."""

    cuts: tuple[Index, ...]
    plain: Mapping[int, MapNode]
    idle: frozenset[int]


@dataclass(frozen=True, slots=True)
class Loop:
    """Tiles of `axis` one after the other; `accumulators` are the reduce and contract nodes carried through it. dead:
    where one of these is positive, an element adds nothing to what is accumulated, and nothing else comes of it. free:
    where less is to be done, if anywhere."""

    axis: str
    accumulators: tuple[int, ...]
    body: tuple[Statement, ...]
    dead: tuple[Index, ...] = ()
    free: Free | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """The programs that share the split `axis` meet: each leaves its part of `nodes`, and the one that comes last
    combines them and goes on with `body`."""

    axis: str
    nodes: tuple[int, ...]
    body: tuple[Statement, ...]


Statement = Compute | Accumulate | Finish | Write | Loop | Join


@dataclass(frozen=True, slots=True)
class LoopTree:
    """body: statements of one program (after its grid axes are fixed). tile: the axes that are tile dimensions of each
    node (in tile order); whole axes and the block of grid and loop axes."""

    body: tuple[Statement, ...]
    order: tuple[str, ...]
    """Order of axes in every tile: a contract's summed axes lie between its left and its right axes."""

    def passes(self, axis: str) -> int:
        """How many loops over `axis` the program makes, nested ones counted once."""
        return passes(self.body, axis)


def build_tree(program: Program, kinds: Mapping[str, str], loop_order: Sequence[str] = ()) -> LoopTree:
    """kinds: axis -> grid, loop, whole or split. loop_order: looped axes, outermost first (default: program order).

    Raises InvalidSchedule where the programs of a split axis would have to meet more than once, or inside a loop.
    """
    order = [axis.name for axis in program.axes]
    looped = [a for a in (*loop_order, *order) if kinds[a] in ("loop", "split")]
    builder = _Builder(program, kinds, tuple(dict.fromkeys(looped)))
    split = next((axis for axis in looped if kinds[axis] == "split"), None)
    added = added_by_atomics(program, split) if split is not None else frozenset()
    goals = [Write(i, atomic=store.node in added) for i, store in enumerate(program.stores)]
    body = builder.scope(goals, frozenset(), frozenset())
    if split is not None and not added:
        body = joined(body, split)
    return LoopTree(tuple(body), tile_order(program))


def joined(body: Sequence[Statement], axis: str) -> list[Statement]:
    """The body with everything after the loop over the split axis left to the program that comes last."""
    loops = [i for i, s in enumerate(body) if isinstance(s, Loop) and s.axis == axis]
    if len(loops) != 1 or passes(body, axis) != 1:
        raise InvalidSchedule(f"the programs that share {axis} would meet more than once")
    at = loops[0]
    loop = body[at]
    assert isinstance(loop, Loop)
    finished = [s for s in body if isinstance(s, Finish) and s.node in loop.accumulators]
    early = [s for s in body[:at] if isinstance(s, Write)]  # what does not depend on the axis is written once too
    before = [s for s in body[: at + 1] if s not in early]
    rest = tuple(s for s in body[at + 1 :] if s not in finished)
    return [*before, *finished, Join(axis, tuple(s.node for s in finished), (*early, *rest))]


def tile_order(program: Program) -> tuple[str, ...]:
    """Axes ordered so that contracts need no transposition: left axes, summed axes, right axes; else program order."""
    names = [axis.name for axis in program.axes]
    before: dict[str, set[str]] = {name: set() for name in names}
    for node in program.nodes:
        if not isinstance(node, ContractNode):
            continue
        summed = set(node.axes)
        left = program.free[node.left] - summed - program.free[node.right]
        right = program.free[node.right] - summed - program.free[node.left]
        for after, earlier in ((summed, left), (right, left | summed)):
            for axis in after:
                before[axis] |= earlier
    placed: list[str] = []
    while len(placed) < len(names):
        rest = [name for name in names if name not in placed]
        placed.append(next((name for name in rest if not before[name] - set(placed)), rest[0]))
    return tuple(placed)


Goal = Write | Accumulate


@dataclass(frozen=True, slots=True)
class _Item:
    goal: Goal
    opens: tuple[str, ...]
    waits: frozenset[int]


class _Builder:
    def __init__(self, program: Program, kinds: Mapping[str, str], looped: tuple[str, ...]) -> None:
        self.program = program
        self.kinds = kinds
        self.looped = looped

    def loops(self, axes: frozenset[str] | set[str]) -> frozenset[str]:
        return frozenset(axes) & frozenset(self.looped)

    def node_of(self, goal: Goal) -> int:
        return self.program.stores[goal.store].node if isinstance(goal, Write) else goal.node

    def summed(self, node: int) -> frozenset[str]:
        """Looped axes that a node reduces: it then needs an accumulator and a loop."""
        found = self.program.nodes[node]
        return self.loops(set(found.axes)) if isinstance(found, ReduceNode | ContractNode) else frozenset()

    def axes_of(self, goal: Goal) -> frozenset[str]:
        """Looped axes that must be open where the goal's statement stands."""
        node = self.node_of(goal)
        if isinstance(goal, Accumulate):
            return self.loops(self.program.free[node]) | self.summed(node)
        index = {axis for part in self.program.stores[goal.store].index for axis in part.axes}
        return self.loops(self.program.free[node] | index)

    def roots(self, goal: Goal) -> tuple[int, ...]:
        node = self.node_of(goal)
        if isinstance(goal, Write):
            extra = tuple(n for part in self.program.stores[goal.store].index for n in part.nodes)
            return (node, *extra)
        return operands(self.program.nodes[node])

    def waits(self, goal: Goal, have: frozenset[int]) -> set[int]:
        """Looped reduces that must be finished before the goal, transitively, less those that it follows running."""
        running = (
            getattr(self.program.nodes[self.node_of(goal)], "running", None) if isinstance(goal, Accumulate) else None
        )
        found: set[int] = set()
        stack = list(self.roots(goal))
        while stack:
            node = stack.pop()
            if node in have or node in found or node == running:
                continue
            if self.summed(node):
                found.add(node)
            stack += operands(self.program.nodes[node])
        return found

    def scope(self, goals: Sequence[Goal], opened: frozenset[str], have: frozenset[int]) -> list[Statement]:
        """Statements that reach the goals, `opened` loops being open and the nodes of `have` evaluated."""
        pending = dict.fromkeys(goals)
        for goal in goals:
            for node in sorted(self.waits(goal, have)):
                if self.loops(self.program.free[node]) <= opened:
                    pending[Accumulate(node)] = None
        items = [self.item(goal, opened, have) for goal in pending]
        statements: list[Statement] = []
        while items:
            local = {item.goal.node for item in items if isinstance(item.goal, Accumulate) and item.goal not in goals}
            ready = [item for item in items if not (item.waits & local)]
            direct = [item for item in ready if not item.opens]
            if direct:
                for item in self.running_first(direct):
                    new, have = self.evaluate(self.roots(item.goal), have)
                    statements += [*new, item.goal]
                items = [item for item in items if item not in direct]
                continue
            axis = next(a for a in self.looped if any(item.opens[0] == a for item in ready))
            chosen = [item for item in ready if item.opens[0] == axis]
            hoisted, have = self.hoist([item.goal for item in chosen], opened, have)
            inner = [item.goal for item in self.running_first(chosen)]
            sums = [goal.node for goal in inner if isinstance(goal, Accumulate)]
            fresh = tuple(n for n in sums if axis in self.summed(n) and not (self.summed(n) & opened))
            carried = tuple(n for n in sums if axis in self.summed(n))
            body = self.scope(inner, opened | {axis}, have)
            dead, free = dead_in(self.program, body), free_in(self.program, self.kinds, axis, body)
            loop = Loop(axis, carried, tuple(body), dead, free)
            statements += [*hoisted, loop, *(Finish(n) for n in fresh)]
            have |= set(fresh)
            items = [item for item in items if item not in chosen]
        return statements

    def item(self, goal: Goal, opened: frozenset[str], have: frozenset[int]) -> _Item:
        opens = self.axes_of(goal) - opened
        return _Item(goal, tuple(a for a in self.looped if a in opens), frozenset(self.waits(goal, have)))

    def running_first(self, items: list[_Item]) -> list[_Item]:
        """A reduce that follows another's running value comes after it; writes come last."""

        def rank(item: _Item) -> tuple[bool, int]:
            return isinstance(item.goal, Write), self.node_of(item.goal)

        return sorted(items, key=rank)

    def evaluate(self, roots: Sequence[int], have: frozenset[int]) -> tuple[list[Statement], frozenset[int]]:
        """Compute statements for nodes that are not there yet, operands first."""
        statements: list[Statement] = []
        done = set(have)

        def visit(node: int) -> None:
            if node in done or self.summed(node):
                return
            done.add(node)
            for operand in operands(self.program.nodes[node]):
                visit(operand)
            statements.append(Compute(node))

        for root in roots:
            visit(root)
        return statements, frozenset(done)

    def hoist(
        self, goals: Sequence[Goal], opened: frozenset[str], have: frozenset[int]
    ) -> tuple[list[Statement], frozenset[int]]:
        """What the loop about to open needs but does not change: evaluated before it, where all it needs is there."""
        roots: list[int] = []
        seen: set[int] = set()

        def available(node: int) -> bool:
            if node in have:
                return True
            if self.summed(node) or not self.loops(self.program.free[node]) <= opened:
                return False
            return all(available(operand) for operand in operands(self.program.nodes[node]))

        def visit(node: int) -> None:
            if node in seen:
                return
            seen.add(node)
            if available(node):
                roots.append(node)
                return
            for operand in operands(self.program.nodes[node]):
                visit(operand)

        for goal in goals:
            for root in self.roots(goal):
                if isinstance(goal, Accumulate) or self.axes_of(goal) - opened:
                    visit(root)
        return self.evaluate(sorted(roots), have)


def passes(body: Sequence[Statement], axis: str) -> int:
    return sum(isinstance(found, Loop) and found.axis == axis for found in statements_in(body))


def dead_in(program: Program, body: Sequence[Statement]) -> tuple[Index, ...]:
    """Loop.dead of a loop with this body."""
    inner = list(statements_in(body))
    told = any(isinstance(node, Position) for node in program.nodes)
    if not told or any(isinstance(statement, Write) for statement in inner):
        return ()
    return dead_where(program, [statement.node for statement in inner if isinstance(statement, Accumulate)])


def free_in(program: Program, kinds: Mapping[str, str], axis: str, body: Sequence[Statement]) -> Free | None:
    """Loop.free of a loop along `axis` with this body: of the choices that hang on where its tiles begin."""
    computed = [statement.node for statement in statements_in(body) if isinstance(statement, Compute)]
    known = {a for a, kind in kinds.items() if kind in ("grid", "whole")}
    cuts: dict[Index, None] = {}
    plain: dict[int, MapNode] = {}
    for node in computed if kinds[axis] == "loop" else ():
        choice = settled(program, node)
        if choice and all(abs(cut.coefficient(axis)) == 1 and {*cut.axes} <= {axis, *known} for cut in choice.cuts):
            cuts |= dict.fromkeys(choice.cuts)
            plain[node] = choice.plain
    if not plain:
        return None
    nodes: list[Node] = [plain.get(number, node) for number, node in enumerate(program.nodes)]
    read: set[int] = set()
    stack = [n for s in statements_in(body) for n in _reads(program, s)]
    while stack:
        node = stack.pop()
        if node not in read:
            read.add(node)
            stack += operands(nodes[node])
    return Free(tuple(cuts), plain, frozenset(computed) - read)


def _reads(program: Program, statement: Statement) -> tuple[int, ...]:
    """What a goal of a loop's body needs."""
    match statement:
        case Accumulate(node) | Finish(node):
            return (node,)
        case Write(store):
            found = program.stores[store]
            return (found.node, *(n for part in found.index for n in part.nodes))
        case _:
            return ()


def statements_in(body: Sequence[Statement]) -> Iterator[Statement]:
    """All of them, those inside loops and joins too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop | Join):
            yield from statements_in(statement.body)
