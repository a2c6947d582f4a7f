"""Several matrix products together, and products of few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def norm_linear_plain(device: str, tokens: int = 8192, hidden: int = 4096, out_features: int = 6144) -> Built:
    """RMS norm without a column scale: only a factor a row comes before the product."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, (hidden,), eps=1e-6), weight)

    return fn, (_randn(device, tokens, hidden), _randn(device, out_features, hidden))


def qkv(device: str, tokens: int = 8192, hidden: int = 4096, width: int = 4096, kv_width: int = 1024) -> Built:
    """Three linears of unequal width that read one input."""

    def fn(
        x: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return F.linear(x, query), F.linear(x, key), F.linear(x, value)

    return fn, (
        _randn(device, tokens, hidden),
        _randn(device, width, hidden),
        _randn(device, kv_width, hidden),
        _randn(device, kv_width, hidden),
    )


def relu_chain(device: str, rows: int = 65536, features: int = 128, hidden: int = 128) -> Built:
    """Two products whose intermediate fits into a tile."""

    def fn(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ first) @ second)

    return fn, (_randn(device, rows, features), _randn(device, features, hidden), _randn(device, hidden, features))


def two_linears(device: str, tokens: int = 8192, hidden: int = 4096, inner: int = 4096) -> Built:
    """Two large products in a row: the intermediate fits nowhere, so that fusing is expected to lose."""

    def fn(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return F.linear(F.relu(F.linear(x, first)), second)

    return fn, (_randn(device, tokens, hidden), _randn(device, inner, hidden), _randn(device, hidden, inner))


def lora_linear(
    device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 4096, rank: int = 16
) -> Built:
    """A low-rank adapter beside a frozen linear."""

    def fn(x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight) + F.linear(F.linear(x, down), up) * 2.0

    return fn, (
        _randn(device, tokens, in_features),
        _randn(device, out_features, in_features),
        _randn(device, rank, in_features),
        _randn(device, out_features, rank),
    )


def skinny_linear(device: str, tokens: int = 8, in_features: int = 4096, out_features: int = 14336) -> Built:
    """Decoding: the weight's bytes are the time."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)

    return fn, (_randn(device, tokens, in_features), _randn(device, out_features, in_features))


def matrix_vector(device: str, in_features: int = 4096, out_features: int = 14336) -> Built:
    def fn(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return weight @ x

    return fn, (_randn(device, out_features, in_features), _randn(device, in_features))
