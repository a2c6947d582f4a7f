"""Normalisations: one or two reductions a row, and what is fused around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def residual_rms_norm(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    """Returns the norm and the new residual stream."""

    def fn(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stream = x + residual
        wide = stream.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(stream.dtype) * weight, stream

    return fn, (_randn(device, tokens, hidden), _randn(device, tokens, hidden), _randn(device, hidden))


def layer_norm(device: str, tokens: int = 8192, hidden: int = 8192) -> Built:
    module = torch.nn.LayerNorm(hidden, device=device, dtype=torch.bfloat16)
    return module, (_randn(device, tokens, hidden),)


def rms_norm(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden))


def group_norm_silu(device: str, batch: int = 8, channels: int = 512, size: int = 64, groups: int = 32) -> Built:
    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x, groups, weight, bias))

    return fn, (_randn(device, batch, channels, size, size), _randn(device, channels), _randn(device, channels))
