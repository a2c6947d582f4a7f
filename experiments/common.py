"""What experiments on the live GPU share: rows, tuning, interleaved times against torch.compile, and figures.

Each row is tuned; then the plan (run by the torch.compile backend) and its rivals are timed in one interleaved run:
CUDA-graph replays, cold L2, random order within a round. What a row is compared with, and which figures it leaves, is
the experiment's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import torch

from autofuse.capture.workload import load, resolve
from autofuse.cost.library import ATTENTION, matmul_shape
from autofuse.errors import UsageError
from autofuse.ir.graph import ITEMSIZE, Contract, Graph, Op, Take
from autofuse.measure.timing import CudaStopwatch, rounds
from autofuse.results.experiment import Experiment, git_sha
from autofuse.runtime.backend import compile as autofuse_compile
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest, TuneResult

ROUNDS = 60
BYTES_PER_US = 4.24e6
FLOPS_PER_US = 797e6
"""The floor's two ceilings, measured on an H200 (FIELD.md)."""

Call = Callable[[], Any]


class Named(Protocol):
    """A row of an experiment."""

    @property
    def name(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def shape(self) -> Mapping[str, int]: ...


R = TypeVar("R", bound=Named)


class Bare:
    """What the stopwatch prepares: a function on its arguments, as measure.execute.Runner is."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args

    def __call__(self) -> Any:
        with torch.no_grad():
            return self.fn(*self.args)


# --- running an experiment ---


def device_name() -> str:
    """Raises UsageError where there is no GPU."""
    if not torch.cuda.is_available():
        raise UsageError("this experiment times kernels: it needs a GPU, and a torch built for it")
    return torch.cuda.get_device_name()


def arguments(description: str | None, out: Path, seconds: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="names of rows or workloads, with commas between; all without it")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seconds", type=float, default=seconds, help="of tuning, for each row")
    parser.add_argument("--git-sha", default=git_sha(), help="of this code, on a host without its repository")
    return parser


def chosen(rows: Iterable[R], names: str, more: Callable[[R], Collection[str]] = lambda _row: ()) -> list[R]:
    """Rows by name, by workload, or by what `more` says of them, in that order; all where nothing is named. Raises
    SystemExit."""
    rows, wanted = list(rows), [name.strip() for name in names.split(",") if name.strip()]
    labels = {row.name: {row.name, row.workload, *more(row)} for row in rows}
    for name in wanted:
        if not any(name in found for found in labels.values()):
            raise SystemExit(f"no row {name!r}; there are: {', '.join(labels)}")
    if not wanted:
        return rows
    return list({row.name: row for name in wanted for row in rows if name in labels[row.name]}.values())


def run(rows: Sequence[R], one: Callable[[R, Experiment], None], experiment: Experiment, out: Path) -> None:
    """`one` on each row; the results are written after each. One row's failure is a line of the report, not its end,
    unless it is the first."""
    out.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(rows):
        torch._dynamo.reset()
        try:
            one(row, experiment)
        except Exception as error:  # whatever torch.compile or a workload raises
            if number == 0 and not experiment.figures:
                raise
            print(f"{row.name}: failed: {type(error).__name__}: {error}", flush=True)
        if experiment.figures:
            experiment.write(out)


# --- one row ---


def tuned(row: Named, out: Path, seconds: float, memory_limit_mb: float | None = None) -> tuple[TuneResult, float]:
    """The result, and the seconds that it took. The plan is in out/store."""
    started = time.perf_counter()
    request = TuneRequest(
        (row.workload,), (dict(row.shape),), store=out / "store", results=out / "runs", budget_seconds=seconds,
        memory_limit_mb=memory_limit_mb,
    )  # fmt: skip
    return tune(request)[0], time.perf_counter() - started


def loaded(row: Named, device: str = "cuda") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return load(row.workload, dict(resolve(row.workload, row.shape).shape), device)


def contestants(fn: Any, args: tuple[Any, ...], store: Path, without: Collection[str] = ()) -> dict[str, Call]:
    made: dict[str, Callable[[], Callable[..., Any]]] = {
        "autofuse": lambda: autofuse_compile(fn, store=store, on_miss="error"),
        "eager": lambda: fn,
        "default": lambda: torch.compile(fn),
        "max-autotune": lambda: torch.compile(fn, mode="max-autotune-no-cudagraphs"),
    }
    return {name: Bare(make(), args) for name, make in made.items() if name not in without}


def times(calls: Mapping[str, Call], may_fail: Collection[str] = ()) -> dict[str, float]:
    """Medians of one interleaved run, microseconds. A rival in `may_fail` that raises is left out, and said so."""
    watch = CudaStopwatch()
    names: list[str] = []
    runs: dict[int, Any] = {}
    for name, call in calls.items():
        try:
            for _ in range(2):
                call()
            torch.cuda.synchronize()
            runs[len(names)] = watch.prepare(call)
        except Exception as error:  # what the rival's own compiler or kernel raises
            if name not in may_fail:
                raise
            print(f"    {name}: {type(error).__name__}: {str(error).strip().splitlines()[:1]}", flush=True)
            continue
        names.append(name)
    samples, _ = rounds(watch, runs, watch.reference(), ROUNDS, seed=1)
    return {name: median(samples[index]) for index, name in enumerate(names)}


def difference(fn: Any, args: tuple[Any, ...], store: Path) -> float:
    """Largest difference of the plan's outputs from eager's, relative to their RMS."""
    with torch.no_grad():
        mine, theirs = autofuse_compile(fn, store=store, on_miss="error")(*args), fn(*args)
    pairs = zip(mine, theirs, strict=True) if isinstance(mine, tuple) else [(mine, theirs)]
    return max(float((a.double() - b.double()).abs().max() / b.double().square().mean().sqrt()) for a, b in pairs)


# --- the floor ---


@dataclass(frozen=True, slots=True)
class Floor:
    """What no kernel can do without: bytes of the graph's inputs and outputs, flops of its matmuls."""

    read_bytes: float
    write_bytes: float
    flops: float

    @property
    def time_us(self) -> float:
        return max((self.read_bytes + self.write_bytes) / BYTES_PER_US, self.flops / FLOPS_PER_US)


def floor_of(graph: Graph, needed: float = 1.0) -> Floor:
    """`needed`: share of the matmuls' work that counts (half, where attention is causal and written by hand)."""
    outputs = {value for value in graph.outputs if value is not None}
    reads = float(sum(_read(graph, value) for value in graph.inputs))
    writes = float(sum(graph.types[value].nbytes for value in outputs - set(graph.inputs)))
    return Floor(reads, writes, needed * sum(_flops(op, graph) for op in graph.ops))


def _read(graph: Graph, value: str) -> int:
    """Distinct bytes; of a table that is only looked up in, those of the rows looked up."""
    kind = graph.types[value]
    whole = ITEMSIZE[kind.dtype]
    for size, stride in zip(kind.shape, kind.strides, strict=True):
        whole *= size if stride else 1
    readers = [op for op in graph.ops if value in op.inputs]
    if readers and all(isinstance(op.form, Take) and op.form.operand == value for op in readers):
        return min(whole, sum(graph.types[op.outputs[0]].nbytes for op in readers))
    return whole if readers or value in graph.outputs else 0


def _flops(op: Op, graph: Graph) -> float:
    if isinstance(op.form, Contract):
        shape = matmul_shape(op, graph.types)
        assert shape is not None
        batch, m, n, k = shape
        return 2.0 * batch * m * n * k
    if any(word in op.call.target for word in ATTENTION):
        query, key, value = (graph.types[name].shape for name in op.inputs[:3])
        rows = float(torch.Size(query[:-1]).numel())
        causal = any(argument is True for argument in op.call.args[:6]) or dict(op.call.kwargs).get("is_causal") is True
        return 2.0 * rows * key[-2] * (query[-1] + value[-1]) * (0.5 if causal else 1.0)
    if "convolution" in op.call.target:
        weight, out = graph.types[op.inputs[1]], graph.types[op.outputs[0]]
        return 2.0 * out.numel * weight.numel / weight.shape[0]
    return 0.0
