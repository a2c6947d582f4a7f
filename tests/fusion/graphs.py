"""Graphs for the tests of this folder: a small builder, named examples, and random DAGs."""

from __future__ import annotations

import random

from autofuse.ir.graph import (
    Apply,
    Arg,
    AtenCall,
    Contract,
    Form,
    Graph,
    Iota,
    Map,
    Op,
    Reduce,
    Ref,
    Reshape,
    TensorType,
    contiguous_strides,
    operands,
)


class GraphBuilder:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.types: dict[str, TensorType] = {}
        self.inputs: list[str] = []

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        self.inputs.append(name)
        self.types[name] = TensorType(shape, dtype, contiguous_strides(shape))
        return name

    def op(self, name: str, form: Form | None, shape: tuple[int, ...], call: AtenCall, dtype: str = "float32") -> str:
        self.types[name] = TensorType(shape, dtype, contiguous_strides(shape))
        self.ops.append(Op(name, call, form, (name,)))
        return name

    def map(self, name: str, *values: str, fn: str = "add", call: AtenCall | None = None) -> str:
        shape = max((self.types[v].shape for v in values), key=lambda s: (len(s), s), default=(4, 4))
        target = f"aten.{fn}.Tensor" if len(values) == 2 else f"aten.{fn}.default"
        form = Map(values, Apply(fn, tuple(Arg(i) for i in range(len(values)))), "float32")
        call = call or AtenCall(target, tuple(Ref(v) for v in values))
        return self.op(name, form, shape, call, self.types[values[0]].dtype)

    def sum(self, name: str, value: str) -> str:
        shape = (*self.types[value].shape[:-1], 1)
        dim = len(shape) - 1
        return self.op(name, Reduce("sum", value, (dim,), True, "float32"), shape,
                       AtenCall("aten.sum.dim_IntList", (Ref(value), (dim,), True)))  # fmt: skip

    def mm(self, name: str, left: str, right: str) -> str:
        shape = (self.types[left].shape[0], self.types[right].shape[1])
        return self.op(name, Contract(left, right, "mk", "kn", "mn"), shape,
                       AtenCall("aten.mm.default", (Ref(left), Ref(right))), self.types[left].dtype)  # fmt: skip

    def bmm(self, name: str, left: str, right: str) -> str:
        shape = (*self.types[left].shape[:2], self.types[right].shape[2])
        return self.op(name, Contract(left, right, "bmk", "bkn", "bmn"), shape,
                       AtenCall("aten.bmm.default", (Ref(left), Ref(right))), self.types[left].dtype)  # fmt: skip

    def view(self, name: str, value: str, *shape: int) -> str:
        return self.op(name, Reshape(value), shape, AtenCall("aten.view.default", (Ref(value), shape)))

    def iota(self, name: str, size: int) -> str:
        return self.op(name, Iota(0, 1), (size,), AtenCall("aten.arange.default", (size,)))

    def opaque(self, name: str, *values: str) -> str:
        shape = self.types[values[0]].shape
        return self.op(name, None, shape, AtenCall("aten.sort.default", tuple(Ref(v) for v in values)))

    def graph(self, *outputs: str | None) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.ops), outputs, self.types)


def rms_norm() -> Graph:
    """h = x + r; y = h * rsqrt(sum(h * h)) * w; outputs h and y."""
    b = GraphBuilder()
    h = b.map("h", b.input("x", 8, 16), b.input("r", 8, 16))
    scale = b.map("scale", b.sum("total", b.map("square", h, h, fn="mul")), fn="rsqrt")
    y = b.map("y", b.map("scaled", h, scale, fn="mul"), b.input("w", 16), fn="mul")
    return b.graph(h, y)


def linear_gelu() -> Graph:
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16), b.input("w", 16, 32))
    return b.graph(b.map("act", b.map("biased", mm, b.input("b", 32)), fn="gelu"))


def crossed() -> Graph:
    """a -> b and c -> d, and both groups {a, d} and {b, c} are convex: together they wait for each other."""
    b = GraphBuilder()
    x = b.input("x", 4, 4)
    a, c = b.map("a", x, fn="exp"), b.map("c", x, fn="log")
    return b.graph(b.map("b", a, c), b.map("d", c, a, fn="mul"))


def layers(count: int) -> Graph:
    """Norm, gated MLP, residual; 13 ops a layer."""
    b = GraphBuilder()
    x = b.input("x", 512, 256)
    for i in range(count):
        p = f"l{i}_"
        scale = b.map(p + "scale", b.sum(p + "total", b.map(p + "square", x, x, fn="mul")), fn="rsqrt")
        normed = b.map(p + "y", b.map(p + "scaled", x, scale, fn="mul"), b.input(p + "w", 256), fn="mul")
        gate = b.mm(p + "gate", normed, b.input(p + "wg", 256, 512))
        up = b.mm(p + "up", normed, b.input(p + "wu", 256, 512))
        silu = b.map(p + "silu", gate, b.map(p + "sigmoid", gate, fn="sigmoid"), fn="mul")
        down = b.mm(p + "down", b.map(p + "mix", silu, up, fn="mul"), b.input(p + "wd", 512, 256))
        x = b.map(p + "res", b.map(p + "bias", down, b.input(p + "b", 256)), x)
    return b.graph(x)


def random_graph(rng: random.Random, count: int) -> Graph:
    """Maps, row sums, matmuls, views, opaque ops and position vectors over 4 x 4 values."""
    b = GraphBuilder()
    square = [b.input("x", 4, 4), b.input("z", 4, 4)]
    narrow: list[str] = []
    for i in range(count):
        name = f"v{i}"
        first, second = rng.choice(square[-4:]), rng.choice(square + narrow)
        match rng.choice(["map", "map", "map", "unary", "unary", "sum", "mm", "view", "opaque", "iota"]):
            case "map":
                square.append(b.map(name, first, second))
            case "unary":
                square.append(b.map(name, first, fn="exp"))
            case "sum":
                narrow.append(b.sum(name, first))
            case "mm":
                square.append(b.mm(name, first, rng.choice(square)))
            case "view":
                square.append(b.view(name, first, 4, 4))
            case "opaque":
                square.append(b.opaque(name, first))
            case _:
                narrow.append(b.map(name, b.iota(f"{name}i", 4), fn="neg"))
    outputs: list[str | None] = [rng.choice(square + narrow) for _ in range(rng.randint(1, 3))]
    return _without_dead(b, [*outputs, square[-1]])


def _without_dead(b: GraphBuilder, outputs: list[str | None]) -> Graph:
    graph = b.graph(*outputs)
    wanted: set[str] = set()
    pending = [v for v in outputs if v is not None]
    while pending:
        op = graph.producer.get(pending.pop())
        if op is not None and op.name not in wanted:
            wanted.add(op.name)
            pending += [*op.inputs, *(operands(op.form) if op.form is not None else ())]
    ops = tuple(op for op in graph.ops if op.name in wanted)
    return Graph(graph.inputs, ops, graph.outputs, graph.types)
