"""Calls that capture took apart, put back: they give eager's own numbers to the bit, and the graph's up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from autofuse.capture import aten
from autofuse.capture.trace import aot_backend, capture
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import Group
from autofuse.fusion.library import eager_call, fused_calls, implementations, library_call, whole_group, with_ops
from autofuse.ir.graph import Graph
from tests.fusion.test_enumerate import builder_of

single, half = torch.float32, torch.float16
Case = tuple[Callable[..., Any], Callable[[torch.dtype], tuple[Any, ...]], str]


def made(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], tuple[torch.Tensor, ...]]:
    return lambda dtype: tuple(torch.randn(shape).to(dtype) for shape in shapes)


def statistics(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (torch.randn(3, 5, 7, 3).to(dtype), torch.randn(5).to(dtype), torch.rand(5).to(dtype) + 0.5,
            torch.randn(5).to(dtype), torch.randn(5).to(dtype))  # fmt: skip


CASES: dict[str, Case] = {
    "softmax": (lambda x: F.softmax(x, -1), made((5, 33)), "aten._softmax"),
    "softmax along columns": (lambda x: F.softmax(x, 0), made((5, 33)), "aten._softmax"),
    "softmax of a transpose": (lambda x: F.softmax(x.t(), -1), made((33, 5)), "aten._softmax"),
    "log softmax": (lambda x: F.log_softmax(x, 1), made((3, 17, 5)), "aten._log_softmax"),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), made((7, 33), (33,), (33,)), "aten.native_layer_norm"),
    "layer norm of a transpose": (lambda x: F.layer_norm(x.t(), (5,)), made((5, 33)), "aten.native_layer_norm"),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), made((2, 9, 5, 7), (9,), (9,)), "aten.native_group_norm"),
    "group norm, a view at its end": (lambda x: F.group_norm(x, 3), made((2, 9, 5, 7)), "aten.native_group_norm"),
    "batch norm": (F.batch_norm, statistics, "aten._native_batch_norm_legit_no_training"),
    "cross entropy": (
        F.cross_entropy, lambda dtype: (torch.randn(9, 21).to(dtype), torch.randint(0, 21, (9,))), "eager",
    ),
    "nll loss": (
        F.nll_loss, lambda dtype: (torch.randn(9, 21).to(dtype), torch.randint(0, 21, (9,))), "aten.nll_loss_forward",
    ),
    "rms norm": (lambda x, w: F.rms_norm(x, (33,), w), made((7, 33), (33,)), "aten.mean"),  # taken apart by eager, too
    "deviation": (lambda x: x.std(-1), made((7, 33)), "aten.std"),
    "logsumexp": (lambda x: x.logsumexp(-1), made((7, 33)), "aten.logsumexp"),
    "linear": (F.linear, made((7, 13), (5, 13), (5,)), "aten.addmm"),
    "a block": (
        lambda x, w: F.layer_norm(F.softmax(F.layer_norm(x, (33,)) * 3, -1) + x, (33,), w), made((7, 33), (33,)),
        "eager",
    ),
}  # fmt: skip


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    (captured,) = capture(fn, args)
    return captured.graph


def run_values(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The arguments in the order of the graph's inputs, which is that of their first use."""
    found: list[torch.Tensor] = []

    def backend(gm: Any, _: Any) -> Any:
        return lambda *values: (found.extend(values), gm(*values))[1]

    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        torch.compile(fn, backend=aot_backend(backend), dynamic=False)(*args)
    return found


