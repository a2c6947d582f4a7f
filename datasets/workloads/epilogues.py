"""Matrix products with more than a map after them: several outputs, or a reduction within a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def linear_dropout_residual(
    device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 4096
) -> Built:
    """Returns the new residual stream and what was added to it. The mask is an argument, so that results repeat."""

    def fn(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dropped = torch.where(keep, F.linear(x, weight, bias) * (1 / 0.9), 0.0)
        return residual + 0.5 * dropped, dropped

    keep = torch.rand(tokens, out_features, device=device) < 0.9
    return fn, (
        _randn(device, tokens, in_features),
        _randn(device, out_features, in_features),
        _randn(device, out_features),
        keep,
        _randn(device, tokens, out_features),
    )


def linear_head_norm(
    device: str, tokens: int = 8192, in_features: int = 4096, heads: int = 32, head_dim: int = 128
) -> Built:
    """Queries that are normalised head by head (QK norm)."""

    def fn(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(F.linear(x, weight).view(tokens, heads, head_dim), (head_dim,), scale, 1e-6)

    return fn, (_randn(device, tokens, in_features), _randn(device, heads * head_dim, in_features),
                _randn(device, head_dim))  # fmt: skip


def router(device: str, tokens: int = 16384, hidden: int = 4096, experts: int = 128) -> Built:
    """The probabilities of a mixture's experts."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, weight), dim=-1, dtype=torch.float32)

    return fn, (_randn(device, tokens, hidden), _randn(device, experts, hidden) * hidden**-0.5)


def router_top1(device: str, tokens: int = 16384, hidden: int = 4096, experts: int = 128) -> Built:
    """The best expert and its probability."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = torch.softmax(F.linear(x, weight), dim=-1, dtype=torch.float32).max(-1)
        return best.values, best.indices

    return fn, (_randn(device, tokens, hidden), _randn(device, experts, hidden) * hidden**-0.5)


def linear_layer_norm(device: str, tokens: int = 8192, in_features: int = 4096, hidden: int = 8192) -> Built:
    """A norm over all of a long row: no tile holds it, so that fusing is expected to lose."""

    def fn(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.linear(x, weight), (hidden,), scale, bias)

    return fn, (_randn(device, tokens, in_features), _randn(device, hidden, in_features), _randn(device, hidden),
                _randn(device, hidden))  # fmt: skip


def linear_float16(device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 4096) -> Built:
    """With bias and ReLU."""

    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.linear(x, weight, bias))

    args = _randn(device, tokens, in_features), _randn(device, out_features, in_features), _randn(device, out_features)
    return fn, tuple(arg.half() for arg in args)
