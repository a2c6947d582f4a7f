"""autofuse: searches how to group and tile the operators of a PyTorch function, and runs what it found.

`import autofuse` loads neither torch nor triton; the names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autofuse.version import __version__

if TYPE_CHECKING:
    from autofuse import plans as plans
    from autofuse.runtime.backend import compile as compile
    from autofuse.search.api import tune as tune  # pyright: ignore[reportMissingImports]

__all__ = ["__version__", "compile", "plans", "tune"]

_LAZY = {"compile": ("autofuse.runtime.backend", "compile"), "tune": ("autofuse.search.api", "tune")}


def __getattr__(name: str) -> Any:
    if name == "plans":
        return import_module("autofuse.plans")
    if name not in _LAZY:
        raise AttributeError(f"module 'autofuse' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
