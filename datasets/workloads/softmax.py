"""Softmax, its logarithm, and cross entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

Built = tuple[Callable[..., Any], tuple[Any, ...]]


def _randn(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


def softmax(device: str, rows: int = 8192, columns: int = 4096) -> Built:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)

    return fn, (_randn(device, rows, columns),)


def log_softmax(device: str, rows: int = 4096, columns: int = 65536) -> Built:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1)

    return fn, (_randn(device, rows, columns),)


def cross_entropy(device: str, rows: int = 8192, classes: int = 128256) -> Built:
    """One loss a row."""

    def fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, reduction="none")

    return fn, (_randn(device, rows, classes), torch.randint(0, classes, (rows,), device=device))


def softmax_float32(device: str, rows: int = 8192, columns: int = 4096) -> Built:
    fn, (x,) = softmax(device, rows, columns)
    return fn, (x.float(),)


def masked_softmax(device: str, rows: int = 8192, columns: int = 4096) -> Built:
    """Scores of an attention: scaled, and left out where the mask says so."""

    def fn(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((scores * 0.088).masked_fill(mask, float("-inf")), dim=-1)

    # The first half of each row stays: a row without any score is NaN.
    mask = (torch.arange(columns, device=device) > columns // 2) & (_randn(device, rows, columns) > 0)
    return fn, (_randn(device, rows, columns), mask)


def log_sum_exp(device: str, rows: int = 8192, columns: int = 32000) -> Built:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x.float(), dim=-1)

    return fn, (_randn(device, rows, columns),)


def _targets(device: str, rows: int, classes: int) -> torch.Tensor:
    """Every eighth row has nothing to predict (-100), as padding has."""
    target = torch.randint(0, classes, (rows,), device=device)
    return torch.where(torch.arange(rows, device=device) % 8 == 7, -100, target)


def cross_entropy_ignore(device: str, rows: int = 8192, classes: int = 128256) -> Built:
    """The mean over the rows that count."""

    def fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, ignore_index=-100)

    return fn, (_randn(device, rows, classes), _targets(device, rows, classes))


def cross_entropy_smoothing(device: str, rows: int = 8192, classes: int = 128256) -> Built:
    def fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, ignore_index=-100, label_smoothing=0.1, reduction="none")

    return fn, (_randn(device, rows, classes), _targets(device, rows, classes))


def cross_entropy_z_loss(device: str, rows: int = 8192, classes: int = 128256) -> Built:
    """With the square of the logarithm of the partition sum as a second term, as PaLM has it. One loss a row."""

    def fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        wide = logits.float()
        log_z = torch.logsumexp(wide, dim=-1)
        counts = target != -100
        safe = torch.where(counts, target, 0)
        chosen = wide.gather(1, safe.unsqueeze(1)).squeeze(1)
        return torch.where(counts, log_z - chosen + 1e-4 * log_z.square(), 0.0)

    return fn, (_randn(device, rows, classes), _targets(device, rows, classes))


def linear_cross_entropy(device: str, tokens: int = 4096, hidden: int = 4096, classes: int = 32000) -> Built:
    """The head of a language model: one loss a token."""

    def fn(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, weight), target, reduction="none")

    # Logits of about unit size: a classifier's weights are small.
    weight = _randn(device, classes, hidden) * hidden**-0.5
    return fn, (_randn(device, tokens, hidden), weight, torch.randint(0, classes, (tokens,), device=device))


def linear_top1(device: str, tokens: int = 4096, hidden: int = 4096, classes: int = 32000) -> Built:
    """Greedy decoding: the logits are of no use once the best is known."""

    def fn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight).argmax(-1)

    return fn, (_randn(device, tokens, hidden), _randn(device, classes, hidden) * hidden**-0.5)
