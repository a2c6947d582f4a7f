"""What capture remembers of the calls that it takes apart, and that it changes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.capture import decompose
from autofuse.capture.trace import capture
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.runtime import backend

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: F.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (33,)),
    "group norm": lambda x: F.group_norm(x.view(2, 5, 33), 5),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(10, dtype=torch.int64, device=x.device)),
    "moments": lambda x: torch.var_mean(x, -1),
}


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    (captured,) = capture(fn, args)
    return captured.graph


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tune_and_run_time_find_one_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured with fake tensors of a GPU that is not there, with real ones, and by the backend of torch.compile."""
    with FakeTensorMode():
        fake = torch.empty(10, 33, device="cuda")
    keys = [graph_key(graph_of(FUNCTIONS[name], x)) for x in (fake, torch.randn(10, 33))]
    assert graph_of(FUNCTIONS[name], fake).composites

    def execute(gm: Any, _chosen: Any, _device: str) -> Any:
        from autofuse.capture.convert import from_fx

        keys.append(graph_key(from_fx(gm)))
        return gm.forward

    monkeypatch.setattr(backend, "_execute", execute)
    with torch.no_grad():
        backend.compile(FUNCTIONS[name], target="h200", executor="interpreter", on_miss="error")(torch.randn(10, 33))
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_is_the_one_that_it_is_without_remembering(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(10, 33)
    graph = graph_of(FUNCTIONS[name], x)
    monkeypatch.setattr(decompose, "remembered", lambda _, rule: rule)
    decompose.decompositions.cache_clear()
    try:
        plain = graph_of(FUNCTIONS[name], x)
    finally:
        decompose.decompositions.cache_clear()
    assert replace(plain, composites=()) == replace(graph, composites=())
    assert plain.composites == graph.composites if name == "moments" else plain.composites != graph.composites


def test_a_key_tells_a_call_from_the_same_ops_written_out() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    x = torch.randn(10, 33)
    called, apart = graph_of(FUNCTIONS["softmax"], x), graph_of(written, x)
    assert graph_key(replace(called, composites=())) == graph_key(apart)
    assert graph_key(called) != graph_key(apart)


def test_of_nested_calls_the_outermost_counts() -> None:
    """The decomposition of a batch norm is itself one of another batch norm."""
    graph = graph_of(F.batch_norm, torch.randn(4, 5, 7), torch.randn(5), torch.rand(5) + 1)
    (composite,) = graph.composites
    assert composite.op.call.target == "aten._native_batch_norm_legit_no_training.default"
    assert set(composite.ops) == {op.name for op in graph.ops}


def test_results_that_the_graph_lacks_have_names_of_their_own() -> None:
    (composite,) = graph_of(FUNCTIONS["layer norm"], torch.randn(10, 33)).composites
    first, *others = composite.op.outputs
    graph = graph_of(FUNCTIONS["layer norm"], torch.randn(10, 33))
    assert first == graph.outputs[0]
    assert len(others) == 2
    assert not set(others) & set(graph.types)
