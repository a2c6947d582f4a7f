"""Running a candidate's steps over an environment of tensors (value name -> tensor). No verdicts, no clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autofuse.fusion.subgraph import producing
from autofuse.ir.graph import Graph, Op, TensorType
from autofuse.measure import inputs as buffers
from autofuse.measure.records import AtenStep, Candidate, InductorStep, Step, TritonStep

if TYPE_CHECKING:
    import torch

Env = dict[str, Any]
Allocate = Callable[[str, TensorType], "torch.Tensor"]
_Action = Callable[[Env, Allocate], None]


class Runner:
    """A candidate made ready for one device; calling it on what `ahead` gives computes the graph's outputs.

    Raises what compiling or launching raises: the caller turns that into a status.
    """

    def __init__(self, candidate: Candidate, device: str) -> None:
        self.graph = candidate.graph
        self.device = device
        self._actions = [_action(self.graph, step, device) for step in candidate.steps]
        self._dead = _last_uses(candidate)
        self._settled = candidate.ahead

    def ahead(self, given: Env) -> Env:
        """The inputs, and what is computed of the frozen ones before any call."""
        env = dict(given)
        run_aten(producing(self.graph, self._settled), env, device=self.device)
        made = {value: restride(env[value], self.graph.types[value].strides) for value in self._settled}
        return {**given, **made}

    def __call__(self, given: Env, allocate: Allocate | None = None) -> Env:
        """Outputs by value name. Intermediates are let go after their last use, as an eager run would."""
        allocate = allocate or self._plain
        env = dict(given)
        for action, dead in zip(self._actions, self._dead, strict=True):
            action(env, allocate)
            for value in dead:
                env.pop(value, None)
        outputs = [value for value in self.graph.outputs if value is not None]
        for value in outputs:
            resolve(self.graph, env, value)
        return {value: env[value] for value in outputs}

    def _plain(self, _value: str, kind: TensorType) -> torch.Tensor:
        return buffers.plain(kind, self.device)


def run_aten(ops: tuple[Op, ...], env: Env, dtype: str | None = None, device: str | None = None) -> None:
    """The ops' exact ATen calls; `env` gains their values. device: instead of the one that they were captured for."""
    from autofuse.capture import aten

    aten.run(ops, env, dtype=dtype, device=device)


def resolve(graph: Graph, env: Env, value: str) -> None:
    """Make `value` present where it is a chain of views of something that is."""
    if value in env:
        return
    op = graph.producer.get(value)
    if op is None or not op.is_view:
        raise KeyError(f"no step produces {value!r}")
    for name in op.inputs:
        resolve(graph, env, name)
    run_aten((op,), env)


def _available(graph: Graph, env: Env, value: str) -> bool:
    return value in env or graph.base(value) in env


def restride(tensor: Any, strides: Sequence[int]) -> Any:
    """The tensor with these strides: itself, or a copy where a library chose others than the graph says."""
    import torch

    if tensor.stride() == strides or not tensor.numel():
        return tensor
    if all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)):
        return tensor
    copy = torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _action(graph: Graph, step: Step, device: str) -> _Action:
    match step:
        case TritonStep():
            return _triton(graph, step, device)
        case AtenStep():
            return _aten(graph, step, device)
        case InductorStep():
            return _inductor(graph, step, device)


def _triton(graph: Graph, step: TritonStep, device: str) -> _Action:
    launch = _launcher(step, device)
    values = step.kernel.values

    def act(env: Env, allocate: Allocate) -> None:
        for value in values:
            if _available(graph, env, value):
                resolve(graph, env, value)
            else:
                env[value] = allocate(value, graph.types[value])
        launch(env)

    return act


def _launcher(step: TritonStep, device: str) -> Callable[[Env], None]:
    if device == "cpu":
        from autofuse.measure.launch import interpret_here

        return lambda env: interpret_here(step.kernel, env)
    from autofuse.measure.launch import Launcher

    return Launcher(step.kernel)


def _aten(graph: Graph, step: AtenStep, device: str) -> _Action:
    ops = tuple(graph.by_name[name] for name in step.ops)
    made = {value for op in ops for value in op.outputs}
    needed = tuple(value for op in ops for value in op.inputs if value not in made)

    def act(env: Env, _allocate: Allocate) -> None:
        for value in needed:
            resolve(graph, env, value)
        for op in ops:
            run_aten((op,), env, device=device)
            for value in op.outputs:  # as the executor does: what reads it counts on the graph's strides
                if value in graph.types:
                    env[value] = restride(env[value], graph.types[value].strides)

    return act


def _inductor(graph: Graph, step: InductorStep, device: str) -> _Action:
    from autofuse.measure.inductor import Subgraph

    ops = tuple(graph.by_name[name] for name in step.ops)
    made = {value for op in ops for value in op.outputs}
    needed = tuple(dict.fromkeys(value for op in ops for value in op.inputs if value not in made))
    compiled = Subgraph(ops, needed, step.outputs, device)

    def act(env: Env, _allocate: Allocate) -> None:
        for value in needed:
            resolve(graph, env, value)
        for value, result in zip(step.outputs, compiled(*(env[value] for value in needed)), strict=True):
            env[value] = restride(result, graph.types[value].strides)

    return act


def _last_uses(candidate: Candidate) -> list[tuple[str, ...]]:
    """For each step, the values that nothing reads after it."""
    graph = candidate.graph
    kept = {base for value in graph.outputs if value is not None for base in (value, graph.base(value))}
    kept |= set(graph.inputs)
    last: dict[str, int] = {}
    for position, step in enumerate(candidate.steps):
        if isinstance(step, TritonStep):
            values = set(step.kernel.values)
        else:
            ops = [graph.by_name[name] for name in step.ops]
            values = {value for op in ops for value in (*op.inputs, *op.outputs)}
        for value in values | {graph.base(value) for value in values}:
            last[value] = position
    return [
        tuple(value for value, where in last.items() if where == position and value not in kept)
        for position in range(len(candidate.steps))
    ]
