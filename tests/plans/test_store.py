"""The store under many writers, kills, and files that are broken in every way."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autofuse.errors import StoreError
from autofuse.plans import store as store_module
from autofuse.plans.lookup import Lookup, Miss, find
from autofuse.plans.store import PlanStore
from tests.plans.plan_samples import ENVIRONMENT, KEY, plan

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_keeps_the_better_plan_of_a_key(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    assert store.put(plan(total_us=5.0))
    assert not store.put(plan(total_us=6.0))
    assert store.put(plan(total_us=4.0))
    assert store.put(plan(total_us=8.0, timing="measured"))
    assert not store.put(plan(total_us=1.0))
    (kept,) = store.list()
    assert (kept.timing, kept.total_us) == ("measured", 8.0)


def test_a_first_look_at_a_closed_store_leaves_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PlanStore(tmp_path)
    writer.put(plan())
    writer.close()
    store = PlanStore(tmp_path)
    monkeypatch.setattr(store, "_read", lambda *_: pytest.fail("the write-ahead log was opened"))
    assert store.get(KEY, "h200", ENVIRONMENT) == plan()
    assert [path.name for path in tmp_path.iterdir()] == ["plans.sqlite"]


def test_a_first_look_sees_what_an_open_writer_has_written(tmp_path: Path) -> None:
    PlanStore(tmp_path).put(plan())
    writer = PlanStore(tmp_path)
    better = plan(total_us=1.0)
    writer.put(better)
    assert (tmp_path / "plans.sqlite-wal").exists()
    assert PlanStore(tmp_path).get(KEY, "h200", ENVIRONMENT) == better


@pytest.mark.parametrize("torn", ["{}", "", None])
def test_a_first_look_that_was_disturbed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str | None
) -> None:
    writer = PlanStore(tmp_path)
    writer.put(plan())
    writer.close()
    store = PlanStore(tmp_path)
    if torn is not None:
        monkeypatch.setattr(store, "_glimpse", lambda _key: torn)
    else:
        states = iter([(1, 1, 1), (1, 2, 1)])
        monkeypatch.setattr(store, "_still", lambda: next(states))
    looks: list[str] = []
    read = store._read
    monkeypatch.setattr(store, "_read", lambda *given: (looks.append(given[0]), read(*given))[1])
    assert store.get(KEY, "h200", ENVIRONMENT) == plan()
    assert len(looks) == 1


def test_list_show_remove_by_prefix(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "not" / "there" / "yet")
    assert store.list() == []
    assert not store.folder.exists()
    one, two = plan(), plan(target="h100")
    store.put_all((one, two))
    assert {p.plan_id for p in store.list()} == {one.plan_id, two.plan_id}
    assert store.show(one.plan_id[:6]) == one
    for wrong in ("", "zz", "%", "_"):
        with pytest.raises(StoreError, match="not a plan id"):
            store.show(wrong)
    with pytest.raises(StoreError, match="no plan 00000000"):
        store.remove("00000000")
    assert store.remove(one.plan_id[:6]) == one.plan_id
    assert store.list() == [two]


def test_ambiguous_prefix(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    first: dict[str, str] = {}
    for i in range(17):  # 17 ids: two of them share a first letter
        made = plan(target=f"t{i}")
        store.put(made)
        if made.plan_id[0] in first:
            with pytest.raises(StoreError, match="ambiguous"):
                store.remove(made.plan_id[0])
            assert len(store.list()) == i + 1
            return
        first[made.plan_id[0]] = made.plan_id
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("target", "environment", "kind", "reason"),
    [
        ("h100", ENVIRONMENT, "target", "plan is for h200, not for h100"),
        ("h200", {**ENVIRONMENT, "triton": "3.9.1"}, "environment", "made with triton 3.6, here 3.9"),
        (
            "h200",
            {**ENVIRONMENT, "numerics": "strict"},
            "environment",
            "made with numerics fp32-registers, here strict",
        ),
    ],
)
def test_misses_say_why(tmp_path: Path, target: str, environment: dict[str, str], kind: str, reason: str) -> None:
    store = PlanStore(tmp_path)
    store.put(plan())
    assert find(store, KEY, target, environment) == Miss(kind, reason)


def test_hit_and_absent(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    found = find(store, KEY, "h200", ENVIRONMENT)
    assert isinstance(found, Miss)
    assert found.kind == "absent"
    store.put(plan())
    assert (
        find(store, KEY, "h200", {**ENVIRONMENT, "torch": "2.13.1", "driver": "999"}) == plan()
    )  # patch level, driver


def test_lookup_sees_a_plan_that_comes_later_and_stays_warm(tmp_path: Path) -> None:
    lookup = Lookup(PlanStore(tmp_path), ENVIRONMENT)
    assert isinstance(lookup.find(KEY, "h200"), Miss)
    PlanStore(tmp_path).put(plan())
    found = lookup.find(KEY, "h200")
    assert found == plan()
    assert lookup.find(KEY, "h200") is found
    start = time.perf_counter()
    for _ in range(10_000):
        lookup.find(KEY, "h200")
    assert (time.perf_counter() - start) / 10_000 < 20e-6  # 0.3 us here; the goal of 2 us is the experiment's


WRITER = """
import sys
from pathlib import Path
from tests.plans.plan_samples import plan
from autofuse.plans.store import PlanStore
store = PlanStore(Path(sys.argv[1]))
for i in range(40):
    store.put(plan(target=f"own{sys.argv[2]}x{i}"))
    store.put(plan(target="shared", total_us=float(1000 - 10 * i - int(sys.argv[2]))))
    assert store.list()
