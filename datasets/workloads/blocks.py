"""Parts of whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


class _LlamaMLP(torch.nn.Module):
    """Residual stream in, residual stream out: norm, gated MLP, sum."""

    def __init__(self, device: str, hidden: int, inner: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": False, "device": device, "dtype": torch.bfloat16}
        self.norm = torch.nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16))
        self.gate = torch.nn.Linear(hidden, inner, **options)
        self.up = torch.nn.Linear(hidden, inner, **options)
        self.down = torch.nn.Linear(inner, hidden, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = F.rms_norm(x, (x.shape[-1],), self.norm, 1e-6)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


def llama_mlp(device: str, tokens: int = 8192, hidden: int = 4096, inner: int = 14336) -> Built:
    return _LlamaMLP(device, hidden, inner), (_randn(device, tokens, hidden),)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class _LlamaAttention(torch.nn.Module):
    """Residual stream in, residual stream and the norm that the MLP half begins with out."""

    def __init__(self, device: str, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        options: dict[str, Any] = {"bias": False, "device": device, "dtype": torch.bfloat16}
        ones = torch.ones(hidden, device=device, dtype=torch.bfloat16)
        self.norm, self.norm_after = torch.nn.Parameter(ones.clone()), torch.nn.Parameter(ones.clone())
        self.query = torch.nn.Linear(hidden, hidden, **options)
        self.key = torch.nn.Linear(hidden, kv_heads * self.head_dim, **options)
        self.value = torch.nn.Linear(hidden, kv_heads * self.head_dim, **options)
        self.out = torch.nn.Linear(hidden, hidden, **options)

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normal = F.rms_norm(x, (x.shape[-1],), self.norm, 1e-6)
        query = _rotate(self.split(self.query(normal), self.heads), cos, sin)
        key = _rotate(self.split(self.key(normal), self.kv_heads), cos, sin)
        value = self.split(self.value(normal), self.kv_heads)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        stream = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return stream, F.rms_norm(stream, (x.shape[-1],), self.norm_after, 1e-6)


def llama_attention(
    device: str, batch: int = 1, tokens: int = 4096, hidden: int = 4096, heads: int = 32, kv_heads: int = 8
) -> Built:
    module = _LlamaAttention(device, hidden, heads, kv_heads)
    angles = _randn(device, tokens, hidden // heads)
    return module, (_randn(device, batch, tokens, hidden), angles.cos(), angles.sin())


class _ViTBlock(torch.nn.Module):
    def __init__(self, device: str, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.norm, self.norm_after = torch.nn.LayerNorm(hidden, **options), torch.nn.LayerNorm(hidden, **options)
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, **options)
        self.out = torch.nn.Linear(hidden, hidden, **options)
        self.up = torch.nn.Linear(hidden, 4 * hidden, **options)
        self.down = torch.nn.Linear(4 * hidden, hidden, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, self.heads, self.head_dim)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm_after(x))))


def vit_block(device: str, batch: int = 64, tokens: int = 197, hidden: int = 1024, heads: int = 16) -> Built:
    return _ViTBlock(device, hidden, heads), (_randn(device, batch, tokens, hidden),)


class _ResNetBlock(torch.nn.Module):
    """Of a diffusion model's U-Net: the time step comes in between the two convolutions."""

    def __init__(self, device: str, channels: int, time: int, groups: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.norm, self.norm_after = (torch.nn.GroupNorm(groups, channels, **options) for _ in range(2))
        self.conv, self.conv_after = (
            torch.nn.Conv2d(channels, channels, 3, padding=1, **options) for _ in range(2)
        )  # fmt: skip
        self.time = torch.nn.Linear(time, channels, **options)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.conv(F.silu(self.norm(x)))
        inner = inner + self.time(F.silu(time)).unsqueeze(-1).unsqueeze(-1)
        return x + self.conv_after(F.silu(self.norm_after(inner)))


def resnet_block(
    device: str, batch: int = 8, channels: int = 320, size: int = 64, time: int = 1280, groups: int = 32
) -> Built:
    x = _randn(device, batch, channels, size, size)
    return _ResNetBlock(device, channels, time, groups), (x, _randn(device, batch, time))
