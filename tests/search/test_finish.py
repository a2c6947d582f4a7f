"""The last race: a plan is what won it, and eager's calls or Inductor's result are plans like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

import autofuse
from autofuse.capture.trace import capture
from autofuse.cost.device import TARGETS
from autofuse.errors import NoValidPlan
from autofuse.fusion.cover import Cover, k_best, unfused_cover
from autofuse.fusion.enumerate import enumerate_groups
from autofuse.fusion.group import Group
from autofuse.fusion.library import implementations, whole_group
from autofuse.fusion.subgraph import extract
from autofuse.ir.fingerprint import graph_key
from autofuse.ir.graph import Graph
from autofuse.measure.records import Candidate, InductorStep, Inputs, Timed, Verified
from autofuse.measure.supervisor import Worker
from autofuse.plans.environment import current_environment
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore
from autofuse.results.explain import race
from autofuse.runtime import backend, counters
from autofuse.search.finish import Chosen, choose
from autofuse.search.graph import Outcome
from autofuse.search.group import LIBRARY, GroupSearch, Trial
from autofuse.search.report import plan_of, result_of

H200 = TARGETS["h200"]


def fn(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.softmax(x * 2, -1) + x, (33,))


def outcome_of(fn: Callable[..., Any], *args: Any) -> Outcome:
    """A search whose groups are all library calls, timed at so many us as they have ops."""
    (captured,) = capture(fn, args)
    graph = captured.graph
    enumeration = enumerate_groups(graph, lambda _: None, budget=20)
    searches = {group: search_of(graph, group) for group in enumeration.groups}
    groups = list(searches)
    covers = k_best(graph, groups, [float(len(group.ops)) for group in groups], 2)
    unfused = unfused_cover(graph, groups)
    return Outcome(graph, graph_key(graph), unfused, searches, enumeration, "done", 0.0, covers)


def search_of(graph: Graph, group: Group) -> GroupSearch:
    calls = implementations(graph, group)
    search = GroupSearch("ab" * 32, extract(graph, group.ops, group.outputs), group, None, None,
                         tuple((call.name, 1.0) for call in calls), calls)  # fmt: skip
    search.library_trials[0] = Trial(LIBRARY, 0, time_us=float(len(group.ops)), status="timed")
    return search


class Fake:
    """A worker whose times are given by the candidates' keys; wrong: keys that fail to verify."""

    def __init__(self, times: Mapping[str, float], wrong: Sequence[str] = ()) -> None:
        self.times, self.wrong = times, wrong

    def verify(self, candidate: Candidate, _inputs: Inputs) -> Verified:
        return Verified(candidate.key, "wrong" if candidate.key in self.wrong else "ok", detail="made up")

    def time_plans(self, plans: Sequence[Candidate], _inputs: Inputs) -> list[Timed]:
        assert not {plan.key for plan in plans} & set(self.wrong)
        return [Timed(p.key, "ok" if self.times[p.key] else "crash", median_us=self.times[p.key]) for p in plans]


