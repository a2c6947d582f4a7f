"""The run log: every event of a run as one JSON line, appended and fsync'd in batches. It survives a kill at any byte
(a torn last line is dropped), and it is the resume file. One writer at a time; anyone may read.

Lines are {"kind": KIND, ...}. The first is "start" (version, run_id, request). Then "candidate", "samples", "run" hold
the records of records.py; "plan" and "note" hold what the search driver likes; "end" says how the run ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from autofuse.errors import ResultsError
from autofuse.results.records import Key, Measurement, Run, Samples, from_row, now, to_json
from autofuse.results.schema import canonical

VERSION = 1
SUFFIX = ".jsonl"
FLUSH_EVENTS = 200
FLUSH_SECONDS = 1.0
"""What a power cut may cost. An fsync is about 1 ms on a local disk, several times a compile's log line otherwise."""

Event = dict[str, Any]


def new_run_id() -> str:
    """Sorts by time; unique among runs that start in the same second."""
    return f"{now():%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@dataclass
class State:
    """What a log says so far. measurements: the last record of each key, in order of first appearance."""

    path: Path
    run_id: str = ""
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """plans.environment, of the process that began the run; empty where a log does not say."""
    measurements: dict[tuple[str, Key], Measurement] = field(default_factory=dict[tuple[str, Key], Measurement])
    samples: list[Samples] = field(default_factory=list[Samples])
    runs: list[Run] = field(default_factory=list[Run])
    plans: list[Event] = field(default_factory=list[Event])
    ended: str = ""
    torn: bool = False

    def measured(self, target: str) -> dict[Key, Measurement]:
        """What need not be done again on this target."""
        return {key: found for (where, key), found in self.measurements.items() if where == target and found.settled}

    @property
    def keys(self) -> set[Key]:
        """Keys of all that is settled, on the target of this run."""
        return {key for (_, key), found in self.measurements.items() if found.settled}

    def add(self, event: Event) -> None:
        match event["kind"]:
            case "start":
                if event.get("version") != VERSION:
                    found = event.get("version")
                    raise ResultsError(f"{self.path}: log version {found!r}, this autofuse reads {VERSION}")
                self.run_id, self.request = event["run_id"], event["request"]
                self.environment = dict(event.get("environment") or {})
            case "candidate":
                found = from_row(Measurement, event)
                self.measurements[found.target, found.key] = found
            case "samples":
                self.samples.append(from_row(Samples, event))
            case "run":
                run = from_row(Run, event)
                self.runs = [
                    old for old in self.runs if (old.workload, old.shape_json) != (run.workload, run.shape_json)
                ]
                self.runs.append(run)
            case "plan":
                self.plans.append(event)
            case "end":
                self.ended = str(event.get("status", "done"))
            case "resume":
                self.ended = ""
            case _:
                pass  # a note, or a kind that a later version writes


