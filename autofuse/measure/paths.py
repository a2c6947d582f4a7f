"""Where compiled kernels are kept between processes and runs. Nothing here writes."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$AUTOFUSE_CACHE_DIR, else $XDG_CACHE_HOME/autofuse, else ~/.cache/autofuse."""
    named = os.environ.get("AUTOFUSE_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autofuse"


def triton_cache_dir() -> Path:
    return cache_dir() / "triton"


def child_environment(**extra: str) -> dict[str, str]:
    """The environment of compile and worker processes: no interpreter unless asked for; `import autofuse` finds this
    copy."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    env["PYTHONUNBUFFERED"] = "1"
    return {**env, **extra}
