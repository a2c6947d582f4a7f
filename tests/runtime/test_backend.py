"""torch.compile(backend=autofuse): hits run the plan, misses run what was asked for and say why, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import autofuse
from autofuse.capture.trace import capture
from autofuse.errors import PlanError, UsageError
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.plans.environment import current_environment
from autofuse.plans.plan import PlannedGroup, make_plan
from autofuse.plans.store import PlanStore
from autofuse.runtime import backend as backend_module
from autofuse.runtime import counters, executor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.reset()
    backend_module._logged.clear()  # pyright: ignore[reportPrivateUsage]
    backend_module._lookups.clear()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def store_plan(store: Path, graph: Graph, **changes: Any) -> None:
    """A plan of library calls: one group for each op that is no view."""
    groups = tuple(PlannedGroup((op.name,), op.outputs, "aten") for op in graph.ops if not op.is_view)
    given: dict[str, Any] = {
        "graph": graph,
        "graph_key": graph_key(graph),
        "workload": "test",
        "shape": {},
        "target": "h200",
        "environment": current_environment(),
        "groups": groups,
        "timing": "predicted",
        "total_us": 1.0,
        "unfused_us": 1.0,
    }
    PlanStore(store).put(make_plan(**{**given, **changes}))


def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    z = torch.relu(x @ y) + 1
    return z, x, z.t(), None, 3, [z.sum(), y.view(-1)]


def args() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=generator), torch.randn(8, 6, generator=generator)


def compiled(store: Path, function: Any = fn, **options: Any) -> Any:
    return autofuse.compile(function, target="h200", store=store, **{"executor": "interpreter", **options})


def agree(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    torch.testing.assert_close(found[0], wanted[0])
    assert found[0].stride() == wanted[0].stride()
    assert found[2].stride() == wanted[2].stride()
    assert torch.equal(found[2], found[0].t())
    assert found[3] is None
    assert found[4] == 3
    torch.testing.assert_close(found[5], wanted[5])


def test_a_plan_tuned_without_a_gpu_is_hit_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, y = args()
    with FakeTensorMode():
        fakes = tuple(torch.empty_strided(t.shape, t.stride(), device="cuda") for t in (x, y))
    (captured,) = capture(fn, fakes)
    store_plan(tmp_path, captured.graph)
    calls: list[int] = []
    call = executor.Executor.__call__
    monkeypatch.setattr(executor.Executor, "__call__", lambda self, *a: (calls.append(1), call(self, *a))[1])
    run = compiled(tmp_path, on_miss="error")
    found = run(x, y)
    agree(found, fn(x, y))
    assert found[1] is x
    assert found[2].data_ptr() == found[0].data_ptr()
    assert found[5][1].data_ptr() == y.data_ptr()
    run(x, y)
    assert calls == [1, 1]
    assert counters.counts() == counters.Counts(1, {})  # compiled once, called twice


def test_backend_by_torch_compile_with_options(tmp_path: Path) -> None:
    (captured,) = capture(fn, args())
    store_plan(tmp_path, captured.graph)
    options = {"target": "h200", "store": str(tmp_path), "executor": "interpreter", "on_miss": "error"}
    agree(torch.compile(fn, backend=backend_module.autofuse, options=options)(*args()), fn(*args()))
    assert counters.counts().hits == 1


def test_mutated_inputs_are_mutated(tmp_path: Path) -> None:
    def mutate(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    (captured,) = capture(mutate, (torch.zeros(5),))
    store_plan(tmp_path, captured.graph)
    x = torch.zeros(5)
    result = compiled(tmp_path, mutate, on_miss="error")(x)
    assert torch.equal(x, torch.ones(5))
    assert torch.equal(result, torch.full((5,), 2.0))
    assert counters.counts().hits == 1


def test_a_miss_runs_eager_and_says_so_once_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autofuse.runtime"):
        for _ in range(2):
            agree(compiled(tmp_path)(*args()), fn(*args()))
            torch._dynamo.reset()
        compiled(tmp_path)(torch.randn(3, 8), args()[1])  # another shape: another key
    lines = [r.getMessage() for r in caplog.records if r.name == "autofuse.runtime"]
    assert len(lines) == 2
    assert "no plan for this graph in" in lines[0]
    assert "running eager instead" in lines[0]
    assert counters.counts() == counters.Counts(0, {"absent": 3})


def test_shapes_strides_and_dtypes_are_other_keys(tmp_path: Path) -> None:
    (captured,) = capture(fn, args())
    store_plan(tmp_path, captured.graph)
    x, y = args()
    for other in ((x[:3], y), (x.t().contiguous().t(), y), (x.double(), y.double())):
        agree(compiled(tmp_path)(*other), fn(*other))
    assert counters.counts() == counters.Counts(0, {"absent": 3})


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"target": "h100"}, "target", "plan is for h100, not for h200"),
        ({"environment": {**current_environment(), "triton": "3.1.0"}}, "environment", "made with triton 3.1"),
        ({"groups": ()}, "unfit", "the plan computes nothing for"),
    ],
)
def test_misses_have_their_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], kind: str, reason: str
) -> None:
    (captured,) = capture(fn, args())
    store_plan(tmp_path, captured.graph, **changes)
    agree(compiled(tmp_path)(*args()), fn(*args()))
    assert counters.counts() == counters.Counts(0, {kind: 1})
    assert reason in caplog.text


def test_a_bug_of_ours_is_logged_with_its_trace_and_the_model_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (captured,) = capture(fn, args())
    store_plan(tmp_path, captured.graph)

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(executor, "arrange", broken)
    agree(compiled(tmp_path)(*args()), fn(*args()))
    assert counters.counts().misses == {"error": 1}
    assert "ZeroDivisionError: a bug" in caplog.text
    assert "Traceback" in caplog.text


def test_corrupt_store_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "plans.sqlite").write_bytes(b"garbage " * 1000)
    agree(compiled(tmp_path)(*args()), fn(*args()))
    assert counters.counts().misses == {"store": 1}
    assert "is corrupt" in caplog.text


def test_on_miss_error_and_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no plan: no plan for this graph in .*autofuse tune") as raised:
        compiled(tmp_path, on_miss="error")(*args())
    assert not isinstance(raised.value, BackendCompilerFailed)
    assert len(raised.traceback) < 5, "Dynamo's own frames are left out"
    with pytest.raises(PlanError, match=r"plans run on cuda.*interpreter") as raised:
        compiled(tmp_path, on_miss="error", executor="cuda")(*args())
    assert "autofuse tune" not in str(raised.value), "tuning does not mend it"
    for wrong in ({"on_miss": "panic"}, {"executor": "tpu"}):
        with pytest.raises(UsageError, match="expected one of"):
            compiled(tmp_path, **wrong)
    with pytest.raises(UsageError, match="option 'stroe': the autofuse backend knows"):
        torch.compile(fn, backend=backend_module.autofuse, options={"stroe": "x"})(*args())
    with pytest.raises(UsageError, match="knows only the default mode"):
        torch.compile(fn, backend=backend_module.autofuse, mode="max-autotune")(*args())


def test_what_is_not_covered_yet_misses_by_name(tmp_path: Path) -> None:
    x, y = args()
    autofuse.compile(fn, store=tmp_path, target="h200")(x, y)  # the CPU without the interpreter
    assert counters.counts().misses == {"device": 1}
    torch._dynamo.reset()
    with torch.enable_grad():
        weight = y.clone().requires_grad_()
        result = compiled(tmp_path)(x, weight)
        result[0].sum().backward()
        assert weight.grad is not None
    torch._dynamo.reset()
    compiled(tmp_path, dynamic=True)(x, y)
    assert counters.counts().misses == {"device": 1, "training": 1, "dynamic": 1}


def test_unknown_target_is_a_miss_that_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agree(autofuse.compile(fn, target="h2000", store=tmp_path, executor="interpreter")(*args()), fn(*args()))
    assert "h2000" in caplog.text
    assert counters.counts().misses == {"target": 1}


@pytest.mark.timeout(280)
def test_on_miss_inductor(tmp_path: Path) -> None:
    agree(compiled(tmp_path, on_miss="inductor")(*args()), fn(*args()))
    assert counters.counts().misses == {"absent": 1}


def test_modules_and_attention_survive_a_miss(tmp_path: Path) -> None:
    """Capturing rewrites attention in the graph; the miss path must get the graph as it was."""

    def attend(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q) + 1

    q = torch.randn(2, 2, 8, 16)
    seen: list[torch.fx.GraphModule] = []
    fallback = backend_module._fallback  # pyright: ignore[reportPrivateUsage]
    try:
        backend_module._fallback = lambda gm, *a: (seen.append(gm), fallback(gm, *a))[1]  # pyright: ignore[reportPrivateUsage]
        torch.testing.assert_close(compiled(tmp_path, attend)(q), attend(q))
    finally:
        backend_module._fallback = fallback  # pyright: ignore[reportPrivateUsage]
    assert "autofuse" not in str(seen[0].graph)
