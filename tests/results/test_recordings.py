"""Recorded times: which candidate a row stands for, and what becomes of files that are no recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autofuse.errors import ResultsError
from autofuse.results.recordings import Recordings, shipped
from autofuse.schedule.schedule import Role, Schedule

FAST = Schedule((("m", Role("grid", 16)), ("n", Role("whole"))), num_warps=8)
SLOW = Schedule((("m", Role("grid", 32)), ("n", Role("whole"))), num_warps=4)


def row(schedule: Schedule = FAST, time_us: float | None = 10.0, **changes: Any) -> dict[str, Any]:
    config = json.dumps(schedule.to_dict(), separators=(",", ":"))
    return {"target": "h200", "program_key": "p1", "config_json": config, "rewrites": "", "time_us": time_us} | changes


def recording(folder: Path, *rows: dict[str, Any], name: str = "some.parquet") -> Recordings:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / name)
    return Recordings(folder, "h200")


def test_the_fastest_first_and_only_of_the_target_and_the_program(tmp_path: Path) -> None:
    found = recording(
        tmp_path, row(SLOW, 20.0), row(FAST, 10.0), row(SLOW, 1.0, target="h100"), row(SLOW, 2.0, program_key="p2"),
        row(SLOW, None), row(SLOW, float("nan")), row(SLOW, 3.0, rewrites="online,moments"),
    )  # fmt: skip
    assert [(one.name, one.time_us) for one in found.of("p1")] == [
        ((("online", "moments"), SLOW), 3.0), (((), FAST), 10.0), (((), SLOW), 20.0),
    ]  # fmt: skip
    assert found.of("p3") == ()
    assert Recordings(tmp_path, "b200").of("p1") == ()
    assert Recordings(None, "h200").of("p1") == ()


def test_a_candidate_recorded_twice_has_the_median_and_both_sources(tmp_path: Path) -> None:
    recording(tmp_path, row(time_us=10.0))
    origin = {"run_id": "20260102T030405-1-ab", "when": "2026-01-02T03:04:05+00:00", "autofuse": "0.1.0"}
    found = recording(tmp_path, row(time_us=12.0, **origin), name="later.parquet")
    (one,) = found.of("p1")
    assert one.time_us == 11.0
    assert one.source == "later.parquet, run 20260102T030405-1-ab, 2026-01-02, autofuse 0.1.0; some.parquet"


def test_schedules_of_other_versions(tmp_path: Path) -> None:
    """A knob that is newer than the recording has its default; a knob that is not known is another candidate."""
    old = FAST.to_dict()
    del old["maxnreg"]
    new = SLOW.to_dict() | {"knob_of_tomorrow": 3}
    found = recording(tmp_path, row(config_json=json.dumps(old)), row(config_json=json.dumps(new)))
    assert [one.schedule for one in found.of("p1")] == [FAST]


def test_the_order_of_roles_tells_candidates_apart(tmp_path: Path) -> None:
    other = Schedule(tuple(reversed(FAST.roles)), num_warps=8)
    found = recording(tmp_path, row(FAST, 10.0), row(other, 5.0))
    assert [one.schedule for one in found.of("p1")] == [other, FAST]


def test_the_shipped_recordings_are_read() -> None:
    found = Recordings(shipped(), "h200")
    assert all(found.of(key) for key in found.rows)


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.write_bytes(path.read_bytes()[:-40]), ""),
    (lambda path: path.write_bytes(b""), ""),
    (lambda path: path.write_bytes(b"PAR1" + b"\xff" * 200 + b"PAR1"), ""),
    (lambda path: pq.write_table(pa.table({"target": ["h200"]}), path), "no column program_key, config_json"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(time_us=-1.0)]), path), "time_us -1.0"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(time_us=float("inf"))]), path), "time_us inf"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(program_key=None)]), path), "program_key None"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row() | {"time_us": "fast"}]), path), "fast"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(config_json="{")]), path), "is not JSON"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(config_json="[" * 99999)]), path), "is not JSON"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(config_json="[1]")]), path), "is not a schedule"),
    (lambda path: pq.write_table(pa.Table.from_pylist([row(config_json=None)]), path), "is not JSON"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_damaged_recording_is_named(tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    recording(tmp_path, row())
    damage(tmp_path / "some.parquet")
    with pytest.raises(ResultsError, match=rf"recording .*some\.parquet cannot be read.*{message}.*--recordings none"):
        Recordings(tmp_path, "h200").of("p1")
