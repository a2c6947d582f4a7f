"""What kind of program this is and what each axis is to it, from structure alone: no pattern names, no search-space
files. Classes are what the search-space files speak of; kinds (grid, loop, whole, split) are what an axis may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from autofuse.ir.graph import ITEMSIZE
from autofuse.ir.index import Index, linearize
from autofuse.ir.program import ContractNode, Load, Program, ReduceNode, Store, closure, operands

MAX_TILE = 65536
"""Elements of the largest tile: 64 float32 registers a thread at 32 warps."""

CLASSES: dict[str, tuple[str, ...]] = {
    "contract": ("batch", "rest", "m", "n_outer", "n", "n_vector", "extra", "k_outer", "k", "k_vector", "inner"),
    "reduction": (
        "rest", "kept", "kept_inner", "reduced_rest", "reduced_rows", "reduced_outer", "reduced_inner", "partial",
    ),
    "map": ("rest", "outer", "cross", "inner", "inner_cross", "partial"),
}  # fmt: skip
"""Classes of each family, in loop order (outermost first).

contract: of the largest contract that feeds no other: m free in the left operand only, n in the right only, k summed,
batch in both and kept; n_vector and k_vector where only one operand has a free axis (matrix times vector: no tensor
cores). inner: summed by a contract that feeds another, or by another than the largest one. k_outer:
further summed axes of the largest, n_outer: further axes of the right operand. extra: axes that it does not know.
reduction: kept (stored, never reduced) or kept_inner where loads are contiguous along it; reduced_inner where loads
are contiguous along it, else reduced_outer, or reduced_rows where an output runs along it too.
map: inner (inner_cross where there is a cross) is contiguous in the stores, cross in some load only, outer neither.
rest: what is left of a class after the one axis that is tiled. partial: stored, but not by every store, so that
programs along it would repeat each other's work."""


@dataclass(frozen=True, slots=True)
class Family:
    """classes: axis -> class, in program order."""

    name: str
    classes: dict[str, str] = field(hash=False)

    def of(self, name: str) -> tuple[str, ...]:
        """Axes of a class."""
        return tuple(axis for axis, found in self.classes.items() if found == name)