"""


@pytest.mark.timeout(120)
def test_many_processes_write_and_read_one_store(tmp_path: Path) -> None:
    writers = [run_python(WRITER, str(tmp_path), str(i)) for i in range(5)]
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    found = PlanStore(tmp_path).list()
    assert len(found) == 5 * 40 + 1
    (shared,) = [p for p in found if p.target == "shared"]
    assert shared.total_us == 1000 - 390 - 4  # the best of all


ENDLESS = """
import sys
from pathlib import Path
from tests.plans.plan_samples import plan
from autofuse.plans.store import PlanStore
store = PlanStore(Path(sys.argv[1]))
i = 0
while True:
    store.put(plan(target=f"t{i}", evidence={"pad": "x" * 9000}))
    print(i, flush=True)
    i += 1
"""


@pytest.mark.timeout(120)
def test_kill_while_writing_loses_nothing_committed(tmp_path: Path) -> None:
    for round_ in range(4):
        folder = tmp_path / str(round_)
        writer = run_python(ENDLESS, str(folder))
        assert writer.stdout is not None
        for _ in range(5 + 3 * round_):
            last = int(writer.stdout.readline())
        time.sleep(0.003 * round_)
        writer.send_signal(signal.SIGKILL)
        with writer:
            rest = writer.stdout.read().split()
        last = max([last, *(int(n) for n in rest[:-1])])
        store = PlanStore(folder)
        there = {p.target for p in store.list()}
        assert not store.faults()
        assert there >= {f"t{i}" for i in range(last + 1)}
        assert store.put(plan())


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for j in range(10):
                store.put(plan(target=f"t{i}x{j}"))
                store.list()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(store.list()) == 60


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.put(plan())
    child = os.fork()
    if child == 0:
        os._exit(0 if store.put(plan(target="child")) and len(store.list()) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.put(plan(target="parent"))
    assert len(store.list()) == 3


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to look at" * 40, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_corrupt_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plans.sqlite").write_bytes(content)
    store = PlanStore(tmp_path)
    for action in (store.list, lambda: store.put(plan())):
        with pytest.raises(StoreError, match=r"plans\.sqlite is corrupt.*move it away"):
            action()
    assert (tmp_path / "plans.sqlite").read_bytes() == content  # nothing lost
    found = find(store, KEY, "h200", ENVIRONMENT)
    assert isinstance(found, Miss)
    assert found.kind == "store"


def test_truncated_file(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.put_all(plan(target=f"t{i}") for i in range(50))
    store.close()
    path = tmp_path / "plans.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StoreError, match="corrupt"):
        PlanStore(tmp_path).list()


def test_newer_schema_and_foreign_database(tmp_path: Path) -> None:
    PlanStore(tmp_path).put(plan())
    with sqlite3.connect(tmp_path / "plans.sqlite") as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match=r"newer autofuse .schema 7.: upgrade"):
        PlanStore(tmp_path).list()
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / "plans.sqlite") as connection:
        connection.execute("CREATE TABLE mine (x)")
    for action in (PlanStore(other).list, lambda: PlanStore(other).put(plan())):
        with pytest.raises(StoreError, match="another program"):
            action()


def test_malformed_plan_in_the_store_is_a_named_miss_and_gives_way(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.put(plan(timing="measured"))
    with sqlite3.connect(tmp_path / "plans.sqlite") as connection:
        connection.execute("UPDATE plans SET body = replace(body, 'h200', 'h300')")
    found = find(store, KEY, "h200", ENVIRONMENT)
    assert isinstance(found, Miss)
    assert found.kind == "malformed"
    assert "not the hash" in found.reason
    assert store.list() == []
    assert len(store.faults()) == 1
    assert store.put(plan())
    assert store.list() == [plan()]


def test_a_plan_under_anothers_key_is_refused(tmp_path: Path) -> None:
    """The full key is compared, not only the row's."""
    store = PlanStore(tmp_path)
    store.put(plan())
    with sqlite3.connect(tmp_path / "plans.sqlite") as connection:
        connection.execute("UPDATE plans SET graph_key = ?", ("cd" * 32,))
    found = find(store, "cd" * 32, "h200", ENVIRONMENT)
    assert isinstance(found, Miss)
    assert found.kind == "malformed"
    assert "not the plan of its key" in found.reason


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        for action in (PlanStore(folder).list, lambda folder=folder: PlanStore(folder).put(plan())):
            with pytest.raises(StoreError, match="cannot be opened"):
                action()


