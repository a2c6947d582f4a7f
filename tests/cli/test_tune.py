"""`autofuse tune` around the search: options in, exit code and document out. The search itself is a stand-in here."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import autofuse
from autofuse.cli import options
from autofuse.cli.main import app
from autofuse.cli.progress import ProgressView, line, summary
from autofuse.errors import NoValidPlan, UnknownTarget, UsageError
from autofuse.results.explain import LedgerEntry
from autofuse.search import events
from autofuse.search.events import Counts, GroupResult, Progress, RunStarted, TuneRequest, TuneResult, Verification

LEDGER = LedgerEntry("hidden", "bfloat16", (8, 8), "mm", ("gelu",), "fused", 256)
DONE = TuneResult(
    workload="mlp",
    shape={"rows": 8},
    target="h200",
    timing="predicted",
    plan_id="abc123",
    total_us=10.0,
    unfused_us=15.0,
    groups=(GroupResult("mm_gelu", ("mm", "gelu"), "triton", {"num_warps": 8}, n_regs=96, occupancy=0.5),),
    candidates=Counts(100, 20, 10, 9, 0, 1),
    verified=Verification(0.01, 0.02),
    seconds=3.0,
    store="/store",
    ledger=(LEDGER.to_dict(),),
)
Search = Callable[[TuneRequest, Callable[[events.Event], None]], list[TuneResult]]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[[Search], None]:
    """Puts a stand-in in the search driver's place."""

    def put(stand_in: Search) -> None:
        module = types.ModuleType("autofuse.search.driver")
        module.tune = stand_in  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "autofuse.search.driver", module)

    return put


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tune", *arguments])


def test_options_become_the_request(search: Callable[[Search], None], tmp_path: Path) -> None:
    seen: list[TuneRequest] = []
    search(lambda request, on_event: seen.append(request) or [DONE])
    result = invoke(
        "mlp", "my.py:f", "--shape", "rows=1,4097", "--shape", "cols=8", "--target", "h200", "--effort", "full",
        "--budget-seconds", "60", "--strategy", "tpe", "--seed", "7", "--store", str(tmp_path / "s"),
        "--results", str(tmp_path / "r"), "--resume", "--dry-run",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert seen == [
        TuneRequest(
            workloads=("mlp", "my.py:f"),
            shapes=({"rows": 1, "cols": 8}, {"rows": 4097, "cols": 8}),
            target="h200",
            effort="full",
            budget_seconds=60.0,
            strategy="tpe",
            seed=7,
            store=tmp_path / "s",
            results=tmp_path / "r",
            resume=True,
            dry_run=True,
        )
    ]
    assert seen[0].shapes[1]["rows"] == 4097


def test_the_document_has_the_promised_fields_and_nothing_else_is_on_stdout(search: Callable[[Search], None]) -> None:
    def noisy(request: TuneRequest, on_event: Callable[[events.Event], None]) -> list[TuneResult]:
        print("a library chats")
        return [DONE, replace(DONE, unfused_us=float("inf"))]

    search(noisy)
    result = invoke("mlp", "--json")
    first, second = json.loads(result.stdout)
    assert set(first) >= {"workload", "shape", "target", "timing", "plan_id", "total_us", "unfused_us", "groups",
                          "candidates", "verified", "seconds"}  # fmt: skip
    assert set(first["groups"][0]) == {
        "name",
        "ops",
        "implementation",
        "config",
        "n_regs",
        "n_spills",
        "smem_bytes",
        "occupancy",
        "dram_bytes",
        "saved_bytes",
        "predicted_us",
        "measured_us",
        "recorded_us",
        "recording",
    }
    assert set(first["candidates"]) == {"enumerated", "kept", "compiled", "verified", "timed", "failed"}
    assert set(first["verified"]) == {"max_abs_err", "tolerance", "reference"}
    assert second["unfused_us"] is None
    assert "a library chats" in result.stderr


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["done", "done"], 0),
        (["done", "budget"], 4),
        (["budget", "no_plan", "done"], 3),
        (["no_plan", "interrupted"], 130),
        (["failed", "budget"], 2),
    ],
)
def test_the_exit_code_is_the_worst_results(search: Callable[[Search], None], statuses: list[str], code: int) -> None:
    search(lambda request, on_event: [replace(DONE, status=status, detail="why") for status in statuses])
    assert invoke("mlp", "--json").exit_code == code


@pytest.mark.parametrize(("error", "code"), [(NoValidPlan("all failed"), 3), (UnknownTarget("unknown target 'x'"), 2)])
def test_errors_of_the_search_are_said_in_one_line(
    search: Callable[[Search], None], error: Exception, code: int
) -> None:
    def fails(request: TuneRequest, on_event: Callable[[events.Event], None]) -> list[TuneResult]:
        raise error

    search(fails)
    result = invoke("mlp", "--json")
    assert (result.exit_code, result.stderr, result.stdout) == (code, f"error: {error}\n", "")


