"""The plan store: one SQLite file in WAL mode, shared by many processes. Keeps the better plan of each key.

A key is (graph key, target, compared environment), compared in full. Plans come out validated or not at all.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from autofuse.errors import PlanError, StoreError
from autofuse.plans.environment import compared
from autofuse.plans.plan import Plan

SCHEMA = 1
APPLICATION = 0x61667573
"""SQLite's application_id ("afus"): tells our file from another program's."""
FILE = "plans.sqlite"
BUSY_SECONDS = 30.0

_CREATE = """
CREATE TABLE IF NOT EXISTS plans (
    graph_key TEXT NOT NULL, target TEXT NOT NULL, environment TEXT NOT NULL,
    plan_id TEXT NOT NULL, workload TEXT NOT NULL, timing TEXT NOT NULL, created TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (graph_key, target, environment)) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS plans_by_id ON plans (plan_id)"

_BODY = "SELECT body FROM plans WHERE graph_key = ? AND target = ? AND environment = ?"

Key = tuple[str, str, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What is known of a stored plan without reading it."""

    graph_key: str
    target: str
    environment: Mapping[str, str]
    plan_id: str


def environment_text(environment: Mapping[str, str]) -> str:
    return json.dumps(compared(environment), sort_keys=True, separators=(",", ":"))


class PlanStore:
    """Safe for threads and for processes. Nothing is created before the first write.

    Raises StoreError: unreadable, corrupt, foreign or newer file; read-only when writing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        self._local = threading.local()
        self._glimpsed = False

    # --- reading ---

    def get(self, graph_key: str, target: str, environment: Mapping[str, str]) -> Plan | None:
        """The plan of exactly this key. Raises PlanError when the stored one is malformed."""
        key = (graph_key, target, environment_text(environment))
        glimpsed = self._glimpse(key)
        if glimpsed is not None:
            try:
                return self._checked(glimpsed, key)
            except PlanError:  # perhaps the file was changed under our eyes: look properly
                pass
        rows = self._read(_BODY, key)
        return self._checked(rows[0][0], key) if rows else None

    def _checked(self, body: str, key: Key) -> Plan:
        plan = Plan.from_json(body, f"plan in {self.path}")
        if _key(plan) != key:
            raise PlanError(
                f"plan {plan.plan_id} in {self.path} is not the plan of its key; remove it: autofuse plans remove"
            )
        return plan

    def _glimpse(self, key: Key) -> str | None:
        """A body by the quickest way, which a store's first look takes. None: look properly.

        While nobody has the store open its one file holds still, and reading it so saves what opening the write-ahead
        log costs (0.25 ms of 0.5). That it did hold still is seen afterwards, and a plan's hash vouches for it too.
        """
        if self._glimpsed:
            return None
        self._glimpsed = True
        try:
            before = self._still()
            if before is None:
                return None
            connection = self._connect("ro&immutable=1")
            try:
                row = connection.execute(_BODY, key).fetchone() if self._is_current(connection) else None
            finally:
                connection.close()
            return row[0] if row is not None and self._still() == before else None
        except (sqlite3.Error, OSError, StoreError):
            return None

    def _still(self) -> tuple[int, int, int] | None:
        """What tells one state of the file from another; None while a process has it open, or died doing so."""
        path = str(self.path)
        if os.path.exists(path + "-wal") or os.path.exists(path + "-journal"):  # noqa: PTH110  (half of Path's time)
            return None
        found = os.stat(path)  # noqa: PTH116
        return found.st_ino, found.st_mtime_ns, found.st_size

    def neighbours(self, graph_key: str) -> list[StoredKey]:
        """Keys of all plans for this graph, whatever their target and environment."""
        rows = self._read("SELECT graph_key, target, environment, plan_id FROM plans WHERE graph_key = ?", (graph_key,))
        return [StoredKey(k, t, _environment(e), i) for k, t, e, i in rows]

    def list(self) -> list[Plan]:
        """All plans, by workload and age. Malformed ones are left out (`faults` has them)."""
        return [found for found in self._all() if isinstance(found, Plan)]

    def faults(self) -> list[PlanError]:
        """One error for each stored plan that cannot be read."""
        return [found for found in self._all() if isinstance(found, PlanError)]

    def show(self, prefix: str) -> Plan:
        """The one plan whose id starts so. Raises StoreError when there is none or more than one."""
        return Plan.from_json(self._one(prefix)[1], f"plan in {self.path}")

    def full_id(self, prefix: str) -> str:
        """Of the one plan whose id starts so, malformed or not. Raises StoreError as `show` does."""
        return self._one(prefix)[0]

    def _all(self) -> list[Plan | PlanError]:
        return [_parsed(body, plan_id) for plan_id, body in self._read(
            "SELECT plan_id, body FROM plans ORDER BY workload, created, plan_id", ())]  # fmt: skip

    def _one(self, prefix: str) -> tuple[str, str]:
        if not prefix or not all(c in "0123456789abcdef" for c in prefix):
            raise StoreError(f"{prefix!r} is not a plan id; `autofuse plans list` shows them")
        rows = self._read(
            "SELECT plan_id, body FROM plans WHERE substr(plan_id, 1, ?) = ? LIMIT 9", (len(prefix), prefix)
        )
        if not rows:
            raise StoreError(f"no plan {prefix} in {self.path}; `autofuse plans list` shows what there is")
        if len({plan_id for plan_id, _ in rows}) > 1:
            raise StoreError(f"plan id {prefix} is ambiguous: {', '.join(sorted(plan_id for plan_id, _ in rows))}")
        return rows[0]

    # --- writing ---

    def put(self, plan: Plan, *, anyway: bool = False) -> bool:
        """Keeps the plan unless the stored one of its key is faster. Whether it is the kept one now. anyway: it was
        made to another measure than time, and replaces the stored one."""
        return self.put_all((plan,), anyway=anyway) == 1

    def put_all(self, plans: Iterable[Plan], *, anyway: bool = False) -> int:
        """All or none; how many were kept."""
        given = tuple(plans)

        def work(connection: sqlite3.Connection) -> int:
            return sum(_upsert(connection, plan, anyway) for plan in given)

        return self._write(work)

    def remove(self, prefix: str) -> str:
        """Removes the one plan whose id starts so; its full id."""
        plan_id, _ = self._one(prefix)
        self._write(lambda connection: connection.execute("DELETE FROM plans WHERE plan_id = ?", (plan_id,)))
        return plan_id

    def close(self) -> None:
        """Closes this thread's connection."""
        held = self._held()
        self._local.__dict__.clear()
        for connection in held.values():
            connection.close()

    # --- connections: one a thread and kind, never carried over a fork ---

    def _held(self) -> dict[str, sqlite3.Connection]:
        if getattr(self._local, "pid", None) != os.getpid():
            # A connection of the parent must not even be closed here: that would drop the parent's locks.
            self._local.inherited = getattr(self._local, "held", None)
            self._local.pid, self._local.held = os.getpid(), {}
        return self._local.held

    def _read(self, query: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            connection = self._reader()
            return [] if connection is None else connection.execute(query, arguments).fetchall()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise self._error(error) from error

    def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            connection = self._writer()
            connection.execute("BEGIN IMMEDIATE")
            try:
                found = work(connection)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            return found
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise self._error(error) from error

    def _reader(self) -> sqlite3.Connection | None:
        held = self._held()
        found = held.get("write") or held.get("read")
        if found is not None:
            return found
        if not self.path.exists():
            there = next(p for p in (self.folder, *self.folder.absolute().parents) if p.exists())
            if not there.is_dir():
                raise NotADirectoryError(f"{there} is not a folder")
            return None
        held["read"] = self._read_write() if self._writable() else self._read_only()
        return held["read"]

    def _writer(self) -> sqlite3.Connection:
        held = self._held()
        if "write" in held:
            return held["write"]
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._writable():
            raise StoreError(
                f"the plan store {self.path} is read-only: point AUTOFUSE_STORE or --store at another folder"
            )
        connection = self._connect("rwc")
        try:
            self._check_schema(connection)
            # A page that rotted may be none that a write needs: it would go well, and leave a store nobody can list.
            state = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if state != "ok":
                raise sqlite3.DatabaseError(state.splitlines()[-1])
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        held["write"] = connection
        return connection

    def _writable(self) -> bool:
        return os.access(self.folder, os.W_OK) and (not self.path.exists() or os.access(self.path, os.W_OK))

    def _read_write(self) -> sqlite3.Connection:
        """For reading a writable file: WAL needs to write its index. Does not set the mode up, which costs 0.2 ms."""
        connection = self._connect("rw")
        try:
            self._check_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _read_only(self) -> sqlite3.Connection:
        # WAL wants to write its index file even to read; where it cannot, `immutable` reads the main file alone.
        for mode in ("ro", "ro&immutable=1"):
            connection = self._connect(mode)
            try:
                self._check_schema(connection, create=False)
                return connection
            except sqlite3.OperationalError:
                connection.close()
                if "immutable" in mode:
                    raise
        raise AssertionError("unreachable")

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _check_schema(self, connection: sqlite3.Connection, create: bool = True) -> None:
        if self._is_current(connection):
            return
        if not create:
            connection.execute("SELECT plan_id FROM plans LIMIT 1")  # raises what is wrong with it
            return
        connection.execute("BEGIN IMMEDIATE")  # two processes may find it empty: the second finds the tables made
        try:
            if not self._is_current(connection):
                connection.execute(_CREATE)
                connection.execute(_INDEX)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _is_current(self, connection: sqlite3.Connection) -> bool:
        """False when it is empty, or may be. Raises StoreError when it is another program's or of a newer schema."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application == APPLICATION and version == SCHEMA:
            return True
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == APPLICATION and version > SCHEMA:
            raise StoreError(
                f"the plan store {self.path} was written by a newer autofuse (schema {version}): upgrade autofuse, "
                "or point AUTOFUSE_STORE at another folder"
            )
        if tables and not connection.in_transaction:
            return False  # perhaps another process made it between our looks: look again under the lock
        if tables:
            raise StoreError(f"{self.path} is a database of another program: point AUTOFUSE_STORE at another folder")
        return False

    def _error(self, error: Exception) -> StoreError:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) and "readonly" in text:
            return StoreError(
                f"the plan store {self.path} is read-only: point AUTOFUSE_STORE or --store at another folder"
            )
        if isinstance(error, sqlite3.OperationalError) and "locked" in text:
            return StoreError(
                f"the plan store {self.path} was locked by another process for {BUSY_SECONDS:.0f} s; try again"
            )
        if isinstance(error, sqlite3.OperationalError) and "full" in text:
            return StoreError(f"no space left for the plan store {self.path}; nothing was changed")
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            return StoreError(
                f"the plan store {self.path} is corrupt ({text}): move it away, then import or tune again"
            )
        return StoreError(
            f"the plan store {self.path} cannot be opened ({text}): see to the folder, or set AUTOFUSE_STORE"
        )


def _use_wal(connection: sqlite3.Connection) -> None:
    """The change of mode needs the file for itself and does not wait for it as other statements do."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _upsert(connection: sqlite3.Connection, plan: Plan, anyway: bool) -> bool:
    key = _key(plan)
    row = connection.execute(_BODY, key).fetchone()
    kept = _parsed(row[0], "") if row else None
    if isinstance(kept, Plan) and kept.rank < plan.rank and not anyway:
        return False
    # A malformed one is worth nothing: it gives way.
    connection.execute(
        "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, plan.plan_id, plan.workload, plan.timing, plan.created, plan.to_json()),
    )
    return True


def _key(plan: Plan) -> Key:
    return plan.graph_key, plan.target, environment_text(plan.environment)


def _parsed(body: str, plan_id: str) -> Plan | PlanError:
    try:
        return Plan.from_json(body, f"plan {plan_id}")
    except PlanError as error:
        return error


def _environment(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
