"""ATen calls that Inductor runs: as an FX graph, compiled at the first call, when tensors are at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from autofuse.capture.aten import constant, resolve
from autofuse.ir.graph import Argument, Op, Ref

if TYPE_CHECKING:
    import torch


class Subgraph:
    """`subgraph(*inputs)` gives the outputs of the ops, in the order of `outputs`.

    The first call raises whatever Inductor raises; with `otherwise` it is told so instead, and the calls run one by one
    from then on. Raises CaptureError at once for an operator that this torch lacks.
    """

    def __init__(
        self, ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], device: str,
        otherwise: Callable[[Exception], None] | None = None,
    ) -> None:  # fmt: skip
        self._module = fx_module(ops, inputs, outputs, device)
        self._otherwise = otherwise
        self._compiled: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        compiled = self._compiled
        if compiled is None:
            with self._lock:
                compiled = self._compiled = self._compiled or self._compile(inputs)
        return compiled(*inputs)

    def _compile(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        try:
            # In a thread of its own: inside torch.compile's runtime, autograd's dispatch keys are off for this one, and
            # functionalisation fails ("FunctionalTensor on its own").
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(_compiled, self._module, inputs).result()
        except Exception as error:  # whatever Inductor or its compilers raise
            if self._otherwise is None:
                raise
            self._otherwise(error)
            return self._module


def _compiled(module: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """In torch.compile's default mode: no autotuned templates, and no CUDA graphs of its own."""
    import torch
    from torch._inductor.compile_fx import compile_fx

    device = next((tensor.device for tensor in inputs if tensor.is_cuda), None)
    if device is not None:
        torch.cuda.set_device(device)  # a thread begins with the first one
    with torch.no_grad():
        return compile_fx(module, list(inputs))  # pyright: ignore[reportReturnType]


def fx_module(ops: Sequence[Op], inputs: Sequence[str], outputs: Sequence[str], device: str) -> torch.fx.GraphModule:
    import operator

    import torch
    from torch.fx import Graph as FxGraph
    from torch.fx import GraphModule

    fx = FxGraph()
    nodes: dict[str, Any] = {name: fx.placeholder(name) for name in inputs}
    for op in ops:
        args = tuple(_argument(a, nodes, device) for a in op.call.args)
        kwargs = {name: _argument(a, nodes, device) for name, a in op.call.kwargs}
        node = fx.call_function(resolve(op.call.target), args, kwargs)
        if len(op.outputs) == 1:
            nodes[op.outputs[0]] = node
        else:
            for i, name in enumerate(op.outputs):
                nodes[name] = fx.call_function(operator.getitem, (node, i))
    fx.output(tuple(nodes[name] for name in outputs))
    return GraphModule(torch.nn.Module(), fx)


def _argument(argument: Argument, nodes: dict[str, Any], device: str) -> Any:
    match argument:
        case Ref(name):
            return nodes[name]
        case tuple():
            return [_argument(item, nodes, device) for item in argument]
        case _:
            return constant(argument, device)
