"""Frozen weights on a real GPU: folded and computed once, noticed when they change, right under CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

import autofuse
from autofuse.plans.store import PlanStore

pytestmark = pytest.mark.gpu


def norm_linear(x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), scale, 1e-6), weight)


def close(mine: torch.Tensor, *args: torch.Tensor) -> None:
    exact, eager = norm_linear(*(a.double() for a in args)), norm_linear(*args).double()
    error = float((mine.double() - exact).norm() / exact.norm())
    assert error <= 2 * float((eager - exact).norm() / exact.norm()) + 1e-6


@torch.no_grad()
def test_a_folded_scale_is_right_and_follows_its_weights(tmp_path: Path) -> None:
    shapes = (512, 1024), (1024,), (768, 1024)
    x, scale, weight = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    tuned = autofuse.tune(norm_linear, (x, scale, weight), frozen=["scale", "weight"], store=tmp_path, budget_seconds=8)
    fn = autofuse.compile(norm_linear, store=tmp_path, frozen=["scale", "weight"], on_miss="error")
    close(fn(x, scale, weight), x, scale, weight)
    scale *= 1.5  # in place: what was computed of it is computed again
    close(fn(x, scale, weight), x, scale, weight)
    other = torch.randn_like(weight)
    close(fn(x, scale, other), x, scale, other)
    plan = PlanStore(tmp_path).show(str(tuned.plan_id))
    assert plan.timing == "measured"

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fn(x, scale, other)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fn(x, scale, other)
    x.copy_(torch.randn_like(x))
    graph.replay()
    close(out, x, scale, other)