def chosen(outcome: Outcome, times: Mapping[str, float] | None = None, wrong: Sequence[str] = ()) -> Chosen:
    given = {"cover0": 10.0, "cover1": 11.0, "unfused": 30.0, "eager": 20.0, "inductor": 15.0, **(times or {})}
    return choose(outcome, H200, Fake(given, wrong), 0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return outcome_of(fn, torch.randn(7, 33))


def test_the_best_cover_wins_where_it_is_the_fastest(outcome: Outcome) -> None:
    found = chosen(outcome)
    assert (found.cover, found.whole, found.total_us) == (outcome.covers[0], None, 10.0)
    assert (found.unfused_us, found.eager_us, found.inductor_us, found.searched_us) == (30.0, 20.0, 15.0, 10.0)
    assert chosen(outcome, {"cover1": 9.0}).cover == outcome.covers[1]


@pytest.mark.parametrize(("rival", "implementation"), [("eager", "aten"), ("inductor", "inductor")])
def test_a_rival_must_be_faster_by_more_than_the_noise(outcome: Outcome, rival: str, implementation: str) -> None:
    assert chosen(outcome, {rival: 9.95}).whole is None
    found = chosen(outcome, {rival: 9.0})
    assert found.whole is not None
    whole = whole_group(outcome.graph)
    assert (found.whole.implementation, found.whole.rewrites) == (implementation, ("eager",))
    assert (found.whole.ops, found.whole.outputs) == (whole.ops, whole.outputs)
    assert (found.total_us, found.searched_us) == (9.0, 10.0)


def test_the_unfused_plan_can_win(outcome: Outcome) -> None:
    assert chosen(outcome, {"unfused": 5.0}).cover == outcome.unfused


def test_what_fails_costs_itself_alone(outcome: Outcome) -> None:
    found = chosen(outcome, {"inductor": 0.0}, ["cover0"])
    assert (found.cover, found.inductor_us) == (outcome.covers[1], None)
    assert found.failures == {"cover0": "wrong made up", "inductor": "crash"}
    found = chosen(outcome, wrong=["cover0", "cover1", "unfused", "inductor"])
    assert found.whole is not None
    assert found.whole.implementation == "aten"
    with pytest.raises(NoValidPlan, match="wrong made up; wrong made up"):
        chosen(outcome, wrong=["cover0", "cover1", "unfused", "inductor", "eager"])


def plan(outcome: Outcome, found: Chosen) -> Plan:
    return plan_of(outcome, found, "test", {}, H200, current_environment())


@pytest.mark.parametrize(("rival", "words"), [("eager", "eager's own calls"), ("inductor", "torch.compile's result")])
def test_the_plan_says_what_was_raced(outcome: Outcome, rival: str, words: str) -> None:
    made = plan(outcome, chosen(outcome, {rival: 9.0}))
    assert Plan.from_json(made.to_json()) == made
    (group,) = made.groups
    assert group.evidence["measured_us"] == 9.0
    first, second = race(made.evidence, made.total_us)
    times = {"eager": "eager 9.0 us, torch.compile 15.0 us, plan 9.0 us",
             "inductor": "eager 20.0 us, torch.compile 9.0 us, plan 9.0 us"}  # fmt: skip
    assert first == times[rival]
    assert second == f"the whole graph runs {words}; the ledger is of the best searched plan, 10.0 us"
    result = result_of(outcome, chosen(outcome, {rival: 9.0}), made, "store")
    assert (result.total_us, [g.implementation for g in result.groups]) == (9.0, [group.implementation])


def test_a_failed_rival_says_why(outcome: Outcome) -> None:
    made = plan(outcome, chosen(outcome, wrong=["inductor"]))
    assert race(made.evidence, made.total_us) == ("eager 20.0 us, torch.compile failed (wrong made up), plan 10.0 us",)
    assert race({}, 1.0) == ()


def test_values_kept_inside_eagers_calls_are_saved(outcome: Outcome) -> None:
    (group,) = plan(outcome, chosen(outcome, {"eager": 9.0})).groups
    graph = outcome.graph
    calls = {"mul", "add"} | {value for c in graph.composites for value in c.op.outputs}  # and those two in between
    inner = {v for op in graph.ops if not op.is_view for v in op.outputs} - calls
    assert group.evidence["saved_bytes"] == sum(2 * graph.types[value].nbytes for value in inner)


# --- for real, on the CPU ---


@pytest.mark.timeout(280)
@pytest.mark.parametrize("rival", ["eager", "inductor"])
def test_a_rivals_plan_is_stored_found_and_run(
    outcome: Outcome, rival: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    PlanStore(tmp_path).put(plan(outcome, chosen(outcome, {rival: 1.0})))
    backend._lookups.clear()  # pyright: ignore[reportPrivateUsage]
    counters.reset()
    x = torch.randn(7, 33)
    with torch.no_grad():
        run = autofuse.compile(fn, target="h200", store=tmp_path, executor="interpreter", on_miss="error")
        found, wanted = run(x), fn(x)
    assert counters.counts().hits == 1
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)
    if rival == "eager":
        assert torch.equal(found, wanted)
    assert "Inductor fails" not in caplog.text


@pytest.mark.timeout(280)
def test_the_race_on_a_real_worker(outcome: Outcome) -> None:
    with Worker("cpu", timeout_s=120) as worker:
        found = choose(outcome, H200, worker, 0)
    assert found.verified is not None
    assert found.verified.ok
    assert found.eager_us
    assert found.inductor_us or found.failures["inductor"]
    assert not {"cover0", "unfused", "eager"} & set(found.failures)


@pytest.mark.timeout(280)
def test_an_inductor_that_cannot_compile_is_a_failed_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    outcome = outcome_of(fn, torch.randn(7, 33))
    outcome.covers = [Cover(outcome.covers[0].groups, 1.0)]
    with Worker("cpu", timeout_s=120) as worker:
        found = choose(outcome, H200, worker, 0)
    assert found.inductor_us is None
    assert found.failures["inductor"].startswith("runtime_error")
    assert found.total_us > 0


def test_inductor_gets_the_time_that_it_takes_to_compile() -> None:
    graph = capture(fn, (torch.randn(7, 33),))[0].graph
    worker = Worker("cpu", timeout_s=5)
    slow = Candidate("inductor", graph, (InductorStep((), ()),))
    assert worker.patience(slow) > 40
    assert worker.patience(Candidate("other", graph, ())) == 5
