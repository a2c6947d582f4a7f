"""`torch.compile(fn, backend="autofuse")` and `autofuse.compile(fn)`: a plan is looked up and run, or the miss path is.

The miss path is never silent: one log line a key, and a count by kind of reason.
"""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from autofuse.capture.frozen import Frozen, checked, declared
from autofuse.errors import AutofuseError, PlanError, UnknownTarget, UsageError
from autofuse.plans.environment import current_environment
from autofuse.plans.lookup import Lookup, Miss
from autofuse.plans.store import PlanStore
from autofuse.runtime.counters import count_hit, count_miss
from autofuse.settings import settings

if TYPE_CHECKING:
    import torch

log = logging.getLogger("autofuse.runtime")
ON_MISS = ("inductor", "eager", "error")
EXECUTORS = ("cuda", "interpreter")


@dataclass(frozen=True, slots=True)
class Options:
    """What `torch.compile(options=...)` may say. target: a name (h200), cuda:N, or None for the live GPU. store: folder
    of the plan store. on_miss: inductor, eager or error; None is inductor on a GPU, else eager. executor: cuda, or
    interpreter to run kernels in Triton's interpreter on CPU tensors; None is cuda. frozen: weights that never change,
    as `capture.frozen.Frozen` has it."""

    target: str | None = None
    store: str | None = None
    on_miss: str | None = None
    executor: str | None = None
    frozen: Frozen = ()

    @staticmethod
    def read(mode: str | None, options: Mapping[str, Any] | None) -> Options:
        """Raises UsageError, naming the option."""
        if mode not in (None, "default"):
            raise UsageError(f"mode={mode!r}: the autofuse backend knows only the default mode")
        known = {f.name for f in fields(Options)}
        given = dict(options or {})
        frozen = checked(given.pop("frozen", None) or ())
        for name, value in given.items():
            if name not in known:
                raise UsageError(f"option {name!r}: the autofuse backend knows {', '.join(sorted(known))}")
            if value is not None and not isinstance(value, str | Path):
                raise UsageError(f"option {name}={value!r}: expected text")
        texts = {name: None if value is None else str(value) for name, value in given.items()}
        found = Options(**texts, frozen=frozen)
        for name, allowed in (("on_miss", ON_MISS), ("executor", EXECUTORS)):
            value = getattr(found, name)
            if value is not None and value not in allowed:
                raise UsageError(f"option {name}={value!r}: expected one of {', '.join(allowed)}")
        return found


