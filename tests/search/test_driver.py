"""A whole tuning run without a GPU: plans that the run-time path finds and that compute the right numbers, runs that
are killed or interrupted and go on without doing anything twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import autofuse
from autofuse.capture.workload import load
from autofuse.cli.progress import summary
from autofuse.errors import StoreError, UsageError
from autofuse.measure.records import Verified
from autofuse.plans.store import PlanStore
from autofuse.results.log import read
from autofuse.runtime import backend, counters
from autofuse.search import driver, events
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest, TuneResult

ROOT = Path(__file__).parents[2]
HALF = "dtype=torch.float16, device=device"
WORKLOADS = f"""
import torch

def many(device, rows=7, cols=1000):
    def fn(x, b):
        y = torch.relu(x + b)          # an output, and what the sum is made of
        return y, y.float().sum(-1), x  # and an input unchanged
    return fn, (torch.randn(rows, cols, {HALF}), torch.randn(cols, {HALF}))

def one(device, rows=1, cols=1):
    return lambda x: torch.softmax(x.float(), -1).half() * 2 + 1, (torch.randn(rows, cols, {HALF}),)

def strided(device, rows=33, cols=7):
    x = torch.randn(cols, rows, {HALF}).t()
    y = torch.randn(rows, 3 * cols, {HALF})[:, ::3]
    return lambda x, y: torch.sigmoid(x * y) - x, (x, y)

def empty(device, cols=5):
    return lambda x, y: (torch.relu(x) + 1, y * 2 + 1), (torch.randn(0, cols, {HALF}), torch.randn(cols, {HALF}))

def scalar(device, cols=9):
    return lambda x, s: torch.exp(x * s) + s, (torch.randn(cols, {HALF}), torch.randn((), {HALF}))

def linear(device, rows=7, inner=40, cols=33):
    fn = lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b))
    return fn, (torch.randn(rows, inner, {HALF}), torch.randn(cols, inner, {HALF}), torch.randn(cols, {HALF}))

def shared(device, rows=9, cols=300):
    return lambda x: torch.relu(x) * 3 - 1, (torch.randn(rows, cols, {HALF}),)

def shared_and_more(device, rows=9, cols=300, inner=20):
    fn = lambda x, y, z: (torch.relu(x) * 3 - 1, y @ z)
    return fn, (torch.randn(rows, cols, {HALF}), torch.randn(rows, inner, {HALF}), torch.randn(inner, cols, {HALF}))

def unchanged(device, cols=9):
    return lambda x: x, (torch.randn(cols, {HALF}),)

def views(device, cols=9):
    return lambda x: x.view(3, -1).t(), (torch.randn(cols, {HALF}),)
