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


def layer_norm_float32(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    module = torch.nn.LayerNorm(hidden, device=device)
    return module, (_randn(device, tokens, hidden).float(),)


def layer_norm_backward(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    """Gradients of the input, the scale and the bias: reductions along both dimensions of the same two tensors."""

    def fn(
        x: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        normal, wide = (x.float() - mean) * rstd, grad.float()
        scaled = wide * weight.float()
        along = (scaled * normal).mean(-1, keepdim=True)
        dx = (scaled - scaled.mean(-1, keepdim=True) - normal * along) * rstd
        return dx.to(x.dtype), (wide * normal).sum(0).to(weight.dtype), wide.sum(0).to(weight.dtype)

    x = _randn(device, tokens, hidden)
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    return fn, (x, _randn(device, tokens, hidden), mean, torch.rsqrt(variance + 1e-5), _randn(device, hidden))


def instance_norm_relu(device: str, batch: int = 8, channels: int = 256, size: int = 64) -> Built:
    """With a residual, as in a style transfer network's block."""

    def fn(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.instance_norm(x, weight=weight, bias=bias)) + residual

    x, residual = _randn(device, batch, channels, size, size), _randn(device, batch, channels, size, size)
    return fn, (x, residual, _randn(device, channels), _randn(device, channels))


def batch_norm_eval(device: str, batch: int = 32, channels: int = 256, size: int = 56) -> Built:
    """Stored statistics, residual, ReLU: a ResNet's block end."""

    def fn(
        x: torch.Tensor, residual: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor,
        weight: torch.Tensor, bias: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        return F.relu(F.batch_norm(x, mean, variance, weight, bias) + residual)

    x, residual = _randn(device, batch, channels, size, size), _randn(device, batch, channels, size, size)
    mean, variance = _randn(device, channels), _randn(device, channels).abs() + 0.5
    return fn, (x, residual, mean, variance, _randn(device, channels), _randn(device, channels))


def batch_norm_train(device: str, batch: int = 32, channels: int = 256, size: int = 56) -> Built:
    """Statistics of this batch, over all but the channels."""

    def fn(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(x, None, None, weight, bias, training=True) + residual)

    x, residual = _randn(device, batch, channels, size, size), _randn(device, batch, channels, size, size)
    return fn, (x, residual, _randn(device, channels), _randn(device, channels))
