"""`autofuse doctor`: what is installed, what of it is wrong, and what to do about it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from autofuse.cli import options, output
from autofuse.errors import AutofuseError

HELP = "Versions, tools, GPU, store: what is there and what is wrong. Exit code 2 when something must be mended."
PACKAGES = ("autofuse", "torch", "triton", "numpy", "scipy", "scikit-learn", "optuna", "pyarrow", "duckdb", "ray")
OPTIONAL = ("duckdb", "ray")
TOOLS = ("ptxas", "cuobjdump", "nvdisasm")


@dataclass(frozen=True, slots=True)
class Finding:
    """state: ok, warning (something will not work) or bad (nothing will)."""

    name: str
    state: str
    value: str
    remedy: str = ""


@output.command
def doctor(target: options.TargetName = "auto", store: options.Store = None, json: options.Json = False) -> None:
    with output.document(json) as emit:
        found = [
            *versions(),
            interpreter(),
            *tools(),
            gpu(),
            target_facts(target),
            store_state(options.store_folder(store)),
        ]
        if json:
            emit([asdict(one) for one in found])
    if not json:
        for one in found:
            mark = {"ok": "  ", "warning": "! ", "bad": "X "}[one.state]
            print(f"{mark}{one.name}: {one.value}" + (f"\n    {one.remedy}" if one.remedy else ""))
    if any(one.state == "bad" for one in found):
        raise typer.Exit(2)


def versions() -> list[Finding]:
    found = [Finding("python", "ok" if sys.version_info >= (3, 11) else "bad", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            if name in OPTIONAL:
                extra = "report" if name == "duckdb" else "distributed"
                found.append(Finding(name, "ok", "not installed", f"optional: pip install 'autofuse[{extra}]'"))
            elif name == "autofuse":
                found.append(Finding(name, "warning", "runs from a checkout", "pip install -e . registers the backend"))
            else:
                found.append(Finding(name, "bad", "not installed", f"pip install {name}"))
    return found


def interpreter() -> Finding:
    """Triton's interpreter before 3.7 does not run loops with run-time bounds under NumPy 2.4."""
    numpy, triton = _version("numpy"), _version("triton")
    if numpy >= (2, 4) and (0,) < triton < (3, 7):
        remedy = "pip install 'numpy<2.4': without a GPU, numbers cannot be checked under this one"
        return Finding("interpreter", "warning", f"triton {_text(triton)} with numpy {_text(numpy)}", remedy)
    return Finding("interpreter", "ok", "usable")


def tools() -> list[Finding]:
    """Triton brings its own; the path serves where a build leaves them out."""
    spec = _folder_of("triton")
    found: list[Finding] = []
    for name in TOOLS:
        inside = sorted(spec.rglob(f"bin/{name}")) if spec else []
        path = str(inside[0]) if inside else shutil.which(name)
        remedy = "" if path else "reinstall triton, or put the CUDA toolkit's bin folder on PATH"
        found.append(Finding(name, "ok" if path else "warning", path or "not found", remedy))
    return found


def gpu() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("GPU", "bad", f"torch cannot be imported ({error})", "reinstall torch")
    if not torch.cuda.is_available():
        return Finding("GPU", "ok", "none", "times are predictions; name a target: --target h200")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Finding("GPU", "ok", ", ".join(f"cuda:{index} {name}" for index, name in enumerate(names)))


def target_facts(name: str) -> Finding:
    from autofuse.cost.device import TARGETS, describe, resolve

    try:
        facts = describe(resolve(name))
    except AutofuseError as error:
        if name == "auto":
            return Finding("target", "ok", f"no GPU; known by name: {', '.join(TARGETS)}")
        return Finding("target", "bad", name, str(error))
    return Finding("target", "ok", ", ".join(f"{key} {_short(value)}" for key, value in facts.items()))


def store_state(folder: Path) -> Finding:
    from autofuse.plans.store import PlanStore

    def look() -> Finding:
        store = PlanStore(folder)
        plans, faults = store.list(), store.faults()
        if faults:
            remedy = f"{faults[0]}; remove or tune again"
            return Finding("store", "warning", f"{store.path}: {len(plans)} plans, {len(faults)} malformed", remedy)
        return Finding("store", "ok", f"{store.path}: {len(plans)} plans")

    return _guarded("store", str(folder), look)


def _guarded(name: str, value: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except AutofuseError as error:
        return Finding(name, "bad", value, str(error))


def _version(name: str) -> tuple[int, ...]:
    try:
        text = metadata.version(name)
    except metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:2] if part.isdigit())


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _folder_of(package: str) -> Path | None:
    from importlib.util import find_spec

    spec = find_spec(package)  # looks, does not import
    return Path(spec.origin).parent if spec and spec.origin else None


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
