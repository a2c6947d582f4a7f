"""A set of ops of a graph -> its named-axis program, or the reason why they cannot be one.

Demand-driven: start from the elements of the outputs and ask what each needs. Views never become nodes, they rewrite
the index that is asked for. Two demands for the same element expression are one node; demands that differ only in the
axis they run along (a norm's sum and its result) are unified afterwards, where that keeps every value's meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autofuse.fusion.algebra import read, with_indices
from autofuse.fusion.collapse import collapse
from autofuse.fusion.factors import combined
from autofuse.fusion.precision import quickened
from autofuse.ir.graph import (
    Apply,
    Arg,
    Concat,
    Contract,
    Expr,
    Graph,
    Iota,
    Lit,
    Map,
    Op,
    Pad,
    Reduce,
    Reshape,
    Strided,
    Take,
)
from autofuse.ir.index import Index, NotAffine, SplitNeeded
from autofuse.ir.program import (
    Axis,
    ContractNode,
    Load,
    MapNode,
    Node,
    Position,
    Program,
    ReduceNode,
    Store,
    closure,
    operands,
)

MAX_SPLITS = 64
"""A graph needs one split a view that cuts a dimension; more means that the splits do not converge."""

UNSUPPORTED_DTYPES = frozenset({"complex32", "complex64", "complex128", "uint16", "uint32", "uint64",
                                "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"})  # fmt: skip


class NotFusible(Exception):
    """These ops are no named-axis program; the message says why, in the user's terms."""


def build(graph: Graph, ops: frozenset[str], outputs: Sequence[str]) -> Program:
    """The program that computes `outputs` with the ops named (views need no naming). Raises NotFusible."""
    for name in sorted(ops):
        _check(graph, graph.by_name[name])
    splits: dict[str, int] = {}
    for _ in range(MAX_SPLITS):
        builder = _Builder(graph, ops, splits)
        try:
            return quickened(_named(combined(collapse(builder.program(outputs)))))
        except SplitNeeded as need:
            splits[need.axis] = need.inner
        except NotAffine as error:
            raise NotFusible(f"a view has no affine index: {error}") from None
    raise NotFusible("views cut the axes in ways that do not fit together")


def _check(graph: Graph, op: Op) -> None:
    if op.form is None:
        raise NotFusible(f"{op.name}: {op.call.target} is not generated")
    for value in (*op.inputs, *op.outputs):
        kind = graph.types[value]
        if kind.dtype in UNSUPPORTED_DTYPES:
            raise NotFusible(f"{op.name}: dtype {kind.dtype} of {value} is not generated")
        if kind.numel == 0:
            raise NotFusible(f"{op.name}: {value} has no elements")
    if isinstance(op.form, Contract) and graph.types[op.form.left].dtype not in ("float16", "bfloat16", "float32"):
        raise NotFusible(f"{op.name}: a matmul in {graph.types[op.form.left].dtype} is not generated")


