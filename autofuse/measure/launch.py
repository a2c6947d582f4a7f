"""Launching a Kernel on the live GPU with least overhead, and running one in Triton's interpreter.

Used by the worker and by the runtime. Triton's own launch spends most of its 13 us on binding and specialising
arguments; here all of that is done once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autofuse.codegen.kernel import Kernel, Parameter
from autofuse.measure.source import compile_kernel, load

if TYPE_CHECKING:
    import torch

_LIBRARY_ALIGNMENT = 16


class Launcher:
    """A kernel compiled for the current CUDA device. Raises what Triton raises when it does not compile or does not
    fit the device; `launcher(tensors, stream)` enqueues one launch and returns."""

    def __init__(self, kernel: Kernel) -> None:
        import triton

        self.kernel = kernel
        driver = triton.runtime.driver.active
        self.compiled = compile_kernel(kernel, driver.get_current_target().arch)
        self._run = self.compiled.run  # loads the module, so that the first launch is like any other
        self._stream = driver.get_current_stream
        self._device = driver.get_current_device()
        self._constants = tuple(value for _, value in kernel.constants)
        self._arguments = tuple((parameter.value, _bind(parameter)) for parameter in kernel.parameters)
        self._head = (*kernel.grid,)
        self._tail = (self.compiled.function, self.compiled.packed_metadata, None, None, None)

    def __call__(self, tensors: Mapping[str, torch.Tensor], stream: int | None = None) -> None:
        """`tensors` by value name. Outputs in `zeroed` are zeroed first. `stream` is a raw handle; None: the current.

        Raises ValueError when a tensor is not aligned as the kernel assumes.
        """
        for value in self.kernel.zeroed:
            tensors[value].zero_()
        arguments = [bind(tensors[value]) for value, bind in self._arguments]
        stream = self._stream(self._device) if stream is None else stream
        self._run(*self._head, stream, *self._tail, *arguments, *self._constants)


def _bind(parameter: Parameter) -> Callable[[torch.Tensor], Any]:
    if parameter.block:
        return _Descriptor(parameter)
    if parameter.aligned:
        return _aligned_pointer
    return _pointer


def _pointer(tensor: torch.Tensor) -> int:
    # A bare integer spares the launcher a method call and a cuPointerGetAttribute for each argument.
    return tensor.data_ptr()


def _aligned_pointer(tensor: torch.Tensor) -> int:
    address = tensor.data_ptr()
    if address % _LIBRARY_ALIGNMENT:
        raise ValueError(f"tensor at {address:#x} is not {_LIBRARY_ALIGNMENT}-byte aligned")
    return address


class _Descriptor:
    """Host-built TMA descriptor of a tensor; the last one is kept, since weights stay where they are."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._address = -1
        self._made: Any = None

    def __call__(self, tensor: torch.Tensor) -> Any:
        address = tensor.data_ptr()
        if address != self._address or self._made is None:
            self._made = descriptor(self._parameter, tensor)
            self._address = address
        # TensorDescriptor reads only the address, so a stale `base` at the same address is the same descriptor; still
        # hold the live tensor, or a freed one would be kept alive.
        self._made.base = tensor
        return self._made


def descriptor(parameter: Parameter, tensor: torch.Tensor) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, list(parameter.shape), list(parameter.strides), list(parameter.block))


def interpret(kernel: Kernel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Run a kernel on CPU tensors in Triton's interpreter; outputs are written in place.

    Triton decides at import whether its own library (tl.sum and friends) is interpreted, so a process that has
    imported triton without TRITON_INTERPRET=1 cannot switch: a child of ours does it then, one for all calls.
    Raises RuntimeError with the first meaningful line when the kernel fails. Values are float16 or float32 (the
    interpreter does no arithmetic in bfloat16).
    """
    if interpreting():
        interpret_here(kernel, tensors)
        return
    from autofuse.measure.supervisor import interpreter

    interpreter().run_kernel(kernel, tensors)


def interpreting() -> bool:
    """Whether this process's Triton, once imported, is the interpreter."""
    import os

    if "triton" not in sys.modules:
        return os.environ.get("TRITON_INTERPRET") == "1"
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(tl.sum, InterpretedFunction)


def interpret_here(kernel: Kernel, tensors: Mapping[str, torch.Tensor]) -> None:
    """As `interpret`, in this process, which must be `interpreting()`."""
    function = load(kernel)
    for value in kernel.zeroed:
        tensors[value].zero_()
    arguments = [
        descriptor(parameter, tensors[parameter.value]) if parameter.block else tensors[parameter.value]
        for parameter in kernel.parameters
    ]
    function[kernel.grid](*arguments, **dict(kernel.constants))
