"""Captures what torch.compile captures: tuning and run time see the same graph, because both come this way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autofuse.capture import attention
from autofuse.capture.convert import from_fx
from autofuse.capture.decompose import decompositions
from autofuse.capture.device_guard import guard_without_cuda
from autofuse.capture.frozen import Frozen, declared, frozen_inputs, input_names, mark, unknown
from autofuse.errors import AutofuseError, CaptureError, NothingToTune
from autofuse.ir.graph import Graph

if TYPE_CHECKING:
    import torch

Compiled = Callable[..., Any]
Compiler = Callable[["torch.fx.GraphModule", Sequence[Any]], Compiled]

NO_CUDA = ("PyTorch is not linked with support for", "Torch not compiled with CUDA enabled")
"""What torch says where it must set the device of a fake tensor and cannot, or makes a real one of it (sparse)."""


@dataclass(frozen=True)
class Captured:
    """One graph of a function. `example_inputs` are the tensors (fake or real) that its inputs were traced with."""

    graph: Graph
    example_inputs: tuple[torch.Tensor, ...] = field(repr=False, hash=False, compare=False)


def aot_backend(
    fw_compiler: Compiler, frozen: Frozen = (), on_names: Callable[[Sequence[str]], None] = lambda _names: None
) -> Callable[..., Compiled]:  # fmt: skip
    """A Dynamo backend: attention made opaque, functionalised and decomposed, what is frozen marked, then
    fw_compiler(gm, example_inputs). on_names: told what the inputs of each graph are called."""
    from torch._dynamo.backends.common import aot_autograd

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_options: Any) -> Compiled:
        attention.replace(gm)
        marks = frozen_inputs(gm, example_inputs, frozen)
        on_names(input_names(gm))

        def compile_marked(inner: torch.fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
            mark(inner, marks)
            return fw_compiler(inner, inputs)

        boxed = _boxed(compile_marked)
        compiler = aot_autograd(fw_compiler=boxed, inference_compiler=boxed, decompositions=decompositions())
        return compiler(gm, list(example_inputs))

    return backend


def _boxed(compiler: Compiler) -> Compiler:
    from functorch.compile import make_boxed_func  # pyright: ignore[reportPrivateImportUsage]  # its documented home

    def compile_boxed(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        run = compiler(gm, example_inputs)
        return run if getattr(run, "_boxed_call", False) else make_boxed_func(run)

    return compile_boxed


def capture(fn: Callable[..., Any], args: Sequence[Any], *, fullgraph: bool = False) -> tuple[Captured, ...]:
    """The graphs of fn(*args), in the order they run; args may be fake tensors. Runs fn once, as compiled. What was
    declared frozen (capture.frozen) is so in the graphs.

    Raises CaptureError where torch.compile fails or what is frozen is not there, NothingToTune where there is no tensor
    operation.
    """
    import torch

    found: list[Captured] = []

    def record(gm: torch.fx.GraphModule, _example_inputs: Sequence[Any]) -> Compiled:
        inputs = tuple(node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder")
        found.append(Captured(from_fx(gm), inputs))
        return gm.forward

    torch._dynamo.reset()
    names: set[str] = set()
    backend = aot_backend(record, declared(fn), names.update)
    compiled = torch.compile(fn, backend=backend, fullgraph=fullgraph, dynamic=False)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(_quiet("torch._subclasses.fake_tensor"))
            mode = _fake_mode((fn, *args))
            if mode is not None:
                stack.enter_context(mode)
                stack.enter_context(guard_without_cuda())
            compiled(*args)
    except SystemExit as error:
        raise CaptureError(f"the function ends the process: SystemExit({error.code!r})") from error
    except Exception as error:  # whatever the user's function or Dynamo raises: reported as one kind, with its cause
        raise CaptureError(_reason(error)) from error
    finally:
        torch._dynamo.reset()
    if not found:
        raise NothingToTune("the function has no tensor operation that torch.compile captures")
    if fault := unknown(declared(fn), names):
        raise CaptureError(fault)
    return tuple(found)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """torch logs a traceback for the user's own mistake, which is raised as well: ours says it in one line."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _reason(error: BaseException) -> str:
    """Our own message where one lies beneath Dynamo's wrapping, else the first line of the outer one that says why."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    below: BaseException | None = error
    while below is not None:
        if isinstance(below, AutofuseError):
            return str(below)
        below = below.__cause__ or getattr(below, "inner_exception", None)
    if any(text in str(error) for text in NO_CUDA):
        return "a torch without CUDA cannot capture this function: it needs a GPU build of torch or a GPU host"
    if isinstance(error, DynamicOutputShapeException | DataDependentOutputException):
        return f"{error.func} depends on its input's numbers, which tuning without a GPU has not: it needs a GPU host"
    inner = getattr(error, "inner_exception", None)
    lines = _lines(error)
    if inner is not None and lines[0].endswith("raised:"):  # "backend='backend' raised:" and no more
        error, lines = inner, _lines(inner)
    detail = next((f" ({line})" for line in lines[1:] if line.startswith("Explanation:")), "")
    return f"torch.compile failed: {type(error).__name__}: {lines[0]}{detail}"


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).strip().splitlines()] or [""]


def _fake_mode(values: Sequence[Any]) -> Any:
    """The mode of the first fake tensor among arguments and module parameters."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_leaves

    for value in tree_leaves(list(values)):
        held = [*value.parameters(), *value.buffers()] if isinstance(value, torch.nn.Module) else [value]
        for tensor in held:
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    return None