"""
NAMES = ("many", "one", "strided", "empty", "scalar", "linear")
TRIALS = 2 * len(NAMES)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, TuneResult], list[str]]:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "w.py").write_text(WORKLOADS)
    said: list[str] = []
    request = TuneRequest(
        tuple(f"{folder}/w.py:{name}" for name in NAMES), target="h200", budget_trials=TRIALS, store=folder
    )
    found = tune(request, lambda event: said.append(event.text) if isinstance(event, events.Note) else None)
    return folder, dict(zip(NAMES, found, strict=True)), said


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    counters.reset()
    backend._lookups.clear()  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        yield


def tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_found_again_and_computes_what_eager_does(
    tuned: tuple[Path, Mapping[str, TuneResult], list[str]], name: str
) -> None:
    folder, results, said = tuned
    result = results[name]
    assert result.status in ("done", "budget"), (result.detail, said)
    assert result.timing == "predicted"
    torch.manual_seed(3)
    fn, args = load(f"{folder}/w.py:{name}", {}, "cpu")
    compiled = autofuse.compile(fn, target="h200", store=folder, executor="interpreter", on_miss="error")
    found, wanted = tensors(compiled(*args)), tensors(fn(*args))
    assert len(found) == len(wanted)
    for got, right in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (right.shape, right.dtype, right.stride())
        torch.testing.assert_close(got, right, rtol=2e-3, atol=4e-3)
    assert counters.counts() == counters.Counts(1, {})
    if name == "many":
        assert found[-1] is args[0]


def test_plans_are_checked_and_kept(tuned: tuple[Path, Mapping[str, TuneResult], list[str]]) -> None:
    folder, results, said = tuned
    assert not [text for text in said if "not checked" in text or "wrong" in text]
    stored = {plan.plan_id for plan in PlanStore(folder).list()}
    for name in ("many", "one", "strided", "scalar", "linear"):
        assert results[name].plan_id in stored
        assert results[name].verified.max_abs_err is not None, name
        assert any(group.n_regs for group in results[name].groups), name
    (log,) = (folder / "results").glob("*.jsonl")
    state = read(log)
    assert [run.status for run in state.runs] == [results[name].status for name in NAMES]
    assert len(list((folder / "results" / "candidates").glob("*.parquet"))) == 1


def test_a_budget_of_trials_bounds_the_whole_run(tuned: tuple[Path, Mapping[str, TuneResult], list[str]]) -> None:
    folder, results, _ = tuned
    (log,) = (folder / "results").glob("*.jsonl")
    assert 0 < results["many"].candidates.compiled <= 2, "an even share"
    found = read(log).measurements.values()
    assert all(m.implementation == "triton" for m in found)
    compiled = [m for m in found if m.status != "pruned_constraint"]
    assert len(NAMES) <= len(compiled) <= TRIALS


def test_a_single_trial_is_one_for_two_workloads(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOADS)
    names = (f"{tmp_path}/w.py:many", f"{tmp_path}/w.py:strided")
    first, second = tune(TuneRequest(names, target="h200", budget_trials=1, store=tmp_path))
    assert first.candidates.compiled + second.candidates.compiled == 1
    assert (second.status, {group.implementation for group in second.groups}) == ("budget", {"aten"})


def test_a_group_is_compiled_once_for_several_workloads(tmp_path: Path) -> None:
    """Two graphs, of one op more the second, that have a group in common."""
    (tmp_path / "w.py").write_text(WORKLOADS)
    names = tuple(f"{tmp_path}/w.py:{name}" for name in ("shared", "shared_and_more"))
    first, second = tune(TuneRequest(names, target="h200", budget_trials=6, store=tmp_path))
    (log,) = (tmp_path / "results").glob("*.jsonl")
    found = list(read(log).measurements.values())
    assert len({m.graph_key for m in found}) == 2
    common = [m for m in found if m.group_key == found[0].group_key]
    assert {m.workload for m in common} == {first.workload}, "recorded where it was compiled"
    again = [group for group in second.groups if group.ops[0] == "relu"]
    assert [group.n_regs for group in again] == [group.n_regs for group in first.groups if group.ops[0] == "relu"]
    assert again[0].n_regs, "the second workload has the compiler's numbers"
    (training,) = (tmp_path / "results" / "training").glob("*.parquet")
    import pyarrow.parquet as pq

    rows = pq.read_table(training).to_pylist()
    assert len({(row["program_key"], row["config_digest"]) for row in rows}) == len(rows)


def test_a_spent_budget_leaves_the_library_calls(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOADS)
    request = TuneRequest((f"{tmp_path}/w.py:strided",), target="h200", budget_seconds=1e-6, store=tmp_path)
    (result,) = tune(request)
    assert (result.status, result.candidates.compiled) == ("budget", 0), result.detail
    assert {group.implementation for group in result.groups} == {"aten"}
    assert result.total_us is not None
    assert events.exit_code([result]) == 4


def test_the_library_calls_are_left_where_generated_plans_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*args: Any) -> Any:
        chosen = args[3]
        generated = any(not trial.is_library for trial in chosen.trials.values())
        return replace(chosen, verified=Verified("plan", "wrong" if generated else "ok", detail="by order"))

    monkeypatch.setattr(driver, "check_small", check)
    (tmp_path / "w.py").write_text(WORKLOADS)
    (result,) = tune(TuneRequest((f"{tmp_path}/w.py:strided",), target="h200", budget_trials=6, store=tmp_path))
    assert {group.implementation for group in result.groups} == {"aten"}
    assert result.plan_id is not None


def test_a_store_that_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any) -> int:
        raise StoreError("read-only")

    monkeypatch.setattr(PlanStore, "put_all", refuse)
    (tmp_path / "w.py").write_text(WORKLOADS)
    with pytest.raises(StoreError, match="read-only"):
        tune(TuneRequest((f"{tmp_path}/w.py:many",), target="h200", store=tmp_path))
    assert not list(tmp_path.glob("results/*.jsonl"))


def test_a_function_without_operations_has_nothing_to_tune(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOADS)
    (result,) = tune(TuneRequest((f"{tmp_path}/w.py:unchanged",), target="h200", store=tmp_path))
    assert (result.status, result.plan_id, result.groups, result.total_us) == ("done", None, (), 0.0)
    assert "no tensor operation" in result.detail
    assert events.exit_code([result]) == 0
    assert "nothing to tune: the function has no tensor operation" in summary(result)
    assert PlanStore(tmp_path).list() == []


def test_views_alone_have_a_plan_of_no_kernels(tmp_path: Path) -> None:
    """torch.compile asks for it: without one each call's key would be a miss in the log."""
    (tmp_path / "w.py").write_text(WORKLOADS)
    (result,) = tune(TuneRequest((f"{tmp_path}/w.py:views",), target="h200", store=tmp_path))
    assert (result.status, result.groups, result.total_us) == ("done", (), 0.0), result.detail
    assert summary(result).endswith("nothing to tune")
    fn, (x,) = load(f"{tmp_path}/w.py:views", {}, "cpu")
    compiled = autofuse.compile(fn, target="h200", store=tmp_path, executor="interpreter", on_miss="error")
    assert torch.equal(compiled(x), fn(x))
    assert compiled(x).data_ptr() == x.data_ptr()


