"""Launching a Kernel on the live GPU with least overhead, and running one in Triton's interpreter.

Used by the worker and by the runtime. Triton's own launch spends most of its 13 us on binding and specialising
arguments; here all of that is done once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autofuse.codegen.kernel import Kernel, Parameter
from autofuse.measure.source import compile_kernel, load

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 16


class Launcher:
    """A kernel compiled for the current CUDA device. Raises what Triton raises when it does not compile or does not
    fit the device; `launcher(tensors, stream)` enqueues one launch and returns."""

    def __init__(self, kernel: Kernel) -> None:
        import triton

        self.kernel = kernel
        driver: Any = triton.runtime.driver.active
        self.compiled = compile_kernel(kernel, driver.get_current_target().arch)
        launcher = self.compiled.run  # loads the module, so that the first launch is like any other
        self._stream = driver.get_current_stream
        self._device = driver.get_current_device()
        self._constants = tuple(value for _, value in kernel.constants)
        metadata = (self.compiled.packed_metadata, None, None, None)
        raw = _raw_launch(launcher)
        if raw is None:
            self._run, middle, descriptors = launcher, (self.compiled.function, *metadata), None
        else:
            settings = (launcher.launch_cooperative_grid, launcher.launch_pdl, None, None)
            self._run, middle = raw, (self.compiled.function, *settings, *metadata)
            descriptors = iter(self.compiled.metadata.tensordesc_meta or ())
        self._middle = middle
        self._scratch_of = _Scratch(kernel) if any(p.scratch for p in kernel.parameters) else None
        self._arguments = tuple(
            (parameter.value, _bind(parameter, descriptors)) for parameter in kernel.parameters
        )  # fmt: skip

    def __call__(self, tensors: Mapping[str, torch.Tensor], stream: int | None = None) -> None:
        """`tensors` by value name. Outputs in `zeroed` are zeroed first. `stream` is a raw handle; None: the current.

        Raises ValueError when a tensor is not aligned as the kernel assumes.
        """
        for value in self.kernel.zeroed:
            tensors[value].zero_()
        handle: int = self._stream(self._device) if stream is None else stream
        if self._scratch_of is not None:
            tensors = {**tensors, **self._scratch_of(handle)}
        arguments: list[Any] = []
        for value, bind in self._arguments:
            arguments += bind(tensors[value])
        self._run(*self.kernel.grid, handle, *self._middle, *arguments, *self._constants)


class _Scratch:
    """A kernel's own buffers: one set a stream, kept, since launches on one stream run one after the other. Under
    capture a set of its own, zeroed by the graph: the graph's memory is not ours to keep."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._kept: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, stream: int) -> dict[str, torch.Tensor]:
        import torch

        found = self._kept.get(stream)
        if found is None:
            found = scratch(self._kernel, "cuda")
            if not torch.cuda.is_current_stream_capturing():
                self._kept[stream] = found
        return found


def scratch(kernel: Kernel, device: str) -> dict[str, torch.Tensor]:
    """Zeroed buffers for a kernel's scratch parameters, by name."""
    import torch

    return {
        p.value: torch.zeros(p.scratch, dtype=getattr(torch, p.dtype), device=device)
        for p in kernel.parameters if p.scratch
    }  # fmt: skip


def _raw_launch(launcher: Any) -> Callable[..., None] | None:
    """The C function under Triton 3.6's CudaLauncher, past its Python layers; None where they are needed (scratch
    memory) or are not as expected (another Triton). It takes descriptors as (CUtensorMap, *shape, *strides)."""
    if getattr(launcher, "global_scratch_size", 1) or getattr(launcher, "profile_scratch_size", 1):
        return None
    launch = launcher.launch
    if not hasattr(launch, "__closure__"):
        return launch
    names = launch.__code__.co_freevars
    return launch.__closure__[names.index("launcher")].cell_contents if "launcher" in names else None


def _bind(parameter: Parameter, descriptors: Iterator[Any] | None) -> Callable[[torch.Tensor], Sequence[Any]]:
    """What turns a tensor into launch arguments. `descriptors`: Triton's facts of each descriptor parameter in turn,
    None to leave the descriptor to Triton."""
    if parameter.block:
        return _Descriptor(parameter, None if descriptors is None else next(descriptors))
    if parameter.aligned:
        return _aligned_pointer
    return _pointer


def _pointer(tensor: torch.Tensor) -> Sequence[Any]:
    # A bare integer spares the launcher a method call and a cuPointerGetAttribute for each argument.
    return (tensor.data_ptr(),)


def _aligned_pointer(tensor: torch.Tensor) -> Sequence[Any]:
    address = tensor.data_ptr()
    if address % _ALIGNMENT:
        raise ValueError(f"tensor at {address:#x} is not {_ALIGNMENT}-byte aligned")
    return (address,)


class _Descriptor:
    """TMA descriptor of a tensor. Making one costs some 4 us; the last is kept, by address, since weights stay where
    they are (shape and strides are the kernel's own)."""

    def __init__(self, parameter: Parameter, facts: Any) -> None:
        self._parameter = parameter
        self._facts = facts
        self._address = -1
        self._made: Sequence[Any] = ()

    def __call__(self, tensor: torch.Tensor) -> Sequence[Any]:
        address = tensor.data_ptr()
        if address != self._address:
            made = descriptor(self._parameter, tensor)
            if self._facts is None:
                return (made,)
            from triton.backends.nvidia.driver import make_tensordesc_arg

            self._made = tuple(make_tensordesc_arg(made, self._facts))
            self._address = address
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
    from autofuse.measure.supervisor import run_in_interpreter

    run_in_interpreter(kernel, tensors)


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
    tensors = {**tensors, **scratch(kernel, "cpu")}
    arguments = [
        descriptor(parameter, tensors[parameter.value]) if parameter.block else tensors[parameter.value]
        for parameter in kernel.parameters
    ]
    function[kernel.grid](*arguments, **dict(kernel.constants))