def next_pow2(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def classify(program: Program) -> Family:
    if any(isinstance(node, ContractNode) for node in program.nodes):
        return Family("contract", _ordered(program, _contract(program)))
    if any(isinstance(node, ReduceNode) for node in program.nodes):
        return Family("reduction", _ordered(program, _reduction(program)))
    return Family("map", _ordered(program, _map(program)))


def loop_order(program: Program, family: Family) -> tuple[str, ...]:
    """Axes outermost first: by class, then as the program has them."""
    ranks = {name: rank for rank, name in enumerate(CLASSES[family.name])}
    return tuple(sorted((axis.name for axis in program.axes), key=lambda axis: ranks[family.classes[axis]]))


def legal_kinds(program: Program) -> dict[str, tuple[str, ...]]:
    """The kinds that give a right kernel for each axis, whatever its class and size."""
    stored = [frozenset(axis for index in store.index for axis in index.axes) for store in program.stores]
    found: dict[str, tuple[str, ...]] = {}
    for axis in (axis.name for axis in program.axes):
        if axis in program.reduced:
            found[axis] = ("whole", "loop", "split") if _may_split(program, axis) else ("whole", "loop")
        elif all(axis in axes for axes in stored):
            found[axis] = ("grid", "whole")
        else:
            found[axis] = ("whole", "loop")
    return found


def role_assignments(
    program: Program, family: Family, allowed: Mapping[str, Mapping[str, int]] | None = None
) -> tuple[dict[str, str], ...]:
    """Vectors of kinds, one an axis, in loop order, that are legal and whose tile can fit.

    allowed: class -> kind -> greatest size of an axis that takes it; kinds it lacks are left out, save that an axis
    keeps its legal kinds where nothing would remain. By default DEFAULT_LIMITS. At most one axis is split.
    """
    allowed = DEFAULT_LIMITS[family.name] if allowed is None else allowed
    legal = legal_kinds(program)
    order = loop_order(program, family)
    choices: list[list[str]] = []
    for axis in order:
        limits = allowed.get(family.classes[axis], {})
        size = program.sizes[axis]
        fitting = [kind for kind in limits if kind in legal[axis] and size <= limits[kind]]
        if family.classes[axis] in ("rest", "n_outer") and "grid" in fitting:
            fitting = ["grid"]
        # An axis must have some role: the one that bounds the tile least comes last.
        choices.append(fitting or [kind for kind in legal[axis] if kind != "whole"] or list(legal[axis]))
    tiles = tile_axes(program)
    found: list[dict[str, str]] = []
    for kinds in product(*choices):
        assignment = dict(zip(order, kinds, strict=True))
        whole = {a: next_pow2(program.sizes[a]) for a, kind in assignment.items() if kind == "whole"}
        fits = all(_volume(whole, axes) <= MAX_TILE for axes in tiles)
        if kinds.count("split") <= 1 and fits and _meets_once(program, assignment):
            found.append(assignment)
    return tuple(found)


_ANY = 1 << 62
DEFAULT_LIMITS: dict[str, dict[str, dict[str, int]]] = {
    "contract": {
        "batch": {"grid": _ANY, "loop": _ANY, "split": _ANY},
        "rest": {"grid": _ANY, "loop": _ANY, "whole": 256},
        "m": {"grid": _ANY, "loop": _ANY, "split": _ANY},
        "n_outer": {"grid": _ANY, "loop": _ANY, "whole": 64},
        "n": {"whole": 1024, "grid": _ANY, "loop": _ANY, "split": _ANY},
        "n_vector": {"grid": _ANY, "whole": 256, "loop": _ANY, "split": _ANY},
        "extra": {"grid": _ANY, "loop": _ANY, "whole": 256},
        "k_outer": {"loop": _ANY, "whole": 64},
        "k": {"loop": _ANY, "split": _ANY, "whole": 256},
        "k_vector": {"loop": _ANY, "split": _ANY, "whole": 4096},
        "inner": {"loop": _ANY, "whole": 256},
    },
    "reduction": {
        "rest": {"grid": _ANY},
        "kept": {"grid": _ANY},
        "kept_inner": {"grid": _ANY},
        "reduced_rest": {"loop": _ANY, "whole": 64},
        "reduced_rows": {"loop": _ANY, "split": _ANY, "whole": 64},
        "reduced_outer": {"loop": _ANY, "split": _ANY, "whole": 1024},
        "reduced_inner": {"whole": MAX_TILE, "loop": _ANY, "split": _ANY},
        "partial": {"loop": _ANY, "whole": 16384},
    },
    "map": {
        "rest": {"grid": _ANY},
        "outer": {"grid": _ANY},
        "cross": {"grid": _ANY},
        "inner": {"grid": _ANY},
        "inner_cross": {"grid": _ANY},
        "partial": {"loop": _ANY, "whole": 16384},
    },
}
"""What role_assignments tries without a search-space file."""


def tile_axes(program: Program) -> tuple[frozenset[str], ...]:
    """Distinct largest sets of axes that one value in registers spans."""
    sets = set(program.free)
    return tuple(sorted((s for s in sets if not any(s < other for other in sets)), key=sorted))


def _volume(blocks: Mapping[str, int], axes: Iterable[str]) -> int:
    total = 1
    for axis in axes:
        total *= blocks.get(axis, 1)
    return total


def _ordered(program: Program, classes: Mapping[str, str]) -> dict[str, str]:
    return {axis.name: classes[axis.name] for axis in program.axes}


# --- splitting ---


def _sums(program: Program, axis: str) -> frozenset[int]:
    """Nodes that reduce an axis."""
    nodes = enumerate(program.nodes)
    return frozenset(i for i, n in nodes if isinstance(n, ReduceNode | ContractNode) and axis in n.axes)


def _may_split(program: Program, axis: str) -> bool:
    return bool(added_by_atomics(program, axis)) or _may_join(program, axis)


def added_by_atomics(program: Program, axis: str) -> frozenset[int]:
    """The reductions over an axis, if programs that share it may combine by atomic adds: each is a plain sum that is
    stored in float32 and read by nothing else, and every other store runs along the axis. Else none."""
    sums = _sums(program, axis)
    read = {operand for node in program.nodes for operand in operands(node)}
    followed = {n.running for n in program.nodes if isinstance(n, ReduceNode | ContractNode)}
    indirect = {n for store in program.stores for index in store.index for n in index.nodes}
    for number in sums:
        node = program.nodes[number]
        assert isinstance(node, ReduceNode | ContractNode)
        if number in read | followed | indirect or node.running is not None:
            return frozenset()
        if isinstance(node, ReduceNode) and node.fn != "sum":
            return frozenset()
        if any(program.types[s.value].dtype != "float32" for s in program.stores if s.node == number):
            return frozenset()
    return sums if all(store.node in sums or axis in _axes(store) for store in program.stores) else frozenset()


def _may_join(program: Program, axis: str) -> bool:
    """The program that comes last may combine the parts of all: no reduction over the axis waits for another (but it
    may follow one running), and what is stored along the axis depends on none of them."""
    sums = _sums(program, axis)
    for number in sums:
        node = program.nodes[number]
        assert isinstance(node, ReduceNode | ContractNode)
        if node.correction == "shift":
            return False
        if closure(program, *operands(node)) & sums - {node.running}:
            return False
    along = [store for store in program.stores if axis in _axes(store) | program.free[store.node]]
    return bool(sums) and not any(closure(program, store.node) & sums for store in along)


def _axes(store: Store) -> frozenset[str]:
    return frozenset(axis for index in store.index for axis in index.axes)


def _meets_once(program: Program, kinds: Mapping[str, str]) -> bool:
    """Programs that join their parts do so after one loop over the split axis, which no other loop stands around."""
    axis = next((a for a, kind in kinds.items() if kind == "split"), None)
    if axis is None or added_by_atomics(program, axis):
        return True
    looped = {a for a, kind in kinds.items() if kind == "loop"}
    summed = (program.nodes[number] for number in _sums(program, axis))
    return not any(looped & program.free[operand] for node in summed for operand in operands(node))


# --- contiguity ---


def offset(program: Program, access: Load | Store) -> Index:
    return linearize(access.index, program.types[access.value].strides)


def contiguous(program: Program, accesses: Iterable[Load | Store]) -> dict[str, int]:
    """Axis -> bytes of the values that are contiguous along it. A value is so along one axis at most."""
    found: dict[str, int] = {}
    for access in accesses:
        kind = program.types[access.value]
        at = offset(program, access)
        sizes = {axis: program.sizes[axis] for axis in at.axes if at.coefficient(axis) == 1}
        if sizes:
            axis = max(sizes, key=lambda name: sizes[name])
            touched = ITEMSIZE[kind.dtype] * _volume(program.sizes, at.axes)
            found[axis] = found.get(axis, 0) + touched
    return found


def loads(program: Program) -> tuple[Load, ...]:
    return tuple(node for node in program.nodes if isinstance(node, Load))


def _main(program: Program, axes: Sequence[str], weights: Mapping[str, int]) -> str:
    """The one axis of several that is tiled: the most contiguous, else the biggest, else the innermost."""
    order = {axis.name: i for i, axis in enumerate(program.axes)}
    return max(axes, key=lambda a: (weights.get(a, 0), program.sizes[a], order[a]))


# --- one function a family ---


def _gridable(program: Program) -> frozenset[str]:
    return frozenset(axis for axis, kinds in legal_kinds(program).items() if "grid" in kinds)


def _map(program: Program) -> dict[str, str]:
    grid = _gridable(program)
    classes = {axis.name: "partial" for axis in program.axes if axis.name not in grid}
    free = [axis.name for axis in program.axes if axis.name in grid]
    if not free:
        return classes
    written = contiguous(program, program.stores)
    read = contiguous(program, loads(program))
    inner = _main(program, [axis.name for axis in program.axes], written)
    if inner in grid:
        classes[inner] = "inner"
    crossed = [axis for axis in free if axis != inner and axis in read and read[axis] > read.get(inner, 0) // 8]
    if crossed:
        classes[_main(program, crossed, read)] = "cross"
        if inner in grid:
            classes[inner] = "inner_cross"
    others = [axis for axis in free if axis not in classes]
    if others:
        classes[_main(program, others, {})] = "outer"
    return {**classes, **{axis: "rest" for axis in free if axis not in classes}}


def _reduction(program: Program) -> dict[str, str]:
    grid = _gridable(program)
    read = contiguous(program, loads(program))
    total = max(read.values(), default=0)
    # Along a small operand's only axis a weight is contiguous too: what counts is where the bytes are.
    near = frozenset(axis for axis, touched in read.items() if touched * 4 >= total)
    classes: dict[str, str] = {}
    kept = [axis.name for axis in program.axes if axis.name in grid]
    summed = [axis.name for axis in program.axes if axis.name in program.reduced]
    inner = [axis for axis in kept if axis in near]
    if inner:
        classes[_main(program, inner, read)] = "kept_inner"
    others = [axis for axis in kept if axis not in classes]
    if others:
        classes[_main(program, others, {})] = "kept"
    inner = [axis for axis in summed if axis in near]
    if inner:
        classes[_main(program, inner, read)] = "reduced_inner"
    others = [axis for axis in summed if axis not in classes]
    if others:
        outer = _main(program, others, {})
        classes[outer] = "reduced_rows" if outer in program.stored else "reduced_outer"
    for axis in (axis.name for axis in program.axes):
        default = "rest" if axis in kept else "reduced_rest" if axis in summed else "partial"
        classes.setdefault(axis, default)
    return classes


def main_contract(program: Program) -> int:
    """The contract that feeds no other and multiplies the most."""
    feeding: set[int] = set()
    for node in program.nodes:
        if isinstance(node, ContractNode):
            stack = list(operands(node))
            while stack:
                found = stack.pop()
                if found not in feeding:
                    feeding.add(found)
                    stack += operands(program.nodes[found])
    last = [i for i, node in enumerate(program.nodes) if isinstance(node, ContractNode) and i not in feeding]

    def work(number: int) -> int:
        node = program.nodes[number]
        assert isinstance(node, ContractNode)
        return _volume(program.sizes, program.free[node.left] | program.free[node.right])

    return max(last, key=work)


def _contract(program: Program) -> dict[str, str]:
    main = program.nodes[main_contract(program)]
    assert isinstance(main, ContractNode)
    left, right, summed = program.free[main.left], program.free[main.right], frozenset(main.axes)
    members = {
        "m": [a.name for a in program.axes if a.name in left - right - summed],
        "n": [a.name for a in program.axes if a.name in right - left - summed],
        "k": [a.name for a in program.axes if a.name in summed],
    }
    weights = {
        "m": {},
        "n": contiguous(program, program.stores) or contiguous(program, loads(program)),
        "k": contiguous(program, loads(program)),
    }
    classes: dict[str, str] = dict.fromkeys(left & right - summed, "batch")
    vector = not (members["m"] and members["n"])
    names = {"m": "n_vector", "n": "n_vector", "k": "k_vector"} if vector else {"m": "m", "n": "n", "k": "k"}
    outer = {"m": "n_outer" if vector else "rest", "n": "n_outer", "k": "k_outer"}
    for name, axes in members.items():
        if axes:
            classes[_main(program, axes, weights[name])] = names[name]
        for axis in axes:
            classes.setdefault(axis, outer[name])
    inner = {a for n in program.nodes if isinstance(n, ContractNode) for a in n.axes} - summed
    for axis in (axis.name for axis in program.axes):
        classes.setdefault(axis, "inner" if axis in inner else "extra")
    return classes
