"""Frozen weights from tuning to running, without a GPU: what is computed once costs the plan nothing and is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import autofuse
from autofuse.capture.frozen import declare, declared
from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.errors import AutofuseError, PlanError, UsageError
from autofuse.ir.fingerprint import graph_key
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore
from autofuse.runtime import backend, counters
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest, TuneResult

WORKLOADS = """
import torch
import torch.nn.functional as F

def tensors(device, *shapes):
    return tuple(torch.randn(*shape, device=device, dtype=torch.float16) for shape in shapes)

def norm(device, tokens=64, hidden=64, out=48):
    def fn(x, scale, weight):
        return F.linear(F.rms_norm(x, (x.shape[-1],), scale, 1e-6), weight)
    return fn, tensors(device, (tokens, hidden), (hidden,), (out, hidden)), ["scale", "weight"]

def gated(device, tokens=48, hidden=4096):
    def fn(x, weight):
        return x * torch.softmax(torch.exp(weight.float()) + 1, 0).to(x.dtype)
    return fn, tensors(device, (tokens, hidden), (hidden,)), ("weight",)

class Net(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.norm, self.out = torch.nn.RMSNorm(64, **options), torch.nn.Linear(64, 48, bias=False, **options)
    def forward(self, x):
        return self.out(self.norm(x))

def module(device, tokens=64):
    options = {"device": device, "dtype": torch.float16}
    return Net(**options), tensors(device, (tokens, 64)), True
"""
NAMES = ("norm", "gated", "module")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, TuneResult]]:
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "w.py").write_text(WORKLOADS)
    specs = tuple(f"{folder}/w.py:{name}" for name in NAMES)
    return folder, dict(
        zip(NAMES, tune(TuneRequest(specs, target="h200", budget_trials=24, store=folder)), strict=True)
    )


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    counters.reset()
    backend._lookups.clear()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        yield


def plan_of(folder: Path, result: TuneResult) -> Plan:
    return PlanStore(folder).show(str(result.plan_id))


def compiled(folder: Path, fn: Any, **options: Any) -> Any:
    given: dict[str, Any] = {
        "target": "h200",
        "store": folder,
        "executor": "interpreter",
        "on_miss": "error",
        **options,
    }
    return autofuse.compile(fn, **given)


def close(found: torch.Tensor, fn: Any, *args: torch.Tensor) -> None:
    exact, eager = fn(*(a.double() for a in args)), fn(*args)
    limit = 3 * max(float((eager.double() - exact).norm()), 2.0**-10 * float(exact.norm()))
    assert float((found.double() - exact).norm()) <= limit


def test_a_norms_scale_is_folded_and_the_numbers_follow_the_weights(tuned: tuple[Path, dict[str, TuneResult]]) -> None:
    folder, results = tuned
    plan = plan_of(folder, results["norm"])
    assert results["norm"].verified.max_abs_err is not None, "checked in the interpreter"
    assert any("folded" in group.rewrites for group in plan.groups), [g.rewrites for g in plan.groups]
    assert plan.evidence["held_bytes"] == 48 * 64 * 2 + 4
    fn, args = load(f"{folder}/w.py:norm", {}, "cpu")
    run = compiled(folder, fn)
    x, scale, weight = args
    close(run(*args), fn, *args)
    scale.mul_(-3)
    close(run(*args), fn, *args)
    other = torch.randn_like(weight)
    close(run(x, scale, other), fn, x, scale, other)
    close(run(*args), fn, *args)
    assert counters.counts() == counters.Counts(1, {})


def test_what_follows_from_weights_alone_is_a_group_that_costs_nothing(
    tuned: tuple[Path, dict[str, TuneResult]],
) -> None:
    folder, results = tuned
    plan = plan_of(folder, results["gated"])
    once = [group for group in plan.groups if group.implementation == "once"]
    assert once
    assert all(not group.rewrites and group.schedule is None for group in once)
    assert plan.evidence["held_bytes"] == sum(group.evidence["held_bytes"] for group in once)
    called = [group for group in plan.groups if group.implementation != "once"]
    assert plan.total_us == pytest.approx(sum(group.evidence["predicted_us"] for group in called))
    entries = {entry["value"]: entry for entry in plan.evidence["ledger"]}
    assert all(entries[value]["verdict"] == "once" for group in once for value in group.outputs)
    fn, args = load(f"{folder}/w.py:gated", {}, "cpu")
    run = compiled(folder, fn)
    close(run(*args), fn, *args)
    args[1].neg_()
    close(run(*args), fn, *args)


def test_every_parameter_of_a_module(tuned: tuple[Path, dict[str, TuneResult]]) -> None:
    folder, results = tuned
    assert results["module"].plan_id
    fn, args = load(f"{folder}/w.py:module", {}, "cpu")
    other = type(fn)(dtype=torch.float16)
    run = compiled(folder, fn)
    for name, parameter in fn.named_parameters():  # pyright: ignore[reportFunctionMemberAccess]
        parameter.copy_(torch.randn_like(parameter) + (name == "norm.weight"))
    torch.testing.assert_close(run(*args), fn(*args), rtol=2e-2, atol=2e-2)
    named = compiled(folder, other, frozen=["norm.weight", "out.weight"])  # the same, said otherwise
    torch.testing.assert_close(named(*args), other(*args), rtol=2e-2, atol=2e-2)
    assert counters.counts().misses == {}


def test_a_frozen_plan_is_not_for_calls_that_froze_nothing(tuned: tuple[Path, dict[str, TuneResult]]) -> None:
    folder, _ = tuned
    fn, args = load(f"{folder}/w.py:norm", {}, "cpu")
    for frozen in (False, (), ("scale",), ("nothing",)):
        torch._dynamo.reset()
        with pytest.raises(PlanError, match="no plan"):
            compiled(folder, fn, frozen=frozen)(*args)
    torch.testing.assert_close(compiled(folder, fn, frozen=("weight", "scale"))(*args), fn(*args), rtol=2e-2, atol=2e-2)


def test_wrong_declarations_name_themselves() -> None:
    for wrong in (3, "weight", [1], {"weight": True}):
        with pytest.raises(UsageError, match=r"frozen=.*expected True .every parameter. or a list of names"):
            autofuse.compile(lambda x: x, frozen=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="takes no attribute"):
        autofuse.tune(torch.relu, (torch.zeros(3),), frozen=True)


def test_keys_differ_by_what_is_frozen(tuned: tuple[Path, dict[str, TuneResult]]) -> None:
    folder, _ = tuned
    fn, args = load(f"{folder}/w.py:norm", {}, "cpu")
    keys: set[str] = set()
    for names in ((), ("scale",), ("weight",), ("scale", "weight")):
        keys.add(graph_key(capture(declare(fn, names), args)[0].graph))
    assert len(keys) == 4


def test_a_name_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight.float().exp()

    args = torch.randn(8, 64), torch.randn(64)
    for frozen, near in ((["wieght"], "weight"), (["self.weight"], "weight"), (["zzz", "x"], "weight, x")):
        result = autofuse.tune(norm, args, target="h200", frozen=frozen, store=tmp_path)
        assert result.status == "failed"
        assert f"is called {max(frozen)!r}; {near}?" in result.detail


def test_what_failed_to_tune_declares_nothing(tmp_path: Path) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.raises(AutofuseError):
        autofuse.tune(double, (torch.randn(4),), target="nope", frozen=["x"], store=tmp_path)
    assert declared(double) == ()
