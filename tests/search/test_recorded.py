"""Without a GPU, times recorded on one: which candidate runs, and how everything that prints a time labels it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autofuse.capture.trace import capture
from autofuse.capture.workload import load
from autofuse.cli.explain import described
from autofuse.cli.progress import summary
from autofuse.cli.tune import group_lines
from autofuse.cost.device import resolve
from autofuse.cost.model import CostModel
from autofuse.errors import ResultsError, UsageError
from autofuse.fusion.build import build
from autofuse.ir.fingerprint import program_key
from autofuse.measure.records import Verified
from autofuse.plans.store import PlanStore
from autofuse.search import driver
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest, TuneResult
from autofuse.search.group import Trial
from autofuse.search.pool import Pool, score
from autofuse.search.recorded import timing_of

WORKLOADS = """
import torch
def one(device, rows=16384):
    x = torch.randn(rows, 1024, device=device, dtype=torch.float16)
    return lambda x: torch.softmax(x * 2, -1), (x,)
def two(device, rows=16384):
    x = torch.randn(rows, 1024, device=device, dtype=torch.float16)
    return lambda x: (torch.softmax(x * 2, -1), x.cumsum(-1)), (x,)
"""
SLOW = 25.25
"""us: beyond the prediction of many candidates in one kernel (17.4 the best), and less than two kernels take."""


@cache
def pool_of(spec: str) -> tuple[str, Pool]:
    graph = capture(*load(spec, {}, "cuda:0", fake=True))[0].graph
    ops = frozenset(op.name for op in graph.ops if not op.is_view and "cumsum" not in op.name)
    program = build(graph, ops, (graph.outputs[0],))  # type: ignore[arg-type]
    return program_key(program), score(program, resolve("h200"), CostModel.load(), 4096, np.random.default_rng(0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("workloads") / "w.py"
    made.write_text(WORKLOADS)
    return made


def record(folder: Path, spec: str, times: dict[int, float], **changes: Any) -> list[str]:
    """A recording of the candidates at these places of the prediction's order; their configs."""
    key, pool = pool_of(spec)
    rows = []
    for position, time in times.items():
        config = json.dumps(pool.schedule(position).to_dict())
        rows.append({"target": "h200", "program_key": key, "config_json": config, "status": "timed", "run_id": "run7",
                     "rewrites": ",".join(pool.rewrites(position)), "time_us": time} | changes)  # fmt: skip
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "hand.parquet")
    return [row["config_json"] for row in rows]


def run(spec: str, recordings: Path, **changes: Any) -> TuneResult:
    store = (recordings or Path("none")).parent / "store"
    given: dict[str, Any] = {"budget_trials": 3, "store": store, "recordings": recordings} | changes
    return tune(TuneRequest((spec,), target="h200", **given))[0]


def config(result: TuneResult) -> dict[str, Any]:
    (group,) = result.groups
    return {name: value for name, value in group.config.items() if name != "rewrites"}


def test_the_fastest_recorded_wins_against_any_prediction(file: Path, tmp_path: Path) -> None:
    spec, folder = f"{file}:one", tmp_path / "r"
    slower, fastest = record(folder, spec, {5: SLOW + 1, 9: SLOW})
    assert slower != fastest
    result = run(spec, folder)
    assert (result.timing, result.total_us, result.unfused_timing) == ("recorded", SLOW, "predicted"), result.detail
    assert config(result) == json.loads(fastest)
    (group,) = result.groups
    assert (group.recorded_us, group.recording, group.measured_us) == (SLOW, "hand.parquet, run run7", None)
    assert group.n_regs, "it was compiled all the same"
    assert group.predicted_us is not None
    assert group.predicted_us < SLOW
    assert result.candidates.timed == 0, "nothing was timed in this run"
    (plan,) = PlanStore(tmp_path / "store").list()
    assert (plan.timing, plan.total_us) == ("recorded", SLOW)
    said = described(plan)
    assert (said["timing"], said["groups"][0]["recording"]) == ("recorded", "hand.parquet, run run7")
    assert "25.2 us recorded, " in summary(result)
    assert "against unfused (predicted)" in summary(result)
    assert "recorded 25.2 us (hand.parquet, run run7)" in group_lines(result.groups)[1]
    check_tables(tmp_path / "store" / "results")


