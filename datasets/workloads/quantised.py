"""Quantising after a norm or a matmul, and matmuls with weights of few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In float32, which is what is quantised."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()


def rms_norm_fp8_row(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    """Returns the row in float8_e4m3fn and its scale."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = _rms_norm(x, weight)
        scale = normal.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        return (normal / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden))


def rms_norm_fp8_block(device: str, tokens: int = 8192, hidden: int = 4096, block: int = 128) -> Built:
    """One scale for every `block` columns, as DeepSeek-V3's matmuls take them."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = _rms_norm(x, weight).view(tokens, hidden // block, block)
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        quantised = (blocks / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return quantised.view(tokens, hidden), scale.squeeze(-1)

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden))


def rms_norm_int8_row(device: str, tokens: int = 8192, hidden: int = 4096) -> Built:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = _rms_norm(x, weight)
        scale = normal.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127.0
        return torch.round(normal / scale).clamp(-128.0, 127.0).to(torch.int8), scale

    return fn, (_randn(device, tokens, hidden), _randn(device, hidden))


def linear_fp8_block(
    device: str, tokens: int = 8192, in_features: int = 4096, out_features: int = 4096, block: int = 128
) -> Built:
    """A matmul whose result is quantised in blocks of columns: a reduction inside a tile."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = F.linear(x, weight).float().view(tokens, out_features // block, block)
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        quantised = (blocks / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return quantised.view(tokens, out_features), scale.squeeze(-1)

    return fn, (_randn(device, tokens, in_features), _randn(device, out_features, in_features))


def int8_linear(device: str, tokens: int = 16, in_features: int = 4096, out_features: int = 14336) -> Built:
    """One scale an output channel."""

    def fn(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight.to(x.dtype)) * scale

    weight = torch.randint(-128, 128, (out_features, in_features), device=device, dtype=torch.int8)
    return fn, (_randn(device, tokens, in_features), weight, _randn(device, out_features) * 0.01)


def int4_linear(
    device: str, tokens: int = 16, in_features: int = 4096, out_features: int = 14336, group: int = 128
) -> Built:
    """Two neighbouring weights a byte, the low bits first; one scale a `group` of inputs; 8 is zero."""

    def fn(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack((packed & 15, packed >> 4), dim=-1)
        weight = (pairs.view(out_features, in_features // group, group).to(x.dtype) - 8.0) * scale.unsqueeze(-1)
        return F.linear(x, weight.view(out_features, in_features))

    packed = torch.randint(0, 256, (out_features, in_features // 2), device=device, dtype=torch.uint8)
    return fn, (_randn(device, tokens, in_features), packed, _randn(device, out_features, in_features // group) * 0.1)


def fp8_linear(device: str, tokens: int = 16, in_features: int = 4096, out_features: int = 14336) -> Built:
    """One scale an output channel."""

    def fn(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight.to(x.dtype)) * scale

    weight = _randn(device, out_features, in_features).to(torch.float8_e4m3fn)
    return fn, (_randn(device, tokens, in_features), weight, _randn(device, out_features) * 0.01)
