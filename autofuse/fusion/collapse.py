"""Adjacent axes that every access walks as one become one axis: a contiguous pointwise group is a flat vector."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from autofuse.ir.graph import TensorType
from autofuse.ir.index import Index
from autofuse.ir.program import Axis, ContractNode, Load, Position, Program, ReduceNode, Store

Access = tuple[str | None, tuple[Index, ...]]


def collapse(program: Program) -> Program:
    """Merge pairs of axes until none can be."""
    while True:
        for outer, inner in _adjacent(program):
            merged = _merge(program, outer, inner)
            if merged is not None:
                program = merged
                break
        else:
            return program


def _accesses(program: Program) -> list[Access]:
    found: list[Access] = [(n.value, n.index) for n in program.nodes if isinstance(n, Load)]
    found += [(None, (n.index,)) for n in program.nodes if isinstance(n, Position)]
    return found + [(store.value, store.index) for store in program.stores]


def _adjacent(program: Program) -> list[tuple[str, str]]:
    """Pairs (outer, inner) of neighbouring axes in some access."""
    pairs: dict[tuple[str, str], None] = {}
    for _, index in _accesses(program):
        walked = [axis for part in index for axis in sorted(part.axes, key=part.coefficient)[::-1]]
        pairs |= dict.fromkeys(pairwise(walked))
    return list(pairs)


def _merge(program: Program, outer: str, inner: str) -> Program | None:
    for node in program.nodes:
        if isinstance(node, ReduceNode | ContractNode) and (outer in node.axes) != (inner in node.axes):
            return None
        if isinstance(node, ReduceNode) and node.fn in ("argmax", "argmin") and outer in node.axes:
            return None
    size = program.sizes[inner]
    dims: dict[str, int] = {}
    for value, index in _accesses(program):
        where = [(d, part) for d, part in enumerate(index) if outer in part.axes or inner in part.axes]
        if not where:
            if value in dims:
                return None
            continue
        if len(where) == 1 and where[0][1].coefficient(outer) == where[0][1].coefficient(inner) * size:
            if value in dims:
                return None
            continue
        if value is None or len(where) != 2 or not _joined(program.types[value], where, outer, inner, size):
            return None
        if dims.setdefault(value, where[0][0]) != where[0][0]:
            return None
    for value, dim in dims.items():
        if any(_at(index, dim) != (outer, inner) for other, index in _accesses(program) if other == value):
            return None
    return _apply(program, outer, inner, dims)


def _at(index: tuple[Index, ...], dim: int) -> tuple[str | None, str | None]:
    return index[dim].axis, index[dim + 1].axis


def _joined(kind: TensorType, where: list[tuple[int, Index]], outer: str, inner: str, size: int) -> bool:
    (d, first), (e, second) = where
    return (
        e == d + 1 and first.axis == outer and second.axis == inner
        and kind.shape[e] == size and kind.strides[d] == kind.strides[e] * size
    )  # fmt: skip


def _apply(program: Program, outer: str, inner: str, dims: dict[str, int]) -> Program:
    sizes = program.sizes
    merged = Axis(outer, sizes[outer] * sizes[inner])

    def part(index: Index) -> Index:
        terms = tuple((v, c) for v, c in index.terms if v not in (outer, inner))
        step = index.coefficient(inner)
        return Index(terms, index.const) + Index.of(outer, step) if step else Index(terms, index.const)

    def access(value: str | None, index: tuple[Index, ...]) -> tuple[Index, ...]:
        dim = dims.get(value) if value is not None else None
        if dim is None:
            return tuple(part(i) for i in index)
        return (*index[:dim], Index.of(outer), *index[dim + 2 :])

    nodes = tuple(
        replace(n, index=access(n.value, n.index)) if isinstance(n, Load)
        else replace(n, index=part(n.index)) if isinstance(n, Position)
        else replace(n, axes=tuple(a for a in n.axes if a != inner)) if isinstance(n, ReduceNode | ContractNode)
        else n
        for n in program.nodes
    )  # fmt: skip
    stores = tuple(Store(s.value, access(s.value, s.index), s.node) for s in program.stores)
    axes = tuple(merged if a.name == outer else a for a in program.axes if a.name != inner)
    types = dict(program.types)
    for value, dim in dims.items():
        kind = types[value]
        shape = (*kind.shape[:dim], kind.shape[dim] * kind.shape[dim + 1], *kind.shape[dim + 2 :])
        types[value] = TensorType(shape, kind.dtype, (*kind.strides[:dim], *kind.strides[dim + 1 :]))
    return Program(axes, nodes, stores, types, program.origins)
