"""Attention written by hand as SDPA's call: the same numbers, and only where it is the same function."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from autofuse.capture.aten import run
from autofuse.capture.trace import capture
from autofuse.fusion.library import LibraryCall, fused_calls, whole_group
from autofuse.ir.graph import Graph

Function = Callable[..., torch.Tensor]
NAME = "autofuse.attention"


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k) * 0.3, -1) @ v


def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The softmax in float32, as careful code has it."""
    return torch.softmax((scores(q, k) / math.sqrt(q.shape[-1])).float(), -1).to(q.dtype) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[-2])
    return torch.softmax((scores(q, k) * 0.3).masked_fill(at[None, :] > at[:, None], -math.inf), -1) @ v


def causal_where(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(q.shape[-2])
    return torch.softmax(torch.where(at[:, None] >= at[None, :], scores(q, k) * 0.3, -math.inf), -1) @ v


def inputs(queries: int = 9, keys: int = 9, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    shapes = ((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 5))
    return tuple(torch.randn(*shape).to(dtype) for shape in shapes)


def call_of(fn: Function, args: tuple[torch.Tensor, ...]) -> tuple[Graph, LibraryCall | None]:
    graph = capture(fn, args)[0].graph
    calls = {call.name: call for call in fused_calls(graph, whole_group(graph))}
    return graph, calls.get(NAME)


def result(graph: Graph, call: LibraryCall, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    env: dict[str, torch.Tensor] = {}
    for name in graph.inputs:
        env[name] = next(arg for arg in args if tuple(arg.shape) == graph.types[name].shape)
    run(call.ops, env)
    return output(graph, env)


def output(graph: Graph, env: dict[str, torch.Tensor]) -> torch.Tensor:
    """The graph's only output: a view of what the call makes."""
    name = str(graph.outputs[0])
    return env[graph.base(name)].reshape(graph.types[name].shape)


@pytest.mark.parametrize("fn", [plain, wide], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(("queries", "keys"), [(7, 11), (1, 33), (40, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_call_gives_the_same_numbers(fn: Function, queries: int, keys: int, dtype: torch.dtype) -> None:
    args = inputs(queries, keys, dtype)
    graph, call = call_of(fn, args)
    assert call is not None
    assert len([op for op in call.ops if not op.is_view]) == 1
    exact = fn(*(arg.double() for arg in args))
    assert (result(graph, call, args).double() - exact).norm() < (
        1e-6 if dtype == torch.float32 else 2e-3
    ) * exact.norm()


@pytest.mark.parametrize("fn", [causal, causal_where], ids=lambda fn: fn.__name__)
def test_a_causal_mask_is_recognised_and_its_ops_go(fn: Function) -> None:
    q, k, v = inputs(12, 12)
    k = k[..., :8].contiguous() + 0.0
    graph, call = call_of(fn, (q, k, v))
    assert call is not None
    (made,) = [op for op in call.ops if not op.is_view]
    assert dict(made.call.kwargs)["is_causal"] is True
    query, key, value = (str(getattr(argument, "name", "")) for argument in made.call.args)
    env = dict.fromkeys(graph.inputs, q)  # inputs of one shape: set by what the call reads them as
    env |= {graph.base(query): q, graph.base(key): k, graph.base(value): v}
    run(call.ops, env)
    exact = fn(q.double(), k.double(), v.double())
    assert (output(graph, env).double() - exact).norm() < 1e-6 * exact.norm()


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k).masked_fill(hidden, -math.inf), -1) @ v


def strict(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Hides the diagonal too: nothing is left of the first row."""
    at = torch.arange(q.shape[-2])
    return torch.softmax(scores(q, k).masked_fill(at[None, :] >= at[:, None], -math.inf), -1) @ v


def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k).transpose(-1, -2), -1) @ v


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k), -2) @ v


def negative(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores(q, k) * 0.3 + 1.0, -1) @ v


@pytest.mark.parametrize("fn", [strict, turned, over_queries, negative], ids=lambda fn: fn.__name__)
def test_what_is_another_function_is_left_alone(fn: Function) -> None:
    assert call_of(fn, inputs())[1] is None


def test_a_mask_from_outside_is_left_alone() -> None:
    """SDPA would make zeros of a row that it hides, where the softmax makes NaN."""
    assert call_of(masked, (*inputs(7, 11), torch.zeros(7, 11, dtype=torch.bool)))[1] is None


def test_weights_that_are_wanted_too_are_not_thrown_away() -> None:
    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(scores(q, k), -1)
        return weights @ v, weights

    assert call_of(both, inputs(7, 11))[1] is None
