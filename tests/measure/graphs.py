"""Small graphs for the tests of this folder, with the ops' exact ATen calls."""

from __future__ import annotations

from autofuse.ir.graph import (
    Apply,
    Arg,
    AtenCall,
    Graph,
    Map,
    Op,
    Reduce,
    Ref,
    Reshape,
    TensorType,
    contiguous_strides,
)


def tensor(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype, contiguous_strides(shape))


def add_graph(*shape: int, dtype: str = "float32") -> Graph:
    """out = x + y."""
    call = AtenCall("aten.add.Tensor", (Ref("x"), Ref("y")))
    form = Map(("x", "y"), Apply("add", (Arg(0), Arg(1))), "float32")
    kind = tensor(*shape, dtype=dtype)
    return Graph(("x", "y"), (Op("out", call, form, ("out",)),), ("out",), dict.fromkeys(("x", "y", "out"), kind))


def sum_rows_graph(m: int, n: int) -> Graph:
    """out = x.sum(1)."""
    call = AtenCall("aten.sum.dim_IntList", (Ref("x"), (1,)))
    op = Op("out", call, Reduce("sum", "x", (1,), False, "float32"), ("out",))
    return Graph(("x",), (op,), ("out",), {"x": tensor(m, n), "out": tensor(m)})


def chain_graph(m: int, n: int) -> Graph:
    """total = x + y; flat = total.view(m * n); out = flat * 2; outputs: out, and the view."""
    add = Op(
        "total", AtenCall("aten.add.Tensor", (Ref("x"), Ref("y"))),
        Map(("x", "y"), Apply("add", (Arg(0), Arg(1))), "float32"), ("total",),
    )  # fmt: skip
    view = Op("flat", AtenCall("aten.view.default", (Ref("total"), (m * n,))), Reshape("total"), ("flat",))
    double = Op(
        "out", AtenCall("aten.add.Tensor", (Ref("flat"), Ref("flat"))),
        Map(("flat", "flat"), Apply("add", (Arg(0), Arg(1))), "float32"), ("out",),
    )  # fmt: skip
    types = {"x": tensor(m, n), "y": tensor(m, n), "total": tensor(m, n), "flat": tensor(m * n), "out": tensor(m * n)}
    return Graph(("x", "y"), (add, view, double), ("out", "flat"), types)
