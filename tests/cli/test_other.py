"""Subcommands that need no search: plans, explain, space, model, doctor, on real stores and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autofuse.cli import doctor
from autofuse.cli.main import app
from autofuse.ir.graph import Arg, AtenCall, Graph, Map, Op, TensorType
from autofuse.plans.environment import current_environment
from autofuse.plans.plan import PlannedGroup, make_plan
from autofuse.plans.store import PlanStore
from autofuse.results.explain import LedgerEntry, Side, to_list

ENTRY = LedgerEntry("v", "float32", (4, 4), "a", ("b",), "materialised", 128, "predicted",
                    Side(predicted_us=3.0), Side(predicted_us=2.0))  # fmt: skip


def plan(workload: str = "mlp", total_us: float = 2.0, **environment: str) -> Any:
    kind = TensorType((4, 4), "float32", (4, 1))
    op = Op("a", AtenCall("aten.relu.default", ()), Map(("x",), Arg(0), "float32"), ("v",))
    graph = Graph(("x",), (op,), ("v",), {"x": kind, "v": kind})
    return make_plan(
        graph=graph,
        graph_key="ab" * 32,
        workload=workload,
        shape={"rows": 4},
        target="h200",
        environment=current_environment() | environment,
        groups=[PlannedGroup(("a",), ("v",), "aten")],
        timing="predicted",
        total_us=total_us,
        unfused_us=4.0,
        evidence={"ledger": to_list([ENTRY])},
    )


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_plan_is_listed_shown_explained_carried_and_removed(tmp_path: Path) -> None:
    made = plan()
    one, two = tmp_path / "one", tmp_path / "two"
    PlanStore(one).put(made)
    (listed,) = json.loads(invoke("plans", "list", "--json", "--store", one).stdout)
    assert (listed["plan_id"], listed["workload"], listed["shape"]) == (made.plan_id, "mlp", {"rows": 4})
    assert json.loads(invoke("plans", "show", made.plan_id[:6], "--store", one).stdout)["plan_id"] == made.plan_id
    for what in ("mlp", made.plan_id):
        told = invoke("explain", what, "--store", one, "--json")
        assert json.loads(told.stdout)["ledger"][0]["reason"] == ENTRY.reason()
        assert ENTRY.reason() in invoke("explain", what, "--store", one).stdout
    assert invoke("plans", "export", tmp_path / "a.zip", "--store", one).exit_code == 0
    assert "1 plans" in invoke("plans", "import", tmp_path / "a.zip", "--store", two).stderr
    assert PlanStore(two).show(made.plan_id) == made
    assert made.plan_id in invoke("plans", "remove", made.plan_id, "--store", two).stderr
    assert PlanStore(two).list() == []


def test_explain_says_what_there_is_when_there_is_no_such_plan(tmp_path: Path) -> None:
    PlanStore(tmp_path).put(plan())
    for more in (("other",), ("mlp", "--shape", "rows=5"), ("mlp", "--target", "a100")):
        result = invoke("explain", *more, "--store", tmp_path)
        assert result.exit_code == 2
        assert "which has mlp" in result.stderr
        assert "autofuse tune" in result.stderr


def test_verify_tells_a_plan_of_another_version(tmp_path: Path) -> None:
    PlanStore(tmp_path).put(plan(triton="2.0.0"))
    result = invoke("plans", "verify", "--store", tmp_path, "--json")
    assert result.exit_code == 2
    assert "made with triton 2.0" in json.loads(result.stdout)[0]["fault"]
    assert "1 of 1 plans do not hold" in result.stderr


def test_a_corrupt_store_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "plans.sqlite").write_bytes(b"this is no database at all" * 100)
    for command in (("plans", "list"), ("explain", "mlp"), ("plans", "show", "abcd")):
        result = invoke(*command, "--store", tmp_path)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: the plan store")
        assert result.stderr.count("\n") == 1
    found = doctor.store_state(tmp_path)
    assert found.state == "bad"


def test_space_check_names_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('family = "map"\narch = 90\nnonsense = 1\nmore = 2\n')
    result = invoke("space", "check", file)
    assert result.exit_code == 2
    assert f"{file}:3:" in result.stderr
    assert f"{file}:4:" in result.stderr
    listed = json.loads(invoke("space", "check", file, "--json").stdout)
    assert {3, 4} <= {fault["line"] for fault in listed}
    assert invoke("space", "check").exit_code == 0, "the shipped ones are right"


def test_model_files_must_be_there(tmp_path: Path) -> None:
    result = invoke("model", "train", tmp_path, "--out", tmp_path / "m")
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path}: no Parquet file there\n")
    assert invoke("model", "show", tmp_path).exit_code == 2


def test_doctor_names_what_is_installed_and_the_store(tmp_path: Path) -> None:
    result = invoke("doctor", "--json", "--store", tmp_path)
    found = {one["name"]: one for one in json.loads(result.stdout)}
    assert result.exit_code == 0, result.stderr
    assert found["torch"]["value"].startswith("2.")
    assert found["ptxas"]["state"] == "ok"
    assert str(tmp_path) in found["store"]["value"]
    assert invoke("doctor", "--target", "nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("numpy", "triton", "state"), [("2.4.1", "3.6.0", "warning"), ("2.3.5", "3.6.0", "ok"), ("2.4.1", "3.9.0", "ok")]
)
def test_doctor_knows_which_numpy_the_interpreter_needs(
    monkeypatch: pytest.MonkeyPatch, numpy: str, triton: str, state: str
) -> None:
    monkeypatch.setattr(doctor.metadata, "version", {"numpy": numpy, "triton": triton}.__getitem__)
    assert doctor.interpreter().state == state
