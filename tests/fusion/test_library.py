"""What a library call computes is compared with the group's ops one by one, by the runner of production."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from autofuse.capture import aten
from autofuse.fusion.group import Group
from autofuse.fusion.library import LibraryCall, fused_calls, implementations, library_call, with_ops
from autofuse.fusion.subgraph import extract
from autofuse.ir.graph import AtenCall, Graph, Ref
from tests.fusion.graphs import GraphBuilder, rms_norm


def biased(shape=(8, 32), *, dtype="float32", kwargs=(), swap=False, last=None) -> tuple[Graph, Group]:
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16, dtype=dtype), b.input("w", 16, 32, dtype=dtype))
    bias = b.input("b", *shape, dtype=dtype)
    args = (Ref(bias), Ref(mm)) if swap else (Ref(mm), Ref(bias))
    out = b.map("y", mm, bias, call=AtenCall("aten.add.Tensor", args, kwargs))
    if last is not None:
        out = b.map("act", out, call=last)
    graph = b.graph(out)
    return graph, Group(tuple(op.name for op in graph.ops), (out,))


def run(graph: Graph, ops) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    env = {
        name: torch.randn(graph.types[name].shape, dtype=getattr(torch, graph.types[name].dtype))
        for name in graph.inputs
    }
    return aten.run(ops, env)


def assert_same(graph: Graph, group: Group, call: LibraryCall) -> None:
    reference, got = run(graph, graph.ops), run(graph, call.ops)
    for value in group.outputs:
        torch.testing.assert_close(got[value], reference[value])


def test_own_calls_run_with_the_views_between_them():
    b = GraphBuilder()
    v = b.view("v", b.map("a", b.input("x", 4, 4), fn="exp"), 16)
    graph = b.graph(b.map("y", b.view("u", v, 2, 8), fn="neg"))
    group = Group(("a", "y"), ("y",))
    (call,) = implementations(graph, group)
    assert call.name == "aten"
    assert [op.name for op in call.ops] == ["a", "v", "u", "y"]
    assert_same(graph, group, call)


def test_a_single_op_goes_by_its_own_name():
    graph = rms_norm()
    (call,) = implementations(graph, Group(("total",), ("total",)))
    assert (call.name, [op.name for op in call.ops]) == ("aten.sum.dim_IntList", ["total"])


@pytest.mark.parametrize("shape", [(32,), (8, 32)])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("kwargs", [(), (("alpha", 1),), (("alpha", 3),), (("alpha", 0.5),)])
def test_matmul_and_add_are_one_addmm(shape, swap, kwargs):
    graph, group = biased(shape, swap=swap, kwargs=kwargs)
    call = library_call(graph, group, "aten.addmm")
    (op,) = call.ops
    assert (op.call.target, op.outputs) == ("aten.addmm.default", ("y",))
    assert op.name not in graph.by_name
    assert_same(graph, group, call)


def test_batched_matmul_and_add_are_one_baddbmm():
    b = GraphBuilder()
    mm = b.bmm("mm", b.input("x", 3, 8, 16), b.input("w", 3, 16, 32))
    graph = b.graph(b.map("y", b.input("r", 3, 8, 32), mm))
    group = Group(("mm", "y"), ("y",))
    (call,) = fused_calls(graph, group)
    assert [op.call.target for op in call.ops] == ["aten.baddbmm.default"]
    assert_same(graph, group, call)


RELU = AtenCall("aten.relu.default", (Ref("y"),))


def test_relu_joins_the_matmuls_epilogue():
    graph, group = biased((32,), last=RELU)
    call = library_call(graph, group, "aten.addmm_relu")
    assert [op.call.target for op in call.ops] == ["aten._addmm_activation.default"]
    assert_same(graph, group, call)
    partly = library_call(graph, group, "aten.addmm")
    assert [op.outputs for op in partly.ops] == [("y",), ("act",)]
    assert_same(graph, group, partly)


def test_gelu_or_a_full_residual_has_no_epilogue():
    gelu = AtenCall("aten.gelu.default", (Ref("y"),), (("approximate", "tanh"),))
    assert [c.name for c in fused_calls(*biased((32,), last=gelu))] == ["aten.addmm"]
    assert [c.name for c in fused_calls(*biased((8, 32), last=RELU))] == ["aten.addmm"]


def test_a_graph_with_a_calls_ops_still_ends_with_its_own_values():
    graph, group = biased((32,), last=RELU)
    call = library_call(graph, group, "aten.addmm")
    wrong = replace(call.ops[0], call=replace(call.ops[0].call, kwargs=(("beta", 7),)))
    whole = with_ops(graph, (wrong, *call.ops[1:]))
    assert [op.name for op in whole.ops] == ["mm", "y__addmm", "y", "act"]
    assert whole.producer["y"] == graph.producer["y"]
    torch.testing.assert_close(run(whole, whole.ops)["act"], run(graph, graph.ops)["act"])
    assert with_ops(graph, graph.ops) is graph


def test_declined_where_the_matmul_is_needed_itself():
    graph, _ = biased((32,))
    assert fused_calls(graph, Group(("mm", "y"), ("mm", "y"))) == ()
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16), b.input("w", 16, 32))
    y = b.map("y", mm, b.input("b", 32))
    graph = b.graph(b.map("z", y, mm, fn="mul"))
    assert fused_calls(graph, Group(("mm", "y", "z"), ("z",))) == ()


def test_declined_where_types_or_shapes_differ():
    assert fused_calls(*biased((8, 1))) == ()
    assert fused_calls(*biased((1, 32))) == ()
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16, dtype="bfloat16"), b.input("w", 16, 32, dtype="bfloat16"))
    y = b.op("y", None, (8, 32), AtenCall("aten.add.Tensor", (Ref(mm), Ref(b.input("b", 32)))), "float32")
    assert fused_calls(b.graph(y), Group(("mm", "y"), ("y",))) == ()
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16, dtype="bfloat16"), b.input("w", 16, 32, dtype="bfloat16"))
    graph = b.graph(b.map("y", mm, b.input("b", 32, dtype="float32")))
    assert fused_calls(graph, Group(("mm", "y"), ("y",))) == ()


def test_declined_for_a_matmul_added_to_itself_or_to_a_number():
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16), b.input("w", 16, 8))
    graph = b.graph(b.map("y", mm, mm))
    assert fused_calls(graph, Group(("mm", "y"), ("y",))) == ()
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16), b.input("w", 16, 8))
    graph = b.graph(b.map("y", mm, call=AtenCall("aten.add.Tensor", (Ref(mm), 2.0))))
    assert fused_calls(graph, Group(("mm", "y"), ("y",))) == ()


def test_a_view_of_the_bias_is_read_through():
    b = GraphBuilder()
    mm = b.mm("mm", b.input("x", 8, 16), b.input("w", 16, 32))
    graph = b.graph(b.map("y", mm, b.view("flat", b.input("b", 4, 8), 32)))
    group = Group(("mm", "y"), ("y",))
    call = library_call(graph, group, "aten.addmm")
    assert [op.name for op in call.ops] == ["flat", "y__addmm"]
    assert_same(graph, group, call)
    assert {op.name for op in extract(graph, group.ops, group.outputs).ops} == {"mm", "flat", "y"}
