"""Matrix products with what is fused before and after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def linear(device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 4096) -> Built:
    module = torch.nn.Linear(in_features, out_features, device=device, dtype=torch.bfloat16)
    return module, (_randn(device, tokens, in_features),)


def linear_bias_gelu(device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 16384) -> Built:
    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")

    return fn, (
        _randn(device, tokens, in_features),
        _randn(device, out_features, in_features),
        _randn(device, out_features),
    )


def linear_residual(device: str, tokens: int = 8192, in_features: int = 16384, out_features: int = 4096) -> Built:
    def fn(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight) + residual

    return fn, (
        _randn(device, tokens, in_features),
        _randn(device, out_features, in_features),
        _randn(device, tokens, out_features),
    )


def mlp_relu(device: str, tokens: int = 65536, features: int = 256, hidden: int = 256) -> Built:
    """Three narrow layers: each one is bound by memory, so their borders matter."""
    sizes = {"device": device, "dtype": torch.bfloat16}
    layers = [torch.nn.Linear(features, hidden, **sizes), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden, **sizes)]
    module = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(hidden, features, **sizes))
    return module, (_randn(device, tokens, features),)


def gated_mlp_up(device: str, tokens: int = 8192, in_features: int = 4096, hidden: int = 14336) -> Built:
    def fn(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    return fn, (
        _randn(device, tokens, in_features),
        _randn(device, hidden, in_features),
        _randn(device, hidden, in_features),
    )


def norm_linear_frozen(
    device: str, tokens: int = 8192, hidden: int = 4096, out_features: int = 4096
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]:
    """As norm_linear, with weights that never change: the scale may go into the weight, ahead of all calls."""
    return *norm_linear(device, tokens, hidden, out_features), ("scale", "weight")


def norm_linear(device: str, tokens: int = 8192, hidden: int = 4096, out_features: int = 4096) -> Built:
    def fn(x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (x.shape[-1],), scale, 1e-6), weight)

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden), _randn(device, out_features, hidden))