def test_an_interrupt_prints_what_had_finished(search: Callable[[Search], None], tmp_path: Path) -> None:
    def interrupted(request: TuneRequest, on_event: Callable[[events.Event], None]) -> list[TuneResult]:
        on_event(RunStarted("r1", tmp_path / "run-r1.jsonl", 2, None))
        on_event(events.WorkloadFinished(DONE))
        raise KeyboardInterrupt

    search(interrupted)
    result = invoke("mlp", "other", "--json")
    assert result.exit_code == 130
    assert [found["workload"] for found in json.loads(result.stdout)] == ["mlp"]
    assert "run-r1.jsonl" in result.stderr
    assert "--resume" in result.stderr


def test_the_report_labels_its_times_and_names_the_plan(search: Callable[[Search], None]) -> None:
    search(lambda request, on_event: [DONE])
    result = invoke("mlp")
    assert result.exit_code == 0, result.stderr
    assert "mlp (rows=8): 10.0 us predicted, 1.50x against unfused" in result.stdout
    assert "plan abc123 in /store" in result.stdout
    assert "measured us" not in result.stdout
    assert "100 enumerated, 20 kept, 10 compiled, 9 verified, 0 timed, 1 failed" in result.stdout


def test_a_workload_without_a_plan_is_an_error_line(search: Callable[[Search], None]) -> None:
    search(lambda request, on_event: [replace(DONE, total_us=None, status="no_plan", detail="all failed")])
    result = invoke("mlp")
    assert (result.exit_code, result.stderr) == (3, "error: mlp (rows=8): no_plan: all failed\n")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["rows"], "--shape rows: expected NAME=VALUE"),
        (["=3"], "--shape =3: expected NAME=VALUE"),
        (["rows=1,x"], "--shape rows=1,x: 'x' is not a whole number"),
        (["rows="], "--shape rows=: '' is not"),
        (["rows=-1"], "-1 is not a size"),
        (["rows=1", "rows=2"], "rows was given before"),
    ],
)
def test_a_wrong_shape_names_the_option(given: list[str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        options.parse_dims(given)
    result = invoke("mlp", *(part for text in given for part in ("--shape", text)))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --shape")


def test_shapes_are_combined_and_doubles_dropped() -> None:
    dims = options.parse_dims(["rows=1, 7,7", "cols=0"])
    assert events.combinations(dims) == ({"rows": 1, "cols": 0}, {"rows": 7, "cols": 0})
    assert events.combinations({}) == ({},)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--effort", "slow"),
        ("--strategy", "luck"),
        ("--budget-seconds", "0"),
        ("--workers", "-1"),
        ("--seed", "-1"),
        ("--seed", "99999999999999999999999"),
        ("--budget-seconds", "nan"),
    ],
)
def test_wrong_values_name_the_option(arguments: tuple[str, str]) -> None:
    result = invoke("mlp", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"error: {arguments[0]} {float(arguments[1]) if 'bud' in arguments[0] else arguments[1]}"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1), ("seed", 1 << 32), ("seed", True), ("seed", "1"), ("budget_seconds", float("nan")),
        ("budget_seconds", -1), ("budget_seconds", "5"), ("budget_trials", 1.5), ("workers", 0), ("effort", "slow"),
        ("strategy", "luck"),
    ],
)  # fmt: skip
def test_a_request_refuses_what_no_search_can_use(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{field} "):
        TuneRequest(("mlp",), **{field: value})
    if field in ("seed", "budget_seconds"):
        with pytest.raises(UsageError, match=f"^{field} "):
            autofuse.tune(abs, (), **{field: value})


def test_the_progress_line() -> None:
    event = Progress("timing", Counts(100, 20, 9, 8, 5, 3), {"crash": 1, "compile_error": 2}, 10.0, 15.0, 12.3)
    assert line(event, "measured", RunStarted("r", None, 1, 60.0)) == (
        "timing | 9 compiled, 8 right, 5 timed of 20 | failed: 2 compile_error, 1 crash | "
        "best 10.0 us measured (1.50x against unfused) | 12 s of 60"
    )


def test_without_a_terminal_only_warnings_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(terminal=False) as view:
        view(RunStarted("r", None, 1, None))
        view(events.WorkloadStarted(1, "mlp", {}, "h200"))
        view(Progress("compiling", Counts()))
        view(events.Note("chatter"))
        view(events.Note("clocks are throttled", "warning"))
        view(events.WorkloadFinished(DONE))
    assert capsys.readouterr().err == "warning: clocks are throttled\n"
    assert view.finished == [DONE]


def test_on_a_terminal_the_result_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(terminal=True) as view:
        view(RunStarted("r", None, 1, 5.0))
        view(Progress("compiling", Counts()))
        view(events.WorkloadFinished(replace(DONE, status="budget")))
    assert "best so far is kept" in capsys.readouterr().err
    assert summary(DONE) == "mlp (rows=8): 10.0 us predicted, 1.50x against unfused, 3.0 s"


def test_a_resumed_request_may_have_another_budget_and_nothing_else() -> None:
    one = TuneRequest(("mlp",), ({"rows": 8},), budget_seconds=1, store=Path("/a"))
    json.dumps(one.identity())
    assert one.identity() == replace(one, budget_seconds=9, store=Path("/b"), resume=True).identity()
    for change in ({"seed": 1}, {"target": "h200"}, {"shapes": ({"rows": 9},)}, {"workloads": ("x",)}):
        assert one.identity() != replace(one, **change).identity()
