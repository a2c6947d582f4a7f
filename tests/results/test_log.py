from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autofuse.errors import ResultsError
from autofuse.results.log import RunLog, differences, log_path, logs, read, resumable
from tests.results.samples import measurement, run, samples

REQUEST = {"workloads": ["bias_gelu"], "seed": 3}
HERE = {"autofuse": "0.1", "torch": "2.9.0", "triton": "3.5.0", "python": "3.12.1", "device": "H200", "driver": "570.1"}


def written(folder: Path, *statuses: str, run_id: str = "r1") -> Path:
    with RunLog.create(folder, REQUEST, run_id, HERE) as log:
        for number, status in enumerate(statuses):
            log.record(measurement(number, status))
    return log_path(folder, run_id)


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    made = [measurement(0), measurement(1, "compile_error", detail="line 3: é")]
    with RunLog.create(tmp_path, REQUEST, "r1") as log:
        for one in made:
            log.record(one)
        log.record(samples())
        log.append("plan", plan_id="abc")
        log.record(run())
        log.end("done")
    state = read(log.path)
    assert (state.run_id, state.request, state.ended, state.torn) == ("r1", REQUEST, "done", False)
    assert list(state.measurements.values()) == made
    assert state.samples[0].times_us == (10.0, 11.5)
    assert [plan["plan_id"] for plan in state.plans] == ["abc"]
    assert state.runs[0].total_us == 3.5


def test_every_line_is_one_json_event(tmp_path: Path) -> None:
    path = written(tmp_path, "timed", "crash")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["kind"] for event in events] == ["start", "candidate", "candidate"]


def test_a_later_record_of_a_candidate_replaces_the_earlier(tmp_path: Path) -> None:
    with RunLog.create(tmp_path, REQUEST, "r1") as log:
        log.record(measurement(0, "compiled"))
        log.record(measurement(1, "compiled"))
        assert log.state.keys == set()
        log.record(measurement(0, "timed", time_us=2.0))
    state = read(log.path)
    assert [found.status for found in state.measurements.values()] == ["timed", "compiled"]
    assert state.keys == {measurement(0).key}


def test_cut_anywhere_the_whole_lines_before_are_kept_and_it_can_go_on(tmp_path: Path) -> None:
    whole = written(tmp_path, "timed", "crash", "timed").read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(ends[0], len(whole), 37):
        path = tmp_path / f"run-cut{size}.jsonl"
        path.write_bytes(whole[:size])
        kept = sum(end <= size for end in ends) - 1
        state = read(path)
        assert (len(state.measurements), state.torn) == (kept, size not in ends)
        with RunLog.resume(path) as log:
            assert log.state.keys == {found.key for found in state.measurements.values()}
            log.record(measurement(5))
        again = read(path)
        assert not again.torn
        assert len(again.measurements) == kept + 1


def test_a_garbled_tail_is_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, "timed")
    with path.open("ab") as file:
        file.write(b"\0\0\0\0\n\0\0")
    assert read(path).torn
    RunLog.resume(path).close()
    assert not read(path).torn


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "timed", "timed")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{oops\n" + lines[2])
    for attempt in (read, RunLog.resume):
        with pytest.raises(ResultsError, match="line 2: not a JSON event"):
            attempt(path)
    assert path.read_bytes() == lines[0] + b"{oops\n" + lines[2], "nothing is thrown away"


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run-x.jsonl"
    path.write_text('{"kind": "note"}\n')
    with pytest.raises(ResultsError, match="no start line"):
        read(path)
    path.write_text('{"kind": "start", "version": 99, "run_id": "x", "request": {}}\n')
    with pytest.raises(ResultsError, match="log version 99"):
        read(path)
    with pytest.raises(ResultsError, match="cannot be read"):
        read(tmp_path / "absent.jsonl")


def test_only_one_process_writes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from autofuse.results.log import RunLog\n"
        "log = RunLog.create(Path(sys.argv[1]), {}, 'r1'); print('mine', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        path = log_path(tmp_path, "r1")
        with pytest.raises(ResultsError, match="being written by another process"):
            RunLog.resume(path)
        assert read(path).run_id == "r1", "reading is free"
        holder.kill()
        holder.wait()
    RunLog.resume(path).close()


def test_two_writers_in_one_process_are_refused_too(tmp_path: Path) -> None:
    with RunLog.create(tmp_path, {}, "r1") as log, pytest.raises(ResultsError, match="another process"):
        RunLog.resume(log.path)
    with pytest.raises(ResultsError, match="exists already"):
        RunLog.create(tmp_path, {}, "r1")


def test_a_kill_loses_at_most_what_was_not_flushed(tmp_path: Path) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path; from autofuse.results.log import RunLog\n"
        "from tests.results.samples import measurement\n"
        "log = RunLog.create(Path(sys.argv[1]), {}, 'r1')\n"
        "log.record(measurement(0)); log.record(measurement(1)); log.flush()\n"
        "log.record(measurement(2)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    with RunLog.resume(log_path(tmp_path, "r1")) as log:
        assert {measurement(0).key, measurement(1).key} <= log.state.keys


def test_the_target_counts(tmp_path: Path) -> None:
    with RunLog.create(tmp_path, {}, "r1") as log:
        log.record(measurement(0))
        log.record(replace(measurement(1), target="a100"))
        assert set(log.state.measured("h200")) == {measurement(0).key}


def test_resumable_is_the_newest_unfinished_log_of_the_request(tmp_path: Path) -> None:
    nothing = (None, "no interrupted run of this request")
    assert resumable(tmp_path / "absent", REQUEST, HERE) == nothing
    old, new = written(tmp_path, "timed", run_id="20260101T000000-a"), written(tmp_path, run_id="20260102T000000-b")
    assert logs(tmp_path) == [new, old]
    assert resumable(tmp_path, REQUEST, HERE) == (new, "")
    with RunLog.resume(new) as log:
        log.end("done")
    assert resumable(tmp_path, REQUEST, HERE) == (old, "")
    assert resumable(tmp_path, {**REQUEST, "seed": 4}, HERE) == nothing
    with RunLog.resume(old) as log:
        log.end("interrupted")
    assert resumable(tmp_path, REQUEST, HERE) == (old, "")


@pytest.mark.parametrize("name", sorted(set(HERE) - {"python"}))
def test_a_log_of_another_environment_is_not_resumable(tmp_path: Path, name: str) -> None:
    written(tmp_path, "timed", run_id="a")
    path, why = resumable(tmp_path, REQUEST, {**HERE, name: "other"})
    assert (path, why) == (None, f"run a was made with {name} {HERE[name]}, now other")
    with RunLog.create(tmp_path, REQUEST, "b", {**HERE, name: "other"}):
        pass
    assert resumable(tmp_path, REQUEST, {**HERE, name: "other"})[0] == log_path(tmp_path, "b")


def test_what_differs_is_named() -> None:
    assert differences(HERE, {**HERE, "python": "3.13.0"}) == ""
    assert differences(HERE, {**HERE, "torch": "2.10.0", "driver": "580.2"}) == (
        "torch 2.9.0, now 2.10.0, driver 570.1, now 580.2"
    )
    without = {name: value for name, value in HERE.items() if name != "device"}
    assert differences(HERE, without) == "device H200, now unknown"
    assert "does not name" in differences({}, HERE), "a log of before environments were written"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_said_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ResultsError, match="cannot be written"):
        RunLog.create(tmp_path)


def test_a_folder_that_is_a_file_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot be written.*another --results"):
        RunLog.create(tmp_path / "file")
