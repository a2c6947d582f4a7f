"""Plans to carry: whole, checked before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from autofuse.errors import PlanError
from autofuse.plans.archive import export_plans, import_plans, read_archive
from autofuse.plans.store import PlanStore
from tests.plans.plan_samples import plan


def test_round_trip_is_whole_and_reproducible(tmp_path: Path) -> None:
    plans = [plan(target=f"t{i}") for i in range(4)]
    assert export_plans(plans, tmp_path / "a.zip") == 4
    export_plans(reversed(plans), tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "b.zip"]  # no drafts left
    store = PlanStore(tmp_path / "store")
    assert import_plans(tmp_path / "a.zip", store) == (4, 4)
    assert {p.plan_id for p in store.list()} == {p.plan_id for p in plans}
    assert all(p in plans for p in store.list())


def test_import_keeps_the_better_plan(tmp_path: Path) -> None:
    export_plans([plan(total_us=5.0)], tmp_path / "a.zip")
    store = PlanStore(tmp_path / "store")
    store.put(plan(total_us=1.0))
    assert import_plans(tmp_path / "a.zip", store) == (1, 0)
    assert store.list()[0].total_us == 1.0


Members = dict[str, bytes]


def manifest(members: Members, plans: dict[str, bytes]) -> None:
    hashes = {plan_id: hashlib.sha256(body).hexdigest() for plan_id, body in plans.items()}
    members["manifest.json"] = json.dumps({"format": 1, "autofuse": "0.1.0", "plans": hashes}).encode()


def flipped(members: Members) -> None:
    name = next(n for n in members if n.startswith("plans/"))
    members[name] = members[name].replace(b"samples", b"simples")


def second_is_malformed(members: Members) -> None:
    members.clear()
    good = plan().to_json().encode()
    manifest(members, {plan().plan_id: good, "ffffffffffffffff": b"{}"})
    members |= {f"plans/{plan().plan_id}.json": good, "plans/ffffffffffffffff.json": b"{}"}


def misnamed(members: Members) -> None:
    members.clear()
    body = plan().to_json().encode()
    manifest(members, {"ffffffffffffffff": body})
    members["plans/ffffffffffffffff.json"] = body


def bomb(members: Members) -> None:
    members.clear()
    body = b" " * (5 << 20)
    manifest(members, {"ffffffffffffffff": body})
    members["plans/ffffffffffffffff.json"] = body


def path_trick(members: Members) -> None:
    members["manifest.json"] = json.dumps({"format": 1, "autofuse": "x", "plans": {"../../x": "0" * 64}}).encode()


BROKEN: list[tuple[Callable[[Members], object], str]] = [
    (flipped, "hash is not the manifest's"),
    (second_is_malformed, "plans/ffffffffffffffff.json"),
    (misnamed, "holds plan"),
    (bomb, "more than"),
    (path_trick, "not a hexadecimal digest"),
    (lambda m: m.update({"plans/../../evil.py": b"x"}), "members and manifest differ"),
    (lambda m: m.pop(next(n for n in m if n.startswith("plans/"))), "members and manifest differ"),
    (lambda m: m.pop("manifest.json"), "not a plan archive"),
    (lambda m: m.update({"manifest.json": b'{"format": 9, "autofuse": "x", "plans": {}}'}), "format"),
    (lambda m: m.update({"manifest.json": b"[" * 99999}), "nested"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN)
def test_nothing_is_written_when_anything_is_wrong(
    tmp_path: Path, damage: Callable[[Members], object], message: str
) -> None:
    path = tmp_path / "a.zip"
    export_plans([plan(), plan(target="h100")], path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    damage(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    store = PlanStore(tmp_path / "store")
    with pytest.raises(PlanError, match=message):
        import_plans(path, store)
    assert store.list() == []
    assert not store.folder.exists()


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    export_plans([plan()], path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        with pytest.raises(PlanError, match=r"a\.zip"):
            read_archive(path)
    damaged = bytearray(whole)
    damaged[200] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(PlanError, match=r"a\.zip"):
        read_archive(path)
    with pytest.raises(PlanError, match=r"none\.zip: cannot be read"):
        read_archive(tmp_path / "none.zip")
    with pytest.raises(PlanError, match="cannot be written"):
        export_plans([plan()], tmp_path / "no" / "folder.zip")


def test_what_is_there_and_no_regular_file_stays(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("d", "pipe"):
        with pytest.raises(PlanError, match="is no regular file"):
            export_plans([plan()], tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(PlanError, match="is no regular file"):
        export_plans([plan()], Path(os.devnull))
    (tmp_path / "link").symlink_to(tmp_path / "target.zip")
    for _ in range(2):  # to nothing, then to a file
        export_plans([plan()], tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert read_archive(tmp_path / "target.zip") == (plan(),)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(PlanError, match="cannot be written"):
        export_plans([plan()], tmp_path / "circle")
