"""Softmax, its logarithm, and cross entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def softmax(device: str, rows: int = 8192, columns: int = 4096) -> Built:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)

    return fn, (_randn(device, rows, columns),)


def log_softmax(device: str, rows: int = 4096, columns: int = 65536) -> Built:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1)

    return fn, (_randn(device, rows, columns),)


def cross_entropy(device: str, rows: int = 8192, classes: int = 128256) -> Built:
    """One loss a row."""

    def fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, reduction="none")

    return fn, (_randn(device, rows, classes), torch.randint(0, classes, (rows,), device=device))
