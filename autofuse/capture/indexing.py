"""`x[...]` on fake CUDA tensors in a torch without CUDA, where torch's own __getitem__ stops without a device guard.

The calls are those that torch's makes, in its order, so that a graph captured here has the key that it has on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

END = 2**63 - 1
"""What torch takes for the end of a slice that has none."""


@contextmanager
def indexing_without_cuda() -> Iterator[None]:
    """Changes torch.Tensor.__getitem__ for the time being; does nothing where torch has CUDA."""
    import torch

    if torch.backends.cuda.is_built():
        yield
        return
    before = torch.Tensor.__getitem__

    def getitem(tensor: torch.Tensor, key: Any) -> Any:
        found = index(tensor, key) if tensor.device.type == "cuda" else None
        return before(tensor, key) if found is None else found

    torch.Tensor.__getitem__ = getitem  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del torch.Tensor.__getitem__  # what it inherits is seen again


def index(tensor: Any, key: Any) -> Any:
    """tensor[key] by ATen calls; None for a key of other than numbers, slices, None, Ellipsis and integer tensors."""
    import torch

    aten = torch.ops.aten
    alone = not isinstance(key, tuple)
    key = (key,) if alone else key
    if not all(_is_plain(part) for part in key):
        return None
    given = sum(part is not None and part is not Ellipsis for part in key)
    found, dim = tensor, 0
    chosen: dict[int, Any] = {}
    for part in key:
        if part is None:
            found, dim = aten.unsqueeze.default(found, dim), dim + 1
        elif part is Ellipsis:
            dim += tensor.dim() - given
        elif isinstance(part, slice):
            found, dim = _slice(found, dim, part, keep=alone), dim + 1
        elif isinstance(part, int):
            found = aten.select.int(found, dim, part)
        else:
            chosen[dim] = part
            dim += 1
    if chosen:
        return aten.index.Tensor(found, [chosen.get(d) for d in range(max(chosen) + 1)])
    return aten.alias.default(found) if found is tensor else found


def _is_plain(part: Any) -> bool:
    import torch

    if isinstance(part, torch.Tensor):
        return part.dtype in (torch.int32, torch.int64) and part.dim() > 0
    if isinstance(part, slice):
        limits = (part.start, part.stop, part.step)
        return all(n is None or (isinstance(n, int) and not isinstance(n, bool)) for n in limits)
    return part is None or part is Ellipsis or (isinstance(part, int) and not isinstance(part, bool))


def _slice(tensor: Any, dim: int, part: slice, *, keep: bool) -> Any:
    import torch

    start, stop, step = part.start or 0, END if part.stop is None else part.stop, 1 if part.step is None else part.step
    if not keep and start == 0 and stop >= tensor.shape[dim] and step == 1:
        return tensor
    return torch.ops.aten.slice.Tensor(tensor, dim, start, stop, step)
