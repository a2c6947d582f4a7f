"""Workloads: functions `name(device, **dims) -> (fn, args)`, from the shipped folder or a file of the user's.

One with weights that never change returns (fn, args, frozen), frozen as `capture.frozen.Frozen` has it.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from autofuse.capture.device_guard import guard_without_cuda
from autofuse.capture.frozen import declare
from autofuse.errors import UsageError, WorkloadError


@dataclass(frozen=True, slots=True)
class Workload:
    """A named workload with every dimension's size."""

    name: str
    shape: dict[str, int] = field(hash=False)


def folder() -> Path:
    """Shipped workloads: package data of an installed wheel, else datasets/workloads of the checkout."""
    shipped = resources.files("autofuse") / "_data" / "workloads"
    if shipped.is_dir():
        return Path(str(shipped))
    return Path(__file__).resolve().parents[2] / "datasets" / "workloads"


def list_workloads() -> tuple[Workload, ...]:
    """All shipped workloads with their default sizes, by name. Reads the files without running them."""
    found = [Workload(name, _literal_dims(node)) for name, (_, node) in _shipped().items()]
    return tuple(sorted(found, key=lambda workload: workload.name))


def kinds() -> dict[str, str]:
    """The file (its kind of fusion) of each shipped workload, by either of its names: `file.function` and `function`,
    the latter where one file alone has it."""
    files: dict[str, set[str]] = {}
    for name in _shipped():
        file, _, function = name.partition(".")
        for either in (name, function):
            files.setdefault(either, set()).add(file)
    return {name: next(iter(some)) for name, some in files.items() if len(some) == 1}


