"""Numbers without a GPU: which small graph stands for a plan, and what becomes of a plan that is wrong on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.ir.graph import Graph
from autofuse.measure.records import Verified
from autofuse.plans.store import PlanStore
from autofuse.search import driver, events, small
from autofuse.search.events import TuneRequest
from autofuse.search.finish import Chosen

WORKLOADS = """
import torch
def norm(device, rows=4096, cols=4096):
    return lambda x: torch.softmax(x * 2, -1), (torch.randn(rows, cols, device=device, dtype=torch.bfloat16),)
def fixed(device):
    return torch.relu, (torch.randn(4096, 4096, device=device, dtype=torch.float16),)
"""


def graph_of(spec: str, **dims: int) -> Graph:
    return capture(*load(spec, dims, "cuda:0", fake=True))[0].graph


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "w.py").write_text(WORKLOADS)
    return f"{tmp_path}/w.py"


def test_large_sizes_are_halved_until_the_interpreter_can_do_them(file: str) -> None:
    graph = graph_of(f"{file}:norm")
    found = small.small_graph(f"{file}:norm", {"rows": 4096, "cols": 4096}, graph)
    assert isinstance(found, Graph)
    assert [op.name for op in found.ops] == [op.name for op in graph.ops]
    assert small.elements(found) <= small.ELEMENTS < small.elements(graph)
    assert "bfloat16" not in {kind.dtype for kind in found.types.values()}


def test_what_is_small_stays_as_it_is_and_needs_no_workload() -> None:
    with FakeTensorMode():
        x = torch.empty(7, 33, device="cuda", dtype=torch.float16)
    (captured,) = capture(torch.relu, (x,))
    found = small.small_graph("a function at hand", {}, captured.graph)
    assert isinstance(found, Graph)
    assert found.types == captured.graph.types


def test_without_dims_there_is_a_reason(file: str) -> None:
    assert (
        small.small_graph(f"{file}:fixed", {}, graph_of(f"{file}:fixed")) == "the workload has no dims to make smaller"
    )


@pytest.mark.parametrize(("status", "passed_over"), [("wrong", True), ("timeout", False)])
def test_a_wrong_plan_is_passed_over_and_an_unchecked_one_is_not(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, passed_over: bool
) -> None:
    """The first verdict is made up; those that follow are real."""
    real, asked = small.Worker.verify, []

    def verify(self: Any, candidate: Any, inputs: Any) -> Verified:
        asked.append(candidate)
        return Verified("small", status, detail="made up") if len(asked) == 1 else real(self, candidate, inputs)

    monkeypatch.setattr(small.Worker, "verify", verify)
    notes: list[str] = []
    request = TuneRequest((f"{file}:norm",), ({"rows": 8, "cols": 40},), target="h200", budget_trials=2, store=tmp_path)
    (result,) = driver.tune(request, lambda e: notes.append(e.text) if isinstance(e, events.Note) else None)
    assert result.plan_id == PlanStore(tmp_path).list()[0].plan_id, result.detail
    assert len(asked) == (2 if passed_over else 1)
    assert (result.verified.max_abs_err is not None) == passed_over
    assert any(("passed over" if passed_over else "not checked") in text for text in notes)
    assert result.candidates.failed == int(passed_over)


def test_when_all_are_wrong_there_is_no_plan(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Chosen:
        return replace(arguments[3], verified=Verified("small", "wrong", detail="made up"))

    monkeypatch.setattr(driver, "check_small", wrong)
    request = TuneRequest((f"{file}:norm",), ({"rows": 8, "cols": 40},), target="h200", budget_trials=1, store=tmp_path)
    (result,) = driver.tune(request)
    assert result.status == "no_plan"
    assert events.exit_code([result]) == 3
    assert PlanStore(tmp_path).list() == []