class _Builder:
    def __init__(self, graph: Graph, ops: frozenset[str], splits: dict[str, int]) -> None:
        self.graph = graph
        self.ops = ops
        self.splits = splits
        self.sizes: dict[str, int] = {}
        self.nodes: list[Node] = []
        self.ids: dict[Node, int] = {}
        self.instances: dict[tuple[str, tuple[Index, ...]], int] = {}
        self.origins: dict[int, str] = {}
        self.labels: dict[str, int] = {}

    # --- axes and nodes ---

    def axis(self, label: str, size: int) -> Index:
        if size == 1:
            return Index()
        inner = self.splits.get(label)
        if inner:
            return self.axis(f"{label}o", size // inner) * inner + self.axis(f"{label}i", inner)
        self.sizes[label] = size
        return Index.of(label)

    def fresh(self, stem: str, sizes: Sequence[int]) -> tuple[Index, ...]:
        count = self.labels.get(stem, 0)
        self.labels[stem] = count + 1
        tag = f"#{count}" if count else ""
        return tuple(self.axis(f"{stem}.{i}{tag}", size) for i, size in enumerate(sizes))

    def node(self, node: Node, origin: str = "") -> int:
        found = self.ids.get(node)
        if found is None:
            found = self.ids[node] = len(self.nodes)
            self.nodes.append(node)
            self.origins[found] = origin
        return found

    # --- values at an index ---

    def value(self, name: str, index: tuple[Index, ...]) -> int:
        op = self.graph.producer.get(name)
        if op is not None and op.is_view:
            form = op.form
            assert isinstance(form, Reshape | Strided)
            return self.value(form.operand, self.through_view(form, self.graph.types[name].shape, index))
        key = (name, index)
        found = self.instances.get(key)
        if found is None:
            if op is None or op.name not in self.ops:
                found = self.load(name, index)
            else:
                found = self.instance(op, name, index)
            self.instances[key] = found
        return found

    def load(self, name: str, index: tuple[Index, ...]) -> int:
        """All positions along an expanded dimension (stride 0) are one element, so they are one load."""
        kind = self.graph.types[name]
        at = tuple(i if stride or i.nodes else Index() for i, stride in zip(index, kind.strides, strict=True))
        return self.node(Load(name, at, kind.dtype), name)

    def through_view(
        self, form: Reshape | Strided, shape: tuple[int, ...], index: tuple[Index, ...]
    ) -> tuple[Index, ...]:
        source = self.graph.types[form.operand].shape
        if isinstance(form, Strided):
            result = [Index(const=start) for start in form.starts]
            for position, dim, step in zip(index, form.source, form.steps, strict=True):
                if dim is not None:
                    result[dim] = result[dim] + position * step
            return tuple(result)
        return reshape_index(index, shape, source, self.sizes)

    def instance(self, op: Op, name: str, index: tuple[Index, ...]) -> int:
        dtype = self.graph.types[name].dtype
        form = op.form
        match form:
            case Map():
                operands = tuple(self.broadcast(operand, index) for operand in form.operands)
                return self.node(
                    self.with_choices_of_numbers(MapNode(operands, form.expr, form.compute, dtype)), op.name
                )
            case Reduce():
                return self.reduce(op, form, dtype, index)
            case Contract():
                return self.contract(op, form, dtype, index)
            case Take():
                return self.take(form, index)
            case Concat():
                return self.concat(form, dtype, index)
            case Pad():
                return self.pad(form, dtype, index)
            case Iota():
                if dtype == "int64" and isinstance(form.start, int) and isinstance(form.step, int):
                    return self.node(Position(index[0] * form.step + form.start), op.name)
                steps = Apply("add", (Apply("mul", (Arg(0), Lit(form.step))), Lit(form.start)))
                return self.node(MapNode((self.position(index[0]),), steps, dtype, dtype), op.name)
            case _:
                raise NotFusible(f"{op.name}: {op.call.target} is not generated")

    def with_choices_of_numbers(self, node: MapNode) -> MapNode:
        """torch.where makes a tensor of its number: here it is one again."""
        match node.expr:
            case Apply("where", (test, *branches)):
                made = [(i, self.nodes[operand]) for i, operand in enumerate(node.operands)]
                numbers = {i: n.expr for i, n in made if isinstance(n, MapNode) and isinstance(n.expr, Lit)}
                chosen = [numbers.get(b.index, b) if isinstance(b, Arg) else b for b in branches]
                left = read(expr := Apply("where", (test, *chosen)))
                operands = tuple(node.operands[i] for i in left)
                return replace(node, operands=operands, expr=with_indices(expr, {i: n for n, i in enumerate(left)}))
            case _:
                return node

    def broadcast(self, operand: str, index: tuple[Index, ...]) -> int:
        shape = self.graph.types[operand].shape
        aligned = index[len(index) - len(shape) :]
        return self.value(operand, tuple(Index() if n == 1 else i for n, i in zip(shape, aligned, strict=True)))

    def reduce(self, op: Op, form: Reduce, dtype: str, index: tuple[Index, ...]) -> int:
        shape = self.graph.types[form.operand].shape
        summed = dict(zip(form.dims, self.fresh(op.name, [shape[d] for d in form.dims]), strict=True))
        kept = iter(index)
        full: list[Index] = []
        for dim in range(len(shape)):
            if dim in summed:
                full.append(summed[dim])
                if form.keepdim:
                    next(kept)
            else:
                full.append(next(kept))
        operand = self.value(form.operand, tuple(full))
        axes = tuple(axis for part in summed.values() for axis in part.axes)
        if form.fn in ("argmax", "argmin") and len(axes) != 1:
            raise NotFusible(f"{op.name}: {form.fn} over an axis that a view splits")
        if not axes:
            neutral = Arg(0) if form.fn not in ("argmax", "argmin") else Lit(0)
            return self.node(MapNode((operand,), neutral, form.compute, dtype), op.name)
        return self.node(ReduceNode(form.fn, operand, axes, form.compute, dtype), op.name)

    def contract(self, op: Op, form: Contract, dtype: str, index: tuple[Index, ...]) -> int:
        at = dict(zip(form.out_dims, index, strict=True))
        letters = form.left_dims + form.right_dims
        shape = (*self.graph.types[form.left].shape, *self.graph.types[form.right].shape)
        sizes = dict(zip(letters, shape, strict=True))
        summed = [letter for letter in dict.fromkeys(letters) if letter not in at]
        at |= dict(zip(summed, self.fresh(op.name, [sizes[letter] for letter in summed]), strict=True))
        left = self.value(form.left, tuple(at[letter] for letter in form.left_dims))
        right = self.value(form.right, tuple(at[letter] for letter in form.right_dims))
        axes = tuple(axis for letter in summed for axis in at[letter].axes)
        if not axes:
            product = Apply("mul", (Arg(0), Arg(1)))
            return self.node(MapNode((left, right), product, "float32", dtype), op.name)
        return self.node(ContractNode(left, right, axes, dtype), op.name)

    def take(self, form: Take, index: tuple[Index, ...]) -> int:
        """Negative indices count from the end, as in torch's indexing."""
        kind = self.graph.types[form.indices]
        size = self.graph.types[form.operand].shape[form.dim]
        rank = len(kind.shape) if form.layout == "select" else 1
        at = index[form.dim : form.dim + rank] if form.layout == "select" else index
        chosen = self.value(form.indices, at)
        wrapped = Apply("where", (Apply("lt", (Arg(0), Lit(0))), Apply("add", (Arg(0), Lit(size))), Arg(0)))
        node = self.node(MapNode((chosen,), wrapped, kind.dtype, kind.dtype))
        return self.value(form.operand, (*index[: form.dim], Index.of(node), *index[form.dim + rank :]))

    def position(self, index: Index) -> int:
        return self.node(Position(index))

    def select(self, low: int, index: Index, high: int, inside: int, outside: int | Lit, dtype: str) -> int:
        """inside where low <= index < high, else outside; both may be read out of their bounds."""
        bounds = index.bounds(self.sizes)
        tests: list[Expr] = []
        if bounds is None or bounds[0] < low:
            tests.append(Apply("ge", (Arg(0, cast=False), Lit(low))))
        if bounds is None or bounds[1] >= high:
            tests.append(Apply("lt", (Arg(0, cast=False), Lit(high))))
        if not tests:
            return inside
        test = tests[0] if len(tests) == 1 else Apply("and", (tests[0], tests[1]))
        nodes = (self.position(index), inside) if isinstance(outside, Lit) else (self.position(index), inside, outside)
        other: Expr = outside if isinstance(outside, Lit) else Arg(2)
        condition = self.node(MapNode((nodes[0],), test, "int64", "bool"))
        return self.node(
            MapNode((condition, *nodes[1:]), Apply("where", (Arg(0, cast=False), Arg(1), other)), dtype, dtype)
        )

    def concat(self, form: Concat, dtype: str, index: tuple[Index, ...]) -> int:
        starts = [0]
        for operand in form.operands:
            starts.append(starts[-1] + self.graph.types[operand].shape[form.dim])
        result: int | None = None
        at = index[form.dim]
        for operand, start, end in reversed(list(zip(form.operands, starts, starts[1:], strict=False))):
            if start == end:
                continue
            piece = self.value(operand, (*index[: form.dim], at + -start, *index[form.dim + 1 :]))
            result = piece if result is None else self.select(0, at, end, piece, result, dtype)
        assert result is not None
        return result

    def pad(self, form: Pad, dtype: str, index: tuple[Index, ...]) -> int:
        shape = self.graph.types[form.operand].shape
        at = tuple(i + -before for i, before in zip(index, form.before, strict=True))
        node = self.value(form.operand, at)
        for position, size in zip(at, shape, strict=True):
            node = self.select(0, position, size, node, Lit(form.value), dtype)
        return node

    # --- the whole program ---

    def program(self, outputs: Sequence[str]) -> Program:
        order = {value: i for i, op in enumerate(self.graph.ops) for value in op.outputs}
        stores: dict[str, Store] = {}
        for name in sorted(outputs, key=lambda value: -order[value]):
            kind = self.graph.types[name]
            at = self.stored_at(name, kind.shape) or self.fresh(name, kind.shape)
            stores[name] = Store(name, at, self.value(name, at))
        types = {name: self.graph.types[name] for name in stores}
        types |= {node.value: self.graph.types[node.value] for node in self.nodes if isinstance(node, Load)}
        axes = tuple(Axis(name, size) for name, size in self.sizes.items())
        program = Program(axes, tuple(self.nodes), tuple(stores[v] for v in outputs), types, self.origins)
        return unify(program, tuple(self.instances))

    def stored_at(self, name: str, shape: tuple[int, ...]) -> tuple[Index, ...] | None:
        """An index at which the value is computed already, if that runs over all of it."""
        for value, index in self.instances:
            if value == name and all(covers(i, n, self.sizes) for i, n in zip(index, shape, strict=True)):
                axes = [axis for i in index for axis in i.axes]
                if len(axes) == len(set(axes)):
                    return index
        return None


def covers(index: Index, size: int, sizes: dict[str, int]) -> bool:
    """Does the index take every value of 0..size-1 exactly once?"""
    if index.nodes or index.const:
        return False
    step = 1
    for var, coefficient in sorted(index.terms, key=lambda term: term[1]):
        if coefficient != step:
            return False
        step *= sizes[str(var)]
    return step == size


def reshape_index(
    index: tuple[Index, ...], shape: tuple[int, ...], source: tuple[int, ...], sizes: dict[str, int]
) -> tuple[Index, ...]:
    """Index into `source` of the element at `index` of the row-major reshape to `shape`."""
    result: list[Index] = []
    dims, at = list(zip(shape, index, strict=True)), 0
    pending: list[int] = []
    inner, outer = 1, 1
    segment: list[tuple[int, Index]] = []
    for size in source:
        pending.append(size)
        outer *= size
        while inner < outer and at < len(dims):
            segment.append(dims[at])
            inner *= dims[at][0]
            at += 1
        if inner == outer:
            result += _segment(segment, pending, sizes)
            pending, segment, inner, outer = [], [], 1, 1
    if pending:
        result += _segment(segment, pending, sizes)
    return tuple(result)


def _segment(segment: list[tuple[int, Index]], source: list[int], sizes: dict[str, int]) -> list[Index]:
    flat = Index()
    for size, index in segment:
        flat = flat * size + index
    result: list[Index] = []
    for size in reversed(source[1:]):
        if size == 1:
            result.append(Index())
            continue
        flat, remainder = flat.divmod(size, sizes)
        result.append(remainder)
    return [flat, *reversed(result)] if source else []


# --- unification of axes ---


def unify(program: Program, accesses: Iterable[tuple[str, tuple[Index, ...]]]) -> Program:
    """Make axes one where the same value is read along both and no value would lose its meaning.

    Raises SplitNeeded where one of the two runs along a dimension that the other has in parts.
    """
    sizes = program.sizes
    by_value: dict[str, list[tuple[Index, ...]]] = {}
    for value, index in accesses:
        if not any(part.nodes for part in index):
            by_value.setdefault(value, []).append(index)
    renames: dict[str, str] = {}
    rank = {axis.name: i for i, axis in enumerate(program.axes)}
    frees = [set(free) for free in program.free]
    frees += [set(program.free[n.left] | program.free[n.right]) for n in program.nodes if isinstance(n, ContractNode)]
    behind = _behind_contracts(program)

    def name(axis: str) -> str:
        while axis in renames:
            axis = renames[axis]
        return axis

    def apart(kept: str, summed: str) -> bool:
        """Does a contract run along one of what a reduction along the other makes? Its loop would stand in itself."""
        return any(kept in frees[node] and any(name(a) == summed for a in axes) for node, axes in behind.items())

    for indices in by_value.values():
        for position, first in enumerate(indices):
            for second in indices[position + 1 :]:
                pairs = _pairs(first, second, sizes)
                merged = {(name(a), name(b)) for a, b in pairs or ()}
                merged = {(a, b) for a, b in merged if a != b}
                touched = {axis for pair in merged for axis in pair}
                if not merged or len(touched) != 2 * len(merged):
                    continue
                if any(a in free and b in free for a, b in merged for free in frees):
                    continue
                if any(apart(a, b) or apart(b, a) for a, b in merged):
                    continue
                for a, b in merged:
                    keep, drop = (a, b) if rank[a] < rank[b] else (b, a)
                    renames[drop] = keep
                    for free in frees:
                        if drop in free:
                            free.remove(drop)
                            free.add(keep)
    return rename(program, {axis: name(axis) for axis in sizes}) if renames else program


def _behind_contracts(program: Program) -> dict[int, frozenset[str]]:
    """Contract node -> axes that something it is computed from reduces."""
    found: dict[int, frozenset[str]] = {}
    for node, contract in enumerate(program.nodes):
        if isinstance(contract, ContractNode):
            below = (program.nodes[n] for n in closure(program, *operands(contract)))
            found[node] = frozenset(a for n in below if isinstance(n, ReduceNode | ContractNode) for a in n.axes)
    return found


def _pairs(first: tuple[Index, ...], second: tuple[Index, ...], sizes: dict[str, int]) -> set[tuple[str, str]] | None:
    pairs: set[tuple[str, str]] = set()
    for a, b in zip(first, second, strict=True):
        if a.const != b.const:
            return None
        if len(a.terms) != len(b.terms):
            _split_for(a, b, sizes)
            return None
        for (var_a, step_a), (var_b, step_b) in zip(_by_step(a), _by_step(b), strict=True):
            if step_a != step_b or sizes[str(var_a)] != sizes[str(var_b)]:
                return None
            pairs.add((str(var_a), str(var_b)))
    return pairs


def _by_step(index: Index) -> Sequence[tuple[str | int, int]]:
    return sorted(index.terms, key=lambda term: term[1]) if len(index.terms) > 1 else index.terms


def _split_for(a: Index, b: Index, sizes: dict[str, int]) -> None:
    """One axis against several that cover the same dimension: cut the one as the other is cut."""
    single, several = (a, b) if len(a.terms) == 1 else (b, a)
    axis = single.axis
    if axis is None or not several.terms or not covers(several, sizes[axis], sizes):
        return
    outermost = max(coefficient for _, coefficient in several.terms)
    raise SplitNeeded(axis, outermost)


def rename(program: Program, names: dict[str, str]) -> Program:
    """The program with axes renamed (two may become one), equal nodes merged and dead ones dropped."""
    mapping = {old: Index.of(new) for old, new in names.items()}
    axes = {names[axis.name]: axis.size for axis in program.axes}
    return rebuild(program, [Axis(axis, size) for axis, size in axes.items()], mapping, names)


def rebuild(program: Program, axes: Sequence[Axis], mapping: dict[str, Index], names: dict[str, str]) -> Program:
    nodes: list[Node] = []
    ids: dict[Node, int] = {}
    moved: dict[int, int] = {}
    origins: dict[int, str] = {}
    wanted = closure(program, *(store.node for store in program.stores))
    for position, node in enumerate(program.nodes):
        if position not in wanted:
            continue
        new = moved_node(node, moved, mapping, names)
        if new not in ids:
            ids[new] = len(nodes)
            nodes.append(new)
            origins[ids[new]] = program.origins.get(position, "")
        moved[position] = ids[new]
    stores = tuple(moved_store(store, moved, mapping) for store in program.stores)
    return Program(tuple(axes), tuple(nodes), stores, program.types, origins)


def rewritten(
    program: Program, nodes: Sequence[Node], moved: Mapping[int, int], origins: Mapping[int, str]
) -> Program:  # fmt: skip
    """The program with other nodes, equal ones merged and dead ones dropped. moved: old ones -> new ones. origins: of
    the new ones."""
    stores = tuple(moved_store(store, moved, {}) for store in program.stores)
    found = Program(program.axes, tuple(nodes), stores, program.types, {n: text for n, text in origins.items() if text})
    return rename(found, {axis.name: axis.name for axis in program.axes})


def moved_node(
    node: Node, moved: Mapping[int, int], mapping: Mapping[str, Index], names: Mapping[str, str]
) -> Node:  # fmt: skip
    """The node with the nodes it reads renumbered, and its axes as `mapping` (in indices) and `names` say."""
    match node:
        case Load():
            return replace(node, index=tuple(_moved_index(i, moved, mapping) for i in node.index))
        case Position():
            return replace(node, index=_moved_index(node.index, moved, mapping))
        case MapNode():
            return replace(node, operands=tuple(moved[o] for o in node.operands))
        case ReduceNode():
            return replace(node, operand=moved[node.operand], axes=_names(node.axes, names),
                           running=_moved(node.running, moved))  # fmt: skip
        case ContractNode():
            return replace(node, left=moved[node.left], right=moved[node.right], axes=_names(node.axes, names),
                           running=_moved(node.running, moved), start=_moved(node.start, moved))  # fmt: skip


def moved_store(store: Store, moved: Mapping[int, int], mapping: Mapping[str, Index]) -> Store:
    return Store(store.value, tuple(_moved_index(i, moved, mapping) for i in store.index), moved[store.node])


def _moved_index(index: Index, moved: Mapping[int, int], mapping: Mapping[str, Index]) -> Index:
    nodes = {n: Index.of(moved[n]) for n in index.nodes}
    return index.substitute({**mapping, **nodes}) if nodes or mapping else index


def _names(axes: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names.get(axis, axis) for axis in axes))


def _moved(node: int | None, moved: Mapping[int, int]) -> int | None:
    return None if node is None else moved[node]


NAMES = ("m", "n", "p", "q", "u", "v", "w", "z")
REDUCED_NAMES = ("k", "l", "r", "s", "t")


def _named(program: Program) -> Program:
    """Readable, deterministic axis names: stored axes m, n, ...; axes only summed k, l, ..."""
    stored = list(dict.fromkeys(axis for store in program.stores for index in store.index for axis in index.axes))
    summed = [axis.name for axis in program.axes if axis.name not in stored]
    names = dict(zip(stored, _letters(NAMES), strict=False)) | dict(zip(summed, _letters(REDUCED_NAMES), strict=False))
    renamed = rename(program, names)
    order = list(names.values())
    return replace(renamed, axes=tuple(sorted(renamed.axes, key=lambda axis: order.index(axis.name))))


def _letters(letters: Sequence[str]) -> Iterable[str]:
    yield from letters
    for count in range(2, 99):
        for letter in letters:
            yield f"{letter}{count}"
