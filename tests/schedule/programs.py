"""Programs written by hand, as the builder would make them: one of each shape that families must tell apart."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.ir.graph import Apply, Arg, Expr, TensorType, contiguous_strides
from autofuse.ir.index import Index
from autofuse.ir.program import Axis, ContractNode, Load, MapNode, Node, Program, ReduceNode, Store


class Builder:
    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.nodes: list[Node] = []
        self.stores: list[Store] = []
        self.types: dict[str, TensorType] = {}

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def kind(self, axes: str, dtype: str) -> TensorType:
        shape = tuple(self.sizes[a] for a in axes)
        return TensorType(shape, dtype, contiguous_strides(shape))

    def load(self, value: str, axes: str, dtype: str = "bfloat16") -> int:
        self.types.setdefault(value, self.kind(axes, dtype))
        return self.add(Load(value, tuple(Index.of(a) for a in axes), dtype))

    def map(self, fn: str, *operands: int, dtype: str = "bfloat16") -> int:
        expr: Expr = Apply(fn, tuple(Arg(i) for i in range(len(operands))))
        return self.add(MapNode(operands, expr, "float32", dtype))

    def reduce(self, fn: str, operand: int, axes: str, dtype: str = "float32") -> int:
        return self.add(ReduceNode(fn, operand, tuple(axes), "float32", dtype))

    def contract(self, left: int, right: int, axes: str, dtype: str = "bfloat16") -> int:
        return self.add(ContractNode(left, right, tuple(axes), dtype))

    def store(self, value: str, axes: str, node: int, dtype: str = "bfloat16") -> None:
        self.types[value] = self.kind(axes, dtype)
        self.stores.append(Store(value, tuple(Index.of(a) for a in axes), node))

    def program(self, order: Sequence[str] = ()) -> Program:
        axes = tuple(Axis(a, self.sizes[a]) for a in (order or self.sizes))
        return Program(axes, tuple(self.nodes), tuple(self.stores), self.types)


def softmax(m: int = 8192, n: int = 4096) -> Program:
    b = Builder(m=m, n=n)
    x = b.load("x", "mn")
    e = b.map("exp", b.map("sub", x, b.reduce("max", x, "n")))
    b.store("y", "mn", b.map("div", e, b.reduce("sum", e, "n")))
    return b.program()


def rms_norm(m: int = 8192, n: int = 4096) -> Program:
    """Residual add and RMS norm: two outputs."""
    b = Builder(m=m, n=n)
    h = b.map("add", b.load("x", "mn"), b.load("r", "mn"))
    s = b.map("rsqrt", b.reduce("sum", b.map("mul", h, h), "n"))
    b.store("h", "mn", h)
    b.store("y", "mn", b.map("mul", b.map("mul", h, s), b.load("w", "n")))
    return b.program()


def cross_entropy(m: int = 8192, n: int = 128256) -> Program:
    b = Builder(m=m, n=n)
    x = b.load("x", "mn")
    b.store("y", "m", b.reduce("sum", b.map("exp", b.map("sub", x, b.reduce("max", x, "n"))), "n"), "float32")
    return b.program(("m", "n"))


def column_sum(k: int = 32768, m: int = 4096, dtype: str = "float32") -> Program:
    b = Builder(m=m, k=k)
    b.store("y", "m", b.reduce("sum", b.load("x", "km"), "k", dtype), dtype)
    return b.program()


def total(k: int = 1 << 24) -> Program:
    b = Builder(k=k)
    b.store("y", "", b.reduce("sum", b.load("x", "k", "float32"), "k"), "float32")
    return b.program()


def layer_norm_backward(m: int = 8192, n: int = 4096) -> Program:
    """Row reductions for dx, column sums for dw and db."""
    b = Builder(m=m, n=n)
    g, x, w = b.load("g", "mn"), b.load("x", "mn"), b.load("w", "n")
    gw = b.map("mul", g, w)
    row = b.reduce("sum", b.map("mul", gw, x), "n")
    b.store("dx", "mn", b.map("sub", gw, b.map("mul", x, row)))
    b.store("dw", "n", b.reduce("sum", b.map("mul", g, x), "m"), "float32")
    b.store("db", "n", b.reduce("sum", g, "m"), "float32")
    return b.program()


def group_norm() -> Program:
    b = Builder(b=8, g=32, c=10, s=4096)
    x = b.load("x", "bgcs")
    s = b.reduce("sum", x, "cs")
    b.store("y", "bgcs", b.map("mul", b.map("sub", x, s), b.load("w", "gc")))
    return b.program()


def broadcast(m: int = 8192, n: int = 16384) -> Program:
    b = Builder(m=m, n=n)
    b.store("y", "mn", b.map("tanh", b.map("add", b.load("x", "mn"), b.load("v", "n"))))
    return b.program()


def transpose(m: int = 4096, n: int = 2048) -> Program:
    b = Builder(m=m, n=n)
    b.store("y", "mn", b.map("exp", b.load("x", "nm")))
    return b.program()


def sibling_stores(m: int = 512, n: int = 1024) -> Program:
    """The second output lacks an axis of the first."""
    b = Builder(m=m, n=n)
    v = b.map("exp", b.load("v", "m"))
    b.store("s", "m", v)
    b.store("y", "mn", b.map("mul", b.load("x", "mn"), v))
    return b.program()


def flat(n: int = 1 << 24, dtype: str = "bfloat16") -> Program:
    b = Builder(n=n)
    b.store("y", "n", b.map("exp", b.load("x", "n", dtype), dtype=dtype), dtype)
    return b.program()


def scalar() -> Program:
    b = Builder()
    b.store("y", "", b.map("exp", b.load("x", "")))
    return b.program()


def matmul(m: int = 8192, n: int = 16384, k: int = 4096, out: str = "bfloat16", bias: bool = True) -> Program:
    b = Builder(m=m, n=n, k=k)
    y = b.contract(b.load("x", "mk"), b.load("w", "kn"), "k", out)
    if bias:
        y = b.map("gelu", b.map("add", y, b.load("bias", "n")))
    b.store("y", "mn", y, out)
    return b.program()


def matvec(n: int = 14336, k: int = 4096) -> Program:
    b = Builder(n=n, k=k)
    b.store("y", "n", b.contract(b.load("x", "k"), b.load("w", "nk"), "k"))
    return b.program()


def gated(m: int = 8192, n: int = 14336, k: int = 4096) -> Program:
    b = Builder(m=m, n=n, k=k)
    x = b.load("x", "mk")
    gate = b.map("sigmoid", b.contract(x, b.load("wg", "kn"), "k"))
    b.store("y", "mn", b.map("mul", gate, b.contract(x, b.load("wu", "kn"), "k")))
    return b.program()


def chain(m: int = 65536, n: int = 128, k: int = 128, p: int = 128) -> Program:
    """relu(x @ w1) @ w2: k then n are summed, p is stored."""
    b = Builder(m=m, p=p, n=n, k=k)
    h = b.map("relu", b.contract(b.load("x", "mk"), b.load("w1", "kn"), "k"))
    b.store("y", "mp", b.contract(h, b.load("w2", "np"), "n"))
    return b.program()


def attention(b_: int = 128, m: int = 2048, n: int = 2048, d: int = 128) -> Program:
    b = Builder(b=b_, m=m, e=d, n=n, d=d)
    s = b.contract(b.load("q", "bmd"), b.load("k", "bnd"), "d", "float32")
    e = b.map("exp", b.map("sub", s, b.reduce("max", s, "n")))
    o = b.contract(e, b.load("v", "bne"), "n")
    b.store("o", "bme", b.map("div", o, b.reduce("sum", e, "n")))
    return b.program()


def linear_cross_entropy(m: int = 4096, n: int = 32000, k: int = 4096) -> Program:
    b = Builder(m=m, n=n, k=k)
    y = b.contract(b.load("x", "mk"), b.load("w", "nk"), "k")
    e = b.map("exp", b.map("sub", y, b.reduce("max", y, "n")))
    b.store("l", "m", b.reduce("sum", e, "n"), "float32")
    return b.program()


def head_norm(m: int = 8192, h: int = 32, c: int = 128, k: int = 4096) -> Program:
    """A linear whose columns are heads x channels, normed over channels."""
    b = Builder(m=m, h=h, c=c, k=k)
    y = b.contract(b.load("x", "mk"), b.load("w", "hck"), "k")
    b.store("y", "mhc", b.map("mul", y, b.reduce("sum", b.map("mul", y, y), "c")))
    return b.program()


def low_rank(m: int = 8192, n: int = 4096, k: int = 4096, r: int = 16) -> Program:
    b = Builder(m=m, n=n, k=k, r=r)
    x = b.load("x", "mk")
    y = b.contract(x, b.load("w", "kn"), "k")
    t = b.contract(x, b.load("a", "kr"), "k")
    b.store("y", "mn", b.map("add", y, b.contract(t, b.load("b", "rn"), "r")))
    return b.program()


ALL = {
    f.__name__: f
    for f in (
        softmax, rms_norm, cross_entropy, column_sum, total, layer_norm_backward, group_norm, broadcast, transpose,
        sibling_stores, flat, scalar, matmul, matvec, gated, chain, attention, linear_cross_entropy, head_norm,
        low_rank,
    )
}  # fmt: skip
