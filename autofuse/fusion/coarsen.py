"""Ops that are always fused: an op whose fusion can only save joins the op that reads it. What is left are atoms.

A map joins its only reader where that is a map or a reduction over the same elements, since then its value never leaves
a register. It stays apart where a choice is left: several readers (materialise or compute again), a broadcast reader
(once, or once an element), a matmul on either side (prologue, epilogue, library call), an output of the graph.
Ops without operands, and maps of nothing but those (masks of positions, constants), are free: they are computed
wherever they are read. So are conversions of an input to a wider type: to read their result takes more than to read the
input again. (A norm's x.float() then ties its sum to its result no more: the sum may be one kernel, and a matmul that
reads x the other.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autofuse.fusion.group import GraphMasks, Group, bits
from autofuse.ir.graph import ITEMSIZE, Arg, Contract, Iota, Map, Reduce

Legal = Callable[[Group], str | None]
"""Why a group cannot be one program, or None where it can."""


@dataclass(frozen=True, slots=True)
class Atoms:
    """masks: disjoint sets of generated ops, each convex, ascending by last op. free: ops that are computed where they
    are read, in no atom. opaque: ops without a form."""

    masks: tuple[int, ...]
    free: int
    opaque: int


def coarsen(masks: GraphMasks, legal: Legal) -> Atoms:
    """Atoms of a graph. A set that `legal` refuses falls apart into its ops."""
    free = free_ops(masks)
    opaque = sum(1 << i for i, op in enumerate(masks.ops) if op.form is None)
    head = list(range(len(masks.ops)))
    for i in reversed(head):
        if not (free | opaque) >> i & 1:
            joined = _only_reader(masks, i)
            head[i] = i if joined is None else head[joined]
    sets: dict[int, int] = {}
    for i, root in enumerate(head):
        if not (free | opaque) >> i & 1:
            sets[root] = sets.get(root, 0) | 1 << i
    found: list[int] = []
    for mask in sets.values():
        whole = mask.bit_count() == 1 or legal(as_group(masks, mask, free)) is None
        found += [mask] if whole else [1 << i for i in bits(mask)]
    return Atoms(tuple(sorted(found, key=int.bit_length)), free, opaque)


def _only_reader(masks: GraphMasks, i: int) -> int | None:
    """The op that the i-th joins, or None where it stays an atom's end."""
    op, graph = masks.ops[i], masks.graph
    if not isinstance(op.form, Map) or len(op.outputs) != 1 or op.outputs[0] in masks.required:
        return None
    if any(isinstance(masks.ops[parent].form, Contract) for parent in bits(masks.parents[i])):
        return None
    readers = list(bits(masks.children[i]))
    if len(readers) != 1:
        return None
    reader = masks.ops[readers[0]]
    elements = graph.types[op.outputs[0]].numel
    if isinstance(reader.form, Map):
        return readers[0] if graph.types[reader.outputs[0]].numel == elements else None
    if isinstance(reader.form, Reduce):
        return readers[0] if graph.types[reader.form.operand].numel == elements else None
    return None


def free_ops(masks: GraphMasks) -> int:
    """Ops of known form that read nothing, maps that read only such, and widened inputs."""
    found = widened = 0
    for i, op in enumerate(masks.ops):
        reads_ops_only = all(value in masks.made_by for value in masks.reads[i])
        if isinstance(op.form, Iota | Map) and reads_ops_only and not masks.parents[i] & ~found:
            found |= 1 << i
        elif _widens_an_input(masks, i):
            widened |= 1 << i
    return found | widened


def _widens_an_input(masks: GraphMasks, i: int) -> bool:
    form, types = masks.ops[i].form, masks.graph.types
    if not isinstance(form, Map) or form.expr != Arg(0) or masks.parents[i]:
        return False
    before, after = types[form.operands[0]].dtype, types[masks.ops[i].outputs[0]].dtype
    return "float" in before and "float" in after and ITEMSIZE[before] < ITEMSIZE[after]


def with_free(masks: GraphMasks, mask: int, free: int) -> int:
    """The set with the free ops that it reads, and those that they read."""
    found = mask
    for i in bits(mask):
        for parent in bits(masks.parents[i] & free):
            found |= masks.ancestors[parent] | 1 << parent
    return found


def as_group(masks: GraphMasks, mask: int, free: int) -> Group:
    """The group of a set and the free ops that it reads; its outputs are the set's values that are used elsewhere."""
    return Group(masks.names(with_free(masks, mask, free)), masks.exposed(mask))
