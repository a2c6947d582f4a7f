"""Plans as data: what goes out comes back, and nothing else comes in."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.errors import PlanError
from autofuse.plans.plan import Plan, PlannedGroup, content_id
from autofuse.schedule.schedule import Role, Schedule
from tests.plans.plan_samples import SCHEDULE, chain, plan

facts = st.dictionaries(
    st.text("abcdefgh_", min_size=1, max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**50), 2**50)
        | st.floats(-1e12, 1e12)
        | st.text("xyz é\n", max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("pq", min_size=1), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
blocks = st.integers(0, 12).map(lambda n: 2**n)
roles = st.one_of(
    st.builds(lambda b: Role("grid", b), blocks),
    st.builds(lambda b: Role("loop", b), blocks),
    st.just(Role("whole")),
    st.builds(lambda b, s: Role("split", b, s), blocks, st.integers(1, 64)),
)
schedules = st.builds(
    Schedule,
    st.dictionaries(st.sampled_from("mnkl"), roles, min_size=1).map(lambda d: tuple(d.items())),
    num_warps=st.sampled_from((1, 2, 4, 8, 16)),
    num_stages=st.integers(0, 8),
    group=st.integers(1, 16),
    persistent=st.integers(0, 4),
    flatten=st.booleans(),
    access=st.sampled_from(("pointer", "descriptor")),
    eviction=st.sampled_from(("none", "first")),
    maxnreg=st.sampled_from((0, 128)),
)


@settings(max_examples=150, deadline=None)
@given(
    schedule=schedules,
    evidence=facts,
    inner=facts,
    total=st.floats(0, 1e9),
    timing=st.sampled_from(("predicted", "measured")),
)
def test_what_goes_out_comes_back(schedule: Schedule, evidence: Any, inner: Any, total: float, timing: str) -> None:
    groups = (
        PlannedGroup(("a",), ("a",), "triton", schedule, ("moments",), inner),
        PlannedGroup(("b",), ("b",), "aten"),
    )
    made = plan(groups=groups, evidence=evidence, total_us=total, timing=timing)
    back = Plan.from_json(made.to_json())
    assert back == made
    assert back.groups[0].schedule == schedule  # the order of the roles included
    assert back.evidence == evidence
    assert back.groups[0].evidence == inner
    assert content_id(back) == made.plan_id


def test_id_is_of_the_content_not_of_the_time() -> None:
    first = plan()
    assert first.plan_id == plan().plan_id
    assert first.plan_id != plan(total_us=6.0).plan_id


def edited(**changes: Any) -> dict[str, Any]:
    data = json.loads(plan().to_json())
    return {**data, **changes}


def group(**changes: Any) -> dict[str, Any]:
    data = json.loads(plan().to_json())["groups"][0]
    return {"groups": [{**data, **changes}]}


def schedule(**changes: Any) -> dict[str, Any]:
    data = json.loads(plan().to_json())["groups"][0]["schedule"]
    return group(schedule={**data, **changes})


HOSTILE = {
    "unknown field 'code'": edited(code="import os"),
    "field 'format'": {k: v for k, v in edited().items() if k != "format"},
    "plan.format": edited(format=2),
    "plan.plan_id: '../../etc": edited(plan_id="../../etc/passwd"),
    "plan.graph_key": edited(graph_key="x" * 64),
    "plan.workload": edited(workload="a\nb"),
    "plan.shape.rows": edited(shape={"rows": 2**52 + 0.5}),
    "plan.shape key": edited(shape={"__import__('os')": 1}),
    "plan.environment.torch": edited(environment={"torch": 2}),
    "plan.timing": edited(timing="guessed"),
    "plan.total_us": edited(total_us=-1),
    "plan.unfused_us": edited(unfused_us=True),
    "plan.created": edited(created="yesterday"),
    "plan.ops[0]": edited(ops=["a; rm", "b"]),
    "plan.ops: a name appears twice": edited(ops=["a", "a"]),
    "plan.groups[0].implementation": edited(**group(implementation="shell")),
    "plan.groups[0].ops[0]: 7": edited(**group(ops=[7])),
    "plan.groups[0].ops: 'zz'": edited(**group(ops=["zz"])),
    "plan.groups[0].ops: expected a list of 1": edited(**group(ops=[])),
    "plan.groups[0].outputs: 'x'": edited(**group(outputs=["x"])),
    "plan.groups[0]: unknown field 'hook'": edited(**group(hook="x")),
    "plan.groups[0].rewrites[0]": edited(**group(rewrites=["os.system('x')"])),
    "plan.groups[0].evidence": edited(**group(evidence=[1])),
    "plan.groups[0]: group of a, b: a schedule belongs": edited(**group(schedule=None)),
    "plan.groups[0].schedule: schedule has unknown": edited(**schedule(pickled="x")),
    "plan.groups[0].schedule: schedule.num_stages": edited(**schedule(num_stages=2.5)),
    "plan.groups[0].schedule.num_warps": edited(**schedule(num_warps=3)),
    "plan.groups[0].schedule.num_warps: expected": edited(**schedule(num_warps=1 << 19)),
    "plan.groups[0].schedule.access": edited(**schedule(access="tma\n")),
    "plan.groups[0].schedule.roles[0]: expected": edited(**schedule(roles=[["m", f"grid({'9' * 90})"]])),
    "plan.groups[0].schedule.roles.m": edited(**schedule(roles=[["m", "grid(1048576)"]])),
    "plan.groups[0].schedule.roles[0][0]: text too long or with control": edited(
        **schedule(roles=[["m):\n  import os", "whole"]])
    ),
    "plan.groups[0].schedule.roles: an axis": edited(**schedule(roles=[["m", "whole"], ["m", "whole"]])),
    "plan.plan_id: " + plan().plan_id + " is not the hash": edited(total_us=1.0),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_plans_are_refused_by_field(message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.from_json(json.dumps(HOSTILE[message]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 50_000, "nested too deeply"),
        ('{"format": ' + "9" * 6000 + "}", "too large"),
        ('{"total_us": 1e999}', "too large"),
        ('{"total_us": NaN}', "NaN"),
        ('{"format": 1, "format": 1}', "appears twice"),
        ("x", "not JSON"),
        ("[]", "expected an object"),
        (b"\xff\xfe", "not JSON"),
        (" " * (5 << 20), "more than"),
    ],
)
def test_hostile_text_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_json(text, "plan.json")


def test_errors_name_the_source() -> None:
    with pytest.raises(PlanError, match=r"^/tmp/x\.json\.timing: 'no'"):
        Plan.from_json(json.dumps(edited(timing="no")), "/tmp/x.json")


@pytest.mark.parametrize(
    "evidence", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}, {"x": 2**70}, {"x": "\ud800"}]
)
def test_no_plan_is_made_that_could_not_be_read(evidence: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        plan(evidence=evidence)


def test_deep_evidence_is_refused() -> None:
    deep: Any = 1
    for _ in range(9):
        deep = [deep]
    with pytest.raises(PlanError, match="nested"):
        plan(evidence={"x": deep})


def test_bind_renames_by_position() -> None:
    made = plan()
    bound = made.bind(chain("other_"))
    assert bound.groups[0].ops == ("other_a", "other_b")
    assert bound.groups[0].outputs == ("other_b",)
    assert bound.groups[0].schedule == SCHEDULE
    assert made.bind(chain()) is made


def test_bind_refuses_another_graph() -> None:
    graph = chain()
    with pytest.raises(PlanError, match="2 ops"):
        plan().bind(type(graph)(graph.inputs, graph.ops[:1], ("a",), graph.types))


def test_rank_prefers_measured_then_the_lower_ratio() -> None:
    measured, recorded = plan(timing="measured", total_us=9.0), plan(timing="recorded", total_us=1.0)
    assert measured.rank < recorded.rank < plan(total_us=1.0).rank < plan(total_us=2.0).rank


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"recorded_us": "y", "recording": "x"}, "recorded_us"),
        ({"recording": "x"}, "recorded_us"),
        ({"ledger": [5]}, r"ledger\[0\]"),
        ({"ledger": "no list"}, "ledger"),
        ({"eager_us": "fast"}, "eager_us"),
        ({"unfused_timing": 7}, "unfused_timing"),
        ({"failures": [1]}, "failures"),
    ],
)
def test_evidence_that_others_read_is_of_its_kind(facts: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError, match=field):
        plan(evidence=facts)
    with pytest.raises(PlanError, match=field):
        plan(groups=[PlannedGroup(("a", "b"), ("b",), "aten", evidence=facts)])


def test_a_group_that_runs_once_comes_back_and_names_nothing_else() -> None:
    once = PlannedGroup(("a",), ("a",), "once", evidence={"held_bytes": 128})
    made = plan(groups=(once, PlannedGroup(("b",), ("b",), "aten", None, ("aten.tanh.default",))))
    back = Plan.from_json(made.to_json())
    assert back == made
    assert back.groups[0] == once
    assert back.bind(chain("other_")).groups[0].ops == ("other_a",)
    for wrong in ({"rewrites": ("aten.tanh.default",)}, {"schedule": SCHEDULE}):
        with pytest.raises(PlanError, match=r"once is by|belongs to triton"):
            PlannedGroup(("a",), ("a",), "once", **wrong)
    with pytest.raises(PlanError, match="held_bytes"):
        plan(groups=(PlannedGroup(("a", "b"), ("b",), "once", evidence={"held_bytes": "much"}),))
