"""The loop tree as a flat list of work: each access and each computation with the loops that stand around it.

Independent of block sizes, so made once a tree; the numbers come from `Geometry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autofuse.codegen.looptree import Accumulate, Compute, Join, Loop, LoopTree, Statement, Write, statements_in
from autofuse.cost.instructions import expression_cost
from autofuse.cost.liveness import feeds_only_contracts
from autofuse.fusion.exponentials import quotients
from autofuse.ir.graph import ITEMSIZE
from autofuse.ir.index import Index, linearize
from autofuse.ir.program import ContractNode, Load, MapNode, Program, ReduceNode, Store, summed_by_tile


@dataclass(frozen=True, slots=True)
class Access:
    """A load or a store. axes: that it varies along. contiguous: the axis of unit stride, if any."""

    value: str
    itemsize: int
    axes: frozenset[str]
    opened: tuple[str, ...]
    contiguous: str | None
    contract: bool = False
    atomic: bool = False
    indirect: bool = False
    loop: int = -1
    """Which loop stands innermost around it, by number; -1 outside all."""
    described: bool = False
    """A tensor descriptor can make it (as far as shapes go)."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Element-wise work over a tile: plain and special instructions an element. cut: a looped axis of whose tiles only
    those need it that are not free (looptree.Free)."""

    axes: frozenset[str]
    opened: tuple[str, ...]
    plain: float
    special: float
    cut: str | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A contract: rows, columns and summed axes, and where its operands come from."""

    rows: frozenset[str]
    columns: frozenset[str]
    summed: frozenset[str]
    batch: frozenset[str]
    opened: tuple[str, ...]
    itemsize: int
    dtype: str
    in_registers: bool
    """An operand was mapped in the kernel, so it passes through registers."""


@dataclass(frozen=True, slots=True)
class Across:
    """A reduction of a tile: threads must meet."""

    axes: frozenset[str]
    kept: frozenset[str]
    opened: tuple[str, ...]


@dataclass(slots=True)
class Work:
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    arithmetic: list[Arithmetic] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    reductions: list[Across] = field(default_factory=list)
    loops: list[tuple[str, ...]] = field(default_factory=list)
    cut: dict[int, str] = field(default_factory=dict)
    """Nodes that a loop does without where it is free -> its axis."""
    powers: frozenset[int] = frozenset()
    """Exponentials by one multiply-add and one exp2 (Reductions.power)."""


def collect(program: Program, tree: LoopTree) -> Work:
    carried = {statement.node for statement in statements_in(tree.body) if isinstance(statement, Accumulate)}
    work = Work(powers=frozenset(node for node, e in quotients(program).items() if e.leader in carried))
    _walk(program, tree.body, (), -1, work)
    return work


def _walk(program: Program, body: Sequence[Statement], opened: tuple[str, ...], loop: int, work: Work) -> None:
    for statement in body:
        match statement:
            case Loop():
                inner = (*opened, statement.axis)
                work.loops.append(inner)
                if statement.free is not None:
                    work.cut |= dict.fromkeys((*statement.free.plain, *statement.free.idle), statement.axis)
                _walk(program, statement.body, inner, len(work.loops) - 1, work)
            case Compute():
                _node(program, statement.node, opened, loop, work, accumulate=False)
            case Accumulate():
                _node(program, statement.node, opened, loop, work, accumulate=True)
            case Write():
                _store(program, program.stores[statement.store], statement.atomic, opened, work)
            case Join():
                for node in statement.nodes:  # written and read through L2, as an atomic add reads and writes
                    axes = program.free[node]
                    work.stores.append(Access("", 4, axes, opened, None, contract=False, atomic=True, indirect=False))
                _walk(program, statement.body, opened, loop, work)
            case _:
                _finish(program, statement.node, opened, work)


def _node(program: Program, node: int, opened: tuple[str, ...], loop: int, work: Work, *, accumulate: bool) -> None:
    found = program.nodes[node]
    match found:
        case Load():
            access = _access(program, found.value, found.index, program.free[node], opened,
                             contract=feeds_only_contracts(program, node))  # fmt: skip
            work.loads.append(replace(access, loop=loop))
        case MapNode():
            plain, special = (1.0, 1.0) if node in work.powers else expression_cost(found.expr)
            widened = sum(1 for o in found.operands if isinstance(program.nodes[o], Load))
            plain += 0.5 * widened
            work.arithmetic.append(Arithmetic(program.free[node], opened, plain, special, work.cut.get(node)))
        case ReduceNode():
            axes = program.free[found.operand]
            work.arithmetic.append(Arithmetic(axes, opened, 1.0 + (found.fn in ("argmax", "argmin")) * 3, 0.0))
            if not accumulate or found.running is not None or summed_by_tile(program, node):
                work.reductions.append(Across(axes, program.free[node], opened))
            if found.correction == "rescale":
                work.arithmetic.append(Arithmetic(program.free[node], opened, 3.0, 1.0))
        case ContractNode():
            work.products.append(_product(program, found, opened))
            if found.correction == "rescale":
                work.arithmetic.append(Arithmetic(program.free[node], opened, 1.0, 0.0))
        case _:
            pass


def _finish(program: Program, node: int, opened: tuple[str, ...], work: Work) -> None:
    found = program.nodes[node]
    if isinstance(found, ReduceNode) and found.running is None and not summed_by_tile(program, node):
        work.reductions.append(Across(program.free[found.operand], program.free[node], opened))


def _store(program: Program, store: Store, atomic: bool, opened: tuple[str, ...], work: Work) -> None:
    axes = frozenset(a for part in store.index for a in part.axes)
    work.stores.append(_access(program, store.value, store.index, axes, opened, atomic=atomic))


def _access(
    program: Program, value: str, index: tuple[Index, ...], axes: frozenset[str], opened: tuple[str, ...],
    *, contract: bool = False, atomic: bool = False,
) -> Access:  # fmt: skip
    kind = program.types[value]
    size = ITEMSIZE[kind.dtype]
    flat = linearize(index, kind.strides)
    contiguous = next((v for v, c in flat.terms if isinstance(v, str) and abs(c) == 1 and program.sizes[v] > 1), None)
    aligned = 2 <= len(index) <= 5 and kind.strides[-1] == 1 and all((s * size) % 16 == 0 for s in kind.strides[:-1])
    return Access(value, size, axes, opened, contiguous, contract, atomic, bool(flat.nodes),
                  described=aligned)  # fmt: skip


def _product(program: Program, found: ContractNode, opened: tuple[str, ...]) -> Product:
    left, right, summed = program.free[found.left], program.free[found.right], frozenset(found.axes)
    operand = program.nodes[found.left]
    dtype = getattr(operand, "dtype", "float32")
    mapped = any(isinstance(program.nodes[o], MapNode | ContractNode | ReduceNode) for o in (found.left, found.right))
    return Product(left - summed - right, right - summed - left, summed, (left & right) - summed, opened,
                   ITEMSIZE.get(dtype, 4), dtype, mapped)  # fmt: skip
