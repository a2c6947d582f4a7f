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