def check_tables(results: Path) -> None:
    """The run's own tables say what was recorded, and give it to no model as measured anew."""
    (candidates,) = (results / "candidates").glob("*.parquet")
    rows = pq.read_table(candidates).to_pylist()
    assert {(row["timing"], row["time_us"]) for row in rows} == {
        ("recorded", SLOW), ("recorded", SLOW + 1), ("predicted", None),
    }  # fmt: skip
    (training,) = (results / "training").glob("*.parquet")
    trained = pq.read_table(training).to_pylist()
    assert {row["time_us"] for row in trained} == {None}
    assert all(row["run_id"] and row["when"] and row["autofuse"] for row in trained)


@pytest.mark.parametrize("changes", [{"target": "h100"}, {"program_key": "0" * 64}])
def test_recordings_of_other_targets_and_programs_are_ignored(
    file: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    record(tmp_path / "r", f"{file}:one", {9: 0.001}, **changes)
    result = run(f"{file}:one", tmp_path / "r")
    assert (result.timing, result.groups[0].recorded_us, result.groups[0].recording) == ("predicted", None, None)
    assert result.total_us != 0.001


def test_a_plan_is_recorded_only_when_each_of_its_kernels_is(file: Path, tmp_path: Path) -> None:
    spec = f"{file}:two"
    record(tmp_path / "r", spec, {9: 1.25})
    result = run(spec, tmp_path / "r", budget_trials=6)
    assert result.timing == "predicted"
    assert sorted((group.implementation, group.recorded_us) for group in result.groups) == [
        ("aten", None), ("triton", 1.25),
    ]  # fmt: skip
    assert timing_of([]) == "predicted"
    assert timing_of([Trial(0, recording="a"), Trial(1)]) == "predicted"


def test_a_recorded_candidate_that_is_wrong_here_gives_way(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = record(tmp_path / "r", f"{file}:one", {9: SLOW, 5: SLOW + 1})
    checked: list[float] = []

    def check(*given: Any) -> Any:
        chosen = given[3]
        checked.append(chosen.total_us)
        verdict = Verified("small", "wrong", detail="off") if chosen.total_us == SLOW else Verified("small", "ok")
        return replace(chosen, verified=verdict)

    monkeypatch.setattr(driver, "check_small", check)
    result = run(f"{file}:one", tmp_path / "r")
    assert checked == [SLOW, SLOW + 1]
    assert config(result) == json.loads(second) != json.loads(first)


def test_a_resumed_run_keeps_the_label(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "r", f"{file}:one", {9: SLOW})
    with monkeypatch.context() as broken:
        broken.setattr(driver, "check_small", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(f"{file}:one", tmp_path / "r").status == "interrupted"
    result = run(f"{file}:one", tmp_path / "r", resume=True)
    assert (result.timing, result.total_us, result.groups[0].recording) == ("recorded", SLOW, "hand.parquet, run run7")
    assert result.candidates.timed == 0


def test_a_folder_that_has_none_and_a_file_that_is_none_end_the_run_at_once(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--recordings {tmp_path}/r: no recording"):
        run(f"{file}:one", tmp_path / "r")
    record(tmp_path / "r", f"{file}:one", {9: SLOW})
    (tmp_path / "r" / "hand.parquet").write_bytes(b"PAR1")
    with pytest.raises(ResultsError, match=r"hand\.parquet cannot be read"):
        run(f"{file}:one", tmp_path / "r")
    assert not list((tmp_path / "store").glob("results/*")), "no run was begun"


def test_none_does_without(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "r", f"{file}:one", {9: SLOW})
    monkeypatch.setenv("AUTOFUSE_RECORDINGS", str(tmp_path / "r"))
    assert run(f"{file}:one", Path("none"), store=tmp_path / "s").timing == "predicted"
    assert run(f"{file}:one", None, store=tmp_path / "s").timing == "recorded"  # type: ignore[arg-type]
