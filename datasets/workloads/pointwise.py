"""Activations, gates and rotary embeddings: bound by memory traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def bias_gelu(device: str, tokens: int = 8192, hidden: int = 16384) -> Built:
    def fn(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + bias, approximate="tanh")

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden))


def swiglu(device: str, tokens: int = 8192, hidden: int = 14336) -> Built:
    def fn(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    return fn, (_randn(device, tokens, hidden), _randn(device, tokens, hidden))


def geglu_chunk(device: str, tokens: int = 8192, hidden: int = 8192) -> Built:
    """Gate and value are the halves of one tensor."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate) * up

    return fn, (_randn(device, tokens, 2 * hidden),)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)  # not x[..., :half]: torch without CUDA cannot index a fake CUDA tensor
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotary(
    device: str, batch: int = 4, tokens: int = 2048, heads: int = 32, kv_heads: int = 8, head_dim: int = 128
) -> Built:
    def fn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    q, k = _randn(device, batch, heads, tokens, head_dim), _randn(device, batch, kv_heads, tokens, head_dim)
    return fn, (q, k, _randn(device, tokens, head_dim), _randn(device, tokens, head_dim))


def bias_gelu_float16(device: str, tokens: int = 8192, hidden: int = 16384) -> Built:
    fn, args = bias_gelu(device, tokens, hidden)
    return fn, tuple(arg.half() for arg in args)


def swiglu_float32(device: str, tokens: int = 8192, hidden: int = 14336) -> Built:
    fn, args = swiglu(device, tokens, hidden)
    return fn, tuple(arg.float() for arg in args)


def embedding_position(
    device: str, batch: int = 4, tokens: int = 2048, hidden: int = 4096, vocabulary: int = 32000
) -> Built:
    """Scaled rows of a table, chosen by token, and one learned row a position."""

    def fn(ids: torch.Tensor, table: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, table) * hidden**0.5 + position

    ids = torch.randint(0, vocabulary, (batch, tokens), device=device)
    return fn, (ids, _randn(device, vocabulary, hidden), _randn(device, tokens, hidden))


def token_shift(device: str, batch: int = 4, tokens: int = 2048, hidden: int = 4096) -> Built:
    """Each token mixed with the one before it: a slice and a padding."""

    def fn(x: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
        return torch.lerp(F.pad(x.narrow(1, 0, tokens - 1), (0, 0, 1, 0)), x, mix)

    return fn, (_randn(device, batch, tokens, hidden), _randn(device, hidden))


def gather_add(device: str, rows: int = 8192, hidden: int = 4096, sources: int = 16384) -> Built:
    """Rows that experts computed come back to their tokens: two gathers, two weights, one sum."""

    def fn(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        low, high = weight.chunk(2, dim=-1)
        return x.index_select(0, first) * low + x.index_select(0, second) * high

    places = (torch.randint(0, sources, (rows,), device=device) for _ in range(2))
    return fn, (_randn(device, sources, hidden), *places, _randn(device, rows, 2))
