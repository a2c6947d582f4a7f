"""Random tensors for a graph's inputs, and buffers for what steps write: plain ones, or guarded and poisoned ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autofuse.ir.graph import Graph, TensorType
from autofuse.measure.records import Inputs

if TYPE_CHECKING:
    import torch

GUARD_BYTES = 1024
GUARD = 0xC3
POISONS = (0xFF, 0x5A)
"""One a draw. 0xFF bytes are NaN in every float format and -1 or 255 as integers; 0x5A bytes are large finite numbers
and catch what a NaN would not (a kernel that ignores NaN, an integer that happens to be -1)."""


def dtype_of(name: str) -> Any:
    import torch

    return getattr(torch, name)


def span(kind: TensorType) -> int:
    """Elements of storage that shape and strides reach."""
    if kind.numel == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(kind.shape, kind.strides, strict=True))


def draw(graph: Graph, inputs: Inputs, device: str, number: int) -> dict[str, torch.Tensor]:
    """Fresh random inputs; the same (seed, number) gives the same values on the same device."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(inputs.seed * 1009 + number)
    return {name: _random(graph.types[name], inputs, name, device, generator) for name in graph.inputs}


def _random(kind: TensorType, inputs: Inputs, name: str, device: str, generator: Any) -> torch.Tensor:
    import torch

    dtype = dtype_of(kind.dtype)
    count = span(kind)
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32
        flat = torch.randn(count, dtype=wide, device=device, generator=generator)
        flat = (flat * inputs.scale if inputs.scale != 1.0 else flat).to(dtype)
    elif dtype == torch.bool:
        flat = torch.randint(0, 2, (count,), device=device, generator=generator).to(dtype)
    else:
        low, high = inputs.ranges.get(name, (0, 2))
        flat = torch.randint(low, high, (count,), device=device, generator=generator).to(dtype)
    return torch.as_strided(flat, kind.shape, kind.strides)


def plain(kind: TensorType, device: str) -> torch.Tensor:
    import torch

    return torch.empty_strided(kind.shape, kind.strides, dtype=dtype_of(kind.dtype), device=device)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A poisoned tensor between two runs of guard bytes."""

    tensor: Any
    storage: Any

    @staticmethod
    def make(kind: TensorType, device: str, poison: int) -> Guarded:
        import torch

        dtype = dtype_of(kind.dtype)
        nbytes = span(kind) * dtype.itemsize
        padded = -(-nbytes // 16) * 16
        storage = torch.full((padded + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
        storage[GUARD_BYTES : GUARD_BYTES + nbytes] = poison
        body = storage[GUARD_BYTES : GUARD_BYTES + nbytes].view(dtype)
        return Guarded(torch.as_strided(body, kind.shape, kind.strides, body.storage_offset()), storage)

    def intact(self, kind: TensorType) -> bool:
        """Whether nothing was written outside the tensor's own span."""
        nbytes = span(kind) * self.tensor.element_size()
        ahead = self.storage[:GUARD_BYTES]
        behind = self.storage[GUARD_BYTES + nbytes :]
        return bool((ahead == GUARD).all()) and bool((behind == GUARD).all())
