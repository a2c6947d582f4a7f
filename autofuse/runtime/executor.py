"""Runs a plan: its steps as closures over one table of values, made once, called many times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from autofuse.errors import PlanError
from autofuse.ir.graph import Graph, Op, Reshape, Strided, TensorType
from autofuse.measure.execute import restride
from autofuse.plans.plan import Plan
from autofuse.runtime.calls import Step, Values, ops_step
from autofuse.runtime.layout import Work, arrange
from autofuse.runtime.once import Once

log = logging.getLogger("autofuse.runtime")
EXECUTORS = ("cuda", "interpreter")
_MULTIPROCESSORS = 132
"""Of the grid that a persistent kernel gets in the interpreter; any number is right."""


class Executor:
    """`executor(*inputs)` computes the graph's outputs, with eager's strides and aliasing. Raises PlanError when the
    plan does not fit the graph: here, never in a call. `kind`: "cuda" launches on the current GPU, "interpreter" runs
    the kernels in Triton's interpreter on CPU tensors. `device`: where the inputs live.

    Inputs must have the shapes, strides and dtypes of the graph: callers guard that (Dynamo does).
    """

    def __init__(self, graph: Graph, plan: Plan, *, kind: str = "cuda", device: str = "") -> None:
        if kind not in EXECUTORS:
            raise PlanError(f"executor {kind!r} is not one of {', '.join(EXECUTORS)}")
        self.graph = graph
        self.plan = plan
        self.kind = kind
        self.device = device or ("cuda" if kind == "cuda" else "cpu")
        found = arrange(graph, plan, _multiprocessors(kind))
        make = _Steps(found.graph, kind, self.device)
        self._steps: tuple[Step, ...] = tuple(make.step(work) for work in found.works)
        once = found.once
        self._once = None if once is None else Once(once.reads, once.writes, make.step(once), self.device)
        self._names = graph.inputs
        self._outputs = graph.outputs
        self.works = found.works

    def __call__(self, *inputs: Any) -> list[Any]:
        values: Values = dict(zip(self._names, inputs, strict=True))
        graded = torch.is_grad_enabled()
        if graded:
            torch._C._set_grad_enabled(False)
        try:
            if self._once is not None:
                self._once(values)
            for step in self._steps:
                step(values)
        finally:
            if graded:
                torch._C._set_grad_enabled(True)
        return [None if name is None else values[name] for name in self._outputs]


def _multiprocessors(kind: str) -> int:
    if kind != "cuda":
        return _MULTIPROCESSORS
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


class _Steps:
    """Closures of the steps; what they need is looked up here, once."""

    def __init__(self, graph: Graph, kind: str, device: str) -> None:
        self.graph = graph
        self.kind = kind
        self.device = device

    def step(self, work: Work) -> Step:
        made: Step = getattr(self, work.kind)(work)
        if not work.dead:
            return made
        dead = work.dead

        def run(values: Values) -> None:
            made(values)
            for name in dead:
                del values[name]

        return run

    def triton(self, work: Work) -> Step:
        assert work.kernel is not None
        kernel = work.kernel
        made = tuple((value, self.allocate(self.graph.types[value])) for value in work.writes)
        if self.kind == "interpreter":
            from autofuse.measure.launch import interpret

            def run_interpreted(values: Values) -> None:
                for value, allocate in made:
                    values[value] = allocate()
                interpret(kernel, {value: values[value] for value in (*work.reads, *work.writes)})

            return run_interpreted

        from autofuse.measure.launch import Launcher

        launcher = Launcher(kernel)
        reads = work.reads

        def run(values: Values) -> None:
            for value, allocate in made:
                values[value] = allocate()
            try:
                launcher(values)
            except ValueError:  # a caller's tensor at an odd address, a slice say: rare, so found out by failing
                launcher({**values, **{value: aligned(values[value]) for value in reads}})

        return run

    def allocate(self, kind: TensorType) -> Callable[[], torch.Tensor]:
        dtype = getattr(torch, kind.dtype)
        shape, strides = kind.shape, kind.strides
        if self.device == "cuda" and torch.cuda.device_count() == 1:
            empty = torch._C._dynamo.guards._empty_strided_cuda  # pyright: ignore[reportAttributeAccessIssue]  # 1 us less a call
            return lambda: empty(shape, strides, dtype)
        device = torch.device(self.device)
        return lambda: torch.empty_strided(shape, strides, dtype=dtype, device=device)

    def aten(self, work: Work) -> Step:
        # A library's one call for several ops may choose other strides than they do, and views inside rely on theirs.
        own = self.graph.by_name
        strides = {value: self.graph.types[value].strides for op in work.ops if op.name not in own
                   for value in op.outputs if value in self.graph.types}  # fmt: skip
        run_ops = ops_step(work.ops, (*work.reads, *work.writes), self.device, strides)
        inputs = work.reads
        wanted = tuple((value, self.graph.types[value].strides) for value in work.writes)

        def run(values: Values) -> None:
            local = {name: values[name] for name in inputs}
            run_ops(local)
            for value, strides in wanted:
                values[value] = restride(local[value], strides)

        return run

    def inductor(self, work: Work) -> Step:
        from autofuse.measure.inductor import Subgraph

        subgraph = Subgraph(work.ops, work.reads, work.writes, self.device, self.without_inductor)
        wanted = tuple(self.graph.types[value].strides for value in work.writes)

        def run(values: Values) -> None:
            results = subgraph(*[values[name] for name in work.reads])
            for value, result, strides in zip(work.writes, results, wanted, strict=True):
                values[value] = restride(result, strides)

        return run

    def without_inductor(self, error: Exception) -> None:
        """The plan was timed where Inductor works; here the model runs all the same, and the log says how."""
        reason = (str(error).strip().splitlines() or [""])[0]
        log.warning("Inductor fails on a planned group (%s: %s): running ATen calls", type(error).__name__, reason)

    def view(self, work: Work) -> Step:
        op = work.ops[0]
        placed = placement(self.graph, op)
        if placed is None:
            return self.aten(work)
        source, result = op.inputs[0], op.outputs[0]
        shape, strides, offset = placed

        def run(values: Values) -> None:
            base = values[source]
            values[result] = base.as_strided(shape, strides, base.storage_offset() + offset)

        return run


def placement(graph: Graph, op: Op) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """(shape, strides, offset in elements) at which a view lies in its operand's memory; None where it does not (a
    flip, a reshape that copies, another dtype): then only its ATen call is right."""
    source, result = graph.types[op.inputs[0]], graph.types[op.outputs[0]]
    if source.dtype != result.dtype or result.numel == 0:
        return None
    match op.form:
        case Strided() as form:
            strides = tuple(
                0 if dim is None else step * source.strides[dim]
                for dim, step in zip(form.source, form.steps, strict=True)
            )
            offset = sum(start * stride for start, stride in zip(form.starts, source.strides, strict=True))
        case Reshape():
            strides, offset = _reshaped(source, result.shape), 0
        case _:
            return None
    if strides is None or any(a != b for a, b, n in zip(strides, result.strides, result.shape, strict=True) if n > 1):
        return None
    return (result.shape, result.strides, offset) if min(strides, default=0) >= 0 else None


def _reshaped(source: TensorType, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the row-major reshape of a strided tensor, None where that needs a copy (as torch's computeStride)."""
    runs: list[list[int]] = []  # maximal runs of dimensions that are contiguous to each other: [elements, inner stride]
    outer = 0
    for size, stride in zip(source.shape, source.strides, strict=True):
        if size == 1:
            continue
        if runs and outer == stride * size:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
        outer = stride
    strides: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for size in reversed(shape):
        if size == 1:
            strides.append(step)
            continue
        if left == 1 and runs:
            left, step = runs.pop()
        if left % size:
            return None
        strides.append(step)
        left //= size
        step *= size
    return tuple(reversed(strides))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy at a 16-byte boundary with the same strides, overlapping elements included."""
    if tensor.data_ptr() % 16 == 0 or not tensor.numel():
        return tensor
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    copy = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return copy.as_strided(tensor.shape, tensor.stride(), 0)
