"""What a plan was made with: versions and device facts, and which of them must agree for a plan to be used."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autofuse.version import __version__

COMPARED = ("autofuse", "triton", "torch", "numerics")
"""Fields that must agree (see `compared`). The device does through the plan's target; CUDA and driver are recorded
only: neither changes what is generated, and a driver update must not throw a store away."""

DEFAULT_NUMERICS = "fp32-registers"
"""Values inside a group are float32; storage dtypes apply where a value is materialised."""


def current_environment(numerics: str = DEFAULT_NUMERICS, device: int | None = None) -> dict[str, str]:
    """Of this process. `device`: index of the live GPU that was measured, None without one."""
    found = dict(_versions())
    found["numerics"] = numerics
    if device is not None:
        found |= _device(device)
    return found


def compared(environment: Mapping[str, str]) -> dict[str, str]:
    """The compared fields, versions cut to what matters: major.minor, no build tag."""
    return {name: _cut(name, environment.get(name, "unknown")) for name in COMPARED}


def _cut(name: str, text: str) -> str:
    if name == "numerics":
        return text
    return ".".join(text.partition("+")[0].split(".")[:2])


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    # Versions come from package metadata: asking must not import torch or triton.
    found = {"autofuse": __version__, "python": platform.python_version(), "platform": sys.platform}
    for package in ("torch", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return tuple(found.items())


def _device(index: int) -> dict[str, str]:
    import torch

    facts = torch.cuda.get_device_properties(index)
    return {
        "device": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "cuda": torch.version.cuda or "none",
        "driver": _driver(),
    }


def _driver() -> str:
    try:
        with Path("/proc/driver/nvidia/version").open(encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
