"""Reductions that are the whole kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def column_sum(device: str, rows: int = 32768, columns: int = 4096) -> Built:
    """The gradient of a bias: few outputs, a long reduction across rows."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0, dtype=torch.float32)

    return fn, (_randn(device, rows, columns),)


def row_amax(device: str, rows: int = 8192, columns: int = 16384) -> Built:
    """The scale of a quantised row."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.abs().amax(-1)

    return fn, (_randn(device, rows, columns),)


def column_sum_half(device: str, rows: int = 32768, columns: int = 4096) -> Built:
    """The same in the tensor's own dtype, as autograd asks for."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    return fn, (_randn(device, rows, columns),)