class RunLog:
    """The writing end. Use `create` for a new run, `resume` for one that was broken off; close it, or use `with`.

    Appending is safe from several threads. Raises ResultsError where the folder cannot be written, and where another
    process is writing this log.
    """

    def __init__(self, path: Path, file: BinaryIO, state: State) -> None:
        self.path = path
        self.state = state
        self._file = file
        self._lock = threading.Lock()
        self._pending = 0
        self._flushed = time.monotonic()

    @property
    def run_id(self) -> str:
        return self.state.run_id

    @staticmethod
    def create(
        folder: Path,
        request: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RunLog:
        run_id = run_id or new_run_id()
        path = log_path(folder, run_id)
        if path.exists():
            raise ResultsError(f"{path} exists already: resume it, or let a run choose its own name")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except OSError as error:
            why = f"results folder {folder} cannot be written ({error.strerror}): pass another --results"
            raise ResultsError(why) from error
        _own(file, path)
        log = RunLog(path, file, State(path, run_id))
        log.append("start", version=VERSION, run_id=run_id, request=dict(request or {}),
                   environment=dict(environment or {}), when=now().isoformat())  # fmt: skip
        log.flush()
        return log

    @staticmethod
    def resume(path: Path) -> RunLog:
        """Goes on with a log; `state` has what it holds. A torn last line is cut off."""
        try:
            file = path.open("r+b")
        except OSError as error:
            raise ResultsError(f"run log {path} cannot be opened for writing ({error.strerror})") from error
        _own(file, path)
        state = State(path)
        try:
            good = 0
            for event, end in _events(path, state):
                state.add(event)
                good = end
            _require_start(state)
            file.truncate(good)
            file.seek(good)
        except BaseException:
            file.close()
            raise
        log = RunLog(path, file, state)
        log.append("resume", when=now().isoformat())
        log.flush()
        return log

    def record(self, record: Measurement | Samples | Run) -> None:
        kind = {Measurement: "candidate", Samples: "samples", Run: "run"}[type(record)]
        self.append(kind, **to_json(record))

    def append(self, kind: str, /, **columns: Any) -> None:
        """One event. On disk when `flush` returns, at the latest FLUSH_SECONDS and one event later."""
        event: Event = {**columns, "kind": kind}
        line = (canonical(event) + "\n").encode()
        with self._lock:
            self.state.add(event)
            self._write(line)
            self._pending += 1
            if self._pending >= FLUSH_EVENTS or time.monotonic() - self._flushed >= FLUSH_SECONDS:
                self._sync()

    def flush(self) -> None:
        with self._lock:
            self._sync()

    def end(self, status: str) -> None:
        """The run is over (done, budget, interrupted, ...). A log that ended "done" or "budget" is not resumed."""
        self.append("end", status=status, when=now().isoformat())
        self.flush()

    def close(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._sync()
                self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line)
        except OSError as error:
            raise self._unwritable(error) from error

    def _sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        self._pending = 0
        self._flushed = time.monotonic()

    def _unwritable(self, error: OSError) -> ResultsError:
        return ResultsError(f"run log {self.path} cannot be written ({error.strerror}); what it has is kept")


def log_path(folder: Path, run_id: str) -> Path:
    return folder / f"run-{run_id}{SUFFIX}"


def logs(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob(f"run-*{SUFFIX}"), reverse=True) if folder.is_dir() else []


def read(path: Path) -> State:
    """All that a log holds; `torn` where the last line was not whole. Raises ResultsError, naming the line, on anything
    else that is not a log."""
    state = State(path)
    for event, _ in _events(path, state):
        state.add(event)
    _require_start(state)
    return state


UNCOMPARED = ("python", "platform")
"""Facts of an environment that change neither what is generated nor how long it runs."""


def resumable(
    folder: Path, request: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[Path | None, str]:  # fmt: skip
    """The newest log of this request that did not come to its end and was begun with these versions on this device; or
    why there is none: what differs in the newest of the others."""
    wanted, why = canonical(request), ""
    for path in logs(folder):
        state = State(path)
        for event, _ in _events(path, state):
            if event["kind"] in ("start", "end", "resume"):
                state.add(event)
        if not state.run_id or state.ended in ("done", "budget") or canonical(state.request) != wanted:
            continue
        differs = differences(state.environment, environment)
        if not differs:
            return path, ""
        why = why or f"run {state.run_id} was made with {differs}"
    return None, why or "no interrupted run of this request"


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What must agree for a measurement to hold, and does not: "torch 2.6.0, now 2.7.0"; "" where all does."""
    if not then:
        return "versions and a device that it does not name"
    names = [name for name in {**now, **then} if name not in UNCOMPARED and then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'unknown')}, now {now.get(name, 'unknown')}" for name in names)


def _require_start(state: State) -> None:
    if not state.run_id:
        raise ResultsError(f"{state.path} is not a run log: it has no start line")


def _own(file: BinaryIO, path: Path) -> None:
    """The lock goes with the open file, so it is gone however its holder ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        why = f"run log {path} is being written by another process: wait for it, or start without --resume"
        raise ResultsError(why) from error
    except OSError as error:
        file.close()
        why = f"run log {path} cannot be locked ({error.strerror}): put --results on a local disk"
        raise ResultsError(why) from error


def _events(path: Path, state: State) -> Iterator[tuple[Event, int]]:
    """Each event with the offset after its line. What follows the last whole line sets state.torn."""
    try:
        with path.open("rb") as file:
            end = 0
            broken: int | None = None
            for number, line in enumerate(file, 1):
                event = _parse(line)
                if broken is not None and event is not None:
                    raise ResultsError(
                        f"run log {path}, line {broken}: not a JSON event, but whole ones follow; "
                        "the file was changed by something else: remove that line"
                    )
                if event is None:
                    broken = broken or number
                    state.torn = True
                    continue
                end += len(line)
                yield event, end
    except OSError as error:
        raise ResultsError(f"run log {path} cannot be read ({error.strerror})") from error


def _parse(line: bytes) -> Event | None:
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    found = cast("Event", event)
    return found if isinstance(found.get("kind"), str) else None
