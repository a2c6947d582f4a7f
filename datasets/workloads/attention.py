"""Attention as it is written by hand: matmul, scale, mask, softmax, matmul."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def _qkv(device: str, batch: int, heads: int, tokens: int, head_dim: int) -> list[torch.Tensor]:
    return [_randn(device, batch, heads, tokens, head_dim) for _ in range(3)]


def _positions(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries down, of keys across."""
    rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(1)
    return rows, torch.arange(k.shape[-2], device=k.device).unsqueeze(0)


def _weighted(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v


def attention_causal(device: str, batch: int = 4, heads: int = 32, tokens: int = 2048, head_dim: int = 128) -> Built:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
        row, column = _positions(q, k)
        return _weighted(scores.masked_fill(column > row, float("-inf")), v)

    return fn, tuple(_qkv(device, batch, heads, tokens, head_dim))


def attention_float16(device: str, batch: int = 4, heads: int = 16, tokens: int = 2048, head_dim: int = 64) -> Built:
    """Without a mask."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * head_dim**-0.5, dim=-1) @ v

    return fn, tuple(x.half() for x in _qkv(device, batch, heads, tokens, head_dim))


def attention_masked(device: str, batch: int = 4, heads: int = 16, tokens: int = 1024, head_dim: int = 64) -> Built:
    """BERT's: a number added to the scores, one a key of each sequence."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(head_dim) + mask, dim=-1) @ v

    mask = torch.where(_randn(device, batch, 1, 1, tokens) > 1.0, -10000.0, 0.0).to(torch.bfloat16)
    return fn, (*_qkv(device, batch, heads, tokens, head_dim), mask)


def attention_alibi(device: str, batch: int = 4, heads: int = 32, tokens: int = 2048, head_dim: int = 128) -> Built:
    """Causal, with a penalty that grows with the distance, at a slope of each head's own."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        row, column = _positions(q, k)
        bias = slopes.view(heads, 1, 1) * (column - row)
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim) + bias
        return _weighted(scores.masked_fill(column > row, float("-inf")), v)

    slopes = torch.exp2(-8.0 / heads * torch.arange(1, heads + 1, device=device))
    return fn, (*_qkv(device, batch, heads, tokens, head_dim), slopes)


def attention_bias_softcap(
    device: str, batch: int = 2, heads: int = 16, tokens: int = 2048, head_dim: int = 128
) -> Built:
    """A learned bias a head, and scores that never leave (-30, 30): what SDPA cannot express."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1) / math.sqrt(head_dim)).float()
        return _weighted(30.0 * torch.tanh(scores / 30.0) + bias, v)

    return fn, (*_qkv(device, batch, heads, tokens, head_dim), _randn(device, heads, tokens, tokens))


def attention_window(
    device: str, batch: int = 2, heads: int = 32, tokens: int = 4096, head_dim: int = 128, window: int = 1024
) -> Built:
    """Causal, `window` keys back at most."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
        row, column = _positions(q, k)
        outside = (column > row) | (row - column >= window)
        return _weighted(scores.masked_fill(outside, float("-inf")), v)

    return fn, tuple(_qkv(device, batch, heads, tokens, head_dim))


def attention_grouped(
    device: str, batch: int = 4, heads: int = 32, kv_heads: int = 8, tokens: int = 2048, head_dim: int = 128
) -> Built:
    """Causal; each head of keys and values serves several of queries, by repeating it."""

    def repeat(x: torch.Tensor) -> torch.Tensor:
        wide = x.unsqueeze(2).expand(batch, kv_heads, heads // kv_heads, tokens, head_dim)
        return wide.reshape(batch, heads, tokens, head_dim)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = repeat(k), repeat(v)
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)
        row, column = _positions(q, k)
        return _weighted(scores.masked_fill(column > row, float("-inf")), v)

    k, v = (_randn(device, batch, kv_heads, tokens, head_dim) for _ in range(2))
    return fn, (_randn(device, batch, heads, tokens, head_dim), k, v)


def attention_decode(
    device: str, batch: int = 4, heads: int = 32, kv_heads: int = 8, keys: int = 32768, head_dim: int = 128
) -> Built:
    """One new query a sequence over a cache of which each sequence has filled a part of its own."""

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        grouped = q.view(batch, kv_heads, heads // kv_heads, head_dim)
        scores = grouped @ k.transpose(-2, -1) / math.sqrt(head_dim)
        empty = torch.arange(keys, device=q.device) >= lengths.view(batch, 1, 1, 1)
        return _weighted(scores.masked_fill(empty, float("-inf")), v).view(batch, heads, head_dim)

    k, v = (_randn(device, batch, kv_heads, keys, head_dim) for _ in range(2))
    lengths = torch.randint(max(1, keys // 2), keys + 1, (batch,), device=device)
    return fn, (_randn(device, batch, heads, head_dim), k, v, lengths)
