"""`import autofuse` is cheap and brings neither torch nor triton; settings are read once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.errors import UsageError
from autofuse.settings import Settings, settings

ROOT = Path(__file__).resolve().parents[2]


def test_import_brings_no_torch() -> None:
    code = (
        "import sys, autofuse, autofuse.plans, autofuse.plans.store, autofuse.plans.lookup, autofuse.plans.archive\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
        "assert {'compile', 'tune', 'plans'} <= set(dir(autofuse))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_settings_from_the_environment(tmp_path: Path) -> None:
    found = Settings.read({"AUTOFUSE_STORE": str(tmp_path), "AUTOFUSE_LOG": "debug", "AUTOFUSE_CACHE_DIR": "~/x"})
    assert found == Settings(Path.home() / "x", tmp_path, "DEBUG")
    assert Settings.read({}).store_dir.name == "autofuse"
    with pytest.raises(UsageError, match="AUTOFUSE_LOG=LOUD"):
        Settings.read({"AUTOFUSE_LOG": "loud"})


def test_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    monkeypatch.setenv("AUTOFUSE_STORE", "/elsewhere")
    assert settings() is before
