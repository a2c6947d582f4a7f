"""`--resume` on a real GPU: a driver killed in the middle of timing goes on without measuring anything twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autofuse.results.log import read

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
WORKLOAD = ("residual_rms_norm", "--shape", "tokens=4097", "--shape", "hidden=1000")


def start(store: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autofuse.cli.main", "tune", *WORKLOAD, "--store", str(store), "--results",
         str(store / "results"), "--json", "--budget-seconds", "25", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip


def timed(store: Path) -> list[dict[str, Any]]:
    logs = list((store / "results").glob("*.jsonl"))
    assert len(logs) < 2, "a resumed run goes on with its log"
    events = [json.loads(line) for log in logs for line in log.read_text().split("\n")[:-1]]
    return [event for event in events if event["kind"] == "candidate" and event["time_us"] is not None]


def test_a_killed_run_measures_nothing_twice(tmp_path: Path) -> None:
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while len(timed(tmp_path)) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (log,) = (tmp_path / "results").glob("*.jsonl")
    before = {key: found.time_us for key, found in read(log).measurements.items() if found.time_us is not None}
    assert len(before) >= 4

    process = start(tmp_path, "--resume")
    out, err = process.communicate(timeout=200)
    assert process.returncode in (0, 4), err
    (result,) = json.loads(out)
    assert result["timing"] == "measured"
    after = timed(tmp_path)
    counts = Counter((c["graph_key"], c["group_key"], c["config_digest"]) for c in after)
    assert set(counts.values()) == {1}, "something was timed twice"
    assert len(counts) >= len(before)
    now = {key: found.time_us for key, found in read(log).measurements.items()}
    assert {key: now[key] for key in before} == before, "what was measured before is kept as it was"