class Missed(Exception):
    """No plan will run for this graph."""

    def __init__(self, kind: str, reason: str, key: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.key = key


def compile(  # noqa: A001  (the public name is torch's)
    fn: Callable[..., Any] | None = None,
    *,
    target: str | None = None,
    store: str | Path | None = None,
    on_miss: str | None = None,
    executor: str | None = None,
    frozen: bool | Sequence[str] | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = False,
) -> Any:
    """`torch.compile` with autofuse's plans: same caching, same guards; use as a function or as a decorator.

    Shapes are static unless `dynamic` says otherwise, for a plan is for one shape. frozen: weights that never change:
    True for every parameter, or names of arguments (`weight`) and parameters (`norm.weight`); None is what a workload
    declares, else nothing. What a plan computes of them alone is computed at the first call, and again after one is
    replaced or changed in place, as torch counts such changes (`.data` and tensors made in inference mode hide them).
    Raises UsageError.
    """
    import torch

    given = {"target": target, "store": None if store is None else str(store), "on_miss": on_miss, "executor": executor,
             "frozen": (declared(fn) if fn is not None else ()) if frozen is None else checked(frozen)}  # fmt: skip
    Options.read(None, given)
    # Dynamo tells caches apart by the options, so an unset one is left out.
    options: dict[str, Any] = {name: value for name, value in given.items() if value not in (None, (), False)}
    compiler: Any = torch.compile  # its overloads part functions from decorators; here fn may be either
    return compiler(fn, backend=autofuse, options=options, fullgraph=fullgraph, dynamic=dynamic)


def autofuse(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend. Raises UsageError on a wrong option and PlanError on a miss with on_miss="error"; both reach
    whoever called the compiled function as they are."""
    try:
        return _compiled(gm, example_inputs, Options.read(mode, options))
    except (UsageError, PlanError) as error:
        raise _unwrapped(error, inspect.currentframe()) from error.__cause__


def _compiled(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: Options) -> Callable[..., Any]:
    device = _device(gm, example_inputs)
    try:
        found = _planned(gm, example_inputs, chosen, device)
    except Missed as missed:
        return _fallback(gm, example_inputs, chosen, device, missed)
    count_hit()
    return found


def _unwrapped(error: AutofuseError, frame: FrameType | None) -> AutofuseError:
    """The error as Dynamo passes it on, its traceback from `frame` on. Dynamo wraps what a backend raises in a
    BackendCompilerFailed, save for what is a ShortenTraceback; in a torch that has none, the wrapping stays."""
    from torch._dynamo import exc

    kind = type(error)
    base = getattr(exc, "ShortenTraceback", None)
    if base is None:
        return error
    made: Any = type(kind.__name__, (kind, base), {"__module__": kind.__module__})
    return made(str(error), first_useful_frame=frame)


# --- the hit path ---


def _planned(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: Options, device: str | None
) -> Callable[..., Any]:
    """The compiled graph. Raises Missed, whatever went wrong."""
    import torch

    from autofuse.capture.trace import aot_backend

    _check_supported(example_inputs, chosen, device)
    missed: list[Missed] = []

    def compile_graph(inner: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        try:
            return _execute(inner, chosen, str(device))
        except Missed as error:
            missed.append(error)  # AOTAutograd may wrap what passes through it
            raise

    # A copy of the graph: capturing rewrites it, and on a miss the original goes elsewhere.
    mine = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    mine.meta = dict(gm.meta)
    try:
        return aot_backend(compile_graph, chosen.frozen)(mine, list(example_inputs))
    except Exception as error:  # anything at all: a model must run though autofuse has a bug, and the log says so
        if missed:
            raise missed[0] from missed[0].__cause__
        raise Missed("error", f"{type(error).__name__}: {error}") from error


def _check_supported(example_inputs: Sequence[Any], chosen: Options, device: str | None) -> None:
    import torch

    if device is None:
        raise Missed("device", "the graph spans several devices")
    if device != "cuda" and chosen.executor != "interpreter":
        raise Missed(
            "device", f'the graph is on {device}, plans run on cuda (or on the CPU with executor="interpreter")'
        )
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise Missed("training", "gradients are wanted, plans are for inference: run under torch.no_grad()")
    symbolic = any(isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) for value in example_inputs)
    if symbolic or any(isinstance(n, torch.SymInt) for tensor in tensors for n in tensor.shape):
        raise Missed("dynamic", "sizes are symbolic, a plan is for one shape: compile with dynamic=False")


def _execute(gm: torch.fx.GraphModule, chosen: Options, device: str) -> Callable[..., Any]:
    from autofuse.capture.convert import from_fx
    from autofuse.ir.fingerprint import graph_key
    from autofuse.runtime.executor import Executor

    _check_devices(gm, device)
    graph = from_fx(gm)
    key = graph_key(graph)
    target = _target(chosen, key)
    found = lookup(chosen.store).find(key, target)
    if isinstance(found, Miss):
        raise Missed(found.kind, found.reason, f"{key}@{target}")
    try:
        return Executor(graph, found, kind=chosen.executor or "cuda", device=device)
    except AutofuseError as error:
        raise Missed("unfit", f"plan {found.plan_id}: {error}", f"{key}@{target}") from error
    except Exception as error:  # a bug of ours, or a kernel that does not compile here: the model must run all the same
        raise Missed("error", f"plan {found.plan_id}: {type(error).__name__}: {error}", f"{key}@{target}") from error


def _check_devices(gm: torch.fx.GraphModule, device: str) -> None:
    """Plans know one device: a graph that moves tensors elsewhere is not theirs."""
    import torch

    from autofuse.capture.convert import host_constants

    numbers = host_constants(gm)  # filled in where the inputs are
    for node in gm.graph.nodes:
        value = node.meta.get("val") if node not in numbers else None
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != device:
                raise Missed("device", f"the graph spans several devices ({node.name} is on {tensor.device})")


def _target(chosen: Options, key: str) -> str:
    from autofuse.cost.device import resolve

    try:
        return resolve(chosen.target or "auto").name
    except UnknownTarget as error:
        raise Missed("target", str(error), key) from None


_lookups: dict[Path, Lookup] = {}
_lock = threading.Lock()


def lookup(store: str | Path | None = None) -> Lookup:
    """The process's one Lookup of a store folder (None: the settings')."""
    folder = Path(store).expanduser() if store else settings().store_dir
    found = _lookups.get(folder)
    if found is None:
        with _lock:
            found = _lookups.setdefault(folder, Lookup(PlanStore(folder), current_environment()))
    return found


def _device(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """The one kind of device that the graph's tensors are on; None if there are several."""
    import torch

    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    tensors += [*gm.parameters(), *gm.buffers()]
    # A graph without tensor inputs makes its own, on the default device.
    devices = {tensor.device for tensor in tensors} or {torch.get_default_device()}
    return next(iter(devices)).type if len(devices) == 1 else None


# --- the miss path ---

_logged: set[tuple[str, str, str]] = set()
TUNABLE = ("absent", "target", "environment", "malformed", "unfit")
"""Kinds of miss that tuning the function mends."""


def _fallback(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: Options, device: str | None, missed: Missed
) -> Callable[..., Any]:
    count_miss(missed.kind)
    on_miss = chosen.on_miss or ("inductor" if device == "cuda" else "eager")
    if on_miss == "error":
        remedy = "; `autofuse tune` makes one" if missed.kind in TUNABLE else ""
        raise PlanError(f"no plan: {missed.reason}{remedy}") from missed.__cause__
    _log_once(missed, on_miss)
    if on_miss == "eager":
        return gm.forward
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(gm, list(example_inputs))  # pyright: ignore[reportReturnType]


def _log_once(missed: Missed, on_miss: str) -> None:
    mark = (missed.key, missed.kind, "" if missed.key else missed.reason)
    with _lock:
        if mark in _logged:
            return
        _logged.add(mark)
    key, _, target = missed.key.partition("@")
    graph = f" for graph {key[:12]} on {target or 'this machine'}" if key else ""
    bug = missed.__cause__ if missed.kind == "error" else None
    log.warning("no plan%s (%s): running %s instead", graph, missed.reason, on_miss, exc_info=bug)