@pytest.mark.parametrize("dtype", [single, half])
@pytest.mark.parametrize("name", CASES)
def test_a_call_in_place_is_eager_to_the_bit_and_the_graph_up_to_rounding(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    fn, make, called = CASES[name]
    args = make(dtype)
    graph = graph_of(fn, *args)
    group = whole_group(graph)
    call = eager_call(graph, group)
    assert call.name == called
    assert library_call(graph, group, called) == call
    env = dict(zip(graph.inputs, run_values(fn, args), strict=True))
    tolerance = 2e-3 if dtype == half else 2e-5
    (out,) = graph.outputs
    assert out is not None
    views = [op for op in graph.ops if op.is_view and op.outputs == (out,) and op not in call.ops]
    got = aten.run([*call.ops, *views], dict(env))[out]
    assert torch.equal(got, fn(*args))
    apart = aten.run(graph.ops, dict(env))[out]
    torch.testing.assert_close(got, apart, rtol=tolerance, atol=tolerance)
    for value in group.outputs:  # what other groups read: the values behind views
        one, other = (aten.run(ops, dict(env))[value] for ops in (call.ops, graph.ops))
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_all_results_of_a_call_are_given() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.native_layer_norm(x, (33,), None, None, 1e-5)

    x = torch.randn(7, 33)
    graph = graph_of(fn, x)
    call = eager_call(graph, whole_group(graph))
    assert call.name == "aten.native_layer_norm"
    env = aten.run([*call.ops, *(op for op in graph.ops if op.is_view)], {graph.inputs[0]: x})
    for value, wanted in zip(graph.outputs, fn(x), strict=True):
        assert value is not None
        assert torch.equal(env[value], wanted)


def softmax_between() -> Graph:
    return graph_of(lambda x: F.softmax(x * 2, -1).relu() + 1, torch.randn(5, 33))


def test_the_other_ops_of_a_group_run_around_the_call() -> None:
    graph = softmax_between()
    call = library_call(graph, whole_group(graph), "aten._softmax")
    assert [op.call.target for op in call.ops] == [
        "aten.mul.Tensor", "aten._softmax.default", "aten.relu.default", "aten.add.Tensor"
    ]  # fmt: skip


def test_no_call_where_the_group_lacks_a_part_or_needs_one() -> None:
    graph = graph_of(lambda x: F.softmax(x, -1), torch.randn(5, 33))
    names = [op.name for op in graph.ops]
    assert [c.name for c in fused_calls(graph, Group(tuple(names), ("div",)))] == ["aten._softmax"]
    assert fused_calls(graph, Group(tuple(names[1:]), ("div",))) == ()
    assert fused_calls(graph, Group(tuple(names), ("exp", "div"))) == ()


def test_a_softmax_written_out_has_no_call() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    graph = graph_of(fn, torch.randn(5, 33))
    assert [c.name for c in implementations(graph, whole_group(graph))] == ["aten"]


def test_nothing_random_is_called_again() -> None:
    graph = graph_of(lambda x: F.dropout(x, 0.5, training=True), torch.randn(5, 33))
    assert graph.composites == ()


def test_a_reference_ends_with_the_graphs_own_values() -> None:
    graph = graph_of(CASES["group norm, a view at its end"][0], torch.randn(2, 9, 5, 7))
    call = eager_call(graph, whole_group(graph))
    wrong = replace(call.ops[0], call=replace(call.ops[0].call, args=(*call.ops[0].call.args[:-1], 77.0)))
    whole = with_ops(graph, (wrong, *call.ops[1:]))
    assert {op.name for op in whole.ops} == {op.name for op in (*graph.ops, *call.ops)}
    x = torch.randn(2, 9, 5, 7)
    (out,) = graph.outputs
    assert out is not None
    assert torch.equal(aten.run(whole.ops, {graph.inputs[0]: x})[out], aten.run(graph.ops, {graph.inputs[0]: x})[out])
    assert whole.producer[call.ops[-1].outputs[0]] == graph.producer[call.ops[-1].outputs[0]]


@pytest.mark.parametrize("name", ["softmax", "layer norm", "group norm", "cross entropy"])
def test_the_search_has_a_group_that_is_the_call_alone(name: str) -> None:
    fn, make, _ = CASES[name]
    graph = graph_of(fn, *make(single))
    groups = enumerate_groups(graph, builder_of(graph)).groups
    for composite in graph.composites:
        parts = {part for part in composite.ops if not graph.by_name[part].is_view}
        (call,) = {
            c.name for group in groups if set(group.ops) == parts for c in fused_calls(graph, group)
        }  # fmt: skip
        assert call == composite.op.call.target.rpartition(".")[0]
