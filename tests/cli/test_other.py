"""Subcommands that need no search: plans, explain, space, model, doctor, on real stores and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autofuse.cli import doctor
from autofuse.cli.main import app
from autofuse.cost.model import CostModel
from autofuse.errors import ModelError
from autofuse.ir.graph import Arg, AtenCall, Graph, Map, Op, TensorType
from autofuse.plans.environment import current_environment
from autofuse.plans.plan import PlannedGroup, make_plan
from autofuse.plans.store import PlanStore
from autofuse.results.explain import LedgerEntry, Side, to_list

ENTRY = LedgerEntry("v", "float32", (4, 4), "a", ("b",), "materialised", 128, "predicted",
                    Side(predicted_us=3.0), Side(predicted_us=2.0))  # fmt: skip


def plan(
    workload: str = "mlp",
    total_us: float = 2.0,
    key: str = "ab" * 32,
    ledger: Any = None,
    facts: Any = None,
    **environment: str,
) -> Any:
    kind = TensorType((4, 4), "float32", (4, 1))
    op = Op("a", AtenCall("aten.relu.default", ()), Map(("x",), Arg(0), "float32"), ("v",))
    graph = Graph(("x",), (op,), ("v",), {"x": kind, "v": kind})
    return make_plan(
        graph=graph,
        graph_key=key,
        workload=workload,
        shape={"rows": 4},
        target="h200",
        environment=current_environment() | environment,
        groups=[PlannedGroup(("a",), ("v",), "aten", evidence=facts or {})],
        timing="predicted",
        total_us=total_us,
        unfused_us=4.0,
        evidence={"ledger": to_list([ENTRY]) if ledger is None else ledger},
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


def test_model_seeds_and_folders_are_checked_first(tmp_path: Path) -> None:
    held = tmp_path / "file.parquet"
    held.write_text("x")
    for seed in ("-1", str(1 << 32)):
        for command in (("train", held, "--out", tmp_path / "m"), ("evaluate", held)):
            result = invoke("model", *command, "--seed", seed)
            assert (result.exit_code, result.stderr.startswith(f"error: --seed {seed}")) == (2, True), result.stderr
    result = invoke("model", "train", held, "--out", held)
    assert (result.exit_code, "name a folder" in result.stderr) == (2, True), result.stderr
    with pytest.raises(ModelError, match="cannot be written"):
        CostModel().save(held / "inside")


def test_verify_runs_a_file_only_when_told_to(tmp_path: Path) -> None:
    file, ran = tmp_path / "w.py", tmp_path / "ran"
    file.write_text(f"open({str(ran)!r}, 'w').close()\n")
    PlanStore(tmp_path).put(plan(f"{file}:f"))
    result = invoke("plans", "verify", "--store", tmp_path)
    assert (result.exit_code, "the file was not run (--run-workloads)" in result.stdout) == (0, True), result.output
    assert json.loads(invoke("plans", "verify", "--store", tmp_path, "--json").stdout)[0]["run"] is False
    assert not ran.exists()
    result = invoke("plans", "verify", "--store", tmp_path, "--run-workloads")
    assert (result.exit_code, "has no function 'f'" in result.stdout) == (2, True), result.output
    assert ran.exists()


def test_a_wrong_id_leaves_the_other_plans(tmp_path: Path) -> None:
    made = plan()
    PlanStore(tmp_path).put(made)
    result = invoke("plans", "remove", made.plan_id, "nosuch", "--store", tmp_path)
    assert (result.exit_code, "nosuch" in result.stderr) == (2, True)
    assert PlanStore(tmp_path).list() == [made]
    assert invoke("plans", "remove", made.plan_id, made.plan_id[:6], "--store", tmp_path).exit_code == 0, (
        "twice the same"
    )


@pytest.mark.parametrize(("ledger", "said"), [([{"x": 1}], "ledger[0]: field 'value'"),
                                              ([ENTRY.to_dict() | {"saved_bytes": "2"}], "ledger[0].saved_bytes"),
                                              ([ENTRY.to_dict() | {"apart": {}}], "ledger[0].apart")])  # fmt: skip
def test_explain_names_what_is_odd_in_an_imported_ledger(tmp_path: Path, ledger: Any, said: str) -> None:
    PlanStore(tmp_path).put(plan(ledger=ledger))
    for more in ((), ("--json",)):
        result = invoke("explain", "mlp", *more, "--store", tmp_path)
        assert result.exit_code == 2
        assert said in result.stderr


def test_the_facts_of_a_group_do_not_hide_what_it_is(tmp_path: Path) -> None:
    facts = {"implementation": "magic", "recorded_us": 2.0, "recording": "r"}
    PlanStore(tmp_path).put(plan(facts=facts))
    (group,) = json.loads(invoke("explain", "mlp", "--json", "--store", tmp_path).stdout)["groups"]
    assert (group["implementation"], group["recording"]) == ("aten", "r")
    assert "2.0 us recorded (r)" in invoke("explain", "mlp", "--store", tmp_path).stdout


def test_explain_names_the_like_of_many_workloads(tmp_path: Path) -> None:
    PlanStore(tmp_path).put_all(plan(f"work_{i}", key=f"{i:064x}") for i in range(9))
    for asked, said in (("wrk_3", "work_3"), ("zzz", "9 workloads")):
        told = invoke("explain", asked, "--store", tmp_path).stderr
        assert said in told
        assert "(all: autofuse plans list)" in told