def test_read_only_store_reads_and_refuses_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the answer of access() is what is replaced; the connection is really read-only."""
    writer = PlanStore(tmp_path)
    writer.put(plan())
    writer.close()
    monkeypatch.setattr(store_module.os, "access", lambda *_: False)
    store = PlanStore(tmp_path)
    assert store.list() == [plan()]
    assert find(store, KEY, "h200", ENVIRONMENT) == plan()
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store._local.held["read"].execute("DELETE FROM plans")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StoreError, match="read-only: point AUTOFUSE_STORE"):
        store.put(plan(total_us=0.1))
    with pytest.raises(StoreError, match="read-only"):
        store.remove(plan().plan_id)
    assert store.list() == [plan()]


def test_full_disk_is_said(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.put(plan())
    connection = store._local.held["write"]  # pyright: ignore[reportPrivateUsage]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="no space left"):
        store.put_all(plan(target=f"t{i}", evidence={"pad": "x" * 9000}) for i in range(20))
    assert PlanStore(tmp_path).list() == [plan()]  # all or nothing


def test_a_rotten_page_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.put_all(plan(target=f"t{i:03}") for i in range(50))
    store.close()
    path = tmp_path / "plans.sqlite"
    whole = path.read_bytes()
    seen = 0
    for page in range(1, len(whole) // 4096):
        path.write_bytes(whole[: page * 4096] + b"\xff" * 64 + whole[page * 4096 + 64 :])
        rotten = path.read_bytes()
        try:
            PlanStore(tmp_path).list()
        except StoreError:
            seen += 1
            with pytest.raises(StoreError, match="is corrupt"):
                PlanStore(tmp_path).put(plan(target="t999"))
            assert path.read_bytes() == rotten
        for more in ("-wal", "-shm"):
            (tmp_path / f"plans.sqlite{more}").unlink(missing_ok=True)
    assert seen