# --- runs that do not come to their end ---


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "autofuse.cli.main", "tune", f"{folder}/w.py:many", "--target", "h200",
               "--store", str(folder), "--workers", "1", "--json", *more]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def candidates(folder: Path) -> list[dict[str, Any]]:
    logs = list((folder / "results").glob("*.jsonl"))
    assert len(logs) < 2, "a resumed run goes on with its log"
    lines = logs[0].read_text().split("\n")[:-1] if logs else []
    return [event for line in lines if (event := json.loads(line))["kind"] == "candidate"]


def wait_for_candidates(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(candidates(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def resume(folder: Path, before: int) -> tuple[dict[str, Any], str]:
    process = start(folder, "--resume")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    digests = Counter((c["graph_key"], c["group_key"], c["config_digest"]) for c in candidates(folder))
    assert len(digests) > before, "it went on"
    assert set(digests.values()) == {1}, "nothing was compiled twice"
    (result,) = json.loads(out)
    return result, err


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOADS)
    process = start(tmp_path)
    wait_for_candidates(process, tmp_path, 4)
    pids = children(process.pid)
    assert pids
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(pids)
    before = len(candidates(tmp_path))
    assert not PlanStore(tmp_path).list()
    result, _ = resume(tmp_path, before)
    assert result["candidates"]["compiled"] == len(candidates(tmp_path)), "those of before count"
    assert all(group["n_regs"] for group in result["groups"]), "registers are taken over"
    assert [plan.plan_id for plan in PlanStore(tmp_path).list()] == [result["plan_id"]]
    assert list((tmp_path / "results" / "candidates").glob("*.parquet"))


def test_ctrl_c_keeps_everything(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOADS)
    process = start(tmp_path)
    wait_for_candidates(process, tmp_path, 3)
    pids = children(process.pid)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--resume" in err
    wait_until_gone(pids)
    (result,) = json.loads(out)
    assert result["status"] == "interrupted"
    kept = candidates(tmp_path)
    assert len(kept) >= 3
    (log,) = (tmp_path / "results").glob("*.jsonl")
    assert read(log).ended == "interrupted"
    (parquet,) = (tmp_path / "results" / "candidates").glob("*.parquet")
    import pyarrow.parquet as pq

    assert pq.read_table(parquet).num_rows == len(kept)
    resume(tmp_path, len(kept))


def test_a_run_with_other_versions_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupted run compiled is taken over with the same environment, and not with another."""
    (tmp_path / "w.py").write_text(WORKLOADS)
    request = TuneRequest((f"{tmp_path}/w.py:many",), target="h200", budget_trials=2, store=tmp_path)

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.Progress) and event.stage == "compiled":
            raise KeyboardInterrupt

    now = driver.current_environment()
    monkeypatch.setattr(driver, "current_environment", lambda **_: {**now, "triton": "2.0.0", "driver": "1"})
    assert tune(request, interrupt)[0].status == "interrupted"
    (old,) = (tmp_path / "results").glob("*.jsonl")
    kept = old.read_bytes()

    def again() -> tuple[int, list[str]]:
        said: list[events.Event] = []
        tune(replace(request, resume=True), said.append)
        (started,) = [event for event in said if isinstance(event, events.RunStarted)]
        return started.reused, [event.text for event in said if isinstance(event, events.Note)]

    monkeypatch.setattr(driver, "current_environment", lambda **_: now)
    reused, said = again()
    assert reused == 0
    (note,) = [text for text in said if "resume" in text]
    assert f"triton 2.0.0, now {now['triton']}, driver 1, now unknown; starting a new run" in note
    assert "torch" not in note
    assert old.read_bytes() == kept
    assert len(list((tmp_path / "results").glob("*.jsonl"))) == 2

    monkeypatch.setattr(driver, "current_environment", lambda **_: {**now, "triton": "2.0.0", "driver": "1"})
    assert not [text for text in again()[1] if "resume" in text]
    assert old.read_bytes().startswith(kept), "the log is gone on with where it agrees"
    assert len(old.read_bytes()) > len(kept)


MEMORY = f"""
import torch

def fused(device, rows=7, inner=40, cols=33):
    fn = lambda x, w: torch.relu(x @ w) * 2
    return fn, (torch.randn(rows, inner, {HALF}), torch.randn(inner, cols, {HALF}))

def scanned(device, rows=7, cols=64):
    return lambda x: torch.relu(torch.cumsum(torch.relu(x), -1)), (torch.randn(rows, cols, {HALF}),)
"""


def test_a_limit_of_memory_leaves_what_is_kept_on_chip(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MEMORY)
    specs = f"{tmp_path}/m.py:fused", f"{tmp_path}/m.py:scanned"
    request = TuneRequest(specs, target="h200", budget_trials=6, store=tmp_path, memory_limit_mb=1e-6)
    free = tune(replace(request, workloads=specs[:1], memory_limit_mb=None))[0]
    said: list[str] = []
    fused, scanned = tune(request, lambda event: said.append(event.text) if isinstance(event, events.Note) else None)
    assert f"{fused.plan_id}, made within 1e-06 MB, replaces {free.plan_id}, made without a limit of memory" in said
    assert [plan.plan_id for plan in PlanStore(tmp_path).list()] == [fused.plan_id]
    (group,) = fused.groups
    assert (group.implementation, group.ops) == ("triton", ("mm", "relu", "mul"))
    assert {entry["verdict"] for entry in fused.ledger} == {"fused"}
    assert any(entry["chosen_by"] == "the limit of memory" for entry in fused.ledger)
    assert scanned.status == "no_plan"
    least = f"{2 * 896 / 1e6:g}"
    assert scanned.detail == (
        f"no choice of groups keeps what is between its kernels within 1e-06 MB; {least} MB are enough"
    )
    (wide,) = tune(replace(request, workloads=specs[1:], memory_limit_mb=float(least)))
    assert len(wide.groups) == 3, "two values of 896 bytes, what is read and what is made"
    for wrong in (0, -1.0, float("nan"), float("inf"), 1e303):
        with pytest.raises(UsageError, match=r"^memory_limit_mb .*: must be more than 0 and at most 1e\+12"):
            replace(request, memory_limit_mb=wrong)
