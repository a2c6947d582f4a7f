"""Which accesses a tensor descriptor (TMA) can make, and how it is built."""

from __future__ import annotations

from autofuse.codegen.kernel import Parameter
from autofuse.codegen.layout import Layout
from autofuse.ir.graph import ITEMSIZE
from autofuse.ir.index import Index
from autofuse.ir.program import Program

ALIGNMENT = 16
"""Bytes that the base and every stride but the last must be a multiple of (cuTensorMapEncodeTiled)."""
MAX_BOX = 256
"""Most elements of one dimension of a descriptor's tile (same source)."""


def descriptor_of(
    program: Program, value: str, index: tuple[Index, ...], dims: tuple[str, ...], layout: Layout
) -> tuple[Parameter, str, tuple[str, ...]] | None:
    """(parameter, start indices, tile axes in memory order) of an access, or None where no descriptor can make it.

    Each dimension must be one axis or a scalar, the last one contiguous, rows aligned to 16 bytes.
    """
    kind = program.types[value]
    size = ITEMSIZE[kind.dtype]
    if not 2 <= len(index) <= 5 or kind.dtype == "bool" or len(dims) != 2:
        return None
    if kind.strides[-1] != 1 or any(s <= 0 or (s * size) % ALIGNMENT for s in kind.strides[:-1]):
        return None
    block: list[int] = []
    starts: list[str] = []
    held: list[str] = []
    for part in index:
        axis = part.axis
        if axis is not None and axis in dims:
            block.append(layout.size(axis))
            starts.append(f"{axis}_start")
            held.append(axis)
        elif all(layout.scalar(a) for a in part.axes) and not part.nodes:
            block.append(1)
            terms = [
                f"{a}_start" if part.coefficient(a) == 1 else f"{a}_start * {part.coefficient(a)}" for a in part.axes
            ]
            starts.append(" + ".join([*terms, *([str(part.const)] if part.const or not terms else [])]))
        else:
            return None
    contiguous = block[-1] * size
    if set(held) != set(dims) or max(block) > MAX_BOX or contiguous < ALIGNMENT or any(
        layout.roles[a].kind == "split" and layout.masked(a) for a in held
    ):  # fmt: skip
        return None
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in value)
    tag = "x".join(map(str, block))
    parameter = Parameter(f"{name}_desc{tag}", value, kind.dtype, tuple(block), kind.shape, kind.strides)
    return parameter, ", ".join(starts), tuple(held)
