"""Plans as one file to carry: a zip of JSON with a manifest of hashes. Import checks everything before it writes.

    manifest.json        {"format": 1, "autofuse": "0.1.0", "plans": {"<id>": "<sha256 of its file>"}}
    plans/<id>.json      one plan each

A signature, once there is one, is a third kind of member over the bytes of manifest.json (which pins every plan by its
hash): `export_plans` would add it and `read_archive` check it, each in one place (marked below).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from autofuse.errors import PlanError
from autofuse.plans import strict
from autofuse.plans.plan import Plan
from autofuse.plans.store import PlanStore
from autofuse.version import __version__

FORMAT = 1
MANIFEST = "manifest.json"
MAX_PLANS = 10_000
MAX_TOTAL_BYTES = 256 << 20
_SHA = re.compile(r"[0-9a-f]{64}\Z")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of every member: the same plans make the same archive, byte for byte."""


def export_plans(plans: Iterable[Plan], path: Path) -> int:
    """Writes the archive whole or not at all; how many plans. Raises PlanError when the file cannot be written.

    A symlink stays, and what it leads to is written. Of what exists only a regular file is replaced."""
    bodies = {plan.plan_id: plan.to_json(indent=1).encode() for plan in sorted(plans, key=lambda p: p.plan_id)}
    hashes = {plan_id: hashlib.sha256(body).hexdigest() for plan_id, body in bodies.items()}
    manifest = json.dumps({"format": FORMAT, "autofuse": __version__, "plans": hashes}, indent=1, sort_keys=True)
    members = {MANIFEST: manifest.encode()}  # a signature of these bytes would be a member of its own
    members |= {_member(plan_id): body for plan_id, body in bodies.items()}
    try:
        path = Path(path).resolve()
        # Replacing it would take a device's name away, or (a symlink still) that of a circle.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise PlanError(f"{path}: cannot be written (it is there and is no regular file)")
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except (OSError, RuntimeError) as error:  # RuntimeError: symlinks in a circle
        raise PlanError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, body in members.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED)
        Path(draft).replace(path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        Path(draft).unlink(missing_ok=True)
    return len(bodies)


def import_plans(path: Path, store: PlanStore) -> tuple[int, int]:
    """(plans in the archive, plans kept: the store keeps its own where that is better). All or nothing."""
    plans = read_archive(path)
    return len(plans), store.put_all(plans)


def read_archive(path: Path) -> tuple[Plan, ...]:
    """The plans, all validated. Raises PlanError, naming the member, when anything at all is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _plans(archive, Path(path))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        # RuntimeError: an encrypted member. NotImplementedError: a compression that zipfile does not know.
        raise PlanError(f"{path}: not a whole plan archive ({error})") from None


def _plans(archive: zipfile.ZipFile, path: Path) -> tuple[Plan, ...]:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(infos) > MAX_PLANS + 1 or sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
        raise PlanError(f"{path}: more than {MAX_PLANS} plans or {MAX_TOTAL_BYTES >> 20} MiB")
    if MANIFEST not in names:
        raise PlanError(f"{path}: no {MANIFEST}: not a plan archive")
    manifest = _read(
        archive, MANIFEST, path
    )  # a signature would be checked here, over these bytes, before parsing them
    hashes = _manifest(manifest, f"{path}:{MANIFEST}")
    expected = {MANIFEST, *(_member(plan_id) for plan_id in hashes)}
    if len(names) != len(set(names)) or set(names) != expected:
        stray = sorted(set(names) ^ expected) or ["a member twice"]
        raise PlanError(f"{path}: members and manifest differ: {stray[0][:80]!r}")
    found: list[Plan] = []
    for plan_id, digest in hashes.items():
        body = _read(archive, _member(plan_id), path)
        if hashlib.sha256(body).hexdigest() != digest:
            raise PlanError(f"{path}:{_member(plan_id)}: the hash is not the manifest's")
        plan = Plan.from_json(body, f"{path}:{_member(plan_id)}")
        if plan.plan_id != plan_id:
            raise PlanError(f"{path}:{_member(plan_id)}: holds plan {plan.plan_id}")
        found.append(plan)
    return tuple(found)


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    # Sizes in a zip's directory may lie: read one byte more than is allowed, never all.
    with archive.open(name) as file:
        body = file.read(strict.MAX_BYTES + 1)
    if len(body) > strict.MAX_BYTES:
        raise PlanError(f"{path}:{name}: more than {strict.MAX_BYTES} bytes")
    return body


def _manifest(body: bytes, what: str) -> dict[str, str]:
    found = strict.record(
        strict.parse(body, what),
        what,
        {
            "format": lambda v, at: strict.integer(v, at, FORMAT, FORMAT),
            "autofuse": lambda v, at: strict.text(v, at, 100),
            "plans": lambda v, at: strict.mapping(v, at, _sha, strict.digest),
        },
    )
    return found["plans"]


def _sha(value: object, where: str) -> str:
    if not isinstance(value, str) or not _SHA.match(value):
        raise PlanError(f"{where}: not a sha256")
    return value


def _member(plan_id: str) -> str:
    return f"plans/{plan_id}.json"