def load(
    spec: str, dims: Mapping[str, Any] | None = None, device: str = "cpu", *, fake: bool | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(fn, args) of a shipped name, `file.function`, or `path/file.py:function`. What the workload says is frozen is
    declared of fn.

    `fake` makes the tensors fake; by default they are where `device` is a CUDA device and this machine has none.
    Raises WorkloadError.
    """
    build = _find(spec)
    sizes = resolve(spec, dims)
    import torch

    fake = device.startswith("cuda") and not torch.cuda.is_available() if fake is None else fake
    try:
        with _fake_tensors() if fake else nullcontext(), torch.no_grad():
            result = build(device, **sizes.shape)
    except (Exception, SystemExit) as error:  # the user's own code may raise anything; the cause is chained
        raise WorkloadError(f"workload {spec} raised {type(error).__name__}: {error}") from error
    match result:
        case (function, tuple(args), *frozen) if callable(function) and isinstance(result, tuple) and len(frozen) < 2:
            _check_devices(spec, function, args, device)
        case _:
            raise WorkloadError(f"workload {spec} must return (callable, tuple of arguments), not {_describe(result)}")
    try:
        return declare(function, *(frozen or [None])), _without_gradients(args)
    except UsageError as error:
        raise WorkloadError(f"workload {spec}: {error}") from None


def _check_devices(spec: str, function: Any, args: tuple[Any, ...], device: str) -> None:
    """Plans know one device: run time refuses a graph whose tensors are elsewhere."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors: list[Any] = []
    for value in tree_leaves((function, args, _closed_over(function))):
        tensors += [*value.parameters(), *value.buffers()] if isinstance(value, torch.nn.Module) else [value]
    found = {tensor.device.type for tensor in tensors if isinstance(tensor, torch.Tensor)}
    wanted = torch.device(device).type
    if found - {wanted}:
        raise WorkloadError(
            f"workload {spec}: its tensors are on {' and '.join(sorted(found))}; a plan needs all of them on {wanted}: "
            "make them with device=device"
        )


def _closed_over(function: Any) -> list[Any]:
    """What the function sees of the one that made it, and of its file."""
    try:
        seen = inspect.getclosurevars(function)
        return [*seen.nonlocals.values(), *seen.globals.values()]
    except (TypeError, ValueError):  # no Python function; a variable that has no value yet
        return []


def _without_gradients(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Plans are for inference."""
    import torch
    from torch.utils._pytree import tree_map_only

    with torch.no_grad():
        return tree_map_only(torch.Tensor, lambda t: t.detach() if t.requires_grad else t, args)


def resolve(spec: str, dims: Mapping[str, Any] | None = None) -> Workload:
    """The workload with its defaults and `dims` put in. Raises WorkloadError for an unknown or non-integer dim."""
    defaults = _defaults(spec, _find(spec))
    shape = {name: value for name, value in defaults.items() if value is not None}
    for name, value in (dims or {}).items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise WorkloadError(f"workload {spec} has no dim {name!r}; it has: {known}")
        shape[name] = _whole(spec, name, value)
    missing = [name for name in defaults if name not in shape]
    if missing:
        raise WorkloadError(f"workload {spec} needs a size for: {', '.join(missing)}")
    return Workload(spec, shape)


def _whole(spec: str, name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise WorkloadError(f"workload {spec}: {name} must be a positive whole number, not {value!r}")
    return number


def _defaults(spec: str, build: Callable[..., Any]) -> dict[str, int | None]:
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters or parameters[0].name != "device":
        raise WorkloadError(f"workload {spec}: the first parameter must be `device`")
    found: dict[str, int | None] = {}
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise WorkloadError(f"workload {spec}: name each dim; *{parameter.name} hides them")
        given = parameter.default is not parameter.empty
        found[parameter.name] = _whole(spec, parameter.name, parameter.default) if given else None
    return found


def _nearest(spec: str, shipped: Collection[str]) -> str:
    """What may have been meant, else where to look."""
    bare = {name.partition(".")[2]: name for name in shipped}
    close = difflib.get_close_matches(spec, [*bare, *shipped], n=3)
    if close:
        return f"did you mean {' or '.join(dict.fromkeys(bare.get(name, name) for name in close))}?"
    families = sorted({name.partition(".")[0] for name in shipped})
    return f"the {len(shipped)} shipped ones are in datasets/workloads ({', '.join(families)})"


def _find(spec: str) -> Callable[..., Any]:
    path, colon, function = spec.rpartition(":")
    if colon:
        file = Path(path)
        if not file.is_file():
            raise WorkloadError(f"no workload file {path}")
    else:
        shipped = _shipped()
        matches = [name for name in shipped if spec in (name, name.partition(".")[2])]
        if not matches:
            raise WorkloadError(f"no workload {spec!r}; {_nearest(spec, shipped)} (or give path/file.py:function)")
        if len(matches) > 1:
            raise WorkloadError(f"workload {spec!r} is ambiguous: {', '.join(matches)}")
        file, function = shipped[matches[0]][0], matches[0].partition(".")[2]
    build = getattr(_module(file), function, None)
    if not callable(build):
        raise WorkloadError(f"{file} has no function {function!r}")
    return build


def _module(file: Path) -> ModuleType:
    name = f"_autofuse_workload_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo looks functions' modules up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything; the cause is chained
        raise WorkloadError(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _shipped() -> dict[str, tuple[Path, ast.FunctionDef]]:
    """`file.function` -> where it is. A workload's first parameter is `device`."""
    found: dict[str, tuple[Path, ast.FunctionDef]] = {}
    for file in sorted(folder().glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if node.args.args and node.args.args[0].arg == "device":
                found[f"{file.stem}.{node.name}"] = (file, node)
    return found


def _literal_dims(node: ast.FunctionDef) -> dict[str, int]:
    names = [argument.arg for argument in node.args.args][-len(node.args.defaults) :] if node.args.defaults else []
    return {
        n: d.value
        for n, d in zip(names, node.args.defaults, strict=True)
        if isinstance(d, ast.Constant) and isinstance(d.value, int)
    }


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Fake mode, in which random initialisation does nothing: a build without CUDA has no generator for its tensors."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode

    fills = {torch.Tensor.uniform_, torch.Tensor.normal_, torch.Tensor.bernoulli_}

    class _NoRandomFill(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__module__", None) == "torch.nn.init":  # runs with this mode off, so it is skipped whole
                return args[0] if args else (kwargs or {})["tensor"]
            return args[0] if func in fills else func(*args, **(kwargs or {}))

    mode = FakeTensorMode(allow_non_fake_inputs=True)  # tensors and modules that the file made when it was imported
    with mode, _NoRandomFill(), guard_without_cuda(), _moved_parameters():
        yield
    mode.allow_non_fake_inputs = False


@contextmanager
def _moved_parameters() -> Iterator[None]:
    """Module.to, .half and the like put new parameters in: torch would swap contents, which fails for fake ones."""
    import torch

    before = torch.nn.Module._apply
    moved: dict[tuple[Any, int], tuple[Any, Any]] = {}
    """What a call made of a tensor, so that shared ones stay shared; the tensor is held to keep its id its own."""

    def apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for tensors in (self._parameters, self._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = move(fn, tensor)
        return self

    def move(fn: Callable[[Any], Any], tensor: Any) -> Any:
        if (fn, id(tensor)) not in moved:
            with torch.no_grad():
                made = fn(tensor)
            if isinstance(tensor, torch.nn.Parameter) and made is not tensor:
                made = torch.nn.Parameter(made, tensor.requires_grad)
            moved[fn, id(tensor)] = tensor, made
            moved[fn, id(made)] = made, made  # a shared module is visited once for each place
        return moved[fn, id(tensor)][1]

    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = before


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__.removeprefix('Fake') for item in value)})"
    return type(value).__name__.removeprefix("Fake")
