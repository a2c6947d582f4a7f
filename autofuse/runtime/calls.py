"""ATen calls as closures: the operator is found and the constant arguments are made once, not at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofuse.capture.aten import constant, resolve
from autofuse.errors import CaptureError, PlanError
from autofuse.ir.graph import Argument, AtenCall, Op, Ref, refs
from autofuse.measure.execute import restride

Values = dict[str, Any]
Step = Callable[[Values], None]
Getter = Callable[[Values], Any]


def ops_step(
    ops: Sequence[Op], outputs: Sequence[str], device: str, strides: Mapping[str, tuple[int, ...]] | None = None
) -> Step:
    """Runs ops in order over a table of values, dropping what only later ops of the group would have read.

    The table ends with its own entries and everything in `outputs`. strides: of values that need these. Raises
    PlanError for an operator that this torch lacks."""
    kept = set(outputs)
    steps: list[tuple[Step, tuple[str, ...]]] = []
    for op in reversed(ops):
        dead = tuple(v for v in dict.fromkeys((*op.inputs, *op.outputs)) if v not in kept)
        kept.update(dead)
        wanted = tuple((value, strides[value]) for value in op.outputs if strides and value in strides)
        step = op_step(op, device)
        steps.append((_restrided(step, wanted) if wanted else step, dead))
    steps.reverse()
    if len(steps) == 1:
        return steps[0][0]

    def run(values: Values) -> None:
        for step, dead in steps:
            step(values)
            for name in dead:
                del values[name]

    return run


def _restrided(step: Step, wanted: Sequence[tuple[str, tuple[int, ...]]]) -> Step:
    def run(values: Values) -> None:
        step(values)
        for value, strides in wanted:
            values[value] = restride(values[value], strides)

    return run


def op_step(op: Op, device: str) -> Step:
    call = bound_call(op.call, device)
    if len(op.outputs) == 1:
        name = op.outputs[0]

        def run_one(values: Values) -> None:
            result = call(values)
            # Some operators (split, unbind) return a list that may have one item.
            values[name] = result[0] if isinstance(result, list | tuple) else result

        return run_one
    names = op.outputs

    def run(values: Values) -> None:
        values.update(zip(names, call(values), strict=True))

    return run


def bound_call(call: AtenCall, device: str) -> Getter:
    try:
        target = resolve(call.target)
        constants = [None if _varies(a) else constant(a, device) for a in call.args]
        varying = tuple((i, getter(a, device)) for i, a in enumerate(call.args) if _varies(a))
        named_constants = {name: constant(a, device) for name, a in call.kwargs if not _varies(a)}
        named = tuple((name, getter(a, device)) for name, a in call.kwargs if _varies(a))
    except CaptureError as error:
        raise PlanError(str(error)) from None

    def run(values: Values) -> Any:
        args = constants.copy()
        for i, get in varying:
            args[i] = get(values)
        if not named:
            return target(*args, **named_constants)
        return target(*args, **named_constants, **{name: get(values) for name, get in named})

    return run


def _varies(argument: Argument) -> bool:
    return next(refs(argument), None) is not None


def getter(argument: Argument, device: str) -> Getter:
    match argument:
        case Ref(name):
            return lambda values: values[name]
        case tuple():
            items = tuple(getter(item, device) for item in argument)
            return lambda values: [item(values) for item in items]
        case _:
            made = constant(argument, device)
            return lambda _: made
